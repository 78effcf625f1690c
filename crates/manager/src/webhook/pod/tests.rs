//! Upstream's tables, from their facts, and what holds for every pod.

use super::mutate::Profiles;
use super::{device, extended, field, rules};
use crate::GATES;
use crate::webhook::profile::{self, Namespace, Priority};
use k8s_openapi::api::core::v1::Pod;
use koord_api::config::ClusterColocationProfile;
use koord_app::features::Gates;
use koord_kube::webhook::{Kind, Operation, Request, Resource, User};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

fn gates(text: &str) -> Gates {
    Gates::parse(GATES, text).unwrap()
}

fn request(uid: &str) -> Request {
    Request {
        uid: uid.to_owned(),
        kind: Kind::default(),
        resource: Resource::default(),
        sub_resource: String::new(),
        name: "test-pod-1".to_owned(),
        namespace: "default".to_owned(),
        operation: Operation::Create,
        user: User {
            name: "jane".to_owned(),
            uid: String::new(),
            groups: Vec::new(),
            extra: BTreeMap::new(),
        },
        object: None,
        old_object: None,
        dry_run: false,
    }
}

/// Applies `profiles` (name, metadata besides it, spec) to a pod in a namespace that has the label
/// `enable-koordinator-colocation: true`, in a cluster with upstream's PriorityClass.
fn mutate(
    pod: &mut Value,
    profiles: Vec<Value>,
    on: &str,
    uid: &str,
) -> Result<Vec<String>, String> {
    let profiles = profiles.into_iter().map(|profile| {
        let profile: ClusterColocationProfile = serde_json::from_value(profile).unwrap();
        Arc::new(profile)
    });
    let labels = crate::webhook::json::labels(pod);
    let namespace = BTreeMap::from([(
        "enable-koordinator-colocation".to_owned(),
        "true".to_owned(),
    )]);
    let (matched, warnings) = profile::matching(profiles, &labels, Namespace::Labels(&namespace));
    let batch = Priority {
        value: 5999,
        preemption_policy: Some("fakePreemptionPolicy".to_owned()),
    };
    let profiles = Profiles {
        matched,
        warnings,
        priorities: [("koordinator-batch".to_owned(), batch)].into(),
    };
    let result = profiles.apply(&request(uid), pod, &gates(on));
    result.map_err(|error| error.to_string())
}

/// Returns the pod of upstream's rows.
fn row_pod() -> Value {
    json!({
        "metadata": {
            "namespace": "default", "name": "test-pod-1",
            "labels": {"koordinator-colocation-pod": "true"},
        },
        "spec": {
            "initContainers": [{
                "name": "test-init-container-a",
                "resources": {
                    "limits": {"cpu": "500m", "memory": "1Gi"},
                    "requests": {"cpu": "500m", "memory": "1Gi"},
                },
            }],
            "containers": [{
                "name": "test-container-a",
                "resources": {
                    "limits": {"cpu": "1", "memory": "4Gi"},
                    "requests": {"cpu": "1", "memory": "4Gi"},
                },
            }],
            "overhead": {"cpu": "1", "memory": "2Gi"},
            "schedulerName": "nonExistSchedulerName",
            "priority": 5999,
        },
    })
}

/// Returns the profile of upstream's rows, with `more` in its spec.
fn row_profile(more: Value) -> Value {
    let mut profile = json!({
        "metadata": {"name": "test-profile"},
        "spec": {
            "namespaceSelector": {"matchLabels": {"enable-koordinator-colocation": "true"}},
            "selector": {"matchLabels": {"koordinator-colocation-pod": "true"}},
            "labels": {"testLabelA": "valueA"},
            "annotations": {"testAnnotationA": "valueA"},
            "schedulerName": "koordinator-scheduler",
            "qosClass": "BE",
            "priorityClassName": "koordinator-batch",
            "koordinatorPriority": 1111,
            "patch": {"metadata": {
                "labels": {"test-patch-label": "patch-a"},
                "annotations": {"test-patch-annotation": "patch-b"},
            }},
        },
    });
    for (key, value) in more.as_object().unwrap() {
        profile["spec"][key] = value.clone();
    }
    profile
}

