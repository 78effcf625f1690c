//! Storage of the control plane: a single-writer, multi-version store of JSON objects.
//!
//! Every write passes one sequencer, which gives it the next [`Revision`]. Readers take snapshots of `Arc`s
//! from memory and never wait for a disk. With [`Backing::Dir`] a write becomes visible, and its future
//! completes, only when it is in the write-ahead log on disk; concurrent writers share one fsync. A table
//! keeps a bounded history, from which watches start in the past and pages of one list stay consistent.
//!
//! Invariants: a revision is never used twice, not even by a write that failed; no crash can undo what a
//! reader has seen; the history of a table is complete after its compaction point.

mod codec;
mod committer;
mod disk;
mod error;
mod files;
mod frame;
mod inner;
mod list;
mod metrics;
mod recovery;
mod send_queue;
mod sequencer;
mod snapshot;
mod stamp;
mod table;
#[cfg(test)]
mod tests;
mod types;
mod wal;
mod watch;

pub use error::StoreError;
pub use inner::TableStats;
pub use koord_kinds::{Index, TableId};
pub use metrics::StoreMetrics;
pub(crate) use send_queue::{QueueCharge, QueueStage, SendQueue, SendQueues};
pub use table::HistoryLimits;
pub use types::{Entry, Event, EventKind, Key, Page, Revision};
pub use watch::{Lagged, Scope, Watcher};

use committer::{Committer, Job};
use disk::Disk;
use inner::StoreState;
use koord_app::Clock;
use parking_lot::Mutex;
use recovery::RecoveredState;
use sequencer::{Op, Sequencer, Write, WriteOutcome};
use serde_json::Value;
use stamp::UnstampedObject;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{mpsc, oneshot};
use wal::Wal;

/// Revision of an empty store; small enough to read, never 0.
const FIRST_REVISION: Revision = 1000;
/// Capacity of the queue of writes; further writers wait.
const QUEUED_WRITES: usize = 8192;
/// Largest object in bytes, as in Kubernetes with etcd: repeated patches must not make an object grow without
/// limit.
const MAX_OBJECT_BYTES: usize = 1536 * 1024;
/// Log bytes after which a snapshot replaces the log, unless the data is larger.
const SNAPSHOT_AFTER_BYTES: u64 = 64 << 20;

/// Storage of the objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Memory only: lost with the process.
    Memory,
    /// Files below this directory, which is created if missing.
    Dir(PathBuf),
}

/// Point at which a write to a directory is acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// The write is on the disk: it survives a power failure.
    #[default]
    Fsync,
    /// The operating system has the write: it survives the end of the process, but not of the machine.
    Os,
}

/// Options of a [`Store`].
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Storage of the objects.
    pub backing: Backing,
    /// Clock for the age of the history.
    pub clock: Clock,
    /// Limits of the history.
    pub history: HistoryLimits,
    /// Point at which a write counts as durable.
    pub durability: Durability,
    /// Log bytes after which a snapshot replaces the log, unless the data is larger.
    pub snapshot_after_bytes: u64,
    disk: Arc<dyn Disk>,
}

impl StoreOptions {
    /// Returns options with default limits.
    #[must_use]
    pub fn new(backing: Backing, clock: Clock) -> Self {
        Self {
            backing,
            clock,
            history: HistoryLimits::default(),
            durability: Durability::default(),
            snapshot_after_bytes: SNAPSHOT_AFTER_BYTES,
            disk: Arc::new(disk::OsDisk),
        }
    }

    /// Returns options of a store in memory.
    #[must_use]
    pub fn memory(clock: Clock) -> Self {
        Self::new(Backing::Memory, clock)
    }

    /// Returns options of a store in directory `dir`.
    #[must_use]
    pub fn dir(dir: impl Into<PathBuf>, clock: Clock) -> Self {
        Self::new(Backing::Dir(dir.into()), clock)
    }
}

/// A handle to the store. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<StoreState>,
    writer: Arc<Writer>,
    metrics: StoreMetrics,
}

