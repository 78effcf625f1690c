//! Pods of one shape share verdicts, scores and the order of candidates.
//!
//! An evaluation is exact for the row versions it has seen. Before each use it re-evaluates the
//! rows that changed since; a fresh evaluation of every row is the same thing with an empty past,
//! which is what makes the cached answer comparable with the exhaustive one.

use super::diagnosis::{RowVerdict, Tally};
use super::grouped::Grouped;
use super::measure::Fared;
use super::scope::{Looked, Scope};
use super::special::Specials;
use super::stage;
use super::tree::{Key, Tree};
use crate::framework::{Code, Instance, Normalize};
use crate::state::NodeIndex;
use koord_model::numa::NumaMask;
use rayon::prelude::*;

/// What is known of one score plugin's raw scores.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) plugin: Instance,
    pub(super) weight: i64,
    pub(super) kind: Normalize,
    /// The largest raw score of a feasible row, at least 0, and how many rows have it.
    pub(super) max: i64,
    at_max: usize,
    /// How many feasible rows have a raw score other than 0.
    nonzero: usize,
}

impl Column {
    /// Whether scores are divided by the largest one. A raw score of 0 stands for the same whatever
    /// the largest is.
    pub(super) fn is_relative(&self) -> bool {
        matches!(self.kind, Normalize::Max | Normalize::MaxReversed)
    }

    /// What a raw score contributes to its row's total; nothing yet for `Normalize::Custom`.
    pub(super) fn share(&self, raw: i64) -> i64 {
        match self.kind {
            Normalize::Custom => 0,
            kind => self.weight * normal(kind, raw, self.max),
        }
    }
}

/// A raw score brought to 0..=100 by a built-in rule.
pub(super) fn normal(kind: Normalize, raw: i64, max: i64) -> i64 {
    let score = match kind {
        Normalize::None | Normalize::Custom => raw,
        Normalize::Max if max == 0 => raw,
        Normalize::Max => raw * 100 / max,
        Normalize::MaxReversed if max == 0 => 100,
        Normalize::MaxReversed => 100 - raw * 100 / max,
    };
    score.clamp(0, 100)
}

/// A set of rows.
#[derive(Debug, Default)]
pub(super) struct Releasing {
    rows: Vec<bool>,
    count: usize,
}

impl Releasing {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn contains(&self, node: NodeIndex) -> bool {
        self.rows.get(node.row()).copied().unwrap_or(false)
    }

    fn set(&mut self, node: NodeIndex, is: bool) {
        let before = std::mem::replace(&mut self.rows[node.row()], is);
        self.count = self.count + usize::from(is) - usize::from(before);
    }
}

/// Verdicts and scores of all rows for one shape of pod.
#[derive(Debug, Default)]
pub(crate) struct Evaluation {
    position: u64,
    seen: Vec<u64>,
    verdicts: Vec<RowVerdict>,
    /// The list of nodes that pods of this shape were restricted to, last time.
    only: Option<Vec<NodeIndex>>,
    /// Rows whose pods this shape may replace, when it may replace any.
    pub(super) releasing: Releasing,
    pub(super) tally: Tally,
    pub(super) columns: Vec<Column>,
    /// Raw scores by row, then by column: a row that changes is changed in one place.
    raws: Vec<i64>,
    pub(super) tree: Tree,
    /// The same by group, where volatile plugins score by groups.
    pub(super) grouped: Option<Box<Grouped>>,
    /// What pods that share all of this but whose place they may take find on a few rows.
    pub(super) specials: Specials,
    pub(super) fared: Fared,
    /// How many rows fit.
    fitting: usize,
    /// When it was last used, and what it took then, for eviction.
    pub(super) used: u64,
    pub(super) counted: usize,
}

impl Evaluation {
    /// Judges and scores every row.
    pub(super) fn fresh(scope: &Scope<'_>) -> Self {
        let mut out = Self::default();
        out.rebuild(scope);
        out
    }

