//! The two formulas by which programs convert CPU shares into a weight of cgroup v2.

use super::resource::{MAX_SHARES, MIN_SHARES, shares_to_weight, weight_to_shares};
use crate::root::Root;
use std::sync::atomic::Ordering;

/// `cpu.weight` of a new cgroup.
const DEFAULT_WEIGHT: i64 = 100;
/// Largest `cpu.weight`.
const MAX_WEIGHT: i64 = 10_000;

/// Formula by which a container runtime converts `cpu.shares` into `cpu.weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightFormula {
    /// Runc before 1.3.2, crun before 1.23 and upstream: 1,024 shares are weight 39.
    #[default]
    Linear,
    /// Runc from 1.3.2 and crun from 1.23: 1,024 shares are weight 100, both the defaults.
    Quadratic,
}

impl WeightFormula {
    /// All formulas.
    pub const ALL: [Self; 2] = [Self::Linear, Self::Quadratic];

    /// Returns the weight (1 to 10000) of `shares`.
    ///
    /// Quadratic: the smallest integer that is not below 10^((l² + 125·l)/612 − 7/34), where l is the
    /// binary logarithm of the shares (`ConvertCPUSharesToCgroupV2Value` of opencontainers/cgroups).
    #[must_use]
    pub fn weight(self, shares: i64) -> i64 {
        match self {
            Self::Linear => shares_to_weight(shares),
            Self::Quadratic if shares <= MIN_SHARES => 1,
            Self::Quadratic if shares >= MAX_SHARES => MAX_WEIGHT,
            Self::Quadratic => {
                let l = (shares as f64).log2();
                let exponent = (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0;
                (10_f64.powf(exponent).ceil() as i64).clamp(1, MAX_WEIGHT)
            }
        }
    }

    /// Returns shares whose weight is `weight`, or nearly so by the linear formula.
    #[must_use]
    pub fn shares(self, weight: i64) -> i64 {
        match self {
            Self::Linear => weight_to_shares(weight),
            Self::Quadratic => {
                let weight = weight.clamp(1, MAX_WEIGHT) as f64;
                // The positive root of l² + 125·l = 612·(log10(weight) + 7/34).
                let right = 612.0 * weight.log10() + 126.0;
                let l = (-125.0 + (15_625.0 + 4.0 * right).sqrt()) / 2.0;
                ((l.exp2() + 1e-6).floor() as i64).clamp(MIN_SHARES, MAX_SHARES)
            }
        }
    }

    /// Returns the only formula that converts `shares` to `weight`; `None` when both or neither do, and for
    /// the weight that a cgroup has before any program writes it.
    #[must_use]
    pub fn detect(shares: i64, weight: i64) -> Option<Self> {
        if weight == DEFAULT_WEIGHT {
            return None;
        }
        let agrees = Self::ALL.map(|formula| formula.weight(shares) == weight);
        match agrees {
            [true, false] => Some(Self::Linear),
            [false, true] => Some(Self::Quadratic),
            _ => None,
        }
    }
}

impl Root {
    /// Returns the formula by which weights are read and written: that of the node's runtime, as far as
    /// [`Root::observe_weight`] has detected it.
    #[must_use]
    pub fn weight_formula(&self) -> WeightFormula {
        match self.quadratic_weights().load(Ordering::Relaxed) {
            true => WeightFormula::Quadratic,
            false => WeightFormula::Linear,
        }
    }

    /// Records a weight that the runtime gave a group of `shares`. Runtimes switch from the linear formula to
    /// the quadratic one, and not back.
    pub fn observe_weight(&self, shares: i64, weight: i64) {
        let detected = WeightFormula::detect(shares, weight);
        if detected == Some(WeightFormula::Quadratic) {
            self.quadratic_weights().store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of opencontainers/cgroups v0.1.0, and those of its own test.
    #[test]
    fn quadratic_formula_matches_current_runtimes() {
        for (shares, weight) in [
            (0, 1),
            (1, 1),
            (2, 1),
            (3, 2),
            (102, 17),
            (512, 59),
            (1024, 100),
            (2048, 174),
            (4096, 303),
            (10_240, 639),
            (102_400, 4429),
            (262_143, 10_000),
            (262_144, 10_000),
            (i64::MAX, 10_000),
        ] {
            assert_eq!(WeightFormula::Quadratic.weight(shares), weight, "{shares}");
        }
        assert_eq!(WeightFormula::Quadratic.shares(100), 1024);
        for weight in 1..=MAX_WEIGHT {
            let shares = WeightFormula::Quadratic.shares(weight);
            assert_eq!(WeightFormula::Quadratic.weight(shares), weight, "{shares}");
        }
    }

    #[test]
    fn formula_is_detected_where_the_two_differ() {
        use WeightFormula::{Linear, Quadratic};
        for (shares, weight, formula) in [
            (1024, 39, Some(Linear)),
            (1024, 100, None),
            (2048, 174, Some(Quadratic)),
            (1024, 50, None),
            (2, 1, None),
            (262_144, 10_000, None),
        ] {
            assert_eq!(
                WeightFormula::detect(shares, weight),
                formula,
                "{shares} {weight}"
            );
        }
    }
}
