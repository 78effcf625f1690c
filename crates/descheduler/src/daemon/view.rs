//! Informers of all watched kinds, and snapshots of the cluster.

use super::decoded::Decoded;
use super::job_queue::JobQueueHandle;
use super::jobs::{Jobs, WriteCache};
use super::lister::Lister;
use super::workloads::Workloads;
use crate::migration::{JobStage, stage};
use crate::state::{NodeInfo, NodeUsage, Owner, PodError, PodInfo, Shapes, Snapshot, Workload};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::scheduling::{PodMigrationJob, Reservation};
use koord_api::slo::NodeMetric;
use koord_kube::{Cacheable, Change, Client, Informer, ObjectKey, Scope};
use koord_model::resources::ResourceTable;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Informer stores of every kind that a cycle reads.
#[derive(Debug)]
pub(super) struct ClusterView {
    shapes: Arc<Shapes>,
    nodes: Lister<NodeInfo>,
    pods: Lister<DecodedPod>,
    usage: Lister<Decoded<NodeUsage>>,
    reservations: Lister<Decoded<Reservation>>,
    /// All jobs.
    pub(super) jobs: Jobs,
    workloads: Workloads,
    /// Receives changes of pods, reservations and jobs.
    pub(super) queue_handle: Arc<JobQueueHandle>,
    budgets: Lister<PodDisruptionBudget>,
    namespaces: Lister<Namespace>,
    priority_classes: Lister<PriorityClass>,
    /// `None` unless a filter reads storage classes.
    claims: Option<Lister<Claim>>,
}

/// The fields of a PersistentVolumeClaim that the descheduler uses.
#[derive(Debug)]
struct Claim {
    namespace: Arc<str>,
    name: Arc<str>,
    uid: String,
    resource_version: Option<String>,
    storage_class: String,
}

impl Claim {
    fn new(claim: PersistentVolumeClaim) -> Self {
        let meta = claim.metadata;
        let class = claim.spec.and_then(|spec| spec.storage_class_name);
        Self {
            namespace: meta.namespace.unwrap_or_default().into(),
            name: meta.name.unwrap_or_default().into(),
            uid: meta.uid.unwrap_or_default(),
            resource_version: meta.resource_version,
            storage_class: class.unwrap_or_default(),
        }
    }
}

impl Cacheable for Claim {
    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

/// A pod, or its name if it cannot be converted.
#[derive(Debug)]
enum DecodedPod {
    Pod(Arc<PodInfo>),
    /// A field is missing that every pod of an API server has.
    Unread {
        namespace: String,
        name: String,
    },
}

impl DecodedPod {
    fn new(pod: Pod, shapes: &Shapes) -> Self {
        let (namespace, name) = pod.names();
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        match PodInfo::new(pod, shapes) {
            Ok(pod) => Self::Pod(Arc::new(pod)),
            Err(error @ PodError::Missing(_)) => {
                tracing::warn!(namespace, name, %error, "skipping pod with a missing field");
                Self::Unread { namespace, name }
            }
        }
    }
}

impl Cacheable for DecodedPod {
    fn names(&self) -> (&str, &str) {
        match self {
            Self::Pod(pod) => pod.names(),
            Self::Unread { namespace, name } => (namespace, name),
        }
    }
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pod(pod), Self::Pod(other)) => pod.is_same(other),
            _ => false,
        }
    }
    fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Pod(pod) => pod.resource_version(),
            Self::Unread { .. } => None,
        }
    }
}

