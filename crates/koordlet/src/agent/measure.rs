//! Runs the collectors of node, classes and pods, and stores their samples.

use super::AgentError;
use super::snapshots::Snapshots;
use crate::collect::cpi;
use crate::collect::ctx::{CollectCtx, TickCollector, TickSamples};
use crate::collect::errors::CollectErrorLog;
use crate::collect::host_app::HostApps;
use crate::collect::needs::Needs;
use crate::collect::pressure::{Limits, Pressure};
use crate::collect::slow::SlowResults;
use crate::collect::table::{self, COLLECTORS, CollectorSpec, Lane};
use crate::collect::tracked_pods::TrackedPods;
use crate::collect::work::WorkMeter;
use crate::health::{self, State};
use crate::metrics::Metrics;
use crate::qos::{MachineFacts, PodView, guard};
use crate::settings::Settings;
use crate::states::metric_policy::MemoryPolicy;
use crate::states::slo::HostApp;
use crate::states::{Layout, PodInfo};
use crate::store::{Metric, SeriesSubject, Store};
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

/// Ticks between two sweeps of pods that are missing from the list.
const SWEEP_EVERY: u64 = 10;

/// A collector of the loop: a row of [`COLLECTORS`] with its state.
#[derive(Debug)]
struct CollectorState {
    spec: &'static CollectorSpec,
    collector: Box<dyn TickCollector>,
    /// Ticks between two samples.
    every: u64,
    /// True if the collector had demand in the previous tick.
    is_active: bool,
}

/// Collectors of the loop, with the samples and the state of the objects that they measure.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) store: Store,
    pub(crate) pods: TrackedPods,
    pub(crate) host_apps: HostApps,
    /// The NodeSLO's list of host applications that is followed.
    apps: Option<Arc<[HostApp]>>,
    pub(crate) machine: MachineFacts,
    /// Cgroup of the BE class.
    pub(crate) batch: CgroupPath,
    /// Memory figure that the NodeMetric's policy requests.
    pub(crate) memory: MemoryPolicy,
    /// True if memory with page cache is stored whatever the policy requests.
    always_page_cache: bool,
    root: Root,
    layout: Layout,
    scratch: Scratch,
    /// The collectors of the loop, in the order of the table.
    running: Vec<CollectorState>,
    samples: TickSamples,
    pressure: Pressure,
    /// CPU time of services per packet.
    pub(crate) work: WorkMeter,
    /// True if a strategy needs the fast lane.
    pub(crate) fast: bool,
    /// Needs of the strategies at the last tick.
    needs: Needs,
    /// Results of the slow collectors.
    pub(crate) facts: Arc<SlowResults>,
    /// Number of the last processed round of cold pages.
    cold_round: u64,
    /// Number of the last processed window of performance counters.
    cpi_round: u64,
    /// Cycles per instruction by pod number. Filled only in the tick that follows a window of counters.
    cpi: FxHashMap<u64, f64>,
    snapshots: Snapshots,
    ticks: u64,
    pub(crate) errors: CollectErrorLog,
}

