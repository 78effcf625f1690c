//! Upstream's `TestLowNodeLoad` and `TestMaxEvictionTotal`.

use super::*;
use crate::testing::moved;

struct Case {
    name: &'static str,
    args: Value,
    nodes: Vec<(&'static str, Value)>,
    pods: Vec<(&'static str, &'static str, Value)>,
    /// Number of pods that upstream evicts.
    expected: usize,
    /// Number of pods evicted with our selection and accounting.
    ours: usize,
    /// Names of the pods, if upstream's table has them.
    names: &'static [&'static str],
}

fn requesting(cpu: i64, memory: i64) -> Value {
    let requests = json!({"cpu": format!("{cpu}m"), "memory": memory.to_string()});
    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

fn owned_by(kind: &str) -> Value {
    json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": "o", "uid": "o"}]}})
}

fn plain(name: &'static str, node: &'static str) -> (&'static str, &'static str, Value) {
    (name, node, requesting(400, 0))
}

fn with(
    name: &'static str,
    node: &'static str,
    over: Value,
) -> (&'static str, &'static str, Value) {
    (name, node, merged(requesting(400, 0), over))
}

/// Returns three pods of n1 that are always protected: of a DaemonSet, with local storage, critical.
fn fixed(base: &Value) -> Vec<(&'static str, &'static str, Value)> {
    let local = json!({
        "metadata": {"annotations": {"kubernetes.io/config.mirror": "mirror", "kubernetes.io/config.source": "api"}},
        "spec": {"volumes": [{"name": "sample", "hostPath": {"path": "somePath"}, "emptyDir": {}}]},
    });
    let critical = json!({
        "metadata": {"namespace": "kube-system", "ownerReferences": []},
        "spec": {"priority": 2_000_000_000},
    });
    vec![
        ("p6", "n1", merged(base.clone(), owned_by("DaemonSet"))),
        (
            "p7",
            "n1",
            merged(base.clone(), merged(owned_by("Pod"), local)),
        ),
        ("p8", "n1", merged(base.clone(), critical)),
    ]
}

fn five() -> Vec<(&'static str, &'static str, Value)> {
    ["p1", "p2", "p3", "p4", "p5"]
        .map(|name| plain(name, "n1"))
        .to_vec()
}

fn pods(
    own: Vec<(&'static str, &'static str, Value)>,
    others: Vec<(&'static str, &'static str, Value)>,
) -> Vec<(&'static str, &'static str, Value)> {
    [own, fixed(&requesting(400, 0)), others].concat()
}

fn size(pods: &str) -> Value {
    json!({"status": {"allocatable": {"cpu": "4", "memory": "3000", "pods": pods}}})
}

fn off(node: Value) -> Value {
    merged(node, json!({"spec": {"unschedulable": true}}))
}

fn three() -> Vec<(&'static str, Value)> {
    vec![
        ("n1", size("9")),
        ("n2", size("10")),
        ("n3", off(size("10"))),
    ]
}

fn both(cpu: i64, pods: i64) -> Value {
    json!({"cpu": cpu, "pods": pods})
}

fn thresholds(low: Value, high: Value) -> Value {
    json!({"lowThresholds": low, "highThresholds": high})
}

fn prod(node: Value, low: Value, high: Value) -> Value {
    merged(
        node,
        json!({"prodLowThresholds": low, "prodHighThresholds": high}),
    )
}

fn usual() -> Value {
    thresholds(both(30, 30), both(50, 50))
}

fn batch() -> Value {
    json!({"metadata": {"labels": {"koordinator.sh/priority-class": "koord-batch"}}})
}

fn in_namespace(namespace: &str) -> Value {
    json!({"metadata": {"namespace": namespace}})
}

fn cases() -> Vec<Case> {
    let p9 = || vec![plain("p9", "n2")];
    let foo = |count: &str| json!({"example.com/foo": count});
    let with_foo = |node: Value| merged(node, json!({"status": {"allocatable": foo("8")}}));
    let foos = || {
        let requests = json!({"cpu": "0", "memory": "0", "example.com/foo": "1"});
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
    };
    let foo_thresholds = || {
        thresholds(
            json!({"pods": 30, "example.com/foo": 30}),
            json!({"pods": 50, "example.com/foo": 50}),
        )
    };
    let west = || json!({"spec": {"nodeSelector": {"datacenter": "west"}}});
    let affinity = || {
        let term = json!({"matchExpressions": [{"key": "datacenter", "operator": "In", "values": ["west"]}]});
        json!({"spec": {"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
        }}}})
    };
    let east = || {
        merged(
            size("10"),
            json!({"metadata": {"labels": {"datacenter": "east"}}}),
        )
    };
    let deviating = |args: Value| merged(args, json!({"useDeviationThresholds": true}));
    let twenty = || vec![("n1", size("20")), ("n2", size("20")), ("n3", size("20"))];
    let best_effort = || {
        vec![
            ("p1", "n1", json!({})),
            ("p2", "n1", json!({})),
            plain("p3", "n1"),
            ("p4", "n1", json!({})),
            ("p5", "n1", json!({})),
        ]
    };
    let priority = |name, value: i32| with(name, "n1", json!({"spec": {"priority": value}}));
    let case = |name, args, nodes, pods, expected| Case {
        name,
        args,
        nodes,
        pods,
        expected,
        ours: expected,
        names: &[],
    };
    let ds = |name| with(name, "n1", owned_by("DaemonSet"));
    let elsewhere = |name, namespace| with(name, "n1", in_namespace(namespace));
    let bare = |name| {
        with(
            name,
            "n1",
            json!({"metadata": {"namespace": "namespace1", "ownerReferences": []}}),
        )
    };
    let selected = |over: Value| {
        vec![
            plain("p1", "n1"),
            plain("p2", "n1"),
            plain("p3", "n1"),
            with("p4", "n1", over.clone()),
            with("p5", "n1", over),
        ]
    };
    let more_pods = ["p10", "p11", "p12", "p13", "p14", "p15"].map(|name| plain(name, "n3"));
    vec![
        case(
            "no evictable pods",
            usual(),
            three(),
            [
                vec![ds("p1"), ds("p2"), ds("p3"), ds("p4")],
                fixed(&requesting(400, 0))[1..].to_vec(),
                p9(),
            ]
            .concat(),
            0,
        ),
        case(
            "without priorities",
            usual(),
            three(),
            pods(five(), p9()),
            4,
        ),
        case(
            "a namespace is excluded",
            merged(
                usual(),
                json!({"evictableNamespaces": {"exclude": ["namespace1"]}}),
            ),
            three(),
            pods(
                vec![bare("p1"), bare("p2"), bare("p3"), bare("p4"), bare("p5")],
                p9(),
            ),
            0,
        ),
        case(
            "only one namespace is included",
            merged(
                usual(),
                json!({"evictableNamespaces": {"include": ["default"]}}),
            ),
            three(),
            pods(
                vec![
                    plain("p1", "n1"),
                    plain("p2", "n1"),
                    elsewhere("p3", "namespace3"),
                    elsewhere("p4", "namespace4"),
                    elsewhere("p5", "namespace5"),
                ],
                p9(),
            ),
            2,
        ),
        case(
            "memory of the cold node is used up",
            usual(),
            three(),
            [
                ["p1", "p2", "p3", "p4", "p5"]
                    .map(|name| (name, "n1", requesting(400, 300)))
                    .to_vec(),
                fixed(&requesting(400, 300)),
                vec![("p9", "n2", requesting(400, 2100))],
            ]
            .concat(),
            3,
        ),
        case(
            "with priorities",
            usual(),
            three(),
            pods(
                vec![
                    priority("p1", 10000),
                    priority("p2", 10000),
                    priority("p3", 10000),
                    priority("p4", 10000),
                    priority("p5", 0),
                ],
                p9(),
            ),
            4,
        ),
        Case {
            names: &["p1", "p2", "p4", "p5"],
            ..case(
                "best-effort pods go first",
                usual(),
                three(),
                pods(best_effort(), p9()),
                4,
            )
        },
        case(
            "an extended resource",
            foo_thresholds(),
            vec![
                ("n1", with_foo(size("9"))),
                ("n2", with_foo(size("10"))),
                ("n3", off(size("10"))),
            ],
            [
                ["p1", "p2", "p3", "p4", "p5"]
                    .map(|name| (name, "n1", foos()))
                    .to_vec(),
                vec![("p6", "n1", merged(foos(), owned_by("Pod")))],
                fixed(&foos())[1..].to_vec(),
                vec![("p9", "n2", foos())],
            ]
            .concat(),
            3,
        ),
        case(
            "an extended resource that only some nodes have",
            foo_thresholds(),
            vec![
                ("n1", with_foo(size("9"))),
                ("n2", size("10")),
                ("n3", off(size("10"))),
            ],
            vec![("p1", "n1", foos()), ("p9", "n2", requesting(0, 0))],
            0,
        ),
        case(
            "the only other node takes no pods",
            usual(),
            vec![("n1", size("9")), ("n2", off(size("10")))],
            pods(five(), vec![]),
            0,
        ),
        case(
            "two pods do not select the other node",
            usual(),
            vec![("n1", size("9")), ("n2", east())],
            pods(selected(west()), vec![]),
            3,
        ),
        case(
            "two pods have no affinity to the other node",
            usual(),
            vec![("n1", size("9")), ("n2", east())],
            pods(selected(affinity()), vec![("p9", "n2", requesting(0, 0))]),
            3,
        ),
        case(
            "distances from the mean",
            deviating(thresholds(both(5, 5), both(5, 5))),
            three(),
            pods(five(), p9()),
            2,
        ),
        case(
            "the node is within its thresholds, but not its pods of prod",
            prod(
                thresholds(both(30, 30), both(90, 90)),
                both(20, 20),
                both(40, 40),
            ),
            three(),
            pods(
                vec![
                    plain("p1", "n1"),
                    plain("p2", "n1"),
                    with("p3", "n1", batch()),
                    with("p4", "n1", batch()),
                    with("p5", "n1", batch()),
                ],
                p9(),
            ),
            2,
        ),
        case(
            "node and prod are over, and the node counts",
            prod(
                thresholds(both(30, 30), both(70, 80)),
                both(20, 20),
                both(40, 40),
            ),
            three(),
            pods(
                vec![
                    plain("p1", "n1"),
                    plain("p2", "n1"),
                    plain("p3", "n1"),
                    with("p4", "n1", batch()),
                    with("p5", "n1", batch()),
                ],
                p9(),
            ),
            1,
        ),
        case(
            "only pods of prod are to be moved",
            prod(
                thresholds(both(0, 0), both(100, 100)),
                both(30, 30),
                both(50, 50),
            ),
            three(),
            pods(five(), p9()),
            4,
        ),
        Case {
            // The cold node accepts two: with more, its prod usage would exceed the threshold.
            ours: 2,
            ..case(
                "for pods of prod not enough is left",
                prod(
                    thresholds(both(30, 50), both(60, 80)),
                    both(20, 30),
                    both(30, 50),
                ),
                twenty(),
                pods(
                    [five(), vec![plain("p16", "n1"), plain("p17", "n1")]].concat(),
                    [p9(), more_pods.to_vec()].concat(),
                ),
                5,
            )
        },
        case(
            "distances from the mean of prod",
            deviating(prod(
                thresholds(both(0, 0), both(100, 100)),
                both(10, 10),
                both(10, 10),
            )),
            twenty(),
            pods(five(), [p9(), more_pods[..2].to_vec()].concat()),
            3,
        ),
        case(
            "no more of prod than it takes",
            prod(
                thresholds(both(0, 0), both(100, 100)),
                both(60, 60),
                both(70, 70),
            ),
            vec![("n1", size("20")), ("n2", size("20"))],
            pods(five(), p9()),
            1,
        ),
    ]
}

