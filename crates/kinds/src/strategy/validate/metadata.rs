//! Validation of `metadata`.

use std::collections::HashSet;

use serde_json::Value;

use super::{Errors, names};
use crate::crd;
use crate::meta::{self, str_at};
use crate::resource::Resource;
use crate::status::{FieldError, quoted};

/// Most bytes of all annotations together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

fn name_problem(resource: &Resource, name: &str) -> Option<String> {
    match (&*resource.group, &*resource.plural) {
        ("", "namespaces") => names::dns1123_label(name),
        ("", "services") => names::dns1035_label(name),
        ("rbac.authorization.k8s.io", _) => names::path_segment(name),
        ("authentication.k8s.io" | "authorization.k8s.io", _) => None,
        _ => names::dns1123_subdomain(name),
    }
}

/// Validates the metadata of any object.
pub(super) fn validate(resource: &Resource, object: &Value, errors: &mut Errors) {
    let Some(metadata) = object.get("metadata").and_then(Value::as_object) else {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
        return;
    };
    let name = meta::name(object);
    let generate = meta::text(object, "generateName");
    if !generate.is_empty() && name.is_empty() {
        // The prefix may end in a dash, which the suffix follows.
        let prefix = generate.trim_end_matches('-');
        if let Some(detail) = name_problem(resource, prefix) {
            errors.push(FieldError::invalid(
                "metadata.generateName",
                generate,
                detail,
            ));
        }
    }
    if name.is_empty() {
        if generate.is_empty() {
            errors.push(FieldError::required(
                "metadata.name",
                "name or generateName is required",
            ));
        }
    } else if let Some(detail) = name_problem(resource, name) {
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
    let namespace = meta::namespace(object);
    match (resource.namespaced, namespace.is_empty()) {
        (true, true) => errors.push(FieldError::required("metadata.namespace", "")),
        (false, false) => errors.push(FieldError::forbidden(
            "metadata.namespace",
            "not allowed on this type",
        )),
        (true, false) => {
            if let Some(detail) = names::dns1123_label(namespace) {
                errors.push(FieldError::invalid("metadata.namespace", namespace, detail));
            }
        }
        (false, true) => {}
    }
    if let Some(labels) = metadata.get("labels") {
        validate_labels(labels, "metadata.labels", errors);
    }
    if let Some(annotations) = metadata.get("annotations").and_then(Value::as_object) {
        let mut total = 0;
        for (key, v) in annotations {
            total += key.len() + v.as_str().map_or(0, str::len);
            for detail in names::qualified_name(&key.to_lowercase()) {
                errors.push(FieldError::invalid(
                    "metadata.annotations",
                    key.as_str(),
                    detail,
                ));
            }
        }
        if total > MAX_ANNOTATIONS {
            errors.push(FieldError::too_long(
                "metadata.annotations",
                MAX_ANNOTATIONS,
            ));
        }
    }
    owners(object, errors);
    finalizers(resource, object, errors);
}

/// Validates label keys and values.
pub(super) fn validate_labels(labels: &Value, path: &str, errors: &mut Errors) {
    for (key, v) in labels.as_object().into_iter().flatten() {
        for detail in names::qualified_name(key) {
            errors.push(FieldError::invalid(path, key.as_str(), detail));
        }
        let text = v.as_str().unwrap_or_default();
        if let Some(detail) = names::label_value(text) {
            errors.push(FieldError::invalid(path, text, detail));
        }
    }
}

/// Validates the owner references.
fn owners(object: &Value, errors: &mut Errors) {
    let list = meta::at(object, &["metadata", "ownerReferences"]).and_then(Value::as_array);
    let mut controller: Option<&str> = None;
    for (i, owner) in list.into_iter().flatten().enumerate() {
        let path = format!("metadata.ownerReferences[{i}]");
        for key in ["apiVersion", "kind", "name", "uid"] {
            if str_at(owner, &[key]).is_empty() {
                let description = if key == "apiVersion" {
                    "version must not be empty"
                } else {
                    "must not be empty"
                };
                errors.push(FieldError::invalid(
                    format!("{path}.{key}"),
                    "",
                    description,
                ));
            }
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let name = str_at(owner, &["kind"]);
            if let Some(first) = controller {
                errors.push(FieldError::invalid(
                    "metadata.ownerReferences",
                    list.map_or(Value::Null, |l| Value::from(l.clone())),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    ),
                ));
            }
            controller = Some(name);
        }
    }
}

/// Validates the finalizers.
fn finalizers(resource: &Resource, object: &Value, errors: &mut Errors) {
    // The API server of definitions and custom resources is older here and accepts unqualified names.
    let strict = !resource.is_custom() && !crd::is_definition(resource);
    let list = meta::at(object, &["metadata", "finalizers"]).and_then(Value::as_array);
    let mut propagation = Vec::new();
    for (i, f) in list.into_iter().flatten().enumerate() {
        let text = f.as_str().unwrap_or_default();
        let path = format!("metadata.finalizers[{i}]");
        let problems = names::qualified_name(text);
        if !problems.is_empty() {
            errors.extend(
                problems
                    .into_iter()
                    .map(|w| FieldError::invalid(&path, text, w)),
            );
        } else if strict
            && !text.contains('/')
            && !matches!(text, "orphan" | "foregroundDeletion" | "kubernetes")
        {
            errors.push(FieldError::invalid(
                path,
                text,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
        if matches!(text, "orphan" | "foregroundDeletion") {
            propagation.push(text);
        }
    }
    if propagation.len() > 1 {
        errors.push(FieldError::invalid(
            "metadata.finalizers",
            list.map_or(Value::Null, |l| Value::from(l.clone())),
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
}

/// Validates that an update leaves immutable metadata unchanged.
pub(super) fn validate_update(resource: &Resource, new: &Value, old: &Value, errors: &mut Errors) {
    for key in ["name", "namespace", "uid", "creationTimestamp"] {
        let (before, after) = (meta::text(old, key), meta::text(new, key));
        if before != after {
            errors.push(FieldError::invalid(
                format!("metadata.{key}"),
                after,
                "field is immutable",
            ));
        }
    }
    if !resource.allows_unconditional_update() && meta::text(new, "resourceVersion").is_empty() {
        errors.push(FieldError::invalid(
            "metadata.resourceVersion",
            "",
            "must be specified for an update",
        ));
    }
    if !meta::text(old, "deletionTimestamp").is_empty() {
        let finalizers = |o| {
            let list = meta::at(o, &["metadata", "finalizers"]).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_str)
        };
        let before: HashSet<&str> = finalizers(old).collect();
        let added: Vec<String> = finalizers(new)
            .filter(|f| !before.contains(f))
            .map(quoted)
            .collect();
        if !added.is_empty() {
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                ),
            ));
        }
    }
}
