//! The table of collectors: what is measured, how often, from where, and for whom.
//!
//! It is printed at start and served at `/debug/collectors`. Each starts and fails alone.

use super::needs::Needs;
use crate::gates::Gate;
use crate::health::{self, State};
use crate::settings::Settings;
use crate::states::metric_policy::Memory;

/// For whom a collector works.
#[derive(Debug, Clone, Copy)]
pub enum Readers {
    /// For the reporter, the predictor or several strategies: always.
    Always,
    /// While a strategy that runs needs it.
    Strategies(fn(&Needs) -> bool),
    /// While the NodeMetric's memory policy wants it.
    Policy(Memory),
    /// For metrics or a strategy behind this gate.
    Gate(Gate),
}

/// One collector.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name in logs, metrics and the status.
    pub name: &'static str,
    /// For whom it works.
    pub readers: Readers,
    /// Milliseconds between two samples.
    pub every_ms: fn(&Settings) -> u64,
    /// What it reads.
    pub source: &'static str,
    /// Whether it runs on the thread of slow collectors.
    pub slow: bool,
}

const fn tick(settings: &Settings) -> u64 {
    settings.interval_ms
}

const fn five_ticks(settings: &Settings) -> u64 {
    settings.interval_ms.saturating_mul(5)
}

/// Every collector.
pub const COLLECTORS: &[Row] = &[
    row("node", Readers::Always, tick, "/proc/stat, /proc/meminfo"),
    row(
        "numa",
        Readers::Always,
        five_ticks,
        "/proc/stat, node*/meminfo, memory.numa_stat",
    ),
    row("pods", Readers::Always, tick, "cpu usage, memory.stat"),
    row(
        "containers",
        Readers::Strategies(|needs| needs.containers || needs.throttling),
        tick,
        "cpu usage, memory.stat",
    ),
    row(
        "throttling",
        Readers::Strategies(|needs| needs.throttling),
        tick,
        "cpu.stat",
    ),
    row(
        "pressure",
        Readers::Strategies(|needs| needs.pressure || needs.fast_pressure),
        tick,
        "cpu, memory and io.pressure, else schedstat of threads",
    ),
    row(
        "packets",
        Readers::Strategies(|needs| needs.pressure),
        tick,
        "packets of services, by eBPF",
    ),
    row("batch", Readers::Always, tick, "cpu usage of the BE class"),
    row(
        "batch limit",
        Readers::Strategies(|needs| needs.batch_limit),
        tick,
        "cpuset and quota of the BE class",
    ),
    row(
        "host applications",
        Readers::Always,
        tick,
        "cpu usage, memory.stat",
    ),
    row(
        "system",
        Readers::Always,
        tick,
        "node less pods and host applications",
    ),
    row(
        "page cache",
        Readers::Policy(Memory::WithPageCache),
        tick,
        "memory.stat",
    ),
    slow(
        "machine",
        Readers::Always,
        |s| s.collectors.cpu_info_ms,
        "cpuinfo, topology, huge pages",
    ),
    slow(
        "storage",
        Readers::Gate(Gate::BlkIOReconcile),
        |s| s.collectors.storage_info_ms,
        "/sys/class/block, mountinfo",
    ),
    slow(
        "psi",
        Readers::Gate(Gate::PSICollector),
        |s| s.collectors.psi_ms,
        "cpu, memory and io.pressure",
    ),
    slow(
        "cpi",
        Readers::Gate(Gate::CPICollector),
        |s| s.collectors.cpi_ms,
        "perf events of containers",
    ),
    slow(
        "cold pages",
        Readers::Gate(Gate::ColdPageCollector),
        |_| 5_000,
        "kidled, memory.idle_page_stats",
    ),
    slow(
        "resctrl",
        Readers::Gate(Gate::ResctrlCollector),
        |s| s.collectors.resctrl_ms,
        "mon_data of LSR, LS and BE",
    ),
];

const fn row(
    name: &'static str,
    readers: Readers,
    every_ms: fn(&Settings) -> u64,
    source: &'static str,
) -> Row {
    Row {
        name,
        readers,
        every_ms,
        source,
        slow: false,
    }
}

const fn slow(
    name: &'static str,
    readers: Readers,
    every_ms: fn(&Settings) -> u64,
    source: &'static str,
) -> Row {
    Row {
        slow: true,
        ..row(name, readers, every_ms, source)
    }
}

/// The table as it stands: `needs` and `memory` are what was asked for last, and `trouble` tells
/// what a collector said last when it failed or gave up.
#[must_use]
pub fn shown(
    settings: &Settings,
    needs: Needs,
    memory: Memory,
    trouble: impl Fn(&str) -> Option<(State, String)>,
) -> Vec<health::Collector> {
    let rows = COLLECTORS.iter().map(|row| {
        let (state, why) = match row.readers {
            Readers::Always => (State::Active, String::new()),
            Readers::Strategies(wants) if wants(&needs) => (State::Active, String::new()),
            Readers::Strategies(_) => (State::Idle, "no strategy reads it".to_owned()),
            Readers::Policy(policy) if policy == memory => (State::Active, String::new()),
            Readers::Policy(_) => (State::Idle, "the memory policy is another".to_owned()),
            Readers::Gate(Gate::ResctrlCollector) if !settings.collectors.resctrl => {
                let why = "flag --enable-resctrl-collector is not set".to_owned();
                (State::Off, why)
            }
            Readers::Gate(gate) if settings.gates.is_on(gate) => (State::Active, String::new()),
            Readers::Gate(gate) => (State::Off, format!("gate {} is closed", gate.name())),
        };
        let trouble = trouble(row.name).filter(|_| state == State::Active);
        let (state, why) = trouble.unwrap_or((state, why));
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
            let trouble = |name: &str| {
                let bad = name == "psi" || name == "storage";
                bad.then(|| (State::Failing, "x".to_owned()))
            };
            let rows = shown(&settings, needs, memory, trouble);
            move |name: &str| rows.iter().find(|row| row.name == name).unwrap().clone()
        };
        let quiet = state(Needs::default(), Memory::default());
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
        let busy = state(needs, Memory::WithPageCache);
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
