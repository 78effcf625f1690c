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
const PART: i64 = 50;
/// At most so many bytes per tick from one pod.
const MOST: i64 = 16 << 20;
/// At most so many from all pods together.
const MOST_OF_ALL: i64 = 64 << 20;
/// Less is not worth the write.
const LEAST: i64 = 1 << 20;

/// Nobody else writes it.
pub(super) const CLAIMS: &[Claim] = &[Claim {
    file: TargetKind::Cgroup(Resource::MemoryReclaim),
    level: Level::Pod,
    classes: Classes::of(&[QosClass::Be, QosClass::None]),
}];

/// Has the kernel take pages from the batch pods that are farthest above what they asked for.
pub(super) fn order(view: &View<'_>, plan: &mut Plan, why: &str) {
    let batch = view.pods().map(|pod| pod.info);
    let batch = batch.filter(|pod| {
        let claimed = CLAIMS.iter().any(|claim| claim.classes.has(pod.qos));
        pod.is_best_effort() && pod.is_active() && claimed
    });
    let mut above: Vec<(i64, i64, &PodInfo)> = batch
        .filter_map(|pod| {
            // With page cache, which is what goes first.
            let used = view.kernel.number(&pod.cgroup, Resource::MemoryUsage)?;
            let beyond = used.saturating_sub(asked(pod));
            Some((beyond, take(used, beyond)?, pod))
        })
        .collect();
    above.sort_by_key(|(beyond, ..)| std::cmp::Reverse(*beyond));
    let mut left = MOST_OF_ALL;
    for (_, bytes, pod) in above {
        let bytes = bytes.min(left);
        if bytes < LEAST {
            return;
        }
        left -= bytes;
        let mut write = Write::pod(pod).set(Resource::MemoryReclaim, bytes);
        write.cacheable = false;
        plan.write(write.because(why));
    }
}

/// What a pod asked for, in bytes.
fn asked(pod: &PodInfo) -> i64 {
    let requests = pod.resident_containers().map(|container| {
        let amounts = container.batch.unwrap_or(container.native);
        amounts.memory_request.unwrap_or(0).max(0)
    });
    requests.fold(0, i64::saturating_add)
}

/// Returns how many bytes to take from a pod that uses `used`, `beyond` of which it did not ask for.
fn take(used: i64, beyond: i64) -> Option<i64> {
    let bytes = (used / PART).clamp(LEAST, MOST).min(beyond);
    (bytes >= LEAST).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::take;

    #[test]
    fn little_is_taken_and_nothing_of_what_was_asked_for() {
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
