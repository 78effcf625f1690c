//! `InterPodAffinity`: places pods close to some pods and away from others.
//!
//! The plugin has three sets of counters. `wanted` counts pods that match the terms of pods that were
//! scheduled. `kept_away` and `drawn` count, per term of placed pods, the owners of the term: a pod that
//! matches such a term is rejected from the owners' domains, or prefers or avoids them.

mod terms;
#[cfg(test)]
mod tests;

use crate::common::UNPREPARED;
use crate::common::topology::{Census, CounterId, Frame, Labels, NONE};
use k8s_openapi::api::core::v1::{Namespace, PodAffinityTerm};
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Filter, Groups,
    Helps, Holders, Inputs, Interest, Normalize, ObjectChange, ObjectEvents, Plugin, PodEvents,
    Points, PreFilter, PreFilterResult, PreScore, PreScoreResult, Preparation, QueueHints,
    Rejection, Roles, Score, ShapeId, State, Subject, Verdict, View, Volatile,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use terms::{One, Said};

const NAME: &str = "InterPodAffinity";
const NAMESPACES: &str = "namespaces.v1.";
const NO_AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    hard_pod_affinity_weight: i32,
    ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
        }
    }
}

/// State of the `InterPodAffinity` plugin.
#[derive(Debug)]
pub(crate) struct InterPodAffinity {
    args: Args,
    namespaces: FxHashMap<String, Labels>,
    wanted: Census,
    kept_away: Census,
    drawn: Census,
    own: Own,
}

/// Counters of `wanted` for the terms of the pod that is being scheduled.
#[derive(Debug, Default)]
struct Own {
    pod: Option<Arc<PodInfo>>,
    /// Counters of the affinity terms, one per topology key, of pods that match all terms.
    affinity: Vec<CounterId>,
    anti_affinity: Vec<CounterId>,
    /// Counters with the weights of their terms, negative for anti-affinity.
    preferred: Vec<(CounterId, i64)>,
}

/// Counters that decide the filter result of a pod: for its own terms, and for anti-affinity terms of placed
/// pods.
#[derive(Debug, Default)]
struct Asked {
    /// Counters of the affinity terms, one per topology key, of pods that match all terms.
    affinity: Vec<CounterId>,
    /// True if the pod matches its own affinity terms.
    matches_itself: bool,
    anti_affinity: Vec<CounterId>,
    /// Counters of `kept_away` whose terms match the pod.
    existing: Vec<CounterId>,
}

/// Counters that decide the score of a pod, with weights.
#[derive(Debug, Default)]
struct Preferred {
    wanted: Vec<(CounterId, i64)>,
    drawn: Vec<CounterId>,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = crate::common::args::decode(NAME, value)?;
    let weight = args.hard_pod_affinity_weight;
    if !(0..=100).contains(&weight) {
        let message = format!("hardPodAffinityWeight: {weight} is not within 0 and 100");
        return Err(crate::common::args::invalid(NAME, message));
    }
    Ok(Box::new(InterPodAffinity {
        args,
        namespaces: FxHashMap::default(),
        wanted: Census::default(),
        kept_away: Census::default(),
        drawn: Census::default(),
        own: Own::default(),
    }))
}

impl InterPodAffinity {
    /// Returns the counters that were prepared for the cycle's pod.
    fn own(&self, cycle: &Cycle<'_>) -> Option<&Own> {
        let is_it = |pod: &Arc<PodInfo>| Arc::ptr_eq(pod, cycle.pod);
        self.own
            .pod
            .as_ref()
            .is_some_and(is_it)
            .then_some(&self.own)
    }

