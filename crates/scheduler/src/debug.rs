//! What the running scheduler knows, for `koord explain` and for people.

use crate::engine::{Diagnosis, Engine};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use jiff::Timestamp;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Why a pod is pending, as of its last attempt.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// When it was last tried.
    pub time: Timestamp,
    /// `Unschedulable` or `SchedulerError`.
    pub reason: &'static str,
    /// The text in the pod's condition.
    pub message: String,
    /// Counts per plugin and reason; absent after an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Arc<Diagnosis>>,
}

type Ask = Box<dyn FnOnce(&Engine) -> Value + Send>;

#[derive(Debug, Default)]
struct Shared {
    pending: RwLock<FxHashMap<String, Arc<Explanation>>>,
    asks: RwLock<Option<mpsc::Sender<Question>>>,
    plugins: RwLock<Vec<Value>>,
    ready: AtomicBool,
}

/// A question to the task that owns the engine.
pub(crate) struct Question {
    ask: Ask,
    answer: oneshot::Sender<Value>,
}

impl std::fmt::Debug for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Question")
    }
}

impl Question {
    pub(crate) fn answer(self, engine: &Engine) {
        let _ = self.answer.send((self.ask)(engine));
    }
}

/// A window into a running scheduler. Clones look into the same one; put one into
/// [`crate::Options`] and keep another.
#[derive(Debug, Clone, Default)]
pub struct DebugHandle {
    shared: Arc<Shared>,
}

impl DebugHandle {
    /// Why the pod is pending; `None` when it never failed or is placed.
    #[must_use]
    pub fn explain(&self, namespace: &str, name: &str) -> Option<Arc<Explanation>> {
        self.shared
            .pending
            .read()
            .get(&format!("{namespace}/{name}"))
            .cloned()
    }

    /// All pods that failed to be placed so far.
    #[must_use]
    pub fn explanations(&self) -> BTreeMap<String, Arc<Explanation>> {
        self.shared
            .pending
            .read()
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    /// The HTTP interface: `/apis/v1/...`, `/debug/scheduler/...`.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/apis/v1/__services__", get(services))
            .route("/apis/v1/nodes/{name}", get(node))
            .route("/debug/scheduler/plugins", get(plugins))
            .route("/debug/scheduler/pending", get(pending))
            .route("/debug/scheduler/pods/{namespace}/{name}", get(pod))
            .with_state(self.clone())
    }

    /// Whether the scheduler leads and has seen the whole cluster.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.ready.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.shared.ready.store(ready, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, pod: String, explanation: Explanation) {
        self.shared
            .pending
            .write()
            .insert(pod, Arc::new(explanation));
    }

    pub(crate) fn settled(&self, pod: &str) {
        self.shared.pending.write().remove(pod);
    }

    pub(crate) fn set_plugins(&self, plugins: Vec<Value>) {
        *self.shared.plugins.write() = plugins;
    }

    /// Takes the place of the engine's owner until the receiver is dropped.
    pub(crate) fn attach(&self) -> mpsc::Receiver<Question> {
        let (sender, receiver) = mpsc::channel(16);
        *self.shared.asks.write() = Some(sender);
        receiver
    }

    async fn ask(&self, ask: impl FnOnce(&Engine) -> Value + Send + 'static) -> Option<Value> {
        let sender = self.shared.asks.read().clone()?;
        let (answer, answered) = oneshot::channel();
        sender
            .send(Question {
                ask: Box::new(ask),
                answer,
            })
            .await
            .ok()?;
        answered.await.ok()
    }
}

fn not_leader() -> Response {
    let body = json!({"message": "the instance is not leader"});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

async fn services() -> Json<Value> {
    Json(json!({"GET": ["/apis/v1/__services__", "/apis/v1/nodes/:nodeName"]}))
}

async fn plugins(State(handle): State<DebugHandle>) -> Json<Value> {
    Json(Value::Array(handle.shared.plugins.read().clone()))
}

async fn pending(State(handle): State<DebugHandle>) -> Response {
    Json(handle.explanations()).into_response()
}

async fn pod(
    State(handle): State<DebugHandle>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    match handle.explain(&namespace, &name) {
        Some(explanation) => Json(explanation).into_response(),
        None => {
            let message = format!("pod {namespace}/{name} has no failed attempt");
            (StatusCode::NOT_FOUND, Json(json!({"message": message}))).into_response()
        }
    }
}

async fn node(State(handle): State<DebugHandle>, Path(name): Path<String>) -> Response {
    let wanted = name.clone();
    match handle
        .ask(move |engine| describe_node(engine, &wanted))
        .await
    {
        None => not_leader(),
        Some(Value::Null) => {
            let body = json!({"message": format!("cannot find node {name}")});
            (StatusCode::NOT_FOUND, Json(body)).into_response()
        }
        Some(value) => Json(value).into_response(),
    }
}

fn describe_node(engine: &Engine, name: &str) -> Value {
    let nodes = engine.nodes();
    let Some(index) = nodes
        .find(name)
        .filter(|index| nodes.info(*index).is_some())
    else {
        return Value::Null;
    };
    let mut requested = BTreeMap::new();
    let mut allocatable = BTreeMap::new();
    for number in 0..engine.resources().len() {
        let Ok(number) = u16::try_from(number) else {
            break;
        };
        let id = koord_model::resources::ResourceId(number);
        let (used, total) = (nodes.requested(index, id), nodes.allocatable(index, id));
        if used != 0 || total != 0 {
            let resource = engine.resources().name(id);
            requested.insert(resource.clone(), used);
            allocatable.insert(resource, total);
        }
    }
    let remaining: BTreeMap<_, _> = allocatable
        .iter()
        .map(|(name, total)| (name.clone(), total - requested[name]))
        .collect();
    let mut pods: Vec<String> = nodes.pods(index).map(ToString::to_string).collect();
    pods.sort_unstable();
    let [cpu, memory] = nodes.requested_for_scoring(index);
    json!({
        "node": name,
        "pods": pods,
        "requested": requested,
        "nonZeroRequested": {"cpu": cpu, "memory": memory},
        "remaining": remaining,
        "allocatable": allocatable,
        "generation": nodes.version(index),
    })
}
