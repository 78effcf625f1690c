//! Events of the node, at a limited rate.

use crate::qos::guard::GuardAction;
use k8s_openapi::api::core::v1::ObjectReference;
use koord_app::TokenBucket;
use koord_kube::events::{Recorder, Severity};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of events at once.
const BURST: u32 = 5;
/// Time until one more event is allowed.
const INTERVAL: Duration = Duration::from_secs(60);

/// Records events of the node about problems of the agent, from any thread.
#[derive(Debug)]
pub(crate) struct Warnings {
    since: Instant,
    events: Mutex<NodeEvents>,
}

impl Warnings {
    pub(crate) fn new(node: &str, recorder: Recorder) -> Self {
        Self {
            since: Instant::now(),
            events: Mutex::new(NodeEvents::new(node, recorder)),
        }
    }

    /// Records an event unless the rate limit is exceeded; dropped ones are only in the log.
    pub(crate) fn record(&self, severity: Severity, reason: &str, message: &str) {
        let now_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut events = self.events.lock();
        events.record_event(now_ms, severity, reason, message, "log");
    }
}

/// Records events of the node about the pressure guard.
#[derive(Debug)]
pub(crate) struct NodeEvents {
    node: String,
    recorder: Recorder,
    bucket: Bucket,
}

/// Rate limiter of events.
#[derive(Debug)]
struct Bucket {
    tokens: TokenBucket,
    dropped: u64,
}

impl Bucket {
    fn new() -> Self {
        Self {
            tokens: TokenBucket::new(INTERVAL, BURST),
            dropped: 0,
        }
    }

    /// Takes a token for an event, and returns the number of events dropped since the last one; `None` if the
    /// event must be dropped.
    fn take(&mut self, now_ms: u64) -> Option<u64> {
        if !self.tokens.take(Duration::from_millis(now_ms)) {
            self.dropped += 1;
            return None;
        }
        Some(std::mem::take(&mut self.dropped))
    }
}

impl NodeEvents {
    pub(crate) fn new(node: &str, recorder: Recorder) -> Self {
        Self {
            node: node.to_owned(),
            recorder,
            bucket: Bucket::new(),
        }
    }

    /// Records an event unless the rate limit is exceeded; dropped ones are only in the audit log.
    pub(crate) fn record(&mut self, now_ms: u64, action: &GuardAction) {
        let reason = format!("PressureGuard{}", action.kind);
        self.record_event(
            now_ms,
            Severity::Normal,
            &reason,
            &action.message,
            "audit log",
        );
    }

    /// Records an event of any kind. `elsewhere` names the log that has dropped events.
    fn record_event(
        &mut self,
        now_ms: u64,
        severity: Severity,
        reason: &str,
        message: &str,
        elsewhere: &str,
    ) {
        let Some(dropped) = self.bucket.take(now_ms) else {
            return;
        };
        // Like the references in the kubelet's node events.
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(self.node.clone()),
            uid: Some(self.node.clone()),
            ..ObjectReference::default()
        };
        let suffix = match dropped {
            0 => String::new(),
            n => format!(" ({n} events before this one are in the {elsewhere} only)"),
        };
        self.recorder
            .event(about, severity, reason, format!("{message}{suffix}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_rate_is_limited_and_drops_are_counted() {
        let mut bucket = Bucket::new();
        let recorded = (0..1000).filter(|_| bucket.take(1000).is_some()).count();
        assert_eq!(recorded, 5);
        assert_eq!(bucket.take(61_000), Some(995));
        assert_eq!(bucket.take(62_000), None);
        assert_eq!(bucket.take(3_600_000), Some(1));
        let recorded = (0..1000)
            .filter(|_| bucket.take(3_600_000).is_some())
            .count();
        assert_eq!(recorded, 4, "what was saved up is bounded");
    }
}
