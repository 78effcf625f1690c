//! The `metrics.k8s.io` API: usage of nodes and pods, for `kubectl top`. It is computed from the NodeMetric
//! of each node at each request; nothing is cached.

use super::accept::{Endpoint, ObjectForm};
use super::call::{Call, method_not_allowed};
use super::selection::Selection;
use super::write::{Object, WriteResult};
use super::{Api, guard, meta, respond, transform};
use crate::store::{Entry, Key};
use axum::response::Response;
use http::Method;
use koord_api::GoDuration;
use koord_api::quantity::{NANOS_PER_UNIT, Quantity};
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// API group.
pub(super) const GROUP: &str = "metrics.k8s.io";
/// Group, version and plural of the nodes' usage reports.
const NODE_METRICS: (&str, &str, &str) = ("slo.koordinator.sh", "v1alpha1", "nodemetrics");
/// Age in seconds after which a report is ignored; nodes report every minute.
const STALE: i64 = 300;
/// Averaging window in seconds when the NodeMetric has none; koordlet has the same default.
const WINDOW: i64 = 300;

/// The latest usage report of one node.
struct UsageReport {
    time: String,
    window: String,
    status: Value,
}

impl UsageReport {
    /// Parses a NodeMetric; `None` if it was never, or not recently, updated.
    fn from_metric(metric: &Value, now: jiff::Timestamp) -> Option<Self> {
        let time = meta::text(metric, &["status", "updateTime"]);
        let measured: jiff::Timestamp = time.parse().ok()?;
        if now.as_second() - measured.as_second() > STALE {
            return None;
        }
        let policy = ["spec", "metricCollectPolicy", "aggregateDurationSeconds"];
        let window = meta::at(metric, &policy).and_then(Value::as_i64);
        Some(Self {
            time: time.to_owned(),
            window: GoDuration::from_secs(window.unwrap_or(WINDOW)).to_string(),
            status: metric.get("status")?.clone(),
        })
    }

    fn node(&self) -> Option<Amounts> {
        Amounts::read(meta::at(&self.status, &["nodeMetric", "nodeUsage"])?)
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Amounts> {
        let pods = self.status.get("podsMetric")?.as_array()?;
        let matches = pods.iter().find(|pod| {
            meta::text(pod, &["name"]) == name && meta::text(pod, &["namespace"]) == namespace
        })?;
        Amounts::read(matches.get("podUsage")?)
    }

    /// Builds the object of a node or pod, with `value` as its member `usage` or `containers`.
    fn object(&self, resource: &Resource, entry: &Entry, member: &str, value: Value) -> Value {
        let labels: Map<String, Value> = entry
            .index
            .labels
            .iter()
            .map(|(key, value)| ((**key).to_owned(), (**value).into()))
            .collect();
        let mut metadata = json!({"name": &*entry.key.name, "creationTimestamp": self.time});
        if !entry.key.namespace.is_empty() {
            metadata["namespace"] = entry.key.namespace.as_ref().into();
        }
        if !labels.is_empty() {
            metadata["labels"] = labels.into();
        }
        json!({
            "kind": &*resource.kind,
            "apiVersion": resource.api_version(),
            "metadata": metadata,
            "timestamp": self.time,
            "window": self.window,
            member: value,
        })
    }
}

/// CPU in billionths of a core, memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Amounts {
    cpu: i128,
    memory: i128,
}

impl Amounts {
    fn read(usage: &Value) -> Option<Self> {
        let amount = |name: &str| {
            let text = meta::at(usage, &["resources", name])?.as_str()?;
            Some(text.parse::<Quantity>().ok()?.nanos())
        };
        Some(Self {
            cpu: amount("cpu")?,
            memory: amount("memory")? / NANOS_PER_UNIT,
        })
    }

    /// Formats the amounts as upstream's metrics server does.
    fn usage(self) -> Value {
        json!({"cpu": format!("{}n", self.cpu), "memory": format!("{}Ki", self.memory / 1024)})
    }

    /// Splits the amounts in proportion to `weights`; the parts add up to the whole.
    fn split(self, weights: &[(i128, i128)]) -> Vec<Self> {
        let cpu: Vec<i128> = weights.iter().map(|w| w.0).collect();
        let memory: Vec<i128> = weights.iter().map(|w| w.1).collect();
        let parts = shares(self.cpu, &cpu).into_iter();
        let parts = parts.zip(shares(self.memory, &memory));
        parts.map(|(cpu, memory)| Self { cpu, memory }).collect()
    }
}

/// Splits `whole` in proportion to `weights`, evenly if these are all 0; the remainder goes to the first
/// part.
fn shares(whole: i128, weights: &[i128]) -> Vec<i128> {
    let sum: i128 = weights.iter().sum();
    let count = weights.len() as i128;
    let part = |weight: &i128| match sum {
        0 => whole / count,
        sum => whole.saturating_mul(*weight) / sum,
    };
    let mut parts: Vec<i128> = weights.iter().map(part).collect();
    let tail = whole - parts.iter().sum::<i128>();
    if let Some(first) = parts.first_mut() {
        *first += tail;
    }
    parts
}

