//! CPUNormalization: quotas of pods on shared CPUs, divided by the relative speed of the node.
//!
//! The base is always the limit in the spec, never the value of a cgroup or of a request to the runtime, so
//! that no value is divided twice. While no ratio is set no value is set; CPULimits, which writes quotas,
//! undoes an earlier ratio once.

use super::{Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, Rules, hook_value};
use crate::claims::{Classes, Level};
use crate::gates::Gate;
use crate::states::PodInfo;
use crate::states::pod::Role;
use koord_api::qos::QosClass;
use koord_model::cpu_limit::{normalized, quota_of};

const NAME: &str = "CPUNormalization";

/// Classes of pods on shared CPUs.
const SHARED: Classes = Classes::only(&[QosClass::Ls, QosClass::None]);

/// The row of the table of hooks.
pub(super) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::CPUNormalization],
    stages: &[
        HookStage::RunPodSandbox,
        HookStage::CreateContainer,
        HookStage::UpdateContainer,
        HookStage::Reconcile,
    ],
    claims: &[HookClaim {
        resource: HookResource::CfsQuota,
        levels: &[Level::Pod, Level::Container],
        classes: SHARED,
    }],
    run,
};

fn run(target: &HookTarget<'_>, rules: &Rules, adjustment: &mut Adjustment) {
    if !SHARED.has(target.class()) || rules.ratio.is_none() {
        return;
    }
    let limit = match target.container() {
        Some(container) => container.native.cpu_limit,
        None if target.is_pod() => pod_limit(target.pod),
        None => None,
    };
    let base = quota_of(limit);
    if base > 0 {
        adjustment.cfs_quota = hook_value(normalized(base, rules.ratio), NAME);
    }
}

/// Returns the pod's CPU limit in milli-cores, calculated like the kubelet; `None` if a container has no
/// limit.
fn pod_limit(pod: &PodInfo) -> Option<i64> {
    let limit = |milli: Option<i64>| milli.filter(|milli| *milli > 0);
    let mut running = 0_i64;
    for container in pod.resident_containers() {
        running = running.saturating_add(limit(container.native.cpu_limit)?);
    }
    let (mut sidecars, mut most) = (0_i64, running);
    for container in &pod.init_containers {
        let with = sidecars.saturating_add(limit(container.native.cpu_limit)?);
        if container.role == Role::Sidecar {
            sidecars = with;
        }
        most = most.max(with);
    }
    Some(most)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Node, pod};
    use super::super::{desired, desired_sandbox};
    use super::*;
    use serde_json::{Value, json};

    fn limited(labels: Value, status: Option<&str>, limits: &[Option<&str>]) -> PodInfo {
        let containers: Vec<Value> = limits
            .iter()
            .map(|limit| {
                let limits = limit.map_or(json!({}), |cpu| json!({"cpu": cpu}));
                json!({"name": "c", "resources": {"limits": limits}})
            })
            .collect();
        let notes = status.map_or(json!({}), |cpus| {
            let status = json!({"cpuset": cpus}).to_string();
            json!({"scheduling.koordinator.sh/resource-status": status})
        });
        pod(json!({
            "metadata": {"uid": "u", "labels": labels, "annotations": notes},
            "spec": {"containers": containers}}))
    }

    fn quota(pod: &PodInfo, node: &Node, container: bool) -> Option<i64> {
        let container = container.then(|| &pod.containers[0]);
        let adjustment = desired(pod, container, &node.rules());
        let quota = adjustment.cfs_quota?;
        assert_eq!(quota.by, NAME);
        Some(quota.value)
    }

    fn node() -> Node {
        Node::default().open(Gate::CPUNormalization)
    }

    /// Upstream: `TestPluginAdjustPodCFSQuota`, `TestPluginAdjustContainerCFSQuota`.
    #[test]
    fn quotas() {
        let ls = json!({"koordinator.sh/qosClass": "LS"});
        let one_cpu: &[Option<&str>] = &[Some("1")];
        for (name, node, labels, limits, want) in [
            ("no limit", node().ratio("1.2"), &ls, &[None][..], None),
            (
                "BE",
                node().ratio("1.2"),
                &json!({"koordinator.sh/qosClass": "BE"}),
                one_cpu,
                None,
            ),
            (
                "LSR",
                node().ratio("1.2"),
                &json!({"koordinator.sh/qosClass": "LSR"}),
                one_cpu,
                None,
            ),
            (
                "SYSTEM",
                node().ratio("1.2"),
                &json!({"koordinator.sh/qosClass": "SYSTEM"}),
                one_cpu,
                None,
            ),
            ("no ratio", node(), &ls, one_cpu, None),
            ("1.2", node().ratio("1.2"), &ls, one_cpu, Some(83_334)),
            (
                "no class",
                node().ratio("1.2"),
                &json!({}),
                one_cpu,
                Some(83_334),
            ),
            ("1.0", node().ratio("1.0"), &ls, one_cpu, Some(100_000)),
            ("below 1", node().ratio("0.50"), &ls, one_cpu, Some(100_000)),
            ("not a ratio", node().ratio("[}"), &ls, one_cpu, None),
            (
                "gate closed",
                Node::default().ratio("1.2"),
                &ls,
                one_cpu,
                None,
            ),
        ] {
            let pod = limited(labels.clone(), None, limits);
            assert_eq!(quota(&pod, &node, false), want, "pod: {name}");
            assert_eq!(quota(&pod, &node, true), want, "container: {name}");
            assert!(desired_sandbox(&pod, &node.rules()).cfs_quota.is_none());
        }
    }

    #[test]
    fn a_pod_is_limited_when_all_its_containers_are() {
        let node = node().ratio("2.0");
        let two_containers = limited(json!({}), None, &[Some("1"), Some("500m")]);
        assert_eq!(quota(&two_containers, &node, false), Some(75_000));
        let half = limited(json!({}), None, &[Some("1"), None]);
        assert_eq!(quota(&half, &node, false), None);
        assert_eq!(quota(&half, &node, true), Some(50_000));
    }

    /// Upstream: `Test_isPodCPUShare`. CPUs of its own take a pod off the shared ones.
    #[test]
    fn pods_with_cpus_of_their_own_are_not_scaled() {
        for labels in [json!({}), json!({"koordinator.sh/qosClass": "LS"})] {
            let pod = limited(labels, Some("2-3,34-35"), &[Some("1")]);
            let adjustment = desired(&pod, None, &node().ratio("1.2").rules());
            assert_ne!(adjustment.cfs_quota.map(|quota| quota.by), Some(NAME));
        }
    }
}
