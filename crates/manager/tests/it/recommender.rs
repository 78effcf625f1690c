//! Recommendations, from measurements of nodes to the status.

use crate::cluster::{Cluster, Watch, typed};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use koord_api::Quantity;
use koord_api::analysis::{
    ContainerDistribution, DISTRIBUTION, PERCENTILES, Recommendation, RecommendationCheckpoint,
};
use koord_api::slo::NodeMetric;
use koord_app::Context;
use koord_kube::api::{ListParams, PostParams};
use koord_kube::{Api, Client, ResourceExt, patch};
use koord_manager::Options;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const NAMESPACE: &str = "default";
const MINUTE: Duration = Duration::from_secs(60);

/// A cluster with one node, whose reports the test writes.
pub(crate) struct Shop {
    pub(crate) cluster: Cluster,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let cluster = Cluster::start().await;
        cluster.add_node("n1", json!({}), "64", "256Gi").await;
        let metrics: Api<NodeMetric> = Api::all(cluster.client.clone());
        let metric = typed(json!({"metadata": {"name": "n1"}, "spec": {}}));
        metrics
            .create(&PostParams::default(), &metric)
            .await
            .unwrap();
        Self { cluster }
    }

    /// Starts a manager that runs until its context is shut down.
    pub(crate) fn manager(
        &self,
        client: &Client,
        options: Options,
    ) -> (Context, tokio::task::JoinHandle<()>) {
        let ctx = Context::with_clock(self.cluster.ctx.clock.clone());
        let run = koord_manager::run(options, client.clone(), ctx.clone());
        (ctx, tokio::spawn(async move { run.await.unwrap() }))
    }

    /// Creates a Deployment of one pod on the node with these requests per container: name, CPU, memory.
    pub(crate) async fn deploy(&self, name: &str, containers: &[(&str, &str, &str)]) {
        let api: Api<Deployment> = Api::namespaced(self.cluster.client.clone(), NAMESPACE);
        let deployment = json!({"metadata": {"name": name}, "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod_spec(containers)},
        }});
        let params = PostParams::default();
        api.create(&params, &typed(deployment)).await.unwrap();
        // The API server's controllers create the ReplicaSet and the pod.
        let mut pods = self.cluster.watch::<Pod>();
        pods.until("its pod", |pod| {
            (pod.labels().get("app")? == name).then_some(())
        })
        .await;
    }

    /// Creates a pod without an owner on the node.
    pub(crate) async fn run(&self, name: &str, containers: &[(&str, &str, &str)]) {
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}},
            "spec": pod_spec(containers)});
        self.pods()
            .create(&PostParams::default(), &typed(pod))
            .await
            .unwrap();
    }

    /// Returns the name of the pod of an application.
    async fn pod(&self, app: &str) -> Option<String> {
        let params = ListParams::default().labels(&format!("app={app}"));
        let pods = self.pods().list(&params).await.unwrap().items;
        assert!(pods.len() <= 1, "{app} has {} pods", pods.len());
        pods.first().map(ResourceExt::name_any)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), NAMESPACE)
    }

    pub(crate) fn recommendations(&self) -> Api<Recommendation> {
        Api::namespaced(self.cluster.client.clone(), NAMESPACE)
    }

    pub(crate) async fn recommend(&self, name: &str, annotations: Value, target: Value) {
        let object = json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"target": target}});
        let api = self.recommendations();
        api.create(&PostParams::default(), &typed(object))
            .await
            .unwrap();
    }

    /// Reports the usage of these applications every minute, for `minutes` minutes.
    pub(crate) async fn measure(&self, minutes: u32, apps: &[(&str, &str, &str)]) {
        let api: Api<NodeMetric> = Api::all(self.cluster.client.clone());
        let mut pods = Vec::new();
        for (app, cpu, memory) in apps {
            pods.push(json!({"namespace": NAMESPACE, "name": self.pod(app).await,
                "podUsage": {"resources": {"cpu": cpu, "memory": memory}}}));
        }
        for _ in 0..minutes {
            let now = self.cluster.ctx.clock.now();
            let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let status = json!({"status": {"updateTime": time, "podsMetric": pods}});
            patch::merge_status(&api, "n1", &status).await.unwrap();
            tokio::time::sleep(MINUTE).await;
        }
    }
}

/// Returns the spec of a pod on the node.
fn pod_spec(containers: &[(&str, &str, &str)]) -> Value {
    let containers: Vec<Value> = containers
        .iter()
        .map(|(name, cpu, memory)| {
            let requests = json!({"requests": {"cpu": cpu, "memory": memory}});
            json!({"name": name, "image": "i", "resources": requests})
        })
        .collect();
    json!({"nodeName": "n1", "containers": containers})
}

