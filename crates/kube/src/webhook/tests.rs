use super::*;
use serde_json::json;

/// A handler that calls a function.
struct FnHandler<F>(F);

impl<F: Fn(Request) -> Answer + Send + Sync> Handler for FnHandler<F> {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(async move { (self.0)(request) })
    }
}

fn webhook(mutating: bool, f: impl Fn(Request) -> Answer + Send + Sync + 'static) -> Webhook {
    Webhook {
        path: "/w",
        mutating,
        handler: Arc::new(FnHandler(f)),
    }
}

fn request(object: Value) -> Request {
    Request {
        uid: "u".to_owned(),
        kind: Kind {
            kind: "Pod".to_owned(),
            version: "v1".to_owned(),
            ..Kind::default()
        },
        resource: Resource::default(),
        sub_resource: String::new(),
        name: String::new(),
        namespace: "default".to_owned(),
        operation: Operation::Create,
        user: User::anonymous(),
        object: Some(object),
        old_object: None,
        dry_run: false,
    }
}

const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn patch_is_minimal_and_yields_the_new_document() {
    for (old, new, paths) in [
        (json!({"a": 1}), json!({"a": 1}), vec![]),
        (json!({"a": 1}), json!({"a": 2}), vec!["replace /a"]),
        (
            json!({"a": {"b/c": 1, "d~": 2}}),
            json!({"a": {"d~": 3, "e": 1}}),
            vec!["remove /a/b~1c", "replace /a/d~0", "add /a/e"],
        ),
        (json!([1, 2, 3]), json!([0, 1, 2, 3]), vec!["add /0"]),
        (json!([1, 2, 3]), json!([1, 3]), vec!["remove /1"]),
        (
            json!([1, 2, 3, 4]),
            json!([4]),
            vec!["remove /2", "remove /1", "remove /0"],
        ),
        (
            json!([{"x": 1}, 2]),
            json!([{"x": 2}, 2, 3]),
            vec!["replace /0/x", "add /2"],
        ),
        (json!([]), json!([1, 2]), vec!["add /0", "add /1"]),
        (json!([1, 1]), json!([1]), vec!["remove /1"]),
        (json!({"a": []}), json!({"a": {}}), vec!["replace /a"]),
        (json!(null), json!({"a": 1}), vec!["replace "]),
    ] {
        let patch = diff(&old, &new);
        let shown: Vec<String> = patch
            .iter()
            .map(|o| {
                format!(
                    "{} {}",
                    o["op"].as_str().unwrap(),
                    o["path"].as_str().unwrap()
                )
            })
            .collect();
        assert_eq!(shown, paths, "{old} -> {new}");
        let mut patched = old.clone();
        let operations: json_patch::Patch = serde_json::from_value(Value::Array(patch)).unwrap();
        json_patch::patch(&mut patched, &operations).unwrap();
        assert_eq!(patched, new, "{old}");
    }
}

#[tokio::test]
async fn empty_namespace_is_set_for_the_handler_and_not_patched() {
    for metadata in [json!({"name": "p"}), json!({"name": "p", "namespace": ""})] {
        let hook = webhook(true, |request| {
            let mut object = request.object.unwrap();
            assert_eq!(object["metadata"]["namespace"], "default");
            object["metadata"]["labels"] = json!({"a": "b"});
            Answer::mutate(object)
        });
        let verdict = hook.review(request(json!({ "metadata": metadata })), LIMIT);
        let expected = json!({"op": "add", "path": "/metadata/labels", "value": {"a": "b"}});
        assert_eq!(verdict.await.unwrap().patch, [expected]);
    }
    // A Namespace is cluster-scoped.
    let hook = webhook(true, |request| Answer::mutate(request.object.unwrap()));
    let mut namespace = request(json!({"metadata": {"name": "default"}}));
    namespace.kind.kind = "Namespace".to_owned();
    let verdict = hook.review(namespace, LIMIT).await.unwrap();
    assert!(verdict.patch.is_empty());
}

struct Hangs;

