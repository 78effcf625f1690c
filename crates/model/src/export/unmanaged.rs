//! Allocatable CPUs and memory on nodes where no kubelet manager allocates them.
//!
//! A kubelet with CPU manager `none` lists no CPUs as allocatable, and one with memory manager `None` no
//! memory: all containers share them. Allocatable is then the capacity minus the reserved amounts.

use super::{MachineTopology, Node};
use crate::cpuset::CpuSet;
use koord_api::quantity::Quantity;
use koord_api::resources;
use koord_api::topology::{ResourceInfo, Zone};

/// Kubelet settings that reserve CPUs and memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reserved {
    /// True if the CPU manager allocates exclusive CPUs.
    pub cpu_manager: bool,
    /// True if the memory manager allocates memory of NUMA nodes.
    pub memory_manager: bool,
    /// Reserved CPUs; if set, they replace `milli`.
    pub cpus: CpuSet,
    /// Reserved CPU in milli-cores.
    pub milli: i64,
    /// Reserved memory in bytes, including the eviction threshold.
    pub memory: u64,
    /// Eviction threshold in percent of all memory, if it is configured as a percentage.
    pub memory_percent: f64,
}

/// Adds the amounts missing in `zones` of `machine` under `reserved`. Amounts that the kubelet lists are
/// kept.
pub fn add_unmanaged(zones: &mut [Zone], machine: &MachineTopology, reserved: &Reserved) {
    let is_listed = |zones: &[Zone], name: &str| {
        let mut all = zones.iter().flat_map(|zone| &zone.resources);
        all.any(|it| it.name == name && !it.allocatable.is_zero())
    };
    let cpus = !reserved.cpu_manager && !is_listed(zones, resources::CPU);
    let memory = !reserved.memory_manager && !is_listed(zones, resources::MEMORY);
    let total = |amount: fn(&Node) -> u64| {
        let amounts = machine.values().map(|node| u128::from(amount(node)));
        amounts.sum::<u128>()
    };
    let (all_cpus, all_memory) = (total(count), total(plain_memory));
    let threshold = (all_memory as f64 * reserved.memory_percent.clamp(0.0, 100.0) / 100.0) as u64;
    let kept_memory = reserved.memory.saturating_add(threshold);
    // In the order of the machine, as the zones were made.
    for (zone, node) in zones.iter_mut().zip(machine.values()) {
        if cpus {
            let reserved_milli = if reserved.cpus.is_empty() {
                let milli = u64::try_from(reserved.milli).unwrap_or(0);
                part(milli, count(node), all_cpus)
            } else {
                (node.cpus.intersection(&reserved.cpus).len() as u64).saturating_mul(1000)
            };
            let milli = count(node)
                .saturating_mul(1000)
                .saturating_sub(reserved_milli);
            let allocatable = Quantity::from_milli(i64::try_from(milli).unwrap_or(i64::MAX));
            let capacity = Quantity::from_value(i64::try_from(count(node)).unwrap_or(i64::MAX));
            put(zone, resources::CPU, capacity, allocatable);
        }
        if memory {
            for (kind, bytes) in &node.memory {
                let capacity = from_bytes(*bytes);
                let allocatable = if kind == resources::MEMORY {
                    let reserved_bytes = part(kept_memory, plain_memory(node), all_memory);
                    from_bytes(plain_memory(node).saturating_sub(reserved_bytes))
                } else {
                    capacity
                };
                put(zone, kind, capacity, allocatable);
            }
        }
        zone.resources.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

fn count(node: &Node) -> u64 {
    node.cpus.len() as u64
}

/// Returns the memory that is not reserved for huge pages, in bytes.
fn plain_memory(node: &Node) -> u64 {
    let all = node.memory.iter();
    let pages = all.filter(|(kind, _)| *kind != resources::MEMORY);
    let pages = pages.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let memory = node.memory.get(resources::MEMORY).copied().unwrap_or(0);
    memory.saturating_sub(pages)
}

/// Returns the part of `amount` for a zone that has `own` of `all`, rounded up.
fn part(amount: u64, own: u64, all: u128) -> u64 {
    if all == 0 {
        return 0;
    }
    let part = (u128::from(amount) * u128::from(own)).div_ceil(all);
    u64::try_from(part).unwrap_or(u64::MAX)
}

fn from_bytes(bytes: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// Sets a resource of a zone, all of whose allocatable amount is available.
fn put(zone: &mut Zone, name: &str, capacity: Quantity, allocatable: Quantity) {
    zone.resources.retain(|it| it.name != name);
    zone.resources.push(ResourceInfo {
        name: name.to_owned(),
        capacity,
        allocatable,
        available: allocatable,
    });
}

#[cfg(test)]
mod tests {
    use super::super::{Share, zones};
    use super::*;

    const GI: u64 = 1 << 30;

    /// Creates two NUMA nodes: 12 CPUs and 24 GiB, of which 4 GiB are huge pages, and 4 CPUs and 8 GiB.
    fn machine() -> MachineTopology {
        let node = |list: &str, memory: u64, pages: u64| Node {
            cpus: list.parse().unwrap(),
            memory: [
                ("memory".to_owned(), memory * GI),
                ("hugepages-1Gi".to_owned(), pages * GI),
            ]
            .into(),
            ..Node::default()
        };
        [(0, node("0-11", 24, 4)), (1, node("12-15", 8, 0))].into()
    }

    fn text(reserved: &Reserved, listed: &Share) -> Vec<String> {
        let machine = machine();
        let mut zones = zones(&machine, listed, &[]).zones;
        add_unmanaged(&mut zones, &machine, reserved);
        let each = zones.iter().flat_map(|zone| {
            zone.resources.iter().map(|it| {
                assert_eq!(it.allocatable, it.available);
                format!(
                    "{} {} {} {}",
                    zone.name, it.name, it.capacity, it.allocatable
                )
            })
        });
        each.collect()
    }

    #[test]
    fn allocatable_without_managers_is_capacity_less_reserved() {
        let reserved = Reserved {
            milli: 1600,
            memory: 7 * GI / 10 * 2,
            ..Reserved::default()
        };
        let nothing = Share::default();
        // A quarter of the CPUs and 8 of 28 GiB are in the second NUMA node.
        let gib = |gib: u64, less: u64| from_bytes(gib * GI - less);
        let parts = [20_u64, 8].map(|own| part(7 * GI / 10 * 2, own * GI, u128::from(28 * GI)));
        assert_eq!(
            text(&reserved, &nothing),
            [
                "node-0 cpu 12 10800m".to_owned(),
                "node-0 hugepages-1Gi 4Gi 4Gi".to_owned(),
                format!("node-0 memory 24Gi {}", gib(20, parts[0])),
                "node-1 cpu 4 3600m".to_owned(),
                "node-1 hugepages-1Gi 0 0".to_owned(),
                format!("node-1 memory 8Gi {}", gib(8, parts[1])),
            ]
        );
        // Reserved CPUs are where they are, and a threshold may be a share.
        let reserved = Reserved {
            cpus: "0-1,12".parse().unwrap(),
            milli: 9000,
            memory_percent: 50.0,
            ..Reserved::default()
        };
        let zones_text = text(&reserved, &nothing);
        assert_eq!(
            (&*zones_text[0], &*zones_text[3]),
            ("node-0 cpu 12 10", "node-1 cpu 4 3")
        );
        assert_eq!(
            (&*zones_text[2], &*zones_text[5]),
            ("node-0 memory 24Gi 10Gi", "node-1 memory 8Gi 4Gi")
        );
        // More than there is.
        let reserved = Reserved {
            milli: i64::MAX,
            memory: u64::MAX,
            ..Reserved::default()
        };
        let zones_text = text(&reserved, &nothing);
        assert_eq!(
            (&*zones_text[0], &*zones_text[2]),
            ("node-0 cpu 12 0", "node-0 memory 24Gi 0")
        );
    }

    #[test]
    fn listed_amounts_of_managers_stay() {
        let listed = Share {
            cpus: "2-15".parse().unwrap(),
            ..Share::default()
        };
        let reserved = Reserved {
            cpu_manager: true,
            memory_manager: true,
            milli: 2000,
            ..Reserved::default()
        };
        assert_eq!(
            text(&reserved, &listed),
            ["node-0 cpu 12 10", "node-1 cpu 4 4"]
        );
        // A static CPU manager without allocatable CPUs.
        assert_eq!(text(&reserved, &Share::default())[0], "node-0 cpu 12 0");
        // The list of CPUs counts more than the name of the policy.
        let none = Reserved::default();
        assert_eq!(text(&none, &listed)[0], "node-0 cpu 12 10");
        assert_eq!(text(&none, &listed)[2], "node-0 memory 24Gi 20Gi");
    }
}
