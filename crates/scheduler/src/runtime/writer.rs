//! Passes decisions on to the tasks that write them to the API.
//!
//! The task that decides only determines what is written, and in which order. Formatting, JSON and calls are
//! left to separate tasks ([`WriterContext`]). Requests are small, and each future is created where it is polled: it
//! takes several kilobytes, which would be copied for each pod.

use super::condition::may_need_write;
use super::evict::Evictions;
use super::gate::Gate;
use super::writer_context::{FailedAttempt, WriterContext};
use crate::engine::{BindRequest, ExtenderCall, Failure};
use crate::framework::{BindPlan, MetricSamples, Problem, Write};
use crate::state::{Booked, PodInfo};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ObjectReference;
use koord_kube::events::Severity;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The smallest number of stored writes at which the finished ones are removed.
const MIN_SWEEP_LEN: usize = 4096;

/// Sends writes with bounded concurrency, and in order per object.
pub(super) struct Writer {
    context: Arc<WriterContext>,
    /// The last write to each object; the next write to it waits for this one.
    last: FxHashMap<Arc<str>, JoinHandle<()>>,
    /// The number of objects at which finished writes are removed next.
    sweep_at: usize,
    /// Pods whose nomination was written and that are neither bound nor deleted.
    nominated: FxHashSet<Arc<str>>,
    /// The number of pending bindings.
    pub(super) binding: usize,
}

impl Writer {
    pub(super) fn new(context: WriterContext) -> Self {
        Self {
            context: Arc::new(context),
            last: FxHashMap::default(),
            sweep_at: MIN_SWEEP_LEN,
            nominated: FxHashSet::default(),
            binding: 0,
        }
    }

    /// Returns the gate that all writes pass.
    pub(super) fn gate(&self) -> Gate {
        self.context.gate.clone()
    }

    /// Calls extenders; the result arrives as a message.
    pub(super) fn consult(&self, call: ExtenderCall) {
        let context = self.context.clone();
        tokio::spawn(async move { Box::pin(context.consult(call)).await });
    }

    /// Binds a pod; the result arrives as a message.
    pub(super) fn bind(&mut self, request: BindRequest) {
        self.binding += 1;
        if !self.nominated.is_empty() {
            self.nominated.remove(&request.pod.uid);
        }
        let mut before: Vec<_> = self.last.remove(&request.pod.uid).into_iter().collect();
        // Earlier writes of plugins to the objects of a placement come before it, later ones after it.
        let mut guard = None;
        if let BindPlan::Writes(writes) = &request.plan {
            let token = CancellationToken::new();
            // Each target once, or the placement would wait for itself.
            let targets: FxHashSet<Arc<str>> = writes.iter().map(target).collect();
            for target in targets {
                let under_way = tokio::spawn(token.clone().cancelled_owned());
                before.extend(self.last.insert(target, under_way));
            }
            guard = Some(token.drop_guard());
        }
        let context = self.context.clone();
        tokio::spawn(async move {
            let _guard = guard;
            context.will_bind();
            for before in before {
                let _ = before.await;
            }
            Box::pin(context.bind(request)).await;
        });
    }

    /// Reports why a pod was not scheduled: an event always, the condition if it changed.
    pub(super) fn report(&mut self, refused: FailedAttempt) {
        let key = refused.failure.pod.uid.clone();
        let failure = refused.failure.clone();
        if failure.nominated.is_some() || failure.pod.nominated.is_some() {
            self.nominated.insert(key.clone());
        }
        self.enqueue(
            key,
            move |context| context.record_failure(&failure),
            |context| Box::pin(async move { context.write_condition(refused).await }),
        );
    }

    /// Returns true if the pod's condition may have to be written.
    pub(super) fn may_need_condition(&self, failure: &Failure) -> bool {
        let has_nomination = self.nominated.contains(&failure.pod.uid);
        !failure.pod.is_holder() && may_need_write(failure, has_nomination)
    }

    /// Writes the nomination of a pod that will be bound later, so that other components do not make room for
    /// it; an empty `node` clears it.
    pub(super) fn expect(&mut self, pod: Arc<PodInfo>, node: Arc<str>) {
        self.nominated.insert(pod.uid.clone());
        self.enqueue(pod.uid.clone(), no_op, |context| {
            Box::pin(async move { context.expect(pod, node).await })
        });
    }

    /// Removes the recorded nomination of a deleted pod.
    pub(super) fn pod_deleted(&mut self, uid: &str) {
        if !self.nominated.is_empty()
            && let Some(uid) = self.nominated.take(uid)
        {
            self.enqueue(uid.clone(), no_op, |context| {
                Box::pin(async move { context.remove_nomination(&uid) })
            });
        }
    }

    /// Returns the durations of writes since the last call.
    pub(super) fn take_timings(&self) -> MetricSamples {
        self.context.take_timings()
    }

