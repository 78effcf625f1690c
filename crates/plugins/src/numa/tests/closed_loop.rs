//! The plugin together with kubelets that report topologyManagerPolicy single-numa-node in scope pod: every
//! placement is admitted.

use super::*;
use koord_model::alignment::{Policy, Scope};
use koord_model::cpuset::{Cpu, CpuSet, Topology};
use koord_sim::kubelet::{self, CpuManager, Kubelet, Memory, Settings};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;

/// Memory of each NUMA node in the report, in bytes.
const MEMORY: u64 = 32 << 30;

struct NumaWorld {
    engine: Engine,
    kubelets: BTreeMap<String, Kubelet>,
    /// Running pods by name.
    pods: BTreeMap<String, BindRequest>,
}

impl NumaWorld {
    fn new(machines: &[CpuLayout], settings: &Settings) -> Self {
        let mut world = Self {
            engine: engine(json!({})),
            kubelets: BTreeMap::new(),
            pods: BTreeMap::new(),
        };
        for (index, machine) in machines.iter().enumerate() {
            let name = format!("n{index}");
            let node = machine.node(&name, json!({}), json!({}), machine.cpus());
            world.engine.node_applied(node, now());
            let manager = match settings.cpu {
                CpuManager::None => "none",
                CpuManager::Static { .. } => "static",
            };
            world.report(&name, *machine, manager);
            let kubelet = Kubelet::new(machine.machine(), settings.clone());
            world.kubelets.insert(name, kubelet.unwrap());
        }
        world
    }

    /// Reports a node's topology, as koordlet does.
    fn report(&mut self, name: &str, machine: CpuLayout, manager: &str) {
        let policies = json!(["SingleNUMANodePodLevel"]);
        let key = annotations::KUBELET_CPU_MANAGER_POLICY;
        let manager = json!({key: json!({"policy": manager}).to_string()});
        let report = machine.topology(name, policies, manager);
        self.engine.object_changed(&report, now());
    }

    fn place(&mut self, pod: &Pod) -> Result<BindRequest, String> {
        let bind = try_bind(&mut self.engine, pod.clone());
        if bind.is_err() {
            self.engine.pod_deleted(&Arc::new(pod.clone()), now());
        }
        bind
    }

    /// Binds the pod and lets its kubelet admit it.
    fn run(&mut self, bind: BindRequest) -> Result<(), kubelet::Refusal> {
        let uid = bind.pod.uid.to_string();
        let kubelet = self.kubelets.get_mut(&*bind.node).unwrap();
        kubelet.admit(&read(&bind.pod.object.pod))?;
        self.engine.bind_finished(&uid, Ok(()), now());
        self.engine.pod_applied(Arc::new(bound(&bind)), now());
        self.pods.insert(uid, bind);
        Ok(())
    }

    fn leave(&mut self, name: &str) {
        let Some(bind) = self.pods.remove(name) else {
            return;
        };
        self.kubelets.get_mut(&*bind.node).unwrap().release(name);
        self.engine.pod_deleted(&Arc::new(bound(&bind)), now());
    }

    fn any_would_admit(&self, pod: &Pod) -> bool {
        let pod = read(pod);
        let mut kubelets = self.kubelets.values();
        kubelets.any(|kubelet| kubelet.clone().admit(&pod).is_ok())
    }
}

impl CpuLayout {
    fn machine(self) -> kubelet::Machine {
        let [_, nodes, cores, threads] = self.0;
        let cpu = |id: u32| {
            let core = id / threads;
            let node = core / cores;
            let socket = i32::try_from(node / nodes).unwrap();
            Cpu::new(id, core, socket, u8::try_from(node).unwrap())
        };
        let memory = Memory {
            capacity: MEMORY,
            allocatable: MEMORY,
        };
        let bank = |node: u32| {
            let all = BTreeMap::from([("memory".to_owned(), memory)]);
            (u8::try_from(node).unwrap(), all)
        };
        kubelet::Machine {
            topology: Topology::new((0..self.cpus()).map(cpu)),
            memory: (0..self.nodes()).map(bank).collect(),
            ..kubelet::Machine::default()
        }
    }
}

