//! `/validate-pod` and `/validate-pod-binding`: validate pods, and check which users bind them.

use super::binding::Decision;
use super::enhanced::Requirements;
use super::{
    AnnotationPolicy, BindingPolicy, PodQuotas, device, field, is_about_pods, protected, read,
    rules,
};
use crate::webhook::metrics::WebhookMetrics;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use koord_app::features::Gates;
use koord_kube::webhook::{Answer, Handler, Operation, Request};
use koord_kube::{Api, Client, ObjectKey};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The handler of `/validate-pod`.
pub(crate) struct PodValidator {
    pub(crate) quotas: Option<Arc<dyn PodQuotas>>,
    pub(crate) gates: Gates,
    pub(crate) enhanced: RequirementsCache,
    pub(crate) annotations: AnnotationPolicy,
    pub(crate) metrics: WebhookMetrics,
}

impl Handler for PodValidator {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        async move {
            match self.validate(request).await {
                Ok(()) => Answer::allow(),
                Err(answer) => answer,
            }
        }
        .boxed()
    }
}

impl PodValidator {
    /// Checks a new or changed pod, then charges its quota.
    async fn validate(&self, request: Request) -> Result<(), Answer> {
        let written = matches!(request.operation, Operation::Create | Operation::Update);
        if !is_about_pods(&request) || !written {
            return Ok(());
        }
        let pod = read(request.object.as_ref(), "object")?;
        let old = match request.operation {
            Operation::Update => Some(read(request.old_object.as_ref(), "oldObject")?),
            _ => None,
        };
        let old = old.as_ref();
        let denied = |message: String| Answer::deny(400, message);
        let pods = self
            .metrics
            .steps("validate", "pod", request.operation.as_str());

        let timer = pods.start("ClusterReservation");
        let checked = field::all(rules::annotation_problems(&pod));
        timer.stop(checked).map_err(denied)?;

        // A new pod was checked by the mutating webhook as its author sent it; here it includes what profiles
        // added.
        if old.is_some() || !self.gates.enabled("PodMutatingWebhook") {
            let timer = pods.start("ProtectedAnnotations");
            let author = (&request.user, request.namespace.as_str());
            let (new, old) = (
                protected::pod_annotations(Some(&pod)),
                protected::pod_annotations(old),
            );
            let problems = self.annotations.problems(author, &new, &old, false);
            let checked = timer.stop(field::all(problems));
            checked.map_err(|message| Answer::deny(403, message))?;
        }

        let timer = pods.start("DeviceAllocation");
        let checked = field::all(rules::device_problems(&pod, old));
        timer.stop(checked).map_err(denied)?;

        let timer = pods.start("ClusterColocationProfile");
        let priority_may_change = self
            .gates
            .enabled("ColocationProfileSkipValidatingPriority");
        let problems = rules::colocation_problems(&pod, old, priority_may_change);
        timer.stop(field::all(problems)).map_err(denied)?;

        if let Some(quotas) = &self.quotas {
            let timer = pods.start("ElasticQuota");
            let checked = quotas.check_quota(&request, &pod, old);
            timer.stop(checked).map_err(denied)?;

            let timer = pods.start("EvaluateQuota");
            let charged = quotas.charge(&request, &pod, old).await;
            timer.stop(charged).map_err(denied)?;
        }
        if self.gates.enabled("ValidatePodDeviceResource") {
            let timer = pods.start("DeviceResource");
            let checked = field::all(device::problems(&pod));
            timer.stop(checked).map_err(denied)?;
        }
        if self.gates.enabled("EnablePodEnhancedValidator") {
            let timer = pods.start("EnhancedValidation");
            let labels = pod.metadata.labels.unwrap_or_default();
            let requirements = self.enhanced.current().await;
            let checked = requirements.check(&labels, &request.namespace);
            timer.stop(checked).map_err(denied)?;
        }
        Ok(())
    }
}

