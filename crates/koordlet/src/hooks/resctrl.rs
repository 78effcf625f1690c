//! Resctrl: assigns a pod with resctrl settings of its own to a resctrl group. The strategy RdtResctrl
//! creates and fills the group.

use super::{
    Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, ResctrlAssignment, Rules,
    hook_value,
};
use crate::claims::{Classes, Level};
use crate::gates::Gate;

const NAME: &str = "Resctrl";

/// Prefix of the names of pods' groups, before the UID. It is upstream's, so that groups survive a change of
/// the agent.
const GROUP_PREFIX: &str = "koordlet-";

/// The row of the table of hooks.
pub(super) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::Resctrl],
    stages: &[
        HookStage::RunPodSandbox,
        HookStage::CreateContainer,
        HookStage::RemovePodSandbox,
        HookStage::Reconcile,
    ],
    claims: &[HookClaim {
        resource: HookResource::Resctrl,
        levels: &[Level::Pod, Level::Container],
        classes: Classes::ALL,
    }],
    run,
};

fn run(target: &HookTarget<'_>, _: &Rules, adjustment: &mut Adjustment) {
    if let Some((shares, _)) = &target.pod.settings().resctrl {
        let assignment = ResctrlAssignment {
            group: format!("{GROUP_PREFIX}{}", target.pod.uid),
            shares: shares.clone(),
        };
        adjustment.resctrl = hook_value(assignment, NAME);
    }
}

#[cfg(test)]
mod tests {
    use super::super::desired;
    use super::super::tests::{Node, pod};
    use super::*;
    use serde_json::json;

    /// Upstream: `Test_plugin_setPodResctrlResources`, `SetContainerResctrlResources`.
    #[test]
    fn pods_with_the_annotation() {
        let text = r#"{"llc":{"schemata":{"range":[0,30]}},"mb":{"schemata":{"percent":20}}}"#;
        for (notes, want) in [
            (json!({}), None),
            (json!({"node.koordinator.sh/resctrl": "{"}), None),
            (
                json!({"node.koordinator.sh/resctrl": text}),
                Some("koordlet-u"),
            ),
        ] {
            let pod = pod(json!({
                "metadata": {"uid": "u", "annotations": notes},
                "spec": {"containers": [{"name": "c"}]}}));
            let rules = Node::default().open(Gate::Resctrl).rules();
            for adjustment in [
                desired(&pod, None, &rules),
                desired(&pod, pod.containers.first(), &rules),
            ] {
                let group = adjustment.resctrl.map(|it| it.value.group);
                assert_eq!(group.as_deref(), want, "{notes}");
            }
            assert!(desired(&pod, None, &Node::default().rules()).is_empty());
        }
    }
}
