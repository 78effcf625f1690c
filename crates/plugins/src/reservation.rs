//! `Reservation`: holds resources on a node for pods that come later.
//!
//! A Reservation is scheduled in the form of a pod that stands for it (the holder). The holder stays booked
//! on the node and requests what the owners have not taken yet, so a node's free resources are exact at any
//! time, and nothing extra is computed for pods that own no reservation. For an owner, nodes are evaluated
//! with its reservations removed ([`Release`]). It may have to fit into one of them, and uses the one that
//! suits it best ([`Release::nominate`]).

mod annotation;
mod args;
mod change;
mod control;
mod explain;
mod fit;
mod metrics;
mod owners;
mod pod;
mod pod_state;
mod pre_allocatable;
mod pre_allocation;
mod table;

use crate::common::allocate_policy::{self, RESERVATIONS};
use crate::common::budgets::{self, is_protected};
use crate::common::patches::clear_annotation;
use annotation::{allocated_text, annotation_write, fixed_node};
use args::Args;
use control::CheckQueue;
use fit::{NO_MATCH, NodeFit, ReservationCounts};
use koord_api::annotations;
use koord_api::scheduling::Reservation;
use koord_model::resources::ResourceTable;
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, Bind, BindPlan, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Diagnosis,
    Effects, Explain, Filter, Holders, IndexKind, Inputs, Interest, LazyMessage, MetricSamples,
    MetricSource, Normalize, NotShown, ObjectChange, ObjectEvents, PerProfile, Plugin, PodEvents,
    PodPatch, Points, PostFilter, PostFilterResult, PostFilterTransformer, PreBind, PreFilter,
    PreFilterResult, PreScore, PreScoreResult, Preemption, Protection, QueueHints, QueueingHint,
    RefusalEvent, Rejection, Release, Reserve, Roles, RulesVersion, Score, Sign, Signable,
    Signature, State, Subject, Tick, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, NodeStore, PodInfo};
use pod_state::{CycleSubject, PodReservationState};
use pre_allocatable::PreAllocatableIndex;
use pre_allocation::{PreAllocationCandidates, is_pre_allocation};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use table::{OwnerPod, ReservationRecord, ReservationTable};

pub(crate) const NAME: &str = "Reservation";
const OTHER_NODE: &str = "node(s) didn't match the nodeName specified by reservation";
const POLICY_CONFLICT: &str = "node(s) reservation allocate policy conflict";
/// Limit of a reservation's order. The raw score of a node without ordered reservations is at most 100. A
/// node with one scores above that, higher for lower orders; the limit keeps normalization from overflowing.
const ORDER_LIMIT: i64 = 40_000_000_000_000_000;

/// The `Reservation` plugin.
#[derive(Debug)]
pub(crate) struct Reservations {
    args: PerProfile<Args>,
    /// True if labels of the node count as labels of its reservations.
    node_labels: bool,
    /// True if the annotations of owners are removed when their reservation is deleted.
    clean_owners: bool,
    /// True if reservations may expire before they are placed.
    expire_pending: bool,
    budgets: budgets::BudgetChecks,
    /// True if this process runs the reservation controller: it updates statuses, expires reservations and
    /// deletes old ones.
    is_controller: bool,
    table: ReservationTable,
    pre_allocatable: PreAllocatableIndex,
    checks: CheckQueue,
    /// Time of the last export of metrics.
    metrics_exported: Option<jiff::Timestamp>,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args = Args::parse(value)?;
    let gate = |name: &str| context.gates.get(name).copied().unwrap_or(false);
    let is_controller = context.controllers.enabled(NAME);
    Ok(Box::new(Reservations {
        args: PerProfile::new(args),
        node_labels: !gate("OmitNodeLabelsForReservation"),
        clean_owners: is_controller && gate("CleanExpiredReservationAllocated"),
        expire_pending: gate("ExpirePendingReservations"),
        budgets: budgets::BudgetChecks::from_gates(context),
        is_controller,
        table: ReservationTable::default(),
        pre_allocatable: PreAllocatableIndex::default(),
        checks: CheckQueue::default(),
        metrics_exported: None,
    }))
}

