//! Patches, and the retries of a read-modify-write.

use crate::decode::Decode;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde_json::Value;
use std::future::Future;
use std::time::Duration;

/// Sends a JSON merge patch for the main resource.
///
/// # Errors
///
/// The error of the API server or of the transport.
pub async fn merge<K>(api: &crate::Api<K>, name: &str, patch: &Value) -> Result<K, kube::Error>
where
    K: Decode,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
}

/// Sends a JSON merge patch for the status subresource.
///
/// # Errors
///
/// The error of the API server or of the transport.
pub async fn merge_status<K>(
    api: &crate::Api<K>,
    name: &str,
    patch: &Value,
) -> Result<K, kube::Error>
where
    K: Decode,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
}

/// Sends a strategic merge patch for the status subresource (lists merge by their key, for example
/// conditions by `type`). Custom resources do not support it.
///
/// # Errors
///
/// The error of the API server or of the transport.
pub async fn strategic_status<K>(
    api: &crate::Api<K>,
    name: &str,
    patch: &Value,
) -> Result<K, kube::Error>
where
    K: Decode,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
}

/// Merges `patch` into a node with the subresource `status`. Only the keys in the patch change, so that a
/// concurrent status update of the kubelet is never overwritten; metadata in the patch is written too.
///
/// # Errors
///
/// The error of the API server or of the transport.
pub async fn merge_node_status(
    client: &kube::Client,
    node: &str,
    patch: &Value,
) -> Result<Node, kube::Error> {
    merge_status(&crate::Api::all(client.clone()), node, patch).await
}

/// Merges `patch` into a node (metadata and spec).
///
/// # Errors
///
/// The error of the API server or of the transport.
pub async fn merge_node(
    client: &kube::Client,
    node: &str,
    patch: &Value,
) -> Result<Node, kube::Error> {
    merge(&crate::Api::all(client.clone()), node, patch).await
}

/// Returns whether `error` is a response of the API server with this HTTP status code.
#[must_use]
pub fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Returns whether the object does not exist (404).
#[must_use]
pub fn is_not_found(error: &kube::Error) -> bool {
    is_status(error, 404)
}

/// Returns whether another client changed the object first, or the object exists already (409).
#[must_use]
pub fn is_conflict(error: &kube::Error) -> bool {
    is_status(error, 409)
}

/// Runs `attempt` again after a conflict or "too many requests": at most four times in all, with a delay that
/// starts at 10 ms and grows fivefold, plus 10 % jitter.
///
/// # Errors
///
/// The error of the last attempt.
pub async fn retry_on_conflict<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, kube::Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut delay = Duration::from_millis(10);
    let mut retries_left = 3;
    loop {
        match attempt().await {
            Err(error) if retries_left > 0 && (is_conflict(&error) || is_status(&error, 429)) => {
                retries_left -= 1;
                tokio::time::sleep(delay.mul_f64(1.0 + 0.1 * fastrand::f64())).await;
                delay *= 5;
            }
            other => return other,
        }
    }
}

/// Returns the difference between two serializable values as a JSON merge patch; `None` if they are equal.
///
/// # Errors
///
/// Fails if one of them cannot be serialized.
pub fn diff<T: Serialize>(old: &T, new: &T) -> Result<Option<Value>, serde_json::Error> {
    let (old, new) = (serde_json::to_value(old)?, serde_json::to_value(new)?);
    Ok(difference(&old, &new))
}

fn difference(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let removed = old.keys().filter(|key| !new.contains_key(*key));
            let mut patch: serde_json::Map<String, Value> =
                removed.map(|key| (key.clone(), Value::Null)).collect();
            for (key, value) in new {
                let change = match old.get(key) {
                    Some(before) => difference(before, value),
                    None => Some(value.clone()),
                };
                patch.extend(change.map(|change| (key.clone(), change)));
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        (old, new) => (old != new).then(|| new.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn diff_contains_only_changes() {
        let old = json!({"a": 1, "b": {"c": 1, "d": 2}, "e": [1], "gone": true});
        let new = json!({"a": 1, "b": {"c": 1, "d": 3}, "e": [1, 2], "new": {"x": 1}});
        let patch = diff(&old, &new).unwrap().unwrap();
        assert_eq!(
            patch,
            json!({"b": {"d": 3}, "e": [1, 2], "gone": null, "new": {"x": 1}})
        );
        let mut patched = old;
        json_patch::merge(&mut patched, &patch);
        assert_eq!(patched, new);
        assert_eq!(diff(&new, &new).unwrap(), None);
    }

    fn refusal(code: u16) -> kube::Error {
        let mut status = kube::core::Status::failure("no", "Because");
        status.code = code;
        kube::Error::Api(status.boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn conflict_is_retried_and_other_errors_are_not() {
        let mut calls = 0;
        let result = retry_on_conflict(|| {
            calls += 1;
            let answer = if calls < 4 {
                Err(refusal(409))
            } else {
                Ok(calls)
            };
            async move { answer }
        });
        assert_eq!(result.await.unwrap(), 4);
        let mut calls = 0;
        let result: Result<(), _> = retry_on_conflict(|| {
            calls += 1;
            async { Err(refusal(409)) }
        })
        .await;
        assert!(is_conflict(&result.unwrap_err()));
        assert_eq!(calls, 4);
        let mut calls = 0;
        let result: Result<(), _> = retry_on_conflict(|| {
            calls += 1;
            async { Err(refusal(404)) }
        })
        .await;
        assert!(is_not_found(&result.unwrap_err()));
        assert_eq!(calls, 1);
    }
}
