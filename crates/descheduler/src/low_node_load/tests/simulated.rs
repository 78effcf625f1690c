//! Simulated clusters with changing load over hours of cycles.

use super::outcomes::{framework_with_jobs, made};
use super::*;
use crate::framework::{Intent, Placement};
use crate::move_history::retained_until;
use crate::testing::moved;
use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use koord_model::resources::{Amounts, CPU, MEMORY};
use std::collections::{BTreeMap, BTreeSet};

const CYCLE: SignedDuration = SignedDuration::from_secs(60);
const CPUS: i64 = 32_000;
const HIGH: i64 = 70;

/// State of a simulated pod in addition to its object.
#[derive(Debug, Clone)]
struct Life {
    cpu: i64,
    memory: i64,
    /// Time of the last move of the pod or of one that it replaced.
    moved: Option<Timestamp>,
}

struct Simulation {
    rng: Rng,
    world: TestCluster,
    lives: BTreeMap<String, Life>,
    born: usize,
}

fn amounts(cpu: i64, memory: i64) -> Amounts {
    let mut out = Amounts::new();
    out.set(CPU, cpu);
    out.set(MEMORY, memory);
    out
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut out = Self {
            rng: Rng::with_seed(seed),
            world: TestCluster::default(),
            lives: BTreeMap::new(),
            born: 0,
        };
        let nodes = out.rng.usize(6..20);
        for i in 0..nodes {
            out.world.node(
                &format!("n{i:02}"),
                json!({"status": {"allocatable": {"cpu": "32", "memory": "64G", "pods": "110"}}}),
            );
        }
        for i in 0..nodes * 10 {
            // Half of the pods are on a quarter of the nodes.
            let crowd = out.rng.bool();
            let node = out
                .rng
                .usize(0..if crowd { nodes.div_ceil(4) } else { nodes });
            let life = Life {
                cpu: out.rng.i64(100..2500),
                memory: out.rng.i64(100_000_000..2_000_000_000),
                moved: None,
            };
            out.bear(&format!("n{node:02}"), i / 5, life);
        }
        out
    }

    fn bear(&mut self, node: &str, owner: usize, life: Life) {
        let name = format!("p{:05}", self.born);
        self.born += 1;
        let class = if owner.is_multiple_of(3) {
            "koord-batch"
        } else {
            "koord-prod"
        };
        let uid = format!("rs-{owner}");
        self.world.pod(&name, node, json!({
            "metadata": {
                "creationTimestamp": self.world.now,
                "labels": {"koordinator.sh/priority-class": class},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": uid, "uid": uid, "controller": true}],
            },
        }));
        self.lives.insert(name, life);
    }

    /// Changes the usage randomly.
    fn wander(&mut self) {
        for life in self.lives.values_mut() {
            let percent = self.rng.i64(90..=111);
            life.cpu = (life.cpu * percent / 100).clamp(50, 6000);
        }
        self.world.now += CYCLE;
        let mut usage = Vec::new();
        for node in &self.world.nodes {
            let pods = self
                .world
                .pods
                .iter()
                .filter(|pod| pod.node.as_ref() == Some(&node.name));
            let pods = pods.map(|pod| {
                let life = &self.lives[&*pod.name];
                crate::state::PodUsage {
                    namespace: pod.namespace.clone(),
                    name: pod.name.clone(),
                    class: pod.shape.class,
                    usage: amounts(life.cpu, life.memory),
                }
            });
            usage.push(Arc::new(NodeUsage {
                name: node.name.clone(),
                uid: node.uid.clone(),
                resource_version: None,
                updated: Some(self.world.now),
                node: Some(Amounts::new()),
                system: amounts(500, 1_000_000_000),
                pods: pods.collect(),
            }));
        }
        self.world.usage = usage;
    }

    fn loads(&self) -> BTreeMap<Arc<str>, i64> {
        let named_usage = |usage: &Arc<NodeUsage>| {
            usage.system.get(CPU) + usage.pods.iter().map(|pod| pod.usage.get(CPU)).sum::<i64>()
        };
        self.world
            .usage
            .iter()
            .map(|usage| (usage.name.clone(), named_usage(usage)))
            .collect()
    }

    fn deviation(&self) -> f64 {
        let loads: Vec<_> = self
            .loads()
            .values()
            .map(|load| *load as f64 / CPUS as f64)
            .collect();
        let mean = loads.iter().sum::<f64>() / loads.len() as f64;
        (loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / loads.len() as f64).sqrt()
    }

    /// Carries out `plan` immediately. Returns the shortest time between moves of a pod and its replacement.
    fn carry_out(&mut self, plan: &Plan) -> Option<SignedDuration> {
        let mut least: Option<SignedDuration> = None;
        for planned in plan.moves() {
            let pod = &planned.pod;
            self.world.pods.retain(|other| other.uid != pod.uid);
            let mut life = self.lives.remove(&*pod.name).unwrap();
            if let Some(before) = life.moved.replace(self.world.now) {
                let apart = self.world.now.duration_since(before);
                least = Some(least.map_or(apart, |least| least.min(apart)));
            }
            let owner = pod
                .controller()
                .unwrap()
                .name
                .trim_start_matches("rs-")
                .parse()
                .unwrap();
            let node = planned.target.clone().unwrap();
            self.bear(&node, owner, life);
            if let Some(Intent::Job(job)) = &planned.intent {
                let mut job = made(job, self.world.now);
                let status = json!({"phase": "Succeeded", "nodeName": &*node});
                job.status = Some(serde_json::from_value(status).unwrap());
                self.world.jobs.push(Arc::new(job));
            }
        }
        let now = self.world.now;
        let jobs = &mut self.world.jobs;
        jobs.retain(|job| retained_until(job, now).is_some_and(|until| now < until));
        least
    }
}

