use super::*;

fn problems(engine: &mut Engine) -> Vec<String> {
    let outputs = engine.take_outputs().into_iter();
    let texts = outputs.filter_map(|output| match output {
        Output::Problem(problem) => Some(format!(
            "{} {}: {}",
            problem.kind, problem.name, problem.message
        )),
        _ => None,
    });
    texts.collect()
}

fn on_node(mut pod: Value, allocated: &str) -> Arc<Pod> {
    pod["spec"]["nodeName"] = json!("n");
    pod["metadata"]["annotations"] =
        json!({"scheduling.koordinator.sh/device-allocated": allocated});
    object(pod)
}

#[test]
fn invalid_requests_and_hints_reject_pod() {
    let cases = [
        (
            json!({"koordinator.sh/gpu": "101"}),
            "device-allocate-hint",
            "{}",
            "invalid resource unit koordinator.sh/gpu: 101",
        ),
        (
            json!({"koordinator.sh/gpu-core": "100"}),
            "device-allocate-hint",
            "{}",
            "invalid resource device requests: [koordinator.sh/gpu-core]",
        ),
        (
            json!({"koordinator.sh/gpu": "100"}),
            "device-allocate-hint",
            "{x",
            "invalid DeviceAllocateHint annotation, err: ",
        ),
        (
            json!({"koordinator.sh/gpu": "100"}),
            "device-joint-allocate",
            "{x",
            "invalid DeviceJointAllocate annotation, err: ",
        ),
        (
            json!({"koordinator.sh/gpu": "100"}),
            "gpu-partition-spec",
            "{x",
            "invalid GPUPartitionSpec annotation, err: ",
        ),
        (
            json!({"koordinator.sh/gpu": "100"}),
            "device-allocated",
            "{x",
            "annotation scheduling.koordinator.sh/device-allocated is malformed: ",
        ),
        (
            json!({"huawei.com/npu-core": "10", "huawei.com/npu-cpu": "3", "koordinator.sh/gpu.shared": "1",
                "koordinator.sh/gpu-memory": "16Gi"}),
            "device-allocate-hint",
            "{}",
            "no matched GPU shared resource template",
        ),
    ];
    for (requests, key, text, expected) in cases {
        let mut engine = one_node(2, json!({}));
        let key = format!("scheduling.koordinator.sh/{key}");
        let got = place(
            &mut engine,
            pod("a", requests, json!({"annotations": {&key: text}})),
        );
        assert!(
            got.starts_with(&format!("0/1 nodes are available: {expected}")),
            "{got}"
        );
        if text == "{x" {
            assert!(got.contains(&key) && got.contains("{x"), "{got}");
        }
        assert_eq!(
            place(&mut engine, gpu("b", 100)),
            "n: gpu 0",
            "others are not concerned"
        );
    }
}

#[test]
fn unknown_devices_block_allocation_on_node() {
    for text in [
        "{x",
        r#"{"gpu":[{"minor":70}]}"#,
        r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"-5"}}]}"#,
    ] {
        let mut engine = one_node(2, json!({}));
        engine.take_outputs();
        engine.pod_applied(on_node(gpu("bad", 100), text), now());
        let reported = problems(&mut engine);
        let named = reported.iter().any(|problem| {
            problem.starts_with(
                "Pod bad: annotation scheduling.koordinator.sh/device-allocated is malformed",
            ) && problem.contains(&format!("{text:?}"))
        });
        assert!(named, "{reported:?}");
        assert_eq!(place(&mut engine, gpu("a", 100)), refused(UNKNOWN));
        assert_eq!(
            place(&mut engine, pod("plain", json!({"cpu": "1"}), json!({}))),
            "n:"
        );
        // Once the pod is repaired or deleted, the rest can be allocated.
        let whole = r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory-ratio":"100"}}]}"#;
        engine.pod_applied(on_node(gpu("bad", 100), whole), now());
        assert_eq!(place(&mut engine, gpu("b", 100)), "n: gpu 1");
        engine.pod_deleted(&on_node(gpu("bad", 100), whole), now());
        assert_eq!(place(&mut engine, gpu("c", 100)), "n: gpu 0");
    }
    // Device annotations of a pod without device requests do not matter.
    let mut engine = one_node(1, json!({}));
    engine.pod_applied(
        on_node(pod("odd", json!({"cpu": "1"}), json!({})), "{x"),
        now(),
    );
    assert_eq!(place(&mut engine, gpu("a", 100)), "n: gpu 0");
}

