//! CPU and memory by NUMA node.

use super::ctx::{CollectCtx, TickCollector};
use super::errors::{CollectError, KernelErrors};
use crate::store::{Metric, SeriesSubject};
use koord_host::procfs::{self, CpuTicks, MemInfo, ProcStat};
use koord_host::topology::CpuTopology;
use koord_host::{Reader, Root, Scratch};
use rustc_hash::{FxHashMap, FxHashSet};

/// Ticks between two samples of NUMA nodes, and samples of NUMA nodes between two of a pod's memory on them.
pub(super) const EVERY: u64 = 5;
pub(super) const ROUND: u32 = 6;
/// The unit of `memory.numa_stat`.
const PAGE: u64 = 4096;

/// CPU and memory usage of a NUMA node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumaSample {
    /// Number of the NUMA node.
    pub node: u32,
    /// CPU usage in milli-cores; `None` until there are two samples.
    pub cpu: Option<f64>,
    /// Memory in use that cannot be dropped, in bytes.
    pub memory: Option<f64>,
}

/// Reads the CPU lines of `/proc/stat` and the `meminfo` of each NUMA node.
#[derive(Debug)]
pub struct NumaCollector {
    root: Root,
    ticks_per_second: f64,
    nodes: Vec<(u32, Option<Reader<MemInfo>>)>,
    node_of: FxHashMap<u32, u32>,
    stat: Option<Reader<ProcStat>>,
    last: Option<(u64, Vec<(u32, CpuTicks)>)>,
}

impl NumaCollector {
    /// Creates a collector for the machine `topology`.
    #[must_use]
    pub fn new(root: Root, topology: &CpuTopology) -> Self {
        let cpus = topology.cpus.iter();
        Self {
            root,
            ticks_per_second: procfs::ticks_per_second().max(1) as f64,
            nodes: topology.nodes.iter().map(|node| (*node, None)).collect(),
            node_of: cpus.map(|cpu| (cpu.cpu, cpu.node)).collect(),
            stat: None,
            last: None,
        }
    }

    /// Takes a sample at `now_ns` of the monotonic clock, by number of the NUMA node.
    ///
    /// # Errors
    /// When a file cannot be read or parsed.
    pub fn sample(
        &mut self,
        now_ns: u64,
        scratch: &mut Scratch,
    ) -> koord_host::Result<Vec<NumaSample>> {
        if self.stat.is_none() {
            self.stat = Reader::open(self.root.proc("stat"), ProcStat::parse)?;
        }
        let cpus = match &self.stat {
            Some(stat) => stat.read(scratch)?.map(|stat| stat.cpus),
            None => None,
        };
        let mut ticks: FxHashMap<u32, u64> = FxHashMap::default();
        let mut seconds = None;
        if let Some(cpus) = cpus {
            if let Some((at, before)) = &self.last
                && now_ns > *at
            {
                seconds = Some((now_ns - at) as f64 / 1e9);
                let before: FxHashMap<u32, u64> =
                    before.iter().map(|(cpu, t)| (*cpu, t.used())).collect();
                for (cpu, now) in &cpus {
                    // The counter of a CPU that went offline and online starts at zero: skip it once.
                    let grown = before.get(cpu).and_then(|old| now.used().checked_sub(*old));
                    if let (Some(grown), Some(node)) = (grown, self.node_of.get(cpu)) {
                        *ticks.entry(*node).or_default() += grown;
                    }
                }
            }
            self.last = Some((now_ns, cpus));
        }
        let mut samples = Vec::with_capacity(self.nodes.len());
        for (node, file) in &mut self.nodes {
            if file.is_none() {
                let path = format!("devices/system/node/node{node}/meminfo");
                *file = Reader::open(self.root.sys(&path), MemInfo::parse)?;
            }
            let memory = match file {
                Some(file) => file.read(scratch)?.map(|info| info.numa_used() as f64),
                None => None,
            };
            let grown = ticks.get(node).copied().unwrap_or(0) as f64;
            let cpu = seconds.map(|seconds| grown * 1000.0 / (seconds * self.ticks_per_second));
            samples.push(NumaSample {
                node: *node,
                cpu,
                memory,
            });
        }
        Ok(samples)
    }
}

/// Samples NUMA nodes and the usage of pods on them.
#[derive(Debug)]
pub struct NumaUsageCollector {
    nodes: NumaCollector,
    /// Bytes on each NUMA node, by pod number.
    pages: FxHashMap<u64, Vec<(u32, u64)>>,
}

impl NumaUsageCollector {
    /// Creates a collector for the machine `topology`.
    #[must_use]
    pub fn new(root: Root, topology: &CpuTopology) -> Self {
        Self {
            nodes: NumaCollector::new(root, topology),
            pages: FxHashMap::default(),
        }
    }
}

