//! `ScaleDownBinPack`: ranks pods so that scaling down workloads empties nodes.
//!
//! Each node gets an evacuation score: the requests that stay on it, relative to those that may be evicted.
//! Pods are ranked by the score of their node, and within a node by size. The rank becomes the pod's deletion
//! cost, or the first pods are evicted.
//!
//! Source: Koordinator `pkg/descheduler/framework/plugins/scaledownbinpack`.

mod args;
mod rank;

pub use args::{ExecutionMode, ScaleDownBinPackArgs};
pub use rank::{NodePods, RankedNode, rank};

use crate::framework::{Action, Cycle, SkipReason, Strategy, StrategyError};
use crate::move_history::MoveHistory;
use crate::rules::{DELETION_COST, PodSelection};
use crate::state::{NodeInfo, PodInfo};
use std::sync::Arc;

/// The plugin's name.
pub const NAME: &str = "ScaleDownBinPack";
/// Deletion cost of pods that may not be evicted: controllers that scale down delete them last.
const LAST: i32 = i32::MAX;

/// The strategy.
#[derive(Debug)]
pub struct ScaleDownBinPack {
    args: ScaleDownBinPackArgs,
    selection: PodSelection,
    history: MoveHistory,
}

/// Validates the arguments.
///
/// # Errors
/// Returns the first field with an invalid value.
pub fn check(args: &ScaleDownBinPackArgs) -> Result<(), String> {
    selection(args).check()?;
    match (args.strategy, args.max_pods_to_evict) {
        (ExecutionMode::EvictDirectly, None) => {
            return Err("maxPodsToEvict: EvictDirectly needs it".to_owned());
        }
        (ExecutionMode::EvictDirectly, Some(most)) if most <= 0 => {
            return Err(format!("maxPodsToEvict: {most} is not above 0"));
        }
        _ => {}
    }
    let mut weights = args.resource_weights.iter();
    match weights.find(|(_, weight)| !(weight.is_finite() && **weight > 0.0)) {
        Some((name, weight)) => Err(format!(
            "resourceWeights[{name}]: {weight} is not a finite number above 0"
        )),
        None => Ok(()),
    }
}

fn selection(args: &ScaleDownBinPackArgs) -> PodSelection {
    PodSelection {
        namespaces: args.evictable_namespaces.clone(),
        selectors: args.pod_selectors.clone(),
    }
}

impl ScaleDownBinPack {
    /// Creates the strategy with arguments that [`check`] accepted.
    #[must_use]
    pub fn new(args: ScaleDownBinPackArgs) -> Self {
        let selection = selection(&args);
        Self {
            args,
            selection,
            history: MoveHistory::default(),
        }
    }

    /// Sorts the pods of `node` that have not ended: pods that may be evicted, pods that are selected but may
    /// not be evicted, and all others.
    fn classify_pods(&self, cycle: &mut Cycle<'_>, node: &Arc<NodeInfo>) -> NodePods {
        let mut pods = NodePods::new(node);
        let pods_there = match self.args.strategy {
            // Otherwise a rank would change with each move that begins and ends.
            ExecutionMode::CalculateOnly => cycle.snapshot().active_on(&node.name).collect(),
            ExecutionMode::EvictDirectly => cycle.active_on(&node.name),
        };
        for pod in pods_there {
            if self.args.strategy == ExecutionMode::EvictDirectly && cycle.is_leaving(pod) {
                cycle.filter(pod);
                continue;
            }
            let chosen = cycle.accept_or_skip(pod, self.selection.admits(pod));
            let list = if chosen && self.may_evict(cycle, pod) {
                &mut pods.eligible
            } else if self.is_target(pod) {
                &mut pods.skipped
            } else {
                &mut pods.others
            };
            list.push(pod.clone());
        }
        pods
    }

    /// Returns true if filters allow to evict `pod`. A rank may be used long after this cycle, so pods that
    /// are only temporarily refused are ranked as well. Otherwise a rank would change with each job that
    /// begins and ends.
    fn may_evict(&self, cycle: &mut Cycle<'_>, pod: &Arc<PodInfo>) -> bool {
        let verdict = cycle.admits(pod);
        let passes = |reason: &SkipReason| {
            self.args.strategy == ExecutionMode::CalculateOnly && reason.is_temporary()
        };
        verdict.as_ref().is_err_and(passes) || cycle.accept_or_skip(pod, verdict)
    }

    /// Returns true if the selectors match `pod`. Like in upstream, an entry without a selector matches all
    /// pods here, although it is ignored when pods are selected for eviction.
    fn is_target(&self, pod: &PodInfo) -> bool {
        let selectors = &self.args.pod_selectors;
        selectors.is_empty() || selectors.iter().any(|entry| entry.selects(pod))
    }

    fn set_costs(&self, cycle: &mut Cycle<'_>, ranked: &[RankedNode]) {
        let mut rank = 0;
        for node in ranked {
            for pod in &node.pods.eligible {
                set_cost(cycle, pod, rank);
                rank = (rank + 1).min(LAST - 1);
            }
        }
        // Pods of other namespaces must not be touched.
        let namespaces = self.selection.namespaces.as_ref();
        let is_selected =
            |pod: &&Arc<PodInfo>| namespaces.is_none_or(|all| all.allow(&pod.namespace));
        for pod in ranked
            .iter()
            .flat_map(|node| &node.pods.skipped)
            .filter(is_selected)
        {
            set_cost(cycle, pod, LAST);
        }
    }

    fn evict(&mut self, cycle: &mut Cycle<'_>, ranked: &[RankedNode]) {
        let most = self.args.max_pods_to_evict;
        let most = most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(0));
        let mut remaining = most;
        let now = cycle.snapshot().now;
        for pod in ranked.iter().flat_map(|node| &node.pods.eligible) {
            if remaining == 0 {
                let detail = format!("{most} pods go, which are all that may");
                cycle.skip_pod(pod, SkipReason::new("MaxPodsToEvict", detail));
                continue;
            }
            if cycle.accept_or_skip(pod, self.history.allows(pod, now))
                && cycle.evict(pod, "scale-down binpack").is_ok()
            {
                self.history.record_planned(cycle, pod);
                remaining -= 1;
            }
        }
    }
}

/// Sets the deletion cost of `pod`, unless the pod has it already.
fn set_cost(cycle: &mut Cycle<'_>, pod: &Arc<PodInfo>, cost: i32) {
    let current = pod.annotation(DELETION_COST);
    if current.and_then(|current| current.parse().ok()) != Some(cost) {
        cycle.add_action(Action::DeletionCost {
            pod: pod.clone(),
            cost,
            strategy: NAME,
        });
    }
}

impl Strategy for ScaleDownBinPack {
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
        let pods = nodes.iter().map(|node| self.classify_pods(cycle, node));
        let pods: Vec<_> = pods.filter(|pods| !pods.eligible.is_empty()).collect();
        if pods.is_empty() {
            cycle.note(
                None,
                format!("none of the pods of {} nodes may go", nodes.len()),
            );
            return Ok(());
        }
        let ranked = rank(pods, &self.args.resource_weights, &cycle.snapshot().table);
        let mut from = 0;
        for node in &ranked {
            let (score, until) = (node.score, from + node.pods.eligible.len());
            cycle.note(
                Some(&node.pods.node.name),
                format!(
                    "evacuation score {score:.4}: its pods have ranks {from} to {}",
                    until - 1
                ),
            );
            from = until;
        }
        match self.args.strategy {
            ExecutionMode::CalculateOnly => self.set_costs(cycle, &ranked),
            ExecutionMode::EvictDirectly => self.evict(cycle, &ranked),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
