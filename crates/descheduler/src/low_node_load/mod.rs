//! LowNodeLoad: moves pods from nodes with high usage to nodes with low usage.
//!
//! ```text
//! NodeMetric, pods ──► load (usage, thresholds, class) ──► detector (hot for long enough?) ──► balance: variance or greedy
//!                            ▲                                                                      │
//!                            └──────────── move_history (recent moves) ◄────────────────────────────┘
//! ```
//!
//! Source: Koordinator `pkg/descheduler/framework/plugins/loadaware`; `variance` is not in upstream.

mod args;
mod balance;
mod detector;
mod greedy;
mod load;
mod solve;
mod variance;

pub use args::{AnomalyCondition, Args, DEFAULT_POOL, Pool, Thresholds, VictimSelection, Weights};

use crate::framework::{Cycle, Strategy, StrategyError};
use crate::move_history::MoveHistory;
use crate::rules::{Fit, PodSelection};
use crate::state::NodeInfo;
use balance::BalanceRun;
use detector::Detectors;
use koord_api::duration::GoDuration;
use koord_api::selector;
use load::{Load, LoadClass, PoolResources, Row, UsageKind, set_bounds};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The plugin's name.
pub const NAME: &str = "LowNodeLoad";

/// The strategy and its state.
#[derive(Debug)]
pub struct LowNodeLoad {
    args: Args,
    pools: Vec<Pool>,
    selection: PodSelection,
    node_detectors: Detectors,
    prod_detectors: Detectors,
    history: MoveHistory,
}

impl LowNodeLoad {
    /// Creates the strategy with validated arguments.
    #[must_use]
    pub fn new(args: Args) -> Self {
        Self {
            pools: args.pools(),
            selection: args.selection(),
            args,
            node_detectors: Detectors::default(),
            prod_detectors: Detectors::default(),
            history: MoveHistory::default(),
        }
    }

    /// Adapts the strategy to cycles every `interval`: a node that has been hot for long enough stays so
    /// classified in the next cycle, and need not be hot for as long again before each round.
    #[must_use]
    pub fn with_interval(mut self, interval: GoDuration) -> Self {
        for pool in &mut self.pools {
            if let Some(condition) = &mut pool.anomaly_condition {
                *condition = condition.with_min_timeout(interval);
            }
        }
        self
    }
}

/// State that the pools of one cycle share.
#[derive(Debug, Default)]
struct Round {
    /// Hot nodes of pools that were processed completely.
    processed: FxHashSet<Arc<str>>,
    /// Nodes whose missing usage was reported already.
    skipped: FxHashSet<Arc<str>>,
    /// Requests per node; built when first needed.
    fit: Option<Fit>,
}

impl Strategy for LowNodeLoad {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        if self.args.paused {
            cycle.note(None, "paused");
            return Ok(());
        }
        let snapshot = cycle.snapshot();
        let uids = snapshot.nodes.iter().map(|node| &node.uid).collect();
        let ready = cycle.nodes().iter().map(|node| &node.uid).collect();
        for detectors in [&mut self.node_detectors, &mut self.prod_detectors] {
            detectors.retain(&uids);
            detectors.mark_unknown_except(&ready);
        }
        self.history.begin(snapshot);
        let mut round = Round::default();
        let pools = std::mem::take(&mut self.pools);
        for (at, pool) in pools.iter().enumerate() {
            self.balance_pool(cycle, at, pool, &mut round);
        }
        self.pools = pools;
        Ok(())
    }
}

/// The nodes of a pool by class, as indexes.
#[derive(Debug, Default)]
struct Classes {
    low: Vec<usize>,
    both_low: Vec<usize>,
    prod_low: Vec<usize>,
    sources: Vec<usize>,
    prod_high: Vec<usize>,
}

