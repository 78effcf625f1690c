//! `CustomPriority`: moves pods from expensive nodes to cheaper ones.
//!
//! Nodes are in classes, most expensive first. Pods of each class except the last move to nodes of any later
//! class: each pod that fits there, or the pods of a node if all of them do. Pods that move in one cycle do not
//! share capacity: what was allocated to one of them is not available to another.
//!
//! Source: Koordinator `pkg/descheduler/framework/plugins/custompriority`.

mod args;
mod capacity;

pub use args::{CustomPriorityArgs, Mode, ResourcePriority, check};

use crate::framework::{Action, Cycle, SkipReason, Strategy, StrategyError};
use crate::move_history::MoveHistory;
use crate::rules::PodSelection;
use crate::state::{NodeInfo, PodInfo};
use capacity::TargetCapacity;
use koord_api::selector;
use koord_model::resources::{CPU, MEMORY};
use std::sync::Arc;

/// The plugin's name.
pub const NAME: &str = "CustomPriority";
/// Number of pods in a row that fit nowhere after which larger ones are not tried.
const MAX_MISSES: usize = 5;

/// The strategy.
#[derive(Debug)]
pub struct CustomPriority {
    args: CustomPriorityArgs,
    selection: PodSelection,
    history: MoveHistory,
}

/// A pod that may be evicted, now or when other moves have ended.
struct DrainablePod {
    pod: Arc<PodInfo>,
    /// True if other moves hold the pod back in this cycle.
    is_held: bool,
}

/// The nodes of one class.
struct NodeClass<'a> {
    name: &'a str,
    nodes: Vec<Arc<NodeInfo>>,
}

impl CustomPriority {
    /// Creates the strategy with arguments that [`check`] accepted.
    #[must_use]
    pub fn new(args: CustomPriorityArgs) -> Self {
        let selection = args::selection(&args);
        Self {
            args,
            selection,
            history: MoveHistory::default(),
        }
    }

