//! Prometheus metrics, with upstream's names, types and labels.

mod publish;
mod rows;
mod table;
#[cfg(test)]
mod tests;

use crate::predict::{Estimate, Reclaimable};
use crate::states::kubelet::KubeletMetrics;
use crate::states::malformed::BadInput;
use crate::states::slo::SuppressPolicy;
use crate::states::{ContainerInfo, NodeInfo, PodInfo};
use koord_app::metrics::{ExpiringGauges, ExpiringVec, Vector};
use koord_host::CpuSet;
use prometheus::core::Collector;
use prometheus::{GaugeVec, HistogramVec, IntCounterVec, Registry};
use rows::{EmitFn, Rows};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use table::{Audience, Family};

/// Time after which series of pods and containers that are not renewed expire.
const LIFE: Duration = Duration::from_secs(300);
/// Histogram buckets from 10 µs to 160 ms: start, factor and count.
const WRITE_MS: (f64, f64, usize) = (0.01, 4.0, 8);
/// Histogram buckets from 1 ms to 4 s: start, factor and count.
const REQUEST_SECONDS: (f64, f64, usize) = (0.001, 4.0, 7);

/// Returns whether the metric family `name` is for users and other components, rather than about the agent
/// itself.
#[must_use]
pub(crate) fn is_external(name: &str) -> bool {
    let external = |family: &&Family| family.audience == Audience::External;
    table::ALL
        .iter()
        .filter(external)
        .any(|family| name.strip_prefix("koordlet_") == Some(family.name))
}

/// Labels of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Namespace of its pod.
    pub namespace: String,
    /// Name of its pod.
    pub pod: String,
    /// UID of its pod.
    pub uid: String,
    /// `containerID` of its status, with the runtime's scheme.
    pub id: String,
    /// Name of the container.
    pub name: String,
}

impl Container {
    /// Returns the labels of a container of `pod`; the id is empty until the runtime reports one.
    #[must_use]
    pub fn from_pod(pod: &PodInfo, container: &ContainerInfo) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            id: container.id.as_deref().unwrap_or_default().to_owned(),
            name: container.name.clone(),
        }
    }
}

/// Quota and burst buffer that CPU burst set for a container, in microseconds.
#[derive(Debug, Clone)]
pub struct Burst {
    /// The container.
    pub container: Container,
    /// `cpu.cfs_burst_us`, if it is managed.
    pub burst_us: Option<i64>,
    /// `cpu.cfs_quota_us`, if it is scaled.
    pub quota_us: Option<i64>,
}

/// Batch and mid resources of a container's spec.
#[derive(Debug, Clone)]
pub struct ReclaimedResources {
    /// The container.
    pub container: Container,
    /// Full name of the resource; the unit is `byte` for memory, else `integer`.
    pub resource: &'static str,
    /// Request in milli-cores or bytes.
    pub request: Option<i64>,
    /// Limit in milli-cores or bytes.
    pub limit: Option<i64>,
}

/// Performance counters of a container in one window.
#[derive(Debug, Clone)]
pub struct Cpi {
    /// The container.
    pub container: Container,
    /// CPU cycles.
    pub cycles: f64,
    /// Instructions.
    pub instructions: f64,
}

/// Pressure of a pod or of one of its containers, from one file.
#[derive(Debug, Clone)]
pub struct Psi {
    /// The container, shared by the rows of its files; for a pod's own file, `id` and `name` are empty.
    pub container: Arc<Container>,
    /// `cpu`, `mem` or `io`.
    pub resource: &'static str,
    /// Averages of 10, 60 and 300 s in percent, of `some`.
    pub some: [f64; 3],
    /// Averages of `full`, if the kernel has that line.
    pub full: Option<[f64; 3]>,
}

