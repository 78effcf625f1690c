//! Tests of the plugin through the engine.

mod cache;
mod closed_loop;
mod clusters;
mod edges;
mod reports;
mod rows;
mod unmatched;

use super::*;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindRequest, Engine, EngineOptions, Output};
use koord_scheduler::framework::Profiles;
use serde_json::json;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn now() -> Timestamp {
    at(0)
}

/// Creates an engine with only this plugin.
fn engine(args: Value) -> Engine {
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}],
                "enabled": [{"name": NAME}, {"name": "DefaultBinder"}]}},
            "pluginConfig": [{"name": NAME, "args": args}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let context = BuildContext::default();
    let profiles = Profiles::build(&config, &crate::registry(), &context, false).unwrap();
    Engine::new(&config, profiles, EngineOptions::default())
}

fn node(name: &str, allocatable: Value) -> Arc<Node> {
    let value = json!({
        "metadata": {"name": name, "uid": name},
        "status": {"allocatable": allocatable}
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Returns a report; `zones` are the free amounts by zone name.
fn report(node: &str, policy: &str, attributes: Value, zones: Value) -> ObjectChange {
    changed(Action::UPDATE, node, policy, attributes, zones)
}

fn changed(
    action: Action,
    node: &str,
    policy: &str,
    attributes: Value,
    zones: Value,
) -> ObjectChange {
    let zone = |(name, free): (&String, &Value)| {
        let resources = free.as_object().unwrap().iter();
        let resources = resources.map(|(name, free)| {
            json!({"name": name, "capacity": "100", "allocatable": "100", "available": free})
        });
        json!({"name": name, "type": "Node", "resources": resources.collect::<Vec<_>>()})
    };
    let zones = zones.as_object().unwrap().iter().map(zone);
    let attributes = attributes.as_object().unwrap().iter();
    let attributes = attributes.map(|(name, value)| json!({"name": name, "value": value}));
    let object: NodeResourceTopology = serde_json::from_value(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": node, "uid": node}, "topologyPolicies": [policy],
        "attributes": attributes.collect::<Vec<_>>(), "zones": zones.collect::<Vec<_>>(),
    }))
    .unwrap();
    ObjectChange {
        kind: TOPOLOGIES,
        action,
        old: None,
        new: Arc::new(object),
    }
}

/// Returns a pod with one container per entry, whose requests equal its limits.
fn pod(name: &str, containers: &[Value]) -> Value {
    let of = |(at, amounts): (usize, &Value)| json!({"name": format!("c{at}"), "resources": {"requests": amounts, "limits": amounts}});
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"schedulerName": "koord-scheduler",
            "containers": containers.iter().enumerate().map(of).collect::<Vec<_>>()},
        "status": {"phase": "Pending"}
    })
}

