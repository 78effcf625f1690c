//! Workload controllers, with the test as the kubelet.

use crate::support::{Cluster, MERGE, STRATEGIC};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn pods(cluster: &Cluster) -> Vec<Value> {
    cluster.get(PODS).await.expect(200)["items"]
        .as_array()
        .unwrap()
        .clone()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Acts as scheduler and kubelet: binds pending pods and reports them in `phase`.
async fn advance(cluster: &Cluster, phase: &str) {
    for pod in pods(cluster).await {
        let path = format!("{PODS}/{}", name(&pod));
        if pod["spec"]["nodeName"].is_null() {
            let body = json!({"metadata": {"name": name(&pod)}, "target": {"name": "n1"}});
            cluster
                .post(&format!("{path}/binding"), body)
                .await
                .expect(201);
        }
        if pod["metadata"]["deletionTimestamp"].is_string() {
            cluster
                .delete(&path, json!({"gracePeriodSeconds": 0}))
                .await
                .expect(200);
            continue;
        }
        let ready = if phase == "Running" { "True" } else { "False" };
        let body = json!({"status": {"phase": phase,
            "conditions": [{"type": "Ready", "status": ready}]}});
        cluster
            .patch(&format!("{path}/status"), STRATEGIC, body)
            .await
            .expect(200);
    }
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": image}]}})
}

#[tokio::test(start_paused = true)]
async fn deployment_rolls_out_and_is_deleted() {
    let cluster = Cluster::start().await;
    cluster
        .post("/api/v1/nodes", json!({"metadata": {"name": "n1"}}))
        .await
        .expect(201);
    let all = "/apis/apps/v1/namespaces/default/deployments";
    let path = format!("{all}/web");
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": "web"}}, "template": template("busybox:1")}});
    cluster.post(all, deployment).await.expect(201);
    cluster
        .until(PODS, |a| {
            a.body["items"].as_array().is_some_and(|i| i.len() == 3)
        })
        .await;
    advance(&cluster, "Running").await;
    let d = cluster
        .until(&path, |a| a.body["status"]["availableReplicas"] == 3)
        .await
        .body;
    assert_eq!(
        d["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "1"
    );
    assert_eq!(
        d["status"]["observedGeneration"],
        d["metadata"]["generation"]
    );
    let pod = &pods(&cluster).await[0];
    assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "ReplicaSet");
    assert!(pod["metadata"]["labels"]["pod-template-hash"].is_string());

    let body = json!({"spec": {"template": template("busybox:2")}});
    cluster.patch(&path, STRATEGIC, body).await.expect(200);
    let complete = |d: &Value| {
        d["status"]["updatedReplicas"] == 3
            && d["status"]["replicas"] == 3
            && d["status"]["availableReplicas"] == 3
            && d["status"]["observedGeneration"] == d["metadata"]["generation"]
    };
    for _ in 0..50 {
        let revision = cluster.server.store().revision();
        let d = cluster.get(&path).await.expect(200);
        let available = d["status"]["availableReplicas"].as_i64().unwrap_or(0);
        assert!(
            available >= 2,
            "maxUnavailable 25% of 3 is none, but one may be dying: {d}"
        );
        if complete(&d) {
            break;
        }
        advance(&cluster, "Running").await;
        let next = cluster.server.store().wait_for(revision + 1);
        tokio::time::timeout(std::time::Duration::from_secs(60), next)
            .await
            .unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let d = cluster.get(&path).await.expect(200);
    assert!(complete(&d), "{d}");
    assert_eq!(
        d["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "2"
    );
    let images: Vec<_> = pods(&cluster)
        .await
        .iter()
        .filter(|p| p["metadata"]["deletionTimestamp"].is_null())
        .map(|p| p["spec"]["containers"][0]["image"].clone())
        .collect();
    assert_eq!(images, ["busybox:2", "busybox:2", "busybox:2"]);

    cluster
        .patch(
            &format!("{path}/scale"),
            MERGE,
            json!({"spec": {"replicas": 1}}),
        )
        .await
        .expect(200);
    cluster
        .until(PODS, |a| {
            let live = |p: &&Value| p["metadata"]["deletionTimestamp"].is_null();
            a.body["items"]
                .as_array()
                .is_some_and(|i| i.iter().filter(live).count() == 1)
        })
        .await;
    cluster
        .delete(&path, json!({"propagationPolicy": "Background"}))
        .await
        .expect(200);
    cluster
        .until("/apis/apps/v1/replicasets", |a| {
            a.body["items"] == json!([])
        })
        .await;
    cluster
        .until(PODS, |a| {
            let items = a.body["items"].as_array().unwrap();
            items
                .iter()
                .all(|p| p["metadata"]["deletionTimestamp"].is_string())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_job_completes_and_another_fails() {
    let cluster = Cluster::start().await;
    cluster
        .post("/api/v1/nodes", json!({"metadata": {"name": "n1"}}))
        .await
        .expect(201);
    let all = "/apis/batch/v1/namespaces/default/jobs";
    let job = |name: &str, spec: Value| {
        let mut spec = spec;
        spec["template"] = json!({"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "busybox:1"}]}});
        json!({"metadata": {"name": name}, "spec": spec})
    };
    cluster
        .post(
            all,
            job("good", json!({"completions": 3, "parallelism": 2})),
        )
        .await
        .expect(201);
    cluster
        .until(PODS, |a| {
            a.body["items"].as_array().is_some_and(|i| i.len() == 2)
        })
        .await;
    advance(&cluster, "Succeeded").await;
    cluster
        .until(PODS, |a| {
            a.body["items"].as_array().is_some_and(|i| i.len() == 3)
        })
        .await;
    advance(&cluster, "Succeeded").await;
    let good = cluster
        .until(&format!("{all}/good"), |a| {
            a.body["status"]["succeeded"] == 3
        })
        .await
        .body;
    let conditions = good["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|c| c["type"] == "Complete" && c["status"] == "True"),
        "{good}"
    );
    assert!(good["status"]["completionTime"].is_string());
    cluster
        .delete(
            &format!("{all}/good"),
            json!({"propagationPolicy": "Background"}),
        )
        .await
        .expect(200);
    cluster.until(PODS, |a| a.body["items"] == json!([])).await;

    cluster
        .post(all, job("bad", json!({"backoffLimit": 0})))
        .await
        .expect(201);
    cluster
        .until(PODS, |a| {
            a.body["items"].as_array().is_some_and(|i| i.len() == 1)
        })
        .await;
    advance(&cluster, "Failed").await;
    let bad = cluster
        .until(&format!("{all}/bad"), |a| {
            a.body["status"]["conditions"].is_array()
        })
        .await
        .body;
    let failed = bad["status"]["conditions"].as_array().unwrap();
    let failed = failed.iter().find(|c| c["type"] == "Failed").unwrap();
    assert_eq!(failed["reason"], "BackoffLimitExceeded");
}

#[tokio::test(start_paused = true)]
async fn daemons_run_on_every_node_and_numbered_pods_in_order() {
    let cluster = Cluster::start().await;
    for node in ["n1", "n2"] {
        cluster
            .post("/api/v1/nodes", json!({"metadata": {"name": node}}))
            .await
            .expect(201);
    }
    let all = "/apis/apps/v1/namespaces/default/daemonsets";
    let set = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "web"}}, "template": template("busybox:1")}});
    cluster.post(all, set).await.expect(201);
    cluster
        .until(PODS, |a| {
            a.body["items"].as_array().is_some_and(|i| i.len() == 2)
        })
        .await;
    cluster
        .post("/api/v1/nodes", json!({"metadata": {"name": "n3"}}))
        .await
        .expect(201);
    cluster
        .until(PODS, |a| {
            a.body["items"].as_array().is_some_and(|i| i.len() == 3)
        })
        .await;
    let d = cluster
        .until(&format!("{all}/d"), |a| {
            a.body["status"]["currentNumberScheduled"] == 3
        })
        .await
        .body;
    assert_eq!(d["status"]["desiredNumberScheduled"], 3);
    cluster
        .delete(
            &format!("{all}/d"),
            json!({"propagationPolicy": "Background"}),
        )
        .await
        .expect(200);
    cluster.until(PODS, |a| a.body["items"] == json!([])).await;

    let all = "/apis/apps/v1/namespaces/default/statefulsets";
    let set = json!({"metadata": {"name": "s"}, "spec": {"replicas": 2, "serviceName": "s",
        "selector": {"matchLabels": {"app": "web"}}, "template": template("busybox:1")}});
    cluster.post(all, set).await.expect(201);
    cluster
        .until(&format!("{PODS}/s-0"), |a| a.code == 200)
        .await;
    cluster
        .get(&format!("{PODS}/s-1"))
        .await
        .fails(404, "NotFound");
    advance(&cluster, "Running").await;
    cluster
        .until(&format!("{PODS}/s-1"), |a| a.code == 200)
        .await;
    advance(&cluster, "Running").await;
    cluster
        .until(&format!("{all}/s"), |a| {
            a.body["status"]["readyReplicas"] == 2
        })
        .await;
}
