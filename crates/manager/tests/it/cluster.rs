//! A control plane, a clock that tests advance, and a manager.

use crate::deploy;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use koord_api::slo::{NodeMetric, NodeMetricStatus};
use koord_apiserver::authz::User;
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_kube::api::PostParams;
use koord_kube::{Api, Change, Client, Informer, Scope, patch};
use koord_manager::Options;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) struct Cluster {
    /// Client with all rights.
    pub(crate) client: Client,
    /// Client for managers: it has the rights of the chart's role.
    pub(crate) limited: Client,
    pub(crate) ctx: Context,
    server: Arc<ApiServer>,
    refused: Arc<Mutex<BTreeSet<String>>>,
}

thread_local! {
    /// Rights that managers of tests on this thread have used.
    pub(crate) static USED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

impl Cluster {
    /// Starts an empty cluster with the custom resources installed.
    pub(crate) async fn start() -> Self {
        Self::with(koord_api::crd_values()).await
    }

    /// Starts a cluster without custom resources.
    pub(crate) async fn bare() -> Self {
        Self::with(Vec::new()).await
    }

    /// Starts a cluster with these custom resources.
    pub(crate) async fn with(definitions: Vec<Value>) -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let server = ApiServer::open(Config::memory(clock.clone()))
            .await
            .unwrap();
        server.install_crds(definitions).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = json!({"metadata": {"name": "koordinator-system"}});
        let created = namespaces
            .create(&PostParams::default(), &typed(namespace))
            .await;
        // The server may create this namespace itself.
        assert!(created.is_ok() || created.is_err_and(|error| patch::is_conflict(&error)));
        for object in deploy::documents(deploy::RBAC) {
            deploy::create(&client, object).await;
        }
        let refused = Arc::<Mutex<BTreeSet<String>>>::default();
        let service = service_for_manager(&server, refused.clone());
        Self {
            client,
            limited: koord_kube::client::in_process(service),
            ctx: Context::with_clock(clock),
            server,
            refused,
        }
    }

    /// Returns a client of the same API server without the metrics API, as where no metrics server is
    /// installed.
    pub(crate) fn without_metrics_api(&self) -> Client {
        let absent = || async { StatusCode::SERVICE_UNAVAILABLE };
        let service = Router::new()
            .route("/apis/metrics.k8s.io/{*rest}", axum::routing::any(absent))
            .fallback_service(service_for_manager(&self.server, self.refused.clone()));
        koord_kube::client::in_process(service)
    }

    /// Returns a client with the identity of a node's kubelet.
    pub(crate) fn kubelet(&self, node: &str) -> Client {
        let user = User::new(format!("system:node:{node}"), ["system:nodes"]);
        koord_kube::client::in_process(self.server.service_as(user, |_, _| ()))
    }

    /// Returns a client for a manager that loses the API server when the token is cancelled.
    pub(crate) fn cuttable_client(&self) -> (Client, CancellationToken) {
        let cut = CancellationToken::new();
        let token = cut.clone();
        let intercept = move |request: Request<Body>, next: Next| {
            let is_cut = token.is_cancelled();
            async move {
                if is_cut {
                    return StatusCode::SERVICE_UNAVAILABLE.into_response();
                }
                next.run(request).await
            }
        };
        let service = service_for_manager(&self.server, self.refused.clone());
        let service = service.layer(middleware::from_fn(intercept));
        (koord_kube::client::in_process(service), cut)
    }

    /// Returns a client for a manager, and a [`Guard`] that records the requests for which `name` returns a
    /// name. While the guard refuses, such a request gets the status and message of `answer`.
    pub(crate) fn guarded_client(
        &self,
        name: impl Fn(&Request<Body>) -> Option<&'static str> + Send + Sync + 'static,
        answer: fn(&str) -> (StatusCode, String),
    ) -> (Client, Guard) {
        let guard = Guard::default();
        let (recorder, name) = (guard.clone(), Arc::new(name));
        let intercept = move |request: Request<Body>, next: Next| {
            let refused = name(&request).filter(|name| recorder.is_refused(name));
            async move {
                let Some(name) = refused else {
                    return next.run(request).await;
                };
                let (code, message) = answer(name);
                let reason = match code {
                    StatusCode::CONFLICT => "Conflict",
                    _ => "Forbidden",
                };
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": message, "reason": reason, "code": code.as_u16()});
                (code, axum::Json(status)).into_response()
            }
        };
        let service = service_for_manager(&self.server, self.refused.clone());
        let service = service.layer(middleware::from_fn(intercept));
        (koord_kube::client::in_process(service), guard)
    }

    /// Starts a manager with default options; it stops with the cluster's context.
    pub(crate) fn manager(&self, options: Options) -> tokio::task::JoinHandle<()> {
        let run = koord_manager::run(options, self.limited.clone(), self.ctx.clone());
        tokio::spawn(async move { run.await.unwrap() })
    }

    /// Creates or replaces the settings ConfigMap.
    pub(crate) async fn configure(&self, data: Value) {
        let configs: Api<ConfigMap> = Api::namespaced(self.client.clone(), "koordinator-system");
        let name = "slo-controller-config";
        let config = json!({"metadata": {"name": name}, "data": data});
        if configs.get_opt(name).await.unwrap().is_none() {
            configs
                .create(&PostParams::default(), &typed(config))
                .await
                .unwrap();
        } else {
            patch::merge(&configs, name, &json!({ "data": data }))
                .await
                .unwrap();
        }
    }

    /// Creates a node whose allocatable resources equal its capacity.
    pub(crate) async fn add_node(&self, name: &str, labels: Value, cpu: &str, memory: &str) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = json!({"metadata": {"name": name, "labels": labels}});
        nodes
            .create(&PostParams::default(), &typed(node))
            .await
            .unwrap();
        let list = json!({"cpu": cpu, "memory": memory, "pods": "110"});
        let status = json!({"status": {"capacity": list, "allocatable": list}});
        patch::merge_node_status(&self.client, name, &status)
            .await
            .unwrap();
    }

    /// Writes a report of koordlet, dated now, with the usage of the node and of the system.
    pub(crate) async fn report(&self, node: &str, used: (&str, &str), system: (&str, &str)) {
        self.report_ahead(node, Duration::ZERO, used, system).await;
    }

    /// Does the same as [`Self::report`] for a node whose clock is ahead.
    pub(crate) async fn report_ahead(
        &self,
        node: &str,
        ahead: Duration,
        used: (&str, &str),
        system: (&str, &str),
    ) {
        let resources =
            |(cpu, memory): (&str, &str)| json!({"resources": {"cpu": cpu, "memory": memory}});
        let status: NodeMetricStatus = typed(json!({
            "updateTime": (self.ctx.clock.now() + ahead).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "nodeMetric": {"nodeUsage": resources(used), "systemUsage": resources(system)},
        }));
        let metrics: Api<NodeMetric> = Api::all(self.client.clone());
        patch::merge_status(&metrics, node, &json!({ "status": status }))
            .await
            .unwrap();
    }

    /// Watches all objects of a kind.
    pub(crate) fn watch<K>(&self) -> Watch<K>
    where
        K: koord_kube::api::Resource<DynamicType = ()> + koord_kube::Decode + Send + Sync + 'static,
    {
        let stop = self.ctx.shutdown.clone();
        Watch(Informer::start(self.client.clone(), Scope::default(), stop))
    }
}

