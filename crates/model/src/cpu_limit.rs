//! Calculation of the CFS quota and the burst buffer of a container and of its pod, with all features that
//! affect them in one place.
//!
//! The inputs are combined in this order:
//! 1. the base: the limit in the spec as a quota; a container without a limit has none;
//! 2. the kubelet's quota: a native limit whose quota the kubelet does not set (`cpuCFSQuota: false`)
//!    is not written; for batch limits, which the kubelet does not handle, koordlet is the only writer;
//! 3. CPU normalization: the base divided by the node's ratio, rounded up;
//! 4. quota burst: raised to at most `quota_percent` of the normalized base;
//! 5. the burst buffer: the amount that the strategy requests, capped at the quota, because the kernel
//!    rejects a larger one.
//!
//! Quotas and buffers are microseconds per CFS period of 100 ms, −1 means no limit; CPU limits are
//! milli-cores.

use crate::burst;
use crate::suppress::UNLIMITED;

/// Smallest quota that the kernel accepts.
pub const MIN_QUOTA_US: i64 = 1_000;
/// Largest burst buffer that is written: a thousand periods.
pub const MAX_BURST_US: i64 = 100_000_000;

/// Returns the quota of a CPU limit in milli-cores; [`UNLIMITED`] for no limit and for 0.
#[must_use]
pub fn quota_of(limit: Option<i64>) -> i64 {
    match limit {
        Some(milli) if milli > 0 => milli.saturating_mul(100).max(MIN_QUOTA_US),
        _ => UNLIMITED,
    }
}

/// Returns a quota divided by the node's CPU normalization ratio and rounded up, if the ratio is above 1.
/// `None` means a node without normalization.
#[must_use]
pub fn normalized(quota: i64, ratio: Option<f64>) -> i64 {
    match ratio {
        Some(ratio) if quota > 0 && ratio.is_finite() && ratio > 1.0 => {
            ((quota as f64 / ratio).ceil() as i64).max(MIN_QUOTA_US)
        }
        _ => quota,
    }
}

/// Rescales a raised quota to a changed base by the same factor. Otherwise a changed normalization ratio
/// would look like a burst.
#[must_use]
pub fn rebased(quota: i64, old_base: i64, new_base: i64) -> i64 {
    if old_base <= 0 || new_base <= 0 || quota <= old_base {
        return new_base;
    }
    let scaled = i128::from(quota) * i128::from(new_base) / i128::from(old_base);
    i64::try_from(scaled).unwrap_or(i64::MAX)
}

/// Resource that a CPU limit comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `resources.limits.cpu`: the kubelet writes the quota as well.
    Native,
    /// `kubernetes.io/batch-cpu`: only koordlet writes the quota.
    Batch,
}

/// CPU limit and burst settings of one container.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Container {
    /// CPU limit in milli-cores; `None` means no limit.
    pub limit: Option<i64>,
    /// Resource that the limit comes from.
    pub source: Source,
    /// Current quota in the kernel; `None` if it could not be read.
    pub present: Option<i64>,
    /// Raised quota that the burst strategy requests (see [`burst::next_quota`]); `None` requests none.
    pub raised: Option<i64>,
    /// Maximum of the raised quota, percent of the normalized base.
    pub quota_percent: i64,
    /// Burst buffer that the burst strategy requests, percent of the normalized base.
    pub buffer_percent: i64,
}

/// CFS quota and burst buffer of one cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `cpu.cfs_quota_us`, or the first word of `cpu.max`.
    pub quota: i64,
    /// `cpu.cfs_burst_us`, or `cpu.max.burst`.
    pub burst: i64,
}

/// Returns the values to write for a container, or `None` if it must not be changed. `ratio` is the node's
/// CPU normalization ratio.
#[must_use]
pub fn container(wanted: &Container, ratio: Option<f64>) -> Option<Limits> {
    let base = quota_of(wanted.limit);
    if base <= 0 {
        let none = Limits {
            quota: UNLIMITED,
            burst: 0,
        };
        return (wanted.source == Source::Batch).then_some(none);
    }
    if wanted.source == Source::Native && wanted.present.is_some_and(|quota| quota <= 0) {
        return None;
    }
    let base = normalized(base, ratio);
    let ceiling = burst::ceiling(base, wanted.quota_percent);
    let quota = wanted.raised.unwrap_or(base).min(ceiling).max(base);
    let buffer = base.saturating_mul(wanted.buffer_percent.max(0)) / 100;
    Some(Limits {
        quota,
        burst: buffer.min(quota).min(MAX_BURST_US),
    })
}

