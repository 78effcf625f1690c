//! `koord bench levers`: the effect of each means to throttle batch work on the demo's service, with each
//! kind of neighbour.
//!
//! The cgroups are those of a kubelet, made by this program; no agent and no API server run. Every window
//! starts new batch work, pulls one lever, and releases it again; the windows of a repeat come in random
//! order. This is the evidence for the set and the order of the pressure guard's levers.

mod report;

use super::koordlet::fixture::{Groups, Shape};
use super::service::Service;
use anyhow::{Context as _, Result, bail};
use koord_app::console;
use koord_host::{Cgroup, CpuSet, Resource, sched};
use koord_workload::sampler::{Sampler, Targets, Window};
use koord_workload::scenario::{self, Scenario};
use koord_workload::{self as workload, load};
use koord_workload::{noise, pods};
use report::LeverRun;
pub(super) use report::{LeverFigures, text};
use serde::Serialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// CPU time of a request that is not its own work, in microseconds.
const OVERHEAD_US: f64 = 25.0;
/// CPU request of the service, in milli-cores, which is its weight.
const SERVICE_SHARES: i64 = 512;
/// CPU shares that the kubelet gives best-effort cgroups.
const BATCH_SHARES: i64 = 2;
/// Koordinator's default cap of total CPU usage, as a part of the machine.
const CAP: f64 = 0.65;
/// CFS period, in microseconds.
const PERIOD_US: f64 = 100_000.0;
/// Time slice of the service's threads: the shortest that the kernel accepts.
const SLICE: Duration = Duration::from_micros(100);

/// Kinds of neighbours, and the scenarios of the demo that they are from.
const NEIGHBOURS: [(&str, &str); 5] = [
    ("compute", "cpu"),
    ("threads", "threads"),
    ("fork", "fork"),
    ("fsync", "io"),
    ("stream", "bandwidth"),
];

/// Flags of `koord bench levers`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Length of a measured window, in seconds.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Warm-up before each window, not counted, in seconds.
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    warmup: f64,
    /// Number of repeats of all windows.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100))]
    repeat: u8,
    /// Kinds of batch work next to the service, comma-separated. The service is also measured alone.
    #[arg(long, value_delimiter = ',', default_values_t = NEIGHBOURS.map(|(name, _)| name.to_owned()),
          value_parser = NEIGHBOURS.map(|(name, _)| name))]
    neighbour: Vec<String>,
    /// Levers to measure one at a time, in addition to plain CPU shares; comma-separated.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Lever::OTHERS)]
    lever: Vec<Lever>,
    /// Seed of the random order of the windows.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds".to_owned())?;
    match (0.1..=600.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("expected 0.1 to 600 seconds".to_owned()),
    }
}

/// A means to throttle batch work, in addition to the kubelet's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Lever {
    /// Only the kubelet's weight.
    Shares,
    /// `cpu.idle` on the cgroups of batch pods.
    IdlePods,
    /// `cpu.idle` on the cgroup of the BestEffort class.
    IdleClass,
    /// Batch work on one CPU.
    Partition,
    /// Batch work gets 65 % of the machine less the service's usage.
    Quota,
    /// The service's threads set the shortest time slice.
    Slice,
}

impl Lever {
    const OTHERS: [Self; 5] = [
        Self::IdlePods,
        Self::IdleClass,
        Self::Partition,
        Self::Quota,
        Self::Slice,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Shares => "shares 2 (plain Kubernetes)",
            Self::IdlePods => "+ cpu.idle on pods",
            Self::IdleClass => "+ cpu.idle on the class",
            Self::Partition => "+ one CPU",
            Self::Quota => "+ quota, 65 % in all",
            Self::Slice => "+ slices of 0.1 ms for the service",
        }
    }
}

impl std::fmt::Display for Lever {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = clap::ValueEnum::to_possible_value(self);
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// Configuration measured in one window of every repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    /// Index of the service: the plain one or the one that walks through a table.
    service: usize,
    /// Index into [`NEIGHBOURS`]; `None` when the service is alone.
    neighbour: Option<usize>,
    lever: Lever,
}

/// Measures.
///
/// # Errors
/// A cgroup cannot be created, or the kernel refuses a value of a feature that it offers.
pub(super) fn run(args: &Args) -> Result<LeverFigures> {
    koord_app::daemon::runtime()?.block_on(measure(args))
}

