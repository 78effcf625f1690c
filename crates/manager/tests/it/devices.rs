//! Tests of NodeResourceTopologies and Devices, which other programs write and the manager processes.

use crate::cluster::{Cluster, typed};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::scheduling::Device;
use koord_api::slo::NodeMetric;
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_api::topology::{Zone, v1alpha2};
use koord_kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use koord_kube::{Api, ResourceExt, patch};
use koord_manager::Options;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const BATCH_CPU: &str = "kubernetes.io/batch-cpu";

fn allocatable(node: &Node, name: &str) -> Option<String> {
    let status = node.status.as_ref()?;
    let amount = status.allocatable.as_ref()?.get(name)?;
    Some(amount.0.clone())
}

/// Starts a cluster with co-location on, one node of 10 cores, and a manager that has processed the node.
async fn started(settings: Value) -> Cluster {
    started_in(Cluster::start().await, settings).await
}

async fn started_in(cluster: Cluster, settings: Value) -> Cluster {
    cluster.configure(settings).await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    cluster.manager(Options::default());
    cluster
        .watch::<NodeMetric>()
        .until("a NodeMetric", |_| Some(()))
        .await;
    cluster
}

fn full_reclaim_settings() -> Value {
    json!({"colocation-config": json!({"enable": true, "cpuReclaimThresholdPercent": 100,
        "memoryReclaimThresholdPercent": 100}).to_string()})
}

/// Returns a topology as koordlet writes it: two zones of five cores each, and an annotation.
pub(crate) fn topology(model: &str) -> NodeResourceTopology {
    let amount = |name: &str, amount: &str| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
    let zone = |name: &str| json!({"name": name, "type": "Node", "resources": [amount("cpu", "5"), amount("memory", "50G")]});
    let info = json!({"cpuModel": model}).to_string();
    typed(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology",
        "metadata": {"name": "n1", "annotations": {"node.koordinator.sh/cpu-basic-info": info}},
        "topologyPolicies": ["None"], "zones": [zone("node-0"), zone("node-1")],
    }))
}

