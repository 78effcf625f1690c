//! Body of the agent's loop: measure, decide, write. One owner of all node-side state.
//!
//! [`Agent::tick`] does no network I/O and never waits: time and the state of the cluster are arguments.
//! [`crate::daemon`] supplies both, and carries out evictions and reports.

mod measure;
mod predict_feed;
mod snapshots;

use crate::audit;
use crate::claims::ClaimError;
use crate::collect::slow::{self, SlowJobContext, SlowWorker};
use crate::collect::table;
use crate::executor::Executor;
use crate::gates::Gates;
use crate::health::{Collector, Guard, State};
use crate::hooks::RuleStore;
use crate::metrics::Metrics;
use crate::qos::{
    Eviction, EvictionHistory, Facts, KernelReader, STRATEGIES, Strategies, StrategySpec, View,
    guard,
};
use crate::settings::Settings;
use crate::states::{NodeInfo, PodInfo, Slo, States, TopologyInfo};
use crate::time::TickTime;
use koord_host::{CgroupPath, HostError, Resource, Root, Target, Version, WeightFormula};
use measure::Measure;
use parking_lot::Mutex;
use predict_feed::PredictorFeed;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::time::Duration;

/// Error of [`Agent::new`].
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A kernel file could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Two strategies claim the same file.
    #[error(transparent)]
    Claims(#[from] ClaimError),
    /// A metric could not be registered.
    #[error("failed to register metrics")]
    Metrics,
}

/// Result of one tick, for the caller that drives the agent.
#[derive(Debug, Default)]
pub struct TickOutcome {
    /// Pods to evict.
    pub evictions: Vec<Eviction>,
    /// Number of files written.
    pub written: u32,
    /// Name, state and text of each strategy, for the status page.
    pub strategy_states: Vec<(&'static str, State, String)>,
    /// Actions of the pressure guard, for the audit log and the node's events.
    pub guard_actions: Vec<guard::GuardAction>,
    /// Status of the pressure guard when it changed: `None` without a change, `Some(None)` while the guard is
    /// inactive.
    pub guard: Option<Option<Guard>>,
}

/// Number of ticks within which each strategy is due at least once.
const STRATEGY_TURNS: u32 = 60;

/// Cluster state that strategies use in addition to samples.
type StrategyContext = (Arc<Slo>, Option<Arc<NodeInfo>>, Option<Arc<TopologyInfo>>);

/// The node side of the agent.
#[derive(Debug)]
pub struct Agent {
    pub(crate) measure: Measure,
    pub(crate) learning: PredictorFeed,
    pub(crate) metrics: Metrics,
    root: Root,
    settings: Settings,
    states: Arc<States>,
    rules: RuleStore,
    ticks: u64,
    strategies: Strategies,
    executor: Executor,
    eviction_history: EvictionHistory,
    facts_version: u64,
    last_context: Option<StrategyContext>,
    audit: audit::Log,
    /// Newest status of the pressure guard.
    pub(crate) guard: Option<Guard>,
    _worker: Option<SlowWorker>,
}

impl Agent {
    /// Creates an agent on `root` that reads cluster state from `states`.
    ///
    /// # Errors
    /// When strategies conflict or the machine's topology cannot be read.
    pub fn new(
        root: Root,
        settings: Settings,
        states: Arc<States>,
        audit: audit::Log,
        metrics: Metrics,
    ) -> Result<Self, AgentError> {
        let measure = Measure::new(root.clone(), &settings, &metrics)?;
        let mut jobs = table::slow_jobs(&SlowJobContext {
            root: &root,
            settings: &settings,
            states: &states,
            facts: &measure.facts,
            metrics: &metrics,
        });
        jobs.extend(slow::save_job(&settings, &measure.facts));
        let worker = SlowWorker::start(jobs, measure.facts.clone(), metrics.clone());
        if let Err(error) = &worker {
            tracing::warn!(%error, "failed to start the thread of slow collectors, continuing without them");
        }
        Ok(Self {
            measure,
            _worker: worker.ok(),
            learning: PredictorFeed::new(settings.predict.clone()),
            strategies: Strategies::new(&settings, &metrics)?,
            executor: Executor::new(root.clone(), audit.clone(), settings.force_update_ms)
                .measured(metrics.clone())
                .reporting(states.conditions.clone()),
            metrics,
            root,
            settings,
            states,
            rules: RuleStore::default(),
            ticks: 0,
            eviction_history: EvictionHistory::default(),
            facts_version: 0,
            last_context: None,
            guard: None,
            audit,
        })
    }

