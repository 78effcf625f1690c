//! Work queue and main loop of a controller: watches some tables, queues the keys that changed, reconciles
//! one key at a time, and requeues keys that failed or are due again.

use crate::rest::Api;
use crate::store::{Entry, Key, TableId, Watcher};
use futures::FutureExt as _;
use futures::future::{BoxFuture, select_all};
use koord_kinds::status::ApiError;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// First requeue delay after a failure; doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest requeue delay after failures.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Shortest time between two reads of changes: a thousand changes in a row are read in a few batches, and a
/// single one at once.
pub(super) const READ_INTERVAL: Duration = Duration::from_millis(10);
/// Longest delay a reconcile can request: durations in objects may exceed the range of the clock.
const MAX_AGAIN: Duration = Duration::from_secs(24 * 3600);

/// Maps an added, changed or deleted entry to the keys to reconcile.
type KeyMapper = Box<dyn Fn(&Api, &Entry) -> Vec<Key> + Send + Sync>;

/// A table to watch and the keys that a change in it affects.
pub(super) struct Source {
    table: TableId,
    keys: KeyMapper,
}

impl Source {
    /// Returns a source over the table of a group and plural.
    pub(super) fn new(
        group: &str,
        plural: &str,
        keys: impl Fn(&Api, &Entry) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        Self::from_table(TableId::new(group, plural), keys)
    }

    /// Returns a source over a table.
    pub(super) fn from_table(
        table: TableId,
        keys: impl Fn(&Api, &Entry) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        Self {
            table,
            keys: Box::new(keys),
        }
    }

    /// Returns a source that queues the key of each entry that changes in the table itself.
    pub(super) fn from_own_entries(group: &str, plural: &str) -> Self {
        Self::new(group, plural, |_, entry| vec![entry.key.clone()])
    }
}

/// Delay after which a key is reconciled again without a change; `None`: not at all.
pub(super) type RequeueAfter = Option<Duration>;

/// The running reconcile of a key.
pub(super) type ReconcileFuture<'a> = BoxFuture<'a, Result<RequeueAfter, ApiError>>;

/// A controller that reconciles keys.
pub(super) trait Reconcile: Send + Sync + 'static {
    /// Returns the name for the log.
    fn name(&self) -> &'static str;
    /// Returns the tables to watch.
    fn sources(&self) -> Vec<Source>;
    /// Returns the keys to reconcile after each relist, in addition to those of the sources.
    fn start(&self, _api: &Api) -> Vec<Key> {
        Vec::new()
    }
    /// Reconciles one key: brings the actual state to the desired one.
    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> ReconcileFuture<'a>;
}

/// Keys to reconcile, each queued once.
#[derive(Default)]
struct Queue {
    ready: VecDeque<Key>,
    queued: FxHashSet<Key>,
    later: BTreeMap<(Instant, u64), Key>,
    /// The entry of each key in `later`: at most one.
    due: FxHashMap<Key, (Instant, u64)>,
    serial: u64,
    failures: FxHashMap<Key, u32>,
}

impl Queue {
    fn add(&mut self, key: Key) {
        if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn pop(&mut self) -> Option<Key> {
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        Some(key)
    }

    fn add_after(&mut self, key: Key, delay: Duration) {
        self.serial += 1;
        let at = (Instant::now() + delay.min(MAX_AGAIN), self.serial);
        if let Some(before) = self.due.insert(key.clone(), at) {
            self.later.remove(&before);
        }
        self.later.insert(at, key);
    }

    /// Moves due keys into the queue and returns when the next one is due.
    fn due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                return Some(entry.key().0);
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key);
        }
        None
    }

    fn failed(&mut self, key: Key) -> Duration {
        let n = self.failures.entry(key.clone()).or_insert(0);
        *n += 1;
        let pause = FIRST_PAUSE
            .saturating_mul(1 << (*n - 1).min(12))
            .min(MAX_PAUSE);
        self.add_after(key, pause);
        pause
    }

    fn succeeded(&mut self, key: Key, again: RequeueAfter) {
        self.failures.remove(&key);
        if let Some(delay) = again {
            self.add_after(key, delay);
        }
    }
}

