//! Many rows judged, by several threads: all for a shape that is new, those that changed for one that is not.
//!
//! Threads only look; what they found is taken in by the one that decides, in the order of rows. Of all rows
//! each part is an evaluation of its own, in which they are numbered from 0. No result depends on timing,
//! or on how many threads there are.

use super::batch::{self, Batch};
use super::class::{Evaluation, Scale, columns};
use super::scope::Scope;
use super::special::Specials;
use super::tree::{Key, Tree};
use super::verdicts::Verdicts;
use crate::state::NodeIndex;
use rayon::prelude::*;
use rustc_hash::FxHashSet;

/// With fewer rows, adding up what they score takes less time than sharing that out.
const SHARED_OUT: usize = 16 * 1024;

/// What is found of some rows: by several threads at once if they are many, and otherwise as it is asked for.
pub(super) struct Ahead<'a> {
    scope: &'a Scope<'a>,
    rows: &'a [NodeIndex],
    promised: FxHashSet<NodeIndex>,
    /// So many rows each.
    part: usize,
    found: Vec<Batch>,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(scope: &'a Scope<'a>, rows: &'a [NodeIndex]) -> Self {
        let (promised, threads) = (scope.promised(), rayon::current_num_threads());
        let (mut part, mut found) = (batch::ROWS, Vec::new());
        if rows.len() >= scope.parallel_rows && threads > 1 {
            part = part.min(rows.len().div_ceil(threads));
            let parts = rows.par_chunks(part);
            found = parts.map(|rows| scope.look_each(rows, &promised)).collect();
        }
        Self {
            scope,
            rows,
            promised,
            part,
            found,
        }
    }

    /// What holds the row at position `at`, and its position there. Asked for in order.
    pub(super) fn at(&mut self, at: usize) -> (&mut Batch, usize) {
        let (part, within) = (at / self.part, at % self.part);
        if part == self.found.len() {
            let rows = &self.rows[at..self.rows.len().min(at + self.part)];
            // Those before are taken in.
            self.found
                .iter_mut()
                .for_each(|batch| *batch = Batch::default());
            self.found.push(self.scope.look_each(rows, &self.promised));
        }
        (&mut self.found[part], within)
    }
}

impl Evaluation {
    /// Judges and scores every row.
    pub(super) fn fresh(scope: &Scope<'_>) -> Self {
        let mut out = Self::default();
        out.rebuild(scope);
        out
    }

    /// The same, in place.
    pub(super) fn rebuild(&mut self, scope: &Scope<'_>) {
        let nodes = scope.nodes();
        self.position = nodes.position();
        self.only.clone_from(&scope.prepared.only);
        self.specials = Specials::default();
        let rows: Vec<NodeIndex> = (0_u32..).map(NodeIndex).take(nodes.rows()).collect();
        let (threads, promised) = (rayon::current_num_threads(), scope.promised());
        let part = |rows: &[NodeIndex]| Self::part(scope, rows, &promised);
        let whole = if rows.len() < scope.parallel_rows || threads < 2 {
            part(&rows)
        } else {
            let parts = rows.par_chunks(rows.len().div_ceil(4 * threads)).map(part);
            Self::together(parts.collect(), rows.len())
        };
        self.verdicts = whole.verdicts;
        self.releasing = whole.releasing;
        self.columns = whole.columns;
        self.fixed = whole.fixed;
        self.fared.append(&whole.fared);
        self.rank(scope);
    }

    /// Of `rows`, which follow each other. Without an order of candidates.
    fn part(scope: &Scope<'_>, rows: &[NodeIndex], promised: &FxHashSet<NodeIndex>) -> Self {
        let mut part = Self {
            verdicts: Verdicts::absent(rows.len()),
            columns: columns(scope),
            fixed: vec![0; rows.len()],
            ..Self::default()
        };
        let mut own = (0_u32..).map(NodeIndex);
        for rows in rows.chunks(batch::ROWS) {
            let mut batch = scope.look_each(rows, promised);
            for (at, row) in (0..rows.len()).zip(&mut own) {
                part.found(row, &mut batch, at);
            }
        }
        part
    }

    /// Puts `parts` together, which have so many rows.
    fn together(parts: Vec<Self>, rows: usize) -> Self {
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
            whole.fared.append(&part.fared);
        }
        whole
    }

    /// Recomputes every total.
    pub(super) fn rank(&mut self, scope: &Scope<'_>) {
        let mut keys: Vec<Key> = self.tree.take_rows();
        keys.clear();
        let (rows, scale) = (self.rows(), Scale::of(&self.columns));
        let key = |row: usize| self.key(scope, &scale, row);
        if rows < scope.parallel_rows.max(SHARED_OUT) {
            keys.extend((0..rows).map(key));
        } else {
            let rows = (0..rows).into_par_iter().with_min_len(SHARED_OUT / 4);
            rows.map(key).collect_into_vec(&mut keys);
        }
        self.tree = Tree::of(keys);
        self.grouped = None;
    }
}
