//! Validated eviction thresholds. Errors name the field of the NodeSLO and its value.

use koord_api::slo::{CPUEvictPolicy, ResourceThresholdStrategy, defaults};

/// Maximum priority of pods that are evicted by allocatable: the top of the mid band.
pub const MAX_ALLOCATABLE_PRIORITY: i32 = 7999;

/// Error for a threshold that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A required value is not set.
    #[error("{0} is not set")]
    Missing(&'static str),
    /// A value is out of range.
    #[error("{field} must be {want}, got {value}")]
    Range {
        /// The field.
        field: &'static str,
        /// Allowed range.
        want: &'static str,
        /// The value.
        value: i64,
    },
    /// Two bounds are in the wrong order.
    #[error("{low} must be less than {high} {high_value}, got {low_value}")]
    Order {
        /// Field of the lower bound.
        low: &'static str,
        /// The lower bound.
        low_value: i64,
        /// Field of the upper bound.
        high: &'static str,
        /// The upper bound.
        high_value: i64,
    },
}

fn required(field: &'static str, value: Option<i64>) -> Result<i64, ConfigError> {
    value.ok_or(ConfigError::Missing(field))
}

fn not_negative(field: &'static str, value: i64) -> Result<i64, ConfigError> {
    if value < 0 {
        let want = "at least 0";
        return Err(ConfigError::Range { field, want, value });
    }
    Ok(value)
}

fn below(low: (&'static str, i64), high: (&'static str, i64)) -> Result<(), ConfigError> {
    if low.1 < high.1 {
        return Ok(());
    }
    Err(ConfigError::Order {
        low: low.0,
        low_value: low.1,
        high: high.0,
        high_value: high.1,
    })
}

/// Thresholds of the usage of a node, in percent of its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageThreshold {
    /// Usage at or above this starts eviction.
    pub percent: i64,
    /// Level that eviction aims at.
    pub lower: i64,
}

impl UsageThreshold {
    /// Returns `memoryEvictThresholdPercent` and `memoryEvictLowerPercent`, which defaults to two points
    /// below the former.
    ///
    /// # Errors
    /// The threshold is missing or negative, or the bounds are in the wrong order.
    pub fn memory(strategy: &ResourceThresholdStrategy) -> Result<Self, ConfigError> {
        Self::new(
            (
                "memoryEvictThresholdPercent",
                strategy.memory_evict_threshold_percent,
            ),
            (
                "memoryEvictLowerPercent",
                strategy.memory_evict_lower_percent,
            ),
        )
    }

    /// Returns `cpuEvictThresholdPercent` and `cpuEvictLowerPercent`, with the default of [`Self::memory`].
    ///
    /// # Errors
    /// Those of [`Self::memory`].
    pub fn cpu(strategy: &ResourceThresholdStrategy) -> Result<Self, ConfigError> {
        Self::new(
            (
                "cpuEvictThresholdPercent",
                strategy.cpu_evict_threshold_percent,
            ),
            ("cpuEvictLowerPercent", strategy.cpu_evict_lower_percent),
        )
    }

