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
fn value_is_within_its_bucket() {
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
fn checkpoint_restores_percentiles() {
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
    assert_eq!(histogram.heap_bytes(), (span + 1) * 4);
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
    let mut reference = DecayingHistogram::new(Layout::cpu(), HOUR);
    reference.add(0.1, 3.0, T0);
    reference.add(5.0, 1.0, T0);
    for p in [0.5, 0.75, 0.76, 1.0] {
        assert_eq!(low.percentile(p), reference.percentile(p), "p{p}");
    }
}

#[test]
fn invalid_checkpoints_are_rejected() {
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

/// A histogram with weights of 53 bits, computed directly from the definition.
struct Exact {
    weights: Vec<f64>,
    half_life: i64,
}

impl Exact {
    fn add(&mut self, value: f64, weight: f64, time: UnixMillis) {
        let age = (time - T0) as f64 / self.half_life as f64;
        self.weights[Layout::cpu().bucket(value)] += weight * age.exp2();
    }

    /// Returns the bucket of a percentile.
    fn at(&self, p: f64) -> usize {
        let threshold = p * self.weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let reached = self.weights.iter().position(|weight| {
            sum += weight;
            sum >= threshold && *weight > 0.0
        });
        reached.unwrap_or(0)
    }
}

/// Checks some thousand samples of several pods over days: percentiles lie in the bucket in which they
/// lie with exact weights, unless the share of the next one is so near that recommendations do
/// not depend on it.
fn agrees(samples: &[(f64, i64)]) -> Result<(), TestCaseError> {
    let half_life = 24 * HOUR;
    let mut histogram = DecayingHistogram::new(Layout::cpu(), half_life);
    let mut exact = Exact {
        weights: vec![0.0; Layout::cpu().count()],
        half_life,
    };
    let mut time = T0;
    for (value, pause) in samples {
        time += pause;
        histogram.add(*value, 1.0, time);
        exact.add(*value, 1.0, time);
    }
    let layout = Layout::cpu();
    for p in [0.5, 0.9, 0.95, 0.98, 0.99, 1.0] {
        let near = [p - 1e-5, f64::min(p + 1e-5, 1.0)].map(|p| exact.at(p));
        let reached = layout.bucket(histogram.percentile(p) * (1.0 - 1e-9));
        prop_assert!(
            (near[0]..=near[1]).contains(&reached),
            "p{p}: {reached} in {near:?}"
        );
    }
    // Through a checkpoint: a ten-thousandth of the largest weight may be lost of each bucket.
    let saved = histogram.save();
    let largest = exact.weights.iter().copied().fold(0.0, f64::max);
    for (bucket, weight) in exact.weights.iter().enumerate() {
        let want = weight / largest * f64::from(CHECKPOINT_SCALE);
        let got = saved.weights.get(&(bucket as i64)).copied().unwrap_or(0);
        prop_assert!(
            (f64::from(got) - want).abs() < 0.5 + 0.02,
            "{bucket}: {got} for {want}"
        );
    }
    let sum: f64 = exact.weights.iter().sum();
    let total = saved.total * ((saved.reference - T0) as f64 / half_life as f64).exp2();
    prop_assert!((total / sum - 1.0).abs() < 1e-9, "{total} for {sum}");
    Ok(())
}

#[test]
fn weights_of_months_are_exact_enough() {
    let mut random = 1_u64;
    let mut next = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as f64 / f64::from(1_u32 << 31)
    };
    // Every five minutes for 200 days: the reference moves.
    let samples: Vec<(f64, i64)> = (0..200 * 288)
        .map(|_| (0.1 * 20_f64.powf(next()), HOUR / 12))
        .collect();
    agrees(&samples).unwrap();
}

#[test]
fn subtracted_samples_leave_no_weight() {
    let mut histogram = DecayingHistogram::new(Layout::memory(), 24 * HOUR);
    histogram.add(1e9, 1.0, T0);
    for day in 1..90 {
        let time = T0 + day * 24 * HOUR + day * 12_345;
        histogram.add(3e9, 1.0, time);
        histogram.subtract(3e9, 1.0, time);
        let highest = histogram.percentile(1.0);
        assert!(highest < 1.1e9, "day {day}: {highest}");
    }
}

#[test]
fn heaviest_checkpoint_has_finite_percentiles() {
    let mut histogram = DecayingHistogram::new(Layout::cpu(), HOUR);
    let mut saved = Checkpoint {
        reference: T0,
        weights: BTreeMap::from([(3, 10_000)]),
        total: 1e36,
    };
    histogram.load(&saved).unwrap();
    for half_lives in [1, 50, 100, 101, 300] {
        histogram.add(4.0, 1e4, T0 + half_lives * HOUR);
        assert!(histogram.percentile(0.5).is_finite());
        assert!(histogram.save().total.is_finite());
    }
    saved.total = 1e37;
    let refused = histogram.load(&saved);
    assert_eq!(refused, Err(HistogramError::TotalWeight(1e37)));
}

proptest! {
    #[test]
    fn packed_weights_agree_with_exact_ones(
        samples in prop::collection::vec((0.01..64.0_f64, 0..4 * HOUR), 1..2000),
    ) {
        agrees(&samples)?;
    }

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
