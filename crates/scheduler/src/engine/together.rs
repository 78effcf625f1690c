//! Making room for pods that start together: one plan of victims over several nodes, or nobody goes.
//!
//! Members get nodes in the order in which they will be tried, each the one where its coming costs least,
//! beside those that have one already. A plan counts only if the group may start with it. Until the victims
//! are gone, the nodes keep room by nominations, for those members too that had found a place before.

mod consent;
mod places;

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

/// Where members go, and who goes for them.
#[derive(Debug, Default)]
pub(super) struct Plan {
    places: Vec<(Arc<PodInfo>, NodeIndex)>,
    victims: Vec<(NodeIndex, Vec<Arc<PodInfo>>)>,
}

/// How an attempt to make room for a group ended; texts are for conditions.
#[derive(Debug)]
pub(super) enum Attempt {
    Room(Plan),
    /// Nominations of before are void.
    Hopeless(String),
    Ineligible(String),
    /// Room is being made already.
    Waits(String),
}

/// An attempt for the pods of a group, by uid.
#[derive(Debug)]
pub(super) struct Tried {
    pub(super) by: Instance,
    pub(super) prefix: &'static str,
    pub(super) attempt: Attempt,
    pub(super) pending: Vec<Arc<str>>,
    pub(super) held: Vec<Arc<str>>,
}

/// What plugins prepared for pods, by uid; none for those that are refused before any node.
pub(super) type Company = FxHashMap<Arc<str>, Prepared>;

/// A member with what plugins prepared for it.
struct Member<'a> {
    pod: Arc<PodInfo>,
    /// None: it is refused before any node.
    chain: Option<Chain<'a>>,
    /// Members with one number get the same answers.
    kind: usize,
}

/// A node, as the plan has it so far.
struct Site {
    node: NodeIndex,
    /// Who may go, once that was asked.
    pool: Option<Vec<Arc<PodInfo>>>,
    placed: Vec<usize>,
    /// Who goes for them.
    victims: Vec<Arc<PodInfo>>,
}

/// The plan in the making.
struct Planner<'a> {
    search: VictimSearch<'a>,
    view: View<'a>,
    group: &'a GroupPreemption<'a>,
    members: Vec<Member<'a>>,
    mates: FxHashSet<Arc<str>>,
    /// The one that has most to spare.
    weakest: Arc<PodInfo>,
    sites: Vec<Site>,
    /// What the victims so far take of disruption budgets, and how often that changed.
    spent: FxHashMap<u64, i64>,
    spendings: usize,
}

impl PluginTable {
    /// What rules say ahead of any node about those that start together with `pod`, should room be looked for.
    /// One by one: books may be ready for one pod at a time.
    pub(super) fn prepare_company(
        &mut self,
        queue: &Queue,
        meter: &Meter,
        view: View<'_>,
        pod: &PodInfo,
        profile: usize,
    ) -> Company {
        let plugins = self.profiles[profile].post_filter.iter();
        let plugins = plugins.filter_map(|at| self.plugins[*at].post_filter());
        let company: Vec<Arc<PodInfo>> = plugins
            .flat_map(|plugin| plugin.company(pod))
            .filter_map(|uid| Some(queue.get(&uid)?.info.clone()))
            .collect();
        let tolerated = self.admissions(profile);
        let mut prepare = |pod: &Arc<PodInfo>| {
            let profile = self.profile_of(pod).unwrap_or_default();
            self.prepare_books(pod, profile, view);
            let cycle = Cycle::new(pod, view);
            self.prepare_despite(meter, &cycle, profile, tolerated).ok()
        };
        let company = company.iter();
        company
            .filter_map(|pod| Some((pod.uid.clone(), prepare(pod)?)))
            .collect()
    }
}

