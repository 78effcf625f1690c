//! The dashboard: one page about utilization, batch resources and decisions, and the JSON that it shows.
//!
//! It reads the caches that the controllers have. Events of koordlet and PodMigrationJobs are in no cache;
//! they are listed, a limited number of each, while a page is open. Nothing here writes.

mod http;
mod model;
mod remote;

pub use http::forwarded_routes;

use crate::cache::ObjectKind;
use crate::explain::{self, Explanation};
use crate::noderesource::Input;
use crate::replica::Replica;
use crate::{Options, metrics};
use futures::FutureExt;
use futures::future::BoxFuture;
use koord_api::configmap::keys;
use koord_app::Context;
use koord_app::local::RouteServer;
use koord_kube::{Cacheable, Client, ObjectKey};
use model::{Counts, History, HistoryTable, NodeRow, Overview, Pending, ServiceRow};
use parking_lot::Mutex;
use remote::{RecentEvents, RecentMoves, Remote};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Interval of the check whether something is to be computed.
const TICK: Duration = Duration::from_secs(5);
/// Seconds after the last request during which the state is computed at each tick.
const VIEWED_SECONDS: i64 = 60;
/// Number of nodes that are decoded at once before other tasks run.
const NODES_AT_ONCE: usize = 128;

/// The kinds that the dashboard reads.
pub(crate) const KINDS: [ObjectKind; 4] = [
    ObjectKind::Settings,
    ObjectKind::Nodes,
    ObjectKind::Pods,
    ObjectKind::NodeMetrics,
];

/// The dashboard of a replica.
pub(crate) struct Dashboard {
    replica: Arc<Replica>,
    history: Mutex<History>,
    overview: Mutex<Arc<OverviewState>>,
    /// Unix time of the last request.
    viewed: AtomicI64,
    remote: Remote,
}

/// The newest overview, in the shape of the endpoint.
#[derive(Debug, Default, Serialize)]
struct OverviewState {
    cluster: Counts,
    hot: Vec<NodeRow>,
    cold: Vec<NodeRow>,
    pending: Pending,
    services: Services,
}

/// Services under the pressure guard.
#[derive(Debug, Default, Serialize)]
struct Services {
    total: usize,
    pods: Vec<ServiceRow>,
}

/// The answer of the endpoint. It has no time of its own, so that equal states have equal text.
#[derive(Debug, Serialize)]
struct DashboardState<'a> {
    version: u32,
    #[serde(flatten)]
    overview: &'a OverviewState,
    history: HistoryTable,
    events: RecentEvents,
    moves: RecentMoves,
    /// The selected node; `None` if none is selected, or it does not exist.
    node: Option<Explanation>,
}

impl Dashboard {
    /// Starts the dashboard; it is updated until the replica stops.
    pub(crate) fn start(replica: &Arc<Replica>) -> Arc<Self> {
        let dashboard = Arc::new(Self {
            remote: Remote::new(replica.client.clone()),
            replica: replica.clone(),
            history: Mutex::default(),
            overview: Mutex::default(),
            viewed: AtomicI64::new(i64::MIN),
        });
        let updated = dashboard.clone();
        let stop = replica.stop.clone();
        tokio::spawn(async move { stop.run_until_cancelled(updated.run()).await });
        dashboard
    }