    /// Brings verdicts and scores up to date.
    pub(super) fn refresh(&mut self, scope: &Scope<'_>) {
        self.take_off(scope);
        let rows = scope.nodes().rows();
        let same_scores = self.columns.len() == scope.prepared.scores.len()
            && self
                .columns
                .iter()
                .zip(&scope.prepared.scores)
                .all(|(c, s)| c.plugin == s.0);
        let same = same_scores
            && self.verdicts.len() <= rows
            && self.only.is_some() == scope.prepared.only.is_some();
        let changed = scope.nodes().changed_since(self.position);
        let (Some(changed), true) = (changed, same) else {
            return self.rebuild(scope);
        };
        self.grow(rows);
        let mut rows = Vec::new();
        if self.only != scope.prepared.only {
            let old = std::mem::replace(&mut self.only, scope.prepared.only.clone());
            rows.extend(either(&old, &self.only));
            // What shapes found on their rows was found under the old list.
            self.specials = Specials::default();
        }
        for node in changed {
            if self.seen[node.row()] != scope.nodes().version(node) {
                self.seen[node.row()] = scope.nodes().version(node);
                rows.push(node);
            }
        }
        self.position = scope.nodes().position();
        if self.only.is_some() {
            rows.retain(|node| node.row() < self.verdicts.len());
            rows.sort_unstable();
            rows.dedup();
        }
        if rows.is_empty() {
            return;
        }
        let mut raws = Vec::with_capacity(self.columns.len());
        self.replace(scope, &rows, |evaluation, at, _| {
            raws.clear();
            let looked = scope.look(rows[at], &mut raws);
            evaluation.fared.looked(&looked.verdict);
            evaluation.record(rows[at], looked, &raws);
        });
    }

    /// Makes place for rows that were added; they are absent until they are judged.
    fn grow(&mut self, rows: usize) {
        if rows == self.verdicts.len() {
            return;
        }
        self.verdicts.resize_with(rows, RowVerdict::default);
        self.seen.resize(rows, 0);
        self.raws.resize(rows * self.columns.len(), 0);
        self.releasing.rows.resize(rows, false);
        self.tree.grow(rows);
        self.grouped = None;
    }

