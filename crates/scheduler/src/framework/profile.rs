//! Resolves the configuration to lists of plugins per extension point.

#[cfg(doc)]
use super::Plugin;
use super::{BoxedPlugin, BuildContext, BuildError, Factory, Order, Points, Registry, Watch};
use crate::config::{Configuration, PluginSetConfig, PluginsConfig, ProfileConfig};
use koord_model::resources::ResourceTable;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A plugin instance, as its index among all instances.
pub type Instance = usize;

/// Errors of profiles that cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// A plugin name that is not registered.
    #[error("profile {profile:?}: plugin {plugin:?} does not exist")]
    UnknownPlugin {
        /// `schedulerName`.
        profile: String,
        /// The plugin's name.
        plugin: String,
    },
    /// A plugin was enabled at a point that it does not extend.
    #[error("profile {profile:?}: plugin {plugin:?} does not extend {point}")]
    WrongPoint {
        /// `schedulerName`.
        profile: String,
        /// The plugin.
        plugin: String,
        /// The extension point.
        point: &'static str,
    },
    /// The profile has no bind plugin.
    #[error("profile {profile:?}: at least one bind plugin is needed")]
    NoBind {
        /// `schedulerName`.
        profile: String,
    },
    /// A weight is out of range.
    #[error(
        "profile {profile:?}: weight {weight} of plugin {plugin:?} is not within 1 and 1000000"
    )]
    Weight {
        /// `schedulerName`.
        profile: String,
        /// The plugin.
        plugin: String,
        /// The weight.
        weight: i64,
    },
    /// The profiles need more plugin instances than a set can hold.
    #[error("{0} plugin instances are more than the 127 supported; let profiles share arguments")]
    TooMany(usize),
    /// A plugin rejected its arguments.
    #[error("profile {profile:?}: {error}")]
    Build {
        /// `schedulerName`.
        profile: String,
        /// The plugin's error.
        error: BuildError,
    },
}

/// The plugins of one scheduler name by extension point, in the order in which they run.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, reason = "the extension points by their names")]
pub struct Profile {
    pub name: String,
    pub pre_enqueue: Vec<Instance>,
    pub pre_filter: Vec<Instance>,
    pub filter: Vec<Instance>,
    pub post_filter: Vec<Instance>,
    pub pre_score: Vec<Instance>,
    /// Score plugins with their weights.
    pub score: Vec<(Instance, i64)>,
    pub reserve: Vec<Instance>,
    pub permit: Vec<Instance>,
    pub pre_bind: Vec<Instance>,
    pub bind: Vec<Instance>,
    pub post_bind: Vec<Instance>,
}

/// All profiles and the plugin instances they share: one instance per distinct name and arguments, or one per
/// name if the plugin serves all profiles ([`Plugin::join`]).
pub struct Profiles {
    /// The profiles.
    pub profiles: Vec<Profile>,
    /// The instances.
    pub instances: Vec<BoxedPlugin>,
    /// Requests of the configuration that are not met.
    pub warnings: Vec<String>,
    /// The mapping of resource names to numbers, also for readers of pods that run before an engine exists.
    pub resources: Arc<ResourceTable>,
}

impl std::fmt::Debug for Profiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profiles")
            .field("profiles", &self.profiles)
            .finish_non_exhaustive()
    }
}

struct Builder<'a> {
    registry: &'a Registry,
    context: &'a BuildContext,
    /// The source of each instance.
    built: Vec<InstanceSource>,
    out: Profiles,
}

/// The name and arguments that an instance was built from, and the profiles with other arguments that joined
/// it.
struct InstanceSource {
    plugin: String,
    args: Option<Value>,
    joined: Vec<String>,
}

impl Profiles {
    /// Returns the kinds that plugins watch in addition to pods and nodes, each once.
    #[must_use]
    pub fn watches(&self) -> Vec<Watch> {
        let mut watches: Vec<Watch> = Vec::new();
        let inputs = self.instances.iter().filter_map(|plugin| plugin.inputs());
        for watch in inputs.flat_map(|inputs| inputs.watches()) {
            if watches.iter().all(|other| other.kind() != watch.kind()) {
                watches.push(watch);
            }
        }
        watches
    }

