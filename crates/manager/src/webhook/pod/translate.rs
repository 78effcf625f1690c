//! Replaces cpu and memory of batch and mid pods by the extended resources of their class.
//!
//! `batch-cpu` and `mid-cpu` count milli-cores, so `500m` becomes `500`. Source: Koordinator
//! `pkg/webhook/pod/mutating/cluster_colocation_profile.go`.

use crate::webhook::json::{self, TypeMismatch};
use koord_api::priority::PriorityClass;
use koord_api::priority::translate;
use koord_api::quantity::Quantity;
use koord_api::resources;
use serde_json::{Map, Value, json};

const NATIVE: [&str; 2] = [resources::CPU, resources::MEMORY];

/// Renames cpu and memory of every container, init container and the overhead to those of `class`; a limit
/// without a request gets one. Classes without own resources change nothing.
///
/// Pod-level resources are left alone: the API server accepts native resources only.
///
/// # Errors
/// A resource list is not an object, or an amount is not a quantity.
pub(super) fn pod(pod: &mut Value, class: PriorityClass) -> Result<(), TypeMismatch> {
    if !has_own_resources(class) {
        return Ok(());
    }
    for list in ["initContainers", "containers"] {
        for (path, container) in json::containers_mut(pod, list) {
            let Some(own) = container.get_mut("resources").filter(|own| !own.is_null()) else {
                continue;
            };
            for side in ["requests", "limits"] {
                let path = format!("{path}.resources.{side}");
                rename(own.get_mut(side), class, &path)?;
            }
            for native in NATIVE {
                request_the_limit(own, class, native, &path)?;
            }
        }
    }
    let overhead = pod
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("overhead"));
    rename(overhead, class, "spec.overhead")
}

/// Returns a warning if a pod has native pod-level resources although its class has own ones.
pub(super) fn warning(pod: &Value, class: PriorityClass) -> Option<String> {
    let pod_resources = pod.get("spec")?.get("resources")?;
    let asks = ["requests", "limits"].iter().any(|side| {
        let list = pod_resources.get(side).and_then(Value::as_object);
        list.is_some_and(|list| NATIVE.iter().any(|name| list.contains_key(*name)))
    });
    (asks && has_own_resources(class)).then(|| {
        format!(
            "spec.resources: cpu and memory of the pod as a whole stay native, although {class} pods \
             use {}; set them on the containers",
            translate(class, resources::CPU).unwrap_or_default(),
        )
    })
}

fn has_own_resources(class: PriorityClass) -> bool {
    matches!(class, PriorityClass::Batch | PriorityClass::Mid)
}

fn rename(list: Option<&mut Value>, class: PriorityClass, path: &str) -> Result<(), TypeMismatch> {
    let list = match list {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(list)) => list,
        Some(other) => return Err(TypeMismatch::new(path, other, "object")),
    };
    for native in NATIVE {
        let (Some(own), Some(amount)) = (translate(class, native), list.get(native)) else {
            continue;
        };
        let quantity = json::quantity(amount, &format!("{path}.{native}"))?;
        let amount = if native == resources::CPU {
            json!(Quantity::from_value(quantity.milli_value()))
        } else {
            amount.clone()
        };
        list.remove(native);
        list.insert(own.to_owned(), amount);
    }
    Ok(())
}

fn request_the_limit(
    own: &mut Value,
    class: PriorityClass,
    native: &str,
    path: &str,
) -> Result<(), TypeMismatch> {
    let Some(name) = translate(class, native) else {
        return Ok(());
    };
    let amount = |side: &str| own.get(side).and_then(|list| list.get(name)).cloned();
    let (None, Some(limit)) = (amount("requests"), amount("limits")) else {
        return Ok(());
    };
    let requests: &mut Map<String, Value> =
        json::object_at(own, &["requests"]).map_err(|error| TypeMismatch {
            path: format!("{path}.resources.{}", error.path),
            ..error
        })?;
    requests.insert(name.to_owned(), limit);
    Ok(())
}
