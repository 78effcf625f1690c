//! How few zones a pod needs, and how near they are to each other.

use super::{Ask, BEST, Free, Kind, Scope, UNKNOWN_COST, Want, suits};

/// Sets of zones that are looked at for one container; a request that is not placed after so many is
/// tried with one zone more.
const LOOKED_AT: usize = 50_000;

/// The score of a node, 0 to 100: the fewer zones the better, and among nodes that need as many those
/// whose zones are as near to each other as zones are on that node. Of several containers the worst
/// counts. 0 when something does not fit in all zones together.
///
/// `max_zones` is the most NUMA nodes that the kubelet deals with: each zone costs 100 / `max_zones`.
#[must_use]
pub fn least(ask: &Ask, scope: Scope, mut free: Free<'_>, max_zones: i64) -> i64 {
    let whole = std::slice::from_ref(&ask.whole);
    let parts: Vec<&Vec<Want>> = match scope {
        Scope::Pod => whole.iter().collect(),
        Scope::Container => ask.containers.iter().map(|(_, wants)| wants).collect(),
    };
    let last = parts.len().saturating_sub(1);
    let (mut most, mut near) = (0, true);
    for (at, wants) in parts.into_iter().enumerate() {
        // As in the filter, what may lie on the host as a whole, and does, asks no zone.
        let wants = wants.iter().copied();
        let bound = wants.filter(|want| want.kind != Kind::Host || free.lists(want.id));
        let wants: Vec<Want> = bound.collect();
        if !wants.iter().any(|want| free.lists(want.id)) {
            continue;
        }
        let Some(found) = nearest(ask.guaranteed, &wants, &free) else {
            return 0;
        };
        near &= found.near;
        most = most.max(found.zones.len());
        if at < last {
            drain(&wants, &mut free, &found.zones);
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

pub(super) struct Nearest {
    /// Ascending.
    pub(super) zones: Vec<usize>,
    /// Whether no set of as many zones of this node is nearer together.
    pub(super) near: bool,
}

/// The smallest set of zones with all of `wants`, and of those the one that is nearest together, the
/// first in order of zones.
pub(super) fn nearest(guaranteed: bool, wants: &[Want], free: &Free<'_>) -> Option<Nearest> {
    for size in 1..=free.len() {
        if !could_hold(guaranteed, wants, free, size) {
            continue;
        }
        let mut nearest_of_all = u64::MAX;
        let mut best: Option<(u64, Vec<usize>)> = None;
        for zones in Sets::new(free.len(), size).take(LOOKED_AT) {
            let apart = apart(free, &zones);
            nearest_of_all = nearest_of_all.min(apart);
            let better = best.as_ref().is_none_or(|(known, _)| apart < *known);
            if better && hold(guaranteed, wants, free, &zones) {
                best = Some((apart, zones));
            }
        }
        if let Some((apart, zones)) = best {
            let near = apart == nearest_of_all;
            return Some(Nearest { zones, near });
        }
    }
    None
}

/// The distances within a set of zones, each zone to itself included, in sum: sets of one size are
/// compared.
pub(super) fn apart(free: &Free<'_>, zones: &[usize]) -> u64 {
    let pairs = zones
        .iter()
        .flat_map(|a| zones.iter().map(move |b| (*a, *b)));
    let cost = |(a, b): (usize, usize)| {
        let known = free.zones[a].cost(&free.zones[b]);
        u64::from(known.min(UNKNOWN_COST))
    };
    pairs.map(cost).sum()
}

fn hold(guaranteed: bool, wants: &[Want], free: &Free<'_>, zones: &[usize]) -> bool {
    wants.iter().all(|want| {
        let mut sum = 0_i64;
        for at in zones {
            // Each zone must know the resource.
            let Some(have) = free.get(*at, want.id) else {
                return false;
            };
            sum = sum.saturating_add(have);
        }
        want.amount == 0 || suits(guaranteed, want, sum)
    })
}

/// Whether the `size` zones with the most of each resource have enough of it: if not, no set has.
fn could_hold(guaranteed: bool, wants: &[Want], free: &Free<'_>, size: usize) -> bool {
    wants.iter().all(|want| {
        let all = (0..free.len()).filter_map(|at| free.get(at, want.id));
        let mut all: Vec<i64> = all.collect();
        all.sort_unstable_by_key(|have| std::cmp::Reverse(*have));
        let sum = all.iter().take(size);
        let sum = sum.fold(0_i64, |sum, have| sum.saturating_add(*have));
        all.len() >= size && (want.amount == 0 || suits(guaranteed, want, sum))
    })
}

/// Takes `wants` from the zones, from each what it has, in their order.
pub(super) fn drain(wants: &[Want], free: &mut Free<'_>, zones: &[usize]) {
    for want in wants {
        let mut left = want.amount;
        for at in zones {
            let part = left.min(free.get(*at, want.id).unwrap_or(0));
            free.take(*at, want.id, part);
            left -= part;
        }
    }
}

/// The sets of `size` of the numbers below `count`, in lexicographic order.
struct Sets {
    count: usize,
    next: Option<Vec<usize>>,
}

impl Sets {
    fn new(count: usize, size: usize) -> Self {
        let next = (size <= count).then(|| (0..size).collect());
        Self { count, next }
    }
}

impl Iterator for Sets {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let current = self.next.take()?;
        let size = current.len();
        let movable = (0..size).rfind(|at| current[*at] < self.count - size + at);
        if let Some(at) = movable {
            let mut next = current.clone();
            let from = next[at] + 1;
            for (offset, value) in next[at..].iter_mut().enumerate() {
                *value = from + offset;
            }
            self.next = Some(next);
        }
        Some(current)
    }
}