impl Reservations {
    fn subject(&self, cycle: &Cycle<'_>) -> Result<CycleSubject, Rejection> {
        let pod = cycle.pod;
        if pod.is_holder() {
            return self.reservation_subject(cycle);
        }
        let owner_of = self.table.matching_lists(pod);
        match PodReservationState::new(pod, owner_of, cycle.view.resources) {
            Ok(pod_state) => Ok(CycleSubject::Pod(pod_state)),
            Err(message) => Err(Rejection::unresolvable(message)),
        }
    }

    fn reservation_subject(&self, cycle: &Cycle<'_>) -> Result<CycleSubject, Rejection> {
        let Some(record) = self.record_of(cycle.pod) else {
            return Err(Rejection::error("cannot get reservation"));
        };
        let candidates = self.pre_allocation_candidates(cycle, record)?;
        pod::reserved_on_bind(&record.object, &record.terms, cycle.view.resources)
            .map_err(Rejection::unresolvable)?;
        Ok(CycleSubject::Reservation {
            fixed: fixed_node(cycle.pod),
            policy: allocate_policy::policy(cycle.view, &record.uid),
            candidates,
        })
    }

    /// Returns true if any profile allows preemption for reservations.
    fn has_preemption(&self) -> bool {
        self.args.all().any(|args| args.enable_preemption)
    }

    /// Returns the record of the reservation that `holder` stands for.
    fn record_of(&self, holder: &PodInfo) -> Option<&ReservationRecord> {
        self.table.record(self.table.find(&holder.uid)?)
    }

    fn node_fit<'a>(
        &'a self,
        cycle: &'a Cycle<'a>,
        pod_state: &'a PodReservationState,
        node: NodeIndex,
    ) -> NodeFit<'a> {
        let args = self.args.for_pod(cycle.pod);
        NodeFit::new(&self.table, args, cycle, pod_state, node, self.node_labels)
    }

    /// Returns true if any reservation, on any node, is open to the pod.
    fn any_match(&self, cycle: &Cycle<'_>, pod_state: &PodReservationState) -> bool {
        self.table.owned_reservations(pod_state).any(|record| {
            self.table
                .check(
                    cycle.pod,
                    pod_state,
                    record,
                    cycle.view.nodes,
                    self.node_labels,
                )
                .is_ok()
        })
    }

    /// Returns the reservation counts for the condition of a pod that fits no node; empty if reservations do
    /// not concern it.
    fn reservation_counts(&self, cycle: &Cycle<'_>) -> String {
        let pod_state = match self.subject(cycle) {
            Ok(CycleSubject::Pod(pod_state)) => pod_state,
            Ok(CycleSubject::Reservation {
                candidates: Some(candidates),
                ..
            }) => return self.pre_allocation_counts(cycle, &candidates).text(false),
            _ => return String::new(),
        };
        if pod_state.is_plain() || pod_state.ignores {
            return String::new();
        }
        let mut counts = ReservationCounts::default();
        let mut usable: BTreeMap<NodeIndex, usize> = BTreeMap::new();
        for record in self.table.owned_reservations(&pod_state) {
            let checked = self.table.check(
                cycle.pod,
                &pod_state,
                record,
                cycle.view.nodes,
                self.node_labels,
            );
            if let (Ok(()), Some(row)) = (&checked, record.row) {
                *usable.entry(row).or_default() += 1;
            }
            counts.add(&pod_state, checked);
        }
        for (row, usable) in usable {
            counts.add_rejected(
                usable,
                &self.node_fit(cycle, &pod_state, row).rejection_reasons(),
            );
        }
        counts.text(pod_state.affinity.is_some())
    }

    /// Returns true if the pod may use what is left of `record`.
    fn is_open_to(
        &self,
        record: &ReservationRecord,
        pod: &PodInfo,
        nodes: &NodeStore,
        resources: &ResourceTable,
    ) -> bool {
        if pod.is_holder() {
            return false;
        }
        let pod_state = PodReservationState::new(pod, self.table.matching_lists(pod), resources);
        pod_state.is_ok_and(|pod_state| {
            let checked = self
                .table
                .check(pod, &pod_state, record, nodes, self.node_labels);
            pod_state.ignores || checked.is_ok()
        })
    }

    /// Removes the annotation that names the reservation `uid` from its owners, except those on node `but`.
    fn remove_owner_annotations(&self, uid: &str, but: Option<&str>, fx: &mut Effects) {
        let owners = self.table.owners(uid);
        for owner in owners.filter(|owner| but.is_none_or(|node| *owner.node != *node)) {
            fx.writes.push(annotation_write(&owner.pod, None));
        }
    }
}

