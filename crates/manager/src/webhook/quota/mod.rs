//! Admission of ElasticQuotas, and of pods by their quotas.
//!
//! [`Admission`] holds the state of this replica; all decisions are made by pure parts: [`check`] and
//! [`fill`] for quotas, [`pods`], [`tree`] and [`evaluate`] for pods.

mod bound;
mod check;
mod evaluate;
mod fill;
mod handlers;
mod info;
mod offline;
mod pods;
#[cfg(test)]
mod testing;
mod topology;
mod tree;

pub use evaluate::Retries;
pub(super) use offline::tree_problems;

use super::Deps;
use super::pod::PodQuotas;
use crate::cache::{Cache, CacheState, ObjectCache};
use crate::replica::Replica;
use bound::BoundPods;
use evaluate::{ClusterQuotas, Denial, Evaluator};
use futures::FutureExt;
use futures::future::BoxFuture;
use info::QuotaInfo;
use k8s_openapi::api::core::v1::Pod;
use koord_api::quota::ElasticQuotaProfile;
use koord_api::scheduling::ElasticQuota;
use koord_kube::webhook::{Handler, Request};
use koord_kube::{Change, ObjectKey};
use parking_lot::RwLock;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use topology::QuotaTopology;

/// Interval at which the admitted state is reconciled with the cache.
const RESYNC: Duration = Duration::from_secs(30);

/// Quota state of a replica, and the admission decisions based on it.
pub struct Admission {
    topology: RwLock<QuotaTopology>,
    bound: BoundPods,
    evaluator: Evaluator,
    quota_rules: check::QuotaRules,
    pod_rules: pods::PodRules,
    quotas: Cache<ElasticQuota>,
    profiles: Cache<ElasticQuotaProfile>,
}

impl Admission {
    /// Creates an admission that follows the caches of a replica; the caller starts these.
    pub(crate) fn from_replica(replica: &Replica) -> Arc<Self> {
        let caches = &replica.caches;
        let options = &replica.options;
        let (gates, retries) = (&options.gates, options.quota_retries.clone());
        let cached = caches.quotas.clone();
        let cached = Box::new(move |key: &ObjectKey| cached.get(key));
        let access = ClusterQuotas::new(replica.client.clone(), cached, retries.fresh_get);
        let on = |gate: &str| gates.enabled(gate);
        let admission = Arc::new(Self {
            topology: RwLock::default(),
            bound: BoundPods::new(caches.pods.clone()),
            evaluator: Evaluator::new(Arc::new(access), retries),
            quota_rules: check::QuotaRules {
                guarantee_usage: on("ElasticQuotaGuaranteeUsage"),
                fewer_keys: on("ElasticQuotaEnableUpdateResourceKey"),
            },
            pod_rules: pods::PodRules::from_gates(gates),
            quotas: caches.quotas.clone(),
            profiles: caches.quota_profiles.clone(),
        });
        let weak = Arc::downgrade(&admission);
        caches.pods.on_change(move |change| {
            if let Some(admission) = weak.upgrade() {
                admission.bound.apply_change(change);
            }
        });
        let weak = Arc::downgrade(&admission);
        admission.quotas.on_change(move |change| {
            if let Some(admission) = weak.upgrade() {
                admission.apply_change(change);
            }
        });
        let stop = replica.stop.clone();
        let weak = Arc::downgrade(&admission);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RESYNC) => {}
                }
                let Some(admission) = weak.upgrade() else {
                    return;
                };
                admission.resync();
            }
        });
        admission
    }

    fn apply_change(&self, change: &Change<ElasticQuota>) {
        match change {
            Change::Applied { new, .. } => {
                self.topology.write().observe(QuotaInfo::from_quota(new))
            }
            Change::Deleted(quota) => {
                let deleted = QuotaInfo::from_quota(quota);
                // Another object may take over the name.
                let candidates = self.quotas.list();
                let candidates = candidates
                    .iter()
                    .filter(|other| other.metadata.name.as_deref() == Some(&deleted.name));
                let candidates: Vec<_> = candidates
                    .map(|candidate| QuotaInfo::from_quota(candidate))
                    .collect();
                let mut topology = self.topology.write();
                topology.observe_deleted(&deleted);
                for candidate in candidates {
                    topology.observe(candidate);
                }
            }
            Change::Synced => {}
        }
    }

    fn resync(&self) {
        if *self.quotas.state().borrow() == CacheState::Synced {
            let all = self.quotas.list();
            let all = all.iter().map(|quota| QuotaInfo::from_quota(quota));
            self.topology.write().resync(all);
        }
    }

    /// Returns the content of `/elasticQuota` as JSON.
    #[must_use]
    pub fn dump(&self) -> String {
        serde_json::to_string(&self.topology.read().summary()).unwrap_or_default()
    }
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").finish_non_exhaustive()
    }
}

impl PodQuotas for Admission {
    fn bind_to_tree(&self, request: &Request, pod: &mut Value) -> Result<(), String> {
        let topology = self.topology.read();
        let profiles = self.profiles.list();
        let bound = tree::bind_to_tree(&topology, &profiles, &request.namespace, pod);
        bound.map_err(|refusal| refusal.0)
    }

    fn check_quota(&self, _: &Request, pod: &Pod, old: Option<&Pod>) -> Result<(), String> {
        let checked = pods::check(&self.topology.read(), old, pod, self.pod_rules);
        checked.map_err(|refusal| refusal.0)
    }

    fn charge<'a>(
        &'a self,
        request: &'a Request,
        pod: &'a Pod,
        old: Option<&'a Pod>,
    ) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let charged = self.charge_pod(old, pod, request.dry_run).await;
            charged.map_err(|denial| denial.to_string())
        }
        .boxed()
    }
}

impl Admission {
    /// Charges a new or changed pod to its quota; a dry run only checks that it fits.
    async fn charge_pod(&self, old: Option<&Pod>, new: &Pod, dry_run: bool) -> Result<(), Denial> {
        let quota = pods::to_charge(&self.topology.read(), old, new, self.pod_rules)?;
        let Some(quota) = quota else {
            return Ok(());
        };
        let request = pods::request(new, self.pod_rules)?;
        if dry_run {
            self.evaluator.would_fit(&quota, request).await
        } else {
            self.evaluator.evaluate(quota, request).await
        }
    }
}

/// Creates the handler of new quotas.
pub(super) fn mutating(deps: &Deps) -> Arc<dyn Handler> {
    let metrics = deps.metrics.clone();
    match deps.admission.clone() {
        Some(admission) => Arc::new(handlers::QuotaMutator { admission, metrics }),
        None => Arc::new(handlers::AllowAll),
    }
}

/// Creates the handler that validates writes of quotas.
pub(super) fn validating(deps: &Deps) -> Arc<dyn Handler> {
    let metrics = deps.metrics.clone();
    match deps.admission.clone() {
        Some(admission) => Arc::new(handlers::QuotaValidator { admission, metrics }),
        None => Arc::new(handlers::AllowAll),
    }
}
