//! The gate that controls when writes may be sent.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Controls when writes may be sent. A replica that has lost or gives up the leadership must have stopped
/// writing before another one decides.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    permits: Arc<Semaphore>,
    all: u32,
    /// Cancelled when no more writes may start.
    closing: CancellationToken,
    /// Cancelled when started writes are aborted, too.
    closed: CancellationToken,
}

impl Gate {
    /// Creates an open gate for `concurrency` writes at a time.
    pub(super) fn new(concurrency: usize) -> Self {
        let all = u32::try_from(concurrency.max(1)).unwrap_or(u32::MAX);
        Self {
            permits: Arc::new(Semaphore::new(concurrency.max(1))),
            all,
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Runs `work` when a permit is free. Returns `None` if the gate closes before it has finished.
    pub(super) async fn pass<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let _permit = tokio::select! {
            biased;
            () = self.closing.cancelled() => return None,
            permit = self.permits.acquire() => permit.ok()?,
        };
        tokio::select! {
            biased;
            () = self.closed.cancelled() => None,
            done = work => Some(done),
        }
    }

    /// Runs `work`, which writes nothing. Returns `None` if the gate starts to close before it has finished.
    pub(super) async fn until_closing<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.closing.run_until_cancelled(work).await
    }

    /// Admits no more writes, and waits up to `patience` for those that have started.
    pub(super) async fn close(&self, patience: Duration) {
        self.closing.cancel();
        let empty = self.permits.acquire_many(self.all);
        if tokio::time::timeout(patience, empty).await.is_err() {
            tracing::warn!(timeout = ?patience, "aborting writes that did not end before the timeout");
        }
        self.closed.cancel();
    }

    /// Returns guards that close the gate at once when they are dropped.
    pub(super) fn guard(&self) -> [DropGuard; 2] {
        [&self.closing, &self.closed].map(|token| token.clone().drop_guard())
    }
}