    async fn run(&self) {
        // Without NodeMetrics, the page shows the nodes.
        self.replica
            .wait_for(
                &[ObjectKind::Nodes, ObjectKind::Pods],
                &[ObjectKind::NodeMetrics],
            )
            .await;
        loop {
            let now = self.now();
            let is_due = self.history.lock().is_due(now);
            let viewed = self.viewed.load(Ordering::Relaxed);
            if is_due || now.saturating_sub(viewed) < VIEWED_SECONDS {
                self.update(now, is_due).await;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    fn now(&self) -> i64 {
        self.replica.clock.now().as_second()
    }

    /// Computes the overview; `record` adds it to the history.
    async fn update(&self, now: i64, record: bool) {
        let caches = &self.replica.caches;
        let mut overview = Overview::new(now);
        for nodes in caches.nodes.list().chunks(NODES_AT_ONCE) {
            for node in nodes {
                let metric = caches.node_metrics.get(&node.key());
                let report = metric.as_ref().and_then(|metric| metric.report.as_ref());
                overview.add_node(&node.read(), report);
            }
            tokio::task::yield_now().await;
        }
        overview.set_pods(&caches.pods.list());
        let (hot, cold) = overview.hot_and_cold();
        if record {
            self.history.lock().push(overview.sample);
        }
        *self.overview.lock() = Arc::new(OverviewState {
            cluster: overview.counts,
            hot,
            cold,
            pending: overview.pending,
            services: Services {
                total: overview.service_total,
                pods: overview.services,
            },
        });
    }

    /// Returns the JSON of the endpoint; `node` is the selected node.
    async fn json(&self, node: Option<&str>) -> serde_json::Result<String> {
        let now = self.now();
        self.viewed.store(now, Ordering::Relaxed);
        let (events, moves) = self.remote.get(now).await;
        let overview = self.overview.lock().clone();
        let state = DashboardState {
            version: 1,
            overview: &overview,
            history: self.history.lock().table(),
            events,
            moves,
            node: node.and_then(|node| self.explain(node)),
        };
        serde_json::to_string(&state)
    }

    /// Explains the batch resources of a node as the controller computes them.
    fn explain(&self, name: &str) -> Option<Explanation> {
        let (replica, key) = (&self.replica, ObjectKey::new("", name));
        let caches = &replica.caches;
        let node = caches.nodes.object(&key)?;
        let config = replica.settings.current();
        let gates = &replica.options.gates;
        let mut strategy = config.strategy(&node);
        if let Some(strategy) = &mut strategy {
            strategy.batch.charge_unmeasured = gates.enabled("ChargeUnmeasuredPods");
        }
        let metric = caches.node_metrics.get(&key);
        let settings = caches.settings.list();
        let data = settings.first().and_then(|map| map.data.as_ref());
        let text = data.and_then(|data| data.get(keys::COLOCATION));
        let topology = caches.topologies.get(&key);
        let input = Input {
            node: &node,
            strategy: strategy.as_ref(),
            normalization: config.normalization(&node),
            amplification: config.amplification(&node),
            report: metric.as_ref().and_then(|metric| metric.report.as_ref()),
            is_report_ahead: false,
            pods: &replica.pods_by_node.get(name),
            topology: topology.as_deref(),
            device: None,
            plugins: &replica.options.noderesource_plugins,
            share_gpus: false,
            devices_always: false,
            synced: None,
            now: replica.clock.now(),
        };
        let text = text.map_or("", String::as_str);
        let mut explanation = explain::from_input(&input, &config, text);
        // The age changes each second, and the page would be sent again.
        explanation.report_age_seconds = None;
        explanation.services.truncate(model::MAX_ROWS);
        Some(explanation)
    }
}

/// Starts the dashboard of a replica and returns its routes.
pub(crate) fn routes(replica: &Arc<Replica>) -> axum::Router {
    Dashboard::start(replica).routes()
}

/// Runs only the caches that the dashboard reads, with the rights of `client`, and hands its routes to
/// `server`, until `ctx.shutdown` is cancelled. For clusters whose manager does not serve a dashboard.
pub fn run(
    client: Client,
    server: RouteServer,
    ctx: Context,
) -> BoxFuture<'static, Result<(), crate::Error>> {
    async move {
        let options = Options {
            secure_server: Some(server.clone()),
            ..Options::default()
        };
        let metrics = metrics::Metrics::new(&ctx.metrics, None)?;
        let replica = Replica::new(options, client, None, metrics, &ctx);
        let _stop_on_drop = replica.stop.clone().drop_guard();
        replica.start(&KINDS);
        server.serve(routes(&replica));
        ctx.shutdown.cancelled().await;
        Ok(())
    }
    .boxed()
}
