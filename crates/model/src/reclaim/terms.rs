//! Batch and mid resources as sums of named terms, for explanations to users.

use super::batch::{Batch, BatchPolicy, CpuPolicy, MemoryPolicy, Services};
use super::mid::{self, MidComponents, MidMode, MidPolicy};
use super::{Amount, NodeView, PodView, is_low};
use koord_api::annotations;
use koord_api::quantity::Quantity;

/// Setting that determines a term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TermSetting {
    /// Field of the strategy, as named in `colocation-config`.
    pub name: &'static str,
    /// Value of the setting.
    pub value: String,
}

/// One term of a [`Sum`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Name of the term.
    pub what: &'static str,
    /// Amount in cores or bytes; negative if it is subtracted.
    pub amount: Quantity,
    /// True if the term is subtracted, so that zero has a sign, too.
    pub taken: bool,
    /// Reason for the amount.
    pub why: String,
    /// Setting that determines the term; `None` if none does.
    pub setting: Option<TermSetting>,
}

impl Term {
    fn added(what: &'static str, amount: Quantity, why: impl Into<String>) -> Self {
        Self {
            what,
            amount,
            taken: false,
            why: why.into(),
            setting: None,
        }
    }

    /// Creates a term that subtracts `amount`.
    #[must_use]
    pub fn taken(what: &'static str, amount: Quantity, why: impl Into<String>) -> Self {
        Self {
            taken: true,
            ..Self::added(what, negative(amount), why)
        }
    }

    fn by(self, name: &'static str, value: impl ToString) -> Self {
        Self {
            setting: Some(TermSetting {
                name,
                value: value.to_string(),
            }),
            ..self
        }
    }
}

/// A number and its terms, which add up to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// Total in cores or bytes.
    pub total: Quantity,
    /// Terms in the order in which they are applied.
    pub terms: Vec<Term>,
}

impl Sum {
    fn new(terms: Vec<Term>) -> Self {
        let amounts = terms.iter().map(|term| term.amount);
        Self {
            total: amounts.fold(Quantity::ZERO, |sum, amount| sum + amount),
            terms,
        }
    }

    /// Adds a term.
    pub fn push(&mut self, term: Term) {
        self.total += term.amount;
        self.terms.push(term);
    }

    /// Adds a term for the difference between `total` and the current sum, if there is one.
    pub fn reach(&mut self, total: Quantity, what: &'static str, why: &str) {
        if total != self.total {
            let missing = total - self.total;
            self.push(Term {
                taken: missing.signum() < 0,
                ..Term::added(what, missing, why)
            });
        }
    }

    /// Limits the sum to `limit`, a share of the capacity given by a setting.
    fn at_most(&mut self, limit: Quantity, name: &'static str, percent: i64) {
        if self.total > limit {
            let why = format!("{percent} % of the capacity");
            self.push(Term::taken("limit", self.total - limit, why).by(name, percent));
        }
    }

    fn at_least_nothing(&mut self) {
        if self.total.signum() < 0 {
            let nothing = Quantity::ZERO.with_format(self.total.format());
            self.reach(nothing, "missing", "there is never less than nothing");
        }
    }
}

fn negative(quantity: Quantity) -> Quantity {
    Quantity::ZERO.with_format(quantity.format()) - quantity
}

/// Formats CPU for display, in milli-cores: `1500m`.
#[must_use]
pub fn millicores(cores: Quantity) -> String {
    format!("{}m", cores.milli_value())
}

/// Formats memory for display like kubectl, in whole MiB, rounded down: `512Mi`.
#[must_use]
pub fn mebibytes(bytes: Quantity) -> String {
    match bytes.value() {
        0 => "0".to_owned(),
        bytes => format!("{}Mi", bytes.div_euclid(1 << 20)),
    }
}

