use crate::cluster::Cluster;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use koord_api::slo::NodeMetric;
use koord_kube::api::ListParams;
use koord_kube::{Api, ResourceExt};
use serde_json::json;

fn ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

#[tokio::test(start_paused = true)]
async fn nodes_appear_ready_with_capacity_and_a_lease() {
    let mut cluster = Cluster::start().await;
    cluster.simulate(3);
    let node = cluster
        .wait_for_object::<Node>(|node| node.name_any() == "sim-2" && ready(node))
        .await;
    assert_eq!(node.labels()["type"], "kwok");
    assert_eq!(node.annotations()["kwok.x-k8s.io/node"], "fake");
    let status = node.status.as_ref().unwrap();
    assert_eq!(status.allocatable.as_ref().unwrap()["cpu"].0, "32");
    assert_eq!(status.capacity.as_ref().unwrap()["memory"].0, "128Gi");
    assert_eq!(status.conditions.as_ref().unwrap().len(), 5);

    let lease = |lease: &Lease| (lease.name_any() == "sim-1").then(|| lease.spec.clone().unwrap());
    let first = cluster
        .wait_for_object::<Lease>(|l| lease(l).is_some())
        .await;
    let first = first.spec.clone().unwrap().renew_time.unwrap().0;
    let later = cluster
        .wait_for_object::<Lease>(|l| {
            lease(l).is_some_and(|spec| {
                spec.renew_time.unwrap().0.duration_since(first).as_secs() >= 25
            })
        })
        .await;
    assert_eq!(lease(&later).unwrap().lease_duration_seconds, Some(40));
    let node = Api::<Node>::all(cluster.client.clone())
        .get("sim-1")
        .await
        .unwrap();
    assert!(ready(&node));
    cluster.stop_simulation().await;
}

#[tokio::test(start_paused = true)]
async fn a_smaller_run_deletes_surplus_nodes_and_no_others() {
    let mut cluster = Cluster::start().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for name in ["real", "sim-x"] {
        cluster
            .create(nodes.clone(), json!({ "metadata": { "name": name } }))
            .await;
    }
    cluster.simulate(3);
    cluster
        .wait_for_object::<Node>(|node| node.name_any() == "sim-2" && ready(node))
        .await;
    cluster.stop_simulation().await;
    cluster.simulate(1);
    for surplus in ["sim-1", "sim-2"] {
        cluster.wait_for_removal(&nodes, surplus).await;
    }
    let list = nodes.list(&ListParams::default()).await.unwrap();
    let names: Vec<String> = list.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["real", "sim-0", "sim-x"]);
    assert!(!ready(&nodes.get("real").await.unwrap()));
    cluster.stop_simulation().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_reports_once_it_has_a_node_metric() {
    let mut cluster = Cluster::start().await;
    cluster.simulate(2);
    cluster
        .wait_for_object::<Node>(|node| node.name_any() == "sim-0" && ready(node))
        .await;
    let metrics: Api<NodeMetric> = Api::all(cluster.client.clone());
    let metric = json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": { "name": "sim-0" },
        "spec": { "metricCollectPolicy": {
            "aggregateDurationSeconds": 300,
            "reportIntervalSeconds": 30,
            "nodeAggregatePolicy": { "durations": ["5m0s"] },
        } },
    });
    cluster.create(metrics, metric).await;
    let first = cluster
        .wait_for_object::<NodeMetric>(|metric| metric.status.is_some())
        .await;
    let first = first.status.clone().unwrap();
    assert!(first.node_metric.unwrap().node_usage.unwrap().resources["cpu"].milli_value() > 0);
    let full = cluster
        .wait_for_object::<NodeMetric>(|metric| {
            metric
                .status
                .as_ref()
                .and_then(|status| status.node_metric.as_ref())
                .is_some_and(|info| {
                    info.aggregated_node_usages
                        .iter()
                        .all(|window| window.usage.len() == 5)
                })
        })
        .await;
    let now = full.status.clone().unwrap().update_time.unwrap().0;
    let spent = now.duration_since(first.update_time.unwrap().0).as_secs();
    assert!(
        (120..=240).contains(&spent),
        "half of five minutes is covered after {spent} s"
    );
    cluster.stop_simulation().await;
}
