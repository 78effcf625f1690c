//! CPU normalization, amplification and devices, by the facts of upstream's tables.

use super::*;
use koord_api::configmap::ModelRatioCfg;
use koord_api::{labels, resources};
use std::collections::BTreeMap;

fn with(plugins: &str) -> PlanCase {
    PlanCase {
        plugins: koord_app::flags::selection(plugins).unwrap(),
        ..case()
    }
}

fn annotation<'a>(plan: &'a Plan, key: &str) -> Option<&'a Value> {
    plan.meta.as_ref()?["metadata"]["annotations"].get(key)
}

fn labelled(case: &mut PlanCase, key: &str, value: &str) {
    let labels = case.node.metadata.labels.get_or_insert_default();
    labels.insert(key.to_owned(), value.to_owned());
}

fn topology(info: Value) -> NodeResourceTopology {
    let key = annotations::NODE_CPU_BASIC_INFO;
    serde_json::from_value(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology",
        "metadata": {"name": "n", "annotations": {key: info.to_string()}},
        "topologyPolicies": [], "zones": [],
    }))
    .unwrap()
}

/// Normalised by the model that upstream's tables use.
fn normalized(hyper_threads: bool, turbo: bool) -> PlanCase {
    let mut case = with("CPUNormalization,BatchResource,ResourceAmplification");
    case.normalization.enable = Some(true);
    let ratios = ModelRatioCfg {
        base_ratio: Some(1.5),
        hyper_thread_enabled_ratio: Some(1.0),
        turbo_enabled_ratio: Some(1.8),
        hyper_thread_turbo_enabled_ratio: Some(1.2),
    };
    case.normalization.ratio_model = BTreeMap::from([("XXX CPU".to_owned(), ratios)]);
    case.topology = Some(topology(json!({
        "cpuModel": "XXX CPU", "hyperThreadEnabled": hyper_threads, "turboEnabled": turbo,
    })));
    case
}

const RATIO: &str = annotations::NODE_CPU_NORMALIZATION_RATIO;
const FACTORS: &str = annotations::NODE_RESOURCE_AMPLIFICATION_RATIO;

#[test]
fn cpu_ratio_depends_on_model_and_features() {
    for (threads, turbo, ratio, milli) in [
        (false, false, "1.50", "13500"),
        (true, false, "1.00", "9k"),
        (false, true, "1.80", "16200"),
        (true, true, "1.20", "10800"),
    ] {
        let plan = normalized(threads, turbo).plan();
        assert_eq!(annotation(&plan, RATIO), Some(&json!(ratio)));
        let allocatable = &plan.status.as_ref().unwrap()["status"]["allocatable"];
        assert_eq!(allocatable[BATCH_CPU], milli, "{ratio}");
        // The factor of the CPU is of the same pass.
        let factors = (ratio != "1.00").then(|| json!(format!("{{\"cpu\":{ratio}}}")));
        assert_eq!(annotation(&plan, FACTORS), factors.as_ref(), "{ratio}");
    }
}

#[test]
fn ratio_is_one_without_normalization() {
    let plan = with("CPUNormalization").plan();
    assert_eq!(annotation(&plan, RATIO), Some(&json!("1.00")));
    let mut off = normalized(false, true);
    labelled(&mut off, labels::NODE_CPU_NORMALIZATION_ENABLED, "false");
    assert_eq!(annotation(&off.plan(), RATIO), Some(&json!("1.00")));
    let mut on = normalized(false, true);
    on.normalization.enable = None;
    labelled(&mut on, labels::NODE_CPU_NORMALIZATION_ENABLED, "true");
    assert_eq!(annotation(&on.plan(), RATIO), Some(&json!("1.80")));
}