    /// How many bytes it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let row = size_of::<RowVerdict>() + size_of::<u64>() + size_of::<bool>();
        let grouped = self.grouped.as_ref().map_or(0, |grouped| grouped.bytes());
        row * self.verdicts.capacity()
            + size_of::<i64>() * self.raws.capacity()
            + self.tree.bytes()
            + grouped
            + self.specials.bytes()
    }

    /// Has `enter` record another verdict for each of `rows`, given its position there and the old
    /// verdict, and orders the candidates anew.
    pub(super) fn replace(
        &mut self,
        scope: &Scope<'_>,
        rows: &[NodeIndex],
        mut enter: impl FnMut(&mut Self, usize, RowVerdict),
    ) {
        let before: Vec<i64> = self.columns.iter().map(|column| column.max).collect();
        for (at, node) in rows.iter().enumerate() {
            let old = self.leave(node.row());
            enter(self, at, old);
        }
        let mut rescaled: Vec<usize> = Vec::new();
        for (at, before) in before.into_iter().enumerate() {
            let column = &self.columns[at];
            if !column.is_relative() {
                continue;
            }
            if column.at_max == 0 && column.max > 0 {
                self.rescan(at);
            }
            let column = &self.columns[at];
            if column.max != before {
                let feasible = |row: &usize| matches!(self.verdicts[*row], RowVerdict::Fits(_));
                let counts = |row: &usize| feasible(row) && self.raw(*row, at) != 0;
                let own = rows.iter().map(|node| node.row()).filter(counts);
                if own.count() < column.nonzero {
                    rescaled.extend((0..self.verdicts.len()).filter(counts));
                }
            }
        }
        if rescaled.len() > self.verdicts.len() / 16 {
            self.rank(scope);
            return;
        }
        for row in rows.iter().map(|node| node.row()).chain(rescaled) {
            let key = self.key(scope, row);
            if let Some(grouped) = &mut self.grouped {
                grouped.set(row, self.tree.rows()[row], key);
            }
            self.tree.set(row, key);
        }
    }

    /// The best node; none when no node fits.
    pub(super) fn best(&mut self, scope: &Scope<'_>) -> Option<NodeIndex> {
        if stage::is_needed(scope, &self.columns) {
            let by_groups = self.best_by_groups(scope);
            return by_groups.unwrap_or_else(|| self.best_staged(scope));
        }
        let row = self.tree.best()?;
        u32::try_from(row).ok().map(NodeIndex)
    }

    /// How many nodes fit, as of the last [`Self::best`].
    pub(super) fn fitting(&self, scope: &Scope<'_>) -> usize {
        if scope.prepared.moving.is_empty() {
            self.fitting
        } else {
            self.fared.left()
        }
    }

    /// What was said of `node`.
    pub(super) fn verdict(&self, node: NodeIndex) -> Option<&RowVerdict> {
        self.verdicts.get(node.row())
    }

    /// The nodes that evicting pods might free.
    pub(super) fn helpable(&self, scope: &Scope<'_>) -> Vec<NodeIndex> {
        let mut nodes = super::diagnosis::helpable(&self.verdicts);
        let stable = nodes.len();
        nodes.extend(
            self.refused_moving(scope)
                .filter_map(|(node, _, rejection)| {
                    (rejection.code == Code::Unschedulable).then_some(node)
                }),
        );
        if nodes.len() > stable {
            nodes.sort_unstable();
        }
        nodes
    }

    /// The NUMA nodes agreed on for `node`.
    pub(super) fn numa(&self, node: NodeIndex) -> Option<NumaMask> {
        match self.verdicts.get(node.row()) {
            Some(RowVerdict::Fits(numa)) => *numa,
            _ => None,
        }
    }

    fn rebuild(&mut self, scope: &Scope<'_>) {
        let nodes = scope.nodes();
        let rows = nodes.rows();
        self.position = nodes.position();
        self.only.clone_from(&scope.prepared.only);
        self.releasing = Releasing {
            rows: vec![false; rows],
            count: 0,
        };
        self.specials = Specials::default();
        self.fitting = 0;
        self.tally = Tally::default();
        self.verdicts.clear();
        self.verdicts.resize_with(rows, RowVerdict::default);
        self.seen.clear();
        self.seen.resize(rows, 0);
        self.columns = columns(scope);
        self.raws.clear();
        self.raws.resize(rows * self.columns.len(), 0);
        for (row, seen) in (0_u32..).zip(&mut self.seen) {
            *seen = nodes.version(NodeIndex(row));
        }
        // Rows are judged by several threads and recorded in order: no result depends on timing.
        let threads = rayon::current_num_threads();
        if rows < scope.parallel_rows || threads < 2 {
            for row in 0..u32::try_from(rows).unwrap_or(u32::MAX) {
                self.enter(scope, NodeIndex(row));
            }
        } else {
            let last = u32::try_from(rows).unwrap_or(u32::MAX);
            let part = rows.div_ceil(4 * threads);
            let starts: Vec<u32> = (0..last).step_by(part).collect();
            let part = u32::try_from(part).unwrap_or(u32::MAX);
            let looked: Vec<(Vec<Looked>, Vec<i64>)> = starts
                .par_iter()
                .map(|start| {
                    let mut raws = Vec::new();
                    let looked = (*start..start.saturating_add(part).min(last))
                        .map(|row| scope.look(NodeIndex(row), &mut raws))
                        .collect();
                    (looked, raws)
                })
                .collect();
            for (start, (looked, raws)) in starts.iter().zip(looked) {
                let mut raws = &raws[..];
                for (row, looked) in (*start..).zip(looked) {
                    let fits = matches!(looked.verdict, RowVerdict::Fits(_));
                    let own = if fits { self.columns.len() } else { 0 };
                    let (own, rest) = raws.split_at(own);
                    self.fared.looked(&looked.verdict);
                    self.record(NodeIndex(row), looked, own);
                    raws = rest;
                }
            }
        }
        self.rank(scope);
    }

    fn leave(&mut self, row: usize) -> RowVerdict {
        let verdict = std::mem::take(&mut self.verdicts[row]);
        match &verdict {
            RowVerdict::Absent => {}
            RowVerdict::Refused(plugin, rejection) => self.tally.remove(*plugin, rejection),
            RowVerdict::Fits(_) => {
                self.fitting -= 1;
                let width = self.columns.len();
                let raws = &self.raws[row * width..(row + 1) * width];
                for (column, raw) in self.columns.iter_mut().zip(raws) {
                    column.at_max -= usize::from(*raw == column.max);
                    column.nonzero -= usize::from(*raw != 0);
                }
            }
        }
        verdict
    }

    fn enter(&mut self, scope: &Scope<'_>, node: NodeIndex) {
        let mut raws = Vec::with_capacity(self.columns.len());
        let looked = scope.look(node, &mut raws);
        self.fared.looked(&looked.verdict);
        self.record(node, looked, &raws);
    }

    /// Takes in what was found of one row.
    pub(super) fn record(&mut self, node: NodeIndex, looked: Looked, raws: &[i64]) {
        let row = node.row();
        self.releasing.set(node, looked.releases);
        match &looked.verdict {
            RowVerdict::Absent => {}
            RowVerdict::Refused(plugin, rejection) => self.tally.add(*plugin, rejection),
            RowVerdict::Fits(_) => {
                self.fitting += 1;
                self.raws_of_mut(node).copy_from_slice(raws);
                for (column, raw) in self.columns.iter_mut().zip(raws) {
                    if *raw > column.max {
                        column.max = *raw;
                        column.at_max = 0;
                    }
                    column.at_max += usize::from(*raw == column.max);
                    column.nonzero += usize::from(*raw != 0);
                }
            }
        }
        self.verdicts[row] = looked.verdict;
    }

    /// Finds the largest raw score of column `at` anew.
    fn rescan(&mut self, at: usize) {
        let (mut max, mut at_max) = (0, self.fitting);
        if self.columns[at].nonzero > 0 {
            at_max = 0;
            for node in super::diagnosis::feasible(&self.verdicts) {
                let raw = self.raw(node.row(), at);
                if raw > max {
                    (max, at_max) = (raw, 0);
                }
                at_max += usize::from(raw == max);
            }
        }
        (self.columns[at].max, self.columns[at].at_max) = (max, at_max);
    }

    /// The raw score of `row` in column `at`.
    pub(super) fn raw(&self, row: usize, at: usize) -> i64 {
        self.raws[row * self.columns.len() + at]
    }

    /// The raw scores of a row, by column.
    pub(super) fn raws_of(&self, node: NodeIndex) -> &[i64] {
        let width = self.columns.len();
        &self.raws[node.row() * width..(node.row() + 1) * width]
    }

    /// The same, to be changed.
    pub(super) fn raws_of_mut(&mut self, node: NodeIndex) -> &mut [i64] {
        let width = self.columns.len();
        &mut self.raws[node.row() * width..(node.row() + 1) * width]
    }

    /// Recomputes every total.
    fn rank(&mut self, scope: &Scope<'_>) {
        let keys: Vec<Key> = (0..self.verdicts.len())
            .map(|row| self.key(scope, row))
            .collect();
        self.tree.rebuild(keys.into_iter());
        self.grouped = None;
    }

    /// How many rows it has.
    pub(super) fn rows(&self) -> usize {
        self.verdicts.len()
    }

    /// Orders by total score, then by a number drawn from the seed and the row's version: ties are
    /// spread, and drawn again whenever a node changes, yet the same input gives the same order.
    fn key(&self, scope: &Scope<'_>, row: usize) -> Key {
        if !matches!(self.verdicts[row], RowVerdict::Fits(_)) {
            return 0;
        }
        let width = self.columns.len();
        let raws = &self.raws[row * width..(row + 1) * width];
        let shares = self.columns.iter().zip(raws);
        let total: i64 = shares.map(|(column, raw)| column.share(*raw)).sum();
        key(total, tie(scope.seed, self.seen[row], row))
    }
}

