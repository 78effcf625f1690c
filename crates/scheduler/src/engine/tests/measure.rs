//! Measurements of the engine.

use super::*;

#[test]
fn shared_evaluations_are_counted_once() {
    let mut engine = engine();
    engine.node_applied(node("n", "4"), at(0));
    engine.node_applied(node("m", "4"), at(0));
    for name in ["a-1", "a-2", "a-3"] {
        engine.pod_applied(pod(name, "1"), at(0));
    }
    assert_eq!(schedule(&mut engine, 0).len(), 3);
    let measures = engine.telemetry.take_measures();
    // Two nodes for the first pod; then, twice, the one that the previous pod went to.
    assert_eq!(
        measures.evaluations,
        [(("Knobs", Point::Filter, 0), 2 + 1 + 1)]
    );
    assert_eq!(
        measures.shared,
        [((0, "no_hint"), 1), ((0, "hint_used"), 2)]
    );
    let later = engine.telemetry.take_measures();
    assert!(later.evaluations.is_empty() && later.shared.is_empty() && later.timings.is_empty());
}

#[test]
fn one_cycle_in_ten_is_timed_and_the_first_is_one() {
    let mut engine = engine();
    for name in ["n", "m", "o"] {
        engine.node_applied(node(name, "10"), at(0));
    }
    let points = |measures: &Measures, wanted: Point| {
        let is = |measured: &&Measurement| match measured {
            Measurement::Point { point, .. } => *point == wanted,
            _ => false,
        };
        measures.timings.iter().filter(is).count()
    };
    engine.pod_applied(pod("a", "1"), at(0));
    assert_eq!(schedule(&mut engine, 0).len(), 1);
    let measures = engine.telemetry.take_measures();
    for point in [
        Point::Filter,
        Point::Score,
        Point::Reserve,
        Point::Permit,
        Point::PreBind,
    ] {
        assert_eq!(points(&measures, point), 1, "{point:?}");
    }
    for (plugin_point, status) in [
        (Point::Filter, "Success"),
        (Point::Reserve, "Success"),
        (Point::Permit, "Success"),
    ] {
        let timed = measures.timings.iter().any(|measured| {
            matches!(measured, Measurement::Plugin { plugin: "Knobs", point, status: actual, .. }
                if *point == plugin_point && *actual == status)
        });
        assert!(timed, "{plugin_point:?} {:?}", measures.timings);
    }
    // A call without a ready pod is no cycle.
    for _ in 0..7 {
        assert!(engine.schedule_one(at(0)).is_none());
    }
    for number in 0..20 {
        engine.pod_applied(pod(&format!("b-{number}"), "1"), at(1));
        assert_eq!(schedule(&mut engine, 1 + number).len(), 1);
    }
    assert_eq!(points(&engine.telemetry.take_measures(), Point::Filter), 2);
    // Many cycles at a time do not cost more than that.
    for number in 0..8 {
        engine.pod_applied(pod(&format!("c-{number}"), "0"), at(30));
    }
    assert_eq!(schedule(&mut engine, 30).len(), 8);
    for number in 0..20 {
        engine.pod_applied(pod(&format!("never-{number}"), "99"), at(31));
    }
    assert_eq!(schedule(&mut engine, 31).len(), 20);
    assert_eq!(points(&engine.telemetry.take_measures(), Point::Filter), 1);
}

#[test]
fn waits_for_permission_are_timed_by_how_they_end() {
    let mut engine = engine();
    engine.node_applied(node("n", "4"), at(0));
    for name in ["wait-a", "wait-b", "wait-c"] {
        engine.pod_applied(pod(name, "1"), at(0));
    }
    assert_eq!(schedule(&mut engine, 0).len(), 3);
    let allow = ObjectChange {
        kind: "tests",
        action: Action::UPDATE,
        old: None,
        new: Arc::new("wait-a"),
    };
    engine.object_changed(&allow, at(7));
    engine.pod_deleted(&pod("wait-b", "1"), at(9));
    engine.schedule_one(at(30));
    let timings = engine.telemetry.take_measures().timings;
    let waits: Vec<_> = timings
        .into_iter()
        .filter_map(|measured| match measured {
            Measurement::Permit { result, seconds } => Some((result, seconds)),
            _ => None,
        })
        .collect();
    assert_eq!(
        waits,
        [
            ("Success", 7.0),
            ("Unschedulable", 9.0),
            ("Unschedulable", 30.0)
        ]
    );
}

#[test]
fn observer_is_called_before_every_cycle() {
    let cycles = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut engine = engine();
    engine.node_applied(node("n", "1"), at(0));
    let hears = cycles.clone();
    engine.telemetry.observe(Box::new(move |started| {
        let CycleStart {
            pod,
            attempts,
            first_seen,
            flushed,
            ..
        } = started;
        let cycles = (pod.name.to_string(), attempts, first_seen, flushed);
        hears.lock().push(cycles);
    }));
    engine.pod_applied(pod("a", "2"), at(0));
    schedule(&mut engine, 0);
    // There was no event for so long that the pod is retried all the same.
    schedule(&mut engine, 400);
    // A gated pod is not waiting yet.
    let gate = |value: &mut Value| value["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    engine.pod_applied(pod_with("b", "1", gate), at(400));
    engine.pod_applied(pod("b", "1"), at(500));
    schedule(&mut engine, 500);
    let cycles = std::mem::take(&mut *cycles.lock());
    assert_eq!(
        cycles,
        [
            ("a".to_owned(), 1, at(0), false),
            ("a".to_owned(), 2, at(0), true),
            ("b".to_owned(), 1, at(500), false),
        ]
    );
}
