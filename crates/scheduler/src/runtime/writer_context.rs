//! Shared context of the tasks that write to the API, and the operations of these tasks.

use super::condition::status_patch;
use super::extender::Extenders;
use super::gate::Gate;
use super::monitor::Monitor;
use super::nearest;
use super::placement::send_binding;
use super::send::{NOTHING, send_write};
use super::writer::reference;
use crate::engine::{BindRequest, ExtenderCall, Failure, NearestNode};
use crate::framework::{Message, MetricSamples, Timed, Write};
use crate::metrics::{Call, Metrics};
use crate::state::{Booked, PodInfo};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use koord_kube::events::{Recorder, Severity};
use koord_kube::{Api, Client, patch};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Shared context of the writer tasks: client, event recorder, clock.
pub(super) struct WriterContext {
    pub(super) client: Client,
    pub(super) recorder: Recorder,
    pub(super) clock: koord_app::Clock,
    pub(super) gate: Gate,
    pub(super) sender: mpsc::Sender<Message>,
    pub(super) metrics: Metrics,
    /// Scheduling attempts; they end with their bindings.
    pub(super) monitor: Monitor,
    /// The names of the profiles.
    pub(super) names: Vec<String>,
    /// The extenders, one of which may bind.
    pub(super) extenders: Extenders,
    /// True if annotations are sent with the binding if nothing else has to be patched.
    pub(super) annotate_bindings: bool,
    pub(super) state: WriterState,
}

/// State that the writer tasks share.
#[derive(Default)]
pub(super) struct WriterState {
    /// The last written nomination of pods that are not bound yet; empty if it was cleared.
    expected: Mutex<FxHashMap<Arc<str>, Arc<str>>>,
    /// The durations of plugins' writes that are measured.
    timings: Mutex<MetricSamples>,
    /// Targets of writes that do not exist, to log each once.
    missing: Mutex<FxHashSet<Arc<str>>>,
}

/// A failed scheduling attempt with what was found out about it.
pub(super) struct FailedAttempt {
    pub(super) failure: Arc<Failure>,
    /// The nearest nodes; they follow kube-scheduler's text in the condition.
    pub(super) nearest: Vec<NearestNode>,
    pub(super) time: Timestamp,
}

impl WriterContext {
    /// Calls extenders; the result arrives as a message.
    pub(super) async fn consult(&self, call: ExtenderCall) {
        let (uid, ticket) = (call.pod.uid.clone(), call.ticket);
        let answer = self.gate.until_closing(self.extenders.answer(call));
        if let Some(advice) = answer.await {
            let consulted = Message::Consulted {
                uid,
                ticket,
                advice,
            };
            let _ = self.sender.send(consulted).await;
        }
    }

    /// Records that a binding will be sent.
    pub(super) fn will_bind(&self) {
        self.metrics.call_queued(Call::Binding);
    }

    /// Binds a pod; the result arrives as a message.
    pub(super) async fn bind(&self, request: BindRequest) {
        // The API server clears the nomination of a pod that is bound.
        self.remove_nomination(&request.pod.uid);
        self.gate.pass(self.send_binding(request)).await;
    }