    /// Returns the counter `key` of pods that match all of `terms`, by the domains of `frame`; creates it if
    /// necessary.
    fn counter<'a>(
        &mut self,
        key: ShapeId,
        terms: impl Iterator<Item = &'a One>,
        frame: &Frame,
        cycle: &Cycle<'_>,
    ) -> CounterId {
        if let Some(known) = self.wanted.find(key) {
            return known;
        }
        let terms = terms.map(|one| one.term.clone()).collect();
        let namespaces = &self.namespaces;
        let labels_of = |name: &str| namespaces.get(name).cloned();
        let (frame, nodes) = (frame.clone(), cycle.view.nodes);
        self.wanted
            .count(key, terms, false, frame, nodes, &labels_of)
    }

    /// Adds `pod` to all counters on `node`, or removes it if `sign` is -1: as a match of terms, and as the
    /// owner of terms.
    fn book(&mut self, pod: &PodInfo, node: NodeIndex, view: View<'_>, sign: i32) {
        let namespaces = &self.namespaces;
        let labels_of = |name: &str| namespaces.get(name).cloned();
        self.wanted.add_pod(pod, node, sign, &labels_of);
        if !terms::has_any(pod) {
            return;
        }
        for term in terms::required(pod, true) {
            tally(&mut self.kept_away, term, pod, node, view, sign);
        }
        let hard = self.args.hard_pod_affinity_weight;
        if hard > 0 {
            for term in terms::required(pod, false) {
                tally(&mut self.drawn, term, pod, node, view, sign * hard);
            }
        }
        for (anti, direction) in [(false, 1), (true, -1)] {
            for term in terms::preferred(pod, anti) {
                let amount = sign * direction * term.weight;
                if amount != 0 {
                    let term = &term.pod_affinity_term;
                    tally(&mut self.drawn, term, pod, node, view, amount);
                }
            }
        }
    }

    /// Returns the change of a counter of `wanted` by the pods that the cycle's overlay adds or removes.
    fn imagined(&self, counter: &crate::common::topology::Counter, cycle: &Cycle<'_>) -> i32 {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let matching = |pods: &[Arc<PodInfo>]| {
            let matching = pods.iter().filter(|pod| counter.matches(pod, &labels_of));
            i32::try_from(matching.count()).unwrap_or(i32::MAX)
        };
        matching(cycle.overlay.added) - matching(cycle.overlay.removed)
    }

    /// Returns how many anti-affinity terms of `pods` the cycle's pod matches, by topology key.
    fn kept_away_by<'a>(
        &self,
        pods: &'a [Arc<PodInfo>],
        cycle: &Cycle<'_>,
    ) -> FxHashMap<&'a str, i32> {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let mut out = FxHashMap::default();
        for said in pods.iter().filter_map(|owner| Said::of(owner)) {
            for one in &said.anti_affinity {
                if one.term.matches(cycle.pod, &labels_of) {
                    *out.entry(one.label()).or_default() += 1;
                }
            }
        }
        out
    }

    fn existing_refuse(&self, asked: &Asked, cycle: &Cycle<'_>, node: NodeIndex) -> bool {
        let mut by_key: FxHashMap<&str, i32> = FxHashMap::default();
        for id in &asked.existing {
            if let Some(counter) = self.kept_away.get(*id) {
                let domain = self.kept_away.counted_in(counter, node);
                *by_key.entry(self.kept_away.label_of(counter)).or_default() += counter.at(domain);
            }
        }
        if !cycle.overlay.is_empty() {
            let has = |key: &str| {
                let info = cycle.view.nodes.info(node);
                info.is_some_and(|info| info.label(key).is_some())
            };
            for (key, owners) in self.kept_away_by(cycle.overlay.removed, cycle) {
                if has(key) {
                    *by_key.entry(key).or_default() -= owners;
                }
            }
            for (key, owners) in self.kept_away_by(cycle.overlay.added, cycle) {
                if has(key) {
                    *by_key.entry(key).or_default() += owners;
                }
            }
        }
        by_key.values().any(|owners| *owners > 0)
    }

    /// Returns true if no pod in the cluster matches the pod's affinity and the pod itself does. Such a pod
    /// may be the first of its group.
    fn is_first(asked: &Asked, census: &Census) -> bool {
        asked.matches_itself
            && asked
                .affinity
                .iter()
                .filter_map(|id| census.get(*id))
                .all(crate::common::topology::Counter::is_zero)
    }
}

/// Adds `amount` to the counter of the owners of `term`.
fn tally(
    census: &mut Census,
    term: &PodAffinityTerm,
    owner: &PodInfo,
    node: NodeIndex,
    view: View<'_>,
    amount: i32,
) {
    // Placed pods are many, so nothing else is stored per pod.
    let key = terms::key(term, [term].into_iter(), owner);
    let id = match census.find(key) {
        Some(known) => known,
        None => {
            let parsed = vec![terms::parse(term, owner)];
            census.insert(key, parsed, false, terms::frame(term), view.nodes)
        }
    };
    census.add(id, node, amount);
    census.drop_if_unused(id);
}

