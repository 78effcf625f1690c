use super::*;

#[test]
fn reservation_is_placed_used_and_counted() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    world.reserve("r", "6", "web", json!({}));
    world.run();
    let status = world.status("r");
    assert_eq!(
        (&status["phase"], &status["nodeName"]),
        (&json!("Available"), &json!("n1"))
    );
    assert_eq!(status["allocatable"], json!({"cpu": "6"}));
    assert_eq!(status["conditions"][1]["reason"], "Available");
    assert_eq!(world.booked("n1"), 6000);

    // Other pods do not get the reserved CPU; owners do, from the reservation first and then from the node.
    world.pod("other", "3", "db", json!({}));
    world.pod("owner", "4", "web", json!({}));
    world.run();
    assert_eq!(world.result_of("owner"), "n1 (r)");
    let message = "0/1 nodes are available: 1 Insufficient cpu.";
    assert_eq!(world.result_of("other"), message);
    assert_eq!(world.booked("n1"), 6000);
    assert_eq!(world.status("r")["allocated"], json!({"cpu": "4"}));
    let owners = json!([{"name": "owner", "namespace": "ns", "uid": "owner"}]);
    assert_eq!(world.status("r")["currentOwners"], owners);

    world.pod("larger", "3", "web", json!({}));
    world.run();
    assert_eq!(world.result_of("larger"), "n1 (r)");
    assert_eq!(world.booked("n1"), 7000);
    for pod in ["owner", "larger"] {
        world.pod_gone(pod);
    }
    world.run();
    assert_eq!(world.booked("n1"), 6000);
    assert_eq!(world.status("r").get("currentOwners"), None);
    assert_eq!(world.status("r")["allocated"], Value::Null);

    world.unreserve("r");
    world.later(60);
    assert_eq!(world.result_of("other"), "n1");
    assert_eq!(world.booked("n1"), 3000);
}

#[test]
fn one_owner_uses_up_a_reservation_for_once() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    world.reserve("r", "6", "web", json!({"spec": {"allocateOnce": null}}));
    world.run();
    for pod in ["a", "b"] {
        world.pod(pod, "2", "web", json!({}));
    }
    world.run();
    let mut fates = [world.result_of("a"), world.result_of("b")];
    fates.sort();
    assert_eq!(fates, ["n1", "n1 (r)"]);
    let status = world.status("r");
    assert_eq!(status["phase"], "Succeeded");
    assert_eq!(status["conditions"][1]["reason"], "Succeeded");
    assert_eq!(world.booked("n1"), 4000);
    // It stays in that phase when its owner is deleted, and is deleted in time.
    world.pod_gone("a");
    world.pod_gone("b");
    world.later(86_000);
    assert_eq!(world.status("r")["phase"], "Succeeded");
    world.later(500);
    assert!(world.reservations.is_empty());
}

#[test]
fn unschedulable_reservation_is_placed_later() {
    let mut world = ReservationWorld::new();
    world.node("n1", 4);
    world.reserve("r", "6", "web", json!({}));
    world.run();
    let message = "0/1 nodes are available: 1 Insufficient cpu.";
    assert_eq!(world.last_message("r"), message);
    let condition = &world.status("r")["conditions"][0];
    assert_eq!(
        (
            &condition["type"],
            &condition["status"],
            &condition["message"]
        ),
        (&json!("Scheduled"), &json!("False"), &json!(message))
    );
    assert_eq!(world.status("r").get("phase"), None);
    let writes = world.writes;
    world.later(600);
    assert_eq!(
        world.writes, writes,
        "the condition is written when it changes"
    );
    world.node("n2", 8);
    world.later(60);
    assert_eq!(world.status("r")["nodeName"], "n2");
    assert_eq!(world.status("r")["conditions"][0]["status"], "True");
}

#[test]
fn reservations_end_by_age_by_date_or_with_their_node() {
    for (name, spec, seconds, expected) in [
        ("age", json!({"ttl": "60s"}), 61, "Failed"),
        ("not yet", json!({"ttl": "60s"}), 60, "Available"),
        (
            "date",
            json!({"ttl": "24h", "expires": "2023-11-14T22:14:00Z"}),
            41,
            "Failed",
        ),
        (
            "date before age",
            json!({"expires": "2023-11-14T22:14:00Z"}),
            39,
            "Available",
        ),
        (
            "never",
            json!({"ttl": "0s", "expires": "2023-11-14T22:14:00Z"}),
            999,
            "Available",
        ),
    ] {
        let mut world = ReservationWorld::new();
        world.node("n1", 8);
        world.reserve("r", "6", "web", json!({ "spec": spec }));
        world.run();
        world.pod("owner", "2", "web", json!({}));
        world.later(seconds);
        assert_eq!(world.status("r")["phase"], expected, "{name}");
        let booked = if expected == "Failed" { 2000 } else { 6000 };
        assert_eq!(world.booked("n1"), booked, "{name}");
    }
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    world.reserve("r", "6", "web", json!({}));
    world.run();
    world.node_gone("n1");
    world.later(1);
    let ready = &world.status("r")["conditions"][1];
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("Expired"))
    );
    world.later(61);
    assert!(
        world.reservations.is_empty(),
        "without a node there is nothing to keep"
    );
}

