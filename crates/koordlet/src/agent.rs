//! The agent's loop body: measure, decide, write. One owner of all node-side state.
//!
//! [`Agent::tick`] does no network I/O and never waits; time and the cluster's view come in as
//! values. The shell around it ([`crate::shell`]) brings both and carries evictions and reports out.

mod decide;

use crate::audit;
use crate::collect::node::NodeCollector;
use crate::collect::pod::{GroupCollector, TrackedPod};
use crate::collect::pressure::Signal;
use crate::executor::{ClaimError, Executor, check_claims};
use crate::gates::Gate;
use crate::metrics::Metrics;
use crate::options::Settings;
use crate::predict::{self, Predictor};
use crate::qos::STRATEGIES;
use crate::qos::batch_resource::Rule;
use crate::qos::cpu_suppress::CpuSuppress;
use crate::qos::memory_evict::{Eviction, Input as MemoryInput, MemoryEvict};
use crate::states::slo::SuppressMode;
use crate::states::{Layout, NodeInfo, PodInfo, Slo, States};
use crate::store::{Axis, PodAxes, Series};
use jiff::Timestamp;
use koord_api::PriorityClass;
use koord_api::qos::KubeQos;
use koord_host::topology::CpuTopology;
use koord_host::{CgroupPath, CpuSet, HostError, Reader, Resource, Root, Scratch};
use koord_model::percentile;
use koord_model::suppress::Processor;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many 1 s samples the node's series keep: the longest window and a margin.
const NODE_SAMPLES: usize = 1830;

/// The time of a tick.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Nanoseconds of a steady clock.
    pub steady_ns: u64,
    /// Wall-clock time.
    pub wall: Timestamp,
}

impl Now {
    /// Milliseconds of the steady clock.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.steady_ns / 1_000_000
    }
}

/// Why the agent could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The kernel's files.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Two strategies want the same file.
    #[error(transparent)]
    Claims(#[from] ClaimError),
    /// A metric could not be made.
    #[error("metrics could not be registered")]
    Metrics,
}

/// Series of the node and the axes of the pods' series.
#[derive(Debug)]
pub(crate) struct NodeSeries {
    pub(crate) axis: Axis,
    pub(crate) node_cpu: Series<f64>,
    pub(crate) node_memory: Series<f64>,
    pub(crate) node_memory_with_cache: Series<f64>,
    pub(crate) system_cpu: Series<f64>,
    pub(crate) system_memory: Series<f64>,
    pub(crate) pods: PodAxes,
}

/// The BE class's group and its open files.
#[derive(Debug)]
struct BatchClass {
    group: CgroupPath,
    usage: GroupCollector,
    quota: Option<Reader<i64>>,
    cpuset: Option<CpuSet>,
}

/// What one tick found out, for whoever drives the agent.
#[derive(Debug, Default)]
pub struct Ticked {
    /// Pods to evict.
    pub evictions: Vec<Eviction>,
    /// Files written.
    pub written: u32,
}

/// The node side of the agent.
#[derive(Debug)]
pub struct Agent {
    pub(crate) series: NodeSeries,
    pub(crate) predictor: Predictor,
    pub(crate) metrics: Metrics,
    root: Root,
    settings: Settings,
    layout: Layout,
    states: Arc<States>,
    scratch: Scratch,
    node: NodeCollector,
    pods: Option<Arc<Vec<PodInfo>>>,
    tracked: FxHashMap<String, TrackedPod>,
    next_id: u64,
    ticks: u64,
    psi: bool,
    schedstat: bool,
    blind: bool,
    bad_mode: Option<String>,
    processors: Vec<Processor>,
    class: BatchClass,
    executor: Executor,
    suppress: CpuSuppress,
    memory: MemoryEvict,
    memory_total: f64,
    planned: Option<(u64, Rule)>,
    trained_ms: Option<u64>,
    restored: bool,
    features_idle: bool,
    last_mode: Option<SuppressMode>,
    audit: audit::Log,
}

