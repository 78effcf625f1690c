//! Checks of writes: identity, fields and deletion of an object; and the translation of store errors into API
//! errors.

use super::body::Problems;
use super::meta;
use super::options::{FieldValidation, WriteOptions};
use crate::store::{Key, StoreError};
use koord_kinds::Resource;
use koord_kinds::status::{ApiError, FieldError};
use serde_json::Value;
use std::collections::HashSet;

/// Returns 422 for an object.
pub(crate) fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> ApiError {
    ApiError::invalid(&resource.group, &resource.kind, name, errors)
}

/// Translates an error of the store into the API error that the client receives.
pub(crate) fn store_error(resource: &Resource, key: &Key, error: StoreError) -> ApiError {
    let (group, plural) = (&*resource.group, &*resource.plural);
    match error {
        StoreError::NotFound { .. } => ApiError::not_found(group, plural, &key.name),
        StoreError::Exists { current } => {
            if meta::deleting(&current.value()) {
                ApiError::already_exists_terminating(group, plural, &key.name)
            } else {
                ApiError::already_exists(group, plural, &key.name)
            }
        }
        StoreError::Conflict { .. } => ApiError::stale(group, plural, &key.name),
        StoreError::Expired { requested, oldest } => ApiError::too_old(requested, oldest),
        StoreError::Future { requested, current } => {
            ApiError::too_large_resource_version(requested, current)
        }
        StoreError::TooLarge { limit, .. } => ApiError::too_large(limit),
        StoreError::Closed => {
            ApiError::new(503, "ServiceUnavailable", "the server is shutting down")
        }
        other => ApiError::internal(other.to_string()),
    }
}

pub(super) fn namespace_mismatch() -> ApiError {
    ApiError::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    )
}

/// Returns true if a namespace still has finalizers in `spec.finalizers`.
pub(super) fn namespace_held(object: &Value) -> bool {
    meta::at(object, &["spec", "finalizers"])
        .and_then(Value::as_array)
        .is_some_and(|f| !f.is_empty())
}

/// Returns true if the object's deletion waits for the end of its grace period, which the kubelet reports.
pub(super) fn pending_grace(object: &Value) -> bool {
    meta::int_at(object, &["metadata", "deletionGracePeriodSeconds"]).is_some_and(|s| s > 0)
}

/// Checks `apiVersion` and `kind`; absent ones are set from the URL.
pub(crate) fn check_identity(
    resource: &Resource,
    object: &mut Value,
    patched: bool,
) -> Result<(), ApiError> {
    if !object.is_object() {
        let description = if object.is_null() {
            format!("unable to decode an empty body as {}", resource.kind)
        } else {
            format!(
                "the object provided is unrecognized (must be of type {}): it is not a JSON object",
                resource.kind
            )
        };
        return Err(ApiError::bad_request(description));
    }
    let want = resource.api_version();
    let (got, kind) = (
        meta::text(object, &["apiVersion"]),
        meta::text(object, &["kind"]),
    );
    if !kind.is_empty() && kind != &*resource.kind {
        let (_, version) =
            koord_kinds::meta::split_api_version(if got.is_empty() { &want } else { got });
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {}: converting ({got}).{kind} to \
             ({want}).{}: unknown conversion",
            resource.kind, resource.kind
        )));
    }
    if !got.is_empty() && got != want {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({got}) does not match the expected API version ({want})"
        )));
    }
    let kind: Value = (&*resource.kind).into();
    let root = meta::as_object(object);
    root.insert("apiVersion".to_owned(), want.into());
    root.insert("kind".to_owned(), kind);
    resource.check_types(object).map_err(|reason| {
        if patched {
            bad_patch(object, reason)
        } else {
            ApiError::bad_request(reason)
        }
    })
}

/// Returns 422 for the object that a patch produces.
fn bad_patch(object: &Value, reason: String) -> ApiError {
    let shown = object.to_string();
    ApiError::invalid("", "", "", &[FieldError::invalid("patch", shown, reason)])
}

