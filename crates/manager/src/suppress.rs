//! The setting `cpu-suppress-config` for koordlet, which upstream does not have. It is passed on in an
//! extension of the NodeSLO.
//!
//! The ConfigMap key is shaped like upstream's sections: `{"clusterStrategy": {"mode": "pressure"},
//! "nodeStrategies": [{"nodeSelector": {...}, "mode": "upstream"}]}`. The strategy of a node becomes
//! `spec.extensions.Object.cpuSuppress`: of the extensions, a Go manager keeps the content of `Object` and
//! drops the rest. Without the key, an existing extension of another writer is left alone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::configmap::rollout;
use koord_api::selector;
use koord_api::slo::ExtensionsMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The key in the ConfigMap.
pub(crate) const CONFIG_KEY: &str = "cpu-suppress-config";
/// The key of the extension below [`KEPT`].
pub(crate) const EXTENSION: &str = "cpuSuppress";
/// The key below `spec.extensions` whose content Go managers preserve.
const KEPT: &str = "Object";

/// The modes that koordlet supports.
const MODES: [&str; 2] = ["pressure", "upstream"];

/// Returns the extensions of a new NodeSLO, as a Go manager writes them.
pub(crate) fn empty_extensions() -> ExtensionsMap {
    Map::from_iter([(KEPT.to_owned(), json!({}))])
}

/// Returns the problems in `config`, the text of [`CONFIG_KEY`]. The flag is true for an invalid value, false
/// for a field that does not exist.
///
/// # Errors
/// The text cannot be parsed, or a node selector is invalid.
pub(crate) fn check(config: &str) -> Result<Vec<(String, bool)>, String> {
    let section: SuppressSection =
        serde_json::from_str(config).map_err(|error| format!("{CONFIG_KEY}: {error}"))?;
    let mut remarks = Vec::new();
    let mut check_strategy = |at: &str, strategy: &Map<String, Value>| {
        for (name, value) in strategy {
            if let Some(reason) = setting_problem(name, value) {
                let is_refused = matches!(name.as_str(), "mode" | "beCPUIdle");
                let message = format!("{CONFIG_KEY}: field {at}.{name} is {value}: {reason}");
                remarks.push((message, is_refused));
            }
        }
    };
    check_strategy("clusterStrategy", &section.cluster_strategy);
    for (at, node) in section.node_strategies.iter().enumerate() {
        check_strategy(&format!("nodeStrategies[{at}]"), &node.strategy);
    }
    for (at, node) in section.node_strategies.iter().enumerate() {
        if let Err(error) = rollout::parse(node.rollout_percent.as_ref()) {
            remarks.push((format!("{CONFIG_KEY}: nodeStrategies[{at}]: {error}"), true));
        }
        if let Err(error) = selector::matches(&node.node_selector, &BTreeMap::new()) {
            return Err(format!("{CONFIG_KEY}: nodeStrategies[{at}]: {error}"));
        }
    }
    Ok(remarks)
}

