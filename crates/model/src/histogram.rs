//! Exponential histograms whose samples lose weight with age.
//!
//! The bucket layout, the decay and the checkpoint format are those of the node agent's predictor and of the
//! recommender, so that either can load the other's files.

use std::collections::BTreeMap;

/// Milliseconds since the Unix epoch.
pub type UnixMillis = i64;

/// The instant `0001-01-01T00:00:00Z`, the reference time of an empty histogram.
///
/// Reference times are multiples of the half-life, counted from here instead of the Unix epoch.
pub const ZERO_TIME: UnixMillis = -62_135_596_800_000;

/// Largest weight in a checkpoint; the others are scaled to it.
pub const CHECKPOINT_SCALE: u32 = 10_000;

/// Maximum age of the reference time, in half-lives, before it is moved.
const MAX_DECAY_EXPONENT: f64 = 100.0;

/// Error of a histogram operation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HistogramError {
    /// A layout parameter is out of range.
    #[error("{field} must be {want}, got {value}")]
    Layout {
        /// The parameter.
        field: &'static str,
        /// The allowed range.
        want: &'static str,
        /// The value.
        value: f64,
    },
    /// A checkpoint names a bucket the layout does not have.
    #[error("bucketWeights key {bucket} must be in 0..{count}")]
    Bucket {
        /// Bucket number.
        bucket: i64,
        /// Number of buckets in the layout.
        count: usize,
    },
    /// The total weight of a checkpoint is negative, not a number, or too large.
    #[error("totalWeight must be from 0 to 1e36, got {0}")]
    TotalWeight(f64),
    /// The histograms to merge have different half-lives or layouts.
    #[error("histograms of different half-life or layout cannot be merged")]
    Shape,
}

/// Bucket boundaries: `start(b) = first * (ratio^b - 1) / (ratio - 1)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    first: f64,
    ratio: f64,
    count: usize,
}

impl Layout {
    /// Creates exponential buckets that cover at least `max`; `first` is the width of the first bucket,
    /// `growth` the relative growth per bucket (0.05 = each bucket is 5 % wider than the one before).
    ///
    /// # Errors
    /// A parameter is not a positive finite number.
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

    /// Returns the layout for CPU in cores: first bucket 25 milli-cores, up to 1024 cores, growth 5 %.
    #[must_use]
    pub fn cpu() -> Self {
        Self::with_range(1024.0, 0.025)
    }

    /// Returns the layout for memory in bytes: first bucket 5 MiB, up to 2 TiB, growth 5 %.
    #[must_use]
    pub fn memory() -> Self {
        Self::with_range(2_199_023_255_552.0, 5.0 * 1024.0 * 1024.0)
    }

    /// Returns the recommender's layout for CPU in cores: first bucket 1 milli-core, up to 1000 cores, growth
    /// 5 %.
    #[must_use]
    pub fn recommender_cpu() -> Self {
        Self::with_range(1000.0, 0.001)
    }

    /// Returns the recommender's layout for memory in bytes: first bucket 10 MB, up to 1 TB, growth 5 %.
    #[must_use]
    pub fn recommender_memory() -> Self {
        Self::with_range(1e12, 1e7)
    }

    /// Creates a layout with a first bucket of size `first`, buckets that grow by 5 %, and a last one that contains
    /// `max`. Source of the number of buckets: Kubernetes VPA `NewExponentialHistogramOptions`.
    fn with_range(max: f64, first: f64) -> Self {
        let count = ((max * 0.05 / first + 1.0).ln() / 1.05_f64.ln()).ceil() as usize + 1;
        Self {
            first,
            ratio: 1.05,
            count,
        }
    }

    /// Returns the number of buckets.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the bucket that `value` belongs to.
    #[must_use]
    pub fn bucket(&self, value: f64) -> usize {
        if value.is_nan() || value < self.first {
            return 0;
        }
        let bucket =
            ((value * (self.ratio - 1.0) / self.first + 1.0).ln() / self.ratio.ln()).floor();
        (bucket.max(0.0) as usize).min(self.count - 1)
    }

