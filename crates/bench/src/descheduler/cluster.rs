//! A simulated cluster with hot spots: pods that use more or less than they request, a scheduler that places
//! new pods, reports by node, and the API server's check of budgets.

use super::jobs::Jobs;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_api::priority::PriorityClass;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::slo::{NodeMetric, NodeMetricInfo, NodeMetricStatus, PodMetricInfo, ResourceMap};
use koord_descheduler::framework::Plan;
use koord_descheduler::state::{NodeInfo, NodeUsage, PodInfo, Shapes, Snapshot};
use koord_scheduler::Follower;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{Engine, EngineOptions, Output};
use koord_scheduler::framework::{Action, BuildContext, ObjectChange, ProfileError, Profiles};
use koord_scheduler::state::PodInterner;
use rustc_hash::FxHashMap;
use serde_json::json;
use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::sync::Arc;

const NAMESPACE: &str = "default";
const NODE_METRICS: &str = "nodemetrics.v1alpha1.slo.koordinator.sh";
/// Cores of a node.
const CORES: f64 = 32.0;
/// Minutes over which a report averages, as koordlet's do.
const REPORTED: usize = 5;
/// Pods of a workload.
const REPLICAS: usize = 20;

/// Size of a pod: cores that it requests and that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PodSize {
    /// Requests 1.35, uses little of it.
    Light,
    /// Requests 1.35, uses more than it requests.
    Heavy,
    /// Requests 6, which few nodes have free, and uses most of it.
    Big,
}

impl PodSize {
    fn cpu_request(self) -> &'static str {
        match self {
            Self::Light | Self::Heavy => "1350m",
            Self::Big => "6",
        }
    }
    fn cores_used(self) -> f64 {
        match self {
            Self::Light => 0.35,
            Self::Heavy => 1.5,
            Self::Big => 4.5,
        }
    }
}

/// Slot of a workload for one pod: the pod and its later replacements.
#[derive(Debug)]
struct PodSlot {
    kind: PodSize,
    workload: usize,
    /// Position of its node; `None` while it is pending.
    node: Option<usize>,
    info: Arc<PodInfo>,
    /// Minutes from the start until it is ready.
    ready: u64,
    phase: f64,
    /// Cores that it used in the last minutes.
    used: VecDeque<f64>,
    /// Minutes from the start at which it was moved.
    moved: Vec<u64>,
}

/// A workload, as its pods and its budget.
#[derive(Debug, Default)]
struct Workload {
    slots: Vec<usize>,
    /// Evictions that its budget still allows; `None` without a budget.
    allowed: Option<i32>,
    budget: Option<Arc<PodDisruptionBudget>>,
}

/// Results of evictions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EvictionCounts {
    pub(super) moves: u64,
    /// Evictions that the budget did not allow: HTTP status 429.
    pub(super) blocked: u64,
    /// Evictions after which fewer pods were ready than the budget requires.
    pub(super) violations: u64,
}

/// A simulated cluster with hot nodes, and the scheduler's engine for it.
#[derive(Debug)]
pub(super) struct SimulatedCluster {
    pub(super) follower: Follower,
    /// Memory of its engine, in MiB, approximately.
    pub(super) engine_mib: f64,
    pub(super) minute: u64,
    pub(super) now: Timestamp,
    shapes: Shapes,
    /// Values that pods share in the engine.
    alike: PodInterner,
    nodes: Vec<Arc<NodeInfo>>,
    /// Cores that nodes used in the last minutes.
    used: Vec<VecDeque<f64>>,
    usage: Vec<Arc<NodeUsage>>,
    slots: Vec<PodSlot>,
    workloads: Vec<Workload>,
    by_uid: FxHashMap<Arc<str>, usize>,
    rng: fastrand::Rng,
}

impl SimulatedCluster {
    /// Creates a cluster in which one node in ten is hot and one in fifty has capacity for a big pod.
    pub(super) fn new(nodes: usize, pods: usize) -> Result<Self, ProfileError> {
        let shapes = Shapes::new(Arc::default());
        let now: Timestamp = Timestamp::from_second(1_767_268_800).unwrap_or_default();
        let engine = engine()?;
        let mut cluster = Self {
            follower: Follower::new(engine),
            engine_mib: 0.0,
            minute: 0,
            now,
            nodes: Vec::with_capacity(nodes),
            used: vec![VecDeque::with_capacity(REPORTED); nodes],
            usage: Vec::new(),
            slots: Vec::with_capacity(pods),
            workloads: Vec::new(),
            by_uid: FxHashMap::default(),
            shapes,
            alike: PodInterner::default(),
            rng: fastrand::Rng::with_seed(15),
        };
        cluster.with_engine(|cluster, engine| cluster.fill(nodes, pods, engine));
        // Run for as many minutes as a report averages, before a plugin acts on reports.
        for _ in 0..REPORTED {
            cluster.tick();
        }
        Ok(cluster)
    }

