//! Patches: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge and server-side apply.

mod apply;
mod compare;
mod fields;
mod managers;

use serde_json::Value;

use super::resource::Resource;

pub use apply::{apply, check_declared};
pub use koord_object::patch::{
    MAX_OPERATIONS, PatchError, json_patch, json_patch_value, merge_patch,
};
pub use managers::{Writer, equal_except_times, managed_fields_error, preserve_reset, track};

/// Applies a strategic merge patch with the merge keys of the resource's type.
///
/// # Errors
/// [`PatchError::Unsupported`] for custom resources, and an error for patches with invalid directives or list
/// elements.
pub fn strategic_merge(
    resource: &Resource,
    original: &Value,
    patch: &Value,
) -> Result<Value, PatchError> {
    if !resource.supports_strategic_merge() {
        return Err(PatchError::Unsupported(resource.qualified()));
    }
    koord_object::patch::strategic_merge(&resource.schema, original, patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
                let requeue = apply(&r, Some(&first), &patch, writer("a", None), true);
                prop_assert!(requeue.is_ok(), "applied once, refused the second time: {requeue:?}");
                let _ = apply(&r, Some(&first), &old, writer("b", Some("status")), false);
                track(&r, Some(&old), &mut first, writer("c", None));
            }
        }
    }
}
