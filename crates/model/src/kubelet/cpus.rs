//! The CPU manager with policy `static`: whole CPUs for Guaranteed containers.

use super::Refusal;
use super::hint::{Offer, rank};
use super::machine::{CpuManager, Machine, Settings};
use crate::cpuset::{Cpu, CpuSet, Topology};
use crate::numa::NumaMask;
use std::collections::BTreeMap;

/// CPUs that nobody has for itself and that are not reserved.
#[derive(Debug, Clone)]
pub(super) struct Cpus {
    managed: bool,
    free: CpuSet,
}

impl Cpus {
    pub(super) fn new(machine: &Machine, settings: &Settings) -> Self {
        let all = machine.topology.all();
        match &settings.cpu {
            CpuManager::None => Self {
                managed: false,
                free: all.clone(),
            },
            CpuManager::Static { reserved, .. } => Self {
                managed: true,
                free: all.without(reserved),
            },
        }
    }

    /// Where `count` CPUs could come from. Those in `reuse` must be among them: a container takes over
    /// what init containers before it had.
    pub(super) fn offer(&self, machine: &Machine, count: usize, reuse: &CpuSet) -> Offer {
        if !self.managed || count == 0 {
            return None;
        }
        let topology = &machine.topology;
        let nodes: NumaMask = topology.nodes().collect();
        let mut least = nodes.count();
        let mut masks = Vec::new();
        for mask in nodes.subsets() {
            let on = on(topology, mask);
            if on.len() >= count {
                least = least.min(mask.count());
            }
            let mut usable = self.free.clone();
            usable.add(reuse);
            if reuse.is_subset(&on) && usable.and(&on).len() >= count {
                masks.push(mask);
            }
        }
        Some(rank(masks, least))
    }

    pub(super) fn take(
        &mut self,
        machine: &Machine,
        settings: &Settings,
        count: usize,
        mask: Option<NumaMask>,
        reuse: &CpuSet,
    ) -> Result<CpuSet, Refusal> {
        let topology = &machine.topology;
        if let CpuManager::Static {
            reserved,
            full_cores: true,
        } = &settings.cpu
        {
            self.check_cores(topology, reserved, count)?;
        }
        let mut usable = self.free.clone();
        usable.add(reuse);
        let near = mask.map_or_else(CpuSet::new, |mask| usable.and(&on(topology, mask)));
        let short = || {
            let (has, wants) = (usable.len(), count);
            Refusal::unexpected(&format!(
                "not enough cpus available to satisfy request: requested={wants}, available={has}"
            ))
        };
        if usable.len() < count {
            return Err(short());
        }
        let mut taken = choose(topology, &near, count.min(near.len()));
        let rest = usable.without(&taken);
        taken.add(&choose(topology, &rest, count - taken.len()));
        self.free.subtract(&taken);
        Ok(taken)
    }

    /// `full-pcpus-only`: the count is of whole cores, and so many lie in cores without a reserved CPU.
    fn check_cores(
        &self,
        topology: &Topology,
        reserved: &CpuSet,
        count: usize,
    ) -> Result<(), Refusal> {
        let threads = topology.per_core().max(1);
        let refuse = |what: String| Refusal {
            reason: "SMTAlignmentError",
            message: format!("SMT Alignment Error: {what}"),
        };
        if !count.is_multiple_of(threads) {
            return Err(refuse(format!(
                "requested {count} cpus not multiple cpus per core = {threads}"
            )));
        }
        let blocked: Vec<(u8, u64)> = topology.members(reserved).map(core).collect();
        let free = topology.members(&self.free);
        let whole = free.filter(|cpu| !blocked.contains(&core(cpu))).count();
        if count > whole {
            return Err(refuse(format!(
                "not enough free physical CPUs: available physical CPUs = {whole}, \
                 requested CPUs = {count}, CPUs per core = {threads}"
            )));
        }
        Ok(())
    }

    pub(super) fn give_back(&mut self, cpus: &CpuSet) {
        self.free.add(cpus);
    }
}

fn core(cpu: &Cpu) -> (u8, u64) {
    (cpu.node, cpu.core)
}

fn on(topology: &Topology, mask: NumaMask) -> CpuSet {
    let mut out = CpuSet::new();
    for cpus in mask.ids().filter_map(|node| topology.on_node(node)) {
        out.add(cpus);
    }
    out
}

/// `count` of `free` as the static CPU manager takes them; `None` if there are not as many.
#[must_use]
pub fn packed(topology: &Topology, free: &CpuSet, count: usize) -> Option<CpuSet> {
    (count <= free.len()).then(|| choose(topology, free, count))
}

/// `count` of `free`, packed: whole sockets and NUMA nodes, then whole cores, then what is left of
/// cores; each time from the fullest socket and NUMA node. `free` has as many.
fn choose(topology: &Topology, free: &CpuSet, count: usize) -> CpuSet {
    let mut pick = Pick {
        topology,
        free: free.clone(),
        taken: CpuSet::new(),
        left: count,
    };
    pick.whole(|cpu| (i64::from(cpu.socket), 0));
    pick.whole(|cpu| (i64::from(cpu.socket), 1 + i64::from(cpu.node)));
    pick.whole(core);
    let order = pick.by_fullness();
    for cpu in order {
        if pick.left == 0 {
            break;
        }
        pick.taken.insert(cpu);
        pick.left -= 1;
    }
    pick.taken
}

struct Pick<'a> {
    topology: &'a Topology,
    free: CpuSet,
    taken: CpuSet,
    left: usize,
}

impl Pick<'_> {
    /// Takes units, as `unit` numbers them, that are wholly free and not larger than what is left.
    fn whole<K: Ord>(&mut self, unit: impl Fn(&Cpu) -> K) {
        let mut sizes: BTreeMap<K, usize> = BTreeMap::new();
        for cpu in self.topology.cpus() {
            *sizes.entry(unit(cpu)).or_default() += 1;
        }
        let order = self.by_fullness();
        let mut members: BTreeMap<K, Vec<u32>> = BTreeMap::new();
        let mut seen = Vec::new();
        for id in order {
            let Some(cpu) = self.topology.cpu(id) else {
                continue;
            };
            let list = members.entry(unit(cpu)).or_default();
            if list.is_empty() {
                seen.push(id);
            }
            list.push(id);
        }
        for first in seen {
            let Some(key) = self.topology.cpu(first).map(&unit) else {
                continue;
            };
            let list = members.get(&key).map_or(&[][..], Vec::as_slice);
            if Some(&list.len()) != sizes.get(&key) || list.len() > self.left {
                continue;
            }
            for id in list {
                self.taken.insert(*id);
                self.free.remove(*id);
                self.left -= 1;
            }
        }
    }

    /// The free CPUs: those of the fullest socket, NUMA node and core first, then by number.
    fn by_fullness(&self) -> Vec<u32> {
        let mut counts: BTreeMap<(u8, i64, u64), usize> = BTreeMap::new();
        let keys = |cpu: &Cpu| {
            [
                (0, i64::from(cpu.socket), 0),
                (1, i64::from(cpu.node), 0),
                (2, i64::from(cpu.node), cpu.core),
            ]
        };
        for cpu in self.topology.members(&self.free) {
            for key in keys(cpu) {
                *counts.entry(key).or_default() += 1;
            }
        }
        let mut order: Vec<_> = self
            .topology
            .members(&self.free)
            .map(|cpu| {
                let [socket, node, core] = keys(cpu);
                let count = |key| counts.get(&key).copied().unwrap_or(0);
                let place = (count(socket), socket, count(node), node);
                (place, count(core), core, cpu.id)
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(.., id)| id).collect()
    }
}
