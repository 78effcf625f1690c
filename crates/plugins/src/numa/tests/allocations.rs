//! Recorded allocations: restarts, invalid annotations, and random sequences of events.

use super::*;
use koord_model::cpuset::CpuSet;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn with_status(name: &str, status: &str) -> Pod {
    let annotations = json!({"scheduling.koordinator.sh/resource-status": status});
    let change = json!({"metadata": {"annotations": annotations}, "spec": {"nodeName": "n"}});
    pod(name, "2", change)
}

#[test]
fn restart_restores_allocations_from_annotations() {
    let labels = || json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"});
    let mut before = one(labels());
    let binds: Vec<BindRequest> = [
        lsr("a", "4", FULL),
        lsr("b", "2", ""),
        pod("c", "3", json!({})),
    ]
    .into_iter()
    .map(|pod| try_bind(&mut before, pod).unwrap())
    .collect();
    let expected = table(&mut before, "n");
    for bind in &binds {
        before.pod_applied(Arc::new(bound(bind)), now());
    }
    assert_eq!(
        table(&mut before, "n"),
        expected,
        "the informer's view changes nothing"
    );
    // Pods first, then the node, then its topology; and the other way round.
    let mut after = engine(json!({}));
    let node = TWO.node("n", labels(), json!({}), 16);
    let topology = TWO.topology("n", json!([]), json!({}));
    for bind in &binds {
        after.pod_applied(Arc::new(bound(bind)), now());
    }
    after.node_applied(node.clone(), now());
    after.object_changed(&topology, now());
    assert_eq!(table(&mut after, "n"), expected);
    let mut repeated = engine(json!({}));
    repeated.object_changed(&topology, now());
    repeated.node_applied(node, now());
    for bind in binds.iter().rev() {
        repeated.pod_applied(Arc::new(bound(bind)), now());
    }
    assert_eq!(table(&mut repeated, "n"), expected);
    assert_eq!(
        place(&mut after, lsr("d", "4", FULL)),
        place(&mut repeated, lsr("d", "4", FULL))
    );
}

#[test]
fn failed_binding_frees_allocation() {
    let mut engine = one(json!({}));
    let empty = table(&mut engine, "n");
    place(&mut engine, lsr("a", "4", FULL));
    let message = "conflict".to_owned();
    engine.bind_finished(
        "a",
        Err(BindError {
            message,
            gone: true,
        }),
        now(),
    );
    assert_eq!(table(&mut engine, "n"), empty);
    let bind = try_bind(&mut engine, lsr("b", "4", FULL)).unwrap();
    let pod = bound(&bind);
    engine.pod_applied(Arc::new(pod.clone()), now());
    engine.pod_deleted(&pod, now());
    assert_eq!(table(&mut engine, "n"), empty);
}

