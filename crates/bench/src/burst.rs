//! `koord bench burst`: a service whose load comes in bursts, with a CPU limit, without and with CPU burst.
//!
//! The limit is above the service's average usage and below its usage in a burst: without CPU burst it is
//! throttled though it stays within its limit. The real koordlet sets `cpu.cfs_burst_us`, as NodeSLO
//! configures it; it runs in both modes. A service of the same kind without a limit is the reference.

use super::koordlet::agent::{AgentSettings, KoordletAgent, KoordletProgram};
use super::koordlet::fixture::Groups;
use super::koordlet::objects;
use super::koordlet::world::World;
use super::service::Service;
use anyhow::{Context as _, Result, bail};
use koord_app::console;
use koord_host::Cgroup;
use koord_workload as workload;
use koord_workload::sampler::{Sampler, Targets};
use koord_workload::statistics::median;
use serde::Serialize;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// CPU time of a request in microseconds, and the part of it that is not its own work.
const SERVICE_US: f64 = 250.0;
const OVERHEAD_US: f64 = 25.0;
/// Requests per second: half a core on average.
const RATE: f64 = 2000.0;
/// Load pattern of the requests, repeated: 60 ms at 2.4 times [`RATE`], 140 ms at 0.4 times.
const BURSTS: &str = "60:2.4,140:0.4";
/// The limit, in milli-cores: 600.
const LIMIT: i64 = 600;
/// CFS period, in microseconds: the kubelet's.
const PERIOD: i64 = 100_000;
/// The limit as a quota per period.
const QUOTA: i64 = LIMIT * PERIOD / 1000;
/// Time limit for koordlet to apply a new NodeSLO.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Retries of a window that noise spoiled.
const RETRIES: usize = 6;
/// Largest wake-up delay of the generator in a clean window, in microseconds (99th percentile).
const SEND_LAG_US: f64 = 150.0;
/// Largest part of the machine's CPU time that the hypervisor may steal in a clean window.
const STEAL: f64 = 0.005;

/// Flags of `koord bench burst`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Length of a measured window, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Number of windows per mode.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100))]
    repeat: u8,
    /// Program that sets the CPU burst: `koordlet`, or `bench` to set it without an agent.
    #[arg(long, default_value = "koordlet", value_parser = ["koordlet", "bench"])]
    by: String,
    #[command(flatten)]
    settings: AgentSettings,
    /// Keep logs and files of the agent in this directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// CPU limit of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Unlimited,
    Limited,
    Burst,
}

/// Figures of a measured window.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct BurstRun {
    mode: Mode,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    requests: u64,
    errors: u64,
    /// CPU that the service used, in cores.
    cpu_cores: f64,
    /// CFS periods in which the container was throttled, in percent of those in which it ran.
    throttled_percent: f64,
    /// `cpu.cfs_burst_us` of the container.
    burst_us: i64,
    send_lag_p99_us: f64,
    steal_percent: f64,
    /// Reason why the window does not count, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected: Option<String>,
}

/// Medians of the runs of a mode that count.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct BurstSummary {
    mode: Mode,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    cpu_cores: f64,
    throttled_percent: f64,
    /// The p99 of every run that counts.
    p99_us_of_each: Vec<f64>,
}

/// Figures of the benchmark.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BurstFigures {
    limit_cores: f64,
    rate: f64,
    bursts: &'static str,
    set_by: String,
    modes: Vec<BurstSummary>,
    /// Reduction of p99 by burst, in percent of p99 without it.
    p99_lower_percent: f64,
    /// Runs that noise spoiled.
    rejected: usize,
    runs: Vec<BurstRun>,
}

/// Measures.
///
/// # Errors
/// Groups cannot be made, the kernel has no CFS burst, or koordlet does not set it.
pub(super) fn run(args: &Args) -> Result<BurstFigures> {
    crate::run_until_interrupted(measure(args))
}

