//! Shares of cache and bandwidth on a resctrl that refuses the same writes as the kernel.

use super::*;
use koord_host::fake::ResctrlHardware;
use koord_host::resctrl::{self, ResctrlGroup, Schema};

fn rig(hardware: &ResctrlHardware, vendor: &str) -> Rig {
    let mut settings = Settings::default();
    settings.gates.set(Gate::RdtResctrl, true);
    settings.gates.set(Gate::Resctrl, true);
    rig_with(hardware, vendor, settings)
}

fn rig_with(hardware: &ResctrlHardware, vendor: &str, settings: Settings) -> Rig {
    let tree = Tree::hybrid("0-3").unwrap();
    tree.mount_resctrl(hardware.clone()).unwrap();
    let cpuinfo = format!("processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu cat_l3 mba\n");
    tree.put("proc/cpuinfo", &cpuinfo).unwrap();
    let rig = Rig::on(tree, settings);
    let class = |end: i64, bandwidth: i64| {
        json!({"enable": true, "resctrlQOS": {"enable": true, "catRangeStartPercent": 0,
            "catRangeEndPercent": end, "mbaPercent": bandwidth}})
    };
    rig.slo(json!({"resourceQOSStrategy": {"beClass": class(30, 35), "lsClass": class(100, 100)}}));
    rig
}

/// Adds threads to a group; the first one ends before it can be moved.
fn threads(rig: &Rig, group: &CgroupPath, ids: [u32; 3]) {
    let container = group.join("c1").unwrap();
    let text = ids.map(|id| format!("{id}\n")).concat();
    rig.tree.feed(&container, Resource::Tasks, &text).unwrap();
    for id in &ids[1..] {
        rig.tree.put(&format!("proc/{id}/stat"), "").unwrap();
    }
}

fn shares(rig: &Rig, name: &str, schema: Schema) -> Option<String> {
    let group: ResctrlGroup = name.parse().unwrap();
    let all = resctrl::schemata(rig.tree.root(), &group).unwrap()?;
    Some(schema.format(all.get(&schema)?))
}

fn tasks(rig: &Rig, name: &str) -> Option<Vec<u32>> {
    let group: ResctrlGroup = name.parse().unwrap();
    resctrl::tasks(rig.tree.root(), &group).unwrap()
}

/// Returns the refused writes, except those for ended threads.
fn refused(rig: &Rig) -> Vec<String> {
    let writes = rig.tree.writes().into_iter();
    let ended = [70, 80].map(|id: u32| id.to_string());
    writes
        .filter(|write| write.refused.is_some() && !ended.contains(&write.value))
        .map(|write| format!("{}={}", write.file, write.value))
        .collect()
}

#[test]
fn classes_have_their_shares_on_every_vendor() {
    use Schema::{L3, L3Code, L3Data, Mb};
    let cdp = ResctrlHardware {
        cdp: true,
        ..ResctrlHardware::intel()
    };
    // 30 % of 11, 16 and 12 ways, rounded up; 35 % of the bandwidth, in the hardware's steps.
    for (vendor, hardware, expected) in [
        (
            "GenuineIntel",
            ResctrlHardware::intel(),
            &[(L3, "0=f;1=f"), (Mb, "0=40;1=40")][..],
        ),
        (
            "AuthenticAMD",
            ResctrlHardware::amd(),
            &[(L3, "0=1f;1=1f;8=1f;9=1f"), (Mb, "0=56;1=56;8=56;9=56")],
        ),
        ("0x41", ResctrlHardware::mpam(), &[(L3, "5=f")]),
        (
            "GenuineIntel",
            cdp,
            &[(L3Code, "0=f;1=f"), (L3Data, "0=f;1=f"), (Mb, "0=40;1=40")],
        ),
    ] {
        let mut rig = rig(&hardware, vendor);
        threads(&rig, &rig.batch, [70, 71, 72]);
        threads(&rig, &rig.service, [80, 81, 82]);
        for _ in 0..12 {
            rig.step(BUSY);
        }
        assert_eq!(refused(&rig), Vec::<String>::new(), "{vendor}");
        for (schema, domains) in expected {
            let current = shares(&rig, "BE", *schema);
            assert_eq!(current.as_deref(), Some(*domains), "{vendor} {schema:?}");
        }
        assert_eq!(tasks(&rig, "BE").unwrap(), [71, 72], "{vendor}");
        assert_eq!(tasks(&rig, "LS").unwrap(), [81, 82], "{vendor}");
        // Foreign values are overwritten.
        let root = rig.tree.root();
        let target = koord_host::Target::Resctrl {
            group: "BE".parse().unwrap(),
            file: koord_host::ResctrlFile::Schemata(expected[0].0),
        };
        let domain = hardware.domains[0];
        root.write_target(&target, &format!("{domain}=3")).unwrap();
        for _ in 0..70 {
            rig.step(BUSY);
        }
        let current = shares(&rig, "BE", expected[0].0);
        assert_eq!(current.as_deref(), Some(expected[0].1), "{vendor}");
    }
}

#[test]
fn too_few_groups_are_survived() {
    let mut rig = rig(
        &ResctrlHardware {
            closids: 3,
            ..ResctrlHardware::intel()
        },
        "GenuineIntel",
    );
    threads(&rig, &rig.batch, [70, 71, 72]);
    for _ in 0..5 {
        rig.step(BUSY);
    }
    let groups = resctrl::groups(rig.tree.root()).unwrap();
    assert_eq!(groups.len(), 2, "what there is room for");
    assert!(
        refused(&rig)
            .iter()
            .all(|write| !write.contains("schemata"))
    );
}

