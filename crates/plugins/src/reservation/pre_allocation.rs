//! Pre-allocation: placing a reservation over running pods, which then become its owners.
//!
//! The pods that the reservation absorbs count as removed while nodes are evaluated ([`Reservations`]
//! releases them), so that all plugins see the node as if these pods had already moved into the reservation.
//! The set of pods is computed from the same state at every step, so all steps agree on it.

use super::args::Args;
use super::owners::{self, is_owner};
use super::pod_state::{self, MismatchReason, PodReservationState};
use super::pre_allocatable::{PodCriterion, has_true_label};
use super::table::{OwnerPod, ReservationRecord, ReservationTable};
use super::{Reservations, annotation_write};
use crate::common::allocate_policy::{self, is_restricted};
use koord_api::scheduling::PreAllocationMode;
use koord_api::{annotations, labels};
use koord_model::reservation::{Restricted, score};
use koord_model::resources::{Amounts, CPU, EPHEMERAL_STORAGE, MEMORY, PODS, ResourceId};
use koord_scheduler::framework::{
    Code, Cycle, Effects, Reason, Reasons, Rejection, Verdict, View, Write,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) const NO_POD: &str = "node(s) no pod match reservation with pre allocation required";
const NO_POD_MEETS: &str = "node(s) no pod(s) to meet the pre-allocation requirements";
const UNSUPPORTED: &str =
    "node(s) reservation pre allocation is unsupported with current attributes";
const CLUSTER_MODE_OFF: &str = "reservation requires cluster mode pre-allocation which is disabled";

/// The running pods that a reservation may absorb.
#[derive(Debug)]
pub(super) struct PreAllocationCandidates {
    /// True if the reservation must absorb at least one pod.
    required: bool,
    /// Candidate pods by node, in the order in which they are tried.
    by_node: BTreeMap<NodeIndex, Vec<Arc<PodInfo>>>,
}

