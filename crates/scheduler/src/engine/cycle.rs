//! The scheduling cycle of one pod: from the queue to an assumed pod on a node, or to a refusal.

use super::extender_calls::{CycleStep, Purpose, Resume};
use super::measure::{self, Measurement, Meter, Point};
use super::plugin_table::PluginTable;
use super::select::{Choice, NodeSelection};
use super::waiting::WaitEnd;
use super::{BindRequest, CycleOutcome, CycleStart, Engine, Failure, Output, WaitingPod};
use crate::framework::{
    BindPlan, Code, Cycle, Diagnosis, Effects, ExtenderResult, Instance, LazyMessage, PermitResult,
    PodPatch, QueueHints, RefusalEvent, Rejection, View,
};
use crate::guard::{catch_panic, guarded};
use crate::queue::{PluginSet, QueuedPod, Refusal};
use crate::state::{NodeIndex, PodInfo};
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;

/// The longest time that a pod may wait for permission.
const MAX_WAIT: SignedDuration = SignedDuration::from_mins(15);

/// The outcome of a cycle without a placement.
#[derive(Debug)]
pub(super) enum CycleError {
    Refused(Box<Diagnosis>),
    Failed(String),
}

impl CycleError {
    /// Returns the error for a plugin that panicked with the message `message`.
    pub(super) fn panicked(message: &str) -> Self {
        Self::Failed(format!("a plugin panicked: {message}"))
    }
}

/// The part of a pod's cycle to run next. Without extenders, the first part is the whole cycle.
enum CyclePhase {
    First,
    Second(Purpose, ExtenderResult),
}

impl Engine {
    /// Tries to schedule the next ready pod. Returns `None` if no pod is ready.
    pub fn schedule_one(&mut self, now: Timestamp) -> Option<CycleOutcome> {
        self.tick(now);
        loop {
            self.telemetry.meter.begin(now);
            let Some((queued, phase)) = self.next_phase(now) else {
                self.telemetry.meter.cancel();
                return None;
            };
            let Some(profile) = self.table.profile_of(&queued.info) else {
                self.calls.finish_call(&queued.info.uid);
                self.queue.remove(&queued.info.uid);
                continue;
            };
            let pod = queued.info.clone();
            let ended = catch_panic(|| match phase {
                CyclePhase::First => self.cycle(&queued, profile, now),
                CyclePhase::Second(purpose, advice) => {
                    self.resume(&pod, profile, purpose, advice, now)
                }
            });
            let ended = ended.unwrap_or_else(|panic| {
                // The panic may have left cached evaluations inconsistent.
                self.classes.clear();
                self.withdraw_assumed(&pod.uid, now);
                Err(CycleError::panicked(&panic))
            });
            let attempts = queued.attempts;
            let first_seen = queued.first_seen;
            let base = CycleOutcome {
                pod: pod.clone(),
                profile,
                attempts,
                first_seen,
                node: None,
                error: false,
                evaluated: 0,
                feasible: 0,
            };
            self.telemetry.meter.end();
            let (evaluated, feasible) = self.telemetry.meter.compared;
            let outcome = match ended {
                Ok(None) => continue,
                Ok(node) => CycleOutcome {
                    node,
                    evaluated,
                    feasible,
                    ..base
                },
                Err(stop) => {
                    let error = self.refuse(&pod, stop, now);
                    CycleOutcome { error, ..base }
                }
            };
            if let Some(event) = self.calls.finish_call(&pod.uid)
                && outcome.node.is_none()
            {
                self.queue.wake(&pod.uid, event, now);
            }
            return Some(outcome);
        }
    }

    /// Takes the next pod and the part of its cycle to run. Extender results come first, as other pods may
    /// wait for the same extender.
    fn next_phase(&mut self, now: Timestamp) -> Option<(QueuedPod, CyclePhase)> {
        if let Some((queued, purpose, advice)) = self.calls.next_answer(&self.cluster, &self.queue)
        {
            return Some((queued, CyclePhase::Second(purpose, advice)));
        }
        let groupings = match self.calls.is_member_pending() {
            true => 0,
            false => self.table.plugins.len(),
        };
        // The next member of a group that is being placed comes before the queue's order.
        for instance in 0..groupings {
            loop {
                let mut fx = Effects::default();
                let Some(grouping) = self.table.plugins[instance].grouping() else {
                    break;
                };
                let view = self.cluster.view(now);
                let next = guarded("choosing the next pod", || grouping.next_pod(view, &mut fx));
                let followed = guarded("applying effects", || self.apply(fx, now));
                if next.is_none() || followed.is_none() {
                    self.classes.clear();
                }
                let Some(uid) = next.flatten() else { break };
                // A member that this scheduler does not place, or that a gate holds back, is skipped.
                let began = self.telemetry.meter.now();
                if let Some(queued) = self.queue.take(&uid, 1 << instance) {
                    if let Some(began) = began {
                        let nanos = measure::nanos(began, std::time::Instant::now());
                        self.telemetry.meter.note(Measurement::NextPod { nanos });
                    }
                    return Some((queued, CyclePhase::First));
                }
            }
        }
        if let Some(queued) = self.calls.next_parked(&self.cluster, &self.queue) {
            return Some((queued, CyclePhase::First));
        }
        let queued = self.queue.pop(now)?;
        Some((queued, CyclePhase::First))
    }

