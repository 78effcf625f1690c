//! Rules of `NodeNUMAResource` and `DeviceShare`, and of node totals, evaluated for every node from the
//! annotations of pods and reservations.

use std::collections::{BTreeMap, BTreeSet};

/// NUMA nodes per node, and threads per core.
pub(super) const NUMAS: u32 = 2;
pub(super) const THREADS: u32 = 2;

/// Index of each device type.
pub(super) const GPU: usize = 0;
pub(super) const RDMA: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    None,
    BestEffort,
    Restricted,
    Single,
}

/// CPU bind policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bind {
    No,
    /// Whole cores if possible.
    Prefer,
    /// Whole cores only.
    Full,
    /// One CPU per core.
    Spread,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) policy: Policy,
    /// CPU amplification in percent, 100 or more.
    pub(super) percent: i64,
    /// True if the node binds the CPUs of every pod, as whole cores.
    pub(super) whole_cores: bool,
    pub(super) cpus: u32,
    /// Memory of each NUMA node in MiB.
    pub(super) memory: i64,
    /// CPUs reserved by the kubelet.
    pub(super) reserved: BTreeSet<u32>,
    /// Health of each device by type; the first half of them is on NUMA node 0.
    pub(super) devices: [Vec<bool>; 2],
}

/// Exclusive policy of a bound pod toward similar pods, applied where possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exclusive {
    No,
    /// Exclusive cores.
    Core,
    /// Exclusive NUMA nodes.
    Numa,
}

#[derive(Debug, Clone)]
pub(super) struct Pod {
    pub(super) name: String,
    /// Milli-CPUs, MiB (0 if not requested) and, by type, percent of a device (above 100: whole devices).
    pub(super) cpu: i64,
    pub(super) memory: i64,
    pub(super) devices: [i64; 2],
    pub(super) bind: Bind,
    pub(super) exclusive: Exclusive,
    /// Reservation that the pod must use, if any.
    pub(super) into: Option<String>,
}

impl Pod {
    pub(super) fn requests_devices(&self) -> bool {
        self.devices != [0; 2]
    }
}

/// Allocation in the annotations of a pod or reservation that has a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Allocation {
    pub(super) node: String,
    pub(super) cpus: BTreeSet<u32>,
    /// Milli-CPUs and MiB by NUMA node.
    pub(super) numas: BTreeMap<u32, [i64; 2]>,
    /// Percent of each device, by type.
    pub(super) devices: [BTreeMap<u32, i64>; 2],
}

/// Restricted reservation: of each resource that it holds, its owners get only what it holds. Such
/// reservations are on nodes without amplification.
#[derive(Debug, Clone, Default)]
pub(super) struct Reservation {
    pub(super) cpu: i64,
    pub(super) memory: i64,
    pub(super) amounts: [i64; 2],
    pub(super) allocation: Allocation,
    /// True if it holds CPUs or NUMA nodes; otherwise its owners get those of the node.
    pub(super) fine: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct AlignedCluster {
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) allocations: BTreeMap<String, Allocation>,
    pub(super) reservations: BTreeMap<String, Reservation>,
    /// Reservation of each pod that uses one.
    pub(super) owns: BTreeMap<String, String>,
    /// Reservation whose remainder is the only available part; `None` for the whole node.
    pub(super) only: Option<Reservation>,
}

impl Node {
    pub(super) fn numa_of_cpu(&self, cpu: u32) -> u32 {
        cpu / (self.cpus / NUMAS)
    }

    pub(super) fn numa_of_device(&self, kind: usize, minor: u32) -> u32 {
        minor * NUMAS / u32::try_from(self.devices[kind].len()).unwrap()
    }

    /// Returns bound milli-CPUs in amplified units, rounded up.
    pub(super) fn amplified(&self, milli: i64) -> i64 {
        (milli * self.percent + 99) / 100
    }

    /// Returns the CPU bind policy of `pod` on this node.
    pub(super) fn bind(&self, pod: &Pod) -> Bind {
        if self.whole_cores && pod.cpu > 0 {
            Bind::Full
        } else {
            pod.bind
        }
    }
}

/// Returns how many of these CPUs can be bound.
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