/// Sets a target of the pressure guard. Its own row is disabled here, so the target stays.
fn order(rig: &mut Rig, bandwidth: Option<i64>) {
    rig.agent.strategies.order(crate::qos::guard::LeverTargets {
        bandwidth,
        why: "a/b suffers".to_owned(),
        ..Default::default()
    });
}

fn without_guard(hardware: &ResctrlHardware, vendor: &str) -> Rig {
    let mut settings = Settings::default();
    settings.gates.set(Gate::BECPUSuppress, false);
    settings.gates.set(Gate::RdtResctrl, true);
    rig_with(hardware, vendor, settings)
}

#[test]
fn the_guards_order_narrows_bandwidth_at_once_and_is_taken_back() {
    for (vendor, hardware, [configured, narrowed]) in [
        (
            "GenuineIntel",
            ResctrlHardware::intel(),
            ["0=40;1=40", "0=20;1=20"],
        ),
        // 20 % of 160, in 1/8 GB/s.
        (
            "AuthenticAMD",
            ResctrlHardware::amd(),
            ["0=56;1=56;8=56;9=56", "0=32;1=32;8=32;9=32"],
        ),
    ] {
        let mut rig = without_guard(&hardware, vendor);
        rig.step(BUSY);
        let bandwidth = |rig: &Rig| shares(rig, "BE", Schema::Mb).unwrap();
        let services = shares(&rig, "LS", Schema::Mb);
        let cache = shares(&rig, "BE", Schema::L3);
        assert_eq!(bandwidth(&rig), configured);
        order(&mut rig, Some(20));
        rig.step(BUSY);
        assert_eq!(bandwidth(&rig), narrowed, "{vendor}: at the next tick");
        let entries = rig.agent.audit().entries();
        assert!(
            entries
                .iter()
                .any(|e| e.message.contains("a/b suffers; 20 %")),
            "{entries:#?}"
        );
        // It stays, also when every file is checked again.
        for _ in 0..15 {
            rig.step(BUSY);
            assert_eq!(bandwidth(&rig), narrowed, "{vendor}");
        }
        // It never exceeds the configured value.
        order(&mut rig, Some(90));
        rig.step(BUSY);
        assert_eq!(bandwidth(&rig), configured, "{vendor}");
        order(&mut rig, Some(20));
        rig.step(BUSY);
        order(&mut rig, None);
        rig.step(BUSY);
        assert_eq!(bandwidth(&rig), configured, "{vendor}: let go");
        assert_eq!(shares(&rig, "LS", Schema::Mb), services, "{vendor}");
        assert_eq!(shares(&rig, "BE", Schema::L3), cache, "{vendor}");
        assert_eq!(refused(&rig), Vec::<String>::new(), "{vendor}");
    }
}

/// A limit on a group without threads would have no effect.
#[test]
fn batch_threads_are_moved_when_the_guard_limits_the_group() {
    let mut rig = without_guard(&ResctrlHardware::intel(), "GenuineIntel");
    threads(&rig, &rig.batch, [70, 71, 72]);
    threads(&rig, &rig.service, [80, 81, 82]);
    let off = json!({"enable": true, "resctrlQOS": {"enable": false}});
    rig.slo(json!({"resourceQOSStrategy": {"beClass": off, "lsClass": off}}));
    rig.step(BUSY);
    let inside = |rig: &Rig, name| tasks(rig, name).unwrap_or_default();
    assert_eq!(inside(&rig, "BE"), [0_u32; 0]);
    order(&mut rig, Some(30));
    rig.step(BUSY);
    assert_eq!(inside(&rig, "BE"), [71, 72]);
    assert_eq!(inside(&rig, "LS"), [0_u32; 0]);
    assert_eq!(shares(&rig, "BE", Schema::Mb).unwrap(), "0=30;1=30");
    order(&mut rig, None);
    rig.step(BUSY);
    assert_eq!(shares(&rig, "BE", Schema::Mb).unwrap(), "0=100;1=100");
    assert_eq!(refused(&rig), Vec::<String>::new());
}

#[test]
fn the_guard_has_the_lever_where_resctrl_divides_bandwidth() {
    let lacks = |rig: &mut Rig| {
        rig.suppress("pressure");
        for _ in 0..3 {
            rig.step(BUSY);
        }
        let guard = rig.agent.guard.clone().unwrap();
        let levers = guard.levers.contains(&"memory bandwidth".to_owned());
        let lack = guard.absent.into_iter();
        let mut lack = lack.filter(|lack| lack.mechanism == "memory bandwidth");
        let why = lack.next().map(|lack| lack.consequence);
        assert_eq!(levers, why.is_none());
        why
    };
    assert_eq!(
        lacks(&mut rig(&ResctrlHardware::intel(), "GenuineIntel")),
        None
    );
    let undivided = ResctrlHardware {
        bandwidth: None,
        ..ResctrlHardware::intel()
    };
    let undivided = lacks(&mut rig(&undivided, "GenuineIntel")).unwrap();
    assert_eq!(undivided, "this CPU does not divide memory bandwidth");
    let mut closed = Settings::default();
    closed.gates.set(Gate::RdtResctrl, false);
    let closed = lacks(&mut Rig::with(closed));
    assert_eq!(closed.unwrap(), "gate RdtResctrl is closed");
    let missing = lacks(&mut Rig::new()).unwrap();
    assert!(missing.starts_with("resctrl is not mounted"), "{missing}");
}
