//! `PodTopologySpread`: spreads pods that belong together over zones, hosts and other topology domains.

mod args;
mod owners;
#[cfg(test)]
mod tests;

use crate::common::UNPREPARED;
use crate::common::node_selector::{self, RequiredNodeAffinity};
use crate::common::topology::{
    Counter, CounterId, DomainSpec, NO_DOMAIN, Namespaces, Selector, Term, TopologyCounters,
    sign_selector,
};
use args::Args;
use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Filter,
    FitSummary, Groups, Holders, Inputs, Interest, Normalize, ObjectChange, ObjectEvents, Plugin,
    PodEvents, Points, PreFilter, PreFilterResult, PreScore, PreScoreResult, Preparation,
    QueueHints, QueueingHint, Rejection, Roles, Score, Signature, State, Subject, Verdict, View,
    Volatile,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use owners::OwnerSelectors;
use serde_json::Value;
use std::sync::Arc;

const NAME: &str = "PodTopologySpread";
const HOSTNAME: &str = "kubernetes.io/hostname";
const DO_NOT_SCHEDULE: &str = "DoNotSchedule";
const SCHEDULE_ANYWAY: &str = "ScheduleAnyway";
const NO_MATCH: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";

/// State of the `PodTopologySpread` plugin.
#[derive(Debug)]
pub(crate) struct TopologySpread {
    defaults: Vec<TopologySpreadConstraint>,
    /// True if the defaults are the built-in ones, for which nodes without a zone label count, too.
    system: bool,
    owners: OwnerSelectors,
    all_counters: TopologyCounters,
    prepared: SpreadConstraints,
}

/// Constraints of the pod that is being scheduled, with existing counters.
#[derive(Debug, Default)]
struct SpreadConstraints {
    pod: Option<Arc<PodInfo>>,
    hard: Vec<SpreadConstraint>,
    soft: Vec<SpreadConstraint>,
}

/// Spread constraint of a pod, with its counter.
#[derive(Debug, Clone, Copy)]
struct SpreadConstraint {
    counter: CounterId,
    max_skew: i32,
    min_domains: usize,
    /// 1 if the pod itself matches the constraint, otherwise 0.
    own: i32,
    per_host: bool,
}

/// Hard constraints (`DoNotSchedule`) of a pod.
#[derive(Debug)]
struct HardConstraints(Vec<SpreadConstraint>);

/// Soft constraints (`ScheduleAnyway`) of a pod.
#[derive(Debug)]
struct SoftConstraints {
    constraints: Vec<SpreadConstraint>,
    /// True if nodes without one of the labels get no score.
    require_all_topologies: bool,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args = Args::decode(value)?;
    Ok(Box::new(TopologySpread {
        defaults: args.constraints(),
        system: args.is_system(),
        owners: OwnerSelectors::default(),
        all_counters: TopologyCounters::default(),
        prepared: SpreadConstraints::default(),
    }))
}

/// Returns the spread constraints in the pod's spec.
fn spread_constraints(pod: &PodInfo) -> &[TopologySpreadConstraint] {
    pod.spec()
        .and_then(|spec| spec.topology_spread_constraints.as_deref())
        .unwrap_or_default()
}

/// Returns the selector of the pods that count for `constraint` of `pod`.
fn selector(constraint: &TopologySpreadConstraint, pod: &PodInfo) -> Selector {
    let mut selector = Selector::parse(constraint.label_selector.as_ref());
    for key in constraint.match_label_keys.iter().flatten() {
        if let Some(value) = pod.label(key) {
            selector.and(key, value, true);
        }
    }
    selector
}

/// Returns no namespace labels: spread constraints do not select namespaces.
fn no_namespace_labels(_: &str) -> Option<crate::common::topology::Labels> {
    None
}

impl TopologySpread {
    /// Returns the constraints that were prepared for the cycle's pod.
    fn prepared(&self, cycle: &Cycle<'_>) -> Option<&SpreadConstraints> {
        let is_it = |pod: &Arc<PodInfo>| Arc::ptr_eq(pod, cycle.pod);
        self.prepared
            .pod
            .as_ref()
            .is_some_and(is_it)
            .then_some(&self.prepared)
    }

