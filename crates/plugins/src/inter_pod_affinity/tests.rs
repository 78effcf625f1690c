//! Tests of `InterPodAffinity` on a small cluster.

use crate::common::topology::tests::EngineFixture;
use k8s_openapi::api::core::v1::Namespace;
use koord_scheduler::framework::{Action, BuildContext, ObjectChange};
use serde_json::{Value, json};
use std::sync::Arc;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn cluster(args: Value) -> EngineFixture {
    let mut cluster = EngineFixture::new(super::NAME, args);
    cluster.node("n1", "x", &json!({}));
    cluster.node("n2", "x", &json!({}));
    cluster.node("n3", "y", &json!({}));
    cluster
}

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
}

fn pod(app: &str, kind: &str, when: &str, term: &Value) -> Value {
    let term = if when == PREFERRED {
        json!({"weight": 10, "podAffinityTerm": term})
    } else {
        term.clone()
    };
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"affinity": {kind: {when: [term]}}}
    })
}

fn plain(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}})
}

fn refused(reason: &str) -> String {
    format!("0/3 nodes are available: 3 node(s) {reason}.")
}

#[test]
fn required_affinity_selects_domains_of_matching_pods() {
    let with_affinity = pod("b", "podAffinity", REQUIRED, &term(ZONE, "a"));
    let mut empty = cluster(json!({}));
    assert_eq!(
        empty.place("p", &with_affinity),
        refused("didn't match pod affinity rules")
    );
    let mut cluster = cluster(json!({}));
    cluster.bound("a", "n3", &plain("a"));
    assert_eq!(cluster.place("p", &with_affinity), "n3");
    // All terms must be matched by the same pod.
    let mut with_two_terms = with_affinity.clone();
    with_two_terms["spec"]["affinity"]["podAffinity"][REQUIRED] =
        json!([term(ZONE, "a"), term(HOST, "b")]);
    assert_eq!(
        cluster.place("q", &with_two_terms),
        refused("didn't match pod affinity rules")
    );
}

#[test]
fn first_pod_of_a_group_may_use_any_domain() {
    let mut cluster = cluster(json!({}));
    let own = pod("a", "podAffinity", REQUIRED, &term(ZONE, "a"));
    let first = cluster.place("p0", &own);
    let second = cluster.place("p1", &own);
    let zone = |node: &str| if node == "n3" { "y" } else { "x" };
    assert_eq!(zone(&first), zone(&second));
    let missing = pod("c", "podAffinity", REQUIRED, &term("rack", "c"));
    assert_eq!(
        cluster.place("p2", &missing),
        refused("didn't match pod affinity rules")
    );
}

#[test]
fn anti_affinity_works_both_ways() {
    let away = pod("a", "podAntiAffinity", REQUIRED, &term(HOST, "a"));
    let mut cluster = cluster(json!({}));
    let mut nodes: Vec<String> = (0..3)
        .map(|number| cluster.place(&format!("p{number}"), &away))
        .collect();
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2", "n3"]);
    assert_eq!(
        cluster.place("p3", &away),
        refused("didn't match pod anti-affinity rules")
    );
    assert_eq!(
        cluster.place("p4", &plain("a")),
        refused("didn't satisfy existing pods anti-affinity rules")
    );
    assert!(cluster.place("p5", &plain("b")).starts_with('n'));
}

#[test]
fn deleted_pod_no_longer_counts() {
    let mut cluster = cluster(json!({}));
    let away = pod("a", "podAntiAffinity", REQUIRED, &term(ZONE, "a"));
    cluster.bound("x", "n1", &away);
    cluster.bound("y", "n3", &away);
    assert!(cluster.place("p0", &plain("a")).starts_with('0'));
    let deleted = serde_json::from_value(json!({"metadata": {"name": "x", "uid": "x"}})).unwrap();
    let now = cluster.now;
    cluster.engine.pod_deleted(&deleted, now);
    let node = cluster.place("p1", &plain("a"));
    assert!(node == "n1" || node == "n2", "{node}");
}

