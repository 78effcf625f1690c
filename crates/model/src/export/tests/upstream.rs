//! Tables of nfd-topology-updater, from their facts (node-feature-discovery, `pkg/resourcemonitor` and
//! `pkg/topologypolicy`).

use super::*;

/// Creates two NUMA nodes, one with the even CPUs of 24.
fn even_and_odd() -> MachineTopology {
    let node = |first: u32, memory: &[&str]| Node {
        cpus: (first..24).step_by(2).collect(),
        memory: memory
            .iter()
            .map(|kind| ((*kind).to_owned(), 2048))
            .collect(),
        distances: (0..2)
            .map(|to| (to, if u32::from(to) == first { 10 } else { 20 }))
            .collect(),
    };
    BTreeMap::from([
        (0, node(0, &["memory"])),
        (1, node(1, &["memory", "hugepages-2Mi"])),
    ])
}

fn named(kind: &str, size: u64, node: u8) -> Block {
    Block {
        kind: kind.to_owned(),
        size,
        nodes: mask(&[node]),
    }
}

fn fake_devices(resource: &str, ids: &[&str], node: u8) -> Devices {
    Devices {
        resource: format!("fake.io/{resource}"),
        ..devices(ids, &[node])
    }
}

fn allocatable(reserved: u32, devices: Vec<Devices>) -> Share {
    Share {
        cpus: (reserved..24).collect(),
        memory: vec![
            named("memory", 1024, 0),
            named("memory", 1024, 1),
            named("hugepages-2Mi", 1024, 1),
        ],
        devices,
    }
}

/// TestResourcesAggregator.
#[test]
fn zones_equal_upstream() {
    let one_by_one = |ids: &[&str], node| -> Vec<Devices> {
        ids.iter()
            .map(|id| fake_devices("net", &[id], node))
            .collect()
    };
    let mut all = one_by_one(&["netAAA-0", "netAAA-1", "netAAA-2", "netAAA-3"], 0);
    all.extend(one_by_one(&["netBBB-0", "netBBB-1"], 1));
    all.push(fake_devices("gpu", &["gpuAAA"], 1));
    let actual = zones(&even_and_odd(), &allocatable(2, all), &[]);
    assert_eq!(
        text(&actual.zones),
        [
            "node-0 Node: cpu 12/11/11, fake.io/net 4/4/4, memory 2Ki/1Ki/1Ki",
            "node-1 Node: cpu 12/11/11, fake.io/gpu 1/1/1, fake.io/net 2/2/2, \
             hugepages-2Mi 2Ki/1Ki/1Ki, memory 2Ki/1Ki/1Ki",
        ]
    );
    let costs = |zone: &Zone| -> Vec<(String, i64)> {
        let costs = zone.costs.iter();
        costs.map(|cost| (cost.name.clone(), cost.value)).collect()
    };
    let costs: Vec<_> = actual.zones.iter().map(costs).collect();
    let row = |to0, to1| vec![("node-0".to_owned(), to0), ("node-1".to_owned(), to1)];
    assert_eq!(costs, [row(10, 20), row(20, 10)]);

    let all = vec![
        fake_devices("net", &["netAAA"], 0),
        fake_devices("net", &["netBBB"], 1),
        fake_devices("gpu", &["gpuAAA"], 1),
    ];
    let pod = Share {
        cpus: cpus("5,7"),
        memory: vec![named("memory", 512, 1), named("hugepages-2Mi", 512, 1)],
        devices: vec![fake_devices("net", &["netBBB"], 1)],
    };
    let actual = zones(&even_and_odd(), &allocatable(1, all), &[pod]);
    assert_eq!(
        text(&actual.zones),
        [
            "node-0 Node: cpu 12/11/11, fake.io/net 1/1/1, memory 2Ki/1Ki/1Ki",
            "node-1 Node: cpu 12/12/10, fake.io/gpu 1/1/1, fake.io/net 1/1/0, \
             hugepages-2Mi 2Ki/1Ki/512, memory 2Ki/1Ki/512",
        ]
    );
    assert_eq!(actual.problems, [""; 0]);
}

/// `TestDetectTopologyPolicy`. Upstream maps unknown policies to `None`; here they map to no policy.
#[test]
fn policies_have_upstreams_names() {
    for (policy, scope, name) in [
        ("best-effort", "pod", "BestEffortPodLevel"),
        ("best-effort", "container", "BestEffortContainerLevel"),
        ("restricted", "container", "RestrictedContainerLevel"),
        ("restricted", "pod", "RestrictedPodLevel"),
        ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
        (
            "single-numa-node",
            "container",
            "SingleNUMANodeContainerLevel",
        ),
        ("none", "container", "None"),
        ("none", "pod", "None"),
        ("non-existent", "pod", ""),
        ("non-existent", "container", ""),
        ("single-numa-node", "non-existent", ""),
    ] {
        let read = (policy.parse::<Policy>(), scope.parse::<Scope>());
        let actual = match read {
            (Ok(policy), Ok(scope)) => policy_name(policy, scope),
            _ => "",
        };
        assert_eq!(actual, name, "{policy} {scope}");
    }
}
