//! The facts of upstream's tables in a short notation: GPUs and adapters by minor.

mod allocation;
mod gpus;
mod ledger;
mod numa;
mod requests;
mod scoring;

use super::*;
use koord_api::{extension, scheduling};
use serde_json::{Value, json};

pub(super) const MEMORY: i64 = 85_198_045_184;

/// The layout of a node's devices: per GPU and per adapter its minor, NUMA node and PCIe root.
pub(super) struct DeviceLayout {
    pub(super) gpus: Vec<(u8, i32, &'static str)>,
    pub(super) adapters: Vec<(u8, i32, &'static str)>,
}

/// Creates two NUMA nodes with two PCIe roots each, each with two GPUs and one adapter.
pub(super) fn usual() -> DeviceLayout {
    let root = |at: u8| (i32::from(at / 2), ["0", "1", "2", "3"][usize::from(at)]);
    DeviceLayout {
        gpus: (0..8)
            .map(|gpu| (gpu, root(gpu / 2).0, root(gpu / 2).1))
            .collect(),
        adapters: (0..4).map(|at| (at + 1, root(at).0, root(at).1)).collect(),
    }
}

impl DeviceLayout {
    pub(super) fn object(&self) -> Value {
        let place =
            |numa: i32, pcie: &str| json!({"socketID": numa, "nodeID": numa, "pcieID": pcie});
        let gpus = self.gpus.iter().map(|(minor, numa, pcie)| {
            json!({"type": "gpu", "id": format!("GPU-{minor}"), "minor": minor, "health": true,
                "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                    "koordinator.sh/gpu-memory": MEMORY.to_string()},
                "topology": place(*numa, pcie)})
        });
        let adapters = self.adapters.iter().map(|(minor, numa, pcie)| {
            let vf = |n: i32| json!({"minor": n, "busID": format!("{minor}:00.{}", n + 2)});
            json!({"type": "rdma", "labels": {"type": "fakeW"}, "id": format!("RDMA-{minor}"),
                "minor": minor, "health": true, "resources": {"koordinator.sh/rdma": "100"},
                "topology": place(*numa, pcie),
                "vfGroups": [{"labels": {"type": "general"}, "vfs": [vf(2), vf(1), vf(0)]}]})
        });
        json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": "node"}, "spec": {"devices": adapters.chain(gpus).collect::<Vec<_>>()}})
    }

    pub(super) fn inventory(&self) -> Inventory {
        inventory(self.object())
    }
}

pub(super) fn inventory(object: Value) -> Inventory {
    let object: scheduling::Device = serde_json::from_value(object).unwrap();
    let (inventory, problems) = Inventory::new(&object);
    assert_eq!(problems, Vec::<String>::new());
    inventory
}

pub(super) fn units(list: &[(&str, &str)]) -> Units {
    let parse = |(name, amount): &(&str, &str)| {
        let name = match *name {
            "core" => "koordinator.sh/gpu-core",
            "memory" => "koordinator.sh/gpu-memory",
            "ratio" => "koordinator.sh/gpu-memory-ratio",
            "shared" => "koordinator.sh/gpu.shared",
            "gpu" => "koordinator.sh/gpu",
            "rdma" => "koordinator.sh/rdma",
            "fpga" => "koordinator.sh/fpga",
            "nvidia" => "nvidia.com/gpu",
            "amd" => "amd.com/gpu",
            "dcu" => "dcu.com/gpu",
            "npu-core" => "huawei.com/npu-core",
            "npu-cpu" => "huawei.com/npu-cpu",
            "npu-dvpp" => "huawei.com/npu-dvpp",
            other => other,
        };
        (name.to_owned(), amount.parse().unwrap())
    };
    Units::from_list(&list.iter().map(parse).collect())
}

/// Reads the needed devices of a pod with these requests and annotations.
pub(super) fn need(requests: &[(&str, &str)], hints: Value, joint: Value) -> Need {
    let hints: extension::DeviceAllocateHints = serde_json::from_value(hints).unwrap();
    let joint: Option<extension::DeviceJointAllocate> = serde_json::from_value(joint).unwrap();
    Need::new(&units(requests), &hints, joint.as_ref(), None)
        .unwrap()
        .unwrap()
}

/// Creates a ledger in which one pod holds these whole GPUs and the first functions of these adapters.
pub(super) fn ledger_with(gpus: &[u8], adapters: &[(u8, i64)]) -> DeviceLedger {
    let gpu = |minor: &u8| {
        json!({"minor": minor, "resources": {"koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu-memory": MEMORY.to_string()}})
    };
    let adapter = |(minor, amount): &(u8, i64)| {
        json!({"minor": minor, "resources": {"koordinator.sh/rdma": amount.to_string()},
            "extension": {"vfs": [{"minor": 0, "busID": format!("{minor}:00.2")}]}})
    };
    let allocations = json!({"gpu": gpus.iter().map(gpu).collect::<Vec<_>>(),
        "rdma": adapters.iter().map(adapter).collect::<Vec<_>>()});
    let mut ledger = DeviceLedger::default();
    ledger.put("assigned".into(), holding(allocations));
    ledger
}

pub(super) fn holding(allocations: Value) -> DeviceHolding {
    let allocations: extension::DeviceAllocations = serde_json::from_value(allocations).unwrap();
    DeviceHolding {
        devices: Allocation::from_annotation(&allocations).unwrap(),
        ..DeviceHolding::default()
    }
}

/// Formats an allocation as `0 1 / 1:00.2`: the GPUs, and the adapters' functions (or minors).
pub(super) fn format_result(result: Result<Allocation, Refusal>) -> String {
    let allocation = match result {
        Ok(allocation) => allocation,
        Err(refusal) => return refusal.reason.to_owned(),
    };
    let grant = |grant: &Grant| match grant.functions.first() {
        Some(function) => function.bus_id.clone(),
        None => grant.minor.to_string(),
    };
    let of = |kind| {
        let mut grants = allocation.grants(kind).to_vec();
        grants.sort_by_key(|grant| grant.minor);
        let texts: Vec<String> = grants.iter().map(grant).collect();
        texts.join(" ")
    };
    format!("{} / {}", of(DeviceType::Gpu), of(DeviceType::Rdma))
}

pub(super) fn place(
    need: &Need,
    on: &Inventory,
    ledger: &DeviceLedger,
    rules: &Rules<'_>,
) -> String {
    let site = Site {
        inventory: on,
        used: ledger.used(),
        model: None,
        honor_model: false,
    };
    format_result(allocate(need, &site, rules))
}
