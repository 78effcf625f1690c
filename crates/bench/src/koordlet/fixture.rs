//! The node's groups, with a process in every container.

use super::Args;
use anyhow::{Context as _, Result, bail};
use koord_host::root::{Controller, Dirs, Version};
use koord_host::{Cgroup, CgroupPath, Root, features};
use koord_testkit::fake;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for processes to leave their cgroups.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The kernel's greatest `cpu.shares`.
const MAX_SHARES: i64 = 262_144;

/// Size of the machine in the Node object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineSize {
    pub(crate) cpus: u64,
    /// Bytes.
    pub(crate) memory: u64,
}

impl MachineSize {
    /// Returns the size of this machine.
    pub(crate) fn this() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let memory = std::fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| {
                let kib = text.lines().next()?.split_ascii_whitespace().nth(1)?;
                Some(kib.parse::<u64>().ok()? << 10)
            });
        Self {
            cpus,
            memory: memory.unwrap_or(1 << 30),
        }
    }
}

/// Kind of the pod with some index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Batch: best-effort for the kubelet.
    Batch,
    /// A service with limits.
    Limited,
    /// A service without.
    Open,
}

impl Shape {
    pub(crate) fn from_index(index: u32) -> Self {
        match index % 3 {
            0 => Self::Limited,
            1 => Self::Open,
            _ => Self::Batch,
        }
    }

    pub(crate) fn is_batch(self) -> bool {
        self == Self::Batch
    }

    pub(crate) fn kube_qos(self) -> &'static str {
        if self.is_batch() {
            "BestEffort"
        } else {
            "Burstable"
        }
    }

    /// Returns the UID of a pod.
    pub(crate) fn uid(index: u32) -> String {
        format!("00000000-0000-4000-8000-{index:012}")
    }

    /// Returns the ID of a container, without its runtime.
    pub(crate) fn container(index: u32, number: u32) -> String {
        format!("{:064x}", (u64::from(index) << 16 | u64::from(number)) + 1)
    }

    /// Returns the pod's cgroup with the kubelet's cgroupfs driver.
    fn group(self, index: u32) -> String {
        let class = self.kube_qos().to_lowercase();
        format!("kubepods/{class}/pod{}", Self::uid(index))
    }
}

/// Groups below one of our own, and processes in them; removed on drop.
#[derive(Debug)]
pub(crate) struct Groups {
    root: Root,
    /// The directory for `--cgroup-root-dir`.
    cgroup_dir: PathBuf,
    /// The real cgroup above all others.
    top: Option<CgroupPath>,
    processes: Vec<Child>,
    _tree: Option<fake::Tree>,
}

impl Groups {
    /// Makes the top cgroup. `directory` gets links that make it look like the cgroup root: cgroups of the
    /// machine itself stay as they are. Uses plain directories where cgroups cannot be made, or if `fake` is
    /// set. With `psi` they are in the unified tree, too.
    ///
    /// # Errors
    /// When a group or a link cannot be made.
    pub(crate) fn new(fake: bool, psi: bool, directory: &Path) -> Result<Self> {
        let real = Root::system()?;
        if !fake && features::probe(&real)?.writable {
            return Self::real(&real, directory, psi);
        }
        let tree = match psi {
            true => fake::Tree::hybrid("0-1")?,
            false => fake::Tree::v1("0-1")?,
        };
        Ok(Self {
            root: tree.root().clone(),
            cgroup_dir: tree.dir().join("sys/fs/cgroup"),
            top: None,
            processes: Vec::new(),
            _tree: Some(tree),
        })
    }

    /// Creates a cgroup for the fixture, and links its trees below `directory`.
    fn real(real: &Root, directory: &Path, psi: bool) -> Result<Self> {
        let top = CgroupPath::new(&format!("koord-bench-{}", std::process::id()))?;
        if real.version() == Version::V2 && !psi {
            bail!("--psi off needs cgroup v1: here every group has pressure files");
        }
        real.cgroup(&top).create(&Controller::ALL)?;
        let cgroup_dir = directory.join(format!("cgroup-{}", std::process::id()));
        let link = |tree: &Path, name: &Path| {
            let (from, to) = (top.under(tree), cgroup_dir.join(name));
            std::os::unix::fs::symlink(&from, &to)
                .with_context(|| format!("cannot link {} to {}", to.display(), from.display()))
        };
        if real.version() == Version::V2 {
            let tree = real.unified_mount().context("no cgroup tree")?;
            link(tree, Path::new(""))?;
        } else {
            std::fs::create_dir_all(&cgroup_dir)?;
            for controller in real.v1_controllers() {
                if let Some(mount) = real.v1_mount(controller) {
                    link(mount, Path::new(controller.name()))?;
                }
            }
            if let Some(tree) = real.unified_mount().filter(|_| psi) {
                link(tree, Path::new("unified"))?;
            }
        }
        let dirs = Dirs {
            cgroup: cgroup_dir.clone(),
            ..Dirs::below(Path::new("/"))
        };
        Ok(Self {
            root: Root::with_dirs(dirs)?,
            cgroup_dir,
            top: Some(top),
            processes: Vec::new(),
            _tree: None,
        })
    }