    /// Returns the classes that have nodes.
    fn classes(&self, nodes: &[Arc<NodeInfo>]) -> Vec<NodeClass<'_>> {
        let order = self.args.eviction_order.iter();
        let mut classes: Vec<_> = order
            .map(|class| NodeClass {
                name: &class.name,
                nodes: Vec::new(),
            })
            .collect();
        for node in nodes {
            let class_index = self.args.eviction_order.iter().position(|class| {
                let labels = class.node_selector.as_ref();
                labels
                    .is_some_and(|labels| selector::matches(labels, &node.labels).unwrap_or(false))
            });
            if let Some(class) = class_index.and_then(|index| classes.get_mut(index)) {
                class.nodes.push(node.clone());
            }
        }
        classes.retain(|class| !class.nodes.is_empty());
        classes
    }

    /// Returns the pods of `node` that may be evicted, smallest first.
    fn candidates(&self, cycle: &mut Cycle<'_>, node: &NodeInfo) -> Vec<DrainablePod> {
        let mut candidates = Vec::new();
        for pod in cycle.active_on(&node.name) {
            if !cycle.accept_or_skip(pod, self.selection.admits(pod)) {
                continue;
            }
            let verdict = cycle.admits(pod);
            let is_held = !cycle.is_leaving(pod) && verdict.as_ref().is_err_and(is_held_by_moves);
            if cycle.accept_or_skip(pod, verdict) || is_held {
                let pod = pod.clone();
                candidates.push(DrainablePod { pod, is_held });
            }
        }
        candidates.sort_by(|a, b| {
            let (a, b) = (&a.pod, &b.pod);
            let size = |pod: &PodInfo| {
                let requests = &pod.shape.main_requests;
                (requests.get(CPU), requests.get(MEMORY))
            };
            let name = |pod: &PodInfo| (pod.namespace.clone(), pod.name.clone());
            size(a).cmp(&size(b)).then_with(|| name(a).cmp(&name(b)))
        });
        candidates
    }

    /// Evicts each pod of `node` that fits one of `targets`; without `nodeFit`, each pod.
    fn move_best_effort(
        &self,
        cycle: &mut Cycle<'_>,
        class: &str,
        node: &NodeInfo,
        targets: &[Arc<NodeInfo>],
        capacity: &mut TargetCapacity,
        history: &mut MoveHistory,
    ) {
        let mut misses = 0;
        let now = cycle.snapshot().now;
        let candidates = self.candidates(cycle, node).into_iter();
        for DrainablePod { pod, .. } in candidates.filter(|candidate| !candidate.is_held) {
            if !cycle.accept_or_skip(&pod, history.allows(&pod, now)) {
                continue;
            }
            if self.args.node_fit && misses >= MAX_MISSES {
                let detail = format!("{MAX_MISSES} pods that are no larger fit no cheaper node");
                cycle.skip_pod(&pod, SkipReason::new("NodeFit", detail));
                continue;
            }
            let target = if self.args.node_fit {
                let Some(target) = capacity.find(&pod, targets, true) else {
                    misses += 1;
                    cycle.skip_pod(
                        &pod,
                        SkipReason::new("NodeFit", capacity.reasons(&pod, targets)),
                    );
                    continue;
                };
                misses = 0;
                Some(target)
            } else {
                None
            };
            let reason =
                format!("evicting from {class} priority resource to lower priority resource");
            let is_moved = if self.args.dry_run {
                cycle.show_move(&pod, reason);
                true
            } else {
                cycle.evict(&pod, reason).is_ok()
            };
            if is_moved {
                history.record_planned(cycle, &pod);
            }
            if is_moved && let Some(target) = target {
                capacity.take(&pod, target);
            }
        }
    }

    /// Evicts the pods of `node` if `targets` have capacity for all of them together. Pods that limits or other
    /// moves hold back in this cycle need a place, too: they follow in later cycles.
    fn drain(
        &self,
        cycle: &mut Cycle<'_>,
        class: &str,
        node: &Arc<NodeInfo>,
        targets: &[Arc<NodeInfo>],
        capacity: &mut TargetCapacity,
        history: &mut MoveHistory,
    ) {
        let candidates = self.candidates(cycle, node);
        if candidates.iter().all(|candidate| candidate.is_held) {
            return;
        }
        let movable = || {
            let movable = candidates.iter().filter(|candidate| !candidate.is_held);
            movable.map(|candidate| &candidate.pod)
        };
        let mut allocated = Vec::with_capacity(candidates.len());
        for DrainablePod { pod, .. } in &candidates {
            let Some(target) = capacity.find(pod, targets, self.args.node_fit) else {
                let reasons = capacity.reasons(pod, targets);
                for (pod, target) in allocated {
                    capacity.release(pod, target);
                }
                let text = format!("is not drained: {pod} fits no cheaper node: {reasons}");
                cycle.note(Some(&node.name), text);
                for other in movable().filter(|other| other.uid != pod.uid) {
                    cycle.skip_pod(other, node_stays(pod));
                }
                cycle.skip_pod(pod, SkipReason::new("NodeFit", reasons));
                return;
            };
            capacity.take(pod, target);
            allocated.push((pod, target));
        }
        let reason = format!("drain node {} (sourcePriority={class})", node.name);
        if self.args.dry_run {
            for pod in movable() {
                cycle.show_move(pod, reason.clone());
            }
            return;
        }
        let place = cycle.action_count();
        let mut held = candidates.len() - movable().count();
        for (at, pod) in movable().enumerate() {
            let drains = Some(node.name.clone());
            match cycle.evict_with(pod, reason.clone(), None, drains) {
                Ok(()) => history.record_planned(cycle, pod),
                Err(cause) if is_held_by_moves(&cause) => held += 1,
                Err(cause) => {
                    // The node is not cleared, so it stays schedulable.
                    let text = format!("is not drained completely: {pod} stays: {cause}");
                    cycle.note(Some(&node.name), text);
                    for other in movable().skip(at + 1) {
                        cycle.skip_pod(other, node_stays(pod));
                    }
                    return;
                }
            }
        }
        if held == candidates.len() {
            for (pod, target) in allocated {
                capacity.release(pod, target);
            }
            return;
        }
        if held > 0 {
            let count = candidates.len();
            let text = format!("is drained over several cycles: {held} of {count} pods follow");
            cycle.note(Some(&node.name), text);
        }
        if self.args.auto_cordon && !node.unschedulable {
            let cordon = Action::Cordon {
                node: node.name.clone(),
                strategy: NAME,
            };
            cycle.insert_action(place, cordon);
        }
    }

    /// Processes the classes.
    fn balance_classes(
        &self,
        cycle: &mut Cycle<'_>,
        history: &mut MoveHistory,
    ) -> Result<(), StrategyError> {
        let nodes = cycle.selected(self.args.node_selector.as_ref())?;
        let classes = self.classes(&nodes);
        if classes.len() < 2 {
            let count = classes.len();
            cycle.note(
                None,
                format!("{count} classes have nodes, at least 2 have to"),
            );
            return Ok(());
        }
        let mut capacity = TargetCapacity::new(cycle);
        for (at, class) in classes.iter().enumerate() {
            let later = classes.iter().skip(at + 1);
            let targets: Vec<_> = later.flat_map(|class| class.nodes.clone()).collect();
            if targets.is_empty() {
                break;
            }
            for node in &class.nodes {
                match self.args.mode {
                    Mode::BestEffort => {
                        self.move_best_effort(
                            cycle,
                            class.name,
                            node,
                            &targets,
                            &mut capacity,
                            history,
                        );
                    }
                    Mode::DrainNode => {
                        self.drain(cycle, class.name, node, &targets, &mut capacity, history);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns true if `reason` ends when other moves end, so that the pod follows in a later cycle. After a failed
/// move that is unknown.
fn is_held_by_moves(reason: &SkipReason) -> bool {
    reason.is_temporary() && reason.rule != "MoveRefused"
}

/// Returns why other pods of its node stay when `pod` does.
fn node_stays(pod: &PodInfo) -> SkipReason {
    SkipReason::new(
        "NodeStays",
        format!("its node cannot be cleared, as {pod} stays"),
    )
}

impl Strategy for CustomPriority {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        if self.args.paused {
            cycle.note(None, "is paused");
            return Ok(());
        }
        let mut history = std::mem::take(&mut self.history);
        history.begin(cycle.snapshot());
        let outcome = self.balance_classes(cycle, &mut history);
        self.history = history;
        outcome
    }
}

#[cfg(test)]
mod tests;
