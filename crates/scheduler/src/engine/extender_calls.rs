//! Calls of scheduler extenders: requests, pods that wait for an extender, and what follows from the results.
//!
//! An extender is a server, and a call may take seconds. The cycle of a pod that an extender applies to
//! therefore has two parts. The first ends with a request ([`Output::Consult`]): the nodes that fit the
//! plugins, or the victims of a preemption. The pod stays in flight, nothing is reserved, and other pods are
//! scheduled meanwhile. The second part begins with [`Engine::apply_extender_result`]: all plugins run again, with the
//! extenders' results as one more filter and score, so that the selected node fits the current state and is
//! accepted by the extenders.
//!
//! Pods that use the same extender are handled one after another, by priority: when an extender is called for
//! a pod, the pods before it are placed, as in kube-scheduler.

use super::cluster::ClusterState;
use super::cycle::CycleError;
use super::extender_verdicts::{ExtenderVerdicts, cut};
use super::plugin_table::PluginTable;
use super::preempt::Plan;
use super::select::NodeSelection;
use super::{Engine, Output};
use crate::config::Extender;
use crate::framework::{Diagnosis, Effects, ExtenderPreemptResult, ExtenderResult, Instance};
use crate::queue::{Queue, QueuedPod};
use crate::state::{NodeIndex, NodeInfo, NodeStore, PodInfo};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Name of the extenders where a refusing plugin is named, as in kube-scheduler.
pub(super) const NAME: &str = "Extender";
/// Maximum number of times that a pod repeats an extender call because the nodes that fit have changed.
const ROUNDS: u8 = 3;
/// A set of extenders, by their positions in the call order. Those from the 63rd on share one bit: they are
/// called all or none, for one pod at a time.
pub(super) type Set = u64;
/// Marks parked members of groups.
const GROUPED: Set = 1 << 63;

/// A call of extenders.
#[derive(Debug, Clone)]
pub struct ExtenderCall {
    /// Identifies the call; returned with the result.
    pub ticket: u64,
    /// The pod to schedule.
    pub pod: Arc<PodInfo>,
    /// The extenders to call, as positions in the call order; ignorable ones come last.
    pub extenders: Vec<usize>,
    /// Content of the request.
    pub request: ExtenderRequest,
}

/// The content of an extender call.
#[derive(Debug, Clone)]
pub enum ExtenderRequest {
    /// Filter and prioritize these nodes.
    Nodes(Vec<Arc<NodeInfo>>),
    /// Review these preemption candidates, one per node.
    Victims(Vec<Proposal>),
}

/// A preemption candidate: one node with its victims.
#[derive(Debug, Clone)]
pub struct Proposal {
    /// The node.
    pub node: Arc<str>,
    /// The victims, the most important first.
    pub victims: Vec<Arc<PodInfo>>,
    /// Number of victims whose disruption budget allows no further eviction.
    pub violations: i64,
}

/// The content of a pending call, with what the pod needs to continue.
#[derive(Debug)]
pub(super) enum Purpose {
    Nodes {
        nodes: Vec<Arc<str>>,
        rounds: u8,
    },
    Victims {
        plans: Vec<Arc<Plan>>,
        diagnosis: Box<Diagnosis>,
        resume: Resume,
    },
}

/// The position at which the post-filter plugins continue.
#[derive(Debug, Default)]
pub(super) struct Resume {
    /// The plugin that looked for victims, if one did.
    pub(super) after: Option<Instance>,
    /// The messages of the plugins before it.
    pub(super) messages: Vec<String>,
    pub(super) waits: bool,
}

#[derive(Debug)]
struct PendingCall {
    ticket: u64,
    set: Set,
    purpose: Purpose,
    /// The last event that would have woken the pod, had it been refused.
    missed: Option<&'static str>,
}

/// A pod that waits for an extender, ordered by priority, then by age.
type Parked = (Reverse<i32>, u64, Arc<str>);

