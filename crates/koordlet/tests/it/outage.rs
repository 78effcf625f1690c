//! The API server is unreachable for ten minutes. The node continues with the last known state, and catches
//! up when the server is back.

use crate::agent::{NODE, add_pod, cluster, typed};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Event, Pod};
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_apiserver::ApiServer;
use koord_app::{Clock, Context};
use koord_host::fake::Tree;
use koord_host::{CgroupPath, Resource};
use koord_kube::api::{DeleteParams, ListParams, PostParams};
use koord_kube::client::{ANSWER_WITHIN, Body, in_process};
use koord_kube::{Api, Client, patch};
use koordlet::evictor::{Config, EvictionMode};
use koordlet::gates::Gate;
use koordlet::{Options, Settings, Thread, audit};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, ServiceExt};

/// Connectivity of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Connectivity {
    #[default]
    Open,
    /// Connections are refused.
    Refused,
    /// Connections are accepted, but there are no responses.
    Hangs,
}

/// Connection between agent and server, with the requests sent over it.
#[derive(Debug, Default)]
struct Line {
    connectivity: Mutex<Connectivity>,
    /// Cancels pending responses.
    cut: Mutex<CancellationToken>,
    requests: AtomicUsize,
    reports: AtomicUsize,
    unanswered: Arc<()>,
}

impl Line {
    /// Changes the connectivity. Open connections are closed.
    fn set_connectivity(&self, connectivity: Connectivity) {
        *self.connectivity.lock().unwrap() = connectivity;
        std::mem::take(&mut *self.cut.lock().unwrap()).cancel();
    }

    fn request_count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns how many NodeMetrics were sent.
    fn reports(&self) -> usize {
        self.reports.load(Ordering::SeqCst)
    }

    /// Returns the number of requests that wait for a hanging server.
    fn unanswered(&self) -> usize {
        Arc::strong_count(&self.unanswered) - 1
    }
}

#[derive(Clone)]
struct Wire {
    server: axum::Router,
    line: Arc<Line>,
}

impl tower::Service<http::Request<Body>> for Wire {
    type Response = http::Response<axum::body::Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (server, line) = (self.server.clone(), self.line.clone());
        line.requests.fetch_add(1, Ordering::SeqCst);
        if request.method() == http::Method::PATCH && request.uri().path().contains("nodemetrics") {
            line.reports.fetch_add(1, Ordering::SeqCst);
        }
        let (connectivity, cut) = (
            *line.connectivity.lock().unwrap(),
            line.cut.lock().unwrap().clone(),
        );
        Box::pin(async move {
            match connectivity {
                Connectivity::Open => {}
                Connectivity::Refused => return Err("connection refused".into()),
                Connectivity::Hangs => {
                    let _unanswered = line.unanswered.clone();
                    // The timeout of the client that this wire replaces.
                    tokio::time::sleep(ANSWER_WITHIN).await;
                    return Err("request timed out".into());
                }
            }
            let (head, body) = server.oneshot(request).await?.into_parts();
            let data = (body.into_data_stream(), cut);
            let data = futures::stream::unfold(data, async |(mut data, cut)| {
                let next = tokio::select! {
                    biased;
                    () = cut.cancelled() => Some(Err("connection reset by peer".into())),
                    next = futures::StreamExt::next(&mut data) =>
                        next.map(|next| next.map_err(BoxError::from)),
                };
                next.map(|next| (next, (data, cut)))
            });
            let body = axum::body::Body::from_stream(data);
            Ok(http::Response::from_parts(head, body))
        })
    }
}

/// A container's process in the fake tree.
struct Process {
    child: Child,
    files: Vec<PathBuf>,
}

impl Process {
    fn start(tree: &Tree, group: &CgroupPath) -> Self {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let dirs = tree.root().cgroup(group).dirs();
        let files: Vec<_> = dirs.iter().map(|dir| dir.join("cgroup.procs")).collect();
        for file in &files {
            std::fs::write(file, format!("{}\n", child.id())).unwrap();
        }
        Self { child, files }
    }

