//! CpuIdle: pods whose cgroups have `cpu.idle`. These are batch pods while their class runs on weight alone,
//! if that is configured, and pods of a class that core scheduling makes idle.
//!
//! It is always the cgroup of a single pod. The cgroup of a whole class would refuse the weight that the
//! kubelet writes there (#2732).
//!
//! It is always the group of a single pod. The group of a whole class would refuse the weight that the
//! kubelet writes there (#2732).

use super::{Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, Rules, hook_value};
use crate::claims::{Classes, Level};
use crate::gates::Gate;
use koord_api::qos::QosClass;

const NAME: &str = "CpuIdle";

/// The row of the table of hooks.
pub(super) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::BatchResource, Gate::CoreSched],
    stages: &[HookStage::RunPodSandbox, HookStage::Reconcile],
    claims: &[HookClaim {
        resource: HookResource::CpuIdle,
        levels: &[Level::Pod],
        classes: Classes::except(&[QosClass::System]),
    }],
    run,
};

fn run(target: &HookTarget<'_>, rules: &Rules, adjustment: &mut Adjustment) {
    let (pod, class) = (target.pod, target.class());
    if !target.is_pod() || !rules.cpu_idle || class == QosClass::System {
        return;
    }
    let batch = rules.is_active(&super::batch_resource::HOOK)
        && class == QosClass::Be
        && pod
            .all_containers()
            .any(|container| container.batch.is_some());
    let core_sched = rules.is_active(&super::core_sched::HOOK);
    if batch || core_sched {
        let idle = (batch && rules.batch_idle)
            || (core_sched && rules.core_sched.is_idle(pod.qos, pod.kube_qos));
        adjustment.cpu_idle = hook_value(idle, NAME);
    }
}

#[cfg(test)]
mod tests {
    use super::super::desired;
    use super::super::tests::{Node, pod};
    use serde_json::json;

    /// Upstream: `TestPlugin_SetKubeQOSCPUIdle`, at the level of pods.
    #[test]
    fn pods() {
        let batch = json!({"requests": {"kubernetes.io/batch-cpu": "500"}});
        let plain = Node::default();
        let idle = Node::default().batch_idle();
        let sched = Node::default()
            .open(crate::gates::Gate::CoreSched)
            .cpu_qos("coreSched");
        let identity = Node::default()
            .open(crate::gates::Gate::CoreSched)
            .cpu_qos("groupIdentity");
        let none = Node::default().without_cpu_idle().batch_idle();
        for (name, node, qos, resources, want) in [
            ("batch work", &plain, "BE", batch.clone(), Some(false)),
            ("idle batch work", &idle, "BE", batch.clone(), Some(true)),
            ("no batch resources", &idle, "BE", json!({}), None),
            ("a service", &idle, "LS", json!({}), None),
            ("a class that is idle", &sched, "BE", json!({}), Some(true)),
            ("one that is not", &sched, "LS", json!({}), Some(false)),
            ("SYSTEM", &sched, "SYSTEM", json!({}), None),
            ("another policy", &identity, "BE", json!({}), Some(false)),
            ("an old kernel", &none, "BE", batch, None),
        ] {
            let pod = pod(json!({
                "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": qos}},
                "spec": {"containers": [{"name": "c", "resources": resources}]}}));
            let rules = node.rules();
            let got = desired(&pod, None, &rules).cpu_idle.map(|idle| idle.value);
            assert_eq!(got, want, "{name}");
            let container = desired(&pod, pod.containers.first(), &rules);
            assert!(container.cpu_idle.is_none(), "{name}");
        }
    }
}