impl Handler for Hangs {
    fn handle(&self, _: Request) -> BoxFuture<'_, Answer> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn handler_without_decision_is_a_failure() {
    let panics = webhook(false, |request| panic!("{}", request.uid));
    let failure = panics.review(request(json!({})), LIMIT).await.unwrap_err();
    assert_eq!(failure, Failure::Panicked("/w"));
    let changes = webhook(false, |request| Answer::mutate(request.object.unwrap()));
    let failure = changes.review(request(json!({})), LIMIT).await.unwrap_err();
    assert_eq!(failure, Failure::Changed("/w"));
    let hangs = Webhook {
        handler: Arc::new(Hangs),
        ..panics
    };
    let failure = hangs.review(request(json!({})), LIMIT).await.unwrap_err();
    assert_eq!(failure, Failure::Late("/w", LIMIT));
}

/// Posts to `/w`, and returns the status code and the review or text.
async fn post(hook: Webhook, kind: &str, body: Vec<u8>) -> (u16, Value) {
    use tower::ServiceExt as _;
    let request = http::Request::post("/w?timeout=3s")
        .header("content-type", kind)
        .body(axum::body::Body::from(body))
        .unwrap();
    let response = serve::routes(vec![hook], &[])
        .oneshot(request)
        .await
        .unwrap();
    let code = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await;
    let bytes = bytes.unwrap();
    let text = || Value::from(String::from_utf8_lossy(&bytes).into_owned());
    (
        code,
        serde_json::from_slice(&bytes).unwrap_or_else(|_| text()),
    )
}

fn review(version: &str, request: Value) -> Vec<u8> {
    let review = json!({"apiVersion": version, "kind": "AdmissionReview", "request": request});
    review.to_string().into_bytes()
}

fn review_request() -> Value {
    json!({"uid": "u", "operation": "CREATE", "namespace": "default",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "ann", "groups": ["g"]},
        "object": {"metadata": {"name": "p"}}, "oldObject": null, "dryRun": true, "options": null})
}

#[tokio::test]
async fn response_has_the_version_of_the_review() {
    for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
        let hook = webhook(true, |request| {
            assert_eq!((&*request.user.name, request.dry_run), ("ann", true));
            let mut object = request.object.unwrap();
            object["spec"] = json!({});
            Answer::Mutate {
                object,
                warnings: vec!["careful".to_owned()],
            }
        });
        let (code, answer) =
            post(hook, "application/json", review(version, review_request())).await;
        // base64 of [{"op":"add","path":"/spec","value":{}}]
        let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL3NwZWMiLCJ2YWx1ZSI6e319XQ==";
        assert_eq!(
            (code, answer),
            (
                200,
                json!({"apiVersion": version, "kind": "AdmissionReview", "response": {
                "uid": "u", "allowed": true, "patch": patch, "patchType": "JSONPatch",
                "warnings": ["careful"]}})
            )
        );
    }
    let denies = webhook(false, |_| Answer::deny(422, "spec.x: 1"));
    let body = review("admission.k8s.io/v1", review_request());
    let (_, answer) = post(denies, "application/json; charset=utf-8", body).await;
    let expected = json!({"uid": "u", "allowed": false,
        "status": {"code": 422, "message": "spec.x: 1"}});
    assert_eq!(answer["response"], expected);
}

#[tokio::test]
async fn invalid_review_is_denied_with_the_reason() {
    let v1 = "admission.k8s.io/v1";
    let change = |key: &str, value: Value| {
        let mut request = review_request();
        request[key] = value;
        review(v1, request)
    };
    for (kind, body, code, names) in [
        (
            "text/plain",
            review(v1, review_request()),
            400,
            "contentType=text/plain",
        ),
        ("application/json", Vec::new(), 400, "request body is empty"),
        ("application/json", b"{".to_vec(), 400, "not JSON"),
        (
            "application/json",
            vec![b' '; (7 << 20) + 1],
            413,
            "7340032",
        ),
        (
            "application/json",
            review("v2", review_request()),
            400,
            "apiVersion: \"v2\"",
        ),
        (
            "application/json",
            review(v1, Value::Null),
            400,
            "request.uid: missing",
        ),
        (
            "application/json",
            change("operation", json!("PATCH")),
            400,
            "PATCH",
        ),
        (
            "application/json",
            change("object", json!([1])),
            400,
            "request.object: [1]",
        ),
        (
            "application/json",
            change("dryRun", json!("no")),
            400,
            "\"no\"",
        ),
        (
            "application/json",
            br#"{"kind": "Pod", "request": {"uid": "u"}}"#.to_vec(),
            400,
            "kind: \"Pod\"",
        ),
    ] {
        let hook = webhook(false, |_| Answer::allow());
        let (http, answer) = post(hook, kind, body).await;
        let response = &answer["response"];
        assert_eq!(
            (http, &response["allowed"]),
            (200, &json!(false)),
            "{names}"
        );
        assert_eq!(response["status"]["code"], code, "{names}");
        let message = response["status"]["message"].as_str().unwrap();
        assert!(message.contains(names), "{names}: {message}");
    }
}

