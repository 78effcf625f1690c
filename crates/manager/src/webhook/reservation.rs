//! `/mutate-reservation`: applies ClusterColocationProfiles to a new Reservation.

use super::metrics::WebhookMetrics;
use super::pod::{ProfileLookup, strategic};
use super::profile::{self, Namespace, ProfileContext, ProfileError};
use super::{Deps, json};
use futures::future::BoxFuture;
use koord_kube::webhook::{Answer, Handler, Operation, Request};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Creates the handler that mutates Reservations.
pub(super) fn mutating(deps: &Deps) -> Arc<dyn Handler> {
    Arc::new(ReservationMutator {
        lookup: deps.lookup.clone(),
        metrics: deps.metrics.clone(),
    })
}

struct ReservationMutator {
    lookup: Arc<dyn ProfileLookup>,
    metrics: WebhookMetrics,
}

impl Handler for ReservationMutator {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(self.mutate(request))
    }
}

impl ReservationMutator {
    /// Applies the matching profiles. Metadata is set on the Reservation, pod fields in the template, if
    /// there is one. Resources are left alone, and namespace selectors are ignored.
    async fn mutate(&self, mut request: Request) -> Answer {
        let about_it = request.resource.resource == "reservations"
            && request.sub_resource.is_empty()
            && request.operation == Operation::Create;
        let (Some(mut object), true) = (request.object.take(), about_it) else {
            return Answer::allow();
        };
        let steps = self
            .metrics
            .steps("mutate", "reservation", request.operation.as_str());
        let step = steps.start("ClusterReservation");
        let profiles = self.lookup.profiles().await;
        let labels = json::labels(&object);
        let (matched, warnings) = profile::matching(profiles, &labels, Namespace::Ignored);
        let mut priorities = BTreeMap::new();
        for name in matched
            .iter()
            .map(|profile| &profile.spec.priority_class_name)
        {
            if !name.is_empty()
                && let Some(priority) = self.lookup.priority_class(name).await
            {
                priorities.insert(name.clone(), priority);
            }
        }
        let template = object
            .pointer("/spec/template")
            .is_some_and(Value::is_object);
        let ctx = ProfileContext {
            priority: &|name| priorities.get(name).cloned(),
            merge: &merge,
            roll: &|profile| profile::stable_percentage(&request.uid, profile),
            pod_spec: template.then_some(&["spec", "template", "spec"]),
        };
        let applied: Result<(), ProfileError> = profile::apply(&matched, &mut object, &ctx);
        match step.stop(applied) {
            Ok(()) => Answer::Mutate { object, warnings },
            Err(error) => Answer::deny(500, error.to_string()),
        }
    }
}

/// Applies a patch: strategic merge in the pod template, JSON merge elsewhere.
fn merge(object: &Value, patch: &Value) -> Result<Value, String> {
    let mut patch = patch.clone();
    let spec = patch.get_mut("spec").and_then(Value::as_object_mut);
    let template_patch = spec.and_then(|spec| spec.remove("template"));
    let merged = koord_object::patch::merge_patch(object, &patch);
    let mut merged = merged.map_err(|error| error.to_string())?;
    let Some(template_patch) = template_patch else {
        return Ok(merged);
    };
    let spec = json::object_at(&mut merged, &["spec"]).map_err(|error| error.to_string())?;
    if template_patch.is_null() {
        spec.remove("template");
        return Ok(merged);
    }
    // A template is a pod without kind and status.
    let old = spec.get("template").cloned().unwrap_or_else(|| json!({}));
    let new = strategic(&old, &template_patch)?;
    spec.insert("template".to_owned(), new);
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_containers_merge_and_owners_are_replaced() {
        let object = json!({"spec": {"owners": [{"a": 1}], "ttl": "1h", "template": {"spec": {
            "containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}}}});
        let patch = json!({"metadata": {"labels": {"x": "y"}}, "spec": {"owners": [{"b": 2}],
            "template": {"spec": {"containers": [{"name": "d", "image": "k"}]}}}});
        let merged = merge(&object, &patch).unwrap();
        assert_eq!(merged["metadata"]["labels"]["x"], "y");
        assert_eq!(merged["spec"]["owners"], json!([{"b": 2}]));
        assert_eq!(merged["spec"]["ttl"], "1h");
        let containers = merged["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap();
        let images: Vec<_> = containers
            .iter()
            .map(|c| (&c["name"], &c["image"]))
            .collect();
        assert_eq!(images.len(), 2);
        assert!(images.contains(&(&json!("c"), &json!("i"))));
        assert!(images.contains(&(&json!("d"), &json!("k"))));
        let removed = merge(&object, &json!({"spec": {"template": null}})).unwrap();
        assert_eq!(removed["spec"].get("template"), None);
    }
}