#[test]
fn preferences_attract_and_repel() {
    let with_affinity = pod("b", "podAffinity", PREFERRED, &term(ZONE, "a"));
    let with_anti_affinity = pod("b", "podAntiAffinity", PREFERRED, &term(ZONE, "a"));
    let same_zone = |node: &str| node == "n1" || node == "n2";
    let with = |args: Value, old: &Value, new: &Value| {
        let mut cluster = cluster(args);
        cluster.bound("old", "n1", old);
        cluster.place("new", new)
    };
    assert!(
        same_zone(&with(json!({}), &plain("a"), &with_affinity)),
        "drawn"
    );
    assert_eq!(
        with(json!({}), &plain("a"), &with_anti_affinity),
        "n3",
        "repelled"
    );
    // Preferences of placed pods for new ones count, too.
    let wants_b = pod("a", "podAffinity", PREFERRED, &term(ZONE, "b"));
    let shuns_b = pod("a", "podAntiAffinity", PREFERRED, &term(ZONE, "b"));
    assert!(same_zone(&with(json!({}), &wants_b, &plain("b"))));
    assert_eq!(with(json!({}), &shuns_b, &plain("b")), "n3");
    let needs_b = pod("a", "podAffinity", REQUIRED, &term(ZONE, "b"));
    let strong = json!({"hardPodAffinityWeight": 100});
    assert!(same_zone(&with(strong, &needs_b, &plain("b"))));
}

#[test]
fn namespaces_are_chosen_by_name_or_by_label() {
    let mut cluster = cluster(json!({}));
    let namespace: Namespace = serde_json::from_value(json!({
        "metadata": {"name": "other", "labels": {"team": "t"}}
    }))
    .unwrap();
    let change = ObjectChange {
        kind: super::NAMESPACES,
        action: Action::ADD,
        old: None,
        new: Arc::new(namespace),
    };
    let now = cluster.now;
    cluster.engine.object_changed(&change, now);
    cluster.bound(
        "a",
        "n3",
        &json!({"metadata": {"namespace": "other", "labels": {"app": "a"}}}),
    );
    let with = |field: &str, value: Value| {
        let mut term = term(ZONE, "a");
        term[field] = value;
        pod("b", "podAffinity", REQUIRED, &term)
    };
    let no = refused("didn't match pod affinity rules");
    let by_labels = |team: &str| with("namespaceSelector", json!({"matchLabels": {"team": team}}));
    for (name, pod, expected) in [
        ("its own only", with("namespaces", json!([])), no.as_str()),
        ("by name", with("namespaces", json!(["other"])), "n3"),
        ("all", with("namespaceSelector", json!({})), "n3"),
        ("by label", by_labels("t"), "n3"),
        ("by another label", by_labels("u"), no.as_str()),
    ] {
        assert_eq!(cluster.place(name, &pod), expected, "{name}");
    }
}

#[test]
fn mismatch_label_keys_exclude_other_revisions() {
    let mut cluster = cluster(json!({}));
    let revision = |number: &str| json!({"app": "a", "rev": number});
    cluster.bound("x", "n1", &json!({"metadata": {"labels": revision("1")}}));
    cluster.bound("y", "n3", &json!({"metadata": {"labels": revision("2")}}));
    let mut away = term(ZONE, "a");
    away["mismatchLabelKeys"] = json!(["rev"]);
    let mut new = pod("a", "podAntiAffinity", REQUIRED, &away);
    new["metadata"]["labels"] = revision("2");
    assert_eq!(cluster.place("new", &new), "n3");
}

#[test]
fn weight_out_of_range_is_rejected() {
    let args = json!({"hardPodAffinityWeight": 101});
    let error = super::build(Some(&args), &BuildContext::default())
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(error.contains("hardPodAffinityWeight: 101"), "{error}");
}