/// Returns the batch CPU of each zone; `None` if a zone has none.
pub(crate) fn batch_cpu_by_zone(topology: &NodeResourceTopology) -> Option<Vec<String>> {
    let zones = topology.spec.zones.iter();
    zones
        .map(|zone| {
            let batch = zone
                .resources
                .iter()
                .find(|batch| batch.name == BATCH_CPU)?;
            Some(batch.available.to_string())
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn zones_get_batch_and_keep_other_fields() {
    let cluster = started(full_reclaim_settings()).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let bound = json!({"numaNodeResources": [{"node": 1}]}).to_string();
    let pod = json!({
        "metadata": {"name": "web", "labels": {"koordinator.sh/qosClass": "LS"},
            "annotations": {"scheduling.koordinator.sh/resource-status": bound}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i",
            "resources": {"requests": {"cpu": "2", "memory": "20G"}}}]},
    });
    pods.create(&PostParams::default(), &typed(pod))
        .await
        .unwrap();
    cluster.report("n1", ("3", "30G"), ("1", "10G")).await;
    let objects: Api<NodeResourceTopology> = Api::all(cluster.client.clone());
    objects
        .create(&PostParams::default(), &topology("M"))
        .await
        .unwrap();
    let mut topologies = cluster.watch::<NodeResourceTopology>();
    let mut zones = async |what: &str, want: [&str; 2]| {
        topologies
            .until(what, |topology| {
                batch_cpu_by_zone(topology)
                    .is_some_and(|zones| zones == want)
                    .then(|| topology.clone())
            })
            .await
    };
    // 5 − 0.5, and 5 − 0.5 − 2 for the zone that the pod is bound to.
    let written = zones("batch of the zones", ["4500", "2500"]).await;
    let annotations = written.metadata.annotations.clone().unwrap();
    assert!(annotations.contains_key("node.koordinator.sh/cpu-basic-info"));
    let names: Vec<_> = written.spec.zones[0]
        .resources
        .iter()
        .map(|r| &*r.name)
        .collect();
    assert_eq!(
        names,
        ["cpu", BATCH_CPU, "kubernetes.io/batch-memory", "memory"]
    );

    // Koordlet replaces the object without batch resources: the manager adds them again, and the new
    // annotation stays.
    let mut replacement = topology("M");
    replacement
        .metadata
        .annotations
        .get_or_insert_default()
        .insert("pools".into(), "0-3".into());
    replacement.metadata.resource_version = written.metadata.resource_version;
    objects
        .replace("n1", &PostParams::default(), &replacement)
        .await
        .unwrap();
    cluster.report("n1", ("3", "30G"), ("1", "10G")).await;
    let restored = zones("batch of the zones again", ["4500", "2500"]).await;
    assert_eq!(restored.metadata.annotations.unwrap()["pools"], "0-3");

    // Koordlet and the manager write at the same time: no write is lost.
    for round in 0..20 {
        let pools = json!({"metadata": {"annotations": {"pools": round.to_string()}}});
        patch::merge(&objects, "n1", &pools).await.unwrap();
        let system = if round % 2 == 0 { "5" } else { "1" };
        cluster.report("n1", ("3", "30G"), (system, "10G")).await;
        tokio::time::advance(Duration::from_millis(3)).await;
    }
    let last = zones("the last report's zones", ["4500", "2500"]).await;
    assert_eq!(last.metadata.annotations.unwrap()["pools"], "19");
    // Without new input nothing is written.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let before = objects.get("n1").await.unwrap().metadata.resource_version;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let later = objects.get("n1").await.unwrap().metadata.resource_version;
    assert_eq!(before, later);

    // With co-location off the batch resources of the zones become 0.
    cluster
        .configure(json!({"colocation-config": "{\"enable\": false}"}))
        .await;
    zones("empty zones", ["0", "0"]).await;
}

/// An exporter writes the newer version: fields that the older version does not have are preserved when the
/// manager writes the batch resources.
#[tokio::test(start_paused = true)]
async fn exporter_fields_survive_the_managers_write() {
    let cluster = started(full_reclaim_settings()).await;
    cluster.report("n1", ("3", "30G"), ("1", "10G")).await;
    let mut object = serde_json::to_value(topology("M")).unwrap();
    object["apiVersion"] = json!("topology.node.k8s.io/v1alpha2");
    let policy = json!([{"name": "topologyManagerPolicy", "value": "single-numa-node"},
        {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"}]);
    object["attributes"] = policy.clone();
    object["zones"][0]["costs"] = json!([{"name": "node-1", "value": 21}]);
    object["zones"][0]["attributes"] = json!([{"name": "die", "value": "3"}]);
    object["zones"][0]["resources"][0]["available"] = json!("2");
    let objects: Api<v1alpha2::NodeResourceTopology> = Api::all(cluster.client.clone());
    objects
        .create(&PostParams::default(), &typed(object))
        .await
        .unwrap();
    let mut topologies = cluster.watch::<v1alpha2::NodeResourceTopology>();
    let written = topologies
        .until("batch of the zones", |topology| {
            let batch = |zone: &Zone| zone.resources.iter().any(|it| it.name == BATCH_CPU);
            let all = topology.spec.zones.iter().all(batch);
            all.then(|| serde_json::to_value(topology).unwrap())
        })
        .await;
    assert_eq!(written["attributes"], policy);
    let zone = &written["zones"][0];
    assert_eq!(zone["costs"][0]["value"], 21);
    assert_eq!(zone["attributes"][0]["value"], "3");
    assert_eq!(zone["resources"][0]["available"], "2");
}

/// Verifies that zones get batch resources with either version: older CRDs have the older version only, and a
/// newer one may drop it.
#[tokio::test(start_paused = true)]
async fn zones_get_batch_in_either_served_version() {
    for (only, version) in ["v1alpha1", "v1alpha2"].into_iter().enumerate() {
        let mut definitions = koord_api::crd_values();
        for definition in &mut definitions {
            if definition["spec"]["group"] == "topology.node.k8s.io" {
                let mut served = definition["spec"]["versions"][only].take();
                assert_eq!(served["name"], version);
                served["storage"] = json!(true);
                definition["spec"]["versions"] = json!([served]);
            }
        }
        let cluster = started_in(Cluster::with(definitions).await, full_reclaim_settings()).await;
        cluster.report("n1", ("3", "30G"), ("1", "10G")).await;
        let mut object = serde_json::to_value(topology("M")).unwrap();
        object["apiVersion"] = json!(format!("topology.node.k8s.io/{version}"));
        let group = GroupVersionKind::gvk("topology.node.k8s.io", version, "NodeResourceTopology");
        let resource = ApiResource::from_gvk_with_plural(&group, "noderesourcetopologies");
        let objects: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
        objects
            .create(&PostParams::default(), &typed(object))
            .await
            .unwrap();
        let written = async {
            loop {
                let topology_object = objects.get("n1").await.unwrap();
                if batch_cpu_by_zone(&typed(json!(topology_object))).is_some() {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let written = tokio::time::timeout(Duration::from_secs(600), written).await;
        assert!(
            written.is_ok(),
            "{version}: no batch resources in the zones"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn devices_come_and_go_on_the_node() {
    let cluster = started(full_reclaim_settings()).await;
    let devices: Api<Device> = Api::all(cluster.client.clone());
    let gpu = |health: bool, minor: i32| {
        json!({"type": "gpu", "health": health, "minor": minor, "resources": {
            "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi",
            "koordinator.sh/gpu-memory-ratio": "100"}})
    };
    let device = |devices: Value| -> Device {
        typed(json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": "n1", "labels": {"node.koordinator.sh/gpu-model": "A100"}},
            "spec": {"devices": devices},
        }))
    };
    let rdma = json!({"type": "rdma", "health": true, "minor": 0});
    let gpus_and_rdma = device(json!([gpu(true, 0), gpu(true, 1), rdma]));
    devices
        .create(&PostParams::default(), &gpus_and_rdma)
        .await
        .unwrap();
    let mut nodes = cluster.watch::<Node>();
    let mut wait_for = async |what: &str, want: [Option<&str>; 3]| {
        nodes
            .until(what, |node| {
                let names = [
                    "koordinator.sh/gpu",
                    "koordinator.sh/gpu-memory",
                    "koordinator.sh/rdma",
                ];
                let shown = names.map(|name| allocatable(node, name));
                (shown.each_ref().map(Option::as_deref) == want).then(|| node.clone())
            })
            .await
    };
    let node = wait_for("both kinds", [Some("200"), Some("32Gi"), Some("100")]).await;
    assert_eq!(node.labels()["node.koordinator.sh/gpu-model"], "A100");
    assert_eq!(allocatable(&node, "cpu").as_deref(), Some("10"));

    let sick = json!({"spec": {"devices": [gpu(true, 0), gpu(false, 1)]}});
    patch::merge(&devices, "n1", &sick).await.unwrap();
    wait_for("one GPU, no RDMA", [Some("100"), Some("16Gi"), None]).await;

    // A device of another vendor.
    let npu = json!({"metadata": {"labels": {"node.koordinator.sh/gpu-vendor": "huawei",
            "node.koordinator.sh/gpu-model": "Ascend-910"}},
        "spec": {"devices": [{"type": "gpu", "health": true, "minor": 0,
            "resources": {"huawei.com/npu-core": "20"}}]}});
    patch::merge(&devices, "n1", &npu).await.unwrap();
    let node = nodes_until(&cluster, "the NPU", |node| {
        allocatable(node, "huawei.com/npu-core").as_deref() == Some("20")
            && node
                .labels()
                .get("node.koordinator.sh/gpu-model")
                .map(String::as_str)
                == Some("Ascend-910")
    })
    .await;
    assert_eq!(node.labels()["node.koordinator.sh/gpu-vendor"], "huawei");

    devices
        .delete("n1", &DeleteParams::default())
        .await
        .unwrap();
    let node = wait_for("no device", [None, None, None]).await;
    assert_eq!(allocatable(&node, "huawei.com/npu-core"), None);
    // Labels stay, as upstream.
    assert!(node.labels().contains_key("node.koordinator.sh/gpu-model"));
}

async fn nodes_until(cluster: &Cluster, what: &str, accept: impl Fn(&Node) -> bool) -> Node {
    let mut nodes = cluster.watch::<Node>();
    nodes
        .until(what, |node| accept(node).then(|| node.clone()))
        .await
}

#[tokio::test(start_paused = true)]
async fn normalization_reaches_the_node_and_its_zones_in_one_pass() {
    let ratios = json!({"enable": true, "ratioModel": {"M": {"baseRatio": 1.2}}});
    let mut settings = full_reclaim_settings();
    settings["cpu-normalization-config"] = json!(ratios.to_string());
    let factors = json!({"enable": true, "resourceAmplificationRatio": {"memory": 1.5}});
    settings["resource-amplification-config"] = json!(factors.to_string());
    let cluster = started(settings.clone()).await;
    let objects: Api<NodeResourceTopology> = Api::all(cluster.client.clone());
    objects
        .create(&PostParams::default(), &topology("M"))
        .await
        .unwrap();
    cluster.report("n1", ("3", "30G"), ("1", "10G")).await;
    // (10 − 1) × 1.2
    let node = nodes_until(&cluster, "normalized batch", |node| {
        allocatable(node, BATCH_CPU).as_deref() == Some("10800")
    })
    .await;
    let annotations = node.annotations();
    assert_eq!(
        annotations["node.koordinator.sh/cpu-normalization-ratio"],
        "1.20"
    );
    assert_eq!(
        annotations["node.koordinator.sh/resource-amplification-ratio"],
        "{\"cpu\":1.20,\"memory\":1.50}"
    );
    let mut topologies = cluster.watch::<NodeResourceTopology>();
    topologies
        .until("normalized zones", |topology| {
            batch_cpu_by_zone(topology).filter(|zones| zones == &["5400", "5400"])
        })
        .await;
    // Another machine whose model is not listed keeps the ratio. Switched off: ratio 1.00, no amplification.
    patch::merge(
        &objects,
        "n1",
        &json!({"metadata": {"annotations":
        {"node.koordinator.sh/cpu-basic-info": "{\"cpuModel\":\"other\"}"}}}),
    )
    .await
    .unwrap();
    cluster.report("n1", ("3", "30G"), ("1", "10G")).await;
    settings["cpu-normalization-config"] = json!("{\"enable\": false}");
    settings["resource-amplification-config"] = json!("{\"enable\": false}");
    cluster.configure(settings).await;
    let node = nodes_until(&cluster, "no normalization", |node| {
        node.annotations()["node.koordinator.sh/cpu-normalization-ratio"] == "1.00"
            && allocatable(node, BATCH_CPU).as_deref() == Some("9k")
    })
    .await;
    let key = "node.koordinator.sh/resource-amplification-ratio";
    assert!(!node.annotations().contains_key(key));
}

/// Verifies that a new leader spreads its writes: forty nodes have nearly correct amounts, and small changes
/// become due at different times.
#[tokio::test(start_paused = true)]
async fn a_new_leader_does_not_write_all_nodes_at_once() {
    let cluster = Cluster::start().await;
    cluster.configure(full_reclaim_settings()).await;
    let count = 40;
    let name = |at: usize| format!("n{at}");
    for index in 0..count {
        cluster
            .add_node(&name(index), json!({}), "10", "100G")
            .await;
        // 9,000 would be correct.
        let resources = json!({BATCH_CPU: "9100", "kubernetes.io/batch-memory": "90G",
            "kubernetes.io/mid-cpu": "0", "kubernetes.io/mid-memory": "0"});
        let status = json!({"status": {"capacity": resources, "allocatable": resources}});
        patch::merge_node_status(&cluster.client, &name(index), &status)
            .await
            .unwrap();
    }
    // The reports exist before the manager starts.
    let metrics: Api<NodeMetric> = Api::all(cluster.client.clone());
    for index in 0..count {
        let metric: NodeMetric = typed(json!({
            "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
            "metadata": {"name": name(index)}, "spec": {}}));
        metrics
            .create(&PostParams::default(), &metric)
            .await
            .unwrap();
        cluster
            .report(&name(index), ("3", "30G"), ("1", "10G"))
            .await;
    }
    cluster.manager(Options::default());
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let mut written = Vec::new();
    // There is no further report: each node is processed again because time passes.
    for _ in 0..13 {
        tokio::time::sleep(Duration::from_secs(25)).await;
        let list = nodes.list(&Default::default()).await.unwrap().items;
        let right = list
            .iter()
            .filter(|node| allocatable(node, BATCH_CPU).as_deref() == Some("9k"));
        written.push(right.count());
    }
    assert_eq!(written.last(), Some(&count), "{written:?}");
    let totals: Vec<_> = std::iter::once(0).chain(written.iter().copied()).collect();
    let largest_step = totals.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(largest_step <= Some(count / 3), "{written:?}");
    let distinct: BTreeSet<_> = written.iter().collect();
    assert!(distinct.len() >= 6, "{written:?}");
}
