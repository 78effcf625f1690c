use crate::cluster::Cluster;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_kube::api::DeleteParams;
use koord_kube::{Api, ResourceExt};
use koord_sim::TOPOLOGY_ANNOTATION;
use serde_json::{Value, json};

fn node(layout: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "annotations": {
            koord_sim::NODE_ANNOTATION: "true", TOPOLOGY_ANNOTATION: layout.to_string()}},
    })
}

fn pod(name: &str, cpu: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": "1Gi"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "n", "containers": [
            {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
    })
}

fn phase<'a>(pod: &'a Pod, name: &str) -> &'a str {
    let status = pod.status.as_ref().filter(|_| pod.name_any() == name);
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Returns whether the report lists `want` available CPUs in the NUMA nodes.
fn free(report: &NodeResourceTopology, want: [i64; 2]) -> bool {
    let of = |zone: usize| &report.spec.zones[zone].resources[0];
    let available = [of(0), of(1)].map(|cpu| (&*cpu.name, cpu.available.value()));
    available == want.map(|cpus| ("cpu", cpus))
}

/// Starts a cluster with a simulated node of two NUMA nodes with eight CPUs each.
async fn cluster_of_one_node() -> Cluster {
    let mut cluster = Cluster::start().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let layout = json!({"numaNodes": 2, "cpusPerNode": 8});
    cluster.create(nodes, node(&layout)).await;
    cluster.simulate(0);
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_node_with_numa_nodes_refuses_what_cannot_be_aligned() {
    let mut cluster = cluster_of_one_node().await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    for name in ["a", "b"] {
        cluster.create(pods.clone(), pod(name, "5")).await;
        cluster
            .wait_for_object::<Pod>(|pod| phase(pod, name) == "Running")
            .await;
    }
    cluster.create(pods.clone(), pod("c", "5")).await;
    let refused = cluster
        .wait_for_object::<Pod>(|pod| phase(pod, "c") == "Failed")
        .await;
    let status = refused.status.clone().unwrap();
    assert_eq!(status.reason.as_deref(), Some("TopologyAffinityError"));
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was rejected: Resources cannot be allocated with Topology locality")
    );
    assert!(status.container_statuses.is_none());
    cluster
        .wait_for_object::<NodeResourceTopology>(|report| free(report, [3, 3]))
        .await;

    // Running pods keep their resources when the simulation is restarted.
    cluster.stop_simulation().await;
    cluster.create(pods.clone(), pod("d", "5")).await;
    cluster.simulate(0);
    cluster
        .wait_for_object::<Pod>(|pod| phase(pod, "d") == "Failed")
        .await;
    pods.delete("b", &DeleteParams::default()).await.unwrap();
    cluster
        .wait_for_object::<NodeResourceTopology>(|report| {
            free(report, [3, 8]) || free(report, [8, 3])
        })
        .await;
    cluster.create(pods.clone(), pod("e", "8")).await;
    cluster
        .wait_for_object::<Pod>(|pod| phase(pod, "e") == "Running")
        .await;
    cluster.stop_simulation().await;
}

/// koord-manager has entries in the zones, and a user deletes the report.
#[tokio::test(start_paused = true)]
async fn a_report_keeps_what_others_have_in_it_and_comes_back() {
    let mut cluster = cluster_of_one_node().await;
    let first = cluster
        .wait_for_object::<NodeResourceTopology>(|report| free(report, [8, 8]))
        .await;
    let mut zones = serde_json::to_value(&first.spec.zones).unwrap();
    let batch = json!({"name": "kubernetes.io/batch-cpu", "capacity": "500",
        "allocatable": "500", "available": "500"});
    zones[0]["resources"]
        .as_array_mut()
        .unwrap()
        .push(batch.clone());
    let reports: Api<NodeResourceTopology> = Api::all(cluster.client.clone());
    koord_kube::patch::merge(&reports, "n", &json!({ "zones": zones }))
        .await
        .unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    cluster.create(pods, pod("a", "5")).await;
    let report = cluster
        .wait_for_object::<NodeResourceTopology>(|report| free(report, [3, 8]))
        .await;
    let resource = serde_json::to_value(&report.spec.zones[0].resources[1]).unwrap();
    assert_eq!(resource, batch);

    reports.delete("n", &DeleteParams::default()).await.unwrap();
    let uid = report.metadata.uid.clone();
    cluster
        .wait_for_object::<NodeResourceTopology>(|report| {
            free(report, [3, 8]) && report.metadata.uid != uid
        })
        .await;
    cluster.stop_simulation().await;
}

/// A simulation that has not listed the pods yet must not report their CPUs as free.
#[tokio::test(start_paused = true)]
async fn nothing_is_reported_before_all_pods_are_known() {
    let mut cluster = cluster_of_one_node().await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    cluster.create(pods, pod("a", "5")).await;
    cluster
        .wait_for_object::<NodeResourceTopology>(|report| free(report, [3, 8]))
        .await;
    cluster.stop_simulation().await;
    let reports: Api<NodeResourceTopology> = Api::all(cluster.client.clone());
    reports.delete("n", &DeleteParams::default()).await.unwrap();
    cluster.simulate_slowly(0);
    let first = cluster
        .wait_for_object::<NodeResourceTopology>(|_| true)
        .await;
    assert!(free(&first, [3, 8]), "{first:?}");
    cluster.stop_simulation().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_layout_is_reported_on_the_node() {
    let mut cluster = Cluster::start().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let layout = json!({"numaNodes": 20, "cpusPerNode": 8});
    cluster.create(nodes, node(&layout)).await;
    cluster.simulate(0);
    let event = cluster
        .wait_for_object::<Event>(|event| event.involved_object.kind.as_deref() == Some("Node"))
        .await;
    let message = event.message.as_deref().unwrap();
    assert!(message.contains("numaNodes: 20: not 1 to 8"), "{message}");
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    cluster.create(pods, pod("a", "5")).await;
    cluster
        .wait_for_object::<Pod>(|pod| phase(pod, "a") == "Running")
        .await;
    cluster.stop_simulation().await;
}
