//! One table: the current entries, a bounded history of changes, and the watchers.

use super::watch::Dispatch;
use super::{Entry, Event, EventKind, Key, Revision, TableId};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How much history each table keeps for watches that start in the past and for paged lists.
/// Whatever limit is reached first applies; the current entries are not history.
#[derive(Debug, Clone, Copy)]
pub struct HistoryLimits {
    /// Changes per table.
    pub events: usize,
    /// Bytes of superseded versions per table, at most.
    pub bytes: usize,
    /// Bytes of superseded versions that any table may have. A table with larger current versions may
    /// have as many as those: a client that missed more is not much worse off with a new list.
    pub min_bytes: usize,
    /// Changes that any table may have: few large ones must not outrun a client that reads slowly.
    pub min_events: usize,
    /// Age of a change; applied when the table is next written.
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

/// A table. Its objects change under one lock, held for one change or one chunk of a read.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) id: TableId,
    pub(super) state: RwLock<TableState>,
    /// The watchers, under a lock of their own: however many there are and whatever they select,
    /// readers and other writers of the table do not wait for them. Never taken inside `state`.
    pub(super) dispatch: RwLock<Dispatch>,
}

#[derive(Debug)]
pub(super) struct TableState {
    /// The current versions.
    pub(super) entries: BTreeMap<Key, Arc<Entry>>,
    /// Uid of an owner and key of an entry that names it: one set, as most owners have few.
    owned: BTreeSet<(Arc<str>, Key)>,
    /// Bytes of the current versions.
    pub(super) bytes: usize,
    /// Changes at or before this revision are not in the history.
    pub(super) compacted: Revision,
    /// The last change.
    pub(super) last: Revision,
    history: VecDeque<Logged>,
    history_bytes: usize,
}

#[derive(Debug)]
struct Logged {
    event: Event,
    /// Milliseconds since the epoch.
    at: i64,
}

impl Table {
    /// An empty table; `compacted` is the revision before which nothing is known about it.
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

    /// Makes `event`, which happened at `now` (milliseconds), visible to readers, and then to
    /// watchers: what a watcher misses meanwhile is in the history. Only for the one writer, which
    /// keeps the order of events.
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
            self.disown(before, &event.new.key);
            self.own(after, &event.new.key);
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
        self.history.push_back(Logged { event, at: now });
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

    fn own(&mut self, owners: &[Arc<str>], key: &Key) {
        for owner in owners {
            self.owned.insert((Arc::clone(owner), key.clone()));
        }
    }

    fn disown(&mut self, owners: &[Arc<str>], key: &Key) {
        for owner in owners {
            self.owned.remove(&(Arc::clone(owner), key.clone()));
        }
    }

    /// The current versions that name `owner` (a uid) as an owner, ordered by key.
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

    /// Forgets the changes at or before `revision`.
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

    /// The changes after `revision`, oldest first. Only complete when `revision >= compacted`.
    pub(super) fn history_after(&self, revision: Revision) -> impl Iterator<Item = &Event> {
        let start = self
            .history
            .partition_point(|logged| logged.event.revision <= revision);
        self.history.range(start..).map(|logged| &logged.event)
    }

    /// Changes and bytes held as history.
    pub(super) fn history_size(&self) -> (usize, usize) {
        (self.history.len(), self.history_bytes)
    }

    /// Puts a current version without history: only while loading a snapshot.
    pub(super) fn load(&mut self, entry: Arc<Entry>) {
        self.bytes += entry.bytes.len();
        self.own(&entry.index.owners, &entry.key);
        self.entries.insert(entry.key.clone(), entry);
    }
}

/// What the history pays for keeping `event`: the versions that are otherwise gone.
fn weight(event: &Event) -> usize {
    let old = event.old.as_ref().map_or(0, |old| old.weight());
    let tombstone = if event.kind == EventKind::Delete {
        event.new.weight()
    } else {
        0
    };
    128 + old + tombstone
}
