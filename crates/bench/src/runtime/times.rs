//! Times and their percentiles.

use koord_workload::statistics::time_percentile;
use serde::Serialize;
use std::time::Duration;

/// Median and 99th percentile, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Percentiles {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

impl Percentiles {
    /// Returns the percentiles of the times; 0 without any.
    pub(super) fn from_times(times: &[Duration]) -> Self {
        let mut times = times.to_vec();
        let mut at = |percent| time_percentile(&mut times, percent).as_secs_f64() * 1000.0;
        Self {
            p50_ms: at(50),
            p99_ms: at(99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_follow_nearest_rank_and_default_to_zero() {
        let times: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        let spread = Percentiles {
            p50_ms: 50.0,
            p99_ms: 99.0,
        };
        assert_eq!(Percentiles::from_times(&times), spread);
        assert_eq!(Percentiles::from_times(&[]).p99_ms, 0.0);
    }
}
