//! Validation of the smaller built-in kinds.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Errors, names, resources};
use crate::meta::{self, str_at};
use crate::status::FieldError;

/// Most bytes of all values of a ConfigMap or Secret together.
const MAX_DATA: usize = 1024 * 1024;
/// Highest priority of classes that are not system classes.
const MAX_USER_PRIORITY: i64 = 1_000_000_000;

/// Validates a Node.
pub(super) fn node(object: &Value, errors: &mut Errors) {
    for key in ["capacity", "allocatable"] {
        resources::validate_list(
            meta::at(object, &["status", key]),
            &format!("status.{key}"),
            errors,
        );
    }
    let taints = meta::at(object, &["spec", "taints"]).and_then(Value::as_array);
    let mut observed = BTreeSet::new();
    for (i, t) in taints.into_iter().flatten().enumerate() {
        let path = format!("spec.taints[{i}]");
        let (key, value, effect) = (
            str_at(t, &["key"]),
            str_at(t, &["value"]),
            str_at(t, &["effect"]),
        );
        for detail in names::qualified_name(key) {
            errors.push(FieldError::invalid(format!("{path}.key"), key, detail));
        }
        if let Some(detail) = names::label_value(value) {
            errors.push(FieldError::invalid(format!("{path}.value"), value, detail));
        }
        match effect {
            "NoSchedule" | "PreferNoSchedule" | "NoExecute" => {}
            "" => errors.push(FieldError::required(format!("{path}.effect"), "")),
            other => errors.push(FieldError::not_supported(
                format!("{path}.effect"),
                other,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            )),
        }
        if !observed.insert((key, effect)) {
            errors.push(FieldError::duplicate(path, t.clone()));
        }
    }
}

/// Validates the keys of `data` and similar maps.
fn data_keys(map: &Map<String, Value>, path: &str, errors: &mut Errors) {
    for key in map.keys() {
        let at = || format!("{path}[{key}]");
        let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if key.len() > 253 {
            errors.push(FieldError::invalid(
                at(),
                key.as_str(),
                "must be no more than 253 bytes",
            ));
        } else if key.is_empty() || !key.bytes().all(valid) {
            errors.push(FieldError::invalid(
                at(),
                key.as_str(),
                "a valid config key must consist of alphanumeric characters, '-', '_' or '.' \
                 (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
            ));
        } else if key == "." || key == ".." {
            errors.push(FieldError::invalid(
                at(),
                key.as_str(),
                format!("must not be '{key}'"),
            ));
        }
    }
}

fn data_size(map: Option<&Map<String, Value>>) -> usize {
    map.into_iter()
        .flatten()
        .map(|(_, v)| v.as_str().map_or(0, str::len))
        .sum()
}

fn frozen(object: &Value, old: Option<&Value>, keys: &[&str], errors: &mut Errors) {
    let Some(old) = old else { return };
    if old.get("immutable").and_then(Value::as_bool) != Some(true) {
        return;
    }
    if object.get("immutable").and_then(Value::as_bool) != Some(true) {
        errors.push(FieldError::forbidden(
            "immutable",
            "field is immutable when `immutable` is set",
        ));
    }
    for key in keys {
        if object.get(*key) != old.get(*key) {
            errors.push(FieldError::forbidden(
                *key,
                "field is immutable when `immutable` is set",
            ));
        }
    }
}

pub(super) fn config_map(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let data = object.get("data").and_then(Value::as_object);
    let binary = object.get("binaryData").and_then(Value::as_object);
    for (map, path) in [(data, "data"), (binary, "binaryData")] {
        if let Some(map) = map {
            data_keys(map, path, errors);
        }
    }
    for key in binary.into_iter().flatten().map(|(k, _)| k) {
        if data.is_some_and(|d| d.contains_key(key)) {
            errors.push(FieldError::invalid(
                format!("data[{key}]"),
                key.as_str(),
                "duplicate of key present in binaryData",
            ));
        }
    }
    if data_size(data) + data_size(binary) > MAX_DATA {
        errors.push(FieldError::too_long("", MAX_DATA));
    }
    frozen(object, old, &["data", "binaryData"], errors);
}

/// Validates a Secret.
pub(super) fn secret(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    use base64::Engine as _;
    let data = object.get("data").and_then(Value::as_object);
    if let Some(map) = data {
        data_keys(map, "data", errors);
        for (key, v) in map {
            let text = v.as_str().unwrap_or_default();
            if base64::engine::general_purpose::STANDARD
                .decode(text)
                .is_err()
            {
                errors.push(FieldError::invalid(
                    format!("data[{key}]"),
                    "<secret contents redacted>",
                    "must be base64",
                ));
            }
        }
    }
    if data_size(data) > MAX_DATA {
        errors.push(FieldError::too_long("data", MAX_DATA));
    }
    if let Some(old) = old
        && object.get("type") != old.get("type")
    {
        errors.push(FieldError::invalid(
            "type",
            object.get("type").cloned().unwrap_or_default(),
            "field is immutable",
        ));
    }
    frozen(object, old, &["data"], errors);
}

