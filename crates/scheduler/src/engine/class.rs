//! Pods of one shape share verdicts, scores and the order of candidates.
//!
//! An evaluation is exact for the row versions it has seen. Before each use it re-evaluates the
//! rows that changed since; a fresh evaluation of every row is the same thing with an empty past,
//! which is what makes the cached answer comparable with the exhaustive one.

use super::diagnosis::{RowVerdict, Tally};
use super::measure::Fared;
use super::nominator::{Nominator, ahead_of};
use super::tree::{Key, Tree};
use crate::framework::{
    Code, Cycle, Instance, Normalize, Overlay, Plugin, Reason, Reasons, Rejection, State,
};
use crate::queue::PluginSet;
use crate::state::{NodeIndex, NodeStore, PodInfo};
use koord_model::numa::NumaMask;
use rayon::prelude::*;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// What the plugins prepared for one pod.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// In order, without the plugins that skip and without volatile ones.
    pub(super) filters: Vec<(Instance, State)>,
    /// With weights, without the plugins that skip and without volatile ones.
    pub(super) scores: Vec<(Instance, i64, State)>,
    /// The volatile plugins that do not skip.
    pub(super) moving: Vec<(Instance, State)>,
    /// The same for scores.
    pub(super) moving_scores: Vec<(Instance, i64, State)>,
    /// Positions in `filters` of the plugins that release pods, and of those that align.
    pub(super) releasing: Vec<usize>,
    pub(super) aligning: Vec<usize>,
    /// Sorted. Other nodes are refused by `only_by`.
    pub(super) only: Option<Vec<NodeIndex>>,
    pub(super) only_by: Vec<Instance>,
    /// The reason of that refusal.
    pub(super) outside: Option<Reason>,
    /// The plugins that skipped before filtering, and before scoring.
    pub(super) skipped: PluginSet,
    pub(super) unscored: PluginSet,
}

/// Everything an evaluation reads.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(super) cycle: Cycle<'a>,
    pub(super) plugins: &'a [Box<dyn Plugin>],
    pub(super) prepared: &'a Prepared,
    pub(super) nominator: &'a Nominator,
    /// Whether the answer is for all pods of this shape and priority: then room is left for this
    /// pod too where it is nominated.
    pub(super) shared: bool,
    pub(super) seed: u64,
    /// From this many rows on, several threads judge them.
    pub(super) parallel_rows: usize,
}

