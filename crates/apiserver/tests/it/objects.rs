//! Create, read, update, patch, and invalid bodies.

use crate::support::{APPLY, Cluster, JSON_PATCH, MERGE, STRATEGIC, config_map, pod, version};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn kube_client_creates_reads_updates_and_deletes() {
    let cluster = Cluster::bare().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some("a".into()),
            ..ObjectMeta::default()
        },
        data: Some([("k".to_owned(), "v".to_owned())].into()),
        ..ConfigMap::default()
    };
    let created = maps.create(&PostParams::default(), &map).await.unwrap();
    assert!(created.metadata.uid.is_some() && created.metadata.creation_timestamp.is_some());
    assert_eq!(created.metadata.namespace.as_deref(), Some("default"));

    let exists = maps.create(&PostParams::default(), &map).await.unwrap_err();
    let kube::Error::Api(status) = exists else {
        panic!("{exists:?}")
    };
    assert_eq!(
        (status.code, status.reason.as_str()),
        (409, "AlreadyExists")
    );
    assert_eq!(status.message, "configmaps \"a\" already exists");

    let mut changed = created.clone();
    changed.data = Some([("k".to_owned(), "w".to_owned())].into());
    let changed = maps
        .replace("a", &PostParams::default(), &changed)
        .await
        .unwrap();
    assert_ne!(
        changed.metadata.resource_version,
        created.metadata.resource_version
    );

    let stale = maps
        .replace("a", &PostParams::default(), &created)
        .await
        .unwrap_err();
    let kube::Error::Api(status) = stale else {
        panic!("{stale:?}")
    };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert_eq!(
        status.message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please \
         apply your changes to the latest version and try again"
    );

    let patched = maps
        .patch(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"data": {"n": "1", "k": null}})),
        )
        .await
        .unwrap();
    assert_eq!(
        patched.data.unwrap(),
        [("n".to_owned(), "1".to_owned())].into()
    );
    assert_eq!(
        maps.list(&ListParams::default()).await.unwrap().items.len(),
        1
    );

    let removed = maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(removed.is_right(), "a Status, not the object");
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn unchanged_write_keeps_the_version() {
    let cluster = Cluster::bare().await;
    let created = cluster
        .post(MAPS, config_map("a", json!({}), json!({"k": "v"})))
        .await
        .expect(201);
    let before = cluster.server.store().revision();
    let path = format!("{MAPS}/a");
    let unchanged = cluster.put(&path, created.clone()).await.expect(200);
    assert_eq!(version(&unchanged), version(&created));
    cluster
        .patch(&path, MERGE, json!({"data": {"k": "v"}}))
        .await
        .expect(200);
    assert_eq!(cluster.server.store().revision(), before);
}

#[tokio::test]
async fn dry_run_stores_nothing() {
    let cluster = Cluster::bare().await;
    let before = cluster.server.store().revision();
    let path = format!("{MAPS}?dryRun=All");
    let created = cluster
        .post(&path, config_map("a", json!({}), json!({})))
        .await
        .expect(201);
    assert!(created["metadata"]["uid"].is_string());
    cluster
        .get(&format!("{MAPS}/a"))
        .await
        .fails(404, "NotFound");
    assert_eq!(cluster.server.store().revision(), before);
    cluster
        .post(MAPS, config_map("a", json!({}), json!({})))
        .await
        .expect(201);
    cluster
        .delete(&format!("{MAPS}/a"), json!({"dryRun": ["All"]}))
        .await
        .expect(200);
    cluster.get(&format!("{MAPS}/a")).await.expect(200);
    let message = cluster
        .post(
            &format!("{MAPS}?dryRun=Most"),
            config_map("b", json!({}), json!({})),
        )
        .await
        .fails(422, "Invalid");
    assert!(
        message.contains("dryRun: Unsupported value: \"Most\""),
        "{message}"
    );
}

#[tokio::test]
async fn names_are_generated_and_namespaces_checked() {
    let cluster = Cluster::bare().await;
    let mut map = config_map("", json!({}), json!({}));
    map["metadata"] = json!({"generateName": "web-"});
    let a = cluster.post(MAPS, map.clone()).await.expect(201);
    let b = cluster.post(MAPS, map.clone()).await.expect(201);
    assert_ne!(a["metadata"]["name"], b["metadata"]["name"]);
    assert!(a["metadata"]["name"].as_str().unwrap().starts_with("web-"));

    let message = cluster
        .post("/api/v1/namespaces/nowhere/configmaps", map.clone())
        .await
        .fails(404, "NotFound");
    assert_eq!(message, "namespaces \"nowhere\" not found");
    map["metadata"]["namespace"] = "kube-system".into();
    let message = cluster
        .post(MAPS, map.clone())
        .await
        .fails(400, "BadRequest");
    assert_eq!(
        message,
        "the namespace of the provided object does not match the namespace sent on the request"
    );
    map["metadata"] = json!({"name": "Not_A_Name"});
    let message = cluster.post(MAPS, map).await.fails(422, "Invalid");
    assert!(
        message.starts_with("ConfigMap \"Not_A_Name\" is invalid: metadata.name: Invalid value"),
        "{message}"
    );
}

