//! Tests of `koord explain` of objects, against the embedded API server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use koord_apiserver::authz::User;
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, flags::Selection};
use koord_kube::api::{ApiResource, DynamicObject, PostParams};
use koord_kube::client::in_process;
use koord_kube::kube_core::GroupVersionKind;
use koord_kube::{Api, Client};
use koordctl::explain::{self, Args};
use serde_json::{Value, json};
use std::sync::Arc;

async fn open_server() -> Arc<ApiServer> {
    let mut config = Config::memory(Clock::system());
    config.controllers = Selection::none();
    let server = ApiServer::open(config).await.unwrap();
    server.install_crds(koord_api::crd_values()).await.unwrap();
    server
}

async fn create(client: &Client, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
    let kind = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    api.create(&PostParams::default(), &object).await.unwrap();
}

fn pod(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}]}})
}

fn args(words: &[&str]) -> Args {
    Args {
        what: words.iter().map(|word| (*word).to_owned()).collect(),
        ..Args::default()
    }
}

/// Returns title and problems of an explanation.
async fn explained(client: &Client, words: &[&str]) -> (String, String) {
    let answer = explain::object(client.clone(), &args(words)).await.unwrap();
    let problems = answer["problems"].as_array().unwrap();
    let problems: Vec<&str> = problems.iter().map(|it| it.as_str().unwrap()).collect();
    (
        answer["title"].as_str().unwrap().to_owned(),
        problems.join("; "),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_explained_from_what_the_cluster_stores() {
    let server = open_server().await;
    let client = in_process(server.service());
    for object in [
        json!({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {"name": "team", "namespace": "default"},
            "spec": {"min": {"cpu": "1"}, "max": {"cpu": "1"}}}),
        json!({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": "pair", "namespace": "default"}, "spec": {"minMember": 2}}),
        json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
            "metadata": {"name": "r"}, "spec": {"ttl": "1h",
                "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
                "template": {"spec": {"schedulerName": "koord-scheduler",
                    "containers": [{"name": "c", "image": "i"}]}}}}),
        json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": "n"}, "spec": {"devices": [{"type": "gpu", "minor": 0, "health": true,
                "resources": {"koordinator.sh/gpu-core": "100"}}]}}),
        json!({"apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile",
            "metadata": {"name": "batch"}, "spec": {"selector": {"matchLabels": {"app": "job"}},
                "qosClass": "BE"}}),
        pod(
            "web",
            json!({"app": "web", "quota.scheduling.koordinator.sh/name": "team",
                "pod-group.scheduling.sigs.k8s.io": "pair"}),
        ),
    ] {
        create(&client, object).await;
    }
    for (words, title, problem) in [
        (
            &["quota", "team"][..],
            "quota team of namespace default: 0 pods on nodes, 1 pending",
            "no runtime quota is published",
        ),
        (
            &["gang/pair"],
            "gang default/pair: needs 2 pods, has 1: 0 bound, 1 waiting for a node",
            "1 pod missing",
        ),
        (
            &["reservation", "r"],
            "reservation r is Pending",
            "no scheduler has tried it",
        ),
        (&["device/n"], "devices of node n: 1 gpu", ""),
        (
            &["profile", "batch", "web"],
            "profile batch does not match pod default/web",
            "the pod needs app=job, it has app=web",
        ),
    ] {
        let (actual, problems) = explained(&client, words).await;
        assert_eq!(actual, title);
        assert!(problems.contains(problem), "{words:?}: {problems}");
    }
    for words in [&["quota", "lost"][..], &["gang", "lost"], &["device", "m"]] {
        let missing = explain::object(client.clone(), &args(words)).await;
        let text = format!("{:#}", missing.unwrap_err());
        assert!(text.contains("there is no "), "{text}");
    }
    let reader = server.service_as(User::new("reader", ["system:authenticated"]), |_, _| ());
    let refused = explain::object(in_process(reader), &args(&["quota", "team"])).await;
    let text = format!("{:#}", refused.unwrap_err());
    assert!(
        text.contains("needs list elasticquotas.scheduling.sigs.k8s.io"),
        "{text}"
    );
}
