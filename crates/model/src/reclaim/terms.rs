//! Batch resources as a sum, for people: where the number comes from, term by term.

use super::batch::{Batch, BatchPolicy, CpuPolicy, MemoryPolicy, Services};
use super::{Amount, PodView, is_low};
use koord_api::quantity::Quantity;

/// A part of a [`Sum`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// What it is.
    pub what: &'static str,
    /// Cores or bytes; negative where it is taken off.
    pub amount: Quantity,
    /// The setting that chose it, and its value.
    pub why: String,
}

/// A number and what it is made of: the terms add up to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// Cores or bytes.
    pub total: Quantity,
    /// In the order they are applied.
    pub terms: Vec<Term>,
}

/// How one of the two resources is computed.
struct Rule<'a> {
    get: fn(Amount) -> Quantity,
    percent: (&'a str, i64),
    policy: (&'a str, &'a str),
    limit: (&'a str, Option<i64>),
    charged: Quantity,
    /// Whether the system's use counts, or only what is reserved.
    by_request: bool,
}

/// What `batch` is made of: CPU, then memory.
#[must_use]
pub fn sums(batch: &Batch, policy: &BatchPolicy) -> [Sum; 2] {
    let cpu = Rule {
        get: |amount| amount.cpu,
        percent: ("cpuReclaimThresholdPercent", policy.cpu_reclaim_percent),
        policy: (
            "cpuCalculatePolicy",
            match policy.cpu {
                CpuPolicy::Usage => "usage",
                CpuPolicy::MaxUsageRequest => "maxUsageRequest",
            },
        ),
        limit: ("batchCPUThresholdPercent", policy.cpu_limit_percent),
        charged: batch.services.cpu(policy.cpu),
        by_request: false,
    };
    let memory = Rule {
        get: |amount| amount.memory,
        percent: (
            "memoryReclaimThresholdPercent",
            policy.memory_reclaim_percent,
        ),
        policy: (
            "memoryCalculatePolicy",
            match policy.memory {
                MemoryPolicy::Usage => "usage",
                MemoryPolicy::Request => "request",
                MemoryPolicy::MaxUsageRequest => "maxUsageRequest",
            },
        ),
        limit: ("batchMemoryThresholdPercent", policy.memory_limit_percent),
        charged: batch.services.memory(policy.memory),
        by_request: policy.memory == MemoryPolicy::Request,
    };
    [
        sum(batch, batch.cpu, &cpu),
        sum(batch, batch.memory, &memory),
    ]
}

fn sum(batch: &Batch, total: Quantity, rule: &Rule<'_>) -> Sum {
    let of = |amount: Amount| (rule.get)(amount);
    let minus = |quantity: Quantity| Quantity::ZERO.with_format(quantity.format()) - quantity;
    let (name, percent) = rule.percent;
    let (system, reserved) = (of(batch.system), of(batch.reserved));
    let (what, held, why) = if rule.by_request {
        let why = "the larger of the node's reservation and the kubelet's".to_owned();
        ("reserved", reserved, why)
    } else if system >= reserved {
        (
            "system use",
            system,
            format!("more than is reserved ({reserved})"),
        )
    } else {
        (
            "reserved",
            reserved,
            format!("more than the system uses ({system})"),
        )
    };
    let mut terms = vec![
        Term {
            what: "capacity",
            amount: of(batch.capacity),
            why: "of the node".to_owned(),
        },
        Term {
            what: "safety margin",
            amount: minus(of(batch.safety)),
            why: format!("all but {percent} % of the capacity: {name}"),
        },
        Term {
            what,
            amount: minus(held),
            why,
        },
        Term {
            what: "services",
            amount: minus(rule.charged),
            why: format!("{}: {}", rule.policy.0, rule.policy.1),
        },
    ];
    let left = terms
        .iter()
        .fold(Quantity::ZERO, |sum, term| sum + term.amount);
    if left != total {
        let (what, why) = match rule.limit {
            _ if left.signum() < 0 => ("missing", "there is never less than nothing".to_owned()),
            (name, Some(percent)) if total < of(batch.capacity) => {
                ("limit", format!("{percent} % of the capacity: {name}"))
            }
            _ => ("limit", "never more than the node has".to_owned()),
        };
        terms.push(Term {
            what,
            amount: total - left,
            why,
        });
    }
    Sum { total, terms }
}

/// What a service is charged for; nothing for batch and free pods.
#[must_use]
pub fn charged(pod: &PodView, policy: &BatchPolicy) -> Amount {
    let mut services = Services::default();
    if !is_low(pod.priority) {
        services.charge(pod, policy.charge_unmeasured);
    }
    Amount::new(services.cpu(policy.cpu), services.memory(policy.memory))
}
