//! Upstream's tests of the parts of LowNodeLoad.

use super::super::greedy::{Excess, by_closeness, closeness};
use super::*;
use koord_model::resources::{Amounts, CPU, MEMORY};

fn pool(value: Value) -> Pool {
    args(value).pools().remove(0)
}

fn single_load<T>(
    world: &TestCluster,
    pool: &Pool,
    then: impl Fn(&Load<'_>, &PoolResources) -> T,
) -> Vec<T> {
    let snapshot = world.snapshot();
    let watched = PoolResources::new(pool, &snapshot.table);
    let departures = crate::framework::Departures::default();
    let load = |node| {
        let departures = departures.for_profile("test");
        Load::read(&snapshot, departures, node, &watched, 180, None).unwrap()
    };
    let mut loads: Vec<_> = snapshot.nodes.iter().map(load).collect();
    set_bounds(&mut loads, &watched);
    loads.iter().map(|load| then(load, &watched)).collect()
}

/// Upstream's `TestOverUtilizedEvictionReason`.
#[test]
fn reasons_are_in_upstreams_words() {
    let half = || json!({"highThresholds": {"cpu": 50, "memory": 50}, "lowThresholds": {"cpu": 0, "memory": 0}});
    let prod = || {
        let prod = json!({"prodHighThresholds": {"cpu": 40, "memory": 40}, "prodLowThresholds": {"cpu": 0, "memory": 0}});
        merged(half(), prod)
    };
    let cases = [
        (
            half(),
            UsageKind::Node,
            ["64", "32Gi"],
            "node is overutilized, node cpu usage(66.67%)>threshold(50.00%)",
        ),
        (
            half(),
            UsageKind::Node,
            ["64", "400Gi"],
            "node is overutilized, node cpu usage(66.67%)>threshold(50.00%), node memory usage(78.12%)>threshold(50.00%)",
        ),
        (
            prod(),
            UsageKind::Prod,
            ["45", "200Gi"],
            "node is overutilized, prod cpu usage(46.88%)>threshold(40.00%)",
        ),
        (
            prod(),
            UsageKind::Prod,
            ["45", "250Gi"],
            "node is overutilized, prod cpu usage(46.88%)>threshold(40.00%), prod memory usage(48.83%)>threshold(40.00%)",
        ),
    ];
    for (args, usage_kind, [cpu, memory], expected) in cases {
        let mut world = TestCluster::default();
        let raw =
            json!({"node.koordinator.sh/raw-allocatable": "{\"cpu\":96,\"memory\":\"512Gi\"}"});
        world.node(
            "test-node",
            json!({
                "metadata": {"annotations": raw},
                "status": {"allocatable": {"cpu": "192", "memory": "512Gi"}},
            }),
        );
        world.pod(
            "p",
            "test-node",
            json!({"metadata": {"labels": {"koordinator.sh/priority-class": "koord-prod"}}}),
        );
        let usage = json!({"cpu": cpu, "memory": memory});
        world.usage("test-node", json!({}), json!({}), &[("p", usage)]);
        let reason = single_load(&world, &pool(args), |load, watched| {
            load.reason(usage_kind, watched)
        });
        assert_eq!(reason, [expected]);
    }
}

/// Upstream's `Test_filterNodes`.
#[test]
fn a_pool_has_the_nodes_that_it_selects() {
    let mut world = TestCluster::default();
    world.node("test-node-1", json!({}));
    world.node(
        "test-node-2",
        json!({"metadata": {"labels": {"test": "true"}}}),
    );
    let names = |pool: &Pool, processed: &[&str]| {
        let processed = processed.iter().map(|name| Arc::from(*name)).collect();
        let nodes = pool_nodes(&world.nodes, pool, &processed).ok()?;
        Some(
            nodes
                .iter()
                .map(|node| node.name.to_string())
                .collect::<Vec<_>>(),
        )
    };
    let selecting = |selector: Value| pool(json!({"nodeSelector": selector}));
    let labelled = |value: &str| selecting(json!({"matchLabels": {"test": value}}));
    let all = vec!["test-node-1".to_owned(), "test-node-2".to_owned()];
    assert_eq!(names(&pool(json!({})), &[]), Some(all.clone()));
    assert_eq!(names(&labelled("true"), &[]), Some(all[1..].to_vec()));
    assert_eq!(names(&labelled("false"), &[]), Some(vec![]));
    let unknown = json!({"matchExpressions": [{"key": "test", "operator": "non-exist-operator"}]});
    assert_eq!(names(&selecting(unknown), &[]), None);
    // Nodes of earlier pools are only excluded by a selector.
    assert_eq!(names(&labelled("true"), &["test-node-2"]), Some(vec![]));
    assert_eq!(names(&pool(json!({})), &["test-node-2"]), Some(all));
}

/// Upstream's `TestResourceUsagePercentages` and `TestSortNodesByUsage…`.
#[test]
fn nodes_are_sorted_by_usage() {
    let weights = json!({"resourceWeights": {"cpu": 1, "memory": 1, "pods": 1}, "lowThresholds": {"cpu": 1}, "highThresholds": {"cpu": 1}});
    let mut world = TestCluster::default();
    let nodes = [
        ("node1", "1730m", "3038982964", 25),
        ("node2", "1220m", "3038982964", 11),
        ("node3", "1530m", "5038982964", 20),
    ];
    for (name, cpu, memory, pods) in nodes {
        world.node(
            name,
            json!({"status": {"allocatable": {"cpu": "32", "memory": "32Gi", "pods": "110"}}}),
        );
        world.usage(name, json!({}), json!({"cpu": cpu, "memory": memory}), &[]);
        for i in 0..pods {
            world.pod(&format!("{name}-{i}"), name, json!({}));
        }
    }
    let scores = single_load(&world, &pool(weights), |load, watched| {
        load.score(UsageKind::Node, watched)
    });
    assert!(scores[2] > scores[0] && scores[0] > scores[1], "{scores:?}");

    let mut world = TestCluster::default();
    world.node(
        "n",
        json!({"status": {"allocatable": {"cpu": "1930m", "memory": "3287692Ki", "pods": "29"}}}),
    );
    world.usage(
        "n",
        json!({}),
        json!({"cpu": "1220m", "memory": "3038982964"}),
        &[],
    );
    for i in 0..11 {
        world.pod(&format!("p{i}"), "n", json!({}));
    }
    let watching =
        json!({"lowThresholds": {"cpu": 1, "pods": 1}, "highThresholds": {"cpu": 1, "pods": 1}});
    let shares = single_load(&world, &pool(watching), |load, _| {
        [0, 1, 2].map(|i| load.percent(UsageKind::Node, i).floor())
    });
    assert_eq!(shares, [[63.0, 90.0, 37.0]]);
}

fn amounts(cpu: i64, memory: i64) -> Amounts {
    let mut out = Amounts::new();
    out.set(CPU, cpu);
    out.set(MEMORY, memory);
    out
}

fn closest(pods: &[Amounts], excess: &[Excess]) -> Vec<usize> {
    let mut order: Vec<_> = (0..pods.len()).collect();
    let score = |at: &usize| Some(closeness(&pods[*at], excess));
    order.sort_by(|a, b| by_closeness(score(a), score(b)));
    order.into_iter().map(|i| i + 1).collect()
}

/// Upstream's `TestSortPodsOnOneOverloadedNode` and `TestSortPods2`.
#[test]
fn closest_pod_to_the_excess_is_first() {
    let excess = |id, amount, weight| Excess { id, amount, weight };
    let pods = [
        (1000, 27_487_790_694),
        (3000, 27_487_790_694),
        (2000, 1),
        (4000, 1),
    ]
    .map(|(cpu, memory)| amounts(cpu, memory));
    assert_eq!(closest(&pods, &[excess(CPU, 10_000, 1)]), [4, 2, 3, 1]);
    let gi = 1 << 30;
    let pods =
        [(2000, 5), (3000, 4), (4000, 3), (5000, 2)].map(|(cpu, memory)| amounts(cpu, memory * gi));
    let excesses = [excess(CPU, 4000, 1), excess(MEMORY, 4 * gi, 2)];
    assert_eq!(closest(&pods, &excesses), [2, 1, 3, 4]);
}

/// Upstream's `TestPodFitsAnyNodeWithThreshold` and `TestBalancePodsSkipsWhenNoTargetNodes`, tested by their
/// outcome.
#[test]
fn pod_too_large_for_every_cold_node_stays() {
    for selection in ["Greedy", "Variance"] {
        let mut world = TestCluster::default();
        for (node, cpu) in [("hot", "3"), ("cold", "1")] {
            world.node(node, json!({}));
            world.usage(
                node,
                json!({}),
                json!({"cpu": cpu}),
                &[("big", json!({"cpu": "1500m"}))][..usize::from(node == "hot")],
            );
        }
        world.pod("big", "hot", json!({}));
        let args = json!({"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 50}, "victimSelection": selection});
        let plan = framework(args.clone()).run(&world.snapshot());
        assert!(crate::testing::moved(&plan).is_empty(), "{selection}");
        assert_eq!(skip_rules(&plan, "big"), ["NodeFit"], "{selection}");
        world.nodes.retain(|node| &*node.name == "hot");
        world.node("warm", json!({}));
        world.usage("warm", json!({}), json!({"cpu": "1600m"}), &[]);
        let plan = framework(args).run(&world.snapshot());
        assert!(plan.skipped.is_empty() && plan.actions.is_empty());
        let texts = notes(&plan, "");
        assert_eq!(texts, ["no node is cold: there is nowhere to go"]);
    }
}
