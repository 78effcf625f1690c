//! Asking extenders: what they are asked, who waits for an answer, and what follows from it.
//!
//! An extender is a server, and an answer may take seconds. So a cycle of a pod that concerns one has
//! two halves. The first ends with a question ([`Output::Consult`]): the nodes that fit the plugins, or
//! the victims that might make room. The pod stays in flight, nothing is booked, and other pods are
//! decided meanwhile. The second half begins with [`Engine::consulted`]: every plugin is asked again,
//! with what the extenders said as one more filter and score, so that the node that is booked fits as
//! things are then, and was agreed to.
//!
//! Pods that ask the same extender go one after another, the more important first: when an extender is
//! asked about a pod, those before it are placed, as in kube-scheduler.

use super::cluster::ClusterState;
use super::cycle::Stop;
use super::opinion::{Opinion, cut};
use super::plugin_table::PluginTable;
use super::preempt::Plan;
use super::select::NodeSelection;
use super::{Engine, Output};
use crate::config::Extender;
use crate::framework::{Advice, Agreed, Diagnosis, Effects, Instance};
use crate::queue::{Queue, QueuedPod};
use crate::state::{NodeIndex, NodeInfo, NodeStore, PodInfo};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How plugins that refuse are called when they are extenders, as in kube-scheduler.
pub(super) const NAME: &str = "Extender";
/// How often a pod asks anew because the nodes that it could go to are others by now.
const ROUNDS: u8 = 3;
/// Extenders, by their positions in the order in which they are asked. Those from the 63rd on are
/// taken for one: they are asked all or none, one pod at a time.
pub(super) type Set = u64;
/// Among those who wait: members of groups.
const GROUPED: Set = 1 << 63;

/// A question to extenders.
#[derive(Debug, Clone)]
pub struct Consultation {
    /// Comes back with the answer.
    pub ticket: u64,
    /// The pod it is about.
    pub pod: Arc<PodInfo>,
    /// Who is asked: positions in the order in which they are asked, those that may be ignored last.
    pub extenders: Vec<usize>,
    /// What.
    pub question: Question,
}

/// What extenders are asked.
#[derive(Debug, Clone)]
pub enum Question {
    /// Which of these nodes they refuse, and how good the others are.
    Nodes(Vec<Arc<NodeInfo>>),
    /// Which of these victims may go, each entry for another node.
    Victims(Vec<Proposal>),
}

/// Who might go from a node.
#[derive(Debug, Clone)]
pub struct Proposal {
    /// The node.
    pub node: Arc<str>,
    /// Who goes, the most important first.
    pub victims: Vec<Arc<PodInfo>>,
    /// How many of them have no disruption budget left.
    pub violations: i64,
}

/// What a pod under way asked, and what it needs to go on.
#[derive(Debug)]
pub(super) enum Purpose {
    Nodes {
        asked: Vec<Arc<str>>,
        rounds: u8,
    },
    Victims {
        plans: Vec<Arc<Plan>>,
        diagnosis: Box<Diagnosis>,
        resume: Resume,
    },
}

/// Where the post-filter plugins go on.
#[derive(Debug, Default)]
pub(super) struct Resume {
    /// The plugin that looked for victims, if one did.
    pub(super) after: Option<Instance>,
    /// What those before it said.
    pub(super) messages: Vec<String>,
    pub(super) waits: bool,
}

#[derive(Debug)]
struct UnderWay {
    ticket: u64,
    set: Set,
    purpose: Purpose,
    /// The last event that would have helped it, had it been refused.
    missed: Option<&'static str>,
}

/// By importance, then by age: who waits to ask.
type Parked = (Reverse<i32>, u64, Arc<str>);

