//! Built-in admission plugins: namespace lifecycle, priority, service account, tolerations, RuntimeClasses,
//! defaults of LimitRanges.

use super::{AdmissionAttributes, Operation};
use crate::rest::core::Core;
use crate::rest::{check, meta};
use crate::store::{Key, TableId};
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde_json::{Value, json};

/// Default time in seconds that a pod tolerates a node that is not ready or unreachable.
const DEFAULT_TOLERATION_SECONDS: i64 = 300;
/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-public", "kube-system"];

/// Runs the built-in plugins on a write.
pub(super) fn admit(
    core: &Core,
    attributes: &AdmissionAttributes<'_>,
    object: &mut Value,
) -> Result<(), ApiError> {
    namespace_lifecycle(core, attributes, object)?;
    let resource = attributes.resource;
    if attributes.operation == Operation::Create && attributes.subresource.is_empty() {
        check::terminating(resource, attributes.name)?;
        if resource.is("", "pods") {
            priority(core, object)?;
            service_account(core, attributes.namespace, object)?;
            default_tolerations(object);
            super::runtime_class::fill(core, object)?;
            super::quota::fill(core, attributes, object)?;
        } else if resource.is("", "namespaces") {
            super::server_fields::namespace_label(object);
        }
    } else if attributes.operation == Operation::Update
        && attributes.subresource.is_empty()
        && resource.is("", "pods")
    {
        // An update that replaces the list of tolerations does not remove these.
        default_tolerations(object);
    }
    Ok(())
}

/// Returns the name of an object for error messages; the prefix while its name is not generated yet.
pub(super) fn display_name(object: &Value) -> &str {
    match meta::name(object) {
        "" => match meta::text(object, &["metadata", "generateName"]) {
            "" => "Unknown",
            prefix => prefix,
        },
        name => name,
    }
}

/// Checks that objects are created only in existing namespaces that are not being deleted, and that some
/// namespaces are never deleted.
fn namespace_lifecycle(
    core: &Core,
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
) -> Result<(), ApiError> {
    let AdmissionAttributes {
        operation,
        resource,
        subresource,
        namespace,
        name,
        ..
    } = *attributes;
    if resource.is("", "namespaces") {
        if operation == Operation::Delete && subresource.is_empty() && IMMORTAL.contains(&name) {
            let reason = "this namespace may not be deleted";
            return Err(ApiError::forbidden("", "namespaces", name, reason));
        }
        return Ok(());
    }
    if operation != Operation::Create || !resource.namespaced {
        return Ok(());
    }
    let table = TableId::new("", "namespaces");
    let Some(entry) = core.store().get(&table, &Key::cluster(namespace)) else {
        return Err(ApiError::not_found("", "namespaces", namespace));
    };
    if entry.index.field("status.phase") == Some("Terminating") {
        let name = if name.is_empty() {
            display_name(object)
        } else {
            name
        };
        let Resource { group, plural, .. } = &**resource;
        return Err(ApiError::namespace_terminating(
            group, plural, name, namespace,
        ));
    }
    Ok(())
}

