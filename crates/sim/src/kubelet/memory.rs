//! The memory manager with policy `Static`: memory and huge pages of Guaranteed containers.

use super::Refusal;
use super::hint::{Hint, Offer, rank};
use super::machine::Machine;
use koord_model::numa::NumaMask;
use std::collections::BTreeMap;

/// A block of memory that a container holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Kind of memory: `memory`, `hugepages-2Mi`.
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// The NUMA nodes that it is bound to.
    pub nodes: NumaMask,
    /// Bytes taken for it from each NUMA node; less than the size in total if an init container handed some
    /// on.
    pub taken: BTreeMap<u8, u64>,
}

/// Memory that init containers hand on: bytes by the NUMA nodes that they are bound to, and by kind.
pub(super) type ReusableMemory = BTreeMap<(NumaMask, String), u64>;

/// The memory of one NUMA node.
#[derive(Debug, Clone)]
struct Bank {
    free: BTreeMap<String, u64>,
    allocatable: BTreeMap<String, u64>,
    /// Number of blocks that include this NUMA node.
    blocks: usize,
    /// The NUMA nodes that the blocks are bound to; only itself while there is no block.
    group: NumaMask,
}

/// The memory of the machine.
#[derive(Debug, Clone)]
pub(super) struct Banks(BTreeMap<u8, Bank>);

fn only(node: u8) -> NumaMask {
    NumaMask::from_iter([node])
}

impl Banks {
    pub(super) fn new(machine: &Machine) -> Self {
        let bank = |node: u8| {
            let memory = machine.memory.get(&node).into_iter().flatten();
            let allocatable: BTreeMap<String, u64> = memory
                .map(|(kind, memory)| (kind.clone(), memory.allocatable))
                .collect();
            let bank = Bank {
                free: allocatable.clone(),
                allocatable,
                blocks: 0,
                group: only(node),
            };
            (node, bank)
        };
        Self(machine.nodes().ids().map(bank).collect())
    }

    pub(super) fn free(&self, node: u8, kind: &str) -> u64 {
        let bank = self.0.get(&node);
        bank.and_then(|bank| bank.free.get(kind))
            .map_or(0, |free| *free)
    }

    fn sum(&self, mask: NumaMask, of: impl Fn(&Bank) -> u64) -> u64 {
        let banks = mask.ids().filter_map(|node| self.0.get(&node));
        banks.map(of).fold(0, u64::saturating_add)
    }

    /// Returns whether a block on exactly these NUMA nodes is compatible with the existing ones: a NUMA node
    /// takes part in blocks of one group only.
    fn joins(&self, mask: NumaMask) -> bool {
        let banks = || mask.ids().filter_map(|node| self.0.get(&node));
        if mask.count() == 1 {
            return banks().all(|bank| bank.group.count() == 1);
        }
        banks().all(|bank| bank.blocks == 0 || bank.group == mask)
    }

    /// Returns the hints for all kinds together, which apply to each kind.
    fn hints(
        &self,
        machine: &Machine,
        requests: &BTreeMap<String, u64>,
        reuse: &ReusableMemory,
    ) -> Vec<Hint> {
        let nodes = machine.nodes();
        let mut least = nodes.count();
        let mut masks = Vec::new();
        for mask in nodes.subsets() {
            let kind = |of: &BTreeMap<String, u64>, kind: &String| {
                of.get(kind).map_or(0, |amount| *amount)
            };
            let could = requests
                .iter()
                .all(|(name, size)| self.sum(mask, |bank| kind(&bank.allocatable, name)) >= *size);
            if !could {
                continue;
            }
            least = least.min(mask.count());
            let can = requests.iter().all(|(name, size)| {
                let reusable = reuse.get(&(mask, name.clone())).map_or(0, |size| *size);
                self.sum(mask, |bank| kind(&bank.free, name))
                    .saturating_add(reusable)
                    >= *size
            });
            if can && self.joins(mask) {
                masks.push(mask);
            }
        }
        rank(masks, least)
    }

    /// Returns the topology hints for each kind in `requests`. If no NUMA nodes suffice, they are "no
    /// preference", as in a kubelet: the allocation will fail.
    pub(super) fn offers(
        &self,
        machine: &Machine,
        requests: &BTreeMap<String, u64>,
        reuse: &ReusableMemory,
    ) -> Vec<Offer> {
        let hints = self.hints(machine, requests, reuse);
        if hints.is_empty() {
            return vec![None];
        }
        requests.keys().map(|_| Some(hints.clone())).collect()
    }

