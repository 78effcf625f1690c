//! Lifecycle of a pod on a simulated node: a pure decision from the pod to the next step.

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
    /// Decide again after this time.
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
    /// Address of its node.
    pub(crate) host: String,
    /// Address of the pod.
    pub(crate) pod: String,
}

/// Returns the next step for `pod`, which is bound to a simulated node.
pub(crate) fn step(pod: &Pod, now: Timestamp, addresses: impl FnOnce() -> Addresses) -> Step {
    let meta = &pod.metadata;
    if meta.deletion_timestamp.is_some() {
        // Grace period 0 was already requested; a remaining pod waits for its finalizers.
        let forced = meta.deletion_grace_period_seconds == Some(0);
        return match &meta.uid {
            Some(uid) if !forced => Step::Delete { uid: uid.clone() },
            _ => Step::Nothing,
        };
    }
    let status = pod.status.clone().unwrap_or_default();
    let end = end(pod);
    match status.phase.as_deref() {
        Some("Succeeded" | "Failed") => Step::Nothing,
        Some("Running") if holds(&status, "Ready") == gates_hold(pod, &status) => {
            let Some(end) = end else {
                return observe_generation(pod, &status);
            };
            let started = status.start_time.as_ref().map_or(now, |time| time.0);
            let ran = Duration::try_from(now.duration_since(started)).unwrap_or_default();
            match end.after.checked_sub(ran) {
                Some(left) if !left.is_zero() => Step::Wait(left),
                _ => Step::Status(finished(pod, &status, end.code, now)),
            }
        }
        _ => match end.filter(|end| end.after.is_zero()) {
            Some(end) => {
                let status = started_status(pod, &status, &addresses(), now);
                Step::Status(finished(pod, &status, end.code, now))
            }
            None => {
                Step::Status(json!({ "status": started_status(pod, &status, &addresses(), now) }))
            }
        },
    }
}

/// Returns whether the condition exists and is true.
fn holds(status: &PodStatus, kind: &str) -> bool {
    let conditions = status.conditions.iter().flatten();
    conditions
        .filter(|condition| condition.type_ == kind)
        .any(|condition| condition.status == "True")
}

/// Returns whether all readiness gates of the pod are true.
fn gates_hold(pod: &Pod, status: &PodStatus) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| &spec.readiness_gates);
    gates
        .flatten()
        .all(|gate| holds(status, &gate.condition_type))
}

/// Returns the step that sets the observed generation to the pod's, if it differs.
fn observe_generation(pod: &Pod, status: &PodStatus) -> Step {
    let generation = pod.metadata.generation;
    if generation.is_none() || status.observed_generation == generation {
        return Step::Nothing;
    }
    let mut conditions = status.conditions.clone().unwrap_or_default();
    let own = conditions
        .iter_mut()
        .filter(|c| KUBELET_CONDITIONS.contains(&&*c.type_));
    own.for_each(|condition| condition.observed_generation = generation);
    Step::Status(json!({ "status": {
        "observedGeneration": generation, "conditions": conditions,
    } }))
}

/// Conditions that carry the generation that the kubelet observed.
const KUBELET_CONDITIONS: [&str; 5] = [
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
];

/// The end of a pod whose containers end by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    /// Time from the start of the pod.
    after: Duration,
    /// Exit code of the pod's first container that fails, or 0.
    code: i32,
}

