//! Who holds what on a node.

use super::node::{NodeSide, milli};
use super::pod::Allocation;
use koord_model::cpuset::{CpuSet, ExclusivePolicy, Owned, Topology};
use koord_model::numa::{NumaState, amplify};
use koord_model::resources::{Amounts, CPU};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The allocations on one node, by uid.
pub(super) type Allocations = FxHashMap<Arc<str>, Arc<Allocation>>;

/// One node: its side, its allocations, and their sum.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// None while the node does not exist.
    pub(super) side: Option<NodeSide>,
    pub(super) pods: Allocations,
    /// The sum over `pods`, always up to date.
    pub(super) held: Held,
}

impl Book {
    /// Replaces what is known of the node itself.
    pub(super) fn set_side(&mut self, side: Option<NodeSide>) {
        self.side = side;
        self.sum_up();
    }

    /// Books an allocation, in place of an earlier one of the same pod. Whether anything changed.
    pub(super) fn give(&mut self, uid: &Arc<str>, allocation: Allocation) -> bool {
        if self
            .pods
            .get(uid)
            .is_some_and(|known| **known == allocation)
        {
            return false;
        }
        self.pods.insert(uid.clone(), Arc::new(allocation));
        self.sum_up();
        true
    }

    /// Takes back what a pod was given. Whether there was anything.
    pub(super) fn take_back(&mut self, uid: &str) -> bool {
        let known = self.pods.remove(uid).is_some();
        if known {
            self.sum_up();
        }
        known
    }

    /// The sum is made afresh each time: whatever order pods come and go in, and whatever their
    /// annotations claim, nobody's share is taken back with another's.
    fn sum_up(&mut self) {
        self.held = self.without(|_| false, &[]);
    }

    /// What is held by the pods that `skip` does not name, and by `more`.
    pub(super) fn without(&self, skip: impl Fn(&str) -> bool, more: &[Allocation]) -> Held {
        let nothing = Topology::default();
        let topology = self.side.as_ref().map_or(&nothing, NodeSide::topology);
        Held::sum(topology, self.shares(skip), more)
    }

    /// What each pod holds. A reservation holds what its owners have not taken of it.
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
                    let taken = owner.zones.iter().find(|(taken, _)| taken == id);
                    for (resource, amount) in taken.iter().flat_map(|(_, taken)| taken.iter()) {
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

/// What all pods together hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Held {
    pub(super) cpus: CpuSet,
    pub(super) owned: Owned,
    /// By NUMA node, ascending; amounts as requested, not amplified.
    zones: Vec<(u8, Amounts)>,
    /// Who is on each NUMA node, of the pods that are bound to CPUs.
    pub(super) states: Vec<(u8, NumaState)>,
}

impl Held {
    fn sum(topology: &Topology, shares: Vec<(Arc<str>, Allocation)>, more: &[Allocation]) -> Self {
        let mut held = Self::default();
        for allocation in shares.iter().map(|(_, share)| share).chain(more) {
            held.add(topology, allocation);
        }
        held.zones.sort_by_key(|(id, _)| *id);
        held.states.sort_by_key(|(id, _)| *id);
        held
    }

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
                Some((_, known)) if *known == NumaState::Single => *known = state,
                Some(_) => {}
                None => self.states.push((*node, state)),
            }
        }
        for (id, amounts) in &allocation.zones {
            self.zone(*id).add_all(amounts);
        }
        if allocation.zones.is_empty() {
            // Bound while no NUMA policy was in force: the CPUs are gone all the same.
            for node in nodes {
                self.zone(node).add(CPU, milli(on(node)));
            }
        }
    }

    fn zone(&mut self, id: u8) -> &mut Amounts {
        let at = self.zones.iter().position(|(known, _)| *known == id);
        let at = at.unwrap_or_else(|| {
            self.zones.push((id, Amounts::new()));
            self.zones.len() - 1
        });
        &mut self.zones[at].1
    }

    /// What is held of NUMA node `id`, bound CPUs counted for what they would give amplified.
    pub(super) fn on_zone(&self, side: &NodeSide, id: u8) -> Amounts {
        let mut amounts = self
            .zones
            .iter()
            .find(|(known, _)| *known == id)
            .map(|(_, amounts)| amounts.clone())
            .unwrap_or_default();
        if side.ratio > 1.0 {
            let on = side.topology().on_node(id);
            let bound = milli(on.map_or(0, |all| all.intersection(&self.cpus).len()));
            if bound > 0 {
                amounts.add(CPU, amplify(bound, side.ratio) - bound);
            }
        }
        amounts
    }
}
