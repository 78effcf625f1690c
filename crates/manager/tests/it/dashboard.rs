//! The dashboard of a manager: its content, and that it is for authorized clients only.

use crate::cluster::{Cluster, typed};
use axum::Extension;
use axum::http::Request;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use koord_api::scheduling::PodMigrationJob;
use koord_api::slo::NodeMetric;
use koord_app::local::RouteServer;
use koord_host::testing::eventually_within;
use koord_kube::api::PostParams;
use koord_kube::guard::{ClientIdentity, Guard, GuardOptions};
use koord_kube::{Api, Client, Error, patch};
use koord_manager::Options;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc;

const STATE: &str = "/dashboard/api/v1/state";

/// Sends a request to the manager's port; returns the body, or the status code of a refusal.
async fn get(port: &Client, path: &str, token: &str) -> Result<String, u16> {
    let mut request = Request::get(path);
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let answer = port.request_text(request.body(Vec::new()).unwrap()).await;
    answer.map_err(|error| match error {
        Error::Api(status) => status.code,
        other => panic!("{path}: {other}"),
    })
}

/// Reads the state until `accept` returns true.
async fn state_when(port: &Client, path: &str, accept: impl Fn(&Value) -> bool) -> Value {
    eventually_within(Duration::from_secs(100), "the state", async || {
        let text = get(port, path, "").await.unwrap();
        let state = serde_json::from_str(&text).unwrap();
        Some(state).filter(&accept)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn dashboard_shows_the_cluster_to_authorized_clients() {
    let cluster = Cluster::start().await;
    cluster
        .configure(json!({"colocation-config": "{\"enable\": true}"}))
        .await;
    cluster.add_node("n1", json!({}), "16", "32Gi").await;
    // A name of an object cannot have markup, but texts can.
    let message = "<script>alert(1)</script>";
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let pod = json!({"metadata": {"name": "waits"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod: Pod = pods
        .create(&PostParams::default(), &typed(pod))
        .await
        .unwrap();
    let status = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": message}]}});
    let name = pod.metadata.name.unwrap();
    patch::merge_status(&pods, &name, &status).await.unwrap();

    let (sender, mut routes) = mpsc::unbounded_channel();
    let options = Options {
        secure_server: Some(RouteServer::new(move |routes| {
            drop(sender.send(routes));
        })),
        ..Options::default()
    };
    // With all rights: those of its role do not include events and jobs.
    let running = koord_manager::run(options, cluster.client.clone(), cluster.ctx.clone());
    tokio::spawn(async move { running.await.unwrap() });
    let routes = routes.recv().await.unwrap();
    let mut metrics = cluster.watch::<NodeMetric>();
    metrics.until("a NodeMetric", |_| Some(())).await;
    cluster.report("n1", ("4", "8Gi"), ("1", "2Gi")).await;
    let jobs: Api<PodMigrationJob> = Api::all(cluster.client.clone());
    let job = json!({"metadata": {"name": "move"},
        "spec": {"podRef": {"namespace": "default", "name": "waits"}}});
    jobs.create(&PostParams::default(), &typed(job))
        .await
        .unwrap();
    let client = || Some(cluster.client.clone());
    let guard = Guard::new(&GuardOptions::default(), client(), client()).unwrap();
    let routes = guard.protect(routes);
    let routes = routes.layer(Extension(ClientIdentity::from_certificate(None)));
    let port = koord_kube::client::in_process(routes);

    for path in ["/dashboard/", "/dashboard/dashboard.js", STATE, "/metrics"] {
        assert_eq!(get(&port, path, "").await, Err(403), "{path}");
        assert_eq!(get(&port, path, "invalid").await, Err(401), "{path}");
    }
    let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    let role = json!({"metadata": {"name": "viewer"}, "rules": [
        {"nonResourceURLs": ["/dashboard", "/dashboard/*"], "verbs": ["get"]}]});
    roles
        .create(&PostParams::default(), &typed(role))
        .await
        .unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client.clone());
    let binding = json!({"metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
            "name": "system:unauthenticated"}]});
    bindings
        .create(&PostParams::default(), &typed(binding))
        .await
        .unwrap();

    let state = state_when(&port, STATE, |state| {
        state["cluster"]["reporting"] == 1 && state["pending"]["total"] == 1
    })
    .await;
    assert_eq!(state["hot"][0]["name"], "n1");
    assert_eq!(state["pending"]["pods"][0]["message"], message);
    let column = |name: &str| {
        let columns = state["history"]["columns"].as_array().unwrap();
        columns.iter().position(|column| column == name).unwrap()
    };
    let rows = state["history"]["cpu"].as_array().unwrap();
    assert_eq!(rows[rows.len() - 1][column("capacity")], 16.0);
    assert_eq!(state["node"], Value::Null);
    let selected = format!("{STATE}?node=n1");
    let state = state_when(&port, &selected, |state| !state["node"].is_null()).await;
    let batch = &state["node"]["resources"][0];
    assert_eq!(batch["name"], "kubernetes.io/batch-cpu");
    assert!(batch["terms"].as_array().unwrap().len() > 2, "{batch}");
    assert_eq!(state["events"]["error"], Value::Null);
    assert_eq!(state["moves"]["error"], Value::Null);
    let moves = state_when(&port, STATE, |state| !state["moves"]["items"][0].is_null()).await;
    assert_eq!(moves["moves"]["items"][0]["pod"], "default/waits");
    let page = get(&port, "/dashboard/", "").await.unwrap();
    assert!(page.contains("<h1>koord</h1>"), "{page}");
    assert_eq!(get(&port, "/metrics", "").await, Err(403));
    assert_eq!(get(&port, "/dashboard/none", "").await, Err(404));
}
