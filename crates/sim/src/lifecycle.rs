//! What happens to a pod on a simulated node: a pure decision from the pod to the next step.

use crate::DURATION_ANNOTATION;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use koord_api::GoDuration;
use serde_json::{Value, json};
use std::time::Duration;

/// The next step for a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Nothing to do now.
    Nothing,
    /// Look again later.
    Wait(Duration),
    /// Write this status.
    Status(Value),
    /// Delete it for good: grace 0, if it still has this UID.
    Delete {
        /// The pod's UID.
        uid: String,
    },
}

/// Addresses a pod gets when it starts.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    /// Of its node.
    pub(crate) host: String,
    /// Its own.
    pub(crate) pod: String,
}

/// The next step for `pod`, which is bound to a simulated node.
pub(crate) fn step(pod: &Pod, now: Timestamp, addresses: impl FnOnce() -> Addresses) -> Step {
    let meta = &pod.metadata;
    if meta.deletion_timestamp.is_some() {
        // Grace 0 was already asked for; what is left waits for its finalizers.
        let forced = meta.deletion_grace_period_seconds == Some(0);
        return match &meta.uid {
            Some(uid) if !forced => Step::Delete { uid: uid.clone() },
            _ => Step::Nothing,
        };
    }
    let status = pod.status.clone().unwrap_or_default();
    match status.phase.as_deref() {
        Some("Succeeded" | "Failed") => Step::Nothing,
        Some("Running") if is_ready(&status) => {
            let Some(duration) = job_duration(pod) else {
                return Step::Nothing;
            };
            let started = status.start_time.as_ref().map_or(now, |time| time.0);
            let ran = Duration::try_from(now.duration_since(started)).unwrap_or_default();
            match duration.checked_sub(ran) {
                Some(left) if !left.is_zero() => Step::Wait(left),
                _ => Step::Status(finished(pod, &status, now)),
            }
        }
        _ if job_duration(pod).is_some_and(|duration| duration.is_zero()) => Step::Status(
            finished(pod, &started(pod, &status, &addresses(), now), now),
        ),
        _ => Step::Status(json!({ "status": started(pod, &status, &addresses(), now) })),
    }
}

fn is_ready(status: &PodStatus) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// How long a pod of a Job runs; `None` for all other pods. An unreadable duration counts as absent.
fn job_duration(pod: &Pod) -> Option<Duration> {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.kind == "Job")?;
    let given = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(DURATION_ANNOTATION))
        .and_then(|text| text.parse::<GoDuration>().ok())
        .and_then(GoDuration::to_std);
    Some(given.unwrap_or_default())
}

fn time(now: Timestamp) -> Value {
    json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// The conditions of the pod with `ours` set on top; others, such as PodScheduled, are kept.
fn conditions(status: &PodStatus, ours: &[(&str, &str, Option<&str>)], now: Timestamp) -> Value {
    let mut all: Vec<Value> = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| ours.iter().all(|(kind, ..)| condition.type_ != *kind))
        .map(|condition| json!(condition))
        .collect();
    for (kind, value, reason) in ours {
        let mut condition = json!({ "type": kind, "status": value, "lastProbeTime": null, "lastTransitionTime": time(now) });
        if let Some(reason) = reason {
            condition["reason"] = json!(reason);
        }
        all.push(condition);
    }
    Value::Array(all)
}

/// The status of the pod once all its containers run.
fn started(pod: &Pod, status: &PodStatus, addresses: &Addresses, now: Timestamp) -> PodStatus {
    let spec = pod.spec.clone().unwrap_or_default();
    let gates: Vec<String> = spec
        .readiness_gates
        .iter()
        .flatten()
        .map(|gate| gate.condition_type.clone())
        .collect();
    let mut ours = vec![
        ("PodReadyToStartContainers", "True", None),
        ("Initialized", "True", None),
        ("Ready", "True", None),
        ("ContainersReady", "True", None),
    ];
    ours.extend(gates.iter().map(|gate| (gate.as_str(), "True", None)));
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let running = json!({ "running": { "startedAt": time(now) } });
    let ended = json!({ "terminated": {
        "exitCode": 0, "reason": "Completed", "startedAt": time(now), "finishedAt": time(now),
    } });
    let of = |container: &Container, state: &Value| {
        let runs = state.get("running").is_some();
        json!({
            "name": container.name,
            "image": container.image.clone().unwrap_or_default(),
            "imageID": "",
            "containerID": container_id(uid, &container.name),
            "ready": true,
            "started": runs,
            "restartCount": 0,
            "state": state,
        })
    };
    let init: Vec<Value> = spec
        .init_containers
        .iter()
        .flatten()
        .map(|container| {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            of(container, if sidecar { &running } else { &ended })
        })
        .collect();
    let pod_ip = if spec.host_network == Some(true) {
        &addresses.host
    } else {
        &addresses.pod
    };
    let mut written = json!({
        "phase": "Running",
        "conditions": conditions(status, &ours, now),
        "containerStatuses":
            spec.containers.iter().map(|container| of(container, &running)).collect::<Vec<_>>(),
        "hostIP": addresses.host,
        "hostIPs": [{ "ip": addresses.host }],
        "podIP": pod_ip,
        "podIPs": [{ "ip": pod_ip }],
        "startTime": time(now),
    });
    if !init.is_empty() {
        written["initContainerStatuses"] = Value::Array(init);
    }
    // The text above fits the type; the fallback only guards against a change of the type.
    serde_json::from_value(written).unwrap_or_default()
}

