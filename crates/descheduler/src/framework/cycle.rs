//! One descheduling cycle, and the interface that it offers to strategies.

use super::{
    Action, Departures, EvictionBackoff, EvictionRequest, Evictor, Filter, Finding, Intent,
    Limiter, Limits, Move, Note, Placement, Plan, Profile, ProfileDepartures, SkipReason,
    SkippedPod, Strategy, StrategyError,
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

/// Profiles, limits and state of the descheduler.
#[derive(Debug, Default)]
pub struct Framework {
    /// Profiles in the order of the configuration.
    pub profiles: Vec<Profile>,
    /// Selector of the nodes to consider; all nodes without one.
    pub node_selector: Option<LabelSelector>,
    /// Eviction limits of a cycle, over all profiles.
    pub limits: Limits,
    /// True if plans are only reported, not carried out.
    pub dry_run: bool,
    /// Reservations omit PersistentVolumeClaims: feature gate `DisablePVCReservation`.
    pub without_claims: bool,
    /// Finds target nodes for pods; without it, no target is known when a move is planned.
    pub placement: Option<Box<dyn Placement>>,
    /// Pods whose moves failed recently.
    pub backoff: EvictionBackoff,
}

/// Interface of a cycle for a strategy: the snapshot to read, and the moves to request.
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

/// State of a cycle that all profiles share.
#[derive(Debug, Default)]
struct RunState {
    limiter: Limiter,
    backoff: EvictionBackoff,
    placement: Option<Box<dyn Placement>>,
    dry_run: bool,
    departures: Departures,
    /// Number of moves in the plan that each profile has counted.
    counted: FxHashMap<Arc<str>, usize>,
    plan: Plan,
}

/// Selects the strategies of an extension point.
type Point = fn(&mut Profile) -> &mut Vec<Box<dyn Strategy>>;

impl Framework {
    /// Returns true if any strategy is enabled; without one, a cycle never plans a move.
    #[must_use]
    pub fn has_strategies(&self) -> bool {
        let on = |profile: &Profile| !profile.deschedule.is_empty() || !profile.balance.is_empty();
        self.profiles.iter().any(on)
    }

    /// Returns the [`Migrations`] of all filters and evictors, each once, in the order of profiles.
    #[must_use]
    pub fn migrations(&self) -> Vec<Arc<Migrations>> {
        let mut all = Vec::<Arc<Migrations>>::new();
        for profile in &self.profiles {
            let of_filters = profile
                .filters
                .iter()
                .filter_map(|migration| migration.migrations());
            for migration in profile.evictor.migrations().into_iter().chain(of_filters) {
                if !all.iter().any(|existing| Arc::ptr_eq(existing, &migration)) {
                    all.push(migration);
                }
            }
        }
        all
    }

    /// Runs a cycle on `snapshot` and returns its plan. Nothing is planned with fewer than two ready nodes.
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

    /// Records the outcomes of `plan`, which was made from `snapshot`, in the order of its actions. Pods
    /// whose moves failed are skipped for some cycles.
    pub fn record_outcomes(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        outcomes: &[Result<String, String>],
    ) {
        self.backoff.record_outcomes(plan, outcomes, snapshot.now);
    }

    /// Returns true if any filter reads [`Snapshot::storage_classes`].
    #[must_use]
    pub fn reads_storage_classes(&self) -> bool {
        let mut filters = self.profiles.iter().flat_map(|profile| &profile.filters);
        filters.any(|filter| filter.reads_storage_classes())
    }

    /// Runs the strategies of all profiles on the ready and selected nodes.
    fn run_profiles(&mut self, snapshot: &Snapshot, shared: &mut RunState) -> Result<(), String> {
        let nodes = snapshot.nodes.iter().filter(|node| node.ready).cloned();
        let nodes = selected(nodes, self.node_selector.as_ref())
            .map_err(|error| format!("nodeSelector: {error}"))?;
        if nodes.len() < 2 {
            let count = nodes.len();
            return Err(format!(
                "{count} nodes are ready and selected: nothing is moved with fewer than two"
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
    /// Runs the strategies of one extension point on the nodes that the profile selects.
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

    /// Counts moves that other profiles have planned since this profile ran last.
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
    /// Returns the cluster snapshot.
    #[must_use]
    pub fn snapshot(&self) -> &'a Snapshot {
        self.snapshot
    }

    /// Returns the ready nodes of this profile, by name.
    #[must_use]
    pub fn nodes(&self) -> &'a [Arc<NodeInfo>] {
        self.nodes
    }

    /// Returns those of [`Cycle::nodes`] that the selector `by` matches; all without one.
    ///
    /// # Errors
    /// Returns an error if the selector, which is the strategy's `nodeSelector`, is invalid.
    pub fn selected(
        &self,
        by: Option<&LabelSelector>,
    ) -> Result<Vec<Arc<NodeInfo>>, StrategyError> {
        selected(self.nodes.iter().cloned(), by).map_err(|error| StrategyError {
            strategy: self.strategy,
            problem: format!("nodeSelector: {error}"),
        })
    }

    /// Returns the pods that leave their nodes regardless of the strategy that runs now.
    #[must_use]
    pub fn departures(&self) -> ProfileDepartures<'_> {
        self.shared.departures.for_profile(self.profile)
    }

    /// Returns true if `pod` is in the plan.
    #[must_use]
    pub fn is_planned(&self, pod: &PodInfo) -> bool {
        self.departures().is_planned(pod)
    }

    /// Returns true if `pod` leaves its node regardless of this strategy: it is in the plan, moved by a job,
    /// or being deleted.
    #[must_use]
    pub fn is_leaving(&self, pod: &PodInfo) -> bool {
        self.departures().is_leaving(pod)
    }

    /// Returns the pods of a node in every phase that are not in the plan: those that a strategy may request
    /// to evict.
    #[must_use]
    pub fn pods_on(&self, node: &str) -> Vec<&'a Arc<PodInfo>> {
        let pods = self.snapshot.pods_on(node);
        pods.filter(|pod| !self.is_planned(pod)).collect()
    }

    /// Returns those of [`Cycle::pods_on`] that have not ended.
    #[must_use]
    pub fn active_on(&self, node: &str) -> Vec<&'a Arc<PodInfo>> {
        let pods = self.snapshot.active_on(node);
        pods.filter(|pod| !self.is_planned(pod)).collect()
    }

    /// Returns those of [`Cycle::active_on`] that do not leave: those that a strategy counts on the node,
    /// whether they may be evicted or not.
    #[must_use]
    pub fn staying_on(&self, node: &str) -> Vec<&'a Arc<PodInfo>> {
        let pods = self.snapshot.active_on(node);
        pods.filter(|pod| !self.is_leaving(pod)).collect()
    }

    /// Returns the moves planned so far.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        let moves = self.shared.plan.moves();
        moves.filter(|planned| self.is_planned(&planned.pod))
    }

    /// Returns the free capacity of nodes after all planned moves.
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

    /// Returns true if this cycle is a dry run.
    #[must_use]
    pub fn is_dry(&self) -> bool {
        self.shared.dry_run
    }

    /// Checks whether all filters let `pod` go.
    ///
    /// # Errors
    /// Returns the reason of the first filter that does not.
    pub fn admits(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        self.filters
            .iter()
            .try_for_each(|filter| filter.filter(self.snapshot, pod))
    }

    /// Checks filters like [`Cycle::admits`], and records `pod` as skipped if one refuses it.
    pub fn filter(&mut self, pod: &Arc<PodInfo>) -> bool {
        self.accept_or_skip(pod, self.admits(pod))
    }

    /// Checks whether all filters let `pod` go in their last check before [`Cycle::evict`], which does not
    /// repeat it.
    ///
    /// # Errors
    /// Returns the reason of the first filter that does not.
    pub fn admits_eviction(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        let mut filters = self.filters.iter();
        filters.try_for_each(|filter| filter.pre_evict(self.snapshot, self.nodes, pod))
    }

    /// Checks filters like [`Cycle::admits_eviction`], and records `pod` as skipped if one refuses it.
    pub fn pre_evict(&mut self, pod: &Arc<PodInfo>) -> bool {
        self.accept_or_skip(pod, self.admits_eviction(pod))
    }

    /// Puts `pod` into the plan for `reason` if limits, placement and the evictor allow it.
    ///
    /// # Errors
    /// Returns why the pod stays; it is recorded as skipped.
    pub fn evict(
        &mut self,
        pod: &Arc<PodInfo>,
        reason: impl Into<String>,
    ) -> Result<(), SkipReason> {
        self.evict_with(pod, reason, None, None)
    }

    /// Evicts like [`Cycle::evict`], with delete options and as part of draining a node.
    ///
    /// # Errors
    /// Returns why the pod stays; it is recorded as skipped.
    pub fn evict_with(
        &mut self,
        pod: &Arc<PodInfo>,
        reason: impl Into<String>,
        delete_options: Option<&DeleteOptions>,
        drains: Option<Arc<str>>,
    ) -> Result<(), SkipReason> {
        if self.is_planned(pod) {
            return Err(SkipReason::new(
                "AlreadyPlanned",
                "this cycle moves it already",
            ));
        }
        let reason = reason.into();
        let request = EvictionRequest {
            pod,
            strategy: self.strategy,
            reason: &reason,
            delete_options,
        };
        match self.plan_eviction(&request) {
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
            Err(cause) => {
                self.skip_pod(pod, cause.clone());
                Err(cause)
            }
        }
    }

    /// Returns the target node found for the last planned pod; `None` without a [`Placement`].
    #[must_use]
    pub fn tentative_target(&self) -> Option<&Arc<str>> {
        match self.shared.plan.actions.last() {
            Some(Action::Move(planned)) => planned.target.as_ref(),
            _ => None,
        }
    }

    /// Returns true if the last planned move is carried out, not only shown.
    #[must_use]
    pub fn is_last_move_real(&self) -> bool {
        let last = self.shared.plan.actions.last();
        matches!(last, Some(Action::Move(planned)) if planned.is_real())
    }

    /// Returns the job that moves the last planned pod, if there is one.
    pub fn job(&mut self) -> Option<&mut PodMigrationJob> {
        match self.shared.plan.actions.last_mut() {
            Some(Action::Move(planned)) => match &mut planned.intent {
                Some(Intent::Job(job)) => Some(job),
                _ => None,
            },
            _ => None,
        }
    }

    /// Puts `pod` into the plan as a move that is only shown: it counts toward no limit, and neither evictor
    /// nor placement is called.
    pub fn show_move(&mut self, pod: &Arc<PodInfo>, reason: impl Into<String>) {
        self.push_move(pod, reason.into(), None, None, None);
    }

    /// Returns true if `verdict` allows `pod` to be evicted; otherwise records it as skipped.
    pub fn accept_or_skip(&mut self, pod: &Arc<PodInfo>, verdict: Result<(), SkipReason>) -> bool {
        match verdict {
            Ok(()) => true,
            Err(reason) => {
                self.skip_pod(pod, reason);
                false
            }
        }
    }

    /// Records that `pod` was considered and stays.
    pub fn skip_pod(&mut self, pod: &Arc<PodInfo>, reason: SkipReason) {
        let skipped = SkippedPod {
            pod: pod.clone(),
            profile: self.profile.clone(),
            strategy: self.strategy,
            reason,
        };
        self.shared.plan.skipped.push(skipped);
    }

    /// Adds a note about a node, or about the whole cluster.
    pub fn note(&mut self, node: Option<&Arc<str>>, text: impl Into<String>) {
        self.add_note(node, text.into(), Finding::Other);
    }

    /// Notes that `node` is hot; `early` if it has not been hot for long enough.
    pub fn hot(&mut self, node: &Arc<str>, text: impl Into<String>, early: bool) {
        let finding = if early { Finding::Early } else { Finding::Hot };
        self.add_note(Some(node), text.into(), finding);
    }

    /// Notes that `node` is skipped because its usage data are unusable.
    pub fn skip_node(&mut self, node: &Arc<str>, rejection: &UsageRejection) {
        let text = format!("not looked at: {rejection}");
        self.add_note(Some(node), text, Finding::Skipped(rejection.problem));
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

    /// Adds an action other than a move to the plan; ignored in a dry run.
    pub fn add_action(&mut self, action: Action) {
        if !self.shared.dry_run {
            self.shared.plan.actions.push(action);
        }
    }

    /// Returns the number of actions so far: a position for [`Cycle::insert_action`].
    #[must_use]
    pub fn action_count(&self) -> usize {
        self.shared.plan.actions.len()
    }

    /// Inserts an action like [`Cycle::add_action`], before everything that was planned after `place`;
    /// ignored if that includes moves that are only shown.
    pub fn insert_action(&mut self, place: usize, action: Action) {
        let actions = &mut self.shared.plan.actions;
        let mut since = actions.iter().skip(place);
        let only_shown = |action: &Action| matches!(action, Action::Move(one) if !one.is_real());
        if !self.shared.dry_run && !since.any(only_shown) {
            actions.insert(place.min(actions.len()), action);
        }
    }

    fn plan_eviction(
        &mut self,
        request: &EvictionRequest<'_>,
    ) -> Result<(Option<Intent>, Option<Arc<str>>), SkipReason> {
        self.shared.limiter.allows(request.pod)?;
        self.shared.backoff.allows(request.pod)?;
        self.evictor.admits(self.snapshot, request.pod)?;
        let target = match &mut self.shared.placement {
            Some(placement) => Some(placement.place_tentatively(self.snapshot, request.pod)?),
            None => None,
        };
        let intent = self.evictor.evict(self.snapshot, request)?;
        Ok((Some(intent).filter(|_| !self.shared.dry_run), target))
    }

    /// Adds a move of `pod` by the current strategy to the plan. The other arguments are fields of [`Move`].
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
