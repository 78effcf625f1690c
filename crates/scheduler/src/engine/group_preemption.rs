//! Group preemption: one plan of victims over several nodes for pods that start together, or no eviction at
//! all.
//!
//! Members are assigned nodes in the order in which they will be tried, each the node where it costs least,
//! given the members placed before. A plan counts only if the group may start with it. Until the victims are
//! gone, nominations reserve the room on the nodes, also for members that fit somewhere before.

mod admission;
mod assignment;

use super::measure::Meter;
use super::plugin_table::PluginTable;
use super::pod_waker::PodWaker;
use super::preempt::VictimSearch;
use super::preemptor::Preemptor;
use super::scope::{Chain, Prepared};
use super::{Engine, Output};
use crate::framework::{Cycle, Diagnosis, GroupPreemption, Instance, Signable, Signature, View};
use crate::queue::{PluginSet, Queue};
use crate::state::{NodeIndex, NodeStore, PodInfo};
use jiff::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

const NEVER: &str = "not eligible due to preemptionPolicy=Never.";
const TERMINATING: &str = "not eligible due to terminating pod on the nominated node.";

/// Plan of a group preemption: the nodes of the members, and the victims on each.
#[derive(Debug, Default)]
pub(super) struct Plan {
    places: Vec<(Arc<PodInfo>, NodeIndex)>,
    victims: Vec<(NodeIndex, Vec<Arc<PodInfo>>)>,
}

/// The result of an attempt to make room for a group; texts are for conditions.
#[derive(Debug)]
pub(super) enum GroupOutcome {
    Room(Plan),
    /// No plan helps; previous nominations are cleared.
    Hopeless(String),
    Ineligible(String),
    /// Victims of an earlier preemption for the group are still terminating.
    Waits(String),
}

/// An attempt to make room for a group, with the uids of its pods.
#[derive(Debug)]
pub(super) struct GroupAttempt {
    pub(super) by: Instance,
    pub(super) prefix: &'static str,
    pub(super) attempt: GroupOutcome,
    pub(super) pending: Vec<Arc<str>>,
    pub(super) held: Vec<Arc<str>>,
}

/// The states that plugins prepared for pods, by uid; without pods that are refused before any node is
/// filtered.
pub(super) type PreparedMembers = FxHashMap<Arc<str>, Prepared>;

/// A member with the states that plugins prepared for it.
struct Member<'a> {
    pod: Arc<PodInfo>,
    /// The filter chain; `None` if the member is refused before any node is filtered.
    chain: Option<Chain<'a>>,
    /// Members with equal numbers get equal results.
    kind: usize,
}

/// A node in the plan.
struct Site {
    node: NodeIndex,
    /// The possible victims, once they were determined.
    pool: Option<Vec<Arc<PodInfo>>>,
    placed: Vec<usize>,
    /// The victims for the members placed here.
    victims: Vec<Arc<PodInfo>>,
}

/// A plan under construction.
struct Planner<'a> {
    search: VictimSearch<'a>,
    view: View<'a>,
    group: &'a GroupPreemption<'a>,
    members: Vec<Member<'a>>,
    mates: FxHashSet<Arc<str>>,
    /// The member of the lowest priority, with which victims are compared.
    weakest: Arc<PodInfo>,
    sites: Vec<Site>,
    /// Evictions counted against disruption budgets by the victims so far.
    spent: FxHashMap<u64, i64>,
    spendings: usize,
}

impl PluginTable {
    /// Runs pre-filter and pre-score for the pods that start together with `pod`, in case room is made for
    /// them. One by one, as plugins may prepare their state for one pod at a time.
    pub(super) fn prepare_group_members(
        &mut self,
        queue: &Queue,
        meter: &Meter,
        view: View<'_>,
        pod: &PodInfo,
        profile: usize,
    ) -> PreparedMembers {
        let plugins = self.profiles[profile].post_filter.iter();
        let plugins = plugins.filter_map(|index| self.plugins[*index].post_filter());
        let company: Vec<Arc<PodInfo>> = plugins
            .flat_map(|plugin| plugin.group_members(pod))
            .filter_map(|uid| Some(queue.get(&uid)?.info.clone()))
            .collect();
        let tolerated = self.admissions(profile);
        let mut prepare = |pod: &Arc<PodInfo>| {
            let profile = self.profile_of(pod).unwrap_or_default();
            self.prepare_state(meter, pod, profile, view);
            let cycle = Cycle::new(pod, view);
            self.prepare_tolerating(meter, &cycle, profile, tolerated)
                .ok()
        };
        let company = company.iter();
        company
            .filter_map(|pod| Some((pod.uid.clone(), prepare(pod)?)))
            .collect()
    }
}

