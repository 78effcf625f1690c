//! Evaluation of pods that are restricted to few nodes: those of DaemonSets, and those that name their node
//! or use a volume that exists on it.
//!
//! No two of these pods have the same shape, so an evaluation of every row would serve only one pod. The
//! listed rows are evaluated without being cached. All other rows are refused with the one reason of the
//! plugin that listed the rows; if a plugin only hinted at the list and none of it fits, they are evaluated
//! after all. The decision equals that of an evaluation of every row.

use super::class::{Column, columns, key, tie};
use super::explain::Table;
use super::measure::{FilterStats, Meter, Point};
use super::scope::Scope;
use super::second_stage::{self, Rows};
use super::select::{Choice, refusal};
use super::tree::Key;
use crate::framework::{Code, Rejection, RejectionCounts, RowVerdict};
use crate::state::NodeIndex;
use std::borrow::Cow;
use std::cmp::Reverse;

/// The maximum number of rows; with more, pods gain from sharing evaluations.
pub(super) const MOST: usize = 16;

/// Returns the rows that a pod is restricted to, sorted, if they are few.
pub(super) fn list<'a>(
    scope: &Scope<'a>,
    meter: &Meter,
    names: &[&'static str],
) -> Option<Cow<'a, [NodeIndex]>> {
    if let Some(list) = &scope.prepared.only {
        return (list.len() <= MOST).then(|| list.into());
    }
    let filters = scope.prepared.filters.iter();
    let lists = filters.filter_map(|(plugin, state)| {
        let pre_filter = scope.plugins[*plugin].pre_filter()?;
        meter.time(
            names[*plugin],
            Point::AfterPreFilter,
            Option::is_some,
            || pre_filter.only_nodes(&scope.cycle, state),
        )
    });
    let mut list = lists
        .min_by_key(Vec::len)
        .filter(|list| list.len() <= MOST)?;
    list.sort_unstable();
    list.dedup();
    Some(list.into())
}

/// Filter and score results for a pod that is restricted to few nodes.
#[derive(Debug, Default)]
pub(super) struct CandidateSubset {
    /// The verdicts on existing nodes, in order.
    judged: Vec<(NodeIndex, RowVerdict)>,
    /// The nodes that fit, in order; their raw scores are in `raws`.
    fits: Vec<NodeIndex>,
    raws: Vec<i64>,
    columns: Vec<Column>,
    pub(super) filter_stats: FilterStats,
}

impl CandidateSubset {
    /// Filters and scores the rows of `list`.
    pub(super) fn judge(scope: &Scope<'_>, list: &[NodeIndex]) -> Self {
        let mut out = Self {
            columns: columns(scope),
            ..Self::default()
        };
        let (mut stable, mut raws) = (0, Vec::new());
        for node in list {
            raws.clear();
            let mut verdict = scope.evaluate(*node, &mut raws).verdict;
            if matches!(verdict, RowVerdict::Absent) {
                continue;
            }
            out.filter_stats.count_verdict(&verdict);
            if matches!(verdict, RowVerdict::Fits(_)) {
                stable += 1;
                if scope.needs_second_stage()
                    && let Some((plugin, rejection)) = scope.volatile_refusal(*node, &[])
                {
                    verdict = RowVerdict::Refused(plugin, rejection);
                }
            }
            if matches!(verdict, RowVerdict::Fits(_)) {
                out.fits.push(*node);
                out.raws.extend_from_slice(&raws);
            }
            out.judged.push((*node, verdict));
        }
        if second_stage::is_needed(scope, &out.columns) {
            out.filter_stats.stage(stable, out.fits.len());
        }
        if let Some(by) = scope.prepared.only_by.first() {
            out.filter_stats.refused_by(*by, out.outside(scope));
        }
        for (at, column) in out.columns.iter_mut().enumerate() {
            let raws = out
                .raws
                .iter()
                .skip(at)
                .step_by(scope.prepared.scores.len());
            column.max = raws.copied().max().unwrap_or(0).max(0);
        }
        out
    }

    /// Returns how many nodes are not on the list.
    fn outside(&self, scope: &Scope<'_>) -> usize {
        scope.nodes().len() - self.judged.len()
    }

    /// Returns the best node, or `None` if no node fits.
    pub(super) fn best(&self, scope: &Scope<'_>) -> Option<NodeIndex> {
        let keys = (0..self.fits.len())
            .map(|index| self.key(scope, index))
            .collect();
        let rows = Rows {
            nodes: &self.fits,
            columns: &self.columns,
            raw: &|at, column| self.raws[at * self.columns.len() + column],
            around: None,
        };
        second_stage::best(scope, &rows, keys)
    }

    /// Returns the sort key of a node, equal to that in an evaluation of every row.
    fn key(&self, scope: &Scope<'_>, at: usize) -> Key {
        let raws = self.raws_of(at);
        let shares = self.columns.iter().zip(raws);
        let total: i64 = shares.map(|(column, raw)| column.share(*raw)).sum();
        let (node, version) = (self.fits[at], scope.nodes().version(self.fits[at]));
        key(total, tie(scope.seed, version, node.row()))
    }

    fn raws_of(&self, at: usize) -> &[i64] {
        let width = self.columns.len();
        &self.raws[at * width..(at + 1) * width]
    }

    /// Returns the nodes that fit, in order.
    pub(super) fn offers(&self) -> Vec<NodeIndex> {
        self.fits.clone()
    }

    /// Returns the choice of `best`, or the refusal if there is none.
    pub(super) fn answer(
        &self,
        best: Option<NodeIndex>,
        scope: &Scope<'_>,
        names: &[&'static str],
        victims: bool,
    ) -> Result<Choice, super::cycle::CycleError> {
        let nodes = scope.nodes().len();
        if let Some(node) = best {
            let numa = self.judged.iter().find_map(|(judged, verdict)| {
                let RowVerdict::Fits(numa) = verdict else {
                    return None;
                };
                (*judged == node).then_some(*numa)
            });
            let compared = (nodes, self.fits.len());
            return Ok(Choice::new(scope, node, numa.flatten(), compared));
        }
        let mut tally = RejectionCounts::default();
        for (_, verdict) in &self.judged {
            if let RowVerdict::Refused(plugin, rejection) = verdict {
                tally.add(*plugin, rejection);
            }
        }
        let (by, rejection) = scope.outside();
        tally.add_many(by, &rejection, self.outside(scope));
        Err(refusal(&tally, nodes, names, victims, || {
            let might = |rejection: &Rejection| rejection.code == Code::Unschedulable;
            let refused = self
                .judged
                .iter()
                .filter_map(|(node, verdict)| match verdict {
                    RowVerdict::Refused(_, rejection) if might(rejection) => Some(*node),
                    _ => None,
                });
            refused.collect()
        }))
    }

    /// Compares `best` with the others.
    pub(super) fn table(&self, scope: &Scope<'_>, best: NodeIndex) -> Table {
        let mut order: Vec<usize> = (0..self.fits.len()).collect();
        let rank = |at: usize| {
            let key = self.key(scope, at);
            let rank = scope
                .extender_verdicts
                .map(|extender_verdicts| extender_verdicts.rank(key, self.fits[at]));
            (rank, key)
        };
        order.sort_by_key(|index| (self.fits[*index] != best, Reverse(rank(*index))));
        let ranking = order
            .into_iter()
            .take(super::explain::RANKED)
            .map(|index| scope.scored(self.fits[index], &self.columns, self.raws_of(index)));
        Table {
            feasible: self.fits.len(),
            nodes: scope.nodes().len(),
            ranking: ranking.collect(),
        }
    }
}
