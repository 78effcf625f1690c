//! A tournament tree over rows: the best key in O(1), one row changed in O(log rows).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Zero means: no candidate.
pub(crate) type Key = u64;

#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    /// `keys[width..]` are the rows, `keys[1]` is the best.
    keys: Vec<Key>,
    width: usize,
}

impl Tree {
    /// Replaces all rows.
    pub(super) fn rebuild(&mut self, rows: impl ExactSizeIterator<Item = Key>) {
        self.width = rows.len().next_power_of_two();
        self.keys.clear();
        self.keys.resize(2 * self.width, 0);
        for (row, key) in rows.enumerate() {
            self.keys[self.width + row] = key;
        }
        for at in (1..self.width).rev() {
            self.keys[at] = self.keys[2 * at].max(self.keys[2 * at + 1]);
        }
    }

    /// Makes place for so many rows, without a candidate among those that are new.
    pub(super) fn grow(&mut self, rows: usize) {
        if rows > self.width {
            let mut keys = self.rows().to_vec();
            keys.resize(rows.next_power_of_two(), 0);
            self.rebuild(keys.into_iter());
        }
    }

    /// All rows, and zeros after them.
    pub(super) fn rows(&self) -> &[Key] {
        self.keys.get(self.width..).unwrap_or_default()
    }

    /// Changes one row.
    pub(super) fn set(&mut self, row: usize, key: Key) {
        let mut at = self.width + row;
        if self.keys[at] == key {
            return;
        }
        self.keys[at] = key;
        while at > 1 {
            at /= 2;
            let best = self.keys[2 * at].max(self.keys[2 * at + 1]);
            if self.keys[at] == best {
                return;
            }
            self.keys[at] = best;
        }
    }

    /// The rows with the `count` largest keys, largest first.
    pub(super) fn top(&self, count: usize) -> Vec<usize> {
        let mut open = BinaryHeap::from([(self.keys.get(1).copied().unwrap_or(0), Reverse(1))]);
        let mut out = Vec::with_capacity(count);
        while let Some((key, Reverse(at))) = open.pop()
            && key > 0
            && out.len() < count
        {
            if at >= self.width {
                out.push(at - self.width);
            } else {
                open.extend([2 * at, 2 * at + 1].map(|at| (self.keys[at], Reverse(at))));
            }
        }
        out
    }

    /// The row with the largest key among `rows`, those aside that `skips`; none when all others are
    /// zero.
    pub(super) fn best_within(
        &self,
        rows: Range<usize>,
        skips: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        // The largest subtrees that together are the range.
        let mut open = BinaryHeap::new();
        let (mut from, mut to) = (self.width + rows.start, self.width + rows.end);
        while from < to {
            if from % 2 == 1 {
                open.push((self.keys[from], Reverse(from)));
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                open.push((self.keys[to], Reverse(to)));
            }
            (from, to) = (from / 2, to / 2);
        }
        while let Some((key, Reverse(at))) = open.pop()
            && key > 0
        {
            if at < self.width {
                open.extend([2 * at, 2 * at + 1].map(|at| (self.keys[at], Reverse(at))));
            } else if !skips(at - self.width) {
                return Some(at - self.width);
            }
        }
        None
    }

    /// How many bytes it takes, about.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Key>() * self.keys.capacity()
    }

    /// The row with the largest key, the first of equals; none when all are zero.
    pub(super) fn best(&self) -> Option<usize> {
        let best = *self.keys.get(1)?;
        if best == 0 {
            return None;
        }
        let mut at = 1;
        while at < self.width {
            at = if self.keys[2 * at] == best {
                2 * at
            } else {
                2 * at + 1
            };
        }
        Some(at - self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn best_is_the_first_largest_after_any_changes(
            start in prop::collection::vec(0_u64..5, 1..40),
            changes in prop::collection::vec((0_usize..40, 0_u64..5), 0..60),
        ) {
            let mut rows = start.clone();
            let mut tree = Tree::default();
            tree.rebuild(start.into_iter());
            for (row, key) in changes {
                let row = row % rows.len();
                rows[row] = key;
                tree.set(row, key);
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
                let found = within.map_or(0, |row| rows[row]);
                prop_assert_eq!(found, expected.unwrap_or(0));
                prop_assert!(within.is_none_or(|row| (from..to).contains(&row) && row % 3 != 1));
            }
        }
    }

    #[test]
    fn an_empty_tree_has_no_best() {
        let mut tree = Tree::default();
        assert_eq!(tree.best(), None);
        tree.rebuild(std::iter::empty::<Key>().collect::<Vec<_>>().into_iter());
        assert_eq!(tree.best(), None);
    }
}
