//! `/mutate-pod`: applies profiles, resources and quotas to a new pod.

use super::{
    AnnotationPolicy, PodQuotas, ProfileLookup, device, extended, field, is_about_pods, protected,
    read, recommended, translate,
};
use crate::webhook::json;
use crate::webhook::metrics::WebhookMetrics;
use crate::webhook::profile::{self, Namespace, Priority, ProfileContext, ProfileError};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use koord_api::config::ClusterColocationProfile;
use koord_api::{lenient, priority};
use koord_app::features::Gates;
use koord_kube::webhook::{Answer, Handler, Operation, Request};
use koord_object::schema::types;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The handler of `/mutate-pod`.
pub(crate) struct PodMutator {
    pub(crate) lookup: Arc<dyn ProfileLookup>,
    pub(crate) quotas: Option<Arc<dyn PodQuotas>>,
    pub(crate) gates: Gates,
    pub(crate) annotations: AnnotationPolicy,
    pub(crate) metrics: WebhookMetrics,
}

impl Handler for PodMutator {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        async move {
            match self.mutate(request).await {
                Ok(answer) | Err(answer) => answer,
            }
        }
        .boxed()
    }
}

impl PodMutator {
    /// Applies profiles, quotas and defaults to a new pod.
    async fn mutate(&self, mut request: Request) -> Result<Answer, Answer> {
        if !is_about_pods(&request) || request.operation != Operation::Create {
            return Ok(Answer::allow());
        }
        read(request.object.as_ref(), "object")?;
        let Some(mut pod) = request.object.take() else {
            return Ok(Answer::allow());
        };
        let failed = |error: &dyn std::fmt::Display| Answer::deny(500, error.to_string());
        let pods = self
            .metrics
            .steps("mutate", "pod", request.operation.as_str());
        let mut warnings = Vec::new();

        // Before the profiles, whose annotations an administrator wrote.
        let timer = pods.start("ProtectedAnnotations");
        let is_computed = !self.gates.enabled("DisableExtendedResourceSpec");
        let problems = self.annotations.problems(
            (&request.user, &request.namespace),
            &protected::object_annotations(Some(&pod)),
            &BTreeMap::new(),
            is_computed,
        );
        timer
            .stop(field::all(problems))
            .map_err(|message| Answer::deny(403, message))?;

        let timer = pods.start("ClusterColocationProfile");
        let profiles = self.profiles(&request, &pod).await;
        warnings.extend(profiles.warnings.iter().cloned());
        let applied = profiles.apply(&request, &mut pod, &self.gates);
        warnings.extend(timer.stop(applied).map_err(|error| failed(&error))?);

        if !self.gates.enabled("DisableExtendedResourceSpec") {
            let timer = pods.start("ExtendedResourceSpec");
            timer
                .stop(extended::pod(&mut pod))
                .map_err(|error| failed(&error))?;
        }
        if let Some(quotas) = &self.quotas
            && self.gates.enabled("MultiQuotaTree")
        {
            let timer = pods.start("MultiQuotaTree");
            let placed = quotas.bind_to_tree(&request, &mut pod);
            timer.stop(placed).map_err(|error| failed(&error))?;
        }
        if !self.gates.enabled("DisableDeviceResourceSpec") {
            let timer = pods.start("DeviceResourceSpec");
            timer
                .stop(device::pod(&mut pod))
                .map_err(|error| failed(&error))?;
        }
        if self.gates.enabled("RecommendationAdmission") {
            let timer = pods.start("Recommendation");
            let recommendations = self.lookup.recommendations().await;
            let typed = read(Some(&pod), "the pod after its mutations")?;
            let applied = recommended::pod(&mut pod, &typed, &request.namespace, &recommendations);
            timer.stop(applied).map_err(|error| failed(&error))?;
        }
        Ok(Answer::Mutate {
            object: pod,
            warnings,
        })
    }

    /// Looks up the profiles that match a pod, and the objects they refer to.
    async fn profiles(&self, request: &Request, pod: &Value) -> Profiles {
        let profiles = self.lookup.profiles().await;
        let labels = json::labels(pod);
        let namespace = if profiles
            .iter()
            .any(|profile| profile::needs_namespace(profile))
        {
            self.lookup.namespace_labels(&request.namespace).await
        } else {
            None
        };
        let namespace = namespace
            .as_ref()
            .map_or(Namespace::Unknown, Namespace::Labels);
        let (matched, warnings) = profile::matching(profiles, &labels, namespace);
        let mut priorities = BTreeMap::new();
        for profile in &matched {
            let name = &profile.spec.priority_class_name;
            if !name.is_empty()
                && !priorities.contains_key(name)
                && let Some(priority) = self.lookup.priority_class(name).await
            {
                priorities.insert(name.clone(), priority);
            }
        }
        Profiles {
            matched,
            warnings,
            priorities,
        }
    }
}

/// The profiles that match a pod, and the objects they refer to.
pub(super) struct Profiles {
    /// Matching profiles, sorted by name.
    pub(super) matched: Vec<Arc<ClusterColocationProfile>>,
    pub(super) warnings: Vec<String>,
    pub(super) priorities: BTreeMap<String, Priority>,
}

/// Reason why the profiles cannot be applied to a pod.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("invalid pod after applying ClusterColocationProfiles: {0}")]
    Broken(#[from] lenient::ReadError),
    #[error(transparent)]
    TypeMismatch(#[from] json::TypeMismatch),
}

impl Profiles {
    /// Applies the profiles to `pod` and, if one matches, replaces its resources by those of its priority
    /// class. Returns warnings.
    pub(super) fn apply(
        &self,
        request: &Request,
        pod: &mut Value,
        gates: &Gates,
    ) -> Result<Vec<String>, Failure> {
        if self.matched.is_empty() {
            return Ok(Vec::new());
        }
        let ctx = ProfileContext {
            priority: &|name| self.priorities.get(name).cloned(),
            merge: &strategic,
            roll: &|profile| profile::stable_percentage(&request.uid, profile),
            pod_spec: Some(&["spec"]),
        };
        profile::apply(&self.matched, pod, &ctx)?;
        let keep = self
            .matched
            .iter()
            .any(|profile| profile::keeps_resources(profile));
        if keep || gates.enabled("ColocationProfileSkipMutatingResources") {
            return Ok(Vec::new());
        }
        let class = priority::pod_priority_class_or_default(&lenient::from_value(pod)?);
        translate::pod(pod, class)?;
        Ok(translate::warning(pod, class).into_iter().collect())
    }
}

/// Applies a strategic merge patch to a pod, with the merge keys of the pod's lists.
///
/// # Errors
/// The patch is invalid, or the result is no valid pod.
pub(crate) fn strategic(pod: &Value, patch: &Value) -> Result<Value, String> {
    let pods = types::find("core/v1.Pod").ok_or("no schema of pods")?;
    let merged = koord_object::patch::strategic_merge(&pods.schema, pod, patch);
    let merged = merged.map_err(|error| error.to_string())?;
    let read = lenient::from_value::<Pod>(&merged);
    read.map(|_| merged).map_err(|error| error.to_string())
}