    /// Returns the node that `pod` would get now, evaluated from scratch and without reserving anything. A
    /// cached evaluation must lead to the same node.
    ///
    /// # Errors
    /// Returns why no node fits.
    pub fn dry_run(
        &mut self,
        pod: &Arc<PodInfo>,
        now: Timestamp,
    ) -> Result<Arc<str>, Box<Diagnosis>> {
        self.tick(now);
        let Some(profile) = self.table.profile_of(pod) else {
            return Err(Box::default());
        };
        let mut selection = NodeSelection::new(self);
        selection.cached = false;
        match selection.select(pod, profile, now, None, false) {
            Ok(choice) => Ok(self.cluster.nodes.name(choice.node).clone()),
            Err(CycleError::Refused(diagnosis)) => Err(diagnosis),
            Err(CycleError::Failed(message)) => Err(Box::new(Diagnosis {
                pre_filter_message: message,
                ..Diagnosis::default()
            })),
        }
    }

    /// Sets whether pods may share evaluations. On by default; tests and benchmarks turn it off.
    pub fn set_caching(&mut self, on: bool) {
        self.classes.enabled = on;
        self.classes.clear();
    }

    /// Runs a cycle, or its part before the extender calls: then no node is returned yet.
    fn cycle(
        &mut self,
        queued: &QueuedPod,
        profile: usize,
        now: Timestamp,
    ) -> Result<Option<Arc<str>>, CycleError> {
        let pod = &queued.info;
        let asks_extenders = match self.calls.next_step(pod, &mut self.table) {
            CycleStep::Parked => return Ok(None),
            CycleStep::CallExtenders => true,
            CycleStep::Decide => false,
        };
        // The time in which other pods use the same extenders first is not counted as this pod's.
        if let Some(observer) = &self.telemetry.observer {
            observer(CycleStart {
                pod,
                profile,
                attempts: queued.attempts,
                first_seen: queued.first_seen,
                flushed: queued.flushed,
            });
        }
        let planned = self.table.plan_group(
            pod,
            profile,
            self.cluster.view(now),
            &self.queue,
            &self.preemptor.nominator,
            (&self.telemetry.meter, &self.options),
        );
        match planned {
            Ok(Some((members, nodes))) => {
                let parts = (&mut self.cluster.nodes, &mut self.outbox);
                self.preemptor.follow(parts, &members, &nodes);
            }
            Ok(None) => {}
            Err(stop) => return self.post_filter(pod, profile, stop, Resume::default(), now),
        }
        match NodeSelection::new(self).select(pod, profile, now, None, asks_extenders) {
            Ok(choice) if asks_extenders => {
                let (nodes, offers) = (&self.cluster.nodes, choice.offers());
                let request = self.calls.request_nodes(pod, nodes, &offers, 0);
                self.outbox.push(request);
                Ok(None)
            }
            Ok(choice) => self.place(pod, profile, &choice, now).map(Some),
            Err(stop) => self.post_filter(pod, profile, stop, Resume::default(), now),
        }
    }

