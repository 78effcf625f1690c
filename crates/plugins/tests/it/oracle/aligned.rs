//! CPU binding (also with amplification and exclusive policies), NUMA nodes, GPUs, RDMA devices, and
//! reservations of any of them: the feasible nodes of each pending pod match the rules, and the allocations
//! in pod annotations obey them.

mod objects;
mod rules;

use crate::failover::draw as mix;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, Engine, EngineOptions, Output};
use koord_scheduler::framework::{BuildContext, Profiles};
use rules::{AlignedCluster, Bind, Exclusive, GPU, Node, Pod, Policy, RDMA, Reservation};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Number of times that each situation was reached.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reached {
    /// Compared sets of feasible nodes that were neither empty nor complete.
    sets: u32,
    /// Nodes that reject a pod although the sums would fit, by policy.
    apart: BTreeMap<&'static str, u32>,
    /// Placed pods by what they were allocated.
    placed: BTreeMap<&'static str, u32>,
    /// Situations with reservations and exclusive policies.
    kept: BTreeMap<&'static str, u32>,
    refused: u32,
    conflicts: u32,
    restarts: u32,
}

fn engine(cached: bool) -> Engine {
    let enabled = ["NodeNUMAResource", "DeviceShare", "Reservation"];
    let enabled = enabled.map(|name| json!({"name": name}));
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {"enabled": enabled}}}]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let registry = koord_plugins::registry();
    let profiles = Profiles::build(&config, &registry, &BuildContext::default(), false).unwrap();
    let options = EngineOptions {
        seed: 3,
        max_classes: 4,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(&config, profiles, options);
    engine.set_caching(cached);
    engine
}

struct AlignedRun {
    engine: Engine,
    cached: bool,
    cluster: AlignedCluster,
    /// Pods that are bound but not yet shown by the API.
    sent: BTreeSet<String>,
    seed: u64,
    numbers: u64,
    now: i64,
    context: String,
    reached: Reached,
}

