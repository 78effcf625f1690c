//! Cycles: when they run, and what they change.

use crate::deploy::{self, DeniedRequests};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_descheduler::config::Configuration;
use koord_descheduler::daemon::{self, LastCycle, Options};
use koord_descheduler::framework::{
    Action, Cycle, EvictionRequest, Evictor, Framework, Intent, Limits, Profile, SkipReason,
    Strategy, StrategyError,
};
use koord_descheduler::state::Snapshot;
use koord_kube::api::{ListParams, PostParams};
use koord_kube::lease::Election;
use koord_kube::{Api, Client, patch};
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

/// A strategy that drains node `hot` and keeps all other pods.
#[derive(Debug)]
struct Clearing;

impl Strategy for Clearing {
    fn name(&self) -> &'static str {
        "Clearing"
    }
    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let snapshot = cycle.snapshot();
        let node: std::sync::Arc<str> = "hot".into();
        cycle.note(Some(&node), format!("{} nodes", cycle.nodes().len()));
        cycle.add_action(Action::Cordon {
            node: node.clone(),
            strategy: "Clearing",
        });
        for pod in &snapshot.pods {
            if pod.node.as_ref() != Some(&node) {
                cycle.add_action(Action::DeletionCost {
                    pod: pod.clone(),
                    cost: 7,
                    strategy: "Clearing",
                });
                cycle.skip_pod(pod, SkipReason::new("Cold", "is where it is"));
            } else if pod.is_active() {
                let _ = cycle.evict_with(pod, "hot", None, Some(node.clone()));
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Evicting;

impl Evictor for Evicting {
    fn name(&self) -> &'static str {
        "Evicting"
    }
    fn evict(&mut self, _: &Snapshot, _: &EvictionRequest<'_>) -> Result<Intent, SkipReason> {
        Ok(Intent::Evict(None))
    }
}

/// A strategy that classifies node `hot` as hot and keeps its pods, after half an hour because of another
/// rule.
#[derive(Debug, Default)]
struct Stuck {
    cycles: usize,
}

impl Strategy for Stuck {
    fn name(&self) -> &'static str {
        "Stuck"
    }
    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        self.cycles += 1;
        let snapshot = cycle.snapshot();
        let node: std::sync::Arc<str> = "hot".into();
        let text = format!("hot: cpu {}%", 70 + self.cycles % 20);
        cycle.hot(&node, text, false);
        for pod in snapshot.active_on("hot") {
            let rule = if self.cycles < 180 {
                "DaemonSet"
            } else {
                "PVC"
            };
            cycle.skip_pod(pod, SkipReason::new(rule, "stays"));
        }
        Ok(())
    }
}

struct DaemonCluster {
    /// Client with all rights.
    client: Client,
    /// Client for the descheduler, with the rights of the chart's roles.
    limited: Client,
    denied: DeniedRequests,
    ctx: Context,
    last: LastCycle,
}

impl DaemonCluster {
    /// Starts a cluster of nodes `hot` and `cold`, with pods `p` and `q` on the first and `r` on the second.
    async fn start() -> Self {
        // No custom resource is installed, and nothing waits for them.
        Self::with(Vec::new()).await
    }

    /// Starts a cluster with these custom resources.
    async fn with(definitions: Vec<serde_json::Value>) -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let server = ApiServer::open(Config::memory(clock.clone()))
            .await
            .unwrap();
        server.install_crds(definitions).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        deploy::install(&client).await;
        let denied = DeniedRequests::default();
        let nodes: Api<Node> = Api::all(client.clone());
        for name in ["hot", "cold"] {
            let node = json!({"metadata": {"name": name}});
            let node = serde_json::from_value(node).unwrap();
            nodes.create(&PostParams::default(), &node).await.unwrap();
        }
        let cluster = Self {
            client,
            limited: koord_kube::client::in_process(deploy::service(&server, &denied)),
            denied,
            ctx: Context::with_clock(clock),
            last: LastCycle::default(),
        };
        for (name, node) in [("p", "hot"), ("q", "hot"), ("r", "cold")] {
            let pod = json!({
                "metadata": {"name": name, "labels": {"name": name}},
                "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 0},
            });
            let pod = serde_json::from_value(pod).unwrap();
            let created = cluster.pods().create(&PostParams::default(), &pod).await;
            created.unwrap();
        }
        cluster
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn run(&self, interval: u64, dry_run: bool) -> JoinHandle<Result<(), daemon::Error>> {
        let options = Options {
            controller_metrics: None,
            interval: Duration::from_secs(interval),
            election: None,
            events: None,
            last: self.last.clone(),
        };
        let (client, ctx) = (self.limited.clone(), self.ctx.clone());
        tokio::spawn(daemon::run(options, framework(dry_run), client, ctx))
    }

