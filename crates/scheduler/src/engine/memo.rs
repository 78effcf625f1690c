//! Cache of preemption plans on nodes that have not changed since.

use super::preempt::Plan;
use crate::framework::{Instance, Rejection, ShapeId};
use crate::state::PodInfo;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The key of cached plans: pods of one shape and priority, under one version of the rules.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct MemoKey {
    pub(super) profile: usize,
    pub(super) owner: Instance,
    pub(super) rules: u64,
    pub(super) priority: i32,
    pub(super) shape: ShapeId,
}

/// The result of a victim search on one node.
#[derive(Debug)]
pub(super) struct Tried {
    /// The version of the node that the result is valid for.
    pub(super) version: u64,
    /// The version of the disruption budgets' allowances, if a possible victim has a budget.
    pub(super) allowances: Option<u64>,
    pub(super) plan: Result<Arc<Plan>, Rejection>,
}

impl Tried {
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
pub(super) struct Remembered {
    rows: Vec<Option<Tried>>,
    /// The size in bytes of the entries outside their rows.
    beside: usize,
    used: u64,
}

impl Remembered {
    /// Returns the entry of `row` if it is `current`; otherwise replaces it by the result of `look`.
    pub(super) fn known(
        &mut self,
        row: usize,
        current: impl Fn(&Tried) -> bool,
        look: impl FnOnce() -> Tried,
    ) -> &Tried {
        let Self { rows, beside, .. } = self;
        if rows.len() <= row {
            rows.resize_with(row + 1, || None);
        }
        let entry = &mut rows[row];
        if let Some(old) = entry.take_if(|known| !current(known)) {
            *beside -= old.bytes();
        }
        entry.get_or_insert_with(|| {
            let found = look();
            *beside += found.bytes();
            found
        })
    }

    fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Option<Tried>>() + self.beside
    }
}

/// Cached results of victim searches, for the shapes that used them last.
#[derive(Debug, Default)]
pub(super) struct Memo {
    shapes: FxHashMap<MemoKey, Remembered>,
    uses: u64,
    /// The total size in bytes, as of the last [`Self::keep_within`].
    bytes: usize,
}

impl Memo {
    /// The maximum number of cached shapes.
    const SHAPES: usize = 32;
    /// The divisor of the total cache budget that gives this cache's share.
    pub(super) const SHARE: usize = 4;

    pub(super) fn of(&mut self, key: MemoKey, rows: usize) -> &mut Remembered {
        if self.shapes.len() >= Self::SHAPES && !self.shapes.contains_key(&key) {
            self.forget_oldest();
        }
        self.uses += 1;
        let known = self.shapes.entry(key).or_default();
        known.used = self.uses;
        if known.rows.is_empty() {
            known.rows.reserve_exact(rows);
        }
        known
    }

    fn forget_oldest(&mut self) {
        let oldest = self.shapes.values().map(|known| known.used).min();
        self.shapes.retain(|_, known| Some(known.used) != oldest);
    }

    /// Evicts the shapes that were used longest ago until the others take no more than their share of
    /// `budget`; the last one stays.
    pub(super) fn keep_within(&mut self, budget: usize) {
        loop {
            self.bytes = self.shapes.values().map(Remembered::bytes).sum();
            if self.bytes <= budget / Self::SHARE || self.shapes.len() <= 1 {
                return;
            }
            self.forget_oldest();
        }
    }

    /// Returns what remains of `budget` for other caches.
    pub(super) fn leaves(&self, budget: usize) -> usize {
        budget - self.bytes.min(budget / Self::SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Signature;
    use crate::state::NodeIndex;

    fn key(priority: i32) -> MemoKey {
        MemoKey {
            profile: 0,
            owner: 0,
            rules: 0,
            priority,
            shape: Signature::default().finish(),
        }
    }

    fn tried(version: u64, victims: usize) -> Tried {
        let mut plan = Plan::new(NodeIndex(0), Vec::new(), 0);
        plan.victims.reserve_exact(victims);
        Tried {
            version,
            allowances: None,
            plan: Ok(Arc::new(plan)),
        }
    }

    /// Sums up the size of every entry.
    fn plain(memo: &Memo) -> usize {
        let entries = |known: &Remembered| known.rows.iter().flatten().map(Tried::bytes).sum();
        let shapes = memo.shapes.values();
        shapes
            .map(|known| {
                let beside: usize = entries(known);
                known.rows.capacity() * size_of::<Option<Tried>>() + beside
            })
            .sum()
    }

    #[test]
    fn what_is_remembered_is_counted_and_kept_within_its_share() {
        let mut memo = Memo::default();
        for round in 0..3_u64 {
            for shape in 0..4 {
                let known = memo.of(key(shape), 100);
                for row in 0..100 {
                    // Some rows changed since the previous round.
                    let changed = if row % 3 == 0 { round } else { 0 };
                    let victims = usize::try_from(changed).unwrap() * 10;
                    let is = |known: &Tried| known.version == changed;
                    assert_eq!(
                        known.known(row, is, || tried(changed, victims)).version,
                        changed
                    );
                }
                memo.keep_within(usize::MAX);
                assert_eq!(memo.bytes, plain(&memo));
            }
        }
        let (four, budget) = (memo.bytes, memo.bytes * Memo::SHARE);
        memo.keep_within(budget);
        assert_eq!((memo.shapes.len(), memo.leaves(budget)), (4, budget - four));
        // The shape that was used longest ago is evicted first, and the last stays whatever it takes.
        memo.of(key(0), 100);
        memo.keep_within(budget - 1);
        assert_eq!(memo.shapes.len(), 3);
        assert!(!memo.shapes.contains_key(&key(1)) && memo.shapes.contains_key(&key(0)));
        memo.keep_within(0);
        assert_eq!((memo.shapes.len(), memo.bytes), (1, plain(&memo)));
        assert!(memo.shapes.contains_key(&key(0)));
        assert_eq!(
            memo.leaves(8),
            6,
            "no more than its share is taken of others"
        );
    }
}
