//! Pre-allocation over pods that have CPUs, NUMA nodes or devices: these become part of the reservation's
//! allocation.

use super::hardware::{bound, merged};
use super::*;
use koord_api::labels::RESERVATION_PRE_ALLOCATION_REQUIRED;

fn optional() -> Value {
    json!({"spec": {"preAllocation": true, "allocatePolicy": "Restricted"}})
}

fn required() -> Value {
    let label = json!({RESERVATION_PRE_ALLOCATION_REQUIRED: "true"});
    merged(optional(), json!({"metadata": {"labels": label}}))
}

fn several() -> Value {
    let policy = json!({"preAllocationPolicy": {"enableMultiple": true}});
    merged(optional(), json!({ "spec": policy }))
}

fn single() -> Value {
    json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"})
}

#[test]
fn bound_cpus_are_absorbed() {
    for decide_all_first in [false, true] {
        let mut world = ReservationWorld::with_hardware(&[]);
        world.decide_all_first = decide_all_first;
        world.machine("n", 0, json!({}));
        world.pod_with("p", "cpu=4", "web", bound());
        world.run();
        world.pod_with("q", "cpu=8", "other", bound());
        world.run();
        assert_eq!(world.allocation("p"), "n: 0-3");
        assert_eq!(world.allocation("q"), "n: 8-15");
        // Four CPUs are free, which is not enough without those of the pod.
        world.reserve_with("plain", "cpu=8", "web", bound(), json!({}));
        world.run();
        assert_eq!(world.status("plain")["phase"], Value::Null);
        world.unreserve("plain");
        world.reserve_with("r", "cpu=8", "web", bound(), optional());
        world.run();
        assert_eq!(
            world.status("r")["phase"],
            "Available",
            "{}",
            world.last_message("r")
        );
        assert_eq!(world.reserved("r"), "0-7");
        assert_eq!(world.allocation("p"), "n (r): 0-3");
        // Owners get the rest, other pods nothing, and what the pod frees returns to the reservation.
        for pods_first in [false, true] {
            let mut world = ReservationWorld {
                reservations: world.reservations.clone(),
                pods: world.pods.clone(),
                nodes: world.nodes.clone(),
                shown: Vec::new(),
                ..ReservationWorld::with_hardware(&[])
            };
            world.machine("n", 0, json!({}));
            world.restart(pods_first);
            world.pod_with("owner", "cpu=4", "web", bound());
            world.pod_with("stranger", "cpu=2", "other", bound());
            world.run();
            assert_eq!(world.allocation("owner"), "n (r): 4-7");
            assert!(world.last_message("stranger").contains("Insufficient cpu"));
            world.pod_gone("p");
            world.pod_with("next", "cpu=4", "web", bound());
            world.later(60);
            assert_eq!(world.allocation("next"), "n (r): 0-3");
        }
    }
}

#[test]
fn devices_are_absorbed() {
    // What the pod and others have of four GPUs, what the reservation requests, and what it gets.
    for (pod, others, asked, expected) in [
        ("gpu=200", &["gpu=100"][..], "gpu=300", "gpu 0 1 3"),
        ("gpu=200", &["gpu=200"], "gpu=200", "gpu 0 1"),
        ("gpu=50", &["gpu=300"], "gpu=100", "gpu 0"),
        ("gpu=50", &["gpu=300"], "gpu=50", "gpu 0"),
        ("gpu=100", &["gpu=100"], "gpu=100", "gpu 0"),
        (
            "gpu-memory=40Gi",
            &["gpu=300"],
            "gpu-core=50 gpu-memory=60Gi",
            "gpu 0",
        ),
        // Devices of a type that the reservation does not request stay with the pod.
        ("cpu=4 gpu=100", &[], "cpu=6", ""),
    ] {
        let mut world = ReservationWorld::with_hardware(&[]);
        world.machine("n", 4, json!({}));
        world.pod_with("p", pod, "web", json!({}));
        world.run();
        for (at, other) in others.iter().enumerate() {
            world.pod_with(&format!("q{at}"), other, "other", json!({}));
            world.run();
        }
        world.reserve_with("r", asked, "web", json!({}), required());
        world.run();
        let case = format!("{pod} in {asked}: {}", world.last_message("r"));
        assert_eq!(world.status("r")["phase"], "Available", "{case}");
        assert_eq!(world.reserved("r"), expected, "{case}");
        assert!(world.result_of("p").ends_with("(r)"), "{case}");
        for pods_first in [false, true] {
            world.restart(pods_first);
            assert!(world.engine.cluster().nodes().books_balance());
        }
    }
    // It gets the GPUs of the pod, although others are closer together.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 4, json!({}));
    for name in ["a", "b", "c", "d"] {
        world.pod_with(name, "gpu=100", "other", json!({}));
        world.run();
    }
    assert_eq!(
        [world.allocation("a"), world.allocation("c")],
        ["n: gpu 0", "n: gpu 2"]
    );
    world.pod_gone("a");
    world.pod_gone("c");
    world.pod_with("p", "gpu=200", "web", json!({}));
    world.run();
    assert_eq!(world.allocation("p"), "n: gpu 0 2");
    world.pod_gone("b");
    world.pod_gone("d");
    world.reserve_with("r", "gpu=200", "web", json!({}), required());
    world.run();
    assert_eq!(
        world.reserved("r"),
        "gpu 0 2",
        "{}",
        world.last_message("r")
    );
    // What is left of the reservation is for owners.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 4, json!({}));
    world.pod_with("p", "gpu=200", "web", json!({}));
    world.run();
    world.reserve_with("r", "gpu=400", "web", json!({}), optional());
    world.run();
    assert_eq!(world.reserved("r"), "gpu 0 1 2 3");
    world.pod_with("stranger", "gpu=50", "other", json!({}));
    world.pod_with("owner", "gpu=200", "web", json!({}));
    world.run();
    assert_eq!(world.allocation("owner"), "n (r): gpu 2 3");
    assert!(world.last_message("stranger").contains("Insufficient"));
    world.pod_gone("p");
    world.pod_with("next", "gpu=100", "web", json!({}));
    world.later(60);
    assert_eq!(world.allocation("next"), "n (r): gpu 0");
}

