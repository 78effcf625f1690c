//! The metrics that plugins have of their own.

use super::make::{Level, Maker, Resets};
use crate::framework::{Family, Kind, Readings};
use prometheus::{GaugeVec, HistogramVec, Registry};
use rustc_hash::FxHashMap;

/// See the module documentation. A family is registered when it is first read.
#[derive(Debug)]
pub(crate) struct PluginMetrics {
    maker: Maker,
    gauges: FxHashMap<&'static str, GaugeVec>,
    histograms: FxHashMap<&'static str, HistogramVec>,
}

impl PluginMetrics {
    pub(crate) fn new(registry: &Registry, resets: Resets) -> Self {
        Self {
            maker: Maker::new(registry, resets),
            gauges: FxHashMap::default(),
            histograms: FxHashMap::default(),
        }
    }

    /// Takes over what was read from all plugins.
    pub(crate) fn take(&mut self, readings: Readings) {
        let (renewed, values) = readings.into_parts();
        for family in renewed {
            if let Some(gauges) = self.gauges.get(family.name) {
                gauges.reset();
            }
        }
        for reading in values {
            // Wrong label counts would be a plugin's bug, which its tests show.
            let labels: Vec<&str> = reading.labels.iter().map(String::as_str).collect();
            match reading.family.kind {
                Kind::Gauge => {
                    if let Some(gauges) = self.gauge(reading.family)
                        && let Ok(gauge) = gauges.get_metric_with_label_values(&labels)
                    {
                        gauge.set(reading.value);
                    }
                }
                Kind::Histogram(buckets) => {
                    if let Some(all) = self.histogram(reading.family, buckets)
                        && let Ok(histogram) = all.get_metric_with_label_values(&labels)
                    {
                        histogram.observe(reading.value);
                    }
                }
            }
        }
    }

    fn gauge(&mut self, family: &Family) -> Option<&GaugeVec> {
        let Family {
            name, help, labels, ..
        } = *family;
        if !self.gauges.contains_key(name) {
            match self.maker.gauges(name, Level::Alpha, help, labels) {
                Ok(made) => drop(self.gauges.insert(name, made)),
                Err(error) => tracing::warn!(name, %error, "metric not registered"),
            }
        }
        self.gauges.get(name)
    }

    fn histogram(&mut self, family: &Family, buckets: fn() -> Vec<f64>) -> Option<&HistogramVec> {
        let Family {
            name, help, labels, ..
        } = *family;
        if !self.histograms.contains_key(name) {
            let made = self
                .maker
                .histograms(name, Level::Alpha, help, labels, buckets());
            match made {
                Ok(made) => drop(self.histograms.insert(name, made)),
                Err(error) => tracing::warn!(name, %error, "metric not registered"),
            }
        }
        self.histograms.get(name)
    }
}