/// Returns metadata and priority of [`row_pod`] after [`row_profile`], without its resources.
fn row_metadata_and_priority() -> Value {
    let mut pod = row_pod();
    pod["metadata"]["labels"] = json!({
        "koordinator-colocation-pod": "true",
        "testLabelA": "valueA",
        "test-patch-label": "patch-a",
        "koordinator.sh/qosClass": "BE",
        "koordinator.sh/priority": "1111",
    });
    pod["metadata"]["annotations"] =
        json!({"testAnnotationA": "valueA", "test-patch-annotation": "patch-b"});
    pod["spec"]["schedulerName"] = json!("koordinator-scheduler");
    pod["spec"]["priorityClassName"] = json!("koordinator-batch");
    pod["spec"]["preemptionPolicy"] = json!("fakePreemptionPolicy");
    pod
}

/// Replaces the resources of [`row_pod`] by those of a batch pod. `1k` is how 1000 is written.
fn as_batch(mut pod: Value) -> Value {
    let list = |cpu: &str, memory: &str| json!({"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory});
    let resources = |cpu: &str, memory: &str| json!({"limits": list(cpu, memory), "requests": list(cpu, memory)});
    pod["spec"]["initContainers"][0]["resources"] = resources("500", "1Gi");
    pod["spec"]["containers"][0]["resources"] = resources("1k", "4Gi");
    pod["spec"]["overhead"] = list("1k", "2Gi");
    pod
}

/// Upstream's `TestClusterColocationProfileMutatingPod`.
#[test]
fn profiles_create_batch_pods() {
    let changed = as_batch(row_metadata_and_priority());
    let mut pod = row_pod();
    mutate(&mut pod, vec![row_profile(json!({}))], "", "uid").unwrap();
    assert_eq!(pod, changed, "every field");

    // A limit without a request.
    let mut pod = row_pod();
    let containers = json!([{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "4Gi"}}}]);
    pod["spec"]["containers"] = containers;
    mutate(&mut pod, vec![row_profile(json!({}))], "", "uid").unwrap();
    let list = json!({"kubernetes.io/batch-cpu": "1k", "kubernetes.io/batch-memory": "4Gi"});
    let resources = &pod["spec"]["containers"][0]["resources"];
    assert_eq!(*resources, json!({"limits": list, "requests": list}));

    // A request without a limit.
    let mut pod = row_pod();
    let containers =
        json!([{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "4Gi"}}}]);
    pod["spec"]["containers"] = containers;
    mutate(&mut pod, vec![row_profile(json!({}))], "", "uid").unwrap();
    assert_eq!(
        pod["spec"]["containers"][0]["resources"],
        json!({"requests": list})
    );

    // Probabilities. 0 % still lets the resources follow the pod's own priority.
    let skipped = as_batch(row_pod());
    for (percent, want) in [(100, &changed), (0, &skipped)] {
        let mut pod = row_pod();
        mutate(
            &mut pod,
            vec![row_profile(json!({"probability": percent}))],
            "",
            "uid",
        )
        .unwrap();
        assert_eq!(pod, *want, "{percent} %");
    }
    let of_roll = |matches_roll: fn(i64) -> bool| {
        let mut uids = (0..).map(|n| format!("uid-{n}"));
        uids.find(|uid| matches_roll(profile::stable_percentage(uid, "test-profile")))
            .unwrap()
    };
    let (taken, left) = (of_roll(|roll| roll == 30), of_roll(|roll| roll == 70));
    for (uid, want) in [(taken, &changed), (left, &skipped)] {
        let mut pod = row_pod();
        mutate(
            &mut pod,
            vec![row_profile(json!({"probability": 50}))],
            "",
            &uid,
        )
        .unwrap();
        assert_eq!(pod, *want, "{uid}");
    }

    // Resources are kept by the profile or by the gate.
    let mut keeping = row_profile(json!({}));
    keeping["metadata"]["annotations"] =
        json!({"config.koordinator.sh/skip-update-resources": "x"});
    let mut pod = row_pod();
    mutate(&mut pod, vec![keeping], "", "uid").unwrap();
    assert_eq!(pod, row_metadata_and_priority());
    let mut pod = row_pod();
    let on = "ColocationProfileSkipMutatingResources=true";
    mutate(&mut pod, vec![row_profile(json!({}))], on, "uid").unwrap();
    assert_eq!(pod, row_metadata_and_priority());
}