/// Pending extender calls, and the pods that wait for an extender.
///
/// Invariant: `busy` holds the extenders of all calls in `pending`, no extender is called for two pods at a
/// time, and only one group has a `member`.
#[derive(Debug, Default)]
pub(super) struct ExtenderCalls {
    extenders: Vec<Extender>,
    /// Waiting pods by the extenders they need.
    parked: BTreeMap<Set, BTreeSet<Parked>>,
    pending: FxHashMap<Arc<str>, PendingCall>,
    answered: VecDeque<(Arc<str>, ExtenderResult)>,
    /// The extenders with a pending call.
    busy: Set,
    /// The member of a group whose call is pending or next. Other groups wait meanwhile: the members of a
    /// group are placed one after another, with no pod of another group in between.
    member: Option<Arc<str>>,
    /// The extenders that the member waits for.
    member_waits: Option<Set>,
    tickets: u64,
}

impl ExtenderCalls {
    pub(super) fn new(extenders: &[Extender]) -> Self {
        Self {
            extenders: crate::config::sort_extenders(extenders),
            ..Self::default()
        }
    }

    /// Returns the extenders that apply to `pod`, among those for which `does` holds.
    fn applicable(&self, pod: &PodInfo, does: impl Fn(&Extender) -> bool) -> Vec<usize> {
        let all = self.extenders.iter().enumerate();
        all.filter(|(_, extender)| does(extender) && is_interested(extender, pod))
            .map(|(at, _)| at)
            .collect()
    }

    /// Returns the extender that binds `pod`.
    pub(super) fn binder(&self, pod: &PodInfo) -> Option<usize> {
        if pod.is_holder() {
            return None;
        }
        let binds = |extender: &Extender| !extender.bind_verb.is_empty();
        self.applicable(pod, binds).first().copied()
    }

    /// Returns true if whole node objects are sent, with fields that plugins do not read.
    pub(super) fn sends_nodes(&self) -> bool {
        let mut all = self.extenders.iter();
        all.any(|extender| judges_nodes(extender) && !extender.node_cache_capable)
    }

    fn park(&mut self, pod: &PodInfo, set: Set) {
        self.tickets += 1;
        let parked = self.parked.entry(set).or_default();
        parked.insert((Reverse(pod.priority), self.tickets, pod.uid.clone()));
    }

    fn begin(&mut self, uid: &Arc<str>, set: Set, purpose: Purpose) -> u64 {
        self.tickets += 1;
        self.busy |= set;
        let pending = PendingCall {
            ticket: self.tickets,
            set,
            purpose,
            missed: None,
        };
        self.pending.insert(uid.clone(), pending);
        self.tickets
    }
}

fn set_of(extenders: &[usize]) -> Set {
    extenders.iter().fold(0, |set, at| set | 1 << (*at).min(62))
}

fn judges_nodes(extender: &Extender) -> bool {
    !extender.filter_verb.is_empty() || !extender.prioritize_verb.is_empty()
}

fn judges_victims(extender: &Extender) -> bool {
    !extender.preempt_verb.is_empty()
}

/// Returns true if `pod` requests a resource that the extender manages.
fn is_interested(extender: &Extender, pod: &PodInfo) -> bool {
    let managed = &extender.managed_resources;
    if managed.is_empty() {
        return true;
    }
    let Some(spec) = pod.spec() else {
        return false;
    };
    let wants = |container: &Container| {
        let resources = container.resources.as_ref();
        let requests = resources.and_then(|all| all.requests.as_ref());
        let limits = resources.and_then(|all| all.limits.as_ref());
        let names = requests
            .into_iter()
            .chain(limits)
            .flat_map(|all| all.keys());
        names
            .into_iter()
            .any(|name| managed.iter().any(|it| it.name == *name))
    };
    let init = spec.init_containers.iter().flatten();
    spec.containers.iter().chain(init).any(wants)
}

