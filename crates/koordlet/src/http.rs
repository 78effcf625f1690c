//! HTTP server of health, metrics, audit events and the status.

use crate::audit::{Log, Page};
use crate::gates::{Gate, Gates};
use crate::metrics::is_external;
use crate::status::StatusHandle;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use koord_app::admin::{Admin, AdminError};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Page size if a request has none.
const DEFAULT_SIZE: usize = 256;

/// State that the HTTP server serves.
pub(crate) struct HttpState {
    /// Registry of metrics.
    pub(crate) registry: prometheus::Registry,
    /// Audit log.
    pub(crate) audit: Log,
    /// Feature gates.
    pub(crate) gates: Gates,
    /// True once a list of pods has arrived.
    pub(crate) ready: Arc<AtomicBool>,
    /// Status of the agent.
    pub(crate) status: StatusHandle,
}

impl HttpState {
    pub(crate) fn router(self) -> Router {
        let ready = self.ready;
        let admin = Admin::new(self.registry)
            .split_metrics(is_external)
            .with_routes(self.status.routes())
            .ready_when("pods", move || {
                let ready = ready.load(Ordering::Relaxed);
                ready
                    .then_some(())
                    .ok_or_else(|| "no list of pods arrived yet".to_owned())
            });
        let router = admin.router();
        if self.gates.is_on(Gate::AuditEventsHTTPHandler) {
            return router.merge(events(self.audit));
        }
        router
    }
}

/// Serves until `shutdown`. Returns the actual address.
///
/// # Errors
/// When the address cannot be bound.
pub(crate) async fn serve(
    address: SocketAddr,
    served: HttpState,
    shutdown: CancellationToken,
) -> Result<SocketAddr, AdminError> {
    let fail = |source| AdminError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let local = listener.local_addr().map_err(fail)?;
    let router = served.router();
    tokio::spawn(async move {
        let stop = shutdown.cancelled_owned();
        if let Err(error) = axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
        {
            tracing::error!(%error, "HTTP server failed");
        }
    });
    Ok(local)
}

/// Returns the routes of audit events.
///
/// `GET /events?size=&pageToken=` returns records newest first, as JSON if the request accepts it, else one
/// line each. `GET /events?after=` is for followers: it returns the records after that number which are still
/// in memory, oldest first, and the number to continue with, as JSON.
pub fn events(audit: Log) -> Router {
    Router::new()
        .route("/events", get(serve_events))
        .with_state(audit)
}

#[derive(Deserialize)]
struct AuditQuery {
    size: Option<String>,
    #[serde(rename = "pageToken")]
    page_token: Option<String>,
    after: Option<u64>,
}

/// Serves a page of the audit log, or the records after a sequence number.
async fn serve_events(
    State(log): State<Log>,
    Query(query): Query<AuditQuery>,
    headers: HeaderMap,
) -> Response {
    if let Some(after) = query.after {
        let newest = log.newest();
        // The number is from before a restart.
        let after = if after > newest { 0 } else { after };
        let body = serde_json::json!({ "Events": log.since(after), "Newest": newest });
        return axum::Json(body).into_response();
    }
    let most = log.max_page();
    let size = match query.size.as_deref().filter(|text| !text.is_empty()) {
        None => DEFAULT_SIZE.min(most),
        Some(text) => match text.parse() {
            Ok(size) if (1..=most).contains(&size) => size,
            _ => {
                let text = format!("size must be 1..={most}, got {text:?}");
                return (StatusCode::BAD_REQUEST, text).into_response();
            }
        },
    };
    let token = query.page_token.filter(|token| !token.is_empty());
    let read = move || log.page(token.as_deref(), size);
    let page = match tokio::task::spawn_blocking(read).await {
        Ok(Ok(page)) => page,
        Ok(Err(error)) => return (StatusCode::CONFLICT, error.to_string()).into_response(),
        Err(error) => {
            return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
        }
    };
    let accept = headers.get(header::ACCEPT);
    let json = accept
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("application/json"));
    if json { as_json(page) } else { as_text(&page) }
}

fn as_json(page: Page) -> Response {
    let mut body = serde_json::json!({ "Events": page.events });
    if let Some(next) = page.next {
        body["NextPageToken"] = next.into();
    }
    axum::Json(body).into_response()
}

fn as_text(page: &Page) -> Response {
    let mut text = String::new();
    for event in &page.events {
        text.push_str(&event.to_string());
        text.push('\n');
    }
    let mut response = text.into_response();
    let next = page.next.as_deref().map(HeaderValue::from_str);
    if let Some(Ok(next)) = next {
        let name = HeaderName::from_static("next-page-token");
        response.headers_mut().insert(name, next);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::states::NodeInfo;
    use axum::body::{Body, to_bytes};
    use http::Request;
    use std::collections::BTreeMap;
    use tower::ServiceExt;

    async fn get(router: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn served(gates: Gates) -> (HttpState, Metrics) {
        let registry = prometheus::Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.record_start("n1", 7);
        let served = HttpState {
            registry,
            audit: Log::default(),
            gates,
            ready: Arc::default(),
            status: StatusHandle::default(),
        };
        (served, metrics)
    }

    #[tokio::test]
    async fn each_audience_has_its_metrics_and_one_endpoint_has_all() {
        let (served, metrics) = served(Gates::default());
        metrics.allocatable(&NodeInfo {
            extended: BTreeMap::from([("kubernetes.io/batch-cpu".to_owned(), 5)]),
            ..NodeInfo::default()
        });
        let router = served.router();
        let internal = "koordlet_start_time{node=\"n1\"} 7";
        let external = "koordlet_node_resource_allocatable{node=\"n1\"";
        for (path, want) in [
            ("/metrics", (true, true)),
            ("/internal-metrics", (true, false)),
            ("/external-metrics", (false, true)),
        ] {
            let (_, text) = get(&router, path).await;
            let shown = (text.contains(internal), text.contains(external));
            assert_eq!(shown, want, "{path}: {text}");
        }
    }

    #[tokio::test]
    async fn events_have_a_gate_and_readiness_needs_pods() {
        let (closed, _) = served(Gates::default());
        let router = closed.router();
        assert_eq!(get(&router, "/events").await.0, StatusCode::NOT_FOUND);
        assert_eq!(get(&router, "/debug/status").await.0, StatusCode::OK);
        assert_eq!(get(&router, "/healthz").await.0, StatusCode::OK);
        let mut gates = Gates::default();
        gates.set(Gate::AuditEventsHTTPHandler, true);
        let (open, _) = served(gates);
        let ready = open.ready.clone();
        let router = open.router();
        assert_eq!(get(&router, "/events").await.0, StatusCode::OK);
        let (code, text) = get(&router, "/readyz").await;
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(text.contains("no list of pods"), "{text}");
        ready.store(true, Ordering::Relaxed);
        assert_eq!(get(&router, "/readyz").await.0, StatusCode::OK);
    }
}
