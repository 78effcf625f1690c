//! Scores by the allocation of a node's zones.

use super::{AlignmentRequest, BEST, FreeZones, ResourceDemand, Scope, units};
use crate::resources::ResourceId;

/// Preference that scores a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneStrategy {
    /// Prefers zones with much free.
    LeastAllocated,
    /// Prefers zones with little free.
    MostAllocated,
    /// Prefers zones whose requested resources are allocated evenly.
    BalancedAllocation,
}

/// Returns the score of a node, 0 to 100. The score of a container, or of the pod, is that of the worst zone
/// with a score above 0; that of several containers is the mean. `weight` returns the weight of a resource,
/// at least 1.
///
/// An empty request scores 100.
#[must_use]
pub fn strategy(
    kind: ZoneStrategy,
    ask: &AlignmentRequest,
    scope: Scope,
    free: &FreeZones<'_>,
    weight: impl Fn(ResourceId) -> i64,
) -> i64 {
    let worst = |wants: &[ResourceDemand]| {
        if wants.is_empty() {
            return BEST;
        }
        let scores = (0..free.len()).map(|at| zone_score(kind, wants, free, at, &weight));
        scores.filter(|score| *score != 0).min().unwrap_or(0)
    };
    if scope == Scope::Pod {
        return worst(&ask.whole);
    }
    let containers = i64::try_from(ask.containers.len()).unwrap_or(i64::MAX);
    let sum: i64 = ask.containers.iter().map(|(_, wants)| worst(wants)).sum();
    sum.checked_div(containers).unwrap_or(BEST)
}

/// Returns the score of one zone for `wants`, 0 to 100.
fn zone_score(
    kind: ZoneStrategy,
    wants: &[ResourceDemand],
    free: &FreeZones<'_>,
    at: usize,
    weight: impl Fn(ResourceId) -> i64,
) -> i64 {
    let pairs = wants.iter().map(|want| {
        let have = units(want.id, free.get(at, want.id).unwrap_or(0));
        (want.id, have, units(want.id, want.amount))
    });
    if kind == ZoneStrategy::BalancedAllocation {
        return balanced(pairs.map(|(_, have, requested)| (have, requested)));
    }
    let (mut sum, mut weights) = (0_i128, 0_i128);
    for (id, have, requested) in pairs {
        let part = match kind {
            _ if have == 0 || requested > have => 0,
            ZoneStrategy::MostAllocated => requested,
            _ => have.saturating_sub(requested),
        };
        let points = i128::from(part) * i128::from(BEST) / i128::from(have.max(1));
        let weight = i128::from(weight(id).max(1));
        sum += points * weight;
        weights += weight;
    }
    i64::try_from(sum / weights.max(1)).unwrap_or(BEST)
}

/// Returns 100 times one minus the sample variance of the allocated shares. For a single resource it is 100,
/// where upstream divides by zero.
fn balanced(pairs: impl Iterator<Item = (i64, i64)>) -> i64 {
    let mut shares = Vec::new();
    for (have, requested) in pairs {
        let share = if have == 0 {
            1.0
        } else {
            requested as f64 / have as f64
        };
        if share > 1.0 {
            return 0;
        }
        shares.push(share);
    }
    let count = shares.len() as f64;
    if count < 2.0 {
        return BEST;
    }
    let mean = shares.iter().sum::<f64>() / count;
    let squares: f64 = shares.iter().map(|share| (share - mean).powi(2)).sum();
    let variance = squares / (count - 1.0);
    ((1.0 - variance) * BEST as f64) as i64
}
