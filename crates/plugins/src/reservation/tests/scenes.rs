//! Upstream's end-to-end tests of devices, NUMA nodes, ports, preemption and reservations.

use super::hardware::{bound, merged};
use super::*;

fn with_policy(policy: &str) -> Value {
    match policy {
        "" => json!({}),
        policy => json!({"spec": {"allocatePolicy": policy}}),
    }
}

/// Returns the sorted results of the pods with this name prefix.
fn allocations(world: &ReservationWorld, prefix: &str) -> Vec<String> {
    let names = world.pods.keys().filter(|name| name.starts_with(prefix));
    let mut lots: Vec<String> = names.map(|name| world.allocation(name)).collect();
    lots.sort();
    lots
}

fn owners(world: &ReservationWorld, reservation: &str) -> usize {
    let owners = &world.status(reservation)["currentOwners"];
    owners.as_array().map_or(0, Vec::len)
}

/// Schedules pods `prefix0`, `prefix1`, … one after another.
fn add_pods(world: &mut ReservationWorld, prefix: &str, count: usize, list: &str, app: &str) {
    for index in 0..count {
        world.pod_with(&format!("{prefix}{index}"), list, app, json!({}));
        world.run();
    }
}

#[test]
fn half_a_gpu_is_reserved() {
    let reserved = |policy: &str, gpus: u8, list: &str| {
        let mut world = ReservationWorld::with_hardware(&[]);
        world.machine("n", gpus, json!({}));
        world.reserve_with("r", list, "web", json!({}), with_policy(policy));
        world.run();
        assert_eq!(world.status("r")["phase"], "Available");
        world
    };
    // As many owners as fit. In upstream's test one of them counts as using the reservation; in upstream's
    // plugin tables every owner that fits does, even if nothing is left of the reservation.
    let mut world = reserved("", 1, "gpu=50");
    add_pods(&mut world, "p", 2, "gpu=50", "web");
    assert_eq!(allocations(&world, "p"), ["n (r): gpu 0", "n (r): gpu 0"]);
    // One owner, and as many other pods as fit.
    let mut world = reserved("", 1, "gpu=50");
    add_pods(&mut world, "p", 1, "gpu=50", "web");
    add_pods(&mut world, "q", 1, "gpu=50", "other");
    assert_eq!(
        [world.allocation("p0"), world.allocation("q0")],
        ["n (r): gpu 0", "n: gpu 0"]
    );
    assert_eq!(owners(&world, "r"), 1);
    // Owners may use only the reservation: the second one is rejected although half a GPU is free.
    let mut world = reserved("Restricted", 1, "gpu=50");
    add_pods(&mut world, "p", 2, "gpu=50", "web");
    assert_eq!(world.allocation("p0"), "n (r): gpu 0");
    assert_eq!(owners(&world, "r"), 1);
    // Two GPUs, and owners that request more than half of one.
    let mut world = reserved("Restricted", 2, "gpu=200");
    add_pods(&mut world, "p", 3, "gpu=60", "web");
    assert_eq!(
        [world.allocation("p0"), world.allocation("p1")],
        ["n (r): gpu 0", "n (r): gpu 1"]
    );
    assert!(
        world.last_message("p2").contains("Insufficient"),
        "{}",
        world.last_message("p2")
    );
    assert_eq!(
        world.status("r")["allocated"],
        json!({"koordinator.sh/gpu": "120"})
    );
    assert_eq!(owners(&world, "r"), 2);
}

#[test]
fn aligned_owners_use_rest_of_gpu() {
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    world.reserve_with("r", "gpu=50", "web", json!({}), with_policy("Aligned"));
    world.run();
    add_pods(&mut world, "p", 3, "gpu=40", "web");
    // As above, the third one counts as an owner, too.
    assert_eq!(
        allocations(&world, "p"),
        ["n (r): gpu 0", "n (r): gpu 0", "n (r): gpu 1"]
    );

    // Other pods use the rest of the node: one owner fits.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    world.reserve_with("r", "gpu=50", "web", json!({}), with_policy("Aligned"));
    world.run();
    add_pods(&mut world, "q", 3, "gpu=40", "other");
    assert_eq!(
        allocations(&world, "q"),
        ["n: gpu 0", "n: gpu 1", "n: gpu 1"]
    );
    add_pods(&mut world, "p", 2, "gpu=40", "web");
    assert_eq!(world.allocation("p0"), "n (r): gpu 0");
    assert!(
        world.last_message("p1").contains("Insufficient"),
        "{}",
        world.last_message("p1")
    );

    // Four reservations of a half each, and an owner of 30 for each; no pod gets two remainders together.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    for index in 0..4 {
        let name = format!("r{index}");
        world.reserve_with(&name, "gpu=50", "web", json!({}), with_policy("Aligned"));
        world.run();
    }
    add_pods(&mut world, "p", 4, "gpu=30", "web");
    world.pod_with("late", "gpu=30", "web", json!({}));
    world.run();
    for index in 0..4 {
        assert_eq!(owners(&world, &format!("r{index}")), 1);
    }
    assert!(
        world.last_message("late").contains("Insufficient"),
        "{}",
        world.last_message("late")
    );
}

