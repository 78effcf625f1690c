//! Reading quotas as new as can be had cheaply, and writing what is used of them.

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

/// How quotas are read and written.
pub(crate) trait QuotaAccess: Send + Sync {
    /// A quota as it is, or was a moment ago.
    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Arc<ElasticQuota>, Refusal>>;

    /// Writes what is used of a quota, unless it is not `quota` any more. Then, this waits up to
    /// `pause` before it fails.
    fn charge<'a>(
        &'a self,
        quota: &'a ElasticQuota,
        used: &'a ResourceList,
        pause: Duration,
    ) -> BoxFuture<'a, Result<(), Refusal>>;
}

/// Where a cache of quotas is looked into.
pub(crate) type QuotaLookup = Box<dyn Fn(&ObjectKey) -> Option<Arc<ElasticQuota>> + Send + Sync>;

/// How many quotas are remembered.
const CACHE_SIZE: usize = 100;

/// The quotas of a cluster: a cache, what was written here and is not in the cache yet, and the API
/// server where both are known to be too old.
pub(crate) struct ClusterQuotas {
    client: Client,
    cached: QuotaLookup,
    fresh_get: bool,
    /// Newest last.
    recent: Mutex<VecDeque<(ObjectKey, CachedQuota)>>,
}

#[derive(Clone)]
enum CachedQuota {
    /// What was written or read here.
    Object(Arc<ElasticQuota>),
    /// Somebody else wrote after this version.
    StaleUpTo(u64),
}

impl ClusterQuotas {
    /// With `fresh_get` a conflict is followed by a read from the API server, whatever the cache has.
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

/// What the API server said of a quota, in its words.
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
                // The same version again would meet the same conflict. What the cache does not have
                // may be gone, or not seen yet.
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
            let key = ObjectKey::of(quota);
            // Only this annotation is ours; the version makes it fail where anything changed since.
            let change = json!({"metadata": {
                "resourceVersion": quota.metadata.resource_version,
                "uid": quota.metadata.uid,
                "annotations": {annotations::QUOTA_CHILD_REQUEST: fill::text(used)},
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
                    // The reason is the conflict, whatever comes of this.
                    let _ = self.read(&key).await;
                }
            }
            Err(api_refusal(&key, &error))
        }
        .boxed()
    }
}
