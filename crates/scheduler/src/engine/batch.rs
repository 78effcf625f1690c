//! Many rows looked at together: one plugin after the other says what it says of all of them.
//!
//! Asked row by row, the plugins' answers cost less than asking for them.

use super::diagnosis::RowVerdict;
use super::scope::{Looked, Scope};
use crate::framework::Cycle;
use crate::state::NodeIndex;

/// What was found of rows, by position in what was asked for.
#[derive(Debug, Default)]
pub(super) struct Batch {
    looked: Vec<Looked>,
    /// Raw scores by row, then by column; 0 in rows that do not fit.
    raws: Vec<i64>,
    width: usize,
}

impl Batch {
    /// Takes out what was found of the row at position `at`.
    pub(super) fn take(&mut self, at: usize) -> (Looked, &[i64]) {
        let raws = &self.raws[at * self.width..(at + 1) * self.width];
        (std::mem::take(&mut self.looked[at]), raws)
    }

    fn raws_mut(&mut self, at: usize) -> &mut [i64] {
        &mut self.raws[at * self.width..(at + 1) * self.width]
    }
}

/// The rows of a batch that nobody refused so far.
#[derive(Default)]
struct Left {
    nodes: Vec<NodeIndex>,
    /// Their positions in the batch.
    at: Vec<usize>,
}

impl Left {
    fn push(&mut self, at: usize, node: NodeIndex) {
        self.nodes.push(node);
        self.at.push(at);
    }

    /// Drops those that something was said of.
    fn drop_settled(&mut self, batch: &Batch) {
        let open = |at: &usize| matches!(batch.looked[*at].verdict, RowVerdict::Absent);
        let mut at = self.at.iter();
        self.nodes.retain(|_| at.next().is_some_and(open));
        self.at.retain(open);
    }
}

impl Scope<'_> {
    /// [`Scope::look`] for each of `rows`.
    pub(super) fn look_each(&self, rows: &[NodeIndex]) -> Batch {
        let width = self.prepared.scores.len();
        let mut batch = Batch {
            looked: Vec::with_capacity(rows.len()),
            raws: vec![0; rows.len() * width],
            width,
        };
        batch.looked.resize_with(rows.len(), Looked::default);
        let mut left = self.like_the_books(rows, &mut batch);
        for (plugin, state) in &self.prepared.filters {
            if self.leaves_out(*plugin) {
                continue;
            }
            let mut settled = false;
            let mut refuse = |at: usize, rejection| {
                batch.looked[left.at[at]].verdict = RowVerdict::Refused(*plugin, rejection);
                settled = true;
            };
            self.plugins[*plugin].filter_each(&self.cycle, state, &left.nodes, &mut refuse);
            if settled {
                left.drop_settled(&batch);
            }
        }
        self.align_each(&mut batch, &mut left);
        for at in &left.at {
            batch.looked[*at].verdict = RowVerdict::Fits(None);
        }
        let mut scores = vec![0; left.nodes.len()];
        for (column, (plugin, _, state)) in self.prepared.scores.iter().enumerate() {
            if self.leaves_out(*plugin) {
                continue;
            }
            scores.fill(0);
            self.plugins[*plugin].score_each(&self.cycle, state, &left.nodes, &mut scores);
            for (at, score) in left.at.iter().zip(&scores) {
                batch.raws[at * width + column] = *score;
            }
        }
        batch
    }

    /// The rows that are to be judged as the books have them. The others are judged on the spot: what
    /// is imagined differs from one to the other.
    fn like_the_books(&self, rows: &[NodeIndex], batch: &mut Batch) -> Left {
        let promised = self.promised();
        let releases = !self.bare && !self.prepared.releasing.is_empty();
        let mut left = Left::default();
        let mut raws = Vec::with_capacity(batch.width);
        for (at, node) in rows.iter().enumerate() {
            if !self.nodes().is_present(*node) {
                continue;
            }
            let listed = self.prepared.only.as_ref();
            if listed.is_some_and(|only| only.binary_search(node).is_err()) {
                let (by, rejection) = self.outside();
                batch.looked[at].verdict = RowVerdict::Refused(by, rejection);
            } else if promised.contains(node) || releases && self.releases_any(*node) {
                raws.clear();
                batch.looked[at] = self.look(*node, &mut raws);
                batch.raws_mut(at)[..raws.len()].copy_from_slice(&raws);
            } else {
                left.push(at, *node);
            }
        }
        left
    }

    /// Settles those of `left` on which NUMA nodes are to be agreed on.
    fn align_each(&self, batch: &mut Batch, left: &mut Left) {
        let mut aligned = Vec::new();
        for (_, plugin, state) in self.aligning() {
            let mut asks = |at| aligned.push(at);
            plugin.aligns_each(&self.cycle, state, &left.nodes, &mut asks);
        }
        if aligned.is_empty() {
            return;
        }
        aligned.sort_unstable();
        aligned.dedup();
        let mut raws = Vec::with_capacity(batch.width);
        for (at, node) in aligned.into_iter().map(|at| (left.at[at], left.nodes[at])) {
            let verdict = self.align(&self.cycle, node);
            if let RowVerdict::Fits(numa) = &verdict {
                let cycle = Cycle {
                    numa: *numa,
                    ..self.cycle
                };
                raws.clear();
                self.score(&cycle, node, &mut raws);
                batch.raws_mut(at).copy_from_slice(&raws);
            }
            batch.looked[at].verdict = verdict;
        }
        left.drop_settled(batch);
    }
}
