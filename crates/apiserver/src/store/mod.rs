//! The storage of the control plane: a single-writer, multi-version store of JSON objects.
//!
//! Every write passes one sequencer, which gives it the next [`Revision`]. Readers take snapshots of
//! `Arc`s from memory and never wait for a disk. With [`Backing::Dir`] a write becomes visible, and
//! its future resolves, only when it is in the write-ahead log on disk; concurrent writers share one
//! fsync. A table keeps a bounded history, from which watches start in the past and pages of one
//! list stay consistent.
//!
//! Invariants: a revision is never used twice, not even by a write that failed; what one reader has
//! seen, no crash can undo; the history of a table is complete after its compaction point.

mod error;
mod list;
mod sequencer;
mod stamp;
mod table;
mod types;
mod watch;

pub use error::StoreError;
pub use table::HistoryLimits;
pub use types::{Entry, Event, EventKind, Index, Key, Page, Revision, TableId};
pub use watch::{Lagged, Scope, Watcher};

use koord_app::Clock;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use sequencer::{Op, Outcome, Sequencer, Write};
use serde_json::Value;
use stamp::Holed;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use table::Table;
use tokio::sync::Notify;

/// The first revision of an empty store minus one; low enough to read, never 0.
const FIRST_REVISION: Revision = 1000;

/// Where the store keeps its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Nowhere: gone with the process.
    Memory,
    /// In files below this directory, created when missing.
    Dir(PathBuf),
}

/// How to open a [`Store`].
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Where objects are kept.
    pub backing: Backing,
    /// Time, for the age of history.
    pub clock: Clock,
    /// How much history to keep.
    pub history: HistoryLimits,
}

impl StoreOptions {
    /// Options for a store in memory.
    #[must_use]
    pub fn memory(clock: Clock) -> Self {
        Self {
            backing: Backing::Memory,
            clock,
            history: HistoryLimits::default(),
        }
    }
}

/// A handle to the store. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
    writer: Arc<Writer>,
}

#[derive(Debug)]
enum Writer {
    Memory(Mutex<Sequencer>),
}

/// The readable state.
#[derive(Debug)]
struct Inner {
    tables: RwLock<Tables>,
    /// Everything up to here is in the tables. Shared with watchers.
    published: Arc<AtomicU64>,
    advanced: Notify,
    clock: Clock,
    limits: HistoryLimits,
    /// The revision the history starts at: that of the snapshot loaded, or the first.
    base: Revision,
}

#[derive(Debug, Default)]
struct Tables {
    by_id: FxHashMap<TableId, Arc<Table>>,
    /// When tables were removed: a table made anew knows nothing from before.
    removed: FxHashMap<TableId, Revision>,
}

/// The size of one table, for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableStats {
    /// The table.
    pub table: TableId,
    /// Current objects.
    pub objects: usize,
    /// Bytes of the current objects.
    pub bytes: usize,
    /// Changes held as history.
    pub history_events: usize,
    /// Bytes held as history.
    pub history_bytes: usize,
    /// Open watches.
    pub watchers: usize,
}

