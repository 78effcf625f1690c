//! `koord bench koordlet`: the cost of the node agent, measured from outside.
//!
//! The agent is a separate process, started with the flags of Koordinator's stock manifest. Its environment
//! is that of a node: an API server over HTTPS with the node's objects, a kubelet that serves pods and
//! configuration over TLS, kubelet-shaped cgroups with a process in every container. All of that is part of
//! this program, so only the agent is in the figures. Koordinator's own koordlet can be measured on the same
//! fixture, in turn with ours.

pub(super) mod agent;
pub(super) mod fixture;
mod kubelet;
pub(super) mod objects;
pub(super) mod world;

use crate::meter::{self, Counters, Window};
use agent::{Active, AgentSettings, Flavour, KoordletAgent, KoordletProgram};
use anyhow::{Context as _, Result, bail};
use fixture::Groups;
use koord_app::console;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use world::World;

/// System calls are counted for at most this long, after the window in which CPU time is: counting
/// them slows them.
const COUNTING: Duration = Duration::from_secs(10);

/// Seconds after which an agent has reported its pods: its report at the start has none, and the next one is a minute
/// later.
const PODS_REPORTED_AFTER: u64 = 65;

/// Flags of `koord bench koordlet`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Number of pods on the node; every third is a batch pod.
    #[arg(long, default_value_t = 110, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pods: u32,
    /// Number of containers per pod.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=50))]
    containers: u32,
    /// Number of threads of the process in each container.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    threads: u32,
    /// Length of the measured window, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Time for which the agent runs before the measured window, in seconds.
    #[arg(long, default_value_t = 15)]
    warmup: u64,
    /// Pressure files (PSI) of the test cgroups: `on` also creates them in the unified tree.
    #[arg(long, default_value = "on", value_parser = ["on", "off"])]
    psi: String,
    /// Let one batch container compute without pause. The agent then watches the services, with samples at
    /// shorter intervals.
    #[arg(long)]
    batch_runs: bool,
    /// Program of the agent [default: the `koordlet` next to this program].
    #[arg(long, value_name = "PATH")]
    koordlet: Option<PathBuf>,
    /// Implementation that `--koordlet` names: this project's, or Koordinator's.
    #[arg(long, default_value = "koord", value_parser = ["koord", "upstream"])]
    flavour: String,
    /// Program of Koordinator's koordlet, to be measured in turn with the other one.
    #[arg(long, value_name = "PATH")]
    beside: Option<PathBuf>,
    /// Number of runs per agent, each as a new process; the median run is reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=99))]
    repeat: u8,
    #[command(flatten)]
    settings: AgentSettings,
    /// Measure for this many minutes, and print the resident set every minute.
    #[arg(long, value_name = "MINUTES")]
    soak: Option<u64>,
    /// Use plain directories instead of real cgroups. No processes run in them.
    #[arg(long)]
    fake: bool,
    /// Keep logs and files of the agents in this directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Cost of one run of one agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KoordletCost {
    /// Origin of the agent.
    flavour: &'static str,
    /// Length of the measured window.
    seconds: f64,
    /// CPU time (user and system, children that were waited for included) per second, in thousandths
    /// of a core.
    cpu_millicores: f64,
    /// The part of it that was spent in the kernel.
    system_millicores: f64,
    /// The largest resident set since its start (`VmHWM`), in MiB.
    #[serde(rename = "peakRssMiB")]
    peak_rss_mib: f64,
    /// The resident set at the end, in MiB.
    #[serde(rename = "rssMiB")]
    rss_mib: f64,
    /// System calls per second.
    syscalls_per_sec: f64,
    /// System calls per second and container of the fixture.
    syscalls_per_container_per_sec: f64,
    /// System calls that are counted, and the method.
    syscalls_counted: &'static str,
    /// Files it had open at the end.
    open_files: usize,
    /// Threads it had at the end.
    threads: u64,
    /// Pods in the last NodeMetric it reported; `None` when it reported none.
    pods_reported: Option<usize>,
    /// Active collectors, as the agent reports them.
    collectors: Vec<String>,
    /// Active strategies, as the agent reports them.
    strategies: Vec<String>,
    /// CPU time of everything else on the machine in the window, in percent of the machine.
    others_percent: f64,
    /// CPU time that the hypervisor stole in the window, in percent of the machine.
    steal_percent: f64,
    /// The resident set every minute, in MiB: with `--soak`.
    #[serde(rename = "rssEveryMinuteMiB", skip_serializing_if = "Vec::is_empty")]
    rss_every_minute_mib: Vec<f64>,
    /// The mean of its last tenth over that of its first, in MiB: with `--soak`.
    #[serde(rename = "growthMiB", skip_serializing_if = "Option::is_none")]
    growth_mib: Option<f64>,
}

