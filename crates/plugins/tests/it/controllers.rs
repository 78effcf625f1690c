//! `--controller-plugins`: the controllers in plugins can run in another process.

use crate::small::{engine_with, node};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use koord_api::labels;
use koord_api::scheduling::{ElasticQuota, PodGroup, Reservation};
use koord_scheduler::engine::{Engine, Output};
use koord_scheduler::framework::{Action, BuildContext, ObjectChange, Verb};
use serde_json::{Value, json};
use std::any::Any;
use std::sync::Arc;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn add<K: serde::de::DeserializeOwned + Any + Send + Sync>(
    engine: &mut Engine,
    kind: &'static str,
    value: Value,
) {
    let new: Arc<K> = Arc::new(serde_json::from_value(value).unwrap());
    let change = ObjectChange {
        kind,
        action: Action::ADD,
        old: None,
        new,
    };
    let change = engine.plugins().as_delivered(change);
    engine.object_changed(&change, at(0));
}

/// Returns the number of writes of the plugin's controller in a minute, for a PodGroup with a running member,
/// a quota with a pod, and an expired reservation.
fn writes(plugin: &str, controllers: &str) -> usize {
    let context = BuildContext {
        controllers: koord_app::flags::selection(controllers).unwrap(),
        ..BuildContext::default()
    };
    let mut engine = engine_with(&[plugin], json!({}), &context);
    node(
        &mut engine,
        "n",
        json!({"cpu": "8", "memory": "8Gi", "pods": "110"}),
    );
    let group = "scheduling.sigs.k8s.io/v1alpha1";
    let meta = json!({"name": "x", "namespace": "ns", "uid": "x-uid"});
    match plugin {
        "Coscheduling" => add::<PodGroup>(
            &mut engine,
            "podgroups.v1alpha1.scheduling.sigs.k8s.io",
            json!({"apiVersion": group, "kind": "PodGroup", "metadata": meta,
                "spec": {"minMember": 1}}),
        ),
        "ElasticQuota" => add::<ElasticQuota>(
            &mut engine,
            "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
            json!({"apiVersion": group, "kind": "ElasticQuota", "metadata": meta,
                "spec": {"max": {"cpu": "8"}, "min": {"cpu": "4"}}}),
        ),
        _ => add::<Reservation>(
            &mut engine,
            "reservations.v1alpha1.scheduling.koordinator.sh",
            json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
                "metadata": {"name": "x", "uid": "x-uid", "creationTimestamp": at(-90)},
                "spec": {
                    "ttl": "1m",
                    "owners": [{"labelSelector": {"matchLabels": {"app": "x"}}}],
                    "template": {"spec": {"containers": [{"name": "c",
                        "resources": {"requests": {"cpu": "1"}}}]}}
                },
                "status": {"phase": "Available", "nodeName": "n",
                    "allocatable": {"cpu": "1"}}}),
        ),
    }
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "p",
            "labels": {"pod-group.scheduling.sigs.k8s.io": "x", labels::POD_QUOTA_NAME: "x"}},
        "spec": {"nodeName": "n", "containers": [
            {"name": "c", "resources": {"requests": {"cpu": "1"}}}
        ]},
        "status": {"phase": "Running"}
    }))
    .unwrap();
    engine.pod_applied(Arc::new(pod), at(0));
    let mut writes = 0;
    for second in 1..60 {
        engine.schedule_one(at(second));
        let changes = engine.take_outputs().into_iter();
        let changes = changes.filter(|output| match output {
            Output::Write(write) => !matches!(write.verb, Verb::Create(_)),
            _ => false,
        });
        writes += changes.count();
    }
    writes
}

#[test]
fn only_chosen_controllers_write() {
    for plugin in ["Coscheduling", "ElasticQuota", "Reservation"] {
        assert!(writes(plugin, "*") > 0, "{plugin}");
        assert!(writes(plugin, plugin) > 0, "{plugin} by name");
        assert_eq!(
            writes(plugin, &format!("*,-{plugin}")),
            0,
            "{plugin} excluded"
        );
        assert_eq!(writes(plugin, "Other"), 0, "{plugin} not chosen");
    }
}