#[test]
fn reserved_cpus_serve_bound_pods() {
    // As many CPUs as requested, fewer, and for several owners.
    for (reserved, once, asked, count, expected) in [
        ("4", true, "cpu=4", 1, &["n (r): 0-3"][..]),
        ("2", true, "cpu=4", 1, &["n (r): 0-1,8-9"]),
        ("4", false, "cpu=2", 2, &["n (r): 0-1", "n (r): 2-3"]),
    ] {
        let mut world = ReservationWorld::with_hardware(&[]);
        world.machine("n", 0, json!({}));
        let list = format!("cpu={reserved}");
        world.reserve_with(
            "r",
            &list,
            "web",
            bound(),
            json!({"spec": {"allocateOnce": once}}),
        );
        world.run();
        for index in 0..count {
            world.pod_with(&format!("p{index}"), asked, "web", bound());
            world.run();
        }
        assert_eq!(allocations(&world, "p"), expected, "{reserved} {asked}");
    }
}

#[test]
fn numa_policies_apply() {
    const POLICY: &str = "node.koordinator.sh/numa-topology-policy";
    let own = || {
        let spec = json!({"numaTopologyPolicy": "SingleNUMANode"}).to_string();
        json!({"metadata": {"annotations": {annotations::NUMA_TOPOLOGY_SPEC: spec}}})
    };
    let (small, large) = ("cpu=4500m memory=18Gi", "cpu=4800m memory=19Gi");
    let (whole, third) = ("cpu=4 memory=18Gi", "cpu=5 memory=19Gi");
    let free = json!({});
    // The node's policy, requests and annotation of two pods, those of a third, and its result.
    for (policy, two, says, last, last_says, expected) in [
        ("", small, own(), large, own(), None),
        (
            "SingleNUMANode",
            small,
            free.clone(),
            large,
            free.clone(),
            None,
        ),
        ("SingleNUMANode", whole, bound(), large, free.clone(), None),
        ("SingleNUMANode", small, free.clone(), third, bound(), None),
        (
            "Restricted",
            small,
            free.clone(),
            large,
            free.clone(),
            Some(2),
        ),
        (
            "BestEffort",
            small,
            free.clone(),
            large,
            free.clone(),
            Some(2),
        ),
    ] {
        let mut world = ReservationWorld::with_hardware(&[]);
        let labels = match policy {
            "" => json!({}),
            policy => json!({POLICY: policy}),
        };
        world.machine("n", 0, labels);
        for name in ["a", "b"] {
            world.pod_with(name, two, "web", says.clone());
            world.run();
        }
        let zones = |pod: &str| {
            let text = &world.pods[pod]["metadata"]["annotations"][annotations::RESOURCE_STATUS];
            let status: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
            let zones = status["numaNodeResources"].as_array().unwrap().clone();
            zones
                .iter()
                .map(|zone| zone["node"].as_i64().unwrap())
                .collect::<Vec<_>>()
        };
        let case = format!("{policy} {two} {last}");
        assert_eq!((zones("a"), zones("b")), (vec![0], vec![1]), "{case}");
        world.pod_with("c", last, "web", last_says);
        world.run();
        match expected {
            Some(count) => {
                assert!(
                    world.result_of("c") == "n",
                    "{case}: {}",
                    world.last_message("c")
                );
                let text = &world.pods["c"]["metadata"]["annotations"];
                let text = text[annotations::RESOURCE_STATUS].as_str().unwrap();
                assert_eq!(text.matches("\"node\":").count(), count, "{case}: {text}");
            }
            None => {
                let message = world.last_message("c");
                assert!(message.contains("NUMA"), "{case}: {message}");
            }
        }
    }
    // The CPU of one NUMA node and the memory of the other are taken, so one NUMA node does not suffice.
    for (policy, expected) in [("SingleNUMANode", None), ("Restricted", Some("0: "))] {
        let mut world = ReservationWorld::with_hardware(&[]);
        world.machine("n", 0, json!({POLICY: policy}));
        for (name, list) in [
            ("memory-0", "memory=26Gi"),
            ("memory-1", "memory=26Gi"),
            ("cpu-0", "cpu=6"),
            ("cpu-1", "cpu=6"),
        ] {
            world.pod_with(name, list, "web", json!({}));
            world.run();
        }
        let place =
            |world: &ReservationWorld, name: &str| world.allocation(name).chars().nth(3).unwrap();
        assert_ne!(place(&world, "memory-0"), place(&world, "memory-1"));
        assert_ne!(place(&world, "cpu-0"), place(&world, "cpu-1"));
        // One of each stays, on different NUMA nodes.
        let node = place(&world, "memory-1");
        world.pod_gone("memory-0");
        let other = ["cpu-0", "cpu-1"]
            .into_iter()
            .find(|name| place(&world, name) == node);
        world.pod_gone(other.unwrap());
        world.pod_with("last", "cpu=6 memory=26Gi", "web", json!({}));
        world.later(60);
        match expected {
            None => {
                let message = world.last_message("last");
                assert!(message.contains("NUMA"), "{message}");
            }
            Some(text) => {
                assert!(
                    world.allocation("last").contains(text),
                    "{}",
                    world.allocation("last")
                );
                assert!(
                    world.allocation("last").contains("1: "),
                    "{}",
                    world.allocation("last")
                );
            }
        }
    }
}

