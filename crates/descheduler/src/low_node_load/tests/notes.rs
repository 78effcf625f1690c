//! Notes when nothing moves.

use super::*;
use crate::testing::{OnlyShows, moved};
use jiff::SignedDuration;

/// Returns a cluster with a node that uses 3 of 4 CPUs and one that uses nearly none.
fn hot_and_cold() -> TestCluster {
    let mut world = TestCluster::default();
    for node in ["cold", "hot"] {
        world.node(node, json!({}));
    }
    world.usage("cold", json!({}), json!({"cpu": "100m"}), &[]);
    let pods = ["p1", "p2", "p3"];
    for pod in pods {
        world.pod(pod, "hot", json!({}));
    }
    let usage = pods.map(|pod| (pod, json!({"cpu": "900m"})));
    world.usage("hot", json!({}), json!({"cpu": "300m"}), &usage);
    world
}

fn thresholds() -> Value {
    json!({"lowThresholds": {"cpu": 45}, "highThresholds": {"cpu": 65}})
}

#[test]
fn hot_node_note_counts_cycles() {
    let mut world = hot_and_cold();
    let patient =
        json!({"anomalyCondition": {"consecutiveAbnormalities": 5, "consecutiveNormalities": 3}});
    let mut framework = framework(merged(thresholds(), patient));
    for cycle in 1..=5 {
        let plan = framework.run(&world.snapshot());
        assert!(moved(&plan).is_empty());
        let expected = format!("hot: cpu usage 75.00% > threshold 65.00%, {cycle} of 6 cycles");
        assert_eq!(notes(&plan, "hot"), [expected]);
        let expected_note =
            format!("pool {DEFAULT_POOL}: none of 1 hot nodes was hot for long enough");
        assert_eq!(notes(&plan, ""), [expected_note]);
    }
    // A cycle in which the node is not hot restarts the count.
    let hot = std::mem::take(&mut world.usage);
    world.usage("cold", json!({}), json!({}), &[]);
    world.usage("hot", json!({}), json!({"cpu": "2"}), &[]);
    let plan = framework.run(&world.snapshot());
    assert_eq!(
        notes(&plan, ""),
        [format!(
            "pool {DEFAULT_POOL}: no node is hot; 1 of 2 are cold"
        )]
    );
    world.usage = hot;
    for cycle in 1..=6 {
        let plan = framework.run(&world.snapshot());
        assert_eq!(moved(&plan).len(), usize::from(cycle == 6), "cycle {cycle}");
        if cycle == 6 {
            assert_eq!(
                notes(&plan, "hot"),
                [
                    "hot: cpu usage 75.00% > threshold 65.00%",
                    "1 pods go: it is not hot any more then"
                ]
            );
        }
    }
}

#[test]
fn unusable_node_metrics_are_skipped_with_a_note() {
    let cases = [
        (
            json!({"status": {"updateTime": "2026-01-01T11:56:59Z"}}),
            "its NodeMetric is 181 s old, and expires after 180 s",
        ),
        (
            json!({"status": {"updateTime": "2026-01-01T14:00:00Z"}}),
            "its NodeMetric is of 7200 s in the future",
        ),
        (
            json!({"status": {"updateTime": null}}),
            "its NodeMetric has no status.updateTime",
        ),
        (
            json!({"status": {"nodeMetric": null}}),
            "its NodeMetric has no status.nodeMetric",
        ),
        (
            json!({"status": {"nodeMetric": {"systemUsage": {"resources": {"cpu": "9000000"}}}}}),
            "its NodeMetric says it uses cpu 9M of 4",
        ),
        (
            json!({"status": {"nodeMetric": {"systemUsage": {"resources": {"memory": "9E"}}}}}),
            "its NodeMetric says it uses memory",
        ),
        (
            json!({"status": {"nodeMetric": {"systemUsage": {"resources": {"cpu": "-1"}}}}}),
            "its NodeMetric says it uses cpu -1 of 4",
        ),
    ];
    for (over, expected) in cases {
        let mut world = hot_and_cold();
        let metric = json!({
            "metadata": {"name": "hot", "uid": "hot"}, "spec": {},
            "status": {
                "updateTime": world.now,
                "nodeMetric": {"nodeUsage": {"resources": {}}, "systemUsage": {"resources": {"cpu": "3"}}},
            },
        });
        let metric = serde_json::from_value(merged(metric, over)).unwrap();
        world.usage[1] = Arc::new(crate::state::NodeUsage::new(metric, world.shapes.table()));
        let plan = framework(thresholds()).run(&world.snapshot());
        assert!(moved(&plan).is_empty());
        let texts = notes(&plan, "hot");
        assert!(
            matches!(&texts[..], [one] if one.starts_with(&format!("not looked at: {expected}"))),
            "{texts:?}"
        );
    }
    let mut world = hot_and_cold();
    world.usage.clear();
    let plan = framework(thresholds()).run(&world.snapshot());
    assert_eq!(
        notes(&plan, "cold"),
        ["not looked at: there is no NodeMetric of it"]
    );
}

