use super::*;

fn hopper() -> DeviceLayout {
    // One adapter per GPU, each pair at its own root.
    const ROOTS: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let at = |n: u8| (i32::from(n / 4), ROOTS[usize::from(n)]);
    DeviceLayout {
        gpus: (0..8).map(|n| (n, at(n).0, at(n).1)).collect(),
        adapters: (0..8).map(|n| (n + 1, at(n).0, at(n).1)).collect(),
    }
}

fn partitioned(
    need: &Need,
    on: &Inventory,
    ledger: &DeviceLedger,
    honor: bool,
    quirks: Quirks,
) -> String {
    let site = Site {
        inventory: on,
        used: ledger.used(),
        model: PartitionTable::for_model("", "H800"),
        honor_model: honor,
    };
    format_result(allocate(
        need,
        &site,
        &Rules {
            quirks,
            ..Rules::default()
        },
    ))
}

#[test]
fn partitions_of_known_models_are_used() {
    let joint = json!({"deviceTypes": ["gpu", "rdma"]});
    let hints = json!({"rdma": {"vfSelector": {}}});
    let gpus = |count: &str| {
        need(
            &[("nvidia", count), ("rdma", "1")],
            hints.clone(),
            joint.clone(),
        )
    };
    let on = hopper().inventory();
    let none = ledger_with(&[], &[]);
    let missing = "Insufficient Partitioned GPU Devices";
    let odd = "node(s) Unsupported number of GPU requests";
    let cases = [
        ("1", &none, true, "0 / 1:00.2"),
        ("2", &none, true, "0 1 / 1:00.2 2:00.2"),
        ("3", &none, true, odd),
        ("4", &none, true, "0 1 2 3 / 1:00.2 2:00.2 3:00.2 4:00.2"),
        ("6", &none, true, odd),
        (
            "8",
            &none,
            true,
            "0 1 2 3 4 5 6 7 / 1:00.2 2:00.2 3:00.2 4:00.2 5:00.2 6:00.2 7:00.2 8:00.2",
        ),
        // The pair next to a used GPU keeps the other half whole.
        (
            "2",
            &ledger_with(&[4], &[(5, 1)]),
            true,
            "6 7 / 7:00.2 8:00.2",
        ),
        ("1", &ledger_with(&[4], &[(5, 1)]), true, "5 / 6:00.2"),
        (
            "2",
            &ledger_with(&[2, 3], &[(3, 1), (4, 1)]),
            true,
            "0 1 / 1:00.2 2:00.2",
        ),
        ("4", &ledger_with(&[0, 4], &[]), true, missing),
        ("2", &ledger_with(&[0, 2, 4, 6], &[]), true, missing),
        // The partition is only preferred: other GPUs suit as well.
        (
            "3",
            &ledger_with(&[2, 3], &[]),
            false,
            "4 5 6 / 5:00.2 6:00.2 7:00.2",
        ),
        (
            "2",
            &ledger_with(&[0, 2, 4, 6], &[]),
            false,
            "1 3 / 2:00.2 4:00.2",
        ),
        ("2", &none, false, "0 1 / 1:00.2 2:00.2"),
    ];
    for (count, ledger, honor, expected) in cases {
        let got = partitioned(&gpus(count), &on, ledger, honor, Quirks::default());
        assert_eq!(got, expected, "{count} GPUs, honor {honor}");
    }
    assert_eq!(PartitionTable::for_model("nvidia", "A100"), None);
    assert_eq!(PartitionTable::for_model("huawei", "H800"), None);
}

#[test]
fn partition_table_of_the_device_takes_precedence() {
    let mut object = hopper().object();
    let table = json!({"2": [
        {"minors": [0, 1], "ringBusBandwidth": "100Gi", "allocationScore": 1},
        {"minors": [2, 3], "ringBusBandwidth": "200Gi", "allocationScore": 2},
        {"minors": [4, 5], "allocationScore": 3}
    ]});
    object["metadata"]["annotations"] =
        json!({"scheduling.koordinator.sh/gpu-partitions": table.to_string()});
    let on = inventory(object);
    let pod = |spec: Value| {
        let spec: extension::GpuPartitionSpec = serde_json::from_value(spec).unwrap();
        Need::new(
            &units(&[("nvidia", "2")]),
            &Default::default(),
            None,
            Some(&spec),
        )
        .unwrap()
        .unwrap()
    };
    let upstream = Quirks {
        worst_partition_first: true,
        ..Quirks::default()
    };
    let defaults = Quirks::default();
    let missing = "Insufficient Partitioned GPU Devices";
    let cases = [
        (json!({}), ledger_with(&[], &[]), defaults, "4 5 / "),
        (json!({}), ledger_with(&[], &[]), upstream, "0 1 / "),
        (json!({}), ledger_with(&[4], &[]), defaults, "2 3 / "),
        (
            json!({"allocatePolicy": "Restricted"}),
            ledger_with(&[4], &[]),
            defaults,
            missing,
        ),
        (
            json!({"ringBusBandwidth": "100Gi"}),
            ledger_with(&[], &[]),
            defaults,
            "2 3 / ",
        ),
        (
            json!({"ringBusBandwidth": "200Gi"}),
            ledger_with(&[2], &[]),
            defaults,
            missing,
        ),
        (
            json!({"ringBusBandwidth": "300Gi"}),
            ledger_with(&[], &[]),
            defaults,
            missing,
        ),
    ];
    for (spec, ledger, quirks, expected) in cases {
        let got = partitioned(&pod(spec.clone()), &on, &ledger, false, quirks);
        assert_eq!(got, expected, "{spec} {quirks:?}");
    }
    let bare = hopper().inventory();
    assert_eq!(
        place(
            &pod(json!({})),
            &bare,
            &DeviceLedger::default(),
            &Rules::default()
        ),
        "node(s) missing GPU Partition Table"
    );
}

