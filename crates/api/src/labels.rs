//! Label keys, and label values that are part of the protocol.
//!
//! Source: Koordinator `apis/extension`. `true` in a description means the exact text `true`.

// Pods: QoS, priority, admission, eviction.

/// QoS class of a pod: `LSE`, `LSR`, `LS`, `BE` or `SYSTEM`; see [`crate::qos`].
pub const POD_QOS: &str = "koordinator.sh/qosClass";
/// Sub-priority within the class, a 32-bit integer.
pub const POD_PRIORITY: &str = "koordinator.sh/priority";
/// Priority class by name, before `spec.priority`; see [`crate::priority`].
pub const POD_PRIORITY_CLASS: &str = "koordinator.sh/priority-class";
/// `true`: updates of this pod also go through the mutating webhook.
pub const POD_MUTATING_UPDATE: &str = "pod.koordinator.sh/mutating-update";
/// `true`: the enhanced validator skips this pod.
pub const POD_SKIP_ENHANCED_VALIDATION: &str = "pod.koordinator.sh/skip-enhanced-validation";
/// `true`: a reservation may allocate this running pod in advance.
pub const POD_PRE_ALLOCATABLE: &str = "pod.koordinator.sh/is-pre-allocatable";
/// `true`: koordlet may evict the pod whatever its QoS.
pub const POD_EVICTION_ENABLED: &str = "koordinator.sh/eviction-enabled";
/// Core-scheduling group; may be empty.
pub const POD_CORE_SCHED_GROUP: &str = "koordinator.sh/core-sched-group-id";
/// Core-scheduling policy: empty (default), `none` or `exclusive`.
pub const POD_CORE_SCHED_POLICY: &str = "koordinator.sh/core-sched-policy";
/// Set if binding admission is skipped.
pub const BINDING_ADMISSION_BYPASS: &str = "koordinator.sh/binding-admission-bypass";
/// GPU isolation of the pod, for example [`GPU_ISOLATION_HAMI_CORE`].
pub const GPU_ISOLATION_PROVIDER: &str = "koordinator.sh/gpu-isolation-provider";
/// Value of [`GPU_ISOLATION_PROVIDER`].
pub const GPU_ISOLATION_HAMI_CORE: &str = "HAMi-core";
/// Node a HAMi-isolated pod was placed on.
pub const HAMI_VGPU_NODE: &str = "hami.io/vgpu-node";

// Pods: scheduling.

/// Overrides `spec.schedulerName` inside koord schedulers.
pub const SCHEDULER_NAME: &str = "scheduling.koordinator.sh/scheduler-name";
/// Preemption policy of a pod: `Never` or `PreemptLowerPriority`.
pub const PREEMPTION_POLICY: &str = "scheduling.koordinator.sh/preemption-policy";
/// `true`: the pod is never a victim.
pub const DISABLE_PREEMPTIBLE: &str = "scheduling.koordinator.sh/disable-preemptible";
/// `true`: the pod does not use reservations.
pub const RESERVATION_IGNORED: &str = "scheduling.koordinator.sh/reservation-ignored";
/// `Runnable` or `Reservation`: whether the pod itself acts as a reservation.
pub const POD_OPERATING_MODE: &str = "scheduling.koordinator.sh/operating-mode";
/// Object that a schedule explanation was requested for.
pub const QUESTIONED_OBJECT_KEY: &str = "scheduling.koordinator.sh/questioned-object-key";
/// Topology domain key a schedule explanation is split by.
pub const TOPOLOGY_KEY_TO_EXPLAIN: &str = "scheduling.koordinator.sh/topology-key-to-explain";

// Gangs.

/// Name of the PodGroup in the namespace of the pod; looked at first.
pub const POD_GROUP: &str = "pod-group.scheduling.sigs.k8s.io";
/// Name of the PodGroup; looked at second.
pub const POD_GROUP_DEPRECATED: &str = "pod-group.scheduling.sigs.k8s.io/name";
/// Least number of members that must start together.
pub const POD_GROUP_MIN_AVAILABLE_DEPRECATED: &str =
    "pod-group.scheduling.sigs.k8s.io/min-available";

// Quotas. On ElasticQuota objects, except the two marked as pod labels.

