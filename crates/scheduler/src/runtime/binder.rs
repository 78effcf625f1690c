//! Writing decisions to the API: bindings, conditions, events.

use super::extender::Extenders;
use super::nearest::says;
use super::placement::send_binding;
use super::send::{NOTHING, send_write};
use super::watch::Message;
use crate::engine::{BindRequest, Consultation, Failure};
use crate::framework::{BindPlan, Problem, Readings, Timed, Write};
use crate::metrics::{Call, Metrics};
use crate::state::{Booked, PodInfo};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use koord_kube::api::{DeleteParams, Preconditions};
use koord_kube::events::{Recorder, Severity};
use koord_kube::{Api, Client, patch};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The evictions of one preemption; measured when the last of them has ended.
struct Evictions {
    metrics: Metrics,
    started: tokio::time::Instant,
    failed: AtomicBool,
}

impl Drop for Evictions {
    fn drop(&mut self) {
        let ok = !self.failed.load(Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        self.metrics.evicted(ok, seconds);
    }
}

/// Sends writes with bounded concurrency; per pod in order.
pub(super) struct Writer {
    client: Client,
    recorder: Recorder,
    clock: koord_app::Clock,
    gate: Gate,
    sender: mpsc::Sender<Message>,
    metrics: Metrics,
    /// The last status write of a pod: what is written next about the pod waits for it.
    statuses: FxHashMap<Arc<str>, JoinHandle<()>>,
    /// Where pods were last said to go that are not bound yet; empty: nowhere any more.
    expected: FxHashMap<Arc<str>, Arc<str>>,
    /// Who is asked, and may bind.
    pub(super) extenders: Extenders,
    /// Bindings under way.
    pub(super) binding: usize,
    /// Whether annotations ride on the binding, where nothing else has to be patched.
    pub(super) annotate_bindings: bool,
    /// How long writes of plugins took, where they want to know.
    timings: Arc<Mutex<Readings>>,
    /// Targets of writes that do not exist: said once.
    nowhere: Arc<Mutex<FxHashSet<Arc<str>>>>,
}

/// Says when writes may be sent. Whoever has lost the leadership, or gives it up, must have stopped
/// writing before somebody else decides.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    permits: Arc<Semaphore>,
    all: u32,
    /// No write begins any more.
    closing: CancellationToken,
    /// Those that have begun are given up, too.
    closed: CancellationToken,
}

impl Gate {
    fn new(concurrency: usize) -> Self {
        let all = u32::try_from(concurrency.max(1)).unwrap_or(u32::MAX);
        Self {
            permits: Arc::new(Semaphore::new(concurrency.max(1))),
            all,
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Does `work` in its turn, unless the gate is closed before.
    async fn pass<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let _permit = tokio::select! {
            biased;
            () = self.closing.cancelled() => return None,
            permit = self.permits.acquire() => permit.ok()?,
        };
        tokio::select! {
            biased;
            () = self.closed.cancelled() => None,
            done = work => Some(done),
        }
    }

    /// Lets nobody in any more, and waits for those who are, but not for ever.
    pub(super) async fn close(&self, patience: Duration) {
        self.closing.cancel();
        let empty = self.permits.acquire_many(self.all);
        if tokio::time::timeout(patience, empty).await.is_err() {
            tracing::warn!("writes did not end in time; they are given up");
        }
        self.closed.cancel();
    }

    /// Closes the gate at once when it is dropped.
    pub(super) fn guard(&self) -> [DropGuard; 2] {
        [&self.closing, &self.closed].map(|token| token.clone().drop_guard())
    }
}

impl Writer {
    pub(super) fn new(
        client: Client,
        recorder: Recorder,
        clock: koord_app::Clock,
        concurrency: usize,
        sender: mpsc::Sender<Message>,
        metrics: Metrics,
    ) -> Self {
        Self {
            client,
            recorder,
            clock,
            gate: Gate::new(concurrency),
            sender,
            metrics,
            statuses: FxHashMap::default(),
            expected: FxHashMap::default(),
            extenders: Extenders::default(),
            binding: 0,
            annotate_bindings: false,
            timings: Arc::default(),
            nowhere: Arc::default(),
        }
    }

