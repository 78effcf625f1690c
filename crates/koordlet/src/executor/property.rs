//! Runs the executor on random trees: from any valid state to any other, on the strict fake of both versions
//! and on this machine's kernel. No write is refused, the final state is exact, and at no time does a child
//! exceed its parent.

use super::*;
use koord_host::fake::Tree;
use koord_host::root::{KernelWriter, RealWriter};
use koord_host::{Controller, CpuSet, Version};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

/// Wanted values of one group's files.
type Files = BTreeMap<Resource, String>;

/// Raw random choices: each tree uses the part that it needs, so that they shrink well.
#[derive(Debug, Clone)]
struct Script {
    /// Parent of each group except the first, as an index modulo the number of groups before it.
    parents: Vec<u8>,
    /// Value of each file as one byte, by state and group.
    states: Vec<Vec<[u8; 10]>>,
}

fn scripts() -> impl Strategy<Value = Script> {
    (1_usize..9).prop_flat_map(|groups| {
        let parents = proptest::collection::vec(any::<u8>(), groups - 1);
        let state = proptest::collection::vec(any::<[u8; 10]>(), groups);
        (parents, proptest::collection::vec(state, 2..5))
            .prop_map(|(parents, states)| Script { parents, states })
    })
}

/// Effects of the batches of all cases, to show that the test covers them.
#[derive(Debug, Default)]
struct BatchCoverage {
    quota_up: u32,
    quota_down: u32,
    both_in_one_batch: u32,
    quota_off: u32,
    quota_on: u32,
    burst_over_old_quota: u32,
    burst_over_new_quota: u32,
    disjoint_sets: u32,
    left_idle: u32,
    protection_both_ways: u32,
    deep: u32,
}

/// The groups of a tree with their parents' indexes; parents come first.
type Groups = Vec<(CgroupPath, Option<usize>)>;

/// A random tree of groups.
struct GroupTree {
    groups: Groups,
    cpus: Vec<u32>,
    version: Version,
}

impl GroupTree {
    fn new(script: &Script, base: &CgroupPath, cpus: &str, version: Version) -> Self {
        let mut groups = vec![(base.clone(), None)];
        for (i, pick) in script.parents.iter().enumerate() {
            let parent = usize::from(*pick) % groups.len();
            let path = groups[parent].0.join(&format!("g{i}")).unwrap();
            groups.push((path, Some(parent)));
        }
        let cpus = cpus.parse::<CpuSet>().unwrap().iter().collect();
        Self {
            groups,
            cpus,
            version,
        }
    }

    /// Returns a valid state: every child within its parent.
    fn state(&self, raw: &[[u8; 10]]) -> Vec<Files> {
        let mut states: Vec<Files> = Vec::new();
        let mut limits: Vec<Option<i64>> = Vec::new();
        for ((_, parent), raw) in self.groups.iter().zip(raw) {
            let part = |whole: i64, byte: u8| whole * i64::from(byte) / 255;
            let above = parent.and_then(|parent| limits[parent]);
            let quota = match (raw[0] % 4, above) {
                (0, _) => -1,
                (_, Some(above)) => part(above, raw[1]).max(1000),
                (_, None) => 1000 + part(400_000, raw[1]),
            };
            limits.push(if quota < 0 { above } else { Some(quota) });
            let burst = match quota {
                -1 => part(400_000, raw[2]),
                quota => part(quota, raw[2]),
            };
            let allowed: Vec<u32> = match parent {
                Some(parent) => states[*parent][&Resource::CpusetCpus]
                    .parse::<CpuSet>()
                    .unwrap()
                    .iter()
                    .collect(),
                None => self.cpus.clone(),
            };
            let mut set: CpuSet = allowed
                .iter()
                .enumerate()
                .filter(|(i, _)| raw[3] >> (i % 8) & 1 == 1)
                .map(|(_, cpu)| *cpu)
                .collect();
            if set.is_empty() {
                set = CpuSet::from_iter([allowed[usize::from(raw[3]) % allowed.len()]]);
            }
            let idle = raw[4] % 4 == 0 && parent.is_some();
            let mut files = Files::from([
                (Resource::CfsQuota, quota.to_string()),
                (Resource::CfsBurst, burst.to_string()),
                (Resource::CpusetCpus, set.to_string()),
                (Resource::CpuIdle, u8::from(idle).to_string()),
                (
                    Resource::MemoryLimit,
                    match raw[6] {
                        byte if byte % 3 == 0 => "-1".to_owned(),
                        byte => ((i64::from(byte) + 1) << 20).to_string(),
                    },
                ),
            ]);
            if !idle {
                let shares = 2 + i64::from(raw[5]) * 7;
                files.insert(Resource::CpuShares, shares.to_string());
            }
            if self.version == Version::V2 {
                for (resource, byte) in
                    [(Resource::MemoryMin, raw[7]), (Resource::MemoryLow, raw[8])]
                {
                    let parent_cpus = match parent {
                        Some(parent) => states[*parent][&resource].parse().unwrap(),
                        None => 1_i64 << 33,
                    };
                    let bytes = part(parent_cpus >> 12, byte) << 12;
                    files.insert(resource, bytes.to_string());
                }
                let high = if raw[9] % 3 == 0 {
                    i64::MAX
                } else {
                    (i64::from(raw[9]) + 1) << 22
                };
                files.insert(Resource::MemoryHigh, high.to_string());
            }
            states.push(files);
        }
        states
    }
}

