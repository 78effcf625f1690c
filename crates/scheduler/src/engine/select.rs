//! Selection of the node for one pod: from a shared evaluation, confirmed for this pod, or evaluated from
//! scratch.

use super::candidate_subset::{self, CandidateSubset};
use super::class::Evaluation;
use super::class_cache::ClassCache;
use super::cluster::ClusterState;
use super::cycle::CycleError;
use super::extender_verdicts::ExtenderVerdicts;
use super::measure::{self, CacheOutcome, Meter, Point};
use super::nominator::Nominator;
use super::plugin_table::PluginTable;
use super::scope::{Prepared, Scope};
use super::telemetry::Telemetry;
use super::{Engine, EngineOptions, row_overlay};
use crate::framework::{
    Code, Cycle, Diagnosis, Instance, PreFilterResult, PreScoreResult, Rejection, RejectionCounts,
    RowVerdict, ShapeId, Signable, Signature, State, View,
};
use crate::guard::guarded;
use crate::queue::PluginSet;
use crate::state::{NodeIndex, PodInfo};
use jiff::Timestamp;
use koord_model::numa::NumaMask;
use koord_model::resources::ResourceTable;
use std::sync::Arc;

/// The node selected for a pod.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub(super) node: NodeIndex,
    /// The selected NUMA nodes.
    pub(super) numa: Option<NumaMask>,
    /// The pod whose place this one takes.
    pub(super) nominated: Option<Arc<PodInfo>>,
    /// The pods that this one, a reservation, absorbs.
    pub(super) absorbed: Vec<Arc<PodInfo>>,
    /// Number of evaluated nodes, and number of those that fit.
    pub(super) compared: (usize, usize),
    /// The scores behind the selection, if this decision is recorded.
    pub(super) table: Option<Box<super::Table>>,
    /// All evaluated nodes that fit, if they were requested.
    listed: Option<Vec<NodeIndex>>,
}

impl Choice {
    /// Creates the selection of `node`, the best of `compared.0` nodes of which `compared.1` fit.
    pub(super) fn new(
        scope: &Scope<'_>,
        node: NodeIndex,
        numa: Option<NumaMask>,
        compared: (usize, usize),
    ) -> Self {
        Self {
            node,
            numa,
            nominated: scope.nominate(node, numa),
            absorbed: scope.absorbed(node),
            compared,
            table: None,
            listed: None,
        }
    }

    /// Returns the nodes that fit, in order.
    pub(super) fn offers(self) -> Vec<NodeIndex> {
        self.listed.unwrap_or_else(|| vec![self.node])
    }

    fn listing(mut self, evaluation: &Evaluation, scope: &Scope<'_>, lists: bool) -> Self {
        self.listed = lists.then(|| evaluation.offers(scope));
        self
    }

    /// Adds the scores behind the selection if `noted`.
    fn with(mut self, evaluation: &Evaluation, scope: &Scope<'_>, noted: bool) -> Self {
        if noted {
            self.table = Some(Box::new(evaluation.table(scope, self.node)));
        }
        self
    }
}

/// The key under which pods with equal results share an evaluation.
struct Shape {
    common: ShapeId,
    /// The key of what differs between pods of one `common` shape, and the rows on which it matters.
    own: Option<(ShapeId, Vec<NodeIndex>)>,
}

/// The parts of the engine that node selection reads and updates.
pub(super) struct NodeSelection<'a> {
    options: &'a EngineOptions,
    cluster: &'a ClusterState,
    table: &'a mut PluginTable,
    classes: &'a mut ClassCache,
    nominator: &'a Nominator,
    telemetry: &'a mut Telemetry,
    /// True if shared evaluations are used.
    pub(super) cached: bool,
}

impl<'a> NodeSelection<'a> {
    /// Creates a selection among the nodes of `engine`.
    pub(super) fn new(engine: &'a mut Engine) -> Self {
        Self {
            options: &engine.options,
            cluster: &engine.cluster,
            table: &mut engine.table,
            cached: engine.classes.enabled,
            classes: &mut engine.classes,
            nominator: &engine.preemptor.nominator,
            telemetry: &mut engine.telemetry,
        }
    }

