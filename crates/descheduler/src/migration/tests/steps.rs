use super::*;
use crate::framework::SkipReason;
use crate::migration::evict::Policy;
use crate::migration::status::{self, State};
use crate::migration::step::{self, JobView, Operation, Requeue, Settings, Step, step};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use koord_api::duration::GoDuration;
use koord_api::scheduling::{PodMigrationJobStatus, Reservation};
use std::time::Duration;

const SETTINGS: Settings = Settings {
    reserves: true,
    arbitrates: true,
    policy: Policy::Eviction,
    without_claims: false,
    ttl: GoDuration::from_mins(45),
};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// A job and its objects, which the steps change.
struct Play {
    now: Timestamp,
    job: PodMigrationJob,
    pod: Option<Pod>,
    reservation: Option<Reservation>,
    bound: Option<Pod>,
    limited: Option<SkipReason>,
    settings: Settings,
    events: Vec<String>,
    acts: Vec<&'static str>,
}

fn pod(over: Value) -> Pod {
    let pod = json!({
        "metadata": {"namespace": "default", "name": "p", "uid": "uid-p",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true}]},
        "spec": {"nodeName": "test-node", "containers": []},
        "status": {"phase": "Running"},
    });
    serde_json::from_value(merged(pod, over)).unwrap()
}

fn reservation(status: Value) -> Reservation {
    let value = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": "r", "uid": "uid-r", "labels": {
            "scheduling.koordinator.sh/reservation-order": "1", "app.kubernetes.io/created-by": "koord-descheduler"}},
        "spec": {"template": {}, "owners": [{"controller": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s",
            "uid": "s"}}]},
        "status": status,
    });
    serde_json::from_value(value).unwrap()
}

/// Returns a reservation on node `there`, in `phase`, used by `owner`.
fn scheduled(phase: &str, owner: Option<&str>) -> Reservation {
    let owners: Vec<_> = owner
        .map(|name| json!({"namespace": "default", "name": name, "uid": name}))
        .into_iter()
        .collect();
    reservation(
        json!({"phase": phase, "nodeName": "there", "currentOwners": owners,
        "conditions": [{"type": "Scheduled", "status": "True", "reason": "Scheduled"}]}),
    )
}

/// Returns a running job with its reservation.
fn running(over: Value) -> PodMigrationJob {
    let running = json!({
        "metadata": {"annotations": {"descheduler.koordinator.sh/passed-arbitration": "true"}},
        "spec": {"reservationOptions": {"reservationRef": {"name": "r", "uid": "uid-r"}}},
        "status": {"phase": "Running"},
    });
    PodMigrationJob::clone(&job("j", "p", merged(running, over)))
}

impl Play {
    fn new(job: PodMigrationJob, pod: Option<Pod>, reservation: Option<Reservation>) -> Self {
        Self {
            now: now(),
            job,
            pod,
            reservation,
            bound: None,
            limited: None,
            settings: SETTINGS,
            events: Vec::new(),
            acts: Vec::new(),
        }
    }