    /// Builds the profiles of `config`. With `koord`, the registry's Koordinator plugins are on by default in
    /// each profile, as they are without a configuration file.
    ///
    /// # Errors
    /// Fails on an unknown plugin, a plugin at a point that it does not extend, or invalid arguments.
    pub fn build(
        config: &Configuration,
        registry: &Registry,
        context: &BuildContext,
        koord: bool,
    ) -> Result<Self, ProfileError> {
        let out = Self {
            profiles: Vec::new(),
            instances: Vec::new(),
            warnings: Vec::new(),
            resources: Arc::default(),
        };
        let fallback = [ProfileConfig::default()];
        let profiles = if config.profiles.is_empty() {
            &fallback[..]
        } else {
            &config.profiles[..]
        };
        let context = BuildContext {
            schedulers: profiles.iter().map(name_of).collect(),
            ignored_resources: crate::config::ignored(&config.extenders),
            ..context.clone()
        };
        let mut builder = Builder {
            registry,
            context: &context,
            built: Vec::new(),
            out,
        };
        for profile in profiles {
            builder.profile(profile, koord)?;
        }
        // One place among those that refuse is the extenders'.
        if builder.out.instances.len() > 127 {
            return Err(ProfileError::TooMany(builder.out.instances.len()));
        }
        Ok(builder.out)
    }

    /// Returns the index of the profile for pods of `scheduler_name`.
    #[must_use]
    pub fn find(&self, scheduler_name: &str) -> Option<usize> {
        self.profiles
            .iter()
            .position(|profile| profile.name == scheduler_name)
    }
}

/// An enabled plugin with its weight.
type EnabledPlugin<'a> = (&'a str, i64);

/// Returns the name by which pods select the profile.
fn name_of(config: &ProfileConfig) -> String {
    let name = config.scheduler_name.clone();
    name.unwrap_or_else(|| "default-scheduler".to_owned())
}

