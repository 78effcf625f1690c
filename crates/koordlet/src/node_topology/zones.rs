//! Zones of the NUMA nodes.

use crate::collect::machine::{MachineInfo, NumaNode};
use crate::states::NodeInfo;
use crate::states::node::Amounts;
use koord_api::Quantity;
use koord_api::quantity::NANOS_PER_UNIT;
use koord_api::topology::{ResourceInfo, ZONE_TYPE_NODE, Zone, zone_name};
use koord_api::{quantity, resources};
use std::collections::BTreeMap;

/// The reported huge pages: resource name and page size in KiB.
const HUGE_PAGES: [(&str, u64); 2] = [("hugepages-1Gi", 1 << 20), ("hugepages-2Mi", 2 << 10)];

/// Returns the zones of the machine and their resources, each sorted by name. If the node's label enables it,
/// the node's reservation of `cpu` and `memory` is subtracted in equal parts.
///
/// # Errors
/// Returns the ID of a NUMA node whose memory the kernel does not report.
pub(super) fn zones(
    machine: &MachineInfo,
    node: &NodeInfo,
    huge_pages: bool,
) -> Result<Vec<Zone>, u32> {
    let mut capacities = Vec::new();
    for numa in &machine.numa {
        capacities.push((numa.id, capacity(machine, numa, huge_pages)?));
    }
    let node_reserved = if node.numa_reservation.as_deref() == Some("true") {
        let kept_milli = |field: fn(&Amounts) -> i64, unit: i128| {
            let node_reserved = field(&node.capacity).saturating_sub(field(&node.raw_allocatable));
            // A node without known capacity has no reservation.
            i128::from(node_reserved.max(0)) * unit
        };
        BTreeMap::from([
            (resources::CPU, kept_milli(|amounts| amounts.cpu, 1)),
            (
                resources::MEMORY,
                kept_milli(|amounts| amounts.memory, 1000),
            ),
        ])
    } else {
        BTreeMap::new()
    };
    // NUMA nodes without CPUs cannot reserve CPUs.
    let having = |name: &str| {
        let all = capacities.iter();
        let having = all.filter(|(_, all)| all.get(name).is_some_and(|it| !it.is_zero()));
        i128::try_from(having.count()).unwrap_or(i128::MAX)
    };
    let node_reserved: BTreeMap<&str, i128> = node_reserved
        .into_iter()
        .map(|(name, milli)| (name, part(milli, having(name))))
        .collect();
    let mut zones: Vec<Zone> = capacities
        .iter()
        .map(|(id, capacity)| Zone {
            name: zone_name(*id),
            type_: ZONE_TYPE_NODE.to_owned(),
            resources: capacity
                .iter()
                .map(|(name, capacity)| {
                    let allocatable =
                        reduced(*capacity, node_reserved.get(name).copied().unwrap_or(0));
                    ResourceInfo {
                        name: (*name).to_owned(),
                        capacity: *capacity,
                        allocatable,
                        available: allocatable,
                    }
                })
                .collect(),
            ..Zone::default()
        })
        .collect();
    zones.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(zones)
}

fn capacity(
    machine: &MachineInfo,
    numa: &NumaNode,
    huge_pages: bool,
) -> Result<BTreeMap<&'static str, Quantity>, u32> {
    let bytes = |bytes: u64| Quantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX));
    let cpus = machine.cpus.iter().filter(|cpu| cpu.node == numa.id);
    let cpus = i64::try_from(cpus.count()).unwrap_or(i64::MAX);
    let mut memory = numa.memory.ok_or(numa.id)?.total;
    let mut all = BTreeMap::from([(resources::CPU, Quantity::from_value(cpus))]);
    for (name, size_kib) in HUGE_PAGES {
        let pages = numa.huge_pages.iter().filter(|_| huge_pages);
        let pages = pages.filter(|pages| pages.size_kib == size_kib);
        let size: u64 = pages
            .map(|pages| pages.total.saturating_mul(size_kib * 1024))
            .sum();
        memory = memory.saturating_sub(size);
        all.insert(name, bytes(size));
    }
    all.insert(resources::MEMORY, bytes(memory));
    Ok(all)
}

/// Returns one of `count` equal parts of `milli` thousandths, rounded up; 0 if `count` is 0.
fn part(milli: i128, count: i128) -> i128 {
    if count > 0 {
        (milli + count - 1) / count
    } else {
        0
    }
}

/// Returns `amount` minus `milli` thousandths of a unit, at least 0.
fn reduced(amount: Quantity, milli: i128) -> Quantity {
    let nanos = milli.saturating_mul(NANOS_PER_UNIT / 1000);
    quantity::Quantity::from_nanos((amount.nanos() - nanos).max(0), amount.format())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's `Test_divideResourceByCount`.
    #[test]
    fn parts_are_rounded_up() {
        const GI: i128 = 1 << 30;
        for (milli, count, want) in [
            (4000, 2, 2000),
            (4000, 3, 1334),
            (10 * GI * 1000, 4, 2_684_354_560_000),
            (10 * GI * 1000, 3, 3_579_139_413_334),
            (0, 2, 0),
            (5000, 1, 5000),
            (4000, 0, 0),
        ] {
            assert_eq!(part(milli, count), want, "{milli} by {count}");
        }
    }
}
