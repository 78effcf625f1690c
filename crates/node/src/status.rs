//! Computes the `status` of a pod from the records of its containers.

use crate::lifecycle::{Ended, PodOutcome, Record, State};
use crate::pod::qos_of;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Inputs of the status in addition to the pod.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The containers, init containers first.
    pub records: &'a [Record],
    /// PodOutcome of the pod once it is over.
    pub outcome: Option<PodOutcome>,
    /// Reason and message of the status of a pod that this node rejected or gave up.
    pub refused: Option<(&'a str, &'a str)>,
    /// Address of the node.
    pub ip: &'a str,
    /// Address of the pod.
    pub pod_ip: &'a str,
    /// Scheme of container ids: the part before `://`.
    pub scheme: &'a str,
    /// Time at which the node first saw the pod.
    pub start_time: Timestamp,
    /// Current time.
    pub now: Timestamp,
}

/// Returns the current status of `pod`. Conditions keep their transition time while their value is unchanged.
/// Conditions of other components are left out; the patch merges by type.
#[must_use]
pub fn pod_status(pod: &Pod, facts: &Facts<'_>) -> PodStatus {
    let statuses = |init: bool| -> Vec<ContainerStatus> {
        facts
            .records
            .iter()
            .filter(|record| record.init == init)
            .map(|record| container_status(pod, record, facts.scheme))
            .collect()
    };
    let (init, main) = (statuses(true), statuses(false));
    let phase = phase(facts);
    let old = pod.status.as_ref();
    PodStatus {
        phase: Some(phase.to_owned()),
        reason: facts.refused.map(|(reason, _)| reason.to_owned()),
        message: facts.refused.map(|(_, message)| message.to_owned()),
        conditions: Some(conditions(pod, facts, phase)),
        host_ip: Some(facts.ip.to_owned()),
        host_ips: Some(vec![HostIP {
            ip: facts.ip.to_owned(),
        }]),
        pod_ip: Some(facts.pod_ip.to_owned()),
        pod_ips: Some(vec![PodIP {
            ip: facts.pod_ip.to_owned(),
        }]),
        start_time: old
            .and_then(|status| status.start_time.clone())
            .or(Some(Time(facts.start_time))),
        qos_class: Some(qos_of(pod).as_str().to_owned()),
        init_container_statuses: Some(init).filter(|statuses| !statuses.is_empty()),
        container_statuses: Some(main),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

fn phase(facts: &Facts<'_>) -> &'static str {
    if facts.refused.is_some() {
        return "Failed";
    }
    match facts.outcome {
        Some(PodOutcome::Succeeded) => return "Succeeded",
        Some(PodOutcome::Failed) => return "Failed",
        None => {}
    }
    // Running once every main container was started at least once.
    let started =
        |record: &Record| record.last.is_some() || !matches!(record.state, State::Waiting { .. });
    let main: Vec<&Record> = facts.records.iter().filter(|record| !record.init).collect();
    if main.iter().any(|record| started(record)) && main.iter().all(|record| started(record)) {
        "Running"
    } else {
        "Pending"
    }
}

/// Returns the conditions of a pod; unchanged ones keep their transition times.
fn conditions(pod: &Pod, facts: &Facts<'_>, phase: &str) -> Vec<PodCondition> {
    let records = |init: bool| {
        facts
            .records
            .iter()
            .filter(move |record| record.init == init)
    };
    let over = facts.outcome.is_some() || facts.refused.is_some();
    let is_done = |record: &&Record| record.succeeded() || (record.sidecar && record.has_started());
    let initialized = phase == "Succeeded" || records(true).all(|record| is_done(&record));
    let unready: Vec<&str> = records(false)
        .filter(|record| !record.is_ready())
        .map(|record| record.name.as_str())
        .collect();
    let ready = unready.is_empty() && initialized && !over;
    let uninitialized: Vec<&str> = records(true)
        .filter(|record| !is_done(record))
        .map(|record| record.name.as_str())
        .collect();
    let not_ready = || match phase {
        "Succeeded" => ("PodCompleted", String::new()),
        "Failed" => ("PodFailed", String::new()),
        _ => (
            "ContainersNotReady",
            format!("containers with unready status: [{}]", unready.join(" ")),
        ),
    };
    let started = records(false).chain(records(true)).any(Record::is_running) || over;
    let rows = [
        ("PodReadyToStartContainers", started && !over, None),
        (
            "Initialized",
            initialized,
            (!initialized).then(|| {
                let message = format!(
                    "containers with incomplete status: [{}]",
                    uninitialized.join(" ")
                );
                ("ContainersNotInitialized", message)
            }),
        ),
        ("Ready", ready, (!ready).then(not_ready)),
        ("ContainersReady", ready, (!ready).then(not_ready)),
    ];
    let old = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    rows.into_iter()
        .map(|(kind, value, why)| {
            let value = if value { "True" } else { "False" };
            let since = old
                .into_iter()
                .flatten()
                .find(|existing| existing.type_ == kind && existing.status == value)
                .and_then(|existing| existing.last_transition_time.clone());
            PodCondition {
                type_: kind.to_owned(),
                status: value.to_owned(),
                reason: why.as_ref().map(|(reason, _)| (*reason).to_owned()),
                message: why
                    .map(|(_, message)| message)
                    .filter(|message| !message.is_empty()),
                last_transition_time: since.or(Some(Time(facts.now))),
                observed_generation: pod.metadata.generation,
                ..PodCondition::default()
            }
        })
        .collect()
}

fn container_of<'p>(pod: &'p Pod, record: &Record) -> Option<&'p Container> {
    let spec = pod.spec.as_ref()?;
    let list: &[Container] = if record.init {
        spec.init_containers.as_deref().unwrap_or_default()
    } else {
        &spec.containers
    };
    list.iter().find(|container| container.name == record.name)
}

/// Returns the status of one container.
fn container_status(pod: &Pod, record: &Record, scheme: &str) -> ContainerStatus {
    let container = container_of(pod, record);
    let image = container
        .and_then(|container| container.image.clone())
        .unwrap_or_default();
    let id = match &record.state {
        State::Running { id, .. } => Some(id.as_str()),
        State::Terminated(ended) => Some(ended.id.as_str()),
        State::Waiting { .. } => record.last.as_ref().map(|ended| ended.id.as_str()),
    };
    // A plain init container is "ready" once it has done its work.
    let ready = if record.init && !record.sidecar {
        record.succeeded()
    } else {
        record.is_ready()
    };
    ContainerStatus {
        name: record.name.clone(),
        image_id: record.image_id.clone().unwrap_or_else(|| image.clone()),
        image,
        container_id: id
            .filter(|id| !id.is_empty())
            .map(|id| format!("{scheme}://{id}")),
        ready,
        started: Some(record.has_started()),
        restart_count: i32::try_from(record.restarts).unwrap_or(i32::MAX),
        state: Some(container_state(&record.state, scheme)),
        last_state: record.last.as_ref().map(|ended| ContainerState {
            terminated: Some(terminated(ended, scheme)),
            ..Default::default()
        }),
        resources: container.and_then(|container| container.resources.clone()),
        ..ContainerStatus::default()
    }
}

fn container_state(state: &State, scheme: &str) -> ContainerState {
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    match state {
        State::Waiting { reason, message } => ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: text(reason),
                message: text(message),
            }),
            ..ContainerState::default()
        },
        State::Running { started_at, .. } => ContainerState {
            running: Some(ContainerStateRunning {
                started_at: Some(Time(*started_at)),
            }),
            ..ContainerState::default()
        },
        State::Terminated(ended) => ContainerState {
            terminated: Some(terminated(ended, scheme)),
            ..ContainerState::default()
        },
    }
}

