//! Invalid objects, and pods that have to wait, against an API server: the events that their owners see.

use crate::api::{TestCluster, allocatable};
use k8s_openapi::api::core::v1::{Event, Pod};
use koord_kube::Api;
use koord_kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

impl TestCluster {
    async fn create_any(&self, object: Value) {
        let text = |key: &str| object[key].as_str().unwrap().to_owned();
        let (group, version) = text("apiVersion")
            .split_once('/')
            .map(|(group, version)| (group.to_owned(), version.to_owned()))
            .unwrap();
        let kind = GroupVersionKind::gvk(&group, &version, &text("kind"));
        let resource = ApiResource::from_gvk(&kind);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

fn reservation(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut value = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {"ttl": "1h", "owners": [{"labelSelector": {"matchLabels": {"app": "a"}}}],
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers":
                [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}}
    });
    change(&mut value);
    value
}

/// One reservation decodes and is rejected, the other cannot be decoded at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_reservations_get_an_event_and_no_node() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("8"), json!([])).await;
    let scheduler = cluster.schedule(|_| {});
    for (name, path, value, parts) in [
        (
            "negative-ttl",
            "/spec/ttl",
            json!("-1h"),
            ["spec.ttl", "-1h", "expected 0"],
        ),
        (
            "unreadable-ttl",
            "/spec/ttl",
            json!("5 minutes"),
            ["spec.ttl", "5 minutes", "unit"],
        ),
        (
            "negative-cpu",
            "/spec/template/spec/containers/0/resources/requests/cpu",
            json!("-1"),
            ["[cpu]", "\"-1\"", "expected 0 or more"],
        ),
        (
            "unreadable-template",
            "/spec/template/spec/containers",
            json!(7),
            ["spec.template", "containers", "7"],
        ),
    ] {
        let bad = reservation(name, |all| *all.pointer_mut(path).unwrap() = value);
        cluster.create_any(bad).await;
        let message = cluster.event("InvalidConfiguration", name).await;
        for part in parts {
            assert!(message.contains(part), "{name}: {message}");
        }
    }
    // All other reservations work.
    cluster.create_any(reservation("good", |_| {})).await;
    let available = |name: &'static str| {
        move |object: &koord_api::scheduling::Reservation| {
            let phase = object.status.as_ref()?.phase.as_ref()?.as_str();
            let named = object.metadata.name.as_deref() == Some(name);
            (named && phase == "Available").then_some(())
        }
    };
    cluster.until("good", available("good")).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_of_a_workload_waits_and_blocks_no_other() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("8"), json!([])).await;
    let scheduler = cluster.schedule(|_| {});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "grouped", "namespace": "default"},
        "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "i"}],
            "workloadRef": {"name": "w", "podGroup": "g"}}
    }))
    .unwrap();
    cluster
        .pods()
        .create(&PostParams::default(), &pod)
        .await
        .unwrap();
    let (reason, message) = cluster.refused("grouped", |_| true).await;
    assert_eq!(reason, "Unschedulable");
    assert!(
        message.contains("spec.workloadRef names \"g\" of \"w\""),
        "{message}"
    );
    let event = cluster.event("FailedScheduling", "grouped").await;
    assert_eq!(event, message);
    cluster.pod("other", json!({"cpu": "1"})).await;
    assert_eq!(cluster.bound("other").await, "n");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_quotas_and_pod_groups_get_events() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("8"), json!([])).await;
    let scheduler = cluster.schedule(|_| {});
    let group = |kind: &str, name: &str, spec: Value, labels: Value| {
        json!({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": kind, "spec": spec,
            "metadata": {"name": name, "namespace": "default", "labels": labels}})
    };
    let amounts = json!({"max": {"cpu": "4"}, "min": {"cpu": "5"}});
    let parent = |name: &str| json!({"quota.scheduling.koordinator.sh/parent": name});
    for (object, parts) in [
        (
            group("PodGroup", "none", json!({"minMember": -1}), json!({})),
            ["spec.minMember", "-1", "1 or more"],
        ),
        (
            group("ElasticQuota", "large", amounts, json!({})),
            ["spec.min[cpu]", "\"5\"", "at most"],
        ),
        (
            group(
                "ElasticQuota",
                "own",
                json!({"max": {"cpu": "4"}}),
                parent("own"),
            ),
            [
                "quota.scheduling.koordinator.sh/parent",
                "\"own\"",
                "another quota",
            ],
        ),
    ] {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        cluster.create_any(object).await;
        let message = cluster.event("InvalidConfiguration", &name).await;
        for part in parts {
            assert!(message.contains(part), "{name}: {message}");
        }
    }
    // A pod of a PodGroup that does not exist gets an event.
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "orphan", "namespace": "default",
            "labels": {"pod-group.scheduling.sigs.k8s.io": "missing"}},
        "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "i"}]}
    }))
    .unwrap();
    cluster
        .pods()
        .create(&PostParams::default(), &pod)
        .await
        .unwrap();
    let (reason, message) = cluster.refused("orphan", |_| true).await;
    assert_eq!(reason, "Unschedulable");
    assert!(message.contains("default/missing"), "{message}");
    let events: Api<Event> = Api::all(cluster.client.clone());
    let events = events.list(&Default::default()).await.unwrap();
    let reported = events
        .items
        .iter()
        .filter(|event| event.reason.as_deref() == Some("InvalidConfiguration"));
    assert_eq!(reported.count(), 3, "each once");
    scheduler.stop().await;
}
