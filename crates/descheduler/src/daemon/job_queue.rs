//! Queue of the jobs that must be reconciled because a related object changed.

use crate::migration::reservation;
use crate::migration::{JobStage, stage};
use koord_api::scheduling::PodMigrationJob;
use koord_kube::queue::{RateLimit, WorkQueue};
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Forwards object changes to the job queue, if this replica leads; a standby has none.
#[derive(Debug, Default)]
pub(super) struct JobQueueHandle(RwLock<Option<Arc<JobQueue>>>);

impl JobQueueHandle {
    /// Attaches `job_queue`, which receives all changes from now on; `None` detaches it.
    pub(super) fn attach(&self, job_queue: Option<Arc<JobQueue>>) {
        *self.0.write() = job_queue;
    }

    fn with(&self, tell: impl FnOnce(&JobQueue)) {
        if let Some(job_queue) = &*self.0.read() {
            tell(job_queue);
        }
    }

    pub(super) fn pod_changed(&self, namespace: &str, name: &str) {
        self.with(|job_queue| {
            job_queue.enqueue_jobs_of(&JobTarget::Pod(namespace.to_owned(), name.to_owned()))
        });
    }

    pub(super) fn reservation_changed(&self, name: &str) {
        self.with(|job_queue| job_queue.enqueue_jobs_of(&JobTarget::Reservation(name.to_owned())));
    }

    pub(super) fn job_changed(&self, job: &PodMigrationJob) {
        self.with(|job_queue| job_queue.job_changed(job));
    }

    pub(super) fn job_deleted(&self, job: &PodMigrationJob) {
        self.with(|job_queue| job_queue.job_deleted(job));
    }
}

/// A unit of work of the controller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Task {
    /// Reconcile the job of this name.
    Job(String),
    /// Delete the reservation of a deleted job: its name, and its UID if the job recorded it.
    Orphan(String, Option<String>),
}

/// An object that jobs refer to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum JobTarget {
    Pod(String, String),
    Reservation(String),
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(name) => f.write_str(name),
            Self::Orphan(name, _) => write!(f, "reservation {name}"),
        }
    }
}

/// The queue of jobs, and an index of the objects that they refer to.
#[derive(Debug)]
pub(super) struct JobQueue {
    pub(super) queue: WorkQueue<Task>,
    index: Mutex<JobIndex>,
}

#[derive(Debug, Default)]
struct JobIndex {
    jobs: FxHashMap<JobTarget, FxHashSet<String>>,
    targets: FxHashMap<String, Vec<JobTarget>>,
}

impl JobIndex {
    fn set(&mut self, job: &str, targets: Vec<JobTarget>) {
        let old = match targets.is_empty() {
            true => self.targets.remove(job),
            false => self.targets.insert(job.to_owned(), targets.clone()),
        };
        for target in old.into_iter().flatten() {
            if let Some(jobs) = self.jobs.get_mut(&target) {
                jobs.remove(job);
                if jobs.is_empty() {
                    self.jobs.remove(&target);
                }
            }
        }
        for target in targets {
            let jobs = self.jobs.entry(target).or_default();
            jobs.insert(job.to_owned());
        }
    }
}

/// Returns the objects that `job` refers to.
fn targets(job: &PodMigrationJob) -> Vec<JobTarget> {
    if stage(job) == JobStage::Ended {
        return Vec::new();
    }
    let bound = job
        .status
        .as_ref()
        .and_then(|status| status.pod_ref.as_ref());
    let pods = [Some(&job.spec.pod_ref), bound].into_iter().flatten();
    let pods =
        pods.filter_map(|pod| Some(JobTarget::Pod(pod.namespace.clone()?, pod.name.clone()?)));
    let reservation = JobTarget::Reservation(reservation::name(job));
    pods.chain([reservation]).collect()
}

impl JobQueue {
    /// Returns an empty queue. `base` and `max` are the first and the longest backoff of a failing job.
    pub(super) fn new([base, max]: [Duration; 2]) -> Self {
        let limit = RateLimit {
            base,
            max,
            // Jobs do not share a rate limit.
            qps: f64::INFINITY,
            ..RateLimit::default()
        };
        Self {
            queue: WorkQueue::new(limit),
            index: Mutex::default(),
        }
    }

    fn enqueue_jobs_of(&self, target: &JobTarget) {
        let index = self.index.lock();
        for job in index.jobs.get(target).into_iter().flatten() {
            self.queue.add(Task::Job(job.clone()));
        }
    }

    /// Indexes and enqueues the new or changed `job`.
    pub(super) fn job_changed(&self, job: &PodMigrationJob) {
        let Some(name) = &job.metadata.name else {
            return;
        };
        self.index.lock().set(name, targets(job));
        self.queue.add(Task::Job(name.clone()));
    }

    fn job_deleted(&self, job: &PodMigrationJob) {
        let Some(name) = &job.metadata.name else {
            return;
        };
        self.index.lock().set(name, Vec::new());
        let options = job.spec.reservation_options.as_ref();
        if let Some(named) = options.and_then(|options| options.reservation_ref.as_ref())
            && let Some(name) = &named.name
        {
            let uid = named.uid.clone().filter(|uid| !uid.is_empty());
            self.queue.add(Task::Orphan(name.clone(), uid));
        }
    }
}
