//! `FragmentationAware`: moves pods off nodes where one resource is used up while another is left over.
//!
//! The imbalance of a node is the standard deviation of the requested shares of its resources. From each node
//! with too much imbalance, each cycle evicts the one pod whose removal reduces it most.
//!
//! Source: Koordinator `pkg/descheduler/framework/plugins/fragmentationaware`.

use crate::framework::{Cycle, SkipReason, Strategy, StrategyError};
use crate::move_history::MoveHistory;
use crate::rules::{Fit, Namespaces, PodSelection, PodSelector};
use crate::state::{NodeInfo, PodInfo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_model::resources::{Amounts, PODS, ResourceId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The plugin's name.
pub const NAME: &str = "FragmentationAware";

/// `FragmentationAwareArgs`, with upstream's names and defaults.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    remote = "Self"
)]
pub struct FragmentationAwareArgs {
    /// True if the plugin does nothing.
    pub paused: bool,
    /// True if moves are only shown.
    pub dry_run: bool,
    /// Selector of the nodes to consider, also as targets; all nodes without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Namespaces whose pods may be evicted; all without a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictable_namespaces: Option<Namespaces>,
    /// Selectors of the pods that may be evicted, of which one must match; all pods without one.
    pub pod_selectors: Vec<PodSelector>,
    /// True if a pod stays that fits none of the other nodes.
    pub node_fit: bool,
    /// Resources whose shares are compared.
    pub resources: Vec<String>,
    /// Imbalance that a node must exceed for a pod to be evicted; shares are between 0 and 1.
    pub imbalance_threshold: f64,
    /// Decrease of the imbalance that the eviction of a pod must exceed.
    pub min_improvement_threshold: f64,
}

impl Default for FragmentationAwareArgs {
    fn default() -> Self {
        Self {
            paused: false,
            dry_run: false,
            node_selector: None,
            evictable_namespaces: None,
            pod_selectors: Vec::new(),
            node_fit: true,
            resources: vec!["cpu".to_owned(), "memory".to_owned()],
            imbalance_threshold: 0.15,
            min_improvement_threshold: 0.02,
        }
    }
}

impl<'de> Deserialize<'de> for FragmentationAwareArgs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut args = Self::deserialize(from)?;
        if args.resources.is_empty() {
            args.resources = Self::default().resources;
        }
        Ok(args)
    }
}

impl Serialize for FragmentationAwareArgs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, to)
    }
}

/// Validates the arguments.
///
/// # Errors
/// Returns the first field with an invalid value.
pub fn check(args: &FragmentationAwareArgs) -> Result<(), String> {
    selection(args).check()?;
    let mut distinct = BTreeSet::new();
    for (at, name) in args.resources.iter().enumerate() {
        if !distinct.insert(name) {
            return Err(format!("resources[{at}]: {name:?} is listed twice"));
        }
    }
    for (field, value) in [
        ("imbalanceThreshold", args.imbalance_threshold),
        ("minImprovementThreshold", args.min_improvement_threshold),
    ] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(format!("{field}: {value} is not a number from 0 up"));
        }
    }
    Ok(())
}

fn selection(args: &FragmentationAwareArgs) -> PodSelection {
    PodSelection {
        namespaces: args.evictable_namespaces.clone(),
        selectors: args.pod_selectors.clone(),
    }
}

/// The strategy.
#[derive(Debug)]
pub struct FragmentationAware {
    args: FragmentationAwareArgs,
    selection: PodSelection,
    history: MoveHistory,
}

/// Requests of the pods of a node.
#[derive(Debug, Clone, Default)]
struct NodeRequests {
    amounts: Amounts,
    pods: i64,
}

impl NodeRequests {
    fn add(&mut self, pod: &PodInfo) {
        self.amounts.add_all(&pod.shape.requests);
        self.pods += 1;
    }

    fn without(&self, pod: &PodInfo) -> Self {
        let mut without_pod = self.clone();
        without_pod.amounts.sub_all(&pod.shape.requests);
        without_pod.pods -= 1;
        without_pod
    }

    fn amount(&self, id: ResourceId) -> i64 {
        if id == PODS {
            self.pods
        } else {
            self.amounts.get(id)
        }
    }
}

/// Returns the standard deviation of the requested shares of `resources`; resources that `node` lacks do not
/// count.
fn imbalance(node: &NodeInfo, requested: &NodeRequests, resources: &[ResourceId]) -> f64 {
    let capacities = resources.iter().map(|id| (*id, node.allocatable.get(*id)));
    let shares = capacities.filter(|(_, capacity)| *capacity != 0);
    let shares: Vec<_> = shares
        .map(|(id, capacity)| requested.amount(id) as f64 / capacity as f64)
        .collect();
    if shares.is_empty() {
        return 0.0;
    }
    let count = shares.len() as f64;
    let mean = shares.iter().sum::<f64>() / count;
    let squares = shares.iter().map(|share| (share - mean).powi(2));
    (squares.sum::<f64>() / count).sqrt()
}

