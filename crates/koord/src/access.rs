//! Access control of the ports of a local cluster's components: a caller needs the token from the cluster's
//! directory, or a permission that the API server grants.

use anyhow::{Context as _, Result};
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::{Extension, Router};
use koord_kube::Client;
use koord_kube::guard::{ClientIdentity, Guard, GuardOptions};
use koordctl::cluster_files::token_file;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Time for which the API server's answers are cached.
const TTL: Duration = Duration::from_secs(10);
/// Paths that are open because they only show a component's health.
const OPEN: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// Guards the ports of one start of a cluster.
#[derive(Clone)]
pub(crate) struct Access {
    token: Arc<str>,
    client: Client,
}

impl Access {
    /// Makes a token for this start, and writes it to `dir` for its owner's commands.
    ///
    /// # Errors
    /// It cannot be made or written.
    pub(crate) fn new(dir: &Path, client: Client) -> Result<Self> {
        let path = token_file(dir);
        let cannot = || format!("cannot write {}", path.display());
        let mut random = [0; 32];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut random))
            .context("cannot make a token")?;
        let token = random.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        // An existing file may have other permissions.
        let _ = std::fs::remove_file(&path);
        let mut options = std::fs::File::options();
        options.write(true).create_new(true).mode(0o600);
        options
            .open(&path)
            .and_then(|mut file| file.write_all(token.as_bytes()))
            .with_context(cannot)?;
        Ok(Self {
            token: token.into(),
            client,
        })
    }

    /// Returns `routes` with access control: for requests with the token, and for those that the API server
    /// allows.
    ///
    /// # Errors
    /// Never: the paths are constant.
    pub(crate) fn protect(&self, routes: Router) -> Result<Router> {
        let options = GuardOptions {
            always_allow_paths: OPEN.map(str::to_owned).to_vec(),
            token_ttl: TTL,
            authorized_ttl: TTL,
            unauthorized_ttl: TTL,
        };
        let client = || Some(self.client.clone());
        let guard = Guard::new(&options, client(), client())?;
        let guarded = guard.protect(routes.clone());
        let guarded = guarded.layer(Extension(ClientIdentity::from_certificate(None)));
        let state = Arc::new((self.token.clone(), routes));
        // Around the router, not in its routes: their parameters would be matched twice.
        let outer = Router::new().fallback_service(guarded);
        let routes = outer.layer(from_fn_with_state(state, by_token));
        Ok(koord_app::local::refuse_foreign(routes))
    }

    /// Serves `routes` on `listener` until `shutdown`.
    pub(crate) fn serve(&self, listener: TcpListener, routes: Router, shutdown: CancellationToken) {
        let access = self.clone();
        tokio::spawn(async move {
            if let Err(error) = access.run(listener, routes, shutdown).await {
                tracing::error!(error = %format!("{error:#}"), "failed to serve a component's port");
            }
        });
    }

    async fn run(
        &self,
        listener: TcpListener,
        routes: Router,
        shutdown: CancellationToken,
    ) -> Result<()> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let serving = axum::serve(listener, self.protect(routes)?);
        let stop = shutdown.cancelled_owned();
        Ok(serving.with_graceful_shutdown(stop).await?)
    }
}

/// Passes requests with the token, and sends others to the guard.
async fn by_token(
    State(state): State<Arc<(Arc<str>, Router)>>,
    request: Request,
    next: Next,
) -> Response {
    let (token, routes) = &*state;
    let bearer = request.headers().get(AUTHORIZATION);
    let bearer = bearer.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if !bearer.is_some_and(|bearer| is_same(bearer, token.as_bytes())) {
        return next.run(request).await;
    }
    match routes.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Compares in a time that does not depend on the position of the first difference.
fn is_same(given: &[u8], token: &[u8]) -> bool {
    let differences = given.iter().zip(token).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == token.len() && differences == 0
}

/// Listens on `port` of this machine if it is free, else on any free one.
pub(crate) fn listen(port: u16) -> Option<(TcpListener, SocketAddr)> {
    [port, 0].into_iter().find_map(|port| {
        let listener = TcpListener::bind(("127.0.0.1", port)).ok()?;
        let address = listener.local_addr().ok()?;
        Some((listener, address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::routing::get;
    use koord_apiserver::{ApiServer, Config};
    use koord_app::Clock;
    use std::os::unix::fs::PermissionsExt as _;

    #[tokio::test]
    async fn ports_need_the_token_or_a_permission() {
        let server = ApiServer::open(Config::memory(Clock::system()));
        let server = server.await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let dir = tempfile::tempdir().unwrap();
        let path = token_file(dir.path());
        std::fs::write(&path, "of an earlier start").unwrap();
        let access = Access::new(dir.path(), client).unwrap();
        let token = std::fs::read_to_string(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!((token.len(), mode & 0o777), (64, 0o600));
        let routes = Router::new()
            .route(
                "/debug",
                get(|| async { "secret" }).delete(|| async { "deleted" }),
            )
            .route(
                "/debug/{name}",
                get(|axum::extract::Path(name): axum::extract::Path<String>| async move { name }),
            )
            .route("/healthz", get(|| async { "ok" }));
        let routes = access.protect(routes).unwrap();
        let good = format!("Bearer {token}");
        // The last digit differs, whatever it is.
        let last = if token.ends_with('0') { '1' } else { '0' };
        let bad = format!("Bearer {}{last}", &token[..63]);
        for (method, path, bearer, host, code) in [
            ("GET", "/debug", "", "127.0.0.1:1", StatusCode::FORBIDDEN),
            ("DELETE", "/debug", "", "127.0.0.1:1", StatusCode::FORBIDDEN),
            ("GET", "/none", "", "127.0.0.1:1", StatusCode::FORBIDDEN),
            (
                "GET",
                "/debug",
                &bad,
                "127.0.0.1:1",
                StatusCode::UNAUTHORIZED,
            ),
            (
                "GET",
                "/debug",
                "Bearer ",
                "127.0.0.1:1",
                StatusCode::FORBIDDEN,
            ),
            ("GET", "/debug", &good, "127.0.0.1:1", StatusCode::OK),
            ("DELETE", "/debug", &good, "localhost", StatusCode::OK),
            ("GET", "/debug/node", &good, "localhost", StatusCode::OK),
            ("GET", "/debug/node", "", "localhost", StatusCode::FORBIDDEN),
            ("GET", "/none", &good, "localhost", StatusCode::NOT_FOUND),
            (
                "GET",
                "/debug",
                &good,
                "example.com",
                StatusCode::MISDIRECTED_REQUEST,
            ),
            ("GET", "/healthz", "", "localhost", StatusCode::OK),
            (
                "GET",
                "/healthz",
                "",
                "example.com",
                StatusCode::MISDIRECTED_REQUEST,
            ),
        ] {
            let mut request = Request::builder().method(method).uri(path);
            request = request.header("host", host);
            if !bearer.is_empty() {
                request = request.header(AUTHORIZATION, bearer);
            }
            let request = request.body(Body::empty()).unwrap();
            let response = routes.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), code, "{method} {path} {bearer} {host}");
        }
    }
}