fn read(pod: &Pod) -> kubelet::Pod {
    kubelet::Pod::read(pod, |_| false)
}

fn settings(cpu: CpuManager, memory: bool) -> Settings {
    Settings {
        policy: Policy::SingleNumaNode,
        scope: Scope::Pod,
        cpu,
        memory,
        ..Settings::default()
    }
}

/// Returns a Guaranteed pod.
fn guaranteed(name: &str, qos: &str, cpu: u32, memory: u32) -> Pod {
    let amounts = json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi")});
    let resources = json!({"requests": amounts, "limits": amounts});
    let change = json!({
        "metadata": {"labels": {"koordinator.sh/qosClass": qos}},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
    });
    pod(name, "1", change)
}

fn machines() -> impl Strategy<Value = Vec<CpuLayout>> {
    let machine = (1u32..3, 1u32..3, 1u32..6, 1u32..3);
    let machine = machine
        .prop_map(|(sockets, nodes, cores, threads)| CpuLayout([sockets, nodes, cores, threads]));
    proptest::collection::vec(machine, 1..4)
}

fn drawn<S: Strategy>(random: &mut TestRunner, from: S) -> S::Value {
    from.new_tree(random).unwrap().current()
}

/// Covers kubelets with a static CPU manager, which choose CPUs themselves. With pods of one size any choice
/// leaves space for as many; with other sizes and a static memory manager, the kubelet's choice is
/// predictable.
#[test]
fn pods_are_admitted_by_kubelets_that_choose_themselves() {
    let mut random = TestRunner::deterministic();
    for one_size in [true, false] {
        let (mut placed, mut nowhere, mut left) = (0, 0, 0);
        for _ in 0..100 {
            let cpu = CpuManager::Static {
                reserved: CpuSet::new(),
                full_cores: false,
            };
            let memory = !one_size || drawn(&mut random, any::<bool>());
            let mut world = NumaWorld::new(&drawn(&mut random, machines()), &settings(cpu, memory));
            let sizes = (1u32..6, 1u32..12);
            let first = drawn(&mut random, sizes.clone());
            for step in 0..30 {
                let (cpu, gib) = if one_size {
                    first
                } else {
                    drawn(&mut random, sizes.clone())
                };
                let pod = guaranteed(&format!("p{step}"), "LS", cpu, gib);
                match world.place(&pod) {
                    Ok(bind) => {
                        let node = bind.node.clone();
                        let admitted = world.run(bind);
                        assert!(admitted.is_ok(), "{admitted:?} on {node}: {pod:?}");
                        placed += 1;
                    }
                    Err(why) => {
                        // Without a memory manager the kubelet does not look at the memory of NUMA nodes.
                        let full = !memory || !world.any_would_admit(&pod);
                        assert!(full, "{why}: {pod:?}");
                        nowhere += 1;
                    }
                }
                let before = world.pods.len();
                world.leave(&format!("p{}", drawn(&mut random, 0..60)));
                left += before - world.pods.len();
            }
        }
        println!("one size {one_size}: {placed} placed, {nowhere} nowhere, {left} left");
        assert!(placed > 500 && nowhere > 500 && left > 100);
    }
}

/// Koordinator puts 5 next to 3, and 4 next to 4; this kubelet would put 4 next to 3, and have no NUMA node
/// for the last.
#[test]
fn pod_that_kubelet_would_reject_waits() {
    let cpu = CpuManager::Static {
        reserved: CpuSet::new(),
        full_cores: false,
    };
    let mut world = NumaWorld::new(&[TWO], &settings(cpu, false));
    for (name, cpu) in [("a", 3), ("b", 4), ("c", 5)] {
        let bind = world.place(&guaranteed(name, "LS", cpu, 1)).unwrap();
        world.run(bind).unwrap();
    }
    let last = guaranteed("d", "LS", 4, 1);
    let message = world.place(&last).unwrap_err();
    assert!(
        message.contains("Unaligned NUMA Hint cause cpu"),
        "{message}"
    );
    assert!(!world.any_would_admit(&last));
    // A pod that gets no CPUs from that kubelet is placed as usual: on the emptiest NUMA node.
    let zone = |cpu: &str, change: Value| {
        let mut world = NumaWorld::new(&[TWO], &settings(CpuManager::None, false));
        world.report("n0", TWO, "static");
        let first = world.place(&guaranteed("a", "LS", 3, 1)).unwrap();
        assert_eq!(status(&first), "0: cpu 3, memory 1Gi");
        world.run(first).unwrap();
        let bind = world.place(&pod("b", cpu, change)).unwrap();
        status(&bind).split(':').next().unwrap().to_owned()
    };
    assert_eq!(zone("2", json!({})), "1");
    let part = json!({"cpu": "1500m", "memory": "1Gi"});
    let part = json!([{"name": "c", "resources": {"requests": part, "limits": part}}]);
    assert_eq!(zone("2", json!({"spec": {"containers": part}})), "1");
    let whole_cpus = guaranteed("b", "LS", 2, 1);
    let whole_cpus = serde_json::to_value(whole_cpus.spec.unwrap().containers).unwrap();
    assert_eq!(zone("2", json!({"spec": {"containers": whole_cpus}})), "0");
}

