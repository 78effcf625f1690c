//! Cases that upstream's tables do not cover.

use super::*;

fn case(nodes: Value, pods: Value) -> Value {
    json!({"nodes": nodes, "pods": pods})
}

fn plan(plugin: &str, args: Value, evictor: Value, case: &Value) -> Plan {
    let mut framework = framework(plugin, &args, &evictor).unwrap();
    framework.run(&snapshot(&world(case), case))
}

fn skipped_pods(plan: &Plan) -> Vec<String> {
    let skipped = plan.skipped.iter();
    skipped
        .map(|skipped| format!("{} {}", skipped.pod.name, skipped.reason.rule))
        .collect()
}

#[test]
fn skipped_pods_have_a_reason() {
    let created =
        |at: &str| json!({"metadata": {"creationTimestamp": at}, "owner": "ReplicaSet/r"});
    let case = case(
        json!([["a", "4", "4G", "10"]]),
        json!([
            ["old older", "a", "-", "-", created("2026-01-01T11:00:00Z")],
            ["young", "a", "-", "-", created("2026-01-01T11:50:00Z")],
            ["bare", "a", "-", "-", {"metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"}}],
            ["far", "a", "-", "-", merged(created("2026-01-01T11:00:00Z"), json!({"ns": "other"}))],
        ]),
    );
    let args = json!({"maxPodLifeTimeSeconds": 600, "namespaces": {"include": ["default"]}});
    let mut framework = framework("PodLifeTime", &args, &json!({})).unwrap();
    framework.limits.total = Some(1);
    let plan = framework.run(&snapshot(&world(&case), &case));
    assert_eq!(moved_names(&plan), ["old"]);
    let reason = &plan.moves().next().unwrap().reason;
    assert_eq!(reason, "lives for 3600 s, which is more than 600 s");
    assert_eq!(
        skipped_pods(&plan),
        [
            "young TooYoung",
            "far Namespaces",
            "bare BarePods",
            "older MaxNoOfPodsToEvictTotal"
        ]
    );
    assert_eq!(
        plan.skipped[0].reason.detail,
        "it lives for 600 s, which is not more than 600 s"
    );
}

/// Returns a case with three pods in zone x and one in zone y, with these priorities in x.
fn spread(priorities: [i32; 3], rest: Value) -> Value {
    let constraint = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                             "labelSelector": {"matchLabels": {"app": "a"}}}]);
    let zone = |zone: &str| json!({"metadata": {"labels": {"zone": zone}}});
    let pod = |priority: i32| {
        json!({"owner": "ReplicaSet/r", "metadata": {"labels": {"app": "a"}},
                                      "spec": {"priority": priority, "topologySpreadConstraints": constraint}})
    };
    let pods: Vec<_> = priorities
        .iter()
        .enumerate()
        .map(|(at, priority)| json!([format!("p{at}"), "x", "1", "-", pod(*priority)]))
        .collect();
    let in_y = json!(["q", "y", "1", "-", pod(0)]);
    case(
        json!([
            ["x", "4", "4G", "10", zone("x")],
            ["y", "4", "4G", "10", merged(zone("y"), rest)]
        ]),
        [pods, vec![in_y]].concat().into(),
    )
}

const SPREAD: &str = "RemovePodsViolatingTopologySpreadConstraint";

#[test]
fn least_important_pod_leaves_a_crowded_domain() {
    for (priorities, expected) in [([1, 2, 3], "p0"), ([3, 1, 2], "p1"), ([2, 3, 1], "p2")] {
        let plan = plan(SPREAD, json!({}), json!({}), &spread(priorities, json!({})));
        assert_eq!(moved_names(&plan), [expected], "{priorities:?}");
    }
}

#[test]
fn pods_without_target_stay_in_a_crowded_domain() {
    let full = spread([0, 0, 0], json!({"spec": {"unschedulable": true}}));
    let unmoved = plan(SPREAD, json!({}), json!({}), &full);
    assert!(moved_names(&unmoved).is_empty());
    assert_eq!(skipped_pods(&unmoved), ["p2 NodeFit"]);
    let text = &unmoved.notes[0].text;
    assert!(
        text.contains("maxSkew 1") && text.contains("x: 3, y: 1"),
        "{text}"
    );
    let blind = plan(
        SPREAD,
        json!({"topologyBalanceNodeFit": false}),
        json!({}),
        &full,
    );
    assert_eq!(moved_names(&blind).len(), 1);
}

