//! The time of a tick.

use jiff::Timestamp;

/// The time of a tick.
#[derive(Debug, Clone, Copy)]
pub struct TickTime {
    /// Nanoseconds of a steady clock.
    pub steady_ns: u64,
    /// Wall-clock time.
    pub wall: Timestamp,
}

impl TickTime {
    /// Milliseconds of the steady clock.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.steady_ns / 1_000_000
    }
}
