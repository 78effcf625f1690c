//! Formats of pod annotations.

use super::AnnotationError;
use crate::annotations;
use crate::quantity::{Quantity, ResourceList};
use crate::serde_util::open_enum;
use crate::slo::{CPUQOSCfg, ExtensionsMap, MemoryQOSCfg};
use k8s_openapi::api::core::v1::{NodeSelectorTerm, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, LabelSelector, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

open_enum! {
    /// Selection of exclusive CPUs.
    CpuBindPolicy {
        /// The policy of the node.
        Default = "Default",
        /// Whole physical cores.
        FullPCPUs = "FullPCPUs",
        /// CPUs of different physical cores, one hyper-thread of each.
        SpreadByPCPUs = "SpreadByPCPUs",
        /// All CPUs of the pod's NUMA nodes, not exclusive.
        ConstrainedBurst = "ConstrainedBurst",
    }
}

open_enum! {
    /// Distance to the CPUs of other pods with an exclusive policy.
    CpuExclusivePolicy {
        /// No distance.
        None = "None",
        /// A different physical core.
        PcpuLevel = "PCPULevel",
        /// A different NUMA node.
        NumaNodeLevel = "NUMANodeLevel",
    }
}

open_enum! {
    /// Policy for the alignment of requests to NUMA nodes.
    NumaTopologyPolicy {
        /// The policy of the node.
        Unset = "",
        /// One NUMA node if possible.
        BestEffort = "BestEffort",
        /// The smallest number of NUMA nodes that the requests allow; otherwise the node is rejected.
        Restricted = "Restricted",
        /// One NUMA node; otherwise the node is rejected.
        SingleNumaNode = "SingleNUMANode",
    }
}

/// Annotation `scheduling.koordinator.sh/resource-spec`: requested CPU binding.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceSpec {
    /// Required bind policy.
    #[serde(
        rename = "requiredCPUBindPolicy",
        skip_serializing_if = "Option::is_none"
    )]
    pub required_cpu_bind_policy: Option<CpuBindPolicy>,
    /// Met if possible.
    #[serde(
        rename = "preferredCPUBindPolicy",
        skip_serializing_if = "Option::is_none"
    )]
    pub preferred_cpu_bind_policy: Option<CpuBindPolicy>,
    /// Met if possible.
    #[serde(
        rename = "preferredCPUExclusivePolicy",
        skip_serializing_if = "Option::is_none"
    )]
    pub preferred_cpu_exclusive_policy: Option<CpuExclusivePolicy>,
}

/// Annotation `scheduling.koordinator.sh/resource-status`: CPUs and NUMA resources that the scheduler
/// allocated.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// CPU list such as `0-3,8`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cpuset: String,
    /// Resources by NUMA node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa_node_resources: Vec<NumaNodeResource>,
}

/// Resources of one NUMA node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaNodeResource {
    /// NUMA node.
    #[serde(default)]
    pub node: i32,
    /// Amounts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
}

/// Annotation `scheduling.koordinator.sh/numa-topology-spec`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaTopologySpec {
    /// Policy for the alignment of requests to NUMA nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_topology_policy: Option<NumaTopologyPolicy>,
    /// `Preferred` or `Required`: separates pods on one NUMA node from pods on several.
    #[serde(
        rename = "singleNUMANodeExclusive",
        skip_serializing_if = "Option::is_none"
    )]
    pub single_numa_node_exclusive: Option<String>,
}

/// Annotation `node.koordinator.sh/extended-resource-spec`: batch resources as the runtime hooks need them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtendedResourceSpec {
    /// Batch resources by container name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, ExtendedResourceContainerSpec>,
}

/// Batch resources of one container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtendedResourceContainerSpec {
    /// Limits of the container by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: ResourceList,
    /// Requests of the container by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: ResourceList,
}

/// Annotation `koordinator.sh/memoryQOS`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMemoryQOSConfig {
    /// `default` (as the class), `none` (off) or `auto` (on).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// Values that override those of the class.
    #[serde(flatten)]
    pub values: MemoryQOSCfg,
}

/// Annotation `koordinator.sh/networkQOS`: bandwidth of the pod, bits per second.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNetworkQOS {
    /// Maximum incoming bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_limit: Option<Quantity>,
    /// Maximum outgoing bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_limit: Option<Quantity>,
}

/// Range of `oom_score_adj` that the kernel accepts.
const OOM_SCORE_ADJ: std::ops::RangeInclusive<i64> = -1000..=1000;

/// Annotations `koordinator.sh/oom-score-adj` and `koordinator.sh/oom-score-adj-spec`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OomScoreAdj {
    /// Value of containers that are not named; `None` leaves them unchanged.
    pub default: Option<i32>,
    /// Values by container name; these take precedence.
    pub containers: BTreeMap<String, i32>,
}