    fn view(&self) -> JobView<'_> {
        JobView {
            now: self.now,
            job: &self.job,
            pod: self.pod.as_ref(),
            reservation: self.reservation.as_ref(),
            bound: self.bound.as_ref(),
            limited: self.limited.as_ref(),
            problem: None,
            settings: &self.settings,
        }
    }

    fn step(&self) -> Step {
        step(&self.view())
    }

    /// Carries out the steps until the job waits or is done.
    fn on(&mut self) -> Requeue {
        for _ in 0..20 {
            let Step { act, event, next } = self.step();
            if let Some(act) = act {
                self.act(act);
            }
            self.events
                .extend(event.map(|event| event.reason.to_owned()));
            if next != Requeue::Now {
                return next;
            }
        }
        panic!("no end: {:?} {:?}", self.acts, self.job);
    }

    fn act(&mut self, act: Operation) {
        let named = match act {
            Operation::Job(job) => {
                (self.job.metadata, self.job.spec) = (job.metadata, job.spec);
                "job"
            }
            Operation::Status(status) => {
                assert_ne!(self.job.status.as_ref(), Some(&*status), "nothing changed");
                self.job.status = Some(*status);
                "status"
            }
            Operation::Reserve(created) => {
                let mut created = *created;
                created.metadata.uid = Some("uid-made".to_owned());
                self.reservation = Some(created);
                "reserve"
            }
            Operation::Order { value } => {
                let labels = self.reservation.as_mut().unwrap();
                let labels = labels.metadata.labels.get_or_insert_default();
                labels.insert(
                    "scheduling.koordinator.sh/reservation-order".to_owned(),
                    value,
                );
                "order"
            }
            Operation::Unreserve => {
                self.reservation = None;
                "unreserve"
            }
            Operation::Evict(Policy::SoftEviction) => {
                let pod = self.pod.as_mut().unwrap();
                let annotations = pod.metadata.annotations.get_or_insert_default();
                annotations.insert(
                    "scheduling.koordinator.sh/soft-eviction".to_owned(),
                    "{}".to_owned(),
                );
                "ask"
            }
            Operation::Evict(_) => {
                let pod = self.pod.as_mut().unwrap();
                let going = json!({"metadata": {"deletionTimestamp": now()}});
                let value = serde_json::to_value(&*pod).unwrap();
                *pod = serde_json::from_value(merged(value, going)).unwrap();
                "evict"
            }
            Operation::Spare => {
                let pod = self.pod.as_mut().unwrap();
                pod.metadata.annotations = None;
                "spare"
            }
        };
        self.acts.push(named);
    }

    fn status(&self) -> PodMigrationJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    fn phase(&self) -> String {
        self.status()
            .phase
            .map_or(String::new(), |phase| phase.to_string())
    }

    /// Returns phase and reason.
    fn ends(&self) -> (String, String) {
        (self.phase(), self.status().reason)
    }

    /// Returns `status` and `reason` of condition `kind`.
    fn condition(&self, kind: &str) -> Option<(String, String)> {
        let status = self.status();
        let found_condition = status::condition(&status, kind)?;
        Some((
            found_condition.status.clone(),
            found_condition.reason.clone(),
        ))
    }
}

fn failed(reason: &str) -> (String, String) {
    ("Failed".to_owned(), reason.to_owned())
}

fn is(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

/// Upstream's three cases of finding conditions, and three of changing them.
#[test]
fn condition_is_written_when_it_changes() {
    let value = json!({"conditions": [
        {"type": "ReservationScheduled", "status": "True", "lastTransitionTime": "2026-01-01T10:00:00Z"},
        {"type": "ReservationCreated", "status": "True", "lastTransitionTime": "2026-01-01T10:00:00Z"},
    ]});
    let status: PodMigrationJobStatus = serde_json::from_value(value).unwrap();
    assert!(status::condition(&PodMigrationJobStatus::default(), "ReservationCreated").is_none());
    assert_eq!(
        status::condition(&status, "ReservationCreated"),
        Some(&status.conditions[1])
    );
    assert!(status::condition(&status, "Preemption").is_none());
    let created = |holds: bool, message: &'static str| State {
        kind: "ReservationCreated",
        holds,
        reason: "",
        message,
    };
    for (state, changed, since) in [
        (created(true, "new"), true, "2026-01-01T10:00:00Z"),
        (created(true, ""), false, "2026-01-01T10:00:00Z"),
        (created(false, ""), true, "2026-01-01T12:00:00Z"),
        (
            State {
                kind: "Preemption",
                ..created(true, "x")
            },
            true,
            "2026-01-01T12:00:00Z",
        ),
    ] {
        let mut status = status.clone();
        assert_eq!(
            status::report(&mut status, &state, now()),
            changed,
            "{state:?}"
        );
        let found_condition = status::condition(&status, state.kind).unwrap();
        let time = found_condition.last_transition_time.as_ref().unwrap().0;
        assert_eq!(time.to_string(), since, "{state:?}");
        let summary = if changed { state.kind } else { "" };
        assert_eq!(status.status, summary);
    }
}

#[test]
fn a_pod_is_evicted_directly() {
    let over = json!({"spec": {"mode": "EvictDirectly", "reservationOptions": null}});
    let mut play = Play::new(running(over), Some(pod(json!({}))), None);
    play.job.status = None;
    assert!(matches!(play.on(), Requeue::Wait(_)));
    // The status is written before the eviction.
    assert_eq!(play.acts, ["job", "status", "status", "evict"]);
    assert_eq!(play.condition("Eviction"), is("False", "Evicting"));
    play.pod = None;
    assert_eq!(play.on(), Requeue::Done);
    assert_eq!(play.ends(), ("Succeeded".to_owned(), String::new()));
    assert_eq!(play.status().status, "Complete");
    assert_eq!(play.events, ["Evicting", "EvictComplete", "Complete"]);
}