    /// What all writes pass.
    pub(super) fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Asks extenders; the answer arrives as a message.
    pub(super) fn consult(&self, asked: Consultation) {
        let (extenders, sender) = (self.extenders.clone(), self.sender.clone());
        let gate = self.gate.closing.clone();
        tokio::spawn(async move {
            let (uid, ticket) = (asked.pod.uid.clone(), asked.ticket);
            let answer = gate.run_until_cancelled(extenders.answer(asked));
            if let Some(advice) = answer.await {
                let consulted = Message::Consulted {
                    uid,
                    ticket,
                    advice,
                };
                let _ = sender.send(consulted).await;
            }
        });
    }

    /// Binds a pod; the result arrives as a message.
    pub(super) fn bind(&mut self, request: BindRequest) {
        self.binding += 1;
        let mut before: Vec<_> = self.statuses.remove(&request.pod.uid).into_iter().collect();
        // What plugins wrote to the objects of a placement before goes before it, what they write next after.
        let done = CancellationToken::new();
        if let BindPlan::Writes(writes) = &request.plan {
            // Each once: it does not wait for itself.
            let targets: FxHashSet<Arc<str>> = writes.iter().map(target).collect();
            for target in targets {
                let under_way = tokio::spawn(done.clone().cancelled_owned());
                before.extend(self.statuses.insert(target, under_way));
            }
        }
        let done = done.drop_guard();
        // The API server clears the nomination of a pod that is bound.
        self.expected.remove(&request.pod.uid);
        let (client, gate) = (self.client.clone(), self.gate.clone());
        let (recorder, sender) = (self.recorder.clone(), self.sender.clone());
        let together = self.annotate_bindings;
        let extenders = self.extenders.clone();
        let metrics = self.metrics.clone();
        metrics.binding(self.binding);
        metrics.call_queued(Call::Binding);
        let work = async move {
            metrics.call_started(Call::Binding);
            let started = tokio::time::Instant::now();
            let result = send_binding(client, &request, together, &extenders).await;
            let pod = &request.pod;
            match &result {
                Ok(()) => {
                    let about = reference(pod);
                    let what = match pod.booked() {
                        Booked::Holder(object) => object.name.clone().unwrap_or_default(),
                        Booked::Pod(pod) => pod.to_string(),
                    };
                    let message = format!("Successfully assigned {what} to {}", request.node);
                    recorder.event_with_action(
                        about,
                        Severity::Normal,
                        "Scheduled",
                        "Binding",
                        message,
                    );
                }
                Err(error) => {
                    tracing::warn!(%pod, node = %request.node, error = %error.message, "binding failed");
                }
            }
            let seconds = started.elapsed().as_secs_f64();
            metrics.call_ended(Call::Binding, result.is_ok(), seconds);
            let uid = pod.uid.clone();
            let _ = sender
                .send(Message::Bound {
                    uid,
                    result,
                    seconds,
                    profile: request.profile,
                    binder: request.binder,
                })
                .await;
        };
        tokio::spawn(async move {
            let _done = done;
            for before in before {
                let _ = before.await;
            }
            gate.pass(work).await;
        });
    }

    /// Writes why a pod was not placed: an event always, the condition when it changed.
    /// What is `nearest` follows kube-scheduler's text in the condition.
    pub(super) fn report(&mut self, failure: &Failure, nearest: &str) {
        let pod = &failure.pod;
        self.recorder.event_with_action(
            reference(pod),
            Severity::Warning,
            "FailedScheduling",
            "Scheduling",
            failure.message.clone(),
        );
        // Each has a reason of its own, so that they are not folded into one.
        for remark in &failure.remarks {
            self.recorder.event_with_action(
                reference(pod),
                Severity::Warning,
                remark.reason,
                "Scheduling",
                remark.message.clone(),
            );
        }
        self.write_condition(failure, nearest);
    }

