//! Quotas and limits of a namespace.

use crate::support::{Cluster, MERGE, config_map, pod};
use serde_json::{Value, json};

const TEAM: &str = "/api/v1/namespaces/team";

async fn cluster() -> Cluster {
    let cluster = Cluster::start().await;
    let team = json!({"metadata": {"name": "team"}});
    cluster.post("/api/v1/namespaces", team).await.expect(201);
    cluster
}

/// Creates a quota and waits until it is enforced.
async fn quota(cluster: &Cluster, name: &str, spec: Value) {
    let hard = spec["hard"].clone();
    let body = json!({"metadata": {"name": name}, "spec": spec});
    let path = format!("{TEAM}/resourcequotas");
    cluster.post(&path, body).await.expect(201);
    let path = format!("{path}/{name}");
    let result = cluster
        .until(&path, |a| a.body["status"]["hard"] == hard)
        .await;
    let used = result.body["status"]["used"].as_object().unwrap();
    assert_eq!(used.len(), hard.as_object().unwrap().len(), "{used:?}");
}

async fn used(cluster: &Cluster, name: &str) -> Value {
    let path = format!("{TEAM}/resourcequotas/{name}");
    cluster.get(&path).await.expect(200)["status"]["used"].clone()
}

fn with(name: &str, resources: Value) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = resources;
    pod
}

fn batch(name: &str, cpu: &str) -> Value {
    with(
        name,
        json!({"requests": {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": "1Gi"},
            "limits": {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": "1Gi"}}),
    )
}

#[tokio::test(start_paused = true)]
async fn batch_namespace_is_bounded_by_its_quota() {
    let cluster = cluster().await;
    let hard = json!({"requests.kubernetes.io/batch-cpu": "4k",
        "requests.kubernetes.io/batch-memory": "4Gi", "pods": "3"});
    quota(&cluster, "batch", json!({"hard": hard})).await;
    let pods = format!("{TEAM}/pods");
    cluster.post(&pods, batch("a", "3000")).await.expect(201);
    assert_eq!(
        used(&cluster, "batch").await,
        json!({"pods": "1", "requests.kubernetes.io/batch-cpu": "3k",
            "requests.kubernetes.io/batch-memory": "1Gi"})
    );
    let message = cluster
        .post(&pods, batch("b", "1001"))
        .await
        .fails(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"b\" is forbidden: exceeded quota: batch, requested: \
         requests.kubernetes.io/batch-cpu=1001, used: requests.kubernetes.io/batch-cpu=3k, \
         limited: requests.kubernetes.io/batch-cpu=4k"
    );
    // Refused writes, dry runs and existing objects are not charged.
    cluster
        .post(&format!("{pods}?dryRun=All"), batch("b", "1000"))
        .await
        .expect(201);
    cluster
        .post(&pods, batch("a", "500"))
        .await
        .fails(409, "AlreadyExists");
    cluster.post(&pods, batch("b", "1000")).await.expect(201);
    assert_eq!(used(&cluster, "batch").await["pods"], "2");
    // Deleted objects are released, and so are ended pods.
    let path = format!("{TEAM}/resourcequotas/batch");
    let freed =
        |n: &'static str| move |a: &crate::support::Answer| a.body["status"]["used"]["pods"] == n;
    cluster
        .delete(&format!("{pods}/a"), json!({}))
        .await
        .expect(200);
    cluster.until(&path, freed("1")).await;
    let ended = json!({"status": {"phase": "Succeeded"}});
    cluster
        .patch(&format!("{pods}/b/status"), MERGE, ended)
        .await
        .expect(200);
    cluster.until(&path, freed("0")).await;
    cluster.post(&pods, batch("c", "4000")).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn many_at_once_do_not_exceed_a_quota() {
    let cluster = cluster().await;
    quota(&cluster, "few", json!({"hard": {"count/configmaps": "8"}})).await;
    // There is one already: the certificate of the authority.
    let path = format!("{TEAM}/configmaps");
    let writes = (0..40).map(|i| {
        let map = config_map(&format!("m{i}"), json!({}), json!({}));
        cluster.post(&path, map)
    });
    let answers = futures::future::join_all(writes).await;
    let created = answers.iter().filter(|a| a.code == 201).count();
    let refused = answers.iter().filter(|a| a.code == 403).count();
    assert_eq!(created + refused, 40);
    let list = cluster.get(&path).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 8);
    assert_eq!(
        used(&cluster, "few").await,
        json!({"count/configmaps": "8"})
    );
}

#[tokio::test(start_paused = true)]
async fn quota_counts_existing_and_custom_objects() {
    let cluster = cluster().await;
    let crd = json!({"metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    cluster.post(crds, crd).await.expect(201);
    let widgets = "/apis/example.com/v1/namespaces/team/widgets";
    let widget = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}});
    cluster.post(widgets, widget("a")).await.expect(201);
    cluster
        .post(
            &format!("{TEAM}/pods"),
            with("p", json!({"requests": {"cpu": "500m"}})),
        )
        .await
        .expect(201);
    let hard = json!({"count/widgets.example.com": "2", "requests.cpu": "1", "pods": "5"});
    quota(&cluster, "all", json!({"hard": hard})).await;
    assert_eq!(
        used(&cluster, "all").await,
        json!({"count/widgets.example.com": "1", "requests.cpu": "500m", "pods": "1"})
    );
    cluster.post(widgets, widget("b")).await.expect(201);
    let message = cluster
        .post(widgets, widget("c"))
        .await
        .fails(403, "Forbidden");
    assert_eq!(
        message,
        "widgets.example.com \"c\" is forbidden: exceeded quota: all, requested: \
         count/widgets.example.com=1, used: count/widgets.example.com=2, limited: \
         count/widgets.example.com=2"
    );
    cluster
        .delete(&format!("{widgets}/a"), json!({}))
        .await
        .expect(200);
    let path = format!("{TEAM}/resourcequotas/all");
    cluster
        .until(&path, |a| {
            a.body["status"]["used"]["count/widgets.example.com"] == "1"
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn limits_fill_in_and_bound() {
    let cluster = cluster().await;
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container",
        "max": {"cpu": "2"}, "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "250m"}}]}});
    cluster
        .post(&format!("{TEAM}/limitranges"), range)
        .await
        .expect(201);
    let hard = json!({"limits.cpu": "1", "requests.cpu": "1"});
    quota(&cluster, "q", json!({"hard": hard})).await;
    let pods = format!("{TEAM}/pods");
    // Without the defaults the quota would refuse it.
    let created = cluster.post(&pods, pod("p")).await.expect(201);
    assert_eq!(
        created["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "250m"}})
    );
    assert_eq!(
        created["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container main; cpu limit for container main"
    );
    assert_eq!(
        used(&cluster, "q").await,
        json!({"limits.cpu": "500m", "requests.cpu": "250m"})
    );
    let message = cluster
        .post(&pods, with("big", json!({"limits": {"cpu": "3"}})))
        .await
        .fails(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"big\" is forbidden: maximum cpu usage per Container is 2, but limit is 3"
    );
}
