//! The scheduling engine: synchronous, one owner, no I/O.
//!
//! Events go in ([`Engine::pod_applied`], [`Engine::node_applied`], ...), decisions come out
//! ([`Engine::schedule_one`], [`Engine::take_outputs`]). All state is here: nodes as columns, pods
//! that are bound or assumed, the queue, and the plugins' own tables. A decision is booked at once
//! (*assumed*); the binding goes through the API later and is confirmed by the informer or undone.

/// The state as plugins read it, borrowing only the fields it needs.
macro_rules! view {
    ($engine:expr, $now:expr) => {
        $crate::framework::View {
            nodes: &$engine.nodes,
            resources: &$engine.resources,
            indexes: &$engine.indexes,
            now: $now,
        }
    };
}

mod batch;
mod class;
mod consult;
mod cycle;
mod effects;
mod events;
mod explain;
mod few;
mod fresh;
mod grouped;
mod measure;
mod memo;
mod nominator;
mod opinion;
mod output;
mod plan;
mod preempt;
mod promise;
mod room;
mod scope;
mod select;
mod special;
mod stage;
mod together;
mod tree;
mod verdicts;

pub use consult::{Consultation, Proposal, Question};
pub use explain::{Decision, Near, PluginScore, ScoredNode, Table};
pub use measure::{Measured, Measures, Point};
pub use output::{BindRequest, Failure, Observer, Outcome, Output, Started};

pub use crate::framework::{Advice, Advised, Agreed, BindError};

use crate::config::Configuration;
use crate::framework::{
    Action, Bookkeeping, Cycle, Effects, EventNames, Holders, Indexes, Instance, Interest,
    NotShown, Plugin, Points, Profile, Profiles, Readings, ShapeId, Subject, View,
};
use crate::guard::guarded;
use crate::queue::{Backoff, Pending, PluginSet, Queue};
use crate::state::{NodeIndex, NodeStore, PodInfo};
use class::Evaluation;
use jiff::{SignedDuration, Timestamp};
use koord_model::resources::ResourceTable;
use nominator::Nominator;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// How upstream's metrics call a pod that was not permitted.
const REFUSED: &str = "Unschedulable";
/// Over what a plugin may panic: the node has its room again all the same.
const UNDONE: &str = "while a booking was undone";

/// What the engine itself can be told.
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    /// Decides ties between equally good nodes.
    pub seed: u64,
    /// How many shapes of pods are remembered.
    pub max_classes: usize,
    /// How many bytes all that is remembered of shapes may take, about, a quarter of it at most being whom
    /// they might evict where; one shape is remembered whatever it takes.
    pub class_bytes: usize,
    /// From this many nodes on, several threads look at them, be it all for a shape that is new or those
    /// that changed for one that is not. The result is the same.
    pub parallel_rows: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            max_classes: 4096,
            // Less than 1 MiB a shape at 5,000 nodes.
            class_bytes: 640 << 20,
            parallel_rows: 1024,
        }
    }
}

#[derive(Debug)]
struct Record {
    info: Arc<PodInfo>,
    node: NodeIndex,
    profile: Option<usize>,
    assumed: bool,
}