impl Builder<'_> {
    /// Builds a profile with its plugin instances.
    fn profile(&mut self, config: &ProfileConfig, koord: bool) -> Result<(), ProfileError> {
        let name = name_of(config);
        let args = Configuration::args(config);
        let weight = |factory: &Factory| {
            if koord {
                factory.koord_weight
            } else {
                factory.default_weight
            }
        };
        let defaults: Vec<EnabledPlugin<'_>> = self
            .registry
            .factories
            .iter()
            .filter_map(|factory| weight(factory).map(|weight| (factory.name, weight)))
            .collect();
        let multi = &config.plugins.multi_point;
        let multi_point = merge(&defaults, multi);
        let mut profile = Profile {
            name: name.clone(),
            ..Profile::default()
        };
        let mut enabled = BTreeSet::new();
        for (point, label, set) in points(&config.plugins) {
            let order = self.registry.koord_order.get(label).filter(|_| koord);
            let on = match order {
                Some(order) => self.built_in(order, &multi_point),
                None => at_point(set, &multi_point),
            };
            for ((plugin, weight), explicit) in on {
                let Some(instance) = self.instance(&name, plugin, &args, koord)? else {
                    enabled.insert(plugin);
                    continue;
                };
                if !self.out.instances[instance].points().has(point) {
                    if explicit {
                        let plugin = plugin.to_owned();
                        return Err(ProfileError::WrongPoint {
                            profile: name,
                            plugin,
                            point: label,
                        });
                    }
                    continue;
                }
                if point == Points::SCORE && !(1..=1_000_000).contains(&weight) {
                    let plugin = plugin.to_owned();
                    return Err(ProfileError::Weight {
                        profile: name,
                        plugin,
                        weight,
                    });
                }
                enabled.insert(plugin);
                profile.put(point, instance, weight);
            }
        }
        for (plugin, given) in &args {
            self.check_args(&name, plugin, given)?;
        }
        if profile.bind.is_empty() {
            return Err(ProfileError::NoBind { profile: name });
        }
        for plugin in &self.registry.before_binding {
            let off = |d: &crate::config::PluginRef| d.name == "*" || d.name == *plugin;
            if config.plugins.pre_bind.disabled.iter().any(off) {
                continue;
            }
            enabled.insert(plugin);
            if let Some(instance) = self.instance(&name, plugin, &args, koord)?
                && !profile.pre_bind.contains(&instance)
            {
                profile.pre_bind.push(instance);
            }
        }
        for plugin in args.keys().filter(|plugin| !enabled.contains(*plugin)) {
            self.out.warnings.push(format!(
                "profile {name:?}: arguments of plugin {plugin} have no effect: the profile does not enable it"
            ));
        }
        self.prepare(&mut profile);
        self.out.profiles.push(profile);
        Ok(())
    }

    /// Checks arguments, also of plugins that run at no point: upstream decodes all of them at start, and a
    /// plugin that is enabled later must not be the first to reveal a mistake.
    fn check_args(&self, profile: &str, plugin: &str, args: &Value) -> Result<(), ProfileError> {
        let failed = |error| ProfileError::Build {
            profile: profile.to_owned(),
            error,
        };
        let used = |built: &InstanceSource| {
            let joined = || {
                built
                    .joined
                    .iter()
                    .any(|joined_profile| joined_profile == profile)
            };
            built.plugin == plugin && (built.args.as_ref() == Some(args) || joined())
        };
        match self.registry.find(plugin) {
            Some(_) if self.built.iter().any(used) => Ok(()),
            Some(factory) => (factory.build)(Some(args), self.context)
                .map(drop)
                .map_err(failed),
            None if self.registry.accepted.contains(&plugin) => Ok(()),
            None => Err(ProfileError::UnknownPlugin {
                profile: profile.to_owned(),
                plugin: plugin.to_owned(),
            }),
        }
    }

    /// Returns the plugins at an extension point of the profile that is used without a configuration file.
    fn built_in<'a>(
        &self,
        order: &Order,
        multi_point: &[EnabledPlugin<'a>],
    ) -> Vec<(EnabledPlugin<'a>, bool)> {
        let by_default = |plugin: &str| {
            let factory = self.registry.find(plugin);
            factory.is_some_and(|factory| factory.default_weight.is_some())
        };
        let defaults = multi_point.iter().filter(|(plugin, _)| {
            !order.alone && by_default(plugin) && !order.plugins.contains(plugin)
        });
        let listed = order
            .plugins
            .iter()
            .filter_map(|plugin| multi_point.iter().find(|(name, _)| name == plugin));
        defaults.chain(listed).map(|on| (*on, false)).collect()
    }

    /// Adds plugins with a filter to pre-filter and those with a score to pre-score, if they are missing
    /// there. A configuration may name a plugin at the later point only: upstream's plugins may need no
    /// preparation where these do.
    fn prepare(&self, profile: &mut Profile) {
        let missing = |of: &mut dyn Iterator<Item = Instance>, have: &[Instance], point| {
            of.filter(|index| {
                !have.contains(index) && self.out.instances[*index].points().has(point)
            })
            .collect::<Vec<_>>()
        };
        let filters = &mut profile.filter.iter().copied();
        let added = missing(filters, &profile.pre_filter, Points::PRE_FILTER);
        profile.pre_filter.extend(added);
        let scores = &mut profile.score.iter().map(|(at, _)| *at);
        let added = missing(scores, &profile.pre_score, Points::PRE_SCORE);
        profile.pre_score.extend(added);
    }

    /// Returns the instance of `plugin` with this profile's arguments; `None` for a plugin that is accepted
    /// but does nothing.
    fn instance(
        &mut self,
        profile: &str,
        plugin: &str,
        args: &std::collections::BTreeMap<&str, &Value>,
        koord: bool,
    ) -> Result<Option<Instance>, ProfileError> {
        let Some(factory) = self.registry.find(plugin) else {
            if !self.registry.accepted.contains(&plugin) {
                let (profile, plugin) = (profile.to_owned(), plugin.to_owned());
                return Err(ProfileError::UnknownPlugin { profile, plugin });
            }
            let warning = format!("profile {profile:?}: plugin {plugin} is not available yet");
            if !self.out.warnings.contains(&warning) {
                self.out.warnings.push(warning);
            }
            return Ok(None);
        };
        let koord_args = self.registry.koord_args.get(plugin).filter(|_| koord);
        let args = args.get(plugin).copied().or(koord_args);
        let failed = |error| ProfileError::Build {
            profile: profile.to_owned(),
            error,
        };
        let is_equal =
            |built: &InstanceSource| built.plugin == plugin && built.args.as_ref() == args;
        if let Some(at) = self.built.iter().position(is_equal) {
            return Ok(Some(at));
        }
        let existing = self.built.iter().position(|built| built.plugin == plugin);
        if let Some(at) = existing {
            if self.built[at].joined.iter().any(|name| name == profile) {
                return Ok(Some(at));
            }
            if let Some(joined) = self.out.instances[at].join(profile, args, self.context) {
                joined.map_err(failed)?;
                self.built[at].joined.push(profile.to_owned());
                return Ok(Some(at));
            }
        }
        let built = (factory.build)(args, self.context).map_err(failed)?;
        self.built.push(InstanceSource {
            plugin: plugin.to_owned(),
            args: args.cloned(),
            joined: Vec::new(),
        });
        self.out.instances.push(built);
        Ok(Some(self.out.instances.len() - 1))
    }
}

