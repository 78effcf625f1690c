//! The table of collectors: what is measured, how often, from which source, and for which demand.
//!
//! The loop and the thread of slow collectors run its rows in order. It is logged at start and served at
//! `/debug/collectors`. Each row starts and fails independently.

use super::ctx::TickCollector;
use super::needs::Needs;
use super::node::NodeCollector;
use super::numa::{self, NumaUsageCollector};
use super::on_tick::{
    BatchLimitCollector, BatchUsageCollector, HostAppCollector, PacketCollector, PodCollector,
    PressureCollector, SystemCollector,
};
use super::slow::{self, Job, SlowJobContext};
use crate::gates::Gate;
use crate::health::{self, State};
use crate::settings::Settings;
use crate::states::metric_policy::MemoryPolicy;
use koord_host::Root;
use koord_host::topology::CpuTopology;

/// Consumer of a collector's samples.
#[derive(Debug, Clone, Copy)]
pub enum Demand {
    /// The reporter, the predictor or several strategies: the collector always runs.
    Always,
    /// An active strategy that needs the samples.
    Strategies(fn(&Needs) -> bool),
    /// The NodeMetric's memory policy.
    Policy(MemoryPolicy),
    /// Metrics or a strategy behind this feature gate.
    Gate(Gate),
}

impl Demand {
    /// Returns whether a collector of the loop has demand while strategies have these `needs`.
    #[must_use]
    pub fn is_met(&self, needs: &Needs) -> bool {
        match self {
            Self::Strategies(is_needed) => is_needed(needs),
            Self::Always | Self::Policy(_) | Self::Gate(_) => true,
        }
    }

    /// Returns why `settings` switch the collector off; `None` if it is on.
    fn switched_off(&self, settings: &Settings) -> Option<String> {
        match self {
            Self::Gate(Gate::ResctrlCollector) if !settings.collectors.resctrl => {
                Some("flag --enable-resctrl-collector is not set".to_owned())
            }
            Self::Gate(gate) if !settings.gates.is_on(*gate) => {
                Some(format!("gate {} is closed", gate.name()))
            }
            _ => None,
        }
    }
}

