//! Admission webhooks, over HTTPS and in this process.

use crate::hooks::{
    Handler, Reply, Server, Transport, allow, configurations, configure, hook, patch, reachable,
    rule,
};
use crate::support::{APPLY, Cluster, MERGE, config_map, pod};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const BOTH: [Transport; 2] = [Transport::Https, Transport::InProcess];

type RecordedRequests = Arc<Mutex<Vec<Value>>>;

/// Allows everything and records the requests.
fn recorder() -> (Handler, RecordedRequests) {
    let observed = RecordedRequests::default();
    let record = observed.clone();
    let handler: Handler = Arc::new(move |request| {
        record.lock().push(request.clone());
        allow()
    });
    (handler, observed)
}

fn handler(answer: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Handler {
    Arc::new(answer)
}

fn line(request: &Value) -> String {
    let text = |key: &str| request[key].as_str().unwrap_or("").to_owned();
    format!(
        "{} {}/{} {}/{} {}{}",
        text("operation"),
        request["resource"]["resource"].as_str().unwrap(),
        text("subResource"),
        text("namespace"),
        text("name"),
        request["kind"]["kind"].as_str().unwrap(),
        if request["dryRun"] == true {
            " dry"
        } else {
            ""
        },
    )
}

fn label() -> Value {
    json!({ "metadata": { "labels": { "a": "b" } } })
}

fn deployment() -> Value {
    json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}},
            "spec": {"containers": [{"name": "main", "image": "busybox:1"}]}}}})
}

fn named(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}

#[tokio::test]
async fn each_verb_calls_both_webhook_kinds_once() {
    for way in BOTH {
        let cluster = Cluster::bare().await;
        let (handler, seen) = recorder();
        for kind in ["Mutating", "Validating"] {
            let client = reachable(&cluster, way, handler.clone()).await;
            configure(&cluster, kind, "all", json!([hook(&client, &json!({}))])).await;
        }
        assert_eq!(*seen.lock(), [Value::Null; 0], "configurations are exempt");
        let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 0,
            "selector": {"matchLabels": {"app": "p"}}}});
        let budget_status = json!({"status": {"disruptionsAllowed": 1, "currentHealthy": 1,
            "observedGeneration": 1, "desiredHealthy": 0, "expectedPods": 1}});
        let ready = json!({"status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}]}});
        let capacity = json!({"status": {"capacity": {"kubernetes.io/batch-cpu": "1000"}}});
        let to = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
        let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        let map = format!("{MAPS}/a");
        let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
        let post = "application/json";
        #[rustfmt::skip]
        let rows: Vec<(&str, String, &str, Value, &str)> = vec![
            ("POST", "/api/v1/nodes".into(), post, named("n"), "CREATE nodes/ /n Node"),
            ("PATCH", "/api/v1/nodes/n/status".into(), MERGE, capacity, "UPDATE nodes/status /n Node"),
            ("POST", "/api/v1/namespaces".into(), post, named("x"), "CREATE namespaces/ x/x Namespace"),
            ("POST", PODS.into(), post, pod("p"), "CREATE pods/ default/p Pod"),
            ("PATCH", format!("{PODS}/p"), MERGE, label(), "UPDATE pods/ default/p Pod"),
            ("POST", format!("{PODS}/p/binding"), post, to, "CREATE pods/binding default/p Binding"),
            ("PATCH", format!("{PODS}/p/status"), MERGE, ready, "UPDATE pods/status default/p Pod"),
            ("POST", budgets.into(), post, budget, "CREATE poddisruptionbudgets/ default/b PodDisruptionBudget"),
            ("PATCH", format!("{budgets}/b/status"), MERGE, budget_status,
                "UPDATE poddisruptionbudgets/status default/b PodDisruptionBudget"),
            ("POST", format!("{PODS}/p/eviction"), post, named("p"), "CREATE pods/eviction default/p Eviction"),
            ("DELETE", format!("{PODS}/p?gracePeriodSeconds=0"), post, Value::Null, "DELETE pods/ default/p Pod"),
            ("POST", DEPLOYMENTS.into(), post, deployment(), "CREATE deployments/ default/d Deployment"),
            ("PUT", format!("{DEPLOYMENTS}/d/scale"), post, json!({"spec": {"replicas": 2}}),
                "UPDATE deployments/scale default/d Scale"),
            ("PATCH", format!("{map}?fieldManager=m"), APPLY, apply.clone(), "CREATE configmaps/ default/a ConfigMap"),
            ("PATCH", format!("{map}?fieldManager=m"), APPLY, apply, "UPDATE configmaps/ default/a ConfigMap"),
            ("PUT", format!("{map}?dryRun=All"), post, named("a"), "UPDATE configmaps/ default/a ConfigMap dry"),
            ("DELETE", format!("{map}?dryRun=All"), post, Value::Null, "DELETE configmaps/ default/a ConfigMap dry"),
            ("DELETE", MAPS.into(), post, Value::Null, "DELETE configmaps/ default/a ConfigMap"),
        ];
        for (method, path, kind, body, expected) in rows {
            seen.lock().clear();
            let answer = cluster.send(method, &path, kind, &body.to_string()).await;
            assert!(answer.code < 300, "{method} {path}: {}", answer.body);
            let lines: Vec<String> = seen.lock().iter().map(line).collect();
            assert_eq!(lines, [expected, expected], "{way:?} {method} {path}");
        }
    }
}