impl Plugin for Reservations {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .pre_score()
        .score()
        .release()
        .post_filter()
        .protection()
        .pre_bind()
        .bind()
        .explain()
        .object_events()
        .pod_events()
        .tick()
        .reserve()
        .post_filter_transformer()
        .metric_source();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
            .or(Points::FILTER)
            .or(Points::POST_FILTER)
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
            .or(Points::RESERVE)
            .or(Points::PRE_BIND)
            .or(Points::BIND)
    }
    fn holders(&self) -> Holders {
        Holders::Booked
    }
    fn join(
        &mut self,
        profile: &str,
        args: Option<&Value>,
        _context: &BuildContext,
    ) -> Option<Result<(), BuildError>> {
        let args = Args::parse(args).map(|args| {
            args.warn_about_other_profiles(self.args.first(), profile);
            self.args.join(profile, args);
        });
        Some(args)
    }
}

impl Sign for Reservations {
    fn sign(&self, _: &PodInfo, _: &ResourceTable, _: &mut Signature) -> Signable {
        Signable::Yes
    }
    fn sign_external(&self, pod: &PodInfo, view: View<'_>, signature: &mut Signature) -> Signable {
        if pod.is_holder() {
            // A reservation that may be placed over pods depends on running pods, so it shares no results
            // with others.
            let record = self
                .record_of(pod)
                .filter(|record| !is_pre_allocation(record));
            let Some(record) = record.filter(|_| !pre_allocation::is_required(pod)) else {
                return Signable::No;
            };
            signature.number(-2);
            signature.text(fixed_node(pod).as_deref().unwrap_or_default());
            signature.number(allocate_policy::policy(view, &record.uid) as i64);
            return Signable::Yes;
        }
        let lists = self.table.matching_lists(pod);
        let affinity = pod_state::annotation(pod, annotations::RESERVATION_AFFINITY);
        let ignores = pod_state::ignores_reservations(pod);
        if lists.is_empty() && affinity.is_none() && !ignores {
            signature.number(-1);
            return Signable::Yes;
        }
        signature.number(i64::from(ignores));
        for list in lists {
            signature.number(i64::from(list));
        }
        let exact = pod_state::annotation(pod, annotations::EXACT_MATCH_RESERVATION);
        for (_, text) in affinity.into_iter().chain(exact) {
            signature.text(text);
        }
        signature.amounts(&pod.requests);
        Signable::Yes
    }
}

impl Inputs for Reservations {
    fn watches(&self) -> Vec<Watch> {
        let mut watches = vec![allocate_policy::watch()];
        if self.has_preemption() {
            watches.extend(self.budgets.watch());
        }
        watches
    }

    fn indexes(&self) -> Vec<IndexKind> {
        let mut indexes = vec![allocate_policy::index()];
        indexes.extend(self.budgets.index().filter(|_| self.has_preemption()));
        indexes
    }
}

impl PreFilter for Reservations {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let subject = match self.subject(cycle) {
            Ok(subject) => subject,
            Err(rejection) => return PreFilterResult::Reject(rejection),
        };
        let mut nodes = None;
        if let CycleSubject::Pod(pod_state) = &subject
            && let Some(affinity) = &pod_state.affinity
        {
            if !pod_state.ignores && !self.any_match(cycle, pod_state) {
                return PreFilterResult::Reject(Rejection::unresolvable(NO_MATCH));
            }
            if affinity.name.is_some() && !pod_state.ignores {
                nodes = Some(self.table.affinity_node(affinity).into_iter().collect());
            }
        }
        if let CycleSubject::Reservation { candidates, .. } = &subject {
            nodes = candidates
                .as_ref()
                .and_then(PreAllocationCandidates::required_nodes);
        }
        PreFilterResult::Ready {
            state: State::new(subject),
            nodes,
        }
    }
}