/// A placement that selects the node with the lowest usage if that stays within its threshold.
#[derive(Debug, Default)]
struct Emptiest(BTreeMap<Arc<str>, i64>);

impl Placement for Emptiest {
    fn begin(&mut self, snapshot: &Snapshot) {
        let named_usage = |usage: &Arc<NodeUsage>| {
            usage.system.get(CPU) + usage.pods.iter().map(|pod| pod.usage.get(CPU)).sum::<i64>()
        };
        self.0 = snapshot
            .usage
            .values()
            .map(|usage| (usage.name.clone(), named_usage(usage)))
            .collect();
    }
    fn place_tentatively(
        &mut self,
        snapshot: &Snapshot,
        pod: &Arc<PodInfo>,
    ) -> Result<Arc<str>, SkipReason> {
        let own = pod.node.clone().unwrap();
        let used = &snapshot.usage[&own].pods;
        let cpu = used
            .iter()
            .find(|used| used.name == pod.name)
            .unwrap()
            .usage
            .get(CPU);
        let other_nodes = self.0.iter_mut().filter(|(node, _)| **node != own);
        let (node, load) = other_nodes.min_by_key(|(_, load)| **load).unwrap();
        if (*load + cpu) * 100 > CPUS * HIGH {
            return Err(SkipReason::new(
                "NoTarget",
                "every other node would be hot with it",
            ));
        }
        *load += cpu;
        Ok(node.clone())
    }
}

#[derive(Debug, Default)]
struct SimulationTotals {
    hot: usize,
    moves: usize,
    rested: usize,
    apart: Option<SignedDuration>,
    fell: usize,
    leaders: usize,
}

