//! GroupIdentity: the scheduler class of cgroups; see [`koord_model::group_identity`].
//!
//! A container's cgroup starts with the value of its pod's. It is set nonetheless, because a container that
//! was created before the pod's value changed keeps the old one.

use super::{
    Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, HookValue, Rules, hook_value,
};
use crate::claims::{Classes, Level};
use crate::gates::Gate;
use koord_api::qos::{KubeQos, QosClass};
use koord_model::group_identity::GroupIdentity;

const NAME: &str = "GroupIdentity";

/// The row of the table of hooks.
pub(crate) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::GroupIdentity],
    stages: &[HookStage::RunPodSandbox, HookStage::Reconcile],
    claims: &[HookClaim {
        resource: HookResource::Bvt,
        levels: &[Level::Qos, Level::Pod, Level::Container, Level::Host],
        classes: Classes::ALL,
    }],
    run,
};

fn run(target: &HookTarget<'_>, rules: &Rules, adjustment: &mut Adjustment) {
    let pod = target.pod;
    if let Some(identity) = &rules.group_identity {
        let own = pod.settings().cpu_qos.as_ref();
        adjustment.bvt = hook_value(identity.pod(pod.qos, pod.kube_qos, own), NAME);
    }
}

pub(super) fn class_value(class: KubeQos, rules: &Rules) -> Option<HookValue<i64>> {
    let identity = active_identity(rules)?;
    hook_value(identity.class_dir(class), NAME)
}

pub(super) fn host_app_value(qos: QosClass, rules: &Rules) -> Option<HookValue<i64>> {
    let identity = active_identity(rules)?;
    hook_value(identity.host_app(qos), NAME)
}

fn active_identity(rules: &Rules) -> Option<&GroupIdentity> {
    rules
        .group_identity
        .as_ref()
        .filter(|_| rules.is_active(&HOOK))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Node, pod};
    use super::super::{desired, desired_class};
    use super::*;
    use serde_json::json;

    /// Upstream: `Test_bvtPlugin_SetPodBvtValue_Proxy`, `SetKubeQOSBvtValue`; the rule's own rows are
    /// tested with the model.
    #[test]
    fn pods_and_classes() {
        let on = Node::default().group_identity().cpu_qos("groupIdentity");
        let closed = Node::default().group_identity().cpu_qos("groupIdentity");
        let closed = closed.close(Gate::GroupIdentity);
        let unsupported = Node::default().cpu_qos("groupIdentity");
        let own = |text: &str| json!({"koordinator.sh/cpuQOS": text});
        for (node, qos, notes, want) in [
            (&on, "LS", json!({}), Some(2)),
            (
                &on,
                "LS",
                own(r#"{"enable":true,"groupIdentity":-1}"#),
                Some(-1),
            ),
            (&on, "LS", own(r#"{"enable":false}"#), Some(0)),
            (
                &on,
                "LS",
                own(r#"{"enable":true,"groupIdentity":7}"#),
                Some(2),
            ),
            (&on, "BE", json!({}), Some(-1)),
            (&on, "", json!({}), Some(-1)),
            (&unsupported, "BE", json!({}), None),
            (&closed, "BE", json!({}), None),
        ] {
            let pod = pod(json!({
                "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": qos}, "annotations": notes},
                "spec": {"containers": [{"name": "c"}]}}));
            let rules = node.rules();
            let bvt_value = |adjustment: Adjustment| adjustment.bvt.map(|it| it.value);
            assert_eq!(
                bvt_value(desired(&pod, None, &rules)),
                want,
                "{qos} {notes}"
            );
            assert_eq!(
                bvt_value(desired(&pod, pod.containers.first(), &rules)),
                want,
                "{qos} {notes}"
            );
        }
        let class = |node: &Node| {
            [KubeQos::Guaranteed, KubeQos::Burstable, KubeQos::BestEffort]
                .map(|class| desired_class(class, &node.rules()).bvt.map(|it| it.value))
        };
        assert_eq!(class(&on), [Some(0), Some(2), Some(-1)]);
        assert_eq!(class(&unsupported), [None; 3]);
        assert_eq!(class(&closed), [None; 3]);
    }
}