    /// Whether the pod's condition has to be written.
    pub(super) fn has_news(&self, failure: &Failure) -> bool {
        !failure.pod.is_holder()
            && status_patch(failure, "", self.expected(failure), self.clock.now()).is_some()
    }

    /// Where the pod of `failure` was said to go.
    fn expected(&self, failure: &Failure) -> Option<&str> {
        self.expected.get(&failure.pod.uid).map(|node| &**node)
    }

    /// Nominates a pod to the node it will be bound to, for those who would make room otherwise; empty: to
    /// none any more.
    pub(super) fn expect(&mut self, pod: Arc<PodInfo>, node: &Arc<str>) {
        let known = match self.expected.get(&pod.uid) {
            Some(said) => Some(said),
            None => pod.nominated.as_ref(),
        };
        if known.is_none_or(|known| known.is_empty()) && node.is_empty() || known == Some(node) {
            return;
        }
        self.expected.insert(pod.uid.clone(), node.clone());
        let said = (!node.is_empty()).then_some(&**node);
        let status = json!({
            "metadata": {"uid": &*pod.uid},
            "status": {"nominatedNodeName": said},
        });
        self.write_status(pod, status);
    }

    /// Forgets what was said of a pod that is gone.
    pub(super) fn gone(&mut self, uid: &str) {
        if !self.expected.is_empty() {
            self.expected.remove(uid);
        }
    }

    /// What stands for another object has no condition of its own: its plugin writes that object's.
    fn write_condition(&mut self, failure: &Failure, nearest: &str) {
        let key = failure.pod.clone();
        if key.is_holder() {
            return;
        }
        let said = self.expected(failure);
        let Some(status) = status_patch(failure, nearest, said, self.clock.now()) else {
            return;
        };
        // Until the pod shows it, this is what it will show: what is said next goes by that.
        let shown = said.is_some() || key.nominated.is_some();
        match status["status"].get("nominatedNodeName") {
            Some(Value::String(node)) => {
                self.expected.insert(key.uid.clone(), node.as_str().into());
            }
            Some(_) if shown => {
                self.expected.insert(key.uid.clone(), "".into());
            }
            _ => {}
        }
        self.write_status(key, status);
    }

    fn write_status(&mut self, key: Arc<PodInfo>, status: Value) {
        let metrics = self.metrics.clone();
        metrics.call_queued(Call::Status);
        self.in_order(key.uid.clone(), move |client| async move {
            metrics.call_started(Call::Status);
            let started = tokio::time::Instant::now();
            let api: Api<Pod> = Api::namespaced(client, &key.namespace);
            let sent = patch::strategic_status(&api, &key.name, &status).await;
            let seconds = started.elapsed().as_secs_f64();
            metrics.call_ended(Call::Status, sent.is_ok(), seconds);
            match sent {
                Ok(_) => {}
                Err(error) if patch::is_not_found(&error) => {}
                Err(error) => tracing::warn!(pod = %key, %error, "pod status not written"),
            }
        });
    }

    /// How long writes took since the last look.
    pub(super) fn take_timings(&self) -> Readings {
        std::mem::take(&mut *self.timings.lock())
    }

    /// Sends a write that a plugin asked for. Writes to one object go in order.
    pub(super) fn write(&mut self, write: Write) {
        let key = target(&write);
        let timings = self.timings.clone();
        let (nowhere, target) = (self.nowhere.clone(), key.clone());
        self.in_order(key, move |client| async move {
            let started = tokio::time::Instant::now();
            let sent = send_write(&client, &write, NOTHING).await;
            if let Some(Timed(family)) = write.timed {
                let seconds = started.elapsed().as_secs_f64();
                timings.lock().add(family, &[], seconds);
            }
            let Err(error) = sent else {
                nowhere.lock().remove(&target);
                return;
            };
            if error.gone {
                let mut known = nowhere.lock();
                if known.len() > 4096 {
                    known.clear();
                }
                if !known.insert(target) {
                    return;
                }
            }
            let (plural, name) = (write.plural, &write.name);
            tracing::warn!(plural, namespace = write.namespace, name, %error, "write failed");
        });
    }