    /// Selects a node; `extender_verdicts` holds the extenders' results, if they were called. With `lists`, the
    /// returned choice holds all nodes that fit.
    pub(super) fn select(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        now: Timestamp,
        extender_verdicts: Option<&ExtenderVerdicts>,
        lists: bool,
    ) -> Result<Choice, CycleError> {
        if self.cluster.nodes.is_empty() {
            return Err(CycleError::Refused(Box::default()));
        }
        let noted = self.telemetry.decisions.admit(now);
        let view = self.cluster.view(now);
        self.table
            .prepare_state(&self.telemetry.meter, pod, profile, view);
        let cycle = Cycle::new(pod, view);
        let prepared = self.table.prepare(&self.telemetry.meter, &cycle, profile);
        match &prepared {
            Ok(prepared) => {
                self.telemetry
                    .meter
                    .prepared(profile, &self.table.profiles[profile], prepared)
            }
            Err(CycleError::Refused(diagnosis)) => {
                let by = diagnosis.pre_filter_by;
                self.telemetry
                    .meter
                    .rejected(profile, &self.table.profiles[profile], by);
            }
            Err(CycleError::Failed(_)) => {}
        }
        let chain = self.table.chain(prepared?);
        let prepared = &chain.prepared;
        // Candidates are listed only if there are pods to evict.
        let victims = !self.table.profiles[profile].post_filter.is_empty()
            && self
                .cluster
                .lowest_priority()
                .is_some_and(|lowest| lowest < pod.priority);
        let nominator = self.nominator;
        let scope = Scope {
            extender_verdicts,
            ..Scope::new(cycle, self.table, &chain, nominator, self.options)
        };
        // The pod is nominated to this node: if it fits now, no other node is evaluated.
        let own = self.nominator.node_of(&pod.uid);
        let own = own.and_then(|name| self.cluster.nodes.find(name));
        let own = own.map(|node| (node, scope.judge(node)));
        if let Some((node, RowVerdict::Fits(numa))) = own {
            return Ok(Choice::new(&scope, node, numa, (1, 1)));
        }
        let meter = &self.telemetry.meter;
        if let Some(choice) = self.table.preferred(meter, &scope, profile) {
            return Ok(choice);
        }
        let listed = if self.cached {
            candidate_subset::list(&scope, meter, &self.table.names)
        } else {
            None
        };
        if let Some(list) = listed {
            let filtering = self
                .telemetry
                .meter
                .start(&self.table.names, profile, Point::Filter);
            let mut subset = CandidateSubset::judge(&scope, &list);
            drop(filtering);
            let scoring = self
                .telemetry
                .meter
                .start(&self.table.names, profile, Point::Score);
            let best = subset.best(&scope);
            drop(scoring);
            // The refusals of the other nodes are determined below.
            if best.is_some() || prepared.only.is_some() {
                self.telemetry.meter.sample(&scope, &self.table.names, best);
                self.telemetry
                    .meter
                    .add_filter_stats(profile, prepared, &mut subset.filter_stats);
                self.telemetry.meter.served(profile, CacheOutcome::Fresh);
                let mut answer = subset.answer(best, &scope, &self.table.names, victims);
                if let Ok(choice) = &mut answer
                    && noted
                {
                    choice.table = Some(Box::new(subset.table(&scope, choice.node)));
                }
                if let Ok(choice) = &mut answer {
                    choice.listed = lists.then(|| subset.offers());
                }
                return answer;
            }
        }
        let shape = if self.cached {
            self.table.shape(&self.telemetry.meter, &scope, profile)
        } else {
            None
        };
        if let Some(Shape {
            common,
            own: special,
        }) = shape
        {
            let exact = scope;
            let scope = Scope {
                shared: true,
                ..exact
            };
            let base = Scope {
                bare: special.is_some(),
                ..scope
            };
            self.classes.uses += 1;
            let filtering = self
                .telemetry
                .meter
                .start(&self.table.names, profile, Point::Filter);
            let mut served = CacheOutcome::Fresh;
            let class = match self.classes.by_shape.entry((profile, common)) {
                std::collections::hash_map::Entry::Occupied(entry) => {
                    served = CacheOutcome::Known;
                    let class = entry.into_mut();
                    class.refresh(&base);
                    class
                }
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(Evaluation::fresh(&base))
                }
            };
            if let Some((shape, rows)) = &special {
                class.add_overlay(&scope, rows, *shape);
            }
            drop(filtering);
            class.used = self.classes.uses;
            // The chosen node must pass the pod's own full filter chain again.
            let scoring = self
                .telemetry
                .meter
                .start(&self.table.names, profile, Point::Score);
            let best = class.best(&scope);
            drop(scoring);
            // The evaluation has all data that it will keep, so count its size now.
            let bytes = class.bytes();
            let before = std::mem::replace(&mut class.counted, bytes);
            self.classes.bytes = self.classes.bytes + bytes - before;
            self.telemetry.meter.sample(&exact, &self.table.names, best);
            self.telemetry
                .meter
                .add_filter_stats(profile, prepared, &mut class.filter_stats);
            let confirmed =
                best.is_none_or(|node| matches!(exact.judge(node), RowVerdict::Fits(_)));
            // The shared evaluation also keeps room for the pod itself on the node that it is nominated to:
            // only a node that is refused either way can stay in the comparison.
            let unlike = own
                .as_ref()
                .is_some_and(|(node, _)| matches!(class.verdict(*node), Some(RowVerdict::Fits(_))));
            if !confirmed {
                served = CacheOutcome::Wrong;
            }
            self.telemetry.meter.served(profile, served);
            if confirmed && !unlike {
                let answer = answer(
                    class,
                    best,
                    &scope,
                    &self.table.names,
                    own.as_ref(),
                    victims,
                );
                let answer = answer.map(|choice| choice.with(class, &scope, noted));
                let answer = answer.map(|choice| choice.listing(class, &scope, lists));
                let budget = self
                    .classes
                    .preemption_cache
                    .leaves(self.options.class_bytes);
                self.classes.evict(self.options.max_classes, budget);
                return answer;
            }
            if !confirmed {
                self.classes.mismatches += 1;
                self.classes.clear();
            }
        }
        let view = self.cluster.view(now);
        let nominator = self.nominator;
        let scope = Scope {
            extender_verdicts,
            ..Scope::new(
                Cycle::new(pod, view),
                self.table,
                &chain,
                nominator,
                self.options,
            )
        };
        let filtering = self
            .telemetry
            .meter
            .start(&self.table.names, profile, Point::Filter);
        let mut fresh = Evaluation::fresh(&scope);
        drop(filtering);
        let scoring = self
            .telemetry
            .meter
            .start(&self.table.names, profile, Point::Score);
        let best = fresh.best(&scope);
        drop(scoring);
        self.telemetry.meter.sample(&scope, &self.table.names, best);
        self.telemetry
            .meter
            .add_filter_stats(profile, prepared, &mut fresh.filter_stats);
        let answer = answer(&fresh, best, &scope, &self.table.names, None, victims);
        let answer = answer.map(|choice| choice.with(&fresh, &scope, noted));
        answer.map(|choice| choice.listing(&fresh, &scope, lists))
    }
}