/// A pod that keeps what it booked while it waits for permission.
#[derive(Debug, Clone)]
struct Waiting {
    pod: Arc<PodInfo>,
    profile: usize,
    on: Vec<&'static str>,
    since: Timestamp,
    /// Where: with permission still to come, or with something to happen before the binding.
    point: Point,
    until: Timestamp,
    /// Whose wait ends first, and how long that plugin wanted to wait.
    patience: (&'static str, SignedDuration),
    /// The last event that would have helped it had it been refused by who it waits for.
    missed: Option<&'static str>,
}

/// See the module documentation.
pub struct Engine {
    options: EngineOptions,
    caching: bool,
    resources: Arc<ResourceTable>,
    nodes: NodeStore,
    indexes: Indexes,
    pods: FxHashMap<Arc<str>, Record>,
    /// How many of them are only assumed.
    assumed: usize,
    queue: Queue,
    profiles: Vec<Profile>,
    plugins: Vec<Box<dyn Plugin>>,
    /// By instance; the last is that of all extenders together.
    names: Vec<&'static str>,
    interests: Vec<Vec<Interest>>,
    /// The plugins that say where holders go, and those to which they are pods.
    judges_holders: PluginSet,
    books_holders: PluginSet,
    /// Per profile, the plugins whose reading of a pod makes its shape.
    signers: Vec<Vec<Instance>>,
    classes: FxHashMap<(usize, ShapeId), Evaluation>,
    /// What they take together.
    class_bytes: usize,
    uses: u64,
    mismatches: u64,
    waiting: FxHashMap<Arc<str>, Waiting>,
    /// Plugins that pods wait for; those of before, too, until nobody waits.
    awaited: PluginSet,
    /// When waits end; entries of pods that wait no more are dropped when they come up.
    deadlines: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
    decisions: explain::Decisions,
    nominator: Nominator,
    memo: memo::Memo,
    /// Booked pods by priority.
    priorities: BTreeMap<i32, usize>,
    /// Victims whose eviction was asked for, and for whom.
    evicting: FxHashMap<Arc<str>, Arc<str>>,
    /// Pods that keep their place as a promise should they have to give it back now, by uid.
    kept: FxHashMap<Arc<str>, Arc<str>>,
    /// How often room was looked for, and how many had to go for it.
    preemptions: u64,
    victims_total: usize,
    /// How events about objects of other kinds are counted.
    event_names: FxHashMap<&'static str, EventNames>,
    /// Plugins that keep pods from being victims.
    protectors: Vec<Instance>,
    consultations: consult::Consultations,
    meter: measure::Meter,
    observer: Option<Observer>,
    outbox: Vec<Output>,
    promises: Vec<promise::Promise>,
    /// An empty list to be filled with the nodes that the next event touches.
    touched: Vec<NodeIndex>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("nodes", &self.nodes.len())
            .field("pods", &self.pods.len())
            .field("pending", &self.queue.pending())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine with nothing in it.
    #[must_use]
    pub fn new(config: &Configuration, profiles: Profiles, options: EngineOptions) -> Self {
        let backoff = Backoff {
            initial: SignedDuration::from_secs(config.pod_initial_backoff_seconds),
            max: SignedDuration::from_secs(config.pod_max_backoff_seconds),
        };
        let Profiles {
            profiles,
            instances: plugins,
            resources,
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
            options,
            consultations: consult::Consultations::new(&config.extenders),
            event_names,
            protectors,
            judges_holders: holders(Holders::Judged),
            books_holders: holders(Holders::Booked),
            caching: true,
            meter: measure::Meter::new(profiles.len(), plugins.len()),
            observer: None,
            resources,
            nodes: NodeStore::default(),
            indexes: Indexes::new(plugins.iter().flat_map(|plugin| plugin.indexes())),
            pods: FxHashMap::default(),
            assumed: 0,
            queue: Queue::new(backoff),
            names: names.chain([consult::NAME]).collect(),
            interests: plugins.iter().map(|plugin| plugin.interests()).collect(),
            profiles,
            plugins,
            signers,
            classes: FxHashMap::default(),
            class_bytes: 0,
            uses: 0,
            mismatches: 0,
            waiting: FxHashMap::default(),
            awaited: 0,
            deadlines: BinaryHeap::new(),
            decisions: explain::Decisions::default(),
            nominator: Nominator::default(),
            memo: memo::Memo::default(),
            priorities: BTreeMap::new(),
            evicting: FxHashMap::default(),
            kept: FxHashMap::default(),
            preemptions: 0,
            victims_total: 0,
            outbox: Vec::new(),
            promises: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// The nodes and what is booked on them.
    #[must_use]
    pub fn nodes(&self) -> &NodeStore {
        &self.nodes
    }

    /// The state as plugins read it.
    #[must_use]
    pub fn view(&self, now: Timestamp) -> View<'_> {
        view!(self, now)
    }

    /// Resource names and numbers.
    #[must_use]
    pub fn resources(&self) -> &ResourceTable {
        &self.resources
    }

    /// The profiles, with plugin positions resolved by [`Engine::plugin_name`].
    #[must_use]
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// Those who refuse when extenders do.
    fn extenders_bit(&self) -> PluginSet {
        1 << self.plugins.len()
    }

    /// The name of plugin instance `instance`.
    #[must_use]
    pub fn plugin_name(&self, instance: Instance) -> &'static str {
        self.names.get(instance).copied().unwrap_or_default()
    }

    /// How many pods wait where.
    #[must_use]
    pub fn pending(&self) -> Pending {
        self.queue.pending()
    }

    /// How many pods are booked, and how many of them are not confirmed by the informer yet.
    #[must_use]
    pub fn booked(&self) -> (usize, usize) {
        (self.pods.len(), self.assumed)
    }

