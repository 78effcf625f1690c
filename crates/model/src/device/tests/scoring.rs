use super::*;

#[test]
fn nodes_are_scored_by_free_amounts_of_devices() {
    let gpus = |totals: &[(&str, &str)], health: bool| {
        let device = |(minor, (share, memory)): (usize, &(&str, &str))| {
            json!({"type": "gpu", "minor": minor, "health": health, "resources": {
                "koordinator.sh/gpu-core": share, "koordinator.sh/gpu-memory-ratio": share,
                "koordinator.sh/gpu-memory": memory}})
        };
        totals.iter().enumerate().map(device).collect::<Vec<_>>()
    };
    let on = |devices: Vec<Value>| {
        inventory(json!({"metadata": {"name": "n"}, "spec": {"devices": devices}}))
    };
    let used = |share: &str, memory: &str, rdma: &str| {
        let mut ledger = DeviceLedger::default();
        ledger.put(
            "p".into(),
            holding(json!({
            "gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": share,
                "koordinator.sh/gpu-memory-ratio": share, "koordinator.sh/gpu-memory": memory}}],
            "rdma": [{"minor": 0, "resources": {"koordinator.sh/rdma": rdma}}]})),
        );
        ledger
    };
    let one_gpu = [("100", "16Gi")];
    let two = [("100", "16Gi"), ("100", "16Gi")];
    let mut wide = gpus(&[("1000", "160Gi")], true);
    wide.push(json!({"type": "rdma", "minor": 0, "health": true, "resources": {"koordinator.sh/rdma": "1000"}}));
    let quarter = || used("25", "4Gi", "0");
    const HALF: &[(&str, &str)] = &[("core", "50"), ("ratio", "50")];
    const HALF_MEMORY: &[(&str, &str)] = &[("core", "50"), ("memory", "8Gi")];
    type ScoreCase = (
        &'static str,
        Inventory,
        DeviceLedger,
        &'static [(&'static str, &'static str)],
        bool,
        i64,
    );
    let cases: Vec<ScoreCase> = vec![
        (
            "idle",
            on(gpus(&one_gpu, true)),
            used("0", "0", "0"),
            &[("core", "100"), ("ratio", "100")],
            false,
            50,
        ),
        (
            "two idle",
            on(gpus(&two, true)),
            used("0", "0", "0"),
            HALF,
            false,
            87,
        ),
        (
            "share left",
            on(gpus(&one_gpu, true)),
            quarter(),
            HALF,
            false,
            50,
        ),
        (
            "memory left",
            on(gpus(&one_gpu, true)),
            quarter(),
            HALF_MEMORY,
            false,
            50,
        ),
        (
            "share, most",
            on(gpus(&one_gpu, true)),
            quarter(),
            HALF,
            true,
            50,
        ),
        (
            "memory, most",
            on(gpus(&one_gpu, true)),
            quarter(),
            HALF_MEMORY,
            true,
            50,
        ),
        (
            "two types",
            on(wide),
            used("25", "4Gi", "50"),
            &[("core", "50"), ("ratio", "50"), ("rdma", "25")],
            false,
            186,
        ),
        (
            "unhealthy",
            on(gpus(&one_gpu, false)),
            used("0", "0", "0"),
            HALF,
            false,
            0,
        ),
    ];
    for (name, inventory, ledger, requests, most, expected) in cases {
        let weights = [
            DeviceResource::GpuMemoryRatio,
            DeviceResource::GpuMemory,
            DeviceResource::Rdma,
            DeviceResource::Fpga,
        ];
        let scorer = Scorer {
            most,
            weights: weights.map(|resource| (resource, 1)).to_vec(),
        };
        let site = Site {
            inventory: &inventory,
            used: ledger.used(),
            model: None,
            honor_model: false,
        };
        let rules = Rules {
            scorer: Some(&scorer),
            ..Rules::default()
        };
        let got = score_node(&need(requests, json!({}), json!(null)), &site, &rules);
        assert_eq!(got, Ok(expected), "{name}");
    }
}

#[test]
fn single_devices_are_scored_the_same_way() {
    let scorer = |most| Scorer {
        most,
        weights: vec![(DeviceResource::GpuMemoryRatio, 1)],
    };
    let ratio = |amount: i64| Units::from_iter([(DeviceResource::GpuMemoryRatio, amount)]);
    for (request, free, most, expected) in [
        (50, 100, false, 50),
        (50, 0, false, 0),
        (50, 75, false, 25),
        (50, 75, true, 75),
        (50, 20, true, 100),
    ] {
        let got = scorer(most).device(&ratio(request), &ratio(100), &ratio(free));
        assert_eq!(got, expected, "{request} of {free}, most {most}");
    }
}
