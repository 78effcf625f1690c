//! Strategies of one cycle account for each other's evictions, and protected pods count on their nodes.

use super::*;
use crate::testing::moved;

/// Returns a framework with these plugins and `DefaultEvictor`; each runs at `point`, in order.
fn framework_of(plugins: &[(&str, &str, Value)]) -> Framework {
    let plugins_at = |point: &str| -> Vec<Value> {
        let matching = plugins
            .iter()
            .filter(|(plugin_point, ..)| *plugin_point == point);
        matching.map(|(_, name, _)| json!({"name": name})).collect()
    };
    let only = json!({"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultEvictor"}]});
    let config: Vec<_> = plugins
        .iter()
        .map(|(_, name, args)| json!({"name": name, "args": args}))
        .collect();
    let enabled = |point: &str| json!({"disabled": [{"name": "*"}], "enabled": plugins_at(point)});
    let config = json!({
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "profiles": [{
            "name": "test",
            "plugins": {
                "deschedule": enabled("deschedule"), "balance": enabled("balance"),
                "evict": only, "filter": only,
            },
            "pluginConfig": config,
        }],
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    Registry::in_tree()
        .complete(config)
        .unwrap()
        .build()
        .unwrap()
}

/// Returns a strategy that evicts the pods with label `first`.
fn first_rule() -> (&'static str, &'static str, Value) {
    let args =
        json!({"maxPodLifeTimeSeconds": 60, "labelSelector": {"matchLabels": {"first": "yes"}}});
    ("deschedule", "PodLifeTime", args)
}

/// Returns nodes `x` and `y` of 4 CPUs and 4,000 bytes.
fn two_nodes() -> TestCluster {
    let mut world = TestCluster::default();
    for name in ["x", "y"] {
        let capacity =
            json!({"status": {"allocatable": {"cpu": "4", "memory": "4000", "pods": "10"}}});
        world.node(
            name,
            merged(capacity, json!({"metadata": {"labels": {"zone": name}}})),
        );
    }
    world
}

fn requesting(cpu: u32, memory: u32) -> Value {
    let requests = json!({"cpu": format!("{cpu}m"), "memory": memory.to_string()});
    json!({"spec": {"containers": [{"name": "c", "image": "c", "resources": {"requests": requests}}]}})
}

fn marked(over: Value) -> Value {
    merged(
        json!({"metadata": {"labels": {"first": "yes", "app": "a"}}}),
        over,
    )
}

fn plain(over: Value) -> Value {
    merged(json!({"metadata": {"labels": {"app": "a"}}}), over)
}

fn spread(keys: &[&str]) -> Value {
    let constraint = |key: &&str| {
        json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
               "labelSelector": {"matchLabels": {"app": "a"}}})
    };
    json!({"spec": {"topologySpreadConstraints": keys.iter().map(constraint).collect::<Vec<_>>()}})
}

fn shuns() -> Value {
    json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}},
    ]}}}})
}

fn requires(zone: &str) -> Value {
    json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}],
    }}}}})
}

/// A second strategy, and the pods that it evicts alone and after [`first_rule`], which evicts the pods whose
/// name begins with `f`.
struct Case {
    point: &'static str,
    plugin: &'static str,
    args: Value,
    pods: Vec<(&'static str, &'static str, Value)>,
    alone: &'static [&'static str],
    after: &'static [&'static str],
}

fn load_args(selection: &str) -> Value {
    json!({
        "anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1},
        "lowThresholds": {"cpu": 20}, "highThresholds": {"cpu": 50}, "victimSelection": selection,
    })
}

