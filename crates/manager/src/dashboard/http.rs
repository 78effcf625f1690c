//! The routes of the dashboard: the page, its style and script, and the JSON.

use super::Dashboard;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, IF_NONE_MATCH,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use rustc_hash::FxHasher;
use serde::Deserialize;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Everything comes from this server, and nothing in the page is a script or style of its own.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const PAGE: &str = include_str!("assets/index.html");
/// Files of the page: name, type, content.
static FILES: [(&str, &str, &str); 3] = [
    (
        "dashboard.css",
        "text/css; charset=utf-8",
        include_str!("assets/dashboard.css"),
    ),
    (
        "dashboard.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/dashboard.js"),
    ),
    (
        "favicon.svg",
        "image/svg+xml",
        include_str!("assets/favicon.svg"),
    ),
];

#[derive(Debug, Default, Deserialize)]
struct StateQuery {
    node: Option<String>,
}

impl Dashboard {
    /// Returns the routes below `/dashboard`.
    pub(crate) fn routes(self: Arc<Self>) -> Router {
        page_routes().route("/dashboard/api/v1/state", get(state).with_state(self))
    }
}

/// Returns the routes of the page without its data.
fn page_routes() -> Router {
    Router::new()
        .route(
            "/dashboard",
            // Relative: a proxy may serve it below another path.
            get(|| async { Redirect::permanent("dashboard/") }),
        )
        .route(
            "/dashboard/",
            get(|headers: HeaderMap| async move { respond(&headers, HTML, PAGE) }),
        )
        .route("/dashboard/{file}", get(file))
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match FILES.iter().find(|(file, ..)| *file == name) {
        Some(&(_, kind, content)) => respond(&headers, kind, content),
        None => (StatusCode::NOT_FOUND, "404 page not found").into_response(),
    }
}

async fn state(
    State(dashboard): State<Arc<Dashboard>>,
    Query(query): Query<StateQuery>,
    headers: HeaderMap,
) -> Response {
    match dashboard.json(query.node.as_deref()).await {
        Ok(json) => respond(&headers, JSON, &json),
        Err(error) => {
            tracing::error!(%error, "failed to encode the state of the dashboard");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Fetches a path, query included, from the server that has the data: status code and body.
type Fetch = Arc<dyn Fn(String) -> BoxFuture<'static, Result<(u16, String), String>> + Send + Sync>;

/// Returns the routes of a dashboard whose data `fetch` gets from another server, which may need credentials
/// that a browser does not have.
pub fn forwarded_routes(
    fetch: impl Fn(String) -> BoxFuture<'static, Result<(u16, String), String>> + Send + Sync + 'static,
) -> Router {
    let fetch: Fetch = Arc::new(fetch);
    let forward = move |Query(query): Query<StateQuery>, headers: HeaderMap| {
        let fetch = fetch.clone();
        async move {
            let mut path = "/dashboard/api/v1/state".to_owned();
            if let Some(node) = query.node {
                path.push_str("?node=");
                path.push_str(&percent_encode(&node));
            }
            match fetch(path).await {
                Ok((200, body)) => respond(&headers, JSON, &body),
                Ok((code, _)) => {
                    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY);
                    (code, "the manager refused the request\n").into_response()
                }
                Err(error) => (StatusCode::BAD_GATEWAY, error).into_response(),
            }
        }
    };
    page_routes().route("/dashboard/api/v1/state", get(forward))
}

/// Percent-encodes a value of a URL query.
fn percent_encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Returns `body`, or 304 if the client has it.
fn respond(request: &HeaderMap, kind: &'static str, body: &str) -> Response {
    let mut hasher = FxHasher::default();
    body.hash(&mut hasher);
    let tag = format!("\"{:016x}\"", hasher.finish());
    let cached = request
        .get_all(IF_NONE_MATCH)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.contains(&*tag)));
    let headers = [
        (CONTENT_TYPE, kind),
        // The browser asks each time whether its copy is current.
        (CACHE_CONTROL, "private, no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (ETAG, tag.as_str()),
    ];
    if cached {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, body.to_owned()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bodies_are_sent_once() {
        let mut headers = HeaderMap::new();
        let first = respond(&headers, JSON, "{}");
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[CONTENT_SECURITY_POLICY], POLICY);
        headers.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
        assert_eq!(
            respond(&headers, JSON, "{}").status(),
            StatusCode::NOT_MODIFIED
        );
        assert_eq!(respond(&headers, JSON, "[]").status(), StatusCode::OK);
    }

    /// Names and messages come from tenants: the script may only set text, and the page has no code or style
    /// that the policy refuses.
    #[test]
    fn assets_never_parse_text_as_markup() {
        let script = FILES[1].2;
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
            "setAttribute(\"style\"",
            "setAttribute(\"on",
            "http://",
            "https://",
        ] {
            // The namespace of SVG is a name, not an address that is fetched.
            let script = script.replace("http://www.w3.org/2000/svg", "");
            assert!(!script.contains(forbidden), "{forbidden}");
        }
        for forbidden in [" style=", "<style", " on", "http:", "https:"] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        assert!(PAGE.contains("<script src=\"dashboard.js\""));
        let size: usize = FILES.iter().map(|(.., content)| content.len()).sum();
        assert!(size + PAGE.len() < 40 * 1024, "{size}");
    }

    #[test]
    fn query_values_are_encoded() {
        assert_eq!(percent_encode("node-1.a"), "node-1.a");
        assert_eq!(
            percent_encode("a b&c=\u{e9}\r\n"),
            "a%20b%26c%3D%C3%A9%0D%0A"
        );
    }
}