/// The columns of an evaluation, empty.
pub(super) fn columns(scope: &Scope<'_>) -> Vec<Column> {
    let scores = scope.prepared.scores.iter();
    scores
        .map(|(plugin, weight, _)| Column {
            plugin: *plugin,
            weight: *weight,
            kind: scope.plugins[*plugin].normalization(),
            max: 0,
            at_max: 0,
            nonzero: 0,
        })
        .collect()
}

/// A total score and a tie-breaking number below 2^32, as a key that is never zero.
pub(super) fn key(total: i64, tie: u64) -> Key {
    let total = u64::try_from(total)
        .unwrap_or(0)
        .min(u64::from(u32::MAX) - 1);
    ((total + 1) << 32) | tie
}

/// The nodes that are in one of the sorted lists only.
fn either(a: &Option<Vec<NodeIndex>>, b: &Option<Vec<NodeIndex>>) -> Vec<NodeIndex> {
    let list = |list: &Option<Vec<NodeIndex>>| list.clone().unwrap_or_default();
    let (a, b) = (list(a), list(b));
    let missing = |from: &[NodeIndex], node: &NodeIndex| from.binary_search(node).is_err();
    let left = a.iter().filter(|node| missing(&b, node));
    left.chain(b.iter().filter(|node| missing(&a, node)))
        .copied()
        .collect()
}

/// What decides between equally good rows.
pub(super) fn tie(seed: u64, version: u64, row: usize) -> u64 {
    mix(seed ^ version.rotate_left(24) ^ row as u64) >> 32
}

/// A well-mixed function of `x` (the finaliser of SplitMix64).
pub(super) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