#[test]
fn node_with_invalid_report_keeps_reservations() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    world.reserve("r", "4", "web", json!({}));
    world.run();
    assert_eq!(world.status("r")["phase"], "Available");
    let node = world.nodes.get_mut("n").unwrap();
    node["status"]["allocatable"]["memory"] = json!("much");
    let node: Node = serde_json::from_value(node.clone()).unwrap();
    world.engine.node_applied(Arc::new(node), world.now);
    world.later(120);
    assert_eq!(world.status("r")["phase"], "Available");
    world.restart(false);
    world.later(120);
    assert_eq!(world.status("r")["phase"], "Available");
    world.pod("p", "4", "web", json!({}));
    world.run();
    assert_eq!(world.result_of("p"), "n (r)");
}

#[test]
fn pending_reservation_expires_with_gate() {
    for (gates, expected) in [
        (&[][..], None),
        (&["ExpirePendingReservations"][..], Some("Failed")),
    ] {
        let mut world = ReservationWorld::with(&json!({}), gates);
        world.node("n1", 4);
        world.reserve("r", "6", "web", json!({"spec": {"ttl": "60s"}}));
        world.run();
        world.later(100);
        assert_eq!(world.status("r")["phase"].as_str(), expected);
    }
}

#[test]
fn failures_are_retried_and_deletions_clean_up() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    world.broken = true;
    world.reserve("r", "6", "web", json!({}));
    world.run();
    assert_eq!(world.booked("n1"), 0);
    world.broken = false;
    world.later(30);
    assert_eq!(world.status("r")["phase"], "Available");

    world.broken = true;
    world.pod("a", "2", "web", json!({}));
    world.run();
    assert_eq!(
        (world.result_of("a"), world.booked("n1")),
        ("binding rejected: no".to_owned(), 6000)
    );
    world.broken = false;
    world.later(30);
    assert_eq!(world.result_of("a"), "n1 (r)");
    assert_eq!(world.booked("n1"), 6000);

    // Deleted with owners: they keep what they have, the rest is free.
    world.unreserve("r");
    world.run();
    assert_eq!(world.booked("n1"), 2000);
    // Created again under the same name, it is a different reservation.
    world.reserve("r", "6", "web", json!({}));
    world.run();
    assert_eq!(world.status("r")["phase"], "Available");
    assert_eq!(world.booked("n1"), 8000);
    assert_eq!(world.status("r").get("currentOwners"), None);
}

#[test]
fn reservation_follows_node_in_status() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    world.node("n2", 8);
    world.reserve(
        "r",
        "6",
        "web",
        json!({"spec": {"template": {"spec": {"nodeName": "n1"}}}}),
    );
    world.run();
    assert_eq!(world.status("r")["nodeName"], "n1");
    world.edit("r", json!({"status": {"nodeName": "n2"}}));
    world.run();
    assert_eq!((world.booked("n1"), world.booked("n2")), (0, 6000));
    // Moved back, it is placed again.
    world.edit(
        "r",
        json!({"status": {"nodeName": null, "phase": "Pending"}}),
    );
    assert_eq!((world.booked("n1"), world.booked("n2")), (0, 0));
    world.run();
    assert_eq!(world.status("r")["nodeName"], "n1");
    // Resized, it holds the amount in its status.
    world.edit("r", json!({"status": {"allocatable": {"cpu": "3"}}}));
    assert_eq!(world.booked("n1"), 3000);
}

#[test]
fn restart_restores_owner_usage() {
    for pods_first in [true, false] {
        let mut world = ReservationWorld::new();
        world.node("n1", 8);
        world.reserve(
            "r",
            "6",
            "web",
            json!({"spec": {"allocatePolicy": "Restricted"}}),
        );
        world.run();
        world.pod("a", "4", "web", json!({}));
        world.run();
        world.restart(pods_first);
        let writes = world.writes;
        world.pod("b", "3", "web", json!({}));
        world.pod("c", "2", "web", json!({}));
        world.pod("d", "3", "db", json!({}));
        world.run();
        assert_eq!(world.result_of("c"), "n1 (r)");
        assert!(
            world.result_of("b").contains("Insufficient cpu by node"),
            "{}",
            world.result_of("b")
        );
        assert!(
            world.result_of("d").contains("Insufficient cpu"),
            "{}",
            world.result_of("d")
        );
        assert_eq!(world.booked("n1"), 6000);
        assert_eq!(world.writes, writes + 1, "only the new owner is written");
    }
}

#[test]
fn gate_cleans_owners_of_deleted_reservation() {
    let mut world = ReservationWorld::with(&json!({}), &["CleanExpiredReservationAllocated"]);
    world.node("n1", 8);
    world.reserve("r", "6", "web", json!({}));
    world.run();
    world.pod("a", "4", "web", json!({}));
    world.run();
    assert_eq!(world.result_of("a"), "n1 (r)");
    world.unreserve("r");
    world.run();
    assert_eq!(world.result_of("a"), "n1");
}

