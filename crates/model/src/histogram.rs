//! Exponential histograms whose samples lose weight with age.
//!
//! The bucket layout, the decay and the checkpoint format are those of the node agent's predictor
//! and of the recommender, so that either can read the other's files.

use std::collections::BTreeMap;

/// Milliseconds since the Unix epoch.
pub type UnixMillis = i64;

/// The instant `0001-01-01T00:00:00Z`, to which a fresh histogram refers.
///
/// Reference times are multiples of the half-life counted from here, not from the Unix epoch.
pub const ZERO_TIME: UnixMillis = -62_135_596_800_000;

/// The largest weight in a checkpoint; the others are scaled to it.
pub const CHECKPOINT_SCALE: u32 = 10_000;

/// How many half-lives a sample may lie after the reference time before the reference moves.
const MAX_DECAY_EXPONENT: f64 = 100.0;

/// What a histogram refuses.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HistogramError {
    /// A layout parameter is out of its range.
    #[error("{field} must be {want}, got {value}")]
    Layout {
        /// The parameter.
        field: &'static str,
        /// The allowed range.
        want: &'static str,
        /// What was given.
        value: f64,
    },
    /// A checkpoint names a bucket the layout does not have.
    #[error("bucketWeights key {bucket} must be in 0..{count}")]
    Bucket {
        /// The offending bucket.
        bucket: i64,
        /// How many buckets the layout has.
        count: usize,
    },
    /// A checkpoint's total is negative or not a number.
    #[error("totalWeight must not be negative, got {0}")]
    TotalWeight(f64),
    /// Two histograms of different shape were merged.
    #[error("histograms of different half-life or layout cannot be merged")]
    Shape,
}

/// Where the buckets begin: `start(b) = first * (ratio^b - 1) / (ratio - 1)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    first: f64,
    ratio: f64,
    count: usize,
}

impl Layout {
    /// Exponential buckets that reach at least `max`; `growth` is the relative growth per bucket
    /// (0.05 = each bucket is 5 % wider than the one before).
    ///
    /// # Errors
    /// When a parameter is not a positive finite number.
    pub fn exponential(max: f64, first: f64, growth: f64) -> Result<Self, HistogramError> {
        for (field, value) in [("max", max), ("first", first), ("growth", growth)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(HistogramError::Layout {
                    field,
                    want: "positive and finite",
                    value,
                });
            }
        }
        let ratio = 1.0 + growth;
        let count = ((max * growth / first + 1.0).ln() / ratio.ln()).ceil() as usize + 1;
        Ok(Self {
            first,
            ratio,
            count: count.max(2),
        })
    }

    /// CPU in cores: first bucket 25 milli-cores, up to 1024 cores, growth 5 %.
    #[must_use]
    pub fn cpu() -> Self {
        Self::known(1024.0, 0.025)
    }

    /// Memory in bytes: first bucket 5 MiB, up to 2 TiB, growth 5 %.
    #[must_use]
    pub fn memory() -> Self {
        Self::known(2_199_023_255_552.0, 5.0 * 1024.0 * 1024.0)
    }

    /// CPU in cores as the recommender sorts it: first bucket 1 milli-core, up to 1000 cores,
    /// growth 5 %.
    #[must_use]
    pub fn recommender_cpu() -> Self {
        Self::known(1000.0, 0.001)
    }

    /// Memory in bytes as the recommender sorts it: first bucket 10 MB, up to 1 TB, growth 5 %.
    #[must_use]
    pub fn recommender_memory() -> Self {
        Self::known(1e12, 1e7)
    }

    fn known(max: f64, first: f64) -> Self {
        let count = ((max * 0.05 / first + 1.0).ln() / 1.05_f64.ln()).ceil() as usize + 1;
        Self {
            first,
            ratio: 1.05,
            count,
        }
    }

    /// The number of buckets.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The bucket `value` belongs to.
    #[must_use]
    pub fn bucket(&self, value: f64) -> usize {
        if value.is_nan() || value < self.first {
            return 0;
        }
        let bucket =
            ((value * (self.ratio - 1.0) / self.first + 1.0).ln() / self.ratio.ln()).floor();
        (bucket.max(0.0) as usize).min(self.count - 1)
    }

    /// The lower edge of `bucket`.
    #[must_use]
    pub fn start(&self, bucket: usize) -> f64 {
        if bucket == 0 {
            return 0.0;
        }
        self.first * (self.ratio.powi(bucket as i32) - 1.0) / (self.ratio - 1.0)
    }
}

