//! Lookup of the workloads that control pods, and of their replicas.
//!
//! A kind is watched once a pod has such a controller. For unknown kinds, the `scale` subresource is read.

use super::lister::Lister;
use crate::state::{Owner, Workload};
use futures::{StreamExt, stream};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_kube::kube_core::{DynamicObject, Resource};
use koord_kube::owners::{Owners, group_of};
use koord_kube::patch::is_not_found;
use koord_kube::{Cacheable, Client, Decode, Informer, ObjectKey, Scope, api};
use kube_derive::CustomResource;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time for which a scale is cached.
const LIFE: Duration = Duration::from_secs(30);
/// Time for which a failed lookup of a scale is cached.
const DOUBT: Duration = Duration::from_secs(3);
/// Timeout of the first list of a newly watched kind; afterwards its workloads are unknown for now.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of concurrent scale requests.
const AT_ONCE: usize = 8;

/// Spec of an OpenKruise CloneSet: the fields used here.
#[derive(CustomResource, Debug, Clone, Default, Serialize, Deserialize)]
#[kube(
    crates(kube_core = "koord_kube::kube_core"),
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "CloneSet",
    plural = "clonesets",
    namespaced,
    schema = "disabled"
)]
struct CloneSetSpec {
    replicas: Option<i32>,
}

/// Spec of an OpenKruise StatefulSet: the fields used here.
#[derive(CustomResource, Debug, Clone, Default, Serialize, Deserialize)]
#[kube(
    crates(kube_core = "koord_kube::kube_core"),
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "StatefulSet",
    plural = "statefulsets",
    root = "AdvancedStatefulSet",
    namespaced,
    schema = "disabled"
)]
struct AdvancedStatefulSetSpec {
    replicas: Option<i32>,
}

koord_kube::decode!(AdvancedStatefulSet, CloneSet);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum WorkloadKind {
    ReplicationController,
    Deployment,
    ReplicaSet,
    StatefulSet,
    Job,
    CloneSet,
    AdvancedStatefulSet,
}

impl WorkloadKind {
    /// Returns the kind of `owner` by group and kind, ignoring the version.
    fn from_owner(owner: &Owner) -> Option<Self> {
        Some(match (group_of(&owner.api_version), &*owner.kind) {
            ("", "ReplicationController") => Self::ReplicationController,
            ("apps", "Deployment") => Self::Deployment,
            ("apps", "ReplicaSet") => Self::ReplicaSet,
            ("apps", "StatefulSet") => Self::StatefulSet,
            ("batch", "Job") => Self::Job,
            ("apps.kruise.io", "CloneSet") => Self::CloneSet,
            ("apps.kruise.io", "StatefulSet") => Self::AdvancedStatefulSet,
            _ => return None,
        })
    }
}

/// The fields of a workload that are cached.
#[derive(Debug)]
struct CachedController {
    namespace: String,
    name: String,
    uid: Arc<str>,
    version: Option<String>,
    replicas: i64,
    deleting: bool,
    /// Kind, name and UID of its controller.
    owner: Option<(String, String, Arc<str>)>,
}

impl CachedController {
    fn new(meta: ObjectMeta, replicas: Option<i32>) -> Self {
        let owners = meta.owner_references.into_iter().flatten();
        let mut owners = owners.filter(|owner| owner.controller == Some(true));
        let owner = owners.next();
        Self {
            owner: owner.map(|owner| (owner.kind, owner.name, owner.uid.into())),
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default().into(),
            version: meta.resource_version,
            replicas: i64::from(replicas.unwrap_or(1)),
            deleting: meta.deletion_timestamp.is_some(),
        }
    }

    fn to_workload(&self, controllers: Vec<Arc<str>>) -> Workload {
        Workload::Known {
            replicas: self.replicas,
            controllers,
            deleting: self.deleting,
        }
    }
}

impl Cacheable for CachedController {
    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.version.as_deref()
    }
}

/// A scale lookup and when it expires.
type CachedScale = (Instant, Workload);

/// Looks up workloads.
pub(super) struct Workloads {
    client: Client,
    stop: CancellationToken,
    listers: Mutex<FxHashMap<WorkloadKind, Arc<Lister<CachedController>>>>,
    kinds: tokio::sync::Mutex<Owners>,
    scales: Mutex<FxHashMap<Arc<str>, CachedScale>>,
}

