use crate::cluster::{Cluster, typed};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use koord_api::slo::{NodeMetric, NodeSLO, NodeSLOSpec};
use koord_host::testing::eventually_within;
use koord_kube::api::{ListParams, PostParams};
use koord_kube::{Api, ResourceExt};
use koord_manager::Options;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Returns the allocatable amount of `name` on a node.
fn allocatable(node: &Node, name: &str) -> Option<String> {
    node.status
        .as_ref()?
        .allocatable
        .as_ref()?
        .get(name)
        .map(|amount| amount.0.clone())
}

const BATCH_CPU: &str = "kubernetes.io/batch-cpu";
const BATCH_MEMORY: &str = "kubernetes.io/batch-memory";

#[tokio::test(start_paused = true)]
pub(crate) async fn report_sets_batch_resources_and_silence_removes_them() {
    let cluster = Cluster::start().await;
    cluster
        .configure(json!({"colocation-config": "{\"enable\": true}"}))
        .await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let pod = json!({
        "metadata": {"name": "web", "labels": {"koordinator.sh/qosClass": "LS"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i",
            "resources": {"requests": {"cpu": "2", "memory": "20G"}}}]},
    });
    pods.create(&PostParams::default(), &typed(pod))
        .await
        .unwrap();
    cluster.manager(Options::default());

    let mut metrics = cluster.watch::<NodeMetric>();
    let policy = metrics
        .until("a NodeMetric for n1", |metric| {
            metric
                .spec
                .metric_collect_policy
                .clone()
                .filter(|_| metric.name_any() == "n1")
        })
        .await;
    assert_eq!(policy.report_interval_seconds, Some(60));
    let mut nodes = cluster.watch::<Node>();
    cluster.report("n1", ("3", "30G"), ("1", "5G")).await;
    // 10 − 4 (margin) − 1 (system) − 2 (pod without measurement: its request);
    // 100 − 35 − 5 − 20.
    let (cpu, memory) = nodes
        .until("batch resources", |node| {
            Some((
                allocatable(node, BATCH_CPU)?,
                allocatable(node, BATCH_MEMORY)?,
            ))
        })
        .await;
    assert_eq!((cpu.as_str(), memory.as_str()), ("3k", "40G"));
    let node = nodes.until("n1", |node| Some(node.clone())).await;
    let status = node.status.unwrap();
    assert_eq!(status.capacity.unwrap()[BATCH_CPU].0, "3k");
    assert_eq!(status.allocatable.unwrap()["pods"].0, "110");

    let start = Instant::now();
    nodes
        .until("n1 without batch resources", |node| {
            allocatable(node, BATCH_CPU).is_none().then_some(())
        })
        .await;
    let silence = start.elapsed().as_secs();
    assert!(
        (14 * 60..=16 * 60).contains(&silence),
        "taken away after {silence} s"
    );

    cluster.report("n1", ("3", "30G"), ("1", "5G")).await;
    nodes
        .until("batch resources again", |node| allocatable(node, BATCH_CPU))
        .await;
}

#[tokio::test(start_paused = true)]
pub(crate) async fn settings_apply_by_node_labels_and_bad_keys_are_reported() {
    let cluster = Cluster::start().await;
    cluster.add_node("plain", json!({}), "10", "100G").await;
    cluster
        .add_node("special", json!({"pool": "a"}), "10", "100G")
        .await;
    cluster.manager(Options::default());
    let mut slos = cluster.watch::<NodeSLO>();
    let mut threshold = async |node: &str, enable: bool, percent: i64| {
        slos.until(&format!("NodeSLO {node} with {percent} %"), |slo| {
            let strategy = slo.spec.resource_used_threshold_with_be.as_ref()?;
            (slo.name_any() == node
                && strategy.enable == Some(enable)
                && strategy.cpu_suppress_threshold_percent == Some(percent))
            .then_some(())
        })
        .await;
    };
    // Without a ConfigMap the defaults apply.
    threshold("plain", false, 65).await;
    threshold("special", false, 65).await;

    let good = json!({
        "clusterStrategy": {"enable": true, "cpuSuppressThresholdPercent": 60},
        "nodeStrategies": [{"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}},
                            "cpuSuppressThresholdPercent": 50}],
    });
    cluster
        .configure(json!({"resource-threshold-config": good.to_string()}))
        .await;
    threshold("plain", true, 60).await;
    threshold("special", true, 50).await;

    // One key is invalid, the second time with a value that the API server would refuse in a NodeSLO: its old
    // settings stay and it is reported, while the other key takes effect.
    let mut metrics = cluster.watch::<NodeMetric>();
    for (interval, bad, field, value) in [
        (7, json!({"enable": "perhaps"}), "enable", "perhaps"),
        (
            8,
            json!({"cpuSuppressThresholdPercent": 650}),
            "cpuSuppressThresholdPercent",
            "650",
        ),
    ] {
        // The names of events contain the time.
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        let bad = json!({"clusterStrategy": bad}).to_string();
        let colocation = json!({"enable": true, "metricReportIntervalSeconds": interval});
        let data = json!({"resource-threshold-config": bad,
            "colocation-config": colocation.to_string()});
        cluster.configure(data).await;
        metrics
            .until("the new report interval", |metric| {
                let policy = metric.spec.metric_collect_policy.as_ref()?;
                (policy.report_interval_seconds == Some(interval)).then_some(())
            })
            .await;
        let message = cluster
            .watch::<Event>()
            .until("an event about the bad key", |event| {
                let message = event.message.clone().unwrap_or_default();
                (event.reason.as_deref() == Some("SLOCfgUnmarshalFailed")
                    && event.involved_object.name.as_deref() == Some("slo-controller-config")
                    && message.contains(value))
                .then_some(message)
            })
            .await;
        for part in ["resource-threshold-config", field, "stay in force"] {
            assert!(message.contains(part), "{message}");
        }
        threshold("special", true, 50).await;
    }
}

