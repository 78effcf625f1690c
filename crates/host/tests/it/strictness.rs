//! The same writes on the real kernel and on the fake: both must refuse and accept the same.

use crate::support::{CONTROLLERS, Playground};
use koord_host::testing::skip;
use koord_host::{CgroupPath, Resource, Root, Version, fake};
use std::fs;

/// One write: group below the playground, resource, raw value.
type Write = (&'static str, Resource, &'static str);

/// What happened: the error number, or the raw content afterwards.
type Outcome = Result<String, i32>;

fn play(root: &Root, base: &CgroupPath, writes: &[Write]) -> Vec<Outcome> {
    for group in ["parent", "parent/child"] {
        root.cgroup(&base.join(group).unwrap())
            .create(&CONTROLLERS)
            .unwrap();
    }
    writes
        .iter()
        .map(|(group, resource, value)| {
            let path = root
                .cgroup(&base.join(group).unwrap())
                .file(*resource)
                .unwrap();
            // Raw: past our own validation, to the kernel's.
            match root.write(&path, value) {
                Ok(()) => Ok(fs::read_to_string(&path).unwrap().trim().to_owned()),
                Err(error) => Err(error.os_error().unwrap()),
            }
        })
        .collect()
}

fn compare(version: Version, writes: &[Write]) {
    let Some(real) = Playground::new() else {
        return;
    };
    if real.root.version() != version {
        let need = match version {
            Version::V1 => "cgroup-v1",
            Version::V2 => "cgroup-v2",
        };
        skip(need, format!("this machine has {}", real.root.version()));
        return;
    }
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let fake = match version {
        Version::V1 => fake::Tree::hybrid(online.trim()),
        Version::V2 => fake::Tree::v2(online.trim()),
    }
    .unwrap();
    let expected = play(&real.root, &real.path, writes);
    let found = play(
        fake.root(),
        &fake.group(real.path.as_str()).unwrap(),
        writes,
    );
    for ((write, expected), found) in writes.iter().zip(&expected).zip(&found) {
        assert_eq!(
            found, expected,
            "{write:?}: the fake differs from the kernel"
        );
    }
}

#[test]
fn cpu_weight_and_idle_on_v1() {
    use Resource::{CpuIdle, CpuShares};
    compare(
        Version::V1,
        &[
            ("parent", CpuShares, "512"),
            ("parent", CpuShares, "1"),
            ("parent", CpuShares, "999999"),
            ("parent", CpuShares, "x"),
            ("parent", CpuShares, "300"),
            ("parent", CpuIdle, "2"),
            ("parent", CpuIdle, "-1"),
            ("parent", CpuIdle, "1"),
            ("parent", CpuShares, "512"),
            ("parent/child", CpuShares, "77"),
            ("parent", CpuIdle, "1"),
            ("parent", CpuIdle, "0"),
            ("parent", CpuShares, "2"),
        ],
    );
}

#[test]
fn idle_forgets_the_weight() {
    let Some(real) = Playground::new() else {
        return;
    };
    let fake = fake::Tree::hybrid("0-1").unwrap();
    let base = fake.group("base").unwrap();
    for group in [real.root.cgroup(&real.path), fake.root().cgroup(&base)] {
        if !group.supports(Resource::CpuIdle) {
            skip("cpu-idle", "the group has no cpu.idle");
            return;
        }
        group.set_cpu_shares(300).unwrap();
        group.set_cpu_idle(true).unwrap();
        assert_eq!(group.set_cpu_shares(300).unwrap_err().os_error(), Some(22));
        group.set_cpu_idle(false).unwrap();
        let shares = group.cpu_shares().unwrap().unwrap();
        assert!((990..=1024).contains(&shares) || shares > 2500, "{shares}");
    }
}

#[test]
fn cpu_bandwidth_on_v1() {
    use Resource::{CfsBurst, CfsPeriod, CfsQuota};
    compare(
        Version::V1,
        &[
            ("parent", CfsQuota, "999"),
            ("parent", CfsQuota, "0"),
            ("parent", CfsQuota, "1000"),
            ("parent", CfsQuota, "-5"),
            ("parent", CfsQuota, "x"),
            ("parent", CfsQuota, "50000"),
            ("parent/child", CfsQuota, "60000"),
            ("parent/child", CfsQuota, "40000"),
            ("parent", CfsQuota, "30000"),
            ("parent", CfsBurst, "60000"),
            ("parent", CfsBurst, "20000"),
            ("parent", CfsQuota, "45000"),
            ("parent", CfsPeriod, "999"),
            ("parent", CfsPeriod, "1000001"),
            ("parent", CfsPeriod, "200000"),
            ("parent", CfsQuota, "-1"),
            ("parent/child", CfsQuota, "-1"),
        ],
    );
}

#[test]
fn cpu_sets_on_v1() {
    use Resource::{CpusetCpus, CpusetMems, Procs};
    compare(
        Version::V1,
        &[
            ("parent", CpusetCpus, "0"),
            ("parent/child", CpusetCpus, "0"),
            ("parent/child", CpusetCpus, "0-1"),
            ("parent", CpusetCpus, "4000"),
            ("parent", CpusetCpus, "zero"),
            ("parent", CpusetCpus, "1"),
            ("parent/child", CpusetCpus, ""),
            ("parent", CpusetCpus, "0"),
            ("parent", CpusetMems, "0"),
            ("parent", CpusetMems, "63"),
            ("parent", Procs, "not a pid"),
        ],
    );
}

#[test]
fn memory_limits_on_v1() {
    use Resource::{MemoryLimit, MemoryStat};
    compare(
        Version::V1,
        &[
            ("parent", MemoryLimit, "67108864"),
            ("parent", MemoryLimit, "64M"),
            ("parent", MemoryLimit, "70000000"),
            ("parent", MemoryLimit, "lots"),
            ("parent", MemoryLimit, "-1"),
            ("parent", MemoryLimit, "-2"),
            ("parent", MemoryStat, "1"),
        ],
    );
}

#[test]
fn unknown_files_and_busy_groups() {
    let Some(real) = Playground::new() else {
        return;
    };
    let fake = fake::Tree::hybrid("0-1").unwrap();
    let base = fake.group("base").unwrap();
    for group in [real.root.cgroup(&real.path), fake.root().cgroup(&base)] {
        let file = group
            .file(Resource::CpuShares)
            .unwrap()
            .with_file_name("cpu.nonsense");
        assert_eq!(
            group.root().write(&file, "1").unwrap_err().os_error(),
            Some(2)
        );
        let below = group.root().cgroup(&group.path().join("below").unwrap());
        below.create(&CONTROLLERS).unwrap();
        assert!(below.exists());
        // Reading through a descriptor that was opened before the group went away.
        let reader = below.cpu_usage_reader().unwrap().unwrap();
        let mut scratch = koord_host::Scratch::new();
        assert_eq!(reader.read(&mut scratch).unwrap(), Some(0));
        below.remove().unwrap();
        assert_eq!(reader.read(&mut scratch).unwrap(), None);
        assert_eq!(below.cpu_usage().unwrap(), None);
        assert!(below.set_cpu_shares(5).unwrap_err().is_gone());
        assert!(below.memory_stat_reader().unwrap().is_none());
    }
}
