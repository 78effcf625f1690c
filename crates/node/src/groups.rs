//! Control groups of this node: creates, records, empties and removes them.

use crate::pod::{GroupSettings, Layout, Qos, shares_of};
use crate::state::{StateError, StateFile};
use koord_host::{CgroupPath, Controller, HostError, Root};
use std::sync::Arc;
use std::time::Duration;

/// Controllers that confine containers; on v1 each has a hierarchy of its own.
const CONTROLLERS: [Controller; 4] = [
    Controller::Cpu,
    Controller::Cpuacct,
    Controller::Cpuset,
    Controller::Memory,
];

/// Number of attempts to remove an emptied group while the kernel still finishes its last process.
const REMOVE_ATTEMPTS: u32 = 50;
/// Interval of the checks for a process that does not die.
const STUCK: Duration = Duration::from_secs(1);
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

/// An error that prevents the use of control groups.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The kernel refuses.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A new group cannot be recorded, so it is not created.
    #[error(transparent)]
    State(#[from] StateError),
    /// A group of that name exists and was not created by this node.
    #[error("control group {0} exists already and is not ours")]
    Foreign(CgroupPath),
}

/// The groups below the configured parent.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    root: Root,
    layout: Layout,
    state: Arc<StateFile>,
    controllers: &'static [Controller],
}

impl Groups {
    /// Returns the groups on `root`, below `parent`.
    pub(crate) fn new(
        root: Root,
        parent: &CgroupPath,
        state: Arc<StateFile>,
    ) -> Result<Self, HostError> {
        Ok(Self {
            root,
            layout: Layout::below(parent)?,
            state,
            controllers: &CONTROLLERS,
        })
    }

    /// Uses every controller, because a container runtime creates groups below those of pods in every
    /// hierarchy.
    pub(crate) fn share_with_runtime(&mut self) {
        self.controllers = &Controller::ALL;
    }

    /// Creates `kubepods` and the QoS classes. `milli` is the machine's CPU that pods may use, in milli-CPUs.
    pub(crate) fn setup(&self, milli: i64) -> Result<(), GroupError> {
        self.make(&self.layout.kubepods)?;
        self.root
            .cgroup(&self.layout.kubepods)
            .set_cpu_shares(shares_of(milli))?;
        for qos in [Qos::Burstable, Qos::BestEffort] {
            let path = self.layout.class(qos)?;
            let new = self.make(&path)?;
            // An earlier creator of the group may have given it the idle policy, under which the kernel
            // refuses weights: the besteffort directory is written once, when it is new.
            if new || qos == Qos::Burstable {
                self.root.cgroup(&path).set_cpu_shares(2)?;
            }
        }
        // A tree that another user created earlier looks complete; only creating a group shows whether this
        // is possible.
        let probe = self.layout.kubepods.join("koord-probe")?;
        self.make(&probe)?;
        self.root.cgroup(&probe).remove()?;
        self.state.note(|state| {
            state.groups.remove(probe.as_str());
        });
        Ok(())
    }

    /// Creates the group of a pod.
    pub(crate) fn make_pod(
        &self,
        qos: Qos,
        uid: &str,
        settings: &GroupSettings,
    ) -> Result<CgroupPath, GroupError> {
        let path = self.layout.pod(qos, uid)?;
        if !self.make(&path)? && !self.state.owns(path.as_str()) {
            return Err(GroupError::Foreign(path));
        }
        self.apply(&path, settings)?;
        Ok(path)
    }

    /// Creates the group of a container inside its pod's.
    pub(crate) fn make_container(
        &self,
        pod: &CgroupPath,
        id: &str,
        settings: &GroupSettings,
    ) -> Result<CgroupPath, GroupError> {
        let path = pod.join(id)?;
        self.make(&path)?;
        self.apply(&path, settings)?;
        Ok(path)
    }

    /// Returns the files through which a process enters a group.
    pub(crate) fn entrances(&self, path: &CgroupPath) -> Vec<std::path::PathBuf> {
        self.root.cgroup(path).entrances()
    }

    /// Sets the weight of the `burstable` directory.
    pub(crate) fn set_burstable(&self, shares: i64) -> Result<(), GroupError> {
        let path = self.layout.class(Qos::Burstable)?;
        self.root.cgroup(&path).set_cpu_shares(shares)?;
        Ok(())
    }

    /// Returns the number of OOM kills in the group; 0 if it cannot be read.
    pub(crate) fn oom_kills(&self, path: &CgroupPath) -> u64 {
        self.root
            .cgroup(path)
            .oom_kills()
            .ok()
            .flatten()
            .unwrap_or(0)
    }

