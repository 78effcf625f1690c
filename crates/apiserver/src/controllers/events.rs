//! Event TTL controller: deletes events an hour after their last write.

use crate::rest::Api;
use crate::store::{Entry, EventKind, Key, Revision, TableId};
use jiff::{SignedDuration, Timestamp};
use koord_kinds::status::ApiError;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Lifetime of an event after its last write.
const TTL: SignedDuration = SignedDuration::from_hours(1);
/// Longest pause between two checks for expired events.
const TICK: Duration = Duration::from_secs(60);

/// Expiry index with one entry per event, updated in place when the event is written again.
#[derive(Debug, Default)]
struct ExpiryIndex {
    order: BTreeMap<(Timestamp, Revision), Key>,
    of: FxHashMap<Key, (Timestamp, Revision)>,
}

impl ExpiryIndex {
    fn put(&mut self, key: Key, at: Timestamp, revision: Revision) {
        self.remove(&key);
        self.of.insert(key.clone(), (at, revision));
        self.order.insert((at, revision), key);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(at) = self.of.remove(key) {
            self.order.remove(&at);
        }
    }

    fn next(&self) -> Option<Timestamp> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes and returns the first entry if it has expired.
    fn pop(&mut self, now: Timestamp) -> Option<(Key, Revision)> {
        let first = self.order.first_entry().filter(|e| e.key().0 <= now)?;
        let ((_, revision), key) = first.remove_entry();
        self.of.remove(&key);
        Some((key, revision))
    }
}

/// Deletes expired events until `shutdown` is cancelled.
pub(super) async fn run(api: Api, shutdown: CancellationToken) {
    let table = TableId::new("", "events");
    while !shutdown.is_cancelled() {
        let mut due = ExpiryIndex::default();
        let Ok((entries, mut watcher)) = api.store().follow(&table) else {
            continue;
        };
        for entry in &entries {
            // An earlier process wrote it, so its own timestamps decide.
            let at = last_seen(entry, api.clock().now()) + TTL;
            due.put(entry.key.clone(), at, entry.revision);
        }
        loop {
            let now = api.clock().now();
            let pause = due
                .next()
                .map_or(TICK, |at| {
                    at.duration_since(now).try_into().unwrap_or_default()
                })
                .clamp(Duration::from_millis(100), TICK);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {
                    if let Err(error) = expire(&api, &mut due).await {
                        tracing::debug!(%error, "failed to delete expired events, retrying in the next round");
                    }
                }
                next = watcher.next() => match next {
                    Ok(event) if event.kind == EventKind::Put => {
                        let at = api.clock().now() + TTL;
                        due.put(event.new.key.clone(), at, event.revision);
                    }
                    Ok(event) => due.remove(&event.new.key),
                    Err(_) => break,
                },
            }
        }
    }
}

/// Returns when an event was last written, from its own timestamps; never later than `now`.
fn last_seen(entry: &Entry, now: Timestamp) -> Timestamp {
    let value = entry.value();
    let times: [&[&str]; 4] = [
        &["lastTimestamp"],
        &["series", "lastObservedTime"],
        &["eventTime"],
        &["metadata", "creationTimestamp"],
    ];
    times
        .iter()
        .filter_map(|path| {
            crate::rest::meta::text(&value, path)
                .parse::<Timestamp>()
                .ok()
        })
        .max()
        .map_or(now, |t| t.min(now))
}

/// Deletes expired events that were not written again in the meantime.
async fn expire(api: &Api, due: &mut ExpiryIndex) -> Result<(), ApiError> {
    let events = api.builtin("", "v1", "events")?;
    let now = api.clock().now();
    while let Some((key, revision)) = due.pop(now) {
        let current = api.store().get(&events.table, &key);
        if current.is_some_and(|e| e.revision == revision) {
            let _gone = api.remove(&events, &key, Some(revision)).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_due_once_after_its_last_write() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (early, late) = (at("2026-01-01T01:00:00Z"), at("2026-01-01T02:00:00Z"));
        let key = Key::new("default", "e");
        let mut due = ExpiryIndex::default();
        due.put(key.clone(), early, 5);
        due.put(key.clone(), late, 6);
        assert_eq!(due.next(), Some(late));
        assert_eq!(due.pop(early), None);
        assert_eq!(due.pop(late), Some((key.clone(), 6)));
        assert_eq!(due.pop(late), None);
        due.put(key.clone(), late, 7);
        due.remove(&key);
        assert_eq!(due.next(), None);
    }
}
