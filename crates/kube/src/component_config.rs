//! Sections of configuration files that several components share, with upstream's names and defaults.
//!
//! They need the durations of `koord-api`, which `koord-app` does not depend on.

use koord_api::duration::GoDuration;
use koord_api::field::DecodeError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Debug;
use std::marker::PhantomData;

/// The error of a configuration file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not YAML, or has a field twice.
    #[error("configuration is not valid YAML: {0}")]
    Syntax(String),
    /// A field is unknown, has the wrong type or a value that is not allowed.
    #[error("configuration field {path}: {message}")]
    Field {
        /// Path of the field, for example `leaderElection.leaseDuration`.
        path: String,
        /// The rule that the value violates.
        message: String,
    },
}

impl From<DecodeError> for ConfigError {
    fn from(DecodeError { path, message }: DecodeError) -> Self {
        Self::Field { path, message }
    }
}

/// Returns an error about the field at `path`.
///
/// # Errors
/// Always returns the error.
pub fn refuse<T>(path: impl Into<String>, message: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Field {
        path: path.into(),
        message: message.into(),
    })
}

/// A component, with its defaults for the sections.
pub trait Component {
    /// `leaderElection.resourceName`.
    const LEASE_NAME: &'static str;
    /// `leaderElection.resourceNamespace`.
    const LEASE_NAMESPACE: &'static str;
    /// `clientConnection.acceptContentTypes`.
    const ACCEPT_CONTENT_TYPES: &'static str;
    /// Type of `clientConnection.burst`.
    type Burst: From<u8> + Debug + Clone + PartialEq + Serialize + DeserializeOwned;
}

/// The section `leaderElection`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    bound = "C: Component"
)]
pub struct LeaderElection<C> {
    /// Whether replicas elect a leader; only the leader works.
    pub leader_elect: bool,
    /// Time that a lease is valid without renewal.
    pub lease_duration: GoDuration,
    /// Time without a successful renewal after which the leader stops.
    pub renew_deadline: GoDuration,
    /// Time between two attempts to get or renew the lease.
    pub retry_period: GoDuration,
    /// Type of the lock; must be `leases`.
    pub resource_lock: String,
    /// Name of the lease.
    pub resource_name: String,
    /// Namespace of the lease.
    pub resource_namespace: String,
    /// The component whose defaults are used.
    #[serde(skip)]
    pub component: PhantomData<C>,
}

impl<C: Component> Default for LeaderElection<C> {
    fn default() -> Self {
        Self {
            leader_elect: true,
            lease_duration: GoDuration::from_secs(15),
            renew_deadline: GoDuration::from_secs(10),
            retry_period: GoDuration::from_secs(2),
            resource_lock: "leases".to_owned(),
            resource_name: C::LEASE_NAME.to_owned(),
            resource_namespace: C::LEASE_NAMESPACE.to_owned(),
            component: PhantomData,
        }
    }
}

impl<C> LeaderElection<C> {
    /// Checks the values if leader election is on.
    ///
    /// # Errors
    /// Fails if a duration is not above 0 or not above the next shorter one, or the lock is not a lease.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !self.leader_elect {
            return Ok(());
        }
        let times = [
            ("leaseDuration", self.lease_duration),
            ("renewDeadline", self.renew_deadline),
            ("retryPeriod", self.retry_period),
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
        if self.resource_lock != "leases" {
            let message = format!("{:?} is not \"leases\"", self.resource_lock);
            return refuse("leaderElection.resourceLock", message);
        }
        Ok(())
    }
}

/// The section `clientConnection`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    bound = "C: Component"
)]
pub struct ClientConnection<C: Component> {
    /// Path of a kubeconfig; empty for the one of the flags or of the pod.
    pub kubeconfig: String,
    /// Accepted for compatibility: requests and responses are JSON.
    pub accept_content_types: String,
    /// Accepted for compatibility: requests and responses are JSON.
    pub content_type: String,
    /// Requests per second.
    pub qps: f64,
    /// Number of requests that may be sent at once before `qps` applies.
    pub burst: C::Burst,
}

impl<C: Component> Default for ClientConnection<C> {
    fn default() -> Self {
        Self {
            kubeconfig: String::new(),
            accept_content_types: C::ACCEPT_CONTENT_TYPES.to_owned(),
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
            qps: 50.0,
            burst: 100.into(),
        }
    }
}

/// Plugins of type `P` that are enabled and disabled at one extension point.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PluginSet<P> {
    /// Plugins to add after the defaults, in this order.
    pub enabled: Vec<P>,
    /// Defaults to remove; `*` for all of them.
    pub disabled: Vec<P>,
}

/// An entry of `pluginConfig`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginArgs {
    /// The plugin's name.
    pub name: String,
    /// The plugin's arguments, with `apiVersion` and `kind`; parsed by the plugin.
    #[serde(default)]
    pub args: Value,
}
