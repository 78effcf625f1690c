//! kube-scheduler's metrics, by their upstream names.

use crate::engine::{Engine, Outcome};
use jiff::Timestamp;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts,
    Registry,
};

/// See the module documentation.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    attempts: IntCounterVec,
    attempt_seconds: HistogramVec,
    algorithm_seconds: Histogram,
    pod_attempts: Histogram,
    sli_seconds: HistogramVec,
    pending: IntGaugeVec,
    incoming: IntCounterVec,
    unschedulable: GaugeVec,
    cache: IntGaugeVec,
    extension_point: HistogramVec,
    events: HistogramVec,
    mismatches: IntCounter,
    preemptions: IntCounter,
    victims: Histogram,
    timeouts: IntCounterVec,
}

impl Metrics {
    /// Creates and registers all metrics. One that `registry` has already is left out of it.
    ///
    /// # Errors
    /// A metric's definition is wrong, which tests would show.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let exponential =
            |start, factor, count| prometheus::exponential_buckets(start, factor, count);
        let histogram =
            |name: &str, help: &str, buckets| HistogramOpts::new(name, help).buckets(buckets);
        let metrics = Self {
            attempts: IntCounterVec::new(
                Opts::new(
                    "scheduler_schedule_attempts_total",
                    "Attempts to schedule pods, by result.",
                ),
                &["result", "profile"],
            )?,
            attempt_seconds: HistogramVec::new(
                histogram(
                    "scheduler_scheduling_attempt_duration_seconds",
                    "Time from the start of a cycle to its decision or, when placed, the binding.",
                    exponential(0.0001, 2.0, 18)?,
                ),
                &["result", "profile"],
            )?,
            algorithm_seconds: Histogram::with_opts(histogram(
                "scheduler_scheduling_algorithm_duration_seconds",
                "Time to decide about one pod.",
                exponential(0.000_001, 2.0, 22)?,
            ))?,
            pod_attempts: Histogram::with_opts(histogram(
                "scheduler_pod_scheduling_attempts",
                "Attempts that a placed pod took.",
                exponential(1.0, 2.0, 5)?,
            ))?,
            sli_seconds: HistogramVec::new(
                histogram(
                    "scheduler_pod_scheduling_sli_duration_seconds",
                    "Time from entering the queue to being placed.",
                    exponential(0.01, 2.0, 20)?,
                ),
                &["attempts"],
            )?,
            incoming: IntCounterVec::new(
                Opts::new(
                    "scheduler_queue_incoming_pods_total",
                    "Pods that entered a queue.",
                ),
                &["queue", "event"],
            )?,
            pending: IntGaugeVec::new(
                Opts::new("scheduler_pending_pods", "Pods that wait, by queue."),
                &["queue"],
            )?,
            unschedulable: GaugeVec::new(
                Opts::new(
                    "scheduler_unschedulable_pods",
                    "Refused pods, by refusing plugin.",
                ),
                &["plugin", "profile"],
            )?,
            cache: IntGaugeVec::new(
                Opts::new(
                    "scheduler_scheduler_cache_size",
                    "Nodes, pods and assumed pods known.",
                ),
                &["type"],
            )?,
            extension_point: HistogramVec::new(
                histogram(
                    "scheduler_framework_extension_point_duration_seconds",
                    "Time in one extension point.",
                    exponential(0.0001, 2.0, 12)?,
                ),
                &["extension_point", "status", "profile"],
            )?,
            events: HistogramVec::new(
                histogram(
                    "scheduler_event_handling_duration_seconds",
                    "Time to digest one event from an informer.",
                    exponential(0.000_001, 2.0, 20)?,
                ),
                &["event"],
            )?,
            timeouts: IntCounterVec::new(
                Opts::new(
                    "scheduler_scheduling_timeout",
                    "Decisions that took longer than --scheduling-timeout.",
                ),
                &["profile"],
            )?,
            preemptions: IntCounter::new(
                "scheduler_preemption_attempts_total",
                "Attempts to make room by evicting pods.",
            )?,
            victims: Histogram::with_opts(histogram(
                "scheduler_preemption_victims",
                "Pods evicted by one preemption.",
                exponential(1.0, 2.0, 7)?,
            ))?,
            mismatches: IntCounter::new(
                "koord_scheduler_class_mismatches_total",
                "Shared evaluations that a pod's own check contradicted; each cost one full pass.",
            )?,
        };
        let all: [Box<dyn prometheus::core::Collector>; 15] = [
            Box::new(metrics.attempts.clone()),
            Box::new(metrics.attempt_seconds.clone()),
            Box::new(metrics.algorithm_seconds.clone()),
            Box::new(metrics.pod_attempts.clone()),
            Box::new(metrics.sli_seconds.clone()),
            Box::new(metrics.pending.clone()),
            Box::new(metrics.incoming.clone()),
            Box::new(metrics.unschedulable.clone()),
            Box::new(metrics.cache.clone()),
            Box::new(metrics.extension_point.clone()),
            Box::new(metrics.events.clone()),
            Box::new(metrics.mismatches.clone()),
            Box::new(metrics.preemptions.clone()),
            Box::new(metrics.victims.clone()),
            Box::new(metrics.timeouts.clone()),
        ];
        for collector in all {
            match registry.register(collector) {
                Ok(()) | Err(prometheus::Error::AlreadyReg) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(metrics)
    }

    /// One cycle ended.
    pub(crate) fn attempt(&self, outcome: &Outcome, profile: &str, seconds: f64, now: Timestamp) {
        self.algorithm_seconds.observe(seconds);
        let result = match (&outcome.node, outcome.error) {
            (Some(_), _) => "scheduled",
            (None, false) => "unschedulable",
            (None, true) => "error",
        };
        if outcome.node.is_some() {
            self.pod_attempts.observe(f64::from(outcome.attempts));
            let waited = now.duration_since(outcome.first_seen).as_secs_f64();
            let attempts = match outcome.attempts {
                0..=15 => outcome.attempts.to_string(),
                _ => "15+".to_owned(),
            };
            self.sli_seconds
                .with_label_values(&[attempts.as_str()])
                .observe(waited);
        }
        self.attempts.with_label_values(&[result, profile]).inc();
        self.attempt_seconds
            .with_label_values(&[result, profile])
            .observe(seconds);
    }

    /// A binding took this long.
    pub(crate) fn bound(&self, ok: bool, profile: &str, seconds: f64) {
        let status = if ok { "Success" } else { "Error" };
        self.extension_point
            .with_label_values(&["Bind", status, profile])
            .observe(seconds);
    }

    /// A decision does not end.
    pub(crate) fn timed_out(&self) {
        self.timeouts.with_label_values(&[""]).inc();
    }

    #[cfg(test)]
    pub(crate) fn timeouts(&self) -> u64 {
        self.timeouts.with_label_values(&[""]).get()
    }

    /// Room is made for a pod by evicting so many.
    pub(crate) fn preempted(&self, victims: usize) {
        #[allow(clippy::cast_precision_loss, reason = "a count of pods")]
        self.victims.observe(victims as f64);
    }

    /// An event was digested.
    pub(crate) fn event(&self, event: &str, seconds: f64) {
        self.events.with_label_values(&[event]).observe(seconds);
    }

    /// Sets the gauges.
    pub(crate) fn gauges(&self, engine: &mut Engine) {
        for ((queue, event), n) in engine.take_incoming() {
            self.incoming.with_label_values(&[queue, event]).inc_by(n);
        }
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let pending = engine.pending();
        for (queue, n) in [
            ("active", pending.active),
            ("backoff", pending.backoff),
            ("unschedulable", pending.unschedulable),
            ("gated", pending.gated),
        ] {
            self.pending.with_label_values(&[queue]).set(count(n));
        }
        let (pods, assumed) = engine.booked();
        for (kind, n) in [
            ("nodes", engine.nodes().len()),
            ("pods", pods),
            ("assumed_pods", assumed),
        ] {
            self.cache.with_label_values(&[kind]).set(count(n));
        }
        self.unschedulable.reset();
        for ((profile, plugin), n) in engine.refused_by_plugin() {
            let profile = engine
                .profiles()
                .get(profile)
                .map_or("", |p| p.name.as_str());
            #[allow(clippy::cast_precision_loss, reason = "a count of pods")]
            self.unschedulable
                .with_label_values(&[plugin, profile])
                .set(n as f64);
        }
        let seen = self.preemptions.get();
        self.preemptions
            .inc_by(engine.preemptions().0.saturating_sub(seen));
        let seen = self.mismatches.get();
        self.mismatches
            .inc_by(engine.mismatches().saturating_sub(seen));
    }
}
