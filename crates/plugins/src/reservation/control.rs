//! The reservation controller: status updates, expiration and garbage collection. It is level-triggered: the
//! desired status is compared with the informer's, and written again until both agree.

use super::Reservations;
use super::pod::{Phase, resource_list};
use super::table::{ReservationRecord, ReservationTable};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::scheduling::{
    RESERVATION_CONDITION_READY, RESERVATION_CONDITION_SCHEDULED, RESERVATION_REASON_AVAILABLE,
    RESERVATION_REASON_EXPIRED, RESERVATION_REASON_SCHEDULED, RESERVATION_REASON_SUCCEEDED,
    RESERVATION_REASON_UNSCHEDULABLE, Reservation, ReservationCondition, ReservationPhase,
};
use koord_scheduler::framework::{Effects, Verb, View, Write};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A write that the informer does not deliver within this time is repeated.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_secs(15);

/// The last write that the informer has not delivered yet.
#[derive(Debug, Default)]
pub(super) struct PendingStatus {
    status: Option<(Value, Timestamp)>,
    /// Last message of the condition `Scheduled`.
    last_message: Option<String>,
}

/// Reservations that need work at a later time.
#[derive(Debug, Default)]
pub(super) struct CheckQueue {
    /// Reservations, by uid, to check again, with the time.
    due: BTreeSet<(Timestamp, Arc<str>)>,
    /// Time of the next garbage collection; `None` if nothing is finished.
    gc: Option<Timestamp>,
}

impl CheckQueue {
    /// Returns the time of the next check or garbage collection.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.due
            .first()
            .map(|(at, _)| *at)
            .into_iter()
            .chain(self.gc)
            .min()
    }

    /// Removes the expiry check of a deleted reservation.
    pub(super) fn remove(&mut self, record: &ReservationRecord) {
        if let Some(end) = expiry(record) {
            self.due.remove(&(add_seconds(end, 1), record.uid.clone()));
        }
    }

    fn add(&mut self, at: Timestamp, uid: &Arc<str>) {
        self.due.insert((at, uid.clone()));
    }
}

impl Reservations {
    /// Writes changed statuses, expires reservations, and deletes those that ended long ago.
    pub(super) fn run_controller(&mut self, view: View<'_>, fx: &mut Effects) {
        if !self.is_controller {
            // Another process is the controller, and this one receives its writes.
            self.table.dirty.clear();
            return;
        }
        while let Some((at, _)) = self.checks.due.first()
            && *at <= view.now
        {
            if let Some((_, uid)) = self.checks.due.pop_first() {
                self.table.dirty.insert(uid);
            }
        }
        if !self.table.dirty.is_empty() {
            let mut dirty: Vec<Arc<str>> = self.table.dirty.drain().collect();
            dirty.sort_unstable();
            for uid in dirty {
                self.reconcile(&uid, view, fx);
            }
        }
        if self.checks.gc.is_some_and(|at| at <= view.now) {
            self.collect_garbage(view, fx);
        }
    }

    /// Expires a reservation or updates its status, and schedules the next check.
    fn reconcile(&mut self, uid: &Arc<str>, view: View<'_>, fx: &mut Effects) {
        let Some(at) = self.table.find(uid) else {
            return;
        };
        let Some(record) = self.table.record(at) else {
            return;
        };
        if record.terms.phase == Phase::Over {
            if self.checks.gc.is_none() && !self.args.first().disable_garbage_collection {
                self.checks.gc = Some(add_seconds(
                    view.now,
                    self.args.first().gc_interval_seconds.max(1),
                ));
            }
            return;
        }
        let placed = record.terms.node.is_some();
        if placed || self.expire_pending {
            // Expires strictly after its end, not at it.
            match expiry(record) {
                Some(end) if end < view.now => {
                    let status = expired_status(&record.object, view.now);
                    return self.write_status(at, status, view.now, fx);
                }
                Some(end) => self.checks.add(add_seconds(end, 1), uid),
                None => {}
            }
        }
        let Some(node) = &record.terms.node else {
            return;
        };
        if !node_exists(view, node) {
            let status = expired_status(&record.object, view.now);
            return self.write_status(at, status, view.now, fx);
        }
        if let Some(status) = usage_status(record, &self.table, view) {
            self.write_status(at, status, view.now, fx);
        } else if let Some(record) = self.table.record_mut(at) {
            record.pending_status.status = None;
        }
    }

