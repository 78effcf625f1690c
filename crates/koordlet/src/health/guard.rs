//! What the pressure guard shows of itself.

use super::Lack;
use serde::{Deserialize, Serialize};

/// The pressure guard.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Guard {
    /// What batch work started with: `free` or `threshold`, and why.
    pub start: String,
    /// The signals that this node has.
    pub signals: Vec<String>,
    /// The levers that this node has, the cheapest first.
    pub levers: Vec<String>,
    /// Those that it lacks, and why.
    pub absent: Vec<Lack>,
    /// The cap on the node's CPU for everything together, in percent; none when missing.
    pub cap_percent: Option<i64>,
    /// True if batch groups have the idle policy.
    pub idle: bool,
    /// True if pages of batch pods are reclaimed.
    pub reclaim: bool,
    /// The limit of batch work's memory bandwidth, in percent; none when missing.
    pub bandwidth_percent: Option<i64>,
    /// The CPUs left to batch work, when it keeps off some.
    pub batch_cpus: Option<String>,
    /// Batch work's time so far, and how much of it was pauses, in seconds.
    pub batch_seconds: u64,
    /// Pauses, in seconds.
    pub paused_seconds: u64,
    /// What is left for experiments that cost batch work, in seconds; negative in debt.
    pub budget_seconds: f64,
    /// Services, in the order in which they were first seen.
    pub services: Vec<GuardService>,
}

/// A service as the guard sees it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuardService {
    /// `namespace/name` of its pod.
    pub pod: String,
    /// How much its alarm counts, 0–1.
    pub vote: f64,
    /// The verdict: no vote, unknown, calm, uneasy, waits, tested, protected or muted.
    pub verdict: String,
    /// The signal that is farthest off; empty when there is none.
    pub signal: String,
    /// Its reading.
    pub value: f64,
    /// What is expected at the service's load.
    pub expected: f64,
    /// How far above that it must be to count.
    pub margin: f64,
    /// True if the expectation was learned without batch work.
    pub learned: bool,
    /// Levers held for it.
    pub held: Vec<GuardHeld>,
    /// How long its alarm is muted, in seconds.
    pub muted_seconds: Option<u64>,
    /// The last experiment for it.
    pub last: Option<GuardExperiment>,
}

/// A lever that is held for a service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuardHeld {
    /// The lever.
    pub lever: String,
    /// Its level in percent: 0 is fully on, 100 let go.
    pub level: i64,
    /// The level that hurt.
    pub hurt_at: Option<i64>,
    /// True if harm came back when it was let go.
    pub confirmed: bool,
    /// Seconds of batch work until more is tried.
    pub tries_in_seconds: u64,
}

/// An experiment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuardExperiment {
    /// The lever.
    pub lever: String,
    /// The signal.
    pub signal: String,
    /// How far it was above what was expected before.
    pub before: f64,
    /// And after.
    pub after: f64,
    /// True if that is a help.
    pub helped: bool,
    /// How long ago it ended, in seconds.
    pub ago_seconds: u64,
}