#[test]
fn invalid_objects_are_reported_and_isolated() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    let key = annotations::RESERVATION_RESTRICTED_OPTIONS;
    world.reserve(
        "bad-options",
        "1",
        "web",
        json!({"spec": {"allocatePolicy": "Restricted"}, "metadata": {"annotations": {key: "[x"}}}),
    );
    assert!(world.engine.take_outputs().iter().any(|output| {
        matches!(output, Output::Problem(p) if p.message.contains(key) && p.message.contains("[x"))
    }));
    let amount = json!([{"name": "c", "resources": {"requests": {"cpu": "1x"}}}]);
    world.reserve(
        "bad-amount",
        "1",
        "web",
        json!({"spec": {"template": {"spec":
        {"containers": amount}}}}),
    );
    world.reserve(
        "good",
        "2",
        "db",
        json!({"spec": {"allocatePolicy": "Restricted"}}),
    );
    world.run();
    assert!(
        world.last_message("bad-amount").contains("\"1x\""),
        "{}",
        world.last_message("bad-amount")
    );
    assert_eq!(world.status("good")["phase"], "Available");
    // Placed, but no pod can use it.
    assert_eq!(world.status("bad-options")["phase"], "Available");
    let pod_key = annotations::RESERVATION_AFFINITY;
    world.pod(
        "bad-pod",
        "1",
        "web",
        json!({"metadata": {"annotations": {pod_key: "{"}}}),
    );
    world.pod("web", "1", "web", json!({}));
    let copied =
        json!({"metadata": {"annotations": {annotations::RESERVATION_ALLOCATED: "{\"uid"}}});
    world.pod("copied", "1", "web", copied);
    world.run();
    assert!(
        world.result_of("bad-pod").contains(pod_key),
        "{}",
        world.result_of("bad-pod")
    );
    assert_eq!(
        (world.result_of("web"), world.result_of("copied")),
        ("n1".to_owned(), "n1".to_owned())
    );
    assert_eq!(world.booked("n1"), 5000);
}

#[test]
fn opened_reservation_wakes_owners_only() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    let waiting = json!({"phase": "Waiting", "nodeName": "n1", "allocatable": {"cpu": "6"}});
    world.reserve("r", "6", "web", json!({ "status": waiting }));
    for (name, app) in [("web", "web"), ("db", "db")] {
        world.pod(name, "4", app, json!({}));
    }
    world.run();
    let tries = |world: &ReservationWorld, name: &str| {
        world.messages.iter().filter(|(n, _)| n == name).count()
    };
    assert_eq!((tries(&world, "web"), tries(&world, "db")), (1, 1));
    // Only the node was too small; this plugin did not reject the pod.
    assert!(
        world.result_of("web").ends_with("1 Insufficient cpu."),
        "{}",
        world.result_of("web")
    );
    world.edit("r", json!({"status": {"phase": "Available"}}));
    world.run();
    assert_eq!(world.result_of("web"), "n1 (r)");
    assert_eq!(tries(&world, "db"), 1, "owners free nothing for other pods");
    // What a reservation frees is available to others.
    world.edit("r", json!({"status": {"allocatable": {"cpu": "4"}}}));
    world.run();
    assert_eq!(world.result_of("db"), "n1");
}

#[test]
fn inspection_lists_reservations_and_owners() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    world.reserve(
        "r",
        "6",
        "web",
        json!({"spec": {"allocatePolicy": "Restricted"}}),
    );
    world.run();
    world.pod("a", "4", "web", json!({}));
    world.run();
    let ask = |world: &mut ReservationWorld, path: &[&str]| {
        world
            .engine
            .inspector()
            .inspect(NAME, path, &BTreeMap::new(), world.now)
    };
    let items = ask(&mut world, &["nodeReservations", "n1"]).unwrap();
    let item = &items["items"][0];
    assert_eq!(
        (&item["name"], &item["kind"]),
        (&json!("r"), &json!("Reservation"))
    );
    assert_eq!(item["allocatePolicy"], "Restricted");
    for (part, amount) in [("allocatable", "6"), ("allocated", "4"), ("remaining", "2")] {
        assert_eq!(item[part], json!({"cpu": amount}), "{part}");
    }
    assert_eq!(
        item["assignedPods"],
        json!([{"Namespace": "ns", "Name": "a", "UID": "a", "Requests": {"cpu": "4"},
            "Ports": null}])
    );
    for (part, cpu) in [("availableResource", 2000), ("allocatedResource", 4000)] {
        assert_eq!(
            item[part],
            json!({"MilliCPU": cpu, "Memory": 0, "EphemeralStorage": 0, "AllowedPodNumber": 0,
                "ScalarResources": null}),
            "{part}"
        );
    }
    assert_eq!(item.get("allocateOnce"), None, "false is left out");
    assert_eq!(
        ask(&mut world, &["nodeReservations", "elsewhere"]),
        Ok(json!({}))
    );
    let index = json!({"enabled": false, "prefixes": null, "indexedReservations": 0});
    assert_eq!(ask(&mut world, &["reservationSelectorIndex"]), Ok(index));
    assert_eq!(ask(&mut world, &["nope"]), Err(NotShown::NoSuchPath));
}
