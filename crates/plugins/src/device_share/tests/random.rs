//! Whatever comes and goes: no device is given twice, everything comes back, and pods that share
//! verdicts go where they would go alone.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Step {
    Pod { shape: u8 },
    Gone(u8),
    Confirm(u8),
    BindFails(u8),
    Devices { node: u8, gpus: u8, sick: u8 },
    DevicesGone(u8),
    Node { node: u8, honor: bool },
    NodeGone(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..9_u8).prop_map(|shape| Step::Pod { shape }),
        4 => any::<u8>().prop_map(Step::Gone),
        3 => any::<u8>().prop_map(Step::Confirm),
        2 => any::<u8>().prop_map(Step::BindFails),
        3 => (0..3_u8, 1..9_u8, 0..16_u8).prop_map(|(node, gpus, sick)| Step::Devices { node, gpus, sick }),
        1 => (0..3_u8).prop_map(Step::DevicesGone),
        1 => (0..3_u8, any::<bool>()).prop_map(|(node, honor)| Step::Node { node, honor }),
        1 => (0..3_u8).prop_map(Step::NodeGone),
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
        _ => pod(name, json!({"cpu": "1"}), json!({})),
    }
}

/// Two engines that are told the same, and what must be true of them.
struct Twins {
    cached: Engine,
    alone: Engine,
    /// Decided, and not confirmed yet.
    open: BTreeMap<String, BindRequest>,
    bound: BTreeMap<String, Arc<Pod>>,
    waiting: Vec<String>,
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
            healthy: BTreeMap::new(),
            clock: 0,
        };
        twins.alone.set_caching(false);
        for node in 0..3 {
            twins.run(
                &Step::Node {
                    node,
                    honor: node == 0,
                },
                0,
            );
            twins.run(
                &Step::Devices {
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

    fn run(&mut self, step: &Step, number: usize) {
        // Far enough that no pod is kept back.
        self.clock += 100;
        match step {
            Step::Pod { shape } => {
                let name = format!("p{number}");
                let pod = object(shaped(&name, *shape));
                self.both(|engine, now| engine.pod_applied(pod.clone(), now));
                self.waiting.push(name);
            }
            Step::Gone(which) => {
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
                    self.waiting.retain(|known| *known != name);
                }
            }
            Step::Confirm(which) => {
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
            Step::BindFails(which) => {
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
                }
            }
            Step::Devices { node, gpus, sick } => {
                let name = format!("n{node}");
                let list = changed(devices(*gpus), "gpu", *sick, json!({"health": false}));
                let change = device(&name, list);
                self.both(|engine, now| engine.object_changed(&change, now));
                let all = (1_u64 << gpus) - 1;
                self.healthy.insert(name, all & !(1 << sick));
            }
            Step::DevicesGone(node) => {
                let name = format!("n{node}");
                let change = device_change(Action::DELETE, &name, json!([]), json!({}));
                self.both(|engine, now| engine.object_changed(&change, now));
                self.healthy.insert(name, 0);
            }
            Step::Node {
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
            Step::NodeGone(node) => {
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
                        format!("{} {}", bind.node, said(&bind)),
                    )),
                    Output::Failed(failure) => {
                        Some((failure.pod.name.to_string(), failure.message))
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
                    let text = format!("{} {}", bind.node, said(&bind));
                    open.push(bind.clone());
                    Some((bind.pod.name.to_string(), text))
                }
                Output::Failed(failure) => Some((failure.pod.name.to_string(), failure.message)),
                _ => None,
            })
            .collect();
        assert_eq!(cached, decisions(&mut self.alone));
        for bind in open {
            let healthy = self.healthy.get(&*bind.node).copied().unwrap_or(0);
            for grant in said(&bind)["gpu"].as_array().into_iter().flatten() {
                let minor = grant["minor"].as_u64().unwrap();
                assert!(
                    healthy & (1 << minor) != 0,
                    "{} got a sick GPU",
                    bind.pod.name
                );
            }
            self.waiting.retain(|name| *name != *bind.pod.name);
            self.open.insert(bind.pod.name.to_string(), bind);
        }
    }

    fn check(&self) {
        let mut shares: BTreeMap<(String, u64), i64> = BTreeMap::new();
        let mut memory: BTreeMap<(String, u64), i64> = BTreeMap::new();
        let mut functions: BTreeMap<(String, String), &str> = BTreeMap::new();
        let bound = self.bound.iter().map(|(name, pod)| {
            let text = pod
                .metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(annotations::DEVICE_ALLOCATED));
            let said = text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
            (
                name,
                pod.spec.as_ref().unwrap().node_name.clone().unwrap(),
                said,
            )
        });
        let open = self
            .open
            .iter()
            .map(|(name, bind)| (name, bind.node.to_string(), said(bind)));
        for (name, node, said) in bound.chain(open) {
            for grant in said["gpu"].as_array().into_iter().flatten() {
                let list = serde_json::from_value(grant["resources"].clone()).unwrap();
                let units = koord_model::device::Units::of(&list);
                let key = (node.clone(), grant["minor"].as_u64().unwrap());
                *shares.entry(key.clone()).or_default() +=
                    units.get(koord_model::device::DeviceResource::GpuMemoryRatio);
                *memory.entry(key).or_default() +=
                    units.get(koord_model::device::DeviceResource::GpuMemory);
            }
            for grant in said["rdma"].as_array().into_iter().flatten() {
                if let Some(function) = grant["extension"]["vfs"][0]["busID"].as_str() {
                    let before = functions.insert((node.clone(), function.to_owned()), name);
                    assert_eq!(before, None, "{function} of {node} is given twice");
                }
            }
        }
        assert!(shares.values().all(|share| *share <= 100), "{shares:?}");
        assert!(
            memory.values().all(|bytes| *bytes <= 80 << 30),
            "{memory:?}"
        );
    }
}

fn pick(names: &[String], which: u8) -> Option<String> {
    let at = usize::from(which).checked_rem(names.len())?;
    names.get(at).cloned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn devices_are_never_given_twice_and_all_come_back(steps in prop::collection::vec(step(), 1..60)) {
        let mut twins = Twins::new();
        for (number, step) in steps.iter().enumerate() {
            twins.run(step, number);
        }
        prop_assert_eq!(twins.cached.mismatches(), 0);
        // Everybody leaves, in two ways; then the nodes are as good as new.
        for name in twins.waiting.clone() {
            let pod = object(gpu(&name, 1));
            twins.both(|engine, now| engine.pod_deleted(&pod, now));
        }
        twins.waiting.clear();
        while !twins.open.is_empty() {
            twins.run(&Step::Confirm(0), 0);
        }
        for pod in twins.bound.values().cloned().collect::<Vec<_>>() {
            twins.both(|engine, now| engine.pod_deleted(&pod, now));
        }
        twins.bound.clear();
        for node in 0..3 {
            twins.run(&Step::Node { node, honor: false }, 0);
            twins.run(&Step::Devices { node, gpus: 8, sick: 15 }, 0);
        }
        for number in 0..6 {
            twins.run(&Step::Pod { shape: 4 }, 1000 + number);
        }
        prop_assert_eq!(twins.open.len(), 6, "eight GPUs of each of three nodes");
    }
}
