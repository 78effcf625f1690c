//! Validation of pods and pod templates.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;

use super::metadata::validate_labels;
use super::{Errors, names, resources};
use crate::meta::{self, str_at};
use crate::status::FieldError;

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const FORBIDDEN_CHANGE: &str = "pod updates may not change fields other than \
`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
`spec.tolerations` (only additions to existing tolerations),\
`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Checks that `text` is one of `allowed`; absent is valid because of defaulting.
fn one_of(text: &str, path: String, allowed: &[&str], errors: &mut Errors) {
    if !text.is_empty() && !allowed.contains(&text) {
        let mut sorted = allowed.to_vec();
        sorted.sort_unstable();
        errors.push(FieldError::not_supported(path, text, &sorted));
    }
}

fn not_negative(value: Option<&Value>, path: String, errors: &mut Errors) {
    if let Some(n) = value.and_then(Value::as_i64)
        && n < 0
    {
        errors.push(FieldError::invalid(
            path,
            n,
            "must be greater than or equal to 0",
        ));
    }
}

fn port_number(value: Option<&Value>, path: String, errors: &mut Errors) {
    match value.and_then(Value::as_i64) {
        None | Some(1..=65535) => {}
        Some(n) => {
            errors.push(FieldError::invalid(
                path,
                n,
                "must be between 1 and 65535, inclusive",
            ));
        }
    }
}

/// Validates `hostnameOverride` against the fields that exclude it.
fn hostname_override(spec: &Value, path: &str, errors: &mut Errors) {
    let Some(name) = spec.get("hostnameOverride").and_then(Value::as_str) else {
        return;
    };
    let at = format!("{path}.hostnameOverride");
    let set = |key: &str| spec.get(key).and_then(Value::as_bool) == Some(true);
    for (key, detail) in [
        (
            "setHostnameAsFQDN",
            "may not be specified when setHostnameAsFQDN is true",
        ),
        (
            "hostNetwork",
            "may not be specified when hostNetwork is true",
        ),
    ] {
        if set(key) {
            errors.push(FieldError::forbidden(at.clone(), detail));
        }
    }
    if name.len() > 64 {
        errors.push(FieldError::too_long(at.clone(), 64));
    }
    if let Some(detail) = names::dns1123_subdomain(name) {
        errors.push(FieldError::invalid(at, name, detail));
    }
}

/// Returns true for a valid sysctl name: segments of lower-case letters, digits, `-` and `_` between dots or
/// slashes.
fn sysctl_name(name: &str) -> bool {
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let inner = |c: char| end(Some(c)) || matches!(c, '-' | '_');
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            end(part.chars().next()) && end(part.chars().last()) && part.chars().all(inner)
        })
}

fn sysctls(context: &Value, path: &str, errors: &mut Errors) {
    let mut unique_names = BTreeSet::new();
    for (i, sysctl) in list(context, "sysctls").iter().enumerate() {
        let name = str_at(sysctl, &["name"]);
        let path = format!("{path}[{i}].name");
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
        } else if !sysctl_name(name) {
            errors.push(FieldError::invalid(
                path,
                name,
                "must have at most 253 characters and match regex \
                 ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            ));
        } else if !unique_names.insert(name) {
            errors.push(FieldError::duplicate(path, name));
        }
    }
}

/// Validates the pod spec in `owner.spec`, whose path is `path`.
pub(super) fn spec(owner: &Value, path: &str, errors: &mut Errors) {
    let Some(spec) = owner.get("spec").filter(|s| s.is_object()) else {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
        return;
    };
    let volumes = volumes(spec, path, errors);
    if list(spec, "containers").is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let mut container_names = BTreeSet::new();
    for key in ["containers", "initContainers"] {
        for (i, c) in list(spec, key).iter().enumerate() {
            container(
                c,
                &format!("{path}.{key}[{i}]"),
                &volumes,
                &mut container_names,
                errors,
            );
            if key == "containers" && !str_at(c, &["restartPolicy"]).is_empty() {
                errors.push(FieldError::forbidden(
                    format!("{path}.{key}[{i}].restartPolicy"),
                    "may not be set for non-init containers",
                ));
            }
        }
    }
    one_of(
        str_at(spec, &["restartPolicy"]),
        format!("{path}.restartPolicy"),
        &RESTART_POLICIES,
        errors,
    );
    one_of(
        str_at(spec, &["dnsPolicy"]),
        format!("{path}.dnsPolicy"),
        &DNS_POLICIES,
        errors,
    );
    not_negative(
        spec.get("terminationGracePeriodSeconds")
            .filter(|v| v.as_i64() != Some(-1)),
        format!("{path}.terminationGracePeriodSeconds"),
        errors,
    );
    if let Some(n) = spec.get("activeDeadlineSeconds").and_then(Value::as_i64)
        && !(1..=i64::from(i32::MAX)).contains(&n)
    {
        errors.push(FieldError::invalid(
            format!("{path}.activeDeadlineSeconds"),
            n,
            "must be between 1 and 2147483647, inclusive",
        ));
    }
    if let Some(selector) = spec.get("nodeSelector") {
        validate_labels(selector, &format!("{path}.nodeSelector"), errors);
    }
    for (key, text) in [
        ("nodeName", str_at(spec, &["nodeName"])),
        ("serviceAccountName", str_at(spec, &["serviceAccountName"])),
        ("priorityClassName", str_at(spec, &["priorityClassName"])),
    ] {
        if !text.is_empty()
            && let Some(detail) = names::dns1123_subdomain(text)
        {
            errors.push(FieldError::invalid(format!("{path}.{key}"), text, detail));
        }
    }
    hostname_override(spec, path, errors);
    if let Some(context) = spec.get("securityContext") {
        sysctls(context, &format!("{path}.securityContext.sysctls"), errors);
    }
    for (i, t) in list(spec, "tolerations").iter().enumerate() {
        toleration(t, &format!("{path}.tolerations[{i}]"), errors);
    }
    scheduling(spec, path, errors);
}

/// Validates the scheduling constraints of a pod.
fn scheduling(spec: &Value, path: &str, errors: &mut Errors) {
    let mut gate_names = BTreeSet::new();
    for (i, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let name = str_at(gate, &["name"]);
        let at = format!("{path}.schedulingGates[{i}]");
        for detail in names::qualified_name(name) {
            errors.push(FieldError::invalid(&at, name, detail));
        }
        if !gate_names.insert(name) {
            errors.push(FieldError::duplicate(at, name));
        }
    }
    for (i, c) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let at = format!("{path}.topologySpreadConstraints[{i}]");
        if c.get("maxSkew").and_then(Value::as_i64).unwrap_or(0) <= 0 {
            let skew = c.get("maxSkew").cloned().unwrap_or_else(|| 0.into());
            errors.push(FieldError::invalid(
                format!("{at}.maxSkew"),
                skew,
                "must be greater than zero",
            ));
        }
        if str_at(c, &["topologyKey"]).is_empty() {
            errors.push(FieldError::required(
                format!("{at}.topologyKey"),
                "can not be empty",
            ));
        }
        let when = str_at(c, &["whenUnsatisfiable"]);
        if !matches!(when, "DoNotSchedule" | "ScheduleAnyway") {
            errors.push(FieldError::not_supported(
                format!("{at}.whenUnsatisfiable"),
                when,
                &["DoNotSchedule", "ScheduleAnyway"],
            ));
        }
    }
    let node = ["affinity", "nodeAffinity"];
    if let Some(required) = meta::at(
        spec,
        &[
            node[0],
            node[1],
            "requiredDuringSchedulingIgnoredDuringExecution",
        ],
    ) {
        let at = format!(
            "{path}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        );
        let terms = list(required, "nodeSelectorTerms");
        if terms.is_empty() {
            errors.push(FieldError::required(
                &at,
                "must have at least one node selector term",
            ));
        }
        for (i, term) in terms.iter().enumerate() {
            node_term(term, &format!("{at}[{i}]"), errors);
        }
    }
    let preferred = [
        "affinity",
        "nodeAffinity",
        "preferredDuringSchedulingIgnoredDuringExecution",
    ];
    let preferred = meta::at(spec, &preferred).and_then(Value::as_array);
    for (i, p) in preferred.into_iter().flatten().enumerate() {
        let at = format!(
            "{path}.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        );
        let weight = p.get("weight").and_then(Value::as_i64).unwrap_or(0);
        if !(1..=100).contains(&weight) {
            errors.push(FieldError::invalid(
                format!("{at}.weight"),
                weight,
                "must be in the range 1-100",
            ));
        }
        if let Some(term) = p.get("preference") {
            node_term(term, &format!("{at}.preference"), errors);
        }
    }
}

/// Validates a node selector term.
fn node_term(term: &Value, path: &str, errors: &mut Errors) {
    for (i, e) in list(term, "matchExpressions").iter().enumerate() {
        let at = format!("{path}.matchExpressions[{i}]");
        let key = str_at(e, &["key"]);
        for detail in names::qualified_name(key) {
            errors.push(FieldError::invalid(format!("{at}.key"), key, detail));
        }
        let values = list(e, "values");
        match str_at(e, &["operator"]) {
            "In" | "NotIn" => {
                if values.is_empty() {
                    errors.push(FieldError::required(
                        format!("{at}.values"),
                        "must be specified when `operator` is 'In' or 'NotIn'",
                    ));
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    errors.push(FieldError::forbidden(
                        format!("{at}.values"),
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                    ));
                }
            }
            "Gt" | "Lt" => {
                if values.len() != 1 {
                    errors.push(FieldError::required(
                        format!("{at}.values"),
                        "must be specified single value when `operator` is 'Lt' or 'Gt'",
                    ));
                }
            }
            other => errors.push(FieldError::invalid(
                format!("{at}.operator"),
                other,
                "not a valid selector operator",
            )),
        }
    }
}

/// Validates a toleration.
fn toleration(t: &Value, path: &str, errors: &mut Errors) {
    let key = str_at(t, &["key"]);
    let operator = str_at(t, &["operator"]);
    if !key.is_empty() {
        for detail in names::qualified_name(key) {
            errors.push(FieldError::invalid(format!("{path}.key"), key, detail));
        }
    } else if operator != "Exists" {
        errors.push(FieldError::invalid(
            format!("{path}.operator"),
            operator,
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ));
    }
    let effect = str_at(t, &["effect"]);
    if t.get("tolerationSeconds").is_some() && effect != "NoExecute" {
        errors.push(FieldError::invalid(
            format!("{path}.effect"),
            effect,
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        ));
    }
    match operator {
        "" | "Equal" => {
            let value = str_at(t, &["value"]);
            if let Some(detail) = names::label_value(value) {
                errors.push(FieldError::invalid(
                    format!("{path}.operator"),
                    value,
                    detail,
                ));
            }
        }
        "Exists" => {
            let value = str_at(t, &["value"]);
            if !value.is_empty() {
                errors.push(FieldError::invalid(
                    format!("{path}.operator"),
                    value,
                    "value must be empty when `operator` is 'Exists'",
                ));
            }
        }
        other => errors.push(FieldError::not_supported(
            format!("{path}.operator"),
            other,
            &["Equal", "Exists"],
        )),
    }
    one_of(effect, format!("{path}.effect"), &EFFECTS, errors);
}

/// Validates the volumes of a pod spec, and returns their names.
fn volumes<'a>(spec: &'a Value, path: &str, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut volume_names = BTreeSet::new();
    for (i, v) in list(spec, "volumes").iter().enumerate() {
        let name = str_at(v, &["name"]);
        let at = format!("{path}.volumes[{i}]");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if let Some(detail) = names::dns1123_label(name) {
            errors.push(FieldError::invalid(format!("{at}.name"), name, detail));
        } else if volume_names.contains(name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        let sources = v.as_object().map_or(0, |m| m.len().saturating_sub(1));
        if sources > 1 {
            errors.push(FieldError::forbidden(
                at,
                "may not specify more than 1 volume type",
            ));
        }
        volume_names.insert(name);
    }
    volume_names
}

/// Validates a container.
fn container<'a>(
    c: &'a Value,
    path: &str,
    volumes: &BTreeSet<&str>,
    seen: &mut BTreeSet<&'a str>,
    errors: &mut Errors,
) {
    let name = str_at(c, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    } else if let Some(detail) = names::dns1123_label(name) {
        errors.push(FieldError::invalid(format!("{path}.name"), name, detail));
    } else if seen.contains(name) {
        errors.push(FieldError::duplicate(format!("{path}.name"), name));
    }
    seen.insert(name);
    let image = str_at(c, &["image"]);
    if image.is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    } else if image.trim() != image {
        errors.push(FieldError::invalid(
            format!("{path}.image"),
            image,
            "must not have leading or trailing whitespace",
        ));
    }
    one_of(
        str_at(c, &["imagePullPolicy"]),
        format!("{path}.imagePullPolicy"),
        &PULL_POLICIES,
        errors,
    );
    one_of(
        str_at(c, &["terminationMessagePolicy"]),
        format!("{path}.terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
        errors,
    );
    ports(c, path, errors);
    for (i, env) in list(c, "env").iter().enumerate() {
        let at = format!("{path}.env[{i}]");
        let name = str_at(env, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if name.contains('=') || !name.chars().all(|c| (' '..='~').contains(&c)) {
            errors.push(FieldError::invalid(
                format!("{at}.name"),
                name,
                "a valid environment variable name must consist only of printable ASCII characters other than '='",
            ));
        }
        if env.get("valueFrom").is_some() && !str_at(env, &["value"]).is_empty() {
            errors.push(FieldError::invalid(
                format!("{at}.valueFrom"),
                "",
                "may not be specified when `value` is not empty",
            ));
        }
    }
    let mut mounts = BTreeSet::new();
    for (i, m) in list(c, "volumeMounts").iter().enumerate() {
        let at = format!("{path}.volumeMounts[{i}]");
        let volume = str_at(m, &["name"]);
        if volume.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if !volumes.contains(volume) {
            errors.push(FieldError::not_found(format!("{at}.name"), volume));
        }
        let mount = str_at(m, &["mountPath"]);
        if mount.is_empty() {
            errors.push(FieldError::required(format!("{at}.mountPath"), ""));
        } else if mounts.contains(mount) {
            errors.push(FieldError::invalid(
                format!("{at}.mountPath"),
                mount,
                "must be unique",
            ));
        }
        mounts.insert(mount);
    }
    if let Some(r) = c.get("resources") {
        resources::validate(r, &format!("{path}.resources"), errors);
    }
}

/// Validates the ports of a container.
fn ports(c: &Value, path: &str, errors: &mut Errors) {
    let mut port_names = BTreeSet::new();
    for (i, p) in list(c, "ports").iter().enumerate() {
        let at = format!("{path}.ports[{i}]");
        let name = str_at(p, &["name"]);
        if !name.is_empty() {
            if name.len() > 15 || names::dns1123_label(name).is_some() {
                errors.push(FieldError::invalid(
                    format!("{at}.name"),
                    name,
                    "must be no more than 15 characters, lower case alphanumeric or '-'",
                ));
            } else if port_names.contains(name) {
                errors.push(FieldError::duplicate(format!("{at}.name"), name));
            }
            port_names.insert(name);
        }
        match p.get("containerPort").and_then(Value::as_i64) {
            None | Some(0) => {
                errors.push(FieldError::required(format!("{at}.containerPort"), ""));
            }
            _ => {
                port_number(
                    p.get("containerPort"),
                    format!("{at}.containerPort"),
                    errors,
                );
            }
        }
        port_number(
            p.get("hostPort").filter(|v| v.as_i64() != Some(0)),
            format!("{at}.hostPort"),
            errors,
        );
        one_of(
            str_at(p, &["protocol"]),
            format!("{at}.protocol"),
            &["TCP", "UDP", "SCTP"],
            errors,
        );
    }
}

/// Checks that an update of a pod changes only mutable fields.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    let (Some(new_spec), Some(old_spec)) = (new.get("spec"), old.get("spec")) else {
        return;
    };
    if new_spec == old_spec {
        return;
    }
    let mut allowed = new_spec.clone();
    let gated = !list(old_spec, "schedulingGates").is_empty();
    check_images(new_spec, old_spec, &mut allowed, errors);
    restore(&mut allowed, old_spec, "activeDeadlineSeconds");
    let grace = |s: &Value| {
        s.get("terminationGracePeriodSeconds")
            .and_then(Value::as_i64)
    };
    if grace(old_spec).is_some_and(|g| g < 0) && grace(new_spec) == Some(1) {
        restore(&mut allowed, old_spec, "terminationGracePeriodSeconds");
    }
    let tolerations: HashSet<&Value> = list(new_spec, "tolerations").iter().collect();
    if list(old_spec, "tolerations")
        .iter()
        .all(|t| tolerations.contains(t))
    {
        restore(&mut allowed, old_spec, "tolerations");
    } else {
        errors.push(FieldError::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
        restore(&mut allowed, old_spec, "tolerations");
    }
    let gates: HashSet<&Value> = list(old_spec, "schedulingGates").iter().collect();
    if list(new_spec, "schedulingGates")
        .iter()
        .all(|g| gates.contains(g))
    {
        restore(&mut allowed, old_spec, "schedulingGates");
    } else {
        errors.push(FieldError::forbidden(
            "spec.schedulingGates",
            "only deletion is allowed, but found new scheduling gate",
        ));
        restore(&mut allowed, old_spec, "schedulingGates");
    }
    if gated {
        // The node selector of a gated pod may still become narrower.
        let labels = old_spec.get("nodeSelector").and_then(Value::as_object);
        let retained = labels.is_none_or(|labels| {
            labels
                .iter()
                .all(|(k, v)| meta::at(new_spec, &["nodeSelector", k]) == Some(v))
        });
        if retained {
            restore(&mut allowed, old_spec, "nodeSelector");
        }
        restore(&mut allowed, old_spec, "affinity");
    }
    if allowed != *old_spec {
        let changed: Vec<&str> = allowed
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(k, v)| old_spec.get(k.as_str()) != Some(v))
            .map(|(k, _)| k.as_str())
            .chain(
                old_spec
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter(|(k, _)| allowed.get(k.as_str()).is_none())
                    .map(|(k, _)| k.as_str()),
            )
            .collect();
        errors.push(FieldError::forbidden(
            "spec",
            format!("{FORBIDDEN_CHANGE}\nchanged: {}", changed.join(", ")),
        ));
    }
}

fn restore(target: &mut Value, from: &Value, key: &str) {
    let Some(map) = target.as_object_mut() else {
        return;
    };
    match from.get(key) {
        Some(v) => map.insert(key.to_owned(), v.clone()),
        None => map.remove(key),
    };
}

/// Checks changes of images, which may not become empty. Other changes of containers are left for the
/// comparison.
fn check_images(new: &Value, old: &Value, allowed: &mut Value, errors: &mut Errors) {
    for key in ["containers", "initContainers"] {
        if list(new, key).len() != list(old, key).len() {
            errors.push(FieldError::forbidden(
                format!("spec.{key}"),
                "pod updates may not add or remove containers",
            ));
            restore(allowed, old, key);
            continue;
        }
        let targets = allowed
            .get_mut(key)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        for (target, before) in targets.zip(list(old, key)) {
            if let (Some(map), Some(image)) = (target.as_object_mut(), before.get("image")) {
                map.insert("image".to_owned(), image.clone());
            }
        }
    }
}
