//! Runs the scheduler against the embedded API server, in one process.

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use koord_api::scheduling::Reservation;
use koord_api::slo::NodeMetric;
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use koord_kube::kube_core::Resource;
use koord_kube::{Api, Change, Client, Informer, Scope};
use koord_scheduler::{DebugHandle, Options};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Timeout for every wait; only a broken test reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct TestCluster {
    pub(crate) server: Arc<ApiServer>,
    pub(crate) client: Client,
    clock: Clock,
}

/// Running scheduler.
pub(crate) struct Scheduler {
    pub(crate) stop: CancellationToken,
    pub(crate) debug: DebugHandle,
    pub(crate) metrics: prometheus::Registry,
    task: JoinHandle<Result<(), koord_scheduler::Error>>,
}

impl Scheduler {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

impl TestCluster {
    pub(crate) async fn start() -> Self {
        let cluster = Self::bare().await;
        cluster.install().await;
        cluster
    }

    /// Installs Koordinator's custom resource definitions.
    pub(crate) async fn install(&self) {
        let definitions = koord_api::crd_values();
        self.server.install_crds(definitions).await.unwrap();
    }

    /// Starts a cluster that serves NodeResourceTopology only in this version, like Koordinator's chart 0.5.
    pub(crate) async fn start_with_topologies_in(version: &str) -> Self {
        let cluster = Self::bare().await;
        let mut definitions = koord_api::crd_values();
        let mut all = definitions.iter_mut();
        let definition = all.find(|it| it["spec"]["group"] == "topology.node.k8s.io");
        let versions = definition.unwrap()["spec"]["versions"].as_array_mut();
        let versions = versions.unwrap();
        versions.retain(|it| it["name"] == version);
        versions[0]["storage"] = json!(true);
        cluster.server.install_crds(definitions).await.unwrap();
        cluster
    }

    /// Starts a cluster whose clock, and that of its schedulers, follows tokio's virtual time.
    pub(crate) async fn start_virtual() -> Self {
        let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
        let cluster = Self::with(Clock::following_tokio(epoch)).await;
        cluster.install().await;
        cluster
    }

    /// Starts a cluster like [`TestCluster::start_virtual`], with the Kubernetes controllers.
    pub(crate) async fn start_virtual_with_controllers() -> Self {
        let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
        let controllers = koord_app::flags::Selection::all();
        let cluster = Self::open(Clock::following_tokio(epoch), controllers).await;
        cluster.install().await;
        cluster
    }

    /// Returns the context for another component of this cluster.
    pub(crate) fn context(&self) -> Context {
        Context::with_clock(self.clock.clone())
    }

    /// Starts a cluster without custom resources.
    pub(crate) async fn bare() -> Self {
        Self::with(Clock::system()).await
    }

    async fn with(clock: Clock) -> Self {
        Self::open(clock, koord_app::flags::Selection::none()).await
    }

    async fn open(clock: Clock, controllers: koord_app::flags::Selection) -> Self {
        let mut config = Config::memory(clock.clone());
        config.controllers = controllers;
        let server = ApiServer::open(config).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        Self {
            server,
            client,
            clock,
        }
    }

    pub(crate) fn schedule(&self, change: impl FnOnce(&mut Options)) -> Scheduler {
        self.schedule_through(self.client.clone(), change)
    }

    pub(crate) fn schedule_through(
        &self,
        client: Client,
        change: impl FnOnce(&mut Options),
    ) -> Scheduler {
        let context = Context {
            clock: self.clock.clone(),
            ..Context::new()
        };
        let mut options = Options::new(koord_plugins::registry());
        options.leader_elect = false;
        // Only the text that upstream writes.
        options.nearest_in_conditions = false;
        change(&mut options);
        let (stop, metrics) = (context.shutdown.clone(), context.metrics.clone());
        let debug = options.debug.clone();
        let run = koord_scheduler::run(options, client, context);
        Scheduler {
            stop,
            debug,
            metrics,
            task: tokio::spawn(run),
        }
    }

