//! Making room: which pods of lower priority to evict, and on which node.
//!
//! A node is a candidate when the pod fits without all the pods that may go; then as many of them
//! as possible are spared, those whose disruption budget is used up first, then by importance. The
//! plan is carried out by whoever reads [`Output::Evict`]; until the victims are gone, the node
//! keeps room for the pod by its nomination.

use super::class::Scope;
use super::diagnosis::{Diagnosis, NodeRefusal, RowVerdict};
use super::{Engine, Output};
use crate::framework::{
    Code, Cycle, Instance, Preemption, Rejection, Signable, Signature, Verb, Write,
};
use crate::state::{NodeIndex, PodInfo};
use jiff::Timestamp;
use rustc_hash::FxHashMap;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pods labelled with this, set to `true`, are never victims.
const DISABLE_PREEMPTIBLE: &str = "scheduling.koordinator.sh/disable-preemptible";
/// Names the reservation that a pod takes room from.
const RESERVATION_ALLOCATED: &str = "scheduling.koordinator.sh/reservation-allocated";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// Who goes from where.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) node: NodeIndex,
    /// From the most to the least important.
    victims: Vec<Arc<PodInfo>>,
    /// How many of them have no budget left.
    violations: usize,
}

/// How one attempt to make room ended.
#[derive(Debug)]
pub(super) enum Attempt {
    Room(Plan),
    /// With the text for the condition; a nomination of before is void.
    Hopeless(String),
    /// With the text for the condition.
    Ineligible(String),
}

/// Who asks for room, and under which rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) pod: &'a Arc<PodInfo>,
    pub(super) profile: usize,
    /// The plugin whose rules these are.
    pub(super) owner: Instance,
    pub(super) rules: &'a Preemption<'a>,
    pub(super) diagnosis: &'a Diagnosis,
}

/// Pods of one shape and priority, under rules in one state.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct MemoKey(usize, Instance, u64, i32, Signature);

/// What was found for a row in some version.
type Row = Option<(u64, Result<Plan, Rejection>)>;

/// What was found on nodes that have not changed since, for the shapes that asked last.
#[derive(Debug, Default)]
pub(super) struct Memo(FxHashMap<MemoKey, Vec<Row>>);

impl Memo {
    /// How many shapes are remembered.
    const SHAPES: usize = 8;

    fn rows(&mut self, key: MemoKey, rows: usize) -> &mut Vec<Row> {
        if self.0.len() >= Self::SHAPES && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let known = self.0.entry(key).or_default();
        known.resize(rows, None);
        known
    }
}

impl Engine {
    /// Verdicts may have changed in ways that no row's version tells.
    pub(super) fn forget_shared(&mut self) {
        self.classes.clear();
        self.memo = Memo::default();
    }

    /// What makes answers per node the same; `None` when they cannot be remembered.
    fn memo_key(&self, asked: &Asked<'_>, stable: bool) -> Option<MemoKey> {
        let state = self.plugins[asked.owner].preemption_state()?;
        let mut signature = Signature::default();
        let shared = stable
            && self.caching
            // One that has been promised room is refused its own node for another reason.
            && self.nominated_node(&asked.pod.uid).is_none()
            && self.sign(asked.pod, asked.profile, &mut signature) == Signable::Yes;
        shared.then(|| {
            MemoKey(
                asked.profile,
                asked.owner,
                state,
                asked.pod.priority,
                signature,
            )
        })
    }