#[test]
fn pod_stays_if_its_preferred_node_is_full() {
    let prefers = json!({"owner": "ReplicaSet/r", "spec": {"affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["y"]}]}},
        ],
    }}}});
    let case = |cpu: &str| {
        case(
            json!([["x", "4", "4G", "10"], ["y", cpu, "4G", "10", {"metadata": {"labels": {"zone": "y"}}}], ["z", "4", "4G", "10"]]),
            json!([["p", "x", "2", "-", prefers]]),
        )
    };
    let args = || json!({"nodeAffinityType": ["preferredDuringSchedulingIgnoredDuringExecution"]});
    let plan = |case: &Value| plan("RemovePodsViolatingNodeAffinity", args(), json!({}), case);
    assert_eq!(moved_names(&plan(&case("2"))), ["p"]);
    let unmoved = plan(&case("1"));
    assert!(moved_names(&unmoved).is_empty());
    assert_eq!(skipped_pods(&unmoved), ["p NodeFit"]);
}

#[test]
fn blanket_toleration_matches_every_taint() {
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let case = case(
        json!([
            ["full", "4", "4G", "10"],
            ["empty", "4", "4G", "10", {"spec": {"taints": [taint("a"), taint("b")]}}],
        ]),
        json!([
            ["p q r", "full", "1", "-", {"owner": "ReplicaSet/r", "spec": {"tolerations": [{"operator": "Exists"}]}}],
            ["s", "full", "500m", "-", {"owner": "ReplicaSet/r"}],
        ]),
    );
    let args = json!({"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}});
    let plan = plan("LowNodeUtilization", args, json!({}), &case);
    assert_eq!(moved_names(&plan), ["p", "q"]);
    assert_eq!(skipped_pods(&plan), ["r NodeRelieved", "s NodeRelieved"]);
}

#[test]
fn terms_may_name_namespaces_by_their_labels() {
    let term = json!({"labelSelector": {}, "topologyKey": "kubernetes.io/hostname",
                      "namespaceSelector": {"matchLabels": {"team": "a"}}});
    let shy = json!({"owner": "ReplicaSet/r", "spec": {"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [term],
    }}}});
    let mut case = case(
        json!([["x", "4", "4G", "10"]]),
        json!([["shy", "x", "-", "-", shy], ["near", "x", "-", "-", {"owner": "ReplicaSet/s"}],
               ["far", "x", "-", "-", {"ns": "a", "owner": "ReplicaSet/t"}]]),
    );
    let run = |case: &Value| {
        moved_names(&plan(
            "RemovePodsViolatingInterPodAntiAffinity",
            json!({}),
            json!({}),
            case,
        ))
    };
    assert!(run(&case).is_empty());
    case["namespaces"] = json!([{"metadata": {"name": "a", "labels": {"team": "a"}}}]);
    assert_eq!(run(&case), ["shy"]);
}

#[test]
fn nodes_without_a_fresh_report_are_not_looked_at() {
    let case = case(
        json!([
            ["hot", "4", "4G", "10"],
            ["cold", "4", "4G", "10"],
            ["old", "4", "4G", "10"],
            ["mute", "4", "4G", "10"]
        ]),
        json!([["p q", "hot", "-", "-", {"owner": "ReplicaSet/r"}]]),
    );
    let mut world = world(&case);
    let used = |cpu: &str| json!({"cpu": cpu, "memory": "0"});
    world.usage("hot", used("3500m"), json!({}), &[("p", used("2"))]);
    world.usage("cold", used("0"), json!({}), &[]);
    let now = world.now;
    world.now = "2026-01-01T11:56:59Z".parse().unwrap();
    world.usage("old", used("0"), json!({}), &[]);
    world.now = now;
    let args = json!({"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50},
                      "metricsUtilization": {"source": "KubernetesMetrics"}});
    let mut framework = framework("LowNodeUtilization", &args, &json!({})).unwrap();
    let plan = framework.run(&world.snapshot());
    assert_eq!(moved_names(&plan), ["p"]);
    assert_eq!(skipped_pods(&plan), ["q NodeRelieved"]);
    let notes: Vec<_> = plan.notes.iter().map(|note| note.text.as_str()).collect();
    for expected in [
        "not looked at: its NodeMetric is 181 s old, and expires after 180 s",
        "not looked at: there is no NodeMetric of it",
        "over-utilized: cpu 87.50% > 50.00%; cpu 87.50%, memory 0.00%, pods 20.00%",
    ] {
        assert!(notes.contains(&expected), "{notes:#?}");
    }
}

