//! PATCH: four kinds of patch documents.

use super::body::{self, Problems};
use super::call::Call;
use super::options::WriteOptions;
use super::write::{WriteInput, WriteResult};
use super::{Api, meta};
use koord_kinds::Resource;
use koord_kinds::patch;
use koord_kinds::status::{ApiError, FieldError};
use serde_json::Value;
use std::sync::Arc;

/// Media types of patches.
const SUPPORTED: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// A decoded patch document.
#[derive(Debug, Clone)]
pub(super) enum Patch {
    /// RFC 6902. Kept as bytes because its own decoder reports what is wrong.
    Json(bytes::Bytes),
    /// RFC 7386.
    Merge(Value),
    /// Strategic merge patch, with the merge keys of the type.
    Strategic(Value),
    /// Server-side apply.
    Apply(Value),
}

impl Patch {
    /// Decodes the body of a request. Also returns the duplicate fields in it.
    pub(super) fn parse(call: &Call) -> Result<(Self, Problems), ApiError> {
        let content_type = body::content_type(&call.headers);
        let json = |bytes| {
            body::json(bytes)
                .map_err(|e| ApiError::bad_request(format!("error decoding patch: {}", e.message)))
        };
        match content_type.as_str() {
            "application/json-patch+json" => {
                Ok((Self::Json(call.body.clone()), Problems::default()))
            }
            "application/merge-patch+json" => {
                let d = json(&call.body)?;
                Ok((Self::Merge(d.value), d.problems))
            }
            "application/strategic-merge-patch+json" => {
                let d = json(&call.body)?;
                Ok((Self::Strategic(d.value), d.problems))
            }
            "application/apply-patch+yaml" => {
                let d = body::decode("application/yaml", &call.body).map_err(|e| {
                    ApiError::bad_request(format!("error decoding YAML: {}", e.message))
                })?;
                Ok((Self::Apply(d.value), d.problems))
            }
            _ => Err(ApiError::unsupported_media_type(SUPPORTED)),
        }
    }

    /// Checks that the request's options fit this kind of patch.
    pub(super) fn check_options(&self, call: &Call) -> Result<(), ApiError> {
        let applying = matches!(self, Self::Apply(_));
        let error = if applying && call.query.get("fieldManager").is_none() {
            FieldError::required("fieldManager", "is required for apply patch")
        } else if !applying && call.query.get("force").is_some() {
            FieldError::forbidden("force", "may not be specified for non-apply patch")
        } else {
            return Ok(());
        };
        Err(super::query::invalid_option("PatchOptions", error))
    }

    /// Returns the patched object.
    pub(super) fn apply(
        &self,
        resource: &Resource,
        name: &str,
        old: &Value,
    ) -> Result<Value, ApiError> {
        let result = match self {
            Self::Json(bytes) => patch::json_patch(old, bytes),
            Self::Merge(p) => patch::merge_patch(old, p),
            Self::Strategic(p) => patch::strategic_merge(resource, old, p),
            Self::Apply(p) => patch::merge_patch(old, p),
        };
        result.map_err(|e| e.to_api(&resource.group, &resource.kind, name))
    }
}

/// Checks that a document can be applied: it must not contain managed fields.
pub(super) fn check_document(document: &Value) -> Result<(), ApiError> {
    let managers = meta::at(document, &["metadata", "managedFields"]);
    if managers.is_some_and(|m| m.as_array().is_none_or(|a| !a.is_empty())) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    Ok(())
}

impl Api {
    /// Patches an object or its `subresource`.
    pub(super) async fn patch_object(
        &self,
        resource: &Arc<Resource>,
        subresource: Option<&str>,
        call: &Call,
    ) -> Result<WriteResult, ApiError> {
        let (patch, problems) = Patch::parse(call)?;
        if matches!(patch, Patch::Strategic(_)) && !resource.supports_strategic_merge() {
            return Err(ApiError::unsupported_media_type(&[
                SUPPORTED[0],
                SUPPORTED[1],
                SUPPORTED[3],
            ]));
        }
        patch.check_options(call)?;
        let options = call.write_options("PatchOptions")?;
        let key = Self::key(resource, call.namespace(), call.name());
        if let Patch::Apply(document) = patch {
            let input = WriteInput {
                value: document,
                problems,
                applied: true,
                ..WriteInput::default()
            };
            return self
                .server_side_apply(resource, subresource, call, input, &options)
                .await;
        }
        let name = call.name();
        self.modify(resource, subresource, &key, &options, |old| {
            let value = patch.apply(resource, name, old)?;
            Ok(WriteInput {
                value,
                problems: problems.clone(),
                patched: true,
                applied: false,
            })
        })
        .await
    }

    /// Server-side apply: creates a missing object, else merges the fields of the manager.
    async fn server_side_apply(
        &self,
        resource: &Arc<Resource>,
        subresource: Option<&str>,
        call: &Call,
        mut input: WriteInput,
        options: &WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        let (namespace, name) = (call.namespace(), call.name());
        super::check::check_identity(resource, &mut input.value, false)?;
        let provided = meta::name(&input.value);
        if provided.is_empty() {
            meta::set(&mut input.value, "name", name);
        } else if provided != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({provided}) does not match the name on the URL ({name})"
            )));
        }
        check_document(&input.value)?;
        patch::check_declared(resource, &input.value)?;
        let key = Self::key(resource, namespace, name);
        let writer = patch::Writer {
            manager: options.field_manager.as_str(),
            part: subresource,
            now: self.clock().now(),
        };
        // Another client may create or delete the object between the read and the write.
        for _ in 0..8 {
            if self.store().get(&resource.table, &key).is_none() {
                if subresource.is_some() {
                    return Err(ApiError::not_found(&resource.group, &resource.plural, name));
                }
                let value = patch::apply(resource, None, &input.value, writer, options.force)?;
                let new = WriteInput {
                    value,
                    patched: false,
                    ..input.clone()
                };
                match self.create_object(resource, namespace, new, options).await {
                    Err(e) if e.code == 409 && e.reason == "AlreadyExists" => continue,
                    other => return other,
                }
            }
            let result = self
                .modify(resource, subresource, &key, options, |old| {
                    let (old, force) = (Some(old), options.force);
                    let value = patch::apply(resource, old, &input.value, writer, force)?;
                    Ok(WriteInput {
                        value,
                        patched: true,
                        ..input.clone()
                    })
                })
                .await;
            match result {
                Err(e) if e.code == 404 && subresource.is_none() => {}
                other => return other,
            }
        }
        Err(ApiError::stale(&resource.group, &resource.plural, name))
    }
}
