use super::*;
use crate::fake::{ResctrlHardware, Tree};
use crate::target::{ResctrlFile, Target};
use libc::{EEXIST, EINVAL, ENOSPC, EPERM, ESRCH};
use proptest::prelude::*;

fn tree(hardware: ResctrlHardware) -> Tree {
    let tree = Tree::hybrid("0-3").unwrap();
    tree.mount_resctrl(hardware).unwrap();
    tree
}

fn target(name: &str, file: ResctrlFile) -> Target {
    let group = match name {
        "" => ResctrlGroup::root(),
        name => name.parse().unwrap(),
    };
    Target::Resctrl { group, file }
}

fn directory(name: &str) -> Target {
    target(name, ResctrlFile::Directory)
}

fn schema(name: &str, schema: Schema) -> Target {
    target(name, ResctrlFile::Schemata(schema))
}

#[test]
fn what_each_vendor_can_do() {
    let none = Tree::hybrid("0-3").unwrap();
    assert_eq!(info(none.root()).unwrap(), None);
    assert!(!is_mounted(none.root()) && groups(none.root()).unwrap().is_empty());

    let intel = info(tree(ResctrlHardware::intel()).root())
        .unwrap()
        .unwrap();
    let cache = intel.caches[&Schema::L3];
    assert_eq!(
        (cache.mask, cache.min_bits, cache.sparse),
        (0x7ff, 1, false)
    );
    assert_eq!(intel.bandwidth.map(|b| (b.min, b.step)), Some((10, 10)));
    assert_eq!(intel.closids(), 8);
    assert!(intel.monitor.unwrap().features.contains("llc_occupancy"));

    let amd = info(tree(ResctrlHardware::amd()).root()).unwrap().unwrap();
    assert_eq!(
        amd.domains[&Schema::L3],
        [0, 1, 8, 9],
        "ids are not 0, 1, 2, ..."
    );
    assert_eq!(amd.bandwidth.map(|b| (b.min, b.step)), Some((1, 1)));

    let mpam = info(tree(ResctrlHardware::mpam()).root()).unwrap().unwrap();
    assert_eq!(
        (mpam.domains[&Schema::Mb].as_slice(), mpam.monitor),
        (&[5][..], None)
    );

    let cdp = ResctrlHardware {
        cdp: true,
        bandwidth: None,
        ..ResctrlHardware::intel()
    };
    let cdp = info(tree(cdp).root()).unwrap().unwrap();
    assert_eq!((cdp.bandwidth, cdp.closids()), (None, 4));
    assert!(cdp.caches.keys().eq(&[Schema::L3Code, Schema::L3Data]));
}

#[test]
fn schemata_of_all_vendors() {
    for (text, l3, mb) in [
        ("    MB:0= 100;1=  20\n    L3:0=7ff;1=00f\n", 0x00f, 20),
        (
            "L3:0=ffff;1=ff\nMB:0=2048;1=2048\nSMBA:0=2048;1=2048\n",
            0xff,
            2048,
        ),
        ("  MB:1=95\n  L3:1=fff\nL3PRI:1=3\n", 0xfff, 95),
    ] {
        let all = parse_schemata(text).unwrap();
        assert_eq!(all.len(), 2, "{text}");
        assert_eq!(
            (all[&Schema::L3][&1], all[&Schema::Mb][&1]),
            (l3, mb),
            "{text}"
        );
    }
    for bad in [
        "L3:",
        "L3:0",
        "MB:0=ff",
        "L3:0=;1=f",
        "L3:0=f;0=f",
        "L3:a=f",
    ] {
        assert!(parse_schemata(bad).is_err(), "{bad}");
    }
    let domains = Schema::L3.parse("8=00ff;0=F").unwrap();
    assert_eq!(Schema::L3.format(&domains), "0=f;8=ff");
}