    pub(crate) async fn node(&self, name: &str, resources: Value, taints: Value) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"taints": taints},
        }))
        .unwrap();
        let api: Api<Node> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &node).await.unwrap();
        let status = json!({"status": {"allocatable": resources, "capacity": resources}});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) async fn pod(&self, name: &str, requests: Value) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "schedulerName": "koord-scheduler",
                "containers": [{"name": "c", "image": "i", "resources": {
                    "requests": requests, "limits": requests
                }}]
            }
        }))
        .unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
    }

    /// Waits for an object, existing or future, for which `pick` returns a value.
    pub(crate) async fn until<K, T>(&self, what: &str, mut pick: impl FnMut(&K) -> Option<T>) -> T
    where
        K: Resource<DynamicType = ()> + koord_kube::Decode + Send + Sync + 'static,
    {
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        let mut informer = Informer::<K>::start(self.client.clone(), Scope::default(), stop);
        let find = async {
            while let Some(change) = informer.changes.recv().await {
                if let Change::Applied { new, .. } = change
                    && let Some(found) = pick(&new)
                {
                    return found;
                }
            }
            panic!("the informer ended before {what}");
        };
        tokio::time::timeout(PATIENCE, find)
            .await
            .unwrap_or_else(|_| panic!("no {what} in time"))
    }

    pub(crate) async fn bound(&self, name: &str) -> String {
        let node = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
        let named = |pod: &Pod| pod.metadata.name.as_deref() == Some(name);
        self.until(name, |pod: &Pod| node(pod).filter(|_| named(pod)))
            .await
    }

    /// Waits until the pod's condition satisfies `pick`. Returns its reason and message.
    pub(crate) async fn refused(
        &self,
        name: &str,
        pick: impl Fn(&str) -> bool,
    ) -> (String, String) {
        self.until(name, |pod: &Pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let condition = conditions.iter().find(|c| c.type_ == "PodScheduled")?;
            let message = condition.message.clone()?;
            let is_rejected =
                pod.metadata.name.as_deref() == Some(name) && condition.status == "False";
            (is_rejected && pick(&message))
                .then(|| (condition.reason.clone().unwrap_or_default(), message))
        })
        .await
    }

    pub(crate) async fn event(&self, reason: &str, pod: &str) -> String {
        self.until(reason, |event: &Event| {
            let about = event.involved_object.name.as_deref() == Some(pod);
            (about && event.reason.as_deref() == Some(reason)).then(|| event.message.clone())?
        })
        .await
    }
}

