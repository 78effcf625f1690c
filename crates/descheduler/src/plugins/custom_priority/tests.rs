use super::*;
use crate::framework::{Framework, Limits, Plan};
use crate::migration::tests::{args as migration_args, job, replicas};
use crate::plugins::migration_controller;
use crate::testing::{
    AllBut, OnlyShows, Refuses, TestCluster, balancing, configured, merged, moved, requests,
};
use serde_json::{Value, json};

/// Returns arguments with gold before silver before bronze, modified by `over`.
fn tiers(over: Value) -> Value {
    let class = |tier: &str| json!({"name": tier, "nodeSelector": {"matchLabels": {"tier": tier}}});
    let order = ["gold", "silver", "bronze"].map(class);
    merged(json!({"evictionOrder": order}), over)
}

fn framework(over: Value, blocked: &'static [&'static str]) -> Framework {
    let args = serde_json::from_value(tiers(over)).unwrap();
    check(&args).unwrap();
    balancing(
        Box::new(CustomPriority::new(args)),
        vec![Box::new(AllBut(blocked))],
    )
}

fn node(world: &mut TestCluster, name: &str, tier: &str, cpu: &str, pods: &str) {
    let allocatable = json!({"cpu": cpu, "memory": "1Gi", "pods": pods});
    world.node(
        name,
        json!({"metadata": {"labels": {"tier": tier}}, "status": {"allocatable": allocatable}}),
    );
}

/// Returns a cluster: `s1` is gold, `t1` silver with one CPU, `t2` bronze with half of one.
fn world() -> TestCluster {
    let mut world = TestCluster::default();
    node(&mut world, "s1", "gold", "8", "100");
    node(&mut world, "t1", "silver", "1", "100");
    node(&mut world, "t2", "bronze", "500m", "100");
    world
}

fn cordoned(plan: &Plan) -> Vec<(usize, String)> {
    let actions = plan.actions.iter().enumerate();
    let cordons = actions.filter_map(|(at, action)| match action {
        Action::Cordon { node, .. } => Some((at, node.to_string())),
        _ => None,
    });
    cordons.collect()
}

#[test]
fn arguments_have_upstreams_defaults() {
    let args: CustomPriorityArgs = serde_json::from_value(json!({"mode": ""})).unwrap();
    let written = serde_json::to_value(args).unwrap();
    let expected = json!({
        "paused": false, "dryRun": false, "podSelectors": [], "nodeFit": true, "evictionOrder": [],
        "mode": "BestEffort", "autoCordon": false,
    });
    assert_eq!(written, expected);
}

