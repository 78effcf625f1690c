//! Block I/O by class, by pod and of the root, on both cgroup versions.

use super::*;
use crate::collect::storage::put_device;
use crate::states::Malformed;
use koord_host::Resource::{
    BlkioCostModel, BlkioCostQos, BlkioCostWeight, BlkioReadBps, BlkioReadIops, BlkioWriteIops,
};
use serde_json::Value;

/// Sets up a machine with `/dev/sda` (8:0, one partition) and `/dev/vdb` (253:16), which holds the volume
/// group `pool`. Volumes of the pod `ls` are on both.
fn machine(tree: &Tree) {
    put_device(tree, "pci/sda", "8:0");
    put_device(tree, "pci/sda/sda1", "8:1");
    put_device(tree, "pci/vdb", "253:16");
    put_device(tree, "virtual/dm-0", "253:0");
    for (file, text) in [
        ("pci/sda/sda1/partition", "1\n"),
        ("virtual/dm-0/dm/uuid", "LVM-abc\n"),
        ("virtual/dm-0/dm/name", "pool-data\n"),
    ] {
        tree.put(&format!("sys/devices/{file}"), text).unwrap();
    }
    let devices = tree.dir().join("sys/devices");
    let slaves = devices.join("virtual/dm-0/slaves");
    std::fs::create_dir_all(&slaves).unwrap();
    std::os::unix::fs::symlink(devices.join("pci/vdb"), slaves.join("vdb")).unwrap();
    let volumes = "/var/lib/kubelet/pods/ls/volumes/kubernetes.io~csi";
    let mounts = format!(
        "36 35 8:1 / {volumes}/scratch/mount rw - ext4 /dev/sda1 rw\n\
         37 35 253:0 / {volumes}/pv-7/mount rw - xfs /dev/mapper/pool-data rw\n"
    );
    tree.put("proc/1/mountinfo", &mounts).unwrap();
}

fn rig(tree: Tree) -> Rig {
    machine(&tree);
    let mut settings = Settings::default();
    settings.gates.set(Gate::BlkIOReconcile, true);
    // The disks are read once, by a thread with its own clock.
    settings.collectors.storage_info_ms = u64::from(u32::MAX);
    let rig = Rig::on(tree, settings);
    while rig.agent.measure.facts.storage.load().is_none() {
        std::thread::yield_now();
    }
    rig
}

fn both() -> [Rig; 2] {
    [Tree::hybrid("0-3").unwrap(), Tree::v2("0-3").unwrap()].map(rig)
}

fn class(rig: &Rig, class: &str, enable: bool, blocks: Value) {
    rig.slo(json!({"resourceQOSStrategy": {class:
        {"blkioQOS": {"enable": enable, "blocks": blocks}}}}));
}

