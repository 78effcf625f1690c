//! One pod's scheduling cycle: from the queue to a booked node, or to a reason.

use super::consult::{Purpose, Resume, Turn};
use super::measure::{self, Measured, Meter, Point};
use super::plugin_table::PluginTable;
use super::select::{Choice, NodeSelection};
use super::waiting::WaitEnd;
use super::{BindRequest, Engine, Failure, Outcome, Output, Started, Waiting};
use crate::framework::{
    Advice, BindPlan, Code, Cycle, Diagnosis, Effects, Instance, PermitResult, PodPatch,
    QueueHints, Rejection, Remark, View, Words,
};
use crate::guard::{attempted, guarded};
use crate::queue::{PluginSet, QueuedPod, Refusal};
use crate::state::{NodeIndex, PodInfo};
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;

/// The longest a pod may wait for permission.
const MAX_WAIT: SignedDuration = SignedDuration::from_mins(15);

/// How a cycle ended short of a placement.
#[derive(Debug)]
pub(super) enum Stop {
    Refused(Box<Diagnosis>),
    Failed(String),
}

impl Stop {
    /// By a plugin's bug: what it said when it panicked.
    pub(super) fn panicked(said: &str) -> Self {
        Self::Failed(format!("a plugin panicked: {said}"))
    }
}

/// Which part of a pod's cycle is next. Where no extender is concerned, the first is all of it.
enum Half {
    First,
    Second(Purpose, Advice),
}

impl Engine {
    /// Tries the next ready pod. `None` when no pod is ready.
    pub fn schedule_one(&mut self, now: Timestamp) -> Option<Outcome> {
        self.tick(now);
        loop {
            self.telemetry.meter.begin(now);
            let Some((queued, half)) = self.next_half(now) else {
                self.telemetry.meter.cancel();
                return None;
            };
            let Some(profile) = self.table.profile_of(&queued.info) else {
                self.calls.stop_asking(&queued.info.uid);
                self.queue.remove(&queued.info.uid);
                continue;
            };
            let pod = queued.info.clone();
            let ended = attempted(|| match half {
                Half::First => self.cycle(&queued, profile, now),
                Half::Second(purpose, advice) => self.resume(&pod, profile, purpose, advice, now),
            });
            let ended = ended.unwrap_or_else(|said| {
                // Nothing cached is trusted after it.
                self.classes.clear();
                self.undo(&pod.uid, now);
                Err(Stop::panicked(&said))
            });
            let attempts = queued.attempts;
            let first_seen = queued.first_seen;
            let base = Outcome {
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
                Ok(node) => Outcome {
                    node,
                    evaluated,
                    feasible,
                    ..base
                },
                Err(stop) => {
                    let error = self.refuse(&pod, stop, now);
                    Outcome { error, ..base }
                }
            };
            if let Some(event) = self.calls.stop_asking(&pod.uid)
                && outcome.node.is_none()
            {
                self.queue.wake(&pod.uid, event, now);
            }
            return Some(outcome);
        }
    }

    /// What is to be done next: an answer first, as others may wait for who asked.
    fn next_half(&mut self, now: Timestamp) -> Option<(QueuedPod, Half)> {
        if let Some((queued, purpose, advice)) = self.calls.next_answer(&self.cluster, &self.queue)
        {
            return Some((queued, Half::Second(purpose, advice)));
        }
        let groupings = match self.calls.is_member_asking() {
            true => 0,
            false => self.table.plugins.len(),
        };
        // The next member of a group that is being placed, whatever the queue's order.
        for instance in 0..groupings {
            loop {
                let mut fx = Effects::default();
                let Some(grouping) = self.table.plugins[instance].grouping() else {
                    break;
                };
                let view = self.cluster.view(now);
                let next = guarded("over who is next", || grouping.next_pod(view, &mut fx));
                let followed = guarded("over what follows", || self.apply(fx, now));
                if next.is_none() || followed.is_none() {
                    self.classes.clear();
                }
                let Some(uid) = next.flatten() else { break };
                // A member that is not ours to place, or that others keep back, is passed over.
                let began = self.telemetry.meter.now();
                if let Some(queued) = self.queue.take(&uid, 1 << instance) {
                    if let Some(began) = began {
                        let nanos = measure::nanos(began, std::time::Instant::now());
                        self.telemetry.meter.note(Measured::NextPod { nanos });
                    }
                    return Some((queued, Half::First));
                }
            }
        }
        if let Some(queued) = self.calls.next_parked(&self.cluster, &self.queue) {
            return Some((queued, Half::First));
        }
        let queued = self.queue.pop(now)?;
        Some((queued, Half::First))
    }

