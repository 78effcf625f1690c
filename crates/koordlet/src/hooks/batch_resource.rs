//! BatchResource: cgroup values of BE pods from their batch resources.
//!
//! * weight: `batch-cpu` request · 1024 / 1000, at least 2;
//! * quota: `batch-cpu` limit · 100 µs per period, divided by the CPU normalization ratio, none
//!   without a limit; none at all while CPU suppression limits batch work by quota (v1 refuses a
//!   class's quota below that of a pod in it, and a quota within a quota only adds latency);
//! * memory limit: `batch-memory` limit, none without.
//!
//! A pod gets what its containers need at most at once; one main container or sidecar without a limit
//! makes the pod unlimited. Pods without any batch resource are left alone.

use super::{Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, Rules, hook_value};
use crate::claims::{Classes, Level};
use crate::gates::Gate;
use crate::states::PodInfo;
use crate::states::pod::{Batch, Role};
use koord_api::qos::QosClass;
use koord_model::cpu_limit::{normalized, quota_of};

const NAME: &str = "BatchResource";

const POD_AND_CONTAINERS: &[Level] = &[Level::Pod, Level::Container];

const fn claim(resource: HookResource) -> HookClaim {
    HookClaim {
        resource,
        levels: POD_AND_CONTAINERS,
        classes: Classes::BE,
    }
}

/// The row of the table of hooks.
pub(super) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::BatchResource],
    stages: &[
        HookStage::RunPodSandbox,
        HookStage::CreateContainer,
        HookStage::UpdateContainer,
        HookStage::Reconcile,
    ],
    claims: &[
        claim(HookResource::CpuShares),
        claim(HookResource::CfsQuota),
        claim(HookResource::MemoryLimit),
    ],
    run,
};

fn run(target: &HookTarget<'_>, rules: &Rules, adjustment: &mut Adjustment) {
    if target.class() != QosClass::Be {
        return;
    }
    let amounts = match target.container() {
        Some(container) => container.batch,
        None if target.is_pod() => pod_amounts(target.pod),
        None => None,
    };
    let Some(amounts) = amounts else { return };
    let quota = if rules.batch_quotas {
        normalized(quota_of(amounts.cpu_limit), rules.batch_ratio)
    } else {
        -1
    };
    adjustment.cpu_shares = hook_value(shares(amounts.cpu_request), NAME);
    adjustment.cfs_quota = hook_value(quota, NAME);
    let limit = amounts.memory_limit.filter(|bytes| *bytes > 0);
    adjustment.memory_limit = hook_value(limit.unwrap_or(-1), NAME);
}

