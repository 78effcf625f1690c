//! Budget of batch work's time.

/// Time budget that grows at a fixed rate. May be overdrawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Budget {
    share: f64,
    most_ms: f64,
    remaining_ms: f64,
}

impl Budget {
    /// Creates a budget that grows by `share` of the elapsed time, up to `most_ms`.
    pub(super) fn new(share: f64, most_ms: f64, remaining_ms: f64) -> Self {
        Self {
            share,
            most_ms,
            remaining_ms,
        }
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.remaining_ms = (self.remaining_ms + self.share * ms as f64).min(self.most_ms);
    }

    pub(super) fn has(&self, ms: u64) -> bool {
        self.remaining_ms >= ms as f64
    }

    pub(super) fn spend(&mut self, ms: u64) {
        self.remaining_ms -= ms as f64;
    }

    pub(super) fn refund(&mut self, ms: u64) {
        self.remaining_ms = (self.remaining_ms + ms as f64).min(self.most_ms);
    }

    pub(super) fn remaining_ms(&self) -> f64 {
        self.remaining_ms
    }
}
