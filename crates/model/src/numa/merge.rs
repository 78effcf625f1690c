//! Merges the hints of all providers to one set of NUMA nodes.

use super::{Hint, NumaExclusive, NumaMask, NumaPolicy, NumaPolicyKind, NumaState, Offers};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Combination of one hint per resource, reduced to the properties that affect the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Merged {
    /// Intersection of all chosen hints; `None` while no hint names a NUMA node.
    mask: Option<NumaMask>,
    /// True if all hints are preferred and name the same NUMA nodes, if any.
    preferred: bool,
    /// Size of the widest hint.
    widest: u32,
    /// True if a resource has no possible hint.
    unsatisfied: bool,
}

/// Returns the NUMA nodes that a pod is aligned to; `None` means that it is admitted without alignment.
///
/// One hint per resource is chosen so that the result is preferred, then narrow, then of a high score, then
/// of low ids. The score of a result is the sum of the hints that name exactly its NUMA nodes.
///
/// # Errors
/// The reasons to reject the node.
pub fn admit(policy: &NumaPolicy, offers: &[Offers]) -> Result<Option<NumaMask>, Vec<String>> {
    if policy.kind != NumaPolicyKind::BestEffort {
        let unserved = offers.iter().flatten().filter(|(_, hints)| is_empty(hints));
        let reasons: Vec<String> = unserved
            .map(|(resource, _)| format!("Unsatisfied NUMA {resource}"))
            .collect();
        if !reasons.is_empty() {
            return Err(reasons);
        }
    }
    let best = best(policy, offers);
    match policy.kind {
        NumaPolicyKind::BestEffort if best.unsatisfied => Ok(Some(policy.nodes)),
        NumaPolicyKind::BestEffort => Ok(Some(best.mask)),
        _ if !best.preferred => Err(vec![unaligned(policy.kind, offers)]),
        // Aligning a pod to the only NUMA node has no effect.
        NumaPolicyKind::SingleNumaNode if best.mask == policy.nodes => Ok(None),
        _ => Ok(Some(best.mask)),
    }
}

#[derive(Debug, Clone, Copy)]
struct Best {
    mask: NumaMask,
    preferred: bool,
    unsatisfied: bool,
    score: i64,
}

impl Best {
    /// Returns the sort key; smaller is better.
    fn rank(&self) -> (bool, u32, Reverse<i64>, NumaMask) {
        let worse = !self.preferred;
        (worse, self.mask.count(), Reverse(self.score), self.mask)
    }
}

fn is_empty(hints: &Option<Vec<Hint>>) -> bool {
    hints.as_ref().is_some_and(Vec::is_empty)
}

/// Returns the best combination of one hint per resource.
fn best(policy: &NumaPolicy, offers: &[Offers]) -> Best {
    let start = Merged {
        mask: None,
        preferred: true,
        widest: 0,
        unsatisfied: false,
    };
    // The highest score per combination: equal combinations stay equal whatever is chosen for the other
    // resources, so that the number of choices does not matter.
    let mut outcomes = BTreeMap::from([(start, 0)]);
    for (_, hints) in offers.iter().flatten() {
        let Some(hints) = hints else { continue };
        let hints = choices(policy, hints);
        let mut next = BTreeMap::new();
        for (merged, score) in outcomes {
            for hint in &hints {
                let (merged, score) = merged.with(hint, score, policy.nodes);
                if merged.mask != Some(NumaMask(0)) {
                    let best_score = next.entry(merged).or_insert(score);
                    *best_score = score.max(*best_score);
                }
            }
        }
        outcomes = next;
    }
    let fallback = Best {
        mask: policy.nodes,
        preferred: false,
        unsatisfied: false,
        score: 0,
    };
    let candidates = outcomes.into_iter().map(|(merged, score)| {
        let mask = merged.mask.unwrap_or(policy.nodes);
        Best {
            mask,
            preferred: merged.preferred && may_use(policy, mask),
            unsatisfied: merged.unsatisfied || (merged.widest > 0 && merged.widest != mask.count()),
            score,
        }
    });
    candidates.fold(fallback, |best, next| {
        let is_better_tie = next.rank() == best.rank() && best.unsatisfied && !next.unsatisfied;
        if is_better_tie || next.rank() < best.rank() {
            next
        } else {
            best
        }
    })
}

/// Returns the hints to choose from for one resource.
fn choices(policy: &NumaPolicy, hints: &[Hint]) -> Vec<Hint> {
    if hints.is_empty() {
        return vec![Hint {
            mask: None,
            preferred: false,
            score: UNSERVED,
        }];
    }
    let single = policy.kind == NumaPolicyKind::SingleNumaNode;
    let suits = |hint: &&Hint| hint.preferred && hint.mask.is_none_or(|mask| mask.count() == 1);
    let hints = hints.iter().filter(|hint| !single || suits(hint));
    hints.copied().collect()
}

/// Score of the placeholder for a resource that cannot be served; never added to a sum.
const UNSERVED: i64 = i64::MIN;

impl Merged {
    fn with(self, hint: &Hint, score: i64, nodes: NumaMask) -> (Self, i64) {
        let mut out = self;
        out.unsatisfied |= hint.score == UNSERVED;
        out.preferred &= hint.preferred;
        let Some(mask) = hint.mask else {
            return (out, score);
        };
        let before = self.mask.unwrap_or(mask);
        let common = NumaMask(before.0 & mask.0 & nodes.0);
        out.mask = Some(common);
        out.preferred &= before == mask;
        out.widest = self.widest.max(mask.count());
        // Earlier hints count only if their NUMA nodes are still exactly the common ones.
        let earlier = if self.mask == Some(common) { score } else { 0 };
        let own = if mask == common { hint.score } else { 0 };
        (out, earlier.saturating_add(own))
    }
}

/// Returns true if a pod on `mask` respects the required exclusion.
fn may_use(policy: &NumaPolicy, mask: NumaMask) -> bool {
    if policy.exclusive != NumaExclusive::Required {
        return true;
    }
    let forbidden = if mask.count() > 1 {
        NumaState::Single
    } else {
        NumaState::Shared
    };
    let mut states = policy.states.iter();
    !states.any(|(id, state)| mask.has(*id) && *state == forbidden)
}

/// Returns the message for hints that cannot be aligned, as upstream formats it.
fn unaligned(kind: NumaPolicyKind, offers: &[Offers]) -> String {
    let mut parts: Vec<String> = offers
        .iter()
        .flatten()
        .filter_map(|(resource, hints)| {
            let hints = hints.as_ref()?;
            let list = |preferred: bool| {
                let chosen = hints.iter().filter(|hint| hint.preferred || !preferred);
                let masks = chosen.map(|hint| {
                    hint.mask
                        .map_or_else(|| "<nil>".to_owned(), |mask| mask.to_string())
                });
                masks.collect::<Vec<String>>().join(" ")
            };
            let (prefer, among) = (list(true), list(false));
            Some(format!("{resource} prefer [{prefer}] among [{among}]"))
        })
        .collect();
    parts.sort();
    let separator = match kind {
        NumaPolicyKind::SingleNumaNode => ",",
        _ => " & ",
    };
    format!("Unaligned NUMA Hint cause {}", parts.join(separator))
}