/// A histogram whose samples halve in weight every `half_life`.
///
/// Only the buckets from the lowest to the highest that was ever used take memory: a container's
/// use spans some dozen of the two hundred, and the recommender keeps tens of thousands of these.
#[derive(Debug, Clone)]
pub struct DecayingHistogram {
    layout: Layout,
    half_life: i64,
    reference: UnixMillis,
    /// The bucket that `weights` begins at.
    lowest: usize,
    weights: Vec<f64>,
    total: f64,
    epsilon: f64,
}

/// The saved form of a [`DecayingHistogram`].
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The reference time.
    pub reference: UnixMillis,
    /// Bucket number to weight; the largest weight is [`CHECKPOINT_SCALE`].
    pub weights: BTreeMap<i64, u32>,
    /// The sum of the real weights.
    pub total: f64,
}

impl DecayingHistogram {
    /// The weight below which a bucket counts as empty: a thousandth of the smallest sample weight.
    pub const EPSILON: f64 = 0.001 * 0.1;

    /// An empty histogram. `half_life_ms` of less than one millisecond is taken as one.
    #[must_use]
    pub fn new(layout: Layout, half_life_ms: i64) -> Self {
        Self {
            layout,
            half_life: half_life_ms.max(1),
            reference: ZERO_TIME,
            lowest: 0,
            weights: Vec::new(),
            total: 0.0,
            epsilon: Self::EPSILON,
        }
    }

    /// Adds `value` seen at `time` with `weight`.
    pub fn add(&mut self, value: f64, weight: f64, time: UnixMillis) {
        let weight = weight * self.decay(time);
        let bucket = self.layout.bucket(value);
        *self.weight_mut(bucket) += weight;
        self.total += weight;
    }

    /// The weight of `bucket`, with memory for it.
    fn weight_mut(&mut self, bucket: usize) -> &mut f64 {
        if self.weights.is_empty() {
            self.lowest = bucket;
        }
        if bucket < self.lowest {
            let more = self.lowest - bucket;
            self.weights.reserve_exact(more);
            self.weights
                .splice(0..0, std::iter::repeat_n(0.0, more))
                .for_each(drop);
            self.lowest = bucket;
        }
        let at = bucket - self.lowest;
        if at >= self.weights.len() {
            self.weights.reserve_exact(at + 1 - self.weights.len());
            self.weights.resize(at + 1, 0.0);
        }
        &mut self.weights[at]
    }

    /// After how long a sample weighs half, in milliseconds.
    #[must_use]
    pub fn half_life_ms(&self) -> i64 {
        self.half_life
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.weights.capacity() * size_of::<f64>()
    }

    /// Takes back a sample added before.
    pub fn subtract(&mut self, value: f64, weight: f64, time: UnixMillis) {
        let weight = weight * self.decay(time);
        let bucket = self.layout.bucket(value);
        let epsilon = self.epsilon;
        let held = self.weight_mut(bucket);
        *held -= weight;
        if *held < epsilon {
            *held = 0.0;
        }
        self.total = (self.total - weight).max(0.0);
        if self.total < self.epsilon {
            self.total = 0.0;
        }
    }

