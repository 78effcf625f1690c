//! Device: the GPUs, RDMA adapters and FPGAs of a node.
//!
//! Written by koordlet, read by the scheduler and the manager; has no status subresource.
//! Source: Koordinator `apis/scheduling/v1alpha1/device_types.go`.

use crate::quantity::ResourceList;
use crate::serde_util::open_enum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

open_enum! {
    /// Kind of device.
    DeviceType {
        /// Graphics or AI accelerator.
        Gpu = "gpu",
        /// FPGA.
        Fpga = "fpga",
        /// RDMA adapter.
        Rdma = "rdma",
    }
}

/// Type of the [`DeviceInfo::conditions`] entry for the health of the device.
pub const CONDITION_HEALTHY: &str = "Healthy";

/// Devices of the node that the object is named after.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "scheduling.koordinator.sh",
    version = "v1alpha1",
    kind = "Device",
    plural = "devices",
    status = "DeviceStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))"
)]
#[serde(rename_all = "camelCase")]
pub struct DeviceSpec {
    /// All devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceInfo>,
}

/// Description of one device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["health"])))]
pub struct DeviceInfo {
    /// Unique id, such as a GPU UUID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Minor number; identifies the device within its type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<i32>,
    /// Kind of device.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<DeviceType>,
    /// Physical slot.
    #[serde(rename = "moduleID", skip_serializing_if = "Option::is_none")]
    pub module_id: Option<i32>,
    /// Labels that device selectors match.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// True if the device can be used.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("default" = false)))]
    pub health: bool,
    /// Capacity of the device by extended resource, such as `koordinator.sh/gpu-core`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
    /// Position of the device in the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<DeviceTopology>,
    /// Virtual functions of the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vf_groups: Vec<VirtualFunctionGroup>,
    /// Health details.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Position of a device in the machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeviceTopology {
    /// CPU socket.
    #[serde(rename = "socketID")]
    pub socket_id: i32,
    /// NUMA node.
    #[serde(rename = "nodeID")]
    pub node_id: i32,
    /// PCIe root.
    #[serde(rename = "pcieID")]
    pub pcie_id: String,
    /// PCI bus id.
    #[serde(rename = "busID", default, skip_serializing_if = "String::is_empty")]
    pub bus_id: String,
}

/// Virtual functions with the same labels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VirtualFunctionGroup {
    /// Labels that virtual-function selectors match.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfs: Vec<VirtualFunction>,
}

/// Description of one virtual function.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VirtualFunction {
    /// Minor number.
    pub minor: i32,
    /// PCI bus id.
    #[serde(rename = "busID", default, skip_serializing_if = "String::is_empty")]
    pub bus_id: String,
}

/// Allocations of devices to pods.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeviceStatus {
    /// Allocations by device type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocations: Vec<DeviceTypeAllocations>,
}

/// Allocations of one device type.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeviceTypeAllocations {
    /// Kind of device.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<DeviceType>,
    /// Allocations by pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<DeviceAllocationItem>,
}

/// Devices allocated to one pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeviceAllocationItem {
    /// Pod name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Pod namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Pod UID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// Minor numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub minors: Vec<i32>,
}
