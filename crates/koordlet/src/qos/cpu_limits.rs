//! CPULimits: the only writer of the CFS quotas and burst buffers of pods and containers.
//!
//! Contributions are combined in this order: the limit (native or batch), whether quotas are lifted
//! (exclusive CPUs; batch pods under a quota of their class), the node's CPU normalization, the burst
//! strategy. The arithmetic is in [`koord_model::cpu_limit`].
//!
//! A service's quota is left to the kubelet until one of these changes it; once none does any more, the limit
//! is restored once.

use crate::claims::{Claim, Classes, Level};
use crate::gates::Gate;
use crate::metrics::{self, Burst, Metrics};
use crate::qos::reconcile::{Reconcile, ReconcileReason};
use crate::qos::{Facts, Plan, Planner, PodView, StrategySpec, View, Write};
use crate::states::{ContainerInfo, PodInfo};
use koord_api::qos::{KubeQos, QosClass};
use koord_host::{CgroupPath, Resource, TargetKind};
use koord_model::cpu_limit::{self, Container, Limits, Source};
use koord_model::suppress::UNLIMITED;
use rustc_hash::{FxHashMap, FxHashSet};

/// The strategy's name.
pub const NAME: &str = "CPULimits";

/// Claims of the strategy.
pub const CLAIMS: &[Claim] = &[
    claim(Level::Pod, Resource::CfsQuota),
    claim(Level::Pod, Resource::CfsBurst),
    claim(Level::Container, Resource::CfsQuota),
    claim(Level::Container, Resource::CfsBurst),
];

const fn claim(level: Level, file: Resource) -> Claim {
    Claim {
        file: TargetKind::Cgroup(file),
        level,
        classes: Classes::ALL,
    }
}

/// The row of the table of strategies. It runs while any strategy runs that contributes to it.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[
        Gate::BatchResource,
        Gate::CPUBurst,
        Gate::CPUNormalization,
        Gate::CPUSetAllocator,
    ],
    every: |settings| settings.interval_ms,
    claims: CLAIMS,
    make: |_, metrics| Box::new(CpuLimits::new(metrics.clone())),
};

/// Rule for the quotas of a pod, before the burst strategy.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    /// The quotas are left to the kubelet.
    Leave,
    /// Quotas are lifted: the pod has exclusive CPUs, or its class is limited as a whole.
    Lifted,
    /// Quotas follow the limits, divided by the node's ratio.
    Limits(Source, Option<f64>),
}

/// Last plan of a pod. If nothing changed, the pod is planned again only in the next reconcile.
#[derive(Debug)]
struct LastPlan {
    rule: Rule,
    /// Burst allowances, by container number.
    bursts: Vec<(u64, super::BurstAllowance)>,
    /// Resulting quotas and buffers of its containers.
    applied: Vec<Burst>,
}

/// State of the strategy.
#[derive(Debug)]
struct CpuLimits {
    /// Pods whose quotas differ from the kubelet's, by pod number.
    plans: FxHashMap<u64, LastPlan>,
    /// Services that were checked for leftovers of an earlier run.
    checked: FxHashSet<u64>,
    reconcile: Reconcile,
    metrics: Metrics,
}

impl CpuLimits {
    fn new(metrics: Metrics) -> Self {
        Self {
            plans: FxHashMap::default(),
            checked: FxHashSet::default(),
            reconcile: Reconcile::default(),
            metrics,
        }
    }
}

/// Returns whether the burst strategy applies to the pod.
#[must_use]
pub fn may_burst(pod: &PodInfo) -> bool {
    pod.is_active()
        && matches!(pod.qos, QosClass::Ls | QosClass::System | QosClass::None)
        && pod.cpus.is_none()
        && pod.kube_qos != KubeQos::BestEffort
}

/// Returns the node's normalization ratio; `None` if it does not apply to the pod.
fn ratio(pod: &PodInfo, facts: &Facts<'_>) -> Option<f64> {
    let gates = &facts.settings.gates;
    let scaled = match pod.qos {
        // Batch pods follow the node's ratio regardless of the gate, as upstream's BatchResource does.
        QosClass::Be => true,
        QosClass::Ls | QosClass::None => gates.is_on(Gate::CPUNormalization) && pod.cpus.is_none(),
        _ => false,
    };
    let ratio = facts.node?.normalization_ratio?;
    scaled.then_some(ratio)
}

