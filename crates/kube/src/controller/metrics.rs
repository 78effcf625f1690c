//! The metrics `controller_runtime_*` and `workqueue_*` of controller-runtime.

use crate::queue::QueueMetrics;
use koord_app::metrics::register;
use prometheus::{
    HistogramOpts, HistogramTimer, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// The metrics of all controllers of a process. Clones share the series.
#[derive(Debug, Clone)]
pub struct ControllerMetrics {
    pub(super) queues: QueueMetrics,
    total: IntCounterVec,
    errors: IntCounterVec,
    panics: IntCounterVec,
    seconds: HistogramVec,
    active: IntGaugeVec,
    workers: IntGaugeVec,
}

impl ControllerMetrics {
    /// Registers the metrics. Components that share a registry share clones.
    ///
    /// # Errors
    /// Fails if one of them is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
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
            queues: QueueMetrics::register(registry)?,
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

    /// Creates the series of `controller` with zero values.
    pub(super) fn announce(&self, controller: &str, workers: usize) {
        for result in ["success", "error", "requeue", "requeue_after"] {
            self.total.with_label_values(&[controller, result]);
        }
        self.errors.with_label_values(&[controller]);
        self.panics.with_label_values(&[controller]);
        self.active.with_label_values(&[controller]).set(0);
        let workers = i64::try_from(workers).unwrap_or(i64::MAX);
        self.workers.with_label_values(&[controller]).set(workers);
    }

    /// Measures a reconcile until the returned guard is dropped.
    pub(super) fn begin(&self, controller: &str) -> RunningReconcile {
        let active = self.active.with_label_values(&[controller]);
        active.inc();
        let timer = self.seconds.with_label_values(&[controller]).start_timer();
        RunningReconcile {
            active,
            _timer: timer,
        }
    }

    /// Counts a reconcile that ended with `success`, `requeue_after` or `error`.
    pub(super) fn count(&self, controller: &str, result: &str) {
        self.total.with_label_values(&[controller, result]).inc();
        if result == "error" {
            self.errors.with_label_values(&[controller]).inc();
        }
    }

    /// Counts a reconcile that panicked.
    pub(super) fn count_panic(&self, controller: &str) {
        self.panics.with_label_values(&[controller]).inc();
        self.count(controller, "error");
    }
}

/// A reconcile in progress, which is measured until this is dropped.
pub(super) struct RunningReconcile {
    active: IntGauge,
    _timer: HistogramTimer,
}

impl Drop for RunningReconcile {
    fn drop(&mut self) {
        self.active.dec();
    }
}
