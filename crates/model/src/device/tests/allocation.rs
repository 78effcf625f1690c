use super::*;

fn functions(kind: &str) -> Value {
    json!({"rdma": {"selector": {"matchLabels": {"type": "fakeW"}}, "vfSelector": {"matchExpressions": [
        {"key": "type", "operator": "In", "values": ["general", kind]}]}}})
}

/// Tests joint allocation of GPUs with virtual functions of adapters, as in `TestAutopilotAllocator`.
#[test]
fn gpus_and_adapters_are_allocated_together() {
    let joint = |scope: &str| json!({"deviceTypes": ["gpu", "rdma"], "requiredScope": scope});
    let pod = |gpus: usize, rdma: &str, scope: &str| {
        let gpus = gpus.to_string();
        match gpus.as_str() {
            "0" => need(&[("rdma", rdma)], functions("fakeC"), json!(null)),
            some => need(
                &[("nvidia", some), ("rdma", rdma)],
                functions("fakeG"),
                joint(scope),
            ),
        }
    };
    let whole = |gpus: &[u8], adapters: &[(u8, i64)]| ledger_with(gpus, adapters);
    let none = DeviceLedger::default();
    let on = usual().inventory();
    let rules = Rules::default();
    let cases = [
        (pod(0, "1", ""), &none, " / 1:00.2"),
        (pod(1, "1", ""), &none, "0 / 1:00.2"),
        (pod(2, "1", ""), &none, "0 1 / 1:00.2"),
        (pod(3, "1", ""), &none, "0 1 2 / 1:00.2 2:00.2"),
        (pod(4, "1", ""), &none, "0 1 2 3 / 1:00.2 2:00.2"),
        (pod(6, "1", ""), &none, "0 1 2 3 4 5 / 1:00.2 2:00.2 3:00.2"),
        (
            pod(8, "1", ""),
            &none,
            "0 1 2 3 4 5 6 7 / 1:00.2 2:00.2 3:00.2 4:00.2",
        ),
        (pod(2, "1", ""), &whole(&[0], &[(1, 1)]), "2 3 / 2:00.2"),
        (
            pod(3, "1", ""),
            &whole(&[0], &[(1, 1)]),
            "1 2 3 / 1:00.3 2:00.2",
        ),
        (
            pod(3, "1", "SamePCIe"),
            &whole(&[0], &[(1, 1)]),
            "1 2 3 / 1:00.3 2:00.2",
        ),
        (
            pod(3, "1", "SamePCIe"),
            &whole(&[0], &[(1, 100)]),
            "node(s) Device Joint-Allocate rules violation",
        ),
        (
            pod(4, "1", ""),
            &whole(&[0, 1, 2, 3], &[(1, 1)]),
            "4 5 6 7 / 3:00.2 4:00.2",
        ),
        (pod(9, "1", ""), &none, "Insufficient GPU Devices"),
    ];
    for (need, ledger, expected) in &cases {
        assert_eq!(place(need, &on, ledger, &rules), *expected, "{need:?}");
    }
    // Two adapters at each root and four requested: two of each root that has allocated GPUs.
    let mut extended = usual();
    extended
        .adapters
        .extend([(5, 0, "0"), (6, 0, "1"), (7, 1, "2"), (8, 1, "3")]);
    assert_eq!(
        place(&pod(4, "400", ""), &extended.inventory(), &none, &rules),
        "0 1 2 3 / 1:00.2 2:00.2 5:00.2 6:00.2"
    );
    assert_eq!(
        place(
            &pod(4, "400", ""),
            &extended.inventory(),
            &whole(&[0, 1, 2, 3], &[(1, 1)]),
            &rules
        ),
        "4 5 6 7 / 3:00.2 4:00.2 7:00.2 8:00.2"
    );
    // The first root has three adapters, but roots are used in turn.
    let uneven = DeviceLayout {
        gpus: vec![(0, 0, "0"), (1, 0, "1"), (2, 0, "2"), (3, 0, "3")],
        adapters: vec![
            (0, 0, "0"),
            (1, 0, "0"),
            (2, 0, "0"),
            (3, 0, "1"),
            (4, 0, "2"),
            (5, 0, "3"),
        ],
    };
    assert_eq!(
        place(&pod(4, "400", ""), &uneven.inventory(), &none, &rules),
        "0 1 2 3 / 0:00.2 3:00.2 4:00.2 5:00.2"
    );
}

