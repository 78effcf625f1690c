//! Pre-allocation over pods that have CPUs, NUMA nodes or devices: these become part of the reservation's
//! allocation.

use super::hardware::{both, bound};
use super::*;
use koord_api::labels::RESERVATION_PRE_ALLOCATION_REQUIRED;

fn ahead() -> Value {
    json!({"spec": {"preAllocation": true, "allocatePolicy": "Restricted"}})
}

fn must() -> Value {
    let label = json!({RESERVATION_PRE_ALLOCATION_REQUIRED: "true"});
    both(ahead(), json!({"metadata": {"labels": label}}))
}

fn several() -> Value {
    let policy = json!({"preAllocationPolicy": {"enableMultiple": true}});
    both(ahead(), json!({ "spec": policy }))
}

fn single() -> Value {
    json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"})
}

#[test]
fn bound_cpus_are_taken_over() {
    for slow in [false, true] {
        let mut world = World::with_hardware(&[]);
        world.slow = slow;
        world.machine("n", 0, json!({}));
        world.asks("p", "cpu=4", "web", bound());
        world.run();
        world.asks("q", "cpu=8", "other", bound());
        world.run();
        assert_eq!(world.lot("p"), "n: 0-3");
        assert_eq!(world.lot("q"), "n: 8-15");
        // Four CPUs are free, which is not enough without those of the pod.
        world.reserves("plain", "cpu=8", "web", bound(), json!({}));
        world.run();
        assert_eq!(world.status("plain")["phase"], Value::Null);
        world.unreserve("plain");
        world.reserves("r", "cpu=8", "web", bound(), ahead());
        world.run();
        assert_eq!(
            world.status("r")["phase"],
            "Available",
            "{}",
            world.word("r")
        );
        assert_eq!(world.has("r"), "0-7");
        assert_eq!(world.lot("p"), "n (r): 0-3");
        // Owners get the rest, other pods nothing, and what the pod frees returns to the reservation.
        for pods_first in [false, true] {
            let mut world = World {
                reservations: world.reservations.clone(),
                pods: world.pods.clone(),
                nodes: world.nodes.clone(),
                shown: Vec::new(),
                ..World::with_hardware(&[])
            };
            world.machine("n", 0, json!({}));
            world.restart(pods_first);
            world.asks("owner", "cpu=4", "web", bound());
            world.asks("stranger", "cpu=2", "other", bound());
            world.run();
            assert_eq!(world.lot("owner"), "n (r): 4-7");
            assert!(world.word("stranger").contains("Insufficient cpu"));
            world.pod_gone("p");
            world.asks("next", "cpu=4", "web", bound());
            world.later(60);
            assert_eq!(world.lot("next"), "n (r): 0-3");
        }
    }
}

#[test]
fn devices_are_taken_over() {
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
        let mut world = World::with_hardware(&[]);
        world.machine("n", 4, json!({}));
        world.asks("p", pod, "web", json!({}));
        world.run();
        for (at, other) in others.iter().enumerate() {
            world.asks(&format!("q{at}"), other, "other", json!({}));
            world.run();
        }
        world.reserves("r", asked, "web", json!({}), must());
        world.run();
        let what = format!("{pod} in {asked}: {}", world.word("r"));
        assert_eq!(world.status("r")["phase"], "Available", "{what}");
        assert_eq!(world.has("r"), expected, "{what}");
        assert!(world.fate("p").ends_with("(r)"), "{what}");
        for pods_first in [false, true] {
            world.restart(pods_first);
            assert!(world.engine.cluster().nodes().books_balance());
        }
    }
    // It gets the GPUs of the pod, although others are closer together.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 4, json!({}));
    for name in ["a", "b", "c", "d"] {
        world.asks(name, "gpu=100", "other", json!({}));
        world.run();
    }
    assert_eq!([world.lot("a"), world.lot("c")], ["n: gpu 0", "n: gpu 2"]);
    world.pod_gone("a");
    world.pod_gone("c");
    world.asks("p", "gpu=200", "web", json!({}));
    world.run();
    assert_eq!(world.lot("p"), "n: gpu 0 2");
    world.pod_gone("b");
    world.pod_gone("d");
    world.reserves("r", "gpu=200", "web", json!({}), must());
    world.run();
    assert_eq!(world.has("r"), "gpu 0 2", "{}", world.word("r"));
    // What is left of the reservation is for owners.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 4, json!({}));
    world.asks("p", "gpu=200", "web", json!({}));
    world.run();
    world.reserves("r", "gpu=400", "web", json!({}), ahead());
    world.run();
    assert_eq!(world.has("r"), "gpu 0 1 2 3");
    world.asks("stranger", "gpu=50", "other", json!({}));
    world.asks("owner", "gpu=200", "web", json!({}));
    world.run();
    assert_eq!(world.lot("owner"), "n (r): gpu 2 3");
    assert!(world.word("stranger").contains("Insufficient"));
    world.pod_gone("p");
    world.asks("next", "gpu=100", "web", json!({}));
    world.later(60);
    assert_eq!(world.lot("next"), "n (r): gpu 0");
}

