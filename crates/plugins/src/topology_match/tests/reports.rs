//! Parsing of reports and arguments, and what is reported about invalid ones.

use super::*;

#[test]
fn kubelet_reconfiguration_applies_at_once() {
    let policy = ("topologyManagerPolicy", "none");
    // A changed scope alone is enough.
    let scope = ("topologyManagerScope", "pod");
    for (told, (name, value), refused) in [
        ("All", policy, None),
        ("All", scope, Some("cannot align pod")),
        ("OnlyResources", policy, Some("cannot align container")),
        ("OnlyResources", scope, Some("cannot align container")),
    ] {
        let args = json!({"cacheResyncPeriodSeconds": 5, "cache": {"resyncScope": told}});
        let mut engine = node_b(args);
        assert!(place(&mut engine, pod("pod1", &twenty())).is_ok());
        let attributes = json!({"nodeTopologyPodsFingerprint": POD1, name: value});
        engine.object_changed(&report("b", SINGLE, attributes, two_zones(20, 20)), now());
        let result = place(&mut engine, pod("pod2", &twenty()));
        let expected = refused.map(|reason| format!("0/1 nodes are available: 1 {reason}."));
        assert_eq!(result.err(), expected, "{told} {name} {value}");
    }
}

#[test]
fn unmatched_report_is_reported_once() {
    let mut engine = node_b(json!({"cacheResyncPeriodSeconds": 60}));
    assert!(place(&mut engine, pod("pod1", &twenty())).is_ok());
    engine.pod_applied(bound(pod("pod1", &twenty()), "b", "Running"), now());
    engine.take_outputs();
    let mut messages = Vec::new();
    for minute in 0..60 {
        engine.schedule_one(at(60 * minute));
        for text in problems(&mut engine) {
            messages.push((minute, text));
        }
    }
    let [(minute, text)] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!(*minute, 10);
    assert_eq!(
        text,
        &format!(
            "Node b: NodeResourceTopology of the node states fingerprint {NO_PODS:?} of its pods, and the 1 pods \
             known here make {POD1:?}: what 1 pods need is missing in each of its NUMA nodes until they agree"
        )
    );
}

#[test]
fn invalid_parts_of_report_are_reported_and_skipped() {
    let mut engine = engine(json!({}));
    engine.node_applied(
        node("b", json!({"cpu": "40", "memory": "64Gi", "pods": "110"})),
        now(),
    );
    let attributes =
        json!({"nodeTopologyPodsFingerprint": "pfp0v9", "topologyManagerScope": "node"});
    let zones = json!({"node-0": {"cpu": "-3", "memory": "1Gi"}, "node-64": {"cpu": "50"},
        "numa 1": {"cpu": "50"}, "node-7": {"cpu": "4", "memory": "1Gi"}});
    engine.object_changed(
        &report("b", SINGLE, attributes.clone(), zones.clone()),
        now(),
    );
    let messages = problems(&mut engine);
    for part in [
        "attributes[topologyManagerScope]: \"node\" is not known",
        "fingerprint of pods: \"pfp0v9\" is of a version",
        "zone \"node-64\": not node-0 to node-63",
        "zone \"numa 1\": not node-0 to node-63",
        "zone \"node-0\": cpu.available: -3 is below 0",
    ] {
        assert!(
            messages.iter().any(|text| text.contains(part)),
            "{part}: {messages:?}"
        );
    }
    assert_eq!(messages.len(), 5);
    // The problem is reported only once.
    engine.object_changed(&report("b", SINGLE, attributes, zones), now());
    assert_eq!(problems(&mut engine), [""; 0]);
    assert!(
        place(
            &mut engine,
            pod("pod1", &[json!({"cpu": "4", "memory": "1Gi"})])
        )
        .is_ok()
    );
    let result = place(
        &mut engine,
        pod("pod2", &[json!({"cpu": "5", "memory": "1Gi"})]),
    );
    assert_eq!(result, refused("cannot align container"));
}

