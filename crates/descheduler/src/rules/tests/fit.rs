use super::super::*;
use super::{TestCluster, Value, json, merged};
use crate::state::NodeInfo;
use std::sync::Arc;

const DESIRED: &str = "kubernetes.io/desiredNode";
const GB: i64 = 1_000_000_000;

fn node(world: &mut TestCluster, name: &str, over: Value) -> Arc<NodeInfo> {
    let big = json!({"status": {"allocatable": {
        "cpu": "64", "memory": "128G", "pods": "200", "ephemeral-storage": "1T",
    }}});
    world.node(name, merged(big, over))
}

fn labelled(value: &str) -> Value {
    json!({"metadata": {"labels": {DESIRED: value}}})
}

fn tainted() -> Value {
    json!({"spec": {"taints": [{"key": "hardware", "value": "gpu", "effect": "NoSchedule"}]}})
}

fn requesting(requests: Value) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

fn wanting(requests: Value) -> Value {
    merged(
        requesting(requests),
        json!({"spec": {"nodeSelector": {DESIRED: "yes"}}}),
    )
}

fn requests(cpu: i64, memory: i64, storage: i64) -> Value {
    json!({"cpu": format!("{cpu}m"), "memory": memory.to_string(), "ephemeral-storage": storage.to_string()})
}

fn having(allocatable: Value) -> Value {
    merged(
        labelled("yes"),
        json!({"status": {"allocatable": allocatable}}),
    )
}

/// Checks whether `pod`, which runs on a third node without capacity, fits `first` or `second`, on which
/// `there` runs.
fn fits(pod: Value, first: Value, second: Value, there: Option<Value>) -> (bool, String) {
    let mut world = TestCluster::default();
    node(&mut world, "node1", first);
    node(&mut world, "node2", second);
    world.node(
        "staging",
        json!({"status": {"allocatable": {"cpu": "0", "memory": "0", "pods": "0"}}}),
    );
    if let Some(there) = there {
        world.pod("there", "node2", there);
    }
    let pod = world.pod("p1", "staging", pod);
    let snapshot = world.snapshot();
    let fit = Fit::new(&snapshot);
    let any = fit.fits_any_other(&pod, &snapshot.nodes);
    (any, fit.reasons(&pod, &snapshot.nodes))
}

/// Upstream's `TestPodFitsAnyOtherNode`.
#[test]
fn fit_of_other_nodes_matches_upstream() {
    let want = || wanting(requests(2000, 2 * GB, 10 * GB));
    let overhead = |cpu: &str| {
        let overhead = json!({"cpu": cpu, "memory": "1G", "ephemeral-storage": "1G"});
        let with = json!({"spec": {"overhead": overhead}});
        Some(merged(requesting(requests(2000, 4 * GB, 10 * GB)), with))
    };
    let spoilt = || merged(labelled("yes"), tainted());
    let ten = || json!({"cpu": "10", "memory": "8G", "pods": "12", "ephemeral-storage": "200G"});
    let with = |base: Value, over: Value| merged(base, over);
    let custom = |count: &str| json!({"example.com/custom-resource": count});
    let other_pod = |cpu, memory, storage| Some(requesting(requests(cpu, memory, storage)));
    let cases = [
        (
            wanting(json!({})),
            labelled("yes"),
            labelled("no"),
            None,
            true,
            "",
        ),
        (
            wanting(json!({})),
            labelled("no"),
            labelled("yes"),
            None,
            true,
            "",
        ),
        (
            wanting(json!({})),
            labelled("unfit1"),
            labelled("unfit2"),
            None,
            false,
            "2 node selector or affinity",
        ),
        (
            wanting(json!({})),
            with(labelled("yes"), json!({"spec": {"unschedulable": true}})),
            labelled("no"),
            None,
            false,
            "1 node selector or affinity, 1 unschedulable",
        ),
        (want(), spoilt(), spoilt(), None, false, "2 taint hardware"),
        (
            want(),
            spoilt(),
            labelled("yes"),
            other_pod(12000, 20 * GB, 40 * GB),
            true,
            "",
        ),
        (
            want(),
            spoilt(),
            having(json!({"cpu": "4", "memory": "8G", "pods": "12", "ephemeral-storage": "200G"})),
            other_pod(3000, 4 * GB, 10 * GB),
            false,
            "1 insufficient cpu, 1 taint hardware",
        ),
        (
            wanting(requests(2000, 5 * GB, 10 * GB)),
            spoilt(),
            having(ten()),
            other_pod(2000, 4 * GB, 10 * GB),
            false,
            "1 insufficient memory, 1 taint hardware",
        ),
        (
            wanting(requests(2000, 4 * GB, 10 * GB)),
            spoilt(),
            having(with(ten(), json!({"ephemeral-storage": "20G"}))),
            other_pod(2000, 4 * GB, 11 * GB),
            false,
            "1 insufficient ephemeral-storage, 1 taint hardware",
        ),
        (
            wanting(with(requests(2000, 2 * GB, 10 * GB), custom("10"))),
            with(spoilt(), json!({"status": {"allocatable": custom("15")}})),
            having(with(ten(), custom("15"))),
            Some(requesting(custom("10"))),
            false,
            "1 insufficient example.com/custom-resource, 1 taint hardware",
        ),
        (
            wanting(requests(1000, 2 * GB, 10 * GB)),
            spoilt(),
            having(with(ten(), json!({"cpu": "5"}))),
            overhead("1"),
            true,
            "",
        ),
        (
            want(),
            spoilt(),
            having(with(ten(), json!({"cpu": "5"}))),
            overhead("2"),
            false,
            "1 insufficient cpu, 1 taint hardware",
        ),
    ];
    for (at, (pod, first, second, other_pod, expected, said)) in cases.into_iter().enumerate() {
        let (any, reasons) = fits(pod, first, second, other_pod);
        assert_eq!(any, expected, "case {at}: {reasons}");
        if !expected {
            assert_eq!(reasons, said, "case {at}");
        }
    }
}

