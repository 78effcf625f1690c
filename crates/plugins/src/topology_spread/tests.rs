//! Tests of `PodTopologySpread` on a small cluster.

use crate::common::topology::tests::EngineFixture;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use koord_scheduler::framework::{Action, BuildContext, ObjectChange};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::any::Any;
use std::sync::Arc;

const ZONE: &str = "topology.kubernetes.io/zone";

fn cluster() -> EngineFixture {
    EngineFixture::new(super::NAME, json!({}))
}

fn constraint(key: &str, when: &str, more: &[(&str, Value)]) -> Value {
    let mut constraint = json!({
        "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "a"}}
    });
    for (field, value) in more {
        constraint[field] = value.clone();
    }
    json!({"spec": {"topologySpreadConstraints": [constraint]}})
}

/// Returns the result for a pod with a spread constraint, on two zones of one node each with these pods.
fn answer(pods: &[(&str, Value)], more: &[(&str, Value)]) -> String {
    let mut cluster = cluster();
    cluster.node("n1", "x", &json!({}));
    cluster.node("n2", "y", &json!({}));
    for (number, (node, change)) in pods.iter().enumerate() {
        cluster.bound(&format!("old{number}"), node, change);
    }
    cluster.place("new", &constraint(ZONE, super::DO_NOT_SCHEDULE, more))
}

#[test]
fn hard_constraints_bound_the_skew() {
    let plain = || json!({});
    let full = "0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints.";
    let labels = |hash: &str| json!({"metadata": {"labels": {"app": "a", "hash": hash}}});
    let deleting = json!({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}});
    let elsewhere = json!({"metadata": {"namespace": "other"}});
    for (name, pods, more, expected) in [
        (
            "the emptier zone",
            vec![("n1", plain())],
            vec![],
            "n2".to_owned(),
        ),
        (
            "pods that are going do not count",
            vec![
                ("n1", plain()),
                ("n1", plain()),
                ("n2", plain()),
                ("n2", deleting),
            ],
            vec![],
            "n2".to_owned(),
        ),
        (
            "nor those of other namespaces",
            vec![
                ("n1", plain()),
                ("n2", elsewhere.clone()),
                ("n2", elsewhere),
            ],
            vec![],
            "n2".to_owned(),
        ),
        (
            "too few domains count as an empty one",
            vec![("n1", plain()), ("n2", plain())],
            vec![("minDomains", json!(3))],
            full.to_owned(),
        ),
        (
            "enough domains",
            vec![("n1", plain()), ("n1", plain()), ("n2", plain())],
            vec![("minDomains", json!(2))],
            "n2".to_owned(),
        ),
        (
            "a key that the pod lacks is left out",
            vec![("n1", labels("1")), ("n1", labels("2"))],
            vec![("matchLabelKeys", json!(["hash"]))],
            "n2".to_owned(),
        ),
    ] {
        assert_eq!(answer(&pods, &more), expected, "{name}");
    }
}

#[test]
fn pods_placed_before_the_counter_are_counted() {
    let mut cluster = cluster();
    cluster.node("n1", "x", &json!({}));
    cluster.node("n2", "y", &json!({}));
    let first = constraint(ZONE, super::DO_NOT_SCHEDULE, &[]);
    cluster.place("first", &first);
    let other = json!({"metadata": {"labels": {"app": "b"}}});
    cluster.bound("old1", "n1", &other);
    cluster.bound("old2", "n1", &other);
    let selector = json!({"matchLabels": {"app": "b"}});
    let mut new = constraint(ZONE, super::DO_NOT_SCHEDULE, &[("labelSelector", selector)]);
    new["metadata"] = other["metadata"].clone();
    assert_eq!(cluster.place("new1", &new), "n2");
    assert_eq!(cluster.place("new2", &new), "n2");
}

#[test]
fn match_label_keys_count_only_pods_of_the_same_revision() {
    let mut cluster = cluster();
    cluster.node("n1", "x", &json!({}));
    cluster.node("n2", "y", &json!({"spec": {"unschedulable": true}}));
    let revision = |hash: &str| json!({"metadata": {"labels": {"hash": hash}}});
    cluster.bound("old", "n1", &revision("1"));
    let keys = ("matchLabelKeys", json!(["hash"]));
    let mut new = constraint(ZONE, super::DO_NOT_SCHEDULE, &[keys]);
    new["metadata"] = revision("2")["metadata"].clone();
    assert_eq!(cluster.place("new", &new), "n1");
    let refused = "0/2 nodes are available: 1 node(s) didn't match pod topology spread \
        constraints, 1 node(s) were unschedulable.";
    assert_eq!(cluster.place("newer", &new), refused);
}

#[test]
fn nodes_without_the_label_are_unresolvable() {
    let mut cluster = cluster();
    cluster.node("n1", "", &json!({}));
    let pod = constraint(ZONE, super::DO_NOT_SCHEDULE, &[]);
    assert_eq!(
        cluster.place("p", &pod),
        "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints \
        (missing required label)."
    );
}