    /// Returns whether it has ended, and then cleans up as the kernel does.
    fn ended(&mut self) -> bool {
        let ended = self.child.try_wait().unwrap().is_some();
        if ended {
            for file in &self.files {
                std::fs::write(file, "").unwrap();
            }
        }
        ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory of the batch pods, in GiB.
const BATCH_MEMORY: u64 = 3;
/// Total CPU usage of the batch pods, in milli-cores.
const BATCH_MILLI: u64 = 200;

/// A node of two CPUs and 8 GiB, on which time passes only with [`Node::pass`].
struct Node {
    admin: Client,
    line: Arc<Line>,
    ctx: Context,
    tree: Tree,
    audit: audit::Log,
    services: [CgroupPath; 2],
    batches: [CgroupPath; 2],
    processes: [Process; 2],
    second: u64,
    service_ns: u64,
    /// CPU usage of the first service, in milli-cores.
    service_milli: u64,
    available_gib: u64,
    /// True if the first service waits for CPU while batch pods are not `cpu.idle`.
    suffers: bool,
    stalled_us: u64,
    running: Option<JoinHandle<()>>,
    _server: Arc<ApiServer>,
}

impl Node {
    async fn start(mode: EvictionMode) -> Self {
        Self::with(mode, slo(65)).await
    }

    async fn with(mode: EvictionMode, slo: serde_json::Value) -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let (server, admin) = cluster(&clock).await;
        let tree = Tree::hybrid("0-1").unwrap();
        let service = async |name: &str| {
            let labels = json!({"koordinator.sh/qosClass": "LS"});
            let uid = add_pod(&admin, name, labels, json!({"requests": {"cpu": "500m"}})).await;
            let group = format!("kubepods/burstable/pod{uid}");
            tree.group(&format!("{group}/{name}")).unwrap();
            tree.group(&group).unwrap()
        };
        let services = [service("ls").await, service("ls-2").await];
        let batch = async |name: &str| {
            let requests = json!({"kubernetes.io/batch-cpu": "1000",
                "kubernetes.io/batch-memory": "1Gi"});
            let labels = json!({"koordinator.sh/qosClass": "BE"});
            let uid = add_pod(&admin, name, labels, json!({"requests": requests})).await;
            let group = format!("kubepods/besteffort/pod{uid}");
            let container = tree.group(&format!("{group}/{name}")).unwrap();
            let process = Process::start(&tree, &container);
            (tree.group(&group).unwrap(), process)
        };
        let [(batch_1, process_1), (batch_2, process_2)] =
            [batch("be-1").await, batch("be-2").await];
        let spec = json!({"metadata": {"name": NODE}, "spec": {"metricCollectPolicy": {
            "aggregateDurationSeconds": 60, "reportIntervalSeconds": 30}}});
        let metrics: Api<NodeMetric> = Api::all(admin.clone());
        let created = metrics.create(&PostParams::default(), &typed(spec)).await;
        created.unwrap();
        let slos: Api<NodeSLO> = Api::all(admin.clone());
        let created = slos.create(&PostParams::default(), &typed(slo)).await;
        created.unwrap();

        let line = Arc::new(Line::default());
        let wire = Wire {
            server: server.service(),
            line: line.clone(),
        };
        let ctx = Context::with_clock(clock);
        let audit = audit::Log::default();
        let mut settings = Settings::default();
        settings.gates.set(Gate::BEMemoryEvict, true);
        let options = Options {
            node_name: NODE.to_owned(),
            root: Some(tree.root().clone()),
            settings,
            audit: audit.clone(),
            evict: Config {
                mode,
                ..Config::default()
            },
            thread: Thread::Shared,
            ..Options::default()
        };
        let run = koordlet::run(options, in_process(wire), ctx.clone());
        let running = tokio::spawn(async move { run.await.unwrap() });
        // Samples are taken half-way between changes.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Self {
            admin,
            line,
            ctx,
            tree,
            audit,
            services,
            batches: [batch_1, batch_2],
            processes: [process_1, process_2],
            second: 0,
            service_ns: 0,
            service_milli: 300,
            available_gib: 7,
            suffers: false,
            stalled_us: 0,
            running: Some(running),
            _server: server,
        }
    }

