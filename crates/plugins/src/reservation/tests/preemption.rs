//! Preemption for reservations, and for pods, with `enablePreemption`.

use super::*;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

fn world(args: &Value) -> World {
    let mut world = World::with(args, &[]);
    world.node("n", 8);
    world
}

fn preempting() -> World {
    world(&json!({"enablePreemption": true}))
}

fn at(priority: i32) -> Value {
    json!({"spec": {"priority": priority, "nodeName": "n"}})
}

fn reserve_at(priority: i32) -> Value {
    json!({"spec": {"template": {"spec": {"priority": priority}}}})
}

#[test]
fn a_reservation_takes_the_place_of_pods_of_lower_priority() {
    let crowd = |world: &mut World| {
        world.pod("low", "2", "other", at(5));
        world.pod("lower", "2", "other", at(1));
        world.pod("high", "3", "other", at(100));
    };
    let mut plain = world(&json!({}));
    crowd(&mut plain);
    plain.reserve("r", "3", "web", reserve_at(10));
    plain.later(60);
    assert_eq!(plain.evicted, [""; 0]);
    assert_eq!(
        plain.word("r"),
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
        world.word("more"),
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
fn room_that_is_made_is_kept_for_the_reservation() {
    let mut world = preempting();
    world.pod("low", "6", "other", at(1));
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
    assert!(world.word("late").contains("Insufficient cpu"));
}

#[test]
fn who_must_stay_stays() {
    let spared = json!({koord_api::labels::DISABLE_PREEMPTIBLE: "true"});
    let mut world = preempting();
    world.pod("spared", "4", "other", at(1));
    merge(
        world.pods.get_mut("spared").unwrap(),
        &json!({"metadata": {"labels": spared}}),
    );
    world.see("spared");
    // What an evicted owner holds would return to its reservation.
    world.reserve("theirs", "3", "db", reserve_at(1));
    world.pod("owner", "3", "db", json!({"spec": {"priority": 1}}));
    world.run();
    assert_eq!(world.fate("owner"), "n (theirs)");
    world.reserve("r", "2", "web", reserve_at(10));
    world.later(60);
    assert_eq!(world.evicted, [""; 0]);
    assert!(
        world
            .word("r")
            .contains("preemption: 0/1 nodes are available: 1 No preemption victims found"),
        "{}",
        world.word("r")
    );

    let mut world = preempting();
    world.pod("low", "6", "other", at(1));
    let mut meek = reserve_at(10);
    meek["spec"]["template"]["spec"]["preemptionPolicy"] = json!("Never");
    world.reserve("r", "6", "web", meek);
    world.later(60);
    assert_eq!(world.evicted, [""; 0]);
    assert!(
        world
            .word("r")
            .ends_with("preemption: not eligible due to preemptionPolicy=Never."),
        "{}",
        world.word("r")
    );
}

#[test]
fn disruption_budgets_are_minded() {
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
    world.pod("kept", "3", "kept", at(1));
    world.pod("other", "3", "other", at(5));
    world.reserve("r", "4", "web", reserve_at(10));
    world.later(60);
    assert_eq!(world.evicted, ["other"]);
    assert_eq!(world.status("r")["phase"], "Available");
}

#[test]
fn pods_make_room_too_and_say_what_of_reservations_did_not_serve() {
    let mut world = preempting();
    let closed = json!({"spec": {"unschedulable": true, "template": {"spec": {"priority": 50}}}});
    world.reserve("r", "2", "web", closed);
    world.pod("low", "6", "other", at(1));
    world.run();
    let pod = |priority: i32, policy: &str| json!({"spec": {"priority": priority, "preemptionPolicy": policy}});
    world.pod("meek", "4", "web", pod(10, "Never"));
    world.run();
    assert_eq!(
        world.word("meek"),
        "0/1 nodes are available: 1 Insufficient cpu. \
         preemption: not eligible due to preemptionPolicy=Never., \
         1 Reservation(s) is unschedulable, 1 Reservation(s) matched owner total"
    );
    world.pod_gone("meek");
    world.pod("bold", "4", "web", pod(10, "PreemptLowerPriority"));
    world.later(60);
    assert_eq!(world.evicted, ["low"]);
    assert_eq!(world.fate("bold"), "n");
}

#[test]
fn a_pod_that_can_be_taken_in_need_not_go() {
    let mut world = preempting();
    world.pod("mine", "3", "web", at(1));
    world.pod("other", "4", "other", at(5));
    let mut both = reserve_at(10);
    both["spec"]["preAllocation"] = json!(true);
    both["spec"]["allocatePolicy"] = json!("Restricted");
    world.reserve("r", "6", "web", both);
    world.later(60);
    assert_eq!(world.evicted, ["other"]);
    assert_eq!(world.status("r")["phase"], "Available");
    assert_eq!(world.fate("mine"), "n (r)");
    assert_eq!(world.booked("n"), 6_000);
}
