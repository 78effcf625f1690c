//! What the store counts about itself.

use prometheus::{Histogram, HistogramOpts, IntCounter, Registry};

/// The store's own metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    /// Seconds the disk took to confirm a batch.
    pub sync_seconds: Histogram,
    /// Writes that shared one confirmation.
    pub batch_writes: Histogram,
    /// Failed batches and snapshots.
    pub errors: IntCounter,
    /// Snapshots written.
    pub snapshots: IntCounter,
}

impl StoreMetrics {
    /// Fresh metrics.
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

    /// Registers them all.
    ///
    /// # Errors
    /// When `registry` has metrics of these names.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.sync_seconds.clone()))?;
        registry.register(Box::new(self.batch_writes.clone()))?;
        registry.register(Box::new(self.errors.clone()))?;
        registry.register(Box::new(self.snapshots.clone()))
    }
}
