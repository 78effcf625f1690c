//! Pending scheduling attempts, from the queue to the end of the binding.

use crate::engine::CycleStart;
use crate::state::PodInfo;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A scheduling attempt of one pod.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) pod: Arc<PodInfo>,
    /// The number of attempts, including this one.
    pub(crate) attempts: u32,
    /// The time at which the pod entered the queue.
    pub(crate) first_seen: Timestamp,
    /// True if the pod is retried only because it waited the maximum time.
    pub(crate) flushed: bool,
    pub(crate) started: Instant,
}

impl Attempt {
    pub(crate) fn new(started: CycleStart<'_>) -> Self {
        let CycleStart {
            pod,
            attempts,
            first_seen,
            flushed,
            ..
        } = started;
        Self {
            pod: pod.clone(),
            attempts,
            first_seen,
            flushed,
            started: Instant::now(),
        }
    }

    /// Returns a log message if the attempt has taken longer than `timeout`.
    pub(crate) fn timeout_message(&self, timeout: Duration) -> Option<String> {
        let took = self.started.elapsed();
        (took > timeout).then(|| {
            let pod = &self.pod;
            format!(
                "!!!CRITICAL TIMEOUT!!! scheduling pod {pod}({}) took longer ({took:?}) than the \
                 timeout {timeout:?}",
                pod.uid
            )
        })
    }
}
