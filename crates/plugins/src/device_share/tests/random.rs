//! Random sequences of events: no device is allocated twice, every device is freed, and pods that share
//! verdicts get the nodes that they would get alone.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
enum RandomDeviceStep {
    Pod { shape: u8 },
    Gone(u8),
    Confirm(u8),
    BindFails(u8),
    Devices { node: u8, gpus: u8, sick: u8 },
    DevicesGone(u8),
    Node { node: u8, honor: bool },
    NodeGone(u8),
}

fn step() -> impl Strategy<Value = RandomDeviceStep> {
    prop_oneof![
        12 => (0..12_u8).prop_map(|shape| if shape > 9 { 8 } else { shape }).prop_map(|shape| RandomDeviceStep::Pod { shape }),
        4 => any::<u8>().prop_map(RandomDeviceStep::Gone),
        3 => any::<u8>().prop_map(RandomDeviceStep::Confirm),
        2 => any::<u8>().prop_map(RandomDeviceStep::BindFails),
        3 => (0..3_u8, 1..9_u8, 0..16_u8).prop_map(|(node, gpus, sick)| RandomDeviceStep::Devices { node, gpus, sick }),
        1 => (0..3_u8).prop_map(RandomDeviceStep::DevicesGone),
        1 => (0..3_u8, any::<bool>()).prop_map(|(node, honor)| RandomDeviceStep::Node { node, honor }),
        1 => (0..3_u8).prop_map(RandomDeviceStep::NodeGone),
    ]
}

fn shaped(name: &str, shape: u8) -> Value {
    let joint = annotated(
        "device-joint-allocate",
        &json!({"deviceTypes": ["gpu", "rdma"]}),
    );
    let functions = annotated("device-allocate-hint", &json!({"rdma": {"vfSelector": {}}}));
    match shape {
        0 => gpu(name, 50),
        1 => gpu(name, 30),
        2 => gpu(name, 100),
        3 => gpu(name, 200),
        4 => gpu(name, 400),
        5 => pod(
            name,
            json!({"koordinator.sh/gpu-memory": "20Gi"}),
            json!({}),
        ),
        6 => pod(
            name,
            json!({"nvidia.com/gpu": "2", "koordinator.sh/rdma": "1"}),
            joint,
        ),
        7 => pod(name, json!({"koordinator.sh/rdma": "10"}), functions),
        8 => pod(name, json!({"koordinator.sh/rdma": "200"}), json!({})),
        _ => pod(name, json!({"cpu": "1"}), json!({})),
    }
}

/// Returns the request of a pod of this shape: number of GPUs, share of each in percent, amount of one
/// adapter, and whether it gets a virtual function.
fn shape_request(shape: u8) -> (usize, i64, i64, bool) {
    match shape {
        0 => (1, 50, 0, false),
        1 => (1, 30, 0, false),
        2 => (1, 100, 0, false),
        3 => (2, 100, 0, false),
        4 => (4, 100, 0, false),
        // 20 GiB of 80.
        5 => (1, 25, 0, false),
        6 => (2, 100, 1, false),
        7 => (0, 0, 10, true),
        // Two whole adapters.
        8 => (0, 0, 200, false),
        _ => (0, 0, 0, false),
    }
}

/// Returns the contents of an allocation annotation: `(device, resource, amount)`, and functions by address.
fn grants(annotation: &Value) -> (Vec<(String, String, i64)>, Vec<String>) {
    let (mut amounts, mut functions) = (Vec::new(), Vec::new());
    for (kind, list) in annotation.as_object().into_iter().flatten() {
        for grant in list.as_array().unwrap() {
            let device = format!("{kind} {}", grant["minor"].as_u64().unwrap());
            for (resource, amount) in grant["resources"].as_object().unwrap() {
                let amount: koord_api::quantity::Quantity =
                    amount.as_str().unwrap().parse().unwrap();
                amounts.push((device.clone(), resource.clone(), amount.value()));
            }
            let all = grant["extension"]["vfs"].as_array().into_iter().flatten();
            functions.extend(all.map(|vf| vf["busID"].as_str().unwrap().to_owned()));
        }
    }
    (amounts, functions)
}

