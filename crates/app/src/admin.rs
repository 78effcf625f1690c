//! The HTTP server of every daemon for its operator: health, readiness, metrics, debugging.

mod slis;

use crate::local::refuse_foreign;
use crate::metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use prometheus::Registry;
use slis::Slis;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

type HealthCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;
/// Returns true if a family of metrics, given by name, is for users and other components.
type IsExternal = fn(&str) -> bool;
type Page = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// An error that prevents the server from starting.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Plain HTTP on an address that other machines can reach, without a flag that allows it.
    #[error("refusing to serve plain HTTP on {0}, which is not a loopback address")]
    Exposed(SocketAddr),
    /// The address is in use or not one of this machine.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Clients that may reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Clients on this machine. Other addresses are rejected, and so are requests that name another machine
    /// or come from a page in a browser.
    Loopback,
    /// Any client that can route to the address. There is no TLS and no authentication: meant for probes and
    /// metrics on a pod network, which upstream also serves so by default.
    Anyone,
}

/// Content of the server: health checks, metrics and debug pages.
#[derive(Clone)]
pub struct Admin {
    registry: Registry,
    ready: Vec<(&'static str, HealthCheck)>,
    pages: Vec<(&'static str, Page)>,
    routes: Router,
    slis: Option<Slis>,
    external: Option<IsExternal>,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ready: Vec<_> = self.ready.iter().map(|(name, _)| name).collect();
        let pages: Vec<_> = self.pages.iter().map(|(path, _)| path).collect();
        f.debug_struct("Admin")
            .field("ready", &ready)
            .field("pages", &pages)
            .finish()
    }
}

impl Admin {
    /// Creates a server of `/healthz`, `/livez`, `/readyz`, the metrics of `registry` and, at
    /// `/metrics/slis`, the results of the checks.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            ready: Vec::new(),
            pages: Vec::new(),
            routes: Router::new(),
            slis: Slis::new().ok(),
            external: None,
        }
    }

    /// Serves the metric families for whose names `external` returns true at `/external-metrics`, and the
    /// others at `/internal-metrics`. `/metrics` serves all.
    #[must_use]
    pub fn split_metrics(mut self, external: fn(&str) -> bool) -> Self {
        self.external = Some(external);
        self
    }

    /// Adds whole routes of the component's own.
    #[must_use]
    pub fn with_routes(mut self, routes: Router) -> Self {
        self.routes = self.routes.merge(routes);
        self
    }

    /// Adds a check to `/readyz`. An error of it is the reason why the component is not ready.
    #[must_use]
    pub fn ready_when(
        mut self,
        name: &'static str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.ready.push((name, Arc::new(check)));
        self
    }

    /// Adds a JSON page, for example at `/debug/plugins`.
    #[must_use]
    pub fn page(
        mut self,
        path: &'static str,
        content: impl Fn() -> serde_json::Value + Send + Sync + 'static,
    ) -> Self {
        self.pages.push((path, Arc::new(content)));
        self
    }

    /// Returns the routes, to be added to another server.
    pub fn router(&self) -> Router {
        let mut router = self
            .routes
            .clone()
            .merge(slis::routes(self.slis.clone()))
            .route(
                "/readyz",
                get(ready).with_state((Arc::new(self.ready.clone()), self.slis.clone())),
            );
        for (path, kind) in [("/healthz", "healthz"), ("/livez", "livez")] {
            let slis = self.slis.clone();
            let alive = move || {
                slis::observe(slis.as_ref(), "ping", kind, true);
                std::future::ready("ok")
            };
            router = router.route(path, get(alive));
        }
        for (path, external) in [
            ("/metrics", None),
            ("/all-metrics", None),
            ("/internal-metrics", Some(false)),
            ("/external-metrics", Some(true)),
        ] {
            let metrics = EndpointMetrics {
                registry: self.registry.clone(),
                only: self.external.zip(external),
            };
            router = router.route(path, get(serve_metrics).with_state(metrics));
        }
        for (path, page) in &self.pages {
            let page = page.clone();
            router = router.route(path, get(move || async move { axum::Json(page()) }));
        }
        router
    }

    /// Starts to serve on `address` until `shutdown`; returns the actual address.
    ///
    /// # Errors
    ///
    /// When the address is not allowed or not free.
    pub fn serve(
        &self,
        address: SocketAddr,
        exposure: Exposure,
        shutdown: CancellationToken,
    ) -> BoxFuture<'_, Result<SocketAddr, AdminError>> {
        Box::pin(self.serve_unboxed(address, exposure, shutdown))
    }

    async fn serve_unboxed(
        &self,
        address: SocketAddr,
        exposure: Exposure,
        shutdown: CancellationToken,
    ) -> Result<SocketAddr, AdminError> {
        if exposure == Exposure::Loopback && !address.ip().is_loopback() {
            return Err(AdminError::Exposed(address));
        }
        let routes = match exposure {
            Exposure::Loopback => refuse_foreign(self.router()),
            Exposure::Anyone => self.router(),
        };
        serve_routes(routes, address, shutdown).await
    }
}

