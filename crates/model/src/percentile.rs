//! Aggregations over the samples of a time window, with the index rule of the upstream agent.

/// Returns the mean of `samples`, or `None` if there are none.
#[must_use]
pub fn average(samples: &[f64]) -> Option<f64> {
    if samples.is_empty() {
        return None;
    }
    Some(samples.iter().sum::<f64>() / samples.len() as f64)
}

/// Returns the element at index `max(trunc(n * p) - 1, 0)` of `sorted` (ascending); `p` in 0–1. `None` if
/// there are no samples.
///
/// The product is computed in single precision, as upstream does, so that e.g. 100 samples at 0.95 select the
/// same element.
#[must_use]
pub fn from_sorted(sorted: &[f64], p: f32) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let index = ((sorted.len() as f32 * p) as i64 - 1).max(0) as usize;
    Some(sorted[index.min(last)])
}

/// Aggregates that a NodeMetric publishes for one window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WindowAggregates {
    /// The mean.
    pub avg: f64,
    /// The 50th percentile.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl WindowAggregates {
    /// Computes the aggregates of `samples`, which are sorted in place; `None` if there are none.
    #[must_use]
    pub fn from_samples(samples: &mut [f64]) -> Option<Self> {
        let avg = average(samples)?;
        samples.sort_unstable_by(f64::total_cmp);
        Some(Self {
            avg,
            p50: from_sorted(samples, 0.50)?,
            p90: from_sorted(samples, 0.90)?,
            p95: from_sorted(samples, 0.95)?,
            p99: from_sorted(samples, 0.99)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn index_rule() {
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        for (p, want) in [
            (0.5, 5.0),
            (0.9, 9.0),
            (0.95, 9.0),
            (0.99, 9.0),
            (0.05, 1.0),
            (1.0, 10.0),
        ] {
            assert_eq!(from_sorted(&ten, p), Some(want), "p{p}");
        }
        assert_eq!(from_sorted(&[7.0], 0.99), Some(7.0));
        assert_eq!(from_sorted(&[], 0.5), None);
        assert_eq!(WindowAggregates::from_samples(&mut []), None);
    }

    /// Upstream: `Test_fieldPercentileOfMetricList`, the rows with values.
    #[test]
    fn upstream_percentiles() {
        let nine = [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0];
        for (name, sorted, p, want) in [
            ("calculate single-element list", &[1000.0][..], 0.9, 1000.0),
            ("calculate multi-element list of p90", &nine[..], 0.9, 700.0),
            ("calculate multi-element list of p50", &nine[..], 0.5, 300.0),
        ] {
            assert_eq!(from_sorted(sorted, p), Some(want), "{name}");
        }
    }

    proptest! {
        #[test]
        fn aggregates_are_ordered(mut samples in prop::collection::vec(0.0..1e6_f64, 1..400)) {
            let s = WindowAggregates::from_samples(&mut samples).unwrap();
            prop_assert!(s.p50 <= s.p90 && s.p90 <= s.p95 && s.p95 <= s.p99);
            prop_assert!(samples.first().is_some_and(|min| *min <= s.avg + 1e-6));
            prop_assert!(samples.last().is_some_and(|max| *max >= s.p99));
        }
    }
}