    /// Looks for victims. Changes nothing but `memo`.
    pub(super) fn find_victims(
        &self,
        asked: &Asked<'_>,
        memo: &mut Memo,
        now: Timestamp,
    ) -> Attempt {
        let Asked {
            pod,
            profile,
            owner,
            rules,
            diagnosis,
        } = *asked;
        let total = self.nodes.len();
        if total == 0 {
            return Attempt::Ineligible(String::new());
        }
        let policy = pod
            .spec()
            .and_then(|spec| spec.preemption_policy.as_deref());
        if policy == Some("Never") {
            let text = "not eligible due to preemptionPolicy=Never.";
            return Attempt::Ineligible(format!("{}{text}", rules.prefix));
        }
        let mut refusals = BTreeMap::<String, usize>::new();
        let cycle = Cycle::new(pod, view!(self, now));
        let before_filters = diagnosis.pre_filter_by.is_some();
        let tolerated = diagnosis.pre_filter_by.filter(|by| *by == owner);
        let prepared = match self.prepare_despite(&cycle, profile, tolerated) {
            Ok(prepared) if before_filters == tolerated.is_some() => Some(prepared),
            _ => None,
        };
        let Some(prepared) = prepared.filter(|_| diagnosis.helpable > 0) else {
            refusals.insert(NOT_HELPFUL.to_owned(), total);
            return Attempt::Hopeless(self.hopeless(rules, total, refusals));
        };
        let scope = Scope {
            cycle,
            plugins: &self.plugins,
            prepared: &prepared,
            nominator: &self.nominator,
            shared: false,
            seed: self.options.seed,
            parallel_rows: self.options.parallel_rows,
        };
        if let Some(node) = self.nominated_node(&pod.uid)
            && let Some(node) = self.nodes.find(node)
            && !never_fits(&scope.judge(node))
            && self
                .nodes
                .pods(node)
                .any(|other| self.may_go(pod, other, rules) && self.is_going(other))
        {
            let text = "not eligible due to a terminating pod on the nominated node.";
            return Attempt::Ineligible(format!("{}{text}", rules.prefix));
        }
        let anyone = self
            .lowest_priority()
            .is_some_and(|lowest| lowest < pod.priority);
        if !anyone {
            refusals.insert(NO_VICTIMS.to_owned(), diagnosis.helpable);
            refusals.insert(NOT_HELPFUL.to_owned(), total - diagnosis.helpable);
            return Attempt::Hopeless(self.hopeless(rules, total, refusals));
        }
        let all: Vec<NodeIndex>;
        let candidates = if before_filters {
            all = self.nodes.indices().collect();
            &all
        } else {
            &diagnosis.candidates
        };
        refusals.insert(
            NOT_HELPFUL.to_owned(),
            total.saturating_sub(candidates.len()),
        );
        let wanted = wanted(candidates.len(), rules);
        let offset = super::class::mix(self.options.seed ^ self.preemptions);
        let offset = usize::try_from(offset % candidates.len().max(1) as u64).unwrap_or(0);
        let (ahead, behind) = candidates.split_at(offset.min(candidates.len()));
        let key = self.memo_key(asked, prepared.moving.is_empty() && !before_filters);
        let mut known = key.map(|key| memo.rows(key, self.nodes.rows()));
        let (mut sparing, mut violating) = (Vec::new(), Vec::new());
        for node in behind.iter().chain(ahead) {
            let version = self.nodes.version(*node);
            let found = match &mut known {
                None => self.victims_on(&scope, rules, *node),
                Some(known) => match &mut known[node.row()] {
                    Some((seen, found)) if *seen == version => found.clone(),
                    entry => {
                        let found = self.victims_on(&scope, rules, *node);
                        *entry = Some((version, found.clone()));
                        found
                    }
                },
            };
            match found {
                Ok(plan) if plan.violations == 0 => sparing.push(plan),
                Ok(plan) => violating.push(plan),
                Err(rejection) => {
                    for reason in rejection.reasons.as_slice() {
                        *refusals.entry(reason.to_string()).or_default() += 1;
                    }
                }
            }
            if !sparing.is_empty() && sparing.len() + violating.len() >= wanted {
                break;
            }
        }
        sparing.append(&mut violating);
        match sparing.into_iter().min_by_key(cost) {
            Some(plan) => Attempt::Room(plan),
            None => Attempt::Hopeless(self.hopeless(rules, total, refusals)),
        }
    }

