//! The filter against simulated kubelets: every placed pod is admitted, and a pod that fits no node would be
//! admitted by none. Reports are computed from what the kubelets list, as an exporter does.

use super::*;
use koord_model::alignment::Scope;
use koord_model::cpuset::{Cpu, CpuSet, Topology};
use koord_model::numa::NumaMask;
use koord_model::{alignment::fingerprint, export};
use koord_sim::kubelet::{self, CpuManager, Kubelet, Machine, Memory, Settings};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};

const DEVICE: &str = "ex.com/a";
const GI: u64 = 1 << 30;

/// A node: number of NUMA nodes, physical cores of each, scope, and the NUMA nodes of its devices.
#[derive(Debug, Clone)]
struct NodeShape {
    nodes: u8,
    cores: u32,
    scope: Scope,
    near: Vec<u8>,
}

impl NodeShape {
    fn kubelet(&self) -> Kubelet {
        let cpus = self.cores * 2;
        let cpu = |id: u32| {
            let node = (id / cpus) as u8;
            Cpu::new(id, id % cpus / 2, i32::from(node), node)
        };
        let bytes = 4 * GI * u64::from(cpus);
        let memory = Memory {
            capacity: bytes,
            allocatable: bytes,
        };
        let bank = |node| (node, BTreeMap::from([("memory".to_owned(), memory)]));
        let device = |(index, near): (usize, &u8)| kubelet::Device {
            id: format!("{DEVICE}-{index}"),
            nodes: Some(NumaMask::from_iter([near % self.nodes])),
            healthy: true,
        };
        let devices = self.near.iter().enumerate().map(device).collect();
        let machine = Machine {
            topology: Topology::new((0..u32::from(self.nodes) * cpus).map(cpu)),
            memory: (0..self.nodes).map(bank).collect(),
            devices: BTreeMap::from([(DEVICE.to_owned(), devices)]),
            ..Machine::default()
        };
        let settings = Settings {
            policy: Policy::SingleNumaNode,
            scope: self.scope,
            cpu: CpuManager::Static {
                reserved: CpuSet::new(),
                full_cores: false,
            },
            memory: true,
            ..Settings::default()
        };
        Kubelet::new(machine, settings).unwrap()
    }
}

struct TopologyWorld {
    engine: Engine,
    kubelets: BTreeMap<String, Kubelet>,
    /// Running pods: object and node, by name.
    pods: BTreeMap<String, (Value, String)>,
    on: BTreeMap<String, Vec<String>>,
}

impl TopologyWorld {
    fn new(args: Value, shapes: &[NodeShape]) -> Self {
        let mut world = Self::unreported(args, shapes);
        let names: Vec<String> = world.kubelets.keys().cloned().collect();
        for name in &names {
            world.report(name);
        }
        world
    }

    /// Creates the nodes without any report.
    fn unreported(args: Value, shapes: &[NodeShape]) -> Self {
        let mut world = Self {
            engine: engine(args),
            kubelets: BTreeMap::new(),
            pods: BTreeMap::new(),
            on: BTreeMap::new(),
        };
        for (index, shape) in shapes.iter().enumerate() {
            let name = format!("n{index}");
            let kubelet = shape.kubelet();
            let cpus = kubelet.machine().topology.all().len();
            let memory = cpus as u64 * 4;
            let amounts = json!({"cpu": cpus.to_string(), "memory": format!("{memory}Gi"),
                "pods": "110", DEVICE: shape.near.len().to_string()});
            world.engine.node_applied(node(&name, amounts), now());
            world.kubelets.insert(name, kubelet);
        }
        world
    }

