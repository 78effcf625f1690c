//! The manager's feature gates, with upstream's names and, but for one, defaults.

use koord_app::features::Gate;

/// All gates the manager accepts.
pub const GATES: &[Gate] = &[
    Gate::beta("PodMutatingWebhook", true),
    Gate::beta("PodValidatingWebhook", true),
    Gate::beta("ElasticMutatingWebhook", true),
    Gate::beta("ElasticValidatingWebhook", true),
    Gate::beta("WebhookFramework", true),
    Gate::alpha("NodeMutatingWebhook", false),
    Gate::alpha("NodeValidatingWebhook", false),
    Gate::alpha("ConfigMapValidatingWebhook", true),
    Gate::alpha("ReservationMutatingWebhook", false),
    Gate::alpha("ColocationProfileSkipMutatingResources", false),
    Gate::alpha("ColocationProfileSkipValidatingPriority", false),
    Gate::alpha("MultiQuotaTree", false),
    Gate::alpha("ElasticQuotaIgnorePodOverhead", false),
    Gate::alpha("ElasticQuotaGuaranteeUsage", false),
    Gate::alpha("ElasticQuotaEnableUpdateResourceKey", false),
    Gate::alpha("ElasticQuotaEvaluationTransformPod", false),
    Gate::alpha("DisableDefaultQuota", false),
    Gate::alpha("SupportParentQuotaSubmitPod", false),
    Gate::alpha("EnableQuotaAdmission", false),
    Gate::alpha("EnableQuotaAdmissionOnUpdate", false),
    Gate::alpha("EnableSyncGPUSharedResource", false),
    Gate::alpha("ColocationProfileController", false),
    Gate::alpha("ValidatePodDeviceResource", false),
    Gate::alpha("EnablePodEnhancedValidator", false),
    Gate::alpha("DisableExtendedResourceSpec", false),
    Gate::alpha("DisableDeviceResourceSpec", false),
    Gate::alpha("BindingAdmissionWebhook", false),
    Gate::beta("DisablePVCReservation", false),
    Gate::alpha("PriorityTransformer", false),
    Gate::alpha("PreemptionPolicyTransformer", false),
    Gate::alpha("ReplaceResourcesTransformer", false),
    // Ours: enables the controller that writes recommendations to Recommendation objects, ...
    Gate::beta("Recommender", true),
    // ... and the admission that annotates new pods with their expected usage for the scheduler.
    Gate::alpha("RecommendationAdmission", false),
    // Services without a measurement are charged with their request.
    Gate::beta("ChargeUnmeasuredPods", true),
    Gate::alpha("DeviceResourceWithoutColocation", false),
    // Serves the quota topology at /elasticQuota on the webhooks' port, without authentication.
    Gate::alpha("ElasticQuotaDump", false),
];

/// Returns why a gate has no effect here; `None` for gates that have one. Upstream's manager accepts these
/// gates without reading them, too.
pub(crate) fn ineffective_reason(gate: &str) -> Option<&'static str> {
    match gate {
        "DisablePVCReservation" => Some("it is a gate of the descheduler"),
        "ElasticQuotaIgnorePodOverhead" => {
            Some("the scheduler computes quota usage, with its own gate")
        }
        "PriorityTransformer" | "PreemptionPolicyTransformer" => {
            Some("the scheduler transforms pods, with its own gate")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_app::features::Gates;

    #[test]
    fn gate_defaults_match_upstream_but_two() {
        let gates = Gates::new(GATES);
        let on: Vec<_> = gates
            .iter()
            .filter(|(_, on)| *on)
            .map(|(gate, _)| gate.name)
            .collect();
        let expected = [
            "PodMutatingWebhook",
            "PodValidatingWebhook",
            "ElasticMutatingWebhook",
            "ElasticValidatingWebhook",
            "WebhookFramework",
            // Disabled by default upstream.
            "ConfigMapValidatingWebhook",
            // Does not exist upstream.
            "Recommender",
            "ChargeUnmeasuredPods",
        ];
        assert_eq!(on, expected);
        assert!(Gates::parse(GATES, "NoSuchGate=true").is_err());
    }
}