/// Records the requests of one client and refuses them on demand; at first none is refused.
#[derive(Clone, Default)]
pub(crate) struct Guard(Arc<Mutex<GuardState>>);

#[derive(Default)]
struct GuardState {
    refuses: bool,
    /// Name and time of each recorded request.
    requests: Vec<(&'static str, Instant)>,
}

impl Guard {
    /// Starts or stops refusing requests, and clears those recorded so far.
    pub(crate) fn refuse(&self, refuse: bool) {
        *self.0.lock() = GuardState {
            refuses: refuse,
            requests: Vec::new(),
        };
    }

    fn is_refused(&self, name: &'static str) -> bool {
        let mut guarded = self.0.lock();
        guarded.requests.push((name, Instant::now()));
        guarded.refuses
    }

    /// Returns when requests with this name were made.
    pub(crate) fn request_times(&self, name: &str) -> Vec<Instant> {
        let guarded = self.0.lock();
        let matching = guarded
            .requests
            .iter()
            .filter(|(request, _)| *request == name);
        matching.map(|(_, when)| *when).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.ctx.shutdown.cancel();
        let refused = std::mem::take(&mut *self.refused.lock());
        if !std::thread::panicking() {
            assert_eq!(refused, BTreeSet::new(), "used rights that no rule grants");
        }
    }
}

/// Returns the API server as the manager's service account sees it. Records used rights in `USED` and denied
/// ones in `refused`.
fn service_for_manager(server: &ApiServer, refused: Arc<Mutex<BTreeSet<String>>>) -> Router {
    let user = User::service_account("koordinator-system", "koord-manager");
    server.service_as(user, move |right, allowed| {
        if allowed {
            USED.with_borrow_mut(|used| used.insert(right.to_owned()));
        } else {
            refused.lock().insert(right.to_owned());
        }
    })
}

pub(crate) fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) struct Watch<K>(Informer<K>);

impl<K: Debug> Watch<K> {
    /// Waits for an object for which `accept` returns a value, and returns that value.
    pub(crate) async fn until<T>(&mut self, what: &str, accept: impl Fn(&K) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(value) = self.0.store.list().iter().find_map(|object| accept(object)) {
                    return value;
                }
                assert!(self.0.changes.recv().await.is_some(), "the watch ended");
            }
        };
        match tokio::time::timeout(Duration::from_secs(7200), wait).await {
            Ok(value) => value,
            Err(_) => panic!("never saw {what}; there is {:#?}", self.0.store.list()),
        }
    }

    /// Waits for any change.
    pub(crate) async fn changed(&mut self) {
        assert!(self.0.changes.recv().await.is_some(), "the watch ended");
    }

    /// Waits until an object is deleted.
    pub(crate) async fn until_deleted(&mut self, what: &str, accept: impl Fn(&K) -> bool) {
        let wait = async {
            while let Some(change) = self.0.changes.recv().await {
                if matches!(&change, Change::Deleted(object) if accept(object)) {
                    return;
                }
            }
            panic!("the watch ended");
        };
        let waited = tokio::time::timeout(Duration::from_secs(7200), wait).await;
        assert!(waited.is_ok(), "{what} was never deleted");
    }
}
