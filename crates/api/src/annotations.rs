//! Annotation keys. The JSON formats behind them are in [`crate::extension`].
//!
//! Source: Koordinator `apis/extension`.

// Pods: QoS, admission, eviction.

/// Number as text; pods with a higher one are pre-allocated first.
pub const POD_PRE_ALLOCATABLE_PRIORITY: &str = "pod.koordinator.sh/pre-allocatable-priority";
/// `from:to,from2:to2,erase:`; an empty target erases the resource.
pub const POD_REPLACE_RESOURCES: &str = "pod.koordinator.sh/replace-resources";
/// JSON list of the koordlet eviction policies that may evict the pod.
pub const POD_EVICTION_POLICY: &str = "koordinator.sh/eviction-policy";
/// 32-bit integer, default 0; lower is evicted first.
pub const POD_EVICTION_PRIORITY: &str = "koordinator.sh/eviction-priority";
/// Integer in −1000..=1000 for all containers.
pub const POD_OOM_SCORE_ADJ: &str = "koordinator.sh/oom-score-adj";
/// JSON map of container name to `oom_score_adj`.
pub const POD_OOM_SCORE_ADJ_SPEC: &str = "koordinator.sh/oom-score-adj-spec";
/// JSON [`crate::extension::PodNetworkQOS`].
pub const POD_NETWORK_QOS: &str = "koordinator.sh/networkQOS";
/// JSON [`crate::extension::ExtendedResourceSpec`].
pub const POD_EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";
/// JSON [`crate::slo::CPUBurstConfig`].
pub const POD_CPU_BURST: &str = "koordinator.sh/cpuBurst";
/// JSON [`crate::slo::CPUQOSCfg`]; group identity must be in −1..=2.
pub const POD_CPU_QOS: &str = "koordinator.sh/cpuQOS";
/// JSON [`crate::extension::PodMemoryQOSConfig`].
pub const POD_MEMORY_QOS: &str = "koordinator.sh/memoryQOS";
/// JSON [`crate::slo::BlkIOQOSCfg`].
pub const POD_BLKIO_QOS: &str = "koordinator.sh/blkioQOS";
/// JSON [`crate::extension::Resctrl`].
pub const POD_RESCTRL: &str = "node.koordinator.sh/resctrl";

// Pods: scheduling.

/// Scheduler name before a transformer replaced it.
pub const ORIGINAL_SCHEDULER_NAME: &str =
    "internal.scheduling.koordinator.sh/original-scheduler-name";
/// JSON [`crate::extension::SchedulingHint`].
pub const SCHEDULING_HINT: &str = "internal.scheduling.koordinator.sh/scheduling-hint";
/// Old spelling of [`SCHEDULING_HINT`].
pub const SCHEDULING_HINT_DEPRECATED: &str = "scheduling.koordinator.sh/scheduling-hint";
/// JSON [`crate::extension::ResourceSpec`]: requested CPU binding.
pub const RESOURCE_SPEC: &str = "scheduling.koordinator.sh/resource-spec";
/// JSON [`crate::extension::ResourceStatus`]: allocated CPUs and NUMA resources.
pub const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";
/// JSON [`crate::extension::NumaTopologySpec`].
pub const NUMA_TOPOLOGY_SPEC: &str = "scheduling.koordinator.sh/numa-topology-spec";
/// JSON [`crate::extension::DeviceAllocations`].
pub const DEVICE_ALLOCATED: &str = "scheduling.koordinator.sh/device-allocated";
/// JSON [`crate::extension::DeviceAllocateHints`].
pub const DEVICE_ALLOCATE_HINT: &str = "scheduling.koordinator.sh/device-allocate-hint";
/// JSON [`crate::extension::DeviceJointAllocate`].
pub const DEVICE_JOINT_ALLOCATE: &str = "scheduling.koordinator.sh/device-joint-allocate";
/// JSON [`crate::extension::GpuPartitionSpec`].
pub const GPU_PARTITION_SPEC: &str = "scheduling.koordinator.sh/gpu-partition-spec";
/// JSON [`crate::extension::ReservationAllocated`].
pub const RESERVATION_ALLOCATED: &str = "scheduling.koordinator.sh/reservation-allocated";
/// JSON [`crate::extension::ReservationAffinity`].
pub const RESERVATION_AFFINITY: &str = "scheduling.koordinator.sh/reservation-affinity";
/// JSON [`crate::extension::ExactMatchReservationSpec`].
pub const EXACT_MATCH_RESERVATION: &str = "scheduling.koordinator.sh/exact-match-reservation";
/// 32-bit integer; the maximum means never evict.
pub const EVICTION_COST: &str = "scheduling.koordinator.sh/eviction-cost";
/// JSON [`crate::extension::SoftEvictionSpec`].
pub const SOFT_EVICTION: &str = "scheduling.koordinator.sh/soft-eviction";
/// JSON map of resource to percent.
pub const LOAD_ESTIMATED_SCALING_FACTORS: &str =
    "scheduling.koordinator.sh/load-estimated-scaling-factors";
