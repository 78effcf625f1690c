//! Preemption: selection of the pods of lower priority to evict, and of the node.
//!
//! A node is a candidate if the pod fits once all possible victims are removed; then as many of them as
//! possible are spared, first those whose disruption budget is used up, then by importance. The plan is
//! carried out through [`Output::Evict`]; until the victims are gone, the pod's nomination reserves the room
//! on the node.

use super::cluster::ClusterState;
use super::measure::Meter;
use super::plugin_table::PluginTable;
use super::preemption_cache::{CachedPlan, PreemptionCache, PreemptionCacheKey};
use super::preemptor::Preemptor;
use super::scope::Scope;
use super::waiting::WaitEnd;
use super::{Engine, EngineOptions, Output};
use crate::framework::{
    Code, Cycle, Diagnosis, Instance, NodeRefusal, Preemption, Reason, Rejection, RowVerdict,
    Signable, Signature, Verb, View, Write,
};
use crate::queue::Queue;
use crate::state::{NodeIndex, NodeStore, PodInfo};
use jiff::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::json;
use std::cmp::Reverse;
use std::sync::Arc;

const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
pub(super) const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// The cost of a plan, in order of significance: violated budgets, the highest priority, the sum of
/// priorities, the number of victims, and how long the most important one has run.
pub(super) type PlanCost = (usize, i32, i64, usize, Reverse<Timestamp>);

/// The victims to evict from one node.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) node: NodeIndex,
    /// The victims, from the most to the least important.
    pub(super) victims: Vec<Arc<PodInfo>>,
    pub(super) cost: PlanCost,
}

impl Plan {
    pub(super) fn new(node: NodeIndex, mut victims: Vec<Arc<PodInfo>>, violations: usize) -> Self {
        victims.sort_by(|a, b| importance(a).cmp(&importance(b)));
        let cost = cost(&victims, violations);
        Self {
            node,
            victims,
            cost,
        }
    }
}

/// The result of an attempt to make room for a pod.
#[derive(Debug)]
pub(super) enum PreemptionOutcome {
    Room(Arc<Plan>),
    /// No plan helps; holds the text for the condition. A previous nomination is cleared.
    Hopeless(String),
    /// The pod may not preempt; with the text for the condition.
    Ineligible(String),
    /// Victims of an earlier preemption for the pod are still terminating; with the text for the condition.
    Waits(String),
}

/// The parts of the engine that victim searches read.
#[derive(Clone, Copy)]
pub(super) struct VictimSearch<'a> {
    pub(super) options: &'a EngineOptions,
    pub(super) cluster: &'a ClusterState,
    pub(super) table: &'a PluginTable,
    pub(super) queue: &'a Queue,
    pub(super) preemptor: &'a Preemptor,
    pub(super) meter: &'a Meter,
    /// True if pods may share results.
    pub(super) shares: bool,
}

/// The preemptor pod and its preemption rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreemptionRequest<'a> {
    pub(super) pod: &'a Arc<PodInfo>,
    pub(super) profile: usize,
    /// The plugin that the rules are from.
    pub(super) owner: Instance,
    pub(super) rules: &'a Preemption<'a>,
    pub(super) diagnosis: &'a Diagnosis,
}

impl<'a> VictimSearch<'a> {
    /// Creates a search for victims in `engine`.
    pub(super) fn new(engine: &'a Engine) -> Self {
        Self {
            options: &engine.options,
            cluster: &engine.cluster,
            table: &engine.table,
            queue: &engine.queue,
            preemptor: &engine.preemptor,
            meter: &engine.telemetry.meter,
            shares: engine.classes.enabled,
        }
    }
}

impl Engine {
    /// Evicts `victims` from `node` to make room for `pod`.
    pub(super) fn evict_victims(
        &mut self,
        pod: &Arc<PodInfo>,
        node: &Arc<str>,
        victims: Vec<Arc<PodInfo>>,
        plugin: &'static str,
        now: Timestamp,
    ) {
        let (mut going, mut waiting) = (Vec::new(), Vec::new());
        for victim in victims {
            if self.waits.pods.contains_key(&victim.uid) {
                waiting.push(victim.uid.clone());
            } else {
                self.preemptor
                    .evicting
                    .insert(victim.uid.clone(), pod.uid.clone());
                if !victim.deleting {
                    going.push(victim);
                }
            }
        }
        self.preemptor.victims += going.len() + waiting.len();
        for uid in waiting {
            self.reject_waiting(&uid, plugin, "preempted", WaitEnd::Rejected, now);
        }
        if !going.is_empty() {
            self.outbox.push(Output::Evict {
                preemptor: pod.clone(),
                node: node.clone(),
                victims: going,
            });
        }
    }

