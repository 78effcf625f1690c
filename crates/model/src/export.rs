//! Report of a topology exporter: the zones and attributes of a NodeResourceTopology v1alpha2, computed from
//! the machine and the lists of the kubelet's PodResources service.
//!
//! The community's exporter is `nfd-topology-updater` of kubernetes-sigs/node-feature-discovery, whose rules
//! and names are used. Differences: zones and resources are sorted, a CPU or device listed for two containers
//! counts once, a device near several NUMA nodes is subtracted from each of them, no amount goes below 0, and
//! inconsistent input is reported ([`Zones::problems`]) and skipped.

mod object;
mod unmanaged;

pub use object::{Report, foreign, is_same, keep_foreign, merged};
pub use unmanaged::{Reserved, add_unmanaged};

use crate::alignment::{Policy, Scope};
use crate::cpuset::CpuSet;
use crate::numa::NumaMask;
use koord_api::quantity::Quantity;
use koord_api::resources;
use koord_api::topology::{AttributeInfo, CostInfo, ResourceInfo, ZONE_TYPE_NODE, Zone, zone_name};
use std::collections::{BTreeMap, BTreeSet};

/// Attribute with the fingerprint of the pods included in a report.
pub const FINGERPRINT: &str = "nodeTopologyPodsFingerprint";
/// Attribute with the selection of the pods in the fingerprint.
pub const FINGERPRINT_METHOD: &str = "nodeTopologyPodsFingerprintMethod";

/// NUMA node of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// CPUs; empty for a node with memory only.
    pub cpus: CpuSet,
    /// Memory in bytes by kind: `memory`, which is the total, and `hugepages-2Mi`.
    pub memory: BTreeMap<String, u64>,
    /// Distances to NUMA nodes by number, as in the ACPI SLIT (10 is local).
    pub distances: BTreeMap<u8, u32>,
}

/// NUMA nodes of a machine by number, below 64.
pub type MachineTopology = BTreeMap<u8, Node>;

/// Devices of one resource near the same NUMA nodes. The kubelet lists a device near several NUMA nodes once
/// for each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// Resource name.
    pub resource: String,
    /// Device ids; equal ids of one resource are the same device.
    pub ids: Vec<String>,
    /// NUMA nodes; empty if unknown.
    pub nodes: NumaMask,
}

/// Memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Kind: `memory` or a page size such as `hugepages-2Mi`.
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// NUMA nodes of the block; empty if unknown.
    pub nodes: NumaMask,
}

/// Resources listed by PodResources: all that containers can have, or those that one container has
/// exclusively.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Share {
    /// CPUs.
    pub cpus: CpuSet,
    /// Memory.
    pub memory: Vec<Block>,
    /// Devices.
    pub devices: Vec<Devices>,
}

/// Result of [`zones`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Zones {
    /// One zone per NUMA node, by number; resources are sorted by name.
    pub zones: Vec<Zone>,
    /// Descriptions of the ignored input.
    pub problems: Vec<String>,
    /// True if ignored input contradicts the rest, so that the available amounts are unreliable.
    pub is_contradictory: bool,
}

/// Amounts of one resource in one NUMA node.
#[derive(Debug, Clone, Copy, Default)]
struct ZoneAmounts {
    capacity: u64,
    allocatable: u64,
    available: u64,
}

impl ZoneAmounts {
    fn add_allocatable(&mut self, amount: u64) {
        self.allocatable = self.allocatable.saturating_add(amount);
        self.available = self.allocatable;
    }
}

/// Computes the zones of `machine`, whose kubelet lists `allocatable` in total and `taken` for containers.
#[must_use]
pub fn zones(machine: &MachineTopology, allocatable: &Share, taken: &[Share]) -> Zones {
    let mut accounting = ZoneAccounting::open(machine, allocatable);
    for share in taken {
        accounting.take(share);
    }
    let costs = |node: &Node| {
        let cost = |(other, distance): (&u8, &u32)| CostInfo {
            name: zone_name(u32::from(*other)),
            value: i64::from(*distance),
        };
        node.distances.iter().map(cost).collect()
    };
    let zone = |(number, node): (&u8, &Node)| Zone {
        name: zone_name(u32::from(*number)),
        type_: ZONE_TYPE_NODE.to_owned(),
        costs: costs(node),
        resources: accounting
            .nodes
            .get(number)
            .into_iter()
            .flatten()
            .map(|(name, tally)| tally.info(name))
            .collect(),
        ..Zone::default()
    };
    Zones {
        zones: machine.iter().map(zone).collect(),
        problems: accounting.problems.into_iter().collect(),
        is_contradictory: accounting.is_contradictory,
    }
}

