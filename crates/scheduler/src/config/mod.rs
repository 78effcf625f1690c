//! `KubeSchedulerConfiguration`, group `kubescheduler.config.k8s.io`, version `v1`.
//!
//! Decoding is strict: an unknown field is an error that names it, as in kube-scheduler.

mod extender;
mod validate;

pub use extender::{Extender, ExtenderTls, ManagedResource};
pub(crate) use extender::{ignored, sort_extenders};

use koord_api::field::decode;
use koord_kube::component_config::{self, Component};
pub use koord_kube::component_config::{ConfigError, PluginArgs};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The scheduler's configuration, with upstream's names and defaults.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Configuration {
    /// `kubescheduler.config.k8s.io/v1`.
    pub api_version: String,
    /// `KubeSchedulerConfiguration`.
    pub kind: String,
    /// Accepted for compatibility; the engine needs no worker count.
    #[serde(default = "sixteen")]
    pub parallelism: i32,
    /// Leader election.
    #[serde(default)]
    pub leader_election: LeaderElection,
    /// The connection to the API server.
    #[serde(default)]
    pub client_connection: ClientConnection,
    /// True if performance profiles of the process are served.
    #[serde(default = "yes")]
    pub enable_profiling: bool,
    /// Accepted for compatibility.
    #[serde(default)]
    pub enable_contention_profiling: bool,
    /// Accepted for compatibility: every feasible node is scored.
    #[serde(default)]
    pub percentage_of_nodes_to_score: Option<i32>,
    /// First backoff of a refused pod, in seconds.
    #[serde(default = "one")]
    pub pod_initial_backoff_seconds: i64,
    /// Longest backoff, in seconds.
    #[serde(default = "ten")]
    pub pod_max_backoff_seconds: i64,
    /// The profiles; one named `default-scheduler` when empty.
    #[serde(default)]
    pub profiles: Vec<ProfileConfig>,
    /// Extenders: HTTP services that filter or score nodes, review victims, or bind.
    #[serde(default)]
    pub extenders: Vec<Extender>,
    /// True if informers wait for leadership.
    #[serde(default)]
    pub delay_cache_until_active: bool,
}

/// `leaderElection`.
pub type LeaderElection = component_config::LeaderElection<Configuration>;
/// `clientConnection`.
pub type ClientConnection = component_config::ClientConnection<Configuration>;
/// The plugins enabled and disabled at one extension point.
pub type PluginSetConfig = component_config::PluginSet<PluginRef>;

impl Component for Configuration {
    const LEASE_NAME: &'static str = "kube-scheduler";
    const LEASE_NAMESPACE: &'static str = "kube-system";
    const ACCEPT_CONTENT_TYPES: &'static str = "";
    type Burst = u32;
}

/// A scheduling profile, an entry of `profiles`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProfileConfig {
    /// Pods with this `spec.schedulerName` are scheduled by this profile.
    pub scheduler_name: Option<String>,
    /// Accepted for compatibility: every feasible node is scored.
    pub percentage_of_nodes_to_score: Option<i32>,
    /// The plugins by extension point.
    pub plugins: PluginsConfig,
    /// Arguments of plugins.
    pub plugin_config: Vec<PluginArgs>,
}

/// `plugins` of a profile.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the extension points by their names")]
pub struct PluginsConfig {
    pub pre_enqueue: PluginSetConfig,
    pub queue_sort: PluginSetConfig,
    pub pre_filter: PluginSetConfig,
    pub filter: PluginSetConfig,
    pub post_filter: PluginSetConfig,
    pub pre_score: PluginSetConfig,
    pub score: PluginSetConfig,
    pub reserve: PluginSetConfig,
    pub permit: PluginSetConfig,
    pub pre_bind: PluginSetConfig,
    pub bind: PluginSetConfig,
    pub post_bind: PluginSetConfig,
    pub multi_point: PluginSetConfig,
}

impl PluginsConfig {
    /// Returns the plugin sets of all extension points, with their names in files.
    pub(crate) fn sets(&self) -> [(&'static str, &PluginSetConfig); 13] {
        [
            ("preEnqueue", &self.pre_enqueue),
            ("queueSort", &self.queue_sort),
            ("preFilter", &self.pre_filter),
            ("filter", &self.filter),
            ("postFilter", &self.post_filter),
            ("preScore", &self.pre_score),
            ("score", &self.score),
            ("reserve", &self.reserve),
            ("permit", &self.permit),
            ("preBind", &self.pre_bind),
            ("bind", &self.bind),
            ("postBind", &self.post_bind),
            ("multiPoint", &self.multi_point),
        ]
    }
}

/// A reference to a plugin by name.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginRef {
    /// The plugin's name.
    pub name: String,
    /// Weight of its score.
    #[serde(default)]
    pub weight: Option<i64>,
}

impl Default for Configuration {
    /// Returns kube-scheduler's configuration without a file: one profile, `default-scheduler`.
    fn default() -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            parallelism: sixteen(),
            leader_election: LeaderElection::default(),
            client_connection: ClientConnection::default(),
            enable_profiling: true,
            enable_contention_profiling: false,
            percentage_of_nodes_to_score: None,
            pod_initial_backoff_seconds: one(),
            pod_max_backoff_seconds: ten(),
            profiles: Vec::new(),
            extenders: Vec::new(),
            delay_cache_until_active: false,
        }
    }
}

impl Configuration {
    /// Parses a configuration file in YAML or JSON.
    ///
    /// # Errors
    /// Fails on a syntax error, an unknown field, a wrong type or an invalid value; names its path.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let value: Value =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Syntax(error.to_string()))?;
        let config: Self = decode(value)?;
        config.validate()?;
        Ok(config)
    }

    /// Returns the configuration used without a file: a profile with every Koordinator plugin of this build,
    /// under each of `names`.
    #[must_use]
    pub fn koord(names: &[String]) -> Self {
        let profiles = names
            .iter()
            .map(|name| ProfileConfig {
                scheduler_name: Some(name.clone()),
                ..Default::default()
            })
            .collect();
        Self {
            profiles,
            ..Self::default()
        }
    }

    /// Returns true if an extender receives the victims of a preemption as whole objects.
    pub(crate) fn shows_victims(&self) -> bool {
        let shown = |it: &Extender| !it.preempt_verb.is_empty() && !it.node_cache_capable;
        self.extenders.iter().any(shown)
    }

    /// Returns a message for each setting that has no effect.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let profiles = self.profiles.iter().enumerate().map(|(at, profile)| {
            let field = format!("profiles[{at}].percentageOfNodesToScore");
            (field, profile.percentage_of_nodes_to_score)
        });
        let own = (
            "percentageOfNodesToScore".to_owned(),
            self.percentage_of_nodes_to_score,
        );
        for (field, percent) in std::iter::once(own).chain(profiles) {
            if let Some(percent) = percent.filter(|percent| !matches!(percent, 0 | 100)) {
                notes.push(format!(
                    "{field}={percent} has no effect: every feasible node is scored"
                ));
            }
        }
        notes
    }

    /// Returns the arguments in `profile` by plugin.
    pub(crate) fn args(profile: &ProfileConfig) -> BTreeMap<&str, &Value> {
        profile
            .plugin_config
            .iter()
            .map(|entry| (entry.name.as_str(), &entry.args))
            .collect()
    }
}

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";

fn yes() -> bool {
    true
}
fn sixteen() -> i32 {
    16
}
fn one() -> i64 {
    1
}
fn ten() -> i64 {
    10
}

#[cfg(test)]
mod tests;
