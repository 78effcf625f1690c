use crate::cluster::Cluster;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::slo::NodeMetric;
use koord_kube::api::DeleteParams;
use koord_kube::{Api, ResourceExt};
use serde_json::{Value, json};

fn pod(name: &str, node: &str, metadata: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "main", "image": "none", "resources": { "requests": { "cpu": "1", "memory": "1Gi" } } }],
        },
    });
    koord_api::merge::overlay(&mut pod["metadata"], metadata);
    pod
}

fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

async fn cluster() -> (Cluster, Api<Pod>) {
    let mut cluster = Cluster::start().await;
    cluster.simulate(1);
    cluster
        .wait_for_object::<Node>(|node| node.name_any() == "sim-0")
        .await;
    let pods = Api::namespaced(cluster.client.clone(), "default");
    (cluster, pods)
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_and_goes_when_it_is_deleted() {
    let (mut cluster, pods) = cluster().await;
    cluster
        .create(pods.clone(), pod("a", "sim-0", &json!({})))
        .await;
    let running = cluster
        .wait_for_object::<Pod>(|pod| phase(pod) == "Running")
        .await;
    let status = running.status.clone().unwrap();
    assert_eq!(status.host_ip.as_deref(), Some("10.64.0.1"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.128.0.1"));
    assert!(status.container_statuses.unwrap()[0].ready);

    pods.delete("a", &DeleteParams::default()).await.unwrap();
    cluster.wait_for_removal(&pods, "a").await;
    cluster.stop_simulation().await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_jobs_succeed_and_pods_elsewhere_are_left_alone() {
    let (mut cluster, pods) = cluster().await;
    let owner = json!({ "ownerReferences": [
        { "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "00000000-0000-0000-0000-000000000001" },
    ] });
    cluster
        .create(pods.clone(), pod("elsewhere", "real", &json!({})))
        .await;
    cluster
        .create(pods.clone(), pod("job", "sim-0", &owner))
        .await;
    cluster
        .wait_for_object::<Pod>(|pod| pod.name_any() == "job" && phase(pod) == "Succeeded")
        .await;
    assert_eq!(phase(&pods.get("elsewhere").await.unwrap()), "Pending");
    cluster.stop_simulation().await;
}

#[tokio::test(start_paused = true)]
async fn usage_of_a_pod_shows_in_the_report() {
    let (mut cluster, pods) = cluster().await;
    let usage = json!({ "annotations": {
        "kwok.x-k8s.io/usage-cpu": "2500m", "kwok.x-k8s.io/usage-memory": "3Gi",
    } });
    cluster
        .create(pods.clone(), pod("busy", "sim-0", &usage))
        .await;
    let metric = json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": { "name": "sim-0" },
        "spec": { "metricCollectPolicy": { "reportIntervalSeconds": 60 } },
    });
    cluster
        .create(Api::<NodeMetric>::all(cluster.client.clone()), metric)
        .await;
    let reported = cluster
        .wait_for_object::<NodeMetric>(|metric| {
            metric
                .status
                .as_ref()
                .is_some_and(|status| !status.pods_metric.is_empty())
        })
        .await;
    let pod = &reported.status.as_ref().unwrap().pods_metric[0];
    assert_eq!(
        (pod.namespace.as_str(), pod.name.as_str()),
        ("default", "busy")
    );
    let used = &pod.pod_usage.as_ref().unwrap().resources;
    assert_eq!(used["cpu"].to_string(), "2500m");
    assert_eq!(used["memory"].to_string(), "3Gi");
    cluster.stop_simulation().await;
}