impl ZoneAmounts {
    fn info(self, name: &str) -> ResourceInfo {
        let amount = |amount: u64| {
            let amount = i64::try_from(amount).unwrap_or(i64::MAX);
            if is_memory(name) {
                Quantity::from_bytes(amount)
            } else {
                Quantity::from_value(amount)
            }
        };
        ResourceInfo {
            name: name.to_owned(),
            capacity: amount(self.capacity),
            allocatable: amount(self.allocatable),
            available: amount(self.available),
        }
    }
}

fn is_memory(name: &str) -> bool {
    name == resources::MEMORY || name.starts_with("hugepages-")
}

/// State of the computation of the zones.
struct ZoneAccounting<'a> {
    machine: &'a MachineTopology,
    nodes: BTreeMap<u8, BTreeMap<String, ZoneAmounts>>,
    /// Allocatable CPUs.
    cpus: &'a CpuSet,
    /// NUMA nodes of each device, by resource and id.
    devices: BTreeMap<&'a str, BTreeMap<&'a str, NumaMask>>,
    used_cpus: CpuSet,
    used_devices: BTreeSet<(String, String)>,
    problems: BTreeSet<String>,
    is_contradictory: bool,
}

impl<'a> ZoneAccounting<'a> {
    /// Creates the totals of all zones, with all allocatable amounts available.
    fn open(machine: &'a MachineTopology, allocatable: &'a Share) -> Self {
        let mut accounting = Self {
            machine,
            nodes: BTreeMap::new(),
            cpus: &allocatable.cpus,
            devices: BTreeMap::new(),
            used_cpus: CpuSet::new(),
            used_devices: BTreeSet::new(),
            problems: BTreeSet::new(),
            is_contradictory: false,
        };
        let mut all_cpus = CpuSet::new();
        for (number, node) in machine {
            all_cpus.add(&node.cpus);
            let count = node.cpus.intersection(&allocatable.cpus).len() as u64;
            let tally = ZoneAmounts {
                capacity: node.cpus.len() as u64,
                allocatable: count,
                available: count,
            };
            let all = accounting.nodes.entry(*number).or_default();
            all.insert(resources::CPU.to_owned(), tally);
        }
        let foreign = allocatable.cpus.difference(&all_cpus);
        if !foreign.is_empty() {
            accounting
                .record_contradiction(format!("allocatable CPUs {foreign} are in no NUMA node"));
        }
        for block in &allocatable.memory {
            accounting.open_memory(block);
        }
        accounting.open_devices(&allocatable.devices);
        accounting
    }

    /// Records a problem that contradicts the rest of the input.
    fn record_contradiction(&mut self, problem: String) {
        self.is_contradictory = true;
        self.problems.insert(problem);
    }

    fn open_memory(&mut self, block: &Block) {
        for number in block.nodes.ids() {
            let Some(all) = self.nodes.get_mut(&number) else {
                let kind = &block.kind;
                self.record_contradiction(format!(
                    "allocatable {kind} in NUMA node {number}, which there is not"
                ));
                continue;
            };
            let tally = all.entry(block.kind.clone()).or_default();
            tally.add_allocatable(block.size);
            let node = self.machine.get(&number);
            let memory = node.and_then(|node| node.memory.get(&block.kind));
            tally.capacity = memory.copied().unwrap_or(tally.allocatable);
        }
    }

    /// Adds the allocatable devices. The kubelet lists a device once for each NUMA node that it is near.
    fn open_devices(&mut self, listed: &'a [Devices]) {
        for devices in listed {
            let device_nodes = self.devices.entry(&devices.resource).or_default();
            for id in &devices.ids {
                device_nodes.entry(id).or_default().0 |= devices.nodes.0;
            }
        }
        let mut foreign = Vec::new();
        for (resource, device_nodes) in &self.devices {
            for (id, nodes) in device_nodes {
                for number in nodes.ids() {
                    let Some(all) = self.nodes.get_mut(&number) else {
                        foreign.push(format!(
                            "device {id:?} of {resource} is near NUMA node {number}, which there is not"
                        ));
                        continue;
                    };
                    let tally = all.entry((*resource).to_owned()).or_default();
                    tally.add_allocatable(1);
                    tally.capacity = tally.allocatable;
                }
            }
        }
        self.problems.extend(foreign);
    }

