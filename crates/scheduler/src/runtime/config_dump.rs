//! `--write-config-to`: the effective configuration as a file.

use super::{Error, Options};
use crate::config::{PluginArgs, PluginRef, PluginSetConfig, PluginsConfig};
use crate::framework::{Profile, Profiles};

impl Options {
    /// Returns the effective configuration as YAML, with the plugins of each profile listed per extension
    /// point, so that the file is equivalent.
    ///
    /// # Errors
    /// Fails if the configuration is invalid or cannot be serialized.
    pub fn written(&self) -> Result<String, Error> {
        let (mut config, profiles) = self.resolve()?;
        if config.profiles.is_empty() {
            let names = profiles.profiles.iter().map(|profile| profile.name.clone());
            config.profiles =
                crate::config::Configuration::koord(&names.collect::<Vec<_>>()).profiles;
        }
        for (section, profile) in config.profiles.iter_mut().zip(&profiles.profiles) {
            section.plugins = resolve_plugins(&profiles, profile);
            if self.config.is_none() {
                section.plugin_config = self.built_in_args(&section.plugins);
            }
        }
        serde_saphyr::to_string(&config).map_err(|error| Error::Written(error.to_string()))
    }

    /// Returns the arguments that the built-in profile has for the enabled plugins.
    fn built_in_args(&self, plugins: &PluginsConfig) -> Vec<PluginArgs> {
        let is_enabled = |name: &str| {
            let sets = plugins.sets();
            let mut enabled = sets.iter().flat_map(|(_, set)| &set.enabled);
            enabled.any(|plugin| plugin.name == name)
        };
        let args = self.registry.koord_args.iter();
        let args = args.filter(|(name, _)| is_enabled(name));
        args.map(|(name, args)| PluginArgs {
            name: (*name).to_owned(),
            args: args.clone(),
        })
        .collect()
    }
}

/// Returns the enabled plugins of `profile` at each extension point, with all defaults disabled.
fn resolve_plugins(profiles: &Profiles, profile: &Profile) -> PluginsConfig {
    let plugin = |instance: usize, weight| PluginRef {
        name: profiles.instances[instance].name().to_owned(),
        weight,
    };
    let all = || PluginRef {
        name: "*".to_owned(),
        weight: None,
    };
    let set = |instances: &[usize]| PluginSetConfig {
        enabled: instances.iter().map(|index| plugin(*index, None)).collect(),
        disabled: vec![all()],
    };
    let score = profile.score.iter();
    PluginsConfig {
        pre_enqueue: set(&profile.pre_enqueue),
        pre_filter: set(&profile.pre_filter),
        filter: set(&profile.filter),
        post_filter: set(&profile.post_filter),
        pre_score: set(&profile.pre_score),
        score: PluginSetConfig {
            enabled: score
                .map(|(at, weight)| plugin(*at, Some(*weight)))
                .collect(),
            disabled: vec![all()],
        },
        reserve: set(&profile.reserve),
        permit: set(&profile.permit),
        pre_bind: set(&profile.pre_bind),
        bind: set(&profile.bind),
        post_bind: set(&profile.post_bind),
        queue_sort: PluginSetConfig {
            enabled: vec![PluginRef {
                name: "PrioritySort".to_owned(),
                weight: None,
            }],
            disabled: vec![all()],
        },
        multi_point: PluginSetConfig {
            enabled: Vec::new(),
            disabled: vec![all()],
        },
    }
}
