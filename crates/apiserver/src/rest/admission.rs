//! What the server decides about an object before it is stored: the built-in admission plugins.

use super::{Api, meta};
use crate::kinds::Resource;
use crate::kinds::status::{ApiError, FieldError};
use crate::store::{Key, TableId};
use serde_json::{Value, json};

/// Finalizer by which deleting a definition waits for its objects.
pub(crate) const CRD_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Label that carries a namespace's own name.
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Seconds a pod tolerates a dead node unless it says otherwise.
const DEFAULT_TOLERATION_SECONDS: i64 = 300;

/// Objects are only made in namespaces that exist and stay.
pub(super) fn namespace_exists(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    if !resource.namespaced {
        return Ok(());
    }
    let table = TableId::new("", "namespaces");
    let Some(entry) = api.store().get(&table, &Key::cluster(namespace)) else {
        return Err(ApiError::not_found("", "namespaces", namespace));
    };
    if entry.index.field("status.phase") == Some("Terminating") {
        return Err(ApiError::namespace_terminating(
            &resource.group,
            &resource.plural,
            name,
            namespace,
        ));
    }
    Ok(())
}

/// Fills in what a new object gets from the server.
pub(super) fn on_create(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    object: &mut Value,
) -> Result<(), ApiError> {
    if resource.is_custom() {
        return Ok(());
    }
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => {
            priority(api, object)?;
            service_account(api, namespace, object)?;
            default_tolerations(object);
        }
        ("", "namespaces") => new_namespace(object),
        ("", "services") => cluster_ip(api, object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            replaces_builtin(api, resource, object)?;
            let mut finalizers = meta::finalizers(object);
            if !finalizers.iter().any(|f| f == CRD_FINALIZER) {
                finalizers.push(CRD_FINALIZER.to_owned());
                meta::set_finalizers(object, &finalizers);
            }
        }
        _ => {}
    }
    Ok(())
}

/// A definition of a resource that is built in would share its objects, and delete them with it.
fn replaces_builtin(api: &Api, resource: &Resource, definition: &Value) -> Result<(), ApiError> {
    let group = meta::text(definition, &["spec", "group"]);
    let plural = meta::text(definition, &["spec", "names", "plural"]);
    let taken = api
        .registry()
        .all()
        .iter()
        .any(|r| !r.is_custom() && &*r.group == group && &*r.plural == plural);
    if !taken {
        return Ok(());
    }
    let e = FieldError::invalid(
        "spec.names.plural",
        plural,
        format!("is a built-in resource of group {group}"),
    );
    let name = meta::name(definition);
    Err(super::check::invalid(resource, name, &[e]))
}

/// Keeps what a client may not take away from an object.
pub(super) fn on_update(
    api: &Api,
    resource: &Resource,
    subresource: Option<&str>,
    old: &Value,
    new: &mut Value,
) -> Result<(), ApiError> {
    if resource.is_custom() {
        return Ok(());
    }
    match (&*resource.group, &*resource.plural, subresource) {
        ("", "namespaces", sub) => {
            if sub != Some("finalize") {
                let kept = meta::at(old, &["spec", "finalizers"]).cloned();
                let spec = meta::section(new, "spec");
                match kept {
                    Some(f) => spec.insert("finalizers".to_owned(), f),
                    None => spec.remove("finalizers"),
                };
            }
            namespace_label(new);
            // Only a deletion ends a namespace: its contents go by the phase.
            let phase = if meta::deleting(new) {
                "Terminating"
            } else {
                "Active"
            };
            meta::section(new, "status").insert("phase".to_owned(), phase.into());
        }
        ("", "services", None)
            if meta::text(new, &["spec", "clusterIP"]).is_empty()
                && meta::text(new, &["spec", "type"]) != "ExternalName" =>
        {
            let kept = meta::at(old, &["spec", "clusterIP"]).cloned();
            match kept {
                Some(ip) => {
                    let spec = meta::section(new, "spec");
                    spec.insert("clusterIPs".to_owned(), json!([ip]));
                    spec.insert("clusterIP".to_owned(), ip);
                }
                None => cluster_ip(api, new),
            }
        }
        _ => {}
    }
    Ok(())
}