/// Returns the quota of a container's native limit under the node's normalization, in microseconds per
/// period; -1 without a limit.
#[must_use]
pub fn base(pod: &PodInfo, container: &ContainerInfo, facts: &Facts<'_>) -> i64 {
    let quota = cpu_limit::quota_of(container.native.cpu_limit);
    cpu_limit::normalized(quota, ratio(pod, facts))
}

/// Returns the rule for the CPU quota of a pod.
fn rule(pod: &PodInfo, facts: &Facts<'_>, batch_lifted: bool) -> Rule {
    let gates = &facts.settings.gates;
    match pod.qos {
        QosClass::Be => {
            let batch = pod.containers.iter().any(|c| c.batch.is_some());
            if !gates.is_on(Gate::BatchResource) || !batch {
                Rule::Leave
            } else if batch_lifted {
                Rule::Lifted
            } else {
                Rule::Limits(Source::Batch, ratio(pod, facts))
            }
        }
        _ if pod.cpus.is_some() => {
            let lifts = gates.is_on(Gate::CPUSetAllocator) && facts.settings.unset_cpu_quota;
            if lifts && pod.is_bound_by_its_cpus() {
                Rule::Lifted
            } else {
                Rule::Leave
            }
        }
        _ => match ratio(pod, facts) {
            Some(ratio) => Rule::Limits(Source::Native, Some(ratio)),
            None => Rule::Leave,
        },
    }
}

impl Planner for CpuLimits {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let every = view.facts.settings.reconcile_interval_ms;
        let round = self.reconcile.due(view, every);
        plan.verify(round == Some(ReconcileReason::Periodic));
        let due = round.is_some();
        if due {
            let current_ids: FxHashSet<u64> = view.pods().map(|pod| pod.id).collect();
            self.plans.retain(|id, _| current_ids.contains(id));
            self.checked.retain(|id| current_ids.contains(id));
        }
        let mut changed = due;
        for pod in view.pods().filter(|pod| pod.info.is_active()) {
            let rule = rule(pod.info, &view.facts, plan.batch_quotas_lifted);
            let burst = |(_, id)| plan.bursts.get(&id).map(|burst| (id, *burst));
            let bursts = || super::cpu_burst::running(pod).filter_map(burst);
            let was = self.plans.get(&pod.id);
            if rule == Rule::Leave && bursts().next().is_none() {
                let mut lifted = false;
                if let Some(was) = self.plans.remove(&pod.id) {
                    // Restored once; then it is left to the kubelet again.
                    lifted = was.rule == Rule::Lifted;
                    changed = true;
                } else if !may_burst(pod.info) || !self.checked.insert(pod.id) || !raised(view, pod)
                {
                    continue;
                }
                limits(view, pod, Source::Native, None, lifted, plan);
                continue;
            }
            let lifted = was.is_some_and(|was| was.rule == Rule::Lifted);
            let is_unchanged =
                was.is_some_and(|was| was.rule == rule && was.bursts.iter().copied().eq(bursts()));
            if is_unchanged && !due {
                continue;
            }
            changed = true;
            let bursts = bursts().collect();
            let applied = match rule {
                Rule::Lifted => {
                    lift(pod.info, plan);
                    Vec::new()
                }
                Rule::Leave => limits(view, pod, Source::Native, None, lifted, plan),
                Rule::Limits(source, ratio) => limits(view, pod, source, ratio, lifted, plan),
            };
            let last_plan = LastPlan {
                rule,
                bursts,
                applied,
            };
            self.plans.insert(pod.id, last_plan);
        }
        if changed {
            let applied = self.plans.values().flat_map(|plan| plan.applied.iter());
            self.metrics.bursts(applied.cloned().collect());
        }
    }
}

/// Returns whether an earlier run left a raised quota or a burst buffer.
fn raised(view: &View<'_>, pod: &PodView<'_>) -> bool {
    super::cpu_burst::running(pod).any(|(container, _)| {
        let Some(group) = &container.cgroup else {
            return false;
        };
        let base = base(pod.info, container, &view.facts);
        let read = |file| view.kernel.number(group, file);
        base > 0
            && (read(Resource::CfsQuota).is_some_and(|quota| quota > base)
                || read(Resource::CfsBurst).is_some_and(|burst| burst > 0))
    })
}