#[test]
fn pod_moves_to_its_reservation() {
    let over =
        json!({"spec": {"reservationOptions": null, "podRef": {"uid": null}}, "status": null});
    let mut play = Play::new(running(over), Some(pod(json!({}))), None);
    play.on();
    // The steps are: UID, phase Running, reservation, its name, its existence.
    assert_eq!(play.acts, ["job", "status", "reserve", "job", "status"]);
    assert_eq!(play.job.spec.pod_ref.uid.as_deref(), Some("uid-p"));
    let annotations = play.job.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["descheduler.koordinator.sh/controller"], "s");
    let named = play.job.spec.reservation_options.clone().unwrap();
    let named = named.reservation_ref.unwrap();
    assert_eq!(
        (named.name.as_deref(), named.uid.as_deref()),
        (Some("j"), Some("uid-made"))
    );
    assert_eq!(play.condition("ReservationCreated"), is("True", ""));
    // No node fits at first.
    let meta = play.reservation.clone().unwrap().metadata;
    let mut unschedulable = reservation(json!({"phase": "Pending", "conditions": [
        {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "none fits"}]}));
    unschedulable.metadata = meta.clone();
    play.reservation = Some(unschedulable);
    play.on();
    assert_eq!(
        play.condition("ReservationScheduled"),
        is("False", "Unschedulable")
    );
    let mut available = scheduled("Available", None);
    available.metadata = meta.clone();
    play.reservation = Some(available);
    play.acts.clear();
    play.on();
    assert_eq!(play.acts, ["status", "status", "evict"]);
    assert_eq!(play.status().node_name, "there");
    play.pod = None;
    play.on();
    assert_eq!(
        play.condition("PodBoundReservation"),
        is("False", "WaitForPodBindReservation")
    );
    let mut used = scheduled("Succeeded", Some("new"));
    used.metadata = meta;
    play.reservation = Some(used);
    play.bound = Some(pod(json!({"metadata": {"name": "new"}})));
    play.on();
    assert_eq!(
        play.condition("BoundPodReady"),
        is("False", "WaitForBoundPodReady")
    );
    assert_eq!(play.status().pod_ref.unwrap().name.as_deref(), Some("new"));
    // The scheduler drops the reservation.
    play.reservation = None;
    let ready = json!({"metadata": {"name": "new"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    play.bound = Some(pod(ready));
    assert_eq!(play.on(), Requeue::Done);
    assert_eq!(play.ends(), ("Succeeded".to_owned(), String::new()));
    for kind in [
        "ReservationCreated",
        "ReservationScheduled",
        "Eviction",
        "ReservationBound",
        "BoundPodReady",
        "PodBoundReservation",
    ] {
        assert_eq!(play.condition(kind).unwrap().0, "True", "{kind}");
    }
    assert_eq!(
        play.events,
        [
            "ReservationCreated",
            "Unschedulable",
            "ReservationScheduled",
            "Evicting",
            "EvictComplete",
            "WaitForPodBindReservation",
            "PodBoundReservation",
            "WaitForBoundPodReady",
            "BoundPodReady",
            "Complete",
        ]
    );
}

#[test]
fn pod_of_the_same_name_is_the_replacement() {
    let mut play = Play::new(
        running(json!({})),
        Some(pod(json!({}))),
        Some(scheduled("Available", None)),
    );
    play.on();
    assert_eq!(play.acts.last(), Some(&"evict"));
    play.pod = Some(pod(json!({"metadata": {"uid": "later"}})));
    play.reservation = Some(scheduled("Succeeded", Some("p")));
    play.on();
    assert_eq!(play.ends().0, "Succeeded");
    // Unless the intended pod was never evicted.
    let mut play = Play::new(
        running(json!({})),
        Some(pod(json!({"metadata": {"uid": "later"}}))),
        Some(scheduled("Available", None)),
    );
    play.on();
    assert_eq!(play.ends(), failed("MissingPod"));
    assert!(!play.acts.contains(&"evict"));
}

#[test]
fn failed_job_has_a_reason() {
    let ready = |reason: &str| json!({"phase": "Failed", "nodeName": "there", "conditions": [{"type": "Ready", "reason": reason}]});
    let unschedulable = json!({"phase": "Failed", "conditions": [{"type": "Scheduled", "reason": "Unschedulable", "message": "no node"}]});
    let existing_pod = || Some(pod(json!({})));
    let same_node = {
        let mut current = scheduled("Available", None);
        current.status.as_mut().unwrap().node_name = "test-node".to_owned();
        current
    };
    let mut replaced = scheduled("Available", None);
    replaced.metadata.uid = Some("another".to_owned());
    for (what, pod, reservation, reason) in [
        (
            "the pod is gone",
            None,
            Some(scheduled("Available", None)),
            "MissingPod",
        ),
        (
            "the reservation is gone",
            existing_pod(),
            None,
            "MissingReservation",
        ),
        (
            "it is another one",
            existing_pod(),
            Some(replaced),
            "MissingReservation",
        ),
        (
            "it expired",
            existing_pod(),
            Some(reservation(ready("Expired"))),
            "ReservationExpired",
        ),
        (
            "no node fits",
            existing_pod(),
            Some(reservation(unschedulable)),
            "Unschedulable",
        ),
        (
            "another pod uses it",
            existing_pod(),
            Some(scheduled("Succeeded", Some("other"))),
            "ForbiddenMigratePod",
        ),
        (
            "it is where the pod is",
            existing_pod(),
            Some(same_node),
            "ForbiddenMigratePod",
        ),
    ] {
        let mut play = Play::new(running(json!({})), pod, reservation);
        assert_eq!(play.on(), Requeue::Done, "{what}");
        assert_eq!(play.ends(), failed(reason), "{what}: {:?}", play.status());
        assert!(!play.acts.contains(&"evict"), "{what}: {:?}", play.acts);
    }
    let nameless = json!({"spec": {"podRef": {"name": ""}}, "status": null});
    let mut play = Play::new(running(nameless), existing_pod(), None);
    play.on();
    assert_eq!(play.ends(), failed("InvalidPodRef"));
    // Nothing is reserved for a pod that is gone.
    let over = json!({"spec": {"reservationOptions": null}});
    let mut play = Play::new(running(over), None, None);
    play.on();
    assert_eq!(
        (play.ends(), &play.acts[..]),
        (failed("MissingPod"), &["status"][..])
    );
}

#[test]
fn failed_job_releases_only_its_own_reservation() {
    let mut expired = reservation(
        json!({"phase": "Failed", "conditions": [{"type": "Ready", "reason": "Expired"}]}),
    );
    let mut play = Play::new(
        running(json!({})),
        Some(pod(json!({}))),
        Some(expired.clone()),
    );
    play.on();
    assert_eq!(play.acts.last(), Some(&"unreserve"));
    assert_eq!(play.on(), Requeue::Done);
    // A user's own reservation stays, and so does one in use.
    expired
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .remove("app.kubernetes.io/created-by");
    let mut play = Play::new(running(json!({})), Some(pod(json!({}))), Some(expired));
    play.on();
    assert!(!play.acts.contains(&"unreserve"), "{:?}", play.acts);
    let mut play = Play::new(
        running(json!({})),
        Some(pod(json!({}))),
        Some(scheduled("Succeeded", Some("other"))),
    );
    play.on();
    assert!(!play.acts.contains(&"unreserve"), "{:?}", play.acts);
}

#[test]
fn timed_out_job_has_the_reason() {
    let ttl = || json!({"spec": {"ttl": "30m"}});
    let minute = |minutes: i64| {
        now()
            .checked_add(jiff::SignedDuration::from_mins(minutes))
            .unwrap()
    };
    for (over, minutes, ends) in [
        // The default time to live of jobs.
        (json!({}), 44, false),
        (json!({}), 45, true),
        (ttl(), 29, false),
        (ttl(), 30, true),
        (json!({"spec": {"ttl": "0s"}}), 60, false),
    ] {
        let mut play = Play::new(
            running(over.clone()),
            Some(pod(json!({}))),
            Some(scheduled("Waiting", None)),
        );
        play.reservation
            .as_mut()
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .phase = Some("Pending".into());
        play.now = minute(minutes);
        play.on();
        assert_eq!(play.phase() == "Failed", ends, "{over} {minutes}");
        assert_eq!(
            play.reservation.is_none(),
            ends,
            "what it holds goes with it"
        );
    }
    // The job is checked again when its time to live ends.
    let mut play = Play::new(
        running(ttl()),
        Some(pod(json!({}))),
        Some(reservation(json!({"phase": "Pending"}))),
    );
    play.now = minute(30)
        .checked_sub(jiff::SignedDuration::from_secs(1))
        .unwrap();
    assert_eq!(play.on(), Requeue::Wait(Duration::from_secs(1)));
    // A permanent refusal.
    let mut play = Play::new(
        running(ttl()),
        Some(pod(json!({}))),
        Some(scheduled("Available", None)),
    );
    play.job.status = step::refused(&play.job, "Failed evict Pod: disruption budget", now());
    play.now = minute(31);
    play.on();
    assert_eq!(play.ends(), failed("Timeout"));
    let message = play.status().message;
    assert!(
        message.starts_with("Abort job caused by timeout: FailedEvict: ")
            && message.contains("budget"),
        "{message}"
    );
    assert!(play.pod.is_some() && !play.acts.contains(&"evict"));
}

#[test]
fn only_refused_evictions_are_retried() {
    let mut play = Play::new(
        running(json!({})),
        Some(pod(json!({}))),
        Some(scheduled("Available", None)),
    );
    play.job.status = step::refused(&play.job, "budget", now());
    assert_eq!(
        step::refused(&play.job, "budget", now()),
        None,
        "written once"
    );
    play.on();
    assert_eq!(play.acts, ["status", "status", "evict", "status"]);
    assert_eq!(play.condition("Eviction"), is("False", "Evicting"));
    assert!(matches!(play.on(), Requeue::Wait(_)));
    assert_eq!(play.acts.len(), 4, "{:?}", play.acts);
}

/// A leader died before it recorded that the pod is gone, or before it evicted it.
#[test]
fn next_leader_resumes_the_job() {
    let evicting = json!({"status": {"status": "Eviction", "conditions": [{"type": "Eviction", "status": "False", "reason": "Evicting"}]}});
    let mut play = Play::new(
        running(evicting.clone()),
        None,
        Some(scheduled("Available", None)),
    );
    play.on();
    assert_eq!(play.condition("Eviction"), is("True", "EvictComplete"));
    let mut play = Play::new(
        running(evicting),
        Some(pod(json!({}))),
        Some(scheduled("Available", None)),
    );
    play.on();
    assert_eq!(play.acts.iter().filter(|act| **act == "evict").count(), 1);
    // The reservation exists, but the job has no reference to it.
    let over = json!({"spec": {"reservationOptions": null}, "metadata": {"annotations": {"koordinator.sh/job-created-by": "predecessor"}}});
    let mut reservation = scheduled("Available", None);
    reservation.metadata.name = Some("j".to_owned());
    let mut play = Play::new(running(over), Some(pod(json!({}))), Some(reservation));
    play.on();
    assert!(!play.acts.contains(&"reserve"), "{:?}", play.acts);
    assert_eq!(play.acts.last(), Some(&"evict"));
}

#[test]
fn soft_eviction_is_withdrawn_on_timeout() {
    let over = json!({"spec": {"ttl": "5m"}});
    let mut play = Play::new(
        running(over),
        Some(pod(json!({}))),
        Some(scheduled("Available", None)),
    );
    play.settings.policy = Policy::SoftEviction;
    play.on();
    assert_eq!(play.acts.last(), Some(&"ask"));
    let before = play.acts.len();
    assert!(matches!(play.on(), Requeue::Wait(_)));
    assert_eq!(play.acts.len(), before, "asked once");
    play.now = now()
        .checked_add(jiff::SignedDuration::from_mins(5))
        .unwrap();
    play.on();
    assert_eq!(play.acts[before..], ["spare", "status", "unreserve"]);
    assert_eq!(play.ends(), failed("Timeout"));
    assert!(play.pod.unwrap().metadata.annotations.is_none());
}

#[test]
fn unscheduled_pod_is_followed_to_its_node() {
    let waits = |status: Value| pod(json!({"spec": {"nodeName": null}, "status": status}));
    let unscheduled = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "none"}]});
    let mut reservation = scheduled("Available", None);
    reservation.spec.owners =
        serde_json::from_value(json!([{"object": {"kind": "Pod", "name": "p"}}])).unwrap();
    let mut play = Play::new(
        running(json!({})),
        Some(waits(unscheduled.clone())),
        Some(reservation.clone()),
    );
    assert!(matches!(play.on(), Requeue::Wait(_)));
    assert_eq!(play.condition("PodScheduled"), is("False", "Unschedulable"));
    let placed =
        json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]});
    play.pod = Some(pod(
        json!({"spec": {"nodeName": "there"}, "status": placed}),
    ));
    play.on();
    assert_eq!(play.ends().0, "Succeeded");
    assert_eq!(play.condition("PodScheduled"), is("True", ""));
    assert!(!play.acts.contains(&"evict"));
    // Another pod uses the reservation, or the pod is gone.
    let mut foreign = scheduled("Succeeded", Some("other"));
    foreign.spec.owners.clone_from(&reservation.spec.owners);
    let mut play = Play::new(running(json!({})), Some(waits(unscheduled)), Some(foreign));
    play.on();
    assert_eq!(play.ends(), failed("ForbiddenMigratePod"));
    let mut play = Play::new(running(json!({})), None, Some(reservation));
    play.on();
    assert_eq!(play.ends(), failed("MissingPod"));
}

