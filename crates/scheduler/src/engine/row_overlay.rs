//! Evaluation overlays for pods that differ only in whose place they may take, such as owners of different
//! reservations.
//!
//! Such pods get different results only on the few rows that hold something of theirs. They share one
//! evaluation, made as if there were nothing to take. Before it is used, the pod's own rows are laid over it,
//! and taken off again before the next use. So a placement costs one new evaluation of its row for all of
//! these pods together, instead of one for each.

use super::class::Evaluation;
use super::scope::{RowResult, Scope};
use crate::framework::ShapeId;
use crate::state::NodeIndex;
use rustc_hash::FxHashMap;

/// The maximum number of rows of an overlay. With more, a pod gets an evaluation of its own: there can only
/// be few such shapes.
pub(super) const MAX_ROWS: usize = 128;
/// The maximum number of overlays per evaluation.
const MAX_SHAPES: usize = 4096;

/// Results of one shape on its rows; while they are laid over the evaluation, the results they replace.
#[derive(Debug, Default)]
struct RowOverlay {
    /// Rows with the node version they were evaluated at, sorted by row.
    rows: Vec<(NodeIndex, u64, RowResult)>,
    /// The sums of the contributions that depend on no other row, by row.
    fixed: Vec<i64>,
    /// Raw scores, as many per row as there are columns.
    raws: Vec<i64>,
}

/// The overlays of an evaluation, by shape.
#[derive(Debug, Default)]
pub(super) struct RowOverlays {
    by_shape: FxHashMap<ShapeId, RowOverlay>,
    /// The shape that is laid over the evaluation now.
    over: Option<ShapeId>,
}

impl RowOverlays {
    /// Returns the approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let overlay_bytes = |overlay: &RowOverlay| {
            let numbers = overlay.fixed.len() + overlay.raws.len();
            size_of::<(NodeIndex, u64, RowResult)>() * overlay.rows.len() + 8 * numbers + 256
        };
        // Few evaluations have overlays, and those that do have many of equal size.
        let first = self.by_shape.values().next().map_or(0, overlay_bytes);
        first * self.by_shape.len()
    }
}

impl Evaluation {
    /// Lays the results of a pod of shape `shape` on `rows`, sorted, over the evaluation.
    pub(super) fn add_overlay(&mut self, scope: &Scope<'_>, rows: &[NodeIndex], shape: ShapeId) {
        if rows.is_empty() {
            return;
        }
        let width = self.columns.len();
        let mut overlay = self.overlays.by_shape.remove(&shape).unwrap_or_default();
        if !overlay.rows.iter().map(|(node, ..)| node).eq(rows) {
            overlay = overlay.moved_to(rows, width);
        }
        let mut looked_up = Vec::with_capacity(width);
        for (at, (node, version, result)) in overlay.rows.iter_mut().enumerate() {
            let now = scope.nodes().version(*node);
            if *version != now {
                looked_up.clear();
                (*version, *result) = (now, scope.evaluate(*node, &mut looked_up));
                self.filter_stats.count_verdict(&result.verdict);
                looked_up.resize(width, 0);
                overlay.fixed[at] = self.fixed_of(&looked_up);
                overlay.raws[at * width..(at + 1) * width].copy_from_slice(&looked_up);
            }
        }
        self.exchange(scope, &mut overlay);
        if self.overlays.by_shape.len() >= MAX_SHAPES {
            self.overlays.by_shape.clear();
        }
        self.overlays.by_shape.insert(shape, overlay);
        self.overlays.over = Some(shape);
    }

    /// Undoes [`Self::add_overlay`].
    pub(super) fn remove_overlay(&mut self, scope: &Scope<'_>) {
        if let Some(over) = self.overlays.over.take()
            && let Some(mut overlay) = self.overlays.by_shape.remove(&over)
        {
            self.exchange(scope, &mut overlay);
            self.overlays.by_shape.insert(over, overlay);
        }
    }

    /// Exchanges the results in `overlay` with those that the evaluation holds for the same rows.
    fn exchange(&mut self, scope: &Scope<'_>, overlay: &mut RowOverlay) {
        let nodes: Vec<NodeIndex> = overlay.rows.iter().map(|(node, ..)| *node).collect();
        let width = self.columns.len();
        let mut raws = vec![0; width];
        self.replace(scope, &nodes, |evaluation, at| {
            let (Some((node, _, result)), Some(fixed)) =
                (overlay.rows.get_mut(at), overlay.fixed.get_mut(at))
            else {
                return;
            };
            let stored_raws = &mut overlay.raws[at * width..(at + 1) * width];
            raws.copy_from_slice(stored_raws);
            let (old_result, old_fixed) = evaluation.recorded(*node, stored_raws);
            let new_result = std::mem::replace(result, old_result);
            let new_fixed = std::mem::replace(fixed, old_fixed);
            evaluation.record(*node, new_result, new_fixed, raws.iter().copied());
        });
    }
}

impl RowOverlay {
    /// Returns the overlay for other rows, with results of rows that were evaluated before.
    fn moved_to(self, rows: &[NodeIndex], width: usize) -> Self {
        let mut out = Self {
            rows: Vec::with_capacity(rows.len()),
            fixed: Vec::with_capacity(rows.len()),
            raws: Vec::with_capacity(rows.len() * width),
        };
        let mut evaluated = self.rows.into_iter().enumerate().peekable();
        for node in rows {
            while evaluated.next_if(|(_, (row, ..))| row < node).is_some() {}
            match evaluated.next_if(|(_, (row, ..))| row == node) {
                Some((at, row)) => {
                    out.rows.push(row);
                    out.fixed.push(self.fixed[at]);
                    let raws = &self.raws[at * width..(at + 1) * width];
                    out.raws.extend_from_slice(raws);
                }
                None => {
                    // No row has this version, so the row will be evaluated.
                    out.rows.push((*node, 0, RowResult::default()));
                    out.fixed.push(0);
                    out.raws.resize(out.raws.len() + width, 0);
                }
            }
        }
        out
    }
}