/// Upstream's rows of the same table about copied keys and suffixes.
#[test]
fn profiles_copy_keys_and_append_suffixes() {
    let mut base = row_pod();
    base["metadata"]["labels"]["label-key-to-load"] = json!("test-label-value");
    base["metadata"]["labels"]["label-key-1"] = json!("label-value-1");
    base["metadata"]["annotations"] = json!({"annotation-key-to-load": "test-annotation-value"});
    let scheduler = "scheduling.koordinator.sh/scheduler-name";
    let more_fields = json!({
        "schedulerName": "",
        "labels": {"testLabelA": "valueA", scheduler: "koordinator-scheduler"},
        "labelKeysMapping": {
            "label-key-to-load": "label-key-to-store",
            "label-key-to-load-not-exist": "label-key-to-store-not-exist",
        },
        "annotationKeysMapping": {"annotation-key-to-load": "annotation-key-to-store"},
        "labelSuffixes": {
            "label-key-1": "suffix", "label-key-to-store": "suffix-0", "suffix-label-key-1": "suffix-1",
        },
    });
    let mut pod = base.clone();
    mutate(&mut pod, vec![row_profile(more_fields)], "", "uid").unwrap();
    assert_eq!(
        pod["metadata"]["labels"],
        json!({
            "koordinator-colocation-pod": "true",
            "label-key-1": "label-value-1suffix",
            "testLabelA": "valueA",
            "test-patch-label": "patch-a",
            "label-key-to-load": "test-label-value",
            "label-key-to-store": "test-label-valuesuffix-0",
            "label-key-to-store-not-exist": "",
            "koordinator.sh/qosClass": "BE",
            "koordinator.sh/priority": "1111",
            scheduler: "koordinator-scheduler",
        })
    );
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({
            "testAnnotationA": "valueA",
            "test-patch-annotation": "patch-b",
            "annotation-key-to-load": "test-annotation-value",
            "annotation-key-to-store": "test-annotation-value",
        })
    );
    assert_eq!(pod["spec"]["schedulerName"], "nonExistSchedulerName");
}

#[test]
fn later_profiles_overwrite_earlier_ones() {
    let named_profile = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let resources = |priority: i64, qos: &str| {
        let mut pod = row_pod();
        pod["spec"]["priority"] = json!(priority);
        let profiles = vec![
            named_profile("b", json!({"labels": {"x": "second"}, "qosClass": qos})),
            named_profile("a", json!({"labels": {"x": "first"}, "qosClass": "LS"})),
        ];
        mutate(&mut pod, profiles, "", "uid").unwrap();
        assert_eq!(pod["metadata"]["labels"]["x"], "second");
        pod["spec"]["containers"][0]["resources"]["limits"].clone()
    };
    let list = |cpu: (&str, &str), memory: &str| json!({cpu.0: cpu.1, memory: "4Gi"});
    let native = list(("cpu", "1"), "memory");
    let batch = list(
        ("kubernetes.io/batch-cpu", "1k"),
        "kubernetes.io/batch-memory",
    );
    let mid = list(("kubernetes.io/mid-cpu", "1k"), "kubernetes.io/mid-memory");
    for (priority, qos, want) in [
        (5500, "BE", &batch),
        (5500, "LS", &batch),
        (7500, "LS", &mid),
        (9500, "LS", &native),
        (3500, "BE", &native),
        // No class by value: the QoS class decides.
        (0, "BE", &batch),
        (0, "LSR", &native),
        (6500, "BE", &batch),
    ] {
        assert_eq!(resources(priority, qos), *want, "{priority} {qos}");
    }
}

