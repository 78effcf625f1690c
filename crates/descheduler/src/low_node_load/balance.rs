//! Moves pods from hot nodes to cold ones: first by usage of all pods, then by that of pods of class prod.

use super::args::{Args, VictimSelection};
use super::detector::Detectors;
use super::load::{Load, PoolResources, Row, UsageKind};
use super::{Classes, headroom};
use crate::framework::{Cycle, SkipReason};
use crate::move_history::MoveHistory;
use crate::rules::{Fit, PodSelection};
use crate::state::PodInfo;
use koord_model::resources::Amounts;
use std::sync::Arc;

/// State that both pod selections share.
#[derive(Debug)]
pub(super) struct BalanceRun<'p, 'a> {
    pub(super) cycle: &'p mut Cycle<'a>,
    pub(super) fit: &'p mut Fit,
    pub(super) args: &'p Args,
    pub(super) selection: &'p PodSelection,
    pub(super) watched: &'p PoolResources,
    pub(super) loads: &'p mut Vec<Load<'a>>,
    pub(super) history: &'p mut MoveHistory,
    pub(super) pool: usize,
    pub(super) node_detectors: &'p mut Detectors,
    pub(super) prod_detectors: &'p mut Detectors,
}

/// A pod that may be evicted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) pod: &'a Arc<PodInfo>,
    /// Usage of the pod.
    pub(super) metric: Option<&'a Amounts>,
}

/// Reason why no more pods are evicted from a node.
pub(super) enum StopReason {
    /// The node is not hot any more.
    Cool,
    /// The cold nodes have no capacity left of this resource.
    Full(usize),
}

