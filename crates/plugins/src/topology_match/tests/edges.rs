//! Edge cases: breaking these rules went unnoticed by the other tests.

use super::cache::{apply_report, cached, each_zone_has, fits, foreign_pod, sized_pod};
use super::*;

#[test]
fn missing_report_subtracts_no_pods() {
    let mut engine = cached(json!({}));
    assert!(place(&mut engine, sized_pod("pod1", 8, 16)).is_ok());
    let end = changed(Action::DELETE, "node1", SINGLE, json!({}), two_zones(0, 0));
    engine.object_changed(&end, now());
    apply_report(&mut engine, "node1", json!({}), [(30, 60); 2]);
    each_zone_has(&mut engine, 30, 60);
}

/// Without a fingerprint, pods from before this process are taken as counted.
#[test]
fn earlier_pods_are_not_held_without_fingerprint() {
    for report_first in [true, false] {
        let mut engine = engine(json!({"cacheResyncPeriodSeconds": 5}));
        let allocatable = json!({"cpu": "64", "memory": "128Gi", "pods": "110"});
        engine.node_applied(node("node1", allocatable), now());
        let before = bound(sized_pod("pod1", 8, 16), "node1", "Running");
        if report_first {
            apply_report(&mut engine, "node1", json!({}), [(30, 60); 2]);
        }
        engine.pod_applied(before, now());
        if !report_first {
            apply_report(&mut engine, "node1", json!({}), [(30, 60); 2]);
        }
        each_zone_has(&mut engine, 30, 60);
    }
}

/// Returns a report of an old exporter, which puts the fingerprint into an annotation, and a zone that is no
/// NUMA node.
fn legacy(fingerprint: &str, attributes: Value) -> ObjectChange {
    let zone = |name: &str, kind: &str, cpu: &str| {
        json!({"name": name, "type": kind, "resources": [
            {"name": "cpu", "capacity": "100", "allocatable": "100", "available": cpu},
            {"name": "memory", "capacity": "100Gi", "allocatable": "100Gi", "available": "60Gi"}]})
    };
    let object: NodeResourceTopology = serde_json::from_value(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": "node1", "uid": "node1",
            "annotations": {"topology.node.k8s.io/fingerprint": fingerprint}},
        "topologyPolicies": [SINGLE], "attributes": attributes,
        "zones": [zone("node-0", "Node", "25"), zone("node-1", "Node", "25"),
            zone("node-2", "Socket", "50")]
    }))
    .unwrap();
    ObjectChange {
        kind: TOPOLOGIES,
        action: Action::UPDATE,
        old: None,
        new: Arc::new(object),
    }
}

#[test]
fn old_exporter_annotation_covers_all_pods() {
    let shared = || {
        let mut pod = sized_pod("pod1", 8, 16);
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({});
        pod
    };
    for (stated, agrees) in [(POD1, true), (NO_PODS, false)] {
        let cache = json!({"cache": {"resyncMethod": "OnlyExclusiveResources"}});
        let mut engine = cached(cache);
        assert!(place(&mut engine, shared()).is_ok());
        engine.pod_applied(bound(shared(), "node1", "Running"), now());
        engine.object_changed(&legacy(stated, json!([])), now());
        // Sockets are no NUMA nodes.
        let (cpu, memory) = if agrees { (25, 60) } else { (22, 44) };
        each_zone_has(&mut engine, cpu, memory);
    }
}

/// The fingerprint attribute takes precedence over the annotation, and an unknown fingerprint method counts
/// as "all pods".
#[test]
fn attribute_takes_precedence_over_annotation() {
    let shared = || {
        let mut pod = sized_pod("pod1", 8, 16);
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({});
        pod
    };
    for (attribute, annotation, method, agrees) in [
        (POD1, NO_PODS, None, true),
        (NO_PODS, POD1, None, false),
        (POD1, NO_PODS, Some("all"), true),
        (POD1, NO_PODS, Some("a-new-one"), true),
        (NO_PODS, POD1, Some("with-exclusive-resources"), true),
    ] {
        let mut engine = cached(json!({}));
        assert!(place(&mut engine, shared()).is_ok());
        engine.pod_applied(bound(shared(), "node1", "Running"), now());
        let mut all = vec![json!({"name": "nodeTopologyPodsFingerprint", "value": attribute})];
        let named = |method| json!({"name": "nodeTopologyPodsFingerprintMethod", "value": method});
        all.extend(method.map(named));
        engine.object_changed(&legacy(annotation, json!(all)), now());
        let (cpu, memory) = if agrees { (25, 60) } else { (22, 44) };
        assert!(
            fits(&mut engine, cpu, memory),
            "{attribute} {annotation} {method:?}"
        );
        each_zone_has(&mut engine, cpu, memory);
    }
}

#[test]
fn init_container_resources_are_not_exclusive() {
    for (list, waits) in [("initContainers", false), ("containers", true)] {
        let cache = json!({"cache": {"foreignPodsDetect": "OnlyExclusiveResources"}});
        let mut engine = cached(cache);
        let zone = json!({"cpu": "30", "memory": "60Gi", "vendor.com/nic1": "4"});
        let zones = json!({"node-0": zone, "node-1": zone});
        engine.object_changed(&report("node1", SINGLE, json!({}), zones), now());
        let mut foreign = foreign_pod(pod("pod1", &[json!({"cpu": "500m"})]), "default");
        foreign["spec"]["containers"][0]["resources"]["limits"] = json!({});
        let nic = json!({"vendor.com/nic1": "1"});
        let second_container =
            json!({"name": "more", "resources": {"requests": nic, "limits": nic}});
        match foreign["spec"][list].as_array_mut() {
            Some(list) => list.push(second_container),
            None => foreign["spec"][list] = json!([second_container]),
        }
        engine.pod_applied(bound(foreign, "node1", "Running"), now());
        assert_eq!(!fits(&mut engine, 1, 1), waits, "{list}");
    }
}

