//! Nodes and pods in any order, invalid ones, and pods of other schedulers.

use super::*;

#[test]
fn node_with_invalid_amount_keeps_previous_amount() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(bound("a", "1", "n"), at(0));
    engine.take_outputs();
    engine.node_applied(node("n", "2x"), at(1));
    let problem_messages = |engine: &mut Engine| {
        let outputs = engine.take_outputs().into_iter();
        let problems = outputs.filter_map(|output| match output {
            Output::Problem(problem) => Some(problem.message),
            _ => None,
        });
        problems.collect::<Vec<_>>()
    };
    let problems = problem_messages(&mut engine);
    assert!(
        problems.len() == 1 && problems[0].contains("status.allocatable[cpu]"),
        "{problems:?}"
    );
    assert!(
        problems[0].contains("\"2x\"") && problems[0].contains("keeps"),
        "{problems:?}"
    );
    // Reported once.
    engine.node_applied(node("n", "2x"), at(2));
    assert_eq!(problem_messages(&mut engine), [""; 0]);
    engine.pod_applied(pod("b", "1"), at(2));
    assert_eq!(
        schedule(&mut engine, 2),
        [("b".to_owned(), Some("n".to_owned()))]
    );
    engine.pod_applied(pod("c", "1"), at(3));
    assert_eq!(schedule(&mut engine, 3), [("c".to_owned(), None)]);
    // A resource that was never valid counts as 0, and the node exists.
    engine.node_applied(node("new", "x"), at(4));
    assert!(engine.cluster().nodes().find("new").is_some());
    assert!(
        problem_messages(&mut engine)
            .iter()
            .any(|text| text.contains("has none"))
    );
    engine.node_applied(node("new", "1"), at(5));
    assert_eq!(
        schedule(&mut engine, 60),
        [("c".to_owned(), Some("new".to_owned()))]
    );
}

#[test]
fn gated_and_foreign_pods_are_not_scheduled() {
    let mut engine = engine();
    engine.node_applied(node("n", "2"), at(0));
    let gated = |gates: Value| pod_with("g", "1", |v| v["spec"]["schedulingGates"] = gates);
    engine.pod_applied(gated(json!([{"name": "later"}])), at(0));
    engine.pod_applied(
        pod_with("x", "1", |v| v["spec"]["schedulerName"] = json!("other")),
        at(0),
    );
    assert_eq!(schedule(&mut engine, 0), []);
    assert_eq!(engine.queue.pending().gated, 1);
    engine.pod_applied(gated(json!([])), at(1));
    assert_eq!(
        schedule(&mut engine, 1),
        [("g".to_owned(), Some("n".to_owned()))]
    );
    // A bound pod takes room, whichever scheduler bound it.
    engine.pod_applied(
        pod_with("x", "1", |v| {
            v["spec"]["schedulerName"] = json!("other");
            v["spec"]["nodeName"] = json!("n");
        }),
        at(2),
    );
    engine.pod_applied(pod("late", "1"), at(2));
    assert_eq!(schedule(&mut engine, 2), [("late".to_owned(), None)]);
}

#[test]
fn pods_received_before_their_node_count() {
    let mut engine = engine();
    engine.pod_applied(bound("old", "2", "n"), at(0));
    engine.node_applied(node("n", "2"), at(0));
    engine.pod_applied(pod("new", "1"), at(0));
    assert_eq!(schedule(&mut engine, 0), [("new".to_owned(), None)]);
    // The node is deleted and its pod stays for a while: the sums stay right.
    engine.node_deleted("n", at(1));
    assert_eq!(engine.cluster().nodes().len(), 0);
    assert!(engine.cluster().nodes().books_balance());
    engine.pod_deleted(&bound("old", "2", "n"), at(2));
    engine.node_applied(node("m", "1"), at(3));
    assert_eq!(
        schedule(&mut engine, 3),
        [("new".to_owned(), Some("m".to_owned()))]
    );
}

#[test]
fn invalid_objects_are_reported_and_skipped() {
    let mut engine = engine();
    engine.node_applied(node("good", "1"), at(0));
    engine.node_applied(node("bad", "lots"), at(0));
    engine.pod_applied(pod("broken", "1x"), at(0));
    engine.pod_applied(pod("fine", "1"), at(0));
    assert_eq!(
        schedule(&mut engine, 0),
        [("fine".to_owned(), Some("good".to_owned()))]
    );
    let messages = messages(&mut engine);
    assert!(messages[0].contains("problem bad") && messages[0].contains("\"lots\""));
    assert!(messages[1].contains("problem broken") && messages[1].contains("\"1x\""));
}
