//! Upstream's tables of pod and device events, checked by what remains free of one GPU.

use super::*;

/// An allocation on GPU 1: 60 % of the cores, half of the memory.
const SOME: &str = r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"60",
    "koordinator.sh/gpu-memory":"40Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#;

enum DeviceStep {
    /// The pod with [`SOME`] is applied, on this node unless it is empty.
    Holds(&'static str),
    /// The pod without devices is applied.
    Plain(&'static str),
    /// The pod is deleted.
    Gone(&'static str),
    Device,
}

fn share(core: u32, ratio: u32) -> Value {
    json!({"koordinator.sh/gpu-core": core.to_string(),
        "koordinator.sh/gpu-memory-ratio": ratio.to_string()})
}

fn other_scheduler_pod(node: &str, holds: bool) -> Arc<Pod> {
    let mut value = match holds {
        true => pod("test", share(60, 50), json!({})),
        false => pod("test", json!({"cpu": "1", "memory": "4Gi"}), json!({})),
    };
    value["spec"]["schedulerName"] = json!("another");
    if holds {
        value["metadata"]["annotations"] =
            json!({"scheduling.koordinator.sh/device-allocated": SOME});
    }
    if !node.is_empty() {
        value["spec"]["nodeName"] = json!(node);
    }
    object(value)
}

/// Returns true if a pod with these requests still fits after all events.
fn fits(steps: &[DeviceStep], core: u32, ratio: u32) -> bool {
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", json!({})), now());
    let mut one_gpu = devices(2);
    let one_of = |device: &Value| device["type"] == "gpu" && device["minor"] == 1;
    one_gpu.as_array_mut().unwrap().retain(one_of);
    let tell_device = |engine: &mut Engine| {
        engine.object_changed(&device("n", one_gpu.clone()), now());
    };
    if !steps.iter().any(|step| matches!(step, DeviceStep::Device)) {
        tell_device(&mut engine);
    }
    for step in steps {
        match step {
            DeviceStep::Holds(node) => engine.pod_applied(other_scheduler_pod(node, true), now()),
            DeviceStep::Plain(node) => engine.pod_applied(other_scheduler_pod(node, false), now()),
            DeviceStep::Gone(node) => engine.pod_deleted(&other_scheduler_pod(node, true), now()),
            DeviceStep::Device => tell_device(&mut engine),
        }
    }
    place(&mut engine, pod("probe", share(core, ratio), json!({}))) == "n: gpu 1"
}

#[test]
fn free_share_follows_events() {
    use DeviceStep::*;
    const ALL: (u32, u32) = (100, 100);
    const REST: (u32, u32) = (40, 50);
    for (name, steps, (core, ratio)) in [
        ("add: its node is not known", vec![Holds("x")], ALL),
        ("add: no devices", vec![Plain("n")], ALL),
        ("add", vec![Holds("n")], REST),
        ("add: before its device", vec![Holds("n"), Device], REST),
        (
            "add: the device again",
            vec![Device, Holds("n"), Device],
            REST,
        ),
        ("update: bound now", vec![Plain(""), Holds("n")], REST),
        (
            "update: annotated before",
            vec![Holds(""), Holds("n")],
            REST,
        ),
        ("update: the same", vec![Holds("n"), Holds("n")], REST),
        ("update: on its way", vec![Holds("")], ALL),
        ("delete", vec![Holds("n"), Gone("n")], ALL),
        ("delete: no devices", vec![Plain("n"), Gone("n")], ALL),
        ("delete: unknown pod", vec![Gone("n")], ALL),
        (
            "delete: its node is not known",
            vec![Holds("x"), Gone("x")],
            ALL,
        ),
    ] {
        assert!(fits(&steps, core, ratio), "{name}: at least {core} {ratio}");
        if (core, ratio) != ALL {
            assert!(
                !fits(&steps, core + 1, ratio),
                "{name}: at most {core} cores"
            );
            assert!(
                !fits(&steps, core, ratio + 1),
                "{name}: at most {ratio} memory"
            );
        }
    }
}

/// Upstream's table of changes to a Device: what pods with these requests get afterwards.
#[test]
fn device_changes_and_deletion() {
    let gpu_device = |kind: &str, minor: u8, gib: u32| {
        let resources = match kind {
            "gpu" => json!({"koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/gpu-memory": format!("{gib}Gi")}),
            _ => json!({"koordinator.sh/fpga": "100"}),
        };
        json!({"type": kind, "id": format!("{kind}-{minor}-{gib}"), "minor": minor, "health": true,
            "resources": resources})
    };
    let memory = |gib: u32| json!({"koordinator.sh/gpu-memory": format!("{gib}Gi")});
    let (gpu, fpga) = (share(100, 100), json!({"koordinator.sh/fpga": "100"}));
    let no = |kind: &str| refused(&format!("Insufficient {kind} devices"));
    // Devices before, devices after, and the allocations of pods that arrive one after another.
    for (name, before, after, asked) in [
        (
            "another one with more",
            vec![gpu_device("gpu", 0, 16)],
            vec![gpu_device("gpu", 1, 32)],
            vec![
                (memory(32), "n: gpu 1".to_owned()),
                (gpu.clone(), no("gpu")),
            ],
        ),
        (
            "none any more",
            vec![gpu_device("gpu", 0, 16)],
            vec![],
            vec![(gpu.clone(), no("gpu"))],
        ),
        (
            "fewer",
            vec![gpu_device("gpu", 1, 16), gpu_device("fpga", 1, 0)],
            vec![gpu_device("gpu", 0, 16)],
            vec![(fpga, no("fpga")), (gpu.clone(), "n: gpu 0".to_owned())],
        ),
        (
            "more",
            vec![gpu_device("gpu", 1, 8)],
            vec![gpu_device("gpu", 0, 16), gpu_device("gpu", 1, 16)],
            vec![
                (memory(16), "n: gpu 0".to_owned()),
                (memory(16), "n: gpu 1".to_owned()),
                (gpu, no("gpu")),
            ],
        ),
    ] {
        let mut engine = engine(json!({}));
        engine.node_applied(node("n", json!({})), now());
        engine.object_changed(&device("n", json!(before)), now());
        engine.object_changed(&device("n", json!(after)), now());
        for (at, (requests, expected)) in asked.into_iter().enumerate() {
            let got = place(&mut engine, pod(&format!("p{at}"), requests, json!({})));
            let got = got.replace("GPU Devices", "gpu devices");
            assert_eq!(got, expected, "{name}, pod {at}");
        }
    }
}
