//! How often the kubelet may be asked.

/// Requests per second in the long run.
const PER_SECOND: u64 = 5;

/// Requests at once.
const BURST: u64 = 10;

/// A bucket of requests, filled at a steady rate. Time is milliseconds of a steady clock.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    /// When the bucket would be empty, had every request had its time: the later, the emptier.
    spent_until: u64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { spent_until: 0 }
    }

    /// Takes a request that wants to go out `now`; how long it has to wait.
    pub(super) fn take(&mut self, now: u64) -> u64 {
        let one = 1000 / PER_SECOND;
        let full = now.saturating_sub(one * BURST);
        let until = self.spent_until.max(full).saturating_add(one);
        self.spent_until = until;
        until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_at_once_then_five_a_second() {
        let mut pace = Pace::new();
        let start = 1_000_000;
        let waits: Vec<_> = (0..13).map(|_| pace.take(start)).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 200, 400, 600]);
        // What was not used comes back, up to a full bucket.
        assert_eq!(pace.take(start + 800), 0);
        assert_eq!(pace.take(start + 800), 200);
        let later = start + 60_000;
        let waits: Vec<_> = (0..11).map(|_| pace.take(later)).collect();
        assert_eq!((waits[9], waits[10]), (0, 200));
    }
}
