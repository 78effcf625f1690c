//! Webhooks of pods: apply profiles, validate pods, and check bindings.
//!
//! The parts are pure and work on the pod as JSON or as a typed value. The handlers look up what the parts
//! need and run them in upstream's order, which is the order of the calls in `mutate.rs` and `validate.rs`.
//! Quota checks take part in both through [`PodQuotas`].

mod binding;
mod device;
mod enhanced;
mod extended;
mod field;
mod flags;
mod mutate;
mod protected;
mod recommended;
mod rules;
mod translate;
mod validate;

pub use binding::{BindingPolicy, Namespaces};
pub use flags::Flags;
pub(crate) use mutate::strategic;
pub use protected::AnnotationPolicy;

use crate::facts::RecommendationFacts;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use koord_api::config::ClusterColocationProfile;
use koord_api::lenient;
use koord_kube::ObjectKey;
use koord_kube::webhook::{Answer, Handler, Request};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Deps, Priority};

/// Options of the pod webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Policy for bindings.
    pub binding: BindingPolicy,
    /// Policy for protected annotations.
    pub annotations: AnnotationPolicy,
    /// The ConfigMap of the enhanced validator.
    pub enhanced_source: ObjectKey,
    /// Maximum age of the cached ConfigMap.
    pub enhanced_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            binding: BindingPolicy::default(),
            annotations: AnnotationPolicy::default(),
            enhanced_source: ObjectKey::new("koordinator-system", "pod-enhanced-validator-config"),
            enhanced_interval: Duration::from_secs(300),
        }
    }
}

/// Objects that the pod webhooks look up.
pub trait ProfileLookup: Send + Sync {
    /// Returns all profiles, waiting until they are synced.
    fn profiles(&self) -> BoxFuture<'_, Vec<Arc<ClusterColocationProfile>>>;
    /// Returns the labels of a namespace; `None` if it does not exist.
    fn namespace_labels<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Option<BTreeMap<String, String>>>;
    /// Returns a PriorityClass; `None` if it does not exist.
    fn priority_class<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Priority>>;
    /// Returns all Recommendations, waiting until they are synced.
    fn recommendations(&self) -> BoxFuture<'_, Vec<Arc<RecommendationFacts>>> {
        Box::pin(async { Vec::new() })
    }
}

/// Quota checks of pods, called at their place in upstream's order.
pub trait PodQuotas: Send + Sync {
    /// Restricts a new pod to the nodes of its quota's tree (gate `MultiQuotaTree`).
    ///
    /// # Errors
    /// Describes the problem with pod or quota; the pod is refused.
    fn bind_to_tree(&self, request: &Request, pod: &mut Value) -> Result<(), String>;

    /// Checks that the quota of a new or changed pod may own pods.
    ///
    /// # Errors
    /// Describes why not.
    fn check_quota(&self, request: &Request, pod: &Pod, old: Option<&Pod>) -> Result<(), String>;

    /// Charges the pod to its quota if it fits (gate `EnableQuotaAdmission`).
    ///
    /// # Errors
    /// Describes what is exceeded.
    fn charge<'a>(
        &'a self,
        request: &'a Request,
        pod: &'a Pod,
        old: Option<&'a Pod>,
    ) -> BoxFuture<'a, Result<(), String>>;
}

/// Returns true if a request is about pods, not about a subresource or another resource.
fn is_about_pods(request: &Request) -> bool {
    request.sub_resource.is_empty()
        && request.resource.group.is_empty()
        && request.resource.resource == "pods"
}

/// Decodes the pod of a request; the error names the field and its value.
fn read(pod: Option<&Value>, what: &str) -> Result<Pod, Answer> {
    let Some(pod) = pod else {
        let operation = "the request has none";
        return Err(Answer::deny(400, format!("{what}: {operation}")));
    };
    lenient::from_value(pod).map_err(|error| Answer::deny(400, format!("{what}: {error}")))
}

/// Returns the violations by a new pod of the rules that need nothing but the pod.
pub(super) fn problems(pod: &Pod) -> Vec<String> {
    let mut problems = rules::annotation_problems(pod);
    problems.extend(rules::device_problems(pod, None));
    problems.extend(rules::colocation_problems(pod, None, false));
    problems.extend(device::problems(pod));
    problems
}

/// Creates the handler of `/mutate-pod`.
pub(super) fn mutating(deps: &Deps) -> Arc<dyn Handler> {
    Arc::new(mutate::PodMutator {
        lookup: deps.lookup.clone(),
        quotas: deps.quotas.clone(),
        gates: deps.gates.clone(),
        annotations: deps.pods.annotations.clone(),
        metrics: deps.metrics.clone(),
    })
}

/// Creates the handler of `/validate-pod`.
pub(super) fn validating(deps: &Deps) -> Arc<dyn Handler> {
    let options = &deps.pods;
    let enhanced = validate::RequirementsCache::new(
        deps.client.clone(),
        options.enhanced_source.clone(),
        options.enhanced_interval,
    );
    Arc::new(validate::PodValidator {
        quotas: deps.quotas.clone(),
        gates: deps.gates.clone(),
        enhanced,
        annotations: options.annotations.clone(),
        metrics: deps.metrics.clone(),
    })
}

/// Creates the handler of `/validate-pod-binding`.
pub(super) fn binding(deps: &Deps) -> Arc<dyn Handler> {
    Arc::new(validate::BindingValidator {
        policy: deps.pods.binding.clone(),
        annotations: deps.pods.annotations.clone(),
        gates: deps.gates.clone(),
        client: deps.client.clone(),
        metrics: deps.metrics.clone(),
    })
}

#[cfg(test)]
mod tests;
