//! Assumed pods: bindings that are confirmed, fail or are undone.

use super::*;

#[test]
fn a_pod_is_booked_bound_and_confirmed() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    assert_eq!(
        schedule(&mut engine, 0),
        [("a".to_owned(), Some("n".to_owned()))]
    );
    assert_eq!(messages(&mut engine), ["bind a n"]);
    assert_eq!(engine.cluster().booked(), (1, 1));
    engine.bind_finished("a", Ok(()), at(1));
    // An update from before the binding changes nothing.
    engine.pod_applied(pod("a", "1"), at(1));
    assert_eq!(engine.cluster().booked(), (1, 1));
    engine.pod_applied(bound("a", "1", "n"), at(2));
    assert_eq!(engine.cluster().booked(), (1, 0));
    engine.pod_deleted(&bound("a", "1", "n"), at(3));
    assert_eq!(engine.cluster().booked(), (0, 0));
    assert!(engine.cluster().nodes().books_balance());
}

#[test]
fn failed_binding_frees_room_and_retries_after_backoff() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    engine.pod_applied(pod("b", "1"), at(1));
    assert_eq!(
        schedule(&mut engine, 1).len(),
        2,
        "a is placed, b is refused"
    );
    let conflict = BindError {
        message: "conflict".to_owned(),
        gone: false,
    };
    engine.bind_finished("a", Err(conflict), at(2));
    assert_eq!(engine.cluster().booked(), (0, 0));
    assert_eq!(
        schedule(&mut engine, 2),
        [("b".to_owned(), Some("n".to_owned()))]
    );
    assert_eq!(schedule(&mut engine, 3), [("a".to_owned(), None)]);
    assert!(
        messages(&mut engine)
            .iter()
            .any(|m| m == "SchedulerError: binding rejected: conflict")
    );

    let not_found = BindError {
        message: "not found".to_owned(),
        gone: true,
    };
    engine.bind_finished("b", Err(not_found), at(4));
    assert_eq!(engine.cluster().booked(), (0, 0));
    assert!(engine.queued("b").is_none() && engine.queued("a").is_some());
}

/// The condition shows already why the second binding failed: nothing is written, and no update follows.
#[test]
fn update_during_binding_applies_after_failure() {
    let annotated = |text: &str, condition: Value| {
        pod_with("a", "1", |value| {
            value["metadata"]["annotations"] = json!({"said": text});
            value["status"] = json!({"conditions": [condition]});
        })
    };
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulerError",
        "message": "binding rejected: no"});
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    let refused = || BindError {
        message: "no".to_owned(),
        gone: false,
    };
    // The pod's content when it is bound for the first, the second and the third time.
    let mut reports = Vec::new();
    for (round, echo) in ["one", "two", "three"].into_iter().enumerate() {
        let time = 100 * i64::try_from(round).unwrap();
        assert_eq!(schedule(&mut engine, time).len(), 1);
        let outputs = engine.take_outputs().into_iter();
        reports.extend(outputs.filter_map(|output| match output {
            Output::Bind(bind) => Some(bind.pod.annotation("said").unwrap_or("-").to_owned()),
            _ => None,
        }));
        // The update from the binding's first write arrives before the binding fails.
        engine.pod_applied(annotated(echo, condition.clone()), at(time + 1));
        engine.bind_finished("a", Err(refused()), at(time + 2));
    }
    assert_eq!(reports, ["-", "one", "two"]);
}

#[test]
fn pod_deleted_during_binding_is_not_retried() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    assert_eq!(schedule(&mut engine, 1).len(), 1);
    let mut going = pod("a", "1").as_ref().clone();
    going.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(2)));
    engine.pod_applied(Arc::new(going), at(2));
    let failed = BindError {
        message: "being deleted".to_owned(),
        gone: false,
    };
    engine.bind_finished("a", Err(failed), at(3));
    assert_eq!(engine.cluster().booked(), (0, 0));
    assert_eq!(schedule(&mut engine, 600), []);
}

#[test]
fn a_refused_reservation_is_undone() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("unreservable", "1"), at(0));
    assert_eq!(schedule(&mut engine, 0)[0].1, None);
    assert_eq!(engine.cluster().booked(), (0, 0));
    assert!(engine.cluster().nodes().books_balance());
    assert_eq!(
        messages(&mut engine),
        ["Unschedulable: 0/1 nodes are available: 1 nothing left."]
    );
}

#[test]
fn pod_bound_elsewhere_moves_and_finished_pod_is_removed() {
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    engine.node_applied(node("m", "1"), at(0));
    engine.pod_applied(pod("a", "1"), at(0));
    let (_, placed) = schedule(&mut engine, 0).remove(0);
    let other = if placed.as_deref() == Some("n") {
        "m"
    } else {
        "n"
    };
    engine.pod_applied(bound("a", "1", other), at(1));
    assert_eq!(
        engine.cluster().placement("a").map(|(node, _)| &**node),
        Some(other)
    );
    let conflict = BindError {
        message: "already bound".to_owned(),
        gone: false,
    };
    engine.bind_finished("a", Err(conflict), at(2));
    assert_eq!(
        engine.cluster().booked(),
        (1, 0),
        "the informer knew better"
    );
    let finished_pod = pod_with("a", "1", |value| {
        value["spec"]["nodeName"] = json!(other);
        value["status"] = json!({"phase": "Succeeded"});
    });
    engine.pod_applied(finished_pod, at(3));
    assert_eq!(engine.cluster().booked(), (0, 0));
    assert!(engine.cluster().nodes().books_balance());
}
