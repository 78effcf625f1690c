//! Authorization: roles and bindings, reviews, impersonation.

use crate::support::{Answer, Cluster};
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use koord_apiserver::{ApiServer, Authorization, Config};
use koord_app::Clock;
use serde_json::{Value, json};

pub(crate) const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
pub(crate) const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

/// Sends a request with headers in process; `PATCH` is a merge patch, `APPLY` a server-side apply.
pub(crate) async fn send(
    server: &ApiServer,
    headers: &[(&str, &str)],
    line: &str,
    body: Value,
) -> Answer {
    let (method, path) = line.split_once(' ').unwrap();
    let (method, content_type) = match method {
        "PATCH" => ("PATCH", "application/merge-patch+json"),
        "APPLY" => ("PATCH", "application/apply-patch+yaml"),
        method => (method, "application/json"),
    };
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = match body {
        Value::Null => Body::empty(),
        body => Body::from(body.to_string()),
    };
    let request = request.body(body).unwrap();
    let response = tower::ServiceExt::oneshot(server.service(), request).await;
    let (parts, body) = response.unwrap().into_parts();
    let text = |bytes: &[u8]| Value::String(String::from_utf8_lossy(bytes).into_owned());
    let body = if parts.headers["content-type"] == "application/json" {
        let bytes = body.collect().await.unwrap().to_bytes();
        serde_json::from_slice(&bytes).unwrap_or_else(|_| text(&bytes))
    } else {
        Value::Null
    };
    Answer {
        code: parts.status.as_u16(),
        body,
        headers: parts.headers,
    }
}

/// Sends a request as this user (`kubectl --as`).
pub(crate) async fn by(user: &str, cluster: &Cluster, line: &str) -> Answer {
    with(user, cluster, line, Value::Null).await
}

pub(crate) async fn with(user: &str, cluster: &Cluster, line: &str, body: Value) -> Answer {
    send(&cluster.server, &[("impersonate-user", user)], line, body).await
}