/// Questions to extenders, and the pods that wait to ask.
///
/// Invariant: `busy` holds the extenders of all questions in `under_way`, no extender is asked about two pods at a
/// time, and only one group has a `member`.
#[derive(Debug, Default)]
pub(super) struct ExtenderCalls {
    extenders: Vec<Extender>,
    /// By who is asked.
    parked: BTreeMap<Set, BTreeSet<Parked>>,
    under_way: FxHashMap<Arc<str>, UnderWay>,
    answered: VecDeque<(Arc<str>, Advice)>,
    /// Who is being asked.
    busy: Set,
    /// The member of a group that asks, or is the next to. Other groups wait meanwhile: members are
    /// placed one after another, and nothing of another group comes in between.
    member: Option<Arc<str>>,
    /// Whom it still waits for to ask.
    member_waits: Option<Set>,
    tickets: u64,
}

impl ExtenderCalls {
    pub(super) fn new(extenders: &[Extender]) -> Self {
        Self {
            extenders: crate::config::in_order(extenders),
            ..Self::default()
        }
    }

    /// The extenders that have a say in where `pod` goes, of those for which `does` holds.
    fn concerned(&self, pod: &PodInfo, does: impl Fn(&Extender) -> bool) -> Vec<usize> {
        let all = self.extenders.iter().enumerate();
        all.filter(|(_, extender)| does(extender) && is_interested(extender, pod))
            .map(|(at, _)| at)
            .collect()
    }

    /// The extender that binds `pod`.
    pub(super) fn binder(&self, pod: &PodInfo) -> Option<usize> {
        if pod.is_holder() {
            return None;
        }
        let binds = |extender: &Extender| !extender.bind_verb.is_empty();
        self.concerned(pod, binds).first().copied()
    }