impl<'a> BalanceRun<'_, 'a> {
    /// Runs both passes.
    pub(super) fn run(&mut self, classes: &Classes, sources: &[usize], prod_sources: &[usize]) {
        let resources = self.watched.resources.len();
        let capacity_of = |loads: &[Load<'_>], targets: &[usize], usage_kind| {
            headroom(loads, targets, usage_kind, resources)
        };
        let node_targets: Vec<_> = classes
            .low
            .iter()
            .chain(&classes.both_low)
            .copied()
            .collect();
        let prod_targets: Vec<_> = classes
            .prod_low
            .iter()
            .chain(&classes.both_low)
            .copied()
            .collect();
        let prod_only = capacity_of(self.loads, &classes.prod_low, UsageKind::Prod);
        let both_node = capacity_of(self.loads, &classes.both_low, UsageKind::Node);
        let both_prod = capacity_of(self.loads, &classes.both_low, UsageKind::Prod);
        let mut budget = capacity_of(self.loads, &node_targets, UsageKind::Node);
        self.run_kind(UsageKind::Node, sources, &node_targets, &mut budget);
        // The first pass has used capacity of nodes that are cold by both kinds of usage.
        let shared = both_prod.iter().zip(&both_node).zip(&budget);
        let shared = shared.map(|((prod, node), left)| *prod.min(node).min(left));
        let mut budget: Row = prod_only
            .iter()
            .zip(shared)
            .map(|(prod, shared)| prod.saturating_add(shared))
            .collect();
        self.run_kind(UsageKind::Prod, prod_sources, &prod_targets, &mut budget);
    }

    fn run_kind(
        &mut self,
        usage_kind: UsageKind,
        sources: &[usize],
        targets: &[usize],
        budget: &mut Row,
    ) {
        if sources.is_empty() {
            return;
        }
        if targets.is_empty() {
            let message = match usage_kind {
                UsageKind::Node => "no node is cold",
                UsageKind::Prod => "no node uses little for pods of prod",
            };
            return self
                .cycle
                .note(None, format!("{message}: there is nowhere to go"));
        }
        match self.args.victim_selection {
            VictimSelection::Greedy => self.greedy(usage_kind, sources, targets, budget),
            VictimSelection::Variance => self.variance(usage_kind, sources, targets, budget),
        }
    }

    /// Returns the pods of a node that count for `usage_kind`.
    pub(super) fn candidates(&self, source: usize, usage_kind: UsageKind) -> Vec<Candidate<'a>> {
        let Some(load) = self.loads.get(source) else {
            return Vec::new();
        };
        let all = load.pods.iter().zip(&load.metrics);
        let meant = all.filter(|(pod, _)| usage_kind == UsageKind::Node || pod.is_prod());
        let candidate = |(pod, metric): (&&'a Arc<PodInfo>, &Option<&'a Amounts>)| Candidate {
            pod,
            metric: *metric,
        };
        meant.map(candidate).collect()
    }

    /// Returns true if arguments and filters allow to evict `pod`; otherwise records it as skipped.
    pub(super) fn admits(&mut self, pod: &Arc<PodInfo>) -> bool {
        self.cycle.accept_or_skip(pod, self.selection.admits(pod)) && self.cycle.filter(pod)
    }

    /// Returns true if neither `pod` nor the pod that it replaced was moved recently; otherwise records it as
    /// skipped.
    pub(super) fn check_cooldown(&mut self, pod: &Arc<PodInfo>) -> bool {
        let now = self.cycle.snapshot().now;
        self.cycle
            .accept_or_skip(pod, self.history.allows(pod, now))
    }

    /// Records the move of `pod`, which was planned last, to node `to` if known.
    pub(super) fn record_move(&mut self, pod: &PodInfo, metric: &Amounts, to: Option<Arc<str>>) {
        if !self.cycle.is_last_move_real() {
            return;
        }
        let snapshot = self.cycle.snapshot();
        let job = self.cycle.job();
        self.history.record(pod, metric, to, job, snapshot);
    }

    /// Returns why no more pods should be evicted from `source`.
    pub(super) fn stop_reason(
        &mut self,
        usage_kind: UsageKind,
        source: usize,
        budget: &[i64],
    ) -> Option<StopReason> {
        let load = self.loads.get(source)?;
        if !load.is_over(usage_kind) {
            let uid = &load.node.uid;
            match usage_kind {
                UsageKind::Node => self.node_detectors.reset(self.pool, uid),
                UsageKind::Prod => self.prod_detectors.reset(self.pool, uid),
            }
            return Some(StopReason::Cool);
        }
        budget
            .iter()
            .position(|remaining| *remaining <= 0)
            .map(StopReason::Full)
    }

    /// Evicts `pod`, or shows the move in a dry run.
    ///
    /// # Errors
    /// Returns why it is not evicted.
    pub(super) fn evict(
        &mut self,
        usage_kind: UsageKind,
        source: usize,
        pod: &Arc<PodInfo>,
    ) -> Result<(), SkipReason> {
        let reason = match self.loads.get(source) {
            Some(load) => load.reason(usage_kind, self.watched),
            None => String::new(),
        };
        if self.args.dry_run {
            self.cycle.show_move(pod, reason);
            return Ok(());
        }
        self.cycle.evict(pod, reason)
    }

    /// Subtracts `metric` from the remaining capacity and from the usage of the node.
    pub(super) fn account(
        &mut self,
        usage_kinds: &[UsageKind],
        source: usize,
        metric: &Amounts,
        budget: &mut [i64],
    ) {
        let row = self.watched.pod_row(metric);
        for (left, less) in budget.iter_mut().zip(&row) {
            *left = left.saturating_sub(*less);
        }
        let Some(load) = self.loads.get_mut(source) else {
            return;
        };
        for usage_kind in usage_kinds {
            let used = match usage_kind {
                UsageKind::Node => &mut load.usage,
                UsageKind::Prod => &mut load.prod,
            };
            for (used, less) in used.iter_mut().zip(&row) {
                *used = used.saturating_sub(*less);
            }
        }
    }

    /// Adds a note about `source`: the number of moved pods, and why not more.
    pub(super) fn note_outcome(&mut self, source: usize, moved: usize, reason: &str) {
        if let Some(load) = self.loads.get(source) {
            let name = load.node.name.clone();
            self.cycle
                .note(Some(&name), format!("{moved} pods go: {reason}"));
        }
    }

    /// Describes `stop` for users.
    pub(super) fn describe(&self, stop: &StopReason) -> String {
        match stop {
            StopReason::Cool => "it is not hot any more then".to_owned(),
            StopReason::Full(at) => {
                let name = self
                    .watched
                    .resources
                    .get(*at)
                    .map_or("", |resource| &resource.name);
                format!("what the cold nodes take of {name} is used up")
            }
        }
    }
}