    /// Reports the node's free resources, as its exporter does.
    fn report(&mut self, name: &str) {
        let kubelet = &self.kubelets[name];
        let listed = kubelet.pods().flat_map(|uid| kubelet.listed(uid));
        let shares: Vec<export::Share> = listed.map(|(_, share)| share).collect();
        let exported = export::zones(&kubelet.exported(), &kubelet.allocatable(), &shares);
        assert_eq!(exported.problems, Vec::<String>::new());
        let pods = self.on.get(name).into_iter().flatten();
        let print = fingerprint::from_hashes(pods.map(|pod| fingerprint::pod("default", pod)));
        let settings = kubelet.settings();
        let (policy, scope) = (settings.policy, settings.scope);
        let object: NodeResourceTopology = serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": name, "uid": name},
            "attributes": export::attributes(policy, scope, Some(print)),
            "zones": exported.zones,
        }))
        .unwrap();
        let change = ObjectChange {
            kind: TOPOLOGIES,
            action: Action::UPDATE,
            old: None,
            new: Arc::new(object),
        };
        self.engine.object_changed(&change, now());
    }

    /// Binds the pod and lets its kubelet admit it.
    fn run(&mut self, name: &str, pod: &Value, node: &str) -> Result<(), kubelet::Refusal> {
        let kubelet = self.kubelets.get_mut(node).unwrap();
        kubelet.admit(&read(pod))?;
        self.engine
            .pod_applied(bound(pod.clone(), node, "Running"), now());
        self.pods
            .insert(name.to_owned(), (pod.clone(), node.to_owned()));
        self.on
            .entry(node.to_owned())
            .or_default()
            .push(name.to_owned());
        Ok(())
    }

    /// Removes a running pod and returns its node.
    fn leave(&mut self, name: &str) -> Option<String> {
        let (pod, node) = self.pods.remove(name)?;
        self.kubelets.get_mut(&node).unwrap().release(name);
        self.engine
            .pod_deleted(&bound(pod, &node, "Running"), now());
        let on = self.on.get_mut(&node).unwrap();
        on.retain(|pod| pod != name);
        Some(node)
    }

    fn any_would_admit(&self, pod: &Value) -> bool {
        let pod = read(pod);
        let mut kubelets = self.kubelets.values();
        kubelets.any(|kubelet| kubelet.clone().admit(&pod).is_ok())
    }

    /// Returns how many of every 400th node have enough CPUs for the containers, but a kubelet that rejects
    /// the pod.
    fn misled(&self, pod: &Value, containers: &[Size]) -> usize {
        if containers.iter().any(|size| size.2 > 0) {
            return 0;
        }
        let pod = read(pod);
        let cpus = containers.iter().map(|size| size.0 as usize).sum();
        let kubelets = self.kubelets.values().step_by(400);
        let enough = kubelets.filter(|kubelet| kubelet.shared_cpus().len() >= cpus);
        let refuses = |kubelet: &&Kubelet| (*kubelet).clone().admit(&pod).is_err();
        enough.filter(refuses).count()
    }
}

fn read(pod: &Value) -> kubelet::Pod {
    kubelet::Pod::read(&object(pod.clone()), |name| name == DEVICE)
}

/// CPUs, GiB and devices of a container, and whether it keeps running next to the others (a main container or
/// a sidecar).
type Size = (u64, u64, u64, bool);

fn sized(name: &str, containers: &[Size]) -> Value {
    let amounts = |(cpu, memory, devices, _): &Size| {
        let mut all = json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi")});
        if *devices > 0 {
            all[DEVICE] = json!(devices.to_string());
        }
        all
    };
    let (side, main): (Vec<&Size>, Vec<&Size>) = containers.iter().partition(|size| size.3);
    let mut out = pod(name, &main.into_iter().map(amounts).collect::<Vec<_>>());
    let side = side.into_iter().enumerate().map(|(index, size)| {
        let amounts = amounts(size);
        json!({"name": format!("s{index}"), "restartPolicy": "Always",
            "resources": {"requests": amounts, "limits": amounts}})
    });
    out["spec"]["initContainers"] = side.collect();
    out
}

fn shape() -> impl Strategy<Value = NodeShape> {
    let scope = prop_oneof![Just(Scope::Container), Just(Scope::Pod)];
    let near = proptest::collection::vec(0u8..4, 0..5);
    (1u8..5, 1u32..6, scope, near).prop_map(|(nodes, cores, scope, near)| NodeShape {
        nodes,
        cores,
        scope,
        near,
    })
}

fn container(at_first: bool) -> impl Strategy<Value = Size> {
    let side = prop_oneof![4 => Just(false), 1 => Just(!at_first)];
    (1u64..9, 1u64..9, 0u64..3, side)
}

