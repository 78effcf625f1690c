//! The whole agent, with paused time.

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_host::fake::Tree;
use koord_host::testing::{eventually, eventually_within};
use koord_host::{CgroupPath, Resource};
use koord_kube::api::{DeleteParams, ListParams, PostParams};
use koord_kube::{Api, Client, Informer, Scope, patch};
use koordlet::gates::Gate;
use koordlet::states::kubelet::Kubelet;
use koordlet::{Options, PodSource, Settings, Thread, audit};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const NODE: &str = "n1";

struct Rig {
    client: Client,
    ctx: Context,
    tree: Tree,
    audit: audit::Log,
    _server: Arc<ApiServer>,
}

pub(crate) fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns an API server with one node of two CPUs and 8 GiB.
pub(crate) async fn cluster(clock: &Clock) -> (Arc<ApiServer>, Client) {
    cluster_of(clock, koord_api::crd_values()).await
}

/// Returns an API server like [`cluster`] with these definitions.
pub(crate) async fn cluster_of(clock: &Clock, definitions: Vec<Value>) -> (Arc<ApiServer>, Client) {
    let server = ApiServer::open(Config::memory(clock.clone()))
        .await
        .unwrap();
    server.install_crds(definitions).await.unwrap();
    let client = koord_kube::client::in_process(server.service());
    let nodes: Api<Node> = Api::all(client.clone());
    let node = typed(json!({"metadata": {"name": NODE}}));
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let list = json!({"cpu": "2", "memory": "8Gi", "pods": "110"});
    let status = json!({"status": {"capacity": list, "allocatable": list}});
    patch::merge_node_status(&client, NODE, &status)
        .await
        .unwrap();
    (server, client)
}

/// Returns a running pod on the node with one container, whose group is named after the pod.
pub(crate) async fn add_pod(
    client: &Client,
    name: &str,
    labels: Value,
    resources: Value,
) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = typed(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": NODE, "containers":
            [{"name": "c", "image": "x", "resources": resources}]}}));
    let created: Pod = pods.create(&PostParams::default(), &pod).await.unwrap();
    let uid = created.metadata.uid.unwrap();
    let status = json!({"status": {"phase": "Running", "containerStatuses": [{
        "name": "c", "containerID": format!("koord://{name}"), "image": "x", "imageID": "",
        "ready": true, "restartCount": 0}]}});
    patch::merge_status(&pods, name, &status).await.unwrap();
    uid
}