    /// Handles a failed eviction: the preemptor is tried again and may find other victims.
    pub fn eviction_failed(&mut self, victim: &str) {
        if let Some(preemptor) = self.preemptor.evicting.remove(victim) {
            self.queue.activate(&preemptor);
        }
    }
}

impl Preemptor {
    /// Nominates `pod` to `node` and clears the nominations of pods of lower priority there. Returns the name
    /// of the node.
    pub(super) fn claim(
        &mut self,
        (nodes, outbox): (&mut NodeStore, &mut Vec<Output>),
        pod: &Arc<PodInfo>,
        node: NodeIndex,
    ) -> Arc<str> {
        let node = nodes.name(node).clone();
        let mates = FxHashSet::default();
        self.clear_outranked((nodes, outbox), &node, pod.priority, &mates);
        self.nominator.nominate(nodes, pod, &node);
        node
    }

    /// Clears the nominations to `node` of pods with a lower priority than `priority`, except `mates` (uids).
    pub(super) fn clear_outranked(
        &mut self,
        (nodes, outbox): (&mut NodeStore, &mut Vec<Output>),
        node: &str,
        priority: i32,
        mates: &FxHashSet<Arc<str>>,
    ) {
        let outranked: Vec<Arc<PodInfo>> = self
            .nominator
            .on(node)
            .iter()
            .filter(|other| other.priority < priority && !mates.contains(&other.uid))
            .cloned()
            .collect();
        for other in outranked {
            self.nominator.remove_nomination(nodes, &other.uid);
            if other.is_holder() {
                continue;
            }
            // Its status may not show the nomination yet; then only an unconditional write clears it.
            if other.nominated.is_none() {
                outbox.push(Output::Write(clear_nomination(&other)));
            }
            // The binder must not expect the nomination any more, either.
            outbox.push(Output::Expect {
                pod: other,
                node: Arc::from(""),
            });
        }
    }
}

