//! CPU burst of services: the state of the shared CPU pool, the kernel's burst buffer, the step of a
//! raised CFS quota and the token bucket that bounds how long it may stay raised.
//!
//! CPU amounts are milli-cores, quotas and buffers microseconds per CFS period of 100 ms, times
//! milliseconds. Source of the formulas: Koordinator `pkg/koordlet/qosmanager/plugins/cpuburst`.

use koord_api::qos::QosClass;
use koord_api::slo::{CPUBurstConfig, CPUBurstPolicy, CPUBurstStrategy, defaults};

use crate::field::FieldError;

/// From this share of the threshold on (in tenths) quotas are no longer raised.
const COOLING_TENTHS: i64 = 9;
/// A raised quota grows and shrinks by this share of itself: a fifth.
const STEP: i64 = 5;
/// Use of the limit from which a container spends tokens, in percent.
const SPEND_FROM_PERCENT: i64 = 100;
/// Use of the limit below which a container saves tokens, in percent.
const SAVE_BELOW_PERCENT: i64 = 60;

/// How much of the shared CPU pool is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolState {
    /// There is no sample of the node, or its CPUs are not known.
    Unknown,
    /// Below nine tenths of the threshold.
    Idle,
    /// Below the threshold.
    Cooling,
    /// At the threshold or above.
    Overload {
        /// By how much the pool's use exceeds the threshold.
        over: i64,
    },
}

/// What a pod takes out of the shared pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolPod {
    /// The class its label gives, without a default.
    pub qos: QosClass,
    /// Its CPU request.
    pub request: i64,
    /// Its mean use, when known.
    pub used: Option<i64>,
}

/// Judges the shared pool: all processors but those of LSE and LSR pods, and the node's mean use but
/// that of LSE, LSR and BE pods. A pool without CPUs counts as fully used.
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

/// The settings of one pod, all of them given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Which mechanisms are on.
    pub policy: CPUBurstPolicy,
    /// The kernel's burst buffer as percent of the limit.
    pub buffer_percent: i64,
    /// How far a quota may be raised, percent of the limit.
    pub quota_percent: i64,
    /// How long a quota may stay raised, in seconds; negative is for ever.
    pub period_seconds: i64,
}

impl Config {
    /// The node's strategy with the fields of the pod's annotation `koordinator.sh/cpuBurst` laid over
    /// it. A value out of its range is reported, and the one below it is used: the node's for the
    /// pod's, the default for the node's.
    #[must_use]
    pub fn of(node: &CPUBurstStrategy, pod: Option<&CPUBurstConfig>) -> (Self, Vec<FieldError>) {
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

    /// Whether the kernel's burst buffer is used.
    #[must_use]
    pub fn buffers(&self) -> bool {
        matches!(
            self.policy,
            CPUBurstPolicy::Auto | CPUBurstPolicy::CpuBurstOnly
        )
    }

    /// Whether quotas are raised.
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

/// The burst buffer a quota of `base` microseconds asks for, before the kernel's rule that it must not
/// exceed the quota (see [`crate::cpu_limit`]). Nothing for a container without a limit.
#[must_use]
pub fn buffer(config: &Config, base: i64) -> i64 {
    if !config.buffers() || base <= 0 {
        return 0;
    }
    base.saturating_mul(config.buffer_percent) / 100
}

/// What happens to the quota of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A fifth more.
    Up,
    /// A fifth less.
    Down,
    /// It stays.
    Remain,
    /// Back to the limit at once.
    Reset,
}

/// What a container asks for: `allowed` is the limiter's word, `throttled` the newest share of
/// throttled periods, `None` when it is not known.
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

/// What of `asked` the pool's state lets through. `chosen` says whether the container is among those
/// that [`lowered`] picked.
#[must_use]
pub fn admitted(asked: Operation, state: PoolState, chosen: bool) -> Operation {
    match (state, asked) {
        (PoolState::Overload { .. }, Operation::Up | Operation::Remain) if chosen => {
            Operation::Down
        }
        (PoolState::Overload { .. } | PoolState::Cooling | PoolState::Unknown, Operation::Up) => {
            Operation::Remain
        }
        _ => asked,
    }
}

/// The quota after one step, or `None` when nothing is to be written.
///
/// The result lies between `base` and `percent` of it. A container that has no limit of its own
/// (`base` ≤ 0), or whose present quota is unlimited because the kubelet sets none, is left alone.
#[must_use]
pub fn next_quota(base: i64, present: i64, percent: i64, operation: Operation) -> Option<i64> {
    if base <= 0 || present <= 0 {
        return None;
    }
    let ceiling = ceiling(base, percent);
    let wanted = match operation {
        Operation::Up => present.saturating_mul(STEP + 1) / STEP,
        Operation::Down => present.saturating_mul(STEP - 1) / STEP,
        Operation::Remain => present,
        Operation::Reset => base,
    };
    let quota = wanted.min(ceiling).max(base);
    (quota != present).then_some(quota)
}

/// The highest quota that `percent` allows; at most 100 allows none above `base`.
#[must_use]
pub fn ceiling(base: i64, percent: i64) -> i64 {
    let raised = i128::from(base) * i128::from(percent.max(100)) / 100;
    i64::try_from(raised).unwrap_or(i64::MAX)
}

/// A container whose quota may be lowered while the pool is overloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raised<Id> {
    /// How the caller names it.
    pub id: Id,
    /// Its limit.
    pub base: i64,
    /// Its quota now.
    pub present: i64,
}

