//! Fixtures for the tests of `ElasticQuota`.

use super::*;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::{annotations, labels};
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{Engine, EngineOptions, Output};
use koord_scheduler::framework::{Indexes, Profiles, Verb, Write};
use koord_scheduler::state::NodeStore;
use serde_json::json;

mod admission;
mod hints;
mod invalid;
mod nodes;
mod preemption;
mod rebuild;
mod revoke;
mod status;
mod trees;

const NOW: i64 = 1_700_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

/// Builds an engine with quotas and resource fit.
fn engine_with(args: &Value, gates: &[&str]) -> Engine {
    let gates = gates.iter().map(|gate| ((*gate).to_owned(), true));
    engine_in(args, &BuildContext::with_gates(gates.collect()))
}

fn engine_in(args: &Value, context: &BuildContext) -> Engine {
    let names = ["PrioritySort", "NodeResourcesFit", NAME, "DefaultBinder"];
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {
                "disabled": [{"name": "*"}],
                "enabled": names.map(|name| json!({"name": name}))
            }},
            "pluginConfig": [{"name": NAME, "args": args}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let profiles = Profiles::build(&config, &crate::registry(), context, false).unwrap();
    Engine::new(&config, profiles, EngineOptions::default())
}

/// Builds an engine like [`engine_with`], with one node of this many cores and GiB.
fn engine(args: &Value, cpu: i64, memory: i64) -> Engine {
    let mut engine = engine_with(args, &[]);
    engine.node_applied(node("n", cpu, memory), at(0));
    engine
}

fn node(name: &str, cpu: i64, memory: i64) -> Arc<Node> {
    let value = json!({
        "metadata": {"name": name, "uid": name},
        "status": {"allocatable": {
            "cpu": cpu.to_string(), "memory": format!("{memory}Gi"), "pods": "1000"
        }}
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn list(cpu: i64, memory: i64) -> Value {
    json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi")})
}

/// Builds a quota in namespace `quotas`, in cores and GiB.
fn quota(name: &str, parent: &str, max: (i64, i64), min: (i64, i64)) -> Value {
    json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {
            "name": name, "namespace": "quotas", "uid": name,
            "labels": {labels::QUOTA_PARENT: parent}, "annotations": {}
        },
        "spec": {"max": list(max.0, max.1), "min": list(min.0, min.1)}
    })
}

fn change(object: &Value, action: Action) -> ObjectChange {
    let object: ElasticQuota = serde_json::from_value(object.clone()).unwrap();
    ObjectChange {
        kind: ELASTIC_QUOTAS,
        action,
        old: None,
        new: Arc::new(object),
    }
}

fn apply(engine: &mut Engine, object: &Value, seconds: i64) {
    engine.object_changed(&change(object, Action::UPDATE), at(seconds));
}

/// Builds a pod of a quota in namespace `team`, in cores and GiB.
fn pod(name: &str, quota: &str, cpu: i64, memory: i64) -> Value {
    let mut labels = json!({});
    if !quota.is_empty() {
        labels[labels::POD_QUOTA_NAME] = json!(quota);
    }
    json!({
        "metadata": {"name": name, "namespace": "team", "uid": name, "labels": labels},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": {"requests": list(cpu, memory)}}]
        }
    })
}

/// Returns `pod` with the label that makes it non-preemptible.
fn firm(mut pod: Value) -> Value {
    pod["metadata"]["labels"][labels::POD_PREEMPTIBLE] = json!("false");
    pod
}

fn bound(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = json!("n");
    pod
}

fn add(engine: &mut Engine, pod: &Value, seconds: i64) {
    let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
    engine.pod_applied(Arc::new(pod), at(seconds));
}

fn delete(engine: &mut Engine, pod: &Value, seconds: i64) {
    let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
    engine.pod_deleted(&pod, at(seconds));
}

/// Schedules every ready pod. Returns the node of each, or the message of its condition.
fn schedule(engine: &mut Engine, seconds: i64) -> Vec<(String, String)> {
    engine.take_outputs();
    while engine.schedule_one(at(seconds)).is_some() {}
    let mut out = Vec::new();
    for output in engine.take_outputs() {
        match output {
            Output::Bind(bind) => out.push((bind.pod.name.to_string(), bind.node.to_string())),
            Output::Failed(failure) => {
                out.push((failure.pod.name.to_string(), failure.message.to_string()))
            }
            _ => {}
        }
    }
    out
}

/// Schedules a single pod. Returns its node or its condition message, without the part about preemption.
fn place(engine: &mut Engine, pod: &Value, seconds: i64) -> String {
    add(engine, pod, seconds);
    let mut out = schedule(engine, seconds);
    assert_eq!(out.len(), 1, "{out:?}");
    let message = out.remove(0).1;
    let end = message.find(" preemption: ").unwrap_or(message.len());
    message[..end].to_owned()
}

/// Returns the condition message of a pod that was rejected on a cluster of one node.
fn refused(text: &str) -> String {
    format!("0/1 nodes are available: {text}.")
}

fn query(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn summary(engine: &mut Engine, name: &str) -> Value {
    let path = ["quotas", name];
    let answer = engine
        .inspector()
        .inspect(NAME, &path, &query(&[("includePods", "true")]), at(0));
    answer.unwrap_or_else(|error| panic!("{name}: {error:?}"))
}

/// Returns the writes since the last call.
fn writes(engine: &mut Engine, seconds: i64) -> Vec<Write> {
    engine.schedule_one(at(seconds));
    let outputs = engine.take_outputs().into_iter();
    outputs
        .filter_map(|output| match output {
            Output::Write(write) => Some(write),
            _ => None,
        })
        .collect()
}

/// Applies a write of the plugin like the API server, and shows the engine the result.
fn written(engine: &mut Engine, object: &mut Value, write: &Write, seconds: i64) {
    let Verb::Patch(patch) = &write.verb else {
        panic!("{write:?}")
    };
    merge(object, patch);
    apply(engine, object, seconds);
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    for (key, value) in fields {
        if value.is_null() {
            if let Some(object) = target.as_object_mut() {
                object.remove(key);
            }
        } else {
            merge(&mut target[key], value);
        }
    }
}
