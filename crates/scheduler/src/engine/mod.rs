//! The scheduling engine: synchronous, with one owner and without I/O.
//!
//! Events go in ([`Engine::pod_applied`], [`Engine::node_applied`], ...), decisions come out
//! ([`Engine::schedule_one`], [`Engine::take_outputs`]). All state is here: nodes as columns, pods that are
//! bound or assumed, the queue, and the plugins' own state. A decision takes effect at once (the pod is
//! *assumed* on its node); the binding goes through the API later and is confirmed by the informer or undone.

mod batch;
mod candidate_subset;
mod class;
mod class_cache;
mod cluster;
mod compare;
mod cycle;
mod effects;
mod events;
mod explain;
mod extender_calls;
mod extender_verdicts;
mod group_preemption;
mod inspector;
mod measure;
mod nominator;
mod output;
mod parallel;
mod plan;
mod plugin_table;
mod pod_waker;
mod post_filter;
mod preempt;
mod preemption_cache;
mod preemptor;
mod row_groups;
mod row_overlay;
mod scope;
mod second_stage;
mod select;
mod telemetry;
mod tentative;
mod tree;
mod verdicts;
mod waiting;

pub use class_cache::ClassCache;
pub use cluster::ClusterState;
pub use compare::{ComparedNode, first_difference};
pub use explain::{Decision, NearestNode, PluginScore, ScoredNode, Table};
pub use extender_calls::{ExtenderCall, ExtenderRequest, Proposal};
pub use inspector::Inspector;
pub use measure::{Measurement, Measures, Point};
pub use output::{BindRequest, CycleOutcome, CycleStart, Failure, Observer, Output};
pub use plugin_table::PluginTable;
pub use preemptor::Preemptor;
pub use telemetry::Telemetry;

pub use crate::framework::{BindError, ExtenderNodeResult, ExtenderPreemptResult, ExtenderResult};

use crate::config::Configuration;
use crate::framework::{Action, ClusterEvent, Cycle, Effects, Indexes, Profiles};
use crate::guard::guarded;
use crate::queue::{Backoff, PluginSet, Queue};
use crate::state::PodInfo;
use jiff::{SignedDuration, Timestamp};
use pod_waker::PodWaker;
use std::sync::Arc;
use waiting::{WaitingPod, WaitingPods};

/// Result label in upstream's metrics for a pod that was not permitted.
const REFUSED: &str = "Unschedulable";
/// Operation in logs of plugin panics while a pod leaves its node; the node's capacity is freed all the same.
const UNDONE: &str = "removing a pod from its node";

/// Settings of the engine itself.
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    /// Seed that breaks ties between equally good nodes.
    pub seed: u64,
    /// The maximum number of pod shapes to cache.
    pub max_classes: usize,
    /// Approximate limit in bytes for everything cached by shape. At most a quarter of it is used for
    /// preemption plans. One shape is cached whatever it takes.
    pub class_bytes: usize,
    /// The number of nodes from which several threads evaluate them: all nodes for a new shape, or the
    /// changed nodes for a cached one. The result does not depend on it.
    pub parallel_rows: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            max_classes: 4096,
            // Less than 1 MiB per shape at 5,000 nodes.
            class_bytes: 640 << 20,
            parallel_rows: 1024,
        }
    }
}

