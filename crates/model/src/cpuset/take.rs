//! Selection of the CPUs of a pod.
//!
//! The rules are upstream's: stay within one NUMA node, otherwise within one socket; of those with enough
//! free CPUs, use the fullest or the emptiest, depending on the strategy. Exclusiveness is a preference: each
//! step first tries to honor it, then ignores it.

use super::{Cpu, CpuSet, Topology};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Policy for taking CPUs from physical cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BindPolicy {
    /// Use whole cores.
    FullPCpus,
    /// Use one thread of each core.
    SpreadByPCpus,
}

impl BindPolicy {
    /// Returns the name used in annotations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FullPCpus => "FullPCPUs",
            Self::SpreadByPCpus => "SpreadByPCPUs",
        }
    }
}

/// Distance between the CPUs of pods with the same exclusive policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ExclusivePolicy {
    /// No distance.
    #[default]
    None,
    /// Different physical cores.
    PCpuLevel,
    /// Different NUMA nodes.
    NumaNodeLevel,
}

/// Preference among NUMA nodes or sockets with enough free CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CpuStrategy {
    /// Prefer the one with the most free CPUs.
    #[default]
    LeastAllocated,
    /// Prefer the one with the fewest free CPUs.
    MostAllocated,
}

/// Allocations of other pods that affect the selection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owned {
    /// Cores with CPUs of pods whose exclusive policy is PCPULevel.
    pub cores: BTreeSet<u64>,
    /// NUMA nodes with CPUs of pods whose exclusive policy is NUMANodeLevel.
    pub nodes: BTreeSet<u8>,
    /// CPU to the number of pods it is allocated to; used only on nodes that share CPUs.
    pub shares: BTreeMap<u32, u32>,
}

/// Request for CPUs.
#[derive(Debug, Clone, Copy)]
pub struct CpuRequest<'a> {
    /// CPU topology of the node.
    pub topology: &'a Topology,
    /// CPUs to choose from.
    pub available: &'a CpuSet,
    /// CPUs to use first if they are available.
    pub preferred: &'a CpuSet,
    /// Allocations of other pods.
    pub owned: &'a Owned,
    /// Number of requested CPUs.
    pub needed: usize,
    /// Bind policy.
    pub bind: BindPolicy,
    /// Exclusive policy.
    pub exclusive: ExclusivePolicy,
    /// Preference among NUMA nodes or sockets.
    pub strategy: CpuStrategy,
}

/// Error: there are not enough CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not enough cpus available to satisfy request")]
pub struct NotEnough;

/// Selects CPUs: preferred ones first, each part by the same rules.
///
/// # Errors
/// Fewer CPUs are available than needed.
pub fn take(want: &CpuRequest<'_>) -> Result<CpuSet, NotEnough> {
    let first = want.available.intersection(want.preferred);
    let mut cpus = CpuSet::new();
    if !first.is_empty() {
        cpus = CpuSearch::new(want, &first, want.needed.min(first.len())).run()?;
    }
    let missing = want.needed - cpus.len();
    if missing > 0 {
        let unpreferred = want.available.difference(&first);
        cpus.add(&CpuSearch::new(want, &unpreferred, missing).run()?);
    }
    Ok(cpus)
}

/// Returns the CPUs of `available` that can be part of a result with the required policy `bind`: those of
/// wholly available cores, or the first thread of each core.
#[must_use]
pub fn usable(topology: &Topology, available: &CpuSet, bind: BindPolicy) -> CpuSet {
    let mut cores: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for cpu in topology.members(available) {
        cores.entry(cpu.core).or_default().push(cpu.id);
    }
    let allowed = cores.into_values().map(|cpus| match bind {
        BindPolicy::FullPCpus if cpus.len() == topology.per_core() => cpus,
        BindPolicy::FullPCpus => Vec::new(),
        BindPolicy::SpreadByPCpus => cpus[..1].to_vec(),
    });
    allowed.flatten().collect()
}

