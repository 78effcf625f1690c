//! Suppression by CPU set: the number of CPUs for batch work, their selection, and the cgroups they are
//! written to.

use super::{MAX_GROWTH, MIN_CPUS};
use std::collections::BTreeSet;

/// Returns the number of CPUs that the `cpuset` policy grants for a `budget` in milli-cores, given the number
/// granted before.
#[must_use]
pub fn next_cpu_count(total: usize, budget: i64, current: usize) -> usize {
    let granted = (budget.max(0) as usize).div_ceil(1000).max(MIN_CPUS);
    let step = (total as f64 * MAX_GROWTH).ceil() as usize;
    granted.min(current.saturating_add(step)).max(MIN_CPUS)
}

/// Logical CPU and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processor {
    /// Id of the logical CPU.
    pub cpu: u32,
    /// Physical core.
    pub core: u32,
    /// Socket.
    pub socket: u32,
    /// NUMA node.
    pub node: u32,
}

/// Selects `count` CPUs for batch work: whole cores first, spread over NUMA nodes and sockets.
///
/// CPUs of LSR pods (`lsr`) contribute in proportion to their share. A pool with too few CPUs contributes
/// none.
#[must_use]
pub fn pick_cpus(candidates: &[Processor], lsr: &BTreeSet<u32>, count: usize) -> BTreeSet<u32> {
    let (owned, shared): (Vec<_>, Vec<_>) = candidates
        .iter()
        .copied()
        .partition(|p| lsr.contains(&p.cpu));
    let all = owned.len() + shared.len();
    if all == 0 {
        return BTreeSet::new();
    }
    let from_owned = count * owned.len() / all;
    let mut picked = pick_from_pool(owned, from_owned);
    picked.extend(pick_from_pool(shared, count - from_owned));
    picked
}

/// Selects `count` CPUs of `pool`: pairs that share a core first, spread over the buckets. Empty if too few.
fn pick_from_pool(pool: Vec<Processor>, count: usize) -> BTreeSet<u32> {
    let mut picked = BTreeSet::new();
    if count == 0 || pool.len() < count {
        return picked;
    }
    let mut buckets = buckets(pool);
    let mut index = 0;
    // Pairs that share a core, one per visit, until a whole round from the first bucket finds none.
    let mut before = None;
    while count - picked.len() > 1 {
        if index == 0 && before.replace(picked.len()) == Some(picked.len()) {
            break;
        }
        let bucket = &mut buckets[index];
        if let Some(first) = bucket
            .windows(2)
            .position(|pair| pair[0].core == pair[1].core)
        {
            picked.extend(bucket.drain(first..first + 2).map(|p| p.cpu));
        }
        index = (index + 1) % buckets.len();
    }
    // Then single CPUs.
    while picked.len() < count {
        if !buckets[index].is_empty() {
            picked.insert(buckets[index].remove(0).cpu);
        }
        index = (index + 1) % buckets.len();
    }
    picked
}

fn buckets(pool: Vec<Processor>) -> Vec<Vec<Processor>> {
    let mut by_place = std::collections::BTreeMap::<(u32, u32), Vec<Processor>>::new();
    for processor in pool {
        by_place
            .entry((processor.node, processor.socket))
            .or_default()
            .push(processor);
    }
    let mut buckets: Vec<_> = by_place.into_values().collect();
    for bucket in &mut buckets {
        bucket.sort_unstable_by_key(|p| (p.core, p.cpu));
    }
    buckets.sort_by_key(|bucket| (std::cmp::Reverse(bucket.len()), bucket[0].cpu));
    buckets
}

/// CPUs that batch work must not use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExcludedCpus {
    /// Reserved for the node's daemons, by the kubelet or the annotation
    /// `node.koordinator.sh/reservation`.
    pub reserved: BTreeSet<u32>,
    /// CPUs of SYSTEM pods, if they are exclusive.
    pub system: BTreeSet<u32>,
    /// CPUs of LSE pods.
    pub lse: BTreeSet<u32>,
}

impl ExcludedCpus {
    /// Returns true if batch work must not use `cpu`.
    #[must_use]
    pub fn holds(&self, cpu: u32) -> bool {
        self.reserved.contains(&cpu) || self.system.contains(&cpu) || self.lse.contains(&cpu)
    }

    /// Returns the processors that batch work may use.
    #[must_use]
    pub fn candidates(&self, processors: &[Processor]) -> Vec<Processor> {
        let available = processors.iter().filter(|p| !self.holds(p.cpu));
        available.copied().collect()
    }

    /// Returns all CPUs that batch work may use while it is not suppressed.
    #[must_use]
    pub fn full_set(&self, processors: &[Processor]) -> BTreeSet<u32> {
        self.candidates(processors)
            .into_iter()
            .map(|p| p.cpu)
            .collect()
    }
}

/// CPU manager policy of the kubelet, from annotation `kubelet.koordinator.sh/cpu-manager-policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuManager {
    /// `none`, or unknown.
    #[default]
    None,
    /// `static`: the kubelet writes the CPU sets of containers itself and checks their parents.
    Static,
}

impl CpuManager {
    /// Parses the name of the policy.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        match name {
            "static" => Self::Static,
            _ => Self::None,
        }
    }
}

/// CPU sets of batch work by cgroup level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    /// CPU set of the besteffort cgroup and its pods.
    pub parents: BTreeSet<u32>,
    /// CPU set of their containers; `None` leaves them unchanged.
    pub containers: Option<BTreeSet<u32>>,
}

/// Returns the CPU sets for the `picked` CPUs: all levels get them, except under a static CPU manager, where
/// only containers do and their parents keep the `full` set. `None` if nothing could be selected.
#[must_use]
pub fn levels(picked: &BTreeSet<u32>, full: &BTreeSet<u32>, manager: CpuManager) -> Option<Levels> {
    if picked.is_empty() {
        return None;
    }
    Some(Levels {
        parents: match manager {
            CpuManager::None => picked.clone(),
            CpuManager::Static => full.clone(),
        },
        containers: Some(picked.clone()),
    })
}

/// Returns the CPU sets after suppression by CPU set ends: all levels get the `full` set. With the gate
/// BECPUManager the scheduler allocates CPUs to batch pods, so that CPU sets never suppress, and the
/// containers of a pod with `has_cpus` (a CPU set or NUMA resources in its resource status) are unchanged.
#[must_use]
pub fn recovered_levels(full: &BTreeSet<u32>, be_cpu_manager: bool, has_cpus: bool) -> Levels {
    Levels {
        parents: full.clone(),
        containers: (!(be_cpu_manager && has_cpus)).then(|| full.clone()),
    }
}
