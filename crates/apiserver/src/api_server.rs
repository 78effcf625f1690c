//! The assembled API server: store, REST layer, HTTPS server and controllers.

use crate::controllers;
use crate::rest::exec::PodExec;
use crate::rest::logs::PodLogs;
use crate::rest::{Api, ApiOptions, Authorization, User, bootstrap, has_right};
use crate::server::{self, Limits, ServeError, Server, ServerOptions};
use crate::store::{Backing, Durability, HistoryLimits, Store, StoreError, StoreOptions};
use crate::tokens::Tokens;
use axum::Router;
use axum::body::Body;
use axum::middleware::{self, Next};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use koord_app::Clock;
use koord_app::flags::Selection;
use koord_kinds::Registry;
use koord_kinds::status::ApiError;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Default port of Kubernetes API servers.
const PORT: u16 = 6443;

/// Storage of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// The memory of the process: objects are lost when it ends.
    Memory,
    /// Durable storage in this directory, which is created if missing.
    Dir(PathBuf),
}

/// Configuration of an [`ApiServer`].
#[derive(Clone)]
pub struct Config {
    /// Storage of objects.
    pub storage: Storage,
    /// Address to listen on. Default `127.0.0.1:6443`.
    pub bind: SocketAddr,
    /// True if `bind` may be an address that other machines can reach.
    pub allow_remote: bool,
    /// Clock of the whole server.
    pub clock: Clock,
    /// Source of container logs for `pods/log`; `None`: not served.
    pub pod_logs: Option<Arc<dyn PodLogs>>,
    /// Runner of commands for `pods/exec`; `None`: not served.
    pub pod_exec: Option<Arc<dyn PodExec>>,
    /// Authorization mode. Default: roles and bindings.
    pub authorization: Authorization,
    /// Enabled built-in [`controllers`]. Default: all.
    pub controllers: Selection,
    /// Number of ended pods that are kept, newest first; 0: all. Default: 12,500, as in
    /// kube-controller-manager.
    pub terminated_pod_gc_threshold: usize,
    /// Point at which a write to a directory counts as durable.
    pub durability: Durability,
    /// Limits of the history kept for watches.
    pub history: HistoryLimits,
    /// Registry of the metrics.
    pub metrics: prometheus::Registry,
    /// Limits on what clients can use.
    pub limits: Limits,
}

impl Config {
    /// Returns the defaults with `storage` and `clock`.
    #[must_use]
    pub fn new(storage: Storage, clock: Clock) -> Self {
        Self {
            storage,
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)),
            allow_remote: false,
            clock,
            pod_logs: None,
            pod_exec: None,
            authorization: Authorization::default(),
            controllers: Selection::all(),
            terminated_pod_gc_threshold: 12_500,
            durability: Durability::default(),
            history: HistoryLimits::default(),
            metrics: prometheus::Registry::new(),
            limits: Limits::default(),
        }
    }

    /// Returns the defaults with storage in memory.
    #[must_use]
    pub fn memory(clock: Clock) -> Self {
        Self::new(Storage::Memory, clock)
    }

    /// Returns the defaults with durable storage in `dir`.
    #[must_use]
    pub fn dir(dir: impl Into<PathBuf>, clock: Clock) -> Self {
        Self::new(Storage::Dir(dir.into()), clock)
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("storage", &self.storage)
            .field("bind", &self.bind)
            .field("allow_remote", &self.allow_remote)
            .finish_non_exhaustive()
    }
}

/// Errors of the API server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Error of the HTTPS server.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The built-in objects could not be created.
    #[error("failed to create built-in objects: {0}")]
    Bootstrap(ApiError),
    /// A custom resource definition was refused.
    #[error("failed to install custom resource definition {name:?}: {message}")]
    Crd {
        /// Name of the definition.
        name: String,
        /// Cause.
        message: String,
    },
}

/// Interval of attempts to create the built-in objects while the store is not writable.
const BUILT_INS_RETRY: Duration = Duration::from_secs(5);

/// Creates the missing built-in objects as soon as the store is writable.
async fn complete_built_ins(api: &Api, authority: &str) {
    loop {
        tokio::time::sleep(BUILT_INS_RETRY).await;
        match bootstrap::ensure_built_ins(api, authority).await {
            Ok(()) => {
                return tracing::info!("created the built-in objects, store is writable again");
            }
            Err(error) => {
                tracing::debug!(%error, "failed to create the built-in objects, retrying")
            }
        }
    }
}