/// Values that resctrl monitors for one QoS class in one cache domain.
#[derive(Debug, Clone)]
pub struct Resctrl {
    /// Resctrl group of the class, such as `LS`.
    pub qos: String,
    /// Id of the cache.
    pub cache: u32,
    /// Occupied last-level cache in bytes.
    pub llc: Option<u64>,
    /// Bytes by kind of traffic, such as `mbm_total_bytes`.
    pub traffic: Vec<(&'static str, u64)>,
}

/// Usage of a host application.
#[derive(Debug, Clone)]
pub struct HostApplication {
    /// Name in the NodeSLO.
    pub name: String,
    /// Priority class.
    pub priority: String,
    /// QoS class.
    pub qos: String,
    /// CPU in cores.
    pub cpu: f64,
    /// Memory in bytes.
    pub memory: f64,
}

/// Usage in NodeMetric of the node or of one NUMA node.
#[derive(Debug, Clone)]
pub struct Usage {
    /// The NUMA node; `None` for the whole node.
    pub numa: Option<i32>,
    /// Usage in cores and bytes.
    pub node: (f64, f64),
    /// Usage outside pods, in cores and bytes.
    pub system: Option<(f64, f64)>,
}

/// A reading of slowly changing facts about the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeFact {
    /// The CPU topology.
    Cpu,
    /// The NUMA nodes.
    Numa,
    /// The local disks.
    LocalStorage,
}

/// Part of the agent, for counts of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentPart {
    /// A collector.
    Collector,
    /// A QoS strategy.
    Strategy,
    /// The audit log.
    Audit,
}

type ExpiringCounters = ExpiringVec<<IntCounterVec as Vector>::Builder>;

/// The agent's metrics. Nothing is recorded before the node's name is set.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<MetricSet>);

#[derive(Debug)]
struct MetricSet {
    node: Arc<OnceLock<String>>,
    start_time: GaugeVec,
    facts: [IntCounterVec; 3],
    evictions: IntCounterVec,
    eviction_detail: ExpiringCounters,
    used_cpu: GaugeVec,
    used_memory: GaugeVec,
    suppress: GaugeVec,
    suppress_ls: GaugeVec,
    suppress_be: GaugeVec,
    suppress_cap: GaugeVec,
    bursts: Rows<Burst>,
    pool: GaugeVec,
    be_pool: GaugeVec,
    pool_cpus: Rows<(bool, u32)>,
    reclaimable: GaugeVec,
    peak: GaugeVec,
    cookies: ExpiringGauges,
    cookie_status: ExpiringCounters,
    usages: Rows<Usage>,
    oom_score_adj: ExpiringGauges,
    updates: HistogramVec,
    kubelet: KubeletMetrics,
    hooks: HistogramVec,
    reconciles: HistogramVec,
    host_applications: Rows<HostApplication>,
    nri_connected: GaugeVec,
    nri_lost: IntCounterVec,
    nri_contested: GaugeVec,
    runtime_request: HistogramVec,
    tick: GaugeVec,
    bad_input: BadInput,
    collect_errors: IntCounterVec,
    failures: IntCounterVec,
    withheld: IntCounterVec,
    guard: IntCounterVec,
    allocatable: GaugeVec,
    priority_reclaimable: GaugeVec,
    reclaimable_status: GaugeVec,
    resources: Rows<ReclaimedResources>,
    cpi: Rows<Cpi>,
    psi: Rows<Psi>,
    resctrl: Rows<Resctrl>,
}

/// Registers a metric family. Names that are registered already are kept, so that a second agent in one
/// process is no error.
fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: prometheus::Result<C>,
) -> Option<C> {
    let collector = collector.ok()?;
    if let Err(error) = registry.register(Box::new(collector.clone())) {
        tracing::debug!(%error, "skipping registration of a metric");
    }
    Some(collector)
}