impl std::fmt::Debug for Workloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown: Vec<_> = self.listers.lock().keys().copied().collect();
        f.debug_struct("Workloads")
            .field("kinds", &shown)
            .finish_non_exhaustive()
    }
}

impl Workloads {
    pub(super) fn new(client: Client, stop: CancellationToken) -> Self {
        Self {
            kinds: tokio::sync::Mutex::new(Owners::new(client.clone())),
            client,
            stop,
            listers: Mutex::default(),
            scales: Mutex::default(),
        }
    }

    fn lister(&self, kind: WorkloadKind) -> Arc<Lister<CachedController>> {
        let mut listers = self.listers.lock();
        let start = || Arc::new(Lister::new(self.follow(kind)));
        listers.entry(kind).or_insert_with(start).clone()
    }

    fn follow(&self, kind: WorkloadKind) -> Informer<CachedController> {
        match kind {
            WorkloadKind::ReplicationController => {
                self.start_informer(|one: &ReplicationController| {
                    one.spec.as_ref().and_then(|spec| spec.replicas)
                })
            }
            WorkloadKind::Deployment => self.start_informer(|one: &Deployment| {
                one.spec.as_ref().and_then(|spec| spec.replicas)
            }),
            WorkloadKind::ReplicaSet => self.start_informer(|one: &ReplicaSet| {
                one.spec.as_ref().and_then(|spec| spec.replicas)
            }),
            WorkloadKind::StatefulSet => self.start_informer(|one: &StatefulSet| {
                one.spec.as_ref().and_then(|spec| spec.replicas)
            }),
            WorkloadKind::Job => {
                self.start_informer(|one: &Job| one.spec.as_ref().and_then(|spec| spec.parallelism))
            }
            WorkloadKind::CloneSet => self.start_informer(|one: &CloneSet| one.spec.replicas),
            WorkloadKind::AdvancedStatefulSet => {
                self.start_informer(|one: &AdvancedStatefulSet| one.spec.replicas)
            }
        }
    }

    fn start_informer<K>(&self, replicas: fn(&K) -> Option<i32>) -> Informer<CachedController>
    where
        K: Resource<DynamicType = ()> + Decode + Send + 'static,
    {
        let keep = move |mut object: K| {
            let count = replicas(&object);
            CachedController::new(std::mem::take(object.meta_mut()), count)
        };
        let (client, stop) = (self.client.clone(), self.stop.clone());
        Informer::start_mapped(client, Scope::default(), keep, stop)
    }

    /// Looks up the workloads of `owners`, each with its namespace, by UID.
    pub(super) async fn resolve(
        &self,
        owners: FxHashMap<Arc<str>, (Arc<str>, Owner)>,
    ) -> FxHashMap<Arc<str>, Workload> {
        let mut by_kind = FxHashMap::default();
        let mut by_scale = Vec::new();
        let mut listers = FxHashMap::default();
        for (uid, (namespace, owner)) in owners {
            match WorkloadKind::from_owner(&owner) {
                Some(kind) => {
                    for kind in [kind].into_iter().chain(parent_kind(kind)) {
                        listers.entry(kind).or_insert_with(|| self.lister(kind));
                    }
                    by_kind.insert(uid, (kind, namespace, owner));
                }
                // Pods of these controllers are bound to one node and never moved.
                None if matches!(&*owner.kind, "DaemonSet" | "Node") => {}
                None => by_scale.push((uid, namespace, owner)),
            }
        }
        let synced = async {
            for lister in listers.values() {
                lister.wait_synced().await;
            }
        };
        let timed_out = tokio::time::timeout(PATIENCE, synced).await.is_err();
        let sets = listers.get(&WorkloadKind::ReplicaSet);
        let sets = sets.map(|lister| replica_sets_by_deployment(&lister.store.list()));
        let sets = sets.unwrap_or_default();
        let find = |kind, namespace: &str, name: &str, uid: &str| {
            let lister: &Arc<Lister<CachedController>> = listers.get(&kind)?;
            let cached = lister.store.get(&ObjectKey::new(namespace, name));
            cached.filter(|cached| *cached.uid == *uid)
        };
        let resolve = |kind: WorkloadKind, namespace: &str, owner: &Owner| {
            let Some(cached) = find(kind, namespace, &owner.name, &owner.uid) else {
                if timed_out {
                    let kind = &owner.kind;
                    return Workload::Error(format!("{kind}s could not be listed yet"));
                }
                return Workload::Unresolved;
            };
            match &cached.owner {
                Some((above, name, uid))
                    if kind == WorkloadKind::ReplicaSet && above == "Deployment" =>
                {
                    let cached = find(WorkloadKind::Deployment, namespace, name, uid);
                    let sets = sets.get(uid).cloned().unwrap_or_default();
                    cached.map_or(Workload::Unresolved, |cached| cached.to_workload(sets))
                }
                _ => cached.to_workload(vec![owner.uid.clone()]),
            }
        };
        let resolved = by_kind.into_iter();
        let mut resolved: FxHashMap<_, _> = resolved
            .map(|(uid, (kind, namespace, owner))| (uid, resolve(kind, &namespace, &owner)))
            .collect();
        let scales = stream::iter(by_scale).map(|(uid, namespace, owner)| async move {
            let scale = self.scale(&namespace, &owner).await;
            (uid, scale)
        });
        let scales: Vec<_> = scales.buffer_unordered(AT_ONCE).collect().await;
        resolved.extend(scales);
        resolved
    }