/// Converts the end of a container's run to the API's form; `scheme` is that of the container id.
fn terminated(ended: &Ended, scheme: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: ended.exit_code,
        signal: ended.signal,
        reason: Some(ended.reason.clone()),
        message: Some(ended.message.clone()).filter(|message| !message.is_empty()),
        started_at: Some(Time(ended.started_at)),
        finished_at: Some(Time(ended.finished_at)),
        container_id: Some(format!("{scheme}://{}", ended.id)),
    }
}

/// Restores a container's record from its status in the API, after a restart of this node. A container that
/// was running is recorded as ended, because it was killed with the node.
pub fn resume(record: &mut Record, status: &ContainerStatus, now: Timestamp) {
    record.restarts = u32::try_from(status.restart_count).unwrap_or(0);
    let id = |id: &Option<String>| {
        id.as_deref()
            .and_then(|id| id.split_once("://"))
            .map_or("", |(_, id)| id)
            .to_owned()
    };
    let of = |state: &ContainerStateTerminated| Ended {
        exit_code: state.exit_code,
        signal: state.signal,
        reason: state.reason.clone().unwrap_or_default(),
        message: state.message.clone().unwrap_or_default(),
        started_at: state.started_at.as_ref().map_or(now, |time| time.0),
        finished_at: state.finished_at.as_ref().map_or(now, |time| time.0),
        id: id(&state.container_id),
    };
    let last = status
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    record.last = last.map(of);
    match status.state.as_ref() {
        Some(ContainerState {
            running: Some(running),
            ..
        }) => {
            record.state = State::Terminated(Ended {
                exit_code: 137,
                signal: Some(9),
                reason: "Error".to_owned(),
                message: "the node agent was restarted; its containers end with it".to_owned(),
                started_at: running.started_at.as_ref().map_or(now, |time| time.0),
                finished_at: now,
                id: id(&status.container_id),
            });
        }
        Some(ContainerState {
            terminated: Some(state),
            ..
        }) => {
            record.state = State::Terminated(of(state));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {
                "containers": [{"name": "a", "image": "img"}, {"name": "b"}],
                "initContainers": [{"name": "i"}]
            },
            "status": status
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ended(exit_code: i32) -> Ended {
        Ended {
            exit_code,
            signal: None,
            reason: if exit_code == 0 { "Completed" } else { "Error" }.into(),
            message: String::new(),
            started_at: at(1),
            finished_at: at(2),
            id: "f00".into(),
        }
    }

    fn records(a: State, b: State, i: State) -> [Record; 3] {
        let make = |name, init, state| Record {
            state,
            ..Record::new(name, init, false)
        };
        [make("i", true, i), make("a", false, a), make("b", false, b)]
    }

    fn status(pod: &Pod, records: &[Record], outcome: Option<PodOutcome>) -> PodStatus {
        let facts = Facts {
            scheme: "koord",
            pod_ip: "10.0.0.1",
            records,
            outcome,
            refused: None,
            ip: "10.0.0.1",
            start_time: at(0),
            now: at(100),
        };
        pod_status(pod, &facts)
    }

    fn condition<'s>(status: &'s PodStatus, kind: &str) -> &'s PodCondition {
        status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == kind)
            .unwrap()
    }

    #[test]
    fn phases_and_conditions() {
        let waiting = || State::Waiting {
            reason: "PodInitializing".into(),
            message: String::new(),
        };
        let running = || State::Running {
            started_at: at(1),
            id: "abc".into(),
        };
        let terminated_with = |code| State::Terminated(ended(code));
        let cases = [
            (
                waiting(),
                waiting(),
                running(),
                None,
                "Pending",
                "False",
                "False",
            ),
            (
                running(),
                waiting(),
                terminated_with(0),
                None,
                "Pending",
                "True",
                "False",
            ),
            (
                running(),
                running(),
                terminated_with(0),
                None,
                "Running",
                "True",
                "True",
            ),
            (
                running(),
                terminated_with(1),
                terminated_with(0),
                None,
                "Running",
                "True",
                "False",
            ),
            (
                terminated_with(0),
                terminated_with(0),
                terminated_with(0),
                Some(PodOutcome::Succeeded),
                "Succeeded",
                "True",
                "False",
            ),
            (
                terminated_with(0),
                terminated_with(1),
                terminated_with(0),
                Some(PodOutcome::Failed),
                "Failed",
                "True",
                "False",
            ),
        ];
        for (a, b, i, outcome, phase, initialized, ready) in cases {
            let result = status(&pod(json!({})), &records(a, b, i), outcome);
            assert_eq!(result.phase.as_deref(), Some(phase));
            assert_eq!(
                condition(&result, "Initialized").status,
                initialized,
                "{phase}"
            );
            assert_eq!(condition(&result, "Ready").status, ready, "{phase}");
        }
    }

    #[test]
    fn unready_containers_are_named_and_times_kept() {
        let old = pod(json!({"startTime": "1970-01-01T00:00:05Z", "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:00:07Z"}]}));
        let running = State::Running {
            started_at: at(1),
            id: "abc".into(),
        };
        let mut all = records(
            running,
            State::Terminated(ended(1)),
            State::Terminated(ended(0)),
        );
        all[2].restarts = 3;
        all[2].last = Some(ended(4));
        let result = status(&old, &all, None);
        let ready = condition(&result, "Ready");
        assert_eq!(
            ready.message.as_deref(),
            Some("containers with unready status: [b]")
        );
        assert_eq!(ready.last_transition_time, Some(Time(at(7))));
        assert_eq!(
            condition(&result, "Initialized").last_transition_time,
            Some(Time(at(100)))
        );
        assert_eq!(result.start_time, Some(Time(at(5))));
        let statuses = result.container_statuses.unwrap();
        assert_eq!(statuses[0].container_id.as_deref(), Some("koord://abc"));
        assert!(statuses[0].ready);
        assert_eq!(statuses[0].image, "img");
        assert_eq!(statuses[1].restart_count, 3);
        let last = statuses[1]
            .last_state
            .as_ref()
            .unwrap()
            .terminated
            .as_ref()
            .unwrap();
        assert_eq!(last.exit_code, 4);
    }

    #[test]
    fn resuming_after_a_restart() {
        let running: ContainerStatus = serde_json::from_value(json!({
            "name": "a", "restartCount": 2, "image": "", "imageID": "", "ready": true,
            "containerID": "koord://abc",
            "state": {"running": {"startedAt": "1970-01-01T00:00:07Z"}}
        }))
        .unwrap();
        let mut record = Record::new("a", false, false);
        resume(&mut record, &running, at(50));
        assert_eq!(record.restarts, 2);
        let State::Terminated(result) = &record.state else {
            panic!("{record:?}")
        };
        assert_eq!(
            (result.exit_code, result.id.as_str(), result.started_at),
            (137, "abc", at(7))
        );
    }
}
