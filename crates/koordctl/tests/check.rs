//! Tests of `koord check` and of `koord status` of a cluster, against the embedded API server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use koord_apiserver::authz::User;
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, flags::Selection};
use koord_kube::client::in_process;
use koordctl::check::{self, Args};
use koordctl::cluster_args::ClusterArgs;
use koordctl::status;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

fn args() -> Args {
    Args {
        cluster: ClusterArgs::default(),
        namespace: "koordinator-system".to_owned(),
        output: "table".to_owned(),
        only: Vec::new(),
        skip: Vec::new(),
        max_kubelets: 1,
        request_timeout: 30,
    }
}

async fn open_server() -> Arc<ApiServer> {
    let mut config = Config::memory(Clock::system());
    config.controllers = Selection::none();
    ApiServer::open(config).await.unwrap()
}

/// Returns the result of the check `id` and its findings.
fn outcome(results: &Value, id: &str) -> (String, String) {
    let checks = results["checks"].as_array().unwrap();
    let found = checks.iter().find(|it| it["id"] == id).unwrap();
    let findings = found["findings"].as_array().unwrap();
    let findings: Vec<&str> = findings.iter().map(|it| it.as_str().unwrap()).collect();
    (
        found["result"].as_str().unwrap().to_owned(),
        findings.join("; "),
    )
}

fn result(results: &Value, id: &str) -> String {
    outcome(results, id).0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_cluster_lacks_components_and_definitions() {
    let server = open_server().await;
    let results = check::check(in_process(server.service()), &args()).await;
    assert_eq!(results["success"], false);
    assert_eq!(result(&results, "A-01"), "ok");
    let (manager, text) = outcome(&results, "C-01");
    assert_eq!(manager, "failed");
    assert!(text.contains("no Deployment koord-manager"), "{text}");
    assert_eq!(result(&results, "D-01"), "failed");
    let (metrics, text) = outcome(&results, "N-03");
    assert_eq!(metrics, "skipped");
    assert!(
        text.contains("nodemetrics.slo.koordinator.sh not served"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_definitions_prune_nothing() {
    let server = open_server().await;
    server.install_crds(koord_api::crd_values()).await.unwrap();
    let results = check::check(in_process(server.service()), &args()).await;
    for id in ["D-01", "D-02", "D-03", "S-02"] {
        assert_eq!(result(&results, id), "ok", "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permission_is_named_and_the_check_skipped() {
    let server = open_server().await;
    let user = User::new("reader", ["system:authenticated"]);
    let service = server.service_as(user, |_, _| ());
    let results = check::check(in_process(service), &args()).await;
    assert_eq!(result(&results, "A-01"), "ok");
    assert_eq!(
        outcome(&results, "N-03"),
        ("skipped".to_owned(), "needs list nodes".to_owned())
    );
    assert_eq!(results["success"], true, "{results}");
}

#[test]
fn unreachable_cluster_gives_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        // Port 1 of the loopback address: nothing listens there.
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    let args = Args {
        cluster: ClusterArgs {
            kubeconfig: Some(kubeconfig),
            ..ClusterArgs::default()
        },
        ..args()
    };
    assert_eq!(check::main(&args).unwrap(), ExitCode::from(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_cluster_has_a_report() {
    let server = open_server().await;
    let client = in_process(server.service());
    let report = status::report(client, Duration::from_secs(30)).await;
    let text = status::render(&report.unwrap());
    assert!(text.starts_with("Kubernetes v"), "{text}");
    assert!(text.contains("components: none\n"), "{text}");
    assert!(
        text.contains("nodes: 0, 0 ready, 0 with batch resources\npods: none\n"),
        "{text}"
    );
}
