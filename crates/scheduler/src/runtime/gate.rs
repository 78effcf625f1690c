//! Says when writes may be sent.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Says when writes may be sent. Whoever has lost the leadership, or gives it up, must have stopped
/// writing before somebody else decides.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    permits: Arc<Semaphore>,
    all: u32,
    /// No write begins any more.
    closing: CancellationToken,
    /// Those that have begun are given up, too.
    closed: CancellationToken,
}

impl Gate {
    /// Open, for so many at a time.
    pub(super) fn new(concurrency: usize) -> Self {
        let all = u32::try_from(concurrency.max(1)).unwrap_or(u32::MAX);
        Self {
            permits: Arc::new(Semaphore::new(concurrency.max(1))),
            all,
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Does `work` in its turn, unless the gate is closed before.
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

    /// Does `work`, which writes nothing, unless the gate begins to close.
    pub(super) async fn until_closing<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.closing.run_until_cancelled(work).await
    }

    /// Lets nobody in any more, and waits for those who are, but not for ever.
    pub(super) async fn close(&self, patience: Duration) {
        self.closing.cancel();
        let empty = self.permits.acquire_many(self.all);
        if tokio::time::timeout(patience, empty).await.is_err() {
            tracing::warn!("writes did not end in time; they are given up");
        }
        self.closed.cancel();
    }

    /// Closes the gate at once when it is dropped.
    pub(super) fn guard(&self) -> [DropGuard; 2] {
        [&self.closing, &self.closed].map(|token| token.clone().drop_guard())
    }
}
