//! Rate and frequency at which profiles are applied to pending pods.

use crate::cluster::{Cluster, typed};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use koord_api::config::ClusterColocationProfile;
use koord_app::features::Gates;
use koord_kube::api::{DeleteParams, PostParams};
use koord_kube::{Api, patch};
use koord_manager::{GATES, Options, ProfileOptions};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn options(profiles: ProfileOptions) -> Options {
    Options {
        gates: Gates::parse(GATES, "ColocationProfileController=true").unwrap(),
        colocation_profile: ProfileOptions {
            by_default: true,
            ..profiles
        },
        ..Options::default()
    }
}

async fn profile(cluster: &Cluster, spec: Value) {
    let profiles: Api<ClusterColocationProfile> = Api::all(cluster.client.clone());
    let profile = json!({"metadata": {"name": "p"}, "spec": spec});
    profiles
        .create(&PostParams::default(), &typed(profile))
        .await
        .unwrap();
}

/// Creates pods that stay pending: there is no scheduler.
async fn pods(cluster: &Cluster, names: impl IntoIterator<Item = String>) -> Api<Pod> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    for name in names {
        let pod = json!({"metadata": {"name": name, "labels": {"job": "yes"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        pods.create(&PostParams::default(), &typed(pod))
            .await
            .unwrap();
    }
    pods
}

fn label(pod: &Pod) -> Option<&str> {
    let labels = pod.metadata.labels.as_ref()?;
    labels.get("from").map(String::as_str)
}

async fn sleep(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_changed_at_the_rate_that_the_flags_allow() {
    let cluster = Cluster::start().await;
    let pods = pods(&cluster, (0..7).map(|index| format!("p{index}"))).await;
    cluster.manager(options(ProfileOptions {
        qps: 0.1,
        burst: 3,
        ..ProfileOptions::default()
    }));
    let changed = async || {
        let all = pods.list(&Default::default()).await.unwrap();
        all.iter().filter(|pod| label(pod).is_some()).count()
    };
    sleep(5).await;
    profile(
        &cluster,
        json!({"selector": {"matchLabels": {"job": "yes"}}, "labels": {"from": "p"}}),
    )
    .await;
    // The burst at once, then a tenth of a pod each second, in rounds of half a minute.
    for want in [3, 6, 7, 7] {
        sleep(5).await;
        assert_eq!(changed().await, want);
        sleep(25).await;
    }
}

#[tokio::test(start_paused = true)]
async fn reverted_pod_is_left_alone_for_five_minutes() {
    let cluster = Cluster::start().await;
    let pods = pods(&cluster, ["p".to_owned()]).await;
    cluster.manager(options(ProfileOptions::default()));
    sleep(5).await;
    profile(
        &cluster,
        json!({"selector": {"matchLabels": {"job": "yes"}}, "labels": {"from": "p"}}),
    )
    .await;
    sleep(5).await;
    let now = async || label(&pods.get("p").await.unwrap()).map(str::to_owned);
    assert_eq!(now().await.as_deref(), Some("p"));
    let back = json!({"metadata": {"labels": {"from": null}}});
    patch::merge(&pods, "p", &back).await.unwrap();
    sleep(240).await;
    assert_eq!(now().await, None);
    // Five minutes after the profile was applied.
    sleep(90).await;
    assert_eq!(now().await.as_deref(), Some("p"));
    // Another version of the profile is applied at once.
    patch::merge(&pods, "p", &back).await.unwrap();
    let profiles: Api<ClusterColocationProfile> = Api::all(cluster.client.clone());
    let other = json!({"spec": {"labels": {"from": "q"}}});
    patch::merge(&profiles, "p", &other).await.unwrap();
    sleep(5).await;
    assert_eq!(now().await.as_deref(), Some("q"));
}

/// Verifies that the pod is read again first, because the cache may be stale: a pod that runs meanwhile stays
/// as it is, and so does a new one with the same name.
#[tokio::test(start_paused = true)]
async fn pod_is_read_again_before_it_is_changed() {
    let cluster = Cluster::start().await;
    let pods = pods(&cluster, ["waits", "runs", "other"].map(str::to_owned)).await;
    // The manager lists pods once and gets no updates afterwards.
    let is_old = Arc::new(AtomicBool::new(false));
    let old = is_old.clone();
    let name = move |request: &Request<Body>| {
        let is_pods = request.uri().path() == "/api/v1/pods";
        let query = request.uri().query().unwrap_or_default();
        let is_news = query.contains("watch=") || old.load(Ordering::Relaxed);
        (is_pods && is_news).then_some("news")
    };
    let broken = |_: &str| (StatusCode::FORBIDDEN, "no news".to_owned());
    let (client, guard) = cluster.guarded_client(name, broken);
    guard.refuse(true);
    let options = options(ProfileOptions::default());
    let manager = koord_manager::run(options, client, cluster.ctx.clone());
    tokio::spawn(async move { manager.await.unwrap() });
    sleep(5).await;
    is_old.store(true, Ordering::Relaxed);
    let runs = json!({"status": {"phase": "Running"}});
    patch::merge_status(&pods, "runs", &runs).await.unwrap();
    let before = pods.get("other").await.unwrap();
    let now = DeleteParams::default().grace_period(0);
    pods.delete("other", &now).await.unwrap();
    let mut other = before.clone();
    other.metadata.resource_version = None;
    other.metadata.uid = None;
    let other = pods.create(&PostParams::default(), &other).await.unwrap();
    assert_ne!(other.metadata.uid, before.metadata.uid);
    profile(
        &cluster,
        json!({"selector": {"matchLabels": {"job": "yes"}}, "labels": {"from": "p"}}),
    )
    .await;
    sleep(60).await;
    assert!(!guard.request_times("news").is_empty());
    let mut changed = Vec::new();
    for name in ["waits", "runs", "other"] {
        if label(&pods.get(name).await.unwrap()).is_some() {
            changed.push(name);
        }
    }
    assert_eq!(changed, ["waits"]);
}
