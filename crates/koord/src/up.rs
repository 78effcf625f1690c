//! `koord up`: a cluster on this machine until Ctrl-C.

use crate::cluster::{self, Cluster};
use crate::console;
use anyhow::Result;
use std::path::PathBuf;

/// How the cluster is started.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Simulated nodes besides this machine.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=20_000))]
    pub nodes: u32,
    /// Where the cluster keeps its state. Started again with the same directory, it resumes.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Port of the API server on 127.0.0.1; 0 takes any free one.
    #[arg(long, default_value_t = 6443)]
    pub port: u16,
    /// Keep objects in memory only: nothing survives a stop.
    #[arg(long)]
    pub memory: bool,
}

/// Runs the cluster until Ctrl-C or SIGTERM.
///
/// # Errors
/// When it cannot start, or when a component ends by itself.
pub fn main(args: Args) -> Result<()> {
    cluster::init_logging("info,koord_scheduler=warn");
    cluster::runtime()?.block_on(run(args))
}

async fn run(args: Args) -> Result<()> {
    let data_dir = args.data_dir.unwrap_or_else(cluster::default_data_dir);
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut cluster = Cluster::start(cluster::Options {
        data_dir,
        memory: args.memory,
        listen: ([127, 0, 0, 1], args.port).into(),
        simulated_nodes: args.nodes as usize,
        slo_config: cluster::quick_config(),
        report_interval: Some(cluster::QUICK_REPORT),
    })
    .await?;
    welcome(&cluster, args.nodes);
    let failure = tokio::select! {
        _ = tokio::signal::ctrl_c() => None,
        _ = terminate.recv() => None,
        error = cluster.failed() => Some(error),
    };
    console::say("stopping: pods first, then the components");
    cluster.stop().await;
    match failure {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

fn welcome(cluster: &Cluster, simulated: u32) {
    let kubeconfig = cluster::shown(&cluster.kubeconfig);
    let extra = match simulated {
        0 => String::new(),
        n => format!(" and {n} simulated nodes"),
    };
    console::say(format_args!(
        "\nkoord is up: https://{} with node {}{extra}. Ctrl-C stops it.\n\n  \
         export KUBECONFIG={kubeconfig}\n  \
         kubectl get nodes -o wide\n  \
         kubectl describe node {} | grep -A9 Allocatable\n  \
         kubectl get nodemetrics -o yaml\n",
        cluster.address, cluster.node_name, cluster.node_name,
    ));
}
