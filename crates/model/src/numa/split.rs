//! Amounts on NUMA nodes: splitting of requests, amplification and scores.

use super::NumaMask;
use crate::resources::{Amounts, CPU, MOST, ResourceId, percent};

/// Granularity of a CPU split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Milli-cores.
    Milli,
    /// Whole CPUs.
    Cpu,
    /// Whole physical cores with this many CPUs each.
    Core(i64),
}

impl Unit {
    /// Returns a `parts`-th of `rest` of resource `id`, rounded down to this unit.
    fn share(self, id: ResourceId, rest: i64, parts: i64) -> i64 {
        let step = match self {
            _ if id != CPU => 1,
            Self::Milli => 1,
            Self::Cpu => 1000,
            Self::Core(cpus) => cpus.max(1).saturating_mul(1000),
        };
        rest / step / parts.max(1) * step
    }
}

/// Splits `requests` over the NUMA nodes of `mask` as evenly as `available` allows: those with the least free
/// are filled first, so that the others compensate. Resources that no NUMA node lists are left out.
///
/// # Errors
/// The resources that do not fit.
pub fn split(
    requests: &Amounts,
    available: &[(u8, Amounts)],
    mask: NumaMask,
    unit: Unit,
) -> Result<Vec<(u8, Amounts)>, Vec<ResourceId>> {
    let chosen: Vec<&(u8, Amounts)> = available.iter().filter(|(id, _)| mask.has(*id)).collect();
    let mut out: Vec<(u8, Amounts)> = chosen.iter().map(|(id, _)| (*id, Amounts::new())).collect();
    let mut missing = Vec::new();
    let listed = |id| available.iter().any(|(_, zone)| zone.contains(id));
    for (id, request) in requests.iter().filter(|(id, _)| listed(*id)) {
        let mut order: Vec<usize> = (0..chosen.len()).collect();
        order.sort_by_key(|zone| chosen[*zone].1.get(id));
        let mut remaining = request;
        for (done, zone) in order.iter().enumerate() {
            let parts = i64::try_from(chosen.len() - done).unwrap_or(i64::MAX);
            let share = unit
                .share(id, remaining, parts)
                .min(chosen[*zone].1.get(id));
            if share > 0 {
                out[*zone].1.set(id, share);
                remaining -= share;
            }
        }
        if remaining > 0 {
            missing.push(id);
        }
    }
    out.retain(|(_, zone)| !zone.is_empty());
    if missing.is_empty() {
        Ok(out)
    } else {
        Err(missing)
    }
}

/// Returns `amount` times `ratio`, rounded up, at most [`MOST`]; unchanged by ratios up to 1.
#[must_use]
pub fn amplify(amount: i64, ratio: f64) -> i64 {
    if ratio > 1.0 {
        ((amount as f64 * ratio).ceil() as i64).min(MOST)
    } else {
        amount
    }
}

/// Allocatable and requested amount of one resource, and its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Allocatable amount; a resource without any is ignored.
    pub allocatable: i64,
    /// Requested amount, including the pod.
    pub requested: i64,
    /// Weight of the resource.
    pub weight: i64,
}

/// Returns the free share, 0 to 100, averaged by weight.
#[inline]
#[must_use]
pub fn least_allocated(usages: impl IntoIterator<Item = Usage>) -> i64 {
    average(usages, |there, used| {
        if used > there {
            0
        } else {
            part(there - used, there)
        }
    })
}

/// Returns the requested share, 0 to 100, averaged by weight.
#[inline]
#[must_use]
pub fn most_allocated(usages: impl IntoIterator<Item = Usage>) -> i64 {
    average(usages, |there, used| part(used.min(there), there))
}

#[inline]
fn part(amount: i64, of: i64) -> i64 {
    percent(amount, of).unwrap_or(0)
}

#[inline]
fn average(usages: impl IntoIterator<Item = Usage>, score: impl Fn(i64, i64) -> i64) -> i64 {
    let (mut sum, mut weights) = (0i64, 0i64);
    for usage in usages.into_iter().filter(|usage| usage.allocatable > 0) {
        let points = score(usage.allocatable, usage.requested);
        sum = sum.saturating_add(points.saturating_mul(usage.weight));
        weights = weights.saturating_add(usage.weight);
    }
    sum.checked_div(weights).unwrap_or(0)
}
