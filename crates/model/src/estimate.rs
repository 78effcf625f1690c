//! Estimated usage of pods and nodes: the arithmetic of load-aware scheduling (`LoadAwareScheduling` of
//! Koordinator, default estimator).

use crate::resources::percent;

/// Milli-cores assumed for a pod that requests no (batch) CPU.
pub const DEFAULT_MILLI_CPU: i64 = 250;
/// Bytes assumed for a pod that requests no (batch) memory: 200 MiB.
pub const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Default for a pod that does not request a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// [`DEFAULT_MILLI_CPU`].
    Cpu,
    /// [`DEFAULT_MEMORY`].
    Memory,
    /// Zero.
    Zero,
}

/// Returns the estimated usage of one resource: `factor` percent of the larger of request and limit, at most
/// the limit. Amounts are in the unit of the resource.
#[must_use]
pub fn estimate(request: i64, limit: i64, factor: i64, fallback: Fallback) -> i64 {
    let demand = request.max(limit);
    if demand <= 0 {
        return match fallback {
            Fallback::Cpu => DEFAULT_MILLI_CPU,
            Fallback::Memory => DEFAULT_MEMORY,
            Fallback::Zero => 0,
        };
    }
    let scaled = round_div(i128::from(demand) * i128::from(factor), 100);
    if limit > 0 { scaled.min(limit) } else { scaled }
}

/// Returns true if `used` of `allocatable` exceeds `threshold` percent. The percentage is rounded half up
/// first; a threshold or allocatable of zero is never exceeded.
#[must_use]
pub fn exceeds(used: i64, allocatable: i64, threshold: i64) -> bool {
    if threshold == 0 || allocatable <= 0 {
        return false;
    }
    round_div(i128::from(used) * 100, i128::from(allocatable)) > threshold
}

/// Returns the free percentage of `allocatable`, 0 to 100; zero if it is overused or `allocatable` is not
/// positive.
#[must_use]
pub fn least_used_score(used: i64, allocatable: i64) -> i64 {
    if allocatable <= 0 || used > allocatable {
        return 0;
    }
    let free = allocatable.checked_sub(used);
    free.and_then(|free| percent(free, allocatable))
        .unwrap_or(0)
}

/// Returns the node's score from `(weight, score)` per resource and the weight of the scarcest resource.
///
/// `(Σ weight·score + dominant·min(100, min score)) / (Σ weight + dominant)`, integer division.
#[must_use]
pub fn weighted_score(scores: impl IntoIterator<Item = (i64, i64)>, dominant_weight: i64) -> i64 {
    let mut sum = 0_i64;
    let mut weights = 0_i64;
    let mut scarcest = 100_i64;
    for (weight, score) in scores {
        sum = sum.saturating_add(weight.saturating_mul(score));
        weights = weights.saturating_add(weight);
        scarcest = scarcest.min(score);
    }
    if dominant_weight > 0 {
        sum = sum.saturating_add(dominant_weight.saturating_mul(scarcest));
        weights = weights.saturating_add(dominant_weight);
    }
    if weights == 0 { 0 } else { sum / weights }
}

/// Returns the part of a pod's estimate that the node's report does not show yet.
#[must_use]
pub fn unreported(estimate: i64, reported: i64) -> i64 {
    estimate.saturating_sub(reported).max(0)
}

/// Times that determine whether a report covers a pod.
#[derive(Debug, Clone, Copy)]
pub struct Coverage {
    /// Time of the pod's assignment; all fields use one unit of time.
    pub assigned: i64,
    /// Time until which the estimate is preferred to the report, if configured.
    pub deadline: Option<i64>,
    /// Time of the report.
    pub reported: i64,
    /// Interval between reports.
    pub interval: i64,
}

impl Coverage {
    /// Returns true if the pod's estimate must be added although the report lists the pod.
    #[must_use]
    pub fn estimate_counts(&self) -> bool {
        self.reported.saturating_sub(self.interval) < self.assigned
            || self
                .deadline
                .is_some_and(|deadline| deadline > self.reported)
    }
}

/// Returns `n / d` rounded half away from zero; `d` must be positive.
fn round_div(n: i128, d: i128) -> i64 {
    let rounded = if n >= 0 {
        (2 * n + d) / (2 * d)
    } else {
        -((-2 * n + d) / (2 * d))
    };
    i64::try_from(rounded).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_request_limit_and_factor() {
        assert_eq!(estimate(4000, 0, 85, Fallback::Cpu), 3400);
        assert_eq!(estimate(4000, 8000, 85, Fallback::Cpu), 6800);
        assert_eq!(estimate(8000, 4000, 85, Fallback::Cpu), 4000);
        assert_eq!(estimate(0, 0, 85, Fallback::Cpu), 250);
        assert_eq!(estimate(0, 0, 70, Fallback::Memory), 209_715_200);
        assert_eq!(estimate(0, 0, 70, Fallback::Zero), 0);
        assert_eq!(estimate(3, 0, 50, Fallback::Zero), 2, "halves round up");
    }

    #[test]
    fn thresholds_compare_the_rounded_percentage() {
        assert!(!exceeds(654, 1000, 65), "65.4 % rounds to 65");
        assert!(exceeds(655, 1000, 65), "65.5 % rounds to 66");
        assert!(!exceeds(999, 1000, 0), "zero switches the check off");
        assert!(!exceeds(999, 0, 10));
    }

    #[test]
    fn scores_use_integer_division() {
        assert_eq!(least_used_score(1, 3), 66);
        assert_eq!(least_used_score(4, 3), 0);
        assert_eq!(weighted_score([(1, 90), (1, 81)], 0), 85);
        assert_eq!(weighted_score([(1, 90), (1, 60)], 2), 67);
    }

    #[test]
    fn weighted_score_saturates() {
        let score = weighted_score([(i64::MAX, 100), (i64::MAX, 100)], i64::MAX);
        assert!((0..=100).contains(&score), "{score}");
    }

    #[test]
    fn new_pod_counts_until_report_covers_it() {
        let at = |assigned, deadline| Coverage {
            assigned,
            deadline,
            reported: 1000,
            interval: 60,
        };
        assert!(at(941, None).estimate_counts());
        assert!(!at(940, None).estimate_counts());
        assert!(at(0, Some(1001)).estimate_counts());
        assert!(!at(0, Some(1000)).estimate_counts());
    }
}
