//! DaemonSet controller: one pod on every node that may run it. The scheduler binds the pod; a node affinity
//! to the node's name restricts it to that node.

use super::deployment::resolve_int_or_percent;
use super::nodes::tolerates;
use super::objects::hash;
use super::pods;
use super::queue::{RequeueAfter, Source};
use super::recorder::EventSubject;
use super::revisions;
use super::workload::Workload;
use crate::rest::meta;
use crate::store::{Entry, Key, TableId};
use futures::FutureExt as _;
use koord_kinds::status::ApiError;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Label with the hash of the pod template.
const HASH_LABEL: &str = "controller-revision-hash";

/// The DaemonSet controller.
pub(super) const DAEMON_SETS: Workload = Workload {
    name: "daemonset-controller",
    group: "apps",
    plural: "daemonsets",
    kind: "DaemonSet",
    owns: ("", "pods"),
    adopts: false,
    also: || {
        Some(Source::new("", "nodes", |api, _| {
            let table = TableId::new("apps", "daemonsets");
            let sets = api.store().all(&table, None, &|_| true);
            sets.iter().map(|set| set.key.clone()).collect()
        }))
    },
    sync: |subject, key| sync(subject, key).boxed(),
};

/// Returns the tolerations that every daemon pod gets.
fn tolerations(host_network: bool) -> Vec<Value> {
    let no_execute = [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ];
    let mut no_schedule = vec![
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/unschedulable",
    ];
    if host_network {
        no_schedule.push("node.kubernetes.io/network-unavailable");
    }
    let entry =
        |key: &str, effect: &str| json!({"key": key, "operator": "Exists", "effect": effect});
    no_execute
        .iter()
        .map(|k| entry(k, "NoExecute"))
        .chain(no_schedule.iter().map(|k| entry(k, "NoSchedule")))
        .collect()
}

/// Returns true if a term of a node selector matches the node.
fn term_matches(term: &Value, node: &Value) -> bool {
    let all = |list: &str, lookup: &dyn Fn(&str) -> Option<String>| {
        let expressions = term.get(list).and_then(Value::as_array);
        expressions
            .into_iter()
            .flatten()
            .all(|e| expression_matches(e, lookup))
    };
    let label = |key: &str| {
        let labels = meta::at(node, &["metadata", "labels"])?;
        labels.get(key)?.as_str().map(str::to_owned)
    };
    let field = |key: &str| (key == "metadata.name").then(|| meta::name(node).to_owned());
    all("matchExpressions", &label) && all("matchFields", &field)
}

fn expression_matches(e: &Value, lookup: &dyn Fn(&str) -> Option<String>) -> bool {
    let have = lookup(meta::text(e, &["key"]));
    let values: Vec<&str> = e
        .get("values")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let compare = |f: fn(i64, i64) -> bool| {
        let have = have.as_deref().and_then(|v| v.parse::<i64>().ok());
        let want = values.first().and_then(|v| v.parse::<i64>().ok());
        matches!((have, want), (Some(a), Some(b)) if f(a, b))
    };
    match meta::text(e, &["operator"]) {
        "In" => have.is_some_and(|h| values.contains(&h.as_str())),
        "NotIn" => have.is_none_or(|h| !values.contains(&h.as_str())),
        "Exists" => have.is_some(),
        "DoesNotExist" => have.is_none(),
        "Gt" => compare(|a, b| a > b),
        "Lt" => compare(|a, b| a < b),
        _ => false,
    }
}

/// Returns whether the node may get a new pod (`run`), and whether an existing one may stay (`stay`).
fn fits(spec: &Value, node: &Value) -> (bool, bool) {
    let selector = spec.get("nodeSelector").and_then(Value::as_object);
    let labels = meta::at(node, &["metadata", "labels"]);
    let selected = selector
        .into_iter()
        .flatten()
        .all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v));
    let terms = meta::at(
        spec,
        &[
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
            "nodeSelectorTerms",
        ],
    )
    .and_then(Value::as_array);
    let is_selected = terms.is_none_or(|t| t.iter().any(|t| term_matches(t, node)));
    if !selected || !is_selected {
        return (false, false);
    }
    let host = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    let mut tolerated = tolerations(host);
    tolerated.extend(
        spec.get("tolerations")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default(),
    );
    let taints = meta::at(node, &["spec", "taints"]).and_then(Value::as_array);
    let (mut run, mut stay) = (true, true);
    for taint in taints.into_iter().flatten() {
        if tolerated.iter().any(|t| tolerates(t, taint)) {
            continue;
        }
        match meta::text(taint, &["effect"]) {
            "NoExecute" => (run, stay) = (false, false),
            "NoSchedule" => run = false,
            _ => {}
        }
    }
    (run, stay)
}

