//! Elastic quotas against the embedded API server: admission, status, preemption, a restart.

use crate::api::{Cluster, room};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA};
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use koord_kube::Api;
use koord_kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

impl Cluster {
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

    /// The quota, once it shows this much use and this share.
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
async fn quotas_lend_refuse_show_and_survive_a_restart() {
    let cluster = Cluster::start().await;
    cluster.node("n", room("10"), json!([])).await;
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
                let here = is.namespace.as_deref() == Some("koordinator-system");
                (here && is.name.as_deref() == Some(name)).then_some(())
            })
            .await;
    }
    // Borrowed: more than its minimum, up to its maximum.
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
    // The more important pod takes the place of its own quota's.
    cluster.quota_pod("a-3", "a", "8", "urgent").await;
    assert_eq!(cluster.bound("a-3").await, "n");
    assert!(cluster.pods().get_opt("a-1").await.unwrap().is_none());
    cluster.shows("a", "8", "8").await;
    first.stop().await;

    let second = cluster.schedule(|_| {});
    cluster.quota_pod("a-4", "a", "1", "").await;
    let full = |message: &str| message.contains("used: cpu:8, pod's request: cpu:1,");
    cluster.refused("a-4", full).await;
    // A larger maximum lets in the one that waits longest, and nobody else.
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
async fn malformed_annotations_are_told_in_events_of_their_objects() {
    let cluster = Cluster::start().await;
    cluster.node("n", room("4"), json!([])).await;
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
    // And nobody else suffers.
    cluster.quota_pod("fine", "bent-quota", "1", "").await;
    assert_eq!(cluster.bound("fine").await, "n");
    scheduler.stop().await;
}
