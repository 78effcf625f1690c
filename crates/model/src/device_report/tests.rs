mod property;

use super::*;
use koord_api::Quantity;
use serde_json::{Value, json};

fn owner() -> Owner<'static> {
    Owner {
        name: "n1",
        uid: "u-1",
    }
}

fn at(text: &str) -> Time {
    Time(text.parse().unwrap())
}

fn early() -> Time {
    at("2026-01-01T00:00:00.25Z")
}

fn cards(value: &Value) -> (Vec<xpu::Card>, Vec<Problem>) {
    xpu::parse(&value.to_string()).unwrap()
}

/// Upstream: `Test_reportXPUDevice`.
fn ascend() -> Value {
    let npu = |uuid: &str, minor: &str, node: &str, bus: &str| {
        json!({"vendor": "huawei", "model": "Ascend-910B", "uuid": uuid, "minor": minor,
            "resources": {"huawei.com/npu-core": "32", "huawei.com/npu-cpu": "14",
                "koordinator.sh/gpu-memory": "32Gi", "huawei.com/npu-dvpp": "100"},
            "topology": {"mustHonorPartition": true, "socketID": "0", "nodeID": node,
                "pcieID": "0000:00:08.0", "busID": bus}})
    };
    let mut all = [
        npu("NPU-3", "0", "0", "0000:00:08.0"),
        npu("NPU-1", "1", "1", "0000:00:08.1"),
        npu("NPU-2", "2", "2", "0000:00:08.2"),
        npu("NPU-4", "4", "4", "0000:00:08.4"),
    ];
    for (card, peers) in [(0, "1,2,3,g"), (1, "0,1,2,3"), (3, "5,6,7,7,g")] {
        all[card]["topology"]["p2pLinks"] = json!([{"peerMinor": peers, "type": "HCCS"}]);
    }
    all[0]["status"] = json!({"healthy": true});
    all[1]["status"] = json!({"healthy": true});
    all[3]["status"] = json!({"healthy": false, "errCode": "-8001"});
    Value::Array(all.into())
}

fn reported(value: &Value) -> Report {
    let (cards, _) = cards(value);
    xpu::report(&cards).0
}