/// Upstream's `TestPodFitsCurrentNode` and `TestPodFitsAnyNode`.
#[test]
fn required_affinity_fit_matches_upstream() {
    let wants = |key: &str, values: &[&str]| {
        let term = json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]});
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
        json!({"spec": {"affinity": {"nodeAffinity": required}, "tolerations": [{"operator": "Exists"}]}})
    };
    let typed = |kind: &str| json!({"metadata": {"labels": {"type": kind}}});
    let cases = [
        (wants(DESIRED, &["yes"]), vec![labelled("yes")], true),
        (wants(DESIRED, &["yes"]), vec![labelled("no")], false),
        (
            wants("type", &["A", "B"]),
            vec![typed("C"), typed("A")],
            true,
        ),
        (
            wants("type", &["A", "B"]),
            vec![typed("C"), typed("D")],
            false,
        ),
    ];
    for (pod, nodes, expected) in cases {
        let mut world = TestCluster::default();
        for (at, over) in nodes.into_iter().enumerate() {
            node(&mut world, &format!("node{at}"), over);
        }
        let pod = world.pod("p", "node0", pod);
        let snapshot = world.snapshot();
        let fit = Fit::new(&snapshot);
        assert_eq!(fit.any(&pod, &snapshot.nodes), expected, "{pod:?}");
    }
}

/// Upstream's cases of `TestIsEvictable` about node fit.
#[test]
fn node_fit_keeps_the_pods_that_upstream_keeps() {
    let size = |cpu: &str, memory: &str| json!({"status": {"allocatable": {"cpu": cpu, "memory": memory}}});
    let east = |size: Value| {
        merged(
            size,
            json!({"metadata": {"labels": {"datacenter": "east"}}}),
        )
    };
    let in_place = |place: &str, over: Value| {
        merged(
            over,
            json!({"spec": {"nodeSelector": {"datacenter": place}}}),
        )
    };
    let small = || requesting(json!({"cpu": "400m", "memory": "0"}));
    let pod = || requesting(json!({"cpu": "12m", "memory": "8"}));
    let tolerant = json!({"spec": {"tolerations": [{"key": "hardware", "value": "gpu", "effect": "NoSchedule"}]}});
    let other = |cpu: &str| requesting(json!({"cpu": cpu, "memory": "10"}));
    let plain = || size("1", "2000");
    let cases = [
        (
            small(),
            merged(plain(), tainted()),
            merged(plain(), tainted()),
            None,
            false,
        ),
        (
            merged(small(), tolerant),
            merged(plain(), tainted()),
            merged(plain(), tainted()),
            None,
            true,
        ),
        (
            in_place("fail", small()),
            east(plain()),
            east(plain()),
            None,
            false,
        ),
        (
            in_place("east", small()),
            east(plain()),
            east(plain()),
            None,
            true,
        ),
        (
            in_place("east", pod()),
            east(size("10m", "16")),
            east(size("10m", "16")),
            None,
            false,
        ),
        (
            in_place("east", pod()),
            east(size("100m", "16")),
            east(size("100m", "20")),
            Some(other("20m")),
            true,
        ),
        (
            in_place("east", pod()),
            east(size("100m", "16")),
            east(size("100m", "16")),
            Some(other("10m")),
            false,
        ),
    ];
    for (at, (pod, first, second, there, expected)) in cases.into_iter().enumerate() {
        let mut world = TestCluster::default();
        for (name, over) in [("node2", first), ("node3", second)] {
            world.node(name, over);
            if let Some(there) = there.clone() {
                world.pod(&format!("on-{name}"), name, there);
            }
        }
        world.node("node1", plain());
        let pod = world.pod("p1", "node1", pod);
        let snapshot = world.snapshot();
        let fit = Fit::new(&snapshot);
        assert_eq!(
            fit.fits_any_other(&pod, &snapshot.nodes),
            expected,
            "case {at}"
        );
    }
}