    /// Returns the start of the last cycle, in seconds since the start of the test.
    fn at(&self) -> Option<i64> {
        let seconds = self.last.get()?.at.as_second();
        Some(
            seconds
                - "2026-01-01T00:00:00Z"
                    .parse::<jiff::Timestamp>()
                    .unwrap()
                    .as_second(),
        )
    }

    /// Returns the resourceVersion of every object.
    async fn versions(&self) -> Vec<(Option<String>, Option<String>)> {
        let pods = self.pods().list(&ListParams::default()).await.unwrap();
        let nodes = Api::<Node>::all(self.client.clone());
        let nodes = nodes.list(&ListParams::default()).await.unwrap();
        let metas = pods.items.into_iter().map(|pod| pod.metadata);
        let metas = metas.chain(nodes.items.into_iter().map(|node| node.metadata));
        metas
            .map(|meta| (meta.name, meta.resource_version))
            .collect()
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = self.last.router().oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await;
        (status, String::from_utf8(bytes.unwrap().to_vec()).unwrap())
    }

    async fn is_unschedulable(&self) -> bool {
        let node = Api::<Node>::all(self.client.clone())
            .get("hot")
            .await
            .unwrap();
        node.spec.unwrap_or_default().unschedulable == Some(true)
    }
}

/// Returns a single profile with the strategy [`Clearing`].
fn framework(dry_run: bool) -> Framework {
    let profile = Profile {
        name: "test".into(),
        node_selector: None,
        deschedule: vec![Box::new(Clearing)],
        balance: Vec::new(),
        filters: Vec::new(),
        evictor: Box::new(Evicting),
    };
    Framework {
        profiles: vec![profile],
        dry_run,
        ..Framework::default()
    }
}

