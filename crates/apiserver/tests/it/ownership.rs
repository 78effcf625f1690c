//! Field ownership: patches and applies with the results of a kube-apiserver.

use crate::support::{APPLY, Cluster, JSON_PATCH, MERGE, STRATEGIC, config_map, pod};
use serde_json::{Map, Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Requests and responses of a real server, recorded by `bench/apply-vectors`.
const VECTORS: &str = include_str!("vectors/apply.json");

/// Known differences by the end of the JSON pointer, and the reasons.
const INTENDED: &[(&str, &str)] = &[
    (
        "/object/status/daemonEndpoints",
        "empty structs are left out",
    ),
    ("/object/status/nodeInfo", "empty structs are left out"),
    ("/object/status", "empty structs are left out"),
    ("/object/spec", "empty structs are left out"),
    ("/f:resources", "empty structs are left out"),
    ("/f:resources/.", "empty structs are left out"),
    ("/f:lastHeartbeatTime", "a null time has no owner"),
    ("/f:lastTransitionTime", "a null time has no owner"),
    ("/f:lastProbeTime", "a null time has no owner"),
    (
        "/object/spec/serviceAccount",
        "their server ran without that admission",
    ),
    (
        "/object/spec/serviceAccountName",
        "their server ran without that admission",
    ),
    ("/object/spec/ipFamilies", "services here have no families"),
];

/// Returns the response in the form of the vectors.
fn steady(code: u16, mut body: Value) -> Value {
    if body["kind"] == "Status" {
        let mut out = Map::new();
        for key in ["reason", "message"] {
            if let Some(v) = body.get(key) {
                out.insert(key.to_owned(), v.clone());
            }
        }
        if let Some(causes) = body.pointer("/details/causes") {
            out.insert("causes".to_owned(), causes.clone());
        }
        return json!({"code": code, "status": out});
    }
    let metadata = body["metadata"].as_object_mut().unwrap();
    for key in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        metadata.remove(key);
    }
    json!({"code": code, "object": body})
}

/// Returns the entries of managedFields without their times, sorted.
fn entries(answer: &mut Value) {
    if let Some(list) = answer
        .pointer_mut("/object/metadata/managedFields")
        .and_then(Value::as_array_mut)
    {
        for entry in &mut *list {
            entry.as_object_mut().unwrap().remove("time");
        }
        list.sort_by_key(Value::to_string);
    }
}

/// Returns where two values differ, as `path: ours, theirs`.
fn differences(path: &str, ours: &Value, theirs: &Value, out: &mut Vec<(String, String)>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let (x, y) = (a.get(key), b.get(key));
                let (x, y) = (x.unwrap_or(&Value::Null), y.unwrap_or(&Value::Null));
                let key = key.replace('~', "~0").replace('/', "~1");
                differences(&format!("{path}/{key}"), x, y, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (x, y)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{i}"), x, y, out);
            }
        }
        _ if ours == theirs => {}
        _ => out.push((path.to_owned(), format!("ours {ours}, theirs {theirs}"))),
    }
}

#[tokio::test]
async fn patches_and_applies_are_answered_as_by_a_kube_apiserver() {
    let cluster = Cluster::bare().await;
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let (mut faults, mut steps) = (Vec::new(), 0);
    for scenario in vectors["scenarios"].as_array().unwrap() {
        let name = scenario["name"].as_str().unwrap();
        if name == "a pod" {
            // Pods have no record until the first apply.
            continue;
        }
        for (i, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
            if step.get("accept").is_some() {
                continue;
            }
            steps += 1;
            let kind = match step["type"].as_str() {
                Some("apply") => APPLY,
                Some("merge") => MERGE,
                Some("json") => JSON_PATCH,
                Some("strategic") => STRATEGIC,
                _ => "application/json",
            };
            let mut expected = step["answer"].clone();
            let body = match &step["body"] {
                Value::Null => String::new(),
                body => body.to_string(),
            };
            let (method, path) = (
                step["method"].as_str().unwrap(),
                step["path"].as_str().unwrap(),
            );
            let answer = cluster
                .send_as("vectors/1", method, path, kind, &body)
                .await;
            let mut actual = match step["quiet"].as_bool() {
                Some(true) => json!({"code": answer.code}),
                _ => steady(answer.code, answer.body),
            };
            entries(&mut actual);
            entries(&mut expected);
            let mut matches = Vec::new();
            differences("", &actual, &expected, &mut matches);
            for (at, what) in matches {
                if !INTENDED.iter().any(|(end, _)| at.ends_with(end)) {
                    faults.push(format!("{name}, step {}: {at}: {what}", i + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(steps > 85, "{steps}");
}

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

async fn apply(cluster: &Cluster, path: &str, manager: &str, body: Value) -> Value {
    let path = format!("{path}?fieldManager={manager}");
    let answer = cluster.patch(&path, APPLY, body).await;
    assert!(matches!(answer.code, 200 | 201), "{}", answer.body);
    answer.body
}

/// Returns the managers of an object: name, operation and subresource.
fn managers(object: &Value) -> Vec<String> {
    let list = object["metadata"]["managedFields"].as_array();
    let mut out: Vec<String> = list
        .into_iter()
        .flatten()
        .map(|e| {
            let text = |key: &str| e[key].as_str().unwrap_or("-").to_owned();
            format!(
                "{} {} {}",
                text("manager"),
                text("operation"),
                text("subresource")
            )
        })
        .collect();
    out.sort();
    out
}

#[tokio::test]
async fn finalizers_of_other_managers_are_kept() {
    let cluster = Cluster::bare().await;
    cluster
        .post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "widgets.example.com"},
                "spec": {"group": "example.com", "scope": "Namespaced",
                    "names": {"plural": "widgets", "kind": "Widget", "listKind": "WidgetList",
                        "singular": "widget"},
                    "versions": [{"name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {"type": "object",
                            "x-kubernetes-preserve-unknown-fields": true}}}]}}),
        )
        .await
        .expect(201);
    for (kind, path, version) in [
        ("Widget", format!("{WIDGETS}/w"), "example.com/v1"),
        ("ConfigMap", format!("{MAPS}/w"), "v1"),
    ] {
        let with = |finalizers: Value| {
            json!({"apiVersion": version, "kind": kind,
                "metadata": {"name": "w", "finalizers": finalizers}})
        };
        apply(&cluster, &path, "one", with(json!(["example.com/one"]))).await;
        let pair = apply(&cluster, &path, "two", with(json!(["example.com/two"]))).await;
        assert_eq!(
            pair["metadata"]["finalizers"].as_array().unwrap().len(),
            2,
            "{pair}"
        );
        let remaining = apply(&cluster, &path, "one", with(json!([]))).await;
        assert_eq!(
            remaining["metadata"]["finalizers"],
            json!(["example.com/two"])
        );
    }
}

