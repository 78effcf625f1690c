//! Watch fan-out: every watcher has a small bounded inbox and, when it overflows, reads from the table's
//! history. Writers never wait for a watcher; a watcher is lost only if the history it still has to read was
//! compacted.

use super::send_queue::{QueueCharge, QueueStage, SendQueues};
use super::table::Table;
use super::{Event, Key, Revision, TableId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Most events in an inbox before its watcher has to read from the history.
const INBOX_EVENTS: usize = 1024;
/// Most bytes of new versions in an inbox before its watcher has to read from the history: a client that does
/// not read must not keep in memory what the history has dropped. Larger than any one object.
const INBOX_BYTES: usize = 8 << 20;
/// Most events read from the history at once, so that the table is not locked for long.
const CATCH_UP_EVENTS: usize = 256;

/// Selects the events of a table for a watcher. Events outside the scope cost the watcher nothing; finer
/// selection (labels) is left to the receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Namespace of the objects; `None` selects all.
    pub namespace: Option<Arc<str>>,
    /// Name of the objects; `None` selects all.
    pub name: Option<Arc<str>>,
    /// Path and value of a field in [`super::Index::fields`] of the old or new version, such as
    /// `("spec.nodeName", "n1")`.
    pub field: Option<(Arc<str>, Arc<str>)>,
}

impl Scope {
    fn matches(&self, event: &Event) -> bool {
        let key: &Key = &event.new.key;
        self.namespace
            .as_ref()
            .is_none_or(|namespace| **namespace == *key.namespace)
            && self.name.as_ref().is_none_or(|name| **name == *key.name)
            && self.field.as_ref().is_none_or(|(path, value)| {
                let has = |entry: &super::Entry| entry.index.field(path) == Some(value);
                has(&event.new) || event.old.as_deref().is_some_and(has)
            })
    }
}

/// The history no longer has events that the watcher has not received. It must list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("watcher at revision {at} lags behind the history, which starts after {oldest}")]
pub struct Lagged {
    /// Last delivered revision.
    pub at: Revision,
    /// Oldest revision that a new watch can start from.
    pub oldest: Revision,
}

#[derive(Debug)]
struct Inbox {
    id: u64,
    scope: Scope,
    state: Mutex<InboxState>,
    ready: Notify,
}

#[derive(Debug)]
struct InboxState {
    queue: VecDeque<Event>,
    /// Bytes of the new versions in the queue.
    bytes: usize,
    /// Charge of these bytes to the client's queues; `None` if they are not bounded.
    charge: Option<QueueCharge>,
    /// True if events after the queued ones must be read from the history; nothing is queued meanwhile.
    behind: bool,
}

impl Inbox {
    fn offer(&self, event: &Event) {
        if !self.scope.matches(event) {
            return;
        }
        let mut state = self.state.lock();
        if !state.behind {
            let size = event.new.bytes.len();
            let bytes = state.bytes + size;
            let fits = state.queue.len() < INBOX_EVENTS && bytes <= INBOX_BYTES;
            if fits && charged(&mut state.charge, size) {
                state.bytes = bytes;
                state.queue.push_back(event.clone());
            } else {
                state.behind = true;
            }
        }
        drop(state);
        self.ready.notify_one();
    }
}

type InboxGroup = Vec<Arc<Inbox>>;
type InboxGroups = FxHashMap<Arc<str>, InboxGroup>;

/// Inboxes of one table, grouped by scope so that an event is offered only to those that may match.
#[derive(Debug, Default)]
pub(super) struct Dispatch {
    all: InboxGroup,
    by_namespace: InboxGroups,
    by_name: InboxGroups,
    by_field: FxHashMap<Arc<str>, InboxGroups>,
}

impl Dispatch {
    /// Delivers `event`, which is in the history already, to every inbox whose scope matches.
    pub(super) fn deliver(&self, event: &Event) {
        let key = &event.new.key;
        offer_all(Some(&self.all), event);
        offer_all(self.by_namespace.get(&key.namespace), event);
        offer_all(self.by_name.get(&key.name), event);
        for (path, by_value) in &self.by_field {
            let new = event.new.index.field(path);
            let old = event.old.as_deref().and_then(|old| old.index.field(path));
            offer_all(new.and_then(|value| by_value.get(value)), event);
            if old != new {
                offer_all(old.and_then(|value| by_value.get(value)), event);
            }
        }
    }