pub(crate) fn workload(kind: &str, name: &str) -> Value {
    json!({"type": "workload", "workload": {"apiVersion": "apps/v1", "kind": kind, "name": name}})
}

/// Returns the cores and MiB recommended for a container.
pub(crate) fn amounts(object: &Recommendation, container: &str) -> Option<(f64, f64)> {
    let status = object.status.as_ref()?.pod_status.as_ref()?;
    let container_status = status
        .container_statuses
        .iter()
        .find(|candidate| candidate.container_name == container)?;
    let amount = |name: &str| container_status.resources.get(name).map(Quantity::to_f64);
    Some((amount("cpu")?, amount("memory")? / 1_048_576.0))
}

/// Returns status, reason and message of a condition.
fn condition(object: &Recommendation, type_: &str) -> Option<(String, String, String)> {
    let conditions = &object.status.as_ref()?.conditions;
    let condition = conditions
        .iter()
        .find(|candidate| candidate.type_ == type_)?;
    Some((
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    ))
}

async fn until<T>(
    watch: &mut Watch<Recommendation>,
    name: &str,
    what: &str,
    accept: impl Fn(&Recommendation) -> Option<T>,
) -> T {
    let accept_named =
        |object: &Recommendation| (object.name_any() == name).then(|| accept(object))?;
    watch.until(what, accept_named).await
}

#[tokio::test(start_paused = true)]
async fn workload_usage_becomes_recommendation() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    shop.deploy("other", &[("main", "4", "8Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    shop.manager(&shop.cluster.limited, Options::default());
    let mut watch = shop.cluster.watch::<Recommendation>();
    // The missing samples are reported at once.
    let low_confidence = until(&mut watch, "web", "that there are no samples", |object| {
        condition(object, "LowConfidence")
    });
    let (status, reason, message) = low_confidence.await;
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("True", "NoSamples"),
        "{message}"
    );

    shop.measure(30, &[("web", "500m", "1Gi"), ("other", "3", "6Gi")])
        .await;
    let object = shop.recommendations().get("web").await.unwrap();
    // Percentiles of a constant usage, + 5 %, in buckets 5 % wide.
    let (cpu, memory) = amounts(&object, "main").unwrap();
    assert!((0.525..0.557).contains(&cpu), "{cpu}");
    assert!((1075.0..1130.0).contains(&memory), "{memory}");
    let (status, reason, _) = condition(&object, "LowConfidence").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("True", "ShortHistory"));
    let text = &object.annotations()[DISTRIBUTION];
    let details: BTreeMap<String, ContainerDistribution> = serde_json::from_str(text).unwrap();
    let main = &details["main"];
    assert!(main.usage["p50"]["cpu"] < main.upper_bound["cpu"]);
    assert!(main.samples >= 1 && main.first_sample.is_some());

    let events: Api<Event> = Api::namespaced(shop.cluster.client.clone(), NAMESPACE);
    let events = events.list(&Default::default()).await.unwrap().items;
    let news: Vec<_> = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("Recommended"))
        .collect();
    // The usage did not change, so there is one event.
    assert_eq!(news.len(), 1, "{news:#?}");
    assert!(news[0].message.as_ref().unwrap().contains("main: cpu"));
}

#[tokio::test(start_paused = true)]
async fn unchanged_amounts_are_not_written_again() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(20, &[("web", "500m", "1Gi")]).await;
    let before = shop.recommendations().get("web").await.unwrap();
    shop.measure(30, &[("web", "500m", "1Gi")]).await;
    let after = shop.recommendations().get("web").await.unwrap();
    assert_eq!(after.resource_version(), before.resource_version());
    // A jump is written in the next round.
    shop.measure(10, &[("web", "3", "4Gi")]).await;
    let after = shop.recommendations().get("web").await.unwrap();
    let (cpu, memory) = amounts(&after, "main").unwrap();
    assert!(cpu > 3.0 && memory > 4.0 * 1024.0, "{cpu} {memory}");
}