/// Koordinator's agent on the same fixture.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct UpstreamCost {
    /// Median run of Koordinator's agent.
    #[serde(flatten)]
    cost: KoordletCost,
    /// Ratio of Koordinator's median CPU time to ours.
    cpu_ratio: f64,
    /// Ratio of Koordinator's median peak resident set to ours.
    rss_ratio: f64,
}

/// Figures of the benchmark. The first level is the median run of the agent under test.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KoordletFigures {
    pods: u32,
    containers: u32,
    psi: bool,
    batch_runs: bool,
    real_cgroups: bool,
    #[serde(flatten)]
    cost: KoordletCost,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<UpstreamCost>,
    /// Costs of all runs, in their order.
    runs: Vec<KoordletCost>,
}

/// Measures.
///
/// # Errors
/// The fixture cannot be made, or an agent does not start or ends early.
pub(super) fn run(args: &Args) -> Result<KoordletFigures> {
    crate::run_until_interrupted(measure(args))
}

/// Runs each agent `--repeat` times in turn, and compares the median runs.
async fn measure(args: &Args) -> Result<KoordletFigures> {
    let mut programs = vec![match &args.koordlet {
        Some(path) if args.flavour == "upstream" => KoordletProgram::new(path, Flavour::Upstream)?,
        Some(path) => KoordletProgram::new(path, Flavour::Koord)?,
        None => KoordletProgram::locate()?,
    }];
    if let Some(path) = &args.beside {
        programs.push(KoordletProgram::new(path, Flavour::Upstream)?);
    }
    let temporary = tempfile::tempdir().context("temporary directory")?;
    let directory = args.keep.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(directory)
        .with_context(|| format!("--keep {}", directory.display()))?;
    let mut groups = Groups::new(args.fake, args.psi == "on", directory)?;
    fixture::fill(&mut groups, args, directory)?;
    let mut costs: Vec<Vec<KoordletCost>> = vec![Vec::new(); programs.len()];
    let mut runs = Vec::new();
    for round in 0..args.repeat {
        for (program, costs) in programs.iter().zip(&mut costs) {
            // Each agent gets a new cluster, so that objects of the other one cost it nothing.
            let work = directory.join(format!("{round}-{}", program.flavour().name()));
            let world = World::start(
                &work,
                objects::pods(args.pods, args.containers),
                objects::node_slo(),
            )
            .await?;
            let agent = KoordletAgent::start(program, &args.settings, &groups, &world, &work)?;
            let cost = watch(args, agent, &world).await?;
            world.stop().await;
            console::warn(format_args!(
                "{}: {:.1} m CPU, {:.1} MiB peak, {:.0} system calls/s",
                cost.flavour, cost.cpu_millicores, cost.peak_rss_mib, cost.syscalls_per_sec
            ));
            runs.push(cost.clone());
            costs.push(cost);
        }
    }
    let mut medians = costs.into_iter().filter_map(median);
    let cost = medians.next().context("nothing was measured")?;
    let beside = medians.next().map(|upstream| UpstreamCost {
        cpu_ratio: upstream.cpu_millicores / cost.cpu_millicores.max(0.001),
        rss_ratio: upstream.peak_rss_mib / cost.peak_rss_mib.max(0.001),
        cost: upstream,
    });
    Ok(KoordletFigures {
        pods: args.pods,
        containers: args.containers,
        psi: args.psi == "on",
        batch_runs: args.batch_runs,
        real_cgroups: groups.is_real(),
        cost,
        beside,
        runs,
    })
}

