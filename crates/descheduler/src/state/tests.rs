use super::*;
use crate::testing::TestCluster;
use koord_model::resources::{CPU, MEMORY};
use serde_json::json;

#[test]
fn pods_of_one_workload_share_a_shape() {
    let mut world = TestCluster::default();
    let spec = json!({"spec": {
        "initContainers": [{"name": "i", "image": "i", "resources": {"requests": {"cpu": "2"}}}],
        "containers": [{"name": "c", "image": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
        "overhead": {"cpu": "100m"},
    }});
    let pods: Vec<_> = (0..50)
        .map(|i| world.pod(&format!("p{i}"), "n", spec.clone()))
        .collect();
    assert!(
        pods.iter()
            .all(|pod| Arc::ptr_eq(&pod.shape, &pods[0].shape))
    );
    let shape = &pods[0].shape;
    assert_eq!(
        (shape.requests.get(CPU), shape.requests.get(MEMORY)),
        (2100, 1 << 30)
    );
    assert_eq!(
        (
            shape.main_requests.get(CPU),
            shape.main_requests.get(MEMORY)
        ),
        (500, 1 << 30)
    );
    world.pod("other", "n", json!({"spec": {"priority": 7}}));
    assert_eq!(world.shapes.len(), 2);
    drop((pods, std::mem::take(&mut world.pods)));
    world.shapes.tidy();
    assert!(world.shapes.is_empty());
}

#[test]
fn unparsable_fields_are_reported() {
    let mut world = TestCluster::default();
    let node = world.node("n", json!({
        "metadata": {"annotations": {"node.koordinator.sh/raw-allocatable": "{\"cpu\": \"lots\"}"}},
        "status": {"allocatable": {"cpu": "2", "memory": "1Q1"}},
    }));
    assert_eq!(
        (node.allocatable.get(CPU), node.raw_allocatable.get(CPU)),
        (2000, 2000)
    );
    assert!(
        node.problems[0].contains("status.allocatable.memory") && node.problems[0].contains("1Q1"),
        "{node:?}"
    );
    assert!(
        node.problems[1].contains("raw-allocatable") && node.problems[1].contains("lots"),
        "{node:?}"
    );
    let raw = world.node("r", json!({"metadata": {"annotations": {"node.koordinator.sh/raw-allocatable": "{\"cpu\": \"1\"}"}}}));
    assert_eq!(
        (raw.allocatable.get(CPU), raw.raw_allocatable.get(CPU)),
        (4000, 1000)
    );
    let pod = world.pod("p", "n", json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "much"}}}]}}));
    assert!(
        pod.shape
            .malformed
            .as_ref()
            .unwrap()
            .contains("spec.containers[0].resources.requests.cpu")
    );
}

#[test]
fn usage_is_read_in_milli_and_bytes() {
    let mut world = TestCluster::default();
    world.node("n", json!({}));
    world.pod("p", "n", json!({}));
    world.usage(
        "n",
        json!({"cpu": "1500m", "memory": "1Ki"}),
        json!({"cpu": "1"}),
        &[("p", json!({"cpu": "500m"}))],
    );
    let snapshot = world.snapshot();
    let usage = &snapshot.usage["n"];
    assert_eq!(
        usage
            .node
            .as_ref()
            .map(|node| (node.get(CPU), node.get(MEMORY))),
        Some((1500, 1024))
    );
    assert_eq!(
        (usage.system.get(CPU), usage.pods[0].usage.get(CPU)),
        (1000, 500)
    );
    assert_eq!(usage.updated, Some(world.now));
}

#[test]
fn pods_and_nodes_are_found_by_name() {
    let mut world = TestCluster::default();
    for node in ["b", "a"] {
        world.node(node, json!({}));
        world.pod(&format!("on-{node}"), node, json!({}));
    }
    world.pod("done", "a", json!({"status": {"phase": "Succeeded"}}));
    let snapshot = world.snapshot();
    let names = |pods: Vec<&Arc<PodInfo>>| {
        pods.into_iter()
            .map(|pod| pod.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(snapshot.pods_on("a").collect()), ["done", "on-a"]);
    assert_eq!(names(snapshot.active_on("a").collect()), ["on-a"]);
    assert!(snapshot.pods_on("c").next().is_none() && snapshot.node("c").is_none());
    assert_eq!(&*snapshot.node("b").unwrap().name, "b");
    assert_eq!(&*snapshot.pod("default", "on-b").unwrap().name, "on-b");
    assert!(snapshot.pod("other", "on-b").is_none());
}
