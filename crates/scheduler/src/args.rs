//! The command line, with upstream's flag names and defaults.

use crate::config::Configuration;
use crate::framework::Registry;
use crate::runtime::Options;
use clap::{ArgAction, Parser};
use std::path::PathBuf;

/// Flags of koord-scheduler. Those that are accepted without effect say so.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "koord-scheduler",
    about = "Places pods by what nodes really use"
)]
pub struct Args {
    /// Path of a KubeSchedulerConfiguration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Path of a kubeconfig; inside a pod, the service account is used without it.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, in place of the kubeconfig's.
    #[arg(long, default_value = "")]
    pub master: String,
    /// Address of the HTTP server for health, metrics and debugging.
    #[arg(long, default_value = "0.0.0.0")]
    pub address: String,
    /// Its port; 0 turns it off.
    #[arg(long, default_value_t = 10251)]
    pub port: u16,
    /// Accepted for compatibility: there is no second, secure server yet.
    #[arg(long, default_value_t = 10259)]
    pub secure_port: u16,
    /// Whether replicas elect one that works. Overrides the file when given.
    #[arg(long, action = ArgAction::Set)]
    pub leader_elect: Option<bool>,
    /// Name of the lease. Overrides the file when given.
    #[arg(long)]
    pub leader_elect_resource_name: Option<String>,
    /// Namespace of the lease. Overrides the file when given.
    #[arg(long)]
    pub leader_elect_resource_namespace: Option<String>,
    /// Feature gates: Name=true,Other=false.
    #[arg(long, default_value = "")]
    pub feature_gates: String,
    /// Requests per second to the API server. Deprecated: use the configuration file.
    #[arg(long)]
    pub kube_api_qps: Option<f64>,
    /// Requests at once to the API server. Deprecated: use the configuration file.
    #[arg(long)]
    pub kube_api_burst: Option<u32>,
    /// Accepted for compatibility: JSON is spoken.
    #[arg(long)]
    pub kube_api_content_type: Option<String>,
    /// Accepted for compatibility: the HTTP server needs no authentication of its own.
    #[arg(long)]
    pub authentication_kubeconfig: Option<String>,
    /// Accepted for compatibility.
    #[arg(long)]
    pub authorization_kubeconfig: Option<String>,
    /// Accepted for compatibility: see --address.
    #[arg(long)]
    pub bind_address: Option<String>,
    /// Accepted for compatibility.
    #[arg(long)]
    pub show_hidden_metrics_for_version: Option<String>,
    /// Which controllers of plugins run; accepted, no plugin has one yet.
    #[arg(long, default_value = "*")]
    pub controller_plugins: String,
    /// Accepted for compatibility.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    pub profiling: bool,
    /// Accepted for compatibility.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub contention_profiling: bool,
    /// Accepted for compatibility: decisions take micro- to milliseconds here.
    #[arg(long, default_value = "10s")]
    pub scheduler_monitor_period: String,
    /// Accepted for compatibility.
    #[arg(long, default_value = "30s")]
    pub scheduling_timeout: String,
    /// Accepted for compatibility: refusals are always kept, see /debug/scheduler/pending.
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    pub debug_filters: bool,
    /// Accepted for compatibility.
    #[arg(long, default_value_t = 0)]
    pub debug_scores: i32,
}

/// A command line that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// The file cannot be read.
    #[error("--config: {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file cannot be used.
    #[error("--config: {}: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        source: crate::config::ConfigError,
    },
    /// A feature gate is not `Name=true` or `Name=false`.
    #[error("--feature-gates: {0:?} is not Name=true or Name=false")]
    Gate(String),
}

impl Args {
    /// What the flags and the file together say.
    ///
    /// # Errors
    /// The file cannot be read or used, or a flag's value cannot.
    pub fn options(&self, registry: Registry) -> Result<Options, ArgsError> {
        let mut options = Options::new(registry);
        if let Some(path) = &self.config {
            let text = std::fs::read_to_string(path).map_err(|source| ArgsError::Read {
                path: path.clone(),
                source,
            })?;
            let config = Configuration::parse(&text).map_err(|source| ArgsError::Config {
                path: path.clone(),
                source,
            })?;
            options.leader_elect = config.leader_election.leader_elect;
            options.config = Some(config);
        }
        if let Some(elect) = self.leader_elect {
            options.leader_elect = elect;
        }
        if let Some(config) = &mut options.config {
            let section = &mut config.leader_election;
            if let Some(name) = &self.leader_elect_resource_name {
                section.resource_name.clone_from(name);
            }
            if let Some(namespace) = &self.leader_elect_resource_namespace {
                section.resource_namespace.clone_from(namespace);
            }
        }
        for gate in self
            .feature_gates
            .split(',')
            .filter(|gate| !gate.is_empty())
        {
            let parsed = gate.split_once('=').and_then(|(name, on)| {
                on.parse::<bool>()
                    .ok()
                    .map(|on| (name.trim().to_owned(), on))
            });
            let (name, on) = parsed.ok_or_else(|| ArgsError::Gate(gate.to_owned()))?;
            options.build.gates.insert(name, on);
        }
        Ok(options)
    }

    /// Requests per second and at once, from the flags, else the file, else upstream's defaults.
    #[must_use]
    pub fn client_limits(&self, options: &Options) -> (f64, u32) {
        let connection = options.config.clone().unwrap_or_default().client_connection;
        (
            self.kube_api_qps.unwrap_or(connection.qps),
            self.kube_api_burst.unwrap_or(connection.burst),
        )
    }
}
