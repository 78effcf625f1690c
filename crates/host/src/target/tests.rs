use super::*;
use crate::fake::Tree;

fn sys_file(tree: &Tree, path: &str) -> String {
    std::fs::read_to_string(tree.dir().join(path))
        .unwrap()
        .trim()
        .to_owned()
}

#[test]
fn knobs_have_a_range_and_a_place() {
    let tree = Tree::hybrid("0-1").unwrap();
    tree.put("proc/sys/vm/min_free_kbytes", "5000\n").unwrap();
    tree.put("sys/kernel/mm/pagecache_limit/enabled", "0\n")
        .unwrap();
    let target = Target::Sysctl(Sysctl::MinFreeKbytes);
    let written = tree.root().write_target(&target, "20480").unwrap();
    assert_eq!((written.old.as_str(), written.changed), ("5000", true));
    assert_eq!(sys_file(&tree, "proc/sys/vm/min_free_kbytes"), "20480");
    assert!(!tree.root().write_target(&target, "20480").unwrap().changed);
    let error = tree.root().write_target(&target, "10239").unwrap_err();
    assert_eq!(
        error.to_string(),
        "vm.min_free_kbytes: invalid value \"10239\": 10240 to 10485760 KiB"
    );
    // A value that the machine had before may be outside of that range.
    tree.root().restore_target(&target, "5000").unwrap();
    assert_eq!(tree.root().read_target(&target).unwrap().unwrap(), "5000");

    let target = Target::Sysctl(Sysctl::PagecacheLimitEnabled);
    assert!(tree.root().write_target(&target, "1").unwrap().changed);
    assert_eq!(
        sys_file(&tree, "sys/kernel/mm/pagecache_limit/enabled"),
        "1"
    );
    let absent = Target::Sysctl(Sysctl::SchedCore);
    assert!(
        tree.root()
            .write_target(&absent, "1")
            .unwrap_err()
            .is_gone()
    );
    assert_eq!(tree.root().read_target(&absent).unwrap(), None);
    for sysctl in Sysctl::ALL {
        let (min, max) = sysctl.range();
        let target = Target::Sysctl(sysctl);
        assert!(target.validate(&min.to_string()).is_ok());
        assert!(target.validate(&max.to_string()).is_ok());
        assert!(target.validate(&(min - 1).to_string()).is_err(), "{target}");
    }
}

#[test]
fn scheduler_features_are_words_in_a_file() {
    for place in [
        "sys/kernel/debug/sched_features",
        "sys/kernel/debug/sched/features",
    ] {
        let tree = Tree::hybrid("0-1").unwrap();
        tree.put(place, "PLACE_LAG NO_RT_PUSH_IPI\n").unwrap();
        let feature = |name: &str| Target::SchedFeature(name.parse().unwrap());
        let root = tree.root();
        assert_eq!(
            root.read_target(&feature("PLACE_LAG")).unwrap().unwrap(),
            "1"
        );
        assert!(
            !root
                .write_target(&feature("PLACE_LAG"), "1")
                .unwrap()
                .changed
        );
        assert!(
            root.write_target(&feature("RT_PUSH_IPI"), "1")
                .unwrap()
                .changed
        );
        assert!(sys_file(&tree, place).ends_with("RT_PUSH_IPI"));
        let error = root.write_target(&feature("NEVER_HEARD"), "1").unwrap_err();
        assert!(error.is_unsupported(), "{error}");
    }
    for bad in ["", "NO_PLACE_LAG", "place_lag", "A B"] {
        assert!(bad.parse::<SchedFeature>().is_err(), "{bad}");
    }
}

#[test]
fn one_device_has_one_line() {
    use Resource::{BlkioCostWeight, BlkioReadBps, BlkioWriteIops};
    let tree = Tree::hybrid("0-1").unwrap();
    let group = tree.group("kubepods/podx").unwrap();
    let line = |resource, key: &str| Target::CgroupLine {
        group: group.clone(),
        resource,
        key: key.parse().unwrap(),
    };
    let root = tree.root();
    let (sda, sdb) = (line(BlkioReadBps, "8:0"), line(BlkioReadBps, "8:16"));
    assert!(
        !root.write_target(&sda, "0").unwrap().changed,
        "no line is no limit"
    );
    root.write_target(&sda, "1048576").unwrap();
    root.write_target(&sdb, "5").unwrap();
    assert_eq!(
        tree.raw(&group, BlkioReadBps).unwrap(),
        "8:0 1048576\n8:16 5"
    );
    assert_eq!(root.read_target(&sda).unwrap().unwrap(), "1048576");
    assert!(!root.write_target(&sda, "1048576").unwrap().changed);
    root.write_target(&sda, "0").unwrap();
    assert_eq!(tree.raw(&group, BlkioReadBps).unwrap(), "8:16 5");
    assert!(root.write_target(&sda, "-1").is_err());
    assert!("8".parse::<Device>().is_err() && "8:+1".parse::<Device>().is_err());

    // On v2 all four limits of a device share one line.
    let content = "8:16 rbps=1048576 wbps=max riops=max wiops=120\n";
    let v2 = crate::Version::V2;
    let key = "8:16".parse().unwrap();
    assert_eq!(BlkioReadBps.decode_line(v2, content, key), "1048576");
    assert_eq!(BlkioWriteIops.decode_line(v2, content, key), "120");
    assert_eq!(Resource::BlkioReadIops.decode_line(v2, content, key), "0");
    assert_eq!(BlkioReadBps.encode(v2, "8:16 7", content), "8:16 rbps=7");
    assert_eq!(BlkioReadBps.encode(v2, "8:16 0", content), "8:16 rbps=max");
    assert!(BlkioWriteIops.holds(v2, content, "8:16 120"));
    assert_eq!(
        BlkioCostWeight.decode_line(v2, "default 100\n8:0 50\n", key),
        "100"
    );
}

