//! Holder pods of reservations in other plugins.

use super::*;
use koord_api::labels;
use koord_api::scheduling::{ElasticQuota, PodGroup};
use koord_api::slo::NodeMetric;

/// Applies an object that another plugin watches.
fn add_object<T: serde::de::DeserializeOwned + Send + Sync + 'static>(
    world: &mut ReservationWorld,
    kind: &'static str,
    object: Value,
) {
    let new: T = serde_json::from_value(object).unwrap();
    let change = ObjectChange {
        kind,
        action: Action::ADD,
        old: None,
        new: Arc::new(new),
    };
    world.engine.object_changed(&change, world.now);
}

/// Creates a node of 32 cores of which 2 are used, with a threshold of 65 %: 20.8 cores.
fn node_with_usage() -> ReservationWorld {
    let mut world = ReservationWorld::with_plugins(&["LoadAwareScheduling"]);
    world.node("n", 32);
    let report = json!({
        "metadata": {"name": "n"},
        "status": {
            "updateTime": world.now.to_string(),
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": "2", "memory": "1Gi"}}}
        }
    });
    add_object::<NodeMetric>(
        &mut world,
        "nodemetrics.v1alpha1.slo.koordinator.sh",
        report,
    );
    world
}

#[test]
fn reserved_resources_are_no_load() {
    for pods in [
        &[("a", "16", "web", "n (r)")][..],
        &[("a", "8", "web", "n (r)"), ("b", "8", "web", "n (r)")],
        &[("a", "12", "other", "n")],
    ] {
        for cached in [true, false] {
            let mut world = node_with_usage();
            world.caching(cached);
            world.reserve("r", "16", "web", json!({}));
            world.run();
            assert_eq!(world.status("r")["phase"], "Available");
            for (name, cpu, app, fate) in pods {
                world.pod(name, cpu, app, json!({}));
                world.run();
                assert_eq!(world.result_of(name), *fate, "{name} of {pods:?}");
            }
        }
    }
}

/// Places a reservation only where its owners would fit by usage, although the reservation itself uses
/// nothing.
#[test]
fn reservation_follows_load_thresholds() {
    // 85 % of the requested amount is expected to be used.
    for (cpu, placed) in [("20", true), ("24", false)] {
        let mut world = node_with_usage();
        world.reserve("r", cpu, "web", json!({}));
        world.run();
        assert_eq!(world.status("r")["phase"] == "Available", placed, "{cpu}");
        if !placed {
            let message = world.last_message("r");
            assert!(message.contains("cpu usage exceed threshold"), "{message}");
        }
    }
}

fn quota_labels() -> Value {
    json!({"metadata": {"labels": {labels::POD_QUOTA_NAME: "team"}}})
}

#[test]
fn reservation_needs_no_quota() {
    let mut world = ReservationWorld::with_plugins(&["ElasticQuota"]);
    world.node("n", 32);
    let quota = json!({
        "metadata": {"name": "team", "namespace": "quotas", "uid": "team"},
        "spec": {"max": {"cpu": "4"}, "min": {"cpu": "4"}}
    });
    add_object::<ElasticQuota>(
        &mut world,
        "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
        quota,
    );
    // As a migration creates it: for the pod that fills the quota, with the labels of that pod.
    world.pod("old", "4", "any", quota_labels());
    world.run();
    assert_eq!(world.result_of("old"), "n");
    let change = json!({"spec": {"template": quota_labels()}});
    world.reserve("r", "4", "web", change);
    world.run();
    assert_eq!(
        world.status("r")["phase"],
        "Available",
        "{}",
        world.last_message("r")
    );
    // The quota is checked for the owner, and it is full.
    world.pod("new", "4", "web", quota_labels());
    world.run();
    assert!(
        world.last_message("new").contains("Insufficient quotas"),
        "{}",
        world.last_message("new")
    );
    world.pod_gone("old");
    world.later(30);
    assert_eq!(world.result_of("new"), "n (r)");
}

/// Checks that reservations with a gang's label are placed together, as in Koordinator.
#[test]
fn reservations_of_a_gang_are_placed_together() {
    let mut world = ReservationWorld::with_plugins(&["Coscheduling"]);
    world.node("n", 8);
    let group = json!({
        "metadata": {"name": "g", "namespace": "default", "uid": "g"},
        "spec": {"minMember": 2}
    });
    add_object::<PodGroup>(
        &mut world,
        "podgroups.v1alpha1.scheduling.sigs.k8s.io",
        group,
    );
    let member =
        || json!({"spec": {"template": {"metadata": {"labels": {labels::POD_GROUP: "g"}}}}});
    world.reserve("a", "4", "web", member());
    world.run();
    assert_eq!(world.status("a")["nodeName"], Value::Null);
    world.reserve("b", "4", "web", member());
    world.later(30);
    assert_eq!(
        world.status("a")["phase"],
        "Available",
        "{}",
        world.last_message("a")
    );
    assert_eq!(
        world.status("b")["phase"],
        "Available",
        "{}",
        world.last_message("b")
    );
}
