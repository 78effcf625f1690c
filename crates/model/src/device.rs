//! Device scheduling: the devices that pods request and the selection of devices.
//!
//! The devices of a node come from its Device object ([`Inventory`]), the allocations of pods are kept in
//! [`DeviceLedger`], and [`allocate`] selects devices for a [`Need`]. A device is identified by its type and its
//! minor number; minors are below 64, so that a set of them is one word.

mod allocate;
mod gpu;
mod hints;
mod inventory;
mod ledger;
mod need;
mod partition;
mod request;
mod score;
#[cfg(test)]
mod tests;
mod topology;
mod units;

pub use allocate::{
    Allocation, Grant, Refusal, Rules, Site, VirtualFunction, allocate, score_node, supply,
};
pub use hints::numa_hints;
pub use inventory::{Device, Inventory};
pub use ledger::{DeviceHolding, DeviceLedger, Used};
pub use need::{CountStrategy, GpuNeed, Need, NeedError, TypeHint};
pub use partition::{Partition, PartitionTable};
pub use request::{RequestError, convert};
pub use score::Scorer;
pub use units::{DeviceResource, DeviceType, PerMinor, Units, bit, minors};

/// Upstream quirks to reproduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quirks {
    /// GPU partitions with the lowest allocation score are tried first.
    pub worst_partition_first: bool,
    /// Shared GPUs within a topology scope are scored by their total and free amounts in this order, as if
    /// nothing were allocated from them, instead of the other way round.
    pub straight_shared_score: bool,
}
