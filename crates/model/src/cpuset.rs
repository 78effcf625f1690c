//! CPU topology and the selection of CPUs for a pod.

mod packed;
mod take;
#[cfg(test)]
mod tests;
mod topology;

pub use koord_cpuset::CpuSet;
pub use packed::packed;
pub use take::{BindPolicy, ExclusivePolicy, NotEnough, Owned, Strategy, Want, take, usable};
pub use topology::{Cpu, Topology};