/// Not a refusal: the failure policy applies.
#[tokio::test(start_paused = true)]
async fn failed_webhook_is_a_server_error() {
    let body = || review("admission.k8s.io/v1", review_request());
    let panics = webhook(false, |request| panic!("{}", request.uid));
    let (code, answer) = post(panics, "application/json", body()).await;
    assert_eq!(code, 500);
    assert!(answer.as_str().unwrap().contains("panicked"), "{answer}");
}

/// A body whose declared length is too large is not read.
#[tokio::test(start_paused = true)]
async fn declared_length_is_checked_before_the_body_arrives() {
    use tower::ServiceExt as _;
    let never = futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
    let request = http::Request::post("/w")
        .header("content-type", "application/json")
        .header("content-length", (7 << 20) + 1)
        .body(axum::body::Body::from_stream(never))
        .unwrap();
    let hook = webhook(false, |_| Answer::allow());
    let began = tokio::time::Instant::now();
    let response = serve::routes(vec![hook], &[]).oneshot(request).await;
    let bytes = axum::body::to_bytes(response.unwrap().into_body(), usize::MAX).await;
    let answer: Value = serde_json::from_slice(&bytes.unwrap()).unwrap();
    assert_eq!(answer["response"]["status"]["code"], 413, "{answer}");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// API servers wait at most 30 s whatever the query contains, and 10 s without a timeout in the query.
#[tokio::test(start_paused = true)]
async fn response_is_not_later_than_an_api_server_waits() {
    use tower::ServiceExt as _;
    for (query, seconds) in [
        ("?timeout=3s", 3),
        ("?timeout=100s", 30),
        ("?timeout=soon", 10),
        ("", 10),
    ] {
        let hook = Webhook {
            handler: Arc::new(Hangs),
            ..webhook(false, |_| Answer::allow())
        };
        let request = http::Request::post(format!("/w{query}"))
            .header("content-type", "application/json")
            .body(axum::body::Body::from(review(
                "admission.k8s.io/v1",
                review_request(),
            )))
            .unwrap();
        let began = tokio::time::Instant::now();
        let response = serve::routes(vec![hook], &[]).oneshot(request).await;
        assert_eq!(response.unwrap().status(), 500, "{query}");
        let took = began.elapsed();
        let limit = Duration::from_secs(seconds);
        let tick = Duration::from_millis(1);
        assert!((limit..=limit + tick).contains(&took), "{query}: {took:?}");
    }
}

mod configuration {
    use super::super::configuration::{
        Injector, Service, add_missing_entries, manifest, restore_addresses,
    };
    use super::super::{FailurePolicy, Operation, Registration, Selector};
    use serde_json::{Value, json};

    /// Entries of webhooks that are off are left out, the service is that of the replica, and webhooks for
    /// pods may have a failure policy of their own.
    #[test]
    fn entries_have_the_address_and_ca_of_the_server() {
        let entry = |path: &str, service: Value, policy: &str, more: Value| {
            let mut config =
                json!({ "service": { "namespace": service[0], "name": service[1], "path": path } });
            let fields = more.as_object().unwrap().clone();
            config.as_object_mut().unwrap().extend(fields);
            json!({ "name": "w", "failurePolicy": policy, "clientConfig": config })
        };
        let paths = ["/mutate-pod", "/mutate-node", "/mutate-other"];
        let old_entries = || -> Vec<Value> {
            let old = json!(["old", "old-service"]);
            let entries = paths
                .iter()
                .map(|path| entry(path, old.clone(), "Fail", json!({})));
            entries.collect()
        };
        let mut injector = Injector {
            mutating: "m".to_owned(),
            validating: "v".to_owned(),
            served: ["/mutate-pod", "/mutate-node"].into(),
            service: Service {
                namespace: "n".to_owned(),
                name: "s".to_owned(),
            },
            host: None,
            pods: Some(FailurePolicy::Ignore),
        };
        let (own_service, injected) = (json!(["n", "s"]), json!({ "caBundle": "Y2E=" }));
        let desired = injector.desired_entries(old_entries(), b"ca");
        assert_eq!(
            desired,
            json!([
                entry(
                    "/mutate-pod",
                    own_service.clone(),
                    "Ignore",
                    injected.clone()
                ),
                entry("/mutate-node", own_service, "Fail", injected),
            ])
        );
        // With a host, the service is removed.
        injector.host = Some(("10.0.0.1".to_owned(), 9876));
        injector.pods = None;
        let desired = injector.desired_entries(old_entries(), b"ca");
        let config = json!({ "url": "https://10.0.0.1:9876/mutate-pod", "caBundle": "Y2E=" });
        let entry = json!({ "name": "w", "failurePolicy": "Fail", "clientConfig": config });
        assert_eq!(
            (desired[0].clone(), desired.as_array().map(Vec::len)),
            (entry, Some(2))
        );
        // The server accepts the entries that it wrote.
        let rewritten = injector.desired_entries(desired.as_array().unwrap().clone(), b"ca");
        assert_eq!(rewritten, desired);
    }

    /// What the manifests have is not undone by a template that is older than they are.
    #[test]
    fn existing_entries_win_over_the_template() {
        let entry = |name: &str, policy: &str| {
            json!({ "name": name, "failurePolicy": policy, "clientConfig": {
                "service": { "namespace": "n", "name": "s", "path": format!("/{name}") } } })
        };
        let template = [entry("a", "Ignore"), entry("off", "Ignore")];
        let mut entries = vec![entry("a", "Fail")];
        assert!(add_missing_entries(&mut entries, &template));
        assert_eq!(entries, [entry("a", "Fail"), entry("off", "Ignore")]);
        assert!(!add_missing_entries(&mut entries, &template));
        // A URL that a server with an address of its own wrote is no part of the manifests.
        entries[0]["clientConfig"] = json!({ "url": "https://10.0.0.1:9876/a" });
        restore_addresses(&mut entries, &template);
        assert_eq!(entries[0], entry("a", "Fail"));
    }

    #[test]
    fn manifest_matches_the_registration() {
        let service = Service {
            namespace: "n".to_owned(),
            name: "s".to_owned(),
        };
        let row = Registration {
            name: "w.example.com",
            operations: &[Operation::Create, Operation::Update],
            group: "",
            version: "v1",
            resource: "pods",
            failure_policy: FailurePolicy::Ignore,
            namespace_selector: Some(Selector::DoesNotExist("control-plane")),
            object_selector: Some(Selector::In("a", &["b"])),
        };
        let generated = manifest("m", true, [("/w", &row)], &service);
        assert_eq!(service.url("/w"), "https://s.n.svc:443/w");
        assert_eq!(
            generated,
            json!({"apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration", "metadata": {"name": "m"},
                "webhooks": [{"name": "w.example.com",
                    "admissionReviewVersions": ["v1", "v1beta1"], "failurePolicy": "Ignore",
                    "sideEffects": "None",
                    "clientConfig": {"service": {"namespace": "n", "name": "s", "path": "/w"}},
                    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                        "operations": ["CREATE", "UPDATE"]}],
                    "namespaceSelector": {"matchExpressions": [
                        {"key": "control-plane", "operator": "DoesNotExist"}]},
                    "objectSelector": {"matchExpressions": [
                        {"key": "a", "operator": "In", "values": ["b"]}]}}]})
        );
    }
}
