//! Parses the target and the percentiles of a Recommendation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::analysis::{
    PERCENTILES, PercentilesAnnotation, RecommendationTarget, RecommendationTargetType,
};
use koord_api::{lenient, selector};
use koord_kube::owners::{Owner, group_of};
use koord_model::recommend::Percentiles;
use std::borrow::Borrow;
use std::collections::BTreeMap;

/// The pods that a Recommendation covers, all in its namespace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Target {
    /// Pods that a workload owns, directly or through other controllers.
    Workload {
        api_version: String,
        kind: String,
        name: String,
    },
    /// Pods that a label selector matches.
    Selector(LabelSelector),
}

impl Target {
    /// Parses `spec.target`.
    ///
    /// # Errors
    /// Names the invalid field and its value.
    pub(crate) fn from_spec(target: &RecommendationTarget) -> Result<Self, String> {
        let both_set =
            || "spec.target.workload and spec.target.podSelector are both set: want one".to_owned();
        match (&target.type_, &target.workload, &target.pod_selector) {
            (RecommendationTargetType::Other(text), ..) => Err(format!(
                "spec.target.type {text:?}: want \"workload\" or \"podSelector\""
            )),
            (_, Some(_), Some(_)) => Err(both_set()),
            (RecommendationTargetType::Workload, None, _) => {
                Err("spec.target.workload is absent: type \"workload\" needs it".to_owned())
            }
            (RecommendationTargetType::PodSelector, _, None) => {
                Err("spec.target.podSelector is absent: type \"podSelector\" needs it".to_owned())
            }
            (RecommendationTargetType::PodSelector, _, Some(labels)) => {
                selector::matches(labels, &BTreeMap::new())
                    .map_err(|error| format!("spec.target.podSelector: {error}"))?;
                Ok(Self::Selector(labels.clone()))
            }
            (RecommendationTargetType::Workload, Some(workload), _) => {
                for (field, value) in [("kind", &workload.kind), ("name", &workload.name)] {
                    if value.is_empty() {
                        return Err(format!("spec.target.workload.{field} is empty"));
                    }
                }
                let api_version = workload.api_version_or_builtin().ok_or_else(|| {
                    format!(
                        "spec.target.workload.apiVersion is empty, and kind {:?} is none of \
                         Kubernetes' own workloads",
                        workload.kind
                    )
                })?;
                Ok(Self::Workload {
                    api_version: api_version.to_owned(),
                    kind: workload.kind.clone(),
                    name: workload.name.clone(),
                })
            }
        }
    }

    /// Returns true if the target covers a pod with these labels and these controllers as ancestors.
    pub(crate) fn matches<O: Borrow<Owner>>(
        &self,
        labels: &BTreeMap<String, String>,
        owners: &[O],
    ) -> bool {
        match self {
            // The selector was validated in the constructor.
            Self::Selector(labels_wanted) => {
                selector::matches(labels_wanted, labels).unwrap_or(false)
            }
            Self::Workload {
                api_version,
                kind,
                name,
            } => owners.iter().any(|owner| {
                let owner: &Owner = owner.borrow();
                owner.group() == group_of(api_version) && owner.kind == *kind && owner.name == *name
            }),
        }
    }
}

/// Returns the percentiles in the annotation of a Recommendation, if it has one; `default` for missing
/// values.
///
/// # Errors
/// The annotation is invalid; the message contains the reason and the value.
pub(crate) fn percentiles(
    annotation: Option<&str>,
    default: Percentiles,
) -> Result<Percentiles, String> {
    let Some(text) = annotation else {
        return Ok(default);
    };
    let refused =
        |reason: &dyn std::fmt::Display| format!("annotation {PERCENTILES} {text:?}: {reason}");
    let parsed: PercentilesAnnotation =
        lenient::from_json(text).map_err(|error| refused(&error))?;
    let resolved = Percentiles {
        cpu: parsed.cpu.unwrap_or(default.cpu),
        memory: parsed.memory.unwrap_or(default.memory),
    };
    resolved.check().map_err(|error| refused(&error))?;
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_api::Uid;
    use serde_json::{Value, json};

    fn read(target: Value) -> Result<Target, String> {
        Target::from_spec(&serde_json::from_value(target).unwrap())
    }

    #[test]
    fn wrong_targets_name_field_and_value() {
        let web = json!({"kind": "Deployment", "name": "web"});
        for (target, says) in [
            (json!({"type": "pods"}), "spec.target.type \"pods\""),
            (
                json!({"type": "workload"}),
                "spec.target.workload is absent",
            ),
            (
                json!({"type": "podSelector", "workload": web}),
                "spec.target.podSelector is absent",
            ),
            (
                json!({"type": "workload", "workload": web, "podSelector": {}}),
                "both set",
            ),
            (
                json!({"type": "workload", "workload": {"kind": "Deployment", "name": ""}}),
                "spec.target.workload.name is empty",
            ),
            (
                json!({"type": "workload", "workload": {"kind": "CloneSet", "name": "web"}}),
                "kind \"CloneSet\"",
            ),
            (
                json!({"type": "podSelector", "podSelector": {"matchExpressions": [
                    {"key": "app", "operator": "Like", "values": ["a"]}]}}),
                "spec.target.podSelector: selector key \"app\" has operator \"Like\"",
            ),
        ] {
            let error = read(target).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn workload_is_found_among_pod_ancestors() {
        let target = read(json!({"type": "workload",
            "workload": {"apiVersion": "apps/v1beta1", "kind": "Deployment", "name": "web"}}))
        .unwrap();
        let owner = |api_version: &str, kind: &str, name: &str| Owner {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: Uid::default(),
        };
        let set = owner("apps/v1", "ReplicaSet", "web-1");
        let none = BTreeMap::new();
        assert!(!target.matches(&none, std::slice::from_ref(&set)));
        // Only the group is compared, not the version.
        let chain = [set.clone(), owner("apps/v1", "Deployment", "web")];
        assert!(target.matches(&none, &chain));
        let foreign = [set, owner("example.io/v1", "Deployment", "web")];
        assert!(!target.matches(&none, &foreign));
    }

    #[test]
    fn percentiles_come_from_the_annotation() {
        let default = Percentiles {
            cpu: 0.95,
            memory: 0.98,
        };
        let read = |text: &str| percentiles(Some(text), default);
        assert_eq!(percentiles(None, default), Ok(default));
        let parsed = read(r#"{"CPU": 0.5, "memory": 1}"#).unwrap();
        assert_eq!((parsed.cpu, parsed.memory), (0.5, 1.0));
        assert_eq!(read(r#"{"cpu": 0.5}"#).unwrap().memory, 0.98);
        for (text, says) in [
            ("p95", "not JSON"),
            (
                r#"{"cpu": 95}"#,
                "cpu must be above 0 and at most 1, got 95",
            ),
            (
                r#"{"memory": 0}"#,
                "memory must be above 0 and at most 1, got 0",
            ),
            (r#"{"cpu": "0.9"}"#, "field cpu"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{error}");
            assert!(error.contains(PERCENTILES), "{error}");
        }
    }
}
