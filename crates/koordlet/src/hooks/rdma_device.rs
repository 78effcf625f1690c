//! RDMADeviceInject: adds the device files of the RDMA adapters that were allocated to a pod to its
//! containers; see [`koord_model::rdma_devices`].

use super::{Adjustment, Hook, HookClaim, HookResource, HookStage, HookTarget, HookValue, Rules};
use crate::claims::{Classes, Level};
use crate::gates::Gate;
use koord_model::rdma_devices::device_files;

pub(super) const NAME: &str = "RDMADeviceInject";

/// The row of the table of hooks.
pub(super) const HOOK: Hook = Hook {
    name: NAME,
    gates: &[Gate::RDMADeviceInject],
    stages: &[HookStage::CreateContainer],
    claims: &[HookClaim {
        resource: HookResource::Devices,
        levels: &[Level::Container],
        classes: Classes::ALL,
    }],
    run,
};

fn run(target: &HookTarget<'_>, _: &Rules, adjustment: &mut Adjustment) {
    if target.container().is_none() {
        return;
    }
    let by = NAME;
    match device_files(&target.pod.settings().devices) {
        Ok(files) => {
            let files = files.into_iter().map(|value| HookValue { value, by });
            adjustment.devices.extend(files);
        }
        Err(error) => adjustment.problems.push(HookValue {
            value: error.to_string(),
            by,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Node, pod};
    use super::super::{desired, desired_sandbox};
    use super::*;
    use koord_model::rdma_devices::RdmaFile;
    use serde_json::json;

    /// The device files themselves are tested with the model.
    #[test]
    fn containers_only() {
        let pod = |devices: &str| {
            pod(json!({
                "metadata": {"uid": "u",
                    "annotations": {"scheduling.koordinator.sh/device-allocated": devices}},
                "spec": {"containers": [{"name": "c"}]}}))
        };
        let pod_with_adapter = pod(r#"{"rdma":[{"minor":0,"id":"0000:3b:00.0"}]}"#);
        let rules = Node::default().open(Gate::RDMADeviceInject).rules();
        let adjustment = desired(
            &pod_with_adapter,
            pod_with_adapter.containers.first(),
            &rules,
        );
        let files: Vec<_> = adjustment.devices.into_iter().map(|it| it.value).collect();
        let verbs = RdmaFile::Verbs("0000:3b:00.0".to_owned());
        assert_eq!(files, [RdmaFile::ConnectionManager, verbs]);
        assert!(desired_sandbox(&pod_with_adapter, &rules).is_empty());
        assert!(desired(&pod_with_adapter, None, &rules).is_empty());
        let closed = Node::default().rules();
        assert!(
            desired(
                &pod_with_adapter,
                pod_with_adapter.containers.first(),
                &closed
            )
            .is_empty()
        );

        let astray = pod(r#"{"rdma":[{"minor":0,"id":"../0000:3b:00.0"}]}"#);
        let adjustment = desired(&astray, astray.containers.first(), &rules);
        assert_eq!(
            (adjustment.devices.len(), adjustment.problems.len()),
            (0, 1)
        );
    }
}
