//! A tournament tree over rows with a fan-out of sixteen: finds the best key at once and updates a row in a
//! few steps.
//!
//! It has few levels, because a shape that comes back finds its tree out of the CPU cache: a changed row
//! costs one cache line, and usually no other than the few maxima.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Sort key of a row: the largest is the best, and zero means that the row is no candidate.
pub(crate) type Key = u64;

/// The number of children per node.
const FAN: usize = 16;

#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    /// The rows; then, until a level has at most [`FAN`] entries, the largest of each [`FAN`] entries of the
    /// level before.
    levels: Vec<Vec<Key>>,
}

impl Tree {
    /// Builds the tree of these rows.
    pub(super) fn new(rows: Vec<Key>) -> Self {
        let mut out = Self::default();
        let mut level = rows;
        while level.len() > FAN {
            let next = level.chunks(FAN).map(largest).collect();
            out.levels.push(std::mem::replace(&mut level, next));
        }
        out.levels.push(level);
        out
    }

    /// Takes all rows out, so that they can be refilled without allocating.
    pub(super) fn take_rows(&mut self) -> Vec<Key> {
        let first = std::mem::take(self).levels.into_iter().next();
        first.unwrap_or_default()
    }

    /// Extends the tree to `rows` rows; new ones are no candidates.
    pub(super) fn grow(&mut self, rows: usize) {
        let mut length = rows.max(self.rows().len());
        for level in &mut self.levels {
            level.resize(length, 0);
            length = length.div_ceil(FAN);
        }
        while let Some(top) = self.levels.last().filter(|top| top.len() > FAN) {
            self.levels.push(top.chunks(FAN).map(largest).collect());
        }
        if self.levels.is_empty() {
            *self = Self::new(vec![0; rows]);
        }
    }

    /// Returns the keys of all rows.
    pub(super) fn rows(&self) -> &[Key] {
        self.levels.first().map(Vec::as_slice).unwrap_or_default()
    }

    /// Sets the key of one row.
    pub(super) fn set(&mut self, row: usize, key: Key) {
        let Some((rows, above)) = self.levels.split_first_mut() else {
            return;
        };
        let (mut at, mut new) = (row, key);
        let mut old = std::mem::replace(&mut rows[row], key);
        let mut below = rows;
        for level in above {
            at /= FAN;
            let best = level[at];
            let next = if new >= best {
                new
            } else if old == best {
                let end = ((at + 1) * FAN).min(below.len());
                largest(&below[at * FAN..end])
            } else {
                return;
            };
            if next == best {
                return;
            }
            (old, new) = (std::mem::replace(&mut level[at], next), next);
            below = level;
        }
    }

    /// Returns the rows with the `count` largest keys, largest first.
    pub(super) fn top(&self, count: usize) -> Vec<usize> {
        let entries = |level: usize, range: Range<usize>| {
            let keys = &self.levels[level][range.clone()];
            let numbered = keys.iter().copied().zip(range);
            numbered.map(move |(key, at)| (key, Reverse(level), Reverse(at)))
        };
        let Some(last) = self.levels.len().checked_sub(1) else {
            return Vec::new();
        };
        let mut open: BinaryHeap<_> = entries(last, 0..self.levels[last].len()).collect();
        let mut out = Vec::with_capacity(count);
        while let Some((key, Reverse(level), Reverse(at))) = open.pop()
            && key > 0
            && out.len() < count
        {
            match level.checked_sub(1) {
                None => out.push(at),
                Some(below) => open.extend(entries(below, self.under(below, at))),
            }
        }
        out
    }

    /// Returns the row with the largest key among `rows` without those that `skips`; `None` if all others are
    /// zero.
    pub(super) fn best_within(
        &self,
        rows: Range<usize>,
        skips: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut best = (0, None);
        let (mut level, mut rest) = (0, rows);
        // Blocks that are whole on the next level are searched there, and first, because they cover more.
        let mut edges = Vec::new();
        while level + 1 < self.levels.len() && rest.len() > FAN {
            let whole = rest.start.div_ceil(FAN)..rest.end / FAN;
            edges.push((level, rest.start..whole.start * FAN));
            edges.push((level, whole.end * FAN..rest.end));
            (level, rest) = (level + 1, whole);
        }
        self.search(level, rest, &skips, &mut best);
        for (level, edge) in edges {
            self.search(level, edge, &skips, &mut best);
        }
        best.1
    }

