//! The list of plugins the binary offers, as data.

use super::BoxedPlugin;
use koord_app::flags::Selection;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What a plugin may know when it is built.
#[derive(Debug, Clone, Default)]
pub struct BuildContext {
    /// Feature gates by name.
    pub gates: BTreeMap<String, bool>,
    /// The plugins whose controllers run: what they do beside deciding, such as keeping the status
    /// of their objects true.
    pub controllers: Selection,
    /// Whether the network topology of the cluster is kept up to date.
    pub network_topology: bool,
    /// The names of all profiles: pods of these are placed by this process.
    pub schedulers: BTreeSet<String>,
    /// Resources of which others than this process know how much a node has.
    pub ignored_resources: Vec<String>,
}

impl BuildContext {
    /// With these feature gates.
    #[must_use]
    pub fn with_gates(gates: BTreeMap<String, bool>) -> Self {
        Self {
            gates,
            ..Self::default()
        }
    }
}

/// A plugin that cannot be built from its arguments.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("pluginConfig of {plugin}: {message}")]
pub struct BuildError {
    /// The plugin's name.
    pub plugin: String,
    /// Names the field and the value.
    pub message: String,
}

/// Builds a plugin from its arguments, if it has any.
pub type Build = fn(Option<&Value>, &BuildContext) -> Result<BoxedPlugin, BuildError>;

/// How to build one plugin.
#[derive(Clone)]
pub struct Factory {
    /// The name in configuration files.
    pub name: &'static str,
    /// Its weight when it is on by default, as in an empty configuration of kube-scheduler.
    pub default_weight: Option<i64>,
    /// Its weight when it is on in the profile used without a configuration file.
    pub koord_weight: Option<i64>,
    /// Builds it from the args of its `pluginConfig` entry, or from its defaults.
    pub build: Build,
}

impl std::fmt::Debug for Factory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Factory")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Plugins of one extension point, in order.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// By name; those that do not exist are passed over.
    pub plugins: Vec<&'static str>,
    /// Whether no others run there; else they come after the others.
    pub alone: bool,
}

/// All plugins that profiles may name, in the order in which they run by default.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// The plugins.
    pub factories: Vec<Factory>,
    /// Names that configurations for upstream may mention and that do nothing here yet. A profile
    /// that enables one is accepted, and says so at start.
    pub accepted: Vec<&'static str>,
    /// Plugins that run before the binding in every profile that does not disable them there.
    pub before_binding: Vec<&'static str>,
    /// The order of plugins in the profile that is used without a configuration file, by extension
    /// point. A plugin that is on in that profile only runs where it is listed; a point that is not
    /// listed runs all that extend it.
    pub koord_order: BTreeMap<&'static str, Order>,
    /// Args for the profile that is used without a configuration file, by plugin name.
    pub koord_args: BTreeMap<&'static str, Value>,
}

impl Registry {
    /// The factory of `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Factory> {
        self.factories.iter().find(|factory| factory.name == name)
    }
}
