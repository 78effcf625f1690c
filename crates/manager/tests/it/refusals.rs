//! Tests of the manager when its writes are refused, or when it lacks the input to decide.

use crate::cluster::Cluster;
use crate::log::Log;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::Node;
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_kube::api::PostParams;
use koord_kube::{Api, ResourceExt, patch};
use koord_manager::Options;
use serde_json::json;
use std::time::Duration;

/// Returns the API server's message when an admission webhook denies.
fn denial(kind: &str) -> String {
    format!("admission webhook \"guard.example.com\" denied the request: no {kind} today")
}

/// A refused write is retried with growing pauses, and the API server's message is logged once, until a write
/// succeeds.
#[tokio::test(start_paused = true)]
async fn refused_write_backs_off_and_is_logged_once() {
    let cluster = Cluster::start().await;
    let colocation = |percent: i64| {
        let text = json!({"enable": true, "cpuReclaimThresholdPercent": percent}).to_string();
        let threshold = json!({"clusterStrategy": {"cpuSuppressThresholdPercent": percent}});
        json!({"colocation-config": text, "resource-threshold-config": threshold.to_string()})
    };
    cluster.configure(colocation(60)).await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    let kind = |request: &Request<Body>| match (request.method(), request.uri().path()) {
        (&Method::GET, _) => None,
        (_, path) if path.contains("/nodeslos") => Some("NodeSLO"),
        (_, "/api/v1/nodes/n1/status") => Some("Node"),
        _ => None,
    };
    let (client, guard) =
        cluster.guarded_client(kind, |kind| (StatusCode::FORBIDDEN, denial(kind)));
    guard.refuse(true);
    let log = Log::default();
    let _listening = log.listen();
    let manager = koord_manager::run(Options::default(), client, cluster.ctx.clone());
    tokio::spawn(async move { manager.await.unwrap() });
    let mut metrics = cluster.watch::<NodeMetric>();
    metrics.until("a NodeMetric", |_| Some(())).await;
    cluster.report("n1", ("1", "5G"), ("1", "5G")).await;

    tokio::time::sleep(Duration::from_secs(600)).await;
    for kind in ["NodeSLO", "Node"] {
        let tries = guard.request_times(kind);
        let pauses: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let [.., last] = pauses.as_slice() else {
            panic!("{kind}: {tries:?}");
        };
        assert!(pauses.is_sorted(), "{kind}: {pauses:?}");
        assert!(*last > Duration::from_secs(60), "{kind}: {pauses:?}");
        assert_eq!(log.lines_with(&denial(kind)).len(), 1, "{kind}");
    }

    // The write succeeds, and the next refusal is logged again.
    guard.refuse(false);
    let mut slos = cluster.watch::<NodeSLO>();
    slos.until("a NodeSLO", |_| Some(())).await;
    let mut nodes = cluster.watch::<Node>();
    nodes.until("batch resources", batch).await;
    assert_eq!(log.lines_with("denied the request").len(), 2);
    guard.refuse(true);
    cluster.report("n1", ("1", "5G"), ("1", "5G")).await;
    cluster.configure(colocation(40)).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for kind in ["NodeSLO", "Node"] {
        assert_eq!(log.lines_with(&denial(kind)).len(), 2, "{kind}");
    }
}

