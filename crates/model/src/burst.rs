//! CPU burst: the state of the shared CPU pool, the kernel's burst buffer, the step of a raised CFS quota and
//! the token bucket that limits how long it stays raised.
//!
//! CPU amounts are in milli-cores, quotas and buffers in microseconds per CFS period of 100 ms, times in
//! milliseconds. Source of the formulas: Koordinator `pkg/koordlet/qosmanager/plugins/cpuburst`.

use koord_api::qos::QosClass;
use koord_api::slo::{CPUBurstConfig, CPUBurstPolicy, CPUBurstStrategy, defaults};

use crate::field::FieldError;

/// Share of the threshold, in tenths, from which quotas are no longer raised.
const COOLING_TENTHS: i64 = 9;
/// Divisor of a quota that gives the size of one step: a fifth.
const STEP: i64 = 5;
/// Usage from which a container spends tokens, in percent of its limit.
const SPEND_FROM_PERCENT: i64 = 100;
/// Usage below which a container gains tokens, in percent of its limit.
const SAVE_BELOW_PERCENT: i64 = 60;

/// Load of the shared CPU pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolState {
    /// The load is unknown: there is no sample of the node, or its CPUs are unknown.
    Unknown,
    /// Below nine tenths of the threshold.
    Idle,
    /// Below the threshold.
    Cooling,
    /// The load is at the threshold or above.
    Overload {
        /// Usage above the threshold, in milli-cores.
        over: i64,
    },
}

/// CPU request and usage of a pod, for the accounting of the shared pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolPod {
    /// QoS class of the pod's label, without a default.
    pub qos: QosClass,
    /// CPU request in milli-cores.
    pub request: i64,
    /// Mean CPU usage in milli-cores; `None` without a sample.
    pub used: Option<i64>,
}

/// Returns the state of the shared pool. Its size is all processors minus the requests of LSE and LSR pods;
/// its usage is the node's mean usage minus that of LSE, LSR and BE pods. A pool without CPUs counts as fully
/// used. CPU amounts are in milli-cores.
#[must_use]
pub fn pool_state(
    processors: usize,
    node_used: Option<i64>,
    pods: impl IntoIterator<Item = PoolPod>,
    threshold_percent: i64,
) -> PoolState {
    let (Some(mut used), true) = (node_used, processors > 0) else {
        return PoolState::Unknown;
    };
    let mut total = i64::try_from(processors)
        .unwrap_or(i64::MAX)
        .saturating_mul(1000);
    for pod in pods {
        let exclusive = matches!(pod.qos, QosClass::Lse | QosClass::Lsr);
        if exclusive {
            total = total.saturating_sub(pod.request);
        }
        if exclusive || pod.qos == QosClass::Be {
            used = used.saturating_sub(pod.used.unwrap_or(0));
        }
    }
    if total <= 0 {
        (total, used) = (1000, 1000);
    }
    let threshold = total.saturating_mul(threshold_percent);
    let percent_used = used.saturating_mul(100);
    if percent_used >= threshold {
        PoolState::Overload {
            over: percent_used.saturating_sub(threshold) / 100,
        }
    } else if percent_used.saturating_mul(10) >= threshold.saturating_mul(COOLING_TENTHS) {
        PoolState::Cooling
    } else {
        PoolState::Idle
    }
}

/// Effective settings of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Mechanisms that are on.
    pub policy: CPUBurstPolicy,
    /// Kernel burst buffer, percent of the limit.
    pub buffer_percent: i64,
    /// Maximum of a raised quota, percent of the limit.
    pub quota_percent: i64,
    /// Time that a quota may stay raised, in seconds; negative means no limit.
    pub period_seconds: i64,
}