#[tokio::test]
async fn request_is_an_admission_review() {
    for way in BOTH {
        let cluster = Cluster::bare().await;
        let (handler, observed) = recorder();
        let client = reachable(&cluster, way, handler).await;
        let rules = json!({"rules": [rule(&["*"], &["deployments", "deployments/scale"])]});
        configure(&cluster, "Validating", "v", json!([hook(&client, &rules)])).await;
        let created = cluster.post(DEPLOYMENTS, deployment()).await.expect(201);
        let scale = json!({"spec": {"replicas": 3}});
        let path = format!("{DEPLOYMENTS}/d");
        cluster
            .patch(&format!("{path}/scale?fieldManager=m"), MERGE, scale)
            .await
            .expect(200);
        let options = json!({"preconditions": {"uid": created["metadata"]["uid"]},
            "propagationPolicy": "Background", "gracePeriodSeconds": 5});
        cluster.delete(&path, options.clone()).await.expect(200);
        let observed = observed.lock();
        let uid = |i: usize| observed[i]["uid"].as_str().unwrap();
        assert_ne!(uid(0), uid(1));

        let gvk = json!({"group": "apps", "version": "v1", "kind": "Deployment"});
        let gvr = json!({"group": "apps", "version": "v1", "resource": "deployments"});
        let object = observed[0]["object"].clone();
        assert_eq!(object["spec"]["replicas"], 1, "defaulted");
        assert_eq!(object["metadata"]["uid"], created["metadata"]["uid"]);
        let user = json!({"username": "kubernetes-admin",
            "groups": ["system:masters", "system:authenticated"]});
        let expected = json!({
            "uid": uid(0), "kind": gvk, "resource": gvr, "requestKind": gvk, "requestResource": gvr,
            "name": "d", "namespace": "default", "operation": "CREATE", "userInfo": user,
            "object": object, "oldObject": null, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "tests"},
        });
        assert_eq!(observed[0], expected);

        let update = &observed[1];
        let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        assert_eq!((&update["kind"], &update["requestKind"]), (&scale, &scale));
        assert_eq!(
            (&update["resource"], &update["requestResource"]),
            (&gvr, &gvr)
        );
        assert_eq!(update["subResource"], "scale");
        assert_eq!(update["requestSubResource"], "scale");
        assert_eq!(update["object"]["kind"], "Scale");
        assert_eq!(update["object"]["spec"]["replicas"], 3);
        assert_eq!(update["oldObject"]["spec"]["replicas"], 1);
        let patch =
            json!({"kind": "PatchOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "m"});
        assert_eq!(update["options"], patch);

        let delete = &observed[2];
        assert_eq!(delete["object"], Value::Null);
        assert_eq!(delete["oldObject"]["kind"], "Deployment");
        let mut expected = options;
        expected["kind"] = "DeleteOptions".into();
        expected["apiVersion"] = "meta.k8s.io/v1".into();
        assert_eq!(delete["options"], expected);
    }
}

#[tokio::test]
async fn mutated_pod_is_completed_then_validated() {
    for way in BOTH {
        let cluster = Cluster::bare().await;
        let change = json!([
            {"op": "add", "path": "/spec/containers/0/resources",
                "value": {"limits": {"cpu": "1000m", "memory": "1Gi"}}},
            {"op": "add", "path": "/spec/tolerations/-", "value": {"key": "a", "operator": "Exists"}},
            {"op": "add", "path": "/spec/nothing", "value": 1},
        ]);
        let mutator = handler(move |_| patch(&change));
        let client = reachable(&cluster, way, mutator).await;
        let pods = json!({"rules": [rule(&["CREATE"], &["pods"])]});
        configure(&cluster, "Mutating", "m", json!([hook(&client, &pods)])).await;
        let (record, seen) = recorder();
        let client = reachable(&cluster, way, record).await;
        configure(&cluster, "Validating", "v", json!([hook(&client, &pods)])).await;
        let mut body = pod("p");
        body["metadata"] = json!({"generateName": "p-"});
        let stored = cluster.post(PODS, body).await.expect(201);
        assert_eq!(
            stored["status"]["qosClass"], "Guaranteed",
            "of what the webhook set"
        );
        let resources = &stored["spec"]["containers"][0]["resources"];
        assert_eq!(resources["requests"]["cpu"], "1", "defaulted and canonical");
        assert_eq!(stored["spec"]["tolerations"].as_array().unwrap().len(), 3);
        assert_eq!(stored["spec"]["nothing"], Value::Null, "unknown fields go");
        let request = seen.lock()[0].clone();
        assert_eq!(request["name"], stored["metadata"]["name"]);
        assert_eq!(request["object"]["spec"], stored["spec"]);
        assert_eq!(request["object"]["status"], stored["status"]);
    }
}

#[tokio::test]
async fn webhook_changes_are_validated() {
    let cluster = Cluster::bare().await;
    let bad = json!([{"op": "replace", "path": "/spec/containers/0/name", "value": "Not A Name"}]);
    let client = reachable(
        &cluster,
        Transport::InProcess,
        handler(move |_| patch(&bad)),
    )
    .await;
    let pods = json!({"rules": [rule(&["CREATE"], &["pods"])]});
    configure(&cluster, "Mutating", "m", json!([hook(&client, &pods)])).await;
    let message = cluster.post(PODS, pod("p")).await.fails(422, "Invalid");
    assert!(message.contains("spec.containers[0].name"), "{message}");
}

#[tokio::test]
async fn node_status_binding_and_scale_can_be_changed() {
    for way in BOTH {
        let cluster = Cluster::bare().await;
        let change = handler(|request| match request["kind"]["kind"].as_str() {
            Some("Node") => patch(&json!([
                {"op": "add", "path": "/status/allocatable", "value": {"cpu": "8"}}])),
            Some("Binding") => patch(&json!([
                {"op": "add", "path": "/metadata/annotations", "value": {"seen": "yes"}}])),
            Some("Scale") => patch(&json!([
                {"op": "replace", "path": "/spec/replicas", "value": 7}])),
            other => panic!("{other:?}"),
        });
        let client = reachable(&cluster, way, change).await;
        let rules = json!({"rules": [
            rule(&["*"], &["nodes/status", "pods/binding", "deployments/scale"])]});
        configure(&cluster, "Mutating", "m", json!([hook(&client, &rules)])).await;
        cluster.post("/api/v1/nodes", named("n")).await.expect(201);
        let capacity = json!({"status": {"capacity": {"cpu": "9"}}});
        let node = cluster
            .patch("/api/v1/nodes/n/status", MERGE, capacity)
            .await
            .expect(200);
        assert_eq!(node["status"]["allocatable"]["cpu"], "8");
        cluster.post(PODS, pod("p")).await.expect(201);
        let to = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
        cluster
            .post(&format!("{PODS}/p/binding"), to)
            .await
            .expect(201);
        let bound = cluster.get(&format!("{PODS}/p")).await.expect(200);
        assert_eq!(bound["metadata"]["annotations"]["seen"], "yes");
        assert_eq!(bound["spec"]["nodeName"], "n");
        cluster.post(DEPLOYMENTS, deployment()).await.expect(201);
        let path = format!("{DEPLOYMENTS}/d/scale");
        let scale = cluster
            .put(&path, json!({"spec": {"replicas": 2}}))
            .await
            .expect(200);
        assert_eq!(scale["spec"]["replicas"], 7);
        let stored = cluster.get(&format!("{DEPLOYMENTS}/d")).await.expect(200);
        assert_eq!(stored["spec"]["replicas"], 7);
        assert_eq!(stored["metadata"]["generation"], 2);
    }
}

/// Returns a webhook that appends its name to `data.order`.
fn append(name: &'static str) -> Handler {
    handler(move |request| {
        let before = request["object"]["data"]["order"].as_str().unwrap_or("");
        let value = json!({"order": format!("{before}{name}")});
        patch(&json!([{"op": "add", "path": "/data", "value": value}]))
    })
}

#[tokio::test]
async fn mutating_webhooks_run_in_order_and_reinvoke() {
    for (policies, expected) in [
        // Configurations by name, webhooks as listed. The last one received all changes.
        (["Never", "Never", "IfNeeded"], "bca"),
        // "c" and "a" changed the object after "b" ran.
        (["IfNeeded", "Never", "Never"], "bcab"),
        (["IfNeeded", "IfNeeded", "Never"], "bcabc"),
        // The change by "b" in the second round comes after "a". There is no third round.
        (["IfNeeded", "Never", "IfNeeded"], "bcaba"),
    ] {
        let cluster = Cluster::bare().await;
        let mut hooks = Vec::new();
        for (name, policy) in ["b", "c", "a"].into_iter().zip(policies) {
            let client = reachable(&cluster, Transport::InProcess, append(name)).await;
            let change = json!({"name": format!("{name}.example.com"),
                "rules": [rule(&["CREATE"], &["configmaps"])], "reinvocationPolicy": policy});
            hooks.push(hook(&client, &change));
        }
        configure(&cluster, "Mutating", "y", json!([hooks[2]])).await;
        configure(&cluster, "Mutating", "x", json!([hooks[0], hooks[1]])).await;
        let stored = cluster
            .post(MAPS, config_map("m", json!({}), json!({})))
            .await
            .expect(201);
        assert_eq!(stored["data"]["order"], expected, "{policies:?}");
    }
}

/// Configuration of a webhook whose call fails, and the expected text of the response.
async fn failing(cluster: &Cluster) -> Vec<(&'static str, Value, &'static str)> {
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = dead.local_addr().unwrap();
    drop(dead);
    let good = Server::start(handler(|_| allow())).await;
    let untrusted = json!({"url": format!("https://{}/", good.address)});
    let other = Server::start(handler(|_| allow())).await;
    let stranger =
        json!({"url": format!("https://{}/", good.address), "caBundle": other.ca_bundle()});
    let down = json!({"url": format!("https://{closed}/"), "caBundle": good.ca_bundle()});
    let missing =
        json!({"service": {"namespace": "default", "name": "gone"}, "caBundle": good.ca_bundle()});
    let https =
        |reply: fn() -> Reply| reachable(cluster, Transport::Https, handler(move |_| reply()));
    let local =
        |reply: fn() -> Reply| reachable(cluster, Transport::InProcess, handler(move |_| reply()));
    let large = https(|| Reply::Raw(200, vec![b' '; 4 << 20])).await;
    let code = https(|| Reply::Raw(503, b"not now".to_vec())).await;
    let noise = https(|| Reply::Raw(200, b"<html>".to_vec())).await;
    let hangs = https(|| Reply::Hang).await;
    let hangs_here = local(|| Reply::Hang).await;
    let fails_here = local(|| Reply::Raw(1, Vec::new())).await;
    let panics_here = local(|| panic!("on purpose")).await;
    let other_uid = https(|| Reply::Response(json!({"uid": "other", "allowed": true}))).await;
    let half = https(|| Reply::Response(json!({"allowed": true, "patch": "W10="}))).await;
    let broken = https(|| {
        Reply::Response(json!({"allowed": true, "patch": "e30=", "patchType": "JSONPatch"}))
    });
    vec![
        ("down", down, "dial tcp"),
        (
            "no authority",
            untrusted,
            "caBundle: contains no certificate",
        ),
        ("another authority", stranger, "tls: "),
        ("no such service", missing, "service \"gone\" not found"),
        ("hangs", hangs, "context deadline exceeded"),
        (
            "hangs in this process",
            hangs_here,
            "context deadline exceeded",
        ),
        (
            "fails in this process",
            fails_here,
            "failed to call webhook: code 1",
        ),
        (
            "panics in this process",
            panics_here,
            "failed to call webhook: it panicked",
        ),
        ("large", large, "the response is larger than"),
        (
            "another code",
            code,
            "the webhook answered 503 Service Unavailable: not now",
        ),
        ("no JSON", noise, "is not JSON"),
        ("another uid", other_uid, "expected response.uid="),
        ("half a patch", half, "but not response.patchType"),
        ("a patch that is none", broken.await, "undecodable patch"),
    ]
}

#[tokio::test]
async fn failing_webhook_follows_its_policy() {
    let cluster = Cluster::bare().await;
    for (what, client, reason) in failing(&cluster).await {
        for policy in ["Fail", "Ignore"] {
            let change = json!({"rules": [rule(&["CREATE"], &["configmaps"])],
                "failurePolicy": policy, "timeoutSeconds": if what.starts_with("hangs") { 1 } else { 10 }});
            let path = configurations("Mutating");
            configure(&cluster, "Mutating", "m", json!([hook(&client, &change)])).await;
            let answer = cluster
                .post(MAPS, config_map("m", json!({}), json!({})))
                .await;
            if policy == "Fail" {
                let message = answer.fails(500, "InternalError");
                let prefix =
                    "Internal error occurred: failed calling webhook \"hook.example.com\": ";
                assert!(
                    message.starts_with(prefix) && message.contains(reason),
                    "{what}: {message}"
                );
                cluster
                    .get(&format!("{MAPS}/m"))
                    .await
                    .fails(404, "NotFound");
            } else {
                assert_eq!(answer.code, 201, "{what}: {}", answer.body);
                cluster
                    .delete(&format!("{MAPS}/m"), json!({}))
                    .await
                    .expect(200);
            }
            cluster
                .delete(&format!("{path}/m"), json!({}))
                .await
                .expect(200);
        }
    }
}

#[tokio::test]
async fn verdict_is_independent_of_failure_policy() {
    for way in BOTH {
        let cluster = Cluster::bare().await;
        let refuse = |status: Value| handler(move |_| Reply::Response(json!({"status": status})));
        let overdue = json!([{"op": "replace", "path": "/data/none", "value": 1}]);
        let typed = json!([{"op": "add", "path": "/data", "value": 1}]);
        let denied = "admission webhook \"hook.example.com\" denied the request";
        let rows: Vec<(Handler, u16, &str, String)> = vec![
            (
                refuse(Value::Null),
                400,
                "",
                format!("{denied} without explanation"),
            ),
            (
                refuse(json!({"code": 403, "reason": "Forbidden", "message": "no"})),
                403,
                "Forbidden",
                format!("{denied}: no"),
            ),
            (
                handler(move |_| patch(&overdue)),
                500,
                "InternalError",
                "/data/none".to_owned(),
            ),
            (
                handler(move |_| patch(&typed)),
                500,
                "InternalError",
                "ConfigMap".to_owned(),
            ),
        ];
        for (handler, code, reason, why) in rows {
            let client = reachable(&cluster, way, handler).await;
            let change =
                json!({"rules": [rule(&["CREATE"], &["configmaps"])], "failurePolicy": "Ignore"});
            configure(&cluster, "Mutating", "m", json!([hook(&client, &change)])).await;
            let answer = cluster
                .post(MAPS, config_map("m", json!({}), json!({})))
                .await;
            assert_eq!(answer.code, code, "{way:?} {}", answer.body);
            assert_eq!(answer.body["reason"].as_str().unwrap_or(""), reason);
            let message = answer.body["message"].as_str().unwrap();
            assert!(message.contains(&why), "{message}");
            let path = format!("{}/m", configurations("Mutating"));
            cluster.delete(&path, json!({})).await.expect(200);
        }
    }
}

#[tokio::test]
async fn deletions_and_evictions_can_be_refused() {
    for way in BOTH {
        let cluster = Cluster::bare().await;
        let refuse = handler(|request| {
            Reply::Response(json!({"allowed": request["oldObject"]["metadata"]["name"] == "goes"}))
        });
        let client = reachable(&cluster, way, refuse).await;
        let change = json!({"rules": [
            rule(&["DELETE"], &["configmaps"]), rule(&["CREATE"], &["pods/eviction"])]});
        configure(&cluster, "Validating", "v", json!([hook(&client, &change)])).await;
        for name in ["goes", "stays"] {
            let body = config_map(name, json!({}), json!({}));
            cluster.post(MAPS, body).await.expect(201);
        }
        cluster
            .delete(&format!("{MAPS}/goes"), json!({}))
            .await
            .expect(200);
        cluster
            .delete(&format!("{MAPS}/stays"), json!({}))
            .await
            .expect(400);
        cluster.delete(MAPS, json!({})).await.expect(400);
        cluster.get(&format!("{MAPS}/stays")).await.expect(200);
        cluster.post(PODS, pod("p")).await.expect(201);
        cluster
            .post(&format!("{PODS}/p/eviction"), named("p"))
            .await
            .expect(400);
        let pod = cluster.get(&format!("{PODS}/p")).await.expect(200);
        assert_eq!(pod["status"].get("conditions"), None, "not even marked");
    }
}

#[tokio::test]
async fn patch_of_delete_review_is_an_error() {
    let cluster = Cluster::bare().await;
    let change = json!([{"op": "add", "path": "/data", "value": {}}]);
    let client = reachable(
        &cluster,
        Transport::InProcess,
        handler(move |_| patch(&change)),
    )
    .await;
    let rules = json!({"rules": [rule(&["DELETE"], &["configmaps"])]});
    configure(&cluster, "Mutating", "m", json!([hook(&client, &rules)])).await;
    cluster
        .post(MAPS, config_map("m", json!({}), json!({})))
        .await
        .expect(201);
    let message = cluster
        .delete(&format!("{MAPS}/m"), json!({}))
        .await
        .fails(500, "InternalError");
    assert!(
        message.contains("attempted to modify the object"),
        "{message}"
    );
}

#[tokio::test]
async fn namespaces_and_objects_are_selected_by_label() {
    let cluster = Cluster::bare().await;
    let (record, seen) = recorder();
    let client = reachable(&cluster, Transport::InProcess, record).await;
    let change = json!({"rules": [rule(&["*"], &["configmaps", "namespaces", "nodes"])],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "chosen"}},
        "objectSelector": {"matchLabels": {"a": "b"}}});
    configure(&cluster, "Validating", "v", json!([hook(&client, &change)])).await;
    let labels = json!({"a": "b"});
    for name in ["chosen", "other"] {
        let body = json!({"metadata": {"name": name, "labels": labels}});
        cluster.post("/api/v1/namespaces", body).await.expect(201);
        let maps = format!("/api/v1/namespaces/{name}/configmaps");
        cluster
            .post(&maps, config_map("with", labels.clone(), json!({})))
            .await
            .expect(201);
        cluster
            .post(&maps, config_map("without", json!({}), json!({})))
            .await
            .expect(201);
        // The old object had the removed label.
        let deleted = json!({"metadata": {"labels": {"a": null}}});
        cluster
            .patch(&format!("{maps}/with"), MERGE, deleted)
            .await
            .expect(200);
    }
    let node = json!({"metadata": {"name": "n", "labels": labels}});
    cluster.post("/api/v1/nodes", node).await.expect(201);
    let lines: Vec<String> = seen.lock().iter().map(line).collect();
    assert_eq!(
        lines,
        [
            "CREATE namespaces/ chosen/chosen Namespace",
            "CREATE configmaps/ chosen/with ConfigMap",
            "UPDATE configmaps/ chosen/with ConfigMap",
            "CREATE nodes/ /n Node",
        ]
    );
}

