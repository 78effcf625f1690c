//! The CPU manager with policy `static`: whole CPUs for Guaranteed containers.

use super::Refusal;
use super::hint::{Offer, rank};
use super::machine::{CpuManager, Machine, Settings};
use koord_model::cpuset::{Cpu, CpuSet, Topology, packed};
use koord_model::numa::NumaMask;

/// CPUs that are neither exclusive to a container nor reserved.
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
                free: all.difference(reserved),
            },
        }
    }

    /// Returns the NUMA nodes that could provide `count` CPUs. Those in `reuse` must be among the CPUs: a
    /// container takes over the CPUs of earlier init containers.
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
            if reuse.is_subset(&on) && usable.intersection(&on).len() >= count {
                masks.push(mask);
            }
        }
        Some(rank(masks, least))
    }

    /// Allocates `count` exclusive CPUs: on the NUMA nodes of `mask` first, then elsewhere.
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
        let near = mask.map_or_else(CpuSet::new, |mask| usable.intersection(&on(topology, mask)));
        let short = || {
            let (has, wants) = (usable.len(), count);
            Refusal::unexpected(&format!(
                "not enough cpus available to satisfy request: requested={wants}, available={has}"
            ))
        };
        if usable.len() < count {
            return Err(short());
        }
        let mut allocated = packed(topology, &near, count.min(near.len())).unwrap_or_default();
        let remaining = usable.difference(&allocated);
        allocated.add(&packed(topology, &remaining, count - allocated.len()).unwrap_or_default());
        self.free.subtract(&allocated);
        Ok(allocated)
    }

    /// Checks `full-pcpus-only`: the count must be a multiple of a core's CPUs, and as many CPUs must be in
    /// cores without a reserved CPU.
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

    pub(super) fn release(&mut self, cpus: &CpuSet) {
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
