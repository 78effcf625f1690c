//! Tables for `kubectl get`. The server computes the cells; kubectl only aligns them.

mod cluster;
mod custom;
mod duration;
mod pod;
mod workload;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::builtin::METRICS;
use super::meta::{self, list_at};
use super::resource::Resource;

pub use duration::{age, human_duration};

/// Object that a row contains in addition to its cells (query parameter `includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Include {
    /// The object is left out.
    None,
    /// A PartialObjectMetadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

impl Include {
    /// Parses the query parameter; `None` for an unknown value.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// A column heading: name, OpenAPI type, priority (1: only with `-o wide`).
pub(super) type Head = (&'static str, &'static str, i64);

/// Columns of one kind and the function that computes their cells.
pub(super) struct Printer {
    pub(super) heads: &'static [Head],
    pub(super) cells: fn(&Value, Timestamp) -> Vec<Value>,
}

const PLAIN: Printer = Printer {
    heads: &[("Name", "string", 0), ("Created At", "date", 0)],
    cells: |o, _| {
        vec![
            meta::name(o).into(),
            meta::text(o, "creationTimestamp").into(),
        ]
    },
};

/// Returns the columns of a built-in resource.
fn printer(resource: &Resource) -> &'static Printer {
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => &pod::POD,
        ("", "nodes") => &cluster::NODE,
        ("", "namespaces") => &cluster::NAMESPACE,
        ("" | "events.k8s.io", "events") => &cluster::EVENT,
        ("", "configmaps") => &cluster::CONFIG_MAP,
        ("", "secrets") => &cluster::SECRET,
        ("", "services") => &cluster::SERVICE,
        ("", "serviceaccounts") => &cluster::SERVICE_ACCOUNT,
        ("", "resourcequotas") => &cluster::RESOURCE_QUOTA,
        ("", "persistentvolumes") => &cluster::PERSISTENT_VOLUME,
        ("", "persistentvolumeclaims") => &cluster::CLAIM,
        ("", "replicationcontrollers") => &workload::REPLICATION_CONTROLLER,
        ("coordination.k8s.io", "leases") => &cluster::LEASE,
        (METRICS, _) => &cluster::USAGE,
        ("policy", "poddisruptionbudgets") => &cluster::DISRUPTION_BUDGET,
        ("scheduling.k8s.io", "priorityclasses") => &cluster::PRIORITY_CLASS,
        ("storage.k8s.io", "storageclasses") => &cluster::STORAGE_CLASS,
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            &cluster::ROLE_BINDING
        }
        (
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations" | "validatingwebhookconfigurations",
        ) => &cluster::WEBHOOKS,
        ("apps", "deployments") => &workload::DEPLOYMENT,
        ("apps", "replicasets") => &workload::REPLICA_SET,
        ("apps", "statefulsets") => &workload::STATEFUL_SET,
        ("apps", "daemonsets") => &workload::DAEMON_SET,
        ("batch", "jobs") => &workload::JOB,
        ("batch", "cronjobs") => &workload::CRON_JOB,
        _ => &PLAIN,
    }
}

impl Resource {
    /// Builds a `meta.k8s.io/v1 Table` of `items`; ages are relative to `now`. The caller adds the list
    /// metadata (resourceVersion, continue).
    #[must_use]
    pub fn to_table(&self, items: &[Value], include: Include, now: Timestamp) -> Value {
        let (columns, rows): (Vec<Value>, Vec<Value>) = match &self.custom {
            Some(c) => (
                custom::columns(c),
                items
                    .iter()
                    .map(|o| row(o, custom::cells(c, o, now), include))
                    .collect(),
            ),
            None => {
                let p = printer(self);
                (
                    p.heads
                        .iter()
                        .map(|(name, kind, priority)| head(name, kind, "", *priority))
                        .collect(),
                    items
                        .iter()
                        .map(|o| row(o, (p.cells)(o, now), include))
                        .collect(),
                )
            }
        };
        json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {},
            "columnDefinitions": columns,
            "rows": rows,
        })
    }
}

fn head(name: &str, kind: &str, description: &str, priority: i64) -> Value {
    let format = if name == "Name" { "name" } else { "" };
    json!({
        "name": name, "type": kind, "format": format, "description": description,
        "priority": priority,
    })
}

fn row(object: &Value, cells: Vec<Value>, include: Include) -> Value {
    match include {
        Include::None => json!({"cells": cells, "object": null}),
        Include::Metadata => json!({"cells": cells, "object": partial(object)}),
        Include::Object => json!({"cells": cells, "object": object}),
    }
}

/// Returns the `meta.k8s.io/v1 PartialObjectMetadata` of an object.
#[must_use]
pub fn partial(object: &Value) -> Value {
    let metadata = object
        .get("metadata")
        .cloned()
        .unwrap_or_else(|| Value::Object(Map::new()));
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
    })
}

/// Returns the cell with the age of an object.
fn created(object: &Value, now: Timestamp) -> Value {
    age(meta::text(object, "creationTimestamp"), now).into()
}

/// Returns the integer at a path, 0 if absent.
fn int_at(object: &Value, path: &[&str]) -> i64 {
    meta::int_at(object, path).unwrap_or(0)
}

/// Returns the text, or `<none>` if it is empty.
fn or_none(text: &str) -> Value {
    if text.is_empty() { "<none>" } else { text }.into()
}

/// Formats a selector as text: `a=b,c in (d,e)`.
fn selector_text(selector: Option<&Value>) -> String {
    let Some(selector) = selector else {
        return "<none>".to_owned();
    };
    let mut parts: Vec<String> = Vec::new();
    if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
        parts.extend(
            labels
                .iter()
                .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))),
        );
    }
    for e in list_at(selector, &["matchExpressions"]) {
        let key = meta::str_at(e, &["key"]);
        let values: Vec<&str> = list_at(e, &["values"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let values = values.join(",");
        parts.push(match meta::str_at(e, &["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    if parts.is_empty() {
        "<none>".to_owned()
    } else {
        parts.join(",")
    }
}

/// Formats a plain label map as text.
fn labels_text(labels: Option<&Value>) -> String {
    let parts: Vec<String> = labels
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or("")))
        .collect();
    if parts.is_empty() {
        "<none>".to_owned()
    } else {
        parts.join(",")
    }
}

#[cfg(test)]
mod tests;
