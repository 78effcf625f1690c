//! A work queue with client-go's semantics: a key waits at most once, is processed by at most one worker,
//! comes back if it was added meanwhile, and can be delayed or backed off.

mod metrics;

pub use metrics::QueueMetrics;

use koord_app::TokenBucket;
use metrics::QueueSeries;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Longest delay: settings may contain durations that a clock cannot represent.
const MAX_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);

/// Back-off of failed keys: exponential per key, and a token bucket over all keys.
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    /// First delay of a key. Default 5 ms.
    pub base: Duration,
    /// Longest delay of a key. Default 1000 s.
    pub max: Duration,
    /// Retries per second over all keys. Default 10.
    pub qps: f64,
    /// Retries that may happen at once over all keys. Default 100.
    pub burst: u32,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(5),
            max: Duration::from_secs(1000),
            qps: 10.0,
            burst: 100,
        }
    }
}

/// The queue. Clones share the same content.
#[derive(Debug)]
pub struct WorkQueue<T> {
    shared: Arc<SharedQueue<T>>,
}

impl<T> Clone for WorkQueue<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

#[derive(Debug)]
struct SharedQueue<T> {
    state: Mutex<QueueState<T>>,
    changed: Notify,
    limit: RateLimit,
}

#[derive(Debug)]
struct QueueState<T> {
    ready: VecDeque<T>,
    /// Keys that wait to be processed: in `ready`, or after their current processing ends.
    dirty: HashSet<T>,
    processing: HashSet<T>,
    /// Delayed keys by due time, then order of arrival.
    delayed: BTreeMap<(Instant, u64), T>,
    due: HashMap<T, (Instant, u64)>,
    sequence: u64,
    failures: HashMap<T, u32>,
    /// Limits the retries over all keys; `since` is the origin of its time.
    retries: TokenBucket,
    since: Instant,
    closed: bool,
    measured: Option<QueueSeries<T>>,
}

impl<T: Clone + Eq + Hash> Default for WorkQueue<T> {
    fn default() -> Self {
        Self::new(RateLimit::default())
    }
}

impl<T: Clone + Eq + Hash> WorkQueue<T> {
    /// Creates an empty queue.
    #[must_use]
    pub fn new(limit: RateLimit) -> Self {
        let interval = Duration::try_from_secs_f64(1.0 / limit.qps).unwrap_or_default();
        let state = QueueState {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            processing: HashSet::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            sequence: 0,
            failures: HashMap::new(),
            retries: TokenBucket::new(interval, limit.burst),
            since: Instant::now(),
            closed: false,
            measured: None,
        };
        Self {
            shared: Arc::new(SharedQueue {
                state: Mutex::new(state),
                changed: Notify::new(),
                limit,
            }),
        }
    }

    /// Starts to measure the queue as that of the controller `name`.
    pub fn measure(&self, name: &str, metrics: &QueueMetrics) {
        let mut state = self.shared.state.lock();
        let mut measured = metrics.series(name);
        for key in &state.ready {
            measured.add(key);
        }
        state.measured = Some(measured);
    }

    /// Adds a key, unless it waits already. A key in progress waits until its processing ends.
    pub fn add(&self, key: T) {
        self.shared.state.lock().add(key);
        self.shared.changed.notify_one();
    }

    /// Adds a key after a delay. The earliest of several delays applies.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let due = Instant::now() + delay.min(MAX_DELAY);
        self.shared.state.lock().delay(key, due);
        self.shared.changed.notify_one();
    }

    /// Adds a failed key after its back-off.
    pub fn add_rate_limited(&self, key: T) {
        let limit = self.shared.limit;
        let mut state = self.shared.state.lock();
        let failures = state.failures.entry(key.clone()).or_default();
        let own = limit
            .base
            .saturating_mul(2_u32.saturating_pow(*failures))
            .min(limit.max);
        *failures = failures.saturating_add(1);
        let now = Instant::now();
        let since = state.since;
        let shared = state.retries.reserve(now.duration_since(since));
        state.delay(key, now + own.max(shared));
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Resets the back-off of a key.
    pub fn forget(&self, key: &T) {
        self.shared.state.lock().failures.remove(key);
    }

    /// Returns how often a key was added with back-off since its last reset.
    #[must_use]
    pub fn failures(&self, key: &T) -> u32 {
        self.shared
            .state
            .lock()
            .failures
            .get(key)
            .copied()
            .unwrap_or(0)
    }

    /// Returns the number of keys that are ready to be processed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    /// Returns whether no key is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the queue: nothing can be added any more, and workers end after the ready keys.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_waiters();
        self.shared.changed.notify_one();
    }

    /// Waits for the next key; `None` once the queue is closed and drained. The key is in progress until the
    /// guard is dropped.
    pub async fn next(&self) -> Option<Work<T>> {
        loop {
            let next_due = {
                let mut state = self.shared.state.lock();
                let next_due = state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.processing.insert(key.clone());
                    if let Some(measured) = &mut state.measured {
                        measured.begin(&key);
                    }
                    if !state.ready.is_empty() {
                        // One notification may have been sent for two additions at once.
                        self.shared.changed.notify_one();
                    }
                    return Some(Work {
                        queue: self.clone(),
                        key,
                    });
                }
                if state.closed {
                    // Pass on the notification: there may be more workers than notifications.
                    self.shared.changed.notify_one();
                    return None;
                }
                next_due
            };
            let changed = self.shared.changed.notified();
            match next_due {
                Some(due) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                None => changed.await,
            }
        }
    }
}

