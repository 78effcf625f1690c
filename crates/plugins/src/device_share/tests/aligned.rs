//! Alignment with `NodeNUMAResource`.

use super::*;

/// Creates an engine with a node of two NUMA nodes, each with four GPUs and eight CPUs.
fn aligned(args: Value, policy: &str) -> Engine {
    let mut engine = engine_with(args, crate::registry(), &["NodeNUMAResource"], &[]);
    let labels = json!({"node.koordinator.sh/numa-topology-policy": policy});
    engine.node_applied(node("n", labels), now());
    engine.object_changed(&device("n", devices(8)), now());
    let cpu = |id: u32| json!({"id": id, "core": id / 2, "socket": id / 8, "node": id / 8});
    let detail = json!({"detail": (0..16).map(cpu).collect::<Vec<_>>()}).to_string();
    let zone = |id: u32| {
        json!({"name": format!("node-{id}"), "type": "Node", "resources": [
            {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"}]})
    };
    let topology: koord_api::topology::v1alpha2::NodeResourceTopology =
        serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": "n", "annotations": {"node.koordinator.sh/cpu-topology": detail}},
            "topologyPolicies": [], "zones": [zone(0), zone(1)]
        }))
        .unwrap();
    let change = ObjectChange {
        kind: "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
        action: Action::ADD,
        old: None,
        new: Arc::new(topology),
    };
    engine.object_changed(&change, now());
    engine
}

#[test]
fn gpus_come_from_the_numa_nodes_of_the_cpus() {
    let cpus_and_gpus = |name: &str, gpus: u32, cpu: u32| {
        pod(name, json!({"nvidia.com/gpu": gpus, "cpu": cpu}), json!({}))
    };
    let mut engine = aligned(json!({}), "SingleNUMANode");
    assert_eq!(place(&mut engine, cpus_and_gpus("a", 1, 1)), "n: gpu 0");
    assert_eq!(
        place(&mut engine, cpus_and_gpus("b", 4, 4)),
        "n: gpu 4 5 6 7"
    );
    // CPUs are left on the other NUMA node only where GPUs are.
    assert_eq!(place(&mut engine, cpus_and_gpus("c", 2, 7)), "n: gpu 2 3");
    let refused = place(&mut engine, cpus_and_gpus("d", 1, 4));
    assert!(
        refused.starts_with("0/1 nodes are available: 1 "),
        "{refused}"
    );
    assert_eq!(place(&mut engine, cpus_and_gpus("e", 1, 0)), "n: gpu 1");

    // Too many GPUs for one NUMA node.
    let mut engine = aligned(json!({}), "SingleNUMANode");
    let refused = place(&mut engine, cpus_and_gpus("a", 5, 4));
    assert!(
        refused.starts_with("0/1 nodes are available: 1 "),
        "{refused}"
    );
    let mut engine = aligned(json!({}), "Restricted");
    assert_eq!(
        place(&mut engine, cpus_and_gpus("a", 5, 12)),
        "n: gpu 0 1 2 3 4"
    );

    // GPUs without alignment may be on any NUMA node.
    let off = json!({"disableDeviceNUMATopologyAlignment": true});
    let mut engine = aligned(off, "SingleNUMANode");
    assert_eq!(
        place(&mut engine, cpus_and_gpus("a", 5, 4)),
        "n: gpu 0 1 2 3 4"
    );
}