/// The patch that ends a running pod well.
fn finished(pod: &Pod, status: &PodStatus, now: Timestamp) -> Value {
    let mut status = status.clone();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let start = status.start_time.as_ref().map_or(now, |time| time.0);
    let done = Some("PodCompleted");
    let ours = [
        ("PodReadyToStartContainers", "False", None),
        ("Initialized", "True", done),
        ("Ready", "False", done),
        ("ContainersReady", "False", done),
    ];
    let conditions = conditions(&status, &ours, now);
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        container.ready = false;
        container.started = Some(false);
        if container
            .state
            .as_ref()
            .is_some_and(|state| state.terminated.is_some())
        {
            continue;
        }
        let state = json!({ "terminated": {
            "exitCode": 0,
            "reason": "Completed",
            "startedAt": time(start),
            "finishedAt": time(now),
            "containerID": container_id(uid, &container.name),
        } });
        container.state = serde_json::from_value(state).ok();
    }
    let mut patch = json!({ "status": status });
    patch["status"]["phase"] = json!("Succeeded");
    patch["status"]["conditions"] = conditions;
    patch
}

/// An id of the shape runtimes give: 64 hexadecimal digits.
fn container_id(uid: &str, container: &str) -> String {
    let digits: String = (0..4)
        .map(|part| {
            format!(
                "{:016x}",
                crate::usage::hash(part, &format!("{uid}/{container}"))
            )
        })
        .collect();
    format!("sim://{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_700_000_000, 0);

    fn pod(extra: &Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": "p", "namespace": "d", "uid": "u" },
            "spec": {
                "containers": [{ "name": "main", "image": "i" }],
                "initContainers": [
                    { "name": "first", "image": "i" },
                    { "name": "side", "image": "i", "restartPolicy": "Always" },
                ],
            },
            "status": { "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "True" }] },
        });
        koord_api::merge::overlay(&mut pod, extra);
        serde_json::from_value(pod).unwrap()
    }

    fn next(pod: &Pod) -> Step {
        step(pod, NOW, || Addresses {
            host: "10.64.0.1".to_owned(),
            pod: "10.128.0.1".to_owned(),
        })
    }

    fn apply(pod: &Pod, step: Step) -> Pod {
        let Step::Status(patch) = step else {
            panic!("want a status, got {step:?}")
        };
        let mut value = json!(pod);
        koord_api::merge::overlay(&mut value, &patch);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_bound_pod_runs_and_is_ready_at_once() {
        let bound = pod(&json!({}));
        let running = apply(&bound, next(&bound));
        let status = running.status.clone().unwrap();
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(status.pod_ip.as_deref(), Some("10.128.0.1"));
        assert_eq!(status.host_ip.as_deref(), Some("10.64.0.1"));
        let conditions: Vec<_> = status
            .conditions
            .unwrap()
            .iter()
            .map(|c| format!("{}={}", c.type_, c.status))
            .collect();
        assert_eq!(
            conditions,
            [
                "PodScheduled=True",
                "PodReadyToStartContainers=True",
                "Initialized=True",
                "Ready=True",
                "ContainersReady=True"
            ]
        );
        let main = &status.container_statuses.unwrap()[0];
        assert!(main.ready && main.state.as_ref().unwrap().running.is_some());
        assert_eq!(
            main.container_id.as_deref().unwrap().len(),
            "sim://".len() + 64
        );
        let init = status.init_container_statuses.unwrap();
        assert!(init[0].state.as_ref().unwrap().terminated.is_some());
        assert!(init[1].state.as_ref().unwrap().running.is_some());
        assert_eq!(next(&running), Step::Nothing);
    }

    #[test]
    fn pods_on_the_host_network_share_its_address() {
        let bound = pod(&json!({ "spec": { "hostNetwork": true } }));
        let running = apply(&bound, next(&bound));
        assert_eq!(running.status.unwrap().pod_ip.as_deref(), Some("10.64.0.1"));
    }

    #[test]
    fn a_deleted_pod_is_removed_once() {
        let deletion = |grace: i64| json!({ "metadata": { "deletionTimestamp": "2023-11-14T22:13:20Z", "deletionGracePeriodSeconds": grace } });
        assert_eq!(
            next(&pod(&deletion(30))),
            Step::Delete {
                uid: "u".to_owned()
            }
        );
        assert_eq!(next(&pod(&deletion(0))), Step::Nothing);
    }

    #[test]
    fn a_jobs_pod_succeeds_at_once_or_after_its_duration() {
        let owner = json!({ "metadata": { "ownerReferences": [
            { "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "x" },
        ] } });
        let job = pod(&owner);
        let done = apply(&job, next(&job));
        let status = done.status.clone().unwrap();
        assert_eq!(status.phase.as_deref(), Some("Succeeded"));
        let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
        assert_eq!(state.terminated.unwrap().exit_code, 0);
        assert_eq!(next(&done), Step::Nothing);

        let mut timed = owner;
        timed["metadata"]["annotations"] = json!({ DURATION_ANNOTATION: "90s" });
        let timed = pod(&timed);
        let running = apply(&timed, next(&timed));
        assert_eq!(
            running.status.clone().unwrap().phase.as_deref(),
            Some("Running")
        );
        let later = |seconds: i64| {
            let now = NOW + jiff::SignedDuration::from_secs(seconds);
            step(&running, now, || unreachable!())
        };
        assert_eq!(later(30), Step::Wait(Duration::from_secs(60)));
        let done = apply(&running, later(90));
        assert_eq!(done.status.unwrap().phase.as_deref(), Some("Succeeded"));
    }
}
