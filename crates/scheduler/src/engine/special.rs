//! Pods that share everything but whose place they may take: owners of different reservations.
//!
//! Such pods differ on the few rows that hold something of theirs. They share one evaluation, made
//! as if there were nothing to take; before it is used, the rows of the pod's own are laid over it,
//! and taken off again before the next use. So a placement costs one new look at its row for all of
//! them together, instead of one for each.

use super::class::Evaluation;
use super::scope::{Looked, Scope};
use crate::framework::ShapeId;
use crate::state::NodeIndex;
use rustc_hash::FxHashMap;

/// With more rows than this, a pod is better off with an evaluation of its own: there can be few
/// such shapes.
pub(super) const MAX_ROWS: usize = 128;
/// Shapes remembered per evaluation.
const MAX_SHAPES: usize = 4096;

/// What one shape finds on its rows; while that is laid over the evaluation, what is under it.
#[derive(Debug, Default)]
struct Special {
    /// Sorted by row, with the version that was looked at.
    rows: Vec<(NodeIndex, u64, Looked)>,
    /// Of each row, what comes of the raw scores that do not depend on other rows.
    fixed: Vec<i64>,
    /// Raw scores, as many per row as there are columns.
    raws: Vec<i64>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Specials {
    found: FxHashMap<ShapeId, Special>,
    /// The one that is laid over now.
    over: Option<ShapeId>,
}

impl Specials {
    /// How many bytes it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let of = |found: &Special| {
            let numbers = found.fixed.len() + found.raws.len();
            size_of::<(NodeIndex, u64, Looked)>() * found.rows.len() + 8 * numbers + 256
        };
        // Few have any, and those that have one have many of a size.
        let first = self.found.values().next().map_or(0, of);
        first * self.found.len()
    }
}

impl Evaluation {
    /// Lays what a pod of shape `shape` finds on `rows`, sorted, over the evaluation.
    pub(super) fn lay_over(&mut self, scope: &Scope<'_>, rows: &[NodeIndex], shape: ShapeId) {
        if rows.is_empty() {
            return;
        }
        let width = self.columns.len();
        let mut found = self.specials.found.remove(&shape).unwrap_or_default();
        if !found.rows.iter().map(|(node, ..)| node).eq(rows) {
            found = found.moved_to(rows, width);
        }
        let mut looked_up = Vec::with_capacity(width);
        for (at, (node, version, looked)) in found.rows.iter_mut().enumerate() {
            let now = scope.nodes().version(*node);
            if *version != now {
                looked_up.clear();
                (*version, *looked) = (now, scope.look(*node, &mut looked_up));
                self.fared.looked(&looked.verdict);
                looked_up.resize(width, 0);
                found.fixed[at] = self.fixed_of(&looked_up);
                found.raws[at * width..(at + 1) * width].copy_from_slice(&looked_up);
            }
        }
        self.exchange(scope, &mut found);
        if self.specials.found.len() >= MAX_SHAPES {
            self.specials.found.clear();
        }
        self.specials.found.insert(shape, found);
        self.specials.over = Some(shape);
    }

    /// Undoes [`Self::lay_over`].
    pub(super) fn take_off(&mut self, scope: &Scope<'_>) {
        if let Some(over) = self.specials.over.take()
            && let Some(mut under) = self.specials.found.remove(&over)
        {
            self.exchange(scope, &mut under);
            self.specials.found.insert(over, under);
        }
    }

    /// Exchanges the rows of `found` for what is recorded of them.
    fn exchange(&mut self, scope: &Scope<'_>, found: &mut Special) {
        let nodes: Vec<NodeIndex> = found.rows.iter().map(|(node, ..)| *node).collect();
        let width = self.columns.len();
        let mut raws = vec![0; width];
        self.replace(scope, &nodes, |evaluation, at| {
            let (Some((node, _, looked)), Some(fixed)) =
                (found.rows.get_mut(at), found.fixed.get_mut(at))
            else {
                return;
            };
            let kept = &mut found.raws[at * width..(at + 1) * width];
            raws.copy_from_slice(kept);
            let under = evaluation.recorded(*node, kept);
            let new = (
                std::mem::replace(looked, under.0),
                std::mem::replace(fixed, under.1),
            );
            evaluation.record(*node, new.0, new.1, raws.iter().copied());
        });
    }
}

impl Special {
    /// For other rows, as far as they were looked at before.
    fn moved_to(self, rows: &[NodeIndex], width: usize) -> Self {
        let mut out = Self {
            rows: Vec::with_capacity(rows.len()),
            fixed: Vec::with_capacity(rows.len()),
            raws: Vec::with_capacity(rows.len() * width),
        };
        let mut known = self.rows.into_iter().enumerate().peekable();
        for node in rows {
            while known.next_if(|(_, (known, ..))| known < node).is_some() {}
            match known.next_if(|(_, (known, ..))| known == node) {
                Some((at, row)) => {
                    out.rows.push(row);
                    out.fixed.push(self.fixed[at]);
                    let raws = &self.raws[at * width..(at + 1) * width];
                    out.raws.extend_from_slice(raws);
                }
                None => {
                    // No row has this version: it is looked at.
                    out.rows.push((*node, 0, Looked::default()));
                    out.fixed.push(0);
                    out.raws.resize(out.raws.len() + width, 0);
                }
            }
        }
        out
    }
}
