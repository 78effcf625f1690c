//! The `pods/binding` subresource and the legacy `bindings` resource, by which the scheduler assigns pods to
//! nodes.

use super::admission::{AdmissionAttributes, Operation, Options};
use super::call::Call;
use super::{Api, meta, respond};
use crate::store::Key;
use axum::response::Response;
use koord_kinds::status::{ApiError, FieldError};
use serde_json::{Value, json};

/// Serves the POST of a Binding for pod `name`.
pub(super) async fn serve(api: &Api, name: &str, call: &Call) -> Result<Response, ApiError> {
    let options = call.write_options("CreateOptions")?;
    let mut binding = call.decode()?.value;
    let pods = api.builtin("", "v1", "pods")?;
    let bindings = api.builtin("", "v1", "bindings")?;
    super::check::check_identity(&bindings, &mut binding, false)?;
    let provided = meta::name(&binding);
    if !provided.is_empty() && provided != name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    let namespace = meta::namespace(&binding);
    if !namespace.is_empty() && namespace != call.namespace() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if name.is_empty() || call.namespace().is_empty() {
        let e = FieldError::required("metadata.name", "name or generateName is required");
        return Err(ApiError::invalid("", "Binding", name, &[e]));
    }
    // The legacy form is a resource of its own, also for admission.
    let (resource, subresource) = match call.path.subresource.as_deref() {
        Some(sub) => (&pods, sub),
        None => (&bindings, ""),
    };
    let attributes = AdmissionAttributes::new(
        Operation::Create,
        resource,
        subresource,
        (call.namespace(), name),
        Options::Write(&options),
    );
    let mut warnings = Vec::new();
    api.admission()
        .admit(&attributes, &mut binding, None, &mut warnings, |binding| {
            check_target(name, binding)
        })
        .await?;
    let key = Api::key(&pods, call.namespace(), name);
    let now = api.clock().now();
    api.core()
        .modify_admitted(&pods, &key, options.dry_run, |pod| {
            bound(pod, &binding, &key, now).map(Some)
        })
        .await?;
    Ok(created(call, &warnings))
}

/// Builds the response to a Binding or an Eviction.
pub(super) fn created(call: &Call, warnings: &[String]) -> Response {
    let mut status = respond::success(Value::Null);
    if let Some(map) = status.as_object_mut() {
        map.remove("details");
        map.insert("code".to_owned(), 201.into());
    }
    let mut response = respond::value(201, &status, call.style());
    respond::warn(&mut response, warnings);
    response
}

fn check_target(name: &str, binding: &Value) -> Result<(), ApiError> {
    let kind = meta::text(binding, &["target", "kind"]);
    let mut errors = Vec::new();
    if !kind.is_empty() && kind != "Node" {
        errors.push(FieldError::not_supported(
            "target.kind",
            kind,
            &["Node", "<empty>"],
        ));
    }
    if meta::text(binding, &["target", "name"]).is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid("", "Binding", name, &errors))
}

/// Returns the pod as the binding changes it.
fn bound(pod: Value, binding: &Value, key: &Key, now: jiff::Timestamp) -> Result<Value, ApiError> {
    let mut new = pod;
    let pod = &new;
    let name = &*key.name;
    let precondition = |what, expected: &str, have: &str| {
        ApiError::precondition("", "pods/binding", name, what, expected, have)
    };
    let (uid, have) = (meta::uid(binding), meta::uid(pod));
    if !uid.is_empty() && uid != have {
        return Err(precondition("UID", uid, have));
    }
    let (version, have) = (meta::resource_version(binding), meta::resource_version(pod));
    if !version.is_empty() && version != have {
        return Err(precondition("ResourceVersion", version, have));
    }
    let conflict = |reason: String| ApiError::conflict("", "pods/binding", name, &reason);
    if meta::deleting(pod) {
        return Err(conflict(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        )));
    }
    let node = meta::text(pod, &["spec", "nodeName"]);
    if !node.is_empty() {
        return Err(conflict(format!(
            "pod {name} is already assigned to node {node:?}"
        )));
    }
    let gates = meta::at(pod, &["spec", "schedulingGates"]).and_then(Value::as_array);
    if gates.is_some_and(|g| !g.is_empty()) {
        return Err(conflict(format!(
            "pod {name} has non-empty .spec.schedulingGates"
        )));
    }
    let target = meta::text(binding, &["target", "name"]);
    meta::section(&mut new, "spec").insert("nodeName".to_owned(), target.into());
    for part in ["annotations", "labels"] {
        let added = meta::at(binding, &["metadata", part]).and_then(Value::as_object);
        if let Some(added) = added.filter(|a| !a.is_empty()) {
            let metadata = meta::section(&mut new, "metadata");
            let into = meta::as_object(metadata.entry(part).or_insert(Value::Null));
            for (k, v) in added {
                into.insert(k.clone(), v.clone());
            }
        }
    }
    meta::set_condition(
        meta::section(&mut new, "status"),
        "PodScheduled",
        "True",
        "",
        "",
        now,
    );
    let conditions = new
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut);
    for c in conditions.into_iter().flatten() {
        if meta::text(c, &["type"]) == "PodScheduled" {
            meta::as_object(c)
                .entry("lastProbeTime")
                .or_insert(json!(null));
        }
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binding_sets_node_and_condition_once() {
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {}, "status": {
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}});
        let key = Key::new("default", "p");
        let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let to = json!({"metadata": {"name": "p", "annotations": {"a": "b"}},
            "target": {"kind": "Node", "name": "n1"}});
        let new = bound(pod.clone(), &to, &key, now).unwrap();
        assert_eq!(new["spec"]["nodeName"], "n1");
        assert_eq!(new["metadata"]["annotations"]["a"], "b");
        let c = &new["status"]["conditions"][0];
        assert_eq!(c["status"], "True");
        assert!(c.get("reason").is_none());
        let e = bound(new, &to, &key, now).unwrap_err();
        assert_eq!((e.code, e.reason.as_ref()), (409, "Conflict"));
        assert!(
            e.message
                .ends_with("pod p is already assigned to node \"n1\""),
            "{}",
            e.message
        );
        let other = json!({"metadata": {"uid": "v"}, "target": {"name": "n1"}});
        assert_eq!(bound(pod, &other, &key, now).unwrap_err().code, 409);
    }
}
