//! The `metrics.k8s.io` API, for `kubectl top`.

use crate::support::{Cluster, MERGE, pod};
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use koord_apiserver::ApiServer;
use serde_json::{Value, json};

const USAGE: &str = "/apis/metrics.k8s.io/v1beta1";
const METRICS: &str = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics";
/// Start time of these clusters.
const NOW: &str = "2026-03-01T12:00:00Z";

fn amounts(cpu: &str, memory: &str) -> Value {
    json!({"resources": {"cpu": cpu, "memory": memory}})
}

/// A cluster with one node, which reported the pod `one` and the pod `two` with two containers.
async fn measured() -> Cluster {
    let cluster = Cluster::bare().await;
    let server: &ApiServer = &cluster.server;
    server.install_crds(koord_api::crd_values()).await.unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "labels": {"zone": "a"}}});
    cluster
        .post("/api/v1/nodes", node.clone())
        .await
        .expect(201);
    let mut silent = node;
    silent["metadata"]["name"] = "silent".into();
    cluster.post("/api/v1/nodes", silent).await.expect(201);
    let mut two = pod("two");
    two["spec"]["containers"] = json!([
        {"name": "a", "image": "i", "resources": {"requests": {"cpu": "100m", "memory": "1Mi"}}},
        {"name": "b", "image": "i", "resources": {"requests": {"cpu": "300m", "memory": "1Mi"}}},
    ]);
    for mut pod in [pod("one"), two, pod("unmeasured")] {
        pod["spec"]["nodeName"] = "n".into();
        cluster
            .post("/api/v1/namespaces/default/pods", pod)
            .await
            .expect(201);
    }
    let metric = json!({"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": "n"},
        "spec": {"metricCollectPolicy": {"aggregateDurationSeconds": 30}}});
    cluster.post(METRICS, metric).await.expect(201);
    let status = json!({"status": {
    "updateTime": NOW,
    "nodeMetric": {"nodeUsage": amounts("1500m", "2Gi")},
    "podsMetric": [
        {"namespace": "default", "name": "one", "podUsage": amounts("250m", "1Mi")},
        {"namespace": "default", "name": "two", "podUsage": amounts("400m", "3Mi")},
        {"namespace": "default", "name": "gone", "podUsage": amounts("1", "1Gi")},
        {"namespace": "other", "name": "one", "podUsage": amounts("1", "1Gi")},
    ]}});
    cluster
        .patch(&format!("{METRICS}/n/status"), MERGE, status)
        .await
        .expect(200);
    cluster
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|i| i["metadata"]["name"].as_str().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn usage_comes_from_node_metrics() {
    let cluster = measured().await;
    let node = cluster.get(&format!("{USAGE}/nodes/n")).await.expect(200);
    let expected = json!({"kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": "n", "labels": {"zone": "a"}, "creationTimestamp": NOW},
        "timestamp": NOW, "window": "30s",
        "usage": {"cpu": "1500000000n", "memory": "2097152Ki"}});
    assert_eq!(node, expected);
    let nodes = cluster.get(&format!("{USAGE}/nodes")).await.expect(200);
    assert_eq!(nodes["kind"], "NodeMetricsList");
    assert_eq!(
        names(&nodes),
        ["n"],
        "a node without a report is not listed"
    );

    let path = format!("{USAGE}/namespaces/default/pods");
    let pods = cluster.get(&path).await.expect(200);
    assert_eq!(names(&pods), ["one", "two"]);
    assert_eq!(pods["items"][0]["metadata"]["namespace"], "default");
    let usage = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    let containers = json!([{"name": "main", "usage": usage("250000000n", "1024Ki")}]);
    assert_eq!(pods["items"][0]["containers"], containers);
    // Parts in proportion to requests, which add up to the measured usage.
    let two = json!([
        {"name": "a", "usage": usage("100000000n", "1536Ki")},
        {"name": "b", "usage": usage("300000000n", "1536Ki")},
    ]);
    assert_eq!(pods["items"][1]["containers"], two);
    assert_eq!(
        names(&cluster.get(&format!("{USAGE}/pods")).await.expect(200)),
        ["one", "two"]
    );
    for (query, found) in [
        ("labelSelector=app%3Dtwo", vec!["two"]),
        ("fieldSelector=metadata.name%3Done", vec!["one"]),
        ("labelSelector=app%3Dnone", vec![]),
    ] {
        let list = cluster.get(&format!("{path}?{query}")).await.expect(200);
        assert_eq!(names(&list), found, "{query}");
    }
    let message = cluster.get(&format!("{path}/unmeasured")).await;
    let message = message.fails(404, "NotFound");
    assert_eq!(message, "pods.metrics.k8s.io \"unmeasured\" not found");
}

#[tokio::test(start_paused = true)]
async fn usage_is_a_table_for_kubectl_get() {
    let cluster = measured().await;
    let nodes = format!("{USAGE}/nodes");
    for (path, rows) in [
        (&nodes, json!([["n", "1500m", "2Gi", "30s"]])),
        (&format!("{nodes}/n"), json!([["n", "1500m", "2Gi", "30s"]])),
        (
            &format!("{USAGE}/pods"),
            json!([["one", "250m", "1Mi", "30s"], ["two", "400m", "3Mi", "30s"]]),
        ),
    ] {
        let accept = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json";
        let request = Request::builder().uri(path).header("accept", accept);
        let answer = cluster.raw(request.body(Body::empty()).unwrap()).await;
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let table: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(table["kind"], "Table", "{table}");
        let all = |list: &str, member: &str| -> Value {
            let all = table[list].as_array().unwrap().iter();
            all.map(|entry| entry[member].clone()).collect()
        };
        let heads = json!(["Name", "cpu", "memory", "Window"]);
        assert_eq!(all("columnDefinitions", "name"), heads);
        assert_eq!(all("rows", "cells"), rows);
    }
}

#[tokio::test(start_paused = true)]
async fn stale_usage_is_hidden_and_api_is_read_only() {
    let cluster = measured().await;
    let old = json!({"status": {"updateTime": "2026-03-01T11:54:59Z"}});
    let path = format!("{METRICS}/n/status");
    cluster.patch(&path, MERGE, old).await.expect(200);
    let nodes = cluster.get(&format!("{USAGE}/nodes")).await.expect(200);
    assert_eq!(names(&nodes), [""; 0]);
    cluster
        .get(&format!("{USAGE}/nodes/n"))
        .await
        .fails(404, "NotFound");
    for method in ["POST", "DELETE"] {
        let answer = cluster
            .send(method, &format!("{USAGE}/nodes"), "application/json", "{}")
            .await;
        assert_eq!(answer.code, 405, "{method}");
    }
    let watch = cluster.get(&format!("{USAGE}/nodes?watch=true")).await;
    assert_eq!(watch.code, 405);
}
