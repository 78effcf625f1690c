//! Preemption for reservations, and for pods, with `enablePreemption`.

use super::*;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

fn world(args: &Value) -> ReservationWorld {
    let mut world = ReservationWorld::with(args, &[]);
    world.node("n", 8);
    world
}

fn preempting() -> ReservationWorld {
    world(&json!({"enablePreemption": true}))
}

fn with_priority(priority: i32) -> Value {
    json!({"spec": {"priority": priority, "nodeName": "n"}})
}

fn reserve_at(priority: i32) -> Value {
    json!({"spec": {"template": {"spec": {"priority": priority}}}})
}

#[test]
fn reservation_preempts_lower_priority() {
    let crowd = |world: &mut ReservationWorld| {
        world.pod("low", "2", "other", with_priority(5));
        world.pod("lower", "2", "other", with_priority(1));
        world.pod("high", "3", "other", with_priority(100));
    };
    let mut plain = world(&json!({}));
    crowd(&mut plain);
    plain.reserve("r", "3", "web", reserve_at(10));
    plain.later(60);
    assert_eq!(plain.evicted, [""; 0]);
    assert_eq!(
        plain.last_message("r"),
        "0/1 nodes are available: 1 Insufficient cpu."
    );

    let mut world = preempting();
    crowd(&mut world);
    world.reserve("r", "3", "web", reserve_at(10));
    world.later(60);
    assert_eq!(world.evicted, ["lower"]);
    assert_eq!(world.status("r")["phase"], "Available");
    // No pod with a lower priority is left.
    world.reserve("more", "7", "web", reserve_at(10));
    world.later(60);
    assert_eq!(world.evicted, ["lower"]);
    assert_eq!(
        world.last_message("more"),
        "0/1 nodes are available: 1 Insufficient cpu. \
         preemption: 0/1 nodes are available: 1 Insufficient cpu."
    );
    // A reservation has the highest priority unless it sets another; reservations themselves are not evicted.
    world.reserve("most", "5", "web", json!({}));
    world.later(60);
    assert_eq!(world.evicted, ["lower", "high", "low"]);
    assert_eq!(world.status("most")["phase"], "Available");
    assert_eq!(world.status("r")["phase"], "Available");
    assert_eq!(world.booked("n"), 8_000);
}

#[test]
fn nominated_node_is_kept_for_reservation() {
    let mut world = preempting();
    world.pod("low", "6", "other", with_priority(1));
    world.reserve("r", "6", "web", reserve_at(10));
    world.engine.schedule_one(world.now);
    let uid = world.reservations["r"]["metadata"]["uid"].clone();
    let node = world
        .engine
        .preemptor()
        .nominated_node(uid.as_str().unwrap());
    assert_eq!(node.map(|node| &**node), Some("n"));
    // Before the victim is gone, a pod arrives that would fit then.
    world.pod("late", "5", "other", json!({"spec": {"priority": 3}}));
    world.run();
    world.later(60);
    assert_eq!(world.evicted, ["low"]);
    assert_eq!(world.status("r")["phase"], "Available");
    assert!(world.last_message("late").contains("Insufficient cpu"));
}

#[test]
fn protected_pods_are_not_preempted() {
    let spared = json!({koord_api::labels::DISABLE_PREEMPTIBLE: "true"});
    let mut world = preempting();
    world.pod("spared", "4", "other", with_priority(1));
    merge(
        world.pods.get_mut("spared").unwrap(),
        &json!({"metadata": {"labels": spared}}),
    );
    world.deliver("spared");
    // What an evicted owner holds would return to its reservation.
    world.reserve("theirs", "3", "db", reserve_at(1));
    world.pod("owner", "3", "db", json!({"spec": {"priority": 1}}));
    world.run();
    assert_eq!(world.result_of("owner"), "n (theirs)");
    world.reserve("r", "2", "web", reserve_at(10));
    world.later(60);
    assert_eq!(world.evicted, [""; 0]);
    assert!(
        world
            .last_message("r")
            .contains("preemption: 0/1 nodes are available: 1 No preemption victims found"),
        "{}",
        world.last_message("r")
    );

    let mut world = preempting();
    world.pod("low", "6", "other", with_priority(1));
    let mut meek = reserve_at(10);
    meek["spec"]["template"]["spec"]["preemptionPolicy"] = json!("Never");
    world.reserve("r", "6", "web", meek);
    world.later(60);
    assert_eq!(world.evicted, [""; 0]);
    assert!(
        world
            .last_message("r")
            .ends_with("preemption: not eligible due to preemptionPolicy=Never."),
        "{}",
        world.last_message("r")
    );
}

#[test]
fn disruption_budgets_limit_preemption() {
    let mut world = preempting();
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "ns", "uid": "b"},
        "spec": {"selector": {"matchLabels": {"app": "kept"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    }))
    .unwrap();
    let change = ObjectChange {
        kind: crate::common::budgets::BUDGETS,
        action: Action::ADD,
        old: None,
        new: Arc::new(budget),
    };
    world.engine.object_changed(&change, world.now);
    world.pod("kept", "3", "kept", with_priority(1));
    world.pod("other", "3", "other", with_priority(5));
    world.reserve("r", "4", "web", reserve_at(10));
    world.later(60);
    assert_eq!(world.evicted, ["other"]);
    assert_eq!(world.status("r")["phase"], "Available");
}

#[test]
fn pod_preemption_reports_reservation_counts() {
    let mut world = preempting();
    let closed = json!({"spec": {"unschedulable": true, "template": {"spec": {"priority": 50}}}});
    world.reserve("r", "2", "web", closed);
    world.pod("low", "6", "other", with_priority(1));
    world.run();
    let pod = |priority: i32, policy: &str| json!({"spec": {"priority": priority, "preemptionPolicy": policy}});
    world.pod("meek", "4", "web", pod(10, "Never"));
    world.run();
    assert_eq!(
        world.last_message("meek"),
        "0/1 nodes are available: 1 Insufficient cpu. \
         preemption: not eligible due to preemptionPolicy=Never., \
         1 Reservation(s) is unschedulable, 1 Reservation(s) matched owner total"
    );
    world.pod_gone("meek");
    world.pod("bold", "4", "web", pod(10, "PreemptLowerPriority"));
    world.later(60);
    assert_eq!(world.evicted, ["low"]);
    assert_eq!(world.result_of("bold"), "n");
}

#[test]
fn absorbable_pod_is_not_evicted() {
    let mut world = preempting();
    world.pod("mine", "3", "web", with_priority(1));
    world.pod("other", "4", "other", with_priority(5));
    let mut reservation = reserve_at(10);
    reservation["spec"]["preAllocation"] = json!(true);
    reservation["spec"]["allocatePolicy"] = json!("Restricted");
    world.reserve("r", "6", "web", reservation);
    world.later(60);
    assert_eq!(world.evicted, ["other"]);
    assert_eq!(world.status("r")["phase"], "Available");
    assert_eq!(world.result_of("mine"), "n (r)");
    assert_eq!(world.booked("n"), 6_000);
}
