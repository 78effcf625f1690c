//! The roles that decide whether and on which node a pod may be placed. Their methods change nothing.
//!
//! Methods that take many nodes are called with an empty overlay ([`Cycle::overlay`]) and without selected
//! NUMA nodes.

use super::{
    Cycle, IndexKind, Normalize, PreFilterResult, PreScoreResult, Rejection, Signable, Signature,
    State, Verdict, View, Watch,
};
use crate::state::{NodeIndex, PodInfo};
use koord_model::resources::ResourceTable;

/// Declares which objects the plugin reads in addition to pods and nodes.
pub trait Inputs {
    /// Returns the kinds that the plugin watches, in addition to pods and nodes.
    fn watches(&self) -> Vec<Watch> {
        Vec::new()
    }
    /// Returns the indexes that the plugin reads. The plugin must also watch the kinds that these indexes
    /// hold.
    fn indexes(&self) -> Vec<IndexKind> {
        Vec::new()
    }
}

/// Writes what the plugin reads of a pod, so that pods with equal signatures share verdicts and scores.
/// Upstream: `SignPlugin`. Pods that a plugin without this role filters or scores share nothing.
pub trait Sign {
    /// Writes everything of `pod` that this plugin's pre-filter, filter and scores read. It is computed once
    /// and stored with the pod, so it must depend on the pod only. What they read of the node is not part of
    /// it; changes of a node are signaled by touching it.
    fn sign(&self, pod: &PodInfo, resources: &ResourceTable, signature: &mut Signature)
    -> Signable;
    /// Writes what the plugin reads of other objects that the pod refers to, such as its volume claims.
    /// Called at each attempt.
    fn sign_external(&self, _: &PodInfo, _: View<'_>, _: &mut Signature) -> Signable {
        Signable::Yes
    }
}

/// The pre-enqueue role: can keep a pod out of the active queue.
pub trait PreEnqueue {
    /// Decides whether the pod may enter the active queue.
    fn pre_enqueue(&self, pod: &PodInfo) -> Verdict;
}

/// Checks a pod, or prepares its filter, once per cycle.
pub trait PreFilter {
    /// Checks the pod once, before any node.
    fn pre_filter(&self, _cycle: &Cycle<'_>) -> PreFilterResult {
        PreFilterResult::Ready {
            state: State::default(),
            nodes: None,
        }
    }
    /// Returns the only nodes that [`Filter::filter`] can accept, if these are known in advance. Unlike the
    /// list in [`PreFilterResult::Ready`], this is a hint: the filters of the other nodes still run if none
    /// of these fits.
    fn only_nodes(&self, _cycle: &Cycle<'_>, _state: &State) -> Option<Vec<NodeIndex>> {
        None
    }
    /// Returns nodes to try before all others, in this order: the first that passes the filters is chosen
    /// without scoring. If several plugins return nodes, the first plugin counts.
    fn prefer(&self, _cycle: &Cycle<'_>) -> Vec<NodeIndex> {
        Vec::new()
    }
}

/// Accepts or refuses nodes.
pub trait Filter: Sync {
    /// Decides whether the pod may run on `node`.
    fn filter(&self, _cycle: &Cycle<'_>, _state: &State, _node: NodeIndex) -> Verdict {
        Ok(())
    }
    /// Filters each of `nodes` as [`Filter::filter`] does, and calls `refuse` with the position and the
    /// rejection of each refused node. To be implemented by plugins that decide alike for many nodes, or read
    /// columns.
    fn filter_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        refuse: &mut dyn FnMut(usize, Rejection),
    ) {
        for (at, node) in nodes.iter().enumerate() {
            if let Err(rejection) = self.filter(cycle, state, *node) {
                refuse(at, rejection);
            }
        }
    }
}

/// Prepares scoring once per cycle.
pub trait PreScore {
    /// Prepares scoring.
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult;
}

/// Scores nodes. A plugin that scores many nodes at a time ([`Volatile`](super::Volatile)) implements only
/// the normalization.
pub trait Score: Sync {
    /// Returns the raw score of `node`.
    fn score(&self, _cycle: &Cycle<'_>, _state: &State, _node: NodeIndex) -> i64 {
        0
    }
    /// Writes the [`Score::score`] of each of `nodes` to `scores`, which has the same length and is all 0.
    fn score_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        scores: &mut [i64],
    ) {
        for (score, node) in scores.iter_mut().zip(nodes) {
            *score = self.score(cycle, state, *node);
        }
    }
    /// Returns how raw scores are mapped to 0..=100.
    fn normalization(&self) -> Normalize {
        Normalize::None
    }
    /// Maps raw scores, in order of node index, to 0..=100. Called for [`Normalize::Custom`].
    fn normalize(&self, _cycle: &Cycle<'_>, _scores: &mut [i64]) {}
}

/// Filter and score of a plugin that extends one of these points only because its upstream counterpart does:
/// every node fits and scores 0.
pub(crate) struct NoRule;

impl Filter for NoRule {}
impl Score for NoRule {}
