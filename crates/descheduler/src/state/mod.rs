//! Snapshot of the cluster on which a cycle runs.

mod node;
mod pod;
mod usage;

pub use node::NodeInfo;
pub(crate) use node::amounts;
pub use pod::{
    Claims, Condition, ContainerInfo, ContainerKind, ContainerState, Owner, Phase, PodError,
    PodInfo, Shape, Shapes, is_read_annotation,
};
pub use usage::{NodeUsage, PodUsage, UsageRejection, check_plausible, rejection};

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_api::scheduling::PodMigrationJob;
use koord_model::resources::ResourceTable;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything that a cycle can read. It does not change while the cycle runs.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Time of the snapshot.
    pub now: Timestamp,
    /// Table with the ids of all resources in the snapshot.
    pub table: Arc<ResourceTable>,
    /// Nodes sorted by name.
    pub nodes: Vec<Arc<NodeInfo>>,
    /// All pods, including those without a node and those that ended, sorted by namespace and name.
    pub pods: Vec<Arc<PodInfo>>,
    /// Usage by node name.
    pub usage: FxHashMap<Arc<str>, Arc<NodeUsage>>,
    /// Jobs in every phase, sorted by name.
    pub jobs: Vec<Arc<PodMigrationJob>>,
    /// Workloads by the UID of the controller; only those that were looked up.
    pub workloads: FxHashMap<Arc<str>, Workload>,
    /// All PodDisruptionBudgets.
    pub budgets: Vec<Arc<PodDisruptionBudget>>,
    /// Storage classes of PersistentVolumeClaims, by namespace and name; empty unless a filter reads them.
    pub storage_classes: FxHashMap<(Arc<str>, Arc<str>), String>,
    /// Labels of namespaces by name.
    pub namespaces: FxHashMap<Arc<str>, BTreeMap<String, String>>,
    /// Values of PriorityClasses by name.
    pub priority_classes: BTreeMap<String, i32>,
    on_node: FxHashMap<Arc<str>, Vec<usize>>,
}

/// The workload that controls a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// The workload exists.
    Known {
        /// `spec.replicas`, or `spec.parallelism` of a Job.
        replicas: i64,
        /// UIDs of the controllers of its pods: the workload itself, or the ReplicaSets of a Deployment.
        controllers: Vec<Arc<str>>,
        /// True if it is being deleted.
        deleting: bool,
    },
    /// The number of replicas cannot be determined: the workload does not exist, or its kind has no scale
    /// subresource.
    Unresolved,
    /// The lookup failed.
    Error(String),
}

impl Snapshot {
    /// Returns a snapshot of an empty cluster.
    #[must_use]
    pub fn empty(now: Timestamp, table: Arc<ResourceTable>) -> Self {
        Self {
            now,
            table,
            nodes: Vec::new(),
            pods: Vec::new(),
            usage: FxHashMap::default(),
            jobs: Vec::new(),
            workloads: FxHashMap::default(),
            budgets: Vec::new(),
            storage_classes: FxHashMap::default(),
            namespaces: FxHashMap::default(),
            priority_classes: BTreeMap::new(),
            on_node: FxHashMap::default(),
        }
    }

    /// Sets nodes and pods, which may be in any order.
    #[must_use]
    pub fn with(mut self, mut nodes: Vec<Arc<NodeInfo>>, mut pods: Vec<Arc<PodInfo>>) -> Self {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self.on_node.clear();
        for (at, pod) in pods.iter().enumerate() {
            if let Some(node) = &pod.node {
                self.on_node.entry(node.clone()).or_default().push(at);
            }
        }
        (self.nodes, self.pods) = (nodes, pods);
        self
    }

    /// Returns the pods of a node in every phase, sorted by namespace and name.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Arc<PodInfo>> {
        let on = self.on_node.get(node).map_or(&[][..], Vec::as_slice);
        on.iter().filter_map(|index| self.pods.get(*index))
    }

    /// Returns the pods of a node that have not ended.
    pub fn active_on(&self, node: &str) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods_on(node).filter(|pod| pod.is_active())
    }

    /// Returns the node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Arc<NodeInfo>> {
        let index = self.nodes.binary_search_by(|node| (*node.name).cmp(name));
        self.nodes.get(index.ok()?)
    }

    /// Returns the job of this name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&Arc<PodMigrationJob>> {
        let name_of = |job: &Arc<PodMigrationJob>| job.metadata.name.as_deref().cmp(&Some(name));
        self.jobs.get(self.jobs.binary_search_by(name_of).ok()?)
    }

    /// Returns the pod of this name.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Arc<PodInfo>> {
        let order = |pod: &Arc<PodInfo>| (&*pod.namespace, &*pod.name).cmp(&(namespace, name));
        self.pods.get(self.pods.binary_search_by(order).ok()?)
    }
}

#[cfg(test)]
mod tests;