impl PluginTable {
    fn prepare(
        &self,
        meter: &Meter,
        cycle: &Cycle<'_>,
        profile: usize,
    ) -> Result<Prepared, CycleError> {
        self.prepare_tolerating(meter, cycle, profile, 0)
    }

    /// Runs pre-filter and pre-score. Refusals by pre-filter plugins in `tolerated` are ignored.
    pub(super) fn prepare_tolerating(
        &self,
        meter: &Meter,
        cycle: &Cycle<'_>,
        profile: usize,
        tolerated: PluginSet,
    ) -> Result<Prepared, CycleError> {
        let profile_index = profile;
        let nodes = cycle.view.nodes.len();
        let profile = &self.profiles[profile];
        let mut prepared = Prepared {
            filters: Vec::with_capacity(profile.filter.len()),
            scores: Vec::with_capacity(profile.score.len()),
            ..Prepared::default()
        };
        let mut states: Vec<(Instance, State)> = Vec::with_capacity(profile.pre_filter.len());
        let filter_plugins = self.filter_plugins_for(cycle.pod);
        let judges = |instance: &Instance| filter_plugins & (1 << instance) != 0;
        let mut skipped: PluginSet = 0;
        let mut laps = meter.start(&self.names, profile_index, Point::PreFilter);
        for instance in profile.pre_filter.iter().filter(|index| judges(index)) {
            let answer = match self.plugins[*instance].pre_filter() {
                Some(pre_filter) => pre_filter.pre_filter(cycle),
                None => PreFilterResult::Ready {
                    state: State::default(),
                    nodes: None,
                },
            };
            laps.lap(*instance, || measure::pre_filter_status(&answer));
            match answer {
                PreFilterResult::Ready { state, nodes } => {
                    if let Some(mut nodes) = nodes {
                        nodes.sort_unstable();
                        if let Some(only) = &prepared.only {
                            nodes.retain(|node| only.binary_search(node).is_ok());
                        }
                        prepared.only = Some(nodes);
                        prepared.only_by.push(*instance);
                    }
                    states.push((*instance, state));
                }
                PreFilterResult::Skip => skipped |= 1 << instance,
                PreFilterResult::Reject(_) if tolerated & (1 << instance) != 0 => {
                    skipped |= 1 << instance
                }
                PreFilterResult::Reject(rejection) => {
                    let mut stop = self.pre_filter_stop(*instance, &rejection, nodes);
                    if let CycleError::Refused(diagnosis) = &mut stop {
                        diagnosis.pre_filter_by = Some(*instance);
                        if rejection.code == Code::Unschedulable {
                            diagnosis.helpable = nodes;
                        }
                    }
                    return Err(stop);
                }
            }
        }
        drop(laps);
        prepared.skipped = skipped;
        for instance in profile.filter.iter().filter(|index| judges(index)) {
            if skipped & (1 << instance) == 0 {
                let state_index = states.iter().position(|(owner, _)| owner == instance);
                let state = state_index
                    .map(|index| states.swap_remove(index).1)
                    .unwrap_or_default();
                let plugin = &self.plugins[*instance];
                if plugin.volatile().is_some() {
                    prepared.volatile_filters.push((*instance, state));
                    continue;
                }
                let position = prepared.filters.len();
                if plugin.release().is_some() {
                    prepared.releasing.push(position);
                }
                if plugin.alignment().is_some() {
                    prepared.aligning.push(position);
                }
                prepared.filters.push((*instance, state));
            }
        }
        // A score plugin without its own pre-score step runs without state.
        let mut laps = meter.start(&self.names, profile_index, Point::PreScore);
        let scorers = profile.score.iter();
        for (instance, weight) in scorers.filter(|(instance, _)| judges(instance)) {
            let plugin = &self.plugins[*instance];
            let state = if profile.pre_score.contains(instance) {
                let answer = match plugin.pre_score() {
                    Some(pre_score) => pre_score.pre_score(cycle),
                    None => PreScoreResult::Ready(State::default()),
                };
                laps.lap(*instance, || measure::pre_score_status(&answer));
                match answer {
                    PreScoreResult::Ready(state) => state,
                    PreScoreResult::Skip => {
                        prepared.unscored |= 1 << instance;
                        continue;
                    }
                }
            } else {
                State::default()
            };
            let scores = if plugin.volatile().is_some() {
                &mut prepared.volatile_scores
            } else {
                &mut prepared.scores
            };
            scores.push((*instance, *weight, state));
        }
        drop(laps);
        if prepared.only.is_some() {
            let names: Vec<&str> = prepared
                .only_by
                .iter()
                .map(|index| self.names[*index])
                .collect();
            let text = format!("node(s) didn't satisfy plugin(s) [{}]", names.join(" "));
            prepared.outside = Some(text.into());
        }
        Ok(prepared)
    }

