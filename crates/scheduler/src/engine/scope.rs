//! The filter chain of one pod on one node, on which all evaluations are based.

use super::EngineOptions;
use super::extender_verdicts::ExtenderVerdicts;
use super::nominator::{Nominator, ahead_of};
use super::plugin_table::PluginTable;
use crate::framework::{
    Alignment, BoxedPlugin, Code, Cycle, Filter, Instance, NoRule, Overlay, Reason, Reasons,
    Rejection, Release, RowVerdict, Score, State,
};
use crate::queue::PluginSet;
use crate::state::{NodeIndex, NodeStore, PodInfo};
use koord_model::numa::NumaMask;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The states that the plugins prepared for one pod.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// Filters in order, without plugins that skip and without volatile ones.
    pub(super) filters: Vec<(Instance, State)>,
    /// Scores with weights, without plugins that skip and without volatile ones.
    pub(super) scores: Vec<(Instance, i64, State)>,
    /// Filters of the volatile plugins that do not skip.
    pub(super) volatile_filters: Vec<(Instance, State)>,
    /// Scores of the volatile plugins that do not skip, with weights.
    pub(super) volatile_scores: Vec<(Instance, i64, State)>,
    /// Positions in `filters` of the plugins that release pods.
    pub(super) releasing: Vec<usize>,
    pub(super) aligning: Vec<usize>,
    /// The only nodes that can fit, sorted; other nodes are refused by `only_by`.
    pub(super) only: Option<Vec<NodeIndex>>,
    pub(super) only_by: Vec<Instance>,
    /// The reason for that refusal.
    pub(super) outside: Option<Reason>,
    /// The plugins that skipped before filtering.
    pub(super) skipped: PluginSet,
    pub(super) unscored: PluginSet,
}

/// The prepared states of one pod with the filter and score roles of their plugins, looked up once because
/// there are many rows.
pub(crate) struct Chain<'a> {
    pub(super) prepared: Prepared,
    /// The filter of each of [`Prepared::filters`].
    filters: Vec<&'a dyn Filter>,
    /// The score of each of [`Prepared::scores`].
    scores: Vec<&'a dyn Score>,
}

impl PluginTable {
    /// Returns `prepared` with the roles of its plugins.
    pub(super) fn chain(&self, prepared: Prepared) -> Chain<'_> {
        let filters = prepared.filters.iter();
        let filters = filters.map(|(plugin, _)| filter_of(&self.plugins, *plugin));
        let scores = prepared.scores.iter();
        let scores = scores.map(|(plugin, ..)| score_of(&self.plugins, *plugin));
        Chain {
            filters: filters.collect(),
            scores: scores.collect(),
            prepared,
        }
    }
}

impl Chain<'_> {
    /// Returns the filters in order, without those that skip and without volatile ones.
    pub(super) fn filters(&self) -> impl Iterator<Item = (Instance, &dyn Filter, &State)> {
        let filters = self.prepared.filters.iter().zip(&self.filters);
        filters.map(|((plugin, state), filter)| (*plugin, *filter, state))
    }

    /// Returns the scores, without those that skip and without volatile ones.
    pub(super) fn scores(&self) -> impl Iterator<Item = (Instance, &dyn Score, &State)> {
        let scores = self.prepared.scores.iter().zip(&self.scores);
        scores.map(|((plugin, _, state), score)| (*plugin, *score, state))
    }
}

/// Returns the filter of a plugin that runs at the filter point.
pub(super) fn filter_of(plugins: &[BoxedPlugin], instance: Instance) -> &dyn Filter {
    plugins[instance].filter().unwrap_or(&NoRule)
}

/// Returns the score of a plugin that runs at the score point.
pub(super) fn score_of(plugins: &[BoxedPlugin], instance: Instance) -> &dyn Score {
    plugins[instance].score().unwrap_or(&NoRule)
}

