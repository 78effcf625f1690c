//! Events for invalid objects that validation did not see.

use crate::cluster::{Cluster, typed};
use k8s_openapi::api::core::v1::Event;
use koord_api::config::ClusterColocationProfile;
use koord_api::scheduling::ElasticQuota;
use koord_kube::Api;
use koord_kube::api::PostParams;
use koord_manager::Options;
use koord_manager::webhook::ServeMode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Returns the messages of the events with `reason`, each after the name of its object. Waits first, so that
/// the manager has time to write them.
async fn messages(cluster: &Cluster, reason: &str) -> Vec<String> {
    tokio::time::sleep(Duration::from_secs(30)).await;
    let events: Api<Event> = Api::all(cluster.client.clone());
    let events = events.list(&Default::default()).await.unwrap().items;
    let events = events
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some(reason));
    let text = |event: Event| {
        let name = event.involved_object.name.unwrap_or_default();
        format!("{name}: {}", event.message.unwrap_or_default())
    };
    let mut messages: Vec<_> = events.map(text).collect();
    messages.sort();
    messages
}

async fn quota(cluster: &Cluster, name: &str, labels: Value, spec: Value) {
    let quotas: Api<ElasticQuota> = Api::namespaced(cluster.client.clone(), "default");
    let quota = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
    let params = PostParams::default();
    quotas.create(&params, &typed(quota)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn invalid_quotas_get_one_event_for_each_problem() {
    const PARENT: &str = "quota.scheduling.koordinator.sh/parent";
    const IS_PARENT: &str = "quota.scheduling.koordinator.sh/is-parent";
    let cluster = Cluster::start().await;
    quota(
        &cluster,
        "a",
        json!({PARENT: "b", IS_PARENT: "true"}),
        json!({}),
    )
    .await;
    quota(
        &cluster,
        "b",
        json!({PARENT: "a", IS_PARENT: "true"}),
        json!({}),
    )
    .await;
    let over = json!({"min": {"cpu": "4"}, "max": {"cpu": "2"}});
    quota(&cluster, "c", json!({IS_PARENT: "maybe"}), over).await;
    cluster.manager(Options::default());
    let events = messages(&cluster, "InvalidQuota").await;
    let want = [
        ["a: ", "\"b\"", "/parent]"],
        ["b: ", "\"a\"", "/parent]"],
        ["c: ", "\"4\"", "spec.min.cpu"],
        ["c: ", "\"maybe\"", "/is-parent]"],
    ];
    assert_eq!(events.len(), want.len(), "{events:?}");
    for (message, parts) in events.iter().zip(want) {
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    // A new problem of another quota does not repeat the events.
    quota(&cluster, "d", json!({PARENT: "gone"}), json!({})).await;
    let events = messages(&cluster, "InvalidQuota").await;
    assert_eq!(events.len(), want.len() + 1, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn invalid_profiles_get_events() {
    let cluster = Cluster::start().await;
    let profiles: Api<ClusterColocationProfile> = Api::all(cluster.client.clone());
    let bad = json!([{"key": "app", "operator": "Is", "values": ["x"]}]);
    for (name, spec) in [
        ("a", json!({"probability": "200%"})),
        ("b", json!({"selector": {"matchExpressions": bad}})),
        ("c", json!({"priorityClassName": "koord-nothing"})),
    ] {
        let profile = typed(json!({"metadata": {"name": name}, "spec": spec}));
        profiles
            .create(&PostParams::default(), &profile)
            .await
            .unwrap();
    }
    cluster.manager(Options {
        webhooks: ServeMode::InProcess(Arc::new(|_| ())),
        ..Options::default()
    });
    let events = messages(&cluster, "InvalidProfile").await;
    let want = [
        ["a: ", "spec.probability", "200"],
        ["b: ", "spec.selector", "\"Is\""],
        ["c: ", "spec.priorityClassName", "koord-nothing"],
    ];
    assert_eq!(events.len(), want.len(), "{events:?}");
    for (message, parts) in events.iter().zip(want) {
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}
