//! `topology.node.k8s.io/v1alpha1`: the version that koordlet writes.

use super::Zone;
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
    version = "v1alpha1",
    kind = "NodeResourceTopology",
    plural = "noderesourcetopologies",
    singular = "noderesourcetopology",
    shortname = "node-res-topo",
    no_spec,
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct NodeResourceTopologyV1alpha1Fields {
    /// Topology manager policies of the kubelet.
    pub topology_policies: Vec<String>,
    /// The zones.
    pub zones: Vec<Zone>,
}