#[tokio::test]
async fn each_patch_type_is_applied() {
    let cluster = Cluster::bare().await;
    cluster.post(PODS, pod("p")).await.expect(201);
    let path = format!("{PODS}/p");

    let body = json!([{"op": "add", "path": "/metadata/labels/a", "value": "1"}]);
    let p = cluster.patch(&path, JSON_PATCH, body).await.expect(200);
    assert_eq!(p["metadata"]["labels"], json!({"app": "p", "a": "1"}));

    let body = json!({"metadata": {"labels": {"a": null}}});
    let p = cluster.patch(&path, MERGE, body).await.expect(200);
    assert_eq!(p["metadata"]["labels"], json!({"app": "p"}));

    // Lists with a merge key are merged by it: the container keeps its other fields.
    let body = json!({"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}});
    let p = cluster.patch(&path, STRATEGIC, body).await.expect(200);
    assert_eq!(p["spec"]["containers"].as_array().unwrap().len(), 1);
    assert_eq!(p["spec"]["containers"][0]["image"], "busybox:2");
    assert_eq!(
        p["spec"]["containers"][0]["terminationMessagePath"],
        "/dev/termination-log"
    );

    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"},
        "data": {"k": "v"}});
    let apply = format!("{MAPS}/s?fieldManager=me");
    cluster.patch(&apply, APPLY, body.clone()).await.expect(201);
    cluster.patch(&apply, APPLY, body.clone()).await.expect(200);
    let message = cluster
        .patch(&format!("{MAPS}/s"), APPLY, body)
        .await
        .fails(422, "Invalid");
    assert!(
        message.contains("fieldManager: Required value"),
        "{message}"
    );
}

#[tokio::test]
async fn a_patch_with_a_version_is_a_precondition() {
    let cluster = Cluster::bare().await;
    let created = cluster
        .post(MAPS, config_map("a", json!({}), json!({})))
        .await
        .expect(201);
    let path = format!("{MAPS}/a");
    let with = |v: u64, value: &str| json!({"metadata": {"resourceVersion": v.to_string()}, "data": {"k": value}});
    cluster
        .patch(&path, MERGE, with(version(&created), "1"))
        .await
        .expect(200);
    cluster
        .patch(&path, MERGE, with(version(&created), "2"))
        .await
        .fails(409, "Conflict");
}