#[test]
fn arguments_that_cannot_be_meant_are_refused_by_field() {
    let class = |name: &str, label: &str| json!({"name": name, "nodeSelector": {"matchLabels": {label: "1"}}});
    let with = |over: Value| {
        merged(
            json!({"evictionOrder": [class("p1", "a"), class("p2", "b")]}),
            over,
        )
    };
    let bad = json!({"matchExpressions": [{"key": "app", "operator": "Invalid"}]});
    for (args, wanted) in [
        (with(json!({})), None),
        (with(json!({"mode": "DrainNode", "autoCordon": true})), None),
        (
            with(
                json!({"evictionOrder": [merged(class("p1", "a"), json!({"keepThreshold": {}})), class("p2", "b")]}),
            ),
            None,
        ),
        (
            json!({}),
            Some("evictionOrder: at least 2 classes of nodes are needed, there are 0"),
        ),
        (
            json!({"evictionOrder": [class("p1", "a")]}),
            Some("evictionOrder: at least 2"),
        ),
        (
            json!({"evictionOrder": [class("p1", "a"), class("p1", "b")]}),
            Some("evictionOrder[1].name: \"p1\" is there twice"),
        ),
        (
            json!({"evictionOrder": [class("p1", "a"), {"name": "p2"}]}),
            Some("evictionOrder[1].nodeSelector: is missing"),
        ),
        (
            json!({"evictionOrder": [class("", "a"), class("p2", "b")]}),
            Some("evictionOrder[0].name: is missing"),
        ),
        (
            json!({"evictionOrder": [class("p1", "a"), {"name": "p2", "nodeSelector": bad}]}),
            Some("args.evictionOrder[1].nodeSelector"),
        ),
        (
            json!({"evictionOrder": [merged(class("p1", "a"), json!({"keepThreshold": {"cpu": 50}})), class("p2", "b")]}),
            Some("evictionOrder[0].keepThreshold[cpu]: 50"),
        ),
        (
            json!({"evictionOrder": [class("p1", "a"), merged(class("p2", "b"), json!({"rejectThreshold": {"cpu": 80}}))]}),
            Some("evictionOrder[1].rejectThreshold[cpu]: 80"),
        ),
        (
            with(json!({"mode": "Drain"})),
            Some("args.mode: unknown variant `Drain`"),
        ),
        (
            with(json!({"podSelectors": [{"name": "bad", "selector": bad}]})),
            Some("args.podSelectors[0].selector"),
        ),
        (
            with(json!({"evictableNamespaces": {"include": ["a"], "exclude": ["b"]}})),
            Some("evictableNamespaces: only one of"),
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
}

#[test]
fn pods_leave_expensive_nodes_for_cheaper_ones() {
    let mut world = world();
    world.pod("p1", "s1", requests("10m", "10"));
    world.pod("p2", "s1", requests("20m", "20"));
    world.pod("q", "t1", requests("10m", "10"));
    world.pod("r", "t2", requests("10m", "10"));
    let plan = framework(json!({}), &[]).run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1", "p2", "q"]);
    let reasons: Vec<_> = plan
        .moves()
        .map(|planned| planned.reason.as_str())
        .collect();
    assert_eq!(
        reasons[0],
        "evicting from gold priority resource to lower priority resource"
    );
    assert_eq!(
        reasons[2],
        "evicting from silver priority resource to lower priority resource"
    );
    for (over, expected) in [
        (json!({"paused": true}), vec![]),
        (
            json!({"nodeSelector": {"matchLabels": {"none": "x"}}}),
            vec![],
        ),
        (
            json!({"nodeSelector": {"matchLabels": {"tier": "gold"}}}),
            vec![],
        ),
        (
            json!({"nodeSelector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["silver"]}]}}),
            vec!["p1", "p2"],
        ),
        (
            json!({"podSelectors": [{"name": "s1", "selector": {"matchLabels": {"app": "b"}}}]}),
            vec![],
        ),
        (
            json!({"evictableNamespaces": {"exclude": ["default"]}}),
            vec![],
        ),
    ] {
        assert_eq!(
            moved(&framework(over.clone(), &[]).run(&world.snapshot())),
            expected,
            "{over}"
        );
    }
    assert_eq!(
        moved(&framework(json!({}), &["p1"]).run(&world.snapshot())),
        ["p2", "q"]
    );
}

#[test]
fn node_belongs_to_the_first_matching_class() {
    let mut world = world();
    node(&mut world, "n", "copper", "8", "100");
    world.pod("p", "s1", requests("700m", "10"));
    world.pod("lost", "n", requests("10m", "10"));
    let twice = json!({"evictionOrder": [
        {"name": "a", "nodeSelector": {"matchLabels": {"tier": "gold"}}},
        {"name": "b", "nodeSelector": {"matchLabels": {"tier": "silver"}}},
        {"name": "c", "nodeSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["silver", "gold"]}]}},
    ]});
    let plan = framework(twice, &[]).run(&world.snapshot());
    assert_eq!(
        moved(&plan),
        ["p"],
        "a node without a class gives nothing, and class c has no node"
    );
}

#[test]
fn small_pods_go_first_by_cpu_then_memory_then_name() {
    let mut world = world();
    for (name, cpu, memory) in [
        ("a", "200m", "100"),
        ("b", "100m", "500"),
        ("c", "100m", "100"),
        ("d", "100m", "100"),
    ] {
        world.pod(name, "s1", requests(cpu, memory));
    }
    // The requests of all main containers count.
    let two = json!([
        {"name": "c", "resources": {"requests": {"cpu": "75m", "memory": "50"}}},
        {"name": "d", "resources": {"requests": {"cpu": "75m", "memory": "50"}}},
    ]);
    world.pod("e", "s1", json!({"spec": {"containers": two, "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "300m"}}}]}}));
    assert_eq!(
        moved(&framework(json!({}), &[]).run(&world.snapshot())),
        ["c", "d", "b", "e", "a"]
    );
}

#[test]
fn pods_that_ended_stay() {
    let mut world = world();
    world.pod(
        "ended",
        "s1",
        merged(
            requests("10m", "10"),
            json!({"status": {"phase": "Succeeded"}}),
        ),
    );
    assert!(moved(&framework(json!({}), &[]).run(&world.snapshot())).is_empty());
}

#[test]
fn five_misfits_in_a_row_end_the_search() {
    let mut world = world();
    for (name, cpu) in [
        ("small", "100m"),
        ("mid", "400m"),
        ("big", "2"),
        ("big2", "3"),
        ("big3", "3"),
    ] {
        world.pod(name, "s1", requests(cpu, "100"));
    }
    let evicted =
        |world: &TestCluster, over: Value| moved(&framework(over, &[]).run(&world.snapshot()));
    assert_eq!(evicted(&world, json!({})), ["small", "mid"]);
    assert_eq!(evicted(&world, json!({"nodeFit": false})).len(), 5);
    // The sixth is no larger, but would fit an empty node.
    for name in ["big4", "big5", "big6"] {
        world.pod(name, "s1", requests("3", "100"));
    }
    let own = json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "t3"}}});
    node(&mut world, "t3", "bronze", "8", "100");
    for pod in ["big", "big2", "big3", "big4", "big5", "big6"] {
        world.pods.retain(|existing| &*existing.name != pod);
    }
    let elsewhere = json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "gone"}}});
    for name in ["m1", "m2", "m3", "m4"] {
        world.pod(name, "s1", merged(requests("2", "100"), elsewhere.clone()));
    }
    world.pod("last", "s1", merged(requests("3", "100"), own.clone()));
    assert_eq!(evicted(&world, json!({})), ["small", "mid", "last"]);
    // A pod that fits in between restarts the count.
    let mut longer = world.clone();
    longer.pod(
        "n1",
        "s1",
        merged(requests("3500m", "100"), elsewhere.clone()),
    );
    longer.pod("largest", "s1", merged(requests("4", "100"), own));
    let expected = ["small", "mid", "last", "largest"];
    assert_eq!(evicted(&longer, json!({})), expected);
    world.pod("m5", "s1", merged(requests("2", "100"), elsewhere));
    let plan = framework(json!({}), &[]).run(&world.snapshot());
    assert_eq!(moved(&plan), ["small", "mid"]);
    let last = plan.skipped.last().unwrap();
    assert_eq!((&*last.pod.name, last.reason.rule), ("last", "NodeFit"));
    assert!(
        last.reason.detail.contains("5 pods that are no larger"),
        "{}",
        last.reason
    );
}

#[test]
fn pods_that_go_together_do_not_share_room() {
    // Upstream would evict all four, as each of them fits alone.
    let mut world = world();
    for name in ["p1", "p2", "p3", "p4"] {
        world.pod(name, "s1", requests("450m", "100"));
    }
    let plan = framework(json!({}), &[]).run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1", "p2", "p3"]);
    assert_eq!(&*plan.skipped[0].reason.detail, "2 insufficient cpu");
    // Nor do they share pod slots.
    let mut world = TestCluster::default();
    node(&mut world, "s1", "gold", "8", "100");
    node(&mut world, "t1", "silver", "8", "3");
    world.pod("there", "t1", requests("10m", "10"));
    world.pod("ended", "t1", json!({"status": {"phase": "Failed"}}));
    for name in ["p1", "p2", "p3"] {
        world.pod(name, "s1", requests("10m", "10"));
    }
    let plan = framework(json!({}), &[]).run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1", "p2"]);
    assert_eq!(&*plan.skipped[0].reason.detail, "1 insufficient pods");
}

#[test]
fn a_node_is_drained_if_all_its_pods_fit_elsewhere() {
    let drain = || json!({"mode": "DrainNode", "autoCordon": true});
    let mut world = world();
    for name in ["p1", "p2", "p3"] {
        world.pod(name, "s1", requests("450m", "100"));
    }
    let plan = framework(drain(), &[]).run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1", "p2", "p3"]);
    assert!(
        plan.moves()
            .all(|planned| planned.reason == "drain node s1 (sourcePriority=gold)")
    );
    assert!(
        plan.moves()
            .all(|planned| planned.drains.as_deref() == Some("s1"))
    );
    assert_eq!(
        cordoned(&plan),
        [(0, "s1".to_owned())],
        "before the first of them goes"
    );
    assert!(
        cordoned(&framework(json!({"mode": "DrainNode"}), &[]).run(&world.snapshot())).is_empty()
    );
    // A fourth pod does not fit: none is evicted, unless it is protected anyway.
    world.pod("p4", "s1", requests("450m", "100"));
    let plan = framework(drain(), &[]).run(&world.snapshot());
    assert!(plan.actions.is_empty());
    assert_eq!(
        plan.notes[0].text,
        "is not drained: default/p4 fits no cheaper node: 2 insufficient cpu"
    );
    assert_eq!(
        moved(&framework(drain(), &["p1"]).run(&world.snapshot())),
        ["p2", "p3", "p4"]
    );
}

#[test]
fn unused_capacity_is_released() {
    let mut world = world();
    node(&mut world, "s2", "gold", "8", "100");
    world.pod("p1", "s1", requests("900m", "100"));
    world.pod("p2", "s1", requests("7", "100"));
    world.pod("q", "s2", requests("900m", "100"));
    let plan = framework(json!({"mode": "DrainNode"}), &[]).run(&world.snapshot());
    assert_eq!(moved(&plan), ["q"]);
    // But the capacity for pods that move stays allocated.
    world.pods.retain(|pod| &*pod.name != "p2");
    let plan = framework(json!({"mode": "DrainNode"}), &[]).run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1"]);
}

#[test]
fn drained_pods_have_a_place_each_whatever_else_is_looked_at() {
    let mut world = TestCluster::default();
    node(&mut world, "s1", "gold", "8", "100");
    node(&mut world, "t1", "silver", "8", "2");
    for name in ["p1", "p2"] {
        world.pod(
            name,
            "s1",
            merged(
                requests("10m", "10"),
                json!({"spec": {"nodeSelector": {"disk": "ssd"}}}),
            ),
        );
    }
    let evicted = |world: &TestCluster, fit: bool| {
        moved(&framework(json!({"mode": "DrainNode", "nodeFit": fit}), &[]).run(&world.snapshot()))
    };
    assert!(evicted(&world, true).is_empty());
    assert_eq!(evicted(&world, false), ["p1", "p2"]);
    world.pod("p3", "s1", requests("10m", "10"));
    assert!(evicted(&world, false).is_empty());
}

#[test]
fn dry_run_and_undrained_node_cordon_nothing() {
    let mut world = world();
    world.pod("p1", "s1", requests("100m", "100"));
    world.pod("p2", "s1", requests("100m", "100"));
    for mode in ["BestEffort", "DrainNode"] {
        let over = json!({"mode": mode, "autoCordon": true, "dryRun": true});
        let plan = framework(over, &[]).run(&world.snapshot());
        assert_eq!(moved(&plan), ["p1", "p2"]);
        assert!(cordoned(&plan).is_empty());
        assert!(plan.moves().all(|planned| planned.intent.is_none()));
        let mut unfiltered = framework(json!({"mode": mode, "autoCordon": true}), &[]);
        unfiltered.dry_run = true;
        assert!(cordoned(&unfiltered.run(&world.snapshot())).is_empty());
        let mut shows = framework(json!({"mode": mode, "autoCordon": true}), &[]);
        shows.profiles[0].evictor = Box::new(OnlyShows);
        let plan = shows.run(&world.snapshot());
        assert_eq!(moved(&plan), ["p1", "p2"]);
        assert!(cordoned(&plan).is_empty(), "{mode}");
    }
    let mut refused = framework(json!({"mode": "DrainNode", "autoCordon": true}), &[]);
    refused.profiles[0].evictor = Box::new(Refuses(&["p2"]));
    let plan = refused.run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1"]);
    assert!(
        cordoned(&plan).is_empty(),
        "a node that keeps pods stays schedulable"
    );
    assert!(
        plan.notes[0]
            .text
            .starts_with("is not drained completely: default/p2 stays")
    );
}

/// A node whose pods leave in several cycles gets no pods meanwhile.
#[test]
fn limited_drain_cordons_with_the_first_move() {
    let mut world = world();
    world.pod("p1", "s1", requests("100m", "100"));
    world.pod("p2", "s1", requests("100m", "100"));
    let drain = || json!({"mode": "DrainNode", "autoCordon": true});
    let limits = |total, per_node, per_namespace| Limits {
        total,
        per_node,
        per_namespace,
    };
    for limits in [
        limits(Some(1), None, None),
        limits(None, Some(1), None),
        limits(None, None, Some(1)),
    ] {
        let mut limited = framework(drain(), &[]);
        limited.limits = limits;
        let plan = limited.run(&world.snapshot());
        assert_eq!(moved(&plan), ["p1"]);
        assert_eq!(cordoned(&plan), [(0, "s1".to_owned())]);
        let expected = "is drained over several cycles: 1 of 2 pods follow";
        assert_eq!(plan.notes[0].text, expected);
    }
    let mut none = framework(drain(), &[]);
    none.limits.total = Some(0);
    let plan = none.run(&world.snapshot());
    assert!(plan.actions.is_empty(), "no move, no cordon");
}

/// Returns the plan of a drain of `world` with MigrationController's default limits.
fn drain_by_migration(world: &TestCluster) -> Plan {
    let built = migration_controller::build(migration_args(json!({})), "test");
    let mut framework = framework(json!({"mode": "DrainNode", "autoCordon": true}), &[]);
    framework.profiles[0].filters = vec![built.filter.unwrap()];
    framework.profiles[0].evictor = built.evict.unwrap();
    let mut snapshot = world.snapshot();
    replicas(&mut snapshot, "rs", 2);
    replicas(&mut snapshot, "other", 2);
    framework.run(&snapshot)
}

/// One of two replicas may move at a time, and with the first the node is unschedulable.
#[test]
fn drain_within_migration_limits_cordons_with_the_first_move() {
    let mut world = world();
    world.pod("p1", "s1", requests("100m", "100"));
    world.pod("p2", "s1", requests("100m", "100"));
    let plan = drain_by_migration(&world);
    assert_eq!(moved(&plan), ["p1"]);
    assert_eq!(cordoned(&plan), [(0, "s1".to_owned())]);
    assert_eq!(skipped_pods(&plan), ["p2 MaxMigratingPerWorkload"]);
    // The second waits while the first moves, and follows.
    world.jobs.push(job("j", "p1", json!({})));
    assert!(drain_by_migration(&world).actions.is_empty());
    world.jobs.clear();
    world.pods.retain(|pod| &*pod.name != "p1");
    world.pod("p3", "t1", requests("100m", "100"));
    assert_eq!(moved(&drain_by_migration(&world)), ["p2"]);
}

#[test]
fn pod_that_waits_needs_a_place_before_others_leave() {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "other", "uid": "other", "controller": true}]);
    let other = merged(
        requests("100m", "100"),
        json!({"metadata": {"ownerReferences": owner}}),
    );
    for (cpu, expected) in [("200m", &["q"][..]), ("7", &[][..])] {
        let mut world = world();
        world.pod("p1", "s1", requests(cpu, "100"));
        world.pod("q", "s1", other.clone());
        // While this replica moves, the other one waits.
        world.pod("p2", "t1", requests("100m", "100"));
        world.jobs.push(job("j", "p2", json!({})));
        let plan = drain_by_migration(&world);
        assert_eq!(moved(&plan), expected, "{cpu}");
        assert_eq!(cordoned(&plan).len(), expected.len(), "{cpu}");
        let waits = "p1 MaxMigratingPerWorkload".to_owned();
        assert!(skipped_pods(&plan).contains(&waits), "{cpu}");
    }
}

