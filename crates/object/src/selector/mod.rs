//! Label selectors.

mod labels;

use super::names;

pub use labels::LabelSelector;

/// An invalid selector; the text is the message of a 400 response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

impl From<SelectorError> for super::ApiError {
    fn from(e: SelectorError) -> Self {
        Self::bad_request(e.0)
    }
}

/// Returns why no object can have the label `key` with `value`, by Kubernetes' rules for both; `None` if one
/// can.
#[must_use]
pub fn label_problem(key: &str, value: &str) -> Option<String> {
    let of_key = names::qualified_name(key).into_iter().next();
    let of_key = of_key.map(|reason| format!("{key:?}: {reason}"));
    of_key.or_else(|| Some(format!("{value:?}: {}", names::label_value(value)?)))
}
