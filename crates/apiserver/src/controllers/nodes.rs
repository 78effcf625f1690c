//! Node lifecycle controller: a node that stops renewing its lease becomes Unknown and tainted, and pods that
//! do not tolerate the taints are evicted.
//!
//! A node that never had a lease is left alone: nothing is expected to renew one.

use crate::rest::{Api, DeleteOptions, meta};
use crate::store::{Entry, Key, Revision, TableId};
use jiff::{SignedDuration, Timestamp};
use koord_kinds::status::ApiError;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval between checks of all nodes.
const PERIOD: Duration = Duration::from_secs(5);
/// Time without a lease renewal after which a node becomes Unknown.
const GRACE: SignedDuration = SignedDuration::from_secs(40);
/// Namespace of the kubelets' leases.
const LEASES: &str = "kube-node-lease";

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Conditions that become a NoSchedule taint: type, status, taint.
const CONDITION_TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    (
        "MemoryPressure",
        "True",
        "node.kubernetes.io/memory-pressure",
    ),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
];

/// State of a node at its last check.
struct NodeObservation {
    node: Revision,
    lease: Revision,
    /// Time of the last observed change of the lease, by the clock of this process: the node's may be wrong.
    renewed: Timestamp,
    /// True if the node had NoExecute taints.
    evicting: bool,
    silent: bool,
}

