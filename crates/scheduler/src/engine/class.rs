//! Evaluations: verdicts, scores and candidate order that pods of one shape share.
//!
//! An evaluation is exact for the row versions that it was computed from. Before each use, the rows that
//! changed since are evaluated again. A fresh evaluation of every row is the same computation starting from
//! nothing, which makes the cached result comparable with the exhaustive one.

use super::batch::Batch;
use super::measure::FilterStats;
use super::parallel::ParallelEvaluation;
use super::row_groups::RowGroups;
use super::row_overlay::RowOverlays;
use super::scope::{RowResult, Scope};
use super::second_stage;
use super::tree::{Key, Tree};
use super::verdicts::Verdicts;
use crate::framework::{Code, Instance, Normalize, RowVerdict};
use crate::state::NodeIndex;
use koord_model::numa::NumaMask;
use std::cmp::Ordering;

/// The raw scores of one score plugin.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) plugin: Instance,
    pub(super) weight: i64,
    pub(super) kind: Normalize,
    /// Raw scores by row, if the contribution of a score depends on other rows; empty while all are 0.
    raws: Vec<i64>,
    /// The largest raw score of a feasible row, at least 0.
    pub(super) max: i64,
    at_max: usize,
    /// The number of feasible rows whose raw score is not 0.
    nonzero: usize,
}

impl Column {
    /// Returns true if scores are divided by the largest one. A raw score of 0 contributes the same whatever
    /// the largest is.
    pub(super) fn is_relative(&self) -> bool {
        matches!(self.kind, Normalize::Max | Normalize::MaxReversed)
    }

    /// Returns true if the contribution of a raw score depends on no other row.
    fn is_fixed(&self) -> bool {
        self.kind == Normalize::None
    }

    /// Returns what a raw score contributes to its row's total; 0 for `Normalize::Custom`, which is added
    /// later.
    pub(super) fn share(&self, raw: i64) -> i64 {
        match self.kind {
            Normalize::Custom => 0,
            kind => self.weight * normal(kind, raw, self.max),
        }
    }

    /// Returns the raw score of `row`. It is not stored in columns whose contribution depends on no other
    /// row.
    pub(super) fn raw(&self, row: usize) -> i64 {
        self.raws.get(row).copied().unwrap_or(0)
    }

    /// Adds a row that fits, with its raw score; `rows` is the total number of rows.
    fn enter(&mut self, row: usize, raw: i64, rows: usize) {
        if self.is_relative() {
            if raw > self.max {
                (self.max, self.at_max) = (raw, 0);
            }
            self.at_max += usize::from(raw == self.max && raw > 0);
            self.nonzero += usize::from(raw != 0);
        }
        if let Some(stored) = self.raws.get_mut(row) {
            *stored = raw;
        } else if raw != 0 {
            self.raws.resize(rows, 0);
            self.raws[row] = raw;
        }
    }

    /// Appends the `rows` rows of `other` after the `own` rows of this column.
    pub(super) fn append(&mut self, own: usize, other: &Self, rows: usize) {
        match self.max.cmp(&other.max) {
            Ordering::Less => (self.max, self.at_max) = (other.max, other.at_max),
            Ordering::Equal => self.at_max += other.at_max,
            Ordering::Greater => {}
        }
        self.nonzero += other.nonzero;
        if !other.raws.is_empty() {
            self.raws.resize(own, 0);
            self.raws.extend_from_slice(&other.raws);
        }
        if !self.raws.is_empty() {
            self.raws.resize(own + rows, 0);
        }
    }

    /// Removes a row that fitted.
    fn remove_row(&mut self, row: usize) {
        let raw = self.raw(row);
        if self.is_relative() && raw != 0 {
            self.at_max -= usize::from(raw == self.max);
            self.nonzero -= 1;
        }
    }
}

/// Normalizes a raw score to 0..=100 by a built-in rule.
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

/// A set of rows that needs no memory while it is empty.
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

    /// Adds the rows of `other`, whose first row is `start` here.
    pub(super) fn append(&mut self, start: u32, other: &Self) {
        let members = (0_u32..).zip(&other.rows).filter(|(_, is)| **is);
        for (row, _) in members {
            self.set(NodeIndex(start + row), true);
        }
    }

    fn set(&mut self, node: NodeIndex, is: bool) {
        if !is && self.is_empty() {
            return;
        }
        if self.rows.len() <= node.row() {
            self.rows.resize(node.row() + 1, false);
        }
        let before = std::mem::replace(&mut self.rows[node.row()], is);
        self.count = self.count + usize::from(is) - usize::from(before);
    }
}

