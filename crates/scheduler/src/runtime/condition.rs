//! The `PodScheduled` condition that gives the reason why a pod is not scheduled.

use super::nearest::is_message_of;
use crate::engine::Failure;
use k8s_openapi::api::core::v1::PodCondition;
use serde_json::{Value, json};

/// Returns true if a condition may have to be written for `failure`, and false if nothing changed. With
/// `has_nomination`, a nomination was written for the pod.
pub(super) fn may_need_write(failure: &Failure, has_nomination: bool) -> bool {
    let nominated = failure.nominated.as_deref();
    let current = failure.pod.nominated.as_deref().unwrap_or_default();
    let same_node = !has_nomination && nominated.is_none_or(|node| node == current);
    !same_node || !is_shown(failure)
}

/// Returns the pod's condition, as of its scheduling cycle.
fn condition(failure: &Failure) -> Option<&PodCondition> {
    let status = failure.pod.status()?;
    let mut all = status.conditions.iter().flatten();
    all.find(|condition| condition.type_ == "PodScheduled")
}

/// Returns true if the condition shows `failure` already.
fn is_shown(failure: &Failure) -> bool {
    condition(failure).is_some_and(|condition| {
        condition.status == "False"
            && condition.observed_generation == failure.pod.object.pod.metadata.generation
            && condition.reason.as_deref() == Some(failure.reason)
            && condition
                .message
                .as_deref()
                .is_some_and(|message| is_message_of(message, &failure.message))
    })
}

/// Returns the patch that makes the pod's condition show `failure`; `None` if it does already.
/// `old_nomination` is the nomination that was written for the pod and is not valid any more.
pub(super) fn status_patch(
    failure: &Failure,
    nearest: &str,
    old_nomination: Option<&str>,
    now: jiff::Timestamp,
) -> Option<Value> {
    let generation = failure.pod.object.pod.metadata.generation;
    let nominated = failure.nominated.as_deref().or(old_nomination.map(|_| ""));
    let current = old_nomination.or(failure.pod.nominated.as_deref());
    let same_node = nominated.is_none_or(|node| node == current.unwrap_or_default());
    if same_node && is_shown(failure) {
        return None;
    }
    let since = condition(failure)
        .filter(|condition| condition.status == "False")
        .and_then(|condition| condition.last_transition_time.as_ref())
        .map_or(now, |time| time.0);
    let mut status = json!({"conditions": [{
        "type": "PodScheduled",
        "status": "False",
        "reason": failure.reason,
        "message": format!("{}{nearest}", failure.message),
        "observedGeneration": generation,
        "lastProbeTime": null,
        "lastTransitionTime": seconds(since),
    }]});
    if let Some(node) = nominated {
        status["nominatedNodeName"] = match node {
            "" => Value::Null,
            node => json!(node),
        };
    }
    Some(json!({"metadata": {"uid": &*failure.pod.uid}, "status": status}))
}

/// Formats a time in RFC 3339 with whole seconds, as API servers do.
pub(super) fn seconds(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::state::PodInfo;
    use k8s_openapi::api::core::v1::Pod;
    use koord_model::resources::ResourceTable;
    use std::sync::Arc;

    pub(in super::super) fn failure(condition: Value) -> Failure {
        let object: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": []},
            "status": {"conditions": [condition]}
        }))
        .unwrap();
        let pod = PodInfo::new(Arc::new(object), &ResourceTable::new()).unwrap();
        Failure {
            pod: Arc::new(pod),
            reason: "Unschedulable",
            message: "0/1 nodes are available: 1 Too many pods."
                .to_owned()
                .into(),
            nominated: None,
            diagnosis: None,
            refusal_events: Vec::new(),
        }
    }

    #[test]
    fn unchanged_condition_is_not_written() {
        let now = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let fresh = failure(json!({"type": "Ready", "status": "False"}));
        let patch = status_patch(&fresh, "", None, now).unwrap();
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "2026-01-02T03:04:05Z");
        assert_eq!(condition["reason"], "Unschedulable");

        let mut shown = condition.clone();
        assert_eq!(status_patch(&failure(shown.clone()), "", None, now), None);
        let elsewhere = status_patch(&failure(shown.clone()), "", Some("n"), now).unwrap();
        assert_eq!(
            elsewhere["status"].get("nominatedNodeName"),
            Some(&Value::Null),
            "its nomination is cleared"
        );
        let mut changed = failure(shown.clone());
        let pod = Arc::make_mut(&mut changed.pod);
        let object = Arc::make_mut(&mut pod.object);
        Arc::make_mut(&mut object.pod).metadata.generation = Some(2);
        let patch = status_patch(&changed, "", None, now).unwrap();
        assert_eq!(patch["status"]["conditions"][0]["observedGeneration"], 2);
        assert!(may_need_write(&changed, false));
        // Without a change, no nearest nodes are searched, unless a nomination may have to be cleared.
        assert!(!may_need_write(&failure(shown.clone()), false));
        assert!(may_need_write(&failure(shown.clone()), true));
        let mut nominated = failure(shown.clone());
        nominated.nominated = Some("n".to_owned());
        assert!(may_need_write(&nominated, false));
        shown["message"] = json!("another");
        assert!(may_need_write(&failure(shown.clone()), false));
        shown["lastTransitionTime"] = json!("2025-01-01T00:00:00Z");
        let patch = status_patch(&failure(shown), "", None, now).unwrap();
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "2025-01-01T00:00:00Z");
    }
}
