//! GPUs against the embedded API server: from the Device object to the pod's annotation, also after a
//! restart.

use crate::api::TestCluster;
use k8s_openapi::api::core::v1::Pod;
use koord_api::{annotations, scheduling};
use koord_kube::Api;
use koord_kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn allocatable() -> Value {
    json!({"cpu": "16", "memory": "64Gi", "pods": "110", "koordinator.sh/gpu": "200",
        "koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory-ratio": "200"})
}

fn devices(healthy: bool) -> scheduling::Device {
    let gpu = |minor: u8, health: bool| {
        json!({"type": "gpu", "id": format!("GPU-{minor}"), "minor": minor, "health": health,
            "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/gpu-memory": "80Gi"},
            "topology": {"socketID": 0, "nodeID": 0, "pcieID": "pci0000:00"}})
    };
    serde_json::from_value(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": {"name": "n"}, "spec": {"devices": [gpu(0, true), gpu(1, healthy)]}
    }))
    .unwrap()
}

async fn minors(cluster: &TestCluster, name: &str) -> Vec<i32> {
    cluster.bound(name).await;
    let pod = cluster.pods().get(name).await.unwrap();
    let text = &pod.metadata.annotations.unwrap_or_default()[annotations::DEVICE_ALLOCATED];
    let allocated: koord_api::extension::DeviceAllocations = serde_json::from_str(text).unwrap();
    allocated["gpu"].iter().map(|grant| grant.minor).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpus_are_allocated_once_across_restart() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable(), json!([])).await;
    let api: Api<scheduling::Device> = Api::all(cluster.client.clone());
    api.create(&PostParams::default(), &devices(false))
        .await
        .unwrap();

    let first = cluster.schedule(|_| {});
    let percent = |share: &str| json!({"koordinator.sh/gpu-core": share, "koordinator.sh/gpu-memory-ratio": share});
    cluster.pod("half", percent("50")).await;
    assert_eq!(minors(&cluster, "half").await, [0]);
    // The other GPU is unhealthy, although the node's allocatable includes it.
    cluster.pod("whole", percent("100")).await;
    let (reason, message) = cluster.refused("whole", |_| true).await;
    assert_eq!(reason, "Unschedulable");
    assert!(
        message.starts_with("0/1 nodes are available: 1 Insufficient GPU Devices."),
        "{message}"
    );
    first.stop().await;

    let second = cluster.schedule(|_| {});
    let healthy = json!({"spec": {"devices": devices(true).spec.devices}});
    api.patch("n", &PatchParams::default(), &Patch::Merge(&healthy))
        .await
        .unwrap();
    assert_eq!(minors(&cluster, "whole").await, [1]);
    cluster.pod("rest", percent("50")).await;
    assert_eq!(minors(&cluster, "rest").await, [0]);
    cluster.pod("waits", percent("50")).await;
    cluster.refused("waits", |_| true).await;
    let now = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    let pods: Api<Pod> = cluster.pods();
    pods.delete("half", &now).await.unwrap();
    assert_eq!(minors(&cluster, "waits").await, [0]);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserved_gpu_is_kept_for_its_owner() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable(), json!([])).await;
    let api: Api<scheduling::Device> = Api::all(cluster.client.clone());
    let object = devices(true);
    api.create(&PostParams::default(), &object).await.unwrap();
    let whole_gpu =
        json!({"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"});
    let container = json!({"name": "c", "image": "i", "resources": {"requests": whole_gpu, "limits": whole_gpu}});
    let spec = json!({"schedulerName": "koord-scheduler", "containers": [container]});

    let first = cluster.schedule(|_| {});
    let reservation: scheduling::Reservation = serde_json::from_value(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": "r"},
        "spec": {"owners": [{"labelSelector": {"matchLabels": {"app": "train"}}}],
            "template": {"spec": spec}}
    }))
    .unwrap();
    let reservations: Api<scheduling::Reservation> = Api::all(cluster.client.clone());
    reservations
        .create(&PostParams::default(), &reservation)
        .await
        .unwrap();
    let allocated = cluster
        .until(
            "device of the reservation",
            |r: &scheduling::Reservation| {
                let placed = r.status.as_ref()?.phase.as_ref()?;
                let notes = r.metadata.annotations.as_ref()?;
                let allocated = notes.get(annotations::DEVICE_ALLOCATED)?;
                (*placed == scheduling::ReservationPhase::Available).then(|| allocated.clone())
            },
        )
        .await;
    assert!(allocated.contains("GPU-0"), "{allocated}");
    cluster.pod("one", whole_gpu.clone()).await;
    assert_eq!(minors(&cluster, "one").await, [1]);
    first.stop().await;

    let second = cluster.schedule(|_| {});
    cluster.pod("two", whole_gpu.clone()).await;
    let (_, message) = cluster
        .refused("two", |message| message.starts_with("0/1"))
        .await;
    assert!(message.contains("Insufficient"), "{message}");
    let owner: Pod = serde_json::from_value(json!({
        "metadata": {"name": "owner", "namespace": "default", "labels": {"app": "train"}},
        "spec": spec
    }))
    .unwrap();
    cluster
        .pods()
        .create(&PostParams::default(), &owner)
        .await
        .unwrap();
    assert_eq!(minors(&cluster, "owner").await, [0]);
    second.stop().await;
}