impl AlignedRun {
    fn below(&mut self, end: usize) -> usize {
        self.numbers += 1;
        let end = u64::try_from(end).unwrap();
        usize::try_from(mix(self.seed << 32 | self.numbers) % end).unwrap()
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn compare(&mut self) {
        for (name, pod) in &self.cluster.pods {
            let Some(info) = self.engine.queued(name).cloned() else {
                continue;
            };
            // It is rejected before any node is checked.
            let exists = |name: &String| self.cluster.reservations.contains_key(name);
            if pod.into.as_ref().is_some_and(|name| !exists(name)) {
                continue;
            }
            let refused = self
                .engine
                .inspector()
                .nearest(&info, usize::MAX, objects::at(self.now));
            let refused: BTreeSet<&str> =
                refused.iter().map(|rejection| &*rejection.node).collect();
            let nodes = self.cluster.nodes.keys();
            let is: BTreeSet<String> = nodes
                .filter(|node| !refused.contains(node.as_str()))
                .cloned()
                .collect();
            let expected = self.cluster.feasible(pod);
            let context = &self.context;
            assert_eq!(is, expected, "{context}: {pod:?} in {:#?}", self.cluster);
            let nodes = &self.cluster.nodes;
            self.reached.sets += u32::from(!is.is_empty() && is.len() < nodes.len());
            for (name, node) in nodes {
                if pod.into.is_none() && !is.contains(name) && self.cluster.has_room(pod, name) {
                    let policy = objects::policy(node.policy);
                    *self.reached.apart.entry(policy).or_default() += 1;
                }
            }
            let open = AlignedCluster {
                reservations: BTreeMap::new(),
                ..self.cluster.clone()
            };
            let kept = &mut self.reached.kept;
            match &pod.into {
                // It would fit in addition to what is reserved.
                Some(into) => {
                    let node = &self.cluster.reservations[into].allocation.node;
                    let plain = Pod {
                        into: None,
                        ..pod.clone()
                    };
                    let fits = self.cluster.feasible(&plain).contains(node);
                    *kept.entry("insists").or_default() += u32::from(fits && is.is_empty());
                }
                None => {
                    let is_wider = open.feasible(pod).len() > is.len();
                    *kept.entry("is no owner").or_default() += u32::from(is_wider);
                }
            }
        }
    }

    fn decide(&mut self) {
        for _ in 0..100 {
            self.compare();
            let Some(outcome) = self.engine.schedule_one(objects::at(self.now)) else {
                return;
            };
            let pod = self.cluster.pods[&*outcome.pod.name].clone();
            let fits = self.cluster.feasible(&pod);
            if outcome.node.is_none() {
                assert!(fits.is_empty(), "{}: {pod:?} fits {fits:?}", self.context);
                self.reached.refused += 1;
            }
            for output in self.engine.take_outputs() {
                let Output::Bind(bind) = output else { continue };
                let allocation = objects::allocation(&bind.node, &bind.patch.annotations);
                assert!(fits.contains(&allocation.node), "{}: {pod:?}", self.context);
                self.cluster.check(&pod, &allocation);
                let kept_off = self.cluster.keeps_off(&pod, &allocation) == Some(true);
                let alike = kept_off && self.cluster.has_alike(&pod, &allocation.node);
                let into = pod.into.is_some();
                for (situation, is) in [
                    ("off cores", alike && pod.exclusive == Exclusive::Core),
                    ("off NUMA nodes", alike && pod.exclusive == Exclusive::Numa),
                    ("reserved CPUs", into && !allocation.cpus.is_empty()),
                    ("reserved NUMA nodes", into && !allocation.numas.is_empty()),
                    ("reserved devices", into && pod.requests_devices()),
                ] {
                    *self.reached.kept.entry(situation).or_default() += u32::from(is);
                }
                let [gpu, rdma] = pod.devices;
                let amplified = self.cluster.nodes[&allocation.node].percent > 100;
                for (situation, is) in [
                    ("CPUs", !allocation.cpus.is_empty()),
                    ("a NUMA node", allocation.numas.len() == 1),
                    ("two NUMA nodes", allocation.numas.len() == 2),
                    ("part of a GPU", gpu > 0 && gpu < 100),
                    ("GPUs", gpu > 100),
                    ("GPU and CPUs", gpu > 0 && !allocation.cpus.is_empty()),
                    ("part of an adapter", rdma > 0 && rdma < 100),
                    ("adapters", rdma >= 100),
                    ("GPU and adapter", gpu > 0 && rdma > 0),
                    ("amplified CPUs", amplified && !allocation.cpus.is_empty()),
                ] {
                    *self.reached.placed.entry(situation).or_default() += u32::from(is);
                }
                self.sent.insert(pod.name.clone());
                if let Some(into) = &pod.into {
                    self.cluster.owns.insert(pod.name.clone(), into.clone());
                }
                self.cluster
                    .allocations
                    .insert(pod.name.clone(), allocation);
            }
        }
        panic!("{}: no end of decisions", self.context);
    }

    fn node(&mut self, number: usize) {
        let policy = [
            Policy::None,
            Policy::Single,
            Policy::Restricted,
            Policy::BestEffort,
        ][number % 4];
        let (gpus, adapters) = (self.pick(&[0, 2, 4]), self.pick(&[0, 2, 2]));
        let node = Node {
            policy,
            percent: self.pick(&[100, 100, 150, 200]),
            whole_cores: self.below(6) == 0,
            cpus: self.pick(&[8, 12, 16]),
            memory: self.pick(&[3000, 5000, 8000]),
            reserved: if self.below(3) == 0 {
                BTreeSet::from([0, 1, 2])
            } else {
                BTreeSet::new()
            },
            devices: [vec![true; gpus], vec![true; adapters]],
        };
        let name = format!("n{number}");
        self.cluster.nodes.insert(name.clone(), node);
        self.show(&name);
    }

    /// Shows the engine a node and its objects.
    fn show(&mut self, name: &str) {
        let node = &self.cluster.nodes[name];
        let now = objects::at(self.now);
        self.engine
            .object_changed(&objects::topology(name, node), now);
        if node.devices.iter().any(|all| !all.is_empty()) {
            self.engine
                .object_changed(&objects::devices(name, node), now);
        }
        self.engine.node_applied(objects::node(name, node), now);
    }

    fn arrives(&mut self) {
        let bind = self.pick(&[Bind::No, Bind::No, Bind::Prefer, Bind::Full, Bind::Spread]);
        let names: Vec<String> = self.cluster.reservations.keys().cloned().collect();
        let into = match self.below(3) {
            0 if !names.is_empty() => Some(self.pick(&names)),
            _ => None,
        };
        let exclusive = match bind {
            Bind::No => Exclusive::No,
            _ if into.is_some() => Exclusive::No,
            _ => self.pick(&[Exclusive::No, Exclusive::Core, Exclusive::Numa]),
        };
        // Pods with an exclusive policy request little else, so that several of them fit.
        let devices = if exclusive == Exclusive::No {
            let gpu = self.pick(&[0, 0, 0, 30, 60, 100, 200]);
            [gpu, self.pick(&[0, 0, 0, 20, 50, 100, 200])]
        } else {
            [0; 2]
        };
        // Owners are small, like reservations.
        let small = into.is_some() || exclusive != Exclusive::No;
        let pod = Pod {
            name: format!("p{}", self.numbers),
            cpu: if bind == Bind::No {
                self.pick(&[500, 1500, 2500, 6000])
            } else if small {
                1000 * self.pick(&[1, 2, 2])
            } else {
                1000 * self.pick(&[1, 2, 3, 4, 6])
            },
            memory: self.pick(if small {
                &[0, 200, 700]
            } else {
                &[0, 700, 2000, 5000]
            }),
            devices,
            bind,
            exclusive,
            into,
        };
        let object = objects::pod(&pod, None);
        self.cluster.pods.insert(pod.name.clone(), pod);
        self.engine.pod_applied(object, objects::at(self.now));
    }

    /// Adds a placed reservation where it fits: with CPUs or NUMA nodes, or neither, and possibly with
    /// devices.
    fn reserved(&mut self) {
        let plain: Vec<String> = self.cluster.nodes.keys().cloned().collect();
        let name = self.pick(&plain);
        let node = self.cluster.nodes[&name].clone();
        let fine = node.policy != Policy::None || self.below(2) == 0;
        let pod = Pod {
            name: format!("r{}", self.numbers),
            cpu: 1000 * self.pick(&[2, 4]),
            memory: self.pick(&[500, 1500]),
            devices: [self.pick(&[0, 50, 100, 200]), self.pick(&[0, 50, 100])],
            bind: if fine && self.below(3) > 0 {
                Bind::Full
            } else {
                Bind::No
            },
            exclusive: Exclusive::No,
            into: None,
        };
        let named = |reservation: &Reservation| reservation.allocation.node == name;
        if node.percent > 100
            || self.cluster.reservations.values().any(named)
            || !self.cluster.has_room(&pod, &name)
        {
            return;
        }
        let Some(allocation) = self.cluster.somewhere(&pod, &name, fine) else {
            return;
        };
        let all = Reservation {
            cpu: pod.cpu,
            memory: pod.memory,
            amounts: pod.devices,
            fine: !allocation.cpus.is_empty() || !allocation.numas.is_empty(),
            allocation,
        };
        let change = objects::reservation(&pod.name, &all, false);
        self.engine.object_changed(&change, objects::at(self.now));
        self.cluster.reservations.insert(pod.name, all);
    }

    fn confirm(&mut self, name: &str) {
        self.sent.remove(name);
        let now = objects::at(self.now);
        self.engine.bind_finished(name, Ok(()), now);
        let object = objects::pod(&self.cluster.pods[name], self.cluster.allocations.get(name));
        self.engine.pod_applied(object, now);
    }

    fn conflict(&mut self, name: &str) {
        let error = BindError {
            message: "conflict".to_owned(),
            gone: false,
        };
        self.sent.remove(name);
        self.cluster.allocations.remove(name);
        self.cluster.owns.remove(name);
        self.engine
            .bind_finished(name, Err(error), objects::at(self.now));
        self.reached.conflicts += 1;
    }

    /// Deletes a reservation. Its owners keep their allocations.
    fn reservation_ends(&mut self) {
        let names: Vec<String> = self.cluster.reservations.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = self.pick(&names);
        let all = self.cluster.reservations.remove(&name).unwrap();
        self.cluster.owns.retain(|_, of| *of != name);
        let change = objects::reservation(&name, &all, true);
        self.engine.object_changed(&change, objects::at(self.now));
    }

    /// Starts another engine from the annotations.
    fn restart(&mut self) {
        for name in self.sent.clone() {
            self.confirm(&name);
        }
        self.engine = engine(self.cached);
        let now = objects::at(self.now);
        for (name, pod) in &self.cluster.pods {
            let object = objects::pod(pod, self.cluster.allocations.get(name));
            self.engine.pod_applied(object, now);
        }
        let names: Vec<String> = self.cluster.nodes.keys().cloned().collect();
        for name in names {
            self.show(&name);
        }
        for (name, all) in &self.cluster.reservations {
            let change = objects::reservation(name, all, false);
            self.engine.object_changed(&change, now);
        }
        self.reached.restarts += 1;
    }

    fn step(&mut self) {
        match self.below(20) {
            0 | 1 => {
                let sent_pods: Vec<String> = self.sent.iter().cloned().collect();
                for name in sent_pods {
                    if self.below(4) > 0 {
                        self.confirm(&name);
                    }
                }
            }
            2 => {
                let sent_pods: Vec<String> = self.sent.iter().cloned().collect();
                if !sent_pods.is_empty() {
                    let name = self.pick(&sent_pods);
                    self.conflict(&name);
                }
            }
            3..=6 => {
                let pods: Vec<String> = self.cluster.pods.keys().cloned().collect();
                if !pods.is_empty() {
                    let name = self.pick(&pods);
                    let allocation = self.cluster.allocations.remove(&name);
                    self.cluster.owns.remove(&name);
                    let pod = self.cluster.pods.remove(&name).unwrap();
                    let object = objects::pod(&pod, allocation.as_ref());
                    self.sent.remove(&name);
                    self.engine.pod_deleted(&object, objects::at(self.now));
                }
            }
            7 => {
                let kind = self.pick(&[GPU, RDMA]);
                let with = self.cluster.nodes.iter();
                let with = with.filter(|(_, node)| !node.devices[kind].is_empty());
                let with: Vec<String> = with.map(|(name, _)| name.clone()).collect();
                if !with.is_empty() {
                    let name = self.pick(&with);
                    let count = self.cluster.nodes[&name].devices[kind].len();
                    let minor = self.below(count);
                    let node = self.cluster.nodes.get_mut(&name).unwrap();
                    node.devices[kind][minor] = !node.devices[kind][minor];
                    let change = objects::devices(&name, node);
                    self.engine.object_changed(&change, objects::at(self.now));
                }
            }
            8 if self.below(4) == 0 => self.restart(),
            9 | 10 => self.reserved(),
            11 if self.below(4) == 0 => self.reservation_ends(),
            _ => self.arrives(),
        }
    }
}

fn run(seed: u64, cached: bool) -> Reached {
    let mut run = AlignedRun {
        engine: engine(cached),
        cached,
        cluster: AlignedCluster::default(),
        sent: BTreeSet::new(),
        seed,
        numbers: 0,
        now: 0,
        context: String::new(),
        reached: Reached::default(),
    };
    for number in 0..4 {
        run.node(number);
    }
    for step in 0..70 {
        run.context = format!("seed {seed}, step {step}");
        // Longer than a rejected pod waits for its retry.
        run.now += 20;
        run.step();
        run.decide();
    }
    assert_eq!(
        run.engine.classes().mismatches(),
        0,
        "every signature is complete"
    );
    run.reached
}

/// Runs the engine with and without caches.
#[test]
fn cpu_and_device_allocations_match_the_rules() {
    let mut total = Reached::default();
    for seed in 0..40 {
        let reached = run(seed, seed % 3 != 0);
        total.sets += reached.sets;
        total.refused += reached.refused;
        total.conflicts += reached.conflicts;
        total.restarts += reached.restarts;
        for (sums, counts) in [
            (&mut total.apart, reached.apart),
            (&mut total.placed, reached.placed),
            (&mut total.kept, reached.kept),
        ] {
            for (situation, count) in counts {
                *sums.entry(situation).or_default() += count;
            }
        }
    }
    let enough = |counts: &BTreeMap<&str, u32>, kinds: usize, each: u32| {
        counts.len() == kinds && counts.values().all(|count| *count >= each)
    };
    assert!(
        total.sets >= 500 && total.refused >= 100 && total.conflicts >= 20 && total.restarts >= 10,
        "{total:?}"
    );
    assert!(
        enough(&total.apart, 4, 20) && enough(&total.placed, 10, 20) && enough(&total.kept, 7, 10),
        "{total:?}"
    );
}