    /// Returns the first node preferred by a plugin that fits.
    fn preferred(&self, meter: &Meter, scope: &Scope<'_>, profile: usize) -> Option<Choice> {
        let filter_plugins = self.filter_plugins_for(scope.cycle.pod);
        let plugins = self.profiles[profile].pre_filter.iter();
        let nodes = plugins
            .filter(|index| filter_plugins & (1 << **index) != 0)
            .filter_map(|index| {
                let pre_filter = self.plugins[*index].pre_filter()?;
                Some(meter.time(
                    self.names[*index],
                    Point::AfterPreFilter,
                    |nodes: &Vec<NodeIndex>| !nodes.is_empty(),
                    || pre_filter.prefer(&scope.cycle),
                ))
            })
            .find(|nodes| !nodes.is_empty())?;
        nodes.into_iter().find_map(|node| match scope.judge(node) {
            RowVerdict::Fits(numa) => Some(Choice::new(scope, node, numa, (1, 1))),
            _ => None,
        })
    }

    /// Returns the end of a cycle in which `instance` refuses the pod before any of `total_nodes` nodes is
    /// filtered.
    pub(super) fn pre_filter_stop(
        &self,
        instance: Instance,
        rejection: &Rejection,
        total_nodes: usize,
    ) -> CycleError {
        let message = rejection.message();
        if rejection.code == Code::Error {
            let name = self.names[instance];
            return CycleError::Failed(format!("running PreFilter plugin {name:?}: {message}"));
        }
        CycleError::Refused(Box::new(Diagnosis {
            total_nodes,
            pre_filter_message: message,
            plugins: vec![self.names[instance]],
            by: 1 << instance,
            pending: rejection.code == Code::Pending,
            ..Diagnosis::default()
        }))
    }

