//! No request takes more than linear time, apart from logarithms.
//!
//! Each case is run with `n` and with `8n` elements. Linear work then takes 8 times as long, quadratic
//! work 64 times; the bound is in between. CPU time of the thread counts: other load does not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use koord_kinds::patch::{self, PatchError, Writer};
use koord_kinds::selector::LabelSelector;
use koord_kinds::{ApiError, FieldError, Index, Registry, Resource, limits};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos = text.split_whitespace().next().unwrap();
    Duration::from_nanos(nanos.parse().unwrap())
}

/// Runs the function that `prepare` returns for a number of elements.
#[track_caller]
fn assert_linear<W: FnMut() -> T, T>(n: usize, prepare: impl Fn(usize) -> W) {
    let measure = |n| {
        let mut work = prepare(n);
        let mut best = Duration::MAX;
        for _ in 0..2 {
            let start = cpu_time();
            black_box(work());
            best = best.min(cpu_time() - start);
        }
        best
    };
    let mut observed = Vec::new();
    for _ in 0..3 {
        // Durations too short to measure count as five milliseconds.
        let small = measure(n).max(Duration::from_millis(5));
        let large = measure(8 * n);
        if large < small * 24 {
            return;
        }
        observed.push((small, large));
    }
    panic!("{n} and {} elements took {observed:?}", 8 * n);
}

fn builtin(group: &str, plural: &str) -> Arc<Resource> {
    let registry = Registry::builtin();
    let version = match group {
        "admissionregistration.k8s.io" | "rbac.authorization.k8s.io" | "" | "apps" => "v1",
        other => panic!("unexpected group {other}"),
    };
    registry.find(group, version, plural).unwrap()
}

fn pods() -> Arc<Resource> {
    builtin("", "pods")
}

fn list(n: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..n).map(item).collect()
}

fn pod(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"}, "spec": spec})
}

fn containers(n: usize, image: &str) -> Value {
    list(n, |i| json!({"name": format!("c{i}"), "image": image}))
}

/// Like [`containers`], in reverse order.
fn reversed(n: usize, image: &str) -> Value {
    list(
        n,
        |i| json!({"name": format!("c{}", n - 1 - i), "image": image}),
    )
}

fn writer(manager: &str) -> Writer<'_> {
    Writer {
        manager,
        part: None,
        now: jiff::Timestamp::UNIX_EPOCH,
    }
}

fn strategic(old: &Value, patch: &Value) -> Result<Value, PatchError> {
    patch::strategic_merge(&pods(), old, patch)
}

#[test]
fn strategic_merge_of_lists_by_key_is_linear() {
    assert_linear(400, |n| {
        let old = pod(json!({"containers": containers(n, "x")}));
        let order = list(n, |i| json!({"name": format!("c{}", n - 1 - i)}));
        let patch = json!({"spec": {
            "containers": reversed(n, "y"), "$setElementOrder/containers": order}});
        move || {
            let merged = strategic(&old, &patch).unwrap();
            assert_eq!(
                merged["spec"]["containers"][0],
                json!({"name": format!("c{}", n - 1), "image": "y"})
            );
        }
    });
    assert_linear(1000, |n| {
        let old = pod(json!({"containers": containers(n, "x")}));
        let removed = list(
            n,
            |i| json!({"name": format!("c{}", n - 1 - i), "$patch": "delete"}),
        );
        let patch = json!({"spec": {"containers": removed}});
        move || {
            assert_eq!(
                strategic(&old, &patch).unwrap()["spec"]["containers"],
                json!([])
            )
        }
    });
}

#[test]
fn strategic_merge_of_sets_is_linear() {
    let finalizers = |n: usize, from: usize| list(n, |i| json!(format!("a.b/{}", from + i)));
    assert_linear(2000, |n| {
        let old = json!({"metadata": {"finalizers": finalizers(n, 0)}});
        let patch = json!({"metadata": {
            "finalizers": finalizers(n, n / 2),
            "$deleteFromPrimitiveList/finalizers": finalizers(n / 4, 0),
            "$setElementOrder/finalizers": finalizers(n, n / 2),
        }});
        move || {
            let merged = strategic(&old, &patch).unwrap();
            let remaining = merged["metadata"]["finalizers"].as_array().unwrap();
            assert_eq!(remaining.len(), n / 2 + n - n / 4);
        }
    });
    assert_linear(4000, |n| {
        let fields: Map<String, Value> = (0..n).map(|i| (format!("f{i}"), json!(1))).collect();
        let old = json!({"spec": {"nodeSelector": fields}});
        let keep = list(n, |i| json!(format!("f{}", i + n / 2)));
        let patch = json!({"spec": {"nodeSelector": {"$retainKeys": keep}}});
        move || {
            let merged = strategic(&old, &patch).unwrap();
            assert_eq!(
                merged["spec"]["nodeSelector"].as_object().unwrap().len(),
                n - n / 2
            );
        }
    });
}

