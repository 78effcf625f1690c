//! Pods aligned to NUMA nodes.

use super::*;

const SINGLE: &str = r#"{"numaTopologyPolicy":"SingleNUMANode"}"#;
const RESTRICTED: &str = r#"{"numaTopologyPolicy":"Restricted"}"#;
const BEST: &str = r#"{"numaTopologyPolicy":"BestEffort"}"#;

fn policy(name: &str) -> Value {
    json!({"node.koordinator.sh/numa-topology-policy": name})
}

#[test]
fn single_numa_node_provides_cpu_and_memory() {
    let mut engine = one(policy("SingleNUMANode"));
    let memory = |name: &str, cpu: &str, memory: &str| {
        let requests = json!({"cpu": cpu, "memory": memory});
        let containers = json!([{"name": "c", "resources": {"requests": requests}}]);
        pod(name, "1", json!({"spec": {"containers": containers}}))
    };
    assert_eq!(
        place(&mut engine, memory("a", "2", "24Gi")),
        "n 0: cpu 2, memory 24Gi"
    );
    assert_eq!(
        place(&mut engine, memory("b", "6500m", "4Gi")),
        "n 1: cpu 6500m, memory 4Gi"
    );
    // CPU is free on 0, memory on 1.
    assert_eq!(
        place(&mut engine, memory("c", "4", "16Gi")),
        "1 Unaligned NUMA Hint cause cpu prefer [11] among [11],memory prefer [11] among [11]"
    );
    assert_eq!(
        place(&mut engine, memory("d", "4", "8Gi")),
        "n 0: cpu 4, memory 8Gi"
    );
}

#[test]
fn reference_example_of_topology_aware_scheduling() {
    // Node a: 10 CPUs per NUMA node; node b: 20.
    let (small, large) = (CpuLayout([2, 1, 5, 2]), CpuLayout([2, 1, 10, 2]));
    let run = |policy_name: &str, nodes: &[&str]| {
        let mut engine = engine(json!({}));
        for (name, machine) in [("a", small), ("b", large)] {
            if nodes.contains(&name) {
                let node = machine.node(name, policy(policy_name), json!({}), machine.cpus());
                engine.node_applied(node, now());
                engine.object_changed(&machine.topology(name, json!([]), json!({})), now());
            }
        }
        place(&mut engine, pod("p", "20", json!({})))
    };
    let cause =
        "1 Unaligned NUMA Hint cause cpu prefer [11] among [11],memory prefer [11] among [11]";
    let split = "a 0: cpu 10, memory 512Mi | 1: cpu 10, memory 512Mi";
    assert_eq!(run("SingleNUMANode", &["a"]), cause);
    assert_eq!(
        run("SingleNUMANode", &["a", "b"]),
        "b 0: cpu 20, memory 1Gi"
    );
    assert_eq!(run("Restricted", &["a"]), split);
    assert_eq!(run("BestEffort", &["a"]), split);
}

#[test]
fn excessive_numa_amounts_serve_pods_together() {
    for policy_name in ["Restricted", "BestEffort"] {
        let mut engine = engine(json!({}));
        let node = TWO.node("n", policy(policy_name), json!({}), TWO.cpus());
        engine.node_applied(node, now());
        let change = TWO.topology("n", json!([]), json!({}));
        let mut object = (*change.new.downcast::<NodeResourceTopology>().unwrap()).clone();
        for zone in &mut object.spec.zones {
            for resource in zone.resources.iter_mut().filter(|r| r.name == "memory") {
                resource.allocatable = "8Ei".parse().unwrap();
            }
        }
        let change = ObjectChange {
            new: Arc::new(object),
            ..change
        };
        engine.object_changed(&change, now());
        // More CPUs than one of them has.
        let placement = place(&mut engine, pod("p", "12", json!({})));
        let expected = "n 0: cpu 6, memory 512Mi | 1: cpu 6, memory 512Mi";
        assert_eq!(placement, expected, "{policy_name}");
    }
}