fn new_namespace(object: &mut Value) {
    namespace_label(object);
    let spec = meta::section(object, "spec");
    spec.insert("finalizers".to_owned(), json!(["kubernetes"]));
    meta::section(object, "status").insert("phase".to_owned(), "Active".into());
}

fn namespace_label(object: &mut Value) {
    let name = meta::name(object).to_owned();
    let metadata = meta::section(object, "metadata");
    let labels = metadata.entry("labels").or_insert(Value::Null);
    meta::as_object(labels).insert(NAMESPACE_NAME_LABEL.to_owned(), name.into());
}

/// Resolves `priorityClassName`.
fn priority(api: &Api, pod: &mut Value) -> Result<(), ApiError> {
    let table = TableId::new("scheduling.k8s.io", "priorityclasses");
    let wanted = meta::text(pod, &["spec", "priorityClassName"]).to_owned();
    let name = meta::name(pod).to_owned();
    let forbidden = |why: String| ApiError::forbidden("", "pods", &name, &why);
    let class = if wanted.is_empty() {
        default_class(api, &table)
    } else {
        let entry = api
            .store()
            .get(&table, &Key::cluster(wanted.as_str()))
            .ok_or_else(|| forbidden(format!("no PriorityClass with name {wanted} was found")))?;
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
        Some(given) if given != value => {
            return Err(forbidden(format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority \
                 admission controller computed {value} from the given PriorityClass name"
            )));
        }
        _ => {}
    }
    match spec.get("preemptionPolicy").and_then(Value::as_str) {
        Some(given) if given != policy => {
            return Err(forbidden(format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; \
                 priority admission controller computed {policy} from the given PriorityClass name"
            )));
        }
        _ => {}
    }
    if wanted.is_empty() && !class_name.is_empty() {
        spec.insert("priorityClassName".to_owned(), class_name.into());
    }
    spec.insert("priority".to_owned(), value.into());
    spec.insert("preemptionPolicy".to_owned(), policy.into());
    Ok(())
}

/// The class marked `globalDefault`, the lowest if there are several.
fn default_class(api: &Api, table: &TableId) -> Option<Value> {
    let all = api
        .store()
        .list(table, None, None, None, None, &|_| true)
        .ok()?;
    // Every create of a pod comes here: only what may be a default is parsed.
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

fn service_account(api: &Api, namespace: &str, pod: &mut Value) -> Result<(), ApiError> {
    let name = meta::name(pod).to_owned();
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
    // Every namespace gets its `default` account, only a moment after it is made.
    if account != "default" {
        let table = TableId::new("", "serviceaccounts");
        if api
            .store()
            .get(&table, &Key::new(namespace, account.as_str()))
            .is_none()
        {
            let why = format!(
                "error looking up service account {namespace}/{account}: serviceaccount \
                 {account:?} not found"
            );
            return Err(ApiError::forbidden("", "pods", &name, &why));
        }
    }
    spec.insert("serviceAccountName".to_owned(), account.as_str().into());
    spec.insert("serviceAccount".to_owned(), account.into());
    Ok(())
}

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

/// Gives a service an address of 10.96.0.0/16. Nothing routes it; clients only expect one.
fn cluster_ip(api: &Api, service: &mut Value) {
    if meta::text(service, &["spec", "type"]) == "ExternalName" {
        return;
    }
    let given = meta::text(service, &["spec", "clusterIP"]).to_owned();
    let address = if given.is_empty() {
        let table = TableId::new("", "services");
        let mut address = String::new();
        for _ in 0..64 {
            address = format!("10.96.{}.{}", fastrand::u8(1..=254), fastrand::u8(1..=254));
            let taken = api.store().list(&table, None, None, None, Some(1), &|e| {
                e.index.field("spec.clusterIP") == Some(address.as_str())
            });
            if taken.is_ok_and(|p| p.items.is_empty()) {
                break;
            }
        }
        address
    } else {
        given
    };
    let spec = meta::section(service, "spec");
    spec.insert("clusterIPs".to_owned(), json!([address]));
    spec.insert("clusterIP".to_owned(), address.into());
}
