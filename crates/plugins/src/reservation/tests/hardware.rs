//! Nodes with CPUs, NUMA nodes and GPUs for tests of reservations that hold them.

use super::*;
use crate::common::topologies::TOPOLOGIES;
use koord_api::extension::{DeviceAllocations, ResourceStatus};
use koord_api::scheduling::Device;
use koord_api::topology::v1alpha2::NodeResourceTopology;

const DEVICES: &str = "devices.v1alpha1.scheduling.koordinator.sh";

/// Parses `cpu=4 gpu=50` into a list of resources.
pub(super) fn requests(text: &str) -> Value {
    let mut out = json!({});
    for token in text.split_whitespace() {
        let (name, amount) = token.split_once('=').unwrap();
        let name = match name {
            "gpu" | "gpu-core" | "gpu-memory" | "gpu-memory-ratio" => {
                format!("koordinator.sh/{name}")
            }
            "fake" => "example.com/fake".to_owned(),
            name => name.to_owned(),
        };
        out[name] = json!(amount);
    }
    out
}

/// Returns the fields that bind a pod, or the template of a reservation, to CPUs.
pub(super) fn bound() -> Value {
    json!({
        "metadata": {
            "labels": {"koordinator.sh/qosClass": "LSR"},
            "annotations": {annotations::RESOURCE_SPEC:
                json!({"preferredCPUBindPolicy": "FullPCPUs"}).to_string()}
        },
        "spec": {"priority": 9500}
    })
}

/// Returns `change` with `more` merged into it.
pub(super) fn merged(mut change: Value, more: Value) -> Value {
    merge(&mut change, &more);
    change
}

/// Returns the allocation in the annotations of a pod or reservation, as `0-3 | 0: cpu 4 | gpu 0 1`.
pub(super) fn allocation_of(object: &Value) -> String {
    let note = |key: &str| object["metadata"]["annotations"][key].as_str();
    let mut parts = Vec::new();
    if let Some(text) = note(annotations::RESOURCE_STATUS) {
        let status: ResourceStatus = serde_json::from_str(text).unwrap();
        parts.push(status.cpuset.clone());
        for zone in &status.numa_node_resources {
            let list = zone.resources.iter();
            let list: Vec<String> = list.map(|(name, n)| format!("{name} {n}")).collect();
            parts.push(format!("{}: {}", zone.node, list.join(", ")));
        }
    }
    if let Some(text) = note(annotations::DEVICE_ALLOCATED) {
        let devices: DeviceAllocations = serde_json::from_str(text).unwrap();
        for (kind, list) in devices {
            let minors = list.iter().map(|device| device.minor.to_string());
            parts.push(format!("{kind} {}", minors.collect::<Vec<_>>().join(" ")));
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" | ")
}

impl ReservationWorld {
    /// Creates a world with the plugins for CPUs, NUMA nodes and devices, and `others`.
    pub(super) fn with_hardware(others: &[&'static str]) -> Self {
        let mut all = vec!["NodeNUMAResource", "DeviceShare"];
        all.extend(others);
        Self::with_plugins(&all)
    }

    fn add_object<T: serde::de::DeserializeOwned + Send + Sync + 'static>(
        &mut self,
        kind: &'static str,
        object: Value,
    ) {
        let new: T = serde_json::from_value(object).unwrap();
        let change = ObjectChange {
            kind,
            action: Action::ADD,
            old: None,
            new: Arc::new(new),
        };
        self.engine.object_changed(&change, self.now);
        self.shown.push(change);
    }

    /// Adds a node of two NUMA nodes with 4 cores of 2 threads (CPUs 0-7 and 8-15) and 32 GiB each, and
    /// `gpus` GPUs of 80 GiB, the first half of them on NUMA node 0.
    pub(super) fn machine(&mut self, name: &str, gpus: u8, labels: Value) {
        let amount = |each: u32| (u32::from(gpus) * each).to_string();
        let mut node = json!({
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "40",
                "example.com/fake": "1000"}}
        });
        if gpus > 0 {
            let devices = json!({
                "koordinator.sh/gpu": amount(100), "koordinator.sh/gpu-core": amount(100),
                "koordinator.sh/gpu-memory-ratio": amount(100),
                "koordinator.sh/gpu-memory": format!("{}Gi", amount(80)),
            });
            merge(&mut node, &json!({"status": {"allocatable": devices}}));
        }
        self.nodes.insert(name.to_owned(), node.clone());
        let node: Node = serde_json::from_value(node).unwrap();
        self.engine.node_applied(Arc::new(node), self.now);
        let cpu = |id: u32| json!({"id": id, "core": id / 2, "socket": id / 8, "node": id / 8});
        let cpus: Value = (0..16).map(cpu).collect();
        let zone = |id: u32| {
            let resource = |name: &str, n: &str| json!({"name": name, "capacity": n, "allocatable": n, "available": n});
            json!({"name": format!("node-{id}"), "type": "Node",
                "resources": [resource("cpu", "8"), resource("memory", "32Gi")]})
        };
        self.add_object::<NodeResourceTopology>(
            TOPOLOGIES,
            json!({
                "metadata": {"name": name, "annotations": {
                    "node.koordinator.sh/cpu-topology": json!({"detail": cpus}).to_string()}},
                "topologyPolicies": [], "zones": [zone(0), zone(1)]
            }),
        );
        let gpu = |minor: u8| {
            let side = minor / gpus.div_ceil(2);
            json!({"type": "gpu", "id": format!("GPU-{minor}"), "minor": minor, "health": true,
                "resources": {"koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu-memory": "80Gi"},
                "topology": {"socketID": side, "nodeID": side, "pcieID": format!("pci{minor}")}})
        };
        if gpus > 0 {
            let devices: Value = (0..gpus).map(gpu).collect();
            let device = json!({"metadata": {"name": name}, "spec": {"devices": devices}});
            self.add_object::<Device>(DEVICES, device);
        }
    }

    /// Creates a pod of `app` that requests `list`.
    pub(super) fn pod_with(&mut self, name: &str, list: &str, app: &str, change: Value) {
        let container = json!({"name": "c", "resources": {"requests": requests(list)}});
        let own = json!({"spec": {"containers": [container]}});
        self.pod(name, "0", app, merged(own, change));
    }

    /// Creates a reservation of `list` for pods of `app`; `template` and `change` are merged into it.
    pub(super) fn reserve_with(
        &mut self,
        name: &str,
        list: &str,
        app: &str,
        template: Value,
        change: Value,
    ) {
        let container = json!({"name": "c", "resources": {"requests": requests(list)}});
        let own = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        let own = merged(own, json!({"spec": {"template": template}}));
        self.reserve(name, "0", app, merged(own, change));
    }

    /// Returns a pod's node, reservation and allocation, or why it waits.
    pub(super) fn allocation(&self, pod: &str) -> String {
        let text = allocation_of(&self.pods[pod]);
        match text.as_str() {
            "" => self.result_of(pod),
            text => format!("{}: {text}", self.result_of(pod)),
        }
    }

    /// Returns a reservation's allocation.
    pub(super) fn reserved(&self, reservation: &str) -> String {
        allocation_of(&self.reservations[reservation])
    }
}