impl VictimSearch<'_> {
    /// Returns the key under which results per node can be cached, and the version of the budgets'
    /// allowances; `None` if results cannot be cached.
    fn cache_key(
        &self,
        request: &PreemptionRequest<'_>,
        view: View<'_>,
        is_stable: bool,
    ) -> Option<(PreemptionCacheKey, u64)> {
        let rules = self.table.plugins[request.owner].post_filter()?;
        let version = rules.preemption_state(view)?;
        let mut shape = Signature::default();
        let shared = is_stable
            && self.shares
            // A nominated pod is refused its own node for another reason.
            && self.preemptor.nominator.node_of(&request.pod.uid).is_none()
            && self.table.sign(request.pod, request.profile, view, &mut shape) == Signable::Yes;
        shared.then(|| {
            let key = PreemptionCacheKey {
                profile: request.profile,
                owner: request.owner,
                rules: version.rules,
                priority: request.pod.priority,
                shape: shape.finish(),
            };
            (key, version.allowances)
        })
    }

    /// Returns the nodes with possible victims for `pod`, sorted, if the rules can list them.
    fn pool(&self, pod: &PodInfo, rules: &Preemption<'_>) -> Option<Vec<NodeIndex>> {
        let pool = rules.pool.as_ref().filter(|_| self.shares)?;
        let mut nodes = Vec::new();
        pool(&mut |uid| {
            let record = self.cluster.pods.get(uid);
            let record = record.filter(|record| record.info.priority < pod.priority);
            nodes.extend(record.map(|record| record.node));
        });
        nodes.sort_unstable();
        nodes.dedup();
        Some(nodes)
    }

    /// Searches for victims. Changes nothing but `preemption_cache`, and adds every plan it finds to `all`.
    pub(super) fn find_victims(
        &self,
        request: &PreemptionRequest<'_>,
        preemption_cache: &mut PreemptionCache,
        all: &mut Vec<Arc<Plan>>,
        now: Timestamp,
    ) -> PreemptionOutcome {
        let PreemptionRequest {
            pod,
            profile,
            owner,
            rules,
            diagnosis,
        } = *request;
        let total = self.cluster.nodes.len();
        if total == 0 {
            return PreemptionOutcome::Ineligible(String::new());
        }
        let policy = pod
            .spec()
            .and_then(|spec| spec.preemption_policy.as_deref());
        if policy == Some("Never") {
            let text = "not eligible due to preemptionPolicy=Never.";
            return PreemptionOutcome::Ineligible(format!("{}{text}", rules.prefix));
        }
        let pool = self.pool(pod, rules);
        let may_have_victims = pool.as_ref().is_none_or(|nodes| !nodes.is_empty())
            && self
                .cluster
                .lowest_priority()
                .is_some_and(|lowest| lowest < pod.priority);
        let no_victims = || {
            // Nodes may have been deleted while extenders were called.
            let remaining = total.saturating_sub(diagnosis.helpable);
            let refusals = [
                (Reason::Static(NO_VICTIMS), diagnosis.helpable),
                (Reason::Static(NOT_HELPFUL), remaining),
            ];
            PreemptionOutcome::Hopeless(no_candidates_message(rules.prefix, total, refusals))
        };
        let before_filters = diagnosis.pre_filter_by.is_some();
        if !may_have_victims
            && !before_filters
            && diagnosis.helpable > 0
            && self.preemptor.nominator.node_of(&pod.uid).is_none()
        {
            return no_victims();
        }
        let cycle = Cycle::new(pod, self.cluster.view(now));
        let tolerated = diagnosis.pre_filter_by.filter(|by| *by == owner);
        let despite = tolerated.map_or(0, |by| 1 << by);
        let prepared = match self
            .table
            .prepare_tolerating(self.meter, &cycle, profile, despite)
        {
            Ok(prepared) if before_filters == tolerated.is_some() => Some(prepared),
            _ => None,
        };
        let Some(prepared) = prepared.filter(|_| diagnosis.helpable > 0) else {
            // Evictions cannot lift another plugin's refusal from before any node was filtered.
            let reason = match diagnosis.helpable {
                0 => NOT_HELPFUL,
                _ => NO_VICTIMS,
            };
            let refusals = [(Reason::Static(reason), total)];
            return PreemptionOutcome::Hopeless(no_candidates_message(
                rules.prefix,
                total,
                refusals,
            ));
        };
        let chain = self.table.chain(prepared);
        let nominator = &self.preemptor.nominator;
        let scope = Scope::new(cycle, self.table, &chain, nominator, self.options);
        if let Some(node) = self.preemptor.nominator.node_of(&pod.uid)
            && let Some(node) = self.cluster.nodes.find(node)
            && !never_fits(&scope.judge(node))
            && self
                .cluster
                .nodes
                .pods(node)
                .any(|other| self.is_awaited(pod, node, other, rules))
        {
            let text = "not eligible due to a terminating pod on the nominated node.";
            return PreemptionOutcome::Waits(format!("{}{text}", rules.prefix));
        }
        if !may_have_victims {
            return no_victims();
        }
        let every: Vec<NodeIndex>;
        let candidates = if before_filters {
            every = self.cluster.nodes.indices().collect();
            &every
        } else {
            &diagnosis.candidates
        };
        let mut refusals = FxHashMap::<Reason, usize>::default();
        let unhelpful = total.saturating_sub(candidates.len());
        refusals.insert(Reason::Static(NOT_HELPFUL), unhelpful);
        let enough_plans = enough_candidates(candidates.len(), rules);
        let offset = super::class::mix(self.options.seed ^ self.preemptor.searches);
        let offset = usize::try_from(offset % candidates.len().max(1) as u64).unwrap_or(0);
        let (ahead, behind) = candidates.split_at(offset.min(candidates.len()));
        let is_stable = scope.prepared.volatile_filters.is_empty() && !before_filters;
        let key = self.cache_key(request, cycle.view, is_stable);
        let (mut cached, allowances) = match key {
            Some((key, allowances)) => (
                Some(preemption_cache.shape(key, self.cluster.nodes.rows())),
                allowances,
            ),
            None => (None, 0),
        };
        let (mut best, mut plans, mut victimless): (Option<Arc<Plan>>, usize, usize) = (None, 0, 0);
        for node in behind.iter().chain(ahead) {
            if let Some(pool) = &pool
                && pool.binary_search(node).is_err()
            {
                victimless += 1;
                continue;
            }
            let fresh;
            let found = match &mut cached {
                None => {
                    fresh = self.victims_on(&scope, rules, *node).0;
                    &fresh
                }
                Some(cached) => {
                    let version = self.cluster.nodes.victims_version(*node);
                    let current = |found: &CachedPlan| {
                        let allowed = found.allowances.is_none_or(|version| version == allowances);
                        found.version == version && allowed
                    };
                    let compute = || {
                        let (plan, has_budgets) = self.victims_on(&scope, rules, *node);
                        CachedPlan {
                            version,
                            allowances: has_budgets.then_some(allowances),
                            plan,
                        }
                    };
                    &cached.get_or_compute(node.row(), current, compute).plan
                }
            };
            match found {
                Ok(plan) => {
                    plans += 1;
                    all.push(plan.clone());
                    // Of equal plans, the first is taken.
                    if best.as_ref().is_none_or(|best| plan.cost < best.cost) {
                        best = Some(plan.clone());
                    }
                    // Stop once one of them violates no budget.
                    if plans >= enough_plans && best.as_ref().is_some_and(|best| best.cost.0 == 0) {
                        break;
                    }
                }
                Err(rejection) => {
                    for reason in rejection.reasons.as_slice() {
                        match refusals.get_mut(reason) {
                            Some(nodes) => *nodes += 1,
                            None => drop(refusals.insert(reason.clone(), 1)),
                        }
                    }
                }
            }
        }
        if let Some(plan) = best {
            return PreemptionOutcome::Room(plan);
        }
        *refusals.entry(Reason::Static(NO_VICTIMS)).or_default() += victimless;
        PreemptionOutcome::Hopeless(no_candidates_message(rules.prefix, total, refusals))
    }

    /// Returns the least harmful set of victims on `node`, and whether any possible victim has a disruption
    /// budget.
    fn victims_on(
        &self,
        scope: &Scope<'_>,
        rules: &Preemption<'_>,
        node: NodeIndex,
    ) -> (Result<Arc<Plan>, Rejection>, bool) {
        let pod = scope.cycle.pod;
        let pods = self.cluster.nodes.pods(node);
        let mut removed: Vec<Arc<PodInfo>> = pods
            .filter(|other| self.is_evictable(pod, node, other, rules))
            .cloned()
            .collect();
        if removed.is_empty() {
            return (Err(Rejection::unresolvable(NO_VICTIMS)), false);
        }
        let fits = |removed: &[Arc<PodInfo>]| match scope.judge_without(node, removed) {
            RowVerdict::Fits(_) if (rules.suffices)(removed) => Ok(()),
            RowVerdict::Fits(_) | RowVerdict::Absent => Err(Rejection::unresolvable(NOT_HELPFUL)),
            RowVerdict::Refused(_, rejection) => Err(rejection),
        };
        if let Err(rejection) = fits(&removed) {
            return (Err(rejection), false);
        }
        removed.sort_by(|a, b| importance(a).cmp(&importance(b)));
        let (order, unprotected, has_budgets) = spare_order(&removed, rules, &FxHashMap::default());
        let (mut victims, mut violations) = (Vec::new(), 0);
        for (nth, other) in order.into_iter().enumerate() {
            let Some(at) = removed.iter().position(|pod| pod.uid == other.uid) else {
                continue;
            };
            removed.remove(at);
            if fits(&removed).is_err() {
                removed.insert(at, other.clone());
                violations += usize::from(nth < unprotected);
                victims.push(other);
            }
        }
        if victims.is_empty() {
            return (Err(Rejection::unresolvable(NO_VICTIMS)), has_budgets);
        }
        let plan = Plan::new(node, victims, violations);
        (Ok(Arc::new(plan)), has_budgets)
    }

    /// Returns true if evicting `other` for `pod` is allowed and frees its room.
    pub(super) fn is_evictable(
        &self,
        pod: &PodInfo,
        node: NodeIndex,
        other: &PodInfo,
        rules: &Preemption<'_>,
    ) -> bool {
        if other.priority >= pod.priority || other.is_holder() {
            return false;
        }
        let mut protections = self
            .table
            .protectors
            .iter()
            .filter_map(|instance| self.table.plugins[*instance].protection());
        let (nodes, resources) = (&self.cluster.nodes, &self.cluster.resources);
        !protections.any(|protection| protection.protects(other, node, pod, nodes, resources))
            && (rules.may_evict)(other)
    }

    /// Returns true if `other`, on the node that `pod` is nominated to, is terminating and will leave room
    /// for it.
    pub(super) fn is_awaited(
        &self,
        pod: &PodInfo,
        node: NodeIndex,
        other: &PodInfo,
        rules: &Preemption<'_>,
    ) -> bool {
        if other.priority >= pod.priority || other.is_holder() {
            return false;
        }
        let awaits = rules.awaits.as_ref();
        awaits.is_some_and(|awaits| awaits(other))
            || (self.is_evictable(pod, node, other, rules) && self.is_going(other))
    }

    /// Returns true if a pod is terminating because of a preemption.
    fn is_going(&self, pod: &PodInfo) -> bool {
        if self.preemptor.evicting.contains_key(&pod.uid) {
            return true;
        }
        let conditions = pod.status().and_then(|s| s.conditions.as_ref());
        pod.deleting
            && conditions.into_iter().flatten().any(|condition| {
                condition.type_ == "DisruptionTarget"
                    && condition.status == "True"
                    && condition.reason.as_deref() == Some("PreemptionByScheduler")
            })
    }
}

