//! Evaluation of many rows at a time, one plugin after the other.
//!
//! Calling the plugins row by row would cost more than what they compute.

use super::class::normal;
use super::scope::{RowResult, Scope};
use crate::framework::{Cycle, Normalize, RowVerdict};
use crate::state::NodeIndex;
use rustc_hash::FxHashSet;

/// Rows per batch: the results stay in the CPU cache until they are recorded.
pub(super) const ROWS: usize = 512;

/// Results of a batch, by position in the rows it was called with.
#[derive(Debug, Default)]
pub(super) struct Batch {
    results: Vec<RowResult>,
    /// The sums of the contributions that depend on no other row, by row.
    fixed: Vec<i64>,
    /// The raw scores by column.
    raws: Vec<RawScores>,
}

/// The raw scores of one plugin.
#[derive(Debug)]
struct RawScores {
    weight: i64,
    kind: Normalize,
    /// Raw scores by row, if their contribution depends on other rows; 0 in rows that do not fit.
    kept: Vec<i64>,
}

impl Batch {
    fn new(scope: &Scope<'_>, rows: usize) -> Self {
        let mut results = Vec::with_capacity(rows);
        results.resize_with(rows, RowResult::default);
        let weights = scope.prepared.scores.iter();
        let raws = weights.zip(scope.chain.scores());
        let raws = raws.map(|((_, weight, _), (_, score, _))| {
            let kind = score.normalization();
            let stored_rows = if kind == Normalize::None { 0 } else { rows };
            RawScores {
                weight: *weight,
                kind,
                kept: vec![0; stored_rows],
            }
        });
        Self {
            results,
            fixed: vec![0; rows],
            raws: raws.collect(),
        }
    }

    /// Takes the result of the row at position `at`, with the sum of the contributions that depend on no
    /// other row.
    pub(super) fn take(&mut self, at: usize) -> (RowResult, i64) {
        (std::mem::take(&mut self.results[at]), self.fixed[at])
    }

    /// Returns the raw scores of the row at position `at`; 0 in columns that depend on no other row.
    pub(super) fn raws(&self, at: usize) -> impl Iterator<Item = i64> {
        let columns = self.raws.iter();
        columns.map(move |raws| raws.kept.get(at).copied().unwrap_or(0))
    }

    fn score(&mut self, column: usize, at: usize, raw: i64) {
        let raws = &mut self.raws[column];
        match raws.kept.get_mut(at) {
            Some(kept) => *kept = raw,
            None => self.fixed[at] += raws.weight * normal(raws.kind, raw, 0),
        }
    }
}

/// The rows of a batch that no plugin has refused so far.
#[derive(Default)]
struct RemainingRows {
    nodes: Vec<NodeIndex>,
    /// Positions of the nodes in the batch.
    at: Vec<usize>,
}

impl RemainingRows {
    fn push(&mut self, at: usize, node: NodeIndex) {
        self.nodes.push(node);
        self.at.push(at);
    }

    /// Removes the rows that have a verdict.
    fn drop_judged(&mut self, batch: &Batch) {
        let open = |at: &usize| matches!(batch.results[*at].verdict, RowVerdict::Absent);
        let mut at = self.at.iter();
        self.nodes.retain(|_| at.next().is_some_and(open));
        self.at.retain(open);
    }
}