    /// Reserves the pod on the chosen node and starts its binding, or its wait for permission.
    pub(super) fn place(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        choice: &Choice,
        now: Timestamp,
    ) -> Result<Arc<str>, CycleError> {
        let node = choice.node;
        self.telemetry.meter.compared = choice.compared;
        let name = self.cluster.nodes.name(node).clone();
        self.preemptor
            .nominator
            .remove_nomination(&mut self.cluster.nodes, &pod.uid);
        self.book(pod.clone(), &name, true, now);
        if self.telemetry.decisions.open() {
            let table = choice.table.as_deref().cloned();
            self.telemetry.decisions.note(pod, &name, table, now);
        }
        let (meter, view) = (&self.telemetry.meter, self.cluster.view(now));
        let mut fx = Effects::default();
        let reserved = self
            .table
            .reserve(meter, view, pod, profile, choice, &mut fx);
        self.apply(fx, now);
        let reserved = reserved.and_then(|()| {
            let (meter, view) = (&self.telemetry.meter, self.cluster.view(now));
            let mut fx = Effects::default();
            let permit = self.table.permit(meter, view, pod, profile, node, &mut fx);
            // The plugin may release the whole group, including this pod.
            self.apply(fx, now);
            match permit? {
                Some(wait) => {
                    let (cluster, nominator) = (&self.cluster, &mut self.preemptor.nominator);
                    let expected = self.waits.hold(wait, &self.table, cluster, nominator);
                    self.outbox.extend(expected);
                    Ok(())
                }
                None => self.send_to_bind(pod, profile, node, now),
            }
        });
        if let Err(stop) = reserved {
            self.remove_assumed(&pod.uid, now);
            return Err(stop);
        }
        Ok(name)
    }

    /// Passes an assumed pod to the binder.
    pub(super) fn send_to_bind(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        node: NodeIndex,
        now: Timestamp,
    ) -> Result<(), CycleError> {
        let mut fx = Effects::default();
        let view = self.cluster.view(now);
        let wait = self.table.ready_to_bind(view, pod, profile, node, &mut fx);
        let mut hold = |wait| {
            let (cluster, nominator) = (&self.cluster, &mut self.preemptor.nominator);
            let expected = self.waits.hold(wait, &self.table, cluster, nominator);
            self.outbox.extend(expected);
        };
        let waits = wait.map(|wait| wait.map(&mut hold).is_some());
        self.apply(fx, now);
        if waits? {
            return Ok(());
        }
        let view = self.cluster.view(now);
        let cycle = Cycle::new(pod, view);
        let mut patch = PodPatch::default();
        let tracking_plugins = self.table.tracking_plugins_for(pod);
        let mut laps = self
            .telemetry
            .meter
            .start(&self.table.names, profile, Point::PreBind);
        let instances = self.table.profiles[profile].pre_bind.iter();
        for instance in instances.filter(|index| tracking_plugins & (1 << **index) != 0) {
            let verdict = match self.table.plugins[*instance].pre_bind() {
                Some(role) => role.pre_bind(&cycle, node, &mut patch),
                None => Ok(()),
            };
            laps.lap(*instance, || measure::verdict_status(&verdict));
            if let Err(rejection) = verdict {
                return Err(self.table.stop_at("PreBind", *instance, &rejection));
            }
        }
        drop(laps);
        let plans = self.table.profiles[profile].bind.iter();
        let plan = plans
            .filter(|index| tracking_plugins & (1 << **index) != 0)
            .filter_map(|index| {
                Some((
                    self.table.plugins[*index].bind()?.bind(&cycle, node),
                    *index,
                ))
            })
            .find(|(plan, _)| *plan != BindPlan::Skip);
        let Some((plan, binder)) = plan else {
            return Err(CycleError::Failed(
                "every bind plugin skipped the pod".to_owned(),
            ));
        };
        let node = self.cluster.nodes.name(node).clone();
        self.outbox.push(Output::Bind(BindRequest {
            pod: pod.clone(),
            node,
            patch,
            plan,
            profile,
            binder: self.table.names[binder],
            extender: self.calls.binder(pod),
        }));
        Ok(())
    }

