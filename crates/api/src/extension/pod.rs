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
    /// How exclusive CPUs are picked.
    CpuBindPolicy {
        /// As the node says.
        Default = "Default",
        /// Whole physical cores.
        FullPCPUs = "FullPCPUs",
        /// One hyper-thread of each physical core.
        SpreadByPCPUs = "SpreadByPCPUs",
        /// Bound to the CPUs of its NUMA nodes.
        ConstrainedBurst = "ConstrainedBurst",
    }
}

open_enum! {
    /// How far away other exclusive CPUs are kept.
    CpuExclusivePolicy {
        /// Not at all.
        None = "None",
        /// Not on the same physical core.
        PcpuLevel = "PCPULevel",
        /// Not on the same NUMA node.
        NumaNodeLevel = "NUMANodeLevel",
    }
}

open_enum! {
    /// How requests are laid over NUMA nodes.
    NumaTopologyPolicy {
        /// As the node says.
        Unset = "",
        /// On one NUMA node if possible.
        BestEffort = "BestEffort",
        /// On as few NUMA nodes as possible.
        Restricted = "Restricted",
        /// On one NUMA node.
        SingleNumaNode = "SingleNUMANode",
    }
}

/// Annotation `scheduling.koordinator.sh/resource-spec`: how the pod wants its CPUs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceSpec {
    /// Must be met.
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

/// Annotation `scheduling.koordinator.sh/resource-status`: what the scheduler gave.
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
    /// How requests are laid over NUMA nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_topology_policy: Option<NumaTopologyPolicy>,
    /// `Preferred` or `Required`: keep single-node and multi-node pods apart.
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
    /// By container name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, ExtendedResourceContainerSpec>,
}

/// Batch resources of one container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtendedResourceContainerSpec {
    /// Limits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: ResourceList,
    /// Requests.
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
    /// Values that replace the class's.
    #[serde(flatten)]
    pub values: MemoryQOSCfg,
}

/// Annotation `koordinator.sh/networkQOS`: bandwidth of the pod, bits per second.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNetworkQOS {
    /// Most that comes in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_limit: Option<Quantity>,
    /// Most that goes out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_limit: Option<Quantity>,
}

/// Range of `oom_score_adj` that the kernel accepts.
const OOM_SCORE_ADJ: std::ops::RangeInclusive<i64> = -1000..=1000;

/// Annotations `koordinator.sh/oom-score-adj` and `koordinator.sh/oom-score-adj-spec`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OomScoreAdj {
    /// For containers that are not named.
    pub default: Option<i32>,
    /// By container name; these go first.
    pub containers: BTreeMap<String, i32>,
}

impl OomScoreAdj {
    /// What `container` gets; `None` leaves it alone.
    #[must_use]
    pub fn of(&self, container: &str) -> Option<i32> {
        self.containers.get(container).copied().or(self.default)
    }

    /// Reads the annotation for all containers; `None` when it is absent or empty.
    ///
    /// # Errors
    /// It is no integer from −1000 to 1000.
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

    /// Reads the annotation for single containers; empty when it is absent.
    ///
    /// # Errors
    /// It is no JSON object of integers from −1000 to 1000.
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

/// Annotation `koordinator.sh/eviction-priority`; `None` when it is absent or empty, which counts as 0.
///
/// # Errors
/// It is no 32-bit integer.
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

/// Annotation `koordinator.sh/eviction-policy`: the features that may evict the pod. `None` when it is
/// absent: all may.
///
/// # Errors
/// It is no JSON list of names. The empty text is none, either.
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

/// Annotation `koordinator.sh/cpuQOS`.
///
/// # Errors
/// It is not JSON, or the group identity is not in −1..=2.
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

/// One resctrl resource.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResctrlResource {
    /// For all caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schemata: Option<ResctrlSchemata>,
    /// For single caches.
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
    /// The cache.
    #[serde(rename = "cacheID", default)]
    pub cache_id: i64,
    /// Bandwidth in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// Start and end of the cache range in percent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub range: Vec<i64>,
}

/// Annotation `internal.scheduling.koordinator.sh/scheduling-hint`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingHint {
    /// The only nodes to consider.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_names: Vec<String>,
    /// Nodes to try first.
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
    /// Reservation the pod uses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its UID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Annotation `scheduling.koordinator.sh/reservation-affinity`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationAffinity {
    /// Name of the one reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Terms a reservation must meet; one is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_during_scheduling_ignored_during_execution: Option<ReservationAffinitySelector>,
    /// Labels a reservation must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reservation_selector: BTreeMap<String, String>,
    /// Taints of reservations that are tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

/// Terms a reservation must meet.
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

/// Annotation `scheduling.koordinator.sh/soft-eviction`: a request to leave.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SoftEvictionSpec {
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    /// How the pod should be deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_options: Option<DeleteOptions>,
    /// Who asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub initiator: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Annotation `gang.scheduling.koordinator.sh/network-topology-spec`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkTopologySpec {
    /// By topology layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gather_strategy: Vec<GatherStrategy>,
}

/// How a gang is gathered in one layer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatherStrategy {
    /// Topology layer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layer: String,
    /// `MustGather` or `PreferGather`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub strategy: String,
    /// Members in a place come in multiples of this.
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
    /// Device types that belong together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_types: Vec<String>,
    /// `SamePCIe` or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub required_scope: String,
}

/// How devices of one type are picked.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAllocateHint {
    /// Labels of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Labels of the virtual function.
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

/// One device given to a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAllocation {
    /// Minor number.
    #[serde(default)]
    pub minor: i32,
    /// Amounts taken from it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
    /// Unique id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Details by device type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension: Option<DeviceAllocationExtension>,
}

/// Details of a device given to a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAllocationExtension {
    /// Virtual functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfs: Vec<AllocatedVirtualFunction>,
    /// Template a shared GPU was cut by.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gpu_shared_resource_template: String,
}

/// A virtual function given to a pod.
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
