//! Upstream's tables of the two handlers, and what a dry run leaves behind.

use super::*;
use crate::Options;
use crate::replica::Replica;
use crate::webhook::quota::testing::quota;
use koord_api::{annotations, labels};
use koord_apiserver::{ApiServer, Config};
use koord_kube::webhook::{Resource, User};
use serde_json::json;

/// Returns the admission of a replica that watches nothing.
async fn admission() -> Arc<Admission> {
    let clock = koord_app::Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
    let ctx = koord_app::Context::with_clock(clock.clone());
    let server = ApiServer::open(Config::memory(clock)).await.unwrap();
    let client = koord_kube::client::in_process(server.service());
    let metrics = crate::metrics::Metrics::new(&ctx.metrics, None).unwrap();
    Admission::from_replica(&Replica::new(
        Options::default(),
        client,
        None,
        metrics,
        &ctx,
    ))
}

fn metrics() -> WebhookMetrics {
    WebhookMetrics::new(&prometheus::Registry::new()).unwrap()
}

fn mutating(admission: &Arc<Admission>) -> QuotaMutator {
    QuotaMutator {
        admission: admission.clone(),
        metrics: metrics(),
    }
}

fn validating(admission: &Arc<Admission>) -> QuotaValidator {
    QuotaValidator {
        admission: admission.clone(),
        metrics: metrics(),
    }
}

fn request(operation: Operation, old: Option<Value>, new: Option<Value>) -> Request {
    Request {
        uid: "1".to_owned(),
        kind: Default::default(),
        resource: Resource {
            resource: "elasticquotas".to_owned(),
            ..Resource::default()
        },
        sub_resource: String::new(),
        name: String::new(),
        namespace: "ns".to_owned(),
        operation,
        user: User::anonymous(),
        object: new,
        old_object: old,
        dry_run: false,
    }
}

fn code(answer: &Answer) -> u16 {
    match answer {
        Answer::Deny { code, .. } => *code,
        Answer::Allow { .. } | Answer::Mutate { .. } => 200,
    }
}

