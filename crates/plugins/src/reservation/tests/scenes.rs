//! Upstream's end-to-end tests of devices, NUMA nodes, ports, preemption and reservations.

use super::hardware::{both, bound};
use super::*;

fn of_policy(policy: &str) -> Value {
    match policy {
        "" => json!({}),
        policy => json!({"spec": {"allocatePolicy": policy}}),
    }
}

/// Returns the sorted results of the pods with this name prefix.
fn lots(world: &World, prefix: &str) -> Vec<String> {
    let names = world.pods.keys().filter(|name| name.starts_with(prefix));
    let mut lots: Vec<String> = names.map(|name| world.lot(name)).collect();
    lots.sort();
    lots
}

fn owners(world: &World, reservation: &str) -> usize {
    let owners = &world.status(reservation)["currentOwners"];
    owners.as_array().map_or(0, Vec::len)
}

/// Schedules pods `prefix0`, `prefix1`, … one after another.
fn come(world: &mut World, prefix: &str, count: usize, list: &str, app: &str) {
    for at in 0..count {
        world.asks(&format!("{prefix}{at}"), list, app, json!({}));
        world.run();
    }
}

#[test]
fn half_a_gpu_is_reserved() {
    let reserved = |policy: &str, gpus: u8, list: &str| {
        let mut world = World::with_hardware(&[]);
        world.machine("n", gpus, json!({}));
        world.reserves("r", list, "web", json!({}), of_policy(policy));
        world.run();
        assert_eq!(world.status("r")["phase"], "Available");
        world
    };
    // As many owners as fit. In upstream's test one of them counts as using the reservation; in upstream's
    // plugin tables every owner that fits does, even if nothing is left of the reservation.
    let mut world = reserved("", 1, "gpu=50");
    come(&mut world, "p", 2, "gpu=50", "web");
    assert_eq!(lots(&world, "p"), ["n (r): gpu 0", "n (r): gpu 0"]);
    // One owner, and as many other pods as fit.
    let mut world = reserved("", 1, "gpu=50");
    come(&mut world, "p", 1, "gpu=50", "web");
    come(&mut world, "q", 1, "gpu=50", "other");
    assert_eq!(
        [world.lot("p0"), world.lot("q0")],
        ["n (r): gpu 0", "n: gpu 0"]
    );
    assert_eq!(owners(&world, "r"), 1);
    // Owners may use only the reservation: the second one is rejected although half a GPU is free.
    let mut world = reserved("Restricted", 1, "gpu=50");
    come(&mut world, "p", 2, "gpu=50", "web");
    assert_eq!(world.lot("p0"), "n (r): gpu 0");
    assert_eq!(owners(&world, "r"), 1);
    // Two GPUs, and owners that request more than half of one.
    let mut world = reserved("Restricted", 2, "gpu=200");
    come(&mut world, "p", 3, "gpu=60", "web");
    assert_eq!(
        [world.lot("p0"), world.lot("p1")],
        ["n (r): gpu 0", "n (r): gpu 1"]
    );
    assert!(
        world.word("p2").contains("Insufficient"),
        "{}",
        world.word("p2")
    );
    assert_eq!(
        world.status("r")["allocated"],
        json!({"koordinator.sh/gpu": "120"})
    );
    assert_eq!(owners(&world, "r"), 2);
}

#[test]
fn owners_get_the_rest_of_the_gpu_as_well() {
    let mut world = World::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    world.reserves("r", "gpu=50", "web", json!({}), of_policy("Aligned"));
    world.run();
    come(&mut world, "p", 3, "gpu=40", "web");
    // As above, the third one counts as an owner, too.
    assert_eq!(
        lots(&world, "p"),
        ["n (r): gpu 0", "n (r): gpu 0", "n (r): gpu 1"]
    );

    // Other pods use the rest of the node: one owner fits.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    world.reserves("r", "gpu=50", "web", json!({}), of_policy("Aligned"));
    world.run();
    come(&mut world, "q", 3, "gpu=40", "other");
    assert_eq!(lots(&world, "q"), ["n: gpu 0", "n: gpu 1", "n: gpu 1"]);
    come(&mut world, "p", 2, "gpu=40", "web");
    assert_eq!(world.lot("p0"), "n (r): gpu 0");
    assert!(
        world.word("p1").contains("Insufficient"),
        "{}",
        world.word("p1")
    );

    // Four reservations of a half each, and an owner of 30 for each; no pod gets two remainders together.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 2, json!({}));
    for at in 0..4 {
        let name = format!("r{at}");
        world.reserves(&name, "gpu=50", "web", json!({}), of_policy("Aligned"));
        world.run();
    }
    come(&mut world, "p", 4, "gpu=30", "web");
    world.asks("late", "gpu=30", "web", json!({}));
    world.run();
    for at in 0..4 {
        assert_eq!(owners(&world, &format!("r{at}")), 1);
    }
    assert!(
        world.word("late").contains("Insufficient"),
        "{}",
        world.word("late")
    );
}

