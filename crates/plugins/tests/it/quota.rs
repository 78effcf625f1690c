//! Elastic quotas against the embedded API server: admission, status, preemption, a restart.

use crate::api::{TestCluster, allocatable};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA};
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use koord_host::testing::eventually;
use koord_kube::Api;
use koord_kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use koord_scheduler::config::Configuration;
use serde_json::{Value, json};

impl TestCluster {
    fn quotas(&self) -> Api<ElasticQuota> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn quota(&self, name: &str, parent: &str, max: &str, min: &str) {
        let object: ElasticQuota = serde_json::from_value(json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {
                "name": name, "namespace": "default", "labels": {labels::QUOTA_PARENT: parent}
            },
            "spec": {"max": {"cpu": max}, "min": {"cpu": min}}
        }))
        .unwrap();
        self.quotas()
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }

    async fn quota_pod(&self, name: &str, quota: &str, cpu: &str, class: &str) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "default", "labels": {labels::POD_QUOTA_NAME: quota}
            },
            "spec": {
                "schedulerName": "koord-scheduler", "priorityClassName": class,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]
            }
        }))
        .unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
    }

    /// Waits until the quota shows this use and this runtime, and returns it.
    async fn shows(&self, name: &str, used: &str, runtime: &str) -> ElasticQuota {
        let cpu = |list: &Value| list["cpu"].as_str().unwrap_or("0").to_owned();
        self.until(name, |object: &ElasticQuota| {
            let is = serde_json::to_value(object).unwrap();
            let share = is["metadata"]["annotations"][annotations::QUOTA_RUNTIME].as_str();
            let share: Value = serde_json::from_str(share.unwrap_or("{}")).unwrap();
            let named = object.metadata.name.as_deref() == Some(name);
            let matches = cpu(&is["status"]["used"]) == used && cpu(&share) == runtime;
            (named && matches).then(|| object.clone())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_lend_reject_report_and_survive_restart() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("10"), json!([])).await;
    let class: PriorityClass =
        serde_json::from_value(json!({"metadata": {"name": "urgent"}, "value": 100})).unwrap();
    let classes: Api<PriorityClass> = Api::all(cluster.client.clone());
    classes
        .create(&PostParams::default(), &class)
        .await
        .unwrap();
    cluster.quota("a", "", "8", "5").await;
    cluster.quota("b", "", "8", "5").await;
    let first = cluster.schedule(|_| {});
    for name in [ROOT_QUOTA, SYSTEM_QUOTA, DEFAULT_QUOTA] {
        cluster
            .until(name, |object: &ElasticQuota| {
                let is = &object.metadata;
                let is_system = is.namespace.as_deref() == Some("koordinator-system");
                (is_system && is.name.as_deref() == Some(name)).then_some(())
            })
            .await;
    }
    // Borrowed: more than its min, up to its max.
    cluster.quota_pod("a-1", "a", "7", "").await;
    assert_eq!(cluster.bound("a-1").await, "n");
    cluster.shows("a", "7", "7").await;
    cluster.quota_pod("a-2", "a", "2", "").await;
    let (reason, message) = cluster.refused("a-2", |_| true).await;
    assert_eq!(reason, "Unschedulable");
    assert!(
        message.starts_with(
            "0/1 nodes are available: Insufficient quotas, quotaName: a, runtime: cpu:8, \
             used: cpu:7, pod's request: cpu:2, exceedDimensions: [cpu]."
        ),
        "{message}"
    );
    // The more important pod preempts one of its own quota.
    cluster.quota_pod("a-3", "a", "8", "urgent").await;
    assert_eq!(cluster.bound("a-3").await, "n");
    assert!(cluster.pods().get_opt("a-1").await.unwrap().is_none());
    cluster.shows("a", "8", "8").await;
    first.stop().await;

    let second = cluster.schedule(|_| {});
    cluster.quota_pod("a-4", "a", "1", "").await;
    let full = |message: &str| message.contains("used: cpu:8, pod's request: cpu:1,");
    cluster.refused("a-4", full).await;
    // A larger max admits the pod that has waited longest, and no other.
    let larger = json!({"spec": {"max": {"cpu": "10"}}});
    cluster
        .quotas()
        .patch("a", &PatchParams::default(), &Patch::Merge(&larger))
        .await
        .unwrap();
    assert_eq!(cluster.bound("a-2").await, "n");
    cluster.shows("a", "10", "10").await;
    assert!(
        cluster
            .pods()
            .get("a-4")
            .await
            .unwrap()
            .spec
            .unwrap()
            .node_name
            .is_none()
    );
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_annotations_are_reported_as_events() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    let annotated = |meta: Value, key: &str| {
        let mut value = json!({"metadata": meta});
        value["metadata"]["namespace"] = json!("default");
        value["metadata"]["annotations"] = json!({key: "{nope"});
        value
    };
    let mut quota = annotated(
        json!({"name": "bent-quota"}),
        annotations::QUOTA_SHARED_WEIGHT,
    );
    quota["apiVersion"] = json!("scheduling.sigs.k8s.io/v1alpha1");
    quota["kind"] = json!("ElasticQuota");
    quota["spec"] = json!({"max": {"cpu": "2"}, "min": {"cpu": "1"}});
    let quota: ElasticQuota = serde_json::from_value(quota).unwrap();
    let params = PostParams::default();
    cluster.quotas().create(&params, &quota).await.unwrap();
    let mut pod = annotated(json!({"name": "bent-pod"}), annotations::RESOURCE_STATUS);
    pod["spec"] = json!({"nodeName": "n", "schedulerName": "koord-scheduler",
        "containers": [{"name": "c", "image": "i"}]});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    cluster.pods().create(&params, &pod).await.unwrap();

    let scheduler = cluster.schedule(|_| {});
    for (name, key) in [
        ("bent-quota", annotations::QUOTA_SHARED_WEIGHT),
        ("bent-pod", annotations::RESOURCE_STATUS),
    ] {
        let message = cluster.event("InvalidConfiguration", name).await;
        assert!(
            message.contains(key) && message.contains("{nope"),
            "{message}"
        );
    }
    // No other quota is affected.
    cluster.quota_pod("fine", "bent-quota", "1", "").await;
    assert_eq!(cluster.bound("fine").await, "n");
    scheduler.stop().await;
}

/// Returns the built-in configuration with these arguments of the plugin.
fn configured(args: &Value) -> Configuration {
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {"enabled": [{"name": "ElasticQuota"}]}},
            "pluginConfig": [{"name": "ElasticQuota", "args": args}]
        }]
    });
    Configuration::parse(&config.to_string()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn quota_overuse_is_evicted_within_budgets() {
    let cluster = TestCluster::start_virtual().await;
    cluster.node("n", allocatable("10"), json!([])).await;
    cluster.quota("a", "", "10", "4").await;
    cluster.quota("b", "", "10", "6").await;
    let args = json!({"monitorAllQuotas": true, "delayEvictTime": "20s"});
    let scheduler = cluster.schedule(|options| options.config = Some(configured(&args)));
    for number in 0..5 {
        let name = format!("a-{number}");
        cluster.quota_pod(&name, "a", "2", "").await;
        cluster.bound(&name).await;
        // Budgets count pods that are running and ready.
        let running = json!({"status": {
            "phase": "Running", "startTime": format!("2026-01-01T00:00:0{number}Z"),
            "conditions": [{"type": "Ready", "status": "True"}]
        }});
        let running = Patch::Strategic(&running);
        let params = PatchParams::default();
        cluster
            .pods()
            .patch_status(&name, &params, &running)
            .await
            .unwrap();
    }
    let labels = json!({"metadata": {"labels": {"app": "precious"}}});
    let patch = Patch::Merge(&labels);
    let params = PatchParams::default();
    for name in ["a-0", "a-1", "a-2"] {
        cluster.pods().patch(name, &params, &patch).await.unwrap();
    }
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "precious"}}}
    }))
    .unwrap();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), "default");
    budgets
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    let none_to_spare = json!({"status": {
        "observedGeneration": 1, "disruptionsAllowed": 0,
        "currentHealthy": 3, "desiredHealthy": 3, "expectedPods": 3
    }});
    let none_to_spare = Patch::Merge(&none_to_spare);
    budgets
        .patch_status("b", &params, &none_to_spare)
        .await
        .unwrap();

    // The lender requests its six cores: three of `a`'s five pods have to be evicted.
    let requested_at = tokio::time::Instant::now();
    cluster.quota_pod("b-0", "b", "6", "").await;
    let remaining_pods = || async {
        let pods = cluster.pods().list(&Default::default()).await.unwrap();
        let names = pods.items.into_iter().filter_map(|pod| pod.metadata.name);
        let mut names: Vec<String> = names.filter(|name| name.starts_with("a-")).collect();
        names.sort();
        names
    };
    eventually("evictions", async || {
        (remaining_pods().await.len() <= 3).then_some(())
    })
    .await;
    let waited = requested_at.elapsed();
    assert!(
        (20..23).contains(&waited.as_secs()),
        "{waited:?}: delayEvictTime and a second or two"
    );
    assert_eq!(
        remaining_pods().await,
        ["a-0", "a-1", "a-2"],
        "the budget spares three"
    );
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(remaining_pods().await.len(), 3, "however often it is asked");
    // Without the budget, the next attempt succeeds, and the lender's pod is placed.
    budgets.delete("b", &DeleteParams::default()).await.unwrap();
    assert_eq!(cluster.bound("b-0").await, "n");
    assert_eq!(remaining_pods().await.len(), 2);
    cluster.shows("a", "4", "4").await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_total_of_root_quota_survives_restart() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("10"), json!([])).await;
    // Like koord-manager writes it for a profile.
    let root: ElasticQuota = serde_json::from_value(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {
            "name": "root", "namespace": "default",
            "labels": {
                labels::QUOTA_TREE_ID: "t", labels::QUOTA_IS_ROOT: "true",
                labels::QUOTA_IS_PARENT: "true"
            },
            "annotations": {annotations::QUOTA_TOTAL_RESOURCE: "{\"cpu\":\"4\"}"}
        },
        "spec": {"min": {"cpu": "4"}, "max": {"cpu": "1000"}}
    }))
    .unwrap();
    let params = PostParams::default();
    cluster.quotas().create(&params, &root).await.unwrap();
    cluster.quota("leaf", "root", "1000", "0").await;
    let planted = json!({"metadata": {"labels": {labels::QUOTA_TREE_ID: "t"}}});
    let planted = Patch::Merge(&planted);
    let params = PatchParams::default();
    cluster
        .quotas()
        .patch("leaf", &params, &planted)
        .await
        .unwrap();
    cluster.quota("main", "", "1000", "0").await;
    let gated = |options: &mut koord_scheduler::Options| {
        options.build.gates.insert("MultiQuotaTree".into(), true);
    };
    let first = cluster.schedule(gated);
    cluster.quota_pod("t-1", "leaf", "3", "").await;
    assert_eq!(cluster.bound("t-1").await, "n");
    cluster.quota_pod("t-2", "leaf", "2", "").await;
    let full = |message: &str| message.contains("quotaName: leaf, runtime: cpu:4, used: cpu:3,");
    cluster.refused("t-2", full).await;
    cluster.quota_pod("m-1", "main", "7", "").await;
    let is_rest = |message: &str| message.contains("quotaName: main, runtime: cpu:6, ");
    cluster.refused("m-1", is_rest).await;
    first.stop().await;

    let second = cluster.schedule(gated);
    cluster.quota_pod("m-2", "main", "6", "").await;
    assert_eq!(
        cluster.bound("m-2").await,
        "n",
        "what the tree does not have"
    );
    let patch = json!({"metadata": {"annotations": {
        annotations::QUOTA_TOTAL_RESOURCE: "{\"cpu\":\"3\"}"
    }}});
    let patch = Patch::Merge(&patch);
    cluster
        .quotas()
        .patch("root", &params, &patch)
        .await
        .unwrap();
    cluster.shows("leaf", "3", "3").await;
    cluster.shows("main", "6", "7").await;
    second.stop().await;
}