    /// Where `pod` would go now, evaluated from scratch, with nothing booked: what the cached
    /// answer must equal.
    ///
    /// # Errors
    /// Why no node takes it.
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
            Err(Stop::Refused(diagnosis)) => Err(diagnosis),
            Err(Stop::Failed(message)) => Err(Box::new(Diagnosis {
                pre_filter_message: message,
                ..Diagnosis::default()
            })),
        }
    }

    /// Whether pods may share evaluations. On unless a test or a benchmark turns it off.
    pub fn set_caching(&mut self, on: bool) {
        self.classes.enabled = on;
        self.classes.clear();
    }

    /// A cycle, or what comes before extenders answer: then there is no node yet.
    fn cycle(
        &mut self,
        queued: &QueuedPod,
        profile: usize,
        now: Timestamp,
    ) -> Result<Option<Arc<str>>, Stop> {
        let pod = &queued.info;
        let asks = match self.calls.turn(pod, &mut self.table) {
            Turn::Parked => return Ok(None),
            Turn::Ask => true,
            Turn::Decide => false,
        };
        // The time in which others that ask the same extenders go first is not the pod's.
        if let Some(observer) = &self.telemetry.observer {
            observer(Started {
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
        match NodeSelection::new(self).select(pod, profile, now, None, asks) {
            Ok(choice) if asks => {
                let (nodes, offers) = (&self.cluster.nodes, choice.offers());
                let question = self.calls.ask_about_nodes(pod, nodes, &offers, 0);
                self.outbox.push(question);
                Ok(None)
            }
            Ok(choice) => self.place(pod, profile, &choice, now).map(Some),
            Err(stop) => self.post_filter(pod, profile, stop, Resume::default(), now),
        }
    }

    /// Books the pod where it was decided to go, and sends it on its way.
    pub(super) fn place(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        choice: &Choice,
        now: Timestamp,
    ) -> Result<Arc<str>, Stop> {
        let node = choice.node;
        self.telemetry.meter.compared = choice.compared;
        let name = self.cluster.nodes.name(node).clone();
        self.preemptor
            .nominator
            .denominate(&mut self.cluster.nodes, &pod.uid);
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
            // The plugin may let the members of the pod's group go, this pod's permission included.
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
            self.forget(&pod.uid, now);
            return Err(stop);
        }
        Ok(name)
    }

    /// Hands a booked pod to the binder.
    pub(super) fn send_to_bind(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        node: NodeIndex,
        now: Timestamp,
    ) -> Result<(), Stop> {
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
        let told = self.table.booking(pod);
        let mut laps = self
            .telemetry
            .meter
            .start(&self.table.names, profile, Point::PreBind);
        let instances = self.table.profiles[profile].pre_bind.iter();
        for instance in instances.filter(|at| told & (1 << **at) != 0) {
            let verdict = match self.table.plugins[*instance].pre_bind() {
                Some(role) => role.pre_bind(&cycle, node, &mut patch),
                None => Ok(()),
            };
            laps.lap(*instance, || measure::of_verdict(&verdict));
            if let Err(rejection) = verdict {
                return Err(self.table.stop_at("PreBind", *instance, &rejection));
            }
        }
        drop(laps);
        let plans = self.table.profiles[profile].bind.iter();
        let plan = plans
            .filter(|at| told & (1 << **at) != 0)
            .filter_map(|at| Some((self.table.plugins[*at].bind()?.bind(&cycle, node), *at)))
            .find(|(plan, _)| *plan != BindPlan::Skip);
        let Some((plan, binder)) = plan else {
            return Err(Stop::Failed("every bind plugin skipped the pod".to_owned()));
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

    /// Puts a pod back and reports why. Returns whether it was an error.
    pub(super) fn refuse(&mut self, pod: &Arc<PodInfo>, stop: Stop, now: Timestamp) -> bool {
        match &stop {
            Stop::Refused(diagnosis) => {
                self.preemptor.nominator.settle_nomination(
                    &mut self.cluster.nodes,
                    pod,
                    diagnosis.nominated.as_deref(),
                );
            }
            Stop::Failed(_) => {
                self.preemptor
                    .nominator
                    .settle_nomination(&mut self.cluster.nodes, pod, Some(""))
            }
        }
        let (failure, refusal, error) = match stop {
            Stop::Refused(diagnosis) => {
                let (by, pending) = (diagnosis.by, diagnosis.pending);
                // Put into words where it is written, or where somebody asks.
                let diagnosis: Arc<Diagnosis> = Arc::from(diagnosis);
                let message = Words::of(diagnosis.clone());
                let failure = Failure {
                    pod: pod.clone(),
                    reason: "Unschedulable",
                    remarks: self.table.remarks(pod, &message),
                    message,
                    // Said nothing, it keeps what it has: the binder is not to take that back.
                    nominated: diagnosis.nominated.clone().or_else(|| {
                        let node = self.preemptor.nominator.node_of(&pod.uid);
                        node.map(|node| node.to_string())
                    }),
                    diagnosis: Some(diagnosis),
                };
                (failure, Refusal::Unschedulable { by, pending }, false)
            }
            Stop::Failed(message) => {
                let message = Words::from(message);
                let failure = Failure {
                    pod: pod.clone(),
                    reason: "SchedulerError",
                    remarks: self.table.remarks(pod, &message),
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
            let names = |hints: &dyn QueueHints| guarded("over a refusal", || hints.names(pod));
            let names = refusing.filter_map(|(_, plugin)| names(plugin.queue_hints()?));
            let mut names: Vec<&str> = names.flatten().collect();
            names.sort_unstable();
            names.dedup();
            if !names.is_empty() {
                let names = names.into_iter().map(Box::from).collect();
                self.queue.name(&pod.uid, names);
            }
        }
        self.outbox.push(Output::Failed(failure));
        if let Some(newer) = self.queue.take_newer(&pod.uid) {
            // It has no place any more: what was seen of it meanwhile counts now.
            guarded("over a pod that lost its place", || {
                self.pod_pending(newer, now);
            });
        }
        error
    }

    /// Lets plugins and permissions react to the passing of time.
    pub(super) fn tick(&mut self, now: Timestamp) {
        let mut fx = Effects::default();
        let mut sound = true;
        let plugins = self.table.plugins_of(PluginSet::MAX);
        for role in plugins.filter_map(|plugin| plugin.tick()) {
            let view = self.cluster.view(now);
            sound &= guarded("as time passes", || role.tick(view, &mut fx)).is_some();
        }
        sound &= guarded("over what follows", || self.apply(fx, now)).is_some();
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
    /// Has plugins reserve what `pod` takes on the chosen node.
    pub(super) fn reserve(
        &mut self,
        meter: &Meter,
        view: View<'_>,
        pod: &Arc<PodInfo>,
        profile: usize,
        choice: &Choice,
        fx: &mut Effects,
    ) -> Result<(), Stop> {
        let mut refused = None;
        let told = self.booking(pod);
        let mut laps = meter.start(&self.names, profile, Point::Reserve);
        let instances = self.profiles[profile].reserve.iter();
        for instance in instances.filter(|at| told & (1 << **at) != 0) {
            let cycle = Cycle {
                numa: choice.numa,
                nominated: choice.nominated.as_ref(),
                taken_in: Some(&choice.taken_in),
                ..Cycle::new(pod, view)
            };
            let verdict = match self.plugins[*instance].reserve() {
                Some(role) => role.reserve(&cycle, choice.node, fx),
                None => Ok(()),
            };
            laps.lap(*instance, || measure::of_verdict(&verdict));
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

    /// Asks plugins whether `pod` may be bound; returns the wait for those that do not allow it yet.
    pub(super) fn permit(
        &mut self,
        meter: &Meter,
        view: View<'_>,
        pod: &Arc<PodInfo>,
        profile: usize,
        node: NodeIndex,
        fx: &mut Effects,
    ) -> Result<Option<Waiting>, Stop> {
        let now = view.now;
        let mut waiting: Option<Waiting> = None;
        let mut refused = None;
        let told = self.booking(pod);
        let mut laps = meter.start(&self.names, profile, Point::Permit);
        let instances = self.profiles[profile].permit.iter();
        for instance in instances.filter(|at| told & (1 << **at) != 0) {
            let cycle = Cycle::new(pod, view);
            let answer = match self.plugins[*instance].permit() {
                Some(permit) => permit.permit(&cycle, node, fx),
                None => PermitResult::Allow,
            };
            laps.lap(*instance, || measure::of_permit(&answer));
            match answer {
                PermitResult::Allow => {}
                PermitResult::Wait(longest) => {
                    let longest = SignedDuration::try_from(longest)
                        .unwrap_or(MAX_WAIT)
                        .min(MAX_WAIT);
                    let until = now.saturating_add(longest).unwrap_or(Timestamp::MAX);
                    let name = self.names[*instance];
                    let entry = waiting.get_or_insert_with(|| Waiting {
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

    /// Asks the pre-bind plugins whether the binding may start; the wait of the first that does not say so yet.
    pub(super) fn ready_to_bind(
        &mut self,
        view: View<'_>,
        pod: &Arc<PodInfo>,
        profile: usize,
        node: NodeIndex,
        fx: &mut Effects,
    ) -> Result<Option<Waiting>, Stop> {
        let now = view.now;
        let told = self.booking(pod);
        let instances = self.profiles[profile].pre_bind.iter();
        for instance in instances.filter(|at| told & (1 << **at) != 0) {
            let Some(permit) = self.plugins[*instance].permit() else {
                continue;
            };
            let cycle = Cycle::new(pod, view);
            match permit.ready_to_bind(&cycle, node, fx) {
                PermitResult::Allow => {}
                PermitResult::Wait(longest) => {
                    let longest = SignedDuration::try_from(longest).unwrap_or(MAX_WAIT);
                    return Ok(Some(Waiting {
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
    pub(super) fn stop_at(&self, point: &str, instance: Instance, rejection: &Rejection) -> Stop {
        let message = rejection.message();
        if rejection.code == Code::Error {
            let name = self.names[instance];
            return Stop::Failed(format!("running {point} plugin {name:?}: {message}"));
        }
        let mut stop = self.pre_filter_stop(instance, rejection, 1);
        if let Stop::Refused(diagnosis) = &mut stop {
            diagnosis.nominated = Some(String::new());
            // Refused on the chosen node: the others do not count.
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

    pub(super) fn remarks(&self, pod: &PodInfo, said: &Words) -> Vec<Remark> {
        let plugins = self.plugins.iter();
        plugins
            .filter_map(|plugin| {
                let insight = plugin.insight()?;
                guarded("over a refusal", || insight.remark(pod, said))?
            })
            .collect()
    }
}