impl PreAllocationCandidates {
    /// Returns the candidate pods on `node`, in the order in which they are tried.
    pub(super) fn candidates(&self, node: NodeIndex) -> &[Arc<PodInfo>] {
        self.by_node
            .get(&node)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    /// Returns the only feasible nodes if a pod must be absorbed; `None` if any node may do.
    pub(super) fn required_nodes(&self) -> Option<Vec<NodeIndex>> {
        self.required
            .then(|| self.by_node.keys().copied().collect())
    }
}

/// Returns true if the reservation must absorb at least one running pod.
pub(super) fn is_required(pod: &PodInfo) -> bool {
    pod.label(labels::RESERVATION_PRE_ALLOCATION_REQUIRED) == Some("true")
}

fn mode(record: &ReservationRecord) -> PreAllocationMode {
    let policy = record.object.spec.pre_allocation_policy.as_ref();
    policy
        .and_then(|policy| policy.mode.clone())
        .unwrap_or(PreAllocationMode::Default)
}

fn allows_multiple(record: &ReservationRecord) -> bool {
    let policy = record.object.spec.pre_allocation_policy.as_ref();
    policy.and_then(|policy| policy.enable_multiple) == Some(true)
}

/// Returns true if `record` may be placed over running pods.
pub(super) fn is_pre_allocation(record: &ReservationRecord) -> bool {
    record.object.spec.pre_allocation == Some(true)
}

/// Returns true if `record` may be placed over `pod`, apart from the pod's own affinity. A pod that uses
/// another reservation is excluded, and so is one whose reservation annotation is invalid. Annotations left
/// by a failed placement do not count.
fn is_pre_allocatable(
    table: &ReservationTable,
    args: &Args,
    record: &ReservationRecord,
    pod: &PodInfo,
) -> bool {
    let node = pod.node.as_deref().unwrap_or_default();
    let void = |uid: &str| *uid == *record.uid || table.is_stale_reference(uid, node);
    let used = table.used_by(&pod.uid);
    let free = || match pod_state::annotation(pod, annotations::RESERVATION_ALLOCATED) {
        None => used.is_none_or(|uid| *uid == record.uid),
        Some(_) => {
            let allocated = allocate_policy::allocated(pod).ok().flatten();
            allocated.is_some_and(|allocated| void(&allocated.uid))
                && used.is_none_or(|uid| void(uid))
        }
    };
    let chosen = || match mode(record) {
        PreAllocationMode::Cluster => has_true_label(pod, args.pre_allocation_config.label()),
        _ => is_owner(&record.object.spec.owners, pod),
    };
    pod.node.is_some() && !pod.deleting && !pod.is_holder() && chosen() && free()
}

/// Returns the pod's priority in cluster mode; higher is tried first. An invalid annotation counts as 0.
fn priority(args: &Args, pod: &PodInfo) -> i64 {
    let text = pod.annotation(args.pre_allocation_config.priority());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Reservations {
    /// Returns the pods that `record` may be placed over; `None` if it is placed without pre-allocation.
    pub(super) fn pre_allocation_candidates(
        &self,
        cycle: &Cycle<'_>,
        record: &ReservationRecord,
    ) -> Result<Option<PreAllocationCandidates>, Rejection> {
        let required = is_required(cycle.pod);
        if !is_pre_allocation(record) {
            // It must absorb a pod, but is not allowed to.
            return match required {
                true => Err(Rejection::unresolvable(NO_POD)),
                false => Ok(None),
            };
        }
        let args = self.args.for_pod(cycle.pod);
        if !is_restricted(cycle.view, &record.uid) {
            return Err(Rejection::unresolvable(UNSUPPORTED));
        }
        if record.spec.is_none() {
            let reason = record.terms.error.clone();
            let reason = reason.or_else(|| owners::check(&record.object.spec.owners).err());
            return Err(Rejection::unresolvable(reason.unwrap_or_default()));
        }
        if mode(record) == PreAllocationMode::Cluster
            && !args.pre_allocation_config.enable_cluster_mode
        {
            return Err(Rejection::unresolvable(CLUSTER_MODE_OFF));
        }
        debug_assert!(
            self.pre_allocatable.is_exact(record, cycle.view),
            "the index of pre-allocatable pods is exact"
        );
        let mut by_node = BTreeMap::new();
        for node in self.pre_allocatable.nodes(&record.uid, cycle.view) {
            let candidates = self.candidates(args, cycle.view, record, node);
            if !candidates.is_empty() {
                by_node.insert(node, candidates);
            }
        }
        if required && by_node.is_empty() {
            return Err(Rejection::unresolvable(NO_POD));
        }
        Ok(Some(PreAllocationCandidates { required, by_node }))
    }

    /// Returns the pods on `node` that `record` may be placed over, in the order in which they are tried.
    fn candidates(
        &self,
        args: &Args,
        view: View<'_>,
        record: &ReservationRecord,
        node: NodeIndex,
    ) -> Vec<Arc<PodInfo>> {
        let pods = self.pre_allocatable.pods(&record.uid, node, view);
        let mut candidates: Vec<Arc<PodInfo>> = pods
            .filter(|pod| is_pre_allocatable(&self.table, args, record, pod))
            .filter(|pod| self.check_pod(view, record, pod, node).is_ok())
            .cloned()
            .collect();
        match mode(record) {
            PreAllocationMode::Cluster => {
                candidates
                    .sort_by_cached_key(|pod| (Reverse(priority(args, pod)), pod.uid.clone()));
            }
            _ => candidates.sort_by_cached_key(|pod| {
                let names = (pod.namespace.clone(), pod.name.clone());
                (Reverse(fullness(record, pod)), names)
            }),
        }
        candidates
    }

    /// Checks whether the pod's annotations allow `record`. That the reservation is closed to new owners does
    /// not matter.
    fn check_pod(
        &self,
        view: View<'_>,
        record: &ReservationRecord,
        pod: &PodInfo,
        node: NodeIndex,
    ) -> Result<(), MismatchReason> {
        let Ok(pod_state) = PodReservationState::new(pod, Vec::new(), view.resources) else {
            return Err(MismatchReason::Affinity);
        };
        let info = view.nodes.info(node).filter(|_| self.node_labels);
        let info = info.map(|info| &**info);
        pod_state.check_with_unschedulable(pod, &record.name, &record.terms, info, false)
    }

    /// Starts or stops tracking the pods that the reservation with this uid may be placed over, depending on
    /// whether it still is to be placed.
    pub(super) fn update_criterion(&mut self, uid: &str, view: View<'_>) {
        let record = self.table.find(uid).and_then(|at| self.table.record(at));
        let criterion = record.and_then(|record| {
            let list = record.spec?;
            if !is_pre_allocation(record) || !record.is_pending() {
                return None;
            }
            let criterion = match mode(record) {
                PreAllocationMode::Cluster => {
                    let args = self.args.for_pod(&record.terms.pod);
                    PodCriterion::Label(args.pre_allocation_config.label().into())
                }
                _ => PodCriterion::Owners(list),
            };
            Some((criterion, record))
        });
        self.pre_allocatable.set_criterion(uid, criterion, view);
    }

    /// Counts, for the condition, why candidate pods cannot be absorbed by `record`.
    pub(super) fn pre_allocation_counts(
        &self,
        cycle: &Cycle<'_>,
        candidates_by_node: &PreAllocationCandidates,
    ) -> super::ReservationCounts {
        let mut counts = super::ReservationCounts::default();
        let Some(record) = self.record_of(cycle.pod) else {
            return counts;
        };
        let args = self.args.for_pod(cycle.pod);
        // Other plugins report their own rejections.
        let serves = |_: &[Arc<PodInfo>]| true;
        for node in self.pre_allocatable.nodes(&record.uid, cycle.view) {
            let pods = self.pre_allocatable.pods(&record.uid, node, cycle.view);
            for pod in pods.filter(|pod| is_pre_allocatable(&self.table, args, record, pod)) {
                let plain = PodReservationState::default();
                counts.add(&plain, self.check_pod(cycle.view, record, pod, node));
            }
            let candidates = candidates_by_node.candidates(node);
            if !candidates.is_empty()
                && let Err(reasons) = self
                    .selection(cycle, record, candidates_by_node.required, node, candidates)
                    .select(&serves)
            {
                counts.add_rejected(candidates.len(), &reasons);
            }
        }
        counts
    }

    /// Returns the filter's verdict on `node`; `cycle` lists the absorbed pods.
    pub(super) fn filter_pre_allocation(
        &self,
        cycle: &Cycle<'_>,
        candidates_by_node: &PreAllocationCandidates,
        node: NodeIndex,
    ) -> Verdict {
        let Some(record) = self.record_of(cycle.pod) else {
            return Ok(());
        };
        let all = candidates_by_node.candidates(node);
        let is_inside = |pod: &Arc<PodInfo>| {
            cycle
                .absorbed()
                .iter()
                .any(|absorbed| absorbed.uid == pod.uid)
        };
        let stays = |pod: &&Arc<PodInfo>| is_inside(pod) || !cycle.overlay.removes(&pod.uid);
        let remaining: Vec<Arc<PodInfo>>;
        let candidates = match cycle.absorbed {
            // All candidates count as removed here.
            None => all,
            Some(_) => {
                remaining = all.iter().filter(stays).cloned().collect();
                &remaining
            }
        };
        let selection =
            self.selection(cycle, record, candidates_by_node.required, node, candidates);
        // The pods were chosen without the nominated pods that may take precedence.
        if let Some(pods) = cycle.absorbed
            && !(pods.is_empty() && candidates_by_node.required)
            && selection.node_shortage(pods).is_empty()
        {
            return Ok(());
        }
        // If any pod could be absorbed, it would have been.
        let chosen = selection.select(&|_| false);
        chosen.map(drop).map_err(|reasons| Rejection {
            code: Code::Unschedulable,
            reasons: Reasons::Many(reasons.into()),
        })
    }

    /// Returns the pods that the reservation absorbs on `node`, or the reasons why it does not fit. `serves`
    /// checks what other plugins require of the node ([`Release::absorbed_pods`]).
    ///
    /// [`Release::absorbed_pods`]: koord_scheduler::framework::Release::absorbed_pods
    pub(super) fn select_absorbed(
        &self,
        cycle: &Cycle<'_>,
        candidates_by_node: &PreAllocationCandidates,
        node: NodeIndex,
        serves: Serves<'_>,
    ) -> Result<Vec<Arc<PodInfo>>, Vec<Reason>> {
        let Some(record) = self.record_of(cycle.pod) else {
            return Ok(Vec::new());
        };
        // Pods that are evicted anyway are not absorbed.
        let all = candidates_by_node.candidates(node).iter();
        let stay = all.filter(|pod| !cycle.overlay.removes(&pod.uid));
        let candidates: Vec<Arc<PodInfo>> = stay.cloned().collect();
        let selection = self.selection(
            cycle,
            record,
            candidates_by_node.required,
            node,
            &candidates,
        );
        selection.select(serves)
    }

    fn selection<'a>(
        &'a self,
        cycle: &'a Cycle<'a>,
        record: &'a ReservationRecord,
        required: bool,
        node: NodeIndex,
        candidates: &'a [Arc<PodInfo>],
    ) -> AbsorbedPodSelection<'a> {
        AbsorbedPodSelection {
            args: self.args.for_pod(cycle.pod),
            cycle,
            record,
            required,
            node,
            candidates,
        }
    }

