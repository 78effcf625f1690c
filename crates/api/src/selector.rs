//! Label selectors as Kubernetes evaluates them.

use crate::texts::Lookup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Error for a selector that cannot be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The operator is unknown.
    #[error(
        "selector key {key:?} has operator {operator:?}: want In, NotIn, Exists or DoesNotExist"
    )]
    Operator {
        /// The label key.
        key: String,
        /// The unknown operator.
        operator: String,
    },
    /// `In` or `NotIn` without values.
    #[error("selector key {key:?}: operator {operator} needs values")]
    NoValues {
        /// The label key.
        key: String,
        /// The operator.
        operator: String,
    },
    /// `Exists` or `DoesNotExist` with values.
    #[error("selector key {key:?}: operator {operator} takes no values, got {values:?}")]
    Values {
        /// The label key.
        key: String,
        /// The operator.
        operator: String,
        /// The values.
        values: Vec<String>,
    },
}

/// Returns true if `selector` matches an object with `labels`. An empty selector matches every object.
///
/// # Errors
/// The selector is invalid.
pub fn matches(selector: &LabelSelector, labels: &impl Lookup) -> Result<bool, SelectorError> {
    let mut all = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.text(key) == Some(value));
    for requirement in selector.match_expressions.iter().flatten() {
        all &= requirement_met(requirement, labels)?;
    }
    Ok(all)
}

/// Returns true if the labels meet the requirement.
fn requirement_met(
    requirement: &LabelSelectorRequirement,
    labels: &impl Lookup,
) -> Result<bool, SelectorError> {
    let value = labels.text(&requirement.key);
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|listed| listed == value);
    let key = || requirement.key.clone();
    let operator = || requirement.operator.clone();
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => Err(SelectorError::NoValues {
            key: key(),
            operator: operator(),
        }),
        "Exists" | "DoesNotExist" if !values.is_empty() => Err(SelectorError::Values {
            key: key(),
            operator: operator(),
            values: values.to_vec(),
        }),
        "In" => Ok(value.is_some_and(listed)),
        "NotIn" => Ok(!value.is_some_and(listed)),
        "Exists" => Ok(value.is_some()),
        "DoesNotExist" => Ok(value.is_none()),
        _ => Err(SelectorError::Operator {
            key: key(),
            operator: operator(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn check(selector: Value, labels: Value) -> Result<bool, SelectorError> {
        let selector: LabelSelector = serde_json::from_value(selector).unwrap();
        let labels: BTreeMap<String, String> = serde_json::from_value(labels).unwrap();
        matches(&selector, &labels)
    }

    #[test]
    fn every_part_must_match() {
        let expression = |operator: &str, values: Value| json!({ "matchExpressions": [{ "key": "a", "operator": operator, "values": values }] });
        assert_eq!(check(json!({}), json!({})), Ok(true));
        assert_eq!(
            check(json!({"matchLabels": {"a": "1"}}), json!({"a": "1"})),
            Ok(true)
        );
        assert_eq!(
            check(json!({"matchLabels": {"a": "1"}}), json!({"a": "2"})),
            Ok(false)
        );
        assert_eq!(
            check(expression("In", json!(["1", "2"])), json!({"a": "2"})),
            Ok(true)
        );
        assert_eq!(
            check(expression("NotIn", json!(["1"])), json!({})),
            Ok(true)
        );
        assert_eq!(
            check(expression("NotIn", json!(["1"])), json!({"a": "1"})),
            Ok(false)
        );
        assert_eq!(
            check(expression("Exists", json!([])), json!({"a": ""})),
            Ok(true)
        );
        assert_eq!(
            check(expression("DoesNotExist", json!(null)), json!({"a": ""})),
            Ok(false)
        );
    }

    #[test]
    fn malformed_selectors_are_errors() {
        for (operator, values) in [
            ("in", json!(["1"])),
            ("In", json!([])),
            ("Exists", json!(["1"])),
        ] {
            let selector = json!({ "matchExpressions": [{ "key": "zone", "operator": operator, "values": values }] });
            let error = check(selector, json!({})).unwrap_err().to_string();
            assert!(
                error.contains("\"zone\"") && error.contains(operator),
                "{error}"
            );
        }
    }
}
