//! kube-scheduler's and Koordinator's metrics, under their upstream names.
//!
//! Measurements per pod are recorded where the pod is handled anyway; those of plugins come from the engine
//! in batches ([`Metrics::measured`], [`Metrics::gauges`]).

mod attempt;
mod buffered_histogram;
mod make;
mod plugins;
mod shadow;

pub(crate) use attempt::Attempt;
pub(crate) use buffered_histogram::BufferedHistograms;
pub(crate) use make::Resets;
pub(crate) use plugins::PluginMetrics;
pub(crate) use shadow::ShadowMetrics;

use crate::engine::{CycleOutcome, Engine, Measurement, Measures};
use jiff::Timestamp;
use koord_kube::lease::LeaderMetrics;
use make::{Level, MetricFactory, bounds};
use prometheus::{
    GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, Registry, exponential_buckets,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// The kinds of API calls that upstream's asynchronous dispatcher makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Binding = 0,
    Status = 1,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Binding => "pod_binding",
            Self::Status => "pod_status_patch",
        }
    }
}

/// All metrics of the scheduler.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    attempts: IntCounterVec,
    attempt_seconds: HistogramVec,
    algorithm_seconds: Histogram,
    pod_attempts: Histogram,
    sli_seconds: HistogramVec,
    after_flush: IntCounter,
    pending: GaugeVec,
    incoming: IntCounterVec,
    inflight: GaugeVec,
    unschedulable: GaugeVec,
    cache: GaugeVec,
    goroutines: GaugeVec,
    extension_point: HistogramVec,
    execution: HistogramVec,
    evaluations: IntCounterVec,
    hints: HistogramVec,
    permit: HistogramVec,
    batches: IntCounterVec,
    events: HistogramVec,
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    calls_pending: GaugeVec,
    pending_calls: Arc<[AtomicI64; 2]>,
    preemptions: IntCounter,
    victims: Histogram,
    evictions: IntCounterVec,
    eviction_seconds: HistogramVec,
    timeouts: IntCounterVec,
    evaluated_nodes: Histogram,
    feasible_nodes: Histogram,
    next_pod_seconds: HistogramVec,
    mismatches: IntCounter,
    leading: LeaderMetrics,
    resets: Resets,
}

