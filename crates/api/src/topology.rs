//! Types of the API group `topology.node.k8s.io`: NUMA zones of a node and their resources.
//!
//! Source: `k8stopologyawareschedwg/noderesourcetopology-api` as used by Koordinator. A zone is a NUMA
//! node, named [`zone_name`], type [`ZONE_TYPE_NODE`].

pub mod v1alpha1;
pub mod v1alpha2;

use crate::quantity::Quantity;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Type of a zone that is a NUMA node.
pub const ZONE_TYPE_NODE: &str = "Node";

/// Returns the name of the zone of NUMA node `id`.
#[must_use]
pub fn zone_name(id: u32) -> String {
    format!("node-{id}")
}

/// Returns the id of the NUMA node that a zone is named after; `None` if the name has another form.
#[must_use]
pub fn zone_id(name: &str) -> Option<u32> {
    name.strip_prefix("node-")?.parse().ok()
}

/// A part of a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Zone {
    /// Name, unique in the node.
    pub name: String,
    /// Kind of zone.
    #[serde(rename = "type")]
    pub type_: String,
    /// Zone this one is a part of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parent: String,
    /// Distance to other zones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<CostInfo>,
    /// Attributes of the zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<AttributeInfo>,
    /// Resources of the zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ResourceInfo>,
}

/// Distance to another zone.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CostInfo {
    /// Name of the zone to which `value` is the distance.
    pub name: String,
    /// Distance as in the ACPI SLIT; 10 is local.
    pub value: i64,
}

/// One resource of a zone.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceInfo {
    /// Resource name.
    pub name: String,
    /// Total amount.
    pub capacity: Quantity,
    /// Amount that pods may use.
    pub allocatable: Quantity,
    /// Amount that is not used yet.
    pub available: Quantity,
}

/// Name and value of an attribute.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttributeInfo {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}
