//! Sending of writes that plugins request.

use crate::framework::{PodPatch, Verb, Write};
use koord_kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use koord_kube::evict::{EvictOptions, EvictOutcome, evict_pod};
use koord_kube::{Api, Client, patch};
use serde_json::{Value, json};

/// The error of a write that was rejected.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct WriteError {
    /// True if the object does not exist.
    pub(super) gone: bool,
    /// True if the object has another version or uid than the write expects.
    pub(super) conflict: bool,
    pub(super) message: String,
}

impl WriteError {
    pub(super) fn new(error: &koord_kube::Error) -> Self {
        Self {
            gone: patch::is_not_found(error),
            conflict: patch::is_conflict(error),
            message: error.to_string(),
        }
    }
}

/// An empty patch, for writes without additional labels and annotations.
pub(super) static NOTHING: &PodPatch = &PodPatch {
    annotations: std::collections::BTreeMap::new(),
    labels: std::collections::BTreeMap::new(),
};

/// Returns the API of the resource that `write` concerns.
pub(super) fn api_of(client: &Client, write: &Write) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: write.group.to_owned(),
        version: write.version.to_owned(),
        api_version: if write.group.is_empty() {
            write.version.to_owned()
        } else {
            format!("{}/{}", write.group, write.version)
        },
        kind: String::new(),
        plural: write.plural.to_owned(),
    };
    if write.namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &write.namespace, &resource)
    }
}

/// Sends one write; labels and annotations of `extra` are added to a patch of the object.
pub(super) async fn send_write(
    client: &Client,
    write: &Write,
    extra: &PodPatch,
) -> Result<(), WriteError> {
    let api = api_of(client, write);
    let params = PatchParams::default();
    let failed = |error: koord_kube::Error| WriteError::new(&error);
    let merge = |body: &Value| {
        let mut body = body.clone();
        for (section, values) in [
            ("annotations", &extra.annotations),
            ("labels", &extra.labels),
        ] {
            for (key, value) in values {
                body["metadata"][section][key] = json!(value);
            }
        }
        body
    };
    match &write.verb {
        Verb::Patch(body) => {
            let body = merge(body);
            api.patch(&write.name, &params, &Patch::Merge(&body))
                .await
                .map_err(failed)?;
        }
        Verb::PatchStatus(body) => {
            let mut body = body.clone();
            if !extra.is_empty() {
                let extra = merge(&json!({"metadata": body["metadata"]}));
                let patched = api
                    .patch(&write.name, &params, &Patch::Merge(&extra))
                    .await
                    .map_err(failed)?;
                if !body["metadata"]["resourceVersion"].is_null() {
                    body["metadata"]["resourceVersion"] = json!(patched.metadata.resource_version);
                }
            }
            api.patch_status(&write.name, &params, &Patch::Merge(&body))
                .await
                .map_err(failed)?;
        }
        Verb::Create(body) => {
            let object: DynamicObject =
                serde_json::from_value(merge(body)).map_err(|error| WriteError {
                    gone: false,
                    conflict: false,
                    message: error.to_string(),
                })?;
            match api.create(&PostParams::default(), &object).await {
                Ok(_) => {}
                Err(error) if patch::is_conflict(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Verb::Delete(uid) => {
            let params = DeleteParams {
                preconditions: (!uid.is_empty()).then(|| Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match api.delete(&write.name, &params).await {
                Ok(_) => {}
                Err(error) if patch::is_not_found(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Verb::Evict(uid) => {
            let options = EvictOptions {
                uid: Some(uid.clone()),
                ..EvictOptions::default()
            };
            match evict_pod(client, &write.namespace, &write.name, &options).await {
                Ok(EvictOutcome::Evicted | EvictOutcome::Gone { .. }) => {}
                Ok(EvictOutcome::Blocked { message, .. }) => {
                    return Err(WriteError {
                        gone: false,
                        conflict: false,
                        message,
                    });
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(())
}