#[test]
fn numa_nodes_are_absorbed() {
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 0, single());
    world.pod_with("p", "cpu=6", "web", json!({}));
    world.run();
    world.pod_with("q", "cpu=2", "other", json!({}));
    world.run();
    assert_eq!(world.allocation("p"), "n: 0: cpu 6");
    assert_eq!(world.allocation("q"), "n: 1: cpu 2");
    // The other NUMA node has enough, but the pod would not be part of the reservation there.
    world.reserve_with("r", "cpu=6", "web", json!({}), required());
    world.run();
    assert_eq!(
        world.reserved("r"),
        "0: cpu 6",
        "{}",
        world.last_message("r")
    );
    assert_eq!(world.result_of("p"), "n (r)");
    // The reservation needs more than the pod's NUMA node has left.
    world.pod_with("p2", "cpu=6", "db", json!({}));
    world.run();
    assert_eq!(world.allocation("p2"), "n: 1: cpu 6");
    world.reserve_with("s", "cpu=8", "db", json!({}), required());
    world.run();
    assert_eq!(world.status("s")["phase"], Value::Null);
    world.pod_gone("q");
    world.later(60);
    assert_eq!(
        world.reserved("s"),
        "1: cpu 8",
        "{}",
        world.last_message("s")
    );
    // The pod ties the reservation to its NUMA node, although the other would do as well.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 0, single());
    for (name, app) in [("q", "other"), ("p", "web")] {
        world.pod_with(name, "cpu=6", app, json!({}));
        world.run();
    }
    assert_eq!(world.allocation("p"), "n: 1: cpu 6");
    world.pod_gone("q");
    world.reserve_with("r", "cpu=6", "web", json!({}), required());
    world.run();
    assert_eq!(
        world.reserved("r"),
        "1: cpu 6",
        "{}",
        world.last_message("r")
    );
    // CPUs and devices of one NUMA node, of which the pod has some.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 4, single());
    world.pod_with("p", "cpu=4 gpu=100", "web", bound());
    world.run();
    assert_eq!(world.allocation("p"), "n: 0-3 | 0: cpu 4 | gpu 0");
    world.pod_with("q", "cpu=8 gpu=100", "other", bound());
    world.run();
    assert_eq!(world.allocation("q"), "n: 8-15 | 1: cpu 8 | gpu 2");
    world.reserve_with("r", "cpu=8 gpu=200", "web", bound(), optional());
    world.run();
    assert_eq!(
        world.reserved("r"),
        "0-7 | 0: cpu 8 | gpu 0 1",
        "{}",
        world.last_message("r")
    );
}

