//! Eviction of pods from source nodes, until utilization or free capacity ends it.

use super::NodeUtilization;
use super::usage::{Usages, listed};
use crate::framework::{Cycle, SkipReason};
use crate::rules::Namespaces;
use crate::state::PodInfo;
use crate::upstream_plugins::by_importance;
use koord_model::nodes::tolerates;
use koord_model::resources::{Amounts, ResourceId};
use std::sync::Arc;

/// Source nodes, and how far they are emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Nodes above their limit, until they are not above it any more.
    AboveLimit,
    /// All pods of the nodes.
    All,
}

#[derive(Debug)]
pub(super) struct Eviction<'a> {
    pub(super) source: Source,
    pub(super) usages: &'a Usages<'a>,
    pub(super) excluded: Option<&'a Namespaces>,
    /// Maximum number of pods evicted per node.
    pub(super) per_node: Option<u64>,
    /// Resources of which a pod must request one to be evicted; any pod if empty.
    pub(super) only_with: &'a [ResourceId],
}

impl Eviction<'_> {
    /// Evicts pods from `sources`, in order, as long as `targets` have free capacity.
    pub(super) fn run(
        &self,
        cycle: &mut Cycle<'_>,
        sources: Vec<NodeUtilization<'_>>,
        targets: &[NodeUtilization<'_>],
    ) {
        let mut free = Amounts::new();
        for target in targets {
            free.add_all(&target.limit);
            free.sub_all(&target.used);
        }
        let shown = listed(cycle.snapshot(), &free);
        let (from, to) = (sources.len(), targets.len());
        cycle.note(
            None,
            format!("{to} nodes have room for pods of {from}: {shown}"),
        );
        for node in sources {
            self.relieve(cycle, node, targets, &mut free);
        }
    }

    /// Evicts pods of `node`, the least important ones first, until a [`Self::stop_reason`] applies.
    fn relieve(
        &self,
        cycle: &mut Cycle<'_>,
        mut node: NodeUtilization<'_>,
        targets: &[NodeUtilization<'_>],
        free: &mut Amounts,
    ) {
        let staying = cycle.staying_on(&node.node.name).into_iter();
        let mut pods: Vec<_> = staying.cloned().collect();
        by_importance(&mut pods);
        let mut evicted = 0;
        for pod in &pods {
            if let Some(stop) = self.stop_reason(cycle, &node, free, evicted) {
                cycle.skip_pod(pod, stop);
                continue;
            }
            let used = match self.evictable_usage(pod, targets) {
                Ok(used) => used,
                Err(cause) => {
                    cycle.skip_pod(pod, cause);
                    continue;
                }
            };
            let name = &node.node.name;
            let reason = match self.source {
                Source::AboveLimit => format!("node {name} is over-utilized"),
                Source::All => format!("node {name} is under-utilized"),
            };
            if super::super::try_evict(cycle, pod, reason) {
                evicted += 1;
                node.used.sub_all(&used);
                free.sub_all(&used);
            }
        }
        let name = &node.node.name;
        cycle.note(
            Some(name),
            format!("{evicted} of {} pods are to go", pods.len()),
        );
    }

    /// Returns the reason to evict no more pods of `node` after `evicted` ones; `None` to continue. `free` is the free
    /// capacity of all target nodes.
    fn stop_reason(
        &self,
        cycle: &Cycle<'_>,
        node: &NodeUtilization<'_>,
        free: &Amounts,
        evicted: u64,
    ) -> Option<SkipReason> {
        let name = &node.node.name;
        let mut used = node.used.iter();
        if self.source == Source::AboveLimit && !used.any(|(id, used)| node.limit.get(id) < used) {
            let detail = format!("node {name} is not over-utilized any more");
            return Some(SkipReason::new("NodeRelieved", detail));
        }
        if let Some((id, _)) = free.iter().find(|(_, left)| *left < 1) {
            let resource = cycle.snapshot().table.name(id);
            let detail = format!("the nodes that take pods have no {resource} left");
            return Some(SkipReason::new("NoRoom", detail));
        }
        match self.per_node {
            Some(limit) if evicted >= limit => {
                let detail = format!(
                    "{evicted} pods of node {name} go, which are all that may by evictionLimits.node"
                );
                Some(SkipReason::new("EvictionLimitsNode", detail))
            }
            _ => None,
        }
    }

    /// Returns the usage of `pod`, or the reason why it must not be evicted.
    fn evictable_usage(
        &self,
        pod: &Arc<PodInfo>,
        targets: &[NodeUtilization<'_>],
    ) -> Result<Amounts, SkipReason> {
        let asks = |id: &ResourceId| pod.shape.requests.contains(*id);
        if !self.only_with.is_empty() && !self.only_with.iter().any(asks) {
            let detail = "it asks for none of the resources of thresholds";
            return Err(SkipReason::new("OnlyThresholdingResources", detail));
        }
        let tolerations = &pod.shape.tolerations;
        let borne = |node: &NodeUtilization<'_>| {
            let mut taints = node.node.taints.iter();
            taints.all(|taint| tolerates(tolerations, taint))
        };
        if !targets.iter().any(borne) {
            let detail = "it tolerates the taints of no node that has room";
            return Err(SkipReason::new("Taints", detail));
        }
        if let Some(namespaces) = self.excluded
            && !namespaces.allow(&pod.namespace)
        {
            let detail = format!("evictableNamespaces leave {} out", pod.namespace);
            return Err(SkipReason::new("Namespaces", detail));
        }
        let used = self.usages.pod_amounts(pod);
        used.map_err(|reason| SkipReason::new("NoMetric", reason))
    }
}
