//! Rate limit of requests to the kubelet.

use koord_app::TokenBucket;
use std::time::Duration;

/// Time between requests in the long run.
const INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of requests at once.
const BURST: u32 = 10;

/// Rate limiter of requests. Times are milliseconds of the monotonic clock.
#[derive(Debug, Clone)]
pub(super) struct RequestLimiter(TokenBucket);

impl RequestLimiter {
    pub(super) fn new() -> Self {
        Self(TokenBucket::new(INTERVAL, BURST))
    }

    /// Reserves a request at `now`. Returns the milliseconds that it has to wait.
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