#[test]
fn failed_binding_annotation_is_ignored() {
    let policy = json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"});
    let bind = try_bind(&mut one(policy), pod("a", "3", json!({}))).unwrap();
    // The patch was applied, but the binding failed.
    let mut pod = bound(&bind);
    pod.spec.as_mut().unwrap().node_name = None;
    let plain = json!({"metadata": {"name": "plain", "uid": "plain"},
        "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}}});
    let mut engine = engine(json!({}));
    engine.node_applied(Arc::new(serde_json::from_value(plain).unwrap()), now());
    let bind = try_bind(&mut engine, pod).unwrap();
    assert_eq!(bind.patch.annotations[annotations::RESOURCE_STATUS], "{}");
    // The problem is reported only once.
    let repeated = try_bind(&mut engine, {
        let mut pod = bound(&bind);
        pod.metadata.uid = Some("again".to_owned());
        pod.spec.as_mut().unwrap().node_name = None;
        pod
    });
    assert!(repeated.unwrap().patch.is_empty());
}

#[test]
fn invalid_annotations_are_reported_and_free_no_cpus() {
    let mut engine = one(json!({}));
    engine.pod_applied(Arc::new(with_status("good", r#"{"cpuset":"0-3"}"#)), now());
    engine.take_outputs();
    for (status, named) in [
        ("{", "resource-status"),
        (r#"{"cpuset":"0-"}"#, "0-"),
        (
            r#"{"cpuset":"0-3","numaNodeResources":[{"node":99}]}"#,
            "99",
        ),
        (
            r#"{"numaNodeResources":[{"node":0,"resources":{"cpu":"x"}}]}"#,
            "resource-status",
        ),
    ] {
        for name in ["good", "bad"] {
            engine.pod_applied(Arc::new(with_status(name, status)), now());
            let reported = engine.take_outputs().iter().any(|output| {
                matches!(output, Output::Problem(problem)
                    if problem.name == name && problem.message.contains(named))
            });
            assert!(reported, "{name} {status}");
        }
        assert_eq!(table(&mut engine, "n")["availableCPUs"], "4-15", "{status}");
    }
    // Two pods that claim the same CPUs: one leaves, the other keeps them.
    let twin = with_status("twin", r#"{"cpuset":"2-5"}"#);
    engine.pod_applied(Arc::new(twin.clone()), now());
    engine.pod_deleted(&twin, now());
    assert_eq!(table(&mut engine, "n")["availableCPUs"], "4-15");
    // A pod with an invalid annotation is rejected with a message that names it.
    let got = place(
        &mut engine,
        lsr("c", "2", r#"{"preferredCPUBindPolicy":7}"#),
    );
    assert!(got.contains("resource-spec") && got.contains('7'), "{got}");
    let got = place(
        &mut engine,
        aligned("d", "2", r#"{"numaTopologyPolicy":"Some"}"#),
    );
    assert!(
        got.contains("numa-topology-spec") && got.contains("Some"),
        "{got}"
    );
}

/// Zones that no machine has, zones listed twice and invalid amounts make nothing allocatable.
#[test]
fn invalid_zones_are_reported_and_skipped() {
    let single = json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"});
    let mut engine = cluster(TWO, &["n"], single);
    let change = TWO.topology("n", json!([]), json!({}));
    let mut object: NodeResourceTopology = change
        .new
        .downcast_ref::<NodeResourceTopology>()
        .unwrap()
        .clone();
    let zone = |name: &str, cpu: &str| {
        let amount = json!({"name": "cpu", "capacity": cpu, "allocatable": cpu, "available": cpu});
        serde_json::from_value(json!({"name": name, "type": "Node", "resources": [amount]}))
            .unwrap()
    };
    let zones = &mut object.spec.zones;
    for name in ["node-0", "node-64", "node-99999999999", "numa 1"] {
        zones.push(zone(name, "40"));
    }
    let mut twice: Zone = zone("node-1", "6");
    twice.resources.extend(zone("", "40").resources);
    zones[1].resources.retain(|resource| resource.name != "cpu");
    zones[1].resources.append(&mut twice.resources);
    zones.push(zone("node-2", "-3"));
    engine.take_outputs();
    engine.object_changed(
        &ObjectChange {
            action: Action::UPDATE,
            new: Arc::new(object),
            ..change
        },
        now(),
    );
    let outputs = engine.take_outputs().into_iter();
    let mut problems: Vec<String> = outputs
        .filter_map(|output| match output {
            Output::Problem(problem) => Some(problem.message),
            _ => None,
        })
        .collect();
    problems.sort();
    assert_eq!(
        problems,
        [
            r#"zone "node-0" is ignored: listed twice"#,
            r#"zone "node-1": cpu: the larger is ignored: listed twice"#,
            r#"zone "node-2": cpu.allocatable is ignored: -3 is below 0"#,
            r#"zone "node-64" is ignored: not node-0 to node-63"#,
            r#"zone "node-99999999999" is ignored: not node-0 to node-63"#,
            r#"zone "numa 1" is ignored: not node-0 to node-63"#,
        ]
    );
    let refused = place(&mut engine, pod("nine", "9", json!({})));
    assert!(refused.contains(" NUMA "), "{refused}");
    let eight = place(&mut engine, pod("eight", "8", json!({})));
    assert_eq!(eight, "n 0: cpu 8, memory 1Gi");
    let refused = place(&mut engine, pod("seven", "7", json!({})));
    assert!(refused.contains(" NUMA "), "{refused}");
    let six = place(&mut engine, pod("six", "6", json!({})));
    assert_eq!(six, "n 1: cpu 6, memory 1Gi");
}

#[test]
fn invalid_topology_is_reported_and_partly_used() {
    let mut engine = one(json!({}));
    engine.take_outputs();
    let broken = json!({
        "node.koordinator.sh/pod-cpu-allocs": "[",
        "node.koordinator.sh/reservation": r#"{"reservedCPUs":"3-1"}"#,
        "node.koordinator.sh/system-qos-resource": r#"{"cpuset":"0"}"#,
    });
    engine.object_changed(&TWO.topology("n", json!([]), broken), now());
    let problems: Vec<String> = engine
        .take_outputs()
        .into_iter()
        .filter_map(|output| match output {
            Output::Problem(problem) => Some(problem.message),
            _ => None,
        })
        .collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().any(|text| text.contains("pod-cpu-allocs")));
    assert!(problems.iter().any(|text| text.contains("3-1")));
    assert_eq!(table(&mut engine, "n")["availableCPUs"], "1-15");
    let detail = r#"{"detail":[{"id":0,"core":0,"socket":0,"node":70}]}"#;
    let impossible = json!({"node.koordinator.sh/cpu-topology": detail});
    engine.object_changed(&TWO.topology("n", json!([]), impossible), now());
    assert_eq!(
        place(&mut engine, lsr("a", "2", "")),
        "1 node(s) invalid CPU Topology"
    );
}

#[derive(Debug, Clone, Copy)]
enum NumaStep {
    Arrive { shape: u8, cpus: u8 },
    Confirm(u8),
    Leave(u8),
    Fail(u8),
    Policy { node: u8, policy: u8, bind: u8 },
    Report { node: u8, reserved: u8 },
}

fn step() -> impl proptest::strategy::Strategy<Value = NumaStep> {
    prop_oneof![
        6 => (0u8..7, 1u8..7).prop_map(|(shape, cpus)| NumaStep::Arrive { shape, cpus }),
        2 => any::<u8>().prop_map(NumaStep::Confirm),
        3 => any::<u8>().prop_map(NumaStep::Leave),
        1 => any::<u8>().prop_map(NumaStep::Fail),
        1 => (0u8..2, 0u8..4, 0u8..3)
            .prop_map(|(node, policy, bind)| NumaStep::Policy { node, policy, bind }),
        1 => (0u8..2, 0u8..3).prop_map(|(node, reserved)| NumaStep::Report { node, reserved }),
    ]
}

fn shaped(name: &str, shape: u8, cpus: u8) -> Pod {
    let cpu = cpus.to_string();
    match shape {
        0 => lsr(name, &cpu, ""),
        1 => lsr(name, &cpu, FULL),
        2 => lsr(name, &cpu, SPREAD),
        3 => lsr(name, &cpu, r#"{"preferredCPUExclusivePolicy":"PCPULevel"}"#),
        4 => aligned(name, &cpu, r#"{"numaTopologyPolicy":"SingleNUMANode"}"#),
        5 => aligned(name, &cpu, r#"{"numaTopologyPolicy":"Restricted"}"#),
        _ => pod(name, &cpu, json!({})),
    }
}

fn labels(policy: u8, bind: u8) -> Value {
    let mut labels = json!({});
    if policy > 0 {
        let name = ["BestEffort", "Restricted", "SingleNUMANode"][usize::from(policy) - 1];
        labels["node.koordinator.sh/numa-topology-policy"] = json!(name);
    }
    if bind > 0 {
        let name = ["FullPCPUsOnly", "SpreadByPCPUs"][usize::from(bind) - 1];
        labels["node.koordinator.sh/cpu-bind-policy"] = json!(name);
    }
    labels
}

/// Returns the CPUs that the plugin's inspection view lists per pod.
fn owners(table: &Value) -> BTreeMap<String, CpuSet> {
    let list = table["allocatedPods"].as_array().unwrap();
    let owner = |pod: &Value| {
        let cpus = pod["cpuset"].as_str().unwrap_or_default();
        (
            pod["uid"].as_str().unwrap().to_owned(),
            cpus.parse().unwrap(),
        )
    };
    list.iter().map(owner).collect()
}

/// Counts how often a run reached the cases it is meant to cover.
#[derive(Debug, Default)]
struct NumaCoverage {
    cpus: u32,
    cores: u32,
    threads: u32,
    zones: u32,
    with_reserved: u32,
    refused: u32,
    given_back: u32,
}

/// A pod's allocation, read from its annotation.
struct BoundPod {
    node: String,
    cpus: CpuSet,
    /// Amounts by NUMA node, in milli-CPUs.
    zones: BTreeMap<i32, i64>,
}

impl BoundPod {
    fn new(bind: &BindRequest) -> Self {
        let text = bind.patch.annotations.get(annotations::RESOURCE_STATUS);
        let status: ResourceStatus =
            text.map_or_else(Default::default, |text| serde_json::from_str(text).unwrap());
        let cpu = |zone: &koord_api::extension::NumaNodeResource| {
            let cpu = zone.resources.get("cpu");
            let cpu = cpu.map_or(0, |cpu| cpu.milli_value());
            (zone.node, cpu)
        };
        Self {
            node: bind.node.to_string(),
            cpus: status.cpuset.parse().unwrap(),
            zones: status.numa_node_resources.iter().map(cpu).collect(),
        }
    }

    /// Returns what the pod takes of each NUMA node, in milli-CPUs.
    fn zone_usage(&self) -> BTreeMap<i32, i64> {
        let mut zones = self.zones.clone();
        if zones.is_empty() {
            for cpu in self.cpus.iter() {
                *zones.entry(i32::try_from(cpu / 8).unwrap()).or_default() += 1000;
            }
        }
        zones
    }
}

/// Checks the rules of one decision that hold in any state: CPUs 2k and 2k+1 are a core, CPUs 0 to 7 a NUMA
/// node.
fn check_decision(
    shape: u8,
    cpus: u8,
    bound_pod: &BoundPod,
    [policy, bind]: [u8; 2],
    reserved: &CpuSet,
    reached: &mut NumaCoverage,
) -> Result<(), TestCaseError> {
    let count = usize::from(cpus);
    let has = &bound_pod.cpus;
    prop_assert!(has.is_disjoint(reserved), "{has} of {reserved} is reserved");
    prop_assert!(has.iter().all(|cpu| cpu < 16), "{has}");
    // A node's own policy binds every pod.
    let bound = shape < 4 || bind > 0;
    prop_assert_eq!(has.len(), if bound { count } else { 0 }, "shape {}", shape);
    reached.cpus += u32::from(bound);
    reached.with_reserved += u32::from(bound && !reserved.is_empty());
    let cores: BTreeSet<u32> = has.iter().map(|cpu| cpu / 2).collect();
    if shape == 1 || bind == 1 {
        prop_assert_eq!(cores.len() * 2, has.len(), "{} are not whole cores", has);
        reached.cores += 1;
    }
    if shape == 2 || bind == 2 {
        prop_assert_eq!(cores.len(), has.len(), "{} share a core", has);
        reached.threads += 1;
    }
    let own_policy = match shape {
        4 => 3,
        5 => 2,
        _ => 0,
    };
    let policy = if policy == 0 { own_policy } else { policy };
    if policy > 0 {
        let sum: i64 = bound_pod.zones.values().sum();
        prop_assert_eq!(sum, i64::from(cpus) * 1000, "{:?}", bound_pod.zones);
        reached.zones += 1;
        for (zone, milli) in &bound_pod.zones {
            let on_node = has
                .iter()
                .filter(|cpu| i32::try_from(cpu / 8).unwrap() == *zone);
            let on_node = i64::try_from(on_node.count()).unwrap() * 1000;
            prop_assert!(
                !bound || on_node == *milli,
                "{has} of {:?}",
                bound_pod.zones
            );
        }
    }
    if policy == 3 {
        // Restricted may use several NUMA nodes where one suffices, as upstream (Q7).
        let bound_pod = bound_pod.zones.values().filter(|milli| **milli > 0);
        prop_assert_eq!(bound_pod.count(), 1, "policy {}", policy);
    }
    Ok(())
}

fn run(steps: Vec<NumaStep>, reached: &mut NumaCoverage) -> Result<(), TestCaseError> {
    let names = ["n0", "n1"];
    let mut engines = [
        cluster(TWO, &names, json!({})),
        cluster(TWO, &names, json!({})),
    ];
    engines[1].set_caching(false);
    let empty: Vec<Value> = names
        .iter()
        .map(|name| table(&mut engines[0], name))
        .collect();
    let mut on_nodes: Vec<BindRequest> = Vec::new();
    let mut policies = [[0_u8; 2]; 2];
    let mut reports: [CpuSet; 2] = Default::default();
    for (number, step) in steps.into_iter().enumerate() {
        let pick = |n: u8| (!on_nodes.is_empty()).then(|| usize::from(n) % on_nodes.len());
        match step {
            NumaStep::Arrive { shape, cpus } => {
                let pod = shaped(&format!("p{number}"), shape, cpus);
                let [a, b] = &mut engines;
                let got = [try_bind(a, pod.clone()), try_bind(b, pod.clone())];
                let text = |r: &Result<BindRequest, String>| match r {
                    Ok(bind) => format!("{} {}", bind.node, status(bind)),
                    Err(message) => message.clone(),
                };
                prop_assert_eq!(text(&got[0]), text(&got[1]));
                if let Some(Ok(bind)) = got.into_iter().next() {
                    let bound_pod = BoundPod::new(&bind);
                    let index = usize::from(bound_pod.node == "n1");
                    check_decision(
                        shape,
                        cpus,
                        &bound_pod,
                        policies[index],
                        &reports[index],
                        reached,
                    )?;
                    on_nodes.push(bind);
                    zones_hold(&bound_pod, &on_nodes)?;
                } else {
                    reached.refused += 1;
                }
            }
            NumaStep::Confirm(n) => {
                if let Some(index) = pick(n) {
                    for engine in &mut engines {
                        engine.pod_applied(Arc::new(bound(&on_nodes[index])), now());
                    }
                }
            }
            NumaStep::Leave(n) => {
                if let Some(index) = pick(n) {
                    let deleted = bound(&on_nodes.swap_remove(index));
                    for engine in &mut engines {
                        engine.pod_deleted(&deleted, now());
                    }
                }
            }
            NumaStep::Fail(n) => {
                if let Some(index) = pick(n) {
                    let uid = on_nodes[index].pod.uid.clone();
                    let placed = engines[0].cluster().placement(&uid);
                    if placed.is_some_and(|(_, assumed)| assumed) {
                        let error = BindError {
                            message: String::new(),
                            gone: true,
                        };
                        for engine in &mut engines {
                            engine.bind_finished(&uid, Err(error.clone()), now());
                        }
                        on_nodes.swap_remove(index);
                        reached.given_back += 1;
                    }
                }
            }
            NumaStep::Policy { node, policy, bind } => {
                let index = usize::from(node);
                policies[index] = [policy, bind];
                let node = TWO.node(names[index], labels(policy, bind), json!({}), 16);
                for engine in &mut engines {
                    engine.node_applied(node.clone(), now());
                }
            }
            NumaStep::Report { node, reserved } => {
                let (index, list) = (usize::from(node), ["", "0-1", "15"][usize::from(reserved)]);
                reports[index] = list.parse().unwrap();
                let text = json!({"reservedCPUs": list}).to_string();
                let annotations = json!({"node.koordinator.sh/reservation": text});
                let report = TWO.topology(names[index], json!([]), annotations);
                for engine in &mut engines {
                    engine.object_changed(&report, now());
                }
            }
        }
        for name in names {
            let mut used = CpuSet::new();
            let mut expected = BTreeMap::new();
            for bind in on_nodes.iter().filter(|bind| *bind.node == *name) {
                let bound_pod = BoundPod::new(bind);
                let (uid, cpus) = (bind.pod.uid.to_string(), bound_pod.cpus);
                prop_assert!(cpus.is_disjoint(&used), "{uid} shares {cpus} on {name}");
                used.add(&cpus);
                if !bound_pod.zones.is_empty() || !cpus.is_empty() {
                    expected.insert(uid, cpus);
                }
            }
            prop_assert_eq!(owners(&table(&mut engines[0], name)), expected, "{}", name);
        }
    }
    prop_assert_eq!(
        (
            engines[0].classes().mismatches(),
            engines[1].classes().mismatches()
        ),
        (0, 0)
    );
    let [engine, _] = &mut engines;
    for bind in &on_nodes {
        engine.pod_deleted(&bound(bind), now());
    }
    for (name, empty) in names.iter().zip(&empty) {
        engine.node_applied(TWO.node(name, json!({}), json!({}), 16), now());
        engine.object_changed(&TWO.topology(name, json!([]), json!({})), now());
        prop_assert_eq!(&table(engine, name), empty);
    }
    Ok(())
}

/// Checks that a NUMA share that is allocated was free. Pods that are only bound to CPUs take them on any
/// NUMA node, as upstream.
fn zones_hold(bound_pod: &BoundPod, on_nodes: &[BindRequest]) -> Result<(), TestCaseError> {
    let mut used: BTreeMap<i32, i64> = BTreeMap::new();
    let all = on_nodes.iter().map(BoundPod::new);
    for other in all.filter(|other| other.node == bound_pod.node) {
        for (zone, milli) in other.zone_usage() {
            *used.entry(zone).or_default() += milli;
        }
    }
    for (zone, _) in bound_pod.zones.iter().filter(|(_, milli)| **milli > 0) {
        prop_assert!(used[zone] <= 8000, "{used:?} on {}", bound_pod.node);
    }
    Ok(())
}

/// Random events, checked by the pods' annotations: no CPU has two owners or is reserved by the node, no NUMA
/// node is allocated twice, every pod has what it requested in the way it requested it, and in the end
/// nothing is allocated. Shared and exhaustive evaluation agree throughout.
#[test]
fn allocations_stay_consistent() {
    let config = ProptestConfig {
        cases: 48,
        ..ProptestConfig::default()
    };
    let reached = std::cell::RefCell::new(NumaCoverage::default());
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let steps = prop::collection::vec(step(), 1..60);
    if let Err(error) = runner.run(&steps, |steps| run(steps, &mut reached.borrow_mut())) {
        panic!("{error}");
    }
    let reached = reached.into_inner();
    let counts = [
        reached.cpus,
        reached.cores,
        reached.threads,
        reached.zones,
        reached.with_reserved,
        reached.refused,
        reached.given_back,
    ];
    assert!(counts.iter().all(|count| *count >= 5), "{reached:?}");
}

/// Upstream keeps CPUs in a map, so that the last entry counts; the same happens here, and the duplicate is
/// reported.
#[test]
fn cpu_that_is_listed_twice_is_reported_once() {
    let mut engine = one(json!({}));
    engine.take_outputs();
    let mut detail = TWO.detail();
    let mut repeated = detail[3].clone();
    repeated["core"] = json!(9);
    for cpu in [repeated, TWO.detail()[3].clone()] {
        detail.as_array_mut().unwrap().push(cpu);
    }
    let twice = json!({"node.koordinator.sh/cpu-topology": json!({"detail": detail}).to_string()});
    let mut messages = Vec::new();
    for policies in [json!([]), json!(["BestEffort"])] {
        engine.object_changed(&TWO.topology("n", policies, twice.clone()), now());
        messages.extend(
            engine
                .take_outputs()
                .into_iter()
                .filter_map(|output| match output {
                    Output::Problem(problem) => Some(format!(
                        "{} {}: {}",
                        problem.kind, problem.name, problem.message
                    )),
                    _ => None,
                }),
        );
    }
    let problems = "NodeResourceTopology n: invalid value \"3\" for detail of annotation \
                node.koordinator.sh/cpu-topology: expected each CPU once; the last entry of a CPU counts";
    assert_eq!(messages, [problems]);
    // The topology still has sixteen usable CPUs.
    let placement = place(&mut engine, lsr("all", "16", FULL));
    assert!(placement.starts_with("n 0-15"), "{placement}");
}