/// Returns why a setting is ignored; `None` if it is valid.
fn setting_problem(name: &str, value: &Value) -> Option<&'static str> {
    match name {
        // Node agents ignore the name; it shows users which strategy a NodeSLO has.
        "name" => None,
        "mode" if value.as_str().is_some_and(|mode| MODES.contains(&mode)) => None,
        "mode" => Some("it is none of pressure, upstream; it counts as not given"),
        "beCPUIdle" if value.is_boolean() => None,
        "beCPUIdle" => Some("it is not true or false; it counts as not given"),
        _ => Some("there is no such field; it is ignored"),
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SuppressSection {
    cluster_strategy: Map<String, Value>,
    node_strategies: Vec<Override>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Override {
    node_selector: LabelSelector,
    #[serde(default)]
    rollout_percent: Option<Value>,
    #[serde(flatten)]
    strategy: Map<String, Value>,
}

/// Sets the extension of the node `node` with `labels` according to `config`, the text of [`CONFIG_KEY`]. A text
/// that cannot be parsed changes nothing; the error names the key.
pub(crate) fn extend(
    extensions: &mut Option<ExtensionsMap>,
    config: Option<&str>,
    node: &str,
    labels: &BTreeMap<String, String>,
) -> Result<(), String> {
    let Some(config) = config else { return Ok(()) };
    let section: SuppressSection =
        serde_json::from_str(config).map_err(|error| format!("{CONFIG_KEY}: {error}"))?;
    let valid_settings = |strategy: Map<String, Value>| {
        let valid_settings =
            |(name, value): &(String, Value)| setting_problem(name, value).is_none();
        strategy.into_iter().filter(valid_settings)
    };
    let mut strategy: Map<_, _> = valid_settings(section.cluster_strategy).collect();
    for mut candidate in section.node_strategies {
        candidate.strategy.remove("name");
        let matches = selector::matches(&candidate.node_selector, labels)
            .map_err(|error| format!("{CONFIG_KEY}: {error}"))?;
        let percent = rollout::parse(candidate.rollout_percent.as_ref()).unwrap_or(0);
        if matches && rollout::bucket(node) < percent {
            strategy.extend(valid_settings(candidate.strategy));
            break;
        }
    }
    let extensions = extensions.get_or_insert_default();
    extensions.remove(EXTENSION);
    let preserved = extensions.entry(KEPT).or_insert_with(|| json!({}));
    if !preserved.is_object() {
        *preserved = json!({});
    }
    if let Some(preserved) = preserved.as_object_mut() {
        preserved.insert(EXTENSION.to_owned(), Value::Object(strategy));
    }
    Ok(())
}

/// Returns the name and selector of each node strategy in `config`, the text of [`CONFIG_KEY`].
///
/// # Errors
/// A text that cannot be parsed, or an invalid selector; the error names the key.
pub(crate) fn overrides(
    config: Option<&str>,
) -> Result<Vec<(String, Option<LabelSelector>)>, String> {
    let Some(config) = config.filter(|text| !text.is_empty()) else {
        return Ok(Vec::new());
    };
    let invalid = |error: &dyn std::fmt::Display| format!("{CONFIG_KEY}: {error}");
    let section: SuppressSection = serde_json::from_str(config).map_err(|error| invalid(&error))?;
    let named = |(at, node): (usize, Override)| {
        selector::matches(&node.node_selector, &BTreeMap::new())
            .map_err(|error| invalid(&error))?;
        let name = node.strategy.get("name").and_then(Value::as_str);
        let name = name.map_or_else(|| format!("#{at}"), str::to_owned);
        Ok((name, Some(node.node_selector)))
    };
    section
        .node_strategies
        .into_iter()
        .enumerate()
        .map(named)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extended(config: &Value, labels: &[(&str, &str)]) -> Option<Value> {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let mut extensions =
            json!({"other": 1, EXTENSION: {"mode": "old place"}, "Object": {"a": 1}});
        let mut map = extensions.as_object_mut().cloned();
        extend(&mut map, Some(&config.to_string()), "n", &labels).ok()?;
        extensions = Value::Object(map?);
        assert_eq!(
            (&extensions["other"], &extensions["Object"]["a"]),
            (&json!(1), &json!(1))
        );
        assert_eq!(extensions.get(EXTENSION), None);
        Some(extensions["Object"][EXTENSION].clone())
    }

    #[test]
    fn first_matching_override_extends_cluster() {
        let config = json!({
            "clusterStrategy": {"mode": "pressure", "beCPUIdle": false},
            "nodeStrategies": [
                {"name": "old", "nodeSelector": {"matchLabels": {"pool": "old"}}, "mode": "upstream"},
                {"nodeSelector": {"matchLabels": {"pool": "old"}}, "mode": "other"}]});
        let plain = extended(&config, &[]).unwrap();
        assert_eq!(plain, json!({"mode": "pressure", "beCPUIdle": false}));
        let old = extended(&config, &[("pool", "old")]).unwrap();
        assert_eq!(old["mode"], "upstream");
        assert_eq!(old["beCPUIdle"], false);
    }

    #[test]
    fn invalid_settings_are_reported() {
        let config = json!({"clusterStrategy": {"mode": "presure", "beCpuIdle": true},
            "nodeStrategies": [{"name": "n", "nodeSelector": {}, "mode": "upstream", "beCPUIdle": 1}]});
        let remarks = check(&config.to_string()).unwrap();
        for part in [
            "clusterStrategy.mode is \"presure\"",
            "clusterStrategy.beCpuIdle is true",
            "nodeStrategies[0].beCPUIdle is 1",
        ] {
            assert!(
                remarks.iter().any(|(remark, _)| remark.contains(part)),
                "{remarks:?}"
            );
        }
        assert_eq!(remarks.len(), 3);
        let is_refused = |part: &str| {
            remarks
                .iter()
                .any(|(r, refused)| r.contains(part) && *refused)
        };
        assert_eq!(
            ["presure", "beCpuIdle", "beCPUIdle"].map(is_refused),
            [true, false, true]
        );
        // The cluster's name is passed on; a node strategy's name is not.
        let named = json!({"clusterStrategy": {"name": "night"},
            "nodeStrategies": [{"name": "edge", "nodeSelector": {}, "mode": "upstream"}]});
        let node = extended(&named, &[]).unwrap();
        assert_eq!(node, json!({"name": "night", "mode": "upstream"}));
        // Invalid settings are not passed on.
        let node = extended(&config, &[]).unwrap();
        assert_eq!(node, json!({"mode": "upstream"}));
        assert!(check("{").unwrap_err().starts_with("cpu-suppress-config: "));
    }

    #[test]
    fn invalid_text_changes_nothing() {
        let mut extensions = None;
        assert!(extend(&mut extensions, None, "n", &BTreeMap::new()).is_ok());
        let error = extend(&mut extensions, Some("{"), "n", &BTreeMap::new()).unwrap_err();
        assert!(error.starts_with("cpu-suppress-config: "), "{error}");
        assert_eq!(extensions, None);
    }
}