    /// Sends a write that a plugin requested. Writes to one object are sent in order.
    pub(super) fn write(&mut self, write: Write) {
        let target = target(&write);
        self.enqueue(target.clone(), no_op, |context| {
            Box::pin(async move { context.write(write, target).await })
        });
    }

    /// Writes why a pod waits that had no scheduling cycle of its own to its condition.
    pub(super) fn explain(&mut self, pod: Arc<PodInfo>, message: String) {
        let now = self.context.clock.now();
        self.enqueue(pod.uid.clone(), no_op, move |context| {
            Box::pin(async move { context.explain(pod, message, now).await })
        });
    }

    /// Evicts the victims of a preemption: condition `DisruptionTarget`, deletion, event.
    pub(super) fn evict(
        &mut self,
        preemptor: Arc<PodInfo>,
        node: Arc<str>,
        victims: Vec<Arc<PodInfo>>,
    ) {
        let (metrics, now) = (self.context.metrics.clone(), self.context.clock.now());
        let evictions = Arc::new(Evictions::new(metrics, preemptor, node, now));
        for victim in victims {
            let (evicted, by) = (victim.clone(), evictions.clone());
            let evictions = evictions.clone();
            self.enqueue(
                victim.uid.clone(),
                move |context| context.record_eviction(&evicted, &by),
                |context| Box::pin(async move { context.evict(&victim, &evictions).await }),
            );
        }
    }

    /// Runs `first` soon, and the future of `then` after everything that was queued under `key` before.
    fn enqueue(
        &mut self,
        key: Arc<str>,
        first: impl FnOnce(&WriterContext) + Send + 'static,
        then: impl FnOnce(Arc<WriterContext>) -> BoxFuture<'static, ()> + Send + 'static,
    ) {
        let before = self.last.remove(&key);
        let context = self.context.clone();
        let task = tokio::spawn(async move {
            first(&context);
            if let Some(before) = before {
                let _ = before.await;
            }
            then(context).await;
        });
        self.last.insert(key, task);
        if self.last.len() > self.sweep_at {
            self.last.retain(|_, task| !task.is_finished());
            // With many pending writes, checking each time would take longer than writing.
            self.sweep_at = MIN_SWEEP_LEN.max(2 * self.last.len());
        }
    }

    /// Reports an invalid object in a log message and an event.
    pub(super) fn problem(&self, problem: &Problem) {
        tracing::warn!(
            kind = problem.kind,
            namespace = problem.namespace,
            name = problem.name,
            problem = problem.message,
            "invalid object"
        );
        let optional = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let object = ObjectReference {
            kind: Some(problem.kind.to_owned()),
            namespace: optional(&problem.namespace),
            name: optional(&problem.name),
            uid: optional(&problem.uid),
            ..ObjectReference::default()
        };
        let message = problem.message.clone();
        self.context
            .recorder
            .event(object, Severity::Warning, "InvalidConfiguration", message);
    }
}

/// Does nothing: the step for writes that need none before they wait for earlier ones.
fn no_op(_: &WriterContext) {}

/// Returns the key of the object that a write concerns, under which writes are ordered.
fn target(write: &Write) -> Arc<str> {
    format!("{}/{}/{}", write.plural, write.namespace, write.name).into()
}

