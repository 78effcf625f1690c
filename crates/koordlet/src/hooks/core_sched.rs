//! CoreSched: assigns the core scheduling cookies of a pod's processes; see [`koord_model::core_sched`].

use super::{Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, Rules, hook_value};
use crate::claims::{Classes, Level};
use crate::gates::Gate;
use crate::states::pod::CoreSchedPolicy;
use koord_api::qos::QosClass;
use koord_model::core_sched::{CoreSchedPod, PodPolicy};

const NAME: &str = "CoreSched";

/// Classes whose cookies are written. SYSTEM pods, which include this agent, keep theirs.
const TOUCHED: Classes = Classes::except(&[QosClass::System]);

/// The row of the table of hooks.
pub(crate) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::CoreSched],
    stages: &[HookStage::Reconcile],
    claims: &[HookClaim {
        resource: HookResource::CoreSched,
        levels: &[Level::Container],
        classes: TOUCHED,
    }],
    run,
};

fn run(target: &HookTarget<'_>, rules: &Rules, adjustment: &mut Adjustment) {
    let pod = target.pod;
    if target.is_pod() || !TOUCHED.has(target.class()) {
        return;
    }
    let settings = pod.settings();
    let ask = CoreSchedPod {
        qos: pod.qos,
        kube: pod.kube_qos,
        group: settings.core_sched_group.as_deref().unwrap_or_default(),
        policy: match settings.core_sched_policy {
            CoreSchedPolicy::Group => PodPolicy::Group,
            CoreSchedPolicy::None => PodPolicy::None,
            CoreSchedPolicy::Exclusive => PodPolicy::Exclusive,
        },
        uid: &pod.uid,
    };
    adjustment.core_sched = hook_value(rules.core_sched.desired_cookie(ask), NAME);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Node, pod};
    use super::super::{desired, desired_sandbox};
    use super::*;
    use koord_model::core_sched::CookieTarget;
    use serde_json::json;

    #[test]
    fn labels_choose_the_group() {
        let node = Node::default().open(Gate::CoreSched).cpu_qos("coreSched");
        let group = |name: &str| Some(CookieTarget::Group(name.to_owned()));
        for (qos, group_label, policy, want) in [
            ("LS", "g", "", group("g-expeller")),
            ("LS", "g", "exclusive", group("u-expeller")),
            ("LS", "g", "none", Some(CookieTarget::Neutral)),
            ("BE", "", "", group("")),
            ("SYSTEM", "g", "", None),
        ] {
            let pod = pod(json!({
                "metadata": {"uid": "u", "labels": {
                    "koordinator.sh/qosClass": qos,
                    "koordinator.sh/core-sched-group-id": group_label,
                    "koordinator.sh/core-sched-policy": policy}},
                "spec": {"containers": [{"name": "c"}]}}));
            let rules = node.rules();
            let core_sched_value =
                |adjustment: Adjustment| adjustment.core_sched.map(|it| it.value);
            assert_eq!(
                core_sched_value(desired(&pod, pod.containers.first(), &rules)),
                want,
                "{qos} {policy}"
            );
            assert_eq!(
                core_sched_value(desired_sandbox(&pod, &rules)),
                want,
                "{qos} {policy}"
            );
            assert_eq!(core_sched_value(desired(&pod, None, &rules)), None);
            let closed = Node::default().cpu_qos("coreSched").rules();
            assert_eq!(core_sched_value(desired_sandbox(&pod, &closed)), None);
        }
    }
}
