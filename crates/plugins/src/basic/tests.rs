use super::*;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{Engine, EngineOptions, Output};
use koord_scheduler::framework::{BuildContext, Profiles};
use koord_scheduler::state::PodInfo;
use serde_json::{Value, json};
use std::sync::Arc;

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

/// Creates an engine with node `open`, node `cordoned` and only the small plugins.
fn engine() -> Engine {
    let mut engine = engine_with(&[
        "SchedulingGates",
        "NodeUnschedulable",
        "NodeName",
        "DefaultBinder",
    ]);
    node(&mut engine, "open", false);
    node(&mut engine, "cordoned", true);
    engine
}

fn engine_with(names: &[&str]) -> Engine {
    let enabled: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {
                "disabled": [{"name": "*"}],
                "enabled": enabled
            }}
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let context = BuildContext::default();
    let profiles = Profiles::build(&config, &crate::registry(), &context, false).unwrap();
    Engine::new(&config, profiles, EngineOptions::default())
}

fn node(engine: &mut Engine, name: &str, cordoned: bool) {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name}, "spec": {"unschedulable": cordoned},
        "status": {"allocatable": {"cpu": "4", "pods": "10"}}
    }))
    .unwrap();
    engine.node_applied(Arc::new(node), now());
}

fn pod(name: &str, spec: Value) -> Arc<Pod> {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c"}]}
    });
    for (key, part) in spec.as_object().into_iter().flatten() {
        value["spec"][key] = part.clone();
    }
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Schedules the pod and returns its node or the message of its condition; empty if it is not tried.
fn place(engine: &mut Engine, pod: Arc<Pod>) -> String {
    engine.take_outputs();
    engine.pod_applied(pod, now());
    engine.schedule_one(now());
    let output = engine.take_outputs().into_iter().next();
    output.map_or_else(String::new, |output| match output {
        Output::Bind(bind) => bind.node.to_string(),
        Output::Failed(failure) => failure.message.to_string(),
        other => format!("{other:?}"),
    })
}

#[test]
fn cordoned_nodes_take_pods_that_tolerate_it() {
    const REFUSED: &str = "0/1 nodes are available: 1 node(s) were unschedulable.";
    let key = "node.kubernetes.io/unschedulable";
    for (case, toleration, expected) in [
        ("none", Value::Null, REFUSED),
        (
            "the key",
            json!({"key": key, "operator": "Exists"}),
            "cordoned",
        ),
        ("everything", json!({"operator": "Exists"}), "cordoned"),
        (
            "the effect",
            json!({"key": key, "operator": "Exists", "effect": "NoSchedule"}),
            "cordoned",
        ),
        (
            "the empty value",
            json!({"key": key, "operator": "Equal", "value": ""}),
            "cordoned",
        ),
        (
            "another value",
            json!({"key": key, "operator": "Equal", "value": "x"}),
            REFUSED,
        ),
        (
            "another effect",
            json!({"key": key, "operator": "Exists", "effect": "NoExecute"}),
            REFUSED,
        ),
        (
            "another key",
            json!({"key": "other", "operator": "Exists"}),
            REFUSED,
        ),
    ] {
        let mut engine = engine();
        engine.node_deleted("open", now());
        let tolerations: Vec<&Value> = [&toleration].into_iter().filter(|t| !t.is_null()).collect();
        let pod = pod("p", json!({"tolerations": tolerations}));
        assert_eq!(place(&mut engine, pod), expected, "{case}");
    }
}

#[test]
fn uncordoned_node_requeues_rejected_pod() {
    let mut engine = engine();
    engine.node_deleted("open", now());
    let refused = place(&mut engine, pod("p", json!({})));
    assert_eq!(
        refused,
        "0/1 nodes are available: 1 node(s) were unschedulable."
    );
    // Another closed node does not help.
    node(&mut engine, "closed", true);
    let later = now() + jiff::SignedDuration::from_secs(20);
    assert!(engine.schedule_one(later).is_none());
    node(&mut engine, "cordoned", false);
    let later = later + jiff::SignedDuration::from_secs(20);
    assert!(engine.schedule_one(later).is_some());
    assert_eq!(
        engine.cluster().placement("p").map(|(node, _)| &**node),
        Some("cordoned")
    );
}

#[test]
fn gates_keep_pods_out_until_all_are_gone() {
    let mut engine = engine();
    let gated = |names: &[&str]| {
        let gates: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        pod("p", json!({"schedulingGates": gates}))
    };
    for gates in [&["a", "b"][..], &["b"]] {
        assert_eq!(place(&mut engine, gated(gates)), "", "{gates:?}");
        let explanation = engine
            .inspector()
            .explain_pod("ns", "p", now())
            .unwrap()
            .to_string();
        assert!(explanation.contains("SchedulingGates"), "{explanation}");
    }
    assert_eq!(place(&mut engine, gated(&[])), "open");
}

