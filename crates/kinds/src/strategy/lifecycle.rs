//! Server-side changes of objects on create and update: fields that clients may not set, the separation of
//! spec and status, and the generation.

use koord_api::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::{child, set_default};
use crate::meta;
use crate::quantity;
use crate::resource::Resource;

/// Metadata that only the server writes.
const SERVER_OWNED: [&str; 4] = [
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

impl Resource {
    /// Prepares a new object: clears fields that clients may not set and sets `metadata.generation` to 1.
    /// Identity (name, uid, creationTimestamp) is left to the caller.
    pub fn prepare_create(&self, object: &mut Value) {
        prepare_create(self, object);
    }

    /// Prepares `new` to replace `old`: with `sub` `None` the status is kept from `old`, with
    /// `Some("status")` everything else is. The generation is increased if the spec changes.
    pub fn prepare_update(&self, sub: Option<&str>, old: &Value, new: &mut Value) {
        prepare_update(self, sub, old, new);
    }

    /// Returns true if a write of `/status` keeps this metadata.
    pub(crate) fn keeps_in_status(&self, key: &str) -> bool {
        self.is_custom() || fields_kept_by_status(self).contains(&key)
    }
}

fn prepare_create(resource: &Resource, object: &mut Value) {
    if let Some(metadata) = meta::metadata_mut(object) {
        for key in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "generation",
        ] {
            metadata.remove(key);
        }
        if resource.generation {
            metadata.insert("generation".to_owned(), 1.into());
        }
    }
    if !resource.is_custom() {
        prepare_builtin(resource, object);
    } else if resource.has_status()
        && let Some(root) = object.as_object_mut()
    {
        root.remove("status");
    }
}

