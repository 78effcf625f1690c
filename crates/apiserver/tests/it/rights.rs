//! Permissions of nodes, and privilege escalation checks.

use crate::access::{RBAC, REVIEWS, by, give_ann, send, with};
use crate::support::{Answer, Cluster, pod};
use serde_json::{Value, json};

const GROUP: &str = "rbac.authorization.k8s.io";
const SPACE: &str = "/api/v1/namespaces/default";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Sends a request of the node `n1`.
async fn by_n1(cluster: &Cluster, line: &str, body: Value) -> Answer {
    let headers = [
        ("impersonate-user", "system:node:n1"),
        ("impersonate-group", "system:nodes"),
    ];
    send(&cluster.server, &headers, line, body).await
}

fn named(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}

/// Builds a pod on a node.
fn pod_on(node: &str, name: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = node.into();
    pod
}

/// Creates nodes, pods and claims of `n1` and of `n2`.
async fn two_nodes() -> Cluster {
    let cluster = Cluster::bare().await;
    for (node, name) in [("n1", "p1"), ("n2", "p2")] {
        cluster.post("/api/v1/nodes", named(node)).await.expect(201);
        let mut pod = pod_on(node, name);
        let claim = json!({"claimName": format!("claim-{node}")});
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": claim}]);
        cluster
            .post(&format!("{SPACE}/pods"), pod)
            .await
            .expect(201);
        let claim = json!({
            "metadata": {"name": format!("claim-{node}")},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": format!("volume-{node}"),
                     "resources": {"requests": {"storage": "1Gi"}}},
        });
        let claims = format!("{SPACE}/persistentvolumeclaims");
        cluster.post(&claims, claim).await.expect(201);
        let volume = json!({
            "metadata": {"name": format!("volume-{node}")},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                     "hostPath": {"path": "/v"},
                     "claimRef": {"namespace": "default", "name": format!("claim-{node}")}},
        });
        let volumes = "/api/v1/persistentvolumes";
        cluster.post(volumes, volume).await.expect(201);
    }
    cluster
}

