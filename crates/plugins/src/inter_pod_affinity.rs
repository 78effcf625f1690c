//! `InterPodAffinity`: places pods close to some pods and away from others.
//!
//! The plugin has three sets of counters. `matching_pods` counts pods that match the terms of pods that were
//! scheduled. `anti_affinity_owners` and `preference_owners` count, per term of placed pods, the owners of
//! the term: a pod that matches such a term is rejected from the owners' domains, or prefers or avoids them.

mod terms;
#[cfg(test)]
mod tests;

use crate::common::UNPREPARED;
use crate::common::topology::{CounterId, DomainSpec, Labels, NO_DOMAIN, TopologyCounters};
use k8s_openapi::api::core::v1::{Namespace, PodAffinityTerm};
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Filter, Groups,
    Holders, Inputs, Interest, Normalize, ObjectChange, ObjectEvents, Plugin, PodEvents, Points,
    PreFilter, PreFilterResult, PreScore, PreScoreResult, Preparation, QueueHints, QueueingHint,
    Rejection, Roles, Score, ShapeId, State, Subject, Verdict, View, Volatile,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use terms::{AffinityTerm, AffinityTerms};

const NAME: &str = "InterPodAffinity";
const NAMESPACES: &str = "namespaces.v1.";
const NO_AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// InterPodAffinityArgs.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    hard_pod_affinity_weight: i32,
    ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
        }
    }
}

/// State of the `InterPodAffinity` plugin.
#[derive(Debug)]
pub(crate) struct InterPodAffinity {
    args: Args,
    namespaces: FxHashMap<String, Labels>,
    matching_pods: TopologyCounters,
    anti_affinity_owners: TopologyCounters,
    preference_owners: TopologyCounters,
    prepared: PreparedCounters,
}

/// Counters of `matching_pods` for the terms of the pod that is being scheduled.
#[derive(Debug, Default)]
struct PreparedCounters {
    pod: Option<Arc<PodInfo>>,
    /// Counters of the affinity terms, one per topology key, of pods that match all terms.
    affinity: Vec<CounterId>,
    anti_affinity: Vec<CounterId>,
    /// Counters with the weights of their terms, negative for anti-affinity.
    preferred: Vec<(CounterId, i64)>,
}

/// Counters that decide the filter result of a pod: for its own terms, and for anti-affinity terms of placed
/// pods.
#[derive(Debug, Default)]
struct FilterCounters {
    /// Counters of the affinity terms, one per topology key, of pods that match all terms.
    affinity: Vec<CounterId>,
    /// True if the pod matches its own affinity terms.
    matches_itself: bool,
    anti_affinity: Vec<CounterId>,
    /// Counters of `anti_affinity_owners` whose terms match the pod.
    existing: Vec<CounterId>,
}

/// Counters that decide the score of a pod, with weights.
#[derive(Debug, Default)]
struct ScoreCounters {
    own_terms: Vec<(CounterId, i64)>,
    owners: Vec<CounterId>,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = crate::common::args::decode(NAME, value)?;
    let weight = args.hard_pod_affinity_weight;
    if !(0..=100).contains(&weight) {
        let message = format!("hardPodAffinityWeight: {weight} is not within 0 and 100");
        return Err(crate::common::args::invalid(NAME, message));
    }
    Ok(Box::new(InterPodAffinity {
        args,
        namespaces: FxHashMap::default(),
        matching_pods: TopologyCounters::default(),
        anti_affinity_owners: TopologyCounters::default(),
        preference_owners: TopologyCounters::default(),
        prepared: PreparedCounters::default(),
    }))
}

impl InterPodAffinity {
    /// Returns the counters that were prepared for the cycle's pod.
    fn prepared(&self, cycle: &Cycle<'_>) -> Option<&PreparedCounters> {
        let is_it = |pod: &Arc<PodInfo>| Arc::ptr_eq(pod, cycle.pod);
        self.prepared
            .pod
            .as_ref()
            .is_some_and(is_it)
            .then_some(&self.prepared)
    }