pub(crate) fn allocatable(cpu: &str) -> Value {
    json!({"cpu": cpu, "memory": "8Gi", "pods": "110",
        "kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "4Gi"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_is_bound_with_event() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    let _scheduler = cluster.schedule(|_| {});
    cluster.pod("a", json!({"cpu": "1"})).await;
    assert_eq!(cluster.bound("a").await, "n");
    let message = cluster.event("Scheduled", "a").await;
    assert_eq!(message, "Successfully assigned default/a to n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_pod_has_reason_and_binds_to_new_node() {
    let cluster = TestCluster::start().await;
    let taint = json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]);
    cluster.node("full", allocatable("4"), json!([])).await;
    cluster.node("db-1", allocatable("4"), taint.clone()).await;
    cluster.node("db-2", allocatable("4"), taint).await;
    let scheduler = cluster.schedule(|_| {});
    cluster
        .pod("be", json!({"kubernetes.io/batch-cpu": "3000"}))
        .await;
    let (reason, message) = cluster
        .refused("be", |message| message.starts_with("0/3"))
        .await;
    assert_eq!(reason, "Unschedulable");
    assert_eq!(
        message,
        "0/3 nodes are available: 1 Insufficient kubernetes.io/batch-cpu, \
         2 node(s) had untolerated taint(s). preemption: 0/3 nodes are available: \
         3 Preemption is not helpful for scheduling."
    );
    assert_eq!(cluster.event("FailedScheduling", "be").await, message);
    let explained = scheduler.debug.explain("default", "be").unwrap();
    let diagnosis = explained.diagnosis.clone().unwrap();
    assert_eq!(diagnosis.plugins, ["NodeResourcesFit", "TaintToleration"]);

    let mut large = allocatable("4");
    large["kubernetes.io/batch-cpu"] = json!("8000");
    cluster.node("large", large, json!([])).await;
    assert_eq!(cluster.bound("be").await, "large");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_scheduler_counts_bound_pods_first() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("2"), json!([])).await;
    let first = cluster.schedule(|_| {});
    cluster.pod("a", json!({"cpu": "1500m"})).await;
    assert_eq!(cluster.bound("a").await, "n");
    first.stop().await;

    cluster.pod("b", json!({"cpu": "1"})).await;
    let second = cluster.schedule(|_| {});
    let (_, message) = cluster.refused("b", |_| true).await;
    assert_eq!(
        message,
        "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: \
         1 No preemption victims found for incoming pod."
    );
    // When the first pod is deleted, the second one is scheduled.
    let grace = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    cluster.pods().delete("a", &grace).await.unwrap();
    assert_eq!(cluster.bound("b").await, "n");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_leader_schedules_until_failover() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    let contend = |name: &'static str| {
        move |options: &mut Options| {
            options.leader_elect = true;
            options.identity = name.to_owned();
        }
    };
    let first = cluster.schedule(contend("one"));
    cluster.pod("a", json!({"cpu": "1"})).await;
    assert_eq!(cluster.bound("a").await, "n");
    let second = cluster.schedule(contend("two"));
    first.stop().await;
    cluster.pod("b", json!({"cpu": "1"})).await;
    assert_eq!(cluster.bound("b").await, "n");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measured_load_steers_the_choice() {
    let cluster = TestCluster::start().await;
    let metrics: Api<NodeMetric> = Api::all(cluster.client.clone());
    for (name, cpu) in [("busy", "3"), ("calm", "500m")] {
        cluster.node(name, allocatable("4"), json!([])).await;
        let metric: NodeMetric = serde_json::from_value(json!({
            "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
            "metadata": {"name": name}, "spec": {}
        }))
        .unwrap();
        metrics
            .create(&PostParams::default(), &metric)
            .await
            .unwrap();
        let status = json!({"status": {
            "updateTime": Clock::system().now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}}
        }});
        metrics
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
    }
    let scheduler = cluster.schedule(|_| {});
    cluster.pod("a", json!({"cpu": "100m"})).await;
    assert_eq!(cluster.bound("a").await, "calm");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pods_are_bound_and_never_more_than_fit() {
    let cluster = TestCluster::start().await;
    for number in 0..5 {
        cluster
            .node(&format!("n{number}"), allocatable("4"), json!([]))
            .await;
    }
    let scheduler =
        cluster.schedule(|options| options.profile_names.push("default-scheduler".into()));
    let names: Vec<String> = (0..25).map(|number| format!("p{number:02}")).collect();
    for name in &names {
        cluster.pod(name, json!({"cpu": "1"})).await;
    }
    let mut waiting: std::collections::BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut refused = std::collections::BTreeSet::new();
    let mut by_node = std::collections::BTreeMap::<String, usize>::new();
    cluster
        .until("20 bound, 5 refused", |pod: &Pod| {
            let name = pod.metadata.name.as_deref()?;
            let node = pod.spec.as_ref()?.node_name.clone();
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
            if let Some(node) = node {
                refused.remove(name);
                if waiting.remove(name) {
                    *by_node.entry(node).or_default() += 1;
                }
            } else if conditions.is_some_and(|all| all.iter().any(|c| c.status == "False")) {
                refused.insert(name.to_owned());
            }
            (waiting.len() == 5 && refused.len() == 5).then_some(())
        })
        .await;
    assert!(by_node.values().all(|pods| *pods == 4), "{by_node:?}");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_may_appear_later() {
    let cluster = TestCluster::bare().await;
    let unknown: Api<NodeMetric> = Api::all(cluster.client.clone());
    assert!(unknown.list(&ListParams::default()).await.is_err());
    cluster.node("n", allocatable("4"), json!([])).await;
    let scheduler = cluster.schedule(|_| {});
    cluster.pod("a", json!({"cpu": "1"})).await;
    assert_eq!(cluster.bound("a").await, "n");

    cluster.install().await;
    let reservation: Reservation = serde_json::from_value(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": "r"},
        "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"app": "x"}}}],
            "template": {"spec": {
                "schedulerName": "koord-scheduler",
                "containers": [{"name": "c", "image": "i",
                    "resources": {"requests": {"cpu": "3"}}}]
            }}
        }
    }))
    .unwrap();
    let reservations: Api<Reservation> = Api::all(cluster.client.clone());
    let params = PostParams::default();
    reservations.create(&params, &reservation).await.unwrap();
    let node = cluster
        .until("a placed reservation", |reservation: &Reservation| {
            let node = reservation.status.as_ref()?.node_name.clone();
            (!node.is_empty()).then_some(node)
        })
        .await;
    assert_eq!(node, "n");
    cluster.pod("b", json!({"cpu": "1"})).await;
    let (_, message) = cluster.refused("b", |_| true).await;
    assert!(message.contains("Insufficient cpu"), "{message}");
    scheduler.stop().await;
}
