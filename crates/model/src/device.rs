//! Devices: what pods ask for and which devices they get.
//!
//! A node's devices come from its Device object ([`Inventory`]), what pods hold of them is kept in
//! [`Books`], and [`allocate`] picks devices for a [`Need`]. A device is known by its type and its
//! minor number; minors are below 64 so that sets of them are one word.

mod allocate;
mod books;
mod gpu;
mod hints;
mod inventory;
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
pub use books::{Books, Holding, Used};
pub use hints::numa_hints;
pub use inventory::{Device, Inventory};
pub use need::{GpuNeed, Need, NeedError, Strategy, TypeHint};
pub use partition::{Partition, PartitionTable};
pub use request::{RequestError, convert};
pub use score::Scorer;
pub use units::{DeviceResource, DeviceType, PerMinor, Units, bit, minors};

/// Which of upstream's oddities are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quirks {
    /// GPU partitions with the lowest allocation score are tried first.
    pub worst_partition_first: bool,
    /// Shared GPUs within a topology scope are scored by their free share against their total, as
    /// if nothing were taken from them, instead of the other way round.
    pub straight_shared_score: bool,
}
