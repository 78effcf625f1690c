use crate::cluster::Cluster;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::resources::BATCH_CPU;
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_app::Context;
use koord_kube::Api;
use koord_kube::lease::Election;
use koord_manager::{LEASE_NAME, Options};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

#[tokio::test(start_paused = true)]
pub(crate) async fn standby_takes_over_when_leader_stops() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    let start = |identity: &str| {
        let options = Options {
            election: Some(Election::new("koordinator-system", LEASE_NAME, identity)),
            ..Options::default()
        };
        let ctx = Context::with_clock(cluster.ctx.clock.clone());
        let run = koord_manager::run(options, cluster.limited.clone(), ctx.clone());
        (tokio::spawn(run), ctx)
    };
    let (first, first_ctx) = start("first");
    let mut metrics = cluster.watch::<NodeMetric>();
    metrics
        .until("a NodeMetric by the first", |_| Some(()))
        .await;
    let (second, second_ctx) = start("second");
    first_ctx.shutdown.cancel();
    first.await.unwrap().unwrap();
    cluster.add_node("n2", json!({}), "10", "100G").await;
    metrics
        .until("a NodeMetric by the second", |metric| {
            (metric.metadata.name.as_deref() == Some("n2")).then_some(())
        })
        .await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "koordinator-system");
    let lease = leases.get(LEASE_NAME).await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.as_deref(), Some("second"));
    let text = koord_app::metrics::encode(&second_ctx.metrics).unwrap();
    assert!(text.contains("koordinator_manager_is_leader 1"));
    second_ctx.shutdown.cancel();
    second.await.unwrap().unwrap();
}

/// Returns the resource versions of all objects that the manager writes.
async fn versions(cluster: &Cluster) -> BTreeMap<String, Option<String>> {
    let mut all = BTreeMap::new();
    let nodes = Api::<Node>::all(cluster.client.clone());
    let metrics = Api::<NodeMetric>::all(cluster.client.clone());
    let slos = Api::<NodeSLO>::all(cluster.client.clone());
    let params = Default::default();
    let mut add = |kind: &str, meta: &ObjectMeta| {
        let name = meta.name.as_deref().unwrap_or_default();
        all.insert(format!("{kind} {name}"), meta.resource_version.clone());
    };
    for node in nodes.list(&params).await.unwrap() {
        add("Node", &node.metadata);
    }
    for metric in metrics.list(&params).await.unwrap() {
        add("NodeMetric", &metric.metadata);
    }
    for slo in slos.list(&params).await.unwrap() {
        add("NodeSLO", &slo.metadata);
    }
    all
}

/// A leader that loses the API server stops before its lease expires, and the next leader has nothing left to
/// write.
#[tokio::test(start_paused = true)]
async fn standby_takes_over_and_writes_nothing_twice() {
    let cluster = Cluster::start().await;
    cluster
        .configure(json!({"colocation-config": "{\"enable\": true}"}))
        .await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    let start = |identity: &str, client| {
        let options = Options {
            election: Some(Election::new("koordinator-system", LEASE_NAME, identity)),
            ..Options::default()
        };
        let ctx = Context::with_clock(cluster.ctx.clock.clone());
        tokio::spawn(koord_manager::run(options, client, ctx))
    };
    let (client, cut) = cluster.cuttable_client();
    let first = start("first", client);
    let mut metrics = cluster.watch::<NodeMetric>();
    metrics
        .until("a NodeMetric by the first", |_| Some(()))
        .await;
    cluster.report("n1", ("1", "5G"), ("1", "5G")).await;
    let mut slos = cluster.watch::<NodeSLO>();
    slos.until("a NodeSLO", |_| Some(())).await;
    let mut nodes = cluster.watch::<Node>();
    let has_batch = |node: &Node| {
        let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
        allocatable.get(BATCH_CPU).map(drop)
    };
    nodes.until("batch resources", has_batch).await;
    let second = start("second", cluster.limited.clone());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = versions(&cluster).await;

    cut.cancel();
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "koordinator-system");
    let ended = tokio::time::timeout(Duration::from_secs(15), first).await;
    assert!(ended.unwrap().unwrap().is_err(), "the lease is lost");
    let lease = leases.get(LEASE_NAME).await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.as_deref(), Some("first"), "still");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let lease = leases.get(LEASE_NAME).await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.as_deref(), Some("second"));
    assert_eq!(versions(&cluster).await, before);

    cluster.add_node("n2", json!({}), "10", "100G").await;
    metrics
        .until("a NodeMetric by the second", |metric| {
            (metric.metadata.name.as_deref() == Some("n2")).then_some(())
        })
        .await;
    second.abort();
}