impl Store {
    /// Opens the store and loads what it holds.
    pub async fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let inner = Arc::new(Inner::new(&options, FIRST_REVISION));
        let sequencer = Sequencer::new(Arc::clone(&inner), FIRST_REVISION);
        Ok(Self {
            inner,
            writer: Arc::new(Writer::Memory(Mutex::new(sequencer))),
        })
    }

    /// The newest visible revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.inner.published.load(Ordering::Acquire)
    }

    /// Waits until `revision` is visible.
    pub async fn wait_for(&self, revision: Revision) {
        loop {
            let advanced = self.inner.advanced.notified();
            tokio::pin!(advanced);
            // Registered before looking, so that no advance is missed.
            advanced.as_mut().enable();
            if self.revision() >= revision {
                return;
            }
            advanced.await;
        }
    }

    /// The current version of an object.
    #[must_use]
    pub fn get(&self, table: &TableId, key: &Key) -> Option<Arc<Entry>> {
        self.inner.get(table, key)
    }

    /// One page of the entries of `table` that pass `filter`, ordered by key, exact at revision
    /// `at` or, without it, at the newest one. `after` is the [`Page::next`] of the page before;
    /// pass that page's revision as `at` with it.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when the history does not reach back to `at`,
    /// [`StoreError::Future`] when `at` is not reached yet.
    pub fn list(
        &self,
        table: &TableId,
        namespace: Option<&str>,
        at: Option<Revision>,
        after: Option<&Key>,
        limit: Option<usize>,
        filter: &dyn Fn(&Entry) -> bool,
    ) -> Result<Page, StoreError> {
        let query = list::Query {
            namespace,
            at,
            after,
            limit,
            filter,
        };
        list::read(&self.inner.table(table), &self.inner.published, &query)
    }

    /// Adds an object. Stamps `metadata.resourceVersion`; resolves when the write is durable.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::NotAnObject`], or that it could not be made durable.
    pub async fn create(
        &self,
        table: TableId,
        key: Key,
        value: Value,
        index: Index,
    ) -> Result<Arc<Entry>, StoreError> {
        let object = holed(&table, &key, &value)?;
        self.write(Write {
            table,
            key,
            op: Op::Create { object, index },
        })
        .await
    }

    /// Replaces an object, if it is still at revision `expected`. Writing what is already there
    /// changes nothing and returns the current version, as in Kubernetes.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Conflict`], [`StoreError::NotAnObject`], or that it
    /// could not be made durable.
    pub async fn update(
        &self,
        table: TableId,
        key: Key,
        expected: Option<Revision>,
        value: Value,
        index: Index,
    ) -> Result<Arc<Entry>, StoreError> {
        let object = holed(&table, &key, &value)?;
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

    /// Removes an object, if it still is at revision `expected` and has uid `uid`. Returns its last
    /// state with the revision of the removal stamped into it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Conflict`], or that it could not be made durable.
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
                    Outcome::Same(entry) => Ok(entry),
                    Outcome::Changed(event) => {
                        let entry = Arc::clone(&event.new);
                        sequencer.publish([event]);
                        Ok(entry)
                    }
                }
            }
        }
    }

    /// All changes of `table` after revision `from`, then those to come.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when the history does not reach back to `from`.
    pub fn watch(&self, table: TableId, from: Revision) -> Result<Watcher, StoreError> {
        self.watch_scoped(&table, from, Scope::default())
    }

    /// As [`Self::watch`], only the changes in `scope`: dispatched by index, so that thousands of
    /// watchers of one node's pods each cost nothing until that node's pods change.
    ///
    /// # Errors
    /// [`StoreError::Expired`] when the history does not reach back to `from`.
    pub fn watch_scoped(
        &self,
        table: &TableId,
        from: Revision,
        scope: Scope,
    ) -> Result<Watcher, StoreError> {
        let table = self.inner.table(table);
        let oldest = table.state.read().compacted;
        if from < oldest {
            return Err(StoreError::Expired {
                requested: from,
                oldest,
            });
        }
        Ok(Watcher::start(
            table,
            Arc::clone(&self.inner.published),
            from,
            scope,
        ))
    }

    /// The tables that exist: those that were written to or read from.
    #[must_use]
    pub fn tables(&self) -> Vec<TableId> {
        let mut tables: Vec<_> = self.inner.tables.read().by_id.keys().cloned().collect();
        tables.sort();
        tables
    }

    /// Removes what is left in `table` and forgets it; its watchers lag.
    ///
    /// # Errors
    /// When a removal could not be made durable.
    pub async fn remove_table(&self, id: &TableId) -> Result<(), StoreError> {
        for entry in self.list(id, None, None, None, None, &|_| true)?.items {
            match self.delete(id.clone(), entry.key.clone(), None, None).await {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let mut tables = self.inner.tables.write();
        tables.removed.insert(id.clone(), self.revision());
        if let Some(table) = tables.by_id.remove(id) {
            let mut state = table.state.write();
            state.compact(Revision::MAX);
            state.dispatch.disturb();
        }
        Ok(())
    }

    /// Forgets the changes of `table` at or before `revision`: older reads then expire.
    pub fn compact(&self, table: &TableId, revision: Revision) {
        let revision = revision.min(self.revision());
        self.inner.table(table).state.write().compact(revision);
    }

    /// The sizes of all tables, ordered by id.
    #[must_use]
    pub fn stats(&self) -> Vec<TableStats> {
        let tables: Vec<_> = self.inner.tables.read().by_id.values().cloned().collect();
        let mut stats: Vec<_> = tables
            .iter()
            .map(|table| {
                let state = table.state.read();
                let (history_events, history_bytes) = state.history_size();
                TableStats {
                    table: table.id.clone(),
                    objects: state.entries.len(),
                    bytes: state.bytes,
                    history_events,
                    history_bytes,
                    watchers: state.dispatch.len(),
                }
            })
            .collect();
        stats.sort_by(|a, b| a.table.cmp(&b.table));
        stats
    }
}

impl Inner {
    fn new(options: &StoreOptions, base: Revision) -> Self {
        Self {
            tables: RwLock::default(),
            published: Arc::new(AtomicU64::new(base)),
            advanced: Notify::new(),
            clock: options.clock.clone(),
            limits: options.history,
            base,
        }
    }

    fn get(&self, table: &TableId, key: &Key) -> Option<Arc<Entry>> {
        let table = self.tables.read().by_id.get(table).cloned()?;
        table.state.read().entries.get(key).cloned()
    }

    /// The table `id`, made when it is not there.
    fn table(&self, id: &TableId) -> Arc<Table> {
        if let Some(table) = self.tables.read().by_id.get(id) {
            return Arc::clone(table);
        }
        let mut tables = self.tables.write();
        let known_since = tables.removed.get(id).copied().unwrap_or(self.base);
        let table = tables
            .by_id
            .entry(id.clone())
            .or_insert_with(|| Arc::new(Table::new(id.clone(), known_since)));
        Arc::clone(table)
    }

    /// Makes `events`, in revision order, visible to readers and watchers. Only for the writer.
    fn publish(&self, events: impl IntoIterator<Item = Event>) {
        let now = self.clock.now().as_millisecond();
        for event in events {
            let revision = event.revision;
            self.table(&event.new.table).apply(event, now, &self.limits);
            self.published.store(revision, Ordering::Release);
        }
        self.advanced.notify_waiters();
    }
}

fn holed(table: &TableId, key: &Key, value: &Value) -> Result<Holed, StoreError> {
    Holed::new(value).ok_or_else(|| StoreError::NotAnObject {
        table: table.clone(),
        key: key.clone(),
    })
}