/// With CPU manager none, koordlet applies the chosen CPUs: they belong to one NUMA node and to no other pod.
/// The kubelet admits pods of all sizes.
#[test]
fn cpu_manager_none_applies_chosen_cpus() {
    let mut random = TestRunner::deterministic();
    let (mut bound_to, mut shared, mut nowhere, mut several) = (0, 0, 0, 0);
    for _ in 0..100 {
        let machines = drawn(&mut random, machines());
        let mut world = NumaWorld::new(&machines, &settings(CpuManager::None, false));
        for step in 0..30 {
            let (qos, cpu, memory) = drawn(&mut random, (any::<bool>(), 1u32..9, 1u32..12));
            let qos = if qos { "LSR" } else { "LS" };
            let pod = guaranteed(&format!("p{step}"), qos, cpu, memory);
            let Ok(bind) = world.place(&pod) else {
                nowhere += 1;
                continue;
            };
            let node = bind.node.to_string();
            world.run(bind).unwrap();
            let on_node = world.pods.values().filter(|bind| *bind.node == *node);
            let statuses: Vec<ResourceStatus> = on_node
                .map(|bind| {
                    let text = bind.patch.annotations.get(annotations::RESOURCE_STATUS);
                    text.map_or_else(Default::default, |text| serde_json::from_str(text).unwrap())
                })
                .collect();
            let topology = world.kubelets[&node].machine().topology.clone();
            let mut used_cpus = CpuSet::new();
            let mut sums: BTreeMap<i32, [u64; 2]> = BTreeMap::new();
            // With a single NUMA node there is nothing to choose.
            let only = topology.nodes().count() == 1;
            for status in &statuses {
                let cpus: CpuSet = status.cpuset.parse().unwrap();
                assert!(
                    cpus.intersection(&used_cpus).is_empty(),
                    "given twice: {statuses:?}"
                );
                used_cpus.add(&cpus);
                let [zone] = status.numa_node_resources.as_slice() else {
                    assert!(only, "not one NUMA node: {status:?}");
                    continue;
                };
                let sum = sums.entry(zone.node).or_default();
                let amount = |name: &str| u64::try_from(zone.resources[name].value()).unwrap();
                sum[0] += amount("cpu");
                sum[1] += amount("memory");
                let zone_cpus = topology.on_node(u8::try_from(zone.node).unwrap()).unwrap();
                assert!(cpus.is_subset(zone_cpus), "{status:?}");
                let count = cpus.len() as u64;
                assert!(count == 0 || count == amount("cpu"), "{status:?}");
                several += 1;
            }
            for (zone, [cpu, memory]) in sums {
                let zone_cpus = topology.on_node(u8::try_from(zone).unwrap()).unwrap();
                assert!(
                    cpu <= zone_cpus.len() as u64 && memory <= MEMORY,
                    "{statuses:?}"
                );
            }
            match qos {
                "LSR" => bound_to += 1,
                _ => shared += 1,
            }
            world.leave(&format!("p{}", drawn(&mut random, 0..60)));
        }
    }
    println!("{bound_to} with CPUs of their own, {shared} without, {nowhere} nowhere");
    assert!(bound_to > 200 && shared > 200 && nowhere > 200 && several > 200);
}
