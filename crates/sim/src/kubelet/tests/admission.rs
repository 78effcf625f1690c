//! Tests of admission.

use super::super::cpus::Cpus;
use super::super::hint::Hint;
use super::super::*;
use koord_model::cpuset::{Cpu, Topology};
use koord_model::numa::NumaMask;
use proptest::prelude::*;

pub(super) const GI: u64 = 1 << 30;

/// Returns a machine of `nodes` NUMA nodes with `cpus` CPUs each, two threads to a core, and `memory` bytes
/// each.
pub(super) fn machine(nodes: u8, cpus: u32, memory: u64) -> Machine {
    let cpu = |id: u32| {
        let node = (id / cpus) as u8;
        Cpu::new(id, id % cpus / 2, i32::from(node), node)
    };
    let bank = |node| {
        let memory = Memory {
            capacity: memory,
            allocatable: memory,
        };
        (node, BTreeMap::from([("memory".to_owned(), memory)]))
    };
    Machine {
        topology: Topology::new((0..u32::from(nodes) * cpus).map(cpu)),
        memory: (0..nodes).map(bank).collect(),
        ..Machine::default()
    }
}

/// Adds devices of one resource, given by the NUMA nodes near them.
pub(super) fn devices(machine: &mut Machine, resource: &str, near: &[Option<u8>]) {
    let device = |(at, near): (usize, &Option<u8>)| Device {
        id: format!("{resource}-{at}"),
        nodes: near.map(|node| NumaMask::from_iter([node])),
        healthy: true,
    };
    let all = near.iter().enumerate().map(device).collect();
    machine.devices.insert(resource.to_owned(), all);
}

fn settings(policy: Policy, scope: Scope) -> Settings {
    Settings {
        policy,
        scope,
        cpu: CpuManager::Static {
            reserved: CpuSet::new(),
            full_cores: false,
        },
        memory: true,
        ..Settings::default()
    }
}

pub(super) fn kubelet(machine: Machine, policy: Policy, scope: Scope) -> Kubelet {
    Kubelet::new(machine, settings(policy, scope)).unwrap()
}

/// Returns a pod with containers of these roles, CPUs and GiB of memory.
pub(super) fn pod(uid: &str, containers: &[(Role, u64, u64)]) -> Pod {
    let container = |(at, (role, cpus, memory)): (usize, &(Role, u64, u64))| Container {
        name: format!("c{at}"),
        role: *role,
        cpu: cpus * 1000,
        memory: BTreeMap::from([("memory".to_owned(), memory * GI)]),
        devices: BTreeMap::new(),
    };
    Pod {
        uid: uid.to_owned(),
        guaranteed: true,
        containers: containers.iter().enumerate().map(container).collect(),
    }
}

pub(super) fn with_devices(mut pod: Pod, wants: &[(&str, u64)]) -> Pod {
    let wants = wants
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count));
    pod.containers[0].devices = wants.collect();
    pod
}

fn reason(kubelet: &mut Kubelet, pod: &Pod) -> &'static str {
    kubelet
        .admit(pod)
        .map_or_else(|refusal| refusal.reason, |()| "")
}

const AFFINITY: &str = "TopologyAffinityError";
use Role::{Init, Main, Sidecar};

/// Last part of acceptance case 1: a placement that the scheduler must not bind.
#[test]
fn ac_1_pod_across_numa_nodes_is_rejected_by_single_numa_node() {
    for scope in [Scope::Container, Scope::Pod] {
        let mut a = kubelet(machine(2, 10, 32 * GI), Policy::SingleNumaNode, scope);
        let pod = pod("pod1", &[(Main, 20, 1)]);
        let refusal = a.admit(&pod).unwrap_err();
        assert_eq!(refusal.reason, AFFINITY);
        assert_eq!(
            refusal.message,
            "Resources cannot be allocated with Topology locality"
        );
        assert_eq!(a.allocations("pod1"), None);
        let mut b = kubelet(machine(2, 20, 32 * GI), Policy::SingleNumaNode, scope);
        b.admit(&pod).unwrap();
        let allocation = &b.allocations("pod1").unwrap()[0];
        assert_eq!(allocation.cpus, "0-19".parse().unwrap());
        assert_eq!(allocation.memory[0].nodes, NumaMask(1));
        assert_eq!(b.shared_cpus(), "20-39".parse().unwrap());
    }
}

