//! Selection of CPUs as by the kubelet's static CPU manager.

use super::{Cpu, CpuSet, Topology};
use std::collections::BTreeMap;

/// Returns `count` CPUs of `free`, selected as by the static CPU manager; `None` if there are fewer.
#[must_use]
pub fn packed(topology: &Topology, free: &CpuSet, count: usize) -> Option<CpuSet> {
    (count <= free.len()).then(|| choose(topology, free, count))
}

/// Returns `count` CPUs of `free`, packed: whole sockets and NUMA nodes, then whole cores, then single
/// threads; each time from the fullest socket and NUMA node. `free` must have at least `count`.
fn choose(topology: &Topology, free: &CpuSet, count: usize) -> CpuSet {
    let mut accumulator = CpuAccumulator {
        topology,
        free: free.clone(),
        taken: CpuSet::new(),
        left: count,
    };
    accumulator.take_whole_units(|cpu| (i64::from(cpu.socket), 0));
    accumulator.take_whole_units(|cpu| (i64::from(cpu.socket), 1 + i64::from(cpu.node)));
    accumulator.take_whole_units(|cpu| (cpu.node, cpu.core));
    let order = accumulator.by_fullness();
    for cpu in order {
        if accumulator.left == 0 {
            break;
        }
        accumulator.taken.insert(cpu);
        accumulator.left -= 1;
    }
    accumulator.taken
}

struct CpuAccumulator<'a> {
    topology: &'a Topology,
    free: CpuSet,
    taken: CpuSet,
    left: usize,
}

impl CpuAccumulator<'_> {
    /// Takes units, identified by `unit`, that are wholly free and not larger than the remaining count.
    fn take_whole_units<K: Ord>(&mut self, unit: impl Fn(&Cpu) -> K) {
        let mut sizes: BTreeMap<K, usize> = BTreeMap::new();
        for cpu in self.topology.cpus() {
            *sizes.entry(unit(cpu)).or_default() += 1;
        }
        let order = self.by_fullness();
        let mut members: BTreeMap<K, Vec<u32>> = BTreeMap::new();
        let mut unit_ids = Vec::new();
        for id in order {
            let Some(cpu) = self.topology.cpu(id) else {
                continue;
            };
            let list = members.entry(unit(cpu)).or_default();
            if list.is_empty() {
                unit_ids.push(id);
            }
            list.push(id);
        }
        for first in unit_ids {
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

    /// Returns the free CPUs: those of the fullest socket, NUMA node and core first, then by number.
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
