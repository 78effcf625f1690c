//! Feature gates. Upstream's programs other than the scheduler share one set of gates, so a manifest may name
//! any of them.

use koord_app::features::{FeatureStage, Gate, Gates};

/// Every gate that may be set, with upstream's defaults.
pub const GATES: &[Gate] = &[
    Gate::beta("DisablePVCReservation", false),
    Gate::alpha("PriorityTransformer", false),
    Gate::alpha("PreemptionPolicyTransformer", false),
    Gate::alpha("ReplaceResourcesTransformer", false),
    // Gates of k8s.io/component-base.
    Gate::beta("ContextualLogging", true),
    Gate::alpha("LoggingAlphaOptions", false),
    Gate::beta("LoggingBetaOptions", true),
    Gate {
        name: "ComponentSLIs",
        stage: FeatureStage::Stable,
        default: true,
    },
    // Gates of koord-manager.
    Gate::beta("PodMutatingWebhook", true),
    Gate::beta("PodValidatingWebhook", true),
    Gate::beta("ElasticMutatingWebhook", true),
    Gate::beta("ElasticValidatingWebhook", true),
    Gate::beta("WebhookFramework", true),
    Gate::alpha("NodeMutatingWebhook", false),
    Gate::alpha("NodeValidatingWebhook", false),
    Gate::alpha("ConfigMapValidatingWebhook", false),
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
];

/// Returns why setting the gate has no effect here; `None` if it has one.
fn without_effect(name: &str) -> Option<&'static str> {
    match name {
        "DisablePVCReservation" => None,
        "PriorityTransformer" | "PreemptionPolicyTransformer" | "ReplaceResourcesTransformer" => {
            Some("pods are read as the API server has them")
        }
        "ContextualLogging" | "LoggingAlphaOptions" | "LoggingBetaOptions" | "ComponentSLIs" => {
            Some("it is about Go's logs and metrics")
        }
        _ => Some("it is a gate of koord-manager"),
    }
}

/// Returns a message for each gate that was set to a non-default value without effect.
pub(super) fn notes(gates: &Gates) -> Vec<String> {
    let set = gates.iter().filter(|(gate, on)| *on != gate.default);
    set.filter_map(|(gate, on)| {
        let reason = without_effect(gate.name)?;
        let name = gate.name;
        Some(format!(
            "--feature-gates={name}={on} has no effect: {reason}"
        ))
    })
    .collect()
}
