//! Builds runnable profiles from a configuration.

use super::{DecodedArgs, PluginContext, Registry};
use crate::config::{
    ConfigError, Configuration, MIGRATION_CONTROLLER, PluginArgs, PluginRef, PluginSet,
    ProfileConfig, merged, refuse,
};
use crate::framework::{EvictionBackoff, Framework, Limits, PluginHandles, Profile};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A configuration with all defaults filled in, and its decoded plugin arguments.
pub struct CompletedConfig {
    /// The configuration with the enabled plugins of each extension point and the arguments of each plugin
    /// listed explicitly.
    pub config: Configuration,
    /// Profiles in the order of the configuration.
    pub profiles: Vec<CompletedProfile>,
    /// Messages about settings that have no effect.
    pub notes: Vec<String>,
}

/// A profile and the plugins that it uses.
pub struct CompletedProfile {
    at: usize,
    plugins: BTreeMap<String, DecodedArgs>,
}

impl std::fmt::Debug for CompletedConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("CompletedConfig");
        shown.field("config", &self.config).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for CompletedProfile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.plugins.keys().collect();
        f.debug_struct("CompletedProfile")
            .field("plugins", &names)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Completes `config`: resolves the enabled plugins and decodes their arguments.
    ///
    /// # Errors
    /// Returns an error if an enabled plugin does not exist or is listed twice, if not exactly one plugin
    /// evicts, or if plugin arguments are invalid.
    pub fn complete(&self, mut config: Configuration) -> Result<CompletedConfig, ConfigError> {
        let mut notes = Vec::new();
        let mut profiles = Vec::new();
        for (at, profile) in config.profiles.iter_mut().enumerate() {
            let plugins = self.complete_profile(at, profile, &mut notes)?;
            profiles.push(CompletedProfile { at, plugins });
        }
        Ok(CompletedConfig {
            config,
            profiles,
            notes,
        })
    }

    /// Completes and checks the profile at index `at`; returns the decoded arguments of its plugins.
    fn complete_profile(
        &self,
        at: usize,
        profile: &mut ProfileConfig,
        notes: &mut Vec<String>,
    ) -> Result<BTreeMap<String, DecodedArgs>, ConfigError> {
        let path = format!("profiles[{at}]");
        profile.plugins = merged(&profile.plugins);
        let points = &profile.plugins;
        let points = [
            ("deschedule", &points.deschedule),
            ("balance", &points.balance),
            ("evict", &points.evict),
            ("filter", &points.filter),
        ];
        for (point, set) in points {
            self.check_names(&format!("{path}.plugins.{point}"), set)?;
        }
        match &profile.plugins.evict.enabled[..] {
            [_] => {}
            [] => return refuse(format!("{path}.plugins.evict"), "no plugin evicts"),
            several => {
                let names: Vec<_> = several.iter().map(|plugin| plugin.name.as_str()).collect();
                let message = format!("{} both evict: only one can", names.join(" and "));
                return refuse(format!("{path}.plugins.evict"), message);
            }
        }
        let on = points.iter().flat_map(|(_, set)| &set.enabled);
        let on: BTreeSet<String> = on.map(|plugin| plugin.name.clone()).collect();
        let mut ready = BTreeMap::new();
        for (at, entry) in profile.plugin_config.iter_mut().enumerate() {
            let path = format!("{path}.pluginConfig[{at}].args");
            let PluginArgs { name, args } = entry;
            let Some(read) = self.read(name, &path, args)? else {
                notes.push(format!("{path}: there is no plugin {name}"));
                continue;
            };
            args.clone_from(&read.args);
            let is_on = on.contains(name);
            match &read.checked {
                Ok(()) => {}
                // Like upstream, which validates the arguments of other plugins only when it builds them.
                Err(problem) if is_on || name == MIGRATION_CONTROLLER => {
                    return refuse(path, problem);
                }
                Err(problem) => notes.push(format!("{path}: {problem}; {name} is not on")),
            }
            if is_on {
                ready.insert(name.clone(), read);
            }
        }
        for name in on {
            if ready.contains_key(&name) {
                continue;
            }
            let path = format!("{path}: arguments of {name} by default");
            let Some(read) = self.read(&name, &path, &Value::Null)? else {
                continue;
            };
            if let Err(problem) = &read.checked {
                return refuse(path, problem);
            }
            profile.plugin_config.push(PluginArgs {
                name: name.clone(),
                args: read.args.clone(),
            });
            ready.insert(name, read);
        }
        let name = |entry: &PluginArgs| entry.name.clone();
        profile.plugin_config.sort_by_key(name);
        Ok(ready)
    }

    fn check_names(&self, path: &str, set: &PluginSet) -> Result<(), ConfigError> {
        let mut distinct = BTreeSet::new();
        for (at, PluginRef { name }) in set.enabled.iter().enumerate() {
            let path = format!("{path}.enabled[{at}].name");
            if !self.plugins.contains_key(name.as_str()) {
                let names: Vec<_> = self.names().collect();
                let names = names.join(", ");
                return refuse(
                    path,
                    format!("there is no plugin {name:?}; there are {names}"),
                );
            }
            if !distinct.insert(name) {
                return refuse(path, format!("{name:?} is listed twice"));
            }
        }
        Ok(())
    }
}

