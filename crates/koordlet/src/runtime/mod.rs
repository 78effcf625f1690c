//! In place before the process starts: what hooks want, given to the container runtime.
//!
//! One [`Mode`] is in force. With [`Mode::Nri`] this agent is a plugin of the runtime; with
//! [`Mode::Proxy`] it is the hook server that koord-runtime-proxy asks; with [`Mode::Standalone`]
//! nobody asks, and values come with the agent's next round. In every mode the strategies of
//! [`crate::qos`] look after the values later.
//!
//! HookResponder come from the pods and [`Rules`](crate::hooks::Rules) that are known when the runtime asks,
//! through the functions that the reconciler uses. What is not known of a pod yet is taken from the
//! request. Nobody is asked on the way: neither the API server nor the kubelet. So that no value is
//! fought over, a running container gets those values only that the runtime is about to change, CPU
//! lists of batch pods are CPUSuppress' alone, and of several agents of a machine one gives values,
//! in whichever mode (module `claim`).

mod answer;
mod asked;
mod claim;
mod contest;
#[cfg(fuzzing)]
pub mod fuzzed;
mod nri;
mod registration;
mod server;
#[cfg(test)]
mod tests;

use crate::gates::{Gate, Gates};
use crate::hooks::RuleStore;
use crate::metrics::Metrics;
use crate::node_events::Warnings;
use crate::settings::Settings;
use crate::states::States;
use koord_host::Root;
use koord_kube::events::Severity;
use lock::HookLock;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub(crate) use answer::STAGES;
pub(crate) use contest::PluginConflicts;
pub use koord_api::hookserver::{Policy, UnknownPolicy};

/// How containers get their values at creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// From the runtime, with this agent as its plugin.
    Nri,
    /// From koord-runtime-proxy, with this agent as its hook server.
    Proxy,
    /// Not at creation but with the next round.
    #[default]
    Standalone,
}

/// A mode that there is not.
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
    /// Its name in the flag.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nri => "nri",
            Self::Proxy => "proxy",
            Self::Standalone => "standalone",
        }
    }
}

/// What is told at start.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The one way in which containers get their values.
    pub mode: Mode,
    /// What becomes of a container whose hook fails.
    pub policy: Policy,
    /// Stages that are not served, by upstream's names.
    pub disabled: Vec<String>,
    /// The plugin.
    pub nri: Nri,
    /// The hook server.
    pub server: Server,
}

/// The plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Nri {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// The plugin's name.
    pub name: String,
    /// Two digits: the order among plugins.
    pub index: String,
    /// How long each step of a connection may take, and at least 5 s.
    pub connect_within: Duration,
    /// Before the second attempt; doubled for each one more.
    pub backoff: Duration,
    /// The longest time between two attempts.
    pub backoff_cap: Duration,
}

/// The hook server.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Where it listens.
    pub socket: PathBuf,
    /// Where the proxy finds that socket.
    pub endpoint: String,
    /// What the proxy does when it is not answered.
    pub policy: Policy,
    /// The directory of registrations, read by the proxy.
    pub directory: PathBuf,
}

/// The longest time between two attempts to reach the runtime.
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

/// What answers are made from.
#[derive(Debug, Clone)]
pub(crate) struct HookContext {
    pub(crate) states: Arc<States>,
    pub(crate) rules: RuleStore,
    pub(crate) settings: Settings,
    pub(crate) root: Root,
    pub(crate) metrics: Metrics,
    pub(crate) warnings: Arc<Warnings>,
}

/// Says which open gates lack a way to containers in this mode.
fn warn_unsupported_gates(mode: Mode, gates: &Gates) {
    let lost = match mode {
        Mode::Nri => return,
        Mode::Proxy => "mounts and device files are not in what the proxy's hooks can say",
        Mode::Standalone => "environment, mounts and device files are given at creation only",
    };
    for gate in [Gate::GPUEnvInject, Gate::RDMADeviceInject] {
        if gates.is_on(gate) {
            tracing::warn!(
                gate = gate.name(),
                mode = mode.name(),
                lost,
                "of less effect"
            );
        }
    }
}

/// Says that another agent is the one who gives containers their values.
fn warn_other_agent(config: &Config, ctx: &HookContext) {
    let (mode, directory) = (config.mode.name(), config.server.directory.display());
    tracing::warn!(
        mode,
        %directory,
        "another koordlet gives containers their values: this one waits until it has gone"
    );
    let message = format!(
        "another koordlet of this machine gives containers their values, and has {directory} \
         locked: this one, in mode {mode}, waits until it has gone"
    );
    let warnings = &ctx.warnings;
    warnings.record(Severity::Warning, "RuntimeHooksElsewhere", &message);
}

/// Starts what `config` asks for, and says which mode is in force. It goes on until `shutdown`.
/// Returns what has to see each new list of pods.
pub(crate) fn start(
    config: &Config,
    ctx: HookContext,
    shutdown: CancellationToken,
) -> Option<PluginConflicts> {
    tracing::info!(
        mode = config.mode.name(),
        "containers get what hooks want by this mode"
    );
    warn_unsupported_gates(config.mode, &ctx.settings.gates);
    let (mode, directory) = (config.mode, config.server.directory.clone());
    let lock = HookLock::acquire(&directory, mode != Mode::Standalone);
    if lock.is_held_by_other() {
        if mode == Mode::Standalone {
            // Its registration is not what an earlier run left.
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
    let stages = answer::Stages::new(&config.disabled, &ctx.settings.gates);
    let responder = Arc::new(answer::HookResponder::new(config.policy, stages, ctx));
    let config = config.clone();
    tokio::spawn(async move {
        let waits = lock.is_held_by_other();
        let Some(_lock) = lock.wait(&directory, &shutdown).await else {
            return;
        };
        if waits {
            tracing::info!(
                mode = mode.name(),
                "this agent gives containers their values now"
            );
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