/// Returns the name of the node that a daemon pod is for: the one it is bound to or pinned to.
fn node_of(pod: &Value) -> String {
    let bound = meta::text(pod, &["spec", "nodeName"]);
    if !bound.is_empty() {
        return bound.to_owned();
    }
    pod.pointer(
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
         /nodeSelectorTerms/0/matchFields/0/values/0",
    )
    .and_then(Value::as_str)
    .unwrap_or("")
    .to_owned()
}

/// Pins a pod to a node by node affinity and adds the hash label and the tolerations of daemon pods.
fn pin(pod: &mut Value, node: &str, hash: &str) {
    let metadata = meta::section(pod, "metadata");
    let labels = meta::as_object(metadata.entry("labels").or_insert(json!({})));
    labels.insert(HASH_LABEL.to_owned(), hash.into());
    let spec = meta::section(pod, "spec");
    let host = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    let affinity = meta::as_object(spec.entry("affinity").or_insert(json!({})));
    let affinity = meta::as_object(affinity.entry("nodeAffinity").or_insert(json!({})));
    affinity.insert(
        "requiredDuringSchedulingIgnoredDuringExecution".to_owned(),
        json!({ "nodeSelectorTerms": [{ "matchFields": [
            { "key": "metadata.name", "operator": "In", "values": [node] }
        ] }] }),
    );
    let list = spec.entry("tolerations").or_insert(json!([]));
    if let Some(list) = list.as_array_mut() {
        for toleration in tolerations(host) {
            if !list.contains(&toleration) {
                list.push(toleration);
            }
        }
    }
}

/// Reconciles a DaemonSet: creates missing daemons, deletes surplus ones, and updates its status.
async fn sync(subject: EventSubject<'_>, key: &Key) -> Result<RequeueAfter, ApiError> {
    let (api, resource, set) = (subject.api, subject.resource, subject.object);
    let pods_resource = api.builtin("", "v1", "pods")?;
    let nodes = api.builtin("", "v1", "nodes")?;
    if meta::deleting(set) {
        return Ok(None);
    }
    let uid = meta::uid(set).to_owned();
    let template = meta::at(set, &["spec", "template"])
        .cloned()
        .unwrap_or_default();
    let spec = template.get("spec").cloned().unwrap_or_default();
    let version = hash(&template);
    let mut by_node: FxHashMap<String, Vec<(Arc<Entry>, Value)>> = FxHashMap::default();
    for (entry, pod) in pods::owned(api, &pods_resource, &key.namespace, &uid) {
        if pods::ended(&pod) {
            // A daemon pod that has ended is replaced.
            pods::delete_recorded(&subject, &pods_resource, &entry).await?;
        } else {
            by_node.entry(node_of(&pod)).or_default().push((entry, pod));
        }
    }
    let has =
        |pod: &Value, hash: &str| meta::text(pod, &["metadata", "labels", HASH_LABEL]) == hash;
    let used = |hash: &str| by_node.values().flatten().any(|(_, pod)| has(pod, hash));
    revisions::record(api, resource, set, &template, &version, used).await?;
    let now = api.clock().now();
    let min_ready = meta::int_at(set, &["spec", "minReadySeconds"]).unwrap_or(0);
    let mut counts = Counts::default();
    let mut outdated = Vec::new();
    for node in api.entries(&nodes, None) {
        let node = node.value();
        let (run, stay) = fits(&spec, &node);
        let daemons = by_node.remove(meta::name(&node)).unwrap_or_default();
        let leaving = daemons.iter().any(|(_, p)| meta::deleting(p));
        let mut live: Vec<_> = daemons
            .into_iter()
            .filter(|(_, p)| pods::is_active(p))
            .collect();
        if !stay || !run && live.is_empty() {
            counts.misscheduled += i64::from(!live.is_empty());
            for (entry, _) in live {
                pods::delete_recorded(&subject, &pods_resource, &entry).await?;
            }
            continue;
        }
        counts.desired += i64::from(run);
        if live.is_empty() && leaving {
            // Two daemon pods of one set must not run on a node at once; the end of the old one causes
            // another reconcile.
            continue;
        }
        if live.is_empty() {
            let mut pod = pods::from_template(&template, resource, set);
            pin(&mut pod, meta::name(&node), &version);
            pods::create_recorded(&subject, &pods_resource, pod).await?;
            counts.current += 1;
            counts.updated += 1;
            continue;
        }
        for (surplus, _) in live.drain(1..) {
            pods::delete_recorded(&subject, &pods_resource, &surplus).await?;
        }
        let Some((entry, pod)) = live.pop() else {
            continue;
        };
        counts.add(&pod, &version, min_ready, now);
        if meta::text(&pod, &["metadata", "labels", HASH_LABEL]) != version {
            outdated.push((entry, pods::ready(&pod)));
        }
    }
    // The remaining pods are on nodes that no longer exist: the pod garbage collector deletes them.
    if meta::text(set, &["spec", "updateStrategy", "type"]) != "OnDelete" {
        let limit = meta::at(
            set,
            &["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"],
        );
        let limit = resolve_int_or_percent(limit, "1", counts.desired, true).max(1);
        let mut capacity = limit - (counts.desired - counts.available);
        outdated.sort_by_key(|(_, ready)| *ready);
        for (entry, ready) in outdated {
            if ready {
                if capacity <= 0 {
                    break;
                }
                capacity -= 1;
            }
            pods::delete_recorded(&subject, &pods_resource, &entry).await?;
        }
    }
    let generation = meta::at(set, &["metadata", "generation"]).cloned();
    pods::write_status(api, resource, key, &uid, |s| {
        counts.write(s, generation.clone())
    })
    .await?;
    Ok(counts.again.map(Duration::from_secs))
}