impl Config {
    /// Merges the pod's annotation `koordinator.sh/cpuBurst` over the node's strategy. An out-of-range value
    /// is reported and replaced by that of the next lower layer: the node's for the pod's, the default for
    /// the node's.
    #[must_use]
    pub fn merge(node: &CPUBurstStrategy, pod: Option<&CPUBurstConfig>) -> (Self, Vec<FieldError>) {
        let default = defaults::cpu_burst_strategy();
        let mut errors = Vec::new();
        let none = CPUBurstConfig::default();
        let pod = pod.unwrap_or(&none);
        let config = Self {
            policy: [&pod.policy, &node.policy]
                .into_iter()
                .flatten()
                .find(|policy| {
                    if !policy.is_known() {
                        errors.push(FieldError {
                            field: "policy",
                            want: "none, cpuBurstOnly, cfsQuotaBurstOnly or auto",
                            value: policy.as_str().to_owned(),
                        });
                    }
                    policy.is_known()
                })
                .cloned()
                .unwrap_or(CPUBurstPolicy::None),
            buffer_percent: pick(
                &mut errors,
                ("cpuBurstPercent", "in 0..=10000"),
                |value| (0..=10_000).contains(&value),
                [pod.cpu_burst_percent, node.cpu_burst_percent],
                default.cpu_burst_percent,
            ),
            quota_percent: pick(
                &mut errors,
                ("cfsQuotaBurstPercent", "at least 100"),
                |value| value >= 100,
                [pod.cfs_quota_burst_percent, node.cfs_quota_burst_percent],
                default.cfs_quota_burst_percent,
            ),
            period_seconds: pick(
                &mut errors,
                ("cfsQuotaBurstPeriodSeconds", "at least -1"),
                |value| value >= -1,
                [
                    pod.cfs_quota_burst_period_seconds,
                    node.cfs_quota_burst_period_seconds,
                ],
                default.cfs_quota_burst_period_seconds,
            ),
        };
        (config, errors)
    }

    /// Returns true if the kernel's burst buffer is used.
    #[must_use]
    pub fn buffers(&self) -> bool {
        matches!(
            self.policy,
            CPUBurstPolicy::Auto | CPUBurstPolicy::CpuBurstOnly
        )
    }

    /// Returns true if quotas are raised.
    #[must_use]
    pub fn raises_quota(&self) -> bool {
        matches!(
            self.policy,
            CPUBurstPolicy::Auto | CPUBurstPolicy::CfsQuotaBurstOnly
        )
    }
}

fn pick(
    errors: &mut Vec<FieldError>,
    (field, want): (&'static str, &'static str),
    valid: impl Fn(i64) -> bool,
    given: [Option<i64>; 2],
    default: Option<i64>,
) -> i64 {
    for value in given.into_iter().flatten() {
        if valid(value) {
            return value;
        }
        errors.push(FieldError {
            field,
            want,
            value: value.to_string(),
        });
    }
    default.unwrap_or_default()
}

/// Returns the burst buffer for a quota of `base` microseconds, not yet capped at the quota (see
/// [`crate::cpu_limit`]). 0 for a container without a limit.
#[must_use]
pub fn buffer(config: &Config, base: i64) -> i64 {
    if !config.buffers() || base <= 0 {
        return 0;
    }
    base.saturating_mul(config.buffer_percent) / 100
}

/// Change of a container's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Raise the quota by a fifth.
    Up,
    /// Lower the quota by a fifth.
    Down,
    /// Keep the quota.
    Remain,
    /// Reset the quota to the limit at once.
    Reset,
}

/// Returns the operation that a container needs. `allowed` is the result of [`Limiter::allow`], `throttled`
/// the newest share of throttled periods; `None` means unknown.
#[must_use]
pub fn operation(config: &Config, allowed: bool, throttled: Option<f64>) -> Operation {
    if !config.raises_quota() {
        Operation::Reset
    } else if !allowed {
        Operation::Down
    } else if throttled.is_some_and(|share| share > 0.0) {
        Operation::Up
    } else {
        Operation::Remain
    }
}

/// Returns the operation that the pool's state permits instead of `operation`. `chosen` is true if
/// [`lowered`] selected the container.
#[must_use]
pub fn admitted(operation: Operation, state: PoolState, chosen: bool) -> Operation {
    match (state, operation) {
        (PoolState::Overload { .. }, Operation::Up | Operation::Remain) if chosen => {
            Operation::Down
        }
        (PoolState::Overload { .. } | PoolState::Cooling | PoolState::Unknown, Operation::Up) => {
            Operation::Remain
        }
        _ => operation,
    }
}

/// Returns the quota after one step, or `None` if nothing needs to be written.
///
/// The result is between `base` and `percent` of it. A container without a limit (`base` ≤ 0), or whose
/// present quota is unlimited because the kubelet sets none, is not changed.
#[must_use]
pub fn next_quota(base: i64, present: i64, percent: i64, operation: Operation) -> Option<i64> {
    if base <= 0 || present <= 0 {
        return None;
    }
    let ceiling = ceiling(base, percent);
    let stepped = match operation {
        Operation::Up => present.saturating_mul(STEP + 1) / STEP,
        Operation::Down => present.saturating_mul(STEP - 1) / STEP,
        Operation::Remain => present,
        Operation::Reset => base,
    };
    let quota = stepped.min(ceiling).max(base);
    (quota != present).then_some(quota)
}