fn with_priority(priority: i32) -> Value {
    json!({"spec": {"priority": priority}})
}

#[test]
fn high_priority_preempts_low() {
    for list in ["gpu=200", "cpu=10 memory=512Mi", "fake=1000"] {
        // Preemption on the node.
        let mut world = ReservationWorld::with_hardware(&["DefaultPreemption"]);
        world.machine("n", 2, json!({}));
        world.pod_with("low", list, "web", with_priority(0));
        world.run();
        world.pod_with("high", list, "web", with_priority(2_000_000_000));
        world.later(60);
        assert_eq!(
            world.evicted,
            ["low"],
            "{list}: {}",
            world.last_message("high")
        );
        assert_eq!(world.result_of("high"), "n", "{list}");
        // Preemption within a reservation.
        for policy in ["", "Restricted"] {
            let mut world = ReservationWorld::with_hardware(&["DefaultPreemption"]);
            world.machine("n", 2, json!({}));
            world.reserve_with("r", list, "web", json!({}), with_policy(policy));
            world.run();
            world.pod_with("low", list, "web", with_priority(0));
            world.run();
            assert_eq!(world.result_of("low"), "n (r)", "{list} {policy}");
            world.pod_with("other", list, "other", with_priority(2_000_000_000));
            world.later(60);
            // A pod that is no owner preempts no owner.
            assert_eq!(world.evicted, [""; 0], "{list} {policy}");
            assert_eq!(world.result_of("low"), "n (r)", "{list} {policy}");
            world.pod_gone("other");
            world.pod_with("high", list, "web", with_priority(2_000_000_000));
            world.later(60);
            let case = format!("{list} {policy}: {}", world.last_message("high"));
            assert_eq!(world.evicted, ["low"], "{case}");
            assert_eq!(world.result_of("high"), "n (r)", "{case}");
        }
    }
}

