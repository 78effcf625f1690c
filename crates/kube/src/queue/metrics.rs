//! The metrics `workqueue_*` of client-go.

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, exponential_buckets,
};
use std::collections::HashMap;
use std::hash::Hash;
use tokio::time::Instant;

/// The metrics of all queues of a process.
#[derive(Debug, Clone)]
pub struct QueueMetrics {
    adds: IntCounterVec,
    retries: IntCounterVec,
    depth: IntGaugeVec,
    waits: HistogramVec,
    works: HistogramVec,
}

impl QueueMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// Fails if one of them is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let labels = ["name", "controller"];
        // From 10 ns to 1,000 s.
        let buckets = exponential_buckets(1e-8, 10.0, 12)?;
        let counters = |name, help| {
            let counters = IntCounterVec::new(Opts::new(name, help), &labels)?;
            koord_app::metrics::register(registry, counters)
        };
        let times = |name, help| {
            let options = HistogramOpts::new(name, help).buckets(buckets.clone());
            koord_app::metrics::register(registry, HistogramVec::new(options, &labels)?)
        };
        let depth = Opts::new("workqueue_depth", "Keys that wait to be worked on");
        let depth = IntGaugeVec::new(depth, &["name", "controller", "priority"])?;
        Ok(Self {
            adds: counters("workqueue_adds_total", "Keys that were added")?,
            retries: counters(
                "workqueue_retries_total",
                "Keys that were added after a delay",
            )?,
            depth: koord_app::metrics::register(registry, depth)?,
            waits: times(
                "workqueue_queue_duration_seconds",
                "How long a key waited to be worked on",
            )?,
            works: times(
                "workqueue_work_duration_seconds",
                "How long a key was worked on",
            )?,
        })
    }

    /// Returns the metrics of a controller's queue. Its series exist from now on, with zero values.
    pub(super) fn series<T>(&self, name: &str) -> QueueSeries<T> {
        let labels = [name, name];
        QueueSeries {
            adds: self.adds.with_label_values(&labels),
            retries: self.retries.with_label_values(&labels),
            depth: self.depth.with_label_values(&[name, name, "0"]),
            waits: self.waits.with_label_values(&labels),
            works: self.works.with_label_values(&labels),
            added: HashMap::new(),
            begun: HashMap::new(),
        }
    }
}

/// The metrics of one queue.
#[derive(Debug)]
pub(super) struct QueueSeries<T> {
    adds: prometheus::IntCounter,
    retries: prometheus::IntCounter,
    depth: prometheus::IntGauge,
    waits: prometheus::Histogram,
    works: prometheus::Histogram,
    added: HashMap<T, Instant>,
    begun: HashMap<T, Instant>,
}

impl<T: Clone + Eq + Hash> QueueSeries<T> {
    /// Records that a key was added.
    pub(super) fn add(&mut self, key: &T) {
        self.adds.inc();
        self.depth.inc();
        self.added.insert(key.clone(), Instant::now());
    }

    /// Records that a key will be added after a delay.
    pub(super) fn delay(&self) {
        self.retries.inc();
    }

    /// Records that the processing of a key begins.
    pub(super) fn begin(&mut self, key: &T) {
        self.depth.dec();
        if let Some(added) = self.added.remove(key) {
            self.waits.observe(added.elapsed().as_secs_f64());
        }
        self.begun.insert(key.clone(), Instant::now());
    }

    /// Records that the processing of a key ended.
    pub(super) fn end(&mut self, key: &T) {
        if let Some(begun) = self.begun.remove(key) {
            self.works.observe(begun.elapsed().as_secs_f64());
        }
    }
}
