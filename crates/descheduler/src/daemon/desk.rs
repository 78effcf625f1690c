//! Which jobs have to be looked at, because something that they are about changed.

use crate::migration::reservation;
use crate::migration::{Stage, stage};
use koord_api::scheduling::PodMigrationJob;
use koord_kube::queue::{RateLimit, WorkQueue};
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Passes changes on to who works on jobs, if anybody does: a standby does not.
#[derive(Debug, Default)]
pub(super) struct Hub(RwLock<Option<Arc<Desk>>>);

impl Hub {
    /// From now on `desk` is told; nobody with `None`.
    pub(super) fn tell(&self, desk: Option<Arc<Desk>>) {
        *self.0.write() = desk;
    }

    fn with(&self, tell: impl FnOnce(&Desk)) {
        if let Some(desk) = &*self.0.read() {
            tell(desk);
        }
    }

    pub(super) fn pod(&self, namespace: &str, name: &str) {
        self.with(|desk| desk.touch(&Thing::Pod(namespace.to_owned(), name.to_owned())));
    }

    pub(super) fn reservation(&self, name: &str) {
        self.with(|desk| desk.touch(&Thing::Reservation(name.to_owned())));
    }

    pub(super) fn job(&self, job: &PodMigrationJob) {
        self.with(|desk| desk.job(job));
    }

    pub(super) fn gone(&self, job: &PodMigrationJob) {
        self.with(|desk| desk.gone(job));
    }
}

/// What is to be worked on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Task {
    /// The job of this name.
    Job(String),
    /// The reservation of a job that is gone: its name, and its UID if the job knew it.
    Orphan(String, Option<String>),
}

/// An object that jobs are about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Thing {
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

/// The jobs that have to be looked at, and who they are about.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) queue: WorkQueue<Task>,
    about: Mutex<About>,
}

#[derive(Debug, Default)]
struct About {
    jobs: FxHashMap<Thing, FxHashSet<String>>,
    things: FxHashMap<String, Vec<Thing>>,
}

impl About {
    fn set(&mut self, job: &str, things: Vec<Thing>) {
        let old = match things.is_empty() {
            true => self.things.remove(job),
            false => self.things.insert(job.to_owned(), things.clone()),
        };
        for thing in old.into_iter().flatten() {
            if let Some(jobs) = self.jobs.get_mut(&thing) {
                jobs.remove(job);
                if jobs.is_empty() {
                    self.jobs.remove(&thing);
                }
            }
        }
        for thing in things {
            let jobs = self.jobs.entry(thing).or_default();
            jobs.insert(job.to_owned());
        }
    }
}

/// What `job` is about.
fn things(job: &PodMigrationJob) -> Vec<Thing> {
    if stage(job) == Stage::Ended {
        return Vec::new();
    }
    let bound = job
        .status
        .as_ref()
        .and_then(|status| status.pod_ref.as_ref());
    let pods = [Some(&job.spec.pod_ref), bound].into_iter().flatten();
    let pods = pods.filter_map(|pod| Some(Thing::Pod(pod.namespace.clone()?, pod.name.clone()?)));
    let reservation = Thing::Reservation(reservation::name(job));
    pods.chain([reservation]).collect()
}

impl Desk {
    /// Returns a desk without jobs. A job that fails waits for the first back-off, twice as long each time, at most for
    /// the second.
    pub(super) fn new([base, max]: [Duration; 2]) -> Self {
        let limit = RateLimit {
            base,
            max,
            // Jobs wait for themselves alone.
            qps: f64::INFINITY,
            ..RateLimit::default()
        };
        Self {
            queue: WorkQueue::new(limit),
            about: Mutex::default(),
        }
    }

    fn touch(&self, thing: &Thing) {
        let about = self.about.lock();
        for job in about.jobs.get(thing).into_iter().flatten() {
            self.queue.add(Task::Job(job.clone()));
        }
    }

    /// `job` is as it is.
    pub(super) fn job(&self, job: &PodMigrationJob) {
        let Some(name) = &job.metadata.name else {
            return;
        };
        self.about.lock().set(name, things(job));
        self.queue.add(Task::Job(name.clone()));
    }

    fn gone(&self, job: &PodMigrationJob) {
        let Some(name) = &job.metadata.name else {
            return;
        };
        self.about.lock().set(name, Vec::new());
        let options = job.spec.reservation_options.as_ref();
        if let Some(named) = options.and_then(|options| options.reservation_ref.as_ref())
            && let Some(name) = &named.name
        {
            let uid = named.uid.clone().filter(|uid| !uid.is_empty());
            self.queue.add(Task::Orphan(name.clone(), uid));
        }
    }
}
