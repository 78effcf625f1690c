//! Every verb and subresource passes admission exactly once.

use super::AdmissionAttributes;
use crate::{ApiServer, Config};
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use koord_app::Clock;
use koord_kinds::status::qualified;
use serde_json::{Value, json};
use std::sync::Arc;
use tower::ServiceExt as _;

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const BINDING: &str = "/api/v1/namespaces/default/pods/p/binding";

/// Returns the text that tests compare: operation, resource, namespace, name, user and whether it is a dry
/// run.
pub(super) fn line(attributes: &AdmissionAttributes<'_>) -> String {
    let resource = qualified(&attributes.resource.plural, &attributes.resource.group);
    let sub = attributes.subresource;
    format!(
        "{} {resource}{}{sub} {}/{} by {}{}",
        attributes.operation.as_str(),
        if sub.is_empty() { "" } else { "/" },
        attributes.namespace,
        attributes.name,
        attributes.user().name,
        if attributes.dry_run() { " dry" } else { "" },
    )
}

struct TestCluster(Arc<ApiServer>);

impl TestCluster {
    async fn bare() -> Self {
        let clock = Clock::following_tokio("2026-03-01T12:00:00Z".parse().unwrap());
        let mut config = Config::memory(clock);
        config.controllers = koord_app::flags::Selection::none();
        Self(ApiServer::open(config).await.unwrap())
    }

    /// Sends a request and returns its code and the writes that passed admission meanwhile.
    async fn send(&self, method: &str, path: &str, kind: &str, body: Value) -> (u16, Vec<String>) {
        self.0.api().admission().admitted.lock().clear();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(Body::from(body.to_string()))
            .unwrap();
        let response = self.0.service().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(
            code < 300,
            "{method} {path}: {}",
            String::from_utf8_lossy(&body)
        );
        (code, self.0.api().admission().admitted.lock().clone())
    }
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "p"}},
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}]}})
}

fn deployment() -> Value {
    json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}},
            "spec": {"containers": [{"name": "main", "image": "busybox:1"}]}}}})
}

