//! A cluster with nodes, Deployments, and simulations of a scheduler that supports reservations and of
//! kubelets.

use super::wire::{Fuse, Wire, WireLog};
use crate::deploy::{self, DeniedRequests};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use koord_api::scheduling::{PodMigrationJob, Reservation};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_descheduler::config::Configuration;
use koord_descheduler::daemon::{self, LastCycle, Options};
use koord_descheduler::framework::{Cycle, Framework, Strategy, StrategyError};
use koord_descheduler::registry::Registry;
use koord_kube::api::{DeleteParams, ListParams, PostParams};
use koord_kube::kube_core::NamespaceResourceScope;
use koord_kube::lease::Election;
use koord_kube::{Api, Client, patch};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Timeout of anything, in virtual time.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A strategy that evicts all pods of node `hot`.
#[derive(Debug)]
struct Cooling;

impl Strategy for Cooling {
    fn name(&self) -> &'static str {
        "Cooling"
    }
    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let snapshot = cycle.snapshot();
        for pod in snapshot.active_on("hot") {
            if cycle.filter(pod) {
                let _ = cycle.evict(pod, "the node is hot");
            }
        }
        Ok(())
    }
}

pub(super) struct MigrationCluster {
    server: Arc<ApiServer>,
    /// Denied requests of deschedulers, by the chart's roles.
    denied: DeniedRequests,
    pub(super) client: Client,
    pub(super) log: Arc<WireLog>,
    pub(super) clock: Clock,
    /// True if pods without a reservation are scheduled to node `hot`.
    pub(super) hot: Arc<AtomicBool>,
    /// True if nothing is scheduled.
    pub(super) closed: Arc<AtomicBool>,
    _stop: DropGuard,
}

/// A running descheduler.
pub(super) struct Contender {
    pub(super) stop: CancellationToken,
    pub(super) metrics: prometheus::Registry,
    pub(super) last: LastCycle,
    task: JoinHandle<Result<(), daemon::Error>>,
}

impl Contender {
    /// Returns whether evictions with this result were counted, and all metrics.
    pub(super) fn evicted(&self, result: &str) -> (bool, String) {
        let metrics = koord_app::metrics::encode(&self.metrics).unwrap();
        let label = format!("result=\"{result}\"");
        let counts = |line: &str| {
            line.starts_with("descheduler_pods_evicted{") && line.contains(label.as_str())
        };
        (metrics.lines().any(counts), metrics)
    }

    /// Kills the process without releasing its lease.
    pub(super) async fn kill(self, fuse: &Fuse) {
        fuse.blow();
        self.stop.cancel();
        self.task.abort();
        let _ = self.task.await;
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

impl Drop for MigrationCluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.denied.assert_none();
        }
    }
}

