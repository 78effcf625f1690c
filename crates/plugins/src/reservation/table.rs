//! The reservations and their owners, kept exact by events in any order.

use super::NAME;
use super::owners::{OwnerListId, OwnerLists};
use super::pod::{Phase, ReservationTerms};
use super::pod_state::{Affinity, MismatchReason, PodReservationState};
use crate::common::allocate_policy::{self, AllocatePolicy};
use jiff::Timestamp;
use koord_api::GoDuration;
use koord_api::extension::AnnotationError;
use koord_api::scheduling::Reservation;
use koord_model::resources::Amounts;
use koord_scheduler::framework::{Effects, Problem, ReportedProblems, View};
use koord_scheduler::state::{NodeIndex, NodeStore, PodInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::sync::Arc;

/// State of one reservation.
#[derive(Debug)]
pub(super) struct ReservationRecord {
    pub(super) object: Arc<Reservation>,
    pub(super) name: Arc<str>,
    pub(super) uid: Arc<str>,
    pub(super) terms: ReservationTerms,
    /// Id of its owner list; `None` if the owners or another part of the spec are invalid.
    pub(super) spec: Option<OwnerListId>,
    /// The node on which its holder pod is booked.
    pub(super) row: Option<NodeIndex>,
    /// The holder pod as it is booked, reduced by what owners have taken.
    pub(super) pod: Arc<PodInfo>,
    /// Sum of the owners' requests.
    pub(super) taken: Amounts,
    /// Number of owners.
    pub(super) owner_count: i64,
    /// The last status this process wrote, until the informer delivers it.
    pub(super) pending_status: super::control::PendingStatus,
    /// The last valid `spec.ttl`.
    pub(super) ttl: Option<GoDuration>,
    /// Time at which this process first observed the reservation. It was created no later, even if the
    /// creator's clock is ahead.
    pub(super) first_seen: Timestamp,
    /// Time at which this process first observed that the reservation is over.
    pub(super) over: Option<Timestamp>,
}

impl ReservationRecord {
    /// Returns true if pods may use the reservation now.
    pub(super) fn is_matchable(&self) -> bool {
        self.terms.phase == Phase::Available
            && self.spec.is_some()
            && !(self.terms.allocate_once && self.owner_count > 0)
    }

    /// Returns true if the reservation is not placed and may still be.
    pub(super) fn is_pending(&self) -> bool {
        self.terms.phase == Phase::Pending
    }

    /// Returns the amounts that the owners request of the reservation's restricted resources. If all of its
    /// resources are restricted, the owners' requests for resources that it does not have are included.
    pub(super) fn allocated(&self) -> Cow<'_, Amounts> {
        if self.terms.resources.len() >= self.terms.allocatable.iter().count() {
            return Cow::Borrowed(&self.taken);
        }
        let listed = |(id, _): &(_, i64)| self.terms.resources.contains(id);
        Cow::Owned(self.taken.iter().filter(listed).collect())
    }
}

/// The fields of a reservation that decide most checks, stored contiguously per node.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReservationSlot {
    index: u32,
    /// Id of its owner list while it is open to owners, else 0.
    spec: OwnerListId,
    /// True if it is unschedulable, so that only pods which tolerate that or name it may use it.
    closed: bool,
}

/// A pod that uses a reservation.
#[derive(Debug)]
pub(super) struct OwnerPod {
    pub(super) pod: Arc<PodInfo>,
    pub(super) node: Arc<str>,
    /// True if the pod's annotation in the API names the reservation; false if this is only assumed.
    pub(super) confirmed: bool,
    /// True if the pod already ran when the reservation was placed over it.
    pub(super) pre_allocated: bool,
}

/// All reservations and their owners, with indexes.
#[derive(Debug, Default)]
pub(super) struct ReservationTable {
    records: Vec<Option<ReservationRecord>>,
    free: Vec<u32>,
    by_uid: FxHashMap<Arc<str>, u32>,
    by_name: FxHashMap<Arc<str>, u32>,
    /// The reservations booked on each node, by node index.
    by_row: Vec<Vec<ReservationSlot>>,
    /// Owners by uid of the reservation, which may not exist yet or no longer, then by uid of the pod.
    owners: FxHashMap<Arc<str>, FxHashMap<Arc<str>, OwnerPod>>,
    owner_of: FxHashMap<Arc<str>, Arc<str>>,
    /// Pods on the node of a reservation that is being placed, by its uid, that an earlier attempt annotated
    /// and this attempt does not absorb.
    pub(super) stale_annotated: FxHashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    owner_lists: OwnerLists,
    /// Reservations, by uid, whose status may have to be written.
    pub(super) dirty: FxHashSet<Arc<str>>,
    reported: ReportedProblems,
}

