//! What a configuration may say.

use super::{API_VERSION, Configuration, KIND, address};
use koord_api::duration::GoDuration;
use std::collections::BTreeMap;

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not YAML, or a field is given twice.
    #[error("configuration is not valid YAML: {0}")]
    Syntax(String),
    /// A field that is unknown, has the wrong type or a value that is not allowed.
    #[error("configuration field {path}: {message}")]
    Field {
        /// Where.
        path: String,
        /// What is wrong.
        message: String,
    },
}

pub(crate) fn refuse<T>(
    path: impl Into<String>,
    message: impl Into<String>,
) -> Result<T, ConfigError> {
    Err(ConfigError::Field {
        path: path.into(),
        message: message.into(),
    })
}

impl Configuration {
    /// Checks values; those of plugins' arguments are checked by the plugins.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.api_version != API_VERSION {
            let version = &self.api_version;
            let message = format!("{version:?} is not supported, use {API_VERSION:?}");
            return refuse("apiVersion", message);
        }
        if self.kind != KIND {
            return refuse("kind", format!("{:?} is not {KIND:?}", self.kind));
        }
        self.validate_election()?;
        let client = &self.client_connection;
        if client.burst < 0 {
            let message = format!("{} must not be negative", client.burst);
            return refuse("clientConnection.burst", message);
        }
        if client.qps < 0.0 {
            let message = format!("{} must not be negative", client.qps);
            return refuse("clientConnection.qps", message);
        }
        if self.descheduling_interval < GoDuration::ZERO {
            let message = format!("{} must not be negative", self.descheduling_interval);
            return refuse("deschedulingInterval", message);
        }
        bind_address("healthzBindAddress", &self.healthz_bind_address)?;
        bind_address("metricsBindAddress", &self.metrics_bind_address)?;
        self.validate_profiles()
    }

    /// Checks the election, if there is one.
    pub(crate) fn validate_election(&self) -> Result<(), ConfigError> {
        let election = &self.leader_election;
        if !election.leader_elect {
            return Ok(());
        }
        let times = [
            ("leaseDuration", election.lease_duration),
            ("renewDeadline", election.renew_deadline),
            ("retryPeriod", election.retry_period),
        ];
        for (field, value) in times {
            if value <= GoDuration::ZERO {
                let message = format!("{value} must be above 0");
                return refuse(format!("leaderElection.{field}"), message);
            }
        }
        for [(longer, long), (shorter, short)] in [[times[0], times[1]], [times[1], times[2]]] {
            if long <= short {
                let message = format!("{long} must be above {shorter} {short}");
                return refuse(format!("leaderElection.{longer}"), message);
            }
        }
        if election.resource_lock != "leases" {
            let message = format!("{:?} is not \"leases\"", election.resource_lock);
            return refuse("leaderElection.resourceLock", message);
        }
        Ok(())
    }

    fn validate_profiles(&self) -> Result<(), ConfigError> {
        let mut names = BTreeMap::new();
        for (at, profile) in self.profiles.iter().enumerate() {
            let path = format!("profiles[{at}]");
            if profile.name.is_empty() {
                return refuse(format!("{path}.name"), "must not be empty");
            }
            if let Some(first) = names.insert(&profile.name, at) {
                let message = format!("{:?} is the name of profiles[{first}] too", profile.name);
                return refuse(format!("{path}.name"), message);
            }
            let mut configured = BTreeMap::new();
            for (at, plugin) in profile.plugin_config.iter().enumerate() {
                if let Some(first) = configured.insert(&plugin.name, at) {
                    let field = format!("{path}.pluginConfig[{at}].name");
                    let name = &plugin.name;
                    let message = format!("{name:?} has its arguments in pluginConfig[{first}]");
                    return refuse(field, message);
                }
            }
        }
        Ok(())
    }
}

fn bind_address(path: &str, text: &str) -> Result<(), ConfigError> {
    match address::split(text) {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(()),
        Some((_, port)) => {
            let message = format!("{text:?}: port {port:?} is not within 0 and 65535");
            refuse(path, message)
        }
        None => refuse(path, format!("{text:?} is not host:port")),
    }
}