/// Sends each request as `n1`, and checks code and message of the response.
async fn expect_of_n1(cluster: &Cluster, table: &[(&str, Value, u16, &str)]) {
    for (line, body, code, reason) in table {
        let answer = by_n1(cluster, line, body.clone()).await;
        assert_eq!(answer.code, *code, "{line} {body}: {}", answer.body);
        if answer.code >= 400 {
            let message = answer.body["message"].as_str().unwrap();
            assert!(message.contains(reason), "{line} {body}: {message}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn node_may_read_objects_of_its_pods() {
    let cluster = two_nodes().await;
    for name in ["s", "t"] {
        let secrets = format!("{SPACE}/secrets");
        cluster.post(&secrets, named(name)).await.expect(201);
    }
    let secret = |name: &str| format!("GET {SPACE}/secrets/{name}");
    let none = "no relationship found between node 'n1' and this object";
    let message = by_n1(&cluster, &secret("s"), Value::Null).await;
    let message = message.fails(403, "Forbidden");
    assert!(message.contains(none), "{message}");
    let mut pod = pod_on("n1", "p");
    pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]);
    let pods = format!("{SPACE}/pods");
    let uid = cluster.post(&pods, pod).await.expect(201)["metadata"]["uid"].clone();
    let selector = "can only list/watch pods with spec.nodeName field selector";
    for (line, code, message) in [
        (secret("s"), 200, ""),
        (secret("t"), 403, none),
        (format!("GET {SPACE}/secrets"), 403, none),
        (format!("GET {pods}/p"), 200, ""),
        (format!("GET {pods}/p2"), 403, none),
        (
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1".to_owned(),
            200,
            "",
        ),
        (
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn2".to_owned(),
            403,
            selector,
        ),
        (
            "GET /api/v1/pods?fieldSelector=spec.nodeName!%3Dn1".to_owned(),
            403,
            selector,
        ),
        ("GET /api/v1/pods".to_owned(), 403, selector),
        ("GET /api/v1/nodes/n1".to_owned(), 200, ""),
        (
            "GET /api/v1/nodes/n2".to_owned(),
            403,
            "node 'n1' cannot read 'n2', only its own Node object",
        ),
        ("GET /api/v1/nodes".to_owned(), 403, "only its own Node"),
        ("GET /api/v1/services".to_owned(), 200, ""),
        (
            format!("GET {SPACE}/persistentvolumeclaims/claim-n1"),
            200,
            "",
        ),
        (
            format!("GET {SPACE}/persistentvolumeclaims/claim-n2"),
            403,
            none,
        ),
        (
            "GET /api/v1/persistentvolumes/volume-n1".to_owned(),
            200,
            "",
        ),
        (
            "GET /api/v1/persistentvolumes/volume-n2".to_owned(),
            403,
            none,
        ),
        (
            "GET /apis/apps/v1/deployments".to_owned(),
            403,
            "at the cluster scope",
        ),
    ] {
        expect_of_n1(&cluster, &[(line.as_str(), Value::Null, code, message)]).await;
    }

    // Tokens only for pods that it runs.
    let token = format!("POST {SPACE}/serviceaccounts/default/token");
    let bound = |name: &str, uid: Value| {
        json!({"spec": {"boundObjectRef":
            {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}}})
    };
    let other = cluster.get(&format!("{pods}/p2")).await.body["metadata"]["uid"].clone();
    expect_of_n1(
        &cluster,
        &[
            (&token, json!({"spec": {}}), 403, "not bound to a pod"),
            (&token, bound("p", Value::Null), 403, "without a uid"),
            (&token, bound("p2", other), 403, "scheduled on a different"),
            (&token, bound("p", uid), 201, ""),
        ],
    )
    .await;

    // A review has the same result.
    let review = format!("{REVIEWS}/subjectaccessreviews");
    let ask = async |name: &str| {
        let asks = json!({"spec": {
            "user": "system:node:n1",
            "groups": ["system:nodes"],
            "resourceAttributes": {"namespace": "default", "verb": "get", "resource": "secrets",
                                   "name": name},
        }});
        let review = cluster.post(&review, asks).await.expect(201);
        review["status"].clone()
    };
    assert_eq!(ask("s").await, json!({"allowed": true}));
    assert_eq!(ask("t").await, json!({"allowed": false, "reason": none}));

    let now = json!({"gracePeriodSeconds": 0});
    cluster.delete(&format!("{pods}/p"), now).await.expect(200);
    let removed = by_n1(&cluster, &secret("s"), Value::Null).await;
    removed.fails(403, "Forbidden");
}

#[tokio::test(start_paused = true)]
async fn node_writes_itself_and_its_own_objects() {
    let cluster = Cluster::bare().await;
    let label = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    let mut restricted = named("n1");
    restricted["metadata"]["labels"] = json!({"node-role.kubernetes.io/master": ""});
    let own = "PATCH /api/v1/nodes/n1";
    let taints = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    let owners = json!({"metadata": {"ownerReferences":
        [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"}]}});
    let memory = json!({"status": {"capacity": {"memory": "1Gi"}}});
    let lease = "can only access node lease with the same name as the requesting node";
    let foreign = r#"node "n1" is not allowed to modify node "n2""#;
    let post = format!("POST {LEASES}");
    expect_of_n1(
        &cluster,
        &[
            (
                "POST /api/v1/nodes",
                restricted,
                403,
                r#"node "n1" is not allowed to set the following labels: node-role.kubernetes.io/master"#,
            ),
            ("POST /api/v1/nodes", named("n1"), 201, ""),
            ("POST /api/v1/nodes", named("n2"), 403, foreign),
            (&post, named("n1"), 201, ""),
            (&post, named("n2"), 403, lease),
            (
                "POST /apis/coordination.k8s.io/v1/namespaces/default/leases",
                named("n1"),
                403,
                r#"can only access leases in the "kube-node-lease" system namespace"#,
            ),
            (own, label("zone"), 200, ""),
            (
                own,
                label("node-restriction.kubernetes.io/a"),
                403,
                "is not allowed to modify labels: node-restriction.kubernetes.io/a",
            ),
            (
                own,
                taints,
                403,
                r#"node "n1" is not allowed to modify taints"#,
            ),
            (
                own,
                owners,
                403,
                r#"node "n1" is not allowed to modify ownerReferences"#,
            ),
            ("PATCH /api/v1/nodes/n1/status", memory.clone(), 200, ""),
            (
                "DELETE /api/v1/nodes/n1",
                Value::Null,
                403,
                "cannot delete resource",
            ),
        ],
    )
    .await;
    cluster.post("/api/v1/nodes", named("n2")).await.expect(201);
    cluster.post(LEASES, named("n2")).await.expect(201);
    let expected = format!("PATCH {LEASES}/n2");
    expect_of_n1(
        &cluster,
        &[
            ("PATCH /api/v1/nodes/n2/status", memory, 403, foreign),
            ("PATCH /api/v1/nodes/n2", label("zone"), 403, foreign),
            (&expected, label("zone"), 403, lease),
        ],
    )
    .await;
}

/// Kubernetes' NodeRestriction applies regardless of permissions.
#[tokio::test(start_paused = true)]
async fn node_with_all_rights_writes_only_its_own() {
    let cluster = two_nodes().await;
    let all = json!({
        "metadata": {"name": "nodes"},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "Group", "name": "system:nodes"}],
    });
    let bindings = format!("{RBAC}/clusterrolebindings");
    cluster.post(&bindings, all).await.expect(201);
    cluster.post(LEASES, named("n2")).await.expect(201);
    let phase = json!({"status": {"phase": "Running"}});
    let labels = json!({"metadata": {"labels": {"app": "other"}}});
    let pods = format!("{SPACE}/pods");
    let of = |method: &str, rest: &str| format!("{method} {SPACE}/{rest}");
    let size = json!({"status": {"capacity": {"storage": "2Gi"}}});
    let table: Vec<(String, Value, u16, &str)> = vec![
        (
            format!("POST {pods}"),
            pod_on("n1", "new"),
            403,
            "can only create mirror pods",
        ),
        (
            of("PATCH", "pods/p1"),
            labels.clone(),
            403,
            "can only create and delete mirror pods",
        ),
        (
            of("PATCH", "pods/p1/status"),
            labels.clone(),
            403,
            "cannot update labels through pod status",
        ),
        (of("PATCH", "pods/p1/status"), phase.clone(), 200, ""),
        (
            of("PATCH", "pods/p2/status"),
            phase.clone(),
            403,
            "can only update pod status for pods with spec.nodeName set to itself",
        ),
        (
            of("PATCH", "pods/p2/status"),
            json!({"spec": {"nodeName": "n1"}}),
            403,
            "can only update pod status for pods with spec.nodeName set to itself",
        ),
        (
            of("POST", "pods/p2/eviction"),
            named("p2"),
            403,
            "can only evict pods with spec.nodeName set to itself",
        ),
        (
            of("DELETE", "pods/p2"),
            Value::Null,
            403,
            "can only delete pods with spec.nodeName set to itself",
        ),
        (
            of("POST", "pods/p2/binding"),
            json!({"metadata": {"name": "p2"}, "target": {"name": "n1"}}),
            403,
            "only 'status' and 'eviction' are allowed",
        ),
        (
            of("PATCH", "persistentvolumeclaims/claim-n1"),
            labels.clone(),
            403,
            "may only update PVC status",
        ),
        (
            of("PATCH", "persistentvolumeclaims/claim-n1/status"),
            json!({"status": {"phase": "Lost"}}),
            403,
            "fields other than status.capacity and status.conditions",
        ),
        (
            of("PATCH", "persistentvolumeclaims/claim-n1/status"),
            size,
            200,
            "",
        ),
        (
            "DELETE /api/v1/nodes/n2".to_owned(),
            Value::Null,
            403,
            "is not allowed to modify node",
        ),
        (
            format!("DELETE {LEASES}/n2"),
            Value::Null,
            403,
            "node lease with the same name",
        ),
        (
            "POST /apis/coordination.k8s.io/v1/namespaces/default/leases".to_owned(),
            named("n1"),
            403,
            "can only access leases in the",
        ),
        (
            "POST /apis/storage.k8s.io/v1/csinodes".to_owned(),
            json!({"metadata": {"name": "n2"}, "spec": {"drivers": []}}),
            403,
            "can only access CSINode with the same name",
        ),
        // It may change its own objects.
        (of("DELETE", "pods/p1"), Value::Null, 200, ""),
        ("DELETE /api/v1/nodes/n1".to_owned(), Value::Null, 200, ""),
    ];
    for (line, body, code, reason) in table {
        expect_of_n1(&cluster, &[(line.as_str(), body, code, reason)]).await;
    }
    cluster.get(&format!("{pods}/p2")).await.expect(200);
}

fn role(name: &str, rule: &Value) -> Value {
    json!({"metadata": {"name": name}, "rules": [rule]})
}

fn binding(kind: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": format!("{role}-{user}")},
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": GROUP}],
    })
}

/// Lets `ann` get pods in `default` and write roles and bindings there.
async fn ann_writes_roles() -> Cluster {
    let cluster = Cluster::bare().await;
    let rules = json!([
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["*"], "apiGroups": [GROUP], "resources": ["rolebindings"]},
        {"verbs": ["create", "get", "update", "patch"], "apiGroups": [GROUP],
         "resources": ["roles"]},
        {"verbs": ["bind"], "apiGroups": [GROUP], "resources": ["clusterroles"],
         "resourceNames": ["edit"]},
    ]);
    give_ann(&cluster, rules).await;
    cluster
}

