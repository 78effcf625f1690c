//! The node around the containers: a cluster with the Node, agents and proxies.

use super::service_thread::ServiceThread;
use crate::local_server::LocalServer;
use anyhow::{Result, bail};
use koord_app::Context;
use koord_host::CgroupPath;
use koord_host::root::Controller;
use koord_runtime_proxy::SkipLabel;
use koord_testkit::testing::Groups;
use koordlet::runtime::{Config, Mode};
use koordlet::states::{Driver, Layout};
use koordlet::{Options, Settings};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NODE: &str = "bench";

/// Histogram of koordlet's answers.
const ANSWERS: &str = "koordlet_runtime_request_duration_milliseconds";

/// Time limit for an agent to be ready for requests.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the cgroup of a batch pod, as a kubelet does.
///
/// # Errors
/// When it cannot be made.
pub(super) fn batch_pod(groups: &Groups, uid: &str) -> Result<CgroupPath> {
    let path = groups
        .path()
        .join(&format!("kubepods/besteffort/pod{uid}"))?;
    groups.root().cgroup(&path).create(&Controller::ALL)?;
    Ok(path)
}

/// An API server with a node that has no pods: agents get the pods from the runtime only.
pub(super) struct NodeCluster {
    local: LocalServer,
}

impl NodeCluster {
    /// Starts an API server with the node.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) async fn start(directory: &Path) -> Result<Self> {
        let local = LocalServer::start(directory).await?;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        local.create("/api/v1/nodes", node).await?;
        Ok(Self { local })
    }

    /// Starts an agent, and waits until it is connected to the runtime or has registered its hook server.
    ///
    /// # Errors
    /// When it ends, or is not ready within [`TIMEOUT`].
    pub(super) async fn agent(&self, groups: &Groups, by: HookCaller<'_>) -> Result<HookAgent> {
        let mut runtime = Config::default();
        match by {
            HookCaller::ByRuntime(socket) => {
                runtime.mode = Mode::Nri;
                socket.clone_into(&mut runtime.nri.socket);
                // A separate directory, so that the registrations of other agents are not removed.
                runtime.server.directory = socket.with_extension("hooks");
            }
            HookCaller::ByProxy(directory, socket) => {
                runtime.mode = Mode::Proxy;
                directory.clone_into(&mut runtime.server.directory);
                socket.clone_into(&mut runtime.server.socket);
                runtime.server.endpoint = socket.display().to_string();
            }
        }
        let options = Options {
            node_name: NODE.to_owned(),
            detect_layout: None,
            settings: Settings {
                layout: Layout::new(Driver::Cgroupfs, groups.path().clone()),
                ..Settings::default()
            },
            report: false,
            runtime,
            ..Options::default()
        };
        let ctx = Context::new();
        let run = koordlet::run(options, self.local.client.clone(), ctx.clone());
        let agent = HookAgent {
            ctx,
            thread: ServiceThread::start("agent", run)?,
        };
        let first_request = async {
            loop {
                let ready = match by {
                    HookCaller::ByRuntime(_) => {
                        agent.metric("koordlet_nri_connected", |row| row.get_gauge().get_value())
                            > 0.0
                    }
                    HookCaller::ByProxy(directory, _) => {
                        directory.join(koord_api::hookserver::KOORDLET).exists()
                    }
                };
                if ready || agent.thread.is_finished() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(TIMEOUT, first_request).await.is_err() || agent.thread.is_finished()
        {
            bail!(
                "no request reached the agent (agent ended: {})",
                agent.thread.is_finished()
            );
        }
        Ok(agent)
    }

    pub(super) fn stop(&self) {
        self.local.stop.cancel();
    }
}

/// Caller of an agent: a runtime at its socket, or a proxy that reads this directory and calls this socket.
#[derive(Debug, Clone, Copy)]
pub(super) enum HookCaller<'a> {
    ByRuntime(&'a Path),
    ByProxy(&'a Path, &'a Path),
}

/// Number of answers, and the sum of their durations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AnswerTimes {
    pub(super) count: f64,
    sum_ms: f64,
}

impl AnswerTimes {
    pub(super) fn add(&mut self, more: Self) {
        self.count += more.count;
        self.sum_ms += more.sum_ms;
    }

    pub(super) fn mean_ms(self) -> f64 {
        self.sum_ms / self.count.max(1.0)
    }
}

/// A running agent.
pub(super) struct HookAgent {
    ctx: Context,
    thread: ServiceThread<Result<(), koordlet::Error>>,
}

impl HookAgent {
    /// Returns the sum over the rows of a metric family.
    fn metric(&self, name: &str, value: fn(&prometheus::proto::Metric) -> f64) -> f64 {
        let families = self.ctx.metrics.gather();
        let named = families.iter().filter(|family| family.name() == name);
        named
            .flat_map(|family| family.get_metric())
            .map(value)
            .sum()
    }

    /// Returns its answers so far.
    pub(super) fn answered(&self) -> AnswerTimes {
        AnswerTimes {
            count: self.metric(ANSWERS, |row| row.get_histogram().get_sample_count() as f64),
            sum_ms: self.metric(ANSWERS, |row| row.get_histogram().get_sample_sum()),
        }
    }

    pub(super) async fn stop(self) {
        self.ctx.shutdown.cancel();
        let _ = self.thread.end().await;
    }
}

/// A running proxy.
pub(super) struct Proxy {
    ctx: Context,
    socket: PathBuf,
    thread: ServiceThread<Result<(), koord_runtime_proxy::RunError>>,
}

impl Proxy {
    /// Serves at `socket`, with the hook servers registered in `hooks`.
    ///
    /// # Errors
    /// When it cannot serve.
    pub(super) async fn start(runtime: &Path, socket: &Path, hooks: &Path) -> Result<Self> {
        let options = koord_runtime_proxy::Options {
            listen: socket.to_owned(),
            runtime: runtime.to_owned(),
            mode: koord_runtime_proxy::Mode::Containerd,
            hooks: hooks.to_owned(),
            hook_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(5),
            skip: SkipLabel {
                key: String::new(),
                value: String::new(),
            },
            metrics_address: None,
        };
        let ctx = Context::new();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let run = koord_runtime_proxy::run(options, ctx.clone(), move || {
            let _ = ready.send(());
        });
        let thread = ServiceThread::start("proxy", run)?;
        if is_ready.await.is_err() {
            thread.end().await??;
            bail!("the proxy ended early");
        }
        Ok(Self {
            ctx,
            socket: socket.to_owned(),
            thread,
        })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) async fn stop(self) {
        self.ctx.shutdown.cancel();
        let _ = self.thread.end().await;
    }
}
