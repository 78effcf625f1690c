//! BatchResource: what BE pods asked for in batch resources, as cgroup values.
//!
//! * weight: `batch-cpu` request · 1024 / 1000, at least 2;
//! * quota: `batch-cpu` limit · 100 µs per period, at least 1000, none without a limit; none at all
//!   while CPU suppression limits batch work by quota (v1 refuses a class's quota below that of a
//!   pod in it, and a quota within a quota only adds latency);
//! * memory limit: `batch-memory` limit, none without.
//!
//! A pod gets the sums; one container without a limit makes the pod unlimited. Pods without any
//! batch resource are left alone. Where asked for, a BE pod's own group becomes `cpu.idle`; never
//! the group of the whole class, because an idle group refuses the weight the kubelet writes there.

use crate::executor::{Claim, Intent, Level, Target};
use crate::states::PodInfo;
use crate::states::pod::Batch;
use koord_api::qos::QosClass;
use koord_host::{CgroupPath, Resource};

/// The strategy's name.
pub const NAME: &str = "BatchResource";

/// What it writes.
pub const CLAIMS: &[Claim] = &[
    claim(Level::Pod, Resource::CpuShares),
    claim(Level::Pod, Resource::CpuIdle),
    claim(Level::Pod, Resource::CfsQuota),
    claim(Level::Pod, Resource::MemoryLimit),
    claim(Level::Container, Resource::CpuShares),
    claim(Level::Container, Resource::CfsQuota),
    claim(Level::Container, Resource::MemoryLimit),
];

const fn claim(level: Level, resource: Resource) -> Claim {
    Claim {
        strategy: NAME,
        level,
        resource,
    }
}

/// The rules in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Whether BE pods have quotas of their own.
    pub quotas: bool,
    /// Whether BE pods' groups are idle; `None` where the kernel has no such file.
    pub idle: Option<bool>,
}

/// The values of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Values {
    /// `cpu.shares`.
    pub shares: i64,
    /// `cpu.cfs_quota_us`.
    pub quota: i64,
    /// `memory.limit_in_bytes`.
    pub memory: i64,
}

/// The values for a container that asked for `batch`.
#[must_use]
pub fn container_values(batch: Batch, quotas: bool) -> Values {
    Values {
        shares: shares(batch.cpu_request.unwrap_or(0).max(0)),
        quota: if quotas {
            quota(batch.cpu_limit.filter(|milli| *milli > 0))
        } else {
            -1
        },
        memory: batch.memory_limit.filter(|bytes| *bytes > 0).unwrap_or(-1),
    }
}

/// The values for a pod; `None` when no container asks for batch resources.
#[must_use]
pub fn pod_values(pod: &PodInfo, quotas: bool) -> Option<Values> {
    let mut any = false;
    let mut request = 0_i64;
    let mut limit = Some(0_i64);
    let mut memory = Some(0_i64);
    for container in &pod.containers {
        any |= container.batch.is_some();
        let batch = container.batch.unwrap_or_default();
        request = request.saturating_add(batch.cpu_request.unwrap_or(0).max(0));
        let add = |sum: Option<i64>, value: Option<i64>| {
            Some(sum?.saturating_add(value.filter(|value| *value > 0)?))
        };
        limit = add(limit, batch.cpu_limit);
        memory = add(memory, batch.memory_limit);
    }
    any.then(|| Values {
        shares: shares(request),
        quota: if quotas { quota(limit) } else { -1 },
        memory: memory.unwrap_or(-1),
    })
}

fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

fn quota(milli: Option<i64>) -> i64 {
    milli.map_or(-1, |milli| milli.saturating_mul(100).max(1000))
}

/// The writes that bring the BE pods of this node to their values.
#[must_use]
pub fn plan(pods: &[PodInfo], rule: Rule) -> Vec<Intent> {
    let mut intents = Vec::new();
    for pod in pods
        .iter()
        .filter(|pod| pod.qos == QosClass::Be && pod.is_active())
    {
        let Some(values) = pod_values(pod, rule.quotas) else {
            continue;
        };
        let target = Target {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            container: String::new(),
        };
        if let Some(idle) = rule.idle {
            let value = if idle { "1" } else { "0" };
            intents.push(intent(
                Level::Pod,
                &pod.cgroup,
                Resource::CpuIdle,
                value.into(),
                &target,
            ));
        }
        push(&mut intents, Level::Pod, &pod.cgroup, values, &target);
        for container in &pod.containers {
            let (Some(group), Some(batch)) = (&container.cgroup, container.batch) else {
                continue;
            };
            let target = Target {
                container: container.name.clone(),
                ..target.clone()
            };
            let values = container_values(batch, rule.quotas);
            push(&mut intents, Level::Container, group, values, &target);
        }
    }
    intents
}

fn push(intents: &mut Vec<Intent>, level: Level, group: &CgroupPath, values: Values, to: &Target) {
    for (resource, value) in [
        (Resource::CpuShares, values.shares),
        (Resource::CfsQuota, values.quota),
        (Resource::MemoryLimit, values.memory),
    ] {
        intents.push(intent(level, group, resource, value.to_string(), to));
    }
}

fn intent(
    level: Level,
    group: &CgroupPath,
    resource: Resource,
    value: String,
    target: &Target,
) -> Intent {
    Intent {
        level,
        group: group.clone(),
        resource,
        value,
        target: target.clone(),
        reason: NAME,
        because: String::new(),
        verbosity: 3,
        cacheable: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(request: Option<i64>, limit: Option<i64>, memory: Option<i64>) -> Batch {
        Batch {
            cpu_request: request,
            cpu_limit: limit,
            memory_limit: memory,
        }
    }

    #[test]
    fn container_table() {
        for (given, want) in [
            (
                batch(Some(500), Some(500), Some(1 << 30)),
                (512, 50_000, 1 << 30),
            ),
            (batch(Some(500), None, None), (512, -1, -1)),
            (batch(None, Some(5), None), (2, 1000, -1)),
            (batch(Some(0), Some(0), Some(0)), (2, -1, -1)),
            (batch(Some(1), Some(-3), None), (2, -1, -1)),
        ] {
            let Values {
                shares,
                quota,
                memory,
            } = container_values(given, true);
            assert_eq!((shares, quota, memory), want, "{given:?}");
        }
        let unlimited = container_values(batch(Some(500), Some(500), None), false);
        assert_eq!(
            unlimited.quota, -1,
            "suppression by quota takes the pods' own quotas away"
        );
    }
}