/// With `jobs`, the leader changes now and then, and reads the moves of the last one only from the jobs.
fn simulate(seed: u64, jobs: bool, seen: &mut SimulationTotals) {
    let mut simulation = Simulation::new(seed);
    let thresholds = json!({"lowThresholds": {"cpu": 50, "memory": 70}, "highThresholds": {"cpu": HIGH, "memory": 90}});
    let args = merged(
        thresholds,
        json!({"anomalyCondition": {"consecutiveAbnormalities": 2}}),
    );
    let lead = || {
        let mut framework = match jobs {
            true => framework_with_jobs(args.clone()),
            false => framework(args.clone()),
        };
        framework.placement = Some(Box::new(Emptiest::default()));
        framework
    };
    let mut framework = lead();
    let mut moves = 0;
    let mut first = None;
    for _ in 0..100 {
        simulation.wander();
        let before = simulation.loads();
        let deviation = simulation.deviation();
        first.get_or_insert(deviation);
        let hot: BTreeSet<_> = before
            .iter()
            .filter(|(_, load)| **load * 100 > CPUS * HIGH)
            .map(|(node, _)| node.clone())
            .collect();
        seen.hot += hot.len();
        if jobs && simulation.rng.u8(..8) == 0 {
            framework = lead();
            seen.leaders += 1;
        }
        let plan = framework.run(&simulation.world.snapshot());
        assert_eq!(plan.error, None);
        moves += moved(&plan).len();
        seen.rested += plan
            .skipped
            .iter()
            .filter(|skipped| skipped.reason.rule == "MovedLately")
            .count();
        for planned in plan.moves() {
            let from = planned.pod.node.as_ref().unwrap();
            assert!(hot.contains(from), "seed {seed}: {from} is not hot");
        }
        if let Some(apart) = simulation.carry_out(&plan) {
            seen.apart = Some(seen.apart.map_or(apart, |least| least.min(apart)));
        }
        let after = simulation.current_loads();
        for (node, load) in &after {
            let over = *load * 100 > CPUS * HIGH;
            assert!(
                !over || hot.contains(node),
                "seed {seed}: a move made {node} hot"
            );
            assert!(*load <= before[node] || load * 100 <= CPUS * HIGH);
        }
        if moved(&plan).is_empty() {
            continue;
        }
        let spread = |loads: &BTreeMap<Arc<str>, i64>| {
            let mean = loads.values().sum::<i64>() as f64 / loads.len() as f64;
            loads
                .values()
                .map(|load| (*load as f64 - mean).powi(2))
                .sum::<f64>()
        };
        assert!(
            spread(&after) < spread(&before),
            "seed {seed}: moves made the load less even"
        );
    }
    seen.moves += moves;
    if simulation.deviation() < first.unwrap() {
        seen.fell += 1;
    }
}

impl Simulation {
    /// Returns the usage of nodes with their current pods.
    fn current_loads(&self) -> BTreeMap<Arc<str>, i64> {
        let mut out: BTreeMap<Arc<str>, i64> = self
            .world
            .nodes
            .iter()
            .map(|node| (node.name.clone(), 500))
            .collect();
        for pod in &self.world.pods {
            *out.get_mut(pod.node.as_ref().unwrap()).unwrap() += self.lives[&*pod.name].cpu;
        }
        out
    }
}

#[test]
fn load_evens_out_and_no_pod_is_moved_twice_within_an_hour() {
    for (jobs, seeds) in [(false, 0..24), (true, 24..40)] {
        let mut totals = SimulationTotals::default();
        let all = seeds.clone().count();
        for seed in seeds {
            simulate(seed, jobs, &mut totals);
        }
        println!("{totals:?}");
        assert!(totals.hot > 100 && totals.moves > 100, "{totals:?}");
        assert!(totals.rested > 10, "no pod had to rest: {totals:?}");
        let apart = totals.apart.expect("no pod was moved a second time");
        assert!(apart >= SignedDuration::from_hours(1), "{totals:?}");
        assert!(totals.fell >= all * 5 / 6, "{totals:?}");
        assert_eq!(totals.leaders > 100, jobs, "{totals:?}");
    }
}