impl Engine {
    /// Carries out what was found for a group, and has `diagnosis` say so.
    pub(super) fn settle_group(
        &mut self,
        pod: &Arc<PodInfo>,
        tried: Tried,
        diagnosis: &mut Diagnosis,
        messages: &mut Vec<String>,
        now: Timestamp,
    ) {
        let Tried {
            by,
            prefix,
            attempt,
            pending,
            held,
        } = tried;
        let keeps = matches!(attempt, Attempt::Room(_) | Attempt::Waits(_));
        diagnosis.nominated = None;
        let said = match attempt {
            Attempt::Room(plan) => {
                let parts = (&mut self.cluster.nodes, &mut self.outbox);
                let members = (&*pending, &*held);
                let (node, withdrawn) =
                    self.preemptor
                        .claim_together(parts, &self.queue, pod, &plan.places, members);
                for mate in withdrawn {
                    PodWaker::new(self).wake_by_freed(&mate, now);
                }
                for (node, victims) in plan.victims {
                    let node = self.cluster.nodes.name(node).clone();
                    self.send_away(pod, &node, victims, self.table.names[by], now);
                }
                diagnosis.nominated = Some(node.map_or_else(String::new, |node| node.to_string()));
                let total = held.len() + pending.len();
                let held = held.len();
                messages.clear();
                format!("preempt success, alreadyWaitingForBound: {held}/{total}")
            }
            Attempt::Hopeless(text) => {
                diagnosis.nominated = Some(String::new());
                for uid in pending.iter().filter(|uid| **uid != pod.uid) {
                    if let Some(mate) = self.preemptor.withdraw(
                        (&mut self.cluster.nodes, &mut self.outbox),
                        &self.queue,
                        uid,
                    ) {
                        PodWaker::new(self).wake_by_freed(&mate, now);
                    }
                }
                messages.push(format!("{prefix}{text}"));
                text
            }
            Attempt::Ineligible(text) | Attempt::Waits(text) => {
                if !text.is_empty() {
                    messages.push(format!("{prefix}{text}"));
                }
                text
            }
        };
        if !said.is_empty() {
            diagnosis.for_group = Some(said);
        }
        // Should they be given back what they hold, it stays theirs.
        if keeps {
            let kept = held.into_iter().filter_map(|uid| {
                let node = self.cluster.pods.get(&uid)?.node;
                Some((uid, self.cluster.nodes.name(node).clone()))
            });
            self.preemptor.kept = kept.collect();
        }
    }
}

impl Preemptor {
    /// Nominates the members of a group to their `places`. Returns the node of `pod`, and the members without a
    /// place that had been promised one.
    pub(super) fn claim_together(
        &mut self,
        (nodes, outbox): (&mut NodeStore, &mut Vec<Output>),
        queue: &Queue,
        pod: &Arc<PodInfo>,
        places: &[(Arc<PodInfo>, NodeIndex)],
        (pending, held): (&[Arc<str>], &[Arc<str>]),
    ) -> (Option<Arc<str>>, Vec<Arc<PodInfo>>) {
        // Mates have their places beside each other.
        let mates = pending.iter().chain(held).cloned().collect();
        let mut highest: FxHashMap<NodeIndex, i32> = FxHashMap::default();
        for (member, node) in places {
            let known = highest.entry(*node).or_insert(member.priority);
            *known = member.priority.max(*known);
        }
        let mut highest: Vec<(NodeIndex, i32)> = highest.into_iter().collect();
        highest.sort_unstable();
        for (node, priority) in highest {
            let node = nodes.name(node).clone();
            self.outrank((nodes, outbox), &node, priority, &mates);
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

    /// Takes back what a pod that waits was promised. Returns the pod, if it was promised anything.
    pub(super) fn withdraw(
        &mut self,
        (nodes, outbox): (&mut NodeStore, &mut Vec<Output>),
        queue: &Queue,
        uid: &str,
    ) -> Option<Arc<PodInfo>> {
        let node = self.nominator.node_of(uid).cloned()?;
        self.nominator.denominate(nodes, uid);
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
    /// Looks for room for the pods that start together with `pod`. Changes nothing.
    pub(super) fn find_room_together(
        &self,
        pod: &Arc<PodInfo>,
        profile: usize,
        group: &GroupPreemption<'_>,
        company: Company,
        now: Timestamp,
    ) -> Attempt {
        let total = self.cluster.nodes.len();
        if total == 0 {
            return Attempt::Ineligible(String::new());
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
            return Attempt::Ineligible(NEVER.to_owned());
        }
        let Some(weakest) = pods.iter().min_by_key(|pod| pod.priority).cloned() else {
            return Attempt::Ineligible(String::new());
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
            return Attempt::Waits(TERMINATING.to_owned());
        }
        // Equal nodes are not always asked in the same order.
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
            Err(text) => return Attempt::Hopeless(text),
        };
        match planner.finish(placed, self.table.admissions(profile)) {
            Some(plan) => Attempt::Room(plan),
            None => Attempt::Hopeless(planner.unhelpful()),
        }
    }

    fn members(
        &self,
        pods: Vec<Arc<PodInfo>>,
        profile: usize,
        mut company: Company,
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
                .is_some_and(|it| it.moving.is_empty() && it.only.is_none())
                // One that has been promised room is refused its own node for another reason.
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
    /// The plugins of the profile that let pods in by what others have.
    pub(super) fn admissions(&self, profile: usize) -> PluginSet {
        let instances = self.profiles[profile].post_filter.iter();
        let those = instances.filter(|at| {
            let post_filter = self.plugins[**at].post_filter();
            post_filter.is_some_and(|plugin| plugin.admission().is_some())
        });
        those.fold(0, |set, at| set | 1 << at)
    }
}
