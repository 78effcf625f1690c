//! What is known of the cluster when a cycle begins.

mod node;
mod pod;
mod usage;

pub use node::NodeInfo;
pub(crate) use node::amounts;
pub use pod::{
    Claims, Condition, ContainerInfo, ContainerKind, ContainerState, Owner, Phase, PodError,
    PodInfo, Shape, Shapes, kept_annotation,
};
pub use usage::{NodeUsage, PodUsage, UsageRejection, check_plausible, rejection};

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_api::scheduling::PodMigrationJob;
use koord_model::resources::ResourceTable;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything a cycle may look at. It does not change while the cycle runs.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Now.
    pub now: Timestamp,
    /// The numbers of all resources that are named below.
    pub table: Arc<ResourceTable>,
    /// By name.
    pub nodes: Vec<Arc<NodeInfo>>,
    /// All pods, also those without a node and those that ended: by namespace and name.
    pub pods: Vec<Arc<PodInfo>>,
    /// What nodes use, by the node's name.
    pub usage: FxHashMap<Arc<str>, Arc<NodeUsage>>,
    /// Jobs of every phase, by name.
    pub jobs: Vec<Arc<PodMigrationJob>>,
    /// Who controls pods, by UID; only those that somebody was asked about.
    pub workloads: FxHashMap<Arc<str>, Workload>,
    /// All budgets.
    pub budgets: Vec<Arc<PodDisruptionBudget>>,
    /// Storage classes of PersistentVolumeClaims, by namespace and name; only if somebody asks about them.
    pub storage_classes: FxHashMap<(Arc<str>, Arc<str>), String>,
    /// Labels of namespaces.
    pub namespaces: FxHashMap<Arc<str>, BTreeMap<String, String>>,
    /// Values of PriorityClasses.
    pub priority_classes: BTreeMap<String, i32>,
    on_node: FxHashMap<Arc<str>, Vec<usize>>,
}

/// Who controls pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// It exists.
    Known {
        /// `spec.replicas`; of a Job its parallelism.
        replicas: i64,
        /// UIDs of who its pods are controlled by: itself, of a Deployment its ReplicaSets.
        controllers: Vec<Arc<str>>,
        /// Whether it is being deleted.
        deleting: bool,
    },
    /// Nobody can say how many replicas it wants: it is gone, or its kind has no scale.
    Unresolved,
    /// It could not be asked about.
    Error(String),
}

impl Snapshot {
    /// A cluster without anything.
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

    /// With these nodes and pods, in any order.
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

    /// The pods of a node in every phase, by namespace and name.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Arc<PodInfo>> {
        let on = self.on_node.get(node).map_or(&[][..], Vec::as_slice);
        on.iter().filter_map(|at| self.pods.get(*at))
    }

    /// The pods of a node that have not ended.
    pub fn active_on(&self, node: &str) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods_on(node).filter(|pod| pod.is_active())
    }

    /// The node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Arc<NodeInfo>> {
        let at = self.nodes.binary_search_by(|node| (*node.name).cmp(name));
        self.nodes.get(at.ok()?)
    }

    /// The job of this name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&Arc<PodMigrationJob>> {
        let name_of = |job: &Arc<PodMigrationJob>| job.metadata.name.as_deref().cmp(&Some(name));
        self.jobs.get(self.jobs.binary_search_by(name_of).ok()?)
    }

    /// The pod of this name.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Arc<PodInfo>> {
        let order = |pod: &Arc<PodInfo>| (&*pod.namespace, &*pod.name).cmp(&(namespace, name));
        self.pods.get(self.pods.binary_search_by(order).ok()?)
    }
}

#[cfg(test)]
mod tests;