impl ReservationTable {
    /// Returns the index of the reservation with this uid.
    pub(super) fn find(&self, uid: &str) -> Option<u32> {
        self.by_uid.get(uid).copied()
    }

    /// Returns the reservation with this name.
    pub(super) fn find_by_name(&self, name: &str) -> Option<&ReservationRecord> {
        self.record(*self.by_name.get(name)?)
    }

    /// Returns the reservation at `index`.
    pub(super) fn record(&self, index: u32) -> Option<&ReservationRecord> {
        self.records.get(index as usize)?.as_ref()
    }

    /// Returns the reservation at `index`.
    pub(super) fn record_mut(&mut self, index: u32) -> Option<&mut ReservationRecord> {
        self.records.get_mut(index as usize)?.as_mut()
    }

    /// Returns all reservations.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ReservationRecord> {
        self.records.iter().flatten()
    }

    /// Returns the reservations booked on `node`.
    pub(super) fn on_node(
        &self,
        node: NodeIndex,
    ) -> impl Iterator<Item = (u32, &ReservationRecord)> {
        let listed = self.by_row.get(node.row()).into_iter().flatten();
        listed.filter_map(|slot| Some((slot.index, self.record(slot.index)?)))
    }

    /// Returns the reservations on `node` that `pod` may use now.
    pub(super) fn usable<'a>(
        &'a self,
        pod: &PodInfo,
        pod_state: &PodReservationState,
        node: NodeIndex,
        view: View<'_>,
        node_labels: bool,
    ) -> Vec<(u32, &'a ReservationRecord)> {
        let mut out = Vec::new();
        for slot in self.by_row.get(node.row()).into_iter().flatten() {
            if slot.spec == 0 || !(pod_state.ignores || pod_state.owner_of.contains(&slot.spec)) {
                continue;
            }
            // For most pods the owner list and this flag are all that matters.
            if pod_state.is_simple() && slot.closed && !pod_state.ignores {
                continue;
            }
            let Some(record) = self.record(slot.index) else {
                continue;
            };
            let usable = pod_state.ignores
                || pod_state.is_simple()
                || self
                    .check(pod, pod_state, record, view.nodes, node_labels)
                    .is_ok();
            if usable {
                out.push((slot.index, record));
            }
        }
        out
    }

    /// Updates the slot of a reservation from its record.
    fn update_slot(&mut self, index: u32) {
        let Some(record) = self.record(index) else {
            return;
        };
        let Some(row) = record.row else { return };
        let updated = ReservationSlot {
            index,
            spec: record.spec.filter(|_| record.is_matchable()).unwrap_or(0),
            closed: record.terms.unschedulable,
        };
        let listed = self.by_row.get_mut(row.row()).into_iter().flatten();
        for slot in listed.filter(|slot| slot.index == index) {
            *slot = updated;
        }
    }

    /// Returns the owners of the reservation with this uid, on any node.
    pub(super) fn owners(&self, uid: &str) -> impl Iterator<Item = &OwnerPod> {
        self.owners.get(uid).into_iter().flat_map(FxHashMap::values)
    }

    /// Returns the uid of the reservation that the pod with this uid uses.
    pub(super) fn used_by(&self, pod: &str) -> Option<&Arc<str>> {
        self.owner_of.get(pod)
    }

    /// Returns the pods on `node` whose annotation in the API names the reservation with this uid.
    pub(super) fn confirmed_on(
        &self,
        uid: &str,
        node: &str,
    ) -> impl Iterator<Item = &Arc<PodInfo>> {
        let owners = self.owners(uid);
        owners
            .filter(move |owner| owner.confirmed && *owner.node == *node)
            .map(|owner| &owner.pod)
    }

    /// Returns true if the annotation of `pod` in the API names the reservation with this uid.
    pub(super) fn is_confirmed(&self, uid: &str, pod: &str) -> bool {
        let owner = self.owners.get(uid).and_then(|all| all.get(pod));
        owner.is_some_and(|owner| owner.confirmed)
    }

    /// Returns true if a pod on `node` names the reservation with this uid only because of a placement that
    /// failed: the reservation does not exist, or will never be on that node.
    pub(super) fn is_stale_reference(&self, uid: &str, node: &str) -> bool {
        let Some(record) = self.find(uid).and_then(|index| self.record(index)) else {
            return true;
        };
        !record.is_pending() && record.terms.node.as_deref() != Some(node)
    }

    /// Returns the uid of the reservation that is being placed over the pod with this uid.
    fn pre_allocated_by(&self, pod: &str) -> Option<Arc<str>> {
        let uid = self.used_by(pod)?;
        let owner = self.owners.get(uid)?.get(pod)?;
        (owner.pre_allocated && !owner.confirmed).then(|| uid.clone())
    }

    /// Returns the ids of the owner lists that `pod` matches.
    pub(super) fn matching_lists(&self, pod: &PodInfo) -> Vec<OwnerListId> {
        self.owner_lists.matching_lists(pod)
    }

    /// Returns the open reservations, on any node, whose owner lists the pod of `pod_state` matches.
    pub(super) fn owned_reservations<'a>(
        &'a self,
        pod_state: &'a PodReservationState,
    ) -> impl Iterator<Item = &'a ReservationRecord> {
        let lists = pod_state.owner_of.iter();
        lists
            .flat_map(|id| self.owner_lists.reservations(*id))
            .filter_map(|index| self.record(index))
            .filter(|record| record.is_matchable() && record.row.is_some())
    }

    /// Checks whether `pod` may use `record`.
    pub(super) fn check(
        &self,
        pod: &PodInfo,
        pod_state: &PodReservationState,
        record: &ReservationRecord,
        nodes: &NodeStore,
        node_labels: bool,
    ) -> Result<(), MismatchReason> {
        let owner = record
            .spec
            .is_some_and(|spec| pod_state.owner_of.contains(&spec));
        if !owner {
            return Err(MismatchReason::Owner);
        }
        let node = record
            .row
            .filter(|_| node_labels)
            .and_then(|row| nodes.info(row));
        pod_state.check(pod, &record.name, &record.terms, node.map(|info| &**info))
    }

    /// Returns the node of the reservation that the affinity names.
    pub(super) fn affinity_node(&self, affinity: &Affinity) -> Option<NodeIndex> {
        self.find_by_name(affinity.name.as_deref()?)?.row
    }

    /// Applies a Reservation that appeared or changed. Returns the reason if it is ignored.
    pub(super) fn apply(
        &mut self,
        object: Arc<Reservation>,
        view: View<'_>,
        fx: &mut Effects,
    ) -> Option<String> {
        let meta = &object.metadata;
        let (Some(name), Some(uid)) = (meta.name.as_deref(), meta.uid.as_deref()) else {
            return None;
        };
        let problem = |message: String| Problem {
            kind: "Reservation",
            namespace: String::new(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            message,
        };
        // A Reservation may be deleted and created again under its name between two events.
        let stale = self
            .find_by_name(name)
            .filter(|old| *old.uid != *uid)
            .map(|old| old.uid.clone());
        if let Some(stale) = stale {
            self.reported.remove(&stale);
            self.delete(&stale, fx);
        }
        let existing = self.find(uid);
        let terms = match ReservationTerms::new(&object, view.resources) {
            Ok(terms) => terms,
            Err(error) => {
                let why = format!("the reservation is ignored: {error}");
                // A placed reservation stays booked as it was.
                let placed = |index| self.record(index).is_some_and(|r| r.terms.node.is_some());
                if !existing.is_some_and(placed) {
                    self.delete(uid, fx);
                }
                self.reported.update(uid, vec![problem(why.clone())], fx);
                return Some(why);
            }
        };
        let index = existing.unwrap_or_else(|| {
            self.free.pop().unwrap_or_else(|| {
                self.records.push(None);
                u32::try_from(self.records.len() - 1).unwrap_or(u32::MAX)
            })
        });
        let old = self.records.get_mut(index as usize).and_then(Option::take);
        let added = match &terms.error {
            None => self.owner_lists.add(&object.spec.owners, index),
            Some(error) => Err(error.clone()),
        };
        // Removed only after the new list was looked up, so that an unchanged list keeps its id.
        if let Some(spec) = old.as_ref().and_then(|old| old.spec)
            && added != Ok(spec)
        {
            self.owner_lists.remove(spec, index);
        }
        let mut problems = Vec::new();
        let spec = match added {
            Ok(spec) => Some(spec),
            Err(reason) => {
                problems.push(problem(format!("no pod can use the reservation: {reason}")));
                None
            }
        };
        problems.extend(terms.ignored.iter().cloned().map(problem));
        self.reported.update(uid, problems, fx);
        let old_phase = old.as_ref().map(|old| old.terms.phase);
        let uid: Arc<str> = uid.into();
        let row = old.as_ref().and_then(|old| old.row);
        let valid = |ttl: &GoDuration| *ttl >= GoDuration::ZERO;
        let last = || old.as_ref().and_then(|old| old.ttl);
        let over = old.as_ref().and_then(|old| old.over).unwrap_or(view.now);
        let mut record = ReservationRecord {
            ttl: object
                .spec
                .ttl
                .filter(valid)
                .or_else(|| object.spec.ttl.and_then(|_| last())),
            first_seen: old.as_ref().map_or(view.now, |old| old.first_seen),
            over: (terms.phase == Phase::Over).then_some(over),
            name: name.into(),
            uid: uid.clone(),
            spec,
            row,
            pod: Arc::new(terms.pod.clone()),
            taken: Amounts::new(),
            owner_count: 0,
            pending_status: old.map(|old| old.pending_status).unwrap_or_default(),
            object,
            terms,
        };
        if let Some(node) = &record.terms.node {
            for owner in self
                .owners
                .get(&uid)
                .into_iter()
                .flat_map(FxHashMap::values)
            {
                if owner.node == *node {
                    record.taken.add_all(&owner.pod.requests);
                    record.owner_count += 1;
                }
            }
        }
        self.by_uid.insert(uid.clone(), index);
        self.by_name.insert(record.name.clone(), index);
        let placed = |phase| matches!(phase, Phase::Available | Phase::Waiting);
        match record.terms.phase {
            Phase::Over => fx.remove.push(uid.clone()),
            Phase::Pending => {
                if old_phase.is_some_and(placed) {
                    fx.remove.push(uid.clone());
                }
                fx.apply.push(record.pod.clone());
            }
            Phase::Available | Phase::Waiting => {
                record.pod = Arc::new(record.terms.reduced_pod(&record.taken));
                fx.apply.push(record.pod.clone());
            }
        }
        fx.touched.extend(row);
        self.dirty.insert(uid);
        if let Some(slot) = self.records.get_mut(index as usize) {
            *slot = Some(record);
        }
        self.update_slot(index);
        None
    }

    /// Drops the reported problems of a Reservation that was deleted.
    pub(super) fn clear_problems(&mut self, uid: &str) {
        self.reported.remove(uid);
    }

    /// Removes a Reservation that was deleted or became invalid.
    pub(super) fn delete(&mut self, uid: &str, fx: &mut Effects) {
        let Some(index) = self.by_uid.remove(uid) else {
            return;
        };
        let Some(record) = self.records.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        if let Some(spec) = record.spec {
            self.owner_lists.remove(spec, index);
        }
        if self.by_name.get(&record.name) == Some(&index) {
            self.by_name.remove(&record.name);
        }
        if let Some(row) = record.row {
            self.remove_from_node(index, row);
            fx.touched.push(row);
        }
        self.dirty.remove(uid);
        self.stale_annotated.remove(uid);
        self.free.push(index);
        fx.remove.push(record.uid);
    }

    /// Records the node on which a reservation's holder was booked.
    pub(super) fn set_node(&mut self, uid: &str, node: NodeIndex) {
        let Some(index) = self.find(uid) else { return };
        if let Some(old) = self.record(index).and_then(|record| record.row) {
            self.remove_from_node(index, old);
        }
        if let Some(record) = self.record_mut(index) {
            record.row = Some(node);
        }
        if self.by_row.len() <= node.row() {
            self.by_row.resize_with(node.row() + 1, Vec::new);
        }
        self.by_row[node.row()].push(ReservationSlot {
            index,
            spec: 0,
            closed: false,
        });
        self.update_slot(index);
        self.dirty.insert(uid.into());
    }

    /// Records that the holder was removed from its node.
    pub(super) fn clear_node(&mut self, uid: &str, node: NodeIndex) {
        let Some(index) = self.find(uid) else { return };
        self.remove_from_node(index, node);
        if let Some(record) = self.record_mut(index) {
            record.row = None;
        }
    }

    fn remove_from_node(&mut self, index: u32, row: NodeIndex) {
        if let Some(listed) = self.by_row.get_mut(row.row()) {
            listed.retain(|slot| slot.index != index);
        }
    }

    /// Records that a pod uses the reservation with this uid.
    pub(super) fn add_owner(&mut self, uid: &str, owner: OwnerPod, fx: &mut Effects) {
        let pod = owner.pod.uid.clone();
        if let Some(old) = self.owner_of.get(&pod).cloned()
            && *old == *uid
            && let Some(existing) = self.owners.get_mut(&old).and_then(|all| all.get_mut(&pod))
            && existing.node == owner.node
            && existing.pod.requests == owner.pod.requests
        {
            if existing.confirmed != owner.confirmed {
                self.dirty.insert(old);
            }
            *existing = owner;
            return;
        }
        self.remove_owner(&pod, fx);
        let uid: Arc<str> = uid.into();
        let (node, requests) = (owner.node.clone(), owner.pod.requests.clone());
        self.owner_of.insert(pod.clone(), uid.clone());
        self.owners
            .entry(uid.clone())
            .or_default()
            .insert(pod, owner);
        self.change_usage(&uid, &node, &requests, 1, fx);
    }

    /// Records that the pod with this uid uses no reservation, or was deleted.
    pub(super) fn remove_owner(&mut self, pod: &str, fx: &mut Effects) {
        let Some(uid) = self.owner_of.remove(pod) else {
            return;
        };
        let Some(all) = self.owners.get_mut(&uid) else {
            return;
        };
        let owner = all.remove(pod);
        if all.is_empty() {
            self.owners.remove(&uid);
        }
        if let Some(owner) = owner {
            self.change_usage(&uid, &owner.node, &owner.pod.requests, -1, fx);
        }
    }

    /// Adds or subtracts the requests of an owner on `node` to the reservation's usage.
    fn change_usage(
        &mut self,
        uid: &Arc<str>,
        node: &Arc<str>,
        requests: &Amounts,
        sign: i64,
        fx: &mut Effects,
    ) {
        let Some(index) = self.find(uid) else { return };
        let Some(record) = self.record_mut(index) else {
            return;
        };
        if record.terms.node.as_ref() != Some(node) {
            return;
        }
        record.owner_count += sign;
        if sign > 0 {
            record.taken.add_all(requests);
        } else {
            record.taken.sub_all(requests);
        }
        if record.terms.phase == Phase::Available {
            record.pod = Arc::new(record.terms.reduced_pod(&record.taken));
            fx.apply.push(record.pod.clone());
            // It may have opened or closed to other pods even if its own amounts did not change.
            fx.touched.extend(record.row);
        }
        self.update_slot(index);
        self.dirty.insert(uid.clone());
    }

    /// Records the reservation that a pod on `node` uses according to its annotation in the API.
    pub(super) fn observe(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        let name = view.nodes.name(node);
        let owner = |pre_allocated: bool| OwnerPod {
            pod: pod.clone(),
            node: name.clone(),
            confirmed: !pre_allocated,
            pre_allocated,
        };
        match allocate_policy::allocated(pod) {
            Ok(allocated) => {
                let named_uid = allocated.map(|allocated| allocated.uid.clone());
                // Until the pod's annotation is updated, it is missing or names a failed placement.
                let counts = named_uid
                    .as_ref()
                    .is_some_and(|uid| !self.is_stale_reference(uid, name));
                let pre_allocated_uid = self.pre_allocated_by(&pod.uid).filter(|_| !counts);
                match (pre_allocated_uid, named_uid) {
                    (Some(uid), _) => self.add_owner(&uid, owner(true), fx),
                    (None, Some(uid)) => self.add_owner(&uid, owner(false), fx),
                    (None, None) => self.remove_owner(&pod.uid, fx),
                }
            }
            Err(error) => {
                let AnnotationError {
                    key,
                    value,
                    problem,
                } = error;
                fx.problems.push(Problem {
                    kind: "Pod",
                    namespace: pod.namespace.to_string(),
                    name: pod.name.to_string(),
                    uid: pod.uid.to_string(),
                    message: format!("{NAME}: annotation {key} is ignored: {problem}: {value:?}"),
                });
                self.remove_owner(&pod.uid, fx);
            }
        }
    }

    /// Returns true if a reservation of `policy` may be placed next to those on `node`: the default policy
    /// does not mix with others.
    pub(super) fn is_policy_compatible(
        &self,
        policy: AllocatePolicy,
        node: NodeIndex,
        view: View<'_>,
    ) -> bool {
        self.on_node(node)
            .filter(|(_, record)| record.is_matchable())
            .map(|(_, record)| allocate_policy::policy(view, &record.uid))
            .all(|other| {
                other == policy
                    || (other != AllocatePolicy::Default && policy != AllocatePolicy::Default)
            })
    }
}