#[test]
fn every_stop_reason_is_noted() {
    let world = hot_and_cold();
    let run = |over: Value| framework(merged(thresholds(), over)).run(&world.snapshot());
    let plan = run(json!({"paused": true}));
    assert_eq!(notes(&plan, ""), ["paused"]);
    let plan = run(json!({"numberOfNodes": 1}));
    let expected =
        format!("pool {DEFAULT_POOL}: 1 nodes are cold, and numberOfNodes is 1: more are needed");
    assert_eq!(notes(&plan, ""), [expected]);
    let plan = run(json!({"nodeSelector": {"matchLabels": {"pool": "gone"}}}));
    assert_eq!(
        notes(&plan, ""),
        [format!("pool {DEFAULT_POOL}: no node is left for it")]
    );
    let plan = run(json!({"podSelectors": [{"selector": {"matchLabels": {"app": "none"}}}]}));
    assert_eq!(notes(&plan, "hot")[1], "0 pods go: none of 3 may");
    assert_eq!(skip_rules(&plan, "p1"), ["PodSelectors"]);
}

#[test]
fn dry_run_shows_moves_and_records_nothing() {
    let world = hot_and_cold();
    for selection in ["Greedy", "Variance"] {
        let mut framework = framework(merged(
            thresholds(),
            json!({"dryRun": true, "victimSelection": selection}),
        ));
        for _ in 0..2 {
            let plan = framework.run(&world.snapshot());
            assert_eq!(moved(&plan).len(), 1, "{selection}");
            assert!(plan.moves().all(|planned| planned.intent.is_none()));
        }
    }
}

#[test]
fn shown_moves_are_not_recorded() {
    let world = hot_and_cold();
    for selection in ["Greedy", "Variance"] {
        let mut framework = framework(merged(thresholds(), json!({"victimSelection": selection})));
        framework.profiles[0].evictor = Box::new(OnlyShows);
        for cycle in 0..2 {
            let plan = framework.run(&world.snapshot());
            assert_eq!(moved(&plan).len(), 1, "{selection}, cycle {cycle}");
            assert!(notes(&plan, "hot")[0].starts_with("hot"), "{selection}");
        }
    }
}

#[test]
fn pod_with_a_job_is_not_moved_again() {
    let mut world = hot_and_cold();
    let mut framework = framework(thresholds());
    let first = moved(&framework.run(&world.snapshot()));
    assert_eq!(first.len(), 1);
    // The job takes a while: the node counts as relieved meanwhile.
    let plan = framework.run(&world.snapshot());
    assert!(plan.actions.is_empty(), "{:?}", plan.notes);
    // The job failed, and the node is as hot as before: another attempt is due.
    world.now += SignedDuration::from_secs(301);
    world.usage.clear();
    let next = hot_and_cold();
    for usage in next.usage {
        let mut usage = (*usage).clone();
        usage.updated = Some(world.now);
        world.usage.push(Arc::new(usage));
    }
    assert_eq!(moved(&framework.run(&world.snapshot())).len(), 1);
}

#[test]
fn pool_note_counts_nodes_without_usage() {
    let mut world = hot_and_cold();
    let plan = framework(thresholds()).run(&world.snapshot());
    assert!(plan.notes.iter().all(|note| note.node.is_some()));
    world.usage.pop();
    let pools = json!({"nodePools": [{"name": "again"}]});
    let plan = framework(merged(thresholds(), pools)).run(&world.snapshot());
    let skipped = "1 of 2 nodes are not looked at, as node hot: there is no NodeMetric of it";
    let nothing = "no node is hot; 1 of 2 are cold";
    let expected = [DEFAULT_POOL, "again"]
        .map(|pool| [skipped, nothing].map(|skipped| format!("pool {pool}: {skipped}")));
    assert_eq!(notes(&plan, ""), expected.concat());
    assert_eq!(
        notes(&plan, "hot"),
        ["not looked at: there is no NodeMetric of it"]
    );
    world.usage.clear();
    world.now -= SignedDuration::from_secs(400);
    let old = hot_and_cold();
    for usage in old.usage {
        let mut usage = (*usage).clone();
        usage.updated = Some(world.now);
        world.usage.push(Arc::new(usage));
    }
    world.now += SignedDuration::from_secs(400);
    let snapshot = world.snapshot();
    let plan = framework(thresholds()).run(&snapshot);
    let report = crate::report::Report::new(&snapshot, &plan, &[], false);
    for node in ["cold", "hot"] {
        let node = &report.nodes[node];
        assert_eq!(node.problems, ["its NodeMetric is too old"]);
    }
}