/// A running control plane. It works as soon as it is open: in process through [`ApiServer::service`], over
/// the network after [`ApiServer::serve`].
#[derive(Debug)]
pub struct ApiServer {
    api: Api,
    server: Server,
    stop: CancellationToken,
    controllers: TaskTracker,
}

impl ApiServer {
    /// Opens the store, creates the built-in objects and starts the controllers.
    ///
    /// # Errors
    /// If the data directory is in use, unreadable or corrupt, or metrics conflict.
    pub fn open(config: Config) -> BoxFuture<'static, Result<Arc<Self>, Error>> {
        // Boxed here, like all large futures below: otherwise each calling crate compiles it again.
        Box::pin(Self::open_unboxed(config))
    }

    async fn open_unboxed(config: Config) -> Result<Arc<Self>, Error> {
        let (backing, pki_dir) = match &config.storage {
            Storage::Memory => (Backing::Memory, None),
            Storage::Dir(dir) => (Backing::Dir(dir.join("store")), Some(dir.join("pki"))),
        };
        let mut options = StoreOptions::new(backing, config.clock.clone());
        options.durability = config.durability;
        options.history = config.history;
        let store = Store::open(options).await?;
        let started = Self::start(config, store.clone(), pki_dir).await;
        if started.is_err() {
            // Releases the directory, so that a caller can try again.
            store.close().await;
        }
        started
    }

    /// Starts the server over `store`: tokens, built-in objects, controllers and the HTTP frontend.
    async fn start(
        config: Config,
        store: Store,
        pki_dir: Option<PathBuf>,
    ) -> Result<Arc<Self>, Error> {
        let stop = CancellationToken::new();
        let registry = Registry::builtin();
        let key = server::token_key(pki_dir.as_deref())?;
        let tokens = Tokens::new(&key, store.clone(), config.clock.clone());
        let tokens = tokens.map_err(|reason| ServeError::token_key(pki_dir.as_deref(), reason))?;
        let api = Api::new(ApiOptions {
            store: store.clone(),
            registry: registry.clone(),
            clock: config.clock.clone(),
            pod_logs: config.pod_logs,
            pod_exec: config.pod_exec,
            tokens: Arc::new(tokens),
            authorization: config.authorization,
            shutdown: stop.clone(),
        });
        let options = ServerOptions {
            bind: config.bind,
            allow_remote: config.allow_remote,
            pki_dir,
            clock: config.clock,
            metrics: config.metrics,
            limits: config.limits,
            stop: stop.clone(),
        };
        let server = Server::new(options, &api, &store, registry)?;
        let authority = server.authority_pem()?;
        bootstrap::load(&api);
        let complete = bootstrap::ensure_built_ins(&api, &authority).await;
        let (wanted, ended_pods) = (&config.controllers, config.terminated_pod_gc_threshold);
        if let Err(error) = &complete
            && (!bootstrap::is_bootstrapped(&api) || store.last_error().is_none())
        {
            return Err(Error::Bootstrap(error.clone()));
        }
        let controllers = controllers::start(&api, &authority, wanted, ended_pods, &stop);
        if let Err(error) = complete {
            tracing::error!(%error, "failed to write built-in objects, serving stored objects until the store is writable");
            let (api, stop) = (api.clone(), stop.clone());
            tokio::spawn(async move {
                let completed = complete_built_ins(&api, &authority);
                stop.run_until_cancelled(completed).await;
            });
        }
        server.set_ready();
        Ok(Arc::new(Self {
            api,
            server,
            stop,
            controllers,
        }))
    }

    /// Returns the server as a service for callers in this process. They act as the administrator unless the
    /// request has a token or another [`crate::authz::User`] in its extensions.
    pub fn service(&self) -> Router {
        self.server.in_process_service()
    }

    /// Like [`Self::service`], for callers that all are `user`. Calls `seen` for each resource request with
    /// the permission it needs, in the format of [`crate::required_right`], and whether roles grant it.
    pub fn service_as(
        &self,
        user: User,
        seen: impl Fn(&str, bool) + Clone + Send + Sync + 'static,
    ) -> Router {
        let api = self.api.clone();
        let ask = move |mut request: Request<Body>, next: Next| {
            request.extensions_mut().insert(user.clone());
            let (method, uri) = (request.method(), request.uri());
            if let Some(right) = crate::required_right(method, uri) {
                seen(&right, has_right(&api, &user, method, uri));
            }
            next.run(request)
        };
        Router::new()
            .fallback_service(self.service())
            .layer(middleware::from_fn(ask))
    }

    /// Returns the API, with the verbs as methods.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.api.store()
    }

    /// Binds the configured address.
    ///
    /// # Errors
    /// If it is in use, or if other machines can reach it and that is not allowed.
    pub async fn listen(&self) -> Result<TcpListener, Error> {
        Ok(self.server.listen().await?)
    }

    /// Serves HTTPS on `listener` until `shutdown`; then ends the open watches, finishes requests in progress
    /// and returns.
    ///
    /// # Errors
    /// If the certificates cannot be created, or the listener is not on loopback and remote access is not
    /// allowed.
    pub fn serve(
        &self,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { Ok(self.server.serve(listener, shutdown).await?) })
    }

    /// Writes a kubeconfig (mode 0600) of the administrator to `path`, with the bound address or else the
    /// configured one. A valid kubeconfig is kept, with its key.
    ///
    /// # Errors
    /// If it cannot be written, or if the port is not known yet.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<(), Error> {
        Ok(self.server.write_kubeconfig(path)?)
    }

    /// Returns the authority's certificate (PEM).
    #[cfg(test)]
    pub(crate) fn authority_pem(&self) -> Result<String, Error> {
        Ok(self.server.authority_pem()?)
    }

    /// Returns the TLS configuration of an HTTP/2 client of this server that is `user` in `groups`.
    ///
    /// # Errors
    /// If no certificate can be issued.
    pub fn client_tls(
        &self,
        user: &str,
        groups: &[&str],
    ) -> Result<Arc<rustls::ClientConfig>, Error> {
        Ok(self.server.client_tls(user, groups)?)
    }

    /// Creates or updates custom resource definitions.
    ///
    /// # Errors
    /// The first refusal.
    pub fn install_crds(&self, definitions: Vec<Value>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            for definition in definitions {
                self.install_crd(definition).await?;
            }
            Ok(())
        })
    }

    async fn install_crd(&self, mut definition: Value) -> Result<(), Error> {
        const COLLECTION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let name = definition["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let refused = |message: &str| Error::Crd {
            name: name.clone(),
            message: message.to_owned(),
        };
        let item = format!("{COLLECTION}/{name}");
        // Another client may change it in between, so the attempt is repeated.
        for _ in 0..5 {
            let (status, answer) = match self.call(Method::GET, &item, None).await {
                (StatusCode::OK, current) => {
                    definition["metadata"]["resourceVersion"] =
                        current["metadata"]["resourceVersion"].clone();
                    self.call(Method::PUT, &item, Some(&definition)).await
                }
                _ => self.call(Method::POST, COLLECTION, Some(&definition)).await,
            };
            if status.is_success() {
                return Ok(());
            }
            if status != StatusCode::CONFLICT {
                return Err(refused(
                    answer["message"].as_str().unwrap_or(status.as_str()),
                ));
            }
        }
        Err(refused("changed by another client during every attempt"))
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (StatusCode, Value) {
        let body = body.map_or_else(Body::empty, |value| Body::from(value.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body);
        let failed = |message: String| {
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                serde_json::json!({ "message": message }),
            )
        };
        let request = match request {
            Ok(request) => request,
            Err(error) => return failed(error.to_string()),
        };
        let response = match self.service().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        match response.into_body().collect().await {
            Ok(body) => {
                let bytes: Bytes = body.to_bytes();
                (status, serde_json::from_slice(&bytes).unwrap_or_default())
            }
            Err(error) => failed(error.to_string()),
        }
    }

    /// Stops the controllers, ends all streams and closes the store. Acknowledged writes are durable without
    /// it, too.
    pub fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.stop.cancel();
            self.controllers.wait().await;
            self.store().close().await;
        })
    }
}
