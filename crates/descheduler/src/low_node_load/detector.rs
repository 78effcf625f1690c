//! Anomaly detector: decides whether a condition has lasted long enough to act on it.
//!
//! Source: Koordinator `pkg/descheduler/utils/anomaly`.

use super::args::AnomalyCondition;
use jiff::{SignedDuration, Timestamp};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// State of one detector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Detector {
    /// Consecutive normal observations.
    normal: u32,
    /// Consecutive abnormal observations.
    abnormal: u32,
    /// End of the abnormal state; `None` if the state is normal.
    abnormal_until: Option<Timestamp>,
}

impl Detector {
    /// Records an observation. Returns true if the state is abnormal then.
    pub(super) fn record(
        &mut self,
        normal: bool,
        now: Timestamp,
        condition: &AnomalyCondition,
    ) -> bool {
        self.is_abnormal(now);
        if normal {
            self.abnormal = 0;
            self.normal = self.normal.saturating_add(1);
        } else {
            self.normal = 0;
            self.abnormal = self.abnormal.saturating_add(1);
        }
        if self.abnormal_until.is_none() {
            if !normal && self.abnormal > condition.consecutive_abnormalities {
                let timeout = SignedDuration::from_nanos(condition.timeout().as_nanos());
                let until = now.checked_add(timeout).unwrap_or(Timestamp::MAX);
                *self = Self {
                    abnormal_until: Some(until),
                    ..Self::default()
                };
            }
        } else if self.normal > condition.consecutive_normalities {
            self.reset();
        }
        self.abnormal_until.is_some()
    }

    /// Returns true if the state is abnormal at `now`.
    pub(super) fn is_abnormal(&mut self, now: Timestamp) -> bool {
        if self.abnormal_until.is_some_and(|until| until < now) {
            self.reset();
        }
        self.abnormal_until.is_some()
    }

    /// Returns the number of consecutive abnormal observations before the state becomes abnormal.
    pub(super) fn abnormal(&self) -> u32 {
        self.abnormal
    }

    /// Records that there is no observation: the counts are reset, and an abnormal state lasts until its
    /// timeout.
    pub(super) fn record_gap(&mut self) {
        (self.normal, self.abnormal) = (0, 0);
    }

    /// Ends an abnormal state.
    pub(super) fn reset(&mut self) {
        if self.abnormal_until.is_some() {
            *self = Self::default();
        }
    }
}

/// Detectors of nodes, by pool and UID. A detector is kept as long as its node exists: a new node of the same
/// name starts with a new one, and no timeout removes it between two cycles.
#[derive(Debug, Default)]
pub(super) struct Detectors(FxHashMap<(usize, Arc<str>), Detector>);

impl Detectors {
    /// Removes the detectors of all other nodes.
    pub(super) fn retain(&mut self, uids: &FxHashSet<&Arc<str>>) {
        self.0.retain(|(_, uid), _| uids.contains(uid));
    }

    /// Records that there is no observation of other nodes in this cycle, in any pool.
    pub(super) fn mark_unknown_except(&mut self, uids: &FxHashSet<&Arc<str>>) {
        let unknown = self
            .0
            .iter_mut()
            .filter(|((_, uid), _)| !uids.contains(uid));
        unknown.for_each(|(_, detector)| detector.record_gap());
    }

    /// Records that there is no observation of the node in this cycle.
    pub(super) fn mark_unknown(&mut self, pool: usize, uid: &Arc<str>) {
        if let Some(detector) = self.0.get_mut(&(pool, uid.clone())) {
            detector.record_gap();
        }
    }

    /// Records that a node of `pool` exceeds its thresholds. Returns true if it has done so for long enough.
    pub(super) fn record_over(
        &mut self,
        pool: usize,
        uid: &Arc<str>,
        now: Timestamp,
        condition: &AnomalyCondition,
    ) -> bool {
        if condition.consecutive_abnormalities == 1 {
            return true;
        }
        let detector = self.0.entry((pool, uid.clone())).or_default();
        detector.record(false, now, condition)
    }

    /// Returns the number of consecutive cycles in which the node exceeded its thresholds, before that is
    /// long enough.
    pub(super) fn abnormal_count(&self, pool: usize, uid: &Arc<str>) -> u32 {
        self.0
            .get(&(pool, uid.clone()))
            .map_or(0, Detector::abnormal)
    }

    /// Records that the node does not exceed its thresholds in this cycle, or that pods were evicted from it.
    pub(super) fn record_not_over(
        &mut self,
        pool: usize,
        uid: &Arc<str>,
        now: Timestamp,
        condition: &AnomalyCondition,
    ) {
        if let Some(detector) = self.0.get_mut(&(pool, uid.clone())) {
            detector.record(true, now, condition);
        }
    }

    /// Ends the classification of the node as hot for long enough.
    pub(super) fn reset(&mut self, pool: usize, uid: &Arc<str>) {
        if let Some(detector) = self.0.get_mut(&(pool, uid.clone())) {
            detector.reset();
        }
    }
}
