//! Estimates of pods on a node in addition to its report: upstream's cache of assigned pods, tested by what
//! still fits.

use super::*;

/// Builds a pod with this `spec.nodeName` and phase, and more changes.
fn assigned(name: &str, node: &str, phase: &str, change: Value) -> Arc<Pod> {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "default", "uid": "123456789"},
        "spec": {"schedulerName": "another", "containers": [{"name": "c"}]},
        "status": {"phase": phase}
    });
    if !node.is_empty() {
        value["spec"]["nodeName"] = json!(node);
    }
    for (key, part) in change.as_object().into_iter().flatten() {
        for (field, content) in part.as_object().into_iter().flatten() {
            value[key][field] = content.clone();
        }
    }
    Arc::new(serde_json::from_value(value).unwrap())
}

fn requesting(requests: Value) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

fn mid() -> Value {
    let mut out =
        requesting(json!({"kubernetes.io/mid-cpu": "1k", "kubernetes.io/mid-memory": "4Gi"}));
    out["spec"]["priority"] = json!(7500);
    out
}

fn scheduled(more: bool) -> Value {
    let condition = |kind: &str, seconds: i64| json!({"type": kind, "status": "True", "lastTransitionTime": at(seconds).to_string()});
    let mut out = vec![condition("PodScheduled", 1)];
    if more {
        out.push(condition("Initialized", 3));
    }
    json!({"status": {"conditions": out}})
}

/// Returns true if a pod of this many milli-cores still fits on a node of ten cores with a threshold of 50 %,
/// after these pod updates in turn.
fn fits(pods: &[Arc<Pod>], node_name: &str, prod: bool, milli: i64) -> bool {
    let threshold = if prod {
        "prodUsageThresholds"
    } else {
        "usageThresholds"
    };
    let mut args = json!({"usageThresholds": {"cpu": 0, "memory": 0},
        "estimatedScalingFactors": {"cpu": 100, "memory": 100}});
    args[threshold] = json!({"cpu": 50});
    let mut engine = engine_with_plugins(&["NodeUnschedulable"], args);
    for name in ["a", "b"] {
        let mut node = Arc::unwrap_or_clone(node(name, json!({})));
        let allocatable = json!({"cpu": "10", "memory": "500Gi", "pods": "110"});
        node.spec = serde_json::from_value(json!({"unschedulable": name != node_name})).unwrap();
        node.status = serde_json::from_value(json!({"allocatable": allocatable})).unwrap();
        engine.node_applied(Arc::new(node), at(0));
        let no_prod = json!({"nodeMetric": {"nodeUsage": {"resources": {"cpu": "0", "memory": "0"}}},
            "podsMetric": []});
        engine.object_changed(&metric(name, "0", no_prod), at(0));
    }
    for pod in pods {
        engine.pod_applied(pod.clone(), at(1));
    }
    let requests = json!({"cpu": format!("{milli}m"), "memory": "1"});
    let probe = pod("probe", requesting(requests));
    place(&mut engine, probe, 2) == node_name
}

#[test]
fn assigned_pod_counts_once_with_latest_values() {
    let bare = || assigned("test", "a", "Running", json!({}));
    let one_core = || requesting(json!({"cpu": "1", "memory": "4Gi"}));
    // A pod without requests is estimated at 250 milli-cores. Columns: the updates in turn, then the
    // milli-cores on a, those of production on a, and those on b.
    let rows = [
        (
            "pending",
            vec![assigned("test", "", "Pending", json!({}))],
            [0, 0, 0],
        ),
        (
            "ended",
            vec![assigned("test", "a", "Failed", json!({}))],
            [0, 0, 0],
        ),
        ("asks for nothing", vec![bare()], [250, 0, 0]),
        (
            "production",
            vec![assigned("test", "a", "Pending", one_core())],
            [1000, 1000, 0],
        ),
        (
            "not production",
            vec![assigned("test", "a", "Pending", mid())],
            [1000, 0, 0],
        ),
        (
            "update: ended",
            vec![bare(), assigned("test", "a", "Failed", json!({}))],
            [0, 0, 0],
        ),
        (
            "update: labels and annotations",
            vec![
                bare(),
                assigned(
                    "test",
                    "a",
                    "Running",
                    json!({"metadata": {"labels": {"foo": "bar"}, "annotations": {"foo": "bar"}}}),
                ),
            ],
            [250, 0, 0],
        ),
        (
            "update: conditions",
            vec![
                assigned("test", "a", "Running", scheduled(false)),
                assigned("test", "a", "Running", scheduled(true)),
            ],
            [250, 0, 0],
        ),
        (
            "update: resources",
            vec![
                assigned("test", "a", "Running", scheduled(false)),
                assigned("test", "a", "Running", one_core()),
            ],
            [1000, 1000, 0],
        ),
        (
            "moved",
            vec![bare(), assigned("test", "b", "Running", json!({}))],
            [0, 0, 250],
        ),
        (
            "moved, with resources",
            vec![
                assigned("test", "a", "Running", one_core()),
                assigned("test", "b", "Running", one_core()),
            ],
            [0, 0, 1000],
        ),
    ];
    for (name, pods, used) in rows {
        for (node, prod, used) in [
            ("a", false, used[0]),
            ("a", true, used[1]),
            ("b", false, used[2]),
        ] {
            // 50.49 % rounds to 50, 50.5 % to 51.
            assert!(
                fits(&pods, node, prod, 5049 - used),
                "{name}: {node} {prod} is at most {used}"
            );
            assert!(
                !fits(&pods, node, prod, 5050 - used),
                "{name}: {node} {prod} is at least {used}"
            );
        }
    }
}
