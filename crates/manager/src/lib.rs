//! The manager: cluster-wide controllers of co-location.
//!
//! ```text
//! ConfigMap slo-controller-config ──┬─► nodemetric ───► NodeMetric.spec  (how koordlet measures)
//!                                   ├─► nodeslo ──────► NodeSLO.spec     (what koordlet enforces)
//! NodeMetric.status, Node, Pods ────┴─► noderesource ─► Node.status      (batch-*, mid-*)
//! ```
//!
//! Each controller is a pure `plan` from a view of the cluster to what shall be written, and a thin
//! driver that reads the view and writes.
//!
//! Invariant: nothing here touches a node's kernel, and no decision does I/O.

mod args;
mod config;
mod features;
mod metrics;
mod nodemetric;
mod noderesource;
mod nodeslo;
mod object;
mod suppress;
pub mod webhook;
mod world;

pub use args::Args;
pub use features::GATES;

use futures::FutureExt;
use futures::future::BoxFuture;
use koord_app::Context;
use koord_app::admin::{Admin, AdminError, Exposure};
use koord_app::features::Gates;
use koord_app::flags::Selection;
use koord_kube::lease::{Election, ElectionError, LeaderElector};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The lease that replicas contend for.
pub const LEASE_NAME: &str = "koordinator-manager";

/// The controllers that `--controllers` may name. The last two do nothing yet.
pub const CONTROLLERS: [&str; 5] = [
    nodemetric::NAME,
    noderesource::NAME,
    nodeslo::NAME,
    "quotaprofile",
    "colocationprofile",
];

/// How the manager runs. The default is upstream's, without leader election and servers.
#[derive(Debug, Clone)]
pub struct Options {
    /// Contend for leadership first; `None` runs at once.
    pub election: Option<Election>,
    /// This process, in leases and events.
    pub identity: String,
    /// Where to serve metrics.
    pub metrics_address: Option<SocketAddr>,
    /// Where to serve health.
    pub health_address: Option<SocketAddr>,
    /// Which controllers run.
    pub controllers: Selection,
    /// Which resources the noderesource controller computes.
    pub noderesource_plugins: Selection,
    /// Namespace of the settings.
    pub config_namespace: String,
    /// Name of the ConfigMap with the settings.
    pub config_name: String,
    /// Feature gates.
    pub gates: Gates,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            election: None,
            identity: koord_kube::lease::unique_identity(),
            metrics_address: None,
            health_address: None,
            controllers: Selection::all(),
            noderesource_plugins: Selection::all(),
            config_namespace: "koordinator-system".to_owned(),
            config_name: "slo-controller-config".to_owned(),
            gates: Gates::new(GATES),
        }
    }
}

/// A command line that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}: {problem}")]
pub struct OptionsError {
    flag: &'static str,
    problem: String,
}

/// Why the manager stopped, or a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No leadership.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// No health or metrics server.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A metric is registered twice.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The API server refused something.
    #[error("API server: {0}")]
    Api(#[from] koord_kube::Error),
    /// An object could not be written as JSON.
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Runs until `ctx.shutdown` is cancelled or leadership is lost.
pub fn run(
    options: Options,
    client: koord_kube::Client,
    ctx: Context,
) -> BoxFuture<'static, Result<(), Error>> {
    async move {
        let metrics = metrics::Metrics::new(&ctx.metrics)?;
        let ready = Arc::new(AtomicBool::new(false));
        serve(&options, &ready, &ctx).await?;
        let Some(election) = options.election.clone() else {
            metrics.leader.set(1);
            world::run(options, client, metrics, ready, ctx).await;
            return Ok(());
        };
        let elector = LeaderElector::new(client.clone(), election, ctx.clock.clone())?;
        let shutdown = ctx.shutdown.clone();
        let leader = metrics.leader.clone();
        let result = elector
            .run(shutdown, async move |token| {
                metrics.leader.set(1);
                let ctx = Context {
                    shutdown: token,
                    ..ctx
                };
                world::run(options, client, metrics, ready, ctx).await;
            })
            .await;
        leader.set(0);
        result?;
        Ok(())
    }
    .boxed()
}

async fn serve(options: &Options, ready: &Arc<AtomicBool>, ctx: &Context) -> Result<(), Error> {
    let waiting_for_leadership = options.election.is_some();
    let ready = ready.clone();
    let admin = Admin::new(ctx.metrics.clone()).ready_when("informers", move || {
        // A replica that does not lead has no informers and is ready to take over.
        (waiting_for_leadership || ready.load(Ordering::SeqCst))
            .then_some(())
            .ok_or_else(|| "not in sync yet".to_owned())
    });
    let addresses: BTreeSet<_> = [options.metrics_address, options.health_address]
        .into_iter()
        .flatten()
        .collect();
    for address in addresses {
        let address = admin
            .serve(address, Exposure::Anyone, ctx.shutdown.clone())
            .await?;
        tracing::info!(%address, "serving health and metrics");
    }
    Ok(())
}
