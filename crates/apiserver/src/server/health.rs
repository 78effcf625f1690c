//! `/healthz`, `/livez`, `/readyz` and `/version`, which need no authentication.

use crate::store::Store;
use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use serde_json::json;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// Kubernetes minor version whose behavior is served.
const MINOR: &str = "35";
/// Version that clients see; the suffix distinguishes it from upstream's server.
const GIT_VERSION: &str = "v1.35.6+koord";

/// Health state of the server.
#[derive(Debug)]
pub(super) struct Health {
    store: Store,
    ready: AtomicBool,
    stopping: AtomicBool,
}

impl Health {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            ready: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }
    }

    /// Marks the server as ready: the built-in objects exist.
    pub(super) fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Marks the server as shutting down.
    pub(super) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Returns the response for `path` if it is a health or version endpoint.
    pub(super) fn response(&self, path: &str, query: Option<&str>) -> Option<Response> {
        let mut segments = path.trim_matches('/').splitn(2, '/');
        let probe = segments.next()?;
        let only = segments.next();
        if probe == "version" && only.is_none() {
            let refused = query.and_then(|query| crate::rest::check_timeout(query).err());
            return Some(refused.map_or_else(version, |e| {
                let body = e.to_value().to_string();
                with_type(StatusCode::BAD_REQUEST, "application/json", body)
            }));
        }
        if !matches!(probe, "healthz" | "livez" | "readyz") {
            return None;
        }
        let all = self.checks(probe);
        let checks: Vec<_> = all
            .iter()
            .filter(|(name, _)| only.is_none_or(|only| only == *name))
            .collect();
        if checks.is_empty() {
            return Some(text(
                StatusCode::NOT_FOUND,
                "404 page not found\n".to_owned(),
            ));
        }
        let healthy = checks.iter().all(|(_, result)| result.is_ok());
        let verbose = query.is_some_and(|query| {
            query
                .split('&')
                .any(|pair| pair == "verbose" || pair.starts_with("verbose="))
        });
        if healthy && !verbose {
            return Some(text(StatusCode::OK, "ok".to_owned()));
        }
        let mut report = String::new();
        for (name, result) in checks {
            let _ = match result {
                Ok(()) => writeln!(report, "[+]{name} ok"),
                Err(reason) => writeln!(report, "[-]{name} failed: {reason}"),
            };
        }
        let verdict = if healthy { "passed" } else { "failed" };
        let _ = writeln!(report, "{probe} check {verdict}");
        let status = if healthy {
            StatusCode::OK
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        };
        Some(text(status, report))
    }

    fn checks(&self, probe: &str) -> Vec<(&'static str, Result<(), String>)> {
        let mut checks = vec![("ping", Ok(()))];
        if probe != "livez" {
            // Why the last write failed. A full disk needs no restart, so liveness does not include it.
            checks.push(("storage", self.store.last_error().map_or(Ok(()), Err)));
        }
        if probe == "readyz" {
            let started = self.ready.load(Ordering::Acquire);
            let stopping = self.stopping.load(Ordering::Acquire);
            let check = |fine: bool, reason: &str| if fine { Ok(()) } else { Err(reason.into()) };
            checks.push((
                "bootstrap",
                check(started, "the built-in objects do not exist yet"),
            ));
            checks.push(("shutdown", check(!stopping, "the server is shutting down")));
        }
        checks
    }
}

fn version() -> Response {
    let version = json!({
        "major": "1",
        "minor": MINOR,
        "emulationMajor": "1",
        "emulationMinor": MINOR,
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": MINOR,
        "gitVersion": GIT_VERSION,
        "gitCommit": "unknown",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("linux/{}", go_arch()),
    });
    with_type(StatusCode::OK, "application/json", format!("{version:#}"))
}

/// Returns the machine's architecture by its name in Go and Kubernetes.
fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn text(status: StatusCode, body: String) -> Response {
    with_type(status, "text/plain; charset=utf-8", body)
}

/// Builds a small response of `content_type`.
pub(super) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Body>,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