    fn search(
        &self,
        level: usize,
        range: Range<usize>,
        skips: &impl Fn(usize) -> bool,
        best: &mut (Key, Option<usize>),
    ) {
        for index in range {
            let key = self.levels[level][index];
            if key <= best.0 {
                continue;
            }
            match level.checked_sub(1) {
                Some(below) => self.search(below, self.under(below, index), skips, best),
                None if skips(index) => {}
                None => *best = (key, Some(index)),
            }
        }
    }

    /// Returns the entries of `level` that entry `at` of the level above is the largest of.
    fn under(&self, level: usize, at: usize) -> Range<usize> {
        at * FAN..((at + 1) * FAN).min(self.levels[level].len())
    }

    /// Returns the approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let keys: usize = self.levels.iter().map(Vec::capacity).sum();
        size_of::<Key>() * keys
    }

    /// Returns the first row with the largest key; `None` if all are zero.
    pub(super) fn best(&self) -> Option<usize> {
        let (top, below) = self.levels.split_last()?;
        let best = largest(top);
        if best == 0 {
            return None;
        }
        let mut index = top.iter().position(|key| *key == best)?;
        for level in below.iter().rev() {
            let start = index * FAN;
            let under = &level[start..(start + FAN).min(level.len())];
            index = start + under.iter().position(|key| *key == best)?;
        }
        Some(index)
    }
}

fn largest(keys: &[Key]) -> Key {
    keys.iter().copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn best_is_the_first_largest_after_any_changes(
            start in prop::collection::vec(0_u64..5, 1..700),
            changes in prop::collection::vec((0_usize..700, 0_u64..5), 0..60),
            more in 0_usize..40,
        ) {
            let mut rows = start.clone();
            let mut tree = Tree::new(start);
            rows.resize(rows.len() + more, 0);
            tree.grow(rows.len());
            for (row, key) in changes {
                let row = row % rows.len();
                rows[row] = key;
                tree.set(row, key);
                prop_assert_eq!(tree.rows(), &rows[..]);
                let best = rows.iter().max().copied().unwrap_or(0);
                let expected = (best > 0).then(|| rows.iter().position(|key| *key == best)).flatten();
                prop_assert_eq!(tree.best(), expected);
                let mut ranked: Vec<usize> = (0..rows.len()).filter(|row| rows[*row] > 0).collect();
                ranked.sort_by_key(|row| Reverse(rows[*row]));
                ranked.truncate(3);
                let keys = |rows: &[u64], of: Vec<usize>| -> Vec<u64> {
                    of.into_iter().map(|row| rows[row]).collect()
                };
                let top = tree.top(3);
                let distinct: std::collections::BTreeSet<usize> = top.iter().copied().collect();
                prop_assert_eq!(distinct.len(), top.len());
                prop_assert_eq!(keys(&rows, top), keys(&rows, ranked));
                let (from, to) = (row / 3, rows.len() - (rows.len() - row) / 3);
                let within = tree.best_within(from..to, |row| row % 3 == 1);
                let expected = (from..to).filter(|row| row % 3 != 1).map(|row| rows[row]).max();
                let best_key = within.map_or(0, |row| rows[row]);
                prop_assert_eq!(best_key, expected.unwrap_or(0));
                prop_assert!(within.is_none_or(|row| (from..to).contains(&row) && row % 3 != 1));
            }
        }
    }

    #[test]
    fn an_empty_tree_has_no_best() {
        assert_eq!(Tree::default().best(), None);
        let tree = Tree::new(Vec::new());
        assert_eq!(tree.best(), None);
        assert!(tree.top(1).is_empty());
    }
}
