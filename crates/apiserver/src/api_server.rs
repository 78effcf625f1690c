//! The parts put together.

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

/// The port Kubernetes API servers listen on.
const PORT: u16 = 6443;

/// Where objects are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// In memory: gone with the process.
    Memory,
    /// Durably in this directory, made when missing.
    Dir(PathBuf),
}

/// How to run an [`ApiServer`].
#[derive(Clone)]
pub struct Config {
    /// Where objects are kept.
    pub storage: Storage,
    /// Where to listen. Default `127.0.0.1:6443`.
    pub bind: SocketAddr,
    /// Whether `bind` may be an address that other machines can reach.
    pub allow_remote: bool,
    /// Time of everything.
    pub clock: Clock,
    /// Who answers `pods/log`.
    pub pod_logs: Option<Arc<dyn PodLogs>>,
    /// Who answers `pods/exec`.
    pub pod_exec: Option<Arc<dyn PodExec>>,
    /// Who may do what. Default: what roles and bindings say.
    pub authorization: Authorization,
    /// Which of the built-in [`controllers`] run. Default: all.
    pub controllers: Selection,
    /// Pods that have ended are kept up to this number, the newest of them; 0: all. Default: 12,500, as
    /// of kube-controller-manager.
    pub terminated_pod_gc_threshold: usize,
    /// When a write in a directory counts as durable.
    pub durability: Durability,
    /// How much history is kept for watches.
    pub history: HistoryLimits,
    /// Where metrics are registered.
    pub metrics: prometheus::Registry,
    /// What clients can take of the server.
    pub limits: Limits,
}

impl Config {
    /// Defaults with `storage` and `clock`.
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

    /// Defaults, in memory.
    #[must_use]
    pub fn memory(clock: Clock) -> Self {
        Self::new(Storage::Memory, clock)
    }

    /// Defaults, durably in `dir`.
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

/// Why the API server could not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Of the serving side.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The built-in objects could not be made.
    #[error("bootstrap: {0}")]
    Bootstrap(ApiError),
    /// A custom resource definition was refused.
    #[error("custom resource definition {name:?}: {message}")]
    Crd {
        /// Its name.
        name: String,
        /// Why.
        message: String,
    },
}

/// Between two tries to write the built-in objects to a store that takes no writes.
const BUILT_INS_RETRY: Duration = Duration::from_secs(5);

/// Makes the built-in objects that are missing as soon as the store takes them.
async fn complete_built_ins(api: &Api, authority: &str) {
    loop {
        tokio::time::sleep(BUILT_INS_RETRY).await;
        match bootstrap::ensure_built_ins(api, authority).await {
            Ok(()) => return tracing::info!("the store takes writes again"),
            Err(error) => tracing::debug!(%error, "the store takes no writes"),
        }
    }
}

/// A running control plane. It works as soon as it is open: in process through
/// [`ApiServer::service`], over the network after [`ApiServer::serve`].
#[derive(Debug)]
pub struct ApiServer {
    api: Api,
    server: Server,
    stop: CancellationToken,
    controllers: TaskTracker,
}

impl ApiServer {
    /// Opens the store, makes the built-in objects, starts the controllers.
    ///
    /// # Errors
    /// When the data directory is in use, unreadable or corrupt, or metrics clash.
    pub fn open(config: Config) -> BoxFuture<'static, Result<Arc<Self>, Error>> {
        // Boxed here, as everything long below: otherwise each calling crate compiles it anew.
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
            // Who tries again finds the directory free.
            store.close().await;
        }
        started
    }

    async fn start(
        config: Config,
        store: Store,
        pki_dir: Option<PathBuf>,
    ) -> Result<Arc<Self>, Error> {
        let stop = CancellationToken::new();
        let registry = Registry::builtin();
        let key = server::token_key(pki_dir.as_deref())?;
        let tokens = Tokens::new(&key, store.clone(), config.clock.clone());
        let tokens = tokens.map_err(|why| ServeError::token_key(pki_dir.as_deref(), why))?;
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
            tracing::error!(%error, "the store takes no writes, serving what it holds until it does");
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

    /// The server as a service for callers in this process, who act as the administrator unless
    /// the request bears a token, or its extensions carry another [`crate::authz::User`].
    pub fn service(&self) -> Router {
        self.server.in_process()
    }

    /// [`Self::service`] for callers who are all `user`. Of every request for a resource `seen` is told
    /// the right that it needs, as [`crate::needed_right`] says it, and whether roles give it.
    pub fn service_as(
        &self,
        user: User,
        seen: impl Fn(&str, bool) + Clone + Send + Sync + 'static,
    ) -> Router {
        let api = self.api.clone();
        let ask = move |mut request: Request<Body>, next: Next| {
            request.extensions_mut().insert(user.clone());
            let (method, uri) = (request.method(), request.uri());
            if let Some(right) = crate::needed_right(method, uri) {
                seen(&right, has_right(&api, &user, method, uri));
            }
            next.run(request)
        };
        Router::new()
            .fallback_service(self.service())
            .layer(middleware::from_fn(ask))
    }

    /// The verbs as methods.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The store below.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.api.store()
    }

    /// Opens the configured address.
    ///
    /// # Errors
    /// When it is taken, or reachable from other machines without that being allowed.
    pub async fn listen(&self) -> Result<TcpListener, Error> {
        Ok(self.server.listen().await?)
    }

    /// Serves HTTPS on `listener` until `shutdown`, then ends the open watches, finishes what is in
    /// progress and returns.
    ///
    /// # Errors
    /// When the certificates cannot be made, or the listener is not on loopback and other machines
    /// are not allowed.
    pub fn serve(
        &self,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { Ok(self.server.serve(listener, shutdown).await?) })
    }

    /// Writes a kubeconfig (mode 0600) with the rights of the administrator to `path`. It names
    /// the address listened on, or else the configured one. One that does so already is kept, with its key.
    ///
    /// # Errors
    /// When it cannot be written, or there is no address to write into it.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<(), Error> {
        Ok(self.server.write_kubeconfig(path)?)
    }

    /// The authority's certificate (PEM).
    #[cfg(test)]
    pub(crate) fn authority_pem(&self) -> Result<String, Error> {
        Ok(self.server.authority_pem()?)
    }

    /// Returns TLS for an HTTP/2 client of this server that is `user` in `groups`.
    ///
    /// # Errors
    /// No certificate can be issued.
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
    /// The first one that is refused, and why.
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
        // Somebody else may change it in between; each round is one honest try.
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
        Err(refused("kept being changed by somebody else"))
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

    /// Stops the controllers, ends all streams, closes the store in order. Without it nothing that
    /// was acknowledged is lost.
    pub fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.stop.cancel();
            self.controllers.wait().await;
            self.store().close().await;
        })
    }
}
