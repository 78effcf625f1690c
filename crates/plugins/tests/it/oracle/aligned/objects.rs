//! Conversion of a run's model to API objects, and of pod annotations back to the model.

use super::super::START;
use super::rules::{
    Allocation, Bind, Exclusive, GPU, NUMAS, Node, Pod, Policy, RDMA, Reservation, THREADS,
};
use crate::differential::preemption::{change, parsed};
use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use koord_api::scheduling::{self, Device};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_scheduler::framework::ObjectChange;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const CORE: &str = "koordinator.sh/gpu-core";
const RATIO: &str = "koordinator.sh/gpu-memory-ratio";
const ADAPTER: &str = "koordinator.sh/rdma";
const KINDS: [&str; 2] = ["gpu", "rdma"];
const STATUS: &str = "scheduling.koordinator.sh/resource-status";
const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";
const ALLOCATED: &str = "scheduling.koordinator.sh/reservation-allocated";

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(START + seconds).unwrap()
}

/// Returns the label's value, or the name for a node without the label.
pub(super) fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::None => "none",
        Policy::BestEffort => "BestEffort",
        Policy::Restricted => "Restricted",
        Policy::Single => "SingleNUMANode",
    }
}

pub(super) fn node(name: &str, node: &Node) -> Arc<v1::Node> {
    let mut labels = json!({});
    if node.policy != Policy::None {
        labels["node.koordinator.sh/numa-topology-policy"] = json!(policy(node.policy));
    }
    if node.whole_cores {
        labels["node.koordinator.sh/cpu-bind-policy"] = json!("FullPCPUsOnly");
    }
    let mut annotations = json!({});
    if node.percent > 100 {
        let ratio = json!({"cpu": node.percent as f64 / 100.0});
        annotations["node.koordinator.sh/resource-amplification-ratio"] = json!(ratio.to_string());
    }
    let cpu = node.amplified(i64::from(node.cpus) * 1000);
    let [gpus, adapters] = [GPU, RDMA].map(|kind| (node.devices[kind].len() * 100).to_string());
    Arc::new(parsed(json!({
        "metadata": {"name": name, "uid": name, "labels": labels, "annotations": annotations},
        "status": {"allocatable": {"cpu": format!("{cpu}m"), "pods": "110",
            "memory": format!("{}Mi", node.memory * i64::from(NUMAS)),
            CORE: gpus, RATIO: gpus, ADAPTER: adapters}}
    })))
}

pub(super) fn topology(name: &str, node: &Node) -> ObjectChange {
    let cpu = |id: u32| {
        let numa = node.numa_of_cpu(id);
        json!({"id": id, "core": id / THREADS, "socket": numa, "node": numa})
    };
    let detail: Vec<Value> = (0..node.cpus).map(cpu).collect();
    let zone = |id: u32| {
        let amount = |name: &str, amount: String| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
        json!({"name": format!("node-{id}"), "type": "Node", "resources": [
            amount("cpu", (node.cpus / NUMAS).to_string()), amount("memory", format!("{}Mi", node.memory))]})
    };
    let zones: Vec<Value> = (0..NUMAS).map(zone).collect();
    let reserved: Vec<String> = node.reserved.iter().map(u32::to_string).collect();
    let kubelet = json!({"policy": "static", "reservedCPUs": reserved.join(",")});
    let object: NodeResourceTopology = parsed(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": name, "annotations": {
            "node.koordinator.sh/cpu-topology": json!({"detail": detail}).to_string(),
            "kubelet.koordinator.sh/cpu-manager-policy": kubelet.to_string()}},
        "topologyPolicies": [], "zones": zones
    }));
    change(
        "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
        object,
        false,
    )
}