impl Metrics {
    /// Creates the metrics and registers them; `None` if one cannot be created, which its table row must
    /// prevent.
    #[must_use]
    pub fn new(registry: &Registry) -> Option<Self> {
        use table as t;
        let node = Arc::new(OnceLock::new());
        let gauge = |family: Family| register(registry, family.gauge());
        let counter = |family: Family| register(registry, family.counter());
        let expiring = |family: Family| {
            let vector = family.gauge().map(|vector| ExpiringVec::new(vector, LIFE));
            register(registry, vector)
        };
        let expiring_counter = |family: Family| {
            let vector = family
                .counter()
                .map(|vector| ExpiringVec::new(vector, LIFE));
            register(registry, vector)
        };
        let histogram = |family: Family, buckets| register(registry, family.histogram(buckets));
        Some(Self(Arc::new(MetricSet {
            start_time: gauge(t::START_TIME)?,
            facts: [
                counter(t::CPU_INFO)?,
                counter(t::NUMA_INFO)?,
                counter(t::STORAGE_INFO)?,
            ],
            evictions: counter(t::EVICTIONS)?,
            eviction_detail: expiring_counter(t::EVICTION_DETAIL)?,
            used_cpu: gauge(t::USED_CPU)?,
            used_memory: gauge(t::USED_MEMORY)?,
            suppress: gauge(t::SUPPRESS)?,
            suppress_ls: gauge(t::SUPPRESS_LS)?,
            suppress_be: gauge(t::SUPPRESS_BE)?,
            suppress_cap: gauge(t::SUPPRESS_CAP)?,
            bursts: register(
                registry,
                Rows::new(
                    &node,
                    &[t::SCALED_BURST, t::SCALED_QUOTA],
                    Some(LIFE),
                    bursts,
                ),
            )?,
            pool: gauge(t::SHARE_POOL)?,
            be_pool: gauge(t::BE_SHARE_POOL)?,
            pool_cpus: register(
                registry,
                Rows::new(
                    &node,
                    &[t::SHARE_POOL_INFO, t::BE_SHARE_POOL_INFO],
                    None,
                    pool_cpus,
                ),
            )?,
            reclaimable: gauge(t::PREDICTED_RECLAIMABLE)?,
            peak: gauge(t::PREDICTED_PEAK)?,
            cookies: expiring(t::COOKIE)?,
            cookie_status: expiring_counter(t::COOKIE_STATUS)?,
            usages: register(
                registry,
                Rows::new(
                    &node,
                    &[
                        t::METRIC_NODE,
                        t::METRIC_SYSTEM,
                        t::METRIC_NUMA_NODE,
                        t::METRIC_NUMA_SYSTEM,
                    ],
                    None,
                    usages,
                ),
            )?,
            oom_score_adj: expiring(t::OOM_SCORE_ADJ)?,
            updates: histogram(t::UPDATES, WRITE_MS)?,
            kubelet: KubeletMetrics::new(histogram(t::KUBELET, REQUEST_SECONDS)?),
            hooks: histogram(t::HOOKS, WRITE_MS)?,
            reconciles: histogram(t::RECONCILES, WRITE_MS)?,
            host_applications: register(
                registry,
                Rows::new(&node, &[t::HOST_APPLICATIONS], Some(LIFE), host_application),
            )?,
            nri_connected: gauge(t::NRI_CONNECTED)?,
            nri_lost: counter(t::NRI_LOST)?,
            nri_contested: gauge(t::NRI_CONTESTED)?,
            runtime_request: histogram(t::RUNTIME_REQUESTS, WRITE_MS)?,
            tick: gauge(t::TICK)?,
            bad_input: BadInput::new(node.clone(), counter(t::BAD_INPUT)?),
            collect_errors: counter(t::COLLECT_ERRORS)?,
            failures: counter(t::FAILURES)?,
            withheld: counter(t::WITHHELD)?,
            guard: counter(t::GUARD)?,
            allocatable: gauge(t::ALLOCATABLE)?,
            priority_reclaimable: gauge(t::RECLAIMABLE)?,
            reclaimable_status: gauge(t::RECLAIMABLE_STATUS)?,
            resources: register(
                registry,
                Rows::new(&node, &[t::REQUESTS, t::LIMITS], None, resources),
            )?,
            cpi: register(registry, Rows::new(&node, &[t::CPI], Some(LIFE), cpi))?,
            psi: register(
                registry,
                Rows::new(&node, &[t::CONTAINER_PSI, t::POD_PSI], Some(LIFE), psi),
            )?,
            resctrl: register(
                registry,
                Rows::new(&node, &[t::LLC, t::MB], Some(LIFE), resctrl),
            )?,
            node,
        })))
    }