impl Scope<'_> {
    /// Evaluates each of `rows` as [`Scope::evaluate`] does; `nominated_nodes` holds the nodes that pods are nominated
    /// to.
    pub(super) fn evaluate_each(
        &self,
        rows: &[NodeIndex],
        nominated_nodes: &FxHashSet<NodeIndex>,
    ) -> Batch {
        let mut batch = Batch::new(self, rows.len());
        let mut remaining = self.without_overlay(rows, nominated_nodes, &mut batch);
        for (plugin, filter, state) in self.chain.filters() {
            if self.leaves_out(plugin) {
                continue;
            }
            let mut settled = false;
            let mut refuse = |at: usize, rejection| {
                batch.results[remaining.at[at]].verdict = RowVerdict::Refused(plugin, rejection);
                settled = true;
            };
            filter.filter_each(&self.cycle, state, &remaining.nodes, &mut refuse);
            if settled {
                remaining.drop_judged(&batch);
            }
        }
        self.align_each(&mut batch, &mut remaining);
        for at in &remaining.at {
            batch.results[*at].verdict = RowVerdict::Fits(None);
        }
        let mut scores = vec![0; remaining.nodes.len()];
        for (column, (plugin, score, state)) in self.chain.scores().enumerate() {
            if self.leaves_out(plugin) {
                continue;
            }
            scores.fill(0);
            score.score_each(&self.cycle, state, &remaining.nodes, &mut scores);
            for (at, score) in remaining.at.iter().zip(&scores) {
                batch.score(column, *at, *score);
            }
        }
        if cfg!(debug_assertions) {
            self.compare(rows, &batch);
        }
        batch
    }

    /// Asserts that the batch equals the evaluation of its rows one by one.
    fn compare(&self, rows: &[NodeIndex], batch: &Batch) {
        let mut raws = Vec::new();
        for (at, node) in rows.iter().enumerate() {
            raws.clear();
            let single = self.evaluate(*node, &mut raws);
            assert_eq!(single.verdict, batch.results[at].verdict, "{node:?}");
            let (mut fixed, mut kept) = (0, Vec::new());
            for (raws, raw) in batch.raws.iter().zip(&raws) {
                let own = raws.weight * normal(raws.kind, *raw, 0);
                fixed += if raws.kept.is_empty() { own } else { 0 };
                kept.push(if raws.kept.is_empty() { 0 } else { *raw });
            }
            kept.resize(batch.raws.len(), 0);
            assert_eq!(fixed, batch.fixed[at], "{node:?}");
            assert_eq!(kept, batch.raws(at).collect::<Vec<_>>(), "{node:?}");
        }
    }

    /// Returns the rows that are evaluated without an overlay. The others are evaluated here one by one, as
    /// their overlays differ.
    fn without_overlay(
        &self,
        rows: &[NodeIndex],
        nominated_nodes: &FxHashSet<NodeIndex>,
        batch: &mut Batch,
    ) -> RemainingRows {
        let releases = !self.bare && !self.prepared.releasing.is_empty();
        let mut remaining = RemainingRows::default();
        let mut raws = Vec::with_capacity(batch.raws.len());
        for (at, node) in rows.iter().enumerate() {
            if !self.nodes().is_present(*node) {
                continue;
            }
            let listed = self.prepared.only.as_ref();
            if listed.is_some_and(|only| only.binary_search(node).is_err()) {
                let (by, rejection) = self.outside();
                batch.results[at].verdict = RowVerdict::Refused(by, rejection);
            } else if nominated_nodes.contains(node) || releases && self.releases_any(*node) {
                raws.clear();
                batch.results[at] = self.evaluate(*node, &mut raws);
                for (column, raw) in raws.iter().enumerate() {
                    batch.score(column, at, *raw);
                }
            } else {
                remaining.push(at, *node);
            }
        }
        remaining
    }

    /// Evaluates those rows of `left` that require NUMA alignment.
    fn align_each(&self, batch: &mut Batch, left: &mut RemainingRows) {
        let mut aligned = Vec::new();
        for (_, plugin, state) in self.aligning() {
            let mut collect = |index| aligned.push(index);
            plugin.aligns_each(&self.cycle, state, &left.nodes, &mut collect);
        }
        if aligned.is_empty() {
            return;
        }
        aligned.sort_unstable();
        aligned.dedup();
        let mut raws = Vec::with_capacity(batch.raws.len());
        for (at, node) in aligned.into_iter().map(|at| (left.at[at], left.nodes[at])) {
            let verdict = self.align(&self.cycle, node);
            if let RowVerdict::Fits(numa) = &verdict {
                let cycle = Cycle {
                    numa: *numa,
                    ..self.cycle
                };
                raws.clear();
                self.score(&cycle, node, &mut raws);
                for (column, raw) in raws.iter().enumerate() {
                    batch.score(column, at, *raw);
                }
            }
            batch.results[at].verdict = verdict;
        }
        left.drop_judged(batch);
    }
}
