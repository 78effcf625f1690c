//! The instances of plugins, and which of them do what.

use super::consult;
use crate::framework::{
    EventNames, Holders, Instance, Interest, Plugin, Points, Profile, Profiles,
};
use crate::queue::PluginSet;
use rustc_hash::FxHashMap;

/// Plugins by instance, and sets and lists of them that do not change.
///
/// Invariant: `names` has one more entry than `plugins`, that of all extenders together; instances in `profiles`,
/// `signers`, `protectors` and in the sets are positions in `plugins`.
pub(super) struct PluginTable {
    pub(super) profiles: Vec<Profile>,
    pub(super) plugins: Vec<Box<dyn Plugin>>,
    /// By instance; the last is that of all extenders together.
    pub(super) names: Vec<&'static str>,
    pub(super) interests: Vec<Vec<Interest>>,
    /// The plugins that decide where holders go.
    pub(super) judges_holders: PluginSet,
    /// The plugins that book holders as they book pods.
    pub(super) books_holders: PluginSet,
    /// Per profile, the plugins whose reading of a pod makes its shape.
    pub(super) signers: Vec<Vec<Instance>>,
    /// Plugins that keep pods from being victims.
    pub(super) protectors: Vec<Instance>,
    /// How events about objects of other kinds are counted.
    pub(super) event_names: FxHashMap<&'static str, EventNames>,
}

impl PluginTable {
    /// Returns the table of all instances of `profiles`.
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
            let those = all.filter(|(_, plugin)| plugin.holders() >= least);
            those.fold(0, |set, (instance, _)| set | 1 << instance)
        };
        let protectors = (0..plugins.len())
            .filter(|instance| plugins[*instance].protection().is_some())
            .collect();
        let mut event_names: FxHashMap<&'static str, EventNames> = FxHashMap::default();
        for watch in plugins.iter().flat_map(|plugin| plugin.watches()) {
            let (kind, names) = (watch.kind(), watch.names());
            // Of several who watch a kind, one says how it is called.
            if names != [kind; 3] || !event_names.contains_key(kind) {
                event_names.insert(kind, names);
            }
        }
        let names = plugins.iter().map(|plugin| plugin.name());
        Self {
            judges_holders: holders(Holders::Judged),
            books_holders: holders(Holders::Booked),
            names: names.chain([consult::NAME]).collect(),
            interests: plugins.iter().map(|plugin| plugin.interests()).collect(),
            profiles,
            signers,
            protectors,
            event_names,
            plugins,
        }
    }
}

/// The plugins whose answers pods share, each once.
fn signers(profile: &Profile, plugins: &[Box<dyn Plugin>]) -> Vec<Instance> {
    let scores = profile.score.iter().map(|(instance, _)| instance);
    let mut out: Vec<Instance> = profile
        .pre_filter
        .iter()
        .chain(&profile.filter)
        .chain(scores)
        .copied()
        .collect();
    // What volatile plugins say is not shared.
    out.retain(|at| plugins[*at].volatile().is_none());
    out.sort_unstable();
    out.dedup();
    debug_assert!(out.iter().all(|at| plugins[*at].points() != Points(0)));
    out
}