impl Filter for Reservations {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        match state.get::<CycleSubject>() {
            None => Ok(()),
            Some(CycleSubject::Reservation {
                fixed,
                policy,
                candidates,
            }) => {
                let name = cycle.view.nodes.name(node);
                if fixed.as_ref().is_some_and(|fixed| **fixed != **name) {
                    return Err(Rejection::unresolvable(OTHER_NODE));
                }
                if !self.table.is_policy_compatible(*policy, node, cycle.view) {
                    return Err(Rejection::unresolvable(POLICY_CONFLICT));
                }
                match candidates {
                    Some(candidates) => self.filter_pre_allocation(cycle, candidates, node),
                    None => Ok(()),
                }
            }
            Some(CycleSubject::Pod(pod_state)) => {
                if pod_state.is_plain() && cycle.overlay.removed.is_empty() {
                    return Ok(());
                }
                self.node_fit(cycle, pod_state, node).verdict()
            }
        }
    }
}

impl PreScore for Reservations {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        match self.subject(cycle) {
            Ok(CycleSubject::Pod(pod_state)) if !pod_state.is_plain() && !pod_state.ignores => {
                PreScoreResult::Ready(State::new(CycleSubject::Pod(pod_state)))
            }
            Ok(
                subject @ CycleSubject::Reservation {
                    candidates: Some(_),
                    ..
                },
            ) => PreScoreResult::Ready(State::new(subject)),
            _ => PreScoreResult::Skip,
        }
    }
}

impl Score for Reservations {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let pod_state = match state.get::<CycleSubject>() {
            Some(CycleSubject::Pod(pod_state)) => pod_state,
            Some(CycleSubject::Reservation {
                candidates: Some(_),
                ..
            }) => return self.score_pre_allocation(cycle),
            _ => return 0,
        };
        let node_fit = self.node_fit(cycle, pod_state, node);
        let orders = node_fit
            .matched
            .iter()
            .filter_map(|(_, record)| record.terms.order);
        if let Some(order) = orders.min() {
            return 1000 + ORDER_LIMIT - order.clamp(-ORDER_LIMIT, ORDER_LIMIT);
        }
        node_fit
            .nominee()
            .map_or(0, |(index, record)| node_fit.score(index, record))
    }
    fn normalization(&self) -> Normalize {
        Normalize::Max
    }
}