/// `restricted` checks what an empty machine could provide, not this one (kubernetes #84597).
#[test]
fn restricted_rejects_pod_that_fits_only_an_empty_numa_node() {
    let place = |policy| {
        let mut kubelet = kubelet(machine(2, 10, 32 * GI), policy, Scope::Container);
        for uid in ["a", "b"] {
            kubelet.admit(&pod(uid, &[(Main, 6, 1)])).unwrap();
        }
        reason(&mut kubelet, &pod("c", &[(Main, 8, 1)]))
    };
    assert_eq!(place(Policy::Restricted), AFFINITY);
    assert_eq!(place(Policy::SingleNumaNode), AFFINITY);
    assert_eq!(place(Policy::BestEffort), "");
    assert_eq!(place(Policy::None), "");
}

/// CPUs need both NUMA nodes, memory only one: they do not agree.
#[test]
fn restricted_rejects_disagreeing_providers() {
    let place = |memory: bool| {
        let settings = Settings {
            memory,
            ..settings(Policy::Restricted, Scope::Container)
        };
        let mut kubelet = Kubelet::new(machine(2, 10, 32 * GI), settings).unwrap();
        reason(&mut kubelet, &pod("a", &[(Main, 20, 1)]))
    };
    assert_eq!(place(true), AFFINITY);
    assert_eq!(place(false), "");
}

/// Acceptance case 3.
#[test]
fn ac_3_containers_or_the_pod_are_aligned() {
    let place = |scope, containers: &[(Role, u64, u64)]| {
        let mut kubelet = kubelet(machine(2, 10, 32 * GI), Policy::SingleNumaNode, scope);
        let refused = reason(&mut kubelet, &pod("a", containers));
        let allocations = kubelet.allocations("a").unwrap_or_default();
        let nodes = |allocation: &ContainerAllocation| allocation.memory[0].nodes.0;
        (refused, allocations.iter().map(nodes).collect::<Vec<_>>())
    };
    let both = &[(Main, 6, 1), (Main, 6, 1)];
    assert_eq!(place(Scope::Container, both), ("", vec![1, 2]));
    assert_eq!(place(Scope::Pod, both), (AFFINITY, vec![]));
    let small = &[(Main, 4, 1), (Main, 6, 1)];
    assert_eq!(place(Scope::Container, small), ("", vec![1, 1]));
    assert_eq!(place(Scope::Pod, small), ("", vec![1, 1]));
    let init = &[(Init, 10, 1), (Main, 6, 1), (Main, 4, 1)];
    assert_eq!(place(Scope::Container, init), ("", vec![1, 1, 1]));
    assert_eq!(place(Scope::Pod, init), ("", vec![1, 1, 1]));
    let side = &[(Sidecar, 4, 1), (Init, 7, 1), (Main, 2, 1)];
    assert_eq!(place(Scope::Pod, side), (AFFINITY, vec![]), "4 next to 7");
}

/// Containers reuse the CPUs of an init container first, so all are bound to its NUMA node.
#[test]
fn containers_stay_where_an_init_container_was() {
    let mut kubelet = kubelet(
        machine(2, 10, 32 * GI),
        Policy::SingleNumaNode,
        Scope::Container,
    );
    kubelet.admit(&pod("a", &[(Main, 6, 1)])).unwrap();
    let apart = pod("b", &[(Init, 2, 1), (Main, 10, 1)]);
    assert_eq!(reason(&mut kubelet, &apart), AFFINITY);
    assert_eq!(reason(&mut kubelet, &pod("c", &[(Main, 10, 1)])), "");
    kubelet.release("c");
    // Once all of its CPUs are in use, the next container may go elsewhere.
    let used = pod("d", &[(Init, 2, 1), (Main, 4, 1), (Main, 10, 1)]);
    assert_eq!(reason(&mut kubelet, &used), "");
}