#[test]
fn invalid_or_removed_annotation_keeps_allocation() {
    for spoil in [Some("{x"), Some("{}"), None] {
        let mut engine = one_node(2, json!({}));
        engine.pod_applied(object(gpu("a", 100)), now());
        let good = bound(&decide(&mut engine).unwrap());
        engine.pod_applied(good.clone(), now());
        engine.take_outputs();
        let mut bad = (*good).clone();
        let notes = bad.metadata.annotations.get_or_insert_default();
        notes.remove(annotations::DEVICE_ALLOCATED);
        if let Some(text) = spoil {
            notes.insert(annotations::DEVICE_ALLOCATED.to_owned(), text.to_owned());
        }
        engine.pod_applied(Arc::new(bad.clone()), now());
        let reported = problems(&mut engine);
        assert!(
            reported.iter().any(|text| text.contains("stays booked")),
            "{spoil:?}: {reported:?}"
        );
        assert_eq!(place(&mut engine, gpu("b", 100)), "n: gpu 1");
        assert_eq!(
            place(&mut engine, gpu("c", 100)),
            refused("Insufficient GPU Devices")
        );
        engine.pod_deleted(&bad, now());
        engine.pod_deleted(&object(gpu("c", 100)), now());
        assert_eq!(place(&mut engine, gpu("d", 100)), "n: gpu 0");
    }
}

#[test]
fn invalid_devices_are_reported_once_and_skipped() {
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", json!({})), now());
    let mut odd = devices(1);
    odd.as_array_mut()
        .unwrap()
        .push(json!({"type": "gpu", "health": true}));
    odd.as_array_mut()
        .unwrap()
        .push(json!({"type": "gpu", "minor": 99, "health": true}));
    let meta = json!({"annotations": {"scheduling.koordinator.sh/gpu-partitions": "[1"}});
    let change = device_change(Action::ADD, "n", odd, meta);
    engine.object_changed(&change, now());
    let reported = problems(&mut engine);
    assert_eq!(reported.len(), 3, "{reported:?}");
    assert!(reported.iter().all(|text| text.starts_with("Device n: ")));
    assert!(
        reported
            .iter()
            .any(|text| text.contains("gpu-partitions") && text.contains("[1"))
    );
    engine.object_changed(&change, now());
    assert_eq!(
        problems(&mut engine),
        Vec::<String>::new(),
        "koordlet writes it every few seconds"
    );
    assert_eq!(place(&mut engine, gpu("a", 100)), "n: gpu 0");
}

#[test]
fn invalid_arguments_are_reported() {
    for (args, expected) in [
        (
            json!({"scoringStrategy": {"type": "Best"}}),
            "scoringStrategy.type: \"Best\"",
        ),
        (
            json!({"scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "x", "weight": 101}]}}),
            "resources[0].weight: 101",
        ),
        (json!({"scoringStrategies": {}}), "scoringStrategies"),
    ] {
        let error = build(Some(&args), &BuildContext::default())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    let full = json!({"allocator": "x", "disableDeviceNUMATopologyAlignment": true,
        "gpuSharedResourceTemplatesConfig": {"configMapNamespace": "a", "configMapName": "b",
            "matchedResources": ["huawei.com/npu-core"]}});
    assert!(build(Some(&full), &BuildContext::default()).is_ok());
}