#[test]
fn nodes_note_why_nothing_moves() {
    let pods = |on: &str| json!([["p q", on, "1", "-", {"owner": "ReplicaSet/r"}]]);
    let two = || json!([["a", "4", "4G", "10"], ["b", "4", "4G", "10"]]);
    let low = |cpu: u8, over: Value| {
        merged(
            json!({"thresholds": {"cpu": cpu}, "targetThresholds": {"cpu": 60}}),
            over,
        )
    };
    let note = |plugin, args, case: &Value| {
        let plan = plan(plugin, args, json!({}), case);
        assert!(moved_names(&plan).is_empty());
        plan.notes
            .iter()
            .filter(|note| note.node.is_none())
            .map(|note| note.text.clone())
            .collect::<Vec<_>>()
    };
    let on_a = case(two(), pods("a"));
    assert_eq!(
        note("LowNodeUtilization", low(20, json!({})), &on_a),
        ["no node is over-utilized"]
    );
    assert_eq!(
        note("LowNodeUtilization", low(55, json!({})), &on_a),
        ["all nodes are under-utilized"]
    );
    assert_eq!(
        note(
            "LowNodeUtilization",
            low(20, json!({"numberOfNodes": 1})),
            &on_a
        ),
        ["1 nodes are under-utilized, which is not more than numberOfNodes 1"]
    );
    let cordoned = case(
        json!([["a", "4", "4G", "10"], ["b", "4", "4G", "10", {"spec": {"unschedulable": true}}]]),
        pods("a"),
    );
    assert_eq!(
        note("LowNodeUtilization", low(20, json!({})), &cordoned),
        ["no node is under-utilized"]
    );
    let high = || json!({"thresholds": {"cpu": 20}});
    assert_eq!(
        note(
            "HighNodeUtilization",
            high(),
            &case(two(), json!([["p", "a", "1", "-"], ["q", "b", "1", "-"]]))
        ),
        ["no node is under-utilized"]
    );
    let full = case(
        json!([["a", "4", "4G", "10", {"spec": {"unschedulable": true}}], ["b", "4", "4G", "10"]]),
        pods("a"),
    );
    assert_eq!(
        note("HighNodeUtilization", high(), &full),
        ["no node takes pods"]
    );
}

#[test]
fn node_takes_pods_up_to_its_capacity() {
    let tainted = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    let case = |pods: &str| {
        case(
            json!([["old", "4", "4G", "10", tainted], ["new", "4", "4G", pods]]),
            json!([
                ["p", "old", "-", "-", {"owner": "ReplicaSet/r"}],
                ["q", "new", "-", "-", {"owner": "ReplicaSet/r"}],
            ]),
        )
    };
    let fit = || json!({"nodeFit": true});
    let plan = |case: &Value| plan("RemovePodsViolatingNodeTaints", json!({}), fit(), case);
    assert_eq!(moved_names(&plan(&case("2"))), ["p"]);
    let unmoved = plan(&case("1"));
    assert!(moved_names(&unmoved).is_empty());
    // The other node is outside the profile.
    let reason = &unmoved.skipped[0].reason;
    assert_eq!(
        reason.to_string(),
        "NodeFit: no other node has room: 1 too many pods, 1 unschedulable"
    );
}