/// Runs the node lifecycle controller until `shutdown` is cancelled.
pub(super) async fn run(api: Api, shutdown: CancellationToken) {
    let mut observations: FxHashMap<Arc<str>, NodeObservation> = FxHashMap::default();
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let nodes = TableId::new("", "nodes");
    // A change of a node is handled at once; a missing renewal is noticed by the tick.
    let mut watcher = None;
    loop {
        let mut changed: Option<Arc<Entry>> = None;
        if watcher.is_none() {
            watcher = api
                .store()
                .watch(nodes.clone(), api.store().revision())
                .ok();
        }
        let next = async {
            match &mut watcher {
                Some(w) => w.next().await.ok(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
            event = next => match event {
                Some(event) => changed = Some(event.new),
                None => watcher = None,
            },
        }
        let all = match changed {
            Some(entry) => api.store().get(&nodes, &entry.key).into_iter().collect(),
            None => {
                let all = api.store().all(&nodes, None, &|_| true);
                let existing_names: FxHashSet<&str> = all.iter().map(|e| &*e.key.name).collect();
                observations.retain(|name, _| existing_names.contains(&**name));
                all
            }
        };
        for node in all {
            let name = node.key.name.clone();
            let existing = observations.remove(&name);
            match check_node(&api, &node, existing).await {
                Ok(now) => {
                    observations.insert(name, now);
                }
                Err(error) => {
                    tracing::debug!(node = %name, %error, "failed to check node, retrying")
                }
            }
        }
    }
}

/// Checks the lease of a node and updates its conditions, taints and pods.
async fn check_node(
    api: &Api,
    node: &Arc<Entry>,
    previous: Option<NodeObservation>,
) -> Result<NodeObservation, ApiError> {
    let now = api.clock().now();
    let leases = TableId::new("coordination.k8s.io", "leases");
    let lease = api
        .store()
        .get(&leases, &Key::new(LEASES, node.key.name.clone()));
    let lease_revision = lease.as_ref().map_or(0, |l| l.revision);
    let renewed = match &previous {
        Some(k) if k.lease == lease_revision => k.renewed,
        _ => now,
    };
    let silent = lease.is_some() && now.duration_since(renewed) > GRACE;
    let settled = previous
        .as_ref()
        .is_some_and(|k| k.node == node.revision && k.silent == silent && !k.evicting && !silent);
    let mut observed = NodeObservation {
        node: node.revision,
        lease: lease_revision,
        renewed,
        evicting: false,
        silent,
    };
    if settled {
        return Ok(observed);
    }
    let resource = api.builtin("", "v1", "nodes")?;
    if silent {
        let result = api
            .edit(&resource, Some("status"), &node.key, |old| {
                let mut new = old.clone();
                mark_unknown(&mut new, now);
                Ok((new != *old).then_some(new))
            })
            .await;
        match result {
            Err(e) if e.code == 404 => return Ok(observed),
            Err(e) => return Err(e),
            Ok(_) => {}
        }
    }
    let result = api
        .edit(&resource, None, &node.key, |old| {
            let mut new = old.clone();
            set_taints(&mut new, now);
            Ok((new != *old).then_some(new))
        })
        .await;
    let value = match result {
        Ok(result) => result.object.value(&resource),
        Err(e) if e.code == 404 => return Ok(observed),
        Err(e) => return Err(e),
    };
    observed.node = meta::resource_version(&value)
        .parse()
        .unwrap_or(node.revision);
    let evicting = taints(&value, "NoExecute");
    if !evicting.is_empty() {
        observed.evicting = true;
        evict(api, &node.key.name, &evicting, now).await?;
    }
    Ok(observed)
}

/// Sets the conditions of a node without lease renewals to Unknown.
fn mark_unknown(node: &mut Value, now: Timestamp) {
    let status = meta::section(node, "status");
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        let is_unknown = status
            .get("conditions")
            .and_then(Value::as_array)
            .and_then(|l| l.iter().find(|c| meta::text(c, &["type"]) == kind))
            .is_some_and(|c| meta::text(c, &["status"]) == "Unknown");
        if !is_unknown {
            let (reason, message) = ("NodeStatusUnknown", "Kubelet stopped posting node status.");
            meta::set_condition(status, kind, "Unknown", reason, message, now);
        }
    }
}

/// Sets the taints that represent conditions, and removes those whose condition no longer holds.
fn set_taints(node: &mut Value, now: Timestamp) {
    let condition =
        |kind: &str| meta::condition(node, kind).map(|c| meta::text(c, &["status"]).to_owned());
    let mut desired: Vec<(&str, &str)> = Vec::new();
    for (kind, status, taint) in CONDITION_TAINTS {
        if condition(kind).as_deref() == Some(status) {
            desired.push((taint, "NoSchedule"));
            if kind == "Ready" {
                desired.push((taint, "NoExecute"));
            }
        }
    }
    if meta::is_true(node, &["spec", "unschedulable"]) {
        desired.push((UNSCHEDULABLE, "NoSchedule"));
    }
    // Without a Ready condition the state is unknown: existing taints stay.
    let judged = condition("Ready").is_some();
    let actual = |key: &str| {
        key == UNSCHEDULABLE || (judged && CONDITION_TAINTS.iter().any(|(_, _, t)| *t == key))
    };
    let old: Vec<Value> = meta::at(node, &["spec", "taints"])
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let pair = |t: &Value| {
        (
            meta::text(t, &["key"]).to_owned(),
            meta::text(t, &["effect"]).to_owned(),
        )
    };
    let mut new: Vec<Value> = old
        .iter()
        .filter(|t| {
            let (key, effect) = pair(t);
            !actual(&key) || desired.iter().any(|(k, e)| *k == key && *e == effect)
        })
        .cloned()
        .collect();
    for (key, effect) in desired {
        if !new
            .iter()
            .any(|t| pair(t) == (key.to_owned(), effect.to_owned()))
        {
            new.push(json!({ "key": key, "effect": effect, "timeAdded": meta::time(now) }));
        }
    }
    if new == old {
        return;
    }
    let spec: &mut Map<String, Value> = meta::section(node, "spec");
    if new.is_empty() {
        spec.remove("taints");
    } else {
        spec.insert("taints".to_owned(), new.into());
    }
}

/// Returns the taints with this effect.
fn taints(node: &Value, effect: &str) -> Vec<Value> {
    meta::list_at(node, &["spec", "taints"])
        .iter()
        .filter(|t| meta::text(t, &["effect"]) == effect)
        .cloned()
        .collect()
}

/// Returns true if the toleration covers the taint.
pub(super) fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let get = |v: &Value, k: &str| meta::text(v, &[k]).to_owned();
    let (key, effect) = (get(toleration, "key"), get(toleration, "effect"));
    if !effect.is_empty() && effect != get(taint, "effect") {
        return false;
    }
    if !key.is_empty() && key != get(taint, "key") {
        return false;
    }
    match get(toleration, "operator").as_str() {
        "Exists" => true,
        "" | "Equal" => !key.is_empty() && get(toleration, "value") == get(taint, "value"),
        _ => false,
    }
}

