//! Invalid reservations, and timestamps from machines whose clock is ahead.

use super::*;

fn template_with(requests: Value) -> Value {
    json!({"spec": {"template": {"spec": {"containers":
        [{"name": "c", "resources": {"requests": requests}}]}}}})
}

/// Returns reason and message of the condition `Scheduled`.
fn condition(world: &ReservationWorld, name: &str) -> (String, String) {
    let status = world.status(name);
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let condition = all
        .iter()
        .find(|c| c["type"] == "Scheduled")
        .cloned()
        .unwrap_or_default();
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

#[test]
fn invalid_reservation_is_reported_and_not_available() {
    for (change, parts) in [
        (
            template_with(json!({"cpu": "-1"})),
            ["containers", "\"-1\"", "0 or more"],
        ),
        (
            template_with(json!({"cpu": "1", "memory": "-1Gi"})),
            ["[memory]", "\"-1Gi\"", "0 or more"],
        ),
        (
            template_with(json!({"cpu": "1x"})),
            ["[cpu]", "\"1x\"", "invalid quantity"],
        ),
        (
            json!({"spec": {"template": {"spec": {"overhead": {"cpu": "-1"}}}}}),
            ["spec.overhead[cpu]", "\"-1\"", "0 or more"],
        ),
        (
            json!({"spec": {"ttl": "-1h"}}),
            ["spec.ttl", "\"-1h0m0s\"", "0, which is for ever, or more"],
        ),
        (json!({"spec": {"ttl": null}}), ["spec.ttl", "has no", ""]),
        (
            json!({"spec": {"owners": []}}),
            ["spec.owners", "has no", ""],
        ),
        (
            json!({"spec": {"template": {"spec": null}}}),
            ["spec.template.spec", "has no", ""],
        ),
    ] {
        let mut world = ReservationWorld::new();
        world.node("n1", 8);
        world.reserve("r", "6", "web", change.clone());
        world.reserve("good", "1", "web", json!({}));
        world.later(1);
        assert_ne!(world.status("r")["phase"], "Available", "{change}");
        assert_eq!(world.booked("n1"), 1000, "{change}");
        let (reason, message) = condition(&world, "r");
        assert_eq!(reason, "Unschedulable", "{change}");
        let messages: Vec<&String> = world
            .messages
            .iter()
            .filter(|(name, _)| name == "r")
            .map(|(_, text)| text)
            .collect();
        assert_eq!(messages.len(), 1, "{messages:?}");
        for part in parts {
            assert!(
                message.contains(part) && messages[0].contains(part),
                "{part}: {message} {messages:?}"
            );
        }
        // An unrelated change is not reported again; the repaired reservation is placed.
        world.edit("r", json!({"metadata": {"labels": {"a": "b"}}}));
        world.later(1);
        let count = world
            .messages
            .iter()
            .filter(|(name, _)| name == "r")
            .count();
        assert_eq!(count, 1, "{change}");
        let sound = json!({"spec": {"ttl": "1h",
            "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
            "template": {"spec": {"overhead": null, "schedulerName": "koord-scheduler",
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "6"}}}]}}}});
        world.edit("r", sound);
        world.later(10);
        assert_eq!(world.status("r")["phase"], "Available", "{change}");
        assert_eq!(condition(&world, "r").0, "Scheduled", "{change}");
    }
}

#[test]
fn placed_reservation_keeps_its_last_valid_ttl() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    world.reserve("r", "6", "web", json!({"spec": {"ttl": "1h"}}));
    world.run();
    world.edit("r", json!({"spec": {"ttl": "-1h"}}));
    world.later(3000);
    assert_eq!(world.status("r")["phase"], "Available");
    assert!(
        world
            .last_message("r")
            .contains("invalid value \"-1h0m0s\" for spec.ttl"),
        "{}",
        world.last_message("r")
    );
    world.later(700);
    assert_eq!(world.status("r")["phase"], "Failed");
}

#[test]
fn negative_resize_is_rejected() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    let key = annotations::RESERVATION_RESIZE_ALLOCATABLE;
    let resize = r#"{"resources":{"cpu":"-1"}}"#;
    world.reserve(
        "r",
        "6",
        "web",
        json!({"metadata": {"annotations": {key: resize}}}),
    );
    world.later(1);
    assert_ne!(world.status("r")["phase"], "Available");
    assert!(
        world.last_message("r").contains("\"-1\""),
        "{}",
        world.last_message("r")
    );
}

#[test]
fn creation_time_ahead_does_not_extend_the_ttl() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    let future = (world.now + SignedDuration::from_hours(1000)).to_string();
    let change = json!({"spec": {"ttl": "1h"}, "metadata": {"creationTimestamp": future}});
    world.reserve("r", "6", "web", change);
    world.run();
    world.later(3500);
    assert_eq!(world.status("r")["phase"], "Available");
    world.later(200);
    assert_eq!(world.status("r")["phase"], "Failed");
}

/// Covers an end time written by another replica whose clock is ahead.
#[test]
fn end_time_ahead_does_not_delay_deletion() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    let future = (world.now + SignedDuration::from_hours(1000)).to_string();
    let over = json!({"status": {"phase": "Failed", "nodeName": "n1", "conditions": [
        {"type": "Ready", "status": "False", "reason": "Expired", "lastTransitionTime": future,
            "lastProbeTime": future}]}});
    world.reserve("r", "6", "web", over);
    world.later(1);
    world.later(80_000);
    assert!(!world.reservations.is_empty());
    world.later(10_000);
    assert!(world.reservations.is_empty());
}
