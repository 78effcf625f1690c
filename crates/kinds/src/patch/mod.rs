//! Patches: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge and server-side apply.

mod apply;
mod compare;
mod fields;
mod json;
mod managers;
mod strategic;

use serde_json::Value;

use super::resource::Resource;
use super::status::{ApiError, FieldError};

pub use apply::{apply, declared};
pub(super) use json::measure;
pub use json::{json_patch, json_patch_value};
pub use managers::{Writer, keep_reset, record_fault, same_but_times, track};

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
    /// The patch has not the form that merging needs.
    #[error("{0}")]
    Broken(String),
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
            // Upstream does not say whose fault it is.
            Self::Broken(why) => ApiError::new(500, "", why.as_str()),
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
    if !resource.supports_strategic_merge() {
        return Err(PatchError::Unsupported(resource.qualified()));
    }
    strategic::merge(&resource.schema, original, patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
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

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i8>().prop_map(Value::from),
            "replace|delete|a|b".prop_map(Value::from),
        ];
        let key = "spec|template|containers|name|env|ports|\\$patch|\\$retainKeys|\\$setElementOrder/containers|metadata|finalizers|managedFields|fieldsV1|f:spec|selector";
        leaf.prop_recursive(6, 40, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(key, inner, 0..5)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_patch_is_applied_or_refused(old in tree(), patch in tree()) {
            let r = crate::Registry::builtin().find("apps", "v1", "deployments").unwrap();
            let _ = strategic_merge(&r, &old, &patch);
            if let Ok(merged) = merge_patch(&old, &patch) {
                prop_assert_eq!(merge_patch(&merged, &patch).unwrap(), merged);
            }
            let now = jiff::Timestamp::UNIX_EPOCH;
            let writer = |manager, part| Writer { manager, part, now };
            if let Ok(mut first) = apply(&r, Some(&old), &patch, writer("a", None), true) {
                let again = apply(&r, Some(&first), &patch, writer("a", None), true);
                prop_assert!(again.is_ok(), "applied once, refused the second time: {again:?}");
                let _ = apply(&r, Some(&first), &old, writer("b", Some("status")), false);
                track(&r, Some(&old), &mut first, writer("c", None));
            }
        }
    }
}
