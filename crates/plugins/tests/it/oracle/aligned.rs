//! CPUs that are bound, also amplified ones, NUMA nodes and GPUs: the nodes that can take each pod that waits are those of
//! the rules, and what is written on a pod is what the rules allow.

mod objects;
mod rules;

use crate::failover::draw as mix;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, Engine, EngineOptions, Output};
use koord_scheduler::framework::{BuildContext, Profiles};
use rules::{Bind, Cluster, Node, Pod, Policy};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// How often the runs came to what they are about.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reached {
    /// Feasible sets compared that were neither empty nor all.
    sets: u32,
    /// Nodes that refuse what their sums would allow, by policy.
    apart: BTreeMap<&'static str, u32>,
    /// Pods placed, by what they have.
    placed: BTreeMap<&'static str, u32>,
    refused: u32,
    conflicts: u32,
    restarts: u32,
}

fn engine(cached: bool) -> Engine {
    let enabled = ["NodeNUMAResource", "DeviceShare"].map(|name| json!({"name": name}));
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

struct Run {
    engine: Engine,
    cached: bool,
    cluster: Cluster,
    /// Bound, and what the API will show.
    sent: BTreeSet<String>,
    seed: u64,
    numbers: u64,
    now: i64,
    what: String,
    reached: Reached,
}

impl Run {
    fn below(&mut self, end: usize) -> usize {
        self.numbers += 1;
        let end = u64::try_from(end).unwrap();
        usize::try_from(mix(self.seed << 32 | self.numbers) % end).unwrap()
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn compare(&mut self) {
        for (name, pod) in &self.cluster.pods {
            let Some(info) = self.engine.queued(name).cloned() else {
                continue;
            };
            let refused = self
                .engine
                .nearest(&info, usize::MAX, objects::at(self.now));
            let refused: BTreeSet<&str> = refused.iter().map(|near| &*near.node).collect();
            let nodes = self.cluster.nodes.keys();
            let is: BTreeSet<String> = nodes
                .filter(|node| !refused.contains(node.as_str()))
                .cloned()
                .collect();
            let expected = self.cluster.feasible(pod);
            let what = &self.what;
            assert_eq!(is, expected, "{what}: {pod:?} in {:#?}", self.cluster);
            let nodes = &self.cluster.nodes;
            self.reached.sets += u32::from(!is.is_empty() && is.len() < nodes.len());
            for (name, node) in nodes {
                if !is.contains(name) && self.cluster.has_room(pod, name) {
                    let by = objects::policy(node.policy);
                    *self.reached.apart.entry(by).or_default() += 1;
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
                assert!(fits.is_empty(), "{}: {pod:?} fits {fits:?}", self.what);
                self.reached.refused += 1;
            }
            for output in self.engine.take_outputs() {
                let Output::Bind(bind) = output else { continue };
                let held = objects::held(&bind.node, &bind.patch.annotations);
                assert!(fits.contains(&held.node), "{}: {pod:?}", self.what);
                self.cluster.check(&pod, &held);
                let amplified = self.cluster.nodes[&held.node].percent > 100;
                for (what, is) in [
                    ("CPUs", !held.cpus.is_empty()),
                    ("a NUMA node", held.numas.len() == 1),
                    ("two NUMA nodes", held.numas.len() == 2),
                    ("part of a GPU", pod.gpu > 0 && pod.gpu < 100),
                    ("GPUs", pod.gpu > 100),
                    ("GPU and CPUs", pod.gpu > 0 && !held.cpus.is_empty()),
                    ("amplified CPUs", amplified && !held.cpus.is_empty()),
                ] {
                    *self.reached.placed.entry(what).or_default() += u32::from(is);
                }
                self.sent.insert(pod.name.clone());
                self.cluster.held.insert(pod.name.clone(), held);
            }
        }
        panic!("{}: no end of decisions", self.what);
    }

    fn node(&mut self, number: usize) {
        let policy = [
            Policy::None,
            Policy::Single,
            Policy::Restricted,
            Policy::BestEffort,
        ][number % 4];
        let gpus = self.of(&[0, 2, 4]);
        let node = Node {
            policy,
            percent: self.of(&[100, 100, 150, 200]),
            whole_cores: self.below(6) == 0,
            cpus: self.of(&[8, 12, 16]),
            memory: self.of(&[3000, 5000, 8000]),
            reserved: if self.below(3) == 0 {
                BTreeSet::from([0, 1, 2])
            } else {
                BTreeSet::new()
            },
            gpus: vec![true; gpus],
        };
        let name = format!("n{number}");
        self.cluster.nodes.insert(name.clone(), node);
        self.show(&name);
    }

    /// The engine is shown a node and what belongs to it.
    fn show(&mut self, name: &str) {
        let node = &self.cluster.nodes[name];
        let now = objects::at(self.now);
        self.engine
            .object_changed(&objects::topology(name, node), now);
        if !node.gpus.is_empty() {
            self.engine
                .object_changed(&objects::devices(name, node), now);
        }
        self.engine.node_applied(objects::node(name, node), now);
    }

    fn arrives(&mut self) {
        let bind = self.of(&[Bind::No, Bind::No, Bind::Prefer, Bind::Full, Bind::Spread]);
        let gpu = self.of(&[0, 0, 0, 30, 60, 100, 200]);
        let pod = Pod {
            name: format!("p{}", self.numbers),
            cpu: if bind == Bind::No {
                self.of(&[500, 1500, 2500, 6000])
            } else {
                1000 * self.of(&[1, 2, 3, 4, 6])
            },
            memory: self.of(&[0, 700, 2000, 5000]),
            gpu,
            bind,
        };
        let object = objects::pod(&pod, None);
        self.cluster.pods.insert(pod.name.clone(), pod);
        self.engine.pod_applied(object, objects::at(self.now));
    }

    fn confirm(&mut self, name: &str) {
        self.sent.remove(name);
        let now = objects::at(self.now);
        self.engine.bind_finished(name, Ok(()), now);
        let object = objects::pod(&self.cluster.pods[name], self.cluster.held.get(name));
        self.engine.pod_applied(object, now);
    }

    fn conflict(&mut self, name: &str) {
        let error = BindError {
            message: "conflict".to_owned(),
            gone: false,
        };
        self.sent.remove(name);
        self.cluster.held.remove(name);
        self.engine
            .bind_finished(name, Err(error), objects::at(self.now));
        self.reached.conflicts += 1;
    }

    /// Another engine goes on with what is written.
    fn restart(&mut self) {
        for name in self.sent.clone() {
            self.confirm(&name);
        }
        self.engine = engine(self.cached);
        let now = objects::at(self.now);
        for (name, pod) in &self.cluster.pods {
            let object = objects::pod(pod, self.cluster.held.get(name));
            self.engine.pod_applied(object, now);
        }
        let names: Vec<String> = self.cluster.nodes.keys().cloned().collect();
        for name in names {
            self.show(&name);
        }
        self.reached.restarts += 1;
    }

    fn step(&mut self) {
        match self.below(16) {
            0 | 1 => {
                let sent: Vec<String> = self.sent.iter().cloned().collect();
                for name in sent {
                    if self.below(4) > 0 {
                        self.confirm(&name);
                    }
                }
            }
            2 => {
                let sent: Vec<String> = self.sent.iter().cloned().collect();
                if !sent.is_empty() {
                    let name = self.of(&sent);
                    self.conflict(&name);
                }
            }
            3..=6 => {
                let pods: Vec<String> = self.cluster.pods.keys().cloned().collect();
                if !pods.is_empty() {
                    let name = self.of(&pods);
                    let held = self.cluster.held.remove(&name);
                    let pod = self.cluster.pods.remove(&name).unwrap();
                    let object = objects::pod(&pod, held.as_ref());
                    self.sent.remove(&name);
                    self.engine.pod_deleted(&object, objects::at(self.now));
                }
            }
            7 => {
                let with = self.cluster.nodes.iter();
                let with = with.filter(|(_, node)| !node.gpus.is_empty());
                let with: Vec<String> = with.map(|(name, _)| name.clone()).collect();
                if !with.is_empty() {
                    let name = self.of(&with);
                    let count = self.cluster.nodes[&name].gpus.len();
                    let minor = self.below(count);
                    let node = self.cluster.nodes.get_mut(&name).unwrap();
                    node.gpus[minor] = !node.gpus[minor];
                    let change = objects::devices(&name, node);
                    self.engine.object_changed(&change, objects::at(self.now));
                }
            }
            8 if self.below(4) == 0 => self.restart(),
            _ => self.arrives(),
        }
    }
}

fn run(seed: u64, cached: bool) -> Reached {
    let mut run = Run {
        engine: engine(cached),
        cached,
        cluster: Cluster::default(),
        sent: BTreeSet::new(),
        seed,
        numbers: 0,
        now: 0,
        what: String::new(),
        reached: Reached::default(),
    };
    for number in 0..4 {
        run.node(number);
    }
    for step in 0..70 {
        run.what = format!("seed {seed}, step {step}");
        // Longer than who was refused waits before it is tried again.
        run.now += 20;
        run.step();
        run.decide();
    }
    assert_eq!(run.engine.mismatches(), 0, "every signature is complete");
    run.reached
}

/// The engine that remembers, and the one that does not.
#[test]
fn cpus_and_devices_go_where_the_rules_say() {
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
        ] {
            for (what, count) in counts {
                *sums.entry(what).or_default() += count;
            }
        }
    }
    let enough = |counts: &BTreeMap<&str, u32>, kinds: usize| {
        counts.len() == kinds && counts.values().all(|count| *count >= 20)
    };
    assert!(
        total.sets >= 500 && total.refused >= 100 && total.conflicts >= 20 && total.restarts >= 10,
        "{total:?}"
    );
    assert!(
        enough(&total.apart, 4) && enough(&total.placed, 7),
        "{total:?}"
    );
}
