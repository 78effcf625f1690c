//! Decides which pods to keep although the kubelet does not list them.
//!
//! A kubelet that has just started may list only part of its pods. State about the others (rings, baselines,
//! models) must survive until they have certainly been removed.

use std::collections::BTreeMap;

/// Time without failed requests after which the kubelet's list counts as complete, in milliseconds.
const SETTLED_MS: u64 = 30_000;

/// Maximum time for which a missing pod is kept, in milliseconds, so that a cgroup that is never removed does
/// not keep it.
const MISSING_MS: u64 = 120_000;

/// Pods that are not listed any more, with the time since when, in milliseconds of the monotonic clock.
pub(super) type MissingPods = BTreeMap<String, u64>;

/// Returns whether a list at `now_ms` is complete, if requests have succeeded since `answers_since_ms`.
pub(super) fn is_settled(answers_since_ms: Option<u64>, now_ms: u64) -> bool {
    answers_since_ms.is_some_and(|since| now_ms.saturating_sub(since) >= SETTLED_MS)
}

/// Returns those `known` pods to keep that are not listed. A pod is removed when a settled list lacks it and
/// its cgroup does not exist, and in any case after two minutes.
pub(super) fn retained_pods<'a>(
    known: impl IntoIterator<Item = &'a str>,
    is_listed: impl Fn(&str) -> bool,
    before: &MissingPods,
    settled: bool,
    now_ms: u64,
    has_group: impl Fn(&str) -> bool,
) -> MissingPods {
    let mut missing = MissingPods::new();
    for uid in known {
        if is_listed(uid) {
            continue;
        }
        let since = before.get(uid).copied().unwrap_or(now_ms);
        let removed = settled && !has_group(uid);
        if !removed && now_ms.saturating_sub(since) < MISSING_MS {
            missing.insert(uid.to_owned(), since);
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_removed_after_grace_period() {
        // Listed, missing since, settled, has a group; kept.
        for (listed, since, settled, group, kept) in [
            (true, None, false, false, None),
            // A list right after a restart proves nothing.
            (false, None, false, false, Some(200_000)),
            (false, None, false, true, Some(200_000)),
            (false, None, true, true, Some(200_000)),
            (false, None, true, false, None),
            (false, Some(100_000), false, false, Some(100_000)),
            (false, Some(100_000), true, true, Some(100_000)),
            (false, Some(80_000), false, true, None),
            (false, Some(80_000), true, true, None),
            // Back: as if it had never been missing.
            (true, Some(80_000), true, true, None),
        ] {
            let before: MissingPods = since
                .map(|since| ("a".to_owned(), since))
                .into_iter()
                .collect();
            let is_listed = |_: &str| listed;
            let missing = retained_pods(["a"], is_listed, &before, settled, 200_000, |_| group);
            let case = (listed, since, settled, group);
            assert_eq!(missing.get("a").copied(), kept, "{case:?}");
        }
        let before: MissingPods = [("gone".to_owned(), 1)].into();
        assert!(retained_pods([], |_| false, &before, true, 2, |_| true).is_empty());
    }

    #[test]
    fn lists_settle_half_a_minute_after_the_last_failure() {
        for (since, now, want) in [
            (None, 100_000, false),
            (Some(0), 29_999, false),
            (Some(0), 30_000, true),
            (Some(5_000), 30_000, false),
        ] {
            assert_eq!(is_settled(since, now), want);
        }
    }
}