/// Verifies that zones are planned again after another writer was faster, although nothing else triggers the
/// node.
#[tokio::test(start_paused = true)]
async fn zones_that_met_a_conflict_are_planned_again() {
    let cluster = Cluster::start().await;
    cluster
        .configure(json!({"colocation-config": "{\"enable\": true}"}))
        .await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    let name = |request: &Request<Body>| {
        let path = request.uri().path();
        let zones = path.contains("/noderesourcetopologies/") && request.method() != Method::GET;
        zones.then_some("zones")
    };
    let conflict = |_: &str| {
        (
            StatusCode::CONFLICT,
            "the object has been modified".to_owned(),
        )
    };
    let (client, guard) = cluster.guarded_client(name, conflict);
    guard.refuse(true);
    let manager = koord_manager::run(Options::default(), client, cluster.ctx.clone());
    tokio::spawn(async move { manager.await.unwrap() });
    let mut metrics = cluster.watch::<NodeMetric>();
    metrics.until("a NodeMetric", |_| Some(())).await;
    let objects: Api<NodeResourceTopology> = Api::all(cluster.client.clone());
    objects
        .create(&PostParams::default(), &crate::devices::topology("M"))
        .await
        .unwrap();
    cluster.report("n1", ("1", "5G"), ("1", "5G")).await;
    let mut nodes = cluster.watch::<Node>();
    nodes.until("batch resources", batch).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    // A try each second, not more.
    let tries = guard.request_times("zones").len();
    assert!((8..=13).contains(&tries), "{tries}");
    guard.refuse(false);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let written = objects.get("n1").await.unwrap();
    assert!(
        crate::devices::batch_cpu_by_zone(&written).is_some(),
        "{written:#?}"
    );
    assert_eq!(guard.request_times("zones").len(), 1);
}

/// Until the settings were read once, it is unknown whether a node is supposed to have batch resources: those
/// of an earlier manager stay.
#[tokio::test(start_paused = true)]
async fn unreadable_settings_leave_batch_resources() {
    let cluster = Cluster::start().await;
    cluster.configure(json!({"colocation-config": "{"})).await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    let resources = json!({"kubernetes.io/batch-cpu": "3k", "kubernetes.io/batch-memory": "3G"});
    let resources = json!({"status": {"capacity": resources, "allocatable": resources}});
    patch::merge_node_status(&cluster.client, "n1", &resources)
        .await
        .unwrap();
    cluster.manager(Options::default());
    // Another key of the ConfigMap is valid; its effect shows that the settings were processed.
    let mut slos = cluster.watch::<NodeSLO>();
    slos.until("a NodeSLO", |_| Some(())).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let mut nodes = cluster.watch::<Node>();
    nodes.until("the batch resources of before", batch).await;
    cluster
        .configure(json!({"colocation-config": "{\"enable\": false}"}))
        .await;
    let has_no_batch = |node: &Node| batch(node).is_none().then_some(());
    nodes.until("a node without them", has_no_batch).await;
}

/// Verifies that the metrics of a deleted node are removed, so that a new node of its name starts without
/// them.
#[tokio::test(start_paused = true)]
async fn deleted_node_loses_its_metrics() {
    let cluster = Cluster::start().await;
    cluster
        .configure(json!({"colocation-config": "{\"enable\": true}"}))
        .await;
    for node in ["n1", "n2"] {
        cluster.add_node(node, json!({}), "10", "100G").await;
    }
    cluster.manager(Options::default());
    let mut metrics = cluster.watch::<NodeMetric>();
    let mut nodes = cluster.watch::<Node>();
    for node in ["n1", "n2"] {
        let named = |metric: &NodeMetric| (metric.name_any() == node).then_some(());
        metrics.until("a NodeMetric", named).await;
        cluster.report(node, ("1", "5G"), ("1", "5G")).await;
        let node_batch = |candidate: &Node| {
            if candidate.name_any() == node {
                batch(candidate)
            } else {
                None
            }
        };
        nodes.until("batch resources", node_batch).await;
    }
    let shown = || {
        let text = koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
        let name = "slo_controller_node_extended_resource_allocatable_internal{";
        let series = text.lines().filter(|line| line.starts_with(name));
        let has_series = |node: &str| {
            series
                .clone()
                .any(|line| line.contains(&format!("node=\"{node}\"")))
        };
        (has_series("n1"), has_series("n2"))
    };
    assert_eq!(shown(), (true, true));
    let objects: Api<Node> = Api::all(cluster.client.clone());
    objects.delete("n1", &Default::default()).await.unwrap();
    let is_n1 = |metric: &NodeMetric| metric.name_any() == "n1";
    metrics.until_deleted("the NodeMetric of n1", is_n1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(shown(), (false, true));
}

fn batch(node: &Node) -> Option<()> {
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
    allocatable.get("kubernetes.io/batch-cpu").map(|_| ())
}