#[test]
fn allocations_never_exceed_a_card() {
    let greedy = need(&[("core", "200"), ("ratio", "100")], json!({}), json!(null));
    assert_eq!(
        partitioned(
            &greedy,
            &hopper().inventory(),
            &DeviceLedger::default(),
            true,
            Quirks::default()
        ),
        "Insufficient Partitioned GPU Devices"
    );
}

#[test]
fn gpus_are_taken_close_together() {
    let on = usual().inventory();
    let pod = |requests: &[(&str, &str)], scope: &str| {
        need(
            requests,
            json!({"gpu": {"requiredTopologyScope": scope}}),
            json!(null),
        )
    };
    let scoped = "Insufficient Topology Scoped GPU Devices";
    let cases = [
        ("1", "", ledger_with(&[5], &[]), "4 / "),
        ("2", "", ledger_with(&[5], &[]), "6 7 / "),
        ("2", "PCIe", ledger_with(&[5], &[]), "6 7 / "),
        ("2", "PCIe", ledger_with(&[1, 3, 5, 7], &[]), scoped),
        ("2", "NUMANode", ledger_with(&[1, 3, 5, 7], &[]), "0 2 / "),
        ("4", "NUMANode", ledger_with(&[5], &[]), "0 1 2 3 / "),
        ("4", "NUMANode", ledger_with(&[5, 0], &[]), scoped),
        ("4", "Node", ledger_with(&[5, 0], &[]), "1 2 3 4 / "),
        ("4", "", ledger_with(&[5, 0], &[]), "1 2 3 4 / "),
        ("1", "Device", ledger_with(&[], &[]), scoped),
    ];
    for (count, scope, ledger, expected) in cases {
        let got = place(
            &pod(&[("nvidia", count)], scope),
            &on,
            &ledger,
            &Rules::default(),
        );
        assert_eq!(got, expected, "{count} GPUs within {scope:?}");
    }
    let two_halves = [("shared", "2"), ("core", "100"), ("ratio", "100")];
    let none = DeviceLedger::default();
    assert_eq!(
        place(&pod(&two_halves, ""), &on, &none, &Rules::default()),
        "0 1 / "
    );
    assert_eq!(
        place(&pod(&two_halves, "PCIe"), &on, &none, &Rules::default()),
        "node(s) Unsupported Multi-Shared GPU"
    );
}

#[test]
fn shared_gpu_prefers_used_scopes() {
    let on = usual().inventory();
    let half = need(&[("gpu", "50")], json!({}), json!(null));
    let shared = json!({"gpu": [{"minor": 7, "resources": {"koordinator.sh/gpu-core": "50",
        "koordinator.sh/gpu-memory-ratio": "50", "koordinator.sh/gpu-memory": (MEMORY / 2).to_string()}}]});
    let mut ledger = ledger_with(&[5], &[]);
    let scorer = |most| Scorer {
        most,
        weights: vec![
            (DeviceResource::GpuMemoryRatio, 1),
            (DeviceResource::GpuMemory, 1),
        ],
    };
    let (least, most) = (scorer(false), scorer(true));
    let by = |scorer, quirks| Rules {
        scorer: Some(scorer),
        quirks,
        ..Rules::default()
    };
    let straight = Quirks {
        straight_shared_score: true,
        ..Quirks::default()
    };
    assert_eq!(place(&half, &on, &ledger, &Rules::default()), "4 / ");
    ledger.put("half".into(), holding(shared));
    // With free and total swapped, a GPU in use scores 100 by most and 0 by least.
    assert_eq!(
        place(&half, &on, &ledger, &by(&most, Quirks::default())),
        "7 / "
    );
    assert_eq!(
        place(&half, &on, &ledger, &by(&least, Quirks::default())),
        "4 / "
    );
    assert_eq!(place(&half, &on, &ledger, &by(&most, straight)), "7 / ");
    assert_eq!(place(&half, &on, &ledger, &by(&least, straight)), "4 / ");
}