impl ClusterView {
    /// Starts the informers, which run until `stop`; that of PersistentVolumeClaims only if `storage_classes`
    /// are needed.
    pub(super) fn start(client: &Client, storage_classes: bool, stop: &CancellationToken) -> Self {
        let shapes = Arc::new(Shapes::new(Arc::new(ResourceTable::new())));
        let informer_args = || (client.clone(), Scope::default(), stop.clone());
        let workloads = Workloads::new(client.clone(), stop.clone());
        let (client, scope, stop) = informer_args();
        let table_owner = shapes.clone();
        let nodes = Informer::start_mapped(
            client,
            scope,
            move |node: Node| NodeInfo::new(node, table_owner.table()),
            stop,
        );
        let (client, scope, stop) = informer_args();
        let table_owner = shapes.clone();
        let pods = Informer::start_mapped(
            client,
            scope,
            move |pod| DecodedPod::new(pod, &table_owner),
            stop,
        );
        let queue_handle = Arc::new(JobQueueHandle::default());
        let handle = queue_handle.clone();
        let pods = Lister::with_handler(pods, move |change: Change<DecodedPod>| {
            if let Change::Applied { new: pod, .. } | Change::Deleted(pod) = change {
                let (namespace, name) = pod.names();
                handle.pod_changed(namespace, name);
            }
        });
        let (client, scope, stop) = informer_args();
        let table_owner = shapes.clone();
        let usage = Informer::start_readable(
            client,
            scope,
            move |read| {
                Decoded::from_readable(read, |metric: NodeMetric| {
                    NodeUsage::new(metric, table_owner.table())
                })
            },
            stop,
        );
        let (client, scope, stop) = informer_args();
        let decode = |read| Decoded::from_readable(read, |job: PodMigrationJob| job);
        let jobs = Informer::start_readable(client, scope, decode, stop);
        let write_cache = Arc::new(WriteCache::default());
        let (handle, written_jobs) = (queue_handle.clone(), write_cache.clone());
        let jobs = Lister::with_handler(jobs, move |change| match change {
            Change::Applied { new, .. } => {
                if let Decoded::Object(job) = &*new {
                    handle.job_changed(job);
                }
            }
            Change::Deleted(gone) => match &*gone {
                Decoded::Object(job) => {
                    written_jobs.remove(&job.metadata);
                    handle.job_deleted(job);
                }
                Decoded::Unread(unread) => written_jobs.remove(&unread.metadata),
            },
            Change::Synced => {}
        });
        let (client, scope, stop) = informer_args();
        let decode = |read| Decoded::from_readable(read, |reservation: Reservation| reservation);
        let reservations = Informer::start_readable(client, scope, decode, stop);
        let handle = queue_handle.clone();
        let reservations =
            Lister::with_handler(reservations, move |change: Change<Decoded<Reservation>>| {
                if let Change::Applied { new, .. } | Change::Deleted(new) = change {
                    handle.reservation_changed(new.names().1);
                }
            });
        let start = informer_args();
        let budgets = Informer::start(start.0, start.1, start.2);
        let start = informer_args();
        let namespaces = Informer::start(start.0, start.1, start.2);
        let start = informer_args();
        let priority_classes = Informer::start(start.0, start.1, start.2);
        let claims = storage_classes.then(|| {
            let (client, scope, stop) = informer_args();
            Lister::new(Informer::start_mapped(client, scope, Claim::new, stop))
        });
        Self {
            shapes,
            claims,
            nodes: Lister::new(nodes),
            pods,
            usage: Lister::new(usage),
            jobs: Jobs::new(jobs, write_cache),
            reservations,
            workloads,
            queue_handle,
            budgets: Lister::new(budgets),
            namespaces: Lister::new(namespaces),
            priority_classes: Lister::new(priority_classes),
        }
    }

    /// Waits until every kind that the API server has is synchronized.
    pub(super) async fn wait_synced(&self) {
        self.nodes.wait_synced().await;
        self.pods.wait_synced().await;
        self.usage.wait_synced().await;
        self.jobs.wait_synced().await;
        self.reservations.wait_synced().await;
        self.budgets.wait_synced().await;
        self.namespaces.wait_synced().await;
        self.priority_classes.wait_synced().await;
        if let Some(claims) = &self.claims {
            claims.wait_synced().await;
        }
    }

    /// Returns the intern pool of pod shapes.
    pub(super) fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// Returns the reservation of this name from the informer's store.
    pub(super) fn reservation(&self, name: &str) -> Option<Arc<Reservation>> {
        let decoded = self.reservations.store.get(&ObjectKey::new("", name))?;
        decoded.object().cloned()
    }

    /// Looks up the workloads of these controllers, as far as they have pods, by UID of the controller.
    pub(super) async fn workloads(
        &self,
        controllers: &FxHashSet<Arc<str>>,
    ) -> FxHashMap<Arc<str>, Workload> {
        let decoded_pods = self.pods.store.list();
        let pods = decoded_pods.iter().filter_map(|decoded| match &**decoded {
            DecodedPod::Pod(pod) => Some(pod),
            DecodedPod::Unread { .. } => None,
        });
        let is_controlled = |pod: &&Arc<PodInfo>| {
            let owner = pod.controller();
            owner.is_some_and(|owner| controllers.contains(&owner.uid))
        };
        self.workloads
            .resolve(owners(pods.filter(is_controlled)))
            .await
    }

