//! Input of a strategy: an immutable snapshot of one tick.

use crate::collect::errors::{CollectError, KernelErrors};
use crate::collect::pod::TrackedContainer;
use crate::qos::EvictionHistory;
use crate::settings::Settings;
use crate::states::{Claims, Layout, NodeInfo, PodInfo, Slo, TopologyInfo};
use crate::store::Store;
use crate::time::TickTime;
use koord_host::resctrl::{self, ResctrlGroup};
use koord_host::target::{SchedFeature, Sysctl};
use koord_host::{CgroupPath, Controller, CpuSet, Resource, Root, Target};
use koord_model::blkio::Storage;
use koord_model::guard::Readings;
use koord_model::suppress::{NodeUsage, Processor};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

/// Facts that are known before anything is measured.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Settings of the agent.
    pub settings: &'a Settings,
    /// Settings of the cluster.
    pub slo: &'a Slo,
    /// The Node object; `None` until it was received.
    pub node: Option<&'a NodeInfo>,
    /// The machine and its kernel.
    pub machine: &'a MachineFacts,
    /// The NodeResourceTopology; `None` if there is none.
    pub topology: Option<&'a TopologyInfo>,
    /// Paths of cgroups.
    pub layout: &'a Layout,
}

impl Facts<'_> {
    /// Returns the node's CPU capacity in milli-cores, from the Node object or else the machine.
    #[must_use]
    pub fn cpu_capacity(&self) -> i64 {
        self.node
            .map(|node| node.capacity.cpu)
            .filter(|cpu| *cpu > 0)
            .unwrap_or(self.machine.processors.len() as i64 * 1000)
    }

    /// Returns the node's memory capacity in bytes, from the Node object or else the machine.
    #[must_use]
    pub fn memory_capacity(&self) -> i64 {
        self.node
            .map(|node| node.capacity.memory)
            .filter(|bytes| *bytes > 0)
            .unwrap_or(self.machine.memory_total)
    }

    /// Returns the node's name; empty while it is unknown.
    #[must_use]
    pub fn node_name(&self) -> &str {
        self.node.map_or("", |node| node.name.as_str())
    }
}

/// The machine and the features of its kernel.
#[derive(Debug, Clone, Default)]
pub struct MachineFacts {
    /// CPUs of the machine.
    pub processors: Vec<Processor>,
    /// Installed memory in bytes; 0 before it was read.
    pub memory_total: i64,
    /// True if cgroups have pressure stall information.
    pub psi: bool,
    /// True if run-queue delays of threads can be read.
    pub schedstat: bool,
    /// Files that cgroups of this kernel have, as found in the cgroup of a QoS class.
    pub files: FxHashSet<Resource>,
    /// Page size in bytes.
    pub page_size: i64,
    /// `vendor_id` of the CPU.
    pub cpu_vendor: String,
}

impl MachineFacts {
    /// Returns whether cgroups have this file.
    #[must_use]
    pub fn has(&self, file: Resource) -> bool {
        self.files.contains(&file)
    }
}

/// A pod with its newest samples.
#[derive(Debug, Clone, Copy)]
pub struct PodView<'a> {
    /// State of the pod in the cluster.
    pub info: &'a PodInfo,
    /// Number of the pod's series.
    pub id: u64,
    /// Containers that have a cgroup, with the numbers of their series.
    pub containers: &'a [TrackedContainer],
    /// CPU usage in milli-cores.
    pub cpu: Option<i64>,
    /// Memory usage in bytes, without page cache.
    pub memory: Option<i64>,
    /// Readings of disturbance; empty for batch work, and while no strategy needs them.
    pub readings: Readings,
    /// Largest share of time (0–1) for which one of the containers was throttled by its own limit; 0 without
    /// such a limit, and while no strategy needs it.
    pub throttled_share: f64,
}

/// Reads current values of the kernel on demand. It writes nothing.
#[derive(Debug, Clone, Copy)]
pub struct KernelReader<'a> {
    root: &'a Root,
    errors: &'a Mutex<KernelErrors>,
}

impl<'a> KernelReader<'a> {
    /// Creates a reader of `root` that adds kernel errors to `errors`.
    #[must_use]
    pub fn new(root: &'a Root, errors: &'a Mutex<KernelErrors>) -> Self {
        Self { root, errors }
    }

    /// Ends the round of a strategy.
    ///
    /// # Errors
    /// When there were kernel errors in the round.
    pub fn finish_round(&self) -> Result<(), CollectError> {
        self.errors.lock().finish()
    }

    /// Returns the value that was read; the default after an error.
    fn value_of<T: Default>(&self, read: koord_host::Result<T>) -> T {
        self.errors.lock().value_of(read)
    }

    /// Returns a value in cgroup v1 units; `None` if it cannot be read or the cgroup has been removed.
    #[must_use]
    pub fn value(&self, group: &CgroupPath, file: Resource) -> Option<String> {
        self.value_of(self.root.cgroup(group).value(file))
    }

    /// Returns a number in cgroup v1 units; `None` as for [`Self::value`].
    #[must_use]
    pub fn number(&self, group: &CgroupPath, file: Resource) -> Option<i64> {
        self.value(group, file)?.trim().parse().ok()
    }

    /// Returns the CPU set of a cgroup: the configured one, or the effective one if none is configured (as
    /// initially on v2).
    #[must_use]
    pub fn cpus(&self, group: &CgroupPath) -> Option<CpuSet> {
        let group = self.root.cgroup(group);
        let set = |read: koord_host::Result<Option<CpuSet>>| {
            self.value_of(read).filter(|set| !set.is_empty())
        };
        set(group.cpuset()).or_else(|| set(group.effective_cpuset()))
    }