/// Someone who makes one mistake after the other gets an event for each. Problems that were reported before
/// are not reported again, and do not use up the limit of events for one object.
#[tokio::test(start_paused = true)]
async fn each_settings_problem_gets_one_event() {
    let cluster = Cluster::start().await;
    let mut data = json!({});
    cluster.configure(data.clone()).await;
    cluster.manager(Options::default());
    let mut events = cluster.watch::<Event>();
    for step in 0..12 {
        // The names of events contain the time.
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        let key = format!("unknown-{step}.");
        data[&key] = json!("x");
        cluster.configure(data.clone()).await;
        let about = |event: &Event| {
            let message = event.message.as_ref()?;
            message.contains(&key).then_some(event.count)
        };
        let count = events.until("an event about the newest key", about).await;
        // More than ten events of a kind are combined into one.
        assert!(count == Some(1) || step > 9, "{step}: {count:?}");
    }
    let all: Api<Event> = Api::all(cluster.client.clone());
    for event in all.list(&Default::default()).await.unwrap() {
        let message = event.message.unwrap_or_default();
        let folded = message.starts_with("(combined");
        assert!(folded || event.count == Some(1), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn disabled_colocation_removes_resources_at_once() {
    let cluster = Cluster::start().await;
    cluster
        .configure(json!({"colocation-config": "{\"enable\": true}"}))
        .await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    cluster.manager(Options::default());
    cluster
        .watch::<NodeMetric>()
        .until("a NodeMetric", |_| Some(()))
        .await;
    cluster.report("n1", ("1", "5G"), ("1", "5G")).await;
    let mut nodes = cluster.watch::<Node>();
    nodes
        .until("batch resources", |node| allocatable(node, BATCH_CPU))
        .await;
    let start = Instant::now();
    cluster
        .configure(json!({"colocation-config": "{\"enable\": false}"}))
        .await;
    let has_no_batch = |node: &Node| allocatable(node, BATCH_CPU).is_none().then_some(());
    nodes
        .until("n1 without batch resources", has_no_batch)
        .await;
    assert!(start.elapsed().as_secs() < 60);
}

#[tokio::test(start_paused = true)]
pub(crate) async fn objects_are_deleted_with_their_node() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    cluster.manager(Options::default());
    let mut metrics = cluster.watch::<NodeMetric>();
    let mut slos = cluster.watch::<NodeSLO>();
    metrics.until("a NodeMetric", |_| Some(())).await;
    slos.until("a NodeSLO", |_| Some(())).await;
    // Objects that are deleted by accident are created again.
    let objects: Api<NodeSLO> = Api::all(cluster.client.clone());
    objects.delete("n1", &Default::default()).await.unwrap();
    slos.until_deleted("the NodeSLO", |slo| slo.name_any() == "n1")
        .await;
    slos.until("a new NodeSLO", |_| Some(())).await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes.delete("n1", &Default::default()).await.unwrap();
    metrics
        .until_deleted("the NodeMetric", |metric| metric.name_any() == "n1")
        .await;
    slos.until_deleted("the NodeSLO", |slo| slo.name_any() == "n1")
        .await;
}

/// Case 04 of the field reports: a node whose clock is an hour ahead stops reporting.
#[tokio::test(start_paused = true)]
async fn report_dated_ahead_keeps_no_batch_resources() {
    let cluster = Cluster::start().await;
    let settings = json!({"colocation-config": "{\"enable\": true}"});
    cluster.configure(settings).await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    cluster.manager(Options::default());
    let mut metrics = cluster.watch::<NodeMetric>();
    metrics.until("a NodeMetric", |_| Some(())).await;
    let mut nodes = cluster.watch::<Node>();
    let hour = Duration::from_secs(3600);
    let used = (("3", "30G"), ("1", "5G"));
    cluster.report("n1", used.0, used.1).await;
    let has_batch = |node: &Node| allocatable(node, BATCH_CPU).map(drop);
    nodes.until("batch resources", has_batch).await;

    let ahead = |minutes: u64| hour + Duration::from_secs(60 * minutes);
    cluster.report_ahead("n1", ahead(0), used.0, used.1).await;
    let has_no_batch = |node: &Node| allocatable(node, BATCH_CPU).is_none().then_some(());
    nodes.until("no batch resources", has_no_batch).await;
    cluster.report_ahead("n1", ahead(1), used.0, used.1).await;
    let skew = || {
        let text = koord_app::metrics::encode(&cluster.ctx.metrics).unwrap();
        text.contains("koord_manager_node_clock_skew_seconds{node=\"n1\"} 3600")
    };
    assert!(skew());
    tokio::time::sleep(Duration::from_secs(30)).await;
    let events: Api<Event> = Api::all(cluster.client.clone());
    let events = events.list(&Default::default()).await.unwrap().items;
    let mut events = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("NodeClockSkew"));
    let event = events.next().unwrap();
    assert_eq!((event.count, events.count()), (Some(1), 0));
    let message = event.message.as_deref().unwrap();
    for part in ["\"n1\"", "3600 s ahead", "expected less than 300 s"] {
        assert!(message.contains(part), "{message}");
    }

    // The local clock passes the report's date, and no report has arrived since.
    tokio::time::sleep(hour + Duration::from_secs(120)).await;
    let all: Api<Node> = Api::all(cluster.client.clone());
    assert_eq!(allocatable(&all.get("n1").await.unwrap(), BATCH_CPU), None);

    cluster.report("n1", used.0, used.1).await;
    nodes.until("batch resources again", has_batch).await;
    assert!(!skew());
}

#[tokio::test(start_paused = true)]
async fn emptied_settings_keep_batch_resources_with_an_event() {
    let cluster = Cluster::start().await;
    let settings = json!({"colocation-config": "{\"enable\": true}"});
    cluster.configure(settings).await;
    cluster.add_node("n1", json!({}), "10", "100G").await;
    cluster.manager(Options::default());
    let mut metrics = cluster.watch::<NodeMetric>();
    metrics.until("a NodeMetric", |_| Some(())).await;
    let mut nodes = cluster.watch::<Node>();
    cluster.report("n1", ("3", "30G"), ("1", "5G")).await;
    let has_batch = |node: &Node| allocatable(node, BATCH_CPU).map(drop);
    nodes.until("batch resources", has_batch).await;
    cluster.configure(json!({"colocation-config": null})).await;
    let mut events = cluster.watch::<Event>();
    let about = events.until("an event", |event| {
        let is_it = event.reason.as_deref() == Some("SLOConfigEmptied");
        is_it.then(|| event.involved_object.name.clone())
    });
    assert_eq!(about.await.as_deref(), Some("slo-controller-config"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    cluster.report("n1", ("3", "30G"), ("1", "5G")).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let all: Api<Node> = Api::all(cluster.client.clone());
    assert!(allocatable(&all.get("n1").await.unwrap(), BATCH_CPU).is_some());
}

/// A strategy is rolled out to a quarter of the nodes, to all, and taken back, by the ConfigMap alone.
#[tokio::test(start_paused = true)]
pub(crate) async fn strategy_rolls_out_to_a_percentage_and_back() {
    let cluster = Cluster::start().await;
    let names: Vec<String> = (0..12).map(|number| format!("node-{number}")).collect();
    for name in &names {
        cluster
            .add_node(name, json!({"pool": "a"}), "10", "100G")
            .await;
    }
    cluster.manager(Options::default());
    let slos: Api<NodeSLO> = Api::all(cluster.client.clone());
    // The NodeSLOs once as many of them as expected are enabled, by node.
    let settled = async |percent: u8| {
        let bucket = koord_api::configmap::rollout::bucket;
        let included = |name: &String| bucket(name) < percent;
        let what = format!("NodeSLOs at {percent} %");
        eventually_within(Duration::from_secs(60), &what, async || {
            let list = slos.list(&ListParams::default()).await.unwrap().items;
            let specs: BTreeMap<String, NodeSLOSpec> = list
                .into_iter()
                .map(|slo| (slo.name_any(), slo.spec))
                .collect();
            let enabled = |name: &String| {
                let strategy = specs.get(name)?.resource_used_threshold_with_be.as_ref()?;
                strategy.enable
            };
            let done = names
                .iter()
                .all(|name| enabled(name) == Some(included(name)));
            done.then_some(specs)
        })
        .await
    };
    let roll_out = async |percent: u8| {
        let section = json!({"clusterStrategy": {"enable": false}, "nodeStrategies": [{
            "name": "canary", "nodeSelector": {"matchLabels": {"pool": "a"}},
            "rolloutPercent": percent, "enable": true, "cpuSuppressThresholdPercent": 50}]});
        cluster
            .configure(json!({"resource-threshold-config": section.to_string()}))
            .await;
        settled(percent).await
    };
    let at_first = roll_out(0).await;
    let quarter = roll_out(25).await;
    let differing = |specs: &BTreeMap<String, NodeSLOSpec>| {
        let differing = specs
            .iter()
            .filter(|(name, spec)| at_first[*name] != **spec);
        differing.count()
    };
    assert!((1..6).contains(&differing(&quarter)), "{quarter:?}");
    let all = roll_out(100).await;
    assert_eq!(differing(&all), names.len());
    assert_eq!(roll_out(25).await, quarter);
    assert_eq!(roll_out(0).await, at_first);
}