    /// Subtracts the CPUs, memory and devices that a container has exclusively.
    fn take(&mut self, share: &Share) {
        let foreign = share.cpus.difference(self.cpus);
        if !foreign.is_empty() {
            self.record_contradiction(format!(
                "a container has CPUs {foreign}, which are not allocatable"
            ));
        }
        let cpus = share.cpus.intersection(self.cpus);
        let twice = cpus.intersection(&self.used_cpus);
        if !twice.is_empty() {
            self.record_contradiction(format!("two containers have CPUs {twice}"));
        }
        let fresh = cpus.difference(&self.used_cpus);
        self.used_cpus.add(&fresh);
        for (number, node) in self.machine {
            let count = node.cpus.intersection(&fresh).len() as u64;
            self.take_available(*number, resources::CPU, count);
        }
        for block in &share.memory {
            self.take_memory(block);
        }
        let devices = share.devices.iter();
        let devices =
            devices.flat_map(|devices| devices.ids.iter().map(|id| (&*devices.resource, &**id)));
        // Each device once, although it is listed for each NUMA node that it is near.
        for (resource, id) in devices.collect::<BTreeSet<_>>() {
            self.take_device(resource, id);
        }
    }

    /// Subtracts up to `amount` from the available amount and returns the subtracted part.
    fn take_available(&mut self, number: u8, name: &str, amount: u64) -> u64 {
        let tally = self
            .nodes
            .get_mut(&number)
            .and_then(|all| all.get_mut(name));
        let Some(tally) = tally else {
            return 0;
        };
        let subtracted = amount.min(tally.available);
        tally.available -= subtracted;
        subtracted
    }

    /// Subtracts a block. One of several NUMA nodes uses up one after the other, as in the kubelet.
    fn take_memory(&mut self, block: &Block) {
        let mut remaining = block.size;
        for number in block.nodes.ids() {
            remaining -= self.take_available(number, &block.kind, remaining);
        }
        if remaining > 0 && block.nodes.count() > 0 {
            let (kind, nodes) = (&block.kind, block.nodes);
            self.record_contradiction(format!(
                "containers have {remaining} bytes of {kind} more in NUMA nodes {nodes} than is allocatable"
            ));
        }
    }

    /// Subtracts a device from each NUMA node that it is near.
    fn take_device(&mut self, resource: &str, id: &str) {
        let nodes = self.devices.get(resource).and_then(|all| all.get(id));
        let Some(nodes) = nodes.copied() else {
            // An unhealthy device is no longer listed, but the container that has it keeps it.
            self.problems.insert(format!(
                "a container has device {id:?} of {resource}, which is not allocatable"
            ));
            return;
        };
        if !self
            .used_devices
            .insert((resource.to_owned(), id.to_owned()))
        {
            self.record_contradiction(format!("two containers have device {id:?} of {resource}"));
            return;
        }
        for number in nodes.ids() {
            self.take_available(number, resource, 1);
        }
    }
}

/// Returns the attributes of a node: the topology manager settings of its kubelet and the fingerprint of the
/// included pods, as computed by [`crate::alignment::fingerprint::from_hashes`].
#[must_use]
pub fn attributes(policy: Policy, scope: Scope, fingerprint: Option<String>) -> Vec<AttributeInfo> {
    let mut all = vec![
        ("topologyManagerPolicy", policy.as_str().to_owned()),
        ("topologyManagerScope", scope.as_str().to_owned()),
    ];
    if let Some(fingerprint) = fingerprint {
        all.push((FINGERPRINT, fingerprint));
        all.push((FINGERPRINT_METHOD, "all".to_owned()));
    }
    let attribute = |(name, value): (&str, String)| AttributeInfo {
        name: name.to_owned(),
        value,
    };
    all.into_iter().map(attribute).collect()
}

/// Returns the deprecated name in `topologyPolicies` of a policy and its scope.
#[must_use]
pub fn policy_name(policy: Policy, scope: Scope) -> &'static str {
    match (policy, scope) {
        (Policy::None, _) => "None",
        (Policy::BestEffort, Scope::Container) => "BestEffortContainerLevel",
        (Policy::BestEffort, Scope::Pod) => "BestEffortPodLevel",
        (Policy::Restricted, Scope::Container) => "RestrictedContainerLevel",
        (Policy::Restricted, Scope::Pod) => "RestrictedPodLevel",
        (Policy::SingleNumaNode, Scope::Container) => "SingleNUMANodeContainerLevel",
        (Policy::SingleNumaNode, Scope::Pod) => "SingleNUMANodePodLevel",
    }
}

#[cfg(test)]
mod tests;
