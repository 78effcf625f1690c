//! From a history to a recommendation.

use super::container::ContainerModel;
use super::settings::{Settings, SettingsError};
use crate::histogram::{DecayingHistogram, UnixMillis};

const DAY_MS: f64 = 86_400_000.0;
/// Samples that a container yields in a day, at one a minute.
const SAMPLES_PER_DAY: f64 = 1440.0;
const MIB: f64 = 1024.0 * 1024.0;

/// The share of use (0–1) that a recommendation covers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percentiles {
    /// Of CPU samples.
    pub cpu: f64,
    /// Of memory peaks.
    pub memory: f64,
}

impl Percentiles {
    /// Checks both.
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

/// Amounts for one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recommended {
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes, a multiple of 1 MiB.
    pub memory: i64,
}

/// What is known of a container's use, beside the recommendation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Distribution {
    /// The recommendation itself.
    pub target: Recommended,
    /// The least that makes sense.
    pub lower: Recommended,
    /// The most that makes sense; far above the target while little is known.
    pub upper: Recommended,
    /// Use at p50, p90, p95, p98 and the highest, without margin and floor.
    pub points: [(&'static str, Recommended); 5],
    /// How many samples there are.
    pub samples: u64,
    /// Time of the first sample.
    pub first: Option<UnixMillis>,
    /// Time of the newest sample.
    pub last: Option<UnixMillis>,
    /// Days of history.
    pub confidence: f64,
}

impl ContainerModel {
    /// How much is known, in days: the time from the first to the newest sample, or what so many
    /// samples take at one a minute, whichever is less.
    #[must_use]
    pub fn confidence(&self) -> f64 {
        let (Some(first), Some(last)) = (self.first, self.last) else {
            return 0.0;
        };
        let days = last.saturating_sub(first) as f64 / DAY_MS;
        days.min(self.count as f64 / SAMPLES_PER_DAY)
    }
}

/// What a container should request; `None` before the first sample of both CPU and memory.
///
/// `percentiles` take the place of those in `settings`; `containers` is how many containers the pod
/// has, which share the pod's floor.
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
    let at = |histogram: &DecayingHistogram, percentile: f64, factor: f64| {
        histogram.percentile(percentile) * (1.0 + settings.margin) * factor
    };
    let both = |percentiles: Percentiles, factor: f64| Recommended {
        cpu_milli: milli(at(&model.cpu, percentiles.cpu, factor).max(floor.0)),
        memory: mebibytes(at(&model.memory, percentiles.memory, factor).max(floor.1)),
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
    // No history at all would make the bounds infinite and not a number.
    let known = confidence.max(1.0 / SAMPLES_PER_DAY);
    Some(Distribution {
        target: both(percentiles, 1.0),
        lower: both(half, (1.0 + 0.001 / known).powi(-2)),
        upper: both(most, 1.0 + 1.0 / known),
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

/// Cores as milli-cores, rounded up.
fn milli(cores: f64) -> i64 {
    up(cores * 1000.0)
}

/// Bytes, rounded up to whole MiB.
fn mebibytes(bytes: f64) -> i64 {
    up(bytes / MIB).saturating_mul(MIB as i64)
}

/// The next integer, but not for what differs from one by no more than floating point does.
fn up(value: f64) -> i64 {
    let nearest = value.round();
    if (value - nearest).abs() < 1e-6 * nearest.abs().max(1e-3) {
        nearest as i64
    } else {
        value.ceil() as i64
    }
}
