//! Selection of the pods to evict when a quota is over its limit.

use super::exceeded;
use crate::resources::Amounts;

/// Pod with a node, as charged to its quota.
#[derive(Debug, Clone, Copy)]
pub struct ChargedPod<'a> {
    /// Charged amounts.
    pub amounts: &'a Amounts,
    /// True if the pod must not be preempted: it is never selected.
    pub non_preemptible: bool,
    /// True if the pod is being deleted: its amounts are freed anyway.
    pub deleting: bool,
}

/// Selects the pods, the least important first, that must be evicted so that `used` is within `limit`.
/// Returns their indices in ascending order.
///
/// Pods are selected from the first on until enough are selected. Of these, from the last back, each is deselected
/// that fits after all: one that uses none of the exceeded resources always does. If all together are not
/// enough, all pods are selected that use an exceeded resource. Resources that `limit` does not list are
/// unlimited.
///
/// Source: Koordinator `pkg/scheduler/plugins/elasticquota/quota_overuse_revoke.go`.
#[must_use]
pub fn revoke(used: &Amounts, limit: &Amounts, pods: &[ChargedPod<'_>]) -> Vec<usize> {
    let mut used = used.clone();
    for pod in pods.iter().filter(|pod| pod.deleting) {
        used.sub_all(pod.amounts);
    }
    let mut out = Vec::new();
    let is_evictable = |pod: &ChargedPod<'_>| !pod.non_preemptible && !pod.deleting;
    for (at, pod) in pods.iter().enumerate().filter(|(_, pod)| is_evictable(pod)) {
        if exceeded(&used, limit).is_empty() {
            break;
        }
        used.sub_all(pod.amounts);
        out.push(at);
    }
    // The most important pod first.
    out.reverse();
    out.retain(|at| {
        let amounts = pods[*at].amounts;
        let fits = |(id, most)| {
            let amount = amounts.get(id);
            amount <= 0 || used.get(id).saturating_add(amount) <= most
        };
        let stays = limit.iter().all(fits);
        if stays {
            used.add_all(amounts);
        }
        !stays
    });
    out.reverse();
    out
}
