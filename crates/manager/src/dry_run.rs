//! Dry runs: the manager computes everything, writes nothing, and reports what it would have changed.
//!
//! Controllers run as usual on a client that answers writes itself
//! ([`withhold_writes`](koord_kube::client::withhold_writes)). Each withheld write is compared with the object
//! that the API server has. A later reconcile that has nothing to write ends the difference.

use koord_app::{Clock, TokenBucket};
use koord_kube::Client;
use koord_kube::client::{ResourcePath, WithheldWrite, withhold_writes};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of objects with a difference; further ones are counted only.
const MAX_OBJECTS: usize = 20_000;
/// Maximum number of changed fields per object that are listed.
const MAX_FIELDS: usize = 50;
/// Maximum number of logged differences at once, and the time until one more is logged.
const LOG_BURST: u32 = 50;
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Resources of which no difference is kept.
const IGNORED: [&str; 2] = ["events", "leases"];

/// The object of a write: resource, namespace (empty if cluster-scoped) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct DryRunObject {
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    name: String,
}

/// A field that would have been changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct FieldDifference {
    field: String,
    /// The value on the API server; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<Value>,
    /// The value that would have been written; absent if it would have been removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    wanted: Option<Value>,
}

/// What would have been done with an object.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Difference {
    /// `create`, `update`, `delete`, or `deny` for a decision of a webhook.
    verb: &'static str,
    /// Time of the first write with this content.
    since: jiff::Timestamp,
    changes: Vec<FieldDifference>,
}

/// The differences between the cluster and what this manager would make of it.
pub(crate) struct DryRun {
    clock: Clock,
    state: Mutex<DryRunState>,
    objects: IntGaugeVec,
    withheld: IntCounterVec,
    started: Instant,
}

struct DryRunState {
    differences: BTreeMap<DryRunObject, Difference>,
    dropped: u64,
    logs: TokenBucket,
    unlogged: u64,
}

impl DryRun {
    /// Creates a report without differences, and registers its metrics.
    ///
    /// # Errors
    /// Fails if the metrics are registered already.
    pub(crate) fn new(registry: &Registry, clock: Clock) -> prometheus::Result<Arc<Self>> {
        let objects = Opts::new(
            "koord_manager_dry_run_differences",
            "Objects that this manager would change, by resource",
        );
        let withheld = Opts::new(
            "koord_manager_dry_run_withheld_total",
            "Writes that were not sent, by resource and verb",
        );
        Ok(Arc::new(Self {
            clock,
            state: Mutex::new(DryRunState {
                differences: BTreeMap::new(),
                dropped: 0,
                logs: TokenBucket::new(LOG_INTERVAL, LOG_BURST),
                unlogged: 0,
            }),
            objects: koord_app::metrics::register(
                registry,
                IntGaugeVec::new(objects, &["resource"])?,
            )?,
            withheld: koord_app::metrics::register(
                registry,
                IntCounterVec::new(withheld, &["resource", "verb"])?,
            )?,
            started: Instant::now(),
        }))
    }

    /// Returns a client that sends the reads of `client` and records its writes here.
    pub(crate) fn client(self: &Arc<Self>, client: Client) -> Client {
        let report = self.clone();
        withhold_writes(client, move |write| report.record_write(&write))
    }

    /// Records a write that was not sent.
    fn record_write(&self, write: &WithheldWrite) {
        let Some(object) = parse_path(&write.path, write.after.as_ref()) else {
            return;
        };
        let verb = match (&write.before, &write.after) {
            (None, _) => "create",
            (Some(_), None) => "delete",
            (Some(_), Some(_)) => "update",
        };
        self.withheld
            .with_label_values(&[&object.resource, verb])
            .inc();
        if IGNORED.contains(&object.resource.as_str()) {
            return;
        }
        let mut changes = Vec::new();
        let null = Value::Null;
        let (before, after) = (write.before.as_ref(), write.after.as_ref());
        if verb != "delete" {
            let parts = (before.unwrap_or(&null), after.unwrap_or(&null));
            compare(String::new(), parts.0, parts.1, &mut changes);
        }
        if changes.is_empty() && verb == "update" {
            self.resolve(&object.resource, &object.namespace, &object.name);
        } else {
            self.record(object, verb, changes);
        }
    }

