//! State of collectors, strategies and the pressure guard for the status page.

mod guard;

pub use guard::{Guard, GuardExperiment, GuardHeld, GuardService};

use serde::{Deserialize, Serialize};

/// State of a collector or a strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Works.
    Active,
    /// Enabled, without anything to do.
    #[default]
    Idle,
    /// Switched off.
    Off,
    /// Unsupported by this kernel or this build.
    Unavailable,
    /// Enabled, but failing.
    Failing,
}

/// A collector.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Collector {
    /// Name.
    pub name: String,
    /// State of the collector.
    pub state: State,
    /// Milliseconds between two samples.
    pub every_ms: u64,
    /// Kernel files that the collector reads, or the device it queries.
    pub source: String,
    /// Reason why the collector is not active, or its last error.
    pub why: String,
}

/// A mechanism that this kernel does not offer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MissingFeature {
    /// The mechanism.
    pub mechanism: String,
    /// Features that do not work without the mechanism, or its replacement.
    pub consequence: String,
}