/// Checks that the annotation grants exactly what the pod's shape requests.
fn check_allocation(name: &str, shape: u8, annotation: &Value) {
    let (gpus, percent, adapter, function) = shape_request(shape);
    let (mut amounts, functions) = grants(annotation);
    amounts.sort();
    let amounts_of = |resource: &str| -> Vec<i64> {
        let all = amounts.iter().filter(|(_, name, _)| name == resource);
        all.map(|(_, _, amount)| *amount).collect()
    };
    let memory = percent * (80 << 30) / 100;
    for (resource, amount) in [
        ("koordinator.sh/gpu-core", percent),
        ("koordinator.sh/gpu-memory-ratio", percent),
        ("koordinator.sh/gpu-memory", memory),
    ] {
        // A pod that requests memory alone has no part of the cores.
        let count = if shape == 5 && resource == "koordinator.sh/gpu-core" {
            0
        } else {
            gpus
        };
        assert_eq!(
            amounts_of(resource),
            vec![amount; count],
            "{name}: {resource} of {annotation}"
        );
    }
    let devices: BTreeSet<&str> = amounts
        .iter()
        .map(|(device, _, _)| device.as_str())
        .collect();
    let adapters = amounts_of("koordinator.sh/rdma");
    assert_eq!(
        devices.len(),
        gpus + adapters.len(),
        "one device twice: {annotation}"
    );
    if shape == 6 {
        // One for each root that its GPUs are on.
        assert!(
            adapters == [adapter] || adapters == [adapter; 2],
            "{name}: {annotation}"
        );
    } else {
        assert_eq!(
            adapters.iter().sum::<i64>(),
            adapter,
            "{name}: {annotation}"
        );
    }
    assert_eq!(
        functions.len(),
        usize::from(function),
        "{name}: {annotation}"
    );
}

/// Counts how often a run reached the cases it is meant to cover.
#[derive(Debug, Default)]
struct DeviceCoverage {
    /// Decisions by shape.
    shapes: [u32; 10],
    refused: u32,
    bind_failed: u32,
    /// Devices that two pods have parts of.
    shared: u32,
}

/// Two engines that receive the same events, and the state that both must agree with.
struct Twins {
    cached: Engine,
    alone: Engine,
    /// Decided, and not confirmed yet.
    open: BTreeMap<String, BindRequest>,
    bound: BTreeMap<String, Arc<Pod>>,
    waiting: Vec<String>,
    shapes: BTreeMap<String, u8>,
    /// Nodes without a Device.
    bare: BTreeSet<String>,
    reached: DeviceCoverage,
    /// Per node and GPU what is healthy now.
    healthy: BTreeMap<String, u64>,
    clock: i64,
}