impl MigrationCluster {
    /// Starts nodes `hot`, `a` and `b`, and `sets` Deployments with four pods each on `hot`.
    pub(super) async fn start(sets: usize) -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let mut config = Config::memory(clock.clone());
        // No kubelet renews the nodes' leases, which has no effect here.
        let controllers = "*,-node-lifecycle-controller";
        config.controllers = koord_app::flags::selection(controllers).unwrap();
        let server = ApiServer::open(config).await.unwrap();
        server.install_crds(koord_api::crd_values()).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        deploy::install(&client).await;
        let stop = CancellationToken::new();
        let cluster = Self {
            server,
            client,
            denied: DeniedRequests::default(),
            log: Arc::default(),
            clock,
            hot: Arc::new(AtomicBool::new(true)),
            closed: Arc::default(),
            _stop: stop.clone().drop_guard(),
        };
        for name in ["hot", "a", "b"] {
            let ready = json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            cluster.put::<Node>(ready).await;
        }
        for i in 0..sets {
            let name = format!("set{i}");
            let spec = json!({"schedulerName": "koord-scheduler", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i"}]});
            let set = json!({"metadata": {"name": name}, "spec": {"replicas": 4,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": spec}}});
            let set: Deployment = serde_json::from_value(set).unwrap();
            cluster
                .namespaced::<Deployment>()
                .create(&PostParams::default(), &set)
                .await
                .unwrap();
        }
        let (client, hot, closed) = (
            cluster.client.clone(),
            cluster.hot.clone(),
            cluster.closed.clone(),
        );
        tokio::spawn(async move {
            let world = ClusterSimulation {
                client,
                hot,
                closed,
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = world.turn() => {}
            }
        });
        let is_complete = |pods: &[Pod]| pods.len() == 4 * sets && pods.iter().all(is_ready);
        cluster
            .until("the pods run", async || is_complete(&cluster.pods().await))
            .await;
        cluster.hot.store(false, Ordering::SeqCst);
        cluster
    }

    pub(super) fn namespaced<K>(&self) -> Api<K>
    where
        K: koord_kube::kube_core::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(super) fn all<K>(&self) -> Api<K>
    where
        K: koord_kube::kube_core::Resource<DynamicType = ()>,
    {
        Api::all(self.client.clone())
    }

    async fn put<K>(&self, value: Value)
    where
        K: koord_kube::kube_core::Resource<DynamicType = ()>
            + koord_kube::Decode
            + Serialize
            + DeserializeOwned,
    {
        let object: K = serde_json::from_value(value).unwrap();
        self.all::<K>()
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }

    pub(super) async fn pods(&self) -> Vec<Pod> {
        self.namespaced::<Pod>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    pub(super) async fn pods_on(&self, node: &str) -> Vec<Pod> {
        let mut pods = self.pods().await;
        pods.retain(|pod| node_of(pod).as_deref() == Some(node));
        pods
    }

    pub(super) async fn jobs(&self) -> Vec<PodMigrationJob> {
        super::wire::all(&self.client).await
    }

    pub(super) async fn reservations(&self) -> Vec<Reservation> {
        super::wire::all(&self.client).await
    }

    /// Returns the reasons of all events.
    pub(super) async fn events(&self) -> Vec<String> {
        let events = self
            .namespaced::<Event>()
            .list(&ListParams::default())
            .await
            .unwrap();
        events
            .items
            .into_iter()
            .filter_map(|event| event.reason)
            .collect()
    }

    /// Creates a user's job that moves `pod`.
    pub(super) async fn create_job(&self, name: &str, pod: &str, spec: Value) -> PodMigrationJob {
        let mut job = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "PodMigrationJob",
            "metadata": {"name": name}, "spec": {"podRef": {"namespace": "default", "name": pod}}});
        json_merge(&mut job["spec"], spec);
        let job: PodMigrationJob = serde_json::from_value(job).unwrap();
        self.all()
            .create(&PostParams::default(), &job)
            .await
            .unwrap()
    }

    /// Returns phase, reason and message of a job.
    pub(super) async fn end_of(&self, name: &str) -> (String, String, String) {
        let mut end = None;
        self.until(name, async || {
            let job = self.all::<PodMigrationJob>().get(name).await.unwrap();
            let status = job.status.unwrap_or_default();
            let phase = status
                .phase
                .map_or(String::new(), |phase| phase.to_string());
            end = Some((phase.clone(), status.reason, status.message));
            matches!(phase.as_str(), "Succeeded" | "Failed")
        })
        .await;
        end.unwrap()
    }

    /// Waits in virtual time.
    pub(super) async fn until(&self, what: &str, mut is: impl AsyncFnMut() -> bool) {
        let wait = async {
            while !is().await {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            let jobs: Vec<_> = self
                .jobs()
                .await
                .into_iter()
                .map(|job| (job.metadata.name, job.status))
                .collect();
            panic!("{what}: never; {jobs:#?}");
        }
    }

    pub(super) async fn leader(&self, identity: &str) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "koordinator-system");
        self.until(identity, async || {
            let lease = leases.get_opt("koord-descheduler").await.unwrap();
            let holder = lease.and_then(|lease| lease.spec?.holder_identity);
            holder.as_deref() == Some(identity)
        })
        .await;
    }

    fn framework(&self, args: &Value, cools: bool) -> Framework {
        let config = json!({"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
            "profiles": [{"name": "p", "pluginConfig": [{"name": "MigrationController", "args": args}]}]});
        let config = Configuration::parse(&config.to_string()).unwrap();
        let mut framework = Registry::in_tree()
            .complete(config)
            .unwrap()
            .build()
            .unwrap();
        if cools {
            framework.profiles[0].deschedule.push(Box::new(Cooling));
        }
        framework
    }

    /// Runs a descheduler with these arguments; if it `cools`, it evicts the pods of node `hot`.
    pub(super) fn deschedule(
        &self,
        identity: &str,
        args: &Value,
        cools: bool,
        fuse: Arc<Fuse>,
    ) -> Contender {
        let context = Context::with_clock(self.clock.clone());
        let wire = Wire {
            inner: deploy::service(&self.server, &self.denied),
            fuse,
            log: self.log.clone(),
            client: self.client.clone(),
        };
        let options = Options {
            controller_metrics: None,
            interval: Duration::from_secs(10),
            election: Some(Election::new(
                "koordinator-system",
                "koord-descheduler",
                identity,
            )),
            events: None,
            last: LastCycle::default(),
        };
        let framework = self.framework(args, cools);
        let last = options.last.clone();
        let (stop, metrics) = (context.shutdown.clone(), context.metrics.clone());
        let client = Client::new(wire, "default");
        let task = tokio::spawn(daemon::run(options, framework, client, context));
        Contender {
            stop,
            metrics,
            last,
            task,
        }
    }

    /// Creates an object and returns its UID.
    pub(super) async fn post(&self, path: &str, value: &Value) -> String {
        let body = serde_json::to_vec(value).unwrap();
        let request = axum::http::Request::post(path).header("content-type", "application/json");
        let request = request.body(body).unwrap();
        let created: Value = self.client.request(request).await.unwrap();
        created["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Deletes an object and its dependents.
    pub(super) async fn delete(&self, path: &str) -> bool {
        let request = axum::http::Request::delete(format!("{path}?propagationPolicy=Background"));
        let request = request.body(Vec::new()).unwrap();
        self.client.request::<Value>(request).await.is_ok()
    }

    pub(super) async fn install(&self, definition: Value) {
        self.server.install_crds(vec![definition]).await.unwrap();
    }

    pub(super) async fn delete_pod(&self, name: &str) {
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        self.namespaced::<Pod>().delete(name, &now).await.unwrap();
    }
}

fn json_merge(value: &mut Value, over: Value) {
    let (Value::Object(members), Value::Object(over)) = (value, over) else {
        return;
    };
    members.extend(over);
}

pub(super) fn name_of(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

pub(super) fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Simulation of the rest of the cluster.
struct ClusterSimulation {
    client: Client,
    hot: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
}

impl ClusterSimulation {
    async fn turn(&self) {
        loop {
            if !self.closed.load(Ordering::SeqCst) {
                self.schedule().await;
            }
            self.run_pods().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Schedules reservations to a node that is not the pod's, and pods to the reservation for their
    /// controller.
    async fn schedule(&self) {
        let reservations = Api::<Reservation>::all(self.client.clone());
        let mut all_reservations = super::wire::all::<Reservation>(&self.client).await;
        for (at, one) in all_reservations.iter_mut().enumerate() {
            if one
                .status
                .as_ref()
                .is_some_and(|status| !status.node_name.is_empty())
            {
                continue;
            }
            let name = one.metadata.name.clone().unwrap();
            let node = ["a", "b"][at % 2];
            let status = json!({"status": {"phase": "Available", "nodeName": node, "conditions": [
                {"type": "Scheduled", "status": "True", "reason": "Scheduled"},
                {"type": "Ready", "status": "True", "reason": "Available"}]}});
            if let Ok(placed) = patch::merge_status(&reservations, &name, &status).await {
                *one = placed;
            }
        }
        let pods = Api::<Pod>::namespaced(self.client.clone(), "default");
        for pod in pods.list(&ListParams::default()).await.unwrap().items {
            if node_of(&pod).is_some() {
                continue;
            }
            let mut owners = pod.metadata.owner_references.iter().flatten();
            let owner = owners
                .find(|owner| owner.controller == Some(true))
                .map(|owner| owner.uid.clone());
            let free = |one: &&mut Reservation| {
                let status = one.status.clone().unwrap_or_default();
                let owner_controller = one
                    .spec
                    .owners
                    .iter()
                    .filter_map(|owner| owner.controller.as_ref());
                let mut owner_controller =
                    owner_controller.map(|controller| controller.uid.clone());
                status
                    .phase
                    .is_some_and(|phase| phase.as_str() == "Available")
                    && status.current_owners.is_empty()
                    && owner_controller.any(|uid| Some(&uid) == owner.as_ref())
            };
            let used = all_reservations.iter_mut().find(free);
            let node = match &used {
                Some(one) => one.status.clone().unwrap_or_default().node_name,
                None if self.hot.load(Ordering::SeqCst) => "hot".to_owned(),
                None => "a".to_owned(),
            };
            let name = name_of(&pod);
            let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
            let params = PostParams::default();
            let bound =
                pods.create_subresource::<Value, Value>("binding", &name, &params, &binding);
            if bound.await.is_err() {
                continue;
            }
            if let Some(one) = used {
                let status = json!({"status": {"phase": "Succeeded", "currentOwners": [
                    {"namespace": "default", "name": name, "uid": pod.metadata.uid}]}});
                let reserved = one.metadata.name.clone().unwrap();
                if let Ok(taken) = patch::merge_status(&reservations, &reserved, &status).await {
                    *one = taken;
                }
            }
        }
    }

    /// Sets pods to running and ready.
    async fn run_pods(&self) {
        let pods = Api::<Pod>::namespaced(self.client.clone(), "default");
        for pod in pods.list(&ListParams::default()).await.unwrap().items {
            if node_of(&pod).is_none() || is_ready(&pod) {
                continue;
            }
            let status = json!({"status": {"phase": "Running", "conditions": [
                {"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]}});
            let _ = patch::merge_status(&pods, &name_of(&pod), &status).await;
        }
    }
}
