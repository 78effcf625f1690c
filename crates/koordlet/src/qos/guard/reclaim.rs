//! Takes pages from batch pods, a little at a time.
//!
//! The kernel does it within the write, and this agent waits for it; so an order takes from a pod little,
//! from all together not much more, and nothing of what a pod asked for. `memory.min` and `memory.low`
//! the kernel heeds by itself.

use crate::claims::{Claim, Classes, Level};
use crate::qos::{Plan, View, Write};
use crate::states::PodInfo;
use koord_api::qos::QosClass;
use koord_host::{Resource, TargetKind};

/// What is taken of a pod's memory per tick: a fiftieth.
const DIVISOR: i64 = 50;
/// At most so many bytes per tick from one pod.
const MAX_PER_POD: i64 = 16 << 20;
/// At most so many from all pods together.
const MAX_TOTAL: i64 = 64 << 20;
/// Less is not worth the write.
const MIN_BYTES: i64 = 1 << 20;

/// Nobody else writes it.
pub(super) const CLAIMS: &[Claim] = &[Claim {
    file: TargetKind::Cgroup(Resource::MemoryReclaim),
    level: Level::Pod,
    classes: Classes::only(&[QosClass::Be, QosClass::None]),
}];

/// Has the kernel take pages from the batch pods that are farthest above what they asked for.
pub(super) fn write_reclaims(view: &View<'_>, plan: &mut Plan, why: &str) {
    let batch = view.pods().map(|pod| pod.info);
    let batch = batch.filter(|pod| {
        let claimed = CLAIMS.iter().any(|claim| claim.classes.has(pod.qos));
        pod.is_best_effort() && pod.is_active() && claimed
    });
    let mut above: Vec<(i64, i64, &PodInfo)> = batch
        .filter_map(|pod| {
            // With page cache, which is what goes first.
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

/// What a pod asked for, in bytes.
fn requested_memory(pod: &PodInfo) -> i64 {
    let requests = pod.resident_containers().map(|container| {
        let amounts = container.batch.unwrap_or(container.native);
        amounts.memory_request.unwrap_or(0).max(0)
    });
    requests.fold(0, i64::saturating_add)
}

/// Returns how many bytes to take from a pod that uses `used`, `beyond` of which it did not ask for.
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
