//! One cycle, and what a strategy sees of it.

use super::{
    Action, Ask, Departures, EvictionBackoff, Evictor, Filter, Finding, Intent, Limiter, Limits,
    Move, Note, Placement, Plan, Profile, ProfileDepartures, SkippedPod, Strategy, StrategyError,
    Why,
};
use crate::migration::Migrations;
use crate::rules::Fit;
use crate::state::{NodeInfo, PodInfo, Snapshot, UsageRejection};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, LabelSelector};
use koord_api::scheduling::PodMigrationJob;
use koord_api::selector;
use rustc_hash::FxHashMap;
use std::mem;
use std::sync::Arc;

/// Everything that runs in a cycle.
#[derive(Debug, Default)]
pub struct Framework {
    /// In the order of the configuration.
    pub profiles: Vec<Profile>,
    /// Which nodes are looked at at all; all without one.
    pub node_selector: Option<LabelSelector>,
    /// Of each cycle, over all profiles.
    pub limits: Limits,
    /// Nothing is done; plans say what would be.
    pub dry_run: bool,
    /// Reservations have no PersistentVolumeClaims: feature gate `DisablePVCReservation`.
    pub without_claims: bool,
    /// Who knows where pods can go; without anybody, whoever evicts finds out.
    pub placement: Option<Box<dyn Placement>>,
    /// Whose moves failed lately.
    pub backoff: EvictionBackoff,
}

/// What a strategy sees, and may ask for.
#[derive(Debug)]
pub struct Cycle<'a> {
    snapshot: &'a Snapshot,
    nodes: &'a [Arc<NodeInfo>],
    profile: &'a Arc<str>,
    strategy: &'static str,
    filters: &'a mut [Box<dyn Filter>],
    evictor: &'a mut dyn Evictor,
    shared: &'a mut RunState,
}

/// What the profiles of a cycle share.
#[derive(Debug, Default)]
struct RunState {
    limiter: Limiter,
    backoff: EvictionBackoff,
    placement: Option<Box<dyn Placement>>,
    dry_run: bool,
    departures: Departures,
    /// How many moves of the plan each profile has counted.
    counted: FxHashMap<Arc<str>, usize>,
    plan: Plan,
}

/// A point at which strategies run.
type Point = fn(&mut Profile) -> &mut Vec<Box<dyn Strategy>>;

impl Framework {
    /// Whether any strategy is on; without one, nothing is ever looked for.
    #[must_use]
    pub fn has_strategies(&self) -> bool {
        let on = |profile: &Profile| !profile.deschedule.is_empty() || !profile.balance.is_empty();
        self.profiles.iter().any(on)
    }

    /// What those share that make jobs or keep pods from them, each once, in the order of profiles.
    #[must_use]
    pub fn migrations(&self) -> Vec<Arc<Migrations>> {
        let mut all = Vec::<Arc<Migrations>>::new();
        for profile in &self.profiles {
            let of_filters = profile.filters.iter().filter_map(|one| one.migrations());
            for one in profile.evictor.migrations().into_iter().chain(of_filters) {
                if !all.iter().any(|known| Arc::ptr_eq(known, &one)) {
                    all.push(one);
                }
            }
        }
        all
    }

    /// Looks at `snapshot` and says what is to be done. With fewer than two nodes that are ready, nothing is.
    pub fn run(&mut self, snapshot: &Snapshot) -> Plan {
        let mut shared = RunState {
            limiter: Limiter::new(self.limits),
            backoff: mem::take(&mut self.backoff),
            placement: self.placement.take(),
            dry_run: self.dry_run,
            departures: Departures::new(snapshot),
            ..RunState::default()
        };
        shared.backoff.begin(snapshot.now);
        if let Err(problem) = self.run_profiles(snapshot, &mut shared) {
            shared.plan.error = Some(problem);
        }
        if let Some(placement) = &mut shared.placement {
            placement.end();
        }
        self.placement = shared.placement;
        self.backoff = shared.backoff;
        shared.plan
    }

    /// What became of `plan`, which was made of `snapshot`: outcomes in the order of its actions. Pods whose moves
    /// failed pause.
    pub fn record_outcomes(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        outcomes: &[Result<String, String>],
    ) {
        self.backoff.record_outcomes(plan, outcomes, snapshot.now);
    }

    /// Whether anybody reads [`Snapshot::storage_classes`].
    #[must_use]
    pub fn reads_storage_classes(&self) -> bool {
        let mut filters = self.profiles.iter().flat_map(|profile| &profile.filters);
        filters.any(|filter| filter.reads_storage_classes())
    }

