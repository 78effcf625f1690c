use super::*;
use crate::states::{Driver, Layout, PodInfo};
use koord_host::CgroupPath;
use koord_host::fake::Tree;
use koord_kube::client::{Body, in_process};
use prometheus::Registry;
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The server's response to an eviction.
#[derive(Debug, Clone, Copy)]
enum EvictionResponse {
    Yes,
    No(u16),
    Hang,
}

/// An API server with the eviction API, which selects the response by the pod's name.
#[derive(Clone)]
struct Server {
    answer: fn(&str) -> EvictionResponse,
    seen: Arc<Mutex<Vec<Value>>>,
    /// True if it offers evictions, and the number of discovery requests.
    offers: bool,
    discovered: Arc<AtomicUsize>,
}

impl tower::Service<http::Request<Body>> for Server {
    type Response = http::Response<Body>;
    type Error = tower::BoxError;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let (code, body) = if path == "/api/v1" {
                let eviction = json!({"name": "pods/eviction", "singularName": "", "verbs": [],
                    "namespaced": true, "kind": "Eviction", "group": "policy", "version": "v1"});
                server.discovered.fetch_add(1, Ordering::SeqCst);
                let eviction = Some(eviction).filter(|_| server.offers);
                let eviction: Vec<Value> = eviction.into_iter().collect();
                (200, json!({"groupVersion": "v1", "resources": eviction}))
            } else {
                let body = request.into_body().collect_bytes().await?;
                server.seen.lock().push(serde_json::from_slice(&body)?);
                let name = path.split('/').nth(6).unwrap_or_default();
                match (server.answer)(name) {
                    EvictionResponse::Yes => (201, json!({})),
                    EvictionResponse::No(code) => {
                        (code, json!({"message": format!("answer {code}")}))
                    }
                    EvictionResponse::Hang => std::future::pending().await,
                }
            };
            let body = Body::from(serde_json::to_vec(&body)?);
            Ok(http::Response::builder().status(code).body(body)?)
        })
    }
}

struct Rig {
    server: Server,
    states: Arc<States>,
    audit: audit::Log,
    registry: Registry,
    root: Root,
}

impl Rig {
    fn new(answer: fn(&str) -> EvictionResponse, root: Root) -> Self {
        Self {
            server: Server {
                answer,
                seen: Arc::default(),
                offers: true,
                discovered: Arc::default(),
            },
            states: Arc::default(),
            audit: audit::Log::default(),
            registry: Registry::new(),
            root,
        }
    }

    fn start(&self, mode: EvictionMode) -> (Evictor, mpsc::Receiver<EvictionResult>) {
        let metrics = Metrics::new(&self.registry).unwrap();
        metrics.record_start("n1", 0);
        let parts = EvictorDeps {
            client: in_process(self.server.clone()),
            recorder: Recorder::silent(),
            states: self.states.clone(),
            root: self.root.clone(),
            audit: self.audit.clone(),
            metrics,
            clock: Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap()),
        };
        let config = Config {
            mode,
            ..Config::default()
        };
        Evictor::start(config, parts, CancellationToken::new())
    }

    fn evicted(&self) -> u64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|f| f.name() == "koordlet_pod_eviction");
        family.map_or(0, |f| f.get_metric()[0].get_counter().get_value() as u64)
    }
}

fn eviction(name: &str) -> Eviction {
    Eviction {
        uid: format!("u-{name}"),
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        feature: "BEMemoryEvict",
        message: format!("trigger by koordlet feature BEMemoryEvict, kill pod: {name}"),
    }
}

async fn outcome(results: &mut mpsc::Receiver<EvictionResult>) -> (String, EvictionOutcome) {
    let result = results.recv().await.unwrap();
    (result.eviction.name, result.outcome)
}

fn nowhere() -> Root {
    Tree::hybrid("0-1").unwrap().root().clone()
}