#[test]
fn numa_nodes_are_taken_over() {
    let mut world = World::with_hardware(&[]);
    world.machine("n", 0, single());
    world.asks("p", "cpu=6", "web", json!({}));
    world.run();
    world.asks("q", "cpu=2", "other", json!({}));
    world.run();
    assert_eq!(world.lot("p"), "n: 0: cpu 6");
    assert_eq!(world.lot("q"), "n: 1: cpu 2");
    // The other NUMA node has enough, but the pod would not be part of the reservation there.
    world.reserves("r", "cpu=6", "web", json!({}), must());
    world.run();
    assert_eq!(world.has("r"), "0: cpu 6", "{}", world.word("r"));
    assert_eq!(world.fate("p"), "n (r)");
    // The reservation needs more than the pod's NUMA node has left.
    world.asks("p2", "cpu=6", "db", json!({}));
    world.run();
    assert_eq!(world.lot("p2"), "n: 1: cpu 6");
    world.reserves("s", "cpu=8", "db", json!({}), must());
    world.run();
    assert_eq!(world.status("s")["phase"], Value::Null);
    world.pod_gone("q");
    world.later(60);
    assert_eq!(world.has("s"), "1: cpu 8", "{}", world.word("s"));
    // The pod ties the reservation to its NUMA node, although the other would do as well.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 0, single());
    for (name, app) in [("q", "other"), ("p", "web")] {
        world.asks(name, "cpu=6", app, json!({}));
        world.run();
    }
    assert_eq!(world.lot("p"), "n: 1: cpu 6");
    world.pod_gone("q");
    world.reserves("r", "cpu=6", "web", json!({}), must());
    world.run();
    assert_eq!(world.has("r"), "1: cpu 6", "{}", world.word("r"));
    // CPUs and devices of one NUMA node, of which the pod has some.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 4, single());
    world.asks("p", "cpu=4 gpu=100", "web", bound());
    world.run();
    assert_eq!(world.lot("p"), "n: 0-3 | 0: cpu 4 | gpu 0");
    world.asks("q", "cpu=8 gpu=100", "other", bound());
    world.run();
    assert_eq!(world.lot("q"), "n: 8-15 | 1: cpu 8 | gpu 2");
    world.reserves("r", "cpu=8 gpu=200", "web", bound(), ahead());
    world.run();
    assert_eq!(
        world.has("r"),
        "0-7 | 0: cpu 8 | gpu 0 1",
        "{}",
        world.word("r")
    );
}