fn shares(milli: Option<i64>) -> i64 {
    let milli = milli.unwrap_or(0).max(0);
    (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

/// Returns the amounts that the pod needs at most at any one time; `None` if no container has batch
/// resources.
fn pod_amounts(pod: &PodInfo) -> Option<Batch> {
    if pod
        .all_containers()
        .all(|container| container.batch.is_none())
    {
        return None;
    }
    let limit = |of: fn(&Batch) -> Option<i64>| {
        // A sidecar counts as a main container: it runs concurrently with them.
        let all = pod
            .resident_containers()
            .all(|container| container.batch.as_ref().and_then(of).is_some_and(|v| v > 0));
        all.then(|| peak(pod, of))
    };
    Some(Batch {
        cpu_request: Some(peak(pod, |batch| batch.cpu_request)),
        cpu_limit: limit(|batch| batch.cpu_limit),
        memory_limit: limit(|batch| batch.memory_limit),
        ..Batch::default()
    })
}

/// Returns the peak of an amount: that of main containers and sidecars together, or of an init container with
/// the sidecars started before it, whichever is more (like `koord_api::requests::peak`).
fn peak(pod: &PodInfo, of: impl Fn(&Batch) -> Option<i64>) -> i64 {
    let amount = |batch: &Option<Batch>| batch.as_ref().and_then(&of).unwrap_or(0).max(0);
    let add = |sum: i64, batch: &Option<Batch>| sum.saturating_add(amount(batch));
    let resident = pod.resident_containers();
    let running = resident.fold(0, |sum, container| add(sum, &container.batch));
    let (mut sidecars, mut most) = (0, running);
    for container in &pod.init_containers {
        let with = add(sidecars, &container.batch);
        if container.role == Role::Sidecar {
            sidecars = with;
        }
        most = most.max(with);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Node, pod};
    use super::super::{desired, desired_sandbox};
    use super::*;
    use serde_json::{Value, json};

    const GI: i64 = 1 << 30;

    fn amounts(cpu: Option<i64>, memory: Option<&str>) -> Value {
        let mut list = json!({});
        if let Some(cpu) = cpu {
            list["kubernetes.io/batch-cpu"] = json!(cpu.to_string());
        }
        if let Some(memory) = memory {
            list["kubernetes.io/batch-memory"] = json!(memory);
        }
        list
    }

    /// Returns a container with this request and limit of batch CPU, each with 2Gi of memory.
    fn container(name: &str, request: Option<i64>, limit: Option<i64>) -> Value {
        let list = |cpu: Option<i64>| amounts(cpu, cpu.map(|_| "2Gi"));
        json!({"name": name, "resources": {"requests": list(request), "limits": list(limit)}})
    }

    fn batch_pod(qos: &str, containers: &[Value], init: &[Value]) -> PodInfo {
        pod(json!({
            "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": qos}},
            "spec": {"containers": containers, "initContainers": init}}))
    }

    fn values(adjustment: &Adjustment) -> Option<(i64, i64, i64)> {
        Some((
            adjustment.cpu_shares.as_ref()?.value,
            adjustment.cfs_quota.as_ref()?.value,
            adjustment.memory_limit.as_ref()?.value,
        ))
    }

    /// Upstream: `Test_plugin_SetPodResources`.
    #[test]
    fn pods() {
        let limited = container("a", Some(500), Some(500));
        let only_limit = container("b", None, Some(1000));
        let only_request = container("b", Some(500), None);
        let bare = json!({"name": "c"});
        let plain = Node::default();
        let lifted = Node::default().quotas_lifted();
        let fast = Node::default().ratio("1.2");
        let cases = [
            ("not BE", &plain, "LS", vec![&limited], None),
            ("no batch resources", &plain, "BE", vec![&bare], None),
            (
                "quotas lifted",
                &lifted,
                "BE",
                vec![&limited],
                Some((512, -1, 2 * GI)),
            ),
            (
                "one container",
                &plain,
                "BE",
                vec![&limited],
                Some((512, 50_000, 2 * GI)),
            ),
            (
                "two containers",
                &plain,
                "BE",
                vec![&limited, &only_limit],
                Some((512, 150_000, 4 * GI)),
            ),
            (
                "no limit",
                &plain,
                "BE",
                vec![&only_request],
                Some((512, -1, -1)),
            ),
            (
                "one without a limit",
                &plain,
                "BE",
                vec![&limited, &only_request],
                Some((1024, -1, -1)),
            ),
            (
                "a faster node",
                &fast,
                "BE",
                vec![&limited],
                Some((512, 41_667, 2 * GI)),
            ),
        ];
        for (name, node, qos, containers, want) in cases {
            let containers: Vec<Value> = containers.into_iter().cloned().collect();
            let pod = batch_pod(qos, &containers, &[]);
            let adjustment = desired(&pod, None, &node.rules());
            assert_eq!(values(&adjustment), want, "{name}");
        }
        let with_bare = batch_pod("BE", &[limited, bare], &[]);
        let adjustment = desired(&with_bare, None, &plain.rules());
        assert_eq!(values(&adjustment), Some((512, -1, -1)));
        assert!(desired_sandbox(&with_bare, &plain.rules()).is_empty());
    }

    /// Upstream: `Test_plugin_SetContainerResources`.
    #[test]
    fn containers() {
        let plain = Node::default();
        let fast = Node::default().ratio("1.2");
        let lifted = Node::default().quotas_lifted();
        for (name, node, given, want) in [
            (
                "all",
                &plain,
                container("a", Some(500), Some(500)),
                Some((512, 50_000, 2 * GI)),
            ),
            (
                "lifted",
                &lifted,
                container("a", Some(500), Some(500)),
                Some((512, -1, 2 * GI)),
            ),
            (
                "no request",
                &plain,
                container("a", None, Some(1000)),
                Some((2, 100_000, 2 * GI)),
            ),
            (
                "no limit",
                &plain,
                container("a", Some(500), None),
                Some((512, -1, -1)),
            ),
            (
                "a faster node",
                &fast,
                container("a", Some(500), Some(500)),
                Some((512, 41_667, 2 * GI)),
            ),
            (
                "little",
                &plain,
                container("a", Some(1), Some(5)),
                Some((2, 1_000, 2 * GI)),
            ),
            (
                "zero",
                &plain,
                container("a", Some(0), Some(0)),
                Some((2, -1, 2 * GI)),
            ),
            (
                "much",
                &plain,
                container("a", Some(1_000_000), None),
                Some((262_144, -1, -1)),
            ),
            ("none", &plain, json!({"name": "a"}), None),
        ] {
            let pod = batch_pod("BE", &[given, container("b", Some(1), Some(1))], &[]);
            let adjustment = desired(&pod, pod.containers.first(), &node.rules());
            assert_eq!(values(&adjustment), want, "{name}");
            assert!(adjustment.cpus.is_none() && adjustment.problems.is_empty());
        }
        let service = batch_pod("LS", &[container("a", Some(500), Some(500))], &[]);
        let adjustment = desired(&service, service.containers.first(), &plain.rules());
        assert_eq!(values(&adjustment), None);
    }

    #[test]
    fn annotations_apply_without_spec() {
        let spec = r#"{"containers":{"a":{"requests":{"kubernetes.io/batch-cpu":"500"},
            "limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"2Gi"}}}}"#;
        let pod = pod(json!({
            "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": "BE"},
                "annotations": {"node.koordinator.sh/extended-resource-spec": spec}},
            "spec": {"containers": [{"name": "a"}]}}));
        let rules = Node::default().rules();
        let want = Some((512, 50_000, 2 * GI));
        assert_eq!(values(&desired(&pod, None, &rules)), want);
        assert_eq!(values(&desired(&pod, pod.containers.first(), &rules)), want);
    }

    /// On v1, the kernel refuses a container quota above that of its pod.
    #[test]
    fn pod_quota_covers_init_containers_and_sidecars() {
        let sidecar = |milli| {
            let mut sidecar = container("s", Some(milli), Some(milli));
            sidecar["restartPolicy"] = json!("Always");
            sidecar
        };
        let main = container("a", Some(500), Some(500));
        let init = container("i", Some(3000), Some(3000));
        let next = container("j", Some(2000), Some(2000));
        let rules = Node::default().rules();
        for (init, want) in [
            (vec![init.clone()], (3072, 300_000, 2 * GI)),
            (vec![init.clone(), next], (3072, 300_000, 2 * GI)),
            (vec![sidecar(1000), init], (4096, 400_000, 4 * GI)),
            (vec![sidecar(1000)], (1536, 150_000, 4 * GI)),
            (vec![json!({"name": "i"})], (512, 50_000, 2 * GI)),
        ] {
            let pod = batch_pod("BE", std::slice::from_ref(&main), &init);
            assert_eq!(values(&desired(&pod, None, &rules)), Some(want), "{init:?}");
        }
    }

    #[test]
    fn the_gate_closes_it() {
        let rules = Node::default().close(Gate::BatchResource).rules();
        let pod = batch_pod("BE", &[container("a", Some(500), Some(500))], &[]);
        assert!(desired(&pod, None, &rules).cfs_quota.is_none());
    }
}