    /// Returns the constraints of the cycle's pod with this action: its own, or the default ones if it has
    /// none.
    fn constraints(&mut self, cycle: &Cycle<'_>, action: &str) -> Vec<SpreadConstraint> {
        let pod = cycle.pod;
        let own = spread_constraints(pod);
        let (effective, group_selector) = if own.is_empty() {
            if self.defaults.iter().all(|c| c.when_unsatisfiable != action) {
                return Vec::new();
            }
            let group_selector = self.owners.selector(pod);
            if group_selector.is_empty() {
                return Vec::new();
            }
            (&self.defaults[..], Some(group_selector))
        } else {
            (own, None)
        };
        let chosen: Vec<&TopologySpreadConstraint> = effective
            .iter()
            .filter(|constraint| constraint.when_unsatisfiable == action)
            .collect();
        let require_all_topologies = !own.is_empty() || !self.system;
        let required_keys: Vec<String> = if require_all_topologies {
            chosen.iter().map(|c| c.topology_key.clone()).collect()
        } else {
            Vec::new()
        };
        let all_counters = &mut self.all_counters;
        chosen
            .iter()
            .map(|constraint| {
                let counter = find_or_count(
                    all_counters,
                    constraint,
                    group_selector.as_ref(),
                    &required_keys,
                    cycle,
                );
                let counts = |counter: &Counter| {
                    // The pod counts by its labels only, even when it is terminating.
                    counter.selects(pod)
                };
                SpreadConstraint {
                    counter,
                    max_skew: constraint.max_skew,
                    min_domains: usize::try_from(constraint.min_domains.unwrap_or(1)).unwrap_or(1),
                    own: i32::from(all_counters.get(counter).is_some_and(counts)),
                    per_host: constraint.topology_key == HOSTNAME,
                }
            })
            .collect()
    }
}

/// Returns the counter of `constraint` for the cycle's pod; creates it if necessary.
fn find_or_count(
    all_counters: &mut TopologyCounters,
    constraint: &TopologySpreadConstraint,
    group_selector: Option<&Selector>,
    required_keys: &[String],
    cycle: &Cycle<'_>,
) -> CounterId {
    let pod = cycle.pod;
    let honors = |policy: &Option<String>, default: bool| {
        policy
            .as_deref()
            .map_or(default, |policy| policy == "Honor")
    };
    let by_affinity = honors(&constraint.node_affinity_policy, true);
    let by_taints = honors(&constraint.node_taints_policy, false);
    let spec = pod.spec();
    let node_selector = spec.and_then(|spec| spec.node_selector.as_ref());
    let affinity = spec
        .and_then(|spec| spec.affinity.as_ref())
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let mut key = Signature::default();
    key.text(&pod.namespace);
    key.text(&constraint.topology_key);
    match group_selector {
        Some(selector) => selector.sign(&mut key),
        None => sign_selector(constraint.label_selector.as_ref(), &mut key),
    }
    for name in constraint.match_label_keys.iter().flatten() {
        if let Some(value) = pod.label(name) {
            key.text(name);
            key.text(value);
        }
    }
    key.number(-1);
    for required_key in required_keys {
        key.text(required_key);
    }
    key.number(-1);
    if by_affinity && (node_selector.is_some() || affinity.is_some()) {
        node_selector::sign_selector(node_selector, &mut key);
        key.flag(affinity.is_some());
        let terms = affinity.map(|selector| &selector.node_selector_terms[..]);
        node_selector::sign_terms(terms.unwrap_or_default(), &mut key);
    }
    key.number(-1);
    if by_taints {
        let tolerations = spec.and_then(|spec| spec.tolerations.as_deref());
        crate::common::tolerations::sign(tolerations.unwrap_or_default(), &mut key);
    }
    let key = key.finish();
    if let Some(counter) = all_counters.find(key) {
        return counter;
    }
    let required_affinity = RequiredNodeAffinity::from_pod(pod);
    let domain_spec = DomainSpec {
        key: constraint.topology_key.clone(),
        needs: required_keys
            .iter()
            .filter(|need| **need != constraint.topology_key)
            .cloned()
            .collect(),
        affinity: (by_affinity && !required_affinity.is_empty()).then_some(required_affinity),
        tolerations: by_taints.then(|| {
            spec.and_then(|spec| spec.tolerations.clone())
                .unwrap_or_default()
        }),
    };
    let term = Term {
        namespaces: Namespaces {
            named: vec![pod.namespace.to_string()],
            selected: None,
        },
        selector: match group_selector {
            Some(selector) => selector.clone(),
            None => selector(constraint, pod),
        },
    };
    all_counters.insert_counted(
        key,
        vec![term],
        true,
        domain_spec,
        cycle.view.nodes,
        &no_namespace_labels,
    )
}