/// NUMA node or socket with its free CPUs, in the order in which they would be taken.
struct CandidatePlace {
    cpus: Vec<u32>,
    /// Number of free CPUs here and in the surrounding socket, and the id; the smaller id wins ties.
    rank: (usize, usize, i64),
}

#[derive(Clone, Copy, PartialEq)]
enum PlaceScope {
    Node,
    Socket,
}

struct CpuSearch<'a> {
    want: &'a CpuRequest<'a>,
    /// Free CPUs, by number.
    free: Vec<Cpu>,
    missing: usize,
    taken: CpuSet,
    cores: BTreeSet<u64>,
    nodes: BTreeSet<u8>,
}

impl<'a> CpuSearch<'a> {
    fn new(want: &'a CpuRequest<'a>, from: &CpuSet, missing: usize) -> Self {
        Self {
            want,
            free: want.topology.members(from).copied().collect(),
            missing,
            taken: CpuSet::new(),
            cores: want.owned.cores.clone(),
            nodes: want.owned.nodes.clone(),
        }
    }

    /// Selects the CPUs: whole cores or single threads from one place, then any free CPUs.
    fn run(mut self) -> Result<CpuSet, NotEnough> {
        if self.missing > self.free.len() {
            return Err(NotEnough);
        }
        let full = self.want.bind == BindPolicy::FullPCpus;
        if full || self.want.topology.per_core() == 1 {
            self.take_cores();
        }
        if !full {
            self.take_spread();
        }
        // First without the CPUs that the exclusive policy avoids, then with them.
        for avoid in [true, false] {
            if self.missing > 0 {
                let order = self.spread(self.free_cpus(avoid));
                self.claim(&order[..order.len().min(self.missing)]);
            }
        }
        if self.missing > 0 {
            return Err(NotEnough);
        }
        Ok(self.taken)
    }

    /// Takes whole cores: from one NUMA node, otherwise from one socket, otherwise from whole sockets and
    /// then from those with the fewest.
    fn take_cores(&mut self) {
        let topology = self.want.topology;
        if self.missing <= topology.per_node() {
            for avoid in [true, false] {
                let places = self.full_cores(PlaceScope::Node, avoid);
                if self.claim_within(places, false) {
                    return;
                }
            }
        }
        if self.missing <= topology.per_socket() {
            let places = self.full_cores(PlaceScope::Socket, false);
            if self.claim_within(places, false) {
                return;
            }
        }
        let mut sockets = self.full_cores(PlaceScope::Socket, false);
        sockets.sort_by_key(|place| Reverse(place.cpus.len()));
        let mut partial = Vec::new();
        for socket in sockets {
            if self.missing >= socket.cpus.len() {
                self.claim(&socket.cpus);
            } else {
                partial.push(socket.cpus);
            }
        }
        partial.sort_by_key(Vec::len);
        let threads = topology.per_core().max(1);
        for core in partial.iter().flat_map(|cpus| cpus.chunks_exact(threads)) {
            if self.missing >= threads {
                self.claim(core);
            }
        }
    }

    /// Takes single threads: from one NUMA node, otherwise from one socket; first one thread of each core.
    fn take_spread(&mut self) {
        let topology = self.want.topology;
        let limits = [
            (PlaceScope::Node, topology.per_node()),
            (PlaceScope::Socket, topology.per_socket()),
        ];
        for (scope, limit) in limits {
            if self.missing > limit {
                continue;
            }
            for avoid in [true, false] {
                let places = self.threads(scope, avoid);
                if self.claim_within(places, true) {
                    return;
                }
            }
        }
    }

    /// Takes all missing CPUs from the first place that has enough. Returns false if none has.
    fn claim_within(&mut self, places: Vec<CandidatePlace>, spread: bool) -> bool {
        let fits = |place: &CandidatePlace| place.cpus.len() >= self.missing;
        let Some(place) = places.into_iter().find(fits) else {
            return false;
        };
        let cpus = if spread {
            self.spread(place.cpus)
        } else {
            place.cpus
        };
        self.claim(&cpus[..self.missing]);
        true
    }