    fn new(
        (field, percent): (&'static str, Option<i64>),
        (low_field, lower): (&'static str, Option<i64>),
    ) -> Result<Self, ConfigError> {
        let percent = not_negative(field, required(field, percent)?)?;
        let lower = lower.unwrap_or(percent - defaults::EVICT_LOWER_DISTANCE_PERCENT);
        below((low_field, lower), (field, percent))?;
        Ok(Self { percent, lower })
    }

    /// Returns the amount to release, in the unit of `capacity`; 0 below the threshold.
    ///
    /// `capacity · (used % − lower) / 100` with the usage in whole percent.
    #[must_use]
    pub fn release(&self, capacity: i64, used: i64) -> i64 {
        if capacity <= 0 {
            return 0;
        }
        let percent = i128::from(used) * 100 / i128::from(capacity);
        if percent < i128::from(self.percent) {
            return 0;
        }
        let release = i128::from(capacity) * (percent - i128::from(self.lower)) / 100;
        i64::try_from(release).unwrap_or(i64::MAX)
    }
}

/// Returns `evictEnabledPriorityThreshold`: pods of a higher priority are not evicted by the node's usage.
///
/// # Errors
/// The field is not set.
pub fn usage_priority(strategy: &ResourceThresholdStrategy) -> Result<i32, ConfigError> {
    strategy
        .evict_enabled_priority_threshold
        .ok_or(ConfigError::Missing("evictEnabledPriorityThreshold"))
}

/// Thresholds of the requested amounts, in percent of allocatable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocatableThreshold {
    /// Requests above this start eviction.
    pub percent: i64,
    /// Level that eviction aims at.
    pub lower: i64,
    /// Pods of a higher priority are neither counted nor evicted.
    pub priority: i32,
}

impl AllocatableThreshold {
    /// Returns `cpuAllocatableEvictThresholdPercent`, `cpuAllocatableEvictLowerPercent` and
    /// `allocatableEvictPriorityThreshold`, all of them required.
    ///
    /// # Errors
    /// One is missing or out of range, or the bounds are in the wrong order.
    pub fn cpu(strategy: &ResourceThresholdStrategy) -> Result<Self, ConfigError> {
        Self::new(
            (
                "cpuAllocatableEvictThresholdPercent",
                strategy.cpu_allocatable_evict_threshold_percent,
            ),
            (
                "cpuAllocatableEvictLowerPercent",
                strategy.cpu_allocatable_evict_lower_percent,
            ),
            strategy.allocatable_evict_priority_threshold,
        )
    }

    /// Returns the thresholds of memory, like [`Self::cpu`].
    ///
    /// # Errors
    /// Those of [`Self::cpu`].
    pub fn memory(strategy: &ResourceThresholdStrategy) -> Result<Self, ConfigError> {
        Self::new(
            (
                "memoryAllocatableEvictThresholdPercent",
                strategy.memory_allocatable_evict_threshold_percent,
            ),
            (
                "memoryAllocatableEvictLowerPercent",
                strategy.memory_allocatable_evict_lower_percent,
            ),
            strategy.allocatable_evict_priority_threshold,
        )
    }

    /// Validates the thresholds and the highest priority of evicted pods.
    fn new(
        (field, percent): (&'static str, Option<i64>),
        (low_field, lower): (&'static str, Option<i64>),
        priority: Option<i32>,
    ) -> Result<Self, ConfigError> {
        let percent = not_negative(field, required(field, percent)?)?;
        let lower = required(low_field, lower)?;
        below((low_field, lower), (field, percent))?;
        let field = "allocatableEvictPriorityThreshold";
        let priority = priority.ok_or(ConfigError::Missing(field))?;
        if priority > MAX_ALLOCATABLE_PRIORITY {
            return Err(ConfigError::Range {
                field,
                want: "at most 7999, so that prod pods stay",
                value: i64::from(priority),
            });
        }
        Ok(Self {
            percent,
            lower,
            priority,
        })
    }

    /// Returns the amount of one resource to release: all requests if nothing is allocatable, otherwise the
    /// requests beyond the lower bound once the threshold is exceeded.
    #[must_use]
    pub fn release(&self, requested: i64, allocatable: Option<i64>) -> i64 {
        let Some(allocatable) = allocatable.filter(|amount| *amount > 0) else {
            return requested.max(0);
        };
        let share = |percent: i64| i128::from(allocatable) * i128::from(percent);
        if i128::from(requested) * 100 <= share(self.percent) {
            return 0;
        }
        let release = i128::from(requested) - share(self.lower) / 100;
        i64::try_from(release).unwrap_or(i64::MAX)
    }
}

/// Thresholds of the CPU satisfaction of BE pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Satisfaction {
    /// Satisfaction at or below which pods are evicted, in percent of the requests.
    pub lower: i64,
    /// Level that eviction aims at.
    pub upper: i64,
    /// Usage below which BE pods are not evicted, in percent of their limit.
    pub usage: i64,
    /// Averaging window in seconds, at least the sampling interval.
    pub window_seconds: i64,
    /// True if the limit is the allocatable batch CPU instead of the limit after suppression.
    pub by_allocatable: bool,
}

/// CPU of all BE pods together, in milli-cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchCpu {
    /// Limit after suppression.
    pub real_limit: i64,
    /// Sum of the requests.
    pub request: i64,
    /// Usage.
    pub used: i64,
}

impl Satisfaction {
    /// Parses the fields `cpuEvict…` of a NodeSLO. `interval_seconds` is the sampling interval.
    ///
    /// # Errors
    /// A bound is missing or out of range, or they are in the wrong order.
    pub fn new(
        strategy: &ResourceThresholdStrategy,
        interval_seconds: i64,
    ) -> Result<Self, ConfigError> {
        let lower_field = "cpuEvictBESatisfactionLowerPercent";
        let upper_field = "cpuEvictBESatisfactionUpperPercent";
        let lower = required(
            lower_field,
            strategy.cpu_evict_be_satisfaction_lower_percent,
        )?;
        let upper = required(
            upper_field,
            strategy.cpu_evict_be_satisfaction_upper_percent,
        )?;
        for (field, value, top, want) in [
            (lower_field, lower, 60, "in 1..=60"),
            (upper_field, upper, 99, "in 1..=99"),
        ] {
            if !(1..=top).contains(&value) {
                return Err(ConfigError::Range { field, want, value });
            }
        }
        if upper < lower {
            return Err(ConfigError::Order {
                low: lower_field,
                low_value: lower,
                high: upper_field,
                high_value: upper,
            });
        }
        Ok(Self {
            lower,
            upper,
            usage: strategy
                .cpu_evict_be_usage_threshold_percent
                .unwrap_or(defaults::CPU_EVICT_BE_USAGE_THRESHOLD_PERCENT),
            window_seconds: strategy
                .cpu_evict_time_window_seconds
                .unwrap_or(0)
                .max(interval_seconds),
            by_allocatable: strategy.cpu_evict_policy == Some(CPUEvictPolicy::ByAllocatable),
        })
    }

