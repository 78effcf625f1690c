//! Metrics of shadow mode.

use super::make::{Level, MetricFactory, Resets};
use prometheus::{IntCounterVec, Registry};

/// Counts of shadow mode.
#[derive(Debug, Clone)]
pub(crate) struct ShadowMetrics {
    results: IntCounterVec,
    withheld: IntCounterVec,
}

impl ShadowMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// Fails on an invalid metric definition, which tests would detect.
    pub(crate) fn new(registry: &Registry, resets: Resets) -> Result<Self, prometheus::Error> {
        let make = MetricFactory::new(registry, resets);
        Ok(Self {
            results: make.counters(
                "koord_scheduler_shadow_results_total",
                Level::Internal,
                "Pods whose decision was compared with that of the cluster's scheduler, by result.",
                &["profile", "result"],
            )?,
            withheld: make.counters(
                "koord_scheduler_shadow_withheld_total",
                Level::Internal,
                "Operations that were not carried out, by kind.",
                &["kind"],
            )?,
        })
    }

    /// Counts a compared pod.
    pub(crate) fn compared(&self, profile: &str, result: &str) {
        self.results.with_label_values(&[profile, result]).inc();
    }

    /// Counts an operation that was not carried out.
    pub(crate) fn withheld(&self, kind: &str) {
        self.withheld.with_label_values(&[kind]).inc();
    }
}