/// Validates a Service.
pub(super) fn service(object: &Value, errors: &mut Errors) {
    let kind = str_at(object, &["spec", "type"]);
    if !matches!(
        kind,
        "ClusterIP" | "NodePort" | "LoadBalancer" | "ExternalName"
    ) {
        errors.push(FieldError::not_supported(
            "spec.type",
            kind,
            &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        ));
    }
    let ports = meta::at(object, &["spec", "ports"]).and_then(Value::as_array);
    let headless = str_at(object, &["spec", "clusterIP"]) == "None" || kind == "ExternalName";
    if ports.is_none_or(|p| p.is_empty()) && !headless {
        errors.push(FieldError::required("spec.ports", ""));
    }
    let has_several = ports.is_some_and(|p| p.len() > 1);
    for (i, p) in ports.into_iter().flatten().enumerate() {
        let path = format!("spec.ports[{i}]");
        if has_several && str_at(p, &["name"]).is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        match p.get("port").and_then(Value::as_i64).unwrap_or(0) {
            1..=65535 => {}
            n => errors.push(FieldError::invalid(
                format!("{path}.port"),
                n,
                "must be between 1 and 65535, inclusive",
            )),
        }
        let protocol = str_at(p, &["protocol"]);
        if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
            errors.push(FieldError::not_supported(
                format!("{path}.protocol"),
                protocol,
                &["SCTP", "TCP", "UDP"],
            ));
        }
    }
}

/// Checks the namespace of an event. Events about cluster-scoped objects belong to the namespace `default`.
pub(super) fn event(object: &Value, errors: &mut Errors) {
    for key in ["involvedObject", "regarding"] {
        let Some(target) = object.get(key) else {
            continue;
        };
        let namespace = str_at(target, &["namespace"]);
        let own = meta::namespace(object);
        let fits = if namespace.is_empty() {
            matches!(own, "default" | "kube-system")
        } else {
            namespace == own
        };
        if !fits {
            errors.push(FieldError::invalid(
                format!("{key}.namespace"),
                namespace,
                "does not match event.namespace",
            ));
        }
    }
}

/// Validates a PriorityClass.
pub(super) fn priority_class(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let value = object.get("value").and_then(Value::as_i64).unwrap_or(0);
    let name = meta::name(object);
    if name.starts_with("system-")
        && !matches!(name, "system-cluster-critical" | "system-node-critical")
    {
        errors.push(FieldError::forbidden(
            "metadata.name",
            "priority class names with 'system-' prefix are reserved for system use only. error: class is not a known system priority class",
        ));
    }
    if value > MAX_USER_PRIORITY && !name.starts_with("system-") {
        errors.push(FieldError::forbidden(
            "value",
            format!("maximum allowed value of a user defined priority is {MAX_USER_PRIORITY}"),
        ));
    }
    let policy = str_at(object, &["preemptionPolicy"]);
    if !matches!(policy, "" | "Never" | "PreemptLowerPriority") {
        errors.push(FieldError::not_supported(
            "preemptionPolicy",
            policy,
            &["Never", "PreemptLowerPriority"],
        ));
    }
    if let Some(old) = old {
        if old.get("value").and_then(Value::as_i64).unwrap_or(0) != value {
            errors.push(FieldError::forbidden(
                "value",
                "may not be changed in an update.",
            ));
        }
        if str_at(old, &["preemptionPolicy"]) != policy {
            errors.push(FieldError::invalid(
                "preemptionPolicy",
                policy,
                "field is immutable",
            ));
        }
    }
}

pub(super) fn lease(object: &Value, errors: &mut Errors) {
    let number = |key: &str| meta::int_at(object, &["spec", key]);
    if let Some(n) = number("leaseDurationSeconds")
        && n <= 0
    {
        errors.push(FieldError::invalid(
            "spec.leaseDurationSeconds",
            n,
            "must be greater than 0",
        ));
    }
    if let Some(n) = number("leaseTransitions")
        && n < 0
    {
        errors.push(FieldError::invalid(
            "spec.leaseTransitions",
            n,
            "must be greater than or equal to 0",
        ));
    }
}

/// Validates a PodDisruptionBudget.
pub(super) fn disruption_budget(object: &Value, errors: &mut Errors) {
    let bound = |key: &str| meta::at(object, &["spec", key]).filter(|v| !v.is_null());
    if bound("minAvailable").is_some() && bound("maxUnavailable").is_some() {
        errors.push(FieldError::invalid(
            "spec",
            object.get("spec").cloned().unwrap_or_default(),
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    for key in ["minAvailable", "maxUnavailable"] {
        let path = format!("spec.{key}");
        match bound(key) {
            Some(Value::String(s)) => {
                let percent = s.strip_suffix('%').and_then(|n| n.parse::<u32>().ok());
                match percent {
                    None => errors.push(FieldError::invalid(
                        path,
                        s.as_str(),
                        "a valid percent string must be a numeric string followed by an ending '%' \
                         (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                    )),
                    Some(n) if n > 100 => errors.push(FieldError::invalid(
                        path,
                        s.as_str(),
                        "must not be greater than 100%",
                    )),
                    Some(_) => {}
                }
            }
            Some(Value::Number(n)) if n.as_i64().is_some_and(|n| n < 0) => {
                errors.push(FieldError::invalid(
                    path,
                    Value::Number(n.clone()),
                    "must be greater than or equal to 0",
                ));
            }
            _ => {}
        }
    }
}
