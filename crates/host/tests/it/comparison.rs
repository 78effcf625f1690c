//! The fake against the kernel of this machine: a table of scenarios, and random walks.

use crate::lockstep::Lockstep;
use crate::support::{CONTROLLERS, TestHierarchy};
use koord_host::{Scratch, Version, fake};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// A scenario: its title, the version it applies to, and its steps in the form of [`crate::lockstep`].
type Scenario = (&'static str, Option<Version>, &'static str);

const V1: Option<Version> = Some(Version::V1);
const V2: Option<Version> = Some(Version::V2);
const BOTH: Option<Version> = None;

const SCENARIOS: &[Scenario] = &[
    (
        "groups come and go, from the leaves",
        BOTH,
        "
        mkdir a
        mkdir a
        mkdir a/b
        mkdir x/y
        rmdir a
        rmdir a/b
        rmdir a
        rmdir a
        mkdir a
        ",
    ),
    (
        "a file that is not there, in a group that is and in one that is not",
        BOTH,
        "
        mkdir a
        a cpu.nonsense 1
        a memory.nonsense 1
        b cpu.shares 5
        b cpuset.cpus 0
        ",
    ),
    (
        "weights and the idle policy",
        V1,
        "
        mkdir a
        mkdir a/b
        a cpu.shares 512
        a cpu.shares 1
        a cpu.shares 0
        a cpu.shares 999999
        a cpu.shares x
        a cpu.shares -1
        a cpu.shares
        a cpu.shares 300
        a cpu.idle 2
        a cpu.idle -1
        a cpu.idle x
        a cpu.idle 1
        a cpu.shares 512
        a/b cpu.shares 77
        a/b cpu.idle 1
        a cpu.idle 1
        a cpu.idle 0
        a cpu.shares 2
        a cpu.idle 0
        ",
    ),
    (
        "weights and the idle policy",
        V2,
        "
        mkdir a
        a cpu.weight 5
        . cgroup.subtree_control +cpu
        a cgroup.subtree_control +cpu
        mkdir a/b
        a cpu.weight 1
        a cpu.weight 0
        a cpu.weight 10000
        a cpu.weight 10001
        a cpu.weight x
        a cpu.weight -1
        a cpu.weight
        a cpu.weight 300
        a cpu.idle 2
        a cpu.idle -1
        a cpu.idle x
        a cpu.idle 1
        a cpu.weight 50
        a/b cpu.weight 77
        a/b cpu.idle 1
        a cpu.idle 1
        a cpu.idle 0
        a cpu.weight 2
        a cpu.idle 0
        ",
    ),
    (
        "bandwidth: what a quota and a period may be",
        V1,
        "
        mkdir a
        a cpu.cfs_quota_us 999
        a cpu.cfs_quota_us 0
        a cpu.cfs_quota_us 1000
        a cpu.cfs_quota_us -5
        a cpu.cfs_quota_us x
        a cpu.cfs_quota_us 99999999999999999999
        a cpu.cfs_quota_us 999999999999999
        a cpu.cfs_quota_us 99999999999999
        a cpu.cfs_quota_us 18446744073709
        a cpu.cfs_quota_us 50000
        a cpu.cfs_period_us 999
        a cpu.cfs_period_us 0
        a cpu.cfs_period_us -1
        a cpu.cfs_period_us x
        a cpu.cfs_period_us 1000
        a cpu.cfs_period_us 1000001
        a cpu.cfs_period_us 1000000
        a cpu.cfs_quota_us -1
        ",
    ),
    (
        "bandwidth: a child has no more than its nearest limited ancestor",
        V1,
        "
        mkdir a
        mkdir a/b
        mkdir a/b/c
        a cpu.cfs_quota_us 50000
        a/b cpu.cfs_quota_us 60000
        a/b/c cpu.cfs_quota_us 50001
        a/b/c cpu.cfs_quota_us 50000
        a cpu.cfs_quota_us 40000
        a/b cpu.cfs_quota_us 40000
        a/b/c cpu.cfs_quota_us 40000
        a/b cpu.cfs_quota_us 40000
        a cpu.cfs_quota_us 40000
        a/b/c cpu.cfs_period_us 50000
        a cpu.cfs_period_us 200000
        a/b cpu.cfs_quota_us 20000
        a/b/c cpu.cfs_quota_us 20000
        a/b cpu.cfs_quota_us 20000
        a cpu.cfs_period_us 200000
        a cpu.cfs_quota_us -1
        a/b cpu.cfs_quota_us -1
        a/b/c cpu.cfs_quota_us -1
        a cpu.cfs_quota_us 1000
        ",
    ),
    (
        "bandwidth: no burst above the quota",
        V1,
        "
        mkdir a
        a cpu.cfs_burst_us 1
        a cpu.cfs_burst_us 0
        a cpu.cfs_burst_us -1
        a cpu.cfs_burst_us x
        a cpu.cfs_quota_us 30000
        a cpu.cfs_burst_us 30001
        a cpu.cfs_burst_us 30000
        a cpu.cfs_quota_us 20000
        a cpu.cfs_burst_us 10000
        a cpu.cfs_quota_us 20000
        a cpu.cfs_period_us 200000
        a cpu.cfs_quota_us -1
        a cpu.cfs_burst_us 40000
        a cpu.cfs_quota_us 20000
        a cpu.cfs_burst_us 99999999999999999999
        ",
    ),
    (
        "bandwidth: what a quota and a period may be",
        V2,
        "
        mkdir a
        . cgroup.subtree_control +cpu
        a cpu.max 999
        a cpu.max 999 100000
        a cpu.max 0
        a cpu.max 1000
        a cpu.max -1
        a cpu.max x
        a cpu.max
        a cpu.max 50000 x
        a cpu.max 50000 999
        a cpu.max 50000 1000
        a cpu.max 50000 1000001
        a cpu.max 50000 1000000
        a cpu.max 60000
        a cpu.max max
        a cpu.max max 20000
        a cpu.max 40000 50000 60000
        a cpu.max 99999999999999999999
        a cpu.max 999999999999999
        a cpu.max 99999999999999
        a cpu.max 18446744073709
        ",
    ),
    (
        "bandwidth: a child may have more than its parent, which still limits it",
        V2,
        "
        mkdir a
        . cgroup.subtree_control +cpu
        a cgroup.subtree_control +cpu
        mkdir a/b
        a cpu.max 50000
        a/b cpu.max 60000
        a cpu.max 40000
        a/b cpu.max max
        a cpu.max max
        ",
    ),
    (
        "bandwidth: no burst above the quota",
        V2,
        "
        mkdir a
        . cgroup.subtree_control +cpu
        a cpu.max.burst 1
        a cpu.max.burst 0
        a cpu.max.burst -1
        a cpu.max.burst x
        a cpu.max 30000
        a cpu.max.burst 30001
        a cpu.max.burst 30000
        a cpu.max 20000
        a cpu.max.burst 10000
        a cpu.max 20000
        a cpu.max 20000 200000
        a cpu.max max
        a cpu.max.burst 40000
        a cpu.max 20000
        a cpu.max.burst 99999999999999999999
        ",
    ),
    (
        "CPU sets: within the parent, around the children",
        V1,
        "
        mkdir a
        mkdir a/b
        a/b cpuset.cpus 0
        a cpuset.cpus 0-1
        a/b cpuset.cpus 0
        a cpuset.cpus 1
        a cpuset.cpus
        a/b cpuset.cpus
        a cpuset.cpus 0
        a/b cpuset.cpus 0-1
        a cpuset.cpus 0,1
        a cpuset.cpus 1-0
        a cpuset.cpus zero
        a cpuset.cpus 0-
        a cpuset.cpus ,
        a cpuset.cpus 0,,1
        a cpuset.cpus 4000
        a cpuset.cpus 0-4000
        a cpuset.mems 0
        a/b cpuset.mems 0
        a cpuset.mems
        a cpuset.mems 63
        a cpuset.mems 5000
        a cpuset.mems x
        ",
    ),
    (
        "CPU sets: processes need CPUs and memory nodes",
        V1,
        "
        mkdir a
        a cpuset/cgroup.procs $0
        a cpuset.cpus 0
        a cpuset/cgroup.procs $0
        a cpuset.mems 0
        a cpuset/cgroup.procs $0
        a cpuset.cpus
        a cpuset.mems
        a cpuset.cpus 0-1
        a cpuset.cpus 1
        . cpuset/cgroup.procs $0
        a cpuset.cpus
        ",
    ),
    (
        "CPU sets: anything goes, and what is effective stays within the parent",
        V2,
        "
        mkdir a
        . cgroup.subtree_control +cpuset
        a cgroup.subtree_control +cpuset
        mkdir a/b
        a/b cpuset.cpus 1
        a cpuset.cpus 0
        a/b cpuset.cpus 0
        a/b cpuset.cpus 0-1
        a cpuset.cpus 1
        a cpuset.cpus
        a/b cpuset.cpus
        a cpuset.cpus 0,1
        a cpuset.cpus 1-0
        a cpuset.cpus zero
        a cpuset.cpus 0-
        a cpuset.cpus ,
        a cpuset.cpus 0,,1
        a cpuset.cpus 4000
        a cpuset.cpus 0-4000
        a cpuset.cpus 3
        a cpuset.mems 0
        a cpuset.mems
        a cpuset.mems 63
        a cpuset.mems 5000
        a cpuset.mems x
        mkdir a/c
        . cgroup.subtree_control -cpuset
        a cgroup.subtree_control -cpuset
        . cgroup.subtree_control -cpuset
        ",
    ),
    (
        "CPU sets: what a process lives in may not become nothing",
        V2,
        "
        mkdir a
        mkdir a/b
        . cgroup.subtree_control +cpuset
        a/b cgroup.procs $0
        a cpuset.cpus
        a cpuset.cpus 0
        a cpuset.mems 0
        a cpuset.cpus
        a cpuset.mems
        a cpuset.cpus 1
        . cgroup.procs $0
        a cpuset.cpus
        a cpuset.mems
        ",
    ),
    (
        "memory limits",
        V1,
        "
        mkdir a
        a memory.limit_in_bytes 67108864
        a memory.limit_in_bytes 64M
        a memory.limit_in_bytes 1g
        a memory.limit_in_bytes 70000000
        a memory.limit_in_bytes 4095
        a memory.limit_in_bytes lots
        a memory.limit_in_bytes 5x
        a memory.limit_in_bytes
        a memory.limit_in_bytes -1
        a memory.limit_in_bytes -2
        a memory.limit_in_bytes 0
        a memory.limit_in_bytes 99999999999999999999
        mkdir a/b
        a/b memory.limit_in_bytes 1g
        a memory.limit_in_bytes 512m
        ",
    ),
    (
        "memory limits and protection",
        V2,
        "
        mkdir a
        . cgroup.subtree_control +memory
        a cgroup.subtree_control +memory
        mkdir a/b
        a memory.max 67108864
        a memory.max 64M
        a memory.max 1g
        a memory.max 70000000
        a memory.max lots
        a memory.max 5x
        a memory.max
        a memory.max -1
        a memory.max -2
        a memory.max 99999999999999999999
        a memory.max max
        a memory.high 50000
        a memory.high 4095
        a memory.high 0
        a memory.high max
        a memory.min 1m
        a memory.min 2m
        a memory.low 1m
        a memory.low 70000001
        a/b memory.min 4m
        a/b memory.low max
        a memory.min max
        a memory.min 0
        a memory.min -1
        a memory.low x
        a memory.oom.group 1
        a memory.oom.group 2
        a memory.oom.group x
        a memory.oom.group 0
        a memory.high 9223372036854775807
        ",
    ),
    (
        "read-only files",
        V1,
        "
        mkdir a
        a cpu.stat 1
        a cpuacct.stat 1
        a cpuset.effective_cpus 1
        a memory.stat 1
        a memory.usage_in_bytes 1
        a memory.numa_stat 1
        ",
    ),
    (
        "read-only files",
        V2,
        "
        mkdir a
        . cgroup.subtree_control +cpu +cpuset +memory
        a cpu.stat 1
        a cpuset.cpus.effective 1
        a cpuset.mems.effective 1
        a memory.stat 1
        a memory.current 1
        a memory.events 1
        a memory.numa_stat 1
        a cgroup.controllers cpu
        ",
    ),
    (
        "reclaim: nothing can be had from an empty group",
        V2,
        "
        mkdir a
        . cgroup.subtree_control +memory
        a memory.reclaim 1048576
        a memory.reclaim 1M
        a memory.reclaim 0
        a memory.reclaim -1
        a memory.reclaim x
        a memory.reclaim max
        ",
    ),
    (
        "processes move, and a group that has one stays",
        V1,
        "
        mkdir a
        mkdir a/b
        a cpu/cgroup.procs $0
        a/b cpu/cgroup.procs $0
        a/b cpu/cgroup.procs $1
        a memory/cgroup.procs $1
        a cgroup.procs $1
        a blkio/cgroup.procs $1
        rmdir a/b
        a cpu/cgroup.procs x
        a cpu/cgroup.procs -1
        a cpu/cgroup.procs
        differs: the fake's processes are numbers, any of which may exist
        a cpu/cgroup.procs 999999999
        ",
    ),
    (
        "processes move, live in leaves only, and keep their group from going",
        V2,
        "
        mkdir a
        mkdir a/b
        mkdir c
        a cgroup.procs $0
        rmdir a
        a/b cgroup.procs $0
        a/b cgroup.procs $1
        rmdir a/b
        a cgroup.procs $1
        . cgroup.subtree_control +memory +cpu
        a cgroup.subtree_control +memory
        a cgroup.subtree_control +cpu
        a/b cgroup.procs $1
        a cgroup.subtree_control +cpu
        a cgroup.procs $1
        a cgroup.subtree_control +memory
        a cgroup.procs $1
        c cgroup.procs $1
        a cgroup.procs x
        a cgroup.procs -1
        a cgroup.procs
        c cgroup.procs $0
        a cgroup.procs $0
        a cgroup.subtree_control -memory
        a cgroup.procs $0
        ",
    ),
    (
        "a group with processes may hand down threaded controllers, and is alone then",
        V2,
        "
        mkdir a
        mkdir a/b
        mkdir a/b/c
        . cgroup.subtree_control +memory +cpu +pids +cpuset
        a cgroup.procs $0
        a cgroup.subtree_control +memory
        a cgroup.subtree_control +cpu
        a cgroup.subtree_control +memory
        a cgroup.subtree_control +pids
        a/b cgroup.procs $1
        a/b cgroup.subtree_control +cpu
        a/b/c cgroup.procs $1
        a/b/c cgroup.subtree_control +cpu
        a cgroup.procs $1
        a cgroup.subtree_control -cpu -pids
        a/b cgroup.procs $1
        a cgroup.subtree_control +cpu
        . cgroup.procs $0
        . cgroup.procs $1
        a cgroup.subtree_control +cpu +memory
        a/b cgroup.procs $1
        a cgroup.procs $0
        ",
    ),
    (
        "controllers are handed down one level at a time",
        V2,
        "
        mkdir a
        mkdir a/b
        a cgroup.subtree_control +cpu
        . cgroup.subtree_control +cpu +nonsense
        . cgroup.subtree_control cpu
        . cgroup.subtree_control +cpu +memory
        a cgroup.subtree_control +cpu
        a/b cpu.weight 50
        . cgroup.subtree_control -cpu
        a cgroup.subtree_control -cpu
        a/b cpu.weight 50
        . cgroup.subtree_control -cpu
        . cgroup.subtree_control +cpu
        a cgroup.subtree_control +cpu
        a/b cpu.weight 60
        . cgroup.subtree_control
        . cgroup.subtree_control -cpu +cpu
        ",
    ),
    (
        "freezing",
        BOTH,
        "
        mkdir a
        mkdir a/b
        a cgroup.freeze 1
        a cgroup.freeze 2
        a cgroup.freeze x
        a cgroup.freeze 0
        a cgroup.kill 2
        a cgroup.kill x
        a cgroup.kill 1
        ",
    ),
    (
        "the v1 freezer",
        V1,
        "
        mkdir a
        a freezer.state FROZEN
        a freezer.state NONSENSE
        a freezer.state THAWED
        ",
    ),
];