impl Rig {
    async fn start() -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let (server, client) = cluster(&clock).await;
        let tree = Tree::hybrid("0-1").unwrap();
        tree.group("kubepods/besteffort").unwrap();
        Self {
            client,
            ctx: Context::with_clock(clock),
            tree,
            audit: audit::Log::default(),
            _server: server,
        }
    }

    fn koordlet(&self) -> tokio::task::JoinHandle<()> {
        let mut settings = Settings::default();
        settings.gates.set(Gate::BEMemoryEvict, true);
        let options = Options {
            node_name: NODE.to_owned(),
            root: Some(self.tree.root().clone()),
            settings,
            audit: self.audit.clone(),
            thread: Thread::Shared,
            ..Options::default()
        };
        let run = koordlet::run(options, self.client.clone(), self.ctx.clone());
        tokio::spawn(async move { run.await.unwrap() })
    }

    async fn add_pod(&self, name: &str, labels: Value, resources: Value) -> String {
        add_pod(&self.client, name, labels, resources).await
    }

    /// Waits, in paused time, until `found` returns a value.
    async fn until<T>(&self, what: &str, found: impl AsyncFnMut() -> Option<T>) -> T {
        eventually_within(Duration::from_secs(1000), what, found).await
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.ctx.shutdown.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_of_an_existing_nodemetric_is_reported() {
    let rig = Rig::start().await;
    let uid = rig
        .add_pod(
            "ls",
            json!({"koordinator.sh/qosClass": "LS"}),
            json!({"requests": {"cpu": "500m"}}),
        )
        .await;
    rig.tree
        .group(&format!("kubepods/burstable/pod{uid}/ls"))
        .unwrap();
    let running = rig.koordlet();
    let metrics: Api<NodeMetric> = Api::all(rig.client.clone());
    // The manager creates the object; koordlet must not.
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(
        metrics
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let spec = json!({"metadata": {"name": NODE}, "spec": {"metricCollectPolicy": {
        "aggregateDurationSeconds": 60, "reportIntervalSeconds": 30,
        "nodeAggregatePolicy": {"durations": ["1m", "30m"]}}}});
    metrics
        .create(&PostParams::default(), &typed(spec))
        .await
        .unwrap();
    let status = rig
        .until("a report", async || metrics.get(NODE).await.unwrap().status)
        .await;
    let value = serde_json::to_value(&status).unwrap();
    assert_eq!(value["podsMetric"][0]["name"], "ls");
    assert_eq!(value["podsMetric"][0]["qos"], "LS");
    assert_eq!(
        value["nodeMetric"]["nodeUsage"]["resources"]["memory"],
        "2Gi"
    );
    let windows = value["nodeMetric"]["aggregatedNodeUsages"]
        .as_array()
        .unwrap();
    assert_eq!(windows[0]["duration"], "1m0s");
    assert!(windows[0]["usage"]["p99"]["resources"]["cpu"].is_string());
    assert!(windows[1].get("usage").is_none());
    // And again, on time.
    let first = value["updateTime"].clone();
    rig.until("a second report", async || {
        let status = metrics.get(NODE).await.unwrap().status?;
        (serde_json::to_value(status.update_time).unwrap() != first).then_some(())
    })
    .await;
    rig.ctx.shutdown.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn batch_pods_get_values_and_settings_switch_at_run_time() {
    let rig = Rig::start().await;
    let uid = rig.add_pod("be", json!({"koordinator.sh/qosClass": "BE"}),
        json!({"requests": {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"},
               "limits": {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}})).await;
    let pod = rig
        .tree
        .group(&format!("kubepods/besteffort/pod{uid}"))
        .unwrap();
    let container = rig
        .tree
        .group(&format!("kubepods/besteffort/pod{uid}/be"))
        .unwrap();
    let _running = rig.koordlet();
    let group = rig.tree.root().cgroup(&container);
    rig.until("the values", async || {
        (group.cpu_shares().unwrap() == Some(1536)).then_some(())
    })
    .await;
    assert_eq!(group.cfs_quota().unwrap(), Some(150_000));
    assert_eq!(group.memory_limit().unwrap(), Some(1 << 30));
    let group = rig.tree.root().cgroup(&pod);
    assert_eq!(group.cfs_quota().unwrap(), Some(150_000));

    let class = rig
        .tree
        .root()
        .cgroup(&"kubepods/besteffort".parse().unwrap());
    let slos: Api<NodeSLO> = Api::all(rig.client.clone());
    let slo = |mode: &str| {
        json!({"metadata": {"name": NODE}, "spec": {
        "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressPolicy": "cfsQuota"},
        "extensions": {"cpuSuppress": {"mode": mode}}}})
    };
    slos.create(&PostParams::default(), &typed(slo("upstream")))
        .await
        .unwrap();
    rig.until("the cap", async || {
        (class.cfs_quota().unwrap() == Some(130_000)).then_some(())
    })
    .await;
    assert_eq!(
        group.cfs_quota().unwrap(),
        Some(-1),
        "a quota in a quota only adds latency"
    );
    patch::merge(&slos, NODE, &slo("pressure")).await.unwrap();
    rig.until("no cap", async || {
        (class.cfs_quota().unwrap() == Some(-1)).then_some(())
    })
    .await;
    assert_eq!(class.cpu_shares().unwrap(), Some(2));
    let writes = rig.audit.entries();
    assert!(
        writes
            .iter()
            .any(|w| w.change.as_ref().is_some_and(|c| c.new == "130000"))
    );
    assert!(writes.iter().all(|w| !w.message.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn memory_pressure_evicts_through_the_api() {
    let rig = Rig::start().await;
    let uid = rig.add_pod("be", json!({"koordinator.sh/qosClass": "BE"}),
        json!({"requests": {"kubernetes.io/batch-cpu": "1", "kubernetes.io/batch-memory": "1Gi"}})).await;
    let pod = rig
        .tree
        .group(&format!("kubepods/besteffort/pod{uid}"))
        .unwrap();
    let stat = format!(
        "total_inactive_anon 0\ntotal_active_anon {}\ntotal_inactive_file 0\n\
         total_active_file 0\ntotal_unevictable 0\n",
        3_u64 << 30
    );
    rig.tree.feed(&pod, Resource::MemoryStat, &stat).unwrap();
    let slos: Api<NodeSLO> = Api::all(rig.client.clone());
    let slo = json!({"metadata": {"name": NODE}, "spec": {"resourceUsedThresholdWithBE":
        {"enable": true, "memoryEvictThresholdPercent": 70}}});
    slos.create(&PostParams::default(), &typed(slo))
        .await
        .unwrap();
    let _running = rig.koordlet();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let metrics = koord_app::metrics::encode(&rig.ctx.metrics).unwrap();
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes"] {
        assert!(metrics.contains(&format!("\n{name} ")), "{name}: {metrics}");
    }
    let pods: Api<Pod> = Api::namespaced(rig.client.clone(), "default");
    assert!(
        pods.get("be")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_none()
    );
    let meminfo = "MemTotal: 8388608 kB\nMemFree: 524288 kB\nMemAvailable: 1048576 kB\n\
                   Buffers: 0 kB\nCached: 0 kB\nActive(file): 0 kB\nInactive(file): 0 kB\n\
                   SReclaimable: 0 kB\n";
    rig.tree.put("proc/meminfo", meminfo).unwrap();
    rig.until("the eviction", async || {
        let pod = pods.get_opt("be").await.unwrap();
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
            .then_some(())
    })
    .await;
    let events: Api<Event> = Api::namespaced(rig.client.clone(), "default");
    let event = rig
        .until("the event", async || {
            let all = events.list(&ListParams::default()).await.unwrap();
            all.items
                .into_iter()
                .find(|e| e.reason.as_deref() == Some("evictPodSuccess"))
        })
        .await;
    assert!(event.message.unwrap().contains("BEMemoryEvict"));
    let _ = pods
        .delete("be", &DeleteParams::default().grace_period(0))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_disruption_budget_spares_its_pod_and_the_next_one_goes() {
    let rig = Rig::start().await;
    for (name, gib) in [("guarded", 3_u64), ("free", 2)] {
        let labels = json!({"koordinator.sh/qosClass": "BE", "app": name});
        let uid = rig.add_pod(name, labels, json!({})).await;
        let pod = format!("kubepods/besteffort/pod{uid}");
        let pod = rig.tree.group(&pod).unwrap();
        let stat = format!(
            "total_inactive_anon 0\ntotal_active_anon {}\ntotal_inactive_file 0\n\
             total_active_file 0\ntotal_unevictable 0\n",
            gib << 30
        );
        rig.tree.feed(&pod, Resource::MemoryStat, &stat).unwrap();
    }
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(rig.client.clone(), "default");
    let budget = json!({"metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}});
    budgets
        .create(&PostParams::default(), &typed(budget))
        .await
        .unwrap();
    rig.until("the budget's status", async || {
        budgets.get("guard").await.unwrap().status
    })
    .await;
    let slos: Api<NodeSLO> = Api::all(rig.client.clone());
    let slo = json!({"metadata": {"name": NODE}, "spec": {"resourceUsedThresholdWithBE":
        {"enable": true, "memoryEvictThresholdPercent": 70}}});
    slos.create(&PostParams::default(), &typed(slo))
        .await
        .unwrap();
    let meminfo = "MemTotal: 8388608 kB\nMemFree: 524288 kB\nMemAvailable: 1048576 kB\n\
                   Buffers: 0 kB\nCached: 0 kB\nActive(file): 0 kB\nInactive(file): 0 kB\n\
                   SReclaimable: 0 kB\n";
    rig.tree.put("proc/meminfo", meminfo).unwrap();
    let _running = rig.koordlet();
    let pods: Api<Pod> = Api::namespaced(rig.client.clone(), "default");
    let leaves = async |name: &str| {
        let pod = pods.get_opt(name).await.unwrap();
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    };
    // The pod with the highest usage would be first.
    rig.until("the eviction", async || leaves("free").await.then_some(()))
        .await;
    let events: Api<Event> = Api::namespaced(rig.client.clone(), "default");
    rig.until("the refusal", async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.items
            .into_iter()
            .find(|e| e.reason.as_deref() == Some("evictPodFail"))
    })
    .await;
    assert!(!leaves("guarded").await);
    let _ = pods
        .delete("free", &DeleteParams::default().grace_period(0))
        .await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_other_nodes_are_not_ours() {
    let rig = Rig::start().await;
    let pods: Api<Pod> = Api::namespaced(rig.client.clone(), "default");
    let pod: Pod = typed(
        json!({"metadata": {"name": "far"}, "spec": {"nodeName": "other",
        "containers": [{"name": "c", "image": "x"}]}}),
    );
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let scope = Scope {
        fields: Some(format!("spec.nodeName={NODE}")),
        ..Scope::default()
    };
    let stop = rig.ctx.shutdown.clone();
    let store = Informer::<Pod>::start_store(rig.client.clone(), scope, stop);
    assert!(store.wait_synced().await && store.is_empty());
}

#[tokio::test]
async fn a_node_needs_a_name() {
    let rig = Rig::start().await;
    let options = Options {
        root: Some(rig.tree.root().clone()),
        ..Options::default()
    };
    let error = koordlet::run(options, rig.client.clone(), rig.ctx.clone())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("NODE_NAME"), "{error}");
}

/// Returns options of an agent whose pods come from a kubelet that responds with `answer`, polled every
/// `interval`.
async fn with_kubelet(
    rig: &Rig,
    answer: Arc<std::sync::Mutex<serde_json::Value>>,
    interval: Duration,
) -> Options {
    let routes = axum::Router::new().route(
        "/pods",
        axum::routing::get(move || async move { axum::Json(answer.lock().unwrap().clone()) }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let kubelet = Kubelet {
        url: Some(format!("http://{address}")),
        interval,
        ..Kubelet::default()
    };
    Options {
        node_name: NODE.to_owned(),
        root: Some(rig.tree.root().clone()),
        settings: Settings {
            interval_ms: 20,
            ..Settings::default()
        },
        pods: PodSource::Kubelet(kubelet),
        thread: Thread::Own,
        report: false,
        ..Options::default()
    }
}

#[tokio::test]
async fn pods_can_come_from_the_kubelet() {
    let rig = Rig::start().await;
    let group = rig.tree.group("kubepods/besteffort/podu1").unwrap();
    let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [{
        "metadata": {"uid": "u1", "name": "be", "labels": {"koordinator.sh/qosClass": "BE"}},
        "spec": {"containers": [{"name": "c",
            "resources": {"requests": {"kubernetes.io/batch-cpu": "3000"}}}]},
        "status": {"phase": "Running"}}]});
    let answer = Arc::new(std::sync::Mutex::new(list));
    let options = with_kubelet(&rig, answer, Duration::from_millis(50)).await;
    let running = tokio::spawn(koordlet::run(options, rig.client.clone(), rig.ctx.clone()));
    let group = rig.tree.root().cgroup(&group);
    eventually("group with the pod's shares", async || {
        (group.cpu_shares().unwrap() == Some(3072)).then_some(())
    })
    .await;
    rig.ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
}

/// The poll is an hour away: only the new directory shows that a container has been restarted.
#[tokio::test]
async fn restarted_batch_container_gets_limits_at_once() {
    let rig = Rig::start().await;
    rig.tree.group("kubepods/besteffort/podu1/c1").unwrap();
    let list = |id: &str| {
        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [{
            "metadata": {"uid": "u1", "name": "be", "labels": {"koordinator.sh/qosClass": "BE"}},
            "spec": {"containers": [{"name": "c",
                "resources": {"requests": {"kubernetes.io/batch-cpu": "3000"},
                    "limits": {"kubernetes.io/batch-cpu": "3000"}}}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "",
                "imageID": "", "ready": true, "restartCount": 0,
                "containerID": format!("containerd://{id}"), "state": {"running": {}}}]}}]})
    };
    let answer = Arc::new(std::sync::Mutex::new(list("c1")));
    let options = with_kubelet(&rig, answer.clone(), Duration::from_secs(3600)).await;
    let running = tokio::spawn(koordlet::run(options, rig.client.clone(), rig.ctx.clone()));
    let has_shares = async |path: &str| {
        let group = rig.tree.root().cgroup(&CgroupPath::new(path).unwrap());
        let wait = async {
            // The fake's files are written in two steps, which the kernel's are not.
            while !matches!(group.cpu_shares(), Ok(Some(3072))) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .unwrap();
    };
    has_shares("kubepods/besteffort/podu1/c1").await;
    *answer.lock().unwrap() = list("c2");
    rig.tree.group("kubepods/besteffort/podu1/c2").unwrap();
    has_shares("kubepods/besteffort/podu1/c2").await;
    rig.ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
}
