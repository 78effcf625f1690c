//! Batch resources by NUMA node.

use super::*;
use crate::facts::FieldMask;
use k8s_openapi::api::core::v1::Pod;

pub(super) fn zone(name: &str, cpu: &str, memory: &str) -> Value {
    let resource = |name: &str, amount: &str| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
    json!({"name": name, "type": "Node",
           "resources": [resource("cpu", cpu), resource("memory", memory)]})
}

pub(super) fn topology(zones: &Value) -> NodeResourceTopology {
    serde_json::from_value(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology",
        "metadata": {"name": "n", "resourceVersion": "7"},
        "topologyPolicies": ["None"], "zones": zones,
    }))
    .unwrap()
}

/// Returns golden fixture B of the manager's specification: 100 cores and 120 G in two zones.
fn fixture_b() -> PlanCase {
    let used = |cpu: &str, memory: &str| json!({"resources": {"cpu": cpu, "memory": memory}});
    let pod = |name: &str, cpu: &str, memory: &str, priority: &str| json!({"namespace": "d", "name": name, "podUsage": used(cpu, memory), "priority": priority});
    let metric = json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": "n"}, "spec": {},
        "status": {
            "updateTime": "2026-01-01T00:59:30Z",
            "nodeMetric": {"nodeUsage": used("50", "55G"), "systemUsage": used("7", "12G")},
            "podsMetric": [pod("podProdLSE", "5", "5G", "koord-prod"),
                pod("podProd1", "6", "6G", "koord-prod"), pod("podBatch", "10", "10G", "koord-batch"),
                pod("podMid", "22", "22G", "koord-mid")],
        },
    });
    let mut case = case();
    let list = json!({"cpu": "100", "memory": "120G"});
    case.node = serde_json::from_value(json!({
        "metadata": {"name": "n"}, "status": {"capacity": list, "allocatable": list},
    }))
    .unwrap();
    case.metric = Some(serde_json::from_value(metric).unwrap());
    let batch = &mut case.strategy.as_mut().unwrap().batch;
    batch.cpu_reclaim_percent = 65;
    batch.memory_reclaim_percent = 65;
    batch.memory = reclaim::MemoryPolicy::Request;
    case.topology = Some(topology(&json!([
        zone("node-0", "50", "62G"),
        zone("node-1", "50", "58G"),
    ])));
    let container = |cpu: &str, memory: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}});
    let ten = container("10", "10G");
    let bound = json!({"scheduling.koordinator.sh/resource-status":
        json!({"numaNodeResources": [{"node": 0, "resources": {"cpu": "10"}}]}).to_string()});
    let pods = [
        (
            "podProdLSE",
            json!({"koordinator.sh/qosClass": "LSE"}),
            None,
            json!([ten]),
            "Running",
        ),
        ("podProd1", json!({}), Some(9999), json!([ten]), "Running"),
        (
            "podBatch",
            json!({"koordinator.sh/qosClass": "BE"}),
            None,
            json!([ten]),
            "Running",
        ),
        (
            "podMid",
            json!({"koordinator.sh/qosClass": "BE"}),
            Some(7000),
            json!([container("10", "20G"), container("10", "20G")]),
            "Pending",
        ),
        ("podProd2", json!({}), Some(9999), json!([ten]), "Succeeded"),
    ];
    case.pods = pods
        .into_iter()
        .map(|(name, labels, priority, containers, phase)| {
            let annotations = if name == "podProdLSE" {
                bound.clone()
            } else {
                json!({})
            };
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"namespace": "d", "name": name, "labels": labels,
                             "annotations": annotations},
                "spec": {"nodeName": "n", "priority": priority, "containers": containers},
                "status": {"phase": phase},
            }))
            .unwrap();
            Arc::new(PodFacts::from_pod(&pod, FieldMask::default()))
        })
        .collect();
    case
}