    /// Kills all processes in the group and waits until it is empty.
    pub(crate) async fn empty(&self, path: &CgroupPath) -> Result<(), GroupError> {
        let group = self.root.cgroup(path);
        loop {
            group.kill()?;
            let Some(pid) = group.procs_recursive()?.into_iter().next() else {
                return Ok(());
            };
            match koord_host::process::pidfd(pid)? {
                Some(pidfd) => {
                    // It got SIGKILL: it ends, unless it hangs in the kernel, where the only option is to
                    // check every second.
                    let _ = tokio::time::timeout(STUCK, crate::pidfd::ended(pidfd)).await;
                }
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Empties and removes a group that this node created.
    pub(crate) async fn remove(&self, path: &CgroupPath) -> Result<(), GroupError> {
        if !self.state.owns(path.as_str()) {
            return Ok(());
        }
        let group = self.root.cgroup(path);
        self.empty(path).await?;
        let mut attempt = 0;
        loop {
            match group.remove() {
                Ok(()) => break,
                Err(error) if error.os_error() == Some(EBUSY) && attempt < REMOVE_ATTEMPTS => {
                    attempt += 1;
                    tokio::time::sleep(REMOVE_PAUSE).await;
                    self.empty(path).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.remove_elsewhere(path);
        self.state.change(|state| {
            state
                .groups
                .retain(|group| CgroupPath::new(group).is_ok_and(|group| !group.is_within(path)));
        })?;
        Ok(())
    }

    /// Removes the empty directories of a group that a runtime created in other hierarchies, for example
    /// `devices`.
    fn remove_elsewhere(&self, path: &CgroupPath) {
        let trees = std::fs::read_dir(self.root.sys("fs/cgroup"));
        for tree in trees.into_iter().flatten().flatten() {
            // Most hierarchies have no such group, or another program uses it as well.
            let _ = std::fs::remove_dir(path.under(&tree.path()));
        }
    }

    /// Removes everything that this node created below the parent: pods first, then the empty directories.
    pub(crate) async fn remove_all(&self) {
        let mut paths: Vec<CgroupPath> = self
            .state
            .snapshot()
            .groups
            .iter()
            .filter_map(|path| CgroupPath::new(path).ok())
            .collect();
        // Deepest first.
        paths.sort_by_key(|path| std::cmp::Reverse(path.depth()));
        for path in paths {
            if self.has_foreign_groups(&path) {
                tracing::info!(group = %path, "keeping a control group with groups of others");
                continue;
            }
            if let Err(error) = self.remove(&path).await {
                tracing::warn!(group = %path, %error, "failed to remove a control group");
            }
        }
    }

    /// Returns whether `path`, or a QoS class below it, holds groups that this node did not create; these
    /// must not be killed.
    ///
    /// Groups inside a pod's group that this node created belong to that pod.
    fn has_foreign_groups(&self, path: &CgroupPath) -> bool {
        let mut open = vec![path.clone()];
        while let Some(group) = open.pop() {
            for name in self.root.cgroup(&group).children().unwrap_or_default() {
                match group.join(&name) {
                    Ok(child) if self.state.owns(child.as_str()) => {
                        if !child.as_str().contains("/pod") {
                            open.push(child);
                        }
                    }
                    _ => return true,
                }
            }
        }
        false
    }

    /// Creates a group and records it and its new parents. Returns whether it is new.
    fn make(&self, path: &CgroupPath) -> Result<bool, GroupError> {
        let mut missing = Vec::new();
        let mut next = Some(path.clone());
        while let Some(group) = next.filter(|group| !group.is_root()) {
            if !self.root.cgroup(&group).exists() {
                missing.push(group.as_str().to_owned());
            }
            next = group.parent();
        }
        let new = missing.iter().any(|group| group == path.as_str());
        if !missing.is_empty() {
            // Recorded first: a crash in between leaves a record without a group, not a group without a
            // record.
            self.state
                .change(|state| state.groups.extend(missing.iter().cloned()))?;
        }
        if let Err(error) = self.root.cgroup(path).create(self.controllers) {
            let is_missing = |group: &str| {
                CgroupPath::new(group).is_ok_and(|group| !self.root.cgroup(&group).exists())
            };
            self.state.note(|state| {
                for group in missing.iter().filter(|group| is_missing(group)) {
                    state.groups.remove(group);
                }
            });
            return Err(error.into());
        }
        Ok(new)
    }

    fn apply(&self, path: &CgroupPath, settings: &GroupSettings) -> Result<(), GroupError> {
        let group = self.root.cgroup(path);
        group.set_cpu_shares(settings.shares)?;
        if let Some(quota) = settings.quota {
            group.set_cfs_quota(quota)?;
        }
        if let Some(limit) = settings.memory_limit {
            match group.set_memory_limit(limit) {
                // No memory hierarchy is mounted: the limit cannot be set, but the pod can run.
                Err(error) if error.is_unsupported() => {}
                other => {
                    other?;
                }
            }
        }
        Ok(())
    }
}

const EBUSY: i32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::{Resource, fake};

    fn groups(tree: &fake::Tree, dir: &std::path::Path) -> Groups {
        let (state, _) = StateFile::open(dir, "boot").unwrap();
        Groups::new(tree.root().clone(), &CgroupPath::root(), Arc::new(state)).unwrap()
    }

    async fn pod_lifetime(tree: fake::Tree) {
        let temp = tempfile::tempdir().unwrap();
        let groups = groups(&tree, temp.path());
        groups.setup(4000).unwrap();
        let kubepods = CgroupPath::new("kubepods").unwrap();
        let shares = |path: &CgroupPath| tree.root().cgroup(path).cpu_shares().unwrap().unwrap();
        assert!(
            (4080..=4100).contains(&shares(&kubepods)),
            "{}",
            shares(&kubepods)
        );
        let settings = GroupSettings {
            shares: 512,
            quota: Some(50_000),
            memory_limit: Some(64 << 20),
        };
        let pod = groups.make_pod(Qos::Burstable, "u1", &settings).unwrap();
        let container = groups.make_container(&pod, "c1", &settings).unwrap();
        assert_eq!(container.as_str(), "kubepods/burstable/podu1/c1");
        let group = tree.root().cgroup(&container);
        assert_eq!(group.cfs_quota().unwrap(), Some(50_000));
        assert_eq!(group.memory_limit().unwrap(), Some(64 << 20));
        assert!(!groups.entrances(&container).is_empty());
        groups.set_burstable(512).unwrap();
        groups.remove(&container).await.unwrap();
        assert!(!group.exists());
        groups.remove_all().await;
        assert!(!tree.root().cgroup(&kubepods).exists());
        assert!(groups.state.snapshot().groups.is_empty());
    }

    #[tokio::test]
    async fn a_pods_groups_on_v1() {
        pod_lifetime(fake::Tree::hybrid("0-3").unwrap()).await;
    }

    #[tokio::test]
    async fn a_pods_groups_on_v2() {
        pod_lifetime(fake::Tree::v2("0-3").unwrap()).await;
    }

    #[tokio::test]
    async fn groups_of_others_are_left_alone() {
        let tree = fake::Tree::hybrid("0-3").unwrap();
        let temp = tempfile::tempdir().unwrap();
        let foreign = tree.group("kubepods/burstable/podx").unwrap();
        let groups = groups(&tree, temp.path());
        groups.setup(1000).unwrap();
        let settings = GroupSettings {
            shares: 2,
            quota: None,
            memory_limit: None,
        };
        let error = groups.make_pod(Qos::Burstable, "x", &settings).unwrap_err();
        assert!(matches!(error, GroupError::Foreign(_)), "{error}");
        groups.remove(&foreign).await.unwrap();
        groups.remove_all().await;
        assert!(tree.root().cgroup(&foreign).exists());
        assert!(
            !tree
                .root()
                .cgroup(&CgroupPath::new("kubepods/besteffort").unwrap())
                .exists()
        );
    }

    /// Another cluster may create groups between the end of a process and its restart.
    #[tokio::test]
    async fn groups_made_later_by_others_are_left_alone() {
        let tree = fake::Tree::hybrid("0-3").unwrap();
        let temp = tempfile::tempdir().unwrap();
        let groups = groups(&tree, temp.path());
        groups.setup(1000).unwrap();
        let foreign = tree.group("kubepods/burstable/podx").unwrap();
        groups.remove_all().await;
        let exists = |path: &str| {
            let path = CgroupPath::new(path).unwrap();
            tree.root().cgroup(&path).exists()
        };
        assert!(exists(foreign.as_str()));
        assert!(!exists("kubepods/besteffort"));
        assert!(groups.state.owns("kubepods") && groups.state.owns("kubepods/burstable"));
    }

    #[tokio::test]
    async fn an_idle_besteffort_directory_is_no_obstacle() {
        let tree = fake::Tree::hybrid("0-3").unwrap();
        let temp = tempfile::tempdir().unwrap();
        let besteffort = tree.group("kubepods/besteffort").unwrap();
        tree.root().cgroup(&besteffort).set_cpu_idle(true).unwrap();
        groups(&tree, temp.path()).setup(1000).unwrap();
        assert_eq!(tree.raw(&besteffort, Resource::CpuIdle).unwrap(), "1");
    }

    #[test]
    fn groups_unwritable_tree_error_names_file() {
        let tree = fake::Tree::hybrid("0-3").unwrap();
        let temp = tempfile::tempdir().unwrap();
        tree.refuse("cpu.shares", Some(30));
        let error = groups(&tree, temp.path())
            .setup(1000)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("kubepods/burstable/cpu.shares") && error.contains("Read-only"),
            "{error}"
        );
    }
}
