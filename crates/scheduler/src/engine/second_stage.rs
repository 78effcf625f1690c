//! The second stage of an evaluation: the part that pods of one shape cannot share, because it changes for
//! many nodes with each placement, or because it is relative to all nodes that fit.
//!
//! It runs per pod over the rows that the shared evaluation accepts, on dense columns.

use super::class::{Column, Evaluation, key, normal};
use super::scope::{Scope, score_of};
use super::tree::Key;
use crate::framework::{FitSummary, Instance, Normalize, Rejection, RejectionCounts, Score};
use crate::state::NodeIndex;

/// Rows that fit, in order, with their scores.
pub(super) struct Rows<'a> {
    pub(super) nodes: &'a [NodeIndex],
    pub(super) columns: &'a [Column],
    /// Returns the raw score of a row, by its position in `nodes`, in a column.
    pub(super) raw: &'a dyn Fn(usize, usize) -> i64,
    /// Summaries of all nodes that fit, one for each volatile plugin that scores, if `nodes` holds only
    /// candidates; `None` if it holds all nodes that fit.
    pub(super) around: Option<&'a [FitSummary]>,
}

/// Returns true if the second stage is needed to rank rows.
pub(super) fn is_needed(scope: &Scope<'_>, columns: &[Column]) -> bool {
    scope.needs_second_stage() || !scope.prepared.volatile_scores.is_empty() || !is_plain(columns)
}

/// Returns true if no column has a normalization of its own.
pub(super) fn is_plain(columns: &[Column]) -> bool {
    columns
        .iter()
        .all(|column| column.kind != Normalize::Custom)
}

/// Returns the node of `rows` with the highest total score. `keys` hold the score of each row without the
/// plugins that normalize in their own way and without volatile ones; both are added here. `None` if no row fits.
pub(super) fn best(scope: &Scope<'_>, rows: &Rows<'_>, mut keys: Vec<Key>) -> Option<NodeIndex> {
    let mut scores = vec![0; rows.nodes.len()];
    for (index, column) in rows.columns.iter().enumerate() {
        if column.kind == Normalize::Custom && !scores.is_empty() {
            for (at, score) in scores.iter_mut().enumerate() {
                *score = (rows.raw)(at, index);
            }
            score_of(scope.plugins, column.plugin).normalize(&scope.cycle, &mut scores);
            add(&mut keys, &scores, column.weight);
        }
    }
    if !scores.is_empty() {
        for (at, (plugin, weight, state)) in scope.prepared.volatile_scores.iter().enumerate() {
            let Some(volatile) = scope.plugins[*plugin].volatile() else {
                continue;
            };
            match rows.around.and_then(|around| around.get(at)) {
                None => volatile.score_rows(&scope.cycle, state, rows.nodes, &mut scores),
                Some(around) => {
                    volatile.score_among(&scope.cycle, state, around, rows.nodes, &mut scores);
                }
            }
            normalize(scope, score_of(scope.plugins, *plugin), &mut scores);
            add(&mut keys, &scores, *weight);
        }
    }
    if let Some(extender_verdicts) = scope.extender_verdicts {
        return extender_verdicts.best(&keys, rows.nodes);
    }
    let mut best = (0, None);
    for (key, node) in keys.into_iter().zip(rows.nodes) {
        if key > best.0 {
            best = (key, Some(*node));
        }
    }
    best.1
}

/// Normalizes the scores of a volatile plugin to 0..=100.
fn normalize(scope: &Scope<'_>, score: &dyn Score, scores: &mut [i64]) {
    match score.normalization() {
        Normalize::Custom => score.normalize(&scope.cycle, scores),
        kind => {
            let max = scores.iter().copied().max().unwrap_or(0).max(0);
            for score in scores {
                *score = normal(kind, *score, max);
            }
        }
    }
}

impl Evaluation {
    /// Returns the best node for a pod that needs volatile plugins or custom normalization.
    pub(super) fn best_staged(&self, scope: &Scope<'_>) -> Option<NodeIndex> {
        let mut rows = self.non_volatile_fits();
        let judged = rows.len();
        self.drop_refused(scope, &mut rows);
        self.filter_stats.stage(judged, rows.len());
        let keys = self.keys_among(&rows);
        let rows = Rows {
            nodes: &rows,
            columns: &self.columns,
            raw: &|at, column| self.columns[column].raw(rows[at].row()),
            around: None,
        };
        best(scope, &rows, keys)
    }

