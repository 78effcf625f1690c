//! CPU topology of a machine.

use super::CpuSet;
use std::collections::BTreeSet;

/// One logical CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cpu {
    /// Number of the CPU.
    pub id: u32,
    /// Id of the physical core, unique in the machine.
    pub core: u64,
    /// Socket number.
    pub socket: i32,
    /// NUMA node number, below 64.
    pub node: u8,
}

impl Cpu {
    /// Creates a CPU whose `core` number is only unique in its socket, as the kernel numbers cores.
    #[must_use]
    pub fn new(id: u32, core: u32, socket: i32, node: u8) -> Self {
        // Ordered by socket first, like the CPU numbers of most machines.
        let core = (u64::from(socket.unsigned_abs()) << 32) | u64::from(core);
        Self {
            id,
            core,
            socket,
            node,
        }
    }
}

/// All CPUs of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// Sorted by number, without duplicates.
    cpus: Vec<Cpu>,
    all: CpuSet,
    nodes: Vec<(u8, CpuSet)>,
    /// Numbers of sockets, NUMA nodes and cores.
    counts: [usize; 3],
}

impl Topology {
    /// Creates the topology of `cpus`; if two have the same number, the later one is used.
    #[must_use]
    pub fn new(cpus: impl IntoIterator<Item = Cpu>) -> Self {
        let mut cpus: Vec<Cpu> = cpus.into_iter().collect();
        cpus.reverse();
        cpus.sort_by_key(|cpu| cpu.id);
        cpus.dedup_by_key(|cpu| cpu.id);
        let sockets: BTreeSet<i32> = cpus.iter().map(|cpu| cpu.socket).collect();
        let nodes: BTreeSet<(i32, u8)> = cpus.iter().map(|cpu| (cpu.socket, cpu.node)).collect();
        let cores: BTreeSet<(u8, u64)> = cpus.iter().map(|cpu| (cpu.node, cpu.core)).collect();
        let ids: BTreeSet<u8> = cpus.iter().map(|cpu| cpu.node).collect();
        let on = |node: u8| cpus.iter().filter(move |cpu| cpu.node == node);
        Self {
            all: cpus.iter().map(|cpu| cpu.id).collect(),
            nodes: ids
                .into_iter()
                .map(|node| (node, on(node).map(|cpu| cpu.id).collect()))
                .collect(),
            counts: [sockets.len(), nodes.len(), cores.len()],
            cpus,
        }
    }

    /// Returns true if there is at least one CPU.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.cpus.is_empty()
    }

    /// Returns the CPUs, sorted by number.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Returns the CPU with number `id`.
    #[must_use]
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        let index = self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        self.cpus.get(index)
    }

    /// Returns the numbers of all CPUs.
    #[must_use]
    pub fn all(&self) -> &CpuSet {
        &self.all
    }

    /// Returns the CPUs of NUMA node `node`, if it has any.
    #[must_use]
    pub fn on_node(&self, node: u8) -> Option<&CpuSet> {
        let index = self.nodes.binary_search_by_key(&node, |(id, _)| *id).ok()?;
        self.nodes.get(index).map(|(_, cpus)| cpus)
    }

    /// Returns the NUMA nodes that have CPUs, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = u8> + '_ {
        self.nodes.iter().map(|(node, _)| *node)
    }

    /// Returns the numbers of sockets, NUMA nodes and physical cores.
    #[must_use]
    pub fn counts(&self) -> [usize; 3] {
        self.counts
    }

    /// Returns the average number of CPUs per socket.
    #[must_use]
    pub fn per_socket(&self) -> usize {
        self.cpus.len().checked_div(self.counts[0]).unwrap_or(0)
    }

    /// Returns the average number of CPUs per NUMA node.
    #[must_use]
    pub fn per_node(&self) -> usize {
        self.cpus.len().checked_div(self.counts[1]).unwrap_or(0)
    }

    /// Returns the average number of threads per physical core; 0 for a machine without CPUs.
    #[must_use]
    pub fn per_core(&self) -> usize {
        self.cpus.len().checked_div(self.counts[2]).unwrap_or(0)
    }

    /// Returns the number of physical cores that have a CPU in `cpus`.
    #[must_use]
    pub fn cores_of(&self, cpus: &CpuSet) -> usize {
        let cores: BTreeSet<u64> = self.members(cpus).map(|cpu| cpu.core).collect();
        cores.len()
    }

    /// Returns the CPUs of this machine that are in `cpus`, by number.
    pub fn members<'a>(&'a self, cpus: &'a CpuSet) -> impl Iterator<Item = &'a Cpu> {
        self.cpus.iter().filter(|cpu| cpus.contains(cpu.id))
    }
}
