//! Deletion of objects, and the life cycle of pods.

use crate::support::{Cluster, JSON_PATCH, MERGE, config_map, pod};
use serde_json::{Value, json};
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn binding(pod: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
}

async fn running(cluster: &Cluster, name: &str) -> Value {
    let created = cluster.post(PODS, pod(name)).await.expect(201);
    cluster
        .post(&format!("{PODS}/{name}/binding"), binding(name, "n1"))
        .await
        .expect(201);
    let body = json!({"status": {"phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}]}});
    cluster
        .patch(&format!("{PODS}/{name}/status"), MERGE, body)
        .await
        .expect(200);
    created
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_defaulted_bound_once_and_leaves_gracefully() {
    let cluster = Cluster::bare().await;
    let created = cluster.post(PODS, pod("p")).await.expect(201);
    assert_eq!(created["status"]["phase"], "Pending");
    assert_eq!(created["spec"]["schedulerName"], "default-scheduler");
    assert_eq!(created["spec"]["priority"], 0);
    assert_eq!(created["spec"]["serviceAccountName"], "default");
    assert_eq!(created["spec"]["tolerations"].as_array().unwrap().len(), 2);
    let path = format!("{PODS}/p");

    // No node runs it, so it is removed at once. The response is the pod.
    let deleted = cluster.delete(&path, json!({})).await.expect(200);
    assert_eq!(deleted["kind"], "Pod");
    cluster.get(&path).await.fails(404, "NotFound");

    let created = running(&cluster, "p").await;
    let bound = cluster.get(&path).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    let scheduled = &bound["status"]["conditions"];
    assert!(
        scheduled
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["type"] == "Ready")
    );
    let message = cluster
        .post(&format!("{path}/binding"), binding("p", "n2"))
        .await
        .fails(409, "Conflict");
    assert_eq!(
        message,
        "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\""
    );
    let dying = cluster.delete(&path, json!({})).await.expect(200);
    assert_eq!(dying["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(dying["metadata"]["deletionTimestamp"].is_string());
    let message = cluster
        .post(PODS, pod("p"))
        .await
        .fails(409, "AlreadyExists");
    assert_eq!(
        message,
        "object is being deleted: pods \"p\" already exists"
    );
    // The kubelet completes the deletion, with the uid as precondition.
    let options = |uid: &str| json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    cluster
        .delete(&path, options("other"))
        .await
        .fails(409, "Conflict");
    cluster
        .delete(&path, options(created["metadata"]["uid"].as_str().unwrap()))
        .await
        .expect(200);
    cluster.get(&path).await.fails(404, "NotFound");
    cluster
        .post(&format!("{path}/binding"), binding("p", "n1"))
        .await
        .fails(404, "NotFound");
}

#[tokio::test(start_paused = true)]
async fn batch_requests_without_limits_are_legal() {
    let cluster = Cluster::bare().await;
    let class = json!({"metadata": {"name": "koord-batch"}, "value": 5000});
    cluster
        .post("/apis/scheduling.k8s.io/v1/priorityclasses", class)
        .await
        .expect(201);
    let mut be = pod("be");
    be["metadata"]["labels"]["koordinator.sh/qosClass"] = "BE".into();
    be["spec"]["priorityClassName"] = "koord-batch".into();
    be["spec"]["containers"][0]["resources"] = json!({"requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}});
    let created = cluster
        .post(&format!("{PODS}?fieldValidation=Strict"), be)
        .await
        .expect(201);
    assert_eq!(created["spec"]["priority"], 5000);
    assert_eq!(created["status"]["qosClass"], "BestEffort");
    let mut missing = pod("x");
    missing["spec"]["priorityClassName"] = "nope".into();
    let message = cluster.post(PODS, missing).await.fails(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"x\" is forbidden: no PriorityClass with name nope was found"
    );
}

#[tokio::test(start_paused = true)]
async fn evictions_respect_the_budget() {
    let cluster = Cluster::start().await;
    for name in ["a", "b"] {
        running(&cluster, name).await;
        cluster
            .patch(
                &format!("{PODS}/{name}"),
                MERGE,
                json!({"metadata": {"labels": {"app": "web"}}}),
            )
            .await
            .expect(200);
    }
    let budget = json!({"metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    cluster.post(budgets, budget).await.expect(201);
    cluster
        .until(&format!("{budgets}/web"), |a| {
            a.body["status"]["disruptionsAllowed"] == 1
        })
        .await;
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    cluster
        .post(&format!("{PODS}/a/eviction"), eviction("a"))
        .await
        .expect(201);
    let a = cluster.get(&format!("{PODS}/a")).await.expect(200);
    assert!(a["metadata"]["deletionTimestamp"].is_string());
    let conditions = a["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions.iter().any(|c| c["type"] == "DisruptionTarget"),
        "{conditions:?}"
    );
    cluster
        .until(&format!("{budgets}/web"), |a| {
            a.body["status"]["currentHealthy"] == 1
        })
        .await;
    let refused = cluster
        .post(&format!("{PODS}/b/eviction"), eviction("b"))
        .await;
    assert_eq!(
        refused.body["details"]["causes"][0]["message"],
        "The disruption budget web needs 1 healthy pods and has 1 currently"
    );
    let message = refused.fails(429, "TooManyRequests");
    assert_eq!(
        message,
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    cluster
        .delete(&format!("{budgets}/web"), json!({}))
        .await
        .expect(200);
    cluster
        .post(&format!("{PODS}/b/eviction"), eviction("b"))
        .await
        .expect(201);
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_an_object_until_the_last_is_taken() {
    let cluster = Cluster::bare().await;
    let mut map = config_map("a", json!({}), json!({}));
    map["metadata"]["finalizers"] = json!(["example.com/one", "example.com/two"]);
    cluster.post(MAPS, map).await.expect(201);
    let path = format!("{MAPS}/a");
    let dying = cluster.delete(&path, json!({})).await.expect(200);
    assert_eq!(dying["kind"], "ConfigMap");
    assert!(dying["metadata"]["deletionTimestamp"].is_string());
    let add =
        json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/three"}]);
    let message = cluster
        .patch(&path, JSON_PATCH, add)
        .await
        .fails(422, "Invalid");
    assert!(
        message.contains("metadata.finalizers: Forbidden: no new finalizers"),
        "{message}"
    );
    let finalizer_patch = json!({"metadata": {"finalizers": ["example.com/two"]}});
    cluster
        .patch(&path, MERGE, finalizer_patch)
        .await
        .expect(200);
    cluster.get(&path).await.expect(200);
    cluster
        .patch(&path, MERGE, json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    cluster.get(&path).await.fails(404, "NotFound");
}

#[tokio::test(start_paused = true)]
async fn preconditions_of_a_delete() {
    let cluster = Cluster::bare().await;
    let created = cluster
        .post(MAPS, config_map("a", json!({}), json!({})))
        .await
        .expect(201);
    let path = format!("{MAPS}/a");
    let message = cluster
        .delete(&path, json!({"preconditions": {"resourceVersion": "1"}}))
        .await
        .fails(409, "Conflict");
    assert!(
        message.contains("ResourceVersion in precondition: 1"),
        "{message}"
    );
    let options =
        json!({"preconditions": {"resourceVersion": created["metadata"]["resourceVersion"]}});
    let status = cluster.delete(&path, options).await.expect(200);
    assert_eq!(status["status"], "Success");
    assert_eq!(status["details"]["uid"], created["metadata"]["uid"]);
    cluster
        .delete(&path, json!({"propagationPolicy": "Sideways"}))
        .await
        .fails(422, "Invalid");
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_selector() {
    let cluster = Cluster::bare().await;
    for (name, app) in [("a", "x"), ("b", "x"), ("c", "y")] {
        cluster
            .post(MAPS, config_map(name, json!({"app": app}), json!({})))
            .await
            .expect(201);
    }
    let list = cluster
        .delete(&format!("{MAPS}?labelSelector=app%3Dx"), json!({}))
        .await
        .expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        cluster.get(MAPS).await.expect(200)["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

fn owned(name: &str, owners: &[&Value]) -> Value {
    let mut map = config_map(name, json!({}), json!({}));
    map["metadata"]["ownerReferences"] = owners
        .iter()
        .map(|o| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": o["metadata"]["name"],
                "uid": o["metadata"]["uid"], "blockOwnerDeletion": true})
        })
        .collect();
    map
}

#[tokio::test(start_paused = true)]
async fn dependents_follow_their_owners() {
    let cluster = Cluster::start().await;
    let owner = cluster
        .post(MAPS, config_map("owner", json!({}), json!({})))
        .await
        .expect(201);
    let other = cluster
        .post(MAPS, config_map("other", json!({}), json!({})))
        .await
        .expect(201);
    let child = cluster
        .post(MAPS, owned("child", &[&owner]))
        .await
        .expect(201);
    cluster
        .post(MAPS, owned("grandchild", &[&child]))
        .await
        .expect(201);
    cluster
        .post(MAPS, owned("shared", &[&owner, &other]))
        .await
        .expect(201);
    cluster
        .delete(&format!("{MAPS}/owner"), json!({}))
        .await
        .expect(200);
    cluster.until_gone(&format!("{MAPS}/child")).await;
    cluster.until_gone(&format!("{MAPS}/grandchild")).await;
    let shared = cluster
        .until(&format!("{MAPS}/shared"), |a| {
            a.body["metadata"]["ownerReferences"]
                .as_array()
                .is_some_and(|o| o.len() == 1)
        })
        .await;
    assert_eq!(
        shared.body["metadata"]["ownerReferences"][0]["name"],
        "other"
    );
    // An owner that never existed counts as gone.
    let ghost = json!({"metadata": {"name": "ghost", "uid": "no-such-uid"}});
    cluster
        .post(MAPS, owned("haunted", &[&ghost]))
        .await
        .expect(201);
    cluster.until_gone(&format!("{MAPS}/haunted")).await;
}

#[tokio::test(start_paused = true)]
async fn orphans_stay_and_the_foreground_waits() {
    let cluster = Cluster::start().await;
    let owner = cluster
        .post(MAPS, config_map("owner", json!({}), json!({})))
        .await
        .expect(201);
    cluster
        .post(MAPS, owned("child", &[&owner]))
        .await
        .expect(201);
    let orphan = json!({"propagationPolicy": "Orphan"});
    cluster
        .delete(&format!("{MAPS}/owner"), orphan)
        .await
        .expect(200);
    cluster.until_gone(&format!("{MAPS}/owner")).await;
    let child = cluster.get(&format!("{MAPS}/child")).await.expect(200);
    assert!(child["metadata"].get("ownerReferences").is_none());

    let owner = cluster
        .post(MAPS, config_map("owner", json!({}), json!({})))
        .await
        .expect(201);
    let mut blocking = owned("blocking", &[&owner]);
    blocking["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(MAPS, blocking).await.expect(201);
    let foreground = json!({"propagationPolicy": "Foreground"});
    let dying = cluster
        .delete(&format!("{MAPS}/owner"), foreground)
        .await
        .expect(200);
    assert_eq!(
        dying["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
    cluster
        .until(&format!("{MAPS}/blocking"), |a| {
            a.body["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    cluster.get(&format!("{MAPS}/owner")).await.expect(200);
    let free = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&format!("{MAPS}/blocking"), MERGE, free)
        .await
        .expect(200);
    cluster.until_gone(&format!("{MAPS}/owner")).await;
}

#[tokio::test(start_paused = true)]
async fn namespace_deletion_deletes_its_objects() {
    let cluster = Cluster::start().await;
    let ns = cluster
        .post("/api/v1/namespaces", json!({"metadata": {"name": "team"}}))
        .await
        .expect(201);
    assert_eq!(ns["status"]["phase"], "Active");
    assert_eq!(ns["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(
        ns["metadata"]["labels"]["kubernetes.io/metadata.name"],
        "team"
    );
    cluster
        .until("/api/v1/namespaces/team/serviceaccounts/default", |a| {
            a.code == 200
        })
        .await;
    let maps = "/api/v1/namespaces/team/configmaps";
    let mut owned_rules = config_map("held", json!({}), json!({}));
    owned_rules["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(maps, owned_rules).await.expect(201);
    cluster
        .post("/api/v1/namespaces/team/pods", pod("p"))
        .await
        .expect(201);
    let dying = cluster
        .delete("/api/v1/namespaces/team", json!({}))
        .await
        .expect(200);
    assert_eq!(dying["status"]["phase"], "Terminating");
    let refused = cluster
        .post(maps, config_map("late", json!({}), json!({})))
        .await;
    assert_eq!(
        refused.body["details"]["causes"][0]["reason"],
        "NamespaceTerminating"
    );
    let message = refused.fails(403, "Forbidden");
    assert_eq!(
        message,
        "configmaps \"late\" is forbidden: unable to create new content in namespace team because \
         it is being terminated"
    );
    let waiting = cluster
        .until("/api/v1/namespaces/team", |a| {
            a.body["status"]["conditions"].as_array().is_some_and(|c| {
                c.iter()
                    .any(|c| c["type"] == "NamespaceFinalizersRemaining" && c["status"] == "True")
            })
        })
        .await;
    assert!(
        waiting
            .body
            .to_string()
            .contains("example.com/hold in 1 resource instances")
    );
    cluster
        .get("/api/v1/namespaces/team/pods/p")
        .await
        .fails(404, "NotFound");
    let free = json!({"metadata": {"finalizers": null}});
    cluster
        .patch(&format!("{maps}/held"), MERGE, free)
        .await
        .expect(200);
    cluster.until_gone("/api/v1/namespaces/team").await;
    let message = cluster
        .delete("/api/v1/namespaces/default", json!({}))
        .await
        .fails(403, "Forbidden");
    assert_eq!(
        message,
        "namespaces \"default\" is forbidden: this namespace may not be deleted"
    );
}

#[tokio::test(start_paused = true)]
async fn events_are_one_storage_with_two_faces_and_expire() {
    let cluster = Cluster::start().await;
    let core = "/api/v1/namespaces/default/events";
    let new = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e1"}, "reason": "Scheduled", "note": "it went well",
        "type": "Normal", "action": "Binding", "reportingController": "koord-scheduler",
        "reportingInstance": "me", "eventTime": "2026-03-01T12:00:00.000000Z",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p", "uid": "u"}});
    cluster.post(new, event).await.expect(201);
    let old = cluster.get(&format!("{core}/e1")).await.expect(200);
    assert_eq!(
        (&old["apiVersion"], &old["message"]),
        (&json!("v1"), &json!("it went well"))
    );
    assert_eq!(old["involvedObject"]["name"], "p");
    assert_eq!(old["reportingComponent"], "koord-scheduler");
    let path = format!(
        "{core}?fieldSelector=involvedObject.name%3Dp,involvedObject.uid%3Du,involvedObject.namespace%3Ddefault"
    );
    let matches = cluster.get(&path).await.expect(200);
    assert_eq!(matches["items"].as_array().unwrap().len(), 1);
    let back = cluster.get(&format!("{new}/e1")).await.expect(200);
    assert_eq!(
        (&back["apiVersion"], &back["note"]),
        (&json!("events.k8s.io/v1"), &json!("it went well"))
    );
    tokio::time::sleep(Duration::from_secs(50 * 60)).await;
    cluster
        .patch(&format!("{core}/e1"), MERGE, json!({"count": 2}))
        .await
        .expect(200);
    tokio::time::sleep(Duration::from_secs(50 * 60)).await;
    cluster.get(&format!("{core}/e1")).await.expect(200);
    tokio::time::sleep(Duration::from_secs(15 * 60)).await;
    cluster
        .get(&format!("{core}/e1"))
        .await
        .fails(404, "NotFound");
}

#[tokio::test(start_paused = true)]
async fn silent_node_is_tainted_and_its_pods_evicted() {
    let cluster = Cluster::start().await;
    let node = json!({"metadata": {"name": "n1"},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}});
    cluster.post("/api/v1/nodes", node).await.expect(201);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |time: &str| {
        json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1",
        "leaseDurationSeconds": 40, "renewTime": time}})
    };
    cluster
        .post(leases, lease("2026-03-01T12:00:00.000000Z"))
        .await
        .expect(201);
    running(&cluster, "p").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let n = cluster.get("/api/v1/nodes/n1").await.expect(200);
    assert!(n["spec"].get("taints").is_none(), "{n}");
    let n = cluster
        .until("/api/v1/nodes/n1", |a| !a.body["spec"]["taints"].is_null())
        .await
        .body;
    let ready = n["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["type"] == "Ready")
        .unwrap();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("Unknown"), &json!("NodeStatusUnknown"))
    );
    assert_eq!(n["spec"]["taints"].as_array().unwrap().len(), 2);
    // The default toleration ends after 300 s; then the pod is deleted gracefully.
    tokio::time::sleep(Duration::from_secs(200)).await;
    let p = cluster.get(&format!("{PODS}/p")).await.expect(200);
    assert!(p["metadata"].get("deletionTimestamp").is_none());
    cluster
        .until(&format!("{PODS}/p"), |a| {
            a.body["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    // The node recovers.
    cluster
        .patch(
            &format!("{leases}/n1"),
            MERGE,
            json!({"spec": {"renewTime": "2026-03-01T12:10:00.000000Z"}}),
        )
        .await
        .expect(200);
    let body = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}});
    cluster
        .patch("/api/v1/nodes/n1/status", crate::support::STRATEGIC, body)
        .await
        .expect(200);
    cluster
        .until("/api/v1/nodes/n1", |a| {
            a.body["spec"].get("taints").is_none()
        })
        .await;
    // The node is removed for good, and its pods are deleted.
    cluster
        .delete("/api/v1/nodes/n1", json!({}))
        .await
        .expect(200);
    cluster.until_gone(&format!("{PODS}/p")).await;
}

#[tokio::test(start_paused = true)]
async fn definition_creates_and_deletes_its_resources() {
    let cluster = Cluster::start().await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["size"], "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "color": {"type": "string", "default": "red"}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]}});
    cluster.post(crds, definition).await.expect(201);
    let d = cluster
        .get(&format!("{crds}/widgets.example.com"))
        .await
        .expect(200);
    for kind in ["NamesAccepted", "Established"] {
        let conditions = d["status"]["conditions"].as_array().unwrap();
        assert!(
            conditions
                .iter()
                .any(|c| c["type"] == kind && c["status"] == "True"),
            "{d}"
        );
    }
    assert_eq!(d["status"]["storedVersions"], json!(["v1"]));
    let group = cluster.get("/apis/example.com/v1").await.expect(200);
    assert_eq!(group["resources"][0]["name"], "widgets");

    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let widget = |spec: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "w"}, "spec": spec, "status": {"seen": true}})
    };
    let message = cluster
        .post(widgets, widget(json!({"size": 0})))
        .await
        .fails(422, "Invalid");
    assert!(
        message.starts_with("Widget.example.com \"w\" is invalid: spec.size: Invalid value: 0"),
        "{message}"
    );
    let message = cluster
        .post(widgets, widget(json!({})))
        .await
        .fails(422, "Invalid");
    assert!(message.contains("spec.size: Required value"), "{message}");
    let strict = format!("{widgets}?fieldValidation=Strict");
    let message = cluster
        .post(&strict, widget(json!({"size": 1, "bogus": 2})))
        .await
        .fails(400, "BadRequest");
    assert!(
        message.ends_with("strict decoding error: unknown field \"spec.bogus\""),
        "{message}"
    );
    let w = cluster
        .post(widgets, widget(json!({"size": 1, "bogus": 2})))
        .await
        .expect(201);
    assert_eq!(
        w["spec"],
        json!({"size": 1, "color": "red"}),
        "pruned and defaulted"
    );
    assert!(w.get("status").is_none(), "status has its own face");
    assert_eq!(w["metadata"]["generation"], 1);

    let path = format!("{widgets}/w");
    let body =
        json!({"metadata": {"labels": {"x": "y"}}, "spec": {"size": 9}, "status": {"seen": 1}});
    let w = cluster
        .patch(&format!("{path}/status"), MERGE, body)
        .await
        .expect(200);
    assert_eq!(
        (&w["spec"]["size"], &w["status"]["seen"]),
        (&json!(1), &json!(1))
    );
    assert!(w["metadata"].get("labels").is_none());
    let w = cluster
        .patch(&path, MERGE, json!({"spec": {"size": 2}}))
        .await
        .expect(200);
    assert_eq!(w["metadata"]["generation"], 2);
    cluster
        .patch(&path, crate::support::STRATEGIC, json!({}))
        .await
        .fails(415, "UnsupportedMediaType");
    let mut without = w.clone();
    without["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    let message = cluster.put(&path, without).await.fails(422, "Invalid");
    assert!(
        message.contains(
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        ),
        "{message}"
    );

    let mut watch = cluster.watch(&format!("{widgets}?watch=1")).await;
    assert_eq!(watch.event().await.0, "ADDED");
    cluster
        .delete(&format!("{crds}/widgets.example.com"), json!({}))
        .await
        .expect(200);
    assert_eq!(watch.event().await.0, "DELETED");
    cluster
        .until_gone(&format!("{crds}/widgets.example.com"))
        .await;
    cluster.get(widgets).await.fails(404, "NotFound");
    cluster
        .get("/apis/example.com/v1")
        .await
        .fails(404, "NotFound");
    let bad = json!({"metadata": {"name": "x"}, "spec": {"group": "example.com"}});
    cluster.post(crds, bad).await.fails(422, "Invalid");
}