#[tokio::test(start_paused = true)]
pub(crate) async fn cycle_applies_and_reports_its_plan() {
    let cluster = DaemonCluster::start().await;
    assert_eq!(
        cluster.get("/debug/descheduler").await.0,
        StatusCode::NOT_FOUND
    );
    let running = cluster.run(0, false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let pods = cluster.pods().list(&ListParams::default()).await.unwrap();
    let [pod] = &pods.items[..] else {
        panic!("{:?}", pods.items);
    };
    let cost = pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(cost["controller.kubernetes.io/pod-deletion-cost"], "7");
    assert!(cluster.is_unschedulable().await);
    // An interval of zero is one cycle.
    assert!(cluster.at() < Some(30), "{:?}", cluster.at());
    assert!(!running.is_finished());
    let (status, text) = cluster.get("/debug/descheduler/hot").await;
    assert_eq!(status, StatusCode::OK);
    for part in [
        "test/Clearing: 2 nodes",
        "move default/p: hot",
        "is evicted",
        "has no NodeMetric",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("Cold"), "{text}");
    let (_, text) = cluster.get("/debug/descheduler").await;
    assert!(text.contains("default/r: is where it is"), "{text}");
    let (status, text) = cluster.get("/debug/descheduler/none").await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{text}");
    let metrics = koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
    let counted = r#"descheduler_pods_evicted{namespace="default",node="hot",result="success",strategy="Clearing"} 2"#;
    assert!(metrics.contains(counted), "{metrics}");
    cluster.ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
    cluster.denied.assert_none();
}

#[tokio::test(start_paused = true)]
async fn leader_and_reached_limits_have_metrics() {
    for (limits, limit) in [
        (
            Limits {
                per_node: Some(1),
                ..Limits::default()
            },
            "node",
        ),
        (
            Limits {
                per_namespace: Some(1),
                ..Limits::default()
            },
            "namespace",
        ),
    ] {
        let cluster = DaemonCluster::start().await;
        let framework = Framework {
            limits,
            ..framework(false)
        };
        let options = Options {
            controller_metrics: None,
            interval: Duration::ZERO,
            election: Some(Election::new("default", "koord-descheduler", "a")),
            events: None,
            last: cluster.last.clone(),
        };
        let (client, ctx) = (cluster.client.clone(), cluster.ctx.clone());
        let running = tokio::spawn(daemon::run(options, framework, client, ctx));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let metrics = || koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
        let evicted = |result: &str, count: u32| {
            format!(
                "descheduler_pods_evicted{{namespace=\"default\",node=\"hot\",result=\"{result}\",strategy=\"Clearing\"}} {count}\n"
            )
        };
        let leads = |value: u32| {
            format!("leader_election_master_status{{name=\"koord-descheduler\"}} {value}\n")
        };
        for series in [
            evicted("success", 1),
            evicted(&format!("maximum number of pods per {limit} reached"), 1),
            leads(1),
        ] {
            assert!(metrics().contains(&series), "{series}: {}", metrics());
        }
        cluster.ctx.shutdown.cancel();
        running.await.unwrap().unwrap();
        assert!(metrics().contains(&leads(0)), "{}", metrics());
    }
}

#[tokio::test(start_paused = true)]
pub(crate) async fn a_dry_run_shows_a_plan_and_changes_nothing() {
    let cluster = DaemonCluster::start().await;
    let before = cluster.versions().await;
    let running = cluster.run(10, true);
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert_eq!(cluster.versions().await, before);
    // Intervals are measured from start to start: the fourth cycle was the last.
    assert!(cluster.at() >= Some(30), "{:?}", cluster.at());
    let report = cluster.last.get().unwrap();
    let actions = &report.nodes["hot"].actions;
    let shown: Vec<_> = actions
        .iter()
        .map(|action| action.outcome.as_str())
        .collect();
    assert_eq!(shown, ["nothing is done in a dry run"; 2]);
    let metrics = koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
    assert!(!metrics.contains("descheduler_pods_evicted{"), "{metrics}");
    cluster.ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
    cluster.denied.assert_none();
}

#[tokio::test(start_paused = true)]
pub(crate) async fn node_that_cannot_be_drained_is_uncordoned() {
    let cluster = DaemonCluster::start().await;
    let budget = json!({
        "metadata": {"name": "b"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"name": "p"}}},
    });
    let budgets = Api::<k8s_openapi::api::policy::v1::PodDisruptionBudget>::namespaced(
        cluster.client.clone(),
        "default",
    );
    let budget = serde_json::from_value(budget).unwrap();
    budgets
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    // Only running pods are protected.
    for name in ["p", "q"] {
        let status = json!({"status": {"phase": "Running"}});
        patch::merge_status(&cluster.pods(), name, &status)
            .await
            .unwrap();
    }
    let running = cluster.run(0, false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let pods = cluster.pods().list(&ListParams::default()).await.unwrap();
    assert_eq!(pods.items.len(), 3);
    assert!(!cluster.is_unschedulable().await);
    let report = cluster.last.get().unwrap();
    let [cordon, first, second] = &report.nodes["hot"].actions[..] else {
        panic!("{report:?}");
    };
    assert!(
        cordon.success && !first.success && !second.success,
        "{report:?}"
    );
    assert!(first.outcome.starts_with("eviction: "), "{first:?}");
    assert!(
        second.outcome.contains("not cleared after all"),
        "{second:?}"
    );
    cluster.ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
    cluster.denied.assert_none();
}