    /// Returns a snapshot of the cluster, dated `now`.
    pub(super) async fn snapshot(&self, now: Timestamp) -> Snapshot {
        let pods = self.pods.store.list().into_iter();
        let pods = pods.filter_map(|decoded_pod| match &*decoded_pod {
            DecodedPod::Pod(pod) => Some(pod.clone()),
            DecodedPod::Unread { .. } => None,
        });
        let mut snapshot = Snapshot::empty(now, self.shapes.table().clone())
            .with(self.nodes.store.list(), pods.collect());
        let usage = self.usage.store.list().into_iter();
        let usage = usage.filter_map(|decoded| decoded.object().cloned());
        snapshot.usage = usage.map(|usage| (usage.name.clone(), usage)).collect();
        snapshot.budgets = self.budgets.store.list();
        let namespaces = self.namespaces.store.list().into_iter();
        let named = namespaces.filter_map(|namespace| {
            let name = namespace.metadata.name.as_deref()?;
            let labels = namespace.metadata.labels.clone();
            Some((Arc::from(name), labels.unwrap_or_default()))
        });
        snapshot.namespaces = named.collect();
        self.complete(&mut snapshot).await;
        snapshot
    }

    /// Returns a snapshot for the jobs that have not ended: their pods, other pods of the same owners, and
    /// those owners.
    pub(super) async fn about_jobs(&self, now: Timestamp) -> Snapshot {
        let jobs = self.jobs.all();
        let (mut names, mut uids) = (FxHashSet::default(), FxHashSet::default());
        for job in jobs.iter().filter(|job| stage(job) != JobStage::Ended) {
            let pod = &job.spec.pod_ref;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            names.insert((text(&pod.namespace), text(&pod.name)));
            uids.extend(pod.uid.clone());
        }
        let decoded_pods = self.pods.store.list();
        let all = decoded_pods.iter().filter_map(|decoded| match &**decoded {
            DecodedPod::Pod(pod) => Some(pod),
            DecodedPod::Unread { .. } => None,
        });
        let mut meant = FxHashSet::<Arc<str>>::default();
        let mut owners = FxHashSet::<Arc<str>>::default();
        for pod in all.clone() {
            let name = (pod.namespace.to_string(), pod.name.to_string());
            if uids.contains(&*pod.uid) || names.contains(&name) {
                meant.insert(pod.uid.clone());
                owners.extend(pod.owners.iter().map(|owner| owner.uid.clone()));
            }
        }
        let mut snapshot = Snapshot::empty(now, self.shapes.table().clone())
            .with(Vec::new(), only(all.clone(), &meant, &owners));
        self.complete(&mut snapshot).await;
        // The pods of a Deployment are those of all its ReplicaSets.
        for workload in snapshot.workloads.values() {
            if let Workload::Known { controllers, .. } = workload {
                owners.extend(controllers.iter().cloned());
            }
        }
        snapshot.with(Vec::new(), only(all, &meant, &owners))
    }

    /// Adds jobs, workloads and priority classes to `snapshot`.
    async fn complete(&self, snapshot: &mut Snapshot) {
        snapshot.jobs = self.jobs.all();
        let classes = self.priority_classes.store.list().into_iter();
        let valued = classes.filter_map(|class| Some((class.metadata.name.clone()?, class.value)));
        snapshot.priority_classes = valued.collect();
        snapshot.workloads = self.workloads.resolve(owners(snapshot.pods.iter())).await;
        let claims = self.claims.iter().flat_map(|claims| claims.store.list());
        let classed = claims.map(|claim| {
            let key = (claim.namespace.clone(), claim.name.clone());
            (key, claim.storage_class.clone())
        });
        snapshot.storage_classes = classed.collect();
    }
}

/// Returns the controllers of `pods` by UID, each with its namespace.
fn owners<'a>(
    pods: impl Iterator<Item = &'a Arc<PodInfo>>,
) -> FxHashMap<Arc<str>, (Arc<str>, Owner)> {
    let mut owners = FxHashMap::<Arc<str>, (Arc<str>, Owner)>::default();
    for pod in pods {
        if let Some(owner) = pod.controller()
            && !owners.contains_key(&owner.uid)
        {
            let entry = (pod.namespace.clone(), owner.clone());
            owners.insert(owner.uid.clone(), entry);
        }
    }
    owners
}

/// Returns the pods whose UID is in `meant` or that one of `owners` owns.
fn only<'a>(
    pods: impl Iterator<Item = &'a Arc<PodInfo>>,
    meant: &FxHashSet<Arc<str>>,
    owners: &FxHashSet<Arc<str>>,
) -> Vec<Arc<PodInfo>> {
    let is = |pod: &&Arc<PodInfo>| {
        let mut pod_owners = pod.owners.iter();
        meant.contains(&pod.uid) || pod_owners.any(|owner| owners.contains(&owner.uid))
    };
    pods.filter(is).cloned().collect()
}