/// Returns the reference for events: to the pod, or to the object it stands for.
pub(super) fn reference(pod: &PodInfo) -> ObjectReference {
    match pod.booked() {
        Booked::Holder(object) => object.clone(),
        Booked::Pod(pod) => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name.to_string()),
            namespace: Some(pod.namespace.to_string()),
            uid: Some(pod.uid.to_string()),
            resource_version: pod.resource_version.as_deref().map(str::to_owned),
            field_path: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::condition::tests::failure;
    use super::super::extender::Extenders;
    use super::super::monitor::{Limits, Monitor};
    use super::super::writer_context::WriterState;
    use super::*;
    use crate::framework::Message;
    use crate::framework::{PodPatch, Verb};
    use crate::metrics::Metrics;
    use koord_kube::client::in_process;
    use koord_kube::events::Recorder;
    use serde_json::{Value, json};
    use std::time::Duration;
    use tokio::sync::{Semaphore, mpsc};

    fn context(client: koord_kube::Client, sender: mpsc::Sender<Message>) -> WriterContext {
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let limits = Limits {
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
        };
        WriterContext {
            client,
            recorder: Recorder::silent(),
            clock: koord_app::Clock::system(),
            gate: Gate::new(8),
            sender,
            monitor: Monitor::start(limits, metrics.clone(), CancellationToken::new()),
            metrics,
            names: Vec::new(),
            extenders: Extenders::default(),
            annotate_bindings: false,
            state: WriterState::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn written_nomination_counts_before_pod_shows_it() {
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let api = axum::Router::new().fallback(move |request: axum::extract::Request| {
            let arrived = arrived.clone();
            async move {
                let body = axum::body::to_bytes(request.into_body(), usize::MAX).await;
                let body: Value = serde_json::from_slice(&body.unwrap()).unwrap();
                let status = &body["status"];
                let text = status["conditions"][0]["message"].as_str();
                let node = match status.get("nominatedNodeName") {
                    None => "unsaid",
                    Some(node) => node.as_str().unwrap_or("none"),
                };
                let _ = arrived.send(format!("{} {node}", text.unwrap_or("-")));
                axum::Json(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}))
            }
        });
        let mut next = async || {
            let arrival = tokio::time::timeout(Duration::from_secs(60), arrivals.recv());
            arrival.await.ok().flatten().unwrap_or_default()
        };
        let (sender, _messages) = mpsc::channel(8);
        let mut writer = Writer::new(context(in_process(api), sender));
        // The pod's status shows nothing of this in the meantime.
        let failed = |message: &str, nominated: Option<&str>| Failure {
            message: message.to_owned().into(),
            nominated: nominated.map(str::to_owned),
            ..failure(json!({"type": "Ready", "status": "False"}))
        };
        let refused = |failure| FailedAttempt {
            failure: Arc::new(failure),
            nearest: Vec::new(),
            time: koord_app::Clock::system().now(),
        };
        let pod = failed("", None).pod;
        writer.expect(pod.clone(), "n1".into());
        assert_eq!(next().await, "- n1");
        writer.report(refused(failed("one", Some("n1"))));
        assert_eq!(next().await, "one n1");
        writer.explain(pod.clone(), "two".to_owned());
        assert_eq!(next().await, "two n1");
        writer.expect(pod.clone(), "n1".into());
        writer.expect(pod.clone(), "".into());
        assert_eq!(
            next().await,
            "- none",
            "it is taken back, and not reported twice before"
        );
        writer.report(refused(failed("three", None)));
        assert_eq!(next().await, "three none");
        writer.expect(pod.clone(), "".into());
        writer.expect(pod.clone(), "n2".into());
        assert_eq!(next().await, "- n2");
        // After deletion and re-creation it starts from scratch.
        writer.pod_deleted(&pod.uid);
        writer.report(refused(failed("four", None)));
        assert_eq!(next().await, "four unsaid");
    }

    /// Creates a patch that sets the annotation `said` of object `name` to `text`.
    fn annotate(plural: &'static str, name: &str, text: &str) -> Write {
        Write {
            group: "",
            version: "v1",
            plural,
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            verb: Verb::Patch(json!({"metadata": {"annotations": {"said": text}}})),
            timed: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn writes_to_one_object_are_sent_in_order() {
        // An API server that blocks requests for pod `p` until it may go on.
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let go = Arc::new(Semaphore::new(0));
        let hold = go.clone();
        let api = axum::Router::new().fallback(move |request: axum::extract::Request| {
            let (arrived, hold) = (arrived.clone(), hold.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let name = head.uri.path().rsplit('/').next().unwrap_or_default();
                let text = body["metadata"]["annotations"]["said"].as_str();
                let line = format!("{name} {}", text.unwrap_or_default());
                let _ = arrived.send(line);
                if name == "p" {
                    hold.acquire().await.unwrap().forget();
                }
                axum::Json(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}))
            }
        });
        let mut next = async || {
            let arrival = tokio::time::timeout(Duration::from_secs(60), arrivals.recv());
            arrival.await.ok().flatten().unwrap_or_default()
        };
        let (sender, mut messages) = mpsc::channel(8);
        let mut writer = Writer::new(context(in_process(api), sender));
        let request = BindRequest {
            pod: failure(json!({"type": "Ready", "status": "False"})).pod,
            node: "n".into(),
            patch: PodPatch::default(),
            plan: BindPlan::Writes(vec![
                annotate("pods", "p", "taken"),
                annotate("things", "r", "first"),
                annotate("things", "r", "placed"),
            ]),
            profile: 0,
            binder: "Test",
            extender: None,
        };
        writer.write(annotate("pods", "p", "free"));
        assert_eq!(next().await, "p free");
        // A write for another pod does not wait.
        writer.bind(request);
        writer.write(annotate("pods", "q", "one"));
        assert_eq!(next().await, "q one");
        go.add_permits(1);
        assert_eq!(next().await, "p taken");
        writer.write(annotate("pods", "p", "free again"));
        writer.write(annotate("pods", "q", "two"));
        assert_eq!(next().await, "q two");
        go.add_permits(1);
        assert_eq!(next().await, "r first");
        assert_eq!(next().await, "r placed");
        assert_eq!(next().await, "p free again");
        let bound = messages.recv().await;
        assert!(matches!(bound, Some(Message::Bound { result: Ok(()), .. })));
    }
}
