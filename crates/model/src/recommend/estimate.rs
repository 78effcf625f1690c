//! Computes a container's recommendation from its usage history.

use super::container::ContainerModel;
use super::settings::{Settings, SettingsError};
use crate::histogram::{DecayingHistogram, UnixMillis};

const DAY_MS: f64 = 86_400_000.0;
/// Number of samples of a container per day, at one a minute.
const SAMPLES_PER_DAY: f64 = 1440.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Percentiles of usage (0–1) that a recommendation covers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percentiles {
    /// Percentile of CPU samples.
    pub cpu: f64,
    /// Percentile of memory peaks.
    pub memory: f64,
}

impl Percentiles {
    /// Checks both percentiles.
    ///
    /// # Errors
    /// The first one that is not above 0 and at most 1.
    pub fn check(&self) -> Result<(), SettingsError> {
        for (field, value) in [("cpu", self.cpu), ("memory", self.memory)] {
            if !(value > 0.0 && value <= 1.0) {
                return Err(SettingsError {
                    field,
                    want: "above 0 and at most 1",
                    value,
                });
            }
        }
        Ok(())
    }
}

/// Recommended amounts for one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recommended {
    /// CPU in milli-cores.
    pub cpu_milli: i64,
    /// Memory in bytes, a multiple of 1 MiB.
    pub memory: i64,
}

/// Recommendation for a container and the distribution of its usage.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Distribution {
    /// The recommendation.
    pub target: Recommended,
    /// Lower bound of sensible requests.
    pub lower: Recommended,
    /// Upper bound of sensible requests; far above the target while the history is short.
    pub upper: Recommended,
    /// Usage at p50, p90, p95, p98 and the maximum, without safety margin and minimum.
    pub points: [(&'static str, Recommended); 5],
    /// Number of samples.
    pub samples: u64,
    /// Time of the first sample.
    pub first: Option<UnixMillis>,
    /// Time of the newest sample.
    pub last: Option<UnixMillis>,
    /// Length of the history in days.
    pub confidence: f64,
}

impl ContainerModel {
    /// Returns the length of the history in days: the time from the first to the newest sample, or the time
    /// that this number of samples takes at one a minute, whichever is less.
    #[must_use]
    pub fn confidence(&self) -> f64 {
        let (Some(first), Some(last)) = (self.first, self.last) else {
            return 0.0;
        };
        let days = last.saturating_sub(first) as f64 / DAY_MS;
        days.min(self.count as f64 / SAMPLES_PER_DAY)
    }
}

/// Returns the recommendation for a container; `None` before the first sample of both CPU and memory.
///
/// `percentiles` replace those in `settings`; `containers` is the number of containers in the pod, which
/// share the pod's minimum.
#[must_use]
pub fn estimate(
    model: &ContainerModel,
    settings: &Settings,
    percentiles: Percentiles,
    containers: usize,
) -> Option<Distribution> {
    if model.cpu.is_empty() || model.memory.is_empty() {
        return None;
    }
    let share = containers.max(1) as f64;
    let floor = (settings.min_cpu / share, settings.min_memory / share);
    let confidence = model.confidence();
    let padded = |histogram: &DecayingHistogram, percentile: f64, factor: f64| {
        histogram.percentile(percentile) * (1.0 + settings.margin) * factor
    };
    let recommend = |percentiles: Percentiles, factor: f64| Recommended {
        cpu_milli: milli(padded(&model.cpu, percentiles.cpu, factor).max(floor.0)),
        memory: mebibytes(padded(&model.memory, percentiles.memory, factor).max(floor.1)),
    };
    let point = |percentile: f64| Recommended {
        cpu_milli: milli(model.cpu.percentile(percentile)),
        memory: mebibytes(model.memory.percentile(percentile)),
    };
    let half = Percentiles {
        cpu: percentiles.cpu.min(0.5),
        memory: percentiles.memory.min(0.5),
    };
    let most = Percentiles {
        cpu: percentiles.cpu.max(0.95),
        memory: percentiles.memory.max(0.95),
    };
    // Without any history the bounds would be infinite or not a number.
    let positive = confidence.max(1.0 / SAMPLES_PER_DAY);
    Some(Distribution {
        target: recommend(percentiles, 1.0),
        lower: recommend(half, (1.0 + 0.001 / positive).powi(-2)),
        upper: recommend(most, 1.0 + 1.0 / positive),
        points: [
            ("p50", point(0.5)),
            ("p90", point(0.9)),
            ("p95", point(0.95)),
            ("p98", point(0.98)),
            ("max", point(1.0)),
        ],
        samples: model.count,
        first: model.first,
        last: model.last,
        confidence,
    })
}

/// Converts cores to milli-cores, rounded up.
fn milli(cores: f64) -> i64 {
    up(cores * 1000.0)
}

/// Rounds bytes up to whole MiB.
fn mebibytes(bytes: f64) -> i64 {
    up(bytes / MIB).saturating_mul(MIB as i64)
}

/// Rounds up to the next integer, except for values that differ from an integer only by floating-point error.
fn up(value: f64) -> i64 {
    let nearest = value.round();
    if (value - nearest).abs() < 1e-6 * nearest.abs().max(1e-3) {
        nearest as i64
    } else {
        value.ceil() as i64
    }
}