#[test]
fn bound_cpus_come_from_the_agreed_numa_nodes() {
    let mut engine = one(policy("SingleNUMANode"));
    assert_eq!(
        place(&mut engine, lsr("a", "6", FULL)),
        "n 0-5 | 0: cpu 6, memory 1Gi"
    );
    assert_eq!(
        place(&mut engine, lsr("b", "4", FULL)),
        "n 8-11 | 1: cpu 4, memory 1Gi"
    );
    assert_eq!(
        place(&mut engine, lsr("c", "3", SPREAD)),
        "1 Unaligned NUMA Hint cause cpu prefer [11] among [11],memory prefer [11] among [11]"
    );
    assert_eq!(
        place(&mut engine, lsr("d", "2", SPREAD)),
        "n 12,14 | 1: cpu 2, memory 1Gi"
    );
    // The CPU of a shared pod counts in addition to theirs.
    let shared = pod("e", "3", json!({}));
    assert_eq!(
        place(&mut engine, shared),
        "1 Unaligned NUMA Hint cause cpu prefer [11] among [11],memory prefer [11] among [11]"
    );
    let mut engine = one(policy("Restricted"));
    assert_eq!(
        place(&mut engine, lsr("x", "2", FULL)),
        "n 0-1 | 0: cpu 2, memory 1Gi"
    );
    assert_eq!(
        place(&mut engine, lsr("y", "12", FULL)),
        "n 2-13 | 0: cpu 6, memory 512Mi | 1: cpu 6, memory 512Mi"
    );
    let mut engine = one(policy("Restricted"));
    assert_eq!(
        place(&mut engine, lsr("z", "10", FULL)),
        "n 0-3,8-13 | 0: cpu 4, memory 512Mi | 1: cpu 6, memory 512Mi"
    );
}

#[test]
fn pods_and_nodes_must_not_disagree() {
    let mut engine = one(policy("Restricted"));
    assert_eq!(
        place(&mut engine, aligned("a", "1", SINGLE)),
        "1 node(s) NUMA Topology policy not match"
    );
    assert_eq!(
        place(&mut engine, aligned("b", "1", RESTRICTED)),
        "n 0: cpu 1, memory 1Gi"
    );
    let mut engine = one(json!({}));
    assert_eq!(
        place(&mut engine, aligned("a", "2", SINGLE)),
        "n 0: cpu 2, memory 1Gi"
    );
    assert_eq!(
        place(&mut engine, aligned("b", "14", BEST)),
        "n 0: cpu 6, memory 512Mi | 1: cpu 8, memory 512Mi"
    );
    // The kubelet's policy counts where the node has no label.
    for (name, expected) in [
        ("Restricted", "n 0: cpu 1, memory 1Gi"),
        ("SingleNUMANodePodLevel", "n 0: cpu 1, memory 1Gi"),
        ("SingleNUMANodeContainerLevel", "n -"),
        ("None", "n -"),
    ] {
        let mut engine = one(json!({}));
        engine.object_changed(&TWO.topology("n", json!(["x", name]), json!({})), now());
        assert_eq!(
            place(&mut engine, pod("p", "1", json!({}))),
            expected,
            "{name}"
        );
    }
}

/// Tests all kubelet policies that koordlet writes; by default only three names count, as upstream.
#[test]
fn gate_enables_all_kubelet_policies() {
    let machine = |gate: bool, name: &str| {
        let gates = [("FullNRTPolicyMapping".to_owned(), gate)].into();
        let context = BuildContext::with_gates(gates);
        let mut engine = build_engine_with(json!({}), &[], crate::registry(), &context);
        engine.node_applied(TWO.node("n", json!({}), json!({}), 16), now());
        engine.object_changed(&TWO.topology("n", json!([name]), json!({})), now());
        engine
    };
    let within = "n 0: cpu 1, memory 1Gi";
    for (name, always, across) in [
        ("SingleNUMANodeContainerLevel", false, false),
        ("SingleNUMANodePodLevel", true, false),
        ("RestrictedContainerLevel", false, true),
        ("RestrictedPodLevel", false, true),
        ("Restricted", true, true),
        ("BestEffortContainerLevel", false, true),
        ("BestEffortPodLevel", false, true),
        ("BestEffort", true, true),
    ] {
        let small = |gate| place(&mut machine(gate, name), pod("p", "1", json!({})));
        assert_eq!(small(true), within, "{name}");
        let expected = if always { within } else { "n -" };
        assert_eq!(small(false), expected, "{name}");
        // More than one NUMA node has.
        let large = place(&mut machine(true, name), pod("p", "14", json!({})));
        let split = large.starts_with("n 0: cpu ") && large.contains(" | 1: cpu ");
        assert_eq!(split, across, "{name}: {large}");
    }
    let none = place(&mut machine(true, "None"), pod("p", "1", json!({})));
    assert_eq!(none, "n -");
}

