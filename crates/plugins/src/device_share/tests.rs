//! Tests of the plugin through the engine.

mod aligned;
mod bad_input;
mod handlers;
mod random;
mod reserved;
mod rows;

use super::*;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, BindRequest, Engine, EngineOptions, Output};
use koord_scheduler::framework::{Profiles, Registry};
use serde_json::json;

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn engine(args: Value) -> Engine {
    engine_with(args, crate::registry(), &[], &[])
}

/// Creates an engine with only this plugin and `others`.
fn engine_with(args: Value, registry: Registry, others: &[&str], gates: &[&str]) -> Engine {
    let mut enabled = vec![json!({"name": NAME}), json!({"name": "DefaultBinder"})];
    enabled.extend(others.iter().map(|name| json!({"name": name})));
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
            "pluginConfig": [{"name": NAME, "args": args}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let gates = gates.iter().map(|gate| ((*gate).to_owned(), true));
    let context = BuildContext::with_gates(gates.collect());
    let profiles = Profiles::build(&config, &registry, &context, false).unwrap();
    Engine::new(&config, profiles, EngineOptions::default())
}

fn node(name: &str, labels: Value) -> Arc<Node> {
    let value = json!({
        "metadata": {"name": name, "uid": name, "labels": labels},
        "status": {"allocatable": {"cpu": "100", "memory": "500Gi", "pods": "110"}}
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

/// `gpus` GPUs of 80 GiB, two to a PCIe root and four to a NUMA node, each root with an adapter
/// that has two functions.
fn devices(gpus: u8) -> Value {
    let place = |root: u8| json!({"socketID": root / 2, "nodeID": root / 2, "pcieID": format!("pci{root}")});
    let gpu = |minor: u8| {
        json!({"type": "gpu", "id": format!("GPU-{minor}"), "minor": minor, "health": true,
            "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/gpu-memory": "80Gi"},
            "topology": place(minor / 2)})
    };
    let adapter = |minor: u8| {
        json!({"type": "rdma", "id": format!("0000:{minor}:00.0"), "minor": minor, "health": true,
            "resources": {"koordinator.sh/rdma": "100"}, "topology": place(minor),
            "vfGroups": [{"vfs": [{"minor": -1, "busID": format!("0000:{minor}:00.1")},
                {"minor": -1, "busID": format!("0000:{minor}:00.2")}]}]})
    };
    let gpus_and_adapters = (0..gpus).map(gpu).chain((0..gpus.div_ceil(2)).map(adapter));
    gpus_and_adapters.collect()
}

fn device(node: &str, devices: Value) -> ObjectChange {
    device_change(Action::UPDATE, node, devices, json!({}))
}

fn device_change(action: Action, node: &str, devices: Value, meta: Value) -> ObjectChange {
    let mut value = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": meta, "spec": {"devices": devices}
    });
    value["metadata"]["name"] = json!(node);
    let object: scheduling::Device = serde_json::from_value(value).unwrap();
    ObjectChange {
        kind: DEVICES,
        action,
        old: None,
        new: Arc::new(object),
    }
}

/// Devices with some fields of one of them changed.
fn changed(mut devices: Value, kind: &str, minor: u8, change: Value) -> Value {
    for device in devices.as_array_mut().unwrap() {
        if device["type"] == json!(kind) && device["minor"] == json!(minor) {
            for (key, value) in change.as_object().unwrap() {
                device[key] = value.clone();
            }
        }
    }
    devices
}

fn pod(name: &str, requests: Value, meta: Value) -> Value {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": {"requests": requests}}]
        }
    });
    for (key, content) in meta.as_object().into_iter().flatten() {
        value["metadata"][key] = content.clone();
    }
    value
}

fn gpu(name: &str, percent: u32) -> Value {
    let requests = json!({"koordinator.sh/gpu": percent.to_string()});
    pod(name, requests, json!({}))
}

fn object(value: Value) -> Arc<Pod> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn annotated(key: &str, value: &Value) -> Value {
    json!({"annotations": {format!("scheduling.koordinator.sh/{key}"): value.to_string()}})
}

