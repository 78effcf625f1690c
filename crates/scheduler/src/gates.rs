//! Feature gates: Koordinator's for the scheduler, and those of kube-scheduler 1.35.

use koord_app::features::{FeatureStage, Gate};

/// All accepted feature gates, with upstream's defaults.
pub const GATES: &[Gate] = &[
    Gate::alpha("CompatibleCSIStorageCapacity", false),
    Gate::alpha("DisableCSIStorageCapacityInformer", false),
    Gate::alpha("CompatiblePodDisruptionBudget", false),
    Gate::alpha("DisablePodDisruptionBudgetInformer", false),
    Gate::alpha("DisableDynamicResourceAllocationInformer", false),
    Gate::alpha("ResizePod", false),
    Gate::alpha("MultiQuotaTree", false),
    Gate::alpha("ElasticQuotaIgnorePodOverhead", false),
    Gate::alpha("ElasticQuotaIgnoreTerminatingPod", false),
    Gate::alpha("ElasticQuotaImmediateIgnoreTerminatingPod", false),
    Gate::alpha("ElasticQuotaGuaranteeUsage", false),
    Gate::alpha("DisableDefaultQuota", false),
    Gate::alpha("SupportParentQuotaSubmitPod", false),
    Gate::alpha("LazyReservationRestore", false),
    Gate::alpha("OmitNodeLabelsForReservation", false),
    Gate::alpha("SkipReservationFitsNode", false),
    Gate::alpha("DevicePluginAdaption", false),
    Gate::alpha("CleanExpiredReservationAllocated", false),
    Gate::alpha("SkipFilterWithNominatedPods", false),
    Gate::alpha("DynamicSchedulerCheck", true),
    Gate::alpha("SyncBarrier", false),
    Gate::alpha("CrossSchedulerNomination", false),
    Gate::alpha("EnableInlineBatchSchedule", false),
    Gate::alpha("PriorityTransformer", false),
    Gate::alpha("PreemptionPolicyTransformer", false),
    Gate::alpha("ReplaceResourcesTransformer", false),
    Gate::beta("GangPendingPodsConditionPatch", true),
    Gate::beta("EnableBatchScheduleNodeSnapshot", true),
    stable("CSIStorageCapacity"),
    stable("GenericEphemeralVolume"),
    stable("PodDisruptionBudget"),
    // Intended differences from upstream that can be switched to upstream's behavior, or the reverse.
    Gate::alpha("ExpirePendingReservations", false),
    Gate::alpha("FullNRTPolicyMapping", false),
    Gate::alpha("StraightSharedGPUScore", false),
    Gate::alpha("UpstreamGPUPartitionOrder", false),
    // Kubernetes.
    Gate::alpha("CoordinatedLeaderElection", false),
    Gate::alpha("DRAConsumableCapacity", false),
    Gate::alpha("DRADeviceBindingConditions", false),
    Gate::alpha("DRADeviceTaintRules", false),
    Gate::alpha("DRADeviceTaints", false),
    Gate::alpha("DRAExtendedResource", false),
    Gate::alpha("DRAPartitionableDevices", false),
    Gate::alpha("GangScheduling", false),
    Gate::alpha("GenericWorkload", false),
    Gate::alpha("InPlacePodLevelResourcesVerticalScaling", false),
    Gate::alpha("MutablePVNodeAffinity", false),
    Gate::alpha("NodeDeclaredFeatures", false),
    Gate::alpha("StorageCapacityScoring", false),
    Gate::alpha("TaintTolerationComparisonOperators", false),
    Gate::alpha("VolumeLimitScaling", false),
    Gate::beta("ContextualLogging", true),
    Gate::beta("DRAAdminAccess", true),
    Gate::beta("DRAPrioritizedList", true),
    Gate::beta("DRAResourceClaimDeviceStatus", true),
    Gate::beta("DRASchedulerFilterTimeout", true),
    Gate::beta("LoggingBetaOptions", true),
    Gate::beta("MatchLabelKeysInPodTopologySpread", true),
    Gate::beta("MatchLabelKeysInPodTopologySpreadSelectorMerge", true),
    Gate::beta("NodeInclusionPolicyInPodTopologySpread", true),
    Gate::beta("NominatedNodeNameForExpectation", true),
    Gate::beta("OpportunisticBatching", true),
    Gate::beta("PodLevelResources", true),
    Gate::beta("SchedulerAsyncPreemption", true),
    Gate::beta("SchedulerPopFromBackoffQ", true),
    Gate::beta("WatchList", true),
    Gate::beta("SchedulerAsyncAPICalls", false),
    Gate::alpha("LoggingAlphaOptions", false),
    stable("AnyVolumeDataSource"),
    stable("ComponentSLIs"),
    stable("DynamicResourceAllocation"),
    stable("InPlacePodVerticalScaling"),
    stable("JobPodReplacementPolicy"),
    stable("MatchLabelKeysInPodAffinity"),
    stable("MinDomainsInPodTopologySpread"),
    stable("PodDisruptionConditions"),
    stable("PodSchedulingReadiness"),
    stable("ReadWriteOncePod"),
    stable("SchedulerQueueingHints"),
    stable("SidecarContainers"),
    stable("StructuredAuthorizationConfiguration"),
    stable("VolumeAttributesClass"),
];

