//! The part of the kubelet's HTTP interface that other components read. Access is delegated as in a kubelet:
//! bearer tokens by TokenReview, permissions by SubjectAccessReview.

use crate::context::Shared;
use crate::logs::LogOptions;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use axum::{Extension, Router};
use http::{StatusCode, header};
use koord_kube::guard::{ClientIdentity, Guard, GuardOptions, OpenPathError};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Time for which results of token and access reviews are cached: the kubelet's defaults for tokens and
/// refusals; permissions use the TTL of tokens.
const TOKEN_TTL: Duration = Duration::from_secs(120);
const REFUSED_TTL: Duration = Duration::from_secs(30);

/// Returns the routes behind their guard. `/healthz` is open to all clients, as on a kubelet's health port.
pub(crate) fn router(shared: Arc<Shared>) -> Result<Router, OpenPathError> {
    let options = GuardOptions {
        always_allow_paths: vec!["/healthz".to_owned()],
        token_ttl: TOKEN_TTL,
        authorized_ttl: TOKEN_TTL,
        unauthorized_ttl: REFUSED_TTL,
    };
    let client = shared.client.clone();
    let guard = Guard::new(&options, Some(client.clone()), Some(client))?;
    let guard = guard.for_node(shared.options.node_name.clone());
    let routes = guard
        .protect(routes(shared))
        .layer(Extension(ClientIdentity::from_certificate(None)));
    Ok(koord_app::local::refuse_foreign(routes))
}

/// Returns the routes of the node's HTTP server, without access control.
fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/pods", get(pods))
        .route("/configz", get(configz))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(logs))
        .with_state(shared)
}

async fn pods(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let items: Vec<Value> = shared
        .table
        .list()
        .iter()
        .filter_map(|pod| serde_json::to_value(pod).ok())
        .map(|mut pod| {
            // Items of a list carry no type of their own.
            if let Some(pod) = pod.as_object_mut() {
                pod.remove("apiVersion");
                pod.remove("kind");
            }
            pod
        })
        .collect();
    Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

async fn configz(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let parent = &shared.options.cgroup_parent;
    Json(json!({"kubeletconfig": {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": true,
        "cgroupRoot": parent.to_string(),
        "cpuManagerPolicy": "none",
        "topologyManagerPolicy": "none",
        "maxPods": shared.options.max_pods,
        "nodeStatusReportFrequency": format!("{}s", shared.options.status_interval.as_secs()),
        "nodeLeaseDurationSeconds": 40,
    }}))
}

/// Query of a log request, as the API server sends it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LogQuery {
    follow: bool,
    tail_lines: Option<u64>,
    since_seconds: Option<i64>,
    since_time: Option<jiff::Timestamp>,
    limit_bytes: Option<u64>,
    timestamps: bool,
    previous: bool,
}

/// Serves a container's log.
async fn logs(
    State(shared): State<Arc<Shared>>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    Query(query): Query<LogQuery>,
) -> Response {
    let options = LogOptions {
        follow: query.follow,
        tail_lines: query.tail_lines,
        since_seconds: query.since_seconds,
        now: Some(shared.clock.now()),
        since_time: query.since_time,
        limit_bytes: query.limit_bytes,
        timestamps: query.timestamps,
        previous: query.previous,
    };
    // These names become parts of a file name.
    let plain =
        |part: &str| !part.is_empty() && !part.contains(['/', '_']) && !part.starts_with('.');
    if ![&namespace, &pod, &container]
        .iter()
        .all(|part| plain(part))
    {
        return (StatusCode::BAD_REQUEST, "not the name of a container\n").into_response();
    }
    match shared
        .logs
        .open(&namespace, &pod, &container, options)
        .await
    {
        Ok(stream) => (
            [(header::CONTENT_TYPE, "text/plain")],
            Body::from_stream(stream),
        )
            .into_response(),
        Err(message) => (StatusCode::NOT_FOUND, message + "\n").into_response(),
    }
}