impl QueueHints for Reservations {
    fn interests(&self) -> Vec<Interest> {
        vec![
            Interest {
                subject: Subject::AssignedPod,
                actions: Action::DELETE
                    .or(Action::POD_SCALE_DOWN)
                    .or(Action::ADD)
                    .or(Action::POD_LABEL),
            },
            Interest {
                subject: Subject::Object(RESERVATIONS),
                actions: Action::ADD.or(Action::UPDATE).or(Action::DELETE),
            },
            Interest {
                subject: Subject::Node,
                actions: Action::ADD
                    .or(Action::NODE_ALLOCATABLE)
                    .or(Action::NODE_LABEL),
            },
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        if event.subject == Subject::AssignedPod
            && !event
                .action
                .meets(Action::DELETE.or(Action::POD_SCALE_DOWN))
        {
            // A running pod helps only a reservation that may be placed over it.
            let other = event.pod.filter(|other| self.may_absorb(pod, other));
            return other.map_or(QueueingHint::Skip, |_| QueueingHint::Queue);
        }
        let Some(change) = event.object else {
            return QueueingHint::Queue;
        };
        let Some(new) = change.new_as::<Reservation>() else {
            return QueueingHint::Skip;
        };
        let old = change::old_state(change);
        // The ended reservation's owners may now be absorbed by another one.
        let ended = change.action.meets(Action::DELETE) || change::is_ended(old, new);
        if ended && self.record_of(pod).is_some_and(is_pre_allocation) {
            return QueueingHint::Queue;
        }
        // Resources freed by an ended or deleted reservation cause an event of their own.
        let useful = change::is_opened(old, new) && owners::is_owner(&new.spec.owners, pod);
        if useful || change::is_shrunk(old, new) {
            QueueingHint::Queue
        } else {
            QueueingHint::Skip
        }
    }
    fn affects_unrefused(&self, event: &ClusterEvent<'_>) -> bool {
        // If no reservation can absorb the pod, other plugins report the node's shortage and handle the
        // event.
        if event.subject == Subject::AssignedPod {
            return event
                .pod
                .is_some_and(|pod| self.pre_allocatable.selects_any(pod, &self.table));
        }
        // A node too small for an owner may be large enough with a reservation on it.
        event.object.is_some_and(|change| {
            let old = change::old_state(change);
            change
                .new_as::<Reservation>()
                .is_some_and(|new| change::is_opened(old, new) || change::is_shrunk(old, new))
        })
    }
}

impl PostFilter for Reservations {
    fn post_filter<'a>(
        &'a self,
        cycle: &Cycle<'a>,
        _diagnosis: &Diagnosis,
    ) -> PostFilterResult<'a> {
        let counts = self.reservation_counts(cycle);
        let args = self.args.for_pod(cycle.pod);
        if !args.enable_preemption {
            return PostFilterResult::Unhelpful(counts);
        }
        let view = cycle.view;
        PostFilterResult::Preempt(Preemption {
            prefix: "preemption: ",
            min_candidate_percentage: args.min_candidate_nodes_percentage.into(),
            min_candidate_absolute: args.min_candidate_nodes_absolute.into(),
            may_evict: Box::new(|pod| !is_protected(pod)),
            awaits: None,
            suffices: Box::new(|_| true),
            budgets: Box::new(move |pod| budgets::covering(view, pod)),
            for_holders: true,
            besides: counts,
            pool: None,
        })
    }
    fn preemption_state(&self, view: View<'_>) -> Option<RulesVersion> {
        Some(budgets::version(view))
    }
}

impl PreBind for Reservations {
    fn pre_bind(&self, cycle: &Cycle<'_>, _node: NodeIndex, patch: &mut PodPatch) -> Verdict {
        let pod = cycle.pod;
        let used = self.table.used_by(&pod.uid);
        let record = used.and_then(|uid| self.table.record(self.table.find(uid)?));
        let key = annotations::RESERVATION_ALLOCATED;
        if let Some(record) = record {
            let text =
                allocated_text(record).map_err(|error| Rejection::error(error.to_string()))?;
            patch.annotations.insert(key.to_owned(), text);
        } else if !pod.is_holder() {
            clear_annotation(pod, key, patch);
        }
        Ok(())
    }
}

impl Bind for Reservations {
    fn bind(&self, cycle: &Cycle<'_>, node: NodeIndex) -> BindPlan {
        let pod = cycle.pod;
        if !pod.is_holder() {
            return BindPlan::Skip;
        }
        let Some(record) = self
            .table
            .find(&pod.uid)
            .and_then(|index| self.table.record(index))
        else {
            return BindPlan::Skip;
        };
        let view = cycle.view;
        let reserved = pod::reserved_on_bind(&record.object, &record.terms, view.resources);
        let Ok(reserved) = reserved else {
            return BindPlan::Skip;
        };
        let status = control::placed_status(view.nodes.name(node), &reserved, view.now);
        let mut writes = self.absorbed_annotation_writes(record);
        writes.push(control::placement_write(record, status));
        BindPlan::Writes(writes)
    }
}

impl Explain for Reservations {
    fn refusal_event(&self, pod: &PodInfo, message: &LazyMessage) -> Option<RefusalEvent> {
        pod.annotation(annotations::RESERVATION_AFFINITY)?;
        let message = koord_model::reservation::failure_of_reservations(message)?;
        let reason = "FailedScheduling-Reservation";
        Some(RefusalEvent { reason, message })
    }
    fn explain(&self, pod: &PodInfo, view: View<'_>) -> Option<Value> {
        self.explain_pod(pod, view)
    }
    fn inspections(&self) -> &'static [&'static str] {
        &["nodeReservations/:nodeName", "reservationSelectorIndex"]
    }
    fn inspect(
        &self,
        path: &[&str],
        _query: &BTreeMap<String, String>,
        view: View<'_>,
    ) -> Result<Value, NotShown> {
        match path {
            ["nodeReservations", node] => Ok(self.node_reservations(node, view)),
            ["reservationSelectorIndex"] => Ok(explain::selector_index()),
            _ => Err(NotShown::NoSuchPath),
        }
    }
}

