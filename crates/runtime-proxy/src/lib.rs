//! The runtime proxy: it sits between a kubelet and its container runtime, and calls a hook server (koordlet)
//! before a container starts.
//!
//! ```text
//! kubelet ── CRI ──► proxy ── CRI ──► runtime
//!                      │
//!                      └── runtime hooks ──► koordlet, registered by a file in hookserver.d
//! ```
//!
//! `forward` passes all calls through unchanged, whatever their service, method and direction. Eight calls
//! are also decoded (`call`): the response of a hook server is merged into the request (`merge` has the
//! rules, `wire` changes only those fields), and the result of the runtime is stored (`store`).
//! `registration` reads which hook servers are registered, `hooks` calls them. `server` is the listening
//! socket, and `hot_restart` hands it to a new process without losing a call. `docker` does the same for the
//! API of a Docker engine.
//!
//! Invariant: no Kubernetes client, and no decision about what a container gets.

mod args;
mod call;
mod docker;
mod forward;
mod grpc;
mod hooks;
mod hot_restart;
mod merge;
mod metrics;
pub mod program;
mod registration;
mod server;
mod store;
mod wire;

pub use args::Args;
#[cfg(fuzzing)]
pub use call::fuzzed;
#[cfg(fuzzing)]
pub use registration::fuzzed as registered;

use koord_app::Context;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Time for the remaining calls of a process after its replacement has taken over: longer than any call.
const LINGER: Duration = Duration::from_secs(30 * 60);

/// The label that exempts a pod from hooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkipLabel {
    /// The label's key.
    pub key: String,
    /// The label's value.
    pub value: String,
}

/// Protocol of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The CRI: containerd, CRI-O, cri-dockerd.
    Containerd,
    /// The API of the Docker engine.
    Docker,
}

/// Options of the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The socket that the kubelet connects to.
    pub listen: PathBuf,
    /// The runtime's socket.
    pub runtime: PathBuf,
    /// Protocol of the runtime.
    pub mode: Mode,
    /// The directory where hook servers register.
    pub hooks: PathBuf,
    /// Timeout of a hook call.
    pub hook_timeout: Duration,
    /// Time for calls in progress on shutdown.
    pub drain_timeout: Duration,
    /// Pods with this label are exempt from hooks.
    pub skip: SkipLabel,
    /// The address of the server for metrics and health; `None` if there is none.
    pub metrics_address: Option<SocketAddr>,
}

/// An invalid flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}: {problem}")]
pub struct OptionsError {
    flag: String,
    problem: String,
}

impl OptionsError {
    fn flag(flag: &str, problem: impl Into<String>) -> Self {
        Self {
            flag: flag.to_owned(),
            problem: problem.into(),
        }
    }
}

/// An error that stops the proxy.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The runtime does not respond as expected.
    #[error("runtime at {} does not answer requests of {api}: {problem}", path.display())]
    Runtime {
        /// The runtime's socket.
        path: PathBuf,
        /// The expected API.
        api: &'static str,
        /// The runtime's response or the error.
        problem: String,
    },
    /// The socket for the kubelet cannot be created.
    #[error("failed to listen on {}: {error}", path.display())]
    Listen {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// Signal handlers cannot be installed.
    #[error("failed to install signal handlers: {0}")]
    Signals(std::io::Error),
    /// Metrics cannot be registered.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Runs until `context` is shut down or a new process has taken over. `ready` is called when the socket is
/// open.
///
/// # Errors
///
/// There is no runtime or no socket at the start; a supervisor retries.
pub async fn run(options: Options, context: Context, ready: impl FnOnce()) -> Result<(), RunError> {
    let metrics = metrics::ProxyMetrics::register(&context.metrics)?;
    let following = context.shutdown.child_token();
    let _unfollow = following.clone().drop_guard();
    let (count, dir) = (metrics.hook_servers.clone(), options.hooks.clone());
    let (registrations, follow) = registration::follow(dir, count, following);
    tokio::spawn(follow);
    let hooks = hooks::Hooks::new(registrations, options.hook_timeout, metrics.clone());
    let mut hangup = signal(SignalKind::hangup()).map_err(RunError::Signals)?;
    let server = server::Server::new(protocol(&options, hooks).await?, metrics);
    let listener = server::Listener::open(&options.listen).map_err(|error| RunError::Listen {
        path: options.listen.clone(),
        error,
    })?;
    let serving = context.shutdown.child_token();
    let _unserved = serving.clone().drop_guard();
    if let Some(address) = options.metrics_address {
        let registry = context.metrics.clone();
        tokio::spawn(metrics::serve(registry, address, serving.clone()));
    }
    ready();
    hot_restart::announce();
    tracing::info!(socket = %options.listen.display(), runtime = %options.runtime.display(), "runtime proxy started");
    loop {
        tokio::select! {
            () = server.accept(&listener) => {}
            () = context.shutdown.cancelled() => {
                server.stop_listening(listener).await;
                let finish = server.finish();
                if tokio::time::timeout(options.drain_timeout, finish).await.is_err() {
                    tracing::warn!(timeout = ?options.drain_timeout, "stopping with calls in progress");
                }
                return Ok(());
            }
            _ = hangup.recv() => match hot_restart::start(&listener.socket).await {
                Ok(pid) => {
                    tracing::info!(pid, "new process serves, finishing the calls in progress");
                    // The new process waits for the port.
                    serving.cancel();
                    tokio::select! {
                        finished = tokio::time::timeout(LINGER, server.finish()) => drop(finished),
                        () = context.shutdown.cancelled() => {}
                    }
                    return Ok(());
                }
                Err(error) => tracing::error!(error, "failed to start a new process, continuing to serve"),
            }
        }
    }
}

/// Connects to the runtime and returns the protocol to serve.
async fn protocol(options: &Options, hooks: hooks::Hooks) -> Result<server::Protocol, RunError> {
    let unknown = |api, problem| RunError::Runtime {
        path: options.runtime.clone(),
        api,
        problem,
    };
    let skip = options.skip.clone();
    Ok(match options.mode {
        Mode::Containerd => {
            let runtime = store::lookup::Runtime::new(&options.runtime);
            let version = runtime.version().await;
            let version =
                version.map_err(|status| unknown("the CRI v1", status.message().to_owned()));
            let (name, version) = version?;
            tracing::info!(name, version, "connected to the container runtime");
            let decider = call::Decider {
                hooks,
                store: store::Store::default(),
                runtime,
                skip,
            };
            server::Protocol::cri(&options.runtime, decider)
        }
        Mode::Docker => {
            let docker = docker::Docker::new(&options.runtime, hooks, skip);
            let version = docker.version().await;
            let version = version.map_err(|problem| unknown("the Docker API", problem))?;
            tracing::info!(
                name = "docker",
                version,
                "connected to the container runtime"
            );
            server::Protocol::docker(docker)
        }
    })
}
