//! Free capacity of nodes, with the checks of kubernetes-sigs/descheduler: those of Koordinator's own rule,
//! and in addition the number of pods and inter-pod anti-affinity.

use crate::framework::Cycle;
use crate::rules::{Fit, allows};
use crate::state::{NodeInfo, PodInfo, Snapshot};
use k8s_openapi::api::core::v1::PodAffinityTerm;
use koord_api::selector;
use koord_model::nodes::untolerated;
use koord_model::resources::PODS;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of nodes that are considered to explain a lack of capacity.
const EXPLAINED_NODES: usize = 200;

/// Free capacity of nodes during a cycle.
#[derive(Debug)]
pub(super) struct FreeCapacity {
    fit: Fit,
    pods: FxHashMap<Arc<str>, i64>,
    /// UIDs of pods that leave.
    leaving: FxHashSet<Arc<str>>,
}

impl FreeCapacity {
    /// Returns the free capacity after all moves that `cycle` has planned so far.
    pub(super) fn after_moves(cycle: &Cycle<'_>) -> Self {
        let mut capacity = Self::new(cycle.snapshot());
        for planned in cycle.moves() {
            capacity.release(&planned.pod);
            if let Some(target) = &planned.target {
                capacity.fit.add(&planned.pod, target);
                *capacity.pods.entry(target.clone()).or_default() += 1;
            }
        }
        capacity
    }

    /// Releases the capacity of `pod` on its node.
    pub(super) fn release(&mut self, pod: &PodInfo) {
        if let Some(node) = &pod.node
            && self.leaving.insert(pod.uid.clone())
        {
            self.fit.remove(pod, node);
            *self.pods.entry(node.clone()).or_default() -= 1;
        }
    }

    pub(super) fn new(snapshot: &Snapshot) -> Self {
        let mut pods = FxHashMap::<Arc<str>, i64>::default();
        for pod in snapshot.pods.iter().filter(|pod| pod.is_active()) {
            if let Some(node) = &pod.node {
                *pods.entry(node.clone()).or_default() += 1;
            }
        }
        Self {
            fit: Fit::new(snapshot),
            pods,
            leaving: FxHashSet::default(),
        }
    }

    /// Returns true if `node` has capacity for `pod`; its own node has allocated it already.
    pub(super) fn can_take(&self, snapshot: &Snapshot, pod: &PodInfo, node: &NodeInfo) -> bool {
        let allowed = if is_on(pod, node) {
            !node.unschedulable
                && allows(&pod.shape, node)
                && untolerated(&pod.shape.tolerations, &node.taints).is_none()
        } else {
            self.fit.can_place(pod, node) && !self.is_full(node)
        };
        allowed && !self.violates_anti_affinity(snapshot, pod, node)
    }

    /// Returns true if one of `nodes` other than its own has capacity for `pod`.
    pub(super) fn fits_any_other(
        &self,
        snapshot: &Snapshot,
        pod: &PodInfo,
        nodes: &[Arc<NodeInfo>],
    ) -> bool {
        let mut other_nodes = nodes.iter().filter(|node| !is_on(pod, node));
        other_nodes.any(|node| self.can_take(snapshot, pod, node))
    }

    /// Explains why none of `nodes` other than its own has capacity for `pod`: `3 insufficient cpu, 1 taint
    /// gpu`. Only a limited number of nodes is considered.
    pub(super) fn obstacles(
        &self,
        snapshot: &Snapshot,
        pod: &PodInfo,
        nodes: &[Arc<NodeInfo>],
    ) -> String {
        let other_nodes = nodes
            .iter()
            .filter(|node| !is_on(pod, node))
            .take(EXPLAINED_NODES);
        let mut counts = BTreeMap::<String, usize>::new();
        for node in other_nodes {
            let obstacle = match self.fit.fits(pod, node) {
                Err(misfits) => misfits.first().map(ToString::to_string),
                Ok(()) if self.is_full(node) => Some("too many pods".to_owned()),
                Ok(()) if self.violates_anti_affinity(snapshot, pod, node) => {
                    Some("inter-pod anti-affinity".to_owned())
                }
                Ok(()) => None,
            };
            if let Some(obstacle) = obstacle {
                *counts.entry(obstacle).or_default() += 1;
            }
        }
        let counts = counts
            .iter()
            .map(|(obstacle, nodes)| format!("{nodes} {obstacle}"));
        let counts: Vec<_> = counts.collect();
        match (&counts[..], nodes.len()) {
            ([], _) => "there is no other node".to_owned(),
            (counts, all) if all > EXPLAINED_NODES => {
                format!("of {EXPLAINED_NODES} of {all} nodes: {}", counts.join(", "))
            }
            (counts, _) => counts.join(", "),
        }
    }

    fn is_full(&self, node: &NodeInfo) -> bool {
        let count = self.pods.get(&node.name).copied().unwrap_or(0);
        count >= node.allocatable.get(PODS)
    }

    /// Returns true if the required anti-affinity of `pod` excludes it from `node` because of a pod there.
    fn violates_anti_affinity(&self, snapshot: &Snapshot, pod: &PodInfo, node: &NodeInfo) -> bool {
        let terms = anti_affinity(pod).iter();
        let mut terms = terms.filter(|term| node.label(&term.topology_key).is_some());
        terms.any(|term| {
            let pods_there = snapshot.active_on(&node.name);
            let mut staying = pods_there.filter(|other| !self.leaving.contains(&other.uid));
            staying.any(|other| anti_affinity_matches(snapshot, pod, term, other))
        })
    }
}

fn is_on(pod: &PodInfo, node: &NodeInfo) -> bool {
    pod.node.as_ref() == Some(&node.name)
}

/// Returns the terms of required anti-affinity of `pod`.
pub(super) fn anti_affinity(pod: &PodInfo) -> &[PodAffinityTerm] {
    let affinity = pod.shape.affinity.as_ref();
    let affinity = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_deref()
    });
    required.unwrap_or_default()
}

/// Returns true if `term` of `pod` matches `other`, wherever that is. Pods of equal name never match, because
/// one may replace the other.
pub(super) fn anti_affinity_matches(
    snapshot: &Snapshot,
    pod: &PodInfo,
    term: &PodAffinityTerm,
    other: &PodInfo,
) -> bool {
    let Some(labels) = &term.label_selector else {
        return false;
    };
    if pod.name == other.name {
        return false;
    }
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let by_labels = term.namespace_selector.as_ref();
    let in_namespace = if listed.is_empty() && by_labels.is_none() {
        pod.namespace == other.namespace
    } else {
        listed.iter().any(|name| **name == *other.namespace)
            || by_labels.is_some_and(|selector| {
                let none = BTreeMap::new();
                let labels = snapshot.namespaces.get(&other.namespace).unwrap_or(&none);
                selector::matches(selector, labels).unwrap_or(false)
            })
    };
    in_namespace && selector::matches(labels, &other.shape.labels).unwrap_or(false)
}