/// Description of the computation of one resource.
struct ResourceRule<'a> {
    get: fn(Amount) -> Quantity,
    show: fn(Quantity) -> String,
    percent: (&'static str, i64),
    policy: (&'static str, &'a str),
    limit: (&'static str, Option<i64>),
    charged: Quantity,
    /// True if only the reservation counts, not the usage of the system.
    by_request: bool,
}

/// Returns how the batch resources of a node are computed, for display: batch CPU, then batch memory, each as
/// a total with its named terms.
#[must_use]
pub fn sums(batch: &Batch, policy: &BatchPolicy) -> [Sum; 2] {
    let cpu = ResourceRule {
        get: |amount| amount.cpu,
        show: millicores,
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
    let memory = ResourceRule {
        get: |amount| amount.memory,
        show: mebibytes,
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

/// Splits `total`, the computed amount of one batch resource, into named terms: the node's capacity, less the
/// safety margin, the system's share and the services. `rule` selects the amounts and names the settings.
fn sum(batch: &Batch, total: Quantity, rule: &ResourceRule<'_>) -> Sum {
    let pick = |amount: Amount| (rule.get)(amount);
    let (name, percent) = rule.percent;
    let capacity = pick(batch.capacity);
    let mut sum = Sum::new(vec![
        Term::added("capacity", capacity, "of the node"),
        Term::taken(
            "safety margin",
            pick(batch.safety),
            format!("all but {percent} % of the capacity"),
        )
        .by(name, percent),
    ]);
    for term in system_terms(batch, rule) {
        sum.push(term);
    }
    let (name, policy) = rule.policy;
    let why = match policy {
        "request" => "what they ask for",
        "maxUsageRequest" => "the larger of what each uses and asks for",
        _ => "what they use",
    };
    sum.push(Term::taken("services", rule.charged, why).by(name, policy));
    sum.at_least_nothing();
    if let (name, Some(percent)) = rule.limit
        && total < capacity
    {
        sum.at_most(total, name, percent);
    }
    sum.reach(total, "limit", "never more than there is");
    sum
}

/// Returns the terms for the usage of the system or its reservation, whichever counts.
fn system_terms(batch: &Batch, rule: &ResourceRule<'_>) -> Vec<Term> {
    let pick = |amount: Amount| (rule.get)(amount);
    let demand = &batch.held;
    let (used, reserved) = (pick(demand.used()), pick(demand.reserved()));
    if !rule.by_request && used >= reserved {
        let reserved = (rule.show)(reserved);
        let why = format!("outside pods; no less than is reserved ({reserved})");
        let apps = pick(demand.apps);
        let apps = (apps.signum() != 0)
            .then(|| Term::taken("host apps", apps, "services outside Kubernetes, no batch"));
        return std::iter::once(Term::taken("system use", pick(demand.system), why))
            .chain(apps)
            .collect();
    }
    let source = if reserved.signum() == 0 {
        "nothing is".to_owned()
    } else if pick(demand.by_annotation) >= pick(demand.by_kubelet) {
        format!("by annotation {}", annotations::NODE_RESERVATION)
    } else {
        "by the kubelet: capacity less allocatable".to_owned()
    };
    let why = if rule.by_request {
        format!("{source}; what the system uses does not count")
    } else {
        let used = (rule.show)(used);
        format!("{source}; more than the system uses ({used})")
    };
    let term = Term::taken("reserved", reserved, why);
    let (name, policy) = rule.policy;
    vec![if rule.by_request {
        term.by(name, policy)
    } else {
        term
    }]
}

/// Returns the sums of mid resources: CPU, then memory.
#[must_use]
pub fn mid_sums(node: &NodeView, policy: &MidPolicy) -> [Sum; 2] {
    let static_percents = match policy.mode {
        MidMode::Static {
            cpu_percent,
            memory_percent,
        } => (cpu_percent, memory_percent),
        MidMode::Predicted => (0, 0),
    };
    let parts = mid::parts(node, policy);
    let limit = mid::limit(node, policy);
    type Parted = (fn(Amount) -> Quantity, fn(Quantity) -> String);
    let sum = |(get, show): Parted, fixed: (&'static str, i64), most| {
        let mut sum = match &parts {
            MidComponents::Static { reserved } => {
                let why = format!("{} % of the capacity; midReclaimMode is static", fixed.1);
                Sum::new(vec![
                    Term::added("share", get(*reserved), why).by(fixed.0, fixed.1),
                ])
            }
            MidComponents::Predicted {
                unused,
                base,
                unallocated,
                share,
            } => {
                let why = "what prod pods ask for and, by prediction, will not use";
                let reclaimable = get(node.prod_reclaimable);
                let mut sum = Sum::new(vec![Term::added("reclaimable", reclaimable, why)]);
                let why = match node.node_usage {
                    Some(_) => {
                        let unused = show(get(*unused));
                        format!("no more than the node leaves unused ({unused})")
                    }
                    None => "the report does not say what the node uses".to_owned(),
                };
                sum.reach(get(*base), "in use", &why);
                let percent = policy.unallocated_percent;
                let why = format!(
                    "{percent} % of what prod did not ask for ({})",
                    show(get(*unallocated))
                );
                let term = Term::added("unallocated", get(*share), why);
                sum.push(term.by("midUnallocatedPercent", percent));
                sum
            }
        };
        let (name, percent) = most;
        sum.at_most(get(limit), name, percent);
        sum
    };
    [
        sum(
            (|amount| amount.cpu, millicores),
            ("midStaticCPUReservedPercent", static_percents.0),
            ("midCPUThresholdPercent", policy.cpu_limit_percent),
        ),
        sum(
            (|amount| amount.memory, mebibytes),
            ("midStaticMemoryReservedPercent", static_percents.1),
            ("midMemoryThresholdPercent", policy.memory_limit_percent),
        ),
    ]
}

/// Returns the amount that a service is charged; zero for batch and free pods.
#[must_use]
pub fn charged(pod: &PodView, policy: &BatchPolicy) -> Amount {
    let mut services = Services::default();
    if !is_low(pod.priority) {
        services.charge(pod, policy.charge_unmeasured);
    }
    Amount::new(services.cpu(policy.cpu), services.memory(policy.memory))
}