#[test]
fn the_fake_answers_as_this_kernel() {
    let mut failures = Vec::new();
    let mut compared = 0;
    for (name, only, steps) in SCENARIOS {
        let Some(mut lockstep) = Lockstep::new() else {
            return;
        };
        if only.is_some_and(|version| version != lockstep.version()) {
            continue;
        }
        let mut differs = None;
        for step in steps.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(reason) = step.strip_prefix("differs: ") {
                differs = Some(reason);
                continue;
            }
            compared += 1;
            match (lockstep.step(step), differs.take()) {
                (Ok(()), None) => {}
                (Ok(()), Some(reason)) => {
                    failures.push(format!("{name}: {step}: no longer differs ({reason})"));
                }
                (Err(_), Some(_)) => {}
                (Err(difference), None) => failures.push(format!("{name}: {difference}")),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(compared > 100, "{compared} steps");
}

#[test]
fn readers_notice_that_their_group_is_gone() {
    let Some(real) = TestHierarchy::new() else {
        return;
    };
    let tree = match real.root.version() {
        Version::V1 => fake::Tree::hybrid("0-1"),
        Version::V2 => fake::Tree::v2("0-1"),
    }
    .unwrap();
    for root in [&real.root, tree.root()] {
        let group = root.cgroup(&real.path.join("below").unwrap());
        group.create(&CONTROLLERS).unwrap();
        let reader = group.cpu_usage_reader().unwrap().unwrap();
        let mut scratch = Scratch::new();
        assert_eq!(reader.read(&mut scratch).unwrap(), Some(0));
        group.remove().unwrap();
        // Through a descriptor that is still open, by name, and for writing.
        assert_eq!(reader.read(&mut scratch).unwrap(), None);
        assert_eq!(group.cpu_usage().unwrap(), None);
        assert!(group.set_cpu_shares(5).unwrap_err().is_gone());
        assert!(group.memory_stat_reader().unwrap().is_none());
    }
}

/// Files that a random walk writes, with values that are legal somewhere.
const WALK_V1: &[(&str, &[&str])] = &[
    ("cpu.shares", &["2", "1024", "300", "0"]),
    ("cpu.idle", &["0", "1"]),
    (
        "cpu.cfs_quota_us",
        &["-1", "1000", "20000", "50000", "100000", "999"],
    ),
    ("cpu.cfs_period_us", &["1000", "50000", "100000", "1000000"]),
    ("cpu.cfs_burst_us", &["0", "1000", "20000", "50000"]),
    ("cpuset.cpus", &["", "0", "1", "0-1"]),
    ("cpuset.mems", &["", "0"]),
    ("memory.limit_in_bytes", &["-1", "1m", "64m"]),
    ("cpu/cgroup.procs", &["$0", "$1"]),
    ("cpuset/cgroup.procs", &["$0", "$1"]),
    ("cgroup.procs", &["$0", "$1"]),
];
const WALK_V2: &[(&str, &[&str])] = &[
    ("cpu.weight", &["1", "100", "300", "0"]),
    ("cpu.idle", &["0", "1"]),
    (
        "cpu.max",
        &[
            "max",
            "1000",
            "50000 50000",
            "20000 100000",
            "max 50000",
            "999",
        ],
    ),
    ("cpu.max.burst", &["0", "1000", "20000", "50000"]),
    ("cpuset.cpus", &["", "0", "1", "0-1"]),
    ("cpuset.mems", &["", "0"]),
    ("memory.max", &["max", "1m", "64m"]),
    ("memory.high", &["max", "1m", "64m"]),
    ("memory.low", &["max", "0", "64m"]),
    ("memory.min", &["max", "0", "64m"]),
    ("cgroup.procs", &["$0", "$1"]),
    (
        "cgroup.subtree_control",
        &["+cpu", "-cpu", "+cpuset", "-cpuset", "+memory", "-memory"],
    ),
    (
        "cgroup.subtree_control",
        &["+cpu +cpuset +memory", "-cpu -cpuset"],
    ),
];
const WALK_GROUPS: [&str; 5] = ["a", "a/b", "a/b/c", "d", "."];

fn step(version: Version) -> impl Strategy<Value = String> {
    let files = match version {
        Version::V1 => WALK_V1,
        Version::V2 => WALK_V2,
    };
    let write = (
        0..WALK_GROUPS.len(),
        0..files.len(),
        any::<prop::sample::Index>(),
    )
        .prop_map(|(group, file, value)| {
            let (file, values) = files[file];
            format!("{} {file} {}", WALK_GROUPS[group], value.get(values))
        });
    let directory = (
        0..WALK_GROUPS.len() - 1,
        prop::sample::select(&["mkdir", "rmdir"][..]),
    )
        .prop_map(|(group, verb)| format!("{verb} {}", WALK_GROUPS[group]));
    prop_oneof![10 => write, 1 => directory]
}

#[test]
fn random_walks_end_where_this_kernel_does() {
    let Some(first) = Lockstep::new() else {
        return;
    };
    let version = first.version();
    drop(first);
    // A few for the gate; `KOORD_WALKS=100` when the rules of the fake have changed. The walks are equal
    // every time, so that failures are reproducible.
    let walks = std::env::var("KOORD_WALKS").map_or(6, |walks| walks.parse().unwrap());
    let mut runner = TestRunner::new_with_rng(
        Config {
            cases: walks,
            failure_persistence: None,
            // A step costs the kernel milliseconds; the reported difference is enough.
            max_shrink_iters: 0,
            ..Config::default()
        },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let steps = prop::collection::vec(step(version), 60);
    let result = runner.run(&steps, |steps| {
        let mut lockstep = Lockstep::new().unwrap();
        let setup = ["mkdir a", "mkdir a/b", "mkdir a/b/c", "mkdir d"];
        for step in setup.into_iter().chain(steps.iter().map(String::as_str)) {
            lockstep
                .step(step.trim_end())
                .map_err(|difference| TestCaseError::fail(difference.to_string()))?;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
