//! What the agent itself costs: a fixture of pods and containers, and a run of the real loop on it.
//!
//! As root on a machine whose cgroups can be written the fixture is real groups (below one of its
//! own, so nothing of the machine is touched); else a directory with the same files. Without any
//! process in the groups the kernel's work for a read is the least possible, so a node that is busy
//! costs somewhat more.

use crate::audit;
use crate::gates::Gate;
use crate::options::{Options, Settings, Thread};
use crate::shell::start_loop;
use crate::states::node::Amounts;
use crate::states::pod::{Batch, ContainerInfo};
use crate::states::{Driver, Layout, NodeInfo, Phase, PodInfo, Slo, States};
use futures::future::BoxFuture;
use koord_api::PriorityClass;
use koord_api::qos::{KubeQos, QosClass};
use koord_app::Context;
use koord_host::root::Controller;
use koord_host::{CgroupPath, HostError, Root, fake, procfs};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// The size of the fixture and the length of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How many pods; every third is a batch pod.
    pub pods: u32,
    /// Containers per pod.
    pub containers: u32,
    /// How long is measured, after two seconds of warm-up.
    pub seconds: u64,
    /// Never use real groups.
    pub fake: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pods: 110,
            containers: 2,
            seconds: 60,
            fake: false,
        }
    }
}

/// What a run cost. CPU and system calls are of the whole process, so run it in one of its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Pods of the fixture.
    pub pods: u32,
    /// Containers per pod.
    pub containers: u32,
    /// Length of the measured window.
    pub seconds: f64,
    /// Whether the groups were real.
    pub real_cgroups: bool,
    /// CPU time (user and system) per second, in thousandths of a core.
    pub cpu_millicores: f64,
    /// The largest resident set of the process so far (`VmHWM`), in MiB.
    #[serde(rename = "peakRssMiB")]
    pub peak_rss_mib: f64,
    /// Resident set growth over the fixture's own, in MiB: what the loop added.
    pub rss_growth_mib: f64,
    /// `read`- and `write`-like calls per second, as `/proc/self/io` counts them.
    pub syscalls_per_sec: f64,
    /// Kernel files kept open at the end.
    pub open_files: usize,
    /// Ticks in the window.
    pub ticks: u64,
}

/// Why a run was not possible.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The kernel's files.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The fixture.
    #[error("fixture: {0}")]
    Fixture(#[from] std::io::Error),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] crate::shell::Error),
    /// A proc file without the expected line.
    #[error("/proc/self/{file} has no {field}")]
    Proc {
        /// Which file.
        file: &'static str,
        /// Which line.
        field: &'static str,
    },
}

/// The controllers of the fixture's groups.
const CONTROLLERS: [Controller; 4] = [
    Controller::Cpu,
    Controller::Cpuacct,
    Controller::Cpuset,
    Controller::Memory,
];

/// A tree of groups that is removed on drop.
#[derive(Debug)]
pub struct Fixture {
    root: Root,
    top: CgroupPath,
    layout: Layout,
    pods: Vec<PodInfo>,
    fake: Option<fake::Tree>,
}

impl Fixture {
    /// Makes the groups.
    ///
    /// # Errors
    /// When groups or files cannot be made.
    pub fn new(config: &Config) -> Result<Self, BenchError> {
        let real = Root::system()?;
        let usable = !config.fake && koord_host::features::probe(&real)?.writable;
        let (root, fake) = if usable {
            (real, None)
        } else {
            let tree = fake::Tree::hybrid("0-1")?;
            (tree.root().clone(), Some(tree))
        };
        let top = CgroupPath::new(&format!("koord-bench-{}", std::process::id()))?;
        let layout = Layout::new(Driver::Cgroupfs, top.clone());
        let mut fixture = Self {
            root,
            top,
            layout,
            pods: Vec::new(),
            fake,
        };
        for qos in [KubeQos::Guaranteed, KubeQos::Burstable, KubeQos::BestEffort] {
            let group = fixture.layout.qos(qos)?;
            fixture.make(&group)?;
        }
        for index in 0..config.pods {
            let pod = fixture.pod(index, config.containers)?;
            fixture.make(&pod.cgroup)?;
            for group in pod
                .containers
                .iter()
                .filter_map(|container| container.cgroup.as_ref())
            {
                fixture.make(group)?;
            }
            fixture.pods.push(pod);
        }
        Ok(fixture)
    }

    fn make(&self, group: &CgroupPath) -> Result<(), BenchError> {
        match &self.fake {
            Some(tree) => drop(tree.group(group.as_str())?),
            None => drop(self.root.cgroup(group).create(&CONTROLLERS)?),
        }
        Ok(())
    }

    fn pod(&self, index: u32, containers: u32) -> Result<PodInfo, BenchError> {
        let batch = index % 3 == 2;
        let kube_qos = if batch {
            KubeQos::BestEffort
        } else {
            KubeQos::Burstable
        };
        let uid = format!("00000000-0000-4000-8000-{index:012}");
        let cgroup = self.layout.pod(kube_qos, &uid)?;
        let container = |n: u32| -> Result<ContainerInfo, BenchError> {
            let id = format!("koord://{:064x}", u64::from(index) << 8 | u64::from(n));
            Ok(ContainerInfo {
                name: format!("c{n}"),
                cgroup: Some(self.layout.container(&cgroup, &id)?),
                batch: batch.then_some(Batch {
                    cpu_request: Some(500),
                    ..Batch::default()
                }),
                ..ContainerInfo::default()
            })
        };
        let containers = (0..containers).map(container).collect::<Result<_, _>>()?;
        Ok(PodInfo {
            uid,
            namespace: "bench".to_owned(),
            name: format!("pod-{index}"),
            qos: if batch { QosClass::Be } else { QosClass::Ls },
            qos_default: if batch { QosClass::Be } else { QosClass::Ls },
            kube_qos,
            priority_class: if batch {
                PriorityClass::Batch
            } else {
                PriorityClass::Prod
            },
            priority: Some(if batch { 5500 } else { 9500 }),
            phase: Phase::Running,
            cpu_request: 500,
            memory_request: 512 << 20,
            cgroup,
            containers,
            ..PodInfo::default()
        })
    }

