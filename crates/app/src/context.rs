//! Context that a component gets at start.

use crate::Clock;
use tokio_util::sync::CancellationToken;

/// The process environment of one component. Clones share the content.
#[derive(Debug, Clone)]
pub struct Context {
    /// Wall-clock time; never read the system clock directly.
    pub clock: Clock,
    /// Cancelled when the process must stop. A component returns soon after.
    pub shutdown: CancellationToken,
    /// Registry of the component's metrics.
    pub metrics: prometheus::Registry,
}

impl Context {
    /// Creates a context on the system clock with an empty metrics registry.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// Creates a context on `clock` with an empty metrics registry.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self {
            clock,
            shutdown: CancellationToken::new(),
            metrics: prometheus::Registry::new(),
        }
    }
}

impl Default for Context {
    fn default() -> Self {
        Self::new()
    }
}
