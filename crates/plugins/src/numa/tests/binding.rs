//! Pods bound to CPUs.

use super::*;

#[test]
fn bind_policy_selects_whole_cores_or_threads() {
    let mut engine = one(json!({}));
    assert_eq!(place(&mut engine, lsr("a", "4", FULL)), "n 0-3");
    assert_eq!(place(&mut engine, lsr("b", "4", SPREAD)), "n 8,10,12,14");
    let preferred = r#"{"preferredCPUBindPolicy":"SpreadByPCPUs"}"#;
    assert_eq!(place(&mut engine, lsr("c", "2", preferred)), "n 4,6");
    // Without a requested policy the arguments' policy applies: whole cores where possible.
    assert_eq!(place(&mut engine, lsr("d", "2", "")), "n 9,11");
    assert_eq!(
        place(&mut engine, lsr("e", "2", FULL)),
        "1 not enough cpus available to satisfy request"
    );
    let shares = pod("f", "2", json!({}));
    assert_eq!(place(&mut engine, shares), "n -", "shares what is left");
}

#[test]
fn reserved_and_kubelet_cpus_are_not_allocated() {
    let mut engine = engine(json!({}));
    engine.node_applied(TWO.node("n", json!({}), json!({}), 16), now());
    let policy = r#"{"policy":"static","reservedCPUs":"0-1"}"#;
    let allocs = json!([
        {"namespace": "ns", "name": "k", "uid": "k", "cpuset": "2-5", "managedByKubelet": true},
        {"namespace": "ns", "name": "o", "uid": "o", "cpuset": "8-9"}
    ]);
    let annotations = json!({
        "kubelet.koordinator.sh/cpu-manager-policy": policy,
        "node.koordinator.sh/pod-cpu-allocs": allocs.to_string(),
        "node.koordinator.sh/reservation": r#"{"reservedCPUs":"14"}"#,
        "node.koordinator.sh/system-qos-resource": r#"{"cpuset":"15"}"#,
    });
    engine.object_changed(&TWO.topology("n", json!([]), annotations), now());
    assert_eq!(table(&mut engine, "n")["availableCPUs"], "6-13");
    let zones = &table(&mut engine, "n")["numaNodeResources"];
    assert_eq!(
        (&zones[0]["resources"]["cpu"], &zones[1]["resources"]["cpu"]),
        (&json!("2"), &json!("6"))
    );
    assert_eq!(place(&mut engine, lsr("a", "8", "")), "n 6-13");
    assert_eq!(
        place(&mut engine, lsr("b", "2", "")),
        "1 not enough cpus available to satisfy request"
    );
}

#[test]
fn exclusive_pods_keep_apart() {
    let mut engine = one(json!({"node.koordinator.sh/numa-allocate-strategy": "MostAllocated"}));
    let core =
        r#"{"preferredCPUBindPolicy":"SpreadByPCPUs","preferredCPUExclusivePolicy":"PCPULevel"}"#;
    assert_eq!(place(&mut engine, lsr("a", "2", core)), "n 0,2");
    assert_eq!(place(&mut engine, lsr("b", "2", core)), "n 4,6");
    assert_eq!(place(&mut engine, lsr("c", "2", core)), "n 8,10");
    let plain = r#"{"preferredCPUBindPolicy":"SpreadByPCPUs"}"#;
    assert_eq!(place(&mut engine, lsr("d", "2", plain)), "n 1,3");

    let mut engine = one(json!({"node.koordinator.sh/numa-allocate-strategy": "MostAllocated"}));
    let node = r#"{"preferredCPUExclusivePolicy":"NUMANodeLevel"}"#;
    assert_eq!(place(&mut engine, lsr("a", "2", node)), "n 0-1");
    assert_eq!(place(&mut engine, lsr("b", "2", node)), "n 8-9");
    // A preference: the pods share if there is no other way.
    assert_eq!(place(&mut engine, lsr("c", "2", node)), "n 2-3");
}

