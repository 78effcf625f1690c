//! The cache of evaluations and preemption plans that pods of one shape share.

use super::class::{Evaluation, mix};
use super::preemption_cache::PreemptionCache;
use crate::framework::ShapeId;
use rustc_hash::FxHashMap;

/// Evaluations by profile and shape, and cached preemption plans.
///
/// Invariant: `bytes` is the sum of the sizes that the evaluations were last counted with, and each was
/// counted after its last use.
#[derive(Debug)]
pub struct ClassCache {
    /// True if pods may share evaluations.
    pub(super) enabled: bool,
    pub(super) by_shape: FxHashMap<(usize, ShapeId), Evaluation>,
    /// Cached preemption plans.
    pub(super) preemption_cache: PreemptionCache,
    /// The total size of the evaluations in bytes.
    pub(super) bytes: usize,
    /// Number of times that an evaluation was used.
    pub(super) uses: u64,
    /// Number of times that an evaluation selected a node that the pod's own check refused.
    pub(super) mismatches: u64,
}

impl Default for ClassCache {
    fn default() -> Self {
        Self {
            enabled: true,
            by_shape: FxHashMap::default(),
            preemption_cache: PreemptionCache::default(),
            bytes: 0,
            uses: 0,
            mismatches: 0,
        }
    }
}

impl ClassCache {
    /// Removes everything: verdicts may have changed in ways that the row versions do not show.
    pub(crate) fn clear(&mut self) {
        self.by_shape.clear();
        self.bytes = 0;
        self.preemption_cache = PreemptionCache::default();
    }

    /// Returns true if the counted sizes are right; for tests.
    #[must_use]
    pub fn memory_balances(&self) -> bool {
        let counted: usize = self.by_shape.values().map(|class| class.counted).sum();
        let mut classes = self.by_shape.values();
        counted == self.bytes && classes.all(|class| class.counted == class.bytes())
    }

    /// Returns how often a shared evaluation selected a node that the pod's own check refused.
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// Evicts evaluations beyond `max_classes` and `budget` bytes; at least one stays.
    pub(super) fn evict(&mut self, max_classes: usize, budget: usize) {
        while self.by_shape.len() > 1 && (self.by_shape.len() > max_classes || self.bytes > budget)
        {
            // Evict the older one of two random entries: if more shapes alternate than fit, the oldest is the
            // one needed next.
            let draw = |turn: u64| {
                let number = mix(self.uses ^ (turn << 63)) % self.by_shape.len() as u64;
                let mut classes = self.by_shape.iter();
                classes.nth(usize::try_from(number).unwrap_or(0))
            };
            let drawn = [draw(0), draw(1)].into_iter().flatten();
            let oldest = drawn.min_by_key(|(_, class)| class.used);
            let Some(key) = oldest.map(|(key, _)| *key) else {
                return;
            };
            if let Some(class) = self.by_shape.remove(&key) {
                self.bytes -= class.counted;
            }
        }
    }
}
