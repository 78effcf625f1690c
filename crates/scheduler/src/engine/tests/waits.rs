//! Pods that wait for permission, and events in the meantime.

use super::*;

#[test]
fn update_while_waiting_applies_after_timeout() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("wait", "2"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 1);
    engine.pod_applied(pod("wait", "1"), at(1));
    assert_eq!(schedule(&mut engine, 30).len(), 1, "it is tried at once");
    assert_eq!(
        engine
            .cluster()
            .nodes()
            .requested(engine.cluster().nodes().find("n").unwrap(), CPU),
        1000
    );
    // A gate that was added in the meantime holds it back.
    let gated = pod_with("wait", "1", |value| {
        value["spec"]["schedulingGates"] = json!([{"name": "later"}]);
    });
    engine.pod_applied(gated, at(31));
    assert_eq!(schedule(&mut engine, 600), []);
    assert_eq!(
        (engine.queue.pending().gated, engine.cluster().booked()),
        (1, (0, 0))
    );
}

#[test]
fn waiting_pod_keeps_room_until_allowed_or_timed_out() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("wait-a", "1"), at(0));
    engine.pod_applied(pod("wait-b", "1"), at(0));
    engine.node_applied(node("m", "0"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 2);
    assert_eq!(
        messages(&mut engine),
        ["expect wait-a n", "expect wait-b n"]
    );
    assert_eq!(engine.cluster().booked(), (2, 2));
    let allow = ObjectChange {
        kind: "tests",
        action: Action::UPDATE,
        old: None,
        new: Arc::new("wait-a"),
    };
    engine.object_changed(&allow, at(1));
    assert_eq!(messages(&mut engine), ["bind wait-a n"]);
    assert_eq!(engine.next_deadline(), Some(at(30)));
    engine.schedule_one(at(30));
    assert_eq!(
        engine.cluster().booked().0,
        1,
        "the other one gave its room back"
    );
    assert!(messages(&mut engine)[0].contains(
        "0/1 nodes are available: 1 rejected due to timeout after waiting 30s at plugin Knobs."
    ));
}

#[test]
fn event_while_waiting_wakes_pod_after_timeout() {
    for (happens, tried) in [(true, 1), (false, 0)] {
        let mut engine = engine();
        engine.node_applied(node("n", "2"), at(0));
        engine.pod_applied(pod("wait", "2"), at(0));
        assert_eq!(schedule(&mut engine, 0).len(), 1);
        if happens {
            engine.node_applied(node("n2", "1"), at(10));
        }
        engine.take_outputs();
        // Its time is over, without any other event.
        assert_eq!(schedule(&mut engine, 29), []);
        assert_eq!(schedule(&mut engine, 30).len(), tried, "{happens}");
        let reported = messages(&mut engine).join("; ");
        assert!(reported.contains("rejected due to timeout"), "{reported}");
    }
}

#[test]
fn late_nomination_of_undone_pod_is_ignored() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("wait-a", "1"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 1);
    assert_eq!(messages(&mut engine), ["expect wait-a n"]);
    engine.schedule_one(at(30));
    assert_eq!(engine.cluster().booked().0, 0, "it waited without a result");
    let echo = pod_with("wait-a", "1", |value| {
        value["status"] = json!({"nominatedNodeName": "n"});
    });
    engine.pod_applied(echo, at(30));
    assert_eq!(engine.preemptor().nominated_node("wait-a"), None);
    engine.pod_applied(pod("b", "1"), at(30));
    let placed = schedule(&mut engine, 30);
    assert_eq!(placed[0], ("b".to_owned(), Some("n".to_owned())));
}

/// The late updates of an undone reservation wake no refused pods: otherwise a gang that nearly fits, and all
/// pods that wait with it, would be retried endlessly.
#[test]
fn late_updates_of_undone_reservation_wake_no_pods() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("wait-a", "1"), at(0));
    engine.pod_applied(pod("b", "1"), at(0));
    assert_eq!(
        schedule(&mut engine, 0).len(),
        2,
        "one waits, one is refused"
    );
    engine.pod_applied(pod("c", "2"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 1, "refused");
    engine.pod_deleted(&pod("b", "1"), at(1));
    let tried = schedule(&mut engine, 30);
    assert_eq!(
        engine.cluster().booked().0,
        0,
        "it waited without a result: {tried:?}"
    );
    let echo = pod_with("wait-a", "1", |value| {
        value["status"] = json!({"nominatedNodeName": "n"});
    });
    engine.pod_applied(echo, at(30));
    assert_eq!(schedule(&mut engine, 30), []);
    engine.pod_applied(pod("wait-a", "1"), at(30));
    assert_eq!(schedule(&mut engine, 30), []);
}
