//! The task that owns the engine: it handles events, makes decisions and passes the outputs on.

use super::deferred_drop::DeferredDrop;
use super::monitor;
use super::shadow::Shadow;
use super::writer::Writer;
use super::writer_context::FailedAttempt;
use crate::debug::{DebugHandle, EngineQuery};
use crate::engine::{CycleOutcome, Engine, Failure, NearestNode, Output};
use crate::framework::{Message, ObjectChange};
use crate::guard::guarded;
use crate::metrics::{BufferedHistograms, Metrics, PluginMetrics};
use crate::state::ParsedPod;
use koord_app::Context;
use koord_kube::Change;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum time of scheduling cycles before events are handled again.
const SLICE: Duration = Duration::from_millis(5);
/// The interval of the warning about missing initial lists.
const COMPLAIN_EVERY: Duration = Duration::from_secs(15);

/// Returns true if the pod has a node.
fn is_bound(pod: &ParsedPod) -> bool {
    pod.node().is_some()
}

/// The task that owns the engine.
pub(super) struct Owner {
    pub(super) engine: Engine,
    pub(super) writer: Writer,
    pub(super) metrics: Metrics,
    pub(super) event_histograms: BufferedHistograms,
    pub(super) plugin_metrics: PluginMetrics,
    pub(super) gauge_period: Duration,
    pub(super) ctx: Context,
    pub(super) debug: DebugHandle,
    pub(super) names: Vec<String>,
    pub(super) concurrency: usize,
    pub(super) monitor: monitor::Monitor,
    /// True if conditions list the nearest nodes.
    pub(super) nearest: bool,
    pub(super) next_nearest: Instant,
    pub(super) deferred_drop: DeferredDrop,
    /// `Some` in shadow mode.
    pub(super) shadow: Option<Shadow>,
}

