use super::*;
use koord_host::fake::Tree;

struct Rig {
    tree: Tree,
    executor: Executor,
    log: Log,
    now_ms: u64,
}

impl Rig {
    fn new() -> Self {
        let tree = Tree::hybrid("0-3").unwrap();
        let log = Log::default();
        let executor = Executor::new(tree.root().clone(), log.clone(), Executor::FORCE_AFTER_MS);
        Self {
            tree,
            executor,
            log,
            now_ms: 1000,
        }
    }

    fn group(&self, path: &str) -> CgroupPath {
        self.tree.group(path).unwrap()
    }

    fn apply(&mut self, intents: Vec<Intent>) -> BatchResult {
        self.now_ms += 1000;
        self.executor
            .apply(intents, self.now_ms, Timestamp::UNIX_EPOCH)
    }

    fn writes(&self) -> Vec<String> {
        self.tree
            .writes()
            .into_iter()
            .map(|w| format!("{}={}", w.file, w.value))
            .collect()
    }
}

fn intent(group: &CgroupPath, resource: Resource, value: &str) -> Intent {
    Intent {
        target: Target::cgroup(group, resource),
        value: value.to_owned(),
        subject: WriteSubject::Group,
        reason: "test",
        because: "why".to_owned(),
        verbosity: 3,
        cacheable: true,
        reconciles: None,
    }
}

#[test]
fn equal_values_are_not_written_again() {
    let mut rig = Rig::new();
    let group = rig.group("kubepods/podx");
    let want = || vec![intent(&group, Resource::CpuShares, "512")];
    assert_eq!(rig.apply(want()).written, 1);
    assert_eq!(
        rig.apply(want()),
        BatchResult {
            same: 1,
            ..BatchResult::default()
        }
    );
    // Another program changes the file: the cache hides it until a forced write.
    rig.tree.root().cgroup(&group).set_cpu_shares(2).unwrap();
    assert_eq!(rig.apply(want()).written, 0);
    rig.now_ms += Executor::FORCE_AFTER_MS;
    assert_eq!(rig.apply(want()).written, 1);
    let entries = rig.log.entries();
    assert_eq!(entries.len(), 2);
    let change = entries[1].change.clone().unwrap();
    assert_eq!(
        (change.file, change.old.as_deref(), &*change.new),
        ("cpu.shares", Some("2"), "512")
    );
    assert_eq!(
        entries[1].message,
        "update /kubepods/podx cpu.shares to 512: why"
    );
}

#[test]
fn limits_grow_from_the_root_and_shrink_from_the_leaves() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    let leaf = rig.group("kubepods/podx/c");
    let want = |pod_quota: &str, leaf_quota: &str| {
        vec![
            intent(&leaf, Resource::CfsQuota, leaf_quota),
            intent(&pod, Resource::CfsQuota, pod_quota),
        ]
    };
    rig.apply(want("50000", "50000"));
    rig.writes();
    rig.apply(want("80000", "80000"));
    let up = rig.writes();
    assert_eq!(
        up,
        [
            "cpu/kubepods/podx/cpu.cfs_quota_us=80000",
            "cpu/kubepods/podx/c/cpu.cfs_quota_us=80000"
        ]
    );
    rig.apply(want("30000", "30000"));
    let down = rig.writes();
    assert_eq!(
        down,
        [
            "cpu/kubepods/podx/c/cpu.cfs_quota_us=30000",
            "cpu/kubepods/podx/cpu.cfs_quota_us=30000"
        ]
    );
}

#[test]
fn cpu_sets_move_through_their_union() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    let leaf = rig.group("kubepods/podx/c");
    let want = |cpus: &str| {
        vec![
            intent(&pod, Resource::CpusetCpus, cpus),
            intent(&leaf, Resource::CpusetCpus, cpus),
        ]
    };
    for cpus in ["0-1", "2-3", "0-3", "1"] {
        let applied = rig.apply(want(cpus));
        assert_eq!(applied.failed, 0, "{cpus}: {:?}", rig.executor.refusals());
        for group in [&pod, &leaf] {
            let now = rig.tree.root().cgroup(group).cpuset().unwrap().unwrap();
            assert_eq!(now, cpus.parse().unwrap(), "{cpus}");
        }
    }
}

#[test]
fn leaving_idle_restores_the_weight() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/besteffort/podx");
    let want = |idle: &str| {
        vec![
            intent(&pod, Resource::CpuShares, "100"),
            intent(&pod, Resource::CpuIdle, idle),
        ]
    };
    rig.apply(want("0"));
    let group = rig.tree.root().cgroup(&pod);
    assert_eq!(group.cpu_shares().unwrap(), Some(100));
    // An idle group refuses a weight: none may be attempted.
    let applied = rig.apply(want("1"));
    assert_eq!((applied.failed, group.cpu_idle().unwrap()), (0, Some(true)));
    let applied = rig.apply(want("0"));
    assert_eq!(applied.failed, 0);
    assert_eq!(
        group.cpu_shares().unwrap(),
        Some(100),
        "not the kernel's default of 1024"
    );
}