    /// What is counted of shared answers must be what they take; for tests.
    #[must_use]
    pub fn memory_balances(&self) -> bool {
        let counted: usize = self.classes.values().map(|class| class.counted).sum();
        let mut classes = self.classes.values();
        counted == self.class_bytes && classes.all(|class| class.counted == class.bytes())
    }

    /// How often a shared evaluation named a node that the pod's own check refused.
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// How many pods entered which queue because of which event, since the last call.
    pub fn take_incoming(&mut self) -> FxHashMap<(&'static str, &'static str), u64> {
        self.queue.take_incoming()
    }

    /// Has `observer` told of every cycle before it begins.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// What was measured since the last call.
    pub fn take_measures(&mut self) -> Measures {
        self.meter.take(&self.names)
    }

    /// Whether so much was measured that it should be taken now.
    pub fn has_measured_much(&mut self) -> bool {
        self.meter.is_full()
    }

    /// What plugins measure of themselves.
    pub fn read(&mut self, now: Timestamp) -> Readings {
        let mut out = Readings::default();
        for plugin in &mut self.plugins {
            if let Some(metered) = plugin.metered() {
                let view = view!(self, now);
                guarded("over what it measures", || metered.read(view, &mut out));
            }
        }
        out
    }

    /// Refused pods per profile and refusing plugin.
    #[must_use]
    pub fn refused_by_plugin(&self) -> FxHashMap<(usize, &'static str), usize> {
        let mut out = FxHashMap::default();
        for (by, scheduler, pods) in self.queue.refusals() {
            let Some(profile) = self.profile_named(scheduler) else {
                continue;
            };
            for (instance, name) in self.names.iter().enumerate() {
                if by & (1 << instance) != 0 {
                    *out.entry((profile, *name)).or_default() += pods;
                }
            }
        }
        out
    }

    /// The node on which the pod with this uid is booked, and whether that is only assumed.
    #[must_use]
    pub fn placement(&self, uid: &str) -> Option<(&Arc<str>, bool)> {
        self.pods
            .get(uid)
            .map(|record| (self.nodes.name(record.node), record.assumed))
    }

    /// A pod that waits in the queue, by uid.
    #[must_use]
    pub fn queued(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.queue.get(uid).map(|queued| &queued.info)
    }

    /// What has to be done since the last call, in order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outbox)
    }