/// Number of seconds as text.
pub const LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED: &str =
    "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled";
/// Number of seconds as text.
pub const LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED: &str =
    "scheduling.koordinator.sh/load-estimated-seconds-after-initialized";
/// Network topology domains that the pod requires.
pub const NETWORK_TOPOLOGY_SELECTOR: &str = "scheduling.koordinator.sh/network-topology-selector";
/// JSON list of [`crate::scheduling::ReservationOwner`] on reservation-mode pods.
pub const RESERVATION_OWNERS: &str = "scheduling.koordinator.sh/reservation-owners";
/// JSON object reference on reservation-mode pods.
pub const RESERVATION_CURRENT_OWNER: &str = "scheduling.koordinator.sh/reservation-current-owner";
/// `true` on the pods that stand for a reservation inside a scheduler.
pub const RESERVE_POD: &str = "scheduling.koordinator.sh/reserve-pod";
/// Name of the reservation that a reserve pod stands for.
pub const RESERVATION_NAME: &str = "scheduling.koordinator.sh/reservation-name";
/// Node that a reserve pod is bound to.
pub const RESERVATION_NODE: &str = "scheduling.koordinator.sh/reservation-node";
/// JSON resource list the reservation was resized to.
pub const RESERVATION_RESIZE_ALLOCATABLE: &str =
    "scheduling.koordinator.sh/reservation-resize-allocatable";
/// `true` on the pod that represents a reservation with `spec.preAllocation` in the scheduler.
pub const IS_PRE_ALLOCATION: &str = "scheduling.koordinator.sh/is-pre-allocation";

// Gangs.

/// Gang of the pod, when no PodGroup label is set.
pub const GANG_NAME: &str = "gang.scheduling.koordinator.sh/name";
/// Least number of members that must start together.
pub const GANG_MIN_AVAILABLE: &str = "gang.scheduling.koordinator.sh/min-available";
/// Time that members wait for the rest of the gang: a Go duration.
pub const GANG_WAITING_TIME: &str = "gang.scheduling.koordinator.sh/waiting-time";
/// Number of members of the gang.
pub const GANG_TOTAL_NUMBER: &str = "gang.scheduling.koordinator.sh/total-number";
/// `Strict` (the default) or `NonStrict`.
pub const GANG_MODE: &str = "gang.scheduling.koordinator.sh/mode";
/// JSON list of `namespace/name`: gangs that start together.
pub const GANG_GROUPS: &str = "gang.scheduling.koordinator.sh/groups";
/// Set by the scheduler when the gang timed out.
pub const GANG_TIMEOUT: &str = "gang.scheduling.koordinator.sh/timeout";
/// `only-waiting`, `waiting-and-running` or `once-satisfied` (the default).
pub const GANG_MATCH_POLICY: &str = "gang.scheduling.koordinator.sh/match-policy";
/// Alternative spelling of [`GANG_MATCH_POLICY`].
pub const GANG_MATCH_POLICY_ALIAS: &str = "pod-group.scheduling.sigs.k8s.io/match-policy";
/// Index of the member within its topology placement.
pub const GANG_NETWORK_TOPOLOGY_INDEX: &str =
    "gang.scheduling.koordinator.sh/network-topology-index";
