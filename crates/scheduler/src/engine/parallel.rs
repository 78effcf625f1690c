//! Parallel evaluation of many rows: of all rows for a new shape, or of the changed rows for a cached one.
//!
//! Worker threads only evaluate; the engine's thread records the results in the order of rows. Where all rows
//! are evaluated, each part is an evaluation of its own, with rows numbered from 0. No result depends on
//! timing or on the number of threads.

use super::batch::{self, Batch};
use super::class::{Evaluation, Scale, columns};
use super::row_overlay::RowOverlays;
use super::scope::Scope;
use super::tree::{Key, Tree};
use super::verdicts::Verdicts;
use crate::state::NodeIndex;
use rayon::prelude::*;
use rustc_hash::FxHashSet;

/// The number of rows from which threads compute totals; with fewer, distributing the work takes longer.
const SHARED_OUT: usize = 16 * 1024;

/// Results for some rows: evaluated by several threads in advance if there are many, otherwise on demand.
pub(super) struct ParallelEvaluation<'a> {
    scope: &'a Scope<'a>,
    rows: &'a [NodeIndex],
    nominated_nodes: FxHashSet<NodeIndex>,
    /// The number of rows per batch.
    part: usize,
    found: Vec<Batch>,
}

impl<'a> ParallelEvaluation<'a> {
    pub(super) fn new(scope: &'a Scope<'a>, rows: &'a [NodeIndex]) -> Self {
        let (nominated_nodes, threads) = (scope.nominated_nodes(), rayon::current_num_threads());
        let (mut part, mut found) = (batch::ROWS, Vec::new());
        if rows.len() >= scope.parallel_rows && threads > 1 {
            part = part.min(rows.len().div_ceil(threads));
            let parts = rows.par_chunks(part);
            found = parts
                .map(|rows| scope.evaluate_each(rows, &nominated_nodes))
                .collect();
        }
        Self {
            scope,
            rows,
            nominated_nodes,
            part,
            found,
        }
    }

    /// Returns the batch that holds the row at position `at`, and its position in that batch. Must be called
    /// in order.
    pub(super) fn at(&mut self, at: usize) -> (&mut Batch, usize) {
        let (part, within) = (at / self.part, at % self.part);
        if part == self.found.len() {
            let rows = &self.rows[at..self.rows.len().min(at + self.part)];
            // The batches before are recorded already.
            self.found
                .iter_mut()
                .for_each(|batch| *batch = Batch::default());
            self.found
                .push(self.scope.evaluate_each(rows, &self.nominated_nodes));
        }
        (&mut self.found[part], within)
    }
}

impl Evaluation {
    /// Evaluates every row.
    pub(super) fn fresh(scope: &Scope<'_>) -> Self {
        let mut out = Self::default();
        out.rebuild(scope);
        out
    }

    /// Evaluates every row again, in place.
    pub(super) fn rebuild(&mut self, scope: &Scope<'_>) {
        let nodes = scope.nodes();
        self.position = nodes.position();
        self.only.clone_from(&scope.prepared.only);
        self.overlays = RowOverlays::default();
        let rows: Vec<NodeIndex> = (0_u32..).map(NodeIndex).take(nodes.rows()).collect();
        let (threads, nominated_nodes) = (rayon::current_num_threads(), scope.nominated_nodes());
        let part = |rows: &[NodeIndex]| Self::part(scope, rows, &nominated_nodes);
        let whole = if rows.len() < scope.parallel_rows || threads < 2 {
            part(&rows)
        } else {
            let parts = rows.par_chunks(rows.len().div_ceil(4 * threads)).map(part);
            Self::concat(parts.collect(), rows.len())
        };
        self.verdicts = whole.verdicts;
        self.releasing = whole.releasing;
        self.columns = whole.columns;
        self.fixed = whole.fixed;
        self.filter_stats.append(&whole.filter_stats);
        self.rank(scope);
    }

    /// Evaluates `rows`, which are consecutive, without computing the order of candidates.
    fn part(scope: &Scope<'_>, rows: &[NodeIndex], nominated_nodes: &FxHashSet<NodeIndex>) -> Self {
        let mut part = Self {
            verdicts: Verdicts::absent(rows.len()),
            columns: columns(scope),
            fixed: vec![0; rows.len()],
            ..Self::default()
        };
        let mut own = (0_u32..).map(NodeIndex);
        for rows in rows.chunks(batch::ROWS) {
            let mut batch = scope.evaluate_each(rows, nominated_nodes);
            for (at, row) in (0..rows.len()).zip(&mut own) {
                part.found(row, &mut batch, at);
            }
        }
        part
    }

    /// Concatenates `parts`, which have `rows` rows in total.
    fn concat(parts: Vec<Self>, rows: usize) -> Self {
        let mut parts = parts.into_iter();
        let mut whole = parts.next().unwrap_or_default();
        whole.verdicts.reserve(rows);
        whole
            .fixed
            .reserve_exact(rows - whole.fixed.len().min(rows));
        for part in parts {
            let (own, more) = (whole.rows(), part.rows());
            whole.verdicts.append(part.verdicts);
            whole.fixed.extend_from_slice(&part.fixed);
            for (column, other) in whole.columns.iter_mut().zip(&part.columns) {
                column.append(own, other, more);
            }
            let start = u32::try_from(own).unwrap_or(u32::MAX);
            whole.releasing.append(start, &part.releasing);
            whole.filter_stats.append(&part.filter_stats);
        }
        whole
    }

    /// Recomputes every total.
    pub(super) fn rank(&mut self, scope: &Scope<'_>) {
        let mut keys: Vec<Key> = self.tree.take_rows();
        keys.clear();
        let (rows, scale) = (self.rows(), Scale::new(&self.columns));
        let key = |row: usize| self.key(scope, &scale, row);
        if rows < scope.parallel_rows.max(SHARED_OUT) {
            keys.extend((0..rows).map(key));
        } else {
            let rows = (0..rows).into_par_iter().with_min_len(SHARED_OUT / 4);
            rows.map(key).collect_into_vec(&mut keys);
        }
        self.tree = Tree::new(keys);
        self.grouped = None;
    }
}
