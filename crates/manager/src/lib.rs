//! The manager: cluster-wide controllers of co-location.
//!
//! ```text
//! ConfigMap slo-controller-config ──┬─► nodemetric ───► NodeMetric.spec  (how koordlet measures)
//!                                   ├─► nodeslo ──────► NodeSLO.spec     (what koordlet enforces)
//! NodeMetric.status, Node, Pods ────┴─► noderesource ─► Node.status      (batch-*, mid-*)
//! metrics.k8s.io or NodeMetric, Pods ─► recommender ──► Recommendation.status (what pods should request)
//! ```
//!
//! Each controller is a pure `plan` from a view of the cluster to the intended objects, and a thin driver
//! that reads the view and writes. Every replica has the view (`replica`: a cache of each kind that an
//! enabled part needs, the settings, health); the leader runs the controllers of `controllers`.
//!
//! Invariant: nothing here touches a node's kernel, and no decision does I/O.

mod args;
mod cache;
mod colocationprofile;
mod config;
mod controller;
mod controllers;
pub mod dashboard;
mod dry_run;
pub mod explain;
mod facts;
mod features;
mod install;
mod metrics;
mod node;
mod nodemetric;
mod noderesource;
mod nodeslo;
mod object;
pub mod program;
mod quotacheck;
mod quotaprofile;
mod recommender;
mod replica;
mod settings;
mod suppress;
pub mod webhook;

pub use args::Args;
pub use colocationprofile::{ProfileFlags, ProfileOptions};
use controllers::Controllers;
use dry_run::DryRun;
pub use facts::RecommendationFacts;
pub use features::GATES;
pub use recommender::{RecommenderArgs, RecommenderOptions};

use futures::FutureExt;
use futures::future::BoxFuture;
use koord_app::Context;
use koord_app::admin::AdminError;
use koord_app::features::Gates;
use koord_app::flags::Selection;
use koord_app::local::RouteServer;
use koord_kube::controller::ControllerMetrics;
use koord_kube::lease::{Election, ElectionError, LeaderElector};
use replica::Replica;
use std::net::SocketAddr;

/// The lease that replicas contend for.
pub const LEASE_NAME: &str = "koordinator-manager";

/// The names that `--controllers` accepts.
pub const CONTROLLERS: [&str; 7] = controllers::NAMES;

/// Options of the manager. The defaults are upstream's, without leader election and servers.
#[derive(Debug, Clone)]
pub struct Options {
    /// Leader election; `None` runs the controllers without it.
    pub election: Option<Election>,
    /// Identity of this process in leases and events.
    pub identity: String,
    /// Address to serve metrics on; `None` disables them.
    pub metrics_address: Option<SocketAddr>,
    /// Address to serve health checks on; `None` disables them.
    pub health_address: Option<SocketAddr>,
    /// Address that answers requests for Go profiles with an error; `None` disables it.
    pub profiling_address: Option<SocketAddr>,
    /// Server of authenticated clients: health, metrics and the dashboard; `None` disables it.
    pub secure_server: Option<RouteServer>,
    /// Notes about flags and gates without effect, logged at start.
    pub notes: Vec<String>,
    /// Controller metrics shared with other components of the process; `None` registers new ones.
    pub controller_metrics: Option<ControllerMetrics>,
    /// Controllers to run.
    pub controllers: Selection,
    /// Plugins of the noderesource controller, each of which computes some resources.
    pub noderesource_plugins: Selection,
    /// Namespace of the settings.
    pub config_namespace: String,
    /// Name of the ConfigMap with the settings.
    pub config_name: String,
    /// True if the settings webhook requires a name for every node strategy.
    pub node_strategy_names_needed: bool,
    /// Feature gates.
    pub gates: Gates,
    /// Transport of the webhooks.
    pub webhooks: webhook::ServeMode,
    /// True if missing custom resource definitions and PriorityClasses are created at start.
    pub install: bool,
    /// True if nothing is written, and what would have been written is reported.
    pub dry_run: bool,
    /// Options of the recommender.
    pub recommender: RecommenderOptions,
    /// Options of the pod webhooks.
    pub pods: webhook::pod::Options,
    /// Options of the colocationprofile controller.
    pub colocation_profile: ProfileOptions,
    /// Retries of conflicting quota writes when pods are charged.
    pub quota_retries: webhook::QuotaRetries,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            election: None,
            identity: koord_kube::lease::unique_identity(),
            metrics_address: None,
            health_address: None,
            profiling_address: None,
            secure_server: None,
            notes: Vec::new(),
            controller_metrics: None,
            controllers: Selection::all(),
            noderesource_plugins: Selection::all(),
            config_namespace: "koordinator-system".to_owned(),
            config_name: "slo-controller-config".to_owned(),
            node_strategy_names_needed: false,
            gates: Gates::new(GATES),
            webhooks: webhook::ServeMode::Disabled,
            install: false,
            dry_run: false,
            recommender: RecommenderOptions::default(),
            pods: webhook::pod::Options::default(),
            colocation_profile: ProfileOptions::default(),
            quota_retries: webhook::QuotaRetries::default(),
        }
    }
}