    /// Sets the node's name, once, and records the start time of the agent.
    pub fn record_start(&self, node: &str, unix_seconds: i64) {
        let _ = self.0.node.set(node.to_owned());
        self.set(&self.0.start_time, &[], unix_seconds as f64);
    }

    /// Sets a gauge of this node. Labels that do not match the table's are a bug in this file; the table's
    /// test scrapes every family.
    fn set(&self, vector: &GaugeVec, labels: &[&str], value: f64) {
        if let Some(all) = self.labels(labels)
            && let Ok(gauge) = vector.get_metric_with_label_values(&all)
        {
            gauge.set(value);
        }
    }

    fn count(&self, vector: &IntCounterVec, labels: &[&str]) {
        self.count_many(vector, labels, 1);
    }

    fn count_many(&self, vector: &IntCounterVec, labels: &[&str], count: u64) {
        if let Some(all) = self.labels(labels)
            && let Ok(counter) = vector.get_metric_with_label_values(&all)
        {
            counter.inc_by(count);
        }
    }

    /// Returns the node and `labels`; `None` before the node's name is set.
    fn labels<'a>(&'a self, labels: &[&'a str]) -> Option<Vec<&'a str>> {
        let mut all = vec![self.0.node.get()?.as_str()];
        all.extend(labels);
        Some(all)
    }

    /// Records a reading of facts about the node.
    pub fn collected(&self, fact: NodeFact, ok: bool) {
        let [cpu, numa, storage] = &self.0.facts;
        let vector = match fact {
            NodeFact::Cpu => cpu,
            NodeFact::Numa => numa,
            NodeFact::LocalStorage => storage,
        };
        self.count(vector, &[status(ok)]);
    }

    /// Records the batch and mid resources that the Node object offers.
    pub fn allocatable(&self, node: &NodeInfo) {
        for (name, value) in &node.extended {
            self.set(&self.0.allocatable, &[name, unit(name)], *value as f64);
        }
    }

    /// Records the node's use: milli-cores and bytes.
    pub fn node_used(&self, milli: Option<f64>, bytes: Option<f64>) {
        if let Some(milli) = milli {
            self.set(&self.0.used_cpu, &[], milli / 1000.0);
        }
        if let Some(bytes) = bytes {
            self.set(&self.0.used_memory, &[], bytes);
        }
    }

    /// Records the limit and usage of batch work in milli-cores, and the cap in percent.
    pub fn suppression(
        &self,
        policy: SuppressPolicy,
        limit: Option<i64>,
        cap: Option<i64>,
        services: i64,
        batch: i64,
    ) {
        let policy = match policy {
            SuppressPolicy::Cpuset => "cpuset",
            SuppressPolicy::CfsQuota => "cfsQuota",
        };
        if let Some(limit) = limit {
            self.set(&self.0.suppress, &[policy], limit as f64 / 1000.0);
        }
        self.set(&self.0.suppress_cap, &[], cap.unwrap_or(100) as f64);
        self.set(&self.0.suppress_ls, &[], services as f64 / 1000.0);
        self.set(&self.0.suppress_be, &[], batch as f64 / 1000.0);
    }

    /// Counts an action of the pressure guard on a lever.
    pub fn guard_event(&self, lever: &str, kind: &str) {
        self.count(&self.0.guard, &[lever, kind]);
    }

    /// Publishes the quotas and buffers of CPU burst; containers that are not listed are removed.
    pub fn bursts(&self, all: Vec<Burst>) {
        self.0.bursts.publish(all);
    }

    /// Publishes the pools of CPUs that services and batch work share; with `each`, also one series
    /// per CPU (gate PerCPUMetric).
    pub fn share_pools(&self, services: &CpuSet, batch: &CpuSet, each: bool) {
        self.set(&self.0.pool, &[], services.len() as f64);
        self.set(&self.0.be_pool, &[], batch.len() as f64);
        let mut cpus = Vec::new();
        if each {
            cpus.extend(services.iter().map(|cpu| (false, cpu)));
            cpus.extend(batch.iter().map(|cpu| (true, cpu)));
        }
        self.0.pool_cpus.publish(cpus);
    }

    /// Records a forecast, or that none is available.
    pub fn reclaimable(&self, reclaimable: Option<&Reclaimable>) {
        let failed = if reclaimable.is_some() { 0.0 } else { 1.0 };
        self.set(&self.0.reclaimable_status, &["koord-prod"], failed);
        let Some(all) = reclaimable else { return };
        for (predictor, Estimate { reclaimable, peak }) in [
            ("podReclaimablePredictor", all.by_pod),
            ("priorityReclaimablePredictor", all.by_class),
            ("minPredictor", all.published),
        ] {
            for (vector, amounts) in [(&self.0.reclaimable, reclaimable), (&self.0.peak, peak)] {
                let cpu = amounts.cpu as f64 / 1000.0;
                self.set(vector, &[predictor, "cpu", "core"], cpu);
                let memory = amounts.memory as f64;
                self.set(vector, &[predictor, "memory", "byte"], memory);
            }
        }
        let published = all.published.reclaimable;
        for (resource, unit, value) in [
            ("cpu", "core", published.cpu as f64 / 1000.0),
            ("memory", "byte", published.memory as f64),
        ] {
            let labels = ["koord-prod", resource, unit];
            self.set(&self.0.priority_reclaimable, &labels, value);
        }
    }

    /// Records that a container has a core scheduling cookie. Must be repeated at each reconcile, else the
    /// series expires.
    pub fn cookie(&self, container: &Container, group: &str, cookie: u64) {
        let cookie = cookie.to_string();
        if let Some(labels) = self.labels(&cookie_labels(container, group, &cookie))
            && let Ok(gauge) = self.0.cookies.with(&labels)
        {
            gauge.set(1.0);
        }
    }

    /// Removes the series of a container's cookie.
    pub fn remove_cookie(&self, container: &Container, group: &str, cookie: u64) {
        let cookie = cookie.to_string();
        if let Some(labels) = self.labels(&cookie_labels(container, group, &cookie)) {
            self.0.cookies.remove(&labels);
        }
    }

    /// Counts a change of cookies of a group.
    pub fn cookie_managed(&self, group: &str, ok: bool) {
        if let Some(labels) = self.labels(&[group, status(ok)])
            && let Ok(counter) = self.0.cookie_status.with(&labels)
        {
            counter.inc();
        }
    }

    /// Publishes the usage reported in NodeMetric (gate NodeMetricPromMetrics).
    pub fn node_metric(&self, usages: Vec<Usage>) {
        self.0.usages.publish(usages);
    }

    /// Records the `oom_score_adj` of a container's processes. Must be repeated at each reconcile, else the
    /// series expires.
    pub fn oom_score_adj(&self, container: &Container, value: i64) {
        let Container {
            namespace,
            pod,
            uid,
            name,
            ..
        } = container;
        if let Some(labels) = self.labels(&[pod, namespace, uid, name])
            && let Ok(gauge) = self.0.oom_score_adj.with(&labels)
        {
            gauge.set(value as f64);
        }
    }

    /// Returns the metrics of requests to the kubelet.
    #[must_use]
    pub fn kubelet(&self) -> &KubeletMetrics {
        &self.0.kubelet
    }

    /// Records a call of a hook at a stage of a container's life, such as `PreCreateContainer`. These are
    /// calls for a container runtime, through NRI or the hook server; like upstream, runs of the reconciler
    /// are not counted.
    pub fn hook_invoked(&self, hook: &str, stage: &str, ok: bool, milliseconds: f64) {
        self.observe(&self.0.hooks, &[hook, stage, status(ok)], milliseconds);
    }

    /// Records a response to the container runtime or its proxy: the kind of request, whether it succeeded,
    /// and its duration.
    pub fn runtime_request(&self, event: &str, ok: bool, milliseconds: f64) {
        self.observe(&self.0.runtime_request, &[event, status(ok)], milliseconds);
    }

    /// Records whether this agent is a plugin of the container runtime.
    pub fn nri_connected(&self, connected: bool) {
        self.set(&self.0.nri_connected, &[], f64::from(u8::from(connected)));
    }

    /// Counts a connection to the container runtime that was lost or failed.
    pub fn nri_lost(&self) {
        self.count(&self.0.nri_lost, &[]);
    }

    /// Records the number of containers that are not created because another plugin sets the same field.
    pub fn nri_contested(&self, containers: usize) {
        self.set(&self.0.nri_contested, &[], containers as f64);
    }

    /// Records that a hook value was compared with the kernel's, and written if it differed; `level` is
    /// `kubeqos`, `pod`, `sandbox` or `container`.
    pub fn reconciled(&self, level: &str, resource_type: &str, ok: bool, milliseconds: f64) {
        let labels = [level, resource_type, status(ok)];
        self.observe(&self.0.reconciles, &labels, milliseconds);
    }

    fn observe(&self, vector: &HistogramVec, labels: &[&str], value: f64) {
        if let Some(all) = self.labels(labels)
            && let Ok(histogram) = vector.get_metric_with_label_values(&all)
        {
            histogram.observe(value);
        }
    }

    /// Publishes the use of host applications.
    pub fn host_applications(&self, all: Vec<HostApplication>) {
        self.0.host_applications.publish(all);
    }

    /// Publishes the batch and mid resources of the pods' containers.
    pub fn resources(&self, all: Vec<ReclaimedResources>) {
        self.0.resources.publish(all);
    }

    /// Publishes the performance counters of containers.
    pub fn cpi(&self, all: Vec<Cpi>) {
        self.0.cpi.publish(all);
    }

    /// Publishes the pressure of pods and containers.
    pub fn psi(&self, all: Vec<Psi>) {
        self.0.psi.publish(all);
    }

    /// Publishes the values that resctrl monitors.
    pub fn resctrl(&self, all: Vec<Resctrl>) {
        self.0.resctrl.publish(all);
    }

    /// Counts the eviction of a pod. Upstream's only reason is `evicted`.
    pub fn evicted(&self, namespace: &str, name: &str, reason: &str) {
        self.count(&self.0.evictions, &[reason]);
        if let Some(labels) = self.labels(&[namespace, name, reason])
            && let Ok(counter) = self.0.eviction_detail.with(&labels)
        {
            counter.inc();
        }
    }

    /// Records a kernel write: the kind of file, and its duration.
    pub fn record_write(&self, kind: &str, ok: bool, milliseconds: f64) {
        let labels = [kind, if ok { "success" } else { "failed" }];
        if let Ok(histogram) = self.0.updates.get_metric_with_label_values(&labels) {
            histogram.observe(milliseconds);
        }
    }

    /// Records the duration of a tick.
    pub fn record_tick(&self, seconds: f64) {
        self.set(&self.0.tick, &[], seconds);
    }

    /// Returns the counter of malformed values.
    #[must_use]
    pub fn bad_input(&self) -> &BadInput {
        &self.0.bad_input
    }

    /// Counts kernel errors of a collector or a strategy.
    pub fn collect_errors(&self, collector: &str, count: u64) {
        self.count_many(&self.0.collect_errors, &[collector], count);
    }

    /// Counts a round in which a part of the agent failed.
    pub fn failed(&self, part: AgentPart, name: &str) {
        let part = match part {
            AgentPart::Collector => "collector",
            AgentPart::Strategy => "strategy",
            AgentPart::Audit => "audit",
        };
        self.count(&self.0.failures, &[part, name]);
    }

    /// Counts an action that a dry run did not do: what it is about, and its reason.
    pub fn record_withheld(&self, subject: &str, reason: &str) {
        self.count(&self.0.withheld, &[subject, reason]);
    }
}

fn status(ok: bool) -> &'static str {
    if ok { "succeeded" } else { "failed" }
}

