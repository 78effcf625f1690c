//! The agent's samples: one series per (subject, metric), sized by time.
//!
//! *Retention.* Samples of the node and its system part keep every second of 30 minutes as `f64`. Those of
//! pods, host applications and NUMA nodes keep every second of five minutes as `f32` (relative error at most
//! 2⁻²⁴) and ten-second averages for 30 minutes: averages over any window stay exact, percentiles over
//! windows longer than five minutes are percentiles of the averages. Samples that only strategies read are
//! kept for 75 seconds, of containers only the newest sample.
//!
//! *Memory.* Samples may arrive at any rate: those closer than 750 ms to the previous one are averaged with
//! it. So a series takes at most 29 KiB (long), 5 KiB (layered) or 1 KiB (short), whatever the rate; at one
//! sample a second it takes 22, 3.9 and 0.8 KiB.

mod key;
mod ring;
pub mod snapshot;

pub use key::{Key, Metric, SeriesSubject};
pub use snapshot::Snapshot;

use ring::Series;
use rustc_hash::FxHashMap;

/// Offset added to every time, so that samples from before the monotonic clock's zero have one, too.
const BEFORE_MS: u64 = 86_400_000;

/// Series of all metrics of the agent. Times are milliseconds of the monotonic clock.
#[derive(Debug, Default)]
pub struct Store {
    subjects: FxHashMap<SeriesSubject, Vec<(Metric, Series)>>,
}

impl Store {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sample. Samples that are not a number, or older than the newest, are dropped.
    pub fn push(&mut self, key: Key, now_ms: u64, value: f64) {
        self.push_at(key, now_ms.saturating_add(BEFORE_MS), value);
    }

    /// Adds a sample like [`Store::push`], at a time of the store's own clock.
    fn push_at(&mut self, key: Key, at: u64, value: f64) {
        let metrics = self.subjects.entry(key.0).or_default();
        match metrics.iter_mut().find(|(metric, _)| *metric == key.1) {
            Some((_, series)) => series.push(at, value),
            None => {
                let mut series = Series::new(key::retention(key));
                series.push(at, value);
                metrics.push((key.1, series));
            }
        }
    }

    /// Returns the newest sample if it is at most `max_age_ms` old.
    #[must_use]
    pub fn last(&self, key: Key, now_ms: u64, max_age_ms: u64) -> Option<f64> {
        let (value, at) = self.series(key)?.last;
        let age = now_ms.saturating_add(BEFORE_MS).checked_sub(at)?;
        (age <= max_age_ms).then_some(value)
    }

    /// Returns the mean over the last `window_ms`; `None` without a sample.
    #[must_use]
    pub fn average(&self, key: Key, now_ms: u64, window_ms: u64) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0_u32);
        self.series(key)?
            .window(now_ms.saturating_add(BEFORE_MS), window_ms, |(value, _)| {
                sum += value;
                count += 1;
            });
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Copies the last `window_ms` into `out`, newest first, and returns the time between the first and the
    /// last sample in milliseconds.
    pub fn collect(&self, key: Key, now_ms: u64, window_ms: u64, out: &mut Vec<f64>) -> u64 {
        out.clear();
        let Some(series) = self.series(key) else {
            return 0;
        };
        let (mut newest, mut oldest) = (None, 0);
        series.window(
            now_ms.saturating_add(BEFORE_MS),
            window_ms,
            |(value, at)| {
                newest.get_or_insert(at);
                oldest = at;
                out.push(value);
            },
        );
        newest.map_or(0, |newest| newest - oldest)
    }

    /// Drops every series of `subject`.
    pub fn remove(&mut self, subject: SeriesSubject) {
        self.subjects.remove(&subject);
    }

    /// Returns the subjects that have a series, in no particular order.
    pub fn subjects(&self) -> impl Iterator<Item = SeriesSubject> + '_ {
        self.subjects.keys().copied()
    }

    /// Returns the number of series.
    #[must_use]
    pub fn len(&self) -> usize {
        self.subjects.values().map(Vec::len).sum()
    }

    /// Returns whether there is no series.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory usage of all series, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let series_bytes = |metrics: &Vec<(Metric, Series)>| -> usize {
            metrics.iter().map(|(_, series)| series.bytes()).sum()
        };
        self.subjects.values().map(series_bytes).sum()
    }

    fn series(&self, key: Key) -> Option<&Series> {
        let metrics = self.subjects.get(&key.0)?;
        let series = metrics.iter().find(|(metric, _)| *metric == key.1);
        series.map(|(_, series)| series)
    }
}

#[cfg(test)]
mod tests;
