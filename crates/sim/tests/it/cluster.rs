//! An API server and a simulation in one process.

use axum::extract::Request;
use axum::middleware::{self, Next};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_kube::api::PostParams;
use koord_kube::{Api, Change, Client, Informer, Scope, kube_core};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// A client of the same server that takes a second to list pods.
    slow: Client,
    clock: Clock,
    sim: Option<(CancellationToken, JoinHandle<Result<(), koord_sim::Error>>)>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let clock = Clock::following_tokio("2026-01-01T12:00:00Z".parse().unwrap());
        let mut config = Config::memory(clock.clone());
        // Pods here name owners and nodes that do not exist; no controller must delete them.
        config.controllers = koord_app::flags::Selection::none();
        let server = ApiServer::open(config).await.unwrap();
        server.install_crds(koord_api::crd_values()).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let late = |request: Request, next: Next| async move {
            if request.uri().path() == "/api/v1/pods" {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            next.run(request).await
        };
        let slow = server.service().layer(middleware::from_fn(late));
        let slow = koord_kube::client::in_process(slow);
        Self {
            client,
            slow,
            clock,
            sim: None,
        }
    }

    pub(crate) fn simulate(&mut self, nodes: usize) {
        self.simulate_with(nodes, self.client.clone());
    }

    /// Starts a simulation whose list of pods is a second late.
    pub(crate) fn simulate_slowly(&mut self, nodes: usize) {
        self.simulate_with(nodes, self.slow.clone());
    }

    fn simulate_with(&mut self, nodes: usize, client: Client) {
        let options = koord_sim::Options {
            nodes,
            ..koord_sim::Options::default()
        };
        let context = Context::with_clock(self.clock.clone());
        let stop = context.shutdown.clone();
        let task = tokio::spawn(koord_sim::run(options, client, context));
        self.sim = Some((stop, task));
    }

    pub(crate) async fn stop_simulation(&mut self) {
        let (stop, task) = self.sim.take().unwrap();
        stop.cancel();
        task.await.unwrap().unwrap();
    }

    pub(crate) async fn create<K>(&self, api: Api<K>, object: Value) -> K
    where
        K: koord_kube::Decode + DeserializeOwned + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    /// Watches until `done` returns true, for at most an hour of the simulation's time.
    pub(crate) async fn wait_for_change<K>(
        &self,
        mut done: impl FnMut(&Change<K>) -> bool,
    ) -> Change<K>
    where
        K: kube_core::Resource<DynamicType = ()>
            + koord_kube::Decode
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        let mut informer = Informer::<K>::start(self.client.clone(), Scope::default(), stop);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(3600);
        let mut changes = Vec::new();
        loop {
            let next = tokio::time::timeout_at(deadline, informer.changes.recv()).await;
            let change = next
                .unwrap_or_else(|_| panic!("timed out, saw {changes:?}"))
                .unwrap();
            if done(&change) {
                return change;
            }
            changes.push(change);
        }
    }

    /// Waits like [`Cluster::wait_for_change`], for an object that exists.
    pub(crate) async fn wait_for_object<K>(&self, mut done: impl FnMut(&K) -> bool) -> Arc<K>
    where
        K: kube_core::Resource<DynamicType = ()>
            + koord_kube::Decode
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let change = self
            .wait_for_change(|change| matches!(change, Change::Applied { new, .. } if done(new)))
            .await;
        match change {
            Change::Applied { new, .. } => new,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the object is gone; returns at once if it is gone already.
    pub(crate) async fn wait_for_removal<K>(&self, api: &Api<K>, name: &str)
    where
        K: kube_core::Resource<DynamicType = ()>
            + koord_kube::Decode
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let named = |object: &K| object.meta().name.as_deref() == Some(name);
        let mut listed = false;
        self.wait_for_change::<K>(|change| match change {
            Change::Applied { new, .. } => {
                listed |= named(new);
                false
            }
            Change::Deleted(last) => named(last),
            Change::Synced => !listed,
        })
        .await;
        assert!(api.get_opt(name).await.unwrap().is_none());
    }
}
