//! The second stage: what cannot be shared by pods of one shape, because it moves for many nodes
//! with each placement, or because it is relative to all nodes that fit.
//!
//! It runs per pod over the rows that the shared evaluation accepts, on dense columns.

use super::class::{Column, Evaluation, key, normal};
use super::scope::{Scope, score_of};
use super::tree::Key;
use crate::framework::{Instance, Normalize, Rejection, Score, Surroundings, Tally};
use crate::state::NodeIndex;

/// Rows that fit, in order, and what they score.
pub(super) struct Rows<'a> {
    pub(super) nodes: &'a [NodeIndex],
    pub(super) columns: &'a [Column],
    /// The raw score of a row, by its position here, in a column.
    pub(super) raw: &'a dyn Fn(usize, usize) -> i64,
    /// Of what they were taken as the candidates, if they are not all that fit; for each volatile plugin
    /// that scores.
    pub(super) around: Option<&'a [Surroundings]>,
}

/// Whether a row's key does not say it all.
pub(super) fn is_needed(scope: &Scope<'_>, columns: &[Column]) -> bool {
    scope.has_more_to_say() || !scope.prepared.moving_scores.is_empty() || !is_plain(columns)
}

/// Whether no column has a normalisation of its own.
pub(super) fn is_plain(columns: &[Column]) -> bool {
    columns
        .iter()
        .all(|column| column.kind != Normalize::Custom)
}

/// The best of `rows`, given the `keys` of what they score without custom normalisation.
pub(super) fn best(scope: &Scope<'_>, rows: &Rows<'_>, mut keys: Vec<Key>) -> Option<NodeIndex> {
    let mut scores = vec![0; rows.nodes.len()];
    for (column, of) in rows.columns.iter().enumerate() {
        if of.kind == Normalize::Custom && !scores.is_empty() {
            for (at, score) in scores.iter_mut().enumerate() {
                *score = (rows.raw)(at, column);
            }
            score_of(scope.plugins, of.plugin).normalize(&scope.cycle, &mut scores);
            add(&mut keys, &scores, of.weight);
        }
    }
    if !scores.is_empty() {
        for (at, (plugin, weight, state)) in scope.prepared.moving_scores.iter().enumerate() {
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
    if let Some(opinion) = scope.opinion {
        return opinion.best(&keys, rows.nodes);
    }
    let mut best = (0, None);
    for (key, node) in keys.into_iter().zip(rows.nodes) {
        if key > best.0 {
            best = (key, Some(*node));
        }
    }
    best.1
}

/// Brings what a volatile plugin scores to 0..=100.
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
    /// The best node for a pod that has volatile plugins or custom normalisation.
    pub(super) fn best_staged(&self, scope: &Scope<'_>) -> Option<NodeIndex> {
        let mut rows = self.shared_fits();
        let judged = rows.len();
        self.drop_refused(scope, &mut rows);
        self.fared.stage(judged, rows.len());
        let keys = self.keys_among(&rows);
        let rows = Rows {
            nodes: &rows,
            columns: &self.columns,
            raw: &|at, column| self.columns[column].raw(rows[at].row()),
            around: None,
        };
        best(scope, &rows, keys)
    }

    /// The nodes that fit, in order.
    pub(super) fn offers(&self, scope: &Scope<'_>) -> Vec<NodeIndex> {
        let mut rows = self.shared_fits();
        self.drop_refused(scope, &mut rows);
        rows
    }

    /// Why nodes refuse the pod, those counted that only volatile plugins refuse.
    pub(super) fn refusals(&self, scope: &Scope<'_>) -> Tally {
        let mut tally = self.tally();
        for (_, plugin, rejection) in self.refused_moving(scope) {
            tally.add(plugin, &rejection);
        }
        tally
    }

    /// The nodes that only volatile plugins refuse.
    pub(super) fn refused_moving<'a>(
        &self,
        scope: &'a Scope<'_>,
    ) -> impl Iterator<Item = (NodeIndex, Instance, Rejection)> + use<'a> {
        let rows = if scope.has_more_to_say() {
            self.shared_fits()
        } else {
            Vec::new()
        };
        rows.into_iter().filter_map(|node| {
            let (plugin, rejection) = scope.judge_moving(node, &[])?;
            Some((node, plugin, rejection))
        })
    }

    /// The rows that all other plugins accept, in order.
    pub(super) fn shared_fits(&self) -> Vec<NodeIndex> {
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
        if !scope.has_more_to_say() {
            return;
        }
        if scope.opinion.is_some() {
            rows.retain(|node| scope.opposed(*node).is_none());
        }
        let mut fits = vec![true; rows.len()];
        for (plugin, state) in &scope.prepared.moving {
            if let Some(volatile) = scope.plugins[*plugin].volatile() {
                volatile.filter_rows(&scope.cycle, state, rows, &mut fits);
            }
        }
        // Where pods are imagined away or to come, the row is not as the books say.
        let promised = scope.promised();
        if !self.releasing.is_empty() || !promised.is_empty() {
            for (fits, node) in fits.iter_mut().zip(&*rows) {
                if self.releasing.contains(*node) || promised.contains(node) {
                    *fits = scope.judge_moving(*node, &[]).is_none();
                }
            }
        }
        let mut fits = fits.into_iter();
        rows.retain(|_| fits.next().unwrap_or(false));
    }

    /// The keys of `rows`, with relative scores taken among these rows alone.
    fn keys_among(&self, rows: &[NodeIndex]) -> Vec<Key> {
        let shared = self.tree.rows();
        let mut keys: Vec<Key> = rows.iter().map(|node| shared[node.row()]).collect();
        for (at, column) in self.columns.iter().enumerate() {
            // Without a maximum there is nothing to be relative to.
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

    /// Replaces what column `at` contributes to the keys by what it does with another maximum.
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