#[tokio::test(start_paused = true)]
async fn pods_are_found_by_labels_and_percentiles_by_the_annotation() {
    let shop = Shop::open().await;
    for name in ["a", "b"] {
        shop.run(name, &[("main", "1", "1Gi")]).await;
    }
    let labels = json!({"type": "podSelector", "podSelector": {"matchExpressions": [
        {"key": "app", "operator": "In", "values": ["a", "b"]}]}});
    shop.recommend("both", json!({}), labels.clone()).await;
    let half = json!({PERCENTILES: r#"{"cpu": 0.5}"#});
    shop.recommend("half", half, labels).await;
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(30, &[("a", "100m", "1Gi"), ("b", "2", "2Gi")])
        .await;
    let default_amounts =
        amounts(&shop.recommendations().get("both").await.unwrap(), "main").unwrap();
    let half_amounts = amounts(&shop.recommendations().get("half").await.unwrap(), "main").unwrap();
    assert!(
        default_amounts.0 > 2.1 && half_amounts.0 < 0.13,
        "{default_amounts:?} {half_amounts:?}"
    );
    assert_eq!(default_amounts.1, half_amounts.1);
}

#[tokio::test(start_paused = true)]
async fn oom_kill_raises_the_recommendation() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "1", "2Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(20, &[("web", "100m", "1Gi")]).await;
    let before = shop.recommendations().get("web").await.unwrap();
    let time = shop.cluster.ctx.clock.now();
    let time = time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ended = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": time}});
    let status = json!({"status": {"containerStatuses": [{"name": "main", "image": "i",
        "imageID": "", "ready": true, "restartCount": 1, "lastState": ended}]}});
    let pod = shop.pod("web").await.unwrap();
    patch::merge_status(&shop.pods(), &pod, &status)
        .await
        .unwrap();
    shop.measure(5, &[("web", "100m", "1Gi")]).await;
    let after = shop.recommendations().get("web").await.unwrap();
    let (before, after) = (
        amounts(&before, "main").unwrap(),
        amounts(&after, "main").unwrap(),
    );
    // max(request 2 GiB, peak 1 GiB) × 1.2 × 1.05.
    let want = 2048.0 * 1.2 * 1.05;
    assert!(before.1 < 1240.0, "{before:?}");
    assert!(
        (want..want * 1.06).contains(&after.1),
        "{after:?} want {want}"
    );
}

#[tokio::test(start_paused = true)]
pub(crate) async fn restart_continues_from_checkpoints() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    let (ctx, manager) = shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(30, &[("web", "2", "4Gi")]).await;
    let before = shop.recommendations().get("web").await.unwrap();
    ctx.shutdown.cancel();
    manager.await.unwrap();
    let saved: Api<RecommendationCheckpoint> =
        Api::namespaced(shop.cluster.client.clone(), NAMESPACE);
    let checkpoint = saved.get("web.main").await.unwrap();
    assert_eq!(checkpoint.spec.recommendation, "web");
    assert_eq!(checkpoint.owner_references()[0].uid, before.uid().unwrap());

    // Ten minutes of low usage after half an hour of high usage: the p99 of the whole stays. A manager
    // without the history would recommend 110m.
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(10, &[("web", "100m", "1Gi")]).await;
    let after = shop.recommendations().get("web").await.unwrap();
    assert_eq!(amounts(&after, "main"), amounts(&before, "main"));
    assert!(amounts(&after, "main").unwrap().0 > 2.1);
}