    fn claim(&mut self, cpus: &[u32]) {
        let ids: CpuSet = cpus.iter().copied().collect();
        for cpu in self.free.iter().filter(|cpu| ids.contains(cpu.id)) {
            match self.want.exclusive {
                ExclusivePolicy::None => {}
                ExclusivePolicy::PCpuLevel => drop(self.cores.insert(cpu.core)),
                ExclusivePolicy::NumaNodeLevel => drop(self.nodes.insert(cpu.node)),
            }
        }
        self.free.retain(|cpu| !ids.contains(cpu.id));
        self.taken.add(&ids);
        self.missing -= ids.len().min(self.missing);
    }

    /// Returns true if the exclusive policy of the pod should avoid `cpu`.
    fn avoided(&self, cpu: &Cpu) -> bool {
        self.shares_core(cpu) || self.shares_node(cpu)
    }

    fn shares_core(&self, cpu: &Cpu) -> bool {
        self.want.exclusive == ExclusivePolicy::PCpuLevel && self.cores.contains(&cpu.core)
    }

    fn shares_node(&self, cpu: &Cpu) -> bool {
        self.want.exclusive == ExclusivePolicy::NumaNodeLevel && self.nodes.contains(&cpu.node)
    }

    fn shares(&self, cpu: u32) -> u32 {
        self.want.owned.shares.get(&cpu).copied().unwrap_or(0)
    }

    fn place_of(scope: PlaceScope, cpu: &Cpu) -> i64 {
        match scope {
            PlaceScope::Node => i64::from(cpu.node),
            PlaceScope::Socket => i64::from(cpu.socket),
        }
    }

    /// Returns wholly free cores by place, places in the order of the strategy. If `avoid` is true, NUMA nodes
    /// to avoid are left out.
    fn full_cores(&self, scope: PlaceScope, avoid: bool) -> Vec<CandidatePlace> {
        let free = || self.free.iter().filter(|c| !(avoid && self.shares_node(c)));
        let mut cores: BTreeMap<u64, Vec<&Cpu>> = BTreeMap::new();
        for cpu in free() {
            cores.entry(cpu.core).or_default().push(cpu);
        }
        cores.retain(|_, cpus| cpus.len() == self.want.topology.per_core());
        let mut cores: Vec<Vec<&Cpu>> = cores.into_values().collect();
        cores.sort_by_key(|cpus| cpus.iter().map(|cpu| self.shares(cpu.id)).sum::<u32>());
        let mut places: BTreeMap<i64, Vec<&Cpu>> = BTreeMap::new();
        for cpus in cores {
            let place = places.entry(Self::place_of(scope, cpus[0])).or_default();
            place.extend(cpus);
        }
        let around = |socket| free().filter(|cpu| cpu.socket == socket).count();
        let places = places.into_iter().map(|(id, cpus)| CandidatePlace {
            rank: match scope {
                PlaceScope::Node => (cpus.len(), around(cpus[0].socket), id),
                PlaceScope::Socket => (cpus.len(), 0, id),
            },
            cpus: cpus.into_iter().map(|cpu| cpu.id).collect(),
        });
        self.ordered(places.collect())
    }