    /// Makes the condition of a pod that was not tried itself say why it waits.
    pub(super) fn explain(&mut self, pod: Arc<PodInfo>, message: String) {
        // What it was promised, it still is.
        let said = self.expected.get(&pod.uid);
        let nominated = said.map(|node| node.to_string());
        let failure = Failure {
            pod,
            reason: "Unschedulable",
            message,
            nominated,
            diagnosis: None,
            remarks: Vec::new(),
        };
        self.write_condition(&failure, "");
    }

    /// Evicts the victims of a preemption: condition `DisruptionTarget`, deletion, event.
    pub(super) fn evict(&mut self, preemptor: &PodInfo, node: &str, victims: Vec<Arc<PodInfo>>) {
        let now = self.clock.now();
        let evictions = Arc::new(Evictions {
            metrics: self.metrics.clone(),
            started: tokio::time::Instant::now(),
            failed: AtomicBool::new(false),
        });
        for victim in victims {
            let message = format!("Preempted by pod {} on node {node}", preemptor.uid);
            self.recorder.event_with_action(
                reference(&victim),
                Severity::Normal,
                "Preempted",
                "Preempting",
                message,
            );
            let scheduler = preemptor.scheduler_name().to_owned();
            let key = victim.uid.clone();
            let sender = self.sender.clone();
            let evictions = evictions.clone();
            self.in_order(key, move |client| async move {
                let api: Api<Pod> = Api::namespaced(client, &victim.namespace);
                let status = json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [{
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "PreemptionByScheduler",
                    "message": format!("{scheduler}: preempting to accommodate a higher priority pod"),
                    "observedGeneration": victim.object.metadata.generation,
                    "lastProbeTime": null,
                    "lastTransitionTime": seconds(now),
                }]}});
                let marked = patch::strategic_status(&api, &victim.name, &status).await;
                let deleted = match marked {
                    Ok(_) => {
                        let params = DeleteParams {
                            preconditions: Some(Preconditions {
                                uid: Some(victim.uid.to_string()),
                                resource_version: None,
                            }),
                            ..DeleteParams::default()
                        };
                        api.delete(&victim.name, &params).await.map(drop)
                    }
                    Err(error) => Err(error),
                };
                match deleted {
                    Ok(()) => {}
                    Err(error) if patch::is_not_found(&error) => {}
                    Err(error) => {
                        evictions.failed.store(true, Ordering::Relaxed);
                        tracing::warn!(pod = %victim, %error, "victim not evicted");
                        let _ = sender.send(Message::NotEvicted(victim.uid.clone())).await;
                    }
                }
            });
        }
    }

    /// Runs `send` after everything queued under `key` before it.
    fn in_order<F>(&mut self, key: Arc<str>, send: impl FnOnce(Client) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let before = self.statuses.remove(&key);
        let gate = self.gate.clone();
        let sent = send(self.client.clone());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            gate.pass(sent).await;
        });
        self.statuses.insert(key, task);
        if self.statuses.len() > 4096 {
            self.statuses.retain(|_, task| !task.is_finished());
        }
    }

    /// Reports an object that could not be understood.
    pub(super) fn problem(&self, problem: &Problem) {
        tracing::warn!(
            kind = problem.kind,
            namespace = problem.namespace,
            name = problem.name,
            "{}",
            problem.message
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
        self.recorder
            .event(object, Severity::Warning, "InvalidConfiguration", message);
    }
}

/// The object that a write is about, as a key of the order in which it is written to.
fn target(write: &Write) -> Arc<str> {
    format!("{}/{}/{}", write.plural, write.namespace, write.name).into()
}

fn reference(pod: &PodInfo) -> ObjectReference {
    match pod.booked() {
        Booked::Holder(object) => object.clone(),
        Booked::Pod(pod) => koord_kube::events::reference(&*pod.object),
    }
}

