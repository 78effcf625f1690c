//! All PodMigrationJobs, those included that this process has written and not seen again yet.

use super::kept::Kept;
use super::mirror::Mirror;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::scheduling::PodMigrationJob;
use koord_kube::{ObjectKey, Unread};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// So long a job that was written is believed to exist without having been seen.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Jobs {
    mirror: Mirror<Kept<PodMigrationJob>>,
    /// By name: what is newer than the mirror.
    newer: Arc<Newer>,
}

/// What answers of the API server said.
#[derive(Debug, Default)]
pub(super) struct Newer(Mutex<FxHashMap<String, (Instant, Arc<PodMigrationJob>)>>);

/// Versions of one kind can be compared, as of Kubernetes 1.35.
fn version(job: &PodMigrationJob) -> u64 {
    let version = job.metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

impl Newer {
    /// `job` is as the API server says that it is.
    pub(super) fn learn(&self, job: &PodMigrationJob) {
        let Some(name) = job.metadata.name.clone() else {
            return;
        };
        let mut all = self.0.lock();
        let known = all.get(&name).map_or(0, |(_, known)| version(known));
        if version(job) > known {
            all.insert(name, (Instant::now(), Arc::new(job.clone())));
        }
    }

    /// The job with this `meta` is gone.
    pub(super) fn forget(&self, meta: &ObjectMeta) {
        let mut all = self.0.lock();
        let name = meta.name.as_deref().unwrap_or_default();
        let same = |(_, known): &(Instant, Arc<PodMigrationJob>)| known.metadata.uid == meta.uid;
        if all.get(name).is_some_and(same) {
            all.remove(name);
        }
    }
}

impl Jobs {
    pub(super) fn new(mirror: Mirror<Kept<PodMigrationJob>>, newer: Arc<Newer>) -> Self {
        Self { mirror, newer }
    }

    pub(super) async fn settled(&self) {
        self.mirror.settled().await;
    }

    pub(super) fn newer(&self) -> &Newer {
        &self.newer
    }

    /// Those that cannot be read.
    pub(super) fn unread(&self) -> Vec<Arc<Unread>> {
        let all = self.mirror.store.list().into_iter();
        all.filter_map(|kept| kept.unread().cloned()).collect()
    }

    /// The one of this name, as the mirror has it.
    fn seen(&self, name: &str) -> Option<Arc<PodMigrationJob>> {
        let kept = self.mirror.store.get(&ObjectKey::new("", name))?;
        kept.object().cloned()
    }

    /// All of them that can be read, by name.
    pub(super) fn all(&self) -> Vec<Arc<PodMigrationJob>> {
        let jobs = self.mirror.store.list().into_iter();
        let mut jobs: Vec<_> = jobs.filter_map(|kept| kept.object().cloned()).collect();
        let mut newer = self.newer.0.lock();
        newer.retain(|name, (since, job)| match self.seen(name) {
            Some(seen) => version(&seen) < version(job),
            None => since.elapsed() < PATIENCE,
        });
        if !newer.is_empty() {
            let seen = |job: &Arc<PodMigrationJob>| {
                let name = job.metadata.name.as_deref().unwrap_or_default();
                !newer.contains_key(name)
            };
            jobs.retain(seen);
            jobs.extend(newer.values().map(|(_, job)| job.clone()));
        }
        drop(newer);
        jobs.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        jobs
    }

    /// The one of this name.
    pub(super) fn get(&self, name: &str) -> Option<Arc<PodMigrationJob>> {
        let seen = self.seen(name);
        let newer = self.newer.0.lock().get(name).map(|(_, job)| job.clone());
        [seen, newer]
            .into_iter()
            .flatten()
            .max_by_key(|job| version(job))
    }
}
