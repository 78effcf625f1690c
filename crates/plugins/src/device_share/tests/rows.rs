//! PreFilter, Filter, Reserve and Score: the rows of upstream's tables.

use super::*;

/// Returns the type and the resources of one device of this kind; an `npu` is a device of type GPU.
fn device_resources(kind: &str) -> (&'static str, Vec<(&'static str, i64)>) {
    const GI: i64 = 1 << 30;
    match kind {
        "gpu" => (
            "gpu",
            vec![
                ("koordinator.sh/gpu-core", 100),
                ("koordinator.sh/gpu-memory-ratio", 100),
                ("koordinator.sh/gpu-memory", 16 * GI),
            ],
        ),
        "big" => (
            "gpu",
            vec![
                ("koordinator.sh/gpu-core", 100),
                ("koordinator.sh/gpu-memory-ratio", 100),
                ("koordinator.sh/gpu-memory", 80 * GI),
            ],
        ),
        "npu" => (
            "gpu",
            vec![
                ("huawei.com/npu-core", 8),
                ("huawei.com/npu-cpu", 7),
                ("huawei.com/npu-dvpp", 100),
                ("koordinator.sh/gpu-memory-ratio", 100),
                ("koordinator.sh/gpu-memory", 24 * GI),
            ],
        ),
        "fpga" => ("fpga", vec![("koordinator.sh/fpga", 100)]),
        "rdma" => ("rdma", vec![("koordinator.sh/rdma", 100)]),
        other => panic!("{other}"),
    }
}

/// Parses a list such as `gpu gpu rdma` into devices without topology, numbered by type.
fn listed(kinds: &str) -> Value {
    let mut counts: BTreeMap<&str, u8> = BTreeMap::new();
    let mut out = Vec::new();
    for kind in kinds.split_whitespace() {
        let (name, units) = device_resources(kind);
        let next = counts.entry(name).or_default();
        let resources: Value = units
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), json!(amount.to_string())))
            .collect();
        out.push(
            json!({"type": name, "id": format!("{name}-{next}"), "minor": *next,
            "health": true, "resources": resources}),
        );
        *next += 1;
    }
    json!(out)
}

/// Parses `gpu0=75 fpga0=50`, shares of devices in percent, into a pod's allocation annotation.
fn part(text: &str) -> Value {
    let mut out = json!({});
    for token in text.split_whitespace() {
        let (device, percent) = token.split_once('=').unwrap();
        let at = device.find(|c: char| c.is_ascii_digit()).unwrap();
        let (name, units) = device_resources(&device[..at]);
        let percent: i64 = percent.parse().unwrap();
        let resources: Value = units
            .iter()
            .map(|(name, amount)| {
                (
                    (*name).to_owned(),
                    json!((amount * percent / 100).to_string()),
                )
            })
            .collect();
        let minor: u8 = device[at..].parse().unwrap();
        let grant = json!({"minor": minor, "resources": resources});
        match out.get_mut(name).and_then(Value::as_array_mut) {
            Some(all) => all.push(grant),
            None => out[name] = json!([grant]),
        }
    }
    out
}

/// Parses `core=100 ratio=100` into resource requests.
fn requests(text: &str) -> Value {
    let mut out = json!({});
    for token in text.split_whitespace() {
        let (name, amount) = token.split_once('=').unwrap();
        let name = match name {
            "gpu" => "koordinator.sh/gpu",
            "core" => "koordinator.sh/gpu-core",
            "ratio" => "koordinator.sh/gpu-memory-ratio",
            "memory" => "koordinator.sh/gpu-memory",
            "shared" => "koordinator.sh/gpu.shared",
            "npu" => "huawei.com/npu-core",
            "npu-cpu" => "huawei.com/npu-cpu",
            "dvpp" => "huawei.com/npu-dvpp",
            "fpga" => "koordinator.sh/fpga",
            "rdma" => "koordinator.sh/rdma",
            other => panic!("{other}"),
        };
        out[name] = json!(amount);
    }
    out
}

