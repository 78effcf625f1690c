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
    // Ours: recommendations are made where Recommendation objects ask for them, ...
    Gate::beta("Recommender", true),
    // ... and tell the scheduler how much of their requests new pods will use.
    Gate::alpha("RecommendationAdmission", false),
    // Services that were not measured yet count with their request.
    Gate::beta("ChargeUnmeasuredPods", true),
    Gate::alpha("DeviceResourceWithoutColocation", false),
    // What a replica knows of quotas, shown at /elasticQuota of the webhooks' port to whoever can connect.
    Gate::alpha("ElasticQuotaDump", false),
];

/// Why a gate changes nothing here; `None` for those that do. Upstream's manager knows these and does
/// not ask for them either.
pub(crate) fn without_effect(gate: &str) -> Option<&'static str> {
    match gate {
        "DisablePVCReservation" => Some("it is the descheduler's"),
        "ElasticQuotaIgnorePodOverhead" => {
            Some("the scheduler counts what pods use, by its own gate")
        }
        "PriorityTransformer" | "PreemptionPolicyTransformer" => {
            Some("it is about how the scheduler reads pods, by its own gate")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_app::features::Gates;

    #[test]
    fn defaults_are_upstreams_but_for_two() {
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
            // Off upstream.
            "ConfigMapValidatingWebhook",
            // Unknown upstream.
            "Recommender",
            "ChargeUnmeasuredPods",
        ];
        assert_eq!(on, expected);
        assert!(Gates::parse(GATES, "NoSuchGate=true").is_err());
    }
}
