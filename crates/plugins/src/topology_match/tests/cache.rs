//! Upstream's tables of cache tests, checked by their observable results.

use super::super::args::{CacheMode, ResyncMethod};
use super::*;
use koord_model::alignment::fingerprint;

/// Applies a report of a node with two zones, with these amounts (CPUs, GiB) free in each.
pub(super) fn apply_report(
    engine: &mut Engine,
    name: &str,
    attributes: Value,
    zones: [(u32, u32); 2],
) {
    let zone = |(cpu, memory): (u32, u32)| json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi")});
    let zones = json!({"node-0": zone(zones[0]), "node-1": zone(zones[1])});
    engine.object_changed(&report(name, SINGLE, attributes, zones), now());
}

pub(super) fn cached(args: Value) -> Engine {
    let mut all = json!({"cacheResyncPeriodSeconds": 5});
    for (key, value) in args.as_object().unwrap() {
        all[key] = value.clone();
    }
    let mut engine = engine(all);
    let allocatable = json!({"cpu": "64", "memory": "128Gi", "pods": "110"});
    engine.node_applied(node("node1", allocatable), now());
    apply_report(&mut engine, "node1", json!({}), [(30, 60); 2]);
    engine
}

pub(super) fn sized_pod(name: &str, cpu: u32, memory: u32) -> Value {
    pod(
        name,
        &[json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi")})],
    )
}

/// Returns true if a pod of this size would be placed; the pod is removed again.
pub(super) fn fits(engine: &mut Engine, cpu: u32, memory: u32) -> bool {
    let probe = sized_pod("probe", cpu, memory);
    let result = place(engine, probe.clone());
    engine.pod_deleted(&object(probe), now());
    result.is_ok()
}

/// Checks that each zone has exactly these amounts free for a pod.
pub(super) fn each_zone_has(engine: &mut Engine, cpu: u32, memory: u32) {
    assert!(fits(engine, cpu, memory), "{cpu} and {memory} Gi");
    assert!(!fits(engine, cpu + 1, memory), "more than {cpu}");
    assert!(!fits(engine, cpu, memory + 1), "more than {memory} Gi");
}

pub(super) fn foreign_pod(mut pod: Value, namespace: &str) -> Value {
    pod["spec"]["schedulerName"] = json!("default-scheduler");
    pod["metadata"]["namespace"] = json!(namespace);
    pod
}

/// TestGetCacheResyncMethod.
#[test]
fn fingerprint_method_is_parsed() {
    let rows = [
        (Value::Null, ResyncMethod::Autodetect),
        (json!({}), ResyncMethod::Autodetect),
        (json!({"resyncMethod": "All"}), ResyncMethod::All),
        (
            json!({"resyncMethod": "Autodetect"}),
            ResyncMethod::Autodetect,
        ),
        (
            json!({"resyncMethod": "OnlyExclusiveResources"}),
            ResyncMethod::OnlyExclusiveResources,
        ),
    ];
    for (cache, expected) in rows {
        let mut args = json!({"cacheResyncPeriodSeconds": 5});
        if !cache.is_null() {
            args["cache"] = cache.clone();
        }
        let args: super::super::args::Args =
            crate::common::args::decode(NAME, Some(&args)).unwrap();
        let CacheMode::OverReserve(how) = args.settings().unwrap().cache_mode else {
            panic!("{cache}: no node state");
        };
        assert_eq!(how.method, expected, "{cache}");
    }
}

/// TestGetCachedNRTCopyReserve, …ReleaseNone, …ReserveRelease.
#[test]
fn placed_pod_is_subtracted_from_each_zone() {
    let mut engine = cached(json!({}));
    each_zone_has(&mut engine, 30, 60);
    let placed = sized_pod("pod1", 8, 16);
    engine.pod_deleted(&object(placed.clone()), now());
    each_zone_has(&mut engine, 30, 60);
    assert!(place(&mut engine, placed.clone()).is_ok());
    each_zone_has(&mut engine, 22, 44);
    engine.pod_deleted(&object(placed), now());
    each_zone_has(&mut engine, 30, 60);
}

/// TestFlush, TestResyncNoPodFingerprint, TestResyncMatchFingerprint, TestDirtyNodesMarkDiscarded,
/// TestDirtyNodesUnmarkedOnReserve: a report is accepted once it has counted the node's pods.
#[test]
fn report_with_matching_fingerprint_is_accepted() {
    // Upstream's own fingerprint of the pod namespace1/pod1.
    let stated = "pfp0v0019e0420efb37746c6";
    let hash = fingerprint::pod("namespace1", "pod1");
    assert_eq!(fingerprint::from_hashes([hash]), stated);
    for (attributes, believes) in [
        (json!({}), false),
        (printed(NO_PODS), false),
        (printed(stated), true),
    ] {
        let mut engine = cached(json!({}));
        let mut placed = sized_pod("pod1", 8, 16);
        placed["metadata"]["namespace"] = json!("namespace1");
        assert!(place(&mut engine, placed.clone()).is_ok());
        engine.pod_applied(bound(placed, "node1", "Running"), now());
        apply_report(
            &mut engine,
            "node1",
            attributes.clone(),
            [(25, 50), (22, 44)],
        );
        if believes {
            each_zone_has(&mut engine, 25, 50);
        } else {
            each_zone_has(&mut engine, 22, 44);
        }
    }
}

/// TestUnknownNodeWithForeignPods, TestNodeWithForeignPods, TestOverreserveGetCachedNRTCopy.
#[test]
fn foreign_pod_blocks_only_its_node() {
    let mut engine = cached(json!({}));
    let allocatable = json!({"cpu": "64", "memory": "128Gi", "pods": "110"});
    engine.node_applied(node("node2", allocatable.clone()), now());
    engine.node_applied(node("bogus", allocatable), now());
    apply_report(&mut engine, "node2", json!({}), [(30, 60); 2]);
    let foreign = foreign_pod(sized_pod("pod1", 8, 16), "default");
    engine.pod_applied(bound(foreign.clone(), "node2", "Running"), now());
    let mut nameless = foreign;
    nameless["metadata"]["name"] = json!("pod2");
    nameless["metadata"]["uid"] = json!("pod2");
    engine.pod_applied(bound(nameless, "bogus", "Running"), now());
    let on = |engine: &mut Engine, name: &str, node: &str| {
        let mut pod = sized_pod(name, 30, 40);
        pod["spec"]["nodeSelector"] = Value::Null;
        engine.pod_applied(object(pod), now());
        let decided = decide(engine, now()).map(|bind| bind.node.to_string());
        (decided == Ok(node.to_owned()), decided)
    };
    // A foreign pod may go to a node without a report, or to one without foreign pods; never to the other.
    for name in ["a", "b", "c", "d"] {
        let (there, decided) = on(&mut engine, name, "node2");
        assert!(!there, "{decided:?}");
    }
}

/// TestIsForeignPod.
#[test]
fn pods_of_any_profile_of_this_process_are_its_own() {
    let profile = |name: &str| {
        json!({"schedulerName": name,
        "plugins": {"multiPoint": {"disabled": [{"name": "*"}],
            "enabled": [{"name": NAME}, {"name": "DefaultBinder"}]}},
        "pluginConfig": [{"name": NAME, "args": {"cacheResyncPeriodSeconds": 5}}]})
    };
    // (profiles, the pod's node and scheduler, whether others wait for it)
    let rows = [
        (&["koord-scheduler"][..], None, None, false),
        (&["koord-scheduler"], Some("node1"), None, true),
        (
            &["koord-scheduler"],
            Some("node1"),
            Some("koord-scheduler"),
            false,
        ),
        (
            &["koord-scheduler", "b", "fancy"],
            Some("node1"),
            Some("b"),
            false,
        ),
        (
            &["koord-scheduler", "b", "fancy"],
            Some("node1"),
            Some("c"),
            true,
        ),
    ];
    for (profiles, on, scheduler, foreign) in rows {
        let profiles: Vec<Value> = profiles.iter().map(|name| profile(name)).collect();
        let config = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration", "profiles": profiles});
        let config = Configuration::parse(&config.to_string()).unwrap();
        let context = BuildContext::default();
        let built = Profiles::build(&config, &crate::registry(), &context, false).unwrap();
        let mut engine = Engine::new(&config, built, EngineOptions::default());
        let allocatable = json!({"cpu": "64", "memory": "128Gi", "pods": "110"});
        engine.node_applied(node("node1", allocatable), now());
        apply_report(&mut engine, "node1", json!({}), [(30, 60); 2]);
        let mut pod = sized_pod("pod1", 1, 1);
        pod["spec"]["schedulerName"] = json!(scheduler.unwrap_or("default-scheduler"));
        if let Some(node) = on {
            pod["spec"]["nodeName"] = json!(node);
            pod["status"]["phase"] = json!("Running");
        }
        engine.pod_applied(object(pod), now());
        assert_eq!(!fits(&mut engine, 8, 8), foreign, "{on:?} {scheduler:?}");
    }
}

/// TestMakeNodeToPodDataMap: the pods of a node that a fingerprint covers.
#[test]
fn fingerprints_are_of_the_pods_that_the_informer_shows() {
    const ONE: &[(&str, &str)] = &[("namespace1", "pod1")];
    const FEW: &[(&str, &str)] = &[
        ("namespace1", "pod1"),
        ("namespace2", "pod2"),
        ("namespace2", "pod3"),
    ];
    let rows = [
        ("Shared", &[][..], "", true),
        ("Dedicated", &[], "", true),
        ("Dedicated", ONE, "Succeeded", true),
        ("Dedicated", ONE, "Failed", true),
        ("Shared", ONE, "Succeeded", false),
        ("Shared", ONE, "Failed", false),
        ("Dedicated", ONE, "Running", true),
        ("Shared", ONE, "Running", true),
        ("Dedicated", FEW, "Running", true),
        // Not in upstream's table: bound, and not started yet.
        ("Shared", ONE, "Pending", false),
        ("Dedicated", ONE, "Pending", false),
    ];
    for (mode, pods, phase, counted) in rows {
        let case = format!("{mode}: {pods:?} {phase}");
        let hashes = pods
            .iter()
            .map(|(space, name)| fingerprint::pod(space, name));
        let all = fingerprint::from_hashes(hashes);
        let of_no_pods = fingerprint::from_hashes([]);
        for (stated, of_pods) in [(&all, true), (&of_no_pods, false)] {
            let mut engine = cached(json!({"cache": {"informerMode": mode}}));
            // Makes the node doubtful, so that there is something to compare: an own pod that came and left
            // would leave nothing.
            for (space, name) in pods {
                let pod = foreign_pod(sized_pod(name, 1, 1), space);
                let first = if phase == "Pending" {
                    "Pending"
                } else {
                    "Running"
                };
                engine.pod_applied(bound(pod.clone(), "node1", first), now());
                if phase != first {
                    engine.pod_applied(bound(pod, "node1", phase), now());
                }
            }
            apply_report(&mut engine, "node1", printed(stated), [(30, 60); 2]);
            // Not in upstream's table: kubelets from 1.34 list active pods only, and a report that matches
            // while a pod has not started may be from before it came.
            let inactive = !of_pods && matches!(phase, "Succeeded" | "Failed");
            let agrees = pods.is_empty() || of_pods == counted || inactive;
            let starts = phase == "Pending";
            if agrees && starts {
                assert!(!fits(&mut engine, 8, 8), "{case}, stated {stated}: at once");
                // The first tick handles timeouts, the second compares.
                engine.schedule_one(at(51));
                engine.schedule_one(at(51));
            }
            assert_eq!(fits(&mut engine, 8, 8), agrees, "{case}, stated {stated}");
        }
    }
}

/// Another scheduler's pod is bound but has not started. A report from before it came has a matching
/// fingerprint, and offers resources that the kubelet is about to give to that pod.
#[test]
fn report_from_before_foreign_pod_is_not_accepted() {
    let agreed = fingerprint::from_hashes([fingerprint::pod("default", "a")]);
    let fingerprint_of_both =
        fingerprint::from_hashes(["a", "foreign"].map(|name| fingerprint::pod("default", name)));
    // Whether the pod starts before the wait for it times out.
    for (seconds, waits) in [(1, true), (51, false)] {
        let mut engine = cached(json!({}));
        engine.pod_applied(bound(sized_pod("a", 5, 5), "node1", "Running"), now());
        apply_report(&mut engine, "node1", printed(&agreed), [(25, 55), (30, 60)]);
        most_in_a_zone(&mut engine, 30);
        let foreign = foreign_pod(sized_pod("foreign", 20, 20), "default");
        engine.pod_applied(bound(foreign.clone(), "node1", "Pending"), now());
        for _ in 0..2 {
            engine.schedule_one(at(seconds));
        }
        assert_eq!(fits(&mut engine, 1, 1), !waits, "bound since {seconds} s");
        engine.pod_applied(bound(foreign.clone(), "node1", "Running"), at(seconds));
        for _ in 0..2 {
            engine.schedule_one(at(seconds));
        }
        assert!(!fits(&mut engine, 1, 1), "runs since {seconds} s");
        apply_report(
            &mut engine,
            "node1",
            printed(&fingerprint_of_both),
            [(25, 55), (10, 40)],
        );
        most_in_a_zone(&mut engine, 25);
        // A foreign pod that left without ever having started.
        let never = foreign_pod(sized_pod("never", 1, 1), "default");
        engine.pod_applied(bound(never.clone(), "node1", "Pending"), at(seconds));
        assert!(!fits(&mut engine, 1, 1));
        engine.pod_deleted(&object(never), at(seconds));
        most_in_a_zone(&mut engine, 25);
    }
}

/// Checks the size of the largest pod that fits a zone.
fn most_in_a_zone(engine: &mut Engine, cpu: u32) {
    assert!(fits(engine, cpu, 1), "{cpu}");
    assert!(!fits(engine, cpu + 1, 1), "more than {cpu}");
}
