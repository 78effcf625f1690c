//! Custom resource definitions in difficult cases: deletion, versions, defaults, unsupported features.

use crate::support::{Answer, Cluster, MERGE};
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use serde_json::{Value, json};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn schema(properties: Value) -> Value {
    json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": properties}}}})
}

fn version(name: &str, served: bool, storage: bool, properties: Value) -> Value {
    json!({"name": name, "served": served, "storage": storage, "schema": schema(properties)})
}

fn definition(versions: &[Value]) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "versions": versions,
            "names": {"plural": "widgets", "kind": "Widget"}}})
}

fn plain() -> Value {
    definition(&[version(
        "v1",
        true,
        true,
        json!({"size": {"type": "integer"}}),
    )])
}

fn widget(name: &str, version: &str) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget",
        "metadata": {"name": name}, "spec": {"size": 1}})
}

/// Replaces the definition.
async fn redefine(cluster: &Cluster, mut new: Value) -> Answer {
    let path = format!("{CRDS}/widgets.example.com");
    let old = cluster.get(&path).await.expect(200);
    new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
    cluster.put(&path, new).await
}

fn warnings(answer: &Answer) -> Vec<&str> {
    let all = answer.headers.get_all("warning").iter();
    all.map(|w| w.to_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_while_the_definition_terminates() {
    let cluster = Cluster::start().await;
    cluster.post(CRDS, plain()).await.expect(201);
    let mut owned_rules = widget("held", "v1");
    owned_rules["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(WIDGETS, owned_rules).await.expect(201);
    let path = format!("{CRDS}/widgets.example.com");
    cluster.delete(&path, json!({})).await.expect(200);
    let message = cluster
        .post(WIDGETS, widget("late", "v1"))
        .await
        .fails(403, "Forbidden");
    assert_eq!(
        message,
        "widgets.example.com \"late\" is forbidden: create not allowed while custom resource \
         definition is terminating"
    );
    let group = cluster.get("/apis/example.com/v1").await.expect(200);
    assert_eq!(
        group["resources"][0]["verbs"],
        json!(["delete", "deletecollection", "get", "list", "watch"])
    );
    // Finalizers of existing objects can still be removed.
    let free = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&format!("{WIDGETS}/held"), MERGE, free)
        .await
        .expect(200);
    cluster.until_gone(&path).await;
    // A new definition with the same name starts empty.
    cluster.post(CRDS, plain()).await.expect(201);
    let list = cluster.get(WIDGETS).await.expect(200);
    assert_eq!(list["items"], json!([]));
    cluster
        .post(WIDGETS, widget("late", "v1"))
        .await
        .expect(201);
}

#[tokio::test]
async fn terminating_definition_stays_empty_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || async {
        let clock = Clock::following_tokio("2026-03-01T12:00:00Z".parse().unwrap());
        let server = ApiServer::open(Config::dir(dir.path(), clock))
            .await
            .unwrap();
        Cluster { server }
    };
    let cluster = open().await;
    let mut owned_rules = plain();
    owned_rules["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(CRDS, owned_rules).await.expect(201);
    cluster.post(WIDGETS, widget("w", "v1")).await.expect(201);
    let path = format!("{CRDS}/widgets.example.com");
    cluster.delete(&path, json!({})).await.expect(200);
    cluster
        .until(&path, |a| {
            a.body["metadata"]["finalizers"] == json!(["example.com/hold"])
        })
        .await;
    cluster.get(WIDGETS).await.fails(404, "NotFound");
    cluster.server.close().await;
    drop(cluster);

    let cluster = open().await;
    cluster.get(&path).await.expect(200);
    cluster.get(WIDGETS).await.fails(404, "NotFound");
    cluster.post(WIDGETS, widget("w", "v1")).await.expect(404);
    cluster.server.close().await;
}

#[tokio::test(start_paused = true)]
async fn unserved_storage_version_hides_nothing() {
    let cluster = Cluster::start().await;
    let size = || json!({"size": {"type": "integer"}});
    let versions = [
        version("v1", true, false, size()),
        version("v2", false, true, size()),
    ];
    cluster.post(CRDS, definition(&versions)).await.expect(201);
    let owner = cluster
        .post(WIDGETS, widget("owner", "v1"))
        .await
        .expect(201);
    assert_eq!(owner["apiVersion"], "example.com/v1");
    let mut child = widget("child", "v1");
    child["metadata"]["ownerReferences"] = json!([{"apiVersion": "example.com/v1",
        "kind": "Widget", "name": "owner", "uid": owner["metadata"]["uid"]}]);
    cluster.post(WIDGETS, child).await.expect(201);
    // The garbage collector handles it.
    cluster
        .delete(&format!("{WIDGETS}/owner"), json!({}))
        .await
        .expect(200);
    cluster.until_gone(&format!("{WIDGETS}/child")).await;
    // So does the deletion of a namespace.
    let team = json!({"metadata": {"name": "team"}});
    cluster.post("/api/v1/namespaces", team).await.expect(201);
    let present = "/apis/example.com/v1/namespaces/team/widgets";
    cluster.post(present, widget("w", "v1")).await.expect(201);
    cluster
        .delete("/api/v1/namespaces/team", json!({}))
        .await
        .expect(200);
    cluster.until_gone("/api/v1/namespaces/team").await;
    let all = cluster
        .get("/apis/example.com/v1/widgets")
        .await
        .expect(200);
    assert_eq!(all["items"], json!([]));
    // The deletion of the definition waits for finalizers.
    let mut owned_rules = widget("held", "v1");
    owned_rules["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(WIDGETS, owned_rules).await.expect(201);
    let path = format!("{CRDS}/widgets.example.com");
    cluster.delete(&path, json!({})).await.expect(200);
    cluster
        .until(&format!("{WIDGETS}/held"), |a| {
            a.body["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    cluster.get(&path).await.expect(200);
    let free = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&format!("{WIDGETS}/held"), MERGE, free)
        .await
        .expect(200);
    cluster.until_gone(&path).await;
}

#[tokio::test(start_paused = true)]
async fn reads_apply_current_defaults_and_version() {
    let cluster = Cluster::start().await;
    let size = || json!({"size": {"type": "integer"}});
    cluster.post(CRDS, plain()).await.expect(201);
    cluster.post(WIDGETS, widget("w", "v1")).await.expect(201);
    // A default that was added later.
    let colored =
        || json!({"size": {"type": "integer"}, "color": {"type": "string", "default": "red"}});
    redefine(
        &cluster,
        definition(&[version("v1", true, true, colored())]),
    )
    .await
    .expect(200);
    let expected = json!({"size": 1, "color": "red"});
    let path = format!("{WIDGETS}/w");
    let w = cluster.get(&path).await.expect(200);
    assert_eq!(w["spec"], expected);
    let list = cluster.get(WIDGETS).await.expect(200);
    assert_eq!(list["items"][0]["spec"], expected);
    let mut watch = cluster.watch(&format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["spec"], expected);
    // Another storage version: objects stored before are read in the requested version.
    let versions = [
        version("v1", true, false, size()),
        version("v2", true, true, size()),
    ];
    redefine(&cluster, definition(&versions)).await.expect(200);
    for v in ["v1", "v2"] {
        let present = format!("/apis/example.com/{v}/namespaces/default/widgets");
        let w = cluster.get(&format!("{present}/w")).await.expect(200);
        assert_eq!(w["apiVersion"], format!("example.com/{v}"));
        let list = cluster.get(&present).await.expect(200);
        assert_eq!(list["items"][0]["apiVersion"], format!("example.com/{v}"));
    }
}

#[tokio::test(start_paused = true)]
async fn strict_problems_come_in_upstreams_order() {
    let cluster = Cluster::bare().await;
    cluster.post(CRDS, plain()).await.expect(201);
    let body = r#"{"apiVersion":"example.com/v1","kind":"Widget",
        "metadata":{"name":"x","zz":1,"aa":2},
        "spec":{"size":1,"b":[1],"size":2},"bogus":1,"another":1,"bogus":2}"#;
    let path = format!("{WIDGETS}?fieldValidation=Strict");
    let message = cluster
        .send("POST", &path, "application/json", body)
        .await
        .fails(400, "BadRequest");
    // The response of kube-apiserver 1.35.
    assert_eq!(
        message,
        "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: duplicate \
         field \"spec.size\", duplicate field \"bogus\", unknown field \"metadata.aa\", unknown \
         field \"metadata.zz\", unknown field \"another\", unknown field \"bogus\", unknown field \
         \"spec.b\""
    );
}

#[tokio::test(start_paused = true)]
async fn rules_and_conversions_that_are_not_run_are_named() {
    let cluster = Cluster::bare().await;
    let mut crd = plain();
    assert!(
        warnings(
            &cluster
                .post(&format!("{CRDS}?dryRun=All"), crd.clone())
                .await
        )
        .is_empty()
    );
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        json!([{"rule": "self.size > 0"}, {"rule": "self.size < 9"}]);
    crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"}}});
    let created = cluster.post(CRDS, crd).await;
    assert_eq!(
        warnings(&created),
        [
            "299 - \"spec.versions: x-kubernetes-validations are not evaluated (2 rules): CEL is not supported\"",
            "299 - \"spec.conversion: the webhook is not called: conversion changes only the apiVersion\""
        ]
    );
    created.expect(201);
}

#[tokio::test(start_paused = true)]
async fn kinds_without_effect_return_warnings() {
    let cluster = Cluster::bare().await;
    let scaler = json!({"metadata": {"name": "s"}, "spec": {"maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let created = cluster.post(path, scaler).await;
    let expected = "299 - \"horizontalpodautoscalers.autoscaling are stored without effect here: no \
                  controller scales by them\"";
    assert_eq!(warnings(&created), [expected]);
    created.expect(201);
    let service = |ip: Value| {
        json!({"metadata": {"generateName": "s-"},
            "spec": {"clusterIP": ip, "ports": [{"port": 80}]}})
    };
    let services = "/api/v1/namespaces/default/services";
    let created = cluster.post(services, service(Value::Null)).await;
    let expected = "299 - \"spec.clusterIP: the address is not routed, and no endpoints are created for the service\"";
    assert_eq!(warnings(&created), [expected]);
    created.expect(201);
    let headless = cluster.post(services, service("None".into())).await;
    assert!(warnings(&headless).is_empty());
    headless.expect(201);
}

#[tokio::test(start_paused = true)]
async fn deprecated_version_returns_warning() {
    let cluster = Cluster::start().await;
    let of = |name: &str, storage: bool, more: Value| {
        let mut version = version(name, true, storage, json!({"size": {"type": "integer"}}));
        for (key, value) in more.as_object().unwrap() {
            version[key] = value.clone();
        }
        version
    };
    // A custom warning needs the `deprecated` flag and must be printable.
    for (more, says) in [
        (
            json!({"deprecationWarning": "gone soon"}),
            "can only be set for deprecated versions",
        ),
        (
            json!({"deprecated": true, "deprecationWarning": ""}),
            "must not be an empty string",
        ),
        (
            json!({"deprecated": true, "deprecationWarning": "a".repeat(257)}),
            "must be <= 256 characters long",
        ),
        (
            json!({"deprecated": true, "deprecationWarning": "a\nb"}),
            "non-printable character found at index 1",
        ),
    ] {
        let answer = cluster
            .post(CRDS, definition(&[of("v1", true, more)]))
            .await;
        let message = answer.fails(422, "Invalid");
        let field = "spec.versions[0].deprecationWarning: Invalid value: ";
        assert!(
            message.contains(field) && message.contains(says),
            "{message}"
        );
    }
    let deprecated = json!({"deprecated": true});
    let worded = json!({"deprecated": true, "deprecationWarning": "gone \"soon\""});
    let versions = [
        of("v1alpha1", false, deprecated.clone()),
        of("v1beta1", false, worded),
        of("v1", false, json!({})),
        of("v2", true, json!({})),
        of("v3", false, deprecated),
    ];
    cluster.post(CRDS, definition(&versions)).await.expect(201);
    let path = |version: &str| WIDGETS.replace("/v1/", &format!("/{version}/"));
    cluster.post(WIDGETS, widget("a", "v1")).await.expect(201);
    for (version, warning) in [
        (
            "v1alpha1",
            Some(r#"299 - "example.com/v1alpha1 Widget is deprecated; use example.com/v2 Widget""#),
        ),
        ("v1beta1", Some(r#"299 - "gone \"soon\"""#)),
        ("v2", None),
        ("v3", Some(r#"299 - "example.com/v3 Widget is deprecated""#)),
    ] {
        for path in [path(version), format!("{}/a", path(version))] {
            let answer = cluster.get(&path).await;
            assert_eq!(warnings(&answer), warning.as_slice(), "{path}");
            answer.expect(200);
        }
    }
}
