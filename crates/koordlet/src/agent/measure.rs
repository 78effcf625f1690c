//! Measuring: the collectors of node, classes and pods, and the series they fill.

use super::AgentError;
use super::snapshots::Snapshots;
use crate::collect::batch::{self, BatchCollector};
use crate::collect::cpi;
use crate::collect::errors::{CollectErrorLog, KernelErrors};
use crate::collect::follow::Pods;
use crate::collect::host_app::HostApps;
use crate::collect::needs::Needs;
use crate::collect::node::NodeCollector;
use crate::collect::numa::{self, NumaCollector, NumaSample};
use crate::collect::pod::{GroupCollector, Wanted};
use crate::collect::pressure::{Limits, Pressure};
use crate::collect::slow::Facts;
use crate::collect::table;
use crate::collect::work::Work;
use crate::health::{Collector, State};
use crate::metrics::Metrics;
use crate::qos::{Machine, PodView, guard};
use crate::settings::Settings;
use crate::states::metric_policy::Memory;
use crate::states::slo::HostApp;
use crate::states::{Layout, PodInfo};
use crate::store::{Metric, Store, Subject};
use crate::time::TickTime;
use koord_api::qos::KubeQos;
use koord_host::procfs::CpuInfo;
use koord_host::topology::CpuTopology;
use koord_host::{CgroupPath, Resource, Root, Scratch};
use koord_model::guard::{Readings, Signal};
use koord_model::suppress::Processor;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Containers' memory is sampled every so many ticks.
const CONTAINER_MEMORY_EVERY: u64 = 5;
/// NUMA nodes are sampled every so many ticks, and a pod's memory on them every so many samples.
const NUMA_EVERY: u64 = 5;
const NUMA_ROUND: u64 = 6;
/// Samples within which every file of a group was read: some take turns, and a group that cannot be
/// opened is left alone for a while.
const GROUP_TURNS: u32 = 6;
/// Samples within which a pod whose pressure or packets cannot be read is tried again.
const RETRY_TURNS: u32 = 20;
/// The unit of `memory.numa_stat`.
const PAGE: u64 = 4096;
/// Between two looks at pods that are missing, in ticks.
const SWEEP_EVERY: u64 = 10;

/// Everything that is read from the kernel to know how node and pods fare.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) store: Store,
    pub(crate) pods: Pods,
    pub(crate) host_apps: HostApps,
    /// The NodeSLO's list that they follow.
    apps: Option<Arc<[HostApp]>>,
    pub(crate) machine: Machine,
    /// The group of the BE class.
    pub(crate) batch: CgroupPath,
    /// Which memory the cluster wants to know of.
    pub(crate) memory: Memory,
    /// Whether memory with page cache is kept whatever the cluster wants.
    always_page_cache: bool,
    root: Root,
    layout: Layout,
    scratch: Scratch,
    node: NodeCollector,
    pressure: Pressure,
    /// CPU time of services per unit of work.
    pub(crate) work: Work,
    /// Whether somebody asked for the fast lane.
    pub(crate) fast: bool,
    /// What was asked for at the last tick.
    needs: Needs,
    /// What the slow collectors found.
    pub(crate) facts: Arc<Facts>,
    /// The last round of cold pages that was seen.
    cold_round: u64,
    /// The last windows of counters that were seen.
    cpi_round: u64,
    /// Cycles per instruction by the pod's number, in the one tick after they were counted.
    cpi: FxHashMap<u64, f64>,
    snapshots: Snapshots,
    ticks: u64,
    batch_class: BatchCollector,
    /// CPU in use by the BE class, in milli-cores.
    batch_usage: Option<f64>,
    numa: NumaCollector,
    /// What pods have on each NUMA node, in bytes, by the pod's number.
    numa_pages: FxHashMap<u64, Vec<(u32, u64)>>,
    pub(crate) errors: CollectErrorLog,
}