impl Scope<'_> {
    fn nodes(&self) -> &NodeStore {
        self.cycle.view.nodes
    }

    /// The full filter chain on one row.
    pub(super) fn judge(&self, node: NodeIndex) -> RowVerdict {
        self.judge_without(node, &[])
    }

    /// The same, as if `victims` were gone from the node. Where pods of the same or a higher
    /// priority are nominated to it, the pod must fit both beside them and without them: some
    /// rules, like affinity to pods, pass only because of them.
    pub(super) fn judge_without(&self, node: NodeIndex, victims: &[Arc<PodInfo>]) -> RowVerdict {
        let verdict = self.judge_stable(node, victims);
        if self.prepared.moving.is_empty() || !matches!(verdict, RowVerdict::Fits(_)) {
            return verdict;
        }
        match self.judge_moving(node, victims) {
            Some((plugin, rejection)) => RowVerdict::Refused(plugin, rejection),
            None => verdict,
        }
    }

    /// The same without the volatile plugins: what pods of one shape share.
    fn judge_stable(&self, node: NodeIndex, victims: &[Arc<PodInfo>]) -> RowVerdict {
        if self.nodes().info(node).is_none() {
            return RowVerdict::Absent;
        }
        if let Some(only) = &self.prepared.only
            && only.binary_search(&node).is_err()
        {
            let by = self.prepared.only_by.first().copied().unwrap_or_default();
            let reason = self.prepared.outside.clone().unwrap_or("".into());
            return RowVerdict::Refused(by, Rejection::unresolvable(reason));
        }
        let (removed, added) = self.imagined(node, victims);
        if !added.is_empty() {
            let verdict = self.chain(&self.imagine(&removed, &added), node);
            if !matches!(verdict, RowVerdict::Fits(_)) {
                return verdict;
            }
        }
        self.chain(&self.imagine(&removed, &[]), node)
    }

    /// The pods to imagine away from `node`, and those to imagine there first.
    pub(super) fn imagined(
        &self,
        node: NodeIndex,
        victims: &[Arc<PodInfo>],
    ) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
        let mut removed = self.released(node);
        removed.extend_from_slice(victims);
        let mut added = ahead_of(self.nominator, self.nodes(), self.cycle.pod, node);
        if !self.shared {
            added.retain(|other| other.uid != self.cycle.pod.uid);
        }
        (removed, added)
    }

    /// The volatile plugin that refuses a row, if any, and why.
    pub(super) fn judge_moving(
        &self,
        node: NodeIndex,
        victims: &[Arc<PodInfo>],
    ) -> Option<(Instance, Rejection)> {
        let (removed, added) = self.imagined(node, victims);
        let beside = || self.moving(&self.imagine(&removed, &added), node);
        let refused = if added.is_empty() { None } else { beside() };
        refused.or_else(|| self.moving(&self.imagine(&removed, &[]), node))
    }

    /// As [`Self::judge_moving`], with what `cycle` imagines of the row.
    pub(super) fn moving(
        &self,
        cycle: &Cycle<'_>,
        node: NodeIndex,
    ) -> Option<(Instance, Rejection)> {
        self.prepared.moving.iter().find_map(|(plugin, state)| {
            let refused = self.plugins[*plugin].filter(cycle, state, node).err()?;
            Some((*plugin, refused))
        })
    }

    /// The pods on `node` whose place this pod may take.
    fn released(&self, node: NodeIndex) -> Vec<Arc<PodInfo>> {
        let mut out = Vec::new();
        for (plugin, state) in self.states(&self.prepared.releasing) {
            self.plugins[plugin].release(&self.cycle, state, node, &mut out);
        }
        out
    }

    /// The nodes that pods are nominated to.
    pub(super) fn promised(&self) -> FxHashSet<NodeIndex> {
        let names = self.nominator.nodes();
        names.filter_map(|name| self.nodes().find(name)).collect()
    }

    /// The released pod whose place this pod takes on `node`.
    pub(super) fn nominate(&self, node: NodeIndex, numa: Option<NumaMask>) -> Option<Arc<PodInfo>> {
        if self.prepared.releasing.is_empty() {
            return None;
        }
        let cycle = Cycle { numa, ..self.cycle };
        let mut agreed = self.released(node);
        agreed.retain(|from| {
            let mut filters = self.prepared.filters.iter();
            filters.all(|(plugin, state)| self.plugins[*plugin].agrees(&cycle, state, node, from))
        });
        self.states(&self.prepared.releasing)
            .find_map(|(plugin, state)| self.plugins[plugin].nominate(&cycle, state, node, &agreed))
    }

    pub(super) fn imagine<'b>(
        &self,
        removed: &'b [Arc<PodInfo>],
        added: &'b [Arc<PodInfo>],
    ) -> Cycle<'b>
    where
        Self: 'b,
    {
        Cycle {
            overlay: Overlay { removed, added },
            ..self.cycle
        }
    }

    fn states<'b>(&'b self, at: &'b [usize]) -> impl Iterator<Item = (Instance, &'b State)> {
        at.iter().filter_map(|at| {
            let (plugin, state) = self.prepared.filters.get(*at)?;
            Some((*plugin, state))
        })
    }

    /// Judges one row and appends its raw scores, if it fits, to `raws`: all that pods of one
    /// shape share.
    fn look(&self, node: NodeIndex, raws: &mut Vec<i64>) -> Looked {
        let verdict = self.judge_stable(node, &[]);
        let mut releases = false;
        if let RowVerdict::Fits(numa) = &verdict {
            let removed = self.released(node);
            releases = !removed.is_empty();
            let cycle = Cycle {
                numa: *numa,
                ..self.imagine(&removed, &[])
            };
            let scores = self.prepared.scores.iter();
            raws.extend(
                scores.map(|(plugin, _, state)| self.plugins[*plugin].score(&cycle, state, node)),
            );
        }
        Looked { verdict, releases }
    }

    /// The filters of all but the volatile plugins.
    fn chain(&self, cycle: &Cycle<'_>, node: NodeIndex) -> RowVerdict {
        for (plugin, state) in &self.prepared.filters {
            if let Err(rejection) = self.plugins[*plugin].filter(cycle, state, node) {
                return RowVerdict::Refused(*plugin, rejection);
            }
        }
        self.align(cycle, node)
    }

    /// Makes the plugins that hand out NUMA resources agree, where the node or the pod asks for it.
    fn align(&self, cycle: &Cycle<'_>, node: NodeIndex) -> RowVerdict {
        let asked = self
            .states(&self.prepared.aligning)
            .find_map(|(plugin, state)| {
                let policy = self.plugins[plugin].numa_policy(cycle, state, node)?;
                Some((plugin, policy))
            });
        let Some((owner, policy)) = asked else {
            return RowVerdict::Fits(None);
        };
        let mut offers = Vec::new();
        for (plugin, state) in self.states(&self.prepared.aligning) {
            match self.plugins[plugin].numa_hints(cycle, state, node, &policy) {
                Ok(offer) => offers.push(offer),
                Err(rejection) => return RowVerdict::Refused(plugin, rejection),
            }
        }
        let mask = match koord_model::numa::admit(&policy, &offers) {
            Ok(mask) => mask,
            Err(reasons) => {
                let reasons: Box<[Reason]> = reasons.into_iter().map(Reason::from).collect();
                let (code, reasons) = (Code::Unschedulable, Reasons::Many(reasons));
                return RowVerdict::Refused(owner, Rejection { code, reasons });
            }
        };
        let cycle = Cycle {
            numa: mask,
            ..*cycle
        };
        for (plugin, state) in self.states(&self.prepared.aligning) {
            if let Err(rejection) = self.plugins[plugin].numa_allocate(&cycle, state, node) {
                return RowVerdict::Refused(plugin, rejection);
            }
        }
        RowVerdict::Fits(mask)
    }
}

