//! Mid resources: amounts that prod pods request but, by prediction, will not use.

use super::{Amount, NodeView, is_low, ratio, scale, scale_milli};
use koord_api::priority::PriorityClass;
use koord_api::quantity::Quantity;

/// Source of mid resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MidMode {
    /// The predictor, and optionally a share of unallocated resources.
    #[default]
    Predicted,
    /// A fixed share of the capacity.
    Static {
        /// Percent of the CPU capacity.
        cpu_percent: i64,
        /// Percent of the memory capacity.
        memory_percent: i64,
    },
}

/// Policy of the computation of mid resources. Percents are whole percents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MidPolicy {
    /// Source of the resources.
    pub mode: MidMode,
    /// Upper bound of mid CPU, percent of the capacity.
    pub cpu_limit_percent: i64,
    /// Upper bound of mid memory, percent of the capacity.
    pub memory_limit_percent: i64,
    /// Share of unallocated resources that is added, percent.
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

/// Mid resources and descriptions of their computation for operators.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mid {
    /// CPU in cores; published as `mid-cpu` in milli-cores.
    pub cpu: Quantity,
    /// Memory in bytes.
    pub memory: Quantity,
    /// Description of the CPU computation.
    pub cpu_message: String,
    /// Description of the memory computation.
    pub memory_message: String,
}

impl Mid {
    /// Returns `mid-cpu`: milli-cores as a whole number.
    #[must_use]
    pub fn milli_cpu(&self) -> Quantity {
        Quantity::from_value(self.cpu.milli_value())
    }
}

/// Components of mid resources.
pub(super) enum MidComponents {
    /// A fixed share of the capacity.
    Static { reserved: Amount },
    Predicted {
        /// Unused capacity by the node's report; zero if the report lacks the usage.
        unused: Amount,
        /// The smaller of reclaimable and unused amounts, at least zero.
        base: Amount,
        unallocated: Amount,
        /// Part of `unallocated` that is added.
        share: Amount,
    },
}

/// Returns a share of the capacity.
fn part(node: &NodeView, cpu_percent: i64, memory_percent: i64) -> Amount {
    Amount {
        cpu: scale_milli(node.capacity.cpu, ratio(cpu_percent)),
        memory: scale(node.capacity.memory, ratio(memory_percent)),
    }
}

/// Returns the upper bound of mid resources.
pub(super) fn limit(node: &NodeView, policy: &MidPolicy) -> Amount {
    part(node, policy.cpu_limit_percent, policy.memory_limit_percent)
}

/// Computes the components of mid resources under `policy`.
pub(super) fn parts(node: &NodeView, policy: &MidPolicy) -> MidComponents {
    if let MidMode::Static {
        cpu_percent,
        memory_percent,
    } = policy.mode
    {
        return MidComponents::Static {
            reserved: part(node, cpu_percent, memory_percent),
        };
    }
    let unused = node
        .node_usage
        .map_or(Amount::ZERO, |usage| node.capacity - usage);
    // Only prod host applications count as system here.
    let system = node.system_usage + node.apps_above(PriorityClass::Mid.default_value());
    let system_or_reserved = system.max(node.reserved());
    let charged = |class| !is_low(class) && class != PriorityClass::Mid;
    let pods = node.pods.iter().filter(|pod| charged(pod.priority));
    let requested = pods.fold(Amount::ZERO, |sum, pod| sum + pod.request);
    let unallocated = (node.capacity - system_or_reserved - requested).clamp();
    MidComponents::Predicted {
        unused,
        base: node.prod_reclaimable.min(unused).clamp(),
        unallocated,
        share: Amount {
            cpu: scale_milli(unallocated.cpu, ratio(policy.unallocated_percent)),
            memory: scale(unallocated.memory, ratio(policy.unallocated_percent)),
        },
    }
}

/// Computes the mid resources of a node.
#[must_use]
pub fn mid(node: &NodeView, policy: &MidPolicy) -> Mid {
    let limit = limit(node, policy);
    match parts(node, policy) {
        MidComponents::Static { reserved } => {
            let amount = reserved.min(limit);
            describe(amount, |quantity| {
                format!(
                    "min(staticReserved:{}, limit:{})",
                    quantity(reserved),
                    quantity(limit)
                )
            })
        }
        MidComponents::Predicted {
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

/// Builds the result with its messages; `how` formats the computation with a unit conversion.
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
