//! What is on at each extension point, from what is on by default and what a profile says.

use super::{PluginRef, PluginSet, PluginsConfig};
use std::collections::BTreeMap;

/// The plugin that evicts and filters by default.
pub(crate) const MIGRATION_CONTROLLER: &str = "MigrationController";

/// What is on, in order, and nothing by default: reading the result again gives the same.
pub(crate) fn merged(plugins: &PluginsConfig) -> PluginsConfig {
    PluginsConfig {
        deschedule: set(&[], &plugins.deschedule),
        balance: set(&[], &plugins.balance),
        evict: set(&[MIGRATION_CONTROLLER], &plugins.evict),
        filter: set(&[MIGRATION_CONTROLLER], &plugins.filter),
    }
}

/// A default that the profile names as well keeps its place, once; the last of several such entries stands for it.
/// Everything else that the profile names is appended as it is: what is there twice is found later.
fn set(by_default: &[&str], of_profile: &PluginSet) -> PluginSet {
    let is_off = |name: &str| of_profile.disabled.iter().any(|off| off.name == name);
    let last = of_profile.enabled.iter().enumerate();
    let last: BTreeMap<_, _> = last
        .map(|(at, plugin)| (plugin.name.as_str(), at))
        .collect();
    let defaults = by_default.iter().filter(|_| !is_off("*"));
    let defaults: Vec<_> = defaults.filter(|name| !is_off(name)).collect();
    let stood_for: Vec<_> = defaults
        .iter()
        .filter_map(|name| last.get(**name))
        .collect();
    let rest = of_profile.enabled.iter().enumerate();
    let rest = rest.filter(|(at, _)| !stood_for.contains(&at));
    let named = |name: &str| PluginRef {
        name: name.to_owned(),
    };
    PluginSet {
        enabled: defaults
            .iter()
            .map(|name| named(name))
            .chain(rest.map(|(_, plugin)| plugin.clone()))
            .collect(),
        disabled: vec![named("*")],
    }
}