impl Plugin for TopologySpread {
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

impl Inputs for TopologySpread {
    fn watches(&self) -> Vec<Watch> {
        if self.defaults.is_empty() {
            return Vec::new();
        }
        OwnerSelectors::watches()
    }
}

impl PreFilter for TopologySpread {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        #[cfg(test)]
        assert!(
            self.all_counters
                .is_consistent(cycle.view.nodes, true, &no_namespace_labels)
        );
        match self.prepared(cycle) {
            Some(prepared) if prepared.hard.is_empty() => PreFilterResult::Skip,
            Some(prepared) => PreFilterResult::ready(HardConstraints(prepared.hard.clone())),
            None => PreFilterResult::Reject(Rejection::error(UNPREPARED)),
        }
    }
}

impl Filter for TopologySpread {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let all_counters = &self.all_counters;
        for constraint in state
            .get::<HardConstraints>()
            .into_iter()
            .flat_map(|hard| &hard.0)
        {
            let Some(counter) = all_counters.get(constraint.counter) else {
                continue;
            };
            let domains = all_counters.domains_of(counter);
            let domain = domains.get(node.row()).copied().unwrap_or(NO_DOMAIN);
            if domain == NO_DOMAIN {
                return Err(Rejection::unresolvable(NO_LABEL));
            }
            // Overlay pods count only on nodes that count.
            let change = if all_counters.counted_in(counter, node) == NO_DOMAIN {
                0
            } else {
                let matching = |pods: &[Arc<PodInfo>]| {
                    let matching = pods
                        .iter()
                        .filter(|pod| counter.matches(pod, &no_namespace_labels));
                    i32::try_from(matching.count()).unwrap_or(i32::MAX)
                };
                matching(cycle.overlay.added) - matching(cycle.overlay.removed)
            };
            let count = counter.at(domain) + change;
            let mut min = all_counters.min_except(counter, domain).unwrap_or(i32::MAX);
            if all_counters.is_counted(counter, domain) {
                min = min.min(count);
            }
            if all_counters.domain_count(counter) < constraint.min_domains {
                min = 0;
            }
            let skew = i64::from(count) + i64::from(constraint.own) - i64::from(min);
            if skew > i64::from(constraint.max_skew) {
                return Err(Rejection::unschedulable(NO_MATCH));
            }
        }
        Ok(())
    }
}

impl PreScore for TopologySpread {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let prepared = self
            .prepared(cycle)
            .filter(|prepared| !prepared.soft.is_empty());
        let Some(constraints) = prepared.map(|prepared| prepared.soft.clone()) else {
            return PreScoreResult::Skip;
        };
        let require_all_topologies = !self.system || !spread_constraints(cycle.pod).is_empty();
        PreScoreResult::Ready(State::new(SoftConstraints {
            constraints,
            require_all_topologies,
        }))
    }
}

impl Score for TopologySpread {
    fn normalization(&self) -> Normalize {
        Normalize::Custom
    }
    fn normalize(&self, _cycle: &Cycle<'_>, scores: &mut [i64]) {
        let taking_part = || scores.iter().copied().filter(|score| *score >= 0);
        let (min, max) = (
            taking_part().min().unwrap_or(0),
            taking_part().max().unwrap_or(0),
        );
        let mut last = (i64::MIN, 0);
        for score in scores {
            if last.0 != *score {
                let normal = match *score {
                    unscored if unscored < 0 => 0,
                    _ if max == 0 => 100,
                    score => 100 * (max + min - score) / max,
                };
                last = (*score, normal);
            }
            *score = last.1;
        }
    }
}

