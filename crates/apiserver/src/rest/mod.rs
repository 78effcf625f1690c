//! REST semantics of Kubernetes: one generic set of handlers over the store and the registry.
//!
//! [`Api`] is the whole of it: `Api::serve` answers HTTP, and the in-process controllers call the
//! same verbs as methods, so a write has one meaning no matter where it comes from.

pub mod logs;

mod accept;
mod admission;
mod binding;
mod body;
pub(crate) mod bootstrap;
mod call;
mod check;
mod core;
mod crd;
mod delete;
mod dispatch;
mod eviction;
pub mod exec;
pub(crate) mod guard;
mod list;
mod managers;
pub(crate) mod meta;
mod nonresource;
mod options;
mod patch;
pub(crate) mod path;
mod podlog;
pub(crate) mod protobuf;
mod query;
mod respond;
mod review;
mod rights;
pub(crate) mod roles;
mod scale;
mod selection;
mod token_request;
mod transform;
mod update;
mod usage;
mod watch;
mod watch_format;
mod work_slots;
mod write;

use crate::store::{Entry, Key, Store};
use crate::tokens::Tokens;
use koord_app::Clock;
use koord_kinds::status::ApiError;
use koord_kinds::{Registry, Resource};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

pub(crate) use self::core::Core;
pub use crate::authz::User;
pub(crate) use admission::CRD_FINALIZER;
pub use admission::{
    InProcessWebhook, Operation, WebhookKind, WebhookRequest, WebhookResource, WebhookResponse,
};
pub(crate) use crd::CRDS;
pub(crate) use delete::{FOREGROUND, ORPHAN};
pub use exec::PodExec;
pub use guard::{Authorization, Guard};
pub use logs::{LogOptions, LogStream, PodLogs};
pub use options::{DeleteOptions, FieldValidation, Propagation, WriteOptions};
pub(crate) use path::percent_decode;
pub(crate) use query::check_timeout;
pub(crate) use rights::has_right;
pub use rights::{granted_rights, required_right};
pub(crate) use write::{Object, WriteInput};

/// Parts and settings of an [`Api`].
pub struct ApiOptions {
    /// Store of the objects.
    pub store: Store,
    /// Registry of the served resources.
    pub registry: Registry,
    /// Clock of every timestamp that is written.
    pub clock: Clock,
    /// Serves `pods/log`; without it the request is refused with a reason.
    pub pod_logs: Option<Arc<dyn PodLogs>>,
    /// Serves `pods/exec`; without it the request is refused with a reason.
    pub pod_exec: Option<Arc<dyn PodExec>>,
    /// Issues and reviews the tokens of service accounts.
    pub tokens: Arc<Tokens>,
    /// Authorization mode.
    pub authorization: Authorization,
    /// Ends the open watches when it is cancelled.
    pub shutdown: CancellationToken,
}

impl std::fmt::Debug for ApiOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiOptions").finish_non_exhaustive()
    }
}

/// The API: every verb on every resource. Clones share everything.
#[derive(Clone)]
pub struct Api {
    inner: Arc<ApiInner>,
}

struct ApiInner {
    core: Core,
    pod_logs: Option<Arc<dyn PodLogs>>,
    pod_exec: Option<Arc<dyn PodExec>>,
    tokens: Arc<Tokens>,
    guard: Arc<guard::Guard>,
    shutdown: CancellationToken,
    documents: nonresource::Documents,
    definitions: crd::DefinitionInstaller,
    admission: admission::AdmissionChain,
    /// Events as watches have encoded them.
    written_events: watch_format::EventCache,
    /// Bounds the work of requests that can take long.
    work: work_slots::WorkSlots,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Api {
    /// Creates an API from `options`. Call `bootstrap::ensure_built_ins` before serving.
    #[must_use]
    pub fn new(options: ApiOptions) -> Self {
        let ApiOptions {
            store,
            registry,
            clock,
            pod_logs,
            pod_exec,
            tokens,
            authorization,
            shutdown,
        } = options;
        let documents = nonresource::Documents::default();
        let core = Core::new(store, registry, clock);
        let guard = Arc::new(guard::Guard::new(&core, authorization));
        let inner = ApiInner {
            admission: admission::AdmissionChain::new(core.clone(), Arc::clone(&guard)),
            guard,
            pod_logs,
            pod_exec,
            tokens,
            shutdown,
            documents,
            definitions: crd::DefinitionInstaller::new(core.clone()),
            core,
            written_events: watch_format::EventCache::default(),
            work: work_slots::WorkSlots::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns the part of the API that services share.
    pub(crate) fn core(&self) -> &Core {
        &self.inner.core
    }

    /// Returns the authorizer of requests.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.inner.guard
    }

    /// Returns the admission chain of writes.
    pub(crate) fn admission(&self) -> &admission::AdmissionChain {
        &self.inner.admission
    }

    /// Registers a function of this process as the webhook at `url`, for all stored configurations that name
    /// that address. The address of a Service is `https://<name>.<namespace>.svc:<port>/<path>`.
    pub fn register_webhook(&self, url: &str, webhook: Arc<dyn InProcessWebhook>) {
        self.admission().webhooks().register(url, webhook);
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.inner.core.store()
    }

    /// Returns the registry of served resources.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        self.inner.core.registry()
    }

    /// Returns the issuer of service account tokens.
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.inner.tokens
    }

    /// Returns the clock that stamps objects.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.inner.core.clock()
    }

    /// Returns the token that is cancelled when the server stops.
    #[must_use]
    pub fn shutdown(&self) -> &CancellationToken {
        &self.inner.shutdown
    }

    /// Returns the key of an object of `resource`.
    pub(crate) fn key(resource: &Resource, namespace: &str, name: &str) -> Key {
        core::key(resource, namespace, name)
    }

    /// Returns the built-in resource `group/version/plural`.
    pub(crate) fn builtin(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Result<Arc<Resource>, ApiError> {
        self.core().builtin(group, version, plural)
    }

    /// Returns the stored entry, or 404.
    pub(crate) fn entry(&self, resource: &Resource, key: &Key) -> Result<Arc<Entry>, ApiError> {
        self.core().entry(resource, key)
    }

    /// Returns the entries of a collection as they are now.
    pub(crate) fn entries(&self, resource: &Resource, namespace: Option<&str>) -> Vec<Arc<Entry>> {
        self.core().entries(resource, namespace)
    }

    /// Returns the cache of encoded watch events.
    fn written_events(&self) -> &watch_format::EventCache {
        &self.inner.written_events
    }

    /// Returns true if a request opens a watch.
    pub(crate) fn is_watch(method: &http::Method, uri: &http::Uri) -> bool {
        let query = query::Query::parse(uri.query().unwrap_or(""));
        match (path::parse(uri.path()), query) {
            (Some(path::RequestTarget::Resource(path)), Ok(query)) => {
                guard::verb(method, &path, &query) == "watch"
            }
            _ => false,
        }
    }

    /// Serves a request.
    pub(crate) async fn serve(&self, request: axum::extract::Request) -> axum::response::Response {
        dispatch::serve(self, request).await
    }
}