impl Twins {
    fn new() -> Self {
        let mut twins = Self {
            cached: engine(json!({})),
            alone: engine(json!({})),
            open: BTreeMap::new(),
            bound: BTreeMap::new(),
            waiting: Vec::new(),
            shapes: BTreeMap::new(),
            bare: BTreeSet::new(),
            reached: DeviceCoverage::default(),
            healthy: BTreeMap::new(),
            clock: 0,
        };
        twins.alone.set_caching(false);
        for node in 0..3 {
            twins.run(
                &RandomDeviceStep::Node {
                    node,
                    honor: node == 0,
                },
                0,
            );
            twins.run(
                &RandomDeviceStep::Devices {
                    node,
                    gpus: 8,
                    sick: 15,
                },
                0,
            );
        }
        twins
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + self.clock).unwrap()
    }

    fn both(&mut self, tell: impl Fn(&mut Engine, Timestamp)) {
        let now = self.now();
        tell(&mut self.cached, now);
        tell(&mut self.alone, now);
    }

    fn run(&mut self, step: &RandomDeviceStep, number: usize) {
        // Far enough that no pod is kept back.
        self.clock += 100;
        match step {
            RandomDeviceStep::Pod { shape } => {
                let name = format!("p{number}");
                let pod = object(shaped(&name, *shape));
                self.both(|engine, now| engine.pod_applied(pod.clone(), now));
                self.shapes.insert(name.clone(), *shape);
                self.waiting.push(name);
            }
            RandomDeviceStep::Gone(which) => {
                let all = self
                    .open
                    .keys()
                    .chain(self.bound.keys())
                    .chain(&self.waiting);
                let all: Vec<String> = all.cloned().collect();
                if let Some(name) = pick(&all, *which) {
                    let pod = object(gpu(&name, 1));
                    self.both(|engine, now| engine.pod_deleted(&pod, now));
                    self.open.remove(&name);
                    self.bound.remove(&name);
                    self.waiting.retain(|other| *other != name);
                }
            }
            RandomDeviceStep::Confirm(which) => {
                let names: Vec<String> = self.open.keys().cloned().collect();
                if let Some(bind) = pick(&names, *which).and_then(|name| self.open.remove(&name)) {
                    let pod = bound(&bind);
                    self.both(|engine, now| {
                        engine.bind_finished(&bind.pod.uid, Ok(()), now);
                        engine.pod_applied(pod.clone(), now);
                    });
                    self.bound.insert(bind.pod.name.to_string(), pod);
                }
            }
            RandomDeviceStep::BindFails(which) => {
                let names: Vec<String> = self.open.keys().cloned().collect();
                if let Some(bind) = pick(&names, *which).and_then(|name| self.open.remove(&name)) {
                    let error = BindError {
                        message: "no".to_owned(),
                        gone: false,
                    };
                    self.both(|engine, now| {
                        engine.bind_finished(&bind.pod.uid, Err(error.clone()), now);
                    });
                    self.waiting.push(bind.pod.name.to_string());
                    self.reached.bind_failed += 1;
                }
            }
            RandomDeviceStep::Devices { node, gpus, sick } => {
                let name = format!("n{node}");
                let list = changed(devices(*gpus), "gpu", *sick, json!({"health": false}));
                let change = device(&name, list);
                self.both(|engine, now| engine.object_changed(&change, now));
                self.bare.remove(&name);
                let all = (1_u64 << gpus) - 1;
                self.healthy.insert(name, all & !(1 << sick));
            }
            RandomDeviceStep::DevicesGone(node) => {
                let name = format!("n{node}");
                let change = device_change(Action::DELETE, &name, json!([]), json!({}));
                self.both(|engine, now| engine.object_changed(&change, now));
                self.healthy.insert(name.clone(), 0);
                self.bare.insert(name);
            }
            RandomDeviceStep::Node {
                node: number,
                honor,
            } => {
                let labels = if *honor {
                    json!({"node.koordinator.sh/gpu-model": "H20",
                        "node.koordinator.sh/gpu-partition-policy": "Honor"})
                } else {
                    json!({})
                };
                let object = node(&format!("n{number}"), labels);
                self.both(|engine, now| engine.node_applied(object.clone(), now));
            }
            RandomDeviceStep::NodeGone(node) => {
                let name = format!("n{node}");
                self.both(|engine, now| engine.node_deleted(&name, now));
            }
        }
        self.decide();
        self.check();
    }

    fn decide(&mut self) {
        let now = self.now();
        loop {
            let cached = self.cached.schedule_one(now);
            let alone = self.alone.schedule_one(now);
            let end = cached.is_none();
            assert_eq!(
                cached.map(|o| o.pod.uid.clone()),
                alone.map(|o| o.pod.uid.clone())
            );
            if end {
                break;
            }
        }
        let decisions = |engine: &mut Engine| -> Vec<(String, String)> {
            let outputs = engine.take_outputs().into_iter();
            outputs
                .filter_map(|output| match output {
                    Output::Bind(bind) => Some((
                        bind.pod.name.to_string(),
                        format!("{} {}", bind.node, allocation_annotation(&bind)),
                    )),
                    Output::Failed(failure) => {
                        Some((failure.pod.name.to_string(), failure.message.to_string()))
                    }
                    _ => None,
                })
                .collect()
        };
        let mut open = Vec::new();
        let outputs = self.cached.take_outputs();
        let cached: Vec<(String, String)> = outputs
            .into_iter()
            .filter_map(|output| match output {
                Output::Bind(bind) => {
                    let text = format!("{} {}", bind.node, allocation_annotation(&bind));
                    open.push(bind.clone());
                    Some((bind.pod.name.to_string(), text))
                }
                Output::Failed(failure) => {
                    Some((failure.pod.name.to_string(), failure.message.to_string()))
                }
                _ => None,
            })
            .collect();
        assert_eq!(cached, decisions(&mut self.alone));
        self.reached.refused += u32::try_from(cached.len() - open.len()).unwrap();
        for bind in open {
            let healthy = self.healthy.get(&*bind.node).copied().unwrap_or(0);
            let annotation = allocation_annotation(&bind);
            for grant in annotation["gpu"].as_array().into_iter().flatten() {
                let minor = grant["minor"].as_u64().unwrap();
                assert!(
                    healthy & (1 << minor) != 0,
                    "{} got a sick GPU",
                    bind.pod.name
                );
            }
            let name = bind.pod.name.to_string();
            let shape = self.shapes[&name];
            if self.bare.contains(&*bind.node) {
                // NodeResourcesFit, which checks the resources of a node without a Device, is not enabled
                // here.
                assert_eq!(annotation, Value::Null, "{name}");
            } else {
                check_allocation(&name, shape, &annotation);
                self.reached.shapes[usize::from(shape)] += 1;
            }
            self.waiting.retain(|waiting| *waiting != name);
            self.open.insert(name, bind);
        }
    }

    /// Checks the allocations in the annotations against the capacity of the devices.
    fn check(&mut self) {
        let mut used: BTreeMap<(String, String, String), (i64, u32)> = BTreeMap::new();
        let mut owners: BTreeMap<(String, String), &str> = BTreeMap::new();
        let bound = self.bound.iter().map(|(name, pod)| {
            let text = pod
                .metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(annotations::DEVICE_ALLOCATED));
            let annotation = text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
            (
                name,
                pod.spec.as_ref().unwrap().node_name.clone().unwrap(),
                annotation,
            )
        });
        let open = self
            .open
            .iter()
            .map(|(name, bind)| (name, bind.node.to_string(), allocation_annotation(bind)));
        for (name, node, annotation) in bound.chain(open) {
            let (amounts, functions) = grants(&annotation);
            for (device, resource, amount) in amounts {
                let (sum, pods) = used.entry((node.clone(), device, resource)).or_default();
                *sum += amount;
                *pods += 1;
            }
            for function in functions {
                let before = owners.insert((node.clone(), function.clone()), name);
                assert_eq!(before, None, "{function} of {node} is given twice");
            }
        }
        for ((node, device, resource), (sum, pods)) in used {
            let capacity = if resource == "koordinator.sh/gpu-memory" {
                80 << 30
            } else {
                100
            };
            assert!(
                sum <= capacity,
                "{pods} pods have {sum} {resource} of {device} of {node}"
            );
            self.reached.shared += u32::from(pods > 1);
        }
    }
}

