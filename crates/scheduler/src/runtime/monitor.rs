//! Pending scheduling attempts, from the queue to the end of the binding, with warnings about those that take
//! too long: nothing else detects that the one deciding task or a binding hangs.

use crate::metrics::{Attempt, Metrics};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The interval of the check, and the time after which an attempt takes too long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) period: Duration,
    pub(super) timeout: Duration,
}

/// Tracks pending scheduling attempts. Clones share the attempts.
#[derive(Debug, Clone)]
pub(super) struct Monitor {
    timeout: Duration,
    metrics: Metrics,
    attempts: Arc<Mutex<FxHashMap<Arc<str>, Attempt>>>,
}

impl Monitor {
    /// Starts the periodic check, until `shutdown`.
    pub(super) fn start(limits: Limits, metrics: Metrics, shutdown: CancellationToken) -> Self {
        let monitor = Self {
            timeout: limits.timeout,
            metrics,
            attempts: Arc::default(),
        };
        let watched = monitor.clone();
        tokio::spawn(async move {
            let period = limits.period.max(Duration::from_millis(10));
            while shutdown
                .run_until_cancelled(tokio::time::sleep(period))
                .await
                .is_some()
            {
                watched.check();
            }
        });
        monitor
    }

    /// Logs every attempt that has taken too long; repeated at each check, as in upstream.
    fn check(&self) {
        let overdue: Vec<(Attempt, String)> = self
            .attempts
            .lock()
            .values()
            .filter_map(|attempt| Some((attempt.clone(), attempt.timeout_message(self.timeout)?)))
            .collect();
        for (attempt, message) in overdue {
            self.log_slow_attempt(&attempt, &message);
        }
    }

    fn log_slow_attempt(&self, attempt: &Attempt, message: &str) {
        self.metrics.timed_out(attempt.pod.scheduler_name());
        tracing::warn!("{message}");
    }

    /// Records the start of an attempt.
    pub(super) fn begin(&self, attempt: Attempt) {
        let uid = attempt.pod.uid.clone();
        self.attempts.lock().insert(uid, attempt);
    }

    /// Records the end of the attempt for the pod with this uid, whatever its result.
    pub(super) fn end(&self, uid: &str) -> Option<Attempt> {
        let attempt = self.attempts.lock().remove(uid)?;
        if let Some(message) = attempt.timeout_message(self.timeout) {
            self.log_slow_attempt(&attempt, &message);
        }
        Some(attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::PodInfo;
    use jiff::Timestamp;
    use koord_model::resources::ResourceTable;
    use tokio::time::Instant;

    fn attempt(name: &str) -> Attempt {
        let pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
            "spec": {"schedulerName": "koord-scheduler", "containers": []},
        }))
        .unwrap();
        let pod = PodInfo::new(Arc::new(pod), &ResourceTable::new()).unwrap();
        Attempt {
            pod: Arc::new(pod),
            attempts: 1,
            first_seen: Timestamp::UNIX_EPOCH,
            flushed: false,
            started: Instant::now(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_attempt_is_logged_at_each_check_and_at_end() {
        let registry = prometheus::Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let limits = Limits {
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
        };
        let stop = CancellationToken::new();
        let monitor = Monitor::start(limits, metrics.clone(), stop.clone());
        let timeouts = || metrics.timeouts("koord-scheduler");
        monitor.begin(attempt("quick"));
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert!(monitor.end("uid-quick").is_some());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(timeouts(), 0);

        let slow = attempt("slow");
        monitor.begin(slow.clone());
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert_eq!(
            (timeouts(), slow.timeout_message(limits.timeout)),
            (0, None)
        );
        // After two checks.
        tokio::time::sleep(Duration::from_secs(22)).await;
        assert_eq!(timeouts(), 2);
        assert_eq!(
            slow.timeout_message(limits.timeout).as_deref(),
            Some(
                "!!!CRITICAL TIMEOUT!!! scheduling pod ns/slow(uid-slow) took longer (51s) than \
                 the timeout 30s"
            )
        );
        assert!(monitor.end("uid-slow").is_some());
        assert_eq!(timeouts(), 3);
        assert!(monitor.end("uid-slow").is_none());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(timeouts(), 3);
        stop.cancel();
    }
}
