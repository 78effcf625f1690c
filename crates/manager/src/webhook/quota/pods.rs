//! Determines and checks the quota of a pod.
//!
//! Source: Koordinator `pkg/webhook/elasticquota/pod_check.go`,
//! `pkg/webhook/pod/validating/evaluate_quota.go`.

use super::check::Refusal;
use super::topology::QuotaTopology;
use k8s_openapi::api::core::v1::Pod;
use koord_api::quantity::ResourceList;
use koord_api::quota::{DEFAULT_QUOTA, is_built_in};
use koord_api::{labels, requests};
use koord_app::features::Gates;
use koord_kube::ObjectKey;
use koord_model::replace::replace_resources;

/// Rules for charging pods, by feature gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PodRules {
    /// Gate `DisableDefaultQuota`: a pod without a quota label has no quota.
    pub(crate) no_default: bool,
    /// Gate `SupportParentQuotaSubmitPod`: quotas with children may own pods.
    pub(crate) parents_accept_pods: bool,
    /// Gate `EnableQuotaAdmission`: pods are admitted only if they fit into their quota.
    pub(crate) admission: bool,
    /// Gate `EnableQuotaAdmissionOnUpdate`: also checks pods that change their quota.
    pub(crate) admission_on_update: bool,
    /// Gates `ElasticQuotaEvaluationTransformPod` and `ReplaceResourcesTransformer`, both required: resources
    /// are first replaced according to an annotation.
    pub(crate) replace_resources: bool,
}

impl PodRules {
    /// Creates the rules from feature gates.
    pub(crate) fn from_gates(gates: &Gates) -> Self {
        let on = |gate| gates.enabled(gate);
        Self {
            no_default: on("DisableDefaultQuota"),
            parents_accept_pods: on("SupportParentQuotaSubmitPod"),
            admission: on("EnableQuotaAdmission"),
            admission_on_update: on("EnableQuotaAdmissionOnUpdate"),
            replace_resources: on("ElasticQuotaEvaluationTransformPod")
                && on("ReplaceResourcesTransformer"),
        }
    }
}

fn label<'a>(pod: &'a Pod, key: &str) -> &'a str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|all| all.get(key))
        .map_or("", String::as_str)
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// Returns the quota of a pod, by its label or its namespace; empty if it has none. The quota need not exist.
pub(crate) fn quota_of<'a>(topology: &'a QuotaTopology, pod: &'a Pod, rules: PodRules) -> &'a str {
    match label(pod, labels::POD_QUOTA_NAME) {
        "" if !rules.no_default => topology.quota_of_namespace(namespace(pod)),
        named => named,
    }
}

/// Checks that the quota of a pod accepts pods, and that its preemptible label is unchanged. A pod that is
/// being deleted is always allowed.
pub(crate) fn check(
    topology: &QuotaTopology,
    old: Option<&Pod>,
    new: &Pod,
    rules: PodRules,
) -> Result<(), Refusal> {
    if new.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let key = labels::POD_PREEMPTIBLE;
    if let Some(old) = old
        && label(old, key) != label(new, key)
    {
        return Err(Refusal(format!(
            "Preemptible label is forbidden modify now: labels.{key} {:?} to {:?}",
            label(old, key),
            label(new, key)
        )));
    }
    if rules.parents_accept_pods {
        return Ok(());
    }
    let quota = quota_of(topology, new, rules);
    if quota != DEFAULT_QUOTA && topology.get(quota).is_some_and(|quota| quota.is_parent) {
        return Err(Refusal(format!(
            "pod can not be linked to a parentQuotaGroup,quota:{quota}, pod:{}",
            new.metadata.name.as_deref().unwrap_or_default()
        )));
    }
    Ok(())
}

/// Returns the quota that a pod is charged to; `None` if there is none. An update (`old` is set) is charged
/// only if the quota changes.
pub(crate) fn to_charge(
    topology: &QuotaTopology,
    old: Option<&Pod>,
    new: &Pod,
    rules: PodRules,
) -> Result<Option<ObjectKey>, Refusal> {
    if !rules.admission || (old.is_some() && !rules.admission_on_update) {
        return Ok(None);
    }
    let name = quota_of(topology, new, rules);
    if old.is_some_and(|old| quota_of(topology, old, rules) == name) {
        return Ok(None);
    }
    if name.is_empty() || is_built_in(name) {
        return Ok(None);
    }
    match &*topology.observed_namespaces(name) {
        [] => Err(Refusal(format!("elastic quota {name} not found"))),
        [home] => Ok(Some(ObjectKey::new(*home, name))),
        _ => Err(Refusal(format!("more than one elastic quota {name} found"))),
    }
}

/// Returns the amounts that a pod is charged with; empty for a terminated pod.
pub(crate) fn request(pod: &Pod, rules: PodRules) -> Result<ResourceList, Refusal> {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Failed" | "Succeeded")) {
        return Ok(ResourceList::new());
    }
    let replaced = rules.replace_resources.then(|| {
        let mut pod = pod.clone();
        replace_resources(&mut pod);
        pod
    });
    let pod = replaced.as_ref().unwrap_or(pod);
    let spec = pod.spec.as_ref().map(requests::pod_requests).transpose();
    let spec = spec.map_err(|error| Refusal(error.to_string()))?;
    Ok(spec.unwrap_or_default())
}

#[cfg(test)]
mod tests;
