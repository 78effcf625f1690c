//! Reads quotas that are as fresh as is cheaply possible, and writes their usage.

use crate::webhook::quota::check::Refusal;
use crate::webhook::quota::fill;
use crate::webhook::quota::info::version;
use futures::FutureExt;
use futures::future::BoxFuture;
use koord_api::annotations;
use koord_api::quantity::ResourceList;
use koord_api::scheduling::ElasticQuota;
use koord_kube::{Api, Client, ObjectKey, patch};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Read and write access to quotas.
pub(crate) trait QuotaAccess: Send + Sync {
    /// Returns a quota, possibly slightly stale.
    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Arc<ElasticQuota>, Refusal>>;

    /// Sets the usage of a quota to `used`, the total, unless it changed since `quota` was read. After such a
    /// conflict this waits up to `pause` before it fails.
    fn charge<'a>(
        &'a self,
        quota: &'a ElasticQuota,
        used: &'a ResourceList,
        pause: Duration,
    ) -> BoxFuture<'a, Result<(), Refusal>>;
}

/// Lookup of a quota in a cache.
pub(crate) type QuotaLookup = Box<dyn Fn(&ObjectKey) -> Option<Arc<ElasticQuota>> + Send + Sync>;

/// Number of recently read or written quotas that are stored.
const CACHE_SIZE: usize = 100;

/// The quotas of a cluster: from a cache, from recent own writes that are not in the cache yet, or from the
/// API server if both are known to be stale.
pub(crate) struct ClusterQuotas {
    client: Client,
    cached: QuotaLookup,
    fresh_get: bool,
    /// Recent quotas, newest last.
    recent: Mutex<VecDeque<(ObjectKey, CachedQuota)>>,
}

#[derive(Clone)]
enum CachedQuota {
    /// The object as it was last written or read here.
    Object(Arc<ElasticQuota>),
    /// The version up to which cached objects are stale: another client wrote after it.
    StaleUpTo(u64),
}

impl ClusterQuotas {
    /// Creates the access. With `fresh_get`, each conflict is followed by a read from the API server, even if
    /// the cache has a newer quota.
    pub(crate) fn new(client: Client, cached: QuotaLookup, fresh_get: bool) -> Self {
        Self {
            client,
            cached,
            fresh_get,
            recent: Mutex::default(),
        }
    }

    fn api(&self, namespace: &str) -> Api<ElasticQuota> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn store(&self, key: ObjectKey, what: Option<CachedQuota>) {
        let mut all = self.recent.lock();
        all.retain(|(other, _)| *other != key);
        if let Some(what) = what {
            all.push_back((key, what));
        }
        if all.len() > CACHE_SIZE {
            all.pop_front();
        }
    }

    fn lookup(&self, key: &ObjectKey) -> Option<CachedQuota> {
        let all = self.recent.lock();
        let entry = all.iter().find(|(other, _)| other == key);
        entry.map(|(_, what)| what.clone())
    }

    /// Reads a quota from the API server and caches it.
    async fn read(&self, key: &ObjectKey) -> Result<Arc<ElasticQuota>, Refusal> {
        match self.api(&key.namespace).get(&key.name).await {
            Ok(quota) => {
                let quota = Arc::new(quota);
                self.store(key.clone(), Some(CachedQuota::Object(quota.clone())));
                Ok(quota)
            }
            Err(error) => Err(api_refusal(key, &error)),
        }
    }
}

/// Returns the API server's error about a quota, in its own words.
fn api_refusal(key: &ObjectKey, error: &koord_kube::Error) -> Refusal {
    match error {
        koord_kube::Error::Api(status) => {
            Refusal(format!("elastic quota {key}: {}", status.message))
        }
        other => Refusal(format!("elastic quota {key}: {other}")),
    }
}

impl QuotaAccess for ClusterQuotas {
    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Arc<ElasticQuota>, Refusal>> {
        async move {
            let cached = (self.cached)(key);
            let cached_version = cached.as_ref().map_or(0, |quota| version(quota));
            match (self.lookup(key), cached) {
                (None, Some(cached)) => Ok(cached),
                (Some(CachedQuota::Object(own)), Some(cached))
                    if version(&own) <= cached_version =>
                {
                    self.store(key.clone(), None);
                    Ok(cached)
                }
                (Some(CachedQuota::Object(own)), Some(_)) => Ok(own),
                (Some(CachedQuota::StaleUpTo(stale)), Some(cached)) if stale < cached_version => {
                    self.store(key.clone(), None);
                    Ok(cached)
                }
                // The stale version would conflict again. A quota that is not cached may be deleted or not
                // observed yet.
                _ => self.read(key).await,
            }
        }
        .boxed()
    }

    fn charge<'a>(
        &'a self,
        quota: &'a ElasticQuota,
        used: &'a ResourceList,
        pause: Duration,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        async move {
            let key = ObjectKey::from_object(quota);
            // Only this annotation is owned here; the version makes the write fail if anything changed.
            let change = json!({"metadata": {
                "resourceVersion": quota.metadata.resource_version,
                "uid": quota.metadata.uid,
                "annotations": {annotations::QUOTA_CHILD_REQUEST: fill::encode_list(used)},
            }});
            let written = patch::merge(&self.api(&key.namespace), &key.name, &change).await;
            let error = match written {
                Ok(written) => {
                    self.store(key, Some(CachedQuota::Object(Arc::new(written))));
                    return Ok(());
                }
                Err(error) => error,
            };
            if patch::is_conflict(&error) {
                if !pause.is_zero() {
                    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                }
                let stale = CachedQuota::StaleUpTo(version(quota));
                self.store(key.clone(), Some(stale));
                if self.fresh_get {
                    // The conflict is reported, whatever the result of this read.
                    let _ = self.read(&key).await;
                }
            }
            Err(api_refusal(&key, &error))
        }
        .boxed()
    }
}