impl Classes {
    fn new(loads: &[Load<'_>]) -> Self {
        let mut out = Self::default();
        for (at, load) in loads.iter().enumerate() {
            match load.class() {
                LoadClass::Low => out.low.push(at),
                LoadClass::BothLow => out.both_low.push(at),
                LoadClass::ProdLow => out.prod_low.push(at),
                LoadClass::Source => out.sources.push(at),
                LoadClass::ProdHigh => out.prod_high.push(at),
                LoadClass::Middle => {}
            }
        }
        out
    }

    /// Returns the number of cold nodes like upstream counts them: including nodes that are cold by prod
    /// usage, which are all nodes that are not hot if there are no thresholds for prod.
    fn cold(&self) -> usize {
        self.low.len() + self.both_low.len() + self.prod_low.len()
    }

    fn hot(&self) -> usize {
        self.sources.len() + self.prod_high.len()
    }
}

impl LowNodeLoad {
    /// Evicts pods from the hot nodes of `pool`, the one at index `at` of the configuration, while its cold nodes
    /// can take them. Notes the reason if there is nothing to do.
    fn balance_pool(&mut self, cycle: &mut Cycle<'_>, at: usize, pool: &Pool, round: &mut Round) {
        let name = &pool.name;
        let nodes = match pool_nodes(cycle.nodes(), pool, &round.processed) {
            Ok(nodes) => nodes,
            Err(error) => return cycle.note(None, format!("pool {name}: nodeSelector: {error}")),
        };
        if nodes.is_empty() {
            return cycle.note(None, format!("pool {name}: no node is left for it"));
        }
        let watched = PoolResources::new(pool, &cycle.snapshot().table);
        let mut loads = self.loads(cycle, (at, pool), &nodes, &watched, round);
        set_bounds(&mut loads, &watched);
        let classes = Classes::new(&loads);
        self.record_not_hot(cycle, at, pool, &loads, &classes);
        if classes.hot() == 0 {
            let cold = classes.low.len() + classes.both_low.len();
            let total = nodes.len();
            let text = format!("pool {name}: no node is hot; {cold} of {total} are cold");
            return cycle.note(None, text);
        }
        let mut sources = self.hot_long_enough(
            cycle,
            at,
            pool,
            UsageKind::Node,
            &loads,
            &classes.sources,
            &watched,
        );
        let mut prod_sources = self.hot_long_enough(
            cycle,
            at,
            pool,
            UsageKind::Prod,
            &loads,
            &classes.prod_high,
            &watched,
        );
        if sources.is_empty() && prod_sources.is_empty() {
            let hot = classes.hot();
            let text = format!("pool {name}: none of {hot} hot nodes was hot for long enough");
            return cycle.note(None, text);
        }
        if classes.cold() == 0 {
            let total = nodes.len();
            let text = format!("pool {name}: no node of {total} is cold: there is nowhere to go");
            return cycle.note(None, text);
        }
        self.reset_cold(at, &loads, &classes);
        let (cold, least) = (classes.cold(), self.args.number_of_nodes);
        if usize::try_from(least).is_ok_and(|least| cold <= least) {
            let text = format!(
                "pool {name}: {cold} nodes are cold, and numberOfNodes is {least}: more are needed"
            );
            return cycle.note(None, text);
        }
        if cold == nodes.len() {
            return cycle.note(None, format!("pool {name}: all nodes are cold"));
        }
        sort_by_score(&mut sources, &loads, UsageKind::Node, &watched);
        sort_by_score(&mut prod_sources, &loads, UsageKind::Prod, &watched);
        let snapshot = cycle.snapshot();
        let fit = round.fit.get_or_insert_with(|| cycle.fit());
        let mut run = BalanceRun {
            cycle,
            fit,
            args: &self.args,
            selection: &self.selection,
            watched: &watched,
            loads: &mut loads,
            history: &mut self.history,
            pool: at,
            node_detectors: &mut self.node_detectors,
            prod_detectors: &mut self.prod_detectors,
        };
        run.run(&classes, &sources, &prod_sources);
        let condition = pool.anomaly_condition.unwrap_or_default();
        for index in sources {
            let uid = &loads[index].node.uid;
            self.node_detectors
                .record_not_over(at, uid, snapshot.now, &condition);
        }
        for index in prod_sources {
            let uid = &loads[index].node.uid;
            self.prod_detectors
                .record_not_over(at, uid, snapshot.now, &condition);
        }
        let hot = classes
            .sources
            .iter()
            .map(|index| loads[*index].node.name.clone());
        round.processed.extend(hot);
    }

    /// Reads the usage of nodes. Nodes without usable data are skipped and reported once each.
    fn loads<'a>(
        &mut self,
        cycle: &mut Cycle<'a>,
        (at, pool): (usize, &Pool),
        nodes: &[&'a Arc<NodeInfo>],
        watched: &PoolResources,
        round: &mut Round,
    ) -> Vec<Load<'a>> {
        let snapshot = cycle.snapshot();
        let expiration = self.args.node_metric_expiration_seconds;
        let history = match self.args.victim_selection {
            VictimSelection::Variance => Some(&self.history),
            VictimSelection::Greedy => None,
        };
        let mut loads = Vec::with_capacity(nodes.len());
        let mut unread = None;
        for node in nodes {
            match Load::read(
                snapshot,
                cycle.departures(),
                node,
                watched,
                expiration,
                history,
            ) {
                Ok(load) => loads.push(load),
                Err(reason) => {
                    self.node_detectors.mark_unknown(at, &node.uid);
                    self.prod_detectors.mark_unknown(at, &node.uid);
                    if round.skipped.insert(node.name.clone()) {
                        cycle.skip_node(&node.name, &reason);
                    }
                    unread.get_or_insert((node, reason));
                }
            }
        }
        if let Some((node, reason)) = unread {
            let (pool, name) = (&pool.name, &node.name);
            let (unread, total) = (nodes.len() - loads.len(), nodes.len());
            let text = format!(
                "pool {pool}: {unread} of {total} nodes are not looked at, as node {name}: {reason}"
            );
            cycle.note(None, text);
        }
        loads
    }

