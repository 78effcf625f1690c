//! Validation of configuration values.

use super::{API_VERSION, ConfigError, Configuration, KIND, address, refuse};
use koord_api::duration::GoDuration;
use std::collections::BTreeMap;

impl Configuration {
    /// Validates the values; plugins validate their own arguments.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.api_version != API_VERSION {
            let version = &self.api_version;
            let message = format!("{version:?} is not supported, use {API_VERSION:?}");
            return refuse("apiVersion", message);
        }
        if self.kind != KIND {
            return refuse("kind", format!("{:?} is not {KIND:?}", self.kind));
        }
        self.leader_election.validate()?;
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