impl Agent {
    /// An agent on `root` that follows `states`.
    ///
    /// # Errors
    /// When strategies conflict or the machine's topology cannot be read.
    pub fn new(
        root: Root,
        settings: Settings,
        states: Arc<States>,
        audit: audit::Log,
        metrics: Metrics,
    ) -> Result<Self, AgentError> {
        let claims: Vec<_> = STRATEGIES
            .iter()
            .flat_map(|s| s.claims.iter().copied())
            .collect();
        check_claims(&claims)?;
        let layout = settings.layout.clone();
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
        let axis = Axis::new(NODE_SAMPLES);
        let series = || Series::new(&axis);
        let schedstat = root.proc("self/schedstat").exists();
        Ok(Self {
            series: NodeSeries {
                node_cpu: series(),
                node_memory: series(),
                node_memory_with_cache: series(),
                system_cpu: series(),
                system_memory: series(),
                pods: PodAxes::default(),
                axis,
            },
            predictor: Predictor::new(settings.predict.clone()),
            metrics,
            node: NodeCollector::new(root.clone()),
            executor: Executor::new(root.clone(), audit.clone(), settings.force_update_ms),
            suppress: CpuSuppress::new(settings.pressure),
            memory: MemoryEvict::new(settings.memory_cool_down_ms),
            class: BatchClass {
                group: layout.qos(KubeQos::BestEffort)?,
                usage: GroupCollector::default(),
                quota: None,
                cpuset: None,
            },
            root,
            settings,
            layout,
            states,
            scratch: Scratch::new(),
            pods: None,
            tracked: FxHashMap::default(),
            next_id: 1,
            ticks: 0,
            psi: false,
            schedstat,
            blind: false,
            bad_mode: None,
            processors,
            memory_total: 0.0,
            planned: None,
            trained_ms: None,
            restored: false,
            features_idle: false,
            last_mode: None,
            audit,
        })
    }

    /// The pods being followed, with what is known about them.
    pub(crate) fn tracked(&self) -> impl Iterator<Item = (&PodInfo, &TrackedPod)> {
        self.pods
            .as_deref()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter_map(|info| Some((info, self.tracked.get(&info.uid)?)))
    }

    /// The Node object, when it is known.
    pub(crate) fn node_info(&self) -> Option<Arc<NodeInfo>> {
        self.states.node.load_full()
    }

    /// The audit log.
    #[must_use]
    pub fn audit(&self) -> &audit::Log {
        &self.audit
    }

    /// The state of the suppression rule.
    #[must_use]
    pub fn suppress(&self) -> &CpuSuppress {
        &self.suppress
    }

    /// The number a service has in pressure messages.
    #[must_use]
    pub fn id_of(&self, uid: &str) -> Option<u64> {
        self.tracked.get(uid).map(|pod| pod.id)
    }

    /// Measures, decides and writes.
    pub fn tick(&mut self, now: Now) -> Ticked {
        self.ticks += 1;
        self.follow_pods();
        self.probe();
        self.collect(now);
        let mut ticked = Ticked::default();
        let slo = self.states.slo.load_full();
        let intents = self.decide(now, &slo);
        if !intents.is_empty() {
            let applied = self.executor.apply(intents, now.ms(), now.wall);
            ticked.written = applied.written;
        }
        ticked.evictions = self.evictions(now, &slo);
        self.learn(now);
        ticked
    }

    /// Records that the API server accepted an eviction.
    pub fn evicted(&mut self, eviction: &Eviction, now: Now) {
        self.memory.evicted(&eviction.uid, now.ms());
        self.metrics.evicted("evictPodByBEMemoryEvict");
        let mut entry = audit::Entry::new(
            audit::Subject::Pod,
            0,
            "evictPodByAPI",
            eviction.message.clone(),
        );
        entry.namespace.clone_from(&eviction.namespace);
        entry.name.clone_from(&eviction.name);
        self.audit.record(now.wall, entry);
    }

    fn follow_pods(&mut self) {
        let pods = self.states.pods.load_full();
        let same = match (&pods, &self.pods) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        let mut old = std::mem::take(&mut self.tracked);
        for info in pods.iter().flat_map(|pods| pods.iter()) {
            let mut tracked = old.remove(&info.uid).unwrap_or_else(|| {
                self.next_id += 1;
                TrackedPod::new(self.next_id - 1, &self.series.pods)
            });
            tracked.follow(info);
            self.tracked.insert(info.uid.clone(), tracked);
        }
        self.pods = pods;
        // New pods get their values at once, not at the next reconcile.
        self.planned = None;
    }

