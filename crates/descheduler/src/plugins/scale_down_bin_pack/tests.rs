use super::*;
use crate::framework::{Framework, Plan, SkipReason};
use crate::testing::{AllBut, TestCluster, balancing, configured, moved, requests};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn args(over: Value) -> ScaleDownBinPackArgs {
    serde_json::from_value(over).unwrap()
}

/// Returns a framework with arguments modified by `over`; pods named `blocked` are refused.
fn framework(over: Value, blocked: &'static [&'static str]) -> Framework {
    let args = args(over);
    check(&args).unwrap();
    balancing(
        Box::new(ScaleDownBinPack::new(args)),
        vec![Box::new(AllBut(blocked))],
    )
}

/// Returns nodes of 4 CPUs and 8 Gi.
fn world(nodes: &[&str]) -> TestCluster {
    let mut world = TestCluster::default();
    for name in nodes {
        let zone = if *name == "node1" {
            "us-east"
        } else {
            "eu-west"
        };
        let allocatable = json!({"status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}, "metadata": {"labels": {"zone": zone}}});
        world.node(name, allocatable);
    }
    world
}

fn labelled(app: &str, cpu: &str, memory: &str) -> Value {
    crate::testing::merged(
        requests(cpu, memory),
        json!({"metadata": {"labels": {"app": app}}}),
    )
}

/// Returns the deletion costs in the order in which they are set.
fn costs(plan: &Plan) -> Vec<(String, i32)> {
    let cost = |action: &Action| match action {
        Action::DeletionCost { pod, cost, .. } => Some((pod.name.to_string(), *cost)),
        _ => None,
    };
    plan.actions.iter().filter_map(cost).collect()
}

/// Returns the ranked pods in order.
fn ranked(plan: &Plan) -> Vec<String> {
    let costs = costs(plan).into_iter();
    let ranked = costs.filter(|(_, cost)| *cost != LAST);
    let mut next = 0..;
    ranked
        .map(|(name, cost)| {
            assert_eq!(Some(cost), next.next(), "{name}");
            name
        })
        .collect()
}

fn score_of(plan: &Plan, node: &str) -> f64 {
    let mut notes = plan.notes.iter();
    let note = notes
        .find(|note| note.node.as_deref() == Some(node))
        .unwrap();
    let text = note.text.strip_prefix("evacuation score ").unwrap();
    text.split(':').next().unwrap().parse().unwrap()
}

#[test]
fn arguments_have_upstreams_defaults() {
    let parsed = |over: Value| {
        let args = args(over);
        let weights: Vec<_> = args.resource_weights.into_iter().collect();
        (args.paused, args.strategy, args.resources, weights)
    };
    let weight = |name: &str, weight: f64| (name.to_owned(), weight);
    let resources = vec!["cpu".to_owned(), "memory".to_owned()];
    for nothing in [json!({}), json!({"strategy": "", "resources": []})] {
        let ones = vec![weight("cpu", 1.0), weight("memory", 1.0)];
        assert_eq!(
            parsed(nothing),
            (false, ExecutionMode::CalculateOnly, resources.clone(), ones)
        );
    }
    let cpu = json!({"paused": true, "strategy": "EvictDirectly", "resources": ["cpu"], "resourceWeights": {"cpu": 2.5}});
    let only_cpu = (
        true,
        ExecutionMode::EvictDirectly,
        vec!["cpu".to_owned()],
        vec![weight("cpu", 2.5)],
    );
    assert_eq!(parsed(cpu), only_cpu);
    let partial = json!({"resources": ["cpu", "memory"], "resourceWeights": {"cpu": 2.5}});
    let filled = vec![weight("cpu", 2.5), weight("memory", 1.0)];
    assert_eq!(
        parsed(partial),
        (false, ExecutionMode::CalculateOnly, resources, filled)
    );
}

#[test]
fn arguments_that_cannot_be_meant_are_refused_by_field() {
    let bad = json!({"matchExpressions": [{"key": "invalid_key!!", "operator": "In", "values": ["value"]}]});
    for (args, wanted) in [
        (json!({"strategy": "CalculateOnly"}), None),
        (
            json!({"strategy": "EvictDirectly", "maxPodsToEvict": 5}),
            None,
        ),
        (
            json!({"resourceWeights": {"cpu": 1.0, "memory": 2.5}}),
            None,
        ),
        (
            json!({"strategy": "UnknownStrategy"}),
            Some("args.strategy: unknown variant `UnknownStrategy`"),
        ),
        (
            json!({"strategy": "EvictDirectly"}),
            Some("maxPodsToEvict: EvictDirectly needs it"),
        ),
        (
            json!({"strategy": "EvictDirectly", "maxPodsToEvict": -1}),
            Some("maxPodsToEvict: -1 is not above 0"),
        ),
        (
            json!({"nodeSelector": bad}),
            Some("args.nodeSelector.matchExpressions[0]"),
        ),
        (
            json!({"podSelectors": [{"name": "invalid-selector", "selector": bad}]}),
            Some("args.podSelectors[0].selector.matchExpressions[0]"),
        ),
        (
            json!({"evictableNamespaces": {"include": ["default"], "exclude": ["kube-system"]}}),
            Some("evictableNamespaces: only one of include"),
        ),
        (
            json!({"resourceWeights": {"cpu": -1.0}}),
            Some("resourceWeights[cpu]: -1 is not a finite number above 0"),
        ),
        (
            json!({"resourceWeight": {"cpu": 1.0}}),
            Some("args.resourceWeight: unknown field"),
        ),
    ] {
        let error = configured(NAME, args.clone()).err();
        match wanted {
            None => assert_eq!(error, None, "{args}"),
            Some(wanted) => assert!(
                error.as_ref().is_some_and(|error| error.contains(wanted)),
                "{args}: {error:?}"
            ),
        }
    }
    for weight in [f64::NAN, f64::INFINITY] {
        let mut args = args(json!({}));
        args.resource_weights.insert("cpu".to_owned(), weight);
        assert!(check(&args).unwrap_err().contains("resourceWeights[cpu]"));
    }
}

#[test]
fn emptiest_nodes_are_ranked_first() {
    let mut world = world(&["node1", "node2", "node3", "node4", "node5", "node6"]);
    let (one, two) = (|| requests("1", "1Gi"), requests("2", "2Gi"));
    for (name, node) in [
        ("p1", "node1"),
        ("p2", "node2"),
        ("nt2", "node2"),
        ("nt3", "node3"),
        ("p4a", "node4"),
        ("p4b", "node4"),
        ("p5a", "node5"),
        ("p5b", "node5"),
    ] {
        let app = if name.starts_with("nt") {
            "other"
        } else {
            "target"
        };
        world.pod(name, node, labelled(app, "1", "1Gi"));
    }
    let created_at = |hour: u32, namespace: &str, pod: Value| {
        let created = format!("2026-01-01T{hour:02}:00:00Z");
        let meta = json!({"metadata": {"namespace": namespace, "creationTimestamp": created, "labels": {"app": "target"}}});
        crate::testing::merged(pod, meta)
    };
    world.pod("p6-oldest", "node6", created_at(9, "default", one()));
    world.pod("p6-same3", "node6", created_at(10, "b-ns", one()));
    world.pod("p6-same2", "node6", created_at(10, "b-ns", one()));
    world.pod("p6-same1", "node6", created_at(10, "a-ns", one()));
    world.pod("p6-newest", "node6", created_at(11, "default", one()));
    world.pod("p6-large", "node6", created_at(10, "default", two));
    let targets =
        json!({"podSelectors": [{"name": "t", "selector": {"matchLabels": {"app": "target"}}}]});
    let plan = framework(targets, &[]).run(&world.snapshot());
    let order = [
        "p1",
        "p4a",
        "p4b",
        "p5a",
        "p5b",
        "p6-large",
        "p6-newest",
        "p6-same1",
        "p6-same2",
        "p6-same3",
        "p6-oldest",
        "p2",
    ];
    assert_eq!(ranked(&plan), order);
    assert_eq!(score_of(&plan, "node1"), 0.0);
    assert_eq!(score_of(&plan, "node2"), 1.0);
    assert!(
        plan.notes
            .iter()
            .all(|note| note.node.as_deref() != Some("node3"))
    );
    assert_eq!(costs(&plan).len(), 12, "whoever is not meant is left alone");
}

#[test]
fn missing_resources_do_not_count() {
    let mut world = world(&["node-normal"]);
    world.node(
        "node-zero",
        json!({"status": {"allocatable": {"cpu": "0", "memory": "0"}}}),
    );
    world.pod("p-zero", "node-zero", requests("1", "1Gi"));
    world.pod("p-normal", "node-normal", requests("1", "1Gi"));
    let plan = framework(json!({}), &[]).run(&world.snapshot());
    assert_eq!(ranked(&plan), ["p-normal", "p-zero"]);
    assert_eq!(score_of(&plan, "node-zero"), 0.0);
}

#[test]
fn selected_but_filtered_pods_rank_last() {
    let mut world = world(&["node-normal", "node-skipped"]);
    world.pod("p-eligible", "node-skipped", requests("1", "1Gi"));
    world.pod("p-skipped", "node-skipped", requests("1", "1Gi"));
    world.pod("p-normal", "node-normal", requests("1", "1Gi"));
    let plan = framework(json!({}), &["p-skipped"]).run(&world.snapshot());
    let expected = [
        ("p-normal", 0),
        ("p-eligible", 1),
        ("p-skipped", 2_147_483_647),
    ];
    let expected = expected.map(|(name, cost)| (name.to_owned(), cost));
    assert_eq!(costs(&plan), expected);
    assert_eq!(
        (
            score_of(&plan, "node-normal"),
            score_of(&plan, "node-skipped")
        ),
        (0.0, 1.0)
    );
    assert_eq!(plan.skipped[0].reason.rule, "AllBut");
    // Pods of other namespaces must not be touched, unlike in upstream.
    world.pod(
        "p-other",
        "node-skipped",
        json!({"metadata": {"namespace": "kube-system"}}),
    );
    let plan = framework(
        json!({"evictableNamespaces": {"exclude": ["kube-system"]}}),
        &["p-skipped"],
    )
    .run(&world.snapshot());
    assert_eq!(costs(&plan), expected);
}

#[test]
fn node_without_gain_is_ranked_last() {
    let mut world = world(&["node-normal", "node-perfect", "node-zero-req-tax"]);
    world.pod("p-perfect", "node-perfect", labelled("target", "1", "1Gi"));
    world.pod("p-normal", "node-normal", labelled("target", "1", "1Gi"));
    world.pod("nt-normal", "node-normal", labelled("other", "1", "1Gi"));
    world.pod(
        "p-zero-req",
        "node-zero-req-tax",
        labelled("target", "0", "0"),
    );
    world.pod(
        "nt-zero-req",
        "node-zero-req-tax",
        labelled("other", "1", "1Gi"),
    );
    let targets = json!({"podSelectors": [{"selector": {"matchLabels": {"app": "target"}}}]});
    let plan = framework(targets, &[]).run(&world.snapshot());
    assert_eq!(ranked(&plan), ["p-perfect", "p-normal", "p-zero-req"]);
    assert_eq!(score_of(&plan, "node-normal"), 1.0);
    assert_eq!(score_of(&plan, "node-zero-req-tax"), f64::INFINITY);
}

#[test]
fn large_is_by_the_share_of_the_node_and_by_weight() {
    let mut world = world(&["node1", "node2"]);
    world.pod("p-cpu-heavy", "node1", requests("2", "100Mi"));
    world.pod("p-mem-heavy", "node1", requests("100m", "3Gi"));
    let plan = framework(json!({}), &[]).run(&world.snapshot());
    assert_eq!(ranked(&plan), ["p-cpu-heavy", "p-mem-heavy"]);
    let memory = json!({"resourceWeights": {"memory": 2.0}});
    let plan = framework(memory, &[]).run(&world.snapshot());
    assert_eq!(ranked(&plan), ["p-mem-heavy", "p-cpu-heavy"]);
}

#[test]
fn a_paused_plugin_ranks_nothing() {
    let mut world = world(&["node1", "node2"]);
    world.pod("p1", "node1", requests("100m", "128Mi"));
    let plan = framework(json!({"paused": true}), &[]).run(&world.snapshot());
    assert!(plan.actions.is_empty());
    assert_eq!(plan.notes[0].text, "is paused");
}

#[test]
fn only_selected_nodes_are_looked_at() {
    let mut world = world(&["node1", "node2", "node3"]);
    for (name, node, cpu) in [
        ("p1", "node1", "100m"),
        ("p2", "node2", "200m"),
        ("p3", "node3", "300m"),
    ] {
        world.pod(name, node, requests(cpu, "64Mi"));
    }
    for (selector, expected) in [
        (Value::Null, vec!["p1", "p2", "p3"]),
        (json!({"matchLabels": {"zone": "us-east"}}), vec!["p1"]),
        (json!({"matchLabels": {"zone": "c"}}), vec![]),
    ] {
        let over = if selector.is_null() {
            json!({})
        } else {
            json!({"nodeSelector": selector})
        };
        let plan = framework(over, &[]).run(&world.snapshot());
        assert_eq!(ranked(&plan), expected, "{selector}");
    }
}

#[test]
fn pods_that_ended_do_not_count() {
    let mut world = world(&["node1", "node2"]);
    let ended = |phase: &str| {
        crate::testing::merged(requests("4", "8Gi"), json!({"status": {"phase": phase}}))
    };
    world.pod("done", "node1", ended("Succeeded"));
    world.pod("fail", "node1", ended("Failed"));
    world.pod("running", "node1", requests("100m", "64Mi"));
    let plan = framework(json!({}), &["done"]).run(&world.snapshot());
    assert_eq!(costs(&plan), [("running".to_owned(), 0)]);
    assert_eq!(score_of(&plan, "node1"), 0.0);
}

#[test]
fn selectors_choose_the_ranked_pods() {
    let web = json!({"name": "web", "selector": {"matchLabels": {"app": "web"}}});
    let all = json!({"name": "all"});
    // Result for pod `system` with label app=system next to pod `web`.
    for (selectors, expected) in [
        (json!([]), Some(1)),
        (json!([all]), Some(1)),
        (json!([web]), None),
        // An entry without a selector is ignored when pods are selected, and matches all pods when costs are
        // set.
        (json!([web, all]), Some(LAST)),
    ] {
        let mut world = world(&["node1", "node2"]);
        world.pod("web", "node1", labelled("web", "2", "1Gi"));
        world.pod("system", "node1", labelled("system", "1", "1Gi"));
        let plan = framework(json!({"podSelectors": selectors}), &[]).run(&world.snapshot());
        let costs: BTreeMap<_, _> = costs(&plan).into_iter().collect();
        assert_eq!(costs["web"], 0, "{selectors}");
        assert_eq!(costs.get("system").copied(), expected, "{selectors}");
    }
}

#[test]
fn cluster_without_evictable_pods_is_unchanged() {
    let mut world = world(&["node1", "node2"]);
    world.pod("p1", "node1", requests("100m", "64Mi"));
    let plan = framework(json!({}), &["p1"]).run(&world.snapshot());
    assert!(plan.actions.is_empty());
    assert_eq!(plan.notes[0].text, "none of the pods of 2 nodes may go");
}

#[test]
fn costs_that_are_there_are_not_written_again() {
    let mut world = world(&["node1", "node2"]);
    let cost = |cost: &str, cpu: &str| {
        crate::testing::merged(
            requests(cpu, "64Mi"),
            json!({"metadata": {"annotations": {DELETION_COST: cost}}}),
        )
    };
    world.pod("same", "node1", cost("0", "3"));
    world.pod("other", "node1", cost("7", "2"));
    world.pod("unreadable", "node1", cost("x", "1"));
    world.pod("last", "node1", cost("2147483647", "1"));
    let plan = framework(json!({}), &["last"]).run(&world.snapshot());
    assert_eq!(
        costs(&plan),
        [("other".to_owned(), 1), ("unreadable".to_owned(), 2)]
    );
}

#[test]
fn first_pods_are_evicted_up_to_the_limit() {
    let mut world = world(&["node1", "node2"]);
    for (name, cpu) in [
        ("p1", "400m"),
        ("p2", "300m"),
        ("p3", "200m"),
        ("p4", "100m"),
    ] {
        world.pod(name, "node1", requests(cpu, "100Mi"));
    }
    let directly = || json!({"strategy": "EvictDirectly", "maxPodsToEvict": 2});
    let plan = framework(directly(), &[]).run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1", "p2"]);
    assert!(
        plan.moves()
            .all(|planned| planned.reason == "scale-down binpack")
    );
    assert!(costs(&plan).is_empty());
    // Only evicted pods count.
    let mut limited = framework(directly(), &[]);
    limited.limits.per_node = Some(0);
    world.pod("q", "node2", requests("1", "100Mi"));
    assert!(moved(&limited.run(&world.snapshot())).is_empty());
    limited.limits.per_node = Some(1);
    assert_eq!(moved(&limited.run(&world.snapshot())), ["q", "p1"]);
}

#[test]
fn a_dry_run_writes_nothing() {
    let mut world = world(&["node1", "node2"]);
    world.pod("target", "node1", requests("100m", "100Mi"));
    world.pod("skipped", "node1", requests("100m", "100Mi"));
    for over in [
        json!({}),
        json!({"strategy": "EvictDirectly", "maxPodsToEvict": 1}),
    ] {
        let mut framework = framework(over, &["skipped"]);
        framework.dry_run = true;
        let plan = framework.run(&world.snapshot());
        assert!(costs(&plan).is_empty());
        assert!(plan.moves().all(|planned| planned.intent.is_none()));
    }
}

/// A filter that temporarily refuses `b`.
#[derive(Debug)]
struct Busy(bool);

impl crate::framework::Filter for Busy {
    fn name(&self) -> &'static str {
        "Busy"
    }
    fn filter(&self, _: &crate::state::Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        match self.0 && &*pod.name == "b" {
            true => Err(SkipReason::new(
                "MaxMigratingPerNode",
                "2 pods of it move already, 2 may",
            )),
            false => Ok(()),
        }
    }
}

#[test]
fn temporarily_refused_pod_keeps_its_rank() {
    let mut world = world(&["node1", "node2"]);
    for (name, node) in [
        ("a", "node1"),
        ("b", "node1"),
        ("c", "node2"),
        ("d", "node2"),
        ("e", "node2"),
    ] {
        world.pod(name, node, requests("1", "1Gi"));
    }
    let run = |busy: bool, over: Value| {
        let strategy = ScaleDownBinPack::new(args(over));
        let plan = balancing(Box::new(strategy), vec![Box::new(Busy(busy))]).run(&world.snapshot());
        (costs(&plan), moved(&plan))
    };
    let (free, _) = run(false, json!({}));
    assert_eq!(free.len(), 5);
    assert_eq!(run(true, json!({})).0, free);
    // In mode EvictDirectly the pod stays.
    let evict = json!({"strategy": "EvictDirectly", "maxPodsToEvict": 5});
    assert!(run(false, evict.clone()).1.contains(&"b".to_owned()));
    assert!(!run(true, evict).1.contains(&"b".to_owned()));
}

#[test]
fn each_pod_that_stays_has_a_reason() {
    let mut world = world(&["node1", "node2"]);
    for name in ["a", "b"] {
        world.pod(name, "node1", labelled("x", "1", "1Gi"));
    }
    world.pod("c", "node1", labelled("y", "1", "1Gi"));
    let over = json!({
        "strategy": "EvictDirectly", "maxPodsToEvict": 1,
        "podSelectors": [{"name": "x", "selector": {"matchLabels": {"app": "x"}}}],
    });
    let plan = framework(over, &[]).run(&world.snapshot());
    assert_eq!(moved(&plan).len(), 1);
    let skipped: Vec<_> = plan
        .skipped
        .iter()
        .map(|skipped| skipped.reason.rule)
        .collect();
    assert_eq!(skipped, ["PodSelectors", "MaxPodsToEvict"]);
}

#[test]
fn replacement_is_not_moved_for_an_hour() {
    let mut world = world(&["node1", "node2"]);
    world.pod("p1", "node1", requests("1", "1Gi"));
    let over = json!({"strategy": "EvictDirectly", "maxPodsToEvict": 5});
    let mut framework = framework(over, &[]);
    assert_eq!(moved(&framework.run(&world.snapshot())), ["p1"]);
    world.pods.clear();
    world.now += jiff::SignedDuration::from_mins(10);
    let created = json!({"metadata": {"creationTimestamp": world.now}});
    world.pod(
        "p2",
        "node2",
        crate::testing::merged(requests("1", "1Gi"), created),
    );
    let plan = framework.run(&world.snapshot());
    assert!(moved(&plan).is_empty());
    assert_eq!(plan.skipped[0].reason.rule, "MovedLately");
    world.now += jiff::SignedDuration::from_mins(50);
    assert_eq!(moved(&framework.run(&world.snapshot())), ["p2"]);
}