/// Creates an engine whose node has these devices, of which a pod holds `held`.
fn world(args: Value, labels: Value, kinds: &str, held: &str) -> Engine {
    let mut engine = engine(args);
    engine.node_applied(node("n", labels), now());
    if kinds != "unknown" {
        engine.object_changed(&device("n", listed(kinds)), now());
    }
    if !held.is_empty() {
        let mut holder = pod(
            "holder",
            json!({}),
            annotated("device-allocated", &part(held)),
        );
        holder["spec"]["nodeName"] = json!("n");
        engine.pod_applied(object(holder), now());
    }
    engine
}

/// Schedules the pod and returns its allocation, as `gpu0 core=100 ratio=100 memory=16Gi`, or the reason of
/// the rejection.
fn outcome(engine: &mut Engine, pod: Value) -> String {
    engine.pod_applied(object(pod), now());
    let bind = match decide(engine) {
        Ok(bind) => bind,
        Err(message) => {
            let text = message.trim_start_matches("0/1 nodes are available: ");
            return text
                .trim_start_matches("1 ")
                .trim_end_matches('.')
                .to_owned();
        }
    };
    let mut out = Vec::new();
    for (kind, grants) in allocation_annotation(&bind)
        .as_object()
        .into_iter()
        .flatten()
    {
        for grant in grants.as_array().unwrap() {
            let mut tokens = vec![format!("{kind}{}", grant["minor"])];
            for (name, amount) in grant["resources"].as_object().unwrap() {
                let name = name.rsplit('/').next().unwrap();
                let name = name
                    .trim_start_matches("gpu-")
                    .replace("memory-ratio", "ratio");
                tokens.push(format!("{name}={}", amount.as_str().unwrap()));
            }
            tokens[1..].sort();
            out.push(tokens.join(" "));
        }
    }
    out.join(", ")
}

const SHARE: &str = "core=100 ratio=100";
const NO_GPU: &str = "Insufficient gpu devices";
/// NPU sharing by templates is not implemented.
const NO_TEMPLATE: &str = "no matched GPU shared resource template";

#[test]
fn requests_are_parsed_or_rejected() {
    let unit = |name: &str| format!("invalid resource unit koordinator.sh/{name}: 101");
    let mixture = |name: &str| format!("invalid resource device requests: [{name}]");
    let vnpu = "shared=1 memory=12Gi npu=4 npu-cpu=4 dvpp=50";
    let ok = |text: &str| text.to_owned();
    #[rustfmt::skip]
    let rows = [
        ("", ok("")),
        ("gpu=0", ok("")),
        ("fpga=101", unit("fpga")),
        ("gpu=101", unit("gpu")),
        ("core=100", mixture("koordinator.sh/gpu-core")),
        ("ratio=101", mixture("koordinator.sh/gpu-memory-ratio")),
        ("npu=8", mixture("huawei.com/npu-core")),
        ("gpu=100", ok("gpu0 core=100 memory=16Gi ratio=100")),
        ("ratio=100", ok("gpu0 memory=16Gi ratio=100")),
        ("memory=8Gi", ok("gpu0 memory=8Gi ratio=50")),
        ("core=100 memory=8Gi", ok("gpu0 core=100 memory=8Gi ratio=50")),
        (SHARE, ok("gpu0 core=100 memory=16Gi ratio=100")),
        ("npu=8 ratio=100", ok("gpu0 memory=24Gi npu-core=8 ratio=100")),
        (vnpu, ok(NO_TEMPLATE)),
        ("fpga=100", ok("fpga0 fpga=100")),
        ("gpu=100 rdma=100", ok("gpu0 core=100 memory=16Gi ratio=100, rdma0 rdma=100")),
    ];
    for (asked, expected) in rows {
        let devices = if asked.contains("npu") {
            "npu"
        } else {
            "gpu fpga rdma"
        };
        let mut engine = world(json!({}), json!({}), devices, "");
        let got = outcome(&mut engine, pod("p", requests(asked), json!({})));
        assert_eq!(got, expected, "{asked}");
    }
}

