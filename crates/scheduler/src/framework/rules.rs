//! The roles that decide whether a pod may be placed, and on which node. They change nothing.
//!
//! Where a method is asked about many nodes, nothing is imagined of any of them
//! ([`Cycle::overlay`]) and no NUMA nodes are agreed on.

use super::{
    Cycle, IndexKind, Normalize, PreFilterResult, PreScoreResult, Rejection, Signable, Signature,
    State, Verdict, View, Watch,
};
use crate::state::{NodeIndex, PodInfo};
use koord_model::resources::ResourceTable;

/// Reads objects besides pods and nodes.
pub trait Inputs {
    /// The kinds, besides pods and nodes, that the plugin watches.
    fn watches(&self) -> Vec<Watch> {
        Vec::new()
    }
    /// The indexes that the plugin reads; for what they hold, it watches the kinds it needs.
    fn indexes(&self) -> Vec<IndexKind> {
        Vec::new()
    }
}

/// Writes what the plugin reads of a pod, so that pods of one signature share verdicts and scores. Upstream:
/// `SignPlugin`. Without this role, pods that the plugin filters or scores share nothing.
pub trait Sign {
    /// Writes everything of `pod` that this plugin's pre-filter, filter and scores read. It is the same as
    /// long as the pod is: written once, and kept with it. What they read of the node in question is told
    /// by touching it, and is no part of this.
    fn sign(&self, pod: &PodInfo, resources: &ResourceTable, signature: &mut Signature)
    -> Signable;
    /// Writes, at each attempt, what they find elsewhere by the pod: in its claims, say.
    fn sign_found(&self, _: &PodInfo, _: View<'_>, _: &mut Signature) -> Signable {
        Signable::Yes
    }
}

/// May keep a pod out of the active queue.
pub trait PreEnqueue {
    /// Whether the pod may enter the active queue.
    fn pre_enqueue(&self, pod: &PodInfo) -> Verdict;
}

/// Judges a pod, or prepares its filter, once per cycle.
pub trait PreFilter {
    /// Looks at the pod once, before any node.
    fn pre_filter(&self, _cycle: &Cycle<'_>) -> PreFilterResult {
        PreFilterResult::Ready {
            state: State::default(),
            nodes: None,
        }
    }
    /// The only nodes that [`Filter::filter`] may accept, where these are known before any is looked at.
    /// Unlike the list of [`PreFilterResult::Ready`], this is not said of the others: their filters are asked
    /// if none of these fits.
    fn only_nodes(&self, _cycle: &Cycle<'_>, _state: &State) -> Option<Vec<NodeIndex>> {
        None
    }
    /// Nodes to try before all others, in this order: the first that passes the filters is taken,
    /// without scoring. Of several plugins with an answer, the first counts.
    fn prefer(&self, _cycle: &Cycle<'_>) -> Vec<NodeIndex> {
        Vec::new()
    }
}

/// Judges nodes.
pub trait Filter: Sync {
    /// Whether the pod may run on `node`.
    fn filter(&self, _cycle: &Cycle<'_>, _state: &State, _node: NodeIndex) -> Verdict {
        Ok(())
    }
    /// [`Filter::filter`] of each of `nodes`: `refuse` is told the position of those that are refused,
    /// and why. For plugins that say the same of many nodes, or read columns.
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

/// Scores nodes. A plugin that scores many at a time ([`Volatile`](super::Volatile)) has only the
/// normalization.
pub trait Score: Sync {
    /// The raw score of `node`.
    fn score(&self, _cycle: &Cycle<'_>, _state: &State, _node: NodeIndex) -> i64 {
        0
    }
    /// [`Score::score`] of each of `nodes`, written to `scores`, which is as long and all 0.
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
    /// How raw scores are brought to 0..=100.
    fn normalization(&self) -> Normalize {
        Normalize::None
    }
    /// Brings raw scores, in order of node index, to 0..=100. For [`Normalize::Custom`].
    fn normalize(&self, _cycle: &Cycle<'_>, _scores: &mut [i64]) {}
}

/// Takes the place of a filter or a score at a point that a plugin extends as upstream's does, without a rule
/// of its own there: every node fits, and scores 0.
pub(crate) struct NoRule;

impl Filter for NoRule {}
impl Score for NoRule {}