impl QueueHints for TopologySpread {
    fn interests(&self) -> Vec<Interest> {
        let interest = |subject, actions| Interest { subject, actions };
        vec![
            interest(
                Subject::AssignedPod,
                Action::ADD.or(Action::DELETE).or(Action::POD_LABEL),
            ),
            interest(
                Subject::Node,
                Action::ADD
                    .or(Action::DELETE)
                    .or(Action::NODE_LABEL)
                    .or(Action::NODE_TAINT),
            ),
            interest(
                Subject::UnscheduledPod,
                Action::POD_SPEC.or(Action::POD_LABEL),
            ),
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        let own = spread_constraints(pod);
        if own.is_empty() {
            return QueueingHint::Queue;
        }
        let mut hard = own
            .iter()
            .filter(|constraint| constraint.when_unsatisfiable == DO_NOT_SCHEDULE);
        let helps = match (event.subject, event.pod, event.node) {
            // A changed label can add the pod to the counted ones or remove it.
            (Subject::AssignedPod, Some(other), _) => {
                other.namespace == pod.namespace
                    && (event.action.meets(Action::POD_LABEL)
                        || hard.any(|constraint| selector(constraint, pod).matches(other.labels())))
            }
            (Subject::Node, _, Some(node)) => {
                event.action.meets(Action::NODE_LABEL)
                    || hard.all(|constraint| node.label(&constraint.topology_key).is_some())
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

impl Preparation for TopologySpread {
    fn prepare(&mut self, cycle: &Cycle<'_>) {
        self.prepared = SpreadConstraints {
            pod: Some(cycle.pod.clone()),
            hard: self.constraints(cycle, DO_NOT_SCHEDULE),
            soft: self.constraints(cycle, SCHEDULE_ANYWAY),
        };
    }
}

impl ObjectEvents for TopologySpread {
    fn on_object(&mut self, change: &ObjectChange, _view: View<'_>, _fx: &mut Effects) {
        self.owners.apply(change);
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let info = view.nodes.info(node).map(|info| &**info);
        self.all_counters.node_changed(node, info);
    }
}

impl PodEvents for TopologySpread {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.all_counters
            .add_pod(pod, node, 1, &no_namespace_labels);
    }
    fn on_updated(
        &mut self,
        old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        if old.labels() != new.labels() || old.deleting != new.deleting {
            self.all_counters
                .add_pod(old, node, -1, &no_namespace_labels);
            self.all_counters
                .add_pod(new, node, 1, &no_namespace_labels);
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.all_counters
            .add_pod(pod, node, -1, &no_namespace_labels);
    }
}

impl Volatile for TopologySpread {
    fn depends_on_other_nodes(&self, pod: &PodInfo, mate: &PodInfo) -> bool {
        let own = spread_constraints(pod);
        let group_selector = own.is_empty().then(|| self.owners.selector(pod));
        let all = if own.is_empty() { &self.defaults } else { own };
        let labels = mate.labels();
        let counts = |constraint: &TopologySpreadConstraint| match &group_selector {
            Some(group_selector) => !group_selector.is_empty() && group_selector.matches(labels),
            None => selector(constraint, pod).matches(labels),
        };
        // One more pod on another host cannot make this host worse.
        let hard = |constraint: &&TopologySpreadConstraint| {
            constraint.when_unsatisfiable == DO_NOT_SCHEDULE && constraint.topology_key != HOSTNAME
        };
        pod.namespace == mate.namespace && all.iter().filter(hard).any(counts)
    }
    fn filter_rows(&self, cycle: &Cycle<'_>, state: &State, rows: &[NodeIndex], fits: &mut [bool]) {
        debug_assert!(cycle.overlay.is_empty());
        let all_counters = &self.all_counters;
        for constraint in state
            .get::<HardConstraints>()
            .into_iter()
            .flat_map(|hard| &hard.0)
        {
            let Some(counter) = all_counters.get(constraint.counter) else {
                continue;
            };
            let min = if all_counters.domain_count(counter) < constraint.min_domains {
                0
            } else {
                all_counters
                    .min_except(counter, NO_DOMAIN)
                    .unwrap_or(i32::MAX)
            };
            // Maximum count of a domain that may take the pod.
            let max_count = constraint.max_skew.saturating_add(min) - constraint.own;
            let (domains, counts) = (all_counters.domains_of(counter), counter.counts());
            for (node, fits) in rows.iter().zip(&mut *fits) {
                let domain = domains.get(node.row()).copied().unwrap_or(NO_DOMAIN);
                let count = counts.get(domain as usize).copied().unwrap_or(0);
                *fits &= domain != NO_DOMAIN && count <= max_count;
            }
        }
    }
    /// More matching pods give a higher value, which normalization reverses. Nodes without a required label
    /// get -1.
    fn score_rows(
        &self,
        _cycle: &Cycle<'_>,
        state: &State,
        rows: &[NodeIndex],
        scores: &mut [i64],
    ) {
        let all_counters = &self.all_counters;
        let Some(soft) = state.get::<SoftConstraints>() else {
            return scores.fill(0);
        };
        let counters = soft.counters(all_counters);
        let unscored = soft.unscored(all_counters, &counters, rows);
        let number = unscored.iter().filter(|out| **out).count();
        let sizes = counters.iter().map(|(constraint, counter)| {
            if constraint.per_host {
                return rows.len() - number;
            }
            let domains = all_counters.domains_of(counter);
            let taking_part = rows.iter().zip(&unscored).filter(|(_, out)| !**out);
            count_distinct(taking_part.map(|(node, _)| domain_of(domains, *node)))
        });
        let sizes: Vec<usize> = sizes.collect();
        soft.score(all_counters, &counters, &sizes, &unscored, rows, scores);
    }
    /// Groups nodes by zone, or by the only label other than the hostname; hosts with counted pods are
    /// separate.
    fn filter_groups(&self, cycle: &Cycle<'_>, state: &State) -> Option<Groups> {
        let all_counters = &self.all_counters;
        let constraints = state.get::<HardConstraints>()?.0.iter();
        let counters = constraints.filter_map(|constraint| all_counters.get(constraint.counter));
        let mut groups = Groups::default();
        for counter in counters {
            // A node without the label is rejected, so it differs from all hosts that have it.
            if all_counters.is_plain(counter)
                && !all_counters.is_on_every_node(counter, cycle.view.nodes)
            {
                return None;
            }
            groups = all_counters.refine_groups(counter, groups, cycle.view.nodes)?;
        }
        Some(groups)
    }
    /// Groups nodes like [`Volatile::filter_groups`] of this plugin.
    fn score_groups(&self, cycle: &Cycle<'_>, state: &State) -> Option<Groups> {
        let all_counters = &self.all_counters;
        let counters = state.get::<SoftConstraints>()?.counters(all_counters);
        let mut groups = Groups::default();
        for (constraint, counter) in counters {
            if !constraint.per_host {
                groups = groups.with_label(all_counters.label(counter)?)?;
                continue;
            }
            // A node without the label is equivalent to no other.
            if !all_counters.is_on_every_node(counter, cycle.view.nodes) {
                return None;
            }
            groups = groups.with_apart(counter.nonzero_nodes(), cycle.view.nodes.rows())?;
        }
        Some(groups)
    }
    fn score_among(
        &self,
        _cycle: &Cycle<'_>,
        state: &State,
        around: &FitSummary,
        rows: &[NodeIndex],
        scores: &mut [i64],
    ) {
        let all_counters = &self.all_counters;
        let Some(soft) = state.get::<SoftConstraints>() else {
            return scores.fill(0);
        };
        let counters = soft.counters(all_counters);
        let unscored = soft.unscored(all_counters, &counters, rows);
        let sizes = counters.iter().map(|(constraint, _)| {
            let FitSummary {
                fitting,
                ungrouped,
                groups,
            } = *around;
            match (constraint.per_host, soft.require_all_topologies) {
                (true, true) => fitting - ungrouped,
                (true, false) => fitting,
                (false, true) => groups,
                (false, false) => groups + usize::from(ungrouped > 0),
            }
        });
        let sizes: Vec<usize> = sizes.collect();
        soft.score(all_counters, &counters, &sizes, &unscored, rows, scores);
    }
}

/// A constraint and its counter.
type CountedConstraint<'a> = (&'a SpreadConstraint, &'a Counter);

impl SoftConstraints {
    /// Returns the constraints with their counters.
    fn counters<'a>(&'a self, all_counters: &'a TopologyCounters) -> Vec<CountedConstraint<'a>> {
        let counted = |constraint: &'a SpreadConstraint| {
            Some((constraint, all_counters.get(constraint.counter)?))
        };
        self.constraints.iter().filter_map(counted).collect()
    }

    /// Returns, for each row, whether the node gets no score.
    fn unscored(
        &self,
        all_counters: &TopologyCounters,
        counters: &[CountedConstraint<'_>],
        rows: &[NodeIndex],
    ) -> Vec<bool> {
        let mut out = vec![false; rows.len()];
        if self.require_all_topologies {
            for (_, counter) in counters {
                let domains = all_counters.domains_of(counter);
                for (node, out) in rows.iter().zip(&mut out) {
                    *out |= domain_of(domains, *node) == NO_DOMAIN;
                }
            }
        }
        out
    }

    /// Computes scores; `sizes` has the number of domains of each constraint.
    fn score(
        &self,
        all_counters: &TopologyCounters,
        counters: &[CountedConstraint<'_>],
        sizes: &[usize],
        unscored: &[bool],
        rows: &[NodeIndex],
        scores: &mut [i64],
    ) {
        let mut sums = vec![0.0_f64; rows.len()];
        for ((constraint, counter), size) in counters.iter().zip(sizes) {
            let domains = all_counters.domains_of(counter);
            let weight = weight(*size);
            let base = f64::from(constraint.max_skew.saturating_sub(1));
            // Hosts are counted one by one even if several share a name or do not count.
            let exactly = constraint.per_host && !all_counters.is_plain(counter);
            for (node, sum) in rows.iter().zip(&mut sums) {
                let domain = domain_of(domains, *node);
                if domain == NO_DOMAIN {
                    continue;
                }
                let count = if exactly {
                    counter.on(*node)
                } else {
                    counter.at(domain)
                };
                *sum += f64::from(count) * weight + base;
            }
        }
        for ((score, sum), out) in scores.iter_mut().zip(sums).zip(unscored) {
            *score = if *out { -1 } else { rounded(sum) };
        }
    }
}

/// Returns the domain of `node`, or [`NO_DOMAIN`].
fn domain_of(domains: &[u32], node: NodeIndex) -> u32 {
    domains.get(node.row()).copied().unwrap_or(NO_DOMAIN)
}

/// Returns the number of different domains; nodes without a domain count as one more.
fn count_distinct(domains: impl Iterator<Item = u32>) -> usize {
    let mut bits: Vec<u64> = Vec::new();
    let (mut count, mut none) = (0, 0);
    for domain in domains {
        if domain == NO_DOMAIN {
            none = 1;
            continue;
        }
        let (word, bit) = (domain as usize / 64, 1_u64 << (domain % 64));
        if bits.len() <= word {
            bits.resize(word + 1, 0);
        }
        count += usize::from(bits[word] & bit == 0);
        bits[word] |= bit;
    }
    count + none
}

/// Returns the weight of a constraint, which grows with the number of domains.
#[allow(clippy::cast_precision_loss, reason = "numbers of domains are small")]
fn weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}

#[allow(clippy::cast_possible_truncation, reason = "saturates, as is wanted")]
fn rounded(sum: f64) -> i64 {
    sum.round() as i64
}
