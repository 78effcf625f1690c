//! Cycles: when they run, and what they change.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_descheduler::daemon::{self, LastCycle, Options};
use koord_descheduler::framework::{
    Action, Ask, Cycle, Evictor, Framework, Intent, Profile, Strategy, StrategyError, Why,
};
use koord_descheduler::state::Snapshot;
use koord_kube::api::{ListParams, PostParams};
use koord_kube::{Api, Client, patch};
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

/// Evicts what is on node `hot`, clearing it, and keeps everything else.
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
        cycle.act(Action::Cordon {
            node: node.clone(),
            strategy: "Clearing",
        });
        for pod in &snapshot.pods {
            if pod.node.as_ref() != Some(&node) {
                cycle.act(Action::DeletionCost {
                    pod: pod.clone(),
                    cost: 7,
                    strategy: "Clearing",
                });
                cycle.keep(pod, Why::new("Cold", "is where it is"));
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
    fn evict(&mut self, _: &Snapshot, _: &Ask<'_>) -> Result<Intent, Why> {
        Ok(Intent::Evict(None))
    }
}

struct Cluster {
    client: Client,
    ctx: Context,
    last: LastCycle,
}

impl Cluster {
    /// Nodes `hot` and `cold`, with pods `p` and `q` on the first and `r` on the second.
    async fn start() -> Self {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let server = ApiServer::open(Config::memory(clock.clone()))
            .await
            .unwrap();
        // No custom resource is installed: nothing waits for them.
        let client = koord_kube::client::in_process(server.service());
        let nodes: Api<Node> = Api::all(client.clone());
        for name in ["hot", "cold"] {
            let node = json!({"metadata": {"name": name}});
            let node = serde_json::from_value(node).unwrap();
            nodes.create(&PostParams::default(), &node).await.unwrap();
        }
        let cluster = Self {
            client,
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
            interval: Duration::from_secs(interval),
            election: None,
            last: self.last.clone(),
        };
        let profile = Profile {
            name: "test".into(),
            node_selector: None,
            deschedule: vec![Box::new(Clearing)],
            balance: Vec::new(),
            filters: Vec::new(),
            evictor: Box::new(Evicting),
        };
        let framework = Framework {
            profiles: vec![profile],
            dry_run,
            ..Framework::default()
        };
        let (client, ctx) = (self.client.clone(), self.ctx.clone());
        tokio::spawn(daemon::run(options, framework, client, ctx))
    }

    /// The start of the last cycle, in seconds since the beginning.
    fn at(&self) -> Option<i64> {
        let at = self.last.get()?.at.as_second();
        Some(
            at - "2026-01-01T00:00:00Z"
                .parse::<jiff::Timestamp>()
                .unwrap()
                .as_second(),
        )
    }

    /// Every object's resourceVersion.
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

#[tokio::test(start_paused = true)]
async fn a_cycle_carries_its_plan_out_and_shows_it() {
    let cluster = Cluster::start().await;
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
    for said in [
        "test/Clearing: 2 nodes",
        "move default/p: hot",
        "is evicted",
        "has no NodeMetric",
    ] {
        assert!(text.contains(said), "{said}: {text}");
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
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_shows_a_plan_and_changes_nothing() {
    let cluster = Cluster::start().await;
    let before = cluster.versions().await;
    let running = cluster.run(10, true);
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert_eq!(cluster.versions().await, before);
    // From start to start: the fourth cycle was the last.
    assert!(cluster.at() >= Some(30), "{:?}", cluster.at());
    let report = cluster.last.get().unwrap();
    let actions = &report.nodes["hot"].actions;
    let shown: Vec<_> = actions.iter().map(|done| done.outcome.as_str()).collect();
    assert_eq!(shown, ["nothing is done in a dry run"; 2]);
    let metrics = koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
    assert!(!metrics.contains("descheduler_pods_evicted{"), "{metrics}");
    cluster.ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_cleared_is_schedulable_again() {
    let cluster = Cluster::start().await;
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
    // Only a pod that runs is protected.
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
}
