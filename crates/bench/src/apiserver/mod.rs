//! Measures this API server: rates of writes, reads and watch events, and memory.
//!
//! Client and server share the machine, and so its CPUs: the figures of a measurement over HTTP include the
//! cost of the client. All controllers run and roles decide, as in `koord up`: requests over HTTP are sent by
//! a user with the ClusterRole `admin`, in no group that may do everything. Callers in the process act as the
//! administrator, as the components of `koord up` do.

mod authorization;
mod client;
mod load;
mod objects;
pub mod simulated;
mod webhook;

use crate::meter::rss_mib;
use futures::future::BoxFuture;
use koord_apiserver::authz::bootstrap::GROUP;
use koord_apiserver::{ApiServer, Config, Error, Storage};
use koord_app::Clock;
use koord_kinds::status::ApiError;
use load::{LoadClient, Owner, Target};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Sizes and durations of the measurements.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// Length of each measurement of a rate.
    pub measure: Duration,
    /// A directory for the durable mode, which is skipped without it. Must be empty; is filled.
    pub data_dir: Option<PathBuf>,
    /// Tasks that write in process at the same time.
    pub writers: usize,
    /// Connections over TLS.
    pub connections: usize,
    /// Requests in progress per connection.
    pub streams: usize,
    /// Writes per second while the delivery of watch events is measured.
    pub watch_rate: u32,
    /// Nodes stored for the memory measurement.
    pub nodes: usize,
    /// Pods stored for the memory measurement.
    pub pods: usize,
    /// Watches on the pods of one node each, open while creates are measured.
    pub node_watches: usize,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self {
            measure: Duration::from_secs(3),
            data_dir: None,
            writers: 1,
            connections: 2,
            streams: 16,
            watch_rate: 1000,
            nodes: 5000,
            pods: 50_000,
            node_watches: 20_000,
        }
    }
}

/// Figures of the API server.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerFigures {
    /// CPUs of the machine that this process may use.
    pub cpus: usize,
    /// The controllers that ran.
    pub controllers: Vec<&'static str>,
    /// Authorization mode of the server.
    pub authorization_mode: String,
    /// The figures that have a goal.
    #[serde(flatten)]
    pub key: KeyFigures,
    /// Cost of authorization.
    pub authorization: AuthorizationFigures,
    /// Milliseconds until an empty server in memory is ready.
    pub cold_start_ms: f64,
    /// Memory.
    pub memory: MemoryFigures,
    /// The rates, per storage mode.
    pub modes: Vec<ModeFigures>,
}

/// The figures that have a goal, of the mode in memory.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyFigures {
    /// Milliseconds until an empty server is ready.
    pub start_ready_ms: f64,
    /// Creates of pods in process by one task.
    pub in_process_creates_per_sec: f64,
    /// Creates of pods in process by one task, with the watches of [`BenchOptions::node_watches`].
    pub node_watches_creates_per_sec: f64,
    /// Memory that these watches take, MiB.
    #[serde(rename = "nodeWatchesMiB")]
    pub node_watches_mib: f64,
    /// 99th percentile from a create to its event on one of them, milliseconds.
    pub node_watches_event_p99_ms: f64,
    /// Creates of pods over HTTP.
    pub http_creates_per_sec: f64,
    /// Reads of a pod over HTTP.
    pub http_gets_per_sec: f64,
    /// Milliseconds of a list of 10,000 pods.
    pub list_10k_pods_ms: f64,
    /// 99th percentile from a write to its event, milliseconds.
    pub watch_p99_ms: f64,
    /// Memory of the process with an empty server.
    #[serde(rename = "rssEmptyMiB")]
    pub rss_empty_mib: f64,
    /// CPU time that authorization adds to a read over HTTP, percent.
    pub authorization_percent_of_get: f64,
    /// Time that a mutating webhook in this process adds to a create, microseconds.
    pub in_process_webhook_us: f64,
}