fn message(answer: Answer) -> String {
    match answer {
        Answer::Deny { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

fn named(name: &str, tree: &str) -> Value {
    let labels = if tree.is_empty() {
        json!({})
    } else {
        json!({labels::QUOTA_TREE_ID: tree})
    };
    json!({"metadata": {"name": name, "namespace": "ns", "labels": labels}})
}

use Operation::{Create, Delete, Update};

/// Asks for each row's code, and before them for what both webhooks answer alike.
async fn answers(handler: &impl Handler, rows: impl IntoIterator<Item = (Request, u16)>) {
    let foreign = Request {
        resource: Resource {
            resource: "configmaps".to_owned(),
            ..Resource::default()
        },
        ..request(Create, None, None)
    };
    let status = Request {
        sub_resource: "status".to_owned(),
        ..request(Create, None, None)
    };
    let alike = [
        (foreign, 200),
        (status, 200),
        (request(Create, None, None), 400),
    ];
    for (request, want) in alike.into_iter().chain(rows) {
        assert_eq!(
            code(&handler.handle(request.clone()).await),
            want,
            "{request:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn mutating_webhook_matches_upstream() {
    let handler = mutating(&admission().await);
    let rows = [
        (request(Update, None, Some(named("pod1", ""))), 200),
        (request(Create, None, Some(named("quota1", ""))), 200),
        (
            request(Create, None, Some(named("koordinator-root-quota", ""))),
            200,
        ),
    ];
    answers(&handler, rows).await;
}

#[tokio::test(start_paused = true)]
async fn new_quota_gets_missing_defaults() {
    let handler = mutating(&admission().await);
    let object = json!({"metadata": {"name": "q", "namespace": "ns", "annotations": null}, "spec": {"max": {"cpu": 4, "memory": "1Gi"}}, "other": [1]});
    let answer = handler
        .handle(request(Create, None, Some(object.clone())))
        .await;
    let mut want = object;
    want["metadata"]["labels"] = json!({labels::QUOTA_PARENT: "koordinator-root-quota"});
    want["metadata"]["annotations"] =
        json!({annotations::QUOTA_SHARED_WEIGHT: r#"{"cpu":"4","memory":"1Gi"}"#});
    assert_eq!(answer, Answer::mutate(want));
    let weight = |resource: &str| {
        handler
            .metrics
            .shared_weight
            .with_label_values(&["q", resource])
            .get()
    };
    assert_eq!((weight("cpu"), weight("memory")), (4.0, 1_073_741_824.0));
    let root = named("koordinator-root-quota", "");
    let answer = handler
        .handle(request(Create, None, Some(root.clone())))
        .await;
    assert_eq!(answer, Answer::mutate(root), "the root lacks nothing");
    let bad = json!({"metadata": {"name": "q"}, "spec": {"max": {"cpu": "lots"}}});
    let refusal = message(handler.handle(request(Create, None, Some(bad))).await);
    assert!(
        refusal.contains("spec.max.cpu") && refusal.contains("lots"),
        "{refusal}"
    );
}

#[tokio::test(start_paused = true)]
async fn validating_webhook_matches_upstream() {
    let handler = validating(&admission().await);
    let mut above_its_maximum = named("quota3", "");
    above_its_maximum["spec"] = json!({"min": {"cpu": 2}, "max": {"cpu": 1}});
    let rows = [
        (request(Create, None, Some(named("quota1", ""))), 200),
        (request(Create, None, Some(above_its_maximum)), 400),
        (
            request(
                Update,
                Some(named("quota1", "")),
                Some(named("quota1", "tree-1")),
            ),
            400,
        ),
        (request(Create, None, Some(named("quota2", "tree-2"))), 200),
        (
            request(
                Update,
                Some(named("quota2", "tree-2")),
                Some(named("quota2", "tree-1")),
            ),
            400,
        ),
        (
            request(
                Update,
                Some(named("quota2", "tree-2")),
                Some(named("quota2", "")),
            ),
            400,
        ),
    ];
    answers(&handler, rows).await;
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_do_not_overdraw_parent() {
    let admission = admission().await;
    let handler = validating(&admission);
    let json = |quota: &ElasticQuota| serde_json::to_value(quota).unwrap();
    let ask = |request: Request| handler.handle(request);
    let parent = quota(
        "parent",
        json!({"max": {"cpu": 8}, "min": {"cpu": 4}, "isParent": true}),
    );
    assert_eq!(
        code(&ask(request(Create, None, Some(json(&parent)))).await),
        200
    );
    let child = |name: &str| {
        json(&quota(
            name,
            json!({"parent": "parent", "max": {"cpu": 8}, "min": {"cpu": 3}}),
        ))
    };
    // A dry run takes nothing.
    let dry = Request {
        dry_run: true,
        ..request(Create, None, Some(child("a")))
    };
    assert_eq!(code(&ask(dry.clone()).await), 200);
    assert_eq!(code(&ask(dry).await), 200);
    let (a, b) = futures::join!(
        ask(request(Create, None, Some(child("a")))),
        ask(request(Create, None, Some(child("b"))))
    );
    assert_eq!((code(&a), code(&b)), (200, 400));
    assert_eq!(
        message(b),
        "checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: parent"
    );
    assert_eq!(
        code(&ask(request(Delete, Some(child("a")), None)).await),
        200
    );
    assert_eq!(
        code(&ask(request(Create, None, Some(child("b")))).await),
        200
    );
    let dump: Value = serde_json::from_str(&admission.dump()).unwrap();
    assert_eq!(dump["quotaHierarchyInfo"]["parent"], json!(["b"]));
}

#[tokio::test(start_paused = true)]
async fn malformed_reviews_are_refused_with_field_and_value() {
    let handler = validating(&admission().await);
    let good = named("q", "");
    let bad = |spec: Value| json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": spec});
    let rows = [
        (
            request(Create, None, Some(json!("quota"))),
            "object",
            "quota",
        ),
        (
            request(Create, None, Some(bad(json!({"max": {"cpu": "1x"}})))),
            "spec.max.cpu",
            "1x",
        ),
        (
            request(Create, None, Some(bad(json!({"min": [1]})))),
            "spec.min",
            "sequence",
        ),
        (
            request(Update, None, Some(good.clone())),
            "oldObject",
            "has none",
        ),
        (
            request(Update, Some(good), Some(bad(json!({"max": 7})))),
            "spec.max",
            "7",
        ),
        (request(Delete, None, None), "oldObject", "has none"),
    ];
    for (request, field, value) in rows {
        let refusal = message(handler.handle(request).await);
        assert!(
            refusal.contains(field) && refusal.contains(value),
            "{field}: {refusal}"
        );
    }
}