/// Starts the services and the agent, and measures every mode in turn.
async fn measure(args: &Args) -> Result<BurstFigures> {
    let temporary = tempfile::tempdir().context("temporary directory")?;
    let directory = args.keep.as_deref().unwrap_or(temporary.path());
    let work = directory.join("burst");
    let mut groups = Groups::new(false, true, directory)?;
    if !groups.is_real() {
        bail!("CPU burst needs root and writable cgroups");
    }
    groups.outweigh_others()?;
    // A kubelet has this cgroup even without such a pod.
    groups.make("kubepods/besteffort")?;
    let steps_per_us = tokio::task::spawn_blocking(workload::steps_per_us).await?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a step count"
    )]
    let steps = (steps_per_us * (SERVICE_US - OVERHEAD_US)) as u64;
    std::fs::create_dir_all(&work)?;
    let steps = ["--steps".to_owned(), steps.to_string()];
    let limited = Service::start(&mut groups, 0, &steps, &work).await?;
    let free = Service::start(&mut groups, 1, &steps, &work).await?;
    if limited.container.cfs_burst()?.is_none() {
        bail!("this kernel has no CFS burst");
    }
    limited.pod.set_cfs_quota(QUOTA)?;
    limited.container.set_cfs_quota(QUOTA)?;

    let pods = vec![pod(0, Some(LIMIT)), pod(1, None)];
    let agent = match args.by.as_str() {
        "koordlet" => {
            let slo = json!({"metadata": {"name": objects::NODE}, "spec": policy(Mode::Limited)});
            let world = World::start(&work, pods, slo).await?;
            let agent = KoordletAgent::start(
                &KoordletProgram::locate()?,
                &args.settings,
                &groups,
                &world,
                &work,
            )?;
            Some((world, agent))
        }
        _ => None,
    };
    let mut scene = BurstScene {
        limited,
        free,
        agent,
        seconds: args.seconds,
    };
    let mut runs = Vec::new();
    for repeat in 0..args.repeat {
        for mode in [Mode::Unlimited, Mode::Limited, Mode::Burst] {
            scene.set_mode(mode).await?;
            for attempt in 0..=RETRIES {
                let run = scene.window(mode, u64::from(repeat)).await?;
                console::warn(format_args!(
                    "{mode:?}: p99 {:.0} µs, {:.0} % of periods throttled{}",
                    run.p99_us,
                    run.throttled_percent,
                    run.rejected
                        .as_ref()
                        .map_or_else(String::new, |reason| format!("; does not count: {reason}"))
                ));
                let noisy = run.rejected.is_some();
                runs.push(run);
                if !noisy || attempt == RETRIES {
                    break;
                }
            }
        }
    }
    if let Some((world, agent)) = scene.agent {
        agent.stop().await;
        world.stop().await;
    }
    Ok(report(args, runs))
}

/// The services and the agent of the measurement.
struct BurstScene {
    limited: Service,
    free: Service,
    agent: Option<(World, KoordletAgent)>,
    seconds: u32,
}