#[test]
fn cpus_are_reserved_for_those_who_are_bound() {
    // As many CPUs as requested, fewer, and for several owners.
    for (reserved, once, asked, count, expected) in [
        ("4", true, "cpu=4", 1, &["n (r): 0-3"][..]),
        ("2", true, "cpu=4", 1, &["n (r): 0-1,8-9"]),
        ("4", false, "cpu=2", 2, &["n (r): 0-1", "n (r): 2-3"]),
    ] {
        let mut world = World::with_hardware(&[]);
        world.machine("n", 0, json!({}));
        let list = format!("cpu={reserved}");
        world.reserves(
            "r",
            &list,
            "web",
            bound(),
            json!({"spec": {"allocateOnce": once}}),
        );
        world.run();
        for at in 0..count {
            world.asks(&format!("p{at}"), asked, "web", bound());
            world.run();
        }
        assert_eq!(lots(&world, "p"), expected, "{reserved} {asked}");
    }
}

#[test]
fn numa_nodes_are_kept_to_as_policies_say() {
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
        let mut world = World::with_hardware(&[]);
        let labels = match policy {
            "" => json!({}),
            policy => json!({POLICY: policy}),
        };
        world.machine("n", 0, labels);
        for name in ["a", "b"] {
            world.asks(name, two, "web", says.clone());
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
        let what = format!("{policy} {two} {last}");
        assert_eq!((zones("a"), zones("b")), (vec![0], vec![1]), "{what}");
        world.asks("c", last, "web", last_says);
        world.run();
        match expected {
            Some(count) => {
                assert!(world.fate("c") == "n", "{what}: {}", world.word("c"));
                let text = &world.pods["c"]["metadata"]["annotations"];
                let text = text[annotations::RESOURCE_STATUS].as_str().unwrap();
                assert_eq!(text.matches("\"node\":").count(), count, "{what}: {text}");
            }
            None => {
                let word = world.word("c");
                assert!(word.contains("NUMA"), "{what}: {word}");
            }
        }
    }
    // The CPU of one NUMA node and the memory of the other are taken, so one NUMA node does not suffice.
    for (policy, expected) in [("SingleNUMANode", None), ("Restricted", Some("0: "))] {
        let mut world = World::with_hardware(&[]);
        world.machine("n", 0, json!({POLICY: policy}));
        for (name, list) in [
            ("memory-0", "memory=26Gi"),
            ("memory-1", "memory=26Gi"),
            ("cpu-0", "cpu=6"),
            ("cpu-1", "cpu=6"),
        ] {
            world.asks(name, list, "web", json!({}));
            world.run();
        }
        let place = |world: &World, name: &str| world.lot(name).chars().nth(3).unwrap();
        assert_ne!(place(&world, "memory-0"), place(&world, "memory-1"));
        assert_ne!(place(&world, "cpu-0"), place(&world, "cpu-1"));
        // One of each stays, on different NUMA nodes.
        let kept = place(&world, "memory-1");
        world.pod_gone("memory-0");
        let gone = ["cpu-0", "cpu-1"]
            .into_iter()
            .find(|name| place(&world, name) == kept);
        world.pod_gone(gone.unwrap());
        world.asks("last", "cpu=6 memory=26Gi", "web", json!({}));
        world.later(60);
        match expected {
            None => {
                let word = world.word("last");
                assert!(word.contains("NUMA"), "{word}");
            }
            Some(text) => {
                assert!(world.lot("last").contains(text), "{}", world.lot("last"));
                assert!(world.lot("last").contains("1: "), "{}", world.lot("last"));
            }
        }
    }
}

fn at(priority: i32) -> Value {
    json!({"spec": {"priority": priority}})
}