#[test]
fn reserved_ports_are_for_owners_and_once() {
    let port = |ports: &[i32]| {
        let ports: Value = ports
            .iter()
            .map(|p| json!({"containerPort": p, "hostPort": p}))
            .collect();
        json!([{"name": "c", "ports": ports, "resources": {"requests": {"cpu": "1"}}}])
    };
    let pod = |ports: &[i32]| json!({"spec": {"containers": port(ports)}});
    for once in [false, true] {
        let mut world = ReservationWorld::with_plugins(&["NodePorts"]);
        world.node("n", 16);
        let template = json!({"spec": {"template": {"spec": {"containers": port(&[54321])}},
            "allocateOnce": once}});
        world.reserve("r", "2", "web", template);
        world.run();
        assert_eq!(world.status("r")["phase"], "Available");
        world.pod("stranger", "1", "other", pod(&[54321]));
        world.run();
        assert!(
            world.last_message("stranger").contains("free ports"),
            "{}",
            world.last_message("stranger")
        );
        world.pod("a", "1", "web", pod(&[54321]));
        world.run();
        assert_eq!(world.result_of("a"), "n (r)");
        world.pod("b", "1", "web", pod(&[54321]));
        world.run();
        assert!(
            world.last_message("b").contains("free ports"),
            "{}",
            world.last_message("b")
        );
        assert_eq!(owners(&world, "r"), 1);
    }
    // A port in addition to the reserved one.
    let mut world = ReservationWorld::with_plugins(&["NodePorts"]);
    world.node("n", 16);
    let template = json!({"spec": {"template": {"spec": {"containers": port(&[54321])}}}});
    world.reserve("r", "2", "web", template);
    world.run();
    world.pod("a", "1", "web", pod(&[54321, 54322]));
    world.run();
    assert_eq!(world.result_of("a"), "n (r)");
}

#[test]
fn allocate_policies_apply() {
    // Two pods of 2 CPUs and 2 GiB, then memory only: 3 GiB, then 2.
    for (policy, last) in [("Restricted", None), ("Aligned", Some("n (r)"))] {
        let mut world = ReservationWorld::with_hardware(&[]);
        world.machine("n", 0, json!({}));
        world.reserve_with(
            "r",
            "cpu=4 memory=8Gi",
            "web",
            json!({}),
            with_policy(policy),
        );
        world.run();
        add_pods(&mut world, "p", 2, "cpu=2 memory=2Gi", "web");
        assert_eq!(allocations(&world, "p"), ["n (r)", "n (r)"]);
        add_pods(&mut world, "third", 1, "memory=3Gi", "web");
        assert_eq!(world.result_of("third0"), "n (r)");
        add_pods(&mut world, "last", 1, "memory=2Gi", "web");
        match last {
            Some(fate) => assert_eq!(world.result_of("last0"), fate),
            // Outside of the reservation, where upstream's node is full.
            None => assert_eq!(world.result_of("last0"), "n"),
        }
    }
    // Five reservations fill the node: no owner gets more than one of them has.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 0, json!({}));
    for index in 0..5 {
        let name = format!("r{index}");
        world.reserve_with(&name, "fake=200", "web", json!({}), with_policy("Aligned"));
        world.run();
        assert_eq!(world.status(&name)["phase"], "Available");
    }
    add_pods(&mut world, "p", 1, "fake=300", "web");
    assert!(
        world.last_message("p0").contains("Insufficient"),
        "{}",
        world.last_message("p0")
    );
    // All of the node is reserved; then half of it, and the other half by another reservation.
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 0, json!({}));
    world.reserve_with("r", "fake=1000", "web", json!({}), json!({}));
    world.run();
    add_pods(&mut world, "p", 1, "fake=1000", "other");
    assert!(
        world.last_message("p0").contains("Insufficient"),
        "{}",
        world.last_message("p0")
    );
    let mut world = ReservationWorld::with_hardware(&[]);
    world.machine("n", 0, json!({}));
    world.reserve_with("r", "fake=500", "web", json!({}), json!({}));
    world.run();
    add_pods(&mut world, "p", 1, "fake=500", "web");
    assert_eq!(world.result_of("p0"), "n (r)");
    world.reserve_with("s", "fake=500", "web", json!({}), json!({}));
    world.run();
    assert_eq!(world.status("s")["phase"], "Available");
}

