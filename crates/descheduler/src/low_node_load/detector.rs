//! Whether something has been wrong for long enough to act on it.
//!
//! Source: Koordinator `pkg/descheduler/utils/anomaly`.

use super::args::Condition;
use jiff::{SignedDuration, Timestamp};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// What is known of one thing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Detector {
    /// In a row.
    normal: u32,
    /// In a row.
    abnormal: u32,
    /// Until when it is taken for wrong, if it is.
    wrong_until: Option<Timestamp>,
}

impl Detector {
    /// Notes how it was now. Whether it is taken for wrong then.
    pub(super) fn mark(&mut self, normal: bool, now: Timestamp, condition: &Condition) -> bool {
        self.is_wrong(now);
        if normal {
            self.abnormal = 0;
            self.normal = self.normal.saturating_add(1);
        } else {
            self.normal = 0;
            self.abnormal = self.abnormal.saturating_add(1);
        }
        if self.wrong_until.is_none() {
            if !normal && self.abnormal > condition.consecutive_abnormalities {
                let timeout = SignedDuration::from_nanos(condition.timeout().as_nanos());
                let until = now.checked_add(timeout).unwrap_or(Timestamp::MAX);
                *self = Self {
                    wrong_until: Some(until),
                    ..Self::default()
                };
            }
        } else if self.normal > condition.consecutive_normalities {
            self.reset();
        }
        self.wrong_until.is_some()
    }

    /// Whether it is taken for wrong now.
    pub(super) fn is_wrong(&mut self, now: Timestamp) -> bool {
        if self.wrong_until.is_some_and(|until| until < now) {
            self.reset();
        }
        self.wrong_until.is_some()
    }

    /// How often in a row it was wrong, before it is taken for it.
    pub(super) fn abnormal(&self) -> u32 {
        self.abnormal
    }

    /// Nothing is known of how it was now: a row ends, and what it is taken for stays until its time is over.
    pub(super) fn gap(&mut self) {
        (self.normal, self.abnormal) = (0, 0);
    }

    /// If it is taken for wrong, it no longer is.
    pub(super) fn reset(&mut self) {
        if self.wrong_until.is_some() {
            *self = Self::default();
        }
    }
}

/// Those of nodes, by pool and UID. A node is retained_until as long as it exists: one that took its place under its name
/// starts anew, and no timer can forget it between two cycles.
#[derive(Debug, Default)]
pub(super) struct Detectors(FxHashMap<(usize, Arc<str>), Detector>);

impl Detectors {
    /// Forgets all nodes but these.
    pub(super) fn keep(&mut self, uids: &FxHashSet<&Arc<str>>) {
        self.0.retain(|(_, uid), _| uids.contains(uid));
    }

    /// Of all nodes but these nothing is known in this cycle, in any pool.
    pub(super) fn mark_unknown_except(&mut self, uids: &FxHashSet<&Arc<str>>) {
        let unknown = self
            .0
            .iter_mut()
            .filter(|((_, uid), _)| !uids.contains(uid));
        unknown.for_each(|(_, detector)| detector.gap());
    }

    /// Nothing is known of it in this cycle.
    pub(super) fn mark_unknown(&mut self, pool: usize, uid: &Arc<str>) {
        if let Some(detector) = self.0.get_mut(&(pool, uid.clone())) {
            detector.gap();
        }
    }

    /// A node of `pool` is over its thresholds. Whether it has been for long enough.
    pub(super) fn is_over(
        &mut self,
        pool: usize,
        uid: &Arc<str>,
        now: Timestamp,
        condition: &Condition,
    ) -> bool {
        if condition.consecutive_abnormalities == 1 {
            return true;
        }
        let detector = self.0.entry((pool, uid.clone())).or_default();
        detector.mark(false, now, condition)
    }

    /// How often in a row it was, before it is taken for one that has been for long.
    pub(super) fn times(&self, pool: usize, uid: &Arc<str>) -> u32 {
        self.0
            .get(&(pool, uid.clone()))
            .map_or(0, Detector::abnormal)
    }

    /// It is not over its thresholds in this cycle, or was dealt with: a row of cycles in which it was ends.
    pub(super) fn is_not_over(
        &mut self,
        pool: usize,
        uid: &Arc<str>,
        now: Timestamp,
        condition: &Condition,
    ) {
        if let Some(detector) = self.0.get_mut(&(pool, uid.clone())) {
            detector.mark(true, now, condition);
        }
    }

    /// It is not over its thresholds any more.
    pub(super) fn reset(&mut self, pool: usize, uid: &Arc<str>) {
        if let Some(detector) = self.0.get_mut(&(pool, uid.clone())) {
            detector.reset();
        }
    }
}