#[tokio::test(start_paused = true)]
async fn every_verb_and_subresource_passes_once() {
    let cluster = TestCluster::bare().await;
    let json = "application/json";
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 0,
        "selector": {"matchLabels": {"app": "p"}}}});
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let replicas = json!({"spec": {"replicas": 2}});
    let status = json!({"status": {"phase": "Running"}});
    let budget_status = json!({"status": {"disruptionsAllowed": 1, "currentHealthy": 1,
        "observedGeneration": 1, "desiredHealthy": 0, "expectedPods": 1}});
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let to = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let node = json!({"metadata": {"name": "n"}});
    let named = |name: &str| json!({"metadata": {"name": name}});
    let collection = "/api/v1/namespaces/default/configmaps";
    let item = "/api/v1/namespaces/default/configmaps/a";
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    #[rustfmt::skip]
    let rows: Vec<(&str, String, &str, Value, &str)> = vec![
        ("POST", "/api/v1/nodes".into(), json, node, "CREATE nodes /n"),
        ("PATCH", "/api/v1/nodes/n".into(), MERGE, label.clone(), "UPDATE nodes /n"),
        ("PATCH", "/api/v1/nodes/n/status".into(), MERGE, label.clone(), "UPDATE nodes/status /n"),
        ("POST", "/api/v1/namespaces".into(), json, named("x"), "CREATE namespaces x/x"),
        ("PATCH", "/api/v1/namespaces/x".into(), MERGE, label.clone(), "UPDATE namespaces x/x"),
        ("POST", PODS.into(), json, pod("p"), "CREATE pods default/p"),
        ("POST", PODS.into(), json, json!({"metadata": {"generateName": "g-"}, "spec": pod("")["spec"]}),
            "CREATE pods default/"),
        ("PATCH", format!("{PODS}/p"), MERGE, label.clone(), "UPDATE pods default/p"),
        ("PATCH", format!("{PODS}/p/ephemeralcontainers"), MERGE, json!({}), "UPDATE pods/ephemeralcontainers default/p"),
        ("POST", BINDING.into(), json, to, "CREATE pods/binding default/p"),
        ("PATCH", format!("{PODS}/p/status"), MERGE, status, "UPDATE pods/status default/p"),
        ("PATCH", format!("{PODS}/p/status"), MERGE, ready, "UPDATE pods/status default/p"),
        ("POST", budgets.into(), json, budget, "CREATE poddisruptionbudgets.policy default/b"),
        ("PATCH", format!("{budgets}/b/status"), MERGE, budget_status,
            "UPDATE poddisruptionbudgets.policy/status default/b"),
        ("POST", format!("{PODS}/p/eviction"), json, named("p"), "CREATE pods/eviction default/p"),
        ("DELETE", format!("{PODS}/p?gracePeriodSeconds=0"), json, Value::Null, "DELETE pods default/p"),
        ("POST", DEPLOYMENTS.into(), json, deployment(), "CREATE deployments.apps default/d"),
        ("PUT", format!("{DEPLOYMENTS}/d/scale"), json, replicas.clone(), "UPDATE deployments.apps/scale default/d"),
        ("PATCH", format!("{DEPLOYMENTS}/d/scale"), MERGE, replicas, "UPDATE deployments.apps/scale default/d"),
        ("PATCH", format!("{item}?fieldManager=m"), APPLY, apply.clone(), "CREATE configmaps default/a"),
        ("PATCH", format!("{item}?fieldManager=m"), APPLY, apply, "UPDATE configmaps default/a"),
        ("PUT", item.into(), json, named("a"), "UPDATE configmaps default/a"),
        ("PUT", format!("{item}?dryRun=All"), json, named("a"), "UPDATE configmaps default/a dry"),
        ("POST", format!("{collection}?dryRun=All"), json, named("b"), "CREATE configmaps default/b dry"),
        ("DELETE", format!("{item}?dryRun=All"), json, Value::Null, "DELETE configmaps default/a dry"),
        ("DELETE", collection.into(), json, Value::Null, "DELETE configmaps default/a"),
        ("PUT", format!("{leases}/l"), json, named("l"), "CREATE leases.coordination.k8s.io default/l"),
        ("DELETE", "/api/v1/namespaces/x".into(), json, Value::Null, "DELETE namespaces x/x"),
        ("PUT", "/api/v1/namespaces/x/finalize".into(), json, named("x"), "UPDATE namespaces/finalize x/x"),
    ];
    for (method, path, kind, body, expected) in rows {
        let (_, passed) = cluster.send(method, &path, kind, body).await;
        let expected = match expected.strip_suffix(" dry") {
            Some(front) => format!("{front} by kubernetes-admin dry"),
            None => format!("{expected} by kubernetes-admin"),
        };
        assert_eq!(passed, [expected], "{method} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn legacy_binding_is_a_resource() {
    let cluster = TestCluster::bare().await;
    let json = "application/json";
    cluster.send("POST", PODS, json, pod("p")).await;
    let to = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let bindings = "/api/v1/namespaces/default/bindings";
    let (code, passed) = cluster.send("POST", bindings, json, to).await;
    assert_eq!(code, 201);
    assert_eq!(passed, ["CREATE bindings default/p by kubernetes-admin"]);
}

#[tokio::test(start_paused = true)]
async fn controllers_pass_too() {
    let cluster = TestCluster::bare().await;
    let api = cluster.0.api();
    let json = "application/json";
    let owned_rules = json!({"metadata": {"name": "a", "finalizers": ["orphan"]}});
    let maps = "/api/v1/namespaces/default/configmaps";
    cluster.send("POST", maps, json, owned_rules).await;
    let resource = api.builtin("", "v1", "configmaps").unwrap();
    let key = crate::store::Key::new("default", "a");
    api.admission().admitted.lock().clear();
    api.drop_finalizer(&resource, &key, "orphan").await.unwrap();
    // The second time there is nothing to change, so admission does not run.
    api.drop_finalizer(&resource, &key, "orphan").await.unwrap();
    assert_eq!(
        *api.admission().admitted.lock(),
        ["UPDATE configmaps default/a by system:kube-controller-manager"]
    );
}

#[tokio::test(start_paused = true)]
async fn pods_get_account_priority_and_tolerations() {
    let cluster = TestCluster::bare().await;
    cluster
        .send("POST", PODS, "application/json", pod("p"))
        .await;
    let resource = cluster.0.api().builtin("", "v1", "pods").unwrap();
    let key = crate::store::Key::new("default", "p");
    let pod = cluster.0.api().entry(&resource, &key).unwrap().value();
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    assert_eq!(pod["spec"]["serviceAccount"], "default");
    assert_eq!(pod["spec"]["priority"], 0);
    let tolerated: Vec<&Value> = pod["spec"]["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["key"])
        .collect();
    assert_eq!(
        tolerated,
        [
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable"
        ]
    );
}