#[test]
fn budget_blocked_pods_do_not_use_up_the_limit() {
    let pod = |at: &str, app: &str| {
        json!({"metadata": {"creationTimestamp": at, "labels": {"app": app}}, "owner": "ReplicaSet/r",
               "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    let mut case = case(
        json!([["a", "4", "4G", "10"]]),
        json!([
            [
                "kept1 kept2",
                "a",
                "-",
                "-",
                pod("2026-01-01T10:00:00Z", "kept")
            ],
            ["free", "a", "-", "-", pod("2026-01-01T11:00:00Z", "free")],
        ]),
    );
    let budget = |left: i32| {
        json!([{"metadata": {"name": "b", "namespace": "default", "generation": 1},
                "spec": {"selector": {"matchLabels": {"app": "kept"}}},
                "status": {"disruptionsAllowed": left, "observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}}])
    };
    let run = |case: &Value, total: u64, dry_run: bool| {
        let args = json!({"maxPodLifeTimeSeconds": 600});
        let mut framework = framework("PodLifeTime", &args, &json!({})).unwrap();
        framework.limits.total = Some(total);
        framework.dry_run = dry_run;
        framework.run(&snapshot(&world(case), case))
    };
    for dry_run in [false, true] {
        case["pdbs"] = budget(0);
        let plan = run(&case, 1, dry_run);
        assert_eq!(moved_names(&plan), ["free"]);
        assert_eq!(
            skipped_pods(&plan),
            ["kept1 PodDisruptionBudget", "kept2 PodDisruptionBudget"]
        );
        // Evictions of the cycle use up the budget.
        case["pdbs"] = budget(1);
        let plan = run(&case, 3, dry_run);
        assert_eq!(moved_names(&plan), ["free", "kept1"]);
        assert_eq!(skipped_pods(&plan), ["kept2 PodDisruptionBudget"]);
    }
}

#[test]
fn over_utilized_node_is_reported_as_hot() {
    let pods = json!([["p q", "a", "2", "-", {"owner": "ReplicaSet/r"}]]);
    let nodes = json!([["a", "4", "4G", "10"], ["b", "4", "4G", "10"]]);
    let args =
        json!({"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 60}, "numberOfNodes": 1});
    let plan = plan("LowNodeUtilization", args, json!({}), &case(nodes, pods));
    assert!(moved_names(&plan).is_empty());
    let hot: Vec<_> = plan.notes.iter().filter(|note| note.is_hot()).collect();
    assert_eq!(hot.len(), 1, "{:?}", plan.notes);
    assert_eq!(hot[0].node.as_deref(), Some("a"));
    assert!(!hot[0].is_early());
}

#[test]
fn implausible_node_reports_are_ignored() {
    let case = case(
        json!([
            ["ahead", "4", "4G", "10"],
            ["cold", "4", "4G", "10"],
            ["huge", "4", "4G", "10"],
            ["less", "4", "4G", "10"]
        ]),
        json!([["p q", "ahead", "-", "-", {"owner": "ReplicaSet/r"}]]),
    );
    let mut world = world(&case);
    let used = |cpu: &str| json!({"cpu": cpu, "memory": "0"});
    world.usage("cold", used("0"), json!({}), &[]);
    world.usage("huge", used("1000000"), json!({}), &[]);
    world.usage("less", used("-1"), json!({}), &[]);
    let now = world.now;
    world.now = "2027-01-01T12:00:00Z".parse().unwrap();
    world.usage("ahead", used("3500m"), json!({}), &[("p", used("2"))]);
    world.now = now;
    let args = json!({"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50},
                      "metricsUtilization": {"source": "KubernetesMetrics"}});
    let mut framework = framework("LowNodeUtilization", &args, &json!({})).unwrap();
    let plan = framework.run(&world.snapshot());
    assert!(moved_names(&plan).is_empty(), "{:?}", plan.notes);
    for (node, expected) in [
        (
            "ahead",
            "not looked at: its NodeMetric is of 31536000 s in the future",
        ),
        (
            "huge",
            "not looked at: its NodeMetric says it uses cpu 1M of 4",
        ),
        (
            "less",
            "not looked at: its NodeMetric says it uses cpu -1 of 4",
        ),
    ] {
        let is_noted = plan
            .notes
            .iter()
            .any(|note| note.node.as_deref() == Some(node) && note.text == expected);
        assert!(is_noted, "{node}: {:#?}", plan.notes);
    }
}
