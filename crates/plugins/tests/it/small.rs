//! Small Koordinator plugins, each alone in a profile.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{Engine, EngineOptions, Output};
use koord_scheduler::framework::{BuildContext, Profiles};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

/// Builds an engine with only these plugins.
pub(crate) fn engine(plugins: &[&str], args: Value) -> Engine {
    engine_with(plugins, args, &BuildContext::default())
}

pub(crate) fn engine_with(plugins: &[&str], args: Value, context: &BuildContext) -> Engine {
    let mut enabled: Vec<Value> = plugins.iter().map(|name| json!({"name": name})).collect();
    enabled.push(json!({"name": "DefaultBinder"}));
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
            "pluginConfig": [{"name": plugins[0], "args": args}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let registry = koord_plugins::registry();
    let profiles = Profiles::build(&config, &registry, context, false).unwrap();
    Engine::new(&config, profiles, EngineOptions::default())
}

pub(crate) fn node(engine: &mut Engine, name: &str, allocatable: Value) {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name}, "status": {"allocatable": allocatable}
    }))
    .unwrap();
    engine.node_applied(Arc::new(node), now());
}

fn pod(name: &str, requests: Value, annotations: Value, node: Option<&str>) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [
                {"name": "c", "resources": {"requests": requests}}
            ]}
        }))
        .unwrap(),
    )
}

/// Schedules a pod. Returns its node or the message of its condition.
pub(crate) fn place(engine: &mut Engine, pod: Arc<Pod>) -> String {
    engine.take_outputs();
    engine.pod_applied(pod, now());
    engine.schedule_one(now()).unwrap();
    match engine.take_outputs().remove(0) {
        Output::Bind(bind) => bind.node.to_string(),
        Output::Failed(failure) => failure.message.to_string(),
        other => format!("{other:?}"),
    }
}

const GPU: &str = "nvidia.com/gpu";

fn machine(gpus: &str, extra: &str) -> Value {
    let mut out =
        json!({"cpu": "96", "memory": "512Gi", "ephemeral-storage": "100Gi", "pods": "110"});
    if gpus != "0" {
        out[GPU] = json!(gpus);
    }
    if !extra.is_empty() {
        out[extra] = json!("8");
    }
    out
}

#[test]
fn gpus_are_packed_while_cpus_are_spread() {
    let args = json!({"resources": {
        GPU: {"type": "MostAllocated", "weight": 2},
        "cpu": {"type": "LeastAllocated", "weight": 1},
        "memory": {"type": "LeastAllocated", "weight": 1},
    }});
    let mut engine = engine(&["NodeResourcesFitPlus"], args);
    node(&mut engine, "used", machine("8", ""));
    node(&mut engine, "free", machine("8", "xx.xx/xx"));
    let large = json!({"cpu": "16", "memory": "32Gi", GPU: "4"});
    engine.pod_applied(pod("a", large, json!({}), Some("used")), now());
    let asks = |gpu: &str| {
        let mut asks = json!({"cpu": "16", "memory": "32Gi", "ephemeral-storage": "10Gi"});
        if gpu != "0" {
            asks[GPU] = json!(gpu);
        }
        asks
    };
    assert_eq!(
        place(&mut engine, pod("b", asks("2"), json!({}), None)),
        "used"
    );
    assert_eq!(
        place(&mut engine, pod("c", asks("0"), json!({}), None)),
        "free"
    );
}

#[test]
fn pods_without_gpu_avoid_gpu_nodes() {
    let args = json!({"resources": [GPU]});
    let mut engine = engine(&["ScarceResourceAvoidance"], args);
    node(&mut engine, "gpu", machine("8", "xx.xx/xx"));
    node(&mut engine, "plain", machine("0", ""));
    let plain = json!({"cpu": "16", "memory": "32Gi"});
    for name in ["a", "b", "c"] {
        assert_eq!(
            place(&mut engine, pod(name, plain.clone(), json!({}), None)),
            "plain"
        );
    }
}

