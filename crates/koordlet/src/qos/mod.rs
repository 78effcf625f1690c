//! QoS strategies: each turns what was measured into intended writes or evictions.
//!
//! The list of strategies, their gates and intervals is data ([`STRATEGIES`]); it is printed at
//! start. Strategies never touch the kernel.

pub mod batch_resource;
pub mod cpu_suppress;
pub mod memory_evict;

use crate::executor::Claim;
use crate::gates::Gate;

/// One strategy as the agent runs it.
#[derive(Debug, Clone, Copy)]
pub struct Strategy {
    /// Its name in logs and audit records.
    pub name: &'static str,
    /// The gate that switches it on.
    pub gate: Gate,
    /// What it writes.
    pub claims: &'static [Claim],
}

/// Every strategy, in the order in which they run in a tick.
pub const STRATEGIES: [Strategy; 3] = [
    Strategy {
        name: batch_resource::NAME,
        gate: Gate::BatchResource,
        claims: batch_resource::CLAIMS,
    },
    Strategy {
        name: cpu_suppress::NAME,
        gate: Gate::BECPUSuppress,
        claims: cpu_suppress::CLAIMS,
    },
    Strategy {
        name: memory_evict::NAME,
        gate: Gate::BEMemoryEvict,
        claims: &[],
    },
];
