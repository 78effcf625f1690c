//! The daemon around the cycle: watches the API server, runs a cycle at each interval while this replica
//! leads, carries out its plan, and reports the outcome.

mod apply;
mod decoded;
mod event_throttle;
mod job_queue;
mod jobs;
mod last_cycle;
mod lister;
mod migration;
mod view;
mod workloads;

pub use last_cycle::LastCycle;

use crate::config::Configuration;
use crate::framework::{Action, Framework, Intent, Plan};
use crate::report::Report;
use crate::state::{PodInfo, Snapshot};
use event_throttle::EventThrottle;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use koord_app::Context;
use koord_app::metrics::register;
use koord_kube::controller::ControllerMetrics;
use koord_kube::events::{EventClient, Recorder, Severity};
use koord_kube::lease::{Election, ElectionError, LeaderElector, LeaderMetrics, unique_identity};
use koord_kube::{Api, Client};
use parking_lot::Mutex;
use prometheus::{
    Histogram, HistogramOpts, IntCounterVec, IntGaugeVec, Opts, Registry, exponential_buckets,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use view::ClusterView;

/// Options of the daemon.
#[derive(Debug)]
pub struct Options {
    /// Time between the starts of two cycles; zero for a single cycle.
    pub interval: Duration,
    /// Settings of the leader election; `None` to run without one.
    pub election: Option<Election>,
    /// Client for events; `None` to use the main client.
    pub events: Option<EventClient>,
    /// Controller metrics shared with other components of the process; `None` registers new ones.
    pub controller_metrics: Option<ControllerMetrics>,
    /// Holder of the last cycle's report.
    pub last: LastCycle,
}

impl Options {
    /// Returns the options that `config` sets.
    #[must_use]
    pub fn new(config: &Configuration) -> Self {
        let leader_election = &config.leader_election;
        Self {
            // Negative intervals are rejected when the configuration is validated.
            interval: config.descheduling_interval.to_std().unwrap_or_default(),
            election: leader_election
                .leader_elect
                .then(|| Election::from_config(leader_election, unique_identity())),
            events: None,
            controller_metrics: None,
            last: LastCycle::default(),
        }
    }
}

/// Error that stopped the descheduler.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The leader election failed.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// A metric is registered twice.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A strategy panicked. Its state is lost.
    #[error("cycle: {0}")]
    Cycle(#[from] tokio::task::JoinError),
}

#[derive(Debug)]
struct Metrics {
    counts: migration::JobMetrics,
    seconds: Histogram,
}

impl Metrics {
    /// Registers the metrics.
    fn new(
        registry: &Registry,
        controllers: Option<ControllerMetrics>,
    ) -> prometheus::Result<Self> {
        let evicted = Opts::new(
            "descheduler_pods_evicted",
            "Pods whose eviction was requested, by result",
        );
        let labels = ["result", "strategy", "namespace", "node"];
        let seconds = HistogramOpts::new(
            "koord_descheduler_cycle_seconds",
            "How long a cycle took, from the snapshot to the plan",
        );
        let seconds = seconds.buckets(exponential_buckets(0.001, 2.0, 15)?);
        let phases = Opts::new(
            "koord_descheduler_migration_jobs",
            "PodMigrationJobs by phase, as the leader sees them",
        );
        let limited = Opts::new(
            "koord_descheduler_limited_total",
            "How often a rule or limit kept a PodMigrationJob waiting",
        );
        let counts = migration::JobMetrics {
            evicted: register(registry, IntCounterVec::new(evicted, &labels)?)?,
            phases: register(registry, IntGaugeVec::new(phases, &["phase"])?)?,
            limited: register(registry, IntCounterVec::new(limited, &["rule"])?)?,
            controllers: controllers.map_or_else(|| ControllerMetrics::register(registry), Ok)?,
        };
        Ok(Self {
            counts,
            seconds: register(registry, Histogram::with_opts(seconds)?)?,
        })
    }
}

/// Runs until `ctx.shutdown` is cancelled or leadership is lost.
///
/// # Errors
///
/// Returns an error if leadership is lost or the descheduler cannot continue.
pub async fn run(
    options: Options,
    framework: Framework,
    client: Client,
    ctx: Context,
) -> Result<(), Error> {
    koord_app::metrics::register_process(&ctx.metrics)?;
    let metrics = Metrics::new(&ctx.metrics, options.controller_metrics.clone())?;
    let evicted = metrics.counts.evicted.clone();
    options.last.on_reset(move || evicted.reset());
    let stop = ctx.shutdown.child_token();
    let _stop_on_drop = stop.clone().drop_guard();
    let leader = Leader {
        view: Arc::new(ClusterView::start(
            &client,
            framework.reads_storage_classes(),
            &stop,
        )),
        interval: options.interval,
        last: options.last,
        event_throttle: Mutex::default(),
        events: if framework.dry_run {
            Recorder::silent()
        } else {
            let clock = ctx.clock.clone();
            let with = options.events.map(|EventClient(client)| client);
            let with = with.unwrap_or_else(|| client.clone());
            Recorder::start(with, "koord-descheduler", "", clock, stop)
        },
        client: client.clone(),
        metrics,
        ctx: ctx.clone(),
    };
    let Some(election) = options.election else {
        return leader.run(framework, ctx.shutdown).await;
    };
    let leading = LeaderMetrics::register(&ctx.metrics)?;
    let name = election.name.clone();
    leading.set(&name, false);
    let elector = LeaderElector::new(client, election, ctx.clock)?;
    let led = elector.run(ctx.shutdown, |token| {
        leading.set(&name, true);
        leader.run(framework, token)
    });
    let led = led.await;
    leading.set(&name, false);
    led?.unwrap_or(Ok(()))
}

struct Leader {
    view: Arc<ClusterView>,
    interval: Duration,
    last: LastCycle,
    event_throttle: Mutex<EventThrottle>,
    events: Recorder,
    client: Client,
    metrics: Metrics,
    ctx: Context,
}

impl Leader {
    /// Waits for the informers, then runs cycles and the job controller until `stop`.
    async fn run(self, framework: Framework, stop: CancellationToken) -> Result<(), Error> {
        self.last.set_reading(true);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.view.wait_synced() => {}
        }
        // A dry run does not process jobs, whoever created them.
        let migrations = match framework.dry_run {
            true => Vec::new(),
            false => framework.migrations(),
        };
        let (clock, counts) = (self.ctx.clock.clone(), self.metrics.counts.clone());
        let controller = migration::JobController::new(
            self.client.clone(),
            self.view.clone(),
            migrations,
            framework.without_claims,
            (self.events.clone(), clock, counts),
        );
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = controller.catch_up() => {}
        }
        self.last.set_reading(false);
        tokio::select! {
            ended = Box::pin(self.cycles(framework, stop)) => ended,
            () = Box::pin(controller.run()) => Ok(()),
        }
    }

    async fn cycles(&self, mut framework: Framework, stop: CancellationToken) -> Result<(), Error> {
        if self.interval.is_zero() {
            self.cycle(framework, &stop).await?;
            stop.cancelled().await;
            return Ok(());
        }
        let mut times = tokio::time::interval(self.interval);
        // A cycle that takes longer than the interval is followed by the next one immediately, not by all
        // that it missed.
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = times.tick() => framework = self.cycle(framework, &stop).await?,
            }
        }
    }

    /// Runs one descheduling cycle: takes a snapshot, plans, carries out the plan and reports it.
    async fn cycle(
        &self,
        mut framework: Framework,
        stop: &CancellationToken,
    ) -> Result<Framework, Error> {
        let snapshot = self.view.snapshot(self.ctx.clock.now()).await;
        let timer = self.metrics.seconds.start_timer();
        // It may take long; leases are renewed meanwhile.
        let decide = tokio::task::spawn_blocking(move || {
            let plan = framework.run(&snapshot);
            (framework, snapshot, plan)
        });
        let (mut framework, snapshot, plan) = decide.await?;
        timer.observe_duration();
        // Logged once, not in each cycle. Without strategies an error has no effect.
        let before = self.last.get().and_then(|report| report.error.clone());
        let news = plan.error != before && framework.has_strategies();
        if let Some(error) = plan.error.as_ref().filter(|_| news) {
            tracing::warn!(error, "cycle ended early");
        }
        let outcomes = apply::apply((&self.client, &self.view), &snapshot, &plan, stop).await;
        framework.record_outcomes(&snapshot, &plan, &outcomes);
        if !framework.dry_run {
            self.report_outcomes(&plan, &outcomes);
            self.count_limited(&plan);
        }
        let mut report = Report::new(&snapshot, &plan, &outcomes, framework.dry_run);
        if !framework.has_strategies() {
            let none = "no strategy is on: pods that should move are not looked for";
            report.notes.push(none.to_owned());
        }
        self.record_hot_node_events(&snapshot, &report);
        self.last.set(Arc::new(report));
        Ok(framework)
    }

    /// Records an event for each hot node from which nothing was moved, with the reasons.
    fn record_hot_node_events(&self, snapshot: &Snapshot, report: &Report) {
        for (node, text) in self.event_throttle.lock().due(report) {
            let uid = snapshot.node(&node).map(|node| node.uid.to_string());
            let regarding = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node),
                uid,
                ..ObjectReference::default()
            };
            self.events.event_with_action(
                regarding,
                Severity::Normal,
                "NotDescheduled",
                "Descheduling",
                text,
            );
        }
    }

    /// Counts the pods that a limit of the cycle kept, with the results of Koordinator's evictor.
    fn count_limited(&self, plan: &Plan) {
        for skipped in &plan.skipped {
            if let Some(result) = limit_result(skipped.reason.rule) {
                let pod = &skipped.pod;
                let node = pod.node.as_deref().unwrap_or_default();
                let values = [result, skipped.strategy, &pod.namespace, node];
                let evicted = &self.metrics.counts.evicted;
                evicted.with_label_values(&values).inc();
            }
        }
    }

    /// Counts evictions and records events for them.
    fn report_outcomes(&self, plan: &Plan, outcomes: &[apply::ActionOutcome]) {
        for (action, outcome) in plan.actions.iter().zip(outcomes) {
            let Action::Move(planned) = action else {
                if let Err(error) = outcome {
                    tracing::warn!(error, ?action, "failed to carry out planned action");
                }
                continue;
            };
            // Moves that are only shown are neither counted nor recorded.
            if matches!(planned.intent, None | Some(Intent::Nothing)) {
                continue;
            }
            let pod = &planned.pod;
            if let Err(error) = outcome {
                tracing::warn!(%pod, strategy = planned.strategy, error, "failed to move pod");
            }
            // A migration job records the eviction of its pod itself.
            if matches!(planned.intent, Some(Intent::Job(_))) {
                continue;
            }
            let result = if outcome.is_ok() { "success" } else { "error" };
            let node = pod.node.as_deref().unwrap_or_default();
            let values = [result, planned.strategy, &pod.namespace, node];
            let evicted = &self.metrics.counts.evicted;
            evicted.with_label_values(&values).inc();
            let Ok(done) = outcome else {
                continue;
            };
            let message = format!("{}: {}: {done}", planned.strategy, planned.reason);
            let regarding = pod_reference(&pod.namespace, &pod.name, &pod.uid);
            let normal = Severity::Normal;
            self.events
                .event_with_action(regarding, normal, "Descheduled", "Evicting", message);
        }
    }
}

/// Returns true if `pod` exists and is not being deleted.
async fn still_exists(client: &Client, pod: &PodInfo) -> Result<bool, koord_kube::Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), &pod.namespace);
    let meta = pods.get_metadata_opt(&pod.name).await?;
    Ok(meta.is_some_and(|pod_meta| {
        pod_meta.metadata.uid.as_deref() == Some(&*pod.uid)
            && pod_meta.metadata.deletion_timestamp.is_none()
    }))
}

/// Returns the result under which Koordinator's evictor counts a pod that `rule` kept; `None` for rules that
/// it does not count.
fn limit_result(rule: &str) -> Option<&'static str> {
    match rule {
        "MaxNoOfPodsToEvictPerNode" => Some("maximum number of pods per node reached"),
        "MaxNoOfPodsToEvictPerNamespace" => Some("maximum number of pods per namespace reached"),
        _ => None,
    }
}

/// Returns the reference to a pod for events.
fn pod_reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