async fn serve_routes(
    router: Router,
    address: SocketAddr,
    shutdown: CancellationToken,
) -> Result<SocketAddr, AdminError> {
    let fail = |source| AdminError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let local = listener.local_addr().map_err(fail)?;
    tokio::spawn(async move {
        let stop = shutdown.cancelled_owned();
        if let Err(error) = axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
        {
            tracing::error!(%error, "admin server failed");
        }
    });
    Ok(local)
}

/// Returns routes that answer every request below `/debug/pprof`, Go's profiles, with status 501 and a hint at
/// `perf`.
pub fn refused_profile_routes() -> Router {
    let text = format!(
        "This program is not written in Go and has no /debug/pprof. To see where its time goes: \
         perf record -g -p {}\n",
        std::process::id()
    );
    let refuse = get(move || async move { (StatusCode::NOT_IMPLEMENTED, text) });
    Router::new()
        .route("/debug/pprof", refuse.clone())
        .route("/debug/pprof/", refuse.clone())
        .route("/debug/pprof/{*rest}", refuse)
}

/// Serves only the answer that there are no Go profiles, [`refused_profile_routes`], on `address` until `shutdown`.
///
/// # Errors
///
/// When the address is not free.
pub fn refuse_profiles<'a>(
    address: SocketAddr,
    shutdown: CancellationToken,
) -> BoxFuture<'a, Result<SocketAddr, AdminError>> {
    Box::pin(serve_routes(refused_profile_routes(), address, shutdown))
}

