//! Explains a reservation: its amounts and owners, and why it cannot be used.

use super::outline::{Outline, difference};
use super::{UNREPORTED, full_name, is_pending, is_terminal, node_name, scheduled_message};
use crate::check::outcome::join_names;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use koord_api::extension::{self, ReservationAllocated};
use koord_api::scheduling::{
    RESERVATION_CONDITION_SCHEDULED, Reservation, ReservationOwner, ReservationPhase,
    ReservationStatus,
};
use koord_api::texts::Lookup as _;
use koord_api::{GoDuration, annotations, labels, selector};

/// Returns whether every set part of `owner` matches the pod. One with nothing set matches all pods.
fn is_owner(owner: &ReservationOwner, pod: &Pod) -> bool {
    let metadata = &pod.metadata;
    let is_equal = |wanted: Option<&String>, actual: Option<&String>| {
        wanted.is_none_or(|wanted| wanted.is_empty() || Some(wanted) == actual)
    };
    let object = owner.object.as_ref().is_none_or(|object| {
        is_equal(object.uid.as_ref(), metadata.uid.as_ref())
            && is_equal(object.name.as_ref(), metadata.name.as_ref())
            && is_equal(object.namespace.as_ref(), metadata.namespace.as_ref())
            && object
                .api_version
                .as_deref()
                .is_none_or(|it| matches!(it, "" | "v1"))
    });
    let controller = owner.controller.as_ref().is_none_or(|wanted| {
        is_equal(Some(&wanted.namespace), metadata.namespace.as_ref())
            && metadata.owner_references.iter().flatten().any(|it| {
                wanted
                    .controller
                    .is_none_or(|controls| it.controller == Some(controls))
                    && is_equal(Some(&wanted.uid), Some(&it.uid))
                    && is_equal(Some(&wanted.name), Some(&it.name))
                    && is_equal(Some(&wanted.kind), Some(&it.kind))
                    && is_equal(Some(&wanted.api_version), Some(&it.api_version))
            })
    });
    let selector = owner.label_selector.as_ref();
    let labels = metadata.labels.as_ref();
    object
        && controller
        && selector.is_none_or(|it| selector::matches(it, &labels).unwrap_or(false))
}

/// Returns whether the pod was allocated from the reservation.
fn uses(pod: &Pod, reservation: &Reservation) -> bool {
    let key = annotations::RESERVATION_ALLOCATED;
    let read = extension::read::<ReservationAllocated>(pod.metadata.annotations.as_ref(), key);
    let by_annotation = read.ok().flatten().is_some_and(|allocated| {
        let uid = reservation.metadata.uid.as_deref().unwrap_or_default();
        Some(&allocated.name) == reservation.metadata.name.as_ref()
            && (allocated.uid.is_empty() || uid.is_empty() || allocated.uid == uid)
    });
    let status = reservation.status.iter();
    let mut owners = status.flat_map(|status| &status.current_owners);
    by_annotation || owners.any(|owner| owner.uid.is_some() && owner.uid == pod.metadata.uid)
}

/// Returns when the reservation expires; `None` if never.
fn expiry(reservation: &Reservation) -> Option<Timestamp> {
    let ttl = reservation.spec.ttl.map(GoDuration::as_nanos);
    if ttl == Some(0) {
        return None;
    }
    let created = reservation.metadata.creation_timestamp.as_ref();
    let by_age = created.zip(ttl).map(|(created, ttl)| {
        let age = SignedDuration::from_nanos(ttl);
        created.0.saturating_add(age).unwrap_or(Timestamp::MAX)
    });
    let by_date = reservation.spec.expires.as_ref().map(|time| time.0);
    by_age.into_iter().chain(by_date).min()
}