    /// Makes a cgroup and its parents.
    ///
    /// # Errors
    /// What the kernel answers.
    pub(crate) fn make(&self, group: &str) -> Result<Cgroup> {
        let group = self.root.cgroup(&CgroupPath::new(group)?);
        group.create(&Controller::ALL)?;
        Ok(group)
    }

    /// Starts this program's `workload` in a cgroup; does nothing if cgroups are not real.
    ///
    /// # Errors
    /// When it cannot be started or moved.
    pub(crate) fn run(&mut self, group: &Cgroup, workload: &[&OsStr]) -> Result<()> {
        if self.top.is_none() {
            return Ok(());
        }
        let program = std::env::current_exe().context("this program's path")?;
        let process = Command::new(&program)
            .arg("workload")
            .args(workload)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a container's process")?;
        let pid = process.id();
        self.processes.push(process);
        Ok(group.add_process(pid)?)
    }

    /// Ends the processes in a cgroup and below, and waits until it is empty.
    ///
    /// # Errors
    /// When processes cannot be listed or ended, or do not end in time.
    pub(crate) fn stop(&mut self, group: &Cgroup) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        loop {
            group.kill()?;
            // Ended processes that were not waited for are still in their cgroup.
            self.processes
                .retain_mut(|process| !matches!(process.try_wait(), Ok(Some(_))));
            if group.procs_recursive()?.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("processes in {} do not end", group.path());
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Sets the greatest weight for the top cgroup, so that other processes on this machine get next to no
    /// CPU time.
    ///
    /// # Errors
    /// What the kernel answers.
    pub(crate) fn outweigh_others(&self) -> Result<()> {
        if let Some(top) = &self.top {
            Root::system()?.cgroup(top).set_cpu_shares(MAX_SHARES)?;
        }
        Ok(())
    }

    /// Returns true if the cgroups are the kernel's.
    pub(crate) fn is_real(&self) -> bool {
        self.top.is_some()
    }

    /// Returns the directory that the agent uses as the cgroup root.
    pub(crate) fn cgroup_dir(&self) -> &Path {
        &self.cgroup_dir
    }

    /// Kills the processes and removes the cgroups.
    fn remove(&mut self) -> Result<()> {
        for process in &mut self.processes {
            let _ = process.kill();
        }
        for process in &mut self.processes {
            let _ = process.wait();
        }
        let Some(top) = self.top.take() else {
            return Ok(());
        };
        let group = Root::system()?.cgroup(&top);
        let end = Instant::now() + TIMEOUT;
        loop {
            match group.remove() {
                Ok(()) => return Ok(()),
                // The kernel takes a moment to empty a group whose processes have ended.
                Err(error) if Instant::now() > end => return Err(error.into()),
                Err(_) => std::thread::park_timeout(Duration::from_millis(100)),
            }
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "failed to remove the fixture's cgroups");
        }
    }
}

/// Makes the kubelet's groups for the pods of [`super::objects::pods`], with a process in every
/// container. Where batch work is to run, that of one batch container computes without pause and counts
/// in `directory`.
///
/// # Errors
/// When a group or process cannot be made.
pub(super) fn fill(groups: &mut Groups, args: &Args, directory: &Path) -> Result<()> {
    groups.make("kubepods/burstable")?;
    groups.make("kubepods/besteffort")?.set_cpu_shares(2)?;
    let threads = args.threads.to_string();
    let doze = ["doze", "--threads", &threads].map(OsStr::new);
    let counter = directory.join("batch-work");
    let hog = ["hog", "--threads", "1", "--counter"].map(OsStr::new);
    let hog: Vec<&OsStr> = hog.into_iter().chain([counter.as_os_str()]).collect();
    let mut hogs = usize::from(args.batch_runs);
    for index in 0..args.pods {
        let shape = Shape::from_index(index);
        let pod = groups.make(&shape.group(index))?;
        for number in 0..args.containers {
            let name = Shape::container(index, number);
            let group = groups.make(&format!("{}/{name}", pod.path().as_str()))?;
            if shape == Shape::Limited {
                group.set_cfs_quota(100_000)?;
                group.set_memory_limit(256 << 20)?;
            }
            let work = if shape.is_batch() && hogs > 0 {
                hogs -= 1;
                &hog[..]
            } else {
                &doze[..]
            };
            groups.run(&group, work)?;
        }
        if shape == Shape::Limited {
            pod.set_cfs_quota(i64::from(args.containers) * 100_000)?;
        }
    }
    Ok(())
}
