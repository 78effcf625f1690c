//! Limits on the bytes that wait for clients to read them.
//!
//! A part of a response is charged once to each [`SendQueue`] it belongs to, its user's and its connection's,
//! with its full length, even if several responses share the bytes: a client can make the server hold at most
//! the limit.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// Unread bytes of one connection, or of one user on all connections.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Limit in bytes.
    limit: usize,
    /// Bytes of the objects and changes that watches have yet to encode.
    queued: AtomicUsize,
    /// Bytes that are encoded and not sent.
    unsent: AtomicUsize,
    sent: Arc<Notify>,
}

impl SendQueue {
    /// Creates an empty queue; `limit` is in bytes, 0 for none.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: if limit == 0 { usize::MAX } else { limit },
            queued: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            sent: Arc::default(),
        }
    }

    /// Returns the limit in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    fn counter(&self, stage: QueueStage) -> &AtomicUsize {
        match stage {
            QueueStage::Queued => &self.queued,
            QueueStage::Unsent => &self.unsent,
        }
    }

    fn used(&self) -> usize {
        self.queued.load(Ordering::Relaxed) + self.unsent.load(Ordering::Relaxed)
    }

    fn stalled(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) >= self.limit
    }
}

/// Place in the server where bytes wait to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueStage {
    /// A watch, which holds objects and changes.
    Queued,
    /// A connection, which holds parts of responses.
    Unsent,
}

/// Queues that the responses to one request are charged to.
#[derive(Debug, Clone)]
pub(crate) struct SendQueues(Arc<[Arc<SendQueue>]>);

impl SendQueues {
    /// Returns a set of queues.
    pub(crate) fn new(queues: impl IntoIterator<Item = Arc<SendQueue>>) -> Self {
        Self(queues.into_iter().collect())
    }

    /// Returns the limit of a queue that is full; `None` if none is.
    pub(crate) fn full(&self) -> Option<usize> {
        let full = |queue: &&Arc<SendQueue>| queue.used() >= queue.limit;
        self.0.iter().find(full).map(|queue| queue.limit)
    }

    /// Returns the limit of a queue that is full of unsent bytes alone; `None` if none is.
    pub(crate) fn stalled(&self) -> Option<usize> {
        let stalled = self.0.iter().find(|queue| queue.stalled());
        stalled.map(|queue| queue.limit)
    }

    /// Completes when a stalled queue may have free space again; `None` if no queue is stalled.
    pub(crate) fn wait_for_space(&self) -> Option<Pin<Box<OwnedNotified>>> {
        self.0.iter().find_map(|queue| {
            if !queue.stalled() {
                return None;
            }
            // Registered before the second check, so that a send in between wakes it.
            let mut space = Box::pin(Arc::clone(&queue.sent).notified_owned());
            space.as_mut().enable();
            queue.stalled().then_some(space)
        })
    }

    /// Charges `bytes`, regardless of the limits, until the result is dropped.
    pub(crate) fn charge(&self, stage: QueueStage, bytes: usize) -> QueueCharge {
        let mut charge = QueueCharge {
            queues: self.clone(),
            stage,
            bytes: 0,
        };
        charge.grow(bytes);
        charge
    }
}

/// Bytes that are charged to queues until it is dropped.
pub(crate) struct QueueCharge {
    queues: SendQueues,
    stage: QueueStage,
    bytes: usize,
}

impl fmt::Debug for QueueCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("QueueCharge");
        shown.field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl QueueCharge {
    /// Returns the number of charged bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges `bytes` more.
    pub(crate) fn grow(&mut self, bytes: usize) {
        for queue in &*self.queues.0 {
            queue
                .counter(self.stage)
                .fetch_add(bytes, Ordering::Relaxed);
        }
        self.bytes += bytes;
    }

    /// Charges `bytes` more unless a queue would exceed its limit. Returns whether it did.
    #[must_use]
    pub(crate) fn try_grow(&mut self, bytes: usize) -> bool {
        let fits = |queue: &Arc<SendQueue>| queue.used().saturating_add(bytes) <= queue.limit;
        let fit = self.queues.0.iter().all(fits);
        if fit {
            self.grow(bytes);
        }
        fit
    }

    /// Releases `bytes`, at most all.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        for queue in &*self.queues.0 {
            let before = queue
                .counter(self.stage)
                .fetch_sub(bytes, Ordering::Relaxed);
            let had_none = before >= queue.limit;
            if self.stage == QueueStage::Unsent && had_none && before - bytes < queue.limit {
                queue.sent.notify_waiters();
            }
        }
    }

    /// Splits off `bytes`, at most all, into a charge of their own.
    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            queues: self.queues.clone(),
            stage: self.stage,
            bytes,
        }
    }
}

impl Drop for QueueCharge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn queues(user: usize, connection: usize) -> SendQueues {
        SendQueues::new([user, connection].map(|limit| Arc::new(SendQueue::new(limit))))
    }

    #[test]
    fn charge_beyond_the_smallest_limit_is_refused() {
        let queues = queues(100, 10);
        let mut charge = queues.charge(QueueStage::Queued, 4);
        assert!(charge.try_grow(6));
        assert!(!charge.try_grow(1));
        assert_eq!((charge.bytes(), queues.full()), (10, Some(10)));
        assert_eq!(queues.stalled(), None, "nothing is unsent");
        let other = charge.split(7);
        assert_eq!(queues.full(), Some(10), "a split frees nothing");
        drop(other);
        assert!(charge.try_grow(7) && !charge.try_grow(1));
        drop(charge);
        assert_eq!(queues.full(), None);
    }

    #[test]
    fn sent_bytes_free_queue_space() {
        let queues = queues(0, 10);
        assert!(queues.wait_for_space().is_none());
        let charge = queues.charge(QueueStage::Unsent, 8);
        let extra = queues.charge(QueueStage::Unsent, 8);
        let mut space = queues.wait_for_space().unwrap();
        assert!(space.as_mut().now_or_never().is_none());
        drop(charge);
        assert!(space.now_or_never().is_some());
        assert!(queues.wait_for_space().is_none());
        drop(extra);
    }
}
