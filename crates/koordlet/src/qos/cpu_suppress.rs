//! CPUSuppress: limits the CPU that batch work may use.
//!
//! There are two modes, switchable at run time (see [`SuppressMode`]):
//!
//! * *pressure* (our default): the cap and the partition of CPUs that the pressure guard sets
//!   ([`crate::qos::guard`]), usually none; the cap is the CFS quota of the BE class.
//! * *upstream*: always the configured threshold, by CFS quota or by CPU set, with upstream's
//!   formula, dead band and growth limit. One deviation: a first quota is written even if it is within the dead
//!   band of -1, as can happen on large nodes.
//!
//! With gate BECPUManager CPU sets follow the scheduler (`pools`) and the limit is always a quota.
//!
//! In both modes the quota moves at most once per ten CFS periods: every write refills the bandwidth pool,
//! and a faster loop would give batch work more than the quota allows.

mod pools;
mod row;

pub use row::STRATEGY;
pub(crate) use row::{cpus_of, excluded, mode};

use crate::claims::{Claim, Classes, Level};
use crate::qos::Write;
use crate::qos::guard::LeverTargets;
use crate::states::Slo;
use crate::states::slo::{SuppressMode, SuppressPolicy};
use koord_api::qos::QosClass;
use koord_host::{CgroupPath, CpuSet, Resource, TargetKind};
use koord_model::suppress::{
    self, NodeUsage, Processor, Threshold, UNLIMITED, WriteGate, next_cpu_count, next_quota,
    pick_cpus,
};
use std::collections::BTreeSet;

/// The strategy's name.
pub const NAME: &str = "BECPUSuppress";

/// Claims of the strategy.
pub const CLAIMS: &[Claim] = &[
    claim(Level::Qos, Resource::CfsQuota),
    claim(Level::Qos, Resource::CpuShares),
    claim(Level::Qos, Resource::CpusetCpus),
    claim(Level::Pod, Resource::CpusetCpus),
    claim(Level::Container, Resource::CpusetCpus),
];

const fn claim(level: Level, file: Resource) -> Claim {
    Claim {
        file: TargetKind::Cgroup(file),
        level,
        classes: Classes::BE,
    }
}

/// Audit reason of an adjustment.
pub const ADJUST: &str = "AdjustBEByNodeCPUUsage";
/// Audit reason of a recovery.
pub const RECOVER: &str = "suppressBECPU";
/// Weight that the kubelet gives the BE class.
const BE_SHARES: &str = "2";

/// Input of a decision.
#[derive(Debug)]
pub struct Input<'a> {
    /// Milliseconds of the monotonic clock.
    pub now_ms: u64,
    /// Name of the node, for the audit record.
    pub node: &'a str,
    /// Settings of the NodeSLO.
    pub slo: &'a Slo,
    /// Mode in force.
    pub mode: SuppressMode,
    /// File that limits in upstream mode.
    pub policy: SuppressPolicy,
    /// The node's CPU, in milli-cores.
    pub capacity: i64,
    /// CPU reserved for the system, in milli-cores.
    pub reserved: i64,
    /// Newest usage; `None` without samples.
    pub usage: Option<NodeUsage>,
    /// Targets of the pressure guard.
    pub guard: &'a LeverTargets,
    /// State of the BE class; `None` if its cgroup does not exist.
    pub class: Option<Class<'a>>,
    /// The machine's CPUs.
    pub processors: &'a [Processor],
    /// CPUs that batch work must not use: those of LSE pods, system QoS and the reservation.
    pub excluded: &'a BTreeSet<u32>,
    /// True if the kubelet assigns exclusive CPUs: then the class and its pods have all CPUs that batch work
    /// may use, and only containers are narrowed.
    pub kubelet_static: bool,
    /// CPUs that belong to LSR pods.
    pub lsr: &'a BTreeSet<u32>,
    /// Cgroups of BE pods and their containers, for CPU sets.
    pub groups: &'a [(Level, CgroupPath)],
}