    /// What `plugin` answers to `GET /apis/v1/plugins/<plugin>/<path>?<query>`.
    ///
    /// # Errors
    /// There is no such plugin or path, or nothing to show there.
    pub fn inspect(
        &mut self,
        plugin: &str,
        path: &[&str],
        query: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Result<serde_json::Value, NotShown> {
        let known = self.names.iter().position(|name| *name == plugin);
        let at = known.ok_or(NotShown::NoSuchPath)?;
        if let Some(books) = self.plugins[at].books() {
            books.prepare_to_show(view!(self, now));
        }
        let insight = self.plugins[at].insight().ok_or(NotShown::NoSuchPath)?;
        insight.inspect(path, query, view!(self, now))
    }

    /// When time alone will make a pod ready or end a wait, as far as is known.
    #[must_use]
    pub fn next_deadline(&mut self) -> Option<Timestamp> {
        let waits = self.deadlines.peek().map(|Reverse((until, _))| *until);
        let books = books_of(PluginSet::MAX, &mut self.plugins);
        let ticks = books.filter_map(|books| guarded("over time", || books.next_tick())?);
        let queue = self.queue.next_deadline().into_iter();
        queue.chain(waits).chain(ticks).min()
    }

    fn profile_of(&self, pod: &PodInfo) -> Option<usize> {
        self.profile_named(pod.scheduler_name())
    }

    fn profile_named(&self, name: &str) -> Option<usize> {
        self.profiles
            .iter()
            .position(|profile| profile.name == name)
    }

    fn gates_of(&self, pod: &PodInfo, profile: usize) -> PluginSet {
        let asked = self.judging(pod);
        let plugins = self.profiles[profile].pre_enqueue.iter();
        plugins
            .filter(|instance| asked & (1 << **instance) != 0)
            .filter(|instance| self.plugins[**instance].pre_enqueue(pod).is_err())
            .fold(0, |set, instance| set | 1 << instance)
    }

    /// The plugins that are asked where `pod` goes.
    fn judging(&self, pod: &PodInfo) -> PluginSet {
        if pod.is_holder() {
            self.judges_holders
        } else {
            PluginSet::MAX
        }
    }

    /// Has books made ready for the rules to be asked where `pod` may go.
    fn prepare_books(&mut self, pod: &Arc<PodInfo>, profile: usize, now: Timestamp) {
        let rules = &self.profiles[profile];
        let rules = rules.pre_filter.iter().chain(&rules.pre_score);
        let asked = rules.fold(0, |set, instance| set | 1 << instance) & self.judging(pod);
        for books in books_of(asked, &mut self.plugins) {
            books.prepare(&Cycle::new(pod, view!(self, now)));
        }
    }

    /// Has books brought up to date for people.
    fn prepare_to_show(&mut self, now: Timestamp) {
        for books in books_of(PluginSet::MAX, &mut self.plugins) {
            books.prepare_to_show(view!(self, now));
        }
    }

    /// The plugins that have `pod` in their books.
    fn booking(&self, pod: &PodInfo) -> PluginSet {
        if pod.is_holder() {
            self.books_holders
        } else {
            PluginSet::MAX
        }
    }

    /// Books `pod` on `node` ahead of the binding.
    fn assume(&mut self, pod: &Arc<PodInfo>, node: &Arc<str>, now: Timestamp) {
        self.book(pod.clone(), node, true, now);
    }

    fn book(&mut self, pod: Arc<PodInfo>, node: &str, assumed: bool, now: Timestamp) {
        let index = self.nodes.add_pod(node, pod.clone());
        let profile = self.profile_of(&pod);
        let record = Record {
            info: pod.clone(),
            node: index,
            profile,
            assumed,
        };
        let before = self.pods.insert(pod.uid.clone(), record);
        let was_assumed = before.is_some_and(|before| before.assumed);
        self.assumed = self.assumed + usize::from(assumed) - usize::from(was_assumed);
        self.count_priority(&pod, true);
        let mut fx = Effects::default();
        let told = self.booking(&pod);
        for books in books_of(told, &mut self.plugins) {
            let view = view!(self, now);
            books.on_assigned(&pod, index, view, &mut fx);
        }
        self.apply(fx, now);
    }

    /// Takes a pod off its node. Plugins give back what they reserved if it was only assumed.
    fn unbook(&mut self, uid: &str, now: Timestamp) -> Option<Arc<PodInfo>> {
        let record = self.pods.remove(uid)?;
        self.assumed -= usize::from(record.assumed);
        self.count_priority(&record.info, false);
        self.evicting.remove(uid);
        let told = self.booking(&record.info);
        if record.assumed
            && let Some(profile) = record.profile
        {
            let view = view!(self, now);
            let mut fx = Effects::default();
            let instances = self.profiles[profile].reserve.iter().rev();
            for instance in instances.filter(|instance| told & (1 << **instance) != 0) {
                let cycle = Cycle::new(&record.info, view);
                if let Some(books) = self.plugins[*instance].books() {
                    guarded(UNDONE, || books.unreserve(&cycle, record.node, &mut fx));
                }
            }
            self.apply(fx, now);
        }
        // The row may be released with its last pod: plugins hear of it while it still has a name.
        let mut fx = Effects::default();
        guarded(UNDONE, || {
            for books in books_of(told, &mut self.plugins) {
                let view = view!(self, now);
                books.on_unassigned(&record.info, record.node, view, &mut fx);
            }
        });
        self.nodes.remove_pod(record.node, uid);
        self.apply(fx, now);
        Some(record.info)
    }

    /// As [`Self::forget`]. Where a plugin panics over it, the pod is to be tried again all the
    /// same.
    fn undo(&mut self, uid: &str, now: Timestamp) -> bool {
        let undone = guarded(UNDONE, || self.forget(uid, now));
        undone.unwrap_or(true)
    }

    /// Undoes an assumption, if the pod is only assumed.
    fn forget(&mut self, uid: &str, now: Timestamp) -> bool {
        self.waiting.remove(uid);
        if !self.pods.get(uid).is_some_and(|record| record.assumed) {
            return false;
        }
        let Some(pod) = self.unbook(uid, now) else {
            return false;
        };
        self.pod_event(Subject::AssignedPod, Action::DELETE, &pod, now);
        true
    }
}

/// The books of those plugins that are in `set` and keep any.
fn books_of(
    set: PluginSet,
    plugins: &mut [Box<dyn Plugin>],
) -> impl Iterator<Item = &mut dyn Bookkeeping> {
    let numbered = plugins.iter_mut().enumerate();
    numbered
        .filter(move |(instance, _)| set & (1 << instance) != 0)
        .filter_map(|(_, plugin)| plugin.books())
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

#[cfg(test)]
mod tests;
