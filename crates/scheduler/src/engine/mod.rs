//! The scheduling engine: synchronous, one owner, no I/O.
//!
//! Events go in ([`Engine::pod_applied`], [`Engine::node_applied`], ...), decisions come out
//! ([`Engine::schedule_one`], [`Engine::take_outputs`]). All state is here: nodes as columns, pods
//! that are bound or assumed, the queue, and the plugins' own tables. A decision is booked at once
//! (*assumed*); the binding goes through the API later and is confirmed by the informer or undone.

mod batch;
mod class;
mod class_cache;
mod cluster;
mod consult;
mod cycle;
mod effects;
mod events;
mod explain;
mod few;
mod fresh;
mod grouped;
mod inspector;
mod measure;
mod memo;
mod nominator;
mod opinion;
mod output;
mod plan;
mod plugin_table;
mod pod_waker;
mod preempt;
mod preemptor;
mod promise;
mod room;
mod scope;
mod select;
mod special;
mod stage;
mod telemetry;
mod together;
mod tree;
mod verdicts;
mod waiting;

pub use class_cache::ClassCache;
pub use cluster::ClusterState;
pub use consult::{Consultation, Proposal, Question};
pub use explain::{Decision, Near, PluginScore, ScoredNode, Table};
pub use inspector::Inspector;
pub use measure::{Measured, Measures, Point};
pub use output::{BindRequest, Failure, Observer, Outcome, Output, Started};
pub use plugin_table::PluginTable;
pub use preemptor::Preemptor;
pub use telemetry::Telemetry;

pub use crate::framework::{Advice, Advised, Agreed, BindError};

use crate::config::Configuration;
use crate::framework::{Action, ClusterEvent, Cycle, Effects, Indexes, Profiles};
use crate::guard::guarded;
use crate::queue::{Backoff, PluginSet, Queue};
use crate::state::PodInfo;
use jiff::{SignedDuration, Timestamp};
use pod_waker::PodWaker;
use std::sync::Arc;
use waiting::{Waiting, WaitingPods};

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

/// See the module documentation.
pub struct Engine {
    options: EngineOptions,
    cluster: ClusterState,
    table: PluginTable,
    pub(crate) queue: Queue,
    pub(crate) classes: ClassCache,
    waits: WaitingPods,
    preemptor: Preemptor,
    calls: consult::ExtenderCalls,
    promises: Vec<promise::Promise>,
    /// What the engine reports of its work, to be observed or emptied.
    pub telemetry: Telemetry,
    outbox: Vec<Output>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("nodes", &self.cluster.nodes.len())
            .field("pods", &self.cluster.pods.len())
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
        let resources = profiles.resources.clone();
        let table = PluginTable::new(profiles);
        let inputs = table.plugins.iter().filter_map(|plugin| plugin.inputs());
        let indexes = inputs.flat_map(|inputs| inputs.indexes());
        Self {
            options,
            cluster: ClusterState::new(resources, Indexes::new(indexes)),
            queue: Queue::new(backoff),
            classes: ClassCache::default(),
            waits: WaitingPods::default(),
            preemptor: Preemptor::default(),
            calls: consult::ExtenderCalls::new(&config.extenders),
            promises: Vec::new(),
            telemetry: Telemetry::new(table.profiles.len(), table.names.clone()),
            outbox: Vec::new(),
            table,
        }
    }

    /// Returns the nodes and what is booked on them.
    #[must_use]
    pub fn cluster(&self) -> &ClusterState {
        &self.cluster
    }

    /// Returns the plugins.
    #[must_use]
    pub fn plugins(&self) -> &PluginTable {
        &self.table
    }

    /// Returns what pods of one shape share.
    #[must_use]
    pub fn classes(&self) -> &ClassCache {
        &self.classes
    }

    /// Returns nominations and evictions under way.
    #[must_use]
    pub fn preemptor(&self) -> &Preemptor {
        &self.preemptor
    }

    /// Returns what shows the state to people and metrics.
    pub fn inspector(&mut self) -> Inspector<'_> {
        Inspector {
            options: &self.options,
            cluster: &self.cluster,
            table: &mut self.table,
            queue: &self.queue,
            waits: &self.waits,
            preemptor: &self.preemptor,
            telemetry: &self.telemetry,
        }
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

    /// When time alone will make a pod ready or end a wait, as far as is known.
    #[must_use]
    pub fn next_deadline(&mut self) -> Option<Timestamp> {
        let waits = self.waits.next_deadline();
        let ticks = self.table.plugins_of(PluginSet::MAX);
        let ticks = ticks.filter_map(|plugin| plugin.tick());
        let ticks = ticks.filter_map(|tick| guarded("over time", || tick.next_tick())?);
        let queue = self.queue.next_deadline().into_iter();
        queue.chain(waits).chain(ticks).min()
    }

    /// Books `pod` on `node`; `assumed` ahead of the binding.
    fn book(&mut self, pod: Arc<PodInfo>, node: &str, assumed: bool, now: Timestamp) {
        let profile = self.table.profile_of(&pod);
        let index = self.cluster.book(&pod, node, profile, assumed);
        let mut fx = Effects::default();
        let told = self.table.booking(&pod);
        let plugins = self.table.plugins_of(told);
        for role in plugins.filter_map(|plugin| plugin.pod_events()) {
            let view = self.cluster.view(now);
            role.on_assigned(&pod, index, view, &mut fx);
        }
        self.apply(fx, now);
    }

    /// Takes a pod off its node. Plugins give back what they reserved if it was only assumed.
    fn unbook(&mut self, uid: &str, now: Timestamp) -> Option<Arc<PodInfo>> {
        let record = self.cluster.release(uid)?;
        self.preemptor.evicting.remove(uid);
        let told = self.table.booking(&record.info);
        if record.assumed
            && let Some(profile) = record.profile
        {
            let view = self.cluster.view(now);
            let mut fx = Effects::default();
            let instances = self.table.profiles[profile].reserve.iter().rev();
            for instance in instances.filter(|instance| told & (1 << **instance) != 0) {
                let cycle = Cycle::new(&record.info, view);
                if let Some(role) = self.table.plugins[*instance].reserve() {
                    guarded(UNDONE, || role.unreserve(&cycle, record.node, &mut fx));
                }
            }
            self.apply(fx, now);
        }
        // The row may be released with its last pod: plugins hear of it while it still has a name.
        let mut fx = Effects::default();
        guarded(UNDONE, || {
            let plugins = self.table.plugins_of(told);
            for role in plugins.filter_map(|plugin| plugin.pod_events()) {
                let view = self.cluster.view(now);
                role.on_unassigned(&record.info, record.node, view, &mut fx);
            }
        });
        self.cluster.nodes.remove_pod(record.node, uid);
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
        self.waits.pods.remove(uid);
        if !self
            .cluster
            .pods
            .get(uid)
            .is_some_and(|record| record.assumed)
        {
            return false;
        }
        let Some(pod) = self.unbook(uid, now) else {
            return false;
        };
        PodWaker::new(self).wake_for(&ClusterEvent::of_assigned(Action::DELETE, &pod), now);
        true
    }
}

#[cfg(test)]
mod tests;
