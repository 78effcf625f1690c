//! Pods bound to CPUs and NUMA nodes, against the embedded API server.

use crate::api::{TestCluster, allocatable};
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::Reservation;
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_kube::Api;
use koord_kube::api::PostParams;
use serde_json::{Value, json};

const SPEC: &str = "scheduling.koordinator.sh/resource-spec";
const STATUS: &str = "scheduling.koordinator.sh/resource-status";

fn labels(app: &str) -> Value {
    json!({
        "app": app,
        "koordinator.sh/qosClass": "LSR",
        "koordinator.sh/priority-class": "koord-prod"
    })
}

fn pod_spec(cpu: &str) -> Value {
    let resources = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    let containers = json!([{"name": "c", "image": "i", "resources": resources}]);
    json!({"schedulerName": "koord-scheduler", "containers": containers})
}

impl TestCluster {
    /// Creates a node with one socket per NUMA node, two cores each, two threads per core.
    async fn numa_node(&self, name: &str) {
        self.node(name, allocatable("8"), json!([])).await;
        let cpu = |id: u32| json!({"id": id, "core": id / 2, "socket": id / 4, "node": id / 4});
        let detail: Vec<Value> = (0..8).map(cpu).collect();
        let zone = |id: u32| {
            json!({"name": format!("node-{id}"), "type": "Node", "resources": [
                {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"}
            ]})
        };
        let object: NodeResourceTopology = serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology",
            "metadata": {"name": name, "annotations": {
                "node.koordinator.sh/cpu-topology": json!({"detail": detail}).to_string()
            }},
            "topologyPolicies": ["None"], "zones": [zone(0), zone(1)]
        }))
        .unwrap();
        let api: Api<NodeResourceTopology> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn bound_pod(&self, name: &str, cpu: &str, annotations: Value) -> Pod {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default",
                "labels": labels(name), "annotations": annotations},
            "spec": pod_spec(cpu)
        }))
        .unwrap();
        let created = self.pods().create(&PostParams::default(), &pod).await;
        created.unwrap();
        self.bound(name).await;
        self.pods().get(name).await.unwrap()
    }
}

fn annotation(pod: &Pod, key: &str) -> Value {
    let all = pod.metadata.annotations.as_ref().unwrap();
    serde_json::from_str(&all[key]).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bound_cpus_are_annotated_and_survive_restart() {
    let cluster = TestCluster::start().await;
    cluster.numa_node("n").await;
    let first = cluster.schedule(|_| {});
    let a = cluster.bound_pod("a", "2", json!({})).await;
    assert_eq!(annotation(&a, STATUS), json!({"cpuset": "0-1"}));
    assert_eq!(
        annotation(&a, SPEC),
        json!({"preferredCPUBindPolicy": "FullPCPUs"})
    );
    let aligned = json!({
        "scheduling.koordinator.sh/numa-topology-spec": r#"{"numaTopologyPolicy":"SingleNUMANode"}"#
    });
    let b = cluster.bound_pod("b", "2", aligned).await;
    let zones = json!([{"node": 1, "resources": {"cpu": "2"}}]);
    assert_eq!(
        annotation(&b, STATUS),
        json!({"cpuset": "4-5", "numaNodeResources": zones})
    );
    first.stop().await;

    let second = cluster.schedule(|_| {});
    let c = cluster.bound_pod("c", "4", json!({})).await;
    assert_eq!(annotation(&c, STATUS), json!({"cpuset": "2-3,6-7"}));
    second.stop().await;
}

/// Holds for a standby, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topologies_work_with_v1alpha1_only() {
    let cluster = TestCluster::start_with_topologies_in("v1alpha1").await;
    cluster.numa_node("n").await;
    let electing = |options: &mut koord_scheduler::Options| options.leader_elect = true;
    let first = cluster.schedule(electing);
    let aligned = || json!({"scheduling.koordinator.sh/numa-topology-spec": r#"{"numaTopologyPolicy":"SingleNUMANode"}"#});
    let a = cluster.bound_pod("a", "3", aligned()).await;
    let zone = |node: u32, cpu: &str| json!([{"node": node, "resources": {"cpu": cpu}}]);
    assert_eq!(annotation(&a, STATUS)["numaNodeResources"], zone(0, "3"));
    let second = cluster.schedule(electing);
    first.stop().await;
    let b = cluster.bound_pod("b", "3", aligned()).await;
    assert_eq!(annotation(&b, STATUS)["numaNodeResources"], zone(1, "3"));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserved_cpus_are_allocated_to_owners() {
    let cluster = TestCluster::start().await;
    cluster.numa_node("n").await;
    let scheduler = cluster.schedule(|_| {});
    let reservation: Reservation = serde_json::from_value(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": "r"},
        "spec": {
            "allocateOnce": false,
            "owners": [{"labelSelector": {"matchLabels": {"app": "owner"}}}],
            "template": {"metadata": {"labels": labels("r")}, "spec": pod_spec("4")}
        }
    }))
    .unwrap();
    let api: Api<Reservation> = Api::all(cluster.client.clone());
    let created = api.create(&PostParams::default(), &reservation).await;
    created.unwrap();
    let reserved = cluster
        .until("the reserved CPUs", |object: &Reservation| {
            let placed = object.status.as_ref()?.node_name == "n";
            let text = object.metadata.annotations.as_ref()?.get(STATUS)?.clone();
            placed.then_some(text)
        })
        .await;
    assert_eq!(reserved, r#"{"cpuset":"0-3"}"#);
    let other = cluster.bound_pod("other", "2", json!({})).await;
    assert_eq!(annotation(&other, STATUS), json!({"cpuset": "4-5"}));
    let owner = cluster.bound_pod("owner", "2", json!({})).await;
    assert_eq!(annotation(&owner, STATUS), json!({"cpuset": "0-1"}));
    scheduler.stop().await;
}
