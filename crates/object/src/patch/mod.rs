//! Patches that do not depend on field managers: JSON patch (RFC 6902), merge patch (RFC 7386), strategic
//! merge patch.

mod json;
mod strategic;

use serde_json::Value;

use super::schema::Schema;
use super::status::{ApiError, FieldError};

pub use json::{json_patch, json_patch_value, measure};

/// Maximum number of operations of a JSON patch.
pub const MAX_OPERATIONS: usize = 10_000;

/// Reason why a patch could not be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch document is invalid.
    #[error("error decoding patch: {0}")]
    Malformed(String),
    /// The patch is valid but does not fit the object.
    #[error("{0}")]
    Failed(String),
    /// The patch lacks the structure that merging requires.
    #[error("{0}")]
    Broken(String),
    /// Too many operations.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooManyOperations(usize),
    /// The resource does not support this type of patch.
    #[error("strategic merge patch is not supported for {0}")]
    Unsupported(String),
}

impl PatchError {
    /// Returns the error response for a patch of `name`, an object of `kind` in `group`.
    #[must_use]
    pub fn to_api(&self, group: &str, kind: &str, name: &str) -> ApiError {
        match self {
            Self::Malformed(_) => ApiError::bad_request(self.to_string()),
            // kubectl shows the causes of such a response instead of its message.
            Self::Failed(reason) => ApiError::invalid(
                group,
                kind,
                name,
                &[FieldError::forbidden("patch", reason.as_str())],
            ),
            // Upstream returns a server error for this, too.
            Self::Broken(reason) => ApiError::new(500, "", reason.as_str()),
            Self::TooManyOperations(_) => {
                ApiError::new(413, "RequestEntityTooLarge", self.to_string())
            }
            Self::Unsupported(_) => ApiError::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
            ]),
        }
    }
}

/// Applies an RFC 7386 merge patch.
///
/// # Errors
/// The patch is not a JSON object.
pub fn merge_patch(original: &Value, patch: &Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed(
            "a merge patch must be a JSON object".to_owned(),
        ));
    }
    let mut out = original.clone();
    json_patch::merge(&mut out, patch);
    Ok(out)
}

/// Applies a strategic merge patch with the merge keys of `schema`, the schema of a built-in type.
///
/// # Errors
/// Invalid directives or list elements.
pub fn strategic_merge(
    schema: &Schema,
    original: &Value,
    patch: &Value,
) -> Result<Value, PatchError> {
    strategic::merge(schema, original, patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patch_follows_the_rfc() {
        let out = merge_patch(
            &json!({"a": {"b": 1, "c": 2}, "d": [1]}),
            &json!({"a": {"b": null}, "d": [2]}),
        );
        assert_eq!(out.unwrap(), json!({"a": {"c": 2}, "d": [2]}));
        assert!(merge_patch(&json!({}), &json!([])).is_err());
    }
}
