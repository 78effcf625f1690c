//! Compares the scheduler's prediction with the kubelet's decision: no pod is placed that the kubelet
//! rejects.

use super::super::*;
use super::admission::{GI, devices, kubelet, machine, pod, with_devices};
use Role::{Init, Main, Sidecar};
use koord_model::alignment::{
    AlignmentRequest, FreeZones, ResourceDemand, ResourceKind, Zone, check_single_zone,
};
use koord_model::export;
use koord_model::resources::{Amounts, CPU, MEMORY, ResourceId, ResourceTable, amount};
use proptest::prelude::*;

const DEVICE: &str = "ex.com/a";

/// Returns the zones that an exporter would report for the kubelet.
fn zones(kubelet: &Kubelet, device: ResourceId) -> Vec<Zone> {
    let shared = kubelet.shared_cpus();
    let zone = |node: u8| {
        let cpus = kubelet.machine().topology.members(&shared);
        let mut available = Amounts::new();
        let cpus = cpus.filter(|cpu| cpu.node == node).count();
        available.set(CPU, cpus as i64 * 1000);
        available.set(MEMORY, kubelet.free_memory(node, "memory") as i64);
        let mut near = kubelet.machine().devices[DEVICE].iter();
        if near.any(|device| device.nodes.is_some_and(|nodes| nodes.has(node))) {
            available.set(device, kubelet.free_devices(node, DEVICE) as i64);
        }
        Zone {
            id: u32::from(node),
            available,
            costs: Vec::new(),
        }
    };
    kubelet.machine().nodes().ids().map(zone).collect()
}

/// Returns the zones that the exporter computes from the kubelet's list, for comparison with [`zones`].
fn exported(kubelet: &Kubelet, table: &ResourceTable) -> Vec<Zone> {
    let listed = kubelet.pods().flat_map(|uid| kubelet.listed(uid));
    let listed: Vec<_> = listed.map(|(_, share)| share).collect();
    let result = export::zones(&kubelet.exported(), &kubelet.allocatable(), &listed);
    assert_eq!(result.problems, Vec::<String>::new());
    let zone = |(zone, id): (koord_api::topology::Zone, u32)| {
        let mut available = Amounts::new();
        for resource in &zone.resources {
            let id = table.intern(&resource.name);
            available.set(id, amount(id, &resource.available));
        }
        Zone {
            id,
            available,
            costs: Vec::new(),
        }
    };
    result.zones.into_iter().zip(0..).map(zone).collect()
}

fn ask(pod: &Pod, device: ResourceId) -> AlignmentRequest {
    let wants = |amounts: BTreeMap<String, u64>| {
        let want = |(name, amount): (String, u64)| {
            let id = match name.as_str() {
                "cpu" => CPU,
                "memory" => MEMORY,
                _ => device,
            };
            ResourceDemand {
                id,
                amount: amount as i64,
                kind: ResourceKind::from_name(&name),
            }
        };
        let mut wants: Vec<ResourceDemand> = amounts.into_iter().map(want).collect();
        wants.sort_by_key(|want| want.id);
        wants
    };
    let all = |container: &Container| {
        let mut all = container.memory.clone();
        all.extend(container.devices.clone());
        all.insert("cpu".to_owned(), container.cpu);
        all
    };
    AlignmentRequest {
        guaranteed: pod.guaranteed,
        whole: wants(pod.peak(all)),
        containers: pod
            .containers
            .iter()
            .map(|container| (container.role, wants(all(container))))
            .collect(),
    }
}

fn predicted(kubelet: &Kubelet, pod: &Pod) -> bool {
    let table = ResourceTable::new();
    let device = table.intern(DEVICE);
    let zones = zones(kubelet, device);
    let none = Amounts::new();
    let has_devices = !kubelet.machine().devices[DEVICE].is_empty();
    let on_node = |id| id != device || has_devices;
    let free = FreeZones::new(&zones, &none);
    check_single_zone(&ask(pod, device), kubelet.settings().scope, free, on_node).is_ok()
}

/// Returns a kubelet with two NUMA nodes of ten CPUs; `taken` CPUs of the first are allocated.
fn busy(taken: u64) -> Kubelet {
    let mut machine = machine(2, 10, 32 * GI);
    devices(&mut machine, DEVICE, &[Some(0), Some(1), Some(1)]);
    let mut kubelet = kubelet(machine, Policy::SingleNumaNode, Scope::Container);
    if taken > 0 {
        kubelet.admit(&pod("busy", &[(Main, taken, 1)])).unwrap();
    }
    kubelet
}

