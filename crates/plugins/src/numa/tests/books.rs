//! What is booked: restarts, malformed annotations, and everything at random.

use super::*;
use koord_model::cpuset::CpuSet;
use proptest::prelude::*;

fn with_status(name: &str, status: &str) -> Pod {
    let annotations = json!({"scheduling.koordinator.sh/resource-status": status});
    let change = json!({"metadata": {"annotations": annotations}, "spec": {"nodeName": "n"}});
    pod(name, "2", change)
}

#[test]
fn a_restart_finds_everything_in_the_annotations() {
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
    let expected = table(&before, "n");
    for bind in &binds {
        before.pod_applied(Arc::new(bound(bind)), now());
    }
    assert_eq!(
        table(&before, "n"),
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
    assert_eq!(table(&after, "n"), expected);
    let mut again = engine(json!({}));
    again.object_changed(&topology, now());
    again.node_applied(node, now());
    for bind in binds.iter().rev() {
        again.pod_applied(Arc::new(bound(bind)), now());
    }
    assert_eq!(table(&again, "n"), expected);
    assert_eq!(
        place(&mut after, lsr("d", "4", FULL)),
        place(&mut again, lsr("d", "4", FULL))
    );
}

#[test]
fn a_failed_binding_gives_back_what_it_took() {
    let mut engine = one(json!({}));
    let empty = table(&engine, "n");
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
    assert_eq!(table(&engine, "n"), empty);
    let bind = try_bind(&mut engine, lsr("b", "4", FULL)).unwrap();
    let pod = bound(&bind);
    engine.pod_applied(Arc::new(pod.clone()), now());
    engine.pod_deleted(&pod, now());
    assert_eq!(table(&engine, "n"), empty);
}

#[test]
fn what_a_failed_binding_left_on_the_pod_does_not_follow_it() {
    let policy = json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"});
    let bind = try_bind(&mut one(policy), pod("a", "3", json!({}))).unwrap();
    // The patch arrived, the binding did not.
    let mut pod = bound(&bind);
    pod.spec.as_mut().unwrap().node_name = None;
    let plain = json!({"metadata": {"name": "plain", "uid": "plain"},
        "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}}});
    let mut engine = engine(json!({}));
    engine.node_applied(Arc::new(serde_json::from_value(plain).unwrap()), now());
    let bind = try_bind(&mut engine, pod).unwrap();
    assert_eq!(bind.patch.annotations[annotations::RESOURCE_STATUS], "{}");
    // Said once.
    let again = try_bind(&mut engine, {
        let mut pod = bound(&bind);
        pod.metadata.uid = Some("again".to_owned());
        pod.spec.as_mut().unwrap().node_name = None;
        pod
    });
    assert!(again.unwrap().patch.is_empty());
}

#[test]
fn malformed_annotations_are_reported_and_free_nothing() {
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
        assert_eq!(table(&engine, "n")["availableCPUs"], "4-15", "{status}");
    }
    // Two pods that claim the same CPUs: one leaves, the other keeps them.
    let twin = with_status("twin", r#"{"cpuset":"2-5"}"#);
    engine.pod_applied(Arc::new(twin.clone()), now());
    engine.pod_deleted(&twin, now());
    assert_eq!(table(&engine, "n")["availableCPUs"], "4-15");
    // A pod that cannot be understood is refused, by name of what is wrong.
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

#[test]
fn malformed_topologies_are_reported_and_taken_as_far_as_they_go() {
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
    assert_eq!(table(&engine, "n")["availableCPUs"], "1-15");
    let detail = r#"{"detail":[{"id":0,"core":0,"socket":0,"node":70}]}"#;
    let impossible = json!({"node.koordinator.sh/cpu-topology": detail});
    engine.object_changed(&TWO.topology("n", json!([]), impossible), now());
    assert_eq!(
        place(&mut engine, lsr("a", "2", "")),
        "1 node(s) invalid CPU Topology"
    );
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Arrive { shape: u8, cpus: u8 },
    Confirm(u8),
    Leave(u8),
    Fail(u8),
    Policy { node: u8, policy: u8, bind: u8 },
    Report { node: u8, reserved: u8 },
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..7, 1u8..7).prop_map(|(shape, cpus)| Step::Arrive { shape, cpus }),
        2 => any::<u8>().prop_map(Step::Confirm),
        3 => any::<u8>().prop_map(Step::Leave),
        1 => any::<u8>().prop_map(Step::Fail),
        1 => (0u8..2, 0u8..4, 0u8..3)
            .prop_map(|(node, policy, bind)| Step::Policy { node, policy, bind }),
        1 => (0u8..2, 0u8..3).prop_map(|(node, reserved)| Step::Report { node, reserved }),
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

type Owner = (String, CpuSet, Vec<(u64, i64)>);

/// The pods of a node with their CPUs and what they have of each NUMA node, in milli-cores.
fn owners(table: &Value) -> Vec<Owner> {
    let list = table["allocatedPods"].as_array().unwrap();
    let owner = |pod: &Value| {
        let cpus: CpuSet = pod["cpuset"].as_str().unwrap_or_default().parse().unwrap();
        let zones = pod["numaNodeResources"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|zone| {
                let cpu: Quantity = zone["resources"]["cpu"]
                    .as_str()
                    .unwrap_or("0")
                    .parse()
                    .unwrap();
                (zone["node"].as_u64().unwrap(), cpu.milli_value())
            });
        (
            pod["uid"].as_str().unwrap().to_owned(),
            cpus,
            zones.collect(),
        )
    };
    list.iter().map(owner).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever comes and goes: no CPU has two owners, no NUMA node gives more than it has, and in
    /// the end nothing is held. Shared and exhaustive evaluation agree all the while.
    #[test]
    fn books_stay_true(steps in prop::collection::vec(step(), 1..60)) {
        let names = ["n0", "n1"];
        let mut engines = [
            cluster(TWO, &names, json!({})),
            cluster(TWO, &names, json!({})),
        ];
        engines[1].set_caching(false);
        let empty: Vec<Value> = names.iter().map(|name| table(&engines[0], name)).collect();
        let mut on_nodes: Vec<BindRequest> = Vec::new();
        let mut pending: Vec<Pod> = Vec::new();
        let mut reports = [0u8; 2];
        for (number, step) in steps.into_iter().enumerate() {
            let pick = |n: u8| (!on_nodes.is_empty()).then(|| usize::from(n) % on_nodes.len());
            match step {
                Step::Arrive { shape, cpus } => {
                    let pod = shaped(&format!("p{number}"), shape, cpus);
                    let [a, b] = &mut engines;
                    let got = [try_bind(a, pod.clone()), try_bind(b, pod.clone())];
                    let text = |r: &Result<BindRequest, String>| match r {
                        Ok(bind) => format!("{} {}", bind.node, status(bind)),
                        Err(message) => message.clone(),
                    };
                    prop_assert_eq!(text(&got[0]), text(&got[1]));
                    match got.into_iter().next() {
                        Some(Ok(bind)) => on_nodes.push(bind),
                        _ => pending.push(pod),
                    }
                }
                Step::Confirm(n) => if let Some(at) = pick(n) {
                    for engine in &mut engines {
                        engine.pod_applied(Arc::new(bound(&on_nodes[at])), now());
                    }
                },
                Step::Leave(n) => if let Some(at) = pick(n) {
                    let gone = bound(&on_nodes.swap_remove(at));
                    for engine in &mut engines {
                        engine.pod_deleted(&gone, now());
                    }
                },
                Step::Fail(n) => if let Some(at) = pick(n) {
                    let uid = on_nodes[at].pod.uid.clone();
                    if engines[0].placement(&uid).is_some_and(|(_, assumed)| assumed) {
                        let error = BindError { message: String::new(), gone: true };
                        for engine in &mut engines {
                            engine.bind_finished(&uid, Err(error.clone()), now());
                        }
                        on_nodes.swap_remove(at);
                    }
                },
                Step::Policy { node, policy, bind } => {
                    let node = TWO.node(names[usize::from(node)], labels(policy, bind), json!({}), 16);
                    for engine in &mut engines {
                        engine.node_applied(node.clone(), now());
                    }
                }
                Step::Report { node, reserved } => {
                    let list = ["", "0-1", "15"][usize::from(reserved)];
                    reports[usize::from(node)] = reserved;
                    let text = json!({"reservedCPUs": list}).to_string();
                    let annotations = json!({"node.koordinator.sh/reservation": text});
                    let report = TWO.topology(names[usize::from(node)], json!([]), annotations);
                    for engine in &mut engines {
                        engine.object_changed(&report, now());
                    }
                }
            }
            for name in names {
                let table = table(&engines[0], name);
                let mut seen = CpuSet::new();
                let mut zones = [0i64; 2];
                for (uid, cpus, parts) in owners(&table) {
                    prop_assert!(cpus.is_disjoint(&seen), "{uid} shares {cpus} on {name}");
                    seen.add(&cpus);
                    for (zone, cpu) in parts {
                        zones[usize::try_from(zone).unwrap()] += cpu;
                    }
                }
                prop_assert!(zones.iter().all(|cpu| *cpu <= 8000), "{name}: {zones:?}");
            }
        }
        prop_assert_eq!((engines[0].mismatches(), engines[1].mismatches()), (0, 0));
        let [engine, _] = &mut engines;
        for bind in &on_nodes {
            engine.pod_deleted(&bound(bind), now());
        }
        for (name, empty) in names.iter().zip(&empty) {
            engine.node_applied(TWO.node(name, json!({}), json!({}), 16), now());
            engine.object_changed(&TWO.topology(name, json!([]), json!({})), now());
            prop_assert_eq!(&table(engine, name), empty);
        }
    }
}