/// Verdicts and scores of all rows for one pod shape. There are many shapes, and each is read again when its
/// pods come back: the bytes per row determine how many are cached, and what reading costs.
#[derive(Debug, Default)]
pub(crate) struct Evaluation {
    pub(super) position: u64,
    pub(super) verdicts: Verdicts,
    /// The nodes that pods of this shape were restricted to at the last use.
    pub(super) only: Option<Vec<NodeIndex>>,
    /// Rows on which pods of this shape may take the place of others.
    pub(super) releasing: Releasing,
    pub(super) columns: Vec<Column>,
    /// The sums of the contributions that depend on no other row, by row.
    pub(super) fixed: Vec<i64>,
    pub(super) tree: Tree,
    /// Candidate order by group, if volatile plugins score by groups.
    pub(super) grouped: Option<Box<RowGroups>>,
    /// Overlays of a few rows for pods that differ only in whose place they may take.
    pub(super) overlays: RowOverlays,
    pub(super) filter_stats: FilterStats,
    /// The time of the last use, for cache eviction.
    pub(super) used: u64,
    pub(super) counted: usize,
}

impl Evaluation {
    /// Brings verdicts and scores up to date.
    pub(super) fn refresh(&mut self, scope: &Scope<'_>) {
        self.remove_overlay(scope);
        let rows = scope.nodes().rows();
        let same_scores = self.columns.len() == scope.prepared.scores.len()
            && self
                .columns
                .iter()
                .zip(&scope.prepared.scores)
                .all(|(c, s)| c.plugin == s.0);
        let is_comparable = same_scores
            && self.verdicts.len() <= rows
            && self.only.is_some() == scope.prepared.only.is_some();
        let changed = scope.nodes().changed_since(self.position);
        let (Some(mut changed), true) = (changed, is_comparable) else {
            return self.rebuild(scope);
        };
        self.grow(rows);
        if self.only != scope.prepared.only {
            let old = std::mem::replace(&mut self.only, scope.prepared.only.clone());
            changed.extend(either(&old, &self.only));
            changed.retain(|node| node.row() < rows);
            changed.sort_unstable();
            changed.dedup();
            // The overlays were computed under the old list.
            self.overlays = RowOverlays::default();
        }
        self.position = scope.nodes().position();
        if changed.is_empty() {
            return;
        }
        let mut batches = ParallelEvaluation::new(scope, &changed);
        self.replace(scope, &changed, |evaluation, at| {
            let (batch, within) = batches.at(at);
            evaluation.found(changed[at], batch, within);
        });
    }

    /// Adds rows for new nodes; they are absent until they are evaluated.
    fn grow(&mut self, rows: usize) {
        if rows == self.verdicts.len() {
            return;
        }
        self.verdicts.grow(rows);
        self.fixed.resize(rows, 0);
        for column in self.columns.iter_mut().filter(|c| !c.raws.is_empty()) {
            column.raws.resize(rows, 0);
        }
        self.tree.grow(rows);
        self.grouped = None;
    }