    /// Lets seconds pass.
    async fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.second += 1;
            self.service_ns += self.service_milli * 1_000_000;
            let batch_ns = self.second * BATCH_MILLI * 1_000_000;
            let ticks = (self.service_ns + batch_ns) / 10_000_000;
            let stat = format!("cpu  {ticks} 0 0 5 5 0 0 9 0 0\ncpu0 {ticks} 0 0 0\n");
            self.tree.put("proc/stat", &stat).unwrap();
            let available = self.available_gib << 20;
            let meminfo = format!(
                "MemTotal: 8388608 kB\nMemFree: 524288 kB\nMemAvailable: {available} kB\n\
                 Buffers: 0 kB\nCached: 0 kB\nActive(file): 0 kB\nInactive(file): 0 kB\n\
                 SReclaimable: 0 kB\n"
            );
            self.tree.put("proc/meminfo", &meminfo).unwrap();
            let feed = |group: &CgroupPath, resource, text: &str| {
                self.tree.feed(group, resource, text).unwrap();
            };
            let (service_ns, batch_ns) =
                (format!("{}\n", self.service_ns), format!("{batch_ns}\n"));
            feed(&self.services[0], Resource::CpuacctUsage, &service_ns);
            feed(&self.batches[0], Resource::CpuacctUsage, &batch_ns);
            let class = CgroupPath::new("kubepods/besteffort").unwrap();
            feed(&class, Resource::CpuacctUsage, &batch_ns);
            let waits = self.suffers && !self.is_idle();
            self.stalled_us += if waits { 350_000 } else { 10_000 };
            let stalled = format!(
                "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n\
                 full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
                self.stalled_us
            );
            feed(&self.services[0], Resource::CpuPressure, &stalled);
            for (group, process) in self.batches.iter().zip(&mut self.processes) {
                let bytes = if process.ended() {
                    0
                } else {
                    BATCH_MEMORY << 30
                };
                let stat = format!(
                    "total_inactive_anon 0\ntotal_active_anon {bytes}\ntotal_inactive_file 0\n\
                     total_active_file 0\ntotal_unevictable 0\n"
                );
                self.tree.feed(group, Resource::MemoryStat, &stat).unwrap();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Lets time pass until `found`, `limit` seconds at most.
    async fn until(
        &mut self,
        what: &str,
        limit: u64,
        mut found: impl AsyncFnMut(&mut Self) -> bool,
    ) {
        for _ in 0..=limit {
            if found(self).await {
                return;
            }
            self.pass(1).await;
        }
        panic!("never saw {what}");
    }

    /// Returns whether the pressure guard has batch pods `cpu.idle`.
    fn is_idle(&self) -> bool {
        let idle = |group| self.tree.root().cgroup(group).cpu_idle().unwrap();
        self.batches.iter().all(|group| idle(group) == Some(true))
    }

    /// Returns the number of the guard's audit entries of this kind.
    fn guard_entry_count(&self, kind: &str) -> usize {
        let starts = format!("{kind}: ");
        let entries = self.audit.entries().into_iter();
        let guard_entries = entries.filter(|entry| entry.reason == "PressureGuard");
        guard_entries
            .filter(|entry| entry.message.starts_with(&starts))
            .count()
    }

    /// Returns the quota of the BE class, in milli-cores.
    fn batch_may_use(&self) -> i64 {
        let class = CgroupPath::new("kubepods/besteffort").unwrap();
        let quota = self.tree.root().cgroup(&class).cfs_quota().unwrap();
        quota.unwrap() / 100
    }

    /// Waits until batch work is limited to `milli`. Changes within the dead band of 1 % of two cores are not
    /// written.
    async fn until_batch_may_use(&mut self, milli: i64, limit: u64) {
        let context = format!("batch work at {milli}m");
        self.until(&context, limit, async |node| {
            (node.batch_may_use() - milli).abs() <= 20
        })
        .await;
    }

    /// Changes a pod's weight, and waits until the agent has restored it.
    async fn is_reconciled(&mut self, pod: usize) {
        let group = self.tree.root().cgroup(&self.batches[pod]);
        assert_eq!(group.cpu_shares().unwrap(), Some(1024));
        group.set_cpu_shares(2).unwrap();
        self.until("the pod's weight", 70, async |node| {
            let group = node.tree.root().cgroup(&node.batches[pod]);
            group.cpu_shares().unwrap() == Some(1024)
        })
        .await;
    }

    /// Makes the node run short of memory, and checks by mode whether a batch pod is evicted.
    async fn is_evicted(&mut self, pod: usize, mode: EvictionMode) {
        self.available_gib = 1;
        if mode == EvictionMode::Api {
            self.pass(60).await;
            assert!(!self.processes[pod].ended(), "only the server decides");
        } else {
            self.until("the end of a batch pod", 30, async |node| {
                node.processes[pod].ended()
            })
            .await;
        }
        self.available_gib = 7;
        self.pass(1).await;
    }

    async fn reported(&self) -> serde_json::Value {
        let metrics: Api<NodeMetric> = Api::all(self.admin.clone());
        serde_json::to_value(metrics.get(NODE).await.unwrap().status).unwrap()
    }

    /// Waits for a report after this moment.
    async fn until_reported(&mut self, limit: u64) -> serde_json::Value {
        let now = self.ctx.clock.now();
        self.until("a report", limit, async |node| {
            let updated = node.reported().await["updateTime"].clone();
            updated
                .as_str()
                .is_some_and(|updated| updated.parse::<jiff::Timestamp>().unwrap() > now)
        })
        .await;
        self.reported().await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.ctx.shutdown.cancel();
    }
}

fn slo(percent: i64) -> serde_json::Value {
    json!({"metadata": {"name": NODE}, "spec": {
        "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressPolicy": "cfsQuota",
            "cpuSuppressThresholdPercent": percent, "memoryEvictThresholdPercent": 70},
        "extensions": {"cpuSuppress": {"mode": "upstream"}}}})
}