/// Reports unknown and duplicate fields according to the request's field validation: not at all, as warnings,
/// or as an error.
pub(super) fn check_fields(
    resource: &Resource,
    object: &Value,
    problems: Problems,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
    patched: bool,
) -> Result<(), ApiError> {
    if options.field_validation == FieldValidation::Ignore {
        return Ok(());
    }
    // Upstream reports duplicates first for custom resources, because another decoder finds them.
    let mut problems =
        problems.with_unknown_fields(resource.unknown_fields(object), !resource.is_custom());
    if problems.is_empty() {
        return Ok(());
    }
    if options.field_validation == FieldValidation::Warn {
        warnings.append(&mut problems);
        return Ok(());
    }
    let reason = ApiError::strict_decoding(&problems).message;
    Err(if patched {
        bad_patch(object, reason)
    } else {
        ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {reason}",
            resource.kind, resource.version, resource.kind
        ))
    })
}

/// Checks name, namespace, uid and resourceVersion of an update.
pub(super) fn check_update_identity(
    resource: &Resource,
    key: &Key,
    old: &Value,
    new: &mut Value,
    subresource: Option<&str>,
) -> Result<(), ApiError> {
    let name = meta::name(new);
    if name != &*key.name {
        return Err(ApiError::bad_request(if name.is_empty() {
            "name must be provided".to_owned()
        } else {
            format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                key.name
            )
        }));
    }
    let namespace = meta::namespace(new);
    if !namespace.is_empty() && namespace != &*key.namespace {
        return Err(namespace_mismatch());
    }
    let (group, plural) = (&*resource.group, &*resource.plural);
    let (uid, have) = (meta::uid(new), meta::uid(old));
    if !uid.is_empty() && uid != have {
        return Err(ApiError::precondition(
            group, plural, &key.name, "UID", uid, have,
        ));
    }
    let (version, current) = (meta::resource_version(new), meta::resource_version(old));
    if version.is_empty() || version == "0" {
        if !resource.allows_unconditional_update() && subresource.is_none() {
            let e = FieldError::invalid(
                "metadata.resourceVersion",
                0,
                "must be specified for an update",
            );
            return Err(invalid(resource, &key.name, &[e]));
        }
    } else if version != current {
        if version.parse::<u64>().is_err() {
            return Err(invalid(
                resource,
                &key.name,
                &[FieldError::invalid(
                    "metadata.resourceVersion",
                    version,
                    "must be a number",
                )],
            ));
        }
        return Err(ApiError::stale(group, plural, &key.name));
    }
    Ok(())
}

/// Restores the metadata that no update may change.
pub(super) fn keep_identity(old: &Value, new: &mut Value) {
    const KEPT: [&str; 6] = [
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
    ];
    let metadata = meta::section(new, "metadata");
    for key in KEPT {
        match meta::at(old, &["metadata", key]) {
            Some(v) => {
                metadata.insert(key.to_owned(), v.clone());
            }
            None => {
                metadata.remove(key);
            }
        }
    }
    metadata.remove("selfLink");
}

/// Returns an error if an update adds finalizers to an object that is being deleted.
pub(super) fn new_finalizers_while_deleting(old: &Value, new: &Value) -> Vec<FieldError> {
    if !meta::deleting(old) {
        return Vec::new();
    }
    let before: HashSet<String> = meta::finalizers(old).into_iter().collect();
    let added: Vec<String> = meta::finalizers(new)
        .into_iter()
        .filter(|f| !before.contains(f))
        .collect();
    if added.is_empty() {
        return Vec::new();
    }
    vec![FieldError::forbidden(
        "metadata.finalizers",
        format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
        ),
    )]
}

/// Refuses a new object whose definition is being deleted.
pub(super) fn terminating(resource: &Resource, name: &str) -> Result<(), ApiError> {
    match &resource.custom {
        Some(version) if version.terminating => Err(ApiError::forbidden(
            &resource.group,
            &resource.plural,
            name,
            "create not allowed while custom resource definition is terminating",
        )),
        _ => Ok(()),
    }
}