/// Binds `ann` in `default` to a role of that namespace with `rules`.
pub(crate) async fn give_ann(cluster: &Cluster, rules: Value) {
    let path = format!("{RBAC}/namespaces/default");
    let role = json!({"metadata": {"name": "ann"}, "rules": rules});
    cluster
        .post(&format!("{path}/roles"), role)
        .await
        .expect(201);
    let binding = json!({
        "metadata": {"name": "ann"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ann"},
        "subjects": [{"kind": "User", "name": "ann"}],
    });
    let path = format!("{path}/rolebindings");
    cluster.post(&path, binding).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn requests_without_matching_rule_are_refused() {
    let cluster = Cluster::bare().await;
    let node = json!({"metadata": {"name": "n1"}});
    cluster.post("/api/v1/nodes", node).await.expect(201);
    let answer = by("guest", &cluster, "DELETE /api/v1/nodes/n1").await;
    let details = answer.body["details"].clone();
    assert_eq!(
        answer.fails(403, "Forbidden"),
        r#"nodes "n1" is forbidden: User "guest" cannot delete resource "nodes" in API group "" at the cluster scope"#
    );
    assert_eq!(details, json!({"name": "n1", "kind": "nodes"}));
    cluster.get("/api/v1/nodes/n1").await.expect(200);
    let answer = by(
        "guest",
        &cluster,
        "GET /apis/apps/v1/namespaces/y/deployments",
    )
    .await;
    assert_eq!(
        answer.fails(403, "Forbidden"),
        r#"deployments.apps is forbidden: User "guest" cannot list resource "deployments" in API group "apps" in the namespace "y""#
    );
    // A refusal does not reveal whether an object exists.
    for line in [
        "GET /api/v1/wonders",
        "GET /apis/no.such/v1/wonders/x",
        "POST /api/v1/namespaces/default/pods",
        "PUT /api/v1/namespaces/default/pods/x/status",
        "PATCH /api/v1/nodes/n1",
        "DELETE /api/v1/nodes",
        "GET /api/v1/nodes?watch=1",
        "GET /api/v1/watch/nodes/n1",
        "POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
        "GET /api/v1/namespaces/default/pods/x/log",
        "OPTIONS /api/v1/nodes",
        "GET /metrics",
        "GET /nowhere",
        "POST /api",
    ] {
        by("guest", &cluster, line).await.fails(403, "Forbidden");
    }
    let answer = by("guest", &cluster, "GET /nowhere").await;
    assert_eq!(
        answer.fails(403, "Forbidden"),
        r#"forbidden: User "guest" cannot get path "/nowhere""#
    );
    for line in [
        "GET /api",
        "GET /apis/apps/v1",
        "GET /openapi/v3",
        "GET /version",
    ] {
        by("guest", &cluster, line).await.expect(200);
    }
    // Unauthenticated users do not even see what is served.
    by("system:anonymous", &cluster, "GET /version")
        .await
        .expect(200);
    by("system:anonymous", &cluster, "GET /api")
        .await
        .fails(403, "Forbidden");
}

#[tokio::test(start_paused = true)]
async fn a_binding_counts_from_its_creation_to_its_end() {
    let cluster = Cluster::bare().await;
    give_ann(
        &cluster,
        json!([
            {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "namespaces"]},
            {"verbs": ["get", "watch"], "apiGroups": [""], "resources": ["configmaps"],
             "resourceNames": ["mine"]},
            {"verbs": ["create"], "apiGroups": [""], "resources": ["secrets"]},
        ]),
    )
    .await;
    let in_default = |rest: &str| format!("GET /api/v1/namespaces/default/{rest}");
    for (line, code) in [
        (in_default("pods"), 200),
        (in_default("pods?watch=true"), 403),
        (in_default("pods?watch=0"), 200),
        (in_default("pods/x"), 404),
        (in_default("pods/x/status"), 403),
        ("GET /api/v1/namespaces/kube-system/pods".to_owned(), 403),
        ("GET /api/v1/pods".to_owned(), 403),
        // A namespace counts as being in itself.
        ("GET /api/v1/namespaces/default".to_owned(), 200),
        ("GET /api/v1/namespaces/kube-system".to_owned(), 403),
        ("GET /api/v1/namespaces".to_owned(), 403),
        (in_default("configmaps/mine"), 404),
        (in_default("configmaps/other"), 403),
        (in_default("configmaps"), 403),
        (in_default("configmaps?watch=1&timeoutSeconds=1"), 403),
        (
            in_default("configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=mine"),
            200,
        ),
        (
            in_default("configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name!=mine"),
            403,
        ),
        // Not served at such a path, and so not allowed by it.
        (in_default("nodes"), 403),
    ] {
        let answer = by("ann", &cluster, &line).await;
        assert_eq!(answer.code, code, "{line}: {}", answer.body);
    }
    let secrets = "POST /api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}});
    with("ann", &cluster, secrets, secret).await.expect(201);
    let secret = "DELETE /api/v1/namespaces/default/secrets/s";
    by("ann", &cluster, secret).await.fails(403, "Forbidden");
    by("bob", &cluster, &in_default("pods"))
        .await
        .fails(403, "Forbidden");

    let role = format!("{RBAC}/namespaces/default/roles/ann");
    cluster.delete(&role, Value::Null).await.expect(200);
    let message = by("ann", &cluster, &in_default("pods"))
        .await
        .fails(403, "Forbidden");
    assert!(
        message.ends_with(r#": RBAC: role.rbac.authorization.k8s.io "ann" not found"#),
        "{message}"
    );
    let binding = format!("{RBAC}/namespaces/default/rolebindings/ann");
    cluster.delete(&binding, Value::Null).await.expect(200);
    let message = by("ann", &cluster, &in_default("pods"))
        .await
        .fails(403, "Forbidden");
    assert!(!message.contains("RBAC"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn admin_edit_and_view_are_sums() {
    let cluster = Cluster::start().await;
    let cluster_role = |name: &str| format!("{RBAC}/clusterroles/{name}");
    let rules = async |name: &str| {
        let role = cluster.get(&cluster_role(name)).await.expect(200);
        role["rules"].as_array().unwrap().clone()
    };
    let (view, edit, admin) = (
        rules("view").await,
        rules("edit").await,
        rules("admin").await,
    );
    assert!(view.iter().all(|rule| edit.contains(rule)));
    assert!(edit.iter().all(|rule| admin.contains(rule)));
    assert!(view.len() < edit.len() && edit.len() < admin.len());
    let text = json!(view).to_string();
    assert!(
        text.contains("pods/log") && !text.contains("secrets"),
        "{text}"
    );

    let own = json!({"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["widgets"]});
    let part = json!({
        "metadata": {"name": "widgets",
                     "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [own],
    });
    cluster
        .post(&format!("{RBAC}/clusterroles"), part)
        .await
        .expect(201);
    cluster
        .until(&cluster_role("admin"), |role| {
            role.body["rules"].as_array().unwrap().contains(&own)
        })
        .await;
    cluster
        .delete(&cluster_role("widgets"), Value::Null)
        .await
        .expect(200);
    cluster
        .until(&cluster_role("admin"), |role| {
            !role.body["rules"].as_array().unwrap().contains(&own)
        })
        .await;
    assert_eq!(rules("admin").await, admin);
}

#[tokio::test(start_paused = true)]
async fn reviews_answer_as_requests_are_answered() {
    let cluster = Cluster::bare().await;
    give_ann(
        &cluster,
        json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]),
    )
    .await;
    let asks = |namespace: &str, verb: &str| json!({"resourceAttributes": {"namespace": namespace, "verb": verb, "resource": "pods"}});
    let own = format!("POST {REVIEWS}/selfsubjectaccessreviews");
    let ask = async |user: &str, spec: Value| {
        let review = with(user, &cluster, &own, json!({"spec": spec}))
            .await
            .expect(201);
        review["status"].clone()
    };
    assert_eq!(
        ask("ann", asks("default", "get")).await,
        json!({
            "allowed": true,
            "reason": r#"RBAC: allowed by RoleBinding "ann/default" of Role "ann" to User "ann""#,
        })
    );
    assert_eq!(
        ask("ann", asks("default", "list")).await,
        json!({"allowed": false})
    );
    assert_eq!(
        ask("bob", asks("default", "get")).await,
        json!({"allowed": false})
    );
    let path = json!({"nonResourceAttributes": {"path": "/api", "verb": "get"}});
    assert_eq!(ask("bob", path).await["allowed"], true);
    let everything = json!({"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}});
    assert_eq!(ask("ann", everything.clone()).await["allowed"], false);
    let review_path = format!("{REVIEWS}/selfsubjectaccessreviews");
    let review = cluster
        .post(&review_path, json!({"spec": everything}))
        .await
        .expect(201);
    assert_eq!(review["status"]["allowed"], true);

    let subject_reviews = format!("{REVIEWS}/subjectaccessreviews");
    let mut spec = asks("default", "get");
    spec["user"] = "ann".into();
    let review = cluster
        .post(&subject_reviews, json!({"spec": spec}))
        .await
        .expect(201);
    assert_eq!(review["status"]["allowed"], true);
    spec["user"] = "x".into();
    spec["groups"] = json!(["system:masters"]);
    let review = cluster
        .post(&subject_reviews, json!({"spec": spec}))
        .await
        .expect(201);
    assert_eq!(review["status"]["allowed"], true);

    let local =
        |namespace: &str| format!("{REVIEWS}/namespaces/{namespace}/localsubjectaccessreviews");
    spec["user"] = "ann".into();
    spec["groups"] = json!([]);
    let review = cluster
        .post(&local("default"), json!({"spec": spec}))
        .await
        .expect(201);
    assert_eq!(review["status"]["allowed"], true);
    let message = cluster
        .post(&local("kube-system"), json!({"spec": spec}))
        .await;
    assert!(
        message
            .fails(400, "BadRequest")
            .contains("must match namespace: kube-system")
    );

    let rules = format!("POST {REVIEWS}/selfsubjectrulesreviews");
    let spec = json!({"spec": {"namespace": "default"}});
    let status = with("ann", &cluster, &rules, spec).await.expect(201)["status"].clone();
    let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    let matches = status["resourceRules"].as_array().unwrap();
    assert!(matches.contains(&pods), "{status}");
    assert!(status["nonResourceRules"].to_string().contains("/healthz"));
    assert_eq!(status["incomplete"], false);
    let answer = with("ann", &cluster, &rules, json!({"spec": {}})).await;
    assert_eq!(answer.fails(400, "BadRequest"), "no namespace on request");
}

#[tokio::test(start_paused = true)]
async fn impersonation_is_a_right() {
    let cluster = Cluster::bare().await;
    let role = json!({
        "metadata": {"name": "speaks"},
        "rules": [
            {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"],
             "resourceNames": ["bob"]},
            {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["groups"],
             "resourceNames": ["team"]},
            {"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"],
             "resources": ["userextras/scope"], "resourceNames": ["small"]},
            {"verbs": ["create"], "apiGroups": [""], "resources": ["serviceaccounts/token"]},
        ],
    });
    cluster
        .post(&format!("{RBAC}/clusterroles"), role)
        .await
        .expect(201);
    let binding = json!({
        "metadata": {"name": "speaks"},
        "roleRef": {"kind": "ClusterRole", "name": "speaks"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    });
    let bindings = format!("{RBAC}/clusterrolebindings");
    cluster.post(&bindings, binding).await.expect(201);
    let request = json!({"spec": {"expirationSeconds": 600}});
    let account = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = cluster.post(account, request).await.expect(201);
    let bearer = format!("Bearer {}", token["status"]["token"].as_str().unwrap());
    let self_review = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";
    let ask = async |headers: &[(&str, &str)]| {
        let mut all = vec![("authorization", bearer.as_str())];
        all.extend(headers);
        send(&cluster.server, &all, self_review, json!({})).await
    };
    let user = |answer: Answer| answer.expect(201)["status"]["userInfo"].clone();
    let own = user(ask(&[]).await);
    assert_eq!(own["username"], "system:serviceaccount:default:default");
    let bob = ("impersonate-user", "bob");
    assert_eq!(user(ask(&[bob]).await)["username"], "bob");
    let scope = ("impersonate-extra-scope", "small");
    let all = user(ask(&[bob, ("impersonate-group", "team"), scope]).await);
    assert_eq!(all["groups"], json!(["team", "system:authenticated"]));
    assert_eq!(all["extra"], json!({"scope": ["small"]}));
    for (headers, what) in [
        (vec![("impersonate-user", "eve")], "users"),
        (
            vec![("impersonate-user", "system:serviceaccount:default:x")],
            "serviceaccounts",
        ),
        (vec![bob, ("impersonate-group", "system:masters")], "groups"),
        (
            vec![bob, ("impersonate-extra-scope", "large")],
            "userextras/scope",
        ),
        (
            vec![bob, ("impersonate-extra-other", "small")],
            "userextras/other",
        ),
        (vec![bob, ("impersonate-uid", "7")], "uids"),
    ] {
        let message = ask(&headers).await.fails(403, "Forbidden");
        assert!(
            message.contains(&format!("cannot impersonate resource {what:?}")),
            "{message}"
        );
    }
    // An impersonated user has only its own permissions.
    let headers = [("authorization", bearer.as_str()), bob];
    let line = format!("POST {account}");
    let answer = send(&cluster.server, &headers, &line, json!({})).await;
    answer.fails(403, "Forbidden");
}

// On disk and in real time: paused time would advance to the deadline while the log's thread writes.
#[tokio::test]
async fn start_completes_default_roles() {
    let dir = tempfile::tempdir().unwrap();
    let open = async || {
        let clock = Clock::following_tokio("2026-03-01T12:00:00Z".parse().unwrap());
        let mut config = Config::dir(dir.path(), clock);
        config.controllers = koord_app::flags::Selection::none();
        Cluster {
            server: ApiServer::open(config).await.unwrap(),
        }
    };
    let role = |name: &str| format!("{RBAC}/clusterroles/{name}");
    let cluster = open().await;
    let own = json!({"verbs": ["get"], "apiGroups": ["x"], "resources": ["y"]});
    let merge = "application/merge-patch+json";
    let patch = json!({"rules": [own]});
    cluster
        .patch(&role("system:basic-user"), merge, patch.clone())
        .await
        .expect(200);
    let retained = json!({"rules": [own], "metadata": {"annotations": {
        "rbac.authorization.kubernetes.io/autoupdate": "false"}}});
    cluster
        .patch(&role("system:discovery"), merge, retained)
        .await
        .expect(200);
    let bindings = format!("{RBAC}/clusterrolebindings/system:basic-user");
    cluster
        .patch(&bindings, merge, json!({"subjects": []}))
        .await
        .expect(200);
    cluster
        .delete(&role("system:monitoring"), Value::Null)
        .await
        .expect(200);
    cluster.server.close().await;
    let cluster = open().await;
    let completed = cluster.get(&role("system:basic-user")).await.expect(200);
    let rules = completed["rules"].as_array().unwrap();
    assert!(rules.contains(&own) && rules.len() > 1, "{completed}");
    let stays = cluster.get(&role("system:discovery")).await.expect(200);
    assert_eq!(stays["rules"], json!([own]));
    let bound = cluster.get(&bindings).await.expect(200);
    assert_eq!(bound["subjects"][0]["name"], "system:authenticated");
    cluster.get(&role("system:monitoring")).await.expect(200);
    // Bindings from before a restart count.
    let review = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";
    with("ann", &cluster, review, json!({})).await.expect(201);
    by("ann", &cluster, "GET /api")
        .await
        .fails(403, "Forbidden");
    let revision = cluster.server.store().revision();
    cluster.server.close().await;
    let cluster = open().await;
    assert_eq!(
        cluster.server.store().revision(),
        revision,
        "nothing was lacking"
    );
    cluster.server.close().await;
}

#[tokio::test(start_paused = true)]
async fn everything_may_be_allowed_to_everybody() {
    let mut config = Config::memory(Clock::system());
    config.authorization = Authorization::AlwaysAllow;
    let cluster = Cluster {
        server: ApiServer::open(config).await.unwrap(),
    };
    by("guest", &cluster, "GET /api/v1/nodes").await.expect(200);
    let review = json!({"spec": {"resourceAttributes": {"verb": "delete", "resource": "nodes"}}});
    let own = format!("POST {REVIEWS}/selfsubjectaccessreviews");
    let review = with("guest", &cluster, &own, review).await.expect(201);
    assert_eq!(review["status"]["allowed"], true);
}

#[tokio::test(start_paused = true)]
async fn token_is_valid_while_bound_object_exists() {
    let cluster = Cluster::bare().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n1"}});
    let pod = cluster.post(pods, pod).await.expect(201);
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    let path = format!("{account}/token");
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p"});
    let spec = json!({"spec": {"boundObjectRef": bound, "expirationSeconds": 600}});
    let issued = cluster.post(&path, spec).await.expect(201);
    let issuer = "https://kubernetes.default.svc.cluster.local";
    assert_eq!(issued["spec"]["audiences"], json!([issuer]));
    assert_eq!(
        issued["status"]["expirationTimestamp"],
        "2026-03-01T12:10:00Z"
    );
    let token = issued["status"]["token"].as_str().unwrap().to_owned();
    let bearer = format!("Bearer {token}");
    let self_review = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";
    let ask = async || {
        let headers = [("authorization", bearer.as_str())];
        send(&cluster.server, &headers, self_review, json!({})).await
    };
    let info = ask().await.expect(201)["status"]["userInfo"].clone();
    assert_eq!(info["username"], "system:serviceaccount:default:default");
    let named = "authentication.kubernetes.io/pod-uid";
    assert_eq!(info["extra"][named], json!([pod["metadata"]["uid"]]));

    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = async |spec: Value| {
        let answer = cluster
            .post(reviews, json!({"spec": spec}))
            .await
            .expect(201);
        answer["status"].clone()
    };
    let good = review(json!({"token": token})).await;
    assert_eq!(
        (&good["authenticated"], &good["audiences"]),
        (&json!(true), &json!([issuer]))
    );
    let bad = review(json!({"token": token, "audiences": ["vault"]})).await;
    assert_eq!(bad["authenticated"], false);
    assert!(!bad.to_string().contains(&token));

    for (bound, code, reason) in [
        (json!({"kind": "Pod", "name": "none"}), 404, "NotFound"),
        (
            json!({"kind": "Pod", "name": "p", "uid": "other"}),
            409,
            "Conflict",
        ),
        (
            json!({"kind": "ConfigMap", "apiVersion": "v1", "name": "p"}),
            400,
            "BadRequest",
        ),
    ] {
        let spec = json!({"spec": {"boundObjectRef": bound}});
        cluster.post(&path, spec).await.fails(code, reason);
    }
    let now = json!({"gracePeriodSeconds": 0});
    cluster.delete(&format!("{pods}/p"), now).await.expect(200);
    ask().await.fails(401, "Unauthorized");

    let free = cluster.post(&path, json!({"spec": {}})).await.expect(201);
    let spec = json!({"token": free["status"]["token"]});
    assert_eq!(review(spec.clone()).await["authenticated"], true);
    cluster.delete(account, Value::Null).await.expect(200);
    assert_eq!(review(spec).await["authenticated"], false);
}

#[tokio::test]
async fn a_token_and_its_key_survive_a_restart() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let open = async || Cluster {
        server: ApiServer::open(Config::dir(dir.path(), Clock::system()))
            .await
            .unwrap(),
    };
    let cluster = open().await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let issued = cluster.post(path, json!({"spec": {}})).await.expect(201);
    let keys = cluster.get("/openid/v1/jwks").await.expect(200);
    cluster.server.close().await;
    let mode = std::fs::metadata(dir.path().join("pki/sa.key"))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let cluster = open().await;
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = json!({"spec": {"token": issued["status"]["token"]}});
    let review = cluster.post(reviews, review).await.expect(201);
    assert_eq!(review["status"]["authenticated"], true);
    assert_eq!(cluster.get("/openid/v1/jwks").await.expect(200), keys);
    assert_eq!(keys["keys"][0]["alg"], "ES256");
    let issuer = cluster
        .get("/.well-known/openid-configuration")
        .await
        .expect(200);
    assert!(
        issuer["jwks_uri"]
            .as_str()
            .unwrap()
            .ends_with("/openid/v1/jwks")
    );
    cluster.server.close().await;
}

#[tokio::test(start_paused = true)]
async fn every_namespace_has_the_authoritys_certificate() {
    let cluster = Cluster::start().await;
    let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let delegated = format!("{}/extension-apiserver-authentication", path("kube-system"));
    let delegated = cluster.get(&delegated).await.expect(200);
    let pem = delegated["data"]["client-ca-file"].clone();
    assert!(
        pem.as_str()
            .unwrap()
            .starts_with("-----BEGIN CERTIFICATE-----")
    );
    let space = json!({"metadata": {"name": "new"}});
    cluster.post("/api/v1/namespaces", space).await.expect(201);
    let map = format!("{}/kube-root-ca.crt", path("new"));
    let has = |answer: &Answer| answer.body["data"]["ca.crt"] == pem;
    cluster.until(&map, has).await;
    let merge = "application/merge-patch+json";
    cluster
        .patch(&map, merge, json!({"data": {"ca.crt": "x"}}))
        .await
        .expect(200);
    cluster.until(&map, has).await;
    cluster.delete(&map, Value::Null).await.expect(200);
    cluster.until(&map, has).await;
}
