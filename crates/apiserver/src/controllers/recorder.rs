//! Event recorder of the workload controllers: what they did with an object, for `kubectl describe`.
//!
//! Like upstream's recorder it counts repeated events in one object, combines events that differ only in
//! their text, and limits the events of one object.

use super::objects::{self, hash};
use crate::rest::{Api, meta};
use crate::store::Key;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::Instant;

/// Events of one object and reason that keep their own text.
const APART: u32 = 10;
/// Most events of one object in a [`WINDOW`].
const MOST: u32 = 25;
/// Window after which the limits of an object start again.
const WINDOW: Duration = Duration::from_secs(600);
/// Objects whose limits are tracked.
const OBJECTS: usize = 4096;

/// The object of an event, and the component that reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventSubject<'a> {
    pub(super) api: &'a Api,
    pub(super) resource: &'a Arc<Resource>,
    pub(super) object: &'a Value,
    /// Reporting component, such as `replicaset-controller`.
    pub(super) component: &'a str,
}

#[derive(Debug)]
struct EventBudget {
    since: Instant,
    all: u32,
    by_reason: FxHashMap<&'static str, u32>,
}

/// Event budgets by the uid of the object. All servers of this process share them: uids are unique.
static EVENT_BUDGETS: LazyLock<Mutex<FxHashMap<String, EventBudget>>> =
    LazyLock::new(Mutex::default);

/// Returns whether another event may be recorded: `Some(true)` with its own text, `Some(false)` combined with
/// similar ones, `None` not at all.
fn allowed(uid: &str, reason: &'static str) -> Option<bool> {
    let now = Instant::now();
    let mut messages = EVENT_BUDGETS.lock();
    if messages.len() >= OBJECTS {
        messages.retain(|_, s| now.duration_since(s.since) < WINDOW);
        if messages.len() >= OBJECTS {
            return None;
        }
    }
    let entry = messages
        .entry(uid.to_owned())
        .or_insert_with(|| EventBudget {
            since: now,
            all: 0,
            by_reason: FxHashMap::default(),
        });
    if now.duration_since(entry.since) >= WINDOW {
        (entry.since, entry.all) = (now, 0);
        entry.by_reason.clear();
    }
    if entry.all >= MOST {
        return None;
    }
    entry.all += 1;
    let of_reason = entry.by_reason.entry(reason).or_insert(0);
    *of_reason += 1;
    Some(*of_reason <= APART)
}

impl EventSubject<'_> {
    /// Records an event of type Normal.
    pub(super) async fn normal(&self, reason: &'static str, message: &str) {
        self.record("Normal", reason, message).await;
    }

    /// Records an event of type Warning.
    pub(super) async fn warning(&self, reason: &'static str, message: &str) {
        self.record("Warning", reason, message).await;
    }

    async fn record(&self, kind: &str, reason: &'static str, message: &str) {
        let Some(apart) = allowed(meta::uid(self.object), reason) else {
            return;
        };
        let combined;
        let message = if apart {
            message
        } else {
            combined = format!("(combined from similar events): {message}");
            &combined
        };
        if let Err(error) = self.write(kind, reason, message, apart).await {
            // A namespace that is being deleted accepts no events.
            tracing::debug!(reason, message, %error, "failed to write event");
        }
    }

    /// Creates an event or increases the count of the existing one. Different messages share one event unless
    /// `apart`.
    async fn write(
        &self,
        kind: &str,
        reason: &str,
        message: &str,
        apart: bool,
    ) -> Result<(), ApiError> {
        let Self {
            api,
            resource,
            object,
            component,
        } = *self;
        let events = api.builtin("", "v1", "events")?;
        let namespace = match meta::namespace(object) {
            "" => "default",
            namespace => namespace,
        };
        let text = if apart { message } else { "" };
        let event_hash = hash(&json!([meta::uid(object), kind, reason, text]));
        let name = format!("{}.{event_hash}", meta::name(object));
        let now = meta::time(api.clock().now());
        let key = Key::new(namespace, name.as_str());
        let requeue = api
            .edit(&events, None, &key, |old| {
                let mut new = old.clone();
                let count = old.get("count").and_then(Value::as_i64).unwrap_or(1);
                new["count"] = count.saturating_add(1).into();
                new["lastTimestamp"] = now.as_str().into();
                new["message"] = message.into();
                Ok(Some(new))
            })
            .await;
        match requeue {
            Err(e) if e.code == 404 => {}
            done => return done.map(drop),
        }
        let event = json!({
            "metadata": { "name": name },
            "involvedObject": {
                "apiVersion": resource.api_version(),
                "kind": &*resource.kind,
                "namespace": meta::namespace(object),
                "name": meta::name(object),
                "uid": meta::uid(object),
                "resourceVersion": meta::resource_version(object),
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": { "component": component },
            "reportingComponent": component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        objects::create(api, &events, namespace, event)
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_events_of_object_are_limited() {
        let uid = "recorder-test";
        let recorded: Vec<_> = (0..40).filter_map(|_| allowed(uid, "A")).collect();
        assert_eq!(recorded.len(), MOST as usize);
        assert_eq!(
            recorded.iter().filter(|apart| **apart).count(),
            APART as usize
        );
        assert_eq!(allowed(uid, "B"), None);
        assert_eq!(allowed("recorder-other", "B"), Some(true));
        tokio::time::advance(WINDOW).await;
        assert_eq!(allowed(uid, "A"), Some(true));
    }
}
