//! Signals measured of a service, and levers that restrict batch work.

use std::fmt;

/// Measure of the disturbance of a service; higher is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// PSI `some` of CPU: share of time in which a task waited for a CPU, 0–1.
    CpuStall,
    /// Largest share of time in which a task waited for a CPU within a step of the fast lane, 0–1: short waits
    /// that the average of [`Signal::CpuStall`] hides.
    CpuPeak,
    /// Run-queue delay / (delay + run time) of the service's threads, 0–1.
    RunQueue,
    /// PSI `some` of memory, 0–1.
    MemoryStall,
    /// PSI `some` of IO, 0–1.
    IoStall,
    /// Cycles per instruction.
    Cpi,
    /// CPU time per unit of work, in any unit of work.
    CpuPerWork,
}

/// Distance above its expectation at which a signal counts as high.
#[derive(Debug, Clone, Copy)]
pub(super) struct Margin {
    /// Minimum distance.
    pub(super) floor: f64,
    /// Minimum distance as a share of the expectation.
    pub(super) factor: f64,
    /// Expectation for a service that was never observed without batch work; `None` if there is none.
    pub(super) prior: Option<f64>,
}

impl Signal {
    /// All signals.
    pub const ALL: [Self; 7] = [
        Self::CpuStall,
        Self::CpuPeak,
        Self::RunQueue,
        Self::MemoryStall,
        Self::IoStall,
        Self::Cpi,
        Self::CpuPerWork,
    ];

    pub(super) fn margin(self) -> Margin {
        let (floor, factor, prior) = match self {
            Self::CpuStall | Self::RunQueue => (0.025, 0.5, Some(0.04)),
            // The maximum of ten values is noisy; without a baseline it is meaningless.
            Self::CpuPeak => (0.10, 1.0, None),
            Self::MemoryStall | Self::IoStall => (0.05, 1.0, Some(0.05)),
            // A service that shares a CPU starts with cold caches: nginx next to ffmpeg takes 1.2 to 1.9
            // times the CPU time per packet that it takes alone, and its p99 is no worse. Less than twice as
            // much is the price of sharing, for which no lever may take CPU time from batch work.
            Self::Cpi | Self::CpuPerWork => (0.0, 1.0, None),
        };
        Margin {
            floor,
            factor,
            prior,
        }
    }

    /// Returns true if the signal is a share of time, 0–1.
    #[must_use]
    pub fn is_share(self) -> bool {
        !matches!(self, Self::Cpi | Self::CpuPerWork)
    }

    /// Returns true if readings are rare and cover the seconds before them: those of performance counters.
    #[must_use]
    pub fn is_rare(self) -> bool {
        self == Self::Cpi
    }

    /// Returns true if the signal grows when a neighbor uses memory bandwidth or shared cache. A task that
    /// waits for memory counts as running, so no stall does.
    #[must_use]
    pub fn sees_bandwidth(self) -> bool {
        matches!(self, Self::Cpi | Self::CpuPerWork)
    }

    /// Returns true if the signal includes time in which the service was throttled by its own CPU limit.
    pub(super) fn counts_throttling(self) -> bool {
        matches!(self, Self::CpuStall | Self::CpuPeak)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CpuStall => "CPU stall",
            Self::CpuPeak => "CPU stall peak",
            Self::RunQueue => "run-queue delay",
            Self::MemoryStall => "memory stall",
            Self::IoStall => "IO stall",
            Self::Cpi => "CPI",
            Self::CpuPerWork => "CPU per unit of work",
        })
    }
}

/// Readings of a service in one interval; a reading that is not available is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Readings([Option<f64>; Signal::ALL.len()]);

impl Readings {
    /// Sets the reading of `signal`. A value that is negative or not finite counts as missing.
    #[must_use]
    pub fn with(mut self, signal: Signal, value: Option<f64>) -> Self {
        let value = value.filter(|value| value.is_finite() && *value >= 0.0);
        let value = value.map(|value| match signal.is_share() {
            true => value.min(1.0),
            false => value.min(1e12),
        });
        self.0[signal as usize] = value;
        self
    }

    /// Returns the reading of `signal`.
    #[must_use]
    pub fn get(&self, signal: Signal) -> Option<f64> {
        self.0[signal as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Signal, f64)> {
        let each = Signal::ALL.into_iter().zip(self.0);
        each.filter_map(|(signal, value)| Some((signal, value?)))
    }
}

/// Means to restrict batch work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lever {
    /// The idle scheduling policy for batch cgroups. It costs batch work next to nothing.
    Idle,
    /// Reclaims pages of batch cgroups.
    Reclaim,
    /// Limit of the memory bandwidth of batch work, in percent.
    Bandwidth,
    /// Keeps batch work off the CPUs, cores and caches of the affected service.
    Partition,
    /// Cap of the node's total CPU usage, in percent.
    Quota,
}

impl Lever {
    /// All levers, that with the cheapest trial for batch work first: idle costs nothing, a partition costs
    /// the CPUs it removes, and the trial of the cap is a stop. A held cap may well cost less than a
    /// partition.
    pub const ALL: [Self; 5] = [
        Self::Idle,
        Self::Reclaim,
        Self::Bandwidth,
        Self::Partition,
        Self::Quota,
    ];

    /// Returns true if the lever can affect `signal`.
    #[must_use]
    pub fn is_for(self, signal: Signal) -> bool {
        match self {
            Self::Idle => signal != Signal::MemoryStall,
            Self::Reclaim => signal == Signal::MemoryStall,
            Self::Bandwidth => signal.sees_bandwidth(),
            Self::Partition => !matches!(signal, Signal::MemoryStall | Signal::IoStall),
            Self::Quota => true,
        }
    }

    /// Returns true if the lever costs batch work CPU time.
    #[must_use]
    pub fn is_costly(self) -> bool {
        self != Self::Idle
    }

    /// Returns true if the lever has levels between on and off.
    #[must_use]
    pub fn is_graded(self) -> bool {
        matches!(self, Self::Bandwidth | Self::Quota)
    }

    /// Returns the strongest level for a service with this vote, in percent: half a vote allows half of the
    /// range.
    pub(super) fn floor(self, vote: f64) -> i64 {
        let lowest = match self {
            Self::Bandwidth => 10.0,
            _ => 0.0,
        };
        (100.0 - (100.0 - lowest) * vote.clamp(0.0, 1.0)) as i64
    }
}

impl fmt::Display for Lever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "cpu.idle",
            Self::Reclaim => "memory reclaim",
            Self::Bandwidth => "memory bandwidth",
            Self::Partition => "CPU partition",
            Self::Quota => "CPU cap",
        })
    }
}
