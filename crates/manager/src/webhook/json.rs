//! Helpers to edit objects under admission in place as JSON. What no rule changes, including unknown fields,
//! stays as it was, and the patch is as small as the change.

use koord_api::quantity::Quantity;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A part of an object that has the wrong JSON type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {value} is no {want}")]
pub(crate) struct TypeMismatch {
    /// Path such as `spec.containers[0].resources.requests`.
    pub(crate) path: String,
    /// The actual value, as JSON.
    pub(crate) value: String,
    /// The expected type.
    pub(crate) want: &'static str,
}

impl TypeMismatch {
    pub(crate) fn new(path: impl Into<String>, value: &Value, want: &'static str) -> Self {
        Self {
            path: path.into(),
            value: value.to_string(),
            want,
        }
    }
}

/// Returns the object at `path` below `root`, creating missing objects on the way.
pub(crate) fn object_at<'a>(
    root: &'a mut Value,
    path: &[&str],
) -> Result<&'a mut Map<String, Value>, TypeMismatch> {
    let mut current = root;
    let mut walked = String::new();
    for name in path {
        let map = object_or_insert(current, &walked)?;
        current = map.entry(*name).or_insert(Value::Null);
        if !walked.is_empty() {
            walked.push('.');
        }
        walked.push_str(name);
    }
    object_or_insert(current, &walked)
}

/// Returns `value` as an object; null is replaced by an empty one.
fn object_or_insert<'a>(
    value: &'a mut Value,
    path: &str,
) -> Result<&'a mut Map<String, Value>, TypeMismatch> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => Ok(map),
        other => Err(TypeMismatch::new(path, other, "object")),
    }
}

/// Returns the string values of the map at `path`, such as the labels; empty if there is none.
pub(crate) fn texts(root: &Value, path: &[&str]) -> BTreeMap<String, String> {
    let mut current = Some(root);
    for name in path {
        current = current.and_then(|value| value.get(name));
    }
    current
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Returns the labels of an object.
pub(crate) fn labels(object: &Value) -> BTreeMap<String, String> {
    texts(object, &["metadata", "labels"])
}

/// Returns the annotations of an object.
pub(crate) fn annotations(object: &Value) -> BTreeMap<String, String> {
    texts(object, &["metadata", "annotations"])
}

/// Parses an amount; `path` is used in the error.
pub(crate) fn quantity(value: &Value, path: &str) -> Result<Quantity, TypeMismatch> {
    serde_json::from_value(value.clone()).map_err(|_| TypeMismatch::new(path, value, "quantity"))
}

/// Returns the containers in `list` of a pod spec (`containers` or `initContainers`) with the path of each.
pub(crate) fn containers_mut<'a>(
    pod: &'a mut Value,
    list: &'static str,
) -> impl Iterator<Item = (String, &'a mut Value)> {
    pod.get_mut("spec")
        .and_then(|spec| spec.get_mut(list))
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .enumerate()
        .map(move |(at, container)| (format!("spec.{list}[{at}]"), container))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_objects_are_created_mismatches_named() {
        let mut pod = json!({"metadata": {"labels": null}, "spec": {"containers": "many"}});
        object_at(&mut pod, &["metadata", "labels"])
            .unwrap()
            .insert("a".into(), json!("1"));
        assert_eq!(pod["metadata"], json!({"labels": {"a": "1"}}));
        let error = object_at(&mut pod, &["spec", "containers"]).unwrap_err();
        assert_eq!(error.to_string(), "spec.containers: \"many\" is no object");
    }
}