#[tokio::test(start_paused = true)]
async fn an_accepted_eviction_is_recorded_and_counted() {
    let rig = Rig::new(|_| EvictionResponse::Yes, nowhere());
    let (evictor, mut results) = rig.start(EvictionMode::default());
    assert!(evictor.try_evict(eviction("a")));
    assert_eq!(
        outcome(&mut results).await,
        ("a".to_owned(), EvictionOutcome::Evicted)
    );
    let request = rig.server.seen.lock()[0].clone();
    assert_eq!(request["apiVersion"], "policy/v1");
    assert_eq!(request["deleteOptions"]["preconditions"]["uid"], "u-a");
    assert_eq!(request["deleteOptions"].get("gracePeriodSeconds"), None);
    let records = rig.audit.entries();
    assert_eq!((records.len(), records[0].level), (1, 0));
    assert_eq!(
        (records[0].name.as_str(), records[0].reason.as_str()),
        ("a", "evicted")
    );
    assert_eq!(rig.evicted(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_request_delays_no_other_and_ends() {
    let answer = |name: &str| match name {
        "stuck" => EvictionResponse::Hang,
        _ => EvictionResponse::Yes,
    };
    let rig = Rig::new(answer, nowhere());
    let (evictor, mut results) = rig.start(EvictionMode::Api);
    let began = Instant::now();
    for name in ["stuck", "b", "c"] {
        assert!(evictor.try_evict(eviction(name)));
    }
    assert!(!evictor.try_evict(eviction("stuck")), "under way already");
    for want in ["b", "c"] {
        assert_eq!(
            outcome(&mut results).await,
            (want.to_owned(), EvictionOutcome::Evicted)
        );
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(
        outcome(&mut results).await,
        ("stuck".to_owned(), EvictionOutcome::Failed)
    );
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    assert!(
        evictor.try_evict(eviction("stuck")),
        "the next tick may try again"
    );
}

#[tokio::test(start_paused = true)]
async fn as_many_as_allowed_are_under_way_at_once() {
    let rig = Rig::new(|_| EvictionResponse::Hang, nowhere());
    let (evictor, mut results) = rig.start(EvictionMode::Api);
    for n in 0..6 {
        assert!(evictor.try_evict(eviction(&n.to_string())));
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(rig.server.seen.lock().len(), 4);
    let began = Instant::now();
    for _ in 0..6 {
        assert_eq!(outcome(&mut results).await.1, EvictionOutcome::Failed);
    }
    assert_eq!(began.elapsed(), Duration::from_secs(6), "two rounds of 5 s");
}

#[tokio::test(start_paused = true)]
async fn budgets_are_respected_in_every_mode_that_asks() {
    for (mode, code, want) in [
        (EvictionMode::Api, 429, EvictionOutcome::Blocked(None)),
        (
            EvictionMode::ApiThenKill,
            429,
            EvictionOutcome::Blocked(None),
        ),
        (EvictionMode::ApiThenKill, 404, EvictionOutcome::Gone),
        // Another pod of the same name.
        (EvictionMode::ApiThenKill, 409, EvictionOutcome::Gone),
        (EvictionMode::Api, 500, EvictionOutcome::Failed),
    ] {
        let answer = match code {
            429 => |_: &str| EvictionResponse::No(429),
            404 => |_: &str| EvictionResponse::No(404),
            409 => |_: &str| EvictionResponse::No(409),
            _ => |_: &str| EvictionResponse::No(500),
        };
        let rig = Rig::new(answer, nowhere());
        let (evictor, mut results) = rig.start(mode);
        assert!(evictor.try_evict(eviction("a")));
        assert_eq!(outcome(&mut results).await.1, want, "{mode:?} {code}");
        assert_eq!((rig.evicted(), rig.audit.entries().len()), (0, 0));
    }
}

/// Returns a BE pod with one running container, which is a process in the fake tree.
fn running_pod(rig: &Rig, tree: &Tree) -> (Child, Vec<PathBuf>) {
    let child = Command::new("sleep").arg("1000").spawn().unwrap();
    let group = tree.group("kubepods/besteffort/podu-a/c1").unwrap();
    let dirs = tree.root().cgroup(&group).dirs();
    let files: Vec<_> = dirs.iter().map(|dir| dir.join("cgroup.procs")).collect();
    for file in &files {
        std::fs::write(file, format!("{}\n", child.id())).unwrap();
    }
    let pod = json!({
        "metadata": {"name": "a", "namespace": "shop", "uid": "u-a"},
        "spec": {"nodeName": "n1", "containers":
            [{"name": "not-started"}, {"name": "main"}]},
        "status": {"phase": "Running", "qosClass": "BestEffort", "containerStatuses": [
            {"name": "main", "containerID": "containerd://c1", "image": "", "imageID": "",
             "ready": true, "restartCount": 0}]}});
    let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
    let pod = PodInfo::from_pod(&serde_json::from_value(pod).unwrap(), &layout).unwrap();
    rig.states.pods.store(Some(Arc::new(vec![pod])));
    (child, files)
}

/// Acts as the kernel when a process ends, and returns its termination signal. Paused time stands still
/// meanwhile.
fn reap((mut child, files): (Child, Vec<PathBuf>)) -> JoinHandle<Option<i32>> {
    tokio::task::spawn_blocking(move || {
        let ended = child.wait().unwrap();
        for file in files {
            std::fs::write(file, "").unwrap();
        }
        ended.signal()
    })
}

#[tokio::test(start_paused = true)]
async fn containers_are_killed_if_server_fails_or_mode_is_kill() {
    for (mode, asked) in [(EvictionMode::ApiThenKill, 1), (EvictionMode::Kill, 0)] {
        let tree = Tree::hybrid("0-1").unwrap();
        let rig = Rig::new(|_| EvictionResponse::No(500), tree.root().clone());
        let ended = reap(running_pod(&rig, &tree));
        let (evictor, mut results) = rig.start(mode);
        assert!(evictor.try_evict(eviction("a")));
        assert_eq!(
            outcome(&mut results).await.1,
            EvictionOutcome::Killed,
            "{mode:?}"
        );
        assert_eq!(ended.await.unwrap(), Some(9), "SIGKILL");
        assert_eq!(rig.server.seen.lock().len(), asked);
        let records = rig.audit.entries();
        assert!(
            records[0].message.contains("containers killed"),
            "{records:?}"
        );
        assert_eq!(rig.evicted(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_killed_is_no_success() {
    let tree = Tree::hybrid("0-1").unwrap();
    let rig = Rig::new(|_| EvictionResponse::Hang, tree.root().clone());
    let (evictor, mut results) = rig.start(EvictionMode::Kill);
    assert!(evictor.try_evict(eviction("a")));
    assert_eq!(
        outcome(&mut results).await.1,
        EvictionOutcome::Gone,
        "it is not there"
    );
    let (mut child, files) = running_pod(&rig, &tree);
    // A container that has not started has no process to kill.
    let running = rig.states.pods.load_full().unwrap();
    let mut pending = running[0].clone();
    for container in &mut pending.containers {
        container.cgroup = None;
    }
    rig.states.pods.store(Some(Arc::new(vec![pending])));
    assert!(evictor.try_evict(eviction("a")));
    assert_eq!(outcome(&mut results).await.1, EvictionOutcome::Failed);
    rig.states.pods.store(Some(running));
    assert!(evictor.try_evict(eviction("a")));
    // The files are not emptied.
    assert_eq!(outcome(&mut results).await.1, EvictionOutcome::Failed);
    child.wait().unwrap();
    for file in files {
        std::fs::write(file, "").unwrap();
    }
    assert!(rig.audit.entries().is_empty());
}

#[test]
fn modes_have_names() {
    assert_eq!("api".parse(), Ok(EvictionMode::Api));
    assert_eq!("api-then-kill".parse(), Ok(EvictionMode::default()));
    let error = "nicely".parse::<EvictionMode>().unwrap_err().to_string();
    assert_eq!(
        error,
        "eviction-mode must be api-then-kill, api or kill, got \"nicely\""
    );
}

#[tokio::test(start_paused = true)]
async fn eviction_api_is_discovered_once() {
    let mut rig = Rig::new(|_| EvictionResponse::Yes, nowhere());
    let (evictor, mut results) = rig.start(EvictionMode::Api);
    for name in ["a", "b"] {
        assert!(evictor.try_evict(eviction(name)));
        assert_eq!(outcome(&mut results).await.1, EvictionOutcome::Evicted);
    }
    assert_eq!(rig.server.discovered.load(Ordering::SeqCst), 1);
    rig.server.offers = false;
    rig.server.seen.lock().clear();
    let (evictor, mut results) = rig.start(EvictionMode::Api);
    assert!(evictor.try_evict(eviction("a")));
    assert_eq!(outcome(&mut results).await.1, EvictionOutcome::Failed);
    assert!(rig.server.seen.lock().is_empty(), "there is nothing to ask");
}
