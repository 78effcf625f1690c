//! Deprecated versions of custom resources: validation of their warnings, and the warnings to send.

use super::{list, string};
use crate::meta::version_rank;
use crate::status::FieldError;
use serde_json::Value;

fn flag(version: &Value, key: &str) -> bool {
    version.get(key).and_then(Value::as_bool) == Some(true)
}

/// Validates `deprecationWarning` of the version at `path`.
pub(super) fn check(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(text) = version.get("deprecationWarning").and_then(Value::as_str) else {
        return;
    };
    let printable = |c: char| c == ' ' || !(c.is_control() || c.is_whitespace());
    let mut wrong = |why: String| {
        errors.push(FieldError::invalid(
            format!("{path}.deprecationWarning"),
            text,
            why,
        ));
    };
    if !flag(version, "deprecated") {
        return wrong("can only be set for deprecated versions".to_owned());
    }
    if text.len() > 256 {
        wrong("must be <= 256 characters long".to_owned());
    }
    if text.is_empty() {
        wrong("must not be an empty string".to_owned());
    }
    if let Some((at, _)) = text.char_indices().find(|(_, c)| !printable(*c)) {
        wrong(format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        ));
    }
}

/// Returns the warning for requests of `version` of the definition with this `spec`: the definition's own
/// text, or which version to use instead. `None` if the version is not deprecated.
pub(super) fn warning(spec: &Value, version: &Value) -> Option<String> {
    if !flag(version, "deprecated") {
        return None;
    }
    if let Some(text) = version.get("deprecationWarning").and_then(Value::as_str) {
        return Some(text.to_owned());
    }
    let kind = spec.get("names").map_or("", |names| string(names, "kind"));
    let shown = |version: &str| format!("{}/{version} {kind}", string(spec, "group"));
    let own = string(version, "name");
    let newer = list(spec, "versions")
        .iter()
        .filter(|other| flag(other, "served") && !flag(other, "deprecated"))
        .map(|other| string(other, "name"))
        .filter(|other| version_rank(other) > version_rank(own))
        .max_by_key(|other| version_rank(other));
    let instead = newer.map_or_else(String::new, |newer| format!("; use {}", shown(newer)));
    Some(format!("{} is deprecated{instead}", shown(own)))
}
