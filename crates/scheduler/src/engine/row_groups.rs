//! Candidates by group of rows, for verdicts and scores that are equal for all rows of a topology domain.
//!
//! A volatile plugin that spreads or gathers pods decides alike for all nodes of a zone, except for the few
//! with pods of the same kind. The best node is then the best of a zone by shared scores, or one of those
//! few: a handful of candidates per pod, instead of all nodes that fit. The rows are held in a second tree,
//! in which those of a group are adjacent.

use super::class::Evaluation;
use super::scope::Scope;
use super::second_stage::{self, Rows};
use super::tree::{Key, Tree};
use crate::framework::{FitSummary, Groups};
use crate::state::NodeIndex;
use std::sync::Arc;

/// Rows by group, with their keys.
#[derive(Debug)]
pub(super) struct RowGroups {
    of: Option<Arc<Vec<u32>>>,
    /// The place of each row in `tree`.
    places: Vec<u32>,
    rows: Vec<u32>,
    /// The ranges of the groups that have rows: places, number of rows that fit, and whether it is a group
    /// rather than the rows without one.
    ranges: Vec<Range>,
    /// The range of each row.
    range_of: Vec<u32>,
    tree: Tree,
}

#[derive(Debug, Clone, Copy)]
struct Range {
    start: usize,
    end: usize,
    fitting: usize,
    is_group: bool,
}

/// Rows that represent all others.
#[derive(Debug, Default)]
struct Candidates {
    /// The nodes, in order.
    nodes: Vec<NodeIndex>,
    /// The best of the rows that are alike, for each range.
    best: Vec<Option<NodeIndex>>,
    counts: Vec<usize>,
}

impl RowGroups {
    /// Groups `rows` rows by `of`; without it, all rows form one group.
    fn new(of: Option<Arc<Vec<u32>>>, keys: &[Key], rows: usize) -> Self {
        let group = |row: u32| match &of {
            Some(of) => of.get(row as usize).copied().unwrap_or(Groups::NONE),
            None => 0,
        };
        let mut order: Vec<u32> = (0..u32::try_from(rows).unwrap_or(u32::MAX)).collect();
        order.sort_by_key(|row| group(*row));
        let (mut places, mut range_of) = (vec![0; rows], vec![0; rows]);
        let mut ranges: Vec<Range> = Vec::new();
        let mut last = None;
        for (place, row) in order.iter().enumerate() {
            if last != Some(group(*row)) {
                last = Some(group(*row));
                ranges.push(Range {
                    start: place,
                    end: place,
                    fitting: 0,
                    is_group: group(*row) != Groups::NONE,
                });
            }
            let last = ranges.len() - 1;
            ranges[last].end = place + 1;
            ranges[last].fitting += usize::from(keys[*row as usize] != 0);
            places[*row as usize] = u32::try_from(place).unwrap_or(u32::MAX);
            range_of[*row as usize] = u32::try_from(last).unwrap_or(u32::MAX);
        }
        let tree = Tree::new(order.iter().map(|row| keys[*row as usize]).collect());
        Self {
            of,
            places,
            rows: order,
            ranges,
            range_of,
            tree,
        }
    }

    /// Returns true if this was built from the groups `of`.
    fn is_of(&self, of: Option<&Arc<Vec<u32>>>) -> bool {
        match (&self.of, of) {
            (Some(own), Some(of)) => Arc::ptr_eq(own, of),
            (None, None) => true,
            _ => false,
        }
    }

    /// Updates a row's key.
    pub(super) fn set(&mut self, row: usize, before: Key, key: Key) {
        let range = &mut self.ranges[self.range_of[row] as usize];
        range.fitting = range.fitting + usize::from(key != 0) - usize::from(before != 0);
        self.tree.set(self.places[row] as usize, key);
    }

    /// Returns the best row of each group without those of `apart`, and those of `apart` that fit.
    fn candidates(&self, apart: &[NodeIndex], keys: &[Key]) -> Candidates {
        let mut out = Candidates {
            counts: self.ranges.iter().map(|range| range.fitting).collect(),
            ..Candidates::default()
        };
        for node in apart {
            if keys.get(node.row()).is_some_and(|key| *key != 0) {
                out.nodes.push(*node);
                out.counts[self.range_of[node.row()] as usize] -= 1;
            }
        }
        for (range, count) in self.ranges.iter().zip(&out.counts) {
            let is_apart = |place: usize| apart.binary_search(&NodeIndex(self.rows[place])).is_ok();
            let best = (*count > 0)
                .then(|| self.tree.best_within(range.start..range.end, is_apart))
                .flatten()
                .map(|place| NodeIndex(self.rows[place]));
            out.best.push(best);
            out.nodes.extend(best);
        }
        out.nodes.sort_unstable();
        out
    }