/// Zones, resources and distances that are invalid or listed twice are ignored, and the rest offers nothing
/// twice.
#[test]
fn duplicates_and_invalid_distances_are_reported() {
    let mut engine = engine(json!({"scoringStrategy": {"type": "LeastNUMANodes"}}));
    engine.node_applied(
        node("b", json!({"cpu": "40", "memory": "64Gi", "pods": "110"})),
        now(),
    );
    let cpu =
        |free: &str| json!({"name": "cpu", "capacity": "9", "allocatable": "9", "available": free});
    let memory =
        json!({"name": "memory", "capacity": "8Gi", "allocatable": "8Gi", "available": "8Gi"});
    let zone = |name: &str, resources: Value, costs: Value| json!({"name": name, "type": "Node", "resources": resources, "costs": costs});
    let costs = json!([{"name": "node-0", "value": 10}, {"name": "node-1", "value": -5},
        {"name": "numa 1", "value": 20}, {"name": "node-1", "value": 4_294_967_296_i64}]);
    let object: NodeResourceTopology = serde_json::from_value(json!({
    "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
    "metadata": {"name": "b", "uid": "b"}, "topologyPolicies": [SINGLE], "zones": [
        zone("node-0", json!([cpu("4"), memory]), costs),
        zone("node-1", json!([cpu("6"), memory, cpu("8")]), json!([])),
        zone("node-0", json!([cpu("9"), memory]), json!([])),
    ]}))
    .unwrap();
    let change = ObjectChange {
        kind: TOPOLOGIES,
        action: Action::UPDATE,
        old: None,
        new: Arc::new(object),
    };
    engine.object_changed(&change, now());
    let mut messages = problems(&mut engine);
    messages.sort();
    let about = "NodeResourceTopology b: zone";
    assert_eq!(
        messages,
        [
            r#""node-0": costs["node-1"]: -5 is no distance to a NUMA node"#,
            r#""node-0": costs["node-1"]: 4294967296 is no distance to a NUMA node"#,
            r#""node-0": costs["numa 1"]: 20 is no distance to a NUMA node"#,
            r#""node-0": listed twice"#,
            r#""node-1": cpu: listed twice"#,
        ]
        .map(|text| format!("{about} {text}; it is ignored"))
    );
    let mut zone_of = |name: &str, cpu: &str| {
        place(
            &mut engine,
            pod(name, &[json!({"cpu": cpu, "memory": "1Gi"})]),
        )
    };
    assert_eq!(zone_of("seven", "7"), refused("cannot align container"));
    assert_eq!(zone_of("six", "6"), Ok("b".to_owned()));
}

#[test]
fn invalid_arguments_are_rejected_by_name() {
    for (args, part) in [
        (
            json!({"scoringStrategy": {"type": "Most"}}),
            "args.scoringStrategy.type: unknown variant `Most`",
        ),
        (
            json!({"cacheResyncPeriodSeconds": -1}),
            "args.cacheResyncPeriodSeconds: -1 is below 0",
        ),
        (
            json!({"cache": {"foreignPodsDetect": "Some"}}),
            "args.cache.foreignPodsDetect: unknown variant `Some`",
        ),
        (json!({"cache": {"resync": 1}}), "unknown field `resync`"),
        (
            json!({"preemptionMode": "On"}),
            "args.preemptionMode: unknown variant `On`",
        ),
    ] {
        let error = build(Some(&args), &BuildContext::default()).err().unwrap();
        assert!(error.message.contains(part), "{}", error.message);
    }
    let all = json!({"scoringStrategy": {"type": "LeastNUMANodes", "resources": [{"name": "cpu", "weight": 0}]},
        "cacheResyncPeriodSeconds": 5, "preemptionMode": "Enabled", "cache": {"foreignPodsDetect": "None",
        "resyncMethod": "All", "informerMode": "Shared", "resyncScope": "OnlyResources"}});
    assert!(build(Some(&all), &BuildContext::default()).is_ok());
}