    /// Returns the counter `key` of pods that match all of `terms`, by the domains of `domain_spec`; creates it if
    /// necessary.
    fn find_or_count<'a>(
        &mut self,
        key: ShapeId,
        terms: impl Iterator<Item = &'a AffinityTerm>,
        domain_spec: &DomainSpec,
        cycle: &Cycle<'_>,
    ) -> CounterId {
        if let Some(counter) = self.matching_pods.find(key) {
            return counter;
        }
        let terms = terms.map(|term| term.term.clone()).collect();
        let namespaces = &self.namespaces;
        let labels_of = |name: &str| namespaces.get(name).cloned();
        let (domain_spec, nodes) = (domain_spec.clone(), cycle.view.nodes);
        self.matching_pods
            .insert_counted(key, terms, false, domain_spec, nodes, &labels_of)
    }

    /// Adds `pod` to all counters on `node`, or removes it if `sign` is -1: as a match of terms, and as the
    /// owner of terms.
    fn update_pod(&mut self, pod: &PodInfo, node: NodeIndex, view: View<'_>, sign: i32) {
        let namespaces = &self.namespaces;
        let labels_of = |name: &str| namespaces.get(name).cloned();
        self.matching_pods.add_pod(pod, node, sign, &labels_of);
        if !terms::has_affinity(pod) {
            return;
        }
        for term in terms::required(pod, true) {
            add_owner(&mut self.anti_affinity_owners, term, pod, node, view, sign);
        }
        let hard = self.args.hard_pod_affinity_weight;
        if hard > 0 {
            for term in terms::required(pod, false) {
                add_owner(
                    &mut self.preference_owners,
                    term,
                    pod,
                    node,
                    view,
                    sign * hard,
                );
            }
        }
        for (anti, direction) in [(false, 1), (true, -1)] {
            for term in terms::preferred(pod, anti) {
                let amount = sign * direction * term.weight;
                if amount != 0 {
                    let term = &term.pod_affinity_term;
                    add_owner(&mut self.preference_owners, term, pod, node, view, amount);
                }
            }
        }
    }

    /// Returns the change of a counter of `matching_pods` by the pods that the cycle's overlay adds or removes.
    fn overlay_change(&self, counter: &crate::common::topology::Counter, cycle: &Cycle<'_>) -> i32 {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let matching = |pods: &[Arc<PodInfo>]| {
            let matching = pods.iter().filter(|pod| counter.matches(pod, &labels_of));
            i32::try_from(matching.count()).unwrap_or(i32::MAX)
        };
        matching(cycle.overlay.added) - matching(cycle.overlay.removed)
    }

    /// Returns how many anti-affinity terms of `pods` the cycle's pod matches, by topology key.
    fn violated_anti_affinity<'a>(
        &self,
        pods: &'a [Arc<PodInfo>],
        cycle: &Cycle<'_>,
    ) -> FxHashMap<&'a str, i32> {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let mut out = FxHashMap::default();
        for terms in pods
            .iter()
            .filter_map(|owner| AffinityTerms::from_pod(owner))
        {
            for term in &terms.anti_affinity {
                if term.term.matches(cycle.pod, &labels_of) {
                    *out.entry(term.label()).or_default() += 1;
                }
            }
        }
        out
    }

    /// Returns true if placing the pod on `node` violates the anti-affinity of a placed pod.
    fn violates_existing(
        &self,
        filter_counters: &FilterCounters,
        cycle: &Cycle<'_>,
        node: NodeIndex,
    ) -> bool {
        let mut by_key: FxHashMap<&str, i32> = FxHashMap::default();
        for id in &filter_counters.existing {
            if let Some(counter) = self.anti_affinity_owners.get(*id) {
                let domain = self.anti_affinity_owners.counted_in(counter, node);
                *by_key
                    .entry(self.anti_affinity_owners.label_of(counter))
                    .or_default() += counter.at(domain);
            }
        }
        if !cycle.overlay.is_empty() {
            let has = |key: &str| {
                let info = cycle.view.nodes.info(node);
                info.is_some_and(|info| info.label(key).is_some())
            };
            for (key, owners) in self.violated_anti_affinity(cycle.overlay.removed, cycle) {
                if has(key) {
                    *by_key.entry(key).or_default() -= owners;
                }
            }
            for (key, owners) in self.violated_anti_affinity(cycle.overlay.added, cycle) {
                if has(key) {
                    *by_key.entry(key).or_default() += owners;
                }
            }
        }
        by_key.values().any(|owners| *owners > 0)
    }

    /// Returns true if no pod in the cluster matches the pod's affinity and the pod itself does. Such a pod
    /// may be the first of its group.
    fn is_first(filter_counters: &FilterCounters, all_counters: &TopologyCounters) -> bool {
        filter_counters.matches_itself
            && filter_counters
                .affinity
                .iter()
                .filter_map(|id| all_counters.get(*id))
                .all(crate::common::topology::Counter::is_zero)
    }
}

