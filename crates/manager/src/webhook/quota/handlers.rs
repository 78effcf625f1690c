//! Handlers of the mutating and the validating webhook of quotas.

use super::Admission;
use super::check::{self, Refusal};
use super::fill;
use super::topology::QuotaWrite;
use crate::webhook::WebhookMetrics;
use futures::FutureExt;
use futures::future::BoxFuture;
use koord_api::lenient;
use koord_api::scheduling::ElasticQuota;
use koord_kube::webhook::{Answer, Handler, Operation, Request};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Sets defaults on new quotas.
pub(crate) struct QuotaMutator {
    pub(super) admission: Arc<Admission>,
    pub(super) metrics: WebhookMetrics,
}

/// Validates writes of quotas.
pub(crate) struct QuotaValidator {
    pub(super) admission: Arc<Admission>,
    pub(super) metrics: WebhookMetrics,
}

/// Allows every request, for replicas without quota admission.
pub(crate) struct AllowAll;

impl Handler for AllowAll {
    fn handle(&self, _: Request) -> BoxFuture<'_, Answer> {
        async { Answer::allow() }.boxed()
    }
}

/// Metric label values for the object and its single step.
const OBJECT: &str = "elasticquota";
const PLUGIN: &str = "QuotaMetaChecker";

fn is_about_quotas(request: &Request) -> bool {
    request.sub_resource.is_empty() && request.resource.resource == "elasticquotas"
}

/// Runs the single step of a webhook and records its duration.
fn timed<T>(
    metrics: &WebhookMetrics,
    webhook: &'static str,
    operation: Operation,
    step: impl FnOnce() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let steps = metrics.steps(webhook, OBJECT, operation.as_str());
    let timer = steps.start(PLUGIN);
    timer.stop(step())
}

/// Decodes the quota of a request; the error names the field and its value.
fn read(quota: Option<&Value>, what: &str) -> Result<ElasticQuota, Refusal> {
    let Some(quota) = quota else {
        return Err(Refusal(format!("{what}: the request has none")));
    };
    lenient::from_value(quota).map_err(|error| Refusal(format!("{what}: {error}")))
}

impl Handler for QuotaMutator {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        async move {
            if !is_about_quotas(&request) {
                return Answer::allow();
            }
            let operation = request.operation;
            match timed(&self.metrics, "mutate", operation, || self.fill(request)) {
                Ok(answer) => answer,
                Err(refusal) => Answer::deny(400, refusal.0),
            }
        }
        .boxed()
    }
}

impl QuotaMutator {
    /// Fills in defaults of a new quota and returns them as a patch.
    fn fill(&self, request: Request) -> Result<Answer, Refusal> {
        let quota = read(request.object.as_ref(), "object")?;
        if request.operation != Operation::Create {
            return Ok(Answer::allow());
        }
        let set = fill::defaults(&self.admission.topology.read(), &quota)?;
        let mut object = request.object.unwrap_or_default();
        if set.weight_is_max && !request.dry_run {
            let name = quota.metadata.name.as_deref().unwrap_or_default();
            for (resource, amount) in &quota.spec.max {
                let gauge = self
                    .metrics
                    .shared_weight
                    .with_label_values(&[name, resource]);
                #[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
                gauge.set(amount.value() as f64);
            }
        }
        for (field, values) in [("labels", set.labels), ("annotations", set.annotations)] {
            if values.is_empty() {
                continue;
            }
            if let Some(all) = metadata_map(&mut object, field) {
                let values = values.into_iter();
                all.extend(values.map(|(key, value)| (key.to_owned(), value.into())));
            }
        }
        Ok(Answer::mutate(object))
    }
}

/// Returns a map in the metadata of an object, creating it if it is missing.
fn metadata_map<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let value = metadata.entry(field).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

impl Handler for QuotaValidator {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        async move {
            if !is_about_quotas(&request) {
                return Answer::allow();
            }
            let operation = request.operation;
            match timed(&self.metrics, "validate", operation, || {
                self.check(&request)
            }) {
                Ok(()) => Answer::allow(),
                Err(refusal) => {
                    let (namespace, name) = (&request.namespace, &request.name);
                    let operation = operation.as_str();
                    tracing::info!(namespace, name, operation, %refusal, "quota refused");
                    Answer::deny(400, refusal.0)
                }
            }
        }
        .boxed()
    }
}

impl QuotaValidator {
    /// Checks a write and records it as admitted in one step: of two requests that exceed a limit together,
    /// the second is refused.
    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let Admission {
            bound, quota_rules, ..
        } = &*self.admission;
        let object = || read(request.object.as_ref(), "object");
        let old_object = || read(request.old_object.as_ref(), "oldObject");
        let (old, new) = match request.operation {
            Operation::Create => (None, Some(object()?)),
            Operation::Update => (Some(old_object()?), Some(object()?)),
            Operation::Delete => (Some(old_object()?), None),
            Operation::Connect => return Ok(()),
        };
        let mut topology = self.admission.topology.write();
        let write = match (&old, &new) {
            (None, Some(new)) => {
                let admitted = check::create(&topology, new, *quota_rules, bound)?;
                Some(QuotaWrite::Create(admitted))
            }
            (Some(old), Some(new)) => {
                check::update(&topology, old, new, *quota_rules, bound)?.map(QuotaWrite::Update)
            }
            (Some(old), None) => check::delete(&topology, old, bound)?.map(QuotaWrite::Delete),
            (None, None) => None,
        };
        if let Some(write) = write.filter(|_| !request.dry_run) {
            topology.admit(write);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
