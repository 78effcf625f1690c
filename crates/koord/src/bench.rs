//! `koord bench`: one component measured by itself.

mod scheduler;

use crate::{cluster, console};
use anyhow::{Context, Result};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is measured.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// What koordlet costs a node of so many pods.
    Koordlet(KoordletArgs),
    /// What the API server does per second, and the memory it takes.
    Apiserver(ApiserverArgs),
    /// How many pods the scheduler places per second, and what that costs.
    Scheduler(scheduler::Args),
}

/// The fixture of `koord bench koordlet`.
#[derive(Debug, Clone, clap::Args)]
pub struct KoordletArgs {
    /// Pods on the node; every third is a batch pod.
    #[arg(long, default_value_t = 110, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub pods: u32,
    /// Containers per pod.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub containers: u32,
    /// Length of the measured window, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Use plain directories in place of real cgroups.
    #[arg(long)]
    pub fake: bool,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl KoordletArgs {
    /// The command line that parses to the same.
    fn to_arguments(&self) -> Vec<OsString> {
        let mut out: Vec<OsString> = [
            ("--pods", u64::from(self.pods)),
            ("--containers", u64::from(self.containers)),
            ("--seconds", self.seconds),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.into(), value.to_string().into()])
        .collect();
        out.extend(self.fake.then(|| "--fake".into()));
        if let Some(path) = &self.json {
            out.extend(["--json".into(), path.clone().into_os_string()]);
        }
        out
    }
}

/// The size of `koord bench apiserver`.
#[derive(Debug, Clone, clap::Args)]
pub struct ApiserverArgs {
    /// How long each rate is measured, in seconds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Connections over TLS.
    #[arg(long, default_value_t = 2)]
    pub connections: usize,
    /// Requests in progress per connection.
    #[arg(long, default_value_t = 16)]
    pub streams: usize,
    /// Nodes stored for the memory figure.
    #[arg(long, default_value_t = 5000)]
    pub nodes: usize,
    /// Pods stored for the memory figure.
    #[arg(long, default_value_t = 50_000)]
    pub pods: usize,
    /// Leave out the durable mode, which writes to the temporary directory.
    #[arg(long)]
    pub memory_only: bool,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs a benchmark and prints its figures.
///
/// # Errors
/// When the fixture cannot be made or the file cannot be written.
pub fn main(command: Command) -> Result<()> {
    cluster::init_logging("warn");
    cluster::install_crypto_provider();
    match command {
        Command::Scheduler(args) => {
            let report = scheduler::run(&args)?;
            publish(&report, args.json.as_deref())
        }
        Command::Koordlet(args) => match daemon_binary() {
            Some(binary) => {
                let status = std::process::Command::new(&binary)
                    .arg(BENCH)
                    .args(args.to_arguments())
                    .status()
                    .with_context(|| format!("cannot start {}", binary.display()))?;
                anyhow::ensure!(status.success(), "{} {BENCH}: {status}", binary.display());
                Ok(())
            }
            None => {
                console::warn("there is no koordlet beside this program; measuring inside it");
                koordlet(&args)
            }
        },
        Command::Apiserver(args) => {
            let directory = tempfile::tempdir().context("temporary directory")?;
            let options = koord_apiserver::bench::BenchOptions {
                measure: Duration::from_secs(args.seconds),
                data_dir: (!args.memory_only).then(|| directory.path().join("durable")),
                connections: args.connections,
                streams: args.streams,
                nodes: args.nodes,
                pods: args.pods,
                ..Default::default()
            };
            let clock = koord_app::Clock::system();
            let measured = koord_apiserver::bench::run(&options, clock);
            let report = cluster::runtime()?.block_on(measured)?;
            publish(&report, args.json.as_deref())
        }
    }
}

/// Argument that makes the `koordlet` program measure itself.
pub(crate) const BENCH: &str = "bench";

/// The `koordlet` program that was built along with this one: its memory is what a node pays, not
/// that of the program that holds every component.
fn daemon_binary() -> Option<PathBuf> {
    let binary = std::env::current_exe().ok()?.with_file_name("koordlet");
    binary.is_file().then_some(binary)
}

/// Measures the agent in this process.
///
/// # Errors
/// When the fixture cannot be made or the file cannot be written.
pub(crate) fn koordlet(args: &KoordletArgs) -> Result<()> {
    let config = koordlet::bench::Config {
        pods: args.pods,
        containers: args.containers,
        seconds: args.seconds,
        fake: args.fake,
    };
    // As the daemon: the loop has a thread of its own, the rest needs no second one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let cost = runtime.block_on(koordlet::bench::run(&config))?;
    publish(&cost, args.json.as_deref())
}

fn publish(figures: &impl Serialize, file: Option<&Path>) -> Result<()> {
    let text = serde_json::to_string_pretty(figures).context("figures as JSON")?;
    console::say(&text);
    match file {
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(()),
    }
}
