//! Tests of `koord support-bundle`, against the embedded API server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use flate2::read::GzDecoder;
use jiff::Timestamp;
use koord_apiserver::authz::User;
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, flags::Selection};
use koord_kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use koord_kube::client::in_process;
use koord_kube::kube_core::GroupVersionKind;
use koord_kube::{Api, Client};
use koordctl::cluster_args::ClusterArgs;
use koordctl::support_bundle::{Args, Bundle, bundle, main};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::ExitCode;
use std::sync::Arc;

const NAMESPACE: &str = "koordinator-system";
/// Texts that must not be in a bundle. The second one is the first in base64, as a Secret has it.
const SECRETS: [&str; 3] = ["hunter2-secret", "aHVudGVyMi1zZWNyZXQ=", "hunter3-secret"];

fn args() -> Args {
    Args {
        file: None,
        namespace: NAMESPACE.to_owned(),
        log_lines: 10,
        max_log_pods: 5,
        cluster: ClusterArgs::default(),
        request_timeout: 30,
    }
}

async fn open_server() -> Arc<ApiServer> {
    let mut config = Config::memory(Clock::system());
    config.controllers = Selection::none();
    ApiServer::open(config).await.unwrap()
}

fn api(client: &Client, object: &DynamicObject) -> Api<DynamicObject> {
    let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
    let kind = ApiResource::from_gvk(&kind);
    match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    }
}

async fn create(client: &Client, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let (api, params) = (api(client, &object), PostParams::default());
    api.create(&params, &object).await.unwrap();
}

/// Creates objects with secrets in every place that a bundle removes them from.
async fn fill(client: &Client) {
    let [secret, encoded, other] = SECRETS;
    let container = json!({"name": "main", "image": "i", "args": [format!("--password={secret}")],
        "env": [{"name": "A", "value": secret}]});
    let annotations =
        json!({"kubectl.kubernetes.io/last-applied-configuration": secret, "team": secret});
    let metadata = |name: &str| {
        json!({"name": name, "namespace": NAMESPACE, "annotations": annotations,
            "labels": {"koord-app": "koord-manager"}})
    };
    let labels = json!({"koord-app": "koord-manager"});
    for object in [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("koordinator-webhook-certs"),
            "data": {"tls.key": encoded, "cert.pem": encoded}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("slo-controller-config"),
            "data": {"colocation-config": "{\"enable\":true}"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("koord-scheduler-config"),
            "data": {"config": format!("a: b\ntoken: {other}\n")}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("unrelated"),
            "data": {"a": other}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("koord-manager"),
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"containers": [container]}}}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata("koord-manager-a"),
            "spec": {"containers": [container]}}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": metadata("e"),
            "involvedObject": {"kind": "Pod", "name": "koord-manager-a", "namespace": NAMESPACE},
            "reason": "Failed", "message": format!("Authorization: Bearer {other}")}),
        json!({"apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile",
            "metadata": {"name": "p"}, "spec": {"qosClass": "BE", "annotations": {"key": secret},
                "patch": {"spec": {"containers": [container]}}}}),
    ] {
        create(client, object).await;
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata("koord-manager-a")});
    let pod: DynamicObject = serde_json::from_value(pod).unwrap();
    let status = json!({"status": {"containerStatuses": [{"name": "main", "image": "i", "imageID": "i",
        "ready": false, "restartCount": 1}]}});
    let pods = api(client, &pod);
    let patch = Patch::Merge(&status);
    let params = PatchParams::default();
    pods.patch_status("koord-manager-a", &params, &patch)
        .await
        .unwrap();
}

