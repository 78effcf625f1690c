//! Arbitration: selects the waiting jobs that may start.
//!
//! Source: Koordinator `pkg/descheduler/controllers/migration/arbitrator`.

use super::filter::{MigrationCounts, PodsByOwner, Rules, WORKLOAD_UNKNOWN};
use super::{JobStage, has_passed, stage};
use crate::rules::{self, SkipReason};
use crate::state::{Owner, PodInfo, Snapshot};
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobPhase};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::sync::Arc;

/// A job that waits for arbitration, and its pod.
#[derive(Debug, Clone)]
pub struct PendingJob {
    /// The job.
    pub job: Arc<PodMigrationJob>,
    /// The pod; `None` if it does not exist.
    pub pod: Option<Arc<PodInfo>>,
}

/// Result of the arbitration for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The job may start.
    Pass,
    /// The snapshot does not have its pod.
    Missing,
    /// The job keeps waiting.
    Wait(SkipReason),
    /// The job can never start and fails.
    Fail(SkipReason),
}

/// Arbitrates the waiting jobs of `snapshot` in their order. Each is judged by the rules that `rules` returns
/// for it. Jobs that pass count against the limits for later jobs.
#[must_use]
pub fn arbitrate<'a>(
    snapshot: &Snapshot,
    rules: impl Fn(&PodMigrationJob) -> &'a Rules,
) -> Vec<(Arc<PodMigrationJob>, Verdict)> {
    let jobs = snapshot.jobs.iter();
    let waits = |job: &&Arc<PodMigrationJob>| {
        stage(job) == JobStage::Waiting && job.metadata.deletion_timestamp.is_none()
    };
    let waiting: Vec<_> = jobs
        .filter(waits)
        .map(|job| PendingJob {
            pod: pod_of(snapshot, job),
            job: job.clone(),
        })
        .collect();
    if waiting.is_empty() {
        return Vec::new();
    }
    let owned = PodsByOwner::new(snapshot);
    let mut migration_counts = MigrationCounts::new(snapshot, |job| stage(job) == JobStage::Begun);
    let judge = |waiting: PendingJob| {
        let verdict = match &waiting.pod {
            // Without the pod it is unknown which limits the job counts against.
            None => Verdict::Missing,
            Some(pod) => {
                let rules = rules(&waiting.job);
                let may = rules.has_no_job(&migration_counts, pod);
                let may = may.and_then(|()| {
                    rules.is_within_limits(snapshot, &owned, &migration_counts, pod)
                });
                match (rules.is_movable(snapshot, pod), may) {
                    // A lookup that failed now may succeed later.
                    (Err(reason), _) if reason.rule == WORKLOAD_UNKNOWN => Verdict::Wait(reason),
                    (Err(reason), _) => Verdict::Fail(reason),
                    (Ok(()), Err(reason)) => Verdict::Wait(reason),
                    (Ok(()), Ok(())) => {
                        migration_counts.count(pod);
                        Verdict::Pass
                    }
                }
            }
        };
        (waiting.job, verdict)
    };
    sorted(snapshot, waiting).into_iter().map(judge).collect()
}

fn pod_of(snapshot: &Snapshot, job: &PodMigrationJob) -> Option<Arc<PodInfo>> {
    let named = &job.spec.pod_ref;
    let pod = snapshot.pod(named.namespace.as_deref()?, named.name.as_deref()?)?;
    let uid = named.uid.as_deref().filter(|uid| !uid.is_empty());
    uid.is_none_or(|uid| *uid == *pod.uid).then(|| pod.clone())
}

/// Returns the jobs in arbitration order: first those of batch Jobs with the most migrating pods, those of
/// one batch Job together, then by importance of their pods, then the newest.
#[must_use]
pub fn sorted(snapshot: &Snapshot, mut jobs: Vec<PendingJob>) -> Vec<PendingJob> {
    by_creation(&mut jobs);
    by_pod(&mut jobs, rules::sort);
    by_controller(&mut jobs);
    by_migrating(&mut jobs, snapshot);
    jobs
}

/// Sorts by creation time in seconds, newest first.
pub fn by_creation(jobs: &mut [PendingJob]) {
    let created = |one: &PendingJob| {
        let created = one.job.metadata.creation_timestamp.as_ref();
        Reverse(created.map(|created| created.0.as_second()))
    };
    jobs.sort_by_key(created);
}

/// Sorts jobs as `sort` sorts their pods; those without a pod come first.
pub fn by_pod(jobs: &mut [PendingJob], sort: impl Fn(&mut [Arc<PodInfo>])) {
    let mut pods: Vec<_> = jobs
        .iter()
        .filter_map(|pending| pending.pod.clone())
        .collect();
    sort(&mut pods);
    let ranks = pods.iter().enumerate();
    let ranks: FxHashMap<&str, usize> = ranks.map(|(at, pod)| (&*pod.uid, at + 1)).collect();
    jobs.sort_by_key(|pending| {
        let rank = pending.pod.as_ref().and_then(|pod| ranks.get(&*pod.uid));
        rank.copied().unwrap_or(0)
    });
}

/// Groups the jobs of each batch Job at the position of its first job.
pub fn by_controller(jobs: &mut [PendingJob]) {
    let mut first = FxHashMap::default();
    let places: Vec<usize> = jobs
        .iter()
        .enumerate()
        .map(|(at, one)| match batch_job(one) {
            Some(owner) => *first.entry(owner.uid.clone()).or_insert(at),
            None => at,
        })
        .collect();
    let mut placed: Vec<_> = places.into_iter().zip(jobs.iter().cloned()).collect();
    placed.sort_by_key(|(place, _)| *place);
    for (old, (_, new)) in jobs.iter_mut().zip(placed) {
        *old = new;
    }
}

/// Moves the jobs of batch Jobs with the most migrating pods to the front.
pub fn by_migrating(jobs: &mut [PendingJob], snapshot: &Snapshot) {
    let mut counts = FxHashMap::default();
    for owner in jobs.iter().filter_map(batch_job) {
        counts
            .entry(owner.uid.clone())
            .or_insert_with(|| migrating(snapshot, &owner.uid));
    }
    jobs.sort_by_key(|pending| {
        let count = batch_job(pending).and_then(|owner| counts.get(&owner.uid));
        Reverse(count.copied().unwrap_or(0))
    });
}

/// Returns the number of running jobs that move pods of `owner`.
#[must_use]
pub fn migrating(snapshot: &Snapshot, owner: &str) -> usize {
    let owned = |pod: &&Arc<PodInfo>| pod.owners.iter().any(|reference| &*reference.uid == owner);
    let pods: Vec<_> = snapshot.pods.iter().filter(owned).collect();
    let moves = |job: &&Arc<PodMigrationJob>| {
        let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
        let runs = has_passed(job) || phase == Some(&PodMigrationJobPhase::Running);
        let uid = job.spec.pod_ref.uid.as_deref();
        runs && pods.iter().any(|pod| uid == Some(&*pod.uid))
    };
    snapshot.jobs.iter().filter(moves).count()
}

fn batch_job(one: &PendingJob) -> Option<&Owner> {
    let owner = one.pod.as_ref()?.controller()?;
    (&*owner.kind == "Job").then_some(owner)
}
