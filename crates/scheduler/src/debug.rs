//! Access to the state of the running scheduler, for `koord explain` and the HTTP interface.

mod configz;
mod http;
pub mod inspection;
mod node;
mod resources;
mod shadow;

pub use shadow::{ShadowDifference, ShadowReport, ShadowResult};

use crate::engine::{Engine, Failure};
use crate::framework::Diagnosis;
use crate::guard::guarded;
use axum::Router;
use jiff::Timestamp;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

/// The reasons why a pod is pending, as of its last scheduling attempt.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The time of the last attempt.
    pub time: Timestamp,
    /// `Unschedulable` or `SchedulerError`.
    pub reason: &'static str,
    /// The text in the pod's condition.
    pub message: String,
    /// Refusals per plugin and reason; absent after an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Arc<Diagnosis>>,
}

impl Explanation {
    fn new(time: Timestamp, failure: &Failure) -> Self {
        Self {
            time,
            reason: failure.reason,
            message: failure.message.to_string(),
            diagnosis: failure.diagnosis.clone(),
        }
    }
}

type QueryFn = Box<dyn FnOnce(&mut Engine, Timestamp) + Send>;

/// Switches that `PUT /debug/flags/<letter>` changes at run time.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    /// `s`: how many of the best nodes of each decision are logged.
    pub(crate) scores: AtomicUsize,
    /// `f`: whether refusals are logged.
    pub(crate) filters: AtomicBool,
    /// `d`: whether the diagnosis of each failed attempt is logged.
    pub(crate) diagnosis: AtomicBool,
}

/// The time and result of a pod's last failed attempt.
type LastFailure = (Timestamp, Arc<Failure>);

#[derive(Default)]
struct DebugState {
    /// The last failed attempts by uid.
    pending: RwLock<FxHashMap<Arc<str>, LastFailure>>,
    queries: RwLock<Option<mpsc::Sender<EngineQuery>>>,
    plugins: RwLock<Vec<Value>>,
    ready: AtomicBool,
    resets: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
    config: RwLock<Value>,
    pub(crate) flags: Flags,
    /// `Some` in shadow mode.
    shadow: RwLock<Option<ShadowReport>>,
}

/// A query for the task that owns the engine. It sends its result itself.
pub(crate) struct EngineQuery(QueryFn);

impl std::fmt::Debug for EngineQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EngineQuery")
    }
}

impl EngineQuery {
    pub(crate) fn answer(self, engine: &mut Engine, now: Timestamp) {
        let answered = guarded("answering a query", || {
            (self.0)(engine, now);
        });
        if answered.is_none() {
            engine.classes.clear();
        }
    }
}

/// A handle to the state of a running scheduler. Clones share the state; pass one in [`crate::Options`] and
/// keep another.
#[derive(Clone, Default)]
pub struct DebugHandle {
    shared: Arc<DebugState>,
}

impl std::fmt::Debug for DebugHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DebugHandle")
            .field("ready", &self.shared.ready)
            .finish_non_exhaustive()
    }
}

impl DebugHandle {
    /// Returns why the pod is pending; `None` if it never failed or is scheduled.
    #[must_use]
    pub fn explain(&self, namespace: &str, name: &str) -> Option<Explanation> {
        let pending = self.shared.pending.read();
        let mut all = pending.values();
        let (time, failure) = all.find(|(_, failure)| {
            *failure.pod.name == *name && *failure.pod.namespace == *namespace
        })?;
        Some(Explanation::new(*time, failure))
    }

    /// Returns why pods are pending, by `namespace/name`.
    #[must_use]
    pub fn explanations(&self) -> BTreeMap<String, Explanation> {
        // Texts are formatted without the lock, so that reporting failures does not wait.
        let all: Vec<_> = self.shared.pending.read().values().cloned().collect();
        all.iter()
            .map(|(time, failure)| (failure.pod.to_string(), Explanation::new(*time, failure)))
            .collect()
    }

    /// Returns the HTTP interface: `/apis/v1/...`, `/configz`, `/metrics/resources`, `DELETE /metrics`,
    /// `/debug/scheduler/...`, `/debug/flags/...`.
    pub fn router(&self) -> Router {
        http::router(self.clone())
    }

    /// Returns true if the scheduler leads and its informers are in sync.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.ready.load(Ordering::Relaxed)
    }

    /// Adds a function that `DELETE /metrics` calls, for metrics that are not the scheduler's own.
    pub fn on_reset(&self, reset: impl Fn() + Send + Sync + 'static) {
        self.shared.resets.write().push(Box::new(reset));
    }

    fn reset_metrics(&self) {
        for reset in self.shared.resets.read().iter() {
            reset();
        }
    }

    /// Returns how decisions compare with those of the cluster's scheduler; `None` unless this scheduler runs in
    /// shadow mode.
    #[must_use]
    pub fn shadow(&self) -> Option<ShadowReport> {
        self.shared.shadow.read().clone()
    }

    pub(crate) fn update_shadow(&self, update: impl FnOnce(&mut ShadowReport)) {
        update(self.shared.shadow.write().get_or_insert_default());
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.shared.ready.store(ready, Ordering::Relaxed);
    }

    /// Stores a failed attempt. Returns the pod's previous one.
    pub(crate) fn failed(&self, failure: Arc<Failure>, time: Timestamp) -> Option<Arc<Failure>> {
        let uid = failure.pod.uid.clone();
        let before = self.shared.pending.write().insert(uid, (time, failure));
        before.map(|(_, failure)| failure)
    }

    pub(crate) fn clear_failure(&self, uid: &str) {
        self.shared.pending.write().remove(uid);
    }

    pub(crate) fn flags(&self) -> &Flags {
        &self.shared.flags
    }

    pub(crate) fn set_config(&self, mut config: Value) {
        configz::hide_keys(&mut config);
        *self.shared.config.write() = config;
    }

    pub(crate) fn set_plugins(&self, plugins: Vec<Value>) {
        *self.shared.plugins.write() = plugins;
    }

    /// Returns the queries for the owner of the engine, until the receiver is dropped.
    pub(crate) fn attach(&self) -> mpsc::Receiver<EngineQuery> {
        let (sender, receiver) = mpsc::channel(16);
        *self.shared.queries.write() = Some(sender);
        receiver
    }

    async fn query(
        &self,
        query: impl FnOnce(&mut Engine, Timestamp) -> Value + Send + 'static,
    ) -> Option<Value> {
        self.query_as(query).await
    }

    /// Runs `query` on the engine and returns its result; `None` if there is no engine.
    pub(crate) async fn query_as<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Engine, Timestamp) -> T + Send + 'static,
    ) -> Option<T> {
        let sender = self.shared.queries.read().clone()?;
        let (answer, answered) = oneshot::channel();
        let engine_query = EngineQuery(Box::new(move |engine, now| {
            let _ = answer.send(query(engine, now));
        }));
        sender.send(engine_query).await.ok()?;
        answered.await.ok()
    }
}
