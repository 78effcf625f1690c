//! Patches: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge and server-side apply.

mod apply;
mod fields;
mod strategic;

use serde_json::Value;

use super::resource::Resource;
use super::status::{ApiError, FieldError};

pub use apply::apply;

/// Upper bound for the operations of one JSON patch.
pub const MAX_OPERATIONS: usize = 10_000;

/// A patch that could not be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch document is not understood.
    #[error("error decoding patch: {0}")]
    Malformed(String),
    /// The patch is fine but does not fit the object.
    #[error("{0}")]
    Failed(String),
    /// Too many operations.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooManyOperations(usize),
    /// The resource does not take this type of patch.
    #[error("strategic merge patch is not supported for {0}")]
    Unsupported(String),
}

impl PatchError {
    /// The answer for a patch of `name`.
    #[must_use]
    pub fn to_api(&self, resource: &Resource, name: &str) -> ApiError {
        match self {
            Self::Malformed(_) => ApiError::bad_request(self.to_string()),
            // kubectl shows the causes of such an answer rather than its message.
            Self::Failed(why) => ApiError::invalid(
                &resource.group,
                &resource.kind,
                name,
                &[FieldError::forbidden("patch", why.as_str())],
            ),
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

/// Applies an RFC 6902 patch document.
///
/// # Errors
/// Undecodable documents, operations that fail.
pub fn json_patch(original: &Value, body: &[u8]) -> Result<Value, PatchError> {
    let document: Value =
        serde_json::from_slice(body).map_err(|e| PatchError::Malformed(e.to_string()))?;
    let count = document.as_array().map_or(0, Vec::len);
    if count > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations(count));
    }
    let patch: json_patch::Patch =
        serde_json::from_value(document).map_err(|e| PatchError::Malformed(e.to_string()))?;
    let mut out = original.clone();
    json_patch::patch(&mut out, &patch).map_err(|e| PatchError::Failed(e.to_string()))?;
    Ok(out)
}

/// Applies an RFC 7386 merge patch.
///
/// # Errors
/// When the patch is not a JSON object.
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

/// Applies a strategic merge patch with the merge keys of the resource's type.
///
/// # Errors
/// Custom resources, and patches whose directives or list elements are malformed.
pub fn strategic_merge(
    resource: &Resource,
    original: &Value,
    patch: &Value,
) -> Result<Value, PatchError> {
    let Some(shape) = resource.shape() else {
        return Err(PatchError::Unsupported(resource.qualified()));
    };
    strategic::merge(shape, original, patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_patch_errors_are_told_apart() {
        let doc = json!({"a": 1});
        let ok = json_patch(&doc, br#"[{"op":"replace","path":"/a","value":2}]"#).unwrap();
        assert_eq!(ok, json!({"a": 2}));
        assert!(matches!(
            json_patch(&doc, b"{"),
            Err(PatchError::Malformed(_))
        ));
        assert!(matches!(
            json_patch(&doc, b"{}"),
            Err(PatchError::Malformed(_))
        ));
        let failed = json_patch(&doc, br#"[{"op":"test","path":"/a","value":3}]"#);
        assert!(matches!(failed, Err(PatchError::Failed(_))));
        let missing = json_patch(&doc, br#"[{"op":"remove","path":"/b"}]"#);
        assert!(matches!(missing, Err(PatchError::Failed(_))));
        let many = serde_json::to_vec(&vec![json!({"op":"test","path":"/a","value":1}); 10_001]);
        assert!(matches!(
            json_patch(&doc, &many.unwrap()),
            Err(PatchError::TooManyOperations(10_001))
        ));
    }

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
