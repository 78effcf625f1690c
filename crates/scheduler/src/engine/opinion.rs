//! What others than plugins say about a pod, extenders above all, as one more filter and score.

use crate::framework::{Advised, Code, Reason, Reasons, Rejection};
use crate::state::{NodeIndex, NodeStore};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::sync::Arc;

/// What an extender's reason may take of a condition, in characters, and how many different ones count.
const REASON: usize = 256;
const REASONS: usize = 16;
/// Of a node that the extender was not asked about.
const NOT_ASKED: &str = "node(s) appeared while an extender was asked";

/// What extenders said about a pod, by row.
#[derive(Debug, Default)]
pub(super) struct Opinion {
    said: FxHashMap<NodeIndex, Said>,
    /// Whether nodes that they were not asked about pass.
    pub(super) lenient: bool,
}

#[derive(Debug)]
enum Said {
    Score(i64),
    Refused(Rejection),
}

impl Opinion {
    pub(super) fn new(asked: &[Arc<str>], advised: &Advised, nodes: &NodeStore) -> Self {
        let mut reasons: FxHashSet<&str> = FxHashSet::default();
        let mut said = FxHashMap::default();
        for name in asked {
            let Some(node) = nodes.find(name) else {
                continue;
            };
            let entry = match advised.refused.get(name) {
                None => Said::Score(advised.scores.get(name).copied().unwrap_or(0)),
                Some((reason, unresolvable)) => {
                    let known = reasons.contains(&**reason);
                    let reason = if known || reasons.len() < REASONS {
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
                    Said::Refused(Rejection { code, reasons })
                }
            };
            said.insert(node, entry);
        }
        Self {
            said,
            lenient: false,
        }
    }

    /// That of nobody but who refuses one row, for `reason`.
    pub(super) fn against(node: NodeIndex, reason: &'static str) -> Self {
        let refused = Said::Refused(Rejection::unresolvable(reason));
        Self {
            said: [(node, refused)].into_iter().collect(),
            lenient: true,
        }
    }

    /// Why a row is refused, if it is.
    pub(super) fn refusal(&self, node: NodeIndex) -> Option<Rejection> {
        match self.said.get(&node) {
            Some(Said::Score(_)) => None,
            Some(Said::Refused(rejection)) => Some(rejection.clone()),
            None if self.lenient => None,
            None => Some(Rejection::unschedulable(NOT_ASKED)),
        }
    }

    /// What they add to the total of a node that they were asked about.
    pub(super) fn score(&self, node: NodeIndex) -> Option<i64> {
        match self.said.get(&node)? {
            Said::Score(more) => Some(*more),
            Said::Refused(_) => None,
        }
    }

    /// The total of a node with that `key`, and what decides between equal ones.
    pub(super) fn rank(&self, key: u64, node: NodeIndex) -> (i64, u64) {
        let own = i64::try_from(key >> 32).unwrap_or(i64::MAX);
        let total = own.saturating_add(self.score(node).unwrap_or(0));
        (total, key & u64::from(u32::MAX))
    }

    /// The best of `nodes`, given the `keys` of what they score without extenders.
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

/// What extenders write is others' text: one line of it, and not too long.
pub(super) fn cut(text: &str) -> String {
    let line = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c });
    line.take(REASON).collect()
}
