//! The command line, with upstream's flag names and defaults.

mod gates;
#[cfg(test)]
mod tests;

pub use gates::GATES;

use crate::config::{ConfigError, Configuration};
use clap::{ArgAction, Parser};
use koord_app::features::{GateError, Gates};
use koord_app::flags;
use koord_app::flags::accepted::{IgnoredFlags, LOG, METRICS, Row, SERVING, Table};
use koord_kube::lease::ElectionArgs;
use koord_kube::secure::SecureServingArgs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Flags of koord-descheduler. The help text of a flag states if it is accepted without effect.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "koord-descheduler",
    about = "Kubernetes descheduler: moves pods off overloaded and unsuitable nodes"
)]
pub struct Args {
    /// Path of a DeschedulerConfiguration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the configuration in force to this file and exit.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Path of a kubeconfig, if the configuration names none [default: the service account, inside a pod]. Not
    /// in upstream.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// IP address of the HTTP server for health, metrics and debugging. Ignored with --config, which has its
    /// own addresses.
    #[arg(long, default_value = "0.0.0.0")]
    pub address: String,
    /// Port of the HTTP server; 0 disables the server. Ignored with --config.
    #[arg(long, default_value_t = crate::config::DEFAULT_PORT)]
    pub port: u16,
    /// IP address of the TLS server, which serves the same as the HTTP server.
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: String,
    /// Port of the TLS server; 0 disables the server.
    #[arg(long, default_value_t = 10258)]
    pub secure_port: u16,
    /// Certificate and callers of the TLS server. Upstream admits every caller.
    #[command(flatten)]
    pub secure: SecureServingArgs,
    /// Find a target node by the scheduler's rules before evicting a pod; a pod without a target stays.
    /// Not in upstream. Needs the permissions and the memory of a scheduler.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub find_targets: bool,
    /// Path of the scheduler's KubeSchedulerConfiguration file, for --find-targets. Without it, every koord
    /// plugin and the load thresholds of LoadAwareScheduling are used. Not in upstream.
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    /// Leader election.
    #[command(flatten)]
    pub election: ElectionArgs,
    /// Feature gates: Name=true,Other=false.
    #[arg(long, default_value = "")]
    pub feature_gates: String,
    /// Upstream flags that are accepted without effect.
    #[command(flatten)]
    pub accepted: IgnoredFlags<Upstreams>,
}

/// Table of upstream's flags that have no effect here.
#[derive(Debug, Clone)]
pub struct Upstreams;

impl Table for Upstreams {
    const FLAG_LISTS: &'static [&'static [Row]] = &[SERVING, METRICS, LOG];
}

/// An error in the command line or in the file that it names.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// The file cannot be read.
    #[error("--config: {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file's content is invalid.
    #[error("--config: {}: {source}", path.display())]
    Config {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: ConfigError,
    },
    /// The flags set an invalid leader election.
    #[error("--leader-elect-...: {0}")]
    Election(ConfigError),
    /// Unknown feature gate, or invalid value for one.
    #[error("--feature-gates: {0}")]
    Gate(#[from] GateError),
    /// The value is not an IP address.
    #[error("--{flag}: {value:?} is not an IP address")]
    Address {
        /// Name of the flag, without dashes.
        flag: &'static str,
        /// The invalid value.
        value: String,
    },
}

/// Configuration resolved from command line and file.
#[derive(Debug)]
pub struct ResolvedConfig {
    /// The file's configuration, with the flags' overrides applied.
    pub config: Configuration,
    /// Feature gates from the flags.
    pub gates: Gates,
    /// Messages about settings that have no effect.
    pub notes: Vec<String>,
}

impl Args {
    /// Merges flags and file. With a file, flags override only the leader election.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is invalid, or if a flag has an invalid value.
    pub fn resolve(&self) -> Result<ResolvedConfig, ArgsError> {
        let address = ip("address", &self.address)?;
        self.secure_address()?;
        let gates = Gates::parse(GATES, &self.feature_gates)?;
        let mut notes: Vec<_> = self.accepted.notes().collect();
        notes.extend(gates::notes(&gates));
        if self.scheduler_config.is_some() && !self.find_targets {
            let note = "--scheduler-config has no effect without --find-targets";
            notes.push(note.to_owned());
        }
        let mut config = match self.config.as_deref().filter(|path| !is_empty(path)) {
            Some(path) => {
                if self.port != crate::config::DEFAULT_PORT || self.address != "0.0.0.0" {
                    let note = "--address and --port have no effect: --config sets the address";
                    notes.push(note.to_owned());
                }
                read(path)?
            }
            None => {
                let bind_address = SocketAddr::new(address, self.port).to_string();
                Configuration {
                    healthz_bind_address: bind_address.clone(),
                    metrics_bind_address: bind_address,
                    ..Configuration::default()
                }
            }
        };
        self.election.apply(&mut config.leader_election);
        let valid = config.leader_election.validate();
        valid.map_err(ArgsError::Election)?;
        Ok(ResolvedConfig {
            config,
            gates,
            notes,
        })
    }

    /// Returns the path of the kubeconfig: the configuration file's, or else the flag's.
    #[must_use]
    pub fn client_kubeconfig(&self, config: &Configuration) -> Option<PathBuf> {
        let named = Path::new(&config.client_connection.kubeconfig);
        let named = Some(named.to_owned()).filter(|path| !is_empty(path));
        named.or_else(|| self.kubeconfig.clone())
    }

    /// Returns the address of the TLS server, or `None` if its port is 0.
    ///
    /// # Errors
    /// Returns an error if the flag's value is not an IP address.
    pub fn secure_address(&self) -> Result<Option<SocketAddr>, ArgsError> {
        let address = ip("bind-address", &self.bind_address)?;
        let address_with_port = SocketAddr::new(address, self.secure_port);
        Ok(Some(address_with_port).filter(|address_with_port| address_with_port.port() != 0))
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// Reads and validates a configuration file.
///
/// # Errors
/// Returns an error if the file cannot be read or its content is invalid.
pub fn read(path: &Path) -> Result<Configuration, ArgsError> {
    let text = std::fs::read_to_string(path).map_err(|source| ArgsError::Read {
        path: path.to_owned(),
        source,
    })?;
    Configuration::parse(&text).map_err(|source| ArgsError::Config {
        path: path.to_owned(),
        source,
    })
}

fn ip(flag: &'static str, value: &str) -> Result<IpAddr, ArgsError> {
    let value = if value.is_empty() { "0.0.0.0" } else { value };
    value.parse().map_err(|_| ArgsError::Address {
        flag,
        value: value.to_owned(),
    })
}
