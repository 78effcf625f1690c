//! Samples in fixed-size rings.
//!
//! Every ring of one kind shares an [`Axis`] of sample times, so a sample costs four or eight bytes.
//!
//! *Exactness.* The node's own series keep every 1 s sample for 30 minutes as `f64`. A pod's series
//! keep every sample of the last five minutes as `f32` (relative error at most 2⁻²⁴), and averages
//! of ten samples for the rest of the 30 minutes: averages over any window stay true, percentiles
//! over windows longer than five minutes are percentiles of the ten-second averages.

/// Sample times of a family of rings, in milliseconds of a steady clock, oldest overwritten.
#[derive(Debug, Clone)]
pub struct Axis {
    stamps: Box<[u64]>,
    head: usize,
    len: usize,
}

impl Axis {
    /// An axis of `capacity` (at least one) samples.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            stamps: vec![0; capacity.max(1)].into_boxed_slice(),
            head: 0,
            len: 0,
        }
    }

    /// Begins a new sample at `now_ms`. Every series of the family must then be advanced.
    pub fn push(&mut self, now_ms: u64) {
        self.head = if self.len == 0 {
            0
        } else {
            (self.head + 1) % self.stamps.len()
        };
        self.stamps[self.head] = now_ms;
        self.len = (self.len + 1).min(self.stamps.len());
    }

    /// The slot of the present sample.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.head
    }

    /// How many samples the rings hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.stamps.len()
    }

    /// The slots with a time in `from..=to`, newest first.
    pub fn between(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = (usize, u64)> + '_ {
        let size = self.stamps.len();
        (0..self.len)
            .map(move |back| (self.head + size - back) % size)
            .map(|slot| (slot, self.stamps[slot]))
            .skip_while(move |(_, at)| *at > to_ms)
            .take_while(move |(_, at)| *at >= from_ms)
    }
}

/// A number a ring can hold, with one value that means "no sample".
pub trait Value: Copy {
    /// No sample.
    const NONE: Self;
    /// Narrows a sample.
    fn narrow(value: f64) -> Self;
    /// The sample, if there is one.
    fn get(self) -> Option<f64>;
}

impl Value for f64 {
    const NONE: Self = f64::NAN;
    fn narrow(value: f64) -> Self {
        value
    }
    fn get(self) -> Option<f64> {
        (!self.is_nan()).then_some(self)
    }
}

impl Value for f32 {
    const NONE: Self = f32::NAN;
    fn narrow(value: f64) -> Self {
        value as f32
    }
    fn get(self) -> Option<f64> {
        (!self.is_nan()).then_some(f64::from(self))
    }
}

/// A ring of samples along an [`Axis`].
#[derive(Debug, Clone)]
pub struct Series<V> {
    values: Box<[V]>,
}

impl<V: Value> Series<V> {
    /// An empty series along `axis`.
    #[must_use]
    pub fn new(axis: &Axis) -> Self {
        Self {
            values: vec![V::NONE; axis.capacity()].into_boxed_slice(),
        }
    }

    /// Sets the sample of the axis's present slot. Call exactly once after each [`Axis::push`],
    /// with `None` when there is no sample, so that no old value shines through.
    pub fn set(&mut self, axis: &Axis, value: Option<f64>) {
        self.values[axis.slot()] = value.map_or(V::NONE, V::narrow);
    }