    /// Makes every watcher read the table again, where it detects that it lags.
    pub(super) fn force_reread(&self) {
        let named = self.by_namespace.values().chain(self.by_name.values());
        let fields = self.by_field.values().flat_map(FxHashMap::values);
        for inbox in self
            .all
            .iter()
            .chain(named.flatten())
            .chain(fields.flatten())
        {
            inbox.state.lock().behind = true;
            inbox.ready.notify_one();
        }
    }

    /// Returns the number of watchers.
    pub(super) fn len(&self) -> usize {
        let named = self
            .by_namespace
            .values()
            .chain(self.by_name.values())
            .map(Vec::len);
        let fields = self
            .by_field
            .values()
            .flat_map(FxHashMap::values)
            .map(Vec::len);
        self.all.len() + named.sum::<usize>() + fields.sum::<usize>()
    }

    fn add(&mut self, inbox: Arc<Inbox>) {
        let group = match &inbox.scope {
            Scope {
                name: Some(name), ..
            } => self.by_name.entry(name.clone()).or_default(),
            Scope {
                field: Some((path, value)),
                ..
            } => self
                .by_field
                .entry(path.clone())
                .or_default()
                .entry(value.clone())
                .or_default(),
            Scope {
                namespace: Some(namespace),
                ..
            } => self.by_namespace.entry(namespace.clone()).or_default(),
            _ => &mut self.all,
        };
        group.push(inbox);
    }

    fn remove(&mut self, inbox: &Inbox) {
        match &inbox.scope {
            Scope {
                name: Some(name), ..
            } => remove_from(&mut self.by_name, name, inbox.id),
            Scope {
                field: Some((path, value)),
                ..
            } => {
                if let Some(by_value) = self.by_field.get_mut(path) {
                    remove_from(by_value, value, inbox.id);
                    if by_value.is_empty() {
                        self.by_field.remove(path);
                    }
                }
            }
            Scope {
                namespace: Some(namespace),
                ..
            } => {
                remove_from(&mut self.by_namespace, namespace, inbox.id);
            }
            _ => self.all.retain(|other| other.id != inbox.id),
        }
    }
}

/// Charges `bytes` to the client's queues; false if they are full.
fn charged(charge: &mut Option<QueueCharge>, bytes: usize) -> bool {
    charge.as_mut().is_none_or(|charge| charge.try_grow(bytes))
}

fn offer_all(inboxes: Option<&InboxGroup>, event: &Event) {
    for inbox in inboxes.into_iter().flatten() {
        inbox.offer(event);
    }
}

fn remove_from(groups: &mut InboxGroups, group: &Arc<str>, id: u64) {
    if let Some(inboxes) = groups.get_mut(group) {
        inboxes.retain(|inbox| inbox.id != id);
        if inboxes.is_empty() {
            groups.remove(group);
        }
    }
}

/// A stream of the changes of one table, in revision order, without losses and duplicates.
#[derive(Debug)]
pub struct Watcher {
    table: Arc<Table>,
    published: Arc<AtomicU64>,
    inbox: Arc<Inbox>,
    /// Events taken from the inbox or the history and not yet returned.
    local: VecDeque<Event>,
    /// Charge of the bytes in `local` to the client's queues.
    charge: Option<QueueCharge>,
    /// Revision up to which events were moved into `local` or returned.
    taken: Revision,
    /// Revision up to which events were returned.
    delivered: Revision,
}

impl Watcher {
    /// Starts to watch `table` after revision `from`. The caller has checked that the history reaches that
    /// far back. Undelivered bytes are charged to `queues`; while they are full, the watcher reads from the
    /// history.
    pub(super) fn start(
        table: Arc<Table>,
        published: Arc<AtomicU64>,
        from: Revision,
        scope: Scope,
        queues: Option<&SendQueues>,
    ) -> Self {
        let charge = || queues.map(|queues| queues.charge(QueueStage::Queued, 0));
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let inbox = Arc::new(Inbox {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            scope,
            // A start in the past is handled like having fallen behind.
            state: Mutex::new(InboxState {
                queue: VecDeque::new(),
                bytes: 0,
                charge: charge(),
                behind: true,
            }),
            ready: Notify::new(),
        });
        table.dispatch.write().add(Arc::clone(&inbox));
        Self {
            table,
            published,
            inbox,
            local: VecDeque::new(),
            charge: charge(),
            taken: from,
            delivered: from,
        }
    }

    /// Returns the watched table.
    #[must_use]
    pub fn table(&self) -> &TableId {
        &self.table.id
    }

