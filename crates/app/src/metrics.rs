//! Metrics in the Prometheus text format, under exactly the given names.

mod process;

pub use process::register_process;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc, MetricVec, MetricVecBuilder};
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, GaugeVec, Registry, TextEncoder};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The content type of [`encode`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Registers `collector` and returns it.
///
/// # Errors
///
/// When a metric of that name is registered already.
pub fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// Registers `collector` unless `registry` has one of its name, and returns it. For metrics that several
/// components of one process have: those of the first one are shown.
///
/// # Errors
///
/// When the metric's definition is invalid.
pub fn register_first<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    match registry.register(Box::new(collector.clone())) {
        Ok(()) | Err(prometheus::Error::AlreadyReg) => Ok(collector),
        Err(error) => Err(error),
    }
}

/// Encodes all metrics of `registry` as text.
///
/// # Errors
///
/// When a metric has no content, which the library refuses to write.
pub fn encode(registry: &Registry) -> prometheus::Result<String> {
    encode_families(&registry.gather())
}

/// Encodes gathered metrics as text.
///
/// # Errors
///
/// As [`encode`].
pub fn encode_families(families: &[MetricFamily]) -> prometheus::Result<String> {
    let mut buffer = Vec::new();
    TextEncoder::new().encode(families, &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

/// Maps a metric vector to the type of its builder, which the `prometheus` crate does not export.
pub trait Vector {
    /// Type that builds its metrics.
    type Builder: MetricVecBuilder;
}

impl<B: MetricVecBuilder> Vector for MetricVec<B> {
    type Builder = B;
}

/// A vector of gauges whose series are removed when they have not been set for a while.
pub type ExpiringGauges = ExpiringVec<<GaugeVec as Vector>::Builder>;

/// A vector of metrics whose series are removed when they have not been used for a while, so that deleted
/// pods and nodes do not stay in the text forever. Clones share the series.
#[derive(Clone)]
pub struct ExpiringVec<B: MetricVecBuilder> {
    vector: MetricVec<B>,
    touched: Arc<Mutex<HashMap<Vec<String>, Instant>>>,
    life: Duration,
}

impl<B: MetricVecBuilder> std::fmt::Debug for ExpiringVec<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExpiringVec")
            .field("series", &self.touched.lock().len())
            .finish()
    }
}

impl<B: MetricVecBuilder> ExpiringVec<B> {
    /// Creates the vector. Its series expire `life` after their last use.
    #[must_use]
    pub fn new(vector: MetricVec<B>, life: Duration) -> Self {
        Self {
            vector,
            touched: Arc::default(),
            life,
        }
    }

    /// Returns the metric with these label values, creating it if needed.
    ///
    /// # Errors
    ///
    /// When there are more or fewer values than labels.
    pub fn with(&self, values: &[&str]) -> prometheus::Result<B::M> {
        let metric = self.vector.get_metric_with_label_values(values)?;
        let key = values.iter().map(|value| (*value).to_owned()).collect();
        self.touched.lock().insert(key, Instant::now());
        Ok(metric)
    }

    /// Removes a series at once.
    pub fn remove(&self, values: &[&str]) {
        let key: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        if self.touched.lock().remove(&key).is_some() {
            // The only error is that it is gone already.
            let _ = self.vector.remove_label_values(&key);
        }
    }

    fn expire(&self) {
        let now = Instant::now();
        self.touched.lock().retain(|values, touched| {
            let keep = now.duration_since(*touched) <= self.life;
            if !keep {
                let _ = self.vector.remove_label_values(values);
            }
            keep
        });
    }
}

impl<B: MetricVecBuilder> Collector for ExpiringVec<B> {
    fn desc(&self) -> Vec<&Desc> {
        self.vector.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.expire();
        self.vector.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{IntCounter, Opts};

    #[test]
    fn names_are_written_as_given() {
        let registry = Registry::new();
        let counter = IntCounter::new("slo_controller_reconcile_count", "Reconciles").unwrap();
        register(&registry, counter).unwrap().inc();
        let text = encode(&registry).unwrap();
        assert!(
            text.contains("\nslo_controller_reconcile_count 1\n"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn untouched_series_vanish() {
        let registry = Registry::new();
        let vector = GaugeVec::new(Opts::new("usage", "Usage"), &["node"]).unwrap();
        let vector = ExpiringVec::new(vector, Duration::from_secs(300));
        let vector = register(&registry, vector).unwrap();
        vector.with(&["a"]).unwrap().set(1.0);
        vector.with(&["b"]).unwrap().set(2.0);
        tokio::time::advance(Duration::from_secs(200)).await;
        vector.with(&["b"]).unwrap().set(3.0);
        tokio::time::advance(Duration::from_secs(200)).await;
        let text = encode(&registry).unwrap();
        assert!(
            !text.contains("\"a\"") && text.contains("usage{node=\"b\"} 3"),
            "{text}"
        );
        vector.remove(&["b"]);
        assert!(!encode(&registry).unwrap().contains("\"b\""));
        assert!(vector.with(&["a", "b"]).is_err());
    }
}