/// Current state of the BE class.
#[derive(Debug, Clone, Copy)]
pub struct Class<'a> {
    /// Cgroup of the class.
    pub group: &'a CgroupPath,
    /// `cpu.cfs_quota_us`.
    pub quota: i64,
    /// `cpuset.cpus`.
    pub cpuset: Option<&'a CpuSet>,
}

/// Result of a decision.
#[derive(Debug, Default)]
pub struct SuppressPlan {
    /// Writes to plan.
    pub writes: Vec<Write>,
    /// CPU that batch work may use, in milli-cores; `None` without a limit.
    pub limit: Option<i64>,
    /// File that has the limit.
    pub by: SuppressPolicy,
    /// Cap in percent of the node; `None` without a cap.
    pub cap: Option<i64>,
}

/// State of a limiting file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LimiterState {
    /// The file was not read since the start: an earlier run may have left a limit.
    #[default]
    Unknown,
    /// The file limits batch work.
    Active,
    /// The file has its unlimited value.
    Recovered,
}

/// State of the strategy between ticks.
#[derive(Debug, Default)]
pub struct CpuSuppress {
    gate: WriteGate,
    quota: LimiterState,
    cpuset: LimiterState,
}

impl CpuSuppress {
    /// Returns whether the BE class is limited by a quota now. Then its pods must have none: on v1 the kernel
    /// refuses to lower a cgroup's quota below that of a child.
    #[must_use]
    pub fn limits_by_quota(&self) -> bool {
        self.quota == LimiterState::Active
    }

    /// Returns whether the CPU sets of the BE class are not managed any more.
    #[must_use]
    pub fn ignores_cpusets(&self) -> bool {
        self.cpuset == LimiterState::Recovered
    }

    /// Decides.
    pub fn plan(&mut self, input: &Input<'_>) -> SuppressPlan {
        let mut outcome = SuppressPlan::default();
        let Some(class) = input.class else {
            return outcome;
        };
        if !input.slo.known && !input.slo.enabled {
            // No NodeSLO was received yet: limits of an earlier run stay until then.
            return outcome;
        }
        if !input.slo.enabled {
            self.recover_quota(input, class, &mut outcome, "suppression is disabled");
            self.recover_cpuset(input, class, &mut outcome);
            return outcome;
        }
        match (input.mode, input.policy) {
            (SuppressMode::Pressure, _) => {
                outcome.cap = input.guard.cap;
                outcome.by = SuppressPolicy::CfsQuota;
                outcome.writes.push(write(
                    input,
                    class.group,
                    Resource::CpuShares,
                    BE_SHARES.to_owned(),
                    "batch work runs on the lowest weight",
                ));
                match input.guard.cap {
                    None => self.release_quota(input, class, &mut outcome),
                    Some(cap) => self.limit_by_quota(input, class, cap, &mut outcome),
                }
                match &input.guard.partition {
                    Some(cpus) => self.partition(input, class, cpus, &mut outcome),
                    None => self.recover_cpuset(input, class, &mut outcome),
                }
            }
            (SuppressMode::Upstream, SuppressPolicy::CfsQuota) => {
                outcome.cap = Some(input.slo.suppress_percent);
                self.limit_by_quota(input, class, input.slo.suppress_percent, &mut outcome);
                self.recover_cpuset(input, class, &mut outcome);
            }
            (SuppressMode::Upstream, SuppressPolicy::Cpuset) => {
                outcome.cap = Some(input.slo.suppress_percent);
                self.limit_by_cpuset(input, class, &mut outcome);
                self.recover_quota(input, class, &mut outcome, "the limit is a CPU set");
            }
        }
        outcome
    }