#[test]
fn inclusion_policies_decide_which_nodes_make_domains() {
    // A third zone that the pod cannot use: it is empty, and lowers the minimum if it counts.
    let only = json!({"nodeSelector": {"kind": "good"}});
    for (name, node, policy, pod, expected) in [
        ("affinity is honoured", json!({}), vec![], &only, "n1"),
        (
            "unless told otherwise",
            json!({}),
            vec![("nodeAffinityPolicy", json!("Ignore"))],
            &only,
            "refused",
        ),
        (
            "taints are not",
            json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}),
            vec![],
            &json!({}),
            "refused",
        ),
        (
            "unless told otherwise",
            json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}),
            vec![("nodeTaintsPolicy", json!("Honor"))],
            &json!({}),
            "n1",
        ),
    ] {
        let mut cluster = cluster();
        let good = json!({"metadata": {"labels": {"kind": "good"}}});
        cluster.node("n1", "x", &good);
        cluster.node("n3", "z", &json!({"spec": node}));
        cluster.bound("old", "n1", &json!({}));
        let mut new = constraint(ZONE, super::DO_NOT_SCHEDULE, &policy);
        for (key, value) in pod.as_object().unwrap() {
            new["spec"][key] = value.clone();
        }
        // This profile does not check node selectors: n3 must be excluded by skew alone.
        let answer = cluster.place("new", &new);
        match expected {
            "n1" => assert!(answer == "n1" || answer == "n3", "{name}: {answer}"),
            _ => assert_ne!(answer, "n1", "{name}"),
        }
    }
}

#[test]
fn soft_constraints_prefer_the_emptier_domain() {
    let mut cluster = cluster();
    for (node, zone) in [("n1", "x"), ("n2", "x"), ("n3", "y")] {
        cluster.node(node, zone, &json!({}));
    }
    for number in 0..3 {
        cluster.bound(&format!("x{number}"), "n1", &json!({}));
    }
    cluster.bound("y", "n3", &json!({}));
    let soft = |key| constraint(key, super::SCHEDULE_ANYWAY, &[]);
    assert_eq!(cluster.place("a", &soft(ZONE)), "n3", "1 there, 3 here");
    assert_eq!(cluster.place("b", &soft("kubernetes.io/hostname")), "n2");
}

#[test]
fn pods_of_a_service_or_a_controller_spread_by_default() {
    fn object<K: DeserializeOwned + Any + Send + Sync>(value: Value) -> Arc<dyn Any + Send + Sync> {
        Arc::new(serde_json::from_value::<K>(value).unwrap())
    }
    let labels = json!({"app": "a"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": []}});
    let make = |kind: &str| {
        let metadata = json!({"name": "s", "namespace": "ns"});
        let set = json!({"metadata": metadata, "spec": {
            "serviceName": "", "selector": {"matchLabels": labels}, "template": template}});
        let plain = json!({"metadata": metadata, "spec": {"selector": labels}});
        match kind {
            "replicasets.v1.apps" => object::<ReplicaSet>(set),
            "statefulsets.v1.apps" => object::<StatefulSet>(set),
            "replicationcontrollers.v1." => object::<ReplicationController>(plain),
            _ => object::<Service>(plain),
        }
    };
    for (kind, api, owner) in [
        ("services.v1.", "", ""),
        ("replicasets.v1.apps", "apps/v1", "ReplicaSet"),
        ("statefulsets.v1.apps", "apps/v1", "StatefulSet"),
        ("replicationcontrollers.v1.", "v1", "ReplicationController"),
    ] {
        let mut cluster = cluster();
        cluster.node("n1", "x", &json!({}));
        cluster.node("n2", "y", &json!({}));
        let owners = json!([{"apiVersion": api, "kind": owner, "name": "s", "uid": "s",
            "controller": true}]);
        let change = match owner {
            "" => json!({}),
            _ => json!({"metadata": {"ownerReferences": owners}}),
        };
        let now = cluster.now;
        let mut spread_after = |action, number: usize| {
            let object = ObjectChange {
                kind,
                action,
                old: None,
                new: make(kind),
            };
            let object = cluster.engine.plugins().as_delivered(object);
            cluster.engine.object_changed(&object, now);
            let place = |pod| cluster.place(&format!("p{number}-{pod}"), &change);
            let mut nodes: Vec<String> = (0..8).map(place).collect();
            nodes.sort();
            nodes
        };
        let spread = ["n1", "n1", "n1", "n1", "n2", "n2", "n2", "n2"];
        assert_eq!(spread_after(Action::ADD, 0), spread, "{kind}");
        // Nothing groups the pods any more, so the choice is random.
        assert_ne!(spread_after(Action::DELETE, 1), spread, "{kind}");
    }
}

#[test]
fn invalid_arguments_are_reported() {
    let listed =
        |constraint: Value| json!({"defaultingType": "List", "defaultConstraints": [constraint]});
    let good = json!({"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "ScheduleAnyway"});
    let with = |field: &str, value: Value| {
        let mut constraint = good.clone();
        constraint[field] = value;
        listed(constraint)
    };
    for (args, expected) in [
        (listed(good.clone()), ""),
        (json!({"defaultConstraints": [good]}), "defaultingType"),
        (
            with("maxSkew", json!(0)),
            "defaultConstraints[0].maxSkew: 0",
        ),
        (with("topologyKey", json!("")), "topologyKey"),
        (with("whenUnsatisfiable", json!("Never")), "\"Never\""),
        (with("labelSelector", json!({})), "labelSelector"),
        (json!({"nope": 1}), "nope"),
    ] {
        let built = super::build(Some(&args), &BuildContext::default());
        let error = built
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert_eq!(error.is_empty(), expected.is_empty(), "{args}: {error}");
        assert!(error.contains(expected), "{args}: {error}");
    }
}
