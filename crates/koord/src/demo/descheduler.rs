//! `koord demo descheduler`: the descheduler moves pods from hot nodes to nearly idle ones.
//!
//! Some nodes exist first and get all the pods, which use more than they request. Then other nodes join, and
//! nothing happens: a scheduler places a pod once. LowNodeLoad finds the hot nodes, and our scheduler
//! reserves the new node of each pod before it is evicted. API server, controllers, scheduler and descheduler
//! are real; nodes and the pods' usage are simulated.

mod page;
mod stage;

use super::{output, simulated};
use crate::{cluster, console};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use stage::DeschedulerStage;
use std::path::PathBuf;

/// CPUs of a node.
const CPUS: u32 = 16;
/// Low and high threshold of LowNodeLoad, in percent of a node's CPUs: nodes above the second are hot, and
/// pods move to those below the first.
const THRESHOLDS: (u32, u32) = (45, 65);
/// Time for which loads are watched before the descheduler starts, and after its last move.
const QUIET_SECONDS: u32 = 6;
/// Time until the reported usage is correct after the start.
const SETTLING_SECONDS: u32 = 4;

/// Flags of `koord demo descheduler`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Number of simulated nodes, with 16 CPUs each; at first, all pods run on a third of them.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(3..=300))]
    pub nodes: u32,
    /// Time limit of the descheduling, in seconds.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(10..=3600))]
    pub seconds: u32,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the HTML report with charts to this file.
    #[arg(
        long,
        value_name = "FILE.html",
        default_value = "koord-descheduler.html"
    )]
    pub report: PathBuf,
    /// Show the logs of the components.
    #[arg(long)]
    pub verbose: bool,
}

/// Results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeschedulerOutcome {
    /// Conditions of the run.
    pub setup: DeschedulerSetup,
    /// Loads before the descheduler started.
    pub before: LoadSpread,
    /// Loads at the end.
    pub after: LoadSpread,
    /// Jobs that moved a pod.
    pub moves: usize,
    /// Migration jobs that failed.
    pub failures: usize,
    /// Message of the first failed job.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<String>,
    /// Moves of the pod that was moved most often, counted across its changes of name.
    pub max_moves_per_pod: usize,
    /// The fewest pods that ran whenever they were counted, of `setup.pods`.
    pub fewest_running: usize,
    /// Seconds from the descheduler's start until no node was hot any more; `None` if a node still is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seconds_to_cool: Option<f64>,
    /// Loads over time.
    pub samples: Vec<Sample>,
}

/// Conditions of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeschedulerSetup {
    /// Names of the nodes; those that were there first come first.
    pub nodes: Vec<String>,
    /// Number of nodes that were there first.
    pub first: usize,
    /// CPUs of each.
    pub cpus: u32,
    /// Pods.
    pub pods: usize,
    /// CPU load below which a node takes pods, in percent.
    pub low: u32,
    /// CPU load above which a node is hot, in percent.
    pub high: u32,
}

/// Loads of all nodes at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// Seconds since the descheduler started; below 0 before.
    pub second: f64,
    /// Pods moved so far.
    pub moves: usize,
    /// Used CPUs in percent, by node.
    pub loads: Vec<f64>,
}

/// Distribution of loads over the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadSpread {
    /// Percent.
    pub mean: f64,
    /// Standard deviation, in points.
    pub stddev: f64,
    /// 95th percentile, in percent.
    pub p95: f64,
    /// Percent.
    pub max: f64,
    /// Nodes above the high threshold.
    pub hot: usize,
}

impl LoadSpread {
    /// Summarizes loads in percent.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a count of nodes")]
    pub fn from_loads(loads: &[f64], high: f64) -> Self {
        let count = loads.len().max(1) as f64;
        let mean = loads.iter().sum::<f64>() / count;
        let variance = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / count;
        let mut sorted = loads.to_vec();
        sorted.sort_by(f64::total_cmp);
        // The smallest load that 95 % of the nodes do not exceed.
        let rank = (loads.len() * 95).div_ceil(100).max(1) - 1;
        Self {
            mean,
            stddev: variance.sqrt(),
            p95: sorted.get(rank).copied().unwrap_or_default(),
            max: sorted.last().copied().unwrap_or_default(),
            hot: loads.iter().filter(|load| **load > high).count(),
        }
    }
}

/// Runs the demo.
///
/// # Errors
/// When it is interrupted, a component does not start, or a file cannot be written.
pub fn main(args: &Args) -> Result<()> {
    cluster::init_logging(if args.verbose { "info" } else { "error" });
    output::check_files(&args.report, args.json.as_deref())?;
    let outcome = simulated::measure(run(args))?;
    let html = page::html(&outcome);
    output::publish(
        &outcome,
        &page::table(&outcome),
        args.json.as_deref(),
        (&html, &args.report),
        "pictures",
    )
}

async fn run(args: &Args) -> Result<DeschedulerOutcome> {
    let mut stage = DeschedulerStage::set_up(args.nodes as usize).await?;
    let outcome = play(&mut stage, args).await;
    stage.cluster.stop().await;
    outcome
}

async fn play(stage: &mut DeschedulerStage, args: &Args) -> Result<DeschedulerOutcome> {
    console::warn(format_args!(
        "{} pods on {} of {} nodes",
        stage.setup.pods,
        stage.setup.first,
        stage.setup.nodes.len(),
    ));
    stage.fill().await?;
    // Until averaged usage equals current usage.
    stage.watch(SETTLING_SECONDS, |_| false).await?;
    console::warn("the other nodes join");
    stage.open().await?;
    let mut samples = stage.watch(QUIET_SECONDS, |_| false).await?;
    console::warn("the descheduler starts");
    stage.start_descheduler()?;
    let high = f64::from(stage.setup.high);
    let cool = |sample: &Sample| sample.loads.iter().all(|load| *load <= high);
    samples.extend(stage.watch(args.seconds, cool).await?);
    let cooled = samples.last().filter(|last| cool(last));
    let seconds_to_cool = cooled.map(|sample| sample.second);
    samples.extend(stage.watch(QUIET_SECONDS, |_| false).await?);
    stage.outcome(samples, seconds_to_cool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_summed_up() {
        let spread = LoadSpread::from_loads(&[10.0, 90.0, 50.0, 50.0], 65.0);
        assert_eq!((spread.mean, spread.max, spread.p95), (50.0, 90.0, 90.0));
        assert_eq!((spread.hot, spread.stddev), (1, 800_f64.sqrt()));
        let mut loads = vec![1.0; 19];
        loads.push(100.0);
        assert_eq!(LoadSpread::from_loads(&loads, 65.0).p95, 1.0);
        assert_eq!(LoadSpread::from_loads(&[], 65.0).max, 0.0);
    }
}