#[test]
fn resctrl_lines_are_compared_domain_by_domain() {
    let tree = Tree::hybrid("0-1").unwrap();
    let content = "    MB:0=100;2=100\n    L3:0=7ff;2=7FF\n";
    tree.put("sys/fs/resctrl/BE/schemata", content).unwrap();
    tree.put("sys/fs/resctrl/BE/tasks", "").unwrap();
    let target = |file| Target::Resctrl {
        group: "BE".parse().unwrap(),
        file,
    };
    let l3 = target(ResctrlFile::Schemata(Schema::L3));
    let root = tree.root();
    assert!(!root.write_target(&l3, "0=7ff;2=7ff").unwrap().changed);
    assert!(!root.write_target(&l3, "2=7ff").unwrap().changed);
    let written = root.write_target(&l3, "0=f;2=f").unwrap();
    assert_eq!(
        (written.changed, written.old.as_str()),
        (true, "0=7ff;2=7FF")
    );
    for bad in ["", "0", "0=zz", "0=f;0=f", "x=f"] {
        assert!(root.write_target(&l3, bad).is_err(), "{bad:?}");
    }
    assert!(root.write_target(&target(ResctrlFile::Tasks), "0").is_err());
    assert!(
        root.write_target(&target(ResctrlFile::Tasks), "17")
            .unwrap()
            .changed
    );
    for bad in ["", "a/b", "..", "info", "mon_groups"] {
        assert!(bad.parse::<ResctrlGroup>().is_err(), "{bad:?}");
    }
    let absent = Target::Resctrl {
        group: "LS".parse().unwrap(),
        file: ResctrlFile::Schemata(Schema::Mb),
    };
    assert!(root.write_target(&absent, "0=50").unwrap_err().is_gone());
}

#[test]
fn attributes_of_processes() {
    let tree = Tree::hybrid("0-1").unwrap();
    tree.put("proc/12/oom_score_adj", "0\n").unwrap();
    let target = Target::Process {
        pid: 12,
        attribute: Attribute::OomScoreAdj,
    };
    assert!(tree.root().write_target(&target, "-998").unwrap().changed);
    assert!(!tree.root().write_target(&target, "-998").unwrap().changed);
    assert!(tree.root().write_target(&target, "1001").is_err());
    let missing_process = Target::Process {
        pid: 13,
        attribute: Attribute::OomScoreAdj,
    };
    assert!(
        tree.root()
            .write_target(&missing_process, "1")
            .unwrap_err()
            .is_gone()
    );
    assert_eq!(target.to_string(), "process 12 oom_score_adj");
}

#[test]
fn looser_values_by_order() {
    for (order, current, wanted, loosened) in [
        (Order::Plain, "1", "2", None),
        (Order::Limit, "1", "2", Some("2")),
        (Order::Limit, "2", "1", None),
        (Order::Limit, "2", "-1", Some("-1")),
        (Order::Limit, "-1", "2", None),
        (Order::Limit, "max", "2", None),
        (Order::Limit, "broken", "2", None),
        (Order::List, "0-1", "0-3", Some("0-3")),
        (Order::List, "0-1", "2-3", Some("0-3")),
        (Order::List, "0-3", "0-1", None),
        (Order::List, "0-3", "0-3", None),
        (Order::List, "", "0", Some("0")),
    ] {
        let written = order.loosened(current, wanted);
        assert_eq!(written.as_deref(), loosened, "{order:?} {current} {wanted}");
    }
}

#[test]
fn memory_sizes_are_compared_in_pages_and_max_is_a_size() {
    use Resource::{MemoryHigh, MemoryLimit, MemoryMin};
    let (v1, v2) = (crate::Version::V1, crate::Version::V2);
    let page = i64::try_from(rustix::param::page_size()).unwrap();
    let rounded = (70_000_000 / page * page).to_string();
    assert!(MemoryMin.holds(v2, &rounded, "70000000"));
    assert!(MemoryLimit.holds(v1, &rounded, "70000000"));
    assert!(!MemoryMin.holds(v2, &rounded, "80000000"));
    assert!(!MemoryLimit.holds(v2, "max\n", "70000000"));
    assert!(MemoryLimit.holds(v2, "max\n", "-1"));
    assert!(!MemoryLimit.holds(v1, "0\n", "-1"), "-1 is no small size");
    for value in ["max", "9223372036854775807"] {
        assert!(MemoryHigh.validate(value).is_ok());
        assert!(MemoryHigh.holds(v2, "max\n", value));
        assert_eq!(MemoryHigh.encode(v2, value, "0\n"), "max");
    }
    assert!(MemoryLimit.validate("max").is_err());
}