    /// Creates nodes, pods, workloads and budgets.
    fn fill(&mut self, nodes: usize, pods: usize, engine: &mut Engine) {
        for at in 0..nodes {
            let name = format!("node-{at:05}");
            let node: Node = parse(json!({
                "metadata": {"name": name, "uid": name, "labels": {
                    "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("zone-{}", at % 3),
                }},
                "status": {
                    "allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }));
            self.nodes
                .push(Arc::new(NodeInfo::new(node.clone(), self.shapes.table())));
            engine.node_applied(Arc::new(node), self.now);
        }
        let mut placed: Vec<(usize, PodSize)> = Vec::with_capacity(pods);
        // Pods per node so that all pods are placed; a hot node is full with fewer, as some are big.
        let share = pods.div_ceil(nodes.max(1));
        for node in 0..nodes {
            let hot = node % 10 == 0;
            let roomy = node % 50 == 7;
            let count = match (hot, roomy) {
                (true, _) => (share * 4 / 5).max(3),
                (_, true) => share * 17 / 20,
                _ => share,
            };
            for at in 0..count {
                let kind = match (hot, self.rng.u8(..100)) {
                    (true, _) if at < 2 => PodSize::Big,
                    (true, 0..80) | (false, 0..10) => PodSize::Heavy,
                    _ => PodSize::Light,
                };
                placed.push((node, kind));
            }
        }
        // The rest, one by one on nodes that are not full.
        let mut node = 0;
        while placed.len() < pods && nodes > 0 {
            node += 1;
            if node % 10 != 0 && node % 50 != 7 {
                placed.push((node % nodes, PodSize::Light));
            }
        }
        placed.truncate(pods);
        // Pods of a workload are on as many nodes as there are replicas.
        let mut kinds: FxHashMap<PodSize, (usize, usize, usize)> = FxHashMap::default();
        for kind in [PodSize::Light, PodSize::Heavy, PodSize::Big] {
            let pods = placed.iter().filter(|(_, of)| *of == kind).count();
            let (first, count) = (self.workloads.len(), pods.div_ceil(REPLICAS).max(1));
            self.workloads.resize_with(first + count, Workload::default);
            kinds.insert(kind, (first, count, 0));
        }
        for (node, kind) in placed {
            let (first, count, next) = kinds.entry(kind).or_default();
            let workload = *first + *next % *count;
            *next += 1;
            let slot = self.slots.len();
            let phase = self.rng.f64() * TAU;
            let info = self.info(self.pod(slot, workload, kind, 0, Some(node)));
            self.workloads[workload].slots.push(slot);
            self.by_uid.insert(info.uid.clone(), slot);
            self.slots.push(PodSlot {
                kind,
                workload,
                node: Some(node),
                info,
                ready: 0,
                phase,
                used: VecDeque::with_capacity(REPORTED),
                moved: Vec::new(),
            });
        }
        let before = crate::meter::rss_mib();
        for (at, slot) in self.slots.iter().enumerate() {
            let pod = self.pod(at, slot.workload, slot.kind, 0, slot.node);
            let parsed = self.alike.read(pod, engine.cluster().resources());
            engine.apply_parsed_pod(&parsed, self.now);
        }
        self.engine_mib = crate::meter::rss_mib() - before;
        for (at, workload) in self.workloads.iter_mut().enumerate() {
            // Every other one has a budget.
            if at % 2 == 0 {
                workload.budget = Some(Arc::new(parse(json!({
                    "metadata": {"name": format!("w{at}"), "namespace": NAMESPACE, "uid": format!("w{at}")},
                    "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": format!("w{at}")}}},
                }))));
            }
        }
    }

    /// Returns the pod of `slot` after `moved` moves, on `node` or pending.
    fn pod(
        &self,
        slot: usize,
        workload: usize,
        kind: PodSize,
        moved: usize,
        node: Option<usize>,
    ) -> Pod {
        let name = format!("w{workload}-{slot:06}-{moved}");
        let node = node
            .and_then(|node| self.nodes.get(node))
            .map(|node| &*node.name);
        let conditions = match node {
            Some(_) => json!([
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.now},
                {"type": "Ready", "status": "True", "lastTransitionTime": self.now},
            ]),
            None => json!([]),
        };
        parse(json!({
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": name, "creationTimestamp": self.now,
                "labels": {"app": format!("w{workload}")},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                    "name": format!("w{workload}"), "uid": format!("w{workload}"), "controller": true}],
            },
            "spec": {
                "nodeName": node, "schedulerName": "koord-scheduler", "priority": 9000,
                "containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10", "resources": {
                    "requests": {"cpu": kind.cpu_request(), "memory": "1Gi"},
                }}],
            },
            "status": {"phase": if node.is_some() { "Running" } else { "Pending" }, "conditions": conditions},
        }))
    }

    /// Returns the pod in the descheduler's form.
    fn info(&self, pod: Pod) -> Arc<PodInfo> {
        // The conversion cannot fail: pods of this file have all required fields.
        let info = PodInfo::new(pod, &self.shapes);
        Arc::new(info.unwrap_or_else(|error| unreachable!("{error}")))
    }

    /// Adds the pod to the scheduler's engine, and returns it in the descheduler's form.
    fn read(&self, pod: Pod, engine: &mut Engine) -> Arc<PodInfo> {
        let parsed = self.alike.read(pod.clone(), engine.cluster().resources());
        engine.apply_parsed_pod(&parsed, self.now);
        self.info(pod)
    }

    fn with_engine<T>(&mut self, act: impl FnOnce(&mut Self, &mut Engine) -> T) -> Option<T> {
        let follower = self.follower.clone();
        let mut engine = follower.take()?;
        let out = act(self, &mut engine);
        follower.return_engine(engine);
        Some(out)
    }

    /// Advances time by a minute: pods use CPU, koordlets report, budgets are counted.
    pub(super) fn tick(&mut self) {
        self.minute += 1;
        self.now = self
            .now
            .saturating_add(SignedDuration::from_mins(1))
            .unwrap_or(self.now);
        let mut nodes = vec![0.5; self.nodes.len()];
        for slot in &mut self.slots {
            let Some(node) = slot.node else { continue };
            let is_ready = slot.ready <= self.minute;
            #[allow(clippy::cast_precision_loss, reason = "minutes")]
            let wave = (slot.phase + self.minute as f64 * TAU / 45.0).sin();
            let noise = 1.0 + 0.1 * wave + 0.1 * (self.rng.f64() - 0.5);
            let used = if is_ready {
                slot.kind.cores_used() * noise
            } else {
                0.05
            };
            nodes[node] += used;
            push_sample(&mut slot.used, used);
        }
        for (history, used) in self.used.iter_mut().zip(nodes) {
            push_sample(history, used);
        }
        self.with_engine(Self::report);
        self.count_budgets();
        self.with_engine(Self::place);
    }

    /// Reports the usage of one node after the other: reports do not come all at once.
    fn report(&mut self, engine: &mut Engine) {
        let mut pods: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (at, slot) in self.slots.iter().enumerate() {
            if let Some(node) = slot.node {
                pods[node].push(at);
            }
        }
        for (node, pods) in pods.into_iter().enumerate() {
            let metric = self.metric(node, &pods);
            let change = engine.plugins().as_delivered(ObjectChange {
                kind: NODE_METRICS,
                action: Action::UPDATE,
                old: None,
                new: Arc::new(metric.clone()),
            });
            engine.object_changed(&change, self.now);
            let report = Arc::new(NodeUsage::new(metric, self.shapes.table()));
            match self.usage.get_mut(node) {
                Some(before) => *before = report,
                None => self.usage.push(report),
            }
        }
        drop(engine.take_outputs());
    }

    /// Returns the NodeMetric of a node: means over the last minutes.
    fn metric(&self, node: usize, pods: &[usize]) -> NodeMetric {
        #[allow(clippy::cast_precision_loss, reason = "few pods")]
        let memory = 2.0 + 0.5 * pods.len() as f64;
        let pods = pods.iter().map(|slot| &self.slots[*slot]);
        let pods = pods.map(|slot| PodMetricInfo {
            namespace: NAMESPACE.to_owned(),
            name: slot.info.name.to_string(),
            priority: PriorityClass::Prod,
            pod_usage: Some(usage(mean(&slot.used), 0.5)),
            ..PodMetricInfo::default()
        });
        let name = &self.nodes[node].name;
        let mut metric = NodeMetric::new(name, Default::default());
        metric.metadata.uid = Some(name.to_string());
        metric.status = Some(NodeMetricStatus {
            update_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                self.now,
            )),
            node_metric: Some(NodeMetricInfo {
                node_usage: Some(usage(mean(&self.used[node]), memory)),
                system_usage: Some(usage(0.5, 2.0)),
                ..NodeMetricInfo::default()
            }),
            pods_metric: pods.collect(),
            ..NodeMetricStatus::default()
        });
        metric
    }

    /// Sets the disruptions that each budget allows.
    fn count_budgets(&mut self) {
        for workload in &mut self.workloads {
            let Some(budget) = &mut workload.budget else {
                continue;
            };
            let is_ready = |slot: &&usize| is_ready(&self.slots[**slot], self.minute);
            let ready = workload.slots.iter().filter(is_ready).count();
            let missing = i32::try_from(workload.slots.len() - ready).unwrap_or(i32::MAX);
            let allowed = (1 - missing).max(0);
            workload.allowed = Some(allowed);
            let status = &mut Arc::make_mut(budget).status;
            status.get_or_insert_default().disruptions_allowed = allowed;
        }
    }

    /// Returns the snapshot for a cycle.
    pub(super) fn snapshot(&self, jobs: Option<&Jobs>) -> Snapshot {
        let pods = self.slots.iter().map(|slot| slot.info.clone()).collect();
        let mut snapshot = Snapshot::empty(self.now, self.shapes.table().clone());
        snapshot = snapshot.with(self.nodes.clone(), pods);
        let usage = self.usage.iter();
        snapshot.usage = usage
            .map(|usage| (usage.name.clone(), usage.clone()))
            .collect();
        let budgets = self
            .workloads
            .iter()
            .filter_map(|workload| workload.budget.clone());
        snapshot.budgets = budgets.collect();
        if let Some(jobs) = jobs {
            snapshot.jobs = jobs.all().cloned().collect();
            let workloads = self.workloads.iter().enumerate();
            let states = workloads.map(|(at, workload)| {
                let uid: Arc<str> = format!("w{at}").into();
                let state = koord_descheduler::state::Workload::Known {
                    replicas: i64::try_from(workload.slots.len()).unwrap_or(i64::MAX),
                    controllers: vec![uid.clone()],
                    deleting: false,
                };
                (uid, state)
            });
            snapshot.workloads = states.collect();
        }
        snapshot
    }

    /// Evicts the pods that `plan` moves, as far as budgets allow; controllers make new pods, and the
    /// scheduler places them.
    pub(super) fn apply(&mut self, plan: &Plan) -> EvictionCounts {
        let mut out = EvictionCounts::default();
        let going = plan.moves().filter(|planned| planned.intent.is_some());
        let going: Vec<usize> = going
            .filter_map(|planned| self.by_uid.get(&planned.pod.uid).copied())
            .collect();
        self.with_engine(|cluster, engine| {
            for slot in going {
                cluster.evict(slot, engine, &mut out);
            }
            cluster.place(engine);
        });
        out
    }

    /// Returns the position of the pod with this UID, also after the pod has gone.
    pub(super) fn slot(&self, uid: &str) -> Option<usize> {
        self.by_uid.get(uid).copied()
    }

    /// Returns true if the replacement of this pod has a node.
    pub(super) fn is_placed(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.node.is_some())
    }

    /// Returns the pod in the descheduler's form.
    pub(super) fn pod_info(&self, slot: usize) -> Option<&Arc<PodInfo>> {
        self.slots.get(slot).map(|slot| &slot.info)
    }

    /// Evicts one pod; the scheduler places its replacement.
    pub(super) fn evict_one(&mut self, slot: usize, out: &mut EvictionCounts) {
        self.with_engine(|cluster, engine| {
            cluster.evict(slot, engine, out);
            cluster.place(engine);
        });
    }

    /// Evicts a pod unless its budget forbids it, and adds its pending replacement.
    fn evict(&mut self, at: usize, engine: &mut Engine, out: &mut EvictionCounts) {
        let workload = self.slots[at].workload;
        if let Some(allowed) = &mut self.workloads[workload].allowed {
            if *allowed <= 0 {
                out.blocked += 1;
                return;
            }
            *allowed -= 1;
        }
        let (kind, moved) = (self.slots[at].kind, self.slots[at].moved.len() + 1);
        let mut deleted = Pod::default();
        deleted.metadata.uid = Some(self.slots[at].info.uid.to_string());
        engine.pod_deleted(&deleted, self.now);
        self.by_uid.remove(&self.slots[at].info.uid);
        let next = self.pod(at, workload, kind, moved, None);
        let info = self.read(next, engine);
        self.by_uid.insert(info.uid.clone(), at);
        let slot = &mut self.slots[at];
        slot.moved.push(self.minute);
        slot.info = info;
        slot.node = None;
        slot.ready = u64::MAX;
        slot.used.clear();
        out.moves += 1;
        let workload = &self.workloads[workload];
        let ready = workload
            .slots
            .iter()
            .filter(|slot| is_ready(&self.slots[**slot], self.minute));
        if workload.budget.is_some() && workload.slots.len() - ready.count() > 1 {
            out.violations += 1;
        }
    }

    /// Lets the scheduler place pending pods; a placed pod is ready a minute later.
    fn place(&mut self, engine: &mut Engine) {
        loop {
            let decided = engine.schedule_one(self.now).is_some();
            let outputs = engine.take_outputs();
            if !decided && outputs.is_empty() {
                break;
            }
            for output in outputs {
                let Output::Bind(request) = output else {
                    continue;
                };
                engine.bind_finished(&request.pod.uid, Ok(()), self.now);
                let Some(slot) = self.by_uid.get(&request.pod.uid).copied() else {
                    continue;
                };
                let is_it = |node: &Arc<NodeInfo>| node.name.cmp(&request.node);
                let Ok(node) = self.nodes.binary_search_by(is_it) else {
                    continue;
                };
                let PodSlot {
                    kind,
                    workload,
                    ref moved,
                    ..
                } = self.slots[slot];
                let pod = self.pod(slot, workload, kind, moved.len(), Some(node));
                let info = self.read(pod, engine);
                let slot = &mut self.slots[slot];
                (slot.node, slot.info, slot.ready) = (Some(node), info, self.minute + 1);
            }
        }
        drop(engine.telemetry.take_measures());
    }

    /// Returns the share of its cores that each node used in the last minute.
    pub(super) fn loads(&self) -> Vec<f64> {
        let last = |used: &VecDeque<f64>| used.back().copied().unwrap_or(0.0) / CORES;
        self.used.iter().map(last).collect()
    }

    /// Returns the number of pods without a node.
    pub(super) fn pending_pods(&self) -> usize {
        self.slots.iter().filter(|slot| slot.node.is_none()).count()
    }

    /// Returns the most moves of one pod within an hour, with its replacements counted as the same pod.
    pub(super) fn max_moves_per_hour(&self) -> usize {
        let most = |slot: &PodSlot| {
            let within = |at: usize| {
                let first = slot.moved[at];
                slot.moved[at..]
                    .iter()
                    .take_while(|minute| **minute < first + 60)
                    .count()
            };
            (0..slot.moved.len()).map(within).max().unwrap_or(0)
        };
        self.slots.iter().map(most).max().unwrap_or(0)
    }
}

