//! Command line of koord-scheduler, with upstream's flag names and defaults.

mod accepted;
#[cfg(test)]
mod tests;

pub use crate::gates::GATES;
pub use accepted::Upstreams;

use crate::config::Configuration;
use crate::framework::Registry;
use crate::runtime::Options;
use clap::{ArgAction, Parser};
use koord_app::features::{GateError, Gates};
use koord_app::flags::accepted::IgnoredFlags;
use koord_app::flags::{self, Selection};
use koord_kube::lease::ElectionArgs;
use koord_kube::secure::SecureServingArgs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Flags of koord-scheduler. The help of a flag that is accepted without effect states that.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "koord-scheduler",
    about = "Kubernetes scheduler that takes the actual usage of nodes into account"
)]
pub struct Args {
    /// Path of a KubeSchedulerConfiguration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the configuration in force to this file and exit.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Path of a kubeconfig, if the configuration names none [default: the service account, inside a pod].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; overrides the address in the kubeconfig.
    #[arg(long, default_value = "")]
    pub master: String,
    /// IP address of the HTTP server for health, metrics and debugging.
    #[arg(long, default_value = "0.0.0.0")]
    pub address: String,
    /// Port of the HTTP server; 0 disables the server.
    #[arg(long, default_value_t = 10251)]
    pub port: u16,
    /// Leader election.
    #[command(flatten)]
    pub election: ElectionArgs,
    /// Feature gates: Name=true,Other=false.
    #[arg(long, default_value = "")]
    pub feature_gates: String,
    /// Maximum requests per second to the API server. Deprecated: use the configuration file.
    #[arg(long)]
    pub kube_api_qps: Option<f64>,
    /// Maximum burst of requests to the API server. Deprecated: use the configuration file.
    #[arg(long)]
    pub kube_api_burst: Option<u32>,
    /// Plugins whose controllers run, comma-separated: * (all), Name, or -Name (not this one).
    #[arg(long, default_value = "*", value_parser = flags::selection)]
    pub controller_plugins: Selection,
    /// Keep the tree of the ClusterNetworkTopology `default` and its status up to date.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub enable_network_topology_manager: bool,
    /// IP address of the TLS server, which serves the same as the HTTP server.
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: String,
    /// Port of the TLS server; 0 disables the server.
    #[arg(long, default_value_t = 10259)]
    pub secure_port: u16,
    /// Certificate of the TLS server, and authentication of its clients.
    #[command(flatten)]
    pub secure: SecureServingArgs,
    /// Interval of the check for scheduling attempts that exceed --scheduling-timeout.
    #[arg(long, default_value = "10s", value_parser = flags::duration)]
    pub scheduler_monitor_period: std::time::Duration,
    /// Duration of a scheduling attempt beyond which it is logged and counted as too long.
    #[arg(long, default_value = "30s", value_parser = flags::duration)]
    pub scheduling_timeout: std::time::Duration,
    /// Number of top-scored nodes to log for each decision, with their scores; 0 logs none.
    #[arg(long, alias = "s", default_value_t = 0)]
    pub debug_scores: usize,
    /// Log every refused pod, with the reason.
    #[arg(long, alias = "f", num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub debug_filters: bool,
    /// Log the diagnosis of each failed attempt as JSON.
    #[arg(long, alias = "d", num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub debug_diagnosis: bool,
    /// Send annotations of a pod with its binding where that saves a request. Not in upstream.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub bind_annotations_with_binding: bool,
    /// Decide next to the cluster's scheduler and write nothing: no binding, event, status, eviction or lease. What
    /// differs from the cluster's scheduler is logged, counted, and served at /debug/shadow. Not in upstream.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub shadow: bool,
    /// Time that the cluster's scheduler has to bind a pod which --shadow has placed. Not in upstream.
    #[arg(long, default_value = "60s", value_parser = flags::duration)]
    pub shadow_patience: std::time::Duration,
    /// The rest of upstream's flags.
    #[command(flatten)]
    pub accepted: IgnoredFlags<Upstreams>,
}

/// The error of an invalid command line.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// The configuration file cannot be read.
    #[error("--config: {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The configuration file is invalid.
    #[error("--config: {}: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: crate::config::ConfigError,
    },
    /// A feature gate does not exist, or its value is invalid.
    #[error("--feature-gates: {0}")]
    Gate(#[from] GateError),
    /// The value of a flag is invalid.
    #[error("--{flag}: {problem}")]
    Value {
        /// The flag's name without dashes.
        flag: &'static str,
        /// The problem; names the value.
        problem: String,
    },
}

impl Args {
    /// Resolves the flags and the configuration file to options.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if the file or a flag's value is invalid.
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
        if let Some(elect) = self.election.leader_elect {
            options.leader_elect = elect;
        }
        options.election = self.election()?;
        options.bind_annotations_with_binding = self.bind_annotations_with_binding;
        options.shadow = self.shadow.then_some(self.shadow_patience);
        options.monitor_period = self.scheduler_monitor_period;
        options.scheduling_timeout = self.scheduling_timeout;
        let flags = options.debug.flags();
        flags.scores.store(self.debug_scores, Ordering::Relaxed);
        flags.filters.store(self.debug_filters, Ordering::Relaxed);
        flags
            .diagnosis
            .store(self.debug_diagnosis, Ordering::Relaxed);
        let gates = Gates::parse(GATES, &self.feature_gates)?;
        let named = gates.iter();
        options.build.gates = named.map(|(gate, on)| (gate.name.to_owned(), on)).collect();
        options.notes = self.accepted.notes().collect();
        options.build.controllers = self.controller_plugins.clone();
        options.build.network_topology = self.enable_network_topology_manager;
        for (gate, on) in gates.iter().filter(|(gate, on)| *on != gate.default) {
            if let Some(reason) = crate::gates::without_effect(gate.name) {
                let name = gate.name;
                let note = format!("--feature-gates {name}={on} has no effect: {reason}");
                options.notes.push(note);
            }
        }
        Ok(options)
    }

    fn election(&self) -> Result<ElectionArgs, ArgsError> {
        let lock = self.election.leader_elect_resource_lock.as_deref();
        if let Some(other) = lock.filter(|lock| *lock != "leases") {
            return Err(ArgsError::Value {
                flag: "leader-elect-resource-lock",
                problem: format!("{other:?} is not \"leases\""),
            });
        }
        Ok(self.election.clone())
    }

    /// Returns the kubeconfig: that of the configuration file, else that of the flag.
    #[must_use]
    pub fn client_kubeconfig(&self, options: &Options) -> Option<PathBuf> {
        let config = options.config.as_ref();
        let named = config.map(|config| config.client_connection.kubeconfig.clone());
        let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
        named.or_else(|| self.kubeconfig.clone())
    }

    /// Returns the requests per second and the burst, from the flags, else from the file, else upstream's
    /// defaults.
    #[must_use]
    pub fn client_limits(&self, options: &Options) -> (f64, u32) {
        let connection = options.config.clone().unwrap_or_default().client_connection;
        (
            self.kube_api_qps.unwrap_or(connection.qps),
            self.kube_api_burst.unwrap_or(connection.burst),
        )
    }
}