/// The input of an evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(super) cycle: Cycle<'a>,
    pub(super) plugins: &'a [BoxedPlugin],
    pub(super) chain: &'a Chain<'a>,
    pub(super) prepared: &'a Prepared,
    pub(super) nominator: &'a Nominator,
    /// The extenders' results for this pod.
    pub(super) extender_verdicts: Option<&'a ExtenderVerdicts>,
    /// True if the evaluation is for all pods of this shape and priority. Then resources for this pod, too,
    /// stay free on the node that it is nominated to.
    pub(super) shared: bool,
    /// True if plugins that release pods are left out: the part of an evaluation that pods share which differ
    /// only in the pods that they may replace.
    pub(super) bare: bool,
    pub(super) seed: u64,
    /// The number of rows from which several threads evaluate them.
    pub(super) parallel_rows: usize,
}

impl<'a> Scope<'a> {
    /// Creates the input of an evaluation for the cycle's pod alone, without extender results.
    pub(super) fn new(
        cycle: Cycle<'a>,
        table: &'a PluginTable,
        chain: &'a Chain<'a>,
        nominator: &'a Nominator,
        options: &EngineOptions,
    ) -> Self {
        Self {
            cycle,
            plugins: &table.plugins,
            chain,
            prepared: &chain.prepared,
            nominator,
            extender_verdicts: None,
            shared: false,
            bare: false,
            seed: options.seed,
            parallel_rows: options.parallel_rows,
        }
    }
}

/// The pods treated as removed from a row. The first ones are those that the pod absorbs.
#[derive(Debug, Default)]
pub(super) struct RemovedPods {
    pods: Vec<Arc<PodInfo>>,
    absorbed: Option<usize>,
}

impl RemovedPods {
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    fn absorbed(&self) -> Option<&[Arc<PodInfo>]> {
        self.pods.get(..self.absorbed?)
    }
}

