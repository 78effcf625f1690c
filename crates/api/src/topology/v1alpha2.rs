//! `topology.node.k8s.io/v1alpha2`: the storage version.

use super::{AttributeInfo, Zone, v1alpha1};
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Top-level fields of a NodeResourceTopology, which has no spec.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "topology.node.k8s.io",
    version = "v1alpha2",
    kind = "NodeResourceTopology",
    plural = "noderesourcetopologies",
    singular = "noderesourcetopology",
    shortname = "node-res-topo",
    no_spec,
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct NodeResourceTopologyFields {
    /// Topology manager policies of the kubelet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_policies: Vec<String>,
    /// The zones.
    pub zones: Vec<Zone>,
    /// Attributes of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<AttributeInfo>,
}

/// Converts an object of the older version, which has no attributes.
impl From<v1alpha1::NodeResourceTopology> for NodeResourceTopology {
    fn from(old: v1alpha1::NodeResourceTopology) -> Self {
        Self {
            metadata: old.metadata,
            spec: NodeResourceTopologyFields {
                topology_policies: old.spec.topology_policies,
                zones: old.spec.zones,
                attributes: Vec::new(),
            },
        }
    }
}