    /// Returns the nodes that fit, in order.
    pub(super) fn offers(&self, scope: &Scope<'_>) -> Vec<NodeIndex> {
        let mut rows = self.non_volatile_fits();
        self.drop_refused(scope, &mut rows);
        rows
    }

    /// Returns the refusals of all nodes, including those that only volatile plugins refuse.
    pub(super) fn refusals(&self, scope: &Scope<'_>) -> RejectionCounts {
        let mut tally = self.tally();
        for (_, plugin, rejection) in self.volatile_refusals(scope) {
            tally.add(plugin, &rejection);
        }
        tally
    }

    /// Iterates over the nodes that only volatile plugins or extenders refuse.
    pub(super) fn volatile_refusals<'a>(
        &self,
        scope: &'a Scope<'_>,
    ) -> impl Iterator<Item = (NodeIndex, Instance, Rejection)> + use<'a> {
        let rows = if scope.needs_second_stage() {
            self.non_volatile_fits()
        } else {
            Vec::new()
        };
        rows.into_iter().filter_map(|node| {
            let (plugin, rejection) = scope.volatile_refusal(node, &[])?;
            Some((node, plugin, rejection))
        })
    }

    /// Returns the nodes that all plugins other than volatile ones accept, by row.
    pub(super) fn non_volatile_fits(&self) -> Vec<NodeIndex> {
        let keys = self.tree.rows();
        let mut rows = Vec::with_capacity(keys.len());
        for (row, key) in (0_u32..).zip(keys) {
            if *key != 0 {
                rows.push(NodeIndex(row));
            }
        }
        rows
    }

    pub(super) fn drop_refused(&self, scope: &Scope<'_>, rows: &mut Vec<NodeIndex>) {
        if !scope.needs_second_stage() {
            return;
        }
        if scope.extender_verdicts.is_some() {
            rows.retain(|node| scope.extender_refusal(*node).is_none());
        }
        let mut fits = vec![true; rows.len()];
        for (plugin, state) in &scope.prepared.volatile_filters {
            if let Some(volatile) = scope.plugins[*plugin].volatile() {
                volatile.filter_rows(&scope.cycle, state, rows, &mut fits);
            }
        }
        // Rows with released or nominated pods have an overlay.
        let nominated_nodes = scope.nominated_nodes();
        if !self.releasing.is_empty() || !nominated_nodes.is_empty() {
            for (fits, node) in fits.iter_mut().zip(&*rows) {
                if self.releasing.contains(*node) || nominated_nodes.contains(node) {
                    *fits = scope.volatile_refusal(*node, &[]).is_none();
                }
            }
        }
        let mut fits = fits.into_iter();
        rows.retain(|_| fits.next().unwrap_or(false));
    }

    /// Returns the keys of `rows`, with relative scores computed among these rows only.
    fn keys_among(&self, rows: &[NodeIndex]) -> Vec<Key> {
        let shared = self.tree.rows();
        let mut keys: Vec<Key> = rows.iter().map(|node| shared[node.row()]).collect();
        for (at, column) in self.columns.iter().enumerate() {
            // Without a positive maximum, scores are not relative.
            if !column.is_relative() || column.max == 0 {
                continue;
            }
            let raws = rows.iter().map(|node| column.raw(node.row()));
            let max = raws.max().unwrap_or(0).max(0);
            if max != column.max {
                self.rescale(at, max, rows, &mut keys);
            }
        }
        keys
    }

    /// Replaces the contribution of column `at` to the keys by that for another maximum.
    fn rescale(&self, at: usize, max: i64, rows: &[NodeIndex], keys: &mut [Key]) {
        let column = &self.columns[at];
        for (key, node) in keys.iter_mut().zip(rows) {
            let raw = column.raw(node.row());
            let old = normal(column.kind, raw, column.max);
            let new = normal(column.kind, raw, max);
            *key = plus(*key, column.weight.saturating_mul(new - old));
        }
    }
}

fn add(keys: &mut [Key], scores: &[i64], weight: i64) {
    for (key, score) in keys.iter_mut().zip(scores) {
        *key = plus(*key, weight.saturating_mul((*score).clamp(0, 100)));
    }
}

fn plus(at: Key, more: i64) -> Key {
    let total = i64::try_from((at >> 32) - 1).unwrap_or(i64::MAX);
    key(total.saturating_add(more), at & u64::from(u32::MAX))
}