    /// Returns the approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let grouped = self.grouped.as_ref().map_or(0, |grouped| grouped.bytes());
        let raws: usize = self.columns.iter().map(|c| c.raws.capacity()).sum();
        self.verdicts.bytes()
            + self.releasing.rows.capacity()
            + size_of::<i64>() * (self.fixed.capacity() + raws)
            + self.tree.bytes()
            + grouped
            + self.overlays.bytes()
    }

    /// Calls `enter` with each position in `rows` to record a new verdict, then updates the order of
    /// candidates.
    pub(super) fn replace(
        &mut self,
        scope: &Scope<'_>,
        rows: &[NodeIndex],
        mut enter: impl FnMut(&mut Self, usize),
    ) {
        let before: Vec<i64> = self.columns.iter().map(|column| column.max).collect();
        for index in 0..rows.len() {
            enter(self, index);
        }
        let mut rescaled: Vec<usize> = Vec::new();
        for (index, before) in before.into_iter().enumerate() {
            let column = &self.columns[index];
            if !column.is_relative() {
                continue;
            }
            if column.at_max == 0 && column.max > 0 {
                self.rescan(index);
            }
            let column = &self.columns[index];
            if column.max != before {
                let counts = |row: &usize| self.verdicts.fits(*row) && column.raw(*row) != 0;
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
        let scale = Scale::new(&self.columns);
        for row in rows.iter().map(|node| node.row()).chain(rescaled) {
            let key = self.key(scope, &scale, row);
            if let Some(grouped) = &mut self.grouped {
                grouped.set(row, self.tree.rows()[row], key);
            }
            self.tree.set(row, key);
        }
    }

    /// Returns the best node, or `None` if no node fits.
    pub(super) fn best(&mut self, scope: &Scope<'_>) -> Option<NodeIndex> {
        if second_stage::is_needed(scope, &self.columns) {
            let by_groups = self.best_by_groups(scope);
            return by_groups.unwrap_or_else(|| self.best_staged(scope));
        }
        let row = self.tree.best()?;
        u32::try_from(row).ok().map(NodeIndex)
    }

    /// Returns how many nodes fit, as of the last [`Self::best`].
    pub(super) fn fitting(&self, scope: &Scope<'_>) -> usize {
        if scope.needs_second_stage() {
            self.filter_stats.passed_rows()
        } else {
            self.verdicts.fitting()
        }
    }

    /// Returns the verdict on `node`.
    pub(super) fn verdict(&self, node: NodeIndex) -> Option<&RowVerdict> {
        self.verdicts.get(node.row())
    }

    /// Returns the nodes on which evicting pods might help.
    pub(super) fn helpable(&self, scope: &Scope<'_>) -> Vec<NodeIndex> {
        let mut nodes = self.verdicts.helpable();
        let stable = nodes.len();
        nodes.extend(
            self.volatile_refusals(scope)
                .filter_map(|(node, _, rejection)| {
                    (rejection.code == Code::Unschedulable).then_some(node)
                }),
        );
        if nodes.len() > stable {
            nodes.sort_unstable();
        }
        nodes
    }

    /// Returns the refusals of all rows, except those by volatile plugins.
    pub(super) fn tally(&self) -> crate::framework::RejectionCounts {
        self.verdicts.tally()
    }

    /// Returns the NUMA nodes selected on `node`.
    pub(super) fn numa(&self, node: NodeIndex) -> Option<NumaMask> {
        match self.verdicts.get(node.row()) {
            Some(RowVerdict::Fits(numa)) => *numa,
            _ => None,
        }
    }

    /// Records the result for the row at position `at` of a batch.
    pub(super) fn found(&mut self, node: NodeIndex, batch: &mut Batch, at: usize) {
        let (result, fixed) = batch.take(at);
        self.filter_stats.count_verdict(&result.verdict);
        self.record(node, result, fixed, batch.raws(at));
    }

    /// Returns the sum of the contributions to a row's score that depend on no other row; `raws` are its raw
    /// scores by column.
    pub(super) fn fixed_of(&self, raws: &[i64]) -> i64 {
        let shares = self.columns.iter().zip(raws);
        let fixed = shares.filter(|(column, _)| column.is_fixed());
        fixed.map(|(column, raw)| column.share(*raw)).sum()
    }

    /// Records the result for one row: its raw scores by column, and `fixed`, the sum of the contributions
    /// that depend on no other row.
    pub(super) fn record(
        &mut self,
        node: NodeIndex,
        result: RowResult,
        fixed: i64,
        raws: impl Iterator<Item = i64>,
    ) {
        let (row, rows) = (node.row(), self.verdicts.len());
        if self.verdicts.fits(row) {
            for column in &mut self.columns {
                column.remove_row(row);
            }
        }
        self.releasing.set(node, result.releases);
        if matches!(result.verdict, RowVerdict::Fits(_)) {
            self.fixed[row] = fixed;
            let columns = self.columns.iter_mut().zip(raws);
            for (column, raw) in columns.filter(|(column, _)| !column.is_fixed()) {
                column.enter(row, raw, rows);
            }
        }
        self.verdicts.set(row, result.verdict);
    }

    /// Returns what [`Self::record`] stored for a row.
    pub(super) fn recorded(&self, node: NodeIndex, raws: &mut [i64]) -> (RowResult, i64) {
        let row = node.row();
        for (raw, column) in raws.iter_mut().zip(&self.columns) {
            *raw = column.raw(row);
        }
        let result = RowResult {
            verdict: self.verdict(node).cloned().unwrap_or_default(),
            releases: self.releasing.contains(node),
        };
        (result, self.fixed[row])
    }

    /// Recomputes the largest raw score of column `at`.
    fn rescan(&mut self, at: usize) {
        let (mut max, mut at_max) = (0, 0);
        let column = &self.columns[at];
        if column.nonzero > 0 {
            for row in self.verdicts.feasible() {
                let raw = column.raw(row);
                if raw > max {
                    (max, at_max) = (raw, 0);
                }
                at_max += usize::from(raw == max && raw > 0);
            }
        }
        (self.columns[at].max, self.columns[at].at_max) = (max, at_max);
    }

    /// Returns the number of rows.
    pub(super) fn rows(&self) -> usize {
        self.verdicts.len()
    }

    /// Returns the sort key of a row, or 0 if it does not fit.
    pub(super) fn key(&self, scope: &Scope<'_>, scale: &Scale<'_>, row: usize) -> Key {
        let Ok(number) = u32::try_from(row) else {
            return 0;
        };
        if !self.verdicts.fits(row) {
            return 0;
        }
        let version = scope.nodes().version(NodeIndex(number));
        let total = self.fixed[row] + scale.share(row);
        key(total, tie(scope.seed, version, row))
    }
}

/// The contribution of the relative columns to the totals.
#[derive(Debug)]
pub(super) struct Scale<'a> {
    /// The sum of the columns in which every feasible row has a raw score of 0: it is equal for all rows.
    constant: i64,
    varying: Vec<&'a Column>,
}

