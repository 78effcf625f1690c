//! Results of strategies, case by case.

use super::*;

/// Replays every case of `table` and returns the number of cases and of evictions.
fn replay(name: &str, table: &str) -> (usize, usize) {
    let cases = cases(table);
    let mut total = 0;
    let mut wrong = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let plugin = case["name"].as_str().unwrap();
        let none = json!({});
        let evictor = case.get("evictor").unwrap_or(&none);
        let built = framework(plugin, &case["args"], evictor);
        if case["refused"] == true {
            // Upstream reports these only in its log, or they depend on other systems such as Prometheus.
            assert!(built.is_err(), "{case}");
            continue;
        }
        let mut framework = built.unwrap();
        let limit = |which: &str| case["limits"][which].as_u64();
        framework.limits.per_node = limit("node");
        framework.limits.per_namespace = limit("namespace");
        framework.limits.total = limit("total");
        let mut world = world(case);
        use_metrics(&mut world, &case["usage"]);
        let plan = framework.run(&snapshot(&world, case));
        let evicted = moved_names(&plan);
        let expected_names = case["who"]
            .as_str()
            .map(|expected_names| expected_names.split_whitespace().collect::<Vec<_>>());
        let right = evicted.len() as u64 == case["count"].as_u64().unwrap()
            && expected_names
                .as_ref()
                .is_none_or(|expected_names| *expected_names == evicted)
            && plan.error.is_none();
        if !right {
            let skipped: Vec<_> = plan
                .skipped
                .iter()
                .map(|skipped| format!("{}: {}", skipped.pod.name, skipped.reason))
                .collect();
            let notes: Vec<_> = plan.notes.iter().map(|note| &note.text).collect();
            wrong.push(format!(
                "{name} {}: {evicted:?} {:?}\n  wanted {} {expected_names:?}\n  kept {skipped:#?}\n  {notes:?}",
                at + 1,
                plan.error,
                case["count"]
            ));
        }
        total += evicted.len();
    }
    assert!(
        wrong.is_empty(),
        "{} of {}: {}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    (cases.len(), total)
}

/// Sets the usage: `{nodes: {name: {cpu, memory}}, pods: {name: {cpu, memory}}}`.
fn use_metrics(world: &mut TestCluster, usage: &Value) {
    let Some(nodes) = usage["nodes"].as_object() else {
        return;
    };
    for (node, used) in nodes {
        let pods = usage["pods"].as_object().unwrap().iter();
        let pods = pods.filter(|(name, _)| {
            world
                .pods
                .iter()
                .any(|pod| *pod.name == ***name && pod.node.as_deref() == Some(node))
        });
        let pods: Vec<_> = pods
            .map(|(name, used)| (name.as_str(), used.clone()))
            .collect();
        world.usage(node, used.clone(), json!({}), &pods);
    }
}

macro_rules! table {
    ($test:ident, $file:literal, $cases:literal, $evicted:literal) => {
        #[test]
        fn $test() {
            assert_eq!(
                replay($file, include_str!(concat!("tables/", $file, ".jsonl"))),
                ($cases, $evicted)
            );
        }
    };
}

table!(pods_that_live_too_long_go, "pod_life_time", 53, 40);
table!(pods_that_failed_go, "failed_pods", 25, 16);
table!(pods_that_restart_too_often_go, "too_many_restarts", 20, 49);
table!(pods_that_do_not_tolerate_taints_go, "node_taints", 23, 14);
table!(
    pods_whose_node_is_not_the_one_they_want_go,
    "node_affinity",
    22,
    6
);
table!(pods_that_do_not_bear_each_other_go, "anti_affinity", 12, 14);
table!(duplicates_go, "duplicates", 25, 24);
table!(pods_of_domains_with_too_many_go, "spread", 38, 98);
table!(
    pods_of_full_nodes_and_of_nearly_empty_ones_go,
    "node_utilization",
    59,
    73
);

// Generated at random, with upstream's results.
table!(random_clusters_have_upstreams_answers, "random", 42, 47);
