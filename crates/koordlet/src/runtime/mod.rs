//! Sets the values of hooks through the container runtime, before processes start.
//!
//! One [`Mode`] is in force. With [`Mode::Nri`] this agent is a plugin of the runtime; with [`Mode::Proxy`]
//! it is the hook server that koord-runtime-proxy calls; with [`Mode::Standalone`] there are no requests, and
//! values are set in the agent's next tick. In every mode the strategies of [`crate::qos`] reconcile the
//! values later.
//!
//! Responses are computed from the current pods and [`Rules`](crate::hooks::Rules), by the functions that the
//! reconciler uses. Missing values of a new pod are taken from the request. No request is sent to
//! the API server or the kubelet. To avoid conflicting writers, a running container gets only those values that the
//! runtime is about to change, CPU lists of batch pods are left to CPUSuppress, and of several agents of a
//! machine only one adjusts containers, in any mode (module `hook_lock`).

mod dry_run;
#[cfg(fuzzing)]
pub mod fuzzed;
mod hook_lock;
mod nri;
mod plugin_conflicts;
mod registration;
mod request;
mod responder;
mod server;
#[cfg(test)]
mod tests;

use crate::gates::{Gate, Gates};
use crate::hooks::RuleStore;
use crate::metrics::Metrics;
use crate::node_events::Warnings;
use crate::settings::Settings;
use crate::states::States;
use hook_lock::HookLock;
use koord_host::Root;
use koord_kube::events::Severity;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub(crate) use dry_run::AdjustmentAudit;
pub use koord_api::hookserver::{Policy, UnknownPolicy};
pub(crate) use plugin_conflicts::PluginConflicts;
pub(crate) use responder::STAGES;

/// Integration with the container runtime at container creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The runtime calls this agent as its NRI plugin.
    Nri,
    /// koord-runtime-proxy calls this agent as its hook server.
    Proxy,
    /// The runtime is not involved: values are set in the next tick after the creation.
    #[default]
    Standalone,
}

/// An unknown mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("runtime-hooks-mode must be nri, proxy or standalone, got {0:?}")]
pub struct UnknownHooksMode(String);

impl FromStr for Mode {
    type Err = UnknownHooksMode;

    fn from_str(text: &str) -> Result<Self, UnknownHooksMode> {
        match text {
            "nri" => Ok(Self::Nri),
            "proxy" => Ok(Self::Proxy),
            "standalone" => Ok(Self::Standalone),
            other => Err(UnknownHooksMode(other.to_owned())),
        }
    }
}

impl Mode {
    /// Returns the mode's name in the flag.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nri => "nri",
            Self::Proxy => "proxy",
            Self::Standalone => "standalone",
        }
    }
}

/// Settings of the integration with the container runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Integration mode.
    pub mode: Mode,
    /// Failure policy for a container whose hook fails.
    pub policy: Policy,
    /// Upstream's names of disabled stages.
    pub disabled: Vec<String>,
    /// The NRI plugin.
    pub nri: Nri,
    /// The hook server.
    pub server: Server,
}

/// Settings of the NRI plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Nri {
    /// Socket of the runtime.
    pub socket: PathBuf,
    /// Name of the plugin.
    pub name: String,
    /// Two digits that order the plugins.
    pub index: String,
    /// Timeout of each step of a connection, at least 5 s.
    pub connect_within: Duration,
    /// Delay before the second attempt; doubled for each further one.
    pub backoff: Duration,
    /// Maximum delay between two attempts.
    pub backoff_cap: Duration,
}

/// Settings of the hook server.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Socket that the server listens on.
    pub socket: PathBuf,
    /// Path at which the proxy finds [`Self::socket`].
    pub endpoint: String,
    /// Failure policy of the proxy for requests without a response.
    pub policy: Policy,
    /// Directory of registrations, which the proxy reads.
    pub directory: PathBuf,
}

/// Maximum delay between two attempts to reach the runtime.
pub const BACKOFF_CAP: Duration = Duration::from_secs(30);

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            policy: Policy::Ignore,
            disabled: Vec::new(),
            nri: Nri {
                socket: koord_rpc::nri::SOCKET.into(),
                name: "koordlet_nri".to_owned(),
                index: "00".to_owned(),
                connect_within: Duration::from_secs(6),
                backoff: Duration::from_secs(1),
                backoff_cap: BACKOFF_CAP,
            },
            server: Server {
                socket: "/var/run/koordlet/koordlet.sock".into(),
                endpoint: "/var/run/koordlet/koordlet.sock".to_owned(),
                policy: Policy::Ignore,
                directory: koord_api::hookserver::DIRECTORY.into(),
            },
        }
    }
}

