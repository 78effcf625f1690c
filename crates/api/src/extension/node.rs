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
    /// Amounts that a node reservation is subtracted from.
    NodeReservationApplyPolicy {
        /// Subtracted from the allocatable amounts that the scheduler uses.
        Default = "Default",
        /// Only the CPUs are excluded; the node's allocatable amounts already exclude them.
        ReservedCpusOnly = "ReservedCPUsOnly",
    }
}

/// Annotation `node.koordinator.sh/reservation`: resources reserved from all pods.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReservation {
    /// Amounts by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
    /// CPU list such as `0-5`; its count replaces the cpu amount.
    #[serde(
        rename = "reservedCPUs",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    pub reserved_cpus: String,
    /// Amounts that the reservation is subtracted from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply_policy: Option<NodeReservationApplyPolicy>,
}

/// Annotation `node.koordinator.sh/originExtendedAllocatable`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OriginAllocatable {
    /// Batch resources before those of third parties were subtracted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
}

/// Annotation `node.koordinator.sh/thirdPartyAllocations`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThirdPartyAllocations {
    /// Allocations by system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocations: Vec<ThirdPartyAllocation>,
}

/// Resources that another system, such as YARN, uses on the node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThirdPartyAllocation {
    /// Name of the system.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Name of the priority class whose resources it uses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub priority: String,
    /// Amounts by resource name.
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
    /// True if other pods may not use these CPUs; unset means true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset_exclusive: Option<bool>,
}

/// Annotation `scheduling.koordinator.sh/usage-thresholds`: load thresholds of this node, in percent.
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

/// Load thresholds for a usage percentile.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomAggregatedUsage {
    /// Resource to threshold, percent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub usage_thresholds: BTreeMap<String, i64>,
    /// The percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_aggregation_type: Option<AggregationType>,
    /// Window of the percentile.
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
    /// True if hyper-threading is on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hyper_thread_enabled: bool,
    /// True if turbo is on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub turbo_enabled: bool,
    /// Mask of all ways of the L3 cache, hexadecimal.
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

/// Position of one logical CPU.
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
    /// True if the kubelet allocated them.
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
    /// CPUs that the kubelet reserves.
    #[serde(
        rename = "reservedCPUs",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    pub reserved_cpus: String,
}

/// One possible partition of a node's GPUs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuPartition {
    /// Minor numbers of the GPUs.
    #[serde(default)]
    pub minors: Vec<i32>,
    /// Type of the links between the GPUs, such as `NVLink`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gpu_link_type: String,
    /// Bandwidth between the GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring_bus_bandwidth: Option<Quantity>,
    /// Score; partitions with a higher one are preferred.
    #[serde(default, skip_serializing_if = "crate::serde_util::is_zero")]
    pub allocation_score: i64,
}

/// Annotation `scheduling.koordinator.sh/reservation-restricted-options`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationRestrictedOptions {
    /// Resources that a restricted reservation restricts; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
}

/// Annotation `scheduling.koordinator.sh/gpu-partitions`: number of GPUs to partitions of that size.
pub type GpuPartitionTable = BTreeMap<String, Vec<GpuPartition>>;

/// Templates of the slices of a shared GPU: template name to resources.
pub type GpuSharedResourceTemplates = BTreeMap<String, ResourceList>;

/// Validated node reservation. Every component parses annotation `node.koordinator.sh/reservation` by this
/// type.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReservedResources {
    /// Amounts by resource name; if CPUs are listed, their count is the cpu amount.
    pub amounts: ResourceList,
    /// Listed CPUs.
    pub cpus: CpuSet,
    /// True if the amounts are subtracted from the allocatable amounts that the scheduler uses.
    pub trims_allocatable: bool,
}

impl ReservedResources {
    /// Parses the annotation. Returns `None` if it is missing or empty.
    ///
    /// # Errors
    /// The value is not JSON of [`NodeReservation`], or `reservedCPUs` is not a CPU list. The error names
    /// annotation, value and field.
    pub fn from_annotations(
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

    /// Returns the reserved amount of `resource`; zero if it is not listed.
    #[must_use]
    pub fn amount(&self, resource: &str) -> Quantity {
        self.amounts.get(resource).copied().unwrap_or_default()
    }
}

impl NodeReservation {
    /// Returns true if the amounts are subtracted from the allocatable amounts that the scheduler uses.
    #[must_use]
    pub fn trims_allocatable(&self) -> bool {
        match &self.apply_policy {
            None | Some(NodeReservationApplyPolicy::Default) => true,
            Some(other) => other.as_str().is_empty(),
        }
    }
}

impl SystemQosResource {
    /// Returns true if other pods may not use the CPUs; unset means true.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.cpuset_exclusive.unwrap_or(true)
    }
}
