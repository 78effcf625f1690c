//! CPU normalization: a core of a fast machine counts for more than one, so CPU limits are reduced.
//!
//! The manager writes the ratio of the node's speed to the reference on the Node; koordlet divides the CFS
//! quotas of pods on shared CPUs by it (see `cpu_limit`). Source: Koordinator
//! `pkg/koordlet/runtimehooks/hooks/cpunormalization`.

/// Smallest change of the ratio that takes effect. The ratio is written with two decimals.
pub const RATIO_STEP: f64 = 0.01;

/// Smallest ratio: a machine is never slower than the reference.
pub const MIN_RATIO: f64 = 1.0;
/// Largest valid ratio.
pub const MAX_RATIO: f64 = 5.0;

/// Returns the ratio to apply: `new`, unless it differs from `old` by less than [`RATIO_STEP`].
#[must_use]
pub fn stable_ratio(old: Option<f64>, new: Option<f64>) -> Option<f64> {
    match (old, new) {
        // A tolerance of half a hundredth of the step, because hundredths have no exact binary form.
        (Some(old), Some(new)) if (old - new).abs() < RATIO_STEP * 0.995 => Some(old),
        _ => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_are_no_changes() {
        assert_eq!(stable_ratio(Some(1.1), Some(1.105)), Some(1.1));
        assert_eq!(stable_ratio(Some(1.1), Some(1.11)), Some(1.11));
        assert_eq!(stable_ratio(Some(1.1), Some(1.09)), Some(1.09));
        assert_eq!(stable_ratio(Some(1.1), None), None);
        assert_eq!(stable_ratio(None, Some(1.1)), Some(1.1));
    }
}
