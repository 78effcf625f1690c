//! A strict fake of the kernel's trees, for tests and simulations.
//!
//! Reads use real files in a temporary directory, so the code under test opens, preads and lists as on a real
//! kernel. Changes made through the [`Root`] of a [`Tree`] are checked by the rules of the kernel: what the
//! kernel rejects is rejected with the same error number, and its side effects (weights after `cpu.idle`,
//! effective CPU sets) happen here too. The rules are those of Linux 6.18 with cgroup v1 and of Linux 6.1
//! with cgroup v2; tests/it/comparison.rs compares the fake with the kernel that runs the tests.

mod files;
mod kernel;
mod knobs;
mod processes;
mod resctrl;
mod rules;

pub use resctrl::ResctrlHardware;

use kernel::FakeKernel;
use koord_host::CgroupPath;
use koord_host::Controller;
use koord_host::Resource;
use koord_host::root::{KernelWriter, Root};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An attempted write, reported by [`Tree::writes`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Path of the file relative to the cgroup directory, such as `cpu/kubepods/cpu.shares`; for other files
    /// relative to the machine's directory, such as `proc/12/oom_score_adj`.
    pub file: String,
    /// The value.
    pub value: String,
    /// The error number, when the write was refused.
    pub refused: Option<i32>,
}

/// A fake machine in a temporary directory, which is removed on drop.
#[derive(Debug)]
pub struct Tree {
    dir: PathBuf,
    root: Root,
    kernel: Arc<FakeKernel>,
}

/// Layout of the fake's cgroup trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    V1,
    Hybrid,
    V2,
}

const V1_TREES: [(Controller, &str); 6] = [
    (Controller::Cpu, "cpu"),
    (Controller::Cpuacct, "cpuacct"),
    (Controller::Cpuset, "cpuset"),
    (Controller::Memory, "memory"),
    (Controller::Blkio, "blkio"),
    (Controller::Freezer, "freezer"),
];

impl Tree {
    /// Creates a machine with cgroup v1 only and the online CPUs `online` (list format).
    ///
    /// # Errors
    /// When the temporary directory cannot be filled.
    pub fn v1(online: &str) -> io::Result<Self> {
        Self::build(Layout::V1, online)
    }

    /// Creates a machine with cgroup v1 and a unified tree next to its hierarchies, as most v1 systems have.
    ///
    /// # Errors
    /// As [`Tree::v1`].
    pub fn hybrid(online: &str) -> io::Result<Self> {
        Self::build(Layout::Hybrid, online)
    }

    /// Creates a machine with cgroup v2 only.
    ///
    /// # Errors
    /// As [`Tree::v1`].
    pub fn v2(online: &str) -> io::Result<Self> {
        Self::build(Layout::V2, online)
    }