    /// The samples of the last `window_ms` before `now_ms`, newest first.
    pub fn window<'a>(
        &'a self,
        axis: &'a Axis,
        now_ms: u64,
        window_ms: u64,
    ) -> impl Iterator<Item = (f64, u64)> + 'a {
        axis.between(now_ms.saturating_sub(window_ms), now_ms)
            .filter_map(|(slot, at)| Some((self.values[slot].get()?, at)))
    }

    /// The mean over a window.
    #[must_use]
    pub fn average(&self, axis: &Axis, now_ms: u64, window_ms: u64) -> Option<f64> {
        mean(self.window(axis, now_ms, window_ms).map(|(value, _)| value))
    }

    /// Copies a window into `out` and returns the time between its first and last sample.
    pub fn collect(&self, axis: &Axis, now_ms: u64, window_ms: u64, out: &mut Vec<f64>) -> u64 {
        out.clear();
        let (mut newest, mut oldest) = (None, 0);
        for (value, at) in self.window(axis, now_ms, window_ms) {
            newest.get_or_insert(at);
            oldest = at;
            out.push(value);
        }
        newest.map_or(0, |newest| newest - oldest)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Samples of the last five minutes one by one.
const FINE: usize = 301;
/// Averages of [`FOLD`] samples for 30 minutes.
const COARSE: usize = 181;
/// How many fine samples one coarse sample averages.
const FOLD: u32 = 10;

/// The axes of the pods' series.
#[derive(Debug, Clone)]
pub struct PodAxes {
    fine: Axis,
    coarse: Axis,
    phase: u32,
}

impl Default for PodAxes {
    fn default() -> Self {
        Self {
            fine: Axis::new(FINE),
            coarse: Axis::new(COARSE),
            phase: 0,
        }
    }
}

impl PodAxes {
    /// Begins a new sample.
    pub fn push(&mut self, now_ms: u64) {
        self.fine.push(now_ms);
        self.phase = if self.phase == FOLD {
            1
        } else {
            self.phase + 1
        };
        if self.phase == FOLD {
            self.coarse.push(now_ms);
        }
    }

    fn fine_covers(&self, now_ms: u64, window_ms: u64) -> bool {
        self.fine.len < self.fine.capacity()
            || self
                .fine
                .stamps
                .get((self.fine.head + 1) % self.fine.capacity())
                .is_some_and(|oldest| *oldest <= now_ms.saturating_sub(window_ms))
            || window_ms <= (FINE as u64 - 1) * 1000
    }
}

/// One quantity of one pod.
#[derive(Debug, Clone)]
pub struct PodSeries {
    fine: Series<f32>,
    coarse: Series<f32>,
    sum: f64,
    count: u32,
}

impl PodSeries {
    /// An empty series.
    #[must_use]
    pub fn new(axes: &PodAxes) -> Self {
        Self {
            fine: Series::new(&axes.fine),
            coarse: Series::new(&axes.coarse),
            sum: 0.0,
            count: 0,
        }
    }

    /// Sets the present sample. Call exactly once after each [`PodAxes::push`].
    pub fn set(&mut self, axes: &PodAxes, value: Option<f64>) {
        self.fine.set(&axes.fine, value);
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
        if axes.phase == FOLD {
            let mean = (self.count > 0).then(|| self.sum / f64::from(self.count));
            self.coarse.set(&axes.coarse, mean);
            (self.sum, self.count) = (0.0, 0);
        }
    }

    /// The mean over a window.
    #[must_use]
    pub fn average(&self, axes: &PodAxes, now_ms: u64, window_ms: u64) -> Option<f64> {
        if axes.fine_covers(now_ms, window_ms) {
            self.fine.average(&axes.fine, now_ms, window_ms)
        } else {
            self.coarse.average(&axes.coarse, now_ms, window_ms)
        }
    }

    /// Copies a window into `out` and returns the time between its first and last sample.
    pub fn collect(&self, axes: &PodAxes, now_ms: u64, window_ms: u64, out: &mut Vec<f64>) -> u64 {
        if axes.fine_covers(now_ms, window_ms) {
            self.fine.collect(&axes.fine, now_ms, window_ms, out)
        } else {
            self.coarse.collect(&axes.coarse, now_ms, window_ms, out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_ring_forgets_the_oldest() {
        let mut axis = Axis::new(3);
        let mut series = Series::<f64>::new(&axis);
        for second in 1..=5 {
            axis.push(second * 1000);
            series.set(&axis, (second != 4).then_some(second as f64));
        }
        let seen: Vec<_> = series.window(&axis, 5000, 60_000).collect();
        assert_eq!(seen, [(5.0, 5000), (3.0, 3000)]);
        assert_eq!(series.average(&axis, 5000, 1000), Some(5.0));
        assert_eq!(series.average(&axis, 90_000, 1000), None);
        let mut out = Vec::new();
        assert_eq!(series.collect(&axis, 5000, 60_000, &mut out), 2000);
    }

    #[test]
    fn long_windows_use_averages() {
        let mut axes = PodAxes::default();
        let mut series = PodSeries::new(&axes);
        for second in 1..=1800_u64 {
            axes.push(second * 1000);
            series.set(&axes, Some(second as f64));
        }
        let now = 1_800_000;
        let five = series.average(&axes, now, 299_000).unwrap();
        assert!((five - 1650.5).abs() < 1.0, "{five}");
        let thirty = series.average(&axes, now, 1_800_000).unwrap();
        assert!((thirty - 900.5).abs() < 1.0, "{thirty}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn both_resolutions_agree_on_averages(values in prop::collection::vec(0.0..1e6_f64, 320..700)) {
            let mut axes = PodAxes::default();
            let mut series = PodSeries::new(&axes);
            let count = values.len() / 10 * 10;
            for (i, value) in values[..count].iter().enumerate() {
                axes.push((i as u64 + 1) * 1000);
                series.set(&axes, Some(*value));
            }
            let now = count as u64 * 1000;
            let mean = values[..count].iter().sum::<f64>() / count as f64;
            let got = series.coarse.average(&axes.coarse, now, now).unwrap();
            prop_assert!((got - mean).abs() <= mean * 1e-5 + 1e-6);
        }
    }
}
