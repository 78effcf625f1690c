//! Every number of the rule.

use super::estimate::Percentiles;

/// Why settings make no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} must be {want}, got {value}")]
pub struct SettingsError {
    /// The setting.
    pub field: &'static str,
    /// The allowed range.
    pub want: &'static str,
    /// What was given.
    pub value: f64,
}

/// How recommendations are learned and made. The default is the preset `peak`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Which share of use the recommendation covers.
    pub percentiles: Percentiles,
    /// Added to every recommendation, as a share of it (0.05 = 5 %).
    pub margin: f64,
    /// The least CPU a pod is recommended, in cores; its containers share it.
    pub min_cpu: f64,
    /// The least memory a pod is recommended, in bytes; its containers share it.
    pub min_memory: f64,
    /// After how long a CPU sample weighs half, in milliseconds.
    pub cpu_half_life_ms: i64,
    /// After how long a memory peak weighs half, in milliseconds.
    pub memory_half_life_ms: i64,
    /// Of each window of this length only the highest memory use counts, in milliseconds.
    pub memory_window_ms: i64,
    /// What was not seen for so many windows is forgotten.
    pub memory_windows: i64,
    /// A container killed for want of memory needs at least so many times what it had.
    pub oom_ratio: f64,
    /// … and at least so many bytes more.
    pub oom_bump: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self::peak()
    }
}

impl Settings {
    const DAY_MS: i64 = 86_400_000;

    /// For the peak: p99 of CPU, p95 of memory peaks, and 5 %. Replayed over public traces
    /// (docs/measurements.md) this is exceeded by less than 2 % of the next day's samples, for less
    /// than the maximum of a week costs; p95 and p98 with 15 %, which Koordinator's predictor takes
    /// for pods, are not. The other numbers are the Vertical Pod Autoscaler's.
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

    /// As the Vertical Pod Autoscaler recommends by default: p90 of both, and 15 %.
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

    /// Checks every number.
    ///
    /// # Errors
    /// The first one out of its range.
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

    /// How long what is not seen is remembered, in milliseconds.
    #[must_use]
    pub fn expiry_ms(&self) -> i64 {
        self.memory_window_ms.saturating_mul(self.memory_windows)
    }
}
