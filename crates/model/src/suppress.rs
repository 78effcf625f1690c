//! CPU suppression: the CPU limit of batch work and its changes over time.
//!
//! CPU amounts are in milli-cores, quotas in microseconds per CFS period of 100 ms.

mod cpus;

pub use cpus::{
    CpuManager, ExcludedCpus, Levels, Processor, levels, next_cpu_count, pick_cpus,
    recovered_levels,
};

/// CFS period that all quotas refer to, in microseconds.
pub const CFS_PERIOD_US: i64 = 100_000;
/// Smallest quota of batch work, in microseconds per period.
pub const MIN_QUOTA_US: i64 = 2_000;
/// Share of the node's capacity below which a change of the limit is not written.
pub const DEAD_BAND: f64 = 0.01;
/// Share of the node's capacity by which the limit may grow in one step.
pub const MAX_GROWTH: f64 = 0.10;
/// Minimum number of CPUs that the `cpuset` policy leaves to batch work.
pub const MIN_CPUS: usize = 2;
/// Quota for "no limit".
pub const UNLIMITED: i64 = -1;

/// CPU usage of the node and its pods from the newest samples, in milli-cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeUsage {
    /// CPU usage of the whole node.
    pub node: i64,
    /// CPU usage of all pods.
    pub pods: i64,
    /// CPU usage of pods that are not best-effort: neither labeled BE nor of the Kubernetes class BestEffort.
    /// Unknown pods are included.
    pub pods_not_be: i64,
    /// CPU usage of all host applications.
    pub hosts: i64,
    /// CPU usage of host applications that are not best-effort.
    pub hosts_not_be: i64,
}

impl NodeUsage {
    /// Returns the usage that belongs to neither a pod nor a host application.
    #[must_use]
    pub fn system(&self) -> i64 {
        let accounted = self.pods.saturating_add(self.hosts);
        self.node.saturating_sub(accounted).max(0)
    }
}

/// Thresholds of the configured strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// Total usage of the node to keep within, in percent.
    pub percent: i64,
    /// Guaranteed share of batch work, in percent of the node; `None` means none.
    pub min_percent: Option<i64>,
}

/// Returns the CPU that batch work may use, in milli-cores. May be negative if the node is overused.
///
/// `capacity * percent / 100 - usage of other pods and host applications - max(system, reserved)`, but at
/// least `min_percent` of the capacity if that is set.
#[must_use]
pub fn budget(capacity: i64, reserved: i64, usage: &NodeUsage, threshold: Threshold) -> i64 {
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

/// Returns the CFS quota of batch work to write, in µs per period; `None` if the `current` one stays.
///
/// `capacity` of the node and `budget` of batch work are in milli-cores, `current` is in µs; negative means
/// unlimited.
/// The minimum is always written, a difference within the dead band never is, and growth is limited per step
/// unless there is no limit now.
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

/// Limits the rate of quota writes: each write refills the cgroup's bandwidth pool, so writing too often
/// gives batch work more than its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteGate {
    min_interval_ms: u64,
    last_ms: Option<u64>,
}

impl WriteGate {
    /// Creates a gate with at least `periods` CFS periods between two writes that change an existing quota.
    #[must_use]
    pub fn new(periods: u64) -> Self {
        let period_ms = (CFS_PERIOD_US / 1000) as u64;
        Self {
            min_interval_ms: periods * period_ms,
            last_ms: None,
        }
    }

    /// Returns true if a write at `now_ms` is allowed. `urgent` writes (a first cap, or removal of the cap)
    /// always are.
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
