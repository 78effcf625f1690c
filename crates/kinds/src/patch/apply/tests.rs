//! Tests of server-side apply on values.

use super::managers::track;
use super::*;
use crate::Registry;

fn deployments() -> std::sync::Arc<Resource> {
    Registry::builtin()
        .find("apps", "v1", "deployments")
        .unwrap()
}

fn by(manager: &str) -> Writer<'_> {
    Writer {
        manager,
        part: None,
        now: "2026-01-02T03:04:05Z".parse().unwrap(),
    }
}

fn web(replicas: Option<i64>, containers: Value) -> Value {
    let mut o = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"a": "1"}},
        "spec": {"template": {"spec": {"containers": containers}}}});
    if let Some(n) = replicas {
        o["spec"]["replicas"] = n.into();
    }
    o
}

#[test]
fn merges_conflicts_and_gives_up_fields() {
    let r = deployments();
    let containers = json!([{"name": "c", "image": "i:1"}, {"name": "side", "image": "s"}]);
    let first = apply(&r, None, &web(Some(2), containers), by("a"), false).unwrap();
    let set = &first["metadata"]["managedFields"][0]["fieldsV1"];
    assert_eq!(set["f:spec"]["f:replicas"], json!({}));
    assert!(set["f:metadata"].get("f:name").is_none());

    // Another manager sets another field of the same container and agrees on the image.
    let other = web(
        None,
        json!([{"name": "c", "image": "i:1", "workingDir": "/"}]),
    );
    let second = apply(&r, Some(&first), &other, by("b"), false).unwrap();
    assert_eq!(
        second["spec"]["template"]["spec"]["containers"][0]["workingDir"],
        "/"
    );

    // It may not change the image.
    let clash = web(None, json!([{"name": "c", "image": "i:2"}]));
    let e = apply(&r, Some(&second), &clash, by("b"), false).unwrap_err();
    assert_eq!(e.code, 409);
    assert_eq!(
        e.message,
        "Apply failed with 1 conflict: conflict with \"a\": .spec.template.spec.containers[name=\"c\"].image"
    );
    let forced = apply(&r, Some(&second), &clash, by("b"), true).unwrap();
    let containers = &forced["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["image"], "i:2");
    assert!(
        containers[0].get("workingDir").is_none(),
        "b no longer applies it"
    );

    // `a` gives up replicas and the second container; it shares its labels with b.
    let less = web(None, json!([{"name": "c"}]));
    let third = apply(&r, Some(&forced), &less, by("a"), false).unwrap();
    assert!(third["spec"].get("replicas").is_none());
    let names = third["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap();
    assert_eq!(names.len(), 1);
    assert_eq!(names[0]["image"], "i:2");
}

#[test]
fn applying_again_changes_nothing() {
    let r = deployments();
    let want = web(
        Some(1),
        json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]),
    );
    let first = apply(&r, None, &want, by("a"), false).unwrap();
    let later = Writer {
        now: "2027-01-02T03:04:05Z".parse().unwrap(),
        ..by("a")
    };
    assert_eq!(apply(&r, Some(&first), &want, later, false).unwrap(), first);
}

/// Returns a resource whose objects have a list of each type.
fn widgets() -> std::sync::Arc<Resource> {
    let registry = Registry::builtin();
    let list = |kind: &str, keys: Value, items: Value| {
        json!({"type": "array", "x-kubernetes-list-type": kind,
            "x-kubernetes-list-map-keys": keys, "items": items})
    };
    registry
        .install_crd(&json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "properties": {
                            "set": {"type": "array", "x-kubernetes-list-type": "set",
                                "items": {"type": "string"}},
                            "ports": list("map", json!(["port"]), json!({"type": "object",
                                "properties": {"port": {"type": "integer"},
                                    "name": {"type": "string"}, "to": {"type": "string"}}})),
                            "inner": {"type": "object",
                                "additionalProperties": {"type": "string"}}}},
                        "status": {"type": "object", "properties": {
                            "phase": {"type": "string"}}}}}}}]}
        }))
        .unwrap();
    registry.find("example.com", "v1", "widgets").unwrap()
}

/// Returns true if everything in `want` is in `have`; lists are compared as sets or by name or port.
fn contains(have: &Value, want: &Value) -> bool {
    match (have, want) {
        (Value::Object(have), Value::Object(want)) => want
            .iter()
            .all(|(k, v)| have.get(k).is_some_and(|h| contains(h, v))),
        (Value::Array(have), Value::Array(want)) => {
            want.iter().all(|w| have.iter().any(|h| contains(h, w)))
        }
        _ => have == want,
    }
}