#[test]
fn node_policy_binds_every_pod() {
    let full = || json!({"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"});
    let spread = || json!({"node.koordinator.sh/cpu-bind-policy": "SpreadByPCPUs"});
    let cpu_request = r#"{"preferredCPUBindPolicy":"SpreadByPCPUs"}"#;
    let odd = "1 node(s) requested cpus not multiple cpus per core";
    let conflict = "1 node(s) cpu bind policy conflicts with pod's required cpu bind policy";
    for (name, labels, pod, expected) in [
        ("a shared pod", full(), pod("p", "4", json!({})), "n 0-3"),
        ("odd", full(), pod("p", "5", json!({})), odd),
        (
            "not whole",
            full(),
            pod("p", "5200m", json!({})),
            "1 the requested CPUs must be integer",
        ),
        (
            "a wish gives way",
            full(),
            lsr("p", "4", cpu_request),
            "n 0-3",
        ),
        ("a demand does not", full(), lsr("p", "4", SPREAD), conflict),
        ("nor this way", spread(), lsr("p", "4", FULL), conflict),
        ("agreed", full(), lsr("p", "4", FULL), "n 0-3"),
        ("spread", spread(), pod("p", "2", json!({})), "n 0,2"),
        (
            "too many to spread",
            spread(),
            pod("p", "9", json!({})),
            "1 not enough cpus available to satisfy request",
        ),
        ("odd by its own demand", json!({}), lsr("p", "5", FULL), odd),
    ] {
        assert_eq!(place(&mut one(labels), pod), expected, "{name}");
    }
    let static_full = r#"{"policy":"static","options":{"full-pcpus-only":"true"}}"#;
    let annotations = json!({"kubelet.koordinator.sh/cpu-manager-policy": static_full});
    let mut engine = one(json!({}));
    engine.object_changed(&TWO.topology("n", json!([]), annotations), now());
    assert_eq!(place(&mut engine, pod("p", "2", json!({}))), "n 0-1");
    assert_eq!(place(&mut engine, lsr("q", "4", SPREAD)), conflict);
}

#[test]
fn missing_topology_rejects_bound_pods() {
    let mut engine = engine(json!({}));
    engine.node_applied(TWO.node("n", json!({}), json!({}), 16), now());
    let invalid = "1 node(s) invalid CPU Topology";
    assert_eq!(place(&mut engine, lsr("a", "4", FULL)), invalid);
    assert_eq!(place(&mut engine, pod("b", "4", json!({}))), "n -");
    let spec = r#"{"numaTopologyPolicy":"SingleNUMANode"}"#;
    assert_eq!(
        place(&mut engine, aligned("c", "4", spec)),
        "1 node(s) missing NUMA resources"
    );
    // The topology arrives: the waiting pod is woken and placed.
    engine.object_changed(&TWO.topology("n", json!([]), json!({})), now());
    let later = now() + jiff::SignedDuration::from_secs(60);
    engine.take_outputs();
    let placed: Vec<_> = std::iter::from_fn(|| engine.schedule_one(later)).collect();
    assert!(placed.iter().all(|outcome| outcome.node.is_some()) && placed.len() == 2);
    // The topology is deleted: the same result as at the start.
    let mut deleted = TWO.topology("n", json!([]), json!({}));
    deleted.action = Action::DELETE;
    engine.object_changed(&deleted, now());
    assert_eq!(place(&mut engine, lsr("d", "4", FULL)), invalid);
}

