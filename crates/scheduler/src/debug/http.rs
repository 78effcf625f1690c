//! The HTTP interface. Requests are served by the task that owns the engine, which only the leader has.

use super::{DebugHandle, Flags, configz as config, node as node_dump, resources};
use crate::framework::NotShown;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{any, delete, get};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const SERVICES: &str = "/apis/v1/__services__";
const NODE: &str = "/apis/v1/nodes/:nodeName";
/// The flags that `PUT /debug/flags/<letters>` sets.
const FLAGS: [&str; 5] = ["d", "db", "f", "s", "v"];

pub(super) fn router(handle: DebugHandle) -> Router {
    Router::new()
        .route(SERVICES, get(services))
        .route("/apis/v1/nodes/{name}", get(node))
        .route("/apis/v1/plugins/{plugin}/{*path}", get(plugin))
        .route("/configz", get(configz))
        .route("/metrics/resources", get(pod_resources))
        .route("/metrics", delete(reset_metrics))
        .route("/debug/flags", get(flags))
        .route("/debug/flags/", get(flags))
        .route("/debug/flags/{flag}", any(set_flag))
        .route("/debug/shadow", get(shadow))
        .route("/debug/scheduler/plugins", get(plugins))
        .route("/debug/scheduler/pending", get(pending))
        .route("/debug/scheduler/decisions", get(decisions))
        .route("/debug/scheduler/pods/{namespace}/{name}", get(pod))
        .with_state(handle)
}

fn message(code: StatusCode, text: impl Into<String>) -> Response {
    (code, Json(json!({"message": text.into()}))).into_response()
}

fn not_leader() -> Response {
    let text = "the instance is not leader";
    message(StatusCode::SERVICE_UNAVAILABLE, text)
}

/// Returns the result as response: 404 with `missing` if it is null, 503 if there is no engine.
fn found(answer: Option<Value>, missing: impl FnOnce() -> String) -> Response {
    match answer {
        None => not_leader(),
        Some(Value::Null) => message(StatusCode::NOT_FOUND, missing()),
        Some(value) => Json(value).into_response(),
    }
}

async fn services(State(handle): State<DebugHandle>) -> Response {
    let answer = handle
        .query(|engine, _| {
            let mut paths = vec![SERVICES.to_owned(), NODE.to_owned()];
            paths.extend(engine.plugins().inspections());
            paths.sort_unstable();
            json!({"GET": paths})
        })
        .await;
    found(answer, String::new)
}

async fn plugins(State(handle): State<DebugHandle>) -> Json<Value> {
    Json(Value::Array(handle.shared.plugins.read().clone()))
}

async fn pending(State(handle): State<DebugHandle>) -> Response {
    Json(handle.explanations()).into_response()
}

async fn decisions(State(handle): State<DebugHandle>) -> Response {
    let answer = handle
        .query(|engine, _| json!(engine.telemetry.decisions().take(100).collect::<Vec<_>>()))
        .await;
    found(answer, String::new)
}

/// Returns the report of shadow mode, as text with `?format=text`.
async fn shadow(
    State(handle): State<DebugHandle>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    match handle.shadow() {
        None => message(
            StatusCode::NOT_FOUND,
            "the scheduler does not run with --shadow",
        ),
        Some(report) if query.get("format").is_some_and(|format| format == "text") => {
            report.text().into_response()
        }
        Some(report) => Json(report).into_response(),
    }
}

async fn configz(State(handle): State<DebugHandle>) -> Json<Value> {
    let shown = config::to_upstream_names(handle.shared.config.read().clone());
    Json(json!({"componentconfig": shown}))
}

async fn pod(
    State(handle): State<DebugHandle>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let failed = handle.explain(&namespace, &name);
    let key = format!("{namespace}/{name}");
    let answer = handle
        .query(move |engine, now| {
            engine
                .inspector()
                .explain_pod(&namespace, &name, now)
                .unwrap_or_default()
        })
        .await;
    let answer = answer.map(|mut explanation| {
        if let (Some(failed), false) = (failed, explanation.is_null()) {
            explanation["lastAttempt"] = json!(failed);
        }
        explanation
    });
    found(answer, || format!("cannot find pod {key}"))
}