/// Sets the pods of the rig. The service requests `blocks` if given.
fn pods(rig: &Rig, blocks: Option<Value>) {
    let mut service = pod("ls", "LS", json!({"requests": {"cpu": "1"}}));
    let note = blocks.map(|blocks| {
        let text = json!({ "blocks": blocks }).to_string();
        ("koordinator.sh/blkioQOS".to_owned(), text)
    });
    service.metadata.annotations = note.map(|note| [note].into());
    service.spec.as_mut().unwrap().volumes = serde_json::from_value(json!([
        {"name": "scratch", "csi": {"driver": "d"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "own", "ephemeral": {}},
        {"name": "empty", "emptyDir": {}}]))
    .unwrap();
    rig.pods(vec![service, batch_pod()]);
}

fn claims(rig: &Rig, bound: &[(&str, Option<&str>)]) {
    let claim = |(name, volume): &(&str, Option<&str>)| {
        let key = ("default".to_owned(), (*name).to_owned());
        (key, volume.map(str::to_owned))
    };
    let all = bound.iter().map(claim).collect();
    rig.states.claims.store(Arc::new(all));
}

/// Returns the group's value for a device, in v1 units.
fn value(rig: &Rig, group: &CgroupPath, resource: Resource, device: &str) -> String {
    let target = koord_host::Target::CgroupLine {
        group: group.clone(),
        resource,
        key: device.parse().unwrap(),
    };
    rig.tree.root().read_target(&target).unwrap().unwrap()
}

fn wrong(rig: &Rig, object: &str) -> Vec<Malformed> {
    let mut current = rig.states.malformed_inputs.current();
    current.remove(object).unwrap_or_default()
}

fn refused(rig: &Rig) -> usize {
    let writes = rig.tree.writes();
    writes
        .iter()
        .filter(|write| write.refused.is_some())
        .count()
}

/// Lets time pass until every file is checked again.
fn round(rig: &mut Rig) {
    for _ in 0..12 {
        rig.pass();
    }
}

#[test]
fn batch_work_has_its_limits_on_devices_and_volume_groups() {
    for mut rig in both() {
        let blocks = json!([
            {"name": "/dev/sda1", "type": "device", "ioCfg": {"readBPS": 1_048_576, "writeIOPS": 120}},
            {"name": "pool", "type": "volumegroup", "ioCfg": {"readIOPS": 1024, "ioWeightPercent": 40}}]);
        class(&rig, "beClass", true, blocks.clone());
        round(&mut rig);
        let group = rig.class.clone();
        let be = |rig: &Rig, resource, device| value(rig, &group, resource, device);
        assert_eq!(be(&rig, BlkioReadBps, "8:0"), "1048576");
        assert_eq!(be(&rig, BlkioWriteIops, "8:0"), "120");
        assert_eq!(be(&rig, BlkioReadIops, "8:0"), "0", "no limit");
        assert_eq!(be(&rig, BlkioReadIops, "253:16"), "1024");
        if rig.tree.root().version() == koord_host::Version::V2 {
            assert_eq!(be(&rig, BlkioCostWeight, "253:16"), "40");
            let line = rig.tree.raw(&group, BlkioReadBps).unwrap();
            assert!(
                line.contains("8:0 rbps=1048576 wbps=max riops=max wiops=120"),
                "{line}"
            );
        } else {
            let line = rig.tree.raw(&group, BlkioReadBps).unwrap();
            assert_eq!(line, "8:0 1048576");
        }
        let entries = rig.agent.audit().entries();
        let entry = entries.iter().find(|entry| entry.reason == "UpdateBlkIO");
        assert_eq!(entry.unwrap().name, "n");
        // Foreign values do not last: neither others for these devices nor those for another.
        let foreign = |device: &str, value: &str| {
            let target = koord_host::Target::CgroupLine {
                group: group.clone(),
                resource: BlkioReadBps,
                key: device.parse().unwrap(),
            };
            rig.tree.root().write_target(&target, value).unwrap();
        };
        foreign("8:0", "5");
        foreign("8:16", "5");
        round(&mut rig);
        assert_eq!(be(&rig, BlkioReadBps, "8:0"), "1048576");
        assert_eq!(be(&rig, BlkioReadBps, "8:16"), "0");
        // Disabled: upstream's defaults.
        class(&rig, "beClass", false, blocks);
        rig.pass();
        for device in ["8:0", "253:16"] {
            for file in [BlkioReadBps, BlkioReadIops, BlkioWriteIops] {
                assert_eq!(be(&rig, file, device), "0", "{file:?} {device}");
            }
        }
        if rig.tree.root().version() == koord_host::Version::V2 {
            assert_eq!(be(&rig, BlkioCostWeight, "253:16"), "100");
        }
        assert_eq!(refused(&rig), 0);
    }
}

#[test]
fn pods_have_limits_on_their_volumes() {
    for mut rig in both() {
        let group = rig.service.clone();
        let limit = |rig: &Rig, device| value(rig, &group, BlkioReadIops, device);
        let foreign = koord_host::Target::CgroupLine {
            group: group.clone(),
            resource: BlkioReadIops,
            key: "9:9".parse().unwrap(),
        };
        rig.tree.root().write_target(&foreign, "7").unwrap();
        pods(&rig, None);
        round(&mut rig);
        assert_eq!(
            limit(&rig, "9:9"),
            "7",
            "a pod without settings is unchanged"
        );
        let blocks = json!([
            {"name": "scratch", "type": "podvolume", "ioCfg": {"readIOPS": 10}},
            {"name": "data", "type": "podvolume", "ioCfg": {"readIOPS": 20}}]);
        pods(&rig, Some(blocks));
        round(&mut rig);
        assert_eq!(limit(&rig, "8:0"), "0", "its claim was not looked up yet");
        assert_eq!(wrong(&rig, "blkio Pod default/ls"), []);
        claims(&rig, &[("c", Some("pv-7"))]);
        round(&mut rig);
        assert_eq!(limit(&rig, "8:0"), "10");
        assert_eq!(limit(&rig, "253:16"), "20", "the disk of the volume group");
        assert_eq!(limit(&rig, "9:9"), "0");
        // Removing the annotation resets its values.
        pods(&rig, None);
        rig.pass();
        assert_eq!(
            (limit(&rig, "8:0"), limit(&rig, "253:16")),
            ("0".into(), "0".into())
        );
        round(&mut rig);
        rig.tree.root().write_target(&foreign, "7").unwrap();
        round(&mut rig);
        assert_eq!(limit(&rig, "9:9"), "7", "and then it is left alone again");
        assert_eq!(refused(&rig), 0);
    }
}

#[test]
fn the_root_has_latency_targets_and_a_cost_model() {
    for mut rig in both() {
        let root = CgroupPath::root();
        for file in [BlkioCostQos, BlkioCostModel] {
            rig.tree.feed(&root, file, "").unwrap();
        }
        let kernel_value = "8:0 enable=1 ctrl=user rpct=90.00 rlat=7";
        rig.tree.feed(&root, BlkioCostQos, kernel_value).unwrap();
        class(&rig, "cgroupRoot", false, json!([]));
        round(&mut rig);
        assert_eq!(rig.tree.raw(&root, BlkioCostQos).unwrap(), kernel_value);
        let blocks = json!([{"name": "/dev/vdb", "type": "device", "ioCfg": {
            "readLatency": 1000, "enableUserModel": true, "modelReadBPS": 5, "modelWriteBPS": 6,
            "modelReadSeqIOPS": 7, "modelWriteSeqIOPS": 8, "modelReadRandIOPS": 9,
            "modelWriteRandIOPS": 10}}]);
        class(&rig, "cgroupRoot", true, blocks.clone());
        round(&mut rig);
        assert_eq!(
            value(&rig, &root, BlkioCostQos, "253:16"),
            "enable=1 ctrl=user rpct=95 rlat=1000 wpct=95 wlat=3000"
        );
        assert_eq!(
            value(&rig, &root, BlkioCostModel, "253:16"),
            "ctrl=user rbps=5 rseqiops=7 rrandiops=9 wbps=6 wseqiops=8 wrandiops=10"
        );
        // The kernel's format.
        let shown = "253:16 enable=1 ctrl=user rpct=95.00 rlat=1000 wpct=95.00 wlat=3000 min=50.00";
        rig.tree.feed(&root, BlkioCostQos, shown).unwrap();
        drop(rig.tree.writes());
        round(&mut rig);
        assert!(rig.tree.writes().is_empty(), "what is there is not written");
        class(&rig, "cgroupRoot", false, blocks);
        rig.pass();
        assert_eq!(value(&rig, &root, BlkioCostQos, "253:16"), "enable=0");
    }
}

#[test]
fn blocks_that_cannot_be_used_are_named_and_take_nothing_away() {
    let mut rig = rig(Tree::hybrid("0-3").unwrap());
    let block = |name: &str, kind: &str, value: i64| json!({"name": name, "type": kind, "ioCfg": {"readIOPS": value}});
    let be = |rig: &Rig, device| value(rig, &rig.class, BlkioReadIops, device);
    let sda = "/dev/sda";
    class(
        &rig,
        "beClass",
        true,
        json!([block(sda, "device", 5), block("/dev/vdb", "device", 6)]),
    );
    round(&mut rig);
    assert_eq!(
        (be(&rig, "8:0"), be(&rig, "253:16")),
        ("5".into(), "6".into())
    );
    // A missing device and an invalid name: the other blocks are applied, nothing is reset.
    class(
        &rig,
        "beClass",
        true,
        json!([
            block(sda, "device", 7),
            block("/dev/sdz", "device", 1),
            block("x", "tape", 1)
        ]),
    );
    round(&mut rig);
    assert_eq!(
        (be(&rig, "8:0"), be(&rig, "253:16")),
        ("7".into(), "6".into())
    );
    let reported: Vec<String> = wrong(&rig, "blkio beClass")
        .into_iter()
        .map(|bad| format!("{} {}: {}", bad.field, bad.value, bad.error))
        .collect();
    assert_eq!(
        reported,
        [
            "beClass.blkioQOS.blocks /dev/sdz: block \"/dev/sdz\": no disk of this node is known for it",
            "beClass.blkioQOS.blocks x: block \"x\": type \"tape\" is not known",
        ]
    );
    // A negative amount: the last good one of this block stays.
    class(&rig, "beClass", true, json!([block(sda, "device", 7)]));
    round(&mut rig);
    assert_eq!(wrong(&rig, "blkio beClass"), [], "all is well again");
    assert_eq!(be(&rig, "253:16"), "0");
    let spec = |blocks: Value| json!({"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": true, "blocks": blocks}}}});
    let read = |rig: &Rig, blocks: Value| {
        let last = rig.states.slo.load_full();
        let (slo, malformed) = Slo::read(&spec(blocks), Some(&last));
        rig.states.slo.store(Arc::new(slo));
        malformed
    };
    let malformed = read(&rig, json!([block(sda, "device", -3)]));
    assert_eq!(
        malformed,
        [Malformed::new(
            "resourceQOSStrategy.beClass.blkioQOS.blocks[0].ioCfg.readIOPS",
            "-3",
            "must be at least 0"
        )]
    );
    round(&mut rig);
    assert_eq!(be(&rig, "8:0"), "7");
    let malformed = read(&rig, json!([block("/dev/vdb", "device", -3)]));
    assert_eq!(malformed.len(), 1);
    round(&mut rig);
    assert_eq!(
        be(&rig, "253:16"),
        "0",
        "not what was meant for another device"
    );
    // Classes that have no block I/O.
    class(&rig, "lsClass", true, json!([block(sda, "device", 5)]));
    round(&mut rig);
    assert_eq!(
        wrong(&rig, "blkio lsClass")[0].field,
        "lsClass.blkioQOS.blocks"
    );
    assert_eq!(refused(&rig), 0);
}

