//! Cache of preemption plans on nodes that have not changed since.

use super::preempt::Plan;
use crate::framework::{Instance, Rejection, ShapeId};
use crate::state::PodInfo;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The key of cached plans: pods of one shape and priority, under one version of the rules.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct PreemptionCacheKey {
    pub(super) profile: usize,
    pub(super) owner: Instance,
    pub(super) rules: u64,
    pub(super) priority: i32,
    pub(super) shape: ShapeId,
}

/// The result of a victim search on one node.
#[derive(Debug)]
pub(super) struct CachedPlan {
    /// The version of the node that the result is valid for.
    pub(super) version: u64,
    /// The version of the disruption budgets' allowances, if a possible victim has a budget.
    pub(super) allowances: Option<u64>,
    pub(super) plan: Result<Arc<Plan>, Rejection>,
}

impl CachedPlan {
    /// Returns the approximate size in bytes outside its row. The victims themselves are held by the node
    /// store anyway.
    fn bytes(&self) -> usize {
        let plan = self.plan.as_ref();
        plan.map_or(0, |plan| {
            size_of::<Plan>() + plan.victims.capacity() * size_of::<Arc<PodInfo>>()
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct CachedShape {
    rows: Vec<Option<CachedPlan>>,
    /// The size in bytes of the entries outside their rows.
    plan_bytes: usize,
    used: u64,
}

impl CachedShape {
    /// Returns the entry of `row` if it is `current`; otherwise replaces it by the result of `compute`.
    pub(super) fn get_or_compute(
        &mut self,
        row: usize,
        current: impl Fn(&CachedPlan) -> bool,
        compute: impl FnOnce() -> CachedPlan,
    ) -> &CachedPlan {
        let Self {
            rows, plan_bytes, ..
        } = self;
        if rows.len() <= row {
            rows.resize_with(row + 1, || None);
        }
        let entry = &mut rows[row];
        if let Some(old) = entry.take_if(|plan| !current(plan)) {
            *plan_bytes -= old.bytes();
        }
        entry.get_or_insert_with(|| {
            let computed = compute();
            *plan_bytes += computed.bytes();
            computed
        })
    }

    fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Option<CachedPlan>>() + self.plan_bytes
    }
}

/// Cached results of victim searches, for the shapes that used them last.
#[derive(Debug, Default)]
pub(super) struct PreemptionCache {
    shapes: FxHashMap<PreemptionCacheKey, CachedShape>,
    uses: u64,
    /// The total size in bytes, as of the last [`Self::keep_within`].
    bytes: usize,
}

impl PreemptionCache {
    /// The maximum number of cached shapes.
    const SHAPES: usize = 32;
    /// The divisor of the total cache budget that gives this cache's share.
    pub(super) const SHARE: usize = 4;

    pub(super) fn shape(&mut self, key: PreemptionCacheKey, rows: usize) -> &mut CachedShape {
        if self.shapes.len() >= Self::SHAPES && !self.shapes.contains_key(&key) {
            self.evict_oldest();
        }
        self.uses += 1;
        let cached = self.shapes.entry(key).or_default();
        cached.used = self.uses;
        if cached.rows.is_empty() {
            cached.rows.reserve_exact(rows);
        }
        cached
    }

    fn evict_oldest(&mut self) {
        let oldest = self.shapes.values().map(|shape| shape.used).min();
        self.shapes.retain(|_, shape| Some(shape.used) != oldest);
    }

    /// Evicts the shapes that were used longest ago until the others take no more than their share of
    /// `budget`; the last one stays.
    pub(super) fn keep_within(&mut self, budget: usize) {
        loop {
            self.bytes = self.shapes.values().map(CachedShape::bytes).sum();
            if self.bytes <= budget / Self::SHARE || self.shapes.len() <= 1 {
                return;
            }
            self.evict_oldest();
        }
    }

    /// Returns the bytes of `budget` that remain for other caches.
    pub(super) fn leaves(&self, budget: usize) -> usize {
        budget - self.bytes.min(budget / Self::SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Signature;
    use crate::state::NodeIndex;

    fn key(priority: i32) -> PreemptionCacheKey {
        PreemptionCacheKey {
            profile: 0,
            owner: 0,
            rules: 0,
            priority,
            shape: Signature::default().finish(),
        }
    }

    fn tried(version: u64, victims: usize) -> CachedPlan {
        let mut plan = Plan::new(NodeIndex(0), Vec::new(), 0);
        plan.victims.reserve_exact(victims);
        CachedPlan {
            version,
            allowances: None,
            plan: Ok(Arc::new(plan)),
        }
    }

    /// Sums up the size of every entry.
    fn plain(cache: &PreemptionCache) -> usize {
        let entries =
            |shape: &CachedShape| shape.rows.iter().flatten().map(CachedPlan::bytes).sum();
        let shapes = cache.shapes.values();
        shapes
            .map(|shape| {
                let plan_bytes: usize = entries(shape);
                shape.rows.capacity() * size_of::<Option<CachedPlan>>() + plan_bytes
            })
            .sum()
    }

    #[test]
    fn cache_size_is_counted_and_bounded() {
        let mut cache = PreemptionCache::default();
        for round in 0..3_u64 {
            for shape in 0..4 {
                let cached = cache.shape(key(shape), 100);
                for row in 0..100 {
                    // Some rows changed since the previous round.
                    let changed = if row % 3 == 0 { round } else { 0 };
                    let victims = usize::try_from(changed).unwrap() * 10;
                    let is = |cached: &CachedPlan| cached.version == changed;
                    assert_eq!(
                        cached
                            .get_or_compute(row, is, || tried(changed, victims))
                            .version,
                        changed
                    );
                }
                cache.keep_within(usize::MAX);
                assert_eq!(cache.bytes, plain(&cache));
            }
        }
        let (four, budget) = (cache.bytes, cache.bytes * PreemptionCache::SHARE);
        cache.keep_within(budget);
        assert_eq!(
            (cache.shapes.len(), cache.leaves(budget)),
            (4, budget - four)
        );
        // The shape that was used longest ago is evicted first, and the last stays whatever it takes.
        cache.shape(key(0), 100);
        cache.keep_within(budget - 1);
        assert_eq!(cache.shapes.len(), 3);
        assert!(!cache.shapes.contains_key(&key(1)) && cache.shapes.contains_key(&key(0)));
        cache.keep_within(0);
        assert_eq!((cache.shapes.len(), cache.bytes), (1, plain(&cache)));
        assert!(cache.shapes.contains_key(&key(0)));
        assert_eq!(
            cache.leaves(8),
            6,
            "no more than its share is taken of others"
        );
    }
}