/// Returns the cheapest of the remaining plans, with the victims that the extenders accepted.
fn agreed(
    nodes: &NodeStore,
    pod: &Arc<PodInfo>,
    plans: &[Arc<Plan>],
    agreed: &[ExtenderPreemptResult],
) -> Result<Option<Plan>, String> {
    let mut best: Option<Plan> = None;
    for ExtenderPreemptResult {
        extender,
        node,
        victims,
        violations,
    } in agreed
    {
        let is_there = |plan: &&Arc<Plan>| nodes.name(plan.node) == node;
        let Some(plan) = plans.iter().find(is_there) else {
            return Err(format!(
                "extender {extender:?} names node {node:?}, which it was not asked about"
            ));
        };
        let mut going = Vec::with_capacity(victims.len());
        for uid in victims {
            let pod_on_node = nodes.pods(plan.node).find(|pod| *pod.uid == **uid);
            let Some(victim) = pod_on_node else {
                // A victim of the request may have ended by itself meanwhile.
                if plan.victims.iter().any(|pod| *pod.uid == **uid) {
                    continue;
                }
                return Err(format!(
                    "extender {extender:?} claims to preempt pod (UID: {uid}) on node: {node}, but \
                     the pod is not found on that node"
                ));
            };
            if victim.priority >= pod.priority || victim.is_holder() {
                return Err(format!(
                    "extender {extender:?} claims to preempt pod {victim} on node {node}, which \
                     is not less important"
                ));
            }
            going.push(victim.clone());
        }
        if going.is_empty() {
            continue;
        }
        let violations = usize::try_from(*violations).unwrap_or(0);
        let plan = Plan::new(plan.node, going, violations);
        if best.as_ref().is_none_or(|best| plan.cost < best.cost) {
            best = Some(plan);
        }
    }
    Ok(best)
}

/// The next step after the first part of a cycle.
pub(super) enum CycleStep {
    /// The cycle continues: no extender filters or scores nodes for this pod.
    Decide,
    /// The nodes that fit must be sent to extenders.
    CallExtenders,
    /// The pod must wait for an extender that is in use.
    Parked,
}

impl Engine {
    /// Handles the result of the extender call with this ticket.
    pub fn apply_extender_result(&mut self, uid: &str, ticket: u64, advice: ExtenderResult) {
        self.calls.answer(uid, ticket, advice);
    }

    /// Runs the second part of a cycle. Returns `None` if the pod needs another extender call.
    pub(super) fn resume(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        purpose: Purpose,
        advice: ExtenderResult,
        now: Timestamp,
    ) -> Result<Option<Arc<str>>, CycleError> {
        match (purpose, advice) {
            (_, ExtenderResult::Nodes(Err(message))) => Err(CycleError::Failed(message)),
            (Purpose::Nodes { nodes, rounds }, ExtenderResult::Nodes(Ok(advised))) => {
                let mut extender_verdicts =
                    ExtenderVerdicts::new(&nodes, &advised, &self.cluster.nodes);
                let selected = NodeSelection::new(self).select(
                    pod,
                    profile,
                    now,
                    Some(&extender_verdicts),
                    false,
                );
                let stop = match selected {
                    Ok(choice) => return self.place(pod, profile, &choice, now).map(Some),
                    Err(stop) => stop,
                };
                extender_verdicts.lenient = true;
                if rounds < ROUNDS
                    && let CycleError::Refused(_) = &stop
                    && let Ok(choice) = NodeSelection::new(self).select(
                        pod,
                        profile,
                        now,
                        Some(&extender_verdicts),
                        true,
                    )
                {
                    let (nodes, offers) = (&self.cluster.nodes, choice.offers());
                    let request = self.calls.request_nodes(pod, nodes, &offers, rounds + 1);
                    self.outbox.push(request);
                    return Ok(None);
                }
                self.post_filter(pod, profile, stop, Resume::default(), now)
            }
            (
                Purpose::Victims {
                    plans,
                    mut diagnosis,
                    mut resume,
                },
                ExtenderResult::Victims(agreed),
            ) => {
                let agreed = agreed
                    .and_then(|agreed| self::agreed(&self.cluster.nodes, pod, &plans, &agreed));
                match agreed {
                    Ok(Some(plan)) => {
                        let by = self.table.names[resume.after.unwrap_or_default()];
                        let parts = (&mut self.cluster.nodes, &mut self.outbox);
                        let node = self.preemptor.claim(parts, pod, plan.node);
                        self.evict_victims(pod, &node, plan.victims, by, now);
                        diagnosis.nominated = Some(node.to_string());
                        let (view, mut fx) = (self.cluster.view(now), Effects::default());
                        self.table
                            .after_post_filter(view, pod, profile, &mut diagnosis, &mut fx);
                        self.apply(fx, now);
                        self.preemptor.kept.clear();
                        return Err(CycleError::Refused(diagnosis));
                    }
                    Ok(None) => resume
                        .messages
                        .push("no candidate node for preemption".to_owned()),
                    Err(message) => resume.messages.push(cut(&message)),
                }
                self.post_filter(pod, profile, CycleError::Refused(diagnosis), resume, now)
            }
            // The result is of another kind than the request: a mistake of the runtime, not of the extender.
            _ => Err(CycleError::Failed(
                "an extender's answer was mixed up".to_owned(),
            )),
        }
    }
}