    /// Whether no bucket holds weight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range().is_none()
    }

    /// The end of the smallest bucket at which the cumulative weight reaches `p` (0–1) of the
    /// total, the start of the last bucket if it is that one, and 0 when empty.
    #[must_use]
    pub fn percentile(&self, p: f64) -> f64 {
        let Some((min, max)) = self.range() else {
            return 0.0;
        };
        let threshold = p * self.total;
        let mut sum = 0.0;
        let mut at = min;
        while at < max {
            sum += self.weights[at];
            if sum >= threshold {
                break;
            }
            at += 1;
        }
        let bucket = self.lowest + at;
        if bucket + 1 < self.layout.count {
            self.layout.start(bucket + 1)
        } else {
            self.layout.start(bucket)
        }
    }

    /// Adds everything `other` holds.
    ///
    /// # Errors
    /// When the layouts or half-lives differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), HistogramError> {
        if self.layout != other.layout || self.half_life != other.half_life {
            return Err(HistogramError::Shape);
        }
        let mut other = other.clone();
        if self.reference < other.reference {
            self.shift(other.reference);
        } else if other.reference < self.reference {
            other.shift(self.reference);
        }
        for (at, theirs) in other.weights.iter().enumerate() {
            *self.weight_mut(other.lowest + at) += theirs;
        }
        self.total += other.total;
        Ok(())
    }

    /// The saved form: weights scaled so that the largest is [`CHECKPOINT_SCALE`], zeros dropped.
    #[must_use]
    pub fn save(&self) -> Checkpoint {
        let largest = self.weights.iter().copied().fold(0.0, f64::max);
        let mut weights = BTreeMap::new();
        if largest > 0.0 {
            let ratio = f64::from(CHECKPOINT_SCALE) / largest;
            for (at, weight) in self.weights.iter().enumerate() {
                let scaled = (weight * ratio).round() as u32;
                if scaled > 0 {
                    weights.insert((self.lowest + at) as i64, scaled);
                }
            }
        }
        Checkpoint {
            reference: self.reference,
            weights,
            total: self.total,
        }
    }

    /// Adds a saved histogram to this one and takes over its reference time.
    ///
    /// # Errors
    /// When the total is negative or a bucket is outside the layout; nothing is changed then.
    pub fn load(&mut self, saved: &Checkpoint) -> Result<(), HistogramError> {
        if !(saved.total.is_finite() && saved.total >= 0.0) {
            return Err(HistogramError::TotalWeight(saved.total));
        }
        let count = self.layout.count;
        let mut sum = 0.0;
        for (&bucket, &weight) in &saved.weights {
            if usize::try_from(bucket).ok().is_none_or(|b| b >= count) {
                return Err(HistogramError::Bucket { bucket, count });
            }
            sum += f64::from(weight);
        }
        if sum > 0.0 {
            let ratio = saved.total / sum;
            for (&bucket, &weight) in &saved.weights {
                *self.weight_mut(bucket as usize) += f64::from(weight) * ratio;
            }
        }
        self.total += saved.total;
        self.reference = saved.reference;
        Ok(())
    }

    /// The first and the last place in `weights` that is not empty.
    fn range(&self) -> Option<(usize, usize)> {
        let min = self.weights.iter().position(|w| *w >= self.epsilon)?;
        let max = self.weights.iter().rposition(|w| *w >= self.epsilon)?;
        Some((min, max))
    }

    fn decay(&mut self, time: UnixMillis) -> f64 {
        let limit = (self.half_life as f64) * MAX_DECAY_EXPONENT;
        if time.saturating_sub(self.reference) as f64 > limit {
            self.shift(self.round(time));
        }
        (time.saturating_sub(self.reference) as f64 / self.half_life as f64).exp2()
    }

    fn round(&self, time: UnixMillis) -> UnixMillis {
        let since = time.saturating_sub(ZERO_TIME);
        let rest = since.rem_euclid(self.half_life);
        let down = time.saturating_sub(rest);
        if rest * 2 >= self.half_life {
            down.saturating_add(self.half_life)
        } else {
            down
        }
    }

    fn shift(&mut self, reference: UnixMillis) {
        let age = reference.saturating_sub(self.reference) as f64 / self.half_life as f64;
        let factor = (-age).exp2();
        for weight in &mut self.weights {
            *weight *= factor;
        }
        self.total *= factor;
        self.reference = reference;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: i64 = 3_600_000;
    const T0: UnixMillis = 1_748_000_000_000;

    #[test]
    fn layouts_have_the_published_sizes() {
        // ceil(ln(1024*0.05/0.025 + 1)/ln 1.05) + 1 and the same for 2 TiB over 5 MiB.
        assert_eq!(Layout::cpu().count(), 158);
        assert_eq!(Layout::memory().count(), 205);
        assert!(Layout::exponential(0.0, 1.0, 0.05).is_err());
    }

    #[test]
    fn a_value_lies_in_its_bucket() {
        let layout = Layout::cpu();
        assert_eq!(layout.bucket(0.0), 0);
        assert_eq!(layout.bucket(0.024), 0);
        assert_eq!(layout.bucket(1e9), layout.count() - 1);
        assert_eq!(layout.start(0), 0.0);
        assert!((layout.start(1) - 0.025).abs() < 1e-12);
        assert!((layout.start(2) - 0.05125).abs() < 1e-12);
    }

    #[test]
    fn percentile_is_the_end_of_the_bucket() {
        let mut histogram = DecayingHistogram::new(Layout::cpu(), 12 * HOUR);
        assert_eq!(histogram.percentile(0.95), 0.0);
        for _ in 0..9 {
            histogram.add(0.01, 1.0, T0);
        }
        histogram.add(2.0, 1.0, T0);
        assert!((histogram.percentile(0.85) - 0.025).abs() < 1e-12);
        let p95 = histogram.percentile(0.95);
        assert!(p95 > 2.0 && p95 < 2.0 * 1.06, "{p95}");
    }

    #[test]
    fn old_samples_fade() {
        let mut histogram = DecayingHistogram::new(Layout::cpu(), HOUR);
        histogram.add(8.0, 1.0, T0);
        for _ in 0..3 {
            histogram.add(1.0, 1.0, T0 + 5 * HOUR);
        }
        // The old sample weighs 1/32 of a new one: below 5 % of the total.
        assert!(histogram.percentile(0.95) < 1.1);
        assert!(histogram.percentile(1.0) > 8.0);
    }

    #[test]
    fn a_checkpoint_restores_the_percentiles() {
        let mut histogram = DecayingHistogram::new(Layout::memory(), 24 * HOUR);
        for i in 1..200 {
            histogram.add(f64::from(i) * 1e7, 1.0, T0 + i64::from(i) * 60_000);
        }
        let saved = histogram.save();
        assert_eq!(saved.weights.values().max(), Some(&CHECKPOINT_SCALE));
        let mut restored = DecayingHistogram::new(Layout::memory(), 24 * HOUR);
        restored.load(&saved).unwrap();
        for p in [0.6, 0.9, 0.95, 0.98, 1.0] {
            assert_eq!(restored.percentile(p), histogram.percentile(p), "p{p}");
        }
    }

    #[test]
    fn only_the_buckets_in_use_take_memory() {
        let mut histogram = DecayingHistogram::new(Layout::recommender_cpu(), 24 * HOUR);
        assert_eq!(histogram.heap_bytes(), 0);
        histogram.add(0.5, 1.0, T0);
        histogram.add(0.4, 1.0, T0);
        histogram.add(0.6, 1.0, T0);
        let span = Layout::recommender_cpu().bucket(0.6) - Layout::recommender_cpu().bucket(0.4);
        assert!(histogram.heap_bytes() <= (span + 1) * 8 * 2);
        let median = histogram.percentile(0.5);
        assert!((0.5..0.53).contains(&median), "{median}");
        // ceil(ln(1000*0.05/0.001 + 1)/ln 1.05) + 1, and the same for 1e12 over 1e7.
        assert_eq!(Layout::recommender_cpu().count(), 223);
        assert_eq!(Layout::recommender_memory().count(), 176);
    }

    #[test]
    fn merged_histograms_hold_the_samples_of_both() {
        let mut low = DecayingHistogram::new(Layout::cpu(), HOUR);
        let mut high = DecayingHistogram::new(Layout::cpu(), HOUR);
        low.add(5.0, 1.0, T0);
        high.add(0.1, 3.0, T0);
        low.merge(&high).unwrap();
        let mut both = DecayingHistogram::new(Layout::cpu(), HOUR);
        both.add(0.1, 3.0, T0);
        both.add(5.0, 1.0, T0);
        for p in [0.5, 0.75, 0.76, 1.0] {
            assert_eq!(low.percentile(p), both.percentile(p), "p{p}");
        }
    }

    #[test]
    fn bad_checkpoints_are_refused() {
        let mut histogram = DecayingHistogram::new(Layout::cpu(), HOUR);
        let saved = |bucket, total| Checkpoint {
            reference: T0,
            weights: BTreeMap::from([(bucket, 1)]),
            total,
        };
        assert_eq!(
            histogram.load(&saved(-1, 1.0)),
            Err(HistogramError::Bucket {
                bucket: -1,
                count: 158
            })
        );
        assert!(histogram.load(&saved(158, 1.0)).is_err());
        assert_eq!(
            histogram.load(&saved(1, -1.0)),
            Err(HistogramError::TotalWeight(-1.0))
        );
        assert!(histogram.is_empty());
    }

    proptest! {
        #[test]
        fn every_value_is_between_its_bucket_edges(value in 0.0..1000.0_f64) {
            let layout = Layout::cpu();
            let bucket = layout.bucket(value);
            prop_assert!(layout.start(bucket) <= value * (1.0 + 1e-9));
            if bucket + 1 < layout.count() {
                prop_assert!(value <= layout.start(bucket + 1) * (1.0 + 1e-9));
            }
        }

        #[test]
        fn percentiles_rise_with_p(values in prop::collection::vec(0.0..100.0_f64, 1..50)) {
            let mut histogram = DecayingHistogram::new(Layout::cpu(), HOUR);
            for (i, value) in values.iter().enumerate() {
                histogram.add(*value, 1.0, T0 + i as i64 * 1000);
            }
            let mut last = 0.0;
            for p in [0.1, 0.5, 0.9, 0.95, 1.0] {
                let at = histogram.percentile(p);
                prop_assert!(at >= last);
                last = at;
            }
            let max = values.iter().copied().fold(0.0, f64::max);
            prop_assert!(last >= max * 0.999 || last >= 0.025);
        }
    }
}
