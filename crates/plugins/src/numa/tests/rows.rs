//! Upstream's test tables for Filter, Reserve and Allocate.

use super::reservations::{reserve, with_reservations};
use super::*;

fn bind_policy(policy: &str) -> Value {
    json!({"node.koordinator.sh/cpu-bind-policy": policy})
}

fn numa_policy(policy: &str) -> Value {
    json!({"node.koordinator.sh/numa-topology-policy": policy})
}

fn bound_pod(cpu: &str, policy: &str) -> Pod {
    lsr(
        "p",
        cpu,
        &format!(r#"{{"preferredCPUBindPolicy":"{policy}"}}"#),
    )
}

fn designated(mut pod: Pod, status: Value) -> Pod {
    let all = pod.metadata.annotations.get_or_insert_default();
    let hint = json!({"extensions": {NAME: {}}}).to_string();
    all.insert(annotations::SCHEDULING_HINT.to_owned(), hint);
    all.insert(annotations::RESOURCE_STATUS.to_owned(), status.to_string());
    pod
}

const ODD: &str = "1 node(s) requested cpus not multiple cpus per core";
const CONFLICT: &str = "1 node(s) cpu bind policy conflicts with pod's required cpu bind policy";
const TOO_FEW: &str = "1 not enough cpus available to satisfy request";

#[test]
fn which_nodes_fit() {
    let (full, spread) = ("FullPCPUs", "SpreadByPCPUs");
    let only = || bind_policy("FullPCPUsOnly");
    let none = || json!({});
    let kubelet = r#"{"policy":"static","options":{"full-pcpus-only":"true"}}"#;
    let shared = |cpu: &str| pod("p", cpu, json!({}));
    let single = || numa_policy("SingleNUMANode");
    let zone = || json!([{"node": 0, "resources": {"cpu": "4", "memory": "1Gi"}}]);
    let status_with = |cpus: &str| json!({"cpuset": cpus, "numaNodeResources": zone()});
    // (case, labels, kubelet's policy, CPU ratio, pod, resulting node)
    #[rustfmt::skip]
    let rows = [
        ("a valid topology", none(), "", "1", bound_pod("4", full), "n 0-3"),
        ("not bound", none(), "", "1", shared("4"), "n -"),
        ("odd, by the node", only(), "", "1", bound_pod("5", full), ODD),
        ("shared and odd, by the node", only(), "", "1", shared("5"), ODD),
        ("not whole, by the node", only(), "", "1", shared("5200m"), "1 the requested CPUs must be integer"),
        ("even, by the node", only(), "", "1", bound_pod("4", full), "n 0-3"),
        ("odd, by the pod", none(), "", "1", lsr("p", "5", FULL), ODD),
        ("even, by the pod", none(), "", "1", lsr("p", "4", FULL), "n 0-3"),
        ("a wish gives way", only(), "", "1", bound_pod("4", spread), "n 0-3"),
        ("a demand does not", bind_policy(spread), "", "1", lsr("p", "4", FULL), CONFLICT),
        ("agreed", only(), "", "1", lsr("p", "4", FULL), "n 0-3"),
        ("odd, by the kubelet", none(), kubelet, "1", bound_pod("5", full), ODD),
        ("against the kubelet", none(), kubelet, "1", lsr("p", "4", SPREAD), CONFLICT),
        ("with the kubelet", none(), kubelet, "1", lsr("p", "4", FULL), "n 0-3"),
        ("one NUMA node", single(), "", "1", lsr("p", "4", FULL), "n 0-3 | 0: cpu 4, memory 1Gi"),
        ("one NUMA node, amplified", single(), "", "1.5", lsr("p", "4", FULL), "n 0-3 | 0: cpu 4, memory 1Gi"),
        ("no NUMA policy, amplified", numa_policy("None"), "", "1.5", lsr("p", "4", FULL), "n 0-3"),
        ("chosen", single(), "", "1.5", designated(lsr("p", "4", FULL), status_with("0-3")),
            "n 0-3 | 0: cpu 4, memory 1Gi"),
        ("chosen, CPUs only", single(), "", "1.5", designated(lsr("p", "4", FULL), json!({"cpuset": "0-3"})),
            "n 0-3"),
        ("chosen, amounts only", single(), "", "1.5",
            designated(shared("4"), json!({"numaNodeResources": zone()})), "n 0: cpu 4, memory 1Gi"),
        ("chosen, none such", single(), "", "1.5", designated(lsr("p", "4", FULL), status_with("20-23")), TOO_FEW),
    ];
    for (name, labels, kubelet, ratio, pod, expected) in rows {
        let mut engine = engine(json!({}));
        let ratio = json!({"node.koordinator.sh/resource-amplification-ratio": format!(r#"{{"cpu":{ratio}}}"#)});
        engine.node_applied(TWO.node("n", labels, ratio, 96), now());
        let mut notes = json!({});
        if !kubelet.is_empty() {
            notes["kubelet.koordinator.sh/cpu-manager-policy"] = json!(kubelet);
        }
        engine.object_changed(&TWO.topology("n", json!([]), notes), now());
        assert_eq!(place(&mut engine, pod), expected, "{name}");
    }
}

#[test]
fn amplified_cpu_of_a_node() {
    let machine = CpuLayout([2, 1, 8, 2]);
    let full = "1 Insufficient amplified cpu";
    // (case, amplified cores, topology, running pod, new pod)
    #[rustfmt::skip]
    let rows = [
        ("nothing asked", 2, false, (4, false), (0, false), "n -"),
        ("not amplified", 1, false, (0, false), (32, false), "n -"),
        ("no topology", 2, false, (32, false), (32, false), "n -"),
        ("full", 2, false, (64, false), (32, false), full),
        ("shared next to bound", 2, true, (32, true), (32, false), full),
        ("bound next to shared", 2, true, (32, false), (32, true), full),
        ("bound next to bound", 2, true, (32, true), (32, true), full),
    ];
    for (name, ratio, topology, running, comes, expected) in rows {
        let mut engine = engine(json!({}));
        let note = json!({"node.koordinator.sh/resource-amplification-ratio": format!(r#"{{"cpu":{ratio}}}"#)});
        engine.node_applied(machine.node("n", json!({}), note, 32 * ratio), now());
        if topology {
            engine.object_changed(&machine.topology("n", json!([]), json!({})), now());
        }
        let build = |name: &str, (cpu, bound): (u32, bool)| {
            let cpu = cpu.to_string();
            if bound {
                lsr(name, &cpu, "")
            } else {
                pod(name, &cpu, json!({}))
            }
        };
        if running.0 > 0 {
            let got = place(&mut engine, build("there", running));
            assert!(got.starts_with("n "), "{name}: {got}");
        }
        let got = place(&mut engine, build("comes", comes));
        // The shortage of the node as a whole is reported first, by another plugin.
        let own_reasons = got.trim_start_matches("1 Insufficient cpu, ");
        assert!(
            own_reasons == expected || (expected == full && got == "1 Insufficient cpu"),
            "{name}: {got}"
        );
    }
}

/// Lets the pod use the reservation, and nothing else if `only`.
fn owner(mut pod: Pod, only: bool) -> Pod {
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("use".to_owned(), "r".to_owned());
    if only {
        let all = pod.metadata.annotations.get_or_insert_default();
        let affinity = json!({"reservationSelector": {"a": "b"}}).to_string();
        all.insert(annotations::RESERVATION_AFFINITY.to_owned(), affinity);
    }
    pod
}

fn restricted(pod: Pod) -> Pod {
    let mut pod = pod;
    let all = pod.metadata.annotations.get_or_insert_default();
    let spec = r#"{"numaTopologyPolicy":"Restricted"}"#;
    all.insert(annotations::NUMA_TOPOLOGY_SPEC.to_owned(), spec.to_owned());
    pod
}

#[test]
fn upstream_allocations() {
    let strategy = |name: &str| json!({"node.koordinator.sh/numa-allocate-strategy": name});
    let large = CpuLayout([2, 1, 8, 2]);
    let full = "FullPCPUs";
    let none = || json!({});
    let shared = |cpu: &str| pod("p", cpu, json!({}));
    let batch = || {
        let requests = json!({"kubernetes.io/batch-cpu": "4000"});
        let containers = json!([{"name": "c", "resources": {"requests": requests}}]);
        pod(
            "p",
            "1",
            json!({"metadata": {"labels": {"koordinator.sh/qosClass": "BE"}},
            "spec": {"priority": 5500, "containers": containers}}),
        )
    };
    // (case, machine, labels, CPUs that are taken, pod, expected allocation)
    #[rustfmt::skip]
    let rows = [
        ("not bound", TWO, none(), "", shared("4"), "n -"),
        ("whole cores", TWO, none(), "", bound_pod("4", full), "n 0-3"),
        ("by the node's policy", TWO, bind_policy("SpreadByPCPUs"), "", shared("4"), "n 0,2,4,6"),
        ("batch", TWO, bind_policy("SpreadByPCPUs"), "", batch(), "n -"),
        ("too many", TWO, none(), "", bound_pod("24", full), TOO_FEW),
        ("the emptier socket", large, strategy("LeastAllocated"), "0-3", bound_pod("4", full), "n 16-19"),
        ("the fuller socket", large, strategy("MostAllocated"), "0-3", bound_pod("4", full), "n 4-7"),
    ];
    for (name, machine, labels, taken, pod, expected) in rows {
        let mut engine = with_reservations(machine, labels, json!({}), 96);
        let mut node = (*machine.node("n", json!({}), json!({}), 96)).clone();
        node.metadata.labels = engine
            .cluster()
            .nodes()
            .info(engine.cluster().nodes().find("n").unwrap())
            .unwrap()
            .object
            .metadata
            .labels
            .clone();
        let batch_cpu = serde_json::from_value(json!("96000")).unwrap();
        let status = node.status.as_mut().unwrap().allocatable.as_mut().unwrap();
        status.insert("kubernetes.io/batch-cpu".to_owned(), batch_cpu);
        engine.node_applied(Arc::new(node), now());
        if !taken.is_empty() {
            reserve(&mut engine, "other", "", json!({"cpuset": taken}));
        }
        assert_eq!(place(&mut engine, pod), expected, "{name}");
    }

    let reserved_status = |cpus: &str, zone: u32, cpu: u32| {
        let zones =
            json!([{"node": zone, "resources": {"cpu": cpu.to_string(), "memory": "32Gi"}}]);
        match cpus {
            "" => json!({"numaNodeResources": zones}),
            _ if cpu == 0 => json!({"cpuset": cpus}),
            _ => json!({"cpuset": cpus, "numaNodeResources": zones}),
        }
    };
    let ignoring = |pod: Pod| {
        let mut pod = owner(pod, false);
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(
            koord_api::labels::RESERVATION_IGNORED.to_owned(),
            "true".to_owned(),
        );
        pod
    };
    let bound = || bound_pod("4", full);
    let no_cpus = "1 Reservation(s) not enough cpus available to satisfy request";
    // (case, machine, policy and holdings of the reservation, pod, expected allocation)
    #[rustfmt::skip]
    let rows = [
        ("reserved CPUs", TWO, "", reserved_status("4-10", 0, 0), owner(bound(), false), "n 4-7"),
        ("reserved CPUs, restricted", TWO, "Restricted", reserved_status("4-10", 0, 0), owner(bound(), false), "n 4-7"),
        ("too few, restricted", TWO, "Restricted", reserved_status("4-5", 0, 0), owner(bound(), true), no_cpus),
        ("CPUs and amounts", large, "Restricted", reserved_status("4-10", 0, 7), owner(restricted(bound()), true),
            "n 4-7 | 0: cpu 4, memory 1Gi"),
        ("too few of both", TWO, "Restricted", reserved_status("4-5", 0, 2), owner(restricted(bound()), true),
            "1 Unsatisfied NUMA cpu, 1 Unsatisfied NUMA memory"),
        ("amounts", TWO, "Restricted", reserved_status("", 1, 7), owner(restricted(shared("4")), true),
            "n 1: cpu 4, memory 1Gi"),
        ("too small amounts", TWO, "Restricted", reserved_status("", 0, 2), owner(restricted(shared("4")), true),
            "1 Unsatisfied NUMA cpu, 1 Unsatisfied NUMA memory"),
        ("elsewhere, not insisted on", TWO, "Restricted", reserved_status("8-15", 1, 8),
            owner(restricted(shared("4")), false), "n 0: cpu 4, memory 1Gi"),
        ("ignored", TWO, "", reserved_status("4-10", 0, 0), ignoring(bound()), "n 4-7"),
    ];
    for (name, machine, policy, holds, pod, expected) in rows {
        let mut engine = with_reservations(machine, json!({}), json!({}), 96);
        reserve(&mut engine, "r", policy, holds);
        assert_eq!(place(&mut engine, pod), expected, "{name}");
    }
}

#[test]
fn reservation_on_other_numa_nodes_is_not_used() {
    // The emptier NUMA node is the one without the reservation.
    let mut engine = with_reservations(TWO, numa_policy("SingleNUMANode"), json!({}), 96);
    let zone = json!([{"node": 1, "resources": {"cpu": "8", "memory": "32Gi"}}]);
    reserve(
        &mut engine,
        "r",
        "Restricted",
        json!({"numaNodeResources": zone}),
    );
    let pods = ["a", "b", "c"].map(|name| {
        let mut pod = pod(name, "4", json!({}));
        pod.metadata
            .labels
            .get_or_insert_default()
            .insert("use".to_owned(), "r".to_owned());
        pod
    });
    for pod in pods {
        let got = place(&mut engine, pod);
        assert!(got.starts_with("n "), "{got}");
    }
}

/// Upstream's case: the pod's NUMA node is agreed on, and its required reservation has another.
#[test]
fn required_reservation_on_other_numa_nodes_waits() {
    for (zone, fits) in [(0, true), (1, false)] {
        let mut engine = with_reservations(TWO, json!({}), json!({}), 96);
        // NUMA node 1 is full except for what is reserved there, if anything.
        let running = json!([{"node": 1, "resources": {"cpu": "8", "memory": "32Gi"}}]);
        let mut other = pod("other", "8", json!({"spec": {"nodeName": "n"}}));
        let status = json!({ "numaNodeResources": running }).to_string();
        let all = other.metadata.annotations.get_or_insert_default();
        all.insert(annotations::RESOURCE_STATUS.to_owned(), status);
        engine.pod_applied(Arc::new(other), now());
        let status = json!([{"node": zone, "resources": {"cpu": "8", "memory": "8Gi"}}]);
        let status = json!({ "numaNodeResources": status });
        reserve(&mut engine, "r", "Restricted", status);
        let got = place(
            &mut engine,
            owner(restricted(pod("p", "4", json!({}))), true),
        );
        assert_eq!(got.starts_with("n 0: cpu 4"), fits, "{zone}: {got}");
        assert_eq!(got.contains("NUMA"), !fits, "{zone}: {got}");
    }
}