/// Cases of the CPU manager's `TestGetTopologyHints`: twelve CPUs on two NUMA nodes.
#[test]
fn cpu_hints_are_the_kubelets() {
    let machine = machine(2, 6, GI);
    let yes = |bits| (bits, true);
    let no = |bits| (bits, false);
    type Hints = [(u64, bool)];
    let free: &[(&str, usize, &Hints)] = &[
        ("2-11", 2, &[yes(1), yes(2), no(3)]),
        ("2-11", 5, &[yes(2), no(3)]),
        ("2-11", 7, &[yes(3)]),
        ("2-11", 11, &[]),
        ("0,6", 2, &[no(3)]),
        ("0", 2, &[]),
    ];
    for (cpus, count, want) in free {
        let set = settings(Policy::None, Scope::Container);
        let mut provider = Cpus::new(&machine, &set);
        let busy = machine.topology.all().difference(&cpus.parse().unwrap());
        let allocated = provider.take(&machine, &set, 12, None, &CpuSet::new());
        assert_eq!(allocated.unwrap().len(), 12);
        provider.release(&machine.topology.all().difference(&busy));
        let hints = provider.offer(&machine, *count, &CpuSet::new()).unwrap();
        let hints: Vec<_> = hints
            .into_iter()
            .map(|Hint { mask, preferred }| (mask.unwrap().0, preferred))
            .collect();
        assert_eq!(hints, *want, "{count} of {cpus}");
    }
}