#[tokio::test(start_paused = true)]
async fn missing_checkpoint_definition_is_reported() {
    let shop = Shop::open().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(shop.cluster.client.clone());
    let name = "recommendationcheckpoints.analysis.koordinator.sh";
    definitions.delete(name, &Default::default()).await.unwrap();
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(20, &[("web", "2", "4Gi")]).await;
    let object = shop.recommendations().get("web").await.unwrap();
    assert!(amounts(&object, "main").is_some());
    let (_, _, message) = condition(&object, "LowConfidence").unwrap();
    assert!(
        message.contains("no definition of RecommendationCheckpoint"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_metrics_api_node_metrics_are_used() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "3", "3Gi"), ("proxy", "1", "1Gi")])
        .await;
    shop.deploy("plain", &[("main", "3", "3Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    shop.recommend("plain", json!({}), workload("Deployment", "plain"))
        .await;
    shop.manager(&shop.cluster.without_metrics_api(), Options::default());
    shop.measure(20, &[("web", "2", "4Gi"), ("plain", "2", "4Gi")])
        .await;
    let web = shop.recommendations().get("web").await.unwrap();
    let (_, reason, _) = condition(&web, "LowConfidence").unwrap();
    assert_eq!(reason, "PodLevelMetrics");
    // Three quarters and one quarter, in proportion to the requests.
    let (main, proxy) = (
        amounts(&web, "main").unwrap(),
        amounts(&web, "proxy").unwrap(),
    );
    assert!(
        (1.57..1.67).contains(&main.0) && (0.525..0.557).contains(&proxy.0),
        "{main:?} {proxy:?}"
    );
    let plain = shop.recommendations().get("plain").await.unwrap();
    let (_, reason, _) = condition(&plain, "LowConfidence").unwrap();
    assert_eq!(reason, "ShortHistory", "one container: exact");
}

#[tokio::test(start_paused = true)]
pub(crate) async fn a_missing_target_keeps_the_recommendation() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    shop.recommend("absent", json!({}), workload("StatefulSet", "absent"))
        .await;
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(20, &[("web", "2", "4Gi")]).await;
    let before = shop.recommendations().get("web").await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(shop.cluster.client.clone(), NAMESPACE);
    deployments
        .delete("web", &Default::default())
        .await
        .unwrap();
    let mut watch = shop.cluster.watch::<Recommendation>();
    for (name, expected) in [
        ("web", "there is no Deployment \"web\""),
        ("absent", "there is no StatefulSet \"absent\""),
    ] {
        let is_missing = |object: &Recommendation| {
            condition(object, "NoObjectsMatched").filter(|parts| parts.1 == "TargetMissing")
        };
        let (status, _, message) = until(&mut watch, name, "that it is gone", is_missing).await;
        assert_eq!((status.as_str(), message.as_str()), ("True", expected));
    }
    let after = shop.recommendations().get("web").await.unwrap();
    assert_eq!(amounts(&after, "main"), amounts(&before, "main"));
    assert!(amounts(&after, "main").is_some());

    // The target exists again, and the condition becomes false.
    shop.deploy("web2", &[("main", "4", "8Gi")]).await;
    let moved = json!({"spec": {"target": {"workload": {"name": "web2"}}}});
    patch::merge(&shop.recommendations(), "web", &moved)
        .await
        .unwrap();
    let back = |object: &Recommendation| {
        condition(object, "NoObjectsMatched").filter(|parts| parts.0 == "False")
    };
    let (_, reason, _) = until(&mut watch, "web", "pods again", back).await;
    assert_eq!(reason, "ObjectsMatched");
}

#[tokio::test(start_paused = true)]
async fn invalid_targets_are_refused_with_field_and_value() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    let kind = |kind: &str, api_version: &str| {
        json!({"type": "workload",
               "workload": {"apiVersion": api_version, "kind": kind, "name": "web"}})
    };
    let wrong = json!({PERCENTILES: r#"{"cpu": 95}"#});
    shop.recommend("annotation", wrong, workload("Deployment", "web"))
        .await;
    shop.recommend("type", json!({}), json!({"type": "pods"}))
        .await;
    shop.recommend("both", json!({}), json!({"type": "podSelector"}))
        .await;
    shop.recommend("kind", json!({}), kind("CloneSet", "apps/v1"))
        .await;
    shop.recommend("group", json!({}), kind("CloneSet", "apps.kruise.io/v1"))
        .await;
    shop.manager(&shop.cluster.limited, Options::default());
    shop.measure(5, &[("web", "2", "4Gi")]).await;
    for (name, expected) in [
        ("annotation", "cpu must be above 0 and at most 1, got 95"),
        ("type", "spec.target.type \"pods\""),
        ("both", "spec.target.podSelector is absent"),
        ("kind", "spec.target.workload.kind \"CloneSet\""),
        ("group", "\"apps.kruise.io/v1\""),
    ] {
        let object = shop.recommendations().get(name).await.unwrap();
        let unsupported = condition(&object, "ConfigUnsupported");
        let (status, _, message) = unsupported.unwrap_or_else(|| panic!("{name}: {object:#?}"));
        assert!(
            status == "True" && message.contains(expected),
            "{name}: {message}"
        );
    }
    // An invalid annotation does not prevent the recommendation: the defaults apply.
    let object = shop.recommendations().get("annotation").await.unwrap();
    assert!(amounts(&object, "main").unwrap().0 > 2.1);
    let events: Api<Event> = Api::namespaced(shop.cluster.client.clone(), NAMESPACE);
    let events = events.list(&Default::default()).await.unwrap().items;
    let is_unsupported = |event: &&Event| event.reason.as_deref() == Some("ConfigUnsupported");
    assert_eq!(events.iter().filter(is_unsupported).count(), 5);

    // Once fixed, it is accepted.
    let mended = json!({"metadata": {"annotations": {PERCENTILES: r#"{"cpu": 0.5}"#}}});
    patch::merge(&shop.recommendations(), "annotation", &mended)
        .await
        .unwrap();
    let mut watch = shop.cluster.watch::<Recommendation>();
    let understood = |object: &Recommendation| {
        condition(object, "ConfigUnsupported").filter(|parts| parts.0 == "False")
    };
    until(&mut watch, "annotation", "that it is accepted", understood).await;
}

#[tokio::test(start_paused = true)]
async fn disabled_gate_stops_the_recommender() {
    let shop = Shop::open().await;
    shop.deploy("web", &[("main", "4", "8Gi")]).await;
    shop.recommend("web", json!({}), workload("Deployment", "web"))
        .await;
    let mut options = Options::default();
    options.gates.set("Recommender", false);
    shop.manager(&shop.cluster.limited, options);
    shop.measure(10, &[("web", "2", "4Gi")]).await;
    let object = shop.recommendations().get("web").await.unwrap();
    assert_eq!(object.status, None);
}
