//! A dry run next to objects of another manager.

use crate::cluster::{Cluster, typed};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use koord_api::config::ClusterColocationProfile;
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_host::testing::eventually_within;
use koord_kube::api::{ListParams, PostParams};
use koord_kube::{Api, patch};
use koord_manager::Options;
use koord_manager::webhook::ServeMode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns the JSON page at `path`.
async fn page(address: std::net::SocketAddr, path: &str) -> Option<Value> {
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

fn find<'a>(report: &'a Value, resource: &str, name: &str) -> Option<&'a Value> {
    let mut all = report["differences"].as_array()?.iter();
    all.find(|it| it["object"]["resource"] == resource && it["object"]["name"] == name)
}

/// Returns the values of a field on the API server and in the dry run.
fn field(difference: &Value, name: &str) -> Option<(Value, Value)> {
    let mut changes = difference["changes"].as_array()?.iter();
    let change = changes.find(|it| it["field"] == name)?;
    Some((change["now"].clone(), change["wanted"].clone()))
}

#[tokio::test]
async fn dry_run_reports_differences_and_writes_nothing() {
    let cluster = Cluster::start().await;
    cluster
        .configure(json!({"colocation-config": "{\"enable\": true}",
            "resource-threshold-config": "{\"clusterStrategy\": {\"enable\": true}}"}))
        .await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    let metrics: Api<NodeMetric> = Api::all(cluster.client.clone());
    let metric = json!({"metadata": {"name": "n1"}, "spec": {}});
    metrics
        .create(&PostParams::default(), &typed(metric))
        .await
        .unwrap();
    cluster.report("n1", ("3", "30G"), ("1", "5G")).await;
    // What another manager has published.
    let status = json!({"status": {"allocatable": {"kubernetes.io/batch-cpu": "1k"}}});
    patch::merge_node_status(&cluster.client, "n1", &status)
        .await
        .unwrap();
    let profiles: Api<ClusterColocationProfile> = Api::all(cluster.client.clone());
    let profile = json!({"metadata": {"name": "p"}, "spec": {
        "selector": {"matchLabels": {"app": "x"}}, "labels": {"added": "yes"}}});
    profiles
        .create(&PostParams::default(), &typed(profile))
        .await
        .unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    for (name, app) in [("matched", "x"), ("other", "y")] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": app}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        pods.create(&PostParams::default(), &typed(pod))
            .await
            .unwrap();
    }
    let version = async || {
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        nodes.get("n1").await.unwrap().metadata.resource_version
    };
    let before = version().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    cluster.manager(Options {
        dry_run: true,
        install: true,
        election: Some(koord_kube::lease::Election::new(
            "koordinator-system",
            koord_manager::LEASE_NAME,
            "m",
        )),
        metrics_address: Some(address),
        webhooks: ServeMode::InProcess(Arc::new(|_| panic!("webhooks are not served"))),
        ..Options::default()
    });
    let minute = Duration::from_secs(60);
    let report = eventually_within(minute, "all differences", async || {
        let report = page(address, "/debug/dry-run").await;
        let report = report?;
        find(&report, "nodes", "n1")?;
        find(&report, "nodeslos", "n1")?;
        find(&report, "pods/admission", "matched")?;
        Some(report)
    })
    .await;
    let node = find(&report, "nodes", "n1").unwrap();
    let batch_cpu = field(node, "status.allocatable[\"kubernetes.io/batch-cpu\"]");
    // 10 − 4 (margin) − 1 (system).
    assert_eq!(batch_cpu, Some((json!("1k"), json!("5k"))), "{node}");
    let slo = find(&report, "nodeslos", "n1").unwrap();
    assert_eq!(slo["verb"], "create");
    let enable = field(slo, "spec.resourceUsedThresholdWithBE.enable");
    assert_eq!(enable, Some((Value::Null, json!(true))), "{slo}");
    let pod = find(&report, "pods/admission", "matched").unwrap();
    let label = field(pod, "metadata.labels.added");
    assert_eq!(label, Some((Value::Null, json!("yes"))), "{pod}");
    assert!(find(&report, "pods/admission", "other").is_none());

    assert_eq!(version().await, before);
    let all = ListParams::default();
    let slos: Api<NodeSLO> = Api::all(cluster.client.clone());
    assert_eq!(slos.list(&all).await.unwrap().items.len(), 0);
    let events: Api<Event> = Api::all(cluster.client.clone());
    assert_eq!(events.list(&all).await.unwrap().items.len(), 0);
    let leases: Api<Lease> = Api::all(cluster.client.clone());
    let names = leases.list(&all).await.unwrap().items;
    let names = names.iter().filter_map(|lease| lease.metadata.name.clone());
    assert!(
        !names
            .collect::<Vec<_>>()
            .contains(&koord_manager::LEASE_NAME.to_owned())
    );

    // The other manager publishes the same: the difference ends.
    let wanted = |name: &str| {
        let change = field(node, &format!("status.allocatable[{name:?}]"));
        change.map_or(Value::Null, |(_, wanted)| wanted)
    };
    let names = ["cpu", "memory"].map(|name| format!("kubernetes.io/batch-{name}"));
    let amounts: serde_json::Map<String, Value> = names
        .iter()
        .map(|name| (name.clone(), wanted(name)))
        .collect();
    let mid: serde_json::Map<String, Value> = ["cpu", "memory"]
        .map(|name| format!("kubernetes.io/mid-{name}"))
        .into_iter()
        .map(|name| (name.clone(), wanted(&name)))
        .collect();
    let amounts: serde_json::Map<String, Value> = amounts.into_iter().chain(mid).collect();
    let status = json!({"status": {"allocatable": amounts, "capacity": amounts}});
    let changes = node["changes"].as_array().unwrap().iter();
    let metadata: Vec<&Value> = changes
        .filter(|it| it["field"].as_str().unwrap().starts_with("metadata"))
        .collect();
    patch::merge_node_status(&cluster.client, "n1", &status)
        .await
        .unwrap();
    if metadata.is_empty() {
        eventually_within(minute, "no difference of the node", async || {
            let report = page(address, "/debug/dry-run").await?;
            find(&report, "nodes", "n1").is_none().then_some(())
        })
        .await;
    } else {
        // Annotations of the amounts are still missing.
        eventually_within(minute, "equal amounts", async || {
            let report = page(address, "/debug/dry-run").await?;
            let node = find(&report, "nodes", "n1")?;
            let amounts = field(node, "status.allocatable[\"kubernetes.io/batch-cpu\"]");
            amounts.is_none().then_some(())
        })
        .await;
    }
}