#[test]
fn the_fake_refuses_the_knobs_that_the_kernel_refuses() {
    if !crate::is_root() {
        crate::testing::skip("root", "knobs of the machine can only be written by root");
        return;
    }
    let real = Root::system().unwrap();
    let fake = Tree::hybrid("0-1").unwrap();
    let pid = std::process::id();
    for (path, values) in [
        (
            format!("{pid}/oom_score_adj"),
            &["1001", "-1001", "x", "500"][..],
        ),
        (
            "sys/vm/watermark_scale_factor".to_owned(),
            &["0", "3001", "x", "10"],
        ),
        ("sys/vm/min_free_kbytes".to_owned(), &["-1", "x"]),
    ] {
        let file = real.proc(&path);
        let before = std::fs::read_to_string(&file).unwrap();
        fake.put(&format!("proc/{path}"), &before).unwrap();
        for value in values {
            let outcome = |root: &Root| {
                let written = root.write(&root.proc(&path), value);
                let now = std::fs::read_to_string(root.proc(&path)).unwrap();
                (written.map_err(|error| error.os_error()), now)
            };
            let (expected, found) = (outcome(&real), outcome(fake.root()));
            std::fs::write(&file, &before).unwrap();
            assert_eq!(found, expected, "{path} {value}");
            fake.put(&format!("proc/{path}"), &before).unwrap();
        }
    }
}

#[test]
fn block_limits_of_v2_share_a_line() {
    use Resource::{BlkioCostWeight, BlkioReadBps, BlkioWriteIops};
    let tree = Tree::v2("0-1").unwrap();
    let group = tree.group("kubepods/podx").unwrap();
    let line = |resource| Target::CgroupLine {
        group: group.clone(),
        resource,
        key: "8:16".parse().unwrap(),
    };
    let root = tree.root();
    let write = |resource, value| root.write_target(&line(resource), value).unwrap().changed;
    assert!(!write(BlkioReadBps, "0"), "no line is no limit");
    assert!(write(BlkioReadBps, "1048576"));
    assert!(write(BlkioWriteIops, "120"));
    assert_eq!(
        tree.raw(&group, BlkioReadBps).unwrap(),
        "8:16 rbps=1048576 wbps=max riops=max wiops=120"
    );
    assert!(!write(BlkioWriteIops, "120"));
    assert_eq!(
        root.read_target(&line(BlkioReadBps)).unwrap().unwrap(),
        "1048576"
    );
    assert!(write(BlkioReadBps, "0") && write(BlkioWriteIops, "0"));
    assert_eq!(tree.raw(&group, BlkioReadBps).unwrap(), "");
    assert!(!write(BlkioCostWeight, "100"), "the default");
    assert!(write(BlkioCostWeight, "60"));
    assert_eq!(
        root.read_target(&line(BlkioCostWeight)).unwrap().unwrap(),
        "60"
    );
}

/// The kernel's documentation of cgroup v2 describes `memory.reclaim` so.
#[test]
fn partial_reclaim_succeeds() {
    let tree = Tree::v2("0-1").unwrap();
    let group = tree.group("kubepods/podx").unwrap();
    let target = Target::cgroup(&group, Resource::MemoryReclaim);
    assert!(!target.is_stable(), "it is wanted again and again");
    let used = || {
        let group = tree.root().cgroup(&group);
        group.memory_usage().unwrap().unwrap()
    };
    tree.feed(&group, Resource::MemoryUsage, "20480000\n")
        .unwrap();
    tree.feed(&group, Resource::MemoryMin, "4096000\n").unwrap();
    for (ask, left) in [
        ("12288000", 8_192_000),
        ("12288000", 4_096_000),
        ("4096", 4_096_000),
    ] {
        assert!(tree.root().write_target(&target, ask).unwrap().changed);
        assert_eq!(used(), left);
    }
    let refused: Vec<_> = tree
        .writes()
        .into_iter()
        .filter(|write| write.file.ends_with("memory.reclaim"))
        .map(|write| write.refused)
        .collect();
    assert_eq!(refused, [None, Some(libc::EAGAIN), Some(libc::EAGAIN)]);
    for bad in ["0", "-1", "max"] {
        assert!(tree.root().write_target(&target, bad).is_err(), "{bad}");
    }
    let missing_group = Target::cgroup(
        &CgroupPath::new("kubepods/pody").unwrap(),
        Resource::MemoryReclaim,
    );
    assert!(
        tree.root()
            .write_target(&missing_group, "1")
            .unwrap_err()
            .is_gone()
    );
    let v1 = Tree::hybrid("0-1").unwrap();
    let group = v1.group("kubepods/podx").unwrap();
    let target = Target::cgroup(&group, Resource::MemoryReclaim);
    assert!(
        v1.root()
            .write_target(&target, "1")
            .unwrap_err()
            .is_unsupported()
    );
}