#[derive(Debug)]
enum Writer {
    /// Writes run in the caller, under this lock.
    Memory(Mutex<Sequencer>),
    /// Writes are sent to the thread that owns the log.
    Durable(mpsc::Sender<Job>),
}

impl Store {
    /// Opens the store and loads its data.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another process has the directory open, [`StoreError::Corrupt`] if
    /// acknowledged data cannot be read back, [`StoreError::Io`].
    pub async fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let metrics = StoreMetrics::new().map_err(|error| {
            StoreError::io(
                "set up metrics for",
                Path::new("store"),
                std::io::Error::other(error),
            )
        })?;
        let dir = match &options.backing {
            Backing::Memory => {
                let inner = Arc::new(StoreState::new(&options, FIRST_REVISION));
                let sequencer = Sequencer::new(Arc::clone(&inner), FIRST_REVISION);
                let writer = Arc::new(Writer::Memory(Mutex::new(sequencer)));
                return Ok(Self {
                    inner,
                    writer,
                    metrics,
                });
            }
            Backing::Dir(dir) => dir.clone(),
        };
        let path = dir.clone();
        let recover = move || recovery::open(&path, &options).map(|matches| (matches, options));
        let (matches, options) =
            tokio::task::spawn_blocking(recover)
                .await
                .map_err(|error| {
                    StoreError::io("load", &dir, std::io::Error::other(error.to_string()))
                })??;
        let RecoveredState {
            inner,
            used,
            last,
            replayed,
            lock,
        } = matches;
        let inner = Arc::new(inner);
        let disk = options.disk;
        let committer = Committer {
            sequencer: Sequencer::new(Arc::clone(&inner), used),
            inner: Arc::clone(&inner),
            wal: Wal::new(&dir, Arc::clone(&disk), options.durability, last, replayed),
            dir: dir.clone(),
            disk,
            metrics: metrics.clone(),
            snapshot_after: options.snapshot_after_bytes,
            lock,
            snapshot: None,
        };
        let (jobs, receiver) = mpsc::channel(QUEUED_WRITES);
        std::thread::Builder::new()
            .name("koord-wal".into())
            .spawn(move || committer.run(receiver))
            .map_err(|source| StoreError::io("start a thread for", &dir, source))?;
        Ok(Self {
            inner,
            writer: Arc::new(Writer::Durable(jobs)),
            metrics,
        })
    }

    /// Finishes the writes in progress, closes the log and releases the directory. Afterwards reads still
    /// work, and writes fail with [`StoreError::Closed`]. No acknowledged write is lost without it: the
    /// process may end at any time.
    pub async fn close(&self) {
        if let Writer::Durable(jobs) = &*self.writer {
            let (reply, closed) = oneshot::channel();
            if jobs.send(Job::Close(reply)).await.is_ok() {
                // An error means that another caller has closed it.
                let _ = closed.await;
            }
        }
    }

    /// Replaces the log with a snapshot now. Does nothing in memory.
    ///
    /// # Errors
    /// If it cannot be written; the log is then kept.
    pub async fn snapshot(&self) -> Result<(), StoreError> {
        let Writer::Durable(jobs) = &*self.writer else {
            return Ok(());
        };
        let (reply, done) = oneshot::channel();
        jobs.send(Job::Snapshot(reply))
            .await
            .map_err(|_| StoreError::Closed)?;
        done.await.map_err(|_| StoreError::Closed)?
    }

    /// Returns the store's metrics.
    #[must_use]
    pub fn metrics(&self) -> &StoreMetrics {
        &self.metrics
    }

    /// Returns the error of the last write if it failed, for example because the disk is full. Reads work
    /// meanwhile, and every write tries again.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.inner.failure.lock().clone()
    }

    /// Returns the newest visible revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.inner.published().load(Ordering::Acquire)
    }

    /// Waits until `revision` is visible.
    pub async fn wait_for(&self, revision: Revision) {
        loop {
            let advanced = self.inner.advanced();
            tokio::pin!(advanced);
            // Registered before the check, so that no advance is missed.
            advanced.as_mut().enable();
            if self.revision() >= revision {
                return;
            }
            advanced.await;
        }
    }

    /// Returns the current version of an object.
    #[must_use]
    pub fn get(&self, table: &TableId, key: &Key) -> Option<Arc<Entry>> {
        self.inner.get(table, key)
    }

    /// Returns the current versions of the objects in `table` that have `owner`, a uid, as an owner, ordered
    /// by key.
    #[must_use]
    pub fn owned(&self, table: &TableId, owner: &str) -> Vec<Arc<Entry>> {
        self.inner.owned(table, owner)
    }

    /// Returns one page of the entries of `table` that match `filter`, ordered by key, exact at revision `at`
    /// or, without it, at the newest one. `after` is the [`Page::next`] of the previous page; pass that
    /// page's revision as `at` with it.
    ///
    /// # Errors
    /// [`StoreError::Expired`] if the history does not reach back to `at`, [`StoreError::Future`] if `at` is
    /// not reached yet.
    pub fn list(
        &self,
        table: &TableId,
        namespace: Option<&str>,
        at: Option<Revision>,
        after: Option<&Key>,
        limit: Option<usize>,
        filter: &dyn Fn(&Entry) -> bool,
    ) -> Result<Page, StoreError> {
        let query = list::ListQuery {
            namespace,
            at,
            after,
            limit,
            filter,
        };
        list::read(&self.inner.table(table), self.inner.published(), &query)
    }

    /// Returns the current entries of `table` that match `filter`, ordered by key.
    #[must_use]
    pub fn all(
        &self,
        table: &TableId,
        namespace: Option<&str>,
        filter: &dyn Fn(&Entry) -> bool,
    ) -> Vec<Arc<Entry>> {
        // A list of the newest revision never expires and is never in the future.
        let page = self.list(table, namespace, None, None, None, filter);
        page.map(|page| page.items).unwrap_or_default()
    }

    /// Returns all current entries of `table`, and a watcher of the changes after them.
    ///
    /// # Errors
    /// [`StoreError::Expired`] if the history was compacted meanwhile: try again.
    pub fn follow(&self, table: &TableId) -> Result<(Vec<Arc<Entry>>, Watcher), StoreError> {
        let page = self.list(table, None, None, None, None, &|_| true)?;
        let watcher = self.watch(table.clone(), page.revision)?;
        Ok((page.items, watcher))
    }

    /// Creates an object. Sets `metadata.resourceVersion`; completes when the write is durable.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::NotAnObject`], [`StoreError::TooLarge`], or why it could not be
    /// made durable.
    pub async fn create(
        &self,
        table: TableId,
        key: Key,
        value: Value,
        index: Index,
    ) -> Result<Arc<Entry>, StoreError> {
        let object = serialize(&table, &key, &value)?;
        self.write(Write {
            table,
            key,
            op: Op::Create { object, index },
        })
        .await
    }

    /// Replaces an object if it is still at revision `expected`. Writing an unchanged object changes nothing
    /// and returns the current version, as in Kubernetes.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Conflict`], [`StoreError::NotAnObject`],
    /// [`StoreError::TooLarge`], or why it could not be made durable.
    pub async fn update(
        &self,
        table: TableId,
        key: Key,
        expected: Option<Revision>,
        value: Value,
        index: Index,
    ) -> Result<Arc<Entry>, StoreError> {
        let object = serialize(&table, &key, &value)?;
        self.write(Write {
            table,
            key,
            op: Op::Update {
                object,
                index,
                expected,
            },
        })
        .await
    }

    /// Deletes an object if it is still at revision `expected` and has uid `uid`. Returns its last state with
    /// the revision of the removal.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Conflict`], or why it could not be made durable.
    pub async fn delete(
        &self,
        table: TableId,
        key: Key,
        expected: Option<Revision>,
        uid: Option<&str>,
    ) -> Result<Arc<Entry>, StoreError> {
        let op = Op::Delete {
            expected,
            uid: uid.map(Arc::from),
        };
        self.write(Write { table, key, op }).await
    }

    async fn write(&self, write: Write) -> Result<Arc<Entry>, StoreError> {
        match &*self.writer {
            Writer::Memory(sequencer) => {
                let mut sequencer = sequencer.lock();
                match sequencer.prepare(write)? {
                    WriteOutcome::Same(entry) => Ok(entry),
                    WriteOutcome::Changed(event) => {
                        let entry = Arc::clone(&event.new);
                        sequencer.publish([event]);
                        Ok(entry)
                    }
                }
            }
            Writer::Durable(jobs) => {
                let (reply, result) = oneshot::channel();
                jobs.send(Job::Write(write, reply))
                    .await
                    .map_err(|_| StoreError::Closed)?;
                result.await.map_err(|_| StoreError::Closed)?
            }
        }
    }

    /// Watches all changes of `table` after revision `from`.
    ///
    /// # Errors
    /// [`StoreError::Expired`] if the history does not reach back to `from`.
    pub fn watch(&self, table: TableId, from: Revision) -> Result<Watcher, StoreError> {
        self.watch_scoped(&table, from, Scope::default())
    }

    /// Like [`Self::watch`], for the changes in `scope` only. Events are dispatched by index, so that
    /// thousands of watchers of one node's pods each cost nothing until that node's pods change.
    ///
    /// # Errors
    /// [`StoreError::Expired`] if the history does not reach back to `from`.
    pub fn watch_scoped(
        &self,
        table: &TableId,
        from: Revision,
        scope: Scope,
    ) -> Result<Watcher, StoreError> {
        self.watch_queued(table, from, scope, None)
    }

    /// Like [`Self::watch_scoped`], for a client whose unread bytes are charged to `queues`.
    pub(crate) fn watch_queued(
        &self,
        table: &TableId,
        from: Revision,
        scope: Scope,
        queues: Option<&SendQueues>,
    ) -> Result<Watcher, StoreError> {
        let table = self.inner.table(table);
        let oldest = table.state.read().compacted;
        if from < oldest {
            return Err(StoreError::Expired {
                requested: from,
                oldest,
            });
        }
        let published = Arc::clone(self.inner.published());
        Ok(Watcher::start(table, published, from, scope, queues))
    }

    /// Returns the tables that were written to or read from.
    #[must_use]
    pub fn tables(&self) -> Vec<TableId> {
        self.inner
            .stats()
            .into_iter()
            .map(|stats| stats.table)
            .collect()
    }

    /// Deletes the objects of a table and removes it; its watchers then lag.
    ///
    /// # Errors
    /// If a deletion could not be made durable.
    pub async fn remove_table(&self, id: &TableId) -> Result<(), StoreError> {
        for entry in self.list(id, None, None, None, None, &|_| true)?.items {
            match self.delete(id.clone(), entry.key.clone(), None, None).await {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.inner.remove_table(id);
        Ok(())
    }

    /// Removes the changes of `table` at or before `revision` from the history: older reads then expire.
    pub fn compact(&self, table: &TableId, revision: Revision) {
        let revision = revision.min(self.revision());
        self.inner.table(table).state.write().compact(revision);
    }

    /// Returns the bytes of the current objects of a table.
    #[must_use]
    pub fn table_bytes(&self, table: &TableId) -> usize {
        self.inner.table_bytes(table)
    }

    /// Returns the sizes of all tables, ordered by id.
    #[must_use]
    pub fn stats(&self) -> Vec<TableStats> {
        self.inner.stats()
    }
}

fn serialize(table: &TableId, key: &Key, value: &Value) -> Result<UnstampedObject, StoreError> {
    let object = UnstampedObject::new(value).ok_or_else(|| StoreError::NotAnObject {
        table: table.clone(),
        key: key.clone(),
    })?;
    if object.size() > MAX_OBJECT_BYTES {
        return Err(StoreError::TooLarge {
            table: table.clone(),
            key: key.clone(),
            size: object.size(),
            limit: MAX_OBJECT_BYTES,
        });
    }
    Ok(object)
}
