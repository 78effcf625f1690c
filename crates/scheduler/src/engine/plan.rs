//! Placement plans for groups of pods, made before the first of them is tried.
//!
//! For each node, the number of members that fit together is determined; the planning plugin then assigns
//! nodes. The members go through ordinary cycles afterwards, each restricted to its node: what a plan
//! overlooked is found there, and the whole group is rolled back.

use super::cycle::CycleError;
use super::measure::Meter;
use super::nominator::Nominator;
use super::plugin_table::PluginTable;
use super::preemptor::Preemptor;
use super::scope::{Chain, Prepared, Scope};
use super::{EngineOptions, Output};
use crate::framework::{
    Code, Cycle, Diagnosis, Instance, Offer, RejectionCounts, RowVerdict, View,
};
use crate::queue::Queue;
use crate::state::{NodeIndex, NodeStore, PodInfo};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The members of a group with the states that plugins prepared for them.
pub(super) struct Members {
    /// The members in the order in which nodes are assigned.
    pub(super) pods: Vec<Arc<PodInfo>>,
    prepared: Vec<Prepared>,
    uids: FxHashSet<Arc<str>>,
}

/// The members of a group, and the node of each.
type GroupPlan = (Vec<Arc<PodInfo>>, Vec<Arc<str>>);

impl PluginTable {
    /// Plans the pod's group if that is due now. Returns its members and their nodes.
    pub(super) fn plan_group(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        view: View<'_>,
        queue: &Queue,
        nominator: &Nominator,
        (meter, options): (&Meter, &EngineOptions),
    ) -> Result<Option<GroupPlan>, CycleError> {
        let Some((instance, uids)) = self.group_to_plan(pod, profile) else {
            return Ok(None);
        };
        let Some(planning) = self.plugins[instance].planning() else {
            return Ok(None);
        };
        let mut pods: Vec<Arc<PodInfo>> = uids
            .iter()
            .filter_map(|uid| Some(queue.get(uid)?.info.clone()))
            .collect();
        planning.arrange(&mut pods);
        let mut members = self.prepare_members(meter, view, pods)?;
        let chains = members.prepared.drain(..);
        let chains: Vec<Chain<'_>> = chains.map(|it| self.chain(it)).collect();
        let mut tally = RejectionCounts::default();
        let mut helpable = Vec::new();
        let mut offers = Vec::with_capacity(view.nodes.len());
        for node in view.nodes.indices() {
            let scope = |at: usize| {
                let cycle = Cycle::new(&members.pods[at], view);
                Scope::new(cycle, self, &chains[at], nominator, options)
            };
            let (slots, refused) = members.slots(node, scope);
            offers.push(Offer {
                node,
                slots,
                score: 0,
            });
            if let Some(RowVerdict::Refused(plugin, rejection)) = refused {
                tally.add(plugin, &rejection);
                if rejection.code == Code::Unschedulable {
                    helpable.push(node);
                }
            }
        }
        let mut diagnosis = tally.diagnosis(view.nodes.len(), &self.names);
        let Some(planning) = self.plugins[instance].planning() else {
            return Ok(None);
        };
        let plan = planning.plan(&members.pods, &offers, &diagnosis.message(), view);
        match plan {
            Ok(nodes) => {
                let uids = members.pods.iter().map(|pod| pod.uid.clone());
                let plan = uids.zip(nodes.iter().cloned()).collect();
                if let Some(grouping) = self.plugins[instance].grouping() {
                    grouping.planned(Some(plan));
                }
                Ok(Some((members.pods, nodes)))
            }
            Err(message) => {
                if let Some(grouping) = self.plugins[instance].grouping() {
                    grouping.planned(None);
                }
                diagnosis.by |= 1 << instance;
                diagnosis.plugins = vec![self.names[instance]];
                diagnosis.pre_filter_message = message;
                diagnosis.pre_filter_by = Some(instance);
                diagnosis.refusals = Vec::new();
                diagnosis.candidates = helpable;
                Err(CycleError::Refused(Box::<Diagnosis>::new(diagnosis)))
            }
        }
    }
}

impl PluginTable {
    /// Runs pre-filter and pre-score for the members of a group.
    ///
    /// # Errors
    /// Fails if a member is refused before any node is filtered.
    pub(super) fn prepare_members(
        &mut self,
        meter: &Meter,
        view: View<'_>,
        pods: Vec<Arc<PodInfo>>,
    ) -> Result<Members, CycleError> {
        // Each member has its own state: what volatile plugins read of a pod is not signed.
        let mut prepare = |pod: &Arc<PodInfo>| {
            let profile = self.profile_of(pod).unwrap_or_default();
            self.prepare_state(meter, pod, profile, view);
            self.prepare_tolerating(meter, &Cycle::new(pod, view), profile, 0)
        };
        let prepared: Vec<Prepared> = pods.iter().map(&mut prepare).collect::<Result<_, _>>()?;
        let uids = pods.iter().map(|pod| pod.uid.clone()).collect();
        Ok(Members {
            pods,
            prepared,
            uids,
        })
    }
}

impl Preemptor {
    /// Moves the nominations of members to their planned nodes, or one would keep another from its node.
    pub(super) fn follow(
        &mut self,
        (nodes, outbox): (&mut NodeStore, &mut Vec<Output>),
        members: &[Arc<PodInfo>],
        plan: &[Arc<str>],
    ) {
        for (pod, node) in members.iter().zip(plan) {
            let nominated = self.nominator.node_of(&pod.uid);
            if nominated.is_none_or(|nominated| nominated == node) {
                continue;
            }
            self.nominator.nominate(nodes, pod, node);
            outbox.push(Output::Expect {
                pod: pod.clone(),
                node: node.clone(),
            });
        }
    }
}

impl PluginTable {
    /// Returns the plugin that plans the pod's group, and the uids of the members.
    pub(super) fn group_to_plan(
        &self,
        pod: &PodInfo,
        profile: usize,
    ) -> Option<(Instance, Vec<Arc<str>>)> {
        let filter_plugins = self.filter_plugins_for(pod);
        let instances = self.profiles[profile].pre_filter.iter();
        instances
            .filter(|index| filter_plugins & (1 << **index) != 0)
            .find_map(|index| Some((*index, self.plugins[*index].planning()?.members(pod)?)))
    }
}

impl Members {
    /// Returns how many members fit on `node`, counted from the first, and the verdict on the next.
    fn slots<'a>(
        &'a self,
        node: NodeIndex,
        scope: impl Fn(usize) -> Scope<'a>,
    ) -> (usize, Option<RowVerdict>) {
        for index in 0..self.pods.len() {
            let verdict = scope(index).judge_with_added(node, &[], &self.pods[..index], &self.uids);
            if !matches!(verdict, RowVerdict::Fits(_)) {
                return (index, Some(verdict));
            }
        }
        (self.pods.len(), None)
    }
}
