//! The manager's metrics, under upstream's names.

mod computed;
mod report_age;

pub(crate) use report_age::register_oldest_report;

use computed::ComputedAmounts;
use koord_app::metrics::register;
use koord_kube::controller::ControllerMetrics;
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// All metrics. Clones share the time series.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) nodemetric_reconcile: Outcomes,
    pub(crate) nodemetric_spec_parse: Outcomes,
    pub(crate) nodeslo_reconcile: Outcomes,
    pub(crate) nodeslo_spec_parse: Outcomes,
    pub(crate) noderesource_reconcile: Outcomes,
    pub(crate) leader: IntGauge,
    pub(crate) controllers: ControllerMetrics,
    plugins: IntCounterVec,
    allocatable: ComputedAmounts,
    clock_skew: IntGaugeVec,
    /// Unix time at which the certificate of the webhooks expires; no series before there is one.
    pub(crate) certificate_expiry: IntGaugeVec,
}

/// A counter with the labels `status` and `reason`.
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
    /// Registers all metrics; those of controllers only if `controllers` is `None`.
    pub(crate) fn new(
        registry: &Registry,
        controllers: Option<ControllerMetrics>,
    ) -> prometheus::Result<Self> {
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
        let certificate_expiry = Opts::new(
            "koord_manager_webhook_certificate_expiry_timestamp_seconds",
            "Unix time at which the webhooks' certificate expires",
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
            controllers: controllers.map_or_else(|| ControllerMetrics::register(registry), Ok)?,
            plugins: register(
                registry,
                IntCounterVec::new(plugins, &["plugin", "status", "reason"])?,
            )?,
            allocatable: register(registry, ComputedAmounts::new()?)?,
            clock_skew: register(registry, IntGaugeVec::new(clock_skew, &["node"])?)?,
            certificate_expiry: register(registry, IntGaugeVec::new(certificate_expiry, &[])?)?,
        })
    }

    /// Counts a run of a plugin in a phase such as `ResourceCalculate` or `ResourceReset`.
    pub(crate) fn plugin(&self, plugin: &str, succeeded: bool, phase: &str) {
        self.plugins
            .with_label_values(&[plugin, status(succeeded), phase])
            .inc();
    }

    /// Sets a computed amount: cores for CPU resources, bytes for memory.
    pub(crate) fn computed(&self, node: &str, resource: &str, amount: f64) {
        self.allocatable.set(node, resource, amount);
    }

    /// Sets how many seconds the clock of a node is ahead; `None` removes the series.
    pub(crate) fn set_clock_skew(&self, node: &str, seconds: Option<i64>) {
        match seconds {
            Some(seconds) => self.clock_skew.with_label_values(&[node]).set(seconds),
            // The only error is a missing series, which is the intended state.
            None => drop(self.clock_skew.remove_label_values(&[node])),
        }
    }

    /// Removes the series of a node.
    pub(crate) fn remove_node(&self, node: &str) {
        self.set_clock_skew(node, None);
        self.allocatable.remove_node(node);
    }
}