/// Measures every cell in random order, `--repeat` times.
async fn measure(args: &Args) -> Result<LeverFigures> {
    let temporary = tempfile::tempdir().context("temporary directory")?;
    let mut scene = LeverScene::start(args, temporary.path()).await?;
    let mut absent = Vec::new();
    let mut levers = vec![Lever::Shares];
    for lever in &args.lever {
        match scene.missing_reason(*lever)? {
            Some(reason) => absent.push((*lever, reason)),
            None if levers.contains(lever) => {}
            None => levers.push(*lever),
        }
    }
    let cells = cells(&args.neighbour, &levers);
    let mut runs = Vec::new();
    'all: for repeat in 0..u64::from(args.repeat) {
        let mut order = cells.clone();
        fastrand::Rng::with_seed(args.seed.wrapping_add(repeat)).shuffle(&mut order);
        for cell in order {
            let run = tokio::select! {
                run = scene.window(cell, repeat) => run?,
                _ = tokio::signal::ctrl_c() => {
                    console::warn("interrupted: what was measured until now");
                    break 'all;
                }
            };
            console::warn(format_args!(
                "{} {}: p99 {:.0} µs, {:.0} batch operations a second{}",
                run.neighbour,
                run.lever,
                run.p99_us,
                run.batch_per_s,
                run.rejected
                    .as_ref()
                    .map_or_else(String::new, |reason| format!("; does not count: {reason}"))
            ));
            runs.push(run);
        }
    }
    Ok(LeverFigures::new(&scene.machine(), args, &absent, runs))
}

/// Returns each neighbour with each lever, and each service alone.
fn cells(names: &[String], levers: &[Lever]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (index, (name, _)) in NEIGHBOURS.iter().enumerate() {
        if !names.iter().any(|requested| requested == name) {
            continue;
        }
        let service = usize::from(scenario(index).is_some_and(walks_table));
        let alone = Cell {
            service,
            neighbour: None,
            lever: Lever::Shares,
        };
        if !cells.contains(&alone) {
            cells.push(alone);
        }
        cells.extend(levers.iter().map(|lever| Cell {
            service,
            neighbour: Some(index),
            lever: *lever,
        }));
    }
    cells
}

fn scenario(neighbour: usize) -> Option<&'static Scenario> {
    let (_, name) = NEIGHBOURS.get(neighbour)?;
    scenario::ALL.iter().find(|scenario| scenario.name == *name)
}

/// Returns true if the scenario's service walks through a table.
fn walks_table(scenario: &Scenario) -> bool {
    scenario.service.table.0 > 0
}

/// The node of the measurement: cgroups, services and batch work.
struct LeverScene {
    groups: Groups,
    /// The plain service and the one that walks, with their load in requests per second.
    services: Vec<(Service, f64)>,
    class: Cgroup,
    /// Groups of batch pods and of their containers.
    batch: Vec<(Cgroup, Cgroup)>,
    cpus: CpuSet,
    /// CPU time of batch work under the cap, in microseconds per period.
    quota: i64,
    work: PathBuf,
    windows: u32,
    seconds: f64,
    warmup: f64,
}