impl Options {
    /// Returns these options without leader election and installation, for a manager that writes nothing.
    fn without_writes(mut self) -> Self {
        self.election = None;
        self.install = false;
        self
    }
}

/// An invalid flag or environment variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct OptionsError {
    name: String,
    problem: String,
}

impl OptionsError {
    fn flag(flag: &str, problem: String) -> Self {
        Self {
            name: format!("--{flag}"),
            problem,
        }
    }

    /// Creates an error about an environment variable.
    fn variable(name: &str, problem: String) -> Self {
        Self {
            name: name.to_owned(),
            problem,
        }
    }
}

/// An error that stops the manager or fails a reconcile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Leader election failed, or leadership was lost.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The health or metrics server failed to start.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The webhook server failed to listen.
    #[error("failed to listen on {address} for webhooks: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// A metric is registered twice.
    #[error("failed to register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A request to the API server failed.
    #[error("request to the API server failed: {0}")]
    Api(#[from] koord_kube::Error),
    /// An object could not be serialized.
    #[error("failed to serialize an object: {0}")]
    Json(#[from] serde_json::Error),
}

/// Runs until `ctx.shutdown` is cancelled or leadership is lost.
pub fn run(
    options: Options,
    client: koord_kube::Client,
    ctx: Context,
) -> BoxFuture<'static, Result<(), Error>> {
    async move {
        for note in &options.notes {
            tracing::warn!("{note}");
        }
        koord_app::metrics::register_process(&ctx.metrics)?;
        let metrics = metrics::Metrics::new(&ctx.metrics, options.controller_metrics.clone())?;
        let leader = metrics.leader.clone();
        let (options, client, dry_run) = match options.dry_run {
            true => {
                let report = DryRun::new(&ctx.metrics, ctx.clock.clone())?;
                tracing::info!("dry run: nothing is written, see /debug/dry-run");
                (
                    options.without_writes(),
                    report.client(client),
                    Some(report),
                )
            }
            false => (options, client, None),
        };
        let replica = Replica::new(options, client, dry_run, metrics, &ctx);
        metrics::register_oldest_report(&ctx.metrics, replica.caches.node_metrics.clone())?;
        let _stop_on_drop = replica.stop.clone().drop_guard();
        let controllers = Controllers::build(&replica);
        replica.start(&controllers.kinds());
        let mut secure_routes = axum::Router::new();
        if replica.options.secure_server.is_some() {
            replica.start(&dashboard::KINDS);
            secure_routes = dashboard::routes(&replica);
        }
        if replica.options.install {
            tokio::spawn(install::create_missing(replica.client.clone()));
        }
        let webhooks = webhook::start(&replica, &ctx).await?;
        replica.serve(&ctx, webhooks, secure_routes).await?;
        let Some(election) = replica.options.election.clone() else {
            leader.set(1);
            controllers.run(replica, ctx.shutdown).await;
            return Ok(());
        };
        let elector = LeaderElector::new(replica.client.clone(), election, ctx.clock)?;
        let is_leader = leader.clone();
        let result = elector
            .run(ctx.shutdown, async move |token| {
                is_leader.set(1);
                controllers.run(replica, token).await;
            })
            .await;
        leader.set(0);
        result?;
        Ok(())
    }
    .boxed()
}
