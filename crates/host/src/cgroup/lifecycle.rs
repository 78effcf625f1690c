//! Creation, removal and the processes of a group.

use super::{Cgroup, Resource};
use crate::controller::Controller;
use crate::error::{HostError, Malformed, Result, is_gone};
use crate::root::Version;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Result of [`Cgroup::kill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KillReport {
    /// Processes that were sent SIGKILL.
    pub signalled: usize,
}

impl Cgroup {
    /// Returns whether the group's directory exists in any mounted tree.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.root()
            .trees(&Controller::ALL)
            .any(|tree| self.path().under(tree).is_dir())
    }

    /// Creates the group (and its parents) in the v1 hierarchies of `controllers` that are mounted
    /// and in the unified tree. On v2 the controllers are enabled on the way down; on v1 an empty
    /// cpuset is filled from its parent, since nothing can run in an empty one.
    ///
    /// Returns the paths of the groups that did not exist before, parents first.
    ///
    /// # Errors
    /// The kernel's error. Groups that were created before the failure are left.
    pub fn create(&self, controllers: &[Controller]) -> Result<Vec<crate::CgroupPath>> {
        let mut chain = vec![self.path().clone()];
        while let Some(parent) = chain.last().and_then(crate::CgroupPath::parent) {
            chain.push(parent);
        }
        chain.reverse();
        let trees: Vec<&Path> = self.root().trees(controllers).collect();
        let mut created = Vec::new();
        for window in chain.windows(2) {
            let [parent, path] = window else { continue };
            let mut new = false;
            for tree in &trees {
                if self.root().version() == Version::V2 {
                    self.enable(&parent.under(tree), controllers)?;
                }
                let dir = path.under(tree);
                match self.root().writer().make_dir(&dir) {
                    Ok(()) => new = true,
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(HostError::io("create", &dir, error)),
                }
            }
            if self.root().version() == Version::V1 && controllers.contains(&Controller::Cpuset) {
                self.root()
                    .cgroup(path)
                    .inherit_cpuset(&self.root().cgroup(parent))?;
            }
            if new {
                created.push(path.clone());
            }
        }
        Ok(created)
    }

    fn inherit_cpuset(&self, parent: &Self) -> Result<()> {
        if self.dir(Controller::Cpuset).is_none() {
            return Ok(());
        }
        for resource in [Resource::CpusetCpus, Resource::CpusetMems] {
            if self.value(resource)?.is_some_and(|list| list.is_empty())
                && let Some(list) = parent.value(resource)?.filter(|list| !list.is_empty())
            {
                self.set_value(resource, &list)?;
            }
        }
        Ok(())
    }

    /// Enables the controllers that the group in `dir` can enable for its children.
    fn enable(&self, dir: &Path, controllers: &[Controller]) -> Result<()> {
        let list = |name: &str| {
            self.root()
                .read(&dir.join(name))
                .map(|text| text.unwrap_or_default())
        };
        let available = list("cgroup.controllers")?;
        let enabled = list("cgroup.subtree_control")?;
        let has = |text: &str, name: &str| text.split_ascii_whitespace().any(|have| have == name);
        let to_enable: BTreeSet<&str> = controllers
            .iter()
            .filter_map(|controller| match controller {
                Controller::Cpu | Controller::Cpuacct => Some("cpu"),
                Controller::Cpuset => Some("cpuset"),
                Controller::Memory => Some("memory"),
                Controller::Blkio => Some("io"),
                Controller::Pids => Some("pids"),
                _ => None,
            })
            .filter(|name| has(&available, name) && !has(&enabled, name))
            .collect();
        if to_enable.is_empty() {
            return Ok(());
        }
        let value: Vec<String> = to_enable.iter().map(|name| format!("+{name}")).collect();
        self.root()
            .write(&dir.join("cgroup.subtree_control"), &value.join(" "))
    }

    /// Returns the child groups in the tree that carries `controller`. Empty when the group is gone.
    ///
    /// # Errors
    /// When the directory exists but cannot be listed.
    pub fn children_in(&self, controller: Controller) -> Result<Vec<crate::CgroupPath>> {
        let Some(dir) = self.dir(controller) else {
            return Ok(Vec::new());
        };
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if is_gone(&error) => return Ok(Vec::new()),
            Err(error) => return Err(HostError::io("list", &dir, error)),
        };
        let mut children = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| HostError::io("list", &dir, error))?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Ok(child) = self.path().join(&entry.file_name().to_string_lossy())
            {
                children.push(child);
            }
        }
        children.sort_unstable();
        Ok(children)
    }

    /// Returns the names of the child groups, from every tree, sorted.
    ///
    /// # Errors
    /// When a directory exists but cannot be listed.
    pub fn children(&self) -> Result<Vec<String>> {
        let mut names = BTreeSet::new();
        for tree in self.root().trees(&Controller::ALL) {
            let dir = self.path().under(tree);
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(HostError::io("list", &dir, error)),
            };
            for entry in entries {
                let entry = entry.map_err(|error| HostError::io("list", &dir, error))?;
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    names.insert(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Removes the group and everything below it, from every tree. A group that still has
    /// processes is not removed.
    ///
    /// # Errors
    /// What the kernel answers, EBUSY in particular. A missing group is not an error.
    pub fn remove(&self) -> Result<()> {
        for child in self.children()? {
            self.root().cgroup(&self.path().join(&child)?).remove()?;
        }
        for dir in self.dirs() {
            match self.root().writer().remove_dir(&dir) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(HostError::io("remove", &dir, error)),
            }
        }
        Ok(())
    }

    /// Returns the directory of this group in every mounted tree; empty for the root group.
    #[must_use]
    pub fn dirs(&self) -> Vec<PathBuf> {
        if self.path().is_root() {
            return Vec::new();
        }
        self.root()
            .trees(&Controller::ALL)
            .map(|tree| self.path().under(tree))
            .collect()
    }

    /// Returns the processes directly in this group, in any tree. Empty when the group is gone.
    ///
    /// # Errors
    /// When a `cgroup.procs` cannot be read or parsed.
    pub fn procs(&self) -> Result<Vec<u32>> {
        self.ids("cgroup.procs")
    }

    /// Returns the processes in this group and below it, in any tree.
    ///
    /// # Errors
    /// As [`Cgroup::procs`].
    pub fn procs_recursive(&self) -> Result<Vec<u32>> {
        let mut all: BTreeSet<u32> = self.procs()?.into_iter().collect();
        for child in self.children()? {
            all.extend(
                self.root()
                    .cgroup(&self.path().join(&child)?)
                    .procs_recursive()?,
            );
        }
        Ok(all.into_iter().collect())
    }

    /// Returns the processes directly in this group, in the tree of its CPU controller. Reads one file only,
    /// for groups that have the same processes in every tree, such as a container's. Empty when the group is
    /// gone.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let path = self.file(Resource::Procs)?;
        Ok(self
            .root()
            .read_short(&path, parse_ids)?
            .unwrap_or_default())
    }

    /// Returns the threads directly in this group.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn tasks(&self) -> Result<Vec<u32>> {
        let path = self.file(Resource::Tasks)?;
        Ok(self
            .root()
            .read_short(&path, parse_ids)?
            .unwrap_or_default())
    }

    fn ids(&self, name: &str) -> Result<Vec<u32>> {
        let mut all = BTreeSet::new();
        for dir in self.dirs() {
            if let Some(ids) = self.root().read_short(&dir.join(name), parse_ids)? {
                all.extend(ids);
            }
        }
        Ok(all.into_iter().collect())
    }

    /// Moves a process into the group, in every tree where the group exists.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn add_process(&self, pid: u32) -> Result<()> {
        for dir in self.dirs().iter().filter(|dir| dir.is_dir()) {
            self.root()
                .write(&dir.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Returns the `cgroup.procs` files through which a process enters this group, for
    /// [`crate::process::Spawn`].
    #[must_use]
    pub fn entrances(&self) -> Vec<PathBuf> {
        let dirs = self.dirs().into_iter().filter(|dir| dir.is_dir());
        dirs.map(|dir| dir.join("cgroup.procs")).collect()
    }

    /// Sends SIGKILL to all processes in the group and below: `cgroup.kill` where the unified tree has it,
    /// and one signal per process for those that remain or are in a v1 hierarchy only. Processes die a moment
    /// later; call again until [`Cgroup::procs_recursive`] is empty.
    ///
    /// # Errors
    /// When the processes cannot be listed or signaled.
    pub fn kill(&self) -> Result<KillReport> {
        if let Some(file) = self.unified_dir().map(|dir| dir.join("cgroup.kill"))
            && !self.path().is_root()
            && file.exists()
        {
            match self.root().write(&file, "1") {
                Ok(()) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        let mut report = KillReport::default();
        for pid in self.procs_recursive()? {
            let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
                continue;
            };
            match kill_process(target, Signal::KILL) {
                Ok(()) => report.signalled += 1,
                Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(HostError::call(format!("kill {pid}"), error)),
            }
        }
        Ok(report)
    }

    /// Freezes (`true`) or thaws (`false`) all processes in the group: `cgroup.freeze` of the unified tree,
    /// else the v1 freezer.
    ///
    /// # Errors
    /// When there is neither, or the kernel refuses.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        if let Some(file) = self.unified_dir().map(|dir| dir.join("cgroup.freeze"))
            && file.exists()
        {
            return self.root().write(&file, if frozen { "1" } else { "0" });
        }
        match self.root().v1_mount(Controller::Freezer) {
            Some(mount) => {
                let file = self.path().under(mount).join("freezer.state");
                self.root()
                    .write(&file, if frozen { "FROZEN" } else { "THAWED" })
            }
            None => Err(HostError::Unsupported {
                resource: "cgroup.freeze",
                version: "the mounted hierarchies",
            }),
        }
    }
}

fn parse_ids(text: &str) -> std::result::Result<Vec<u32>, Malformed> {
    text.lines()
        .filter(|line| !line.is_empty())
        // 0 stands for processes of another pid namespace, which cannot be signaled from here.
        .filter(|line| *line != "0")
        .map(|line| {
            line.parse()
                .map_err(|_| Malformed::new("one id per line", text))
        })
        .collect()
}