impl ExtenderCalls {
    /// Decides whether `pod` may continue as far as extenders are concerned.
    pub(super) fn next_step(&mut self, pod: &Arc<PodInfo>, table: &mut PluginTable) -> CycleStep {
        let all = &mut *self;
        if all.extenders.is_empty() {
            return CycleStep::Decide;
        }
        let set = set_of(&all.applicable(pod, |it| judges_nodes(it) || judges_victims(it)));
        let mut groupings = table.plugins.iter_mut().filter_map(|it| it.grouping());
        let grouped = groupings.any(|grouping| grouping.is_grouped(pod));
        let behind = |member: &Arc<str>| *member != pod.uid;
        if grouped && all.member.as_ref().is_some_and(behind) {
            all.park(pod, set | GROUPED);
            return CycleStep::Parked;
        }
        if grouped && set != 0 {
            all.member = Some(pod.uid.clone());
        }
        if set & all.busy != 0 {
            if grouped {
                all.member_waits = Some(set);
            } else {
                all.park(pod, set);
            }
            return CycleStep::Parked;
        }
        if all.applicable(pod, judges_nodes).is_empty() {
            return CycleStep::Decide;
        }
        CycleStep::CallExtenders
    }

    /// Returns the next pod that no longer has to wait for its extenders.
    pub(super) fn next_parked(
        &mut self,
        cluster: &ClusterState,
        queue: &Queue,
    ) -> Option<QueuedPod> {
        let all = &mut *self;
        if all.member_waits.is_some_and(|set| set & all.busy == 0) {
            all.member_waits = None;
            let member = all.member.as_ref();
            match member.and_then(|uid| queue.in_flight(uid)) {
                Some(queued) => return Some(queued.clone()),
                None => all.member = None,
            }
        }
        loop {
            let all = &mut *self;
            let blocked = if all.member.is_some() {
                all.busy | GROUPED
            } else {
                all.busy
            };
            let free = all.parked.iter_mut().filter(|(set, _)| *set & blocked == 0);
            let (_, parked) = free.min_by(|(_, a), (_, b)| a.first().cmp(&b.first()))?;
            let (_, _, uid) = parked.pop_first()?;
            all.parked.retain(|_, parked| !parked.is_empty());
            // A pod that is assumed by now is about to be bound.
            if cluster.pods.contains_key(&uid) {
                continue;
            }
            if let Some(queued) = queue.in_flight(&uid) {
                return Some(queued.clone());
            }
        }
    }

    /// Returns the next extender result with its pod. Results for pods that were removed are dropped.
    pub(super) fn next_answer(
        &mut self,
        cluster: &ClusterState,
        queue: &Queue,
    ) -> Option<(QueuedPod, Purpose, ExtenderResult)> {
        while let Some((uid, advice)) = self.answered.pop_front() {
            let Some(pending) = self.pending.remove(&uid) else {
                continue;
            };
            let is_free = !cluster.pods.contains_key(&uid);
            if is_free && let Some(queued) = queue.in_flight(&uid) {
                let queued = queued.clone();
                // The call stays pending: events must be noted, and no other pod may use the extenders.
                let noted = PendingCall {
                    purpose: Purpose::Nodes {
                        nodes: Vec::new(),
                        rounds: 0,
                    },
                    ..pending
                };
                let purpose = pending.purpose;
                self.pending.insert(uid, noted);
                return Some((queued, purpose, advice));
            }
            self.clear_member(&uid);
            self.free(pending.set);
        }
        None
    }

    fn clear_member(&mut self, uid: &str) {
        let member = &mut self.member;
        *member = member.take().filter(|member| **member != *uid);
    }