#[tokio::test]
async fn concurrent_patches_without_a_version_all_get_in() {
    let cluster = std::sync::Arc::new(Cluster::bare().await);
    cluster
        .post(MAPS, config_map("a", json!({}), json!({})))
        .await
        .expect(201);
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..40 {
        let cluster = cluster.clone();
        tasks.spawn(async move {
            let body = json!({"data": {format!("k{i}"): "v"}});
            cluster
                .patch(&format!("{MAPS}/a"), MERGE, body)
                .await
                .expect(200);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let map = cluster.get(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(map["data"].as_object().unwrap().len(), 40);
}

#[tokio::test]
async fn bad_patches_are_explained() {
    let cluster = Cluster::bare().await;
    cluster
        .post(MAPS, config_map("a", json!({}), json!({})))
        .await
        .expect(201);
    let path = format!("{MAPS}/a");
    let send = |kind: &'static str, body: &'static str| cluster.send("PATCH", &path, kind, body);
    let message = send(JSON_PATCH, "{nope").await.fails(400, "BadRequest");
    assert!(message.starts_with("error decoding patch"), "{message}");
    send(MERGE, "[1]").await.fails(400, "BadRequest");
    send(MERGE, "{").await.fails(400, "BadRequest");
    let failing = r#"[{"op":"test","path":"/data","value":{"x":"y"}}]"#;
    send(JSON_PATCH, failing).await.fails(422, "Invalid");
    let message = send("text/css", "{}")
        .await
        .fails(415, "UnsupportedMediaType");
    assert!(
        message.contains("application/merge-patch+json"),
        "{message}"
    );
    let message = send(MERGE, r#"{"data": 5}"#).await.fails(422, "Invalid");
    assert!(message.contains("patch: Invalid value"), "{message}");
    cluster
        .patch(&format!("{MAPS}/none"), MERGE, json!({}))
        .await
        .fails(404, "NotFound");
    let message = cluster
        .patch(
            &format!("{path}?fieldValidation=Strict"),
            MERGE,
            json!({"spec": {}}),
        )
        .await
        .fails(422, "Invalid");
    assert!(
        message.contains("strict decoding error: unknown field \\\"spec\\\"")
            || message.contains("unknown field \"spec\""),
        "{message}"
    );
}

#[tokio::test]
async fn unknown_and_duplicate_fields_by_validation_mode() {
    let cluster = Cluster::bare().await;
    let body = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},
        "spec":{"containers":[{"name":"c","image":"i","name":"c","imgae":1}],"foo":true}}"#;
    let strict = format!("{PODS}?fieldValidation=Strict");
    let message = cluster
        .send("POST", &strict, "application/json", body)
        .await
        .fails(400, "BadRequest");
    assert_eq!(
        message,
        "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: duplicate field \
         \"spec.containers[0].name\", unknown field \"spec.containers[0].imgae\", unknown field \
         \"spec.foo\""
    );
    let warn = format!("{PODS}?fieldValidation=Warn&dryRun=All");
    let answer = cluster.send("POST", &warn, "application/json", body).await;
    let warnings: Vec<_> = answer
        .headers
        .get_all("warning")
        .iter()
        .map(|v| v.to_str().unwrap().to_owned())
        .collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert_eq!(warnings[2], "299 - \"unknown field \\\"spec.foo\\\"\"");
    assert!(
        answer.expect(201)["spec"].get("foo").is_none(),
        "unknown fields are dropped"
    );
    let ignore = format!("{PODS}?fieldValidation=Ignore");
    let answer = cluster
        .send("POST", &ignore, "application/json", body)
        .await;
    assert!(!answer.headers.contains_key("warning"));
    answer.expect(201);
}

#[tokio::test]
async fn bad_bodies_name_field_and_value() {
    let cluster = Cluster::bare().await;
    let post = |body: &'static str| cluster.send("POST", PODS, "application/json", body);
    post("{").await.fails(400, "BadRequest");
    post("").await.fails(400, "BadRequest");
    post("[]").await.fails(400, "BadRequest");
    let message = post(r#"{"kind":"Pod","apiVersion":"v2","metadata":{"name":"p"}}"#)
        .await
        .fails(400, "BadRequest");
    assert_eq!(
        message,
        "the API version in the data (v2) does not match the expected API version (v1)"
    );
    post(r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"p"}}"#)
        .await
        .fails(400, "BadRequest");
    let message = post(r#"{"metadata":{"name":"p"},"spec":{"containers":"none"}}"#)
        .await
        .fails(400, "BadRequest");
    assert!(message.contains("spec.containers"), "{message}");
    let mut bad = pod("p");
    bad["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1x"}});
    let answer = cluster.post(PODS, bad).await;
    assert!(answer.code == 400 || answer.code == 422, "{}", answer.body);
    let message = answer.body["message"].as_str().unwrap();
    assert!(
        message.contains("1x") || message.contains("quantities must match"),
        "{message}"
    );
    let message = post(r#"{"metadata":{"name":"p"},"spec":{}}"#)
        .await
        .fails(422, "Invalid");
    assert!(
        message.contains("spec.containers: Required value"),
        "{message}"
    );
    let big = format!(r#"{{"metadata":{{"name":"{}"}}}}"#, "x".repeat(4 << 20));
    let answer = cluster.send("POST", PODS, "application/json", &big).await;
    answer.fails(413, "RequestEntityTooLarge");
    cluster
        .send("POST", PODS, "application/cbor", "x")
        .await
        .fails(415, "UnsupportedMediaType");
}

#[tokio::test]
async fn bad_selectors_and_unknown_paths() {
    let cluster = Cluster::bare().await;
    let message = cluster
        .get(&format!("{PODS}?labelSelector=a%3D%28"))
        .await
        .fails(400, "BadRequest");
    assert!(
        message.starts_with("unable to parse requirement"),
        "{message}"
    );
    let message = cluster
        .get(&format!("{PODS}?fieldSelector=spec.foo%3D1"))
        .await
        .fails(400, "BadRequest");
    assert_eq!(message, "field label not supported: spec.foo");
    cluster
        .get(&format!("{PODS}?limit=many"))
        .await
        .fails(400, "BadRequest");
    for path in [
        "/api/v1/foos",
        "/apis/nope/v1/things",
        "/nowhere",
        "/api/v1/pods/p",
        "/api/v2",
        "/apis/apps/v1/namespaces/x/nodes",
    ] {
        let message = cluster.get(path).await.fails(404, "NotFound");
        assert_eq!(
            message, "the server could not find the requested resource",
            "{path}"
        );
    }
    let message = cluster
        .get(&format!("{PODS}/p"))
        .await
        .fails(404, "NotFound");
    assert_eq!(message, "pods \"p\" not found");
    cluster
        .post("/api/v1/pods", pod("p"))
        .await
        .fails(405, "MethodNotAllowed");
    cluster
        .send("PUT", PODS, "application/json", "{}")
        .await
        .fails(405, "MethodNotAllowed");
    let raw = http::Request::get(PODS)
        .header("accept", "application/cbor")
        .body(axum::body::Body::empty())
        .unwrap();
    assert_eq!(cluster.raw(raw).await.status(), 406);
}

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let cluster = Cluster::bare().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"capacity": {"cpu": "4", "memory": "8Gi"}}});
    cluster.post("/api/v1/nodes", node).await.expect(201);
    // Like koordlet and the manager: extended resources and metadata in one status patch.
    let body = json!({"metadata": {"annotations": {"a": "b"}},
        "status": {"allocatable": {"kubernetes.io/batch-cpu": "2000"}}});
    let n = cluster
        .patch("/api/v1/nodes/n/status", STRATEGIC, body)
        .await
        .expect(200);
    assert_eq!(n["status"]["allocatable"]["kubernetes.io/batch-cpu"], "2k");
    assert_eq!(n["metadata"]["annotations"]["a"], "b");
    let body = json!({"spec": {"unschedulable": true}, "status": {"phase": "Bogus"}});
    let n = cluster
        .patch("/api/v1/nodes/n", STRATEGIC, body)
        .await
        .expect(200);
    assert_eq!(n["spec"]["unschedulable"], true);
    assert!(n["status"].get("phase").is_none());
}

