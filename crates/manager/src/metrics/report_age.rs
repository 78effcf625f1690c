//! The time of the oldest report of koordlet, computed from the cache at each scrape.

use crate::cache::Cache;
use crate::facts::MetricFacts;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, Registry};
use std::sync::Arc;

/// Collector of the oldest report. Without a report there is no series.
struct OldestReport {
    cache: Cache<MetricFacts>,
    /// Gauge that is used only for the metric's name and help text; it is never set.
    described: IntGauge,
}

fn gauge() -> prometheus::Result<IntGauge> {
    IntGauge::new(
        "koord_manager_oldest_node_metric_timestamp_seconds",
        "Unix time of the oldest last report among the NodeMetrics, as this replica has seen them",
    )
}

/// Registers the metric of the oldest report in `cache`.
///
/// # Errors
///
/// When the metric is registered already.
pub(crate) fn register_oldest_report(
    registry: &Registry,
    cache: Cache<MetricFacts>,
) -> prometheus::Result<()> {
    let described = gauge()?;
    registry.register(Box::new(OldestReport { cache, described }))
}

/// Returns the time of the oldest report, in Unix seconds; nodes without a report are left out.
fn oldest(metrics: &[Arc<MetricFacts>]) -> Option<i64> {
    let reports = metrics.iter().filter_map(|facts| facts.report.as_ref());
    reports.filter_map(|report| report.updated).min()
}

impl Collector for OldestReport {
    fn desc(&self) -> Vec<&Desc> {
        self.described.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The same definition was valid at registration.
        let (Some(seconds), Ok(gauge)) = (oldest(&self.cache.list()), gauge()) else {
            return Vec::new();
        };
        gauge.set(seconds);
        gauge.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts(name: &str, status: serde_json::Value) -> Arc<MetricFacts> {
        let metric = json!({"metadata": {"name": name}, "spec": {}, "status": status});
        Arc::new(MetricFacts::from_metric(
            &serde_json::from_value(metric).unwrap(),
        ))
    }

    #[test]
    fn oldest_report_of_all_nodes_counts() {
        let none = facts("new", json!({}));
        assert_eq!(oldest(std::slice::from_ref(&none)), None);
        let late = facts("late", json!({"updateTime": "2026-01-01T00:00:00Z"}));
        let early = facts("early", json!({"updateTime": "2026-01-01T00:05:00Z"}));
        assert_eq!(oldest(&[none, early, late]), Some(1_767_225_600));
    }
}
