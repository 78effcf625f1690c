//! Upstream's `TestAddNodeAffinityForMultiQuotaTree`.

use super::*;
use crate::webhook::quota::testing::{quota, topology};

fn profile(name: &str, tree: &str, selector: Value) -> Arc<ElasticQuotaProfile> {
    let profile = json!({
        "metadata": {"namespace": "kube-system", "name": name, "labels": {labels::QUOTA_TREE_ID: tree}},
        "spec": {"quotaName": "q", "nodeSelector": selector},
    });
    Arc::new(serde_json::from_value(profile).unwrap())
}

/// Binds a pod and returns the required terms.
fn terms(namespace: &str, label: Option<&str>, spec: Value) -> Value {
    let pool = |name: &str| json!({"matchLabels": {"node-pool": name}});
    let profiles = [
        profile("profile-b", "tree2", pool("B")),
        profile("profile-a", "tree1", pool("A")),
        profile("profile-z", "tree1", pool("Z")),
        profile("profile-e", "tree3", json!({})),
    ];
    let all = topology([
        &quota("other-quota", json!({})),
        &quota("root-quota-a", json!({"tree": "tree1", "isParent": true})),
        &quota(
            "root-quota-a-child1",
            json!({"tree": "tree1", "parent": "root-quota-a"}),
        ),
        &quota(
            "namespace1",
            json!({"namespace": "namespace1", "tree": "tree1", "parent": "root-quota-a"}),
        ),
        &quota(
            "root-quota-b",
            json!({"tree": "tree2", "isParent": true, "namespaces": ["namespace2"]}),
        ),
        &quota(
            "root-quota-b-child1",
            json!({"tree": "tree2", "parent": "root-quota-b"}),
        ),
        &quota("everywhere", json!({"tree": "tree3"})),
    ]);
    let mut pod = json!({"metadata": {"name": "p", "unknown": 1}, "spec": spec});
    if let Some(label) = label {
        pod["metadata"]["labels"] = json!({labels::POD_QUOTA_NAME: label});
    }
    let before = pod.clone();
    match bind_to_tree(&all, &profiles, namespace, &mut pod) {
        Ok(()) if pod == before => Value::Null,
        Ok(()) => pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"]
            .take(),
        Err(refusal) => json!(refusal.0),
    }
}

fn required(terms: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
}

#[test]
fn pods_of_a_tree_go_to_its_nodes() {
    let pool = |name: &str| json!({"key": "node-pool", "operator": "In", "values": [name]});
    let zone = json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["cn-hangzhou-a"]});
    let only = |name: &str| json!([{"matchExpressions": [pool(name)]}]);
    let child = Some("root-quota-a-child1");
    let rows = [
        ("default", None, json!({}), Value::Null),
        ("default", Some("other-quota"), json!({}), Value::Null),
        ("default", child, json!({}), only("A")),
        (
            "default",
            child,
            required(json!([{"matchExpressions": [zone]}, {"matchFields": [1]}])),
            json!([
                {"matchExpressions": [zone, pool("A")]},
                {"matchFields": [1], "matchExpressions": [pool("A")]},
            ]),
        ),
        (
            "default",
            Some("root-quota-b-child1"),
            json!({"affinity": null}),
            only("B"),
        ),
        ("namespace1", None, json!({}), only("A")),
        ("namespace2", None, json!({}), only("B")),
        // A term without requirements selects no node: upstream's pod never runs.
        ("default", Some("everywhere"), json!({}), Value::Null),
    ];
    for (namespace, label, spec, want) in rows {
        assert_eq!(
            terms(namespace, label, spec.clone()),
            want,
            "{namespace} {label:?} {spec}"
        );
    }
}

#[test]
fn every_expression_is_copied_and_malformed_pods_are_refused() {
    let selector = json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]});
    assert_eq!(
        requirements(&profile("p", "t", selector)),
        [
            json!({"key": "a", "operator": "In", "values": ["1"]}),
            json!({"key": "b", "operator": "Exists"})
        ]
    );
    let child = Some("root-quota-a-child1");
    assert_eq!(
        terms("default", child, json!({"affinity": "near"})),
        "spec.affinity: want an object, is \"near\""
    );
    let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    assert_eq!(
        terms("default", child, required(json!({}))),
        format!("{path}: want a list, is {{}}")
    );
    assert_eq!(
        terms("default", child, required(json!([7]))),
        format!("{path}[0]: want an object, is 7")
    );
}
