//! Telemetry of the engine.

use super::explain::{Decision, Decisions};
use super::measure::{Measures, Meter};
use super::output::Observer;

/// Measurements, the observer of cycles, and the latest decisions.
///
/// Invariant: nothing here changes a decision.
pub struct Telemetry {
    pub(super) meter: Meter,
    pub(super) observer: Option<Observer>,
    pub(super) decisions: Decisions,
    /// Plugin names by instance, as used in measurements.
    names: Vec<&'static str>,
}

impl Telemetry {
    /// Creates telemetry for `profiles` profiles and the instances with these names; the last name is that of
    /// all extenders.
    pub(super) fn new(profiles: usize, names: Vec<&'static str>) -> Self {
        Self {
            meter: Meter::new(profiles, names.len().saturating_sub(1)),
            observer: None,
            decisions: Decisions::default(),
            names,
        }
    }

    /// Calls `observer` at the start of every cycle.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// Returns the measurements since the last call.
    pub fn take_measures(&mut self) -> Measures {
        self.meter.take(&self.names)
    }

    /// Returns true if enough is stored that it should be taken now.
    pub fn should_flush(&mut self) -> bool {
        self.meter.is_full()
    }

    /// Returns the latest decision about the pod with this uid, if it is still recorded.
    #[must_use]
    pub fn decision(&self, uid: &str) -> Option<&Decision> {
        self.decisions.ring.iter().rev().find(|it| *it.uid == *uid)
    }

    /// Iterates over the latest decisions, newest first.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.ring.iter().rev()
    }
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry")
            .field("decisions", &self.decisions)
            .finish_non_exhaustive()
    }
}