/// The scheduling engine: cluster state, queue, caches and plugins of one scheduler.
pub struct Engine {
    options: EngineOptions,
    cluster: ClusterState,
    table: PluginTable,
    pub(crate) queue: Queue,
    pub(crate) classes: ClassCache,
    waits: WaitingPods,
    preemptor: Preemptor,
    calls: extender_calls::ExtenderCalls,
    tentative: Vec<tentative::TentativePlacement>,
    /// Metrics and events of the engine's work, to be observed or taken.
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
    /// Creates an engine without nodes and pods.
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
            calls: extender_calls::ExtenderCalls::new(&config.extenders),
            tentative: Vec::new(),
            telemetry: Telemetry::new(table.profiles.len(), table.names.clone()),
            outbox: Vec::new(),
            table,
        }
    }

    /// Returns the nodes with the pods on them.
    #[must_use]
    pub fn cluster(&self) -> &ClusterState {
        &self.cluster
    }

    /// Returns the plugins.
    #[must_use]
    pub fn plugins(&self) -> &PluginTable {
        &self.table
    }

    /// Returns the cache of evaluations that pods of one shape share.
    #[must_use]
    pub fn classes(&self) -> &ClassCache {
        &self.classes
    }

    /// Returns nominations and pending evictions.
    #[must_use]
    pub fn preemptor(&self) -> &Preemptor {
        &self.preemptor
    }

    /// Returns a view of the state for users and metrics.
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

    /// Returns the queued pod with this uid.
    #[must_use]
    pub fn queued(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.queue.get(uid).map(|queued| &queued.info)
    }

    /// Returns the outputs since the last call, in order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outbox)
    }

    /// Returns the next known time at which a pod becomes ready or a wait ends without an event.
    #[must_use]
    pub fn next_deadline(&mut self) -> Option<Timestamp> {
        let waits = self.waits.next_deadline();
        let ticks = self.table.plugins_of(PluginSet::MAX);
        let ticks = ticks.filter_map(|plugin| plugin.tick());
        let ticks =
            ticks.filter_map(|tick| guarded("computing the next tick", || tick.next_tick())?);
        let queue = self.queue.next_deadline().into_iter();
        queue.chain(waits).chain(ticks).min()
    }

    /// Adds `pod` to `node`; `assumed` if its binding is not confirmed yet.
    fn book(&mut self, pod: Arc<PodInfo>, node: &str, assumed: bool, now: Timestamp) {
        let profile = self.table.profile_of(&pod);
        let index = self.cluster.book(&pod, node, profile, assumed);
        let mut fx = Effects::default();
        let tracking_plugins = self.table.tracking_plugins_for(&pod);
        let plugins = self.table.plugins_of(tracking_plugins);
        for role in plugins.filter_map(|plugin| plugin.pod_events()) {
            let view = self.cluster.view(now);
            role.on_assigned(&pod, index, view, &mut fx);
        }
        self.apply(fx, now);
    }

    /// Removes a pod from its node. If it was only assumed, plugins release what they reserved.
    fn unbook(&mut self, uid: &str, now: Timestamp) -> Option<Arc<PodInfo>> {
        let record = self.cluster.release(uid)?;
        self.preemptor.evicting.remove(uid);
        let tracking_plugins = self.table.tracking_plugins_for(&record.info);
        if record.assumed
            && let Some(profile) = record.profile
        {
            let view = self.cluster.view(now);
            let mut fx = Effects::default();
            let instances = self.table.profiles[profile].reserve.iter().rev();
            for instance in instances.filter(|instance| tracking_plugins & (1 << **instance) != 0) {
                let cycle = Cycle::new(&record.info, view);
                if let Some(role) = self.table.plugins[*instance].reserve() {
                    guarded(UNDONE, || role.unreserve(&cycle, record.node, &mut fx));
                }
            }
            self.apply(fx, now);
        }
        // The row may be released with its last pod: plugins are called while it still has a name.
        let mut fx = Effects::default();
        guarded(UNDONE, || {
            let plugins = self.table.plugins_of(tracking_plugins);
            for role in plugins.filter_map(|plugin| plugin.pod_events()) {
                let view = self.cluster.view(now);
                role.on_unassigned(&record.info, record.node, view, &mut fx);
            }
        });
        self.cluster.nodes.remove_pod(record.node, uid);
        self.apply(fx, now);
        Some(record.info)
    }

    /// Removes a pod from the node that it is only assumed on, so that it can be placed again. Returns whether it was
    /// on one; true if a plugin panics, as the pod must be tried again all the same.
    pub fn withdraw_assumed(&mut self, uid: &str, now: Timestamp) -> bool {
        let undone = guarded(UNDONE, || self.remove_assumed(uid, now));
        undone.unwrap_or(true)
    }

    /// Removes a pod from its node if it is only assumed, and wakes pods that this can help. Returns whether
    /// it was assumed.
    fn remove_assumed(&mut self, uid: &str, now: Timestamp) -> bool {
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
        PodWaker::new(self).wake_for(&ClusterEvent::for_assigned_pod(Action::DELETE, &pod), now);
        true
    }
}

#[cfg(test)]
mod tests;
