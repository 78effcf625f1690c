//! `koord bench runtime`: the cost of runtime hooks before a container starts, with real containers.
//!
//! A containerd that the benchmark starts creates containers in three ways, in turns of some each, so that
//! other load on the machine affects all: without hooks, with koordlet as a plugin (NRI) for the length of
//! its turn, and through the runtime proxy, which calls koordlet's hook server. A container's process prints
//! its values when it begins.

mod calls;
mod lanes;
mod node;
mod picture;
mod service_thread;
mod times;

use anyhow::{Context as _, Result};
use koord_app::console;
use koord_testkit::testing::{CONTAINERD, Containerd, Groups};
use lanes::Lane;
use node::{AnswerTimes, HookCaller};
use serde::Serialize;
use std::path::{Path, PathBuf};
use times::Percentiles;

/// Containers that one way creates before the turn of the next.
const BLOCK: usize = 10;

/// Index of the way with the plugin, among the three.
const NRI: usize = 1;

/// Flags of `koord bench runtime`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Directory of the containerd to measure with, as `bench/containerd get` creates it.
    #[arg(long, value_name = "DIR", env = CONTAINERD)]
    containerd: Option<PathBuf>,
    /// Number of containers to create, start and remove in each of the three ways.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    containers: u32,
    /// Directory of containerd's files while it runs. In memory (/dev/shm), the figures do not include the
    /// disk's latency.
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    directory: PathBuf,
    /// Number of calls of each kind to the proxy.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    calls: u32,
    /// Write a chart of the times to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

/// Figures of runtime hooks. Times are milliseconds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuntimeFigures {
    /// Median time of CreateContainer with the plugin, less that without.
    nri_added_p50_ms: f64,
    /// The 99th percentile of CreateContainer with the plugin, less that without.
    nri_added_p99_ms: f64,
    /// Mean time of the plugin's own answer, without the runtime's part.
    nri_answered_mean_ms: f64,
    /// Median time of a creation's call through proxy and hook server, less the runtime's own.
    proxy_added_p50_ms: f64,
    /// The 99th percentile of a creation's call through proxy and hook server, less the runtime's own.
    proxy_added_p99_ms: f64,
    /// Containers created with the plugin.
    created: usize,
    /// Containers with the plugin whose process began with another value than the hooks set.
    unadjusted: usize,
    /// Containers created through the proxy.
    proxy_created: usize,
    /// Containers through the proxy whose process began with another value than the hooks set.
    proxy_unadjusted: usize,
    /// CreateContainer of real containers.
    create: WayTimes,
    /// CreateContainer and StartContainer, until the process runs.
    start: WayTimes,
    /// Calls through the proxy that cost the runtime next to nothing.
    #[serde(flatten)]
    calls: calls::CallFigures,
    /// The runtime.
    runtime: String,
}

/// Times of one kind of call in the three ways.
#[derive(Debug, Clone, Serialize)]
struct WayTimes {
    alone: Percentiles,
    nri: Percentiles,
    proxy: Percentiles,
}

/// Measures; `None`, with a warning on the console, if there is no containerd.
///
/// # Errors
/// The fixture cannot be made, or a runtime refuses a request.
pub(super) fn run(args: &Args) -> Result<Option<RuntimeFigures>> {
    let Some(report) = crate::run_until_interrupted(Box::pin(measure(args)))? else {
        return Ok(None);
    };
    if let Some(path) = &args.picture {
        std::fs::write(path, picture::svg(&report))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Some(report))
}

/// Starts a containerd; `None`, with a warning on the console, if there is none.
fn containerd(args: &Args, run: &Path) -> Option<Containerd> {
    let Some(directory) = &args.containerd else {
        console::warn(
            "no containerd: bench/containerd get DIR unpacks one, and --containerd DIR names it",
        );
        return None;
    };
    match Containerd::start(directory, run) {
        Ok(containerd) => Some(containerd),
        Err(error) => {
            console::warn(format_args!("nothing to measure with: {error}"));
            None
        }
    }
}