fn names(report: &serde_json::Value) -> Vec<&str> {
    let pods = report["podsMetric"].as_array().unwrap().iter();
    pods.map(|pod| pod["name"].as_str().unwrap()).collect()
}

/// Batch work may use a share of two cores minus the services' usage, as in upstream.
async fn ten_minutes_without_a_server(mode: EvictionMode) {
    let mut node = Node::start(mode).await;
    node.until_batch_may_use(1300 - 300, 60).await;
    let report = node.until_reported(60).await;
    assert_eq!(names(&report), ["be-1", "be-2", "ls", "ls-2"]);

    for (connectivity, service_milli, pod) in [
        (Connectivity::Refused, 900, 0),
        (Connectivity::Hangs, 500, 1),
    ] {
        node.line.set_connectivity(connectivity);
        let (began, sent) = (node.second, node.line.request_count());
        let mut unanswered = 0;
        node.service_milli = service_milli;
        let limit = 1300 - i64::try_from(service_milli).unwrap();
        node.until_batch_may_use(limit, 10).await;
        node.is_reconciled(pod).await;
        node.is_evicted(pod, mode).await;
        while node.second < began + 300 {
            node.pass(1).await;
            unanswered = unanswered.max(node.line.unanswered());
        }
        assert!(
            (node.batch_may_use() - limit).abs() <= 20,
            "{connectivity:?}"
        );
        let sent = node.line.request_count() - sent;
        assert!(
            (20..600).contains(&sent),
            "{connectivity:?}: asked {sent} times"
        );
        // One request by each informer, a report, an event, and evictions.
        assert!(
            unanswered <= 5 + 2 + 4,
            "{connectivity:?}: {unanswered} at once"
        );
    }

    // The cluster changes meanwhile.
    let slos: Api<NodeSLO> = Api::all(node.admin.clone());
    patch::merge(&slos, NODE, &slo(50)).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(node.admin.clone(), "default");
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("ls-2", &at_once).await.unwrap();
    // The worst time: a report has just been lost.
    let reports = node.line.reports();
    node.until("another report", 60, async |node| {
        node.line.reports() > reports
    })
    .await;
    node.line.set_connectivity(Connectivity::Open);
    let sent = node.line.request_count();
    // The end of that report, and the interval of 30 s.
    node.until_reported(30 + 10).await;
    node.until_batch_may_use(1000 - 500, 90).await;
    node.until("the end of a deleted pod", 120, async |node| {
        names(&node.reported().await) == ["be-1", "be-2", "ls"]
    })
    .await;
    let sent = node.line.request_count() - sent;
    assert!(sent < 200, "what had waited came as {sent} requests");

    if mode == EvictionMode::Api {
        // The failed eviction does not prevent the next one.
        let events: Api<Event> = Api::namespaced(node.admin.clone(), "default");
        for name in ["be-1", "be-2"] {
            node.until("what was tried", 120, async |_| {
                let all = events.list(&ListParams::default()).await.unwrap();
                let mut failed = all
                    .items
                    .iter()
                    .filter(|event| event.reason.as_deref() == Some("evictPodFail"));
                failed.any(|event| event.involved_object.name.as_deref() == Some(name))
            })
            .await;
        }
    }
    let killed = node.audit.entries().into_iter();
    let killed = killed.filter(|entry| entry.message.contains("containers killed"));
    let killed: Vec<_> = killed.map(|entry| entry.name).collect();
    let want: &[&str] = if mode == EvictionMode::Api {
        &[]
    } else {
        &["be-1", "be-2"]
    };
    assert_eq!(killed, want);
    node.ctx.shutdown.cancel();
    node.running.take().unwrap().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_node_goes_on_for_ten_minutes_without_a_server() {
    ten_minutes_without_a_server(EvictionMode::ApiThenKill).await;
}

#[tokio::test(start_paused = true)]
async fn api_mode_kills_no_pod_during_a_server_outage() {
    ten_minutes_without_a_server(EvictionMode::Api).await;
}

/// The guard decides by the node's own signals. A lever held at the start of the outage is released to check
/// whether the harm returns, is applied again if it does, and released when the harm ends, without waiting
/// for any response. The results are reported when the server is back.
async fn run_guard_without_server(connectivity: Connectivity) {
    let mut slo = slo(65);
    slo["spec"]["extensions"]["cpuSuppress"]["mode"] = json!("pressure");
    let mut node = Node::with(EvictionMode::Api, slo).await;
    // Without signals of memory bandwidth, it starts at the threshold and raises the cap gradually.
    node.until("a cap", 60, async |node| node.batch_may_use() > 20)
        .await;
    node.until("batch work without a cap", 90, async |node| {
        node.batch_may_use() <= 0
    })
    .await;
    node.suffers = true;
    node.until("a lever that helps", 60, async |node| {
        node.is_idle() && node.guard_entry_count("Helped") == 1
    })
    .await;

    node.line.set_connectivity(connectivity);
    let (began, sent, mut unanswered) = (node.second, node.line.request_count(), 0);
    node.until("the lever let go", 90, async |node| !node.is_idle())
        .await;
    unanswered = unanswered.max(node.line.unanswered());
    // A few samples, not the timeout of a request.
    node.until("the lever again", 8, async |node| node.is_idle())
        .await;
    assert_eq!(node.guard_entry_count("Confirmed"), 1, "{connectivity:?}");
    node.suffers = false;
    node.until("the end of the harm", 150, async |node| {
        node.guard_entry_count("Over") == 1
    })
    .await;
    while node.second < began + 300 {
        node.pass(1).await;
        unanswered = unanswered.max(node.line.unanswered());
    }
    assert!(!node.is_idle(), "{connectivity:?}");
    let sent = node.line.request_count() - sent;
    assert!(
        (20..600).contains(&sent),
        "{connectivity:?}: asked {sent} times"
    );
    // One request by each informer, a report, and the two events.
    assert!(
        unanswered <= 5 + 3,
        "{connectivity:?}: {unanswered} at once"
    );

    node.line.set_connectivity(Connectivity::Open);
    node.until_reported(30 + 10).await;
    node.suffers = true;
    node.until("the lever once more", 60, async |node| node.is_idle())
        .await;
    node.suffers = false;
    node.until("the end of it", 200, async |node| {
        node.guard_entry_count("Over") == 2
    })
    .await;
    let events: Api<Event> = Api::namespaced(node.admin.clone(), "default");
    node.until("an event of the node", 60, async |_| {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let mut over = all
            .iter()
            .filter(|event| event.reason.as_deref() == Some("PressureGuardOver"));
        over.any(|event| event.involved_object.name.as_deref() == Some(NODE))
    })
    .await;
    node.ctx.shutdown.cancel();
    node.running.take().unwrap().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_guard_goes_on_without_a_server_that_refuses() {
    run_guard_without_server(Connectivity::Refused).await;
}

#[tokio::test(start_paused = true)]
async fn the_guard_goes_on_without_a_server_that_hangs() {
    run_guard_without_server(Connectivity::Hangs).await;
}
