//! Whose use is taken back when a quota uses more than it may.

use super::exceeded;
use crate::resources::Amounts;

/// A pod on a node, as far as its quota is concerned.
#[derive(Debug, Clone, Copy)]
pub struct Holding<'a> {
    /// What it is charged.
    pub amounts: &'a Amounts,
    /// Whether it must not be preempted: it stays whatever its quota may use.
    pub firm: bool,
    /// Whether it is being deleted: what it has comes back by itself.
    pub leaving: bool,
}

/// Which of `pods`, the least important first, have to go so that `used` is within `limit`: their
/// places in the list, in order.
///
/// As many go as it takes, from the first on. Of these, from the last back, each stays after all for
/// which there is room then: one that uses nothing of what is short always does. When all together
/// are not enough, all go that use what is short. What `limit` does not list is not limited.
///
/// Source: Koordinator `pkg/scheduler/plugins/elasticquota/quota_overuse_revoke.go`.
#[must_use]
pub fn revoke(used: &Amounts, limit: &Amounts, pods: &[Holding<'_>]) -> Vec<usize> {
    let mut used = used.clone();
    for pod in pods.iter().filter(|pod| pod.leaving) {
        used.sub_all(pod.amounts);
    }
    let mut out = Vec::new();
    let may_go = |pod: &Holding<'_>| !pod.firm && !pod.leaving;
    for (at, pod) in pods.iter().enumerate().filter(|(_, pod)| may_go(pod)) {
        if exceeded(&used, limit).is_empty() {
            break;
        }
        used.sub_all(pod.amounts);
        out.push(at);
    }
    // The most important first.
    out.reverse();
    out.retain(|at| {
        let amounts = pods[*at].amounts;
        let fits = |(id, most)| {
            let asked = amounts.get(id);
            asked <= 0 || used.get(id).saturating_add(asked) <= most
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