    /// Creates the directories, the mount table and the kernel of a machine.
    fn build(layout: Layout, online: &str) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("koord-fake-{}-{number}", std::process::id()));
        fs::create_dir_all(dir.join("sys/fs/cgroup"))?;
        fs::create_dir_all(dir.join("proc/self"))?;
        let cgroup = dir.join("sys/fs/cgroup");
        let mut trees: Vec<(String, PathBuf)> = Vec::new();
        let mut mountinfo = String::new();
        if layout == Layout::V2 {
            trees.push(("v2".to_owned(), cgroup.clone()));
            mountinfo.push_str("31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        } else {
            mountinfo.push_str("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n");
            for (controller, name) in V1_TREES {
                trees.push((name.to_owned(), cgroup.join(name)));
                let options = controller.name();
                mountinfo.push_str(&format!(
                    "32 31 0:29 / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{options}\n"
                ));
            }
        }
        if layout == Layout::Hybrid {
            trees.push(("unified".to_owned(), cgroup.join("unified")));
            mountinfo.push_str("38 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        }
        fs::write(dir.join("proc/self/mountinfo"), mountinfo)?;
        let online = online.parse().map_err(io::Error::other)?;
        files::machine(&dir, &online)?;
        let kernel = Arc::new(FakeKernel::new(dir.clone(), cgroup, trees, online)?);
        let root = Root::with_writer(&dir, kernel.clone()).map_err(io::Error::other)?;
        Ok(Self { dir, root, kernel })
    }

    /// Returns the machine, for the code under test.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the directory that holds `proc` and `sys`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes any file, relative to [`Tree::dir`], without checks: `proc/stat`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, relative: &str, content: &str) -> io::Result<()> {
        let path = self.dir.join(relative);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)
    }

    /// Creates NUMA nodes of `cpus` CPUs and `kib` KiB of memory each, half of it free. Two threads make a
    /// core, two NUMA nodes a socket, in which the numbers of cores start at 0.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn put_numa_nodes(&self, nodes: u32, cpus: u32, kib: u64) -> io::Result<()> {
        let put = |path: &str, text: &str| self.put(path, &format!("{text}\n"));
        let online = format!("0-{}", nodes.saturating_sub(1));
        put("sys/devices/system/node/online", &online)?;
        put("sys/devices/system/cpu/smt/active", "1")?;
        for node in 0..nodes {
            let dir = format!("sys/devices/system/node/node{node}");
            let (first, end) = (node * cpus, (node + 1) * cpus);
            put(&format!("{dir}/cpulist"), &format!("{first}-{}", end - 1))?;
            let free = kib / 2;
            let memory = format!("Node {node} MemTotal: {kib} kB\nNode {node} MemFree: {free} kB");
            put(&format!("{dir}/meminfo"), &memory)?;
            for cpu in first..end {
                let dir = format!("sys/devices/system/cpu/cpu{cpu}/topology");
                let socket = (node / 2).to_string();
                put(&format!("{dir}/physical_package_id"), &socket)?;
                let core = cpu % (2 * cpus) / 2;
                put(&format!("{dir}/core_id"), &core.to_string())?;
            }
        }
        Ok(())
    }

    /// Mounts resctrl on `hardware`.
    ///
    /// # Errors
    /// When its files cannot be made.
    pub fn mount_resctrl(&self, hardware: ResctrlHardware) -> io::Result<()> {
        self.kernel.mount_resctrl(&self.dir, hardware)
    }

    /// Creates a group and its parents in every tree.
    ///
    /// # Errors
    /// When the path is invalid or a group cannot be created.
    pub fn group(&self, path: &str) -> koord_host::Result<CgroupPath> {
        let path = CgroupPath::new(path)?;
        self.root.cgroup(&path).create(&Controller::ALL)?;
        Ok(path)
    }

    /// Sets the raw content of a file of a group without checks, creating the file when it is missing: usage
    /// counters, pressure, vendor files.
    ///
    /// # Errors
    /// When the resource does not exist in this version or the file cannot be written.
    pub fn feed(
        &self,
        group: &CgroupPath,
        resource: Resource,
        content: &str,
    ) -> koord_host::Result<()> {
        let path = self.root.cgroup(group).file(resource)?;
        fs::write(&path, content).map_err(|error| koord_host::HostError::io("write", &path, error))
    }

    /// Returns the raw content of a file of a group, trimmed.
    ///
    /// # Errors
    /// When the resource does not exist in this version or the file cannot be read.
    pub fn raw(&self, group: &CgroupPath, resource: Resource) -> koord_host::Result<String> {
        let path = self.root.cgroup(group).file(resource)?;
        let text = fs::read_to_string(&path)
            .map_err(|error| koord_host::HostError::io("read", &path, error))?;
        Ok(text.trim().to_owned())
    }

    /// Takes the writes attempted since the last call, in order.
    #[must_use]
    pub fn writes(&self) -> Vec<Attempt> {
        self.kernel.take_attempts()
    }

    /// Makes every later write to files whose path ends in `suffix` fail with `errno`; `None` ends this.
    pub fn refuse(&self, suffix: &str, errno: Option<i32>) {
        self.kernel.refuse(suffix, errno);
    }

    /// Removes a group with everything in and below it, with or without processes, like another program would.
    ///
    /// # Errors
    /// When a directory cannot be removed.
    pub fn vanish(&self, group: &CgroupPath) -> io::Result<()> {
        let cgroup = self.root.cgroup(group);
        for name in cgroup.children().map_err(io::Error::other)? {
            self.vanish(&group.join(&name).map_err(io::Error::other)?)?;
        }
        for dir in cgroup.dirs() {
            if dir.is_dir() {
                files::clear(&dir)?;
                fs::remove_dir(&dir)?;
            }
        }
        Ok(())
    }

    /// Returns the writer behind [`Tree::root`], for a [`Root`] with other settings.
    #[must_use]
    pub fn writer(&self) -> Arc<dyn KernelWriter> {
        self.kernel.clone()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A leftover in the temporary directory is no reason to panic in a test's unwinding.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
