//! Upstream's tables of `pkg/quota-controller/profile/profile_controller_test.go`.

use super::*;

fn node(name: &str, zone: &str, ready: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"zone": zone}},
        "status": {
            "allocatable": {"cpu": "10", "memory": "1000", "storage": "1000"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }))
    .unwrap()
}

fn profile(name: &str, metadata: Value, spec: Value) -> ElasticQuotaProfile {
    let mut object = json!({"metadata": metadata, "spec": {"quotaName": "root", "nodeSelector": {"matchLabels": {"zone": "a"}}}});
    object["metadata"]["name"] = json!(name);
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn list(value: Value) -> ResourceList {
    serde_json::from_value(value).unwrap()
}

fn all(cpu: i64, other: i64) -> ResourceList {
    list(json!({"cpu": cpu, "memory": other, "storage": other}))
}

fn nodes() -> [Node; 3] {
    [
        node("node1", "a", "True"),
        node("node2", "a", "False"),
        node("node3", "b", "True"),
    ]
}

#[test]
fn quota_equals_sum_of_its_nodes() {
    let ratio = json!({"resourceRatio": "0.9"});
    let tree1 = json!({"labels": {labels::QUOTA_TREE_ID: "tree1"}});
    let mut only_cpu = tree1.clone();
    only_cpu["annotations"] = json!({annotations::QUOTA_RESOURCE_KEYS: "[\"cpu\"]"});
    let zone_b = json!({"nodeSelector": {"matchLabels": {"zone": "b"}}});
    let more_labels = json!({"quotaLabels": {"zone": "a"}});
    let (hash1, hash2) = ("2862972692226656278", "2862971592715028067");
    let cpu_and_memory = |cpu: i64, memory: i64| json!({"cpu": cpu, "memory": memory});
    let rows = [
        (
            profile("profile1", json!({}), json!({})),
            cpu_and_memory(20, 2000),
            all(20, 2000),
            all(10, 1000),
            hash1,
            json!({}),
        ),
        (
            profile("profile2", json!({}), zone_b),
            cpu_and_memory(10, 1000),
            all(10, 1000),
            list(json!({})),
            hash2,
            json!({}),
        ),
        (
            profile("profile1", json!({}), more_labels),
            cpu_and_memory(20, 2000),
            all(20, 2000),
            all(10, 1000),
            hash1,
            json!({"zone": "a"}),
        ),
        (
            profile("profile1", json!({}), ratio.clone()),
            cpu_and_memory(18, 1800),
            all(18, 1800),
            all(9, 900),
            hash1,
            json!({}),
        ),
        (
            profile("profile1", tree1, ratio.clone()),
            cpu_and_memory(18, 1800),
            all(18, 1800),
            all(9, 900),
            "tree1",
            json!({}),
        ),
        (
            profile("profile1", only_cpu, ratio),
            json!({"cpu": 18}),
            all(18, 1800),
            all(9, 900),
            "tree1",
            json!({}),
        ),
    ];
    for (profile, min, total, unschedulable, tree, labels) in rows {
        let plan = plan(&profile, nodes()).unwrap();
        let quota = plan.quota(&ObjectKey::new("ns", "root"));
        assert_eq!(quota.spec.min, list(min), "{profile:?}");
        assert_eq!(json!(quota)["status"], json!({}));
        assert_eq!(quota.amounts(annotations::QUOTA_TOTAL_RESOURCE), Ok(total));
        assert_eq!(
            quota.amounts(annotations::QUOTA_UNSCHEDULABLE_RESOURCE),
            Ok(unschedulable)
        );
        let mut want = labels;
        want[labels::QUOTA_PROFILE] = json!(profile.metadata.name);
        want[labels::QUOTA_TREE_ID] = json!(tree);
        want[labels::QUOTA_IS_ROOT] = json!("true");
        assert_eq!(json!(quota.metadata.labels), want);
        for max in quota.spec.max.values() {
            assert_eq!(max.to_string(), "4611686018427387");
        }
        assert_eq!(quota.spec.max.len(), quota.spec.min.len());
        assert_eq!(plan.new_tree.is_some(), tree != "tree1");
        assert_eq!(plan.change(&quota), None, "the quota is up to date");
    }
}

#[test]
fn existing_quota_keeps_fields_not_in_the_profile() {
    let plan = plan(
        &profile("profile1", json!({}), json!({"quotaLabels": {"zone": "a"}})),
        nodes(),
    )
    .unwrap();
    let existing = json!({
        "metadata": {"name": "root", "labels": {"a": "a"},
            "annotations": {annotations::QUOTA_TOTAL_RESOURCE: r#"{"storage":"2e3","memory":"2k","cpu":"20000m"}"#}},
        "spec": {"min": {"cpu": 5, "example.io/x": 1}, "max": {"cpu": "4611686018427387", "memory": "4611686018427387"}},
    });
    let change = plan
        .change(&serde_json::from_value(existing.clone()).unwrap())
        .unwrap();
    assert_eq!(
        change["spec"],
        json!({"min": {"cpu": "20", "memory": "2k", "example.io/x": null}})
    );
    assert_eq!(
        change["metadata"]["annotations"],
        json!({annotations::QUOTA_UNSCHEDULABLE_RESOURCE: r#"{"cpu":"10","memory":"1k","storage":"1k"}"#}),
        "equal amounts in other notation stay"
    );
    assert_eq!(change["status"], json!({}));
    assert_eq!(change["metadata"]["labels"]["zone"], "a");
    assert_eq!(change["metadata"]["labels"].get("a"), None);
}

#[test]
fn shares_are_cut_off() {
    for (resource, amount, ratio, want) in [
        ("cpu", "1", 0.9, "0.9"),
        ("cpu", "100m", 0.5, "50m"),
        ("cpu", "1Gi", 0.5, "512Mi"),
        ("memory", "1001", 0.5, "500"),
        ("example.io/x", "3", 0.5, "1"),
        // 0.29 is a little less than that in binary.
        ("memory", "100000", 0.29, "28999"),
    ] {
        let amount: Quantity = amount.parse().unwrap();
        assert_eq!(
            scale_amount(resource, amount, ratio),
            want.parse().unwrap(),
            "{resource} {amount} {ratio}"
        );
    }
    let share = scale_amount("cpu", "1Gi".parse().unwrap(), 0.9);
    assert_eq!(
        share.milli_value(),
        "0.9Gi".parse::<Quantity>().unwrap().milli_value()
    );
}

#[test]
fn mistakes_in_a_profile_are_named() {
    let problems = |metadata: Value, spec: Value| {
        plan(&profile("p", metadata, spec), nodes())
            .unwrap()
            .problems
            .join("; ")
    };
    for ratio in ["half", "0", "1.5", "NaN", "-1", ""] {
        let messages = problems(json!({}), json!({"resourceRatio": ratio}));
        assert!(
            messages.contains("spec.resourceRatio") && messages.contains(ratio),
            "{messages}"
        );
    }
    let messages = problems(
        json!({"annotations": {annotations::QUOTA_RESOURCE_KEYS: "cpu"}}),
        json!({}),
    );
    assert!(
        messages.contains("/resource-keys") && messages.contains("\"cpu\""),
        "{messages}"
    );
    let selector =
        json!({"nodeSelector": {"matchExpressions": [{"key": "zone", "operator": "Near"}]}});
    let error = plan(&profile("p", json!({}), selector), nodes()).unwrap_err();
    assert!(
        error.contains("spec.nodeSelector") && error.contains("Near"),
        "{error}"
    );
    let mut broken = nodes();
    let status = broken[0].status.as_mut().unwrap();
    status
        .allocatable
        .as_mut()
        .unwrap()
        .get_mut("cpu")
        .unwrap()
        .0 = "many".to_owned();
    let plan = plan(&profile("p", json!({}), json!({})), &broken).unwrap();
    assert_eq!(plan.total, all(10, 1000));
    let messages = plan.problems.join("; ");
    assert!(
        messages.contains("node1")
            && messages.contains("status.allocatable.cpu")
            && messages.contains("many"),
        "{messages}"
    );
    let cordoned: Node = serde_json::from_value(json!({"spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})).unwrap();
    assert!(!is_schedulable(&cordoned));
}

#[test]
fn trees_are_named_by_hash() {
    assert_eq!(
        tree_id(&ObjectKey::new("kube-system", "profile-a")),
        "14670177934133508854"
    );
}