#[test]
fn hints_restrict_and_prefer() {
    const KEY: &str = "internal.scheduling.koordinator.sh/scheduling-hint";
    const OLD: &str = "scheduling.koordinator.sh/scheduling-hint";
    // Columns: annotation, value, maxHintNodes, the chosen node or a part of the message.
    let rows = [
        ("required", KEY, json!({"nodeNames": ["n2"]}), 100, "n2"),
        (
            "deprecated key",
            OLD,
            json!({"nodeNames": ["n3"]}),
            100,
            "n3",
        ),
        (
            "preferred",
            KEY,
            json!({"preferredNodeNames": ["n3", "n2"]}),
            100,
            "n3",
        ),
        (
            "preferred, the first is full",
            KEY,
            json!({"preferredNodeNames": ["full", "n2", "n3"]}),
            100,
            "n2",
        ),
        (
            "preferred, unknown",
            KEY,
            json!({"preferredNodeNames": ["gone", "n3"]}),
            100,
            "n3",
        ),
        (
            "preferred outside of required",
            KEY,
            json!({"nodeNames": ["n2"], "preferredNodeNames": ["n3"]}),
            100,
            "n2",
        ),
        (
            "preferred within required, in order",
            KEY,
            json!({"nodeNames": ["n2", "n3"], "preferredNodeNames": ["n1", "n3"]}),
            100,
            "n3",
        ),
        (
            "truncated before anything else",
            KEY,
            json!({"nodeNames": ["n2"], "preferredNodeNames": ["n3", "n2"]}),
            1,
            "n2",
        ),
        (
            "required and full",
            KEY,
            json!({"nodeNames": ["full"]}),
            100,
            "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) didn't satisfy plugin(s) [SchedulingHint].",
        ),
        (
            "required and unknown",
            KEY,
            json!({"nodeNames": ["gone"]}),
            100,
            "0/4 nodes are available: 4 node(s) didn't satisfy plugin(s) [SchedulingHint].",
        ),
        (
            "extensions only",
            KEY,
            json!({"extensions": {"NodeNUMAResource": {}}}),
            100,
            "n1",
        ),
    ];
    for (case, key, value, most, expected) in rows {
        let args = json!({"maxHintNodes": most});
        let mut engine = engine(&["SchedulingHint", "NodeResourcesFit"], args);
        node(&mut engine, "full", json!({"cpu": "1", "pods": "10"}));
        // By free resources, n1 is the best.
        for (name, cpu) in [("n1", "32"), ("n2", "16"), ("n3", "8")] {
            node(&mut engine, name, json!({"cpu": cpu, "pods": "10"}));
        }
        let annotations = json!({key: value.to_string()});
        let got = place(
            &mut engine,
            pod("p", json!({"cpu": "2"}), annotations, None),
        );
        assert_eq!(got, expected, "{case}");
    }
}

#[test]
fn invalid_hint_json_is_reported_in_condition() {
    let mut engine = engine(&["SchedulingHint"], json!({}));
    node(&mut engine, "n", json!({"cpu": "1", "pods": "10"}));
    let annotations = json!({"internal.scheduling.koordinator.sh/scheduling-hint": "{nope"});
    let message = place(&mut engine, pod("p", json!({}), annotations, None));
    assert!(message.contains("internal.scheduling.koordinator.sh/scheduling-hint"));
    assert!(message.contains("{nope"), "{message}");
    assert_eq!(
        place(&mut engine, pod("q", json!({}), json!({}), None)),
        "n"
    );
}

#[test]
fn pod_with_resource_claims_waits() {
    let mut engine = engine(&["DynamicResources"], json!({}));
    node(&mut engine, "n", json!({"cpu": "1", "pods": "10"}));
    let mut claiming = pod("p", json!({}), json!({}), None);
    let spec = Arc::make_mut(&mut claiming).spec.as_mut().unwrap();
    spec.resource_claims = serde_json::from_value(json!([{"name": "gpu"}])).unwrap();
    assert_eq!(
        place(&mut engine, claiming),
        "0/1 nodes are available: the pod has resource claims, which this scheduler does not \
         allocate."
    );
    assert_eq!(
        place(&mut engine, pod("q", json!({}), json!({}), None)),
        "n"
    );
}