#[test]
fn json_patch_bounds_shifts_of_lists() {
    let object = json!({"list": list(100_000, |i| json!(i))});
    for operation in [
        json!({"op": "add", "path": "/list/0", "value": 1}),
        json!({"op": "remove", "path": "/list/0"}),
        json!({"op": "move", "from": "/list/0", "path": "/list/1"}),
        json!({"op": "copy", "from": "/list/0", "path": "/list/0"}),
    ] {
        let short = json!(vec![operation.clone(); 100]);
        patch::json_patch_value(&object, short).unwrap();
        let long = json!(vec![operation; 10_000]);
        let error = patch::json_patch_value(&object, long).unwrap_err();
        assert!(
            error.to_string().contains("elements of lists shifted"),
            "{error}"
        );
    }
    let appended = json!(vec![
        json!({"op": "add", "path": "/list/-", "value": 1});
        10_000
    ]);
    let appended = patch::json_patch_value(&object, appended).unwrap();
    assert_eq!(appended["list"].as_array().unwrap().len(), 110_000);
}

#[test]
fn apply_of_lists_by_key_is_linear() {
    let pods = pods();
    assert_linear(200, |n| {
        let pods = Arc::clone(&pods);
        let first = pod(json!({"containers": containers(n, "x")}));
        let live = patch::apply(&pods, None, &first, writer("a"), false).unwrap();
        let applied = pod(json!({"containers": reversed(n, "x")}));
        move || patch::apply(&pods, Some(&live), &applied, writer("b"), false).unwrap()
    });
}

/// Returns an object whose labels have one owner each.
fn owned_by_many(n: usize, operation: &str) -> Value {
    let labels: Map<String, Value> = (0..n).map(|i| (format!("l{i}"), json!("1"))).collect();
    let entries = list(n, |i| {
        json!({"manager": format!("m{i}"), "operation": operation, "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {format!("f:l{i}"): {}}}}})
    });
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": "p", "namespace": "d", "labels": labels, "managedFields": entries}})
}

#[test]
fn conflicts_with_many_managers_are_linear() {
    let pods = pods();
    assert_linear(250, |n| {
        let pods = Arc::clone(&pods);
        let live = owned_by_many(n, "Apply");
        let labels: Map<String, Value> = (0..n).map(|i| (format!("l{i}"), json!("2"))).collect();
        let applied =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels}});
        move || {
            let error = patch::apply(&pods, Some(&live), &applied, writer("b"), false).unwrap_err();
            assert_eq!(error.details.unwrap().causes.len(), n);
            patch::apply(&pods, Some(&live), &applied, writer("b"), true).unwrap()
        }
    });
}

#[test]
fn updates_tracked_for_many_managers_are_linear() {
    let pods = pods();
    assert_linear(500, |n| {
        let pods = Arc::clone(&pods);
        let mut old = owned_by_many(n, "Update");
        old["metadata"]["managedFields"] = json!([]);
        let new = owned_by_many(n, "Update");
        move || {
            let mut new = new.clone();
            new["metadata"]["labels"]["new"] = json!("1");
            patch::track(&pods, Some(&old), &mut new, writer("b"));
            let entries = new["metadata"]["managedFields"].as_array().unwrap();
            assert_eq!(entries.len(), 10);
        }
    });
    assert_linear(500, |n| {
        let a = owned_by_many(n, "Apply");
        let mut b = a.clone();
        b["metadata"]["managedFields"]
            .as_array_mut()
            .unwrap()
            .reverse();
        move || assert!(patch::equal_except_times(&a, &b))
    });
}

#[test]
fn validation_of_pods_is_linear() {
    let pods = pods();
    assert_linear(400, |n| {
        let pods = Arc::clone(&pods);
        let volumes = list(n, |i| json!({"name": format!("v{i}"), "emptyDir": {}}));
        let mounts = list(
            n,
            |i| json!({"name": format!("v{i}"), "mountPath": format!("/{i}")}),
        );
        let ports = list(
            n,
            |i| json!({"name": format!("p{i}"), "containerPort": 1, "protocol": "TCP"}),
        );
        let sysctls = list(n, |i| json!({"name": format!("a.b{i}"), "value": "1"}));
        let gates = list(n, |i| json!({"name": format!("g{i}")}));
        let tolerations = list(n, |i| json!({"key": format!("t{i}"), "operator": "Exists"}));
        let mut all = containers(n, "x");
        all[0]["volumeMounts"] = mounts;
        all[0]["ports"] = ports;
        let object = pod(
            json!({"containers": all, "volumes": volumes, "tolerations": tolerations,
            "schedulingGates": gates, "securityContext": {"sysctls": sysctls}}),
        );
        let mut old = object.clone();
        old["spec"]["containers"][0]["image"] = json!("y");
        move || {
            assert_eq!(pods.validate_create(&object), []);
            assert_eq!(pods.validate_update(None, &object, &old), []);
        }
    });
}