#[test]
fn groups_live_and_end() {
    let tree = tree(ResctrlHardware::intel());
    let root = tree.root();
    for name in ["BE", "LS"] {
        assert!(root.write_target(&directory(name), "1").unwrap().changed);
        assert!(!root.write_target(&directory(name), "1").unwrap().changed);
    }
    let names: Vec<_> = groups(root).unwrap();
    assert_eq!(names, ["BE".parse().unwrap(), "LS".parse().unwrap()]);
    root.write_target(&schema("BE", Schema::L3), "0=f;1=7f")
        .unwrap();
    root.write_target(&schema("BE", Schema::Mb), "1=35")
        .unwrap();
    let be = schemata(root, &names[0]).unwrap().unwrap();
    assert_eq!(be[&Schema::L3], [(0, 0xf), (1, 0x7f)].into());
    assert_eq!(be[&Schema::Mb], [(0, 100), (1, 40)].into(), "rounded up");

    tree.put("proc/71/stat", "").unwrap();
    let tasks_of = |name: &str| target(name, ResctrlFile::Tasks);
    root.write_target(&tasks_of("BE"), "71").unwrap();
    assert_eq!(tasks(root, &names[0]).unwrap().unwrap(), [71]);
    root.write_target(&tasks_of("LS"), "71").unwrap();
    assert_eq!(
        tasks(root, &names[0]).unwrap().unwrap(),
        [] as [u32; 0],
        "in one group only"
    );
    let error = root.write_target(&tasks_of("LS"), "72").unwrap_err();
    assert_eq!((error.os_error(), error.is_gone()), (Some(ESRCH), true));
    assert_eq!(last_refusal(root).unwrap(), "No task 72");

    root.write_target(&directory("LS"), "0").unwrap();
    assert_eq!(tasks(root, &names[1]).unwrap(), None);
    assert_eq!(tasks(root, &ResctrlGroup::root()).unwrap().unwrap(), [71]);
    assert!(root.write_target(&directory(""), "0").is_err());
    for i in 0..6 {
        root.write_target(&directory(&format!("g{i}")), "1")
            .unwrap();
    }
    let full = root.write_target(&directory("g6"), "1").unwrap_err();
    assert_eq!(full.os_error(), Some(ENOSPC));
    assert_eq!(last_refusal(root).unwrap(), "Out of CLOSIDs");
}

#[test]
fn the_fake_refuses_what_the_kernel_refuses() {
    let sparse = ResctrlHardware {
        min_bits: 2,
        ..ResctrlHardware::amd()
    };
    let two = ResctrlHardware {
        min_bits: 2,
        ..ResctrlHardware::intel()
    };
    let check = |hardware: &ResctrlHardware, line: &str| {
        let tree = tree(hardware.clone());
        let file = tree.root().sys("fs/resctrl/schemata");
        let before = std::fs::read_to_string(&file).unwrap();
        let outcome = tree.root().write(&file, line);
        if let Err(error) = &outcome {
            assert_eq!(error.os_error(), Some(EINVAL), "{line:?}");
            let after = std::fs::read_to_string(&file).unwrap();
            assert_eq!(before, after, "{line:?}: all or nothing");
        }
        outcome.map_err(|_| last_refusal(tree.root()).unwrap_or_default())
    };
    for (line, refusal) in [
        ("L3:0=3\n", Ok(())),
        ("MB:0=10;1=100\nL3:1=600\n", Ok(())),
        ("L3:0=3", Err("")),
        ("L3 0=3\n", Err("Missing ':'")),
        ("L3:\n", Err("Missing 'L3' value")),
        ("L2:0=3\n", Err("Unknown or unsupported resource name 'L2'")),
        ("L3:0\n", Err("Missing '=' or non-numeric domain")),
        ("L3:7=3\n", Err("")),
        ("L3:0=3;0=3\n", Err("Duplicate domain 0")),
        ("L3:0=zz\n", Err("Non-hex character in the mask zz")),
        ("L3:0=0\n", Err("Mask out of range")),
        ("L3:0=fff\n", Err("Mask out of range")),
        ("L3:0=5\n", Err("The mask 5 has non-consecutive 1-bits")),
        ("L3:0=1\n", Err("Need at least 2 bits in the mask")),
        ("L3:1=3\nMB:0=5\n", Err("MB value 5 out of range [10,100]")),
        ("MB:0=101\n", Err("MB value 101 out of range [10,100]")),
        ("MB:0=x\n", Err("Invalid MB value x")),
    ] {
        assert_eq!(
            check(&two, line),
            refusal.map_err(str::to_owned),
            "{line:?}"
        );
    }
    assert_eq!(check(&sparse, "L3:8=f0f\n"), Ok(()));
    assert_eq!(check(&sparse, "MB:9=2048\n"), Ok(()));

    let tree = tree(two);
    let make = |name: &str| {
        let path = tree.root().sys("fs/resctrl").join(name);
        tree.writer()
            .make_dir(&path)
            .map_err(|e| e.raw_os_error().unwrap())
    };
    assert_eq!(make("BE"), Ok(()));
    assert_eq!(make("BE"), Err(EEXIST));
    assert_eq!(make("BE/below"), Err(EPERM));
    let info = tree.root().sys("fs/resctrl/info");
    assert_eq!(
        tree.writer().remove_dir(&info).unwrap_err().raw_os_error(),
        Some(EPERM)
    );
}