fn object(value: Value) -> Arc<Pod> {
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Schedules one pod and returns the binding, or the message of the failure.
fn decide(engine: &mut Engine, at: Timestamp) -> Result<BindRequest, String> {
    engine.take_outputs();
    engine.schedule_one(at).ok_or("nothing to decide")?;
    let outputs = engine.take_outputs().into_iter();
    let mut decisions = outputs.filter_map(|output| match output {
        Output::Bind(bind) => Some(Ok(bind)),
        Output::Failed(failure) => Some(Err(failure.message.to_string())),
        _ => None,
    });
    decisions.next().unwrap_or(Err("no decision".to_owned()))
}

/// Schedules the pod and returns its node, or the message of the failure.
fn place(engine: &mut Engine, pod: Value) -> Result<String, String> {
    engine.pod_applied(object(pod), now());
    decide(engine, now()).map(|bind| bind.node.to_string())
}

fn bound(mut pod: Value, node: &str, phase: &str) -> Arc<Pod> {
    pod["spec"]["nodeName"] = json!(node);
    pod["status"]["phase"] = json!(phase);
    object(pod)
}

fn refused(reason: &str) -> Result<String, String> {
    Err(format!("0/1 nodes are available: 1 {reason}."))
}

fn problems(engine: &mut Engine) -> Vec<String> {
    let outputs = engine.take_outputs().into_iter();
    let texts = outputs.filter_map(|output| match output {
        Output::Problem(problem) => Some(format!(
            "{} {}: {}",
            problem.kind, problem.name, problem.message
        )),
        _ => None,
    });
    texts.collect()
}

/// Message of a node that accepts no pod while it waits for a report.
const WAITS: &str =
    "invalid node topology data: no report has counted the pods of other schedulers";

const SINGLE: &str = "SingleNUMANodeContainerLevel";

fn two_zones(cpu0: u32, cpu1: u32) -> Value {
    let zone = |cpu: u32| json!({"cpu": cpu.to_string(), "memory": "32Gi"});
    json!({"node-0": zone(cpu0), "node-1": zone(cpu1)})
}

fn printed(fingerprint: &str) -> Value {
    json!({"nodeTopologyPodsFingerprint": fingerprint})
}

/// Fingerprints of "pod1", of "pod1 and pod2", and of no pods; computed independently.
const POD1: &str = "pfp0v001a5e1c50c557adb9d";
const NO_PODS: &str = "pfp0v001ef46db3751d8e999";

fn twenty() -> [Value; 1] {
    [json!({"cpu": "20", "memory": "1Gi"})]
}

/// Creates an engine with node B of the reference example, without pods.
fn node_b(args: Value) -> Engine {
    let mut engine = engine(args);
    engine.node_applied(
        node("b", json!({"cpu": "40", "memory": "64Gi", "pods": "110"})),
        now(),
    );
    engine.object_changed(
        &report("b", SINGLE, printed(NO_PODS), two_zones(20, 20)),
        now(),
    );
    engine
}

#[test]
fn ac1_reference_example() {
    let mut engine = engine(json!({}));
    engine.node_applied(
        node("a", json!({"cpu": "20", "memory": "64Gi", "pods": "110"})),
        now(),
    );
    engine.node_applied(
        node("b", json!({"cpu": "40", "memory": "64Gi", "pods": "110"})),
        now(),
    );
    engine.object_changed(&report("a", SINGLE, json!({}), two_zones(10, 10)), now());
    engine.object_changed(&report("b", SINGLE, json!({}), two_zones(20, 20)), now());
    assert_eq!(
        place(&mut engine, pod("pod1", &twenty())),
        Ok("b".to_owned())
    );
    // Without a report there is nothing to predict by.
    engine.object_changed(
        &changed(Action::DELETE, "b", SINGLE, json!({}), two_zones(0, 0)),
        now(),
    );
    assert_eq!(
        place(&mut engine, pod("pod2", &twenty())),
        Ok("b".to_owned())
    );
}

/// Checks that the NUMA state of a node keeps no pod away that requests neither exclusive resources nor
/// devices.
#[test]
fn ac5_best_effort_pod_is_skipped() {
    let mut engine = node_b(json!({"cacheResyncPeriodSeconds": 5}));
    engine.object_changed(
        &report("b", SINGLE, printed(NO_PODS), two_zones(0, 0)),
        now(),
    );
    let mut foreign = pod("foreign", &twenty());
    foreign["spec"]["schedulerName"] = json!("default-scheduler");
    engine.pod_applied(bound(foreign, "b", "Running"), now());
    // The node is doubtful, and full.
    let small = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(
        place(&mut engine, pod("guaranteed", &[small])),
        refused(WAITS)
    );
    assert!(place(&mut engine, pod("best-effort", &[json!({})])).is_ok());
    let device = [json!({"x.com/a": "1"})];
    assert!(place(&mut engine, pod("with-a-device", &device)).is_err());
}

/// Checks that all nodes score 100 for a pod that is not Guaranteed, so that other scores decide.
#[test]
fn ac5_zones_score_only_for_guaranteed_pods() {
    for strategy in ["LeastAllocated", "MostAllocated", "BalancedAllocation"] {
        let places = |limits: bool| {
            let mut engine = engine(json!({"scoringStrategy": {"type": strategy}}));
            for (name, zones) in [("n1", [(8, 8), (8, 8)]), ("n2", [(1, 6), (2, 3)])] {
                let allocatable = json!({"cpu": "200", "memory": "200Gi", "pods": "200"});
                engine.node_applied(node(name, allocatable), now());
                cache::apply_report(&mut engine, name, json!({}), zones);
            }
            let mut result = std::collections::BTreeSet::new();
            for at in 0..64 {
                let mut value = pod(&format!("p{at}"), &[json!({"cpu": "2", "memory": "3Gi"})]);
                if !limits {
                    value["spec"]["containers"][0]["resources"]["limits"] = json!({});
                }
                result.insert(place(&mut engine, value).unwrap());
            }
            result.len()
        };
        // Of 64 pods, all on the same node by chance: once in 2^63.
        assert_eq!((places(true), places(false)), (1, 2), "{strategy}");
    }
}

#[test]
fn ac2_resources_are_used_once_between_two_reports() {
    let mut engine = node_b(json!({"cacheResyncPeriodSeconds": 5}));
    assert_eq!(
        place(&mut engine, pod("pod1", &twenty())),
        Ok("b".to_owned())
    );
    assert_eq!(
        place(&mut engine, pod("pod2", &twenty())),
        refused("cannot align container")
    );
    // The exporter looked before the pod came, so its report is not accepted.
    engine.pod_applied(bound(pod("pod1", &twenty()), "b", "Running"), now());
    engine.object_changed(
        &report("b", SINGLE, printed(NO_PODS), two_zones(20, 19)),
        now(),
    );
    assert_eq!(
        decide(&mut engine, at(400)).map(|bind| bind.node.to_string()),
        refused("cannot align container")
    );
    engine.object_changed(&report("b", SINGLE, printed(POD1), two_zones(0, 20)), now());
    assert_eq!(
        decide(&mut engine, at(800)).map(|bind| bind.node.to_string()),
        Ok("b".to_owned())
    );
    assert_eq!(
        place(&mut engine, pod("pod3", &twenty())),
        refused("cannot align container")
    );
}

/// Covers a difference: upstream drops everything that is held when the fingerprints match.
#[test]
fn pod_without_fingerprint_match_stays_subtracted() {
    let mut engine = node_b(json!({"cacheResyncPeriodSeconds": 5}));
    assert!(place(&mut engine, pod("pod1", &twenty())).is_ok());
    // Pod 1 is not running yet, so the node is empty for the exporter and for the plugin.
    engine.pod_applied(bound(pod("pod1", &twenty()), "b", "Pending"), now());
    engine.object_changed(
        &report("b", SINGLE, printed(NO_PODS), two_zones(20, 20)),
        now(),
    );
    assert_eq!(
        place(&mut engine, pod("pod2", &twenty())),
        refused("cannot align container")
    );
}

#[test]
fn start_after_report_wakes_waiting_pods() {
    let mut engine = node_b(json!({"cacheResyncPeriodSeconds": 5}));
    assert!(place(&mut engine, pod("pod1", &twenty())).is_ok());
    assert!(place(&mut engine, pod("pod2", &twenty())).is_err());
    engine.pod_applied(bound(pod("pod1", &twenty()), "b", "Pending"), now());
    engine.object_changed(&report("b", SINGLE, printed(POD1), two_zones(0, 20)), now());
    assert!(decide(&mut engine, at(400)).is_err());
    engine.pod_applied(bound(pod("pod1", &twenty()), "b", "Running"), at(400));
    assert!(decide(&mut engine, at(800)).is_ok());
}

#[test]
fn deleted_pod_is_no_longer_subtracted() {
    let mut engine = node_b(json!({"cacheResyncPeriodSeconds": 5}));
    assert!(place(&mut engine, pod("pod1", &twenty())).is_ok());
    assert!(place(&mut engine, pod("pod2", &twenty())).is_err());
    let deleted = bound(pod("pod1", &twenty()), "b", "Running");
    engine.pod_applied(deleted.clone(), now());
    engine.pod_deleted(&deleted, now());
    assert!(decide(&mut engine, at(400)).is_ok());
}

/// Without a cache the second pod is accepted, and the kubelet rejects it.
#[test]
fn ac2_report_applies_without_cache() {
    let mut engine = node_b(json!({}));
    assert!(place(&mut engine, pod("pod1", &twenty())).is_ok());
    assert!(place(&mut engine, pod("pod2", &twenty())).is_ok());
}

#[test]
fn ac2_node_with_pending_bind_rejects_other_pods() {
    let mut engine = node_b(json!({"discardReservedNodes": true, "cacheResyncPeriodSeconds": 5}));
    let small = [json!({"cpu": "1", "memory": "1Gi"})];
    assert!(place(&mut engine, pod("pod1", &small)).is_ok());
    assert_eq!(
        place(&mut engine, pod("pod2", &small)),
        refused("invalid node topology data: another pod is being bound")
    );
    engine.bind_finished("pod1", Ok(()), now());
    assert!(decide(&mut engine, at(400)).is_ok());
    // A binding that failed is no longer on its way, either.
    engine.bind_finished("pod2", Ok(()), at(400));
    assert!(place(&mut engine, pod("pod3", &small)).is_ok());
    engine.pod_deleted(&object(pod("pod3", &small)), at(400));
    assert!(place(&mut engine, pod("pod4", &small)).is_ok());
}

#[test]
fn foreign_pod_makes_node_wait_for_report() {
    let foreign = || {
        let mut pod = pod("pod1", &[json!({"cpu": "2", "memory": "1Gi"})]);
        pod["spec"]["schedulerName"] = json!("default-scheduler");
        bound(pod, "b", "Running")
    };
    let small = [json!({"cpu": "1", "memory": "1Gi"})];
    for (detect, waits) in [
        ("All", true),
        ("OnlyExclusiveResources", true),
        ("None", false),
    ] {
        let args = json!({"cacheResyncPeriodSeconds": 5, "cache": {"foreignPodsDetect": detect}});
        let mut engine = node_b(args);
        engine.pod_applied(foreign(), now());
        let result = place(&mut engine, pod("pod2", &small));
        if !waits {
            assert!(result.is_ok(), "{detect}");
            continue;
        }
        assert_eq!(result, refused(WAITS), "{detect}");
        engine.object_changed(
            &report("b", SINGLE, printed(POD1), two_zones(18, 20)),
            now(),
        );
        assert!(decide(&mut engine, at(400)).is_ok(), "{detect}");
    }
    // A foreign pod without exclusive resources changes nothing.
    let mut shared = pod("pod1", &[json!({"cpu": "1500m", "memory": "1Gi"})]);
    shared["spec"]["schedulerName"] = json!("default-scheduler");
    shared["spec"]["containers"][0]["resources"]["limits"] = json!({});
    let cache = json!({"foreignPodsDetect": "OnlyExclusiveResources"});
    let mut engine = node_b(json!({"cacheResyncPeriodSeconds": 5, "cache": cache}));
    engine.pod_applied(bound(shared, "b", "Running"), now());
    assert!(place(&mut engine, pod("pod2", &small)).is_ok());
}

/// A new leader derives the pods that a report has counted only from the report's fingerprint.
#[test]
fn earlier_pods_are_held_until_counted() {
    for (fingerprint, fits) in [(NO_PODS, false), (POD1, true)] {
        let mut engine = engine(json!({"cacheResyncPeriodSeconds": 5}));
        engine.node_applied(
            node("b", json!({"cpu": "40", "memory": "64Gi", "pods": "110"})),
            now(),
        );
        engine.pod_applied(bound(pod("pod1", &twenty()), "b", "Running"), now());
        engine.object_changed(
            &report("b", SINGLE, printed(fingerprint), two_zones(20, 20)),
            now(),
        );
        assert_eq!(
            place(&mut engine, pod("pod2", &twenty())).is_ok(),
            fits,
            "{fingerprint}"
        );
    }
}

#[test]
fn fingerprints_may_be_of_some_pods_only() {
    let shared = || {
        let mut pod = pod("pod1", &[json!({"cpu": "2", "memory": "1Gi"})]);
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({});
        pod
    };
    let method = json!({"nodeTopologyPodsFingerprint": NO_PODS,
        "nodeTopologyPodsFingerprintMethod": "with-exclusive-resources"});
    let plain = printed(NO_PODS);
    for (how, attributes, agrees) in [
        ("Autodetect", &method, true),
        ("Autodetect", &plain, false),
        ("All", &method, false),
        ("OnlyExclusiveResources", &plain, true),
    ] {
        let args = json!({"cacheResyncPeriodSeconds": 5, "cache": {"resyncMethod": how}});
        let mut engine = node_b(args);
        assert!(place(&mut engine, shared()).is_ok());
        engine.pod_applied(bound(shared(), "b", "Running"), now());
        engine.object_changed(
            &report("b", SINGLE, attributes.clone(), two_zones(20, 19)),
            now(),
        );
        // 19 cores fit next to the held pod only if it is no longer held.
        let result = place(&mut engine, pod("pod2", &twenty()));
        assert_eq!(result.is_ok(), agrees, "{how} {attributes}: {result:?}");
    }
}

#[test]
fn ended_pod_may_be_in_fingerprint() {
    for (mode, agrees) in [("Dedicated", true), ("Shared", false)] {
        let args = json!({"cacheResyncPeriodSeconds": 5, "cache": {"informerMode": mode}});
        let mut engine = node_b(args);
        // A pod of another scheduler that ran and ended here.
        let mut other = pod("pod1", &[json!({"cpu": "2", "memory": "1Gi"})]);
        other["spec"]["schedulerName"] = json!("default-scheduler");
        engine.pod_applied(bound(other.clone(), "b", "Running"), now());
        engine.pod_applied(bound(other, "b", "Succeeded"), now());
        engine.object_changed(
            &report("b", SINGLE, printed(POD1), two_zones(20, 20)),
            now(),
        );
        let result = place(&mut engine, pod("pod2", &twenty()));
        assert_eq!(result.is_ok(), agrees, "{mode}: {result:?}");
    }
}

/// Kubelets from 1.34 list active pods only, so their report has counted everything that runs.
#[test]
fn ended_pod_may_be_missing_in_fingerprint() {
    for phase in ["Succeeded", "Failed"] {
        let mut engine = node_b(json!({"cacheResyncPeriodSeconds": 5}));
        engine.pod_applied(bound(pod("ended", &twenty()), "b", "Running"), now());
        engine.pod_applied(bound(pod("ended", &twenty()), "b", phase), now());
        engine.object_changed(
            &report("b", SINGLE, printed(NO_PODS), two_zones(20, 20)),
            now(),
        );
        assert_eq!(
            place(&mut engine, pod("pod1", &twenty())),
            Ok("b".to_owned())
        );
        engine.pod_applied(bound(pod("pod1", &twenty()), "b", "Running"), now());
        assert!(place(&mut engine, pod("pod2", &twenty())).is_err());
        engine.object_changed(&report("b", SINGLE, printed(POD1), two_zones(0, 20)), now());
        let result = decide(&mut engine, at(400)).map(|bind| bind.node.to_string());
        assert_eq!(result, Ok("b".to_owned()), "{phase}");
    }
}

#[test]
fn best_aligned_node_is_chosen() {
    for (strategy, best) in [
        ("LeastAllocated", "n1"),
        ("MostAllocated", "n2"),
        ("BalancedAllocation", "n3"),
    ] {
        let mut engine = engine(json!({"scoringStrategy": {"type": strategy}}));
        for (name, cpu, memory) in [
            ("n1", "4", "500Mi"),
            ("n2", "2", "50Mi"),
            ("n3", "6", "60Mi"),
        ] {
            engine.node_applied(
                node(name, json!({"cpu": "12", "memory": "1Gi", "pods": "110"})),
                now(),
            );
            let zone = json!({"cpu": cpu, "memory": memory});
            let zones = json!({"node-0": zone, "node-1": zone});
            engine.object_changed(&report(name, SINGLE, json!({}), zones), now());
        }
        let pod = pod("p", &[json!({"cpu": "2", "memory": "20Mi"})]);
        assert_eq!(place(&mut engine, pod), Ok(best.to_owned()), "{strategy}");
    }
}

/// Upstream's case of nodes without a report: they have no score, however empty they are.
#[test]
fn node_without_report_scores_lowest() {
    let nodes = [
        ("n1", "4", "500Mi"),
        ("n2", "2", "50Mi"),
        ("n3", "6", "60Mi"),
    ];
    for strategy in ["LeastAllocated", "MostAllocated", "BalancedAllocation"] {
        for only in ["n1", "n2", "n3", ""] {
            let mut engine = engine(json!({"scoringStrategy": {"type": strategy}}));
            for (name, cpu, memory) in nodes {
                let allocatable = json!({"cpu": "12", "memory": "1Gi", "pods": "110"});
                engine.node_applied(node(name, allocatable), now());
                let zone = json!({"cpu": cpu, "memory": memory});
                let zones = json!({"node-0": zone, "node-1": zone});
                if name == only {
                    engine.object_changed(&report(name, SINGLE, json!({}), zones), now());
                }
            }
            let pod = pod("p", &[json!({"cpu": "2", "memory": "20Mi"})]);
            let placed = place(&mut engine, pod).unwrap();
            assert!(
                placed == only || only.is_empty(),
                "{strategy}: {only} {placed}"
            );
        }
    }
}
