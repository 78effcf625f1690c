//! Topology hints for a pod's devices.

use super::allocate::{Allocation, Refusal, requested_devices};
use super::inventory::Inventory;
use super::need::Need;
use super::units::DeviceType;
use crate::numa::{Hint, NumaMask};

/// Score that outweighs the preferences of CPU and memory.
const SAME_DEVICES: i64 = 500;
/// Number of NUMA nodes above which only single ones and the set of all are offered.
const ALL_SETS: usize = 8;

/// Returns for each requested type the sets of NUMA nodes that can satisfy the pod. `place` returns the
/// devices that would be allocated from a set. Empty if no device has a known NUMA node.
///
/// # Errors
/// The reason why not even all NUMA nodes together can satisfy the request.
pub fn numa_hints<E: From<Refusal>>(
    need: &Need,
    inventory: &Inventory,
    place: impl Fn(NumaMask) -> Result<Allocation, E>,
) -> Result<Vec<(DeviceType, Vec<Hint>)>, E> {
    let nodes = inventory.numa_nodes();
    let all: NumaMask = nodes.iter().copied().collect();
    if nodes.is_empty() {
        return Ok(Vec::new());
    }
    let requested = requested_devices(need, inventory, false)?;
    let enough = |mask: NumaMask| {
        DeviceType::ALL.into_iter().all(|kind| {
            let available = inventory.count_in(kind, mask);
            requested[kind.index()].is_none_or(|(count, _)| available == 0 || available >= count)
        })
    };
    let place = |mask: NumaMask| {
        if enough(mask) {
            place(mask)
        } else {
            Err(Refusal::unresolvable("Insufficient NUMA Scoped Devices").into())
        }
    };
    let best = place(all)?.set_of(DeviceType::Gpu);
    let mut hints: Vec<Hint> = Vec::new();
    for mask in sets(&nodes) {
        if let Ok(got) = place(mask) {
            let same_devices = got.set_of(DeviceType::Gpu) == best;
            hints.push(Hint {
                mask: Some(mask),
                preferred: false,
                score: if same_devices { SAME_DEVICES } else { 0 },
            });
        }
    }
    let size = |hint: &Hint| hint.mask.map_or(0, NumaMask::count);
    let smallest = hints.iter().map(size).min().unwrap_or(0);
    for hint in &mut hints {
        hint.preferred = size(hint) == smallest;
    }
    let kinds = DeviceType::ALL.into_iter();
    let kinds = kinds.filter(|kind| requested[kind.index()].is_some());
    Ok(kinds.map(|kind| (kind, hints.clone())).collect())
}

/// Returns all non-empty sets of `nodes`, small ones first, then in order of ids.
fn sets(nodes: &[u8]) -> Vec<NumaMask> {
    let subset = |chosen: u32| {
        let picked = nodes.iter().enumerate();
        let picked = picked.filter(|(at, _)| chosen & (1 << at) != 0);
        picked.map(|(_, id)| *id).collect::<NumaMask>()
    };
    if nodes.len() > ALL_SETS {
        let singles = nodes.iter().map(|id| NumaMask::from_iter([*id]));
        let all = nodes.iter().copied().collect();
        return singles.chain([all]).collect();
    }
    let mut sets: Vec<NumaMask> = (1_u32..1 << nodes.len()).map(subset).collect();
    sets.sort_by_key(|mask| (mask.count(), mask.ids().collect::<Vec<u8>>()));
    sets
}