    fn hopeless(
        &self,
        rules: &Preemption<'_>,
        total_nodes: usize,
        refusals: BTreeMap<String, usize>,
    ) -> String {
        let refusals = refusals.into_iter().filter(|(_, nodes)| *nodes > 0);
        let said = Diagnosis {
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
        format!("{}{}", rules.prefix, said.message())
    }

    /// The least harmful set of victims on `node`.
    fn victims_on(
        &self,
        scope: &Scope<'_>,
        rules: &Preemption<'_>,
        node: NodeIndex,
    ) -> Result<Plan, Rejection> {
        let pod = scope.cycle.pod;
        let pods = self.nodes.pods(node);
        let mut removed: Vec<Arc<PodInfo>> = pods
            .filter(|other| self.may_go(pod, other, rules))
            .cloned()
            .collect();
        if removed.is_empty() {
            return Err(Rejection::unresolvable(NO_VICTIMS));
        }
        removed.sort_by(|a, b| importance(a).cmp(&importance(b)));
        let fits = |removed: &[Arc<PodInfo>]| match scope.judge_without(node, removed) {
            RowVerdict::Fits(_) if (rules.suffices)(removed) => Ok(()),
            RowVerdict::Fits(_) | RowVerdict::Absent => Err(Rejection::unresolvable(NOT_HELPFUL)),
            RowVerdict::Refused(_, rejection) => Err(rejection),
        };
        fits(&removed)?;
        let (unprotected, protected): (Vec<_>, Vec<_>) = over_budget(&removed, rules);
        let (mut victims, mut violations) = (Vec::new(), 0);
        for (group, counts) in [(unprotected, 1), (protected, 0)] {
            for other in group {
                let Some(at) = removed.iter().position(|pod| pod.uid == other.uid) else {
                    continue;
                };
                removed.remove(at);
                if fits(&removed).is_err() {
                    removed.insert(at, other.clone());
                    violations += counts;
                    victims.push(other);
                }
            }
        }
        if victims.is_empty() {
            return Err(Rejection::unresolvable(NO_VICTIMS));
        }
        victims.sort_by(|a, b| importance(a).cmp(&importance(b)));
        Ok(Plan {
            node,
            victims,
            violations,
        })
    }

    /// Whether evicting `other` for `pod` is allowed and frees its room.
    fn may_go(&self, pod: &PodInfo, other: &PodInfo, rules: &Preemption<'_>) -> bool {
        if other.priority >= pod.priority || other.stands_for.is_some() {
            return false;
        }
        let label = |key: &str| other.object.metadata.labels.as_ref()?.get(key);
        if label(DISABLE_PREEMPTIBLE).is_some_and(|value| value == "true") {
            return false;
        }
        // What it holds would fall back to its reservation, not to the node.
        let reserved = other.annotation(RESERVATION_ALLOCATED).is_some_and(|text| {
            let parsed = serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
            let uid = parsed["uid"].as_str().unwrap_or_default();
            self.pods.contains_key(uid)
        });
        !reserved && (rules.may_evict)(other)
    }

    /// Whether a pod is on its way out because of a preemption.
    fn is_going(&self, pod: &PodInfo) -> bool {
        if self.evicting.contains_key(&pod.uid) {
            return true;
        }
        let conditions = pod
            .object
            .status
            .as_ref()
            .and_then(|s| s.conditions.as_ref());
        pod.deleting
            && conditions.into_iter().flatten().any(|condition| {
                condition.type_ == "DisruptionTarget"
                    && condition.status == "True"
                    && condition.reason.as_deref() == Some("PreemptionByScheduler")
            })
    }

    /// Carries out `plan`: nominates the pod, asks for the evictions, and withdraws what pods of
    /// lower priority were promised on the node.
    pub(super) fn make_room(
        &mut self,
        pod: &Arc<PodInfo>,
        plugin: &'static str,
        plan: Plan,
        now: Timestamp,
    ) -> Arc<str> {
        let node = self.nodes.name(plan.node).clone();
        let outranked: Vec<Arc<PodInfo>> = self
            .nominator
            .on(&node)
            .iter()
            .filter(|other| other.priority < pod.priority)
            .cloned()
            .collect();
        for other in outranked {
            self.denominate(&other.uid);
            if other.stands_for.is_none() {
                self.outbox.push(Output::Write(clear_nomination(&other)));
            }
        }
        self.nominate(pod, &node);
        let (mut victims, mut waiting) = (Vec::new(), Vec::new());
        for victim in plan.victims {
            if self.waiting.contains_key(&victim.uid) {
                waiting.push(victim.uid.clone());
            } else {
                self.evicting.insert(victim.uid.clone(), pod.uid.clone());
                if !victim.deleting {
                    victims.push(victim);
                }
            }
        }
        self.victims_total += victims.len() + waiting.len();
        for uid in waiting {
            self.reject_waiting(&uid, plugin, "preempted", now);
        }
        if !victims.is_empty() {
            self.outbox.push(Output::Evict {
                preemptor: pod.clone(),
                node: node.clone(),
                victims,
            });
        }
        node
    }

    /// An eviction that was asked for did not happen: the pod it was for may look for others.
    pub fn eviction_failed(&mut self, victim: &str) {
        if let Some(preemptor) = self.evicting.remove(victim) {
            self.queue.activate(&preemptor);
        }
    }

    /// How often room was looked for, and how many pods were to go for it.
    #[must_use]
    pub fn preemptions(&self) -> (u64, usize) {
        (self.preemptions, self.victims_total)
    }

    /// The lowest priority among booked pods that are not merely reservations.
    pub(super) fn lowest_priority(&self) -> Option<i32> {
        self.priorities.keys().next().copied()
    }

    /// Counts `pod` among the booked ones, or out of them.
    pub(super) fn count_priority(&mut self, pod: &PodInfo, there: bool) {
        if pod.stands_for.is_some() {
            return;
        }
        let count = self.priorities.entry(pod.priority).or_default();
        *count = if there {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
        if *count == 0 {
            self.priorities.remove(&pod.priority);
        }
    }
}

/// How many candidate nodes are enough.
fn wanted(candidates: usize, rules: &Preemption<'_>) -> usize {
    let share = |percent: i64| {
        let percent = usize::try_from(percent).unwrap_or(0).min(100);
        candidates.saturating_mul(percent) / 100
    };
    let least = usize::try_from(rules.min_candidate_absolute).unwrap_or(0);
    share(rules.min_candidate_percentage).max(least)
}

fn never_fits(verdict: &RowVerdict) -> bool {
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

/// Sorts the more important pod first: by priority, then by how long it runs.
fn importance(pod: &PodInfo) -> (Reverse<i32>, Timestamp, &str) {
    (Reverse(pod.priority), started(pod), &*pod.uid)
}

fn started(pod: &PodInfo) -> Timestamp {
    let status = pod.object.status.as_ref();
    let start = status.and_then(|status| status.start_time.as_ref());
    start.map_or(Timestamp::MAX, |time| time.0)
}

/// Splits `pods`, which are in order of importance, into those whose eviction breaks a budget and
/// the others.
fn over_budget(
    pods: &[Arc<PodInfo>],
    rules: &Preemption<'_>,
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut left: FxHashMap<u64, i64> = FxHashMap::default();
    pods.iter().cloned().partition(|pod| {
        let mut broken = false;
        for (budget, allowed) in (rules.budgets)(pod) {
            let left = left.entry(budget).or_insert(allowed);
            *left -= 1;
            broken |= *left < 0;
        }
        broken
    })
}

/// What a plan costs, in the order in which it matters. The first of equal plans is taken.
fn cost(plan: &Plan) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
    let highest = plan.victims.first().map_or(i32::MIN, |pod| pod.priority);
    // Shifted so that more pods never weigh less than fewer, also with negative priorities.
    let weight = |pod: &Arc<PodInfo>| i64::from(pod.priority) + (1 << 31);
    let sum = plan.victims.iter().map(weight).fold(0, i64::saturating_add);
    let oldest = plan
        .victims
        .iter()
        .filter(|pod| pod.priority == highest)
        .map(|pod| started(pod))
        .min();
    let oldest = Reverse(oldest.unwrap_or(Timestamp::MAX));
    (plan.violations, highest, sum, plan.victims.len(), oldest)
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
    }
}