#[test]
fn missing_or_invalid_ratio_changes_nothing() {
    let check = |reason: &str, change: &dyn Fn(&mut PlanCase)| {
        let mut case = normalized(false, false);
        change(&mut case);
        let plan = case.plan();
        assert_eq!(annotation(&plan, RATIO), None, "{reason}");
        let failed: Vec<_> = plan
            .plugin_results
            .iter()
            .filter(|(_, plugin_results)| plugin_results.is_err())
            .collect();
        let [(name, Err(message))] = failed[..] else {
            panic!("{reason}: {failed:?}")
        };
        assert_eq!(*name, "CPUNormalization");
        assert!(message.contains(reason), "{message}");
        // The others go on.
        let allocatable = &plan.status.as_ref().unwrap()["status"]["allocatable"];
        assert_eq!(allocatable[BATCH_CPU], "9k");
    };
    check("no NodeResourceTopology", &|case| case.topology = None);
    check("no annotation", &|case| {
        case.topology.as_mut().unwrap().metadata.annotations = None;
    });
    check("invalid type", &|case| {
        case.topology = Some(topology(json!({"cpuModel": 1})))
    });
    check("\"YYY\"", &|case| {
        case.topology = Some(topology(json!({"cpuModel": "YYY"})))
    });
    for ratio in [0.99, 5.01, f64::NAN] {
        check("not from 1 to 5", &|case| {
            let models = &mut case.normalization.ratio_model;
            models.get_mut("XXX CPU").unwrap().base_ratio = Some(ratio);
        });
    }
    check("cpu-normalization-enabled is \"maybe\"", &|case| {
        labelled(case, labels::NODE_CPU_NORMALIZATION_ENABLED, "maybe");
    });
    // The node's own settings stay in effect, also for its factors.
    let mut case = normalized(false, false);
    case.topology = None;
    case.node = node(json!({RATIO: "1.50"}), json!({}));
    assert_eq!(annotation(&case.plan(), RATIO), None);
    let factors = json!("{\"cpu\":1.50}");
    assert_eq!(annotation(&case.plan(), FACTORS), Some(&factors));
    // A model that is not listed has the default.
    let mut case = normalized(false, false);
    case.normalization.default_ratio = Some(1.1);
    case.topology = Some(topology(json!({"cpuModel": "YYY"})));
    assert_eq!(annotation(&case.plan(), RATIO), Some(&json!("1.10")));
    case.normalization.ratio_model.clear();
    assert_eq!(annotation(&case.plan(), RATIO), Some(&json!("1.10")));
    // The model's own goes before it.
    let mut case = normalized(false, false);
    case.normalization.default_ratio = Some(3.5);
    assert_eq!(annotation(&case.plan(), RATIO), Some(&json!("1.50")));
    // A model that is listed without what is switched on has it, too.
    let models = &mut case.normalization.ratio_model;
    models.get_mut("XXX CPU").unwrap().base_ratio = None;
    assert_eq!(annotation(&case.plan(), RATIO), Some(&json!("3.50")));
}

#[test]
fn amplification_factors_are_written_and_removed() {
    let mut case = with("ResourceAmplification");
    assert_eq!(case.plan().meta, None);
    case.amplification.resource_amplification_ratio =
        BTreeMap::from([("cpu".to_owned(), 1.5), ("memory".to_owned(), 1.25)]);
    assert_eq!(case.plan().meta, None, "not enabled");
    case.amplification.enable = Some(true);
    let text = "{\"cpu\":1.50,\"memory\":1.25}";
    assert_eq!(annotation(&case.plan(), FACTORS), Some(&json!(text)));
    case.node = node(json!({FACTORS: text}), json!({}));
    assert_eq!(case.plan().meta, None);
    // Something less than 1 is an error and leaves what is there.
    let ratios = &mut case.amplification.resource_amplification_ratio;
    ratios.insert("memory".to_owned(), 0.9);
    let plan = case.plan();
    assert_eq!(plan.meta, None);
    assert!(
        plan.plugin_results[0]
            .1
            .as_ref()
            .unwrap_err()
            .contains("memory is 0.9")
    );
    case.strategy = None;
    assert_eq!(annotation(&case.plan(), FACTORS), Some(&Value::Null));
}

fn device(labels: Value, devices: Value) -> Device {
    serde_json::from_value(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": {"name": "n", "labels": labels}, "spec": {"devices": devices},
    }))
    .unwrap()
}

fn gpu(health: bool, core: &str, memory: &str) -> Value {
    json!({"type": "gpu", "health": health, "resources": {
        "koordinator.sh/gpu-core": core, "koordinator.sh/gpu-memory": memory,
        "koordinator.sh/gpu-memory-ratio": core}})
}