#[test]
fn annotations_that_cannot_be_used_are_named() {
    let mut rig = rig(Tree::hybrid("0-3").unwrap());
    let limit = |rig: &Rig| value(rig, &rig.service, BlkioReadIops, "8:0");
    let volume = |name: &str, value: i64| json!([{"name": name, "type": "podvolume", "ioCfg": {"readIOPS": value}}]);
    pods(&rig, Some(volume("scratch", 5)));
    round(&mut rig);
    assert_eq!(limit(&rig), "5");
    pods(&rig, Some(volume("scratch", -5)));
    round(&mut rig);
    let malformed = &wrong(&rig, "Pod default/ls")[0];
    assert_eq!(malformed.field, "koordinator.sh/blkioQOS");
    assert_eq!(
        malformed.error,
        "blocks[0].ioCfg.readIOPS must be at least 0, got -5"
    );
    assert_eq!(limit(&rig), "5", "the last good one stays");
    claims(&rig, &[("c", None), ("ls-own", Some("pv-8"))]);
    for (name, why) in [
        ("data", "claim \"c\" is not bound"),
        ("own", "it is not mounted"),
        ("empty", "the pod has no such volume"),
        ("nowhere", "the pod has no such volume"),
    ] {
        pods(&rig, Some(volume(name, 6)));
        round(&mut rig);
        let malformed = wrong(&rig, "blkio Pod default/ls");
        assert!(malformed[0].error.contains(why), "{name}: {malformed:?}");
        assert_eq!(limit(&rig), "5", "{name}");
    }
    // Removing the pod removes its malformed inputs.
    rig.pods(vec![batch_pod()]);
    rig.pass();
    assert_eq!(wrong(&rig, "blkio Pod default/ls"), []);
}

#[test]
fn a_clean_stop_brings_the_old_limits_back() {
    for mut rig in both() {
        let root = CgroupPath::root();
        rig.tree.feed(&root, BlkioCostQos, "").unwrap();
        let cfg = json!({"readIOPS": 5, "readLatency": 9});
        let blocks = json!([{"name": "/dev/sda", "type": "device", "ioCfg": cfg}]);
        rig.slo(json!({"resourceQOSStrategy": {
            "beClass": {"blkioQOS": {"enable": true, "blocks": blocks}},
            "cgroupRoot": {"blkioQOS": {"enable": true, "blocks": blocks}}}}));
        round(&mut rig);
        assert_eq!(value(&rig, &rig.class, BlkioReadIops, "8:0"), "5");
        assert!(value(&rig, &root, BlkioCostQos, "8:0").contains("rlat=9"));
        let now = rig.now();
        assert!(rig.agent.restore(now) > 0);
        assert_eq!(value(&rig, &rig.class, BlkioReadIops, "8:0"), "0");
        assert_eq!(value(&rig, &root, BlkioCostQos, "8:0"), "enable=0");
        assert_eq!(refused(&rig), 0);
    }
}
