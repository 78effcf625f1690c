//! `koord bench`: one component measured by itself.

pub mod apiserver;
mod burst;
mod descheduler;
pub mod engine;
mod exporter;
mod informers;
mod koordlet;
mod levers;
mod local_server;
mod manager;
mod meter;
mod process;
mod recommend;
mod report;
mod runtime;
mod scheduler;
mod service;
mod up;

use anyhow::{Context, Result, bail};
use apiserver::simulated;
use koord_app::Clock;
use report::Report;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Log filter unless the user chooses one: unverified certificates made here are expected.
pub const LOG: &str = "warn,kube_client::client::tls=error";

/// The arguments of `koord bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
}

/// The benchmarks.
#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    /// Measure the cost of koordlet on a node with a given number of pods.
    Koordlet(koordlet::Args),
    /// Measure the cost of the topology exporter on a node with a given number of pods.
    Exporter(exporter::Args),
    /// Measure the effect of CPU burst on a service with a CPU limit.
    Burst(burst::Args),
    /// Measure how each way to throttle batch work affects a service, for each kind of batch work.
    Levers(levers::Args),
    /// Measure requests per second and memory of the API server.
    Apiserver(ApiserverArgs),
    /// Measure how many pods per second the scheduler places, and at what cost.
    Scheduler(scheduler::Args),
    /// Measure the cost of a descheduler cycle, and its effect on a cluster with hot nodes.
    Descheduler(descheduler::Args),
    /// Measure the cost of koord-manager: its webhooks and its controllers.
    Manager(Box<manager::Args>),
    /// Compare recommendations for usage traces with simpler rules, and measure the recommender's memory.
    Recommend(recommend::Args),
    /// Measure the time that runtime hooks add to the creation of a container; exit code 3 without a runtime.
    Runtime(runtime::Args),
    /// Measure the memory of objects in the scheduler's informers, as stored and as whole objects.
    Informers(informers::Args),
    /// Measure how long `koord up` with simulated nodes takes to place a large Deployment, and its memory.
    Up(up::Args),
}

/// Flags of `koord bench apiserver`.
#[derive(Debug, Clone, clap::Args)]
struct ApiserverArgs {
    /// Length of each measurement of a rate, in seconds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Number of TLS connections.
    #[arg(long, default_value_t = 2)]
    connections: usize,
    /// Number of concurrent requests per connection.
    #[arg(long, default_value_t = 16)]
    streams: usize,
    /// Number of nodes stored for the memory figure.
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// Number of pods stored for the memory figure.
    #[arg(long, default_value_t = 50_000)]
    pods: usize,
    /// Skip the durable mode, which writes to the temporary directory.
    #[arg(long)]
    memory_only: bool,
    /// Idle time before and after the Deployment of `koord bench up`, in seconds.
    #[arg(long, default_value_t = up::Args::default().idle_seconds, value_parser = clap::value_parser!(u32).range(1..=3600))]
    idle_seconds: u32,
}

/// The figures of `koord bench apiserver`.
#[derive(Debug, Serialize)]
struct ApiServerFigures {
    #[serde(flatten)]
    server: crate::apiserver::ServerFigures,
    #[serde(flatten)]
    simulated: simulated::SimulatedFigures,
    /// Seconds until 5,000 replicas of a Deployment are bound to the 1,000 nodes of a `koord up`.
    #[serde(rename = "up1000x5000Sec")]
    up_bound: f64,
    /// Memory of its process then, MiB.
    #[serde(rename = "up1000x5000RssMiB")]
    up_rss: f64,
    up: up::UpFigures,
}

/// Runs a benchmark to its end, or until the user interrupts it.
fn run_until_interrupted<T>(benchmark: impl Future<Output = Result<T>>) -> Result<T> {
    koord_app::daemon::runtime()?.block_on(async {
        tokio::select! {
            outcome = benchmark => outcome,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })
}

/// Runs a benchmark and prints its figures.
///
/// # Errors
/// When the fixture cannot be made or the file cannot be written.
pub fn main(args: Args) -> Result<ExitCode> {
    koord_kube::tls::install_crypto_provider();
    let report = match args.command {
        Command::Runtime(args) => match runtime::run(&args)? {
            Some(figures) => Report::from_figures(&figures),
            None => return Ok(ExitCode::from(3)),
        },
        Command::Scheduler(args) => Report::from_figures(&scheduler::run(&args)?),
        Command::Descheduler(args) => Report::from_figures(&descheduler::run(&args)?),
        Command::Koordlet(args) => Report::from_figures(&koordlet::run(&args)?),
        Command::Exporter(args) => {
            let runtime = koord_app::daemon::runtime()?;
            Report::from_figures(&runtime.block_on(exporter::run(&args))?)
        }
        Command::Burst(args) => Report::from_figures(&burst::run(&args)?),
        Command::Levers(args) => {
            let figures = levers::run(&args)?;
            Report::from_figures(&figures).map(|it| it.with_table(levers::text(&figures)))
        }
        Command::Manager(args) => Report::from_figures(&manager::run(&args)?),
        Command::Recommend(args) => {
            let figures = recommend::run(&args)?;
            Report::from_figures(&figures).map(|it| it.with_table(recommend::text(&figures)))
        }
        Command::Informers(args) => match informers::run(&args)? {
            Some(figures) => {
                Report::from_figures(&figures).map(|it| it.with_table(informers::table(&figures)))
            }
            None => return Ok(ExitCode::SUCCESS),
        },
        Command::Up(args) => {
            let runtime = koord_app::daemon::runtime()?;
            Report::from_figures(&runtime.block_on(up::run(&args))?)
        }
        Command::Apiserver(args) => {
            let runtime = koord_app::daemon::runtime()?;
            Report::from_figures(&runtime.block_on(measure_api_server(&args))?)
        }
    }?;
    report.publish(args.json.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// Measures the API server, the simulation on it, and `koord up`.
async fn measure_api_server(args: &ApiserverArgs) -> Result<ApiServerFigures> {
    let directory = tempfile::tempdir().context("temporary directory")?;
    let options = apiserver::BenchOptions {
        measure: Duration::from_secs(args.seconds),
        data_dir: (!args.memory_only).then(|| directory.path().join("durable")),
        connections: args.connections,
        streams: args.streams,
        nodes: args.nodes,
        pods: args.pods,
        ..Default::default()
    };
    let server = apiserver::run(&options, Clock::system()).await?;
    let simulated = simulated::run().await?;
    let up = up::Args {
        idle_seconds: args.idle_seconds,
        ..up::Args::default()
    };
    let up = up::run(&up).await?;
    Ok(ApiServerFigures {
        server,
        simulated,
        up_bound: up.bound_sec,
        up_rss: up.rss_bound_mib,
        up,
    })
}