#[test]
fn hints_determine_the_number_of_adapters() {
    let on = usual().inventory();
    let hint = |strategy: &str, exclusive: &str| {
        json!({"rdma": {"selector": {"matchLabels": {"type": "fakeW"}},
        "allocateStrategy": strategy, "exclusivePolicy": exclusive}})
    };
    let none = DeviceLedger::default();
    let busy = ledger_with(&[], &[(1, 1)]);
    let cases: &[(&str, Value, &DeviceLedger, &str)] = &[
        ("2", hint("", ""), &none, " / 1"),
        ("200", hint("", ""), &none, " / 1 2"),
        ("1", hint("ApplyForAll", ""), &none, " / 1 2 3 4"),
        ("3", hint("RequestsAsCount", ""), &none, " / 1 2 3"),
        ("3", hint("RequestsAsCount", ""), &busy, " / 1 2 3"),
        // As upstream, which prefers adapters whose PCIe root is free, and then uses any.
        ("3", hint("RequestsAsCount", "PCIeLevel"), &busy, " / 1 2 3"),
        (
            "3",
            hint("RequestsAsCount", "DeviceLevel"),
            &busy,
            " / 2 3 4",
        ),
        (
            "4",
            hint("RequestsAsCount", "DeviceLevel"),
            &busy,
            "Insufficient rdma devices",
        ),
        (
            "100",
            hint("ApplyForAll", ""),
            &busy,
            "Insufficient rdma devices",
        ),
        (
            "1",
            json!({"rdma": {"selector": {"matchLabels": {"type": "other"}}}}),
            &none,
            "Insufficient rdma devices",
        ),
    ];
    for (rdma, hints, ledger, expected) in cases {
        let need = need(&[("rdma", rdma)], hints.clone(), json!(null));
        assert_eq!(
            place(&need, &on, ledger, &Rules::default()),
            *expected,
            "{rdma} {hints}"
        );
    }
    // Adapters of a type with `ApplyForAll` are not bound to the GPUs' roots.
    let all = need(
        &[("nvidia", "4"), ("rdma", "1")],
        hint("ApplyForAll", "PCIeLevel"),
        json!({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}),
    );
    assert_eq!(
        place(&all, &on, &none, &Rules::default()),
        "0 1 2 3 / 1 2 3 4"
    );
}

#[test]
fn node_without_requested_devices_is_rejected() {
    let bare = DeviceLayout {
        gpus: vec![(0, 0, "0")],
        adapters: Vec::new(),
    }
    .inventory();
    let full = usual().inventory();
    let mut plain = usual().object();
    for device in plain["spec"]["devices"].as_array_mut().unwrap() {
        device.as_object_mut().unwrap().remove("vfGroups");
        device.as_object_mut().unwrap().remove("topology");
    }
    let plain = inventory(plain);
    let rdma = |hints| need(&[("rdma", "1")], hints, json!(null));
    let none = DeviceLedger::default();
    let site = |inventory| Site {
        inventory,
        used: none.used(),
        model: None,
        honor_model: false,
    };
    let cases = [
        (rdma(json!({})), &bare, "Insufficient rdma devices"),
        (
            need(&[("fpga", "1")], json!({}), json!(null)),
            &full,
            "Insufficient fpga devices",
        ),
        (
            rdma(functions("x")),
            &plain,
            "Insufficient rdma VirtualFunctions",
        ),
    ];
    for (need, on, reason) in cases {
        let refusal = allocate(&need, &site(on), &Rules::default()).unwrap_err();
        assert_eq!((refusal.reason, refusal.resolvable), (reason, false));
    }
    // Without a topology, GPUs and adapters are allocated by number.
    let both = need(
        &[("nvidia", "2"), ("rdma", "1")],
        json!({}),
        json!({"deviceTypes": ["gpu", "rdma"]}),
    );
    assert_eq!(
        place(&both, &plain, &ledger_with(&[0], &[]), &Rules::default()),
        "1 2 / 1"
    );
}