impl BurstScene {
    /// Lets the agent set or remove the burst, and waits until the kernel file has the value.
    async fn set_mode(&mut self, mode: Mode) -> Result<()> {
        let burst = match mode {
            Mode::Unlimited => return Ok(()),
            Mode::Limited => 0,
            Mode::Burst => QUOTA,
        };
        let groups = [&self.limited.pod, &self.limited.container];
        let Some((world, agent)) = &mut self.agent else {
            for group in groups {
                group.set_value(koord_host::Resource::CfsBurst, &burst.to_string())?;
            }
            return Ok(());
        };
        world.patch_node_slo(policy(mode)).await?;
        let end = Instant::now() + TIMEOUT;
        while groups
            .iter()
            .any(|group| group.cfs_burst().ok().flatten() != Some(burst))
        {
            agent.check_running()?;
            if Instant::now() > end {
                bail!(
                    "koordlet has not set cpu.cfs_burst_us to {burst} (--by bench does it itself)"
                );
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Measures one window of load.
    async fn window(&self, mode: Mode, seed: u64) -> Result<BurstRun> {
        let service = match mode {
            Mode::Unlimited => &self.free,
            Mode::Limited | Mode::Burst => &self.limited,
        };
        let sampler = Sampler::start(Targets {
            root: service.container.root().clone(),
            service: Some(service.container.clone()),
            others: Vec::new(),
            batch: Vec::new(),
            best_effort: None,
            counters: PathBuf::new(),
        })?;
        let stat = |group: &Cgroup| Ok::<_, anyhow::Error>(group.cpu_stat()?.unwrap_or_default());
        let (before, used, began) = (
            stat(&service.container)?,
            service.container.cpu_usage()?.unwrap_or(0),
            Instant::now(),
        );
        let options = [
            ("--rate", RATE.to_string()),
            ("--bursts", BURSTS.to_owned()),
            ("--seconds", self.seconds.to_string()),
            ("--seed", (seed + 1).to_string()),
        ];
        let outcome = service.load(&sampler, &options).await;
        let elapsed = began.elapsed().as_secs_f64();
        let after = stat(&service.container)?;
        let used = service
            .container
            .cpu_usage()?
            .unwrap_or(0)
            .saturating_sub(used);
        let cpus = workload::serve::allowed_cpus().len();
        let series = sampler.finish(cpus);
        let outcome = outcome?;
        let steal = series.window(outcome.window_ns).steal;
        let periods = after.nr_periods.saturating_sub(before.nr_periods);
        let throttled = after.nr_throttled.saturating_sub(before.nr_throttled);
        let rejected = if steal > STEAL {
            Some(format!("the hypervisor took {:.1} %", steal * 100.0))
        } else {
            (outcome.realtime && outcome.send_lag_p99_us > SEND_LAG_US)
                .then(|| format!("the generator woke {:.0} µs late", outcome.send_lag_p99_us))
        };
        Ok(BurstRun {
            mode,
            p50_us: outcome.p50_us,
            p90_us: outcome.p90_us,
            p99_us: outcome.p99_us,
            p999_us: outcome.p999_us,
            requests: outcome.requests,
            errors: outcome.errors,
            cpu_cores: used as f64 / 1e9 / elapsed,
            throttled_percent: throttled as f64 * 100.0 / periods.max(1) as f64,
            burst_us: service.container.cfs_burst()?.unwrap_or(0),
            send_lag_p99_us: outcome.send_lag_p99_us,
            steal_percent: steal * 100.0,
            rejected,
        })
    }
}

/// Returns the pod as the kubelet lists it: one container, with or without a limit.
fn pod(index: u32, limit: Option<i64>) -> serde_json::Value {
    let mut pod = objects::pod(index, 1);
    let resources = &mut pod["spec"]["containers"][0]["resources"];
    *resources = json!({"requests": {"cpu": "500m", "memory": "16Mi"}});
    if let Some(limit) = limit {
        resources["limits"] = json!({"cpu": format!("{limit}m")});
    }
    pod
}

/// Returns a CPU burst policy with the burst equal to the quota, the largest value that the kernel accepts.
fn policy(mode: Mode) -> serde_json::Value {
    let policy = match mode {
        Mode::Burst => "cpuBurstOnly",
        Mode::Unlimited | Mode::Limited => "none",
    };
    json!({"cpuBurstStrategy": {"policy": policy, "cpuBurstPercent": 100}})
}

/// Summarizes the runs of all modes.
fn report(args: &Args, runs: Vec<BurstRun>) -> BurstFigures {
    let modes: Vec<BurstSummary> = [Mode::Unlimited, Mode::Limited, Mode::Burst]
        .into_iter()
        .map(|mode| summary(mode, &runs))
        .collect();
    let p99 = |mode: Mode| {
        let summary = modes.iter().find(|summary| summary.mode == mode);
        summary.map_or(0.0, |summary| summary.p99_us)
    };
    let (limited, burst) = (p99(Mode::Limited), p99(Mode::Burst));
    BurstFigures {
        limit_cores: LIMIT as f64 / 1000.0,
        rate: RATE,
        bursts: BURSTS,
        set_by: args.by.clone(),
        p99_lower_percent: (1.0 - burst / limited.max(1.0)) * 100.0,
        rejected: runs.iter().filter(|run| run.rejected.is_some()).count(),
        modes,
        runs,
    }
}

/// Summarizes the runs of a mode. If noise spoiled all of them, all count.
fn summary(mode: Mode, runs: &[BurstRun]) -> BurstSummary {
    let of_mode = || runs.iter().filter(move |run| run.mode == mode);
    let clean = of_mode().any(|run| run.rejected.is_none());
    let counted: Vec<&BurstRun> = of_mode()
        .filter(|run| !clean || run.rejected.is_none())
        .collect();
    let of = |value: fn(&BurstRun) -> f64| median(counted.iter().map(|run| value(run)));
    BurstSummary {
        mode,
        p50_us: of(|run| run.p50_us),
        p90_us: of(|run| run.p90_us),
        p99_us: of(|run| run.p99_us),
        p999_us: of(|run| run.p999_us),
        cpu_cores: of(|run| run.cpu_cores),
        throttled_percent: of(|run| run.throttled_percent),
        p99_us_of_each: counted.iter().map(|run| run.p99_us).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mode: Mode, p99_us: f64, rejected: bool) -> BurstRun {
        BurstRun {
            mode,
            p50_us: 0.0,
            p90_us: 0.0,
            p99_us,
            p999_us: 0.0,
            requests: 1,
            errors: 0,
            cpu_cores: 0.5,
            throttled_percent: 0.0,
            burst_us: 0,
            send_lag_p99_us: 0.0,
            steal_percent: 0.0,
            rejected: rejected.then(|| "noise".to_owned()),
        }
    }

    #[test]
    fn summary_counts_noisy_runs_only_without_clean_ones() {
        let runs = [
            run(Mode::Limited, 10.0, false),
            run(Mode::Limited, 90.0, true),
            run(Mode::Burst, 4.0, true),
        ];
        assert_eq!(summary(Mode::Limited, &runs).p99_us, 10.0);
        assert_eq!(summary(Mode::Burst, &runs).p99_us, 4.0);
        assert_eq!(summary(Mode::Unlimited, &runs).p99_us, 0.0);
    }
}