/// The patch that makes the pod's condition say `failure`; none when it says so already.
/// `said` is where the pod was expected to go, in vain.
fn status_patch(
    failure: &Failure,
    nearest: &str,
    said: Option<&str>,
    now: jiff::Timestamp,
) -> Option<Value> {
    let status = failure.pod.object.status.as_ref();
    let generation = failure.pod.object.metadata.generation;
    let condition = status
        .and_then(|status| status.conditions.as_ref())
        .and_then(|all| {
            all.iter()
                .find(|condition| condition.type_ == "PodScheduled")
        });
    let same = condition.is_some_and(|condition| {
        condition.status == "False"
            && condition.observed_generation == generation
            && condition.reason.as_deref() == Some(failure.reason)
            && condition
                .message
                .as_deref()
                .is_some_and(|message| says(message, &failure.message))
    });
    let nominated = failure.nominated.as_deref().or(said.map(|_| ""));
    let known = said.or(failure.pod.nominated.as_deref());
    let same_node = nominated.is_none_or(|node| node == known.unwrap_or_default());
    if same && same_node {
        return None;
    }
    let since = condition
        .filter(|condition| condition.status == "False")
        .and_then(|condition| condition.last_transition_time.as_ref())
        .map_or(now, |time| time.0);
    let mut status = json!({"conditions": [{
        "type": "PodScheduled",
        "status": "False",
        "reason": failure.reason,
        "message": format!("{}{nearest}", failure.message),
        "observedGeneration": generation,
        "lastProbeTime": null,
        "lastTransitionTime": seconds(since),
    }]});
    if let Some(node) = nominated {
        status["nominatedNodeName"] = match node {
            "" => Value::Null,
            node => json!(node),
        };
    }
    Some(json!({"metadata": {"uid": &*failure.pod.uid}, "status": status}))
}

