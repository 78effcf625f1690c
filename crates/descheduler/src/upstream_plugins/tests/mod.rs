//! Upstream's test tables, one case per line, and cases that they do not cover.
//!
//! A case has `nodes` (`[name, cpu, memory, pods, rest]`), `pods` (`[names, node, cpu, memory, rest]`, where
//! `-` is no request and `rest` has other fields of the object, with `owner`, `ns` and `image` in short
//! form), the `name` of a plugin and its `args`, arguments of `DefaultEvictor`, limits of the cycle, and
//! upstream's result: how many pods are evicted and, where that does not vary from run to run, which ones.
//! Where a case has `upstream`, that is upstream's result, which does not count pods that may not be evicted.
//! Nodes and pods that are absent are those of the previous case. The time is always noon of the first day of
//! 2026.

mod behaviour;
mod evictor;
mod pairs;
mod spread;
mod tables;
mod validation;

use crate::config::Configuration;
use crate::framework::{Framework, Plan};
use crate::registry::Registry;
use crate::state::{NodeInfo, Snapshot};
use crate::testing::{TestCluster, merged};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Returns a framework in which `plugin` runs at `point` and `DefaultEvictor` filters and evicts.
fn framework(plugin: &str, args: &Value, evictor: &Value) -> Result<Framework, String> {
    let balances = [
        "RemoveDuplicates",
        "RemovePodsViolatingTopologySpreadConstraint",
        "LowNodeUtilization",
        "HighNodeUtilization",
    ];
    let point = if balances.contains(&plugin) {
        "balance"
    } else {
        "deschedule"
    };
    let only = json!({"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultEvictor"}]});
    let config = json!({
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "profiles": [{
            "name": "test",
            "nodeSelector": {"matchExpressions": [{"key": "outside", "operator": "DoesNotExist"}]},
            "plugins": {point: {"enabled": [{"name": plugin}]}, "evict": only, "filter": only},
            "pluginConfig": [
                {"name": plugin, "args": args},
                {"name": "DefaultEvictor", "args": evictor},
            ],
        }],
    });
    let config = Configuration::parse(&config.to_string()).map_err(|error| error.to_string())?;
    let completed = Registry::in_tree().complete(config);
    let built = completed.and_then(super::super::registry::CompletedConfig::build);
    built.map_err(|error| error.to_string())
}

/// Returns the objects of `case`, and a node outside the profile, as a cycle needs two.
fn world(case: &Value) -> TestCluster {
    let mut world = TestCluster::default();
    for node in rows(&case["nodes"]) {
        let [name, cpu, memory, pods] = texts(node);
        let base = json!({
            "metadata": {"name": name, "uid": name},
            "status": {
                "allocatable": {"cpu": cpu, "memory": memory, "pods": pods},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let node = serde_json::from_value(merged(base, other_fields(node))).unwrap();
        let node = NodeInfo::new(node, world.shapes.table());
        world.nodes.push(Arc::new(node));
    }
    world.node(
        "outside",
        json!({"metadata": {"labels": {"outside": ""}}, "spec": {"unschedulable": true}}),
    );
    for row in rows(&case["pods"]) {
        let [names, node, cpu, memory] = texts(row);
        let mut extra_fields = other_fields(row);
        let mut take = |key: &str| {
            extra_fields
                .as_object_mut()
                .and_then(|fields| fields.remove(key))
                .unwrap_or(Value::Null)
        };
        let owners = take("owner").as_str().unwrap_or_default().to_owned();
        let image = take("image").as_str().unwrap_or_default().to_owned();
        let namespace = take("ns").as_str().unwrap_or("default").to_owned();
        let owners: Vec<_> = owners.split_whitespace().map(owner).collect();
        let mut requests = Map::new();
        for (resource, amount) in [("cpu", cpu), ("memory", memory)] {
            if amount != "-" {
                requests.insert(resource.to_owned(), amount.into());
            }
        }
        for name in names.split_whitespace() {
            let over = json!({
                "metadata": {
                    "namespace": namespace, "creationTimestamp": Value::Null, "ownerReferences": owners,
                },
                "spec": {"nodeName": node, "containers": [{"name": "", "image": image, "resources": {"requests": requests}}]},
                "status": {"phase": Value::Null, "conditions": Value::Null},
            });
            world.pod(name, node, merged(over, extra_fields.clone()));
        }
    }
    world
}

fn owner(text: &str) -> Value {
    let (text, uid) = text.split_once('#').unwrap_or((text, ""));
    let (kind, name) = text.split_once('/').unwrap_or((text, ""));
    json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid})
}

fn rows(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn texts(row: &Value) -> [&str; 4] {
    [0, 1, 2, 3].map(|i| row[i].as_str().unwrap_or_default())
}

fn other_fields(row: &Value) -> Value {
    match &row[4] {
        Value::Null => json!({}),
        fields => without_nameless(fields.clone()),
    }
}

/// Adds required fields that containers in the tables lack.
fn without_nameless(mut value: Value) -> Value {
    let status = json!({"name": "", "image": "", "imageID": "", "ready": false, "restartCount": 0});
    let spec = json!({"name": "", "image": ""});
    let lists = [
        ("/spec/containers", &spec),
        ("/spec/initContainers", &spec),
        ("/status/containerStatuses", &status),
        ("/status/initContainerStatuses", &status),
        ("/status/ephemeralContainerStatuses", &status),
    ];
    for (list, by_default) in lists {
        let containers = value.pointer_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            *container = merged(by_default.clone(), container.take());
        }
    }
    value
}

fn snapshot(world: &TestCluster, case: &Value) -> Snapshot {
    let mut snapshot = world.snapshot();
    for namespace in rows(&case["namespaces"]) {
        let labels =
            serde_json::from_value(namespace["metadata"]["labels"].clone()).unwrap_or_default();
        let name = namespace["metadata"]["name"].as_str().unwrap();
        snapshot.namespaces.insert(name.into(), labels);
    }
    for budget in rows(&case["pdbs"]) {
        snapshot
            .budgets
            .push(Arc::new(serde_json::from_value(budget.clone()).unwrap()));
    }
    for claim in rows(&case["pvcs"]) {
        let text = |path: &str| claim.pointer(path).and_then(Value::as_str);
        let namespace = text("/metadata/namespace").unwrap();
        let name = text("/metadata/name").unwrap();
        let class = text("/spec/storageClassName").unwrap_or_default();
        snapshot
            .storage_classes
            .insert((namespace.into(), name.into()), class.to_owned());
    }
    for class in rows(&case["classes"]) {
        let value = class["value"].as_i64().unwrap_or(0);
        let name = class["metadata"]["name"].as_str().unwrap().to_owned();
        snapshot
            .priority_classes
            .insert(name, i32::try_from(value).unwrap());
    }
    snapshot
}

/// Returns the cases of a table, completed.
fn cases(table: &str) -> Vec<Value> {
    let mut cases: Vec<Value> = Vec::new();
    for line in table.lines() {
        let mut case: Value = serde_json::from_str(line).unwrap();
        for field in ["nodes", "pods"] {
            if case.get(field).is_none() {
                case[field] = cases.last().unwrap()[field].clone();
            }
        }
        cases.push(case);
    }
    cases
}

/// Returns the names of the evicted pods.
fn moved_names(plan: &Plan) -> Vec<String> {
    let mut names = crate::testing::moved(plan);
    names.sort();
    names
}