/// Returns the highest quota that `percent` of `base` allows, at least `base`.
#[must_use]
pub fn ceiling(base: i64, percent: i64) -> i64 {
    let raised = i128::from(base) * i128::from(percent.max(100)) / 100;
    i64::try_from(raised).unwrap_or(i64::MAX)
}

/// Container whose quota may be lowered while the pool is overloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raised<Id> {
    /// Identifier chosen by the caller.
    pub id: Id,
    /// Quota of the container's limit.
    pub base: i64,
    /// Current quota.
    pub present: i64,
}

/// Selects the containers whose quotas are lowered by one step in an overload of `over` milli-cores: those
/// with the largest surplus over their limit first, ties by id, until the steps free `over`.
///
/// Upstream lowers all at once, so that no container bursts for long after a short overload (#2164).
#[must_use]
pub fn lowered<Id: Ord + Copy>(over: i64, mut raised: Vec<Raised<Id>>) -> Vec<Id> {
    let surplus = |c: &Raised<Id>| c.present.saturating_sub(c.base);
    raised.retain(|c| c.base > 0 && surplus(c) > 0);
    raised.sort_by(|a, b| surplus(b).cmp(&surplus(a)).then(a.id.cmp(&b.id)));
    // One milli-core is 100 microseconds per period of 100 ms.
    let mut remaining = over.saturating_mul(100);
    let mut ids = Vec::new();
    for container in raised {
        let step = (container.present / STEP).min(surplus(&container));
        ids.push(container.id);
        remaining = remaining.saturating_sub(step);
        if remaining <= 0 {
            break;
        }
    }
    ids
}

/// Token bucket of one container: limits how long its usage may stay above the limit.
///
/// The capacity is `period · (percent − 100)`. A second at u % of the limit costs `u − 100` tokens from 100 %
/// on and gains `100 − u` below 60 %. The tokens stay between minus and plus the capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limiter {
    period_seconds: i64,
    capacity: i64,
    token: i64,
    at: i64,
}

impl Limiter {
    /// Creates a bucket filled to `share` (0–1) of its capacity at `now`. Callers draw the share at random
    /// below 0.5, so that the containers of a node do not run out together.
    #[must_use]
    pub fn new(config: &Config, share: f64, now: i64) -> Self {
        let capacity = Self::capacity_of(config);
        Self {
            period_seconds: config.period_seconds.max(0),
            capacity,
            token: (capacity as f64 * share.clamp(0.0, 1.0)) as i64,
            at: now,
        }
    }

    fn capacity_of(config: &Config) -> i64 {
        let surplus = config.quota_percent.saturating_sub(100).max(0);
        config.period_seconds.max(0).saturating_mul(surplus)
    }

    /// Resets the bucket as [`Limiter::new`] creates it if the settings change the capacity.
    pub fn follow(&mut self, config: &Config, share: f64, now: i64) {
        if self.capacity != Self::capacity_of(config) {
            *self = Self::new(config, share, now);
        }
    }

    /// Accounts the time since the last call at `usage_percent` of the limit, and returns true if the quota
    /// may be raised. Only whole seconds are accounted, the rest counts at the next call; a clock that went
    /// back accounts nothing. `now` is in milliseconds.
    pub fn allow(&mut self, now: i64, usage_percent: i64) -> bool {
        let seconds = now.saturating_sub(self.at) / 1000;
        if seconds < 0 {
            self.at = now;
        } else {
            self.at = self.at.saturating_add(seconds.saturating_mul(1000));
            if !(SAVE_BELOW_PERCENT..SPEND_FROM_PERCENT).contains(&usage_percent) {
                let change = (100 - usage_percent).saturating_mul(seconds);
                self.token = self.token.saturating_add(change);
            }
        }
        self.token = self.token.clamp(-self.capacity, self.capacity);
        self.token > 0
    }

    /// Returns the remaining tokens.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.token
    }

    /// Returns true if the bucket was not used for twice its period.
    #[must_use]
    pub fn expired(&self, now: i64) -> bool {
        now.saturating_sub(self.at) > self.period_seconds.saturating_mul(2000)
    }
}

/// Returns the usage in whole percent of the limit. A container without a sample counts as 100 %.
#[must_use]
pub fn usage_percent(limit: i64, used: Option<i64>) -> i64 {
    match used {
        Some(used) if limit > 0 => used.saturating_mul(100) / limit,
        _ => 100,
    }
}

#[cfg(test)]
mod tests;
