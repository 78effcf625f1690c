//! Free capacity of the target nodes.

use crate::framework::Cycle;
use crate::rules::Fit;
use crate::state::{NodeInfo, PodInfo};
use koord_model::resources::PODS;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Free capacity of nodes during a cycle.
#[derive(Debug, Clone)]
pub(super) struct TargetCapacity {
    fit: Fit,
    /// Number of pods by node.
    pods: FxHashMap<Arc<str>, i64>,
}

impl TargetCapacity {
    /// Returns the free capacity after all moves that `cycle` has planned so far.
    pub(super) fn new(cycle: &Cycle<'_>) -> Self {
        let mut pods = FxHashMap::<Arc<str>, i64>::default();
        for pod in cycle.snapshot().pods.iter().filter(|pod| pod.is_active()) {
            if let Some(node) = &pod.node {
                *pods.entry(node.clone()).or_default() += 1;
            }
        }
        for planned in cycle.moves() {
            if let Some(node) = &planned.pod.node {
                *pods.entry(node.clone()).or_default() -= 1;
            }
            if let Some(target) = &planned.target {
                *pods.entry(target.clone()).or_default() += 1;
            }
        }
        let fit = cycle.fit();
        Self { fit, pods }
    }

    /// Returns the first of `targets` with enough resources for `pod`; if `fully`, it must meet the pod's
    /// other constraints, too.
    pub(super) fn find<'t>(
        &self,
        pod: &PodInfo,
        targets: &'t [Arc<NodeInfo>],
        fully: bool,
    ) -> Option<&'t Arc<NodeInfo>> {
        let has = |node: &&Arc<NodeInfo>| {
            let fits = if fully {
                self.fit.can_place(pod, node)
            } else {
                self.fits_requests(pod, node)
            };
            fits && self.has_pod_slot(node)
        };
        targets.iter().find(has)
    }

    /// Allocates capacity for `pod` on `node`.
    pub(super) fn take(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.fit.add(pod, &node.name);
        *self.pods.entry(node.name.clone()).or_default() += 1;
    }

    /// Releases the capacity of `pod` on `node`.
    pub(super) fn release(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.fit.remove(pod, &node.name);
        *self.pods.entry(node.name.clone()).or_default() -= 1;
    }

    /// Explains why none of `targets` can take `pod`.
    pub(super) fn reasons(&self, pod: &PodInfo, targets: &[Arc<NodeInfo>]) -> String {
        let full = targets
            .iter()
            .filter(|node| !self.has_pod_slot(node))
            .count();
        let misfits = targets.iter().any(|node| !self.fit.can_place(pod, node));
        match (full, misfits) {
            (0, _) => self.fit.reasons(pod, targets),
            (full, false) => format!("{full} insufficient pods"),
            (full, true) => format!(
                "{}, {full} insufficient pods",
                self.fit.reasons(pod, targets)
            ),
        }
    }

    /// Returns true if the free amounts of `node` cover the requests of `pod`.
    fn fits_requests(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let requested = self.fit.requested(&node.name);
        let free = |id| {
            let requested = requested.map_or(0, |requested| requested.get(id));
            node.allocatable.get(id).saturating_sub(requested)
        };
        let mut requests = pod.shape.requests.iter();
        requests.all(|(id, request)| request <= free(id))
    }

    fn has_pod_slot(&self, node: &NodeInfo) -> bool {
        let count = self.pods.get(&node.name).copied().unwrap_or(0);
        !node.allocatable.contains(PODS) || count < node.allocatable.get(PODS)
    }
}