    /// Whether the groups are the kernel's.
    #[must_use]
    pub fn is_real(&self) -> bool {
        self.fake.is_none()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if self.fake.is_none()
            && let Err(error) = self.root.cgroup(&self.top).remove()
        {
            tracing::warn!(group = %self.top, %error, "the fixture's groups are left behind");
        }
    }
}

/// Runs the loop on a fixture with default settings (every gate of this slice open, suppression on)
/// and measures this process.
///
/// # Errors
/// When the fixture cannot be made or the loop does not start.
pub fn run(config: &Config) -> BoxFuture<'_, Result<Cost, BenchError>> {
    Box::pin(measure(config))
}

async fn measure(config: &Config) -> Result<Cost, BenchError> {
    let fixture = Fixture::new(config)?;
    let states = Arc::new(States::default());
    states.pods.store(Some(Arc::new(fixture.pods.clone())));
    states.slo.store(Arc::new(Slo {
        known: true,
        enabled: true,
        ..Slo::default()
    }));
    let capacity = Amounts {
        cpu: 64_000,
        memory: 256 << 30,
    };
    states.node.store(Some(Arc::new(NodeInfo {
        name: "bench".to_owned(),
        capacity,
        allocatable: capacity,
        raw_allocatable: capacity,
        ..NodeInfo::default()
    })));
    let mut settings = Settings {
        layout: fixture.layout.clone(),
        ..Settings::default()
    };
    settings.gates.set(Gate::BEMemoryEvict, true);
    // The machine that runs this may be full for its own reasons; nothing is to be evicted here.
    states.slo.store(Arc::new(Slo {
        memory_percent: Some(100),
        known: true,
        enabled: true,
        ..Slo::default()
    }));
    let options = Options {
        node_name: "bench".to_owned(),
        root: Some(fixture.root.clone()),
        detect_layout: None,
        settings,
        audit: audit::Log::default(),
        thread: Thread::Own,
        ..Options::default()
    };
    let ctx = Context::new();
    let before_fixture = status_kib("VmRSS")?;
    let running = start_loop(&options, fixture.root.clone(), states, &ctx)?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (cpu, calls, at, ticks) = (
        cpu_ticks()?,
        io_calls()?,
        std::time::Instant::now(),
        running.ticks(),
    );
    tokio::time::sleep(Duration::from_secs(config.seconds.max(1))).await;
    let seconds = at.elapsed().as_secs_f64();
    let cpu = cpu_ticks()?.saturating_sub(cpu) as f64 / procfs::ticks_per_second().max(1) as f64;
    let cost = Cost {
        pods: config.pods,
        containers: config.containers,
        seconds,
        real_cgroups: fixture.is_real(),
        cpu_millicores: cpu * 1000.0 / seconds,
        peak_rss_mib: status_kib("VmHWM")? as f64 / 1024.0,
        rss_growth_mib: (status_kib("VmRSS")? as f64 - before_fixture as f64) / 1024.0,
        syscalls_per_sec: io_calls()?.saturating_sub(calls) as f64 / seconds,
        open_files: std::fs::read_dir("/proc/self/fd")
            .map(Iterator::count)
            .unwrap_or(0),
        ticks: running.ticks() - ticks,
    };
    ctx.shutdown.cancel();
    running.finished().await;
    Ok(cost)
}

/// User and system time of this process, in clock ticks.
fn cpu_ticks() -> Result<u64, BenchError> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    // The name is in brackets and may contain anything; utime and stime are fields 14 and 15.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok());
    match (next(), next()) {
        (Some(user), Some(system)) => Ok(user + system),
        _ => Err(BenchError::Proc {
            file: "stat",
            field: "utime",
        }),
    }
}

fn io_calls() -> Result<u64, BenchError> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let field = |name: &'static str| {
        field(&text, name).ok_or(BenchError::Proc {
            file: "io",
            field: name,
        })
    };
    Ok(field("syscr")? + field("syscw")?)
}

fn status_kib(name: &'static str) -> Result<u64, BenchError> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    field(&text, name).ok_or(BenchError::Proc {
        file: "status",
        field: name,
    })
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_short_run_on_a_fake_tree() {
        let config = Config {
            pods: 6,
            containers: 1,
            seconds: 1,
            fake: true,
        };
        let cost = run(&config).await.unwrap();
        assert!(!cost.real_cgroups);
        assert!(cost.ticks >= 1 && cost.peak_rss_mib > 1.0, "{cost:?}");
        let json = serde_json::to_value(&cost).unwrap();
        for key in ["cpuMillicores", "peakRssMiB", "syscallsPerSec"] {
            assert!(json.get(key).is_some(), "{key}");
        }
    }
}
