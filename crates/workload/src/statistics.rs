//! Medians, percentiles, ranges, and comparison of two sets of runs.

use std::time::Duration;

/// Returns the median; 0 for no values. The mean of the middle two for an even count.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// Returns a percentile of `sorted` values by the nearest-rank method: the least of them that at least
/// `percent` of 100 values do not exceed. `None` for no values.
#[must_use]
pub fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Sorts `times` and returns a [`percentile`] of them; zero for no times.
pub fn time_percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    percentile(times, percent).unwrap_or_default()
}

/// Returns the least and greatest value; zeros for no values.
#[must_use]
pub fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| {
        (low.min(value), high.max(value))
    });
    if low.is_finite() {
        (low, high)
    } else {
        (0.0, 0.0)
    }
}

/// Result of a comparison of two sets of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The first set lies below the second.
    Lower,
    /// The first set lies above the second.
    Higher,
    /// The ranges overlap.
    Indistinguishable,
    /// Too few runs to have a range.
    Single,
}

impl Verdict {
    /// Compares two ranges, of phases with `runs` runs each at least.
    #[must_use]
    pub fn compare(a: (f64, f64), b: (f64, f64), runs: usize) -> Self {
        if runs < 2 {
            Verdict::Single
        } else if a.1 < b.0 {
            Verdict::Lower
        } else if a.0 > b.1 {
            Verdict::Higher
        } else {
            Verdict::Indistinguishable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn percentile_is_the_value_of_the_nearest_rank() {
        let five = [15, 20, 35, 40, 50];
        let of = |percent| percentile(&five, percent).unwrap();
        assert_eq!([0, 5, 30, 40, 50, 100].map(of), [15, 15, 20, 20, 35, 50]);
        assert_eq!(percentile::<u8>(&[], 50), None);
        let mut times = [3, 1, 2].map(Duration::from_secs);
        assert_eq!(time_percentile(&mut times, 99), Duration::from_secs(3));
        assert_eq!(time_percentile(&mut [], 99), Duration::ZERO);
    }

    #[test]
    fn ranges_that_overlap_are_indistinguishable() {
        let of = |a, b| Verdict::compare(a, b, 3);
        assert_eq!(of((1.0, 2.0), (2.1, 3.0)), Verdict::Lower);
        assert_eq!(of((2.1, 3.0), (1.0, 2.0)), Verdict::Higher);
        assert_eq!(of((1.0, 2.0), (2.0, 3.0)), Verdict::Indistinguishable);
        assert_eq!(Verdict::compare((1.0, 1.0), (2.0, 2.0), 1), Verdict::Single);
    }
}