/// Gates whose setting has no effect here, with the reason. Gates that a plugin or a part of the scheduler
/// reads are not listed.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("CompatibleCSIStorageCapacity", "storage.k8s.io/v1 is used"),
    ("CompatiblePodDisruptionBudget", "policy/v1 is used"),
    ("ResizePod", "not available yet"),
    (
        "EnableBatchScheduleNodeSnapshot",
        "it has no effect upstream either",
    ),
    (
        "DynamicSchedulerCheck",
        "a deleted or terminating pod is never bound",
    ),
    (
        "SkipReservationFitsNode",
        "whether a reservation fits is checked in any case; only the reason of a refusal differs",
    ),
    (
        "SupportParentQuotaSubmitPod",
        "pods of parent quotas are charged in any case; koord-manager's webhook, which has a gate of \
         this name, admits or rejects them",
    ),
    (
        "DisableDynamicResourceAllocationInformer",
        "resource claims are not watched",
    ),
    (
        "LazyReservationRestore",
        "reservations are never restored wholesale",
    ),
    ("SkipFilterWithNominatedPods", "not available yet"),
    (
        "SyncBarrier",
        "no pod is scheduled before every informer has delivered its list",
    ),
    ("CrossSchedulerNomination", "not available yet"),
    (
        "EnableInlineBatchSchedule",
        "gangs are scheduled as a whole without it",
    ),
];

/// Kubernetes gates that are not read here: the scheduler behaves as with their defaults.
const FIXED: &[&str] = &[
    "AnyVolumeDataSource",
    "ComponentSLIs",
    "ContextualLogging",
    "CoordinatedLeaderElection",
    "GenericEphemeralVolume",
    "GenericWorkload",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScaling",
    "JobPodReplacementPolicy",
    "LoggingAlphaOptions",
    "LoggingBetaOptions",
    "MatchLabelKeysInPodAffinity",
    "MatchLabelKeysInPodTopologySpread",
    "MatchLabelKeysInPodTopologySpreadSelectorMerge",
    "MinDomainsInPodTopologySpread",
    "MutablePVNodeAffinity",
    "NodeDeclaredFeatures",
    "NodeInclusionPolicyInPodTopologySpread",
    "NominatedNodeNameForExpectation",
    "OpportunisticBatching",
    "PodDisruptionConditions",
    "PodLevelResources",
    "PodSchedulingReadiness",
    "SchedulerAsyncAPICalls",
    "SchedulerAsyncPreemption",
    "SchedulerPopFromBackoffQ",
    "SchedulerQueueingHints",
    "SidecarContainers",
    "StructuredAuthorizationConfiguration",
    "VolumeAttributesClass",
    "VolumeLimitScaling",
    "WatchList",
];

/// Gates of dynamic resource allocation.
const CLAIMS: &[&str] = &[
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaintRules",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
    "DRASchedulerFilterTimeout",
    "DynamicResourceAllocation",
];

/// Returns why setting `gate` has no effect; `None` if it has one.
pub(crate) fn without_effect(gate: &str) -> Option<&'static str> {
    let entry = WITHOUT_EFFECT.iter().find(|(name, _)| *name == gate);
    entry
        .map(|(_, reason)| *reason)
        .or_else(|| {
            FIXED
                .contains(&gate)
                .then_some("this scheduler behaves as with its default")
        })
        .or_else(|| {
            CLAIMS
                .contains(&gate)
                .then_some("resource claims are not allocated here")
        })
}

const fn stable(name: &'static str) -> Gate {
    Gate {
        name,
        stage: FeatureStage::Stable,
        default: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_without_effect_exist_and_are_listed_once() {
        let listed = WITHOUT_EFFECT.iter().map(|(name, _)| name);
        for name in listed.clone().chain(FIXED).chain(CLAIMS) {
            assert!(GATES.iter().any(|gate| gate.name == *name), "{name}");
            let times = listed.clone().chain(FIXED).chain(CLAIMS);
            assert_eq!(times.filter(|other| *other == name).count(), 1, "{name}");
            assert!(without_effect(name).is_some(), "{name}");
        }
        assert_eq!(without_effect("StorageCapacityScoring"), None);
    }
}
