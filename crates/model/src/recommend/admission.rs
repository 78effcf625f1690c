//! Expected share of its request that a new pod uses at its peak, for the scheduler's load estimate.

use std::collections::BTreeMap;

/// Returns the percentage of the request that a pod with this recommendation will use: `ceil(100 ×
/// recommended / requested)`, at least 1 and at most 100. `None` if one of the amounts is not positive.
#[must_use]
pub fn scaling_factor(recommended: i64, requested: i64) -> Option<i64> {
    if recommended <= 0 || requested <= 0 {
        return None;
    }
    let percent =
        (i128::from(recommended) * 100 + i128::from(requested) - 1) / i128::from(requested);
    i64::try_from(percent.clamp(1, 100)).ok()
}

/// Requests and recommendations of a container by resource, in one unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerAmounts<'a> {
    /// Requested amounts.
    pub requested: BTreeMap<&'a str, i64>,
    /// Recommended amounts.
    pub recommended: BTreeMap<&'a str, i64>,
}

/// Returns the factors of a pod by resource, in percent. A container without a recommendation is expected to
/// use its request. A resource without any recommendation has no factor.
#[must_use]
pub fn scaling_factors<'a>(containers: &[ContainerAmounts<'a>]) -> BTreeMap<&'a str, i64> {
    let mut sums: BTreeMap<&str, (i64, i64, bool)> = BTreeMap::new();
    for container in containers {
        for (&resource, &request) in &container.requested {
            let recommended = container.recommended.get(resource);
            let sum = sums.entry(resource).or_default();
            sum.0 = sum.0.saturating_add(*recommended.unwrap_or(&request));
            sum.1 = sum.1.saturating_add(request);
            sum.2 |= recommended.is_some();
        }
    }
    let factor = |(resource, (recommended, requested, has_recommendation))| {
        let factor = scaling_factor(recommended, requested).filter(|_| has_recommendation)?;
        Some((resource, factor))
    };
    sums.into_iter().filter_map(factor).collect()
}
