//! Preemption, explanations and the HTTP service against the embedded API server.

use crate::api::{Scheduler, TestCluster, allocatable};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_app::admin::{Admin, Exposure};
use koord_kube::Api;
use koord_kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn create(cluster: &TestCluster, name: &str, cpu: &str, priority: i32, app: &str) {
    let class = format!("{name}-class");
    let object: PriorityClass = serde_json::from_value(json!({
        "metadata": {"name": class}, "value": priority
    }))
    .unwrap();
    let classes: Api<PriorityClass> = Api::all(cluster.client.clone());
    classes
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priorityClassName": class,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "resources": {
                "requests": {"cpu": cpu}, "limits": {"cpu": cpu}
            }}]
        }
    }))
    .unwrap();
    let params = PostParams::default();
    cluster.pods().create(&params, &pod).await.unwrap();
}

/// Sends a request. Returns its status code and body.
pub(crate) async fn send_request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().to_owned();
    (code, body.to_owned())
}

pub(crate) async fn serve(scheduler: &Scheduler) -> SocketAddr {
    let admin = Admin::new(scheduler.metrics.clone()).with_routes(scheduler.debug.router());
    let any = "127.0.0.1:0".parse().unwrap();
    let stop = scheduler.stop.clone();
    admin.serve(any, Exposure::Loopback, stop).await.unwrap()
}