/// What was found of one row.
#[derive(Debug)]
struct Looked {
    verdict: RowVerdict,
    /// Whether the pod may take the place of others there.
    releases: bool,
}

/// One score plugin's raw scores.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) plugin: Instance,
    pub(super) weight: i64,
    pub(super) kind: Normalize,
    pub(super) raw: Vec<i64>,
    /// The largest raw score of a feasible row, at least 0, and how many rows have it.
    pub(super) max: i64,
    at_max: usize,
}

impl Column {
    /// Whether scores are divided by the largest one.
    pub(super) fn is_relative(&self) -> bool {
        matches!(self.kind, Normalize::Max | Normalize::MaxReversed)
    }

    /// What a row contributes to its total; nothing yet for `Normalize::Custom`.
    fn share(&self, row: usize) -> i64 {
        match self.kind {
            Normalize::Custom => 0,
            kind => self.weight * normal(kind, self.raw[row], self.max),
        }
    }
}

/// A raw score brought to 0..=100 by a built-in rule.
pub(super) fn normal(kind: Normalize, raw: i64, max: i64) -> i64 {
    let score = match kind {
        Normalize::None | Normalize::Custom => raw,
        Normalize::Max if max == 0 => raw,
        Normalize::Max => raw * 100 / max,
        Normalize::MaxReversed if max == 0 => 100,
        Normalize::MaxReversed => 100 - raw * 100 / max,
    };
    score.clamp(0, 100)
}

/// Verdicts and scores of all rows for one shape of pod.
#[derive(Debug, Default)]
pub(crate) struct Evaluation {
    position: u64,
    seen: Vec<u64>,
    verdicts: Vec<RowVerdict>,
    /// The list of nodes that pods of this shape were restricted to, last time.
    only: Option<Vec<NodeIndex>>,
    /// Rows whose pods this shape may replace, when it may replace any.
    pub(super) releasing: FxHashSet<NodeIndex>,
    pub(super) tally: Tally,
    pub(super) columns: Vec<Column>,
    pub(super) tree: Tree,
    pub(super) fared: Fared,
    /// How many rows fit.
    fitting: usize,
    /// When it was last used, for eviction.
    pub(super) used: u64,
}

impl Evaluation {
    /// Judges and scores every row.
    pub(super) fn fresh(scope: &Scope<'_>) -> Self {
        let mut out = Self::default();
        out.rebuild(scope);
        out
    }

