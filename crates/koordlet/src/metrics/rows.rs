//! Metrics of pods and containers: published as a whole, and converted to series on a scrape.
//!
//! Objects that are missing in the newest rows are removed from the output, and between scrapes a round costs
//! one move of a vector.

use super::table::Family;
use parking_lot::Mutex;
use prometheus::GaugeVec;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// Receives one value: the index of its family, its labels without the node, and the value.
pub(super) type EmitFn<'a> = &'a mut dyn FnMut(usize, &[&str], f64);

/// The newest rows of one kind. Clones share them.
pub(super) struct Rows<T>(Arc<RowSet<T>>);

struct RowSet<T> {
    node: Arc<OnceLock<String>>,
    vectors: Vec<GaugeVec>,
    life: Option<Duration>,
    emit: fn(&T, EmitFn<'_>),
    newest: Mutex<Option<(Instant, Vec<T>)>>,
}

impl<T> Clone for Rows<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Rows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.newest.lock().as_ref().map(|(_, rows)| rows.len());
        f.debug_struct("Rows").field("rows", &rows).finish()
    }
}

impl<T> Rows<T> {
    /// Creates an empty set. `emit` emits the values of one row; rows that are not renewed for `life` expire.
    pub(super) fn new(
        node: &Arc<OnceLock<String>>,
        families: &[Family],
        life: Option<Duration>,
        emit: fn(&T, EmitFn<'_>),
    ) -> prometheus::Result<Self> {
        let vectors = families.iter().map(Family::gauge);
        Ok(Self(Arc::new(RowSet {
            node: node.clone(),
            vectors: vectors.collect::<prometheus::Result<_>>()?,
            life,
            emit,
            newest: Mutex::new(None),
        })))
    }

    /// Replaces all rows.
    pub(super) fn publish(&self, rows: Vec<T>) {
        *self.0.newest.lock() = Some((Instant::now(), rows));
    }
}

impl<T: Send + Sync> Collector for Rows<T> {
    fn desc(&self) -> Vec<&Desc> {
        self.0.vectors.iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let inner = &self.0;
        // Locked while the vectors are filled, so that two scrapes do not mix.
        let mut newest = inner.newest.lock();
        let old = |(at, _): &(Instant, Vec<T>)| inner.life.is_some_and(|life| at.elapsed() > life);
        if newest.as_ref().is_some_and(old) {
            *newest = None;
        }
        for vector in &inner.vectors {
            vector.reset();
        }
        let (Some(node), Some((_, rows))) = (inner.node.get(), newest.as_ref()) else {
            return Vec::new();
        };
        for row in rows {
            (inner.emit)(row, &mut |family, labels, value| {
                let mut all = vec![node.as_str()];
                all.extend(labels);
                let vector = inner.vectors.get(family);
                if let Some(Ok(gauge)) = vector.map(|v| v.get_metric_with_label_values(&all)) {
                    gauge.set(value);
                }
            });
        }
        inner.vectors.iter().flat_map(Collector::collect).collect()
    }
}
