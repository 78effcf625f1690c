//! Time of a tick.

use jiff::Timestamp;

/// Time of a tick, by a monotonic and by the wall clock.
#[derive(Debug, Clone, Copy)]
pub struct TickTime {
    /// Nanoseconds of the monotonic clock.
    pub steady_ns: u64,
    /// Wall-clock time.
    pub wall: Timestamp,
}

impl TickTime {
    /// Returns the milliseconds of the monotonic clock.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.steady_ns / 1_000_000
    }
}