/// `true`: the quota has children and admits no pods.
pub const QUOTA_IS_PARENT: &str = "quota.scheduling.koordinator.sh/is-parent";
/// Name of the parent quota; missing means the root quota.
pub const QUOTA_PARENT: &str = "quota.scheduling.koordinator.sh/parent";
/// `false`: unused minimum is not lent to siblings.
pub const QUOTA_ALLOW_LENT_RESOURCE: &str = "quota.scheduling.koordinator.sh/allow-lent-resource";
/// Profile that manages the quota.
pub const QUOTA_PROFILE: &str = "quota.scheduling.koordinator.sh/profile";
/// `true`: root of a quota tree.
pub const QUOTA_IS_ROOT: &str = "quota.scheduling.koordinator.sh/is-root";
/// Tree the quota belongs to.
pub const QUOTA_TREE_ID: &str = "quota.scheduling.koordinator.sh/tree-id";
/// `true`: the quota stays out of the default tree.
pub const QUOTA_IGNORE_DEFAULT_TREE: &str = "quota.scheduling.koordinator.sh/ignore-default-tree";
/// `true`: some update checks are skipped.
pub const QUOTA_ALLOW_FORCE_UPDATE: &str = "quota.scheduling.koordinator.sh/allow-force-update";
/// Pod label: quota the pod is charged to.
pub const POD_QUOTA_NAME: &str = "quota.scheduling.koordinator.sh/name";
/// Pod label: `false` makes the pod non-preemptible within its quota.
pub const POD_PREEMPTIBLE: &str = "quota.scheduling.koordinator.sh/preemptible";

// Nodes and Devices.

/// CPU reclaim threshold as a ratio ≥ 0; overrides the colocation strategy.
pub const NODE_CPU_RECLAIM_RATIO: &str = "node.koordinator.sh/cpu-reclaim-ratio";
/// Memory reclaim threshold as a ratio ≥ 0; overrides the colocation strategy.
pub const NODE_MEMORY_RECLAIM_RATIO: &str = "node.koordinator.sh/memory-reclaim-ratio";
/// Static mid CPU as a ratio ≥ 0; overrides the colocation strategy.
pub const NODE_MID_STATIC_CPU_RESERVED_RATIO: &str =
    "node.koordinator.sh/mid-static-cpu-reserved-ratio";
/// Static mid memory as a ratio ≥ 0; overrides the colocation strategy.
pub const NODE_MID_STATIC_MEMORY_RESERVED_RATIO: &str =
    "node.koordinator.sh/mid-static-memory-reserved-ratio";
/// `true`: node reservation is split over NUMA nodes.
pub const NODE_NUMA_RESERVATION: &str = "node.koordinator.sh/enable-numa-reservation";
/// Go boolean text; overrides the cluster switch for CPU normalisation.
pub const NODE_CPU_NORMALIZATION_ENABLED: &str = "node.koordinator.sh/cpu-normalization-enabled";
/// CPU bind policy of a node: `None`, `FullPCPUsOnly` or `SpreadByPCPUs`.
pub const NODE_CPU_BIND_POLICY: &str = "node.koordinator.sh/cpu-bind-policy";
/// Strategy by which NUMA nodes are chosen: `MostAllocated`, `LeastAllocated` or `DistributeEvenly`.
pub const NODE_NUMA_ALLOCATE_STRATEGY: &str = "node.koordinator.sh/numa-allocate-strategy";
/// NUMA topology policy of a node: empty, `BestEffort`, `Restricted` or `SingleNUMANode`.
pub const NODE_NUMA_TOPOLOGY_POLICY: &str = "node.koordinator.sh/numa-topology-policy";
/// Vendor of a node's GPUs: `nvidia`, `huawei`, `cambricon`, `metax` or `baidu`.
pub const NODE_GPU_VENDOR: &str = "node.koordinator.sh/gpu-vendor";
/// GPU model, copied from the Device.
pub const NODE_GPU_MODEL: &str = "node.koordinator.sh/gpu-model";
/// GPU driver version, copied from the Device.
pub const NODE_GPU_DRIVER_VERSION: &str = "node.koordinator.sh/gpu-driver-version";
/// Policy for the GPU partitions of a node: `Honor` or `Prefer` (the default).
pub const NODE_GPU_PARTITION_POLICY: &str = "node.koordinator.sh/gpu-partition-policy";
/// `true` or `false`: secondary devices were wired to fit the partitions.
pub const SECONDARY_DEVICE_WELL_PLANNED: &str = "node.koordinator.sh/secondary-device-well-planned";
/// Old spelling of [`NODE_GPU_DRIVER_VERSION`]; read only.
pub const GPU_DRIVER_DEPRECATED: &str = "kubernetes.io/gpu-driver";
/// Old spelling of [`NODE_GPU_MODEL`]; read only.
pub const GPU_MODEL_DEPRECATED: &str = "kubernetes.io/gpu-model";