/// Compares prediction and admission for pods whose init containers leave CPUs or devices.
#[test]
fn what_an_init_container_leaves_binds_those_after_it() {
    let judge = |taken: u64, pod: &Pod| {
        let mut kubelet = busy(taken);
        (predicted(&kubelet, pod), kubelet.admit(pod).is_ok())
    };
    type Containers = [(Role, u64, u64)];
    let cases: &[(u64, &Containers, (bool, bool))] = &[
        // Upstream's filter accepts the first one.
        (6, &[(Init, 2, 1), (Main, 10, 1)], (false, false)),
        (
            6,
            &[(Init, 2, 1), (Sidecar, 10, 1), (Main, 1, 1)],
            (false, false),
        ),
        (6, &[(Init, 6, 1), (Main, 10, 1)], (true, true)),
        (
            0,
            &[(Init, 10, 1), (Main, 6, 1), (Main, 4, 1)],
            (true, true),
        ),
        // The first main container uses all of it.
        (
            0,
            &[(Init, 4, 1), (Main, 10, 1), (Main, 6, 1)],
            (true, true),
        ),
        // The remainder depends on which CPUs each container has, so it is not relied on.
        (
            0,
            &[(Init, 2, 1), (Main, 6, 1), (Main, 6, 1)],
            (false, true),
        ),
    ];
    for (taken, containers, want) in cases {
        let result = judge(*taken, &pod("p", containers));
        assert_eq!(result, *want, "{taken} {containers:?}");
    }
    let device = with_devices(pod("p", &[(Init, 1, 1), (Main, 1, 1)]), &[(DEVICE, 1)]);
    let mut two = device.clone();
    two.containers[1].devices = BTreeMap::from([(DEVICE.to_owned(), 2)]);
    assert_eq!(
        judge(0, &two),
        (false, false),
        "the device is on the other NUMA node"
    );
    assert_eq!(judge(0, &device), (true, true));
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![3 => Just(Main), 1 => Just(Init), 1 => Just(Sidecar)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Guaranteed pods of whole CPUs, one after the other, each with a report of its own: every pod predicted
    /// to fit is admitted, and every admitted pod without init containers was predicted to fit.
    #[test]
    fn what_is_placed_is_admitted(
        (nodes, cores) in (1u8..5, 1u32..6),
        scope in prop_oneof![Just(Scope::Container), Just(Scope::Pod)],
        near in proptest::collection::vec(0u8..4, 0..6),
        pods in proptest::collection::vec(
            (proptest::collection::vec((role(), 1u64..9, 1u64..7, 0u64..3), 1..5), 0usize..20), 1..10),
    ) {
        let mut machine = machine(nodes, cores * 2, 8 * GI);
        let near: Vec<_> = near.into_iter().map(|node| Some(node % nodes)).collect();
        devices(&mut machine, DEVICE, &near);
        let mut kubelet = kubelet(machine, Policy::SingleNumaNode, scope);
        for (at, (mut containers, leaves)) in pods.into_iter().enumerate() {
            // Every pod has a main container.
            containers[0].0 = Main;
            containers.sort_by_key(|(role, ..)| *role == Main);
            let sizes: Vec<_> = containers.iter().map(|(role, cpu, memory, _)| (*role, *cpu, *memory)).collect();
            let mut pod = pod(&format!("p{at}"), &sizes);
            for (container, (.., count)) in pod.containers.iter_mut().zip(&containers) {
                if *count > 0 {
                    container.devices.insert(DEVICE.to_owned(), *count);
                }
            }
            let predicted = predicted(&kubelet, &pod);
            let admitted = kubelet.admit(&pod);
            let plain = containers.iter().all(|(role, ..)| *role == Main);
            if predicted || plain {
                prop_assert_eq!(predicted, admitted.is_ok(), "{:?} {:?}", admitted, pod);
            }
            // Resources that init containers leave behind are allocated, but not listed.
            let ended = kubelet.pods.values().flatten().any(|allocation| allocation.ended);
            if !ended {
                let table = ResourceTable::new();
                let device = table.intern(DEVICE);
                prop_assert_eq!(exported(&kubelet, &table), zones(&kubelet, device));
            }
            let uids: Vec<String> = kubelet.pods().map(str::to_owned).collect();
            if let Some(uid) = uids.get(leaves) {
                kubelet.release(uid);
            }
        }
    }
}
