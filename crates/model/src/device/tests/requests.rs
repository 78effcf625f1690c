use super::*;

#[test]
fn only_some_mixtures_of_resources_are_possible() {
    let bad = "invalid resource device requests: ";
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[], bad),
        (&[("core", "101")], bad),
        (
            &[
                ("nvidia", "2"),
                ("gpu", "200"),
                ("core", "200"),
                ("memory", "32Gi"),
                ("ratio", "200"),
            ],
            bad,
        ),
        (
            &[("gpu", "101")],
            "invalid resource unit koordinator.sh/gpu: 101",
        ),
        (&[("core", "100"), ("ratio", "101")], bad),
        (&[("nvidia", "2")], "core=200 ratio=200"),
        (&[("amd", "1")], "core=100 ratio=100"),
        (&[("dcu", "2")], "core=200 ratio=200"),
        (&[("gpu", "200")], "core=200 ratio=200"),
        (&[("gpu", "50")], "core=50 ratio=50"),
        (
            &[("core", "200"), ("memory", "64Gi")],
            "core=200 memory=68719476736",
        ),
        (&[("core", "200"), ("ratio", "200")], "core=200 ratio=200"),
        (&[("ratio", "200")], "ratio=200"),
        (&[("memory", "64Gi")], "memory=68719476736"),
        (&[("ratio", "101"), ("shared", "1")], bad),
        (&[("ratio", "101"), ("shared", "2")], bad),
        (&[("core", "101"), ("memory", "64Gi"), ("shared", "1")], bad),
        (&[("core", "101"), ("memory", "64Gi"), ("shared", "2")], bad),
        (&[("ratio", "200"), ("shared", "2")], "shared=2 ratio=200"),
        (&[("ratio", "100"), ("shared", "2")], "shared=2 ratio=100"),
        (
            &[("core", "100"), ("memory", "1"), ("shared", "1")],
            "shared=1 core=100 memory=1",
        ),
        (
            &[("core", "100"), ("memory", "2"), ("shared", "2")],
            "shared=2 core=100 memory=2",
        ),
        (
            &[("npu-core", "40"), ("ratio", "200")],
            "ratio=200 npu-core=40",
        ),
        (&[("npu-core", "40"), ("memory", "128Gi")], bad),
        (
            &[
                ("shared", "1"),
                ("npu-core", "10"),
                ("npu-cpu", "3"),
                ("memory", "16"),
            ],
            "shared=1 memory=16 npu-core=10 npu-cpu=3",
        ),
        (
            &[
                ("shared", "1"),
                ("npu-core", "10"),
                ("npu-cpu", "3"),
                ("npu-dvpp", "100"),
                ("memory", "16"),
            ],
            "shared=1 memory=16 npu-core=10 npu-cpu=3 npu-dvpp=100",
        ),
        (
            &[
                ("shared", "2"),
                ("npu-core", "20"),
                ("npu-cpu", "6"),
                ("npu-dvpp", "200"),
                ("memory", "32"),
            ],
            bad,
        ),
        (
            &[("shared", "1"), ("npu-core", "10"), ("memory", "16Gi")],
            bad,
        ),
        (
            &[("fpga", "201")],
            "invalid resource unit koordinator.sh/fpga: 201",
        ),
        (&[("fpga", "50")], "fpga=50"),
        (
            &[("rdma", "201")],
            "invalid resource unit koordinator.sh/rdma: 201",
        ),
        (&[("rdma", "80")], "rdma=80"),
        (&[("ratio", "-50")], bad),
    ];
    for (requests, expected) in cases {
        let got = match convert(&units(requests)) {
            Ok(units) => {
                let format_unit = |(resource, amount): (DeviceResource, i64)| {
                    let name = resource.name().rsplit('/').next().unwrap_or_default();
                    let name = name.trim_start_matches("gpu-").trim_start_matches("gpu.");
                    let name = name.replace("memory-ratio", "ratio");
                    format!("{name}={amount}")
                };
                units.iter().map(format_unit).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        };
        assert!(
            got == *expected || (*expected == bad && got.starts_with(bad)),
            "{requests:?}: {got}"
        );
    }
    let error = convert(&units(&[("ratio", "101"), ("core", "1")])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid resource device requests: [koordinator.sh/gpu-core koordinator.sh/gpu-memory-ratio]"
    );
}