#[test]
fn patches_merge_strategically() {
    let patch = json!({"spec": {
        "tolerations": [{"key": "batch", "operator": "Exists"}],
        "containers": [{"name": "test-container-a", "env": [{"name": "MODE", "value": "batch"}]}],
        "priority": null,
    }});
    let mut pod = row_pod();
    pod["spec"]["tolerations"] = json!([{"key": "old", "operator": "Exists"}]);
    let profile = json!({"metadata": {"name": "p"}, "spec": {"patch": patch}});
    mutate(&mut pod, vec![profile], "", "uid").unwrap();
    let container = &pod["spec"]["containers"][0];
    assert_eq!(
        container["env"],
        json!([{"name": "MODE", "value": "batch"}])
    );
    assert_eq!(
        container["resources"]["limits"]["memory"], "4Gi",
        "containers are merged by name"
    );
    assert_eq!(
        pod["spec"]["tolerations"], patch["spec"]["tolerations"],
        "tolerations are replaced"
    );
    assert_eq!(pod["spec"].get("priority"), None);
}

#[test]
fn profile_errors_are_named() {
    for (spec, parts) in [
        (
            json!({"probability": "often"}),
            ["spec.probability", "\"often\""],
        ),
        (
            json!({"priorityClassName": "none"}),
            ["spec.priorityClassName", "\"none\""],
        ),
        (
            json!({"patch": {"spec": {"containers": "x"}}}),
            ["spec.patch", "containers"],
        ),
        (
            json!({"patch": {"metadata": {"labels": {"a": 7}}}}),
            ["spec.patch", "7"],
        ),
        (
            json!({"patch": {"$patch": "append"}}),
            ["spec.patch", "append"],
        ),
    ] {
        let mut pod = row_pod();
        let profile = json!({"metadata": {"name": "wrong"}, "spec": spec});
        let error = mutate(&mut pod, vec![profile], "", "uid").unwrap_err();
        assert!(
            error.contains("ClusterColocationProfile \"wrong\""),
            "{error}"
        );
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{spec}: {error}"
        );
    }
    let mut pod = row_pod();
    pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("much");
    let error = mutate(&mut pod, vec![row_profile(json!({}))], "", "uid").unwrap_err();
    assert!(
        error.contains("spec.containers[0].resources.limits.cpu") && error.contains("\"much\""),
        "{error}"
    );
}

/// Pod-level resources allow native names only, so a batch pod keeps them and its author gets a warning.
#[test]
fn resources_of_the_pod_as_a_whole_stay() {
    let mut pod = row_pod();
    pod["spec"]["resources"] = json!({"requests": {"cpu": "2"}});
    let warnings = mutate(&mut pod, vec![row_profile(json!({}))], "", "uid").unwrap();
    assert_eq!(pod["spec"]["resources"], json!({"requests": {"cpu": "2"}}));
    assert!(
        warnings.len() == 1 && warnings[0].contains("spec.resources"),
        "{warnings:?}"
    );
}

const SPEC: &str = "node.koordinator.sh/extended-resource-spec";

