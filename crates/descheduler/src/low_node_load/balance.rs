//! From hot nodes to cold ones: first with all pods, then with those of class prod.

use super::args::{Args, VictimSelection};
use super::detector::Detectors;
use super::load::{Load, Row, UsageKind, Watched};
use super::{Classes, headroom};
use crate::framework::{Cycle, Why};
use crate::move_history::MoveHistory;
use crate::rules::{Choice, Fit};
use crate::state::PodInfo;
use koord_model::resources::Amounts;
use std::sync::Arc;

/// What both ways to choose pods work with.
#[derive(Debug)]
pub(super) struct BalanceRun<'p, 'a> {
    pub(super) cycle: &'p mut Cycle<'a>,
    pub(super) fit: &'p mut Fit,
    pub(super) args: &'p Args,
    pub(super) choice: &'p Choice,
    pub(super) watched: &'p Watched,
    pub(super) loads: &'p mut Vec<Load<'a>>,
    pub(super) history: &'p mut MoveHistory,
    pub(super) pool: usize,
    pub(super) node_detectors: &'p mut Detectors,
    pub(super) prod_detectors: &'p mut Detectors,
}

/// A pod that is asked about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) pod: &'a Arc<PodInfo>,
    /// What it uses.
    pub(super) metric: Option<&'a Amounts>,
}

/// Why a node is left.
pub(super) enum StopReason {
    /// It is not hot any more.
    Cool,
    /// What the cold nodes take of this resource is used up.
    Full(usize),
}

impl<'a> BalanceRun<'_, 'a> {
    /// Runs both.
    pub(super) fn run(&mut self, classes: &Classes, sources: &[usize], prod_sources: &[usize]) {
        let resources = self.watched.resources.len();
        let of = |loads: &[Load<'_>], targets: &[usize], usage_kind| {
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
        let prod_only = of(self.loads, &classes.prod_low, UsageKind::Prod);
        let both_node = of(self.loads, &classes.both_low, UsageKind::Node);
        let both_prod = of(self.loads, &classes.both_low, UsageKind::Prod);
        let mut budget = of(self.loads, &node_targets, UsageKind::Node);
        self.run_kind(UsageKind::Node, sources, &node_targets, &mut budget);
        // Nodes that are cold in both ways have taken pods meanwhile.
        let both = both_prod.iter().zip(&both_node).zip(&budget);
        let both = both.map(|((prod, node), left)| *prod.min(node).min(left));
        let mut budget: Row = prod_only
            .iter()
            .zip(both)
            .map(|(prod, both)| prod.saturating_add(both))
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
            let what = match usage_kind {
                UsageKind::Node => "no node is cold",
                UsageKind::Prod => "no node uses little for pods of prod",
            };
            return self
                .cycle
                .note(None, format!("{what}: there is nowhere to go"));
        }
        match self.args.victim_selection {
            VictimSelection::Greedy => self.greedy(usage_kind, sources, targets, budget),
            VictimSelection::Variance => self.variance(usage_kind, sources, targets, budget),
        }
    }

    /// The pods of a node that are meant.
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

    /// Whether arguments and filters let `pod` go; who may not is among those that stay.
    pub(super) fn admits(&mut self, pod: &Arc<PodInfo>) -> bool {
        self.cycle.accept_or_skip(pod, self.choice.admits(pod)) && self.cycle.filter(pod)
    }

    /// Whether no move of `pod`, or of what it came in the place of, was lately; otherwise it is among those that stay.
    pub(super) fn has_rested(&mut self, pod: &Arc<PodInfo>) -> bool {
        let now = self.cycle.snapshot().now;
        self.cycle
            .accept_or_skip(pod, self.history.allows(pod, now))
    }

    /// `pod`, which was put into the plan last, goes, `to` a node if that is known.
    pub(super) fn record_move(&mut self, pod: &PodInfo, metric: &Amounts, to: Option<Arc<str>>) {
        if !self.cycle.is_last_move_real() {
            return;
        }
        let snapshot = self.cycle.snapshot();
        let job = self.cycle.job();
        self.history.record(pod, metric, to, job, snapshot);
    }

    /// Whether it is time to leave `source`.
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
            .position(|left| *left <= 0)
            .map(StopReason::Full)
    }

    /// Asks to evict `pod`, or shows that it would be. Whether it goes.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn evict(
        &mut self,
        usage_kind: UsageKind,
        source: usize,
        pod: &Arc<PodInfo>,
    ) -> Result<(), Why> {
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

    /// `metric` goes off what is left to take and off the node.
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

    /// What came of `source`: `moved` pods go.
    pub(super) fn note_outcome(&mut self, source: usize, moved: usize, why: &str) {
        if let Some(load) = self.loads.get(source) {
            let name = load.node.name.clone();
            self.cycle
                .note(Some(&name), format!("{moved} pods go: {why}"));
        }
    }

    /// Why a node is left, for people.
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