impl OomScoreAdj {
    /// Returns the value of `container`; `None` leaves it unchanged.
    #[must_use]
    pub fn for_container(&self, container: &str) -> Option<i32> {
        self.containers.get(container).copied().or(self.default)
    }

    /// Parses the annotation for all containers. Returns `None` if it is missing or empty.
    ///
    /// # Errors
    /// The value is not an integer from −1000 to 1000.
    pub fn read_default(
        annotations: Option<&BTreeMap<String, String>>,
    ) -> Result<Option<i32>, AnnotationError> {
        let key = annotations::POD_OOM_SCORE_ADJ;
        let text = annotations.and_then(|all| all.get(key));
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let adj = text.parse().ok().and_then(oom_score_adj);
        let problem = format!("invalid value {text:?}, expected an integer from -1000 to 1000");
        adj.map(Some)
            .ok_or_else(|| AnnotationError::field(annotations, key, ".", &problem))
    }

    /// Parses the annotation for single containers. Returns an empty map if it is missing.
    ///
    /// # Errors
    /// The value is not a JSON object of integers from −1000 to 1000.
    pub fn read_containers(
        annotations: Option<&BTreeMap<String, String>>,
    ) -> Result<BTreeMap<String, i32>, AnnotationError> {
        let key = annotations::POD_OOM_SCORE_ADJ_SPEC;
        let values: BTreeMap<String, i64> = super::read(annotations, key)?.unwrap_or_default();
        let checked = values.into_iter().map(|(name, adj)| {
            let problem = format!("invalid value {adj}, expected an integer from -1000 to 1000");
            let checked = oom_score_adj(adj)
                .ok_or_else(|| AnnotationError::field(annotations, key, &name, &problem));
            checked.map(|adj| (name, adj))
        });
        checked.collect()
    }
}

fn oom_score_adj(adj: i64) -> Option<i32> {
    let adj = Some(adj).filter(|adj| OOM_SCORE_ADJ.contains(adj))?;
    i32::try_from(adj).ok()
}

/// Parses annotation `koordinator.sh/eviction-priority`. Returns `None` if it is missing or empty, which
/// counts as 0.
///
/// # Errors
/// The value is not a 32-bit integer.
pub fn eviction_priority(
    annotations: Option<&BTreeMap<String, String>>,
) -> Result<Option<i32>, AnnotationError> {
    let key = annotations::POD_EVICTION_PRIORITY;
    let text = annotations.and_then(|all| all.get(key));
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let problem = format!("invalid value {text:?}, expected a 32-bit integer");
    let parsed = text.parse().map(Some);
    parsed.map_err(|_| AnnotationError::field(annotations, key, ".", &problem))
}

/// Parses annotation `koordinator.sh/eviction-policy`: the features that may evict the pod. Returns `None` if
/// it is missing, which allows all.
///
/// # Errors
/// The value is not a JSON list of names. The empty text is an error, too.
pub fn eviction_policy(
    annotations: Option<&BTreeMap<String, String>>,
) -> Result<Option<Vec<String>>, AnnotationError> {
    let key = annotations::POD_EVICTION_POLICY;
    if annotations.is_some_and(|all| all.get(key).is_some_and(String::is_empty)) {
        let problem = "invalid value \"\", expected a list of features";
        return Err(AnnotationError::field(annotations, key, ".", &problem));
    }
    super::read(annotations, key)
}

/// Parses annotation `koordinator.sh/cpuQOS`. Returns `None` if it is missing or empty.
///
/// # Errors
/// The value is not JSON, or the group identity is not in −1..=2.
pub fn pod_cpu_qos(
    annotations: Option<&BTreeMap<String, String>>,
) -> Result<Option<CPUQOSCfg>, AnnotationError> {
    let key = annotations::POD_CPU_QOS;
    let Some(config) = super::read::<CPUQOSCfg>(annotations, key)? else {
        return Ok(None);
    };
    match config.group_identity {
        Some(identity) if !(-1..=2).contains(&identity) => {
            let problem = format!("invalid value {identity}, expected -1 to 2");
            Err(AnnotationError::field(
                annotations,
                key,
                "groupIdentity",
                &problem,
            ))
        }
        _ => Ok(Some(config)),
    }
}

/// Annotation `node.koordinator.sh/resctrl`: cache and memory bandwidth of the pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resctrl {
    /// Last-level cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub llc: Option<ResctrlResource>,
    /// Memory bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mb: Option<ResctrlResource>,
}

