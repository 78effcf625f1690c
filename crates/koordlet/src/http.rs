//! Health, metrics and audit events over HTTP.

use crate::audit::Log;
use crate::gates::{Gate, Gates};
use crate::metrics::is_external;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use koord_app::admin::{Admin, AdminError};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The size of a page when none is asked for.
const DEFAULT_SIZE: usize = 256;
/// The largest page.
const MAX_SIZE: usize = 2048;

/// Serves until `shutdown`; returns the address really used.
///
/// # Errors
/// When the address is not free.
pub(crate) async fn serve(
    address: SocketAddr,
    registry: prometheus::Registry,
    audit: Log,
    gates: Gates,
    ready: Arc<AtomicBool>,
    shutdown: CancellationToken,
) -> Result<SocketAddr, AdminError> {
    let admin = Admin::new(registry).split_metrics(is_external);
    let admin = admin.ready_when("pods", move || {
        let ready = ready.load(Ordering::Relaxed);
        ready
            .then_some(())
            .ok_or_else(|| "no list of pods arrived yet".to_owned())
    });
    let mut router = admin.router();
    if gates.is_on(Gate::AuditEventsHTTPHandler) {
        router = router.merge(events(audit));
    }
    let fail = |source| AdminError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let local = listener.local_addr().map_err(fail)?;
    tokio::spawn(async move {
        let stop = shutdown.cancelled_owned();
        if let Err(error) = axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
        {
            tracing::error!(%error, "http server failed");
        }
    });
    Ok(local)
}

/// `GET /events?size=&pageToken=`, newest first; JSON when it is asked for, else one line each.
pub fn events(audit: Log) -> Router {
    Router::new().route("/events", get(page)).with_state(audit)
}

#[derive(Deserialize)]
struct Ask {
    size: Option<String>,
    #[serde(rename = "pageToken")]
    page_token: Option<String>,
}

async fn page(State(log): State<Log>, Query(ask): Query<Ask>, headers: HeaderMap) -> Response {
    let refuse = |code, text: String| (code, text).into_response();
    let size = match ask.size.as_deref().filter(|text| !text.is_empty()) {
        None => DEFAULT_SIZE,
        Some(text) => match text.parse() {
            Ok(size) if (1..=MAX_SIZE).contains(&size) => size,
            _ => {
                let text = format!("size must be 1..={MAX_SIZE}, got {text:?}");
                return refuse(StatusCode::BAD_REQUEST, text);
            }
        },
    };
    let token = match ask.page_token.as_deref().filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => match text.parse() {
            Ok(token) => Some(token),
            Err(_) => {
                let text = format!("pageToken {text:?} is unknown or expired");
                return refuse(StatusCode::CONFLICT, text);
            }
        },
    };
    let (entries, next) = match log.page(token, size) {
        Ok(page) => page,
        Err(error) => return refuse(StatusCode::CONFLICT, error.to_string()),
    };
    let json = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("application/json"));
    if json {
        let mut body = serde_json::json!({ "Events": entries });
        if let Some(next) = next {
            body["NextPageToken"] = next.to_string().into();
        }
        return axum::Json(body).into_response();
    }
    let mut text = String::new();
    for entry in entries {
        match serde_json::to_string(&entry) {
            Ok(line) => {
                text.push_str(&line);
                text.push('\n');
            }
            Err(error) => tracing::warn!(%error, "audit record"),
        }
    }
    let mut response = text.into_response();
    if let Some(next) = next {
        let name = HeaderName::from_static("next-page-token");
        response.headers_mut().insert(name, next.into());
    }
    response
}