/// Runs a controller until `shutdown` is cancelled.
pub(super) async fn run(api: Api, controller: impl Reconcile, shutdown: CancellationToken) {
    let sources = controller.sources();
    'list: while !shutdown.is_cancelled() {
        let mut queue = Queue::default();
        let mut watchers: Vec<Watcher> = Vec::with_capacity(sources.len());
        for source in &sources {
            let Ok((entries, watcher)) = api.store().follow(&source.table) else {
                continue 'list;
            };
            for entry in &entries {
                (source.keys)(&api, entry)
                    .into_iter()
                    .for_each(|k| queue.add(k));
            }
            watchers.push(watcher);
        }
        controller
            .start(&api)
            .into_iter()
            .for_each(|k| queue.add(k));
        let mut next_read = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_read {
                next_read = now + READ_INTERVAL;
                if !take_changes(&api, &sources, &mut watchers, &mut queue) {
                    // A watcher fell behind the history: relist everything.
                    continue 'list;
                }
            }
            let due = queue.due();
            let Some(key) = queue.pop() else {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep_until(next_read) => {}
                }
                if !wait(&api, &sources, &mut watchers, &mut queue, due, &shutdown).await {
                    continue 'list;
                }
                if shutdown.is_cancelled() {
                    return;
                }
                continue;
            };
            let result = tokio::select! {
                () = shutdown.cancelled() => return,
                result = AssertUnwindSafe(controller.reconcile(&api, &key)).catch_unwind() => result,
            };
            // A panic over one object must not stop the controller for all others.
            let result = result.unwrap_or_else(|_| {
                let (name, shown) = (controller.name(), key.to_string());
                tracing::error!(
                    controller = name,
                    key = shown,
                    "controller panicked, requeueing key"
                );
                Err(ApiError::internal("the controller panicked"))
            });
            match result {
                Ok(again) => queue.succeeded(key, again),
                Err(error) => {
                    let name = controller.name();
                    let shown = key.to_string();
                    let pause = queue.failed(key);
                    tracing::debug!(controller = name, key = shown, %error, ?pause, "reconcile failed, requeueing key");
                }
            }
            // Long runs of ready work must not starve the other tasks of this thread.
            tokio::task::yield_now().await;
        }
    }
}

/// Queues the keys of all pending changes; false when a watcher lags.
fn take_changes(
    api: &Api,
    sources: &[Source],
    watchers: &mut [Watcher],
    queue: &mut Queue,
) -> bool {
    for (source, watcher) in sources.iter().zip(watchers) {
        loop {
            match watcher.try_next() {
                Ok(Some(event)) => {
                    for entry in event.old.iter().chain([&event.new]) {
                        (source.keys)(api, entry)
                            .into_iter()
                            .for_each(|k| queue.add(k));
                    }
                }
                Ok(None) => break,
                Err(_) => return false,
            }
        }
    }
    true
}

/// Waits for a change, a due key or the shutdown; false when a watcher lags.
async fn wait(
    api: &Api,
    sources: &[Source],
    watchers: &mut [Watcher],
    queue: &mut Queue,
    due: Option<Instant>,
    shutdown: &CancellationToken,
) -> bool {
    let idle = Instant::now() + Duration::from_secs(3600);
    let changes = select_all(watchers.iter_mut().map(|w| w.next().boxed()));
    tokio::select! {
        () = shutdown.cancelled() => true,
        () = tokio::time::sleep_until(due.unwrap_or(idle)) => true,
        (event, at, _) = changes => match (event, sources.get(at)) {
            (Ok(event), Some(source)) => {
                for entry in event.old.iter().chain([&event.new]) {
                    (source.keys)(api, entry).into_iter().for_each(|k| queue.add(k));
                }
                true
            }
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keys_are_queued_once_and_failures_back_off() {
        let mut queue = Queue::default();
        let key = Key::cluster("a");
        queue.add(key.clone());
        queue.add(key.clone());
        assert_eq!(queue.pop(), Some(key.clone()));
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.failed(key.clone()), FIRST_PAUSE);
        assert_eq!(queue.failed(key.clone()), FIRST_PAUSE * 2);
        for _ in 0..40 {
            queue.failed(key.clone());
        }
        assert_eq!(queue.failed(key.clone()), MAX_PAUSE);
        queue.succeeded(key.clone(), None);
        assert_eq!(queue.failed(key.clone()), FIRST_PAUSE);
        assert!(queue.due().is_some());
        assert_eq!(queue.later.len(), 1, "a key waits once");
        // Longer than the range of the clock.
        queue.add_after(Key::cluster("b"), Duration::MAX);
        tokio::time::advance(MAX_PAUSE * 2).await;
        assert!(queue.due().is_some());
        assert_eq!(queue.pop(), Some(key));
        assert_eq!(queue.pop(), None);
        tokio::time::advance(MAX_AGAIN).await;
        assert_eq!(queue.due(), None);
        assert_eq!(queue.pop(), Some(Key::cluster("b")));
    }
}