/// Returns the unit of a batch or mid resource.
fn unit(resource: &str) -> &'static str {
    if resource.ends_with("memory") {
        "byte"
    } else {
        "integer"
    }
}

fn cookie_labels<'a>(c: &'a Container, group: &'a str, cookie: &'a str) -> [&'a str; 7] {
    [&c.pod, &c.namespace, &c.uid, &c.name, &c.id, group, cookie]
}

fn bursts(row: &Burst, emit: EmitFn<'_>) {
    let c = &row.container;
    let labels = [c.namespace.as_str(), &c.pod, &c.id, &c.name];
    for (family, value) in [row.burst_us, row.quota_us].into_iter().enumerate() {
        if let Some(value) = value {
            emit(family, &labels, value as f64);
        }
    }
}

fn pool_cpus((batch, cpu): &(bool, u32), emit: EmitFn<'_>) {
    emit(usize::from(*batch), &[&cpu.to_string()], 1.0);
}

fn usages(row: &Usage, emit: EmitFn<'_>) {
    let numa = row.numa.map(|id| id.to_string());
    let first = if numa.is_some() { 2 } else { 0 };
    for (family, usage) in [(first, Some(row.node)), (first + 1, row.system)] {
        let Some((cores, bytes)) = usage else {
            continue;
        };
        for (resource, unit, value) in [("cpu", "core", cores), ("memory", "byte", bytes)] {
            let mut labels: Vec<&str> = numa.as_deref().into_iter().collect();
            labels.extend([resource, unit]);
            emit(family, &labels, value);
        }
    }
}