impl TickCollector for NumaUsageCollector {
    fn collect(&mut self, ctx: &mut CollectCtx<'_>) -> Result<(), CollectError> {
        let mut errors = KernelErrors::default();
        let nodes = errors.value_of(self.nodes.sample(ctx.now.steady_ns, ctx.scratch));
        let ids: FxHashSet<u64> = ctx.pods.iter().map(|(_, pod)| pod.id).collect();
        self.pages.retain(|id, _| ids.contains(id));
        // Each pod is read once per round: its file is long, and its memory seldom moves.
        let round = EVERY * u64::from(ROUND);
        let mut complete = ctx.pods.list().is_some();
        let mut of_pods: Vec<(u32, u64)> = Vec::new();
        for (info, pod) in ctx.pods.iter().filter(|(info, _)| info.is_active()) {
            if (ctx.tick + pod.id * EVERY).is_multiple_of(round) {
                let pages = ctx.root.cgroup(&info.cgroup).memory_numa_pages();
                let pages = errors.value_of(pages).unwrap_or_default();
                self.pages.insert(pod.id, pages);
            }
            match self.pages.get(&pod.id) {
                None => complete = false,
                Some(pages) => of_pods.extend(pages.iter().map(|(node, n)| (*node, n * PAGE))),
            }
        }
        let mut sums: FxHashMap<u32, u64> = FxHashMap::default();
        for (node, bytes) in of_pods {
            *sums.entry(node).or_default() += bytes;
        }
        let sums: Vec<(u32, u64)> = sums.into_iter().collect();
        let system = system_of(&nodes, ctx.samples.system_cpu, &sums);
        let mut push = |subject, sample: &NumaSample, with_memory: bool| {
            let memory = sample.memory.filter(|_| with_memory);
            ctx.push(subject, Metric::CpuUsage, sample.cpu);
            ctx.push(subject, Metric::MemoryUsage, memory);
        };
        for sample in &nodes {
            push(SeriesSubject::Numa(sample.node), sample, true);
        }
        for sample in &system {
            push(SeriesSubject::NumaSystem(sample.node), sample, complete);
        }
        errors.finish()
    }
}

/// Returns the usage of each NUMA node outside pods and host applications: its memory less that of `pods`
/// (bytes by node), and the `system` CPU (milli-cores of the whole node) in proportion to the NUMA nodes' CPU
/// usage. The memory of host applications is not known by NUMA node and remains included.
#[must_use]
pub fn system_of(
    samples: &[NumaSample],
    system: Option<f64>,
    pods: &[(u32, u64)],
) -> Vec<NumaSample> {
    let total: f64 = samples.iter().filter_map(|sample| sample.cpu).sum();
    let all = samples.iter().map(|sample| {
        let of_pods = pods.iter().find(|(node, _)| *node == sample.node);
        let of_pods = of_pods.map_or(0.0, |(_, bytes)| *bytes as f64);
        let share = |cpu: f64| if total > 0.0 { cpu / total } else { 0.0 };
        NumaSample {
            node: sample.node,
            cpu: sample
                .cpu
                .zip(system)
                .map(|(cpu, system)| system * share(cpu)),
            memory: sample.memory.map(|memory| (memory - of_pods).max(0.0)),
        }
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::fake::Tree;

    const SECOND: u64 = 1_000_000_000;

    fn machine(stat: &str) -> (Tree, CpuTopology) {
        let tree = Tree::v1("0-3").unwrap();
        tree.put("sys/devices/system/node/online", "0-1\n").unwrap();
        for (node, cpus, free) in [(0, "0-1", 600), (1, "2-3", 100)] {
            let dir = format!("sys/devices/system/node/node{node}");
            tree.put(&format!("{dir}/cpulist"), cpus).unwrap();
            let text = format!(
                "Node {node} MemTotal: 1000 kB\nNode {node} MemFree: {free} kB\n\
                 Node {node} Active(file): 10 kB\nNode {node} Inactive(file): 20 kB\n\
                 Node {node} SReclaimable: 30 kB\n"
            );
            tree.put(&format!("{dir}/meminfo"), &text).unwrap();
        }
        tree.put("proc/stat", stat).unwrap();
        let topology = CpuTopology::read(tree.root()).unwrap();
        (tree, topology)
    }

    fn stat(used: [u64; 4]) -> String {
        let line = |(n, used): (usize, &u64)| format!("cpu{n} {used} 0 0 9 9 0 0 9 0 0\n");
        let cpus: String = used.iter().enumerate().map(line).collect();
        format!("cpu  1 0 0 0 0 0 0 0 0 0\n{cpus}")
    }

    #[test]
    fn use_by_node() {
        let (tree, topology) = machine(&stat([0, 0, 0, 500]));
        let mut collector = NumaCollector::new(tree.root().clone(), &topology);
        let mut scratch = Scratch::new();
        let first = collector.sample(SECOND, &mut scratch).unwrap();
        assert_eq!((first.len(), first[0].cpu), (2, None));
        assert_eq!(first[0].memory, Some(340.0 * 1024.0));
        assert_eq!(first[1].memory, Some(840.0 * 1024.0));
        // Half a core on node 0 within two seconds; CPU 3 was reset and is skipped.
        let ticks = procfs::ticks_per_second();
        tree.put("proc/stat", &stat([ticks, 0, ticks * 2, 1]))
            .unwrap();
        let second = collector.sample(3 * SECOND, &mut scratch).unwrap();
        assert_eq!((second[0].cpu, second[1].cpu), (Some(500.0), Some(1000.0)));
        // What the system uses, and the pods' memory less.
        let system = system_of(&second, Some(600.0), &[(1, 800 * 1024), (0, 1 << 40)]);
        assert_eq!((system[0].cpu, system[1].cpu), (Some(200.0), Some(400.0)));
        assert_eq!(
            (system[0].memory, system[1].memory),
            (Some(0.0), Some(40.0 * 1024.0))
        );
        assert_eq!(system_of(&second, None, &[])[0].cpu, None);
    }

    #[test]
    fn bad_files_cost_the_sample() {
        let (tree, topology) = machine("nonsense\n");
        let mut collector = NumaCollector::new(tree.root().clone(), &topology);
        assert!(collector.sample(SECOND, &mut Scratch::new()).is_err());
        tree.put("proc/stat", &stat([0; 4])).unwrap();
        let samples = collector.sample(2 * SECOND, &mut Scratch::new());
        assert_eq!(samples.unwrap().len(), 2);
    }
}