// Reservations.

/// Lower non-zero numbers are used first; 0 means by score.
pub const RESERVATION_ORDER: &str = "scheduling.koordinator.sh/reservation-order";
/// `true`: the reservation is scheduled only by absorbing pre-allocatable pods.
pub const RESERVATION_PRE_ALLOCATION_REQUIRED: &str =
    "scheduling.koordinator.sh/pre-allocation-required";

// Other objects.

/// ClusterColocationProfile: `true` hands existing pods to the profile controller.
pub const CONTROLLER_MANAGED: &str = "config.koordinator.sh/controller-managed";
/// Marks a ConfigMap for validation; see [`CONFIGMAP_TYPE_SLO_CONTROLLER`].
pub const CONFIGMAP_TYPE: &str = "koordinator.sh/configmap-type";
/// Value of [`CONFIGMAP_TYPE`] on the SLO controller ConfigMap.
pub const CONFIGMAP_TYPE_SLO_CONTROLLER: &str = "slo-controller-config";
/// Standard label naming the tool that manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// All keys above, to find misspelled ones.
pub const ALL: &[&str] = &[
    POD_QOS,
    POD_PRIORITY,
    POD_PRIORITY_CLASS,
    POD_MUTATING_UPDATE,
    POD_SKIP_ENHANCED_VALIDATION,
    POD_PRE_ALLOCATABLE,
    POD_EVICTION_ENABLED,
    POD_CORE_SCHED_GROUP,
    POD_CORE_SCHED_POLICY,
    BINDING_ADMISSION_BYPASS,
    GPU_ISOLATION_PROVIDER,
    HAMI_VGPU_NODE,
    SCHEDULER_NAME,
    PREEMPTION_POLICY,
    DISABLE_PREEMPTIBLE,
    RESERVATION_IGNORED,
    POD_OPERATING_MODE,
    QUESTIONED_OBJECT_KEY,
    TOPOLOGY_KEY_TO_EXPLAIN,
    POD_GROUP,
    POD_GROUP_DEPRECATED,
    POD_GROUP_MIN_AVAILABLE_DEPRECATED,
    QUOTA_IS_PARENT,
    QUOTA_PARENT,
    QUOTA_ALLOW_LENT_RESOURCE,
    QUOTA_PROFILE,
    QUOTA_IS_ROOT,
    QUOTA_TREE_ID,
    QUOTA_IGNORE_DEFAULT_TREE,
    QUOTA_ALLOW_FORCE_UPDATE,
    POD_QUOTA_NAME,
    POD_PREEMPTIBLE,
    NODE_CPU_RECLAIM_RATIO,
    NODE_MEMORY_RECLAIM_RATIO,
    NODE_MID_STATIC_CPU_RESERVED_RATIO,
    NODE_MID_STATIC_MEMORY_RESERVED_RATIO,
    NODE_NUMA_RESERVATION,
    NODE_CPU_NORMALIZATION_ENABLED,
    NODE_CPU_BIND_POLICY,
    NODE_NUMA_ALLOCATE_STRATEGY,
    NODE_NUMA_TOPOLOGY_POLICY,
    NODE_GPU_VENDOR,
    NODE_GPU_MODEL,
    NODE_GPU_DRIVER_VERSION,
    NODE_GPU_PARTITION_POLICY,
    SECONDARY_DEVICE_WELL_PLANNED,
    GPU_DRIVER_DEPRECATED,
    GPU_MODEL_DEPRECATED,
    RESERVATION_ORDER,
    RESERVATION_PRE_ALLOCATION_REQUIRED,
    CONTROLLER_MANAGED,
    CONFIGMAP_TYPE,
    MANAGED_BY,
];

#[cfg(test)]
mod tests {
    #[test]
    fn all_has_each_key() {
        let source = include_str!("labels.rs");
        let (constants, _) = source.split_once("pub const ALL").unwrap();
        let constants = constants.split("pub const ").skip(1);
        let values = constants.filter_map(|it| it.split('"').nth(1));
        let mut keys: Vec<&str> = values.filter(|it| it.contains('/')).collect();
        keys.retain(|key| !super::ALL.contains(key));
        assert_eq!(keys, [""; 0]);
    }
}