    fn run_profiles(&mut self, snapshot: &Snapshot, shared: &mut RunState) -> Result<(), String> {
        let nodes = snapshot.nodes.iter().filter(|node| node.ready).cloned();
        let nodes = selected(nodes, self.node_selector.as_ref())
            .map_err(|error| format!("nodeSelector: {error}"))?;
        if nodes.len() < 2 {
            let there = nodes.len();
            return Err(format!(
                "{there} nodes are ready and selected: nothing is moved with fewer than two"
            ));
        }
        if let Some(placement) = &mut shared.placement {
            placement.begin(snapshot);
        }
        for profile in &mut self.profiles {
            for filter in &mut profile.filters {
                filter.begin(snapshot);
            }
            profile.evictor.begin(snapshot);
        }
        let points: [Point; 2] = [
            |profile| &mut profile.deschedule,
            |profile| &mut profile.balance,
        ];
        for point in points {
            for profile in &mut self.profiles {
                profile.run(point, snapshot, &nodes, shared)?;
            }
        }
        Ok(())
    }
}

impl Profile {
    fn run(
        &mut self,
        point: Point,
        snapshot: &Snapshot,
        nodes: &[Arc<NodeInfo>],
        shared: &mut RunState,
    ) -> Result<(), String> {
        let named = |problem: String| format!("profile {}: {problem}", self.name);
        let nodes = selected(nodes.iter().cloned(), self.node_selector.as_ref())
            .map_err(|error| named(format!("nodeSelector: {error}")))?;
        self.count_moves_of_others(snapshot, shared);
        let mut strategies = mem::take(point(self));
        let mut outcome = Ok(());
        for strategy in &mut strategies {
            let mut cycle = Cycle {
                snapshot,
                nodes: &nodes,
                profile: &self.name,
                strategy: strategy.name(),
                filters: &mut self.filters,
                evictor: &mut *self.evictor,
                shared,
            };
            if let Err(error) = strategy.run(&mut cycle) {
                outcome = outcome.and(Err(error.to_string()));
            }
        }
        let named = |problem: String| format!("profile {}: {problem}", self.name);
        let outcome = outcome.map_err(named);
        *point(self) = strategies;
        let moves = shared.plan.moves().count();
        shared.counted.insert(self.name.clone(), moves);
        outcome
    }

    /// Lets filters and evictor count what other profiles have put into the plan since this one ran last.
    fn count_moves_of_others(&mut self, snapshot: &Snapshot, shared: &RunState) {
        let counted = shared.counted.get(&self.name).copied().unwrap_or(0);
        for planned in shared.plan.moves().skip(counted) {
            let counts = shared.departures.for_profile(&self.name);
            if planned.profile == self.name || !counts.is_planned(&planned.pod) {
                continue;
            }
            for filter in &mut self.filters {
                filter.moved(snapshot, &planned.pod);
            }
            self.evictor.moved(snapshot, &planned.pod);
        }
    }
}

fn selected(
    nodes: impl Iterator<Item = Arc<NodeInfo>>,
    by: Option<&LabelSelector>,
) -> Result<Vec<Arc<NodeInfo>>, selector::SelectorError> {
    let Some(by) = by else {
        return Ok(nodes.collect());
    };
    let keep = |node: Arc<NodeInfo>| match selector::matches(by, &node.labels) {
        Ok(is) => is.then_some(Ok(node)),
        Err(error) => Some(Err(error)),
    };
    nodes.filter_map(keep).collect()
}

