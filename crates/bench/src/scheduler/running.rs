//! The scheduler under test: ours in this process, or any program that takes a kubeconfig.

use crate::engine::{self as bench, ApiObjects};
use crate::meter;
use crate::process::Process;
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use koord_app::Context;
use koord_kube::api::PostParams;
use koord_kube::{Api, Client};
use koord_scheduler::DebugHandle;
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Time limit for a scheduler to start.
const START: Duration = Duration::from_secs(60);
/// Interval between two checks whether it has started.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const PROBE: &str = "probe";

/// A scheduler that runs.
pub(super) enum SchedulerHandle {
    Inside {
        task: JoinHandle<Result<(), koord_scheduler::Error>>,
        context: Context,
        debug: DebugHandle,
    },
    Outside(Process),
}

impl SchedulerHandle {
    /// Starts our scheduler as a task.
    pub(super) fn inside(options: &bench::Options, client: Client) -> Self {
        let context = Context::new();
        // Without a configuration file every koord plugin is on; this configuration only has
        // kube-scheduler's.
        let plain =
            || koord_scheduler::config::Configuration::koord(&["koord-scheduler".to_owned()]);
        let scheduler = koord_scheduler::Options {
            leader_elect: false,
            config: (!options.koord).then(plain),
            ..koord_scheduler::Options::new(koord_plugins::registry())
        };
        let debug = scheduler.debug.clone();
        let task = tokio::spawn(koord_scheduler::run(scheduler, client, context.clone()));
        Self::Inside {
            task,
            context,
            debug,
        }
    }

    /// Starts another program; `{kubeconfig}` in its arguments is replaced.
    pub(super) fn outside(command: &str, kubeconfig: &Path) -> Result<Self> {
        let kubeconfig = kubeconfig.to_string_lossy();
        let mut arguments = command
            .split_whitespace()
            .map(|word| word.replace("{kubeconfig}", &kubeconfig));
        let program = arguments.next().context("--scheduler names no program")?;
        let process = Process::start("scheduler", Command::new(&program).args(arguments));
        Ok(Self::Outside(process.context("--scheduler")?))
    }

    /// Waits until it places pods. Another program is tested with a pod of its own.
    pub(super) async fn ready(&mut self, client: &Client, objects: &ApiObjects) -> Result<()> {
        let until = Instant::now() + START;
        match self {
            Self::Inside { task, debug, .. } => {
                while !debug.is_ready() {
                    if task.is_finished() || Instant::now() > until {
                        bail!("the scheduler ended or did not become ready within {START:?}");
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
            Self::Outside(_) => {
                let name = objects.pods.first().and_then(|pod| {
                    let spec = pod.spec.as_ref()?;
                    spec.scheduler_name.clone()
                });
                let probe: Pod = serde_json::from_value(json!({
                    "metadata": {"name": PROBE},
                    "spec": {"schedulerName": name, "containers": [{"name": "c", "image": "none"}]}
                }))?;
                let api: Api<Pod> = Api::namespaced(client.clone(), bench::NAMESPACE);
                api.create(&PostParams::default(), &probe).await?;
                let placed = |pod: &Pod| pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
                while !placed(&api.get(PROBE).await?) {
                    if Instant::now() > until {
                        bail!("--scheduler places no pod");
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                api.delete(PROBE, &Default::default()).await?;
            }
        }
        Ok(())
    }

    /// Returns the CPU time so far of the scheduler's process, which for ours is this one.
    pub(super) fn cpu(&self) -> Duration {
        match self {
            Self::Inside { .. } => meter::cpu_time(),
            Self::Outside(process) => meter::cpu_time_of(process.pid()),
        }
    }

    /// Returns the memory of the scheduler's process, which for ours is this one.
    pub(super) fn rss_mib(&self) -> f64 {
        match self {
            Self::Inside { .. } => meter::rss_mib(),
            Self::Outside(process) => meter::rss_mib_of(process.pid()),
        }
    }

    pub(super) async fn stop(self) {
        if let Self::Inside { task, context, .. } = self {
            context.shutdown.cancel();
            let _ = task.await;
        }
    }
}