/// Returns the containers of a pod with their usage. A node measures whole pods; several containers share the
/// pod's usage in proportion to their requests.
fn containers(pod: &Value, usage: Amounts) -> Value {
    let all = meta::at(pod, &["spec", "containers"]).and_then(Value::as_array);
    let all: Vec<&Value> = all.into_iter().flatten().collect();
    let request = |container: &Value, names: [&str; 2]| {
        let amount = |name| {
            let text = meta::at(container, &["resources", "requests", name])?.as_str()?;
            // In thousandths, which cannot overflow when multiplied.
            Some(i128::from(
                text.parse::<Quantity>().ok()?.milli_value().max(0),
            ))
        };
        names.into_iter().find_map(amount).unwrap_or(0)
    };
    let weights: Vec<(i128, i128)> = all
        .iter()
        .map(|container| {
            let cpu = request(container, ["cpu", "kubernetes.io/batch-cpu"]);
            (
                cpu,
                request(container, ["memory", "kubernetes.io/batch-memory"]),
            )
        })
        .collect();
    let parts = usage.split(&weights);
    all.iter()
        .zip(parts)
        .map(|(container, part)| json!({"name": container["name"], "usage": part.usage()}))
        .collect()
}

/// Usage reports by node, each parsed once.
struct Reports<'a> {
    api: &'a Api,
    metrics: Option<Arc<Resource>>,
    read: FxHashMap<String, Option<Arc<UsageReport>>>,
}

impl<'a> Reports<'a> {
    fn new(api: &'a Api) -> Self {
        let (group, version, plural) = NODE_METRICS;
        Self {
            api,
            metrics: api.registry().find(group, version, plural),
            read: FxHashMap::default(),
        }
    }

    fn report(&mut self, node: &str) -> Option<Arc<UsageReport>> {
        if let Some(cached) = self.read.get(node) {
            return cached.clone();
        }
        let metrics = self.metrics.as_ref()?;
        let entry = self.api.store().get(&metrics.table, &Key::cluster(node));
        let now = self.api.clock().now();
        let report = entry
            .and_then(|e| UsageReport::from_metric(&e.value(), now))
            .map(Arc::new);
        self.read.insert(node.to_owned(), report.clone());
        report
    }
}

/// Serves the GET of the usage of one or of many nodes or pods.
pub(super) fn serve(
    api: &Api,
    method: &Method,
    resource: &Arc<Resource>,
    call: &Call,
) -> Result<Response, ApiError> {
    if !matches!(guard::verb(method, &call.path, &call.query), "get" | "list") {
        return Err(method_not_allowed());
    }
    let measured = api.builtin("", "v1", &resource.plural)?;
    let selection = Selection::parse(&measured, &call.path, &call.query)?;
    let mut reports = Reports::new(api);
    if let Some(name) = &call.path.name {
        let key = Api::key(&measured, call.namespace(), name);
        let entry = api.store().get(&measured.table, &key);
        let object = entry.and_then(|e| usage_of(resource, &e, &mut reports));
        let unknown = || ApiError::not_found(&resource.group, &resource.plural, name);
        let result = WriteResult {
            object: Object::Computed(object.ok_or_else(unknown)?),
            created: false,
            warnings: Vec::new(),
        };
        return call.reply(resource, &result, api.clock().now());
    }
    let matches = |entry: &Entry| selection.matches(entry);
    let namespace = selection.namespace.as_deref();
    let result = api.store().all(&measured.table, namespace, &matches);
    let items: Vec<Value> = result
        .iter()
        .filter_map(|entry| usage_of(resource, entry, &mut reports))
        .collect();
    let list = match call.negotiate(Endpoint::List)?.form {
        ObjectForm::Table(version) => {
            let include = transform::include(&call.query)?;
            let now = api.clock().now();
            transform::table(resource, &items, include, version, json!({}), now)
        }
        _ => json!({
            "kind": &*resource.list_kind,
            "apiVersion": resource.api_version(),
            "metadata": {},
            "items": items,
        }),
    };
    Ok(respond::value(200, &list, call.style()))
}

/// Returns the usage of a node or pod; `None` if there is no recent report of it.
fn usage_of(resource: &Resource, entry: &Entry, reports: &mut Reports<'_>) -> Option<Value> {
    if !resource.namespaced {
        let report = reports.report(&entry.key.name)?;
        let usage = report.node()?.usage();
        return Some(report.object(resource, entry, "usage", usage));
    }
    let pod = entry.value();
    let report = reports.report(meta::text(&pod, &["spec", "nodeName"]))?;
    let usage = report.pod(&entry.key.namespace, &entry.key.name)?;
    Some(report.object(resource, entry, "containers", containers(&pod, usage)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_sum_up_to_the_whole() {
        let total = Amounts {
            cpu: 1_000_000_001,
            memory: 4097,
        };
        let parts = total.split(&[(100, 0), (300, 0)]);
        assert_eq!(
            parts[0],
            Amounts {
                cpu: 250_000_001,
                memory: 2049
            }
        );
        assert_eq!(
            parts[1],
            Amounts {
                cpu: 750_000_000,
                memory: 2048
            }
        );
        assert_eq!(total.split(&[]), []);
        let text = total.usage();
        assert_eq!(text, json!({"cpu": "1000000001n", "memory": "4Ki"}));
    }
}