    /// Returns the Node object; `None` until it was received.
    pub(crate) fn node_info(&self) -> Option<Arc<NodeInfo>> {
        self.states.node.load_full()
    }

    /// Saves the samples that the next start restores. Call it last.
    pub fn save(&self, now: TickTime) {
        if let Err(error) = self.measure.save(now) {
            tracing::warn!(%error, "failed to save samples");
        }
    }

    /// Returns the cluster's state.
    pub(crate) fn states(&self) -> &States {
        &self.states
    }

    /// Returns the feature gates.
    pub(crate) fn gates(&self) -> &Gates {
        &self.settings.gates
    }

    /// Returns the table of collectors with their current states.
    #[must_use]
    pub fn collectors(&self) -> Vec<Collector> {
        self.measure.collectors(&self.settings)
    }

    /// Returns the strategies that fail to read kernel files, each with its error.
    #[must_use]
    pub fn strategy_errors(&self) -> Vec<(&'static str, String)> {
        let current_error = |row: &StrategySpec| {
            let error = self.measure.errors.current_error(row.name)?;
            Some((row.name, error.to_owned()))
        };
        STRATEGIES.iter().filter_map(current_error).collect()
    }

    /// Returns the store of the newest hook rules.
    #[must_use]
    pub fn rules(&self) -> &RuleStore {
        &self.rules
    }

    /// Returns the audit log.
    #[must_use]
    pub fn audit(&self) -> &audit::Log {
        &self.audit
    }

    /// Measures, decides and writes.
    pub fn tick(&mut self, now: TickTime) -> TickOutcome {
        self.ticks += 1;
        let changed = self.measure.follow(self.states.pods.load_full(), now);
        for group in &changed {
            self.executor.invalidate(group);
        }
        self.observe_weights(changed);
        let slo = self.states.slo.load_full();
        let layout = self.states.layout_or(&self.settings.layout);
        self.measure.update_layout(&layout, &slo.host_apps);
        self.measure.probe();
        let node = self.states.node.load_full();
        // A heartbeat replaces the Node object without a change in its content.
        let topology = self.states.topology.load_full();
        let context = (slo.clone(), node.clone(), topology.clone());
        let previous = self.last_context.replace(context);
        let is_unchanged = previous.is_some_and(|(old_slo, old_node, old_topology)| {
            let same_slo = Arc::ptr_eq(&old_slo, &slo) || old_slo == slo;
            same_slo && old_node == node && old_topology == topology
        });
        self.facts_version += u64::from(!is_unchanged);
        let needs = {
            let facts = Facts {
                settings: &self.settings,
                slo: &slo,
                node: node.as_deref(),
                machine: &self.measure.machine,
                topology: topology.as_deref(),
                layout: &layout,
            };
            self.strategies.needs(&facts)
        };
        self.measure.collect(now, needs);
        self.eviction_history.expire(now.ms());

        let window = self.settings.interval_ms.saturating_mul(2);
        let (node_cpu, node_memory) = self.measure.node_use(now.ms(), window);
        self.metrics.node_used(node_cpu, node_memory);
        let pods = self.measure.views();
        let storage = self.measure.facts.storage.load_full();
        let claims = self.states.claims.load_full();
        let errors = Mutex::default();
        let mut plan = self.strategies.plan(&View {
            now,
            tick: self.ticks,
            facts: Facts {
                settings: &self.settings,
                slo: &slo,
                node: node.as_deref(),
                machine: &self.measure.machine,
                topology: topology.as_deref(),
                layout: &layout,
            },
            pods: pods.as_deref(),
            pods_version: self.measure.pods.version(),
            facts_version: self.facts_version,
            node_cpu: node_cpu.map(|milli| milli as i64),
            node_memory: node_memory.map(|bytes| bytes as i64),
            batch: &self.measure.batch,
            batch_cpu: self.measure.batch_cpu(),
            eviction_history: &self.eviction_history,
            store: &self.measure.store,
            storage: storage.as_deref(),
            claims: &claims,
            kernel: KernelReader::new(&self.root, &errors),
        });
        drop(pods);
        for (strategy, round) in std::mem::take(&mut plan.rounds) {
            (self.measure.errors).record(strategy, STRATEGY_TURNS, round);
        }
        for fault in plan.unclaimed() {
            debug_assert!(false, "{fault}");
            tracing::error!(fault, "skipping a write without a claim");
        }
        for (object, malformed) in plan.take_malformed() {
            self.states.malformed_inputs.replace(&object, malformed);
        }
        self.rules.store(plan.rules.take());
        let strategy_states = plan.take_strategy_states();
        let guard_actions = std::mem::take(&mut plan.guard_actions);
        for action in &guard_actions {
            let entry = action.entry(node.as_deref().map_or("", |node| node.name.as_str()));
            self.audit.record(now.wall, entry);
        }
        let guard = plan.guard_status.take();
        if let Some(guard) = &guard {
            self.guard.clone_from(guard);
        }
        let (intents, evictions) = plan.into_parts();
        let mut ticked = TickOutcome {
            evictions,
            strategy_states,
            guard_actions,
            guard,
            ..TickOutcome::default()
        };
        if !intents.is_empty() {
            ticked.written = self.executor.apply(intents, now.ms(), now.wall).written;
        }
        let interval = self.settings.training_interval_ms;
        self.learning.step(&self.measure, now, interval);
        ticked
    }

