//! Tests of server-side apply on values.

use super::*;
use crate::kinds::Registry;
use serde_json::json;

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
    let one = json!([{"name": "c", "image": "i:1"}, {"name": "side", "image": "s"}]);
    let first = apply(&r, None, &web(Some(2), one), by("a"), false).unwrap();
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

    // `a` gives up replicas and the second container; its labels it shares with b.
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
