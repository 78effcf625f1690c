use serde_json::{Value, json};

use crate::{Registry, Resource};
use std::sync::Arc;

fn resource(group: &str, plural: &str) -> Arc<Resource> {
    Registry::builtin().find(group, "v1", plural).unwrap()
}

fn created(group: &str, plural: &str, mut object: Value) -> (Value, Vec<String>) {
    let r = resource(group, plural);
    r.prune(&mut object);
    r.default_object(&mut object);
    r.prepare_create(&mut object);
    let errors = r
        .validate_create(&object)
        .iter()
        .map(ToString::to_string)
        .collect();
    (object, errors)
}

fn pod(container: Value) -> Value {
    let mut c = json!({"name": "c", "image": "img:1"});
    json_patch::merge(&mut c, &container);
    json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [c]}})
}

#[test]
fn pod_defaults() {
    let (p, errors) = created(
        "",
        "pods",
        pod(
            json!({"image": "repo:5000/x", "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}}),
        ),
    );
    assert_eq!(errors, [""; 0]);
    let spec = &p["spec"];
    for (key, value) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
        ("securityContext", json!({})),
    ] {
        assert_eq!(spec[key], value, "{key}");
    }
    let c = &spec["containers"][0];
    assert_eq!(c["imagePullPolicy"], "Always");
    assert_eq!(c["ports"][0]["protocol"], "TCP");
    let want = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(c["resources"], json!({"limits": want, "requests": want}));
    assert_eq!(
        p["status"],
        json!({"phase": "Pending", "qosClass": "Guaranteed"})
    );
    assert_eq!(p["metadata"]["generation"], 1);
}

#[test]
fn quality_of_service() {
    for (resources, expect) in [
        (json!({}), "BestEffort"),
        (
            json!({"requests": {"kubernetes.io/batch-cpu": "1000"}}),
            "BestEffort",
        ),
        (json!({"requests": {"cpu": "1"}}), "Burstable"),
        (json!({"limits": {"cpu": "1"}}), "Burstable"),
        (
            json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
            "Guaranteed",
        ),
        (
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}),
            "Burstable",
        ),
    ] {
        let (p, _) = created("", "pods", pod(json!({"resources": resources})));
        assert_eq!(p["status"]["qosClass"], expect, "{resources}");
    }
}

#[test]
fn pod_errors_name_field_and_value() {
    let base = "spec.containers[0]";
    for (container, expect) in [
        (
            json!({"image": null}),
            format!("{base}.image: Required value"),
        ),
        (
            json!({"name": "A"}),
            format!("{base}.name: Invalid value: \"A\": a lowercase RFC 1123 label must"),
        ),
        (
            json!({"imagePullPolicy": "Sometimes"}),
            format!(
                "{base}.imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\""
            ),
        ),
        (
            json!({"ports": [{"containerPort": 70000}]}),
            format!(
                "{base}.ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive"
            ),
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/x"}]}),
            format!("{base}.volumeMounts[0].name: Not found: \"v\""),
        ),
        (
            json!({"resources": {"requests": {"cpu": "-1"}}}),
            format!(
                "{base}.resources.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0"
            ),
        ),
        (
            json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
            format!(
                "{base}.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"
            ),
        ),
        (
            json!({"resources": {"requests": {"nope": "2"}}}),
            format!(
                "{base}.resources.requests[nope]: Invalid value: \"nope\": must be a standard resource type or fully qualified"
            ),
        ),
        (
            json!({"resources": {"requests": {"example.com/gpu": "1"}}}),
            format!(
                "{base}.resources.limits: Required value: Limit must be set for non overcommitable resources"
            ),
        ),
        (
            json!({"resources": {"limits": {"example.com/gpu": "1500m"}}}),
            format!(
                "{base}.resources.limits[example.com/gpu]: Invalid value: \"1500m\": must be an integer"
            ),
        ),
        (
            json!({"resources": {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "2"}}}),
            format!(
                "{base}.resources.requests: Invalid value: \"1\": must be equal to example.com/gpu limit of 2"
            ),
        ),
    ] {
        let (_, errors) = created("", "pods", pod(container.clone()));
        assert!(
            errors.first().is_some_and(|e| e.starts_with(&expect)),
            "{container}: {errors:?}"
        );
    }
    // Batch resources are native: no limit needed, and the form `1500` stays.
    let batch = json!({"resources": {"requests":
        {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}}});
    assert_eq!(created("", "pods", pod(batch)).1, [""; 0]);
    let (_, errors) = created("", "pods", json!({"metadata": {}, "spec": {}}));
    assert!(
        errors.contains(
            &"metadata.name: Required value: name or generateName is required".to_owned()
        )
    );
    assert!(errors.contains(&"spec.containers: Required value".to_owned()));
}