#[test]
fn informer_update_finishes_binding() {
    let mut engine = cached(json!({"discardReservedNodes": true}));
    let first = sized_pod("pod1", 1, 1);
    assert!(place(&mut engine, first.clone()).is_ok());
    assert!(place(&mut engine, sized_pod("pod2", 1, 1)).is_err());
    engine.pod_applied(bound(first, "node1", "Pending"), now());
    assert!(decide(&mut engine, at(400)).is_ok());
}

#[test]
fn deleted_pod_requeues_waiting_pod() {
    let mut engine = cached(json!({}));
    let mut large = Vec::new();
    for name in ["pod1", "pod2"] {
        large.push(sized_pod(name, 20, 1));
    }
    assert!(place(&mut engine, large[0].clone()).is_ok());
    assert!(place(&mut engine, large[1].clone()).is_err());
    let running = bound(large[0].clone(), "node1", "Running");
    engine.pod_applied(running.clone(), now());
    engine.pod_deleted(&running, now());
    assert!(decide(&mut engine, at(400)).is_ok());
}

#[test]
fn resource_weights_apply() {
    for (cpu, memory, best) in [(1, 10, "n2"), (10, 1, "n1")] {
        let resources =
            json!([{"name": "cpu", "weight": cpu}, {"name": "memory", "weight": memory}]);
        let strategy = json!({"type": "LeastAllocated", "resources": resources});
        let mut engine = engine(json!({"scoringStrategy": strategy}));
        for (name, cpu, memory) in [("n1", "10", "100Mi"), ("n2", "4", "900Mi")] {
            let allocatable = json!({"cpu": "20", "memory": "2Gi", "pods": "110"});
            engine.node_applied(node(name, allocatable), now());
            let zone = json!({"cpu": cpu, "memory": memory});
            let zones = json!({"node-0": zone, "node-1": zone});
            engine.object_changed(&report(name, SINGLE, json!({}), zones), now());
        }
        let pod = pod("p", &[json!({"cpu": "2", "memory": "50Mi"})]);
        assert_eq!(
            place(&mut engine, pod),
            Ok(best.to_owned()),
            "{cpu}:{memory}"
        );
    }
}

/// A report wakes only pods that may fit, since exporters report often.
#[test]
fn report_wakes_pods_that_may_fit() {
    let mut engine = engine(json!({}));
    let allocatable = json!({"cpu": "40", "memory": "64Gi", "pods": "110"});
    engine.node_applied(node("b", allocatable), now());
    let tell = |engine: &mut Engine, cpu0: u32, print: &str, second: i64| {
        let report = report("b", SINGLE, printed(print), two_zones(cpu0, 10));
        engine.object_changed(&report, at(second));
        decide(engine, at(second + 100)).map(|bind| bind.pod.uid.to_string())
    };
    assert!(tell(&mut engine, 10, NO_PODS, 0).is_err());
    for (name, cpu) in [("big", "20"), ("small", "12")] {
        let wants = [json!({"cpu": cpu, "memory": "1Gi"})];
        let refusal = place(&mut engine, pod(name, &wants));
        assert_eq!(refusal, refused("cannot align container"));
    }
    let asleep = Err("nothing to decide".to_owned());
    // Reports that do not help: an unchanged one, one with another fingerprint, one with too little more, and
    // one with less.
    assert_eq!(tell(&mut engine, 10, NO_PODS, 1), asleep);
    assert_eq!(tell(&mut engine, 10, POD1, 2), asleep);
    assert_eq!(tell(&mut engine, 11, NO_PODS, 3), asleep);
    assert_eq!(tell(&mut engine, 3, NO_PODS, 4), asleep);
    assert_eq!(tell(&mut engine, 12, NO_PODS, 5), Ok("small".to_owned()));
    assert_eq!(
        decide(&mut engine, at(105)).map(|_| ()),
        asleep.clone().map(|_| ())
    );
    // Without a report there is nothing to predict by.
    let deletion = changed(Action::DELETE, "b", SINGLE, json!({}), two_zones(0, 0));
    engine.object_changed(&deletion, at(6));
    let placed = decide(&mut engine, at(106)).map(|bind| bind.pod.uid.to_string());
    assert_eq!(placed, Ok("big".to_owned()));
}

#[test]
fn shortfall_per_zone_is_reported() {
    let mut engine = engine(json!({}));
    let allocatable = json!({"cpu": "40", "memory": "64Gi", "pods": "110"});
    engine.node_applied(node("b", allocatable), now());
    engine.object_changed(&report("b", SINGLE, json!({}), two_zones(10, 7)), now());
    let pod = PodInfo::new(object(pod("pod1", &twenty())), engine.cluster().resources()).unwrap();
    let nearest = engine.inspector().nearest(&Arc::new(pod), 1, now());
    assert_eq!(
        nearest[0].lacks,
        "cpu in one NUMA node: needs 20, free 10 in node-0 and 7 in node-1"
    );
}