#[test]
fn requests_are_divided_among_cards() {
    type RequestCase = (
        &'static [(&'static str, &'static str)],
        usize,
        &'static [(&'static str, &'static str)],
        bool,
    );
    let cases: &[RequestCase] = &[
        (
            &[("nvidia", "2")],
            2,
            &[("core", "100"), ("ratio", "100")],
            false,
        ),
        (
            &[("gpu", "50")],
            1,
            &[("core", "50"), ("ratio", "50")],
            true,
        ),
        (
            &[("gpu", "100")],
            1,
            &[("core", "100"), ("ratio", "100")],
            false,
        ),
        (&[("memory", "8Gi")], 1, &[("memory", "8Gi")], true),
        (
            &[("shared", "2"), ("ratio", "100")],
            2,
            &[("ratio", "50")],
            true,
        ),
        (
            &[("shared", "2"), ("ratio", "200")],
            2,
            &[("ratio", "100")],
            false,
        ),
        (
            &[("shared", "2"), ("core", "100"), ("memory", "16Gi")],
            2,
            &[("core", "50"), ("memory", "8Gi")],
            true,
        ),
        (
            &[("npu-core", "40"), ("ratio", "200")],
            2,
            &[("npu-core", "20"), ("ratio", "100")],
            false,
        ),
    ];
    for (requests, count, each, shared) in cases {
        let gpu = need(requests, json!({}), json!(null)).gpu.unwrap();
        assert_eq!(
            (gpu.count, gpu.each, gpu.shared),
            (*count, units(each), *shared),
            "{requests:?}"
        );
    }
}

#[test]
fn invalid_selector_is_reported() {
    let hints =
        json!({"rdma": {"vfSelector": {"matchExpressions": [{"key": "a", "operator": "Of"}]}}});
    let hints = serde_json::from_value(hints).unwrap();
    let error = Need::new(&units(&[("rdma", "1")]), &hints, None, None).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("invalid VFSelector of DeviceHint, deviceType: rdma")
            && text.contains("Of"),
        "{text}"
    );
    assert_eq!(
        Need::new(&units(&[("rdma", "0")]), &hints, None, None),
        Ok(None),
        "nothing asked for"
    );
}

#[test]
fn invalid_device_entries_are_skipped() {
    let (inventory, problems) = Inventory::new(&serde_json::from_value(json!({
        "metadata": {"name": "n", "annotations": {"scheduling.koordinator.sh/gpu-partitions":
            "{\"2\":[{\"minors\":[0,0]},{\"minors\":[0,1]}]}"}},
        "spec": {"devices": [
            {"type": "gpu", "minor": 1, "health": true, "resources": {"kubernetes.io/gpu-core": "100"}},
            {"type": "gpu", "health": true},
            {"type": "gpu", "minor": 64, "health": true},
            {"type": "gpu", "minor": 2, "health": true, "resources": {"koordinator.sh/gpu-core": "-1"}},
            {"type": "xpu", "minor": 3, "health": true},
            {"type": "gpu", "minor": 4, "health": false, "resources": {"koordinator.sh/gpu-core": "100"}}
        ]}
    })).unwrap());
    let seen: Vec<(u8, i64)> = inventory
        .devices(DeviceType::Gpu)
        .iter()
        .map(|device| (device.minor, device.total.get(DeviceResource::GpuCore)))
        .collect();
    assert_eq!(
        seen,
        [(1, 100), (4, 0)],
        "an unhealthy device offers nothing"
    );
    assert_eq!(problems.len(), 4, "{problems:?}");
}
