use super::*;

fn gpu(minor: u8, share: i64) -> Value {
    json!({"gpu": [{"minor": minor, "resources": {"koordinator.sh/gpu-core": share.to_string(),
        "koordinator.sh/gpu-memory-ratio": share.to_string()}}]})
}

fn share(used: &Used, minor: u8) -> i64 {
    let units = used.units[DeviceType::Gpu.index()].get(minor);
    units.map_or(0, |units| units.get(DeviceResource::GpuCore))
}

#[test]
fn reservation_holds_amounts_its_owners_did_not_use() {
    let mut ledger = DeviceLedger::default();
    let reserved = DeviceHolding {
        reserves: true,
        ..holding(gpu(0, 100))
    };
    let owner = |share: i64| DeviceHolding {
        from: Some("r".into()),
        ..holding(gpu(0, share))
    };
    ledger.put("r".into(), reserved);
    assert_eq!(share(ledger.used(), 0), 100);
    ledger.put("a".into(), owner(40));
    ledger.put("b".into(), owner(30));
    assert_eq!(share(ledger.used(), 0), 100, "nothing is counted twice");
    assert_eq!(
        share(&ledger.without(|uid| uid == "r"), 0),
        70,
        "what the reservation's owners hold stays"
    );
    assert_eq!(
        share(&ledger.without(|uid| uid == "a"), 0),
        100,
        "an owner gives back to the reservation"
    );
    let remaining = ledger.unallocated_of("r", |_| false);
    assert_eq!(
        remaining
            .units(DeviceType::Gpu)
            .get(0)
            .map(|u| u.get(DeviceResource::GpuCore)),
        Some(30)
    );
    ledger.remove("r");
    assert_eq!(share(ledger.used(), 0), 70);
    ledger.remove("a");
    ledger.remove("b");
    assert!(ledger.is_empty() && *ledger.used() == Used::default());
}

#[test]
fn written_annotations_are_read_back() {
    let on = usual().inventory();
    let pod = need(
        &[("nvidia", "1"), ("rdma", "1")],
        json!({"rdma": {"vfSelector": {}}}),
        json!({"deviceTypes": ["gpu", "rdma"]}),
    );
    let ledger = DeviceLedger::default();
    let site = Site {
        inventory: &on,
        used: ledger.used(),
        model: None,
        honor_model: false,
    };
    let got = allocate(&pod, &site, &Rules::default()).unwrap();
    let annotation = got.to_annotation(Some(&on));
    assert_eq!(
        serde_json::to_string(&annotation).unwrap(),
        concat!(
            r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100","#,
            r#""koordinator.sh/gpu-memory":"83201216Ki","koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-0"}],"#,
            r#""rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"1"},"id":"RDMA-1","#,
            r#""extension":{"vfs":[{"busID":"1:00.2"}]}}]}"#
        )
    );
    assert_eq!(Allocation::from_annotation(&annotation), Ok(got));
    for bad in [
        json!({"gpu": [{"minor": -1, "resources": {}}]}),
        json!({"gpu": [{"minor": 64, "resources": {}}]}),
        json!({"rdma": [{"minor": 0, "resources": {"koordinator.sh/rdma": "-1"}}]}),
    ] {
        let annotation = serde_json::from_value(bad.clone()).unwrap();
        assert!(Allocation::from_annotation(&annotation).is_err(), "{bad}");
    }
}
