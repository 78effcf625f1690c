//! Reads and checks the fields that all objects have: apiVersion, kind, metadata.

use serde_json::{Map, Value};

/// Returns `v1` for the core group, `group/version` otherwise.
#[must_use]
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// Splits `apps/v1` into group and version; `v1` has the empty group.
#[must_use]
pub fn split_api_version(text: &str) -> (&str, &str) {
    text.split_once('/').unwrap_or(("", text))
}

/// Returns the string at `metadata.<key>`, empty if absent.
#[must_use]
pub fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|m| m.get(key))
        .and_then(Value::as_str)
        .unwrap_or("")
}

/// Returns `metadata.name`, empty if absent.
#[must_use]
pub fn name(object: &Value) -> &str {
    text(object, "name")
}

/// Returns `metadata.namespace`, empty if absent.
#[must_use]
pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

/// Returns `metadata`, created if absent; `None` if the object or its metadata is not a JSON object.
pub fn metadata_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let map = object.as_object_mut()?;
    let slot = map
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()));
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut()
}

/// Returns `metadata.generation`, 0 if absent.
#[must_use]
pub fn generation(object: &Value) -> i64 {
    object
        .get("metadata")
        .and_then(|m| m.get("generation"))
        .and_then(Value::as_i64)
        .unwrap_or(0)
}

/// Returns the value at a path of object keys.
#[must_use]
pub fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |v, key| v.get(key))
}

/// Returns the string at a path of object keys, empty if absent.
#[must_use]
pub fn str_at<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or("")
}

/// Returns the whole number at a path of object keys.
#[must_use]
pub fn int_at(object: &Value, path: &[&str]) -> Option<i64> {
    at(object, path)?.as_i64()
}

/// Returns true if the value at a path of object keys is `true`.
#[must_use]
pub fn is_true(object: &Value, path: &[&str]) -> bool {
    at(object, path).and_then(Value::as_bool) == Some(true)
}

/// Returns the list at a path of object keys, empty if absent.
#[must_use]
pub fn list_at<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Returns a sort key of versions: `v2` > `v1` > `v2beta1` > `v1alpha1` > anything else.
#[must_use]
pub fn version_rank(version: &str) -> (u8, u32, u32) {
    let parse = || -> Option<(u8, u32, u32)> {
        let rest = version.strip_prefix('v')?;
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (major, tail) = rest.split_at(digits);
        let major = major.parse().ok()?;
        if tail.is_empty() {
            return Some((3, major, 0));
        }
        let (stage, minor) = if let Some(m) = tail.strip_prefix("beta") {
            (2, m)
        } else {
            (1, tail.strip_prefix("alpha")?)
        };
        Some((
            stage,
            major,
            if minor.is_empty() {
                0
            } else {
                minor.parse().ok()?
            },
        ))
    };
    parse().unwrap_or((0, 0, 0))
}