fn world(case: &Case) -> TestCluster {
    let mut world = TestCluster::default();
    for (name, node) in &case.nodes {
        world.node(name, node.clone());
    }
    for (name, node, pod) in &case.pods {
        world.pod(name, node, pod.clone());
    }
    report_requests(&mut world);
    world
}

#[test]
fn as_many_pods_go_as_upstream_evicts() {
    let cases = cases();
    assert_eq!(cases.len(), 19);
    for case in &cases {
        let greedy = merged(case.args.clone(), json!({"victimSelection": "Greedy"}));
        let plan = framework(greedy).run(&world(case).snapshot());
        let mut evicted = moved(&plan);
        assert_eq!(
            evicted.len(),
            case.expected,
            "{}: {evicted:?} {:?}",
            case.name,
            plan.notes
        );
        if !case.names.is_empty() {
            evicted.sort();
            assert_eq!(evicted, case.names, "{}", case.name);
        }
    }
}

#[test]
fn our_choice_relieves_the_same_nodes() {
    for case in &cases() {
        let plan = framework(case.args.clone()).run(&world(case).snapshot());
        let evicted = moved(&plan);
        assert_eq!(
            evicted.len(),
            case.ours,
            "{}: {evicted:?} {:?}",
            case.name,
            plan.notes
        );
    }
}

#[test]
fn limits_of_a_cycle_end_it() {
    for selection in ["Greedy", "Variance"] {
        let case = &cases()[1];
        let mut framework = framework(merged(
            case.args.clone(),
            json!({"victimSelection": selection}),
        ));
        framework.limits.total = Some(1);
        let plan = framework.run(&world(case).snapshot());
        assert_eq!(moved(&plan).len(), 1, "{selection}");
        assert!(
            plan.skipped
                .iter()
                .any(|skipped| skipped.reason.rule == "MaxNoOfPodsToEvictTotal")
        );
    }
}