/// Generates containers; the first one is not a sidecar.
fn containers() -> impl Strategy<Value = Vec<Size>> {
    let more_containers = proptest::collection::vec(container(false), 0..3);
    (container(true), more_containers).prop_map(|(first, more_containers)| {
        let mut all = vec![first];
        all.extend(more_containers);
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Places pods one after another, each with reports that have counted those before.
    #[test]
    fn idle_cache_predicts_admission(
        shapes in proptest::collection::vec(shape(), 1..5),
        pods in proptest::collection::vec((containers(), 0usize..40), 1..25),
    ) {
        let mut world = TopologyWorld::new(json!({}), &shapes);
        for (index, (containers, leaves)) in pods.iter().enumerate() {
            let name = format!("p{index}");
            let pod = sized(&name, containers);
            match place(&mut world.engine, pod.clone()) {
                Ok(node) => {
                    let admitted = world.run(&name, &pod, &node);
                    prop_assert!(admitted.is_ok(), "{:?} on {}: {:?}", admitted, node, pod);
                    world.report(&node);
                }
                Err(why) => {
                    prop_assert!(!world.any_would_admit(&pod), "{why}: {pod:?}");
                    world.engine.pod_deleted(&object(pod), now());
                }
            }
            if let Some(node) = world.leave(&format!("p{leaves}")) {
                world.report(&node);
            }
        }
    }

    /// Places several pods between two reports, which the cache subtracts from every NUMA node; reports
    /// arrive late, and pods leave in between.
    #[test]
    fn over_reserve_cache_admits_bursts(
        shapes in proptest::collection::vec(shape(), 1..4),
        bursts in proptest::collection::vec(
            (proptest::collection::vec(containers(), 1..6), 0usize..30, any::<bool>()), 1..8),
    ) {
        let mut world = TopologyWorld::new(json!({"cacheResyncPeriodSeconds": 5}), &shapes);
        let mut index = 0;
        for (burst, leaves, late) in &bursts {
            let mut placed = Vec::new();
            for containers in burst {
                let name = format!("p{index}");
                index += 1;
                let pod = sized(&name, containers);
                match place(&mut world.engine, pod.clone()) {
                    Ok(node) => placed.push((name, pod, node)),
                    Err(_) => {
                        world.engine.pod_deleted(&object(pod), now());
                    }
                }
            }
            for (name, pod, node) in placed {
                let admitted = world.run(&name, &pod, &node);
                prop_assert!(admitted.is_ok(), "{:?} on {}: {:?}", admitted, node, pod);
            }
            let node = world.leave(&format!("p{leaves}"));
            let names: Vec<String> = world.kubelets.keys().cloned().collect();
            for name in names {
                if !late || node.as_ref() == Some(&name) {
                    world.report(&name);
                }
            }
        }
    }
}

/// Covers a dead exporter: pods of other schedulers come and go, and the wait for reports has timed out;
/// every placed pod is still admitted.
#[test]
fn resources_are_used_once_without_reports() {
    let mut random = TestRunner::deterministic();
    let (mut placed, mut nowhere, mut foreign) = (0, 0, 0);
    for _ in 0..120 {
        let shapes = drawn(&mut random, proptest::collection::vec(shape(), 1..4));
        let mut world = TopologyWorld::new(json!({"cacheResyncPeriodSeconds": 5}), &shapes);
        for step in 0..20 {
            let name = format!("p{step}");
            let pod = sized(&name, &drawn(&mut random, containers()));
            if drawn(&mut random, any::<bool>()) {
                let node = format!("n{}", drawn(&mut random, 0..shapes.len()));
                let foreign_spec = super::cache::foreign_pod(pod, "default");
                foreign += usize::from(world.run(&name, &foreign_spec, &node).is_ok());
            } else if let Ok(node) = place(&mut world.engine, pod.clone()) {
                let admitted = world.run(&name, &pod, &node);
                assert!(admitted.is_ok(), "{admitted:?} on {node}: {pod}");
                placed += 1;
            } else {
                world.engine.pod_deleted(&object(pod), now());
                nowhere += 1;
            }
            world.leave(&format!("p{}", drawn(&mut random, 0..60)));
            for _ in 0..2 {
                world.engine.schedule_one(at(60 * step));
            }
        }
    }
    println!("{placed} placed next to {foreign} foreign ones, {nowhere} nowhere");
    assert!(placed > 100 && nowhere > 100 && foreign > 150);
}

/// Uses ten thousand nodes of random shapes with random pods, and bursts of pods between two reports of a
/// node, while others leave.
#[test]
fn ten_thousand_random_nodes_admit_all_pods() {
    // A fixed seed.
    let mut random = TestRunner::deterministic();
    let shapes: Vec<NodeShape> = (0..10_000).map(|_| drawn(&mut random, shape())).collect();
    let args = json!({"cacheResyncPeriodSeconds": 5, "scoringStrategy": {"type": "MostAllocated"}});
    let mut world = TopologyWorld::unreported(args, &shapes);
    let names: Vec<String> = world.kubelets.keys().cloned().collect();
    for name in &names {
        for index in 0..drawn(&mut random, 0..3) {
            let pod = format!("{name}-{index}");
            let running = sized(&pod, &drawn(&mut random, containers()));
            // It may be too large.
            let _ = world.run(&pod, &running, name);
        }
        world.report(name);
    }
    let (mut placed, mut shared, mut misled) = (0, 0, 0);
    for burst in 0..8 {
        let mut touched = BTreeSet::new();
        for index in 0..50 {
            let name = format!("p{}", burst * 50 + index);
            let containers = drawn(&mut random, containers());
            let sized_pod = sized(&name, &containers);
            if let Ok(node) = place(&mut world.engine, sized_pod.clone()) {
                shared += usize::from(world.on.get(&node).is_some_and(|on| !on.is_empty()));
                misled += world.misled(&sized_pod, &containers);
                let admitted = world.run(&name, &sized_pod, &node);
                assert!(admitted.is_ok(), "{admitted:?} on {node}: {sized_pod}");
                touched.insert(node);
                placed += 1;
            } else {
                world.engine.pod_deleted(&object(sized_pod), now());
            }
            let leaves = drawn(&mut random, 0u32..800);
            touched.extend(world.leave(&format!("p{leaves}")));
        }
        for node in touched {
            world.report(&node);
        }
    }
    println!("{placed} placed, {shared} next to others; sums mislead {misled} times");
    assert!(placed > 300 && shared > 100 && misled > 200);
}

/// Generates one value of the strategy.
fn drawn<S: Strategy>(random: &mut TestRunner, from: S) -> S::Value {
    from.new_tree(random).unwrap().current()
}
