//! The registry of the plugins that a program offers.

use super::BoxedPlugin;
use koord_app::flags::Selection;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The context that a plugin is built in.
#[derive(Debug, Clone, Default)]
pub struct BuildContext {
    /// Feature gates by name.
    pub gates: BTreeMap<String, bool>,
    /// The plugins whose controllers run. A controller does a plugin's work outside scheduling, such as
    /// updating the status of its objects.
    pub controllers: Selection,
    /// True if the network topology of the cluster is kept up to date.
    pub network_topology: bool,
    /// The names of all profiles: this process schedules the pods that name one of them.
    pub schedulers: BTreeSet<String>,
    /// Resources whose capacity is managed outside this process, by extenders.
    pub ignored_resources: Vec<String>,
}

impl BuildContext {
    /// Creates a context with these feature gates.
    #[must_use]
    pub fn with_gates(gates: BTreeMap<String, bool>) -> Self {
        Self {
            gates,
            ..Self::default()
        }
    }
}

/// The error of a plugin that cannot be built from its arguments.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("pluginConfig of {plugin}: {message}")]
pub struct BuildError {
    /// The plugin's name.
    pub plugin: String,
    /// The message; names the field and the value.
    pub message: String,
}

/// A function that builds a plugin from its arguments, if it has any.
pub type Build = fn(Option<&Value>, &BuildContext) -> Result<BoxedPlugin, BuildError>;

/// The name, weights and constructor of one plugin.
#[derive(Clone)]
pub struct Factory {
    /// The name in configuration files.
    pub name: &'static str,
    /// The weight if the plugin is on by default, as in an empty configuration of kube-scheduler.
    pub default_weight: Option<i64>,
    /// The weight if the plugin is on in the profile that is used without a configuration file.
    pub koord_weight: Option<i64>,
    /// Builds the plugin from the args of its `pluginConfig` entry, or from its defaults.
    pub build: Build,
}

impl std::fmt::Debug for Factory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Factory")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The order of plugins at one extension point.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Plugin names; names that do not exist are skipped.
    pub plugins: Vec<&'static str>,
    /// True if only these plugins run at the point; otherwise they run after the others.
    pub alone: bool,
}

/// All plugins that profiles may name, in the order in which they run by default.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// The plugins.
    pub factories: Vec<Factory>,
    /// Names of upstream plugins that configurations may mention and that are not implemented. A profile that
    /// enables one is accepted with a warning at start.
    pub accepted: Vec<&'static str>,
    /// Plugins that run at pre-bind in every profile that does not disable them there.
    pub before_binding: Vec<&'static str>,
    /// The order of plugins in the profile that is used without a configuration file, by extension point. A
    /// plugin that is on in that profile only runs where it is listed; at a point that is not listed, all
    /// plugins run that extend it.
    pub koord_order: BTreeMap<&'static str, Order>,
    /// Arguments for the profile that is used without a configuration file, by plugin name.
    pub koord_args: BTreeMap<&'static str, Value>,
}

impl Registry {
    /// Returns the factory of the plugin `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Factory> {
        self.factories.iter().find(|factory| factory.name == name)
    }
}
