//! Reads a range of a table as of one revision, in short steps.
//!
//! A step holds the table's read lock for a bounded number of keys, so that a list of everything does not
//! block the writer. Between steps the table may change; those changes are undone from the history, which
//! also serves lists at an earlier revision.

use super::table::{Table, TableState};
use super::{Entry, Key, Page, Revision, StoreError};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys read under one hold of the lock.
const STEP_KEYS: usize = 1024;

/// Range and revision to read.
pub(super) struct ListQuery<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) at: Option<Revision>,
    pub(super) after: Option<&'a Key>,
    pub(super) limit: Option<usize>,
    pub(super) filter: &'a dyn Fn(&Entry) -> bool,
}

/// Reads a page of `table`.
pub(super) fn read(
    table: &Table,
    published: &AtomicU64,
    query: &ListQuery<'_>,
) -> Result<Page, StoreError> {
    // A read of the current state restarts if the history is compacted meanwhile; the last attempt holds the
    // lock throughout.
    for _ in 0..2 {
        match Reader::new(query).run(table, published, STEP_KEYS) {
            Err(StoreError::Expired { .. }) if query.at.is_none() => {}
            done => return done,
        }
    }
    Reader::new(query).run(table, published, usize::MAX)
}

struct Reader<'a> {
    query: &'a ListQuery<'a>,
    /// Versions at the read's revision of all keys that changed since.
    undo: BTreeMap<Key, Option<Arc<Entry>>>,
    /// Revision up to which changes are in `undo`.
    undone: Revision,
    position: Bound<Key>,
    items: Vec<Arc<Entry>>,
}

impl<'a> Reader<'a> {
    fn new(query: &'a ListQuery<'a>) -> Self {
        let start = Key::new(query.namespace.unwrap_or_default(), "");
        let position = match query.after {
            Some(after) if *after >= start => Bound::Excluded(after.clone()),
            _ => Bound::Included(start),
        };
        Self {
            query,
            undo: BTreeMap::new(),
            undone: 0,
            position,
            items: Vec::new(),
        }
    }

    /// Reads a page in steps, so that the lock of the table is held for one step at a time.
    fn run(
        mut self,
        table: &Table,
        published: &AtomicU64,
        step: usize,
    ) -> Result<Page, StoreError> {
        let mut revision = None;
        loop {
            let state = table.state.read();
            let at = match revision {
                Some(at) => at,
                None => {
                    // Everything published by now is in the table, and so is its last change.
                    let current = published.load(Ordering::Acquire).max(state.last);
                    let at = self.query.at.unwrap_or(current);
                    if at > current {
                        return Err(StoreError::Future {
                            requested: at,
                            current,
                        });
                    }
                    self.undone = at;
                    revision = Some(at);
                    at
                }
            };
            if self.undone < state.compacted {
                return Err(StoreError::Expired {
                    requested: at,
                    oldest: state.compacted,
                });
            }
            for event in state.history_after(self.undone) {
                self.undo
                    .entry(event.new.key.clone())
                    .or_insert_with(|| event.old.clone());
            }
            self.undone = self.undone.max(state.last);
            match self.step(&state, step) {
                StepResult::More => {}
                StepResult::End => {
                    return Ok(Page {
                        items: self.items,
                        revision: at,
                        next: None,
                        remaining: None,
                    });
                }
                StepResult::Full(next, remaining) => {
                    return Ok(Page {
                        items: self.items,
                        revision: at,
                        next: Some(next),
                        remaining,
                    });
                }
            }
        }
    }

    /// Reads up to `step` keys of the merged state.
    fn step(&mut self, state: &TableState, step: usize) -> StepResult {
        let range = (self.position.clone(), Bound::Unbounded);
        let mut merged = MergedEntries {
            current: state.entries.range(range.clone()).peekable(),
            undo: self.undo.range(range).peekable(),
        };
        let mut last = None;
        for _ in 0..step {
            let Some((key, entry)) = merged.next() else {
                return StepResult::End;
            };
            if self
                .query
                .namespace
                .is_some_and(|namespace| namespace != &*key.namespace)
            {
                return StepResult::End;
            }
            last = Some(key);
            if let Some(entry) = entry.filter(|entry| (self.query.filter)(entry)) {
                self.items.push(Arc::clone(entry));
                if self
                    .query
                    .limit
                    .is_some_and(|limit| self.items.len() >= limit)
                {
                    let namespace = self.query.namespace;
                    let mut tail = merged
                        .take_while(|(key, _)| namespace.is_none_or(|n| n == &*key.namespace))
                        .filter(|(_, entry)| entry.is_some());
                    if tail.next().is_none() {
                        return StepResult::End;
                    }
                    // Counting walks over all remaining keys, so it is done once per list, not once per page.
                    let first = self.query.after.is_none() || self.query.at.is_none();
                    let remaining = first.then(|| 1 + tail.count() as u64);
                    return StepResult::Full(key.clone(), remaining);
                }
            }
        }
        if let Some(last) = last {
            self.position = Bound::Excluded(last.clone());
        }
        StepResult::More
    }
}

enum StepResult {
    More,
    End,
    Full(Key, Option<u64>),
}

/// Union of two ordered maps by key; the undo map takes precedence.
struct MergedEntries<'a, C, U>
where
    C: Iterator<Item = (&'a Key, &'a Arc<Entry>)>,
    U: Iterator<Item = (&'a Key, &'a Option<Arc<Entry>>)>,
{
    current: std::iter::Peekable<C>,
    undo: std::iter::Peekable<U>,
}

impl<'a, C, U> Iterator for MergedEntries<'a, C, U>
where
    C: Iterator<Item = (&'a Key, &'a Arc<Entry>)>,
    U: Iterator<Item = (&'a Key, &'a Option<Arc<Entry>>)>,
{
    type Item = (&'a Key, Option<&'a Arc<Entry>>);

    fn next(&mut self) -> Option<Self::Item> {
        let take_current = match (self.current.peek(), self.undo.peek()) {
            (None, None) => return None,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((current, _)), Some((undo, _))) => {
                if current == undo {
                    self.current.next();
                    false
                } else {
                    current < undo
                }
            }
        };
        if take_current {
            self.current.next().map(|(key, entry)| (key, Some(entry)))
        } else {
            self.undo.next().map(|(key, entry)| (key, entry.as_ref()))
        }
    }
}
