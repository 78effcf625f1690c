//! Metrics of the webhooks, with upstream's names.

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, exponential_buckets,
};
use tokio::time::Instant;

const SUBSYSTEM: &str = "koord_manager_webhook";

/// Durations and decisions of webhooks.
#[derive(Debug, Clone)]
pub struct WebhookMetrics {
    durations: HistogramVec,
    /// Number of binding decisions.
    pub(crate) bindings: IntCounterVec,
    /// Defaulted shared weights by quota and resource, in the resource's unit.
    pub(crate) shared_weight: GaugeVec,
}

impl WebhookMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// A metric is already registered.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let options = HistogramOpts::new(
            "webhook_duration_milliseconds",
            "How long one step of a webhook took, in milliseconds",
        );
        let labels = [
            "webhook_type",
            "object_type",
            "operation",
            "plugin_name",
            "status",
        ];
        let durations = HistogramVec::new(
            options
                .subsystem(SUBSYSTEM)
                .buckets(exponential_buckets(0.001, 2.0, 20)?),
            &labels,
        )?;
        let options = Opts::new(
            "binding_admission_decisions_total",
            "Decisions about bindings of pods",
        );
        let bindings = IntCounterVec::new(options.subsystem(SUBSYSTEM), &["decision"])?;
        let options = Opts::new("quota_shared_weight", "The shared weight of a quota");
        let labels = ["elasticquota_name", "resource_name"];
        let shared_weight = GaugeVec::new(options.subsystem(SUBSYSTEM), &labels)?;
        registry.register(Box::new(durations.clone()))?;
        registry.register(Box::new(shared_weight.clone()))?;
        registry.register(Box::new(bindings.clone()))?;
        Ok(Self {
            durations,
            bindings,
            shared_weight,
        })
    }

    /// Returns the step timers of one webhook: `mutate` or `validate`, the kind of object, `CREATE` or
    /// another operation.
    pub(crate) fn steps(
        &self,
        webhook: &'static str,
        object: &'static str,
        operation: &'static str,
    ) -> StepTimers<'_> {
        StepTimers {
            metrics: self,
            labels: [webhook, object, operation],
        }
    }
}

/// Creates the timers of one webhook's steps.
pub(crate) struct StepTimers<'a> {
    metrics: &'a WebhookMetrics,
    labels: [&'static str; 3],
}

impl<'a> StepTimers<'a> {
    /// Starts the timer of the step that upstream names `plugin`.
    pub(crate) fn start(&self, plugin: &'static str) -> Timer<'a> {
        let [webhook, object, operation] = self.labels;
        Timer {
            metrics: self.metrics,
            labels: [webhook, object, operation, plugin],
            since: Instant::now(),
        }
    }
}

/// Timer of a running step.
pub(crate) struct Timer<'a> {
    metrics: &'a WebhookMetrics,
    labels: [&'static str; 4],
    since: Instant,
}

impl Timer<'_> {
    /// Records duration and outcome of the step, and returns `result`.
    pub(crate) fn stop<T, E>(self, result: Result<T, E>) -> Result<T, E> {
        let status = if result.is_ok() {
            "allowed"
        } else {
            "rejected"
        };
        let [webhook, object, operation, plugin] = self.labels;
        self.metrics
            .durations
            .with_label_values(&[webhook, object, operation, plugin, status])
            .observe(self.since.elapsed().as_secs_f64() * 1000.0);
        result
    }
}