    /// Returns the direct children of the cgroup `group`, in the hierarchy of `controller`.
    #[must_use]
    pub fn children(&self, group: &CgroupPath, controller: Controller) -> Vec<CgroupPath> {
        self.value_of(self.root.cgroup(group).children_in(controller))
    }
}

impl KernelReader<'_> {
    /// Returns whether the machine has this sysctl.
    #[must_use]
    pub fn has_sysctl(&self, sysctl: Sysctl) -> bool {
        sysctl.exists(self.root)
    }

    /// Returns whether the scheduler has this feature, on or off.
    #[must_use]
    pub fn has_sched_feature(&self, feature: &SchedFeature) -> bool {
        let target = Target::SchedFeature(feature.clone());
        // An unknown feature name makes the read fail, which is no kernel error.
        matches!(self.root.read_target(&target), Ok(Some(_)))
    }

    /// Returns the capabilities of resctrl; `None` if it is not mounted.
    ///
    /// # Errors
    /// When a file cannot be read or parsed.
    pub fn resctrl(&self) -> koord_host::Result<Option<resctrl::Info>> {
        resctrl::info(self.root)
    }

    /// Returns the resctrl groups below the root.
    #[must_use]
    pub fn resctrl_groups(&self) -> Vec<ResctrlGroup> {
        self.value_of(resctrl::groups(self.root))
    }

    /// Returns the threads in a resctrl group; empty if it does not exist.
    #[must_use]
    pub fn resctrl_tasks(&self, group: &ResctrlGroup) -> FxHashSet<u32> {
        let tasks = self.value_of(resctrl::tasks(self.root, group));
        tasks.unwrap_or_default().into_iter().collect()
    }

    /// Returns the current value of a target; `None` if it cannot be read or has been removed.
    #[must_use]
    pub fn target(&self, target: &Target) -> Option<String> {
        self.value_of(self.root.read_target(target))
    }

    /// Returns the processes of a cgroup, or of its children if it has none itself; empty if it does not
    /// exist. Crun and programs that manage cgroups themselves, such as systemd, move all processes into
    /// child cgroups.
    #[must_use]
    pub fn processes(&self, group: &CgroupPath) -> Vec<u32> {
        let direct = self.value_of(self.root.cgroup(group).processes());
        if !direct.is_empty() {
            return direct;
        }
        let below = self.children(group, Controller::Cpu);
        below
            .iter()
            .flat_map(|child| self.processes(child))
            .collect()
    }

    /// Returns the threads of a cgroup, like [`Self::processes`]; empty if it does not exist.
    #[must_use]
    pub fn threads(&self, group: &CgroupPath) -> Vec<u32> {
        let direct = self.value_of(self.root.cgroup(group).tasks());
        if !direct.is_empty() {
            return direct;
        }
        let below = self.children(group, Controller::Cpu);
        below.iter().flat_map(|child| self.threads(child)).collect()
    }
}

/// Snapshot of one tick.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Time of the tick.
    pub now: TickTime,
    /// Number of the tick since the agent started, from 1.
    pub tick: u64,
    /// Facts that are not measured.
    pub facts: Facts<'a>,
    /// Pods of this node; `None` until a first list arrived.
    pub pods: Option<&'a [PodView<'a>]>,
    /// Version of the pod list, which grows with each new list.
    pub pods_version: u64,
    /// Version of the facts, which grows with each change of them.
    pub facts_version: u64,
    /// The node's CPU usage, in milli-cores.
    pub node_cpu: Option<i64>,
    /// The node's memory usage in bytes, without page cache.
    pub node_memory: Option<i64>,
    /// Cgroup of the BE class.
    pub batch: &'a CgroupPath,
    /// CPU usage of the BE class, in milli-cores.
    pub batch_cpu: Option<i64>,
    /// Earlier evictions and refusals.
    pub eviction_history: &'a EvictionHistory,
    /// Samples of all collectors.
    pub store: &'a Store,
    /// The local disks, for block I/O; `None` before they were read.
    pub storage: Option<&'a Storage>,
    /// Volumes that persistent volume claims are bound to.
    pub claims: &'a Claims,
    /// Reader of the kernel's current values.
    pub kernel: KernelReader<'a>,
}

impl<'a> View<'a> {
    /// Returns the pods; none before the first list arrived.
    pub fn pods(&self) -> impl Iterator<Item = &'a PodView<'a>> + use<'a> {
        self.pods.unwrap_or_default().iter()
    }

    /// Returns the current CPU usage of node and pods, in milli-cores; `None` if the pods or the node's usage
    /// are unknown.
    #[must_use]
    pub fn usage(&self) -> Option<NodeUsage> {
        self.pods?;
        let mut usage = NodeUsage {
            node: self.node_cpu?,
            ..NodeUsage::default()
        };
        for pod in self.pods() {
            let used = pod.cpu.unwrap_or(0);
            usage.pods += used;
            if !pod.info.is_best_effort() {
                usage.pods_not_be += used;
            }
        }
        Some(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::fake::Tree;

    #[test]
    fn kernel_value_that_is_unreadable_is_an_error() {
        let tree = Tree::v2("0-3").unwrap();
        let errors = Mutex::default();
        let kernel = KernelReader::new(tree.root(), &errors);
        let removed = CgroupPath::new("kubepods/removed").unwrap();
        assert_eq!(kernel.value(&removed, Resource::CfsQuota), None);
        assert_eq!(kernel.finish_round().map_err(|error| error.count()), Ok(()));
        let group = tree.group("kubepods/a").unwrap();
        tree.feed(&group, Resource::CfsQuota, "much\n").unwrap();
        assert_eq!(kernel.value(&group, Resource::CfsQuota), None);
        assert_eq!(kernel.finish_round().map_err(|error| error.count()), Err(1));
    }
}