#[tokio::test]
async fn another_version_is_converted_for_the_webhook() {
    let cluster = Cluster::bare().await;
    let (record, seen) = recorder();
    let client = reachable(&cluster, Transport::InProcess, record).await;
    let mut rule = rule(&["CREATE"], &["events"]);
    rule["apiGroups"] = json!(["events.k8s.io"]);
    configure(
        &cluster,
        "Validating",
        "v",
        json!([hook(&client, &json!({"rules": [rule]}))]),
    )
    .await;
    let event = json!({"metadata": {"name": "e"}, "message": "hello",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}});
    cluster
        .post("/api/v1/namespaces/default/events", event)
        .await
        .expect(201);
    let request = seen.lock()[0].clone();
    assert_eq!(request["kind"]["group"], "events.k8s.io");
    assert_eq!(request["requestKind"]["group"], "");
    assert_eq!(request["resource"]["group"], "events.k8s.io");
    assert_eq!(request["object"]["apiVersion"], "events.k8s.io/v1");
    assert_eq!(request["object"]["note"], "hello");
}

#[tokio::test]
async fn warnings_reach_the_client() {
    for way in BOTH {
        let cluster = Cluster::bare().await;
        let warn = handler(|request| {
            let kind = request["kind"]["kind"].as_str().unwrap();
            Reply::Response(json!({"allowed": true, "warnings": [format!("seen: {kind}")]}))
        });
        let client = reachable(&cluster, way, warn).await;
        let change = json!({"rules": [rule(&["*"], &["*/*"])],
            "matchConditions": [{"name": "never", "expression": "false"}]});
        let answer = configure(&cluster, "Validating", "v", json!([hook(&client, &change)])).await;
        let messages = |answer: &crate::support::Answer| -> Vec<String> {
            let all = answer.headers.get_all("warning");
            all.iter().map(|v| v.to_str().unwrap().to_owned()).collect()
        };
        let notifier = messages(&answer);
        assert!(
            notifier[0].contains("webhooks[0].matchConditions: not evaluated"),
            "{notifier:?}"
        );
        let to = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
        for (answer, kind) in [
            (cluster.post(PODS, pod("p")).await, "Pod"),
            (
                cluster.patch(&format!("{PODS}/p"), MERGE, label()).await,
                "Pod",
            ),
            (
                cluster.post(&format!("{PODS}/p/binding"), to).await,
                "Binding",
            ),
            (
                cluster
                    .post(&format!("{PODS}/p/eviction"), named("p"))
                    .await,
                "Eviction",
            ),
            (
                cluster
                    .delete(&format!("{PODS}/p"), json!({"gracePeriodSeconds": 0}))
                    .await,
                "Pod",
            ),
        ] {
            assert!(answer.code < 300, "{}", answer.body);
            assert_eq!(messages(&answer), [format!("299 - \"seen: {kind}\"")]);
        }
    }
}

