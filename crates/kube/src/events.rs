//! Records Kubernetes Events about objects without flooding the API server.
//!
//! The rules are client-go's: repeats of an event raise its count; many similar events (equal except for the
//! message) are folded into one; a source may send a limited number of events about one object.

mod correlate;

use correlate::{Correlator, EventAction};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use koord_app::Clock;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::failure_log::causes;
use crate::patch::is_not_found;

/// Maximum number of events that wait to be sent; further events are dropped, and their number is logged.
const BACKLOG: usize = 10_000;

/// Maximum number of concurrent requests. A scheduler binds thousands of pods per second, with an event for
/// each of them; one request at a time would be too slow.
const MAX_REQUESTS: usize = 32;

/// Number of attempts to send an event if the server is unreachable, and the delay between them.
const MAX_ATTEMPTS: u32 = 12;
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Value of the field `type` of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// An informational event.
    Normal,
    /// A problem.
    Warning,
}

impl Severity {
    /// Returns the value of the field `type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event to record.
#[derive(Debug, Clone)]
struct EventDraft {
    object: ObjectReference,
    severity: Severity,
    reason: String,
    action: Option<String>,
    message: String,
}

/// A separate client for events, so that they do not use up the request rate of more urgent requests.
#[derive(Clone)]
pub struct EventClient(pub kube::Client);

impl std::fmt::Debug for EventClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventClient")
    }
}