    /// What the kernel offers may only become visible with the first group.
    fn probe(&mut self) {
        if !self.psi
            && let Ok(group) = self.layout.qos(KubeQos::Guaranteed)
        {
            let value = self.root.cgroup(&group).value(Resource::CpuPressure);
            self.psi = matches!(value, Ok(Some(_)));
        }
        if self.ticks % 10 == 1 && !self.features_idle {
            let class = self.root.cgroup(&self.class.group);
            self.features_idle = class.supports(Resource::CpuIdle);
        }
    }

    fn collect(&mut self, now: Now) {
        let steady = now.steady_ns;
        let scratch = &mut self.scratch;
        let sample = self.node.sample(steady, scratch);
        self.memory_total = sample.memory_total.unwrap_or(self.memory_total);
        let series = &mut self.series;
        series.axis.push(now.ms());
        series.pods.push(now.ms());
        let node_cpu = sample.cpu.map(|cores| cores * 1000.0);
        series.node_cpu.set(&series.axis, node_cpu);
        series.node_memory.set(&series.axis, sample.memory);
        series
            .node_memory_with_cache
            .set(&series.axis, sample.memory_with_cache);

        let every = u64::from(self.settings.container_memory_every.max(1));
        let (mut pods_cpu, mut pods_memory) = (0.0, 0.0);
        for info in self.pods.iter().flat_map(|pods| pods.iter()) {
            let Some(pod) = self.tracked.get_mut(&info.uid) else {
                continue;
            };
            if info.is_active() {
                pod.group
                    .sample(&self.root, &info.cgroup, steady, true, scratch);
                // In turns, so that every tick does the same work.
                let memory = (self.ticks + pod.id).is_multiple_of(every);
                for (group, container) in &mut pod.containers {
                    container.sample(&self.root, group, steady, memory, scratch);
                }
                pod.held_up = if info.is_best_effort() {
                    None
                } else {
                    pod.pressure
                        .sample(&self.root, &info.cgroup, self.psi, steady, scratch)
                        .map(|(share, _): (f64, Signal)| share)
                };
            } else {
                pod.group = GroupCollector::default();
                pod.held_up = None;
            }
            let cpu = pod.group.cpu.map(|cores| cores * 1000.0);
            pod.cpu.set(&series.pods, cpu);
            pod.memory.set(&series.pods, pod.group.memory);
            pods_cpu += cpu.unwrap_or(0.0);
            pods_memory += pod.group.memory.unwrap_or(0.0);
        }
        let system = |node: Option<f64>, pods: f64| node.map(|node| (node - pods).max(0.0));
        let known = self.pods.is_some();
        let system_cpu = system(node_cpu, pods_cpu).filter(|_| known);
        let system_memory = system(sample.memory, pods_memory).filter(|_| known);
        series.system_cpu.set(&series.axis, system_cpu);
        series.system_memory.set(&series.axis, system_memory);

        // One group, and much depends on it: looked for every time.
        self.class.usage.hurry();
        self.class
            .usage
            .sample(&self.root, &self.class.group, steady, false, scratch);
        self.metrics.node_used(node_cpu, sample.memory);
    }

    fn evictions(&mut self, now: Now, slo: &Slo) -> Vec<Eviction> {
        if !self.settings.gates.is_on(Gate::BEMemoryEvict) {
            return Vec::new();
        }
        let Some(pods) = self.pods.clone() else {
            return Vec::new();
        };
        let with_use: Vec<(&PodInfo, Option<i64>)> = pods
            .iter()
            .map(|pod| {
                let memory = self
                    .tracked
                    .get(&pod.uid)
                    .and_then(|tracked| tracked.group.memory);
                (pod, memory.map(|bytes| bytes as i64))
            })
            .collect();
        let axis = &self.series.axis;
        let window = self.settings.interval_ms.saturating_mul(2);
        let used = self
            .series
            .node_memory
            .window(axis, now.ms(), window)
            .next();
        let capacity = self
            .states
            .node
            .load()
            .as_ref()
            .map(|node| node.capacity.memory)
            .filter(|bytes| *bytes > 0)
            .unwrap_or(self.memory_total as i64);
        self.memory.plan(MemoryInput {
            now_ms: now.ms(),
            slo,
            capacity,
            used: used.map(|(bytes, _)| bytes as i64),
            pods: &with_use,
        })
    }