fn get_pods() -> Value {
    json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]})
}

fn delete_pods() -> Value {
    json!({"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["pods"]})
}

#[tokio::test(start_paused = true)]
async fn role_escalation_is_refused() {
    let cluster = ann_writes_roles().await;
    let roles = format!("{RBAC}/namespaces/default/roles");
    let ann = async |line: &str, body: Value| with("ann", &cluster, line, body).await;
    let post = format!("POST {roles}");
    ann(&post, role("same", &get_pods())).await.expect(201);
    let escalation = ann(&post, role("more", &delete_pods())).await;
    assert_eq!(
        escalation.fails(403, "Forbidden"),
        "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"ann\" \
         (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently \
         held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"
    );
    let rules = json!({"rules": [delete_pods()]});
    let apply = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Role",
                       "metadata": {"name": "same"}, "rules": [delete_pods()]});
    for (line, body) in [
        (format!("PUT {roles}/same"), role("same", &delete_pods())),
        (format!("PATCH {roles}/same"), rules),
        (
            format!("APPLY {roles}/same?fieldManager=a&force=true"),
            apply,
        ),
    ] {
        ann(&line, body).await.fails(403, "Forbidden");
    }
    // Not even a label of a role with more permissions than hers: it could become part of an aggregated one.
    cluster
        .post(&roles, role("admins", &delete_pods()))
        .await
        .expect(201);
    let admins = format!("PATCH {roles}/admins");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    ann(&admins, label).await.fails(403, "Forbidden");
    // Changes for deletion are exempt.
    let finalizers = json!({"metadata": {"finalizers": ["example.com/a"]}});
    ann(&admins, finalizers).await.expect(200);
    // So is a role with only her own permissions.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    ann(&format!("PATCH {roles}/same"), label).await.expect(200);

    // With `escalate` a user may grant permissions it does not hold.
    let escalate = json!({"verbs": ["escalate"], "apiGroups": [GROUP], "resources": ["roles"]});
    cluster
        .post(&roles, role("escalate", &escalate))
        .await
        .expect(201);
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    cluster
        .post(&bindings, binding("Role", "escalate", "ann"))
        .await
        .expect(201);
    ann(&post, role("more", &delete_pods())).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn binding_more_than_own_permissions_is_refused() {
    let cluster = ann_writes_roles().await;
    let roles = format!("{RBAC}/namespaces/default/roles");
    for (name, rule) in [("same", get_pods()), ("admins", delete_pods())] {
        cluster.post(&roles, role(name, &rule)).await.expect(201);
    }
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let ann = async |line: &str, body: Value| with("ann", &cluster, line, body).await;
    for (kind, name, code) in [
        ("Role", "same", 201),
        ("Role", "admins", 403),
        ("Role", "none", 404),
        ("ClusterRole", "cluster-admin", 403),
        ("ClusterRole", "admin", 403),
        // She may bind it, regardless of its rules.
        ("ClusterRole", "edit", 201),
    ] {
        let answer = ann(&format!("POST {bindings}"), binding(kind, name, "bob")).await;
        assert_eq!(answer.code, code, "{kind} {name}: {}", answer.body);
    }
    // She cannot add herself to another binding either.
    cluster
        .post(&bindings, binding("Role", "admins", "eve"))
        .await
        .expect(201);
    let subjects = json!({"subjects": [{"kind": "User", "name": "ann"}]});
    let eve = format!("PATCH {bindings}/admins-eve");
    ann(&eve, subjects).await.fails(403, "Forbidden");
    let mut other = binding("ClusterRole", "cluster-admin", "bob");
    other["metadata"]["name"] = "same-bob".into();
    let path = format!("{bindings}/same-bob");
    for answer in [
        ann(&format!("PUT {path}"), other.clone()).await,
        cluster.put(&path, other).await,
    ] {
        let message = answer.fails(422, "Invalid");
        assert!(message.contains("cannot change roleRef"), "{message}");
    }
    // She may bind it in `default`, but not cluster-wide.
    let all = format!("POST {RBAC}/clusterrolebindings");
    let edit = binding("ClusterRole", "edit", "bob");
    ann(&all, edit).await.fails(403, "Forbidden");
}

#[tokio::test(start_paused = true)]
async fn aggregation_needs_all_permissions() {
    let cluster = Cluster::bare().await;
    let roles = json!({"verbs": ["*"], "apiGroups": [GROUP], "resources": ["clusterroles"],
                       "resourceNames": []});
    let path = format!("{RBAC}/clusterroles");
    let mut own = role("roles", &json!({}));
    own["rules"] = json!([
        {"verbs": ["create", "update", "patch"], "apiGroups": [GROUP],
         "resources": ["clusterroles"]},
        get_pods(),
    ]);
    cluster.post(&path, own).await.expect(201);
    let bindings = format!("{RBAC}/clusterrolebindings");
    cluster
        .post(&bindings, binding("ClusterRole", "roles", "ann"))
        .await
        .expect(201);
    let sum = |name: &str| {
        json!({
            "metadata": {"name": name},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]},
        })
    };
    let ann = async |line: &str, body: Value| with("ann", &cluster, line, body).await;
    let needed = "must have cluster-admin privileges to use the aggregationRule";
    let post = format!("POST {path}");
    let message = ann(&post, sum("sum")).await.fails(403, "Forbidden");
    assert!(message.ends_with(needed), "{message}");
    cluster.post(&path, sum("sum")).await.expect(201);
    let no_more = json!({"aggregationRule": null});
    let message = ann(&format!("PATCH {path}/sum"), no_more).await;
    assert!(message.fails(403, "Forbidden").ends_with(needed));
    // A part of `admin`, only with permissions that the user holds.
    let part = |rule: Value| {
        let mut part = role("part", &rule);
        part["metadata"]["labels"] = json!({format!("{GROUP}/aggregate-to-admin"): "true"});
        part
    };
    ann(&post, part(roles)).await.fails(403, "Forbidden");
    let paths = json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]});
    ann(&post, part(paths)).await.fails(403, "Forbidden");
    ann(&post, part(get_pods())).await.expect(201);
    let label = json!({"metadata": {"labels": {format!("{GROUP}/aggregate-to-view"): "true"}}});
    ann(&format!("PATCH {path}/cluster-admin"), label)
        .await
        .fails(403, "Forbidden");
}

