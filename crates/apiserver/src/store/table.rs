//! A table: the current entries, a bounded history of changes, and the watchers.

use super::watch::Dispatch;
use super::{Entry, Event, EventKind, Key, Revision, TableId};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Limits of each table's history, which serves watches that start in the past and paged lists. The first
/// limit that is reached applies; current entries do not count.
#[derive(Debug, Clone, Copy)]
pub struct HistoryLimits {
    /// Most changes per table.
    pub events: usize,
    /// Most bytes of superseded versions per table.
    pub bytes: usize,
    /// Bytes of superseded versions that every table may keep. A table whose current versions are larger may
    /// keep as many as those: beyond that, a new list costs a client little more than the history.
    pub min_bytes: usize,
    /// Changes that every table may keep, so that a few large ones do not outrun a slow client.
    pub min_events: usize,
    /// Longest age of a change; applied when the table is next written.
    pub age: Duration,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self {
            events: 100_000,
            bytes: 16 << 20,
            min_bytes: 4 << 20,
            min_events: 256,
            age: Duration::from_secs(300),
        }
    }
}

/// A table. Its objects change under one lock, held for one change or one step of a read.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) id: TableId,
    pub(super) state: RwLock<TableState>,
    /// Watchers, under a lock of their own, so that readers and other writers of the table do not wait for
    /// them. Never locked while `state` is.
    pub(super) dispatch: RwLock<Dispatch>,
}

#[derive(Debug)]
pub(super) struct TableState {
    /// Current versions.
    pub(super) entries: BTreeMap<Key, Arc<Entry>>,
    /// Pairs of an owner's uid and the key of an entry that it owns. One set, because most owners have few
    /// dependents.
    owned: BTreeSet<(Arc<str>, Key)>,
    /// Bytes of the current versions.
    pub(super) bytes: usize,
    /// Revision up to which changes are no longer in the history.
    pub(super) compacted: Revision,
    /// Revision of the last change.
    pub(super) last: Revision,
    history: VecDeque<HistoryEntry>,
    history_bytes: usize,
}

#[derive(Debug)]
struct HistoryEntry {
    event: Event,
    /// Time of the change in milliseconds since the epoch.
    at: i64,
}

impl Table {
    /// Creates an empty table whose history starts at the revision `compacted`.
    pub(super) fn new(id: TableId, compacted: Revision) -> Self {
        Self {
            id,
            state: RwLock::new(TableState {
                entries: BTreeMap::new(),
                owned: BTreeSet::new(),
                bytes: 0,
                compacted,
                last: compacted,
                history: VecDeque::new(),
                history_bytes: 0,
            }),
            dispatch: RwLock::default(),
        }
    }

    /// Makes `event` of the time `now` (milliseconds) visible to readers, and then to watchers: what a
    /// watcher misses meanwhile is in the history. Called only by the one writer, which keeps the order of
    /// events.
    pub(super) fn apply(&self, event: Event, now: i64, limits: &HistoryLimits) {
        self.state.write().apply(event.clone(), now, limits);
        self.dispatch.read().deliver(&event);
    }
}

impl TableState {
    fn apply(&mut self, event: Event, now: i64, limits: &HistoryLimits) {
        let after: &[_] = match event.kind {
            EventKind::Put => &event.new.index.owners,
            EventKind::Delete => &[],
        };
        let before = event.old.as_ref().map_or(&[][..], |old| &old.index.owners);
        if before != after {
            self.remove_owned(before, &event.new.key);
            self.add_owned(after, &event.new.key);
        }
        if let Some(old) = &event.old {
            self.bytes -= old.bytes.len();
        }
        match event.kind {
            EventKind::Put => {
                self.bytes += event.new.bytes.len();
                self.entries
                    .insert(event.new.key.clone(), Arc::clone(&event.new));
            }
            EventKind::Delete => {
                self.entries.remove(&event.new.key);
            }
        }
        self.last = event.revision;
        self.history_bytes += weight(&event);
        self.history.push_back(HistoryEntry { event, at: now });
        let max_age = i64::try_from(limits.age.as_millis()).unwrap_or(i64::MAX);
        let usual_bytes = limits.min_bytes.max(self.bytes);
        while let Some(oldest) = self.history.front() {
            let within = self.history.len() <= limits.events
                && self.history_bytes <= limits.bytes
                && (self.history_bytes <= usual_bytes || self.history.len() <= limits.min_events)
                && now.saturating_sub(oldest.at) <= max_age;
            if within {
                break;
            }
            self.drop_oldest();
        }
    }

    fn add_owned(&mut self, owners: &[Arc<str>], key: &Key) {
        for owner in owners {
            self.owned.insert((Arc::clone(owner), key.clone()));
        }
    }

    fn remove_owned(&mut self, owners: &[Arc<str>], key: &Key) {
        for owner in owners {
            self.owned.remove(&(Arc::clone(owner), key.clone()));
        }
    }

    /// Returns the current versions that have `owner` (a uid) as an owner, ordered by key.
    pub(super) fn owned_by(&self, owner: &str) -> impl Iterator<Item = &Arc<Entry>> {
        let start = (Arc::from(owner), Key::new("", ""));
        self.owned
            .range(start..)
            .take_while(move |(uid, _)| **uid == *owner)
            .filter_map(|(_, key)| self.entries.get(key))
    }

    fn drop_oldest(&mut self) {
        if let Some(dropped) = self.history.pop_front() {
            self.history_bytes -= weight(&dropped.event);
            self.compacted = dropped.event.revision;
        }
    }

    /// Removes the changes at or before `revision` from the history.
    pub(super) fn compact(&mut self, revision: Revision) {
        while self
            .history
            .front()
            .is_some_and(|oldest| oldest.event.revision <= revision)
        {
            self.drop_oldest();
        }
        self.compacted = self.compacted.max(revision);
    }

    /// Returns the changes after `revision`, oldest first. Complete only if `revision >= compacted`.
    pub(super) fn history_after(&self, revision: Revision) -> impl Iterator<Item = &Event> {
        let start = self
            .history
            .partition_point(|logged| logged.event.revision <= revision);
        self.history.range(start..).map(|logged| &logged.event)
    }

    /// Returns the number of changes and bytes in the history.
    pub(super) fn history_size(&self) -> (usize, usize) {
        (self.history.len(), self.history_bytes)
    }

    /// Adds a current version without history, while loading a snapshot.
    pub(super) fn load(&mut self, entry: Arc<Entry>) {
        self.bytes += entry.bytes.len();
        self.add_owned(&entry.index.owners, &entry.key);
        self.entries.insert(entry.key.clone(), entry);
    }
}

/// Returns the bytes that the history needs for `event`: the versions that would otherwise be freed.
fn weight(event: &Event) -> usize {
    let old = event.old.as_ref().map_or(0, |old| old.weight());
    let tombstone = if event.kind == EventKind::Delete {
        event.new.weight()
    } else {
        0
    };
    128 + old + tombstone
}
