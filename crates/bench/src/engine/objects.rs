//! The objects of the scenarios, as informers would deliver them.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use koord_api::scheduling::{Device, ElasticQuota, Reservation};
use koord_api::slo::NodeMetric;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_scheduler::framework::{Action, ObjectChange};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::any::Any;
use std::sync::Arc;

/// The time of all objects.
pub(crate) const EPOCH: i64 = 1_700_000_000;
const RESERVATIONS: &str = "reservations.v1alpha1.scheduling.koordinator.sh";
/// Namespace of all pods.
pub const NAMESPACE: &str = "bench";

pub(crate) fn epoch() -> Timestamp {
    Timestamp::from_second(EPOCH).unwrap_or_default()
}

pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:05}")
}

/// Merges `change` into `base`, field by field.
pub(crate) fn merge(base: &mut Value, change: &Value) {
    match (base, change) {
        (Value::Object(base), Value::Object(change)) => {
            for (key, value) in change {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, change) => *base = change.clone(),
    }
}

pub(crate) fn parse<T: DeserializeOwned + Default>(value: Value) -> T {
    let parsed = serde_json::from_value(value);
    debug_assert!(parsed.is_ok(), "{:?}", parsed.as_ref().err());
    parsed.unwrap_or_default()
}

/// Returns a node with 32 CPU, 256 GiB, 110 pods, in one of ten zones.
pub(crate) fn node(number: usize, change: &Value) -> Arc<Node> {
    let name = node_name(number);
    let mut value = json!({
        "metadata": {"name": name, "uid": name, "labels": {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": format!("zone-{}", number % 10),
        }},
        "status": {"allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"}},
    });
    merge(&mut value, change);
    Arc::new(parse(value))
}

/// Returns a pod with 500m and 512 MiB, and the priority of production pods.
pub(crate) fn pod(prefix: &str, number: usize, change: &Value) -> Arc<Pod> {
    let name = format!("{prefix}-{number:06}");
    let mut value = json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name,
            "labels": {"app": "bench"}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priority": 9000,
            "containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10", "resources": {
                "requests": {"cpu": "500m", "memory": "512Mi"}
            }}],
        },
    });
    merge(&mut value, change);
    Arc::new(parse(value))
}

/// Returns fields that no two pods have in common, for pod `number`. Pods with an even number are the only
/// pod of a StatefulSet, the others of a Job.
pub(crate) fn unique_fields(prefix: &str, number: usize) -> Value {
    let name = format!("{prefix}-{number:06}");
    let uid = format!("00000000-0000-4000-9000-{number:012}");
    let resources = json!({"requests":
        {"cpu": format!("{}m", 300 + number % 401), "memory": format!("{}Ki", 300_000 + number)}});
    let app = json!({"app.kubernetes.io/name": format!("app-{number}"), "app.kubernetes.io/instance": "main"});
    let (mut labels, kind, set) = if number.is_multiple_of(2) {
        let set = format!("{name}-set");
        let labels = json!({"apps.kubernetes.io/pod-index": "0", "controller-revision-hash": format!("{set}-7d9f5c4b8"),
            "statefulset.kubernetes.io/pod-name": name});
        (labels, ("apps/v1", "StatefulSet"), set)
    } else {
        let labels = json!({"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name,
            "controller-uid": uid, "job-name": name});
        (labels, ("batch/v1", "Job"), name.clone())
    };
    merge(&mut labels, &app);
    json!({
        "metadata": {"labels": labels, "ownerReferences": [{"apiVersion": kind.0, "kind": kind.1,
            "name": set, "uid": uid, "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"hostname": name,
            "containers": [{"name": format!("app-{number}"), "image": format!("registry.example/app-{number}:1.2.3"),
                "resources": resources}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{name}")}}]},
    })
}

/// Returns the change of a pod that sets the resources of its only container.
pub(crate) fn requests(requests: Value) -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": requests, "limits": requests}}]}})
}

/// Returns `pod` bound to `node`.
pub(crate) fn bound(pod: &Pod, node: &str) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node.to_owned());
    }
    pod
}