    fn budget(input: &Input<'_>, percent: i64) -> Option<(i64, NodeUsage)> {
        let usage = input.usage?;
        if input.capacity <= 0 {
            return None;
        }
        let threshold = Threshold {
            percent,
            min_percent: input.slo.suppress_min_percent,
        };
        Some((
            suppress::budget(input.capacity, input.reserved, &usage, threshold),
            usage,
        ))
    }

    /// Plans the CFS quota of the batch class for its budget.
    fn limit_by_quota(
        &mut self,
        input: &Input<'_>,
        class: Class<'_>,
        percent: i64,
        outcome: &mut SuppressPlan,
    ) {
        let Some((budget, usage)) = Self::budget(input, percent) else {
            return;
        };
        outcome.limit = Some(budget);
        outcome.by = SuppressPolicy::CfsQuota;
        let first = self.quota != LimiterState::Active || class.quota < 0;
        self.quota = LimiterState::Active;
        let guarded = input.mode == SuppressMode::Pressure;
        let urgent = class.quota < 0 || (guarded && input.guard.urgent);
        if !self.gate.allows(input.now_ms, urgent) {
            return;
        }
        // An experiment needs its level at once, also upwards.
        let from = match guarded && input.guard.urgent {
            true => UNLIMITED,
            false => class.quota,
        };
        let quota = next_quota(input.capacity, budget, from).filter(|quota| *quota != class.quota);
        let Some(quota) = quota else {
            return;
        };
        self.gate.wrote(input.now_ms);
        let why = match guarded && !input.guard.why.is_empty() {
            true => format!("{}; ", input.guard.why),
            false => String::new(),
        };
        let because = format!(
            "{why}budget {budget}m = {percent}% of {}m - services {}m - max(system {}m, reserved {}m)",
            input.capacity,
            usage.pods_not_be + usage.hosts_not_be,
            usage.system(),
            input.reserved
        );
        let mut intent = write(
            input,
            class.group,
            Resource::CfsQuota,
            quota.to_string(),
            &because,
        );
        intent.cacheable = false;
        intent.verbosity = if first { 1 } else { 3 };
        outcome.writes.push(intent);
    }

    /// Removes any quota, including one set by another program, in pressure mode without a cap.
    fn release_quota(&mut self, input: &Input<'_>, class: Class<'_>, outcome: &mut SuppressPlan) {
        self.quota = LimiterState::Recovered;
        if class.quota < 0 {
            return;
        }
        self.gate.wrote(input.now_ms);
        let mut intent = write(
            input,
            class.group,
            Resource::CfsQuota,
            UNLIMITED.to_string(),
            "no service needs a cap",
        );
        intent.cacheable = false;
        outcome.writes.push(intent);
    }

    /// Removes the CFS quota of the batch class, until the kernel has no quota.
    fn recover_quota(
        &mut self,
        input: &Input<'_>,
        class: Class<'_>,
        outcome: &mut SuppressPlan,
        because: &str,
    ) {
        if self.quota == LimiterState::Recovered {
            return;
        }
        // Recovered once the kernel has the value: a write may fail.
        if class.quota < 0 {
            self.quota = LimiterState::Recovered;
            return;
        }
        self.gate.wrote(input.now_ms);
        let mut intent = write(
            input,
            class.group,
            Resource::CfsQuota,
            UNLIMITED.to_string(),
            because,
        );
        intent.cacheable = false;
        intent.reason = RECOVER;
        outcome.writes.push(intent);
    }

