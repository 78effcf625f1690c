//! Metrics that plugins define themselves.

use super::make::{Level, MetricFactory, Resets};
use crate::framework::{Family, MetricKind, MetricSamples};
use prometheus::{CounterVec, GaugeVec, HistogramVec, Registry};
use rustc_hash::FxHashMap;

/// The metrics of plugins. A family is registered when it is first read.
#[derive(Debug)]
pub(crate) struct PluginMetrics {
    maker: MetricFactory,
    counters: FxHashMap<&'static str, CounterVec>,
    gauges: FxHashMap<&'static str, GaugeVec>,
    histograms: FxHashMap<&'static str, HistogramVec>,
}

impl PluginMetrics {
    pub(crate) fn new(registry: &Registry, resets: Resets) -> Self {
        Self {
            maker: MetricFactory::new(registry, resets),
            counters: FxHashMap::default(),
            gauges: FxHashMap::default(),
            histograms: FxHashMap::default(),
        }
    }

    /// Adds the values read from all plugins.
    pub(crate) fn take(&mut self, readings: MetricSamples) {
        let (renewed, values) = readings.into_parts();
        for family in renewed {
            if let Some(gauges) = self.gauges.get(family.name) {
                gauges.reset();
            }
        }
        for reading in values {
            // A wrong number of labels would be a plugin's bug, which its tests show.
            let labels: Vec<&str> = reading.labels.iter().map(String::as_str).collect();
            match reading.family.kind {
                MetricKind::Counter => {
                    if let Some(counters) = self.counter(reading.family)
                        && let Ok(counter) = counters.get_metric_with_label_values(&labels)
                    {
                        counter.inc_by(reading.value);
                    }
                }
                MetricKind::Gauge => {
                    if let Some(gauges) = self.gauge(reading.family)
                        && let Ok(gauge) = gauges.get_metric_with_label_values(&labels)
                    {
                        gauge.set(reading.value);
                    }
                }
                MetricKind::Histogram(buckets) => {
                    if let Some(all) = self.histogram(reading.family, buckets)
                        && let Ok(histogram) = all.get_metric_with_label_values(&labels)
                    {
                        histogram.observe(reading.value);
                    }
                }
            }
        }
    }

    fn counter(&mut self, family: &Family) -> Option<&CounterVec> {
        let Family {
            name, help, labels, ..
        } = *family;
        if !self.counters.contains_key(name) {
            match self.maker.float_counters(name, Level::Alpha, help, labels) {
                Ok(made) => drop(self.counters.insert(name, made)),
                Err(error) => tracing::warn!(name, %error, "failed to register a plugin metric"),
            }
        }
        self.counters.get(name)
    }

    fn gauge(&mut self, family: &Family) -> Option<&GaugeVec> {
        let Family {
            name, help, labels, ..
        } = *family;
        if !self.gauges.contains_key(name) {
            match self.maker.gauges(name, Level::Alpha, help, labels) {
                Ok(made) => drop(self.gauges.insert(name, made)),
                Err(error) => tracing::warn!(name, %error, "failed to register a plugin metric"),
            }
        }
        self.gauges.get(name)
    }

    fn histogram(&mut self, family: &Family, buckets: fn() -> Vec<f64>) -> Option<&HistogramVec> {
        let Family {
            name, help, labels, ..
        } = *family;
        if !self.histograms.contains_key(name) {
            let histograms = self
                .maker
                .histograms(name, Level::Alpha, help, labels, buckets());
            match histograms {
                Ok(histograms) => drop(self.histograms.insert(name, histograms)),
                Err(error) => tracing::warn!(name, %error, "failed to register a plugin metric"),
            }
        }
        self.histograms.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static GAUGE: Family = Family {
        name: "gauge",
        help: "A gauge.",
        labels: &["a"],
        kind: MetricKind::Gauge,
    };
    static COUNTER: Family = Family {
        name: "counter_total",
        help: "A counter.",
        labels: &[],
        kind: MetricKind::Counter,
    };
    static HISTOGRAM: Family = Family {
        name: "histogram",
        help: "A histogram.",
        labels: &[],
        kind: MetricKind::Histogram(|| vec![1.0, 2.0]),
    };

    #[test]
    fn gauges_are_renewed_and_the_rest_adds_up() {
        let registry = Registry::new();
        let mut metrics = PluginMetrics::new(&registry, Resets::default());
        let read = |renew: bool, gauges: &[(&str, f64)]| {
            let mut out = MetricSamples::default();
            if renew {
                out.renew(&GAUGE);
            }
            for (label, value) in gauges {
                out.add(&GAUGE, &[label], *value);
            }
            out.add(&COUNTER, &[], 2.0);
            out.add(&HISTOGRAM, &[], 1.5);
            // An invalid value of a plugin is dropped; the others count.
            out.add(&GAUGE, &["too", "many"], 1.0);
            out
        };
        let mut shows = |readings, gone: &[&str], shown: &[&str]| {
            metrics.take(readings);
            let text = koord_app::metrics::encode(&registry).unwrap();
            for line in gone {
                assert!(!text.contains(line), "{line}: {text}");
            }
            for line in shown {
                assert!(text.contains(line), "{line}: {text}");
            }
        };
        shows(
            read(true, &[("x", 1.0), ("y", 2.0)]),
            &[],
            &[
                "gauge{a=\"x\"} 1\n",
                "gauge{a=\"y\"} 2\n",
                "counter_total 2\n",
            ],
        );
        shows(
            read(false, &[]),
            &[],
            &[
                "gauge{a=\"x\"} 1\n",
                "counter_total 4\n",
                "histogram_count 2\n",
            ],
        );
        shows(
            read(true, &[("y", 3.0)]),
            &["a=\"x\""],
            &["gauge{a=\"y\"} 3\n", "histogram_bucket{le=\"1\"} 0\n"],
        );
    }
}