#[test]
fn healthy_gpus_are_summed_up_and_their_labels_copied() {
    let mut case = with("GPUDeviceResource");
    let model = json!({labels::NODE_GPU_MODEL: "A100", labels::NODE_GPU_DRIVER_VERSION: "480"});
    let gpus = json!([gpu(true, "100", "8Gi"), gpu(true, "100", "10Gi"), gpu(false, "100", "8Gi"),
                      {"type": "rdma", "health": true}]);
    case.device = Some(device(model.clone(), gpus.clone()));
    let plan = case.plan();
    let want = json!({
        resources::GPU: "200", resources::GPU_CORE: "200", resources::GPU_MEMORY: "18Gi",
        resources::GPU_MEMORY_RATIO: "200",
    });
    let status = &plan.status.as_ref().unwrap()["status"];
    assert_eq!(
        (&status["allocatable"], &status["capacity"]),
        (&want, &want)
    );
    assert_eq!(plan.meta.as_ref().unwrap()["metadata"]["labels"], model);

    case.share_gpus = true;
    let plan = case.plan();
    let shared = &plan.status.unwrap()["status"]["allocatable"][resources::GPU_SHARED];
    assert_eq!(shared, "200");

    // Other vendors have no `koordinator.sh/gpu`.
    let vendor = json!({labels::NODE_GPU_VENDOR: "huawei"});
    let npu = json!([{"type": "gpu", "health": true, "resources": {
        "huawei.com/npu-core": "20", "huawei.com/npu-cpu": "7", "huawei.com/npu-dvpp": "100",
        "vendor.com/other": "1"}}]);
    case.share_gpus = false;
    case.device = Some(device(vendor, npu));
    let allocatable = &case.plan().status.unwrap()["status"]["allocatable"];
    let want = json!({resources::HUAWEI_NPU_CORE: "20", resources::HUAWEI_NPU_CPU: "7",
        resources::HUAWEI_NPU_DVPP: "100"});
    assert_eq!(allocatable, &want);
}

#[test]
fn devices_with_deprecated_names_offer_the_current_ones() {
    let mut case = with("GPUDeviceResource");
    let old = json!([{"type": "gpu", "health": true, "resources": {"kubernetes.io/gpu-core": "100",
        "kubernetes.io/gpu-memory": "8Gi", "kubernetes.io/gpu-memory-ratio": "70",
        "koordinator.sh/gpu-memory-ratio": "100"}}]);
    case.device = Some(device(json!({}), old));
    let want = json!({resources::GPU: "100", resources::GPU_CORE: "100",
        resources::GPU_MEMORY: "8Gi", resources::GPU_MEMORY_RATIO: "100"});
    assert_eq!(case.plan().status.unwrap()["status"]["allocatable"], want);
}

#[test]
fn missing_and_unhealthy_devices_lose_resources() {
    let all = "GPUDeviceResource,RDMADeviceResource";
    let had = json!({resources::GPU: "100", resources::RDMA: "100", resources::GPU_SHARED: "100"});
    for devices in [
        None,
        Some(json!([])),
        Some(json!([gpu(false, "100", "8Gi")])),
    ] {
        let mut case = with(all);
        case.node = node(json!({}), had.clone());
        case.device = devices.map(|devices| device(json!({}), devices));
        let removed =
            json!({resources::GPU: null, resources::RDMA: null, resources::GPU_SHARED: null});
        let want = json!({"status": {"capacity": removed, "allocatable": removed}});
        assert_eq!(case.plan().status, Some(want));
        // With co-location off, devices are not processed.
        case.strategy = None;
        assert_eq!(case.plan().status, None);
        case.devices_always = true;
        assert!(case.plan().status.is_some());
    }
}

#[test]
fn rdma_counts_a_hundred_for_each_healthy_adapter() {
    let mut case = with("RDMADeviceResource");
    let rdma = |health: bool| json!({"type": "rdma", "health": health});
    case.device = Some(device(
        json!({}),
        json!([rdma(true), rdma(false), rdma(true)]),
    ));
    let allocatable = &case.plan().status.unwrap()["status"]["allocatable"];
    assert_eq!(allocatable, &json!({resources::RDMA: "200"}));
}