    /// Brings verdicts and scores up to date.
    pub(super) fn refresh(&mut self, scope: &Scope<'_>) {
        let rows = scope.nodes().rows();
        let same_scores = self.columns.len() == scope.prepared.scores.len()
            && self
                .columns
                .iter()
                .zip(&scope.prepared.scores)
                .all(|(c, s)| c.plugin == s.0);
        let same = same_scores
            && self.verdicts.len() == rows
            && self.only.is_some() == scope.prepared.only.is_some();
        let changed = scope.nodes().changed_since(self.position);
        let (Some(changed), true) = (changed, same) else {
            return self.rebuild(scope);
        };
        let mut rows = Vec::new();
        if self.only != scope.prepared.only {
            let old = std::mem::replace(&mut self.only, scope.prepared.only.clone());
            rows.extend(either(&old, &self.only));
        }
        for node in changed {
            if self.seen[node.row()] != scope.nodes().version(node) {
                self.seen[node.row()] = scope.nodes().version(node);
                rows.push(node);
            }
        }
        self.position = scope.nodes().position();
        if self.only.is_some() {
            rows.retain(|node| node.row() < self.verdicts.len());
            rows.sort_unstable();
            rows.dedup();
        }
        if rows.is_empty() {
            return;
        }
        let before: Vec<i64> = self.columns.iter().map(|column| column.max).collect();
        for node in &rows {
            self.leave(node.row());
            self.enter(scope, *node);
        }
        let mut all = false;
        for (column, before) in self.columns.iter_mut().zip(before) {
            let relative = column.is_relative();
            if relative && column.at_max == 0 && column.max > 0 {
                rescan(column, &self.verdicts);
            }
            all |= relative && column.max != before;
        }
        if all {
            self.rank(scope);
        } else {
            for node in rows {
                self.tree.set(node.row(), self.key(scope, node.row()));
            }
        }
    }

    /// The best node; none when no node fits.
    pub(super) fn best(&self, scope: &Scope<'_>) -> Option<NodeIndex> {
        let prepared = scope.prepared;
        let custom = |column: &Column| column.kind == Normalize::Custom;
        if !prepared.moving.is_empty()
            || !prepared.moving_scores.is_empty()
            || self.columns.iter().any(custom)
        {
            return self.best_staged(scope);
        }
        let row = self.tree.best()?;
        u32::try_from(row).ok().map(NodeIndex)
    }

    /// How many nodes fit, as of the last [`Self::best`].
    pub(super) fn fitting(&self, scope: &Scope<'_>) -> usize {
        if scope.prepared.moving.is_empty() {
            self.fitting
        } else {
            self.fared.left()
        }
    }

    /// What was said of `node`.
    pub(super) fn verdict(&self, node: NodeIndex) -> Option<&RowVerdict> {
        self.verdicts.get(node.row())
    }

    /// The nodes that evicting pods might free.
    pub(super) fn helpable(&self, scope: &Scope<'_>) -> Vec<NodeIndex> {
        let mut nodes = super::diagnosis::helpable(&self.verdicts);
        let stable = nodes.len();
        nodes.extend(
            self.refused_moving(scope)
                .filter_map(|(node, _, rejection)| {
                    (rejection.code == Code::Unschedulable).then_some(node)
                }),
        );
        if nodes.len() > stable {
            nodes.sort_unstable();
        }
        nodes
    }

    /// The NUMA nodes agreed on for `node`.
    pub(super) fn numa(&self, node: NodeIndex) -> Option<NumaMask> {
        match self.verdicts.get(node.row()) {
            Some(RowVerdict::Fits(numa)) => *numa,
            _ => None,
        }
    }

    fn rebuild(&mut self, scope: &Scope<'_>) {
        let nodes = scope.nodes();
        let rows = nodes.rows();
        self.position = nodes.position();
        self.only.clone_from(&scope.prepared.only);
        self.releasing.clear();
        self.fitting = 0;
        self.tally = Tally::default();
        self.verdicts.clear();
        self.verdicts.resize_with(rows, RowVerdict::default);
        self.seen.clear();
        self.seen.resize(rows, 0);
        self.columns = scope
            .prepared
            .scores
            .iter()
            .map(|(plugin, weight, _)| Column {
                plugin: *plugin,
                weight: *weight,
                kind: scope.plugins[*plugin].normalization(),
                raw: vec![0; rows],
                max: 0,
                at_max: 0,
            })
            .collect();
        for (row, seen) in (0_u32..).zip(&mut self.seen) {
            *seen = nodes.version(NodeIndex(row));
        }
        // Rows are judged by several threads and recorded in order: no result depends on timing.
        let threads = rayon::current_num_threads();
        if rows < scope.parallel_rows || threads < 2 {
            for row in 0..u32::try_from(rows).unwrap_or(u32::MAX) {
                self.enter(scope, NodeIndex(row));
            }
        } else {
            let last = u32::try_from(rows).unwrap_or(u32::MAX);
            let part = rows.div_ceil(4 * threads);
            let starts: Vec<u32> = (0..last).step_by(part).collect();
            let part = u32::try_from(part).unwrap_or(u32::MAX);
            let looked: Vec<(Vec<Looked>, Vec<i64>)> = starts
                .par_iter()
                .map(|start| {
                    let mut raws = Vec::new();
                    let looked = (*start..start.saturating_add(part).min(last))
                        .map(|row| scope.look(NodeIndex(row), &mut raws))
                        .collect();
                    (looked, raws)
                })
                .collect();
            for (start, (looked, raws)) in starts.iter().zip(looked) {
                let mut raws = &raws[..];
                for (row, looked) in (*start..).zip(looked) {
                    let fits = matches!(looked.verdict, RowVerdict::Fits(_));
                    let own = if fits { self.columns.len() } else { 0 };
                    let (own, rest) = raws.split_at(own);
                    self.record(NodeIndex(row), looked, own);
                    raws = rest;
                }
            }
        }
        self.rank(scope);
    }