#[tokio::test(start_paused = true)]
async fn creating_put_needs_create_permission() {
    let cluster = Cluster::bare().await;
    let rules = json!([
        {"verbs": ["update", "patch"], "apiGroups": ["", "coordination.k8s.io"],
         "resources": ["configmaps", "leases"]},
        {"verbs": ["create"], "apiGroups": [""], "resources": ["configmaps"],
         "resourceNames": ["mine"]},
    ]);
    give_ann(&cluster, rules).await;
    let maps = format!("{SPACE}/configmaps");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let map =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let ann = async |line: &str, body: Value| with("ann", &cluster, line, body).await;
    let apply = |name: &str| format!("APPLY {maps}/{name}?fieldManager=a");
    let message = ann(&apply("new"), map("new")).await.fails(403, "Forbidden");
    assert_eq!(
        message,
        r#"configmaps "new" is forbidden: User "ann" cannot create resource "configmaps" in API group "" in the namespace "default""#
    );
    let dry = format!("{}&dryRun=All", apply("new"));
    ann(&dry, map("new")).await.fails(403, "Forbidden");
    // A PUT creates the lease.
    let put = format!("PUT {leases}/new");
    ann(&put, named("new")).await.fails(403, "Forbidden");
    cluster
        .put(put.trim_start_matches("PUT "), named("new"))
        .await
        .expect(201);
    ann(&put, named("new")).await.expect(200);
    // Permission to create by name needs the name in the URL.
    ann(&apply("mine"), map("mine")).await.expect(201);
    let post = format!("POST {maps}");
    ann(&post, map("mine")).await.fails(403, "Forbidden");
    // An existing object is only updated.
    cluster.post(&maps, map("new")).await.expect(201);
    ann(&apply("new"), map("new")).await.expect(200);
    by("ann", &cluster, &format!("GET {maps}/new"))
        .await
        .fails(403, "Forbidden");
}