/// Cache of the enhanced validator's requirements, refreshed after an interval.
pub(crate) struct RequirementsCache {
    client: Client,
    source: ObjectKey,
    interval: Duration,
    read: Mutex<Option<(Instant, Arc<Requirements>)>>,
}

impl RequirementsCache {
    /// Creates a cache of the ConfigMap `source`, read on the first request and again after `interval`.
    pub(crate) fn new(client: Client, source: ObjectKey, interval: Duration) -> Self {
        Self {
            client,
            source,
            interval,
            read: Mutex::default(),
        }
    }

    /// Returns the effective requirements. Without a ConfigMap there are none; while it is invalid or cannot
    /// be read, the last ones stay in effect.
    async fn current(&self) -> Arc<Requirements> {
        let mut read = self.read.lock().await;
        if let Some((at, requirements)) = &*read
            && at.elapsed() < self.interval
        {
            return requirements.clone();
        }
        let last = read.take().map(|(_, last)| last).unwrap_or_default();
        let configs: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.source.namespace);
        let next = match configs.get_opt(&self.source.name).await {
            Ok(None) => Arc::default(),
            Ok(Some(config)) => match Requirements::parse(&config.data.unwrap_or_default()) {
                Ok(requirements) => Arc::new(requirements),
                Err(problem) => {
                    tracing::error!(config = %self.source, problem, "invalid pod validation rules, keeping the previous ones");
                    last
                }
            },
            Err(error) => {
                tracing::error!(config = %self.source, %error, "failed to read pod validation rules, keeping the previous ones");
                last
            }
        };
        *read = Some((Instant::now(), next.clone()));
        next
    }
}

/// The handler of `/validate-pod-binding`.
pub(crate) struct BindingValidator {
    pub(crate) policy: BindingPolicy,
    pub(crate) annotations: AnnotationPolicy,
    pub(crate) gates: Gates,
    pub(crate) client: Client,
    pub(crate) metrics: WebhookMetrics,
}

impl Handler for BindingValidator {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        async move {
            if let Err(message) = self.check_annotations(&request) {
                return Answer::deny(403, message);
            }
            let decision = self.decide(&request).await;
            if let Some(decision) = decision.metric() {
                self.metrics.bindings.with_label_values(&[decision]).inc();
            }
            let user = &request.user.name;
            let pod = ObjectKey::new(request.namespace.clone(), request.name.clone());
            match decision {
                Decision::Denied => {
                    let message = format!("binding of {pod}: user {user:?} may not bind pods here");
                    Answer::deny(403, message)
                }
                Decision::DryRun => {
                    tracing::info!(%pod, user, "allowing binding that would be denied, dry run");
                    Answer::allow()
                }
                _ => Answer::allow(),
            }
        }
        .boxed()
    }
}

impl BindingValidator {
    /// Checks the annotations of a binding, which the API server adds to the pod.
    fn check_annotations(&self, request: &Request) -> Result<(), String> {
        let new = protected::object_annotations(request.object.as_ref());
        let author = (&request.user, request.namespace.as_str());
        let nothing = Default::default();
        field::all(self.annotations.problems(author, &new, &nothing, false))
    }

    async fn decide(&self, request: &Request) -> Decision {
        let is_binding = request.resource.resource == "pods"
            && request.sub_resource == "binding"
            && request.operation == Operation::Create;
        if !is_binding || !self.gates.enabled("BindingAdmissionWebhook") {
            return Decision::Unchecked;
        }
        let decision = self.policy.decide(&request.user.name, &request.namespace);
        if let Some(decision) = decision {
            return decision;
        }
        // Bindings that get here are rare, so caching the labels of all pods is not worth it.
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &request.namespace);
        let pod = pods.get_metadata_opt(&request.name).await;
        let pod = pod.inspect_err(
            |error| tracing::warn!(%error, "failed to read the pod of a binding, allowing it"),
        );
        self.policy
            .decide_by_metadata(pod.ok().flatten().map(|pod| pod.metadata).as_ref())
    }
}