    /// Returns the node's score: fewer absorbed pods are better, or a single pod that fills the reservation
    /// best.
    pub(super) fn score_pre_allocation(&self, cycle: &Cycle<'_>) -> i64 {
        let Some(record) = self.record_of(cycle.pod) else {
            return 0;
        };
        if allows_multiple(record) {
            let pods = i64::try_from(cycle.absorbed().len()).unwrap_or(i64::MAX);
            return koord_model::reservation::MAX_SCORE / pods.saturating_add(1);
        }
        let pod = cycle.absorbed().first();
        pod.map_or(0, |pod| fullness(record, pod))
    }

    /// Makes the absorbed pods owners of the reservation, and records the pods that an earlier attempt
    /// annotated and this one does not absorb.
    pub(super) fn add_absorbed_owners(
        &mut self,
        cycle: &Cycle<'_>,
        node: NodeIndex,
        fx: &mut Effects,
    ) {
        let pod = cycle.pod;
        if !self.record_of(pod).is_some_and(is_pre_allocation) {
            return;
        }
        let absorbed_pods = cycle.absorbed();
        let annotated_pods = self
            .table
            .confirmed_on(&pod.uid, cycle.view.nodes.name(node));
        let is_absorbed = |candidate: &PodInfo| {
            absorbed_pods
                .iter()
                .any(|absorbed| *absorbed.uid == *candidate.uid)
        };
        let stale_annotated: Vec<_> = annotated_pods
            .filter(|candidate| !is_absorbed(candidate))
            .cloned()
            .collect();
        if stale_annotated.is_empty() {
            self.table.stale_annotated.remove(&pod.uid);
        } else {
            self.table
                .stale_annotated
                .insert(pod.uid.clone(), stale_annotated);
        }
        for absorbed in absorbed_pods.iter().cloned() {
            // An earlier binding that failed half-way has annotated the pod already.
            if self.table.is_confirmed(&pod.uid, &absorbed.uid) {
                continue;
            }
            let owner = OwnerPod {
                node: cycle.view.nodes.name(node).clone(),
                pod: absorbed,
                confirmed: false,
                pre_allocated: true,
            };
            self.table.add_owner(&pod.uid, owner, fx);
        }
    }