#[test]
fn pods_within_a_numa_node_and_pods_across_keep_apart() {
    let with_spec = |name: &str, cpu: &str, spec: &str| {
        let mut pod = lsr(name, cpu, "");
        let all = pod.metadata.annotations.get_or_insert_default();
        all.insert(annotations::NUMA_TOPOLOGY_SPEC.to_owned(), spec.to_owned());
        pod
    };
    let mut engine = one(json!({}));
    assert_eq!(
        place(&mut engine, with_spec("a", "2", SINGLE)),
        "n 0-1 | 0: cpu 2, memory 1Gi"
    );
    // A pod across both NUMA nodes is rejected by default if one of them has an exclusive pod.
    let apart =
        "1 Unaligned NUMA Hint cause cpu prefer [11] among [11] & memory prefer [11] among [11]";
    assert_eq!(place(&mut engine, with_spec("b", "10", RESTRICTED)), apart);
    let preferred = r#"{"numaTopologyPolicy":"Restricted","singleNUMANodeExclusive":"Preferred"}"#;
    let split = "n 2-5,8-13 | 0: cpu 4, memory 512Mi | 1: cpu 6, memory 512Mi";
    let got = place(&mut engine, with_spec("c", "10", preferred));
    assert!(got == split || got.starts_with("n 2-6,8-12"), "{got}");
    // Both NUMA nodes are shared now.
    let shared = "1 Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10 11],memory prefer [01 10] among [01 10 11]";
    assert_eq!(place(&mut engine, with_spec("d", "1", SINGLE)), shared);
}

#[test]
fn scoring_strategy_selects_numa_node() {
    let run = |kind: &str| {
        let strategy = json!({"type": kind});
        let args = json!({"scoringStrategy": strategy, "numaScoringStrategy": strategy});
        let mut engine = engine(args);
        engine.node_applied(
            TWO.node("n", policy("SingleNUMANode"), json!({}), 16),
            now(),
        );
        engine.object_changed(&TWO.topology("n", json!([]), json!({})), now());
        place(&mut engine, pod("a", "1", json!({})));
        place(&mut engine, pod("b", "1", json!({})))
    };
    assert_eq!(run("LeastAllocated"), "n 1: cpu 1, memory 1Gi");
    assert_eq!(run("MostAllocated"), "n 0: cpu 1, memory 1Gi");
}

#[test]
fn nodes_are_scored_by_the_numa_nodes_that_would_be_used() {
    let run = |kind: &str, labels: Value| {
        let strategy = json!({"type": kind});
        let mut engine =
            engine(json!({"scoringStrategy": strategy, "numaScoringStrategy": strategy}));
        for name in ["x", "y"] {
            engine.node_applied(TWO.node(name, labels.clone(), json!({}), 16), now());
            engine.object_changed(&TWO.topology(name, json!([]), json!({})), now());
        }
        let first = place(&mut engine, pod("a", "4", json!({})));
        let second = place(&mut engine, pod("b", "4", json!({})));
        (first.split(' ').next() == second.split(' ').next(), second)
    };
    for labels in [json!({}), policy("SingleNUMANode"), policy("BestEffort")] {
        assert!(run("MostAllocated", labels.clone()).0, "{labels}");
    }
    assert!(!run("LeastAllocated", json!({})).0);
    assert!(!run("LeastAllocated", policy("BestEffort")).0);
}

#[test]
fn single_numa_node_machine_rejects_no_pod() {
    let mut engine = cluster(CpuLayout([1, 1, 4, 2]), &["n"], policy("SingleNUMANode"));
    assert_eq!(place(&mut engine, lsr("a", "2", FULL)), "n 0-1");
    assert_eq!(place(&mut engine, pod("b", "2", json!({}))), "n ");
}