    /// Records a decision of a webhook about an existing object: the object that it would have stored, or the
    /// message with which it would have refused it.
    pub(crate) fn record_admission(
        &self,
        resource: &str,
        (namespace, name): (&str, &str),
        before: &Value,
        decision: Result<&Value, &str>,
    ) {
        let object = DryRunObject {
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let mut changes = Vec::new();
        match decision {
            Ok(after) => {
                compare(String::new(), before, after, &mut changes);
                match changes.is_empty() {
                    true => self.resolve(resource, namespace, name),
                    false => self.record(object, "update", changes),
                }
            }
            Err(message) => {
                changes.push(FieldDifference {
                    field: "message".to_owned(),
                    now: None,
                    wanted: Some(json!(message)),
                });
                self.record(object, "deny", changes);
            }
        }
    }

    fn record(&self, object: DryRunObject, verb: &'static str, changes: Vec<FieldDifference>) {
        let mut state = self.state.lock();
        let known = state.differences.get(&object);
        if known.is_some_and(|known| known.verb == verb && known.changes == changes) {
            return;
        }
        if known.is_none() && state.differences.len() >= MAX_OBJECTS {
            state.dropped += 1;
            return;
        }
        if state.logs.take(self.started.elapsed()) {
            let unlogged = std::mem::take(&mut state.unlogged);
            let DryRunObject {
                resource,
                namespace,
                name,
            } = &object;
            let shown = serde_json::to_string(&changes).unwrap_or_default();
            tracing::info!(
                resource,
                namespace,
                name,
                verb,
                changes = shown,
                unlogged,
                "object not written: dry run"
            );
        } else {
            state.unlogged += 1;
        }
        let gauge = self.objects.with_label_values(&[&object.resource]);
        let difference = Difference {
            verb,
            since: self.clock.now(),
            changes,
        };
        if state.differences.insert(object, difference).is_none() {
            gauge.inc();
        }
    }

    /// Ends the difference of an object: a reconcile has nothing to write, or the object is gone.
    pub(crate) fn resolve(&self, resource: &str, namespace: &str, name: &str) {
        let object = DryRunObject {
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        if self.state.lock().differences.remove(&object).is_some() {
            self.objects.with_label_values(&[resource]).dec();
        }
    }

    /// Returns the report as JSON: the number of objects per resource, and each object with its changes.
    pub(crate) fn report(&self) -> Value {
        let state = self.state.lock();
        let mut totals: BTreeMap<&str, usize> = BTreeMap::new();
        for object in state.differences.keys() {
            *totals.entry(&object.resource).or_default() += 1;
        }
        let differences: Vec<Value> = state
            .differences
            .iter()
            .map(|(object, difference)| {
                json!({"object": object, "verb": difference.verb, "since": difference.since,
                    "changes": difference.changes})
            })
            .collect();
        json!({"dryRun": true, "totals": totals, "dropped": state.dropped, "differences": differences})
    }
}

/// Parses the object of a request path; `after` has the name of an object that is created.
fn parse_path(path: &str, after: Option<&Value>) -> Option<DryRunObject> {
    let path = ResourcePath::parse(path)?;
    let name = match path.name {
        Some(name) => name,
        None => after?["metadata"]["name"].as_str()?,
    };
    Some(DryRunObject {
        resource: path.resource.to_owned(),
        namespace: path.namespace.unwrap_or_default().to_owned(),
        name: name.to_owned(),
    })
}

/// Adds the fields in which `after` differs from `before`, up to [`MAX_FIELDS`]. Lists are compared as a whole.
fn compare(path: String, before: &Value, after: &Value, changes: &mut Vec<FieldDifference>) {
    /// Fields that every write changes.
    const VOLATILE: [&str; 3] = [
        "metadata.resourceVersion",
        "metadata.managedFields",
        "metadata.generation",
    ];
    if before == after || changes.len() >= MAX_FIELDS || VOLATILE.contains(&&*path) {
        return;
    }
    let below = |key: &str| match path.as_str() {
        "" => key.to_owned(),
        path if key.contains(['.', '/']) => format!("{path}[{key:?}]"),
        path => format!("{path}.{key}"),
    };
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in new {
                compare(
                    below(key),
                    old.get(key).unwrap_or(&Value::Null),
                    value,
                    changes,
                );
            }
            for (key, value) in old.iter().filter(|(key, _)| !new.contains_key(*key)) {
                compare(below(key), value, &Value::Null, changes);
            }
        }
        (Value::Null, Value::Object(new)) => {
            for (key, value) in new {
                compare(below(key), &Value::Null, value, changes);
            }
        }
        _ => changes.push(FieldDifference {
            field: path,
            now: Some(before.clone()).filter(|value| !value.is_null()),
            wanted: Some(after.clone()).filter(|value| !value.is_null()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str) -> Option<(String, String, String)> {
        let after = json!({"metadata": {"name": "new"}});
        let object = parse_path(path, Some(&after))?;
        Some((object.resource, object.namespace, object.name))
    }

    #[test]
    fn object_of_a_path_is_found() {
        for (path, expected) in [
            ("/api/v1/nodes/n1/status", Some(("nodes", "", "n1"))),
            (
                "/apis/slo.koordinator.sh/v1alpha1/nodeslos",
                Some(("nodeslos", "", "new")),
            ),
            (
                "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/team/elasticquotas/q",
                Some(("elasticquotas", "team", "q")),
            ),
            (
                "/api/v1/namespaces/default",
                Some(("namespaces", "", "default")),
            ),
            (
                "/api/v1/namespaces/default/status",
                Some(("namespaces", "", "default")),
            ),
            (
                "/api/v1/namespaces/team/pods/status",
                Some(("pods", "team", "status")),
            ),
            ("/version", None),
            ("/", None),
        ] {
            let found = object(path);
            let found = found
                .as_ref()
                .map(|(resource, namespace, name)| (&**resource, &**namespace, &**name));
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn differences_list_fields_with_both_values() {
        let before = json!({"metadata": {"name": "n", "resourceVersion": "1"},
            "status": {"allocatable": {"kubernetes.io/batch-cpu": "4k", "cpu": "8"}, "old": true}});
        let after = json!({"metadata": {"name": "n", "resourceVersion": "2"},
            "status": {"allocatable": {"kubernetes.io/batch-cpu": "5k", "cpu": "8", "new": "1"}}});
        let mut changes = Vec::new();
        compare(String::new(), &before, &after, &mut changes);
        let changes = serde_json::to_value(changes).unwrap();
        assert_eq!(
            changes,
            json!([
                {"field": "status.allocatable[\"kubernetes.io/batch-cpu\"]", "now": "4k", "wanted": "5k"},
                {"field": "status.allocatable.new", "wanted": "1"},
                {"field": "status.old", "now": true},
            ])
        );
    }

    #[tokio::test]
    async fn difference_ends_when_there_is_nothing_to_write() {
        let registry = Registry::new();
        let dry_run = DryRun::new(&registry, Clock::system()).unwrap();
        let write = |now: &str, wanted: &str| WithheldWrite {
            method: "PATCH".parse().unwrap(),
            path: "/api/v1/nodes/n1/status".to_owned(),
            before: Some(json!({"status": {"a": now}})),
            after: Some(json!({"status": {"a": wanted}})),
        };
        dry_run.record_write(&write("1", "2"));
        dry_run.record_write(&write("1", "3"));
        let report = dry_run.report();
        assert_eq!(report["totals"], json!({"nodes": 1}));
        assert_eq!(report["differences"][0]["changes"][0]["wanted"], "3");
        let gauge = || {
            let families = registry.gather();
            let mut gauges = families.iter();
            let family = gauges.find(|it| it.name() == "koord_manager_dry_run_differences");
            family.map(|family| family.get_metric()[0].get_gauge().get_value())
        };
        assert_eq!(gauge(), Some(1.0));
        dry_run.record_write(&write("3", "3"));
        assert_eq!(dry_run.report()["totals"], json!({}));
        assert_eq!(gauge(), Some(0.0));
        dry_run.record_write(&write("3", "4"));
        dry_run.resolve("nodes", "", "n1");
        assert_eq!(dry_run.report()["differences"], json!([]));
    }
}