/// Adds `amount` to the counter of the owners of `term`.
fn add_owner(
    all_counters: &mut TopologyCounters,
    term: &PodAffinityTerm,
    owner: &PodInfo,
    node: NodeIndex,
    view: View<'_>,
    amount: i32,
) {
    // Placed pods are many, so nothing else is stored per pod.
    let key = terms::counter_key(term, [term].into_iter(), owner);
    let id = match all_counters.find(key) {
        Some(counter) => counter,
        None => {
            let parsed = vec![terms::parse(term, owner)];
            all_counters.insert(key, parsed, false, terms::domain_spec(term), view.nodes)
        }
    };
    all_counters.add(id, node, amount);
    all_counters.drop_if_unused(id);
}

impl Plugin for InterPodAffinity {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .pre_filter()
        .filter()
        .pre_score()
        .score()
        .volatile()
        .object_events()
        .pod_events()
        .preparation();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
            .or(Points::FILTER)
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
    }
    fn holders(&self) -> Holders {
        Holders::Booked
    }
}

impl Inputs for InterPodAffinity {
    fn watches(&self) -> Vec<Watch> {
        vec![Watch::trimmed::<Namespace, crate::common::trim::Trimmer>(
            NAMESPACES,
        )]
    }
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        #[cfg(test)]
        {
            let nodes = cycle.view.nodes;
            assert!(self.matching_pods.is_consistent(nodes, true, &labels_of));
            assert!(
                self.anti_affinity_owners
                    .is_consistent(nodes, false, &labels_of)
            );
            assert!(
                self.preference_owners
                    .is_consistent(nodes, false, &labels_of)
            );
        }
        let mut filter_counters = FilterCounters {
            existing: self.anti_affinity_owners.matching(cycle.pod, &labels_of),
            ..FilterCounters::default()
        };
        if let Some(terms) = AffinityTerms::from_pod(cycle.pod) {
            let Some(prepared) = self.prepared(cycle) else {
                return PreFilterResult::Reject(Rejection::error(UNPREPARED));
            };
            filter_counters.affinity.clone_from(&prepared.affinity);
            filter_counters
                .anti_affinity
                .clone_from(&prepared.anti_affinity);
            let mut affinity = terms.affinity.iter();
            filter_counters.matches_itself = !terms.affinity.is_empty()
                && affinity.all(|term| term.term.matches(cycle.pod, &labels_of));
        }
        if filter_counters.existing.is_empty()
            && filter_counters.affinity.is_empty()
            && filter_counters.anti_affinity.is_empty()
        {
            return PreFilterResult::Skip;
        }
        PreFilterResult::ready(filter_counters)
    }
}