/// Returns the values to write for a pod, or `None` if it must not be changed.
///
/// `limit` is the pod's own limit (`None` if one of its containers has none), which includes init containers
/// and overhead. The quota is that limit, normalized, plus the amounts by which the containers are raised,
/// and never below that of one container; the buffer is the sum of theirs.
#[must_use]
pub fn pod(
    limit: Option<i64>,
    source: Source,
    present: Option<i64>,
    containers: &[Container],
    ratio: Option<f64>,
) -> Option<Limits> {
    let base = quota_of(limit);
    if base <= 0 {
        let none = Limits {
            quota: UNLIMITED,
            burst: 0,
        };
        return (source == Source::Batch).then_some(none);
    }
    if source == Source::Native && present.is_some_and(|quota| quota <= 0) {
        return None;
    }
    let (mut quota, mut least, mut burst) = (normalized(base, ratio), 0, 0_i64);
    for wanted in containers {
        let Some(limits) = container(wanted, ratio).filter(|limits| limits.quota > 0) else {
            continue;
        };
        let own = normalized(quota_of(wanted.limit), ratio);
        quota = quota.saturating_add(limits.quota.saturating_sub(own));
        least = least.max(limits.quota);
        burst = burst.saturating_add(limits.burst);
    }
    let quota = quota.max(least);
    Some(Limits {
        quota,
        burst: burst.min(quota).min(MAX_BURST_US),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn native(limit: i64, present: i64) -> Container {
        Container {
            limit: Some(limit),
            source: Source::Native,
            present: Some(present),
            raised: None,
            quota_percent: 300,
            buffer_percent: 0,
        }
    }

    /// Upstream: the units of `MilliCPUToQuota`, and issue #696 for the minimum.
    #[test]
    fn quotas_of_limits() {
        for (limit, want) in [
            (Some(1_000), 100_000),
            (Some(2_500), 250_000),
            (Some(10), 1_000),
            (Some(5), 1_000),
            (Some(0), -1),
            (Some(-1), -1),
            (None, -1),
        ] {
            assert_eq!(quota_of(limit), want, "{limit:?}");
        }
    }

    /// Upstream: `TestPluginAdjustPodCFSQuota` and `TestPluginAdjustContainerCFSQuota`.
    #[test]
    fn normalization() {
        for (name, quota, ratio, want) in [
            ("off", 200_000, None, 200_000),
            ("no quota", -1, Some(1.2), -1),
            ("zero", 0, Some(1.2), 0),
            ("ratio 1", 200_000, Some(1.0), 200_000),
            ("ratio 1.1", 200_000, Some(1.1), 181_819),
            ("ratio 1.2", 300_000, Some(1.2), 250_000),
            ("never raises", 300_000, Some(0.5), 300_000),
            ("not below the kernel's least", 1_000, Some(3.0), 1_000),
            ("not a number", 300_000, Some(f64::NAN), 300_000),
        ] {
            assert_eq!(normalized(quota, ratio), want, "{name}");
        }
    }

    #[test]
    fn changed_base_preserves_multiple() {
        for (quota, old, new, want) in [
            (200_000, 200_000, 100_000, 100_000),
            (300_000, 200_000, 100_000, 150_000),
            (300_000, 100_000, 200_000, 600_000),
            (300_000, 200_000, 200_000, 300_000),
            (150_000, 200_000, 200_000, 200_000),
            (300_000, -1, 200_000, 200_000),
        ] {
            assert_eq!(rebased(quota, old, new), want, "{quota} {old} {new}");
        }
    }

    #[test]
    fn ratio_applies_before_burst() {
        let limits = |quota, burst| Some(Limits { quota, burst });
        let base = native(2_000, 200_000);
        let cases = [
            ("the limit alone", base, None, limits(200_000, 0)),
            ("normalized", base, Some(1.6), limits(125_000, 0)),
            (
                "raised over the normalized base",
                Container {
                    raised: Some(150_000),
                    ..base
                },
                Some(1.6),
                limits(150_000, 0),
            ),
            (
                "raised to at most three times the normalized base",
                Container {
                    raised: Some(600_000),
                    ..base
                },
                Some(1.6),
                limits(375_000, 0),
            ),
            (
                "a raised quota below the base is the base",
                Container {
                    raised: Some(50_000),
                    ..base
                },
                None,
                limits(200_000, 0),
            ),
            (
                "the buffer is at most the quota",
                Container {
                    buffer_percent: 1_000,
                    ..base
                },
                None,
                limits(200_000, 200_000),
            ),
            (
                "a small buffer is of the normalized base",
                Container {
                    buffer_percent: 50,
                    ..base
                },
                Some(1.6),
                limits(125_000, 62_500),
            ),
            (
                "a raised quota lets more of the buffer in",
                Container {
                    buffer_percent: 1_000,
                    raised: Some(600_000),
                    ..base
                },
                None,
                limits(600_000, 600_000),
            ),
            (
                "the kubelet sets no quotas",
                native(2_000, -1),
                Some(1.6),
                None,
            ),
            (
                "no limit",
                Container {
                    limit: None,
                    ..native(0, -1)
                },
                None,
                None,
            ),
            (
                "batch work has no quota before ours",
                Container {
                    source: Source::Batch,
                    ..native(2_000, -1)
                },
                Some(1.6),
                limits(125_000, 0),
            ),
            (
                "batch work without a limit is freed",
                Container {
                    source: Source::Batch,
                    limit: None,
                    ..native(0, 5_000)
                },
                None,
                limits(-1, 0),
            ),
        ];
        for (name, wanted, ratio, want) in cases {
            assert_eq!(container(&wanted, ratio), want, "{name}");
        }
    }

    /// Upstream: the pods of `TestCPUBurst_applyCPUBurst` and `TestCPUBurst_applyCFSQuotaBurst`.
    #[test]
    fn pods() {
        let limits = |quota, burst| Some(Limits { quota, burst });
        let raised = |limit, quota| Container {
            raised: Some(quota),
            ..native(limit, limit * 100)
        };
        let buffered = |limit: i64| Container {
            buffer_percent: 1_000,
            ..native(limit, limit * 100)
        };
        let unlimited = Container {
            limit: None,
            ..native(0, -1)
        };
        let native_pod = |limit: Option<i64>, containers: &[Container], ratio| {
            pod(
                limit,
                Source::Native,
                Some(quota_of(limit)),
                containers,
                ratio,
            )
        };
        for (name, limit, containers, ratio, want) in [
            (
                "scale-up-two-container-from-base-on-idle-state",
                Some(5_000),
                vec![raised(2_000, 240_000), raised(3_000, 360_000)],
                None,
                limits(600_000, 0),
            ),
            (
                "scale-up-one-container-in-unlimited-pod-from-base-on-idle-state",
                None,
                vec![raised(2_000, 240_000), unlimited],
                None,
                None,
            ),
            (
                "apply-by-default-burst-config, capped",
                Some(8_000),
                vec![buffered(5_000), buffered(3_000)],
                None,
                limits(800_000, 800_000),
            ),
            (
                "an init container makes the pod larger than its containers",
                Some(4_000),
                vec![raised(2_000, 300_000)],
                None,
                limits(500_000, 0),
            ),
            (
                "a container above its pod, which v1 refuses",
                Some(1_000),
                vec![native(2_000, 200_000)],
                None,
                limits(200_000, 0),
            ),
            (
                "normalized pod, raised container",
                Some(2_000),
                vec![raised(2_000, 300_000)],
                Some(1.6),
                limits(300_000, 0),
            ),
        ] {
            assert_eq!(native_pod(limit, &containers, ratio), want, "{name}");
        }
        assert_eq!(
            pod(Some(2_000), Source::Native, Some(-1), &[], None),
            None,
            "the kubelet sets no quotas"
        );
        assert_eq!(pod(None, Source::Batch, None, &[], None), limits(-1, 0));
    }

    proptest! {
        #[test]
        fn limits_are_accepted_by_the_kernel(
            containers in prop::collection::vec(
                (1_i64..64_000, prop::option::of(1_i64..20_000_000), 0_i64..400, 0_i64..10_001),
                1..5,
            ),
            ratio in prop::option::of(0.5_f64..4.0),
        ) {
            let containers: Vec<Container> = containers
                .into_iter()
                .map(|(limit, raised, quota_percent, buffer_percent)| Container {
                    raised,
                    quota_percent,
                    buffer_percent,
                    ..native(limit, limit * 100)
                })
                .collect();
            let sum = containers.iter().filter_map(|c| c.limit).sum();
            let whole = pod(Some(sum), Source::Native, Some(quota_of(Some(sum))), &containers, ratio);
            let whole = whole.expect("a limited pod");
            prop_assert!(whole.quota >= MIN_QUOTA_US && whole.burst <= whole.quota);
            for wanted in &containers {
                let own = container(wanted, ratio).expect("a limited container");
                prop_assert!(own.quota >= MIN_QUOTA_US && own.burst <= own.quota);
                prop_assert!(own.burst >= 0 && own.quota <= whole.quota);
            }
        }
    }
}
