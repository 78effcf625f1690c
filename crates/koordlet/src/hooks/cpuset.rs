//! CPUSetAllocator: containers run on the CPUs that the scheduler assigned to their pod, or on the pool of
//! their class; see [`koord_model::cpuset_rule`]. Pods with exclusive CPUs lose their quotas, which would
//! throttle them below what they own; unless they own more than they request, which no scheduler assigns.

use super::{
    Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, HookValue, Rules, hook_value,
};
use crate::claims::{Classes, Level};
use crate::gates::Gate;
use crate::states::slo::HostApp;
use koord_api::qos::QosClass;
use koord_model::cpuset_rule::{CpusetRequest, container_cpus, host_app_cpus};

const NAME: &str = "CPUSetAllocator";

/// Classes of pods with exclusive CPUs.
const PINNED: Classes = Classes::only(&[QosClass::Lse, QosClass::Lsr]);

/// The row of the table of hooks.
pub(super) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::CPUSetAllocator],
    stages: &[
        HookStage::RunPodSandbox,
        HookStage::CreateContainer,
        HookStage::UpdateContainer,
        HookStage::Reconcile,
    ],
    claims: &[
        HookClaim {
            resource: HookResource::Cpus,
            levels: &[Level::Container],
            classes: Classes::ALL,
        },
        HookClaim {
            resource: HookResource::CfsQuota,
            levels: &[Level::Pod, Level::Container],
            classes: PINNED,
        },
    ],
    run,
};

fn run(target: &HookTarget<'_>, rules: &Rules, adjustment: &mut Adjustment) {
    let pod = target.pod;
    let own = pod.cpus.as_ref().map(ToString::to_string);
    if !target.is_pod() {
        let ask = CpusetRequest {
            qos: pod.qos,
            kube: pod.kube_qos,
            own: own.as_deref(),
            numa: &pod.settings().numa,
            batch_by_pool: rules.batch_by_pool,
        };
        adjustment.cpus =
            container_cpus(ask, rules.pools.as_ref()).and_then(|cpus| hook_value(cpus, NAME));
    }
    if pod.is_bound_by_its_cpus() && rules.unset_quota && PINNED.has(target.class()) {
        adjustment.cfs_quota = hook_value(-1, NAME);
    }
}

