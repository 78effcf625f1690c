use super::super::*;
use crate::testing::TestCluster;
use serde_json::{Value, json};

fn pod(world: &mut TestCluster, name: &str, priority: i32, qos: &str, kube: &str, over: Value) {
    let pod = json!({
        "metadata": {"labels": {"koordinator.sh/qosClass": qos}},
        "spec": {"priority": priority},
        "status": {"qosClass": kube},
    });
    world.pod(name, "test-node", crate::testing::merged(pod, over));
}

/// Upstream's `TestSortPods`. Where it leaves two pods in any order (16 and 18, 17 and 19), it expects the
/// outcome of its own sort; here the order is by name, descending.
#[test]
fn pods_are_sorted_as_upstream_does() {
    let mut world = TestCluster::default();
    let newer = || json!({"metadata": {"creationTimestamp": "2026-01-01T00:01:00Z"}});
    let costs = |deletion: Option<i32>, eviction: Option<i32>| {
        let mut annotations = serde_json::Map::new();
        let keys = [
            ("controller.kubernetes.io/pod-deletion-cost", deletion),
            ("scheduling.koordinator.sh/eviction-cost", eviction),
        ];
        for (key, cost) in keys {
            if let Some(cost) = cost {
                annotations.insert(key.to_owned(), cost.to_string().into());
            }
        }
        json!({"metadata": {"annotations": annotations}})
    };
    let none = || json!({});
    let (least, some, all) = ("BestEffort", "Burstable", "Guaranteed");
    let pods = [
        (1, 0, "", least, none()),
        (10, 0, "", all, none()),
        (11, 0, "", some, none()),
        (12, 8, "", least, none()),
        (13, 9, "", all, none()),
        (14, 10, "", some, none()),
        (5, 9999, "LSE", all, none()),
        (6, 9998, "LSE", all, none()),
        (3, 9899, "LS", some, none()),
        (9, 5000, "BE", some, none()),
        (2, 9000, "LS", some, none()),
        (8, 5999, "BE", some, none()),
        (15, 5000, "BE", least, none()),
        (16, 5000, "BE", least, newer()),
        (17, 5000, "BE", least, none()),
        (18, 5000, "BE", least, newer()),
        (19, 5000, "BE", least, none()),
        (20, 5000, "BE", least, costs(Some(200), None)),
        (21, 5000, "BE", least, costs(Some(100), None)),
        (22, 5000, "BE", least, costs(Some(200), Some(200))),
        (23, 5000, "BE", least, costs(Some(200), Some(100))),
        (4, 9919, "LSR", all, none()),
        (7, 9899, "LS", all, none()),
    ];
    for (number, priority, qos, kube, over) in pods {
        pod(
            &mut world,
            &format!("test-{number}"),
            priority,
            qos,
            kube,
            over,
        );
    }
    // No usage exceeds a threshold, so only known or unknown usage matters.
    let measured = |pod: &crate::state::PodInfo| {
        ["test-16", "test-17", "test-18", "test-19"].contains(&&*pod.name)
    };
    let mut pods = world.pods.clone();
    for _ in 0..50 {
        fastrand::shuffle(&mut pods);
        sort_by(&mut pods, |a, b| measured(b).cmp(&measured(a)));
        let order: Vec<_> = pods
            .iter()
            .map(|pod| pod.name.trim_start_matches("test-"))
            .collect();
        assert_eq!(
            order.join(" "),
            "1 12 18 16 19 17 15 21 20 23 22 9 8 11 10 13 14 2 3 7 4 6 5"
        );
    }
}

#[test]
fn costs_that_are_no_numbers_count_as_none() {
    let mut world = TestCluster::default();
    for (name, cost) in [
        ("a", "-1"),
        ("b", "+5"),
        ("c", "007"),
        ("d", "much"),
        ("e", "1"),
    ] {
        let annotations = json!({"controller.kubernetes.io/pod-deletion-cost": cost});
        world.pod(name, "n", json!({"metadata": {"annotations": annotations}}));
    }
    let mut pods = world.pods.clone();
    sort(&mut pods);
    let order: Vec<_> = pods.iter().map(|pod| &*pod.name).collect();
    assert_eq!(order, ["a", "d", "c", "b", "e"]);
}