/// Returns the end of the pod; `None` if it runs until it is deleted. For a pod of a Job the annotation sets
/// its run time (an invalid value counts as absent). Otherwise the end is derived from the commands, as far
/// as they are plain. A pod of a Job without either ends at once.
fn end(pod: &Pod) -> Option<End> {
    let job = pod.metadata.owner_references.iter().flatten();
    let job = job.into_iter().any(|owner| owner.kind == "Job");
    let annotations = pod.metadata.annotations.as_ref();
    let duration = annotations
        .filter(|_| job)
        .and_then(|annotations| annotations.get(DURATION_ANNOTATION))
        .and_then(|text| text.parse::<GoDuration>().ok())
        .and_then(GoDuration::to_std);
    if let Some(after) = duration {
        return Some(End { after, code: 0 });
    }
    let spec = pod.spec.as_ref()?;
    let policy = spec.restart_policy.as_deref();
    if !job && !matches!(policy, Some("Never" | "OnFailure")) {
        return None;
    }
    let mut all = End {
        after: Duration::ZERO,
        code: 0,
    };
    for container in &spec.containers {
        let end = match exit_plan(container) {
            ExitPlan::Forever => return None,
            ExitPlan::Ends(end) => end,
            ExitPlan::Nothing if job => continue,
            ExitPlan::Nothing => return None,
        };
        all.after = all.after.max(end.after);
        if all.code == 0 {
            all.code = end.code;
        }
    }
    // A failing pod would be restarted again and again.
    (all.code == 0 || policy != Some("OnFailure")).then_some(all)
}

/// The end that a container's command implies.
#[derive(Debug, PartialEq, Eq)]
enum ExitPlan {
    Nothing,
    Forever,
    Ends(End),
}

/// Returns the end that a container's command implies. Recognized are `sleep N`, `true`, `false` and `exit N`,
/// also as a shell script; the image `pause` never ends.
fn exit_plan(container: &Container) -> ExitPlan {
    let arguments = container.command.iter().chain(&container.args).flatten();
    let mut words: Vec<&str> = arguments.map(String::as_str).collect();
    let image = container.image.as_deref().unwrap_or_default();
    let image = image.rsplit('/').next().unwrap_or_default();
    if words.is_empty() && image.split([':', '@']).next() == Some("pause") {
        return ExitPlan::Forever;
    }
    if let [shell, "-c", script] = words[..]
        && matches!(shell.rsplit('/').next(), Some("sh" | "bash"))
    {
        words = script.split_whitespace().collect();
    }
    if let Some(program) = words.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default();
    }
    let ends = |seconds, code| {
        let after = Duration::from_secs(seconds);
        ExitPlan::Ends(End { after, code })
    };
    match words[..] {
        ["true"] => ends(0, 0),
        ["false"] => ends(0, 1),
        ["exit", code] => code.parse().map_or(ExitPlan::Nothing, |code| ends(0, code)),
        ["sleep", "inf" | "infinity"] => ExitPlan::Forever,
        ["sleep", time] => {
            let (number, unit) = match time.strip_suffix(['s', 'm', 'h', 'd']) {
                Some(number) => (number, &time[number.len()..]),
                None => (time, "s"),
            };
            let unit = match unit {
                "m" => 60,
                "h" => 3600,
                "d" => 86400,
                _ => 1,
            };
            let seconds = number.parse().ok().and_then(|n: u64| n.checked_mul(unit));
            seconds.map_or(ExitPlan::Nothing, |seconds| ends(seconds, 0))
        }
        _ => ExitPlan::Nothing,
    }
}

fn time(now: Timestamp) -> Value {
    json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Returns the conditions of the pod with `own` set on top; others, such as PodScheduled, are kept.
fn conditions(
    pod: &Pod,
    status: &PodStatus,
    own: &[(&str, &str, Option<&str>)],
    now: Timestamp,
) -> Value {
    let generation = pod.metadata.generation;
    let mut all: Vec<Value> = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| own.iter().all(|(kind, ..)| condition.type_ != *kind))
        .map(|condition| {
            let mut condition = condition.clone();
            if KUBELET_CONDITIONS.contains(&&*condition.type_) {
                condition.observed_generation = generation;
            }
            json!(condition)
        })
        .collect();
    for (kind, value, reason) in own {
        let mut condition = json!({ "type": kind, "status": value, "lastProbeTime": null, "lastTransitionTime": time(now) });
        if let Some(reason) = reason {
            condition["reason"] = json!(reason);
        }
        if let Some(generation) = generation {
            condition["observedGeneration"] = json!(generation);
        }
        all.push(condition);
    }
    Value::Array(all)
}