/// Returns true if a pod must now leave a node with these NoExecute taints.
fn must_leave(pod: &Value, taints: &[Value], now: Timestamp) -> bool {
    let tolerations: Vec<&Value> = meta::list_at(pod, &["spec", "tolerations"])
        .iter()
        .collect();
    taints.iter().any(|taint| {
        let covering: Vec<_> = tolerations.iter().filter(|t| tolerates(t, taint)).collect();
        if covering.is_empty() {
            return true;
        }
        let seconds: Option<i64> = covering
            .iter()
            .filter_map(|t| t.get("tolerationSeconds").and_then(Value::as_i64))
            .min();
        let Some(seconds) = seconds else { return false };
        let since: Timestamp = meta::text(taint, &["timeAdded"]).parse().unwrap_or(now);
        now.duration_since(since).as_secs() >= seconds.max(0)
    })
}

/// Deletes the pods of a node that do not tolerate its NoExecute taints.
async fn evict(api: &Api, node: &str, taints: &[Value], now: Timestamp) -> Result<(), ApiError> {
    let pods = api.builtin("", "v1", "pods")?;
    let on_node = |e: &Entry| e.index.field("spec.nodeName") == Some(node);
    for entry in api.store().all(&pods.table, None, &on_node) {
        let pod = entry.value();
        if meta::deleting(&pod) || super::pods::ended(&pod) || !must_leave(&pod, taints, now) {
            continue;
        }
        let marked = api
            .edit(&pods, Some("status"), &entry.key, |old| {
                let mut new = old.clone();
                let changed = meta::set_condition(
                    meta::section(&mut new, "status"),
                    "DisruptionTarget",
                    "True",
                    "DeletionByTaintManager",
                    "Taint manager: deleting due to NoExecute taint",
                    now,
                );
                Ok(changed.then_some(new))
            })
            .await;
        match marked {
            Err(e) if e.code == 404 => continue,
            Err(e) => return Err(e),
            Ok(_) => {}
        }
        let options = DeleteOptions {
            uid: Some(entry.index.uid.to_string()),
            ..DeleteOptions::default()
        };
        match api.delete_object(&pods, &entry.key, &options).await {
            Err(e) if e.code != 404 && e.code != 409 => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn taints_follow_conditions() {
        let mut node = json!({"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        mark_unknown(&mut node, at("2026-01-01T00:00:00Z"));
        set_taints(&mut node, at("2026-01-01T00:00:00Z"));
        let effects: Vec<_> = node["spec"]["taints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| (meta::text(t, &["key"]), meta::text(t, &["effect"])))
            .collect();
        assert_eq!(
            effects,
            [
                ("mine", "NoSchedule"),
                (UNREACHABLE, "NoSchedule"),
                (UNREACHABLE, "NoExecute")
            ]
        );
        node["status"]["conditions"][0]["status"] = "True".into();
        node["spec"]["unschedulable"] = true.into();
        set_taints(&mut node, at("2026-01-01T00:01:00Z"));
        let keys: Vec<_> = node["spec"]["taints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| meta::text(t, &["key"]))
            .collect();
        assert_eq!(keys, ["mine", UNSCHEDULABLE]);
    }

    #[test]
    fn pods_are_evicted_when_toleration_ends() {
        let taint = [
            json!({"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}),
        ];
        let pod = |tolerations: Value| json!({"spec": {"tolerations": tolerations}});
        let now = at("2026-01-01T00:01:00Z");
        assert!(must_leave(&pod(json!([])), &taint, now));
        assert!(!must_leave(
            &pod(json!([{"operator": "Exists"}])),
            &taint,
            now
        ));
        let limited = json!([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
        assert!(!must_leave(&pod(limited.clone()), &taint, now));
        assert!(must_leave(
            &pod(limited),
            &taint,
            at("2026-01-01T00:05:00Z")
        ));
    }
}
