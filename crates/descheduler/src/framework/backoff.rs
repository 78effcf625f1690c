//! Backoff of pods whose planned moves failed, so that they do not use up the eviction limits of a cycle.

use super::{Action, Plan, SkipReason};
use crate::state::PodInfo;
use jiff::{SignedDuration, Timestamp};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Longest backoff in cycles.
const MOST: u64 = 32;
/// Time for which a failure is recorded.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// Failures of moves of one pod.
#[derive(Debug, Clone, Copy)]
struct FailedMove {
    at: Timestamp,
    /// Number of failures in a row.
    attempt: u32,
    /// First cycle in which the pod may be moved again.
    until: u64,
}

/// Pods in backoff, by UID: one cycle after the first failure, twice as many after each further failure in a
/// row.
#[derive(Debug, Default)]
pub struct EvictionBackoff {
    cycle: u64,
    pods: FxHashMap<Arc<str>, FailedMove>,
}

impl EvictionBackoff {
    /// Starts a cycle.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.cycle += 1;
        self.pods
            .retain(|_, failure| now.duration_since(failure.at) < MEMORY);
    }

    /// Checks that `pod` is not in backoff.
    ///
    /// # Errors
    /// Returns the remaining backoff.
    pub(super) fn allows(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        let failure = self.pods.get(&pod.uid);
        let Some(failure) = failure.filter(|failure| self.cycle < failure.until) else {
            return Ok(());
        };
        let (times, left) = (failure.attempt, failure.until - self.cycle);
        let detail = format!("its move failed {times} times in a row: not again for {left} cycles");
        Err(SkipReason::new("MoveRefused", detail))
    }

    /// Records the outcomes of `plan`, which was made at `now`, in the order of its actions.
    pub(super) fn record_outcomes(
        &mut self,
        plan: &Plan,
        outcomes: &[Result<String, String>],
        now: Timestamp,
    ) {
        // Moves that were not tried because another action for their node failed do not count as failures.
        let mut off = FxHashSet::default();
        for (action, outcome) in plan.actions.iter().zip(outcomes) {
            match action {
                Action::Cordon { node, .. } if outcome.is_err() => {
                    off.insert(node.clone());
                }
                Action::Move(planned) if planned.is_real() && outcome.is_ok() => {
                    self.pods.remove(&planned.pod.uid);
                }
                Action::Move(planned) if planned.is_real() => {
                    let drains = planned.drains.clone();
                    if drains.is_none_or(|node| off.insert(node)) {
                        self.record_failure(&planned.pod.uid, now);
                    }
                }
                _ => {}
            }
        }
    }

    fn record_failure(&mut self, uid: &Arc<str>, now: Timestamp) {
        let attempt = self.pods.get(uid).map_or(0, |failure| failure.attempt) + 1;
        let pause = 1_u64.checked_shl(attempt - 1).unwrap_or(MOST).min(MOST);
        let failure = FailedMove {
            at: now,
            attempt,
            until: self.cycle + pause + 1,
        };
        self.pods.insert(uid.clone(), failure);
    }
}