impl MetricSource for Reservations {
    fn read(&mut self, view: View<'_>, out: &mut MetricSamples) {
        self.export_metrics(view.now, out);
    }
}

impl ObjectEvents for Reservations {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let Ok(object) = change.new.clone().downcast::<Reservation>() else {
            return;
        };
        let Some(uid) = object.metadata.uid.clone() else {
            return;
        };
        let uid = uid.as_str();
        let record = self
            .table
            .find(uid)
            .and_then(|index| self.table.record(index));
        let was_pending = record.is_some_and(|record| record.is_pending());
        if change.action != Action::DELETE {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let before = self
                .table
                .find_by_name(name)
                .map(|record| record.uid.clone());
            if let Some(why) = self.table.apply(object.clone(), view, fx) {
                self.write_ignored_condition(&object, &why, view.now, fx);
            }
            if let Some(before) = before.filter(|before| **before != *uid) {
                self.update_criterion(&before, view);
            }
            self.update_criterion(uid, view);
            let record = self
                .table
                .find(uid)
                .and_then(|index| self.table.record(index));
            // Pods may have been annotated for a node on which the reservation was then not placed.
            if let Some(record) =
                record.filter(|record| self.is_controller && was_pending && !record.is_pending())
            {
                let node = record.terms.node.clone();
                self.remove_owner_annotations(uid, node.as_deref(), fx);
            }
            return;
        }
        if self.clean_owners || (self.is_controller && was_pending) {
            self.remove_owner_annotations(uid, None, fx);
        }
        if let Some(record) = self
            .table
            .find(uid)
            .and_then(|index| self.table.record(index))
        {
            self.checks.remove(record);
        }
        self.table.clear_problems(uid);
        self.table.delete(uid, fx);
        self.update_criterion(uid, view);
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        if view.nodes.info(node).is_none() {
            let deleted: Vec<Arc<str>> = self
                .table
                .on_node(node)
                .map(|(_, record)| record.uid.clone())
                .collect();
            self.table.dirty.extend(deleted);
        }
    }
}

impl PodEvents for Reservations {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        if pod.is_holder() {
            self.table.set_node(&pod.uid, node);
        } else if pod.node.is_some() {
            self.table.observe(pod, node, view, fx);
            self.pre_allocatable.update_pod(pod, node, &self.table);
        }
    }
    fn on_updated(
        &mut self,
        _old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        if !new.is_holder() && new.node.is_some() {
            self.table.observe(new, node, view, fx);
            self.pre_allocatable.update_pod(new, node, &self.table);
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        fx: &mut Effects,
    ) {
        if pod.is_holder() {
            self.table.clear_node(&pod.uid, node);
        } else {
            self.table.remove_owner(&pod.uid, fx);
            self.pre_allocatable.remove_pod(&pod.uid, node);
        }
    }
}

impl Tick for Reservations {
    fn tick(&mut self, view: View<'_>, fx: &mut Effects) {
        self.run_controller(view, fx);
    }
    fn next_tick(&self) -> Option<jiff::Timestamp> {
        if self.table.dirty.is_empty() {
            return self.checks.next();
        }
        Some(jiff::Timestamp::UNIX_EPOCH)
    }
}

impl PostFilterTransformer for Reservations {
    fn after_post_filter(
        &mut self,
        cycle: &Cycle<'_>,
        diagnosis: &mut Diagnosis,
        fx: &mut Effects,
    ) {
        if cycle.pod.is_holder() {
            let message = diagnosis.message();
            self.write_unschedulable_condition(&cycle.pod.uid, message, cycle.view.now, fx);
        }
    }
}

