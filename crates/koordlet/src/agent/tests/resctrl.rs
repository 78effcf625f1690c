//! Shares of cache and bandwidth on a resctrl that refuses what the kernel refuses.

use super::*;
use koord_host::fake::ResctrlHardware;
use koord_host::resctrl::{self, ResctrlGroup, Schema};

fn rig(hardware: &ResctrlHardware, vendor: &str) -> Rig {
    let tree = Tree::hybrid("0-3").unwrap();
    tree.mount_resctrl(hardware.clone()).unwrap();
    let cpuinfo = format!("processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu cat_l3 mba\n");
    tree.put("proc/cpuinfo", &cpuinfo).unwrap();
    let mut settings = Settings::default();
    settings.gates.set(Gate::RdtResctrl, true);
    settings.gates.set(Gate::Resctrl, true);
    let rig = Rig::on(tree, settings);
    let class = |end: i64, bandwidth: i64| {
        json!({"enable": true, "resctrlQOS": {"enable": true, "catRangeStartPercent": 0,
            "catRangeEndPercent": end, "mbaPercent": bandwidth}})
    };
    rig.slo(json!({"resourceQOSStrategy": {"beClass": class(30, 35), "lsClass": class(100, 100)}}));
    rig
}

/// Threads that run in a group; the first one ends before anybody can move it.
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

/// What was refused, but for the threads that are gone.
fn refused(rig: &Rig) -> Vec<String> {
    let writes = rig.tree.writes().into_iter();
    let gone = [70, 80].map(|id: u32| id.to_string());
    writes
        .filter(|write| write.refused.is_some() && !gone.contains(&write.value))
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
            let found = shares(&rig, "BE", *schema);
            assert_eq!(found.as_deref(), Some(*domains), "{vendor} {schema:?}");
        }
        assert_eq!(tasks(&rig, "BE").unwrap(), [71, 72], "{vendor}");
        assert_eq!(tasks(&rig, "LS").unwrap(), [81, 82], "{vendor}");
        // Somebody else's values do not last.
        let root = rig.tree.root();
        let whole = koord_host::Target::Resctrl {
            group: "BE".parse().unwrap(),
            file: koord_host::ResctrlFile::Schemata(expected[0].0),
        };
        let domain = hardware.domains[0];
        root.write_target(&whole, &format!("{domain}=3")).unwrap();
        for _ in 0..70 {
            rig.step(BUSY);
        }
        let found = shares(&rig, "BE", expected[0].0);
        assert_eq!(found.as_deref(), Some(expected[0].1), "{vendor}");
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
