//! `DeschedulerConfiguration`, group and version `descheduler/v1alpha2`: Koordinator's, not the kind of the
//! same version that kubernetes-sigs/descheduler has.
//!
//! ```text
//! file ──► Configuration::parse (strict, defaults, values) ──► Registry::complete (plugins, their arguments)
//! ```
//!
//! Decoding is strict: a field that is unknown or given twice is an error that names it. A field that is
//! `null` counts as absent.

mod address;
mod merge;
mod selectors;
mod validate;

pub(crate) use merge::{MIGRATION_CONTROLLER, merged};
pub(crate) use selectors::check as check_selectors;

pub(crate) use koord_kube::component_config::refuse;
use koord_kube::component_config::{self, Component};
pub use koord_kube::component_config::{ConfigError, PluginArgs};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::duration::GoDuration;
use koord_api::field::{self, DecodeError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The only supported version.
pub(crate) const API_VERSION: &str = "descheduler/v1alpha2";
const KIND: &str = "DeschedulerConfiguration";
/// Default name of a single profile.
pub const DEFAULT_PROFILE: &str = "koord-descheduler";
/// Default port for health and metrics.
pub const DEFAULT_PORT: u16 = 10251;

/// Configuration of the descheduler, with upstream's names and defaults.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Configuration {
    /// `descheduler/v1alpha2`.
    pub api_version: String,
    /// `DeschedulerConfiguration`.
    pub kind: String,
    /// Leader election.
    #[serde(default)]
    pub leader_election: LeaderElection,
    /// Connection to the API server.
    #[serde(default)]
    pub client_connection: ClientConnection,
    /// True to serve `/debug`.
    #[serde(default = "yes")]
    pub enable_profiling: bool,
    /// Accepted for compatibility; defaults to `enableProfiling`.
    #[serde(default)]
    pub enable_contention_profiling: Option<bool>,
    /// Address for health, as `host:port`; port 0 disables it.
    #[serde(default = "everywhere")]
    pub healthz_bind_address: String,
    /// Address for metrics, as `host:port`; port 0 disables it.
    #[serde(default = "everywhere")]
    pub metrics_bind_address: String,
    /// Time between the starts of two cycles; 0 for a single cycle.
    #[serde(default)]
    pub descheduling_interval: GoDuration,
    /// True if nothing is moved.
    #[serde(default)]
    pub dry_run: bool,
    /// Profiles in the order in which they run; without any, one profile without strategies.
    #[serde(default)]
    pub profiles: Vec<ProfileConfig>,
    /// Selector of the nodes to consider; all nodes without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Maximum number of pods to evict per node in one cycle; unlimited without a value, as the next two
    /// fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_no_of_pods_to_evict_per_node: Option<u64>,
    /// Maximum per namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_no_of_pods_to_evict_per_namespace: Option<u64>,
    /// Maximum in total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_no_of_pods_to_evict_total: Option<u64>,
}

/// `leaderElection`. A duration of 0 and an empty name stand for the default.
pub type LeaderElection = component_config::LeaderElection<Configuration>;
/// `clientConnection`. 0 stands for the default.
pub type ClientConnection = component_config::ClientConnection<Configuration>;
/// Plugins at one extension point.
pub type PluginSet = component_config::PluginSet<PluginRef>;

impl Component for Configuration {
    const LEASE_NAME: &'static str = "koord-descheduler";
    const LEASE_NAMESPACE: &'static str = "koordinator-system";
    const ACCEPT_CONTENT_TYPES: &'static str =
        "application/vnd.kubernetes.protobuf,application/json";
    type Burst = i32;
}

/// A profile: one entry of `profiles`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProfileConfig {
    /// Name of the profile; required if there is another profile.
    pub name: String,
    /// Selector of the nodes of the profile; all nodes without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Plugins by extension point.
    pub plugins: PluginsConfig,
    /// Arguments of the plugins.
    pub plugin_config: Vec<PluginArgs>,
}

/// `plugins` of a profile.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PluginsConfig {
    /// Strategies that run first.
    pub deschedule: PluginSet,
    /// Strategies that run after all `deschedule` strategies.
    pub balance: PluginSet,
    /// Evictor; `MigrationController` by default.
    pub evict: PluginSet,
    /// Filters that must all agree; `MigrationController` by default.
    pub filter: PluginSet,
}

