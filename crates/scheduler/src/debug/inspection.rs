//! JSON values of the inspection API in the form in which Go prints structs without field tags.

use crate::state::PodInfo;
use k8s_openapi::api::core::v1::ContainerPort;
use koord_model::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, ResourceId, ResourceTable};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the object `value` without its empty fields, as Go's `omitempty` does.
#[must_use]
pub fn without_empty(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| match field {
            Value::Null | Value::Bool(false) => false,
            Value::Number(number) => number.as_i64() != Some(0),
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::Bool(true) => true,
        });
    }
    value
}

/// Returns all resource amounts that `of` returns, as upstream's `Resource` struct.
pub fn amounts(table: &ResourceTable, of: impl Fn(ResourceId) -> i64) -> Value {
    let mut scalars = Map::new();
    for number in 0..u16::try_from(table.len()).unwrap_or(u16::MAX) {
        let id = ResourceId(number);
        let amount = of(id);
        if amount != 0 && ![CPU, MEMORY, EPHEMERAL_STORAGE, PODS].contains(&id) {
            scalars.insert(table.name(id).to_string(), json!(amount));
        }
    }
    json!({
        "MilliCPU": of(CPU),
        "Memory": of(MEMORY),
        "EphemeralStorage": of(EPHEMERAL_STORAGE),
        "AllowedPodNumber": of(PODS),
        "ScalarResources": if scalars.is_empty() { Value::Null } else { scalars.into() },
    })
}

/// Returns the host ports that `pods` use, by host address.
pub fn host_ports<'a>(pods: impl Iterator<Item = &'a PodInfo>) -> Value {
    let mut used: BTreeMap<String, BTreeSet<(i32, String)>> = BTreeMap::new();
    for port in pods.flat_map(ports) {
        let Some(number) = port.host_port.filter(|number| *number > 0) else {
            continue;
        };
        let or = |text: &Option<String>, fallback: &str| {
            let text = text.as_deref().filter(|text| !text.is_empty());
            text.unwrap_or(fallback).to_owned()
        };
        let ports = used.entry(or(&port.host_ip, "0.0.0.0")).or_default();
        ports.insert((number, or(&port.protocol, "TCP")));
    }
    let list = |ports: BTreeSet<(i32, String)>| -> Value {
        let ports = ports.into_iter();
        ports
            .map(|(port, protocol)| json!({"Protocol": protocol, "Port": port}))
            .collect()
    };
    used.into_iter()
        .map(|(address, ports)| (address, list(ports)))
        .collect()
}

/// Iterates over the host ports of main containers and sidecars.
fn ports(pod: &PodInfo) -> impl Iterator<Item = &ContainerPort> {
    let containers = pod.object.containers.iter();
    let stay = containers.filter(|container| !container.init || container.is_sidecar());
    stay.flat_map(|container| &container.ports)
}