/// Cost of authorization: reads of one object over HTTP by the same user from a server where roles decide and
/// from one where everything is allowed, in turns.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationFigures {
    /// CPU microseconds of a read, client and server together, where everything is allowed.
    pub allowed_get_cpu_us: f64,
    /// CPU microseconds of a read, client and server together, where roles decide.
    pub rbac_get_cpu_us: f64,
    /// Reads per second where everything is allowed.
    pub allowed_gets_per_s: f64,
    /// Reads per second where roles decide.
    pub rbac_gets_per_s: f64,
    /// Time of one decision by itself, nanoseconds.
    pub decision_ns: f64,
    /// Bindings in the server besides the default ones and the user's.
    pub other_bindings: usize,
}

/// Memory of the whole process, MiB resident.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryFigures {
    /// Memory with an empty server.
    pub rss_empty_mib: f64,
    /// Memory with the objects stored.
    pub rss_loaded_mib: f64,
    /// Nodes stored.
    pub nodes: usize,
    /// Pods stored.
    pub pods: usize,
    /// Bytes of one stored node.
    pub node_bytes: usize,
    /// Bytes of one stored pod.
    pub pod_bytes: usize,
    /// Objects per second while they were stored.
    pub load_per_s: f64,
    /// Milliseconds of a list of up to 10,000 pods in process, whole body read.
    pub list_10k_pods_ms: f64,
}

/// The rates in one storage mode.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModeFigures {
    /// `memory` or `durable`.
    pub mode: &'static str,
    /// Creates of pods per second through the in-process service.
    pub in_process_creates_per_s: f64,
    /// CPU microseconds of one such create, a figure that other load on the machine does not change. A
    /// million divided by it is the rate of one core.
    pub in_process_create_cpu_us: f64,
    /// Watches that were open, each on the pods of one node, while the next was measured.
    pub node_watches: usize,
    /// Creates of pods on nodes per second by one task in process.
    pub node_watches_creates_per_s: f64,
    /// Memory that these watches take, MiB.
    #[serde(rename = "nodeWatchesMiB")]
    pub node_watches_mib: f64,
    /// 99th percentile from a create to its event on one more such watch, in process, milliseconds.
    pub node_watches_event_p99_ms: f64,
    /// Tasks that did so.
    pub in_process_writers: usize,
    /// Creates per second with many writers at once: durable writers share the disk's syncs.
    pub in_process_creates_per_s_concurrent: f64,
    /// Tasks that did so.
    pub in_process_writers_concurrent: usize,
    /// Creates per second over TLS and HTTP/2.
    pub http_creates_per_s: f64,
    /// CPU microseconds of one of them, client and server together.
    pub http_create_cpu_us: f64,
    /// Reads of one object per second over TLS and HTTP/2.
    pub http_gets_per_s: f64,
    /// CPU microseconds of one of them, client and server together.
    pub http_get_cpu_us: f64,
    /// Connections of the HTTP measurements.
    pub connections: usize,
    /// Requests in progress per connection.
    pub streams_per_connection: usize,
    /// Delivery of watch events over TLS.
    pub watch: WatchFigures,
    /// Milliseconds until the server is ready again after a restart with the stored objects; only when
    /// durable.
    pub reopen_ms: Option<f64>,
    /// Number of objects at that time.
    pub reopen_objects: Option<usize>,
    /// Milliseconds the disk took to confirm a batch, on average; only when durable.
    pub sync_mean_ms: Option<f64>,
}

/// Delay from sending a write to receiving its event.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchFigures {
    /// Intended writes per second.
    pub rate_per_s: u32,
    /// Achieved writes per second.
    pub achieved_per_s: f64,
    /// Events received.
    pub events: usize,
    /// Median, milliseconds.
    pub p50_ms: f64,
    /// 99th percentile, milliseconds.
    pub p99_ms: f64,
    /// Largest, milliseconds.
    pub max_ms: f64,
}

/// Failures of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The server did not start or serve.
    #[error(transparent)]
    Server(#[from] Error),
    /// A request had an unexpected response.
    #[error("{what}: {reason}")]
    Request {
        /// The request.
        what: String,
        /// The unexpected response or error.
        reason: String,
    },
}