/// Returns how many candidate nodes are enough.
pub(super) fn enough_candidates(candidates: usize, rules: &Preemption<'_>) -> usize {
    let share = |percent: i64| {
        let percent = usize::try_from(percent).unwrap_or(0).min(100);
        candidates.saturating_mul(percent) / 100
    };
    let least = usize::try_from(rules.min_candidate_absolute).unwrap_or(0);
    share(rules.min_candidate_percentage).max(least)
}

pub(super) fn never_fits(verdict: &RowVerdict) -> bool {
    matches!(
        verdict,
        RowVerdict::Refused(
            _,
            Rejection {
                code: Code::Unresolvable,
                ..
            }
        )
    )
}

/// Returns a sort key that puts the more important pod first: by priority, then by how long it has run.
pub(super) fn importance(pod: &PodInfo) -> (Reverse<i32>, Timestamp, &str) {
    (Reverse(pod.priority), started(pod), &*pod.uid)
}

fn started(pod: &PodInfo) -> Timestamp {
    pod.started.unwrap_or(Timestamp::MAX)
}

/// Returns the order in which `pods`, the most important first, are spared: those whose eviction violates a
/// budget come first. `spent` holds evictions already counted against budgets. Also returns how many violate
/// a budget, and whether any pod has one.
pub(super) fn spare_order(
    pods: &[Arc<PodInfo>],
    rules: &Preemption<'_>,
    spent: &FxHashMap<u64, i64>,
) -> (Vec<Arc<PodInfo>>, usize, bool) {
    let mut remaining: FxHashMap<u64, i64> = FxHashMap::default();
    let (mut order, mut others) = (Vec::with_capacity(pods.len()), Vec::new());
    let mut has_budgets = false;
    for pod in pods {
        let mut broken = false;
        for (budget, allowed) in (rules.budgets)(pod) {
            has_budgets = true;
            let spent = || spent.get(&budget).copied().unwrap_or_default();
            let remaining = remaining
                .entry(budget)
                .or_insert_with(|| allowed.saturating_sub(spent()));
            *remaining -= 1;
            broken |= *remaining < 0;
        }
        if broken { &mut order } else { &mut others }.push(pod.clone());
    }
    let unprotected = order.len();
    order.append(&mut others);
    (order, unprotected, has_budgets)
}

