//! What a strategy sees: an immutable snapshot of one tick.

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
use koord_model::suppress::{Processor, Usage};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

/// What is known before anything is measured.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// What the agent was told at start.
    pub settings: &'a Settings,
    /// The settings of the cluster.
    pub slo: &'a Slo,
    /// The Node object; `None` until it was seen.
    pub node: Option<&'a NodeInfo>,
    /// The machine.
    pub machine: &'a MachineFacts,
    /// The NodeResourceTopology; `None` where there is none.
    pub topology: Option<&'a TopologyInfo>,
    /// Where groups are.
    pub layout: &'a Layout,
}

impl Facts<'_> {
    /// Returns the node's CPU in milli-cores: what the Node object says, else what the machine has.
    #[must_use]
    pub fn cpu_capacity(&self) -> i64 {
        self.node
            .map(|node| node.capacity.cpu)
            .filter(|cpu| *cpu > 0)
            .unwrap_or(self.machine.processors.len() as i64 * 1000)
    }

    /// Returns the node's memory in bytes: what the Node object says, else what the machine has.
    #[must_use]
    pub fn memory_capacity(&self) -> i64 {
        self.node
            .map(|node| node.capacity.memory)
            .filter(|bytes| *bytes > 0)
            .unwrap_or(self.machine.memory_total)
    }

    /// Returns the node's name, empty while it is unknown.
    #[must_use]
    pub fn node_name(&self) -> &str {
        self.node.map_or("", |node| node.name.as_str())
    }
}

/// What the machine is and its kernel offers.
#[derive(Debug, Clone, Default)]
pub struct MachineFacts {
    /// Its CPUs.
    pub processors: Vec<Processor>,
    /// Installed memory in bytes; 0 before it was read.
    pub memory_total: i64,
    /// True if groups have pressure stall information.
    pub psi: bool,
    /// True if threads' run-queue delays can be read.
    pub schedstat: bool,
    /// Which files the groups of this kernel have, as far as the group of a class shows.
    pub files: FxHashSet<Resource>,
    /// Bytes of a page.
    pub page_size: i64,
    /// `vendor_id` of the CPU.
    pub cpu_vendor: String,
}

impl MachineFacts {
    /// Returns whether groups have this file.
    #[must_use]
    pub fn has(&self, file: Resource) -> bool {
        self.files.contains(&file)
    }
}

/// A pod with its newest samples.
#[derive(Debug, Clone, Copy)]
pub struct PodView<'a> {
    /// What the cluster says.
    pub info: &'a PodInfo,
    /// The number of its series.
    pub id: u64,
    /// Its containers that have a group, with the numbers of their series.
    pub containers: &'a [TrackedContainer],
    /// CPU in use, in milli-cores.
    pub cpu: Option<i64>,
    /// Memory in use, in bytes, page cache left out.
    pub memory: Option<i64>,
    /// How it is disturbed: empty for batch work and where nobody asked.
    pub readings: Readings,
    /// Share of the time (0–1) in which a limit of its own held one of its containers up; 0 where it
    /// has none or nobody asked.
    pub held_up: f64,
}

/// The kernel's present values, read when asked for. Nothing is written through it.
#[derive(Debug, Clone, Copy)]
pub struct KernelReader<'a> {
    root: &'a Root,
    errors: &'a Mutex<KernelErrors>,
}

impl<'a> KernelReader<'a> {
    /// Reads from `root`; what the kernel refuses to read goes to `errors`.
    #[must_use]
    pub fn new(root: &'a Root, errors: &'a Mutex<KernelErrors>) -> Self {
        Self { root, errors }
    }

    /// Ends the round of a strategy.
    ///
    /// # Errors
    /// When the kernel refused to read something in it.
    pub fn finish_round(&self) -> Result<(), CollectError> {
        self.errors.lock().finish()
    }

    /// Returns the value that was read; the default when it could not be read.
    fn value_of<T: Default>(&self, read: koord_host::Result<T>) -> T {
        self.errors.lock().value_of(read)
    }

    /// Returns a value in v1 units; `None` when it cannot be read or the group is gone.
    #[must_use]
    pub fn value(&self, group: &CgroupPath, file: Resource) -> Option<String> {
        self.value_of(self.root.cgroup(group).value(file))
    }

    /// Returns a number in v1 units.
    #[must_use]
    pub fn number(&self, group: &CgroupPath, file: Resource) -> Option<i64> {
        self.value(group, file)?.trim().parse().ok()
    }