impl LeverScene {
    /// Creates the cgroups and starts the services.
    async fn start(args: &Args, directory: &Path) -> Result<Self> {
        let mut groups = Groups::new(false, true, directory)?;
        if !groups.is_real() {
            bail!("a lever needs root and writable cgroups");
        }
        groups.outweigh_others()?;
        let work = directory.join("levers");
        std::fs::create_dir_all(&work)?;
        let steps_per_us = tokio::task::spawn_blocking(workload::steps_per_us).await?;
        let allowed = workload::serve::allowed_cpus();
        let count = allowed.len();
        groups
            .make("kubepods/burstable")?
            .set_cpu_shares(SERVICE_SHARES)?;
        let class = groups.make("kubepods/besteffort")?;
        class.set_cpu_shares(BATCH_SHARES)?;
        let mut batch = Vec::new();
        for index in (10..).take(count) {
            let name = format!("kubepods/besteffort/pod{}", Shape::uid(index));
            let pod = groups.make(&name)?;
            let container = groups.make(&format!("{name}/{}", Shape::container(index, 0)))?;
            pod.set_cpu_shares(BATCH_SHARES)?;
            container.set_cpu_shares(BATCH_SHARES)?;
            batch.push((pod, container));
        }
        let mut services = Vec::new();
        let mut share = 0.0_f64;
        for (index, name) in (0..).zip(["cpu", "bandwidth"]) {
            let scenario = scenario::ALL.iter().find(|scenario| scenario.name == name);
            let scenario = scenario.context("no such scenario of the demo")?;
            let (table, walk) = scenario.service.table;
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a step count"
            )]
            let steps = (steps_per_us * (scenario.service.us - OVERHEAD_US)) as u64;
            let options = [
                ("--steps", steps),
                ("--workers", count as u64),
                ("--table-mib", u64::from(table)),
                ("--walk", u64::from(walk)),
            ];
            let options: Vec<String> = options
                .iter()
                .flat_map(|(name, value)| [(*name).to_owned(), value.to_string()])
                .collect();
            let service = Service::start(&mut groups, index, &options, &work).await?;
            let rate = scenario.load.share * count as f64 * 1e6 / scenario.service.us;
            share = share.max(scenario.load.share);
            services.push((service, rate));
        }
        #[allow(clippy::cast_possible_truncation, reason = "microseconds of a period")]
        let quota = ((CAP - share) * count as f64 * PERIOD_US) as i64;
        let cpus = allowed.iter().filter_map(|cpu| u32::try_from(*cpu).ok());
        Ok(Self {
            groups,
            services,
            class,
            batch,
            cpus: cpus.collect(),
            quota,
            work,
            windows: 0,
            seconds: args.seconds,
            warmup: args.warmup,
        })
    }

    fn machine(&self) -> report::MachineInfo {
        let root = self.class.root();
        let release = root.read(&root.proc("sys/kernel/osrelease"));
        report::MachineInfo {
            cpus: self.cpus.iter().count(),
            kernel: release.ok().flatten().unwrap_or_default().trim().to_owned(),
            cgroup: root.version().as_str(),
        }
    }

    /// Returns the reason why `lever` cannot be applied on this machine; `None` if it can.
    fn missing_reason(&self, lever: Lever) -> Result<Option<&'static str>> {
        let reason = match lever {
            Lever::Shares | Lever::Quota => None,
            Lever::IdlePods | Lever::IdleClass => {
                (!self.class.supports(Resource::CpuIdle)).then_some("this kernel has no cpu.idle")
            }
            Lever::Partition if self.cpus.iter().count() < 2 => Some("there is one CPU"),
            Lever::Partition => (!self.class.supports(Resource::CpusetCpus))
                .then_some("groups have no CPU sets here"),
            Lever::Slice => {
                self.set(0, Lever::Slice, true)?;
                let threads = self.service(0)?.container.tasks()?;
                let thread = threads.first().context("the service has no threads")?;
                let slice = sched::slice(sched::ThreadTarget::Thread(*thread))?;
                self.set(0, Lever::Slice, false)?;
                (slice != Some(SLICE)).then_some("this kernel takes no slices (it is before 6.12)")
            }
        };
        Ok(reason)
    }

    fn service(&self, index: usize) -> Result<&Service> {
        let (service, _) = self.services.get(index).context("no such service")?;
        Ok(service)
    }

    /// Pulls a lever or releases it.
    fn set(&self, service: usize, lever: Lever, pulled: bool) -> Result<()> {
        let idle = |group: &Cgroup| -> Result<()> {
            group.set_cpu_idle(pulled)?;
            if !pulled {
                // The kernel resets a cgroup that is not idle any more to the default weight.
                group.set_cpu_shares(BATCH_SHARES)?;
            }
            Ok(())
        };
        match lever {
            Lever::Shares => {}
            Lever::IdlePods => {
                for (pod, _) in &self.batch {
                    idle(pod)?;
                }
            }
            Lever::IdleClass => idle(&self.class)?,
            Lever::Partition => {
                let last: CpuSet = self.cpus.iter().last().into_iter().collect();
                let cpus = if pulled { &last } else { &self.cpus };
                // A child cgroup may never have CPUs that its parent does not have.
                let containers = self.batch.iter().map(|(_, container)| container);
                let pods = self.batch.iter().map(|(pod, _)| pod);
                let mut groups: Vec<&Cgroup> = containers.chain(pods).collect();
                groups.push(&self.class);
                if !pulled {
                    groups.reverse();
                }
                for group in groups {
                    group.set_cpuset(cpus)?;
                }
            }
            Lever::Quota => {
                let quota = if pulled { self.quota } else { -1 };
                self.class.set_cfs_quota(quota)?;
            }
            Lever::Slice => {
                for thread in self.service(service)?.container.tasks()? {
                    let slice = pulled.then_some(SLICE);
                    sched::set_slice(sched::ThreadTarget::Thread(thread), slice)?;
                }
            }
        }
        Ok(())
    }

    /// Measures one window: starts batch work, pulls the lever, and resets everything afterwards.
    async fn window(&mut self, cell: Cell, repeat: u64) -> Result<LeverRun> {
        self.windows += 1;
        let counters = self.work.join(format!("counters-{}", self.windows));
        std::fs::create_dir_all(&counters)?;
        self.set(cell.service, cell.lever, true)?;
        if let Some(neighbour) = cell.neighbour {
            self.start_batch(neighbour, &counters)?;
        }
        let loaded = self.load(cell, repeat, &counters).await;
        let class = self.class.clone();
        self.groups.stop(&class)?;
        self.set(cell.service, cell.lever, false)?;
        std::fs::remove_dir_all(&counters).context("counters")?;
        let (outcome, window) = loaded?;
        let scenario =
            scenario(cell.neighbour.unwrap_or(0)).context("no such scenario of the demo")?;
        let name = |index: usize| NEIGHBOURS.get(index).map_or("", |(name, _)| *name);
        Ok(LeverRun {
            neighbour: match (cell.neighbour, cell.service) {
                (Some(index), _) => name(index),
                (None, 0) => report::ALONE,
                (None, _) => report::ALONE_WALKING,
            },
            lever: cell.lever,
            repeat,
            p50_us: outcome.p50_us,
            p99_us: outcome.p99_us,
            p999_us: outcome.p999_us,
            requests: outcome.requests,
            errors: outcome.errors,
            batch_per_s: window.be_ops_per_s,
            cpu_utilization: window.cpu_utilization,
            steal: window.steal,
            strangers: window.strangers,
            send_lag_p99_us: outcome.send_lag_p99_us,
            rejected: noise::rejection(&window, &outcome, scenario.strangers),
        })
    }

    /// Starts batch work in every batch container.
    fn start_batch(&mut self, neighbour: usize, counters: &Path) -> Result<()> {
        let scenario = scenario(neighbour).context("no such scenario of the demo")?;
        let scratch = self.work.join("scratch");
        for (number, (_, container)) in self.batch.iter().enumerate() {
            let counter = counters.join(number.to_string());
            let args = pods::workload(scenario.neighbour, &scratch, &counter);
            let args = args.context("a neighbour that is not a program of the demo")?;
            let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
            self.groups.run(container, &args)?;
        }
        Ok(())
    }

    /// Generates load on the service of a cell, and measures the machine meanwhile.
    async fn load(
        &self,
        cell: Cell,
        repeat: u64,
        counters: &Path,
    ) -> Result<(load::Outcome, Window)> {
        let (service, rate) = self.services.get(cell.service).context("no such service")?;
        let all = self.services.iter().enumerate();
        let others = all.filter(|(index, _)| *index != cell.service);
        let sampler = Sampler::start(Targets {
            root: service.container.root().clone(),
            service: Some(service.container.clone()),
            others: others
                .map(|(_, (other, _))| other.container.clone())
                .collect(),
            batch: vec![self.class.clone()],
            best_effort: None,
            counters: counters.to_path_buf(),
        })?;
        let options = [
            ("--rate", rate.to_string()),
            ("--seconds", self.seconds.to_string()),
            ("--warmup", self.warmup.to_string()),
            ("--seed", (repeat + 1).to_string()),
        ];
        let outcome = service.load(&sampler, &options).await;
        let series = sampler.finish(self.cpus.iter().count());
        let outcome = outcome?;
        let window = series.window(outcome.window_ns);
        Ok((outcome, window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_pair_neighbours_with_levers_and_services_alone() {
        let names = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
        let levers = [Lever::Shares, Lever::Quota];
        let chosen = cells(&names(&["fork", "stream"]), &levers);
        let of = |neighbour| chosen.iter().filter(|c| c.neighbour == neighbour).count();
        // Each of the two services is alone in one cell, and each neighbour has two levers.
        assert_eq!((of(None), of(Some(2)), of(Some(4))), (2, 2, 2));
        assert!(
            chosen
                .iter()
                .all(|c| (c.service == 1) == (c.neighbour == Some(4)) || c.neighbour.is_none())
        );
        assert_eq!(cells(&names(&["fork", "compute"]), &levers).len(), 5);
    }

    #[test]
    fn neighbours_are_programs_of_the_demo() {
        for (index, (name, _)) in NEIGHBOURS.iter().enumerate() {
            let scenario = scenario(index).unwrap_or_else(|| panic!("{name}"));
            let path = Path::new("/x");
            assert!(pods::workload(scenario.neighbour, path, path).is_some());
        }
    }
}