/// Thread of a collector, and its constructor.
#[derive(Debug, Clone, Copy)]
pub enum Lane {
    /// The loop, in a tick.
    Tick(fn(&Root, &CpuTopology) -> Box<dyn TickCollector>),
    /// Sampled together with the collector of this name, which reads the same cgroups.
    Along(&'static str),
    /// The thread of slow collectors.
    Slow(fn(&SlowJobContext<'_>) -> Box<dyn Job>),
}

/// Declares a collector.
#[derive(Debug, Clone, Copy)]
pub struct CollectorSpec {
    /// Name in logs, metrics and the status.
    pub name: &'static str,
    /// Thread and constructor.
    pub lane: Lane,
    /// Milliseconds between two samples.
    pub every_ms: fn(&Settings) -> u64,
    /// Number of samples within which each file was read: files are read in turns, or again after a failure.
    pub turns: u32,
    /// Consumer of the samples.
    pub demand: Demand,
    /// Files that are read.
    pub source: &'static str,
}

const fn tick(settings: &Settings) -> u64 {
    settings.interval_ms
}

const fn numa_ticks(settings: &Settings) -> u64 {
    settings.interval_ms.saturating_mul(numa::EVERY)
}

/// Turns of collectors of cgroups: the memory of containers is read in turns, and a cgroup that cannot be
/// opened is skipped for a while.
const GROUPS: u32 = 6;
/// Turns of pressure and packets. A pod without a file is searched again every ten seconds.
const SERVICES: u32 = 20;

/// Every collector, in the order in which they run.
pub const COLLECTORS: &[CollectorSpec] = &[
    CollectorSpec {
        name: "node",
        lane: Lane::Tick(|root, _| Box::new(NodeCollector::new(root.clone()))),
        every_ms: tick,
        turns: 1,
        demand: Demand::Always,
        source: "/proc/stat, /proc/meminfo",
    },
    CollectorSpec {
        name: "pods",
        lane: Lane::Tick(|_, _| Box::new(PodCollector)),
        every_ms: tick,
        turns: GROUPS,
        demand: Demand::Always,
        source: "cpu usage, memory.stat",
    },
    CollectorSpec {
        name: "containers",
        lane: Lane::Along("pods"),
        every_ms: tick,
        turns: GROUPS,
        demand: Demand::Strategies(|needs| needs.containers || needs.throttling),
        source: "cpu usage, memory.stat",
    },
    CollectorSpec {
        name: "throttling",
        lane: Lane::Along("pods"),
        every_ms: tick,
        turns: GROUPS,
        demand: Demand::Strategies(|needs| needs.throttling),
        source: "cpu.stat",
    },
    CollectorSpec {
        name: "page cache",
        lane: Lane::Along("pods"),
        every_ms: tick,
        turns: GROUPS,
        demand: Demand::Policy(MemoryPolicy::WithPageCache),
        source: "memory.stat",
    },
    CollectorSpec {
        name: "host applications",
        lane: Lane::Tick(|_, _| Box::new(HostAppCollector)),
        every_ms: tick,
        turns: GROUPS,
        demand: Demand::Always,
        source: "cpu usage, memory.stat",
    },
    CollectorSpec {
        name: "system",
        lane: Lane::Tick(|_, _| Box::new(SystemCollector)),
        every_ms: tick,
        turns: 1,
        demand: Demand::Always,
        source: "node less pods and host applications",
    },
    CollectorSpec {
        name: "batch",
        lane: Lane::Tick(|_, _| Box::new(BatchUsageCollector::default())),
        every_ms: tick,
        turns: 1,
        demand: Demand::Always,
        source: "cpu usage of the BE class",
    },
    CollectorSpec {
        name: "batch limit",
        lane: Lane::Tick(|_, _| Box::new(BatchLimitCollector)),
        every_ms: tick,
        turns: 1,
        demand: Demand::Strategies(|needs| needs.batch_limit),
        source: "cpuset and quota of the BE class",
    },
    CollectorSpec {
        name: "numa",
        lane: Lane::Tick(|root, cpus| Box::new(NumaUsageCollector::new(root.clone(), cpus))),
        every_ms: numa_ticks,
        turns: numa::ROUND,
        demand: Demand::Always,
        source: "/proc/stat, node*/meminfo, memory.numa_stat",
    },
    CollectorSpec {
        name: "pressure",
        lane: Lane::Tick(|_, _| Box::new(PressureCollector)),
        every_ms: tick,
        turns: SERVICES,
        demand: Demand::Strategies(|needs| needs.pressure),
        source: "cpu, memory and io.pressure, else schedstat of threads",
    },
    CollectorSpec {
        name: "packets",
        lane: Lane::Tick(|_, _| Box::new(PacketCollector)),
        every_ms: tick,
        turns: SERVICES,
        demand: Demand::Strategies(|needs| needs.pressure),
        source: "packets of services, by eBPF",
    },
    CollectorSpec {
        name: "machine",
        lane: Lane::Slow(slow::machine),
        every_ms: |s| s.collectors.cpu_info_ms,
        turns: 1,
        demand: Demand::Always,
        source: "cpuinfo, topology, huge pages",
    },
    CollectorSpec {
        name: "storage",
        lane: Lane::Slow(slow::storage),
        every_ms: |s| s.collectors.storage_info_ms,
        turns: 1,
        demand: Demand::Gate(Gate::BlkIOReconcile),
        source: "/sys/class/block, mountinfo",
    },
    CollectorSpec {
        name: "psi",
        lane: Lane::Slow(slow::psi),
        every_ms: |s| s.collectors.psi_ms,
        turns: 1,
        demand: Demand::Gate(Gate::PSICollector),
        source: "cpu, memory and io.pressure",
    },
    CollectorSpec {
        name: "cpi",
        lane: Lane::Slow(slow::cpi),
        every_ms: |s| s.collectors.cpi_ms,
        turns: 1,
        demand: Demand::Gate(Gate::CPICollector),
        source: "perf events of containers",
    },
    CollectorSpec {
        name: "cold pages",
        lane: Lane::Slow(slow::cold_pages),
        every_ms: |_| 5_000,
        turns: 1,
        demand: Demand::Gate(Gate::ColdPageCollector),
        source: "kidled, memory.idle_page_stats",
    },
    CollectorSpec {
        name: "resctrl",
        lane: Lane::Slow(slow::resctrl),
        every_ms: |s| s.collectors.resctrl_ms,
        turns: 1,
        demand: Demand::Gate(Gate::ResctrlCollector),
        source: "mon_data of LSR, LS and BE",
    },
];

/// Returns the slow collectors that the settings switch on, in the order of the table.
#[must_use]
pub fn slow_jobs(parts: &SlowJobContext<'_>) -> Vec<Box<dyn Job>> {
    let on = COLLECTORS.iter();
    let on = on.filter(|spec| spec.demand.switched_off(parts.settings).is_none());
    let jobs = on.filter_map(|spec| match spec.lane {
        Lane::Slow(make) => Some(make(parts)),
        Lane::Tick(_) | Lane::Along(_) => None,
    });
    jobs.collect()
}

/// Returns the table of collectors for the status page. `needs` and `memory` are the current demand, and
/// `failure` returns the state and last error of a failed or stopped collector.
#[must_use]
pub fn collector_rows(
    settings: &Settings,
    needs: Needs,
    memory: MemoryPolicy,
    failure: impl Fn(&str) -> Option<(State, String)>,
) -> Vec<health::Collector> {
    let rows = COLLECTORS.iter().map(|row| {
        let (state, why) = match (row.demand, row.demand.switched_off(settings)) {
            (_, Some(why)) => (State::Off, why),
            (Demand::Strategies(is_needed), _) if !is_needed(&needs) => {
                (State::Idle, "no strategy reads it".to_owned())
            }
            (Demand::Policy(policy), _) if policy != memory => {
                (State::Idle, "the memory policy is another".to_owned())
            }
            _ => (State::Active, String::new()),
        };
        let failure = failure(row.name).filter(|_| state == State::Active);
        let (state, why) = failure.unwrap_or((state, why));
        health::Collector {
            name: row.name.to_owned(),
            state,
            every_ms: (row.every_ms)(settings),
            source: row.source.to_owned(),
            why,
        }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_readers_gates_and_failures() {
        let mut settings = Settings::default();
        settings.gates.set(Gate::PSICollector, true);
        let state = |needs, memory| {
            let failure = |name: &str| {
                let bad = name == "psi" || name == "storage";
                bad.then(|| (State::Failing, "x".to_owned()))
            };
            let rows = collector_rows(&settings, needs, memory, failure);
            move |name: &str| rows.iter().find(|row| row.name == name).unwrap().clone()
        };
        let quiet = state(Needs::default(), MemoryPolicy::default());
        assert_eq!(quiet("node").state, State::Active);
        assert_eq!(quiet("pressure").state, State::Idle);
        assert_eq!(quiet("containers").state, State::Idle);
        assert_eq!(quiet("page cache").state, State::Idle);
        assert_eq!(
            (quiet("psi").state, quiet("psi").why.as_str()),
            (State::Failing, "x")
        );
        assert_eq!(
            quiet("storage").state,
            State::Off,
            "what is off does not fail"
        );
        assert_eq!(quiet("storage").why, "gate BlkIOReconcile is closed");
        assert_eq!(quiet("numa").every_ms, 5000);
        let needs = Needs {
            throttling: true,
            ..Needs::default()
        };
        let busy = state(needs, MemoryPolicy::WithPageCache);
        for name in ["containers", "throttling", "page cache"] {
            assert_eq!(busy(name).state, State::Active, "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = COLLECTORS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COLLECTORS.len());
    }
}
