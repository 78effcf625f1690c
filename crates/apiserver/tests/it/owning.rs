//! Workload controllers: adoption and release, events, revision history.

use crate::support::{Answer, Cluster, MERGE, STRATEGIC, pod};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const APPS: &str = "/apis/apps/v1/namespaces/default";

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn workload(name: &str, replicas: u64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "serviceName": "web",
        "selector": {"matchLabels": {"app": "web"}}, "template": template("busybox:1")}})
}

fn items(answer: &Answer) -> &[Value] {
    answer.body["items"].as_array().map_or(&[], Vec::as_slice)
}

fn controller(object: &Value) -> Option<&str> {
    object["metadata"]["ownerReferences"][0]["name"].as_str()
}

/// Waits for an event about `kind` with this text.
async fn event(cluster: &Cluster, kind: &str, reason: &str, message: &str) -> Value {
    let is = |e: &Value| {
        e["involvedObject"]["kind"] == kind
            && e["reason"] == reason
            && e["message"]
                .as_str()
                .is_some_and(|m| m.starts_with(message))
    };
    let answer = cluster.until(EVENTS, |a| items(a).iter().any(is)).await;
    items(&answer).iter().find(|e| is(e)).unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn replica_set_adopts_matching_pods_and_releases_others() {
    let cluster = Cluster::start().await;
    let mut orphan = pod("orphan");
    orphan["metadata"]["labels"] = json!({"app": "web"});
    cluster.post(PODS, orphan.clone()).await.expect(201);
    let sets = format!("{APPS}/replicasets");
    cluster.post(&sets, workload("web", 2)).await.expect(201);
    cluster
        .until(&format!("{PODS}/orphan"), |a| {
            controller(&a.body) == Some("web")
        })
        .await;
    let all = cluster.until(PODS, |a| items(a).len() == 2).await;
    assert!(items(&all).iter().all(|p| controller(p) == Some("web")));
    // A matching pod that is created later is surplus.
    orphan["metadata"]["name"] = "late".into();
    cluster.post(PODS, orphan).await.expect(201);
    cluster
        .until(PODS, |a| {
            items(a).len() == 2 && items(a).iter().all(|p| controller(p) == Some("web"))
        })
        .await;
    // A relabeled pod is released and replaced.
    let retained = cluster.get(PODS).await;
    let name = items(&retained)[0]["metadata"]["name"].as_str().unwrap();
    let path = format!("{PODS}/{name}");
    let body = json!({"metadata": {"labels": {"app": "other"}}});
    cluster.patch(&path, MERGE, body).await.expect(200);
    cluster
        .until(&path, |a| controller(&a.body).is_none())
        .await;
    cluster.until(PODS, |a| items(a).len() == 3).await;
    event(
        &cluster,
        "ReplicaSet",
        "SuccessfulCreate",
        "Created pod: web-",
    )
    .await;
    event(&cluster, "ReplicaSet", "SuccessfulDelete", "Deleted pod: ").await;
}

#[tokio::test(start_paused = true)]
async fn replication_controller_maintains_its_pods() {
    let cluster = Cluster::start().await;
    let all = "/api/v1/namespaces/default/replicationcontrollers";
    let path = format!("{all}/web");
    let mut orphan = pod("orphan");
    orphan["metadata"]["labels"] = json!({"app": "web"});
    cluster.post(PODS, orphan).await.expect(201);
    // Its selector is a plain map, by default the labels of its template.
    let object = json!({"metadata": {"name": "web"}, "spec": {"replicas": 2, "template": template("busybox:1")}});
    cluster.post(all, object).await.expect(201);
    cluster.until(PODS, |a| items(a).len() == 2).await;
    let observed = cluster
        .until(&path, |a| a.body["status"]["replicas"] == 2)
        .await;
    assert_eq!(observed.body["status"]["fullyLabeledReplicas"], 2);
    assert_eq!(observed.body["status"]["observedGeneration"], 1);
    for pod in items(&cluster.get(PODS).await) {
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!(owner["kind"], "ReplicationController");
        assert_eq!(owner["apiVersion"], "v1");
        assert_eq!(owner["controller"], true);
    }
    // A relabeled pod is released and replaced.
    let body = json!({"metadata": {"labels": {"app": "other"}}});
    let orphan = format!("{PODS}/orphan");
    cluster.patch(&orphan, MERGE, body).await.expect(200);
    cluster
        .until(&orphan, |a| controller(&a.body).is_none())
        .await;
    cluster.until(PODS, |a| items(a).len() == 3).await;
    let body = json!({"spec": {"replicas": 0}});
    let scale = format!("{path}/scale");
    cluster.patch(&scale, MERGE, body).await.expect(200);
    cluster.until(PODS, |a| items(a).len() == 1).await;
    event(
        &cluster,
        "ReplicationController",
        "SuccessfulCreate",
        "Created pod: web-",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn deployment_adopts_its_replica_sets() {
    let cluster = Cluster::start().await;
    let (all, sets) = (format!("{APPS}/deployments"), format!("{APPS}/replicasets"));
    cluster.post(&all, workload("web", 1)).await.expect(201);
    let created = cluster.until(&sets, |a| items(a).len() == 1).await;
    let set = items(&created)[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let orphan = json!({"propagationPolicy": "Orphan"});
    let path = format!("{all}/web");
    cluster.delete(&path, orphan).await.expect(200);
    cluster.until_gone(&path).await;
    let remaining = cluster.get(&format!("{sets}/{set}")).await.expect(200);
    assert_eq!(controller(&remaining), None);
    cluster.post(&all, workload("web", 1)).await.expect(201);
    cluster
        .until(&format!("{sets}/{set}"), |a| {
            controller(&a.body) == Some("web")
        })
        .await;
    assert_eq!(items(&cluster.get(&sets).await).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn deployments_record_events_and_conditions() {
    let cluster = Cluster::start().await;
    let path = format!("{APPS}/deployments");
    let mut deployment = workload("web", 3);
    deployment["metadata"]["annotations"] = json!({"kubernetes.io/change-cause": "first"});
    cluster.post(&path, deployment).await.expect(201);
    let messages = event(
        &cluster,
        "Deployment",
        "ScalingReplicaSet",
        "Scaled up replica set web-",
    )
    .await;
    let message = messages["message"].as_str().unwrap();
    assert!(message.ends_with(" from 0 to 3"), "{message}");
    assert_eq!(messages["source"]["component"], "deployment-controller");
    assert_eq!(messages["type"], "Normal");
    let path = format!("{path}/web");
    cluster
        .patch(&path, MERGE, json!({"spec": {"replicas": 1}}))
        .await
        .expect(200);
    let down = "Scaled down replica set web-";
    let messages = event(&cluster, "Deployment", "ScalingReplicaSet", down).await;
    assert!(
        messages["message"]
            .as_str()
            .unwrap()
            .ends_with(" from 3 to 1")
    );
    // Fields for `kubectl rollout history`.
    let body = json!({"metadata": {"annotations": {"kubernetes.io/change-cause": "second"}},
        "spec": {"template": template("busybox:2")}});
    cluster.patch(&path, STRATEGIC, body).await.expect(200);
    let sets = cluster
        .until(&format!("{APPS}/replicasets"), |a| items(a).len() == 2)
        .await;
    let mut history: Vec<_> = items(&sets)
        .iter()
        .map(|s| {
            let annotations = &s["metadata"]["annotations"];
            let revision = annotations["deployment.kubernetes.io/revision"].as_str();
            (revision, annotations["kubernetes.io/change-cause"].as_str())
        })
        .collect();
    history.sort_unstable();
    assert_eq!(history[0], (Some("1"), Some("first")));
}

#[tokio::test(start_paused = true)]
async fn refused_pod_is_reported_as_event() {
    let cluster = Cluster::start().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    cluster.post(quotas, none).await.expect(201);
    cluster
        .until(&format!("{quotas}/none"), |a| {
            a.body["status"]["used"]["pods"] == "0"
        })
        .await;
    let sets = format!("{APPS}/replicasets");
    cluster.post(&sets, workload("web", 2)).await.expect(201);
    let messages = event(
        &cluster,
        "ReplicaSet",
        "FailedCreate",
        "Error creating: pods \"web-",
    )
    .await;
    assert_eq!(messages["type"], "Warning");
    let message = messages["message"].as_str().unwrap();
    assert!(
        message.ends_with(
            "is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0"
        ),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn templates_are_recorded_for_rollback() {
    let cluster = Cluster::start().await;
    let node = json!({"metadata": {"name": "n1"}});
    cluster.post("/api/v1/nodes", node).await.expect(201);
    for kind in ["statefulsets", "daemonsets"] {
        let all = format!("{APPS}/{kind}");
        let mut object = workload(kind, 1);
        if kind == "daemonsets" {
            let spec = object["spec"].as_object_mut().unwrap();
            spec.retain(|key, _| key == "selector" || key == "template");
        }
        cluster.post(&all, object).await.expect(201);
        let revisions = format!("{APPS}/controllerrevisions");
        // Number and image of the revisions of this set, in the order of their numbers.
        let history = |answer: &Answer| {
            let mut list: Vec<(i64, String)> = items(answer)
                .iter()
                .filter(|r| controller(r) == Some(kind))
                .map(|r| {
                    let template = &r["data"]["spec"]["template"];
                    assert_eq!(template["$patch"], "replace");
                    assert_eq!(r["metadata"]["labels"]["app"], "web");
                    let image = template["spec"]["containers"][0]["image"].as_str();
                    (r["revision"].as_i64().unwrap(), image.unwrap().to_owned())
                })
                .collect();
            list.sort();
            list
        };
        let expected = |list: &[(i64, &str)]| -> Vec<(i64, String)> {
            list.iter().map(|(n, i)| (*n, (*i).to_owned())).collect()
        };
        let first = expected(&[(1, "busybox:1")]);
        cluster.until(&revisions, |a| history(a) == first).await;
        let path = format!("{all}/{kind}");
        let turn = async |image: &str| {
            let body = json!({"spec": {"template": template(image)}});
            cluster.patch(&path, STRATEGIC, body).await.expect(200);
        };
        turn("busybox:2").await;
        let second = expected(&[(1, "busybox:1"), (2, "busybox:2")]);
        cluster.until(&revisions, |a| history(a) == second).await;
        // A rollback makes the first revision the newest.
        turn("busybox:1").await;
        let third = expected(&[(2, "busybox:2"), (3, "busybox:1")]);
        cluster.until(&revisions, |a| history(a) == third).await;
    }
}
