//! OOMScoreAdj: sets which processes of a pod the kernel kills first, by the pod's annotations.
//!
//! Sandboxes keep the runtime's value, and the value remains when the annotation is removed.

use super::{Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, Rules, hook_value};
use crate::claims::{Classes, Level};
use crate::gates::Gate;

const NAME: &str = "OOMScoreAdj";

/// The row of the table of hooks.
pub(super) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::OOMScoreAdj],
    stages: &[HookStage::CreateContainer, HookStage::Reconcile],
    claims: &[HookClaim {
        resource: HookResource::OomScoreAdj,
        levels: &[Level::Container],
        classes: Classes::ALL,
    }],
    run,
};

fn run(target: &HookTarget<'_>, _: &Rules, adjustment: &mut Adjustment) {
    if let Some(container) = target.container() {
        let configured = target
            .pod
            .settings()
            .oom_score_adj
            .for_container(&container.name);
        adjustment.oom_score_adj = configured.and_then(|adj| hook_value(i64::from(adj), NAME));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Node, pod};
    use super::super::{desired, desired_sandbox};
    use super::*;
    use serde_json::json;

    /// Upstream: `TestPlugin_SetContainerOOMScoreAdj`; reading the annotations is tested with them.
    #[test]
    fn containers_only() {
        for (default, spec, want) in [
            (None, None, None),
            (Some("-500"), None, Some(-500)),
            (Some("-500"), Some(r#"{"c1": 200}"#), Some(200)),
            (Some("-2000"), None, None),
            (None, Some("{invalid}"), None),
        ] {
            let mut notes = json!({});
            if let Some(default) = default {
                notes["koordinator.sh/oom-score-adj"] = json!(default);
            }
            if let Some(spec) = spec {
                notes["koordinator.sh/oom-score-adj-spec"] = json!(spec);
            }
            let pod = pod(json!({
                "metadata": {"uid": "u", "annotations": notes},
                "spec": {"containers": [{"name": "c1"}]}}));
            let rules = Node::default().open(Gate::OOMScoreAdj).rules();
            let adjustment = desired(&pod, pod.containers.first(), &rules);
            assert_eq!(adjustment.oom_score_adj.map(|it| it.value), want, "{notes}");
            assert!(desired_sandbox(&pod, &rules).oom_score_adj.is_none());
            let closed = Node::default().rules();
            assert!(desired(&pod, pod.containers.first(), &closed).is_empty());
        }
    }
}