/// Upstream's `TestExtendedResourceSpecMutatingPod`, and the states of the annotation.
#[test]
fn annotation_lists_container_requests() {
    let list = json!({"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "4Gi", "unknown-resource": "1"});
    let pod = |annotations: Value, list: &Value| {
        let container = json!({"name": "a", "resources": {"limits": list, "requests": list}});
        json!({"metadata": {"annotations": annotations}, "spec": {"containers": [container]}})
    };
    let annotation = |pod: &Value| pod["metadata"]["annotations"][SPEC].clone();
    let amounts = r#"{"kubernetes.io/batch-cpu":"1k","kubernetes.io/batch-memory":"4Gi"}"#;
    let want = format!(r#"{{"containers":{{"a":{{"limits":{amounts},"requests":{amounts}}}}}}}"#);
    for before in [
        json!({}),
        Value::Null,
        json!({SPEC: "{}"}),
        json!({SPEC: r#"{"containers":{"b":{}}}"#}),
    ] {
        let mut pod = pod(before, &list);
        extended::pod(&mut pod).unwrap();
        assert_eq!(annotation(&pod), want);
    }
    // An equal value in another notation stays.
    let equal = want.replace("1k", "1000");
    let mut unchanged = pod(json!({SPEC: equal}), &list);
    extended::pod(&mut unchanged).unwrap();
    assert_eq!(annotation(&unchanged), equal);
    // No batch resources: nothing, or an end to what is out of date.
    let native = json!({"cpu": "1"});
    let mut untouched = pod(json!({}), &native);
    extended::pod(&mut untouched).unwrap();
    assert_eq!(untouched, pod(json!({}), &native));
    let mut stale = pod(json!({SPEC: want}), &native);
    extended::pod(&mut stale).unwrap();
    assert_eq!(annotation(&stale), "{}");
    // Malformed.
    let mut bad = pod(json!({SPEC: r#"{"containers": 7}"#}), &list);
    let error = extended::pod(&mut bad).unwrap_err().to_string();
    assert!(error.contains(SPEC) && error.contains('7'), "{error}");
}

/// Upstream's `TestDeviceResourceSpecMutatingPod`, and the sides that upstream panics on.
#[test]
fn gpus_are_spelled_out() {
    let key = |name: &str| format!("koordinator.sh/{name}");
    let list = |amounts: &[(&str, &str)]| -> Value {
        amounts
            .iter()
            .map(|(name, amount)| (key(name), json!(amount)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let share = [
        ("gpu-core", "100"),
        ("gpu-memory", "4k"),
        ("gpu-memory-ratio", "50"),
    ];
    let multiple = [
        ("gpu-core", "100"),
        ("gpu-memory", "8k"),
        ("gpu-memory-ratio", "200"),
    ];
    let with = |base: &[(&'static str, &'static str)], shared: &'static str| {
        let mut all = base.to_vec();
        all.push(("gpu.shared", shared));
        list(&all)
    };
    let two = [
        ("gpu-core", "200"),
        ("gpu-memory-ratio", "200"),
        ("gpu.shared", "2"),
    ];
    let resources = |list: &Value| json!({"requests": list, "limits": list});
    for (resources, want) in [
        (resources(&list(&share)), resources(&with(&share, "1"))),
        (
            resources(&list(&multiple)),
            resources(&with(&multiple, "2")),
        ),
        (resources(&list(&[("gpu", "200")])), resources(&list(&two))),
        (
            resources(&list(&[("gpu-core", "300")])),
            resources(&with(&[("gpu-core", "300")], "3")),
        ),
        (
            resources(&list(&[("gpu-core", "150")])),
            resources(&with(&[("gpu-core", "150")], "1")),
        ),
        // Upstream panics: a side is missing.
        (
            json!({"requests": list(&[("gpu", "200")])}),
            resources(&list(&two)),
        ),
        (
            json!({"limits": list(&[("gpu", "200")])}),
            resources(&list(&two)),
        ),
        (
            json!({"limits": list(&[("gpu.shared", "1")])}),
            json!({"limits": list(&[("gpu.shared", "1")])}),
        ),
        (
            json!({"requests": {"cpu": "1"}}),
            json!({"requests": {"cpu": "1"}}),
        ),
        (json!({}), json!({})),
    ] {
        let mut pod = json!({"spec": {"containers": [{"name": "a", "resources": resources}]}});
        device::pod(&mut pod).unwrap();
        assert_eq!(
            pod["spec"]["containers"][0]["resources"], want,
            "{resources}"
        );
    }
}

fn typed(pod: Value) -> Pod {
    serde_json::from_value(pod).unwrap()
}

fn pod_with(qos: &str, priority: Option<i32>, requests: Value) -> Pod {
    let labels = if qos.is_empty() {
        json!({})
    } else {
        json!({"koordinator.sh/qosClass": qos})
    };
    let container = json!({"name": "a", "resources": {"requests": requests}});
    typed(
        json!({"metadata": {"labels": labels}, "spec": {"priority": priority, "containers": [container]}}),
    )
}

/// Upstream's `TestClusterColocationProfileValidatingPod`: new pods.
#[test]
fn rules_of_new_pods() {
    let batch = json!({"kubernetes.io/batch-cpu": "1", "kubernetes.io/batch-memory": "4Gi"});
    let cpu = json!({"cpu": "1"});
    let none = json!({});
    let qos = "labels.koordinator.sh/qosClass: Required value";
    let pair = "Pod: Forbidden";
    let requests = "pod.spec.containers[*].resources.requests";
    let no_cpu = format!("{requests}: Required value");
    let part_of_cpu = format!("{requests}: Invalid value: \"100m\"");
    for (class, priority, asks, want) in [
        ("", None, &none, ""),
        ("BE", Some(5000), &batch, ""),
        ("", Some(6666), &batch, qos),
        ("LS", Some(5000), &batch, qos),
        ("", None, &json!({"kubernetes.io/batch-cpu": "0"}), ""),
        ("BE", Some(5000), &none, ""),
        ("BE", Some(7000), &none, ""),
        ("BE", Some(3000), &none, ""),
        ("BE", Some(9999), &none, pair),
        ("BE", None, &none, pair),
        ("LSR", Some(9999), &cpu, ""),
        ("LSR", Some(5999), &cpu, pair),
        ("LSR", Some(7999), &cpu, pair),
        ("LSR", Some(3999), &cpu, pair),
        ("LSR", None, &cpu, pair),
        ("LS", Some(9999), &json!({"cpu": "1", "memory": "4Gi"}), ""),
        ("LS", Some(5000), &none, ""),
        ("LSE", Some(5000), &cpu, ""),
        ("LSE", None, &json!({"cpu": "1500m"}), requests),
        ("SYSTEM", Some(5000), &none, ""),
        ("LSR", Some(9999), &json!({"memory": "0"}), &no_cpu),
        ("LSR", Some(9999), &json!({"cpu": "100m"}), &part_of_cpu),
    ] {
        let pod = pod_with(class, priority, asks.clone());
        let problems = rules::colocation_problems(&pod, None, false);
        match field::all(problems) {
            Ok(()) => assert_eq!(want, "", "{class} {priority:?} {asks}"),
            Err(error) => assert!(
                !want.is_empty() && error.starts_with(want),
                "{error}, not {want}"
            ),
        }
    }
    let problems = rules::colocation_problems(&pod_with("LSR", None, json!({})), None, false);
    let text = field::all(problems).unwrap_err();
    assert!(
        text.starts_with('[') && text.contains(pair) && text.contains(&no_cpu),
        "{text}"
    );
}

/// Upstream's `TestClusterColocationProfileValidatingPod`: what may not change.
#[test]
fn rules_of_changed_pods() {
    let qos = |class: &str| pod_with(class, None, json!({"cpu": "1"}));
    let value = |priority| pod_with("", priority, json!({}));
    let sub = |text: Option<&str>| {
        typed(json!({"metadata": {"labels": {"koordinator.sh/priority": text.unwrap_or("")}}}))
    };
    let no_labels = || typed(json!({"metadata": {}}));
    let sub_path = "labels.koordinator.sh/priority: Invalid value:";
    for (old, new, gate, want) in [
        (
            qos("BE"),
            qos("LS"),
            false,
            "labels.koordinator.sh/qosClass: Invalid value: \"LS\"".to_owned(),
        ),
        (
            qos("BE"),
            qos(""),
            false,
            "labels.koordinator.sh/qosClass: Invalid value: \"\"".to_owned(),
        ),
        (
            value(Some(5000)),
            value(Some(9999)),
            false,
            "spec.priority: Invalid value: \"koord-prod\"".to_owned(),
        ),
        (
            value(Some(5000)),
            value(None),
            false,
            "spec.priority: Invalid value: \"\"".to_owned(),
        ),
        (value(Some(5000)), value(Some(5999)), false, String::new()),
        (
            sub(Some("9999")),
            sub(Some("8888")),
            false,
            format!("{sub_path} \"8888\""),
        ),
        (sub(Some("9999")), sub(Some("8888")), true, String::new()),
        (
            sub(Some("9999")),
            no_labels(),
            false,
            format!("{sub_path} \"\""),
        ),
        (sub(None), no_labels(), false, String::new()),
    ] {
        let result = field::all(rules::colocation_problems(&new, Some(&old), gate));
        match result {
            Ok(()) => assert_eq!(want, ""),
            Err(error) => assert!(
                !want.is_empty() && error.starts_with(&want),
                "{error}, not {want}"
            ),
        }
    }
}

/// Upstream's `TestDeviceResourceValidatingPod`, without the row about the gate.
#[test]
fn gpus_are_checked() {
    let pod = |amounts: &[(&str, &str)]| {
        let requests: BTreeMap<_, _> = amounts.iter().copied().collect();
        pod_with("", None, json!(requests))
    };
    let (gpu, core, memory) = (
        "koordinator.sh/gpu",
        "koordinator.sh/gpu-core",
        "koordinator.sh/gpu-memory",
    );
    let (ratio, shared, npu) = (
        "koordinator.sh/gpu-memory-ratio",
        "koordinator.sh/gpu.shared",
        "huawei.com/npu-core",
    );
    for (amounts, want) in [
        (&[(gpu, "200")][..], None),
        (&[(gpu, "70")], None),
        (&[(gpu, "150")], Some("Invalid value: \"150\"")),
        (&[(gpu, "0")], Some("Invalid value: \"0\"")),
        (
            &[(gpu, "100"), (shared, "1")],
            Some("Forbidden: koordinator.sh/gpu and"),
        ),
        (
            &[(memory, "4000"), (ratio, "100"), (shared, "1")],
            Some("exclude each other"),
        ),
        (&[(shared, "2")], Some("needs koordinator.sh/gpu-memory or")),
        (
            &[(core, "101"), (ratio, "100"), (shared, "2")],
            Some("Invalid value: \"101\": koordinator.sh/gpu-core must"),
        ),
        (
            &[(ratio, "101"), (shared, "2")],
            Some("Invalid value: \"101\": koordinator.sh/gpu-memory-ratio must"),
        ),
        (
            &[(shared, "0"), (ratio, "100")],
            Some("must be more than 0"),
        ),
        (&[(npu, "8"), (shared, "1")], None),
        (&[(core, "100"), (ratio, "100"), (shared, "2")], None),
        (&[], None),
    ] {
        let result = field::all(device::problems(&pod(amounts)));
        match (result, want) {
            (Ok(()), None) => {}
            (Err(error), Some(want)) => {
                assert!(
                    error.starts_with(field::REQUESTS) && error.contains(want),
                    "{error}"
                );
            }
            (result, want) => panic!("{amounts:?}: {result:?}, not {want:?}"),
        }
    }
}

#[test]
fn stand_ins_of_reservations_are_the_schedulers() {
    let reserve = typed(
        json!({"metadata": {"annotations": {"scheduling.koordinator.sh/reserve-pod": "true"}}}),
    );
    let error = field::all(rules::annotation_problems(&reserve)).unwrap_err();
    assert!(
        error.starts_with("annotations.scheduling.koordinator.sh/reserve-pod: Forbidden"),
        "{error}"
    );
    assert_eq!(
        rules::annotation_problems(&typed(json!({"metadata": {"annotations": {"a": "b"}}}))),
        [""; 0]
    );
}

/// Any author of a pod can write the annotation, which makes koordlet mount device files.
#[test]
fn allocations_of_rdma_go_with_requests() {
    let pod = |note: Option<&str>, request: &str| {
        let notes: BTreeMap<_, _> = note
            .map(|note| ("scheduling.koordinator.sh/device-allocated", note))
            .into_iter()
            .collect();
        typed(json!({"metadata": {"annotations": notes},
            "spec": {"containers": [{"name": "a", "resources": {"requests": {request: "1"}}}]}}))
    };
    let allocation = r#"{"rdma":[{"minor":0,"id":"0000:3b:00.0"}]}"#;
    let two = r#"{"rdma":[{"minor":1,"id":"0000:af:00.0"}]}"#;
    let gpu = r#"{"gpu":[{"minor":0}]}"#;
    let rdma = "koordinator.sh/rdma";
    for (old, new, denied) in [
        (None, pod(Some(allocation), "cpu"), true),
        // A pod that is restored, or that its author assigned to these devices: the scheduler checks it.
        (None, pod(Some(allocation), rdma), false),
        (None, pod(Some(gpu), "cpu"), false),
        (None, pod(None, "cpu"), false),
        // What koordlet makes nothing of.
        (None, pod(Some("{"), "cpu"), false),
        (Some(pod(None, "cpu")), pod(Some(allocation), "cpu"), true),
        (
            Some(pod(Some(allocation), "cpu")),
            pod(Some(two), "cpu"),
            true,
        ),
        // As the scheduler does.
        (Some(pod(None, rdma)), pod(Some(allocation), rdma), false),
        // A pod from before this rule can be changed and ended.
        (
            Some(pod(Some(allocation), "cpu")),
            pod(Some(allocation), "cpu"),
            false,
        ),
        (Some(pod(Some(allocation), "cpu")), pod(None, "cpu"), false),
    ] {
        let problems = rules::device_problems(&new, old.as_ref());
        let text = field::all(problems).err().unwrap_or_default();
        let want = "annotations.scheduling.koordinator.sh/device-allocated: Forbidden: it names \
                    RDMA devices, and no container requests koordinator.sh/rdma";
        assert_eq!(text, if denied { want } else { "" }, "{old:?} {new:?}");
    }
}

fn amounts() -> impl Strategy<Value = Value> {
    let names = [
        "cpu",
        "memory",
        "kubernetes.io/batch-cpu",
        "kubernetes.io/mid-memory",
        "koordinator.sh/gpu",
        "koordinator.sh/gpu-core",
        "koordinator.sh/gpu-memory-ratio",
        "koordinator.sh/gpu.shared",
        "example.com/x",
    ];
    let amount = prop_oneof![Just("500m"), Just("2"), Just("1Gi"), Just("200"), Just("0")];
    let list = prop::collection::btree_map(prop::sample::select(names.to_vec()), amount, 0..4);
    prop_oneof![3 => list.prop_map(|list| json!(list)), 1 => Just(Value::Null)]
}

fn pods() -> impl Strategy<Value = Value> {
    let labels = prop::collection::btree_map("a|b|c", "v|w|v-x", 0..3);
    let resources = (amounts(), amounts()).prop_map(|(requests, limits)| {
        let mut resources = json!({"requests": requests, "limits": limits, "claims": []});
        // The API server leaves out what is not set.
        resources
            .as_object_mut()
            .unwrap()
            .retain(|_, list| !list.is_null());
        resources
    });
    let priority = prop::option::of(prop::sample::select(vec![5500, 7500, 9500, 3500, 100]));
    (labels, prop::collection::vec(resources, 1..3), priority).prop_map(|(labels, all, priority)| {
        let containers: Vec<_> = all.iter().enumerate()
            .map(|(at, own)| json!({"name": format!("c{at}"), "resources": own, "futureField": [1]}))
            .collect();
        json!({
            "metadata": {"labels": labels, "name": "p"},
            "spec": {"containers": containers, "priority": priority, "futureField": {"x": 1}},
        })
    })
}

fn profiles() -> impl Strategy<Value = Value> {
    let qos = prop::sample::select(vec!["", "BE", "LS", "LSR"]);
    let labels = prop::collection::btree_map("a|b|new", "v|w", 0..3);
    let suffixes = prop::collection::btree_map("a|b|d", "-x|-y", 0..2);
    (qos, labels, suffixes, any::<bool>(), any::<bool>()).prop_map(|(qos, labels, suffixes, copy, patch)| {
        json!({"metadata": {"name": "p"}, "spec": {
            "qosClass": qos, "labels": labels, "labelSuffixes": suffixes,
            "labelKeysMapping": if copy { json!({"c": "copy"}) } else { json!({}) },
            "patch": if patch { json!({"spec": {"terminationGracePeriodSeconds": 5}}) } else { json!({}) },
        }})
    })
}

fn all_steps(pod: &Value, profile: &Value) -> Value {
    let mut pod = pod.clone();
    mutate(&mut pod, vec![profile.clone()], "", "uid").unwrap();
    extended::pod(&mut pod).unwrap();
    device::pod(&mut pod).unwrap();
    pod
}

proptest! {
    /// An API server may send a pod twice; the second admission changes nothing.
    #[test]
    fn second_admission_changes_nothing(pod in pods(), profile in profiles()) {
        let once = all_steps(&pod, &profile);
        prop_assert_eq!(&all_steps(&once, &profile), &once);
    }

    /// A patch changes only what the rules cover, and yields the result when applied.
    #[test]
    fn patches_are_small(pod in pods(), profile in profiles()) {
        let changed = all_steps(&pod, &profile);
        for operation in koord_kube::webhook::diff(&pod, &changed) {
            let path = operation["path"].as_str().unwrap();
            let allowed = ["/metadata/labels", "/metadata/annotations", "/spec/terminationGracePeriodSeconds"];
            let resources = path.starts_with("/spec/containers/") && path.contains("/resources/");
            prop_assert!(resources || allowed.iter().any(|start| path.starts_with(start)), "{operation}");
        }
    }
}