/// Schedules one pod and returns the binding, or the message of the failure.
fn decide(engine: &mut Engine) -> Result<BindRequest, String> {
    engine.take_outputs();
    engine.schedule_one(now()).ok_or("nothing to decide")?;
    let outputs = engine.take_outputs().into_iter();
    let mut decisions = outputs.filter_map(|output| match output {
        Output::Bind(bind) => Some(Ok(bind)),
        Output::Failed(failure) => Some(Err(failure.message.to_string())),
        _ => None,
    });
    decisions.next().unwrap_or(Err("no decision".to_owned()))
}

fn allocation_annotation(bind: &BindRequest) -> Value {
    let text = bind.patch.annotations.get(annotations::DEVICE_ALLOCATED);
    text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

/// Schedules the pod and returns its node and devices, as `n: gpu 0 1, rdma 0:00.1`, or the message of its
/// condition.
fn place(engine: &mut Engine, pod: Value) -> String {
    engine.pod_applied(object(pod), now());
    match decide(engine) {
        Ok(bind) => describe_binding(&bind),
        Err(message) => message,
    }
}

fn describe_binding(bind: &BindRequest) -> String {
    let mut text = format!("{}:", bind.node);
    for (kind, grants) in allocation_annotation(bind)
        .as_object()
        .into_iter()
        .flatten()
    {
        let numbers =
            grants.as_array().unwrap().iter().map(|grant| {
                match grant["extension"]["vfs"][0]["busID"].as_str() {
                    Some(bus_id) => bus_id.trim_start_matches("0000:").to_owned(),
                    None => grant["minor"].to_string(),
                }
            });
        text += &format!(" {kind} {}", numbers.collect::<Vec<_>>().join(" "));
    }
    text
}

/// Returns the pod as it looks once it is bound.
fn bound(bind: &BindRequest) -> Arc<Pod> {
    let mut pod = (*bind.pod.object.pod).clone();
    let notes = pod.metadata.annotations.get_or_insert_default();
    notes.extend(bind.patch.annotations.clone());
    pod.spec.as_mut().unwrap().node_name = Some(bind.node.to_string());
    Arc::new(pod)
}

fn refused(reason: &str) -> String {
    format!("0/1 nodes are available: 1 {reason}.")
}

fn one_node(gpus: u8, labels: Value) -> Engine {
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", labels), now());
    engine.object_changed(&device("n", devices(gpus)), now());
    engine
}

#[test]
fn whole_gpus_are_allocated_once_with_ids() {
    let mut engine = one_node(2, json!({}));
    engine.pod_applied(
        object(pod("a", json!({"nvidia.com/gpu": "1"}), json!({}))),
        now(),
    );
    let bind = decide(&mut engine).unwrap();
    assert_eq!(
        bind.patch.annotations[annotations::DEVICE_ALLOCATED],
        concat!(
            r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100","#,
            r#""koordinator.sh/gpu-memory":"80Gi","koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-0"}]}"#
        )
    );
    assert_eq!(place(&mut engine, gpu("b", 100)), "n: gpu 1");
    assert_eq!(
        place(&mut engine, gpu("c", 100)),
        refused("Insufficient GPU Devices")
    );
    assert_eq!(
        place(&mut engine, gpu("d", 1)),
        refused("Insufficient GPU Devices")
    );
    // A pod that requests no device is not affected.
    assert_eq!(
        place(&mut engine, pod("e", json!({"cpu": "1"}), json!({}))),
        "n:"
    );
    // The first pod leaves, and the waiting one gets its GPU.
    engine.pod_applied(bound(&bind), now());
    engine.pod_deleted(&bound(&bind), now());
    let later = Timestamp::from_second(1_700_000_100).unwrap();
    engine.take_outputs();
    assert!(engine.schedule_one(later).unwrap().node.is_some());
}

#[test]
fn gpus_are_shared_by_percent_and_by_memory() {
    let mut engine = one_node(1, json!({}));
    let memory = |name: &str, gib: u32| {
        pod(
            name,
            json!({"koordinator.sh/gpu-memory": format!("{gib}Gi")}),
            json!({}),
        )
    };
    assert_eq!(place(&mut engine, gpu("a", 50)), "n: gpu 0");
    assert_eq!(
        place(&mut engine, memory("b", 41)),
        refused("Insufficient GPU Devices")
    );
    engine.pod_applied(object(memory("c", 20)), now());
    let bind = decide(&mut engine).unwrap();
    assert_eq!(
        allocation_annotation(&bind)["gpu"][0]["resources"],
        json!({"koordinator.sh/gpu-memory": "20Gi", "koordinator.sh/gpu-memory-ratio": "25"})
    );
    assert_eq!(
        place(&mut engine, gpu("d", 50)),
        refused("Insufficient GPU Devices")
    );
    assert_eq!(place(&mut engine, gpu("e", 25)), "n: gpu 0");
    assert_eq!(
        place(&mut engine, gpu("f", 1)),
        refused("Insufficient GPU Devices")
    );
}

#[test]
fn model_partitions_apply_if_node_honors_them() {
    let label = |policy: &str| json!({"node.koordinator.sh/gpu-model": "H800", "node.koordinator.sh/gpu-partition-policy": policy});
    let three = "node(s) Unsupported number of GPU requests";
    for (policy, third) in [
        ("Honor", refused(three)),
        ("Prefer", "n: gpu 1 6 7".to_owned()),
    ] {
        let mut engine = one_node(8, label(policy));
        assert_eq!(place(&mut engine, gpu("a", 100)), "n: gpu 0");
        assert_eq!(
            place(&mut engine, gpu("b", 200)),
            "n: gpu 2 3",
            "next to what is used"
        );
        assert_eq!(place(&mut engine, gpu("c", 200)), "n: gpu 4 5");
        assert_eq!(place(&mut engine, gpu("d", 300)), third, "{policy}");
    }
}

#[test]
fn gpus_and_adapters_come_from_the_same_pcie_root() {
    let mut engine = one_node(8, json!({}));
    let joint = |name: &str, gpus: u32| {
        let requests = json!({"nvidia.com/gpu": gpus, "koordinator.sh/rdma": "1"});
        let mut meta = annotated(
            "device-joint-allocate",
            &json!({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}),
        );
        meta["annotations"]["scheduling.koordinator.sh/device-allocate-hint"] =
            json!(json!({"rdma": {"vfSelector": {}}}).to_string());
        pod(name, requests, meta)
    };
    assert_eq!(place(&mut engine, joint("a", 1)), "n: gpu 0 rdma 0:00.1");
    assert_eq!(place(&mut engine, joint("b", 1)), "n: gpu 1 rdma 0:00.2");
    assert_eq!(
        place(&mut engine, joint("c", 4)),
        "n: gpu 4 5 6 7 rdma 2:00.1 3:00.1"
    );
    assert_eq!(place(&mut engine, joint("d", 2)), "n: gpu 2 3 rdma 1:00.1");
    assert_eq!(
        place(&mut engine, joint("e", 1)),
        refused("Insufficient GPU Devices")
    );
}

#[test]
fn unhealthy_or_withdrawn_devices_stay_booked_only() {
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", json!({})), now());
    let sick = changed(devices(2), "gpu", 0, json!({"health": false}));
    engine.object_changed(&device("n", sick), now());
    assert_eq!(place(&mut engine, gpu("a", 50)), "n: gpu 1");
    assert_eq!(
        place(&mut engine, gpu("b", 100)),
        refused("Insufficient GPU Devices")
    );
    // After the object is deleted nothing is allocated, and existing allocations stay.
    let deletion = device_change(Action::DELETE, "n", devices(2), json!({}));
    engine.object_changed(&deletion, now());
    assert_eq!(
        place(&mut engine, gpu("c", 50)),
        refused("Insufficient GPU Devices")
    );
    engine.pod_deleted(&object(gpu("b", 100)), now());
    engine.pod_deleted(&object(gpu("c", 50)), now());
    engine.object_changed(&device("n", devices(2)), now());
    assert_eq!(place(&mut engine, gpu("d", 100)), "n: gpu 0");
    assert_eq!(
        place(&mut engine, gpu("e", 100)),
        refused("Insufficient GPU Devices"),
        "half of 1 is held"
    );
    assert_eq!(place(&mut engine, gpu("f", 50)), "n: gpu 1");
}

#[test]
fn recovered_device_requeues_waiting_pod() {
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", json!({})), now());
    let sick = changed(devices(1), "gpu", 0, json!({"health": false}));
    engine.object_changed(&device("n", sick), now());
    assert_eq!(
        place(&mut engine, gpu("a", 100)),
        refused("Insufficient GPU Devices")
    );
    // The same object with only a new condition timestamp wakes no pod.
    let condition = json!({"type": "Healthy", "status": "False", "reason": "Xid",
        "message": "", "lastTransitionTime": "2023-11-14T22:13:20Z"});
    let sick = changed(
        devices(1),
        "gpu",
        0,
        json!({"health": false, "conditions": [condition]}),
    );
    let later = Timestamp::from_second(1_700_000_100).unwrap();
    engine.object_changed(&device("n", sick), later);
    engine.take_outputs();
    assert!(engine.schedule_one(later).is_none());
    engine.object_changed(&device("n", devices(1)), later);
    engine.take_outputs();
    assert!(engine.schedule_one(later).unwrap().node.is_some());
}

#[test]
fn restart_restores_device_allocations() {
    let mut first = one_node(2, json!({}));
    let mut pods = Vec::new();
    for pod in [gpu("a", 50), gpu("b", 100)] {
        first.pod_applied(object(pod), now());
        pods.push(bound(&decide(&mut first).unwrap()));
    }
    // The events may arrive in any order.
    let node = node("n", json!({}));
    let device = device("n", devices(2));
    for order in ["pnd", "pdn", "npd", "dpn"] {
        let mut second = engine(json!({}));
        for step in order.chars() {
            match step {
                'p' => pods
                    .iter()
                    .for_each(|pod| second.pod_applied(pod.clone(), now())),
                'n' => second.node_applied(node.clone(), now()),
                _ => second.object_changed(&device, now()),
            }
        }
        assert_eq!(
            place(&mut second, gpu("c", 60)),
            refused("Insufficient GPU Devices"),
            "{order}"
        );
        assert_eq!(place(&mut second, gpu("d", 50)), "n: gpu 0", "{order}");
    }
    // Devices are held, but their Device object does not exist (any more): nothing is allocated.
    let mut third = engine(json!({}));
    third.node_applied(node, now());
    pods.iter()
        .for_each(|pod| third.pod_applied(pod.clone(), now()));
    assert_eq!(
        place(&mut third, gpu("c", 1)),
        refused("Insufficient gpu devices")
    );
}

#[test]
fn failed_binding_releases_devices() {
    let mut engine = one_node(1, json!({}));
    assert_eq!(place(&mut engine, gpu("a", 100)), "n: gpu 0");
    let error = BindError {
        message: "no".to_owned(),
        gone: true,
    };
    engine.bind_finished("a", Err(error), now());
    assert_eq!(place(&mut engine, gpu("b", 100)), "n: gpu 0");
}

#[test]
fn node_without_device_object_is_unmanaged() {
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", json!({})), now());
    assert_eq!(place(&mut engine, gpu("a", 100)), "n:");
    engine.object_changed(&device("n", json!([])), now());
    assert_eq!(
        place(&mut engine, gpu("b", 100)),
        refused("Insufficient gpu devices")
    );
}

#[test]
fn failed_binding_annotation_is_ignored() {
    let mut engine = one_node(1, json!({}));
    engine.pod_applied(object(gpu("a", 100)), now());
    // The patch was applied, but the binding failed.
    let mut pod = (*bound(&decide(&mut engine).unwrap())).clone();
    pod.spec.as_mut().unwrap().node_name = None;
    let mut engine = super::tests::engine(json!({}));
    engine.node_applied(node("kubelet", json!({})), now());
    engine.pod_applied(Arc::new(pod), now());
    let bind = decide(&mut engine).unwrap();
    assert_eq!(bind.patch.annotations[annotations::DEVICE_ALLOCATED], "{}");
}

#[test]
fn scoring_strategy_selects_emptier_or_fuller_node() {
    for (strategy, expected) in [
        ("LeastAllocated", "idle: gpu 0"),
        ("MostAllocated", "used: gpu 1"),
    ] {
        let weights = json!([{"name": "koordinator.sh/gpu-memory-ratio", "weight": 1}]);
        let args = json!({"scoringStrategy": {"type": strategy, "resources": weights}});
        let mut engine = engine(args);
        engine.node_applied(node("used", json!({})), now());
        engine.object_changed(&device("used", devices(2)), now());
        assert_eq!(place(&mut engine, gpu("a", 100)), "used: gpu 0");
        engine.node_applied(node("idle", json!({})), now());
        engine.object_changed(&device("idle", devices(2)), now());
        assert_eq!(place(&mut engine, gpu("b", 100)), expected);
    }
}

#[test]
fn sharing_needs_isolation_and_a_model_that_can() {
    let shared = |percent: u32| {
        let mut pod = gpu("a", percent);
        pod["metadata"]["labels"] = json!({"koordinator.sh/gpu-isolation-provider": "HAMi-core"});
        pod
    };
    let isolated = json!({"koordinator.sh/gpu-isolation-provider": "HAMi-core"});
    let missing = refused("GPUIsolationProviderHAMICore not found on the node");
    assert_eq!(place(&mut one_node(1, json!({})), shared(50)), missing);
    assert_eq!(place(&mut one_node(1, json!({})), shared(100)), "n: gpu 0");
    assert_eq!(place(&mut one_node(1, isolated), shared(50)), "n: gpu 0");
    let model = json!({"vendor": "huawei", "model": "Ascend-310P3-300I-DUO"});
    for (percent, expected) in [
        (
            50,
            refused(
                "model \"Ascend-310P3-300I-DUO\" of vendor \"huawei\" does not support GPU Share",
            ),
        ),
        (100, "n: gpu 0".to_owned()),
    ] {
        let mut engine = engine(json!({"gpuShareUnsupportedModels": [model]}));
        let labels = json!({"node.koordinator.sh/gpu-vendor": "huawei",
            "node.koordinator.sh/gpu-model": "Ascend-310P3-300I-DUO"});
        engine.node_applied(node("n", labels), now());
        engine.object_changed(&device("n", devices(1)), now());
        assert_eq!(place(&mut engine, gpu("a", percent)), expected);
    }
}

#[test]
fn earlier_devices_are_reused_on_request() {
    let mut meta = annotated(
        "scheduling-hint",
        &json!({"extensions": {"DeviceShare": {}}}),
    );
    meta["annotations"]["scheduling.koordinator.sh/device-allocated"] = json!(
        json!({"gpu": [{"minor": 3, "resources": {"koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu-memory": "80Gi"}}]})
        .to_string()
    );
    let requests = json!({"nvidia.com/gpu": "1"});
    let mut engine = one_node(4, json!({}));
    assert_eq!(
        place(&mut engine, pod("a", requests.clone(), meta.clone())),
        "n: gpu 3"
    );
    assert_eq!(
        place(&mut engine, pod("b", requests.clone(), meta.clone())),
        refused("Insufficient GPU Devices")
    );
    meta["annotations"]
        .as_object_mut()
        .unwrap()
        .remove("scheduling.koordinator.sh/scheduling-hint");
    assert_eq!(place(&mut engine, pod("c", requests, meta)), "n: gpu 2");
}

#[test]
fn high_priority_pod_preempts_gpu_holder() {
    let mut engine = engine_with(json!({}), crate::registry(), &["DefaultPreemption"], &[]);
    engine.node_applied(node("n", json!({})), now());
    engine.object_changed(&device("n", devices(2)), now());
    let with_priority = |name: &str, percent: u32, priority: i32| {
        let mut pod = gpu(name, percent);
        pod["spec"]["priority"] = json!(priority);
        pod
    };
    for (name, percent, priority) in [("low", 100, 1), ("high", 100, 9)] {
        engine.pod_applied(object(with_priority(name, percent, priority)), now());
        let pod = bound(&decide(&mut engine).unwrap());
        engine.pod_applied(pod, now());
    }
    engine.pod_applied(object(with_priority("middle", 50, 5)), now());
    engine.take_outputs();
    engine.schedule_one(now()).unwrap();
    let evicted: Vec<String> = engine
        .take_outputs()
        .into_iter()
        .filter_map(|output| match output {
            Output::Evict { victims, .. } => Some(victims),
            _ => None,
        })
        .flatten()
        .map(|pod| pod.name.to_string())
        .collect();
    assert_eq!(evicted, ["low"]);
    engine.pod_deleted(&object(gpu("low", 100)), now());
    let later = Timestamp::from_second(1_700_000_100).unwrap();
    engine.take_outputs();
    assert!(engine.schedule_one(later).unwrap().node.is_some());
}

#[test]
fn nodes_can_be_inspected_in_upstreams_form() {
    let mut engine = one_node(1, json!({}));
    assert_eq!(place(&mut engine, gpu("a", 50)), "n: gpu 0 ".trim_end());
    let ask = |engine: &mut Engine, path: &[&str]| {
        engine
            .inspector()
            .inspect(NAME, path, &BTreeMap::new(), now())
    };
    let summary = ask(&mut engine, &["nodeDeviceSummaries", "n"]).unwrap();
    let all = ask(&mut engine, &["nodeDeviceSummaries"]).unwrap();
    assert_eq!(all, json!({"n": summary}));
    assert_eq!(
        summary["deviceFree"],
        json!({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "40Gi",
            "koordinator.sh/gpu-memory-ratio": "50", "koordinator.sh/rdma": "100"})
    );
    assert_eq!(
        summary["deviceTotalDetail"]["gpu"]["0"]["koordinator.sh/gpu-memory"],
        "80Gi"
    );
    assert_eq!(
        summary["deviceUsedDetail"]["gpu"]["0"]["koordinator.sh/gpu-core"],
        "50"
    );
    assert_eq!(
        summary["allocateSet"],
        json!({"gpu": {"ns/a": {"0": {"koordinator.sh/gpu-core": "50",
            "koordinator.sh/gpu-memory": "40Gi", "koordinator.sh/gpu-memory-ratio": "50"}}}})
    );
    let other = ask(&mut engine, &["nodeDeviceSummaries", "other"]);
    assert_eq!(
        other,
        Err(NotShown::Missing("cannot find node other".to_owned()))
    );
    assert_eq!(ask(&mut engine, &["x"]), Err(NotShown::NoSuchPath));
}

#[test]
fn explain_lists_shortfall_and_allocation() {
    let mut engine = one_node(2, json!({}));
    assert_eq!(place(&mut engine, gpu("a", 60)), "n: gpu 0");
    let joint = pod(
        "b",
        json!({"nvidia.com/gpu": "2", "koordinator.sh/rdma": "200"}),
        json!({}),
    );
    let memory = pod("c", json!({"koordinator.sh/gpu-memory": "70Gi"}), json!({}));
    for (pod, percent, texts) in [
        (
            gpu("d", 200),
            50.0,
            vec![
                "gpu: needs 2 with",
                "koordinator.sh/gpu-core 100",
                "1 of 2 have that free",
            ],
        ),
        (
            joint,
            100.0,
            vec![
                "gpu: needs 2 with",
                "1 of 2 have that free; rdma: needs 2 with",
                "1 of 1 have that free",
            ],
        ),
        (gpu("e", 30), 0.0, vec![]),
        (memory, 0.0, vec![]),
    ] {
        let info = PodInfo::new(object(pod), engine.cluster().resources()).unwrap();
        let nearest = engine.inspector().nearest(&Arc::new(info), 3, now());
        if texts.is_empty() {
            assert!(nearest.is_empty(), "{nearest:?}");
            continue;
        }
        assert_eq!(nearest.len(), 1);
        assert!(
            (nearest[0].distance * 100.0 - percent).abs() < 0.1,
            "{nearest:?}"
        );
        for text in texts {
            assert!(nearest[0].lacks.contains(text), "{text}: {nearest:?}");
        }
    }
    let explanation = engine.inspector().explain_pod("ns", "a", now()).unwrap();
    let holding = &explanation["plugins"][NAME];
    assert_eq!(holding["node"], "n");
    assert_eq!(holding["devices"]["gpu"][0]["minor"], 0);
    assert_eq!(
        holding["devices"]["gpu"][0]["resources"]["koordinator.sh/gpu-core"],
        "60"
    );
    engine.pod_applied(object(gpu("x", 1000)), now());
    let explanation = engine.inspector().explain_pod("ns", "x", now()).unwrap();
    assert_eq!(explanation["plugins"].get(NAME), None, "it holds nothing");
}
