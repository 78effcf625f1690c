//! Evaluations and searches for victims that pods of one shape share.

use super::class::{Evaluation, mix};
use super::memo::Memo;
use crate::framework::ShapeId;
use rustc_hash::FxHashMap;

/// Evaluations by profile and shape, and what searches for victims found.
///
/// Invariant: `bytes` is the sum of what the evaluations were counted with, and each was counted after its last use.
#[derive(Debug)]
pub struct ClassCache {
    /// Whether pods may share evaluations.
    pub(super) enabled: bool,
    pub(super) by_shape: FxHashMap<(usize, ShapeId), Evaluation>,
    /// What searches for victims found.
    pub(super) memo: Memo,
    /// How many bytes the evaluations take together.
    pub(super) bytes: usize,
    /// How often an evaluation was used.
    pub(super) uses: u64,
    /// How often an evaluation named a node that the pod's own check refused.
    pub(super) mismatches: u64,
}

impl Default for ClassCache {
    fn default() -> Self {
        Self {
            enabled: true,
            by_shape: FxHashMap::default(),
            memo: Memo::default(),
            bytes: 0,
            uses: 0,
            mismatches: 0,
        }
    }
}

impl ClassCache {
    /// Drops everything: verdicts may have changed in ways that no row's version tells.
    pub(crate) fn clear(&mut self) {
        self.by_shape.clear();
        self.bytes = 0;
        self.memo = Memo::default();
    }

    /// What is counted of shared answers must be what they take; for tests.
    #[must_use]
    pub fn memory_balances(&self) -> bool {
        let counted: usize = self.by_shape.values().map(|class| class.counted).sum();
        let mut classes = self.by_shape.values();
        counted == self.bytes && classes.all(|class| class.counted == class.bytes())
    }

    /// How often a shared evaluation named a node that the pod's own check refused.
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// Drops evaluations beyond `max_classes` and `budget` bytes; one stays whatever it takes.
    pub(super) fn evict(&mut self, max_classes: usize, budget: usize) {
        while self.by_shape.len() > 1 && (self.by_shape.len() > max_classes || self.bytes > budget)
        {
            // The older one of two at random: where more shapes take turns than have room, the oldest
            // is the one that comes next.
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
