//! The one source of wall-clock time.
//!
//! A [`Clock`] follows tokio's time, so a test that pauses tokio time
//! (`#[tokio::test(start_paused = true)]`) also controls every timestamp the components write.

use jiff::Timestamp;
use std::time::Duration;

/// Returns the time since the epoch, zero before it.
#[must_use]
pub fn since_epoch(time: Timestamp) -> Duration {
    Duration::try_from(time.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default()
}

/// A cheap handle to wall-clock time. Clones share the source.
#[derive(Debug, Clone)]
pub struct Clock {
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    System,
    Tokio {
        base: Timestamp,
        origin: tokio::time::Instant,
    },
}

impl Clock {
    /// Returns the machine's real-time clock.
    #[must_use]
    pub fn system() -> Self {
        Self {
            source: Source::System,
        }
    }

    /// Returns a clock that reads `base` now and advances with tokio's (pausable) time. Must be called inside
    /// a tokio runtime.
    #[must_use]
    pub fn following_tokio(base: Timestamp) -> Self {
        Self {
            source: Source::Tokio {
                base,
                origin: tokio::time::Instant::now(),
            },
        }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.source {
            Source::System => Timestamp::now(),
            Source::Tokio { base, origin } => {
                let elapsed = jiff::SignedDuration::try_from(origin.elapsed())
                    .unwrap_or(jiff::SignedDuration::MAX);
                base.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
            }
        }
    }
}
