//! What the engine reports of its own work.

use super::explain::{Decision, Decisions};
use super::measure::{Measures, Meter};
use super::output::Observer;

/// Measurements, the observer of cycles, and the latest decisions.
///
/// Invariant: nothing in it changes a decision.
pub struct Telemetry {
    pub(super) meter: Meter,
    pub(super) observer: Option<Observer>,
    pub(super) decisions: Decisions,
    /// The names of plugins by instance, as measurements give them.
    names: Vec<&'static str>,
}

impl Telemetry {
    /// Returns telemetry for so many profiles and the instances with these names, that of all extenders the last.
    pub(super) fn new(profiles: usize, names: Vec<&'static str>) -> Self {
        Self {
            meter: Meter::new(profiles, names.len().saturating_sub(1)),
            observer: None,
            decisions: Decisions::default(),
            names,
        }
    }

    /// Has `observer` told of every cycle before it begins.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// What was measured since the last call.
    pub fn take_measures(&mut self) -> Measures {
        self.meter.take(&self.names)
    }

    /// Whether so much was measured that it should be taken now.
    pub fn has_measured_much(&mut self) -> bool {
        self.meter.is_full()
    }

    /// The latest decision about the pod with this uid, if it is remembered.
    #[must_use]
    pub fn decision(&self, uid: &str) -> Option<&Decision> {
        self.decisions.ring.iter().rev().find(|it| *it.uid == *uid)
    }

    /// The latest decisions, newest first.
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
