//! Sections of configuration files that several components have, with upstream's names and defaults.
//!
//! They need the durations of `koord-api`, which `koord-app` does not depend on.

use koord_api::duration::GoDuration;
use koord_api::field::DecodeError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Debug;
use std::marker::PhantomData;

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not YAML, or has a field twice.
    #[error("configuration is not valid YAML: {0}")]
    Syntax(String),
    /// A field is unknown, has the wrong type or a value that is not allowed.
    #[error("configuration field {path}: {message}")]
    Field {
        /// Where.
        path: String,
        /// What is wrong.
        message: String,
    },
}

impl From<DecodeError> for ConfigError {
    fn from(DecodeError { path, message }: DecodeError) -> Self {
        Self::Field { path, message }
    }
}

/// Returns the error that the field at `path` causes.
///
/// # Errors
/// Always.
pub fn refuse<T>(path: impl Into<String>, message: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Field {
        path: path.into(),
        message: message.into(),
    })
}

/// A component by the defaults of its sections.
pub trait Component {
    /// `leaderElection.resourceName`.
    const LEASE_NAME: &'static str;
    /// `leaderElection.resourceNamespace`.
    const LEASE_NAMESPACE: &'static str;
    /// `clientConnection.acceptContentTypes`.
    const ACCEPT_CONTENT_TYPES: &'static str;
    /// The type of `clientConnection.burst`.
    type Burst: From<u8> + Debug + Clone + PartialEq + Serialize + DeserializeOwned;
}

/// `leaderElection`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    bound = "C: Component"
)]
pub struct LeaderElection<C> {
    /// Whether replicas elect one that works.
    pub leader_elect: bool,
    /// How long a lease is valid without renewal.
    pub lease_duration: GoDuration,
    /// After how long without a successful renewal the leader gives up.
    pub renew_deadline: GoDuration,
    /// How often to try.
    pub retry_period: GoDuration,
    /// Only `leases` exists.
    pub resource_lock: String,
    /// Name of the lease.
    pub resource_name: String,
    /// Namespace of the lease.
    pub resource_namespace: String,
    /// The component, which has the defaults.
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
    /// Checks values, if there is an election.
    ///
    /// # Errors
    /// A time is not above 0 or not above the next shorter one, or the lock is not a lease.
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

/// `clientConnection`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    bound = "C: Component"
)]
pub struct ClientConnection<C: Component> {
    /// Path of a kubeconfig; empty for the flags' or the in-cluster one.
    pub kubeconfig: String,
    /// Accepted for compatibility: requests and answers are JSON.
    pub accept_content_types: String,
    /// Accepted for compatibility: requests and answers are JSON.
    pub content_type: String,
    /// Requests per second.
    pub qps: f64,
    /// Requests at once.
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

/// Plugins of type `P` that are switched on and off at one extension point.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PluginSet<P> {
    /// On, in this order, after the defaults.
    pub enabled: Vec<P>,
    /// Off; `*` for all defaults.
    pub disabled: Vec<P>,
}

/// One entry of `pluginConfig`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginArgs {
    /// The plugin's name.
    pub name: String,
    /// Its arguments, with `apiVersion` and `kind`; parsed by the plugin.
    #[serde(default)]
    pub args: Value,
}