/// Sets the fields of a new object that the server owns, by its kind.
fn prepare_builtin(resource: &Resource, object: &mut Value) {
    let uid = meta::text(object, "uid").to_owned();
    let name = meta::name(object).to_owned();
    let qos = qos_class(object);
    let gated = meta::at(object, &["spec", "schedulingGates"])
        .and_then(Value::as_array)
        .is_some_and(|g| !g.is_empty());
    let Some(root) = object.as_object_mut() else {
        return;
    };
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => {
            let mut status = json!({"phase": "Pending", "qosClass": qos});
            if gated {
                status["conditions"] = json!([{
                    "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }]);
            }
            root.insert("status".to_owned(), status);
        }
        ("", "namespaces") => {
            root.insert("status".to_owned(), json!({"phase": "Active"}));
            if let Some(spec) = child(root, "spec") {
                let list = spec.entry("finalizers").or_insert_with(|| json!([]));
                if let Value::Array(list) = list
                    && !list.iter().any(|f| f == "kubernetes")
                {
                    list.push("kubernetes".into());
                }
            }
        }
        // A kubelet registers its node together with the status.
        ("", "nodes") => {}
        ("", "services") => {
            root.insert("status".to_owned(), json!({"loadBalancer": {}}));
        }
        ("", "persistentvolumes" | "persistentvolumeclaims") => {
            root.insert("status".to_owned(), json!({"phase": "Pending"}));
        }
        ("batch", "jobs") => {
            root.insert("status".to_owned(), json!({}));
            if let Some(spec) = child(root, "spec") {
                job_selector(spec, &name, &uid);
            }
        }
        _ if resource.has_status() => {
            root.insert("status".to_owned(), json!({}));
        }
        _ => {}
    }
}

/// Sets the selector and labels of a Job that are unique to it, unless the user manages them.
fn job_selector(spec: &mut Map<String, Value>, name: &str, uid: &str) {
    if spec.get("manualSelector").and_then(Value::as_bool) == Some(true) || uid.is_empty() {
        return;
    }
    if let Some(template) = child(spec, "template")
        && let Some(labels) = child(template, "metadata").and_then(|m| child(m, "labels"))
    {
        for (key, value) in [
            ("batch.kubernetes.io/controller-uid", uid),
            ("batch.kubernetes.io/job-name", name),
            ("controller-uid", uid),
            ("job-name", name),
        ] {
            set_default(labels, key, value);
        }
    }
    if !spec.contains_key("selector") {
        let labels = json!({"batch.kubernetes.io/controller-uid": uid});
        spec.insert("selector".to_owned(), json!({"matchLabels": labels}));
    }
}

/// Returns the quality-of-service class by CPU and memory of containers and init containers.
#[must_use]
pub(crate) fn qos_class(pod: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    for key in ["containers", "initContainers"] {
        let list = meta::at(pod, &["spec", key]).and_then(Value::as_array);
        for c in list.into_iter().flatten() {
            let get = |kind: &str, name: &str| -> Option<Quantity> {
                let q = quantity::parse(meta::at(c, &["resources", kind, name])?)?;
                (q > Quantity::from_value(0)).then_some(q)
            };
            for name in ["cpu", "memory"] {
                let (request, limit) = (get("requests", name), get("limits", name));
                any |= request.is_some() || limit.is_some();
                let request = request.or(limit);
                guaranteed &= limit.is_some() && request == limit;
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Restores the fields that a write of the object or of subresource `sub` must not change.
fn prepare_update(resource: &Resource, sub: Option<&str>, old: &Value, new: &mut Value) {
    match sub {
        None => keep(old, new, resource.has_status().then_some("status")),
        Some("status") => status_update(resource, old, new),
        Some("finalize") => {
            let finalizers = meta::at(new, &["spec", "finalizers"]).cloned();
            replace_member(old, new, "status");
            replace_member(old, new, "spec");
            if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
                match finalizers {
                    Some(list) => spec.insert("finalizers".to_owned(), list),
                    None => spec.remove("finalizers"),
                };
            }
        }
        Some("ephemeralcontainers") => {
            let list = meta::at(new, &["spec", "ephemeralContainers"]).cloned();
            replace_member(old, new, "status");
            replace_member(old, new, "spec");
            if let (Some(list), Some(Value::Object(spec))) = (list, new.get_mut("spec")) {
                spec.insert("ephemeralContainers".to_owned(), list);
            }
        }
        Some("resize") => replace_member(old, new, "status"),
        Some(_) => {}
    }
    restore_metadata(old, new);
    let bump = !matches!(sub, Some("status" | "finalize"))
        && resource.generation
        && described(resource, old) != described(resource, new);
    if let Some(metadata) = meta::metadata_mut(new) {
        let before = meta::generation(old);
        match (resource.generation, before + i64::from(bump)) {
            (true, n) if n > 0 => metadata.insert("generation".to_owned(), n.into()),
            _ => metadata.remove("generation"),
        };
    }
}

/// Returns the parts of an object whose changes increase the generation.
fn described<'a>(resource: &Resource, object: &'a Value) -> Vec<(&'a String, &'a Value)> {
    let status_apart = resource.has_status();
    object
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(k, _)| match k.as_str() {
            "apiVersion" | "kind" | "metadata" => false,
            "status" => !status_apart,
            _ => true,
        })
        .collect()
}

fn replace_member(old: &Value, new: &mut Value, key: &str) {
    let Some(map) = new.as_object_mut() else {
        return;
    };
    match old.get(key) {
        Some(v) => map.insert(key.to_owned(), v.clone()),
        None => map.remove(key),
    };
}

fn keep(old: &Value, new: &mut Value, member: Option<&str>) {
    if let Some(key) = member {
        replace_member(old, new, key);
    }
}

fn restore_metadata(old: &Value, new: &mut Value) {
    let before = old.get("metadata").and_then(Value::as_object);
    let Some(metadata) = meta::metadata_mut(new) else {
        return;
    };
    for key in SERVER_OWNED.into_iter().chain(["uid"]) {
        match before.and_then(|m| m.get(key)) {
            Some(v) => metadata.insert(key.to_owned(), v.clone()),
            None => metadata.remove(key),
        };
    }
    metadata.remove("selfLink");
}

/// Returns the metadata of a built-in kind that a write of `/status` keeps.
fn fields_kept_by_status(resource: &Resource) -> &'static [&'static str] {
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => &["ownerReferences"],
        ("apps", _) | ("", "replicationcontrollers") => &["labels"],
        _ => &[],
    }
}

/// Applies a write of `/status`: for custom resources only the status changes; built-in kinds also accept
/// labels and annotations, which kubelets and node controllers rely on.
fn status_update(resource: &Resource, old: &Value, new: &mut Value) {
    if resource.is_custom() {
        let status = new.get("status").cloned();
        let (managed, version) = (
            meta::at(new, &["metadata", "managedFields"]).cloned(),
            meta::at(new, &["metadata", "resourceVersion"]).cloned(),
        );
        *new = old.clone();
        if let Some(map) = new.as_object_mut() {
            match status {
                Some(s) => map.insert("status".to_owned(), s),
                None => map.remove("status"),
            };
        }
        if let Some(metadata) = meta::metadata_mut(new) {
            for (key, value) in [("managedFields", managed), ("resourceVersion", version)] {
                if let Some(v) = value {
                    metadata.insert(key.to_owned(), v);
                }
            }
        }
        return;
    }
    let members: Vec<String> = [old, &*new]
        .into_iter()
        .filter_map(Value::as_object)
        .flat_map(|m| m.keys().cloned())
        .filter(|k| !matches!(k.as_str(), "apiVersion" | "kind" | "metadata" | "status"))
        .collect();
    for key in members {
        replace_member(old, new, &key);
    }
    let retained = fields_kept_by_status(resource);
    let before = old.get("metadata").and_then(Value::as_object);
    if let Some(metadata) = meta::metadata_mut(new) {
        for key in retained {
            match before.and_then(|m| m.get(*key)) {
                Some(v) => metadata.insert((*key).to_owned(), v.clone()),
                None => metadata.remove(*key),
            };
        }
    }
}
