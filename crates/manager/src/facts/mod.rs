//! What is kept of objects that there are many of: a pod or a report is several kilobytes as an
//! object, and little of it is ever read.

mod interner;
mod metric;
mod packed;
mod pod;
mod recommendation;
mod slo;
mod target;

pub(crate) use interner::Interner;
pub(crate) use metric::{MetricFacts, PodUsage, Report};
pub(crate) use packed::Packed;
pub(crate) use pod::{FieldMask, PodFacts, PodsByNode};
pub use recommendation::RecommendationFacts;
pub(crate) use recommendation::distributions;
pub(crate) use slo::{SloFacts, Specs};
pub(crate) use target::{Target, percentiles};

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use koord_api::annotations;
use koord_api::topology::v1alpha2::NodeResourceTopology;

/// Keeps of a node its metadata, its amounts, whether it is ready and whether it takes new pods.
pub(crate) fn trim_node(node: &mut Node) {
    if let Some(spec) = node.spec.take() {
        node.spec = Some(NodeSpec {
            unschedulable: spec.unschedulable,
            taints: spec.taints,
            ..NodeSpec::default()
        });
    }
    if let Some(status) = node.status.take() {
        let conditions = status.conditions.map(|mut conditions| {
            conditions.retain(|condition| condition.type_ == "Ready");
            for condition in &mut conditions {
                condition.last_heartbeat_time = None;
            }
            conditions
        });
        node.status = Some(NodeStatus {
            capacity: status.capacity,
            allocatable: status.allocatable,
            conditions,
            ..NodeStatus::default()
        });
    }
}

/// Keeps of a NodeResourceTopology its zones and what CPU the machine has; koordlet's lists of CPUs
/// are most of it.
pub(crate) fn trim_topology(mut topology: NodeResourceTopology) -> NodeResourceTopology {
    if let Some(annotations) = &mut topology.metadata.annotations {
        annotations.retain(|key, _| key == annotations::NODE_CPU_BASIC_INFO);
    }
    topology.spec.attributes = Vec::new();
    topology
}
