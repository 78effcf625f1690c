//! Fit of a pod on a node with one of its reservations, or without.

use super::args::Args;
use super::pod_state::{MismatchReason, PodReservationState};
use super::table::{ReservationRecord, ReservationTable};
use crate::common::allocate_policy::is_restricted;
use koord_model::reservation::Restricted;
use koord_model::resources::{
    Amounts, CPU, EPHEMERAL_STORAGE, MEMORY, PODS, ResourceId, ResourceTable,
};
use koord_scheduler::framework::{Code, Cycle, Reason, Reasons, Rejection, Verdict};
use koord_scheduler::state::NodeIndex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

pub(super) const NO_MATCH: &str = "node(s) no reservations match reservation affinity";
const NOTHING_MEETS: &str = "node(s) no reservation(s) to meet the requirements";
const NOT_BY_PREEMPTION: &str = "node(s) preemption failed due to insufficient resources";
/// The engine's text for nodes that a plugin excluded in PreFilter.
const OUTSIDE: &str = "node(s) didn't satisfy plugin(s) [Reservation]";

/// A node as seen by one pod, with the reservations that the pod may use.
pub(super) struct NodeFit<'a> {
    pub(super) table: &'a ReservationTable,
    pub(super) args: &'a Args,
    pub(super) cycle: &'a Cycle<'a>,
    pub(super) pod_state: &'a PodReservationState,
    pub(super) node: NodeIndex,
    /// The reservations on the node that the pod may use.
    pub(super) matched: Vec<(u32, &'a ReservationRecord)>,
    /// Resources and number of the pods that are assumed evicted and own reservations on this node, by
    /// reservation.
    victims: FxHashMap<u32, (Amounts, i64)>,
}

impl<'a> NodeFit<'a> {
    /// Collects the usable reservations of the node and the assumed victims in them.
    pub(super) fn new(
        table: &'a ReservationTable,
        args: &'a Args,
        cycle: &'a Cycle<'a>,
        pod_state: &'a PodReservationState,
        node: NodeIndex,
        node_labels: bool,
    ) -> Self {
        let matched = if pod_state.is_plain() {
            Vec::new()
        } else {
            table.usable(cycle.pod, pod_state, node, cycle.view, node_labels)
        };
        let mut victims: FxHashMap<u32, (Amounts, i64)> = FxHashMap::default();
        for pod in cycle.overlay.removed.iter().filter(|pod| !pod.is_holder()) {
            if let Some(index) = table.used_by(&pod.uid).and_then(|uid| table.find(uid))
                && table
                    .record(index)
                    .is_some_and(|record| record.row == Some(node))
            {
                let (amounts, pods) = victims.entry(index).or_default();
                amounts.add_all(&pod.requests);
                *pods += 1;
            }
        }
        Self {
            table,
            args,
            cycle,
            pod_state,
            node,
            matched,
            victims,
        }
    }

    /// Checks whether the pod may run here, with or without a reservation.
    pub(super) fn verdict(&self) -> Verdict {
        let required = self.pod_state.affinity.is_some();
        if self.matched.is_empty() {
            if required {
                return Err(Rejection::unresolvable(OUTSIDE));
            }
            // Evicting owners frees nothing for others: their resources return to the reservation.
            if !self.victims.is_empty() && !self.node_shortage(None).is_empty() {
                return Err(Rejection::unschedulable(NOT_BY_PREEMPTION));
            }
            return Ok(());
        }
        // The node's own fit check already counted all reservations as removed.
        if self.pod_state.ignores {
            return Ok(());
        }
        let mut by_node: Vec<ResourceId> = Vec::new();
        let mut by_reservation: Vec<Reason> = Vec::new();
        for (index, record) in &self.matched {
            let Some((node, reservation)) = self.check_reservation(*index, record) else {
                continue;
            };
            if node.is_empty() && reservation.is_empty() {
                return Ok(());
            }
            by_node.extend(node);
            by_reservation.extend(reservation);
        }
        if by_node.is_empty() && !required {
            by_node = self.node_shortage(None);
            by_reservation.clear();
        } else if !required {
            // A shortage with a reservation also exists without one.
            by_reservation.clear();
        }
        let mut reasons = self.node_reasons(&by_node);
        reasons.extend(by_reservation);
        if reasons.is_empty() {
            if !required {
                return Ok(());
            }
            reasons.push(NOTHING_MEETS.into());
        }
        Err(Rejection {
            code: Code::Unschedulable,
            reasons: Reasons::Many(reasons.into()),
        })
    }

