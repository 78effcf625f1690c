//! Migration of pods with PodMigrationJobs.
//!
//! ```text
//! strategy ──► plugin (may the pod be moved now? which job?) ──► job ──► arbitrate (which jobs may start?)
//!                                                                            │
//!              Reservation, eviction, status ◄── step (next write) ◄─────────┘
//! ```
//!
//! Everything here is a pure function; `daemon` reads and writes objects. A job advances by one write at a
//! time, and the next step follows from the objects alone, so that the next leader continues where the last
//! one stopped. The job records that it evicts its pod before it does so; a pod that is gone afterwards is
//! then not taken for lost.

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

/// Annotation of a job: reason of the eviction for users.
pub const EVICT_REASON: &str = "koordinator.sh/evict-reason";
/// Annotation of a job: name of the strategy that requested the eviction.
pub const EVICT_TRIGGER: &str = "koordinator.sh/evict-trigger";
/// Annotation of a job: id of the process that created it.
pub const CREATED_BY: &str = "koordinator.sh/job-created-by";
/// Annotation of a job: profile that created it, whose arguments apply to it.
pub const PROFILE: &str = "descheduler.koordinator.sh/profile";
/// Annotation of a job: UID of its pod's controller, which cannot be looked up any more once the pod is gone.
pub const CONTROLLER: &str = "descheduler.koordinator.sh/controller";
/// Annotation of a job: `true` once it has passed the arbitration.
pub const PASSED: &str = "descheduler.koordinator.sh/passed-arbitration";

/// Progress of a job as far as limits are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStage {
    /// The job has not passed the arbitration.
    Waiting,
    /// The job has passed the arbitration or runs.
    Begun,
    /// The job has ended.
    Ended,
}

/// Returns the stage of `job`. A job without a phase is pending: the API server drops the phase on creation.
#[must_use]
pub fn stage(job: &PodMigrationJob) -> JobStage {
    let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
    match phase {
        None | Some(PodMigrationJobPhase::Pending) if has_passed(job) => JobStage::Begun,
        None | Some(PodMigrationJobPhase::Pending) => JobStage::Waiting,
        Some(PodMigrationJobPhase::Other(phase)) if phase.is_empty() && has_passed(job) => {
            JobStage::Begun
        }
        Some(PodMigrationJobPhase::Other(phase)) if phase.is_empty() => JobStage::Waiting,
        Some(PodMigrationJobPhase::Running) => JobStage::Begun,
        Some(_) => JobStage::Ended,
    }
}

/// Returns true if `job` has passed the arbitration.
#[must_use]
pub fn has_passed(job: &PodMigrationJob) -> bool {
    annotation(job, PASSED) == Some("true")
}

/// Returns the value of an annotation of `job`.
#[must_use]
pub fn annotation<'a>(job: &'a PodMigrationJob, key: &str) -> Option<&'a str> {
    let annotations = job.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

#[cfg(test)]
pub(crate) mod tests;
