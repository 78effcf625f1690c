//! Schedules the reconciles of values that depend only on the state of the cluster.

use super::View;

/// Schedules the reconciles of one strategy.
#[derive(Debug, Default)]
pub struct Reconcile {
    at_ms: Option<u64>,
    versions: (u64, u64),
}

/// Reason of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileReason {
    /// Pods or settings changed: files that were written recently need not be read, except those of changed
    /// pods, which the executor dropped from its cache.
    Changed,
    /// The interval has passed: every file is read, so that a foreign write is corrected.
    Periodic,
}

impl Reconcile {
    /// Returns why a reconcile is due: at once after a change, and otherwise every `every_ms`; else `None`.
    pub fn due(&mut self, view: &View<'_>, every_ms: u64) -> Option<ReconcileReason> {
        let now = view.now.ms();
        let versions = (view.pods_version, view.facts_version);
        let over = self
            .at_ms
            .is_none_or(|last| now.saturating_sub(last) >= every_ms);
        if over {
            self.at_ms = Some(now);
            self.versions = versions;
            return Some(ReconcileReason::Periodic);
        }
        (std::mem::replace(&mut self.versions, versions) != versions)
            .then_some(ReconcileReason::Changed)
    }
}
