//! Validation of Kubernetes types inside a configuration. They are decoded leniently, and a misspelled field
//! in a selector would make it select everything, so they are checked before decoding.

use super::{ConfigError, refuse};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::selector;
use koord_object::selector::label_problem;
use serde_json::Value;
use std::collections::BTreeMap;

const SELECTORS: [&str; 4] = [
    "nodeSelector",
    "labelSelector",
    "namespaceLabelSelector",
    "selector",
];
const DELETE_OPTIONS: [&str; 8] = [
    "apiVersion",
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "kind",
    "orphanDependents",
    "preconditions",
    "propagationPolicy",
];

/// Checks every label selector and every `defaultDeleteOptions` in `value`, which is at `path`; if `strict`,
/// also for unknown fields.
///
/// # Errors
/// Returns the first invalid one. Values of a wrong type are left to the decoder.
pub(crate) fn check(path: &str, value: &Value, strict: bool) -> Result<(), ConfigError> {
    match value {
        Value::Object(members) => members.iter().try_for_each(|(key, value)| {
            // Arguments are checked when the plugin decodes them.
            if key == "args" {
                return Ok(());
            }
            let path = match path {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            if SELECTORS.contains(&key.as_str()) && value.is_object() {
                return check_selector(&path, value, strict);
            }
            if key == "defaultDeleteOptions" && strict {
                check_fields(&path, value, &DELETE_OPTIONS)?;
                let preconditions = value.get("preconditions").unwrap_or(&Value::Null);
                let path = format!("{path}.preconditions");
                return check_fields(&path, preconditions, &["resourceVersion", "uid"]);
            }
            check(&path, value, strict)
        }),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .try_for_each(|(at, value)| check(&format!("{path}[{at}]"), value, strict)),
        _ => Ok(()),
    }
}

fn check_fields(path: &str, value: &Value, fields: &[&str]) -> Result<(), ConfigError> {
    let mut members = value.as_object().into_iter().flatten();
    match members.find(|(key, _)| !fields.contains(&key.as_str())) {
        Some((key, _)) => {
            let expected = fields.join(", ");
            refuse(
                path,
                format!("unknown field {key:?}, expected one of {expected}"),
            )
        }
        None => Ok(()),
    }
}

/// Checks a label selector; `strict` refuses unknown fields, too.
fn check_selector(path: &str, value: &Value, strict: bool) -> Result<(), ConfigError> {
    let expressions = value.get("matchExpressions").and_then(Value::as_array);
    if strict {
        check_fields(path, value, &["matchExpressions", "matchLabels"])?;
        for (at, expression) in expressions.into_iter().flatten().enumerate() {
            let path = format!("{path}.matchExpressions[{at}]");
            check_fields(&path, expression, &["key", "operator", "values"])?;
        }
    }
    let read: LabelSelector = super::decode(path, value.clone())?;
    let labels = read.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| (format!("{path}.matchLabels"), key, value.as_str()));
    let mut pairs: Vec<_> = labels.collect();
    for (at, expression) in read.match_expressions.iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{at}]");
        pairs.push((path.clone(), &expression.key, ""));
        let values = expression.values.iter().flatten();
        pairs.extend(values.map(|value| (path.clone(), &expression.key, value.as_str())));
    }
    for (path, key, value) in pairs {
        if let Some(problem) = label_problem(key, value) {
            return refuse(path, problem);
        }
    }
    match selector::matches(&read, &BTreeMap::new()) {
        Ok(_) => Ok(()),
        Err(error) => refuse(path, error.to_string()),
    }
}
