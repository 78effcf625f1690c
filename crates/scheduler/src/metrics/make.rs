//! Creation of metrics: registered once, and reset together.

use parking_lot::Mutex;
use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    CounterVec, Error, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    Opts, Registry,
};
use std::sync::Arc;

/// Upstream's stability level of a metric; it precedes the help text.
#[derive(Debug, Clone, Copy)]
pub(super) enum Level {
    Stable,
    Beta,
    Alpha,
    /// The metric has no stability level: it is koord's own, or upstream registers it without one.
    Internal,
}

impl Level {
    fn help(self, text: &str) -> String {
        match self {
            Self::Stable => format!("[STABLE] {text}"),
            Self::Beta => format!("[BETA] {text}"),
            Self::Alpha | Self::Internal => format!("[ALPHA] {text}"),
        }
    }
}

/// Returns `count` bounds from `start` on, each `factor` times the previous one, and `finer` more below:
/// upstream's bounds start at its own latencies, and most of ours would share one bucket.
pub(super) fn bounds(start: f64, factor: f64, count: usize, finer: usize) -> Vec<f64> {
    // Step by step, as upstream computes them, to get the same numbers to the last digit.
    let steps = |by: fn(f64, f64) -> f64| {
        std::iter::successors(Some(start), move |bound| Some(by(*bound, factor)))
    };
    let mut bounds: Vec<f64> = steps(|a, b| a / b).skip(1).take(finer).collect();
    bounds.reverse();
    bounds.extend(steps(|a, b| a * b).take(count));
    bounds
}

type Empty = Box<dyn Fn() + Send + Sync>;

/// Resets what `DELETE /metrics` resets in upstream: all metrics with labels. Clones share the metrics.
#[derive(Clone, Default)]
pub(crate) struct Resets(Arc<Mutex<Vec<Empty>>>);

impl std::fmt::Debug for Resets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Resets({})", self.0.lock().len())
    }
}

impl Resets {
    pub(crate) fn add(&self, empty: impl Fn() + Send + Sync + 'static) {
        self.0.lock().push(Box::new(empty));
    }

    pub(crate) fn run(&self) {
        for empty in self.0.lock().iter() {
            empty();
        }
    }
}

/// Creates and registers metrics. A metric that the registry already has is not registered again.
#[derive(Debug, Clone)]
pub(super) struct MetricFactory {
    registry: Registry,
    resets: Resets,
}

type Made<T> = Result<T, Error>;

impl MetricFactory {
    pub(super) fn new(registry: &Registry, resets: Resets) -> Self {
        Self {
            registry: registry.clone(),
            resets,
        }
    }

    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Made<C> {
        koord_app::metrics::register_first(&self.registry, metric)
    }

    fn vector<B: MetricVecBuilder + 'static>(&self, metric: MetricVec<B>) -> Made<MetricVec<B>> {
        let metric = self.register(metric)?;
        let vector = metric.clone();
        self.resets.add(move || vector.reset());
        Ok(metric)
    }

    pub(super) fn counter(&self, name: &str, level: Level, help: &str) -> Made<IntCounter> {
        self.register(IntCounter::new(name, level.help(help))?)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        level: Level,
        help: &str,
        labels: &[&str],
    ) -> Made<IntCounterVec> {
        self.vector(IntCounterVec::new(
            Opts::new(name, level.help(help)),
            labels,
        )?)
    }

    pub(super) fn float_counters(
        &self,
        name: &str,
        level: Level,
        help: &str,
        labels: &[&str],
    ) -> Made<CounterVec> {
        self.vector(CounterVec::new(Opts::new(name, level.help(help)), labels)?)
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        level: Level,
        help: &str,
        labels: &[&str],
    ) -> Made<GaugeVec> {
        self.vector(GaugeVec::new(Opts::new(name, level.help(help)), labels)?)
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        level: Level,
        help: &str,
        buckets: Vec<f64>,
    ) -> Made<Histogram> {
        let options = HistogramOpts::new(name, level.help(help)).buckets(buckets);
        self.register(Histogram::with_opts(options)?)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        level: Level,
        help: &str,
        labels: &[&str],
        buckets: Vec<f64>,
    ) -> Made<HistogramVec> {
        let options = HistogramOpts::new(name, level.help(help)).buckets(buckets);
        self.vector(HistogramVec::new(options, labels)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finer_bounds_keep_upstreams() {
        for (start, factor, count) in [(0.001, 2.0, 15), (0.000_01, 1.5, 20)] {
            let upstream = prometheus::exponential_buckets(start, factor, count).unwrap();
            let finer = bounds(start, factor, count, 7);
            assert_eq!(finer.len(), count + 7);
            assert_eq!(&finer[7..], &upstream[..]);
            assert!(finer.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }

    #[test]
    fn reset_clears_labelled_metrics_only() {
        let registry = Registry::new();
        let resets = Resets::default();
        let maker = MetricFactory::new(&registry, resets.clone());
        let labelled = maker
            .counters("labelled_total", Level::Stable, "Labelled.", &["a"])
            .unwrap();
        let plain = maker
            .counter("plain_total", Level::Alpha, "Plain.")
            .unwrap();
        labelled.with_label_values(&["x"]).inc();
        plain.inc();
        resets.run();
        let text = koord_app::metrics::encode(&registry).unwrap();
        assert!(!text.contains("labelled_total{"), "{text}");
        assert!(text.contains("plain_total 1"), "{text}");
        labelled.with_label_values(&["x"]).inc();
        let text = koord_app::metrics::encode(&registry).unwrap();
        assert!(text.contains("labelled_total{a=\"x\"} 1"), "{text}");
        assert!(
            text.contains("# HELP labelled_total [STABLE] Labelled."),
            "{text}"
        );
    }
}