#[test]
fn pod_with_shared_device_is_not_absorbed() {
    // `a` would fill the reservation best, but shares its GPU with another pod.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    world.pod_with("a", "cpu=4 gpu=50", "web", json!({}));
    world.run();
    world.pod_with("x", "cpu=1 gpu=50", "other", json!({}));
    world.run();
    assert_eq!(
        [world.allocation("a"), world.allocation("x")],
        ["n: gpu 0", "n: gpu 0"]
    );
    world.reserve_with("r", "cpu=4 gpu=100", "web", json!({}), required());
    world.run();
    let message = "node(s) no pod(s) to meet the pre-allocation requirements";
    assert!(
        world.last_message("r").contains(message),
        "{}",
        world.last_message("r")
    );
    // A free GPU is available without absorbing it.
    world.reserve_with("s", "cpu=4 gpu=100", "web", json!({}), optional());
    world.run();
    assert_eq!(world.reserved("s"), "gpu 1");
    assert_eq!(world.result_of("a"), "n");
    world.unreserve("s");
    world.run();
    world.pod_with("b", "cpu=2 gpu=100", "web", json!({}));
    world.later(60);
    assert_eq!(world.allocation("b"), "n (r): gpu 1");
    assert_eq!(world.reserved("r"), "gpu 1");
    assert_eq!(world.result_of("a"), "n");
}

#[test]
fn devices_of_several_pods_are_absorbed() {
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    for name in ["a", "b"] {
        world.pod_with(name, "cpu=1 gpu=100", "web", json!({}));
        world.run();
    }
    world.reserve_with("one", "cpu=4 gpu=200", "web", json!({}), optional());
    world.run();
    assert_eq!(world.status("one")["phase"], Value::Null);
    world.unreserve("one");
    world.reserve_with("r", "cpu=4 gpu=200", "web", json!({}), several());
    world.run();
    assert_eq!(
        world.reserved("r"),
        "gpu 0 1",
        "{}",
        world.last_message("r")
    );
    assert_eq!(
        [world.result_of("a"), world.result_of("b")],
        ["n (r)", "n (r)"]
    );
    // With shares of one GPU.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 1, json!({}));
    for name in ["a", "b"] {
        world.pod_with(name, "cpu=1 gpu=50", "web", json!({}));
        world.run();
    }
    world.reserve_with("r", "cpu=4 gpu=100", "web", json!({}), several());
    world.run();
    assert_eq!(world.reserved("r"), "gpu 0", "{}", world.last_message("r"));
    assert_eq!(
        [world.result_of("a"), world.result_of("b")],
        ["n (r)", "n (r)"]
    );
}

#[test]
fn half_failed_placement_holds_no_resources() {
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    world.pod_with("p", "cpu=4 gpu=100", "web", bound());
    world.run();
    world.fail_last_write = true;
    world.reserve_with("r", "cpu=8 gpu=200", "web", bound(), optional());
    world.run();
    assert_eq!(world.result_of("p"), "n (r)");
    assert_eq!(world.status("r")["phase"], Value::Null);
    // What the reservation did not get is free; what the pod has is not.
    world.pod_with("x", "cpu=12", "other", bound());
    world.pod_with("y", "gpu=100", "other", json!({}));
    world.run();
    assert_eq!(
        [world.allocation("x"), world.allocation("y")],
        ["n: 4-15", "n: gpu 1"]
    );
    world.pod_gone("x");
    world.pod_gone("y");
    world.fail_last_write = false;
    world.later(60);
    assert_eq!(
        world.reserved("r"),
        "0-3,8-11 | gpu 0 1",
        "{}",
        world.last_message("r")
    );
}

/// Upstream's cases with NUMA nodes and CPUs: eight CPUs around the four of a pod, and exactly its four.
#[test]
fn eight_cpus_around_four() {
    for (asked, expected) in [
        ("cpu=8 memory=16Gi", "0-3,8-11"),
        ("cpu=4 memory=8Gi", "0-3"),
    ] {
        let mut world = ReservationWorld::with_hardware(&[]);
        world.machine("n", 0, json!({}));
        let status = json!({"cpuset": "0-3", "numaNodeResources":
            [{"node": 0, "resources": {"cpu": "4", "memory": "8Gi"}}]});
        let note = json!({annotations::RESOURCE_STATUS: status.to_string()});
        let running = json!({"metadata": {"annotations": note}, "spec": {"nodeName": "n"}});
        world.pod_with(
            "pre-pod-1",
            "cpu=4 memory=8Gi",
            "web",
            merged(bound(), running),
        );
        world.reserve_with("r", asked, "web", bound(), optional());
        world.run();
        assert_eq!(world.reserved("r"), expected, "{}", world.last_message("r"));
        assert_eq!(world.result_of("pre-pod-1"), "n (r)");
    }
}