    /// Returns the lower edge of `bucket`.
    #[must_use]
    pub fn start(&self, bucket: usize) -> f64 {
        if bucket == 0 {
            return 0.0;
        }
        self.first * (self.ratio.powi(bucket as i32) - 1.0) / (self.ratio - 1.0)
    }
}

/// Histogram whose samples halve in weight every `half_life`.
///
/// Only the buckets from the lowest to the highest that was ever used are allocated: a container's usage
/// spans some dozen of the two hundred, and the recommender keeps tens of thousands of histograms. For the
/// same reason weights have 24 bits: each sample changes the weight of its bucket with an error of up to 2⁻²⁵
/// of that weight. Smaller samples are lost, so a bucket holds at most 2²⁴ samples of the newest weight:
/// those of 8,000 pods, all of them in this bucket all the time, at one a minute and a half-life of a day.
#[derive(Debug, Clone)]
pub struct DecayingHistogram {
    layout: Layout,
    half_life: i64,
    reference: UnixMillis,
    /// Number of the first bucket in `weights`.
    lowest: u32,
    weights: Box<[f32]>,
    total: f64,
}

/// Serializable form of a [`DecayingHistogram`].
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Reference time of the weights.
    pub reference: UnixMillis,
    /// Bucket number to weight; the largest weight is [`CHECKPOINT_SCALE`].
    pub weights: BTreeMap<i64, u32>,
    /// Sum of the unscaled weights.
    pub total: f64,
}

impl DecayingHistogram {
    /// Weight below which a bucket counts as empty: a thousandth of the smallest sample weight.
    pub const EPSILON: f64 = 0.001 * 0.1;
    const EPSILON_32: f32 = Self::EPSILON as f32;
    /// Maximum total weight of a checkpoint: with the samples added until the reference moves, it stays
    /// finite.
    const HEAVIEST: f64 = 1e36;

    /// Creates an empty histogram. A `half_life_ms` below 1 counts as 1.
    #[must_use]
    pub fn new(layout: Layout, half_life_ms: i64) -> Self {
        Self {
            layout,
            half_life: half_life_ms.max(1),
            reference: ZERO_TIME,
            lowest: 0,
            weights: Box::default(),
            total: 0.0,
        }
    }

    /// Adds the sample `value` at `time` with `weight`.
    pub fn add(&mut self, value: f64, weight: f64, time: UnixMillis) {
        let weight = weight * self.decay(time);
        let bucket = self.layout.bucket(value);
        *self.weight_mut(bucket) += weight as f32;
        self.total += weight;
    }

    /// Returns the weight of `bucket`, allocated if needed.
    fn weight_mut(&mut self, bucket: usize) -> &mut f32 {
        let lowest = self.lowest as usize;
        let (begin, end) = if self.weights.is_empty() {
            (bucket, bucket + 1)
        } else {
            let end = lowest + self.weights.len();
            (lowest.min(bucket), end.max(bucket + 1))
        };
        if end - begin > self.weights.len() {
            let mut wider = vec![0.0; end - begin].into_boxed_slice();
            let offset = lowest.saturating_sub(begin);
            for (to, from) in wider.iter_mut().skip(offset).zip(&self.weights) {
                *to = *from;
            }
            self.weights = wider;
            // The number of buckets fits `u32`.
            self.lowest = begin as u32;
        }
        let index = bucket - begin;
        &mut self.weights[index]
    }

    /// Returns the half-life in milliseconds.
    #[must_use]
    pub fn half_life_ms(&self) -> i64 {
        self.half_life
    }