/// Records events in the background. Clones share one backlog. Recording never blocks and never fails: events
/// are best effort.
#[derive(Debug, Clone)]
pub struct Recorder {
    drafts: mpsc::Sender<EventDraft>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Starts to record events as `component` (for example `koord-scheduler`) on `host`. Events that wait
    /// when `shutdown` is cancelled are still sent.
    #[must_use]
    pub fn start(
        client: kube::Client,
        component: &str,
        host: &str,
        clock: Clock,
        shutdown: CancellationToken,
    ) -> Self {
        let (drafts, receiver) = mpsc::channel(BACKLOG);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            client,
            source: EventSource {
                component: Some(component.to_owned()),
                host: Some(host.to_owned()).filter(|host| !host.is_empty()),
            },
            clock,
            last: jiff::Timestamp::MIN,
            correlator: Correlator::default(),
            dropped: dropped.clone(),
        };
        tokio::spawn(writer.run(receiver, shutdown));
        Self { drafts, dropped }
    }

    /// Returns a recorder that drops all events, for dry runs.
    #[must_use]
    pub fn silent() -> Self {
        Self {
            drafts: mpsc::channel(1).0,
            dropped: Arc::default(),
        }
    }

    /// Waits until all recorded events are sent; `shutdown` must be cancelled first.
    pub async fn finished(&self) {
        self.drafts.closed().await;
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

    /// Records an event about `object` with the action that was being done (for example `Binding`).
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
        let draft = EventDraft {
            object,
            severity,
            reason: reason.to_owned(),
            action,
            message,
        };
        if self.drafts.try_send(draft).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns a reference to `object`, for events about it.
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

/// The task that correlates events and starts their requests.
struct Writer {
    client: kube::Client,
    source: EventSource,
    clock: Clock,
    /// Time of the last event. It is part of the event's name, so no two events have the same time.
    last: jiff::Timestamp,
    correlator: Correlator,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    /// Sends events concurrently, but those with the same name one after the other.
    async fn run(mut self, mut drafts: mpsc::Receiver<EventDraft>, shutdown: CancellationToken) {
        // The requests in progress, and the names of their events: an update of the count must not overtake
        // the creation.
        let (mut sending, mut names) = (FuturesUnordered::new(), HashSet::<String>::new());
        // An event that waits for a request about the same name. Later events wait behind it.
        let mut blocked: Option<(EventAction, Event)> = None;
        // Number of events that wait for a retry because the server is unreachable. Other events wait too:
        // they would fail as well, and the backlog keeps them.
        let retrying = Arc::new(AtomicUsize::new(0));
        loop {
            if let Some((action, event)) =
                blocked.take_if(|(_, event)| !names.contains(name(event)))
            {
                names.insert(name(&event).to_owned());
                let sender = EventSender {
                    client: self.client.clone(),
                    retrying: retrying.clone(),
                    shutdown: shutdown.clone(),
                };
                sending.push(sender.send(action, event));
            }
            let is_reached = retrying.load(Ordering::Relaxed) == 0;
            let has_room = blocked.is_none() && is_reached && sending.len() < MAX_REQUESTS;
            tokio::select! {
                biased;
                Some(sent) = sending.next() => {
                    names.remove::<String>(&sent);
                }
                draft = drafts.recv(), if has_room => match draft {
                    Some(draft) => {
                        self.log_dropped(drafts.is_empty());
                        blocked = self.correlate(draft);
                    }
                    None => break,
                },
                () = shutdown.cancelled(), if has_room || !is_reached => break,
            }
        }
        while sending.next().await.is_some() {}
    }

    /// Logs the number of dropped events when the backlog is empty or the number is large.
    fn log_dropped(&self, is_over: bool) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > 0 && (is_over || dropped >= BACKLOG as u64) {
            self.dropped.fetch_sub(dropped, Ordering::Relaxed);
            tracing::warn!(
                dropped,
                "dropped events because {BACKLOG} were waiting to be sent"
            );
        }
    }

    /// Correlates the event of `draft`; returns the request to send, `None` if the event is dropped.
    fn correlate(&mut self, draft: EventDraft) -> Option<(EventAction, Event)> {
        let now = self.clock.now();
        let next = self.last.checked_add(jiff::SignedDuration::from_nanos(1));
        self.last = now.max(next.unwrap_or(now));
        let event = self.event(draft, self.last);
        let (action, event) = self.correlator.correlate(event, now);
        (!matches!(action, EventAction::Drop)).then_some((action, event))
    }

    /// Converts `draft` to an event object of this recorder.
    fn event(&self, draft: EventDraft, now: jiff::Timestamp) -> Event {
        let EventDraft {
            object,
            severity,
            reason,
            action,
            message,
        } = draft;
        let namespace = object
            .namespace
            .clone()
            .filter(|namespace| !namespace.is_empty());
        let name = object.name.clone().unwrap_or_default();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                // Events about cluster-scoped objects are in the default namespace.
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

/// Sends one event, with retries.
struct EventSender {
    client: kube::Client,
    retrying: Arc<AtomicUsize>,
    shutdown: CancellationToken,
}

impl EventSender {
    /// Sends `event`, and returns its name. If the server is unreachable, it retries every ten seconds,
    /// twelve attempts in all; a refusal by the server is not retried. Source: client-go `tools/record`,
    /// `recordToSink`.
    async fn send(self, action: EventAction, event: Event) -> String {
        let name = name(&event).to_owned();
        let mut is_retrying = false;
        for last in (0..MAX_ATTEMPTS).map(|at| at + 1 == MAX_ATTEMPTS) {
            let Err(error) = self.send_once(&action, &event).await else {
                break;
            };
            if last || matches!(error, kube::Error::Api(_)) || self.shutdown.is_cancelled() {
                let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
                tracing::warn!(event = %name, namespace, error = causes(&error), "failed to record event");
                break;
            }
            if !std::mem::replace(&mut is_retrying, true) {
                self.retrying.fetch_add(1, Ordering::Relaxed);
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY_DELAY) => {}
                () = self.shutdown.cancelled() => {}
            }
        }
        if is_retrying {
            self.retrying.fetch_sub(1, Ordering::Relaxed);
        }
        name
    }

    async fn send_once(&self, action: &EventAction, event: &Event) -> Result<(), kube::Error> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let api: crate::Api<Event> = crate::Api::namespaced(self.client.clone(), namespace);
        let create = || self.create(api.resource_url(), event);
        match action {
            EventAction::Drop => Ok(()),
            EventAction::Create => create().await,
            EventAction::Count => {
                let patch = json!({
                    "count": event.count,
                    "lastTimestamp": event.last_timestamp,
                    "message": event.message,
                });
                match api
                    .patch(name(event), &PatchParams::default(), &Patch::Merge(&patch))
                    .await
                {
                    // The event has expired on the server: create it again.
                    Err(error) if is_not_found(&error) => create().await,
                    other => other.map(drop),
                }
            }
        }
    }

    /// Creates `event`. The response repeats it, and is not decoded.
    async fn create(&self, url: &str, event: &Event) -> Result<(), kube::Error> {
        let body = serde_json::to_vec(event).map_err(kube::Error::SerdeError)?;
        let request = kube::core::Request::new(url).create(&PostParams::default(), body);
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client.request_text(request).await.map(drop)
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

    #[tokio::test(start_paused = true)]
    async fn repeated_event_is_counted_and_expired_one_is_recreated() {
        let requests = Arc::new(Mutex::new(Vec::<(String, String, Value)>::new()));
        let sink = requests.clone();
        let client = in_process(testing::answer(move |request| {
            let body: Value = serde_json::from_slice(request.body()).unwrap();
            let mut requests = sink.lock();
            requests.push((
                request.method().to_string(),
                request.uri().path().to_owned(),
                body,
            ));
            if requests.len() == 3 {
                let not_found =
                    json!({"status": "Failure", "code": 404, "message": "", "reason": ""});
                return (StatusCode::NOT_FOUND, not_found);
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
        let requests = requests.lock();
        let methods: Vec<_> = requests
            .iter()
            .map(|(method, ..)| method.as_str())
            .collect();
        assert_eq!(methods, ["POST", "PATCH", "PATCH", "POST"]);
        assert_eq!(requests[0].1, "/api/v1/namespaces/default/events");
        let first = &requests[0].2;
        assert_eq!(first["type"], "Warning");
        assert_eq!(first["source"], json!({"component": "tester", "host": "h"}));
        assert_eq!(first["involvedObject"]["name"], "n1");
        let name = first["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("n1."), "{name}");
        assert_eq!(
            requests[1].1,
            format!("/api/v1/namespaces/default/events/{name}")
        );
        assert_eq!(requests[1].2["count"], 2);
        assert_eq!(requests[2].2["count"], 3);
        assert_eq!(requests[3].2["count"], 3);
    }

    /// Returns a client of a server that takes 100 ms per request; stores method and last path segment of
    /// each request in `requests`.
    fn slow_server(requests: &Arc<Mutex<Vec<(String, String)>>>) -> kube::Client {
        let requests = requests.clone();
        in_process(tower::service_fn(move |request: http::Request<_>| {
            let path = request.uri().path().rsplit('/').next().unwrap().to_owned();
            requests.lock().push((request.method().to_string(), path));
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
    async fn events_are_sent_concurrently_but_counts_after_creation() {
        let requests = Arc::default();
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let shutdown = CancellationToken::new();
        let recorder = Recorder::start(
            slow_server(&requests),
            "tester",
            "h",
            clock,
            shutdown.clone(),
        );
        let say = |number| recorder.event(node(number), Severity::Normal, "Well", "it is well");
        (0..2 * MAX_REQUESTS).for_each(say);
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(requests.lock().len(), MAX_REQUESTS);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(requests.lock().len(), 2 * MAX_REQUESTS);
        tokio::time::sleep(Duration::from_millis(100)).await;

        // The second and third of these repeat the first; the fourth waits behind them.
        requests.lock().clear();
        [1000, 1000, 1000, 1001].into_iter().for_each(say);
        // Waiting events are still sent after the shutdown.
        shutdown.cancel();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(requests.lock().len(), 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let requests = requests.lock();
        let methods: Vec<_> = requests.iter().map(|(method, _)| method.as_str()).collect();
        assert_eq!(methods, ["POST", "PATCH", "PATCH", "POST"]);
        assert!(
            requests[1].1.starts_with("n1000.") && requests[1] == requests[2],
            "{requests:?}"
        );
    }

    /// Returns a client of a server that is unreachable for `from`. Counts all requests in `attempts`, and
    /// stores the object names of those that it then received in `requests`.
    fn unreachable_until(
        from: Duration,
        requests: &Arc<Mutex<Vec<String>>>,
        attempts: &Arc<AtomicU64>,
    ) -> kube::Client {
        let (requests, attempts) = (requests.clone(), attempts.clone());
        let until = tokio::time::Instant::now() + from;
        in_process(tower::service_fn(move |request: http::Request<_>| {
            let (requests, attempts) = (requests.clone(), attempts.clone());
            async move {
                attempts.fetch_add(1, Ordering::Relaxed);
                if tokio::time::Instant::now() < until {
                    return Err(tower::BoxError::from("unreachable"));
                }
                let body: kube::client::Body = request.into_body();
                let body = body.collect_bytes().await?;
                let event: Event = serde_json::from_slice(&body)?;
                requests.lock().extend(event.involved_object.name);
                Ok(http::Response::new(kube::client::Body::from(body.to_vec())))
            }
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_server_delays_all_events_until_retry() {
        let (requests, attempts) = (Arc::default(), Arc::default());
        let client = unreachable_until(Duration::from_secs(95), &requests, &attempts);
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let recorder = Recorder::start(client, "t", "h", clock, CancellationToken::new());
        recorder.event(node(1), Severity::Normal, "Well", "it is well");
        tokio::time::sleep(Duration::from_secs(1)).await;
        for number in 2..5 {
            recorder.event(node(number), Severity::Normal, "Well", "it is well");
        }
        tokio::time::sleep(Duration::from_secs(93)).await;
        assert!(requests.lock().is_empty());
        // The first event at 0, 10, … 90 s, and one more that started before the first failure.
        let tries = attempts.load(Ordering::Relaxed);
        assert!((10..=20).contains(&tries), "{tries}");
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut requests = requests.lock().clone();
        requests.sort();
        assert_eq!(requests, ["n1", "n2", "n3", "n4"]);
    }

    #[tokio::test(start_paused = true)]
    async fn event_is_dropped_after_all_attempts_or_shutdown() {
        let (requests, attempts) = (Arc::default(), Arc::default());
        let client = unreachable_until(Duration::from_secs(200), &requests, &attempts);
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let shutdown = CancellationToken::new();
        let recorder = Recorder::start(client, "t", "h", clock, shutdown.clone());
        recorder.event(node(1), Severity::Normal, "Well", "it is well");
        tokio::time::sleep(Duration::from_secs(150)).await;
        assert_eq!(attempts.load(Ordering::Relaxed), 12);
        recorder.event(node(2), Severity::Normal, "Well", "it is well");
        tokio::time::sleep(Duration::from_secs(5)).await;
        shutdown.cancel();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            attempts.load(Ordering::Relaxed),
            14,
            "once more, and no more"
        );
        assert!(requests.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn events_beyond_the_backlog_are_dropped_and_counted() {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let requests = Arc::default();
        let recorder = Recorder::start(
            slow_server(&requests),
            "t",
            "h",
            clock,
            CancellationToken::new(),
        );
        for number in 0..BACKLOG + 7 {
            recorder.event(node(number), Severity::Normal, "Well", "it is well");
        }
        assert_eq!(recorder.dropped.load(Ordering::Relaxed), 7);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(requests.lock().len(), BACKLOG);
        assert_eq!(recorder.dropped.load(Ordering::Relaxed), 0, "was logged");
    }
}