/// Returns the status of the pod once all its containers run.
fn started_status(
    pod: &Pod,
    status: &PodStatus,
    addresses: &Addresses,
    now: Timestamp,
) -> PodStatus {
    let spec = pod.spec.clone().unwrap_or_default();
    let ready = if gates_hold(pod, status) {
        ("Ready", "True", None)
    } else {
        ("Ready", "False", Some("ReadinessGatesNotReady"))
    };
    let own = [
        ("PodReadyToStartContainers", "True", None),
        ("Initialized", "True", None),
        ready,
        ("ContainersReady", "True", None),
    ];
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let running = json!({ "running": { "startedAt": time(now) } });
    let ended = json!({ "terminated": {
        "exitCode": 0, "reason": "Completed", "startedAt": time(now), "finishedAt": time(now),
    } });
    let container_status = |container: &Container, state: &Value| {
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
            container_status(container, if sidecar { &running } else { &ended })
        })
        .collect();
    let pod_ip = if spec.host_network == Some(true) {
        &addresses.host
    } else {
        &addresses.pod
    };
    let mut written = json!({
        "phase": "Running",
        "observedGeneration": pod.metadata.generation,
        "conditions": conditions(pod, status, &own, now),
        "containerStatuses":
            spec.containers.iter().map(|container| container_status(container, &running)).collect::<Vec<_>>(),
        "hostIP": addresses.host,
        "hostIPs": [{ "ip": addresses.host }],
        "podIP": pod_ip,
        "podIPs": [{ "ip": pod_ip }],
        "startTime": status.start_time.as_ref().map_or_else(|| time(now), |at| json!(at)),
    });
    if !init.is_empty() {
        written["initContainerStatuses"] = Value::Array(init);
    }
    // The text above fits the type; the fallback only guards against a change of the type.
    serde_json::from_value(written).unwrap_or_default()
}

/// Returns the patch that ends a running pod with this exit code.
fn finished(pod: &Pod, status: &PodStatus, code: i32, now: Timestamp) -> Value {
    let mut status = status.clone();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let start = status.start_time.as_ref().map_or(now, |time| time.0);
    let (phase, ready_reason, reason) = match code {
        0 => ("Succeeded", Some("PodCompleted"), "Completed"),
        _ => ("Failed", Some("PodFailed"), "Error"),
    };
    let own = [
        ("PodReadyToStartContainers", "False", None),
        ("Initialized", "True", ready_reason),
        ("Ready", "False", ready_reason),
        ("ContainersReady", "False", ready_reason),
    ];
    let conditions = conditions(pod, &status, &own, now);
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
            "exitCode": code,
            "reason": reason,
            "startedAt": time(start),
            "finishedAt": time(now),
            "containerID": container_id(uid, &container.name),
        } });
        container.state = serde_json::from_value(state).ok();
    }
    let mut patch = json!({ "status": status });
    patch["status"]["phase"] = json!(phase);
    patch["status"]["conditions"] = conditions;
    patch
}