    fn leave(&mut self, row: usize) {
        match std::mem::take(&mut self.verdicts[row]) {
            RowVerdict::Absent => {}
            RowVerdict::Refused(plugin, rejection) => self.tally.remove(plugin, &rejection),
            RowVerdict::Fits(_) => {
                self.fitting -= 1;
                for column in &mut self.columns {
                    column.at_max -= usize::from(column.raw[row] == column.max);
                }
            }
        }
    }

    fn enter(&mut self, scope: &Scope<'_>, node: NodeIndex) {
        let mut raws = Vec::with_capacity(self.columns.len());
        let looked = scope.look(node, &mut raws);
        self.record(node, looked, &raws);
    }

    /// Takes in what was found of one row.
    fn record(&mut self, node: NodeIndex, looked: Looked, raws: &[i64]) {
        let row = node.row();
        if looked.releases {
            self.releasing.insert(node);
        } else {
            self.releasing.remove(&node);
        }
        match &looked.verdict {
            RowVerdict::Absent => {}
            RowVerdict::Refused(plugin, rejection) => {
                self.fared.refuse(*plugin);
                self.tally.add(*plugin, rejection);
            }
            RowVerdict::Fits(_) => {
                self.fared.fits += 1;
                self.fitting += 1;
                for (column, raw) in self.columns.iter_mut().zip(raws) {
                    column.raw[row] = *raw;
                    if *raw > column.max {
                        column.max = *raw;
                        column.at_max = 0;
                    }
                    column.at_max += usize::from(*raw == column.max);
                }
            }
        }
        self.verdicts[row] = looked.verdict;
    }

    /// Recomputes every total.
    fn rank(&mut self, scope: &Scope<'_>) {
        let keys: Vec<Key> = (0..self.verdicts.len())
            .map(|row| self.key(scope, row))
            .collect();
        self.tree.rebuild(keys.into_iter());
    }

    /// Orders by total score, then by a number drawn from the seed and the row's version: ties are
    /// spread, and drawn again whenever a node changes, yet the same input gives the same order.
    fn key(&self, scope: &Scope<'_>, row: usize) -> Key {
        if !matches!(self.verdicts[row], RowVerdict::Fits(_)) {
            return 0;
        }
        let total: i64 = self.columns.iter().map(|column| column.share(row)).sum();
        let tie = mix(scope.seed ^ self.seen[row].rotate_left(24) ^ row as u64) >> 32;
        key(total, tie)
    }
}

/// A total score and a tie-breaking number below 2^32, as a key that is never zero.
pub(super) fn key(total: i64, tie: u64) -> Key {
    let total = u64::try_from(total)
        .unwrap_or(0)
        .min(u64::from(u32::MAX) - 1);
    ((total + 1) << 32) | tie
}

/// The nodes that are in one of the sorted lists only.
fn either(a: &Option<Vec<NodeIndex>>, b: &Option<Vec<NodeIndex>>) -> Vec<NodeIndex> {
    let list = |list: &Option<Vec<NodeIndex>>| list.clone().unwrap_or_default();
    let (a, b) = (list(a), list(b));
    let missing = |from: &[NodeIndex], node: &NodeIndex| from.binary_search(node).is_err();
    let left = a.iter().filter(|node| missing(&b, node));
    left.chain(b.iter().filter(|node| missing(&a, node)))
        .copied()
        .collect()
}

fn rescan(column: &mut Column, verdicts: &[RowVerdict]) {
    (column.max, column.at_max) = (0, 0);
    for node in super::diagnosis::feasible(verdicts) {
        let raw = column.raw[node.row()];
        if raw > column.max {
            (column.max, column.at_max) = (raw, 0);
        }
        column.at_max += usize::from(raw == column.max);
    }
}

/// A well-mixed function of `x` (the finaliser of SplitMix64).
pub(super) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