impl<'a> Cycle<'a> {
    /// The cluster.
    #[must_use]
    pub fn snapshot(&self) -> &'a Snapshot {
        self.snapshot
    }

    /// The nodes of this profile that are ready, by name.
    #[must_use]
    pub fn nodes(&self) -> &'a [Arc<NodeInfo>] {
        self.nodes
    }

    /// Those of [`Cycle::nodes`] that `by` selects; all without one.
    ///
    /// # Errors
    /// The selector, which is the strategy's `nodeSelector`, cannot be evaluated.
    pub fn selected(
        &self,
        by: Option<&LabelSelector>,
    ) -> Result<Vec<Arc<NodeInfo>>, StrategyError> {
        selected(self.nodes.iter().cloned(), by).map_err(|error| StrategyError {
            strategy: self.strategy,
            problem: format!("nodeSelector: {error}"),
        })
    }

    /// The pods that leave without the rule that is judged now.
    #[must_use]
    pub fn departures(&self) -> ProfileDepartures<'_> {
        self.shared.departures.for_profile(self.profile)
    }

    /// Whether `pod` is in the plan already.
    #[must_use]
    pub fn is_planned(&self, pod: &PodInfo) -> bool {
        self.departures().is_planned(pod)
    }

    /// Whether `pod` leaves its node without this rule: it is in the plan, moved by a job, or being deleted.
    #[must_use]
    pub fn is_leaving(&self, pod: &PodInfo) -> bool {
        self.departures().is_leaving(pod)
    }

    /// The pods of a node in every phase that are not in the plan: those that a rule may ask to evict.
    #[must_use]
    pub fn pods_on(&self, node: &str) -> Vec<&'a Arc<PodInfo>> {
        let pods = self.snapshot.pods_on(node);
        pods.filter(|pod| !self.is_planned(pod)).collect()
    }

    /// Those of [`Cycle::pods_on`] that have not ended.
    #[must_use]
    pub fn active_on(&self, node: &str) -> Vec<&'a Arc<PodInfo>> {
        let pods = self.snapshot.active_on(node);
        pods.filter(|pod| !self.is_planned(pod)).collect()
    }

    /// Those of [`Cycle::active_on`] that do not leave: those that a rule counts on the node, whether they may be
    /// evicted or not.
    #[must_use]
    pub fn staying_on(&self, node: &str) -> Vec<&'a Arc<PodInfo>> {
        let pods = self.snapshot.active_on(node);
        pods.filter(|pod| !self.is_leaving(pod)).collect()
    }

    /// The moves that are planned so far.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        let moves = self.shared.plan.moves();
        moves.filter(|planned| self.is_planned(&planned.pod))
    }

    /// What the nodes have left when all planned moves are through.
    #[must_use]
    pub fn fit(&self) -> Fit {
        let mut fit = Fit::new(self.snapshot);
        for planned in self.moves() {
            if let Some(node) = &planned.pod.node {
                fit.remove(&planned.pod, node);
            }
            if let Some(target) = &planned.target {
                fit.add(&planned.pod, target);
            }
        }
        fit
    }

    /// Whether nothing is done in this cycle at all.
    #[must_use]
    pub fn is_dry(&self) -> bool {
        self.shared.dry_run
    }

    /// Whether all filters let `pod` go.
    ///
    /// # Errors
    /// The first that does not.
    pub fn admits(&self, pod: &PodInfo) -> Result<(), Why> {
        self.filters
            .iter()
            .try_for_each(|filter| filter.filter(self.snapshot, pod))
    }

    /// As [`Cycle::admits`]; who may not go is among those that stay.
    pub fn filter(&mut self, pod: &Arc<PodInfo>) -> bool {
        self.accept_or_skip(pod, self.admits(pod))
    }

    /// Whether all filters let `pod` go at the last question before [`Cycle::evict`], which does not ask it itself.
    ///
    /// # Errors
    /// The first that does not.
    pub fn admits_eviction(&self, pod: &PodInfo) -> Result<(), Why> {
        let mut filters = self.filters.iter();
        filters.try_for_each(|filter| filter.pre_evict(self.snapshot, self.nodes, pod))
    }

    /// As [`Cycle::admits_eviction`]; who may not go is among those that stay.
    pub fn pre_evict(&mut self, pod: &Arc<PodInfo>) -> bool {
        self.accept_or_skip(pod, self.admits_eviction(pod))
    }

    /// Puts `pod` into the plan for `reason`, if limits, placement and the evictor let it go.
    ///
    /// # Errors
    /// Why it stays; it is among those that do.
    pub fn evict(&mut self, pod: &Arc<PodInfo>, reason: impl Into<String>) -> Result<(), Why> {
        self.evict_with(pod, reason, None, None)
    }

    /// As [`Cycle::evict`], with a say in how it is deleted, and as part of clearing a node.
    ///
    /// # Errors
    /// Why it stays; it is among those that do.
    pub fn evict_with(
        &mut self,
        pod: &Arc<PodInfo>,
        reason: impl Into<String>,
        delete_options: Option<&DeleteOptions>,
        drains: Option<Arc<str>>,
    ) -> Result<(), Why> {
        if self.is_planned(pod) {
            return Err(Why::new("AlreadyPlanned", "this cycle moves it already"));
        }
        let reason = reason.into();
        let ask = Ask {
            pod,
            strategy: self.strategy,
            reason: &reason,
            delete_options,
        };
        match self.plan_eviction(&ask) {
            Ok((intent, target)) => {
                self.shared.limiter.count(pod);
                for filter in self.filters.iter_mut() {
                    filter.moved(self.snapshot, pod);
                }
                let is_shown = matches!(intent, Some(Intent::Nothing));
                let shown_by = is_shown.then_some(self.profile);
                self.shared.departures.add(pod, shown_by);
                self.push_move(pod, reason, intent, target, drains);
                Ok(())
            }
            Err(why) => {
                self.skip_pod(pod, why.clone());
                Err(why)
            }
        }
    }

    /// Where the pod that was put into the plan last was found to have room, if anybody looked.
    #[must_use]
    pub fn promised_target(&self) -> Option<&Arc<str>> {
        match self.shared.plan.actions.last() {
            Some(Action::Move(planned)) => planned.target.as_ref(),
            _ => None,
        }
    }

    /// Whether the pod that was put into the plan last goes, rather than that it would go is shown.
    #[must_use]
    pub fn is_last_move_real(&self) -> bool {
        let last = self.shared.plan.actions.last();
        matches!(last, Some(Action::Move(planned)) if planned.is_real())
    }

    /// The job that moves the pod that was put into the plan last, if one does.
    pub fn job(&mut self) -> Option<&mut PodMigrationJob> {
        match self.shared.plan.actions.last_mut() {
            Some(Action::Move(planned)) => match &mut planned.intent {
                Some(Intent::Job(job)) => Some(job),
                _ => None,
            },
            _ => None,
        }
    }

    /// Puts `pod` into the plan of a strategy that only shows what it would do: nothing counts, nothing is asked.
    pub fn show_move(&mut self, pod: &Arc<PodInfo>, reason: impl Into<String>) {
        self.push_move(pod, reason.into(), None, None, None);
    }

    /// Whether `verdict` lets `pod` go; otherwise it is among those that stay.
    pub fn accept_or_skip(&mut self, pod: &Arc<PodInfo>, verdict: Result<(), Why>) -> bool {
        match verdict {
            Ok(()) => true,
            Err(why) => {
                self.skip_pod(pod, why);
                false
            }
        }
    }

    /// `pod` was looked at and stays.
    pub fn skip_pod(&mut self, pod: &Arc<PodInfo>, why: Why) {
        let kept = SkippedPod {
            pod: pod.clone(),
            profile: self.profile.clone(),
            strategy: self.strategy,
            why,
        };
        self.shared.plan.kept.push(kept);
    }

    /// Something to say about a node, or about all of them.
    pub fn note(&mut self, node: Option<&Arc<str>>, text: impl Into<String>) {
        self.add_note(node, text.into(), Finding::Other);
    }

    /// `node` is too hot, perhaps not yet for long enough.
    pub fn hot(&mut self, node: &Arc<str>, text: impl Into<String>, early: bool) {
        let finding = if early { Finding::Early } else { Finding::Hot };
        self.add_note(Some(node), text.into(), finding);
    }

    /// `node` is not looked at.
    pub fn skip_node(&mut self, node: &Arc<str>, why: &UsageRejection) {
        let text = format!("not looked at: {why}");
        self.add_note(Some(node), text, Finding::Skipped(why.problem));
    }

    fn add_note(&mut self, node: Option<&Arc<str>>, text: String, finding: Finding) {
        self.shared.plan.notes.push(Note {
            profile: self.profile.clone(),
            strategy: self.strategy,
            node: node.cloned(),
            text,
            finding,
        });
    }

    /// Puts something else into the plan; nothing in a dry run.
    pub fn add_action(&mut self, action: Action) {
        if !self.shared.dry_run {
            self.shared.plan.actions.push(action);
        }
    }

    /// How many actions there are so far: a place for [`Cycle::insert_action`].
    #[must_use]
    pub fn action_count(&self) -> usize {
        self.shared.plan.actions.len()
    }

    /// As [`Cycle::add_action`], before everything that was put into the plan since `place` was asked for; nothing if that
    /// has moves that are only shown.
    pub fn insert_action(&mut self, place: usize, action: Action) {
        let actions = &mut self.shared.plan.actions;
        let mut since = actions.iter().skip(place);
        let only_shown = |action: &Action| matches!(action, Action::Move(one) if !one.is_real());
        if !self.shared.dry_run && !since.any(only_shown) {
            actions.insert(place.min(actions.len()), action);
        }
    }

    fn plan_eviction(&mut self, ask: &Ask<'_>) -> Result<(Option<Intent>, Option<Arc<str>>), Why> {
        self.shared.limiter.allows(ask.pod)?;
        self.shared.backoff.allows(ask.pod)?;
        self.evictor.admits(self.snapshot, ask.pod)?;
        let target = match &mut self.shared.placement {
            Some(placement) => Some(placement.promise(self.snapshot, ask.pod)?),
            None => None,
        };
        let intent = self.evictor.evict(self.snapshot, ask)?;
        Ok((Some(intent).filter(|_| !self.shared.dry_run), target))
    }

    fn push_move(
        &mut self,
        pod: &Arc<PodInfo>,
        reason: String,
        intent: Option<Intent>,
        target: Option<Arc<str>>,
        drains: Option<Arc<str>>,
    ) {
        let planned = Move {
            pod: pod.clone(),
            profile: self.profile.clone(),
            strategy: self.strategy,
            reason,
            intent,
            target,
            drains,
        };
        self.shared
            .plan
            .actions
            .push(Action::Move(Box::new(planned)));
    }
}