/// Whose quotas are lowered by one step in an overload of `over` milli-cores: those with the largest
/// surplus over their limit first, equals by id, until the steps give back as much as is too much.
///
/// Upstream lowers every one at once, so that nobody bursts for long after a short overload (#2164).
#[must_use]
pub fn lowered<Id: Ord + Copy>(over: i64, mut raised: Vec<Raised<Id>>) -> Vec<Id> {
    let surplus = |c: &Raised<Id>| c.present.saturating_sub(c.base);
    raised.retain(|c| c.base > 0 && surplus(c) > 0);
    raised.sort_by(|a, b| surplus(b).cmp(&surplus(a)).then(a.id.cmp(&b.id)));
    // Microseconds per 100 ms are a hundred to the milli-core.
    let mut left = over.saturating_mul(100);
    let mut ids = Vec::new();
    for container in raised {
        let step = (container.present / STEP).min(surplus(&container));
        ids.push(container.id);
        left = left.saturating_sub(step);
        if left <= 0 {
            break;
        }
    }
    ids
}

/// The token bucket of one container: it bounds how long use above the limit goes on.
///
/// Capacity is `period · (percent − 100)`; a second at u % of the limit costs `u − 100` tokens from
/// 100 % on and brings `100 − u` below 60 %. Tokens stay between minus and plus the capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limiter {
    period_seconds: i64,
    capacity: i64,
    token: i64,
    at: i64,
}

impl Limiter {
    /// A bucket filled to `share` (0–1) of its capacity at `now`. Callers draw the share at random
    /// below 0.5, so that the containers of a node do not run dry together.
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

    /// Starts anew, as [`Limiter::new`] does, when the settings give another capacity.
    pub fn follow(&mut self, config: &Config, share: f64, now: i64) {
        if self.capacity != Self::capacity_of(config) {
            *self = Self::new(config, share, now);
        }
    }

    /// Books the time since the last call at `usage_percent` of the limit; whether the quota may be
    /// raised. Only whole seconds are booked, the rest counts at the next call; a clock that went
    /// back books nothing.
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

    /// The tokens left.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.token
    }

    /// Whether the bucket was not asked for twice its period.
    #[must_use]
    pub fn expired(&self, now: i64) -> bool {
        now.saturating_sub(self.at) > self.period_seconds.saturating_mul(2000)
    }
}

/// The use of a limit in whole percent; a container without a sample counts as at its limit.
#[must_use]
pub fn usage_percent(limit: i64, used: Option<i64>) -> i64 {
    match used {
        Some(used) if limit > 0 => used.saturating_mul(100) / limit,
        _ => 100,
    }
}

#[cfg(test)]
mod tests;
