//! Outcome of a move, read from its PodMigrationJob.

use crate::migration::{JobStage, stage, status, step};
use jiff::Timestamp;
use koord_api::duration::GoDuration;
use koord_api::scheduling::pod_migration_job_conditions as conditions;
use koord_api::scheduling::pod_migration_job_reasons as reasons;
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobCondition, PodMigrationJobPhase};

/// Outcome of a planned move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveOutcome {
    /// The job has not ended.
    Pending,
    /// The pod was evicted. Assumed for pods that are moved without a job.
    Moved,
    /// The job has ended without evicting the pod.
    Failed,
}

fn eviction(job: &PodMigrationJob) -> Option<&PodMigrationJobCondition> {
    status::condition(job.status.as_ref()?, conditions::EVICTION)
}

/// Returns the outcome of `job`; `on_source` is true if its pod still runs on the source node.
pub(super) fn from_job(job: &PodMigrationJob, on_source: bool) -> MoveOutcome {
    if stage(job) != JobStage::Ended {
        return MoveOutcome::Pending;
    }
    let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
    if phase == Some(&PodMigrationJobPhase::Succeeded) {
        return MoveOutcome::Moved;
    }
    match eviction(job) {
        Some(condition) if condition.status == "True" => MoveOutcome::Moved,
        // The job writes this condition before it evicts the pod.
        Some(condition) if condition.reason == reasons::EVICTING && !on_source => {
            MoveOutcome::Moved
        }
        _ => MoveOutcome::Failed,
    }
}

/// Returns when the eviction of the pod of `job` started; `None` if it did not.
pub(super) fn evicted_at(job: &PodMigrationJob, now: Timestamp) -> Option<Timestamp> {
    let eviction = eviction(job)?;
    let has_begun = eviction.status == "True" || eviction.reason == reasons::EVICTING;
    let since = eviction.last_transition_time.as_ref();
    let since = since.filter(|_| has_begun)?;
    Some(status::bounded(job, since.0, now))
}

/// Returns the earliest possible time at which the failed `job` failed: it does not record the exact time.
pub(super) fn failed_at(job: &PodMigrationJob, now: Timestamp) -> Option<Timestamp> {
    let state = job.status.as_ref()?;
    if state.reason == reasons::TIMEOUT {
        // Strategies that move pods for their load always set a TTL.
        let deadline = step::deadline(job, GoDuration::ZERO)?;
        return Some(status::bounded(job, deadline, now));
    }
    let times = state.conditions.iter();
    let times = times.filter_map(|condition| condition.last_transition_time.as_ref());
    let times = times.map(|time| status::bounded(job, time.0, now));
    times.chain(status::created(job, now)).max()
}

/// Returns the node on which `job` has reserved resources for the replacement of its pod.
pub(super) fn reserved_node(job: &PodMigrationJob) -> Option<&str> {
    let node = &job.status.as_ref()?.node_name;
    (!node.is_empty()).then_some(node)
}
