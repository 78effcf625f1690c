//! Validation of ResourceQuotas: amounts and scopes.

use serde_json::Value;
use std::collections::BTreeSet;

use super::{Errors, resources};
use crate::meta::{self, str_at};
use crate::status::FieldError;

/// Resources that pod scopes apply to, in addition to the number of pods.
const COMPUTE: [&str; 6] = [
    "cpu",
    "memory",
    "limits.cpu",
    "limits.memory",
    "requests.cpu",
    "requests.memory",
];

/// Native resources of a quota; scopes are not checked against other resources.
const NATIVE: [&str; 19] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

/// Pairs of scopes that exclude each other.
const OPPOSITES: [(&str, &str); 2] = [
    ("BestEffort", "NotBestEffort"),
    ("Terminating", "NotTerminating"),
];

fn is_known_scope(scope: &str) -> bool {
    matches!(
        scope,
        "Terminating"
            | "NotTerminating"
            | "BestEffort"
            | "NotBestEffort"
            | "PriorityClass"
            | "VolumeAttributesClass"
            | "CrossNamespacePodAffinity"
    )
}

/// Returns true if the scope applies to the resource.
fn scope_applies(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ if is_known_scope(scope) => resource == "pods" || COMPUTE.contains(&resource),
        _ => true,
    }
}

/// Validates these scopes, which are at `path` with the value `given`.
fn scopes(all: &[&str], hard: &[&str], path: &str, given: &Value, errors: &mut Errors) {
    for scope in all {
        for resource in hard {
            if NATIVE.contains(resource) && !scope_applies(scope, resource) {
                let detail = "unsupported scope applied to resource";
                errors.push(FieldError::invalid(path, given.clone(), detail));
            }
        }
    }
    for (one, other) in OPPOSITES {
        if all.contains(&one) && all.contains(&other) {
            errors.push(FieldError::invalid(
                path,
                given.clone(),
                "conflicting scopes",
            ));
        }
    }
}

/// Validates an expression of a scope selector.
fn expression(given: &Value, path: &str, errors: &mut Errors) {
    let scope = str_at(given, &["scopeName"]);
    if !is_known_scope(scope) {
        let at = format!("{path}.scopeName");
        errors.push(FieldError::invalid(at, scope, "unsupported scope"));
    }
    let operator = str_at(given, &["operator"]);
    let values = given.get("values").and_then(Value::as_array);
    let values = values.map_or(0, Vec::len);
    let exists_only =
        !matches!(scope, "PriorityClass" | "VolumeAttributesClass") && is_known_scope(scope);
    if exists_only && operator != "Exists" {
        errors.push(FieldError::invalid(
            format!("{path}.operator"),
            operator,
            "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
             ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
             ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
        ));
    }
    match operator {
        "In" | "NotIn" if values == 0 => errors.push(FieldError::required(
            format!("{path}.values"),
            "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        )),
        "Exists" | "DoesNotExist" if values != 0 => errors.push(FieldError::invalid(
            format!("{path}.values"),
            given["values"].clone(),
            "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
        )),
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.push(FieldError::invalid(
            format!("{path}.operator"),
            other,
            "not a valid selector operator",
        )),
    }
}

fn listed(quota: &Value) -> Vec<&str> {
    let list = meta::at(quota, &["spec", "scopes"]).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Validates a ResourceQuota.
pub(super) fn resource_quota(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    resources::validate_list(meta::at(object, &["spec", "hard"]), "spec.hard", errors);
    let hard = meta::at(object, &["spec", "hard"]).and_then(Value::as_object);
    let hard: Vec<&str> = hard
        .into_iter()
        .flatten()
        .map(|(k, _)| k.as_str())
        .collect();
    let own = listed(object);
    let given = meta::at(object, &["spec", "scopes"]).unwrap_or(&Value::Null);
    for scope in &own {
        if !is_known_scope(scope) {
            errors.push(FieldError::invalid(
                "spec.scopes",
                given.clone(),
                "unsupported scope",
            ));
        }
    }
    scopes(&own, &hard, "spec.scopes", given, errors);
    let path = "spec.scopeSelector.matchExpressions";
    let list = meta::at(object, &["spec", "scopeSelector", "matchExpressions"]);
    let list = list
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    for one in list {
        expression(one, path, errors);
    }
    let selected: Vec<&str> = list.iter().map(|e| str_at(e, &["scopeName"])).collect();
    let selector = meta::at(object, &["spec", "scopeSelector"]).unwrap_or(&Value::Null);
    scopes(&selected, &hard, path, selector, errors);
    if let Some(old) = old {
        let as_set = |object| listed(object).into_iter().collect::<BTreeSet<&str>>();
        if as_set(old) != as_set(object) {
            let detail = "field is immutable";
            errors.push(FieldError::invalid("spec.scopes", given.clone(), detail));
        }
    }
}
