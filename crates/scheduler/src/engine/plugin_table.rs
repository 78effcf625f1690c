//! The table of plugin instances, with precomputed sets of plugins by role.

use super::extender_calls;
use super::measure::{self, Measurement, Meter, Point};
use crate::framework::{
    AnyPlugin, BoxedPlugin, ClusterEvent, Cycle, EventNames, Holders, Instance, Interest,
    ObjectChange, Points, Profile, Profiles, QueueingHint, View,
};
use crate::queue::PluginSet;
use crate::state::PodInfo;
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

/// Plugins by instance, and constant sets and lists of them.
///
/// Invariant: `names` has one more entry than `plugins`, that of all extenders together; instances in
/// `profiles`, `signers`, `protectors` and in the sets are positions in `plugins`.
pub struct PluginTable {
    pub(super) profiles: Vec<Profile>,
    pub(super) plugins: Vec<BoxedPlugin>,
    /// Plugin names by instance; the last is that of all extenders together.
    pub(super) names: Vec<&'static str>,
    pub(super) interests: Vec<Vec<Interest>>,
    /// Plugins that filter and score nodes for holders ([`Holders`]), such as reservations.
    pub(super) holder_filter_plugins: PluginSet,
    /// Plugins that treat holders ([`Holders`]) as pods in all respects.
    pub(super) holder_tracking_plugins: PluginSet,
    /// Per profile, the plugins whose signatures make up a pod's shape.
    pub(super) signers: Vec<Vec<Instance>>,
    /// The plugins that protect pods from preemption.
    pub(super) protectors: Vec<Instance>,
    /// The names in metrics of events about other kinds of objects.
    pub(super) event_names: FxHashMap<&'static str, EventNames>,
}

impl PluginTable {
    /// Creates the table of all instances of `profiles`.
    pub(super) fn new(profiles: Profiles) -> Self {
        let Profiles {
            profiles,
            instances: plugins,
            ..
        } = profiles;
        let signers = profiles
            .iter()
            .map(|profile| signers(profile, &plugins))
            .collect();
        let holders = |least: Holders| {
            let all = plugins.iter().enumerate();
            let matching = all.filter(|(_, plugin)| plugin.holders() >= least);
            matching.fold(0, |set, (instance, _)| set | 1 << instance)
        };
        let protectors = (0..plugins.len())
            .filter(|instance| plugins[*instance].protection().is_some())
            .collect();
        let mut event_names: FxHashMap<&'static str, EventNames> = FxHashMap::default();
        let inputs = plugins.iter().filter_map(|plugin| plugin.inputs());
        for watch in inputs.flat_map(|inputs| inputs.watches()) {
            let (kind, names) = (watch.kind(), watch.names());
            // If several plugins watch a kind, one that renames its events wins.
            if names != [kind; 3] || !event_names.contains_key(kind) {
                event_names.insert(kind, names);
            }
        }
        let names = plugins.iter().map(|plugin| plugin.name());
        Self {
            holder_filter_plugins: holders(Holders::Judged),
            holder_tracking_plugins: holders(Holders::Booked),
            names: names.chain([extender_calls::NAME]).collect(),
            interests: plugins.iter().map(|plugin| interests(&**plugin)).collect(),
            profiles,
            signers,
            protectors,
            event_names,
            plugins,
        }
    }

    /// Returns the bit that stands for the extenders in a set of refusing plugins.
    pub(super) fn extenders_bit(&self) -> PluginSet {
        1 << self.plugins.len()
    }

    pub(super) fn profile_of(&self, pod: &PodInfo) -> Option<usize> {
        self.profile_named(pod.scheduler_name())
    }

    pub(super) fn profile_named(&self, name: &str) -> Option<usize> {
        self.profiles
            .iter()
            .position(|profile| profile.name == name)
    }

    pub(super) fn gates_of(&self, pod: &PodInfo, profile: usize) -> PluginSet {
        let filter_plugins = self.filter_plugins_for(pod);
        let plugins = self.profiles[profile].pre_enqueue.iter();
        plugins
            .filter(|instance| filter_plugins & (1 << **instance) != 0)
            .filter(|instance| {
                let pre_enqueue = self.plugins[**instance].pre_enqueue();
                pre_enqueue.is_some_and(|it| it.pre_enqueue(pod).is_err())
            })
            .fold(0, |set, instance| set | 1 << instance)
    }

    /// Returns the plugins of `set`.
    pub(super) fn plugins_of(&mut self, set: PluginSet) -> impl Iterator<Item = &mut BoxedPlugin> {
        let numbered = self.plugins.iter_mut().enumerate();
        let selected = numbered.filter(move |(instance, _)| set & (1 << instance) != 0);
        selected.map(|(_, plugin)| plugin)
    }

    /// Returns the plugins that filter and score nodes for `pod`.
    pub(super) fn filter_plugins_for(&self, pod: &PodInfo) -> PluginSet {
        if pod.is_holder() {
            self.holder_filter_plugins
        } else {
            PluginSet::MAX
        }
    }

    /// Returns the plugins that keep state for `pod` from reserve on.
    pub(super) fn tracking_plugins_for(&self, pod: &PodInfo) -> PluginSet {
        if pod.is_holder() {
            self.holder_tracking_plugins
        } else {
            PluginSet::MAX
        }
    }

