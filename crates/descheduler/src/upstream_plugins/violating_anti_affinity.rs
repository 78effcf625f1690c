//! `RemovePodsViolatingInterPodAntiAffinity`: evicts pods whose anti-affinity matches a pod nearby.

use super::free_capacity::{anti_affinity, anti_affinity_matches};
use super::{by_importance, check_namespaces, check_selected, try_evict};
use crate::framework::{Cycle, Strategy, StrategyError};
use crate::rules::Namespaces;
use crate::state::{NodeInfo, PodInfo, Snapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

pub(super) const NAME: &str = "RemovePodsViolatingInterPodAntiAffinity";

/// `RemovePodsViolatingInterPodAntiAffinityArgs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Namespaces>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<LabelSelector>,
}

pub(super) fn check(args: &Args) -> Result<(), String> {
    check_namespaces(args.namespaces.as_ref())
}

#[derive(Debug)]
pub(super) struct ViolatingAntiAffinity(pub(super) Args);

impl Strategy for ViolatingAntiAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let mut pods_by_node = PodsByNode::new(cycle);
        for node in cycle.nodes() {
            let pods = cycle.active_on(&node.name).into_iter();
            let mut pods: Vec<_> = pods.filter(|pod| self.0.selects(pod)).cloned().collect();
            by_importance(&mut pods);
            for pod in &pods {
                let Some(other) = pods_by_node.conflict(pod, node) else {
                    continue;
                };
                let reason = format!("does not bear {other} on node {}", node.name);
                if try_evict(cycle, pod, reason) {
                    // Other pods whose anti-affinity matches this one need not be evicted any more.
                    pods_by_node.gone.insert(pod.uid.clone());
                }
            }
        }
        Ok(())
    }
}

impl Args {
    /// Returns true if `pod` may be evicted by this strategy. Other pods still count as conflicts.
    fn selects(&self, pod: &PodInfo) -> bool {
        check_selected(self.namespaces.as_ref(), self.label_selector.as_ref(), pod).is_ok()
    }
}

/// The pods that stay, by node.
struct PodsByNode<'a> {
    snapshot: &'a Snapshot,
    nodes: &'a [Arc<NodeInfo>],
    pods: FxHashMap<Arc<str>, Vec<&'a Arc<PodInfo>>>,
    /// Nodes by label and value, for the topology keys that were needed so far.
    domains: FxHashMap<String, FxHashMap<&'a str, Vec<&'a Arc<NodeInfo>>>>,
    gone: FxHashSet<Arc<str>>,
}

impl<'a> PodsByNode<'a> {
    fn new(cycle: &Cycle<'a>) -> Self {
        let (snapshot, nodes) = (cycle.snapshot(), cycle.nodes());
        let on = nodes
            .iter()
            .map(|node| (node.name.clone(), cycle.staying_on(&node.name)));
        Self {
            snapshot,
            nodes,
            pods: on.collect(),
            domains: FxHashMap::default(),
            gone: FxHashSet::default(),
        }
    }

    /// Returns a pod that the anti-affinity of `pod` on `node` matches.
    fn conflict(&mut self, pod: &PodInfo, node: &'a Arc<NodeInfo>) -> Option<Arc<PodInfo>> {
        for term in anti_affinity(pod) {
            let (key, nodes) = (&term.topology_key, self.nodes);
            if !self.domains.contains_key(key) {
                let mut by_value = FxHashMap::<_, Vec<_>>::default();
                for node in nodes {
                    if let Some(value) = node.label(key) {
                        by_value.entry(value).or_default().push(node);
                    }
                }
                self.domains.insert(key.clone(), by_value);
            }
            let domain = self.domains.get(key);
            let neighbors = domain.and_then(|values| values.get(node.label(key)?));
            let neighbors = neighbors.map_or(&[][..], Vec::as_slice).iter().copied();
            // The pod's own node is always in its domain, with or without the label.
            let neighbors = neighbors.filter(|other| other.name != node.name);
            for neighbor in [node].into_iter().chain(neighbors) {
                let pods = self.pods.get(&neighbor.name).into_iter().flatten();
                let mut remaining = pods.filter(|other| !self.gone.contains(&other.uid));
                let conflicting =
                    remaining.find(|other| anti_affinity_matches(self.snapshot, pod, term, other));
                if let Some(conflicting) = conflicting {
                    return Some((*conflicting).clone());
                }
            }
        }
        None
    }
}