#[test]
fn who_cannot_be_inside_is_not_taken_in() {
    // `a` would fill the reservation best, but shares its GPU with another pod.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    world.asks("a", "cpu=4 gpu=50", "web", json!({}));
    world.run();
    world.asks("x", "cpu=1 gpu=50", "other", json!({}));
    world.run();
    assert_eq!([world.lot("a"), world.lot("x")], ["n: gpu 0", "n: gpu 0"]);
    world.reserves("r", "cpu=4 gpu=100", "web", json!({}), must());
    world.run();
    let why = "node(s) no pod(s) to meet the pre-allocation requirements";
    assert!(world.word("r").contains(why), "{}", world.word("r"));
    // A free GPU is available without absorbing it.
    world.reserves("s", "cpu=4 gpu=100", "web", json!({}), ahead());
    world.run();
    assert_eq!(world.has("s"), "gpu 1");
    assert_eq!(world.fate("a"), "n");
    world.unreserve("s");
    world.run();
    world.asks("b", "cpu=2 gpu=100", "web", json!({}));
    world.later(60);
    assert_eq!(world.lot("b"), "n (r): gpu 1");
    assert_eq!(world.has("r"), "gpu 1");
    assert_eq!(world.fate("a"), "n");
}

#[test]
fn devices_of_several_are_taken_over_together() {
    let mut world = World::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    for name in ["a", "b"] {
        world.asks(name, "cpu=1 gpu=100", "web", json!({}));
        world.run();
    }
    world.reserves("one", "cpu=4 gpu=200", "web", json!({}), ahead());
    world.run();
    assert_eq!(world.status("one")["phase"], Value::Null);
    world.unreserve("one");
    world.reserves("r", "cpu=4 gpu=200", "web", json!({}), several());
    world.run();
    assert_eq!(world.has("r"), "gpu 0 1", "{}", world.word("r"));
    assert_eq!([world.fate("a"), world.fate("b")], ["n (r)", "n (r)"]);
    // With shares of one GPU.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 1, json!({}));
    for name in ["a", "b"] {
        world.asks(name, "cpu=1 gpu=50", "web", json!({}));
        world.run();
    }
    world.reserves("r", "cpu=4 gpu=100", "web", json!({}), several());
    world.run();
    assert_eq!(world.has("r"), "gpu 0", "{}", world.word("r"));
    assert_eq!([world.fate("a"), world.fate("b")], ["n (r)", "n (r)"]);
}

#[test]
fn what_failed_half_way_holds_nothing() {
    let mut world = World::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    world.asks("p", "cpu=4 gpu=100", "web", bound());
    world.run();
    world.half = true;
    world.reserves("r", "cpu=8 gpu=200", "web", bound(), ahead());
    world.run();
    assert_eq!(world.fate("p"), "n (r)");
    assert_eq!(world.status("r")["phase"], Value::Null);
    // What the reservation did not get is free; what the pod has is not.
    world.asks("x", "cpu=12", "other", bound());
    world.asks("y", "gpu=100", "other", json!({}));
    world.run();
    assert_eq!([world.lot("x"), world.lot("y")], ["n: 4-15", "n: gpu 1"]);
    world.pod_gone("x");
    world.pod_gone("y");
    world.half = false;
    world.later(60);
    assert_eq!(world.has("r"), "0-3,8-11 | gpu 0 1", "{}", world.word("r"));
}

/// Upstream's cases with NUMA nodes and CPUs: eight CPUs around the four of a pod, and exactly its four.
#[test]
fn eight_cpus_around_four() {
    for (asked, expected) in [
        ("cpu=8 memory=16Gi", "0-3,8-11"),
        ("cpu=4 memory=8Gi", "0-3"),
    ] {
        let mut world = World::with_hardware(&[]);
        world.machine("n", 0, json!({}));
        let status = json!({"cpuset": "0-3", "numaNodeResources":
            [{"node": 0, "resources": {"cpu": "4", "memory": "8Gi"}}]});
        let note = json!({annotations::RESOURCE_STATUS: status.to_string()});
        let there = json!({"metadata": {"annotations": note}, "spec": {"nodeName": "n"}});
        world.asks("pre-pod-1", "cpu=4 memory=8Gi", "web", both(bound(), there));
        world.reserves("r", asked, "web", bound(), ahead());
        world.run();
        assert_eq!(world.has("r"), expected, "{}", world.word("r"));
        assert_eq!(world.fate("pre-pod-1"), "n (r)");
    }
}
