//! Errors of single fields, worded as Kubernetes words them, and one message of several.

use std::fmt::Display;

/// Where the requests of any container are.
pub(super) const REQUESTS: &str = "pod.spec.containers[*].resources.requests";

/// The field must be set.
pub(super) fn required(path: &str, why: &str) -> String {
    format!("{path}: Required value: {why}")
}

/// The field must not have this value.
pub(super) fn invalid(path: &str, value: impl Display, why: &str) -> String {
    format!("{path}: Invalid value: {:?}: {why}", value.to_string())
}

/// The field must not be set like this.
pub(super) fn forbidden(path: &str, why: &str) -> String {
    format!("{path}: Forbidden: {why}")
}

/// All problems as one text, each once; none is fine.
pub(super) fn all(mut problems: Vec<String>) -> Result<(), String> {
    let mut unique = std::collections::BTreeSet::new();
    problems.retain(|problem| unique.insert(problem.clone()));
    match problems.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}