impl AlignedCluster {
    fn on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = Allocation> + 'a {
        let pods = self
            .allocations
            .values()
            .filter(move |allocation| allocation.node == node);
        let reservations = self.reservations.iter();
        let on_node = reservations.filter(move |(_, all)| all.allocation.node == node);
        let remainder = on_node.map(|(name, _)| self.remainder(name).allocation);
        pods.cloned().chain(remainder)
    }

    /// Returns the part of a reservation that its owners do not use.
    pub(super) fn remainder(&self, name: &str) -> Reservation {
        let mut remainder = self.reservations[name].clone();
        for (owner, _) in self.owns.iter().filter(|(_, of)| *of == name) {
            let (pod, allocation) = (&self.pods[owner], &self.allocations[owner]);
            remainder.cpu -= pod.cpu;
            remainder.memory -= pod.memory;
            remainder
                .allocation
                .cpus
                .retain(|cpu| !allocation.cpus.contains(cpu));
            for (numa, amounts) in &mut remainder.allocation.numas {
                let used = allocation.numas.get(numa).copied().unwrap_or_default();
                *amounts = [0, 1].map(|at| (amounts[at] - used[at]).max(0));
            }
            for kind in [GPU, RDMA] {
                if remainder.amounts[kind] > 0 {
                    remainder.amounts[kind] -= pod.devices[kind];
                }
                for (minor, percent) in &mut remainder.allocation.devices[kind] {
                    let used = allocation.devices[kind].get(minor).copied().unwrap_or(0);
                    *percent = (*percent - used).max(0);
                }
            }
        }
        remainder
    }

    pub(super) fn feasible(&self, pod: &Pod) -> BTreeSet<String> {
        let nodes = self.nodes.keys();
        let nodes = nodes.filter(|node| match &pod.into {
            None => self.fits(pod, node),
            Some(name) => {
                let reservation = self.reservations.get(name);
                reservation.is_some_and(|all| all.allocation.node == **node)
                    && self.within(name).fits(pod, node)
            }
        });
        nodes.cloned().collect()
    }

    /// Returns a cluster with only the remainder of a reservation available.
    pub(super) fn within(&self, name: &str) -> Self {
        Self {
            only: Some(self.remainder(name)),
            ..self.clone()
        }
    }

    /// Returns the part of the cluster that is open to `pod`, limited to its reservation if it has one.
    fn world_of(&self, pod: &Pod) -> Self {
        match &pod.into {
            Some(name) => self.within(name),
            None => self.clone(),
        }
    }

    /// Returns true if the totals of the node fit the pod.
    pub(super) fn has_room(&self, pod: &Pod, name: &str) -> bool {
        let node = &self.nodes[name];
        let bound = |cpus: usize| 1000 * cpus as i64;
        let mut free = [
            node.amplified(i64::from(node.cpus) * 1000),
            node.memory * i64::from(NUMAS),
            node.devices[GPU].len() as i64 * 100,
            node.devices[RDMA].len() as i64 * 100,
        ];
        let take = |free: &mut [i64; 4], taken: [i64; 4]| {
            for (free, taken) in free.iter_mut().zip(taken) {
                *free -= taken;
            }
        };
        for (other, allocation) in &self.allocations {
            if allocation.node == name {
                let other = &self.pods[other];
                let cpus = bound(allocation.cpus.len());
                let cpu = other.cpu - cpus + node.amplified(cpus);
                let [gpu, rdma] = other.devices;
                take(&mut free, [cpu, other.memory, gpu, rdma]);
            }
        }
        for (other, all) in &self.reservations {
            if all.allocation.node == name {
                let remainder = self.remainder(other);
                let [gpu, rdma] = remainder.amounts;
                take(&mut free, [remainder.cpu, remainder.memory, gpu, rdma]);
            }
        }
        if let Some(only) = &self.only {
            free[0] = only.cpu;
            free[1] = only.memory;
            for kind in [GPU, RDMA] {
                if !only.allocation.devices[kind].is_empty() {
                    free[2 + kind] = only.amounts[kind];
                }
            }
        }
        let cpu = match node.bind(pod) {
            Bind::No => pod.cpu,
            _ => node.amplified(pod.cpu),
        };
        let requested = [cpu, pod.memory, pod.devices[GPU], pod.devices[RDMA]];
        requested
            .iter()
            .zip(free)
            .all(|(requested, free)| *requested == 0 || *requested <= free)
    }

    fn fits(&self, pod: &Pod, name: &str) -> bool {
        let node = &self.nodes[name];
        let bind = node.bind(pod);
        if bind != Bind::No {
            let whole_cores = pod.cpu % 1000 == 0;
            let cores = bind != Bind::Full || pod.cpu / 1000 % i64::from(THREADS) == 0;
            // The node's bind policy must not contradict the pod's.
            let agree = !node.whole_cores || pod.bind != Bind::Spread;
            if !(whole_cores && cores && agree) {
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
                bound && self.devices_fit(pod, name, all)
            }
            Policy::Single => {
                let mut single = masks[..2].iter();
                single
                    .any(|mask| self.aligned(pod, name, mask) && self.devices_fit(pod, name, mask))
            }
            // Any NUMA nodes on which all resources agree; for devices, as few as suffice for all of them.
            Policy::Restricted => {
                let least = masks
                    .iter()
                    .filter(|mask| self.devices_fit(pod, name, mask));
                let least = least.map(Vec::len).min();
                masks.iter().any(|mask| {
                    let devices = !pod.requests_devices()
                        || (self.devices_fit(pod, name, mask) && Some(mask.len()) == least);
                    devices && self.aligned(pod, name, mask) && self.none_is_empty(pod, name, mask)
                })
            }
            Policy::BestEffort => masks
                .iter()
                .any(|mask| self.aligned(pod, name, mask) && self.devices_fit(pod, name, mask)),
        }
    }

    /// Returns the free CPUs of some NUMA nodes.
    fn free_cpus(&self, name: &str, mask: &[u32]) -> BTreeSet<u32> {
        let node = &self.nodes[name];
        if let Some(only) = self.only.as_ref().filter(|only| only.fine) {
            let reserved_cpus = only.allocation.cpus.iter().copied();
            return reserved_cpus
                .filter(|cpu| mask.contains(&node.numa_of_cpu(*cpu)))
                .collect();
        }
        let allocations: Vec<Allocation> = self.on(name).collect();
        let is_allocated = |cpu: &u32| {
            allocations
                .iter()
                .any(|allocation| allocation.cpus.contains(cpu))
        };
        (0..node.cpus)
            .filter(|cpu| mask.contains(&node.numa_of_cpu(*cpu)))
            .filter(|cpu| !node.reserved.contains(cpu) && !is_allocated(cpu))
            .collect()
    }

    /// Returns the free milli-CPUs and MiB of one NUMA node, with only CPUs that can be bound by `bind`.
    fn free(&self, name: &str, numa: u32, bind: Bind) -> [i64; 2] {
        let node = &self.nodes[name];
        let only = self.only.as_ref().filter(|only| only.fine);
        let reserved_cpus = node
            .reserved
            .iter()
            .filter(|cpu| node.numa_of_cpu(**cpu) == numa);
        let total = i64::from(node.cpus / NUMAS) * 1000 - 1000 * reserved_cpus.count() as i64;
        let mut free = [node.amplified(total), node.memory];
        for allocation in self.on(name) {
            let on_zone = allocation.numas.get(&numa).copied().unwrap_or_default();
            let cpus = allocation.cpus.iter();
            let cpus = cpus.filter(|cpu| node.numa_of_cpu(**cpu) == numa).count();
            let bound = 1000 * cpus as i64;
            free[0] -= on_zone[0] - bound + node.amplified(bound);
            free[1] -= on_zone[1];
        }
        if let Some(only) = only {
            free = only
                .allocation
                .numas
                .get(&numa)
                .copied()
                .unwrap_or_default();
        }
        // Bound CPUs count amplified.
        let total_free = free[0];
        // A required bind policy can use only CPUs in that layout.
        if matches!(bind, Bind::Full | Bind::Spread) {
            free[0] = free[0].min(1000 * usable(&self.free_cpus(name, &[numa]), bind));
        }
        if bind != Bind::No && node.percent > 100 {
            let whole_cores = (0..=free[0] / 1000).rev().map(|cpus| 1000 * cpus);
            let mut fitting = whole_cores.filter(|cpu| node.amplified(*cpu) <= total_free);
            free[0] = fitting.next().unwrap_or(0);
        }
        free
    }

    /// Returns true if CPUs and memory can come from these NUMA nodes. CPUs are distributed evenly, starting
    /// with the NUMA node that has least; in CPUs if they are bound, in cores if these must be whole.
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

    /// Returns true if each of these NUMA nodes has some of the requested resources.
    fn none_is_empty(&self, pod: &Pod, name: &str, mask: &[u32]) -> bool {
        let bind = self.nodes[name].bind(pod);
        mask.iter().all(|numa| {
            let free = self.free(name, *numa, bind);
            (pod.cpu == 0 || free[0] > 0) && (pod.memory == 0 || free[1] > 0)
        })
    }

    /// Returns the free percentage of a device; 0 if it is unhealthy.
    fn device_free(&self, name: &str, kind: usize, minor: u32) -> i64 {
        if !self.nodes[name].devices[kind][minor as usize] {
            return 0;
        }
        let percent_of =
            |allocation: &Allocation| allocation.devices[kind].get(&minor).copied().unwrap_or(0);
        let only = self.only.as_ref().map(|only| &only.allocation);
        match only.filter(|allocation| !allocation.devices[kind].is_empty()) {
            Some(allocation) => percent_of(allocation),
            None => {
                100 - self
                    .on(name)
                    .map(|allocation| percent_of(&allocation))
                    .sum::<i64>()
            }
        }
    }

    fn devices_fit(&self, pod: &Pod, name: &str, mask: &[u32]) -> bool {
        let node = &self.nodes[name];
        [GPU, RDMA].into_iter().all(|kind| {
            let requested = pod.devices[kind];
            let (count, each) = if requested > 100 {
                (requested / 100, 100)
            } else {
                (i64::from(requested > 0), requested)
            };
            let good = (0..node.devices[kind].len() as u32)
                .filter(|minor| mask.contains(&node.numa_of_device(kind, *minor)))
                .filter(|minor| self.device_free(name, kind, *minor) >= each);
            good.count() as i64 >= count
        })
    }

    /// Returns the CPUs of other pods on the node with the same exclusive policy as `pod`.
    fn owned(&self, pod: &Pod, name: &str) -> Vec<u32> {
        let alike = self.allocations.iter().filter(|(other, allocation)| {
            let other = &self.pods[*other];
            allocation.node == name && other.exclusive == pod.exclusive && other.name != pod.name
        });
        alike
            .flat_map(|(_, allocation)| allocation.cpus.iter().copied())
            .collect()
    }

    /// Returns whether the pod's CPUs are apart from those of pods with the same exclusive policy. `None` if
    /// that was not possible on one NUMA node, or if the node has a NUMA policy, which selects NUMA nodes first.
    pub(super) fn keeps_off(&self, pod: &Pod, allocation: &Allocation) -> Option<bool> {
        let node = &self.nodes[&allocation.node];
        let bind = node.bind(pod);
        if pod.exclusive == Exclusive::No || bind == Bind::No || node.policy != Policy::None {
            return None;
        }
        let owned = self.owned(pod, &allocation.node);
        let is_theirs = |cpu: u32| match pod.exclusive {
            Exclusive::Core => owned.iter().any(|own| own / THREADS == cpu / THREADS),
            _ => owned
                .iter()
                .any(|own| node.numa_of_cpu(*own) == node.numa_of_cpu(cpu)),
        };
        let whole_cores = matches!(bind, Bind::Full | Bind::Prefer);
        let needed = allocation.cpus.len() as i64;
        let could = (0..NUMAS).any(|numa| {
            let mut free = self.free_cpus(&allocation.node, &[numa]);
            free.retain(|cpu| !is_theirs(*cpu));
            usable(
                &free,
                if whole_cores {
                    Bind::Full
                } else {
                    Bind::Spread
                },
            ) >= needed
        });
        could.then(|| !allocation.cpus.iter().any(|cpu| is_theirs(*cpu)))
    }

    /// Returns some allocation on one NUMA node for a reservation; `None` if there is none. With `fine`, it
    /// includes CPUs if the pod is bound, and NUMA nodes if the node has a policy.
    pub(super) fn somewhere(&self, pod: &Pod, name: &str, fine: bool) -> Option<Allocation> {
        let node = &self.nodes[name];
        (0..NUMAS).find_map(|numa| {
            let mask = [numa];
            if !self.devices_fit(pod, name, &mask) || !self.aligned(pod, name, &mask) {
                return None;
            }
            let mut allocation = Allocation {
                node: name.to_owned(),
                ..Allocation::default()
            };
            if fine && pod.bind != Bind::No {
                let free = self.free_cpus(name, &mask);
                let mate = |cpu: &u32| {
                    (cpu / THREADS * THREADS..)
                        .take(2)
                        .all(|cpu| free.contains(&cpu))
                };
                let cpus = free.iter().copied().filter(mate);
                allocation.cpus = cpus.take((pod.cpu / 1000) as usize).collect();
            }
            if fine && node.policy != Policy::None {
                allocation.numas.insert(numa, [pod.cpu, pod.memory]);
            }
            for kind in [GPU, RDMA] {
                let requested = pod.devices[kind];
                let (count, each) = if requested > 100 {
                    (requested / 100, 100)
                } else {
                    (i64::from(requested > 0), requested)
                };
                let good = (0..node.devices[kind].len() as u32)
                    .filter(|minor| node.numa_of_device(kind, *minor) == numa)
                    .filter(|minor| self.device_free(name, kind, *minor) >= each);
                let chosen = good.take(count as usize).map(|minor| (minor, each));
                allocation.devices[kind] = chosen.collect();
            }
            Some(allocation)
        })
    }

    /// Returns true if another pod with the same exclusive policy has CPUs on the node.
    pub(super) fn has_alike(&self, pod: &Pod, node: &str) -> bool {
        !self.owned(pod, node).is_empty()
    }

    /// Checks that an allocation is what the pod requested, is free, and has the required layout.
    pub(super) fn check(&self, pod: &Pod, allocation: &Allocation) {
        let world = self.world_of(pod);
        let node = &self.nodes[&allocation.node];
        let bind = node.bind(pod);
        let context = format!("{pod:?} has {allocation:?} in {self:#?}");
        let all: Vec<u32> = (0..NUMAS).collect();
        let free = world.free_cpus(&allocation.node, &all);
        assert!(
            allocation.cpus.is_subset(&free),
            "CPUs of others: {context}"
        );
        if bind == Bind::No {
            assert!(allocation.cpus.is_empty(), "{context}");
        } else {
            assert_eq!(allocation.cpus.len() as i64 * 1000, pod.cpu, "{context}");
            let mut cores: BTreeMap<u32, u32> = BTreeMap::new();
            for cpu in &allocation.cpus {
                *cores.entry(cpu / THREADS).or_default() += 1;
            }
            let mut of_core = cores.values();
            match bind {
                Bind::Full => assert!(of_core.all(|count| *count == THREADS), "cores: {context}"),
                Bind::Spread => assert!(of_core.all(|count| *count == 1), "spread: {context}"),
                Bind::Prefer | Bind::No => {}
            }
        }
        for kind in [GPU, RDMA] {
            let requested = pod.devices[kind];
            assert_eq!(
                allocation.devices[kind].values().sum::<i64>(),
                requested,
                "{context}"
            );
            for (minor, percent) in &allocation.devices[kind] {
                assert!(
                    world.device_free(&allocation.node, kind, *minor) >= *percent,
                    "device {minor}: {context}"
                );
                assert!(requested <= 100 || *percent == 100, "{context}");
            }
        }
        assert_ne!(
            world.keeps_off(pod, allocation),
            Some(false),
            "its like: {context}"
        );
        if node.policy == Policy::None {
            assert!(allocation.numas.is_empty(), "{context}");
            return;
        }
        let mut sum = [0, 0];
        for (numa, amounts) in &allocation.numas {
            let free = world.free(&allocation.node, *numa, Bind::No);
            let cpu = match bind {
                Bind::No => amounts[0],
                _ => node.amplified(amounts[0]),
            };
            assert!(
                cpu <= free[0] && amounts[1] <= free[1],
                "NUMA node {numa}: {context}"
            );
            sum = [sum[0] + amounts[0], sum[1] + amounts[1]];
        }
        assert_eq!(sum, [pod.cpu, pod.memory], "{context}");
        assert!(
            node.policy != Policy::Single || allocation.numas.len() == 1,
            "{context}"
        );
        for cpu in &allocation.cpus {
            assert!(
                allocation.numas.contains_key(&node.numa_of_cpu(*cpu)),
                "{context}"
            );
        }
        // Devices are on the NUMA nodes of the CPUs where one NUMA node is required, or suffices for all
        // resources.
        let mut used: BTreeSet<u32> = allocation.numas.keys().copied().collect();
        for kind in [GPU, RDMA] {
            let minors = allocation.devices[kind].keys();
            used.extend(minors.map(|minor| node.numa_of_device(kind, *minor)));
        }
        let will_do = |numa| world.devices_fit(pod, &allocation.node, &[numa]);
        let single_numa = match node.policy {
            Policy::Single => true,
            Policy::Restricted => pod.requests_devices() && (0..NUMAS).any(will_do),
            Policy::BestEffort | Policy::None => false,
        };
        assert!(!single_numa || used.len() == 1, "{context}");
    }
}
