//! Whether parts of the agent work: what collectors, strategies and the pressure guard show of
//! themselves on the status page.

mod guard;

pub use guard::{Guard, GuardExperiment, GuardHeld, GuardService};

use serde::{Deserialize, Serialize};

/// Whether a collector or a strategy does something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It works.
    Active,
    /// It is on and has nothing to do.
    #[default]
    Idle,
    /// It is switched off.
    Off,
    /// This kernel or this build cannot.
    Unavailable,
    /// It is on and does not work.
    Failing,
}

/// A collector.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Collector {
    /// Its name.
    pub name: String,
    /// Whether it works.
    pub state: State,
    /// Milliseconds between two samples.
    pub every_ms: u64,
    /// The kernel files it reads, or the device it asks.
    pub source: String,
    /// Why it is not active, or what failed last.
    pub why: String,
}

/// A mechanism that this kernel does not offer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lack {
    /// The mechanism.
    pub mechanism: String,
    /// What does not work without it, or what takes its place.
    pub consequence: String,
}
