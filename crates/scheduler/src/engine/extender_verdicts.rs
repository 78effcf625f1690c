//! Extender verdicts: results from outside the plugins that act as one more filter and score.

use crate::framework::{Code, ExtenderNodeResult, Reason, Reasons, Rejection};
use crate::state::{NodeIndex, NodeStore};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::sync::Arc;

/// The maximum length of an extender's reason in a condition, in characters.
const REASON: usize = 256;
const REASONS: usize = 16;
/// The reason for a node that the extender was not called about.
const NOT_ASKED: &str = "node(s) appeared while an extender was asked";

/// The extenders' verdicts on a pod, by row.
#[derive(Debug, Default)]
pub(super) struct ExtenderVerdicts {
    verdicts: FxHashMap<NodeIndex, NodeVerdict>,
    /// True if nodes without a verdict pass.
    pub(super) lenient: bool,
}

#[derive(Debug)]
enum NodeVerdict {
    Score(i64),
    Refused(Rejection),
}

impl ExtenderVerdicts {
    /// Creates the verdicts on the nodes that were `sent` to the extenders. Reasons are shortened and limited
    /// in number.
    pub(super) fn new(sent: &[Arc<str>], advised: &ExtenderNodeResult, nodes: &NodeStore) -> Self {
        let mut reasons: FxHashSet<&str> = FxHashSet::default();
        let mut verdicts = FxHashMap::default();
        for name in sent {
            let Some(node) = nodes.find(name) else {
                continue;
            };
            let entry = match advised.refused.get(name) {
                None => NodeVerdict::Score(advised.scores.get(name).copied().unwrap_or(0)),
                Some((reason, unresolvable)) => {
                    let listed = reasons.contains(&**reason);
                    let reason = if listed || reasons.len() < REASONS {
                        reasons.insert(reason);
                        cut(reason)
                    } else {
                        "node(s) refused by an extender for other reasons".into()
                    };
                    let code = if *unresolvable {
                        Code::Unresolvable
                    } else {
                        Code::Unschedulable
                    };
                    let reasons = Reasons::One(Reason::from(reason));
                    NodeVerdict::Refused(Rejection { code, reasons })
                }
            };
            verdicts.insert(node, entry);
        }
        Self {
            verdicts,
            lenient: false,
        }
    }

    /// Creates verdicts that refuse only `node`, for `reason`.
    pub(super) fn against(node: NodeIndex, reason: &'static str) -> Self {
        let refused = NodeVerdict::Refused(Rejection::unresolvable(reason));
        Self {
            verdicts: [(node, refused)].into_iter().collect(),
            lenient: true,
        }
    }

    /// Returns the refusal of a row, if it is refused.
    pub(super) fn refusal(&self, node: NodeIndex) -> Option<Rejection> {
        match self.verdicts.get(&node) {
            Some(NodeVerdict::Score(_)) => None,
            Some(NodeVerdict::Refused(rejection)) => Some(rejection.clone()),
            None if self.lenient => None,
            None => Some(Rejection::unschedulable(NOT_ASKED)),
        }
    }

    /// Returns the score to add to the total of a node, if the node has a verdict and is not refused.
    pub(super) fn score(&self, node: NodeIndex) -> Option<i64> {
        match self.verdicts.get(&node)? {
            NodeVerdict::Score(more) => Some(*more),
            NodeVerdict::Refused(_) => None,
        }
    }

    /// Returns the total of a node with the sort key `key`, and the tie breaker between equal totals.
    pub(super) fn rank(&self, key: u64, node: NodeIndex) -> (i64, u64) {
        let own = i64::try_from(key >> 32).unwrap_or(i64::MAX);
        let total = own.saturating_add(self.score(node).unwrap_or(0));
        (total, key & u64::from(u32::MAX))
    }

    /// Returns the best of `nodes`, given the `keys` of their scores without extenders.
    pub(super) fn best(&self, keys: &[u64], nodes: &[NodeIndex]) -> Option<NodeIndex> {
        let rank = |(key, node): (&u64, &NodeIndex)| {
            let (total, tie) = self.rank(*key, *node);
            (total, tie, Reverse(*node))
        };
        let pairs = keys.iter().zip(nodes).filter(|(key, _)| **key != 0);
        let best = pairs.map(rank).max()?;
        Some(best.2.0)
    }
}

/// Shortens text from an extender to one line of limited length.
pub(super) fn cut(text: &str) -> String {
    let line = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c });
    line.take(REASON).collect()
}