    /// Allocates `requests` from the NUMA nodes of `hint`, or from more if these have too little.
    pub(super) fn take(
        &mut self,
        machine: &Machine,
        requests: &BTreeMap<String, u64>,
        hint: Hint,
        reuse: &mut ReusableMemory,
        init: bool,
    ) -> Result<Vec<Block>, Refusal> {
        let fail = |what: &str| Refusal::unexpected(&format!("[memorymanager] {what}"));
        let mut preferred = hint.preferred;
        let mut mask = match hint.mask {
            Some(mask) => mask,
            None => {
                let hints = self.hints(machine, requests, reuse);
                let best = best(&hints).ok_or_else(|| {
                    fail(
                        "failed to get the default NUMA affinity, no NUMA nodes with enough memory \
                         is available",
                    )
                })?;
                if preferred && !best.1 {
                    return Err(fail("failed to find the default preferred hint"));
                }
                preferred = best.1;
                best.0
            }
        };
        let has = |banks: &Self, mask| {
            requests.iter().all(|(name, size)| {
                banks.sum(mask, |bank| bank.free.get(name).map_or(0, |free| *free)) >= *size
            })
        };
        if !has(self, mask) {
            let hints = self.hints(machine, requests, reuse);
            let is_wider = |hint: &Hint| hint.mask.is_some_and(|wider| mask.within(wider));
            let hints: Vec<Hint> = hints.into_iter().filter(is_wider).collect();
            let best = best(&hints).ok_or_else(|| {
                fail("failed to find NUMA nodes to extend the current topology hint")
            })?;
            if preferred && !best.1 {
                return Err(fail("failed to find the extended preferred hint"));
            }
            mask = best.0;
        }
        if mask.count() > 1 && !self.joins(mask) {
            return Err(fail("preferred hint violates NUMA node allocation"));
        }
        let blocks = requests.iter().map(|(kind, size)| {
            let reusable = reuse.entry((mask, kind.clone())).or_default();
            let block = self.take_one(kind, *size, mask, size.saturating_sub(*reusable));
            *reusable = if init {
                (*reusable).max(*size)
            } else {
                reusable.saturating_sub(*size)
            };
            block
        });
        Ok(blocks.collect())
    }

    /// Allocates a block of `size` bytes: `fresh` from the free memory of the NUMA nodes, in order of their
    /// ids, the others from memory that ended init containers of the pod left.
    fn take_one(&mut self, kind: &str, size: u64, nodes: NumaMask, mut fresh: u64) -> Block {
        let mut allocated = BTreeMap::new();
        for node in nodes.ids() {
            let Some(bank) = self.0.get_mut(&node) else {
                continue;
            };
            bank.blocks += 1;
            bank.group = nodes;
            if let Some(free) = bank.free.get_mut(kind) {
                let part = fresh.min(*free);
                *free -= part;
                fresh -= part;
                if part > 0 {
                    allocated.insert(node, part);
                }
            }
        }
        Block {
            kind: kind.to_owned(),
            size,
            nodes,
            taken: allocated,
        }
    }

    /// Returns the bytes of `blocks` to the NUMA nodes that they were taken from.
    pub(super) fn release(&mut self, blocks: &[Block]) {
        for block in blocks {
            for node in block.nodes.ids() {
                let Some(bank) = self.0.get_mut(&node) else {
                    continue;
                };
                bank.blocks = bank.blocks.saturating_sub(1);
                if bank.blocks == 0 {
                    bank.group = only(node);
                }
                let part = block.taken.get(&node).map_or(0, |part| *part);
                if let Some(free) = bank.free.get_mut(&block.kind) {
                    *free = free.saturating_add(part);
                }
            }
        }
    }
}

/// Returns the best of `hints`: a preferred one if there is one, then the narrowest. The flag is true if it
/// is preferred.
fn best(hints: &[Hint]) -> Option<(NumaMask, bool)> {
    let masks = hints
        .iter()
        .filter_map(|hint| Some((hint.mask?, hint.preferred)));
    masks.min_by_key(|(mask, preferred)| (!preferred, mask.count(), *mask))
}