#[tokio::test]
async fn configurations_count_from_the_moment_they_are_written() {
    let cluster = Cluster::bare().await;
    let (record, seen) = recorder();
    let client = reachable(&cluster, Transport::InProcess, record).await;
    let body = config_map("m", json!({}), json!({}));
    cluster.post(MAPS, body).await.expect(201);
    let change = json!({"rules": [rule(&["CREATE"], &["pods"])]});
    configure(&cluster, "Validating", "v", json!([hook(&client, &change)])).await;
    let map = format!("{MAPS}/m");
    cluster.patch(&map, MERGE, label()).await.expect(200);
    assert_eq!(seen.lock().len(), 0);
    let path = format!("{}/v", configurations("Validating"));
    let wider = json!([{"op": "replace", "path": "/webhooks/0/rules/0",
        "value": rule(&["*"], &["configmaps"])}]);
    cluster
        .patch(&path, crate::support::JSON_PATCH, wider)
        .await
        .expect(200);
    cluster
        .patch(&map, MERGE, json!({"data": {"a": "b"}}))
        .await
        .expect(200);
    assert_eq!(seen.lock().len(), 1);
    cluster.delete(&path, json!({})).await.expect(200);
    cluster.delete(&map, json!({})).await.expect(200);
    assert_eq!(seen.lock().len(), 1);
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused() {
    let cluster = Cluster::bare().await;
    let broken = json!({"metadata": {"name": "v"}, "webhooks": [
        {"name": "a.b", "clientConfig": {"url": "http://localhost"}}]});
    let answer = cluster.post(&configurations("Validating"), broken).await;
    let fields: Vec<&str> = answer.body["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["field"].as_str().unwrap())
        .collect();
    assert_eq!(
        fields,
        [
            "webhooks[0].name",
            "webhooks[0].sideEffects",
            "webhooks[0].clientConfig.url",
            "webhooks[0].admissionReviewVersions",
        ]
    );
}

#[tokio::test]
async fn a_service_is_called_at_its_endpoints() {
    let cluster = Cluster::bare().await;
    let (record, seen) = recorder();
    let server = Server::start(record).await;
    let client = json!({"service": {"namespace": "default", "name": "hook", "path": "/p"},
        "caBundle": server.ca_bundle()});
    let change = json!({"rules": [rule(&["CREATE"], &["configmaps"])]});
    configure(&cluster, "Validating", "v", json!([hook(&client, &change)])).await;
    let service = json!({"metadata": {"name": "hook"},
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]}});
    cluster
        .post("/api/v1/namespaces/default/services", service)
        .await
        .expect(201);
    let map = |name: &str| config_map(name, json!({}), json!({}));
    let message = cluster
        .post(MAPS, map("a"))
        .await
        .fails(500, "InternalError");
    assert!(
        message.contains("no endpoints available for service \"hook\""),
        "{message}"
    );

    let port = server.address.port();
    let endpoints = json!({"metadata": {"name": "hook"}, "subsets": [{
        "addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "https", "port": port}]}]});
    cluster
        .post("/api/v1/namespaces/default/endpoints", endpoints)
        .await
        .expect(201);
    cluster.post(MAPS, map("a")).await.expect(201);
    cluster
        .delete("/api/v1/namespaces/default/endpoints/hook", json!({}))
        .await
        .expect(200);

    let slice = json!({"metadata": {"name": "hook-1",
            "labels": {"kubernetes.io/service-name": "hook"}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": port}],
        "endpoints": [
            {"addresses": ["127.0.0.2"], "conditions": {"ready": false}},
            {"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    cluster.post(slices, slice).await.expect(201);
    cluster.post(MAPS, map("b")).await.expect(201);
    assert_eq!(seen.lock().len(), 2);
}

#[tokio::test]
async fn the_first_known_review_version_is_sent() {
    let cluster = Cluster::bare().await;
    // v1beta1 webhooks need neither repeat the uid nor set the type of their patch.
    let old = handler(|_| {
        Reply::Response(json!({"uid": "", "allowed": true,
        "patch": "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEiLCJ2YWx1ZSI6eyJhIjoiYiJ9fV0="}))
    });
    let client = reachable(&cluster, Transport::Https, old).await;
    let change = json!({"rules": [rule(&["CREATE"], &["configmaps"])],
        "admissionReviewVersions": ["v1beta1"]});
    configure(&cluster, "Mutating", "m", json!([hook(&client, &change)])).await;
    let stored = cluster
        .post(MAPS, config_map("m", json!({}), json!({})))
        .await
        .expect(201);
    assert_eq!(stored["data"]["a"], "b");
}

#[tokio::test]
async fn custom_resources_are_pruned_and_defaulted_after_a_webhook() {
    let cluster = Cluster::bare().await;
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {
                    "type": "object", "properties": {
                        "size": {"type": "integer", "maximum": 9},
                        "colour": {"type": "string", "default": "red"}}}}}}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    cluster.post(definitions, definition).await.expect(201);
    let change = handler(|request| {
        let size = request["object"]["metadata"]["name"] == "large";
        patch(&json!([{"op": "add", "path": "/spec",
            "value": {"size": if size { 10 } else { 3 }, "unknown": 1}}]))
    });
    let client = reachable(&cluster, Transport::InProcess, change).await;
    let rules = json!({"rules": [rule(&["CREATE"], &["things"])]});
    configure(&cluster, "Mutating", "m", json!([hook(&client, &rules)])).await;
    let objects = "/apis/example.com/v1/namespaces/default/things";
    let object = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}});
    let stored = cluster.post(objects, object("small")).await.expect(201);
    assert_eq!(stored["spec"], json!({"size": 3, "colour": "red"}));
    let message = cluster
        .post(objects, object("large"))
        .await
        .fails(422, "Invalid");
    assert!(message.contains("spec.size"), "{message}");
}

#[tokio::test]
async fn webhooks_are_called_for_controllers() {
    let cluster = Cluster::start().await;
    let (record, observed) = recorder();
    let client = reachable(&cluster, Transport::InProcess, record).await;
    let rules = json!({"rules": [rule(&["*"], &["replicasets", "pods", "deployments/status"])]});
    configure(&cluster, "Validating", "v", json!([hook(&client, &rules)])).await;
    cluster.post(DEPLOYMENTS, deployment()).await.expect(201);
    cluster
        .until(PODS, |a| a.body["items"][0]["metadata"]["name"].is_string())
        .await;
    let path = format!("{DEPLOYMENTS}/d");
    cluster
        .until(&path, |a| a.body["status"]["replicas"] == 1)
        .await;
    let observed = observed.lock();
    for description in [
        "CREATE replicasets/ ",
        "CREATE pods/ ",
        "UPDATE deployments/status ",
    ] {
        let request = observed.iter().find(|r| line(r).starts_with(description));
        let request = request.unwrap_or_else(|| panic!("{description} was not asked"));
        assert_eq!(
            request["userInfo"]["username"],
            "system:kube-controller-manager"
        );
    }
}

#[tokio::test]
async fn webhooks_are_called_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (record, seen) = recorder();
    let server = Server::start(record).await;
    for round in 0..2 {
        let cluster = Cluster::in_dir(dir.path()).await;
        if round == 0 {
            let change = json!({"rules": [rule(&["CREATE"], &["configmaps"])]});
            let hooks = json!([hook(&server.client_config(), &change)]);
            configure(&cluster, "Validating", "v", hooks).await;
        }
        let body = config_map(&format!("m{round}"), json!({}), json!({}));
        cluster.post(MAPS, body).await.expect(201);
        cluster.server.close().await;
        assert_eq!(seen.lock().len(), round + 1);
    }
}

#[tokio::test]
async fn a_connection_is_kept_and_a_closed_one_replaced() {
    let cluster = Cluster::bare().await;
    let (record, seen) = recorder();
    let server = Server::start(record).await;
    let change = json!({"rules": [rule(&["CREATE"], &["configmaps"])]});
    let hooks = json!([hook(&server.client_config(), &change)]);
    configure(&cluster, "Validating", "v", hooks).await;
    for (i, connections) in [(0, 1), (1, 1), (2, 2), (3, 2)] {
        if i == 2 {
            server.hang_up().await;
        }
        let body = config_map(&format!("m{i}"), json!({}), json!({}));
        cluster.post(MAPS, body).await.expect(201);
        assert_eq!(server.connections(), connections, "call {i}");
    }
    assert_eq!(seen.lock().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn managed_fields_broken_by_webhook_are_kept() {
    for (entry, says) in [
        (
            json!({"manager": "hook", "operation": "Guess", "apiVersion": "v1",
                "fieldsType": "FieldsV1"}),
            "operation must be `Apply` or `Update`",
        ),
        (
            json!({"manager": "hook", "operation": "Update", "apiVersion": "v1"}),
            "missing fieldsType in managed fields entry 1",
        ),
    ] {
        let cluster = Cluster::bare().await;
        let add = handler(move |_| {
            patch(&json!([{"op": "add", "path": "/metadata/managedFields/-", "value": entry}]))
        });
        let client = reachable(&cluster, Transport::InProcess, add).await;
        let rules = json!({"rules": [rule(&["*"], &["configmaps"])]});
        configure(&cluster, "Mutating", "x", json!([hook(&client, &rules)])).await;
        let map = config_map("a", json!({"a": "b"}), json!({}));
        let answer = cluster.post(MAPS, map).await;
        let warning = answer.headers["warning"].to_str().unwrap().to_owned();
        assert!(
            warning.contains("in an invalid state after admission"),
            "{warning}"
        );
        assert!(warning.contains(says), "{warning}");
        let created = answer.expect(201);
        let entries = created["metadata"]["managedFields"].as_array().unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0]["operation"], "Update");
    }
}