#[test]
fn a_mounted_resctrl_tells_more_than_flags() {
    let intel = "vendor_id\t: GenuineIntel\nflags\t\t: fpu";
    let arm = "CPU implementer\t: 0x41\nFeatures\t: fp asimd";
    let alone = |allocates| (allocates, allocates != (false, false));
    // Processor, mount point; what can be partitioned, and whether to mount it.
    for (cpuinfo, place, want) in [
        (format!("{intel} cat_l3 mba"), true, alone((true, true))),
        (format!("{intel} cat_l3"), true, alone((true, false))),
        (format!("{intel} mba"), true, alone((false, true))),
        (format!("{intel} cqm_llc"), true, alone((false, false))),
        (format!("{intel} cat_l3 mba"), false, alone((false, false))),
        (arm.to_owned(), true, ((false, false), true)),
        (arm.to_owned(), false, ((false, false), false)),
    ] {
        let tree = Tree::hybrid("0-3").unwrap();
        tree.put("proc/cpuinfo", &cpuinfo).unwrap();
        if place {
            std::fs::create_dir_all(tree.root().sys("fs/resctrl")).unwrap();
        }
        let root = tree.root();
        let got = (allocates(root).unwrap(), is_mountable(root).unwrap());
        assert_eq!(got, want, "{cpuinfo} {place}");
    }
    let cdp = ResctrlHardware {
        cdp: true,
        bandwidth: None,
        ..ResctrlHardware::intel()
    };
    for (hardware, want) in [
        (ResctrlHardware::mpam(), (true, true)),
        (cdp, (true, false)),
    ] {
        let tree = tree(hardware);
        tree.put("proc/cpuinfo", arm).unwrap();
        assert_eq!(allocates(tree.root()).unwrap(), want);
        assert!(!is_mountable(tree.root()).unwrap());
    }
}

#[test]
fn usage_is_read_by_domain() {
    let tree = tree(ResctrlHardware::intel());
    let root = tree.root();
    root.write_target(&directory("BE"), "1").unwrap();
    let data = "sys/fs/resctrl/BE/mon_data/mon_L3_01";
    tree.put(&format!("{data}/llc_occupancy"), "4096\n")
        .unwrap();
    tree.put(&format!("{data}/mbm_total_bytes"), "Unavailable\n")
        .unwrap();
    let usages = usage(root, &"BE".parse().unwrap()).unwrap();
    assert_eq!((usages.len(), usages[1].domain), (2, 1));
    assert_eq!(
        (usages[1].llc_occupancy, usages[1].mbm_total),
        (Some(4096), None)
    );
    assert_eq!(usages[0].mbm_local, Some(0));
    tree.put(&format!("{data}/llc_occupancy"), "many\n")
        .unwrap();
    let error = usage(root, &"BE".parse().unwrap()).unwrap_err().to_string();
    assert!(
        error.contains("llc_occupancy") && error.contains("many"),
        "{error}"
    );
    assert!(usage(root, &"LS".parse().unwrap()).unwrap().is_empty());
}

#[test]
fn this_machine() {
    let root = crate::Root::system().unwrap();
    if !is_mounted(&root) {
        crate::testing::skip("resctrl", "resctrl is not mounted");
        return;
    }
    let info = info(&root).unwrap().unwrap();
    assert!(info.closids() > 0);
    schemata(&root, &ResctrlGroup::root()).unwrap().unwrap();
}

proptest! {
    #[test]
    fn any_content_is_handled(text in ".*") {
        let _ = parse_schemata(&text);
        let _ = text.parse::<ResctrlGroup>();
        for schema in Schema::ALL {
            if let Ok(domains) = schema.parse(&text) {
                prop_assert_eq!(schema.parse(&schema.format(&domains)).ok(), Some(domains));
            }
        }
    }

    #[test]
    fn masks_round_trip(domains in proptest::collection::btree_map(0_u32..300, 1_u64.., 1..9)) {
        for schema in [Schema::L3, Schema::Mb] {
            prop_assert_eq!(&schema.parse(&schema.format(&domains)).unwrap(), &domains);
        }
    }
}