/// Returns the responses to `GET path`, once alone and once with the routes of a whole process.
async fn responses(
    cluster: &DaemonCluster,
    config: &Configuration,
    request: Request<Body>,
) -> (StatusCode, String) {
    let response = cluster.last.routes(config).oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await;
    (status, String::from_utf8(bytes.unwrap().to_vec()).unwrap())
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

#[tokio::test(start_paused = true)]
pub(crate) async fn configuration_is_served_and_profiling_can_be_off() {
    let cluster = DaemonCluster::start().await;
    let mut config = Configuration::default();
    let (status, text) = responses(&cluster, &config, get("/configz")).await;
    assert_eq!(status, StatusCode::OK);
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    let shown = &shown["componentconfig"];
    assert_eq!(shown["LeaderElection"]["ResourceName"], "koord-descheduler");
    assert_eq!(shown["ClientConnection"]["QPS"], 50.0);
    assert_eq!(shown["Profiles"][0]["Name"], "koord-descheduler");
    let put = || {
        Request::put("/debug/flags/v")
            .body(Body::from("4"))
            .unwrap()
    };
    let (_, text) = responses(&cluster, &config, put()).await;
    assert!(text.contains("klog.logging.verbosity"), "{text}");
    let (status, _) = responses(&cluster, &config, get("/debug/pprof/heap")).await;
    assert_eq!(status, StatusCode::NOT_IMPLEMENTED);
    let (_, text) = responses(&cluster, &config, get("/debug/descheduler")).await;
    assert!(
        text.starts_with("this process has completed no cycle"),
        "{text}"
    );
    config.enable_profiling = false;
    for request in [get("/debug/descheduler"), get("/debug/pprof/heap"), put()] {
        let (status, text) = responses(&cluster, &config, request).await;
        assert_eq!((status, &*text), (StatusCode::NOT_FOUND, ""));
    }
    let (status, _) = responses(&cluster, &config, get("/configz")).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
pub(crate) async fn deleting_metrics_resets_counters() {
    let cluster = DaemonCluster::start().await;
    let running = cluster.run(0, false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let counted = || koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
    assert!(
        counted().contains("descheduler_pods_evicted{"),
        "{}",
        counted()
    );
    let delete = Request::delete("/metrics").body(Body::empty()).unwrap();
    let (status, _) = responses(&cluster, &Configuration::default(), delete).await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        !counted().contains("descheduler_pods_evicted{"),
        "{}",
        counted()
    );
    cluster.ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
pub(crate) async fn replica_waits_for_the_lease_and_releases_it() {
    let cluster = DaemonCluster::with(koord_api::crd_values()).await;
    let leases = Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(
        cluster.client.clone(),
        "koordinator-system",
    );
    let start = |interval| {
        let config = Configuration::default();
        let mut options = Options::new(&config);
        options.interval = Duration::from_secs(interval);
        let last = options.last.clone();
        let ctx = Context {
            shutdown: cluster.ctx.shutdown.child_token(),
            ..Context::with_clock(cluster.ctx.clock.clone())
        };
        let running = daemon::run(
            options,
            framework(false),
            cluster.limited.clone(),
            ctx.clone(),
        );
        (last, ctx.shutdown, tokio::spawn(running))
    };
    let holder = async || {
        let lease = leases.get("koord-descheduler").await.unwrap();
        lease.spec.unwrap().holder_identity.unwrap_or_default()
    };
    let first = start(10);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(first.0.get().is_some());
    let leads = holder().await;
    let second = start(10);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(second.0.get().is_none() && second.0.readiness().is_ok());
    assert_eq!(holder().await, leads);
    // On shutdown it ends without an error and releases the lease, so that no replica has to wait until it
    // expires.
    first.1.cancel();
    first.2.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(second.0.get().is_some());
    assert_ne!(holder().await, leads);
    // A replica that loses the lease ends with an error.
    let lease_patch = json!({"spec": {"holderIdentity": "another"}});
    patch::merge(&leases, "koord-descheduler", &lease_patch)
        .await
        .unwrap();
    let lost = second.2.await.unwrap().unwrap_err().to_string();
    assert!(
        lost.contains("koordinator-system/koord-descheduler was lost"),
        "{lost}"
    );
    cluster.denied.assert_none();
}

#[tokio::test(start_paused = true)]
pub(crate) async fn hot_node_event_repeats_hourly() {
    let cluster = DaemonCluster::start().await;
    let mut framework = framework(false);
    framework.profiles[0].deschedule = vec![Box::new(Stuck::default())];
    let options = Options {
        controller_metrics: None,
        interval: Duration::from_secs(10),
        election: None,
        events: None,
        last: cluster.last.clone(),
    };
    let (client, ctx) = (cluster.limited.clone(), cluster.ctx.clone());
    let running = tokio::spawn(daemon::run(options, framework, client, ctx));
    // An event expires after an hour.
    tokio::time::sleep(Duration::from_secs(3000)).await;
    let events = Api::<k8s_openapi::api::core::v1::Event>::all(cluster.client.clone());
    let mut events = events.list(&ListParams::default()).await.unwrap().items;
    events.retain(|event| event.reason.as_deref() == Some("NotDescheduled"));
    events.sort_by_key(|event| event.first_timestamp.clone());
    let texts: Vec<_> = events
        .iter()
        .map(|event| (event.count, event.message.clone().unwrap_or_default()))
        .collect();
    let [(Some(1), first), (Some(1), second)] = &texts[..] else {
        panic!("300 cycles and two reasons: {texts:?}");
    };
    assert!(first.starts_with("nothing was moved: test/Stuck: hot: cpu 71%"));
    assert!(first.contains("Stuck: DaemonSet keeps 2 pods"), "{first}");
    assert!(second.contains("Stuck: PVC keeps 2 pods"), "{second}");
    let about = &events[0].involved_object;
    assert_eq!(
        (about.kind.as_deref(), about.name.as_deref()),
        (Some("Node"), Some("hot"))
    );
    let node = Api::<Node>::all(cluster.client.clone());
    assert_eq!(about.uid, node.get("hot").await.unwrap().metadata.uid);
    cluster.ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
    cluster.denied.assert_none();
}