fn pick(names: &[String], which: u8) -> Option<String> {
    let index = usize::from(which).checked_rem(names.len())?;
    names.get(index).cloned()
}

fn run(steps: &[RandomDeviceStep]) -> Result<DeviceCoverage, TestCaseError> {
    let mut twins = Twins::new();
    for (number, step) in steps.iter().enumerate() {
        twins.run(step, number);
    }
    prop_assert_eq!(twins.cached.classes().mismatches(), 0);
    // All pods leave, by deletion or by completion; then the nodes must be empty again.
    for name in twins.waiting.clone() {
        let pod = object(gpu(&name, 1));
        twins.both(|engine, now| engine.pod_deleted(&pod, now));
    }
    twins.waiting.clear();
    while !twins.open.is_empty() {
        twins.run(&RandomDeviceStep::Confirm(0), 0);
    }
    for pod in twins.bound.values().cloned().collect::<Vec<_>>() {
        twins.both(|engine, now| engine.pod_deleted(&pod, now));
    }
    twins.bound.clear();
    for node in 0..3 {
        twins.run(&RandomDeviceStep::Node { node, honor: false }, 0);
        let (gpus, sick) = (8, 15);
        twins.run(&RandomDeviceStep::Devices { node, gpus, sick }, 0);
    }
    for number in 0..6 {
        twins.run(&RandomDeviceStep::Pod { shape: 4 }, 1000 + number);
    }
    prop_assert_eq!(twins.open.len(), 6, "eight GPUs of each of three nodes");
    Ok(twins.reached)
}

#[test]
fn devices_are_allocated_once_and_all_released() {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(48));
    let total = RefCell::new(DeviceCoverage::default());
    let steps = prop::collection::vec(step(), 1..60);
    let ended = runner.run(&steps, |steps| {
        let reached = run(&steps)?;
        let mut total = total.borrow_mut();
        for (sum, count) in total.shapes.iter_mut().zip(reached.shapes) {
            *sum += count;
        }
        total.refused += reached.refused;
        total.bind_failed += reached.bind_failed;
        total.shared += reached.shared;
        Ok(())
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
    let total = total.into_inner();
    let other_counts = [total.refused, total.bind_failed, total.shared];
    let mut counts = total.shapes.iter().chain(&other_counts);
    assert!(counts.all(|count| *count >= 5), "{total:?}");
}
