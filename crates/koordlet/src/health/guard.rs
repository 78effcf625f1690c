//! Status of the pressure guard.

use super::MissingFeature;
use serde::{Deserialize, Serialize};

/// Status of the pressure guard.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Guard {
    /// Start mode of batch work, `free` or `threshold`, and the reason.
    pub start: String,
    /// The signals that this node has.
    pub signals: Vec<String>,
    /// The levers that this node has, the cheapest first.
    pub levers: Vec<String>,
    /// Levers that this node lacks, and why.
    pub absent: Vec<MissingFeature>,
    /// Cap on the CPU usage of the whole node, in percent; `None` without a cap.
    pub cap_percent: Option<i64>,
    /// True if batch cgroups have the idle policy.
    pub idle: bool,
    /// True if pages of batch pods are reclaimed.
    pub reclaim: bool,
    /// Limit of batch work's memory bandwidth, in percent; `None` without a limit.
    pub bandwidth_percent: Option<i64>,
    /// CPUs left to batch work; `None` if it may use all.
    pub batch_cpus: Option<String>,
    /// Total run time of batch work, including pauses, in seconds.
    pub batch_seconds: u64,
    /// Share of that time that was pauses, in seconds.
    pub paused_seconds: u64,
    /// Remaining budget of batch work for experiments, in seconds; negative when overdrawn.
    pub budget_seconds: f64,
    /// Services, in the order in which they were first seen.
    pub services: Vec<GuardService>,
}

/// State of a service in the guard.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuardService {
    /// `namespace/name` of its pod.
    pub pod: String,
    /// Weight of the service's alarm, 0–1.
    pub vote: f64,
    /// Verdict: no vote, unknown, calm, uneasy, waits, tested, protected or muted.
    pub verdict: String,
    /// Signal that deviates most; empty when none does.
    pub signal: String,
    /// Reading of that signal.
    pub value: f64,
    /// Expected reading at the service's load.
    pub expected: f64,
    /// Deviation above the expectation from which it counts.
    pub margin: f64,
    /// True if the expectation was learned without batch work.
    pub learned: bool,
    /// Levers held for it.
    pub held: Vec<GuardHeld>,
    /// Remaining time for which the service's alarm is muted, in seconds.
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
    /// Level in percent: 0 is fully applied, 100 released.
    pub level: i64,
    /// Level at which the service suffered.
    pub hurt_at: Option<i64>,
    /// True if the harm came back when the lever was released.
    pub confirmed: bool,
    /// Seconds of batch run time until the next attempt to release the lever further.
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
    /// Deviation above the expectation before the experiment.
    pub before: f64,
    /// Deviation above the expectation after it.
    pub after: f64,
    /// True if the experiment reduced the deviation enough.
    pub helped: bool,
    /// Seconds since the experiment ended.
    pub ago_seconds: u64,
}