    /// Returns the writes that annotate the absorbed pods, and that remove the annotation from pods of a
    /// failed attempt.
    pub(super) fn absorbed_annotation_writes(&self, record: &ReservationRecord) -> Vec<Write> {
        let absorbed_owners = self
            .table
            .owners(&record.uid)
            .filter(|owner| owner.pre_allocated);
        let Ok(text) = super::allocated_text(record) else {
            return Vec::new();
        };
        let mut writes: Vec<Write> = absorbed_owners
            .map(|owner| annotation_write(&owner.pod, Some(&text)))
            .collect();
        let stale_annotated = self
            .table
            .stale_annotated
            .get(&record.uid)
            .into_iter()
            .flatten();
        writes.extend(stale_annotated.map(|pod| annotation_write(pod, None)));
        writes.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        writes
    }

    /// Undoes [`Self::add_absorbed_owners`] for a reservation that is not placed. Pods whose annotation was
    /// already written stay owners, because a retry finds it there.
    pub(super) fn remove_absorbed_owners(&mut self, uid: &str, fx: &mut Effects) {
        self.table.stale_annotated.remove(uid);
        let assumed = |owner: &&OwnerPod| owner.pre_allocated && !owner.confirmed;
        let assumed_owners: Vec<Arc<str>> = self
            .table
            .owners(uid)
            .filter(assumed)
            .map(|owner| owner.pod.uid.clone())
            .collect();
        for pod in assumed_owners {
            self.table.remove_owner(&pod, fx);
        }
    }