pub(super) fn devices(name: &str, node: &Node) -> ObjectChange {
    let device = |kind: usize, minor: usize, well: &bool| {
        let numa = node.numa_of_device(kind, u32::try_from(minor).unwrap());
        let resources = match kind {
            GPU => json!({CORE: "100", RATIO: "100", "koordinator.sh/gpu-memory": "80Gi"}),
            _ => json!({ADAPTER: "100"}),
        };
        json!({"type": KINDS[kind], "id": format!("{name}-{kind}-{minor}"), "minor": minor,
            "health": well, "resources": resources,
            "topology": {"socketID": numa, "nodeID": numa, "pcieID": format!("{numa}")}})
    };
    let list = [GPU, RDMA].map(|kind| {
        let all = node.devices[kind].iter().enumerate();
        all.map(|(minor, well)| device(kind, minor, well)).collect()
    });
    let list: Vec<Value> = list.into_iter().flat_map(|list: Vec<Value>| list).collect();
    let object: Device = parsed(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": {"name": name}, "spec": {"devices": list}
    }));
    change("devices.v1alpha1.scheduling.koordinator.sh", object, false)
}

pub(super) fn pod(pod: &Pod, allocation: Option<&Allocation>) -> Arc<v1::Pod> {
    let requests = requests(pod.cpu, pod.memory, pod.devices);
    let (mut labels, mut annotations) = (json!({}), json!({}));
    if pod.bind != Bind::No {
        labels = json!({"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"});
        let mut spec = match pod.bind {
            Bind::Full => json!({"requiredCPUBindPolicy": "FullPCPUs"}),
            Bind::Spread => json!({"requiredCPUBindPolicy": "SpreadByPCPUs"}),
            Bind::Prefer | Bind::No => json!({"preferredCPUBindPolicy": "FullPCPUs"}),
        };
        match pod.exclusive {
            Exclusive::No => {}
            Exclusive::Core => spec["preferredCPUExclusivePolicy"] = json!("PCPULevel"),
            Exclusive::Numa => spec["preferredCPUExclusivePolicy"] = json!("NUMANodeLevel"),
        }
        annotations["scheduling.koordinator.sh/resource-spec"] = json!(spec.to_string());
    }
    if let Some(into) = &pod.into {
        labels["owner"] = json!(into);
        annotations["scheduling.koordinator.sh/reservation-affinity"] =
            json!(json!({"name": into}).to_string());
    }
    let mut value = json!({
        "metadata": {"name": pod.name, "namespace": "ns", "uid": pod.name, "labels": labels},
        "spec": {"schedulerName": "koord-scheduler", "containers":
            [{"name": "c", "image": "i", "resources": {"requests": requests, "limits": requests}}]}
    });
    if let Some(allocation) = allocation {
        value["spec"]["nodeName"] = json!(allocation.node);
        annotations[STATUS] = json!(status(allocation).to_string());
        annotations[DEVICES] = json!(allocated(allocation).to_string());
        if let Some(into) = &pod.into {
            annotations[ALLOCATED] = json!(json!({"name": into, "uid": into}).to_string());
        }
    }
    value["metadata"]["annotations"] = annotations;
    Arc::new(parsed(value))
}

fn status(allocation: &Allocation) -> Value {
    let mut out = json!({});
    if !allocation.cpus.is_empty() {
        let cpus: Vec<String> = allocation.cpus.iter().map(u32::to_string).collect();
        out["cpuset"] = json!(cpus.join(","));
    }
    let zone = |(numa, [cpu, memory]): (&u32, &[i64; 2])| {
        let mut amounts = json!({"cpu": format!("{cpu}m")});
        if *memory > 0 {
            amounts["memory"] = json!(format!("{memory}Mi"));
        }
        json!({"node": numa, "resources": amounts})
    };
    if !allocation.numas.is_empty() {
        out["numaNodeResources"] = allocation.numas.iter().map(zone).collect();
    }
    out
}