/// Returns the batch resources that a plan writes for a zone.
fn zone_batch(plan: &Plan, index: usize) -> (Value, Value) {
    let patch = plan.topology.as_ref().unwrap();
    assert_eq!(patch["metadata"], json!({"resourceVersion": "7"}));
    let resources = patch["zones"][index]["resources"].as_array().unwrap();
    let names: Vec<_> = resources
        .iter()
        .map(|resource| resource["name"].as_str())
        .collect();
    assert!(names.is_sorted(), "{names:?}");
    let get = |name: &str| {
        let resource = resources
            .iter()
            .find(|resource| resource["name"] == name)
            .unwrap();
        assert_eq!(resource["capacity"], resource["allocatable"]);
        assert_eq!(resource["capacity"], resource["available"]);
        resource["capacity"].clone()
    };
    (get(BATCH_CPU), get(BATCH_MEMORY))
}

#[test]
fn batch_is_split_over_numa_nodes_as_published() {
    let plan = fixture_b().plan();
    let allocatable = &plan.status.as_ref().unwrap()["status"]["allocatable"];
    assert_eq!(allocatable[BATCH_CPU], "20k");
    assert_eq!(allocatable[BATCH_MEMORY], "18G");
    assert_eq!(zone_batch(&plan, 0), (json!("5k"), json!("5300M")));
    assert_eq!(zone_batch(&plan, 1), (json!("15k"), json!("12700M")));
}

#[test]
fn zones_are_matched_by_number_not_position() {
    let mut case = fixture_b();
    case.topology = Some(topology(&json!([
        zone("node-1", "50", "58G"),
        zone("node-0", "50", "62G"),
    ])));
    let plan = case.plan();
    assert_eq!(zone_batch(&plan, 0).0, "15k");
    assert_eq!(zone_batch(&plan, 1).0, "5k");
}

#[test]
fn small_changes_of_zones_wait_and_resets_empty_them() {
    let mut case = fixture_b();
    let first = case.plan().topology.unwrap()["zones"].clone();
    case.topology = Some(topology(&first));
    assert_eq!(case.plan().topology, None, "nothing changed");
    let upstreams = first.to_string().replace("5300M", "5299999999998m");
    assert_ne!(upstreams, first.to_string());
    case.topology = Some(topology(&serde_json::from_str(&upstreams).unwrap()));
    assert_eq!(case.plan().topology, None, "parts of a byte");
    let mut small_change = first.clone();
    let batch_cpu = small_change[0]["resources"]
        .as_array_mut()
        .unwrap()
        .iter_mut();
    for resource in batch_cpu.filter(|resource| resource["name"] == BATCH_CPU) {
        resource["available"] = json!("4900");
    }
    case.topology = Some(topology(&small_change));
    case.synced = Some(NOW.parse().unwrap());
    assert_eq!(case.plan().topology, None, "not due");
    // The time of the recheck is set, even when only zones wait.
    let plan = case.plan();
    let (written, meta) = (plan.status.unwrap()["status"].clone(), plan.meta.unwrap());
    let mut node = serde_json::to_value(&case.node).unwrap();
    for list in ["capacity", "allocatable"] {
        json_merge(&mut node["status"][list], &written[list]);
    }
    json_merge(&mut node["metadata"], &meta["metadata"]);
    let unwritten = std::mem::replace(&mut case.node, serde_json::from_value(node).unwrap());
    let plan = case.plan();
    assert_eq!((plan.status, plan.topology), (None, None));
    assert_eq!(plan.recheck, Some(Duration::from_secs(301)));
    case.topology = Some(topology(&first));
    assert_ne!(case.plan().recheck, Some(Duration::from_secs(301)));
    case.topology = Some(topology(&small_change));
    case.node = unwritten;
    case.synced = None;
    assert_eq!(zone_batch(&case.plan(), 0).0, "5k", "due");

    case.synced = Some(NOW.parse().unwrap());
    case.strategy = None;
    let plan = case.plan();
    for zone in [0, 1] {
        assert_eq!(zone_batch(&plan, zone), (json!("0"), json!("0")));
    }
    // What never was published is not taken back.
    assert!(fixture_b_disabled().plan().topology.is_none());
}

fn fixture_b_disabled() -> PlanCase {
    PlanCase {
        strategy: None,
        ..fixture_b()
    }
}
