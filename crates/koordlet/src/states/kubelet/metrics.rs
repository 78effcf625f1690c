//! Metrics of requests to the kubelet.

use prometheus::HistogramVec;

/// Durations of requests to the kubelet, by verb, path and status code.
#[derive(Debug, Clone)]
pub struct KubeletMetrics(HistogramVec);

impl KubeletMetrics {
    pub(crate) fn new(seconds: HistogramVec) -> Self {
        Self(seconds)
    }

    /// Records a request to the kubelet; `path` is that of the API, without values.
    pub fn record(&self, verb: &str, path: &str, code: u16, seconds: f64) {
        let labels = [verb, path, &code.to_string()];
        if let Ok(histogram) = self.0.get_metric_with_label_values(&labels) {
            histogram.observe(seconds);
        }
    }
}