/// Settings of one resctrl resource.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResctrlResource {
    /// Settings of all caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schemata: Option<ResctrlSchemata>,
    /// Settings of single caches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schemata_per_cache: Vec<ResctrlSchemataPerCache>,
}

/// A share of a cache or of bandwidth.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResctrlSchemata {
    /// Bandwidth in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// Start and end of the cache range in percent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub range: Vec<i64>,
}

/// A share of one cache.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResctrlSchemataPerCache {
    /// Id of the cache.
    #[serde(rename = "cacheID", default)]
    pub cache_id: i64,
    /// Bandwidth in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// Start and end of the cache range in percent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub range: Vec<i64>,
}

/// Nodes that the scheduler is to try for a pod: annotation `internal.scheduling.koordinator.sh/scheduling-hint`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingHint {
    /// Names of the only nodes to consider; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_names: Vec<String>,
    /// Names of the nodes to try first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferred_node_names: Vec<String>,
    /// Hints for other plugins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extensions: Option<ExtensionsMap>,
}

/// Annotation `scheduling.koordinator.sh/reservation-allocated`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationAllocated {
    /// Name of the reservation that the pod uses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// UID of the reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Annotation `scheduling.koordinator.sh/reservation-affinity`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationAffinity {
    /// Name of the required reservation; empty means any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Terms of which a reservation must match at least one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_during_scheduling_ignored_during_execution: Option<ReservationAffinitySelector>,
    /// Labels a reservation must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reservation_selector: BTreeMap<String, String>,
    /// Tolerations for the taints of reservations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

/// Terms of which a reservation must match at least one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationAffinitySelector {
    /// The terms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservation_selector_terms: Vec<NodeSelectorTerm>,
}

/// Annotation `scheduling.koordinator.sh/exact-match-reservation`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExactMatchReservationSpec {
    /// Resources whose amounts must be equal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
}

/// Annotation `scheduling.koordinator.sh/soft-eviction`: a request to evict the pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SoftEvictionSpec {
    /// Time of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    /// Options for the deletion of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_options: Option<DeleteOptions>,
    /// Component or user that made the request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub initiator: String,
    /// Reason of the request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Annotation `gang.scheduling.koordinator.sh/network-topology-spec`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkTopologySpec {
    /// Strategies by topology layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gather_strategy: Vec<GatherStrategy>,
}

/// Gathering of a gang's members in one topology layer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatherStrategy {
    /// Topology layer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layer: String,
    /// `MustGather` or `PreferGather`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub strategy: String,
    /// Factor that the number of members in a topology domain must be a multiple of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_count_multiple: Option<i64>,
}

/// Annotation `scheduling.koordinator.sh/gpu-partition-spec`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuPartitionSpec {
    /// `Restricted` or `BestEffort` (the default).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub allocate_policy: String,
    /// Least bandwidth between the GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring_bus_bandwidth: Option<Quantity>,
}

/// Annotation `scheduling.koordinator.sh/device-joint-allocate`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceJointAllocate {
    /// Device types that are allocated together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_types: Vec<String>,
    /// `SamePCIe` or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub required_scope: String,
}

/// Selection of devices of one type.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAllocateHint {
    /// Selector of the device's labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Selector of the virtual function's labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vf_selector: Option<LabelSelector>,
    /// `ApplyForAll` or `RequestsAsCount`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub allocate_strategy: String,
    /// `Device`, `PCIe`, `NUMANode` or `Node`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub required_topology_scope: String,
    /// `DeviceLevel` or `PCIeLevel`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub exclusive_policy: String,
}

/// One device allocated to a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAllocation {
    /// Minor number.
    #[serde(default)]
    pub minor: i32,
    /// Amounts allocated from the device.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
    /// Unique id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Details by device type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension: Option<DeviceAllocationExtension>,
}

/// Details of a device allocated to a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAllocationExtension {
    /// Virtual functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfs: Vec<AllocatedVirtualFunction>,
    /// Template of the allocated slice of a shared GPU.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gpu_shared_resource_template: String,
}

/// A virtual function allocated to a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedVirtualFunction {
    /// Minor number.
    #[serde(default, skip_serializing_if = "crate::serde_util::is_default")]
    pub minor: i32,
    /// PCI bus id.
    #[serde(rename = "busID", default, skip_serializing_if = "String::is_empty")]
    pub bus_id: String,
}

/// Annotation `scheduling.koordinator.sh/device-allocated`: device type to devices.
pub type DeviceAllocations = BTreeMap<String, Vec<DeviceAllocation>>;

/// Annotation `scheduling.koordinator.sh/device-allocate-hint`: device type to hint.
pub type DeviceAllocateHints = BTreeMap<String, DeviceAllocateHint>;
