//! The state that the recommender keeps between rounds, and how often it writes.

use crate::log::Log;
use crate::recommender::{NAMESPACE, Shop, amounts, workload};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use koord_api::analysis::RecommendationCheckpoint;
use koord_app::flags;
use koord_kube::api::PostParams;
use koord_kube::{Api, ResourceExt, patch};
use koord_manager::{Args, Options};
use serde_json::json;
use std::ffi::OsString;
use std::time::Duration;

/// A user who deletes a Recommendation and creates another one of its name wants to start without the old
/// history.
#[tokio::test(start_paused = true)]
async fn recreated_recommendation_starts_without_history() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    let target = workload("Deployment", "web");
    shop.recommend("web", json!({}), target.clone()).await;
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(30, &[("web", "2", "4Gi")]).await;
    let old = shop.recommendations().get("web").await.unwrap();
    assert!(amounts(&old, "main").unwrap().0 > 2.0);
    // Between two rounds.
    shop.recommendations()
        .delete("web", &Default::default())
        .await
        .unwrap();
    shop.recommend("web", json!({}), target).await;
    shop.measure(20, &[("web", "500m", "1Gi")]).await;
    let new = shop.recommendations().get("web").await.unwrap();
    let (cpu, memory) = amounts(&new, "main").unwrap();
    assert!(cpu < 0.6 && memory < 1200.0, "{cpu} {memory}");
    // Its checkpoints belong to it.
    let saved: Api<RecommendationCheckpoint> =
        Api::namespaced(shop.cluster.client.clone(), NAMESPACE);
    let owner = saved.get("web.main").await.unwrap().owner_references()[0]
        .uid
        .clone();
    assert_eq!(Some(owner), new.uid());
}

/// Returns the kind of object that a request of the recommender writes; `None` for other requests.
fn kind(request: &Request<Body>) -> Option<&'static str> {
    let path = request.uri().path();
    match request.method() {
        &Method::GET => None,
        _ if path.contains("/recommendationcheckpoints") => Some("checkpoint"),
        _ if path.ends_with("/status") && path.contains("/recommendations/") => Some("status"),
        _ => None,
    }
}

fn denied(_: &str) -> (StatusCode, String) {
    (StatusCode::FORBIDDEN, "not today".to_owned())
}

/// Verifies the pauses with one round per minute: 1, 2, 4, 8 and then 16 minutes between two tries. The API
/// server's message is logged once.
#[tokio::test(start_paused = true)]
async fn refused_recommendation_is_retried_with_backoff() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    let (client, guard) = shop.cluster.guarded_client(kind, denied);
    guard.refuse(true);
    let log = Log::default();
    let _listening = log.listen();
    shop.manager(&client, Options::default());
    shop.measure(60, &[("web", "2", "4Gi")]).await;
    let lines = log.lines_with("not today");
    let lines = lines
        .iter()
        .filter(|line| line.contains("failed to write recommendation"));
    assert_eq!(lines.count(), 1);
    let tries = guard.request_times("status");
    let pauses = tries
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs() / 60);
    assert_eq!(pauses.take(5).collect::<Vec<_>>(), [1, 2, 4, 8, 16]);
    // The write succeeds, and later changes are written without a pause.
    guard.refuse(false);
    shop.measure(20, &[("web", "2", "4Gi")]).await;
    let object = shop.recommendations().get("web").await.unwrap();
    assert!(amounts(&object, "main").is_some());
    guard.refuse(false);
    shop.measure(3, &[("web", "4", "8Gi")]).await;
    assert!(!guard.request_times("status").is_empty());
}

/// Verifies that each history is saved every ten minutes, and that a round saves only a limited number of
/// them.
#[tokio::test(start_paused = true)]
async fn histories_are_saved_every_ten_minutes_and_a_few_per_round() {
    let shop = Shop::open().await;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        shop.run(name, &[("main", "1", "1Gi")]).await;
        let labels = json!({"matchLabels": {"app": name}});
        let target = json!({"type": "podSelector", "podSelector": labels});
        shop.recommend(name, json!({}), target).await;
    }
    let (client, guard) = shop.cluster.guarded_client(kind, denied);
    let argv = ["koord-manager", "--recommender-checkpoints-per-round=2"];
    let args = flags::parse::<Args>(argv.map(OsString::from)).unwrap().args;
    let recommender = args.options().unwrap().recommender;
    let options = Options {
        recommender,
        ..Options::default()
    };
    shop.manager(&client, options);
    let used = names.map(|name| (name, "100m", "1Gi"));
    shop.measure(31, &used).await;
    let saves = guard.request_times("checkpoint");
    // Three times for each, or four.
    assert!((15..=20).contains(&saves.len()), "{}", saves.len());
    // No round saves more than two.
    let saves_in_round = |start: usize| {
        let later = saves[start..].iter();
        later
            .take_while(|time| **time - saves[start] < Duration::from_secs(30))
            .count()
    };
    let most = (0..saves.len()).map(saves_in_round).max();
    assert_eq!(most, Some(2));
}

/// Verifies that a history of another Recommendation is not used, such as of a deleted one with the same
/// name.
#[tokio::test(start_paused = true)]
async fn checkpoint_of_another_owner_is_ignored() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    let target = workload("Deployment", "web");
    shop.recommend("web", json!({}), target).await;
    shop.recommend("other", json!({}), workload("Deployment", "other"))
        .await;
    let (ctx, manager) = shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(30, &[("web", "2", "4Gi")]).await;
    ctx.shutdown.cancel();
    manager.await.unwrap();
    let saved: Api<RecommendationCheckpoint> =
        Api::namespaced(shop.cluster.client.clone(), NAMESPACE);
    let mut owner = saved.get("web.main").await.unwrap().owner_references()[0].clone();
    let other = shop.recommendations().get("other").await.unwrap();
    (owner.name, owner.uid) = ("other".to_owned(), other.uid().unwrap());
    let change = json!({"metadata": {"ownerReferences": [owner]}});
    patch::merge(&saved, "web.main", &change).await.unwrap();
    // The last report is read once more.
    shop.measure(1, &[("web", "500m", "1Gi")]).await;
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(10, &[("web", "500m", "1Gi")]).await;
    let object = shop.recommendations().get("web").await.unwrap();
    let (cpu, _) = amounts(&object, "main").unwrap();
    assert!(cpu < 0.6, "{cpu}");
}

/// Verifies that a CRD installed after the start of the manager is detected, and histories are saved from
/// then on.
#[tokio::test(start_paused = true)]
async fn histories_are_saved_once_the_crd_exists() {
    let shop = Shop::open().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(shop.cluster.client.clone());
    let name = "recommendationcheckpoints.analysis.koordinator.sh";
    definitions.delete(name, &Default::default()).await.unwrap();
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    let mut all = koord_api::crd_values().into_iter();
    let definition = all
        .find(|definition| definition["metadata"]["name"] == name)
        .unwrap();
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(15, &[("web", "2", "4Gi")]).await;
    let params = PostParams::default();
    let definition = serde_json::from_value(definition).unwrap();
    definitions.create(&params, &definition).await.unwrap();
    // The manager looks for the CRD every ten minutes.
    shop.measure(25, &[("web", "2", "4Gi")]).await;
    let saved: Api<RecommendationCheckpoint> =
        Api::namespaced(shop.cluster.client.clone(), NAMESPACE);
    let checkpoint = saved.get("web.main").await.unwrap();
    assert_eq!(checkpoint.spec.recommendation, "web");
}
