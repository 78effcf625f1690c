//! `koord bench runtime`: what being asked before a container starts costs.

mod proxy;

use anyhow::Result;
use serde::Serialize;
use std::path::PathBuf;

/// The size of the measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Socket of a container runtime with the CRI.
    #[arg(long, default_value = "/run/containerd/containerd.sock")]
    pub runtime: PathBuf,
    /// Calls of each kind.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub calls: u32,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// All figures.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    proxy: koord_runtime_proxy::bench::Report,
}

/// `None`, when no runtime can be had.
pub(super) async fn run(args: &Args) -> Result<Option<Report>> {
    let Some(proxy) = proxy::run(args).await? else {
        return Ok(None);
    };
    Ok(Some(Report { proxy }))
}