impl Plugin for InterPodAffinity {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .pre_filter()
        .filter()
        .pre_score()
        .score()
        .volatile()
        .object_events()
        .pod_events()
        .preparation();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
            .or(Points::FILTER)
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
    }
    fn holders(&self) -> Holders {
        Holders::Booked
    }
}

impl Inputs for InterPodAffinity {
    fn watches(&self) -> Vec<Watch> {
        vec![Watch::of_trimmed::<Namespace, crate::common::slim::Slim>(
            NAMESPACES,
        )]
    }
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        #[cfg(test)]
        {
            let nodes = cycle.view.nodes;
            assert!(self.wanted.balances(nodes, true, &labels_of));
            assert!(self.kept_away.balances(nodes, false, &labels_of));
            assert!(self.drawn.balances(nodes, false, &labels_of));
        }
        let mut asked = Asked {
            existing: self.kept_away.matching(cycle.pod, &labels_of),
            ..Asked::default()
        };
        if let Some(said) = Said::of(cycle.pod) {
            let Some(own) = self.own(cycle) else {
                return PreFilterResult::Reject(Rejection::error(UNPREPARED));
            };
            asked.affinity.clone_from(&own.affinity);
            asked.anti_affinity.clone_from(&own.anti_affinity);
            let mut affinity = said.affinity.iter();
            asked.matches_itself = !said.affinity.is_empty()
                && affinity.all(|one| one.term.matches(cycle.pod, &labels_of));
        }
        if asked.existing.is_empty() && asked.affinity.is_empty() && asked.anti_affinity.is_empty()
        {
            return PreFilterResult::Skip;
        }
        PreFilterResult::ready(asked)
    }
}

impl Filter for InterPodAffinity {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(asked) = state.get::<Asked>() else {
            return Ok(());
        };
        let census = &self.wanted;
        let counters =
            |ids: &[CounterId]| -> Vec<_> { ids.iter().filter_map(|id| census.get(*id)).collect() };
        let near = counters(&asked.affinity);
        let here = |counter: &crate::common::topology::Counter| {
            let domain = census.counted_in(counter, node);
            (domain != NONE).then(|| counter.at(domain) + self.imagined(counter, cycle))
        };
        if !near.is_empty() {
            let counts: Vec<_> = near.iter().map(|counter| here(counter)).collect();
            let labelled = counts.iter().all(Option::is_some);
            let all = counts.iter().flatten().all(|count| *count > 0);
            // The overlay may remove the last match, or add the first.
            let imagined = near
                .first()
                .map_or(0, |counter| self.imagined(counter, cycle));
            let is_first = if imagined == 0 {
                Self::is_first(asked, census)
            } else {
                asked.matches_itself
                    && near
                        .iter()
                        .zip(&counts)
                        .all(|(counter, here)| counter.total() + here.map_or(0, |_| imagined) == 0)
            };
            if !labelled || !(all || is_first) {
                return Err(Rejection::unresolvable(NO_AFFINITY));
            }
        }
        let away = counters(&asked.anti_affinity);
        if away.iter().any(|counter| here(counter).unwrap_or(0) > 0) {
            return Err(Rejection::unschedulable(ANTI_AFFINITY));
        }
        if self.existing_refuse(asked, cycle, node) {
            return Err(Rejection::unschedulable(EXISTING));
        }
        Ok(())
    }
}

impl PreScore for InterPodAffinity {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let own = [(false, 1), (true, -1)];
        let constrained = own
            .iter()
            .any(|(anti, _)| !terms::preferred(cycle.pod, *anti).is_empty());
        if self.args.ignore_preferred_terms_of_existing_pods && !constrained {
            return PreScoreResult::Skip;
        }
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let mut preferred = Preferred {
            drawn: self.drawn.matching(cycle.pod, &labels_of),
            ..Preferred::default()
        };
        if let Some(own) = self.own(cycle).filter(|_| constrained) {
            preferred.wanted.clone_from(&own.preferred);
        }
        if preferred.drawn.is_empty() && preferred.wanted.is_empty() {
            return PreScoreResult::Skip;
        }
        PreScoreResult::Ready(State::of(preferred))
    }
}

impl Score for InterPodAffinity {
    fn normalization(&self) -> Normalize {
        Normalize::Custom
    }
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "the published formula, in floating point"
    )]
    fn normalize(&self, _cycle: &Cycle<'_>, scores: &mut [i64]) {
        let min = scores.iter().copied().min().unwrap_or(0);
        let max = scores.iter().copied().max().unwrap_or(0);
        let span = max.saturating_sub(min);
        for score in scores {
            *score = if span == 0 {
                0
            } else {
                (100.0 * ((*score - min) as f64 / span as f64)) as i64
            };
        }
    }
}