    fn write_status(&mut self, at: u32, status: Value, now: Timestamp, fx: &mut Effects) {
        let Some(record) = self.table.record_mut(at) else {
            return;
        };
        let retry_at = add_seconds(now, RETRY_INTERVAL.as_secs());
        self.checks.due.insert((retry_at, record.uid.clone()));
        let pending = |(sent, when): &(Value, Timestamp)| {
            same_but_for_times(sent, &status) && now.duration_since(*when) < RETRY_INTERVAL
        };
        if record.pending_status.status.as_ref().is_some_and(pending) {
            return;
        }
        record.pending_status.status = Some((status.clone(), now));
        fx.writes.push(status_write(record, status));
    }

    /// Writes to the conditions of an unplaced Reservation why it is ignored.
    pub(super) fn write_ignored_condition(
        &self,
        object: &Reservation,
        why: &str,
        now: Timestamp,
        fx: &mut Effects,
    ) {
        let status = object.status.as_ref();
        let placed = status.is_some_and(|status| {
            let over = matches!(
                status.phase,
                Some(ReservationPhase::Succeeded | ReservationPhase::Failed)
            );
            over || !status.node_name.is_empty()
        });
        let (Some(name), Some(uid)) = (&object.metadata.name, &object.metadata.uid) else {
            return;
        };
        if placed || !self.is_controller {
            return;
        }
        if let Some(conditions) = unscheduled_conditions(conditions(object), why, now) {
            let status = json!({"conditions": conditions});
            fx.writes.push(status_write_to(name, uid, status));
        }
    }

    /// Writes to the conditions of the Reservation why it was not placed.
    pub(super) fn write_unschedulable_condition(
        &mut self,
        uid: &str,
        message: String,
        now: Timestamp,
        fx: &mut Effects,
    ) {
        let Some(record) = self
            .table
            .find(uid)
            .and_then(|at| self.table.record_mut(at))
        else {
            return;
        };
        if record.pending_status.last_message.as_ref() == Some(&message) {
            return;
        }
        let conditions = unscheduled_conditions(conditions(&record.object), &message, now);
        if let Some(conditions) = conditions {
            record.pending_status.last_message = Some(message);
            let write = status_write(record, json!({"conditions": conditions}));
            fx.writes.push(write);
        }
    }

    /// Deletes reservations that ended long ago, or whose node does not exist.
    fn collect_garbage(&mut self, view: View<'_>, fx: &mut Effects) {
        let keep = SignedDuration::from_secs(self.args.first().gc_duration_seconds);
        let mut any_finished = false;
        for record in self.table.iter().filter(|r| r.terms.phase == Phase::Over) {
            let Some(since) = ended_at(record) else {
                continue;
            };
            let node_missing = record
                .terms
                .node
                .as_ref()
                .is_some_and(|node| !node_exists(view, node));
            any_finished = true;
            if !node_missing && view.now.duration_since(since) <= keep {
                continue;
            }
            fx.writes.push(Write {
                verb: Verb::Delete(record.uid.to_string()),
                ..reservation_write(&record.name)
            });
        }
        self.checks.gc = any_finished
            .then(|| add_seconds(view.now, self.args.first().gc_interval_seconds.max(1)));
    }
}

/// Returns the status of a reservation that is being placed.
pub(super) fn placed_status(node: &str, reserved: &ResourceList, now: Timestamp) -> Value {
    let conditions = [
        condition(
            RESERVATION_CONDITION_SCHEDULED,
            "True",
            RESERVATION_REASON_SCHEDULED,
            now,
        ),
        condition(
            RESERVATION_CONDITION_READY,
            "True",
            RESERVATION_REASON_AVAILABLE,
            now,
        ),
    ];
    json!({
        "phase": ReservationPhase::Available.as_str(),
        "nodeName": node,
        "allocatable": reserved,
        "conditions": conditions,
    })
}