#[test]
fn node_name_selects_single_node() {
    const OTHER: &str = "node(s) didn't match the requested node name";
    let engine = engine();
    for (named, open, cordoned) in [
        ("open", "", OTHER),
        ("cordoned", OTHER, ""),
        ("gone", OTHER, OTHER),
    ] {
        let info = PodInfo::new(
            pod("p", json!({"nodeName": named})),
            engine.cluster().resources(),
        )
        .unwrap();
        let info = Arc::new(info);
        let cycle = Cycle::new(&info, engine.cluster().view(now()));
        assert!(matches!(
            PreFilter::pre_filter(&NodeName, &cycle),
            PreFilterResult::Ready { nodes: None, .. }
        ));
        for (node, expected) in [("open", open), ("cordoned", cordoned)] {
            let row = engine.cluster().nodes().find(node).unwrap();
            let verdict = Filter::filter(&NodeName, &cycle, &State::default(), row);
            let message = verdict.err().map(|rejection| rejection.message());
            assert_eq!(message.unwrap_or_default(), expected, "{named} on {node}");
        }
    }
}

#[test]
fn node_without_batch_is_nearer_than_unselected_node() {
    let mut engine = engine_with(&["NodeAffinity", "NodeResourcesFit", "DefaultBinder"]);
    for (name, batch) in [("other", "4000"), ("chosen", "0")] {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "labels": {"name": name}},
            "status": {"allocatable":
                {"cpu": "4", "pods": "10", "kubernetes.io/batch-cpu": batch}}
        }))
        .unwrap();
        engine.node_applied(Arc::new(node), now());
    }
    let requests = json!({"kubernetes.io/batch-cpu": "500"});
    let pod = pod(
        "waits",
        json!({"nodeSelector": {"name": "chosen"},
            "containers": [{"name": "c", "resources": {"requests": requests}}]}),
    );
    let info = PodInfo::new(pod, engine.cluster().resources()).unwrap();
    let nearest = engine.inspector().nearest(&Arc::new(info), 2, now());
    let names: Vec<&str> = nearest.iter().map(|it| &*it.node).collect();
    assert_eq!(names, ["chosen", "other"], "{nearest:?}");
}

/// Covers both forms: `workloadRef` of 1.35, and the part of `schedulingGroup` of 1.36 and later that plugins
/// receive.
#[test]
fn pod_of_a_workload_waits_with_a_reason() {
    let mut engine = engine_with(&["GangScheduling", "NodeName", "DefaultBinder"]);
    node(&mut engine, "open", false);
    for (reference, named) in [
        (
            json!({"name": "w", "podGroup": "g", "podGroupReplicaKey": "0"}),
            r#"spec.workloadRef names "g" of "w""#,
        ),
        (
            json!({"name": "", "podGroup": "g"}),
            r#"spec.schedulingGroup names "g""#,
        ),
    ] {
        let grouped = pod("p", json!({"workloadRef": reference}));
        let message = "this scheduler does not place pod groups of the Workload API";
        assert_eq!(
            place(&mut engine, grouped),
            format!("0/1 nodes are available: {named}: {message}.")
        );
        assert_eq!(place(&mut engine, pod("other", json!({}))), "open");
        // Waits for a change of its own, and for nothing else.
        let later = now() + jiff::SignedDuration::from_secs(60);
        node(&mut engine, "new", false);
        assert!(engine.schedule_one(later).is_none());
        engine.pod_applied(pod("p", json!({})), later);
        assert!(engine.schedule_one(later).is_some());
        assert!(engine.cluster().placement("p").is_some());
        engine.node_deleted("new", later);
        for uid in ["p", "other"] {
            engine.pod_left(uid, later);
        }
    }
}

#[test]
fn pod_of_a_workload_waits_in_every_default_profile() {
    let config = Configuration::parse(
        r#"{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}"#,
    )
    .unwrap();
    for koord in [false, true] {
        let context = BuildContext::default();
        let profiles = Profiles::build(&config, &crate::registry(), &context, koord).unwrap();
        let mut engine = Engine::new(&config, profiles, EngineOptions::default());
        node(&mut engine, "open", false);
        let grouped = json!({"schedulerName": "default-scheduler",
            "workloadRef": {"name": "w", "podGroup": "g"}});
        engine.pod_applied(pod("p", grouped), now());
        engine.schedule_one(now());
        let outputs = engine.take_outputs().into_iter();
        let messages: Vec<String> = outputs
            .filter_map(|output| match output {
                Output::Failed(failure) => Some(failure.message.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(messages.len(), 1, "{koord}: {messages:?}");
        assert!(
            messages[0].contains("spec.workloadRef"),
            "{koord}: {messages:?}"
        );
    }
}
