//! Pods that `DefaultEvictor` allows to evict.

use super::*;
use crate::framework::{Filter, SkipReason};
use crate::upstream_plugins::default_evictor::{Args, DefaultEvictorFilter};

fn filter(args: &Value) -> DefaultEvictorFilter {
    let args: Args = serde_json::from_value(args.clone()).unwrap();
    DefaultEvictorFilter::new(args).unwrap()
}

fn verdict(case: &Value) -> Result<(), SkipReason> {
    let world = world(case);
    let snapshot = snapshot(&world, case);
    let mut filter = filter(&case["args"]);
    filter.begin(&snapshot);
    let (namespace, name) = case["asked"].as_str().unwrap().split_once('/').unwrap();
    let pod = snapshot.pod(namespace, name).unwrap();
    match case["at"].as_str().unwrap() {
        "filter" => filter.filter(&snapshot, pod),
        _ => filter.pre_evict(&snapshot, &snapshot.nodes, pod),
    }
}

#[test]
fn upstreams_cases_have_upstreams_answers() {
    let cases = cases(include_str!("tables/default_evictor.jsonl"));
    let (mut may, mut wrong) = (0, Vec::new());
    for case in &cases {
        let verdict = verdict(case);
        may += usize::from(verdict.is_ok());
        // A mirror pod that requests its eviction would come back to its node, so it stays, unlike in
        // upstream.
        let mirror = case.to_string().contains("config.mirror");
        if verdict.is_ok() != (case["ok"].as_bool().unwrap() && !mirror) {
            wrong.push(format!("{case}: {verdict:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!((cases.len(), may), (62, 34));
}

/// Returns the rule that keeps a pod modified by `over`.
fn rule(args: Value, over: Value, class: Option<(&str, i32)>) -> Option<&'static str> {
    let mut world = TestCluster::default();
    world.node("a", json!({}));
    let pod = world.pod("p", "a", over);
    let mut snapshot = world.snapshot();
    snapshot
        .priority_classes
        .extend(class.map(|(name, value)| (name.to_owned(), value)));
    let mut filter = filter(&args);
    filter.begin(&snapshot);
    filter
        .filter(&snapshot, &pod)
        .err()
        .map(|reason| reason.rule)
}

#[test]
fn a_priority_threshold_may_be_the_name_of_a_class() {
    let args = || json!({"priorityThreshold": {"name": "high"}});
    let with_priority = |priority: i32| json!({"spec": {"priority": priority}});
    let high = Some(("high", 1000));
    assert_eq!(rule(args(), with_priority(999), high), None);
    assert_eq!(
        rule(args(), with_priority(1000), high),
        Some("PriorityThreshold")
    );
    assert_eq!(rule(args(), json!({}), high), None);
    // Without such a class, no pod is evicted.
    assert_eq!(
        rule(args(), with_priority(1), None),
        Some("PriorityThreshold")
    );
    let off = merged(args(), json!({"evictSystemCriticalPods": true}));
    assert_eq!(rule(off, with_priority(1), None), None);
}

#[test]
fn ages_are_compared_to_the_second() {
    let args = || json!({"minPodAge": "10m"});
    let started = |at: &str| json!({"status": {"startTime": at}});
    assert_eq!(rule(args(), started("2026-01-01T11:50:00Z"), None), None);
    assert_eq!(
        rule(args(), started("2026-01-01T11:50:01Z"), None),
        Some("MinPodAge")
    );
    assert_eq!(rule(args(), json!({}), None), Some("MinPodAge"));
}

/// Returns the outcome for a pod that exists for too long with these arguments of the evictor.
fn outcome(evictor: Value, labels: Value) -> Result<(), String> {
    let mut framework = framework(
        "PodLifeTime",
        &json!({"maxPodLifeTimeSeconds": 1}),
        &evictor,
    )
    .unwrap();
    let mut world = TestCluster::default();
    world.node("a", json!({}));
    world.node("b", json!({"spec": {"unschedulable": true}}));
    world.pod("p", "a", json!({}));
    let mut snapshot = world.snapshot();
    snapshot.namespaces.insert(
        Arc::from("default"),
        serde_json::from_value(labels).unwrap(),
    );
    let plan = framework.run(&snapshot);
    match (plan.moves().next(), plan.skipped.first()) {
        (Some(_), None) => Ok(()),
        (None, Some(kept)) => Err(kept.reason.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn strategies_ask_before_they_evict() {
    assert_eq!(outcome(json!({}), json!({})), Ok(()));
    let fit = outcome(json!({"nodeFit": true}), json!({})).unwrap_err();
    assert_eq!(fit, "NodeFit: no other node has room: 1 unschedulable");
    let labelled = || json!({"namespaceLabelSelector": {"matchLabels": {"env": "test"}}});
    assert_eq!(outcome(labelled(), json!({"env": "test"})), Ok(()));
    let other = outcome(labelled(), json!({"env": "prod"})).unwrap_err();
    assert_eq!(
        other,
        "NamespaceLabelSelector: namespaceLabelSelector does not select namespace default"
    );
    let expression = json!({"namespaceLabelSelector": {"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]}});
    assert!(outcome(expression.clone(), json!({"env": "prod"})).is_err());
    assert_eq!(outcome(expression, json!({})), Ok(()));
}
