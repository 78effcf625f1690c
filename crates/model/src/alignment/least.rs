//! Score by the number of zones a pod needs and the distances between them.

use super::{
    AlignmentRequest, BEST, FreeZones, ResourceDemand, ResourceKind, Scope, UNKNOWN_COST, suits,
};

/// Maximum number of zone sets of one size that are examined for one container. A request that fits none of
/// them is tried with sets of one zone more.
const MAX_EXAMINED_SETS: usize = 50_000;

/// Returns the score of a node, 0 to 100: the fewer zones the pod needs the better; among equal numbers, sets
/// whose zones have the smallest distance on that node are better. For several containers the worst one
/// counts. The score is 0 if a container does not fit in all zones together.
///
/// `max_zones` is the maximum number of NUMA nodes that the kubelet supports: each zone costs 100 /
/// `max_zones`.
#[must_use]
pub fn least_zones_score(
    request: &AlignmentRequest,
    scope: Scope,
    mut free: FreeZones<'_>,
    max_zones: i64,
) -> i64 {
    let whole = std::slice::from_ref(&request.whole);
    let parts: Vec<&Vec<ResourceDemand>> = match scope {
        Scope::Pod => whole.iter().collect(),
        Scope::Container => request
            .containers
            .iter()
            .map(|(_, demands)| demands)
            .collect(),
    };
    let last = parts.len().saturating_sub(1);
    let (mut most, mut near) = (0, true);
    for (index, demands) in parts.into_iter().enumerate() {
        // As in the filter, resources of the host that no zone lists need no zone.
        let demands = demands.iter().copied();
        let bound =
            demands.filter(|demand| demand.kind != ResourceKind::Host || free.lists(demand.id));
        let demands: Vec<ResourceDemand> = bound.collect();
        if !demands.iter().any(|demand| free.lists(demand.id)) {
            continue;
        }
        let Some(found) = nearest(request.guaranteed, &demands, &free) else {
            return 0;
        };
        near &= found.near;
        most = most.max(found.zones.len());
        if index < last {
            drain(&demands, &mut free, &found.zones);
        }
    }
    if most == 0 {
        return BEST;
    }
    let each = BEST / max_zones.max(1);
    let zones = i64::try_from(most).unwrap_or(i64::MAX);
    let score = BEST.saturating_sub(each.saturating_mul(zones));
    (score + if near { each / 2 } else { 0 }).max(0)
}

pub(super) struct NearestSet {
    /// Indices of the zones, ascending.
    pub(super) zones: Vec<usize>,
    /// True if no set of this size on the node has a smaller distance.
    pub(super) near: bool,
}

/// Returns the smallest set of zones that holds all of `demands`; of equal sizes that with the smallest
/// distance, then the first in lexicographic order.
pub(super) fn nearest(
    guaranteed: bool,
    demands: &[ResourceDemand],
    free: &FreeZones<'_>,
) -> Option<NearestSet> {
    for size in 1..=free.len() {
        if !could_hold(guaranteed, demands, free, size) {
            continue;
        }
        let mut nearest_of_all = u64::MAX;
        let mut best: Option<(u64, Vec<usize>)> = None;
        for zones in ZoneSets::new(free.len(), size).take(MAX_EXAMINED_SETS) {
            let distance = total_distance(free, &zones);
            nearest_of_all = nearest_of_all.min(distance);
            let better = best.as_ref().is_none_or(|(best, _)| distance < *best);
            if better && can_hold(guaranteed, demands, free, &zones) {
                best = Some((distance, zones));
            }
        }
        if let Some((distance, zones)) = best {
            let near = distance == nearest_of_all;
            return Some(NearestSet { zones, near });
        }
    }
    None
}

/// Returns the sum of the distances within a set of zones, including that of each zone to itself. Comparable
/// between sets of one size.
pub(super) fn total_distance(free: &FreeZones<'_>, zones: &[usize]) -> u64 {
    let pairs = zones
        .iter()
        .flat_map(|a| zones.iter().map(move |b| (*a, *b)));
    let cost = |(a, b): (usize, usize)| {
        let cost = free.zones[a].cost(&free.zones[b]);
        u64::from(cost.min(UNKNOWN_COST))
    };
    pairs.map(cost).sum()
}

fn can_hold(
    guaranteed: bool,
    demands: &[ResourceDemand],
    free: &FreeZones<'_>,
    zones: &[usize],
) -> bool {
    demands.iter().all(|demand| {
        let mut sum = 0_i64;
        for zone in zones {
            // Each zone must list the resource.
            let Some(free_amount) = free.get(*zone, demand.id) else {
                return false;
            };
            sum = sum.saturating_add(free_amount);
        }
        demand.amount == 0 || suits(guaranteed, demand, sum)
    })
}

/// Returns true if the `size` zones with the largest free amounts of each resource have enough of it. If not,
/// no set of this size does.
fn could_hold(
    guaranteed: bool,
    demands: &[ResourceDemand],
    free: &FreeZones<'_>,
    size: usize,
) -> bool {
    demands.iter().all(|demand| {
        let all = (0..free.len()).filter_map(|at| free.get(at, demand.id));
        let mut all: Vec<i64> = all.collect();
        all.sort_unstable_by_key(|free_amount| std::cmp::Reverse(*free_amount));
        let sum = all.iter().take(size);
        let sum = sum.fold(0_i64, |sum, free_amount| sum.saturating_add(*free_amount));
        all.len() >= size && (demand.amount == 0 || suits(guaranteed, demand, sum))
    })
}

/// Allocates `demands` from the zones in order, from each as much as it has.
pub(super) fn drain(demands: &[ResourceDemand], free: &mut FreeZones<'_>, zones: &[usize]) {
    for demand in demands {
        let mut remaining = demand.amount;
        for zone in zones {
            let part = remaining.min(free.get(*zone, demand.id).unwrap_or(0));
            free.take(*zone, demand.id, part);
            remaining -= part;
        }
    }
}

/// Iterator over the sets of `size` numbers below `count`, in lexicographic order.
struct ZoneSets {
    count: usize,
    next: Option<Vec<usize>>,
}

impl ZoneSets {
    fn new(count: usize, size: usize) -> Self {
        let next = (size <= count).then(|| (0..size).collect());
        Self { count, next }
    }
}

impl Iterator for ZoneSets {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let current = self.next.take()?;
        let size = current.len();
        let movable = (0..size).rfind(|position| current[*position] < self.count - size + position);
        if let Some(position) = movable {
            let mut next = current.clone();
            let from = next[position] + 1;
            for (offset, value) in next[position..].iter_mut().enumerate() {
                *value = from + offset;
            }
            self.next = Some(next);
        }
        Some(current)
    }
}
