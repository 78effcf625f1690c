//! Settings of recommendations.

use super::estimate::Percentiles;

/// Error for a setting that is out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} must be {want}, got {value}")]
pub struct SettingsError {
    /// Name of the setting.
    pub field: &'static str,
    /// The allowed range.
    pub want: &'static str,
    /// The value.
    pub value: f64,
}

/// Settings of recommendations. The default is the preset `peak`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Percentiles of usage that the recommendation covers.
    pub percentiles: Percentiles,
    /// Safety margin added to every recommendation, as a share of it (0.05 = 5 %).
    pub margin: f64,
    /// Minimum CPU recommendation of a pod, in cores; its containers share it.
    pub min_cpu: f64,
    /// Minimum memory recommendation of a pod, in bytes; its containers share it.
    pub min_memory: f64,
    /// Half-life of the weight of a CPU sample, in milliseconds.
    pub cpu_half_life_ms: i64,
    /// Half-life of the weight of a memory peak, in milliseconds.
    pub memory_half_life_ms: i64,
    /// Length of a memory window in milliseconds; only the highest usage of each window counts.
    pub memory_window_ms: i64,
    /// Number of windows without samples after which a history expires.
    pub memory_windows: i64,
    /// Minimum factor by which the memory of an OOM-killed container is raised.
    pub oom_ratio: f64,
    /// Minimum number of bytes by which it is raised.
    pub oom_bump: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self::peak()
    }
}

impl Settings {
    const DAY_MS: i64 = 86_400_000;

    /// Returns the preset for peak usage: p99 of CPU, p95 of memory peaks, and a margin of 5 %. Replayed over
    /// public traces (docs/measurements.md), less than 2 % of the next day's samples exceed it, at a lower
    /// cost than the maximum of a week; p95 and p98 with 15 %, which upstream's predictor uses for pods, do
    /// not achieve this. The other numbers are those of the Vertical Pod Autoscaler.
    #[must_use]
    pub fn peak() -> Self {
        Self {
            percentiles: Percentiles {
                cpu: 0.99,
                memory: 0.95,
            },
            margin: 0.05,
            min_cpu: 0.025,
            min_memory: 250.0 * 1024.0 * 1024.0,
            cpu_half_life_ms: Self::DAY_MS,
            memory_half_life_ms: Self::DAY_MS,
            memory_window_ms: Self::DAY_MS,
            memory_windows: 8,
            oom_ratio: 1.2,
            oom_bump: 100.0 * 1024.0 * 1024.0,
        }
    }

    /// Returns the defaults of the Vertical Pod Autoscaler: p90 of both, and a margin of 15 %.
    #[must_use]
    pub fn vpa() -> Self {
        Self {
            percentiles: Percentiles {
                cpu: 0.9,
                memory: 0.9,
            },
            margin: 0.15,
            ..Self::peak()
        }
    }

    /// Checks all settings.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.percentiles.check()?;
        let wrong = |field, want, value| Err(SettingsError { field, want, value });
        if !(0.0..=10.0).contains(&self.margin) {
            return wrong("margin", "from 0 to 10", self.margin);
        }
        for (field, value) in [("minCPU", self.min_cpu), ("minMemory", self.min_memory)] {
            if !(value.is_finite() && value >= 0.0) {
                return wrong(field, "finite and not negative", value);
            }
        }
        for (field, value) in [
            ("cpuHalfLife", self.cpu_half_life_ms),
            ("memoryHalfLife", self.memory_half_life_ms),
            ("memoryWindow", self.memory_window_ms),
            ("memoryWindows", self.memory_windows),
        ] {
            if value <= 0 {
                return wrong(field, "positive", value as f64);
            }
        }
        if !(1.0..=10.0).contains(&self.oom_ratio) {
            return wrong("oomRatio", "from 1 to 10", self.oom_ratio);
        }
        if !(self.oom_bump.is_finite() && self.oom_bump >= 0.0) {
            return wrong("oomBump", "finite and not negative", self.oom_bump);
        }
        Ok(())
    }

    /// Returns the time without samples after which a history expires, in milliseconds.
    #[must_use]
    pub fn expiry_ms(&self) -> i64 {
        self.memory_window_ms.saturating_mul(self.memory_windows)
    }
}
