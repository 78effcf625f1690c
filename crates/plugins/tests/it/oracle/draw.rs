//! Random events of a run, from its seed.

pub(super) mod render;

use super::OracleRun;
use super::rules::{Node, Pod, Reservation};
use crate::failover::draw as mix;
use std::collections::BTreeSet;

const ZONES: [&str; 3] = ["z0", "z1", "z2"];
const APPS: [&str; 3] = ["a", "b", "c"];
const QUOTAS: [&str; 2] = ["q0", "q1"];
const OWNERS: [&str; 2] = ["x", "y"];

pub(super) struct Draw {
    seed: u64,
    numbers: u64,
    names: u32,
    /// Gangs with a bound member: later members are scheduled alone.
    pub(super) begun: BTreeSet<String>,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            numbers: 0,
            names: 0,
            begun: BTreeSet::new(),
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.numbers += 1;
        mix(self.seed << 32 | self.numbers) % end
    }

    fn one_in(&mut self, end: u64) -> bool {
        self.below(end) == 0
    }

    fn between(&mut self, from: i64, to: i64) -> i64 {
        let span = u64::try_from(to - from).unwrap();
        from + i64::try_from(self.below(span)).unwrap()
    }

    fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        let end = u64::try_from(all.len()).unwrap();
        all[usize::try_from(self.below(end)).unwrap()]
    }

    fn name(&mut self, of: &str) -> String {
        self.names += 1;
        format!("{of}{}", self.names)
    }

    fn pod(&mut self) -> Pod {
        let mut pod = Pod {
            name: self.name("p"),
            app: self.pick(&APPS),
            cpu: [300, 700, 1500, 2500][usize::try_from(self.below(4)).unwrap()],
            memory: [0, 256, 1024, 3000][usize::try_from(self.below(4)).unwrap()],
            ..Pod::default()
        };
        match self.below(16) {
            0 => pod.port = true,
            1 => pod.selects_zone = Some(self.pick(&ZONES)),
            2 => pod.shuns_zone = Some(self.pick(&ZONES)),
            3 => pod.prefers = vec![(10, self.pick(&ZONES)), (3, self.pick(&ZONES))],
            4 => pod.tolerates = vec![self.pick(&["dedicated", "slow"])],
            5 => {
                pod.spread = Some((
                    self.pick(&["zone", "kubernetes.io/hostname"]),
                    self.between(1, 3),
                ))
            }
            6 => {
                pod.spread = Some(("zone", 1));
                pod.shuns_zone = Some(self.pick(&ZONES));
            }
            7 => {
                pod.near = Some((
                    self.pick(&["zone", "kubernetes.io/hostname"]),
                    self.pick(&APPS),
                ))
            }
            8 => {
                pod.apart = Some((
                    self.pick(&["zone", "kubernetes.io/hostname"]),
                    self.pick(&APPS),
                ))
            }
            9 | 10 => pod.quota = Some(self.pick(&QUOTAS)),
            11 | 12 => pod.owner = Some(self.pick(&OWNERS)),
            13 => {
                pod.owner = Some(self.pick(&OWNERS));
                pod.insists = true;
            }
            14 => pod.priority = 1000,
            _ => {}
        }
        pod
    }

    fn node(&mut self) -> Node {
        let taint = match self.below(8) {
            0 => Some(("dedicated", "NoSchedule")),
            1 => Some(("slow", "PreferNoSchedule")),
            2 => Some(("gone", "NoExecute")),
            _ => None,
        };
        Node {
            zone: self.pick(&ZONES),
            cpu: 1000 * self.between(2, 8),
            memory: 1024 * self.between(4, 12),
            cordoned: self.one_in(12),
            taint,
            usage: None,
        }
    }
}

impl OracleRun {
    pub(super) fn begin(&mut self) {
        for quota in QUOTAS {
            self.quota(quota, 4000);
        }
        for number in 0..5 {
            self.node(number);
        }
    }

    fn node(&mut self, number: i64) {
        let name = format!("n{number}");
        let mut node = self.draw.node();
        if let Some(old) = self.cluster.nodes.get(&name) {
            // A node with pods keeps its zone and only grows.
            (node.zone, node.usage) = (old.zone, old.usage);
            node.cpu = node.cpu.max(old.cpu);
            node.memory = node.memory.max(old.memory);
        }
        let now = self.now();
        self.engine.node_applied(render::node(&name, &node), now);
        self.cluster.nodes.insert(name, node);
    }

    fn quota(&mut self, name: &'static str, max: i64) {
        let now = self.now();
        self.engine.object_changed(&render::quota(name, max), now);
        self.cluster.quotas.insert(name, max);
    }

