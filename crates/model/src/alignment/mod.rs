//! Prediction of the NUMA alignment of a pod by a kubelet, from the free resources that an exporter reports.
//!
//! This is the scheduler's part of the community's topology-aware scheduling: a NodeResourceTopology
//! (v1alpha2) lists the free resources of each zone; the kubelet's topology manager chooses zones after
//! binding. [`check_single_zone`] predicts whether a kubelet with policy `single-numa-node` admits a pod,
//! [`strategy`] and [`least_zones_score`] score the alignment, and [`fingerprint`] identifies the pods that a
//! report includes.
//!
//! Source of rules and formulas: `kubernetes-sigs/scheduler-plugins`, plugin `NodeResourceTopologyMatch`.

mod config;
pub mod fingerprint;
mod least;
mod single;
mod strategy;
#[cfg(test)]
mod tests;

pub use config::{Config, Policy, Scope, UnknownName};
pub use least::least_zones_score;
pub use single::{AlignmentError, check_single_zone};
pub use strategy::{ZoneStrategy, strategy};

use crate::resources::{Amounts, CPU, MEMORY, ResourceId};

/// Maximum number of zones; further ones are ignored. Sets of NUMA nodes are 64-bit masks.
pub const MAX_ZONES: u32 = 64;
/// Distance of two zones without a reported cost: "unreachable" of the ACPI SLIT.
pub const UNKNOWN_COST: u32 = 255;
/// Best score.
pub const BEST: i64 = 100;

/// NUMA node of a NodeResourceTopology report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Zone {
    /// Number of the NUMA node, below [`MAX_ZONES`].
    pub id: u32,
    /// Available amounts, at least 0. A resource that is not listed is not bound to NUMA nodes.
    pub available: Amounts,
    /// Distances to other zones, as pairs of zone number and distance; at most [`UNKNOWN_COST`].
    pub costs: Vec<(u32, u32)>,
}

impl Zone {
    /// Returns the distance to `other` as in the ACPI SLIT (10 is local), [`UNKNOWN_COST`] if it is not
    /// reported.
    #[must_use]
    pub fn cost(&self, other: &Self) -> u32 {
        let entry = self.costs.iter().find(|(id, _)| *id == other.id);
        entry.map_or(UNKNOWN_COST, |(_, cost)| *cost)
    }
}

/// Relation of a resource to NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    /// CPU, memory and huge pages: always belong to NUMA nodes, and are allocated exclusively only to
    /// Guaranteed pods.
    Affine,
    /// Devices, extended resources and storage: may belong to the host as a whole.
    Host,
    /// Any other native resource of Kubernetes.
    Native,
}

impl ResourceKind {
    /// Returns the kind of the resource `name`. A name with a domain is native if the domain ends in
    /// `kubernetes.io`.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
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

/// Request for one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResourceDemand {
    /// The resource.
    pub id: ResourceId,
    /// Requested amount, in the resource's unit.
    pub amount: i64,
    /// Relation of the resource to NUMA nodes.
    pub kind: ResourceKind,
}

/// Role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// An init container that terminates before the next one starts.
    Init,
    /// A sidecar: an init container that keeps running (`restartPolicy: Always`).
    Sidecar,
    /// A main container.
    Main,
}

/// Resource requests of a pod and its containers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct AlignmentRequest {
    /// True if the pod's Kubernetes QoS class is Guaranteed.
    pub guaranteed: bool,
    /// Requests of the pod as a whole, overhead included.
    pub whole: Vec<ResourceDemand>,
    /// Requests of each container in the kubelet's order of admission: init containers first.
    pub containers: Vec<(Role, Vec<ResourceDemand>)>,
}

/// Unallocated resources of a node's zones during the admission of a pod.
#[derive(Debug, Clone)]
pub struct FreeZones<'a> {
    /// Zones in ascending order of their numbers, without duplicates.
    zones: &'a [Zone],
    /// Amounts allocated from an unknown zone; subtracted from every zone.
    held: &'a Amounts,
    /// Amounts allocated from each zone so far; empty before the first allocation.
    taken: Vec<Amounts>,
}

impl<'a> FreeZones<'a> {
    /// Creates the view of `zones`, which must be in ascending order of their numbers, without duplicates.
    /// `held` is subtracted from every zone.
    #[must_use]
    pub fn new(zones: &'a [Zone], held: &'a Amounts) -> Self {
        Self {
            zones,
            held,
            taken: Vec::new(),
        }
    }

    /// Returns the number of zones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.zones.len()
    }

    /// Returns true if there is no zone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.zones.is_empty()
    }

    /// Returns the free amount of resource `id` in the zone at index `at`; `None` if the zone does not list
    /// the resource.
    #[must_use]
    pub fn get(&self, at: usize, id: ResourceId) -> Option<i64> {
        let zone = self.zones.get(at)?;
        if !zone.available.contains(id) {
            return None;
        }
        let free = zone.available.get(id).saturating_sub(self.held.get(id));
        let allocated = self.taken.get(at).map_or(0, |allocated| allocated.get(id));
        Some(free.max(0).saturating_sub(allocated).max(0))
    }

    /// Returns true if any zone lists resource `id`.
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

/// Returns true if `free_amount` suffices for `demand`. CPU and memory are only checked for Guaranteed
/// pods, which alone get exclusive ones.
fn suits(guaranteed: bool, demand: &ResourceDemand, free_amount: i64) -> bool {
    (!guaranteed && demand.kind == ResourceKind::Affine) || free_amount >= demand.amount
}

/// Converts an amount to whole units: cores (rounded up), bytes, devices.
fn units(id: ResourceId, amount: i64) -> i64 {
    if id == CPU {
        amount / 1000 + i64::from(amount % 1000 > 0)
    } else {
        amount
    }
}

/// Returns true if a container of a Guaranteed pod with these `demands` gets exclusive whole cores, memory or
/// huge pages. Devices, which are exclusive as well, are not considered.
#[must_use]
pub fn has_own(demands: &[ResourceDemand]) -> bool {
    demands.iter().any(|demand| match demand.id {
        CPU => demand.amount > 0 && demand.amount % 1000 == 0,
        _ => demand.kind == ResourceKind::Affine && demand.amount > 0,
    })
}

/// Returns true for CPU and memory, which every node has.
fn is_everywhere(id: ResourceId) -> bool {
    [CPU, MEMORY].contains(&id)
}