    async fn scale(&self, namespace: &str, owner: &Owner) -> Workload {
        let now = Instant::now();
        if let Some((until, cached)) = self.scales.lock().get(&owner.uid)
            && now < *until
        {
            return cached.clone();
        }
        let workload = match self.fetch_scale(namespace, owner).await {
            Ok(workload) => workload,
            Err(error) if is_not_found(&error) => Workload::Unresolved,
            Err(error) => Workload::Error(format!("scale: {error}")),
        };
        let now = Instant::now();
        let life = match workload {
            Workload::Error(_) => DOUBT,
            Workload::Known { .. } | Workload::Unresolved => LIFE,
        };
        let mut scales = self.scales.lock();
        scales.retain(|_, (until, _)| now < *until);
        scales.insert(owner.uid.clone(), (now + life, workload.clone()));
        workload
    }

    async fn fetch_scale(
        &self,
        namespace: &str,
        owner: &Owner,
    ) -> Result<Workload, koord_kube::Error> {
        let mut kinds = self.kinds.lock().await;
        let resource = kinds.resource(&owner.api_version, &owner.kind).await?;
        // There may be thousands of objects of a kind without a scale.
        let resource = resource.filter(|kind| kinds.has_scale(kind));
        drop(kinds);
        let Some(resource) = resource else {
            return Ok(Workload::Unresolved);
        };
        let objects =
            api::Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &resource);
        let scale = objects.get_scale(&owner.name).await?;
        if scale.metadata.uid.as_deref() != Some(&*owner.uid) {
            return Ok(Workload::Unresolved);
        }
        Ok(Workload::Known {
            replicas: scale
                .spec
                .and_then(|spec| spec.replicas)
                .unwrap_or(0)
                .into(),
            controllers: vec![owner.uid.clone()],
            deleting: scale.metadata.deletion_timestamp.is_some(),
        })
    }
}

/// Returns the kind that may control workloads of `kind`.
fn parent_kind(kind: WorkloadKind) -> Option<WorkloadKind> {
    (kind == WorkloadKind::ReplicaSet).then_some(WorkloadKind::Deployment)
}

/// Returns the UIDs of ReplicaSets by that of their Deployment.
fn replica_sets_by_deployment(
    sets: &[Arc<CachedController>],
) -> FxHashMap<Arc<str>, Vec<Arc<str>>> {
    let mut by_deployment = FxHashMap::<Arc<str>, Vec<Arc<str>>>::default();
    for set in sets {
        if let Some((_, _, uid)) = &set.owner {
            by_deployment
                .entry(uid.clone())
                .or_default()
                .push(set.uid.clone());
        }
    }
    by_deployment
}

#[cfg(test)]
mod tests;