#[test]
fn factors_and_the_cpus_ratio_multiply() {
    for (ratio, ratios, want) in [
        (1.22, json!({}), Some("{\"cpu\":1.22}")),
        (1.0, json!({}), None),
        (
            1.0,
            json!({"cpu": 1.1, "memory": 2.1}),
            Some("{\"cpu\":1.10,\"memory\":2.10}"),
        ),
        (
            1.2,
            json!({"cpu": 1.5, "memory": 2.5}),
            Some("{\"cpu\":1.80,\"memory\":2.50}"),
        ),
        (
            1.5,
            json!({"memory": 3.5}),
            Some("{\"cpu\":1.50,\"memory\":3.50}"),
        ),
        (
            1.5,
            json!({"memory": 3.5, "storage": 1.8}),
            Some("{\"cpu\":1.50,\"memory\":3.50,\"storage\":1.80}"),
        ),
        (
            1.5,
            json!({"cpu": 0.8, "memory": 3.5, "storage": 1.8}),
            Some("{\"cpu\":1.20,\"memory\":3.50,\"storage\":1.80}"),
        ),
    ] {
        let mut case = normalized(false, false);
        let models = &mut case.normalization.ratio_model;
        models.get_mut("XXX CPU").unwrap().base_ratio = Some(ratio);
        case.amplification.enable = Some(true);
        case.amplification.resource_amplification_ratio =
            serde_json::from_value(ratios.clone()).unwrap();
        let plan = case.plan();
        let want = want.map(|text| json!(text));
        assert_eq!(
            annotation(&plan, FACTORS),
            want.as_ref(),
            "{ratio} {ratios}"
        );
    }
    for ratios in [
        json!({"cpu": 0.5, "memory": 3.5, "storage": 1.8}),
        json!({"memory": 3.5, "storage": 0.5}),
    ] {
        let mut case = normalized(false, false);
        case.amplification.enable = Some(true);
        case.amplification.resource_amplification_ratio =
            serde_json::from_value(ratios.clone()).unwrap();
        let plan = case.plan();
        assert_eq!(annotation(&plan, FACTORS), None, "{ratios}");
        let failed = plan
            .plugin_results
            .iter()
            .find(|(name, _)| *name == "ResourceAmplification");
        assert!(failed.unwrap().1.is_err(), "{ratios}");
    }
}

/// Covers upstream's tables for two devices: by vendor, labels and the gate of shared GPUs.
#[test]
fn devices_by_vendor_and_labels() {
    let gpu = |memory: &str| {
        json!({"type": "gpu", "health": true, "resources": {resources::GPU_CORE: "100",
            resources::GPU_MEMORY: memory, resources::GPU_MEMORY_RATIO: "100"}})
    };
    let npu = |memory: &str| {
        json!({"type": "gpu", "health": true, "resources": {resources::HUAWEI_NPU_CORE: "20",
            resources::HUAWEI_NPU_CPU: "20", resources::HUAWEI_NPU_DVPP: "100",
            resources::GPU_MEMORY: memory, resources::GPU_MEMORY_RATIO: "100"}})
    };
    let gpus = json!({resources::GPU: "200", resources::GPU_CORE: "200",
        resources::GPU_MEMORY: "18k", resources::GPU_MEMORY_RATIO: "200"});
    let npus = json!({resources::HUAWEI_NPU_CORE: "40", resources::HUAWEI_NPU_CPU: "40",
        resources::HUAWEI_NPU_DVPP: "200", resources::GPU_MEMORY: "18k",
        resources::GPU_MEMORY_RATIO: "200"});
    let nvidia = json!({labels::NODE_GPU_VENDOR: "nvidia", labels::NODE_GPU_MODEL: "A100",
        labels::NODE_GPU_DRIVER_VERSION: "480"});
    let huawei = json!({labels::NODE_GPU_VENDOR: "huawei", labels::NODE_GPU_MODEL: "Ascend-910"});
    let two = |one: &dyn Fn(&str) -> Value| json!([one("8000"), one("10000")]);
    for (device_labels, devices, amounts, copied) in [
        (nvidia.clone(), two(&gpu), &gpus, Some(nvidia)),
        (huawei.clone(), two(&npu), &npus, Some(huawei)),
        (json!({}), two(&gpu), &gpus, None),
        (json!({"anything": "anything"}), two(&gpu), &gpus, None),
    ] {
        for share_gpus in [false, true] {
            let mut case = with("GPUDeviceResource");
            case.share_gpus = share_gpus;
            case.device = Some(device(device_labels.clone(), devices.clone()));
            let plan = case.plan();
            let mut want = amounts.clone();
            if share_gpus {
                want[resources::GPU_SHARED] = json!("200");
            }
            let status = &plan.status.as_ref().unwrap()["status"];
            assert_eq!(status["allocatable"], want, "{device_labels}");
            assert_eq!(status["capacity"], want, "{device_labels}");
            let labels = plan.meta.as_ref().map(|meta| &meta["metadata"]["labels"]);
            assert_eq!(labels, copied.as_ref(), "{device_labels}");
        }
    }
}