fn allocated(allocation: &Allocation) -> Value {
    let device = |kind: usize, minor: &u32, percent: &i64| {
        let percent = percent.to_string();
        let resources = match kind {
            GPU => json!({CORE: percent, RATIO: percent}),
            _ => json!({ADAPTER: percent}),
        };
        json!({"minor": minor, "resources": resources})
    };
    let mut out = json!({});
    for kind in [GPU, RDMA] {
        let all = allocation.devices[kind].iter();
        let list: Vec<Value> = all.map(|(minor, n)| device(kind, minor, n)).collect();
        if !list.is_empty() {
            out[KINDS[kind]] = json!(list);
        }
    }
    out
}

fn requests(cpu: i64, memory: i64, [gpu, adapter]: [i64; 2]) -> Value {
    let mut out = json!({"cpu": format!("{cpu}m")});
    if memory > 0 {
        out["memory"] = json!(format!("{memory}Mi"));
    }
    if gpu > 0 {
        out[CORE] = json!(gpu.to_string());
        out[RATIO] = json!(gpu.to_string());
    }
    if adapter > 0 {
        out[ADAPTER] = json!(adapter.to_string());
    }
    out
}

/// Builds a reservation that has a node.
pub(super) fn reservation(name: &str, all: &Reservation, gone: bool) -> ObjectChange {
    let amounts = requests(all.cpu, all.memory, all.amounts);
    let time = at(0).to_string();
    let condition = |kind: &str, reason: &str| {
        json!({"type": kind, "status": "True", "reason": reason,
            "lastProbeTime": time, "lastTransitionTime": time})
    };
    let mut annotations = json!({});
    if all.fine {
        annotations[STATUS] = json!(status(&all.allocation).to_string());
    }
    if all.amounts != [0; 2] {
        annotations[DEVICES] = json!(allocated(&all.allocation).to_string());
    }
    let object: scheduling::Reservation = parsed(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name, "uid": name, "creationTimestamp": time,
            "annotations": annotations},
        "spec": {
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers":
                [{"name": "c", "image": "i", "resources": {"requests": amounts}}]}},
            "ttl": "0s", "allocateOnce": false, "allocatePolicy": "Restricted",
            "owners": [{"labelSelector": {"matchLabels": {"owner": name}}}]
        },
        "status": {"phase": "Available", "nodeName": all.allocation.node, "allocatable": amounts,
            "conditions": [condition("Scheduled", "Scheduled"), condition("Ready", "Available")]}
    }));
    change(
        "reservations.v1alpha1.scheduling.koordinator.sh",
        object,
        gone,
    )
}

/// Parses a CPU list such as `0-3,8`.
fn cpus(text: &str) -> impl Iterator<Item = u32> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse().unwrap()..=last.parse().unwrap()
    })
}

/// Converts a quantity to thousandths.
fn milli(value: &Value) -> i64 {
    let Some(text) = value.as_str() else { return 0 };
    let quantity: koord_api::quantity::Quantity = text.parse().unwrap();
    quantity.milli_value()
}

pub(super) fn allocation(node: &str, annotations: &BTreeMap<String, String>) -> Allocation {
    let read = |key: &str| -> Value {
        let text = annotations.get(key).map_or("{}", String::as_str);
        serde_json::from_str(text).unwrap()
    };
    let (status, devices) = (read(STATUS), read(DEVICES));
    let zones = status["numaNodeResources"].as_array().into_iter().flatten();
    let id = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    Allocation {
        node: node.to_owned(),
        cpus: cpus(status["cpuset"].as_str().unwrap_or("")).collect(),
        numas: zones
            .map(|zone| {
                let amounts = &zone["resources"];
                let mebibytes = milli(&amounts["memory"]) / 1000 / (1 << 20);
                (id(&zone["node"]), [milli(&amounts["cpu"]), mebibytes])
            })
            .collect(),
        devices: [(GPU, RATIO), (RDMA, ADAPTER)].map(|(kind, unit)| {
            let all = devices[KINDS[kind]].as_array().into_iter().flatten();
            all.map(|device| {
                (
                    id(&device["minor"]),
                    milli(&device["resources"][unit]) / 1000,
                )
            })
            .collect()
        }),
    }
}
