//! Reclaims pages from batch pods, a few per tick.
//!
//! The kernel reclaims within the write, and this agent waits for it; so each tick takes only little from a
//! pod, not much more from all together, and nothing of what a pod requests. The kernel itself respects
//! `memory.min` and `memory.low`.

use crate::claims::{Claim, Classes, Level};
use crate::qos::{Plan, View, Write};
use crate::states::PodInfo;
use koord_api::qos::QosClass;
use koord_host::{Resource, TargetKind};

/// A pod's memory usage is divided by this for the bytes to reclaim per tick.
const DIVISOR: i64 = 50;
/// Maximum bytes per tick from one pod.
const MAX_PER_POD: i64 = 16 << 20;
/// Maximum bytes per tick from all pods together.
const MAX_TOTAL: i64 = 64 << 20;
/// Minimum bytes per write.
const MIN_BYTES: i64 = 1 << 20;

/// Claims of this strategy: no other strategy writes the file.
pub(super) const CLAIMS: &[Claim] = &[Claim {
    file: TargetKind::Cgroup(Resource::MemoryReclaim),
    level: Level::Pod,
    classes: Classes::only(&[QosClass::Be, QosClass::None]),
}];

/// Adds writes that reclaim pages from the batch pods that exceed their requests most.
pub(super) fn write_reclaims(view: &View<'_>, plan: &mut Plan, why: &str) {
    let batch = view.pods().map(|pod| pod.info);
    let batch = batch.filter(|pod| {
        let claimed = CLAIMS.iter().any(|claim| claim.classes.has(pod.qos));
        pod.is_best_effort() && pod.is_active() && claimed
    });
    let mut above: Vec<(i64, i64, &PodInfo)> = batch
        .filter_map(|pod| {
            // Including page cache, which is reclaimed first.
            let used = view.kernel.number(&pod.cgroup, Resource::MemoryUsage)?;
            let beyond = used.saturating_sub(requested_memory(pod));
            Some((beyond, take(used, beyond)?, pod))
        })
        .collect();
    above.sort_by_key(|(beyond, ..)| std::cmp::Reverse(*beyond));
    let mut remaining = MAX_TOTAL;
    for (_, bytes, pod) in above {
        let bytes = bytes.min(remaining);
        if bytes < MIN_BYTES {
            return;
        }
        remaining -= bytes;
        let mut write = Write::pod(pod).set(Resource::MemoryReclaim, bytes);
        write.cacheable = false;
        plan.write(write.because(why));
    }
}

/// Returns the memory that a pod requests, in bytes.
fn requested_memory(pod: &PodInfo) -> i64 {
    let requests = pod.resident_containers().map(|container| {
        let amounts = container.batch.unwrap_or(container.native);
        amounts.memory_request.unwrap_or(0).max(0)
    });
    requests.fold(0, i64::saturating_add)
}

/// Returns the bytes to reclaim from a pod that uses `used`, `beyond` of which exceed its request; `None` if
/// that is too little.
fn take(used: i64, beyond: i64) -> Option<i64> {
    let bytes = (used / DIVISOR).clamp(MIN_BYTES, MAX_PER_POD).min(beyond);
    (bytes >= MIN_BYTES).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::take;

    #[test]
    fn reclaim_is_limited_and_spares_requests() {
        const MIB: i64 = 1 << 20;
        for (used, asked, want) in [
            (500, 0, Some(10)),
            (500, 495, Some(5)),
            (10, 0, Some(1)),
            (100_000, 1000, Some(16)),
            (500, 500, None),
            (500, 900, None),
            (0, 0, None),
        ] {
            let got = take(used * MIB, (used - asked) * MIB);
            assert_eq!(got, want.map(|mib| mib * MIB), "{used} {asked}");
        }
        assert_eq!(take(500 * MIB, MIB - 1), None, "not worth it");
    }
}