    /// Loads the models of an earlier run, once the pods are known.
    fn restore(&mut self, now: Now) {
        if self.restored {
            return;
        }
        let Some(pods) = self.pods.clone() else {
            return;
        };
        let wall = now.wall.as_millisecond();
        self.restored = true;
        let mut known: BTreeSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
        known.extend([predict::NODE, predict::SYSTEM].map(str::to_owned));
        known.extend(classes().map(predict::class_uid));
        match self.predictor.restore(&known, wall) {
            Ok(0) => {}
            Ok(models) => tracing::info!(models, "predictor restored"),
            Err(error) => tracing::warn!(%error, "predictor starts afresh"),
        }
    }

    /// Trains the predictor once per interval and keeps its files.
    fn learn(&mut self, now: Now) {
        self.restore(now);
        let interval = self.settings.training_interval_ms;
        let due = match self.trained_ms {
            None => {
                self.trained_ms = Some(now.ms());
                false
            }
            Some(at) => now.ms().saturating_sub(at) >= interval,
        };
        if !due {
            return;
        }
        let Some(pods) = self.pods.clone() else {
            return;
        };
        self.trained_ms = Some(now.ms());
        let wall = now.wall.as_millisecond();
        let mut sums: Vec<(PriorityClass, f64, f64)> =
            classes().map(|class| (class, 0.0, 0.0)).to_vec();
        let (mut cpu, mut memory) = (Vec::new(), Vec::new());
        let p90 = |samples: &mut Vec<f64>| {
            samples.sort_unstable_by(f64::total_cmp);
            percentile::of_sorted(samples, 0.90)
        };
        let (mut all_cpu, mut all_memory) = (0.0, 0.0);
        for pod in pods.iter() {
            let Some(tracked) = self.tracked.get(&pod.uid) else {
                continue;
            };
            let axes = &self.series.pods;
            tracked.cpu.collect(axes, now.ms(), interval, &mut cpu);
            tracked
                .memory
                .collect(axes, now.ms(), interval, &mut memory);
            let (Some(cpu), Some(memory)) = (p90(&mut cpu), p90(&mut memory)) else {
                continue;
            };
            let cores = cpu / 1000.0;
            self.predictor.train(&pod.uid, cores, memory, wall);
            all_cpu += cores;
            all_memory += memory;
            if let Some(sum) = sums.iter_mut().find(|sum| sum.0 == pod.priority_class) {
                sum.1 += cores;
                sum.2 += memory;
            }
        }
        for (class, cores, bytes) in sums {
            self.predictor
                .train(&predict::class_uid(class), cores, bytes, wall);
        }
        let axis = &self.series.axis;
        self.series
            .node_cpu
            .collect(axis, now.ms(), interval, &mut cpu);
        self.series
            .node_memory
            .collect(axis, now.ms(), interval, &mut memory);
        if let (Some(cpu), Some(memory)) = (p90(&mut cpu), p90(&mut memory)) {
            let cores = cpu / 1000.0;
            self.predictor.train(predict::NODE, cores, memory, wall);
            let system = (cores - all_cpu).max(0.0);
            self.predictor.train(
                predict::SYSTEM,
                system,
                (memory - all_memory).max(0.0),
                wall,
            );
        }
        if let Err(error) = self.predictor.maintain(wall) {
            tracing::warn!(%error, "predictor checkpoint");
        }
    }
}

fn classes() -> [PriorityClass; 5] {
    let [a, b, c, d] = PriorityClass::ALL;
    [a, b, c, d, PriorityClass::None]
}

#[cfg(test)]
mod tests;
