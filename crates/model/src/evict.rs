//! Whom eviction takes, and how much has to go.
//!
//! [`config`] checks the limits and says how much each asks for, [`plan`] orders the candidates and
//! keeps the books of all features together, [`request`] reads what a pod requests. Sources:
//! Koordinator `pkg/koordlet/qosmanager/plugins/{cpuevict,memoryevict,util}`.

pub mod config;
pub mod plan;
pub mod request;
#[cfg(test)]
mod tables;

use std::cmp::Reverse;

/// The configured limits of memory eviction, in percent of the node's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryThreshold {
    /// Use at or above this starts eviction.
    pub percent: i64,
    /// Eviction aims at this.
    pub lower: i64,
}

/// Why a memory threshold cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    /// No threshold is configured.
    #[error("memoryEvictThresholdPercent is not set")]
    Missing,
    /// The threshold is negative.
    #[error("memoryEvictThresholdPercent must not be negative, got {0}")]
    Negative(i64),
    /// The lower bound is not below the threshold.
    #[error(
        "memoryEvictLowerPercent must be less than memoryEvictThresholdPercent {percent}, got {lower}"
    )]
    Order {
        /// The threshold.
        percent: i64,
        /// The lower bound.
        lower: i64,
    },
}

impl MemoryThreshold {
    /// Checks the configured values; the lower bound defaults to two points below the threshold.
    ///
    /// # Errors
    /// When the threshold is missing or negative or the bounds are in the wrong order.
    pub fn new(percent: Option<i64>, lower: Option<i64>) -> Result<Self, ThresholdError> {
        let percent = percent.ok_or(ThresholdError::Missing)?;
        if percent < 0 {
            return Err(ThresholdError::Negative(percent));
        }
        let lower = lower.unwrap_or(percent - 2);
        if lower >= percent {
            return Err(ThresholdError::Order { percent, lower });
        }
        Ok(Self { percent, lower })
    }

    /// How many bytes have to be released; 0 when the node is below the threshold.
    #[must_use]
    pub fn release(&self, capacity: i64, used: i64) -> i64 {
        if capacity <= 0 {
            return 0;
        }
        let percent = (i128::from(used) * 100 / i128::from(capacity)) as i64;
        if percent < self.percent {
            return 0;
        }
        (i128::from(capacity) * i128::from(percent - self.lower) / 100) as i64
    }
}

/// A best-effort pod that may be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate<Id> {
    /// How the caller names the pod.
    pub id: Id,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// Bytes in use, when known.
    pub used: Option<i64>,
    /// The pod's name, which orders pods without a sample.
    pub name: String,
    /// Evicted before and not gone yet: what it uses counts as released.
    pub pending: bool,
}

/// The pods to evict now, in order, so that `release` bytes are freed.
///
/// Lower priority first, then larger use; pods without a sample last. What pending pods use is
/// subtracted first.
#[must_use]
pub fn victims<Id: Clone>(release: i64, candidates: &[Candidate<Id>]) -> Vec<Id> {
    let mut left = release;
    let mut order: Vec<&Candidate<Id>> = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        if candidate.pending {
            left -= candidate.used.unwrap_or(0);
        } else {
            order.push(candidate);
        }
    }
    order.sort_by(|a, b| {
        a.used
            .is_none()
            .cmp(&b.used.is_none())
            .then_with(|| match (a.used, b.used) {
                (Some(x), Some(y)) => by_priority(a, b).then(Reverse(x).cmp(&Reverse(y))),
                _ => b.name.cmp(&a.name),
            })
    });
    let mut chosen = Vec::new();
    for candidate in order {
        if left <= 0 {
            break;
        }
        left -= candidate.used.unwrap_or(0);
        chosen.push(candidate.id.clone());
    }
    chosen
}

/// A pod without a priority has the cluster's default, 0.
fn by_priority<Id>(a: &Candidate<Id>, b: &Candidate<Id>) -> std::cmp::Ordering {
    a.priority.unwrap_or(0).cmp(&b.priority.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: i64 = 1 << 30;

    #[test]
    fn threshold_checks() {
        assert_eq!(
            MemoryThreshold::new(None, None),
            Err(ThresholdError::Missing)
        );
        assert_eq!(
            MemoryThreshold::new(Some(-1), None),
            Err(ThresholdError::Negative(-1))
        );
        assert_eq!(
            MemoryThreshold::new(Some(70), Some(70)),
            Err(ThresholdError::Order {
                percent: 70,
                lower: 70
            })
        );
        assert_eq!(
            MemoryThreshold::new(Some(70), None),
            Ok(MemoryThreshold {
                percent: 70,
                lower: 68
            })
        );
    }

    #[test]
    fn release_table() {
        let threshold = MemoryThreshold {
            percent: 80,
            lower: 78,
        };
        let capacity = 100 * GIB;
        for (used, want) in [
            (79 * GIB, 0),
            (80 * GIB, 2 * GIB),
            (85 * GIB, 7 * GIB),
            (100 * GIB, 22 * GIB),
        ] {
            assert_eq!(threshold.release(capacity, used), want, "{}", used / GIB);
        }
        assert_eq!(threshold.release(0, 5), 0);
    }

    fn pod(id: &'static str, priority: i32, used: Option<i64>) -> Candidate<&'static str> {
        let priority = Some(priority);
        Candidate {
            id,
            priority,
            used: used.map(|g| g * GIB),
            name: id.into(),
            pending: false,
        }
    }

    #[test]
    fn victims_in_order() {
        let pods = [
            pod("high", 5900, Some(30)),
            pod("low-small", 5000, Some(5)),
            pod("low-large", 5000, Some(10)),
            pod("unknown", 4000, None),
        ];
        assert_eq!(victims(12 * GIB, &pods), ["low-large", "low-small"]);
        assert_eq!(victims(GIB, &pods), ["low-large"]);
        assert_eq!(
            victims(100 * GIB, &pods),
            ["low-large", "low-small", "high", "unknown"]
        );
        assert!(victims(0, &pods).is_empty());
    }

    #[test]
    fn what_is_going_already_counts() {
        let mut pods = [pod("a", 5000, Some(10)), pod("b", 5000, Some(8))];
        pods[0].pending = true;
        assert!(victims(10 * GIB, &pods).is_empty());
        assert_eq!(victims(12 * GIB, &pods), ["b"]);
    }

    proptest! {
        #[test]
        fn enough_and_no_more(
            uses in prop::collection::vec((0_i64..100, 5000..5999_i32), 0..20),
            release in 0_i64..500,
        ) {
            let pods: Vec<Candidate<usize>> = uses
                .iter()
                .enumerate()
                .map(|(id, (used, priority))| Candidate {
                    id,
                    priority: Some(*priority),
                    used: Some(*used),
                    name: id.to_string(),
                    pending: false,
                })
                .collect();
            let chosen = victims(release, &pods);
            let freed: i64 = chosen.iter().map(|id| uses[*id].0).sum();
            prop_assert!(freed >= release || chosen.len() == pods.len());
            if let Some((last, before)) = chosen.split_last() {
                let without: i64 = before.iter().map(|id| uses[*id].0).sum();
                prop_assert!(without < release, "{last} was not needed");
            }
        }
    }
}
