//! Changes between a decision and its write, and pod properties that also apply to holder pods.

use super::*;

/// Makes one decision and returns its outputs.
fn decide(world: &mut ReservationWorld) -> Vec<Output> {
    world.engine.schedule_one(world.now);
    world.engine.take_outputs()
}

#[test]
fn reservation_deleted_before_binding_is_removed() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    world.reserve("r", "6", "web", json!({}));
    let outputs = decide(&mut world);
    assert_eq!(world.booked("n"), 6_000);
    world.unreserve("r");
    assert_eq!(world.booked("n"), 0);
    for output in outputs {
        let Output::Bind(request) = output else {
            continue;
        };
        let not_found = BindError {
            message: "not found".to_owned(),
            gone: true,
        };
        world
            .engine
            .bind_finished(&request.pod.uid, Err(not_found), world.now);
    }
    world.later(60);
    assert_eq!(world.booked("n"), 0);
    assert!(world.engine.queued("r-1").is_none());
    // A new reservation of the same name is a different one.
    world.reserve("r", "6", "web", json!({}));
    world.run();
    assert_eq!(world.booked("n"), 6_000);
}

#[test]
fn ended_reservation_is_not_placed() {
    let mut world = ReservationWorld::new();
    world.reserve("r", "6", "web", json!({}));
    world.run();
    world.edit("r", json!({"status": {"phase": "Failed"}}));
    world.node("n", 8);
    world.later(60);
    assert_eq!(world.status("r").get("nodeName"), None);
    assert_eq!(world.booked("n"), 0);
}

#[test]
fn resized_reservation_is_bound_with_new_amounts() {
    let mut world = ReservationWorld::new();
    world.reserve("r", "6", "web", json!({}));
    world.run();
    let key = annotations::RESERVATION_RESIZE_ALLOCATABLE;
    let text = json!({"resources": {"cpu": "4"}}).to_string();
    world.edit("r", json!({"metadata": {"annotations": {key: text}}}));
    world.node("n", 8);
    world.later(60);
    assert_eq!(world.status("r")["allocatable"], json!({"cpu": "4"}));
    assert_eq!(world.booked("n"), 4_000);
}

#[test]
fn owner_with_lost_bind_response_stays_owner() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    world.reserve("r", "6", "web", json!({}));
    world.run();
    world.pod("p", "2", "web", json!({}));
    for output in decide(&mut world) {
        let Output::Bind(request) = output else {
            continue;
        };
        // The response is lost, but the binding succeeded.
        world.bind("p", &request.node, &request.patch);
        let lost = BindError {
            message: "timeout".to_owned(),
            gone: false,
        };
        world
            .engine
            .bind_finished(&request.pod.uid, Err(lost), world.now);
    }
    world.later(60);
    assert_eq!(world.result_of("p"), "n (r)");
    assert_eq!(world.status("r")["currentOwners"][0]["name"], "p");
    assert_eq!(world.booked("n"), 6_000);
}

#[test]
fn all_reservations_of_a_node_end_with_it() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    world.node("m", 8);
    for (name, node) in [("a", "n"), ("b", "n"), ("c", "m")] {
        let template = json!({"spec": {"template": {"spec": {"nodeName": node}}}});
        world.reserve(name, "2", "web", template);
    }
    world.pod("p", "1", "web", json!({"spec": {"nodeSelector": {}}}));
    world.run();
    let remaining_node = if world.result_of("p").starts_with('m') {
        "m"
    } else {
        "n"
    };
    world.node_gone("n");
    world.later(60);
    let phases = ["a", "b", "c"].map(|name| world.status(name)["phase"].clone());
    assert_eq!(phases, ["Failed", "Failed", "Available"]);
    // The owner remains until the API reports its deletion.
    assert!(world.result_of("p").starts_with(remaining_node));
    world.later(86_500);
    let mut remaining: Vec<&String> = world.reservations.keys().collect();
    remaining.sort();
    // The third one has just expired, by age.
    assert_eq!(remaining, ["c"]);
    assert_eq!(world.status("c")["phase"], "Failed");
}

#[test]
fn owner_counts_in_its_current_reservation() {
    let mut world = ReservationWorld::new();
    world.node("n", 16);
    for name in ["a", "b"] {
        world.reserve(name, "4", "web", json!({}));
        world.run();
    }
    world.pod("p", "3", "web", json!({}));
    world.run();
    let (now, then) = if world.result_of("p") == "n (a)" {
        ("b", "a")
    } else {
        ("a", "b")
    };
    let uid = world.reservations[now]["metadata"]["uid"].clone();
    let text = json!({"name": now, "uid": uid}).to_string();
    let note = json!({"metadata": {"annotations": {annotations::RESERVATION_ALLOCATED: text}}});
    merge(world.pods.get_mut("p").unwrap(), &note);
    world.deliver("p");
    world.run();
    assert_eq!(world.status(now)["currentOwners"][0]["name"], "p");
    assert_eq!(world.status(then).get("currentOwners"), None);
    assert_eq!(world.status(then)["allocated"], Value::Null);
    assert_eq!(world.booked("n"), 8_000);
}