/// A pod, and the imbalance of its node without it.
struct EvictionCandidate<'a> {
    pod: &'a Arc<PodInfo>,
    after: f64,
}

impl FragmentationAware {
    /// Creates the strategy with arguments that [`check`] accepted.
    #[must_use]
    pub fn new(args: FragmentationAwareArgs) -> Self {
        let selection = selection(&args);
        Self {
            args,
            selection,
            history: MoveHistory::default(),
        }
    }

    /// Returns the pods of `node` that may be evicted, sorted by the imbalance without them.
    fn candidates<'a>(
        &self,
        cycle: &mut Cycle<'a>,
        node: &NodeInfo,
        requested: &NodeRequests,
        before: f64,
        resources: &[ResourceId],
        fit: Option<(&Fit, &[Arc<NodeInfo>])>,
    ) -> Vec<EvictionCandidate<'a>> {
        let mut candidates = Vec::new();
        let now = cycle.snapshot().now;
        for pod in cycle.active_on(&node.name) {
            if !cycle.accept_or_skip(pod, self.selection.admits(pod))
                || !cycle.filter(pod)
                || !cycle.accept_or_skip(pod, self.history.allows(pod, now))
            {
                continue;
            }
            let after = imbalance(node, &requested.without(pod), resources);
            let gain = before - after;
            if gain <= self.args.min_improvement_threshold {
                let (gain, least) = (gain, self.args.min_improvement_threshold);
                let detail = format!(
                    "without it the imbalance falls by {gain:.4}, not by more than {least:.4}"
                );
                cycle.skip_pod(pod, SkipReason::new("MinImprovement", detail));
                continue;
            }
            if let Some((fit, nodes)) = fit
                && !fit.fits_any_other(pod, nodes)
            {
                cycle.skip_pod(pod, SkipReason::new("NodeFit", fit.reasons(pod, nodes)));
                continue;
            }
            candidates.push(EvictionCandidate { pod, after });
        }
        candidates.sort_by(|a, b| a.after.total_cmp(&b.after));
        candidates
    }

    /// Evicts a pod if allowed; returns true if it is evicted.
    fn try_evict(
        &mut self,
        cycle: &mut Cycle<'_>,
        EvictionCandidate { pod, after }: &EvictionCandidate<'_>,
        before: f64,
    ) -> bool {
        if !cycle.pre_evict(pod) {
            return false;
        }
        let gain = before - after;
        let reason = format!(
            "fragmentation reduction: stdBefore={before:.4} stdAfter={after:.4} gain={gain:.4}"
        );
        if self.args.dry_run {
            cycle.show_move(pod, reason);
            return true;
        }
        let is_planned = cycle.evict(pod, reason).is_ok();
        if is_planned {
            self.history.record_planned(cycle, pod);
        }
        is_planned
    }
}

/// Returns why a pod stays when `gone` is evicted.
fn one_per_node_reason(gone: &PodInfo) -> SkipReason {
    let detail = format!("one pod of a node goes in a cycle, and {gone} evens it out more");
    SkipReason::new("OnePerNode", detail)
}

impl Strategy for FragmentationAware {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        if self.args.paused {
            cycle.note(None, "is paused");
            return Ok(());
        }
        self.history.begin(cycle.snapshot());
        let nodes = cycle.selected(self.args.node_selector.as_ref())?;
        let table = &cycle.snapshot().table;
        let resources = self.args.resources.iter().map(|name| table.intern(name));
        let resources: Vec<_> = resources.collect();
        let fit = self.args.node_fit.then(|| cycle.fit());
        let fit = fit.as_ref().map(|fit| (fit, &nodes[..]));
        for node in &nodes {
            let mut requested = NodeRequests::default();
            for pod in cycle.staying_on(&node.name) {
                requested.add(pod);
            }
            let before = imbalance(node, &requested, &resources);
            let threshold = self.args.imbalance_threshold;
            if before <= threshold {
                continue;
            }
            cycle.note(
                Some(&node.name),
                format!("imbalance {before:.4} > threshold {threshold:.4}"),
            );
            let candidates = self.candidates(cycle, node, &requested, before, &resources, fit);
            let mut evicted = None;
            for candidate in &candidates {
                match evicted {
                    Some(evicted) => cycle.skip_pod(candidate.pod, one_per_node_reason(evicted)),
                    None if self.try_evict(cycle, candidate, before) => {
                        evicted = Some(candidate.pod)
                    }
                    None => {}
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
