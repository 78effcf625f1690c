//! BatchResource: what BE pods asked for in batch resources, as cgroup values.
//!
//! * weight: `batch-cpu` request · 1024 / 1000, at least 2;
//! * memory limit: `batch-memory` limit, none without.
//!
//! CPU quotas are CPULimits' business. A pod gets the sums; one container without a limit makes the pod unlimited. Pods without any
//! batch resource are left alone. Where asked for, a BE pod's own group becomes `cpu.idle`; never
//! the group of the whole class, because an idle group refuses the weight the kubelet writes there.

use crate::gates::Gate;
use crate::qos::cpu_suppress;
use crate::qos::{Claim, Classes, Level, Plan, Planner, Strategy, View, Write};
use crate::states::PodInfo;
use crate::states::pod::Batch;
use crate::states::slo::SuppressMode;
use koord_api::qos::QosClass;
use koord_host::{Resource, TargetKind};

/// The strategy's name.
pub const NAME: &str = "BatchResource";

/// What it writes.
pub const CLAIMS: &[Claim] = &[
    claim(Level::Pod, Resource::CpuShares),
    claim(Level::Pod, Resource::CpuIdle),
    claim(Level::Pod, Resource::MemoryLimit),
    claim(Level::Container, Resource::CpuShares),
    claim(Level::Container, Resource::MemoryLimit),
];

const fn claim(level: Level, file: Resource) -> Claim {
    Claim {
        file: TargetKind::Cgroup(file),
        level,
        classes: Classes::BE,
    }
}

/// The row.
pub const STRATEGY: Strategy = Strategy {
    name: NAME,
    gates: &[Gate::BatchResource],
    every: |settings| settings.interval_ms,
    claims: CLAIMS,
    make: |_, _| Box::new(Row::default()),
};

/// When the values were last looked at, and under what.
#[derive(Debug, Default)]
struct Row {
    planned: Option<(u64, u64, Rule)>,
}

impl Planner for Row {
    /// New pods and new rules have their values at once; a foreign write is found at the reconcile
    /// interval.
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let facts = &view.facts;
        let asked = facts.slo.extension.be_cpu_idle;
        let idle = facts.slo.enabled
            && cpu_suppress::mode(facts).0 == SuppressMode::Pressure
            && asked.unwrap_or(facts.settings.be_cpu_idle);
        let rule = Rule {
            idle: facts.machine.has(Resource::CpuIdle).then_some(idle),
        };
        let now = view.now.ms();
        let due = self.planned.is_none_or(|(at, version, planned)| {
            (version, planned) != (view.pods_version, rule)
                || now.saturating_sub(at) >= facts.settings.reconcile_interval_ms
        });
        if due {
            self.planned = Some((now, view.pods_version, rule));
            for pod in view.pods() {
                pod_writes(pod.info, rule, plan);
            }
        }
    }
}

/// The rules in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Whether BE pods' groups are idle; `None` where the kernel has no such file.
    pub idle: Option<bool>,
}

/// The values of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Values {
    /// `cpu.shares`.
    pub shares: i64,
    /// `memory.limit_in_bytes`.
    pub memory: i64,
}

/// The values for a container that asked for `batch`.
#[must_use]
pub fn container_values(batch: Batch) -> Values {
    Values {
        shares: shares(batch.cpu_request.unwrap_or(0).max(0)),
        memory: batch.memory_limit.filter(|bytes| *bytes > 0).unwrap_or(-1),
    }
}

/// The values for a pod; `None` when no container asks for batch resources.
#[must_use]
pub fn pod_values(pod: &PodInfo) -> Option<Values> {
    let mut any = false;
    let mut request = 0_i64;
    let mut memory = Some(0_i64);
    for container in &pod.containers {
        any |= container.batch.is_some();
        let batch = container.batch.unwrap_or_default();
        request = request.saturating_add(batch.cpu_request.unwrap_or(0).max(0));
        let limit = batch.memory_limit.filter(|bytes| *bytes > 0);
        memory = memory
            .zip(limit)
            .map(|(sum, limit)| sum.saturating_add(limit));
    }
    any.then(|| Values {
        shares: shares(request),
        memory: memory.unwrap_or(-1),
    })
}

fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

/// The writes that bring a BE pod to its values.
fn pod_writes(pod: &PodInfo, rule: Rule, plan: &mut Plan) {
    if pod.qos != QosClass::Be || !pod.is_active() {
        return;
    }
    let Some(values) = pod_values(pod) else {
        return;
    };
    if let Some(idle) = rule.idle {
        plan.write(Write::pod(pod).set(Resource::CpuIdle, i32::from(idle)));
    }
    push(plan, &Write::pod(pod), values);
    for container in &pod.containers {
        if let (Some(batch), Some(write)) = (container.batch, Write::container(pod, container)) {
            push(plan, &write, container_values(batch));
        }
    }
}

fn push(plan: &mut Plan, at: &Write, values: Values) {
    for (resource, value) in [
        (Resource::CpuShares, values.shares),
        (Resource::MemoryLimit, values.memory),
    ] {
        plan.write(at.clone().set(resource, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(request: Option<i64>, memory: Option<i64>) -> Batch {
        Batch {
            cpu_request: request,
            memory_limit: memory,
            ..Batch::default()
        }
    }

    #[test]
    fn container_table() {
        for (given, want) in [
            (batch(Some(500), Some(1 << 30)), (512, 1 << 30)),
            (batch(Some(500), None), (512, -1)),
            (batch(None, None), (2, -1)),
            (batch(Some(0), Some(0)), (2, -1)),
        ] {
            let Values { shares, memory } = container_values(given);
            assert_eq!((shares, memory), want, "{given:?}");
        }
    }
}
