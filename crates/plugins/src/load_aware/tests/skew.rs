//! Times from other machines that are ahead of the scheduler's clock.

use super::*;

/// Returns the problems among the outputs of an engine.
fn problems(engine: &mut Engine) -> Vec<String> {
    let outputs = engine.take_outputs().into_iter();
    let problems = outputs.filter_map(|output| match output {
        Output::Problem(problem) => Some(format!(
            "{} {}: {}",
            problem.kind, problem.name, problem.message
        )),
        _ => None,
    });
    problems.collect()
}

fn report(seconds: i64) -> ObjectChange {
    metric("n", "90", json!({"updateTime": at(seconds).to_string()}))
}

/// Reports are valid for 180 s, which also limits how far they may be ahead.
#[test]
fn report_from_ahead_counts_as_expired() {
    let pass = || json!({"enableScheduleWhenNodeMetricsExpired": true});
    let expired = "0/1 nodes are available: 1 node(s) nodeMetric expired.";
    for (ahead, refusing, passing) in [(179, HOT, HOT), (180, expired, "n"), (3600, expired, "n")] {
        for (args, want) in [(json!({}), refusing), (pass(), passing)] {
            let mut engine = engine(args);
            engine.node_applied(node("n", json!({})), at(0));
            engine.object_changed(&report(ahead), at(0));
            assert_eq!(place(&mut engine, pod("p", json!({})), 0), want, "{ahead}");
        }
    }
}

/// When the scheduler's clock catches up, the old report looks current.
#[test]
fn report_from_ahead_stays_expired_until_the_next_one() {
    let mut engine = engine(json!({"enableScheduleWhenNodeMetricsExpired": true}));
    engine.node_applied(node("n", json!({})), at(0));
    engine.object_changed(&report(3600), at(0));
    assert_eq!(place(&mut engine, pod("p", json!({})), 3600), "n");
    engine.object_changed(&report(3600), at(3600));
    assert_eq!(place(&mut engine, pod("q", json!({})), 3600), HOT);
}

#[test]
fn clock_skew_is_reported_once_per_node() {
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", json!({})), at(0));
    engine.object_changed(&report(3600), at(0));
    let reported = problems(&mut engine);
    assert_eq!(reported.len(), 1, "{reported:?}");
    for part in [
        "Node n: invalid value",
        &at(3600).to_string(),
        "updateTime",
        "expected less than 180 s ahead",
        "3600 s ahead",
    ] {
        assert!(reported[0].contains(part), "{reported:?}");
    }
    engine.object_changed(&report(3660), at(60));
    assert_eq!(problems(&mut engine), [""; 0]);
    // The clock is correct again, then ahead once more.
    engine.object_changed(&report(120), at(120));
    engine.object_changed(&report(7200), at(180));
    assert_eq!(problems(&mut engine).len(), 1);
}

/// The initialization time is the kubelet's, the assignment time another scheduler's.
#[test]
fn future_pod_times_do_not_extend_estimates() {
    for (kind, args) in [
        (
            "Initialized",
            json!({"estimatedSecondsAfterInitialized": 60}),
        ),
        (
            "PodScheduled",
            json!({"estimatedSecondsAfterPodScheduled": 60}),
        ),
    ] {
        let mut engine = engine(args);
        engine.node_applied(node("n", json!({})), at(0));
        let condition = json!({"type": kind, "status": "True",
            "lastTransitionTime": at(100_000).to_string()});
        let bound = json!({"spec": {"nodeName": "n"}, "status": {"conditions": [condition]}});
        engine.pod_applied(pod("a", bound), at(0));
        let usage = json!({"podsMetric": [{"name": "a", "namespace": "ns", "priority": "koord-prod",
            "podUsage": {"resources": {"cpu": "1"}}}], "updateTime": at(200).to_string()});
        // With the estimate of 8.5 cores for the existing pod, it would be 65.5 %.
        engine.object_changed(&metric("n", "49500m", usage), at(200));
        assert_eq!(place(&mut engine, pod("p", json!({})), 200), "n", "{kind}");
    }
}