async fn plugin(
    State(handle): State<DebugHandle>,
    Path((plugin, path)): Path<(String, String)>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let answer = handle
        .query_as(move |engine, now| {
            let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            engine.inspector().inspect(&plugin, &parts, &query, now)
        })
        .await;
    match answer {
        None => not_leader(),
        Some(Ok(value)) => Json(value).into_response(),
        Some(Err(NotShown::NoSuchPath)) => path_not_found(),
        Some(Err(NotShown::Missing(text))) => message(StatusCode::NOT_FOUND, text),
        Some(Err(NotShown::Failed(text))) => message(StatusCode::INTERNAL_SERVER_ERROR, text),
    }
}

fn path_not_found() -> Response {
    (StatusCode::NOT_FOUND, "404 page not found").into_response()
}

async fn node(State(handle): State<DebugHandle>, Path(name): Path<String>) -> Response {
    let key = name.clone();
    let answer = handle
        .query(move |engine, _| node_dump::dump(engine, &key))
        .await;
    found(answer, || format!("cannot find node {name}"))
}

async fn pod_resources(State(handle): State<DebugHandle>) -> Response {
    match handle
        .query(|engine, _| json!(resources::text(engine)))
        .await
    {
        Some(Value::String(text)) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        // Not the leader: an empty response rather than an error.
        _ => StatusCode::OK.into_response(),
    }
}

/// Resets metrics; upstream has the same response.
async fn reset_metrics(State(handle): State<DebugHandle>) -> Response {
    handle.reset_metrics();
    "metrics reset\n".into_response()
}

/// Returns true if `/debug/flags` is served: as in upstream, only together with profiles.
fn has_flags(handle: &DebugHandle) -> bool {
    handle.shared.config.read()["enableProfiling"] != false
}

async fn flags(State(handle): State<DebugHandle>) -> Response {
    if !has_flags(&handle) {
        return path_not_found();
    }
    let lines = FLAGS.map(|flag| format!("<tr>{flag}<br>"));
    let page = format!(
        "<html><head><title>/debug/flags/</title></head><body>/debug/flags/<br><br>flags:<br>\
         <table>{}</table></body></html>",
        lines.concat()
    );
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response()
}

async fn set_flag(
    State(handle): State<DebugHandle>,
    Path(flag): Path<String>,
    method: Method,
    body: String,
) -> Response {
    if !has_flags(&handle) || !FLAGS.contains(&flag.as_str()) {
        return path_not_found();
    }
    if method != Method::PUT {
        let text = "unsupported http method";
        return (StatusCode::NOT_ACCEPTABLE, text).into_response();
    }
    match switch(handle.flags(), &flag, body.trim()) {
        Ok(text) => text.into_response(),
        Err(text) => (StatusCode::BAD_REQUEST, text).into_response(),
    }
}

/// Sets a flag. The response is upstream's, which names the same flag for several.
fn switch(flags: &Flags, flag: &str, value: &str) -> Result<String, String> {
    let boolean = |to: Option<&AtomicBool>| {
        let parsed = koord_app::flags::boolean(value).map_err(|error| error.to_string())?;
        if let Some(to) = to {
            to.store(parsed, Ordering::Relaxed);
        }
        Ok(())
    };
    let (name, set) = match flag {
        "s" => {
            let parsed = value.parse::<usize>().map_err(|error| error.to_string());
            let stored = parsed.map(|n| flags.scores.store(n, Ordering::Relaxed));
            ("debugTopNScores", stored)
        }
        "v" => return koord_app::logging::put_verbosity(value),
        "f" => ("debugFilterFailure", boolean(Some(&flags.filters))),
        "d" => ("debugFilterFailure", boolean(Some(&flags.diagnosis))),
        // A dump is a log line here, so it never blocks.
        _ => ("debugFilterFailure", boolean(None)),
    };
    match set {
        Ok(()) => Ok(format!("successfully set {name} to {value}")),
        Err(why) => Err(format!("failed set {name} {value}: {why}")),
    }
}
