//! ClusterNetworkTopology: the layers of switches and blocks that nodes are connected to.
//!
//! Source: Koordinator `apis/scheduling/v1alpha1/cluster_network_topology_types.go`.

use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Topmost layer: the whole cluster.
pub const CLUSTER_TOPOLOGY_LAYER: &str = "ClusterTopologyLayer";
/// Lowest layer: a node.
pub const NODE_TOPOLOGY_LAYER: &str = "NodeTopologyLayer";

/// Topology layers and the node labels that define them.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "scheduling.koordinator.sh",
    version = "v1alpha1",
    kind = "ClusterNetworkTopology",
    plural = "clusternetworktopologies",
    singular = "clusternetworktopology",
    status = "ClusterNetworkTopologyStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))"
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterNetworkTopologySpec {
    /// The topology layers.
    pub network_topology_spec: Vec<NetworkTopologyLayerSpec>,
}

/// One topology layer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkTopologyLayerSpec {
    /// Node labels whose values together name a node's domain in the layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub label_key: Vec<String>,
    /// The layer above.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parent_topology_layer: String,
    /// Name of the layer.
    pub topology_layer: String,
}

/// Observed topology.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterNetworkTopologyStatus {
    /// Topology domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub detail_status: Vec<NetworkTopologyDetail>,
}

/// One topology domain.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkTopologyDetail {
    /// The domain.
    pub topology_info: TopologyInfo,
    /// The parent domain; unset at the top.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_topology_info: Option<TopologyInfo>,
    /// The layer below.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub child_topology_layer: String,
    /// Names of the child domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child_topology_names: Vec<String>,
    /// Number of nodes in the domain.
    pub node_num: i32,
}

/// Topology domain: layer and name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TopologyInfo {
    /// Layer.
    pub topology_layer: String,
    /// Name within the layer.
    pub topology_name: String,
}