#[test]
fn a_vanished_group_is_no_error() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    rig.apply(vec![intent(&pod, Resource::CpuShares, "100")]);
    rig.tree.vanish(&pod).unwrap();
    rig.now_ms += Executor::FORCE_AFTER_MS;
    let applied = rig.apply(vec![
        intent(&pod, Resource::CpuShares, "200"),
        intent(&pod, Resource::CfsQuota, "2000"),
    ]);
    assert_eq!((applied.absent, applied.failed), (2, 0));
}

#[test]
fn a_refusal_is_counted_and_not_cached() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    rig.tree.refuse("podx/cpu.shares", Some(22));
    let want = || vec![intent(&pod, Resource::CpuShares, "100")];
    assert_eq!(rig.apply(want()).failed, 1);
    assert!(
        rig.executor.refusals()[0]
            .error
            .to_string()
            .contains("cpu.shares")
    );
    rig.now_ms += 30_000;
    assert_eq!(rig.apply(want()).failed, 1, "tried again");
    rig.tree.refuse("podx/cpu.shares", None);
    rig.now_ms += 60_000;
    assert_eq!(rig.apply(want()).written, 1);
    // A value that the kernel never accepts is not written.
    let bad = intent(&pod, Resource::CpuShares, "1");
    assert_eq!(rig.apply(vec![bad]).failed, 1);
}

#[test]
fn a_burst_never_exceeds_its_quota() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    let want = |quota: &str, burst: &str| {
        vec![
            intent(&pod, Resource::CfsBurst, burst),
            intent(&pod, Resource::CfsQuota, quota),
        ]
    };
    for (quota, burst) in [
        ("50000", "50000"),
        ("80000", "70000"),
        ("20000", "20000"),
        ("-1", "90000"),
        ("30000", "0"),
        ("40000", "30000"),
    ] {
        let applied = rig.apply(want(quota, burst));
        assert_eq!(applied.failed, 0, "{quota}: {:?}", rig.executor.refusals());
        let group = rig.tree.root().cgroup(&pod);
        assert_eq!(group.cfs_quota().unwrap().unwrap().to_string(), quota);
        assert_eq!(group.cfs_burst().unwrap().unwrap().to_string(), burst);
    }
}

#[test]
fn changed_pod_is_checked_again() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    let leaf = rig.group("kubepods/podx/c");
    let other = rig.group("kubepods/podx2");
    let want = || {
        [&pod, &leaf, &other]
            .map(|group| intent(group, Resource::CpuShares, "512"))
            .to_vec()
    };
    rig.apply(want());
    for group in [&pod, &leaf, &other] {
        rig.tree.root().cgroup(group).set_cpu_shares(2).unwrap();
    }
    assert_eq!(rig.apply(want()).written, 0);
    rig.executor.invalidate(&pod);
    assert_eq!(rig.apply(want()).written, 2, "the pod and its container");
}

#[test]
fn the_last_of_several_values_counts() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    rig.writes();
    let applied = rig.apply(vec![
        intent(&pod, Resource::CpuShares, "100"),
        intent(&pod, Resource::CpuShares, "200"),
    ]);
    assert_eq!(applied.written, 1);
    assert_eq!(rig.writes(), ["cpu/kubepods/podx/cpu.shares=200"]);
}

