//! Tests of the PodResources list.

use super::super::*;
use super::admission::{GI, kubelet, machine, pod, with_devices};
use koord_model::export::{Devices, zones};

/// The kubelet lists a device once for each NUMA node that it is near.
#[test]
fn device_near_two_numa_nodes_is_listed_twice_counted_once() {
    let mut machine = machine(2, 4, 8 * GI);
    let device = |id: &str, nodes: Option<&[u8]>| Device {
        id: id.to_owned(),
        nodes: nodes.map(|nodes| nodes.iter().copied().collect()),
        healthy: true,
    };
    let all = vec![device("both", Some(&[0, 1])), device("silent", None)];
    machine.devices.insert("ex.com/a".to_owned(), all);
    let mut kubelet = kubelet(machine, Policy::BestEffort, Scope::Container);
    let pod = with_devices(pod("a", &[(Role::Main, 1, 1)]), &[("ex.com/a", 2)]);
    kubelet.admit(&pod).unwrap();
    let entry = |id: &str, nodes: &[u8]| Devices {
        resource: "ex.com/a".to_owned(),
        ids: vec![id.to_owned()],
        nodes: nodes.iter().copied().collect(),
    };
    let expected = [
        entry("both", &[0]),
        entry("both", &[1]),
        entry("silent", &[]),
    ];
    assert_eq!(kubelet.allocatable().devices, expected);
    let shares: Vec<_> = kubelet.listed("a").into_iter().map(|it| it.1).collect();
    assert_eq!(shares[0].devices, expected);
    let exported = zones(&kubelet.exported(), &kubelet.allocatable(), &shares);
    assert_eq!(exported.problems, [""; 0]);
    for zone in &exported.zones {
        let device = zone.resources.iter().find(|it| it.name == "ex.com/a");
        let device = device.unwrap();
        assert_eq!((device.capacity.value(), device.available.value()), (1, 0));
    }
}

/// Only the static policy makes CPUs exclusive.
#[test]
fn without_a_cpu_manager_no_cpus_are_allocatable() {
    let mut settings = Settings::default();
    for (cpu, count) in [
        (CpuManager::None, 0),
        (
            CpuManager::Static {
                reserved: CpuSet::new(),
                full_cores: false,
            },
            8,
        ),
    ] {
        settings.cpu = cpu;
        let kubelet = Kubelet::new(machine(2, 4, 8 * GI), settings.clone()).unwrap();
        assert_eq!(kubelet.allocatable().cpus.len(), count);
    }
}
