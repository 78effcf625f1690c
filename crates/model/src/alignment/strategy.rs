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
    request: &AlignmentRequest,
    scope: Scope,
    free: &FreeZones<'_>,
    weight: impl Fn(ResourceId) -> i64,
) -> i64 {
    let worst = |demands: &[ResourceDemand]| {
        if demands.is_empty() {
            return BEST;
        }
        let scores = (0..free.len()).map(|at| zone_score(kind, demands, free, at, &weight));
        scores.filter(|score| *score != 0).min().unwrap_or(0)
    };
    if scope == Scope::Pod {
        return worst(&request.whole);
    }
    let containers = i64::try_from(request.containers.len()).unwrap_or(i64::MAX);
    let sum: i64 = request
        .containers
        .iter()
        .map(|(_, demands)| worst(demands))
        .sum();
    sum.checked_div(containers).unwrap_or(BEST)
}

/// Returns the score of one zone for `demands`, 0 to 100.
fn zone_score(
    kind: ZoneStrategy,
    demands: &[ResourceDemand],
    free: &FreeZones<'_>,
    at: usize,
    weight: impl Fn(ResourceId) -> i64,
) -> i64 {
    let pairs = demands.iter().map(|demand| {
        let free_amount = units(demand.id, free.get(at, demand.id).unwrap_or(0));
        (demand.id, free_amount, units(demand.id, demand.amount))
    });
    if kind == ZoneStrategy::BalancedAllocation {
        return balanced(pairs.map(|(_, free_amount, requested)| (free_amount, requested)));
    }
    let (mut sum, mut weights) = (0_i128, 0_i128);
    for (id, free_amount, requested) in pairs {
        let part = match kind {
            _ if free_amount == 0 || requested > free_amount => 0,
            ZoneStrategy::MostAllocated => requested,
            _ => free_amount.saturating_sub(requested),
        };
        let points = i128::from(part) * i128::from(BEST) / i128::from(free_amount.max(1));
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
    for (free_amount, requested) in pairs {
        let share = if free_amount == 0 {
            1.0
        } else {
            requested as f64 / free_amount as f64
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