    /// Returns true if the reservation that `holder` stands for may be placed over `pod`.
    pub(super) fn may_absorb(&self, holder: &PodInfo, pod: &PodInfo) -> bool {
        holder.is_holder()
            && self.record_of(holder).is_some_and(|record| {
                is_pre_allocation(record)
                    && is_pre_allocatable(&self.table, self.args.for_pod(holder), record, pod)
            })
    }
}

/// Returns how full the reservation gets with only this pod in it.
fn fullness(record: &ReservationRecord, pod: &PodInfo) -> i64 {
    score(&record.terms.allocatable, &Amounts::new(), &pod.requests)
}

/// Returns true if other plugins can serve the reservation with these pods absorbed.
pub(super) type Serves<'a> = &'a dyn Fn(&[Arc<PodInfo>]) -> bool;

/// The pods to absorb, or else the shortage of the node and that of the reservation.
type AbsorbResult = Result<Vec<Arc<PodInfo>>, (Vec<ResourceId>, Vec<Reason>)>;

/// Selection of the pods on one node that a reservation absorbs.
struct AbsorbedPodSelection<'a> {
    args: &'a Args,
    cycle: &'a Cycle<'a>,
    record: &'a ReservationRecord,
    required: bool,
    node: NodeIndex,
    candidates: &'a [Arc<PodInfo>],
}