    fn free(&mut self, set: Set) {
        self.busy &= !set;
    }

    /// Ends the pod's extender call. Returns the event that the pod missed meanwhile.
    pub(super) fn finish_call(&mut self, uid: &str) -> Option<&'static str> {
        self.clear_member(uid);
        let pending = self.pending.remove(uid)?;
        self.free(pending.set);
        pending.missed
    }

    /// Returns true if a member of a group has a pending call, or waits for one.
    pub(super) fn is_member_pending(&self) -> bool {
        self.member.is_some()
    }

    /// Stores the result of the call with this ticket; results of other calls are dropped.
    pub(super) fn answer(&mut self, uid: &str, ticket: u64, advice: ExtenderResult) {
        let entry = self.pending.get_key_value(uid);
        let Some((uid, _)) = entry.filter(|(_, it)| it.ticket == ticket) else {
            return;
        };
        let answer = (uid.clone(), advice);
        self.answered.push_back(answer);
    }

    /// Iterates over the pods with a pending call that missed no event yet.
    pub(super) fn pending_pods(&self) -> impl Iterator<Item = &Arc<str>> {
        let all = self.pending.iter();
        all.filter(|(_, it)| it.missed.is_none())
            .map(|(uid, _)| uid)
    }

    /// Notes an event that might have woken these pods.
    pub(super) fn missed(&mut self, uids: &[Arc<str>], event: &'static str) {
        for uid in uids {
            if let Some(pending) = self.pending.get_mut(uid) {
                pending.missed = Some(event);
            }
        }
    }

    /// Creates the call about the nodes `among`; `rounds` counts the pod's earlier calls.
    pub(super) fn request_nodes(
        &mut self,
        pod: &Arc<PodInfo>,
        nodes: &NodeStore,
        among: &[NodeIndex],
        rounds: u8,
    ) -> Output {
        let infos = among.iter().filter_map(|node| nodes.info(*node));
        let infos: Vec<Arc<NodeInfo>> = infos.cloned().collect();
        let names = infos.iter().map(|info| info.name.clone()).collect();
        let extenders = self.applicable(pod, judges_nodes);
        let purpose = Purpose::Nodes {
            nodes: names,
            rounds,
        };
        self.start_call(pod, extenders, purpose, ExtenderRequest::Nodes(infos))
    }

    /// Creates the call about the victims of `plans`.
    pub(super) fn request_victims(
        &mut self,
        pod: &Arc<PodInfo>,
        nodes: &NodeStore,
        plans: Vec<Arc<Plan>>,
        (diagnosis, resume): (Box<Diagnosis>, Resume),
    ) -> Output {
        let extenders = self.applicable(pod, judges_victims);
        let proposal = |plan: &Arc<Plan>| Proposal {
            node: nodes.name(plan.node).clone(),
            victims: plan.victims.clone(),
            violations: i64::try_from(plan.cost.0).unwrap_or(i64::MAX),
        };
        let request = ExtenderRequest::Victims(plans.iter().map(proposal).collect());
        let purpose = Purpose::Victims {
            plans,
            diagnosis,
            resume,
        };
        self.start_call(pod, extenders, purpose, request)
    }

    /// Returns true if an extender reviews the victims of a preemption for `pod`.
    pub(super) fn reviews_victims(&self, pod: &PodInfo) -> bool {
        !self.extenders.is_empty() && !self.applicable(pod, judges_victims).is_empty()
    }

    fn start_call(
        &mut self,
        pod: &Arc<PodInfo>,
        extenders: Vec<usize>,
        purpose: Purpose,
        request: ExtenderRequest,
    ) -> Output {
        let all = &mut *self;
        let missed = all.pending.get(&pod.uid).and_then(|it| it.missed);
        let set = set_of(&all.applicable(pod, |it| judges_nodes(it) || judges_victims(it)));
        let ticket = all.begin(&pod.uid, set, purpose);
        if let Some(pending) = all.pending.get_mut(&pod.uid) {
            pending.missed = missed;
        }
        Output::Consult(ExtenderCall {
            ticket,
            pod: pod.clone(),
            extenders,
            request,
        })
    }
}

#[cfg(test)]
mod tests;
