//! Runs equal steps on this machine's kernel and on the fake kernel, and compares the results.
//!
//! A step is one line: `mkdir GROUP`, `rmdir GROUP` or `GROUP FILE VALUE`, without koord's own validation.
//! `GROUP` is below a group of the test's own, `.` is that group. `FILE` is looked up in the v1 hierarchy
//! that its name begins with, or in the one named before a slash (`cpuset/cgroup.procs`). `$0` and `$1` in a
//! value are two processes that do nothing. A line `differs: REASON` marks that the fake deliberately returns
//! another result for the next step.
//!
//! After every step both must have returned the same error number, or none, and every file in [`WATCHED`]
//! must have the same content in every group: side effects of the kernel count too.

use crate::support::{CONTROLLERS, TestHierarchy};
use koord_host::root::{KernelWriter, RealWriter};
use koord_host::{CgroupPath, Controller, Root, Version, fake};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The settings and lists that are compared after every step.
const WATCHED: [&str; 32] = [
    "cgroup.controllers",
    "cgroup.freeze",
    "cgroup.procs",
    "cgroup.subtree_control",
    "cpu.cfs_burst_us",
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
    "cpu.idle",
    "cpu.max",
    "cpu.max.burst",
    "cpu.shares",
    "cpu.weight",
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.effective_cpus",
    "cpuset.mems",
    "cpuset.mems.effective",
    "freezer.state",
    "memory.high",
    "memory.limit_in_bytes",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.oom.group",
    "cpu/cgroup.procs",
    "cpuset/cgroup.procs",
    "memory/cgroup.procs",
    "blkio/cgroup.procs",
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

/// Number of attempts for a step that the kernel refuses while it still removes a group.
const PATIENCE: u32 = 100_000;

const TREES: [(&str, Controller); 6] = [
    ("cpu", Controller::Cpu),
    ("cpuacct", Controller::Cpuacct),
    ("cpuset", Controller::Cpuset),
    ("memory", Controller::Memory),
    ("blkio", Controller::Blkio),
    ("freezer", Controller::Freezer),
];

/// A machine, real or fake.
struct LockstepMachine {
    root: Root,
    writer: Arc<dyn KernelWriter>,
    base: CgroupPath,
    /// Groups that the steps have created.
    groups: Vec<String>,
}

impl LockstepMachine {
    fn group(&self, group: &str) -> CgroupPath {
        match group {
            "." => self.base.clone(),
            _ => self.base.join(group).unwrap(),
        }
    }

    /// Returns the path of a group's file in the tree that carries `spec`; `None` without such a tree.
    fn file(&self, group: &str, spec: &str) -> Option<PathBuf> {
        let (tree, name) = match spec.split_once('/') {
            Some((tree, name)) => (tree, name),
            None => (spec.split('.').next().unwrap(), spec),
        };
        let mount = match self.root.version() {
            // One tree; a hierarchy's name has a meaning on v1 only.
            Version::V2 if spec.contains('/') => None,
            Version::V2 => self.root.unified_mount(),
            Version::V1 if tree == "cgroup" => self.root.unified_mount(),
            Version::V1 => TREES
                .iter()
                .find(|(known, _)| *known == tree)
                .and_then(|(_, controller)| self.root.v1_mount(*controller)),
        };
        mount.map(|mount| self.group(group).under(mount).join(name))
    }

    fn step(&mut self, step: &str, pids: &[u32]) -> Result<(), i32> {
        let code = |error: std::io::Error| error.raw_os_error().unwrap();
        let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
        match verb {
            "mkdir" | "rmdir" => {
                for tree in self.root.trees(&Controller::ALL) {
                    // Not every hierarchy of the machine takes part.
                    if !self.base.under(tree).is_dir() {
                        continue;
                    }
                    let dir = self.group(rest).under(tree);
                    match verb {
                        "mkdir" => self.writer.make_dir(&dir).map_err(code)?,
                        _ => self.writer.remove_dir(&dir).map_err(code)?,
                    }
                }
                if verb == "mkdir" && !self.groups.iter().any(|group| group == rest) {
                    self.groups.push(rest.to_owned());
                }
                Ok(())
            }
            group => {
                let (file, value) = rest.split_once(' ').unwrap_or((rest, ""));
                let value = value
                    .replace("$0", &pids[0].to_string())
                    .replace("$1", &pids[1].to_string());
                let Some(path) = self.file(group, file) else {
                    return Ok(());
                };
                self.writer.write(&path, &value).map_err(code)
            }
        }
    }

    fn files(&self, pids: &[u32]) -> BTreeMap<String, Result<String, i32>> {
        let mut files = BTreeMap::new();
        for group in self.groups.iter().map(String::as_str).chain(["."]) {
            for spec in WATCHED {
                let Some(path) = self.file(group, spec) else {
                    continue;
                };
                // The controllers of the test's own group depend on other tests.
                if group == "." && spec == "cgroup.controllers" {
                    continue;
                }
                let content = fs::read_to_string(&path)
                    .map_err(|error| error.raw_os_error().unwrap())
                    .map(|text| match spec.ends_with("cgroup.procs") {
                        true => named(&text, pids),
                        false => text.trim().to_owned(),
                    });
                files.insert(format!("{group} {spec}"), content);
            }
        }
        files
    }
}

/// Formats a list of processes, in no order, with the steps' names.
fn named(text: &str, pids: &[u32]) -> String {
    let mut names: Vec<String> = text
        .lines()
        .map(
            |line| match pids.iter().position(|pid| line == pid.to_string()) {
                Some(index) => format!("${index}"),
                None => line.to_owned(),
            },
        )
        .collect();
    names.sort();
    names.join(" ")
}

/// A step with different results.
pub(crate) struct Difference(String);

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Two machines that run equal steps, and two processes.
pub(crate) struct Lockstep {
    _ground: TestHierarchy,
    _tree: fake::Tree,
    real: LockstepMachine,
    fake: LockstepMachine,
    processes: Vec<Child>,
    removed: bool,
    /// Differences after the last step.
    differences: BTreeSet<String>,
}

impl Lockstep {
    /// Creates both groups. Returns `None`, recorded as a skipped test, where the real one cannot be created.
    pub(crate) fn new() -> Option<Self> {
        let ground = TestHierarchy::new()?;
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        let tree = match ground.root.version() {
            Version::V1 => fake::Tree::hybrid(online.trim()),
            Version::V2 => fake::Tree::v2(online.trim()),
        }
        .unwrap();
        tree.root()
            .cgroup(&ground.path)
            .create(&CONTROLLERS)
            .unwrap();
        let side = |root: &Root, writer| LockstepMachine {
            root: root.clone(),
            writer,
            base: ground.path.clone(),
            groups: Vec::new(),
        };
        let mut lockstep = Self {
            real: side(&ground.root, Arc::new(RealWriter)),
            fake: side(tree.root(), tree.writer()),
            _ground: ground,
            _tree: tree,
            processes: Vec::new(),
            removed: false,
            differences: BTreeSet::new(),
        };
        for _ in 0..2 {
            let process = Command::new("sleep")
                .arg("1000")
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            lockstep.processes.push(process);
        }
        Some(lockstep)
    }

    /// Returns the cgroup version of both.
    pub(crate) fn version(&self) -> Version {
        self.real.root.version()
    }

    /// Runs one step on both.
    pub(crate) fn step(&mut self, step: &str) -> Result<(), Difference> {
        let pids: Vec<u32> = self.processes.iter().map(Child::id).collect();
        let fake = self.fake.step(step, &pids);
        let mut real = self.real.step(step, &pids);
        // The kernel takes a removed group's limits into account until it has freed it.
        let mut patience = if self.removed { PATIENCE } else { 0 };
        while patience > 0 && real == Err(libc::EINVAL) && fake.is_ok() {
            patience -= 1;
            std::thread::yield_now();
            real = self.real.step(step, &pids);
        }
        self.removed |= step.starts_with("rmdir") && real.is_ok();
        let mut text = String::new();
        if real != fake {
            text = format!("    kernel: {real:?}, fake: {fake:?}\n");
        }
        let (real, fake) = (self.real.files(&pids), self.fake.files(&pids));
        // Each difference once: it also exists after later steps.
        let mut differences = BTreeSet::new();
        let files: BTreeSet<_> = real.keys().chain(fake.keys()).collect();
        for file in files {
            let (kernel, fake) = (real.get(file), fake.get(file));
            if kernel != fake {
                let line = format!("    {file}: kernel {kernel:?}, fake {fake:?}\n");
                if !self.differences.contains(&line) {
                    text += &line;
                }
                differences.insert(line);
            }
        }
        self.differences = differences;
        if text.is_empty() {
            return Ok(());
        }
        Err(Difference(format!("{step}\n{text}")))
    }
}

impl Drop for Lockstep {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // The process may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