/// Returns the conditions of a reservation that was not placed, with the reason; `None` if they have it
/// already or the reservation was placed.
fn unscheduled_conditions(
    mut conditions: Vec<ReservationCondition>,
    message: &str,
    now: Timestamp,
) -> Option<Vec<ReservationCondition>> {
    let scheduled = |c: &ReservationCondition| c.type_ == RESERVATION_CONDITION_SCHEDULED;
    let existing = conditions.iter().position(scheduled);
    if let Some(at) = existing
        && (conditions[at].status == "True" || conditions[at].message == message)
    {
        return None;
    }
    let mut updated = condition(
        RESERVATION_CONDITION_SCHEDULED,
        "False",
        RESERVATION_REASON_UNSCHEDULABLE,
        now,
    );
    message.clone_into(&mut updated.message);
    match existing {
        Some(at) => {
            let since = conditions[at].last_transition_time.clone();
            conditions[at] = updated;
            conditions[at].last_transition_time = since;
        }
        None => conditions.push(updated),
    }
    Some(conditions)
}

/// Returns a write of `status` to the Reservation.
pub(super) fn status_write(record: &ReservationRecord, status: Value) -> Write {
    status_write_to(&record.name, &record.uid, status)
}

fn status_write_to(name: &str, uid: &str, status: Value) -> Write {
    let mut body = json!({"metadata": {"uid": uid}});
    // Assigned, because the `json!` macro would copy it.
    body["status"] = status;
    Write {
        verb: Verb::PatchStatus(body),
        ..reservation_write(name)
    }
}

/// Returns the write that places the Reservation. It carries the known resourceVersion, so that a Reservation
/// that changed meanwhile, for example by a deletion, is not placed.
pub(super) fn placement_write(record: &ReservationRecord, status: Value) -> Write {
    let mut write = status_write(record, status);
    if let Verb::PatchStatus(body) = &mut write.verb {
        body["metadata"]["resourceVersion"] = json!(record.object.metadata.resource_version);
    }
    write
}

fn reservation_write(name: &str) -> Write {
    Write {
        group: "scheduling.koordinator.sh",
        version: "v1alpha1",
        plural: "reservations",
        namespace: String::new(),
        name: name.to_owned(),
        verb: Verb::Delete(String::new()),
        timed: None,
    }
}

/// Returns the changes of owners and allocated amounts that the status lacks; `None` if it is up to date.
fn usage_status(
    record: &ReservationRecord,
    table: &ReservationTable,
    view: View<'_>,
) -> Option<Value> {
    let status = record.object.status.as_ref()?;
    let mut owners: Vec<ObjectReference> = Vec::new();
    let mut used = koord_model::resources::Amounts::new();
    for owner in table.owners(&record.uid) {
        if owner.confirmed && Some(&owner.node) == record.terms.node.as_ref() {
            used.add_all(&owner.pod.requests);
            owners.push(ObjectReference {
                namespace: Some(owner.pod.namespace.to_string()),
                name: Some(owner.pod.name.to_string()),
                uid: Some(owner.pod.uid.to_string()),
                ..ObjectReference::default()
            });
        }
    }
    owners.sort_unstable_by(|a, b| a.uid.cmp(&b.uid));
    let mut allocated = resource_list(&used, view.resources);
    allocated.retain(|name, _| status.allocatable.contains_key(name));
    let mut current_owners = status.current_owners.clone();
    current_owners.sort_unstable_by(|a, b| a.uid.cmp(&b.uid));
    let uids = |list: &[ObjectReference]| -> Vec<Option<String>> {
        list.iter().map(|owner| owner.uid.clone()).collect()
    };
    if uids(&current_owners) == uids(&owners) && same_amounts(&status.allocated, &allocated) {
        return None;
    }
    // A merge patch keeps what it does not mention, so removed amounts are set to null.
    let mut amounts: Map<String, Value> = status
        .allocated
        .keys()
        .map(|name| (name.clone(), Value::Null))
        .collect();
    for (name, quantity) in &allocated {
        amounts.insert(name.clone(), json!(quantity));
    }
    let unless_empty = |empty: bool, value: Value| if empty { Value::Null } else { value };
    let amounts = unless_empty(allocated.is_empty(), Value::Object(amounts));
    let owners = unless_empty(owners.is_empty(), json!(owners));
    let mut out = json!({});
    out["currentOwners"] = owners;
    out["allocated"] = amounts;
    if record.terms.allocate_once {
        let mut conditions = conditions(&record.object);
        let ready = conditions
            .iter()
            .position(|c| c.type_ == RESERVATION_CONDITION_READY);
        let updated = condition(
            RESERVATION_CONDITION_READY,
            "False",
            RESERVATION_REASON_SUCCEEDED,
            view.now,
        );
        match ready {
            Some(at) => {
                let since = conditions[at].last_transition_time.clone();
                conditions[at] = updated;
                conditions[at].last_transition_time = since;
            }
            None => conditions.push(updated),
        }
        out["phase"] = json!(ReservationPhase::Succeeded.as_str());
        out["conditions"] = json!(conditions);
    }
    Some(out)
}