/// Sets the CPUs of a host application.
pub(super) fn set_host_app_cpus(app: &HostApp, rules: &Rules, adjustment: &mut Adjustment) {
    if !rules.is_active(&HOOK) {
        return;
    }
    match host_app_cpus(app.qos, rules.pools.as_ref()) {
        Ok(cpus) => adjustment.cpus = cpus.and_then(|cpus| hook_value(cpus, NAME)),
        Err(error) => adjustment.problems.push(HookValue {
            value: error.to_string(),
            by: NAME,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Node, pod};
    use super::super::{desired, desired_host_app, desired_sandbox};
    use super::*;
    use crate::states::PodInfo;
    use koord_api::PriorityClass;
    use serde_json::{Value, json};

    fn pod_with_status(qos: &str, resources: Value, status: Value) -> PodInfo {
        let notes = json!({"scheduling.koordinator.sh/resource-status": status.to_string()});
        pod(json!({
            "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": qos}, "annotations": notes},
            "spec": {"containers": [{"name": "c", "resources": resources}]}}))
    }

    fn guaranteed() -> Value {
        let list = json!({"cpu": "2", "memory": "1Gi"});
        json!({"requests": list, "limits": list})
    }

    fn burstable() -> Value {
        json!({"requests": {"cpu": "2"}})
    }

    fn cpus(adjustment: Adjustment) -> Option<String> {
        adjustment.cpus.map(|it| it.value)
    }

    /// Upstream: `TestUnsetPodCPUQuota`, `TestUnsetContainerCPUQuota`.
    #[test]
    fn quotas_of_pinned_pods() {
        let on = Node::default();
        let off = Node::default().keep_quotas();
        let pinned = json!({"cpuset": "2-3"});
        // More CPUs than the pod requests: an existing quota stays.
        let exclusive_cpus = json!({"cpuset": "2-4"});
        for (qos, status, node, want) in [
            ("LS", &pinned, &on, Some(-1)),
            ("LSR", &pinned, &on, Some(-1)),
            ("LSE", &pinned, &on, Some(-1)),
            ("", &pinned, &on, Some(-1)),
            (
                "LS",
                &json!({"numaNodeResources": [{"node": 0}]}),
                &on,
                None,
            ),
            ("", &json!({}), &on, None),
            ("LSR", &exclusive_cpus, &on, None),
            ("LS", &exclusive_cpus, &on, None),
            ("LSR", &pinned, &off, None),
            ("LSE", &pinned, &off, None),
        ] {
            let pod = pod_with_status(qos, guaranteed(), status.clone());
            let rules = node.rules();
            let container = pod.containers.first();
            for adjustment in [
                desired(&pod, None, &rules),
                desired(&pod, container, &rules),
                desired_sandbox(&pod, &rules),
            ] {
                let quota = adjustment.cfs_quota.map(|quota| quota.value);
                assert_eq!(quota, want, "{qos} {status}");
            }
        }
    }

    /// Upstream: `TestCPUSetPlugin_SetContainerCPUSet`; the pools are tested with their rule.
    #[test]
    fn containers_and_sandboxes() {
        let none = Node::default();
        let pools = Node::default().pools(&["0-7", "8-15"], &["0-7", "8-15"]);
        let numa = |resource: &str| json!({"numaNodeResources": [{"node": 1, "resources": {resource: "2000"}}]});
        for (qos, resources, status, node, want) in [
            (
                "LSR",
                guaranteed(),
                json!({"cpuset": "2-4"}),
                &none,
                Some("2-4"),
            ),
            ("LS", burstable(), json!({}), &none, None),
            ("LS", burstable(), json!({}), &pools, Some("0-7,8-15")),
            ("LS", burstable(), numa("cpu"), &pools, Some("8-15")),
            ("", json!({}), json!({}), &pools, Some("")),
            (
                "BE",
                json!({}),
                numa("kubernetes.io/batch-cpu"),
                &pools,
                Some(""),
            ),
        ] {
            let pod = pod_with_status(qos, resources, status.clone());
            let rules = node.rules();
            let container = desired(&pod, pod.containers.first(), &rules);
            assert_eq!(cpus(container).as_deref(), want, "{qos} {status}");
            let sandbox = desired_sandbox(&pod, &rules);
            assert_eq!(cpus(sandbox).as_deref(), want, "{qos} {status}");
            assert_eq!(
                cpus(desired(&pod, None, &rules)),
                None,
                "a pod's group is left alone"
            );
        }
        let by_pool = pools.open(Gate::BECPUManager).rules();
        let pod = pod_with_status("BE", json!({}), numa("kubernetes.io/batch-cpu"));
        assert_eq!(
            cpus(desired_sandbox(&pod, &by_pool)).as_deref(),
            Some("8-15")
        );
    }

    #[test]
    fn malformed_status_sets_no_cpus() {
        let pod = pod(json!({
            "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": "LSR"},
                "annotations": {"scheduling.koordinator.sh/resource-status": "bad-format"}},
            "spec": {"containers": [{"name": "c"}]}}));
        let rules = Node::default().rules();
        assert!(desired(&pod, pod.containers.first(), &rules).is_empty());
        assert!(desired(&pod, None, &rules).is_empty());
    }

    /// Upstream: `TestCPUSetPlugin_SetHostAppCPUSet`.
    #[test]
    fn host_applications() {
        let app = |qos| HostApp {
            name: "nginx".to_owned(),
            priority: PriorityClass::None,
            qos,
            path: None,
        };
        let pools = Node::default().pools(&["0-7", "8-15"], &[]).rules();
        let ls = desired_host_app(&app(QosClass::Ls), &pools);
        assert_eq!(cpus(ls).as_deref(), Some("0-7,8-15"));
        let be = desired_host_app(&app(QosClass::Be), &pools);
        assert_eq!(be.problems.len(), 1);
        assert_eq!(
            be.problems[0].value,
            "only LS host applications get CPUs, got QoS \"BE\""
        );
        assert!(desired_host_app(&app(QosClass::Ls), &Node::default().rules()).is_empty());
    }
}
