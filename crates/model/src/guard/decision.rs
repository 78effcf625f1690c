//! What the guard decides, and what it tells of it.

use super::signal::{Lever, Signal};

/// How the levers shall stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings<K> {
    /// The idle policy for batch groups.
    pub idle: bool,
    /// Pages of batch groups are reclaimed.
    pub reclaim: bool,
    /// The limit of batch work's memory bandwidth, in percent.
    pub bandwidth: Option<i64>,
    /// Batch work keeps off these services' CPUs.
    pub partition: Vec<K>,
    /// Everything together may use this much of the node, in percent.
    pub cap: Option<i64>,
    /// The cap is 0 for this interval only, to see how services fare without batch work.
    pub pause: bool,
}

impl<K> Default for Settings<K> {
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

impl<K> Settings<K> {
    /// Whether something takes CPU time from batch work.
    #[must_use]
    pub fn is_costly(&self) -> bool {
        self.cap.is_some() || !self.partition.is_empty() || self.bandwidth.is_some() || self.reclaim
    }
}

/// Something that is worth telling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<K> {
    /// The service it is about.
    pub key: K,
    /// The signal.
    pub signal: Signal,
    /// The lever.
    pub lever: Lever,
    /// What happened.
    pub kind: Kind,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// An alarm rang: the lever is tried. The reading and what was expected.
    Tried {
        /// The mean of the last readings.
        value: f64,
        /// What was expected.
        expected: f64,
    },
    /// The experiment helped: the lever is held.
    Helped {
        /// The harm before, above what was expected.
        before: f64,
        /// And after.
        after: f64,
    },
    /// It did not: the lever is let go.
    Useless {
        /// The harm before, above what was expected.
        before: f64,
        /// And after.
        after: f64,
    },
    /// The experiment could not be ended: the service or its signal, or batch work, is gone.
    Ended,
    /// Harm came back when the lever was let go: batch work is the cause.
    Confirmed {
        /// The level now, in percent.
        level: i64,
    },
    /// It hurt again at a higher level.
    Hurt {
        /// The level now, in percent.
        level: i64,
    },
    /// Harm did not come back and never had: it was chance.
    Chance,
    /// Harm does not come back any more: the lever is let go.
    Over,
    /// No lever helps: the alarm is muted.
    Muted {
        /// Until when, in milliseconds of the steady clock.
        until_ms: u64,
    },
}

/// The guard's verdict for the next interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision<K> {
    /// How the levers shall stand.
    pub settings: Settings<K>,
    /// What happened in this step.
    pub events: Vec<Event<K>>,
    /// Whether batch work runs, so that finer samples are of use.
    pub watches: bool,
}

impl Kind {
    /// Whether a lever moves with it.
    pub(super) fn moves(self) -> bool {
        !matches!(self, Self::Muted { .. } | Self::Chance | Self::Over)
    }
}
