//! Pods under admission: what profiles make of them, what they may not say, and who may bind them.
//!
//! The parts are pure and work on the pod as JSON or as a typed value; the handlers look up what the parts need and run them in upstream's order, which is the order of the
//! calls in `mutate.rs` and `validate.rs`. Quotas have their places in both, behind [`Quotas`].

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

/// Flags of the pod webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Who may bind pods.
    pub binding: BindingPolicy,
    /// Which annotations only some users may write.
    pub annotations: AnnotationPolicy,
    /// The ConfigMap of the enhanced validator.
    pub enhanced_source: ObjectKey,
    /// How old what was read of it may be.
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

/// What the pod webhooks look up.
pub trait Lookup: Send + Sync {
    /// All profiles, once they are known.
    fn profiles(&self) -> BoxFuture<'_, Vec<Arc<ClusterColocationProfile>>>;
    /// The labels of a namespace; `None` if there is none of this name.
    fn namespace_labels<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Option<BTreeMap<String, String>>>;
    /// A PriorityClass; `None` if there is none of this name.
    fn priority_class<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Priority>>;
    /// All Recommendations, once they are known.
    fn recommendations(&self) -> BoxFuture<'_, Vec<Arc<RecommendationFacts>>> {
        Box::pin(async { Vec::new() })
    }
}

/// What quotas do about pods, at their places in the two orders.
pub trait Quotas: Send + Sync {
    /// Binds a new pod to the nodes of its quota's tree (gate `MultiQuotaTree`).
    ///
    /// # Errors
    /// Says what is wrong with pod or quota; the pod is refused with it.
    fn place(&self, request: &Request, pod: &mut Value) -> Result<(), String>;

    /// Whether the quota of a new or changed pod may own pods.
    ///
    /// # Errors
    /// Says why not.
    fn may_own(&self, request: &Request, pod: &Pod, old: Option<&Pod>) -> Result<(), String>;

    /// Whether the pod fits into its quota, which is charged for it (gate `EnableQuotaAdmission`).
    ///
    /// # Errors
    /// Says what is exceeded.
    fn charge<'a>(
        &'a self,
        request: &'a Request,
        pod: &'a Pod,
        old: Option<&'a Pod>,
    ) -> BoxFuture<'a, Result<(), String>>;
}

/// Whether a request is about pods themselves, not about a sub-resource or anything else.
fn is_about_pods(request: &Request) -> bool {
    request.sub_resource.is_empty()
        && request.resource.group.is_empty()
        && request.resource.resource == "pods"
}

/// Reads a pod of a request; the error names the field and shows the value.
fn read(pod: Option<&Value>, what: &str) -> Result<Pod, Answer> {
    let Some(pod) = pod else {
        let operation = "the request has none";
        return Err(Answer::deny(400, format!("{what}: {operation}")));
    };
    lenient::from_value(pod).map_err(|error| Answer::deny(400, format!("{what}: {error}")))
}

/// Makes the handler of `/mutate-pod`.
pub(super) fn mutating(deps: &Deps) -> Arc<dyn Handler> {
    Arc::new(mutate::PodMutator {
        lookup: deps.lookup.clone(),
        quotas: deps.quotas.clone(),
        gates: deps.gates.clone(),
        annotations: deps.pods.annotations.clone(),
        metrics: deps.metrics.clone(),
    })
}

/// Makes the handler of `/validate-pod`.
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

/// Makes the handler of `/validate-pod-binding`.
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
