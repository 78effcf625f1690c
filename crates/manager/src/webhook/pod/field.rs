//! Messages about invalid fields in Kubernetes' wording, and their combination into one message.

use std::fmt::Display;

/// Path of the requests of any container.
pub(super) const REQUESTS: &str = "pod.spec.containers[*].resources.requests";

/// Returns the message for a missing field.
pub(super) fn required(path: &str, why: &str) -> String {
    format!("{path}: Required value: {why}")
}

/// Returns the message for an invalid value.
pub(super) fn invalid(path: &str, value: impl Display, why: &str) -> String {
    format!("{path}: Invalid value: {:?}: {why}", value.to_string())
}

/// Returns the message for a field that must not be set like this.
pub(super) fn forbidden(path: &str, why: &str) -> String {
    format!("{path}: Forbidden: {why}")
}

/// Combines problems into one message, without duplicates.
///
/// # Errors
/// There is at least one problem.
pub(super) fn all(mut problems: Vec<String>) -> Result<(), String> {
    let mut unique = std::collections::BTreeSet::new();
    problems.retain(|problem| unique.insert(problem.clone()));
    match problems.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}