    /// Summarizes all nodes that fit, given the `candidates` that are `left`.
    fn around(&self, candidates: &Candidates, left: &[NodeIndex]) -> FitSummary {
        let is_left =
            |node: &Option<NodeIndex>| node.is_some_and(|node| left.binary_search(&node).is_ok());
        let best = candidates.best.iter().zip(&candidates.counts);
        let mut fitting: Vec<usize> = best
            .map(|(best, count)| if is_left(best) { *count } else { 0 })
            .collect();
        for node in left {
            let range = self.range_of[node.row()] as usize;
            if candidates.best[range] != Some(*node) {
                fitting[range] += 1;
            }
        }
        let mut out = FitSummary::default();
        for (range, fitting) in self.ranges.iter().zip(fitting) {
            out.fitting += fitting;
            if range.is_group {
                out.groups += usize::from(fitting > 0);
            } else {
                out.ungrouped += fitting;
            }
        }
        out
    }

    /// Returns the approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        12 * self.places.len() + self.tree.bytes()
    }
}

impl Evaluation {
    /// Returns the best node if it can be found by groups; `None` if all rows must be compared.
    pub(super) fn best_by_groups(&mut self, scope: &Scope<'_>) -> Option<Option<NodeIndex>> {
        // A comparison of every row is the reference that this is tested against.
        if !scope.shared
            || scope.extender_verdicts.is_some()
            || !second_stage::is_plain(&self.columns)
        {
            return None;
        }
        let judges = !scope.prepared.volatile_filters.is_empty();
        // Relative scores depend on all remaining rows; and where the pod may take the place of others, the
        // rows of a group are not alike.
        let relative = self.columns.iter().any(|c| c.is_relative() && c.max > 0);
        if judges && (relative || !self.releasing.is_empty()) {
            return None;
        }
        let (all, each) = groups(scope)?;
        let (by, mut apart) = (all.by, all.apart);
        if judges {
            // Nominated pods are treated as added on these nodes.
            apart.extend(scope.nominated_nodes());
        }
        let rows = self.rows();
        let limit = Groups::most(rows);
        if apart.len() > limit {
            return None;
        }
        apart.sort_unstable();
        apart.dedup();
        let rows_by_group = by.map(|label| label.rows);
        let current = self
            .grouped
            .take()
            .filter(|current| current.is_of(rows_by_group.as_ref()));
        let fresh = || Box::new(RowGroups::new(rows_by_group, self.tree.rows(), rows));
        let grouped = current.unwrap_or_else(fresh);
        self.grouped = Some(grouped);
        let (grouped, keys) = (self.grouped.as_deref()?, self.tree.rows());
        if grouped.ranges.len() > limit {
            return None;
        }
        let candidates = grouped.candidates(&apart, keys);
        let mut passed = candidates.nodes.clone();
        self.drop_refused(scope, &mut passed);
        let around = grouped.around(&candidates, &passed);
        let fitting = self.verdicts.fitting();
        self.filter_stats.stage(fitting, around.fitting);
        let around: Vec<FitSummary> = each
            .into_iter()
            .map(|by_label| match by_label {
                true => around,
                false => FitSummary {
                    ungrouped: 0,
                    groups: usize::from(around.fitting > 0),
                    ..around
                },
            })
            .collect();
        let keys = passed.iter().map(|node| keys[node.row()]).collect();
        let rows = Rows {
            nodes: &passed,
            columns: &self.columns,
            raw: &|at, column| self.columns[column].raw(passed[at].row()),
            around: Some(&around),
        };
        Some(second_stage::best(scope, &rows, keys))
    }
}

/// Returns the groups of nodes that all volatile plugins of `scope` treat alike, and for each scoring one
/// whether it uses the label.
fn groups(scope: &Scope<'_>) -> Option<(Groups, Vec<bool>)> {
    let (mut all, mut each) = (Groups::default(), Vec::new());
    for (plugin, state) in &scope.prepared.volatile_filters {
        let volatile = scope.plugins[*plugin].volatile()?;
        all = all.and(volatile.filter_groups(&scope.cycle, state)?)?;
    }
    for (plugin, _, state) in &scope.prepared.volatile_scores {
        let volatile = scope.plugins[*plugin].volatile()?;
        let groups = volatile.score_groups(&scope.cycle, state)?;
        each.push(groups.by.is_some());
        all = all.and(groups)?;
    }
    Some((all, each))
}
