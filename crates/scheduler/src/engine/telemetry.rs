//! What the engine reports of its own work.

use super::explain::Decisions;
use super::measure::Meter;
use super::output::Observer;

/// Measurements, the observer of cycles, and the latest decisions.
///
/// Invariant: nothing in it changes a decision.
pub(super) struct Telemetry {
    pub(super) meter: Meter,
    pub(super) observer: Option<Observer>,
    pub(super) decisions: Decisions,
}

impl Telemetry {
    /// Returns telemetry for so many profiles and plugins.
    pub(super) fn new(profiles: usize, plugins: usize) -> Self {
        Self {
            meter: Meter::new(profiles, plugins),
            observer: None,
            decisions: Decisions::default(),
        }
    }
}