/// Returns a custom resource as JSON.
pub(crate) fn to_value(object: &ObjectChange) -> Option<Value> {
    fn json<T: serde::Serialize + 'static>(object: &ObjectChange) -> Option<Value> {
        serde_json::to_value(object.new_as::<T>()?).ok()
    }
    json::<NodeMetric>(object)
        .or_else(|| json::<ElasticQuota>(object))
        .or_else(|| json::<Reservation>(object))
        .or_else(|| json::<NodeResourceTopology>(object))
        .or_else(|| json::<Device>(object))
        .or_else(|| json::<ReplicaSet>(object))
        .or_else(|| json::<Service>(object))
}

pub(crate) fn added<T: Any + Send + Sync>(kind: &'static str, object: T) -> ObjectChange {
    ObjectChange {
        kind,
        action: Action::ADD,
        old: None,
        new: Arc::new(object),
    }
}

/// Returns the `report`-th NodeMetric of a node: a third is in use, with a little variation by report.
pub(crate) fn metric(number: usize, report: usize) -> ObjectChange {
    let cpu = format!("{}m", 8000 + 10 * ((number + 37 * report) % 400));
    let metric: NodeMetric = parse(json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": node_name(number)},
        "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
        "status": {
            "updateTime": epoch().to_string(),
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu, "memory": "64Gi"}}},
        },
    }));
    added("nodemetrics.v1alpha1.slo.koordinator.sh", metric)
}

/// Returns a quota group under `parent`.
pub(crate) fn quota(name: &str, parent: &str, is_parent: bool, cpu: usize) -> ObjectChange {
    let amounts = |cpu: usize| json!({"cpu": format!("{cpu}"), "memory": format!("{}Gi", 8 * cpu)});
    let quota: ElasticQuota = parse(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "labels": {
            koord_api::labels::QUOTA_PARENT: parent,
            koord_api::labels::QUOTA_IS_PARENT: if is_parent { "true" } else { "false" },
        }},
        "spec": {"min": amounts(cpu / 2), "max": amounts(cpu)},
    }));
    added("elasticquotas.v1alpha1.scheduling.sigs.k8s.io", quota)
}

/// Returns a reservation for one pod of owner `number`, on a node.
pub(crate) fn reservation(number: usize, node: &str) -> ObjectChange {
    let name = format!("reservation-{number:05}");
    let amounts = json!({"cpu": "500m", "memory": "512Mi"});
    let template = json!({"spec": {"schedulerName": "koord-scheduler", "containers": [
        {"name": "c", "image": "i", "resources": {"requests": amounts}}]}});
    let reservation: Reservation = parse(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name, "uid": name, "creationTimestamp": epoch().to_string()},
        "spec": {
            "template": template,
            "ttl": "24h0m0s",
            "owners": [{"labelSelector": {"matchLabels": {"owner": format!("o{}", number % 100)}}}],
        },
        "status": {
            "phase": "Available",
            "nodeName": node,
            "allocatable": amounts,
            "conditions": [
                {"type": "Scheduled", "status": "True", "reason": "Scheduled",
                    "lastProbeTime": epoch().to_string(), "lastTransitionTime": epoch().to_string()},
                {"type": "Ready", "status": "True", "reason": "Available",
                    "lastProbeTime": epoch().to_string(), "lastTransitionTime": epoch().to_string()},
            ],
        },
    }));
    added(RESERVATIONS, reservation)
}

/// Returns a pending reservation, for the pod that replaces the one of that number.
pub(crate) fn migration(number: usize) -> ObjectChange {
    let name = format!("migrate-{number:06}");
    let amounts = json!({"cpu": "500m", "memory": "512Mi"});
    let reservation: Reservation = parse(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name, "uid": name, "creationTimestamp": epoch().to_string()},
        "spec": {
            "template": {"spec": {"schedulerName": "koord-scheduler", "priority": 9000, "containers": [
                {"name": "c", "image": "i", "resources": {"requests": amounts}}]}},
            "ttl": "24h0m0s",
            "allocateOnce": true,
            "owners": [{"labelSelector": {"matchLabels": {"migrates": name}}}],
        },
    }));
    added(RESERVATIONS, reservation)
}

/// Returns the informer's update after a write to the reservation's status.
pub(crate) fn patched_reservation(old: &Reservation, patch: &Value) -> ObjectChange {
    let mut value = serde_json::to_value(old).unwrap_or_default();
    merge(&mut value, patch);
    ObjectChange {
        action: Action::UPDATE,
        old: Some(Arc::new(old.clone())),
        ..added(RESERVATIONS, parse::<Reservation>(value))
    }
}

