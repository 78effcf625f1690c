//! All PodMigrationJobs, including those written by this process that the informer has not delivered yet.

use super::decoded::Decoded;
use super::lister::Lister;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::scheduling::PodMigrationJob;
use koord_kube::{ObjectKey, Unread};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which a written job is assumed to exist before the informer delivers it.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Jobs {
    lister: Lister<Decoded<PodMigrationJob>>,
    /// Jobs by name that are newer than in the informer's store.
    write_cache: Arc<WriteCache>,
}

/// Jobs as returned by the API server on writes and reads of this process.
#[derive(Debug, Default)]
pub(super) struct WriteCache(Mutex<FxHashMap<String, (Instant, Arc<PodMigrationJob>)>>);

/// Parses the resourceVersion. Versions of one kind are comparable as of Kubernetes 1.35.
fn version(job: &PodMigrationJob) -> u64 {
    let version = job.metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

impl WriteCache {
    /// Stores `job`, as returned by the API server, unless a newer version is stored.
    pub(super) fn update(&self, job: &PodMigrationJob) {
        let Some(name) = job.metadata.name.clone() else {
            return;
        };
        let mut all = self.0.lock();
        let cached_version = all
            .get(&name)
            .map_or(0, |(_, cached_version)| version(cached_version));
        if version(job) > cached_version {
            all.insert(name, (Instant::now(), Arc::new(job.clone())));
        }
    }

    /// Removes the deleted job with this `meta`.
    pub(super) fn remove(&self, meta: &ObjectMeta) {
        let mut all = self.0.lock();
        let name = meta.name.as_deref().unwrap_or_default();
        let has_same_uid =
            |(_, job): &(Instant, Arc<PodMigrationJob>)| job.metadata.uid == meta.uid;
        if all.get(name).is_some_and(has_same_uid) {
            all.remove(name);
        }
    }
}

impl Jobs {
    pub(super) fn new(
        lister: Lister<Decoded<PodMigrationJob>>,
        write_cache: Arc<WriteCache>,
    ) -> Self {
        Self {
            lister,
            write_cache,
        }
    }

    pub(super) async fn wait_synced(&self) {
        self.lister.wait_synced().await;
    }

    pub(super) fn write_cache(&self) -> &WriteCache {
        &self.write_cache
    }

    /// Returns the jobs that cannot be decoded.
    pub(super) fn unread(&self) -> Vec<Arc<Unread>> {
        let all = self.lister.store.list().into_iter();
        all.filter_map(|decoded| decoded.unread().cloned())
            .collect()
    }

    /// Returns the job of this name from the informer's store.
    fn cached(&self, name: &str) -> Option<Arc<PodMigrationJob>> {
        let decoded = self.lister.store.get(&ObjectKey::new("", name))?;
        decoded.object().cloned()
    }

    /// Returns all jobs that can be decoded, sorted by name.
    pub(super) fn all(&self) -> Vec<Arc<PodMigrationJob>> {
        let jobs = self.lister.store.list().into_iter();
        let mut jobs: Vec<_> = jobs
            .filter_map(|decoded| decoded.object().cloned())
            .collect();
        let mut write_cache = self.write_cache.0.lock();
        write_cache.retain(|name, (since, job)| match self.cached(name) {
            Some(seen) => version(&seen) < version(job),
            None => since.elapsed() < PATIENCE,
        });
        if !write_cache.is_empty() {
            let is_current = |job: &Arc<PodMigrationJob>| {
                let name = job.metadata.name.as_deref().unwrap_or_default();
                !write_cache.contains_key(name)
            };
            jobs.retain(is_current);
            jobs.extend(write_cache.values().map(|(_, job)| job.clone()));
        }
        drop(write_cache);
        jobs.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        jobs
    }

    /// Returns the newest version of the job of this name.
    pub(super) fn get(&self, name: &str) -> Option<Arc<PodMigrationJob>> {
        let from_informer = self.cached(name);
        let write_cache = self
            .write_cache
            .0
            .lock()
            .get(name)
            .map(|(_, job)| job.clone());
        [from_informer, write_cache]
            .into_iter()
            .flatten()
            .max_by_key(|job| version(job))
    }
}