type Readiness = (Arc<Vec<(&'static str, HealthCheck)>>, Option<Slis>);

async fn ready(State((checks, slis)): State<Readiness>) -> Response {
    slis::observe(slis.as_ref(), "ping", "readyz", true);
    let mut lines = String::new();
    let mut code = StatusCode::OK;
    for (name, check) in checks.iter() {
        let checked = check();
        slis::observe(slis.as_ref(), name, "readyz", checked.is_ok());
        match checked {
            Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
            Err(reason) => {
                code = StatusCode::INTERNAL_SERVER_ERROR;
                lines.push_str(&format!("[-]{name} failed: {reason}\n"));
            }
        }
    }
    let end = if code == StatusCode::OK {
        "ok"
    } else {
        "readyz check failed\n"
    };
    lines.push_str(end);
    (code, lines).into_response()
}

/// Metrics that one endpoint serves: all of `registry`, or only the external or only the internal ones.
#[derive(Clone)]
struct EndpointMetrics {
    registry: Registry,
    /// The test for external metrics, and true to serve those that pass it, false to serve the others.
    only: Option<(IsExternal, bool)>,
}

async fn serve_metrics(State(endpoint): State<EndpointMetrics>) -> Response {
    let mut families = endpoint.registry.gather();
    if let Some((is_external, external)) = endpoint.only {
        families.retain(|family| is_external(family.name()) == external);
    }
    match metrics::encode_families(&families) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::IntGauge;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn get(address: SocketAddr, path: &str) -> String {
        send_request(address, "GET", path).await
    }

    async fn send_request(address: SocketAddr, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn health_readiness_metrics_and_pages_are_served() {
        let registry = Registry::new();
        let gauge = IntGauge::new("koordinator_manager_is_leader", "Leader").unwrap();
        metrics::register(&registry, gauge).unwrap().set(1);
        let synced = Arc::new(AtomicBool::new(false));
        let is_synced = synced.clone();
        let admin = Admin::new(registry)
            .ready_when("informers", move || {
                is_synced
                    .load(Ordering::SeqCst)
                    .then_some(())
                    .ok_or("nodes not synced".to_owned())
            })
            .page("/debug/answer", || serde_json::json!({"answer": 42}));
        let shutdown = CancellationToken::new();
        let any = "127.0.0.1:0".parse().unwrap();
        let address = admin
            .serve(any, Exposure::Loopback, shutdown.clone())
            .await
            .unwrap();
        assert!(get(address, "/healthz").await.ends_with("\r\n\r\nok"));
        let answer = get(address, "/readyz").await;
        assert!(answer.contains("500 ") && answer.contains("[-]informers failed: nodes not"));
        synced.store(true, Ordering::SeqCst);
        assert!(
            get(address, "/readyz")
                .await
                .contains("[+]informers ok\nok")
        );
        let answer = get(address, "/metrics").await;
        assert!(answer.contains("text/plain; version=0.0.4"));
        assert!(answer.contains("koordinator_manager_is_leader 1"));
        assert!(
            get(address, "/debug/answer")
                .await
                .contains("{\"answer\":42}")
        );
        assert!(get(address, "/nope").await.contains("404 "));
        let slis = get(address, "/metrics/slis").await;
        for line in [
            "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1",
            "kubernetes_healthcheck{name=\"informers\",type=\"readyz\"} 1",
            "kubernetes_healthchecks_total{name=\"informers\",status=\"error\",type=\"readyz\"} 1",
            "kubernetes_healthchecks_total{name=\"informers\",status=\"success\",type=\"readyz\"} 1",
        ] {
            assert!(slis.contains(line), "{line}: {slis}");
        }
        let answer = send_request(address, "DELETE", "/metrics/slis").await;
        assert!(answer.ends_with("metrics reset\n"), "{answer}");
        let slis = get(address, "/metrics/slis").await;
        assert!(!slis.contains("ping"), "{slis}");
        shutdown.cancel();
    }

    #[tokio::test]
    async fn metrics_are_split_by_audience() {
        let registry = Registry::new();
        for name in ["for_users", "of_itself"] {
            let gauge = IntGauge::new(name, "Help").unwrap();
            metrics::register(&registry, gauge).unwrap();
        }
        let admin = Admin::new(registry).split_metrics(|name| name == "for_users");
        let any = "127.0.0.1:0".parse().unwrap();
        let shutdown = CancellationToken::new();
        let address = admin
            .serve(any, Exposure::Loopback, shutdown.clone())
            .await
            .unwrap();
        for (path, users, itself) in [
            ("/metrics", true, true),
            ("/external-metrics", true, false),
            ("/internal-metrics", false, true),
        ] {
            let text = get(address, path).await;
            let shown = (
                text.contains("\nfor_users 0"),
                text.contains("\nof_itself 0"),
            );
            assert_eq!(shown, (users, itself), "{path}: {text}");
        }
        shutdown.cancel();
    }

    #[tokio::test]
    async fn profile_request_gets_not_implemented() {
        let shutdown = CancellationToken::new();
        let any = "127.0.0.1:0".parse().unwrap();
        let address = refuse_profiles(any, shutdown.clone()).await.unwrap();
        for path in [
            "/debug/pprof",
            "/debug/pprof/",
            "/debug/pprof/profile?seconds=5",
        ] {
            let answer = get(address, path).await;
            assert!(
                answer.contains(" 501 ") && answer.contains("perf record"),
                "{answer}"
            );
        }
        assert!(get(address, "/metrics").await.contains(" 404 "));
        shutdown.cancel();
    }

    #[tokio::test]
    async fn exposure_has_to_be_meant_and_a_taken_port_is_named() {
        let admin = Admin::new(Registry::new());
        let shutdown = CancellationToken::new();
        let open = "0.0.0.0:0".parse().unwrap();
        let error = admin
            .serve(open, Exposure::Loopback, shutdown.clone())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("0.0.0.0:0"), "{error}");
        let occupied = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = occupied.local_addr().unwrap();
        let error = admin
            .serve(address, Exposure::Loopback, shutdown)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
