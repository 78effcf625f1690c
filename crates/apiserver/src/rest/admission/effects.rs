//! Warnings for objects and fields that are stored but have no effect in this server.

use super::{AdmissionAttributes, Operation};
use crate::rest::meta;
use serde_json::Value;

/// Group and plural of kinds without effect, and the reason.
const IDLE: &[(&str, &str, &str)] = &[
    (
        "",
        "persistentvolumeclaims",
        "no controller binds or provisions volumes",
    ),
    (
        "",
        "persistentvolumes",
        "no controller binds or provisions volumes",
    ),
    (
        "apiregistration.k8s.io",
        "apiservices",
        "requests are not forwarded to other servers",
    ),
    (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        "policies are not evaluated: CEL is not supported",
    ),
    (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
        "policies are not evaluated: CEL is not supported",
    ),
    (
        "autoscaling",
        "horizontalpodautoscalers",
        "no controller scales by them",
    ),
    (
        "certificates.k8s.io",
        "certificatesigningrequests",
        "no controller signs certificates",
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "flowschemas",
        "requests are limited in number, not by priority",
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "prioritylevelconfigurations",
        "requests are limited in number, not by priority",
    ),
    (
        "networking.k8s.io",
        "ingresses",
        "nothing routes requests to services",
    ),
    (
        "networking.k8s.io",
        "ingressclasses",
        "nothing routes requests to services",
    ),
    (
        "networking.k8s.io",
        "networkpolicies",
        "pods use the network of their host",
    ),
    (
        "node.k8s.io",
        "runtimeclasses",
        "there is only one runtime, the handler has no effect",
    ),
    (
        "resource.k8s.io",
        "resourceclaims",
        "no controller or scheduler allocates devices by them",
    ),
    (
        "resource.k8s.io",
        "resourceclaimtemplates",
        "no controller creates claims from them",
    ),
    (
        "storage.k8s.io",
        "volumeattachments",
        "no controller attaches volumes",
    ),
];

/// Adds warnings to a write about what `object` will not do in this server.
pub(super) fn advise(
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
    warnings: &mut Vec<String>,
) {
    let resource = attributes.resource;
    if attributes.operation == Operation::Delete
        || !attributes.subresource.is_empty()
        || resource.is_custom()
    {
        return;
    }
    if let Some((_, _, reason)) = IDLE.iter().find(|(g, p, _)| resource.is(g, p)) {
        warnings.push(format!(
            "{} are stored without effect here: {reason}",
            resource.qualified()
        ));
    } else if resource.is("", "services") {
        service(object, warnings);
    } else if koord_kinds::crd::is_definition(resource) {
        definition(object, warnings);
    }
}

fn service(service: &Value, warnings: &mut Vec<String>) {
    let external = meta::text(service, &["spec", "type"]) == "ExternalName";
    if !external && meta::text(service, &["spec", "clusterIP"]) != "None" {
        warnings.push(
            "spec.clusterIP: the address is not routed, and no endpoints are created for the service"
                .to_owned(),
        );
    }
}

fn definition(definition: &Value, warnings: &mut Vec<String>) {
    let rules = meta::at(definition, &["spec", "versions"]).map_or(0, rules);
    if rules > 0 {
        warnings.push(format!(
            "spec.versions: x-kubernetes-validations are not evaluated ({rules} rules): CEL is not supported"
        ));
    }
    if meta::text(definition, &["spec", "conversion", "strategy"]) == "Webhook" {
        warnings.push(
            "spec.conversion: the webhook is not called: conversion changes only the apiVersion"
                .to_owned(),
        );
    }
}

/// Returns the number of CEL rules in a schema.
fn rules(schema: &Value) -> usize {
    match schema {
        Value::Array(items) => items.iter().map(rules).sum(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| match value {
                Value::Array(list) if key == "x-kubernetes-validations" => list.len(),
                other => rules(other),
            })
            .sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_kinds::Registry;

    #[test]
    fn kinds_without_effect_are_served_and_documented() {
        let document = include_str!("../../../../../docs/compat.md");
        for (group, plural, _) in IDLE {
            let registry = Registry::builtin();
            let resource = registry.all().into_iter().find(|r| r.is(group, plural));
            let kind = resource.map(|r| r.kind.clone());
            let named = kind.is_some_and(|k| document.contains(&format!("`{k}`")));
            assert!(named, "{plural}.{group} has no row in docs/compat.md");
        }
    }
}