#[test]
fn unschedulable_node_is_not_cordoned_again() {
    let mut world = world();
    world.nodes.retain(|node| &*node.name != "s1");
    world.node(
        "s1",
        json!({"metadata": {"labels": {"tier": "gold"}}, "spec": {"unschedulable": true}}),
    );
    world.pod("p1", "s1", requests("100m", "100"));
    let plan =
        framework(json!({"mode": "DrainNode", "autoCordon": true}), &[]).run(&world.snapshot());
    assert_eq!((moved(&plan).len(), cordoned(&plan).len()), (1, 0));
}

fn skipped_pods(plan: &Plan) -> Vec<String> {
    let skipped = plan.skipped.iter();
    let mut skipped: Vec<_> = skipped
        .map(|skipped| format!("{} {}", skipped.pod.name, skipped.reason.rule))
        .collect();
    skipped.sort();
    skipped
}

#[test]
fn each_pod_that_stays_has_a_reason() {
    let mut world = world();
    for name in ["p1", "p2", "p3"] {
        world.pod(name, "s1", requests("450m", "100"));
    }
    for mode in ["BestEffort", "DrainNode"] {
        let args = |over: Value| merged(json!({"mode": mode}), over);
        let excluding = args(json!({"evictableNamespaces": {"exclude": ["default"]}}));
        let plan = framework(excluding, &[]).run(&world.snapshot());
        assert_eq!(
            skipped_pods(&plan),
            ["p1 Namespaces", "p2 Namespaces", "p3 Namespaces"]
        );
        let labels = json!({"podSelectors": [{"selector": {"matchLabels": {"app": "b"}}}]});
        let plan = framework(args(labels), &[]).run(&world.snapshot());
        assert_eq!(skipped_pods(&plan)[0], "p1 PodSelectors");
    }
    let mut limited = framework(json!({"mode": "DrainNode"}), &[]);
    limited.limits.total = Some(1);
    let plan = limited.run(&world.snapshot());
    assert_eq!(
        skipped_pods(&plan),
        ["p2 MaxNoOfPodsToEvictTotal", "p3 MaxNoOfPodsToEvictTotal"]
    );
    world.pod("p4", "s1", requests("450m", "100"));
    let plan = framework(json!({"mode": "DrainNode"}), &[]).run(&world.snapshot());
    let expected = ["p1 NodeStays", "p2 NodeStays", "p3 NodeStays", "p4 NodeFit"];
    assert_eq!(skipped_pods(&plan), expected);
}

#[test]
fn replacement_moves_only_when_its_node_is_drained() {
    for (mode, expected) in [("BestEffort", &[][..]), ("DrainNode", &["p2"][..])] {
        let mut world = world();
        world.pod("p1", "s1", requests("100m", "100"));
        let mut framework = framework(json!({"mode": mode}), &[]);
        assert_eq!(moved(&framework.run(&world.snapshot())), ["p1"]);
        world.pods.clear();
        world.now += jiff::SignedDuration::from_mins(10);
        let created = json!({"metadata": {"creationTimestamp": world.now}});
        world.pod("p2", "t1", merged(requests("100m", "100"), created));
        let plan = framework.run(&world.snapshot());
        assert_eq!(moved(&plan), expected, "{mode}");
        let resting = skipped_pods(&plan) == ["p2 MovedLately"];
        assert_eq!(resting, expected.is_empty(), "{mode}");
    }
}