#[test]
fn ignoring_pod_uses_reservations_of_both_policies() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    for (name, policy) in [("a", "Aligned"), ("b", "Restricted")] {
        world.reserve(
            name,
            "4",
            "web",
            json!({"spec": {"allocatePolicy": policy}}),
        );
    }
    world.run();
    let label = json!({"metadata": {"labels": {koord_api::labels::RESERVATION_IGNORED: "true"}}});
    world.pod("p", "7", "other", label);
    world.run();
    assert_eq!(world.result_of("p"), "n");
}

/// Places a reservation with `more` in its template, then a pod of `app` with the same fields, and returns
/// the pod's result.
fn same_for_both(plugin: &'static str, app: &str, more: Value) -> String {
    let mut world = ReservationWorld::with_plugins(&[plugin]);
    let host = |name: &str| json!({"kubernetes.io/hostname": name});
    world.node_with("n", 16, host("n"));
    let labels = json!({"set": "one"});
    let template = json!({"metadata": {"namespace": "ns", "labels": labels}, "spec": more});
    world.reserve("r", "4", "web", json!({"spec": {"template": template}}));
    world.run();
    assert_eq!(world.status("r")["phase"], "Available");
    let mut pod = json!({"spec": more});
    pod["metadata"] = json!({ "labels": labels });
    world.pod("p", "2", app, pod);
    world.run();
    world.result_of("p")
}

#[test]
fn reserved_anti_affinity_admits_owners_only() {
    let term = json!({"topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"set": "one"}}});
    let lonely = json!({"affinity": {"podAntiAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
    assert_eq!(
        same_for_both("InterPodAffinity", "web", lonely.clone()),
        "n (r)"
    );
    let got = same_for_both("InterPodAffinity", "other", lonely);
    assert!(got.contains("anti-affinity rules"), "{got}");
}

#[test]
fn reserved_port_serves_owners_only() {
    let port = json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}],
        "resources": {"requests": {"cpu": "2"}}}]});
    assert_eq!(same_for_both("NodePorts", "web", port.clone()), "n (r)");
    let got = same_for_both("NodePorts", "other", port);
    assert!(got.contains("didn't have free ports"), "{got}");
}

#[test]
fn owners_spread_as_if_the_reservation_were_one_of_them() {
    let mut world = ReservationWorld::with_plugins(&["PodTopologySpread"]);
    for name in ["n", "m"] {
        world.node_with(name, 16, json!({ "zone": name }));
    }
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchExpressions": [{"key": "set", "operator": "Exists"}]}}]});
    let labels = json!({"set": ""});
    let template = json!({"metadata": {"namespace": "ns", "labels": labels}, "spec": spread});
    let restricted = json!({"spec": {"allocatePolicy": "Restricted", "template": template}});
    world.reserve("r", "4", "web", restricted);
    world.run();
    assert_eq!(world.status("r")["phase"], "Available");
    for name in ["a", "b", "c", "d"] {
        let mut pod = json!({"spec": spread});
        pod["metadata"] = json!({ "labels": labels });
        world.pod(name, "4", "web", pod);
    }
    world.later(60);
    let fates = ["a", "b", "c", "d"].map(|name| world.result_of(name));
    let on = |node: &str| fates.iter().filter(|fate| fate.starts_with(node)).count();
    assert_eq!((on("n "), on("n"), on("m")), (on("n "), 2, 2), "{fates:?}");
    assert_eq!(
        fates.iter().filter(|fate| fate.ends_with("(r)")).count(),
        1,
        "{fates:?}"
    );
    assert_eq!(
        world.status("r")["currentOwners"].as_array().map(Vec::len),
        Some(1)
    );
}

/// Follows upstream's controller, although no API server removes a pod from its node.
#[test]
fn owner_without_node_is_no_owner() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    world.reserve("r", "6", "web", json!({}));
    world.pod("p", "4", "web", json!({}));
    world.run();
    assert_eq!(world.result_of("p"), "n (r)");
    assert_eq!(world.status("r")["currentOwners"][0]["name"], "p");
    let lost = json!({"spec": {"nodeName": null, "schedulerName": "another"}});
    merge(world.pods.get_mut("p").unwrap(), &lost);
    world.deliver("p");
    world.later(60);
    assert_eq!(world.status("r").get("currentOwners"), None);
    assert_eq!(world.booked("n"), 6_000);
    world.pod("q", "6", "web", json!({}));
    world.run();
    assert_eq!(world.result_of("q"), "n (r)");
    assert_eq!(world.booked("n"), 6_000);
}
