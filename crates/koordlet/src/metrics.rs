//! Prometheus metrics, with upstream's names.

use crate::predict::{Estimate, Reclaimable};
use crate::states::NodeInfo;
use crate::states::slo::Policy;
use parking_lot::Mutex;
use prometheus::{Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use std::sync::Arc;

/// The agent's metrics. Nothing but the start time is recorded before the node's name is known.
#[derive(Debug, Clone)]
pub struct Metrics {
    node: Arc<Mutex<String>>,
    used_cpu: GaugeVec,
    used_memory: GaugeVec,
    suppress: GaugeVec,
    suppress_ls: GaugeVec,
    suppress_be: GaugeVec,
    suppress_cap: GaugeVec,
    allocatable: GaugeVec,
    reclaimable: GaugeVec,
    peak: GaugeVec,
    priority_reclaimable: GaugeVec,
    reclaimable_status: GaugeVec,
    evictions: IntCounterVec,
    updates: HistogramVec,
    start_time: GaugeVec,
    tick: Gauge,
}

impl Metrics {
    /// Makes the metrics and registers them. Names that are registered already are left alone, so
    /// that a second agent in one process is no error.
    #[must_use]
    pub fn new(registry: &Registry) -> Option<Self> {
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            let gauge = GaugeVec::new(Opts::new(format!("koordlet_{name}"), help), labels).ok()?;
            if registry.register(Box::new(gauge.clone())).is_err() {
                tracing::debug!(name, "metric is registered already");
            }
            Some(gauge)
        };
        let resource = ["node", "resource", "unit"];
        let predicted = ["node", "predictor", "resource", "unit"];
        let evictions = IntCounterVec::new(
            Opts::new("koordlet_pod_eviction", "Number of evictions by koordlet"),
            &["node", "reason"],
        )
        .ok()?;
        let _ = registry.register(Box::new(evictions.clone()));
        let buckets = prometheus::exponential_buckets(0.01, 4.0, 8).ok()?;
        let updates = HistogramVec::new(
            HistogramOpts::new(
                "koordlet_resource_update_duration_milliseconds",
                "Time of one batch of kernel writes",
            )
            .buckets(buckets),
            &["type", "status"],
        )
        .ok()?;
        let _ = registry.register(Box::new(updates.clone()));
        let tick = Gauge::new(
            "koordlet_tick_seconds",
            "Time the last collection and decision took",
        )
        .ok()?;
        let _ = registry.register(Box::new(tick.clone()));
        Some(Self {
            node: Arc::default(),
            used_cpu: gauge("node_used_cpu_cores", "CPU in use, in cores", &["node"])?,
            used_memory: gauge(
                "node_used_memory_bytes",
                "Memory in use, in bytes",
                &["node"],
            )?,
            suppress: gauge(
                "be_suppress_cpu_cores",
                "CPU that batch work may use, in cores",
                &["node", "type"],
            )?,
            suppress_ls: gauge(
                "be_suppress_ls_used_cpu_cores",
                "CPU that services use, in cores",
                &["node"],
            )?,
            suppress_be: gauge(
                "be_suppress_be_used_cpu_cores",
                "CPU that batch work uses, in cores",
                &["node"],
            )?,
            suppress_cap: gauge(
                "be_suppress_cap_percent",
                "Cap on the node's CPU for batch work, in percent; 100 is none",
                &["node"],
            )?,
            allocatable: gauge(
                "node_resource_allocatable",
                "Published batch and mid resources",
                &resource,
            )?,
            reclaimable: gauge(
                "node_predicted_resource_reclaimable",
                "Predicted reclaimable resources",
                &predicted,
            )?,
            peak: gauge(
                "node_predicted_resource_peak",
                "Predicted peak use",
                &predicted,
            )?,
            priority_reclaimable: gauge(
                "node_priority_resource_reclaimable",
                "Reclaimable resources by priority",
                &["node", "priority", "resource", "unit"],
            )?,
            reclaimable_status: gauge(
                "node_resource_priority_reclaimable_status",
                "0 when the prediction is available, 1 when not",
                &["node", "priority"],
            )?,
            evictions,
            updates,
            start_time: gauge(
                "start_time",
                "When the agent started, in Unix seconds",
                &["node"],
            )?,
            tick,
        })
    }

    /// Names the node.
    pub fn started(&self, node: &str, unix_seconds: i64) {
        node.clone_into(&mut self.node.lock());
        self.start_time
            .with_label_values(&[node])
            .set(unix_seconds as f64);
    }

    /// Records the published batch and mid resources.
    pub fn allocatable(&self, node: &NodeInfo) {
        for (name, value) in &node.extended {
            let short = name.rsplit('/').next().unwrap_or(name);
            let unit = if short.ends_with("memory") {
                "byte"
            } else {
                "integer"
            };
            self.allocatable
                .with_label_values(&[node.name.as_str(), short, unit])
                .set(*value as f64);
        }
    }

    /// Records the node's use: milli-cores and bytes.
    pub fn node_used(&self, milli: Option<f64>, bytes: Option<f64>) {
        let node = self.node.lock();
        if let Some(milli) = milli {
            self.used_cpu
                .with_label_values(&[node.as_str()])
                .set(milli / 1000.0);
        }
        if let Some(bytes) = bytes {
            self.used_memory
                .with_label_values(&[node.as_str()])
                .set(bytes);
        }
    }

    /// Records what batch work may use and uses, in milli-cores, and the cap in percent.
    pub fn suppression(
        &self,
        by: Policy,
        limit: Option<i64>,
        cap: Option<i64>,
        services: i64,
        batch: i64,
    ) {
        let node = self.node.lock();
        let by = match by {
            Policy::Cpuset => "cpuset",
            Policy::CfsQuota => "cfsQuota",
        };
        if let Some(limit) = limit {
            let limit = limit as f64 / 1000.0;
            self.suppress
                .with_label_values(&[node.as_str(), by])
                .set(limit);
        }
        self.suppress_cap
            .with_label_values(&[node.as_str()])
            .set(cap.unwrap_or(100) as f64);
        self.suppress_ls
            .with_label_values(&[node.as_str()])
            .set(services as f64 / 1000.0);
        self.suppress_be
            .with_label_values(&[node.as_str()])
            .set(batch as f64 / 1000.0);
    }

    /// Records a forecast, or that there is none.
    pub fn reclaimable(&self, reclaimable: Option<&Reclaimable>) {
        let node = self.node.lock();
        let node = node.as_str();
        let status = if reclaimable.is_some() { 0.0 } else { 1.0 };
        self.reclaimable_status
            .with_label_values(&[node, "koord-prod"])
            .set(status);
        let Some(all) = reclaimable else { return };
        for (predictor, Estimate { reclaimable, peak }) in [
            ("podReclaimablePredictor", all.by_pod),
            ("priorityReclaimablePredictor", all.by_class),
            ("minPredictor", all.published),
        ] {
            for (vector, amounts) in [(&self.reclaimable, reclaimable), (&self.peak, peak)] {
                let cpu = amounts.cpu as f64 / 1000.0;
                vector
                    .with_label_values(&[node, predictor, "cpu", "core"])
                    .set(cpu);
                let memory = amounts.memory as f64;
                vector
                    .with_label_values(&[node, predictor, "memory", "byte"])
                    .set(memory);
            }
        }
        let published = all.published.reclaimable;
        for (resource, unit, value) in [
            ("cpu", "core", published.cpu as f64 / 1000.0),
            ("memory", "byte", published.memory as f64),
        ] {
            self.priority_reclaimable
                .with_label_values(&[node, "koord-prod", resource, unit])
                .set(value);
        }
    }

    /// Counts an eviction.
    pub fn evicted(&self, reason: &str) {
        let node = self.node.lock();
        self.evictions
            .with_label_values(&[node.as_str(), reason])
            .inc();
    }

    /// Records a batch of writes.
    pub fn wrote(&self, strategy: &str, ok: bool, milliseconds: f64) {
        let status = if ok { "success" } else { "failed" };
        self.updates
            .with_label_values(&[strategy, status])
            .observe(milliseconds);
    }

    /// Records how long a tick took.
    pub fn ticked(&self, seconds: f64) {
        self.tick.set(seconds);
    }
}
