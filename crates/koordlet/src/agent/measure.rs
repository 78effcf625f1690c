//! Measuring: the collectors of node, classes and pods, and the series they fill.

use super::{AgentError, Now};
use crate::collect::node::NodeCollector;
use crate::collect::pod::{GroupCollector, TrackedPod};
use crate::options::Settings;
use crate::qos::{HeldUp, Machine, Needs, PodView};
use crate::states::{Layout, PodInfo};
use crate::store::{Metric, Store, Subject};
use koord_api::qos::KubeQos;
use koord_host::topology::CpuTopology;
use koord_host::{CgroupPath, Resource, Root, Scratch};
use koord_model::suppress::Processor;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Everything that is read from the kernel to know how node and pods fare.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) store: Store,
    pub(crate) machine: Machine,
    /// The group of the BE class.
    pub(crate) batch: CgroupPath,
    /// Counts the lists of pods.
    pub(crate) version: u64,
    root: Root,
    layout: Layout,
    scratch: Scratch,
    node: NodeCollector,
    pods: Option<Arc<Vec<PodInfo>>>,
    tracked: FxHashMap<String, TrackedPod>,
    next_id: u64,
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
            machine: Machine {
                processors,
                schedstat: root.proc("self/schedstat").exists(),
                ..Machine::default()
            },
            batch: settings.layout.qos(KubeQos::BestEffort)?,
            version: 0,
            node: NodeCollector::new(root.clone()),
            root,
            layout: settings.layout.clone(),
            scratch: Scratch::new(),
            pods: None,
            tracked: FxHashMap::default(),
            next_id: 1,
            ticks: 0,
            batch_usage: GroupCollector::default(),
        })
    }

    /// The pods being followed; `None` until a first list arrived.
    pub(crate) fn pods(&self) -> Option<&Arc<Vec<PodInfo>>> {
        self.pods.as_ref()
    }

    /// The pods being followed, with what is known about them.
    pub(crate) fn tracked(&self) -> impl Iterator<Item = (&PodInfo, &TrackedPod)> {
        self.pods
            .as_deref()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter_map(|info| Some((info, self.tracked.get(&info.uid)?)))
    }

    /// The pods with their newest samples, for a view; `None` until a first list arrived.
    pub(crate) fn views(&self) -> Option<Vec<PodView<'_>>> {
        self.pods.as_ref()?;
        let views = self.tracked().map(|(info, tracked)| PodView {
            info,
            id: tracked.id,
            cpu: tracked.group.cpu.map(|cores| (cores * 1000.0) as i64),
            memory: tracked.group.memory.map(|bytes| bytes as i64),
            held_up: tracked.held_up,
        });
        Some(views.collect())
    }

    /// CPU in use by the BE class, in milli-cores.
    pub(crate) fn batch_cpu(&self) -> Option<i64> {
        self.batch_usage.cpu.map(|cores| (cores * 1000.0) as i64)
    }

    /// Follows a new list of pods. Returns the groups of pods that changed: their files may have
    /// been written by the kubelet or the runtime meanwhile.
    pub(crate) fn follow(&mut self, pods: Option<Arc<Vec<PodInfo>>>) -> Vec<CgroupPath> {
        let same = match (&pods, &self.pods) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (None, None) => true,
            _ => false,
        };
        if same {
            return Vec::new();
        }
        let before: FxHashMap<&str, &PodInfo> = self
            .pods
            .iter()
            .flat_map(|pods| pods.iter())
            .map(|pod| (pod.uid.as_str(), pod))
            .collect();
        let changed = pods
            .iter()
            .flat_map(|pods| pods.iter())
            .filter(|pod| before.get(pod.uid.as_str()) != Some(pod))
            .map(|pod| pod.cgroup.clone())
            .collect();
        let mut old = std::mem::take(&mut self.tracked);
        for info in pods.iter().flat_map(|pods| pods.iter()) {
            let mut tracked = old.remove(&info.uid).unwrap_or_else(|| {
                self.next_id += 1;
                TrackedPod::new(self.next_id - 1)
            });
            for gone in tracked.follow(info, &mut self.next_id) {
                self.store.forget(Subject::Container(gone));
            }
            self.tracked.insert(info.uid.clone(), tracked);
        }
        for gone in old.into_values() {
            self.store.forget(Subject::Pod(gone.id));
            for container in &gone.containers {
                self.store.forget(Subject::Container(container.id));
            }
        }
        self.pods = pods;
        self.version += 1;
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
        let (steady, at) = (now.steady_ns, now.ms());
        let scratch = &mut self.scratch;
        let store = &mut self.store;
        let mut push = |subject, metric, value: Option<f64>| {
            if let Some(value) = value {
                store.push((subject, metric), at, value);
            }
        };
        let sample = self.node.sample(steady, scratch);
        if let Some(total) = sample.memory_total {
            self.machine.memory_total = total as i64;
        }
        let node_cpu = sample.cpu.map(milli);
        push(Subject::Node, Metric::CpuUsage, node_cpu);
        push(Subject::Node, Metric::MemoryUsage, sample.memory);
        push(
            Subject::Node,
            Metric::MemoryUsageWithPageCache,
            sample.memory_with_cache,
        );

        let (mut pods_cpu, mut pods_memory) = (0.0, 0.0);
        for info in self.pods.iter().flat_map(|pods| pods.iter()) {
            let Some(pod) = self.tracked.get_mut(&info.uid) else {
                continue;
            };
            pod.held_up = None;
            if !info.is_active() {
                pod.group = GroupCollector::default();
                continue;
            }
            pod.group
                .sample(&self.root, &info.cgroup, steady, true, scratch);
            if needs.containers {
                for container in &mut pod.containers {
                    let usage = &mut container.usage;
                    usage.sample(&self.root, &container.group, steady, false, scratch);
                    let cpu = usage.cpu.map(milli);
                    push(Subject::Container(container.id), Metric::CpuUsage, cpu);
                }
            }
            if needs.pressure && !info.is_best_effort() {
                let psi = self.machine.psi;
                pod.held_up = pod
                    .pressure
                    .sample(&self.root, &info.cgroup, psi, steady, scratch)
                    .map(|(share, signal)| HeldUp { share, signal });
            }
            let cpu = pod.group.cpu.map(milli);
            push(Subject::Pod(pod.id), Metric::CpuUsage, cpu);
            push(Subject::Pod(pod.id), Metric::MemoryUsage, pod.group.memory);
            pods_cpu += cpu.unwrap_or(0.0);
            pods_memory += pod.group.memory.unwrap_or(0.0);
        }
        let known = self.pods.is_some();
        let system = |node: Option<f64>, pods: f64| {
            let node = node.filter(|_| known)?;
            Some((node - pods).max(0.0))
        };
        push(
            Subject::System,
            Metric::CpuUsage,
            system(node_cpu, pods_cpu),
        );
        push(
            Subject::System,
            Metric::MemoryUsage,
            system(sample.memory, pods_memory),
        );

        // One group, and much depends on it: looked for every time.
        self.batch_usage.hurry();
        self.batch_usage
            .sample(&self.root, &self.batch, steady, false, scratch);
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
