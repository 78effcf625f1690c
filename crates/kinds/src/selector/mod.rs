//! Label and field selectors, and the extraction of the values they compare.

mod fields;

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;
use serde_json::Value;

use super::jsonpath::Path;
use super::meta;
use super::resource::Resource;
use crate::Index;

pub use fields::FieldSelector;
pub use koord_object::selector::{LabelSelector, SelectorError, label_problem};

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

/// Returns the selectable fields of a built-in resource in addition to name and namespace.
fn builtin_fields(resource: &Resource) -> &'static [&'static str] {
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => POD_FIELDS,
        ("", "nodes") => &["spec.unschedulable"],
        ("" | "events.k8s.io", "events") => EVENT_FIELDS,
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "replicationcontrollers") | ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", _) => &["spec.signerName"],
        ("resource.k8s.io", "resourceslices") => &["spec.nodeName", "spec.driver"],
        _ => &[],
    }
}

/// Interned texts that occur in the index of nearly every object.
static COMMON: LazyLock<FxHashMap<&'static str, Arc<str>>> = LazyLock::new(|| {
    const VALUES: [&str; 14] = [
        "",
        "true",
        "false",
        "Always",
        "OnFailure",
        "Never",
        "default",
        "default-scheduler",
        "Pending",
        "Running",
        "Succeeded",
        "Failed",
        "Normal",
        "Warning",
    ];
    let names = [POD_FIELDS, EVENT_FIELDS].into_iter().flatten().copied();
    names
        .chain(VALUES)
        .map(|text| (text, Arc::from(text)))
        .collect()
});

/// Returns the shared copy of a common text.
fn shared(text: &str) -> Arc<str> {
    COMMON.get(text).cloned().unwrap_or_else(|| text.into())
}

fn scalar(value: Option<&Value>) -> Option<Arc<str>> {
    match value? {
        Value::String(s) => Some(shared(s)),
        Value::Bool(b) => Some(shared(if *b { "true" } else { "false" })),
        Value::Number(n) => Some(n.to_string().into()),
        _ => None,
    }
}

/// Returns the value of a field that field selectors of built-in kinds can name; `None` if it is not set.
fn builtin_field(object: &Value, field: &str) -> Option<Arc<str>> {
    match field {
        "source" => {
            let component = meta::str_at(object, &["source", "component"]);
            let text = if component.is_empty() {
                meta::str_at(object, &["reportingComponent"])
            } else {
                component
            };
            Some(text.into())
        }
        "status.successful" => scalar(meta::at(object, &["status", "succeeded"])),
        "spec.unschedulable" | "spec.hostNetwork" => {
            let path: Vec<&str> = field.split('.').collect();
            scalar(meta::at(object, &path)).or_else(|| Some(shared("false")))
        }
        _ => {
            let value = field.split('.').try_fold(object, |v, key| v.get(key));
            scalar(value)
        }
    }
}

impl Resource {
    /// Returns true if a field selector may use `field`.
    #[must_use]
    pub fn supports_field(&self, field: &str) -> bool {
        if field == "metadata.name" || (field == "metadata.namespace" && self.namespaced) {
            return true;
        }
        match &self.custom {
            Some(c) => c.selectable_fields.iter().any(|(name, _)| &**name == field),
            // A namespace selector on a cluster-scoped built-in kind is accepted and matches "".
            None => {
                field == "metadata.namespace"
                    || field == "status.podIPs" && self.is("", "pods")
                    || builtin_fields(self).contains(&field)
            }
        }
    }

    /// Returns the index of an object: its values for selectors and the garbage collector.
    #[must_use]
    pub fn index(&self, object: &Value) -> Index {
        let labels = meta::at(object, &["metadata", "labels"]).and_then(Value::as_object);
        let owners = meta::at(object, &["metadata", "ownerReferences"]).and_then(Value::as_array);
        let fields: Vec<(Arc<str>, Arc<str>)> = match &self.custom {
            None => builtin_fields(self)
                .iter()
                .filter_map(|f| Some((shared(f), builtin_field(object, f)?)))
                .collect(),
            Some(c) => c
                .selectable_fields
                .iter()
                .filter_map(|(name, path): &(Arc<str>, Path)| {
                    Some((name.clone(), scalar(path.first(object))?))
                })
                .collect(),
        };
        Index {
            uid: meta::text(object, "uid").into(),
            labels: labels
                .into_iter()
                .flatten()
                .map(|(k, v)| (k.as_str().into(), v.as_str().unwrap_or_default().into()))
                .collect(),
            fields,
            owners: owners
                .into_iter()
                .flatten()
                .filter_map(|o| o.get("uid").and_then(Value::as_str).map(Arc::from))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn indexes_pods_and_checks_fields() {
        let registry = crate::Registry::builtin();
        let pods = registry.find("", "v1", "pods").unwrap();
        let pod = json!({
            "metadata": {"uid": "u", "labels": {"a": "b"}, "ownerReferences": [{"uid": "o"}]},
            "spec": {"nodeName": "n"}, "status": {"phase": "Running"},
        });
        let index = pods.index(&pod);
        let mut s = FieldSelector::parse(
            "spec.nodeName=n,status.phase!=Failed,spec.hostNetwork=false,status.podIP=",
        )
        .unwrap();
        assert!(s.check(&pods).is_ok());
        assert!(s.matches("x", "y", &index));
        assert_eq!(&*index.owners[0], "o");
        let e = FieldSelector::parse("spec.foo=1")
            .unwrap()
            .check(&pods)
            .unwrap_err();
        assert_eq!(e.0, "field label not supported: spec.foo");
    }
}