#[test]
fn broken_quantities_and_types_cannot_be_decoded() {
    let pods = resource("", "pods");
    let bad = pod(json!({"resources": {"requests": {"cpu": "lots"}}}));
    let e = pods.check_types(&bad).unwrap_err();
    assert!(
        e.contains("spec.containers.resources.requests.cpu") && e.contains("lots"),
        "{e}"
    );
    let e = pods
        .check_types(&json!({"spec": {"containers": "x"}}))
        .unwrap_err();
    assert_eq!(
        e,
        "Pod in version \"v1\" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field Pod.spec.containers of type []v1.Container"
    );
    assert!(pods.check_types(&json!([])).is_err());
    assert_eq!(
        pods.unknown_fields(&json!({"spec": {"foo": 1, "containers": [{"immage": "x"}]}})),
        [
            "unknown field \"spec.containers[0].immage\"",
            "unknown field \"spec.foo\""
        ]
    );
}

fn updated(
    group: &str,
    plural: &str,
    sub: Option<&str>,
    old: &Value,
    change: Value,
) -> (Value, Vec<String>) {
    let r = resource(group, plural);
    let mut new = old.clone();
    json_patch::merge(&mut new, &change);
    r.prune(&mut new);
    r.default_object(&mut new);
    r.prepare_update(sub, old, &mut new);
    let errors = r
        .validate_update(sub, &new, old)
        .iter()
        .map(ToString::to_string)
        .collect();
    (new, errors)
}

#[test]
fn pods_hardly_change() {
    let (old, _) = created("", "pods", pod(json!({})));
    let (new, errors) = updated(
        "",
        "pods",
        None,
        &old,
        json!({"metadata": {"labels": {"a": "b"}}}),
    );
    assert_eq!(
        (errors.len(), &new["metadata"]["generation"]),
        (0, &json!(1))
    );
    let image = json!({"spec": {"containers": [{"name": "c", "image": "other:2"}]}});
    let mut with_image = old["spec"]["containers"].clone();
    with_image[0]["image"] = image["spec"]["containers"][0]["image"].clone();
    let (new, errors) = updated(
        "",
        "pods",
        None,
        &old,
        json!({"spec": {"containers": with_image}}),
    );
    assert_eq!(
        (errors.len(), &new["metadata"]["generation"]),
        (0, &json!(2))
    );
    let (_, errors) = updated("", "pods", None, &old, json!({"spec": {"nodeName": "n"}}));
    assert!(errors[0].starts_with("spec: Forbidden: pod updates may not change fields other than"));
    assert!(errors[0].ends_with("changed: nodeName"), "{errors:?}");
    let (new, _) = updated(
        "",
        "pods",
        None,
        &old,
        json!({"status": {"phase": "Running"}}),
    );
    assert_eq!(
        new["status"]["phase"], "Pending",
        "the main endpoint keeps the status"
    );
    let (new, errors) = updated(
        "",
        "pods",
        Some("status"),
        &old,
        json!({"status": {"phase": "Running"}, "spec": {"nodeName": "x"},
            "metadata": {"labels": {"l": "1"}}}),
    );
    assert_eq!(errors, [""; 0]);
    assert_eq!(new["status"]["phase"], "Running");
    assert_eq!(new["metadata"]["labels"]["l"], "1");
    assert!(new["spec"].get("nodeName").is_none());
}