    /// Returns the reasons why the node's resources do not suffice: those of the node's own fit check with
    /// all reservations of the pod removed, else those of this plugin.
    pub(super) fn rejection_reasons(&self) -> Vec<Reason> {
        let table = self.cycle.view.resources;
        let outright = self.node_shortage_without(&self.matched);
        if outright.is_empty() {
            let verdict = self.verdict();
            return verdict
                .err()
                .map(|rejection| rejection.reasons.as_slice().to_vec())
                .unwrap_or_default();
        }
        let reason = |id: &ResourceId| match *id {
            PODS => Reason::Static("Too many pods"),
            id => Reason::from(format!("Insufficient {}", table.name(id))),
        };
        outright.iter().map(reason).collect()
    }

    /// Returns the reservation that the pod would use.
    pub(super) fn nominee(&self) -> Option<(u32, &'a ReservationRecord)> {
        if self.pod_state.ignores {
            return None;
        }
        if let [only] = self.matched[..]
            && self.pod_state.affinity.is_some()
        {
            return Some(only);
        }
        let fits = |(index, record): &&(u32, &'a ReservationRecord)| {
            self.check_reservation(*index, record)
                .is_some_and(|(node, reservation)| node.is_empty() && reservation.is_empty())
        };
        let all: Vec<_> = self.matched.iter().filter(fits).collect();
        // A reservation that holds resources is preferred.
        let any_holds = all.iter().any(|(_, record)| !record.terms.is_empty());
        let fitting = || {
            let all = all.iter().copied();
            all.filter(move |(_, record)| !any_holds || !record.terms.is_empty())
        };
        let ordered = fitting()
            .filter_map(|candidate| Some((candidate.1.terms.order?, candidate)))
            .min_by_key(|(order, (_, record))| (*order, record.name.clone()));
        if let Some((_, candidate)) = ordered {
            return Some(*candidate);
        }
        let mut best: Option<(i64, &(u32, &'a ReservationRecord))> = None;
        for candidate in fitting() {
            let score = self.score(candidate.0, candidate.1);
            let better = best.is_none_or(|(other, (_, record))| {
                score > other || (score == other && candidate.1.name < record.name)
            });
            if better {
                best = Some((score, candidate));
            }
        }
        best.map(|(_, candidate)| *candidate)
    }

    /// Returns how full `record` gets with the pod in it.
    pub(super) fn score(&self, index: u32, record: &ReservationRecord) -> i64 {
        let mut allocated = record.allocated();
        if let Some((victims, _)) = self.victims.get(&index) {
            let allocated = allocated.to_mut();
            for (id, amount) in victims.iter() {
                allocated.set(id, allocated.get(id).saturating_sub(amount).max(0));
            }
        }
        let requests = &self.cycle.pod.requests;
        koord_model::reservation::score(&record.terms.allocatable, &allocated, requests)
    }

    /// Returns the shortages of the node and of the reservation for the pod in `record`; `None` if the pod
    /// requests no resource of the reservation. A reservation of nothing is open to every owner: a job that
    /// moves a pod without requests waits for an owner of such a one.
    fn check_reservation(
        &self,
        index: u32,
        record: &ReservationRecord,
    ) -> Option<(Vec<ResourceId>, Vec<Reason>)> {
        let requests = &self.cycle.pod.requests;
        let concerns = record
            .terms
            .resources
            .iter()
            .any(|id| requests.contains(*id));
        if self.pod_state.affinity.is_none() && !concerns && !record.terms.is_empty() {
            return None;
        }
        let lacks = self.node_shortage(Some((index, record)));
        let mut reasons = Vec::new();
        if is_restricted(self.cycle.view, &record.uid) {
            let mut allocated = record.allocated();
            let mut pods = record.owner_count;
            if let Some((victims, victim_count)) = self.victims.get(&index) {
                allocated.to_mut().sub_all(victims);
                pods -= victim_count;
            }
            let table = self.cycle.view.resources;
            let resources: Vec<ResourceId> = record
                .terms
                .resources
                .iter()
                .copied()
                .filter(|id| !self.args.ignores(*id, table))
                .collect();
            let restricted = Restricted {
                allocatable: &record.terms.allocatable,
                reserved: &record.terms.reserved,
                allocated: &allocated,
                resources: &resources,
                pods,
            };
            let named = self
                .pod_state
                .affinity
                .as_ref()
                .is_some_and(|a| a.name.is_some());
            for shortage in restricted.shortages(requests) {
                let shortage_text = match shortage.resource {
                    PODS => "Too many pods".to_owned(),
                    id => format!("Insufficient {}", table.name(id)),
                };
                reasons.push(Reason::from(if named {
                    let (requested, used) = (shortage.requested, shortage.used);
                    let capacity = shortage.capacity;
                    format!(
                        "Reservation(s) {shortage_text}, requested: {requested}, used: {used}, capacity: {capacity}"
                    )
                } else {
                    format!("Reservation(s) {shortage_text}")
                }));
            }
        }
        Some((lacks, reasons))
    }

    /// Returns the resources that the node is short of if the pod uses this reservation, or none.
    fn node_shortage(&self, with: Option<(u32, &'a ReservationRecord)>) -> Vec<ResourceId> {
        self.node_shortage_without(with.as_slice())
    }

    /// Returns the resources that the node is short of if the reservations `released` are released.
    fn node_shortage_without(&self, released: &[(u32, &ReservationRecord)]) -> Vec<ResourceId> {
        let Self { cycle, node, .. } = self;
        let nodes = cycle.view.nodes;
        // The cycle counts all the pod's reservations as removed. They are added back, except for `released`.
        let mut stand_ins = 0;
        for pod in cycle.overlay.removed {
            stand_ins += i64::from(pod.is_holder());
        }
        let open = |index: u32, record: &ReservationRecord, id: ResourceId| {
            let remaining = self.remaining(index, record, id);
            remaining
                .saturating_sub(record.terms.reserved.get(id))
                .max(0)
        };
        let free = |id: ResourceId| {
            let mut used = cycle.requested(*node, id);
            for pod in cycle.overlay.removed {
                if pod.is_holder() {
                    used = used.saturating_add(pod.requests.get(id));
                }
            }
            for index in self.victims.keys() {
                if let Some(record) = self.table.record(*index) {
                    let grows = self.remaining(*index, record, id) - record.pod.requests.get(id);
                    used = used.saturating_add(grows);
                }
            }
            for (index, record) in released {
                used = used.saturating_sub(open(*index, record, id));
            }
            nodes.allocatable(*node, id).saturating_sub(used)
        };
        let mut out = Vec::new();
        let matched = i64::try_from(self.matched.len()).unwrap_or(i64::MAX);
        let other_pods = cycle.requested(*node, PODS) + stand_ins - matched;
        if other_pods + 1 > nodes.allocatable(*node, PODS) {
            out.push(PODS);
        }
        let requests = &cycle.pod.requests;
        if requests.iter().all(|(_, amount)| amount == 0) {
            return out;
        }
        let native = [CPU, MEMORY, EPHEMERAL_STORAGE];
        out.extend(
            native
                .into_iter()
                .filter(|id| requests.get(*id) > free(*id)),
        );
        let scalar = |(id, amount): &(ResourceId, i64)| {
            !native.contains(id)
                && *id != PODS
                && !self.args.ignores(*id, cycle.view.resources)
                && *amount > free(*id)
        };
        out.extend(requests.iter().filter(scalar).map(|(id, _)| id));
        out
    }

    /// Returns what `record` holds of a resource once its assumed victims are gone.
    fn remaining(&self, index: u32, record: &ReservationRecord, id: ResourceId) -> i64 {
        let all = record.terms.pod.requests.get(id);
        match self.victims.get(&index) {
            None => record.pod.requests.get(id),
            Some((victims, _)) => {
                let used = record.taken.get(id).saturating_sub(victims.get(id));
                all.saturating_sub(used).max(0)
            }
        }
    }

    fn node_reasons(&self, lacking: &[ResourceId]) -> Vec<Reason> {
        node_reasons(self.cycle.view.resources, lacking)
    }
}

/// Returns this plugin's reasons for the resources that the node is short of.
pub(super) fn node_reasons(table: &ResourceTable, lacking: &[ResourceId]) -> Vec<Reason> {
    let mut names: Vec<Arc<str>> = lacking.iter().map(|id| table.name(*id)).collect();
    names.sort_unstable();
    names.dedup();
    names
        .iter()
        .map(|name| Reason::from(format!("Insufficient {name} by node")))
        .collect()
}

/// Counts of reservations by their relation to a pod that fits no node.
#[derive(Debug, Default)]
pub(super) struct ReservationCounts {
    owned: usize,
    named: usize,
    mismatches: std::collections::BTreeMap<MismatchReason, usize>,
    node_reasons: std::collections::BTreeMap<String, usize>,
}

impl ReservationCounts {
    /// Counts one reservation that the pod owns.
    pub(super) fn add(
        &mut self,
        pod_state: &PodReservationState,
        checked: Result<(), MismatchReason>,
    ) {
        self.owned += 1;
        if matches!(checked, Ok(()) | Err(MismatchReason::Exact)) {
            self.named += usize::from(
                pod_state
                    .affinity
                    .as_ref()
                    .is_some_and(|a| a.name.is_some()),
            );
        }
        if let Err(why) = checked {
            *self.mismatches.entry(why).or_default() += 1;
        }
    }

    /// Counts the node's reasons against `usable` reservations on it.
    pub(super) fn add_rejected(&mut self, usable: usize, reasons: &[Reason]) {
        let own = |reason: &&Reason| reason.as_str().starts_with("Reservation(s) ");
        let remaining = usable.saturating_sub(reasons.iter().filter(own).count());
        for reason in reasons.iter().filter(|reason| !own(reason)) {
            if remaining > 0 {
                *self.node_reasons.entry(reason.to_string()).or_default() += remaining;
            }
        }
    }

    /// Returns the text for the pod's condition; empty if reservations do not concern the pod.
    pub(super) fn text(&self, required: bool) -> String {
        if self.owned == 0 && !required {
            return String::new();
        }
        let mut parts = Vec::new();
        let mut part = |count: usize, text: &str| {
            if count > 0 {
                parts.push(format!("{count} Reservation(s) {text}"));
            }
        };
        let count_of = |reason: &MismatchReason| self.mismatches.get(reason).copied().unwrap_or(0);
        part(self.named, "exactly matches the requested reservation name");
        part(
            count_of(&MismatchReason::Name),
            "didn't match the requested reservation name",
        );
        part(
            count_of(&MismatchReason::Affinity),
            "didn't match affinity rules",
        );
        part(count_of(&MismatchReason::Unschedulable), "is unschedulable");
        part(count_of(&MismatchReason::Exact), "is not exact matched");
        for (reason, count) in &self.mismatches {
            if let MismatchReason::Taint(taint) = reason {
                part(*count, &format!("had untolerated taint {taint}"));
            }
        }
        for (reason, count) in &self.node_reasons {
            part(*count, &format!("for node reason that {reason}"));
        }
        parts.push(format!("{} Reservation(s) matched owner total", self.owned));
        parts.join(", ")
    }
}
