//! Validates that pods have the labels that a ConfigMap requires.
//!
//! Source: Koordinator `pkg/webhook/pod/validating/pod_enhanced_validator.go`.

use koord_api::{labels, lenient};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The required labels of pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Requirements {
    enabled: bool,
    rules: Vec<Rule>,
}

/// Labels that pods outside of certain namespaces must have.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    name: String,
    required_labels: Vec<String>,
    namespace_whitelist: Vec<String>,
}

impl Requirements {
    /// Parses `enable` and `rules` of the ConfigMap.
    ///
    /// # Errors
    /// `rules` is not a list of rules; the error names key, field and value.
    pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let text = |key: &str| data.get(key).map(|text| text.trim());
        let rules = match text("rules") {
            None => Vec::new(),
            Some(text) => {
                lenient::from_json(text).map_err(|error| format!("key \"rules\": {error}"))?
            }
        };
        let enabled = text("enable").is_some_and(|text| text.eq_ignore_ascii_case("true"));
        Ok(Self { enabled, rules })
    }

    /// Checks that a pod with `labels` in `namespace` has the required labels.
    ///
    /// # Errors
    /// Names the first violated rule and the missing labels.
    pub(crate) fn check(
        &self,
        labels: &BTreeMap<String, String>,
        namespace: &str,
    ) -> Result<(), String> {
        let exempt = labels.get(labels::POD_SKIP_ENHANCED_VALIDATION);
        if !self.enabled || exempt.is_some_and(|value| value == "true") {
            return Ok(());
        }
        for rule in &self.rules {
            if !namespace.is_empty()
                && rule
                    .namespace_whitelist
                    .iter()
                    .any(|name| name == namespace)
            {
                continue;
            }
            let required = rule.required_labels.iter();
            let missing: Vec<_> = required.filter(|key| !labels.contains_key(*key)).collect();
            if !missing.is_empty() {
                let name = &rule.name;
                return Err(format!(
                    "metadata.labels: rule {name:?} requires {missing:?}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn requirements(enable: &str, rules: Value) -> Requirements {
        let data = [("enable", enable.to_owned()), ("rules", rules.to_string())];
        let data = data.map(|(key, value)| (key.to_owned(), value));
        Requirements::parse(&data.into()).unwrap()
    }

    /// Upstream's `TestPodEnhancedValidate`; the operation and the gate are the handler's.
    #[test]
    fn rules_require_labels() {
        let quota = json!({
            "name": "quota-label-required",
            "requiredLabels": ["quota.scheduling.koordinator.sh/name"],
            "namespaceWhitelist": ["kube-system", "koordinator-system"],
        });
        let two = json!({"name": "two", "requiredLabels": ["product", "app"]});
        let app = json!({"name": "app-label-required", "requiredLabels": ["app"]});
        let with_quota = json!({"quota.scheduling.koordinator.sh/name": "q"});
        let labels = json!({"quota.scheduling.koordinator.sh/name": "q", "app": "a"});
        let skip = json!({"pod.koordinator.sh/skip-enhanced-validation": "true"});
        for (enable, rules, namespace, labels, missing) in [
            ("false", json!([quota]), "ns1", json!({}), ""),
            ("true", json!([]), "ns1", json!({}), ""),
            ("true", json!([quota]), "ns1", with_quota.clone(), ""),
            (
                " TRUE ",
                json!([quota]),
                "ns1",
                json!({}),
                "quota.scheduling.koordinator.sh/name",
            ),
            ("true", json!([quota]), "kube-system", json!({}), ""),
            ("true", json!([quota]), "koordinator-system", json!({}), ""),
            ("true", json!([quota]), "ns1", skip, ""),
            (
                "true",
                json!([two]),
                "ns1",
                json!({"product": "p", "app": "a"}),
                "",
            ),
            (
                "true",
                json!([two]),
                "ns1",
                json!({"product": "p"}),
                r#"["app"]"#,
            ),
            (
                "true",
                json!([two]),
                "ns1",
                json!({"app": "a"}),
                r#"["product"]"#,
            ),
            (
                "true",
                json!([two]),
                "ns1",
                json!({}),
                r#"["product", "app"]"#,
            ),
            ("true", json!([quota, app]), "ns1", labels, ""),
            (
                "true",
                json!([quota, app]),
                "ns1",
                json!({"app": "a"}),
                "quota-label-required",
            ),
            (
                "true",
                json!([quota, app]),
                "kube-system",
                json!({}),
                "app-label-required",
            ),
            ("yes", json!([quota]), "ns1", json!({}), ""),
        ] {
            let labels = serde_json::from_value(labels).unwrap();
            let result = requirements(enable, rules.clone()).check(&labels, namespace);
            match result {
                Ok(()) => assert_eq!(missing, "", "{rules} {labels:?}"),
                Err(error) => assert!(!missing.is_empty() && error.contains(missing), "{error}"),
            }
        }
        let none = Requirements::parse(&BTreeMap::new()).unwrap();
        assert_eq!(none.check(&BTreeMap::new(), "ns1"), Ok(()));
    }

    #[test]
    fn malformed_rules_are_named() {
        let error = |text: &str| {
            let data = [("rules".to_owned(), text.to_owned())].into();
            Requirements::parse(&data).unwrap_err()
        };
        assert!(
            error("nonsense").contains("\"rules\": not JSON"),
            "{}",
            error("nonsense")
        );
        let error = error(r#"[{"name": "a", "requiredLabels": "app"}]"#);
        assert!(
            error.contains("[0].requiredLabels") && error.contains("app"),
            "{error}"
        );
    }
}