/// Explains a reservation at `now`; `pods` are those of the cluster.
pub(super) fn explain(reservation: &Reservation, pods: &[Pod], now: Timestamp) -> Outline {
    let name = reservation.metadata.name.as_deref().unwrap_or_default();
    let status = reservation.status.clone().unwrap_or_default();
    let phase = status.phase.clone().unwrap_or(ReservationPhase::Pending);
    let place = match status.node_name.as_str() {
        "" => String::new(),
        node => format!(" on node {node}"),
    };
    let mut outline = Outline {
        title: format!("reservation {name} is {}{place}", phase.as_str()),
        ..Outline::default()
    };
    add_settings(reservation, now, &mut outline);
    outline.add_amounts(&[
        ("allocatable", &status.allocatable),
        ("allocated", &status.allocated),
        ("free", &difference(&status.allocatable, &status.allocated)),
    ]);
    let owners = pods.iter().filter(|pod| {
        uses(pod, reservation)
            || (!is_terminal(pod) && reservation.spec.owners.iter().any(|it| is_owner(it, pod)))
    });
    let rows: Vec<_> = owners
        .map(|pod| vec![full_name(&pod.metadata), describe_use(pod, reservation)])
        .collect();
    let is_over = matches!(
        phase,
        ReservationPhase::Failed | ReservationPhase::Succeeded
    );
    if rows.is_empty() && !is_over {
        outline.add_fact("no pod matches its owners");
    }
    outline.add_table("pods that match its owners", &["pod", "state"], rows);
    add_obstacles(reservation, &status, &phase, &mut outline);
    outline
}

fn add_settings(reservation: &Reservation, now: Timestamp, outline: &mut Outline) {
    let spec = &reservation.spec;
    let policy = spec
        .allocate_policy
        .as_ref()
        .map_or("", |policy| policy.as_str());
    let policy = if policy.is_empty() { "Aligned" } else { policy };
    let pods = if spec.allocate_once.unwrap_or(true) {
        "one pod uses it (allocateOnce)"
    } else {
        "several pods use it"
    };
    outline.add_fact(format!("allocate policy {policy}, {pods}"));
    outline.add_fact(match expiry(reservation) {
        None => "it does not expire".to_owned(),
        Some(time) if time <= now => format!("it expired at {time}"),
        Some(time) => {
            let rest = GoDuration::from_secs(time.as_second() - now.as_second());
            format!("it expires at {time}, in {rest}")
        }
    });
    let taints = spec.taints.iter().map(|taint| {
        let value = taint.value.as_deref().unwrap_or_default();
        format!("{}={value}:{}", taint.key, taint.effect)
    });
    let taints: Vec<String> = taints.collect();
    if !taints.is_empty() {
        outline.add_fact(format!("pods have to tolerate {}", join_names(&taints)));
    }
    if spec.pre_allocation == Some(true) {
        outline.add_fact("it may absorb running pods (preAllocation)");
    }
}

/// Describes what a pod that matches the owners has of the reservation.
fn describe_use(pod: &Pod, reservation: &Reservation) -> String {
    let node = node_name(pod);
    if uses(pod, reservation) {
        return format!("uses it on node {node}");
    }
    if pod
        .metadata
        .labels
        .as_ref()
        .text(labels::RESERVATION_IGNORED)
        == Some("true")
    {
        return format!(
            "ignores reservations (label {})",
            labels::RESERVATION_IGNORED
        );
    }
    if is_pending(pod) {
        let reason = scheduled_message(pod).unwrap_or(UNREPORTED);
        return format!("pending: {reason}");
    }
    format!("does not use it, on node {node}")
}