#[test]
fn described_devices_are_reported() {
    let (cards, problems) = cards(&ascend());
    let fields: Vec<&str> = problems
        .iter()
        .map(|problem| problem.field.as_str())
        .collect();
    assert_eq!(
        fields,
        [
            "[0].topology.p2pLinks[0].peerMinor",
            "[3].topology.p2pLinks[0].peerMinor"
        ]
    );
    let (report, problems) = xpu::report(&cards);
    assert!(problems.is_empty());
    let device = plan(None, owner(), &report, early()).unwrap();
    let labels = device.metadata.labels.clone().unwrap();
    assert_eq!(labels["node.koordinator.sh/gpu-vendor"], "huawei");
    assert_eq!(labels["node.koordinator.sh/gpu-model"], "Ascend-910B");
    assert_eq!(labels["node.koordinator.sh/gpu-partition-policy"], "Honor");
    assert_eq!(
        device.metadata.annotations.clone().unwrap()["scheduling.koordinator.sh/gpu-partitions"],
        r#"{"4":[{"minors":[0,1,2,3],"gpuLinkType":"HCCS","allocationScore":1},{"minors":[4,5,6,7],"gpuLinkType":"HCCS","allocationScore":1}]}"#
    );
    assert_eq!(
        serde_json::to_value(&device.metadata.owner_references).unwrap(),
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u-1",
            "controller": true, "blockOwnerDeletion": true}])
    );
    let resources = json!({"koordinator.sh/gpu-memory-ratio": "100", "huawei.com/npu-core": "32",
        "huawei.com/npu-cpu": "14", "koordinator.sh/gpu-memory": "32Gi", "huawei.com/npu-dvpp": "100"});
    let written = serde_json::to_value(&device.spec.devices).unwrap();
    assert_eq!(
        written[0],
        json!({"id": "NPU-3", "minor": 0, "type": "gpu", "health": true, "resources": resources,
            "topology": {"socketID": -1, "nodeID": 0, "pcieID": "0000:00:08.0", "busID": "0000:00:08.0"},
            "conditions": [{"type": "Healthy", "status": "True", "reason": "DeviceHealthy",
                "message": "device is healthy", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    );
    assert_eq!(written[2]["id"], "NPU-2");
    assert_eq!(written[2].get("conditions"), None);
    // Upstream's reason is `-8001`, which the API server rejects.
    assert_eq!(written[3]["health"], false);
    assert_eq!(
        written[3]["conditions"],
        json!([{"type": "Healthy", "status": "False", "reason": "Code_8001",
            "message": "device is unhealthy (code \"-8001\")",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    );
}

#[test]
fn invalid_fields_are_named_and_the_rest_is_kept() {
    let (cards, problems) = cards(&json!([
        {"uuid": "a", "minor": "x", "resources": {"gpu-core": "100"}},
        {"uuid": "b", "minor": 1},
        {"uuid": "c"},
        "d",
        {"uuid": "e", "minor": "-1"},
        {"uuid": "f", "minor": "2147483648"},
        {"uuid": "good", "minor": "7", "vendor": 5,
            "resources": {"gpu-core": "100", "gpu-memory": "lots", "x": "-1", "y": 3},
            "topology": {"nodeID": "left", "busID": "0000:3b:00.0", "p2pLinks": {}},
            "status": {"healthy": "yes", "errCode": 3}},
        {"uuid": "unclear", "minor": "8", "status": "fine"},
    ]));
    let named: Vec<(&str, &str)> = problems
        .iter()
        .map(|problem| (problem.field.as_str(), problem.value.as_str()))
        .collect();
    assert_eq!(
        named,
        [
            ("[0].minor", "x"),
            ("[1].minor", "1"),
            ("[2].minor", "null"),
            ("[3]", "d"),
            ("[4].minor", "-1"),
            ("[5].minor", "2147483648"),
            ("[6].status.healthy", "yes"),
            ("[6].status.errCode", "3"),
            ("[6].topology.nodeID", "left"),
            ("[6].topology.p2pLinks", "{}"),
            ("[6].vendor", "5"),
            ("[6].resources.gpu-memory", "lots"),
            ("[6].resources.x", "-1"),
            ("[6].resources.y", "3"),
            ("[7].status", "fine"),
        ]
    );
    let actual: Vec<(&str, bool)> = cards
        .iter()
        .map(|card| (card.found.info.id.as_str(), card.found.info.health))
        .collect();
    assert_eq!(actual, [("good", false), ("unclear", false)]);
    let good = &cards[0].found.info;
    assert_eq!(good.topology.as_ref().unwrap().node_id, -1);
    let names: Vec<(&str, Quantity)> = good
        .resources
        .iter()
        .map(|(name, amount)| (name.as_str(), *amount))
        .collect();
    let hundred = Quantity::from_value(100);
    assert_eq!(
        names,
        [
            ("koordinator.sh/gpu-core", hundred),
            ("koordinator.sh/gpu-memory-ratio", hundred)
        ]
    );

    for text in ["", "{}", "[{", "null", "[] x"] {
        let problem = xpu::parse(text).unwrap_err();
        assert_eq!((problem.field.as_str(), problem.value.as_str()), ("", text));
        assert!(problem.why.contains("JSON"), "{}", problem.why);
    }
    assert_eq!(xpu::parse("[]").unwrap(), (Vec::new(), Vec::new()));
}

#[test]
fn duplicate_minors_and_labels_are_reported() {
    let (cards, _) = cards(&json!([
        {"uuid": "a", "minor": "0", "vendor": "metax", "model": "MXC500 VB"},
        {"uuid": "b", "minor": "0"},
        {"uuid": "c", "minor": "1"},
    ]));
    let (report, problems) = xpu::report(&cards);
    assert_eq!(report.labels["node.koordinator.sh/gpu-model"], "MXC500-VB");
    assert_eq!(report.labels.len(), 2, "no links, no policy");
    let ids: Vec<&str> = report
        .devices
        .iter()
        .map(|device| device.info.id.as_str())
        .collect();
    assert_eq!(ids, ["a", "c"]);
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].field == "minor" && problems[0].value == "0",
        "{problems:?}"
    );

    let (cards, _) =
        self::cards(&json!([{"minor": "0", "vendor": "a/b", "model": "x".repeat(64)}]));
    let (report, problems) = xpu::report(&cards);
    assert!(report.labels.is_empty());
    let fields: Vec<&str> = problems
        .iter()
        .map(|problem| problem.field.as_str())
        .collect();
    assert_eq!(
        fields,
        [
            "node.koordinator.sh/gpu-vendor",
            "node.koordinator.sh/gpu-model"
        ]
    );
}

#[test]
fn unchanged_report_writes_nothing() {
    let report = reported(&ascend());
    let device = plan(None, owner(), &report, early()).unwrap();
    let late = at("2026-01-01T08:00:00Z");
    assert_eq!(plan(Some(&device), owner(), &report, late.clone()), None);
    // A different order changes nothing.
    let mut turned = device.clone();
    turned.spec.devices.reverse();
    assert_eq!(plan(Some(&turned), owner(), &report, late.clone()), None);

    let mut worse = ascend();
    worse[0]["status"] = json!({"healthy": false, "errCode": "chip error"});
    worse[3]["status"] = json!({"healthy": false, "errCode": "E2", "errMessage": "burnt"});
    let after = plan(Some(&device), owner(), &reported(&worse), late).unwrap();
    let condition = |minor: usize| {
        let condition = &after.spec.devices[minor].conditions[0];
        let time = condition.last_transition_time.0.to_string();
        (condition.reason.as_str(), condition.message.as_str(), time)
    };
    let time = "2026-01-01T08:00:00Z".to_owned();
    let message = "device is unhealthy (code \"chip error\")";
    assert_eq!(condition(0), ("chip_error", message, time));
    // Unhealthy before and after: another reason, the same status.
    let time = "2026-01-01T00:00:00Z".to_owned();
    assert_eq!(condition(3), ("E2", "burnt", time));
}

#[test]
fn foreign_fields_stay_and_own_fields_are_removed() {
    let first = plan(None, owner(), &reported(&ascend()), early()).unwrap();
    let mut stored = first.clone();
    let add = |map: &mut Option<BTreeMap<String, String>>, key: &str, value: &str| {
        map.get_or_insert_default()
            .insert(key.to_owned(), value.to_owned());
    };
    add(
        &mut stored.metadata.labels,
        "node.koordinator.sh/secondary-device-well-planned",
        "true",
    );
    add(&mut stored.metadata.annotations, "example.com/rack", "7");
    stored.spec.devices[0]
        .labels
        .insert("tier".to_owned(), "a".to_owned());
    stored.spec.devices[0].module_id = Some(3);
    let fpga = json!({"id": "f", "minor": 0, "type": "fpga", "health": true});
    stored
        .spec
        .devices
        .insert(0, serde_json::from_value(fpga).unwrap());
    let before = stored.clone();
    assert_eq!(
        plan(Some(&stored), owner(), &reported(&ascend()), early()),
        None
    );

    // Links are gone; another manager wrote the policy.
    let plain =
        json!([{"uuid": "NPU-3", "minor": "0", "vendor": "huawei", "model": "Ascend-910B"}]);
    let fields = |manager: &str, key: &str, map: &str| {
        json!({"manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {map: {key: {}}}}})
    };
    let table = "f:scheduling.koordinator.sh/gpu-partitions";
    let policy = "f:node.koordinator.sh/gpu-partition-policy";
    stored.metadata.managed_fields = serde_json::from_value(json!([
        fields("koordlet", table, "f:annotations"),
        fields("kubectl-edit", policy, "f:labels"),
    ]))
    .unwrap();
    let after = plan(Some(&stored), owner(), &reported(&plain), early()).unwrap();
    let notes = after.metadata.annotations.unwrap();
    assert_eq!(notes.keys().collect::<Vec<_>>(), ["example.com/rack"]);
    assert_eq!(after.metadata.labels, before.metadata.labels);
    let ids: Vec<&str> = after
        .spec
        .devices
        .iter()
        .map(|device| device.id.as_str())
        .collect();
    assert_eq!(ids, ["f", "NPU-3"]);
    let npu = &after.spec.devices[1];
    assert_eq!((npu.labels.len(), npu.module_id), (1, Some(3)));

    // A new node of the same name.
    let renamed = Owner {
        uid: "u-2",
        ..owner()
    };
    let after = plan(Some(&first), renamed, &reported(&ascend()), early()).unwrap();
    let references = after.metadata.owner_references.unwrap();
    assert_eq!(references.len(), 1);
    assert_eq!(references[0].uid, "u-2");
}

/// Upstream: `Test_getGPUDeviceConditions`.
#[test]
fn conditions_contain_the_reason() {
    let described = |healthy: bool, code: &str, message: &str| {
        let health = Health {
            healthy,
            code: code.to_owned(),
            message: message.to_owned(),
        };
        let condition = condition(&health, early());
        (condition.status, condition.reason, condition.message)
    };
    let row = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    assert_eq!(
        described(true, "", ""),
        row("True", "DeviceHealthy", "device is healthy")
    );
    let xid = "Xid error detected on device, error code: 44";
    assert_eq!(described(false, "Xid44", xid), row("False", "Xid44", xid));
    let old = "device does not support health checking";
    let code = "DeviceHealthCheckNotSupported";
    assert_eq!(described(false, code, old), row("False", code, old));
    assert_eq!(
        described(false, "Xid44", ""),
        row("False", "Xid44", "device is unhealthy")
    );
    assert_eq!(
        described(false, "", ""),
        row("False", "Unknown", "device is unhealthy")
    );
    for code in [
        "-8001",
        "chip error",
        "ECC error",
        "::",
        "é",
        "a:",
        "_",
        &"x".repeat(2000),
    ] {
        let (_, reason, message) = described(false, code, &"m".repeat(40_000));
        let mut letters = reason.chars();
        assert!(letters.next().unwrap().is_ascii_alphabetic(), "{reason}");
        assert!(
            letters.all(|c| c.is_ascii_alphanumeric() || "_,:".contains(c)),
            "{reason}"
        );
        let end = reason.chars().last().unwrap();
        assert!(end.is_ascii_alphanumeric() || end == '_', "{reason}");
        assert!(reason.len() <= 1024 && message.len() <= 32_768);
    }
}
