//! Invalid requests are refused before they have any effect.

use crate::support::{Cluster, MERGE, config_map, pod};
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(start_paused = true)]
async fn unanswerable_writes_are_refused_first() {
    let cluster = Cluster::bare().await;
    for (accept, query, code) in [
        ("application/cbor", "", 406),
        ("application/json", "?includeObject=Everything", 400),
    ] {
        let body = config_map("a", json!({}), json!({}));
        let request = Request::post(format!("{MAPS}{query}"))
            .header("content-type", "application/json")
            .header("accept", accept)
            .body(Body::from(body.to_string()))
            .unwrap();
        assert_eq!(cluster.raw(request).await.status(), code);
        cluster
            .get(&format!("{MAPS}/a"))
            .await
            .fails(404, "NotFound");
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_selector_deletes_nothing() {
    let cluster = Cluster::bare().await;
    let body = config_map("a", json!({}), json!({}));
    cluster.post(MAPS, body).await.expect(201);
    let answer = cluster
        .delete(&format!("{MAPS}?labelSelector=app%3"), json!({}))
        .await;
    let message = answer.fails(400, "BadRequest");
    assert!(message.contains("labelSelector=app%3"), "{message}");
    cluster.get(&format!("{MAPS}/a")).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_phase_alone_does_not_end_a_namespace() {
    let cluster = Cluster::start().await;
    let body = config_map("kept", json!({}), json!({}));
    cluster.post(MAPS, body).await.expect(201);
    let forged = json!({"status": {"phase": "Terminating"}});
    let namespace = cluster
        .patch("/api/v1/namespaces/default/status", MERGE, forged)
        .await
        .expect(200);
    assert_eq!(namespace["status"]["phase"], "Active");
    let body = config_map("more", json!({}), json!({}));
    cluster.post(MAPS, body).await.expect(201);
    cluster.get(&format!("{MAPS}/kept")).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn definition_cannot_replace_built_in_resource() {
    let cluster = Cluster::bare().await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "leases.coordination.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved"},
        },
        "spec": {
            "group": "coordination.k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "leases", "kind": "Lease"},
            "versions": [{"name": "v9", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let message = cluster.post(path, definition).await.fails(422, "Invalid");
    assert!(message.contains("spec.names.plural"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn no_object_grows_beyond_its_limit() {
    let cluster = Cluster::bare().await;
    let event = |text: usize| {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": format!("e{text}"), "namespace": "default"},
            "involvedObject": {"namespace": "default"},
            "message": "x".repeat(text),
        })
    };
    let path = "/api/v1/namespaces/default/events";
    cluster.post(path, event(1 << 20)).await.expect(201);
    cluster
        .post(path, event(1600 << 10))
        .await
        .fails(413, "RequestEntityTooLarge");
    // A patch adds to the existing object.
    let large_source = json!({"source": {"component": "y".repeat(700 << 10)}});
    cluster
        .patch(&format!("{path}/e{}", 1 << 20), MERGE, large_source)
        .await
        .fails(413, "RequestEntityTooLarge");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_keeps_its_preconditions() {
    let cluster = Cluster::bare().await;
    let created = cluster.post(PODS, pod("a")).await.expect(201);
    let evict = |preconditions: Value| {
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"},
            "deleteOptions": {"preconditions": preconditions}})
    };
    let path = format!("{PODS}/a/eviction");
    for wrong in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        cluster
            .post(&path, evict(wrong))
            .await
            .fails(409, "Conflict");
    }
    let untouched = cluster.get(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(untouched, created);
    let version = &created["metadata"]["resourceVersion"];
    cluster
        .post(&path, evict(json!({"resourceVersion": version})))
        .await
        .expect(201);
    cluster
        .get(&format!("{PODS}/a"))
        .await
        .fails(404, "NotFound");
}

#[tokio::test(start_paused = true)]
async fn numbers_beyond_the_clock_do_not_stop_a_controller() {
    let cluster = Cluster::start().await;
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    for (name, deadline) in [("long", i64::MAX), ("next", 600)] {
        let job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {"activeDeadlineSeconds": deadline, "template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
        });
        cluster.post(jobs, job).await.expect(201);
        cluster
            .until(&format!("{jobs}/{name}"), |a| {
                a.body["status"]["active"] == 1
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn impersonation_changes_the_effective_user() {
    let cluster = Cluster::bare().await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    for (user, code) in [(Some("bob"), 201), (None, 400)] {
        let mut request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header("content-type", "application/json")
            .header("impersonate-group", "testers");
        if let Some(user) = user {
            request = request.header("impersonate-user", user);
        }
        let request = request.body(Body::from(review.to_string())).unwrap();
        let answer = cluster.raw(request).await;
        assert_eq!(answer.status(), code);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        if let Some(user) = user {
            let info = &body["status"]["userInfo"];
            assert_eq!(info["username"], user);
            assert_eq!(info["groups"], json!(["testers", "system:authenticated"]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn terminating_namespace_refuses_bindings_and_evictions() {
    let cluster = Cluster::bare().await;
    let ending = json!({"metadata": {"name": "ending"}});
    cluster.post("/api/v1/namespaces", ending).await.expect(201);
    let pods = "/api/v1/namespaces/ending/pods";
    cluster.post(pods, pod("p")).await.expect(201);
    cluster
        .delete("/api/v1/namespaces/ending", json!({}))
        .await
        .expect(200);
    let to = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let eviction = json!({"metadata": {"name": "p"}});
    for (sub, body) in [("binding", to), ("eviction", eviction)] {
        let answer = cluster.post(&format!("{pods}/p/{sub}"), body).await;
        assert_eq!(
            answer.body["details"]["causes"][0]["reason"], "NamespaceTerminating",
            "{}",
            answer.body
        );
        answer.fails(403, "Forbidden");
    }
    let pod = cluster.get(&format!("{pods}/p")).await.expect(200);
    assert_eq!(pod["spec"].get("nodeName"), None);
}
