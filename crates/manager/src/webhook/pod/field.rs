//! Messages about invalid fields in Kubernetes' wording, and their combination into one message.

use std::fmt::Display;

/// Path of the requests of any container.
pub(super) const REQUESTS: &str = "pod.spec.containers[*].resources.requests";

/// Returns the message for a missing field.
pub(super) fn required(path: &str, reason: &str) -> String {
    format!("{path}: Required value: {reason}")
}

/// Returns the message for an invalid value.
pub(super) fn invalid(path: &str, value: impl Display, reason: &str) -> String {
    format!("{path}: Invalid value: {:?}: {reason}", value.to_string())
}

/// Returns the message for a field that must not be set like this.
pub(super) fn forbidden(path: &str, reason: &str) -> String {
    format!("{path}: Forbidden: {reason}")
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
