//! Copies the batch resources of containers to an annotation for the node's runtime hooks, which see
//! annotations but no resources that the container runtime does not support.
//!
//! Source: Koordinator `pkg/webhook/pod/mutating/extended_resource_spec.go`.

use crate::webhook::json::{self, TypeMismatch};
use koord_api::annotations::POD_EXTENDED_RESOURCE_SPEC;
use koord_api::extension::{
    self, AnnotationError, ExtendedResourceContainerSpec, ExtendedResourceSpec,
};
use koord_api::quantity::ResourceList;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY};
use serde_json::{Value, json};

/// Reason why the annotation cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExtendedError {
    /// The existing annotation is invalid.
    #[error("metadata.annotations: {0}")]
    Annotation(#[from] AnnotationError),
    /// A resource list of the pod is invalid.
    #[error(transparent)]
    TypeMismatch(#[from] TypeMismatch),
}

/// Sets the annotation to the batch resources of the containers. An equal annotation stays unchanged, a pod
/// without batch resources gets none, and an outdated one becomes `{}`.
///
/// # Errors
/// The annotation is invalid, or an amount is not a quantity.
pub(super) fn pod(pod: &mut Value) -> Result<(), ExtendedError> {
    let annotations = json::annotations(pod);
    let existing: Option<ExtendedResourceSpec> =
        extension::read(Some(&annotations), POD_EXTENDED_RESOURCE_SPEC)?;
    let spec = requested(pod)?;
    if existing.unwrap_or_default() == spec {
        return Ok(());
    }
    let annotations = json::object_at(pod, &["metadata", "annotations"])?;
    let text = json!(spec).to_string();
    annotations.insert(POD_EXTENDED_RESOURCE_SPEC.to_owned(), json!(text));
    Ok(())
}

/// Returns the batch resources of the containers of a pod.
fn requested(pod: &mut Value) -> Result<ExtendedResourceSpec, TypeMismatch> {
    let mut spec = ExtendedResourceSpec::default();
    for (path, container) in json::containers_mut(pod, "containers") {
        let list = |side: &str| -> Result<ResourceList, TypeMismatch> {
            let resources = container
                .get("resources")
                .and_then(|resources| resources.get(side));
            let path = format!("{path}.resources.{side}");
            let amounts = [BATCH_CPU, BATCH_MEMORY].into_iter().filter_map(|name| {
                let amount = resources?.get(name)?;
                let read = json::quantity(amount, &format!("{path}.{name}"));
                Some(read.map(|quantity| (name.to_owned(), quantity)))
            });
            amounts.collect()
        };
        let container_spec = ExtendedResourceContainerSpec {
            limits: list("limits")?,
            requests: list("requests")?,
        };
        let name = container.get("name").and_then(Value::as_str);
        if let Some(name) =
            name.filter(|_| container_spec != ExtendedResourceContainerSpec::default())
        {
            spec.containers.insert(name.to_owned(), container_spec);
        }
    }
    Ok(spec)
}
