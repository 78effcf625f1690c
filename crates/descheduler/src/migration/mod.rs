//! Moving pods with PodMigrationJobs.
//!
//! ```text
//! strategy ──► plugin (may it go now? what job?) ──► job ──► arbitrate (which jobs may begin?)
//!                                                               │
//!              Reservation, eviction, status ◄── step (what next?) ◄┘
//! ```
//!
//! Everything here is a function of what it is given; the shell in `daemon` reads and writes. A job is worked on one
//! write at a time, and what comes next is read off the objects alone: whoever leads next goes on where the last leader
//! stopped. Before a pod is evicted the job says so, so that afterwards nobody takes the pod for lost.

pub mod arbitrate;
pub mod args;
pub mod evict;
pub mod filter;
pub mod limits;
pub mod reservation;
mod shared;
pub mod status;
pub mod step;

pub use shared::Migrations;

use koord_api::scheduling::{PodMigrationJob, PodMigrationJobPhase};

/// Annotation of a job: why, for people.
pub const EVICT_REASON: &str = "koordinator.sh/evict-reason";
/// Annotation of a job: which strategy.
pub const EVICT_TRIGGER: &str = "koordinator.sh/evict-trigger";
/// Annotation of a job: the process that made it.
pub const CREATED_BY: &str = "koordinator.sh/job-created-by";
/// Annotation of a job: the profile that made it, whose arguments it is worked on with.
pub const PROFILE: &str = "descheduler.koordinator.sh/profile";
/// Annotation of a job: the UID of its pod's controller, which is not to be found any more once the pod has gone.
pub const CONTROLLER: &str = "descheduler.koordinator.sh/controller";
/// Annotation of a job: `true` when it may begin.
pub const PASSED: &str = "descheduler.koordinator.sh/passed-arbitration";

/// How far a job is, as far as limits are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It has not passed the arbitration.
    Waiting,
    /// It has, or it runs.
    Begun,
    /// It has ended.
    Ended,
}

/// How far `job` is. One without a phase is pending: a phase that it is created with gets lost.
#[must_use]
pub fn stage(job: &PodMigrationJob) -> Stage {
    let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
    match phase {
        None | Some(PodMigrationJobPhase::Pending) if has_passed(job) => Stage::Begun,
        None | Some(PodMigrationJobPhase::Pending) => Stage::Waiting,
        Some(PodMigrationJobPhase::Other(phase)) if phase.is_empty() && has_passed(job) => {
            Stage::Begun
        }
        Some(PodMigrationJobPhase::Other(phase)) if phase.is_empty() => Stage::Waiting,
        Some(PodMigrationJobPhase::Running) => Stage::Begun,
        Some(_) => Stage::Ended,
    }
}

/// Whether `job` has passed the arbitration.
#[must_use]
pub fn has_passed(job: &PodMigrationJob) -> bool {
    annotation(job, PASSED) == Some("true")
}

/// The value of one of `job`'s annotations.
#[must_use]
pub fn annotation<'a>(job: &'a PodMigrationJob, key: &str) -> Option<&'a str> {
    let annotations = job.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

#[cfg(test)]
pub(crate) mod tests;