impl<T: Clone + Eq + Hash> QueueState<T> {
    fn add(&mut self, key: T) {
        if self.closed || !self.dirty.insert(key.clone()) {
            return;
        }
        if let Some(measured) = &mut self.measured {
            measured.add(&key);
        }
        if !self.processing.contains(&key) {
            self.ready.push_back(key);
        }
    }

    fn delay(&mut self, key: T, due: Instant) {
        if self.closed {
            return;
        }
        if let Some(measured) = &self.measured {
            measured.delay();
        }
        if let Some(at) = self.due.get(&key).copied() {
            if at.0 <= due {
                return;
            }
            self.delayed.remove(&at);
        }
        self.sequence += 1;
        self.due.insert(key.clone(), (due, self.sequence));
        self.delayed.insert((due, self.sequence), key);
    }

    /// Moves due keys to the ready keys; returns when the next key is due.
    fn promote(&mut self, now: Instant) -> Option<Instant> {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                return Some(entry.key().0);
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key);
        }
        None
    }
}

/// A key in progress. When this is dropped, the key can be processed again.
#[derive(Debug)]
pub struct Work<T: Clone + Eq + Hash> {
    queue: WorkQueue<T>,
    key: T,
}

impl<T: Clone + Eq + Hash> Work<T> {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &T {
        &self.key
    }
}

impl<T: Clone + Eq + Hash> Drop for Work<T> {
    fn drop(&mut self) {
        let mut state = self.queue.shared.state.lock();
        state.processing.remove(&self.key);
        if let Some(measured) = &mut state.measured {
            measured.end(&self.key);
        }
        if state.dirty.contains(&self.key) {
            state.ready.push_back(self.key.clone());
            drop(state);
            self.queue.shared.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn key_waits_once_and_is_processed_once() {
        let queue = WorkQueue::default();
        for key in ["a", "b", "a"] {
            queue.add(key);
        }
        let a = queue.next().await.unwrap();
        assert_eq!(*a.key(), "a");
        queue.add("a");
        let b = queue.next().await.unwrap();
        assert_eq!(*b.key(), "b");
        assert!(
            queue.next().now_or_never().is_none(),
            "a is being worked on"
        );
        drop(a);
        assert_eq!(*queue.next().await.unwrap().key(), "a");
        assert!(queue.next().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn queue_and_processing_times_are_measured() {
        let registry = prometheus::Registry::new();
        let queue = WorkQueue::default();
        queue.add("early");
        queue.measure("q", &QueueMetrics::register(&registry).unwrap());
        for key in ["a", "a", "b"] {
            queue.add(key);
        }
        queue.add_after("c", Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(2)).await;
        let early_work = queue.next().await.unwrap();
        queue.add("early");
        tokio::time::advance(Duration::from_secs(3)).await;
        drop(early_work);
        let text = koord_app::metrics::encode(&registry).unwrap();
        let labels = "{controller=\"q\",name=\"q\"}";
        for line in [
            format!("workqueue_adds_total{labels} 4"),
            format!("workqueue_retries_total{labels} 1"),
            format!("workqueue_queue_duration_seconds_sum{labels} 2"),
            format!("workqueue_work_duration_seconds_sum{labels} 3"),
            "workqueue_depth{controller=\"q\",name=\"q\",priority=\"0\"} 3".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_delay_applies() {
        let queue = WorkQueue::default();
        let start = Instant::now();
        queue.add_after("late", Duration::from_secs(9));
        queue.add_after("late", Duration::from_secs(5));
        queue.add_after("late", Duration::from_secs(7));
        queue.add_after("soon", Duration::from_secs(1));
        assert_eq!(*queue.next().await.unwrap().key(), "soon");
        assert_eq!(start.elapsed().as_secs(), 1);
        assert_eq!(*queue.next().await.unwrap().key(), "late");
        assert_eq!(start.elapsed().as_secs(), 5);
        queue.add_after("never", Duration::MAX);
        assert!(queue.next().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_until_reset() {
        let queue = WorkQueue::default();
        let mut delays = Vec::new();
        for _ in 0..4 {
            let start = Instant::now();
            queue.add_rate_limited("a");
            drop(queue.next().await.unwrap());
            delays.push(start.elapsed().as_millis());
        }
        assert_eq!(delays, [5, 10, 20, 40]);
        assert_eq!(queue.failures(&"a"), 4);
        queue.forget(&"a");
        assert_eq!(queue.failures(&"a"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_all_keys_share_a_bucket() {
        let queue = WorkQueue::new(RateLimit {
            burst: 2,
            ..RateLimit::default()
        });
        let start = Instant::now();
        for key in 0..4 {
            queue.add_rate_limited(key);
        }
        for _ in 0..4 {
            drop(queue.next().await.unwrap());
        }
        assert_eq!(start.elapsed().as_millis(), 200);
    }

    #[tokio::test]
    async fn close_drains_the_queue_and_ends_workers() {
        let queue = WorkQueue::default();
        queue.add(1);
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move {
                    let mut processed = 0;
                    while queue.next().await.is_some() {
                        processed += 1;
                    }
                    processed
                })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.add(2);
        queue.close();
        queue.add(3);
        let mut total = 0;
        for worker in workers {
            total += worker.await.unwrap();
        }
        assert_eq!(total, 2);
    }
}