#[test]
fn restore_writes_back_previous_values() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    let leaf = rig.group("kubepods/podx/c");
    let removed = rig.group("kubepods/gone");
    let knob = Target::Sysctl(koord_host::Sysctl::MinFreeKbytes);
    rig.tree.put("proc/sys/vm/min_free_kbytes", "67\n").unwrap();
    let root = rig.tree.root().clone();
    root.cgroup(&pod).set_cfs_quota(80_000).unwrap();
    root.cgroup(&leaf).set_cfs_quota(80_000).unwrap();
    root.cgroup(&leaf).set_cpu_shares(300).unwrap();
    let want = |quota: &str| {
        let mut all = [&pod, &leaf, &removed]
            .map(|group| intent(group, Resource::CfsQuota, quota))
            .to_vec();
        all.push(intent(&leaf, Resource::CpuShares, "400"));
        all.push(intent(&pod, Resource::CpuIdle, "1"));
        let mut tuned = intent(&pod, Resource::CpuShares, "20480");
        tuned.target = knob.clone();
        all.push(tuned);
        all
    };
    rig.apply(want("50000"));
    rig.apply(want("20000"));
    // A weight that another program has set since is kept.
    root.cgroup(&leaf).set_cpu_shares(555).unwrap();
    rig.tree.vanish(&removed).unwrap();
    let applied = rig
        .executor
        .restore(|_| true, rig.now_ms, Timestamp::UNIX_EPOCH);
    assert_eq!(
        (applied.written, applied.failed, applied.absent),
        (4, 0, 0),
        "{:?}",
        rig.executor.refusals()
    );
    assert_eq!(root.cgroup(&pod).cfs_quota().unwrap(), Some(80_000));
    assert_eq!(root.cgroup(&leaf).cfs_quota().unwrap(), Some(80_000));
    assert_eq!(root.cgroup(&leaf).cpu_shares().unwrap(), Some(555));
    assert_eq!(root.cgroup(&pod).cpu_idle().unwrap(), Some(false));
    assert_eq!(root.read_target(&knob).unwrap().unwrap(), "67");
    let entry = rig.log.entries().pop().unwrap();
    assert_eq!(entry.reason, "restore");
    // Once.
    let second_restore = rig
        .executor
        .restore(|_| true, rig.now_ms, Timestamp::UNIX_EPOCH);
    assert_eq!(second_restore, BatchResult::default());
    // Restored values are not cached.
    assert_eq!(rig.apply(want("20000")).written, 5);
}

/// Covers koordinator-sh/koordinator#3217: a kernel refuses every write of a file.
#[test]
fn refused_write_backs_off_and_is_reported_once() {
    for errno in [22, 1, 13, 30, 28, 16] {
        let mut rig = Rig::new();
        let conditions = Conditions::default();
        rig.executor = rig.executor.reporting(conditions.clone());
        let pod = rig.group("kubepods/podx");
        rig.tree.refuse("podx/memory.limit_in_bytes", Some(errno));
        let mut attempts = Vec::new();
        // One round every ten seconds for an hour.
        for round in 0..360_u64 {
            rig.now_ms += 9_000;
            let applied = rig.apply(vec![intent(&pod, Resource::MemoryLimit, "4096000")]);
            if applied.failed == 1 {
                attempts.push(round * 10);
            }
            assert_eq!(applied.failed + applied.held_back, 1, "{errno}");
        }
        let in_second_minute = attempts.iter().filter(|second| (60..120).contains(*second));
        assert!(in_second_minute.count() <= 1, "{errno}: {attempts:?}");
        assert!(attempts.len() <= 14, "{errno}: {attempts:?}");
        assert!(
            attempts.last() >= Some(&3000),
            "never given up: {attempts:?}"
        );
        assert_eq!(conditions.active().len(), 1);
        assert_eq!(conditions.logged(), 1);
        // Accepted at last.
        rig.tree.refuse("podx/memory.limit_in_bytes", None);
        rig.now_ms += 600_000;
        let applied = rig.apply(vec![intent(&pod, Resource::MemoryLimit, "4096000")]);
        assert_eq!(applied.written, 1, "{errno}");
        assert!(conditions.active().is_empty(), "{errno}");
    }
}

#[test]
fn refused_write_is_retried_when_file_or_value_changes() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    let leaf = rig.group("kubepods/podx/c");
    let want = |value: &str| vec![intent(&leaf, Resource::CfsQuota, value)];
    rig.tree.refuse("podx/c/cpu.cfs_quota_us", Some(22));
    assert_eq!(rig.apply(want("50000")).failed, 1);
    assert_eq!(rig.apply(want("50000")).held_back, 1);
    assert_eq!(rig.apply(want("40000")).failed, 1, "another value");
    assert_eq!(rig.apply(want("40000")).held_back, 1);
    // Another program writes the file.
    let path = Target::cgroup(&leaf, Resource::CfsQuota).path(rig.tree.root());
    std::fs::write(path.unwrap(), "70000\n").unwrap();
    assert_eq!(rig.apply(want("40000")).failed, 1, "the file changed");
    assert_eq!(rig.apply(want("40000")).held_back, 1);
    // The accepted range depends on the parent's quota.
    rig.apply(vec![intent(&pod, Resource::CfsQuota, "90000")]);
    assert_eq!(rig.apply(want("40000")).failed, 1, "the parent changed");
    // The group is recreated.
    assert_eq!(rig.apply(want("40000")).held_back, 1);
    rig.tree.vanish(&leaf).unwrap();
    rig.group("kubepods/podx/c");
    assert_eq!(rig.apply(want("40000")).failed, 1, "another group");
    // After a refused value, the whole file backs off.
    let mut failed = 0;
    for value in 0..100 {
        failed += rig.apply(want(&format!("{}", 30_000 + value))).failed;
    }
    assert!(failed <= 8, "{failed}");
}

