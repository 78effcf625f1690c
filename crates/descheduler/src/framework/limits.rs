//! Limits of the number of evictions in one cycle, over all profiles.

use super::SkipReason;
use crate::state::PodInfo;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// `maxNoOfPodsToEvictPerNode`, `PerNamespace` and `Total`; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum per node.
    pub per_node: Option<u64>,
    /// Maximum per namespace.
    pub per_namespace: Option<u64>,
    /// Maximum in total.
    pub total: Option<u64>,
}

/// Counts the evictions of one cycle against [`Limits`].
#[derive(Debug, Clone, Default)]
pub struct Limiter {
    limits: Limits,
    nodes: FxHashMap<Arc<str>, u64>,
    namespaces: FxHashMap<Arc<str>, u64>,
    total: u64,
}

impl Limiter {
    /// Starts a cycle with no evictions.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Checks whether one more pod may be evicted.
    ///
    /// # Errors
    /// Returns the limit that is reached as the rule.
    pub fn allows(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        let exceeds = |count: u64, limit: Option<u64>| limit.filter(|limit| count >= *limit);
        let (limits, node) = (&self.limits, pod.node.as_ref());
        if let Some(limit) = exceeds(self.total, limits.total) {
            let detail = format!("{limit} pods go in this cycle, which are all that may");
            return Err(SkipReason::new("MaxNoOfPodsToEvictTotal", detail));
        }
        if let Some(node) = node
            && let Some(limit) =
                exceeds(self.nodes.get(node).copied().unwrap_or(0), limits.per_node)
        {
            let detail =
                format!("{limit} pods of node {node} go in this cycle, which are all that may");
            return Err(SkipReason::new("MaxNoOfPodsToEvictPerNode", detail));
        }
        let in_namespace = self.namespaces.get(&pod.namespace).copied().unwrap_or(0);
        if let Some(limit) = exceeds(in_namespace, limits.per_namespace) {
            let namespace = &pod.namespace;
            let detail = format!(
                "{limit} pods of namespace {namespace} go in this cycle, which are all that may"
            );
            return Err(SkipReason::new("MaxNoOfPodsToEvictPerNamespace", detail));
        }
        Ok(())
    }

    /// Counts the eviction of `pod`.
    pub fn count(&mut self, pod: &PodInfo) {
        self.total += 1;
        if let Some(node) = &pod.node {
            *self.nodes.entry(node.clone()).or_default() += 1;
        }
        *self.namespaces.entry(pod.namespace.clone()).or_default() += 1;
    }
}