#[tokio::test]
async fn scale_and_reviews() {
    let cluster = Cluster::bare().await;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let all = "/apis/apps/v1/namespaces/default/deployments";
    cluster.post(all, deployment).await.expect(201);
    let path = format!("{all}/web/scale");
    let scale = cluster.get(&path).await.expect(200);
    assert_eq!(scale["spec"]["replicas"], 2);
    assert_eq!(scale["status"]["selector"], "app=web");
    let scale = cluster
        .patch(&path, MERGE, json!({"spec": {"replicas": 5}}))
        .await
        .expect(200);
    assert_eq!(
        (&scale["kind"], &scale["spec"]["replicas"]),
        (&json!("Scale"), &json!(5))
    );
    let d = cluster.get(&format!("{all}/web")).await.expect(200);
    assert_eq!(
        (&d["spec"]["replicas"], &d["metadata"]["generation"]),
        (&json!(5), &json!(2))
    );
    cluster
        .patch(&path, MERGE, json!({"spec": {"replicas": -1}}))
        .await
        .fails(422, "Invalid");

    let review = json!({"spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}});
    let can = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(
        cluster.post(can, review).await.expect(201)["status"]["allowed"],
        true
    );
    let subject_reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let requested = json!({"verb": "get", "path": "/metrics"});
    for (user, group, allowed) in [
        ("ann", "system:monitoring", true),
        ("ann", "system:authenticated", false),
        ("system:anonymous", "system:unauthenticated", false),
        ("", "system:unauthenticated", false),
    ] {
        let spec = json!({"user": user, "groups": [group], "nonResourceAttributes": requested});
        let answer = cluster
            .post(subject_reviews, json!({"spec": spec}))
            .await
            .expect(201);
        assert_eq!(answer["status"]["allowed"], allowed, "{user} {group}");
    }
    let manager_index = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let me = cluster.post(manager_index, json!({})).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "kubernetes-admin");
    let token = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = cluster.post(token, json!({"spec": {}})).await.expect(201);
    assert!(token["status"]["token"].is_string());
    let review = json!({"spec": {"token": token["status"]["token"]}});
    let reviewed = cluster
        .post("/apis/authentication.k8s.io/v1/tokenreviews", review)
        .await
        .expect(201);
    assert_eq!(
        reviewed["status"]["user"]["username"],
        "system:serviceaccount:default:default"
    );
}

/// The expected responses are those of a kube-apiserver 1.35.6.
#[tokio::test(start_paused = true)]
async fn parts_that_a_client_leaves_out_are_there_and_empty() {
    let cluster = Cluster::bare().await;
    for (path, api_version, kind, parts) in [
        ("/api/v1/nodes", "v1", "Node", &["spec"][..]),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            "coordination.k8s.io/v1",
            "Lease",
            &["spec"],
        ),
        (
            "/api/v1/namespaces/default/resourcequotas",
            "v1",
            "ResourceQuota",
            &["spec", "status"],
        ),
    ] {
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "o"}});
        let created = cluster.post(path, object).await.expect(201);
        let read = cluster.get(&format!("{path}/o")).await.expect(200);
        assert_eq!(created, read, "{kind}");
        for part in parts {
            assert_eq!(read[part], json!({}), "{kind} {part}");
        }
    }
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "o"}});
    let path = "/api/v1/namespaces/default/serviceaccounts";
    let account = cluster.post(path, account).await.expect(201);
    assert!(account.get("spec").is_none() && account.get("status").is_none());
}
