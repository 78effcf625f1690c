//! Plugins that panic.

use super::*;

#[test]
fn plugin_panic_fails_one_cycle() {
    let mut engine = engine();
    engine.node_applied(node("n", "4"), at(0));
    engine.pod_applied(pod("panic", "1"), at(0));
    engine.pod_applied(pod("fine", "1"), at(1));
    let placed = schedule(&mut engine, 1);
    assert_eq!(placed[1], ("fine".to_owned(), Some("n".to_owned())));
    assert!(messages(&mut engine)[0].starts_with("SchedulerError: a plugin panicked: asked to"));
    assert!(engine.cluster().nodes().books_balance());
}

#[test]
fn panic_while_queueing_refuses_pod_in_its_cycle() {
    const SAID: &str = "SchedulerError: a plugin panicked: asked not to read";
    let unreadable = |name: &str, cpu: &str| {
        let odd = json!({"unreadable": "yes"});
        pod_with(name, cpu, |value| value["metadata"]["annotations"] = odd)
    };
    let mut engine = engine();
    engine.node_applied(node("n", "4"), at(0));
    engine.pod_applied(unreadable("odd", "1"), at(0));
    engine.pod_applied(pod("fine", "1"), at(1));
    let placed = schedule(&mut engine, 1);
    let fine = ("fine".to_owned(), Some("n".to_owned()));
    assert_eq!(placed, [("odd".to_owned(), None), fine]);
    assert_eq!(messages(&mut engine)[0], SAID);
    // Likewise for a pod that changes while it waits.
    let mut engine = self::engine();
    engine.node_applied(node("n", "4"), at(0));
    engine.pod_applied(pod("later", "8"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 1);
    messages(&mut engine);
    engine.pod_applied(unreadable("later", "1"), at(1));
    assert_eq!(schedule(&mut engine, 60), [("later".to_owned(), None)]);
    assert_eq!(messages(&mut engine), [SAID]);
    engine.pod_applied(pod("later", "1"), at(61));
    let placed = ("later".to_owned(), Some("n".to_owned()));
    assert_eq!(schedule(&mut engine, 120), [placed]);
    assert!(engine.cluster().nodes().books_balance());
}

#[test]
fn panic_outside_cycle_skips_one_operation() {
    for place in ["tick", "next_tick", "next_pod", "remark", "names", "read"] {
        let mut engine = engine();
        engine.node_applied(node("n", "4"), at(0));
        engine.pod_applied(pod("fine", "1"), at(0));
        engine.pod_applied(pod("large", "8"), at(1));
        STUMBLES.set(place);
        let placed = schedule(&mut engine, 1);
        let _ = engine.next_deadline();
        engine.inspector().read(at(1));
        STUMBLES.set("");
        let fine = ("fine".to_owned(), Some("n".to_owned()));
        assert_eq!(placed, [fine, ("large".to_owned(), None)], "{place}");
        let refused = "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.";
        assert_eq!(messages(&mut engine), ["bind fine n", refused], "{place}");
        assert_eq!(engine.queue.pending().unschedulable, 1, "{place}");
    }
}

#[test]
fn pod_is_retried_after_panic_at_end_of_wait() {
    let allow = ObjectChange {
        kind: "tests",
        action: Action::UPDATE,
        old: None,
        new: Arc::new("wait"),
    };
    for (place, allowed, message) in [
        ("unreserve", false, "rejected due to timeout"),
        ("on_unassigned", false, "rejected due to timeout"),
        ("pre_enqueue", false, "rejected due to timeout"),
        ("bind", true, "a plugin panicked: asked to stumble"),
    ] {
        let mut engine = engine();
        engine.node_applied(node("n", "2"), at(0));
        engine.pod_applied(pod("wait", "2"), at(0));
        assert_eq!(schedule(&mut engine, 0).len(), 1);
        // A user edits the pod meanwhile.
        engine.pod_applied(pod("wait", "1"), at(1));
        engine.take_outputs();
        STUMBLES.set(place);
        if allowed {
            engine.object_changed(&allow, at(2));
        } else {
            assert!(engine.schedule_one(at(30)).is_none() || place != "pre_enqueue");
        }
        STUMBLES.set("");
        let messages = messages(&mut engine).join("; ");
        assert!(messages.contains(message), "{place}: {messages}");
        assert!(engine.cluster().nodes().books_balance(), "{place}");
        engine.node_applied(node("m", "1"), at(31));
        schedule(&mut engine, 31);
        assert_eq!(
            engine.cluster().booked(),
            (1, 1),
            "{place}: it waits once more"
        );
        assert_eq!(engine.queue.pending().in_flight, 1, "{place}");
    }
}

#[tokio::test]
async fn query_with_panic_has_no_result_but_next_has() {
    let mut engine = engine();
    let debug = crate::debug::DebugHandle::default();
    let mut questions = debug.attach();
    let query = tokio::spawn(async move {
        let first: Option<usize> = debug.query_as(|_, _| panic!("asked to")).await;
        let second = debug
            .query_as(|engine, _| engine.cluster().nodes().len())
            .await;
        (first, second)
    });
    for _ in 0..2 {
        questions.recv().await.unwrap().answer(&mut engine, at(0));
    }
    assert_eq!(query.await.unwrap(), (None, Some(0)));
}