/// Removes empty objects and lists, which typed servers do not keep.
fn lean(value: &Value) -> Value {
    let is_empty = |v: &Value| match v {
        Value::Object(m) => m.is_empty(),
        Value::Array(a) => a.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| (k.clone(), lean(v)))
            .filter(|(_, v)| !is_empty(v))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(lean).collect(),
        other => other.clone(),
    }
}

mod property {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::subsequence;
    use std::collections::BTreeMap;

    fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
        proptest::collection::btree_map("[abc]", "[01]", 0..3)
    }

    fn some(names: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
        subsequence(names.to_vec(), 0..=names.len()).prop_shuffle()
    }

    /// Generates an applied document: some of a few fields, each with one of two values.
    fn widget() -> impl Strategy<Value = Value> {
        let ports = proptest::collection::btree_map(1..4u8, proptest::option::of("[01]"), 0..3);
        (
            map(),
            some(&["e.com/x", "e.com/y", "e.com/z"]),
            some(&["p", "q", "r"]),
            ports,
            map(),
        )
            .prop_map(|(labels, finalizers, set, ports, inner)| {
                let ports: Vec<Value> = ports
                    .into_iter()
                    .map(|(port, name)| match name {
                        Some(name) => json!({"port": port, "name": name}),
                        None => json!({"port": port}),
                    })
                    .collect();
                json!({"apiVersion": "example.com/v1", "kind": "Widget",
                    "metadata": {"name": "w", "labels": labels, "finalizers": finalizers},
                    "spec": {"set": set, "ports": ports, "inner": inner}})
            })
    }

    fn workload() -> impl Strategy<Value = Value> {
        let containers =
            proptest::collection::btree_map("[cd]", proptest::option::of("[01]"), 0..3);
        (
            map(),
            some(&["e.com/x", "e.com/y"]),
            containers,
            proptest::option::of(0..2u8),
        )
            .prop_map(|(labels, finalizers, containers, replicas)| {
                let containers: Vec<Value> = containers
                    .into_iter()
                    .map(|(name, image)| match image {
                        Some(image) => json!({"name": name, "image": image}),
                        None => json!({"name": name}),
                    })
                    .collect();
                let mut spec = json!({"template": {"spec": {"containers": containers}}});
                if let Some(n) = replicas {
                    spec["replicas"] = n.into();
                }
                json!({"apiVersion": "apps/v1", "kind": "Deployment",
                    "metadata": {"name": "w", "labels": labels, "finalizers": finalizers},
                    "spec": spec})
            })
    }

    /// Returns true if every path of `set` exists in the value.
    fn exists(node: &Schema, value: &Value, set: &Set) -> bool {
        set.iter().all(|(key, below)| {
            let inner = match key.strip_prefix("f:") {
                _ if key == "." => return true,
                Some(name) => value.get(name).map(|v| (node.member(name), v)),
                None => value.as_array().and_then(|items| {
                    let element = node.element();
                    let matches =
                        |v: &&Value| fields::element(node, v).as_deref() == Some(key.as_str());
                    items.iter().find(matches).map(|v| (element, v))
                }),
            };
            inner.is_some_and(|(node, v)| exists(node, v, below.as_object().unwrap()))
        })
    }

    /// Lets two managers apply in turns: the last successful apply of each stays until the manager gives it
    /// up, other fields are gone, and missing fields have no owner.
    fn take_turns(r: &Resource, turns: Vec<(bool, Value)>) -> Result<(), TestCaseError> {
        let mut live: Option<Value> = None;
        let mut last: [Option<Value>; 2] = [None, None];
        for (who, wanted) in turns {
            let wanted = lean(&wanted);
            let name = if who { "one" } else { "two" };
            match apply(r, live.as_ref(), &wanted, by(name), false) {
                Ok(object) => {
                    last[usize::from(who)] = Some(wanted);
                    live = Some(object);
                }
                Err(e) => prop_assert_eq!(e.code, 409),
            }
            let Some(object) = &live else { continue };
            for wanted in last.iter().flatten() {
                prop_assert!(contains(object, wanted), "{} lost {}", object, wanted);
            }
            let mut all = Set::new();
            for (_, entry) in Managers::from_object(object).entries() {
                let set = field_set(entry).unwrap();
                prop_assert!(exists(&r.schema, object, set), "{} {}", object, entry);
                fields::union(&mut all, set.clone());
            }
            let scope = WriteScope {
                resource: r,
                part: None,
            };
            let mut present = compare::fields_of(scope, &lean(object));
            fields::subtract(&mut present, &all);
            prop_assert!(
                present.is_empty(),
                "{object} has fields without an applier: {present:?}"
            );
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn custom_resource_appliers_keep_each_others_fields(
            turns in proptest::collection::vec((any::<bool>(), widget()), 1..8),
        ) {
            take_turns(&widgets(), turns)?;
        }

        #[test]
        fn workload_appliers_keep_each_others_fields(
            turns in proptest::collection::vec((any::<bool>(), workload()), 1..8),
        ) {
            take_turns(&deployments(), turns)?;
        }

        /// Plain updates take ownership of the fields they change and of no others.
        #[test]
        fn update_takes_ownership_of_changed_fields_only(first in widget(), second in widget()) {
            let (first, second) = (lean(&first), lean(&second));
            let r = widgets();
            let object = apply(&r, None, &first, by("one"), false).unwrap();
            // Without an owner there is no record.
            prop_assume!(!Managers::from_object(&object).is_empty());
            let mut new = second.clone();
            track(&r, Some(&object), &mut new, by("edit"));
            let scope = WriteScope { resource: &r, part: None };
            let diff = compare::compare(scope, Some(&object), &new);
            let mut retained = compare::fields_of(scope, &first);
            fields::subtract(&mut retained, &diff.changed);
            fields::subtract(&mut retained, &diff.removed);
            let (mut one, mut edit) = (Set::new(), Set::new());
            for (_, entry) in Managers::from_object(&new).entries() {
                let set = field_set(entry).unwrap();
                prop_assert!(exists(&r.schema, &new, set), "{} {}", new, entry);
                match entry["operation"].as_str() {
                    Some("Apply") => one = set.clone(),
                    _ => edit = set.clone(),
                }
            }
            prop_assert_eq!(one, retained);
            prop_assert_eq!(edit, diff.changed);
        }
    }
}