    /// Returns the amount of requests to release, in milli-cores.
    ///
    /// The mean of the window and the newest sample must both require it. The smaller of both amounts is
    /// released, and that of the mean if request and limit did not change. `allocatable` is the node's batch
    /// CPU; a negative or missing one is unknown, zero counts as one milli-core.
    #[must_use]
    pub fn release(&self, mean: BatchCpu, newest: BatchCpu, allocatable: Option<i64>) -> i64 {
        let limit = |sample: BatchCpu| {
            if self.by_allocatable {
                allocatable
                    .filter(|milli| *milli >= 0)
                    .map_or(-1, |milli| milli.max(1))
            } else {
                sample.real_limit
            }
        };
        let (mean_limit, newest_limit) = (limit(mean), limit(newest));
        let by_mean = self.release_of(mean, mean_limit);
        if by_mean <= 0 || !self.uses_its_limit(newest, newest_limit) {
            return 0;
        }
        if mean.request == newest.request && mean_limit == newest_limit {
            return by_mean;
        }
        by_mean.min(self.release_of(newest, newest_limit))
    }

    fn release_of(&self, sample: BatchCpu, limit: i64) -> i64 {
        if !self.uses_its_limit(sample, limit) || sample.request <= 0 {
            return 0;
        }
        let share = |percent: i64| i128::from(sample.request) * i128::from(percent);
        if i128::from(limit) * 100 > share(self.lower) {
            return 0;
        }
        let release = share(self.upper) / 100 - i128::from(limit);
        i64::try_from(release).unwrap_or(i64::MAX).max(0)
    }

    /// Returns true if usage is close to the limit. A limit below one core always counts as used; a limit of
    /// 0 never does.
    fn uses_its_limit(&self, sample: BatchCpu, limit: i64) -> bool {
        limit > 0
            && (limit < 1000
                || i128::from(sample.used) * 100 >= i128::from(limit) * i128::from(self.usage))
    }
}

/// Returns true if `count` samples, taken every `interval_seconds`, cover a third of `window_seconds`.
#[must_use]
pub fn enough_samples(window_seconds: i64, count: i64, interval_seconds: i64) -> bool {
    count.saturating_mul(interval_seconds) >= window_seconds / 3
}