impl Scope<'_> {
    pub(super) fn nodes(&self) -> &NodeStore {
        self.cycle.view.nodes
    }

    /// Runs the full filter chain on one row.
    pub(super) fn judge(&self, node: NodeIndex) -> RowVerdict {
        self.judge_without(node, &[])
    }

    /// Runs the full filter chain on one row with `victims` removed. If pods of the same or a higher priority
    /// are nominated to the node, the pod must fit both with and without them: some rules, such as pod
    /// affinity, pass only because of them.
    pub(super) fn judge_without(&self, node: NodeIndex, victims: &[Arc<PodInfo>]) -> RowVerdict {
        let verdict = self.judge_stable(node, victims);
        if !self.needs_second_stage() || !matches!(verdict, RowVerdict::Fits(_)) {
            return verdict;
        }
        match self.volatile_refusal(node, victims) {
            Some((plugin, rejection)) => RowVerdict::Refused(plugin, rejection),
            None => verdict,
        }
    }

    /// Like [`Self::judge_without`], with the pods `extra` added. Pods of `mates` (uids) that are nominated
    /// to the node are ignored: their room is available to this pod as well.
    pub(super) fn judge_with_added(
        &self,
        node: NodeIndex,
        victims: &[Arc<PodInfo>],
        extra: &[Arc<PodInfo>],
        mates: &FxHashSet<Arc<str>>,
    ) -> RowVerdict {
        if !self.nodes().is_present(node) {
            return RowVerdict::Absent;
        }
        if let Some(only) = &self.prepared.only
            && only.binary_search(&node).is_err()
        {
            let (by, rejection) = self.outside();
            return RowVerdict::Refused(by, rejection);
        }
        let (removed, mut added) = self.overlay_pods(node, victims);
        added.retain(|other| !mates.contains(&other.uid));
        let judge = |added: &[Arc<PodInfo>]| {
            let cycle = self.with_removed(&removed, added);
            match self.judge_by_each(&cycle, node) {
                RowVerdict::Fits(numa) => match self.volatile_rejection(&cycle, node) {
                    Some((plugin, rejection)) => RowVerdict::Refused(plugin, rejection),
                    None => RowVerdict::Fits(numa),
                },
                refused => refused,
            }
        };
        if !added.is_empty() {
            added.extend_from_slice(extra);
            let verdict = judge(&added);
            if !matches!(verdict, RowVerdict::Fits(_)) {
                return verdict;
            }
        }
        judge(extra)
    }

    /// Like [`Self::judge_without`], but without volatile plugins: the part that pods of one shape share.
    fn judge_stable(&self, node: NodeIndex, victims: &[Arc<PodInfo>]) -> RowVerdict {
        if !self.nodes().is_present(node) {
            return RowVerdict::Absent;
        }
        if let Some(only) = &self.prepared.only
            && only.binary_search(&node).is_err()
        {
            let (by, rejection) = self.outside();
            return RowVerdict::Refused(by, rejection);
        }
        let (removed, added) = self.overlay_pods(node, victims);
        if !added.is_empty() {
            let verdict = self.judge_by_each(&self.with_removed(&removed, &added), node);
            if !matches!(verdict, RowVerdict::Fits(_)) {
                return verdict;
            }
        }
        self.judge_by_each(&self.with_removed(&removed, &[]), node)
    }

    /// Returns the refusal of nodes that are not on the list of those that can fit.
    pub(super) fn outside(&self) -> (Instance, Rejection) {
        let by = self.prepared.only_by.first().copied().unwrap_or_default();
        let reason = self.prepared.outside.clone().unwrap_or("".into());
        (by, Rejection::unresolvable(reason))
    }

    /// Returns the pods to treat as removed from `node`, and those to treat as added.
    pub(super) fn overlay_pods(
        &self,
        node: NodeIndex,
        victims: &[Arc<PodInfo>],
    ) -> (RemovedPods, Vec<Arc<PodInfo>>) {
        let mut removed = self.released(node, victims);
        removed.pods.extend_from_slice(victims);
        let mut added = ahead_of(self.nominator, self.nodes(), self.cycle.pod, node);
        if !self.shared {
            added.retain(|other| other.uid != self.cycle.pod.uid);
        }
        (removed, added)
    }

    /// Returns true if volatile plugins or extenders must be consulted in addition to the shared evaluation.
    pub(super) fn needs_second_stage(&self) -> bool {
        self.extender_verdicts.is_some() || !self.prepared.volatile_filters.is_empty()
    }

    /// Returns the extenders' refusal of a row, if there is one.
    pub(super) fn extender_refusal(&self, node: NodeIndex) -> Option<(Instance, Rejection)> {
        let rejection = self.extender_verdicts?.refusal(node)?;
        // The index after the last plugin stands for the extenders.
        Some((self.plugins.len(), rejection))
    }

    /// Returns the refusal of a row by a volatile plugin or the extenders, if there is one.
    pub(super) fn volatile_refusal(
        &self,
        node: NodeIndex,
        victims: &[Arc<PodInfo>],
    ) -> Option<(Instance, Rejection)> {
        let (removed, added) = self.overlay_pods(node, victims);
        let with_nominated = || self.volatile_rejection(&self.with_removed(&removed, &added), node);
        let refused = if added.is_empty() {
            None
        } else {
            with_nominated()
        };
        let without_nominated = || self.volatile_rejection(&self.with_removed(&removed, &[]), node);
        let refused = refused.or_else(without_nominated);
        refused.or_else(|| self.extender_refusal(node))
    }

    /// Returns the refusal of a row by a volatile plugin, with the overlay of `cycle`.
    pub(super) fn volatile_rejection(
        &self,
        cycle: &Cycle<'_>,
        node: NodeIndex,
    ) -> Option<(Instance, Rejection)> {
        self.prepared
            .volatile_filters
            .iter()
            .find_map(|(plugin, state)| {
                let filter = filter_of(self.plugins, *plugin);
                let refused = filter.filter(cycle, state, node).err()?;
                Some((*plugin, refused))
            })
    }

    /// Returns the pods on `node` whose place this pod may take, or that it absorbs, with `victims` removed.
    pub(super) fn released(&self, node: NodeIndex, victims: &[Arc<PodInfo>]) -> RemovedPods {
        let mut out = RemovedPods::default();
        if self.bare {
            return out;
        }
        let cycle = Cycle {
            overlay: Overlay {
                removed: victims,
                added: &[],
            },
            ..self.cycle
        };
        let serves = |pods: &[Arc<PodInfo>]| self.serves(node, victims, pods);
        for (plugin, state) in self.releasing() {
            match plugin.absorbed_pods(&cycle, state, node, &serves) {
                Some(pods) => {
                    let absorbed = out.absorbed.unwrap_or(0);
                    out.absorbed = Some(absorbed + pods.len());
                    out.pods.splice(absorbed..absorbed, pods);
                }
                None => plugin.released(&cycle, state, node, &mut out.pods),
            }
        }
        // No pod may be removed twice.
        let leaves = |pod: &Arc<PodInfo>| victims.iter().any(|victim| victim.uid == pod.uid);
        if out.pods.iter().any(leaves) {
            let stay = |pods: &[Arc<PodInfo>]| pods.iter().filter(|pod| !leaves(pod)).count();
            out.absorbed = out.absorbed().map(stay);
            out.pods.retain(|pod| !leaves(pod));
        }
        out
    }

    /// Returns true if all plugins that allocate resources of NUMA nodes could serve the pod with `pods`
    /// absorbed.
    fn serves(&self, node: NodeIndex, victims: &[Arc<PodInfo>], pods: &[Arc<PodInfo>]) -> bool {
        if self.prepared.aligning.is_empty() {
            return true;
        }
        let mut removed = RemovedPods {
            pods: pods.to_vec(),
            absorbed: Some(pods.len()),
        };
        removed.pods.extend_from_slice(victims);
        let cycle = self.with_removed(&removed, &[]);
        let mut aligning = self.aligning();
        aligning.all(|(at, _, state)| {
            let filter = filter_of(self.plugins, at);
            filter.filter(&cycle, state, node).is_ok()
        }) && matches!(self.align(&cycle, node), RowVerdict::Fits(_))
    }

    /// Returns true if this pod may take the place of any pod on `node`.
    pub(super) fn releases_any(&self, node: NodeIndex) -> bool {
        !self.released(node, &[]).is_empty()
    }

    /// Returns the pods on `node` that this one absorbs.
    pub(super) fn absorbed(&self, node: NodeIndex) -> Vec<Arc<PodInfo>> {
        if self.prepared.releasing.is_empty() || !self.cycle.pod.is_holder() {
            return Vec::new();
        }
        let mut removed = self.released(node, &[]);
        removed.pods.truncate(removed.absorbed.unwrap_or(0));
        removed.pods
    }

    /// Returns the nodes that pods are nominated to.
    pub(super) fn nominated_nodes(&self) -> FxHashSet<NodeIndex> {
        let names = self.nominator.nodes();
        names.filter_map(|name| self.nodes().find(name)).collect()
    }

    /// Returns the released pod whose place this pod takes on `node`.
    pub(super) fn nominate(&self, node: NodeIndex, numa: Option<NumaMask>) -> Option<Arc<PodInfo>> {
        if self.prepared.releasing.is_empty() {
            return None;
        }
        let cycle = Cycle { numa, ..self.cycle };
        let mut agreed = self.released(node, &[]).pods;
        agreed.retain(|from| {
            let mut aligning = self.aligning();
            aligning.all(|(_, plugin, state)| plugin.agrees(&cycle, state, node, from))
        });
        self.releasing()
            .find_map(|(plugin, state)| plugin.nominate(&cycle, state, node, &agreed))
    }

    fn releasing(&self) -> impl Iterator<Item = (&dyn Release, &State)> {
        self.states(&self.prepared.releasing)
            .filter_map(|(plugin, state)| Some((self.plugins[plugin].release()?, state)))
    }

    pub(super) fn aligning(&self) -> impl Iterator<Item = (Instance, &dyn Alignment, &State)> {
        self.states(&self.prepared.aligning)
            .filter_map(|(plugin, state)| Some((plugin, self.plugins[plugin].alignment()?, state)))
    }

    pub(super) fn with_removed<'b>(
        &self,
        removed: &'b RemovedPods,
        added: &'b [Arc<PodInfo>],
    ) -> Cycle<'b>
    where
        Self: 'b,
    {
        Cycle {
            overlay: Overlay {
                removed: &removed.pods,
                added,
            },
            absorbed: removed.absorbed(),
            ..self.cycle
        }
    }

    fn states<'b>(&'b self, at: &'b [usize]) -> impl Iterator<Item = (Instance, &'b State)> {
        at.iter().filter_map(|at| {
            let (plugin, state) = self.prepared.filters.get(*at)?;
            Some((*plugin, state))
        })
    }

    /// Returns the only plugin that releases pods; `None` if there are several, or none.
    pub(super) fn sole_releasing(&self) -> Option<(Instance, &dyn Release, &State)> {
        let [at] = self.prepared.releasing[..] else {
            return None;
        };
        let (plugin, state) = self.prepared.filters.get(at)?;
        Some((*plugin, self.plugins[*plugin].release()?, state))
    }

    /// Returns the only rows on which plugins that release pods affect this pod, sorted; `None` if they are
    /// not known.
    pub(super) fn special_rows(&self) -> Option<Vec<NodeIndex>> {
        let (_, release, state) = self.sole_releasing()?;
        let mut rows = release.special_rows(&self.cycle, state)?;
        rows.sort_unstable();
        rows.dedup();
        Some(rows)
    }

    /// Returns true if `plugin` is left out of the evaluation.
    pub(super) fn leaves_out(&self, plugin: Instance) -> bool {
        self.bare
            && self
                .states(&self.prepared.releasing)
                .any(|(releasing, _)| releasing == plugin)
    }

    /// Evaluates the shared part of one row: filters it and, if it fits, appends its raw scores to `raws`.
    pub(super) fn evaluate(&self, node: NodeIndex, raws: &mut Vec<i64>) -> RowResult {
        let verdict = self.judge_stable(node, &[]);
        let mut releases = false;
        if let RowVerdict::Fits(numa) = &verdict {
            let removed = self.released(node, &[]);
            releases = !removed.is_empty();
            let cycle = Cycle {
                numa: *numa,
                ..self.with_removed(&removed, &[])
            };
            self.score(&cycle, node, raws);
        }
        RowResult { verdict, releases }
    }

    /// Appends the raw scores of a row that fits to `raws`.
    pub(super) fn score(&self, cycle: &Cycle<'_>, node: NodeIndex, raws: &mut Vec<i64>) {
        raws.extend(self.chain.scores().map(|(plugin, score, state)| {
            if self.leaves_out(plugin) {
                return 0;
            }
            score.score(cycle, state, node)
        }));
    }

    /// Runs the filters of all but the volatile plugins, and NUMA alignment.
    fn judge_by_each(&self, cycle: &Cycle<'_>, node: NodeIndex) -> RowVerdict {
        for (plugin, filter, state) in self.chain.filters() {
            if self.leaves_out(plugin) {
                continue;
            }
            if let Err(rejection) = filter.filter(cycle, state, node) {
                return RowVerdict::Refused(plugin, rejection);
            }
        }
        self.align(cycle, node)
    }

    /// Selects NUMA nodes that all allocating plugins accept, if the node or the pod requires alignment.
    pub(super) fn align(&self, cycle: &Cycle<'_>, node: NodeIndex) -> RowVerdict {
        let required = self.aligning().find_map(|(instance, plugin, state)| {
            let policy = plugin.numa_policy(cycle, state, node)?;
            Some((instance, policy))
        });
        let Some((owner, policy)) = required else {
            return RowVerdict::Fits(None);
        };
        let mut offers = Vec::new();
        for (instance, plugin, state) in self.aligning() {
            match plugin.numa_hints(cycle, state, node, &policy) {
                Ok(offer) => offers.push(offer),
                Err(rejection) => return RowVerdict::Refused(instance, rejection),
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
        for (instance, plugin, state) in self.aligning() {
            if let Err(rejection) = plugin.numa_allocate(&cycle, state, node) {
                return RowVerdict::Refused(instance, rejection);
            }
        }
        RowVerdict::Fits(mask)
    }
}

/// The result of evaluating one row.
#[derive(Debug, Default)]
pub(super) struct RowResult {
    pub(super) verdict: RowVerdict,
    /// True if the pod may take the place of others on the row.
    pub(super) releases: bool,
}
