//! How often the kubelet may be asked.

use koord_app::TokenBucket;
use std::time::Duration;

/// Time between requests in the long run.
const INTERVAL: Duration = Duration::from_millis(200);

/// Requests at once.
const BURST: u32 = 10;

/// A bucket of requests, filled at a steady rate. Time is milliseconds of a steady clock.
#[derive(Debug, Clone)]
pub(super) struct RequestLimiter(TokenBucket);

impl RequestLimiter {
    pub(super) fn new() -> Self {
        Self(TokenBucket::new(INTERVAL, BURST))
    }

    /// Takes a request that wants to go out `now`; how long it has to wait.
    pub(super) fn take(&mut self, now: u64) -> u64 {
        let wait = self.0.reserve(Duration::from_millis(now));
        u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_at_once_then_five_a_second() {
        let mut pace = RequestLimiter::new();
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