/// Removes the quotas of a pod. The executor orders the writes.
fn lift(pod: &PodInfo, plan: &mut Plan) {
    plan.write(Write::pod(pod).set(Resource::CfsQuota, UNLIMITED));
    for container in pod.resident_containers() {
        if let Some(write) = Write::container(pod, container) {
            plan.write(write.set(Resource::CfsQuota, UNLIMITED));
        }
    }
}

/// Writes quotas and buffers by the limits, with the allowances of the burst strategy in the plan. Returns
/// the result for containers. `lifted` means that quotas which are unlimited now were made so by this
/// strategy, not by the kubelet.
fn limits(
    view: &View<'_>,
    pod: &PodView<'_>,
    source: Source,
    ratio: Option<f64>,
    lifted: bool,
    plan: &mut Plan,
) -> Vec<Burst> {
    let mut applied = Vec::new();
    let limit_of = |container: &ContainerInfo| match source {
        Source::Native => container.native.cpu_limit,
        Source::Batch => container.batch.and_then(|batch| batch.cpu_limit),
    };
    let limit_of = |container: &ContainerInfo| limit_of(container).filter(|milli| *milli > 0);
    let quota_now = |group: &CgroupPath| {
        let quota = view.kernel.number(group, Resource::CfsQuota);
        quota.filter(|_| !lifted)
    };
    let mut planned = Vec::new();
    for (container, id) in super::cpu_burst::running(pod) {
        let (Some(write), Some(group)) = (Write::container(pod.info, container), &container.cgroup)
        else {
            continue;
        };
        let burst = plan.bursts.get(&id);
        let wants = Container {
            limit: limit_of(container),
            source,
            present: match (source, burst) {
                // It was read to decide about the burst.
                (Source::Native, Some(burst)) => Some(burst.quota),
                (Source::Native, None) => quota_now(group),
                (Source::Batch, _) => None,
            },
            raised: burst.map(|burst| burst.quota),
            quota_percent: burst.map_or(100, |burst| burst.quota_percent),
            buffer_percent: burst.map_or(0, |burst| burst.buffer_percent),
        };
        planned.push((write, wants, burst.map(|_| container)));
    }
    // A native pod's own quota also counts init containers, the largest of which may exceed the sum.
    let sum = (pod.info.resident_containers()).try_fold(0_i64, |sum, container| {
        Some(sum.saturating_add(limit_of(container)?))
    });
    let init = pod.info.init_containers.iter().filter_map(limit_of).max();
    let limit = match source {
        Source::Native => sum.map(|sum| sum.max(init.unwrap_or(0))),
        Source::Batch => sum,
    };
    let own = Write::pod(pod.info);
    let bursts = planned
        .iter()
        .any(|(_, wants, _)| wants.raised.is_some_and(|quota| quota > 0));
    let present = match source {
        // If containers have quotas, the kubelet also sets the pod's.
        Source::Native if !bursts => quota_now(&pod.info.cgroup),
        _ => None,
    };
    let containers: Vec<Container> = planned.iter().map(|(_, wants, _)| *wants).collect();
    let of_pod = cpu_limit::pod(limit, source, present, &containers, ratio);
    if let Some(limits) = of_pod {
        push(view, plan, own, limits, source);
    }
    for (write, wants, bursting) in planned {
        let Some(limits) = cpu_limit::container(&wants, ratio) else {
            continue;
        };
        if let Some(container) = bursting {
            let buffer = view.facts.machine.has(Resource::CfsBurst);
            applied.push(Burst {
                container: metrics::Container::from_pod(pod.info, container),
                burst_us: buffer.then_some(limits.burst),
                quota_us: Some(limits.quota),
            });
        }
        push(view, plan, write, limits, source);
    }
    applied
}

fn push(view: &View<'_>, plan: &mut Plan, at: Write, limits: Limits, source: Source) {
    let because = |write: Write| match source {
        Source::Native => write.because("limit, normalization and burst"),
        Source::Batch => write,
    };
    plan.write(because(at.clone().set(Resource::CfsQuota, limits.quota)));
    if view.facts.machine.has(Resource::CfsBurst) && source == Source::Native {
        plan.write(because(at.set(Resource::CfsBurst, limits.burst)));
    }
}
