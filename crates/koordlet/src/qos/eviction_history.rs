//! Earlier evictions of pods: which are in progress, and which were refused and may be retried when.

use koord_model::evict::plan::EvictionState;
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Milliseconds for which an evicted pod that still exists counts as leaving.
const LEAVING_MS: u64 = 120_000;
/// Initial retry delay after a refused eviction, in milliseconds; doubled each time.
const FIRST_MS: u64 = 2_000;
/// Maximum retry delay after a refused eviction, in milliseconds.
const LONGEST_MS: u64 = 30_000;

/// Recent evictions and refusals, by pod UID.
#[derive(Debug, Default)]
pub struct EvictionHistory {
    leaving: FxHashMap<String, u64>,
    refused: FxHashMap<String, EvictionRefusal>,
}

#[derive(Debug, Clone, Copy)]
struct EvictionRefusal {
    times: u32,
    until_ms: u64,
}

impl EvictionHistory {
    /// Records that the pod `uid` is being evicted.
    pub fn record_eviction(&mut self, uid: &str, now_ms: u64) {
        self.refused.remove(uid);
        self.leaving.insert(uid.to_owned(), now_ms);
    }

    /// Records that the eviction of the pod `uid` was refused or failed. `after` is the server's retry delay,
    /// if it sent one.
    pub fn record_refusal(&mut self, uid: &str, after: Option<Duration>, now_ms: u64) {
        let times = self.refused.get(uid).map_or(0, |refused| refused.times);
        let doubled = FIRST_MS.saturating_mul(1 << times.min(10));
        let requested = after.map_or(0, |after| {
            u64::try_from(after.as_millis()).unwrap_or(u64::MAX)
        });
        let refused = EvictionRefusal {
            times: times.saturating_add(1),
            until_ms: now_ms.saturating_add(doubled.max(requested).min(LONGEST_MS)),
        };
        self.refused.insert(uid.to_owned(), refused);
    }

    /// Returns the standing of the pod `uid`.
    #[must_use]
    pub fn standing(&self, uid: &str, now_ms: u64) -> EvictionState {
        let refused = self.refused.get(uid);
        if self.leaving.contains_key(uid) {
            EvictionState::Leaving
        } else if refused.is_some_and(|refused| now_ms < refused.until_ms) {
            EvictionState::Refused
        } else {
            EvictionState::Present
        }
    }

    /// Removes old records. The retry delay of a pod starts over two minutes after the last one ended.
    pub fn expire(&mut self, now_ms: u64) {
        let fresh = |at: u64| now_ms.saturating_sub(at) < LEAVING_MS;
        self.leaving.retain(|_, at| fresh(*at));
        self.refused.retain(|_, refused| fresh(refused.until_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_double_the_wait_up_to_a_limit() {
        let mut all = EvictionHistory::default();
        let wait = |all: &mut EvictionHistory, after: Option<u64>, now: u64| {
            all.record_refusal("a", after.map(Duration::from_secs), now);
            let over =
                (0..100).find(|s| all.standing("a", now + s * 1000) == EvictionState::Present);
            over.unwrap()
        };
        let waits: Vec<u64> = (0..6).map(|_| wait(&mut all, None, 0)).collect();
        assert_eq!(waits, [2, 4, 8, 16, 30, 30]);
        assert_eq!(all.standing("b", 0), EvictionState::Present);
        all.expire(30_000 + LEAVING_MS);
        let now = 1_000_000;
        assert_eq!(wait(&mut all, Some(10), now), 10, "as the server says");
        assert_eq!(wait(&mut all, Some(3600), now), 30, "but not for ever");
        all.record_eviction("a", now);
        assert_eq!(all.standing("a", now), EvictionState::Leaving);
        all.expire(now + LEAVING_MS);
        assert_eq!(all.standing("a", now + LEAVING_MS), EvictionState::Present);
    }
}