impl Filter for InterPodAffinity {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(filter_counters) = state.get::<FilterCounters>() else {
            return Ok(());
        };
        let all_counters = &self.matching_pods;
        let counters = |ids: &[CounterId]| -> Vec<_> {
            ids.iter().filter_map(|id| all_counters.get(*id)).collect()
        };
        let affinity_counters = counters(&filter_counters.affinity);
        let domain_total = |counter: &crate::common::topology::Counter| {
            let domain = all_counters.counted_in(counter, node);
            (domain != NO_DOMAIN).then(|| counter.at(domain) + self.overlay_change(counter, cycle))
        };
        if !affinity_counters.is_empty() {
            let counts: Vec<_> = affinity_counters
                .iter()
                .map(|counter| domain_total(counter))
                .collect();
            let labelled = counts.iter().all(Option::is_some);
            let all = counts.iter().flatten().all(|count| *count > 0);
            // The overlay may remove the last match, or add the first.
            let change = affinity_counters
                .first()
                .map_or(0, |counter| self.overlay_change(counter, cycle));
            let is_first = if change == 0 {
                Self::is_first(filter_counters, all_counters)
            } else {
                filter_counters.matches_itself
                    && affinity_counters
                        .iter()
                        .zip(&counts)
                        .all(|(counter, count)| counter.total() + count.map_or(0, |_| change) == 0)
            };
            if !labelled || !(all || is_first) {
                return Err(Rejection::unresolvable(NO_AFFINITY));
            }
        }
        let anti_affinity_counters = counters(&filter_counters.anti_affinity);
        if anti_affinity_counters
            .iter()
            .any(|counter| domain_total(counter).unwrap_or(0) > 0)
        {
            return Err(Rejection::unschedulable(ANTI_AFFINITY));
        }
        if self.violates_existing(filter_counters, cycle, node) {
            return Err(Rejection::unschedulable(EXISTING));
        }
        Ok(())
    }
}

impl PreScore for InterPodAffinity {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let directions = [(false, 1), (true, -1)];
        let constrained = directions
            .iter()
            .any(|(anti, _)| !terms::preferred(cycle.pod, *anti).is_empty());
        if self.args.ignore_preferred_terms_of_existing_pods && !constrained {
            return PreScoreResult::Skip;
        }
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let mut score_counters = ScoreCounters {
            owners: self.preference_owners.matching(cycle.pod, &labels_of),
            ..ScoreCounters::default()
        };
        if let Some(prepared) = self.prepared(cycle).filter(|_| constrained) {
            score_counters.own_terms.clone_from(&prepared.preferred);
        }
        if score_counters.owners.is_empty() && score_counters.own_terms.is_empty() {
            return PreScoreResult::Skip;
        }
        PreScoreResult::Ready(State::new(score_counters))
    }
}

impl Score for InterPodAffinity {
    fn normalization(&self) -> Normalize {
        Normalize::Custom
    }
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "the published formula, in floating point"
    )]
    fn normalize(&self, _cycle: &Cycle<'_>, scores: &mut [i64]) {
        let min = scores.iter().copied().min().unwrap_or(0);
        let max = scores.iter().copied().max().unwrap_or(0);
        let span = max.saturating_sub(min);
        for score in scores {
            *score = if span == 0 {
                0
            } else {
                (100.0 * ((*score - min) as f64 / span as f64)) as i64
            };
        }
    }
}

