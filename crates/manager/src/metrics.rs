//! The manager's metrics, under upstream's names.

use koord_app::metrics::{Expiring, ExpiringGauges, register};
use prometheus::{GaugeVec, IntCounterVec, IntGauge, Opts, Registry};
use std::time::Duration;

/// How long the gauge of a node that is not computed any more is kept.
const GAUGE_LIFE: Duration = Duration::from_secs(15 * 60);

/// All metrics. Clones share the series.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) nodemetric_reconcile: Outcomes,
    pub(crate) nodemetric_spec_parse: Outcomes,
    pub(crate) nodeslo_reconcile: Outcomes,
    pub(crate) nodeslo_spec_parse: Outcomes,
    pub(crate) noderesource_reconcile: Outcomes,
    pub(crate) leader: IntGauge,
    plugins: IntCounterVec,
    allocatable: ExpiringGauges,
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
        let allocatable = Opts::new(
            "slo_controller_node_extended_resource_allocatable_internal",
            "Computed amounts of extended resources, before thresholds are applied",
        );
        let allocatable = GaugeVec::new(allocatable, &["node", "resource", "unit"])?;
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
            plugins: register(
                registry,
                IntCounterVec::new(plugins, &["plugin", "status", "reason"])?,
            )?,
            allocatable: register(registry, Expiring::new(allocatable, GAUGE_LIFE))?,
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
        let unit = if resource.ends_with("cpu") {
            "integer"
        } else {
            "byte"
        };
        // The number of labels is right, which is all that could be wrong.
        if let Ok(gauge) = self.allocatable.with(&[node, resource, unit]) {
            gauge.set(amount);
        }
    }

    /// Forgets a node.
    pub(crate) fn forget(&self, node: &str) {
        for resource in crate::noderesource::RESOURCES {
            let unit = if resource.ends_with("cpu") {
                "integer"
            } else {
                "byte"
            };
            self.allocatable.remove(&[node, resource, unit]);
        }
    }
}