    /// Ends the series of hot cycles of nodes that are not hot.
    fn record_not_hot(
        &mut self,
        cycle: &Cycle<'_>,
        at: usize,
        pool: &Pool,
        loads: &[Load<'_>],
        classes: &Classes,
    ) {
        let condition = pool.anomaly_condition.unwrap_or_default();
        let now = cycle.snapshot().now;
        for (index, load) in loads.iter().enumerate() {
            let uid = &load.node.uid;
            if classes.sources.binary_search(&index).is_err() {
                self.node_detectors
                    .record_not_over(at, uid, now, &condition);
            }
            if classes.prod_high.binary_search(&index).is_err() {
                self.prod_detectors
                    .record_not_over(at, uid, now, &condition);
            }
        }
    }

    /// Returns those of `hot` that have been hot for long enough, and adds a note about each hot node.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call of the same for two kinds of usage"
    )]
    fn hot_long_enough(
        &mut self,
        cycle: &mut Cycle<'_>,
        at: usize,
        pool: &Pool,
        usage_kind: UsageKind,
        loads: &[Load<'_>],
        hot: &[usize],
        watched: &PoolResources,
    ) -> Vec<usize> {
        let condition = pool.anomaly_condition.unwrap_or_default();
        let now = cycle.snapshot().now;
        let detectors = match usage_kind {
            UsageKind::Node => &mut self.node_detectors,
            UsageKind::Prod => &mut self.prod_detectors,
        };
        let mut long = Vec::new();
        for index in hot {
            let Some(load) = loads.get(*index) else {
                continue;
            };
            let (node, exceeded) = (load.node, load.describe_hot(usage_kind, watched));
            if detectors.record_over(at, &node.uid, now, &condition) {
                cycle.hot(&node.name, format!("hot: {exceeded}"), false);
                long.push(*index);
            } else {
                let times = detectors.abnormal_count(at, &node.uid);
                let needed = condition.consecutive_abnormalities.saturating_add(1);
                let text = format!("hot: {exceeded}, {times} of {needed} cycles");
                cycle.hot(&node.name, text, true);
            }
        }
        long
    }

    fn reset_cold(&mut self, at: usize, loads: &[Load<'_>], classes: &Classes) {
        for index in classes.low.iter().chain(&classes.both_low) {
            self.node_detectors.reset(at, &loads[*index].node.uid);
        }
        for index in &classes.prod_low {
            self.prod_detectors.reset(at, &loads[*index].node.uid);
        }
    }
}

/// Returns the nodes that the selector of `pool` matches and no earlier pool has `processed`. Without a selector
/// returns all nodes.
fn pool_nodes<'a>(
    nodes: &'a [Arc<NodeInfo>],
    pool: &Pool,
    processed: &FxHashSet<Arc<str>>,
) -> Result<Vec<&'a Arc<NodeInfo>>, selector::SelectorError> {
    let Some(by) = &pool.node_selector else {
        return Ok(nodes.iter().collect());
    };
    let mut chosen = Vec::new();
    for node in nodes {
        if selector::matches(by, &node.labels)? && !processed.contains(&node.name) {
            chosen.push(node);
        }
    }
    Ok(chosen)
}

/// Sorts `indexes` into `loads` by score, highest first, then by name, which is the order of `loads`.
fn sort_by_score(
    indexes: &mut [usize],
    loads: &[Load<'_>],
    usage_kind: UsageKind,
    watched: &PoolResources,
) {
    indexes.sort_by_cached_key(|index| {
        let score = loads
            .get(*index)
            .map_or(0, |load| load.score(usage_kind, watched));
        (std::cmp::Reverse(score), *index)
    });
}

/// Returns the total usage up to their thresholds that `targets` can still take.
fn headroom(loads: &[Load<'_>], targets: &[usize], usage_kind: UsageKind, resources: usize) -> Row {
    let mut out = vec![0_i64; resources];
    for load in targets.iter().filter_map(|index| loads.get(*index)) {
        let pairs = load
            .bounds(usage_kind)
            .high
            .iter()
            .zip(load.used(usage_kind));
        for (room, (high, used)) in out.iter_mut().zip(pairs) {
            *room = room.saturating_add(high.saturating_sub(*used));
        }
    }
    out
}

#[cfg(test)]
mod tests;