impl Engine {
    /// Carries out the plan for a group, and adds the result to `diagnosis`.
    pub(super) fn finish_group_attempt(
        &mut self,
        pod: &Arc<PodInfo>,
        tried: GroupAttempt,
        diagnosis: &mut Diagnosis,
        messages: &mut Vec<String>,
        now: Timestamp,
    ) {
        let GroupAttempt {
            by,
            prefix,
            attempt,
            pending,
            held,
        } = tried;
        let keeps = matches!(attempt, GroupOutcome::Room(_) | GroupOutcome::Waits(_));
        diagnosis.nominated = None;
        let outcome = match attempt {
            GroupOutcome::Room(plan) => {
                let parts = (&mut self.cluster.nodes, &mut self.outbox);
                let members = (&*pending, &*held);
                let (node, withdrawn) =
                    self.preemptor
                        .claim_together(parts, &self.queue, pod, &plan.places, members);
                for mate in withdrawn {
                    PodWaker::new(self).wake_for_freed(&mate, now);
                }
                for (node, victims) in plan.victims {
                    let node = self.cluster.nodes.name(node).clone();
                    self.evict_victims(pod, &node, victims, self.table.names[by], now);
                }
                diagnosis.nominated = Some(node.map_or_else(String::new, |node| node.to_string()));
                let total = held.len() + pending.len();
                let held_count = held.len();
                messages.clear();
                format!("preempt success, alreadyWaitingForBound: {held_count}/{total}")
            }
            GroupOutcome::Hopeless(text) => {
                diagnosis.nominated = Some(String::new());
                for uid in pending.iter().filter(|uid| **uid != pod.uid) {
                    if let Some(mate) = self.preemptor.withdraw(
                        (&mut self.cluster.nodes, &mut self.outbox),
                        &self.queue,
                        uid,
                    ) {
                        PodWaker::new(self).wake_for_freed(&mate, now);
                    }
                }
                messages.push(format!("{prefix}{text}"));
                text
            }
            GroupOutcome::Ineligible(text) | GroupOutcome::Waits(text) => {
                if !text.is_empty() {
                    messages.push(format!("{prefix}{text}"));
                }
                text
            }
        };
        if !outcome.is_empty() {
            diagnosis.for_group = Some(outcome);
        }
        // If the reservations of these members are undone, they keep their nodes as nominations.
        if keeps {
            let kept_nodes = held.into_iter().filter_map(|uid| {
                let node = self.cluster.pods.get(&uid)?.node;
                Some((uid, self.cluster.nodes.name(node).clone()))
            });
            self.preemptor.kept = kept_nodes.collect();
        }
    }
}

impl Preemptor {
    /// Nominates the members of a group to their `places`. Returns the node of `pod`, and the members without
    /// a place whose nomination was cleared.
    pub(super) fn claim_together(
        &mut self,
        (nodes, outbox): (&mut NodeStore, &mut Vec<Output>),
        queue: &Queue,
        pod: &Arc<PodInfo>,
        places: &[(Arc<PodInfo>, NodeIndex)],
        (pending, held): (&[Arc<str>], &[Arc<str>]),
    ) -> (Option<Arc<str>>, Vec<Arc<PodInfo>>) {
        // Members do not compete with each other.
        let mates = pending.iter().chain(held).cloned().collect();
        let mut highest: FxHashMap<NodeIndex, i32> = FxHashMap::default();
        for (member, node) in places {
            let node_highest = highest.entry(*node).or_insert(member.priority);
            *node_highest = member.priority.max(*node_highest);
        }
        let mut highest: Vec<(NodeIndex, i32)> = highest.into_iter().collect();
        highest.sort_unstable();
        for (node, priority) in highest {
            let node = nodes.name(node).clone();
            self.clear_outranked((nodes, outbox), &node, priority, &mates);
        }
        let places = places.iter();
        let places: FxHashMap<&str, _> = places.map(|place| (&*place.0.uid, place)).collect();
        let (mut own, mut withdrawn) = (None, Vec::new());
        for uid in pending {
            let Some((member, node)) = places.get(&**uid) else {
                withdrawn.extend(self.withdraw((nodes, outbox), queue, uid));
                continue;
            };
            let node = nodes.name(*node).clone();
            self.nominator.nominate(nodes, member, &node);
            if member.uid == pod.uid {
                own = Some(node);
            } else {
                let pod = member.clone();
                outbox.push(Output::Expect { pod, node });
            }
        }
        (own, withdrawn)
    }

    /// Clears the nomination of a waiting pod. Returns the pod if it had one.
    pub(super) fn withdraw(
        &mut self,
        (nodes, outbox): (&mut NodeStore, &mut Vec<Output>),
        queue: &Queue,
        uid: &str,
    ) -> Option<Arc<PodInfo>> {
        let node = self.nominator.node_of(uid).cloned()?;
        self.nominator.remove_nomination(nodes, uid);
        let pod = queue.get(uid)?.info.clone();
        self.nominator.expect(&pod.uid, &node);
        outbox.push(Output::Expect {
            pod: pod.clone(),
            node: Arc::from(""),
        });
        Some(pod)
    }
}

