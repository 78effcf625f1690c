//! Mid resources: what prod pods ask for but, by prediction, will not use.

use super::{Amount, NodeView, is_low, ratio, scale, scale_milli};
use koord_api::priority::PriorityClass;
use koord_api::quantity::Quantity;

/// Where mid resources come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MidMode {
    /// The predictor, and optionally a part of what is not allocated.
    #[default]
    Predicted,
    /// A fixed part of the capacity.
    Static {
        /// Percent of the CPU.
        cpu_percent: i64,
        /// Percent of the memory.
        memory_percent: i64,
    },
}

/// How mid resources are computed. Percents are whole percents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MidPolicy {
    /// Where they come from.
    pub mode: MidMode,
    /// Upper bound of mid CPU, percent of the capacity.
    pub cpu_limit_percent: i64,
    /// Upper bound of mid memory, percent of the capacity.
    pub memory_limit_percent: i64,
    /// How much of what nobody asked for is added, percent.
    pub unallocated_percent: i64,
}

impl Default for MidPolicy {
    fn default() -> Self {
        Self {
            mode: MidMode::Predicted,
            cpu_limit_percent: 100,
            memory_limit_percent: 100,
            unallocated_percent: 0,
        }
    }
}

/// Mid resources, and the arithmetic behind them for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mid {
    /// Cores; published as `mid-cpu` in milli-cores.
    pub cpu: Quantity,
    /// Bytes.
    pub memory: Quantity,
    /// One line for CPU.
    pub cpu_message: String,
    /// One line for memory.
    pub memory_message: String,
}

impl Mid {
    /// `mid-cpu`: milli-cores as a whole number.
    #[must_use]
    pub fn milli_cpu(&self) -> Quantity {
        Quantity::from_value(self.cpu.milli_value())
    }
}

/// What mid resources are made of.
pub(super) enum Parts {
    /// A fixed part of the capacity.
    Static { reserved: Amount },
    Predicted {
        /// What the report says of the node; nothing where it does not.
        unused: Amount,
        /// The smaller of what is reclaimable and unused, nothing at least.
        base: Amount,
        unallocated: Amount,
        /// What is added of it.
        share: Amount,
    },
}

/// A part of the capacity.
fn part(node: &NodeView, cpu_percent: i64, memory_percent: i64) -> Amount {
    Amount {
        cpu: scale_milli(node.capacity.cpu, ratio(cpu_percent)),
        memory: scale(node.capacity.memory, ratio(memory_percent)),
    }
}

/// The most that mid resources may be.
pub(super) fn limit(node: &NodeView, policy: &MidPolicy) -> Amount {
    part(node, policy.cpu_limit_percent, policy.memory_limit_percent)
}

pub(super) fn parts(node: &NodeView, policy: &MidPolicy) -> Parts {
    if let MidMode::Static {
        cpu_percent,
        memory_percent,
    } = policy.mode
    {
        return Parts::Static {
            reserved: part(node, cpu_percent, memory_percent),
        };
    }
    let unused = node
        .node_usage
        .map_or(Amount::ZERO, |usage| node.capacity - usage);
    // Only prod host applications count as system here.
    let system = node.system_usage + node.apps_above(PriorityClass::Mid.default_value());
    let held = system.max(node.reserved());
    let charged = |class| !is_low(class) && class != PriorityClass::Mid;
    let pods = node.pods.iter().filter(|pod| charged(pod.priority));
    let requested = pods.fold(Amount::ZERO, |sum, pod| sum + pod.request);
    let unallocated = (node.capacity - held - requested).clamp();
    Parts::Predicted {
        unused,
        base: node.prod_reclaimable.min(unused).clamp(),
        unallocated,
        share: Amount {
            cpu: scale_milli(unallocated.cpu, ratio(policy.unallocated_percent)),
            memory: scale(unallocated.memory, ratio(policy.unallocated_percent)),
        },
    }
}

/// Mid resources of a node.
#[must_use]
pub fn mid(node: &NodeView, policy: &MidPolicy) -> Mid {
    let limit = limit(node, policy);
    match parts(node, policy) {
        Parts::Static { reserved } => {
            let amount = reserved.min(limit);
            describe(amount, |quantity| {
                format!(
                    "min(staticReserved:{}, limit:{})",
                    quantity(reserved),
                    quantity(limit)
                )
            })
        }
        Parts::Predicted {
            unused,
            base,
            unallocated,
            share,
        } => {
            let amount = (base + share).min(limit);
            describe(amount, |quantity| {
                format!(
                    "min(prodReclaimable:{}, unused:{}) + unallocated:{} * {}%, limit:{}",
                    quantity(node.prod_reclaimable),
                    quantity(unused),
                    quantity(unallocated),
                    policy.unallocated_percent,
                    quantity(limit)
                )
            })
        }
    }
}

fn describe(amount: Amount, how: impl Fn(&dyn Fn(Amount) -> i64) -> String) -> Mid {
    let cpu = |amount: Amount| amount.cpu.milli_value();
    let memory = |amount: Amount| {
        let bytes = amount.memory.value();
        bytes.div_euclid(1_000_000_000) + i64::from(bytes.rem_euclid(1_000_000_000) > 0)
    };
    Mid {
        cpu: amount.cpu,
        memory: Quantity::from_value(amount.memory.value()).with_format(amount.memory.format()),
        cpu_message: format!(
            "midAllocatable[CPU(milli-core)]:{} = {}",
            cpu(amount),
            how(&cpu)
        ),
        memory_message: format!(
            "midAllocatable[Memory(GB)]:{} = {}",
            memory(amount),
            how(&memory)
        ),
    }
}