/// Network topology that a gang requires or prefers: JSON of [`crate::extension::NetworkTopologySpec`].
pub const GANG_NETWORK_TOPOLOGY_SPEC: &str = "gang.scheduling.koordinator.sh/network-topology-spec";
/// Gang group a binding belongs to.
pub const BIND_GANG_GROUP_ID: &str = "internal.scheduling.koordinator.sh/bind-gang-group-id";
/// Members bound together.
pub const BIND_GANG_MEMBER_COUNT: &str =
    "internal.scheduling.koordinator.sh/bind-gang-member-count";
/// Old spelling of [`BIND_GANG_GROUP_ID`].
pub const BIND_GANG_GROUP_ID_DEPRECATED: &str = "scheduling.koordinator.sh/bind-gang-group-id";
/// Old spelling of [`BIND_GANG_MEMBER_COUNT`].
pub const BIND_GANG_MEMBER_COUNT_DEPRECATED: &str =
    "scheduling.koordinator.sh/bind-gang-member-count";

// Quotas: JSON resource lists unless noted.

/// Weights for sharing; invalid or all zero means `spec.max`.
pub const QUOTA_SHARED_WEIGHT: &str = "quota.scheduling.koordinator.sh/shared-weight";
/// Runtime quota: the amount the quota may currently use.
pub const QUOTA_RUNTIME: &str = "quota.scheduling.koordinator.sh/runtime";
/// Sum of the requests of the quota's pods and child quotas.
pub const QUOTA_REQUEST: &str = "quota.scheduling.koordinator.sh/request";
/// Sum of the requests of the child quotas.
pub const QUOTA_CHILD_REQUEST: &str = "quota.scheduling.koordinator.sh/child-request";
/// Total resources of the quota tree.
pub const QUOTA_TOTAL_RESOURCE: &str = "quota.scheduling.koordinator.sh/total-resource";
/// Part of the tree's resources that is on unschedulable nodes.
pub const QUOTA_UNSCHEDULABLE_RESOURCE: &str =
    "quota.scheduling.koordinator.sh/unschedulable-resource";
/// Guaranteed amount.
pub const QUOTA_GUARANTEED: &str = "quota.scheduling.koordinator.sh/guaranteed";
/// Allocated amount.
pub const QUOTA_ALLOCATED: &str = "quota.scheduling.koordinator.sh/allocated";
/// Sum of the requests of non-preemptible pods.
pub const QUOTA_NON_PREEMPTIBLE_REQUEST: &str =
    "quota.scheduling.koordinator.sh/non-preemptible-request";
/// Amount used by non-preemptible pods.
pub const QUOTA_NON_PREEMPTIBLE_USED: &str = "quota.scheduling.koordinator.sh/non-preemptible-used";
/// Upper bound that admission checks.
pub const QUOTA_ADMISSION: &str = "quota.scheduling.koordinator.sh/admission";
/// JSON list of the resource names that the profile includes.
pub const QUOTA_RESOURCE_KEYS: &str = "quota.scheduling.koordinator.sh/resource-keys";
/// JSON list of namespaces charged to the quota.
pub const QUOTA_NAMESPACES: &str = "quota.scheduling.koordinator.sh/namespaces";
/// JSON list of resource names checked strictly against `max`.
pub const QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS: &str =
    "quota.scheduling.koordinator.sh/max-strict-check-resource-keys";

// Nodes.

/// JSON [`crate::configmap::ColocationStrategy`]; overrides the ConfigMap.
pub const NODE_COLOCATION_STRATEGY: &str = "node.koordinator.sh/colocation-strategy";
/// JSON [`crate::extension::NodeReservation`].
pub const NODE_RESERVATION: &str = "node.koordinator.sh/reservation";
/// JSON [`crate::extension::AmplificationRatios`], two decimals.
pub const NODE_RESOURCE_AMPLIFICATION_RATIO: &str =
    "node.koordinator.sh/resource-amplification-ratio";