impl VictimSearch<'_> {
    /// Searches for room for the pods that start together with `pod`. Changes nothing.
    pub(super) fn plan_group_preemption(
        &self,
        pod: &Arc<PodInfo>,
        profile: usize,
        group: &GroupPreemption<'_>,
        company: PreparedMembers,
        now: Timestamp,
    ) -> GroupOutcome {
        let total = self.cluster.nodes.len();
        if total == 0 {
            return GroupOutcome::Ineligible(String::new());
        }
        let pods = group.pending.iter();
        let mut pods: Vec<Arc<PodInfo>> = pods
            .filter_map(|uid| Some(self.queue.get(uid)?.info.clone()))
            .collect();
        let never = |pod: &Arc<PodInfo>| {
            let spec = pod.spec();
            spec.and_then(|spec| spec.preemption_policy.as_deref()) == Some("Never")
        };
        if pods.iter().any(never) {
            return GroupOutcome::Ineligible(NEVER.to_owned());
        }
        let Some(weakest) = pods.iter().min_by_key(|pod| pod.priority).cloned() else {
            return GroupOutcome::Ineligible(String::new());
        };
        let planning = self.table.group_to_plan(pod, profile);
        let planning = planning.and_then(|(at, _)| self.table.plugins[at].planning());
        if let Some(planning) = planning {
            planning.arrange(&mut pods);
        }
        let view = self.cluster.view(now);
        let mut planner = Planner {
            search: *self,
            view,
            group,
            mates: pods.iter().map(|pod| pod.uid.clone()).collect(),
            members: self.members(pods, profile, company, view),
            weakest,
            sites: Vec::with_capacity(total),
            spent: FxHashMap::default(),
            spendings: 0,
        };
        if planner.is_awaiting() {
            return GroupOutcome::Waits(TERMINATING.to_owned());
        }
        // Start at a pseudo-random node, so that equal nodes are not always tried in the same order.
        let offset = super::class::mix(self.options.seed ^ self.preemptor.searches);
        let nodes: Vec<NodeIndex> = self.cluster.nodes.indices().collect();
        let offset = usize::try_from(offset % total as u64).unwrap_or(0);
        let (ahead, behind) = nodes.split_at(offset.min(nodes.len()));
        let sites = behind.iter().chain(ahead).map(|node| Site {
            node: *node,
            pool: None,
            placed: Vec::new(),
            victims: Vec::new(),
        });
        planner.sites.extend(sites);
        let placed = match planning {
            Some(planning) => planner.place_planned(planning),
            None => planner.place_each(),
        };
        let placed = match placed {
            Ok(placed) => placed,
            Err(text) => return GroupOutcome::Hopeless(text),
        };
        match planner.finish(placed, self.table.admissions(profile)) {
            Some(plan) => GroupOutcome::Room(plan),
            None => GroupOutcome::Hopeless(planner.unhelpful()),
        }
    }

    /// Returns the members of the group; those of one kind can share cached costs.
    fn members(
        &self,
        pods: Vec<Arc<PodInfo>>,
        profile: usize,
        mut company: PreparedMembers,
        view: View<'_>,
    ) -> Vec<Member<'_>> {
        let mut kinds = FxHashMap::default();
        let pods = pods.into_iter().enumerate();
        let member = |(at, pod): (usize, Arc<PodInfo>)| {
            let profile = self.table.profile_of(&pod).unwrap_or(profile);
            let prepared = company.remove(&pod.uid);
            let mut shape = Signature::default();
            let shares = prepared
                .as_ref()
                .is_some_and(|it| it.volatile_filters.is_empty() && it.only.is_none())
                // A nominated pod is refused its own node for another reason.
                && self.preemptor.nominator.node_of(&pod.uid).is_none()
                && self.table.sign(&pod, profile, view, &mut shape) == Signable::Yes;
            let kind = match shares {
                true => *kinds
                    .entry((profile, pod.priority, shape.finish()))
                    .or_insert(at),
                false => at,
            };
            Member {
                pod,
                chain: prepared.map(|prepared| self.table.chain(prepared)),
                kind,
            }
        };
        pods.map(member).collect()
    }
}

impl PluginTable {
    /// Returns the plugins of the profile that admit pods by what other pods use.
    pub(super) fn admissions(&self, profile: usize) -> PluginSet {
        let instances = self.profiles[profile].post_filter.iter();
        let admitting = instances.filter(|at| {
            let post_filter = self.plugins[**at].post_filter();
            post_filter.is_some_and(|plugin| plugin.admission().is_some())
        });
        admitting.fold(0, |set, at| set | 1 << at)
    }
}
