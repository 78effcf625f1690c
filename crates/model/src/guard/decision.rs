//! Decisions and events of the guard.

use super::signal::{Lever, Signal};

/// Restrictions of batch work that the guard has chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeverSettings<K> {
    /// Applies the idle scheduling policy (`cpu.idle`) to batch cgroups.
    pub idle: bool,
    /// Reclaims pages of batch cgroups.
    pub reclaim: bool,
    /// Limit of batch work's memory bandwidth, in percent; `None` means no limit.
    pub bandwidth: Option<i64>,
    /// Services whose CPUs batch work must not use.
    pub partition: Vec<K>,
    /// Cap of the node's total CPU usage, in percent; `None` means no cap.
    pub cap: Option<i64>,
    /// True if batch work is paused for this interval only, to observe services without it.
    pub pause: bool,
}

impl<K> Default for LeverSettings<K> {
    fn default() -> Self {
        Self {
            idle: false,
            reclaim: false,
            bandwidth: None,
            partition: Vec::new(),
            cap: None,
            pause: false,
        }
    }
}

impl<K> LeverSettings<K> {
    /// Returns true if a setting takes CPU time from batch work.
    #[must_use]
    pub fn is_costly(&self) -> bool {
        self.cap.is_some() || !self.partition.is_empty() || self.bandwidth.is_some() || self.reclaim
    }
}

/// Event of the guard, for logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<K> {
    /// Key of the service.
    pub key: K,
    /// The signal.
    pub signal: Signal,
    /// The lever.
    pub lever: Lever,
    /// The kind of event.
    pub kind: EventKind,
}

/// The kind of event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EventKind {
    /// An alarm was raised: the lever is tried.
    Tried {
        /// Mean of the last readings.
        value: f64,
        /// Expected value.
        expected: f64,
    },
    /// The experiment helped: the lever is held.
    Helped {
        /// Excess over the expectation before.
        before: f64,
        /// Excess over the expectation after.
        after: f64,
    },
    /// The experiment did not help: the lever is released.
    Useless {
        /// Excess over the expectation before.
        before: f64,
        /// Excess over the expectation after.
        after: f64,
    },
    /// The experiment could not be completed: the service, its signal or batch work is gone.
    Ended,
    /// Harm returned when the lever was released: batch work is the cause.
    Confirmed {
        /// Current level, in percent.
        level: i64,
    },
    /// A higher level harmed again.
    Hurt {
        /// Current level, in percent.
        level: i64,
    },
    /// Harm did not return and never had: the improvement was chance.
    Chance,
    /// Harm does not return any more: the lever is released.
    Over,
    /// No lever helps: the alarm is muted.
    Muted {
        /// End of the muting, in milliseconds of the monotonic clock.
        until_ms: u64,
    },
}

/// Decision of the guard for the next interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision<K> {
    /// State of the levers.
    pub settings: LeverSettings<K>,
    /// Events of this step.
    pub events: Vec<Event<K>>,
    /// True if batch work runs, so that finer samples are useful.
    pub watches: bool,
}

impl EventKind {
    /// Returns true if the event changes a lever.
    pub(super) fn moves(self) -> bool {
        !matches!(self, Self::Muted { .. } | Self::Chance | Self::Over)
    }
}
