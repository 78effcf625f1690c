//! Annotations that koordlet applies as root, written by tenants and by permitted users.

use crate::cluster::Cluster;
use crate::pods::{admit, deps, deps_with, pod, request};
use koord_kube::webhook::{Operation, Request, Verdict};
use koord_manager::webhook::Deps;
use koord_manager::webhook::pod::AnnotationPolicy;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const OOM: &str = "koordinator.sh/oom-score-adj";
const STATUS: &str = "scheduling.koordinator.sh/resource-status";
const EXTENDED: &str = "node.koordinator.sh/extended-resource-spec";

fn annotated(annotations: Value) -> Value {
    let mut pod = pod("p");
    pod["metadata"]["annotations"] = annotations;
    pod
}

fn by(mut request: Request, user: &str) -> Request {
    user.clone_into(&mut request.user.name);
    request
}

async fn create(deps: &Deps, user: &str, annotations: Value) -> Verdict {
    let request = request(Operation::Create, Some(annotated(annotations)), None);
    admit(deps, "/mutate-pod", by(request, user)).await
}

async fn update(deps: &Deps, user: &str, old: Value, new: Value) -> Verdict {
    let (new, old) = (annotated(new), annotated(old));
    let request = request(Operation::Update, Some(new), Some(old));
    admit(deps, "/validate-pod", by(request, user)).await
}

fn assert_refused(verdict: &Verdict, key: &str) {
    assert!(
        !verdict.allowed && verdict.code == 403,
        "{key}: {verdict:?}"
    );
    let field = format!("metadata.annotations[{key}]: Forbidden");
    assert!(verdict.message.contains(&field), "{verdict:?}");
}

/// Verifies the user of the request: for a pod of a ReplicaSet that is the controller, not the author of the
/// template.
#[tokio::test(start_paused = true)]
async fn protected_annotations_of_new_pods_are_refused() {
    let cluster = Cluster::start().await;
    let deps = deps(&cluster, "");
    let controller = "system:serviceaccount:kube-system:replicaset-controller";
    for user in ["jane", controller, "system:kube-controller-manager"] {
        for (key, value) in [(OOM, "-1000"), (STATUS, r#"{"cpuset":"0-3"}"#)] {
            assert_refused(&create(&deps, user, json!({key: value})).await, key);
        }
        assert!(create(&deps, user, json!({"app": "x"})).await.allowed);
    }
    let verdict = create(&deps, "system:kube-scheduler", json!({OOM: "-1000"})).await;
    assert!(verdict.allowed, "{verdict:?}");
}

#[tokio::test(start_paused = true)]
async fn protected_annotations_may_not_change_but_stay() {
    let cluster = Cluster::start().await;
    let deps = deps(&cluster, "");
    let (none, low, high) = (json!({}), json!({OOM: "-1000"}), json!({OOM: "500"}));
    for (old, new) in [(&none, &low), (&low, &high), (&low, &none)] {
        let verdict = update(&deps, "jane", old.clone(), new.clone()).await;
        assert_refused(&verdict, OOM);
        let scheduler = "system:serviceaccount:koordinator-system:koord-scheduler";
        let verdict = update(&deps, scheduler, old.clone(), new.clone()).await;
        assert!(verdict.allowed, "{verdict:?}");
    }
    let mut changed = low.clone();
    changed["app"] = json!("x");
    assert!(update(&deps, "jane", low, changed).await.allowed);
    // A webhook of the manager computes it from a new pod, and nothing computes it again.
    let verdict = create(&deps, "jane", json!({EXTENDED: "{}"})).await;
    assert!(verdict.allowed, "{verdict:?}");
    let raised = json!({EXTENDED: r#"{"containers":{}}"#});
    assert_refused(&update(&deps, "jane", none, raised).await, EXTENDED);
}

/// Verifies that both webhooks admit annotations that a profile adds, because an administrator wrote it.
#[tokio::test(start_paused = true)]
async fn annotations_added_by_profiles_are_allowed() {
    let cluster = Cluster::start().await;
    let deps = deps(&cluster, "");
    let mutated = annotated(json!({OOM: "500"}));
    let mutated = request(Operation::Create, Some(mutated), None);
    let mut batch = mutated.clone();
    let object = batch.object.as_mut().unwrap();
    object["metadata"]["labels"]["koordinator.sh/qosClass"] = json!("LS");
    let verdict = admit(&deps, "/validate-pod", by(batch, "jane")).await;
    assert!(verdict.allowed, "{verdict:?}");
    // If the mutating webhook, which sees a pod as its author sent it, is off, the validating one checks.
    let mut context = cluster.ctx.clone();
    context.metrics = prometheus::Registry::new();
    let deps = deps_with(&cluster, &context, "PodMutatingWebhook=false");
    let verdict = admit(&deps, "/validate-pod", by(mutated, "jane")).await;
    assert_refused(&verdict, OOM);
}

/// Verifies bindings, because the API server copies their annotations to the pod.
#[tokio::test(start_paused = true)]
async fn protected_annotations_of_bindings_are_refused() {
    let cluster = Cluster::start().await;
    let deps = deps(&cluster, "");
    let metadata = json!({"name": "p", "annotations": {STATUS: "{}"}});
    let binding = json!({"metadata": metadata, "target": {"name": "n1"}});
    let mut request = request(Operation::Create, Some(binding), None);
    request.sub_resource = "binding".to_owned();
    let verdict = admit(&deps, "/validate-pod-binding", by(request.clone(), "jane")).await;
    assert_refused(&verdict, STATUS);
    let scheduler = by(request, "system:kube-scheduler");
    assert!(
        admit(&deps, "/validate-pod-binding", scheduler)
            .await
            .allowed
    );
}

#[tokio::test(start_paused = true)]
async fn empty_list_of_protected_keys_restores_upstream() {
    let cluster = Cluster::start().await;
    let mut deps = deps(&cluster, "");
    deps.pods.annotations = AnnotationPolicy {
        keys: BTreeSet::new(),
        ..AnnotationPolicy::default()
    };
    assert!(create(&deps, "jane", json!({OOM: "-1000"})).await.allowed);
    let verdict = update(&deps, "jane", json!({}), json!({STATUS: "{}"})).await;
    assert!(verdict.allowed, "{verdict:?}");
}