pub(crate) async fn page(address: SocketAddr, path: &str) -> Value {
    let (code, body) = send_request(address, "GET", path, "").await;
    assert_eq!(code, "200", "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn important_pod_preempts_the_right_victims() {
    let cluster = TestCluster::start().await;
    cluster.node("n1", allocatable("4"), json!([])).await;
    cluster.node("n2", allocatable("4"), json!([])).await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), "default");
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}
    }))
    .unwrap();
    let params = PostParams::default();
    budgets.create(&params, &budget).await.unwrap();
    let status = json!({"status": {"disruptionsAllowed": 0, "currentHealthy": 1,
        "desiredHealthy": 1, "expectedPods": 1}});
    budgets
        .patch_status("db", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    let scheduler = cluster.schedule(|_| {});
    // Two nodes are full: one with the protected pod, one with more important pods.
    create(&cluster, "protected", "3", 0, "db").await;
    let guarded = cluster.bound("protected").await;
    create(&cluster, "plain", "3", 5, "web").await;
    let open = cluster.bound("plain").await;
    assert_ne!(guarded, open);

    create(&cluster, "urgent", "3", 1000, "urgent").await;
    let event = cluster.event("Preempted", "plain").await;
    assert!(event.starts_with("Preempted by pod ") && event.ends_with(&open));
    assert_eq!(cluster.bound("urgent").await, open, "where room was made");
    assert!(cluster.pods().get("protected").await.is_ok());
    assert!(cluster.pods().get_opt("plain").await.unwrap().is_none());
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_explained_over_http_and_only_by_the_leader() {
    let cluster = TestCluster::start().await;
    cluster.node("n1", allocatable("4"), json!([])).await;
    cluster.node("n2", allocatable("2"), json!([])).await;
    let scheduler = cluster.schedule(|options| options.nearest_in_conditions = true);
    let address = serve(&scheduler).await;
    create(&cluster, "small", "1", 0, "web").await;
    let home = cluster.bound("small").await;
    create(&cluster, "large", "6", 0, "web").await;
    let message = cluster
        .until("the condition", |pod: &Pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let message = conditions.iter().find_map(|c| c.message.clone())?;
            message.contains("Nearest: ").then_some(message)
        })
        .await;
    assert!(
        message.starts_with("0/2 nodes are available: 2 Insufficient cpu."),
        "{message}"
    );
    assert!(message.contains("n1 (cpu: needs 6, free "), "{message}");

    let large = page(address, "/debug/scheduler/pods/default/large").await;
    assert_eq!(large["state"], "pending");
    assert_eq!(large["queue"]["refusedBy"], json!(["NodeResourcesFit"]));
    assert_eq!(large["nearest"].as_array().unwrap().len(), 2);
    assert_eq!(large["lastAttempt"]["diagnosis"]["refusals"][0]["nodes"], 2);
    let small = page(address, "/debug/scheduler/pods/default/small").await;
    assert_eq!(small["node"], home);
    assert_eq!(small["decision"]["feasible"], 2);
    assert_eq!(small["decision"]["ranking"][0]["node"], home);
    assert_eq!(
        send_request(address, "GET", "/debug/scheduler/pods/default/none", "")
            .await
            .0,
        "404"
    );

    let services = page(address, "/apis/v1/__services__").await;
    let paths = services["GET"].as_array().unwrap();
    assert!(
        paths.contains(&json!("/apis/v1/nodes/:nodeName")),
        "{paths:?}"
    );
    let shown = page(address, "/apis/v1/nodes/n1").await;
    assert_eq!(shown["node"]["metadata"]["name"], "n1");
    let (code, body) = send_request(address, "GET", "/apis/v1/nodes/none", "").await;
    assert_eq!(
        (code.as_str(), body.contains("cannot find node none")),
        ("404", true)
    );
    assert_eq!(
        send_request(address, "GET", "/apis/v1/plugins/NodeName/x", "")
            .await
            .0,
        "404"
    );
    let config = page(address, "/configz").await;
    assert_eq!(config["componentconfig"]["Parallelism"], 16, "{config}");
    let (_, resources) = send_request(address, "GET", "/metrics/resources", "").await;
    let line = format!(
        "kube_pod_resource_request{{namespace=\"default\",pod=\"small\",node=\"{home}\",\
         scheduler=\"koord-scheduler\",priority=\"0\",resource=\"cpu\",unit=\"cores\"}} 1"
    );
    assert!(resources.contains(&line), "{resources}");
    for (flag, value, code, text) in [
        ("s", "5", "200", "successfully set debugTopNScores to 5"),
        (
            "f",
            "true",
            "200",
            "successfully set debugFilterFailure to true",
        ),
        (
            "db",
            "true",
            "200",
            "successfully set debugFilterFailure to true",
        ),
        ("d", "maybe", "400", "failed set debugFilterFailure maybe: "),
        ("s", "many", "400", "failed set debugTopNScores many: "),
        ("x", "1", "404", "404 page not found"),
    ] {
        let path = format!("/debug/flags/{flag}");
        let answer = send_request(address, "PUT", &path, value).await;
        assert_eq!(answer.0, code, "{flag}");
        assert!(answer.1.starts_with(text), "{flag}: {}", answer.1);
    }
    let answer = send_request(address, "GET", "/debug/flags/s", "").await;
    assert_eq!(answer, ("406".into(), "unsupported http method".into()));
    let (code, listed) = send_request(address, "GET", "/debug/flags", "").await;
    assert!(code == "200" && listed.contains("db"), "{listed}");

    // A standby has no explanations.
    let waiting = koord_scheduler::DebugHandle::default();
    let admin = Admin::new(prometheus::Registry::new()).with_routes(waiting.router());
    let any = "127.0.0.1:0".parse().unwrap();
    let stop = scheduler.stop.clone();
    let other = admin.serve(any, Exposure::Loopback, stop).await.unwrap();
    let (code, body) = send_request(other, "GET", "/apis/v1/nodes/n1", "").await;
    assert_eq!(code, "503");
    assert_eq!(body, r#"{"message":"the instance is not leader"}"#);
    let silent = send_request(other, "GET", "/metrics/resources", "").await;
    assert_eq!(silent, ("200".into(), String::new()));
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim_gets_disruption_condition_before_deletion() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    let scheduler = cluster.schedule(|_| {});
    // It has its grace period to terminate.
    cluster.pod("victim", json!({"cpu": "3"})).await;
    assert_eq!(cluster.bound("victim").await, "n");
    create(&cluster, "urgent", "3", 1000, "urgent").await;
    let condition = cluster
        .until("the victim's condition", |pod: &Pod| {
            let named = pod.metadata.name.as_deref() == Some("victim");
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let condition = conditions.iter().find(|c| c.type_ == "DisruptionTarget")?;
            (named && pod.metadata.deletion_timestamp.is_some()).then(|| condition.clone())
        })
        .await;
    assert_eq!(condition.status, "True");
    assert_eq!(condition.reason.as_deref(), Some("PreemptionByScheduler"));
    assert_eq!(
        condition.message.as_deref(),
        Some("koord-scheduler: preempting to accommodate a higher priority pod")
    );
    scheduler.stop().await;
}