#[test]
fn paused_waiting_and_ended_jobs_do_nothing() {
    let existing_pod = || Some(pod(json!({})));
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    for over in [
        json!({"spec": {"paused": true}}),
        phase("Succeeded"),
        phase("Aborted"),
        phase("Failed"),
        json!({"metadata": {"deletionTimestamp": now()}}),
    ] {
        let step = Play::new(running(over.clone()), existing_pod(), None).step();
        assert_eq!((step.act, step.next), (None, Requeue::Done), "{over}");
    }
    let waits = json!({"metadata": {"annotations": null}, "status": null});
    let mut play = Play::new(running(waits), existing_pod(), None);
    assert!(matches!(play.on(), Requeue::Wait(_)) && play.acts.is_empty());
    play.settings.arbitrates = false;
    play.on();
    assert_eq!(play.acts[..2], ["job", "status"]);
}

#[test]
fn rate_limit_applies_only_before_the_eviction() {
    let reason = || Some(SkipReason::new("WorkloadLimiter", "others went"));
    let mut play = Play::new(
        running(json!({})),
        Some(pod(json!({}))),
        Some(scheduled("Available", None)),
    );
    play.limited = reason();
    for _ in 0..2 {
        assert_eq!(play.on(), Requeue::Wait(Duration::from_secs(3)));
        assert_eq!(play.acts, ["status"], "said once");
        let status = play.status();
        assert_eq!(status.reason, "WorkloadLimiter");
        assert_eq!(status.message, "WorkloadLimiter: others went");
        assert_eq!(play.events, ["WorkloadLimiter"]);
    }
    play.limited = None;
    play.on();
    assert_eq!(play.status().reason, "Evicting");
    assert_eq!(play.acts.last(), Some(&"evict"));
    // The same name returns, and its workload is limited because of this eviction.
    play.limited = reason();
    play.pod = Some(pod(json!({"metadata": {"uid": "later"}})));
    play.reservation = Some(scheduled("Succeeded", Some("p")));
    play.on();
    assert_eq!(play.ends().0, "Succeeded");
}

#[test]
fn reservation_failure_is_reported_once() {
    let job = running(json!({}));
    let status = step::unreserved(&job, "webhook", now()).unwrap();
    let condition = status::condition(&status, "ReservationCreated").unwrap();
    assert_eq!(condition.reason, "FailedCreateReservation");
    assert!(condition.message.contains("webhook"));
    let job_with_status = PodMigrationJob {
        status: Some(status),
        ..job
    };
    assert!(step::unreserved(&job_with_status, "webhook", now()).is_none());
    let mut bare = scheduled("Available", None);
    bare.metadata.labels = None;
    let mut play = Play::new(running(json!({})), Some(pod(json!({}))), Some(bare));
    play.on();
    assert_eq!(play.acts.first(), Some(&"order"));
}