    /// Puts a pod back into the queue and reports the reason. Returns whether it was an error.
    pub(super) fn refuse(&mut self, pod: &Arc<PodInfo>, stop: CycleError, now: Timestamp) -> bool {
        match &stop {
            CycleError::Refused(diagnosis) => {
                self.preemptor.nominator.update_nomination(
                    &mut self.cluster.nodes,
                    pod,
                    diagnosis.nominated.as_deref(),
                );
            }
            CycleError::Failed(_) => {
                self.preemptor
                    .nominator
                    .update_nomination(&mut self.cluster.nodes, pod, Some(""))
            }
        }
        let (failure, refusal, error) = match stop {
            CycleError::Refused(diagnosis) => {
                let (by, pending) = (diagnosis.by, diagnosis.pending);
                // Formatted lazily: most diagnoses are never displayed.
                let diagnosis: Arc<Diagnosis> = Arc::from(diagnosis);
                let message = LazyMessage::new(diagnosis.clone());
                let failure = Failure {
                    pod: pod.clone(),
                    reason: "Unschedulable",
                    refusal_events: self.table.refusal_events(pod, &message),
                    message,
                    // Without a decision the pod keeps its nomination; the binder must not clear it.
                    nominated: diagnosis.nominated.clone().or_else(|| {
                        let node = self.preemptor.nominator.node_of(&pod.uid);
                        node.map(|node| node.to_string())
                    }),
                    diagnosis: Some(diagnosis),
                };
                (failure, Refusal::Unschedulable { by, pending }, false)
            }
            CycleError::Failed(message) => {
                let message = LazyMessage::from(message);
                let failure = Failure {
                    pod: pod.clone(),
                    reason: "SchedulerError",
                    refusal_events: self.table.refusal_events(pod, &message),
                    message,
                    nominated: Some(String::new()),
                    diagnosis: None,
                };
                (failure, Refusal::Error, true)
            }
        };
        self.queue.refuse(&pod.uid, refusal, now);
        if let Refusal::Unschedulable { by, .. } = refusal {
            let refusing = self.table.plugins.iter().enumerate();
            let refusing = refusing.filter(|(instance, _)| by & (1 << instance) != 0);
            let names = |hints: &dyn QueueHints| {
                guarded("listing referenced objects", || {
                    hints.referenced_objects(pod)
                })
            };
            let names = refusing.filter_map(|(_, plugin)| names(plugin.queue_hints()?));
            let mut names: Vec<&str> = names.flatten().collect();
            names.sort_unstable();
            names.dedup();
            if !names.is_empty() {
                let names = names.into_iter().map(Box::from).collect();
                self.queue.index_references(&pod.uid, names);
            }
        }
        self.outbox.push(Output::Failed(failure));
        if let Some(newer) = self.queue.take_newer(&pod.uid) {
            // The pod is no longer assumed: the update received in the meantime applies now.
            guarded("requeueing a pod", || {
                self.pod_pending(newer, now);
            });
        }
        error
    }

    /// Lets plugins and permit waits react to the passing of time.
    pub(super) fn tick(&mut self, now: Timestamp) {
        let mut fx = Effects::default();
        let mut sound = true;
        let plugins = self.table.plugins_of(PluginSet::MAX);
        for role in plugins.filter_map(|plugin| plugin.tick()) {
            let view = self.cluster.view(now);
            sound &= guarded("handling a tick", || role.tick(view, &mut fx)).is_some();
        }
        sound &= guarded("applying effects", || self.apply(fx, now)).is_some();
        if !sound {
            self.classes.clear();
        }
        while let Some((uid, plugin, longest)) = self.waits.next_expired(now) {
            let longest = koord_api::GoDuration::from_nanos(
                i64::try_from(longest.as_nanos()).unwrap_or(i64::MAX),
            );
            let reason =
                format!("rejected due to timeout after waiting {longest} at plugin {plugin}");
            self.reject_waiting(&uid, plugin, &reason, WaitEnd::Rejected, now);
        }
    }
}

impl PluginTable {
    /// Calls the reserve plugins for `pod` on the chosen node.
    pub(super) fn reserve(
        &mut self,
        meter: &Meter,
        view: View<'_>,
        pod: &Arc<PodInfo>,
        profile: usize,
        choice: &Choice,
        fx: &mut Effects,
    ) -> Result<(), CycleError> {
        let mut refused = None;
        let tracking_plugins = self.tracking_plugins_for(pod);
        let mut laps = meter.start(&self.names, profile, Point::Reserve);
        let instances = self.profiles[profile].reserve.iter();
        for instance in instances.filter(|index| tracking_plugins & (1 << **index) != 0) {
            let cycle = Cycle {
                numa: choice.numa,
                nominated: choice.nominated.as_ref(),
                absorbed: Some(&choice.absorbed),
                ..Cycle::new(pod, view)
            };
            let verdict = match self.plugins[*instance].reserve() {
                Some(role) => role.reserve(&cycle, choice.node, fx),
                None => Ok(()),
            };
            laps.lap(*instance, || measure::verdict_status(&verdict));
            if let Err(rejection) = verdict {
                refused = Some((*instance, rejection));
                break;
            }
        }
        drop(laps);
        match refused {
            Some((instance, rejection)) => Err(self.stop_at("Reserve", instance, &rejection)),
            None => Ok(()),
        }
    }