    /// Waits for the next change. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Event, Lagged> {
        loop {
            // The notification is stored, so an event between the check and the wait wakes the watcher.
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            self.inbox.ready.notified().await;
        }
    }

    /// Returns the next change if it is available now.
    pub fn try_next(&mut self) -> Result<Option<Event>, Lagged> {
        loop {
            while let Some(event) = self.local.pop_front() {
                if let Some(charge) = &mut self.charge {
                    charge.shrink(event.new.bytes.len());
                }
                if event.revision > self.delivered {
                    self.delivered = event.revision;
                    return Ok(Some(event));
                }
            }
            if !self.refill()? {
                return Ok(None);
            }
        }
    }

    /// Moves events into `local`; false if there are none at the moment.
    fn refill(&mut self) -> Result<bool, Lagged> {
        {
            let mut inbox = self.inbox.state.lock();
            if !inbox.queue.is_empty() {
                std::mem::swap(&mut inbox.queue, &mut self.local);
                inbox.bytes = 0;
                // `local` was empty, and so was its charge.
                std::mem::swap(&mut inbox.charge, &mut self.charge);
                if let Some(last) = self.local.back() {
                    self.taken = self.taken.max(last.revision);
                }
                return Ok(true);
            }
            if !inbox.behind {
                return Ok(false);
            }
        }
        let state = self.table.state.read();
        if self.taken < state.compacted {
            return Err(Lagged {
                at: self.delivered,
                oldest: state.compacted,
            });
        }
        let mut complete = true;
        let mut bytes = 0;
        for event in state.history_after(self.taken) {
            if self.inbox.scope.matches(event) {
                let size = event.new.bytes.len();
                // One event is always taken; otherwise a watcher with full queues would never make progress.
                if self.local.is_empty() {
                    if let Some(charge) = &mut self.charge {
                        charge.grow(size);
                    }
                } else if self.local.len() >= CATCH_UP_EVENTS
                    || bytes + size > INBOX_BYTES
                    || !charged(&mut self.charge, size)
                {
                    complete = false;
                    break;
                }
                bytes += size;
                self.local.push_back(event.clone());
            }
            self.taken = event.revision;
        }
        if complete {
            // Events that the writer adds to the history from here on are delivered afterwards. Those added
            // but not yet delivered arrive a second time and are skipped by their revision.
            self.inbox.state.lock().behind = false;
        }
        Ok(!self.local.is_empty() || !complete)
    }

    /// Returns the newest revision up to which everything in scope was returned, for bookmarks. It never
    /// decreases.
    #[must_use]
    pub fn progress(&self) -> Revision {
        // Read first: everything published by now is in the inbox or was returned.
        let published = self.published.load(Ordering::Acquire);
        let inbox = self.inbox.state.lock();
        if self.local.is_empty() && inbox.queue.is_empty() && !inbox.behind {
            self.delivered.max(published)
        } else {
            self.delivered
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.table.dispatch.write().remove(&self.inbox);
    }
}

#[cfg(test)]
mod tests {
    use crate::store::{Index, Key, Store, StoreOptions, TableId};
    use koord_app::Clock;
    use serde_json::json;
    use std::time::{Duration, Instant};

    #[tokio::test]
    async fn slow_watcher_does_not_hold_the_tables_lock() {
        let store = Store::open(StoreOptions::memory(Clock::system()))
            .await
            .unwrap();
        let (table, key) = (TableId::new("", "pods"), Key::new("n", "p"));
        let mut watcher = store.watch(table.clone(), store.revision()).unwrap();
        assert!(
            watcher.try_next().unwrap().is_none(),
            "it waits for changes"
        );
        // While the watcher holds its inbox, the write below waits to deliver.
        let at_inbox = watcher.inbox.state.lock();
        let runtime = tokio::runtime::Handle::current();
        let write = std::thread::spawn({
            let (store, table, key) = (store.clone(), table.clone(), key.clone());
            move || {
                let object = json!({"metadata": {"name": "p"}});
                runtime.block_on(store.create(table, key, object, Index::default()))
            }
        });
        let began = Instant::now();
        let state = loop {
            let state = watcher.table.state.try_read();
            match state.filter(|state| state.entries.contains_key(&key)) {
                Some(state) => break state,
                None => assert!(
                    began.elapsed() < Duration::from_secs(20),
                    "the table is locked"
                ),
            }
            std::thread::yield_now();
        };
        drop(state);
        assert!(!write.is_finished(), "the change is still to be delivered");
        drop(at_inbox);
        let entry = write.join().unwrap().unwrap();
        let event = watcher.try_next().unwrap().unwrap();
        assert_eq!(event.revision, entry.revision);
        assert!(watcher.try_next().unwrap().is_none(), "it arrives once");
    }
}