/// Checks the whole tree after every accepted write.
#[derive(Debug)]
struct Watch {
    inner: Arc<dyn KernelWriter>,
    seen: OnceLock<(Root, Groups)>,
    wrong: Mutex<Vec<String>>,
}

impl Watch {
    /// Checks the constraints that a write to `path` can break.
    fn check_write(&self, path: &Path, value: &str) {
        let Some((root, groups)) = self.seen.get() else {
            return;
        };
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let read = |at: usize, resource| {
            let text = root.cgroup(&groups[at].0).value(resource).ok().flatten();
            text.unwrap_or_default()
        };
        let number = |at, resource| read(at, resource).parse::<i64>().unwrap_or(0);
        let all = |resource| -> Vec<i64> {
            (0..groups.len())
                .map(|index| number(index, resource))
                .collect()
        };
        let mut wrong = Vec::new();
        let children = || {
            let pair =
                |(index, (_, parent)): (usize, &(_, Option<usize>))| Some((index, (*parent)?));
            groups.iter().enumerate().filter_map(pair)
        };
        match &*file {
            "cpu.cfs_quota_us" | "cpu.cfs_burst_us" | "cpu.max" | "cpu.max.burst" => {
                let (quotas, bursts) = (all(Resource::CfsQuota), all(Resource::CfsBurst));
                for (quota, burst) in quotas.iter().zip(&bursts) {
                    if *quota >= 0 && burst > quota {
                        wrong.push(format!("burst {burst} over quota {quota}"));
                    }
                }
                for (index, parent) in children() {
                    let mut above = Some(parent);
                    while let Some(ancestor) = above {
                        let (own, limit) = (quotas[index], quotas[ancestor]);
                        if own >= 0 && limit >= 0 && own > limit {
                            wrong.push(format!("quota {own} under {limit}"));
                        }
                        above = groups[ancestor].1;
                    }
                }
            }
            "cpuset.cpus" => {
                let sets: Vec<CpuSet> = (0..groups.len())
                    .map(|index| read(index, Resource::CpusetCpus).parse().unwrap())
                    .collect();
                for (index, parent) in children() {
                    let (own, outer) = (&sets[index], &sets[parent]);
                    if !outer.is_empty() && !own.is_subset(outer) {
                        wrong.push(format!("CPUs {own} under {outer}"));
                    }
                }
            }
            "memory.min" | "memory.low" => {
                let resource = match &*file {
                    "memory.min" => Resource::MemoryMin,
                    _ => Resource::MemoryLow,
                };
                let bytes = all(resource);
                for (index, parent) in children() {
                    if bytes[index] > bytes[parent] {
                        wrong.push(format!("{file} {} under {}", bytes[index], bytes[parent]));
                    }
                }
            }
            _ => {}
        }
        let violations = wrong
            .into_iter()
            .map(|violation| format!("after {}={value}: {violation}", path.display()));
        self.wrong.lock().unwrap().extend(violations);
    }
}