    /// Plans the CPU set of the batch class for its budget.
    fn limit_by_cpuset(&mut self, input: &Input<'_>, class: Class<'_>, outcome: &mut SuppressPlan) {
        let Some((budget, _)) = Self::budget(input, input.slo.suppress_percent) else {
            return;
        };
        outcome.limit = Some(budget);
        outcome.by = SuppressPolicy::Cpuset;
        let Some(current) = class.cpuset else { return };
        self.cpuset = LimiterState::Active;
        let candidates: Vec<Processor> = input
            .processors
            .iter()
            .copied()
            .filter(|p| !input.excluded.contains(&p.cpu))
            .collect();
        let count = next_cpu_count(input.processors.len(), budget, current.len());
        let picked: CpuSet = pick_cpus(&candidates, input.lsr, count.min(candidates.len()))
            .into_iter()
            .collect();
        if picked.is_empty() {
            return;
        }
        let because = format!("budget {budget}m is {count} CPUs");
        let full = full(input);
        let class_cpus = if input.kubelet_static { &full } else { &picked };
        self.push_cpuset(
            input,
            class,
            (class_cpus, &picked),
            &because,
            ADJUST,
            outcome,
        );
    }

    /// Writes the CPU set that the pressure guard leaves to batch work.
    fn partition(
        &mut self,
        input: &Input<'_>,
        class: Class<'_>,
        cpus: &CpuSet,
        outcome: &mut SuppressPlan,
    ) {
        if cpus.is_empty() || class.cpuset.is_none() {
            return;
        }
        self.cpuset = LimiterState::Active;
        let full = full(input);
        let class_cpus = if input.kubelet_static { &full } else { cpus };
        let because = &input.guard.why;
        self.push_cpuset(input, class, (class_cpus, cpus), because, ADJUST, outcome);
    }

    fn recover_cpuset(&mut self, input: &Input<'_>, class: Class<'_>, outcome: &mut SuppressPlan) {
        if self.cpuset == LimiterState::Recovered {
            return;
        }
        let Some(current) = class.cpuset else { return };
        let full = full(input);
        // The class itself was not narrowed, so it does not show when its containers are recovered.
        let once = input.kubelet_static && self.cpuset == LimiterState::Active && full == *current;
        let over = !once
            && match self.cpuset {
                // At start only sets that are too narrow are changed.
                LimiterState::Unknown => full.is_subset(current),
                _ => full == *current,
            };
        if over || full.is_empty() {
            self.cpuset = LimiterState::Recovered;
            return;
        }
        if once {
            self.cpuset = LimiterState::Recovered;
        }
        let because = "no limit by CPU set";
        self.push_cpuset(input, class, (&full, &full), because, RECOVER, outcome);
    }

    /// Adds writes of CPU sets: `class_cpus` for the class and its pods, `container_cpus` for containers. In the audit
    /// record, `reason` is one word and `because` has the numbers.
    #[expect(clippy::unused_self, reason = "reads better next to its callers")]
    fn push_cpuset(
        &self,
        input: &Input<'_>,
        class: Class<'_>,
        (class_cpus, container_cpus): (&CpuSet, &CpuSet),
        because: &str,
        reason: &'static str,
        outcome: &mut SuppressPlan,
    ) {
        let class_cpus = class_cpus.to_string();
        let container_cpus = container_cpus.to_string();
        let groups = std::iter::once((Level::Qos, class.group))
            .chain(input.groups.iter().map(|(level, group)| (*level, group)));
        for (level, group) in groups {
            let value = match level {
                Level::Container => container_cpus.clone(),
                _ => class_cpus.clone(),
            };
            let mut intent = write(input, group, Resource::CpusetCpus, value, because);
            intent.level = level;
            intent.reason = reason;
            outcome.writes.push(intent);
        }
    }
}

/// Returns all CPUs that batch work may use.
fn full(input: &Input<'_>) -> CpuSet {
    let cpus = input.processors.iter().map(|p| p.cpu);
    cpus.filter(|cpu| !input.excluded.contains(cpu)).collect()
}

fn write(
    input: &Input<'_>,
    group: &CgroupPath,
    resource: Resource,
    value: String,
    because: &str,
) -> Write {
    let mut write = Write::class(group, QosClass::Be, input.node)
        .set(resource, value)
        .because(because);
    write.reason = ADJUST;
    write
}

#[cfg(test)]
mod tests;