/// JSON resource list (cpu, memory) before amplification.
pub const NODE_RAW_ALLOCATABLE: &str = "node.koordinator.sh/raw-allocatable";
/// Ratio > 0 as text with two decimals.
pub const NODE_CPU_NORMALIZATION_RATIO: &str = "node.koordinator.sh/cpu-normalization-ratio";
/// JSON [`crate::extension::OriginAllocatable`]: batch resources before third-party use.
pub const NODE_ORIGIN_EXTENDED_ALLOCATABLE: &str = "node.koordinator.sh/originExtendedAllocatable";
/// JSON [`crate::extension::ThirdPartyAllocations`].
pub const NODE_THIRD_PARTY_ALLOCATIONS: &str = "node.koordinator.sh/thirdPartyAllocations";
/// Total bandwidth, a quantity in bits per second.
pub const NODE_BANDWIDTH: &str = "node.koordinator.sh/network-bandwidth";
/// JSON [`crate::extension::SystemQosResource`].
pub const NODE_SYSTEM_QOS_RESOURCE: &str = "node.koordinator.sh/system-qos-resource";
/// JSON [`crate::extension::CustomUsageThresholds`].
pub const NODE_USAGE_THRESHOLDS: &str = "scheduling.koordinator.sh/usage-thresholds";

// NodeResourceTopology objects.

/// JSON [`crate::extension::CpuBasicInfo`].
pub const NODE_CPU_BASIC_INFO: &str = "node.koordinator.sh/cpu-basic-info";
/// JSON [`crate::extension::CpuTopology`].
pub const NODE_CPU_TOPOLOGY: &str = "node.koordinator.sh/cpu-topology";
/// JSON list of [`crate::extension::PodCpuAlloc`].
pub const NODE_CPU_ALLOCS: &str = "node.koordinator.sh/pod-cpu-allocs";
/// JSON list of [`crate::extension::CpuSharedPool`] for LS pods.
pub const NODE_CPU_SHARED_POOLS: &str = "node.koordinator.sh/cpu-shared-pools";
/// JSON list of [`crate::extension::CpuSharedPool`] for BE pods.
pub const NODE_BE_CPU_SHARED_POOLS: &str = "node.koordinator.sh/be-cpu-shared-pools";
/// JSON [`crate::extension::KubeletCpuManagerPolicy`].
pub const KUBELET_CPU_MANAGER_POLICY: &str = "kubelet.koordinator.sh/cpu-manager-policy";

// Devices, reservations, profiles.

/// JSON [`crate::extension::GpuPartitionTable`] on Device objects.
pub const DEVICE_GPU_PARTITIONS: &str = "scheduling.koordinator.sh/gpu-partitions";
/// JSON [`crate::extension::ReservationRestrictedOptions`].
pub const RESERVATION_RESTRICTED_OPTIONS: &str =
    "scheduling.koordinator.sh/reservation-restricted-options";
/// Set if the profile does not translate resources to batch or mid ones.
pub const PROFILE_SKIP_UPDATE_RESOURCES: &str = "config.koordinator.sh/skip-update-resources";

