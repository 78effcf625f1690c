//! Metrics that plugins export.

/// A metric family of a plugin, under the full name that upstream uses.
#[derive(Debug)]
pub struct Family {
    /// The name: `scheduler_...`.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The type of metric.
    pub kind: MetricKind,
}

/// The type of a metric [`Family`].
#[derive(Debug, Clone, Copy)]
pub enum MetricKind {
    /// A counter of occurrences.
    Counter,
    /// A gauge of the current value.
    Gauge,
    /// A histogram of observations, with these upper bounds of its buckets.
    Histogram(fn() -> Vec<f64>),
}

/// Value of a metric with its labels.
#[derive(Debug, Clone)]
pub struct MetricSample {
    /// The metric.
    pub family: &'static Family,
    /// The values of the family's labels, in their order.
    pub labels: Vec<String>,
    /// The value.
    pub value: f64,
}

/// The values collected from plugins by [`super::MetricSource::read`].
#[derive(Debug, Default)]
pub struct MetricSamples {
    renewed: Vec<&'static Family>,
    values: Vec<MetricSample>,
}

impl MetricSamples {
    /// Declares that the values that follow for this family of gauges, from any instance of the plugin, are
    /// complete: earlier ones are removed.
    pub fn renew(&mut self, family: &'static Family) {
        self.renewed.push(family);
    }

    /// Adds one value: for a counter, the increase since the last call; for a gauge, the current value; for a
    /// histogram, one observation.
    pub fn add(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        self.values.push(MetricSample {
            family,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            value,
        });
    }

    /// Returns the families to clear, and all values in the order in which they were added.
    #[must_use]
    pub fn into_parts(self) -> (Vec<&'static Family>, Vec<MetricSample>) {
        (self.renewed, self.values)
    }
}