    /// Whether nodes are sent whole, with what plugins do not look at.
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
        let under_way = UnderWay {
            ticket: self.tickets,
            set,
            purpose,
            missed: None,
        };
        self.under_way.insert(uid.clone(), under_way);
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

/// Whether `pod` wants what the extender manages.
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

/// The cheapest of the plans that are left, with the victims that the extenders agreed with.
fn agreed(
    nodes: &NodeStore,
    pod: &Arc<PodInfo>,
    plans: &[Arc<Plan>],
    agreed: &[Agreed],
) -> Result<Option<Plan>, String> {
    let mut best: Option<Plan> = None;
    for Agreed {
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
            let there = nodes.pods(plan.node).find(|pod| *pod.uid == **uid);
            let Some(victim) = there else {
                // Asked about, it may have gone by itself meanwhile.
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

/// How the first half of a cycle goes on.
pub(super) enum Turn {
    /// No extender is concerned with nodes for this pod.
    Decide,
    /// The nodes that fit are to be shown to extenders.
    Ask,
    /// Another pod asks first.
    Parked,
}

impl Engine {
    /// An answer to the question with that ticket.
    pub fn consulted(&mut self, uid: &str, ticket: u64, advice: Advice) {
        self.calls.answer(uid, ticket, advice);
    }

    /// The second half of a cycle. `None` when the pod asks once more.
    pub(super) fn resume(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        purpose: Purpose,
        advice: Advice,
        now: Timestamp,
    ) -> Result<Option<Arc<str>>, Stop> {
        match (purpose, advice) {
            (_, Advice::Nodes(Err(message))) => Err(Stop::Failed(message)),
            (Purpose::Nodes { asked, rounds }, Advice::Nodes(Ok(advised))) => {
                let mut opinion = Opinion::new(&asked, &advised, &self.cluster.nodes);
                let selected =
                    NodeSelection::new(self).select(pod, profile, now, Some(&opinion), false);
                let stop = match selected {
                    Ok(choice) => return self.place(pod, profile, &choice, now).map(Some),
                    Err(stop) => stop,
                };
                opinion.lenient = true;
                if rounds < ROUNDS
                    && let Stop::Refused(_) = &stop
                    && let Ok(choice) =
                        NodeSelection::new(self).select(pod, profile, now, Some(&opinion), true)
                {
                    let (nodes, offers) = (&self.cluster.nodes, choice.offers());
                    let question = self.calls.ask_about_nodes(pod, nodes, &offers, rounds + 1);
                    self.outbox.push(question);
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
                Advice::Victims(agreed),
            ) => {
                let agreed = agreed
                    .and_then(|agreed| self::agreed(&self.cluster.nodes, pod, &plans, &agreed));
                match agreed {
                    Ok(Some(plan)) => {
                        let by = self.table.names[resume.after.unwrap_or_default()];
                        let parts = (&mut self.cluster.nodes, &mut self.outbox);
                        let node = self.preemptor.claim(parts, pod, plan.node);
                        self.send_away(pod, &node, plan.victims, by, now);
                        diagnosis.nominated = Some(node.to_string());
                        let (view, mut fx) = (self.cluster.view(now), Effects::default());
                        self.table
                            .after_post_filter(view, pod, profile, &mut diagnosis, &mut fx);
                        self.apply(fx, now);
                        self.preemptor.kept.clear();
                        return Err(Stop::Refused(diagnosis));
                    }
                    Ok(None) => resume
                        .messages
                        .push("no candidate node for preemption".to_owned()),
                    Err(message) => resume.messages.push(cut(&message)),
                }
                self.post_filter(pod, profile, Stop::Refused(diagnosis), resume, now)
            }
            // An answer to another question: the runtime's mistake, not the extender's.
            _ => Err(Stop::Failed("an extender's answer was mixed up".to_owned())),
        }
    }
}

impl ExtenderCalls {
    /// Whether `pod` may go on, as far as extenders are concerned.
    pub(super) fn turn(&mut self, pod: &Arc<PodInfo>, table: &mut PluginTable) -> Turn {
        let all = &mut *self;
        if all.extenders.is_empty() {
            return Turn::Decide;
        }
        let set = set_of(&all.concerned(pod, |it| judges_nodes(it) || judges_victims(it)));
        let mut groupings = table.plugins.iter_mut().filter_map(|it| it.grouping());
        let grouped = groupings.any(|grouping| grouping.is_grouped(pod));
        let behind = |member: &Arc<str>| *member != pod.uid;
        if grouped && all.member.as_ref().is_some_and(behind) {
            all.park(pod, set | GROUPED);
            return Turn::Parked;
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
            return Turn::Parked;
        }
        if all.concerned(pod, judges_nodes).is_empty() {
            return Turn::Decide;
        }
        Turn::Ask
    }

    /// A pod that was kept waiting by others that ask the same extenders and need not any more.
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
            let kept = if all.member.is_some() {
                all.busy | GROUPED
            } else {
                all.busy
            };
            let free = all.parked.iter_mut().filter(|(set, _)| *set & kept == 0);
            let (_, parked) = free.min_by(|(_, a), (_, b)| a.first().cmp(&b.first()))?;
            let (_, _, uid) = parked.pop_first()?;
            all.parked.retain(|_, parked| !parked.is_empty());
            // One that has its place since is on its way to be bound.
            if cluster.pods.contains_key(&uid) {
                continue;
            }
            if let Some(queued) = queue.in_flight(&uid) {
                return Some(queued.clone());
            }
        }
    }

    /// An answer, with the pod that it is about; those about pods that are gone are dropped.
    pub(super) fn next_answer(
        &mut self,
        cluster: &ClusterState,
        queue: &Queue,
    ) -> Option<(QueuedPod, Purpose, Advice)> {
        while let Some((uid, advice)) = self.answered.pop_front() {
            let Some(under_way) = self.under_way.remove(&uid) else {
                continue;
            };
            let is_free = !cluster.pods.contains_key(&uid);
            if is_free && let Some(queued) = queue.in_flight(&uid) {
                let queued = queued.clone();
                // Still under way: whatever happens is to be noted, and nobody else may ask.
                let noted = UnderWay {
                    purpose: Purpose::Nodes {
                        asked: Vec::new(),
                        rounds: 0,
                    },
                    ..under_way
                };
                let purpose = under_way.purpose;
                self.under_way.insert(uid, noted);
                return Some((queued, purpose, advice));
            }
            self.member_is_done(&uid);
            self.free(under_way.set);
        }
        None
    }

    fn member_is_done(&mut self, uid: &str) {
        let member = &mut self.member;
        *member = member.take().filter(|member| **member != *uid);
    }

    fn free(&mut self, set: Set) {
        self.busy &= !set;
    }

    /// The pod does not ask any more. Returns the event that it missed meanwhile.
    pub(super) fn stop_asking(&mut self, uid: &str) -> Option<&'static str> {
        self.member_is_done(uid);
        let under_way = self.under_way.remove(uid)?;
        self.free(under_way.set);
        under_way.missed
    }

    /// Whether a member of a group asks, or waits to.
    pub(super) fn is_member_asking(&self) -> bool {
        self.member.is_some()
    }

    /// Takes the answer to the question with that ticket.
    pub(super) fn answer(&mut self, uid: &str, ticket: u64, advice: Advice) {
        let known = self.under_way.get_key_value(uid);
        let Some((uid, _)) = known.filter(|(_, it)| it.ticket == ticket) else {
            return;
        };
        let answer = (uid.clone(), advice);
        self.answered.push_back(answer);
    }

    /// The pods that ask, for events to be noted.
    pub(super) fn asking(&self) -> impl Iterator<Item = &Arc<str>> {
        let all = self.under_way.iter();
        all.filter(|(_, it)| it.missed.is_none())
            .map(|(uid, _)| uid)
    }

    /// An event that might have helped these pods.
    pub(super) fn missed(&mut self, uids: &[Arc<str>], event: &'static str) {
        for uid in uids {
            if let Some(under_way) = self.under_way.get_mut(uid) {
                under_way.missed = Some(event);
            }
        }
    }

    /// Returns a question about the nodes `among`, the `rounds`-th of the pod.
    pub(super) fn ask_about_nodes(
        &mut self,
        pod: &Arc<PodInfo>,
        nodes: &NodeStore,
        among: &[NodeIndex],
        rounds: u8,
    ) -> Output {
        let infos = among.iter().filter_map(|node| nodes.info(*node));
        let infos: Vec<Arc<NodeInfo>> = infos.cloned().collect();
        let asked = infos.iter().map(|info| info.name.clone()).collect();
        let extenders = self.concerned(pod, judges_nodes);
        let purpose = Purpose::Nodes { asked, rounds };
        self.ask(pod, extenders, purpose, Question::Nodes(infos))
    }

    /// Returns a question about the victims of `plans`.
    pub(super) fn ask_about_victims(
        &mut self,
        pod: &Arc<PodInfo>,
        nodes: &NodeStore,
        plans: Vec<Arc<Plan>>,
        (diagnosis, resume): (Box<Diagnosis>, Resume),
    ) -> Output {
        let extenders = self.concerned(pod, judges_victims);
        let proposal = |plan: &Arc<Plan>| Proposal {
            node: nodes.name(plan.node).clone(),
            victims: plan.victims.clone(),
            violations: i64::try_from(plan.cost.0).unwrap_or(i64::MAX),
        };
        let question = Question::Victims(plans.iter().map(proposal).collect());
        let purpose = Purpose::Victims {
            plans,
            diagnosis,
            resume,
        };
        self.ask(pod, extenders, purpose, question)
    }

    /// Whether an extender has a say in who goes for `pod`.
    pub(super) fn shows_victims(&self, pod: &PodInfo) -> bool {
        !self.extenders.is_empty() && !self.concerned(pod, judges_victims).is_empty()
    }

    fn ask(
        &mut self,
        pod: &Arc<PodInfo>,
        extenders: Vec<usize>,
        purpose: Purpose,
        question: Question,
    ) -> Output {
        let all = &mut *self;
        let missed = all.under_way.get(&pod.uid).and_then(|it| it.missed);
        let set = set_of(&all.concerned(pod, |it| judges_nodes(it) || judges_victims(it)));
        let ticket = all.begin(&pod.uid, set, purpose);
        if let Some(under_way) = all.under_way.get_mut(&pod.uid) {
            under_way.missed = missed;
        }
        Output::Consult(Consultation {
            ticket,
            pod: pod.clone(),
            extenders,
            question,
        })
    }
}

#[cfg(test)]
mod tests;