#[test]
fn value_replaced_by_other_program_is_reported_once() {
    let mut rig = Rig::new();
    let conditions = Conditions::default();
    rig.executor = rig.executor.reporting(conditions.clone());
    let pod = rig.group("kubepods/podx");
    let root = rig.tree.root().clone();
    let round = |rig: &mut Rig, foreign: Option<&str>| {
        let mut want = intent(&pod, Resource::CpusetCpus, "0-1");
        want.cacheable = false;
        rig.apply(vec![want]);
        if let Some(foreign) = foreign {
            let target = Target::cgroup(&pod, Resource::CpusetCpus);
            root.write_target(&target, foreign).unwrap();
        }
    };
    for _ in 0..6 {
        round(&mut rig, Some("1-2"));
    }
    let active = conditions.active();
    assert_eq!(active.len(), 1, "{active:?}");
    let (condition, object, message) = &active[0];
    assert_eq!(*condition, crate::conditions::Condition::ValueRewritten);
    assert!(
        object.contains("podx") && object.contains("cpuset.cpus"),
        "{object}"
    );
    assert!(
        message.contains("0-1") && message.contains("1-2"),
        "{message}"
    );
    assert_eq!(conditions.logged(), 1);
    // The other program stops writing.
    round(&mut rig, None);
    round(&mut rig, None);
    assert!(conditions.active().is_empty());
    // A kubelet that writes only after its own changes is not a conflict.
    for _ in 0..6 {
        round(&mut rig, Some("1-2"));
        round(&mut rig, None);
        round(&mut rig, None);
    }
    assert_eq!(conditions.logged(), 1);
}

#[test]
fn write_duration_is_recorded_for_changes_only() {
    let registry = prometheus::Registry::new();
    let mut rig = Rig::new();
    let metrics = crate::metrics::Metrics::new(&registry).unwrap();
    metrics.record_start("n1", 0);
    rig.executor = Executor::new(rig.tree.root().clone(), rig.log.clone(), 0).measured(metrics);
    let group = rig.group("kubepods/podx");
    for _ in 0..3 {
        rig.apply(vec![intent(&group, Resource::CpuShares, "512")]);
    }
    rig.tree.refuse("cpu.shares", Some(22));
    rig.apply(vec![intent(&group, Resource::CpuShares, "256")]);
    let text = koord_app::metrics::encode(&registry).unwrap();
    let name = "koordlet_resource_update_duration_milliseconds_count";
    for status in ["success", "failed"] {
        let line = format!("{name}{{status=\"{status}\",type=\"cgroup\"}} 1\n");
        assert!(text.contains(&line), "{line}: {text}");
    }
    let line = r#"koordlet_failures_total{name="test",node="n1",part="strategy"} 1"#;
    assert!(text.contains(line), "{text}");
}

#[test]
fn actions_keep_their_order_and_states_do_not_need_one() {
    use koord_host::{Attribute, ResctrlFile, Schema, fake::ResctrlHardware};
    let mut rig = Rig::new();
    rig.tree.mount_resctrl(ResctrlHardware::intel()).unwrap();
    for pid in [5, 9] {
        let file = format!("proc/{pid}/core_sched_cookie");
        rig.tree.put(&file, "0\n").unwrap();
    }
    let group = rig.group("unused");
    let to = |target: Target, value: &str| Intent {
        target,
        value: value.to_owned(),
        ..intent(&group, Resource::CpuShares, "2")
    };
    let cookie = |pid| Target::Process {
        pid,
        attribute: Attribute::CoreSchedCookie,
    };
    let be = |file| Target::Resctrl {
        group: "BE".parse().unwrap(),
        file,
    };
    let want = || {
        vec![
            to(cookie(9), "new"),
            to(cookie(5), "from 9"),
            to(be(ResctrlFile::Tasks), "9"),
            to(be(ResctrlFile::Tasks), "5"),
            to(be(ResctrlFile::Schemata(Schema::L3)), "0=f"),
            to(be(ResctrlFile::Directory), "1"),
        ]
    };
    let applied = rig.apply(want());
    assert_eq!(
        (applied.written, applied.failed, applied.absent),
        (6, 0, 0),
        "{:?}",
        rig.executor.refusals()
    );
    let root = rig.tree.root().clone();
    let cookies = [5, 9].map(|pid| root.read_target(&cookie(pid)).unwrap().unwrap());
    assert_eq!(cookies[0], cookies[1]);
    assert_ne!(cookies[0], "0");
    let tasks = koord_host::resctrl::tasks(&root, &"BE".parse().unwrap());
    assert_eq!(tasks.unwrap().unwrap(), [9, 5]);
    // States are cached for a while, actions are repeated.
    assert_eq!(rig.apply(want()).same, 2, "directory and schemata");
}
