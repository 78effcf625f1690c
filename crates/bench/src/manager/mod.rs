//! `koord bench manager`: the cost of koord-manager, measured from outside.
//!
//! The manager is a separate process, ours or Koordinator's, started with the flags that both have. It uses
//! an API server over HTTPS with a cluster's objects; that server and the load generator are part of this
//! program, so only the manager is in the figures.

mod in_process;
mod nodes;
mod objects;
mod process;
mod recommendations;
mod webhooks;

use crate::meter::WindowUse;
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::path::PathBuf;

/// A part that can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum BenchPart {
    /// Admission reviews of pods over HTTPS.
    Webhooks,
    /// Reports of nodes, and a change of the settings.
    Nodes,
    /// Recommendations with histories, pods and metrics.
    Recommender,
    /// Webhooks that the API server of `koord up` calls in its own process.
    InProcess,
}

/// Flags of `koord bench manager`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Parts to measure, comma-separated [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<BenchPart>,
    /// Program of the manager [default: the `koord-manager` next to this program, else the one built into it].
    #[arg(long, value_name = "PROGRAM")]
    manager: Option<PathBuf>,
    /// Number of pods per second sent to both webhooks.
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// Length of each measured window, in seconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Number of ClusterColocationProfiles.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    profiles: u32,
    /// Number of ElasticQuotas.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    quotas: u32,
    /// Number of nodes that report.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// Number of pods per node.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=250))]
    pods_per_node: u32,
    /// Time between two reports of a node, in seconds.
    #[arg(long, default_value_t = 60.0)]
    interval: f64,
    /// Number of Recommendations, each for a workload of two pods with three containers.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    recommendations: u32,
    /// Maximum number of repeats of a window that other load on the machine disturbed.
    #[arg(long, default_value_t = 2)]
    repeats: u32,
    /// Keep the manager's logs in this directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

impl Args {
    fn measures(&self, part: BenchPart) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// The figures that have a goal, and all others. Parts that were not measured are absent.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ManagerFigures {
    /// The program that was measured.
    manager: String,
    /// 99th percentile of the latency of `/mutate-pod`, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    mutate_p99_ms: Option<f64>,
    /// 99th percentile of the latency of `/validate-pod`, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    validate_p99_ms: Option<f64>,
    /// Cores that the controllers use while nodes report.
    #[serde(skip_serializing_if = "Option::is_none")]
    reconcile_cores: Option<f64>,
    /// Memory of the manager then, MiB.
    #[serde(rename = "rssMiB", skip_serializing_if = "Option::is_none")]
    rss_mib: Option<f64>,
    /// Seconds until a change of the settings has reached every node.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_replan_sec: Option<f64>,
    /// Memory of a manager with many Recommendations, MiB.
    #[serde(rename = "recommenderRssMiB", skip_serializing_if = "Option::is_none")]
    recommender_rss_mib: Option<f64>,
    /// Time that the webhooks add to the creation of a pod when they run in process, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_process_webhook_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhooks: Option<webhooks::WebhookFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<nodes::NodeFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recommender: Option<recommendations::RecommenderFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_process: Option<in_process::InProcessFigures>,
}

/// Measures.
///
/// # Errors
/// The cluster cannot be made, or the manager does not start, ends early or answers wrongly.
pub(super) fn run(args: &Args) -> Result<ManagerFigures> {
    crate::run_until_interrupted(Box::pin(measure(args)))
}

/// Measures each part that is requested.
async fn measure(args: &Args) -> Result<ManagerFigures> {
    let program = process::ManagerProgram::locate(args.manager.as_deref())?;
    let temporary = tempfile::tempdir().context("temporary directory")?;
    let work = args.keep.as_deref().unwrap_or(temporary.path());
    let mut report = ManagerFigures {
        manager: program.to_string(),
        ..ManagerFigures::default()
    };
    if args.measures(BenchPart::Webhooks) {
        let figures = webhooks::run(args, &program, work).await?;
        report.mutate_p99_ms = Some(figures.mutate.p99_ms);
        report.validate_p99_ms = Some(figures.validate.p99_ms);
        report.webhooks = Some(figures);
    }
    if args.measures(BenchPart::Nodes) {
        let figures = nodes::run(args, &program, work).await?;
        report.reconcile_cores = Some(figures.cost.cores);
        report.rss_mib = Some(figures.cost.rss_mib);
        report.config_replan_sec = Some(figures.config_replan_sec);
        report.nodes = Some(figures);
    }
    if args.measures(BenchPart::Recommender) {
        let figures = recommendations::run(args, &program, work).await?;
        report.recommender_rss_mib = Some(figures.cost.rss_mib);
        report.recommender = Some(figures);
    }
    if args.measures(BenchPart::InProcess) {
        let figures = in_process::run(args).await?;
        report.in_process_webhook_us = Some(figures.added_us);
        report.in_process = Some(figures);
    }
    Ok(report)
}

/// Usage of a process and of the rest of the machine in a window.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct ManagerCost {
    /// Length of the window.
    seconds: f64,
    /// CPU time of the manager per second, in cores.
    cores: f64,
    /// Resident set of the manager at the end, MiB.
    #[serde(rename = "rssMiB")]
    rss_mib: f64,
    /// Peak resident set of the manager since its start, MiB.
    #[serde(rename = "peakRssMiB")]
    peak_rss_mib: f64,
    /// CPU time of everything but the manager and this program, in percent of the machine.
    others_percent: f64,
    /// CPU time that the hypervisor took, in percent of the machine.
    steal_percent: f64,
}

impl From<WindowUse> for ManagerCost {
    fn from(used: WindowUse) -> Self {
        Self {
            seconds: used.spent.seconds,
            cores: used.spent.cpu_millicores / 1000.0,
            rss_mib: used.process.rss_mib(),
            peak_rss_mib: used.process.peak_rss_mib(),
            others_percent: used.foreign_percent,
            steal_percent: used.steal_percent,
        }
    }
}

impl ManagerCost {
    /// Returns true if the machine was busy with something else, so that the window is unreliable. The limits
    /// are those of the co-location experiments.
    fn is_noisy(&self) -> bool {
        self.others_percent > 4.0 || self.steal_percent > 1.5
    }
}