#[test]
fn owner_matching_and_taints() {
    // Matching by affinity, by toleration of taints and by owner label, and the cases that do not match.
    let affinity = |value: &str| {
        let term =
            json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": [value]}]});
        let all = json!({"requiredDuringSchedulingIgnoredDuringExecution":
            {"reservationSelectorTerms": [term]}});
        json!({"metadata": {"annotations": {annotations::RESERVATION_AFFINITY: all.to_string()}}})
    };
    let mut world = ReservationWorld::new();
    world.node("n", 16);
    let tier = json!({"metadata": {"labels": {"tier": "a"}}, "spec": {"allocateOnce": true}});
    world.reserve("r", "2", "web", tier);
    world.run();
    world.pod("wrong", "2", "web", affinity("b"));
    world.pod("right", "2", "web", affinity("a"));
    world.run();
    assert!(
        world.last_message("wrong").contains("reservation"),
        "{}",
        world.last_message("wrong")
    );
    assert_eq!(world.result_of("right"), "n (r)");
    assert_eq!(world.status("r")["phase"], "Succeeded");
    world.pod_gone("right");
    world.later(60);
    assert_eq!(world.status("r")["phase"], "Succeeded");

    let mut world = ReservationWorld::with_plugins(&["TaintToleration"]);
    world.node("n", 16);
    let taint = json!({"key": "reserved", "value": "yes", "effect": "NoSchedule"});
    let tainted = json!({"spec": {"taints": [taint], "allocateOnce": true}});
    world.reserve("r", "2", "web", tainted);
    world.run();
    assert_eq!(world.status("r")["phase"], "Available");
    let tolerates = json!({"spec": {"tolerations": [{"key": "reserved", "operator": "Equal",
        "value": "yes", "effect": "NoSchedule"}]}});
    world.pod("tolerant", "1", "web", tolerates);
    world.run();
    assert_eq!(world.result_of("tolerant"), "n (r)");

    let mut world = ReservationWorld::new();
    world.node("n", 16);
    world.reserve("r", "2", "web", json!({}));
    world.run();
    world.pod("stranger", "1", "other", json!({}));
    world.run();
    assert_eq!(world.result_of("stranger"), "n");
    assert_eq!(owners(&world, "r"), 0);
}

#[test]
fn reservations_expire_and_follow_node_names() {
    let mut world = ReservationWorld::new();
    world.node("n", 16);
    world.reserve("r", "2", "web", json!({"spec": {"ttl": "10s"}}));
    world.run();
    assert_eq!(world.status("r")["phase"], "Available");
    world.later(60);
    assert_eq!(world.status("r")["phase"], "Failed");

    let mut world = ReservationWorld::new();
    world.node("m", 16);
    world.node_with("n", 16, json!({"kubernetes.io/hostname": "n"}));
    let term = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In",
        "values": ["n"]}]});
    let affinity = json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}});
    world.reserve(
        "r",
        "2",
        "web",
        json!({"spec": {"template": {"spec": affinity}}}),
    );
    world.run();
    assert_eq!(world.status("r")["nodeName"], "n");
    world.pod("p", "1", "web", json!({ "spec": affinity }));
    world.run();
    assert_eq!(world.result_of("p"), "n (r)");
}

#[test]
fn reservations_count_for_rules_between_pods() {
    // A pod with anti-affinity to its like may use the reservation made for it, and nothing else on the node.
    let apart = json!({
        "metadata": {"labels": {"kind": "apart"}},
        "spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"kind": "apart"}}}]}}}
    });
    for (app, expected) in [("web", "n (r)"), ("other", "anti-affinity")] {
        let mut world = ReservationWorld::with_plugins(&["InterPodAffinity"]);
        world.node_with("n", 16, json!({"kubernetes.io/hostname": "n"}));
        let template = json!({"metadata": {"namespace": "ns"}});
        let template = merged(apart.clone(), template);
        world.reserve("r", "2", "web", json!({"spec": {"template": template}}));
        world.run();
        assert_eq!(
            world.status("r")["phase"],
            "Available",
            "{}",
            world.last_message("r")
        );
        world.pod("p", "1", app, apart.clone());
        world.run();
        assert!(
            world.result_of("p").contains(expected),
            "{}",
            world.result_of("p")
        );
    }
    // Four pods over two nodes, one of them in a reservation that is spread with them.
    let mut world = ReservationWorld::with_plugins(&["PodTopologySpread"]);
    for name in ["a", "b"] {
        world.node_with(name, 16, json!({"zone": name}));
    }
    let spread = json!({
        "metadata": {"labels": {"kind": "even"}},
        "spec": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"kind": "even"}}}]}
    });
    let template = merged(spread.clone(), json!({"metadata": {"namespace": "ns"}}));
    world.reserve(
        "r",
        "2",
        "web",
        json!({"spec": {"template": template, "allocateOnce": true}}),
    );
    world.run();
    assert_eq!(
        world.status("r")["phase"],
        "Available",
        "{}",
        world.last_message("r")
    );
    for index in 0..4 {
        world.pod(&format!("p{index}"), "2", "web", spread.clone());
        world.run();
    }
    let on = |node: &str| {
        let pods = (0..4).filter(|index| world.result_of(&format!("p{index}")).starts_with(node));
        pods.count()
    };
    assert_eq!((on("a"), on("b")), (2, 2));
    assert_eq!(owners(&world, "r"), 1);
}
