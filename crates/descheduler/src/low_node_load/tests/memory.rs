//! State between cycles, and tentative placements.

use super::*;
use crate::framework::Placement;
use crate::testing::moved;
use jiff::SignedDuration;

pub(super) fn thresholds() -> Value {
    json!({"lowThresholds": {"cpu": 45}, "highThresholds": {"cpu": 65}})
}

pub(super) fn owned_by(owner: &str, created: &str) -> Value {
    json!({"metadata": {
        "creationTimestamp": created,
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true}],
    }})
}

/// A node: its name, CPU in milli-cores that no pod uses, and pods with their usage.
pub(super) type Described<'a> = (&'a str, i64, &'a [(&'a str, i64)]);

/// Returns a cluster of nodes with a NodeMetric each.
pub(super) fn world(nodes: &[Described<'_>]) -> TestCluster {
    let mut world = TestCluster::default();
    for (node, _, pods) in nodes {
        world.node(node, json!({}));
        for (pod, _) in *pods {
            world.pod(
                pod,
                node,
                owned_by(&format!("rs-{pod}"), "2026-01-01T00:00:00Z"),
            );
        }
    }
    report(&mut world, nodes);
    world
}

pub(super) fn report(world: &mut TestCluster, nodes: &[Described<'_>]) {
    world.usage.clear();
    for (node, system, pods) in nodes {
        let pods: Vec<_> = pods
            .iter()
            .map(|(pod, cpu)| (*pod, json!({"cpu": format!("{cpu}m")})))
            .collect();
        world.usage(node, json!({}), json!({"cpu": format!("{system}m")}), &pods);
    }
}

#[test]
fn replacement_is_not_moved_for_an_hour() {
    rests("Variance");
}

#[test]
fn replacement_is_not_moved_with_greedy_selection() {
    rests("Greedy");
}

fn rests(how: &str) {
    let hot: &[Described<'_>] = &[("a", 1800, &[("p1", 1000)]), ("b", 100, &[])];
    let mut world = world(hot);
    let mut framework = framework(merged(thresholds(), json!({"victimSelection": how})));
    assert_eq!(moved(&framework.run(&world.snapshot())), ["p1"]);
    // The replacement runs on b, which is hot now for other reasons, and a is cold.
    world.pods.clear();
    world.now += SignedDuration::from_mins(10);
    let created = world.now.to_string();
    world.pod("p2", "b", owned_by("rs-p1", &created));
    let turned: &[Described<'_>] = &[("a", 100, &[]), ("b", 1800, &[("p2", 1000)])];
    report(&mut world, turned);
    let plan = framework.run(&world.snapshot());
    assert!(moved(&plan).is_empty());
    assert_eq!(skip_rules(&plan, "p2"), ["MovedLately"]);
    // A pod of another owner may be moved.
    world.pod("q", "b", owned_by("rs-q", &created));
    let with_other: &[Described<'_>] = &[("a", 100, &[]), ("b", 800, &[("p2", 1000), ("q", 1000)])];
    report(&mut world, with_other);
    assert_eq!(moved(&framework.run(&world.snapshot())), ["q"]);
    // An hour after its own move the replacement may be moved, too.
    world.pods.retain(|pod| &*pod.name == "p2");
    world.now += SignedDuration::from_mins(50);
    report(&mut world, turned);
    assert_eq!(moved(&framework.run(&world.snapshot())), ["p2"]);
}

#[test]
fn expected_usage_fills_but_does_not_heat_a_node() {
    let hot: &[Described<'_>] = &[
        ("a", 1000, &[("p1", 1700)]),
        ("b", 900, &[]),
        ("c", 1000, &[("q1", 1700)]),
    ];
    let mut world = world(hot);
    let mut framework = framework(thresholds());
    // Both would move to b; with one of them it is full.
    let plan = framework.run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1"]);
    assert_eq!(
        notes(&plan, "c")[1],
        "0 pods go: what the cold nodes take of cpu is used up"
    );
    // The replacement runs, and its usage is not reported yet.
    world.pods.retain(|pod| &*pod.name != "p1");
    world.now += SignedDuration::from_secs(60);
    let created = world.now.to_string();
    world.pod("p2", "b", owned_by("rs-p1", &created));
    let unchanged: &[Described<'_>] = &[
        ("a", 500, &[]),
        ("b", 1600, &[]),
        ("c", 1000, &[("q1", 1700)]),
    ];
    report(&mut world, unchanged);
    let plan = framework.run(&world.snapshot());
    assert!(notes(&plan, "b").is_empty(), "{:?}", plan.notes);
    assert_eq!(moved(&plan), ["q1"], "to a, which is cold");
    // The reported usage counts, and once the move is settled nothing else.
    world.now += SignedDuration::from_secs(300);
    let settled: &[Described<'_>] = &[
        ("a", 1000, &[]),
        ("b", 1600, &[("p2", 1700)]),
        ("c", 1000, &[]),
    ];
    report(&mut world, settled);
    assert_eq!(
        notes(&framework.run(&world.snapshot()), "b")[0],
        "hot: cpu usage 82.50% > threshold 65.00%"
    );
}

#[test]
fn pods_that_are_gone_do_not_make_a_node_hot() {
    let hot: &[Described<'_>] = &[("a", 1800, &[("p1", 400)]), ("b", 100, &[])];
    let mut world = world(hot);
    let ghost: &[Described<'_>] = &[("a", 1800, &[("p1", 400), ("ghost", 900)]), ("b", 100, &[])];
    report(&mut world, ghost);
    let run = |how: &str| {
        moved(
            &framework(merged(thresholds(), json!({"victimSelection": how})))
                .run(&world.snapshot()),
        )
    };
    assert!(run("Variance").is_empty());
    assert_eq!(run("Greedy"), ["p1"], "as upstream");
}

/// A placement without a target for some pods, and with one target for all others.
#[derive(Debug)]
struct Picky(&'static [&'static str], &'static str);

impl Placement for Picky {
    fn begin(&mut self, _: &Snapshot) {}
    fn place_tentatively(
        &mut self,
        _: &Snapshot,
        pod: &Arc<PodInfo>,
    ) -> Result<Arc<str>, SkipReason> {
        match self.0.contains(&&*pod.name) {
            true => Err(SkipReason::new("NoTarget", "nothing takes it")),
            false => Ok(self.1.into()),
        }
    }
}

#[test]
fn pod_without_target_stays_others_move() {
    let nodes: &[Described<'_>] = &[
        ("a", 1600, &[("p1", 800), ("p2", 700), ("p3", 300)]),
        ("b", 100, &[]),
        ("c", 1000, &[]),
    ];
    let world = world(nodes);
    let mut framework = framework(thresholds());
    framework.placement = Some(Box::new(Picky(&["p1"], "c")));
    let plan = framework.run(&world.snapshot());
    assert_eq!(moved(&plan)[0], "p2");
    assert_eq!(skip_rules(&plan, "p1"), ["NoTarget"]);
    assert!(
        plan.moves()
            .all(|planned| planned.target.as_deref() == Some("c"))
    );
    // They are expected there, and not on the node with more capacity.
    assert_eq!(
        notes(&framework.run(&world.snapshot()), ""),
        [format!(
            "pool {DEFAULT_POOL}: no node is hot; 1 of 3 are cold"
        )]
    );
}

#[test]
fn less_important_pod_is_evicted_first() {
    let nodes: &[Described<'_>] = &[
        ("a", 1600, &[("big", 1000), ("small", 100)]),
        ("b", 100, &[]),
    ];
    let mut world = world(nodes);
    let class =
        |class: &str| json!({"metadata": {"labels": {"koordinator.sh/priority-class": class}}});
    world.pods.clear();
    world.pod("big", "a", class("koord-prod"));
    world.pod("small", "a", class("koord-batch"));
    let plan = framework(thresholds()).run(&world.snapshot());
    assert_eq!(moved(&plan), ["small"], "{:?}", plan.notes);
    let first = framework(merged(thresholds(), json!({"highThresholds": {"cpu": 50}})))
        .run(&world.snapshot());
    assert_eq!(moved(&first), ["small", "big"]);
}

#[test]
fn among_equal_pods_the_best_balance_wins() {
    let nodes: &[Described<'_>] = &[
        ("a", 1400, &[("p1", 200), ("p2", 1200), ("p3", 300)]),
        ("b", 500, &[]),
        ("c", 1700, &[]),
    ];
    let world = world(nodes);
    let run = |how: &str| {
        moved(
            &framework(merged(thresholds(), json!({"victimSelection": how})))
                .run(&world.snapshot()),
        )
    };
    assert_eq!(run("Variance"), ["p2"]);
    // The excess is 500m: p2 uses 2.4 times that, p3 0.6 and p1 0.4 of it.
    assert_eq!(run("Greedy"), ["p2"]);
    let nodes: &[Described<'_>] = &[("a", 1400, &[("p1", 550), ("p2", 1200)]), ("b", 300, &[])];
    let world = self::world(nodes);
    let run = |how: &str| {
        moved(
            &framework(merged(thresholds(), json!({"victimSelection": how})))
                .run(&world.snapshot()),
        )
    };
    assert_eq!(run("Variance"), ["p2"]);
    assert_eq!(run("Greedy"), ["p1"]);
}

#[test]
fn pools_are_gone_through_in_order_and_a_plan_is_the_same_again() {
    let nodes: &[Described<'_>] = &[
        ("a", 1800, &[("p1", 900), ("p2", 900)]),
        ("b", 1800, &[("q1", 900), ("q2", 900)]),
        ("c", 100, &[]),
        ("d", 100, &[]),
    ];
    let mut world = world(nodes);
    let pooled = merged(
        thresholds(),
        json!({
            "nodePools": [{"name": "again"}, {"name": "strict", "nodeSelector": {}, "highThresholds": {"cpu": 10}, "lowThresholds": {"cpu": 5}}],
        }),
    );
    let plan = framework(pooled.clone()).run(&world.snapshot());
    let first = moved(&plan);
    // No pod is evicted twice, although the second pool has the same nodes.
    assert_eq!(
        first
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        first.len()
    );
    // The nodes of the first pool are excluded from the last one.
    assert!(
        first.len() >= 2
            && plan
                .notes
                .iter()
                .all(|note| !note.text.contains("threshold 10.00%")),
        "{:?}",
        plan.notes
    );
    for _ in 0..20 {
        fastrand::shuffle(&mut world.nodes);
        fastrand::shuffle(&mut world.pods);
        let repeated = framework(pooled.clone()).run(&world.snapshot());
        assert_eq!(
            (moved(&repeated), &repeated.notes),
            (first.clone(), &plan.notes)
        );
    }
}

#[test]
fn moving_pod_is_not_requested_again() {
    let nodes: &[Described<'_>] = &[("a", 2700, &[("p1", 400)]), ("b", 100, &[])];
    let world = world(nodes);
    let mut framework = framework(thresholds());
    assert_eq!(moved(&framework.run(&world.snapshot())), ["p1"]);
    let plan = framework.run(&world.snapshot());
    assert!(moved(&plan).is_empty());
    assert_eq!(skip_rules(&plan, "p1"), ["MovesAlready"]);
}

#[test]
fn no_pod_is_moved_by_two_pools_of_a_cycle() {
    let nodes: &[Described<'_>] = &[
        ("a", 1800, &[("p1", 900)]),
        ("b", 100, &[]),
        ("e", 100, &[]),
    ];
    let world = world(nodes);
    let but_e = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["e"]}]});
    let pooled = json!({
        "nodeSelector": but_e,
        "nodePools": [{"name": "all", "highThresholds": {"cpu": 40}, "lowThresholds": {"cpu": 10}}],
    });
    let plan = framework(merged(thresholds(), pooled)).run(&world.snapshot());
    assert_eq!(moved(&plan), ["p1"]);
    assert!(skip_rules(&plan, "p1").is_empty());
}

#[test]
fn unschedulable_node_is_not_cold() {
    let nodes: &[Described<'_>] = &[("a", 1800, &[("p1", 900)]), ("b", 100, &[])];
    let mut world = world(nodes);
    world.nodes.retain(|node| &*node.name != "b");
    world.node("b", json!({"spec": {"unschedulable": true}}));
    for selection in ["Greedy", "Variance"] {
        let args = json!({"nodeFit": false, "victimSelection": selection});
        let plan = framework(merged(thresholds(), args)).run(&world.snapshot());
        assert!(
            moved(&plan).is_empty() && plan.skipped.is_empty(),
            "{selection}"
        );
    }
}

/// A node that is hot by prod usage, next to two that are full of batch pods: node usage would become less
/// even.
#[test]
fn prod_pods_move_by_prod_usage() {
    let class =
        |class: &str| json!({"metadata": {"labels": {"koordinator.sh/priority-class": class}}});
    let mut world = TestCluster::default();
    for (node, prod, batch) in [("a", 4, 0), ("b", 0, 1), ("c", 0, 1)] {
        world.node(node, json!({}));
        let mut pods = Vec::new();
        for i in 0..prod {
            pods.push((format!("p{i}"), "koord-prod", "600m"));
        }
        for i in 0..batch {
            pods.push((format!("{node}-batch{i}"), "koord-batch", "2200m"));
            pods.push((format!("{node}-prod{i}"), "koord-prod", "400m"));
        }
        for (name, of, _) in &pods {
            world.pod(name, node, class(of));
        }
        let used: Vec<_> = pods
            .iter()
            .map(|(name, _, cpu)| (name.as_str(), json!({"cpu": cpu})))
            .collect();
        world.usage(node, json!({}), json!({}), &used);
    }
    let args = json!({
        "lowThresholds": {"cpu": 45}, "highThresholds": {"cpu": 85},
        "prodLowThresholds": {"cpu": 30}, "prodHighThresholds": {"cpu": 50},
    });
    for selection in ["Greedy", "Variance"] {
        let args = merged(args.clone(), json!({"victimSelection": selection}));
        let plan = framework(args).run(&world.snapshot());
        assert_eq!(moved(&plan).len(), 1, "{selection}: {:?}", plan.notes);
        assert!(moved(&plan)[0].starts_with('p'), "{selection}");
    }
    // No node accepts a pod that would make it hot.
    let tight = merged(args, json!({"highThresholds": {"cpu": 75}}));
    let plan = framework(tight).run(&world.snapshot());
    assert_eq!(moved(&plan), Vec::<String>::new());
}