    /// Returns the heap memory in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.weights)
    }

    /// Removes a sample that was added before.
    pub fn subtract(&mut self, value: f64, weight: f64, time: UnixMillis) {
        let weight = weight * self.decay(time);
        let bucket = self.layout.bucket(value);
        let stored = self.weight_mut(bucket);
        // Computed like the addition, so that a bucket with this sample only becomes empty.
        *stored -= weight as f32;
        if *stored < Self::EPSILON_32 {
            *stored = 0.0;
        }
        self.total = (self.total - weight).max(0.0);
        if self.total < Self::EPSILON {
            self.total = 0.0;
        }
    }

    /// Returns true if no bucket has weight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range().is_none()
    }

    /// Returns the upper edge of the smallest bucket at which the cumulative weight reaches `p` (0–1) of the
    /// total; for the last bucket its lower edge, and 0 for an empty histogram.
    #[must_use]
    pub fn percentile(&self, p: f64) -> f64 {
        let Some((min, max)) = self.range() else {
            return 0.0;
        };
        // The sum of the buckets: `total` is more exact, so the last bucket might not reach it.
        let to_f64 = |weight: &f32| f64::from(*weight);
        let threshold = p * self.weights.iter().map(to_f64).sum::<f64>();
        let mut sum = 0.0;
        let mut index = min;
        while index < max {
            sum += to_f64(&self.weights[index]);
            if sum >= threshold {
                break;
            }
            index += 1;
        }
        let bucket = self.lowest as usize + index;
        if bucket + 1 < self.layout.count {
            self.layout.start(bucket + 1)
        } else {
            self.layout.start(bucket)
        }
    }

    /// Adds all samples of `other`.
    ///
    /// # Errors
    /// The layouts or half-lives differ.
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
            *self.weight_mut(other.lowest as usize + at) += theirs;
        }
        self.total += other.total;
        Ok(())
    }

    /// Returns the serializable form: weights are scaled so that the largest is [`CHECKPOINT_SCALE`], and
    /// zeros are omitted.
    #[must_use]
    pub fn save(&self) -> Checkpoint {
        let exact = self.weights.iter().copied().map(f64::from);
        let largest = exact.clone().fold(0.0, f64::max);
        let mut weights = BTreeMap::new();
        if largest > 0.0 {
            let ratio = f64::from(CHECKPOINT_SCALE) / largest;
            for (bucket, weight) in (i64::from(self.lowest)..).zip(exact) {
                let scaled = (weight * ratio).round() as u32;
                if scaled > 0 {
                    weights.insert(bucket, scaled);
                }
            }
        }
        Checkpoint {
            reference: self.reference,
            weights,
            total: self.total,
        }
    }

    /// Adds a saved histogram and adopts its reference time.
    ///
    /// # Errors
    /// The total is negative or too large, or a bucket is outside of the layout; the histogram is unchanged
    /// then.
    pub fn load(&mut self, saved: &Checkpoint) -> Result<(), HistogramError> {
        if !(0.0..=Self::HEAVIEST).contains(&saved.total) {
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
            // Allocate all buckets at once.
            let ends = [
                saved.weights.first_key_value(),
                saved.weights.last_key_value(),
            ];
            for (&bucket, _) in ends.into_iter().flatten() {
                self.weight_mut(bucket as usize);
            }
            for (&bucket, &weight) in &saved.weights {
                *self.weight_mut(bucket as usize) += (f64::from(weight) * ratio) as f32;
            }
        }
        self.total += saved.total;
        self.reference = saved.reference;
        Ok(())
    }

    /// Returns the first and the last index in `weights` that is not empty.
    fn range(&self) -> Option<(usize, usize)> {
        let min = self.weights.iter().position(|w| *w >= Self::EPSILON_32)?;
        let max = self.weights.iter().rposition(|w| *w >= Self::EPSILON_32)?;
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
        let remainder = since.rem_euclid(self.half_life);
        let down = time.saturating_sub(remainder);
        if remainder * 2 >= self.half_life {
            down.saturating_add(self.half_life)
        } else {
            down
        }
    }

    fn shift(&mut self, reference: UnixMillis) {
        let age = reference.saturating_sub(self.reference) as f64 / self.half_life as f64;
        let factor = (-age).exp2();
        for weight in &mut self.weights {
            *weight = (f64::from(*weight) * factor) as f32;
        }
        self.total *= factor;
        self.reference = reference;
    }
}

#[cfg(test)]
mod tests;