/// Returns the cost of evicting `victims`, the most important first, of which `violations` have no budget
/// left.
pub(super) fn cost(victims: &[Arc<PodInfo>], violations: usize) -> PlanCost {
    let highest = victims.first().map_or(i32::MIN, |pod| pod.priority);
    // Shifted so that more pods never weigh less than fewer, also with negative priorities.
    let weight = |pod: &Arc<PodInfo>| i64::from(pod.priority) + (1 << 31);
    let sum = victims.iter().map(weight).fold(0, i64::saturating_add);
    let oldest = victims
        .iter()
        .filter(|pod| pod.priority == highest)
        .map(|pod| started(pod))
        .min();
    let oldest = Reverse(oldest.unwrap_or(Timestamp::MAX));
    (violations, highest, sum, victims.len(), oldest)
}

/// Returns the message of the pod's condition if preemption cannot help: the nodes by reason of refusal.
pub(super) fn no_candidates_message(
    prefix: &str,
    total_nodes: usize,
    refusals: impl IntoIterator<Item = (Reason, usize)>,
) -> String {
    let refusals = refusals.into_iter().filter(|(_, nodes)| *nodes > 0);
    let diagnosis = Diagnosis {
        total_nodes,
        refusals: refusals
            .map(|(reason, nodes)| NodeRefusal {
                failed_plugin: "",
                reason,
                preempt_might_help: false,
                nodes,
            })
            .collect(),
        ..Diagnosis::default()
    };
    format!("{prefix}{}", diagnosis.message())
}

fn clear_nomination(pod: &PodInfo) -> Write {
    Write {
        group: "",
        version: "v1",
        plural: "pods",
        namespace: pod.namespace.to_string(),
        name: pod.name.to_string(),
        verb: Verb::PatchStatus(
            json!({"metadata": {"uid": &*pod.uid}, "status": {"nominatedNodeName": null}}),
        ),
        timed: None,
    }
}
