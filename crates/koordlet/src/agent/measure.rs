//! Measuring: the collectors of node, classes and pods, and the series they fill.

use super::{AgentError, Now};
use crate::collect::follow::Pods;
use crate::collect::node::NodeCollector;
use crate::collect::pod::{GroupCollector, Wanted};
use crate::collect::pressure::{Limits, Pressure};
use crate::options::Settings;
use crate::qos::{HeldUp, Machine, Needs, PodView};
use crate::report::Memory;
use crate::states::{Layout, PodInfo};
use crate::store::{Metric, Store, Subject};
use koord_api::qos::KubeQos;
use koord_host::topology::CpuTopology;
use koord_host::{CgroupPath, Resource, Root, Scratch};
use koord_model::suppress::Processor;
use std::sync::Arc;

/// Containers' memory is sampled every so many ticks.
const CONTAINER_MEMORY_EVERY: u64 = 5;
/// Between two looks at pods that are missing, in ticks.
const SWEEP_EVERY: u64 = 10;

/// Everything that is read from the kernel to know how node and pods fare.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) store: Store,
    pub(crate) pods: Pods,
    pub(crate) machine: Machine,
    /// The group of the BE class.
    pub(crate) batch: CgroupPath,
    /// Which memory the cluster wants to know of.
    pub(crate) memory: Memory,
    root: Root,
    layout: Layout,
    scratch: Scratch,
    node: NodeCollector,
    pressure: Pressure,
    /// Whether somebody asked for pressure at the last tick.
    pressed: bool,
    ticks: u64,
    batch_usage: GroupCollector,
}