impl QueueHints for InterPodAffinity {
    fn interests(&self) -> Vec<Interest> {
        let interest = |subject, actions| Interest { subject, actions };
        vec![
            interest(
                Subject::AssignedPod,
                Action::ADD.or(Action::DELETE).or(Action::POD_LABEL),
            ),
            interest(Subject::Node, Action::ADD.or(Action::NODE_LABEL)),
            interest(
                Subject::UnscheduledPod,
                Action::POD_SPEC.or(Action::POD_LABEL),
            ),
            interest(Subject::Object(NAMESPACES), Action::ADD.or(Action::UPDATE)),
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> Helps {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let meets = |owner: &PodInfo, other: &PodInfo, anti: bool| {
            let mut terms = Said::of(owner).into_iter().flat_map(|it| it.required(anti));
            terms.any(|one| one.term.matches(other, &labels_of))
        };
        let helps = match (event.subject, event.pod, event.node) {
            (Subject::AssignedPod, Some(other), _) => {
                let relabelled = event.action.meets(Action::POD_LABEL);
                let came = event.action.meets(Action::ADD);
                let went = event.action.meets(Action::DELETE);
                relabelled
                    || came && meets(pod, other, false)
                    || went && (meets(pod, other, true) || meets(other, pod, true))
            }
            (Subject::Node, _, Some(node)) => {
                // Anti-affinity is satisfied by a node without the label.
                let mut affinity = terms::required(pod, false).iter();
                affinity.all(|term| node.label(&term.topology_key).is_some())
            }
            _ => true,
        };
        if helps { Helps::Queue } else { Helps::Skip }
    }
}

impl Preparation for InterPodAffinity {
    fn prepare(&mut self, cycle: &Cycle<'_>) {
        let Some(said) = Said::of(cycle.pod) else {
            return;
        };
        let mut own = Own {
            pod: Some(cycle.pod.clone()),
            ..Own::default()
        };
        for (first, key) in &said.together {
            let frame = &said.affinity[*first].frame;
            let counter = self.counter(*key, said.affinity.iter(), frame, cycle);
            own.affinity.push(counter);
        }
        let alone = |this: &mut Self, one: &One| {
            this.counter(one.key, [one].into_iter(), &one.frame, cycle)
        };
        for one in &said.anti_affinity {
            own.anti_affinity.push(alone(self, one));
        }
        for (one, weight) in &said.preferred {
            own.preferred.push((alone(self, one), *weight));
        }
        self.own = own;
    }
}

impl ObjectEvents for InterPodAffinity {
    fn on_object(&mut self, change: &ObjectChange, _view: View<'_>, _fx: &mut Effects) {
        let Some(namespace) = change.new_as::<Namespace>() else {
            return;
        };
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        let old = if change.action == Action::DELETE {
            self.namespaces.remove(&name)
        } else {
            self.namespaces.insert(name, Arc::new(labels.clone()))
        };
        if old.is_none_or(|old| *old != labels) || change.action == Action::DELETE {
            // The counters are rebuilt on demand.
            self.wanted.drop_by_namespace_labels();
        }
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let info = view.nodes.info(node).map(|info| &**info);
        self.wanted.node_changed(node, info);
        self.kept_away.node_changed(node, info);
        self.drawn.node_changed(node, info);
    }
}

impl PodEvents for InterPodAffinity {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.book(pod, node, view, 1);
    }
    fn on_updated(
        &mut self,
        old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        let affinity = |pod: &PodInfo| pod.spec().and_then(|spec| spec.affinity.clone());
        if old.labels() != new.labels()
            || (terms::has_any(old) || terms::has_any(new)) && affinity(old) != affinity(new)
        {
            self.book(old, node, view, -1);
            self.book(new, node, view, 1);
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.book(pod, node, view, -1);
    }
}

impl Volatile for InterPodAffinity {
    fn minds_afar(&self, pod: &PodInfo, mate: &PodInfo) -> bool {
        let labels_of = |name: &str| self.namespaces.get(name).cloned();
        let meets = |owner: &PodInfo, other: &PodInfo, anti: bool| {
            let terms = Said::of(owner).into_iter().flat_map(|it| it.required(anti));
            // Anti-affinity by host does not depend on other nodes.
            let mut terms =
                terms.filter(|one| !anti || one.label() != crate::common::hosts::HOSTNAME);
            terms.any(|one| one.term.matches(other, &labels_of))
        };
        meets(pod, mate, false) || meets(pod, mate, true) || meets(mate, pod, true)
    }
    fn filter_rows(
        &self,
        _cycle: &Cycle<'_>,
        state: &State,
        rows: &[NodeIndex],
        fits: &mut [bool],
    ) {
        let Some(asked) = state.get::<Asked>() else {
            return;
        };
        let census = &self.wanted;
        let is_first = Self::is_first(asked, census);
        for counter in asked.affinity.iter().filter_map(|id| census.get(*id)) {
            each(census, counter, rows, fits, |labelled, count| {
                labelled && (count > 0 || is_first)
            });
        }
        for counter in asked.anti_affinity.iter().filter_map(|id| census.get(*id)) {
            each(census, counter, rows, fits, |_, count| count <= 0);
        }
        for counter in asked
            .existing
            .iter()
            .filter_map(|id| self.kept_away.get(*id))
        {
            each(&self.kept_away, counter, rows, fits, |_, count| count <= 0);
        }
    }
    fn filter_groups(&self, cycle: &Cycle<'_>, state: &State) -> Option<Groups> {
        let asked = state.get::<Asked>()?;
        let census = &self.wanted;
        let mut groups = Groups::default();
        for counter in asked.affinity.iter().filter_map(|id| census.get(*id)) {
            // A node without the label is rejected, so it may differ from nodes that count nothing.
            if census.is_plain(counter) && !census.is_everywhere(counter, cycle.view.nodes) {
                return None;
            }
            groups = census.alike(counter, groups, cycle.view.nodes)?;
        }
        for counter in asked.anti_affinity.iter().filter_map(|id| census.get(*id)) {
            groups = census.alike(counter, groups, cycle.view.nodes)?;
        }
        let existing = asked.existing.iter();
        for counter in existing.filter_map(|id| self.kept_away.get(*id)) {
            groups = self.kept_away.alike(counter, groups, cycle.view.nodes)?;
        }
        Some(groups)
    }
    fn score_rows(
        &self,
        _cycle: &Cycle<'_>,
        state: &State,
        rows: &[NodeIndex],
        scores: &mut [i64],
    ) {
        scores.fill(0);
        let Some(preferred) = state.get::<Preferred>() else {
            return;
        };
        let census = &self.wanted;
        let mut add = |census: &Census, id: CounterId, weight: i64| {
            let Some(counter) = census.get(id).filter(|counter| !counter.is_zero()) else {
                return;
            };
            let domains = census.domains_of(counter);
            for (node, score) in rows.iter().zip(&mut *scores) {
                let domain = domains.get(node.row()).copied().unwrap_or(NONE);
                *score += weight * i64::from(counter.at(domain));
            }
        };
        for (id, weight) in &preferred.wanted {
            add(census, *id, *weight);
        }
        for id in &preferred.drawn {
            add(&self.drawn, *id, 1);
        }
    }
    fn score_groups(&self, cycle: &Cycle<'_>, state: &State) -> Option<Groups> {
        let preferred = state.get::<Preferred>()?;
        let census = &self.wanted;
        let mut groups = Groups::default();
        for counter in preferred
            .wanted
            .iter()
            .filter_map(|(id, _)| census.get(*id))
        {
            groups = census.alike(counter, groups, cycle.view.nodes)?;
        }
        for counter in preferred.drawn.iter().filter_map(|id| self.drawn.get(*id)) {
            groups = self.drawn.alike(counter, groups, cycle.view.nodes)?;
        }
        Some(groups)
    }
}

/// Clears `fits` for rows on which `keep`, called with whether the node has the label and the count of its
/// domain, returns false.
fn each(
    census: &Census,
    counter: &crate::common::topology::Counter,
    rows: &[NodeIndex],
    fits: &mut [bool],
    keep: impl Fn(bool, i32) -> bool,
) {
    let (domains, counts) = (census.domains_of(counter), counter.counts());
    for (node, fits) in rows.iter().zip(fits) {
        let domain = domains.get(node.row()).copied().unwrap_or(NONE);
        let count = counts.get(domain as usize).copied().unwrap_or(0);
        *fits &= keep(domain != NONE, count);
    }
}
