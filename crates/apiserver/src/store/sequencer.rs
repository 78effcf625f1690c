//! The single writer: decides all writes in one order and assigns their revisions.

use super::stamp::{UnstampedObject, join};
use super::{Entry, Event, EventKind, Index, Key, Revision, StoreError, StoreState, TableId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A queued write.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) table: TableId,
    pub(super) key: Key,
    pub(super) op: Op,
}

/// Operation of a [`Write`].
#[derive(Debug)]
pub(super) enum Op {
    Create {
        object: UnstampedObject,
        index: Index,
    },
    Update {
        object: UnstampedObject,
        index: Index,
        expected: Option<Revision>,
    },
    Delete {
        expected: Option<Revision>,
        uid: Option<Arc<str>>,
    },
}

/// Outcome of a [`Write`].
#[derive(Debug)]
pub(super) enum WriteOutcome {
    /// A change with its own revision, not yet visible.
    Changed(Event),
    /// Nothing changed: the stored object is already equal.
    Same(Arc<Entry>),
}

/// Assigns revisions. There is exactly one, and only its owner changes the tables.
#[derive(Debug)]
pub(super) struct Sequencer {
    inner: Arc<StoreState>,
    /// Last assigned revision.
    revision: Revision,
    /// Changes that are decided but not published: later writes of the same batch see them.
    pending: FxHashMap<TableId, FxHashMap<Key, Option<Arc<Entry>>>>,
    interner: Interner,
}

impl Sequencer {
    pub(super) fn new(inner: Arc<StoreState>, revision: Revision) -> Self {
        Self {
            inner,
            revision,
            pending: FxHashMap::default(),
            interner: Interner::default(),
        }
    }

    /// Returns the last assigned revision.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Decides `write` against the current and the pending state.
    pub(super) fn prepare(&mut self, write: Write) -> Result<WriteOutcome, StoreError> {
        let Write { table, key, op } = write;
        let current = match self
            .pending
            .get(&table)
            .and_then(|pending| pending.get(&key))
        {
            Some(pending) => pending.clone(),
            None => self.inner.get(&table, &key),
        };
        let event = match (op, current) {
            (Op::Create { .. }, Some(current)) => return Err(StoreError::Exists { current }),
            (Op::Create { object, index }, None) => {
                let table = self.inner.table(&table).id.clone();
                let key = Key {
                    namespace: self.interner.intern(key.namespace),
                    name: key.name,
                };
                self.put(table, key, None, &object, index)
            }
            (Op::Update { .. } | Op::Delete { .. }, None) => {
                return Err(StoreError::NotFound { table, key });
            }
            (
                Op::Update {
                    object,
                    index,
                    expected,
                },
                Some(current),
            ) => {
                if expected.is_some_and(|expected| expected != current.revision) {
                    return Err(StoreError::Conflict { current });
                }
                if object.halves() == current.around_version() {
                    return Ok(WriteOutcome::Same(current));
                }
                self.put(
                    current.table.clone(),
                    current.key.clone(),
                    Some(current),
                    &object,
                    index,
                )
            }
            (Op::Delete { expected, uid }, Some(current)) => {
                let stale = expected.is_some_and(|expected| expected != current.revision);
                if stale || uid.is_some_and(|uid| uid != current.index.uid) {
                    return Err(StoreError::Conflict { current });
                }
                self.revision += 1;
                tombstone(current, self.revision)
            }
        };
        Ok(WriteOutcome::Changed(event))
    }

    /// Assigns a revision to a new or changed object and returns the event of the change.
    fn put(
        &mut self,
        table: TableId,
        key: Key,
        old: Option<Arc<Entry>>,
        object: &UnstampedObject,
        mut index: Index,
    ) -> Event {
        self.revision += 1;
        let revision = self.revision;
        let (bytes, version_at) = object.fill(revision);
        self.interner.intern_index(&mut index);
        let created = old.as_ref().map_or(revision, |old| old.created);
        let new = Arc::new(Entry {
            table,
            key,
            revision,
            created,
            bytes,
            index,
            version_at,
        });
        Event {
            kind: EventKind::Put,
            revision,
            old,
            new,
        }
    }

    /// Makes later writes see `event` before it is published.
    pub(super) fn hold(&mut self, event: &Event) {
        let state = match event.kind {
            EventKind::Put => Some(Arc::clone(&event.new)),
            EventKind::Delete => None,
        };
        let table = self.pending.entry(event.new.table.clone()).or_default();
        table.insert(event.new.key.clone(), state);
    }

    /// Drops the pending changes. Their revisions stay used.
    pub(super) fn release(&mut self) {
        self.pending.clear();
    }

    /// Makes `events`, in revision order, visible.
    pub(super) fn publish(&self, events: impl IntoIterator<Item = Event>) {
        self.inner.publish(events);
    }
}

/// Returns the event of the removal of `current` at `revision`.
pub(super) fn tombstone(current: Arc<Entry>, revision: Revision) -> Event {
    let (before, after) = current.around_version();
    let (bytes, version_at) = join(before, revision, after);
    let new = Entry {
        revision,
        bytes,
        version_at,
        ..Entry::clone(&current)
    };
    Event {
        kind: EventKind::Delete,
        revision,
        old: Some(current),
        new: Arc::new(new),
    }
}

/// Interns strings that many objects share: namespaces, label keys and values, node names, owner uids. Unused
/// strings are removed when the set has doubled.
#[derive(Debug, Default)]
pub(super) struct Interner {
    strings: FxHashSet<Arc<str>>,
    sweep_at: usize,
}

impl Interner {
    /// Returns the stored string that equals `text`, and stores `text` if there is none.
    pub(super) fn intern(&mut self, text: Arc<str>) -> Arc<str> {
        if let Some(interned) = self.strings.get(&text) {
            return Arc::clone(interned);
        }
        if self.strings.len() >= self.sweep_at.max(4096) {
            self.strings.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = self.strings.len() * 2;
        }
        self.strings.insert(Arc::clone(&text));
        text
    }

    pub(super) fn intern_index(&mut self, index: &mut Index) {
        for (key, value) in index.labels.iter_mut().chain(&mut index.fields) {
            *key = self.intern(std::mem::take(key));
            *value = self.intern(std::mem::take(value));
        }
        for owner in &mut index.owners {
            *owner = self.intern(std::mem::take(owner));
        }
        index.labels.shrink_to_fit();
        index.fields.shrink_to_fit();
        index.owners.shrink_to_fit();
    }
}