impl BenchError {
    fn request(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Request {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}

impl From<ApiError> for BenchError {
    fn from(error: ApiError) -> Self {
        Self::request("API", error.message)
    }
}

/// Measures everything. Takes about ten times [`BenchOptions::measure`] per mode, and some seconds.
///
/// # Errors
/// When a server cannot be started, or does not answer as it should.
pub fn run(
    options: &BenchOptions,
    clock: Clock,
) -> BoxFuture<'_, Result<ServerFigures, BenchError>> {
    Box::pin(measure(options, clock))
}

/// Measures cold start, memory, every mode and the cost of authorization.
async fn measure(options: &BenchOptions, clock: Clock) -> Result<ServerFigures, BenchError> {
    let began = Instant::now();
    let server = ApiServer::open(config(Storage::Memory, &clock)).await?;
    let cold_start_ms = millis(began.elapsed());
    // Measured first, while the process has not used any memory for something else.
    let memory = measure_memory(&server, options).await?;
    server.close().await;
    drop(server);
    let authorization = authorization::measure(options, &clock).await?;
    let in_process_webhook_us = webhook::measure(options, &clock).await?;

    let mut modes = vec![measure_mode("memory", Storage::Memory, options, &clock).await?];
    if let Some(dir) = &options.data_dir {
        let storage = Storage::Dir(dir.clone());
        modes.push(measure_mode("durable", storage, options, &clock).await?);
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let key = KeyFigures {
        start_ready_ms: cold_start_ms,
        in_process_creates_per_sec: modes[0].in_process_creates_per_s,
        node_watches_creates_per_sec: modes[0].node_watches_creates_per_s,
        node_watches_mib: modes[0].node_watches_mib,
        node_watches_event_p99_ms: modes[0].node_watches_event_p99_ms,
        http_creates_per_sec: modes[0].http_creates_per_s,
        http_gets_per_sec: modes[0].http_gets_per_s,
        list_10k_pods_ms: memory.list_10k_pods_ms,
        watch_p99_ms: modes[0].watch.p99_ms,
        rss_empty_mib: memory.rss_empty_mib,
        authorization_percent_of_get: authorization.percent(),
        in_process_webhook_us,
    };
    Ok(ServerFigures {
        cpus,
        controllers: koord_apiserver::controllers::names(),
        authorization_mode: format!("{:?}", koord_apiserver::Authorization::default()),
        key,
        authorization,
        cold_start_ms,
        memory,
        modes,
    })
}

/// Returns the configuration of the server that `koord up` has, on a free port.
fn config(storage: Storage, clock: &Clock) -> Config {
    let mut config = Config::new(storage, clock.clone());
    config.bind.set_port(0);
    config
}

/// The user of the requests over HTTP.
const USER: &str = "bench";

/// Binds [`USER`] to the ClusterRole `admin`.
async fn bind_user(server: &ApiServer) -> Result<(), BenchError> {
    let binding = serde_json::json!({
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "User", "apiGroup": GROUP, "name": USER}],
    });
    let path = format!("/apis/{GROUP}/v1/clusterrolebindings");
    load::post(&server.service(), &path, binding.to_string().into()).await
}

/// Serves until the token is cancelled.
async fn serve(
    server: &Arc<ApiServer>,
) -> Result<(SocketAddr, CancellationToken, JoinHandle<Result<(), Error>>), BenchError> {
    let stop = CancellationToken::new();
    let listener = server.listen().await?;
    let address = listener
        .local_addr()
        .map_err(|error| BenchError::request("local address", error))?;
    let serving = tokio::spawn({
        let (server, stop) = (Arc::clone(server), stop.clone());
        async move { server.serve(listener, stop).await }
    });
    Ok((address, stop, serving))
}