fn huawei(model: &str) -> Value {
    json!({"node.koordinator.sh/gpu-vendor": "huawei", "node.koordinator.sh/gpu-model": model})
}

#[test]
fn upstream_node_allocations() {
    let gpu0 = "gpu0 core=100 memory=16Gi ratio=100";
    let gpu1 = "gpu1 core=100 memory=16Gi ratio=100";
    let vnpu = "shared=1 npu=2 npu-cpu=2 dvpp=25 memory=6Gi";
    let vnpu_1c = "shared=1 npu=2 npu-cpu=1 dvpp=25 memory=6Gi";
    let plain = || json!({});
    let ascend = || huawei("Ascend-310P");
    let duo = || huawei("Ascend-310P3-300I-DUO");
    let duo_text =
        "model \"Ascend-310P3-300I-DUO\" of vendor \"huawei\" does not support GPU Share";
    // (case, labels, devices, what is taken, requests, expected allocation)
    #[rustfmt::skip]
    let rows = [
        ("no device asked for", plain(), "gpu", "", "", ""),
        ("nothing known of the node", plain(), "unknown", "", SHARE, ""),
        ("no devices", plain(), "", "", SHARE, NO_GPU),
        ("a part is taken", plain(), "gpu", "gpu0=25", SHARE, NO_GPU),
        ("a part is taken, the other type has room", plain(), "gpu fpga", "gpu0=25",
            "core=100 ratio=100 fpga=100", NO_GPU),
        ("parts of both types are taken", plain(), "gpu fpga", "gpu0=25 fpga0=50",
            "core=100 ratio=100 fpga=100", NO_GPU),
        ("a part of an NPU is taken", ascend(), "npu", "npu0=75", "npu=8 ratio=100", NO_GPU),
        ("too few CPUs of an NPU", ascend(), "npu", "npu0=75", vnpu, NO_TEMPLATE),
        ("a free FPGA", plain(), "fpga", "", "fpga=100", "fpga0 fpga=100"),
        ("the other FPGA", plain(), "fpga fpga", "fpga0=25", "fpga=100", "fpga1 fpga=100"),
        ("a free GPU", plain(), "gpu fpga", "", SHARE, gpu0),
        ("the other GPU", plain(), "gpu gpu", "gpu0=75", SHARE, gpu1),
        ("the other GPU, by memory", plain(), "gpu gpu", "gpu0=75", "ratio=100", "gpu1 memory=16Gi ratio=100"),
        ("the other GPU, by bytes", plain(), "gpu gpu", "gpu0=75", "memory=16Gi", "gpu1 memory=16Gi ratio=100"),
        ("the other NPU", ascend(), "npu npu", "npu0=75", "npu=8 ratio=100",
            "gpu1 memory=24Gi npu-core=8 ratio=100"),
        ("a part of the other NPU", ascend(), "npu npu", "npu0=80", vnpu, NO_TEMPLATE),
        ("the rest of an NPU", ascend(), "npu", "npu0=75", vnpu_1c, NO_TEMPLATE),
        ("several shared GPUs", plain(), "big big big big big", "", "shared=4 memory=160G",
            "gpu0 memory=39062500Ki ratio=46, gpu1 memory=39062500Ki ratio=46, gpu2 memory=39062500Ki ratio=46, gpu3 memory=39062500Ki ratio=46"),
        ("a model that is not shared", duo(), "npu", "", "ratio=50", duo_text),
        ("too much", plain(), "gpu", "gpu0=75", "core=200 ratio=200", NO_GPU),
        ("more than there are", plain(), "gpu", "", "core=200 ratio=200", NO_GPU),
        ("a part of an adapter is taken", plain(), "rdma", "rdma0=50", "rdma=100", "Insufficient rdma devices"),
        ("two adapters of one", plain(), "rdma fpga", "", "rdma=200 fpga=200", "Insufficient rdma devices"),
        ("one of each", plain(), "gpu rdma fpga", "", "core=100 ratio=100 rdma=100 fpga=100",
            "fpga0 fpga=100, gpu0 core=100 memory=16Gi ratio=100, rdma0 rdma=100"),
        ("two of each", plain(), "gpu gpu rdma rdma fpga fpga", "", "core=200 ratio=200 rdma=200 fpga=200",
            "fpga0 fpga=100, fpga1 fpga=100, gpu0 core=100 memory=16Gi ratio=100, gpu1 core=100 memory=16Gi ratio=100, rdma0 rdma=100, rdma1 rdma=100"),
        ("a whole NPU", ascend(), "npu", "", "npu=8 ratio=100", "gpu0 memory=24Gi npu-core=8 ratio=100"),
    ];
    for (name, labels, kinds, held, asked, expected) in rows {
        let model = json!({"vendor": "huawei", "model": "Ascend-310P3-300I-DUO"});
        let args = json!({"gpuShareUnsupportedModels": [model]});
        let mut engine = world(args, labels, kinds, held);
        let got = outcome(&mut engine, pod("p", requests(asked), json!({})));
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn designated_devices_are_used_or_pod_rejected() {
    let hint = |mut meta: Value| {
        let text = json!({"extensions": {NAME: {}}}).to_string();
        meta["annotations"][annotations::SCHEDULING_HINT] = json!(text);
        meta
    };
    let mut no_memory = part("gpu1=100");
    let resources = no_memory["gpu"][0]["resources"].as_object_mut().unwrap();
    resources.remove("koordinator.sh/gpu-memory");
    for (name, annotation, expected) in [
        ("taken", part("gpu0=100"), NO_GPU),
        ("free", part("gpu1=100"), "gpu1 memory=16Gi ratio=100"),
        (
            "free, memory in percent",
            no_memory,
            "gpu1 memory=16Gi ratio=100",
        ),
    ] {
        let mut engine = world(json!({}), json!({}), "gpu gpu", "gpu0=75");
        let meta = hint(annotated("device-allocated", &annotation));
        let got = outcome(&mut engine, pod("p", requests("ratio=100"), meta));
        assert_eq!(got, expected, "{name}");
    }

    let function = |number: u8| format!("0000:c800:{number:04x}:270a");
    let functions = |resource_ids: std::ops::Range<u8>| -> Value {
        resource_ids
            .map(|n| json!({"minor": 0, "busID": function(n)}))
            .collect()
    };
    let allocation = |number: u8| {
        let mut holder = pod(
            "holder",
            json!({}),
            annotated(
                "device-allocated",
                &json!({"rdma": [
            {"minor": 1, "resources": {"koordinator.sh/rdma": "11"},
                "extension": {"vfs": functions(number..number + 2)}}]}),
            ),
        );
        holder["spec"]["nodeName"] = json!("n");
        object(holder)
    };
    for (name, minor, held, expected) in [
        ("a free function", 1, 4, "rdma1 rdma=1"),
        ("a taken function", 1, 14, "Insufficient rdma devices"),
        ("on another adapter", 2, 4, "Insufficient rdma devices"),
    ] {
        let mut engine = engine(json!({}));
        engine.node_applied(node("n", json!({})), now());
        let adapter = json!([{"type": "rdma", "id": "0000:c8:00.0", "minor": minor, "health": true,
            "resources": {"koordinator.sh/rdma": "100"},
            "vfGroups": [{"labels": {"type": "vf_cpu"}, "vfs": functions(4..16)}]}]);
        engine.object_changed(&device("n", adapter), now());
        engine.pod_applied(allocation(held), now());
        let selector = json!({"rdma": {"vfSelector": {"matchExpressions": [
            {"key": "type", "operator": "In", "values": ["vf_cpu"]},
            {"key": "isGDR", "operator": "NotIn", "values": ["false"]}]}}});
        let mut meta = hint(annotated(
            "device-allocated",
            &json!({"rdma": [
            {"minor": 1, "resources": {"koordinator.sh/rdma": "1"},
                "extension": {"vfs": functions(14..15)}}]}),
        ));
        let key = "scheduling.koordinator.sh/device-allocate-hint";
        meta["annotations"][key] = json!(selector.to_string());
        let got = outcome(&mut engine, pod("p", requests("rdma=1"), meta));
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn node_must_have_isolation_provider() {
    let provider = |name: &str| json!({"koordinator.sh/gpu-isolation-provider": name});
    for (node, expected) in [
        (
            json!({}),
            "GPUIsolationProviderHAMICore not found on the node",
        ),
        (provider("HAMi-core"), "gpu0 core=50 memory=8Gi ratio=50"),
    ] {
        let mut engine = world(json!({}), node, "gpu", "");
        let meta = json!({"labels": provider("HAMi-core")});
        let got = outcome(&mut engine, pod("p", requests("core=50 ratio=50"), meta));
        assert_eq!(got, expected);
    }
}

#[test]
fn nodes_score_by_free_share() {
    let wide = |used: i64| {
        let gpu = json!({"koordinator.sh/gpu-core": "1000", "koordinator.sh/gpu-memory-ratio": "1000",
            "koordinator.sh/gpu-memory": "160Gi"});
        let devices = json!([
            {"type": "gpu", "id": "g", "minor": 0, "health": true, "resources": gpu},
            {"type": "rdma", "id": "r", "minor": 0, "health": true,
                "resources": {"koordinator.sh/rdma": "1000"}}]);
        let quarter_gpu = json!({"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "25",
                "koordinator.sh/gpu-memory-ratio": "25", "koordinator.sh/gpu-memory": "4Gi"}}],
            "rdma": [{"minor": 0, "resources": {"koordinator.sh/rdma": used.to_string()}}]});
        let mut engine = world(json!({}), json!({}), "unknown", "");
        engine.object_changed(&device("n", devices), now());
        let mut holder = pod(
            "holder",
            json!({}),
            annotated("device-allocated", &quarter_gpu),
        );
        holder["spec"]["nodeName"] = json!("n");
        engine.pod_applied(object(holder), now());
        engine
    };
    let most = || {
        let names = ["gpu-memory-ratio", "gpu-memory", "rdma", "fpga"];
        let weight_of = |name| json!({"name": format!("koordinator.sh/{name}"), "weight": 1});
        json!({"scoringStrategy": {"type": "MostAllocated", "resources": names.map(weight_of)}})
    };
    let at = |args: Value, kinds: &str, allocated: &str| world(args, json!({}), kinds, allocated);
    let (half, bytes) = ("core=50 ratio=50", "core=50 memory=8Gi");
    #[rustfmt::skip]
    let rows = [
        ("nothing asked for", at(json!({}), "gpu", ""), "", 0),
        ("nothing known of the node", at(json!({}), "unknown", ""), SHARE, 0),
        ("idle", at(json!({}), "gpu", ""), SHARE, 50),
        ("two idle", at(json!({}), "gpu gpu", ""), half, 87),
        ("a part is left", at(json!({}), "gpu", "gpu0=25"), half, 50),
        ("a part is left, by bytes", at(json!({}), "gpu", "gpu0=25"), bytes, 50),
        ("a part is left, fuller wins", at(most(), "gpu", "gpu0=25"), half, 50),
        ("a part is left, fuller wins, by bytes", at(most(), "gpu", "gpu0=25"), bytes, 50),
        ("two types", wide(50), "core=50 ratio=50 rdma=25", 186),
    ];
    for (name, mut engine, asked, expected) in rows {
        engine.pod_applied(object(pod("p", requests(asked), json!({}))), now());
        decide(&mut engine).unwrap();
        let table = engine
            .telemetry
            .decision("p")
            .unwrap()
            .table
            .clone()
            .unwrap();
        let own = table.ranking[0]
            .scores
            .iter()
            .find(|score| score.plugin == NAME);
        assert_eq!(own.map_or(0, |own| own.raw), expected, "{name}");
    }
}
