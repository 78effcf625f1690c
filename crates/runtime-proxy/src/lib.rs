//! The runtime proxy: it stands between a kubelet and its container runtime, and asks a hook server
//! (koordlet) before a container starts.
//!
//! ```text
//! kubelet ── CRI ──► proxy ── CRI ──► runtime
//!                      │
//!                      └── runtime hooks ──► koordlet, as its file in hookserver.d says
//! ```
//!
//! `forward` passes every call on as it comes, byte by byte, whatever its service, method and direction.
//! Eight calls are read as well (`call`): what a hook server answers is put into the request (`merge`
//! says how, `wire` does it without touching anything else), and what the runtime did is remembered
//! (`store`). `registration` knows who wants to be asked, `hooks` asks. `server` is the socket, and how
//! one process follows another there without a call being lost. `docker` does the same with the API of a
//! Docker engine.
//!
//! Invariant: no client of Kubernetes, and nothing here decides what a container shall get.

mod args;
mod call;
mod docker;
mod forward;
mod grpc;
mod hooks;
mod hot_restart;
mod merge;
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
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How long a process whose successor serves already may finish its calls: longer than any of them.
const LINGER: Duration = Duration::from_secs(30 * 60);

/// The label by which a pod says that no hook server is to be asked about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// The label's key.
    pub key: String,
    /// And its value.
    pub value: String,
}

/// What the runtime speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The CRI: containerd, CRI-O, cri-dockerd.
    Containerd,
    /// The API of the Docker engine.
    Docker,
}

/// How the proxy runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The socket where the kubelet calls.
    pub listen: PathBuf,
    /// The runtime's socket.
    pub runtime: PathBuf,
    /// What it speaks.
    pub mode: Mode,
    /// The directory where hook servers register.
    pub hooks: PathBuf,
    /// How long a hook server may take for an answer.
    pub hook_timeout: Duration,
    /// How long calls in progress may take when the proxy is asked to stop.
    pub drain_timeout: Duration,
    /// Pods with this label are not asked about.
    pub skip: Skip,
}

/// A command line that makes no sense.
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

/// Why the proxy ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No runtime answers as it should.
    #[error("the runtime at {} does not speak {api}: {problem}", path.display())]
    Runtime {
        /// Its socket.
        path: PathBuf,
        /// What it was asked in.
        api: &'static str,
        /// What it said.
        problem: String,
    },
    /// The socket for the kubelet cannot be had.
    #[error("cannot listen at {}: {error}", path.display())]
    Listen {
        /// Where it was to be.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// No signals.
    #[error("signal handlers: {0}")]
    Signals(std::io::Error),
}

/// Runs until `context` is shut down or a successor took over. `ready` is called when the socket is open.
///
/// # Errors
///
/// When there is no runtime or no socket at the start; a supervisor tries again.
pub async fn run(options: Options, context: Context, ready: impl FnOnce()) -> Result<(), RunError> {
    let following = context.shutdown.child_token();
    let _unfollow = following.clone().drop_guard();
    let (registrations, follow) = registration::follow(options.hooks.clone(), following);
    tokio::spawn(follow);
    let hooks = hooks::Hooks::new(registrations, options.hook_timeout);
    let mut hangup = signal(SignalKind::hangup()).map_err(RunError::Signals)?;
    let server = server::Server::new(protocol(&options, hooks).await?);
    let listener = server::Listener::open(&options.listen).map_err(|error| RunError::Listen {
        path: options.listen.clone(),
        error,
    })?;
    ready();
    hot_restart::announce();
    tracing::info!(socket = %options.listen.display(), runtime = %options.runtime.display(), "serving");
    loop {
        tokio::select! {
            () = server.accept(&listener) => {}
            () = context.shutdown.cancelled() => {
                server.leave(listener).await;
                let finish = server.finish();
                if tokio::time::timeout(options.drain_timeout, finish).await.is_err() {
                    tracing::warn!(timeout = ?options.drain_timeout, "stopping with calls in progress");
                }
                return Ok(());
            }
            _ = hangup.recv() => match hot_restart::start(&listener.socket).await {
                Ok(pid) => {
                    tracing::info!(pid, "the successor serves; finishing the calls in progress");
                    tokio::select! {
                        finished = tokio::time::timeout(LINGER, server.finish()) => drop(finished),
                        () = context.shutdown.cancelled() => {}
                    }
                    return Ok(());
                }
                Err(error) => tracing::error!(error, "no successor; serving on"),
            }
        }
    }
}

/// What is served, once the runtime has said who it is.
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
            tracing::info!(name, version, "runtime");
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
            tracing::info!(name = "docker", version, "runtime");
            server::Protocol::docker(docker)
        }
    })
}