#[derive(Default)]
struct Counts {
    desired: i64,
    current: i64,
    misscheduled: i64,
    ready: i64,
    updated: i64,
    available: i64,
    again: Option<u64>,
}

impl Counts {
    fn add(&mut self, pod: &Value, version: &str, min_ready: i64, now: jiff::Timestamp) {
        self.current += 1;
        self.ready += i64::from(pods::ready(pod));
        let is_current = meta::text(pod, &["metadata", "labels", HASH_LABEL]) == version;
        self.updated += i64::from(is_current);
        match pods::available(pod, min_ready, now) {
            Ok(()) => self.available += 1,
            Err(Some(remaining)) => {
                self.again = Some(self.again.map_or(remaining, |a| a.min(remaining)))
            }
            Err(None) => {}
        }
    }

    fn write(&self, status: &mut Map<String, Value>, generation: Option<Value>) {
        for (key, n) in [
            ("desiredNumberScheduled", self.desired),
            ("currentNumberScheduled", self.current),
            ("numberMisscheduled", self.misscheduled),
            ("numberReady", self.ready),
        ] {
            status.insert(key.to_owned(), n.into());
        }
        for (key, n) in [
            ("updatedNumberScheduled", self.updated),
            ("numberAvailable", self.available),
            ("numberUnavailable", (self.desired - self.available).max(0)),
        ] {
            if n == 0 {
                status.remove(key);
            } else {
                status.insert(key.to_owned(), n.into());
            }
        }
        if let Some(g) = generation {
            status.insert("observedGeneration".to_owned(), g);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_run_on_eligible_nodes() {
        let node = json!({"metadata": {"name": "n", "labels": {"disk": "ssd"}}, "spec": {"taints": [
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}});
        assert_eq!(fits(&json!({}), &node), (true, true));
        assert_eq!(
            fits(&json!({"nodeSelector": {"disk": "hdd"}}), &node),
            (false, false)
        );
        let tainted = json!({"metadata": {"name": "n"},
            "spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}});
        assert_eq!(fits(&json!({}), &tainted), (false, true));
        let tolerant = json!({"tolerations": [{"operator": "Exists"}]});
        assert_eq!(fits(&tolerant, &tainted), (true, true));
    }

    #[test]
    fn pinned_pod_is_assigned_to_its_node() {
        let mut pod = json!({"metadata": {}, "spec": {}});
        pin(&mut pod, "n7", "abc");
        assert_eq!(node_of(&pod), "n7");
        let node = |name: &str| json!({"metadata": {"name": name}});
        assert_eq!(fits(&pod["spec"], &node("n7")), (true, true));
        assert_eq!(fits(&pod["spec"], &node("n8")), (false, false));
    }
}