/// All keys above, to find misspelled ones.
pub const ALL: &[&str] = &[
    POD_PRE_ALLOCATABLE_PRIORITY,
    POD_REPLACE_RESOURCES,
    POD_EVICTION_POLICY,
    POD_EVICTION_PRIORITY,
    POD_OOM_SCORE_ADJ,
    POD_OOM_SCORE_ADJ_SPEC,
    POD_NETWORK_QOS,
    POD_EXTENDED_RESOURCE_SPEC,
    POD_CPU_BURST,
    POD_CPU_QOS,
    POD_MEMORY_QOS,
    POD_BLKIO_QOS,
    POD_RESCTRL,
    ORIGINAL_SCHEDULER_NAME,
    SCHEDULING_HINT,
    SCHEDULING_HINT_DEPRECATED,
    RESOURCE_SPEC,
    RESOURCE_STATUS,
    NUMA_TOPOLOGY_SPEC,
    DEVICE_ALLOCATED,
    DEVICE_ALLOCATE_HINT,
    DEVICE_JOINT_ALLOCATE,
    GPU_PARTITION_SPEC,
    RESERVATION_ALLOCATED,
    RESERVATION_AFFINITY,
    EXACT_MATCH_RESERVATION,
    EVICTION_COST,
    SOFT_EVICTION,
    LOAD_ESTIMATED_SCALING_FACTORS,
    LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED,
    LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED,
    NETWORK_TOPOLOGY_SELECTOR,
    RESERVATION_OWNERS,
    RESERVATION_CURRENT_OWNER,
    RESERVE_POD,
    RESERVATION_NAME,
    RESERVATION_NODE,
    RESERVATION_RESIZE_ALLOCATABLE,
    IS_PRE_ALLOCATION,
    GANG_NAME,
    GANG_MIN_AVAILABLE,
    GANG_WAITING_TIME,
    GANG_TOTAL_NUMBER,
    GANG_MODE,
    GANG_GROUPS,
    GANG_TIMEOUT,
    GANG_MATCH_POLICY,
    GANG_MATCH_POLICY_ALIAS,
    GANG_NETWORK_TOPOLOGY_INDEX,
    GANG_NETWORK_TOPOLOGY_SPEC,
    BIND_GANG_GROUP_ID,
    BIND_GANG_MEMBER_COUNT,
    BIND_GANG_GROUP_ID_DEPRECATED,
    BIND_GANG_MEMBER_COUNT_DEPRECATED,
    QUOTA_SHARED_WEIGHT,
    QUOTA_RUNTIME,
    QUOTA_REQUEST,
    QUOTA_CHILD_REQUEST,
    QUOTA_TOTAL_RESOURCE,
    QUOTA_UNSCHEDULABLE_RESOURCE,
    QUOTA_GUARANTEED,
    QUOTA_ALLOCATED,
    QUOTA_NON_PREEMPTIBLE_REQUEST,
    QUOTA_NON_PREEMPTIBLE_USED,
    QUOTA_ADMISSION,
    QUOTA_RESOURCE_KEYS,
    QUOTA_NAMESPACES,
    QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
    NODE_COLOCATION_STRATEGY,
    NODE_RESERVATION,
    NODE_RESOURCE_AMPLIFICATION_RATIO,
    NODE_RAW_ALLOCATABLE,
    NODE_CPU_NORMALIZATION_RATIO,
    NODE_ORIGIN_EXTENDED_ALLOCATABLE,
    NODE_THIRD_PARTY_ALLOCATIONS,
    NODE_BANDWIDTH,
    NODE_SYSTEM_QOS_RESOURCE,
    NODE_USAGE_THRESHOLDS,
    NODE_CPU_BASIC_INFO,
    NODE_CPU_TOPOLOGY,
    NODE_CPU_ALLOCS,
    NODE_CPU_SHARED_POOLS,
    NODE_BE_CPU_SHARED_POOLS,
    KUBELET_CPU_MANAGER_POLICY,
    DEVICE_GPU_PARTITIONS,
    RESERVATION_RESTRICTED_OPTIONS,
    PROFILE_SKIP_UPDATE_RESOURCES,
];

#[cfg(test)]
mod tests {
    #[test]
    fn all_has_each_key() {
        let source = include_str!("annotations.rs");
        let (constants, _) = source.split_once("pub const ALL").unwrap();
        let constants = constants.split("pub const ").skip(1);
        let values = constants.filter_map(|it| it.split('"').nth(1));
        let mut keys: Vec<&str> = values.filter(|it| it.contains('/')).collect();
        keys.retain(|key| !super::ALL.contains(key));
        assert_eq!(keys, [""; 0]);
    }
}