fn cases() -> Vec<Case> {
    let four = || {
        let mut pods = vec![("f1", "x", marked(requesting(1000, 10)))];
        pods.push(("f2", "x", marked(requesting(1000, 10))));
        pods.push(("p1", "x", plain(requesting(1000, 10))));
        pods.push(("p2", "x", plain(requesting(1000, 10))));
        pods
    };
    let affine = |zone| merged(requesting(3000, 10), requires(zone));
    let restarts = json!({"status": {"containerStatuses": [{
        "name": "c", "image": "c", "imageID": "c", "ready": true, "restartCount": 9,
    }]}});
    let order = json!([
        {"name": "dear", "nodeSelector": {"matchLabels": {"zone": "x"}}},
        {"name": "cheap", "nodeSelector": {"matchLabels": {"zone": "y"}}},
    ]);
    vec![
        Case {
            point: "balance",
            plugin: "RemovePodsViolatingTopologySpreadConstraint",
            args: json!({}),
            pods: vec![
                ("f1", "x", marked(spread(&["zone"]))),
                ("p1", "x", plain(spread(&["zone"]))),
                ("p2", "x", plain(spread(&["zone"]))),
                ("q", "y", plain(spread(&["zone"]))),
            ],
            alone: &["p2"],
            after: &["f1"],
        },
        Case {
            point: "balance",
            plugin: "RemoveDuplicates",
            args: json!({}),
            pods: vec![
                ("f1", "x", marked(json!({}))),
                ("p1", "x", plain(json!({}))),
                ("p2", "x", plain(json!({}))),
            ],
            alone: &["p2"],
            after: &["f1"],
        },
        Case {
            point: "deschedule",
            plugin: "RemovePodsViolatingInterPodAntiAffinity",
            args: json!({}),
            pods: vec![
                ("f1", "x", marked(json!({"spec": {"priority": 5}}))),
                (
                    "p1",
                    "x",
                    merged(shuns(), json!({"metadata": {"labels": {"app": "b"}}})),
                ),
            ],
            alone: &["p1"],
            after: &["f1"],
        },
        Case {
            point: "deschedule",
            plugin: "RemovePodsViolatingNodeAffinity",
            args: json!({"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]}),
            pods: vec![
                ("f1", "y", marked(requesting(3000, 10))),
                ("p1", "x", affine("y")),
            ],
            // Only the first strategy frees capacity.
            alone: &[],
            after: &["f1", "p1"],
        },
        Case {
            point: "deschedule",
            plugin: "RemovePodsViolatingNodeTaints",
            args: json!({}),
            pods: vec![
                ("f1", "tainted", marked(json!({}))),
                ("p1", "tainted", plain(json!({}))),
            ],
            alone: &["f1", "p1"],
            after: &["f1", "p1"],
        },
        Case {
            point: "deschedule",
            plugin: "RemovePodsHavingTooManyRestarts",
            args: json!({"podRestartThreshold": 3}),
            pods: vec![
                ("f1", "x", marked(restarts.clone())),
                ("p1", "x", plain(restarts)),
            ],
            alone: &["f1", "p1"],
            after: &["f1", "p1"],
        },
        Case {
            point: "deschedule",
            plugin: "RemoveFailedPods",
            args: json!({}),
            pods: vec![
                ("f1", "x", marked(json!({"status": {"phase": "Failed"}}))),
                ("p1", "x", plain(json!({"status": {"phase": "Failed"}}))),
            ],
            alone: &["f1", "p1"],
            after: &["f1", "p1"],
        },
        Case {
            point: "balance",
            plugin: "LowNodeUtilization",
            args: json!({"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}}),
            pods: four(),
            alone: &["f1", "f2"],
            after: &["f1", "f2"],
        },
        Case {
            point: "balance",
            plugin: "LowNodeUtilization",
            args: json!({
                "thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50},
                "metricsUtilization": {"source": "KubernetesMetrics"},
            }),
            pods: four(),
            alone: &["f1", "f2"],
            after: &["f1", "f2"],
        },
        Case {
            point: "balance",
            plugin: "HighNodeUtilization",
            args: json!({"thresholds": {"cpu": 30}}),
            pods: vec![
                ("f1", "y", marked(requesting(2000, 10))),
                ("p1", "x", plain(requesting(1000, 10))),
            ],
            alone: &["p1"],
            // Then both nodes are nearly empty, and none is a target.
            after: &["f1"],
        },
        Case {
            point: "balance",
            plugin: "LowNodeLoad",
            args: load_args("Greedy"),
            pods: four(),
            alone: &["f1", "f2"],
            after: &["f1", "f2"],
        },
        Case {
            point: "balance",
            plugin: "LowNodeLoad",
            args: load_args("Variance"),
            pods: four(),
            alone: &["p1", "p2"],
            after: &["f1", "f2"],
        },
        Case {
            point: "balance",
            plugin: "FragmentationAware",
            args: json!({"imbalanceThreshold": 0.1, "minImprovementThreshold": 0.01}),
            pods: vec![
                ("f1", "x", marked(requesting(2000, 10))),
                ("p1", "x", plain(requesting(1000, 10))),
                ("p2", "x", plain(requesting(500, 1500))),
            ],
            alone: &["f1"],
            after: &["f1"],
        },
        Case {
            point: "balance",
            plugin: "ScaleDownBinPack",
            args: json!({"strategy": "EvictDirectly", "maxPodsToEvict": 1, "resources": ["cpu"]}),
            pods: vec![
                ("f1", "x", marked(requesting(2000, 10))),
                ("p1", "x", plain(requesting(1000, 10))),
            ],
            alone: &["f1"],
            after: &["f1", "p1"],
        },
        Case {
            point: "balance",
            plugin: "CustomPriority",
            args: json!({"evictionOrder": order}),
            pods: vec![
                ("f1", "y", marked(requesting(3000, 10))),
                ("p1", "x", plain(requesting(2000, 10))),
            ],
            alone: &[],
            after: &["f1", "p1"],
        },
    ]
}

#[test]
fn rules_account_for_earlier_evictions() {
    let tainted =
        json!({"spec": {"taints": [{"key": "t", "effect": "NoSchedule"}], "unschedulable": true}});
    let mut wrong = Vec::new();
    for case in cases() {
        let mut world = two_nodes();
        world.node("tainted", tainted.clone());
        for (name, node, over) in case.pods {
            world.pod(name, node, over);
        }
        report_requests(&mut world);
        let second = (case.point, case.plugin, case.args);
        let rules = [first_rule(), second.clone()];
        for (plugins, expected) in [(&rules[1..], case.alone), (&rules[..], case.after)] {
            let plan = framework_of(plugins).run(&world.snapshot());
            if moved_names(&plan) != expected || plan.error.is_some() {
                let (count, name) = (plugins.len(), second.1);
                let notes: Vec<_> = plan.notes.iter().map(|note| &note.text).collect();
                let skipped: Vec<_> = plan
                    .skipped
                    .iter()
                    .map(|skipped| skipped.reason.to_string())
                    .collect();
                wrong.push(format!(
                    "{name}, {count} rules: {:?} for {expected:?}: {notes:#?} {skipped:#?}",
                    moved_names(&plan)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Adds NodeMetrics in which all pods use what they request.
fn report_requests(world: &mut TestCluster) {
    let table = world.shapes.table().clone();
    let nodes: Vec<_> = world.nodes.iter().map(|node| node.name.clone()).collect();
    for node in nodes {
        let on = world
            .pods
            .iter()
            .filter(|pod| pod.node.as_ref() == Some(&node));
        let cpu = |pod: &crate::state::PodInfo| {
            // In milli-cores.
            pod.shape.requests.get(table.intern("cpu"))
        };
        let sum: i64 = on.clone().map(|pod| cpu(pod)).sum();
        let pods: Vec<_> = on
            .map(|pod| {
                (
                    pod.name.to_string(),
                    json!({"cpu": format!("{}m", cpu(pod))}),
                )
            })
            .collect();
        let pods: Vec<_> = pods
            .iter()
            .map(|(name, used)| (name.as_str(), used.clone()))
            .collect();
        world.usage(&node, json!({"cpu": format!("{sum}m")}), json!({}), &pods);
    }
}

/// Extension point, plugin, arguments, pods, and the expected evictions.
type ProtectedCase = (
    &'static str,
    &'static str,
    Value,
    Vec<(&'static str, &'static str, Value)>,
    &'static [&'static str],
);

#[test]
fn pods_that_may_not_go_count_where_they_are() {
    let bare = || json!({"metadata": {"ownerReferences": Value::Null}});
    let table: Vec<ProtectedCase> = vec![
        (
            "balance",
            "RemovePodsViolatingTopologySpreadConstraint",
            json!({}),
            vec![
                ("held1", "x", merged(plain(spread(&["zone"])), bare())),
                ("held2", "x", merged(plain(spread(&["zone"])), bare())),
                ("p1", "x", plain(spread(&["zone"]))),
            ],
            &["p1"],
        ),
        (
            // Pods that the arguments exclude count on their nodes, too.
            "balance",
            "RemovePodsViolatingTopologySpreadConstraint",
            json!({"labelSelector": {"matchLabels": {"first": "yes"}}}),
            vec![
                ("p1", "x", plain(spread(&["zone"]))),
                ("p2", "x", plain(spread(&["zone"]))),
                ("f1", "x", marked(spread(&["zone"]))),
            ],
            &["f1"],
        ),
        (
            // A domain that is full of protected pods takes no more.
            "balance",
            "RemovePodsViolatingTopologySpreadConstraint",
            json!({}),
            vec![
                ("held1", "y", merged(plain(spread(&["zone"])), bare())),
                ("held2", "y", merged(plain(spread(&["zone"])), bare())),
                ("p1", "x", plain(spread(&["zone"]))),
                ("p2", "x", plain(spread(&["zone"]))),
            ],
            &[],
        ),
        (
            "balance",
            "RemoveDuplicates",
            json!({}),
            vec![
                (
                    "held1",
                    "x",
                    json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "m"}}}),
                ),
                ("p1", "x", json!({})),
            ],
            &["p1"],
        ),
        (
            "deschedule",
            "RemovePodsViolatingInterPodAntiAffinity",
            json!({"labelSelector": {"matchLabels": {"first": "yes"}}}),
            vec![("p1", "x", plain(json!({}))), ("f1", "x", marked(shuns()))],
            &["f1"],
        ),
        (
            "balance",
            "LowNodeUtilization",
            json!({"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}}),
            vec![
                ("held1", "x", merged(requesting(2000, 10), bare())),
                ("p1", "x", plain(requesting(500, 10))),
            ],
            &["p1"],
        ),
    ];
    for (point, plugin, args, pods, expected) in table {
        let mut world = two_nodes();
        for (name, node, over) in pods {
            world.pod(name, node, over);
        }
        let plan = framework_of(&[(point, plugin, args)]).run(&world.snapshot());
        assert_eq!(moved_names(&plan), expected, "{plugin}: {:#?}", plan.notes);
    }
}

/// Returns a job that moves `pod`.
fn job(pod: &str, phase: &str) -> Arc<koord_api::scheduling::PodMigrationJob> {
    let job = json!({
        "metadata": {"name": format!("job-{pod}")},
        "spec": {"podRef": {"namespace": "default", "name": pod, "uid": format!("uid-{pod}")}},
        "status": {"phase": phase},
    });
    Arc::new(serde_json::from_value(job).unwrap())
}

#[test]
fn pods_with_a_running_job_count_nowhere() {
    const SPREAD: &str = "RemovePodsViolatingTopologySpreadConstraint";
    for (phase, expected) in [("Pending", &[][..]), ("Running", &[]), ("Failed", &["p2"])] {
        let mut world = two_nodes();
        for (name, node) in [("p0", "x"), ("p1", "x"), ("p2", "x"), ("q", "y")] {
            world.pod(name, node, plain(spread(&["zone"])));
        }
        world.jobs.push(job("p0", phase));
        let plan = framework_of(&[("balance", SPREAD, json!({}))]).run(&world.snapshot());
        assert_eq!(moved(&plan), expected, "{phase}: {:#?}", plan.notes);
    }
}

#[test]
fn a_pod_is_planned_once_over_all_profiles() {
    let mut world = two_nodes();
    world.pod("f1", "x", marked(json!({})));
    let mut framework = framework_of(&[first_rule()]);
    framework
        .profiles
        .extend(framework_of(&[first_rule()]).profiles);
    framework.profiles[1].name = "other".into();
    let plan = framework.run(&world.snapshot());
    assert_eq!(moved(&plan), ["f1"]);
    assert!(plan.skipped.is_empty(), "{:?}", plan.skipped);
}