    /// Returns the CPUs of a group: configured, or in effect where nothing is configured (as on v2 at
    /// first).
    #[must_use]
    pub fn cpus(&self, group: &CgroupPath) -> Option<CpuSet> {
        let group = self.root.cgroup(group);
        let set = |read: koord_host::Result<Option<CpuSet>>| {
            self.value_of(read).filter(|set| !set.is_empty())
        };
        set(group.cpuset()).or_else(|| set(group.effective_cpuset()))
    }

    /// Returns the groups directly in `group`, in the tree that carries `controller`.
    #[must_use]
    pub fn children(&self, group: &CgroupPath, controller: Controller) -> Vec<CgroupPath> {
        self.value_of(self.root.cgroup(group).children_in(controller))
    }
}

impl KernelReader<'_> {
    /// Returns whether the machine has this knob.
    #[must_use]
    pub fn has_sysctl(&self, sysctl: Sysctl) -> bool {
        sysctl.exists(self.root)
    }

    /// Returns whether the scheduler has this feature, on or off.
    #[must_use]
    pub fn has_sched_feature(&self, feature: &SchedFeature) -> bool {
        let target = Target::SchedFeature(feature.clone());
        // A name that this kernel does not have is an error of the read, and no kernel error.
        matches!(self.root.read_target(&target), Ok(Some(_)))
    }

    /// What resctrl can do; `None` when it is not mounted.
    ///
    /// # Errors
    /// When a file cannot be read or understood.
    pub fn resctrl(&self) -> koord_host::Result<Option<resctrl::Info>> {
        resctrl::info(self.root)
    }

    /// Returns the resctrl groups below the root.
    #[must_use]
    pub fn resctrl_groups(&self) -> Vec<ResctrlGroup> {
        self.value_of(resctrl::groups(self.root))
    }

    /// Returns the threads in a resctrl group; none where there is no such group.
    #[must_use]
    pub fn resctrl_tasks(&self, group: &ResctrlGroup) -> FxHashSet<u32> {
        let tasks = self.value_of(resctrl::tasks(self.root, group));
        tasks.unwrap_or_default().into_iter().collect()
    }

    /// Returns a value in the kernel; `None` when it cannot be read or is gone.
    #[must_use]
    pub fn target(&self, target: &Target) -> Option<String> {
        self.value_of(self.root.read_target(target))
    }

    /// Returns the processes of a control group; none where there is no such group. Crun and programs that
    /// manage cgroups themselves, such as systemd, move all processes into groups below.
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

    /// Returns the threads of a control group, as [`Self::processes`]; none where there is no such group.
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

/// One tick.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// When.
    pub now: TickTime,
    /// Since when this agent has run, in ticks from 1.
    pub tick: u64,
    /// What is known.
    pub facts: Facts<'a>,
    /// The pods of this node; `None` until a first list arrived.
    pub pods: Option<&'a [PodView<'a>]>,
    /// Counts the lists of pods: another number is another list.
    pub pods_version: u64,
    /// Counts the changes of the settings and of the Node object.
    pub facts_version: u64,
    /// The node's CPU in use, in milli-cores.
    pub node_cpu: Option<i64>,
    /// The node's memory in use, in bytes, page cache left out.
    pub node_memory: Option<i64>,
    /// The group of the BE class.
    pub batch: &'a CgroupPath,
    /// CPU in use by the BE class, in milli-cores.
    pub batch_cpu: Option<i64>,
    /// How pods stand to earlier evictions.
    pub eviction_history: &'a EvictionHistory,
    /// All samples.
    pub store: &'a Store,
    /// The local disks, for block I/O; `None` before they were read.
    pub storage: Option<&'a Storage>,
    /// Which volumes claims are bound to.
    pub claims: &'a Claims,
    /// The kernel's values now.
    pub kernel: KernelReader<'a>,
}

impl<'a> View<'a> {
    /// Returns the pods, none while they are unknown.
    pub fn pods(&self) -> impl Iterator<Item = &'a PodView<'a>> + use<'a> {
        self.pods.unwrap_or_default().iter()
    }

    /// What everything uses now, in milli-cores; `None` while pods or the node's use are unknown.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.pods?;
        let mut usage = Usage {
            node: self.node_cpu?,
            ..Usage::default()
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
