//! Tests which zones are exported for a machine and the kubelet's lists.

mod upstream;

use super::*;
use crate::alignment::Config;

const GI: u64 = 1 << 30;

fn mask(nodes: &[u8]) -> NumaMask {
    nodes.iter().copied().collect()
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn block(size: u64, nodes: &[u8]) -> Block {
    Block {
        kind: "memory".to_owned(),
        size,
        nodes: mask(nodes),
    }
}

fn devices(ids: &[&str], nodes: &[u8]) -> Devices {
    Devices {
        resource: "ex.com/a".to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        nodes: mask(nodes),
    }
}

/// Creates two NUMA nodes of four CPUs and 8 GiB; the first CPU and one GiB of each are reserved.
fn machine() -> (MachineTopology, Share) {
    let node = |list: &str, near: u8| Node {
        cpus: cpus(list),
        memory: BTreeMap::from([("memory".to_owned(), 8 * GI)]),
        distances: (0..2)
            .map(|to| (to, if to == near { 10 } else { 21 }))
            .collect(),
    };
    let machine = BTreeMap::from([(0, node("0-3", 0)), (1, node("4-7", 1))]);
    let share = Share {
        cpus: cpus("1-3,5-7"),
        memory: vec![block(7 * GI, &[0]), block(7 * GI, &[1])],
        devices: vec![devices(&["a", "b"], &[0]), devices(&["c"], &[1])],
    };
    (machine, share)
}

/// Formats each zone as `name capacity/allocatable/available`.
fn text(zones: &[Zone]) -> Vec<String> {
    let resource = |one: &ResourceInfo| {
        let (capacity, allocatable) = (&one.capacity, &one.allocatable);
        format!("{} {capacity}/{allocatable}/{}", one.name, one.available)
    };
    let zone = |zone: &Zone| {
        let all: Vec<String> = zone.resources.iter().map(resource).collect();
        format!("{} {}: {}", zone.name, zone.type_, all.join(", "))
    };
    zones.iter().map(zone).collect()
}

#[test]
fn idle_machine_has_all_allocatable_amounts_available() {
    let (machine, all) = machine();
    let actual = zones(&machine, &all, &[]);
    assert_eq!(
        text(&actual.zones),
        [
            "node-0 Node: cpu 4/3/3, ex.com/a 2/2/2, memory 8Gi/7Gi/7Gi",
            "node-1 Node: cpu 4/3/3, ex.com/a 1/1/1, memory 8Gi/7Gi/7Gi",
        ]
    );
    let costs: Vec<_> = actual.zones[1]
        .costs
        .iter()
        .map(|it| (&*it.name, it.value))
        .collect();
    assert_eq!(costs, [("node-0", 21), ("node-1", 10)]);
    assert!(actual.problems.is_empty(), "{:?}", actual.problems);
}

#[test]
fn amounts_of_containers_are_not_available() {
    let (machine, all) = machine();
    let share = Share {
        cpus: cpus("1-2,5"),
        memory: vec![block(9 * GI, &[0, 1])],
        devices: vec![devices(&["b", "c"], &[])],
    };
    let actual = zones(&machine, &all, &[share]);
    assert_eq!(
        text(&actual.zones),
        [
            "node-0 Node: cpu 4/3/1, ex.com/a 2/2/1, memory 8Gi/7Gi/0",
            "node-1 Node: cpu 4/3/2, ex.com/a 1/1/0, memory 8Gi/7Gi/5Gi",
        ]
    );
    assert!(actual.problems.is_empty(), "{:?}", actual.problems);
}

/// NUMA nodes with memory without CPUs (CXL), with only reserved CPUs, and with memory that the memory
/// manager does not report.
#[test]
fn numa_nodes_without_cpus_or_memory_are_zones() {
    let (mut machine, mut all) = machine();
    machine.insert(
        4,
        Node {
            memory: BTreeMap::from([("memory".to_owned(), 32 * GI)]),
            ..Node::default()
        },
    );
    all.cpus = cpus("1-3");
    all.memory = vec![block(32 * GI, &[4])];
    let actual = zones(&machine, &all, &[]);
    assert_eq!(
        text(&actual.zones),
        [
            "node-0 Node: cpu 4/3/3, ex.com/a 2/2/2",
            "node-1 Node: cpu 4/0/0, ex.com/a 1/1/1",
            "node-4 Node: cpu 0/0/0, memory 32Gi/32Gi/32Gi",
        ]
    );
}

/// The kubelet lists a device near several NUMA nodes once for each of them.
#[test]
fn device_near_two_numa_nodes_counts_once() {
    let (machine, mut all) = machine();
    let x = vec![devices(&["x"], &[0]), devices(&["x"], &[1])];
    all.devices.clone_from(&x);
    all.devices.push(devices(&["y"], &[1]));
    let share = Share {
        devices: x,
        ..Share::default()
    };
    for (taken, free) in [(&[][..], [1, 2]), (&[share], [0, 1])] {
        let actual = zones(&machine, &all, taken);
        let memory = "memory 8Gi/7Gi/7Gi";
        assert_eq!(
            text(&actual.zones),
            [
                format!("node-0 Node: cpu 4/3/3, ex.com/a 1/1/{}, {memory}", free[0]),
                format!("node-1 Node: cpu 4/3/3, ex.com/a 2/2/{}, {memory}", free[1]),
            ]
        );
        assert_eq!(actual.problems, [""; 0]);
    }
}

/// Lists that contradict each other or the machine count no device or CPU twice, and no amount is below 0.
#[test]
fn contradictions_are_reported_and_counted_once() {
    let (machine, mut all) = machine();
    all.cpus.insert(9);
    all.devices.push(devices(&["a"], &[0]));
    all.devices.push(devices(&["d"], &[7]));
    all.memory.push(block(GI, &[7]));
    let first = Share {
        cpus: cpus("0-2"),
        memory: vec![block(6 * GI, &[0])],
        devices: vec![devices(&["a", "x"], &[0])],
    };
    let second = Share {
        cpus: cpus("2-3,44"),
        memory: vec![block(2 * GI, &[0])],
        devices: vec![devices(&["a"], &[0])],
    };
    let actual = zones(&machine, &all, &[first, second]);
    assert_eq!(
        text(&actual.zones),
        [
            "node-0 Node: cpu 4/3/0, ex.com/a 2/2/1, memory 8Gi/7Gi/0",
            "node-1 Node: cpu 4/3/3, ex.com/a 1/1/1, memory 8Gi/7Gi/7Gi",
        ]
    );
    assert_eq!(
        actual.problems,
        [
            "a container has CPUs 0, which are not allocatable",
            "a container has CPUs 44, which are not allocatable",
            "a container has device \"x\" of ex.com/a, which is not allocatable",
            "allocatable CPUs 9 are in no NUMA node",
            "allocatable memory in NUMA node 7, which there is not",
            "containers have 1073741824 bytes of memory more in NUMA nodes 01 than is allocatable",
            "device \"d\" of ex.com/a is near NUMA node 7, which there is not",
            "two containers have CPUs 2",
            "two containers have device \"a\" of ex.com/a",
        ]
    );
    assert!(actual.is_contradictory);
}

/// An unhealthy device is not listed as allocatable, and the container that has it keeps it. A device
/// without a NUMA node is allocated to no container. Free amounts are still known.
#[test]
fn unhealthy_or_unplaced_devices_are_no_contradiction() {
    let (machine, mut all) = machine();
    all.devices.push(devices(&["d"], &[7]));
    let share = Share {
        devices: vec![devices(&["x"], &[0])],
        ..Share::default()
    };
    let actual = zones(&machine, &all, &[share]);
    assert_eq!(actual.problems.len(), 2, "{:?}", actual.problems);
    assert!(!actual.is_contradictory);
    for share in [
        Share {
            cpus: cpus("0"),
            ..Share::default()
        },
        Share {
            memory: vec![block(8 * GI, &[0])],
            ..Share::default()
        },
    ] {
        assert!(zones(&machine, &all, &[share]).is_contradictory);
    }
}

/// Checks that the scheduler reads the policy back that was written.
#[test]
fn written_policy_and_attributes_are_read_back() {
    for policy in Policy::ALL {
        for scope in Scope::ALL {
            let attributes = attributes(policy, scope, Some("pfp0v001ef46db3751d8e999".to_owned()));
            let pairs = attributes
                .iter()
                .map(|it| (it.name.as_str(), it.value.as_str()));
            let (read, unread) = Config::read([], pairs);
            assert_eq!((read.policy, read.scope), (policy, scope));
            assert!(unread.is_empty(), "{unread:?}");
            let (read, _) = Config::read([policy_name(policy, scope)], []);
            // Without a policy there is no scope.
            let scope = if policy == Policy::None {
                Scope::Container
            } else {
                scope
            };
            assert_eq!((read.policy, read.scope), (policy, scope));
            assert_eq!(policy.as_str().parse(), Ok(policy));
        }
    }
    assert!(
        "strict"
            .parse::<Policy>()
            .unwrap_err()
            .to_string()
            .contains("\"strict\"")
    );
}