/// RFC 3339 with whole seconds, as API servers write it.
fn seconds(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{PodPatch, Verb};
    use koord_kube::client::in_process;
    use koord_model::resources::ResourceTable;

    fn failure(condition: Value) -> Failure {
        let object: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": []},
            "status": {"conditions": [condition]}
        }))
        .unwrap();
        let pod = PodInfo::new(Arc::new(object), &ResourceTable::new()).unwrap();
        Failure {
            pod: Arc::new(pod),
            reason: "Unschedulable",
            message: "0/1 nodes are available: 1 Too many pods.".to_owned(),
            nominated: None,
            diagnosis: None,
            remarks: Vec::new(),
        }
    }

    #[test]
    fn the_condition_is_written_only_when_it_changes_and_keeps_its_transition_time() {
        let now = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let fresh = failure(json!({"type": "Ready", "status": "False"}));
        let patch = status_patch(&fresh, "", None, now).unwrap();
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "2026-01-02T03:04:05Z");
        assert_eq!(condition["reason"], "Unschedulable");

        let mut said = condition.clone();
        assert_eq!(status_patch(&failure(said.clone()), "", None, now), None);
        let elsewhere = status_patch(&failure(said.clone()), "", Some("n"), now).unwrap();
        assert_eq!(
            elsewhere["status"].get("nominatedNodeName"),
            Some(&Value::Null),
            "it does not go where it was said to go"
        );
        let mut changed = failure(said.clone());
        let pod = Arc::make_mut(&mut changed.pod);
        Arc::make_mut(&mut pod.object).metadata.generation = Some(2);
        let patch = status_patch(&changed, "", None, now).unwrap();
        assert_eq!(patch["status"]["conditions"][0]["observedGeneration"], 2);
        said["message"] = json!("another");
        said["lastTransitionTime"] = json!("2025-01-01T00:00:00Z");
        let patch = status_patch(&failure(said), "", None, now).unwrap();
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "2025-01-01T00:00:00Z");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_of_a_pod_counts_before_it_shows() {
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let api = axum::Router::new().fallback(move |request: axum::extract::Request| {
            let arrived = arrived.clone();
            async move {
                let body = axum::body::to_bytes(request.into_body(), usize::MAX).await;
                let body: Value = serde_json::from_slice(&body.unwrap()).unwrap();
                let status = &body["status"];
                let said = status["conditions"][0]["message"].as_str();
                let node = match status.get("nominatedNodeName") {
                    None => "unsaid",
                    Some(node) => node.as_str().unwrap_or("none"),
                };
                let _ = arrived.send(format!("{} {node}", said.unwrap_or("-")));
                axum::Json(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}))
            }
        });
        let mut next = async || {
            let arrival = tokio::time::timeout(Duration::from_secs(60), arrivals.recv());
            arrival.await.ok().flatten().unwrap_or_default()
        };
        let (sender, _messages) = mpsc::channel(8);
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let clock = koord_app::Clock::system();
        let recorder = Recorder::silent();
        let mut writer = Writer::new(in_process(api), recorder, clock, 8, sender, metrics);
        // The pod shows nothing of all this while it goes on.
        let failed = |message: &str, nominated: Option<&str>| Failure {
            message: message.to_owned(),
            nominated: nominated.map(str::to_owned),
            ..failure(json!({"type": "Ready", "status": "False"}))
        };
        let pod = failed("", None).pod;
        writer.expect(pod.clone(), &"n1".into());
        assert_eq!(next().await, "- n1");
        writer.report(&failed("one", Some("n1")), "");
        assert_eq!(next().await, "one n1");
        writer.explain(pod.clone(), "two".to_owned());
        assert_eq!(next().await, "two n1");
        writer.expect(pod.clone(), &"n1".into());
        writer.expect(pod.clone(), &"".into());
        assert_eq!(
            next().await,
            "- none",
            "it is taken back, and not said twice before"
        );
        writer.report(&failed("three", None), "");
        assert_eq!(next().await, "three none");
        writer.expect(pod.clone(), &"".into());
        writer.expect(pod.clone(), &"n2".into());
        assert_eq!(next().await, "- n2");
        // Gone and come again, it starts afresh.
        writer.gone(&pod.uid);
        writer.report(&failed("four", None), "");
        assert_eq!(next().await, "four unsaid");
    }

    /// What is written to `name`: `said`.
    fn says(plural: &'static str, name: &str, said: &str) -> Write {
        Write {
            group: "",
            version: "v1",
            plural,
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            verb: Verb::Patch(json!({"metadata": {"annotations": {"said": said}}})),
            timed: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_placement_and_what_plugins_write_to_its_pods_keep_their_order() {
        // An API that takes its time over pod `p`, as long as it is not allowed to go on.
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
                let said = body["metadata"]["annotations"]["said"].as_str();
                let line = format!("{name} {}", said.unwrap_or_default());
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
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let clock = koord_app::Clock::system();
        let recorder = Recorder::silent();
        let mut writer = Writer::new(in_process(api), recorder, clock, 8, sender, metrics);
        let request = BindRequest {
            pod: failure(json!({"type": "Ready", "status": "False"})).pod,
            node: "n".into(),
            patch: PodPatch::default(),
            plan: BindPlan::Writes(vec![
                says("pods", "p", "taken"),
                says("things", "r", "first"),
                says("things", "r", "placed"),
            ]),
            profile: 0,
            binder: "Test",
            extender: None,
        };
        writer.write(says("pods", "p", "free"));
        assert_eq!(next().await, "p free");
        // Nobody waits for an answer about another pod.
        writer.bind(request);
        writer.write(says("pods", "q", "one"));
        assert_eq!(next().await, "q one");
        go.add_permits(1);
        assert_eq!(next().await, "p taken");
        writer.write(says("pods", "p", "free again"));
        writer.write(says("pods", "q", "two"));
        assert_eq!(next().await, "q two");
        go.add_permits(1);
        assert_eq!(next().await, "r first");
        assert_eq!(next().await, "r placed");
        assert_eq!(next().await, "p free again");
        let bound = messages.recv().await;
        assert!(matches!(bound, Some(Message::Bound { result: Ok(()), .. })));
    }
}
