//! Pods that carry the annotation of a pre-allocation that then failed.

use super::*;

/// Creates a reservation `r` that annotated pod `p` on `n`, and then was not placed.
fn half_placed(gates: &[&str]) -> ReservationWorld {
    let mut world = ReservationWorld::with(&json!({}), gates);
    world.node("n", 10);
    running(&mut world, "p", "4", "web");
    world.fail_last_write = true;
    pre_allocate(&mut world, "r", "6", "web", json!({}));
    world.run();
    assert_eq!(world.result_of("p"), "n (r)");
    assert_eq!(world.status("r")["phase"], Value::Null);
    world.fail_last_write = false;
    world
}

fn cordon(world: &mut ReservationWorld, name: &str, on: bool) {
    let node = world.nodes.get_mut(name).unwrap();
    merge(node, &json!({"spec": {"unschedulable": on}}));
    let node: Node = serde_json::from_value(node.clone()).unwrap();
    world.engine.node_applied(Arc::new(node), world.now);
}

/// Lets another reservation absorb `p`, and checks that a third finds it taken.
fn absorb_again(world: &mut ReservationWorld) {
    pre_allocate(world, "s", "6", "web", json!({}));
    while world.engine.schedule_one(world.now).is_some() {}
    // Its kubelet updates the pod before the annotation is written.
    world.deliver("p");
    pre_allocate(world, "t", "4", "web", json!({}));
    while world.engine.schedule_one(world.now).is_some() {}
    world.later(60);
    assert_eq!(world.result_of("p"), "n (s)");
    assert_eq!(world.status("s")["currentOwners"][0]["name"], "p");
    assert_eq!(world.status("t")["phase"], "Available");
    assert_eq!(world.status("t").get("currentOwners"), None);
    assert_eq!(world.booked("n"), 10_000);
}

#[test]
fn failed_placement_moved_elsewhere_frees_pod() {
    let mut world = half_placed(&[]);
    cordon(&mut world, "n", true);
    world.node("m", 8);
    world.later(60);
    assert_eq!(world.status("r")["nodeName"], "m");
    assert_eq!(world.status("r").get("currentOwners"), None);
    assert_eq!(world.result_of("p"), "n");
    cordon(&mut world, "n", false);
    absorb_again(&mut world);
}

#[test]
fn deleted_unplaced_reservation_frees_pod() {
    let mut world = half_placed(&[]);
    world.unreserve("r");
    world.run();
    assert_eq!(world.result_of("p"), "n");
    absorb_again(&mut world);
    let mut world = half_placed(&["ExpirePendingReservations"]);
    cordon(&mut world, "n", true);
    world.later(25 * 3600);
    assert_eq!(world.status("r")["phase"], "Failed");
    assert_eq!(world.result_of("p"), "n");
    cordon(&mut world, "n", false);
    absorb_again(&mut world);
    // A reservation that was placed and deleted is different: a gate decides whether its owners' annotations
    // are removed.
    world.unreserve("s");
    world.run();
    assert_eq!(world.result_of("p"), "n (s)");
}

#[test]
fn stale_annotation_keeps_no_pod() {
    // The write that removes the annotation is lost.
    let mut world = half_placed(&[]);
    world.unreserve("r");
    drop(world.engine.take_outputs());
    assert_eq!(world.result_of("p"), "n (r)");
    absorb_again(&mut world);
    for pods_first in [false, true] {
        world.restart(pods_first);
        assert_eq!(world.booked("n"), 10_000);
    }
    let mut world = half_placed(&[]);
    cordon(&mut world, "n", true);
    world.node("m", 8);
    let annotated = world.pods["p"].clone();
    world.later(60);
    world.pods.insert("p".to_owned(), annotated);
    world.deliver("p");
    cordon(&mut world, "n", false);
    absorb_again(&mut world);
    // As long as the reservation may still be placed, it keeps the pods that it annotated.
    let mut world = half_placed(&[]);
    world.fail_last_write = true;
    world.later(60);
    pre_allocate(&mut world, "s", "3", "web", json!({}));
    world.fail_last_write = false;
    world.run();
    assert_eq!(world.status("s")["nodeName"], "n");
    assert_eq!(world.result_of("p"), "n (r)");
}

#[test]
fn deleted_reservation_wakes_waiting_reservation() {
    let mut world = half_placed(&[]);
    world.fail_last_write = true;
    let must = json!({"metadata": {"labels": {RESERVATION_PRE_ALLOCATION_REQUIRED: "true"}}});
    pre_allocate(&mut world, "s", "6", "web", must);
    world.run();
    assert!(
        world.last_message("s").contains(NO_POD),
        "{}",
        world.last_message("s")
    );
    world.fail_last_write = false;
    world.unreserve("r");
    drop(world.engine.take_outputs());
    world.later(20);
    assert_eq!(world.result_of("p"), "n (s)");
}

/// An ended reservation keeps no pods either, although it still exists.
#[test]
fn ended_reservation_wakes_waiting_reservation() {
    for phase in ["Failed", "Succeeded"] {
        let mut world = half_placed(&[]);
        world.fail_last_write = true;
        let must = json!({"metadata": {"labels": {RESERVATION_PRE_ALLOCATION_REQUIRED: "true"}}});
        pre_allocate(&mut world, "s", "6", "web", must);
        world.run();
        assert!(
            world.last_message("s").contains(NO_POD),
            "{}",
            world.last_message("s")
        );
        world.fail_last_write = false;
        world.edit("r", json!({"status": {"phase": phase}}));
        drop(world.engine.take_outputs());
        world.later(20);
        assert_eq!(world.result_of("p"), "n (s)", "{phase}");
    }
}

#[test]
fn stale_annotation_is_removed_for_other_pod() {
    let mut world = half_placed(&[]);
    // This pod fills the reservation better.
    running(&mut world, "p2", "5", "web");
    world.later(60);
    assert_eq!(world.status("r")["phase"], "Available");
    assert_eq!(world.result_of("p2"), "n (r)");
    assert_eq!(world.result_of("p"), "n");
    let owners = &world.status("r")["currentOwners"];
    assert_eq!(owners.as_array().map(Vec::len), Some(1), "{owners}");
    assert_eq!(owners[0]["name"], "p2");
    assert_eq!(world.booked("n"), 10_000);
    // If the same pod is absorbed again, its annotation is not removed.
    let mut world = half_placed(&[]);
    world.fail_last_write = true;
    world.later(60);
    world.fail_last_write = false;
    world.later(600);
    assert_eq!(world.status("r")["currentOwners"][0]["name"], "p");
    assert_eq!(world.result_of("p"), "n (r)");
    // Nothing changes as long as no write succeeds.
    let mut world = half_placed(&[]);
    running(&mut world, "p2", "5", "web");
    world.broken = true;
    world.later(60);
    assert_eq!(
        (world.result_of("p"), world.result_of("p2")),
        ("n (r)".to_owned(), "n".to_owned())
    );
    // The better pod is gone when the reservation is tried again.
    world.pod_gone("p2");
    world.broken = false;
    world.later(600);
    assert_eq!(world.result_of("p"), "n (r)");
    assert_eq!(world.status("r")["currentOwners"][0]["name"], "p");
}