fn is_ready(slot: &PodSlot, minute: u64) -> bool {
    slot.node.is_some() && slot.ready <= minute
}

/// Appends a sample, and drops the oldest beyond [`REPORTED`].
fn push_sample(history: &mut VecDeque<f64>, used: f64) {
    if history.len() >= REPORTED {
        history.pop_front();
    }
    history.push_back(used);
}

#[allow(clippy::cast_precision_loss, reason = "at most five")]
fn mean(history: &VecDeque<f64>) -> f64 {
    history.iter().sum::<f64>() / history.len().max(1) as f64
}

/// Returns the usage of so many cores and GiB.
fn usage(cores: f64, memory: f64) -> ResourceMap {
    #[allow(clippy::cast_possible_truncation, reason = "of a node")]
    let (milli, bytes) = ((cores * 1000.0) as i64, (memory * 1_073_741_824.0) as i64);
    let resources: ResourceList = [
        ("cpu".to_owned(), Quantity::from_milli(milli)),
        ("memory".to_owned(), Quantity::from_bytes(bytes)),
    ]
    .into_iter()
    .collect();
    ResourceMap {
        resources,
        ..ResourceMap::default()
    }
}

/// Returns the engine that the descheduler queries for targets.
fn engine() -> Result<Engine, ProfileError> {
    let config = Configuration::koord(&["koord-scheduler".to_owned()]);
    let registry = koord_placement::registry();
    let profiles = Profiles::build(&config, &registry, &BuildContext::default(), true)?;
    let options = EngineOptions {
        class_bytes: 64 << 20,
        ..EngineOptions::default()
    };
    Ok(Engine::new(&config, profiles, options))
}

fn parse<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    // Objects that are written in this file.
    serde_json::from_value(value).unwrap_or_else(|error| unreachable!("{error}"))
}
