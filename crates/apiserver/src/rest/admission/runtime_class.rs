//! RuntimeClass admission: sets overhead, node selector and tolerations of a pod from its RuntimeClass.

use super::builtin::display_name;
use crate::rest::core::Core;
use crate::rest::meta;
use crate::store::{Key, TableId};
use koord_kinds::quantity;
use koord_kinds::status::ApiError;
use serde_json::{Value, json};
use std::collections::HashSet;

/// Sets the fields of a new pod that its RuntimeClass determines.
///
/// # Errors
/// If the class does not exist or conflicts with the pod.
pub(super) fn fill(core: &Core, pod: &mut Value) -> Result<(), ApiError> {
    let name = display_name(pod).to_owned();
    let refused = |reason: &str| Err(ApiError::forbidden("", "pods", &name, reason));
    let provided = |pod: &Value| {
        let overhead = meta::at(pod, &["spec", "overhead"]).filter(|v| !v.is_null());
        overhead.cloned()
    };
    let class = match meta::text(pod, &["spec", "runtimeClassName"]) {
        "" => Value::Null,
        class => {
            let table = TableId::new("node.k8s.io", "runtimeclasses");
            match core.store().get(&table, &Key::cluster(class)) {
                Some(entry) => entry.value(),
                None => {
                    let reason = format!("pod rejected: RuntimeClass {class:?} not found");
                    return refused(&reason);
                }
            }
        }
    };
    match (meta::at(&class, &["overhead", "podFixed"]), provided(pod)) {
        (Some(fixed), Some(own)) if !same(fixed, &own) => {
            return refused(
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
            );
        }
        (Some(fixed), _) => {
            meta::section(pod, "spec").insert("overhead".to_owned(), fixed.clone());
        }
        (None, Some(_)) => {
            return refused(
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            );
        }
        (None, None) => {}
    }
    let Some(scheduling) = class.get("scheduling").filter(|v| v.is_object()) else {
        return Ok(());
    };
    let spec = meta::section(pod, "spec");
    let class_selector = scheduling.get("nodeSelector").and_then(Value::as_object);
    if let Some(class_selector) = class_selector {
        let own = meta::as_object(spec.entry("nodeSelector").or_insert_with(|| json!({})));
        for (key, value) in class_selector {
            match own.get(key).filter(|have| *have != value) {
                Some(have) => {
                    let (value, have) = (value.as_str().unwrap_or(""), have.as_str().unwrap_or(""));
                    return refused(&format!(
                        "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; \
                         pod.spec.nodeSelector[{key}] = {have}"
                    ));
                }
                None => own.insert(key.clone(), value.clone()),
            };
        }
    }
    let class_tolerations = scheduling.get("tolerations").and_then(Value::as_array);
    if let Some(class_tolerations) = class_tolerations {
        let own = spec.entry("tolerations").or_insert_with(|| json!([]));
        if own.is_null() {
            *own = json!([]);
        }
        if let Some(own) = own.as_array_mut() {
            let existing: HashSet<&Value> = own.iter().collect();
            let new = class_tolerations
                .iter()
                .filter(|t| !existing.contains(t))
                .cloned();
            let new: Vec<Value> = new.collect();
            own.extend(new);
        }
    }
    Ok(())
}

/// Returns true if two resource lists have equal amounts.
fn same(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
        return a == b;
    };
    a.len() == b.len()
        && a.iter().all(|(key, amount)| {
            let other = b.get(key).and_then(quantity::parse);
            other.is_some() && other == quantity::parse(amount)
        })
}
