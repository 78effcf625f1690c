//! When values that only follow what the cluster says are looked at again.

use super::View;

/// Decides for one strategy.
#[derive(Debug, Default)]
pub struct Reconcile {
    at_ms: Option<u64>,
    versions: (u64, u64),
}

/// Why it is time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileReason {
    /// Pods or settings changed: what was written lately need not be looked at, but for pods that
    /// changed, whose files the executor has forgotten.
    Changed,
    /// The interval is over: every file is looked at, so that a foreign write does not stand.
    Periodic,
}

impl Reconcile {
    /// Whether it is time: at once after a change, and every `every_ms` otherwise.
    pub fn due(&mut self, view: &View<'_>, every_ms: u64) -> Option<ReconcileReason> {
        let now = view.now.ms();
        let versions = (view.pods_version, view.facts_version);
        let over = self
            .at_ms
            .is_none_or(|at| now.saturating_sub(at) >= every_ms);
        if over {
            self.at_ms = Some(now);
            self.versions = versions;
            return Some(ReconcileReason::Periodic);
        }
        (std::mem::replace(&mut self.versions, versions) != versions)
            .then_some(ReconcileReason::Changed)
    }
}