    /// Returns the key under which the pod shares evaluations with others, or `None` if it shares none. What
    /// releasing plugins read is kept apart if they affect only a few known rows.
    fn shape(&self, meter: &Meter, scope: &Scope<'_>, profile: usize) -> Option<Shape> {
        let pod = scope.cycle.pod;
        let rows = scope.sole_releasing().and_then(|(plugin, ..)| {
            let name = self.names[plugin];
            meter.time(name, Point::AfterPreFilter, Option::is_some, || {
                scope.special_rows()
            })
        });
        let rows = rows.filter(|rows| rows.len() <= row_overlay::MAX_ROWS);
        let (mut common, mut releasing) = (Signature::default(), Signature::default());
        let apart = rows.is_some().then_some(&mut releasing);
        if self.sign_apart(pod, profile, scope.cycle.view, &mut common, apart) == Signable::No {
            return None;
        }
        if !scope.nominator.is_empty() {
            // Which nominated pods this pod must leave room for depends on its priority.
            common.number(i64::MIN);
            common.number(i64::from(pod.priority));
        }
        if rows.is_some() {
            // A releasing plugin may skip scoring if it has nothing to release.
            common.number(i64::try_from(scope.prepared.scores.len()).unwrap_or(i64::MAX));
        }
        Some(Shape {
            common: common.finish(),
            own: rows.map(|rows| (releasing.finish(), rows)),
        })
    }

    /// Writes everything that the plugins read of the pod to `signature`.
    pub(super) fn sign(
        &self,
        pod: &PodInfo,
        profile: usize,
        view: View<'_>,
        signature: &mut Signature,
    ) -> Signable {
        self.sign_apart(pod, profile, view, signature, None)
    }

    /// Like [`Self::sign`], but what releasing plugins read is written to `apart`, if given.
    fn sign_apart(
        &self,
        pod: &PodInfo,
        profile: usize,
        view: View<'_>,
        signature: &mut Signature,
        mut apart: Option<&mut Signature>,
    ) -> Signable {
        let Some(own) = self.own_shape(pod, profile, view.resources) else {
            return Signable::No;
        };
        signature.shape(own);
        let filter_plugins = self.filter_plugins_for(pod);
        let signers = self.signers[profile].iter();
        for instance in signers.filter(|index| filter_plugins & (1 << **index) != 0) {
            let plugin = &self.plugins[*instance];
            let releases = plugin.release().is_some();
            let signature = match &mut apart {
                Some(apart) if releases => &mut **apart,
                _ => &mut *signature,
            };
            // Separates the parts of the plugins.
            signature.count(*instance);
            let Some(sign) = plugin.sign() else {
                return Signable::No;
            };
            if releases && sign.sign(pod, view.resources, signature) == Signable::No
                || sign.sign_external(pod, view, signature) == Signable::No
            {
                return Signable::No;
            }
        }
        Signable::Yes
    }

