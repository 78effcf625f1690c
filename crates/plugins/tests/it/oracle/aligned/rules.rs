//! The rules of `NodeNUMAResource` and `DeviceShare` (and of what a node has in all), asked of every
//! node anew from what is written on pods.

use std::collections::{BTreeMap, BTreeSet};

/// NUMA nodes of every node, and threads of every core.
pub(super) const NUMAS: u32 = 2;
pub(super) const THREADS: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    None,
    BestEffort,
    Restricted,
    Single,
}

/// How CPUs that are bound lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bind {
    No,
    /// Whole cores, if there are any.
    Prefer,
    /// Whole cores.
    Full,
    /// One CPU of a core.
    Spread,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) policy: Policy,
    /// What its CPUs are said to be worth, in percent of what they are; 100 or more.
    pub(super) percent: i64,
    /// Binds the CPUs of every pod, as whole cores.
    pub(super) whole_cores: bool,
    pub(super) cpus: u32,
    /// MiB of each NUMA node.
    pub(super) memory: i64,
    /// CPUs that the kubelet keeps.
    pub(super) reserved: BTreeSet<u32>,
    /// Whether each GPU is well; the first half is on NUMA node 0.
    pub(super) gpus: Vec<bool>,
}

#[derive(Debug, Clone)]
pub(super) struct Pod {
    pub(super) name: String,
    /// Milli-CPUs, MiB (0: not asked for) and percent of a GPU (above 100: whole ones).
    pub(super) cpu: i64,
    pub(super) memory: i64,
    pub(super) gpu: i64,
    pub(super) bind: Bind,
}

/// What is written on a pod that has a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Held {
    pub(super) node: String,
    pub(super) cpus: BTreeSet<u32>,
    /// Milli-CPUs and MiB by NUMA node.
    pub(super) numas: BTreeMap<u32, [i64; 2]>,
    /// Percent by GPU.
    pub(super) gpus: BTreeMap<u32, i64>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Cluster {
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) held: BTreeMap<String, Held>,
}

impl Node {
    pub(super) fn numa_of_cpu(&self, cpu: u32) -> u32 {
        cpu / (self.cpus / NUMAS)
    }

    pub(super) fn numa_of_gpu(&self, minor: u32) -> u32 {
        minor * NUMAS / u32::try_from(self.gpus.len()).unwrap()
    }

    /// Milli-CPUs that are bound, as what they would have given others; rounded up.
    pub(super) fn amplified(&self, milli: i64) -> i64 {
        (milli * self.percent + 99) / 100
    }

    /// How CPUs are bound here.
    pub(super) fn bind(&self, pod: &Pod) -> Bind {
        if self.whole_cores && pod.cpu > 0 {
            Bind::Full
        } else {
            pod.bind
        }
    }
}

/// So many CPUs can be bound of these.
fn usable(free: &BTreeSet<u32>, bind: Bind) -> i64 {
    let mut cores: BTreeMap<u32, i64> = BTreeMap::new();
    for cpu in free {
        *cores.entry(cpu / THREADS).or_default() += 1;
    }
    let threads = i64::from(THREADS);
    match bind {
        Bind::Full => threads * cores.values().filter(|free| **free == threads).count() as i64,
        Bind::Spread => cores.len() as i64,
        Bind::Prefer | Bind::No => free.len() as i64,
    }
}

impl Cluster {
    fn on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Held> {
        self.held.values().filter(move |held| held.node == node)
    }

    pub(super) fn feasible(&self, pod: &Pod) -> BTreeSet<String> {
        let nodes = self.nodes.keys().filter(|node| self.fits(pod, node));
        nodes.cloned().collect()
    }

    /// Amounts of the whole node.
    pub(super) fn has_room(&self, pod: &Pod, name: &str) -> bool {
        let node = &self.nodes[name];
        let bound = |cpus: usize| 1000 * cpus as i64;
        let mut free = [
            node.amplified(i64::from(node.cpus) * 1000),
            node.memory * i64::from(NUMAS),
            node.gpus.len() as i64 * 100,
        ];
        for (other, held) in &self.held {
            if held.node == name {
                let other = &self.pods[other];
                let cpus = bound(held.cpus.len());
                let cpu = other.cpu - cpus + node.amplified(cpus);
                for (free, asked) in free.iter_mut().zip([cpu, other.memory, other.gpu]) {
                    *free -= asked;
                }
            }
        }
        let cpu = match node.bind(pod) {
            Bind::No => pod.cpu,
            _ => node.amplified(pod.cpu),
        };
        let asked = [cpu, pod.memory, pod.gpu];
        asked
            .iter()
            .zip(free)
            .all(|(asked, free)| *asked == 0 || *asked <= free)
    }