impl Measure {
    /// Collectors on `root`.
    ///
    /// # Errors
    /// When the machine's topology cannot be read.
    pub(crate) fn new(
        root: Root,
        settings: &Settings,
        metrics: &Metrics,
    ) -> Result<Self, AgentError> {
        let topology = CpuTopology::read(&root)?;
        let processors = topology
            .cpus
            .iter()
            .map(|c| Processor {
                cpu: c.cpu,
                core: c.core,
                socket: c.socket,
                node: c.node,
            })
            .collect();
        Ok(Self {
            store: Store::new(),
            pods: Pods::default(),
            host_apps: HostApps::default(),
            apps: None,
            machine: Machine {
                processors,
                page_size: koord_host::cgroup::resource::page_size(),
                cpu_vendor: CpuInfo::read(&root).map_or_else(|_| String::new(), |cpu| cpu.vendor),
                schedstat: root.proc("self/schedstat").exists(),
                ..Machine::default()
            },
            batch: settings.layout.qos(KubeQos::BestEffort)?,
            memory: Memory::default(),
            always_page_cache: settings.collectors.page_cache,
            pressure: Pressure::new(root.clone(), Limits::default()),
            work: Work::new(root.clone(), settings.collectors.packets),
            fast: false,
            needs: Needs::default(),
            facts: Arc::default(),
            cold_round: 0,
            cpi_round: 0,
            cpi: FxHashMap::default(),
            snapshots: Snapshots::new(settings.snapshot.clone()),
            node: NodeCollector::new(root.clone()),
            layout: settings.layout.clone(),
            scratch: Scratch::new(),
            ticks: 0,
            batch_class: BatchCollector::default(),
            batch_usage: None,
            numa: NumaCollector::new(root.clone(), &topology),
            numa_pages: FxHashMap::default(),
            errors: CollectErrorLog::new(metrics.clone()),
            root,
        })
    }

