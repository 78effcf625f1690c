//! Placement of pods through the API: a binding, or the writes that place the object that a pod stands for.

use super::extender::Extenders;
use super::send::{NOTHING, WriteError, api_of, send_write};
use crate::engine::{BindError, BindRequest};
use crate::framework::{BindPlan, PodPatch, Verb, Write};
use crate::state::PodInfo;
use k8s_openapi::api::core::v1::Pod;
use koord_kube::api::{Patch, PatchParams, PostParams};
use koord_kube::{Api, Client, patch};
use serde_json::{Value, json};

/// Binds the pod as `request` specifies. With `together`, annotations may be sent with the binding.
///
/// # Errors
/// Returns why the pod is not bound.
pub(super) async fn send_binding(
    client: Client,
    request: &BindRequest,
    together: bool,
    extenders: &Extenders,
) -> Result<(), BindError> {
    let pod = &request.pod;
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let failed = |error: koord_kube::Error| BindError {
        gone: patch::is_not_found(&error),
        message: error.to_string(),
    };
    if let BindPlan::Writes(writes) = &request.plan {
        return send_placement(&client, pod, writes, &request.patch)
            .await
            .map_err(|error| BindError {
                gone: error.gone,
                message: error.to_string(),
            });
    }
    // The API server merges a binding's annotations into the pod, and nothing else.
    let together = together && request.patch.labels.is_empty() && request.extender.is_none();
    if !request.patch.is_empty() && !together {
        let body = json!({"metadata": {
            "uid": &*pod.uid,
            "annotations": request.patch.annotations,
            "labels": request.patch.labels,
        }});
        let patched = api
            .patch(&pod.name, &PatchParams::default(), &Patch::Merge(&body))
            .await
            .map_err(failed)?;
        if patched.metadata.deletion_timestamp.is_some() {
            let message = "pod is being deleted".to_owned();
            return Err(BindError {
                message,
                gone: false,
            });
        }
    }
    if let Some(at) = request.extender {
        let bound = extenders.bind(at, pod, &request.node).await;
        let failed = |message| BindError {
            message,
            gone: false,
        };
        if bound.map_err(failed)? {
            return extenders.has_bound(&api, at, pod).await;
        }
    }
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": &*pod.name, "namespace": &*pod.namespace, "uid": &*pod.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": &*request.node},
    });
    if together && !request.patch.is_empty() {
        body["metadata"]["annotations"] = json!(request.patch.annotations);
    }
    api.create_subresource::<Value, Value>("binding", &pod.name, &PostParams::default(), &body)
        .await
        .map(drop)
        .map_err(failed)
}

/// The maximum number of attempts to place an object that changes meanwhile.
const PLACEMENTS: u8 = 5;

/// Sends the writes that place the object that `pod` stands for, the last one with `extra`. If that write
/// names a resource version, the object must have it. On a conflict the object is read again; it is not
/// placed if it is being deleted, has finished (by its phase) or is another object of that name.
async fn send_placement(
    client: &Client,
    pod: &PodInfo,
    writes: &[Write],
    extra: &PodPatch,
) -> Result<(), WriteError> {
    let Some((last, others)) = writes.split_last() else {
        return Ok(());
    };
    for write in others {
        // If one of these objects is missing, the object to place may still exist.
        let failed = |error: WriteError| WriteError {
            gone: false,
            ..error
        };
        send_write(client, write, NOTHING).await.map_err(failed)?;
    }
    let (mut write, mut tries) = (last.clone(), 0);
    let api = api_of(client, &write);
    while let Err(error) = send_write(client, &write, extra).await {
        let (Verb::Patch(body) | Verb::PatchStatus(body)) = &mut write.verb else {
            return Err(error);
        };
        tries += 1;
        if !error.conflict || tries >= PLACEMENTS {
            return Err(error);
        }
        let failed = |error: koord_kube::Error| WriteError::new(&error);
        let object = api.get(&write.name).await.map_err(failed)?;
        let metadata = object.metadata;
        let is_other_pod = metadata.uid.as_deref() != Some(&*pod.uid);
        let phase = object.data["status"]["phase"].as_str();
        let over = matches!(phase, Some("Failed" | "Succeeded"));
        if is_other_pod || over || metadata.deletion_timestamp.is_some() {
            let state = match (is_other_pod, over) {
                (true, _) => "gone",
                (_, true) => "over",
                _ => "being deleted",
            };
            return Err(WriteError {
                gone: is_other_pod || over,
                conflict: false,
                message: format!("{} {:?} is {state}", write.plural, write.name),
            });
        }
        body["metadata"]["resourceVersion"] = json!(metadata.resource_version);
    }
    Ok(())
}