impl Owner {
    /// Handles messages and queries and makes decisions until `shutdown`.
    pub(super) async fn run(
        mut self,
        mut messages: mpsc::Receiver<Message>,
        mut questions: mpsc::Receiver<EngineQuery>,
        mut unseen: BTreeSet<&'static str>,
        shutdown: CancellationToken,
    ) {
        let mut complain = Instant::now() + COMPLAIN_EVERY;
        let mut next_gauges = Instant::now();
        loop {
            // All events that have arrived come before the next decision.
            let mut budget = 4096;
            while budget > 0
                && let Ok(message) = messages.try_recv()
            {
                if let Message::Synced(kind) = message {
                    unseen.remove(kind);
                }
                self.handle_message(message);
                budget -= 1;
            }
            while let Ok(question) = questions.try_recv() {
                question.answer(&mut self.engine, self.ctx.clock.now());
            }
            if unseen.is_empty() {
                self.debug.set_ready(true);
            } else if Instant::now() >= complain {
                tracing::warn!(kinds = ?unseen, "waiting for initial lists, no pod is scheduled before");
                complain = Instant::now() + COMPLAIN_EVERY;
            }
            let busy = unseen.is_empty() && self.decide();
            if let Some(shadow) = &mut self.shadow {
                shadow.sweep(&mut self.engine, self.ctx.clock.now());
            }
            self.dispatch();
            if Instant::now() >= next_gauges {
                self.measure();
                next_gauges = Instant::now() + self.gauge_period;
            } else if self.engine.telemetry.should_flush() {
                self.metrics
                    .add_measures(self.engine.telemetry.take_measures(), &self.names);
            }
            if busy || budget == 0 {
                tokio::task::yield_now().await;
                if shutdown.is_cancelled() {
                    return;
                }
                continue;
            }
            self.deferred_drop.hand_over();
            let pause = self
                .time_to_deadline()
                .min(next_gauges.duration_since(Instant::now()));
            let sweep = self.shadow.as_ref().and_then(Shadow::time_to_sweep);
            let pause = sweep.map_or(pause, |sweep| pause.min(sweep));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                message = messages.recv() => match message {
                    Some(message) => {
                        if let Message::Synced(kind) = message {
                            unseen.remove(kind);
                        }
                        self.handle_message(message);
                    }
                    None => return,
                },
                Some(question) = questions.recv() => question.answer(&mut self.engine, self.ctx.clock.now()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Adds the measurements of the engine and its plugins to the metrics.
    fn measure(&mut self) {
        self.event_histograms.flush();
        self.metrics.set_pending_bindings(self.writer.binding);
        self.metrics.gauges(&mut self.engine);
        self.metrics
            .add_measures(self.engine.telemetry.take_measures(), &self.names);
        let now = self.ctx.clock.now();
        self.plugin_metrics.take(self.engine.inspector().read(now));
        self.plugin_metrics.take(self.writer.take_timings());
    }

    /// Returns how long the task may sleep if no message arrives: until the next deadline of the engine, or a
    /// minute if it has none.
    fn time_to_deadline(&mut self) -> Duration {
        let now = self.ctx.clock.now();
        let until = self
            .engine
            .next_deadline()
            .map(|deadline| deadline.duration_since(now));
        let wait = until.and_then(|wait| Duration::try_from(wait).ok());
        // For a deadline in the past, wait a little rather than spin.
        let floor = Duration::from_millis(1);
        match (until, wait) {
            (None, _) => Duration::from_secs(60),
            (Some(_), Some(wait)) => wait.max(floor),
            (Some(_), None) => floor,
        }
    }

    fn handle_message(&mut self, message: Message) {
        guarded("handling an event", || {
            self.apply_message(message);
        });
    }

    /// Applies an event to the engine.
    fn apply_message(&mut self, message: Message) {
        let now = self.ctx.clock.now();
        let started = Instant::now();
        let label = match message {
            Message::Synced(_) => return,
            Message::Pod(Change::Applied { old, new }) => {
                let bound = is_bound(&new);
                let was_bound = old.as_deref().is_some_and(is_bound);
                let uid = new.uid();
                if bound && !was_bound {
                    self.debug.clear_failure(uid);
                }
                if let Some(shadow) = &mut self.shadow
                    && !was_bound
                {
                    shadow.pod_applied(&new, &mut self.engine, now);
                }
                self.engine.apply_parsed_pod(&new, now);
                let label = match (bound, old.is_some()) {
                    (true, false) => "AssignedPodAdd",
                    (true, true) => "AssignedPodUpdate",
                    (false, false) => "UnschedulablePodAdd",
                    (false, true) => "UnschedulablePodUpdate",
                };
                self.done_with(old);
                label
            }
            Message::Pod(Change::Deleted(last)) => {
                let uid = last.uid();
                self.debug.clear_failure(uid);
                self.writer.pod_deleted(uid);
                if let Some(shadow) = &mut self.shadow {
                    shadow.pod_deleted(uid);
                }
                self.engine.pod_left(uid, now);
                // The attempt ends, as the pod is gone.
                self.monitor.end(uid);
                let label = if is_bound(&last) {
                    "AssignedPodDelete"
                } else {
                    "UnschedulablePodDelete"
                };
                self.done_with(Some(last));
                label
            }
            Message::Node(Change::Applied { old, new }) => {
                self.engine.node_applied(new, now);
                let label = if old.is_some() {
                    "NodeUpdate"
                } else {
                    "NodeAdd"
                };
                self.done_with(old);
                label
            }
            Message::Node(Change::Deleted(last)) => {
                let name = last.metadata.name.clone().unwrap_or_default();
                self.engine.node_deleted(&name, now);
                self.done_with(Some(last));
                "NodeDelete"
            }
            Message::Pod(Change::Synced) | Message::Node(Change::Synced) => return,
            Message::Object(change) => {
                self.engine.object_changed(&change, now);
                let label = self.engine.plugins().name_of(&change);
                let ObjectChange { old, new, .. } = change;
                for object in old.into_iter().chain([new]) {
                    self.deferred_drop.take(object);
                }
                label
            }
            Message::Consulted {
                uid,
                ticket,
                advice,
            } => {
                self.engine.apply_extender_result(&uid, ticket, advice);
                "Consulted"
            }
            Message::Problem(problem) => return self.writer.problem(&problem),
            Message::NotEvicted(uid) => {
                self.engine.eviction_failed(&uid);
                "NotEvicted"
            }
            Message::Bound { uid, result } => {
                self.writer.binding = self.writer.binding.saturating_sub(1);
                self.engine.bind_finished(&uid, result, now);
                "Bound"
            }
        };
        self.event_histograms
            .observe(label, started.elapsed().as_secs_f64());
    }

    /// Passes a replaced or deleted `object` to the deferred drop.
    fn done_with<K: Send + Sync + 'static>(&mut self, object: Option<Arc<K>>) {
        if let Some(object) = object {
            self.deferred_drop.take(object);
        }
    }

    /// Schedules ready pods for a while. Returns whether more may be ready.
    fn decide(&mut self) -> bool {
        let slice = Instant::now();
        while slice.elapsed() < SLICE {
            // The API is slower than the engine: bound the number of assumed pods.
            if self.writer.binding >= self.concurrency.saturating_mul(16) {
                return false;
            }
            let now = self.ctx.clock.now();
            let started = Instant::now();
            let Some(outcome) = self.engine.schedule_one(now) else {
                return false;
            };
            self.metrics
                .decided(&outcome, started.elapsed().as_secs_f64());
            self.log_scores(&outcome);
            tracing::debug!(pod = %outcome.pod, node = ?outcome.node, "scheduling cycle ended");
            self.dispatch();
        }
        true
    }

    /// Returns the nearest nodes for a condition that is about to change. Evaluating all nodes takes at most
    /// a twentieth of the time: among many refusals, most go without.
    fn nearest(&mut self, failure: &Failure) -> Vec<NearestNode> {
        let now = Instant::now();
        if !self.nearest || now < self.next_nearest || !self.writer.may_need_condition(failure) {
            return Vec::new();
        }
        let look = || {
            self.engine
                .inspector()
                .nearest(&failure.pod, 3, self.ctx.clock.now())
        };
        let nearest = guarded("finding the nearest nodes", look).unwrap_or_default();
        self.next_nearest = Instant::now() + now.elapsed() * 20;
        nearest
    }

    fn log_scores(&self, outcome: &CycleOutcome) {
        let top = self.debug.flags().scores.load(Ordering::Relaxed);
        if top > 0
            && let Some(table) = self
                .engine
                .telemetry
                .decision(&outcome.pod.uid)
                .and_then(|decision| decision.table.as_ref())
        {
            let ranking = &table.ranking[..top.min(table.ranking.len())];
            tracing::info!(pod = %outcome.pod, feasible = table.feasible, ?ranking, "node scores");
        }
    }

    fn log_refusal(&self, failure: &Failure) {
        let flags = self.debug.flags();
        if flags.filters.load(Ordering::Relaxed) {
            tracing::info!(pod = %failure.pod, reason = %failure.message, "pod refused");
        }
        if flags.diagnosis.load(Ordering::Relaxed)
            && let Some(diagnosis) = &failure.diagnosis
        {
            let dump = serde_json::json!({
                "timestamp": self.ctx.clock.now(),
                "questionedKey": failure.pod.to_string(),
                "nominatedNode": diagnosis.nominated,
                "preFilterMessage": diagnosis.pre_filter_message,
                "scheduleDiagnosis": {"schedulingMode": "Pod", "nodeFailedDetails": diagnosis.refusals},
                "preemptionDiagnosis": {"failedMessage": diagnosis.post_filter_message},
            });
            tracing::info!(diagnosis = %dump, "scheduling diagnosis");
        }
    }

    /// Hands the outputs of the engine over to the writer.
    fn dispatch(&mut self) {
        for output in self.engine.take_outputs() {
            let output = match &mut self.shadow {
                Some(shadow) => shadow.withhold(output, self.ctx.clock.now()),
                None => Some(output),
            };
            let Some(output) = output else { continue };
            match output {
                Output::Bind(request) => {
                    self.debug.clear_failure(&request.pod.uid);
                    self.writer.bind(request);
                }
                Output::Consult(call) => self.writer.consult(call),
                Output::Failed(failure) => {
                    tracing::debug!(pod = %failure.pod, reason = %failure.message, "failed to schedule a pod");
                    let attempt = self.monitor.end(&failure.pod.uid);
                    let profile = failure.pod.scheduler_name();
                    let error = failure.reason != "Unschedulable";
                    self.metrics.failed(error, profile, attempt.as_ref());
                    self.log_refusal(&failure);
                    let nearest = match self.shadow {
                        Some(_) => Vec::new(),
                        None => self.nearest(&failure),
                    };
                    let (failure, time) = (Arc::new(failure), self.ctx.clock.now());
                    let before = self.debug.failed(failure.clone(), time);
                    self.done_with(before);
                    if self.shadow.is_none() {
                        self.writer.report(FailedAttempt {
                            failure,
                            nearest,
                            time,
                        });
                    }
                }
                Output::Problem(problem) => self.writer.problem(&problem),
                Output::Write(write) => self.writer.write(write),
                Output::Expect { pod, node } => self.writer.expect(pod, node),
                Output::Explain { pod, message } => self.writer.explain(pod, message),
                Output::Evict {
                    preemptor,
                    node,
                    victims,
                } => {
                    self.metrics.preempted(victims.len());
                    self.writer.evict(preemptor, node, victims);
                }
            }
        }
    }
}
