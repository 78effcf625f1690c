//! CPU topology and the selection of CPUs for a pod.

mod packed;
mod take;
#[cfg(test)]
mod tests;
mod topology;

pub use koord_cpuset::CpuSet;
pub use packed::packed;
pub use take::{
    BindPolicy, CpuRequest, CpuStrategy, ExclusivePolicy, NotEnough, Owned, take, usable,
};
pub use topology::{Cpu, Topology};