impl QueueHints for InterPodAffinity {
    fn interests(&self) -> Vec<Interest> {
        let interest = |subject, actions| Interest { subject, actions };
        vec![
            interest(
                Subject::AssignedPod,
                Action::ADD.or(Action::DELETE).or(Action::POD_LABEL),
            ),
            interest(Subject::Node, Action::ADD.or(Action::NODE_LABEL)),
            interest(
                Subject::UnscheduledPod,
                Action::POD_SPEC.or(Action::POD_LABEL),
            ),
            interest(Subject::Object(NAMESPACES), Action::ADD.or(Action::UPDATE)),
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let meets = |owner: &PodInfo, other: &PodInfo, anti: bool| {
            let mut terms = AffinityTerms::from_pod(owner)
                .into_iter()
                .flat_map(|it| it.required(anti));
            terms.any(|term| term.term.matches(other, &labels_of))
        };
        let helps = match (event.subject, event.pod, event.node) {
            (Subject::AssignedPod, Some(other), _) => {
                let relabelled = event.action.meets(Action::POD_LABEL);
                let added = event.action.meets(Action::ADD);
                let deleted = event.action.meets(Action::DELETE);
                relabelled
                    || added && meets(pod, other, false)
                    || deleted && (meets(pod, other, true) || meets(other, pod, true))
            }
            (Subject::Node, _, Some(node)) => {
                // Anti-affinity is satisfied by a node without the label.
                let mut affinity = terms::required(pod, false).iter();
                affinity.all(|term| node.label(&term.topology_key).is_some())
            }
            _ => true,
        };
        if helps {
            QueueingHint::Queue
        } else {
            QueueingHint::Skip
        }
    }
}

impl Preparation for InterPodAffinity {
    fn prepare(&mut self, cycle: &Cycle<'_>) {
        let Some(terms) = AffinityTerms::from_pod(cycle.pod) else {
            return;
        };
        let mut prepared = PreparedCounters {
            pod: Some(cycle.pod.clone()),
            ..PreparedCounters::default()
        };
        for (first, key) in &terms.counter_keys {
            let domain_spec = &terms.affinity[*first].domain_spec;
            let counter = self.find_or_count(*key, terms.affinity.iter(), domain_spec, cycle);
            prepared.affinity.push(counter);
        }
        let alone = |this: &mut Self, term: &AffinityTerm| {
            this.find_or_count(term.key, [term].into_iter(), &term.domain_spec, cycle)
        };
        for term in &terms.anti_affinity {
            prepared.anti_affinity.push(alone(self, term));
        }
        for (term, weight) in &terms.preferred {
            prepared.preferred.push((alone(self, term), *weight));
        }
        self.prepared = prepared;
    }
}

impl ObjectEvents for InterPodAffinity {
    fn on_object(&mut self, change: &ObjectChange, _view: View<'_>, _fx: &mut Effects) {
        let Some(namespace) = change.new_as::<Namespace>() else {
            return;
        };
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        let old = if change.action == Action::DELETE {
            self.namespaces.remove(&name)
        } else {
            self.namespaces.insert(name, Arc::new(labels.clone()))
        };
        if old.is_none_or(|old| *old != labels) || change.action == Action::DELETE {
            // The counters are rebuilt on demand.
            self.matching_pods.drop_by_namespace_labels();
        }
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let info = view.nodes.info(node).map(|info| &**info);
        self.matching_pods.node_changed(node, info);
        self.anti_affinity_owners.node_changed(node, info);
        self.preference_owners.node_changed(node, info);
    }
}

impl PodEvents for InterPodAffinity {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.update_pod(pod, node, view, 1);
    }
    fn on_updated(
        &mut self,
        old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        let affinity = |pod: &PodInfo| pod.spec().and_then(|spec| spec.affinity.clone());
        if old.labels() != new.labels()
            || (terms::has_affinity(old) || terms::has_affinity(new))
                && affinity(old) != affinity(new)
        {
            self.update_pod(old, node, view, -1);
            self.update_pod(new, node, view, 1);
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.update_pod(pod, node, view, -1);
    }
}

impl Volatile for InterPodAffinity {
    fn depends_on_other_nodes(&self, pod: &PodInfo, mate: &PodInfo) -> bool {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let meets = |owner: &PodInfo, other: &PodInfo, anti: bool| {
            let terms = AffinityTerms::from_pod(owner)
                .into_iter()
                .flat_map(|it| it.required(anti));
            // Anti-affinity by host does not depend on other nodes.
            let mut terms = terms
                .filter(|term| !anti || term.label() != crate::common::hostname_index::HOSTNAME);
            terms.any(|term| term.term.matches(other, &labels_of))
        };
        meets(pod, mate, false) || meets(pod, mate, true) || meets(mate, pod, true)
    }
    fn filter_rows(
        &self,
        _cycle: &Cycle<'_>,
        state: &State,
        rows: &[NodeIndex],
        fits: &mut [bool],
    ) {
        let Some(filter_counters) = state.get::<FilterCounters>() else {
            return;
        };
        let all_counters = &self.matching_pods;
        let is_first = Self::is_first(filter_counters, all_counters);
        for counter in filter_counters
            .affinity
            .iter()
            .filter_map(|id| all_counters.get(*id))
        {
            retain_rows(all_counters, counter, rows, fits, |labelled, count| {
                labelled && (count > 0 || is_first)
            });
        }
        for counter in filter_counters
            .anti_affinity
            .iter()
            .filter_map(|id| all_counters.get(*id))
        {
            retain_rows(all_counters, counter, rows, fits, |_, count| count <= 0);
        }
        for counter in filter_counters
            .existing
            .iter()
            .filter_map(|id| self.anti_affinity_owners.get(*id))
        {
            retain_rows(
                &self.anti_affinity_owners,
                counter,
                rows,
                fits,
                |_, count| count <= 0,
            );
        }
    }
    fn filter_groups(&self, cycle: &Cycle<'_>, state: &State) -> Option<Groups> {
        let filter_counters = state.get::<FilterCounters>()?;
        let all_counters = &self.matching_pods;
        let mut groups = Groups::default();
        for counter in filter_counters
            .affinity
            .iter()
            .filter_map(|id| all_counters.get(*id))
        {
            // A node without the label is rejected, so it may differ from nodes that count nothing.
            if all_counters.is_plain(counter)
                && !all_counters.is_on_every_node(counter, cycle.view.nodes)
            {
                return None;
            }
            groups = all_counters.refine_groups(counter, groups, cycle.view.nodes)?;
        }
        for counter in filter_counters
            .anti_affinity
            .iter()
            .filter_map(|id| all_counters.get(*id))
        {
            groups = all_counters.refine_groups(counter, groups, cycle.view.nodes)?;
        }
        let existing = filter_counters.existing.iter();
        for counter in existing.filter_map(|id| self.anti_affinity_owners.get(*id)) {
            groups = self
                .anti_affinity_owners
                .refine_groups(counter, groups, cycle.view.nodes)?;
        }
        Some(groups)
    }
    fn score_rows(
        &self,
        _cycle: &Cycle<'_>,
        state: &State,
        rows: &[NodeIndex],
        scores: &mut [i64],
    ) {
        scores.fill(0);
        let Some(score_counters) = state.get::<ScoreCounters>() else {
            return;
        };
        let all_counters = &self.matching_pods;
        let mut add = |all_counters: &TopologyCounters, id: CounterId, weight: i64| {
            let Some(counter) = all_counters.get(id).filter(|counter| !counter.is_zero()) else {
                return;
            };
            let domains = all_counters.domains_of(counter);
            for (node, score) in rows.iter().zip(&mut *scores) {
                let domain = domains.get(node.row()).copied().unwrap_or(NO_DOMAIN);
                *score += weight * i64::from(counter.at(domain));
            }
        };
        for (id, weight) in &score_counters.own_terms {
            add(all_counters, *id, *weight);
        }
        for id in &score_counters.owners {
            add(&self.preference_owners, *id, 1);
        }
    }
    /// Groups the nodes that get equal scores: those with equal pod counts for every scored term.
    fn score_groups(&self, cycle: &Cycle<'_>, state: &State) -> Option<Groups> {
        let score_counters = state.get::<ScoreCounters>()?;
        let all_counters = &self.matching_pods;
        let mut groups = Groups::default();
        for counter in score_counters
            .own_terms
            .iter()
            .filter_map(|(id, _)| all_counters.get(*id))
        {
            groups = all_counters.refine_groups(counter, groups, cycle.view.nodes)?;
        }
        for counter in score_counters
            .owners
            .iter()
            .filter_map(|id| self.preference_owners.get(*id))
        {
            groups = self
                .preference_owners
                .refine_groups(counter, groups, cycle.view.nodes)?;
        }
        Some(groups)
    }
}

/// Clears `fits` for rows on which `keep`, called with whether the node has the label and the count of its
/// domain, returns false.
fn retain_rows(
    all_counters: &TopologyCounters,
    counter: &crate::common::topology::Counter,
    rows: &[NodeIndex],
    fits: &mut [bool],
    keep: impl Fn(bool, i32) -> bool,
) {
    let (domains, counts) = (all_counters.domains_of(counter), counter.counts());
    for (node, fits) in rows.iter().zip(fits) {
        let domain = domains.get(node.row()).copied().unwrap_or(NO_DOMAIN);
        let count = counts.get(domain as usize).copied().unwrap_or(0);
        *fits &= keep(domain != NO_DOMAIN, count);
    }
}
