//! The HTTPS server: authentication (certificates, tokens), TLS, HTTP/1.1 and HTTP/2, health, metrics.
//!
//! Invariants: clients without credentials get health and version, and are otherwise `system:anonymous`,
//! which has no other permissions by default; secrets are written to files of mode 0600 and never logged; the
//! server listens on loopback unless remote access is allowed explicitly.

mod activity;
mod auth;
mod connections;
mod error;
mod frontend;
mod health;
mod impersonate;
mod kubeconfig;
mod limits;
mod listen;
mod metrics;
mod pki;
mod secret_file;
mod sending;
#[cfg(test)]
mod tests;
mod tls;

pub use error::ServeError;
pub use limits::Limits;

use crate::rest::Api;
use crate::store::Store;
use axum::Router;
use frontend::{Access, HttpFrontend};
use health::Health;
use koord_app::Clock;
use koord_kinds::Registry;
use metrics::HttpMetrics;
use parking_lot::Mutex;
use pki::Authority;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A kubeconfig is renewed if its certificate expires within this time.
const RENEWAL: Duration = Duration::from_secs(90 * 24 * 3600);
/// User and groups of the administrator's kubeconfig.
const ADMIN: (&str, &[&str]) = ("kubernetes-admin", &["system:masters"]);

/// Returns the key (PKCS #8) that signs service account tokens. It is read from `dir` and created there if
/// missing; without `dir` it lives as long as the process.
pub(crate) fn token_key(dir: Option<&Path>) -> Result<Vec<u8>, ServeError> {
    pki::token_key(dir)
}

/// Options of a [`Server`].
#[derive(Debug)]
pub(crate) struct ServerOptions {
    pub(crate) bind: SocketAddr,
    pub(crate) allow_remote: bool,
    /// Directory of the certificate authority; `None`: in memory.
    pub(crate) pki_dir: Option<PathBuf>,
    pub(crate) clock: Clock,
    pub(crate) metrics: prometheus::Registry,
    pub(crate) limits: Limits,
    /// Ends all streams when it is cancelled.
    pub(crate) stop: CancellationToken,
}

/// The HTTPS server of the API.
#[derive(Debug)]
pub(crate) struct Server {
    options: ServerOptions,
    frontend: HttpFrontend,
    /// Certificate authority of the server and its clients; opened when first needed.
    authority: Mutex<Option<Arc<Authority>>>,
    bound: Mutex<Option<SocketAddr>>,
}

impl Server {
    /// Creates a server of `api`.
    pub(crate) fn new(
        options: ServerOptions,
        api: &Api,
        store: &Store,
        kinds: Registry,
    ) -> Result<Self, ServeError> {
        api.admission()
            .webhooks()
            .register_metrics(&options.metrics)?;
        let frontend = HttpFrontend {
            api: api.clone(),
            health: Arc::new(Health::new(store.clone())),
            metrics: HttpMetrics::new(options.metrics.clone(), store, kinds)?,
            gate: limits::Gate::new(&options.limits),
            clients: sending::Clients::new(&options.limits),
            stop: options.stop.clone(),
        };
        Ok(Self {
            options,
            frontend,
            authority: Mutex::default(),
            bound: Mutex::default(),
        })
    }

    /// Returns the service for callers in this process.
    pub(crate) fn in_process_service(&self) -> Router {
        self.frontend.router(Access::InProcess)
    }

    /// Makes `/readyz` report that the server is ready.
    pub(crate) fn set_ready(&self) {
        self.frontend.health.set_ready();
    }

    /// Binds the configured address.
    pub(crate) async fn listen(&self) -> Result<TcpListener, ServeError> {
        let address = self.options.bind;
        self.check_reach(address)?;
        let refused = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        *self.bound.lock() = Some(listener.local_addr().map_err(refused)?);
        Ok(listener)
    }

    /// Serves HTTPS on `listener` until `shutdown`.
    pub(crate) async fn serve(
        &self,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let address = listener.local_addr().map_err(|source| ServeError::Listen {
            address: self.options.bind,
            source,
        })?;
        self.check_reach(address)?;
        *self.bound.lock() = Some(address);
        let authority = self.authority()?;
        let tls = tls::config(&authority, authority.server(&[address.ip()])?)?;
        // One server can serve several listeners; each ends by its own token, all by `stop`.
        let stop = self.options.stop.child_token();
        let frontend = HttpFrontend {
            stop: stop.clone(),
            ..self.frontend.clone()
        };
        let router = frontend.router(Access::Network);
        let limits = self.options.limits.clone();
        let serving = listen::serve(listener, tls, router, limits, stop.clone());
        tokio::pin!(serving);
        tokio::select! {
            () = &mut serving => {}
            () = shutdown.cancelled() => {
                self.frontend.health.set_stopping();
                stop.cancel();
                serving.await;
            }
        }
        Ok(())
    }

    /// Writes a kubeconfig of the administrator to `path`. A valid one is kept, so that copies of it stay
    /// valid and no unneeded credentials exist.
    pub(crate) fn write_kubeconfig(&self, path: &Path) -> Result<(), ServeError> {
        let address = self.bound.lock().unwrap_or(self.options.bind);
        if address.port() == 0 {
            return Err(ServeError::NoAddress);
        }
        let authority = self.authority()?;
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if secret_file::is_private(path)
            && let Some(certificate) = kubeconfig::certificate_in(&text, address, authority.pem())
        {
            let now = self.options.clock.now();
            let soon = now.checked_add(RENEWAL).unwrap_or(now);
            let is_administrator = koord_app::certificate::subject(&certificate)
                .is_some_and(|(name, groups)| name == ADMIN.0 && groups == ADMIN.1);
            if is_administrator && tls::will_accept(&authority, &certificate, soon)? {
                return Ok(());
            }
        }
        let identity = authority.client(ADMIN.0, ADMIN.1)?;
        let text = kubeconfig::render(address, authority.pem(), &identity);
        secret_file::write(path, text.as_bytes())
    }

    /// Returns the TLS configuration of an HTTP/2 client that is `user` in `groups`.
    pub(crate) fn client_tls(
        &self,
        user: &str,
        groups: &[&str],
    ) -> Result<Arc<rustls::ClientConfig>, ServeError> {
        let authority = self.authority()?;
        tls::client_config(&authority, authority.client(user, groups)?)
    }

    /// Returns the authority's certificate (PEM).
    pub(crate) fn authority_pem(&self) -> Result<String, ServeError> {
        Ok(self.authority()?.pem().to_owned())
    }

    fn check_reach(&self, address: SocketAddr) -> Result<(), ServeError> {
        if self.options.allow_remote || address.ip().is_loopback() {
            Ok(())
        } else {
            Err(ServeError::NotLoopback { address })
        }
    }

    fn authority(&self) -> Result<Arc<Authority>, ServeError> {
        let mut authority = self.authority.lock();
        if let Some(authority) = &*authority {
            return Ok(Arc::clone(authority));
        }
        let dir = self.options.pki_dir.as_deref();
        let opened = Arc::new(Authority::open(dir, self.options.clock.now())?);
        *authority = Some(Arc::clone(&opened));
        Ok(opened)
    }
}
