//! What a job says of its pod.

use crate::migration::{Stage, stage, status, step};
use jiff::Timestamp;
use koord_api::duration::GoDuration;
use koord_api::scheduling::pod_migration_job_conditions as conditions;
use koord_api::scheduling::pod_migration_job_reasons as reasons;
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobCondition, PodMigrationJobPhase};

/// What became of a pod that was to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveOutcome {
    /// Its job has not ended.
    Pending,
    /// It went; of a pod without a job that is believed.
    Moved,
    /// Its job has ended, and it was not evicted.
    Failed,
}

fn eviction(job: &PodMigrationJob) -> Option<&PodMigrationJobCondition> {
    status::condition(job.status.as_ref()?, conditions::EVICTION)
}

/// What became of the pod of `job`, which is `there` or is not.
pub(super) fn from_job(job: &PodMigrationJob, there: bool) -> MoveOutcome {
    if stage(job) != Stage::Ended {
        return MoveOutcome::Pending;
    }
    let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
    if phase == Some(&PodMigrationJobPhase::Succeeded) {
        return MoveOutcome::Moved;
    }
    match eviction(job) {
        Some(one) if one.status == "True" => MoveOutcome::Moved,
        // The job says so before it evicts.
        Some(one) if one.reason == reasons::EVICTING && !there => MoveOutcome::Moved,
        _ => MoveOutcome::Failed,
    }
}

/// When the pod of `job` began to go, if it did.
pub(super) fn evicted_at(job: &PodMigrationJob, now: Timestamp) -> Option<Timestamp> {
    let eviction = eviction(job)?;
    let goes = eviction.status == "True" || eviction.reason == reasons::EVICTING;
    let since = eviction.last_transition_time.as_ref();
    let since = since.filter(|_| goes)?;
    Some(status::bounded(job, since.0, now))
}

/// When `job`, which has failed, did so at the earliest: nothing in it says that exactly.
pub(super) fn failed_at(job: &PodMigrationJob, now: Timestamp) -> Option<Timestamp> {
    let state = job.status.as_ref()?;
    if state.reason == reasons::TIMEOUT {
        // Whoever moves pods for their load says how long that may take.
        let deadline = step::deadline(job, GoDuration::ZERO)?;
        return Some(status::bounded(job, deadline, now));
    }
    let times = state.conditions.iter();
    let times = times.filter_map(|one| one.last_transition_time.as_ref());
    let times = times.map(|time| status::bounded(job, time.0, now));
    times.chain(status::created(job, now)).max()
}

/// Where room for what comes in the place of the pod of `job` is reserved, if it is.
pub(super) fn reserved_node(job: &PodMigrationJob) -> Option<&str> {
    let node = &job.status.as_ref()?.node_name;
    (!node.is_empty()).then_some(node)
}