/// A plugin by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PluginRef {
    /// The plugin's name.
    pub name: String,
}

impl Default for Configuration {
    /// Returns the configuration used without a file: one profile without strategies.
    fn default() -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            leader_election: LeaderElection::default(),
            client_connection: ClientConnection::default(),
            enable_profiling: true,
            enable_contention_profiling: Some(true),
            healthz_bind_address: everywhere(),
            metrics_bind_address: everywhere(),
            descheduling_interval: GoDuration::ZERO,
            dry_run: false,
            profiles: vec![ProfileConfig {
                name: DEFAULT_PROFILE.to_owned(),
                ..ProfileConfig::default()
            }],
            node_selector: None,
            max_no_of_pods_to_evict_per_node: None,
            max_no_of_pods_to_evict_per_namespace: None,
            max_no_of_pods_to_evict_total: None,
        }
    }
}

impl Configuration {
    /// Parses a configuration file in YAML or JSON.
    ///
    /// # Errors
    /// Returns the path of the field and the problem: a syntax error, an unknown or duplicate field, a wrong
    /// type, or an invalid value.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let value: Value =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Syntax(error.to_string()))?;
        let value = without_nulls(value);
        check_selectors("", &value, true)?;
        let mut config: Self = decode("", value)?;
        config.set_defaults();
        config.validate()?;
        Ok(config)
    }

    /// Fills in defaults for zero values that Go cannot distinguish from absent fields.
    fn set_defaults(&mut self) {
        if self.profiles.is_empty() {
            self.profiles.push(ProfileConfig::default());
        }
        if let [only] = &mut self.profiles[..]
            && only.name.is_empty()
        {
            DEFAULT_PROFILE.clone_into(&mut only.name);
        }
        let (election, by_default) = (&mut self.leader_election, LeaderElection::default());
        unless_zero(&mut election.lease_duration, by_default.lease_duration);
        unless_zero(&mut election.renew_deadline, by_default.renew_deadline);
        unless_zero(&mut election.retry_period, by_default.retry_period);
        unless_zero(&mut election.resource_lock, by_default.resource_lock);
        unless_zero(&mut election.resource_name, by_default.resource_name);
        let namespace = by_default.resource_namespace;
        unless_zero(&mut election.resource_namespace, namespace);
        let (client, by_default) = (&mut self.client_connection, ClientConnection::default());
        if client.content_type.is_empty() {
            client.content_type = by_default.content_type;
            client.accept_content_types = by_default.accept_content_types;
        }
        unless_zero(&mut client.qps, by_default.qps);
        unless_zero(&mut client.burst, by_default.burst);
        let profiling = self.enable_profiling;
        self.enable_contention_profiling = self.enable_contention_profiling.or(Some(profiling));
        for address in [
            &mut self.healthz_bind_address,
            &mut self.metrics_bind_address,
        ] {
            *address = address::completed(address);
        }
    }

    /// Serializes the configuration to YAML.
    ///
    /// # Errors
    /// Returns an error if it cannot be written as YAML.
    pub fn written(&self) -> Result<String, ConfigError> {
        serde_saphyr::to_string(self).map_err(|error| ConfigError::Syntax(error.to_string()))
    }
}

fn unless_zero<T: Default + PartialEq>(field: &mut T, by_default: T) {
    if *field == T::default() {
        *field = by_default;
    }
}

/// Decodes `value`; errors are reported below `path`.
pub(crate) fn decode<T: DeserializeOwned>(path: &str, value: Value) -> Result<T, ConfigError> {
    field::decode(value).map_err(|mut error: DecodeError| {
        error.path = match (path, error.path.as_str()) {
            (path, ".") => path.to_owned(),
            ("", inner) => inner.to_owned(),
            (path, inner) => format!("{path}.{inner}"),
        };
        error.into()
    })
}

/// Removes members that are `null` from `value`, at any depth.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let present = members.into_iter().filter(|(_, value)| !value.is_null());
            let present = present.map(|(key, value)| (key, without_nulls(value)));
            Value::Object(present.collect::<Map<_, _>>())
        }
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

fn yes() -> bool {
    true
}

fn everywhere() -> String {
    format!("0.0.0.0:{DEFAULT_PORT}")
}

#[cfg(test)]
pub(crate) mod tests;
