//! Events: what happened to an object, for people, without flooding the API server.
//!
//! The rules are client-go's: repeats of the same event raise its count; many similar events (same
//! but for the message) are folded into one; one source may say only so much about one object.

mod correlate;

use correlate::{Correlator, Verdict};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use koord_app::Clock;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::patch::is_not_found;

/// How many events may wait to be sent; more are dropped, and their number is logged.
const BACKLOG: usize = 10_000;

/// How many events are on their way to the API server at a time: a scheduler binds thousands of pods in a second
/// and says so of each, and one request after the other would fall behind by the time that a request takes.
const UNDER_WAY: usize = 32;

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

/// A client of its own for events, so that they do not take from the requests per second of what is more urgent.
#[derive(Clone)]
pub struct EventClient(pub kube::Client);

impl std::fmt::Debug for EventClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventClient")
    }
}

/// Records events in the background. Clones share one backlog. Recording never blocks and never
/// fails: events are best effort.
#[derive(Debug, Clone)]
pub struct Recorder {
    notes: mpsc::Sender<Note>,
    dropped: Arc<AtomicU64>,
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
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            client,
            source: EventSource {
                component: Some(component.to_owned()),
                host: Some(host.to_owned()).filter(|host| !host.is_empty()),
            },
            clock,
            correlator: Correlator::default(),
            dropped: dropped.clone(),
        };
        tokio::spawn(writer.run(waiting, shutdown));
        Self { notes, dropped }
    }

    /// A recorder that drops everything, for dry runs.
    #[must_use]
    pub fn silent() -> Self {
        Self {
            notes: mpsc::channel(1).0,
            dropped: Arc::default(),
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
            self.dropped.fetch_add(1, Ordering::Relaxed);
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

/// The one task that correlates events and hands them out to be sent.
struct Writer {
    client: kube::Client,
    source: EventSource,
    clock: Clock,
    correlator: Correlator,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    async fn run(mut self, mut waiting: mpsc::Receiver<Note>, shutdown: CancellationToken) {
        // What is on its way, and the names of these events: the count of one must not overtake its making.
        let (mut sending, mut names) = (FuturesUnordered::new(), HashSet::<String>::new());
        // An event whose predecessor is on its way. What comes after it waits, too.
        let mut held: Option<(Verdict, Event)> = None;
        loop {
            if let Some((verdict, event)) = held.take_if(|(_, event)| !names.contains(name(event)))
            {
                names.insert(name(&event).to_owned());
                sending.push(send(self.client.clone(), verdict, event));
            }
            let has_room = held.is_none() && sending.len() < UNDER_WAY;
            tokio::select! {
                biased;
                Some(sent) = sending.next() => {
                    names.remove::<String>(&sent);
                }
                note = waiting.recv(), if has_room => match note {
                    Some(note) => {
                        self.tell_dropped(waiting.is_empty());
                        held = self.judge(note);
                    }
                    None => break,
                },
                () = shutdown.cancelled(), if has_room => break,
            }
        }
        while sending.next().await.is_some() {}
    }

    /// Logs how many events were dropped, when nothing waits any more or they have become many.
    fn tell_dropped(&self, is_over: bool) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > 0 && (is_over || dropped >= BACKLOG as u64) {
            self.dropped.fetch_sub(dropped, Ordering::Relaxed);
            tracing::warn!(dropped, "events dropped, as {BACKLOG} waited to be sent");
        }
    }

    /// What is to be sent for `note`, if anything.
    fn judge(&mut self, note: Note) -> Option<(Verdict, Event)> {
        let now = self.clock.now();
        let event = self.event(note, now);
        let (verdict, event) = self.correlator.judge(event, now);
        (!matches!(verdict, Verdict::Drop)).then_some((verdict, event))
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

fn name(event: &Event) -> &str {
    event.metadata.name.as_deref().unwrap_or_default()
}

/// Sends `event`, and returns its name.
async fn send(client: kube::Client, verdict: Verdict, event: Event) -> String {
    let namespace = event.metadata.namespace.clone().unwrap_or_default();
    let api: kube::Api<Event> = kube::Api::namespaced(client, &namespace);
    let name = name(&event).to_owned();
    let params = PostParams::default();
    let create = || api.create(&params, &event);
    let sent = match verdict {
        Verdict::Drop => return name,
        Verdict::Create => create().await,
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
                Err(error) if is_not_found(&error) => create().await,
                other => other,
            }
        }
    };
    if let Err(error) = sent {
        tracing::warn!(event = %name, namespace, %error, "event not recorded");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::in_process;
    use crate::testing;
    use http::StatusCode;
    use parking_lot::Mutex;
    use serde_json::Value;
    use std::time::Duration;

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

    /// A server that takes 100 ms for each request, and what it was asked: the method and the end of the path.
    fn slow(asked: &Arc<Mutex<Vec<(String, String)>>>) -> kube::Client {
        let asked = asked.clone();
        in_process(tower::service_fn(move |request: http::Request<_>| {
            let path = request.uri().path().rsplit('/').next().unwrap().to_owned();
            asked.lock().push((request.method().to_string(), path));
            async {
                let _: kube::client::Body = request.into_body();
                tokio::time::sleep(Duration::from_millis(100)).await;
                let body = serde_json::to_vec(&Event::default()).unwrap();
                Ok::<_, tower::BoxError>(http::Response::new(kube::client::Body::from(body)))
            }
        }))
    }

    fn node(number: usize) -> ObjectReference {
        ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(format!("n{number}")),
            ..ObjectReference::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_events_are_under_way_at_a_time_but_no_count_overtakes_its_event() {
        let asked = Arc::default();
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let shutdown = CancellationToken::new();
        let recorder = Recorder::start(slow(&asked), "tester", "h", clock, shutdown.clone());
        let say = |number| recorder.event(node(number), Severity::Normal, "Well", "it is well");
        (0..2 * UNDER_WAY).for_each(say);
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(asked.lock().len(), UNDER_WAY);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(asked.lock().len(), 2 * UNDER_WAY);
        tokio::time::sleep(Duration::from_millis(100)).await;

        // The second and third of these repeat the first; the fourth is behind them.
        asked.lock().clear();
        [1000, 1000, 1000, 1001].into_iter().for_each(say);
        // What waits when all is over is still sent.
        shutdown.cancel();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(asked.lock().len(), 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = asked.lock();
        let methods: Vec<_> = asked.iter().map(|(method, _)| method.as_str()).collect();
        assert_eq!(methods, ["POST", "PATCH", "PATCH", "POST"]);
        assert!(
            asked[1].1.starts_with("n1000.") && asked[1] == asked[2],
            "{asked:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_much_is_dropped_and_counted() {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let asked = Arc::default();
        let recorder = Recorder::start(slow(&asked), "t", "h", clock, CancellationToken::new());
        for number in 0..BACKLOG + 7 {
            recorder.event(node(number), Severity::Normal, "Well", "it is well");
        }
        assert_eq!(recorder.dropped.load(Ordering::Relaxed), 7);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(asked.lock().len(), BACKLOG);
        assert_eq!(recorder.dropped.load(Ordering::Relaxed), 0, "was told");
    }
}