impl AbsorbedPodSelection<'_> {
    /// Selects the pods to absorb, or returns the reasons why the reservation does not fit.
    fn select(&self, serves: Serves<'_>) -> Result<Vec<Arc<PodInfo>>, Vec<Reason>> {
        let mut alone: Option<Vec<ResourceId>> = None;
        if !self.required && self.args.pre_allocation_config.prefer_no_pre_allocated_pods {
            let lacking = self.node_shortage(&[]);
            if lacking.is_empty() && serves(&[]) {
                return Ok(Vec::new());
            }
            alone = Some(lacking);
        }
        let absorb_result = if allows_multiple(self.record) {
            self.select_several(serves)
        } else {
            self.select_one(serves)
        };
        let (by_node, by_reservation) = match absorb_result {
            Ok(chosen) => return Ok(chosen),
            Err(absorb_result) => absorb_result,
        };
        let mut reasons = self.node_reasons(&by_node);
        if self.required {
            reasons.extend(by_reservation);
            if reasons.is_empty() {
                reasons.push(NO_POD_MEETS.into());
            }
            return Err(reasons);
        }
        // A shortage with a pod removed also exists with the pod present. Without candidates, the node's own
        // fit check reports what is missing.
        if reasons.is_empty()
            && let Some(lacking) = alone.or_else(|| {
                let any = !self.candidates.is_empty();
                any.then(|| self.node_shortage(&[]))
            })
        {
            reasons = self.node_reasons(&lacking);
        }
        if reasons.is_empty() {
            Ok(Vec::new())
        } else {
            Err(reasons)
        }
    }

    /// Selects the one pod to absorb, or else returns the shortage of the node and the reservation.
    fn select_one(&self, serves: Serves<'_>) -> AbsorbResult {
        let mut best: Option<(i64, &Arc<PodInfo>)> = None;
        let (mut by_node, mut by_reservation) = (BTreeSet::new(), Vec::new());
        for pod in self
            .candidates
            .iter()
            .filter(|pod| self.uses_reserved_resource(pod))
        {
            let lacking = self.node_shortage(std::slice::from_ref(pod));
            let reasons = self.reservation_shortages(&pod.requests, 0);
            if lacking.is_empty() && reasons.is_empty() {
                let score = fullness(self.record, pod);
                let serves = || serves(std::slice::from_ref(pod));
                if best.is_none_or(|(other, _)| score > other) && serves() {
                    best = Some((score, pod));
                }
            }
            by_node.extend(lacking);
            by_reservation.extend(reasons);
        }
        match best {
            Some((_, pod)) => Ok(vec![pod.clone()]),
            None => Err((by_node.into_iter().collect(), by_reservation)),
        }
    }

    /// Adds pods one by one until the node has enough of every resource. A pod that does not fit into the
    /// reservation together with those before is skipped.
    fn select_several(&self, serves: Serves<'_>) -> AbsorbResult {
        let mut chosen = Vec::new();
        let mut sum = Amounts::new();
        let (mut by_node, mut by_reservation) = (Vec::new(), Vec::new());
        for pod in self
            .candidates
            .iter()
            .filter(|pod| self.uses_reserved_resource(pod))
        {
            chosen.push(pod.clone());
            sum.add_all(&pod.requests);
            by_node = self.node_shortage(&chosen);
            let reasons = self.reservation_shortages(&sum, chosen.len() - 1);
            if reasons.is_empty() && by_node.is_empty() && serves(&chosen) {
                return Ok(chosen);
            }
            if !reasons.is_empty() {
                by_reservation.extend(reasons);
                chosen.pop();
                sum.sub_all(&pod.requests);
            }
        }
        Err((by_node, by_reservation))
    }

    /// Returns true if the pod uses any resource of the reservation.
    fn uses_reserved_resource(&self, pod: &PodInfo) -> bool {
        let mut resources = self.record.terms.resources.iter();
        resources.any(|id| pod.requests.contains(*id))
    }

    /// Returns what the reservation is short of for pods with the summed `requests`, next to `other_pods` other
    /// pods.
    fn reservation_shortages(&self, requests: &Amounts, other_pods: usize) -> Vec<Reason> {
        let (table, terms) = (self.cycle.view.resources, &self.record.terms);
        let resources: Vec<ResourceId> = terms
            .resources
            .iter()
            .copied()
            .filter(|id| !self.args.ignores(*id, table))
            .collect();
        let restricted = Restricted {
            allocatable: &terms.allocatable,
            reserved: &terms.reserved,
            allocated: &Amounts::new(),
            resources: &resources,
            pods: i64::try_from(other_pods).unwrap_or(i64::MAX),
        };
        let text = |resource: ResourceId| match resource {
            PODS => Reason::Static("Reservation(s) Too many pods"),
            id => Reason::from(format!("Reservation(s) Insufficient {}", table.name(id))),
        };
        let shortages = restricted.shortages(requests);
        shortages.into_iter().map(|s| text(s.resource)).collect()
    }

    /// Returns the resources that the node is short of for the reservation with the pods `absorbed` absorbed.
    fn node_shortage(&self, absorbed: &[Arc<PodInfo>]) -> Vec<ResourceId> {
        let Self { cycle, node, .. } = self;
        let nodes = cycle.view.nodes;
        // For other plugins all candidates count as removed; here each one counts, except for `absorbed`.
        let back: Vec<&Arc<PodInfo>> = self
            .candidates
            .iter()
            .filter(|pod| cycle.overlay.removes(&pod.uid))
            .collect();
        let count = |pods: usize| i64::try_from(pods).unwrap_or(i64::MAX);
        let free = |id: ResourceId| {
            let sum = |pods: &mut dyn Iterator<Item = &Arc<PodInfo>>| -> i64 {
                pods.map(|pod| pod.requests.get(id)).sum()
            };
            let used = cycle.requested(*node, id) + sum(&mut back.iter().copied());
            nodes.allocatable(*node, id) - (used - sum(&mut absorbed.iter()))
        };
        let mut out = Vec::new();
        let pods = cycle.requested(*node, PODS) + count(back.len()) - count(absorbed.len());
        if pods + 1 > nodes.allocatable(*node, PODS) {
            out.push(PODS);
        }
        let requests = &cycle.pod.requests;
        if requests.iter().all(|(_, amount)| amount == 0) {
            return out;
        }
        let native = [CPU, MEMORY, EPHEMERAL_STORAGE];
        let scalar = |(id, amount): &(ResourceId, i64)| {
            !native.contains(id)
                && *id != PODS
                && !self.args.ignores(*id, cycle.view.resources)
                && *amount > free(*id)
        };
        let short = |id: &ResourceId| requests.get(*id) > free(*id);
        out.extend(native.into_iter().filter(short));
        out.extend(requests.iter().filter(scalar).map(|(id, _)| id));
        out
    }

    fn node_reasons(&self, lacking: &[ResourceId]) -> Vec<Reason> {
        super::fit::node_reasons(self.cycle.view.resources, lacking)
    }
}
