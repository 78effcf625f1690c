//! Which NUMA nodes a kubelet will align a pod to, predicted from what an exporter says is free.
//!
//! The community's half of topology-aware scheduling: a NodeResourceTopology (v1alpha2) lists what is
//! free in each zone, the kubelet's topology manager chooses, after the binding. [`single`] tells whether
//! a kubelet with policy `single-numa-node` would admit a pod, [`strategy`] and [`least`] how well it
//! would lie, [`fingerprint`] which pods a report has counted.
//!
//! Source of rules and formulas: `kubernetes-sigs/scheduler-plugins`, plugin
//! `NodeResourceTopologyMatch`.

mod config;
pub mod fingerprint;
mod least;
mod single;
mod strategy;
#[cfg(test)]
mod tests;

pub use config::{Config, Policy, Scope, UnknownName};
pub use least::least;
pub use single::{Unfit, single};
pub use strategy::{Strategy, strategy};

use crate::resources::{Amounts, CPU, MEMORY, ResourceId};

/// Zones beyond these are not looked at: sets of NUMA nodes are 64 bits everywhere.
pub const MAX_ZONES: u32 = 64;
/// The distance of two zones whose cost nobody told: "unreachable" of the ACPI SLIT.
pub const UNKNOWN_COST: u32 = 255;
/// The best score.
pub const BEST: i64 = 100;

/// A NUMA node of a report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Zone {
    /// Its number, below [`MAX_ZONES`].
    pub id: u32,
    /// What is not used yet, not below 0; what is not listed does not lie in NUMA nodes.
    pub available: Amounts,
    /// Distance to other zones, by number; at most [`UNKNOWN_COST`].
    pub costs: Vec<(u32, u32)>,
}

impl Zone {
    /// Distance to `other`, as in the ACPI SLIT (10 is local).
    #[must_use]
    pub fn cost(&self, other: &Self) -> u32 {
        let found = self.costs.iter().find(|(id, _)| *id == other.id);
        found.map_or(UNKNOWN_COST, |(_, cost)| *cost)
    }
}

/// How a resource can lie in NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// CPU, memory and huge pages: always in NUMA nodes, and handed out exclusively to Guaranteed pods
    /// only.
    Affine,
    /// Devices, extended resources and storage: perhaps on the host as a whole.
    Host,
    /// Any other resource of Kubernetes.
    Native,
}

impl Kind {
    /// The kind of the resource `name`. A name with a domain is Kubernetes' own if the domain ends in
    /// `kubernetes.io`.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let native = !name.contains('/') || name.contains("kubernetes.io/");
        if matches!(name, "cpu" | "memory") || name.starts_with("hugepages-") {
            Self::Affine
        } else if !native || matches!(name, "ephemeral-storage" | "storage") {
            Self::Host
        } else {
            Self::Native
        }
    }
}

/// One requested resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Want {
    /// Which.
    pub id: ResourceId,
    /// How much, in the resource's unit.
    pub amount: i64,
    /// How it can lie.
    pub kind: Kind,
}

/// What a container is to the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// An init container that ends before the next one starts.
    Init,
    /// An init container that stays (`restartPolicy: Always`).
    Sidecar,
    /// A main container.
    Main,
}

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Ask {
    /// Whether its Kubernetes QoS class is Guaranteed.
    pub guaranteed: bool,
    /// What it needs as a whole, overhead included.
    pub whole: Vec<Want>,
    /// What each container needs, in the order in which the kubelet asks: init containers first.
    pub containers: Vec<(Role, Vec<Want>)>,
}

/// The zones of a node as a pod would find them.
#[derive(Debug, Clone)]
pub struct Free<'a> {
    /// By number, ascending, without repeats.
    zones: &'a [Zone],
    /// Taken, nobody knows from which zone: missing in all of them.
    held: &'a Amounts,
    /// Taken from each zone meanwhile; empty before the first.
    taken: Vec<Amounts>,
}

impl<'a> Free<'a> {
    /// The zones, by number, ascending, without repeats; `held` is missing in all of them.
    #[must_use]
    pub fn new(zones: &'a [Zone], held: &'a Amounts) -> Self {
        Self {
            zones,
            held,
            taken: Vec::new(),
        }
    }

    /// How many zones there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.zones.len()
    }

    /// Whether there is no zone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.zones.is_empty()
    }

    /// What is free of `id` in the zone at `at`; `None` where the zone does not list it.
    #[must_use]
    pub fn get(&self, at: usize, id: ResourceId) -> Option<i64> {
        let zone = self.zones.get(at)?;
        if !zone.available.contains(id) {
            return None;
        }
        let left = zone.available.get(id).saturating_sub(self.held.get(id));
        let taken = self.taken.get(at).map_or(0, |taken| taken.get(id));
        Some(left.max(0).saturating_sub(taken).max(0))
    }

    /// Whether any zone lists `id`.
    #[must_use]
    pub fn lists(&self, id: ResourceId) -> bool {
        self.zones.iter().any(|zone| zone.available.contains(id))
    }

    fn take(&mut self, at: usize, id: ResourceId, amount: i64) {
        if self.taken.is_empty() {
            self.taken.resize_with(self.zones.len(), Amounts::new);
        }
        self.taken[at].add(id, amount);
    }
}

/// Whether `have` is enough of `want`: only Guaranteed pods are given CPU and memory of their own.
fn suits(guaranteed: bool, want: &Want, have: i64) -> bool {
    (!guaranteed && want.kind == Kind::Affine) || have >= want.amount
}

/// An amount in whole units: cores, bytes, devices; what is left of a core counts as one.
fn units(id: ResourceId, amount: i64) -> i64 {
    if id == CPU {
        amount / 1000 + i64::from(amount % 1000 > 0)
    } else {
        amount
    }
}

/// Whether `wants` of a Guaranteed pod's container give it whole cores, memory or huge pages for itself
/// alone. Devices, which are nobody else's either, are not looked at.
#[must_use]
pub fn has_own(wants: &[Want]) -> bool {
    wants.iter().any(|want| match want.id {
        CPU => want.amount > 0 && want.amount % 1000 == 0,
        _ => want.kind == Kind::Affine && want.amount > 0,
    })
}

/// Whether `id` is CPU or memory, which every node has.
fn is_everywhere(id: ResourceId) -> bool {
    [CPU, MEMORY].contains(&id)
}