    /// Calls the permit plugins. Returns the wait if some of them do not allow the binding yet.
    pub(super) fn permit(
        &mut self,
        meter: &Meter,
        view: View<'_>,
        pod: &Arc<PodInfo>,
        profile: usize,
        node: NodeIndex,
        fx: &mut Effects,
    ) -> Result<Option<WaitingPod>, CycleError> {
        let now = view.now;
        let mut waiting: Option<WaitingPod> = None;
        let mut refused = None;
        let tracking_plugins = self.tracking_plugins_for(pod);
        let mut laps = meter.start(&self.names, profile, Point::Permit);
        let instances = self.profiles[profile].permit.iter();
        for instance in instances.filter(|index| tracking_plugins & (1 << **index) != 0) {
            let cycle = Cycle::new(pod, view);
            let answer = match self.plugins[*instance].permit() {
                Some(permit) => permit.permit(&cycle, node, fx),
                None => PermitResult::Allow,
            };
            laps.lap(*instance, || measure::permit_status(&answer));
            match answer {
                PermitResult::Allow => {}
                PermitResult::Wait(longest) => {
                    let longest = SignedDuration::try_from(longest)
                        .unwrap_or(MAX_WAIT)
                        .min(MAX_WAIT);
                    let until = now.saturating_add(longest).unwrap_or(Timestamp::MAX);
                    let name = self.names[*instance];
                    let entry = waiting.get_or_insert_with(|| WaitingPod {
                        pod: pod.clone(),
                        profile,
                        on: Vec::new(),
                        since: now,
                        point: Point::Permit,
                        until,
                        patience: (name, longest),
                        missed: None,
                    });
                    entry.on.push(name);
                    if until < entry.until {
                        (entry.until, entry.patience) = (until, (name, longest));
                    }
                }
                PermitResult::Reject(rejection) => {
                    refused = Some((*instance, rejection));
                    break;
                }
            }
        }
        if waiting.is_some() && refused.is_none() {
            laps.ended("Wait");
        }
        drop(laps);
        match refused {
            Some((instance, rejection)) => Err(self.stop_at("Permit", instance, &rejection)),
            None => Ok(waiting),
        }
    }

    /// Asks the pre-bind plugins whether the binding may start. Returns the wait of the first one that does
    /// not allow it yet.
    pub(super) fn ready_to_bind(
        &mut self,
        view: View<'_>,
        pod: &Arc<PodInfo>,
        profile: usize,
        node: NodeIndex,
        fx: &mut Effects,
    ) -> Result<Option<WaitingPod>, CycleError> {
        let now = view.now;
        let tracking_plugins = self.tracking_plugins_for(pod);
        let instances = self.profiles[profile].pre_bind.iter();
        for instance in instances.filter(|index| tracking_plugins & (1 << **index) != 0) {
            let Some(permit) = self.plugins[*instance].permit() else {
                continue;
            };
            let cycle = Cycle::new(pod, view);
            match permit.ready_to_bind(&cycle, node, fx) {
                PermitResult::Allow => {}
                PermitResult::Wait(longest) => {
                    let longest = SignedDuration::try_from(longest).unwrap_or(MAX_WAIT);
                    return Ok(Some(WaitingPod {
                        pod: pod.clone(),
                        profile,
                        on: vec![self.names[*instance]],
                        since: now,
                        point: Point::PreBind,
                        until: now.saturating_add(longest).unwrap_or(Timestamp::MAX),
                        patience: (self.names[*instance], longest),
                        missed: None,
                    }));
                }
                PermitResult::Reject(rejection) => {
                    return Err(self.stop_at("PreBind", *instance, &rejection));
                }
            }
        }
        Ok(None)
    }
}

impl PluginTable {
    pub(super) fn stop_at(
        &self,
        point: &str,
        instance: Instance,
        rejection: &Rejection,
    ) -> CycleError {
        let message = rejection.message();
        if rejection.code == Code::Error {
            let name = self.names[instance];
            return CycleError::Failed(format!("running {point} plugin {name:?}: {message}"));
        }
        let mut stop = self.pre_filter_stop(instance, rejection, 1);
        if let CycleError::Refused(diagnosis) = &mut stop {
            diagnosis.nominated = Some(String::new());
            // The refusal concerns the chosen node only.
            diagnosis.pre_filter_message = String::new();
            diagnosis.refusals = vec![crate::framework::NodeRefusal {
                failed_plugin: self.names[instance],
                reason: message.into(),
                preempt_might_help: false,
                nodes: 1,
            }];
        }
        stop
    }

    pub(super) fn refusal_events(&self, pod: &PodInfo, message: &LazyMessage) -> Vec<RefusalEvent> {
        let plugins = self.plugins.iter();
        plugins
            .filter_map(|plugin| {
                let explainer = plugin.explain()?;
                guarded("describing a refusal", || {
                    explainer.refusal_event(pod, message)
                })?
            })
            .collect()
    }
}