/// Loads nodes and pods, and measures the memory and the list time that they cost.
async fn measure_memory(
    server: &Arc<ApiServer>,
    options: &BenchOptions,
) -> Result<MemoryFigures, BenchError> {
    let rss_empty_mib = rss_mib();
    let began = Instant::now();
    let nodes = Target::nodes(server.service());
    for number in 0..options.nodes {
        nodes.create(number).await?;
    }
    let owner = Owner::create(server.service()).await?;
    let pods = Target::pods(server.service(), options.nodes, &owner);
    for number in 0..options.pods {
        pods.create(number).await?;
    }
    let load_per_s = (options.nodes + options.pods) as f64 / began.elapsed().as_secs_f64();
    let rss_loaded_mib = rss_mib();
    let size = |table: &str, count: usize| {
        let stats = server
            .store()
            .stats()
            .into_iter()
            .find(|stats| stats.table.as_str() == table);
        stats.map_or(0, |stats| stats.bytes) / count.max(1)
    };
    let began = Instant::now();
    pods.list(10_000).await?;
    Ok(MemoryFigures {
        rss_empty_mib,
        rss_loaded_mib,
        nodes: options.nodes,
        pods: options.pods,
        node_bytes: size("/nodes", options.nodes),
        pod_bytes: size("/pods", options.pods),
        load_per_s,
        list_10k_pods_ms: millis(began.elapsed()),
    })
}

/// Measures rates and latencies of a server with this storage.
async fn measure_mode(
    mode: &'static str,
    storage: Storage,
    options: &BenchOptions,
    clock: &Clock,
) -> Result<ModeFigures, BenchError> {
    let server = ApiServer::open(config(storage.clone(), clock)).await?;
    let owner = Owner::create(server.service()).await?;
    let watched = load::node_watches(
        server.service(),
        options.node_watches,
        options.nodes,
        &owner,
        options.measure,
    )
    .await?;
    bind_user(&server).await?;
    let (address, stop, serving) = serve(&server).await?;
    let client = LoadClient::new(&server, address, options, owner.clone())?;

    // A watch on all writes, as a cluster always has.
    let watch = load::drain_watch(server.service(), stop.clone());
    let crowd = options.connections * options.streams;
    let service = || server.service();
    let single =
        load::creates_in_process(service(), options.writers, &owner, options.measure).await?;
    let many = load::creates_in_process(service(), crowd, &owner, options.measure).await?;
    let creates = load::http_creates(&client, options.measure).await?;
    load::prepare_gets(&server.service(), &owner).await?;
    let gets = load::http_gets(&client, options.measure).await?;
    let delivery = load::watch_delivery(&client, options.watch_rate, options.measure).await?;

    stop.cancel();
    let _ = watch.await;
    if let Ok(served) = serving.await {
        served?;
    }
    let sync = &server.store().metrics().sync_seconds;
    let syncs = sync.get_sample_count();
    let sync_mean_ms = (syncs > 0).then(|| sync.get_sample_sum() / syncs as f64 * 1000.0);
    server.close().await;
    let (reopen_ms, reopen_objects) = match &storage {
        Storage::Memory => (None, None),
        Storage::Dir(_) => {
            drop(server);
            let began = Instant::now();
            let server = ApiServer::open(config(storage, clock)).await?;
            let took = millis(began.elapsed());
            let objects = server
                .store()
                .stats()
                .iter()
                .map(|stats| stats.objects)
                .sum();
            server.close().await;
            (Some(took), Some(objects))
        }
    };
    Ok(ModeFigures {
        mode,
        in_process_creates_per_s: single.per_s,
        in_process_create_cpu_us: single.cpu_us,
        node_watches: options.node_watches,
        node_watches_creates_per_s: watched.creates.per_s,
        node_watches_mib: watched.mib,
        node_watches_event_p99_ms: watched.event_p99_ms,
        in_process_writers: options.writers,
        in_process_creates_per_s_concurrent: many.per_s,
        in_process_writers_concurrent: crowd,
        http_creates_per_s: creates.per_s,
        http_create_cpu_us: creates.cpu_us,
        http_gets_per_s: gets.per_s,
        http_get_cpu_us: gets.cpu_us,
        connections: options.connections,
        streams_per_connection: options.streams,
        watch: delivery,
        reopen_ms,
        reopen_objects,
        sync_mean_ms,
    })
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