/// Resolves `priorityClassName` and sets priority and preemption policy.
fn priority(core: &Core, pod: &mut Value) -> Result<(), ApiError> {
    let table = TableId::new("scheduling.k8s.io", "priorityclasses");
    let requested_class = meta::text(pod, &["spec", "priorityClassName"]).to_owned();
    let name = display_name(pod).to_owned();
    let forbidden = |reason: String| ApiError::forbidden("", "pods", &name, &reason);
    let class = if requested_class.is_empty() {
        default_class(core, &table)
    } else {
        let entry = core
            .store()
            .get(&table, &Key::cluster(requested_class.as_str()))
            .ok_or_else(|| {
                forbidden(format!(
                    "no PriorityClass with name {requested_class} was found"
                ))
            })?;
        Some(entry.value())
    };
    let (value, policy, class_name) = match &class {
        Some(c) => (
            c.get("value").and_then(Value::as_i64).unwrap_or(0),
            meta::text(c, &["preemptionPolicy"]).to_owned(),
            meta::name(c).to_owned(),
        ),
        None => (0, String::new(), String::new()),
    };
    let policy = if policy.is_empty() {
        "PreemptLowerPriority".to_owned()
    } else {
        policy
    };
    let spec = meta::section(pod, "spec");
    match spec
        .get("priority")
        .filter(|v| !v.is_null())
        .and_then(Value::as_i64)
    {
        Some(existing) if existing != value => {
            return Err(forbidden(format!(
                "the integer value of priority ({existing}) must not be provided in pod spec; priority \
                 admission controller computed {value} from the given PriorityClass name"
            )));
        }
        _ => {}
    }
    match spec.get("preemptionPolicy").and_then(Value::as_str) {
        Some(existing) if existing != policy => {
            return Err(forbidden(format!(
                "the string value of PreemptionPolicy ({existing}) must not be provided in pod spec; \
                 priority admission controller computed {policy} from the given PriorityClass name"
            )));
        }
        _ => {}
    }
    if requested_class.is_empty() && !class_name.is_empty() {
        spec.insert("priorityClassName".to_owned(), class_name.into());
    }
    spec.insert("priority".to_owned(), value.into());
    spec.insert("preemptionPolicy".to_owned(), policy.into());
    Ok(())
}

/// Returns the class marked `globalDefault`, the lowest one if there are several.
fn default_class(core: &Core, table: &TableId) -> Option<Value> {
    let all = core
        .store()
        .list(table, None, None, None, None, &|_| true)
        .ok()?;
    // This runs for every new pod: only candidates are parsed.
    let marked = |bytes: &[u8]| {
        let key = b"\"globalDefault\":true";
        bytes.windows(key.len()).any(|window| window == key)
    };
    all.items
        .iter()
        .filter(|e| marked(&e.bytes))
        .map(|e| e.value())
        .filter(|c| c.get("globalDefault").and_then(Value::as_bool) == Some(true))
        .min_by_key(|c| c.get("value").and_then(Value::as_i64).unwrap_or(0))
}

/// Sets the service account of a pod; it must exist unless it is `default`.
fn service_account(core: &Core, namespace: &str, pod: &mut Value) -> Result<(), ApiError> {
    let name = display_name(pod).to_owned();
    let spec = meta::section(pod, "spec");
    let text = |spec: &serde_json::Map<String, Value>, key: &str| {
        spec.get(key)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned()
    };
    let mut account = text(spec, "serviceAccountName");
    if account.is_empty() {
        account = text(spec, "serviceAccount");
    }
    if account.is_empty() {
        account = "default".to_owned();
    }
    // The account `default` of a new namespace may not exist yet, but will soon.
    if account != "default" {
        let table = TableId::new("", "serviceaccounts");
        if core
            .store()
            .get(&table, &Key::new(namespace, account.as_str()))
            .is_none()
        {
            let reason = format!(
                "error looking up service account {namespace}/{account}: serviceaccount \
                 {account:?} not found"
            );
            return Err(ApiError::forbidden("", "pods", &name, &reason));
        }
    }
    spec.insert("serviceAccountName".to_owned(), account.as_str().into());
    spec.insert("serviceAccount".to_owned(), account.into());
    Ok(())
}

/// Adds the default tolerations of unready and unreachable nodes.
fn default_tolerations(pod: &mut Value) {
    let spec = meta::section(pod, "spec");
    let list = spec.entry("tolerations").or_insert_with(|| json!([]));
    if list.is_null() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else {
        return;
    };
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let covered = list.iter().any(|t| {
            let (k, effect) = (meta::text(t, &["key"]), meta::text(t, &["effect"]));
            (k == key || k.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !covered {
            list.push(json!({
                "key": key,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": DEFAULT_TOLERATION_SECONDS,
            }));
        }
    }
}
