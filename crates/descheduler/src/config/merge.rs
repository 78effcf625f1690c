//! Merges the plugins enabled by default with those of a profile.

use super::{PluginRef, PluginSet, PluginsConfig};
use std::collections::BTreeMap;

/// The default plugin at the extension points `evict` and `filter`.
pub(crate) const MIGRATION_CONTROLLER: &str = "MigrationController";

/// Returns the enabled plugins in order, with all defaults disabled, so that merging the result again does
/// not change it.
pub(crate) fn merged(plugins: &PluginsConfig) -> PluginsConfig {
    PluginsConfig {
        deschedule: set(&[], &plugins.deschedule),
        balance: set(&[], &plugins.balance),
        evict: set(&[MIGRATION_CONTROLLER], &plugins.evict),
        filter: set(&[MIGRATION_CONTROLLER], &plugins.filter),
    }
}

/// Merges one extension point. A default that the profile lists as well keeps its position and appears once,
/// in place of the last such entry. All other plugins of the profile are appended unchanged; duplicates are
/// detected later.
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
    let additional = of_profile.enabled.iter().enumerate();
    let additional = additional.filter(|(at, _)| !stood_for.contains(&at));
    let named = |name: &str| PluginRef {
        name: name.to_owned(),
    };
    PluginSet {
        enabled: defaults
            .iter()
            .map(|name| named(name))
            .chain(additional.map(|(_, plugin)| plugin.clone()))
            .collect(),
        disabled: vec![named("*")],
    }
}