    /// Prepares the state of plugins for filtering and scoring nodes for `pod`, and measures each plugin if
    /// the cycle is timed.
    pub(super) fn prepare_state(
        &mut self,
        meter: &Meter,
        pod: &Arc<PodInfo>,
        profile: usize,
        view: View<'_>,
    ) {
        let set = self.prepared_plugins(pod, profile);
        let plugins = self.plugins.iter_mut().zip(&self.names).enumerate();
        for (_, (plugin, name)) in plugins.filter(|(instance, _)| set & (1 << instance) != 0) {
            if let Some(role) = plugin.preparation() {
                let prepare = || role.prepare(&Cycle::new(pod, view));
                meter.time(name, Point::BeforePreFilter, |()| true, prepare);
            }
        }
    }

    /// Returns the plugins whose state filtering and scoring nodes for `pod` may need.
    fn prepared_plugins(&self, pod: &PodInfo, profile: usize) -> PluginSet {
        let rules = &self.profiles[profile];
        let rules = rules.pre_filter.iter().chain(&rules.pre_score);
        rules.fold(0, |set, instance| set | 1 << instance) & self.filter_plugins_for(pod)
    }

    /// Brings the state of plugins up to date for inspection.
    pub(super) fn prepare_explain(&mut self, view: View<'_>) {
        let plugins = self.plugins.iter_mut();
        for role in plugins.filter_map(|plugin| plugin.preparation()) {
            role.prepare_explain(view);
        }
    }

    /// Returns the name in metrics of a change of an object.
    pub(crate) fn name_of(&self, change: &ObjectChange) -> &'static str {
        let names = self.event_names.get(change.kind);
        names.map_or(change.kind, |names| change.named(names))
    }

    pub(super) fn event_name(&self, event: &ClusterEvent<'_>) -> &'static str {
        let object = event.object.map(|change| self.name_of(change));
        object.unwrap_or_else(|| event.label())
    }

    /// Returns the plugins with these names, as a set.
    pub(super) fn named(&self, names: &[&'static str]) -> PluginSet {
        let at = |name: &&str| self.names.iter().position(|own_name| own_name == name);
        let at = names.iter().filter_map(at);
        at.fold(0, |set, at| set | 1 << at)
    }

    /// Returns true if a plugin's queueing hint lets `event` wake `pod`. For some events, the first hint is
    /// timed; `hint_called` is set once a hint was called for the event.
    pub(super) fn helps(
        &self,
        instance: Instance,
        pod: &PodInfo,
        event: &ClusterEvent<'_>,
        view: View<'_>,
        (meter, hint_called): (&Meter, &Cell<bool>),
    ) -> bool {
        let timed = !hint_called.replace(true) && meter.times_event();
        let began = timed.then(Instant::now);
        let hints = self.plugins[instance].queue_hints();
        let helps = hints.is_none_or(|hints| hints.hint(pod, event, view) == QueueingHint::Queue);
        if let Some(began) = began {
            meter.note(Measurement::Hint {
                plugin: self.names[instance],
                event: self.event_name(event),
                hint: if helps { "Queue" } else { "QueueSkip" },
                nanos: measure::nanos(began, Instant::now()),
            });
        }
        helps
    }

    /// Returns the profiles.
    #[must_use]
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// Returns a change with its objects in the form in which informers deliver them.
    #[must_use]
    pub fn as_delivered(&self, change: ObjectChange) -> ObjectChange {
        let inputs = self.plugins.iter().filter_map(|plugin| plugin.inputs());
        let mut watches = inputs.flat_map(|inputs| inputs.watches());
        match watches.find(|watch| watch.kind() == change.kind) {
            Some(watch) => watch.as_delivered(change),
            None => change,
        }
    }

    /// Returns the paths of [`super::Inspector::inspect`], with their prefix.
    #[must_use]
    pub fn inspections(&self) -> Vec<String> {
        let mut out: Vec<String> = self
            .plugins
            .iter()
            .filter_map(|plugin| Some((plugin.name(), plugin.explain()?)))
            .flat_map(|(name, explainer)| {
                let paths = explainer.inspections().iter();
                paths.map(move |path| format!("/apis/v1/plugins/{name}/{path}"))
            })
            .collect();
        out.sort_unstable();
        out.dedup();
        out
    }
}

/// Returns the events that can make a pod schedulable that `plugin` refused.
fn interests(plugin: &dyn AnyPlugin) -> Vec<Interest> {
    let hints = plugin.queue_hints();
    hints.map(|hints| hints.interests()).unwrap_or_default()
}

/// Returns the plugins whose results pods share, each once.
fn signers(profile: &Profile, plugins: &[BoxedPlugin]) -> Vec<Instance> {
    let scores = profile.score.iter().map(|(instance, _)| instance);
    let mut out: Vec<Instance> = profile
        .pre_filter
        .iter()
        .chain(&profile.filter)
        .chain(scores)
        .copied()
        .collect();
    // Results of volatile plugins are not shared.
    out.retain(|index| plugins[*index].volatile().is_none());
    out.sort_unstable();
    out.dedup();
    debug_assert!(
        out.iter()
            .all(|index| plugins[*index].points() != Points(0))
    );
    out
}

impl std::fmt::Debug for PluginTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginTable")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
