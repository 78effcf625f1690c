//! CPU and NUMA allocations of one node, and their sum.

use super::node_topology::{NodeTopology, to_milli};
use super::pod::Allocation;
use koord_model::cpuset::{CpuSet, ExclusivePolicy, Owned, Topology};
use koord_model::numa::{NumaState, amplify};
use koord_model::resources::{Amounts, CPU};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The allocations on one node, by pod uid.
pub(super) type Allocations = FxHashMap<Arc<str>, Arc<Allocation>>;

/// Topology, allocations and their sum of one node.
#[derive(Debug, Default)]
pub(super) struct NodeAllocations {
    /// The node's topology; `None` while the node does not exist.
    pub(super) node_topology: Option<NodeTopology>,
    pub(super) pods: Allocations,
    /// The sum over `pods`, always up to date.
    pub(super) allocated: AllocatedResources,
}

impl NodeAllocations {
    /// Replaces the node's topology.
    pub(super) fn set_topology(&mut self, node_topology: Option<NodeTopology>) {
        self.node_topology = node_topology;
        self.sum_up();
    }

    /// Records an allocation, replacing an earlier one of the pod. Returns true if anything changed.
    pub(super) fn put(&mut self, uid: &Arc<str>, allocation: Allocation) -> bool {
        if self
            .pods
            .get(uid)
            .is_some_and(|existing| **existing == allocation)
        {
            return false;
        }
        self.pods.insert(uid.clone(), Arc::new(allocation));
        self.sum_up();
        true
    }

    /// Removes a pod's allocation. Returns true if there was one.
    pub(super) fn remove(&mut self, uid: &str) -> bool {
        let removed = self.pods.remove(uid).is_some();
        if removed {
            self.sum_up();
        }
        removed
    }

    /// Recomputes the sum from all allocations. Annotations may claim the same CPUs twice, so subtracting one
    /// pod's share could free what another pod still holds.
    fn sum_up(&mut self) {
        self.allocated = self.without(|_| false, &[]);
    }

    /// Returns the sum of the allocations of all pods for which `skip` is false, and of `more`.
    pub(super) fn without(
        &self,
        skip: impl Fn(&str) -> bool,
        more: &[Allocation],
    ) -> AllocatedResources {
        let nothing = Topology::default();
        let topology = self
            .node_topology
            .as_ref()
            .map_or(&nothing, NodeTopology::topology);
        AllocatedResources::sum(topology, self.shares(skip), more)
    }

    /// Returns what each pod holds. A reservation holds only what its owners have not taken.
    pub(super) fn shares(&self, skip: impl Fn(&str) -> bool) -> Vec<(Arc<str>, Allocation)> {
        let present = |(uid, _): &(&Arc<str>, &Arc<Allocation>)| !skip(uid);
        let mut shares: Vec<(Arc<str>, Allocation)> = self
            .pods
            .iter()
            .filter(present)
            .map(|(uid, allocation)| (uid.clone(), (**allocation).clone()))
            .collect();
        for (_, owner) in self.pods.iter().filter(present) {
            let Some(reservation) = &owner.reservation else {
                continue;
            };
            let from = shares.iter_mut().find(|(uid, _)| uid == reservation);
            if let Some((_, from)) = from.filter(|(_, from)| from.is_reservation) {
                from.cpus.subtract(&owner.cpus);
                for (id, zone) in &mut from.zones {
                    let owned = owner.zones.iter().find(|(owned, _)| owned == id);
                    for (resource, amount) in owned.iter().flat_map(|(_, owned)| owned.iter()) {
                        if zone.contains(resource) {
                            zone.set(resource, (zone.get(resource) - amount).max(0));
                        }
                    }
                }
            }
        }
        shares
    }
}

/// The sum of the allocations on one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct AllocatedResources {
    pub(super) cpus: CpuSet,
    pub(super) owned: Owned,
    /// Amounts by NUMA node, ascending; as requested, not amplified.
    zones: Vec<(u8, Amounts)>,
    /// NUMA nodes with pods that have bound CPUs, and whether their pods use only this node or several.
    pub(super) states: Vec<(u8, NumaState)>,
}

impl AllocatedResources {
    fn sum(topology: &Topology, shares: Vec<(Arc<str>, Allocation)>, more: &[Allocation]) -> Self {
        let mut allocated = Self::default();
        for allocation in shares.iter().map(|(_, share)| share).chain(more) {
            allocated.add(topology, allocation);
        }
        allocated.zones.sort_by_key(|(id, _)| *id);
        allocated.states.sort_by_key(|(id, _)| *id);
        allocated
    }

    /// Adds an allocation to the sums.
    fn add(&mut self, topology: &Topology, allocation: &Allocation) {
        let cpus = &allocation.cpus;
        self.cpus.add(cpus);
        for cpu in topology.members(cpus) {
            match allocation.exclusive {
                ExclusivePolicy::None => {}
                ExclusivePolicy::PCpuLevel => drop(self.owned.cores.insert(cpu.core)),
                ExclusivePolicy::NumaNodeLevel => drop(self.owned.nodes.insert(cpu.node)),
            }
        }
        let on = |node: u8| {
            topology
                .on_node(node)
                .map_or(0, |all| all.intersection(cpus).len())
        };
        let nodes: Vec<u8> = topology.nodes().filter(|node| on(*node) > 0).collect();
        let state = if nodes.len() > 1 {
            NumaState::Shared
        } else {
            NumaState::Single
        };
        for node in &nodes {
            match self.states.iter_mut().find(|(id, _)| id == node) {
                Some((_, existing)) if *existing == NumaState::Single => *existing = state,
                Some(_) => {}
                None => self.states.push((*node, state)),
            }
        }
        for (id, amounts) in &allocation.zones {
            self.zone(*id).add_all(amounts);
        }
        if allocation.zones.is_empty() {
            // The pod was bound without a NUMA policy, but its CPUs are taken all the same.
            for node in nodes {
                self.zone(node).add(CPU, to_milli(on(node)));
            }
        }
    }

    fn zone(&mut self, id: u8) -> &mut Amounts {
        let position = self.zones.iter().position(|(existing, _)| *existing == id);
        let position = position.unwrap_or_else(|| {
            self.zones.push((id, Amounts::new()));
            self.zones.len() - 1
        });
        &mut self.zones[position].1
    }

    /// Returns the amounts allocated on NUMA node `id`; exclusive CPUs count with the node's CPU amplification.
    pub(super) fn zone_amounts(&self, node_topology: &NodeTopology, id: u8) -> Amounts {
        let mut amounts = self
            .zones
            .iter()
            .find(|(existing, _)| *existing == id)
            .map(|(_, amounts)| amounts.clone())
            .unwrap_or_default();
        if node_topology.ratio > 1.0 {
            let on = node_topology.topology().on_node(id);
            let bound = to_milli(on.map_or(0, |all| all.intersection(&self.cpus).len()));
            if bound > 0 {
                amounts.add(CPU, amplify(bound, node_topology.ratio) - bound);
            }
        }
        amounts
    }
}