    /// The pods with their newest samples, for a view; `None` until a first list arrived.
    pub(crate) fn views(&self) -> Option<Vec<PodView<'_>>> {
        self.pods.list()?;
        let views = self.pods.iter().map(|(info, pod)| PodView {
            info,
            id: pod.id,
            containers: &pod.containers,
            cpu: pod.usage.cpu.map(|cores| (cores * 1000.0) as i64),
            memory: pod.usage.memory.map(|bytes| bytes as i64),
            readings: match self.needs.pressure {
                true => self
                    .pressure
                    .readings(pod.id)
                    .with(Signal::CpuPerWork, self.work.of(pod.id))
                    .with(Signal::Cpi, self.cpi.get(&pod.id).copied()),
                false => Readings::default(),
            },
            held_up: pod.held_up(),
        });
        Some(views.collect())
    }

    /// CPU in use by the BE class, in milli-cores.
    pub(crate) fn batch_cpu(&self) -> Option<i64> {
        self.batch_usage.map(|milli| milli as i64)
    }

    /// Follows a new list of pods. Returns the groups of pods that changed: their files may have
    /// been written by the kubelet or the runtime meanwhile.
    pub(crate) fn follow(
        &mut self,
        list: Option<Arc<Vec<PodInfo>>>,
        now: TickTime,
    ) -> Vec<CgroupPath> {
        let (root, store) = (&self.root, &mut self.store);
        self.snapshots.load(now, store);
        if self.ticks.is_multiple_of(SWEEP_EVERY) {
            self.pods.sweep(now.ms(), root, store);
        }
        let Some(changed) = self.pods.follow(list, now.ms(), root, store) else {
            return Vec::new();
        };
        let services = self
            .pods
            .iter()
            .filter(|(info, _)| info.is_active() && guard::vote(info) > 0.0)
            .map(|(info, pod)| (pod.id, &info.cgroup, changed.contains(&info.cgroup)));
        let services: Vec<_> = services.collect();
        let groups = services.iter().map(|(id, group, _)| (*id, *group));
        self.work.follow(groups);
        self.pressure.follow(services.into_iter());
        self.snapshots.give(&self.pods, &mut self.store);
        let ids: FxHashSet<u64> = self.pods.iter().map(|(_, pod)| pod.id).collect();
        self.numa_pages.retain(|id, _| ids.contains(id));
        changed
    }

    /// Follows where groups are and which host applications there are.
    pub(crate) fn settle(&mut self, layout: &Layout, apps: &Arc<[HostApp]>) {
        let moved = self.layout != *layout;
        if moved {
            self.layout = layout.clone();
            match layout.qos(KubeQos::BestEffort) {
                Ok(batch) => {
                    self.batch = batch;
                    self.batch_class = BatchCollector::default();
                }
                Err(error) => tracing::warn!(%error, "the group of the BE class"),
            }
        }
        if !moved
            && self
                .apps
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, apps))
        {
            return;
        }
        self.apps = Some(apps.clone());
        // One without a group was refused when the NodeSLO was read.
        let groups = apps.iter().filter_map(|app| {
            let group = self.layout.host_app(app).ok()?;
            Some((app.name.as_str(), group))
        });
        self.host_apps.follow(groups, &mut self.store);
    }

    /// What the kernel offers may only become visible with the first group.
    pub(crate) fn probe(&mut self) {
        if !self.machine.psi
            && let Ok(group) = self.layout.qos(KubeQos::Guaranteed)
        {
            let value = self.root.cgroup(&group).value(Resource::CpuPressure);
            self.machine.psi = matches!(value, Ok(Some(_)));
        }
        if self.ticks.is_multiple_of(10) && self.machine.files.is_empty() {
            // Any class's group will do: a node may have had no batch pod yet.
            let classes = [KubeQos::BestEffort, KubeQos::Burstable, KubeQos::Guaranteed];
            let groups = classes.iter().filter_map(|qos| self.layout.qos(*qos).ok());
            let files = groups.map(|group| {
                let group = self.root.cgroup(&group);
                let files = Resource::ALL.into_iter();
                files.filter(|file| group.supports(*file)).collect()
            });
            let found = files
                .into_iter()
                .find(|files: &FxHashSet<_>| !files.is_empty());
            self.machine.files = found.unwrap_or_default();
        }
    }

    /// Takes a sample of everything that is always needed, and of what `needs` asks for.
    pub(crate) fn collect(&mut self, now: TickTime, needs: Needs) {
        self.ticks += 1;
        let steady = now.steady_ns;
        let mut errors = KernelErrors::default();
        let node = errors.value_of(self.node.sample(steady, &mut self.scratch));
        self.errors.record("node", 1, errors.finish());
        if let Some(total) = node.memory_total {
            self.machine.memory_total = total as i64;
        }
        let node_cpu = node.cpu.map(milli);
        let (pods_cpu, pods_memory) = self.collect_pods(now, needs);
        let (apps_cpu, apps_memory) = self.host_apps.sample(
            &self.root,
            steady,
            self.with_page_cache(),
            &mut self.scratch,
            &mut self.store,
            &mut errors,
        );
        let round = errors.finish();
        self.errors.record("host applications", GROUP_TURNS, round);
        let rest = |node: Option<f64>, others: f64| node.map(|node| (node - others).max(0.0));
        let known = self.pods.list().is_some();
        let system_cpu = rest(node_cpu, pods_cpu + apps_cpu).filter(|_| known);
        let system_memory = rest(node.memory, pods_memory + apps_memory).filter(|_| known);
        let (root, scratch) = (&self.root, &mut self.scratch);
        let limit = needs.batch_limit;
        self.batch_usage =
            (self.batch_class).sample(root, &self.batch, steady, scratch, &mut errors);
        self.errors.record("batch", 1, errors.finish());
        let real_limit = limit.then(|| batch::real_limit(root, &self.batch, &mut errors));
        self.errors.record("batch limit", 1, errors.finish());
        let request =
            (limit && known).then(|| batch::request(self.pods.iter().map(|(pod, _)| pod)));
        let with_cache = node.memory_with_cache;
        for (subject, metric, value) in [
            (Subject::Node, Metric::CpuUsage, node_cpu),
            (Subject::Node, Metric::MemoryUsage, node.memory),
            (Subject::Node, Metric::MemoryUsageWithPageCache, with_cache),
            (Subject::System, Metric::CpuUsage, system_cpu),
            (Subject::System, Metric::MemoryUsage, system_memory),
            (Subject::Batch, Metric::CpuUsage, self.batch_usage),
            (Subject::Batch, Metric::CpuRealLimit, real_limit.flatten()),
            (Subject::Batch, Metric::CpuRequest, request),
        ] {
            if let Some(value) = value {
                self.store.push((subject, metric), now.ms(), value);
            }
        }
        if self.ticks.is_multiple_of(NUMA_EVERY) {
            self.collect_numa(now, system_cpu);
        }
        self.collect_hot(now);
        self.collect_counts(now);
        if let Some(bytes) = self.snapshots.due(now, &self.pods, &self.store) {
            *self.facts.to_save.lock() = Some(bytes);
        }
        if needs.pressure {
            let round = self.pressure.sample(steady, &mut self.scratch);
            self.errors.record("pressure", RETRY_TURNS, round);
            let used = self.pods.iter().map(|(_, pod)| (pod.id, pod.usage.cpu));
            let used: FxHashMap<u64, Option<f64>> = used.collect();
            let round = (self.work).sample(steady, |id| used.get(&id).copied().flatten());
            self.errors.record("packets", RETRY_TURNS, round);
        } else if self.needs.pressure {
            self.pressure.rest();
            self.work.rest();
        }
        self.fast = needs.pressure && needs.fast_pressure;
        self.facts.watched.store(self.fast, Ordering::Relaxed);
        self.needs = needs;
    }

    fn with_page_cache(&self) -> bool {
        self.always_page_cache || self.memory == Memory::WithPageCache
    }

    /// Samples pods and containers; returns what all pods use, in milli-cores and bytes.
    fn collect_pods(&mut self, now: TickTime, needs: Needs) -> (f64, f64) {
        let (ticks, page_cache) = (self.ticks, self.with_page_cache());
        let (root, store, scratch) = (&self.root, &mut self.store, &mut self.scratch);
        let (mut all_cpu, mut all_memory) = (0.0, 0.0);
        let (mut errors, mut in_containers) = (KernelErrors::default(), KernelErrors::default());
        self.pods.for_each(|info, pod| {
            if !info.is_active() {
                pod.usage = GroupCollector::default();
                return;
            }
            let wanted = Wanted {
                memory: true,
                throttling: false,
            };
            let (steady, group) = (now.steady_ns, &info.cgroup);
            (pod.usage).sample(root, group, steady, wanted, scratch, &mut errors);
            let subject = Subject::Pod(pod.id);
            push_usage(store, subject, &pod.usage, now.ms());
            if page_cache && let Some(bytes) = pod.usage.memory_with_cache {
                let key = (subject, Metric::MemoryUsageWithPageCache);
                store.push(key, now.ms(), bytes);
            }
            for container in &mut pod.containers {
                // What has no limit is not throttled.
                let throttling = needs.throttling && container.limited;
                if !needs.containers && !throttling {
                    container.usage = GroupCollector::default();
                    continue;
                }
                let wanted = Wanted {
                    // In turns, so that every tick does the same work.
                    memory: needs.containers
                        && (ticks + container.id).is_multiple_of(CONTAINER_MEMORY_EVERY),
                    throttling,
                };
                let (usage, group) = (&mut container.usage, &container.group);
                usage.sample(root, group, steady, wanted, scratch, &mut in_containers);
                push_usage(store, Subject::Container(container.id), usage, now.ms());
            }
            all_cpu += pod.usage.cpu.unwrap_or(0.0) * 1000.0;
            all_memory += pod.usage.memory.unwrap_or(0.0);
        });
        let containers = match needs.containers {
            true => "containers",
            false => "throttling",
        };
        self.errors.record("pods", GROUP_TURNS, errors.finish());
        self.errors
            .record(containers, GROUP_TURNS, in_containers.finish());
        (all_cpu, all_memory)
    }

    /// Samples the NUMA nodes; `system` is what no pod uses on the whole node, in milli-cores.
    fn collect_numa(&mut self, now: TickTime, system: Option<f64>) {
        let mut errors = KernelErrors::default();
        let nodes = errors.value_of(self.numa.sample(now.steady_ns, &mut self.scratch));
        // Of each pod once per round: its file is long, and its memory seldom moves.
        let round = NUMA_EVERY * NUMA_ROUND;
        let mut complete = self.pods.list().is_some();
        let mut of_pods: Vec<(u32, u64)> = Vec::new();
        for (info, pod) in self.pods.iter().filter(|(info, _)| info.is_active()) {
            if (self.ticks + pod.id * NUMA_EVERY).is_multiple_of(round) {
                let pages = self.root.cgroup(&info.cgroup).memory_numa_pages();
                let pages = errors.value_of(pages).unwrap_or_default();
                self.numa_pages.insert(pod.id, pages);
            }
            match self.numa_pages.get(&pod.id) {
                None => complete = false,
                Some(pages) => of_pods.extend(pages.iter().map(|(node, n)| (*node, n * PAGE))),
            }
        }
        let round = errors.finish();
        self.errors.record("numa", NUMA_ROUND as u32, round);
        let mut sums: FxHashMap<u32, u64> = FxHashMap::default();
        for (node, bytes) in of_pods {
            *sums.entry(node).or_default() += bytes;
        }
        let sums: Vec<(u32, u64)> = sums.into_iter().collect();
        let system = numa::system_of(&nodes, system, &sums);
        let mut push = |subject, sample: &NumaSample, with_memory: bool| {
            let memory = sample.memory.filter(|_| with_memory);
            for (metric, value) in [
                (Metric::CpuUsage, sample.cpu),
                (Metric::MemoryUsage, memory),
            ] {
                if let Some(value) = value {
                    self.store.push((subject, metric), now.ms(), value);
                }
            }
        };
        for sample in &nodes {
            push(Subject::Numa(sample.node), sample, true);
        }
        for sample in &system {
            push(Subject::NumaSystem(sample.node), sample, complete);
        }
    }

    /// How many steps of the fast lane are one now; `None` while nobody asks for it.
    pub(crate) fn fast_pace(&self) -> Option<u32> {
        self.fast.then(|| self.pressure.pace())
    }

    /// A step of the fast lane.
    pub(crate) fn collect_fast(&mut self, now: TickTime) {
        self.pressure.sample_fast(now.steady_ns, &mut self.scratch);
    }

    /// Takes over what kidled found, when there is something new.
    fn collect_hot(&mut self, now: TickTime) {
        let Some(found) = self.facts.cold.load_full() else {
            return;
        };
        let (round, cold) = &*found;
        if *round == self.cold_round {
            return;
        }
        self.cold_round = *round;
        let metric = Metric::MemoryUsageWithHotPageCache;
        let key = (Subject::Node, metric);
        self.store.push(key, now.ms(), cold.node as f64);
        let of_pods: FxHashMap<&str, u64> = (cold.pods.iter())
            .map(|(uid, bytes)| (uid.as_str(), *bytes))
            .collect();
        for (info, pod) in self.pods.iter() {
            let cold = of_pods.get(info.uid.as_str());
            if let (Some(cold), Some(all)) = (cold, pod.usage.memory_with_cache) {
                let hot = (all - *cold as f64).max(0.0);
                self.store
                    .push((Subject::Pod(pod.id), metric), now.ms(), hot);
            }
        }
        for (name, cold) in &cold.apps {
            if let Some((subject, all)) = self.host_apps.with_page_cache(name) {
                let hot = (all - *cold as f64).max(0.0);
                self.store.push((subject, metric), now.ms(), hot);
            }
        }
    }

    /// Takes over what perf counted, when there is something new.
    fn collect_counts(&mut self, now: TickTime) {
        // A reading is of one tick: the same one twice would pass for two.
        self.cpi.clear();
        let Some(found) = self.facts.cpi.load_full() else {
            return;
        };
        let (round, counts) = &*found;
        if std::mem::replace(&mut self.cpi_round, *round) == *round {
            return;
        }
        for (_, pod) in self.pods.iter() {
            let counted = pod.containers.iter().filter_map(|c| counts.get(&c.group));
            if let Some(cpi) = cpi::of_pod(counted) {
                self.cpi.insert(pod.id, cpi);
            }
        }
        let containers = self.pods.iter().flat_map(|(_, pod)| &pod.containers);
        for container in containers {
            let Some(counted) = counts.get(&container.group) else {
                continue;
            };
            for (metric, value) in [
                (Metric::Cycles, counted.cycles),
                (Metric::Instructions, counted.instructions),
            ] {
                let key = (Subject::Container(container.id), metric);
                self.store.push(key, now.ms(), value as f64);
            }
        }
    }

    /// Writes what shall survive this process.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn save(&self, now: TickTime) -> std::io::Result<()> {
        self.snapshots.save(now, &self.pods, &self.store)
    }

    /// The table of collectors as it stands.
    pub(crate) fn collectors(&self, settings: &Settings) -> Vec<Collector> {
        table::shown(settings, self.needs, self.memory, |name| {
            let standing = self.errors.standing(name).map(failing);
            standing.or_else(|| match name {
                "packets" => self.work.trouble(),
                _ => self.facts.trouble(name),
            })
        })
    }

    /// The node's newest use within `window_ms`: milli-cores and bytes.
    pub(crate) fn node_use(&self, now_ms: u64, window_ms: u64) -> (Option<f64>, Option<f64>) {
        let newest = |metric| self.store.last((Subject::Node, metric), now_ms, window_ms);
        (newest(Metric::CpuUsage), newest(Metric::MemoryUsage))
    }
}

fn failing(error: &str) -> (State, String) {
    (State::Failing, error.to_owned())
}

fn milli(cores: f64) -> f64 {
    cores * 1000.0
}

fn push_usage(store: &mut Store, subject: Subject, usage: &GroupCollector, now_ms: u64) {
    let samples = [
        (Metric::CpuUsage, usage.cpu.map(milli)),
        (Metric::MemoryUsage, usage.memory),
        (Metric::CpuThrottled, usage.throttled),
    ];
    for (metric, value) in samples {
        if let Some(value) = value {
            store.push((subject, metric), now_ms, value);
        }
    }
}