/// Returns the run whose CPU time is the median.
fn median(mut costs: Vec<KoordletCost>) -> Option<KoordletCost> {
    costs.sort_by(|a, b| a.cpu_millicores.total_cmp(&b.cpu_millicores));
    let middle = costs.len().checked_sub(1)? / 2;
    costs.into_iter().nth(middle)
}

/// Measures a running agent in a window, and stops it.
async fn watch(args: &Args, mut agent: KoordletAgent, world: &World) -> Result<KoordletCost> {
    let pid = agent.pid();
    let pause = async |agent: &mut KoordletAgent, seconds: u64| {
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            agent.check_running()?;
        }
        Ok::<_, anyhow::Error>(())
    };
    pause(&mut agent, args.warmup).await?;
    let window = Window::begin(pid)?;
    let mut rss = Vec::new();
    match args.soak {
        None => pause(&mut agent, args.seconds).await?,
        Some(minutes) => {
            rss.push(Counters::read(pid)?.rss_mib());
            for minute in 1..=minutes {
                pause(&mut agent, 60).await?;
                let now = Counters::read(pid)?.rss_mib();
                console::warn(format_args!("minute {minute}: {now:.2} MiB"));
                rss.push(now);
            }
        }
    }
    let used = window.usage()?;
    let (spent, after) = (&used.spent, &used.process);
    let window = COUNTING.min(Duration::from_secs(args.seconds));
    let all = tokio::task::spawn_blocking(move || meter::all_system_calls(pid, window)).await?;
    let syscalls_per_sec = all.unwrap_or(spent.reads_and_writes_per_sec);
    let Active {
        collectors,
        strategies,
    } = agent.active().await?;
    let pods_reported = world.pods_reported().await?;
    if pods_reported == Some(0) && args.warmup >= PODS_REPORTED_AFTER {
        bail!(
            "the agent reports none of the kubelet's {} pods: its cost is not that of a node that has them",
            args.pods
        );
    }
    let containers = f64::from(args.pods) * f64::from(args.containers);
    let cost = KoordletCost {
        flavour: agent.flavour().name(),
        seconds: spent.seconds,
        cpu_millicores: spent.cpu_millicores,
        system_millicores: spent.system_millicores,
        peak_rss_mib: after.peak_rss_mib(),
        rss_mib: after.rss_mib(),
        syscalls_per_sec,
        syscalls_per_container_per_sec: syscalls_per_sec / containers,
        syscalls_counted: if all.is_some() {
            "all, by perf's raw_syscalls:sys_enter"
        } else {
            "read- and write-like ones, by /proc/PID/io"
        },
        open_files: after.open_files,
        threads: after.threads,
        pods_reported,
        collectors,
        strategies,
        others_percent: used.others_percent,
        steal_percent: used.steal_percent,
        growth_mib: growth(&rss),
        rss_every_minute_mib: rss,
    };
    agent.stop().await;
    Ok(cost)
}

/// Returns the mean of the last tenth of a series less that of the first.
fn growth(series: &[f64]) -> Option<f64> {
    let part = (series.len() / 10).max(1);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    let (first, last) = (series.get(..part)?, series.get(series.len() - part..)?);
    Some(mean(last) - mean(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_compares_the_ends() {
        assert_eq!(growth(&[]), None);
        assert_eq!(growth(&[5.0]), Some(0.0));
        let series: Vec<f64> = (0..20).map(f64::from).collect();
        // 18.5 - 0.5: two values at each end.
        assert_eq!(growth(&series), Some(18.0));
    }
}