#[test]
fn the_important_take_the_place_of_others() {
    for list in ["gpu=200", "cpu=10 memory=512Mi", "fake=1000"] {
        // Preemption on the node.
        let mut world = World::with_hardware(&["DefaultPreemption"]);
        world.machine("n", 2, json!({}));
        world.asks("low", list, "web", at(0));
        world.run();
        world.asks("high", list, "web", at(2_000_000_000));
        world.later(60);
        assert_eq!(world.evicted, ["low"], "{list}: {}", world.word("high"));
        assert_eq!(world.fate("high"), "n", "{list}");
        // Preemption within a reservation.
        for policy in ["", "Restricted"] {
            let mut world = World::with_hardware(&["DefaultPreemption"]);
            world.machine("n", 2, json!({}));
            world.reserves("r", list, "web", json!({}), of_policy(policy));
            world.run();
            world.asks("low", list, "web", at(0));
            world.run();
            assert_eq!(world.fate("low"), "n (r)", "{list} {policy}");
            world.asks("other", list, "other", at(2_000_000_000));
            world.later(60);
            // A pod that is no owner preempts no owner.
            assert_eq!(world.evicted, [""; 0], "{list} {policy}");
            assert_eq!(world.fate("low"), "n (r)", "{list} {policy}");
            world.pod_gone("other");
            world.asks("high", list, "web", at(2_000_000_000));
            world.later(60);
            let what = format!("{list} {policy}: {}", world.word("high"));
            assert_eq!(world.evicted, ["low"], "{what}");
            assert_eq!(world.fate("high"), "n (r)", "{what}");
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
        let mut world = World::beside(&["NodePorts"]);
        world.node("n", 16);
        let template = json!({"spec": {"template": {"spec": {"containers": port(&[54321])}},
            "allocateOnce": once}});
        world.reserve("r", "2", "web", template);
        world.run();
        assert_eq!(world.status("r")["phase"], "Available");
        world.pod("stranger", "1", "other", pod(&[54321]));
        world.run();
        assert!(
            world.word("stranger").contains("free ports"),
            "{}",
            world.word("stranger")
        );
        world.pod("a", "1", "web", pod(&[54321]));
        world.run();
        assert_eq!(world.fate("a"), "n (r)");
        world.pod("b", "1", "web", pod(&[54321]));
        world.run();
        assert!(
            world.word("b").contains("free ports"),
            "{}",
            world.word("b")
        );
        assert_eq!(owners(&world, "r"), 1);
    }
    // A port in addition to the reserved one.
    let mut world = World::beside(&["NodePorts"]);
    world.node("n", 16);
    let template = json!({"spec": {"template": {"spec": {"containers": port(&[54321])}}}});
    world.reserve("r", "2", "web", template);
    world.run();
    world.pod("a", "1", "web", pod(&[54321, 54322]));
    world.run();
    assert_eq!(world.fate("a"), "n (r)");
}

#[test]
fn reservations_are_filled_as_their_policy_says() {
    // Two pods of 2 CPUs and 2 GiB, then memory only: 3 GiB, then 2.
    for (policy, last) in [("Restricted", None), ("Aligned", Some("n (r)"))] {
        let mut world = World::with_hardware(&[]);
        world.machine("n", 0, json!({}));
        world.reserves("r", "cpu=4 memory=8Gi", "web", json!({}), of_policy(policy));
        world.run();
        come(&mut world, "p", 2, "cpu=2 memory=2Gi", "web");
        assert_eq!(lots(&world, "p"), ["n (r)", "n (r)"]);
        come(&mut world, "third", 1, "memory=3Gi", "web");
        assert_eq!(world.fate("third0"), "n (r)");
        come(&mut world, "last", 1, "memory=2Gi", "web");
        match last {
            Some(fate) => assert_eq!(world.fate("last0"), fate),
            // Outside of the reservation, where upstream's node is full.
            None => assert_eq!(world.fate("last0"), "n"),
        }
    }
    // Five reservations fill the node: no owner gets more than one of them has.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 0, json!({}));
    for at in 0..5 {
        let name = format!("r{at}");
        world.reserves(&name, "fake=200", "web", json!({}), of_policy("Aligned"));
        world.run();
        assert_eq!(world.status(&name)["phase"], "Available");
    }
    come(&mut world, "p", 1, "fake=300", "web");
    assert!(
        world.word("p0").contains("Insufficient"),
        "{}",
        world.word("p0")
    );
    // All of the node is reserved; then half of it, and the other half by another reservation.
    let mut world = World::with_hardware(&[]);
    world.machine("n", 0, json!({}));
    world.reserves("r", "fake=1000", "web", json!({}), json!({}));
    world.run();
    come(&mut world, "p", 1, "fake=1000", "other");
    assert!(
        world.word("p0").contains("Insufficient"),
        "{}",
        world.word("p0")
    );
    let mut world = World::with_hardware(&[]);
    world.machine("n", 0, json!({}));
    world.reserves("r", "fake=500", "web", json!({}), json!({}));
    world.run();
    come(&mut world, "p", 1, "fake=500", "web");
    assert_eq!(world.fate("p0"), "n (r)");
    world.reserves("s", "fake=500", "web", json!({}), json!({}));
    world.run();
    assert_eq!(world.status("s")["phase"], "Available");
}

#[test]
fn who_gets_into_a_reservation() {
    // Matching by affinity, by toleration of taints and by owner label, and the cases that do not match.
    let affinity = |value: &str| {
        let term =
            json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": [value]}]});
        let all = json!({"requiredDuringSchedulingIgnoredDuringExecution":
            {"reservationSelectorTerms": [term]}});
        json!({"metadata": {"annotations": {annotations::RESERVATION_AFFINITY: all.to_string()}}})
    };
    let mut world = World::new();
    world.node("n", 16);
    let tier = json!({"metadata": {"labels": {"tier": "a"}}, "spec": {"allocateOnce": true}});
    world.reserve("r", "2", "web", tier);
    world.run();
    world.pod("wrong", "2", "web", affinity("b"));
    world.pod("right", "2", "web", affinity("a"));
    world.run();
    assert!(
        world.word("wrong").contains("reservation"),
        "{}",
        world.word("wrong")
    );
    assert_eq!(world.fate("right"), "n (r)");
    assert_eq!(world.status("r")["phase"], "Succeeded");
    world.pod_gone("right");
    world.later(60);
    assert_eq!(world.status("r")["phase"], "Succeeded");

    let mut world = World::beside(&["TaintToleration"]);
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
    assert_eq!(world.fate("tolerant"), "n (r)");

    let mut world = World::new();
    world.node("n", 16);
    world.reserve("r", "2", "web", json!({}));
    world.run();
    world.pod("stranger", "1", "other", json!({}));
    world.run();
    assert_eq!(world.fate("stranger"), "n");
    assert_eq!(owners(&world, "r"), 0);
}

#[test]
fn reservations_end_and_go_where_they_are_sent() {
    let mut world = World::new();
    world.node("n", 16);
    world.reserve("r", "2", "web", json!({"spec": {"ttl": "10s"}}));
    world.run();
    assert_eq!(world.status("r")["phase"], "Available");
    world.later(60);
    assert_eq!(world.status("r")["phase"], "Failed");

    let mut world = World::new();
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
    assert_eq!(world.fate("p"), "n (r)");
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
        let mut world = World::beside(&["InterPodAffinity"]);
        world.node_with("n", 16, json!({"kubernetes.io/hostname": "n"}));
        let template = json!({"metadata": {"namespace": "ns"}});
        let template = both(apart.clone(), template);
        world.reserve("r", "2", "web", json!({"spec": {"template": template}}));
        world.run();
        assert_eq!(
            world.status("r")["phase"],
            "Available",
            "{}",
            world.word("r")
        );
        world.pod("p", "1", app, apart.clone());
        world.run();
        assert!(world.fate("p").contains(expected), "{}", world.fate("p"));
    }
    // Four pods over two nodes, one of them in a reservation that is spread with them.
    let mut world = World::beside(&["PodTopologySpread"]);
    for name in ["a", "b"] {
        world.node_with(name, 16, json!({"zone": name}));
    }
    let spread = json!({
        "metadata": {"labels": {"kind": "even"}},
        "spec": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"kind": "even"}}}]}
    });
    let template = both(spread.clone(), json!({"metadata": {"namespace": "ns"}}));
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
        world.word("r")
    );
    for at in 0..4 {
        world.pod(&format!("p{at}"), "2", "web", spread.clone());
        world.run();
    }
    let on = |node: &str| {
        let pods = (0..4).filter(|at| world.fate(&format!("p{at}")).starts_with(node));
        pods.count()
    };
    assert_eq!((on("a"), on("b")), (2, 2));
    assert_eq!(owners(&world, "r"), 1);
}
