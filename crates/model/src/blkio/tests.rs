use super::*;
use serde_json::json;

fn blocks(value: serde_json::Value) -> Vec<BlockCfg> {
    serde_json::from_value(value).unwrap()
}

fn set(devices: &[&str]) -> BTreeSet<String> {
    devices.iter().map(ToString::to_string).collect()
}

fn text(lines: &[IoLine]) -> Vec<String> {
    let show = |line: &IoLine| format!("{:?} {} {}", line.file, line.device, line.value);
    lines.iter().map(show).collect()
}

/// Creates the machine of upstream's `TestBlkIOReconcile_reconcile`, with a volume group over two disks.
fn storage() -> Storage {
    let map = |pairs: &[(&str, &str)]| {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(own).collect()
    };
    let sets = |pairs: &[(&str, &[&str])]| {
        let own = |(key, disks): &(&str, &[&str])| ((*key).to_owned(), set(disks));
        pairs.iter().map(own).collect()
    };
    Storage {
        numbers: map(&[("/dev/vda", "253:0"), ("/dev/vdb", "253:16")]),
        disks: sets(&[
            ("/dev/vda", &["/dev/vda"]),
            ("/dev/vdb", &["/dev/vdb"]),
            ("/dev/vda1", &["/dev/vda"]),
            ("/dev/vdb1", &["/dev/vdb"]),
            ("/dev/mapper/yoda--pool0-yoda--test1", &["/dev/vdb"]),
        ]),
        groups: sets(&[
            ("yoda-pool0", &["/dev/vdb"]),
            ("wide", &["/dev/vda", "/dev/vdb"]),
        ]),
        mounts: map(&[
            ("/pods/1/html", "/dev/mapper/yoda--pool0-yoda--test1"),
            ("/pods/2/data", "/dev/vda1"),
        ]),
    }
}

/// Upstream: the blocks of `TestBlkIOReconcile_reconcile`, which checks no values itself.
#[test]
fn groups_and_the_root() {
    let storage = storage();
    let device = |block: &BlockCfg| storage.devices(block, None);
    let be = blocks(
        json!([{"name": "yoda-pool0", "type": "volumegroup", "ioCfg": {
        "ioWeightPercent": 40, "readIOPS": 1024, "writeIOPS": 1024,
        "readBPS": 1_048_576, "writeBPS": 1_048_576}}]),
    );
    let (lines, errors) = plan(IoCgroupKind::Group, &be, &set(&["253:0", "253:16"]), device);
    assert_eq!(errors, []);
    assert_eq!(
        text(&lines),
        [
            "ReadIops 253:16 1024",
            "ReadBps 253:16 1048576",
            "WriteIops 253:16 1024",
            "WriteBps 253:16 1048576",
            "Weight 253:16 40",
            "ReadIops 253:0 0",
            "ReadBps 253:0 0",
            "WriteIops 253:0 0",
            "WriteBps 253:0 0",
            "Weight 253:0 100",
        ]
    );
    let root = |model: bool| {
        blocks(json!([{"name": "/dev/vdb", "type": "device", "ioCfg": {
            "readLatency": 1000, "writeLatency": 1000,
            "readLatencyPercent": 90, "writeLatencyPercent": 90, "enableUserModel": model,
            "modelReadBPS": 3_324_911_720_i64, "modelWriteBPS": 2_765_819_289_i64,
            "modelReadSeqIOPS": 168_274, "modelWriteSeqIOPS": 367_565,
            "modelReadRandIOPS": 352_545, "modelWriteRandIOPS": 339_390}}]))
    };
    let (lines, _) = plan(IoCgroupKind::Root, &root(true), &set(&["253:0"]), device);
    assert_eq!(
        text(&lines),
        [
            "CostQos 253:16 enable=1 ctrl=user rpct=90 rlat=1000 wpct=90 wlat=1000",
            "CostModel 253:16 ctrl=user rbps=3324911720 rseqiops=168274 rrandiops=352545 \
             wbps=2765819289 wseqiops=367565 wrandiops=339390",
            "CostQos 253:0 enable=0",
        ]
    );
    let (lines, _) = plan(IoCgroupKind::Root, &root(false), &set(&[]), device);
    assert_eq!(text(&lines)[1], "CostModel 253:16 ctrl=auto");
}

#[test]
fn missing_settings_have_defaults() {
    let bare = blocks(json!([{"name": "/dev/vda", "type": "device"}]));
    let device = |_: &BlockCfg| Ok(set(&["8:0"]));
    let lines = |kind| text(&plan(kind, &bare, &set(&[]), device).0);
    assert_eq!(
        lines(IoCgroupKind::Root),
        [
            "CostQos 8:0 enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000",
            "CostModel 8:0 ctrl=auto",
        ]
    );
    assert_eq!(lines(IoCgroupKind::Group)[0], "ReadIops 8:0 0");
}

/// Upstream skips the whole group after one failed look-up.
#[test]
fn unknown_block_applies_the_others_without_resets() {
    let storage = storage();
    let blocks = blocks(json!([
        {"name": "/dev/vdz", "type": "device", "ioCfg": {"readIOPS": 1}},
        {"name": "/dev/vda1", "type": "device", "ioCfg": {"readIOPS": 2, "writeIOPS": -1, "ioWeightPercent": 0}},
        {"name": "x", "ioCfg": {}},
        {"name": "y", "type": "tape"},
    ]));
    let (lines, errors) = plan(IoCgroupKind::Group, &blocks, &set(&["253:16"]), |block| {
        storage.devices(block, None)
    });
    let lines = text(&lines);
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0], "ReadIops 253:0 2");
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "block \"/dev/vdz\": no disk of this node is known for it",
            "block \"/dev/vda1\": writeIOPS must be at least 0, got -1",
            "block \"/dev/vda1\": ioWeightPercent must be in 1..=100, got 0",
            "block \"x\": type is not set",
            "block \"y\": type \"tape\" is not known",
        ]
    );
}

#[test]
fn volumes_of_pods_and_groups_of_disks() {
    let storage = storage();
    let block = &blocks(json!([{"name": "html", "type": "podvolume"}]))[0];
    let devices = |mount| storage.devices(block, mount);
    assert_eq!(devices(Some("/pods/1/html")), Ok(set(&["253:16"])));
    assert_eq!(devices(Some("/pods/2/data")), Ok(set(&["253:0"])));
    assert!(
        devices(Some("/pods/3/html"))
            .unwrap_err()
            .contains("not mounted")
    );
    assert!(devices(None).unwrap_err().contains("no such volume"));
    let wide = blocks(
        json!([{"name": "wide", "type": "volumegroup", "ioCfg": {"readIOPS": 7}},
        {"name": "/dev/vda", "type": "device", "ioCfg": {"readIOPS": 8}}]),
    );
    let (lines, _) = plan(IoCgroupKind::Group, &wide, &set(&[]), |block| {
        storage.devices(block, None)
    });
    let reads = text(&lines)
        .into_iter()
        .filter(|line| line.starts_with("ReadIops"));
    assert_eq!(
        reads.collect::<Vec<_>>(),
        ["ReadIops 253:0 8", "ReadIops 253:16 7"],
        "each of its disks, and the later block"
    );
}

#[test]
fn lines_name_devices() {
    let throttle = "253:16 2048\n8:0 1\n";
    assert_eq!(devices(throttle), set(&["253:16", "8:0"]));
    let cost = "253:16 enable=1 ctrl=user rlat=2000 wlat=2000\nTotal 0\ndefault 100\n:1 x\n";
    assert_eq!(devices(cost), set(&["253:16"]));
    assert_eq!(devices(""), set(&[]));
}