impl KernelWriter for Watch {
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        self.inner.write(path, value)?;
        self.check_write(path, value);
        Ok(())
    }
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.make_dir(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir(path)
    }
}

/// Removes the groups of a case on drop, also after a failure.
struct Cleanup(Root, CgroupPath);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = self.0.cgroup(&self.1).remove();
    }
}

/// Runs `script` below the group `base` of the machine at `dir`.
fn run(
    script: &Script,
    dir: &Path,
    writer: Arc<dyn KernelWriter>,
    base: &CgroupPath,
    cpus: &str,
    reached: &mut BatchCoverage,
) -> Result<(), TestCaseError> {
    let watch = Arc::new(Watch {
        inner: writer,
        seen: OnceLock::new(),
        wrong: Mutex::default(),
    });
    let root = Root::with_writer(dir, watch.clone()).unwrap();
    let shape = GroupTree::new(script, base, cpus, root.version());
    let _cleanup = Cleanup(root.clone(), base.clone());
    let controllers = [Controller::Cpu, Controller::Cpuset, Controller::Memory];
    for (group, _) in &shape.groups {
        root.cgroup(group).create(&controllers).unwrap();
    }
    watch
        .seen
        .set((root.clone(), shape.groups.clone()))
        .unwrap();
    let mut executor = Executor::new(root.clone(), Log::default(), Executor::FORCE_AFTER_MS);
    let mut before: Option<Vec<Files>> = None;
    for (step, raw) in script.states.iter().enumerate() {
        let target_state = shape.state(raw);
        let mut intents = Vec::new();
        // Random order: the executor must find a valid one.
        for (at, files) in target_state.iter().enumerate().rev() {
            for (resource, value) in files {
                let target = Target::cgroup(&shape.groups[at].0, *resource);
                // A batch may omit unchanged values.
                let stays = before
                    .as_ref()
                    .is_some_and(|b| b[at].get(resource) == Some(value));
                if stays && raw[at][5] & 1 == 1 {
                    continue;
                }
                if root.cgroup(&shape.groups[at].0).supports(*resource) {
                    intents.push(Intent {
                        target,
                        value: value.clone(),
                        subject: WriteSubject::Group,
                        reason: "test",
                        because: String::new(),
                        verbosity: 3,
                        cacheable: raw[0][0] & 1 == 0,
                        reconciles: None,
                    });
                }
            }
        }
        let now_ms = 1000 * step as u64;
        let applied = executor.apply(intents, now_ms, Timestamp::UNIX_EPOCH);
        prop_assert_eq!(
            (applied.failed, applied.absent),
            (0, 0),
            "step {}: {:?}",
            step,
            executor.refusals()
        );
        prop_assert_eq!(&*watch.wrong.lock().unwrap(), &Vec::<String>::new());
        for (at, files) in target_state.iter().enumerate() {
            let group = &shape.groups[at].0;
            for (resource, value) in files {
                let target = Target::cgroup(group, *resource);
                if root.cgroup(group).supports(*resource) {
                    let says = root.target_holds(&target, value).unwrap();
                    let now = root.read_target(&target).unwrap();
                    prop_assert_eq!(says, Some(true), "step {} {}: {:?}", step, target, now);
                }
            }
        }
        if let Some(before) = &before {
            reached.count(&shape, before, &target_state);
        }
        before = Some(target_state);
    }
    Ok(())
}