fn host_application(row: &HostApplication, emit: EmitFn<'_>) {
    for (resource, value) in [("cpu", row.cpu), ("memory", row.memory)] {
        emit(0, &[&row.name, resource, &row.priority, &row.qos], value);
    }
}

fn resources(row: &ReclaimedResources, emit: EmitFn<'_>) {
    let c = &row.container;
    let labels = [
        row.resource,
        unit(row.resource),
        &c.uid,
        &c.pod,
        &c.namespace,
        &c.id,
        &c.name,
    ];
    for (family, value) in [row.request, row.limit].into_iter().enumerate() {
        if let Some(value) = value {
            emit(family, &labels, value as f64);
        }
    }
}

fn cpi(row: &Cpi, emit: EmitFn<'_>) {
    let c = &row.container;
    for (field, value) in [("cycles", row.cycles), ("instructions", row.instructions)] {
        let labels = [c.id.as_str(), &c.name, &c.uid, &c.pod, &c.namespace, field];
        emit(0, &labels, value);
    }
}

fn psi(row: &Psi, emit: EmitFn<'_>) {
    let c = &row.container;
    let full_supported = if row.full.is_some() { "true" } else { "false" };
    for (degree, averages) in [("some", Some(row.some)), ("full", row.full)] {
        let precisions = ["avg10", "avg60", "avg300"];
        for (precision, value) in precisions.into_iter().zip(averages.into_iter().flatten()) {
            let measured = [row.resource, precision, degree, full_supported];
            let pod = [c.uid.as_str(), &c.pod, &c.namespace];
            if c.id.is_empty() {
                emit(1, &[&pod[..], &measured].concat(), value);
            } else {
                let container = [c.id.as_str(), &c.name];
                emit(0, &[&container[..], &pod, &measured].concat(), value);
            }
        }
    }
}

fn resctrl(row: &Resctrl, emit: EmitFn<'_>) {
    let cache = row.cache.to_string();
    if let Some(bytes) = row.llc {
        emit(0, &[&cache, &row.qos], bytes as f64);
    }
    for (kind, bytes) in &row.traffic {
        emit(1, &[&cache, &row.qos, kind], *bytes as f64);
    }
}