impl Metrics {
    /// Creates and registers all metrics. A metric that `registry` already has is not registered again.
    ///
    /// # Errors
    /// Fails on an invalid metric definition, which tests would detect.
    #[allow(clippy::too_many_lines, reason = "a table")]
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        use Level::{Alpha, Beta, Internal, Stable};
        let resets = Resets::default();
        let make = MetricFactory::new(registry, resets.clone());
        // Metrics that are set only once must survive a reset.
        Ok(Self {
            attempts: make.counters(
                "scheduler_schedule_attempts_total",
                Stable,
                "Attempts to schedule pods, by result.",
                &["result", "profile"],
            )?,
            attempt_seconds: make.histograms(
                "scheduler_scheduling_attempt_duration_seconds",
                Stable,
                "Time from the start of a cycle to its refusal or, when placed, the end of the \
                 binding.",
                &["result", "profile"],
                bounds(0.001, 2.0, 15, 7),
            )?,
            algorithm_seconds: make.histogram(
                "scheduler_scheduling_algorithm_duration_seconds",
                Alpha,
                "Time to decide about one pod.",
                bounds(0.001, 2.0, 15, 10),
            )?,
            pod_attempts: make.histogram(
                "scheduler_pod_scheduling_attempts",
                Stable,
                "Attempts that a placed pod took.",
                exponential_buckets(1.0, 2.0, 5)?,
            )?,
            sli_seconds: make.histograms(
                "scheduler_pod_scheduling_sli_duration_seconds",
                Beta,
                "Time from entering the queue, gates open, to being bound.",
                &["attempts"],
                exponential_buckets(0.01, 2.0, 20)?,
            )?,
            after_flush: make.counter(
                "scheduler_pod_scheduled_after_flush_total",
                Alpha,
                "Pods scheduled in an attempt that was made only because of their long wait.",
            )?,
            pending: make.gauges(
                "scheduler_pending_pods",
                Stable,
                "Pods that wait, by queue.",
                &["queue"],
            )?,
            incoming: make.counters(
                "scheduler_queue_incoming_pods_total",
                Stable,
                "Pods that entered a queue, by event.",
                &["queue", "event"],
            )?,
            inflight: make.gauges(
                "scheduler_inflight_events",
                Alpha,
                "Pods taken from the queue and not bound yet. No other event is kept for them: \
                 events are digested between decisions.",
                &["event"],
            )?,
            unschedulable: make.gauges(
                "scheduler_unschedulable_pods",
                Alpha,
                "Refused pods, by refusing plugin.",
                &["plugin", "profile"],
            )?,
            cache: make.gauges(
                "scheduler_cache_size",
                Alpha,
                "Nodes, pods and assumed pods in the cache.",
                &["type"],
            )?,
            goroutines: make.gauges(
                "scheduler_goroutines",
                Alpha,
                "Work in progress outside the decisions: bindings sent or queued to be sent.",
                &["operation"],
            )?,
            extension_point: make.histograms(
                "scheduler_framework_extension_point_duration_seconds",
                Stable,
                "Time of all plugins of one extension point; but for PostFilter and Bind, of one \
                 cycle in ten at most.",
                &["extension_point", "status", "profile"],
                bounds(0.0001, 2.0, 12, 7),
            )?,
            execution: make.histograms(
                "scheduler_plugin_execution_duration_seconds",
                Alpha,
                "Time of one plugin at one extension point, of one cycle in ten at most; filters and \
                 scores on one node.",
                &["plugin", "extension_point", "status"],
                bounds(0.000_01, 1.5, 20, 10),
            )?,
            evaluations: make.counters(
                "scheduler_plugin_evaluation_total",
                Alpha,
                "Answers of plugins. Pods of one shape share the answers about nodes, each counted \
                 once.",
                &["plugin", "extension_point", "profile"],
            )?,
            hints: make.histograms(
                "scheduler_queueing_hint_execution_duration_seconds",
                Alpha,
                "Time of one hint whether an event helps a pod, of one event in ten.",
                &["plugin", "event", "hint"],
                bounds(0.000_01, 1.5, 20, 10),
            )?,
            permit: make.histograms(
                "scheduler_permit_wait_duration_seconds",
                Alpha,
                "Time that a pod waited for permission.",
                &["result"],
                exponential_buckets(0.001, 2.0, 15)?,
            )?,
            batches: make.counters(
                "scheduler_batch_attempts_total",
                Alpha,
                "Decisions by whether a cached evaluation of pods of the same shape was used.",
                &["profile", "result"],
            )?,
            events: make.histograms(
                "scheduler_event_handling_duration_seconds",
                Alpha,
                "Time to handle one event from an informer.",
                &["event"],
                bounds(0.0001, 2.0, 12, 7),
            )?,
            calls: make.counters(
                "scheduler_async_api_call_execution_total",
                Alpha,
                "Writes about pods that were sent.",
                &["call_type", "result"],
            )?,
            call_seconds: make.histograms(
                "scheduler_async_api_call_execution_duration_seconds",
                Alpha,
                "Time of one write about a pod.",
                &["call_type", "result"],
                exponential_buckets(0.001, 2.0, 15)?,
            )?,
            calls_pending: make.gauges(
                "scheduler_pending_async_api_calls",
                Alpha,
                "Writes about pods that wait to be sent.",
                &["call_type"],
            )?,
            pending_calls: Arc::default(),
            preemptions: make.counter(
                "scheduler_preemption_attempts_total",
                Stable,
                "Attempts to make room by evicting pods.",
            )?,
            victims: make.histogram(
                "scheduler_preemption_victims",
                Stable,
                "Pods evicted by one preemption.",
                exponential_buckets(1.0, 2.0, 7)?,
            )?,
            evictions: make.counters(
                "scheduler_preemption_goroutines_execution_total",
                Alpha,
                "Preemptions whose evictions were sent.",
                &["result"],
            )?,
            eviction_seconds: make.histograms(
                "scheduler_preemption_goroutines_duration_seconds",
                Alpha,
                "Time to send all evictions of one preemption.",
                &["result"],
                bounds(0.01, 2.0, 20, 4),
            )?,
            timeouts: make.counters(
                "scheduler_scheduling_timeout",
                Stable,
                "Checks that found the scheduling of a pod to take longer than --scheduling-timeout.",
                &["profile"],
            )?,
            evaluated_nodes: make.histogram(
                "scheduler_pod_scheduling_evaluated_nodes",
                Alpha,
                "Nodes that were compared for a placed pod.",
                exponential_buckets(1.0, 2.0, 24)?,
            )?,
            feasible_nodes: make.histogram(
                "scheduler_pod_scheduling_feasible_nodes",
                Alpha,
                "Nodes among the compared ones that fit a placed pod.",
                exponential_buckets(1.0, 2.0, 24)?,
            )?,
            next_pod_seconds: make.histograms(
                "scheduler_next_pod_delete_from_queue_latency",
                Alpha,
                "Time to take the next member of a gang out of the queue, of one cycle in ten at most.",
                &[],
                bounds(0.000_01, 2.0, 24, 7),
            )?,
            mismatches: make.counter(
                "koord_scheduler_class_mismatches_total",
                Internal,
                "Shared evaluations that a pod's own check contradicted; each cost one full pass.",
            )?,
            leading: LeaderMetrics::register(registry)?,
            resets,
        })
    }

    /// Returns the metrics that `DELETE /metrics` resets.
    pub(crate) fn resets(&self) -> Resets {
        self.resets.clone()
    }

    /// Sets the metrics for build and feature gates.
    ///
    /// # Errors
    /// Fails as [`Self::register`] does.
    pub(crate) fn identify(
        registry: &Registry,
        gates: &BTreeMap<String, bool>,
    ) -> Result<(), prometheus::Error> {
        let make = MetricFactory::new(registry, Resets::default());
        let build = make.gauges(
            "kubernetes_build_info",
            Level::Alpha,
            "Build information of this program.",
            &[
                "major",
                "minor",
                "git_version",
                "git_commit",
                "git_tree_state",
                "build_date",
                "go_version",
                "compiler",
                "platform",
            ],
        )?;
        let (major, minor) = (
            env!("CARGO_PKG_VERSION_MAJOR"),
            env!("CARGO_PKG_VERSION_MINOR"),
        );
        let version = concat!("v", env!("CARGO_PKG_VERSION"));
        let machine = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let platform = format!("{}/{machine}", std::env::consts::OS);
        build
            .with_label_values(&[major, minor, version, "", "", "", "", "rustc", &platform])
            .set(1.0);
        let features = make.gauges(
            "kubernetes_feature_enabled",
            Level::Beta,
            "Whether a feature gate is on.",
            &["name", "stage"],
        )?;
        for gate in crate::gates::GATES {
            let stage = match gate.stage {
                koord_app::features::FeatureStage::Alpha => "ALPHA",
                koord_app::features::FeatureStage::Beta => "BETA",
                koord_app::features::FeatureStage::Stable => "",
            };
            let on = gates.get(gate.name).copied().unwrap_or(gate.default);
            features
                .with_label_values(&[gate.name, stage])
                .set(f64::from(u8::from(on)));
        }
        Ok(())
    }

    /// Sets whether this process leads the election `name`.
    pub(crate) fn leads(&self, name: &str, leads: bool) {
        self.leading.set(name, leads);
    }

    /// Records the decision of a cycle.
    pub(crate) fn decided(&self, outcome: &CycleOutcome, seconds: f64) {
        self.algorithm_seconds.observe(seconds);
        if outcome.node.is_some() {
            self.evaluated_nodes.observe(float(outcome.evaluated));
            self.feasible_nodes.observe(float(outcome.feasible));
        }
    }

    /// Records that a pod is bound.
    pub(crate) fn scheduled(&self, attempt: &Attempt, profile: &str, now: Timestamp) {
        self.pod_attempts.observe(f64::from(attempt.attempts));
        let waited = now.duration_since(attempt.first_seen).as_secs_f64();
        let attempts = match attempt.attempts {
            0..=14 => attempt.attempts.to_string(),
            _ => "15+".to_owned(),
        };
        self.sli_seconds
            .with_label_values(&[attempts.as_str()])
            .observe(waited.max(0.0));
        if attempt.flushed {
            self.after_flush.inc();
        }
        self.count_attempt("scheduled", profile, Some(attempt));
    }

    /// Records a failed attempt: an error, or a refusal.
    pub(crate) fn failed(&self, error: bool, profile: &str, attempt: Option<&Attempt>) {
        let result = if error { "error" } else { "unschedulable" };
        self.count_attempt(result, profile, attempt);
    }

    fn count_attempt(&self, result: &str, profile: &str, attempt: Option<&Attempt>) {
        self.attempts.with_label_values(&[result, profile]).inc();
        if let Some(attempt) = attempt {
            self.attempt_seconds
                .with_label_values(&[result, profile])
                .observe(attempt.started.elapsed().as_secs_f64());
        }
    }

    /// Records the duration of a binding.
    pub(crate) fn bound(&self, ok: bool, profile: &str, plugin: &str, seconds: f64) {
        let status = if ok { "Success" } else { "Error" };
        self.extension_point
            .with_label_values(&["Bind", status, profile])
            .observe(seconds);
        self.execution
            .with_label_values(&[plugin, "Bind", status])
            .observe(seconds);
    }

    /// Sets the number of pending bindings.
    pub(crate) fn set_pending_bindings(&self, n: usize) {
        self.goroutines
            .with_label_values(&["binding"])
            .set(float(n));
    }

    /// Records that a write was queued.
    pub(crate) fn call_queued(&self, call: Call) {
        self.call_pending(call, 1);
    }

    /// Records that a write is being sent.
    pub(crate) fn call_started(&self, call: Call) {
        self.call_pending(call, -1);
    }

    fn call_pending(&self, call: Call, change: i64) {
        // Several tasks change the count. Only one sets the gauge, or an older value could overwrite a newer
        // one.
        self.pending_calls[call as usize].fetch_add(change, Ordering::Relaxed);
    }

    /// Records the result of a write.
    pub(crate) fn call_ended(&self, call: Call, ok: bool, seconds: f64) {
        let labels = [call.name(), if ok { "success" } else { "error" }];
        self.calls.with_label_values(&labels).inc();
        self.call_seconds
            .with_label_values(&labels)
            .observe(seconds);
    }

    /// Records that scheduling a pod of this scheduler takes, or took, too long.
    pub(crate) fn timed_out(&self, scheduler: &str) {
        self.timeouts.with_label_values(&[scheduler]).inc();
    }

    #[cfg(test)]
    pub(crate) fn timeouts(&self, scheduler: &str) -> u64 {
        self.timeouts.with_label_values(&[scheduler]).get()
    }

    /// Records a preemption with its number of victims.
    pub(crate) fn preempted(&self, victims: usize) {
        self.victims.observe(float(victims));
    }

    /// Records that the evictions of a preemption were sent.
    pub(crate) fn evicted(&self, ok: bool, seconds: f64) {
        let result = if ok { "success" } else { "error" };
        self.evictions.with_label_values(&[result]).inc();
        self.eviction_seconds
            .with_label_values(&[result])
            .observe(seconds);
    }

    /// Returns a buffered histogram of event handling times.
    pub(crate) fn event_histograms(&self) -> BufferedHistograms {
        BufferedHistograms::new(self.events.clone())
    }

    /// Adds measurements of the engine; `names` are those of the profiles, by index.
    pub(crate) fn add_measures(&self, measures: Measures, names: &[String]) {
        let profile = |at: usize| names.get(at).map_or("", String::as_str);
        for measured in measures.timings {
            match measured {
                Measurement::Plugin {
                    plugin,
                    point,
                    status,
                    nanos,
                } => self
                    .execution
                    .with_label_values(&[plugin, point.name(), status])
                    .observe(seconds(nanos)),
                Measurement::Point {
                    profile: at,
                    point,
                    status,
                    nanos,
                } => self
                    .extension_point
                    .with_label_values(&[point.name(), status, profile(at)])
                    .observe(seconds(nanos)),
                Measurement::Hint {
                    plugin,
                    event,
                    hint,
                    nanos,
                } => self
                    .hints
                    .with_label_values(&[plugin, event, hint])
                    .observe(seconds(nanos)),
                Measurement::Permit { result, seconds } => {
                    self.permit.with_label_values(&[result]).observe(seconds);
                }
                Measurement::NextPod { nanos } => self
                    .next_pod_seconds
                    .with_label_values::<&str>(&[])
                    .observe(seconds(nanos)),
            }
        }
        for ((plugin, point, at), n) in measures.evaluations {
            self.evaluations
                .with_label_values(&[plugin, point.name(), profile(at)])
                .inc_by(n);
        }
        for ((at, result), n) in measures.shared {
            self.batches
                .with_label_values(&[profile(at), result])
                .inc_by(n);
        }
    }

    /// Sets the gauges.
    pub(crate) fn gauges(&self, engine: &mut Engine) {
        for ((queue, event), n) in engine.queue.take_incoming() {
            self.incoming.with_label_values(&[queue, event]).inc_by(n);
        }
        for call in [Call::Binding, Call::Status] {
            let pending = self.pending_calls[call as usize].load(Ordering::Relaxed);
            #[allow(clippy::cast_precision_loss, reason = "a count of writes")]
            self.calls_pending
                .with_label_values(&[call.name()])
                .set(pending as f64);
        }
        let pending = engine.queue.pending();
        for (queue, n) in [
            ("active", pending.active),
            ("backoff", pending.backoff),
            ("unschedulable", pending.unschedulable),
            ("gated", pending.gated),
        ] {
            self.pending.with_label_values(&[queue]).set(float(n));
        }
        self.inflight
            .with_label_values(&["PodPopped"])
            .set(float(pending.in_flight));
        let (pods, assumed) = engine.cluster().booked();
        for (kind, n) in [
            ("nodes", engine.cluster().nodes().len()),
            ("pods", pods),
            ("assumed_pods", assumed),
        ] {
            self.cache.with_label_values(&[kind]).set(float(n));
        }
        self.unschedulable.reset();
        for ((profile, plugin), n) in engine.inspector().refused_by_plugin() {
            let profile = engine
                .plugins()
                .profiles()
                .get(profile)
                .map_or("", |p| p.name.as_str());
            self.unschedulable
                .with_label_values(&[plugin, profile])
                .set(float(n));
        }
        let previous = self.preemptions.get();
        self.preemptions
            .inc_by(engine.preemptor().preemptions().0.saturating_sub(previous));
        let previous = self.mismatches.get();
        self.mismatches
            .inc_by(engine.classes().mismatches().saturating_sub(previous));
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts of nodes and pods")]
fn float(n: usize) -> f64 {
    n as f64
}

#[allow(clippy::cast_precision_loss, reason = "a short time")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