/// Starts containerd, the agents and two proxies (one without hooks), and measures in turn the three ways to
/// create containers: without hooks, with the NRI plugin, and through the proxy.
async fn measure(args: &Args) -> Result<Option<RuntimeFigures>> {
    // The directory's path is short, because paths of sockets are limited.
    let directory = tempfile::Builder::new()
        .prefix("koord-bench")
        .tempdir_in(&args.directory)
        .with_context(|| format!("--directory {}", args.directory.display()))?;
    let at = |name: &str| directory.path().join(name);
    // Removed after the processes in them have ended: locals are dropped in reverse order of their
    // declaration.
    let groups;
    let Some(containerd) = containerd(args, &at("run")) else {
        return Ok(None);
    };
    groups = Groups::new(&format!("koord-bench-{}", std::process::id()))?;
    let cluster = node::NodeCluster::start(&at("cluster")).await?;
    let (hooks, hook_socket) = (at("hookserver.d"), at("koordlet.sock"));
    let server = cluster
        .agent(&groups, HookCaller::ByProxy(&hooks, &hook_socket))
        .await?;
    let socket = containerd.socket();
    let asking = node::Proxy::start(&socket, &at("asking.sock"), &hooks).await?;
    let silent = at("no-hooks.d");
    let silent = node::Proxy::start(&socket, &at("silent.sock"), &silent).await?;

    let mut lanes = [
        Lane::open(&containerd, "alone", &socket, &groups, false).await?,
        Lane::open(&containerd, "nri", &socket, &groups, true).await?,
        Lane::open(&containerd, "proxy", asking.socket(), &groups, true).await?,
    ];
    let mut answered = AnswerTimes::default();
    let blocks = (args.containers as usize).div_ceil(BLOCK);
    // One more block, as a warm-up: connections and caches are warm then.
    for block in 0..=blocks {
        let remaining = args.containers as usize - block.saturating_sub(1) * BLOCK;
        for turn in 0..lanes.len() {
            // Every way is the first equally often.
            let of = (block + turn) % lanes.len();
            let Some(lane) = lanes.get_mut(of) else {
                continue;
            };
            let plugin = match of {
                NRI => {
                    let caller = HookCaller::ByRuntime(&containerd.nri_socket());
                    Some(cluster.agent(&groups, caller).await?)
                }
                _ => None,
            };
            for _ in 0..remaining.min(BLOCK) {
                lane.container(block == 0).await?;
            }
            if let Some(plugin) = plugin {
                answered.add(plugin.answered());
                plugin.stop().await;
            }
        }
    }
    let sockets = calls::Sockets {
        direct: socket,
        silent: silent.socket().to_owned(),
        asking: asking.socket().to_owned(),
    };
    let before = server.answered().count;
    let calls = calls::measure(&sockets, lanes[2].pod(), args.calls as usize);
    let calls = Box::pin(calls).await?;
    let requests = server.answered().count - before;
    anyhow::ensure!(
        requests >= f64::from(args.calls),
        "the hook server got {requests} requests only: expected at least {}",
        args.calls
    );
    let runtime = lanes[0].version().await?;
    let [alone, nri, proxy] = &lanes;
    let (created, unadjusted) = nri.outcome();
    let (proxy_created, proxy_unadjusted) = proxy.outcome();
    let ways = |of: fn(&Lane) -> Percentiles| WayTimes {
        alone: of(alone),
        nri: of(nri),
        proxy: of(proxy),
    };
    let create = ways(Lane::create_times);
    let report = RuntimeFigures {
        nri_added_p50_ms: create.nri.p50_ms - create.alone.p50_ms,
        nri_added_p99_ms: create.nri.p99_ms - create.alone.p99_ms,
        nri_answered_mean_ms: answered.mean_ms(),
        proxy_added_p50_ms: calls.asking.p50_ms - calls.direct.p50_ms,
        proxy_added_p99_ms: calls.asking.p99_ms - calls.direct.p99_ms,
        created,
        unadjusted,
        proxy_created,
        proxy_unadjusted,
        create,
        start: ways(Lane::start_times),
        calls,
        runtime,
    };
    asking.stop().await;
    silent.stop().await;
    server.stop().await;
    cluster.stop();
    Ok(Some(report))
}
