//! How much CPU batch work may use, and how the limit moves: the arithmetic of CPU suppression.
//!
//! CPU amounts are milli-cores, quotas are microseconds per CFS period of 100 ms.

mod cpus;

pub use cpus::{
    CpuManager, Kept, Levels, Processor, levels, next_cpu_count, pick_cpus, recovered_levels,
};

/// The CFS period all quotas here refer to, in microseconds.
pub const CFS_PERIOD_US: i64 = 100_000;
/// The smallest quota batch work is cut to, in microseconds per period.
pub const MIN_QUOTA_US: i64 = 2_000;
/// A change smaller than this share of the node's capacity is not worth a write.
pub const DEAD_BAND: f64 = 0.01;
/// By how much of the node's capacity the limit may grow in one step.
pub const MAX_GROWTH: f64 = 0.10;
/// The fewest CPUs the `cpuset` policy leaves to batch work.
pub const MIN_CPUS: usize = 2;
/// The quota that means "no limit".
pub const UNLIMITED: i64 = -1;

/// What the node and its pods use, in milli-cores, from the newest samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The whole node.
    pub node: i64,
    /// All pods.
    pub pods: i64,
    /// Pods that are not best-effort: neither labelled BE nor of the kubelet's BestEffort class.
    /// A pod nobody knows counts here.
    pub pods_not_be: i64,
    /// All host applications.
    pub hosts: i64,
    /// Host applications that are not best-effort.
    pub hosts_not_be: i64,
}

impl Usage {
    /// What neither a pod nor a host application accounts for.
    #[must_use]
    pub fn system(&self) -> i64 {
        let known = self.pods.saturating_add(self.hosts);
        self.node.saturating_sub(known).max(0)
    }
}

/// The limits of the configured strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// How much of the node everything together may use, in percent.
    pub percent: i64,
    /// What batch work keeps in any case, in percent of the node.
    pub min_percent: Option<i64>,
}

/// What batch work may use, in milli-cores. May be negative when the node is over-used.
///
/// `capacity * percent / 100 - used by others - max(system, reserved)`, but at least `min_percent`
/// of the capacity where that is set.
#[must_use]
pub fn budget(capacity: i64, reserved: i64, usage: &Usage, threshold: Threshold) -> i64 {
    let system = usage.system().max(reserved);
    let budget = (capacity.saturating_mul(threshold.percent) / 100)
        .saturating_sub(usage.pods_not_be)
        .saturating_sub(usage.hosts_not_be)
        .saturating_sub(system);
    match threshold.min_percent {
        Some(percent) => budget.max(capacity.saturating_mul(percent) / 100),
        None => budget,
    }
}

/// The quota to write for a `budget`, given what is set now, or `None` when the present one stays.
///
/// The minimum is always written, a difference within the dead band never is, and growth is limited
/// per step unless there is no limit now.
#[must_use]
pub fn next_quota(capacity: i64, budget: i64, current: i64) -> Option<i64> {
    // Capacity in whole cores, rounded up, as the Kubernetes quantity reports it.
    let cores = (capacity.saturating_add(999) / 1000).max(0);
    let mut quota = budget
        .saturating_mul(CFS_PERIOD_US / 1000)
        .max(MIN_QUOTA_US);
    let band = cores as f64 * CFS_PERIOD_US as f64 * DEAD_BAND;
    let unlimited = current < 0;
    if !unlimited {
        if ((quota - current) as f64).abs() < band && quota != MIN_QUOTA_US {
            return None;
        }
        let step = (cores as f64 * CFS_PERIOD_US as f64 * MAX_GROWTH) as i64;
        quota = quota.min(current.saturating_add(step));
    }
    (quota != current).then_some(quota)
}

/// When a quota may be written again: each write refills the group's bandwidth pool, so writing
/// too often gives batch work more than the quota says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteGate {
    min_interval_ms: u64,
    last_ms: Option<u64>,
}

impl WriteGate {
    /// At least `periods` CFS periods between two writes that move an existing quota.
    #[must_use]
    pub fn new(periods: u64) -> Self {
        let period_ms = (CFS_PERIOD_US / 1000) as u64;
        Self {
            min_interval_ms: periods * period_ms,
            last_ms: None,
        }
    }

    /// Whether a write at `now_ms` is allowed. `urgent` writes (a first cap, or none at all) are.
    #[must_use]
    pub fn allows(&self, now_ms: u64, urgent: bool) -> bool {
        // A tenth of a period of tolerance, so that a loop of exactly the interval is not halved.
        let since = self.last_ms.map(|last| now_ms.saturating_sub(last) + 10);
        urgent || since.is_none_or(|since| since >= self.min_interval_ms)
    }

    /// Records a write.
    pub fn wrote(&mut self, now_ms: u64) {
        self.last_ms = Some(now_ms);
    }
}

impl Default for WriteGate {
    fn default() -> Self {
        Self::new(10)
    }
}

#[cfg(test)]
mod tests;
