//! Events are forgotten an hour after they were last written.

use crate::kinds::status::ApiError;
use crate::rest::Api;
use crate::store::{Entry, EventKind, Key, Revision, TableId};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long an event is kept after its last write.
const TTL: SignedDuration = SignedDuration::from_hours(1);
/// Longest pause between two looks at what is due.
const TICK: Duration = Duration::from_secs(60);

/// What expires when.
type Due = BTreeMap<(Timestamp, Revision), Key>;

/// Deletes expired events until `shutdown` is cancelled.
pub(super) async fn run(api: Api, shutdown: CancellationToken) {
    let table = TableId::new("", "events");
    while !shutdown.is_cancelled() {
        let mut due = Due::new();
        let Ok(page) = api.store().list(&table, None, None, None, None, &|_| true) else {
            continue;
        };
        for entry in &page.items {
            // Written by an earlier process: its own times say when.
            due.insert(
                (last_seen(entry, api.clock().now()) + TTL, entry.revision),
                entry.key.clone(),
            );
        }
        let Ok(mut watcher) = api.store().watch(table.clone(), page.revision) else {
            continue;
        };
        loop {
            let now = api.clock().now();
            let pause = due
                .first_key_value()
                .map_or(TICK, |((at, _), _)| {
                    at.duration_since(now).try_into().unwrap_or_default()
                })
                .clamp(Duration::from_millis(100), TICK);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {
                    if let Err(error) = expire(&api, &mut due).await {
                        tracing::debug!(%error, "expired events are left for the next round");
                    }
                }
                next = watcher.next() => match next {
                    Ok(event) if event.kind == EventKind::Put => {
                        let at = api.clock().now() + TTL;
                        due.insert((at, event.revision), event.new.key.clone());
                    }
                    Ok(_) => {}
                    Err(_) => break,
                },
            }
        }
    }
}

/// When an event was last written, from its own times.
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

/// Deletes what is due and was not written again meanwhile.
async fn expire(api: &Api, due: &mut Due) -> Result<(), ApiError> {
    let events = api.builtin("", "v1", "events")?;
    let now = api.clock().now();
    while let Some(first) = due.first_entry() {
        if first.key().0 > now {
            return Ok(());
        }
        let ((_, revision), key) = first.remove_entry();
        let current = api.store().get(&events.table, &key);
        if current.is_some_and(|e| e.revision == revision) {
            let _gone = api.remove(&events, &key, Some(revision)).await;
        }
    }
    Ok(())
}
