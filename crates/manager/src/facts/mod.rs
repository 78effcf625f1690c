//! Compact forms of kinds with many objects: a pod or a report takes several kilobytes as an object, and the
//! manager reads little of it.

mod interner;
mod metric;
mod packed;
mod pod;
mod recommendation;
mod slo;
mod target;

pub(crate) use interner::Interner;
pub(crate) use metric::{MetricFacts, MetricReport, PodUsage};
pub(crate) use packed::PackedAmount;
pub(crate) use pod::{FieldMask, PodFacts, PodsByNode};
pub use recommendation::RecommendationFacts;
pub(crate) use recommendation::distributions;
pub(crate) use slo::{SloFacts, Specs};
pub(crate) use target::{Target, percentiles};

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use koord_api::annotations;
use koord_api::topology::v1alpha2::NodeResourceTopology;

/// Removes everything from a node but its metadata, capacity, allocatable, taints, `unschedulable` and Ready
/// condition.
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

/// Removes everything from a NodeResourceTopology but its zones and the CPU basic info; most of its size are
/// koordlet's lists of CPUs.
pub(crate) fn trim_topology(mut topology: NodeResourceTopology) -> NodeResourceTopology {
    if let Some(annotations) = &mut topology.metadata.annotations {
        annotations.retain(|key, _| key == annotations::NODE_CPU_BASIC_INFO);
    }
    topology.spec.attributes = Vec::new();
    topology
}