/// Inputs of responses to the runtime.
#[derive(Debug, Clone)]
pub(crate) struct HookContext {
    pub(crate) states: Arc<States>,
    pub(crate) rules: RuleStore,
    pub(crate) settings: Settings,
    pub(crate) root: Root,
    pub(crate) metrics: Metrics,
    pub(crate) warnings: Arc<Warnings>,
    /// Records adjustments instead of making them; `None` unless this is a dry run.
    pub(crate) dry_run: Option<AdjustmentAudit>,
}

/// Warns about open gates that are not fully supported in this mode.
fn warn_unsupported_gates(mode: Mode, gates: &Gates) {
    let lost = match mode {
        Mode::Nri => return,
        Mode::Proxy => "mounts and device files are not supported by the proxy's hooks",
        Mode::Standalone => "environment, mounts and device files can be set at creation only",
    };
    for gate in [Gate::GPUEnvInject, Gate::RDMADeviceInject] {
        if gates.is_on(gate) {
            tracing::warn!(
                gate = gate.name(),
                mode = mode.name(),
                lost,
                "feature gate only partly supported in this mode"
            );
        }
    }
}

/// Reports that another agent adjusts containers.
fn warn_other_agent(config: &Config, ctx: &HookContext) {
    let (mode, directory) = (config.mode.name(), config.server.directory.display());
    tracing::warn!(
        mode,
        %directory,
        "another koordlet adjusts containers, waiting until it ends"
    );
    let message = format!(
        "another koordlet of this machine gives containers their values, and has {directory} \
         locked: this one, in mode {mode}, waits until it has gone"
    );
    let warnings = &ctx.warnings;
    warnings.record(Severity::Warning, "RuntimeHooksElsewhere", &message);
}

/// Starts the integration that `config` selects, until `shutdown`. Returns the conflict detector, which must
/// be updated with each new list of pods.
pub(crate) fn start(
    config: &Config,
    ctx: HookContext,
    shutdown: CancellationToken,
) -> Option<PluginConflicts> {
    tracing::info!(mode = config.mode.name(), "runtime hooks started");
    warn_unsupported_gates(config.mode, &ctx.settings.gates);
    let (mode, directory) = (config.mode, config.server.directory.clone());
    if ctx.dry_run.is_some() {
        // Without the lock and the registration, which are those of the agent that adjusts containers.
        start_dry_run(config, ctx, shutdown);
        return None;
    }
    let lock = HookLock::acquire(&directory, mode != Mode::Standalone);
    if lock.is_held_by_other() {
        if mode == Mode::Standalone {
            // The registration is that of the other agent, not of an earlier run.
            return None;
        }
        warn_other_agent(config, &ctx);
    } else if mode != Mode::Proxy {
        registration::remove(&directory);
    }
    if mode == Mode::Standalone {
        return None;
    }
    let own = format!("{}-{}", config.nri.index, config.nri.name);
    let conflicts = PluginConflicts::new(own, ctx.warnings.clone(), ctx.metrics.clone());
    let stages = responder::ActiveStages::new(&config.disabled, &ctx.settings.gates);
    let responder = Arc::new(responder::HookResponder::new(config.policy, stages, ctx));
    let config = config.clone();
    tokio::spawn(async move {
        let waits = lock.is_held_by_other();
        let Some(_lock) = lock.wait(&directory, &shutdown).await else {
            return;
        };
        if waits {
            tracing::info!(mode = mode.name(), "acquired the runtime hook lock");
        }
        match mode {
            Mode::Nri => {
                if waits {
                    registration::remove(&directory);
                }
                nri::run(config.nri, directory, responder, shutdown).await;
            }
            Mode::Proxy => server::run(config.server, responder, shutdown).await,
            Mode::Standalone => {}
        }
    });
    (mode == Mode::Nri).then_some(conflicts)
}

/// Starts a plugin of the runtime that adjusts nothing. The runtime's proxy has one hook server, so a dry run
/// cannot be called by it.
fn start_dry_run(config: &Config, ctx: HookContext, shutdown: CancellationToken) {
    if config.mode != Mode::Nri {
        return;
    }
    let stages = responder::ActiveStages::new(&config.disabled, &ctx.settings.gates);
    // A failure must not stop a container.
    let responder = Arc::new(responder::HookResponder::new(Policy::Ignore, stages, ctx));
    let mut nri = config.nri.clone();
    nri.name.push_str("_dry_run");
    let directory = config.server.directory.clone();
    tokio::spawn(nri::run(nri, directory, responder, shutdown));
}