fn same_amounts(a: &ResourceList, b: &ResourceList) -> bool {
    let equal = |(name, amount): (&String, &Quantity)| {
        b.get(name)
            .is_some_and(|other| other.nanos() == amount.nanos())
    };
    a.len() == b.len() && a.iter().all(equal)
}

/// Returns the status of a reservation that expired or whose node was deleted.
fn expired_status(object: &Reservation, now: Timestamp) -> Value {
    let mut conditions = conditions(object);
    let ready = conditions
        .iter()
        .position(|c| c.type_ == RESERVATION_CONDITION_READY);
    let updated = condition(
        RESERVATION_CONDITION_READY,
        "False",
        RESERVATION_REASON_EXPIRED,
        now,
    );
    match ready {
        Some(at) => {
            let since = conditions[at].last_transition_time.clone();
            let was_ready = conditions[at].status == "True";
            conditions[at] = updated;
            if !was_ready {
                conditions[at].last_transition_time = since;
            }
        }
        None => conditions.push(updated),
    }
    json!({"phase": ReservationPhase::Failed.as_str(), "conditions": conditions})
}

/// Returns when the reservation expires; `None` if never.
fn expiry(record: &ReservationRecord) -> Option<Timestamp> {
    let object = &record.object;
    let ttl = record.ttl.map(koord_api::GoDuration::as_nanos);
    if ttl == Some(0) {
        return None;
    }
    let created = object.metadata.creation_timestamp.as_ref();
    // The creator's clock may be ahead.
    let created = created.map(|time| time.0.min(record.first_seen));
    let by_age = created.zip(ttl).map(|(created, ttl)| {
        created
            .saturating_add(SignedDuration::from_nanos(ttl))
            .unwrap_or(Timestamp::MAX)
    });
    let by_date = object.spec.expires.as_ref().map(|time| time.0);
    by_age.into_iter().chain(by_date).min()
}

/// Returns since when a finished reservation counts as over; `None` if its status lacks the time.
fn ended_at(record: &ReservationRecord) -> Option<Timestamp> {
    let status = record.object.status.as_ref()?;
    let condition_of = |reason: &str| status.conditions.iter().find(|c| c.reason == reason);
    let time = match status.phase.as_ref()? {
        ReservationPhase::Failed => &condition_of(RESERVATION_REASON_EXPIRED)?.last_transition_time,
        ReservationPhase::Succeeded => &condition_of(RESERVATION_REASON_SUCCEEDED)?.last_probe_time,
        _ => return None,
    };
    // Another replica, whose clock is ahead, may have written it.
    let seen_over = record.over.unwrap_or(Timestamp::MAX);
    time.as_ref().map(|time| time.0.min(seen_over))
}

fn conditions(object: &Reservation) -> Vec<ReservationCondition> {
    let status = object.status.as_ref();
    status
        .map(|status| status.conditions.clone())
        .unwrap_or_default()
}

fn condition(kind: &str, status: &str, reason: &str, now: Timestamp) -> ReservationCondition {
    // The API keeps whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
    ReservationCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        last_probe_time: time.clone(),
        last_transition_time: time,
    }
}

fn same_but_for_times(a: &Value, b: &Value) -> bool {
    let strip = |value: &Value| {
        let mut value = value.clone();
        let listed = value.get_mut("conditions").and_then(Value::as_array_mut);
        for condition in listed
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            condition.remove("lastProbeTime");
            condition.remove("lastTransitionTime");
        }
        value
    };
    strip(a) == strip(b)
}

fn node_exists(view: View<'_>, node: &str) -> bool {
    view.nodes
        .find(node)
        .is_some_and(|row| view.nodes.info(row).is_some())
}

fn add_seconds(time: Timestamp, seconds: i64) -> Timestamp {
    time.saturating_add(SignedDuration::from_secs(seconds))
        .unwrap_or(Timestamp::MAX)
}