/// Returns two NUMA nodes, of which the kubelet gives a pod one. Every `report` but 0 has other free amounts,
/// other batch resources and other shared pools.
pub(crate) fn aligned(number: usize, report: usize) -> ObjectChange {
    let odd = (number + report) % 3;
    let zone = |id: usize| {
        let resource = |name: &str, amount: &str, free: &str| json!({"name": name, "capacity": amount, "allocatable": amount, "available": free});
        let free = 16 - if report > 0 { odd } else { 0 };
        let mut resources = vec![
            resource("cpu", "16", &free.to_string()),
            resource("memory", "128Gi", "128Gi"),
        ];
        if report > 0 {
            let batch = (4000 + 100 * odd).to_string();
            resources.push(resource(koord_api::resources::BATCH_CPU, &batch, &batch));
        }
        json!({"name": format!("node-{id}"), "type": "Node", "resources": resources})
    };
    let mut topology: NodeResourceTopology = parse(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": node_name(number)},
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "attributes": [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "pod"},
        ],
        "zones": [zone(0), zone(1)],
    }));
    if report > 0 {
        let pools = json!([{"socket": 0, "node": 0, "cpuset": format!("{odd}-15")}]);
        let key = koord_api::annotations::NODE_CPU_SHARED_POOLS.to_owned();
        topology.metadata.annotations = Some([(key, pools.to_string())].into());
    }
    added(
        "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
        topology,
    )
}

/// Returns two sockets of eight cores with two threads each.
pub(crate) fn topology(number: usize) -> ObjectChange {
    let cpus: Vec<Value> = (0..32)
        .map(|cpu| json!({"id": cpu, "core": cpu / 2, "socket": cpu / 16, "node": cpu / 16}))
        .collect();
    let zone = |id: usize| {
        let resource = |name: &str, amount: &str| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
        json!({"name": format!("node-{id}"), "type": "Node",
            "resources": [resource("cpu", "16"), resource("memory", "128Gi")]})
    };
    let topology: NodeResourceTopology = parse(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": node_name(number), "annotations": {
            koord_api::annotations::NODE_CPU_TOPOLOGY: json!({"detail": cpus}).to_string(),
        }},
        "topologyPolicies": ["None"],
        "zones": [zone(0), zone(1)],
    }));
    added(
        "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
        topology,
    )
}

/// Returns so many GPUs of 80 GiB.
pub(crate) fn device(number: usize, count: usize) -> ObjectChange {
    let gpu = |minor: usize| {
        json!({
            "id": format!("GPU-{number:05}-{minor}"), "minor": minor, "type": "gpu",
            "health": true,
            "resources": {
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/gpu-memory": "80Gi",
            },
            "topology": {"socketID": minor / 4, "nodeID": minor / 4,
                "pcieID": format!("{}", minor / 2), "busID": format!("0000:{minor:02x}:00.0")},
        })
    };
    let gpus: Vec<Value> = (0..count).map(gpu).collect();
    let device: Device = parse(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": {"name": node_name(number)},
        "spec": {"devices": gpus},
    }));
    added("devices.v1alpha1.scheduling.koordinator.sh", device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::resources::ResourceTable;
    use koord_scheduler::state::{ParsedPod, PodInterner};

    #[test]
    fn unique_fields_differ_between_pods() {
        let (alike, table) = (PodInterner::default(), ResourceTable::new());
        let read = |number: usize| {
            let pod = bound(&pod("p", number, &unique_fields("p", number)), "n");
            match alike.read(pod, &table) {
                ParsedPod::Pod(info) => info,
                ParsedPod::Broken(broken) => panic!("{broken:?}"),
            }
        };
        for (a, b) in [(0, 1), (0, 2), (1, 3), (0, 802)] {
            let [a, b] = [a, b].map(|number| read(number).object.clone());
            assert_ne!(a.labels, b.labels);
            assert_ne!(a.owners, b.owners);
            assert_ne!(a.containers, b.containers);
            assert!(a.claims().ne(b.claims()));
        }
    }
}