    /// Computes a pod's shape when it is queued rather than in its scheduling cycle. If a plugin panics, it
    /// panics again in the cycle, where the pod is refused. Pods of daemons are skipped: each has only one
    /// node, they share nothing, and they are placed without a shape; if one needs it, it is computed then.
    pub(super) fn sign_early(&self, info: &PodInfo, profile: usize, resources: &ResourceTable) {
        if info.daemon {
            return;
        }
        guarded("signing a queued pod", || {
            self.own_shape(info, profile, resources)
        });
    }

    /// Returns the shape of what plugins read of the pod itself, computed once. Releasing plugins are left
    /// out, as their part may be kept apart. `None` if the pod shares nothing.
    fn own_shape(
        &self,
        pod: &PodInfo,
        profile: usize,
        resources: &ResourceTable,
    ) -> Option<ShapeId> {
        pod.shape(profile, || {
            let mut signature = Signature::default();
            // Plugins may treat a holder differently from a pod.
            signature.flag(pod.is_holder());
            let filter_plugins = self.filter_plugins_for(pod);
            let signers = self.signers[profile].iter();
            for instance in signers.filter(|index| filter_plugins & (1 << **index) != 0) {
                let plugin = &self.plugins[*instance];
                if plugin.release().is_some() {
                    continue;
                }
                signature.count(*instance);
                if plugin.sign()?.sign(pod, resources, &mut signature) == Signable::No {
                    return None;
                }
            }
            Some(signature.finish())
        })
    }
}

/// Returns the result of `evaluation` for the pod in `scope`. `own` is the verdict on the node that the pod
/// is nominated to, if the shared evaluation does not include the nomination.
fn answer(
    evaluation: &Evaluation,
    best: Option<NodeIndex>,
    scope: &Scope<'_>,
    names: &[&'static str],
    own: Option<&(NodeIndex, RowVerdict)>,
    victims: bool,
) -> Result<Choice, CycleError> {
    if let Some(node) = best {
        let compared = (scope.nodes().len(), evaluation.fitting(scope));
        return Ok(Choice::new(scope, node, evaluation.numa(node), compared));
    }
    let mut tally = evaluation.refusals(scope);
    if let Some((node, RowVerdict::Refused(plugin, rejection))) = own
        && let Some(RowVerdict::Refused(shared_plugin, shared)) = evaluation.verdict(*node)
    {
        tally.remove(*shared_plugin, shared);
        tally.add(*plugin, rejection);
    }
    let total = scope.nodes().len();
    Err(refusal(&tally, total, names, victims, || {
        let mut candidates = evaluation.helpable(scope);
        if let Some((node, RowVerdict::Refused(_, rejection))) = own {
            let helps = rejection.code == Code::Unschedulable;
            match (candidates.binary_search(node), helps) {
                (Err(at), true) => candidates.insert(at, *node),
                (Ok(at), false) => drop(candidates.remove(at)),
                _ => {}
            }
        }
        candidates
    }))
}

/// Returns the refusal of a pod that fits none of `total` nodes. It lists the nodes on which evictions might
/// help if there are possible `victims`.
pub(super) fn refusal(
    tally: &RejectionCounts,
    total: usize,
    names: &[&'static str],
    victims: bool,
    candidates: impl FnOnce() -> Vec<NodeIndex>,
) -> CycleError {
    if let Some((plugin, reason)) = tally.error() {
        return CycleError::Failed(format!(
            "running {:?} filter plugin: {reason}",
            names[plugin]
        ));
    }
    let mut diagnosis = tally.diagnosis(total, names);
    if victims && diagnosis.helpable > 0 {
        diagnosis.candidates = candidates();
    }
    CycleError::Refused(Box::new(diagnosis))
}