    fn fits(&self, pod: &Pod, name: &str) -> bool {
        let node = &self.nodes[name];
        let bind = node.bind(pod);
        if bind != Bind::No {
            let whole = pod.cpu % 1000 == 0;
            let cores = bind != Bind::Full || pod.cpu / 1000 % i64::from(THREADS) == 0;
            // What the node wants is not what the pod must have.
            let agree = !node.whole_cores || pod.bind != Bind::Spread;
            if !(whole && cores && agree) {
                return false;
            }
        }
        if !self.has_room(pod, name) {
            return false;
        }
        let masks: Vec<Vec<u32>> = vec![vec![0], vec![1], vec![0, 1]];
        let all = &masks[2];
        match node.policy {
            Policy::None => {
                let free = self.free_cpus(name, all);
                let bound = bind == Bind::No || pod.cpu / 1000 <= usable(&free, bind);
                bound && self.gpus_fit(pod, name, all)
            }
            Policy::Single => {
                let mut single = masks[..2].iter();
                single.any(|mask| self.aligned(pod, name, mask) && self.gpus_fit(pod, name, mask))
            }
            // Any NUMA nodes that those concerned agree on; for GPUs, as few as will do.
            Policy::Restricted => {
                let least = masks.iter().filter(|mask| self.gpus_fit(pod, name, mask));
                let least = least.map(Vec::len).min();
                masks.iter().any(|mask| {
                    let gpus = pod.gpu == 0
                        || (self.gpus_fit(pod, name, mask) && Some(mask.len()) == least);
                    gpus && self.aligned(pod, name, mask) && self.none_is_empty(pod, name, mask)
                })
            }
            Policy::BestEffort => masks
                .iter()
                .any(|mask| self.aligned(pod, name, mask) && self.gpus_fit(pod, name, mask)),
        }
    }

    /// CPUs that nobody has, of some NUMA nodes.
    fn free_cpus(&self, name: &str, mask: &[u32]) -> BTreeSet<u32> {
        let node = &self.nodes[name];
        let taken = |cpu: &u32| self.on(name).any(|held| held.cpus.contains(cpu));
        (0..node.cpus)
            .filter(|cpu| mask.contains(&node.numa_of_cpu(*cpu)))
            .filter(|cpu| !node.reserved.contains(cpu) && !taken(cpu))
            .collect()
    }

    /// Milli-CPUs and MiB of one NUMA node that nobody has; of the CPUs, those that can be bound so.
    fn free(&self, name: &str, numa: u32, bind: Bind) -> [i64; 2] {
        let node = &self.nodes[name];
        let kept = node
            .reserved
            .iter()
            .filter(|cpu| node.numa_of_cpu(**cpu) == numa);
        let there = i64::from(node.cpus / NUMAS) * 1000 - 1000 * kept.count() as i64;
        let mut free = [node.amplified(there), node.memory];
        for held in self.on(name) {
            let here = held.numas.get(&numa).copied().unwrap_or_default();
            let cpus = held.cpus.iter();
            let cpus = cpus.filter(|cpu| node.numa_of_cpu(**cpu) == numa).count();
            let bound = 1000 * cpus as i64;
            free[0] -= here[0] - bound + node.amplified(bound);
            free[1] -= here[1];
        }
        // What is bound counts for more than it is.
        let room = free[0];
        // What must lie in some way can use only CPUs that do.
        if matches!(bind, Bind::Full | Bind::Spread) {
            free[0] = free[0].min(1000 * usable(&self.free_cpus(name, &[numa]), bind));
        }
        if bind != Bind::No && node.percent > 100 {
            let whole = (0..=free[0] / 1000).rev().map(|cpus| 1000 * cpus);
            let mut fitting = whole.filter(|cpu| node.amplified(*cpu) <= room);
            free[0] = fitting.next().unwrap_or(0);
        }
        free
    }

    /// Whether CPUs and memory can come from these NUMA nodes. CPUs are laid out evenly, where there is
    /// least of them first, in CPUs if they are bound and in cores if these must be whole.
    fn aligned(&self, pod: &Pod, name: &str, mask: &[u32]) -> bool {
        let bind = self.nodes[name].bind(pod);
        let mut free: Vec<[i64; 2]> = mask
            .iter()
            .map(|numa| self.free(name, *numa, bind))
            .collect();
        free.sort();
        let step = match bind {
            Bind::No => 1,
            Bind::Prefer | Bind::Spread => 1000,
            Bind::Full => 1000 * i64::from(THREADS),
        };
        let (mut rest, mut parts) = (pod.cpu, mask.len() as i64);
        for [cpu, _] in &free {
            rest -= (rest / step / parts * step).min(*cpu);
            parts -= 1;
        }
        let memory: i64 = free.iter().map(|[_, memory]| memory).sum();
        let bound = bind == Bind::No || usable(&self.free_cpus(name, mask), bind) >= pod.cpu / 1000;
        rest == 0 && bound && (pod.memory == 0 || pod.memory <= memory)
    }