    /// Returns free threads by place, places in the order of the strategy. If `avoid` is true, CPUs to avoid
    /// are left out, and only one thread of each core is returned.
    fn threads(&self, scope: PlaceScope, avoid: bool) -> Vec<CandidatePlace> {
        let skip = |cpu: &Cpu| match scope {
            PlaceScope::Node => self.avoided(cpu),
            PlaceScope::Socket => self.shares_core(cpu),
        };
        let free = || self.free.iter().filter(|cpu| !(avoid && skip(cpu)));
        let mut places: BTreeMap<i64, Vec<&Cpu>> = BTreeMap::new();
        for cpu in free() {
            let place = places.entry(Self::place_of(scope, cpu)).or_default();
            place.push(cpu);
        }
        let around = |socket| free().filter(|cpu| cpu.socket == socket).count();
        let places = places.into_iter().map(|(id, mut cpus)| {
            let free_counts = (cpus.len(), around(cpus[0].socket));
            cpus.sort_by_key(|cpu| self.shares(cpu.id));
            if avoid {
                let mut cores = BTreeSet::new();
                cpus.retain(|cpu| cores.insert(cpu.core));
            }
            CandidatePlace {
                rank: match scope {
                    PlaceScope::Node => (free_counts.0, free_counts.1, id),
                    PlaceScope::Socket => (cpus.len(), 0, id),
                },
                cpus: cpus.into_iter().map(|cpu| cpu.id).collect(),
            }
        });
        self.ordered(places.collect())
    }

    fn ordered(&self, mut places: Vec<CandidatePlace>) -> Vec<CandidatePlace> {
        places.sort_by_key(|place| {
            let (here, around, id) = place.rank;
            (self.by_free_count(here), self.by_free_count(around), id)
        });
        places
    }

    /// Returns a sort key that puts the preferred number of free CPUs first.
    fn by_free_count(&self, free_count: usize) -> i64 {
        let free_count = i64::try_from(free_count).unwrap_or(i64::MAX);
        match self.want.strategy {
            CpuStrategy::MostAllocated => free_count,
            CpuStrategy::LeastAllocated => -free_count,
        }
    }

    /// Returns all free CPUs: near those already taken first, then by the strategy, from partly used cores
    /// first.
    fn free_cpus(&self, avoid: bool) -> Vec<u32> {
        let free = || self.free.iter().filter(|cpu| !(avoid && self.avoided(cpu)));
        let mut sockets: BTreeMap<i32, usize> = BTreeMap::new();
        let mut nodes: BTreeMap<u8, usize> = BTreeMap::new();
        let mut near: BTreeMap<i32, usize> = BTreeMap::new();
        let mut cores: BTreeMap<u64, Vec<&Cpu>> = BTreeMap::new();
        for cpu in free() {
            *sockets.entry(cpu.socket).or_default() += 1;
            *nodes.entry(cpu.node).or_default() += 1;
            cores.entry(cpu.core).or_default().push(cpu);
        }
        for cpu in self.want.topology.members(&self.taken) {
            *near.entry(cpu.socket).or_default() += 1;
        }
        let mut cores: Vec<Vec<&Cpu>> = cores.into_values().collect();
        cores.sort_by_key(|cpus| {
            let (socket, node) = (cpus[0].socket, cpus[0].node);
            let count = |map: &BTreeMap<i32, usize>| map.get(&socket).copied().unwrap_or(0);
            (
                Reverse(count(&near)),
                self.by_free_count(count(&sockets)),
                self.by_free_count(nodes.get(&node).copied().unwrap_or(0)),
                cpus.len(),
                socket,
                cpus.iter().map(|cpu| self.shares(cpu.id)).sum::<u32>(),
                cpus[0].core,
            )
        });
        for cpus in &mut cores {
            cpus.sort_by_key(|cpu| (self.shares(cpu.id), cpu.id));
        }
        cores.into_iter().flatten().map(|cpu| cpu.id).collect()
    }

    /// Returns the first thread of each core in the given order, then the second threads, and so on.
    fn spread(&self, cpus: Vec<u32>) -> Vec<u32> {
        if cpus.len() <= self.want.topology.per_core() {
            return cpus;
        }
        let mut threads_of_core: BTreeMap<u64, usize> = BTreeMap::new();
        let mut rounds: Vec<(usize, u32)> = cpus
            .into_iter()
            .map(|id| {
                let core = self.want.topology.cpu(id).map_or(0, |cpu| cpu.core);
                let round = threads_of_core.entry(core).or_default();
                *round += 1;
                (*round, id)
            })
            .collect();
        rounds.sort_by_key(|(round, _)| *round);
        rounds.into_iter().map(|(_, id)| id).collect()
    }
}