#[test]
fn whole_cores_or_nothing() {
    let settings = |reserved: &str| Settings {
        cpu: CpuManager::Static {
            reserved: reserved.parse().unwrap(),
            full_cores: true,
        },
        ..settings(Policy::None, Scope::Container)
    };
    let of = |reserved: &str, cpus: u64| {
        let mut kubelet = Kubelet::new(machine(1, 8, 32 * GI), settings(reserved)).unwrap();
        kubelet.admit(&pod("a", &[(Main, cpus, 1)])).err()
    };
    let refusal = of("0", 3).unwrap();
    assert_eq!(refusal.reason, "SMTAlignmentError");
    assert_eq!(
        refusal.message,
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    assert_eq!(of("0", 6), None);
    // CPU 1 has half a core.
    assert_eq!(
        of("0,2", 6).unwrap().message,
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 4, \
         requested CPUs = 6, CPUs per core = 2"
    );
}

/// Lack of memory is no hint against a NUMA node; the allocation fails.
#[test]
fn too_little_memory_is_unexpected() {
    let mut kubelet = kubelet(
        machine(2, 10, 4 * GI),
        Policy::SingleNumaNode,
        Scope::Container,
    );
    let refusal = kubelet.admit(&pod("a", &[(Main, 2, 9)])).unwrap_err();
    assert_eq!(refusal.reason, "UnexpectedAdmissionError");
    assert_eq!(
        refusal.message,
        "Allocate failed due to [memorymanager] failed to find NUMA nodes to extend the current \
         topology hint, which is unexpected"
    );
    assert_eq!(kubelet.shared_cpus().len(), 20, "nothing is held");
    assert_eq!(reason(&mut kubelet, &pod("b", &[(Main, 2, 6)])), AFFINITY);
}

/// A NUMA node has blocks either of its own or of a group.
#[test]
fn memory_of_one_numa_node_and_of_several_do_not_mix() {
    let mut kubelet = kubelet(machine(4, 10, 4 * GI), Policy::BestEffort, Scope::Container);
    kubelet.admit(&pod("wide", &[(Main, 1, 6)])).unwrap();
    let nodes =
        |kubelet: &Kubelet, uid: &str| kubelet.allocations(uid).unwrap()[0].memory[0].nodes.0;
    assert_eq!(nodes(&kubelet, "wide"), 0b11);
    kubelet.admit(&pod("one", &[(Main, 1, 1)])).unwrap();
    assert_eq!(nodes(&kubelet, "one"), 0b100);
    kubelet.release("wide");
    kubelet.admit(&pod("two", &[(Main, 1, 1)])).unwrap();
    assert_eq!(nodes(&kubelet, "two"), 0b1);
}

/// Acceptance case 4, and devices without NUMA nodes. With the scope `pod`, the memory manager returns hints
/// for the kinds that main containers request. Kinds that only init containers request give no hint and are
/// searched for at allocation.
#[test]
fn kinds_of_init_containers_alone_are_no_hint_for_the_pod() {
    let huge = "hugepages-2Mi";
    let admit = |scope: Scope, wants: &[bool], policy: Policy| {
        let mut machine = machine(2, 4, 8 * GI);
        for (node, memory) in &mut machine.memory {
            // Huge pages are on the second NUMA node alone.
            let amount = if *node == 1 { GI } else { 0 };
            let pages = Memory {
                capacity: amount,
                allocatable: amount,
            };
            memory.insert(huge.to_owned(), pages);
        }
        let mut kubelet = kubelet(machine, policy, scope);
        let mut pod = pod("p", &[(Init, 1, 1), (Main, 2, 1)]);
        for (container, wants) in pod.containers.iter_mut().zip(wants) {
            if *wants {
                container.memory.insert(huge.to_owned(), GI);
            }
        }
        let reason = reason(&mut kubelet, &pod);
        let allocations = kubelet.allocations("p").unwrap_or_default();
        let on = |at: usize| {
            let nodes: Vec<u32> = allocations
                .get(at)?
                .memory
                .iter()
                .map(|block| block.nodes.0 as u32)
                .collect();
            Some(nodes)
        };
        (reason, on(1))
    };
    // The pod goes to the first NUMA node, where the init container finds no pages. To get any it would need
    // both NUMA nodes, which is worse than the merged hint.
    let only_init = admit(Scope::Pod, &[true, false], Policy::SingleNumaNode);
    assert_eq!(only_init, ("UnexpectedAdmissionError", None));
    // A hint for the pages leads to the NUMA node that has them.
    let both = admit(Scope::Pod, &[true, true], Policy::SingleNumaNode);
    assert_eq!(both, ("", Some(vec![2, 2])));
    let own = admit(Scope::Container, &[true, false], Policy::SingleNumaNode);
    assert_eq!(own.0, "");
}

#[test]
fn ac_4_devices_and_cpus_meet() {
    let want = with_devices(
        pod("a", &[(Main, 1, 1)]),
        &[("ex.com/a", 1), ("ex.com/b", 1)],
    );
    let place = |a: &[Option<u8>], b: &[Option<u8>]| {
        let mut machine = machine(2, 3, 32 * GI);
        devices(&mut machine, "ex.com/a", a);
        devices(&mut machine, "ex.com/b", b);
        let mut kubelet = kubelet(machine, Policy::SingleNumaNode, Scope::Container);
        let refused = reason(&mut kubelet, &want);
        let devices = kubelet
            .allocations("a")
            .map(|allocations| allocations[0].devices.clone());
        (refused, devices.unwrap_or_default())
    };
    let (zero, one) = (Some(0), Some(1));
    let (refused, devices) = place(&[zero, one, one], &[zero, zero, one]);
    assert_eq!(refused, "");
    assert_eq!(devices["ex.com/a"], ["ex.com/a-0"]);
    assert_eq!(devices["ex.com/b"], ["ex.com/b-0"]);
    assert_eq!(place(&[zero; 3], &[one; 3]).0, AFFINITY);
    assert_eq!(place(&[zero; 3], &[None; 3]).0, "", "no topology, no wish");
    assert_eq!(
        place(&[zero; 3], &[None, one]).0,
        AFFINITY,
        "one that says is enough"
    );
}

#[test]
fn devices_that_there_are_not_are_unexpected() {
    let mut machine = machine(2, 10, 32 * GI);
    devices(&mut machine, "ex.com/a", &[None]);
    let mut kubelet = kubelet(machine, Policy::SingleNumaNode, Scope::Container);
    let two = with_devices(pod("a", &[(Main, 1, 1)]), &[("ex.com/a", 2)]);
    assert_eq!(
        kubelet.admit(&two).unwrap_err().message,
        "Allocate failed due to requested number of devices unavailable for ex.com/a. \
         Requested: 2, Available: 1, which is unexpected"
    );
}

/// Acceptance case 5: a pod that is not Guaranteed, or requests fractions of cores, has no exclusive CPUs.
#[test]
fn ac_5_only_guaranteed_pods_have_cpus_and_memory_of_their_own() {
    let mut machine = machine(2, 10, 32 * GI);
    devices(
        &mut machine,
        "ex.com/a",
        &[Some(0), Some(0), Some(1), Some(1)],
    );
    let mut kubelet = kubelet(machine, Policy::SingleNumaNode, Scope::Container);
    let mut burstable = pod("a", &[(Main, 15, 60)]);
    burstable.guaranteed = false;
    assert_eq!(reason(&mut kubelet, &burstable), "");
    assert_eq!(kubelet.allocations("a").unwrap()[0].memory, []);
    let mut three = with_devices(burstable.clone(), &[("ex.com/a", 3)]);
    three.uid = "b".to_owned();
    assert_eq!(reason(&mut kubelet, &three), AFFINITY);
    let mut part = pod("c", &[(Main, 15, 1)]);
    part.containers[0].cpu += 500;
    assert_eq!(reason(&mut kubelet, &part), "");
    assert_eq!(kubelet.shared_cpus().len(), 20);
}

#[test]
fn a_machine_of_too_many_numa_nodes_has_no_kubelet() {
    let nine = machine(9, 2, GI);
    let aligned = settings(Policy::Restricted, Scope::Container);
    let error = Kubelet::new(nine.clone(), aligned.clone()).unwrap_err();
    assert!(error.to_string().contains("at most 8"), "{error}");
    let max_nodes = 9;
    let larger = Settings {
        max_nodes,
        ..aligned
    };
    assert!(Kubelet::new(nine.clone(), larger).is_ok());
    let none = settings(Policy::None, Scope::Container);
    assert!(Kubelet::new(nine, none).is_ok());
    let mut reserved = settings(Policy::None, Scope::Container);
    reserved.cpu = CpuManager::Static {
        reserved: "7-9".parse().unwrap(),
        full_cores: false,
    };
    let error = Kubelet::new(machine(1, 8, GI), reserved).unwrap_err();
    assert_eq!(error.to_string(), "reserved CPUs 7-9: the machine has 0-7");
}

#[test]
fn pods_are_read_as_the_providers_read_them() {
    let pod = serde_json::json!({
        "metadata": {"name": "p", "uid": "u"},
        "spec": {
            "initContainers": [
                {"name": "i"},
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1500m"}}},
            ],
            "containers": [{"name": "c", "resources": {"requests": {
                "cpu": "1.0000001", "memory": "1Gi", "hugepages-2Mi": "4Mi",
                "ex.com/a": "2", "ex.com/unknown": "1", "ephemeral-storage": "1"}}}],
        },
        "status": {"qosClass": "Guaranteed"},
    });
    let object = serde_json::from_value(pod).unwrap();
    let read = Pod::read(&object, |name| name == "ex.com/a");
    assert!(read.guaranteed && read.uid == "u");
    let roles: Vec<_> = read
        .containers
        .iter()
        .map(|container| (container.role, container.cpu))
        .collect();
    assert_eq!(roles, [(Init, 0), (Sidecar, 1500), (Main, 1001)]);
    let main = &read.containers[2];
    assert_eq!(main.memory["memory"], GI);
    assert_eq!(main.memory["hugepages-2Mi"], 4 << 20);
    assert_eq!(main.devices, BTreeMap::from([("ex.com/a".to_owned(), 2)]));
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![2 => Just(Main), 1 => Just(Init), 1 => Just(Sidecar)]
}

proptest! {
    /// Random pods come and go: nothing is allocated twice or beyond the machine; with `single-numa-node` a
    /// container's resources are in one NUMA node; and in the end all is free.
    #[test]
    fn the_books_balance(
        (nodes, cpus) in (1u8..5, 1u32..6),
        policy in prop_oneof![
            Just(Policy::None), Just(Policy::BestEffort), Just(Policy::Restricted),
            Just(Policy::SingleNumaNode)],
        scope in prop_oneof![Just(Scope::Container), Just(Scope::Pod)],
        near in proptest::collection::vec(proptest::option::of(0u8..4), 0..6),
        pods in proptest::collection::vec(
            (proptest::collection::vec((role(), 0u64..9, 0u64..7), 1..4), 0u64..3, 0usize..20), 1..12),
    ) {
        let mut machine = machine(nodes, cpus * 2, 8 * GI);
        let near: Vec<_> = near.into_iter().map(|node| node.filter(|node| *node < nodes)).collect();
        devices(&mut machine, "ex.com/a", &near);
        let mut kubelet = kubelet(machine.clone(), policy, scope);
        for (at, (mut containers, count, leaves)) in pods.into_iter().enumerate() {
            containers.sort_by_key(|(role, ..)| *role == Main);
            let pod = with_devices(pod(&format!("p{at}"), &containers), &[("ex.com/a", count)]);
            let admitted = kubelet.admit(&pod).is_ok();
            prop_assert_eq!(kubelet.allocations(&pod.uid).is_some(), admitted);
            for (want, allocation) in pod.containers.iter().zip(kubelet.allocations(&pod.uid).unwrap_or_default()) {
                prop_assert_eq!(allocation.cpus.len() as u64, want.cpu / 1000);
                prop_assert_eq!(allocation.memory[0].size, want.memory["memory"]);
                let has = allocation.devices.get("ex.com/a").map_or(0, Vec::len) as u64;
                prop_assert_eq!(has, want.devices.get("ex.com/a").copied().unwrap_or(0));
                if policy == Policy::SingleNumaNode {
                    let on: NumaMask = machine.topology.members(&allocation.cpus).map(|cpu| cpu.node).collect();
                    prop_assert!(on.count() <= 1);
                    prop_assert!(on.within(allocation.memory[0].nodes), "{:?}", allocation);
                }
            }
            let uids: Vec<String> = kubelet.pods().map(str::to_owned).collect();
            let mut allocated = CpuSet::new();
            for uid in &uids {
                let mut own = CpuSet::new();
                kubelet.allocations(uid).unwrap().iter().for_each(|allocation| own.add(&allocation.cpus));
                prop_assert!(own.is_disjoint(&allocated));
                allocated.add(&own);
            }
            for node in 0..nodes {
                let blocks = uids.iter().flat_map(|uid| kubelet.allocations(uid).unwrap());
                let taken: u64 = blocks
                    .flat_map(|allocation| &allocation.memory)
                    .filter_map(|block| block.taken.get(&node))
                    .sum();
                prop_assert_eq!(kubelet.free_memory(node, "memory"), 8 * GI - taken);
            }
            if let Some(uid) = uids.get(leaves) {
                prop_assert!(kubelet.release(uid) && !kubelet.release(uid));
            }
        }
        let uids: Vec<String> = kubelet.pods().map(str::to_owned).collect();
        uids.iter().for_each(|uid| assert!(kubelet.release(uid)));
        prop_assert_eq!(kubelet.shared_cpus(), machine.topology.all().clone());
        for node in 0..nodes {
            prop_assert_eq!(kubelet.free_memory(node, "memory"), 8 * GI);
            let count = near.iter().filter(|near| **near == Some(node)).count();
            prop_assert_eq!(kubelet.free_devices(node, "ex.com/a"), count);
        }
        // A released kubelet admits what an empty one would admit.
        let pod = pod("again", &[(Main, u64::from(cpus) * 2, 8)]);
        prop_assert!(kubelet.admit(&pod).is_ok());
    }
}