#[tokio::test]
async fn status_has_its_own_field_managers() {
    let cluster = Cluster::bare().await;
    let node = |labels: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}});
    let path = "/api/v1/nodes/n";
    apply(&cluster, path, "m", node(json!({"a": "1"}))).await;
    let mut with_status = node(json!({}));
    with_status["status"] = json!({"capacity": {"cpu": "1"}});
    let got = apply(&cluster, "/api/v1/nodes/n/status", "m", with_status).await;
    assert_eq!(got["metadata"]["labels"]["a"], "1");
    assert_eq!(got["status"]["capacity"]["cpu"], "1");
    assert_eq!(managers(&got), ["m Apply -", "m Apply status"]);
}

#[tokio::test]
async fn an_update_without_managed_fields_keeps_the_record() {
    let cluster = Cluster::bare().await;
    let path = format!("{MAPS}/c");
    apply(
        &cluster,
        &path,
        "one",
        config_map("c", json!({"l": "1"}), json!({"a": "1"})),
    )
    .await;
    let new = config_map("c", json!({"l": "1"}), json!({"a": "1", "b": "2"}));
    let got = cluster.put(&path, new).await.expect(200);
    assert_eq!(managers(&got), ["one Apply -", "tests Update -"]);
    let requeue = cluster
        .patch(
            &format!("{path}?fieldManager=two"),
            APPLY,
            config_map("c", json!({"l": "1"}), json!({"a": "9"})),
        )
        .await;
    assert!(
        requeue
            .fails(409, "Conflict")
            .contains("conflict with \"one\": .data.a")
    );
}

#[tokio::test]
async fn unchanged_object_is_not_written() {
    let cluster = Cluster::bare().await;
    let created = cluster
        .post(MAPS, config_map("p", json!({"app": "p"}), json!({})))
        .await
        .expect(201);
    assert_eq!(managers(&created), ["tests Update -"]);
    let path = format!("{MAPS}/p");
    for kind in [MERGE, STRATEGIC] {
        let same_labels = json!({"metadata": {"labels": {"app": "p"}}});
        let got = cluster.patch(&path, kind, same_labels).await.expect(200);
        assert_eq!(
            got["metadata"]["resourceVersion"],
            created["metadata"]["resourceVersion"]
        );
    }
    // A binding has no owner.
    let created = cluster.post(PODS, pod("p")).await.expect(201);
    let path = format!("{PODS}/p");
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": "n1"}});
    cluster
        .post(&format!("{path}/binding"), binding)
        .await
        .expect(201);
    let bound = cluster.get(&path).await.expect(200);
    assert_eq!(
        bound["metadata"]["managedFields"],
        created["metadata"]["managedFields"]
    );
}

#[tokio::test]
async fn pods_events_and_leases_have_no_record_until_apply() {
    let cluster = Cluster::bare().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    let created = cluster.post(leases, lease.clone()).await.expect(201);
    assert_eq!(managers(&created), [""; 0]);
    let path = format!("{leases}/l?fieldManager=one");
    let mut other = lease;
    other["spec"]["holderIdentity"] = "you".into();
    let message = cluster
        .patch(&path, APPLY, other)
        .await
        .fails(409, "Conflict");
    assert!(message.contains("before-first-apply"), "{message}");
}
