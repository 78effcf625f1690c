//! Candidates of each group of rows: for scores that are the same for all rows of a domain.
//!
//! A volatile plugin that spreads pods gives all nodes of a zone one score, but for the few on which
//! pods of the same kind are. Then the best node is the best of a zone as shared scores have it, or one
//! of the few: a handful of candidates for each pod, instead of all nodes that fit. The rows are kept in
//! a second tree, in which those of a group are neighbours.

use super::class::Evaluation;
use super::scope::Scope;
use super::stage::{self, Rows};
use super::tree::{Key, Tree};
use crate::framework::{Groups, Surroundings};
use crate::state::NodeIndex;
use std::sync::Arc;

/// So many rows may be unlike the others of their groups in any cluster.
const MANY: usize = 64;

/// Rows by group, with their keys.
#[derive(Debug)]
pub(super) struct Grouped {
    of: Option<Arc<Vec<u32>>>,
    /// By row: its place in `tree`; by place: the row.
    places: Vec<u32>,
    rows: Vec<u32>,
    /// Of each group that has rows: its places, how many of them fit, and whether it is one at all
    /// rather than the rows without a group.
    ranges: Vec<Range>,
    /// By row: its range.
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

impl Grouped {
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
            let at = ranges.len() - 1;
            ranges[at].end = place + 1;
            ranges[at].fitting += usize::from(keys[*row as usize] != 0);
            places[*row as usize] = u32::try_from(place).unwrap_or(u32::MAX);
            range_of[*row as usize] = u32::try_from(at).unwrap_or(u32::MAX);
        }
        let tree = Tree::of(order.iter().map(|row| keys[*row as usize]).collect());
        Self {
            of,
            places,
            rows: order,
            ranges,
            range_of,
            tree,
        }
    }

    /// Whether it was made from these groups.
    fn is_of(&self, of: Option<&Arc<Vec<u32>>>) -> bool {
        match (&self.of, of) {
            (Some(own), Some(of)) => Arc::ptr_eq(own, of),
            (None, None) => true,
            _ => false,
        }
    }

    /// A row's key changed.
    pub(super) fn set(&mut self, row: usize, before: Key, key: Key) {
        let range = &mut self.ranges[self.range_of[row] as usize];
        range.fitting = range.fitting + usize::from(key != 0) - usize::from(before != 0);
        self.tree.set(self.places[row] as usize, key);
    }

    /// The best row of each group that is not one of `apart`, and those of `apart` that fit; in order.
    fn candidates(&self, apart: &[NodeIndex], keys: &[Key]) -> Vec<NodeIndex> {
        let fits = |node: &&NodeIndex| keys.get(node.row()).is_some_and(|key| *key != 0);
        let mut out: Vec<NodeIndex> = apart.iter().filter(fits).copied().collect();
        for range in self.ranges.iter().filter(|range| range.fitting > 0) {
            let is_apart = |place: usize| apart.binary_search(&NodeIndex(self.rows[place])).is_ok();
            let best = self.tree.best_within(range.start..range.end, is_apart);
            out.extend(best.map(|place| NodeIndex(self.rows[place])));
        }
        out.sort_unstable();
        out
    }

    /// How many bytes it takes, about.
    pub(super) fn bytes(&self) -> usize {
        12 * self.places.len() + self.tree.bytes()
    }
}

impl Evaluation {
    /// The best node, if it can be found by groups.
    pub(super) fn best_by_groups(&mut self, scope: &Scope<'_>) -> Option<Option<NodeIndex>> {
        let prepared = scope.prepared;
        let [(plugin, _, state)] = &prepared.moving_scores[..] else {
            return None;
        };
        // A comparison of every row is what this is held against.
        if !scope.shared || scope.has_more_to_say() || !stage::is_plain(&self.columns) {
            return None;
        }
        let plugin = &scope.plugins[*plugin];
        let Groups { of, mut apart } = plugin.volatile()?.score_groups(&scope.cycle, state)?;
        let rows = self.rows();
        // With many that are not like others, there is little to win.
        if apart.len() > (rows / 8).max(MANY) {
            return None;
        }
        apart.sort_unstable();
        apart.dedup();
        let known = self.grouped.take().filter(|known| known.is_of(of.as_ref()));
        let keys = self.tree.rows();
        let grouped = known.unwrap_or_else(|| Box::new(Grouped::new(of, keys, rows)));
        let nodes = grouped.candidates(&apart, keys);
        let sum = |is_group: bool| -> usize {
            let those = grouped
                .ranges
                .iter()
                .filter(|range| range.is_group == is_group);
            those.map(|range| range.fitting).sum()
        };
        let around = Surroundings {
            fitting: sum(true) + sum(false),
            ungrouped: sum(false),
            groups: {
                let fit = |range: &&Range| range.is_group && range.fitting > 0;
                grouped.ranges.iter().filter(fit).count()
            },
        };
        self.fared.stage(around.fitting, around.fitting);
        let keys = nodes.iter().map(|node| keys[node.row()]).collect();
        let candidates = Rows {
            nodes: &nodes,
            columns: &self.columns,
            raw: &|at, column| self.columns[column].raw(nodes[at].row()),
            around: Some(&around),
        };
        let best = stage::best(scope, &candidates, keys);
        self.grouped = Some(grouped);
        Some(best)
    }
}