impl Measure {
    /// Creates the collectors on `root`.
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
            pods: TrackedPods::default(),
            host_apps: HostApps::default(),
            apps: None,
            machine: MachineFacts {
                processors,
                page_size: koord_host::cgroup::resource::page_size(),
                cpu_vendor: CpuInfo::read(&root).map_or_else(|_| String::new(), |cpu| cpu.vendor),
                schedstat: root.proc("self/schedstat").exists(),
                ..MachineFacts::default()
            },
            batch: settings.layout.qos(KubeQos::BestEffort)?,
            memory: MemoryPolicy::default(),
            always_page_cache: settings.collectors.page_cache,
            pressure: Pressure::new(root.clone(), Limits::default()),
            work: WorkMeter::new(root.clone(), settings.collectors.packets),
            fast: false,
            needs: Needs::default(),
            facts: Arc::default(),
            cold_round: 0,
            cpi_round: 0,
            cpi: FxHashMap::default(),
            snapshots: Snapshots::new(settings.snapshot.clone()),
            running: tick_collectors(&root, settings, &topology),
            samples: TickSamples::default(),
            layout: settings.layout.clone(),
            scratch: Scratch::new(),
            ticks: 0,
            errors: CollectErrorLog::new(metrics.clone()),
            root,
        })
    }

    /// Returns the pods with their newest samples; `None` until the first pod list arrived.
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
                    .with(Signal::CpuPerWork, self.work.cpu_per_packet(pod.id))
                    .with(Signal::Cpi, self.cpi.get(&pod.id).copied()),
                false => Readings::default(),
            },
            throttled_share: pod.throttled_share(),
        });
        Some(views.collect())
    }

    /// Returns the CPU usage of the BE class, in milli-cores.
    pub(crate) fn batch_cpu(&self) -> Option<i64> {
        self.samples.batch_cpu.map(|milli| milli as i64)
    }

    /// Follows a new list of pods. Returns the cgroups of pods that changed: the kubelet or the runtime may
    /// have written their files.
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
        changed
    }

    /// Applies a changed cgroup layout and a changed list of host applications.
    pub(crate) fn update_layout(&mut self, layout: &Layout, apps: &Arc<[HostApp]>) {
        let moved = self.layout != *layout;
        if moved {
            self.layout = layout.clone();
            match layout.qos(KubeQos::BestEffort) {
                Ok(batch) => self.batch = batch,
                Err(error) => tracing::warn!(%error, "failed to name the cgroup of the BE class"),
            }
        }
        if !moved
            && self
                .apps
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, apps))
        {
            return;
        }
        self.apps = Some(apps.clone());
        // Applications without a cgroup were rejected when the NodeSLO was parsed.
        let groups = apps.iter().filter_map(|app| {
            let group = self.layout.host_app(app).ok()?;
            Some((app.name.as_str(), group))
        });
        self.host_apps.follow(groups, &mut self.store);
    }

    /// Detects kernel features that may only become visible with the first cgroup.
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
            let supported = files
                .into_iter()
                .find(|files: &FxHashSet<_>| !files.is_empty());
            self.machine.files = supported.unwrap_or_default();
        }
    }

    /// Runs the collectors of the loop that are due and have demand, in the order of the table.
    pub(crate) fn collect(&mut self, now: TickTime, needs: Needs) {
        self.ticks += 1;
        let page_cache = self.always_page_cache || self.memory == MemoryPolicy::WithPageCache;
        let mut ctx = CollectCtx {
            now,
            tick: self.ticks,
            needs,
            page_cache,
            root: &self.root,
            batch: &self.batch,
            scratch: &mut self.scratch,
            store: &mut self.store,
            pods: &mut self.pods,
            host_apps: &mut self.host_apps,
            pressure: &mut self.pressure,
            work: &mut self.work,
            samples: &mut self.samples,
            along: Vec::new(),
        };
        for running in &mut self.running {
            let CollectorState { spec, .. } = *running;
            let was_active = running.is_active;
            running.is_active = spec.demand.is_met(&needs);
            if !running.is_active {
                if was_active {
                    running.collector.suspend(&mut ctx);
                }
                continue;
            }
            if !self.ticks.is_multiple_of(running.every) {
                continue;
            }
            let round = running.collector.collect(&mut ctx);
            self.errors.record(spec.name, spec.turns, round);
            for (name, round) in ctx.along.drain(..) {
                self.errors.record(name, spec.turns, round);
            }
        }
        for spec in COLLECTORS.iter().filter(|spec| !spec.demand.is_met(&needs)) {
            self.errors.end(spec.name);
        }
        if let Some(total) = self.samples.node.memory_total {
            self.machine.memory_total = total as i64;
        }
        self.collect_hot(now);
        self.collect_counts(now);
        if let Some(bytes) = self.snapshots.due(now, &self.pods, &self.store) {
            *self.facts.to_save.lock() = Some(bytes);
        }
        self.fast = needs.pressure && needs.fast_pressure;
        self.facts.watched.store(self.fast, Ordering::Relaxed);
        self.needs = needs;
    }

    /// Returns how many steps of the fast lane are taken as one; `None` while no strategy needs it.
    pub(crate) fn fast_pace(&self) -> Option<u32> {
        self.fast.then(|| self.pressure.pace())
    }

    /// Runs a step of the fast lane.
    pub(crate) fn collect_fast(&mut self, now: TickTime) {
        self.pressure.sample_fast(now.steady_ns, &mut self.scratch);
    }

    /// Stores the newest result of kidled, if it was not stored before.
    fn collect_hot(&mut self, now: TickTime) {
        let Some(loaded) = self.facts.cold.load_full() else {
            return;
        };
        let (round, cold) = &*loaded;
        if *round == self.cold_round {
            return;
        }
        self.cold_round = *round;
        let metric = Metric::MemoryUsageWithHotPageCache;
        let key = (SeriesSubject::Node, metric);
        self.store.push(key, now.ms(), cold.node as f64);
        let of_pods: FxHashMap<&str, u64> = (cold.pods.iter())
            .map(|(uid, bytes)| (uid.as_str(), *bytes))
            .collect();
        for (info, pod) in self.pods.iter() {
            let cold = of_pods.get(info.uid.as_str());
            if let (Some(cold), Some(all)) = (cold, pod.usage.memory_with_cache) {
                let hot = (all - *cold as f64).max(0.0);
                self.store
                    .push((SeriesSubject::Pod(pod.id), metric), now.ms(), hot);
            }
        }
        for (name, cold) in &cold.apps {
            if let Some((subject, all)) = self.host_apps.with_page_cache(name) {
                let hot = (all - *cold as f64).max(0.0);
                self.store.push((subject, metric), now.ms(), hot);
            }
        }
    }

    /// Stores the newest result of the performance counters, if it was not stored before.
    fn collect_counts(&mut self, now: TickTime) {
        // A reading counts in one tick only: repeated, it would pass for two readings.
        self.cpi.clear();
        let Some(loaded) = self.facts.cpi.load_full() else {
            return;
        };
        let (round, counts) = &*loaded;
        if std::mem::replace(&mut self.cpi_round, *round) == *round {
            return;
        }
        for (_, pod) in self.pods.iter() {
            let counted = pod.containers.iter().filter_map(|c| counts.get(&c.group));
            if let Some(cpi) = cpi::pod_cpi(counted) {
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
                let key = (SeriesSubject::Container(container.id), metric);
                self.store.push(key, now.ms(), value as f64);
            }
        }
    }

    /// Saves the samples that the next start restores.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn save(&self, now: TickTime) -> std::io::Result<()> {
        self.snapshots.save(now, &self.pods, &self.store)
    }

    /// Returns the table of collectors with their current states.
    pub(crate) fn collectors(&self, settings: &Settings) -> Vec<health::Collector> {
        table::collector_rows(settings, self.needs, self.memory, |name| {
            let current_error = self.errors.current_error(name).map(failing);
            current_error.or_else(|| match name {
                "packets" => self.work.problem(),
                _ => self.facts.failure(name),
            })
        })
    }

    /// Returns the node's newest usage within `window_ms`: CPU in milli-cores and memory in bytes.
    pub(crate) fn node_use(&self, now_ms: u64, window_ms: u64) -> (Option<f64>, Option<f64>) {
        let newest = |metric| {
            self.store
                .last((SeriesSubject::Node, metric), now_ms, window_ms)
        };
        (newest(Metric::CpuUsage), newest(Metric::MemoryUsage))
    }
}

fn failing(error: &str) -> (State, String) {
    (State::Failing, error.to_owned())
}

/// Returns the collectors of the loop, in the order of the table.
fn tick_collectors(
    root: &Root,
    settings: &Settings,
    topology: &CpuTopology,
) -> Vec<CollectorState> {
    let rows = COLLECTORS.iter().filter_map(|spec| {
        let Lane::Tick(make) = spec.lane else {
            return None;
        };
        let every = (spec.every_ms)(settings) / settings.interval_ms.max(1);
        Some(CollectorState {
            spec,
            collector: make(root, topology),
            every: every.max(1),
            is_active: false,
        })
    });
    rows.collect()
}
