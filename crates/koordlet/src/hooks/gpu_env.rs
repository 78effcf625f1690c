//! GPUEnvInject: makes the GPUs that were allocated to a pod visible to its containers; see
//! [`koord_model::gpu_env`].

use super::{
    Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, HookValue, Rules, hook_value,
};
use crate::claims::{Classes, Level};
use crate::gates::Gate;
use koord_model::gpu_env::{GpuEnvRequest, container_env};

pub(super) const NAME: &str = "GPUEnvInject";

/// The row of the table of hooks.
pub(super) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::GPUEnvInject],
    stages: &[HookStage::CreateContainer],
    claims: &[HookClaim {
        resource: HookResource::Env,
        levels: &[Level::Container],
        classes: Classes::ALL,
    }],
    run,
};

/// Sets the environment variables and mounts of the container's GPUs.
fn run(target: &HookTarget<'_>, rules: &Rules, adjustment: &mut Adjustment) {
    let Some(container) = target.container() else {
        return;
    };
    let settings = target.pod.settings();
    let injection = container_env(GpuEnvRequest {
        devices: &settings.devices,
        isolation: settings.gpu_isolation.as_deref(),
        library: &rules.hami_library,
        monitored: rules.hami_monitor,
        uid: &target.pod.uid,
        container: &container.name,
    });
    match injection {
        Ok(injection) => {
            let by = NAME;
            let env = injection
                .env
                .into_iter()
                .map(|value| HookValue { value, by });
            adjustment.env.extend(env);
            let mounts = injection
                .mounts
                .into_iter()
                .map(|value| HookValue { value, by });
            adjustment.mounts.extend(mounts);
            adjustment.fresh_directory = injection
                .fresh_directory
                .and_then(|directory| hook_value(directory, by));
        }
        Err(error) => adjustment.problems.push(HookValue {
            value: error.to_string(),
            by: NAME,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Node, pod};
    use super::super::{desired, desired_sandbox};
    use super::*;
    use serde_json::json;

    /// `--help` and the log must not list the gate as one without effect.
    #[test]
    fn monitor_gate_that_adds_mounts_is_not_without_effect() {
        let half = pod(json!({
            "metadata": {"uid": "u", "labels": {"koordinator.sh/gpu-isolation-provider": "HAMi-core"},
                "annotations": {"scheduling.koordinator.sh/device-allocated":
                    r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50",
                    "koordinator.sh/gpu-memory":"16Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#}},
            "spec": {"containers": [{"name": "c"}]}}));
        let mounts = |node: Node| {
            let adjustment = desired(&half, half.containers.first(), &node.rules());
            adjustment.mounts.len()
        };
        let gate = Gate::HamiCoreVGPUMonitor;
        let without = mounts(Node::default().open(Gate::GPUEnvInject));
        let with = mounts(Node::default().open(Gate::GPUEnvInject).open(gate));
        assert!(with > without);
        assert!(matches!(gate.effect(), crate::gates::Effect::Partly(_)));
    }

    /// Upstream: `Test_InjectContainerGPUEnv`; what is injected is tested with the model.
    #[test]
    fn containers_only() {
        let pod = |devices: &str| {
            pod(json!({
                "metadata": {"uid": "pod-uid",
                    "labels": {"koordinator.sh/gpu-isolation-provider": "HAMi-core"},
                    "annotations": {"scheduling.koordinator.sh/device-allocated": devices}},
                "spec": {"containers": [{"name": "container-name"}]}}))
        };
        let half = pod(
            r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50",
            "koordinator.sh/gpu-memory":"16Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#,
        );
        let node = Node::default()
            .open(Gate::GPUEnvInject)
            .open(Gate::HamiCoreVGPUMonitor);
        let rules = node.rules();
        let adjustment = desired(&half, half.containers.first(), &rules);
        assert_eq!((adjustment.env.len(), adjustment.mounts.len()), (5, 3));
        assert_eq!(
            adjustment.fresh_directory.map(|it| it.value).as_deref(),
            Some("/usr/local/vgpu/containers/pod-uid_container-name")
        );
        assert!(desired_sandbox(&half, &rules).env.is_empty());
        assert!(desired(&half, None, &rules).env.is_empty());
        let closed = Node::default().rules();
        assert!(
            desired(&half, half.containers.first(), &closed)
                .env
                .is_empty()
        );

        let vague = pod(r#"{"gpu":[{"minor":1}]}"#);
        let adjustment = desired(&vague, vague.containers.first(), &rules);
        assert_eq!(adjustment.problems.len(), 1);
        assert!(adjustment.problems[0].value.contains("gpu-memory-ratio"));
    }
}