/// Returns an id in the format of container runtimes: 64 hexadecimal digits.
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
    fn exit_plan_is_parsed_from_command() {
        let ends = |seconds, code| {
            let after = Duration::from_secs(seconds);
            ExitPlan::Ends(End { after, code })
        };
        for (image, words, plan) in [
            ("busybox", &["sleep", "300"][..], ends(300, 0)),
            ("busybox", &["/bin/sleep", "2m"], ends(120, 0)),
            ("busybox", &["sleep", "inf"], ExitPlan::Forever),
            (
                "busybox",
                &["sleep", "99999999999999999999d"],
                ExitPlan::Nothing,
            ),
            ("busybox", &["sleep", "ä"], ExitPlan::Nothing),
            ("busybox", &["/bin/true"], ends(0, 0)),
            ("busybox", &["false"], ends(0, 1)),
            ("busybox", &["/bin/sh", "-c", "exit 3"], ends(0, 3)),
            ("busybox", &["sh", "-c", "sleep 5"], ends(5, 0)),
            (
                "busybox",
                &["sh", "-c", "sleep 5; exit 1"],
                ExitPlan::Nothing,
            ),
            ("registry.k8s.io/pause:3.10", &[], ExitPlan::Forever),
            ("pause@sha256:0", &[], ExitPlan::Forever),
            ("busybox", &[], ExitPlan::Nothing),
        ] {
            let container = Container {
                image: Some(image.to_owned()),
                command: Some(words.iter().map(|&argument| argument.to_owned()).collect()),
                ..Container::default()
            };
            assert_eq!(exit_plan(&container), plan, "{image} {words:?}");
        }
    }

    #[test]
    fn pod_without_restart_ends_like_its_command() {
        let with = |policy: &str, words: &[&str]| {
            pod(&json!({ "spec": { "restartPolicy": policy,
                "containers": [{ "name": "main", "image": "i", "command": words }] } }))
        };
        let failed = with("Never", &["false"]);
        let failed = apply(&failed, next(&failed)).status.unwrap();
        assert_eq!(failed.phase.as_deref(), Some("Failed"));
        let state = failed.container_statuses.unwrap()[0].state.clone().unwrap();
        let terminated = state.terminated.unwrap();
        assert_eq!(terminated.exit_code, 1);
        assert_eq!(terminated.reason.as_deref(), Some("Error"));

        let timed = with("OnFailure", &["sleep", "10"]);
        let running = apply(&timed, next(&timed));
        assert_eq!(next(&running), Step::Wait(Duration::from_secs(10)));
        for forever in [
            with("Always", &["true"]),
            with("OnFailure", &["false"]),
            with("Never", &["serve"]),
        ] {
            let running = apply(&forever, next(&forever));
            assert_eq!(next(&running), Step::Nothing, "{:?}", forever.spec);
        }
    }

    #[test]
    fn readiness_waits_for_the_gates_that_others_open() {
        let gated =
            pod(&json!({ "spec": { "readinessGates": [{ "conditionType": "example.com/up" }] } }));
        let mut running = apply(&gated, next(&gated));
        let status = running.status.clone().unwrap();
        assert!(holds(&status, "ContainersReady") && !holds(&status, "Ready"));
        assert!(!holds(&status, "example.com/up"), "not ours to set");
        assert_eq!(next(&running), Step::Nothing);
        let open = serde_json::from_value(json!({ "type": "example.com/up", "status": "True" }));
        let conditions = running.status.as_mut().unwrap().conditions.as_mut();
        conditions.unwrap().push(open.unwrap());
        let ready = apply(&running, next(&running));
        assert!(holds(ready.status.as_ref().unwrap(), "Ready"));
        assert_eq!(next(&ready), Step::Nothing);
    }

    #[test]
    fn observed_generation_follows_the_pod() {
        let first = pod(&json!({ "metadata": { "generation": 1 } }));
        let mut running = apply(&first, next(&first));
        let generations = |pod: &Pod| {
            let status = pod.status.clone().unwrap();
            let of = status.conditions.unwrap().into_iter();
            let mut all: Vec<_> = of.map(|c| c.observed_generation).collect();
            all.push(status.observed_generation);
            all
        };
        assert_eq!(generations(&running), [Some(1); 6]);
        assert_eq!(next(&running), Step::Nothing);
        running.metadata.generation = Some(2);
        let updated = apply(&running, next(&running));
        assert_eq!(generations(&updated), [Some(2); 6]);
        assert_eq!(next(&updated), Step::Nothing);
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
        let finished = apply(&job, next(&job));
        let status = finished.status.clone().unwrap();
        assert_eq!(status.phase.as_deref(), Some("Succeeded"));
        let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
        assert_eq!(state.terminated.unwrap().exit_code, 0);
        assert_eq!(next(&finished), Step::Nothing);

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
        let finished = apply(&running, later(90));
        assert_eq!(finished.status.unwrap().phase.as_deref(), Some("Succeeded"));
    }
}