impl CompletedConfig {
    /// Builds every enabled plugin, once for each profile.
    ///
    /// # Errors
    /// Returns an error if a plugin does not implement an extension point at which the profile enables it, or
    /// cannot be built.
    pub fn build(self) -> Result<Framework, ConfigError> {
        let config = &self.config;
        let limits = Limits {
            per_node: config.max_no_of_pods_to_evict_per_node,
            per_namespace: config.max_no_of_pods_to_evict_per_namespace,
            total: config.max_no_of_pods_to_evict_total,
        };
        let profiles = self.profiles.into_iter().zip(&config.profiles);
        let profiles = profiles.map(|(plugins, profile)| plugins.build(config, profile));
        Ok(Framework {
            profiles: profiles.collect::<Result<_, _>>()?,
            node_selector: config.node_selector.clone(),
            limits,
            dry_run: config.dry_run,
            without_claims: false,
            placement: None,
            backoff: EvictionBackoff::default(),
        })
    }
}

impl CompletedProfile {
    /// Builds the plugins and puts them at the extension points of the profile.
    fn build(
        self,
        config: &Configuration,
        profile: &ProfileConfig,
    ) -> Result<Profile, ConfigError> {
        let path = format!("profiles[{}]", self.at);
        let context = PluginContext {
            config,
            profile: &profile.name,
        };
        let mut built = BTreeMap::<String, PluginHandles>::new();
        for (name, ready) in self.plugins {
            match (ready.make)(context) {
                Ok(made) => built.insert(name, made),
                Err(problem) => return refuse(format!("{path}: plugin {name}"), problem),
            };
        }
        let plugins = &profile.plugins;
        let mut evict = taken(&path, "evict", &plugins.evict, &mut built, |built| {
            built.evict.take()
        })?;
        let Some(evictor) = evict.pop() else {
            return refuse(format!("{path}.plugins.evict"), "no plugin evicts");
        };
        Ok(Profile {
            name: profile.name.as_str().into(),
            node_selector: profile.node_selector.clone(),
            deschedule: taken(&path, "deschedule", &plugins.deschedule, &mut built, |it| {
                it.deschedule.take()
            })?,
            balance: taken(&path, "balance", &plugins.balance, &mut built, |it| {
                it.balance.take()
            })?,
            filters: taken(&path, "filter", &plugins.filter, &mut built, |it| {
                it.filter.take()
            })?,
            evictor,
        })
    }
}

/// Takes the implementations of the plugins of `set` at extension point `point`.
fn taken<T>(
    path: &str,
    point: &str,
    set: &PluginSet,
    built: &mut BTreeMap<String, PluginHandles>,
    take: fn(&mut PluginHandles) -> Option<T>,
) -> Result<Vec<T>, ConfigError> {
    let enabled = set.enabled.iter().enumerate();
    let take = enabled.map(|(at, PluginRef { name })| {
        let field = || format!("{path}.plugins.{point}.enabled[{at}].name");
        match built.get_mut(name).and_then(take) {
            Some(taken) => Ok(taken),
            None => refuse(field(), format!("plugin {name:?} does nothing at {point}")),
        }
    });
    take.collect()
}