#[test]
fn unhealthy_devices_are_never_allocated() {
    let mut object = usual().object();
    for device in object["spec"]["devices"].as_array_mut().unwrap() {
        if device["minor"] == json!(1) {
            device["health"] = json!(false);
        }
    }
    let on = inventory(object);
    let none = DeviceLedger::default();
    let gpus = |count: &'static str| need(&[("nvidia", count)], json!({}), json!(null));
    assert_eq!(place(&gpus("2"), &on, &none, &Rules::default()), "2 3 / ");
    assert_eq!(
        place(&gpus("8"), &on, &none, &Rules::default()),
        "Insufficient GPU Devices"
    );
    let half = need(&[("gpu", "50")], json!({}), json!(null));
    let mut ledger = ledger_with(&[0, 2, 3, 4, 5, 6, 7], &[]);
    assert_eq!(
        place(&half, &on, &ledger, &Rules::default()),
        "Insufficient GPU Devices"
    );
    ledger.remove("assigned");
    assert_eq!(
        place(&half, &on.withdrawn(), &ledger, &Rules::default()),
        "Insufficient GPU Devices",
        "the Device object is gone"
    );
}

#[test]
fn well_planned_devices_are_searched_last() {
    let mut object = usual().object();
    object["metadata"]["labels"] =
        json!({"node.koordinator.sh/secondary-device-well-planned": "true"});
    let on = inventory(object);
    let joint = json!({"deviceTypes": ["gpu", "rdma"]});
    let whole = need(
        &[("nvidia", "8"), ("rdma", "1")],
        functions("x"),
        joint.clone(),
    );
    let part = need(&[("gpu", "50"), ("rdma", "1")], functions("x"), joint);
    let full = Rules {
        in_full: true,
        ..Rules::default()
    };
    let none = DeviceLedger::default();
    assert_eq!(
        place(&whole, &on, &none, &Rules::default()),
        "0 1 2 3 4 5 6 7 / "
    );
    assert_eq!(
        place(&whole, &on, &none, &full),
        "0 1 2 3 4 5 6 7 / 1:00.2 2:00.2 3:00.2 4:00.2"
    );
    assert_eq!(place(&part, &on, &none, &Rules::default()), "0 / 1:00.2");
}

#[test]
fn memory_and_its_share_complete_each_other() {
    let mut object = DeviceLayout {
        gpus: vec![(0, 0, "0")],
        adapters: Vec::new(),
    }
    .object();
    object["spec"]["devices"][0]["resources"]["koordinator.sh/gpu-memory"] = json!("64Gi");
    let on = inventory(object);
    let ledger = DeviceLedger::default();
    let site = Site {
        inventory: &on,
        used: ledger.used(),
        model: None,
        honor_model: false,
    };
    for (requests, memory, share) in [
        (&[("memory", "32Gi")], 32_i64 << 30, 50),
        (&[("ratio", "50")], 32 << 30, 50),
        (&[("memory", "1Gi")], 1 << 30, 1),
        (&[("gpu", "100")], 64 << 30, 100),
    ] {
        let got = allocate(
            &need(requests, json!({}), json!(null)),
            &site,
            &Rules::default(),
        )
        .unwrap();
        let units = got.grants(DeviceType::Gpu)[0].units;
        assert_eq!(units.get(DeviceResource::GpuMemory), memory, "{requests:?}");
        assert_eq!(
            units.get(DeviceResource::GpuMemoryRatio),
            share,
            "{requests:?}"
        );
    }
    // Fifty pods with 1.9 % of the memory each hold 1 % by their shares, but the memory is gone.
    let mut ledger = DeviceLedger::default();
    let small = json!({"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-memory": "1250Mi",
        "koordinator.sh/gpu-memory-ratio": "1"}}]});
    for at in 0..50 {
        ledger.put(at.to_string().into(), holding(small.clone()));
    }
    let half = need(&[("ratio", "50")], json!({}), json!(null));
    assert_eq!(
        place(&half, &on, &ledger, &Rules::default()),
        "Insufficient GPU Devices"
    );
}
