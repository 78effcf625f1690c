//! Pod predicates and operations shared by the controllers.

use super::objects::create_object;
use super::recorder::EventSubject;
use crate::rest::{Api, DeleteOptions, Object, Propagation, meta};
use crate::store::{Entry, Key};
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Returns true if the pod has ended for good.
pub(super) fn ended(pod: &Value) -> bool {
    matches!(
        meta::text(pod, &["status", "phase"]),
        "Succeeded" | "Failed"
    )
}

/// Returns true if the pod counts as a replica: it has not finished and is not being deleted.
pub(super) fn is_active(pod: &Value) -> bool {
    !ended(pod) && !meta::deleting(pod)
}

/// Returns true if the pod's Ready condition is True.
pub(super) fn ready(pod: &Value) -> bool {
    meta::condition(pod, "Ready").is_some_and(|c| meta::text(c, &["status"]) == "True")
}

/// Returns `Ok` if the pod has been ready for `min_ready_seconds`, else the seconds until it will have been;
/// `None` if it is not ready.
pub(super) fn available(
    pod: &Value,
    min_ready_seconds: i64,
    now: jiff::Timestamp,
) -> Result<(), Option<u64>> {
    available_since(ready_since(pod), min_ready_seconds, now)
}

/// Returns since when the pod's Ready condition is True; the Unix epoch if the condition has no valid time,
/// `None` if the pod is not ready.
pub(super) fn ready_since(pod: &Value) -> Option<jiff::Timestamp> {
    let ready = meta::condition(pod, "Ready")?;
    let since = meta::text(ready, &["lastTransitionTime"]);
    (meta::text(ready, &["status"]) == "True")
        .then(|| since.parse().unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// Like [`available`], for a pod that is ready since a given time.
pub(super) fn available_since(
    ready: Option<jiff::Timestamp>,
    min_ready_seconds: i64,
    now: jiff::Timestamp,
) -> Result<(), Option<u64>> {
    let Some(since) = ready else {
        return Err(None);
    };
    if min_ready_seconds <= 0 {
        return Ok(());
    }
    let remaining = min_ready_seconds - now.duration_since(since).as_secs();
    if remaining <= 0 {
        Ok(())
    } else {
        Err(Some(remaining.unsigned_abs()))
    }
}

/// Builds an owner reference to `owner` as the controller.
pub(super) fn controller_reference(resource: &Resource, owner: &Value) -> Value {
    json!({
        "apiVersion": resource.api_version(),
        "kind": &*resource.kind,
        "name": meta::name(owner),
        "uid": meta::uid(owner),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Builds a pod from a template, owned by `owner`.
pub(super) fn from_template(template: &Value, resource: &Resource, owner: &Value) -> Value {
    let mut metadata = Map::new();
    for part in ["labels", "annotations", "finalizers"] {
        if let Some(v) = meta::at(template, &["metadata", part]).filter(|v| !v.is_null()) {
            metadata.insert(part.to_owned(), v.clone());
        }
    }
    metadata.insert(
        "generateName".to_owned(),
        format!("{}-", meta::name(owner)).into(),
    );
    metadata.insert(
        "ownerReferences".to_owned(),
        json!([controller_reference(resource, owner)]),
    );
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": template.get("spec").cloned().unwrap_or_default(),
    })
}

/// Deletes exactly this object. Succeeds if it is gone already.
pub(super) async fn delete(
    api: &Api,
    resource: &Arc<Resource>,
    entry: &Entry,
) -> Result<(), ApiError> {
    let options = DeleteOptions {
        uid: Some(entry.index.uid.to_string()),
        propagation: Some(Propagation::Background),
        ..DeleteOptions::default()
    };
    match api.delete_object(resource, &entry.key, &options).await {
        Err(e) if e.code != 404 && e.code != 409 => Err(e),
        _ => Ok(()),
    }
}

/// Creates a pod like [`create_object`] and records an event about it on its owner.
pub(super) async fn create_recorded(
    subject: &EventSubject<'_>,
    resource: &Arc<Resource>,
    pod: Value,
) -> Result<Arc<Entry>, ApiError> {
    let namespace = meta::namespace(subject.object);
    let result = match create_object(subject.api, resource, namespace, pod).await {
        Ok(Object::Stored(entry)) => Ok(entry),
        Ok(Object::Computed(_)) => Err(ApiError::internal("the pod was not stored")),
        Err(e) => Err(e),
    };
    match &result {
        Ok(pod) => {
            let message = format!("Created pod: {}", pod.key.name);
            subject.normal("SuccessfulCreate", &message).await;
        }
        Err(e) => {
            let message = format!("Error creating: {e}");
            subject.warning("FailedCreate", &message).await;
        }
    }
    result
}

/// Deletes a pod like [`delete`] and records an event about it on its owner.
pub(super) async fn delete_recorded(
    subject: &EventSubject<'_>,
    resource: &Arc<Resource>,
    entry: &Entry,
) -> Result<(), ApiError> {
    let result = delete(subject.api, resource, entry).await;
    match &result {
        Ok(()) => {
            let message = format!("Deleted pod: {}", entry.key.name);
            subject.normal("SuccessfulDelete", &message).await;
        }
        Err(e) => {
            let message = format!("Error deleting: {e}");
            subject.warning("FailedDelete", &message).await;
        }
    }
    result
}

/// Returns the objects in the namespace whose controller is `uid`.
pub(super) fn owned(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    uid: &str,
) -> Vec<(Arc<Entry>, Value)> {
    api.store()
        .owned(&resource.table, uid)
        .into_iter()
        .filter(|e| *e.key.namespace == *namespace)
        .filter_map(|e| {
            let value = e.value();
            let is_owned = meta::owners(&value)
                .iter()
                .any(|o| o.controller && o.uid == uid);
            is_owned.then_some((e, value))
        })
        .collect()
}

/// Returns the key of the entry's controller if it is of this kind.
pub(super) fn controller_key(entry: &Entry, kind: &str) -> Vec<Key> {
    // Most pods have another controller: a search in their bytes shows it without parsing.
    let says = |word: &str| std::str::from_utf8(&entry.bytes).is_ok_and(|t| t.contains(word));
    if entry.index.owners.is_empty() || !says(kind) {
        return Vec::new();
    }
    let owned = meta::OwnerInfo::from_entry(entry);
    owned
        .owners
        .into_iter()
        .find(|o| o.controller && o.kind == kind)
        .map(|o| vec![Key::new(entry.key.namespace.clone(), o.name)])
        .unwrap_or_default()
}

/// Updates the status of an object through its status subresource. Succeeds without effect if the object is
/// gone.
pub(super) async fn write_status(
    api: &Api,
    resource: &Arc<Resource>,
    key: &Key,
    uid: &str,
    mut change: impl FnMut(&mut Map<String, Value>),
) -> Result<(), ApiError> {
    let result = api
        .edit(resource, Some("status"), key, |old| {
            let mut new = old.clone();
            if meta::uid(old) == uid {
                change(meta::section(&mut new, "status"));
            }
            Ok((new != *old).then_some(new))
        })
        .await;
    match result {
        Err(e) if e.code != 404 => Err(e),
        _ => Ok(()),
    }
}

/// Returns the sort key by which surplus pods are deleted: unassigned before assigned, pending before
/// running, not ready before ready, young before old.
pub(super) fn deletion_order(pod: &Value) -> (bool, u8, bool, std::cmp::Reverse<String>) {
    let phase = match meta::text(pod, &["status", "phase"]) {
        "Pending" | "" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    (
        !meta::text(pod, &["spec", "nodeName"]).is_empty(),
        phase,
        ready(pod),
        std::cmp::Reverse(meta::text(pod, &["metadata", "creationTimestamp"]).to_owned()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn availability_waits_for_min_ready_seconds() {
        let pod = json!({"status": {"conditions": [{"type": "Ready", "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let now: jiff::Timestamp = "2026-01-01T00:00:04Z".parse().unwrap();
        assert_eq!(available(&pod, 0, now), Ok(()));
        assert_eq!(available(&pod, 4, now), Ok(()));
        assert_eq!(available(&pod, 10, now), Err(Some(6)));
        assert_eq!(available(&json!({}), 0, now), Err(None));
    }

    #[test]
    fn surplus_deletes_useless_pods_first() {
        let pod = |node: &str, phase: &str, made: &str| {
            json!({"metadata": {"creationTimestamp": made},
                "spec": {"nodeName": node}, "status": {"phase": phase}})
        };
        let old = "2026-01-01T00:00:00Z";
        let new = "2026-01-02T00:00:00Z";
        let mut pods = [
            pod("n", "Running", old),
            pod("n", "Running", new),
            pod("n", "Pending", old),
            pod("", "Pending", old),
        ];
        pods.sort_by_key(deletion_order);
        let nodes: Vec<_> = pods
            .iter()
            .map(|p| {
                (
                    meta::text(p, &["spec", "nodeName"]),
                    meta::text(p, &["metadata", "creationTimestamp"]),
                )
            })
            .collect();
        assert_eq!(nodes, [("", old), ("n", old), ("n", new), ("n", old)]);
    }
}