    /// Binds a pod, records the event, and sends the result to the engine.
    async fn send_binding(&self, request: BindRequest) {
        let metrics = &self.metrics;
        metrics.call_started(Call::Binding);
        let started = tokio::time::Instant::now();
        let (client, together) = (self.client.clone(), self.annotate_bindings);
        let result = send_binding(client, &request, together, &self.extenders).await;
        let pod = &request.pod;
        match &result {
            Ok(()) => {
                let about = reference(pod);
                let name = match pod.booked() {
                    Booked::Holder(object) => object.name.clone().unwrap_or_default(),
                    Booked::Pod(pod) => pod.to_string(),
                };
                let message = format!("Successfully assigned {name} to {}", request.node);
                self.recorder.event_with_action(
                    about,
                    Severity::Normal,
                    "Scheduled",
                    "Binding",
                    message,
                );
            }
            Err(error) => {
                tracing::warn!(%pod, node = %request.node, error = %error.message, "failed to bind a pod");
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        metrics.call_ended(Call::Binding, result.is_ok(), seconds);
        let profile = self.names.get(request.profile).map_or("", String::as_str);
        metrics.bound(result.is_ok(), profile, request.binder, seconds);
        let pod_gone = result.as_ref().is_err_and(|error| error.gone);
        // If a failure is still to be reported, the attempt ends with that report.
        if (result.is_ok() || pod_gone)
            && let Some(attempt) = self.monitor.end(&pod.uid)
            && result.is_ok()
        {
            metrics.scheduled(&attempt, profile, self.clock.now());
        }
        let uid = pod.uid.clone();
        let _ = self.sender.send(Message::Bound { uid, result }).await;
    }

    /// Records events about why a pod was not scheduled.
    pub(super) fn record_failure(&self, failure: &Failure) {
        let event = |reason: &str, message: &str| {
            let about = reference(&failure.pod);
            let bad = Severity::Warning;
            self.recorder
                .event_with_action(about, bad, reason, "Scheduling", message);
        };
        event("FailedScheduling", &failure.message);
        // Each has its own reason, so that they are not aggregated into one.
        for refusal_event in &failure.refusal_events {
            event(refusal_event.reason, &refusal_event.message);
        }
    }

    /// Updates the pod's condition if it does not show the failure yet. A holder has no condition of its own:
    /// its plugin writes that of the object it stands for.
    pub(super) async fn write_condition(&self, refused: FailedAttempt) {
        let FailedAttempt {
            failure,
            nearest,
            time,
        } = refused;
        if failure.pod.is_holder() {
            return;
        }
        let status = {
            let mut expected = self.state.expected.lock();
            let nominated = expected.get(&failure.pod.uid).map(|node| &**node);
            let nearest = nearest::format_nearest(&nearest);
            let status = status_patch(&failure, &nearest, nominated, time);
            // Later writes must be compared with this nomination, as the pod does not show it yet.
            let shown = nominated.is_some() || failure.pod.nominated.is_some();
            let node = status.as_ref().map(|status| &status["status"]);
            match node.and_then(|status| status.get("nominatedNodeName")) {
                Some(Value::String(node)) => {
                    expected.insert(failure.pod.uid.clone(), node.as_str().into());
                }
                Some(_) if shown => {
                    expected.insert(failure.pod.uid.clone(), "".into());
                }
                _ => {}
            }
            status
        };
        if let Some(status) = status {
            self.write_status(&failure.pod, &status).await;
        }
    }

    /// Updates the condition of a pod that had no scheduling cycle of its own.
    pub(super) async fn explain(&self, pod: Arc<PodInfo>, message: String, time: Timestamp) {
        if pod.is_holder() {
            return;
        }
        // Its nomination stays in place.
        let nominated = self.state.expected.lock().get(&pod.uid).cloned();
        let failure = Failure {
            pod: pod.clone(),
            reason: "Unschedulable",
            message: message.into(),
            nominated: nominated.as_ref().map(ToString::to_string),
            diagnosis: None,
            refusal_events: Vec::new(),
        };
        if let Some(status) = status_patch(&failure, "", nominated.as_deref(), time) {
            self.write_status(&pod, &status).await;
        }
    }

    /// Writes the nomination of a pod that will be bound later, so that other components do not make room for
    /// it; an empty `node` clears it.
    pub(super) async fn expect(&self, pod: Arc<PodInfo>, node: Arc<str>) {
        {
            let mut expected = self.state.expected.lock();
            let current = expected.get(&pod.uid).or(pod.nominated.as_ref());
            let nowhere = current.is_none_or(|current| current.is_empty());
            if nowhere && node.is_empty() || current == Some(&node) {
                return;
            }
            expected.insert(pod.uid.clone(), node.clone());
        }
        let nominated = (!node.is_empty()).then_some(&*node);
        let status = json!({
            "metadata": {"uid": &*pod.uid},
            "status": {"nominatedNodeName": nominated},
        });
        self.write_status(&pod, &status).await;
    }

    /// Removes the recorded nomination of a pod.
    pub(super) fn remove_nomination(&self, uid: &str) {
        self.state.expected.lock().remove(uid);
    }

    async fn write_status(&self, pod: &PodInfo, status: &Value) {
        let metrics = &self.metrics;
        metrics.call_queued(Call::Status);
        let send = async {
            metrics.call_started(Call::Status);
            let started = tokio::time::Instant::now();
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
            let result = patch::strategic_status(&api, &pod.name, status).await;
            let seconds = started.elapsed().as_secs_f64();
            metrics.call_ended(Call::Status, result.is_ok(), seconds);
            match result {
                Ok(_) => {}
                Err(error) if patch::is_not_found(&error) => {}
                Err(error) => tracing::warn!(%pod, %error, "failed to write a pod's status"),
            }
        };
        self.gate.pass(send).await;
    }

    /// Returns the durations of writes since the last call.
    pub(super) fn take_timings(&self) -> MetricSamples {
        std::mem::take(&mut *self.state.timings.lock())
    }

    /// Sends a write that a plugin requested; `target` identifies the object.
    pub(super) async fn write(&self, write: Write, target: Arc<str>) {
        self.gate.pass(self.send_write(write, target)).await;
    }

    async fn send_write(&self, write: Write, target: Arc<str>) {
        let started = tokio::time::Instant::now();
        let result = send_write(&self.client, &write, NOTHING).await;
        if let Some(Timed(family)) = write.timed {
            let seconds = started.elapsed().as_secs_f64();
            self.state.timings.lock().add(family, &[], seconds);
        }
        let Err(error) = result else {
            self.state.missing.lock().remove(&target);
            return;
        };
        if error.gone {
            let mut missing = self.state.missing.lock();
            if missing.len() > 4096 {
                missing.clear();
            }
            if !missing.insert(target) {
                return;
            }
        }
        let (plural, name) = (write.plural, &write.name);
        let namespace = &write.namespace;
        tracing::warn!(plural, namespace, name, %error, "failed to write an object for a plugin");
    }
}