    /// Detects the formula by which the runtime turns shares into weights, from containers of `pods` whose
    /// shares follow from their requests.
    fn observe_weights(&self, pods: Vec<CgroupPath>) {
        let is_open = self.root.version() == Version::V2
            && self.root.weight_formula() != WeightFormula::Quadratic;
        let Some(all) = self.states.pods.load_full().filter(|_| is_open) else {
            return;
        };
        let pods: FxHashSet<CgroupPath> = pods.into_iter().collect();
        let changed = all.iter().filter(|pod| pods.contains(&pod.cgroup));
        for container in changed.flat_map(PodInfo::all_containers) {
            let batch = container.batch.and_then(|batch| batch.cpu_request);
            let milli = container.native.cpu_request.or(batch);
            let shares = milli.filter(|milli| *milli > 0);
            let shares = shares.map(|milli| milli.saturating_mul(1024) / 1000);
            let (Some(group), Some(shares)) = (&container.cgroup, shares) else {
                continue;
            };
            let target = Target::cgroup(group, Resource::CpuShares);
            if !self.executor.has_written(&target) {
                self.root.observe_group(group, shares);
            }
        }
    }

    /// Returns how many steps of the fast lane are taken as one; `None` while no strategy needs it.
    #[must_use]
    pub fn fast_pace(&self) -> Option<u32> {
        self.measure.fast_pace()
    }

    /// Runs a step of the fast lane, between two ticks: measures, decides nothing.
    pub fn tick_fast(&mut self, now: TickTime) {
        self.measure.collect_fast(now);
    }

    /// Restores the values that files had before this agent wrote them, unless another writer has changed
    /// them since. Returns the number of files written.
    pub fn restore(&mut self, now: TickTime) -> u32 {
        let applied = self.executor.restore(|_| true, now.ms(), now.wall);
        tracing::info!(
            files = applied.written,
            failed = applied.failed,
            "restored previous values"
        );
        applied.written
    }

    /// Records that a pod is being evicted.
    pub fn evicted(&mut self, eviction: &Eviction, now: TickTime) {
        self.eviction_history
            .record_eviction(&eviction.uid, now.ms());
        self.strategies.evicted(eviction, now.ms());
    }

    /// Records that an eviction was refused or failed, so that the pod stays. `after` is the server's retry
    /// delay, if it sent one.
    pub fn refused(&mut self, eviction: &Eviction, after: Option<Duration>, now: TickTime) {
        self.eviction_history
            .record_refusal(&eviction.uid, after, now.ms());
    }
}

#[cfg(test)]
mod tests;