impl Measure {
    /// Collectors on `root`.
    ///
    /// # Errors
    /// When the machine's topology cannot be read.
    pub(crate) fn new(root: Root, settings: &Settings) -> Result<Self, AgentError> {
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
            machine: Machine {
                processors,
                schedstat: root.proc("self/schedstat").exists(),
                ..Machine::default()
            },
            batch: settings.layout.qos(KubeQos::BestEffort)?,
            memory: Memory::default(),
            pressure: Pressure::new(root.clone(), Limits::default()),
            pressed: false,
            node: NodeCollector::new(root.clone()),
            root,
            layout: settings.layout.clone(),
            scratch: Scratch::new(),
            ticks: 0,
            batch_usage: GroupCollector::default(),
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
            held_up: (self.pressed)
                .then(|| self.pressure.of(pod.id))
                .flatten()
                .map(|(share, signal)| HeldUp { share, signal }),
        });
        Some(views.collect())
    }

    /// CPU in use by the BE class, in milli-cores.
    pub(crate) fn batch_cpu(&self) -> Option<i64> {
        self.batch_usage.cpu.map(|cores| (cores * 1000.0) as i64)
    }

    /// Follows a new list of pods. Returns the groups of pods that changed: their files may have
    /// been written by the kubelet or the runtime meanwhile.
    pub(crate) fn follow(&mut self, list: Option<Arc<Vec<PodInfo>>>, now: Now) -> Vec<CgroupPath> {
        let (root, store) = (&self.root, &mut self.store);
        if self.ticks.is_multiple_of(SWEEP_EVERY) {
            self.pods.sweep(now.ms(), root, store);
        }
        let Some(changed) = self.pods.follow(list, now.ms(), root, store) else {
            return Vec::new();
        };
        let services = self
            .pods
            .iter()
            .filter(|(info, _)| info.is_active() && !info.is_best_effort())
            .map(|(info, pod)| (pod.id, &info.cgroup, changed.contains(&info.cgroup)));
        self.pressure.follow(services);
        changed
    }

    /// What the kernel offers may only become visible with the first group.
    pub(crate) fn probe(&mut self) {
        if !self.machine.psi
            && let Ok(group) = self.layout.qos(KubeQos::Guaranteed)
        {
            let value = self.root.cgroup(&group).value(Resource::CpuPressure);
            self.machine.psi = matches!(value, Ok(Some(_)));
        }
        if self.ticks % 10 == 1 && !self.machine.cpu_idle {
            let class = self.root.cgroup(&self.batch);
            self.machine.cpu_idle = class.supports(Resource::CpuIdle);
        }
    }

    /// Takes a sample of everything that is always needed, and of what `needs` asks for.
    pub(crate) fn collect(&mut self, now: Now, needs: Needs) {
        self.ticks += 1;
        let steady = now.steady_ns;
        let node = self.node.sample(steady, &mut self.scratch);
        if let Some(total) = node.memory_total {
            self.machine.memory_total = total as i64;
        }
        let node_cpu = node.cpu.map(milli);
        let (pods_cpu, pods_memory) = self.collect_pods(now, needs);
        let system = |node: Option<f64>, pods: f64| node.map(|node| (node - pods).max(0.0));
        let known = self.pods.list().is_some();
        // One group, and much depends on it: looked for every time.
        self.batch_usage.hurry();
        let wanted = Wanted {
            memory: false,
            throttling: false,
        };
        self.batch_usage
            .sample(&self.root, &self.batch, steady, wanted, &mut self.scratch);
        let batch_cpu = self.batch_usage.cpu.map(milli);
        let mut push = |subject, metric, value: Option<f64>| {
            if let Some(value) = value {
                self.store.push((subject, metric), now.ms(), value);
            }
        };
        use Metric::{CpuUsage, MemoryUsage, MemoryUsageWithPageCache};
        push(Subject::Node, CpuUsage, node_cpu);
        push(Subject::Node, MemoryUsage, node.memory);
        push(
            Subject::Node,
            MemoryUsageWithPageCache,
            node.memory_with_cache,
        );
        push(Subject::Batch, CpuUsage, batch_cpu);
        if known {
            let memory = system(node.memory, pods_memory);
            push(Subject::System, CpuUsage, system(node_cpu, pods_cpu));
            push(Subject::System, MemoryUsage, memory);
        }
        if needs.pressure {
            self.pressure.sample(steady, &mut self.scratch);
        } else if self.pressed {
            self.pressure.rest();
        }
        self.pressed = needs.pressure;
    }

    /// Samples pods and containers; returns what all pods use, in milli-cores and bytes.
    fn collect_pods(&mut self, now: Now, needs: Needs) -> (f64, f64) {
        let (root, store, scratch) = (&self.root, &mut self.store, &mut self.scratch);
        let (ticks, policy) = (self.ticks, self.memory);
        let (mut all_cpu, mut all_memory) = (0.0, 0.0);
        self.pods.for_each(|info, pod| {
            if !info.is_active() {
                pod.usage = GroupCollector::default();
                return;
            }
            let wanted = Wanted {
                memory: true,
                throttling: needs.throttling,
            };
            pod.usage
                .sample(root, &info.cgroup, now.steady_ns, wanted, scratch);
            let subject = Subject::Pod(pod.id);
            push_usage(store, subject, &pod.usage, now.ms());
            if policy == Memory::WithPageCache
                && let Some(bytes) = pod.usage.memory_with_cache
            {
                let key = (subject, Metric::MemoryUsageWithPageCache);
                store.push(key, now.ms(), bytes);
            }
            // In turns, so that every tick does the same work.
            let wanted = Wanted {
                memory: (ticks + pod.id).is_multiple_of(CONTAINER_MEMORY_EVERY),
                ..wanted
            };
            for container in &mut pod.containers {
                if !needs.containers && !needs.throttling {
                    container.usage = GroupCollector::default();
                    continue;
                }
                let usage = &mut container.usage;
                usage.sample(root, &container.group, now.steady_ns, wanted, scratch);
                push_usage(store, Subject::Container(container.id), usage, now.ms());
            }
            all_cpu += pod.usage.cpu.unwrap_or(0.0) * 1000.0;
            all_memory += pod.usage.memory.unwrap_or(0.0);
        });
        (all_cpu, all_memory)
    }

    /// The node's newest use within `window_ms`: milli-cores and bytes.
    pub(crate) fn node_use(&self, now_ms: u64, window_ms: u64) -> (Option<f64>, Option<f64>) {
        let newest = |metric| self.store.last((Subject::Node, metric), now_ms, window_ms);
        (newest(Metric::CpuUsage), newest(Metric::MemoryUsage))
    }
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