    fn arrives(&mut self, pod: Pod) {
        let object = self.object(&pod, false);
        let now = self.now();
        self.cluster.pods.insert(pod.name.clone(), pod);
        self.engine.pod_applied(object, now);
    }

    fn any(&mut self, mut from: Vec<String>) -> Option<String> {
        if from.is_empty() {
            return None;
        }
        let end = u64::try_from(from.len()).unwrap();
        Some(from.swap_remove(usize::try_from(self.draw.below(end)).unwrap()))
    }

    fn assumed_names(&self) -> Vec<String> {
        let bound = self
            .assumed
            .keys()
            .filter(|name| self.bound.contains(*name));
        bound.cloned().collect()
    }

    /// Makes one random event happen.
    pub(super) fn step(&mut self) {
        match self.draw.below(24) {
            0 => {
                let number = self.draw.between(0, 7);
                self.node(number);
            }
            1 | 2 => {
                let names = self.cluster.nodes.keys().cloned().collect();
                if let Some(name) = self.any(names) {
                    let node = &self.cluster.nodes[&name];
                    let (most_cpu, most_memory) = (node.cpu / 2, node.memory / 2);
                    let cpu = self.draw.between(0, most_cpu);
                    let memory = self.draw.between(0, most_memory);
                    let at = self.cluster.now - self.draw.between(0, 40);
                    let now = self.now();
                    self.engine
                        .object_changed(&render::metric(&name, cpu, memory, at), now);
                    self.cluster.nodes.get_mut(&name).unwrap().usage = Some((cpu, memory, at));
                }
            }
            3..=5 => {
                let names = self.cluster.pods.keys().cloned().collect();
                if let Some(name) = self.any(names) {
                    self.delete(&name);
                }
            }
            6..=8 => {
                for name in self.assumed_names() {
                    if !self.draw.one_in(3) {
                        self.confirm(&name);
                    }
                }
            }
            9 => {
                let names = self.assumed_names();
                let names = names.into_iter();
                let alone = names
                    .filter(|name| self.cluster.pods[name].gang.is_none())
                    .collect();
                if let Some(name) = self.any(alone) {
                    self.conflict(&name);
                }
            }
            10 => {
                let (name, max) = (self.draw.pick(&QUOTAS), 1000 * self.draw.between(1, 8));
                self.quota(name, max);
            }
            11 | 12 => self.reserve(),
            13 => {
                let names = self.cluster.reservations.keys().cloned().collect();
                if let Some(name) = self.any(names) {
                    self.unreserve(&name);
                }
            }
            14 => {
                let seconds = self.draw.between(1, 60);
                self.cluster.now += seconds;
            }
            15 | 16 => {
                let count = usize::try_from(self.draw.between(2, 4)).unwrap();
                let gang = self.draw.name("g");
                let cpu = [700, 2500][usize::try_from(self.draw.below(2)).unwrap()];
                for _ in 0..count {
                    let name = self.draw.name("p");
                    self.arrives(Pod {
                        name,
                        app: "a",
                        cpu,
                        gang: Some((gang.clone(), count)),
                        ..Pod::default()
                    });
                }
            }
            _ => {
                let pod = self.draw.pod();
                self.arrives(pod);
            }
        }
    }

    /// Adds a placed reservation where it fits.
    fn reserve(&mut self) {
        let (cpu, memory) = (
            1000 * self.draw.between(1, 4),
            1024 * self.draw.between(1, 4),
        );
        let size = Pod {
            cpu,
            memory,
            tolerates: vec!["dedicated", "slow", "gone"],
            ..Pod::default()
        };
        let fits = self.cluster.feasible(&size);
        let plain = fits.into_iter().filter(|(_, fit)| fit.plain);
        if let Some(node) = self.any(plain.map(|(node, _)| node).collect()) {
            let name = self.draw.name("r");
            let reservation = Reservation {
                node,
                owner: self.draw.pick(&OWNERS),
                cpu,
                memory,
                restricted: self.draw.one_in(2),
            };
            let now = self.now();
            let change = render::reservation(&name, &reservation, false);
            self.engine.object_changed(&change, now);
            self.cluster.reservations.insert(name, reservation);
        }
    }

    fn unreserve(&mut self, name: &str) {
        let reservation = self.cluster.reservations.remove(name).unwrap();
        let now = self.now();
        let change = render::reservation(name, &reservation, true);
        self.engine.object_changed(&change, now);
        // Its owners stay as ordinary pods.
        self.cluster.owns.retain(|_, of| of != name);
    }
}
