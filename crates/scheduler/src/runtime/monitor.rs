//! Watches for a decision that takes too long: nothing else can stop the one task that decides.

use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often to look, and what is too long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) period: Duration,
    pub(super) timeout: Duration,
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub(super) struct Monitor {
    start: Instant,
    /// Nanoseconds from `start` to the start of the decision under way, plus one; 0 when idle.
    since: Arc<AtomicU64>,
}

impl Monitor {
    /// Watches until `shutdown`.
    pub(super) fn start(limits: Limits, metrics: Metrics, shutdown: CancellationToken) -> Self {
        let start = Instant::now();
        let monitor = Self {
            start,
            since: Arc::default(),
        };
        let watched = monitor.clone();
        tokio::spawn(async move {
            let mut reported = 0;
            let period = limits.period.max(Duration::from_millis(10));
            while shutdown
                .run_until_cancelled(tokio::time::sleep(period))
                .await
                .is_some()
            {
                let since = watched.since.load(Ordering::Relaxed);
                let began = start + Duration::from_nanos(since);
                if since != 0 && since != reported && began.elapsed() > limits.timeout {
                    reported = since;
                    metrics.timed_out();
                    let seconds = began.elapsed().as_secs_f64();
                    tracing::error!(seconds, "CRITICAL TIMEOUT: a scheduling cycle does not end");
                }
            }
        });
        monitor
    }

    /// A decision begins.
    pub(super) fn begin(&self, now: Instant) {
        let nanos = now.duration_since(self.start).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX - 1);
        self.since.store(nanos + 1, Ordering::Relaxed);
    }

    /// It is made.
    pub(super) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_decision_that_does_not_end_is_reported_and_once() {
        let registry = prometheus::Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let limits = Limits {
            period: Duration::from_secs(1),
            timeout: Duration::from_secs(3),
        };
        let stop = CancellationToken::new();
        let monitor = Monitor::start(limits, metrics.clone(), stop.clone());
        monitor.begin(Instant::now());
        tokio::time::advance(Duration::from_secs(2)).await;
        monitor.end();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(metrics.timeouts(), 0);
        monitor.begin(Instant::now());
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(metrics.timeouts(), 1);
        stop.cancel();
    }
}