fn unpack(bundle: &Bundle) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(bundle.archive.as_slice()));
    let entries = archive.entries().unwrap();
    entries
        .map(|entry| {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let path = entry.path().unwrap().display().to_string();
            let path = path.strip_prefix("koord-support-bundle/").unwrap();
            (path.to_owned(), text)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bundle_has_everything_but_secrets() {
    let server = open_server().await;
    server.install_crds(koord_api::crd_values()).await.unwrap();
    let client = in_process(server.service());
    fill(&client).await;
    let collected = bundle(client, &args(), Timestamp::now()).await.unwrap();
    let files = unpack(&collected);
    for (path, text) in &files {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{path}: {text}");
        }
        assert!(!text.contains("\"kind\": \"Secret\""), "{path}: {text}");
    }
    for (path, part) in [
        ("koord/clustercolocationprofiles.json", "\"name\": \"p\""),
        ("koord/recommendations.json", "\"items\": []"),
        ("namespace/configmaps.json", "{\\\"enable\\\":true}"),
        ("namespace/configmaps.json", "a: b\\ntoken: REDACTED"),
        ("namespace/deployments.json", "--password=REDACTED"),
        ("namespace/events.json", "Bearer REDACTED"),
        ("namespace/pods.json", "koord-manager-a"),
        ("reports/check.txt", "ok       A-01  API server"),
        ("reports/check.json", "\"success\""),
        ("reports/status.txt", "koord-manager: 0 of 0 ready"),
        ("reports/top-nodes.txt", "NAME"),
        ("reports/top-pods.txt", "koordinator-system/koord-manager-a"),
        ("versions.json", "\"apps/v1\""),
        ("manifest.json", "Secrets are not read"),
    ] {
        assert!(files[path].contains(part), "{path}: {}", files[path]);
    }
    assert!(!files["namespace/configmaps.json"].contains("unrelated"));
    // The pod runs nowhere, so that its logs cannot be read.
    let logs = [
        "logs/koord-manager-a/main.log",
        "logs/koord-manager-a/main.previous.log",
    ];
    assert_eq!(
        collected.failures.len(),
        logs.len(),
        "{:?}",
        collected.failures
    );
    let manifest: Value = serde_json::from_str(&files["manifest.json"]).unwrap();
    for (failure, log) in manifest["failures"].as_array().unwrap().iter().zip(logs) {
        assert!(failure.as_str().unwrap().starts_with(log), "{failure}");
    }
    let listed = manifest["files"].as_array().unwrap().len();
    assert_eq!((listed + 1, collected.files), (files.len(), files.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_that_are_absent_or_forbidden_are_listed() {
    let server = open_server().await;
    let collected = bundle(in_process(server.service()), &args(), Timestamp::now()).await;
    let collected = collected.unwrap();
    assert_eq!(collected.failures, Vec::<String>::new());
    let manifest: Value = serde_json::from_str(&unpack(&collected)["manifest.json"]).unwrap();
    let absent = manifest["notServed"].as_array().unwrap();
    assert!(
        absent.contains(&json!("nodeslos.slo.koordinator.sh")),
        "{manifest}"
    );

    let reader = server.service_as(User::new("reader", ["system:authenticated"]), |_, _| ());
    let collected = bundle(in_process(reader), &args(), Timestamp::now()).await;
    let collected = collected.unwrap();
    let expected = "cluster/nodes.json: needs list nodes".to_owned();
    assert!(
        collected.failures.contains(&expected),
        "{:?}",
        collected.failures
    );
    let files = unpack(&collected);
    assert!(files["manifest.json"].contains(&expected));
    assert!(!files.contains_key("cluster/nodes.json"));
}

#[test]
fn unreachable_cluster_gives_exit_code_2_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (kubeconfig, file) = (dir.path().join("kubeconfig"), dir.path().join("bundle"));
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        // Port 1 of the loopback address: nothing listens there.
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    let args = Args {
        file: Some(file.clone()),
        cluster: ClusterArgs {
            kubeconfig: Some(kubeconfig),
            ..ClusterArgs::default()
        },
        ..args()
    };
    assert_eq!(main(&args).unwrap(), ExitCode::from(2));
    assert!(!file.exists());
}