#[test]
fn many_updaters_become_one() {
    let r = deployments();
    let mut object = web(Some(1), json!([]));
    track(&r, None, &mut object, by("first"));
    for n in 0..14 {
        let mut new = object.clone();
        new["metadata"]["labels"][format!("l{n}")] = "1".into();
        let name = format!("manager-{n:02}");
        let at = Writer {
            now: format!("2026-02-01T00:00:{n:02}Z").parse().unwrap(),
            ..by(&name)
        };
        track(&r, Some(&object), &mut new, at);
        object = new;
    }
    let managers = Managers::from_object(&object);
    let names: Vec<&str> = managers
        .entries()
        .map(|(_, e)| e["manager"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 10, "{names:?}");
    assert_eq!(names[0], "ancient-changes");
    assert_eq!(names[9], "manager-13");
    // All owned fields are still owned.
    let mut all = Set::new();
    for (_, entry) in managers.entries() {
        fields::union(&mut all, field_set(entry).unwrap().clone());
    }
    let labels = &all["f:metadata"]["f:labels"];
    assert!((0..14).all(|n| labels.get(format!("f:l{n}")).is_some()));
}

/// An element that an update removes from a list leaves no owned fields behind, not even a list in it that a
/// typed server writes as null: adding the element again causes no conflict.
#[test]
fn removed_elements_have_no_owner() {
    let r = Registry::builtin()
        .find(
            "admissionregistration.k8s.io",
            "v1",
            "mutatingwebhookconfigurations",
        )
        .unwrap();
    let entry = |name: &str| json!({"name": name, "admissionReviewVersions": ["v1"]});
    let manifest = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration", "metadata": {"name": "c"},
        "webhooks": [entry("a.example.com"), entry("b.example.com")]});
    let applied = apply(&r, None, &manifest, by("kubectl"), false).unwrap();
    let mut updated = applied.clone();
    updated["webhooks"].as_array_mut().unwrap().pop();
    track(&r, Some(&applied), &mut updated, by("manager"));
    let owners: Vec<_> = updated["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["manager"].as_str().unwrap())
        .collect();
    assert_eq!(owners, ["kubectl"], "{updated:#}");
    let requeue = apply(&r, Some(&updated), &manifest, by("kubectl"), false).unwrap();
    assert_eq!(requeue["webhooks"], manifest["webhooks"]);
}
