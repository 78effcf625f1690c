//! The process around the cycle: follows the API server, runs a cycle when it is time and this replica leads, carries
//! its plan out, and shows what came of it.

mod apply;
mod view;

use crate::framework::{Action, Framework, Plan};
use crate::report::{NodeReport, Report};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::api::core::v1::ObjectReference;
use koord_app::Context;
use koord_app::metrics::register;
use koord_kube::Client;
use koord_kube::events::{Recorder, Severity};
use koord_kube::lease::{Election, ElectionError, LeaderElector};
use parking_lot::RwLock;
use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry, exponential_buckets};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use view::View;

/// How the descheduler runs.
#[derive(Debug)]
pub struct Options {
    /// From the start of one cycle to that of the next. Zero: one cycle is all.
    pub interval: Duration,
    /// Contend for leadership first; `None` runs at once.
    pub election: Option<Election>,
    /// Where the last cycle is shown.
    pub last: LastCycle,
}

/// Why the descheduler stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No leadership.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// A metric is registered twice.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A strategy panicked. What it knew is lost with it.
    #[error("cycle: {0}")]
    Cycle(#[from] tokio::task::JoinError),
}

/// What the last cycle made of the cluster. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LastCycle(Arc<RwLock<Option<Arc<Report>>>>);

impl LastCycle {
    /// The report; `None` before the first cycle of this process has ended.
    #[must_use]
    pub fn get(&self) -> Option<Arc<Report>> {
        self.0.read().clone()
    }

    /// `/debug/descheduler`, and `/debug/descheduler/NODE` with what concerns that node.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/debug/descheduler", get(whole))
            .route("/debug/descheduler/{node}", get(one))
            .with_state(self.clone())
    }
}

/// There is no report.
fn none_yet() -> Response {
    let none = "no cycle has ended in this process: it has just begun, or does not lead\n";
    (StatusCode::NOT_FOUND, none).into_response()
}

async fn whole(State(last): State<LastCycle>) -> Response {
    match last.get() {
        Some(report) => axum::Json(&*report).into_response(),
        None => none_yet(),
    }
}

async fn one(State(last): State<LastCycle>, Path(node): Path<String>) -> Response {
    let Some(report) = last.get() else {
        return none_yet();
    };
    let Some(of) = report.nodes.get(&node) else {
        let none = format!("no node {node:?} was there in the last cycle\n");
        return (StatusCode::NOT_FOUND, none).into_response();
    };
    let only = Report {
        nodes: [(node, of.clone())].into(),
        elsewhere: NodeReport::default(),
        ..(*report).clone()
    };
    axum::Json(only).into_response()
}

#[derive(Debug)]
struct Metrics {
    evicted: IntCounterVec,
    seconds: Histogram,
}

impl Metrics {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let evicted = Opts::new(
            "descheduler_pods_evicted",
            "Pods that were evicted or whose migration was asked for, by what came of it",
        );
        let labels = ["result", "strategy", "namespace", "node"];
        let seconds = HistogramOpts::new(
            "koord_descheduler_cycle_seconds",
            "How long a cycle took, from the snapshot to the plan",
        );
        let seconds = seconds.buckets(exponential_buckets(0.001, 2.0, 15)?);
        Ok(Self {
            evicted: register(registry, IntCounterVec::new(evicted, &labels)?)?,
            seconds: register(registry, Histogram::with_opts(seconds)?)?,
        })
    }
}

/// Runs until `ctx.shutdown` is cancelled or leadership is lost.
///
/// # Errors
///
/// Leadership is lost, or the descheduler cannot go on.
pub async fn run(
    options: Options,
    framework: Framework,
    client: Client,
    ctx: Context,
) -> Result<(), Error> {
    koord_app::metrics::register_process(&ctx.metrics)?;
    let metrics = Metrics::new(&ctx.metrics)?;
    let stop = ctx.shutdown.child_token();
    let _stop_on_drop = stop.clone().drop_guard();
    let leader = Leader {
        view: View::start(&client, &stop),
        interval: options.interval,
        last: options.last,
        events: if framework.dry_run {
            Recorder::silent()
        } else {
            let clock = ctx.clock.clone();
            Recorder::start(client.clone(), "koord-descheduler", "", clock, stop)
        },
        client: client.clone(),
        metrics,
        ctx: ctx.clone(),
    };
    let Some(election) = options.election else {
        return leader.run(framework, ctx.shutdown).await;
    };
    let elector = LeaderElector::new(client, election, ctx.clock)?;
    let led = elector.run(ctx.shutdown, |token| leader.run(framework, token));
    led.await?.unwrap_or(Ok(()))
}

struct Leader {
    view: View,
    interval: Duration,
    last: LastCycle,
    events: Recorder,
    client: Client,
    metrics: Metrics,
    ctx: Context,
}

impl Leader {
    async fn run(self, mut framework: Framework, stop: CancellationToken) -> Result<(), Error> {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.view.settled() => {}
        }
        if self.interval.is_zero() {
            self.cycle(framework, &stop).await?;
            stop.cancelled().await;
            return Ok(());
        }
        let mut times = tokio::time::interval(self.interval);
        // A cycle that takes longer than the interval is followed by the next one at once, not by all it missed.
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = times.tick() => framework = self.cycle(framework, &stop).await?,
            }
        }
    }

    async fn cycle(
        &self,
        mut framework: Framework,
        stop: &CancellationToken,
    ) -> Result<Framework, Error> {
        let snapshot = self.view.snapshot(self.ctx.clock.now());
        let timer = self.metrics.seconds.start_timer();
        // It may take long; leases are renewed meanwhile.
        let decide = tokio::task::spawn_blocking(move || {
            let plan = framework.run(&snapshot);
            (framework, snapshot, plan)
        });
        let (framework, snapshot, plan) = decide.await?;
        timer.observe_duration();
        if let Some(error) = &plan.error {
            tracing::warn!(error, "the cycle ended early");
        }
        let outcomes = apply::apply(&self.client, &snapshot, &plan, stop).await;
        if !framework.dry_run {
            self.say(&plan, &outcomes);
        }
        let report = Report::new(&snapshot, &plan, &outcomes, framework.dry_run);
        *self.last.0.write() = Some(Arc::new(report));
        Ok(framework)
    }

    /// Counts and tells what was done.
    fn say(&self, plan: &Plan, outcomes: &[apply::Outcome]) {
        for (action, outcome) in plan.actions.iter().zip(outcomes) {
            let Action::Move(planned) = action else {
                if let Err(error) = outcome {
                    tracing::warn!(error, ?action, "not done");
                }
                continue;
            };
            // What a strategy only shows is neither.
            if planned.intent.is_none() {
                continue;
            }
            let pod = &planned.pod;
            let result = if outcome.is_ok() { "success" } else { "error" };
            let node = pod.node.as_deref().unwrap_or_default();
            let values = [result, planned.strategy, &pod.namespace, node];
            self.metrics.evicted.with_label_values(&values).inc();
            let said = match outcome {
                Ok(done) => format!("{}: {}: {done}", planned.strategy, planned.reason),
                Err(why) => {
                    tracing::warn!(%pod, strategy = planned.strategy, error = why, "pod not moved");
                    continue;
                }
            };
            let regarding = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(pod.namespace.to_string()),
                name: Some(pod.name.to_string()),
                uid: Some(pod.uid.to_string()),
                ..ObjectReference::default()
            };
            let normal = Severity::Normal;
            self.events
                .event_with_action(regarding, normal, "Descheduled", "Evicting", said);
        }
    }
}
