//! Buffered histograms of event handling times, by event name.

use prometheus::HistogramVec;
use prometheus::local::LocalHistogram;

/// Buffers observations until they are flushed to the metric. There are several events per pod, handled by
/// the task that makes the decisions: looking up a histogram by name and updating it atomically takes a few
/// times as long as updating a local copy.
#[derive(Debug)]
pub(crate) struct BufferedHistograms {
    all: HistogramVec,
    /// Local histograms since the last flush; there are few names.
    since: Vec<(&'static str, LocalHistogram)>,
}

impl BufferedHistograms {
    pub(super) fn new(all: HistogramVec) -> Self {
        Self {
            all,
            since: Vec::new(),
        }
    }

    /// Observes the handling time of an event in seconds.
    pub(crate) fn observe(&mut self, event: &'static str, seconds: f64) {
        let existing = self.since.iter().find(|(name, _)| *name == event);
        if let Some((_, histogram)) = existing {
            histogram.observe(seconds);
            return;
        }
        let histogram = self.all.with_label_values(&[event]).local();
        histogram.observe(seconds);
        self.since.push((event, histogram));
    }

    /// Adds the buffered observations to the metric.
    pub(crate) fn flush(&mut self) {
        // Local histograms are created again each time, as the metric may have been reset.
        for (_, histogram) in self.since.drain(..) {
            histogram.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::HistogramOpts;

    #[test]
    fn observations_are_flushed_after_metric_reset() {
        let options = HistogramOpts::new("events", "Events.").buckets(vec![1.0, 2.0]);
        let all = HistogramVec::new(options, &["event"]).unwrap();
        let count = |event: &str| all.with_label_values(&[event]).get_sample_count();
        let mut histograms = BufferedHistograms::new(all.clone());
        for event in ["PodAdd", "PodUpdate", "PodAdd"] {
            histograms.observe(event, 1.5);
        }
        assert_eq!((count("PodAdd"), count("PodUpdate")), (0, 0));
        histograms.flush();
        histograms.flush();
        assert_eq!((count("PodAdd"), count("PodUpdate")), (2, 1));
        all.reset();
        histograms.observe("PodAdd", 0.5);
        histograms.flush();
        assert_eq!((count("PodAdd"), count("PodUpdate")), (1, 0));
    }
}
