//! The manager's metrics, under upstream's names.

mod computed;

use computed::Computed;
use koord_app::metrics::register;
use koord_kube::queue::QueueMetrics;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// All metrics. Clones share the series.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) nodemetric_reconcile: Outcomes,
    pub(crate) nodemetric_spec_parse: Outcomes,
    pub(crate) nodeslo_reconcile: Outcomes,
    pub(crate) nodeslo_spec_parse: Outcomes,
    pub(crate) noderesource_reconcile: Outcomes,
    pub(crate) leader: IntGauge,
    pub(crate) queues: QueueMetrics,
    pub(crate) reconciles: Reconciles,
    plugins: IntCounterVec,
    allocatable: Computed,
    clock_skew: IntGaugeVec,
}

/// A counter with `status` and `reason`.
#[derive(Debug, Clone)]
pub(crate) struct Outcomes(IntCounterVec);

impl Outcomes {
    pub(crate) fn count(&self, succeeded: bool, reason: &str) {
        self.0.with_label_values(&[status(succeeded), reason]).inc();
    }
}

fn status(succeeded: bool) -> &'static str {
    if succeeded { "succeeded" } else { "failed" }
}

impl Metrics {
    /// Registers everything.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let outcomes = |name: &str, help: &str| {
            let opts = Opts::new(format!("slo_controller_{name}"), help);
            register(registry, IntCounterVec::new(opts, &["status", "reason"])?).map(Outcomes)
        };
        let plugins = Opts::new(
            "slo_controller_node_resource_run_plugin_status",
            "How the plugins of the noderesource controller ran",
        );
        let clock_skew = Opts::new(
            "koord_manager_node_clock_skew_seconds",
            "How far ahead of now the first refused NodeMetric of a node was dated; only nodes whose clock is ahead",
        );
        Ok(Self {
            nodemetric_reconcile: outcomes("nodemetric_reconcile_count", "NodeMetric reconciles")?,
            nodemetric_spec_parse: outcomes("nodemetric_spec_parse_count", "NodeMetric specs")?,
            nodeslo_reconcile: outcomes("nodeslo_reconcile_count", "NodeSLO reconciles")?,
            nodeslo_spec_parse: outcomes("nodeslo_spec_parse_count", "NodeSLO specs")?,
            noderesource_reconcile: outcomes(
                "node_resource_reconcile_count",
                "Node resource reconciles",
            )?,
            leader: register(
                registry,
                IntGauge::new(
                    "koordinator_manager_is_leader",
                    "Whether this replica leads",
                )?,
            )?,
            queues: QueueMetrics::register(registry)?,
            reconciles: Reconciles::register(registry)?,
            plugins: register(
                registry,
                IntCounterVec::new(plugins, &["plugin", "status", "reason"])?,
            )?,
            allocatable: register(registry, Computed::new()?)?,
            clock_skew: register(registry, IntGaugeVec::new(clock_skew, &["node"])?)?,
        })
    }

    /// Counts a run of a plugin in a phase (`ResourceCalculate`, `ResourceReset`, ...).
    pub(crate) fn plugin(&self, plugin: &str, succeeded: bool, phase: &str) {
        self.plugins
            .with_label_values(&[plugin, status(succeeded), phase])
            .inc();
    }

    /// Shows a computed amount: cores for CPU resources, bytes for memory.
    pub(crate) fn computed(&self, node: &str, resource: &str, amount: f64) {
        self.allocatable.set(node, resource, amount);
    }

    /// Sets by how many seconds the clock of a node is ahead; `None` removes the series.
    pub(crate) fn set_clock_skew(&self, node: &str, seconds: Option<i64>) {
        match seconds {
            Some(seconds) => self.clock_skew.with_label_values(&[node]).set(seconds),
            // An error: there is no such series.
            None => drop(self.clock_skew.remove_label_values(&[node])),
        }
    }

    /// Forgets a node.
    pub(crate) fn forget(&self, node: &str) {
        self.set_clock_skew(node, None);
        self.allocatable.forget(node);
    }
}

/// What controller-runtime says of every controller, under its names.
#[derive(Debug, Clone)]
pub(crate) struct Reconciles {
    total: IntCounterVec,
    errors: IntCounterVec,
    panics: IntCounterVec,
    seconds: HistogramVec,
    active: IntGaugeVec,
    workers: IntGaugeVec,
}

impl Reconciles {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let name = |name: &str| format!("controller_runtime_{name}");
        let counters = |what: &str, help: &str, labels: &[&str]| {
            register(
                registry,
                IntCounterVec::new(Opts::new(name(what), help), labels)?,
            )
        };
        let gauges = |what: &str, help: &str| {
            let gauges = IntGaugeVec::new(Opts::new(name(what), help), &["controller"])?;
            register(registry, gauges)
        };
        let seconds =
            HistogramOpts::new(name("reconcile_time_seconds"), "How long a reconcile took")
                .buckets(vec![
                    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
                ]);
        Ok(Self {
            total: counters("reconcile_total", "Reconciles", &["controller", "result"])?,
            errors: counters(
                "reconcile_errors_total",
                "Reconciles that failed",
                &["controller"],
            )?,
            panics: counters(
                "reconcile_panics_total",
                "Reconciles that panicked",
                &["controller"],
            )?,
            seconds: register(registry, HistogramVec::new(seconds, &["controller"])?)?,
            active: gauges("active_workers", "Keys that are being worked on")?,
            workers: gauges(
                "max_concurrent_reconciles",
                "Keys that are worked on at once, at most",
            )?,
        })
    }

    /// A controller is there, with nothing done yet.
    pub(crate) fn announce(&self, controller: &str, workers: usize) {
        for result in ["success", "error", "requeue", "requeue_after"] {
            self.total.with_label_values(&[controller, result]);
        }
        self.errors.with_label_values(&[controller]);
        self.panics.with_label_values(&[controller]);
        self.active.with_label_values(&[controller]).set(0);
        let workers = i64::try_from(workers).unwrap_or(i64::MAX);
        self.workers.with_label_values(&[controller]).set(workers);
    }

    /// A reconcile begins; it ends when what is returned is dropped.
    pub(crate) fn begin(&self, controller: &str) -> Running {
        let active = self.active.with_label_values(&[controller]);
        active.inc();
        let timer = self.seconds.with_label_values(&[controller]).start_timer();
        Running {
            active,
            _timer: timer,
        }
    }

    /// How one ended: `success`, `requeue_after` or `error`.
    pub(crate) fn count(&self, controller: &str, result: &str) {
        self.total.with_label_values(&[controller, result]).inc();
        if result == "error" {
            self.errors.with_label_values(&[controller]).inc();
        }
    }

    /// One panicked.
    pub(crate) fn panicked(&self, controller: &str) {
        self.panics.with_label_values(&[controller]).inc();
        self.count(controller, "error");
    }
}

/// A reconcile that is being done.
pub(crate) struct Running {
    active: IntGauge,
    _timer: prometheus::HistogramTimer,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.active.dec();
    }
}
