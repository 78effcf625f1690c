//! Metrics of volume scheduling errors.

use koord_scheduler::framework::{Family, MetricKind, MetricSamples};
use std::sync::atomic::{AtomicU32, Ordering};

static ERRORS: Family = Family {
    name: "scheduler_volume_scheduling_stage_error_total",
    help: "Failures of volumes while a node was judged, was chosen, or was about to be bound to.",
    labels: &["operation"],
    kind: MetricKind::Counter,
};

/// Failures since the last reading. Filter calls count them through a shared reference; no decision depends
/// on them.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub(super) predicate: AtomicU32,
    pub(super) assume: AtomicU32,
    pub(super) bind: AtomicU32,
}

impl Failures {
    pub(super) fn count(failure: &AtomicU32) {
        failure.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self, out: &mut MetricSamples) {
        for (operation, failures) in [
            ("predicate", &self.predicate),
            ("assume", &self.assume),
            ("bind", &self.bind),
        ] {
            let n = failures.swap(0, Ordering::Relaxed);
            if n > 0 {
                out.add(&ERRORS, &[operation], f64::from(n));
            }
        }
    }
}
