//! Formats of annotations on nodes, NodeResourceTopologies, Devices and Reservations.

use super::AnnotationError;
use crate::annotations;
use crate::duration::GoDuration;
use crate::quantity::{Quantity, ResourceList};
use crate::resources;
use crate::serde_util::open_enum;
use crate::slo::AggregationType;
use koord_cpuset::{CpuListError, CpuSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

open_enum! {
    /// What a node reservation takes resources from.
    NodeReservationApplyPolicy {
        /// From what the scheduler sees as allocatable.
        Default = "Default",
        /// Only the CPUs themselves; allocatable already excludes them.
        ReservedCpusOnly = "ReservedCPUsOnly",
    }
}

/// Annotation `node.koordinator.sh/reservation`: resources kept from all pods.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReservation {
    /// Amounts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
    /// CPU list such as `0-5`; its count replaces the cpu amount.
    #[serde(
        rename = "reservedCPUs",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    pub reserved_cpus: String,
    /// What they are taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply_policy: Option<NodeReservationApplyPolicy>,
}

/// Annotation `node.koordinator.sh/originExtendedAllocatable`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OriginAllocatable {
    /// Batch resources before third-party use was taken off.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
}

/// Annotation `node.koordinator.sh/thirdPartyAllocations`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThirdPartyAllocations {
    /// By system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocations: Vec<ThirdPartyAllocation>,
}

/// What another system, such as YARN, runs on the node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThirdPartyAllocation {
    /// The system.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Priority class name whose resources it uses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub priority: String,
    /// Amounts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
}

/// Annotation `node.koordinator.sh/system-qos-resource`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SystemQosResource {
    /// CPUs of SYSTEM pods.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cpuset: String,
    /// Whether others keep off them; unset is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset_exclusive: Option<bool>,
}

/// Annotation `scheduling.koordinator.sh/usage-thresholds`: load limits of this node, percent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomUsageThresholds {
    /// Resource to threshold, all pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub usage_thresholds: BTreeMap<String, i64>,
    /// Resource to threshold, prod pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prod_usage_thresholds: BTreeMap<String, i64>,
    /// Thresholds for percentiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregated_usage: Option<CustomAggregatedUsage>,
}

/// Load limits for a usage percentile.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomAggregatedUsage {
    /// Resource to threshold, percent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub usage_thresholds: BTreeMap<String, i64>,
    /// The percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_aggregation_type: Option<AggregationType>,
    /// Its window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_aggregated_duration: Option<GoDuration>,
}

/// Annotation `node.koordinator.sh/cpu-basic-info`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuBasicInfo {
    /// Model name as in `/proc/cpuinfo`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cpu_model: String,
    /// Whether hyper-threads are on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hyper_thread_enabled: bool,
    /// Whether turbo is on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub turbo_enabled: bool,
    /// Mask of all cache ways, hexadecimal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cat_l3_cbm_mask: String,
    /// CPU vendor.
    #[serde(rename = "vendorID", default, skip_serializing_if = "String::is_empty")]
    pub vendor_id: String,
}

/// Annotation `node.koordinator.sh/cpu-topology`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuTopology {
    /// All CPUs.
    #[serde(default)]
    pub detail: Vec<CpuInfo>,
}

/// Place of one logical CPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuInfo {
    /// Logical CPU.
    #[serde(default)]
    pub id: i32,
    /// Physical core.
    #[serde(default)]
    pub core: i32,
    /// Socket.
    #[serde(default)]
    pub socket: i32,
    /// NUMA node.
    #[serde(default)]
    pub node: i32,
}

/// One entry of annotation `node.koordinator.sh/pod-cpu-allocs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCpuAlloc {
    /// Pod namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Pod name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Pod UID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// CPUs of the pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cpuset: String,
    /// Whether the kubelet gave them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub managed_by_kubelet: bool,
}

/// One entry of annotations `node.koordinator.sh/cpu-shared-pools` and `be-cpu-shared-pools`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuSharedPool {
    /// Socket.
    #[serde(default)]
    pub socket: i32,
    /// NUMA node.
    #[serde(default)]
    pub node: i32,
    /// CPUs of the pool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cpuset: String,
}

/// Annotation `kubelet.koordinator.sh/cpu-manager-policy`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletCpuManagerPolicy {
    /// `static` or `none`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// Policy options, such as `full-pcpus-only`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// CPUs the kubelet keeps.
    #[serde(
        rename = "reservedCPUs",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    pub reserved_cpus: String,
}

/// One way to split the GPUs of a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuPartition {
    /// The GPUs.
    #[serde(default)]
    pub minors: Vec<i32>,
    /// How they are linked, such as `NVLink`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gpu_link_type: String,
    /// Bandwidth between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring_bus_bandwidth: Option<Quantity>,
    /// Higher is better.
    #[serde(default, skip_serializing_if = "crate::serde_util::is_zero")]
    pub allocation_score: i64,
}

/// Annotation `scheduling.koordinator.sh/reservation-restricted-options`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationRestrictedOptions {
    /// Resources a restricted reservation restricts; unset is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
}

/// Annotation `scheduling.koordinator.sh/gpu-partitions`: number of GPUs to partitions of that size.
pub type GpuPartitionTable = BTreeMap<String, Vec<GpuPartition>>;

/// Templates a shared GPU may be cut by: template name to resources.
pub type GpuSharedResourceTemplates = BTreeMap<String, ResourceList>;

/// A node reservation, read and checked: the one reader of annotation
/// `node.koordinator.sh/reservation`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reserved {
    /// Amounts; where CPUs are listed, their count is the cpu amount.
    pub amounts: ResourceList,
    /// The CPUs that are listed.
    pub cpus: CpuSet,
    /// Whether the amounts are taken off what the scheduler sees as allocatable.
    pub trims_allocatable: bool,
}

impl Reserved {
    /// Reads the annotation; `None` when it is absent or empty.
    ///
    /// # Errors
    /// It is not the JSON it should be, or `reservedCPUs` is not a CPU list. The error names
    /// annotation, value and field.
    pub fn of(
        annotations: Option<&BTreeMap<String, String>>,
    ) -> Result<Option<Self>, AnnotationError> {
        let key = annotations::NODE_RESERVATION;
        let Some(reservation) = super::read::<NodeReservation>(annotations, key)? else {
            return Ok(None);
        };
        let cpus: CpuSet = (reservation.reserved_cpus.parse()).map_err(|error: CpuListError| {
            AnnotationError::field(annotations, key, "reservedCPUs", &error)
        })?;
        let trims_allocatable = reservation.trims_allocatable();
        let mut amounts = reservation.resources;
        if !cpus.is_empty() {
            let count = Quantity::from_value(i64::try_from(cpus.len()).unwrap_or(i64::MAX));
            amounts.insert(resources::CPU.to_owned(), count);
        }
        Ok(Some(Self {
            amounts,
            cpus,
            trims_allocatable,
        }))
    }

    /// The reserved amount of `resource`; nothing where it is not named.
    #[must_use]
    pub fn amount(&self, resource: &str) -> Quantity {
        self.amounts.get(resource).copied().unwrap_or_default()
    }
}

impl NodeReservation {
    /// Whether the amounts are taken off what the scheduler sees as allocatable.
    #[must_use]
    pub fn trims_allocatable(&self) -> bool {
        match &self.apply_policy {
            None | Some(NodeReservationApplyPolicy::Default) => true,
            Some(other) => other.as_str().is_empty(),
        }
    }
}

impl SystemQosResource {
    /// Whether others keep off the CPUs; unset is true.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.cpuset_exclusive.unwrap_or(true)
    }
}
