//! Metrics of the store.

use prometheus::{Histogram, HistogramOpts, IntCounter, Registry};

/// The store's metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    /// Time in seconds that the disk took to sync a batch.
    pub sync_seconds: Histogram,
    /// Number of writes that shared one sync.
    pub batch_writes: Histogram,
    /// Number of failed batches and snapshots.
    pub errors: IntCounter,
    /// Number of written snapshots.
    pub snapshots: IntCounter,
}

impl StoreMetrics {
    /// Creates the metrics.
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let sync_buckets = prometheus::exponential_buckets(0.000_1, 2.0, 15)?;
        let batch_buckets = prometheus::exponential_buckets(1.0, 2.0, 12)?;
        Ok(Self {
            sync_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "koord_apiserver_wal_fsync_duration_seconds",
                    "Time the disk took to confirm a batch of writes.",
                )
                .buckets(sync_buckets),
            )?,
            batch_writes: Histogram::with_opts(
                HistogramOpts::new(
                    "koord_apiserver_wal_batch_writes",
                    "Writes that shared one confirmation of the disk.",
                )
                .buckets(batch_buckets),
            )?,
            errors: IntCounter::new(
                "koord_apiserver_storage_errors_total",
                "Batches and snapshots that could not be written.",
            )?,
            snapshots: IntCounter::new(
                "koord_apiserver_storage_snapshots_total",
                "Snapshots written.",
            )?,
        })
    }

    /// Registers all metrics.
    ///
    /// # Errors
    /// If `registry` has metrics with these names already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.sync_seconds.clone()))?;
        registry.register(Box::new(self.batch_writes.clone()))?;
        registry.register(Box::new(self.errors.clone()))?;
        registry.register(Box::new(self.snapshots.clone()))
    }
}