#[test]
fn unset_policies_are_written_to_pod() {
    let written = |labels: Value, pod: Pod| {
        let bind = try_bind(&mut one(labels), pod).unwrap();
        bind.patch
            .annotations
            .get(annotations::RESOURCE_SPEC)
            .cloned()
    };
    let full_only = || json!({"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"});
    let spread = r#"{"preferredCPUBindPolicy":"SpreadByPCPUs"}"#;
    let default = r#"{"preferredCPUBindPolicy":"Default"}"#;
    let required = r#"{"requiredCPUBindPolicy":"Default","preferredCPUBindPolicy":"Default","preferredCPUExclusivePolicy":"NUMANodeLevel"}"#;
    let full = |key: &str| Some(format!(r#"{{"{key}":"FullPCPUs"}}"#));
    for (labels, pod, expected) in [
        (json!({}), lsr("p", "4", ""), full("preferredCPUBindPolicy")),
        (json!({}), lsr("p", "4", spread), None),
        (json!({}), lsr("p", "4", default), full("preferredCPUBindPolicy")),
        (json!({}), lsr("p", "4", FULL), None),
        (json!({}), lsr("p", "4", required), Some(
            r#"{"requiredCPUBindPolicy":"FullPCPUs","preferredCPUBindPolicy":"FullPCPUs","preferredCPUExclusivePolicy":"NUMANodeLevel"}"#.to_owned(),
        )),
        (full_only(), pod("p", "4", json!({})), full("requiredCPUBindPolicy")),
        (json!({}), pod("p", "4", json!({})), None),
    ] {
        assert_eq!(written(labels, pod), expected);
    }
}

#[test]
fn amplified_cpu_is_counted() {
    let full = "1 Insufficient amplified cpu";
    let machine = CpuLayout([2, 1, 8, 2]);
    // 32 CPUs sold as 64.
    let cluster = |ratio: &str, topology: bool| {
        let mut engine = engine(json!({}));
        let ratio = json!({"node.koordinator.sh/resource-amplification-ratio": ratio});
        engine.node_applied(machine.node("n", json!({}), ratio, 64), now());
        if topology {
            engine.object_changed(&machine.topology("n", json!([]), json!({})), now());
        }
        engine
    };
    let shared = |name: &str, cpu: &str| pod(name, cpu, json!({}));
    for (name, topology, on_node, new, expected) in [
        (
            "shared next to shared",
            true,
            shared("a", "32"),
            shared("b", "32"),
            "n -",
        ),
        (
            "no topology",
            false,
            shared("a", "32"),
            shared("b", "32"),
            "n -",
        ),
        (
            "shared next to bound",
            true,
            lsr("a", "32", ""),
            shared("b", "2"),
            full,
        ),
        (
            "half bound",
            true,
            lsr("a", "16", ""),
            shared("b", "32"),
            "n -",
        ),
        (
            "bound next to shared",
            true,
            shared("a", "32"),
            lsr("b", "32", ""),
            full,
        ),
        (
            "bound next to some shared",
            true,
            shared("a", "32"),
            lsr("b", "16", ""),
            "n 0-15",
        ),
    ] {
        let mut engine = cluster(r#"{"cpu":2}"#, topology);
        assert!(place(&mut engine, on_node).starts_with("n "), "{name}");
        assert_eq!(place(&mut engine, new), expected, "{name}");
    }
    let mut plain = cluster(r#"{"cpu":1}"#, true);
    assert_eq!(place(&mut plain, lsr("a", "32", "")), "n 0-31");
    assert_eq!(place(&mut plain, shared("b", "32")), "n -");
    let mut broken = cluster("{", true);
    assert_eq!(
        place(&mut broken, shared("a", "1")),
        "1 node(s) invalid CPU amplification ratio"
    );
}

#[test]
fn preemption_releases_cpus_of_lower_priority() {
    let registry = crate::registry();
    let mut engine = build_engine(json!({}), &["DefaultPreemption"], registry);
    engine.node_applied(TWO.node("n", json!({}), json!({}), 32), now());
    engine.object_changed(&TWO.topology("n", json!([]), json!({})), now());
    for (name, cpus) in [("a", "10"), ("b", "6")] {
        let bind = try_bind(&mut engine, lsr(name, cpus, "")).unwrap();
        engine.pod_applied(Arc::new(bound(&bind)), now());
    }
    // There is enough CPU, but no free CPU to be bound to.
    let mut urgent = lsr("urgent", "4", FULL);
    if let Some(spec) = &mut urgent.spec {
        spec.priority = Some(9900);
    }
    engine.take_outputs();
    engine.pod_applied(Arc::new(urgent), now());
    engine.schedule_one(now()).unwrap();
    let evicted = engine
        .take_outputs()
        .into_iter()
        .find_map(|output| match output {
            Output::Evict { victims, .. } => Some(victims),
            _ => None,
        });
    let names: Vec<String> = evicted
        .unwrap()
        .iter()
        .map(|pod| pod.name.to_string())
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn designated_cpus_are_used_or_pod_rejected() {
    let hint = json!({"extensions": {NAME: {}}}).to_string();
    let preassigned = |name: &str, cpus: &str| {
        let mut pod = lsr(name, "4", "");
        let all = pod.metadata.annotations.get_or_insert_default();
        all.insert(annotations::SCHEDULING_HINT.to_owned(), hint.clone());
        let status = json!({"cpuset": cpus}).to_string();
        all.insert(annotations::RESOURCE_STATUS.to_owned(), status);
        pod
    };
    let mut engine = one(json!({}));
    assert_eq!(
        place(&mut engine, preassigned("a", "2-3,12,15")),
        "n 2-3,12,15"
    );
    let message = "1 not enough cpus available to satisfy request";
    assert_eq!(place(&mut engine, preassigned("b", "12-15")), message);
    assert_eq!(place(&mut engine, preassigned("c", "8-11")), "n 8-11");

    let mut engine = one(json!({"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}));
    let mut pod = pod("d", "4", json!({}));
    let all = pod.metadata.annotations.get_or_insert_default();
    all.insert(annotations::SCHEDULING_HINT.to_owned(), hint.clone());
    let zone = json!({"node": 1, "resources": {"cpu": "4", "memory": "1Gi"}});
    let status = json!({"numaNodeResources": [zone]}).to_string();
    all.insert(annotations::RESOURCE_STATUS.to_owned(), status);
    assert_eq!(place(&mut engine, pod), "n 1: cpu 4, memory 1Gi");
}