#[test]
fn pods_that_ended_take_nothing_and_those_that_are_added_do() {
    let mut world = TestCluster::default();
    world.node("a", json!({}));
    let node = world.node("b", json!({}));
    world.pod(
        "done",
        "b",
        merged(
            requesting(json!({"cpu": "4"})),
            json!({"status": {"phase": "Succeeded"}}),
        ),
    );
    let pod = world.pod("p", "a", requesting(json!({"cpu": "3"})));
    let snapshot = world.snapshot();
    let mut fit = Fit::new(&snapshot);
    assert!(fit.can_place(&pod, &node));
    fit.add(&pod, &node.name);
    assert!(
        matches!(&fit.fits(&pod, &node).unwrap_err()[..], [FitError::Insufficient(cpu)] if &**cpu == "cpu")
    );
    fit.remove(&pod, &node.name);
    assert!(fit.fits(&pod, &node).is_ok());
    let unreadable = world.pod("q", "a", requesting(json!({"cpu": "much"})));
    assert_eq!(fit.fits(&unreadable, &node), Err(vec![FitError::Malformed]));
}

#[test]
fn pods_are_alike_when_they_ask_for_the_same_of_nodes() {
    let affinity = |operator: &str, rule: &str| {
        let term =
            json!({"matchExpressions": [{"key": "gpu", "operator": operator, "values": ["yes"]}]});
        let inner = match rule {
            "requiredDuringSchedulingIgnoredDuringExecution" => {
                json!({"nodeSelectorTerms": [term]})
            }
            _ => json!([{"weight": 1, "preference": term}]),
        };
        json!({"spec": {"affinity": {"nodeAffinity": {rule: inner}}}})
    };
    let must = "requiredDuringSchedulingIgnoredDuringExecution";
    let may = "preferredDuringSchedulingIgnoredDuringExecution";
    let tolerating =
        |key: &str| json!({"spec": {"tolerations": [{"key": key, "operator": "Exists"}]}});
    // Requirements in addition to one CPU, and which of these pods are equal.
    let rows = [
        ("plain", json!({}), 0),
        (
            "labels",
            json!({"metadata": {"labels": {"app": "other"}}}),
            0,
        ),
        ("priority", json!({"spec": {"priority": 7}}), 0),
        ("preferred affinity", affinity("In", may), 0),
        ("more", requesting(json!({"cpu": "2"})), 1),
        (
            "another resource",
            requesting(json!({"cpu": "1", "memory": "1Gi"})),
            2,
        ),
        (
            "unreadable",
            requesting(json!({"cpu": "1", "memory": "much"})),
            3,
        ),
        (
            "selector",
            json!({"spec": {"nodeSelector": {"gpu": "yes"}}}),
            4,
        ),
        (
            "another selector",
            json!({"spec": {"nodeSelector": {"gpu": "no"}}}),
            5,
        ),
        ("affinity", affinity("In", must), 6),
        ("another affinity", affinity("NotIn", must), 7),
        ("toleration", tolerating("hardware"), 8),
        ("another toleration", tolerating("other"), 9),
    ];
    let mut world = TestCluster::default();
    node(
        &mut world,
        "gpu",
        merged(tainted(), json!({"metadata": {"labels": {"gpu": "yes"}}})),
    );
    node(
        &mut world,
        "no",
        json!({"metadata": {"labels": {"gpu": "no"}}}),
    );
    node(
        &mut world,
        "small",
        json!({"status": {"allocatable": {"cpu": "1500m", "memory": "1M"}}}),
    );
    let pods: Vec<_> = rows
        .iter()
        .map(|(name, over, _)| {
            let one_cpu = requesting(json!({"cpu": "1"}));
            world.pod(name, "elsewhere", merged(one_cpu, over.clone()))
        })
        .collect();
    let snapshot = world.snapshot();
    let fit = Fit::new(&snapshot);
    for (a, (first, _, kind)) in pods.iter().zip(&rows) {
        for (b, (second, _, other)) in pods.iter().zip(&rows) {
            assert_eq!(
                same_requirements(&a.shape, &b.shape),
                kind == other,
                "{first} and {second}"
            );
            if kind == other {
                for node in &snapshot.nodes {
                    assert_eq!(fit.fits(a, node), fit.fits(b, node), "{first} and {second}");
                }
            }
        }
    }
}
