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

    fn apply(&mut self, intents: Vec<Intent>) -> Applied {
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

fn intent(level: Level, group: &CgroupPath, resource: Resource, value: &str) -> Intent {
    Intent {
        level,
        group: group.clone(),
        resource,
        value: value.to_owned(),
        target: Target::default(),
        reason: "test",
        because: "why".to_owned(),
        verbosity: 3,
        cacheable: true,
    }
}

#[test]
fn equal_values_are_not_written_again() {
    let mut rig = Rig::new();
    let group = rig.group("kubepods/podx");
    let want = || vec![intent(Level::Pod, &group, Resource::CpuShares, "512")];
    assert_eq!(rig.apply(want()).written, 1);
    assert_eq!(
        rig.apply(want()),
        Applied {
            same: 1,
            ..Applied::default()
        }
    );
    // Somebody else changes the file: the cache hides it until it is forced.
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
            intent(Level::Container, &leaf, Resource::CfsQuota, leaf_quota),
            intent(Level::Pod, &pod, Resource::CfsQuota, pod_quota),
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
            intent(Level::Pod, &pod, Resource::CpusetCpus, cpus),
            intent(Level::Container, &leaf, Resource::CpusetCpus, cpus),
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
            intent(Level::Pod, &pod, Resource::CpuShares, "100"),
            intent(Level::Pod, &pod, Resource::CpuIdle, idle),
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
    rig.apply(vec![intent(Level::Pod, &pod, Resource::CpuShares, "100")]);
    rig.tree.vanish(&pod).unwrap();
    rig.now_ms += Executor::FORCE_AFTER_MS;
    let applied = rig.apply(vec![
        intent(Level::Pod, &pod, Resource::CpuShares, "200"),
        intent(Level::Pod, &pod, Resource::CfsQuota, "2000"),
    ]);
    assert_eq!((applied.absent, applied.failed), (2, 0));
}

#[test]
fn a_refusal_is_counted_and_not_cached() {
    let mut rig = Rig::new();
    let pod = rig.group("kubepods/podx");
    rig.tree.refuse("podx/cpu.shares", Some(22));
    let want = || vec![intent(Level::Pod, &pod, Resource::CpuShares, "100")];
    assert_eq!(rig.apply(want()).failed, 1);
    assert!(
        rig.executor.refusals()[0]
            .error
            .to_string()
            .contains("cpu.shares")
    );
    assert_eq!(rig.apply(want()).failed, 1, "tried again");
    rig.tree.refuse("podx/cpu.shares", None);
    assert_eq!(rig.apply(want()).written, 1);
    // A value the kernel could never take is not even tried.
    let bad = intent(Level::Pod, &pod, Resource::CpuShares, "1");
    assert_eq!(rig.apply(vec![bad]).failed, 1);
}