/// Adds why no pod, or no further one, can use the reservation.
fn add_obstacles(
    reservation: &Reservation,
    status: &ReservationStatus,
    phase: &ReservationPhase,
    outline: &mut Outline,
) {
    let spec = &reservation.spec;
    let conditions = status.conditions.iter();
    let stated = conditions.filter(|it| it.status != "True" && !it.reason.is_empty());
    let stated: Vec<String> = stated
        .map(|it| match it.message.as_str() {
            "" => it.reason.clone(),
            message => format!("{}: {message}", it.reason),
        })
        .collect();
    let scheduler = spec
        .template
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduler_name.as_deref());
    let tried = status
        .conditions
        .iter()
        .any(|it| it.type_ == RESERVATION_CONDITION_SCHEDULED);
    match phase {
        ReservationPhase::Pending if tried => {
            outline.add_problem(format!("it has no node: {}", stated.join("; ")));
        }
        ReservationPhase::Pending => outline.add_problem(format!(
            "no scheduler has tried it; its schedulerName is {:?}",
            scheduler.unwrap_or("default-scheduler")
        )),
        ReservationPhase::Waiting => outline.add_problem(
            "it has a node, and waits until the pods that it absorbed free its resources",
        ),
        ReservationPhase::Failed => outline.add_problem(match stated.as_slice() {
            [] => "it failed without a reason".to_owned(),
            stated => format!("it failed: {}", stated.join("; ")),
        }),
        ReservationPhase::Succeeded => {
            outline.add_problem("it is used up: a pod has allocated it (allocateOnce)");
        }
        ReservationPhase::Available => {
            let is_used = !status.current_owners.is_empty();
            let free = difference(&status.allocatable, &status.allocated);
            let full = free.iter().filter(|(_, amount)| amount.signum() <= 0);
            let full: Vec<&String> = full.map(|(resource, _)| resource).collect();
            if is_used && !full.is_empty() {
                outline.add_problem(format!("nothing is free of {}", join_names(&full)));
            }
        }
        ReservationPhase::Other(_) => {}
    }
    if spec.unschedulable == Some(true) {
        outline.add_problem("spec.unschedulable is set: it admits no further pods");
    }
    for (at, owner) in spec.owners.iter().enumerate() {
        if let Some(labels) = &owner.label_selector
            && let Err(error) = selector::matches(labels, &std::collections::BTreeMap::new())
        {
            outline.add_problem(format!("spec.owners[{at}].labelSelector: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: &str = "2026-01-01T12:00:00Z";

    fn reservation(spec: Value, status: Value) -> Reservation {
        let mut object = json!({
            "metadata": {"name": "r", "uid": "r1", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"template": {"spec": {"containers": [], "schedulerName": "koord-scheduler"}},
                "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}], "ttl": "24h"},
            "status": status});
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn pod(name: &str, node: &str, annotation: &str) -> Pod {
        let phase = if node.is_empty() {
            "Pending"
        } else {
            "Running"
        };
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": "web"},
                "annotations": {annotations::RESERVATION_ALLOCATED: annotation},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
                    "uid": "s", "controller": true}]},
            "spec": {"containers": [], "nodeName": node}, "status": {"phase": phase}}))
        .unwrap()
    }

    fn explained(reservation: &Reservation, pods: &[Pod]) -> Outline {
        explain(reservation, pods, NOW.parse().unwrap())
    }

    #[test]
    fn available_reservation_lists_pods_and_amounts() {
        let amounts = json!({"cpu": "4", "memory": "8Gi"});
        let reservation = reservation(
            json!({"allocateOnce": false, "allocatePolicy": "Restricted"}),
            json!({"phase": "Available", "nodeName": "n1", "allocatable": amounts,
                "allocated": {"cpu": "1500m"}, "currentOwners": [{"uid": "a"}]}),
        );
        let pods = [
            pod("a", "n1", r#"{"name":"r","uid":"r1"}"#),
            pod("b", "n2", ""),
            pod("c", "", r#"{"name":"other"}"#),
        ];
        assert_eq!(
            explained(&reservation, &pods).render(),
            "\
reservation r is Available on node n1
  allocate policy Restricted, several pods use it
  it expires at 2026-01-02T00:00:00Z, in 12h0m0s
  amounts:
    resource  allocatable  allocated  free
    cpu       4            1500m      2500m
    memory    8Gi          -          8Gi
  pods that match its owners:
    pod  state
    d/a  uses it on node n1
    d/b  does not use it, on node n2
    d/c  pending: no scheduler has reported on it
"
        );
    }

    #[test]
    fn reason_depends_on_phase_and_settings() {
        let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "False", "reason": reason, "message": message});
        let once = json!({"phase": "Available", "allocatable": {"cpu": "1"}, "allocated": {"cpu": "1"},
            "currentOwners": [{"uid": "a"}]});
        for (spec, status, expected) in [
            (
                json!({}),
                json!({}),
                "no scheduler has tried it; its schedulerName is \"koord-scheduler\"",
            ),
            (
                json!({}),
                json!({"phase": "Pending", "conditions":
                    [condition("Scheduled", "Unschedulable", "0/3 nodes are available")]}),
                "it has no node: Unschedulable: 0/3 nodes are available",
            ),
            (
                json!({}),
                json!({"phase": "Failed", "conditions": [condition("Ready", "Expired", "")]}),
                "it failed: Expired",
            ),
            (
                json!({}),
                json!({"phase": "Succeeded"}),
                "it is used up: a pod has allocated it (allocateOnce)",
            ),
            (
                json!({}),
                json!({"phase": "Waiting"}),
                "it has a node, and waits until the pods that it absorbed free its resources",
            ),
            (json!({}), once, "nothing is free of cpu"),
            (
                json!({"unschedulable": true}),
                json!({"phase": "Available"}),
                "spec.unschedulable is set: it admits no further pods",
            ),
        ] {
            let outline = explained(&reservation(spec, status), &[]);
            assert_eq!(outline.problems, [expected]);
        }
    }

    #[test]
    fn expiry_is_the_earlier_of_ttl_and_date() {
        let day = "2026-01-02T00:00:00Z";
        for (spec, expected) in [
            (json!({}), Some(day)),
            (json!({"expires": NOW}), Some(NOW)),
            (json!({"expires": "2026-02-01T00:00:00Z"}), Some(day)),
            (json!({"ttl": "0s", "expires": NOW}), None),
            (json!({"ttl": null, "expires": NOW}), Some(NOW)),
            (json!({"ttl": null}), None),
        ] {
            let expected = expected.map(|time| time.parse().unwrap());
            assert_eq!(
                expiry(&reservation(spec.clone(), json!({}))),
                expected,
                "{spec}"
            );
        }
        let expired = reservation(json!({"expires": NOW}), json!({}));
        let facts = explained(&expired, &[]).facts;
        assert!(facts[1].starts_with("it expired at"), "{facts:?}");
    }

    #[test]
    fn owner_matches_with_every_set_part() {
        let pod = pod("a", "", "");
        for (owner, expected) in [
            (json!({}), true),
            (json!({"object": {"name": "a", "namespace": "d"}}), true),
            (json!({"object": {"name": "a", "namespace": "e"}}), false),
            (
                json!({"object": {"name": "a", "apiVersion": "apps/v1"}}),
                false,
            ),
            (
                json!({"labelSelector": {"matchLabels": {"app": "web"}}}),
                true,
            ),
            (
                json!({"labelSelector": {"matchLabels": {"app": "job"}}}),
                false,
            ),
            (
                json!({"controller": {"apiVersion": "", "kind": "ReplicaSet", "name": "web", "uid": ""}}),
                true,
            ),
            (
                json!({"controller": {"apiVersion": "", "kind": "Job", "name": "web", "uid": ""}}),
                false,
            ),
            (
                json!({"controller": {"apiVersion": "", "kind": "", "name": "", "uid": "s", "namespace": "e"}}),
                false,
            ),
            (
                json!({"object": {"name": "a"}, "labelSelector": {"matchLabels": {"app": "job"}}}),
                false,
            ),
        ] {
            let read: ReservationOwner = serde_json::from_value(owner.clone()).unwrap();
            assert_eq!(is_owner(&read, &pod), expected, "{owner}");
        }
    }
}