#[test]
fn validation_of_other_kinds_is_linear() {
    let nodes = builtin("", "nodes");
    assert_linear(500, |n| {
        let nodes = Arc::clone(&nodes);
        let taints = list(
            n,
            |i| json!({"key": format!("t{i}"), "effect": "NoSchedule"}),
        );
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": taints}});
        move || assert_eq!(nodes.validate_create(&node), [])
    });
    let hooks = builtin(
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
    );
    assert_linear(1000, |n| {
        let hooks = Arc::clone(&hooks);
        let versions = list(n, |i| json!(format!("v{i}")));
        let configuration = json!({"metadata": {"name": "h"}, "webhooks": [{"name": "a.b.c",
            "admissionReviewVersions": versions, "sideEffects": "None",
            "clientConfig": {"url": "https://h/p"}}]});
        move || assert_eq!(hooks.validate_create(&configuration), [])
    });
    let pods = pods();
    assert_linear(2000, |n| {
        let pods = Arc::clone(&pods);
        let finalizers = list(n, |i| json!(format!("a.b/{i}")));
        let mut old = pod(json!({"containers": containers(1, "x")}));
        old["metadata"]["finalizers"] = finalizers;
        old["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let new = old.clone();
        move || assert_eq!(pods.validate_update(None, &new, &old), [])
    });
}

#[test]
fn errors_of_an_object_are_joined_in_linear_time() {
    assert_linear(1000, |n| {
        let errors: Vec<FieldError> = (0..n)
            .map(|i| FieldError::required(format!("spec.containers[{i}].name"), ""))
            .collect();
        move || ApiError::invalid("", "Pod", "p", &errors)
    });
}

/// Returns a custom resource of lists and maps.
fn custom(values: Value) -> Arc<Resource> {
    let registry = Registry::builtin();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.x.io"},
        "spec": {"group": "x.io", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": values}}}}]},
    });
    registry.install_crd(&definition).unwrap();
    registry.find("x.io", "v1", "things").unwrap()
}

fn thing(spec: Value) -> Value {
    json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "t", "namespace": "d"}, "spec": spec})
}

#[test]
fn custom_objects_that_stay_invalid_are_linear() {
    let kind = custom(
        json!({"type": "object", "properties": {"list": {"type": "array",
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"}, "n": {"type": "integer", "minimum": 0}}}}}}),
    );
    assert_linear(200, |n| {
        let kind = Arc::clone(&kind);
        let mut old =
            thing(json!({"list": list(n, |i| json!({"name": format!("a{i}"), "n": -1}))}));
        old["metadata"]["resourceVersion"] = json!("1");
        let mut new = old.clone();
        new["spec"]["list"].as_array_mut().unwrap().reverse();
        new["spec"]["list"][0]["n"] = json!(0);
        move || assert_eq!(kind.validate_update(None, &new, &old), [])
    });
}

#[test]
fn long_keys_cost_nothing_per_value_below_them() {
    let kind = custom(json!({"type": "object", "additionalProperties": {
        "type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}}));
    assert_linear(4000, |n| {
        let kind = Arc::clone(&kind);
        let spec = json!({"k".repeat(n * 10): list(n, |_| json!({"n": 1, "x": 1}))});
        let object = thing(spec);
        move || {
            assert_eq!(kind.validate_create(&object), []);
            let unknown = kind.unknown_fields(&object);
            assert!(!unknown.is_empty() && unknown.len() <= 100);
        }
    });
}

#[test]
fn unknown_fields_are_listed_up_to_a_hundred() {
    let fields: Map<String, Value> = (0..500).map(|i| (format!("x{i:03}"), json!(1))).collect();
    let unknown = pods().unknown_fields(&pod(fields.into()));
    assert_eq!(unknown.len(), 100);
    assert_eq!(unknown[0], "unknown field \"spec.x000\"");
}

#[test]
fn selectors_match_in_linear_time() {
    assert_linear(4000, |n| {
        let values: Vec<String> = (0..n).map(|i| format!("v{i}")).collect();
        let selector = LabelSelector::parse(&format!("a in ({})", values.join(","))).unwrap();
        let index = |value: usize| Index {
            labels: vec![("a".into(), format!("v{value}").into())],
            ..Index::default()
        };
        let objects: Vec<Index> = (0..n).map(index).collect();
        move || assert!(objects.iter().all(|object| selector.matches(object)))
    });
    assert_linear(2000, |n| {
        let keys: Vec<String> = (0..n).map(|i| format!("l{i}")).collect();
        let selector = LabelSelector::parse(&keys.join(",")).unwrap();
        let labels = keys
            .iter()
            .map(|key| (key.as_str().into(), "".into()))
            .collect();
        let object = Index {
            labels,
            ..Index::default()
        };
        move || assert!(selector.matches(&object))
    });
}

#[test]
fn limit_ranges_do_not_multiply_with_containers() {
    let pods = pods();
    assert_linear(100, |n| {
        let pods = Arc::clone(&pods);
        let amounts: Map<String, Value> = (0..10 * n)
            .map(|i| (format!("a.b/{i}"), json!("1")))
            .collect();
        let range = json!({"spec": {"limits": [{"type": "Container", "min": amounts,
            "default": amounts, "defaultRequest": amounts}]}});
        let small = pod(json!({"containers": containers(10 * n, "x")}));
        move || {
            assert!(limits::check(&range, &pods, &small).is_err());
            let mut filled = small.clone();
            limits::fill(&range, &mut filled);
            filled
        }
    });
}