impl Profile {
    fn put(&mut self, point: Points, instance: Instance, weight: i64) {
        let list = match point {
            Points::SCORE => return self.score.push((instance, weight)),
            Points::PRE_ENQUEUE => &mut self.pre_enqueue,
            Points::PRE_FILTER => &mut self.pre_filter,
            Points::FILTER => &mut self.filter,
            Points::POST_FILTER => &mut self.post_filter,
            Points::PRE_SCORE => &mut self.pre_score,
            Points::RESERVE => &mut self.reserve,
            Points::PERMIT => &mut self.permit,
            Points::PRE_BIND => &mut self.pre_bind,
            Points::BIND => &mut self.bind,
            Points::POST_BIND => &mut self.post_bind,
            // The queue's order is built in: priority, then age.
            _ => return,
        };
        list.push(instance);
    }
}

fn enabled_from(plugin: &crate::config::PluginRef) -> EnabledPlugin<'_> {
    (
        plugin.name.as_str(),
        plugin.weight.filter(|weight| *weight != 0).unwrap_or(1),
    )
}

/// Returns the default plugins without the disabled ones, followed by the enabled ones. An enabled default
/// keeps its position.
fn merge<'a>(defaults: &[EnabledPlugin<'a>], set: &'a PluginSetConfig) -> Vec<EnabledPlugin<'a>> {
    let off = |name: &str| set.disabled.iter().any(|d| d.name == "*" || d.name == name);
    let mut on: Vec<EnabledPlugin<'a>> = defaults
        .iter()
        .filter(|(name, _)| !off(name))
        .copied()
        .collect();
    for plugin in set.enabled.iter().map(enabled_from) {
        match on.iter_mut().find(|(name, _)| *name == plugin.0) {
            Some(default) => *default = plugin,
            None => on.push(plugin),
        }
    }
    on
}

/// Returns the plugins at one point, and for each whether the point itself names it. In order: plugins of
/// `multi_point` that the point reconfigures, the others of `multi_point`, then those that only the point
/// names.
fn at_point<'a>(
    set: &'a PluginSetConfig,
    multi_point: &[EnabledPlugin<'a>],
) -> Vec<(EnabledPlugin<'a>, bool)> {
    let is_disabled = |plugin: &str| {
        let mut disabled = set.disabled.iter();
        disabled.any(|d| d.name == "*" || d.name == plugin)
    };
    let own: Vec<EnabledPlugin<'_>> = set.enabled.iter().map(enabled_from).collect();
    let contains =
        |plugin: &str, list: &[EnabledPlugin<'_>]| list.iter().any(|(name, _)| *name == plugin);
    let (replaced, only): (Vec<EnabledPlugin<'_>>, Vec<EnabledPlugin<'_>>) = own
        .iter()
        .partition(|(plugin, _)| !is_disabled(plugin) && contains(plugin, multi_point));
    let unnamed = multi_point
        .iter()
        .filter(|(plugin, _)| !is_disabled(plugin) && !contains(plugin, &own));
    let mut on: Vec<(EnabledPlugin<'_>, bool)> =
        replaced.into_iter().map(|on| (on, true)).collect();
    on.extend(unnamed.map(|on| (*on, false)));
    on.extend(only.into_iter().map(|on| (on, true)));
    on
}

fn points(config: &PluginsConfig) -> [(Points, &'static str, &PluginSetConfig); 12] {
    [
        (Points::PRE_ENQUEUE, "preEnqueue", &config.pre_enqueue),
        (Points::QUEUE_SORT, "queueSort", &config.queue_sort),
        (Points::PRE_FILTER, "preFilter", &config.pre_filter),
        (Points::FILTER, "filter", &config.filter),
        (Points::POST_FILTER, "postFilter", &config.post_filter),
        (Points::PRE_SCORE, "preScore", &config.pre_score),
        (Points::SCORE, "score", &config.score),
        (Points::RESERVE, "reserve", &config.reserve),
        (Points::PERMIT, "permit", &config.permit),
        (Points::PRE_BIND, "preBind", &config.pre_bind),
        (Points::BIND, "bind", &config.bind),
        (Points::POST_BIND, "postBind", &config.post_bind),
    ]
}
