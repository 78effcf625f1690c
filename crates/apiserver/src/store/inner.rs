//! State of the store in memory, changed only by the writer.

use super::table::Table;
use super::{Entry, Event, HistoryLimits, Key, Revision, StoreOptions, TableId};
use koord_app::Clock;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Tables, and the revision up to which they are visible.
#[derive(Debug)]
pub(super) struct StoreState {
    tables: RwLock<Tables>,
    /// Revision up to which all changes are in the tables. Shared with watchers.
    published: Arc<AtomicU64>,
    advanced: Notify,
    clock: Clock,
    limits: HistoryLimits,
    /// Revision at which the history starts: that of the loaded snapshot, or the first.
    pub(super) base: Revision,
    /// Error of the last write; `None` if it succeeded.
    pub(super) failure: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Tables {
    by_id: FxHashMap<TableId, Arc<Table>>,
    /// Revisions at which tables were removed: the history of a recreated table starts there.
    removed: FxHashMap<TableId, Revision>,
}

/// Size of one table, for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableStats {
    /// The table.
    pub table: TableId,
    /// Number of current objects.
    pub objects: usize,
    /// Bytes of the current objects.
    pub bytes: usize,
    /// Number of changes in the history.
    pub history_events: usize,
    /// Bytes in the history.
    pub history_bytes: usize,
    /// Number of open watches.
    pub watchers: usize,
}

impl StoreState {
    /// Creates a state without tables at revision `base`.
    pub(super) fn new(options: &StoreOptions, base: Revision) -> Self {
        Self {
            tables: RwLock::default(),
            published: Arc::new(AtomicU64::new(base)),
            advanced: Notify::new(),
            clock: options.clock.clone(),
            limits: options.history,
            base,
            failure: Mutex::default(),
        }
    }

    /// Returns the newest visible revision.
    pub(super) fn published(&self) -> &Arc<AtomicU64> {
        &self.published
    }

    /// Completes at the next publication.
    pub(super) fn advanced(&self) -> Notified<'_> {
        self.advanced.notified()
    }

    /// Returns the current version of an object.
    pub(super) fn get(&self, table: &TableId, key: &Key) -> Option<Arc<Entry>> {
        let table = self.tables.read().by_id.get(table).cloned()?;
        table.state.read().entries.get(key).cloned()
    }

    /// Returns the bytes of the current versions of all objects of a table.
    pub(super) fn table_bytes(&self, table: &TableId) -> usize {
        let table = self.tables.read().by_id.get(table).cloned();
        table.map_or(0, |table| table.state.read().bytes)
    }

    /// Returns the current versions of the objects that have `owner` as an owner.
    pub(super) fn owned(&self, table: &TableId, owner: &str) -> Vec<Arc<Entry>> {
        let Some(table) = self.tables.read().by_id.get(table).cloned() else {
            return Vec::new();
        };
        let state = table.state.read();
        state.owned_by(owner).cloned().collect()
    }

    /// Returns the table `id`, created if it does not exist.
    pub(super) fn table(&self, id: &TableId) -> Arc<Table> {
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

    /// Removes the table `id` with its history; its watchers then lag.
    pub(super) fn remove_table(&self, id: &TableId) {
        let mut tables = self.tables.write();
        tables
            .removed
            .insert(id.clone(), self.published.load(Ordering::Acquire));
        if let Some(table) = tables.by_id.remove(id) {
            table.state.write().compact(Revision::MAX);
            table.dispatch.read().force_reread();
        }
    }

    /// Makes `events`, in revision order, visible to readers and watchers. Called only by the writer.
    pub(super) fn publish(&self, events: impl IntoIterator<Item = Event>) {
        let now = self.clock.now().as_millisecond();
        for event in events {
            let revision = event.revision;
            self.table(&event.new.table).apply(event, now, &self.limits);
            self.published.store(revision, Ordering::Release);
        }
        self.advanced.notify_waiters();
    }

    /// Returns all current versions. Consistent only if called by the writer.
    pub(super) fn all_entries(&self) -> Vec<Arc<Entry>> {
        let mut entries = Vec::new();
        for table in self.all_tables() {
            entries.extend(table.state.read().entries.values().cloned());
        }
        entries
    }

    /// Returns the bytes of all current versions.
    pub(super) fn live_bytes(&self) -> u64 {
        self.all_tables()
            .iter()
            .map(|table| table.state.read().bytes as u64)
            .sum()
    }

    /// Returns the sizes of all tables, ordered by id.
    pub(super) fn stats(&self) -> Vec<TableStats> {
        let mut stats: Vec<_> = self
            .all_tables()
            .iter()
            .map(|table| {
                let watchers = table.dispatch.read().len();
                let state = table.state.read();
                let (history_events, history_bytes) = state.history_size();
                TableStats {
                    table: table.id.clone(),
                    objects: state.entries.len(),
                    bytes: state.bytes,
                    history_events,
                    history_bytes,
                    watchers,
                }
            })
            .collect();
        stats.sort_by(|a, b| a.table.cmp(&b.table));
        stats
    }

    fn all_tables(&self) -> Vec<Arc<Table>> {
        self.tables.read().by_id.values().cloned().collect()
    }
}