impl Reserve for Reservations {
    fn reserve(&mut self, cycle: &Cycle<'_>, node: NodeIndex, fx: &mut Effects) -> Verdict {
        let pod = cycle.pod;
        if pod.is_holder() {
            self.add_absorbed_owners(cycle, node, fx);
            return Ok(());
        }
        if pod_state::ignores_reservations(pod) {
            return Ok(());
        }
        if let Some(reservation) = cycle
            .nominated
            .filter(|n| self.table.find(&n.uid).is_some())
        {
            let owner = OwnerPod {
                pod: pod.clone(),
                node: cycle.view.nodes.name(node).clone(),
                confirmed: false,
                pre_allocated: false,
            };
            self.table.add_owner(&reservation.uid, owner, fx);
        } else if pod_state::annotation(pod, annotations::RESERVATION_AFFINITY).is_some() {
            return Err(Rejection::unschedulable(NO_MATCH));
        }
        Ok(())
    }
    fn unreserve(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, fx: &mut Effects) {
        if cycle.pod.is_holder() {
            self.remove_absorbed_owners(&cycle.pod.uid, fx);
        } else {
            self.table.remove_owner(&cycle.pod.uid, fx);
        }
    }
}

impl Release for Reservations {
    fn released(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        out: &mut Vec<Arc<PodInfo>>,
    ) {
        match state.get::<CycleSubject>() {
            Some(CycleSubject::Pod(pod_state)) if !pod_state.is_plain() => {
                let matched = self.node_fit(cycle, pod_state, node).matched;
                out.extend(matched.into_iter().map(|(_, record)| record.pod.clone()));
            }
            Some(CycleSubject::Reservation {
                candidates: Some(candidates),
                ..
            }) => {
                // None of the candidates suffices. They still count as removed, so that this plugin's reasons
                // are reported.
                out.extend(candidates.candidates(node).iter().cloned());
            }
            _ => {}
        }
    }
    fn absorbed_pods(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        serves: &dyn Fn(&[Arc<PodInfo>]) -> bool,
    ) -> Option<Vec<Arc<PodInfo>>> {
        match state.get::<CycleSubject>() {
            Some(CycleSubject::Reservation {
                candidates: Some(candidates),
                ..
            }) => self.select_absorbed(cycle, candidates, node, serves).ok(),
            _ => None,
        }
    }
    fn special_rows(&self, _cycle: &Cycle<'_>, state: &State) -> Option<Vec<NodeIndex>> {
        match state.get::<CycleSubject>()? {
            CycleSubject::Pod(pod_state) if !pod_state.ignores && pod_state.affinity.is_none() => {
                Some(
                    self.table
                        .owned_reservations(pod_state)
                        .filter_map(|r| r.row)
                        .collect(),
                )
            }
            _ => None,
        }
    }
    fn nominate(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        agreed: &[Arc<PodInfo>],
    ) -> Option<Arc<PodInfo>> {
        match state.get::<CycleSubject>()? {
            CycleSubject::Pod(pod_state) if !pod_state.is_plain() => {
                let mut node_fit = self.node_fit(cycle, pod_state, node);
                // A pod that requires a reservation has no choice: the plugin that cannot serve it then
                // reports why.
                if node_fit.matched.len() > 1 || pod_state.affinity.is_none() {
                    let served = |uid: &str| agreed.iter().any(|pod| *pod.uid == *uid);
                    node_fit.matched.retain(|(_, record)| served(&record.uid));
                }
                let (_, record) = node_fit.nominee()?;
                Some(record.pod.clone())
            }
            _ => None,
        }
    }
}

impl Protection for Reservations {
    /// Protects owners whose reservation the preemptor may not use: an evicted owner's resources return to the
    /// reservation.
    fn protects(
        &self,
        pod: &PodInfo,
        node: NodeIndex,
        by: &PodInfo,
        nodes: &NodeStore,
        resources: &ResourceTable,
    ) -> bool {
        let used = self.table.used_by(&pod.uid);
        let record = used.and_then(|uid| self.table.record(self.table.find(uid)?));
        record.is_some_and(|record| {
            record.row == Some(node) && !self.is_open_to(record, by, nodes, resources)
        })
    }
}

#[cfg(test)]
mod tests;