#[test]
fn node_status_takes_metadata_along() {
    let (old, errors) = created(
        "",
        "nodes",
        json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2000m"}}}),
    );
    assert_eq!(errors, [""; 0]);
    assert_eq!(old["status"]["allocatable"]["cpu"], "2");
    let (new, errors) = updated(
        "",
        "nodes",
        Some("status"),
        &old,
        json!({"metadata": {"annotations": {"a": "b"}},
            "status": {"allocatable": {"kubernetes.io/batch-cpu": "1500"}},
            "spec": {"unschedulable": true}}),
    );
    assert_eq!(errors, [""; 0]);
    assert_eq!(new["metadata"]["annotations"]["a"], "b");
    assert_eq!(
        new["status"]["allocatable"]["kubernetes.io/batch-cpu"],
        "1500"
    );
    assert!(meta_bool(&new).is_none());
}

fn meta_bool(node: &Value) -> Option<&Value> {
    node.get("spec").and_then(|s| s.get("unschedulable"))
}

#[test]
fn workloads() {
    let template = json!({"metadata": {"labels": {"app": "w"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (d, errors) = created(
        "apps",
        "deployments",
        json!({"metadata": {"name": "d", "namespace": "x"},
            "spec": {"selector": {"matchLabels": {"app": "w"}}, "template": template}}),
    );
    assert_eq!(errors, [""; 0]);
    assert_eq!(d["spec"]["replicas"], 1);
    assert_eq!(d["spec"]["strategy"]["rollingUpdate"]["maxSurge"], "25%");
    assert!(
        d["spec"]["template"]["spec"]
            .get("enableServiceLinks")
            .is_none()
    );
    let (_, errors) = created(
        "apps",
        "deployments",
        json!({"metadata": {"name": "d", "namespace": "x"},
            "spec": {"selector": {"matchLabels": {"app": "z"}}, "template": template}}),
    );
    assert!(
        errors[0].ends_with("`selector` does not match template `labels`"),
        "{errors:?}"
    );
    let (j, errors) = created(
        "batch",
        "jobs",
        json!({"metadata": {"name": "j", "namespace": "x", "uid": "u-1"},
            "spec": {"template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "image": "i"}]}}}}),
    );
    assert_eq!(errors, [""; 0]);
    assert_eq!(j["spec"]["completions"], 1);
    assert_eq!(
        j["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"],
        "u-1"
    );
    let (_, errors) = created(
        "batch",
        "jobs",
        json!({"metadata": {"name": "j", "namespace": "x"}, "spec": {"template": template}}),
    );
    assert!(
        errors[0].contains("restartPolicy: Required value: valid values"),
        "{errors:?}"
    );
}

#[test]
fn small_kinds() {
    for (group, plural, object, expect) in [
        (
            "",
            "configmaps",
            json!({"data": {"a b": "x"}}),
            "data[a b]: Invalid value: \"a b\": a valid config key must",
        ),
        (
            "",
            "namespaces",
            json!({"metadata": {"name": "A.b", "namespace": null}}),
            "metadata.name: Invalid value: \"A.b\"",
        ),
        (
            "scheduling.k8s.io",
            "priorityclasses",
            json!({"value": 1_000_000_001_i64, "metadata": {"namespace": null}}),
            "value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
        ),
        (
            "policy",
            "poddisruptionbudgets",
            json!({"spec": {"minAvailable": "half"}}),
            "spec.minAvailable: Invalid value: \"half\": a valid percent string",
        ),
        (
            "",
            "events",
            json!({"involvedObject": {"namespace": "other"}}),
            "involvedObject.namespace: Invalid value: \"other\": does not match event.namespace",
        ),
        (
            "coordination.k8s.io",
            "leases",
            json!({"spec": {"leaseDurationSeconds": 0}}),
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "",
            "configmaps",
            json!({"metadata": {"labels": {"a": "b c"}}}),
            "metadata.labels: Invalid value: \"b c\": a valid label must",
        ),
        (
            "",
            "configmaps",
            json!({"metadata": {"finalizers": ["x"]}}),
            "metadata.finalizers[0]: Invalid value: \"x\": name is neither",
        ),
    ] {
        let mut o = json!({"metadata": {"name": "n", "namespace": "ns"}});
        json_patch::merge(&mut o, &object);
        let (_, errors) = created(group, plural, o);
        assert!(
            errors.first().is_some_and(|e| e.starts_with(expect)),
            "{plural}: {errors:?}"
        );
    }
    let (s, _) = created(
        "",
        "secrets",
        json!({"metadata": {"name": "s", "namespace": "x"}, "stringData": {"k": "hi"}}),
    );
    assert_eq!(
        (&s["type"], &s["data"]["k"]),
        (&json!("Opaque"), &json!("aGk="))
    );
}

#[test]
fn events_are_one_object_in_two_spellings() {
    let registry = Registry::builtin();
    let core = registry.find("", "v1", "events").unwrap();
    let new = registry.find("events.k8s.io", "v1", "events").unwrap();
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "e", "namespace": "d"}, "regarding": {"kind": "Pod", "name": "p"},
        "note": "n", "reportingController": "c", "eventTime": "2026-01-02T03:04:05.000001Z"});
    let stored = new.to_storage(event.clone());
    assert_eq!(stored["apiVersion"], "v1");
    assert_eq!(stored["involvedObject"]["name"], "p");
    assert_eq!(stored["message"], "n");
    assert_eq!(stored["reportingComponent"], "c");
    let index = core.index(&stored);
    assert!(
        index
            .fields
            .iter()
            .any(|(k, v)| &**k == "involvedObject.name" && &**v == "p")
    );
    let back = new.from_storage(stored);
    assert_eq!(back["note"], "n");
    assert_eq!(back["regarding"], event["regarding"]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

    /// Any JSON from a client causes errors, not panics, in every step for every kind.
    #[test]
    fn nothing_panics(seed in proptest::collection::vec(0_u8..=255, 8..64)) {
        let junk = junk(&mut seed.iter().copied().cycle(), 0);
        for r in Registry::builtin().all() {
            let mut object = json!({"metadata": {"name": "n"}, "spec": junk, "status": junk,
                "data": junk, "webhooks": [junk], "value": junk});
            let _ = r.check_types(&object);
            let _ = r.unknown_fields(&object);
            r.prune(&mut object);
            r.default_object(&mut object);
            r.prepare_create(&mut object);
            let _ = r.validate_create(&object);
            let old = object.clone();
            r.prepare_update(None, &old, &mut object);
            let _ = r.validate_update(Some("status"), &object, &old);
            let _ = r.validate_update(None, &junk, &old);
            let _ = r.index(&object);
        }
    }
}

/// Builds a JSON tree from bytes, with field names of real objects.
fn junk(bytes: &mut impl Iterator<Item = u8>, depth: usize) -> Value {
    const KEYS: [&str; 16] = [
        "containers",
        "template",
        "spec",
        "metadata",
        "labels",
        "resources",
        "limits",
        "cpu",
        "volumes",
        "selector",
        "ports",
        "tolerations",
        "matchExpressions",
        "env",
        "name",
        "taints",
    ];
    let b = bytes.next().unwrap_or(0);
    match b % 8 {
        _ if depth > 5 => b.into(),
        0 => Value::Null,
        1 => i64::from(b).wrapping_neg().into(),
        2 => "1é".into(),
        3 | 4 => (0..b % 4).map(|_| junk(bytes, depth + 1)).collect(),
        _ => Value::Object(
            (0..b % 5)
                .map(|_| {
                    let key = KEYS[usize::from(bytes.next().unwrap_or(0)) % KEYS.len()];
                    (key.to_owned(), junk(bytes, depth + 1))
                })
                .collect(),
        ),
    }
}