    /// Each of them has some of what is asked for.
    fn none_is_empty(&self, pod: &Pod, name: &str, mask: &[u32]) -> bool {
        let bind = self.nodes[name].bind(pod);
        mask.iter().all(|numa| {
            let free = self.free(name, *numa, bind);
            (pod.cpu == 0 || free[0] > 0) && (pod.memory == 0 || free[1] > 0)
        })
    }

    /// Percent of a GPU that nobody has; none of one that fails.
    pub(super) fn gpu_free(&self, name: &str, minor: u32) -> i64 {
        if !self.nodes[name].gpus[minor as usize] {
            return 0;
        }
        let taken = self
            .on(name)
            .map(|held| held.gpus.get(&minor).copied().unwrap_or(0));
        100 - taken.sum::<i64>()
    }

    fn gpus_fit(&self, pod: &Pod, name: &str, mask: &[u32]) -> bool {
        let node = &self.nodes[name];
        let (count, each) = if pod.gpu > 100 {
            (pod.gpu / 100, 100)
        } else {
            (i64::from(pod.gpu > 0), pod.gpu)
        };
        let good = (0..node.gpus.len() as u32)
            .filter(|minor| mask.contains(&node.numa_of_gpu(*minor)))
            .filter(|minor| self.gpu_free(name, *minor) >= each);
        good.count() as i64 >= count
    }

    /// What is written on a pod is what it asked for, is free, and lies as it must.
    pub(super) fn check(&self, pod: &Pod, held: &Held) {
        let node = &self.nodes[&held.node];
        let bind = node.bind(pod);
        let what = format!("{pod:?} has {held:?} in {self:#?}");
        let all: Vec<u32> = (0..NUMAS).collect();
        let free = self.free_cpus(&held.node, &all);
        assert!(held.cpus.is_subset(&free), "CPUs of others: {what}");
        if bind == Bind::No {
            assert!(held.cpus.is_empty(), "{what}");
        } else {
            assert_eq!(held.cpus.len() as i64 * 1000, pod.cpu, "{what}");
            let mut cores: BTreeMap<u32, u32> = BTreeMap::new();
            for cpu in &held.cpus {
                *cores.entry(cpu / THREADS).or_default() += 1;
            }
            let mut of_core = cores.values();
            match bind {
                Bind::Full => assert!(of_core.all(|count| *count == THREADS), "cores: {what}"),
                Bind::Spread => assert!(of_core.all(|count| *count == 1), "spread: {what}"),
                Bind::Prefer | Bind::No => {}
            }
        }
        let gpus: i64 = held.gpus.values().sum();
        assert_eq!(gpus, pod.gpu, "{what}");
        for (minor, percent) in &held.gpus {
            assert!(
                self.gpu_free(&held.node, *minor) >= *percent,
                "GPU {minor}: {what}"
            );
            assert!(pod.gpu <= 100 || *percent == 100, "{what}");
        }
        if node.policy == Policy::None {
            assert!(held.numas.is_empty(), "{what}");
            return;
        }
        let mut sum = [0, 0];
        for (numa, amounts) in &held.numas {
            let free = self.free(&held.node, *numa, Bind::No);
            let cpu = match bind {
                Bind::No => amounts[0],
                _ => node.amplified(amounts[0]),
            };
            assert!(
                cpu <= free[0] && amounts[1] <= free[1],
                "NUMA node {numa}: {what}"
            );
            sum = [sum[0] + amounts[0], sum[1] + amounts[1]];
        }
        assert_eq!(sum, [pod.cpu, pod.memory], "{what}");
        assert!(
            node.policy != Policy::Single || held.numas.len() == 1,
            "{what}"
        );
        for cpu in &held.cpus {
            assert!(held.numas.contains_key(&node.numa_of_cpu(*cpu)), "{what}");
        }
        // GPUs lie with the CPUs; not where nothing but BestEffort would do.
        for minor in held.gpus.keys() {
            let beside = held.numas.contains_key(&node.numa_of_gpu(*minor));
            assert!(beside || node.policy == Policy::BestEffort, "{what}");
        }
    }
}
