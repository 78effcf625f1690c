//! Claim that waits for its first consumer, against the embedded API server: the test acts as the controllers
//! that provision and bind volumes.

use crate::api::{TestCluster, allocatable};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use koord_kube::Api;
use koord_kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

impl TestCluster {
    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn claim(&self, name: &str, class: &str) {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}}}
        }))
        .unwrap();
        let created = self.claims().create(&PostParams::default(), &claim).await;
        created.unwrap();
    }

    async fn class(&self, name: &str, provisioner: &str) {
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer"
        }))
        .unwrap();
        let api: Api<StorageClass> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &class).await.unwrap();
    }

    /// Creates a volume that only `node` can reach.
    async fn volume(&self, name: &str, class: &str, node: &str) {
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
                ]}]}}
            }
        }))
        .unwrap();
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &volume).await.unwrap();
        let status = json!({"status": {"phase": "Available"}});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
    }

    /// Creates a node with the hostname label that the kubelet sets.
    async fn host(&self, name: &str) {
        self.node(name, allocatable("4"), json!([])).await;
        let label = json!({"metadata": {"labels": {"kubernetes.io/hostname": name}}});
        let api: Api<Node> = Api::all(self.client.clone());
        let params = PatchParams::default();
        let patched = api.patch(name, &params, &Patch::Merge(&label)).await;
        patched.unwrap();
    }

    /// Completes a binding like the volume controller.
    async fn finish(&self, claim: &str, volume: &str) {
        let provisioned = json!({
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": volume}
        });
        let (claims, params) = (self.claims(), PatchParams::default());
        let patched = claims
            .patch(claim, &params, &Patch::Merge(&provisioned))
            .await;
        patched.unwrap();
    }

    async fn pod_with_claim(&self, name: &str, claim: &str) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "schedulerName": "koord-scheduler",
                "containers": [{"name": "c", "image": "i"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
            }
        }))
        .unwrap();
        let created = self.pods().create(&PostParams::default(), &pod).await;
        created.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_is_provisioned_on_the_pods_node() {
    let cluster = TestCluster::start().await;
    cluster.host("n").await;
    cluster.class("late", "csi.example").await;
    let scheduler = cluster.schedule(|_| {});
    cluster.pod_with_claim("p", "data").await;
    let (_, message) = cluster.refused("p", |_| true).await;
    let expected = "0/1 nodes are available: persistentvolumeclaim \"data\" not found.";
    assert!(message.starts_with(expected), "{message}");
    cluster.claim("data", "late").await;
    let selected = cluster
        .until("a node for the claim", |claim: &PersistentVolumeClaim| {
            let annotations = claim.metadata.annotations.as_ref()?;
            annotations
                .get("volume.kubernetes.io/selected-node")
                .cloned()
        })
        .await;
    assert_eq!(selected, "n");
    let pod = cluster.pods().get("p").await.unwrap();
    assert_eq!(pod.spec.unwrap().node_name, None);
    cluster.volume("made", "late", "n").await;
    cluster.finish("data", "made").await;
    assert_eq!(cluster.bound("p").await, "n");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_volume_is_bound_to_the_claim() {
    let cluster = TestCluster::start().await;
    for name in ["a", "b"] {
        cluster.host(name).await;
    }
    cluster
        .class("by-hand", "kubernetes.io/no-provisioner")
        .await;
    cluster.volume("v", "by-hand", "b").await;
    cluster.claim("data", "by-hand").await;
    let scheduler = cluster.schedule(|_| {});
    cluster.pod_with_claim("p", "data").await;
    let volume_assigned = cluster
        .until("the volume's claim", |volume: &PersistentVolume| {
            let claim: Value =
                serde_json::to_value(volume.spec.as_ref()?.claim_ref.as_ref()?).ok()?;
            let annotations = volume.metadata.annotations.as_ref()?;
            annotations
                .contains_key("pv.kubernetes.io/bound-by-controller")
                .then_some(claim)
        })
        .await;
    assert_eq!(
        (&volume_assigned["namespace"], &volume_assigned["name"]),
        (&json!("default"), &json!("data"))
    );
    let claim = cluster.claims().get("data").await.unwrap();
    assert_eq!(volume_assigned["uid"], json!(claim.metadata.uid));
    cluster.finish("data", "v").await;
    assert_eq!(cluster.bound("p").await, "b");
    scheduler.stop().await;
}
