//! Events: what happened to an object, for people, without flooding the API server.
//!
//! The rules are client-go's: repeats of the same event raise its count; many similar events (same
//! but for the message) are folded into one; one source may say only so much about one object.

mod correlate;

use correlate::{Correlator, Verdict};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use koord_app::Clock;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::patch::is_not_found;

/// How many events may wait to be sent; more are dropped.
const BACKLOG: usize = 1000;

/// Whether an event is good or bad news.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// For information.
    Normal,
    /// Something is wrong.
    Warning,
}

impl Severity {
    /// The value of an Event's `type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What a component wants to say about an object.
#[derive(Debug, Clone)]
struct Note {
    object: ObjectReference,
    severity: Severity,
    reason: String,
    action: Option<String>,
    message: String,
}

/// Records events in the background. Clones share one backlog. Recording never blocks and never
/// fails: events are best effort.
#[derive(Debug, Clone)]
pub struct Recorder {
    notes: mpsc::Sender<Note>,
}

impl Recorder {
    /// Starts to record as `component` (for example `koord-scheduler`) on `host`. What waits when
    /// `shutdown` is cancelled is still sent.
    #[must_use]
    pub fn start(
        client: kube::Client,
        component: &str,
        host: &str,
        clock: Clock,
        shutdown: CancellationToken,
    ) -> Self {
        let (notes, waiting) = mpsc::channel(BACKLOG);
        let writer = Writer {
            client,
            source: EventSource {
                component: Some(component.to_owned()),
                host: Some(host.to_owned()).filter(|host| !host.is_empty()),
            },
            clock,
            correlator: Correlator::default(),
        };
        tokio::spawn(writer.run(waiting, shutdown));
        Self { notes }
    }

    /// A recorder that drops everything, for dry runs.
    #[must_use]
    pub fn silent() -> Self {
        Self {
            notes: mpsc::channel(1).0,
        }
    }

    /// Records an event about `object`.
    pub fn event(
        &self,
        object: ObjectReference,
        severity: Severity,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.send(object, severity, reason, None, message.into());
    }

    /// Records an event about `object`, naming what was being done (for example `Binding`).
    pub fn event_with_action(
        &self,
        object: ObjectReference,
        severity: Severity,
        reason: &str,
        action: &str,
        message: impl Into<String>,
    ) {
        self.send(
            object,
            severity,
            reason,
            Some(action.to_owned()),
            message.into(),
        );
    }

    fn send(
        &self,
        object: ObjectReference,
        severity: Severity,
        reason: &str,
        action: Option<String>,
        message: String,
    ) {
        let note = Note {
            object,
            severity,
            reason: reason.to_owned(),
            action,
            message,
        };
        if self.notes.try_send(note).is_err() {
            tracing::debug!(reason, "event dropped");
        }
    }
}

/// A reference to `object`, for events about it.
#[must_use]
pub fn reference<K: kube::Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// The one task that correlates and sends.
struct Writer {
    client: kube::Client,
    source: EventSource,
    clock: Clock,
    correlator: Correlator,
}

impl Writer {
    async fn run(mut self, mut waiting: mpsc::Receiver<Note>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                note = waiting.recv() => match note {
                    Some(note) => self.write(note).await,
                    None => return,
                },
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn write(&mut self, note: Note) {
        let now = self.clock.now();
        let event = self.event(note, now);
        let (verdict, event) = self.correlator.judge(event, now);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: kube::Api<Event> = kube::Api::namespaced(self.client.clone(), &namespace);
        let name = event.metadata.name.clone().unwrap_or_default();
        let sent = match verdict {
            Verdict::Drop => return,
            Verdict::Create => api.create(&PostParams::default(), &event).await,
            Verdict::Count => {
                let patch = json!({
                    "count": event.count,
                    "lastTimestamp": event.last_timestamp,
                    "message": event.message,
                });
                match api
                    .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await
                {
                    // It outlived its time to live: start again.
                    Err(error) if is_not_found(&error) => {
                        api.create(&PostParams::default(), &event).await
                    }
                    other => other,
                }
            }
        };
        if let Err(error) = sent {
            tracing::warn!(event = %name, namespace, %error, "event not recorded");
        }
    }

    fn event(&self, note: Note, now: jiff::Timestamp) -> Event {
        let Note {
            object,
            severity,
            reason,
            action,
            message,
        } = note;
        let namespace = object
            .namespace
            .clone()
            .filter(|namespace| !namespace.is_empty());
        let name = object.name.clone().unwrap_or_default();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                // Events about cluster-scoped objects live in the default namespace.
                namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            involved_object: object,
            reason: Some(reason),
            message: Some(message),
            type_: Some(severity.as_str().to_owned()),
            action,
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            reporting_component: self.source.component.clone(),
            reporting_instance: self.source.host.clone().or(Some(String::new())),
            source: Some(self.source.clone()),
            ..Event::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::in_process;
    use crate::testing;
    use http::StatusCode;
    use parking_lot::Mutex;
    use serde_json::Value;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn repeats_are_counted_on_one_event_and_lost_ones_start_again() {
        let seen = Arc::new(Mutex::new(Vec::<(String, String, Value)>::new()));
        let sink = seen.clone();
        let client = in_process(testing::answer(move |request| {
            let body: Value = serde_json::from_slice(request.body()).unwrap();
            let mut seen = sink.lock();
            seen.push((
                request.method().to_string(),
                request.uri().path().to_owned(),
                body,
            ));
            if seen.len() == 3 {
                let gone = json!({"status": "Failure", "code": 404, "message": "", "reason": ""});
                return (StatusCode::NOT_FOUND, gone);
            }
            (StatusCode::OK, json!(Event::default()))
        }));
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let shutdown = CancellationToken::new();
        let recorder = Recorder::start(client, "tester", "h", clock, shutdown.clone());
        let object = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some("n1".to_owned()),
            ..ObjectReference::default()
        };
        for _ in 0..3 {
            recorder.event(object.clone(), Severity::Warning, "Odd", "it is odd");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let seen = seen.lock();
        let methods: Vec<_> = seen.iter().map(|(method, ..)| method.as_str()).collect();
        assert_eq!(methods, ["POST", "PATCH", "PATCH", "POST"]);
        assert_eq!(seen[0].1, "/api/v1/namespaces/default/events");
        let first = &seen[0].2;
        assert_eq!(first["type"], "Warning");
        assert_eq!(first["source"], json!({"component": "tester", "host": "h"}));
        assert_eq!(first["involvedObject"]["name"], "n1");
        let name = first["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("n1."), "{name}");
        assert_eq!(
            seen[1].1,
            format!("/api/v1/namespaces/default/events/{name}")
        );
        assert_eq!(seen[1].2["count"], 2);
        assert_eq!(seen[2].2["count"], 3);
        assert_eq!(seen[3].2["count"], 3);
    }
}
