//! What is measured of a service, and by which means batch work can be held back.

use std::fmt;

/// A measure of how a service is disturbed. More is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// PSI `some` of CPU: share of time in which a task waited for one, 0–1.
    CpuStall,
    /// The largest such share within a step of the fast lane, 0–1: short waits that an average hides.
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

/// How far above its expectation a signal must be to count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Margin {
    /// At least this much.
    pub(super) floor: f64,
    /// At least this part of what is expected.
    pub(super) factor: f64,
    /// What is expected of a service that was never seen without batch work; `None` where nothing
    /// can be said.
    pub(super) prior: Option<f64>,
}

impl Signal {
    /// All of them.
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
            // The maximum of ten is noisy; without a baseline it says nothing.
            Self::CpuPeak => (0.10, 1.0, None),
            Self::MemoryStall | Self::IoStall => (0.05, 1.0, Some(0.05)),
            // Whoever shares a CPU starts on cold caches: nginx beside ffmpeg takes 1.2 to 1.9 times the
            // CPU time per packet that it takes alone, and its p99 is no worse. Less than twice as much
            // is the price of sharing, for which no lever shall take CPU time from batch work.
            Self::Cpi | Self::CpuPerWork => (0.0, 1.0, None),
        };
        Margin {
            floor,
            factor,
            prior,
        }
    }

    /// Whether it is a share of time, 0–1.
    #[must_use]
    pub fn is_share(self) -> bool {
        !matches!(self, Self::Cpi | Self::CpuPerWork)
    }

    /// Whether a reading comes only now and then and stands for the seconds before it: those of a
    /// window of performance counters.
    #[must_use]
    pub fn is_rare(self) -> bool {
        self == Self::Cpi
    }

    /// Whether it grows when a neighbour takes memory bandwidth or shared cache. What waits for
    /// memory runs, so no stall does.
    #[must_use]
    pub fn sees_bandwidth(self) -> bool {
        matches!(self, Self::Cpi | Self::CpuPerWork)
    }

    /// Whether time in which the service used up its own CPU limit counts into it.
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

/// A service's readings of one interval; what could not be read is missing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Readings([Option<f64>; Signal::ALL.len()]);

impl Readings {
    /// With `value` for `signal`. What is no number or negative is missing.
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

    /// The reading of `signal`.
    #[must_use]
    pub fn get(&self, signal: Signal) -> Option<f64> {
        self.0[signal as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Signal, f64)> {
        let each = Signal::ALL.into_iter().zip(self.0);
        each.filter_map(|(signal, value)| Some((signal, value?)))
    }
}

/// A means to hold batch work back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lever {
    /// The idle scheduling policy for batch groups. Costs batch work next to nothing.
    Idle,
    /// Pages of batch groups are reclaimed.
    Reclaim,
    /// A limit of the memory bandwidth of batch work, in percent.
    Bandwidth,
    /// Batch work keeps off the CPUs, cores and caches of the service that suffers.
    Partition,
    /// A cap: what everything together may use of the node's CPU, in percent.
    Quota,
}

impl Lever {
    /// All of them, the cheapest trial for batch work first: idle costs nothing, a partition what it takes
    /// away, and the cap's trial is a stop. Held, a cap may well cost less than a partition.
    pub const ALL: [Self; 5] = [
        Self::Idle,
        Self::Reclaim,
        Self::Bandwidth,
        Self::Partition,
        Self::Quota,
    ];

    /// Whether it can do anything about `signal`.
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

    /// Whether batch work pays for it with CPU time.
    #[must_use]
    pub fn is_costly(self) -> bool {
        self != Self::Idle
    }

    /// Whether it has levels between on and off.
    #[must_use]
    pub fn is_graded(self) -> bool {
        matches!(self, Self::Bandwidth | Self::Quota)
    }

    /// The strongest level in percent, for a service with this vote: half a vote, half the way.
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