impl<'a> Scale<'a> {
    pub(super) fn new(columns: &'a [Column]) -> Self {
        let relative = columns.iter().filter(|column| column.is_relative());
        let mut out = Self {
            constant: 0,
            varying: Vec::new(),
        };
        for column in relative {
            if column.nonzero > 0 {
                out.varying.push(column);
            } else {
                out.constant += column.share(0);
            }
        }
        out
    }

    fn share(&self, row: usize) -> i64 {
        let columns = self.varying.iter();
        let shares = columns.map(|column| column.share(column.raw(row)));
        self.constant + shares.sum::<i64>()
    }
}

/// Returns the columns of an evaluation, without rows.
pub(super) fn columns(scope: &Scope<'_>) -> Vec<Column> {
    let weights = scope.prepared.scores.iter();
    weights
        .zip(scope.chain.scores())
        .map(|((plugin, weight, _), (_, score, _))| Column {
            plugin: *plugin,
            weight: *weight,
            kind: score.normalization(),
            raws: Vec::new(),
            max: 0,
            at_max: 0,
            nonzero: 0,
        })
        .collect()
}

/// Combines a total score and a tie breaker below 2^32 into a key that is never zero.
pub(super) fn key(total: i64, tie: u64) -> Key {
    let total = u64::try_from(total)
        .unwrap_or(0)
        .min(u64::from(u32::MAX) - 1);
    ((total + 1) << 32) | tie
}

/// Returns the nodes that are in exactly one of the sorted lists.
fn either(a: &Option<Vec<NodeIndex>>, b: &Option<Vec<NodeIndex>>) -> Vec<NodeIndex> {
    let list = |list: &Option<Vec<NodeIndex>>| list.clone().unwrap_or_default();
    let (a, b) = (list(a), list(b));
    let missing = |from: &[NodeIndex], node: &NodeIndex| from.binary_search(node).is_err();
    let only_a = a.iter().filter(|node| missing(&b, node));
    only_a
        .chain(b.iter().filter(|node| missing(&a, node)))
        .copied()
        .collect()
}

/// Returns the tie breaker between equally good rows.
pub(super) fn tie(seed: u64, version: u64, row: usize) -> u64 {
    mix(seed ^ version.rotate_left(24) ^ row as u64) >> 32
}

/// Mixes the bits of `x` (the finalizer of SplitMix64).
pub(super) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(raws: &[i64]) -> Column {
        let mut column = Column {
            plugin: 0,
            weight: 1,
            kind: Normalize::Max,
            raws: Vec::new(),
            max: 0,
            at_max: 0,
            nonzero: 0,
        };
        for (row, raw) in raws.iter().enumerate() {
            column.enter(row, *raw, raws.len());
        }
        column
    }

    #[test]
    fn columns_of_parts_are_that_of_all_rows() {
        // The largest score in the first part, in the last, in both; parts in which all scores are 0.
        for parts in [
            vec![vec![0, 7, 2], vec![0, 0], vec![3]],
            vec![vec![0, 0, 0], vec![0, 4], vec![9, 1]],
            vec![vec![5, 1], vec![5], vec![0, 5]],
            vec![vec![-3, 0], vec![-1]],
            vec![vec![0], vec![0, 0]],
        ] {
            let whole = column(&parts.concat());
            let mut together = column(&parts[0]);
            let mut rows = parts[0].len();
            for part in &parts[1..] {
                together.append(rows, &column(part), part.len());
                rows += part.len();
            }
            let figures = |column: &Column| (column.max, column.at_max, column.nonzero);
            assert_eq!(figures(&together), figures(&whole), "{parts:?}");
            for row in 0..rows {
                assert_eq!(together.raw(row), whole.raw(row), "{parts:?} at {row}");
            }
        }
    }
}