impl BatchCoverage {
    /// Counts the effects of a batch that changed the files of the groups.
    fn count(&mut self, shape: &GroupTree, before: &[Files], after: &[Files]) {
        let number = |files: &Files, resource| match files.get(&resource).map(String::as_str) {
            Some("-1") => i64::MAX,
            Some(text) => text.parse::<i64>().unwrap(),
            None => 0,
        };
        let (mut up, mut down) = (0, 0);
        let (mut min_up, mut min_down) = (false, false);
        for (old, new) in before.iter().zip(after) {
            let quota = (
                number(old, Resource::CfsQuota),
                number(new, Resource::CfsQuota),
            );
            up += u32::from(quota.1 > quota.0);
            down += u32::from(quota.1 < quota.0);
            self.quota_off += u32::from(quota.0 < i64::MAX && quota.1 == i64::MAX);
            self.quota_on += u32::from(quota.0 == i64::MAX && quota.1 < i64::MAX);
            let burst = (
                number(old, Resource::CfsBurst),
                number(new, Resource::CfsBurst),
            );
            self.burst_over_old_quota += u32::from(burst.1 > quota.0);
            self.burst_over_new_quota += u32::from(burst.0 > quota.1);
            let set = |files: &Files| files[&Resource::CpusetCpus].parse::<CpuSet>().unwrap();
            let common = set(old).intersection(&set(new));
            self.disjoint_sets += u32::from(common.is_empty());
            self.left_idle +=
                u32::from(old[&Resource::CpuIdle] == "1" && new[&Resource::CpuIdle] == "0");
            let min = (
                number(old, Resource::MemoryMin),
                number(new, Resource::MemoryMin),
            );
            min_up |= min.1 > min.0;
            min_down |= min.1 < min.0;
        }
        self.quota_up += up;
        self.quota_down += down;
        self.both_in_one_batch += u32::from(up > 0 && down > 0);
        self.protection_both_ways += u32::from(min_up && min_down);
        let depth = |group: &CgroupPath| group.depth();
        let deepest = shape.groups.iter().map(|(group, _)| depth(group)).max();
        self.deep += u32::from(deepest >= Some(4));
    }

    /// Asserts that the cases had every effect that the test is for.
    fn assert_interesting(&self, version: Version) {
        let Self {
            quota_up,
            quota_down,
            both_in_one_batch,
            quota_off,
            quota_on,
            burst_over_old_quota,
            burst_over_new_quota,
            disjoint_sets,
            left_idle,
            protection_both_ways,
            deep,
        } = *self;
        let mut counts = vec![
            quota_up,
            quota_down,
            both_in_one_batch,
            quota_off,
            quota_on,
            burst_over_old_quota,
            burst_over_new_quota,
            disjoint_sets,
            left_idle,
            deep,
        ];
        if version == Version::V2 {
            counts.push(protection_both_ways);
        }
        assert!(counts.iter().all(|count| *count >= 3), "{self:?}");
    }
}

/// Runs random batches on a fake kernel.
fn run_on_fake(version: Version) {
    let reached = RefCell::new(BatchCoverage::default());
    let config = Config {
        cases: 64,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&scripts(), |script| {
            let tree = match version {
                Version::V1 => Tree::hybrid("0-5"),
                Version::V2 => Tree::v2("0-5"),
            }
            .unwrap();
            let base = CgroupPath::new("kubepods").unwrap();
            let mut reached = reached.borrow_mut();
            run(
                &script,
                tree.dir(),
                tree.writer(),
                &base,
                "0-5",
                &mut reached,
            )
        })
        .unwrap();
    reached.borrow().assert_interesting(version);
}

#[test]
fn random_trees_on_v1() {
    run_on_fake(Version::V1);
}

#[test]
fn random_trees_on_v2() {
    run_on_fake(Version::V2);
}

#[test]
fn random_trees_on_this_kernel() {
    let root = Root::system().unwrap();
    if !koord_host::features::probe(&root).is_ok_and(|features| features.writable) {
        koord_host::testing::skip("cgroup-write", "the cgroup tree cannot be written");
        return;
    }
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let reached = RefCell::new(BatchCoverage::default());
    let case = RefCell::new(0);
    let config = Config {
        cases: 16,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&scripts(), |script| {
            *case.borrow_mut() += 1;
            let name = format!("koord-property-{}-{}", std::process::id(), case.borrow());
            let base = CgroupPath::new(&name).unwrap();
            let mut reached = reached.borrow_mut();
            let writer = Arc::new(RealWriter);
            run(
                &script,
                Path::new("/"),
                writer,
                &base,
                cpus.trim(),
                &mut reached,
            )
        })
        .unwrap();
    let reached = reached.borrow();
    assert!(reached.both_in_one_batch > 0, "{reached:?}");
}
