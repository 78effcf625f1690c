//! What a node and its pods use, as its koordlet says.

use super::node::amounts;
use jiff::Timestamp;
use koord_api::priority::PriorityClass;
use koord_api::slo::{NodeMetric, ResourceMap};
use koord_model::resources::{Amounts, ResourceTable};
use std::sync::Arc;

/// What of a NodeMetric is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeUsage {
    /// The node's name.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
    /// `status.updateTime`.
    pub updated: Option<Timestamp>,
    /// `status.nodeMetric.nodeUsage`; `None` when there is no `nodeMetric`.
    pub node: Option<Amounts>,
    /// `status.nodeMetric.systemUsage`.
    pub system: Amounts,
    /// `status.podsMetric`, in the order of the report.
    pub pods: Vec<PodUsage>,
}

/// What one pod uses.
#[derive(Debug, Clone, PartialEq)]
pub struct PodUsage {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// The reported priority class.
    pub class: PriorityClass,
    /// CPU in milli, memory in bytes.
    pub usage: Amounts,
}

impl NodeUsage {
    /// Reads `metric`, numbering its resources in `table`.
    #[must_use]
    pub fn new(metric: NodeMetric, table: &ResourceTable) -> Self {
        let status = metric.status.unwrap_or_default();
        let read = |map: Option<&ResourceMap>| map.map(|map| amounts(&map.resources, table));
        let node = status.node_metric.as_ref();
        let pods = status.pods_metric.into_iter().map(|pod| PodUsage {
            usage: read(pod.pod_usage.as_ref()).unwrap_or_default(),
            namespace: pod.namespace.into(),
            name: pod.name.into(),
            class: pod.priority,
        });
        Self {
            pods: pods.collect(),
            name: metric.metadata.name.unwrap_or_default().into(),
            uid: metric.metadata.uid.unwrap_or_default().into(),
            resource_version: metric.metadata.resource_version,
            updated: status.update_time.as_ref().map(|time| time.0),
            node: node.map(|node| read(node.node_usage.as_ref()).unwrap_or_default()),
            system: node
                .and_then(|node| read(node.system_usage.as_ref()))
                .unwrap_or_default(),
        }
    }
}

impl koord_kube::informer::Mirrored for NodeUsage {
    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}