#[test]
fn numa_nodes_are_amplified_with_the_node() {
    let mut engine = engine(json!({}));
    let ratio = json!({"node.koordinator.sh/resource-amplification-ratio": r#"{"cpu":1.5}"#});
    engine.node_applied(TWO.node("n", policy("SingleNUMANode"), ratio, 24), now());
    engine.object_changed(&TWO.topology("n", json!([]), json!({})), now());
    assert_eq!(
        place(&mut engine, pod("a", "9", json!({}))),
        "n 0: cpu 9, memory 1Gi"
    );
    // 3 of 12 are left on 0: room for two bound CPUs.
    assert_eq!(
        place(&mut engine, lsr("b", "2", "")),
        "n 8-9 | 1: cpu 2, memory 1Gi"
    );
    assert_eq!(
        place(&mut engine, lsr("c", "6", "")),
        "n 10-15 | 1: cpu 6, memory 1Gi"
    );
    assert_eq!(
        place(&mut engine, lsr("d", "4", "")),
        "1 Insufficient amplified cpu"
    );
    assert_eq!(
        place(&mut engine, lsr("e", "2", "")),
        "n 0-1 | 0: cpu 2, memory 1Gi"
    );
    assert_eq!(
        table(&mut engine, "n")["remainingNUMANodeResources"][0]["resources"]["cpu"],
        "0"
    );
}

/// Checks that a topology update wakes only pods that request what changed, since koordlet and the manager
/// update the object often.
#[test]
fn topology_update_wakes_affected_pods() {
    let labels = json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"});
    let mut engine = one(labels);
    assert!(try_bind(&mut engine, pod("a", "12", json!({}))).is_err());
    let mut second = 0;
    let mut decided = |engine: &mut Engine,
                       notes: Value,
                       edit: &dyn Fn(&mut NodeResourceTopology)| {
        let change = TWO.topology("n", json!([]), notes);
        let mut object = change.new_as::<NodeResourceTopology>().unwrap().clone();
        edit(&mut object);
        let change = ObjectChange {
            action: Action::UPDATE,
            new: Arc::new(object),
            ..change
        };
        second += 20;
        let time = |offset: i64| Timestamp::from_second(1_700_000_000 + second + offset).unwrap();
        engine.object_changed(&change, time(0));
        engine.take_outputs();
        engine.schedule_one(time(15)).is_some()
    };
    let pools = json!({"node.koordinator.sh/cpu-shared-pools": "[]"});
    assert!(!decided(&mut engine, pools, &|_| {}), "shared pools");
    let batch = |object: &mut NodeResourceTopology| {
        let mut extended = object.spec.zones[0].resources[0].clone();
        extended.name = "kubernetes.io/batch-cpu".to_owned();
        object.spec.zones[0].resources.push(extended);
    };
    assert!(!decided(&mut engine, json!({}), &batch), "batch resources");
    let available = |object: &mut NodeResourceTopology| {
        batch(object);
        object.spec.zones[0].resources[0].available = "1".parse().unwrap();
    };
    assert!(
        !decided(&mut engine, json!({}), &available),
        "what is available"
    );
    let cpu = |object: &mut NodeResourceTopology| {
        object.spec.zones[0].resources[0].allocatable = "7".parse().unwrap();
    };
    assert!(decided(&mut engine, json!({}), &cpu), "CPUs");
    let reserved = json!({"node.koordinator.sh/reservation": r#"{"reservedCPUs":"15"}"#});
    assert!(decided(&mut engine, reserved, &cpu), "reserved CPUs");
}

#[test]
fn shortfall_per_numa_node_is_reported() {
    let shortfall = |policy_name: &str, cpu: &str, memory: &str| {
        let mut engine = one(policy(policy_name));
        let change = json!({"spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}});
        let pod = PodInfo::new(
            Arc::new(pod("a", cpu, change)),
            engine.cluster().resources(),
        )
        .unwrap();
        let shortfall = engine.inspector().nearest(&Arc::new(pod), 1, now());
        shortfall
            .first()
            .map(|shortfall| shortfall.lacks.clone())
            .unwrap_or_default()
    };
    assert_eq!(
        shortfall("SingleNUMANode", "12", "1Gi"),
        "cpu in one NUMA node: needs 12, free 8 in node-0 and 8 in node-1"
    );
    assert_eq!(
        shortfall("SingleNUMANode", "1", "40Gi"),
        "memory in one NUMA node: needs 40Gi, free 32Gi in node-0 and 32Gi in node-1"
    );
    assert_eq!(shortfall("Restricted", "12", "1Gi"), "");
    assert_eq!(shortfall("SingleNUMANode", "8", "1Gi"), "");
}
